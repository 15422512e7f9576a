/* state/block.h: the byte layout of codec_block, and the arithmetic of its plain forms, inline so that a fast row
 * compiles the same code for wider vectors and gets the same bits. Included by codec_block.c, which has the other
 * forms, and by delta kernels.
 *
 * Planes: codes [key_dim] rows of ceil(value_dim * bits / 8) bytes (of 6 and 5 bits the low 4) | high [key_dim] rows of
 * the bits above them (6 and 5 bits only) | scales (fp8 and integers), FP32, FP16 or BF16: [key_dim][groups] with
 * groups of 32 along the value axis, [key_dim], or [value_dim]. The last two begin at multiples of 4. */
#ifndef STATE_BLOCK_H
#define STATE_BLOCK_H

#include "ebb/state.h"
#include "format/block_int.h"
#include "format/float16.h"
#include "format/float8.h"

enum {
    BLOCK_PARAM_P,
    BLOCK_PARAM_FORMAT,
    BLOCK_PARAM_GROUP,
    BLOCK_PARAM_SCALE,
    BLOCK_PARAM_FIT,
    BLOCK_PARAM_ROUND,
    BLOCK_PARAM_SEED
};
/* Values of the parameters, as their words. */
enum { BLOCK_FP32, BLOCK_FP16, BLOCK_BF16, BLOCK_FP8, BLOCK_INT8, BLOCK_INT4, BLOCK_INT6, BLOCK_INT5 };
#define BLOCK_FORMATS "fp32|fp16|bf16|fp8|int8|int4|int6|int5"
enum { BLOCK_OF_32, BLOCK_OF_ROW, BLOCK_OF_COLUMN };
#define BLOCK_GROUPS "32|row|column"
enum { BLOCK_SCALE_FP32, BLOCK_SCALE_FP16, BLOCK_SCALE_BF16 };
#define BLOCK_SCALES "fp32|fp16|bf16"
enum { BLOCK_MAX, BLOCK_LS };
#define BLOCK_FITS "max|ls"
enum { BLOCK_EVEN, BLOCK_STOCH };
#define BLOCK_ROUNDS "even|stoch"

typedef struct block_shape {
    int32_t rows, columns, format, bits; /* bits of a code */
    int32_t group, scale, fit, round;    /* values of those parameters */
    int32_t groups, scales;              /* of a row, of 32; scales in all: 0 for formats without */
    float qmax;                          /* largest code of a format with scales */
    bool plain_bytes;                    /* those of formats.c, row by row: block_decode reads them */
    bool plain;                          /* rounded as there, too: block_encode writes them */
    size_t row_bytes, high_row_bytes, high_at, scales_at, bytes;
} block_shape;

static inline block_shape block_shape_of(const ebb_state_layer *layer, const double *param) {
    static const uint8_t bits[] = {32, 16, 16, 8, 8, 4, 6, 5};
    block_shape s = {.rows = layer->key_dim, .columns = layer->value_dim};
    s.format = (int32_t)param[BLOCK_PARAM_FORMAT], s.group = (int32_t)param[BLOCK_PARAM_GROUP];
    s.scale = (int32_t)param[BLOCK_PARAM_SCALE], s.fit = (int32_t)param[BLOCK_PARAM_FIT];
    s.round = (int32_t)param[BLOCK_PARAM_ROUND], s.bits = bits[s.format];
    s.groups = (s.columns + BLOCK_GROUP - 1) / BLOCK_GROUP;
    if (s.format >= BLOCK_FP8) {
        s.qmax = s.format == BLOCK_FP8 ? FP8_MAX : (float)((1 << (s.bits - 1)) - 1);
        s.scales = s.group == BLOCK_OF_32 ? s.rows * s.groups : s.group == BLOCK_OF_ROW ? s.rows : s.columns;
    }
    s.plain_bytes = s.format <= BLOCK_INT4 && s.group == BLOCK_OF_32 && s.scale == BLOCK_SCALE_FP32;
    s.plain = s.plain_bytes && s.fit == BLOCK_MAX && s.round == BLOCK_EVEN;
    const int32_t low = s.bits == 6 || s.bits == 5 ? 4 : s.bits;
    s.row_bytes = ((size_t)s.columns * (size_t)low + 7) / 8;
    s.high_row_bytes = high_bytes(s.bits, s.columns);
    s.high_at = (s.row_bytes * (size_t)s.rows + 3) / 4 * 4;
    s.scales_at = (s.high_at + s.high_row_bytes * (size_t)s.rows + 3) / 4 * 4;
    s.bytes = s.scales ? s.scales_at + (size_t)s.scales * (s.scale == BLOCK_SCALE_FP32 ? 4 : 2)
                       : s.row_bytes * (size_t)s.rows;
    return s;
}

/* Padding has one value: images are compared. */
static inline void block_pad(const block_shape *s, uint8_t *packed) {
    if (!s->scales) return;
    const size_t codes_end = s->row_bytes * (size_t)s->rows,
                 high_end = s->high_at + s->high_row_bytes * (size_t)s->rows;
    memset(packed + codes_end, 0, s->high_at - codes_end);
    memset(packed + high_end, 0, s->scales_at - high_end);
}

/* The plain forms. */
static inline void block_encode(const block_shape *s, const float *S, uint8_t *packed) {
    float *scales = (float *)(void *)(packed + s->scales_at);
    block_pad(s, packed);
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
        case BLOCK_FP8:
            fp8_encode_row(x, s->columns, codes, row_scales);
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

/* Plain bytes. */
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
        case BLOCK_FP8:
            fp8_decode_row(codes, row_scales, s->columns, x);
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
