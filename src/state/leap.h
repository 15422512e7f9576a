/* state/leap.h: the arithmetic and the byte layout of LeapQuant, inline so that a fast row compiles the same code for
 * wider vectors and gets the same bits. Included by codec_leap.c and by delta kernels.
 *
 * A matrix is S = C R diag(s) + U^T W (papers/leapquant 3.3, 3.4): R integers, c one FP32 smoothing factor per key row,
 * s one FP32 scale per value column, and r compensator tokens u_m w_m^T in FP16. Planes: codes [key_dim] rows of
 * ceil(value_dim * bits / 8) bytes | c FP32 [key_dim] | s FP32 [value_dim] | U FP16 [r][key_dim] | W FP16
 * [r][value_dim]; 19,456 bytes at 128 x 128 with 8 bits and r = 4; 13,312 with 4 bits and r = 8. */
#ifndef STATE_LEAP_H
#define STATE_LEAP_H

#include "core/core.h"
#include "ebb/state.h"
#include "format/block_int.h"
#include "format/float16.h"

#include <math.h>

enum { LEAP_PARAM_P, LEAP_PARAM_BITS, LEAP_PARAM_R, LEAP_PARAM_SCALE };
enum { LEAP_SCALE_LS, LEAP_SCALE_MAX };
enum {
    LEAP_MAX_R = 16,
    LEAP_WARM = 2,
    LEAP_COLD = 4
}; /* block power iterations from the old W, and from random signs */

typedef struct leap_shape {
    int32_t rows, columns, r, bits, scale;
    float qmax;
    size_t row_bytes, c_at, s_at, u_at, w_at, bytes;
} leap_shape;

static inline leap_shape leap_shape_of(const ebb_state_layer *layer, const double *param) {
    leap_shape p = {.rows = layer->key_dim, .columns = layer->value_dim, .r = (int32_t)param[LEAP_PARAM_R]};
    int32_t rank = p.rows < p.columns ? p.rows : p.columns; /* a matrix has no more directions to give */
    p.r = p.r < rank ? p.r : rank;
    p.bits = param[LEAP_PARAM_BITS] != 0 ? 8 : 4;
    p.scale = (int32_t)param[LEAP_PARAM_SCALE];
    p.qmax = p.bits == 8 ? 127.0f : 7.0f;
    p.row_bytes = ((size_t)p.columns * (size_t)p.bits + 7) / 8;
    p.c_at = (p.row_bytes * (size_t)p.rows + 3) / 4 * 4;
    p.s_at = p.c_at + (size_t)p.rows * 4;
    p.u_at = p.s_at + (size_t)p.columns * 4;
    p.w_at = p.u_at + (size_t)p.r * (size_t)p.rows * 2;
    p.bytes = p.w_at + (size_t)p.r * (size_t)p.columns * 2;
    return p;
}

/* Floats of scratch: U, W, the residual, and three rows of column sums. */
static inline size_t leap_scratch(const leap_shape *p) {
    return (size_t)p->r * (size_t)(p->rows + p->columns) + (size_t)p->rows * (size_t)(p->columns + 1) +
           3 * (size_t)p->columns;
}

/* a . b in 16 partial sums and a fixed tree: one order whatever the vector width. */
static inline float leap_dot(const float *restrict a, const float *restrict b, int32_t n) {
    float sum[16] = {0};
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int32_t j = 0; j < 16; j++) sum[j] += a[i + j] * b[i + j];
    for (int32_t j = 0; i + j < n; j++) sum[j] += a[i + j] * b[i + j];
    for (int32_t half = 8; half; half /= 2)
        for (int32_t j = 0; j < half; j++) sum[j] += sum[j + half];
    return sum[0];
}

