/* state/block.h: the arithmetic and the byte layout of codec_block, inline so that a fast row compiles the same code
 * for wider vectors and gets the same bits. Included by codec_block.c and by delta kernels.
 *
 * Planes: codes [key_dim] rows of ceil(value_dim * bits / 8) bytes, then (int8, int4) FP32 scales [key_dim][groups]
 * with groups of 32 along the value axis, aligned to 4. */
#ifndef STATE_BLOCK_H
#define STATE_BLOCK_H

#include "ebb/state.h"
#include "format/block_int.h"
#include "format/float16.h"

enum { BLOCK_PARAM_P, BLOCK_PARAM_FORMAT };
enum { BLOCK_FP32, BLOCK_FP16, BLOCK_BF16, BLOCK_INT8, BLOCK_INT4 }; /* values of the parameter `format` */
#define BLOCK_FORMATS "fp32|fp16|bf16|int8|int4"

typedef struct block_shape {
    int32_t rows, columns, format, groups;
    size_t row_bytes, scales_at, bytes;
} block_shape;

static inline block_shape block_shape_of(const ebb_state_layer *layer, const double *param) {
    static const uint8_t bits[] = {32, 16, 16, 8, 4};
    block_shape s = {.rows = layer->key_dim, .columns = layer->value_dim, .format = (int32_t)param[BLOCK_PARAM_FORMAT]};
    s.row_bytes = ((size_t)s.columns * bits[s.format] + 7) / 8;
    s.scales_at = (s.row_bytes * (size_t)s.rows + 3) / 4 * 4;
    s.groups = s.format >= BLOCK_INT8 ? (s.columns + BLOCK_GROUP - 1) / BLOCK_GROUP : 0;
    s.bytes = s.groups ? s.scales_at + (size_t)s.rows * (size_t)s.groups * 4 : s.row_bytes * (size_t)s.rows;
    return s;
}

static inline void block_encode(const block_shape *s, const float *S, uint8_t *packed) {
    float *scales = (float *)(void *)(packed + s->scales_at);
    const size_t codes_end = s->row_bytes * (size_t)s->rows;
    if (s->groups)
        memset(packed + codes_end, 0, s->scales_at - codes_end); /* padding has one value: images are compared */
    for (int32_t u = 0; u < s->rows; u++) {
        const float *x = S + (size_t)u * (size_t)s->columns;
        uint8_t *codes = packed + (size_t)u * s->row_bytes;
        float *row_scales = scales + (size_t)u * (size_t)s->groups;
        uint16_t *half = (uint16_t *)(void *)codes;
        switch (s->format) {
        case BLOCK_FP32:
            memcpy(codes, x, s->row_bytes);
            break;
        case BLOCK_FP16:
            for (int32_t v = 0; v < s->columns; v++) half[v] = float_to_fp16(x[v]);
            break;
        case BLOCK_BF16:
            for (int32_t v = 0; v < s->columns; v++) half[v] = float_to_bf16(x[v]);
            break;
        case BLOCK_INT8:
            int8_encode_row(x, s->columns, (int8_t *)codes, row_scales);
            break;
        default:
            int4_encode_row(x, s->columns, codes, row_scales);
            break;
        }
    }
}

static inline void block_decode(const block_shape *s, const uint8_t *packed, float *S) {
    const float *scales = (const float *)(const void *)(packed + s->scales_at);
    for (int32_t u = 0; u < s->rows; u++) {
        float *x = S + (size_t)u * (size_t)s->columns;
        const uint8_t *codes = packed + (size_t)u * s->row_bytes;
        const float *row_scales = scales + (size_t)u * (size_t)s->groups;
        const uint16_t *half = (const uint16_t *)(const void *)codes;
        switch (s->format) {
        case BLOCK_FP32:
            memcpy(x, codes, s->row_bytes);
            break;
        case BLOCK_FP16:
            for (int32_t v = 0; v < s->columns; v++) x[v] = fp16_to_float(half[v]);
            break;
        case BLOCK_BF16:
            for (int32_t v = 0; v < s->columns; v++) x[v] = bf16_to_float(half[v]);
            break;
        case BLOCK_INT8:
            int8_decode_row((const int8_t *)codes, row_scales, s->columns, x);
            break;
        default:
            int4_decode_row(codes, row_scales, s->columns, x);
            break;
        }
    }
}

#endif
