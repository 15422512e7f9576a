/* op/x86/delta_damp_fold.h: decode and encode of codec_damp with UINT8 rows in vectors, with the bits of damp.h and
 * block_affine.h, to which other forms and short groups are left. Part of op/x86/delta.h. */
#ifndef OP_X86_DELTA_DAMP_FOLD_H
#define OP_X86_DELTA_DAMP_FOLD_H

#include "op/x86/delta_damp.h"

/* A group of 32 transformed values to its code and its pair; `f` says how the pair is fitted, to the extrema. */
static inline void affine_group_of(affine_form f, const float *x, uint8_t *codes, uint8_t *pair) {
    vf y[GROUP_VECTORS];
    for (int b = 0; b < GROUP_VECTORS; b++) {
        const vf e = vf_load(x + b * VL);
        y[b] = vf_number(e, vf_min(vf_max(e, vf_set1(-1e36f)), vf_set1(1e36f))); /* as h32_forward */
    }
    vf_hadamard32(y);
    vf lo = y[0], hi = y[0];
    for (int b = 1; b < GROUP_VECTORS; b++) lo = vf_min(lo, y[b]), hi = vf_max(hi, y[b]);
    const float ends[2] = {-vf_top(vf_sub(vf_zero(), lo)), vf_top(hi)};
    const affine_pair p = f.paper ? affine_fit_paper(f, ends, 2) : affine_fit_exact(f, ends, 2);
    for (int b = 0; b < GROUP_VECTORS; b++) {
        const vf code = vf_add(vf_round(vf_div(y[b], vf_set1(p.s))), vf_set1(p.z));
        vf_store_u8(codes + b * VL, vf_min(vf_max(code, vf_zero()), vf_set1(255.0f)));
    }
    const uint16_t half[2] = {float_to_half(p.s), float_to_half(p.z)}; /* exact: fitted so */
    memcpy(pair, half, sizeof half);
}

static inline void affine_values_of(const uint8_t *codes, const uint8_t *pair, float *x) {
    uint16_t half[2];
    memcpy(half, pair, sizeof half);
    const vf s = vf_set1(half_to_float(half[0])), z = vf_set1(half_to_float(half[1]));
    vf y[GROUP_VECTORS];
    for (int b = 0; b < GROUP_VECTORS; b++) y[b] = vf_mul(s, vf_sub(vf_load_u8(codes + b * VL), z));
    vf_hadamard32(y);
    for (int b = 0; b < GROUP_VECTORS; b++) vf_store(x + b * VL, y[b]);
}

/* UINT8 rows behind FP16 ones. */
static bool is_plain_damp(const damp_shape *p) {
    return p->low == DAMP_AFFINE8 && p->high_format == DAMP_FP16 && !p->value_order && p->columns % BLOCK_GROUP == 0;
}

static void damp_decode_tile(const damp_shape *p, const uint8_t *packed, float *S) {
    if (!is_plain_damp(p)) {
        damp_decode(p, packed, S);
        return;
    }
    const uint16_t *half = (const uint16_t *)(const void *)packed;
    const uint8_t *codes = packed + p->codes_at, *meta = packed + p->meta_at;
    for (int32_t i = 0; i < p->rows; i++) {
        float *x = S + damp_row_at(p, i);
        for (int32_t v = 0; i < p->high && v < p->columns; v += VL) vf_store(x + v, vf_load_fp16(half + v));
        half += p->columns;
        if (i < p->high) continue;
        for (int32_t v = 0; v < p->columns; v += BLOCK_GROUP, codes += BLOCK_GROUP, meta += 4)
            affine_values_of(codes, meta, x + v);
    }
}

/* key: of what fp16-stoch draws. */
static void damp_encode_tile(const damp_shape *p, uint64_t key, const float *S, uint8_t *packed) {
    if (!is_plain_damp(p)) {
        damp_encode(p, key, S, packed);
        return;
    }
    damp_clear_padding(p, packed);
    uint16_t *half = (uint16_t *)(void *)packed;
    uint8_t *codes = packed + p->codes_at, *meta = packed + p->meta_at;
    for (int32_t i = 0; i < p->rows; i++) {
        const float *x = S + damp_row_at(p, i);
        for (int32_t v = 0; i < p->high && v < p->columns; v += VL) vf_store_half(half + v, vf_load(x + v));
        half += p->columns;
        if (i < p->high) continue;
        for (int32_t v = 0; v < p->columns; v += BLOCK_GROUP, codes += BLOCK_GROUP, meta += 4)
            affine_group_of(p->affine, x + v, codes, meta);
    }
}

#endif
