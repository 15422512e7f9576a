/* state/damp.h: the arithmetic and the byte layout of codec_damp and codec_reorder, inline so that a fast row compiles
 * the same code for wider vectors and gets the same bits. Included by codec_damp.c and by delta kernels.
 *
 * Rows of S are stored in the order of the layout's key_order, the first `rows` of them in 16 bits and the others in a
 * low format. codec_reorder stores T = S D_c^-1 P_V^T instead of S: value coordinate v divided by c_v = value_scale[v],
 * the coordinates in the order of value_order.
 *
 * Planes: high [rows][value_dim] 16 bits | codes [key_dim - rows] rows | meta [key_dim - rows] rows | global (nvfp4)
 * one FP32; each aligned to 4. Meta is, per group of 32 along the value axis, an FP16 scale and zero point (affine) or
 * an FP32 scale (reorder), and with nvfp4 a byte per 16. */
#ifndef STATE_DAMP_H
#define STATE_DAMP_H

#include "format/block_affine.h"
#include "format/block_micro.h"
#include "state/draw.h"

enum { DAMP_PARAM_P, DAMP_PARAM_ROWS, DAMP_PARAM_HIGH, DAMP_PARAM_LOW, DAMP_PARAM_ZERO }; /* the last: codec_damp */
enum { DAMP_FP16, DAMP_BF16, DAMP_FP16_STOCH }; /* values of the parameter `high` */
#define DAMP_HIGH "fp16|bf16|fp16-stoch"
#define DAMP_MAX_ROWS 128

typedef enum damp_low { DAMP_AFFINE8, DAMP_AFFINE4, DAMP_NVFP4, DAMP_INT8, DAMP_INT4 } damp_low;
#define DAMP_LOW "int8|int4|nvfp4" /* the first three, of codec_damp */
#define REORDER_LOW "int8|int4"    /* the last two, of codec_reorder */

typedef struct damp_shape {
    int32_t rows, columns, high; /* key_dim, value_dim, protected rows */
    int32_t high_format;         /* DAMP_FP16 .. */
    damp_low low;
    affine_form affine;
    micro_form micro;
    const uint16_t *key_order;   /* [rows] of this head; NULL: as they are */
    const uint16_t *value_order; /* [columns]; NULL: neither scaled nor reordered */
    const float *value_scale;    /* [columns] */
    size_t code_row, meta_row;   /* bytes */
    size_t codes_at, meta_at, global_at, bytes;
} damp_shape;

/* Sizes, and the tables of this head where there are some. */
static inline damp_shape damp_shape_of(const ebb_head *head, bool reorder) {
    const ebb_state_layer *l = head->layer;
    const ebb_layout_layer *t = head->table;
    const double *param = head->param;
    damp_shape s = {.rows = l->key_dim, .columns = l->value_dim, .high = (int32_t)param[DAMP_PARAM_ROWS]};
    if (s.high > s.rows) s.high = s.rows;
    s.high_format = (int32_t)param[DAMP_PARAM_HIGH];
    s.low = (damp_low)((reorder ? DAMP_INT8 : DAMP_AFFINE8) + (int)param[DAMP_PARAM_LOW]);
    const size_t n = (size_t)s.columns, low = (size_t)(s.rows - s.high), groups = (n + BLOCK_GROUP - 1) / BLOCK_GROUP;
    const bool bytes = s.low == DAMP_AFFINE8 || s.low == DAMP_INT8, nv = s.low == DAMP_NVFP4;
    s.affine = (affine_form){s.low == DAMP_AFFINE8 ? 8 : 4, 1, 0, !reorder && param[DAMP_PARAM_ZERO] != 0};
    s.micro = micro_form_of(MICRO_E2M1, 1);
    s.code_row = bytes ? n : (n + 1) / 2;
    s.meta_row = nv ? (n + 15) / 16 : groups * 4;
    s.codes_at = ((size_t)s.high * n * 2 + 3) / 4 * 4;
    s.meta_at = (s.codes_at + low * s.code_row + 3) / 4 * 4;
    s.global_at = (s.meta_at + low * s.meta_row + 3) / 4 * 4;
    s.bytes = s.global_at + (nv ? 4 : 0);
    if (!t) return s;
    const size_t at = (size_t)l->head_begin + (size_t)head->head;
    if (s.high > 0 && t->key_order) s.key_order = t->key_order + at * (size_t)s.rows;
    if (reorder && t->value_order && t->value_scale) {
        s.value_order = t->value_order + at * n;
        s.value_scale = t->value_scale + at * n;
    }
    return s;
}

/* Where stored row i lies in S. */
static inline size_t damp_row_at(const damp_shape *s, int32_t i) {
    return (size_t)(s->key_order ? s->key_order[i] : i) * (size_t)s->columns;
}

/* Stored row i before it is encoded: in S itself, or made in `row`. Cut at +-3e38, so that it comes back finite; NaN
 * stays. */
static inline const float *damp_row(const damp_shape *s, const float *S, int32_t i, float *row) {
    const float *x = S + damp_row_at(s, i);
    if (!s->value_order) return x;
    for (int32_t j = 0; j < s->columns; j++) {
        const int32_t v = s->value_order[j];
        const float low = x[v] < -3.0e38f ? -3.0e38f : x[v];
        row[j] = (low > 3.0e38f ? 3.0e38f : low) / s->value_scale[v];
    }
    return row;
}

