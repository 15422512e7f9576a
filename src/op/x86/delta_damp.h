/* op/x86/delta_damp.h: reads the images of codec_damp and codec_reorder. Part of op/x86/delta.h. */
#ifndef OP_X86_DELTA_DAMP_H
#define OP_X86_DELTA_DAMP_H

#include "op/x86/delta_codes.h"

/* NB vectors of columns from `at`, all in one group, of codec_damp's integers: P = (lower rows)^T x, Z = (lower rows)^T
 * y, before the transform. */
INLINE void read_affine(int NB, const damp_shape *p, const uint8_t *packed, int32_t at, const float *x, const float *y,
                        float *P, float *Z) {
    const uint8_t *codes = packed + p->codes_at + at, *pairs = packed + p->meta_at + at / BLOCK_GROUP * 4;
    vf a[4], b[4];
    for (int i = 0; i < NB; i++) a[i] = b[i] = vf_zero();
    for (int32_t u = p->high; u < p->rows; u++, codes += p->code_row, pairs += p->meta_row) {
        uint16_t half[2];
        memcpy(half, pairs, sizeof half);
        const float s = half_to_float(half[0]);
        const vf zero = vf_set1(half_to_float(half[1])), sx = vf_set1(s * x[u]), sy = vf_set1(s * y[u]);
        for (int i = 0; i < NB; i++) {
            const vf e = vf_sub(vf_load_u8(codes + i * VL), zero);
            a[i] = vf_fma(e, sx, a[i]);
            b[i] = vf_fma(e, sy, b[i]);
        }
    }
    for (int i = 0; i < NB; i++) {
        vf_store(P + at + i * VL, a[i]);
        vf_store(Z + at + i * VL, b[i]);
    }
}

static inline void hadamard_group(float *x) {
    vf y[GROUP_VECTORS];
    for (int b = 0; b < GROUP_VECTORS; b++) y[b] = vf_load(x + b * VL);
    vf_hadamard32(y);
    for (int b = 0; b < GROUP_VECTORS; b++) vf_store(x + b * VL, y[b]);
}

/* P, Z += H_32 (lower rows)^T [x y]: the transform acts on columns, so it may follow the sums over rows. */
static void read_affine_rows(const damp_shape *p, const uint8_t *packed, const float *x, const float *y, float *low_P,
                             float *low_Z, float *P, float *Z) {
    int32_t at = 0;
    for (; at + BLOCK_GROUP <= p->columns; at += BLOCK_GROUP) {
        read_affine(BLOCK_GROUP / VL, p, packed, at, x, y, low_P, low_Z);
        hadamard_group(low_P + at);
        hadamard_group(low_Z + at);
    }
    const int32_t rest = at;
    for (; at < p->columns; at += VL) read_affine(1, p, packed, at, x, y, low_P, low_Z);
    if (rest < at) {
        h32_blocks(low_P + rest, at - rest);
        h32_blocks(low_Z + rest, at - rest);
    }
    for (int32_t v = 0; v < p->columns; v += VL) {
        vf_store(P + v, vf_add(vf_load(low_P + v), vf_load(P + v)));
        vf_store(Z + v, vf_add(vf_load(low_Z + v), vf_load(Z + v)));
    }
}

/* The protected rows, then the lower ones, with x and y in stored order (in the tile, which nobody else needs now).
 * With a reordered value axis P and Z are gathered in stored order and put in their places, scaled, at the end. */
static void read_damp(const ebb_state_view *s, int32_t head, const uint8_t *packed, const scratch *r) {
    const ebb_head h = head_of(s, head);
    const damp_shape p = damp_shape_of(&h, s->codec == &codec_reorder);
    const int32_t n = p.columns;
    float *x = r->tile, *y = x + p.rows, *P = y + p.rows, *Z = P + n;
    for (int32_t i = 0; i < p.rows; i++) {
        const int32_t u = p.key_order ? p.key_order[i] : i;
        x[i] = r->x[u], y[i] = r->y[u];
    }
    float *to_P = p.value_order ? P : r->P, *to_Z = p.value_order ? Z : r->Z;
    if (p.value_order) memset(P, 0, 2 * (size_t)n * sizeof *P);
    const reader high = p.high_format == DAMP_BF16 ? READ_BF16 : READ_FP16;
    read_codes(high, packed, NULL, p.high, n, x, y, NULL, to_P, to_Z);
    const uint8_t *codes = packed + p.codes_at;
    const float *scales = (const float *)(const void *)(packed + p.meta_at);
    const int32_t low = p.rows - p.high;
    if (p.low == DAMP_AFFINE8) read_affine_rows(&p, packed, x, y, P, Z, r->P, r->Z);
    else {
        const reader kind = p.low == DAMP_INT8 ? READ_INT8 : READ_INT4;
        read_codes(kind, codes, NULL, low, n, x + p.high, y + p.high, scales, P, Z);
    }
    for (int32_t j = 0; p.value_order && j < n; j++) {
        const int32_t v = p.value_order[j];
        r->P[v] += p.value_scale[v] * P[j], r->Z[v] += p.value_scale[v] * Z[j];
    }
}

#endif