static inline void leap_axpy(float *restrict y, float a, const float *restrict x, int32_t n) {
    for (int32_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* W of the last window, or random signs where there is none, or where a direction had died. True: a warm start. */
static inline bool leap_start(const leap_shape *p, const uint8_t *old, uint64_t key, float *W) {
    bool warm = false;
    for (int32_t m = 0; m < p->r; m++) {
        float *w = W + (size_t)m * (size_t)p->columns;
        bool alive = false;
        if (old) {
            const uint16_t *h = (const uint16_t *)(const void *)(old + p->w_at) + (size_t)m * (size_t)p->columns;
            for (int32_t v = 0; v < p->columns; v++) w[v] = fp16_to_float(h[v]);
            alive = leap_dot(w, w, p->columns) > 0;
        }
        for (int32_t v = 0; !alive && v < p->columns; v++)
            w[v] = mix64(key ^ (uint64_t)(m * p->columns + v)) >> 63 ? 1.0f : -1.0f;
        warm |= alive;
    }
    return warm;
}

/* Modified Gram-Schmidt, twice; a column that is nothing but rounding (or not a number) becomes zero. */
static inline void leap_orthonormalise(float *U, int32_t r, int32_t n) {
    for (int32_t m = 0; m < r; m++) {
        float *u = U + (size_t)m * (size_t)n;
        float before = sqrtf(leap_dot(u, u, n));
        for (int pass = 0; pass < 2; pass++)
            for (int32_t j = 0; j < m; j++) {
                const float *w = U + (size_t)j * (size_t)n;
                leap_axpy(u, -leap_dot(u, w, n), w, n);
            }
        float after = sqrtf(leap_dot(u, u, n));
        bool good = after > 1e-6f * before && after < 1e18f;
        for (int32_t i = 0; i < n; i++) u[i] = good ? u[i] / after : 0.0f;
    }
}

/* Block power iteration (maths: Y = S W, U = orth(Y), W = S^T U): U [r][rows], W [r][columns]. */
static inline void leap_fit(const leap_shape *p, const float *S, int iterations, float *U, float *W) {
    const int32_t nu = p->rows, nv = p->columns;
    for (int it = 0; it < iterations; it++) {
        for (int32_t u = 0; u < nu; u++)
            for (int32_t m = 0; m < p->r; m++)
                U[(size_t)m * (size_t)nu + (size_t)u] =
                    leap_dot(S + (size_t)u * (size_t)nv, W + (size_t)m * (size_t)nv, nv);
        leap_orthonormalise(U, p->r, nu);
        memset(W, 0, (size_t)p->r * (size_t)nv * sizeof *W);
        for (int32_t u = 0; u < nu; u++)
            for (int32_t m = 0; m < p->r; m++)
                leap_axpy(W + (size_t)m * (size_t)nv, U[(size_t)m * (size_t)nu + (size_t)u], S + (size_t)u * (size_t)nv,
                          nv);
    }
}

/* Round one compensator to FP16 and leave the rounded values in u, w: the residual absorbs the rounding. A power of two
 * moves from W to U where W would overflow. */
static inline void leap_round(float *u, float *w, int32_t nu, int32_t nv, uint16_t *u_half, uint16_t *w_half) {
    float amax = 0, up = 1, down = 1;
    for (int32_t v = 0; v < nv; v++) amax = max_abs(amax, w[v]);
    while (amax * down > 32768.0f && up < 32768.0f) up *= 2, down *= 0.5f;
    for (int32_t i = 0; i < nu; i++) u[i] = fp16_to_float(u_half[i] = float_to_fp16(u[i] * up));
    for (int32_t v = 0; v < nv; v++) w[v] = fp16_to_float(w_half[v] = float_to_fp16(w[v] * down));
}

/* c_u = (mean_v |R_uv|)^(1/2), floored at 1e-6 of the largest mean; R becomes R / c. Returns the largest c. */
static inline float leap_smooth(const leap_shape *p, float *R, float *c) {
    const int32_t nv = p->columns;
    float top = 0;
    for (int32_t u = 0; u < p->rows; u++) {
        const float *x = R + (size_t)u * (size_t)nv;
        float sum[16] = {0};
        for (int32_t v = 0; v < nv; v += 16)
            for (int32_t j = 0; j < 16 && v + j < nv; j++) sum[j] += fabsf(x[v + j]);
        for (int32_t half = 8; half; half /= 2)
            for (int32_t j = 0; j < half; j++) sum[j] += sum[j + half];
        c[u] = sum[0] / (float)nv;
        top = c[u] > top ? c[u] : top;
    }
    for (int32_t u = 0; u < p->rows; u++) {
        float m = c[u] > 1e-6f * top ? c[u] : 1e-6f * top;
        c[u] = m > 0 ? sqrtf(m) : 1.0f;
        float *x = R + (size_t)u * (size_t)nv;
        for (int32_t v = 0; v < nv; v++) x[v] /= c[u];
    }
    return top > 0 ? sqrtf(top) : 1.0f;
}

/* Column scales and codes of R / c. The least-squares scale is the projection of the column on its codes, so that
 * storing never amplifies: s_v = sum_u R_uv c_u q_uv / sum_u (c_u q_uv)^2, computed with c / max c to stay in range. */
static inline void leap_quantise(const leap_shape *p, const float *R, const float *c, float c_top, float *s,
                                 uint8_t *codes, float *column) {
    const int32_t nv = p->columns;
    float *restrict start = column, *restrict over = column + nv, *restrict under = column + 2 * (size_t)nv;
    memset(column, 0, 3 * (size_t)nv * sizeof *column);
    for (int32_t u = 0; u < p->rows; u++) {
        const float *restrict x = R + (size_t)u * (size_t)nv;
        for (int32_t v = 0; v < nv; v++) start[v] = max_abs(start[v], x[v]);
    }
    for (int32_t v = 0; v < nv; v++) {
        float amax = start[v] < 3.0e38f ? start[v] : 3.0e38f;
        start[v] = amax / p->qmax > 0 ? amax / p->qmax : 1.0f;
    }
    int8_t q[64];
    float y[64];
    for (int32_t u = 0; u < p->rows; u++) {
        const float *restrict x = R + (size_t)u * (size_t)nv;
        const float w = c[u] / c_top, w2 = w * w;
        uint8_t *row = codes + (size_t)u * p->row_bytes;
        for (int32_t at = 0; at < nv; at += 64) {
            int32_t n = nv - at < 64 ? nv - at : 64;
            for (int32_t i = 0; i < n; i++) y[i] = clamp_code(x[at + i] / start[at + i], p->qmax);
            for (int32_t i = 0; i < n; i++) {
                float code = round_even(y[i]);
                over[at + i] += x[at + i] * code * w2;
                under[at + i] += code * code * w2;
                q[i] = (int8_t)code;
            }
            if (p->bits == 8) memcpy(row + at, q, (size_t)n);
            else pack_int4(q, n, row + at / 2);
        }
    }
    for (int32_t v = 0; v < nv; v++) {
        float fit = under[v] > 0 ? over[v] / under[v] : start[v];
        s[v] = p->scale == LEAP_SCALE_LS && fit > 0 && fit < 3.0e38f ? fit : start[v];
    }
}

static inline void leap_encode(const leap_shape *p, uint64_t key, const float *S, const uint8_t *old, uint8_t *packed,
                               float *tmp) {
    const int32_t nu = p->rows, nv = p->columns;
    float *U = tmp, *W = U + (size_t)p->r * (size_t)nu, *R = W + (size_t)p->r * (size_t)nv;
    float *c_now = R + (size_t)nu * (size_t)nv, *column = c_now + nu;
    bool warm = leap_start(p, old, key, W);
    leap_fit(p, S, warm ? LEAP_WARM : LEAP_COLD, U, W);
    memcpy(R, S, (size_t)nu * (size_t)nv * sizeof *R);
    for (int32_t m = 0; m < p->r; m++) {
        float *u = U + (size_t)m * (size_t)nu, *w = W + (size_t)m * (size_t)nv;
        leap_round(u, w, nu, nv, (uint16_t *)(void *)(packed + p->u_at) + (size_t)m * (size_t)nu,
                   (uint16_t *)(void *)(packed + p->w_at) + (size_t)m * (size_t)nv);
        for (int32_t i = 0; i < nu; i++) leap_axpy(R + (size_t)i * (size_t)nv, -u[i], w, nv);
    }
    const size_t codes_end = p->row_bytes * (size_t)nu;
    memset(packed + codes_end, 0, p->c_at - codes_end); /* padding has one value: images are compared */
    float top = leap_smooth(p, R, c_now);
    memcpy(packed + p->c_at, c_now, (size_t)nu * sizeof *c_now);
    leap_quantise(p, R, c_now, top, (float *)(void *)(packed + p->s_at), packed, column);
}

static inline void leap_decode(const leap_shape *p, const uint8_t *packed, float *S) {
    const int32_t nu = p->rows, nv = p->columns;
    const float *c = (const float *)(const void *)(packed + p->c_at),
                *s = (const float *)(const void *)(packed + p->s_at);
    const uint16_t *U = (const uint16_t *)(const void *)(packed + p->u_at);
    const uint16_t *W = (const uint16_t *)(const void *)(packed + p->w_at);
    for (int32_t u = 0; u < nu; u++) {
        const uint8_t *row = packed + (size_t)u * p->row_bytes;
        float *restrict x = S + (size_t)u * (size_t)nv;
        if (p->bits == 8)
            for (int32_t v = 0; v < nv; v++) x[v] = c[u] * (s[v] * (float)((const int8_t *)row)[v]);
        else
            for (int32_t at = 0; at < nv; at += 64) {
                int8_t q[64];
                int32_t n = nv - at < 64 ? nv - at : 64;
                unpack_int4(row + at / 2, n, q);
                for (int32_t i = 0; i < n; i++) x[at + i] = c[u] * (s[at + i] * (float)q[i]);
            }
    }
    for (int32_t m = 0; m < p->r; m++) {
        float w[EBB_MAX_STATE_DIM];
        for (int32_t v = 0; v < nv; v++) w[v] = fp16_to_float(W[(size_t)m * (size_t)nv + (size_t)v]);
        for (int32_t u = 0; u < nu; u++)
            leap_axpy(S + (size_t)u * (size_t)nv, fp16_to_float(U[(size_t)m * (size_t)nu + (size_t)u]), w, nv);
    }
}

#endif
