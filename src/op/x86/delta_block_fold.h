/* op/x86/delta_block_fold.h: decode and encode of codec_block's plain forms in vectors, with the bits of block.h, to
 * which the others are left. Part of op/x86/delta.h. */
#ifndef OP_X86_DELTA_BLOCK_FOLD_H
#define OP_X86_DELTA_BLOCK_FOLD_H

#include "op/x86/delta_block.h"

/* A row of n codes with one scale per group of 32, or of 16-bit numbers. */
INLINE void block_values_of(reader kind, const uint8_t *codes, const float *scales, int32_t n, float *x) {
    for (int32_t v = 0; v < n; v += VL) {
        vf e = load_codes(kind, codes, NULL, (size_t)v);
        if (has_groups(kind)) e = vf_mul(vf_set1(scales[v / BLOCK_GROUP]), e);
        vf_store(x + v, e);
    }
}

static void block_decode_tile(const block_shape *p, const uint8_t *packed, float *S) {
    if (p->format == BLOCK_FP32 || p->format == BLOCK_FP8) {
        block_decode(p, packed, S);
        return;
    }
    const float *scales = (const float *)(const void *)(packed + p->scales_at);
    for (int32_t u = 0; u < p->rows; u++, packed += p->row_bytes, scales += p->groups, S += p->columns) {
        if (p->format == BLOCK_FP16) block_values_of(READ_FP16, packed, NULL, p->columns, S);
        else if (p->format == BLOCK_BF16) block_values_of(READ_BF16, packed, NULL, p->columns, S);
        else if (p->format == BLOCK_INT8) block_values_of(READ_INT8, packed, scales, p->columns, S);
        else block_values_of(READ_INT4, packed, scales, p->columns, S);
    }
}

/* As block_scale and block_codes: n <= 32 values, a multiple of VL. Returns the scale. */
static inline float block_codes_of(const float *x, int32_t n, float qmax, int8_t *codes) {
    vf top = vf_set1(1e-30f);
    for (int32_t v = 0; v < n; v += VL) top = vf_max(vf_abs(vf_load(x + v)), top); /* NaN is passed over */
    const float amax = vf_top(top), s = (amax < 3.0e38f ? amax : 3.0e38f) / qmax;
    const vf high = vf_set1(qmax), low = vf_set1(-qmax), magic = vf_set1(12582912.0f); /* round_even */
    for (int32_t v = 0; v < n; v += VL) {
        const vf code = vf_min(vf_max(vf_div(vf_load(x + v), vf_set1(s)), low), high);
        vf_store_i8(codes + v, vf_sub(vf_add(code, magic), magic));
    }
    return s;
}

static void block_encode_row_of(const block_shape *p, const float *x, uint8_t *codes, float *scales) {
    for (int32_t v = 0; v < p->columns; v += BLOCK_GROUP, scales++) {
        const int32_t n = p->columns - v < BLOCK_GROUP ? p->columns - v : BLOCK_GROUP;
        int8_t q[BLOCK_GROUP] = {0};
        if (p->format == BLOCK_INT8) *scales = block_codes_of(x + v, n, 127.0f, (int8_t *)codes + v);
        else {
            *scales = block_codes_of(x + v, n, 7.0f, q);
            pack_int4(q, n, codes + v / 2);
        }
    }
}

/* Plain forms. */
static void block_encode_tile(const block_shape *p, const float *S, uint8_t *packed) {
    if (p->format != BLOCK_INT8 && p->format != BLOCK_INT4 && p->format != BLOCK_FP16) {
        block_encode(p, S, packed);
        return;
    }
    block_pad(p, packed);
    float *scales = (float *)(void *)(packed + p->scales_at);
    for (int32_t u = 0; u < p->rows; u++, packed += p->row_bytes, scales += p->groups, S += p->columns) {
        if (p->format != BLOCK_FP16) block_encode_row_of(p, S, packed, scales);
        else
            for (int32_t v = 0; v < p->columns; v += VL) vf_store_half((uint16_t *)(void *)packed + v, vf_load(S + v));
    }
}

#endif