static inline void damp_high_encode(const damp_shape *s, uint64_t key, int32_t i, const float *x, uint8_t *packed) {
    uint16_t *half = (uint16_t *)(void *)packed + (size_t)i * (size_t)s->columns;
    switch (s->high_format) {
    case DAMP_FP16:
        for (int32_t j = 0; j < s->columns; j++) half[j] = float_to_fp16(x[j]);
        break;
    case DAMP_BF16:
        for (int32_t j = 0; j < s->columns; j++) half[j] = float_to_bf16(x[j]);
        break;
    default:
        for (int32_t j = 0; j < s->columns; j++)
            half[j] = float_to_fp16_stoch(x[j], draw(key, (uint64_t)(i * s->columns + j)));
        break;
    }
}

static inline void damp_high_decode(const damp_shape *s, int32_t i, const uint8_t *packed, float *x) {
    const uint16_t *half = (const uint16_t *)(const void *)packed + (size_t)i * (size_t)s->columns;
    if (s->high_format == DAMP_BF16)
        for (int32_t j = 0; j < s->columns; j++) x[j] = bf16_to_float(half[j]);
    else
        for (int32_t j = 0; j < s->columns; j++) x[j] = fp16_to_float(half[j]);
}

static inline void damp_low_encode(const damp_shape *s, float global, const float *x, uint8_t *codes, uint8_t *meta) {
    switch (s->low) {
    case DAMP_AFFINE8:
    case DAMP_AFFINE4:
        affine_encode_row(s->affine, x, s->columns, codes, meta);
        break;
    case DAMP_NVFP4:
        micro_encode_row(s->micro, global, x, s->columns, codes, NULL, meta);
        break;
    case DAMP_INT8:
        int8_encode_row(x, s->columns, (int8_t *)codes, (float *)(void *)meta);
        break;
    default:
        int4_encode_row(x, s->columns, codes, (float *)(void *)meta);
        break;
    }
}

static inline void damp_low_decode(const damp_shape *s, float global, const uint8_t *codes, const uint8_t *meta,
                                   float *x) {
    switch (s->low) {
    case DAMP_AFFINE8:
    case DAMP_AFFINE4:
        affine_decode_row(s->affine, codes, meta, s->columns, x);
        break;
    case DAMP_NVFP4:
        micro_decode_row(s->micro, global, codes, NULL, meta, s->columns, x);
        break;
    case DAMP_INT8:
        int8_decode_row((const int8_t *)codes, (const float *)(const void *)meta, s->columns, x);
        break;
    default:
        int4_decode_row(codes, (const float *)(const void *)meta, s->columns, x);
        break;
    }
}

/* Bytes between the planes have one value: images are compared. */
static inline void damp_clear_padding(const damp_shape *s, uint8_t *packed) {
    const size_t low = (size_t)(s->rows - s->high), high_end = (size_t)s->high * (size_t)s->columns * 2,
                 codes_end = s->codes_at + low * s->code_row, meta_end = s->meta_at + low * s->meta_row;
    memset(packed + high_end, 0, s->codes_at - high_end);
    memset(packed + codes_end, 0, s->meta_at - codes_end);
    memset(packed + meta_end, 0, s->global_at - meta_end);
}

/* `key`: draw_key of the head, for fp16-stoch. */
static inline void damp_encode(const damp_shape *s, uint64_t key, const float *S, uint8_t *packed) {
    float row[EBB_MAX_STATE_DIM], global = 1;
    damp_clear_padding(s, packed);
    for (int32_t i = 0; i < s->high; i++) damp_high_encode(s, key, i, damp_row(s, S, i, row), packed);
    if (s->low == DAMP_NVFP4) {
        float amax = 0;
        for (int32_t i = s->high; i < s->rows; i++) amax = micro_amax(amax, S + damp_row_at(s, i), s->columns);
        global = micro_global(s->micro, amax);
        memcpy(packed + s->global_at, &global, sizeof global);
    }
    uint8_t *codes = packed + s->codes_at, *meta = packed + s->meta_at;
    for (int32_t i = s->high; i < s->rows; i++, codes += s->code_row, meta += s->meta_row)
        damp_low_encode(s, global, damp_row(s, S, i, row), codes, meta);
}

static inline void damp_decode(const damp_shape *s, const uint8_t *packed, float *S) {
    float row[EBB_MAX_STATE_DIM], global = 1;
    if (s->low == DAMP_NVFP4) memcpy(&global, packed + s->global_at, sizeof global);
    const uint8_t *codes = packed + s->codes_at, *meta = packed + s->meta_at;
    for (int32_t i = 0; i < s->rows; i++) {
        float *to = S + damp_row_at(s, i), *x = s->value_order ? row : to;
        if (i < s->high) damp_high_decode(s, i, packed, x);
        else {
            damp_low_decode(s, global, codes, meta, x);
            codes += s->code_row, meta += s->meta_row;
        }
        for (int32_t j = 0; x == row && j < s->columns; j++)
            to[s->value_order[j]] = row[j] * s->value_scale[s->value_order[j]];
    }
}

#endif
