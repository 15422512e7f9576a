/* op/x86/append.h: the bytes of op/ref/append.c faster, compiled for AVX2, AVX-512 and NEON by append_avx2.c,
 * append_avx512.c and op/arm/append_neon.c. Called by op/append.c through the row table. The rounding of numbers is the
 * code of the definition in loops that compilers turn into vectors; the largest magnitude is the same in any order; and
 * the least-squares scale, whose sums have an order, is made for as many heads side by side as there are lanes. */
#ifndef OP_X86_APPEND_H
#define OP_X86_APPEND_H

#include "format/block_int.h"
#include "kv/token.h"
#include "op/rows.h"
#include "op/x86/simd.h"

/* Values that are rounded together: a multiple of what any code packs into whole bytes. */
enum { PIECE = 64 };

static void narrow(int32_t type, const float *x, int64_t n, uint16_t *y) {
    if (type == EBB_FP16)
        for (int64_t i = 0; i < n; i++) y[i] = float_to_fp16(x[i]);
    else
        for (int64_t i = 0; i < n; i++) y[i] = float_to_bf16(x[i]);
}

static void widen(int32_t type, const uint16_t *x, int64_t n, float *y) {
    int64_t i = 0;
    if (type == EBB_FP16) {
        for (; i + VL <= n; i += VL) vf_store(y + i, vf_load_fp16(x + i));
        for (; i < n; i++) y[i] = fp16_to_float(x[i]);
    } else
        for (; i < n; i++) y[i] = bf16_to_float(x[i]);
}

/* ---- scales ---- */

/* NaN stays NaN. */
static inline vf magnitude(vf x) { return vf_max(x, vf_sub(vf_zero(), x)); }

static uint16_t scale_max(const float *x, int32_t n, int32_t bits) {
    vf top = vf_set1(1e-5f);
    int32_t i = 0;
    for (; i + VL <= n; i += VL) top = vf_max(magnitude(vf_load(x + i)), top);
    if (i < n) top = vf_max(magnitude(vf_load_n(x + i, n - i)), top);
    return float_to_fp16(vf_top(top) / token_qmax(bits));
}

/* a [n][VL] = the magnitudes that the fit counts, of `heads` rows of the part, at most VL. */
static void fit_values(const append_part *p, const float *x, int32_t heads, float *a) {
    const int32_t whole = heads / 8 * 8, dims = p->dims / 8 * 8;
    if (heads < VL) memset(a, 0, (size_t)p->dims * VL * sizeof *a);
    for (int32_t h = 0; h < whole; h += 8)
        for (int32_t i = 0; i < dims; i += 8) transpose8(x + h * p->x_stride + i, p->x_stride, a + i * VL + h, VL);
    for (int32_t h = 0; h < heads; h++)
        for (int32_t i = h < whole ? dims : 0; i < p->dims; i++) a[i * VL + h] = x[h * p->x_stride + i];
    for (int32_t i = 0; i < p->dims; i++, a += VL)
        vf_store(a, vf_min(vf_max(magnitude(vf_load(a)), vf_zero()), vf_set1(TOKEN_LS_LIMIT)));
}

/* One step of token_scale_ls. */
static vf fit_step(const float *a, int32_t n, vf s) {
    vf top = vf_zero(), bottom = vf_zero();
    for (int32_t i = 0; i < n; i++, a += VL) {
        const vf v = vf_load(a), c = vf_sub(vf_set1(1.5f), vf_from(s, v, vf_set1(1.0f)));
        top = vf_add(top, vf_mul(v, c));
        bottom = vf_add(bottom, vf_mul(c, c));
    }
    return vf_div(top, bottom);
}

/* token_scale_ls of `heads` rows, at most VL. */
static void scales_ls(const append_part *p, const float *x, int32_t heads, uint16_t *scale) {
    float a[EBB_MAX_HEAD_DIM * VL], lane[VL];
    vf s = vf_zero();
    fit_values(p, x, heads, a);
    for (int32_t i = 0; i < p->dims; i++) s = vf_add(s, vf_mul(vf_load(a + i * VL), vf_load(a + i * VL)));
    vf_store(lane, vf_div(s, vf_set1((float)p->dims)));
    for (int32_t h = 0; h < VL; h++) lane[h] = sqrtf(lane[h]);
    s = vf_load(lane);
    for (int32_t step = 0; step < TOKEN_LS_STEPS; step++) s = fit_step(a, p->dims, s);
    vf_store(lane, vf_max(s, vf_set1(TOKEN_LS_LEAST)));
    for (int32_t h = 0; h < heads; h++) scale[h] = float_to_fp16(lane[h]);
}

/* ---- codes ---- */

/* Two loops: see block_codes. */
static inline void piece_codes(const float *__restrict__ x, int32_t n, float s, float qmax, int8_t *__restrict__ q) {
    float y[PIECE];
    for (int32_t i = 0; i < n; i++) y[i] = clamp_code(x[i] / s, qmax);
    for (int32_t i = 0; i < n; i++) q[i] = (int8_t)round_even(y[i]);
}

static inline void piece_levels(const float *__restrict__ x, int32_t n, float s, int8_t *__restrict__ q) {
    for (int32_t i = 0; i < n; i++) q[i] = (int8_t)token_level(x[i], s);
}

/* Four codes a byte, the first in its low bits. */
static inline void pack_int2(const int8_t *__restrict__ q, int32_t n, uint8_t *__restrict__ code) {
    for (int32_t i = 0; i < n / 4; i++) {
        uint32_t four;
        memcpy(&four, q + 4 * i, 4);
        four &= 0x03030303u;
        code[i] = (uint8_t)(four | four >> 6 | four >> 12 | four >> 18);
    }
}

static inline void piece(const append_part *p, const float *x, int32_t n, float s, uint8_t *code) {
    int8_t q[PIECE];
    if (p->levels) piece_levels(x, n, s, q);
    else piece_codes(x, n, s, token_qmax(p->bits), q);
    if (p->bits == 8) memcpy(code, q, (size_t)n);
    else if (p->bits == 4) pack_int4(q, n, code);
    else pack_int2(q, n, code);
}

static void head_codes(const append_part *p, const float *x, uint16_t scale, uint8_t *code) {
    const float s = fp16_to_float(scale);
    int32_t i = 0;
    for (; i + PIECE <= p->dims; i += PIECE) piece(p, x + i, PIECE, s, code + i * p->bits / 8);
    if (i < p->dims) piece(p, x + i, p->dims - i, s, code + i * p->bits / 8);
}

static void codes(const append_part *p) {
    for (int32_t first = 0; first < p->heads; first += VL) {
        const int32_t heads = p->heads - first < VL ? p->heads - first : VL;
        const float *x = p->x + first * p->x_stride;
        uint16_t scale[VL];
        if (p->levels) scales_ls(p, x, heads, scale);
        for (int32_t h = 0; h < heads; h++, x += p->x_stride) {
            if (!p->levels) scale[h] = scale_max(x, p->dims, p->bits);
            head_codes(p, x, scale[h], p->code + (first + h) * p->stride);
            memcpy(p->scale + (first + h) * p->stride, &scale[h], sizeof scale[h]);
        }
    }
}

const append_row ISA(append) = {.id = {ISA_NAME, ISA_NEEDS, 1}, .narrow = narrow, .widen = widen, .codes = codes};

#endif
