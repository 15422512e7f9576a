/* state/leap.h: the arithmetic and the byte layout of LeapQuant, inline so that a fast row compiles the same code for
 * wider vectors and gets the same bits. Included by codec_leap.c, codec_mixed.c and by delta kernels.
 *
 * A matrix is S = C R diag(s) + diag(gamma) U^T W (papers/leapquant 3.3, 3.4): R integers, c one FP32 smoothing factor
 * per key row, s one FP32 scale per value column, and r compensator tokens u_m w_m^T in FP16. gamma is 1 unless the
 * compensators are sticky: then a boundary whose residual still fits keeps u, w and c, gamma takes the decay, and
 * nothing leaves its grid (maths 2.7). With rotate=key, H R is stored instead of C^-1 R, H the Hadamard matrix along
 * the key axis.
 *
 * Planes: codes [key_dim] rows of value_dim bytes (8 bits) or ceil(value_dim / 2) (the low 4 bits) | high [key_dim]
 * rows of the bits above them (12, 6 and 5 bits only) | c FP32 [key_dim] (rotate=none only) | s FP32 [value_dim] | U
 * FP16 [r][key_dim] | W FP16 [r][value_dim] | gamma FP32 [1] (GDN) or [key_dim] (else), metric FP32 (sticky only). At
 * 128 x 128: 19,456 bytes with 8 bits, 15,360 with 6, 13,312 with 5, 27,648 with 12 (r = 4), and 13,312 with 4 (r = 8).
 */
#ifndef STATE_LEAP_H
#define STATE_LEAP_H

#include "core/core.h"
#include "ebb/state.h"
#include "format/block_int.h"
#include "format/float16.h"
#include "format/hadamard.h"

#include <math.h>

enum {
    LEAP_PARAM_P,
    LEAP_PARAM_BITS,
    LEAP_PARAM_R,
    LEAP_PARAM_SCALE,
    LEAP_PARAM_THETA,
    LEAP_PARAM_STICKY,
    LEAP_PARAM_ROTATE
};
#define LEAP_BITS "4|5|6|8|12"
#define LEAP_THETA "0|0.25|0.5|0.75|1"
enum { LEAP_SCALE_LS, LEAP_SCALE_MAX };
enum {
    LEAP_MAX_R = 16,
    LEAP_MAX_STICKY = 1000,
    LEAP_WARM = 2,
    LEAP_COLD = 4
}; /* block power iterations from the old W, and from random signs */

/* What the parameters of a codec say, or the table of a layout. */
typedef struct leap_form {
    int32_t bits, r, scale;
    int32_t theta;  /* in quarters: c = (row mean)^(theta / 4) */
    int32_t sticky; /* percent of the metric after the last fit up to which a boundary keeps the fit; 0: none does */
    bool rotate;
} leap_form;

static inline leap_form leap_form_of(const double *param) {
    static const uint8_t bits[] = {4, 5, 6, 8, 12}; /* LEAP_BITS */
    return (leap_form){.bits = bits[(int)param[LEAP_PARAM_BITS]],
                       .r = (int32_t)param[LEAP_PARAM_R],
                       .scale = (int32_t)param[LEAP_PARAM_SCALE],
                       .theta = (int32_t)param[LEAP_PARAM_THETA],
                       .sticky = (int32_t)param[LEAP_PARAM_STICKY],
                       .rotate = param[LEAP_PARAM_ROTATE] != 0};
}

/* The form of a head whose bits are in its layout (codec_mixed.c). */
enum { LEAP_MIX_PARAM_P, LEAP_MIX_PARAM_R };
static inline leap_form leap_mix_form(const ebb_head *head) {
    return (leap_form){.bits = head->table->bits[head->layer->head_begin + head->head],
                       .r = (int32_t)head->param[LEAP_MIX_PARAM_R],
                       .scale = LEAP_SCALE_LS,
                       .theta = 2};
}

typedef struct leap_shape {
    leap_form form;
    int32_t rows, columns, r, gammas, block; /* block: rows that H mixes, the power of two in key_dim */
    float qmax;
    size_t row_bytes, high_row_bytes, high_at, c_at, s_at, u_at, w_at, gamma_at, metric_at, bytes;
} leap_shape;

static inline leap_shape leap_shape_of(const ebb_state_layer *layer, leap_form form) {
    leap_shape p = {.form = form, .rows = layer->key_dim, .columns = layer->value_dim};
    int32_t rank = p.rows < p.columns ? p.rows : p.columns; /* a matrix has no more directions to give */
    p.r = form.r < rank ? form.r : rank;
    p.gammas = !form.sticky ? 0 : layer->kind == EBB_GDN ? 1 : p.rows;
    p.block = form.rotate ? p.rows & -p.rows : 1;
    p.qmax = (float)((1 << (form.bits - 1)) - 1);
    p.row_bytes = form.bits == 8 ? (size_t)p.columns : ((size_t)p.columns + 1) / 2;
    p.high_row_bytes = form.bits == 12 ? (size_t)p.columns : high_bytes(form.bits, p.columns);
    p.high_at = align_up(p.row_bytes * (size_t)p.rows, 4);
    p.c_at = align_up(p.high_at + p.high_row_bytes * (size_t)p.rows, 4);
    p.s_at = p.c_at + (form.rotate ? 0 : (size_t)p.rows * 4);
    p.u_at = p.s_at + (size_t)p.columns * 4;
    p.w_at = p.u_at + (size_t)p.r * (size_t)p.rows * 2;
    p.bytes = p.w_at + (size_t)p.r * (size_t)p.columns * 2;
    if (!form.sticky) return p;
    p.gamma_at = align_up(p.bytes, 4);
    p.metric_at = p.gamma_at + (size_t)p.gammas * 4;
    p.bytes = p.metric_at + 4;
    return p;
}

/* Sizes and planes, for the layout function of a codec. In codec_leap.c. */
ebb_planes leap_planes(const leap_shape *p);

/* Floats of scratch: U, W, the residual, c, gamma, and three rows of column sums. */
static inline size_t leap_scratch(const leap_shape *p) {
    return (size_t)p->r * (size_t)(p->rows + p->columns) + (size_t)p->rows * (size_t)(p->columns + 2) +
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

/* Rows of R <- H R in blocks of p->block rows, H normalised: its own inverse. As hadamard.h, on rows. */
static inline void leap_rotate(const leap_shape *p, float *R) {
    const int32_t nv = p->columns;
    for (int32_t far = 1; far < p->block; far *= 2)
        for (int32_t u = 0; u < p->rows; u++) {
            if (u & far) continue;
            float *restrict x = R + (size_t)u * (size_t)nv, *restrict y = x + (size_t)far * (size_t)nv;
            for (int32_t v = 0; v < nv; v++) {
                const float sum = x[v] + y[v], difference = x[v] - y[v];
                x[v] = sum, y[v] = difference;
            }
        }
    if (p->block == 1) return;
    const float factor = hadamard_factor(p->block);
    for (size_t i = 0; i < (size_t)p->rows * (size_t)nv; i++) R[i] *= factor;
}

/* x <- H x, for read-out: (H R)^T (H x) = R^T x. */
static inline void leap_rotate_key(const leap_shape *p, float *x) {
    for (int32_t u = 0; u < p->rows; u += p->block) hadamard(x + u, p->block);
}

/* m^(theta / 4), of correctly rounded operations only; 0 becomes 1. */
static inline float leap_power(const leap_shape *p, float m) {
    if (!(m > 0)) return 1.0f;
    switch (p->form.theta) {
    case 0:
        return 1.0f;
    case 1:
        return sqrtf(sqrtf(m));
    case 2:
        return sqrtf(m);
    case 3:
        return sqrtf(m) * sqrtf(sqrtf(m));
    default:
        return m;
    }
}

/* c_u = mean^theta of the means in c; or, `keep`, c is final. Floored at 1e-6 of the largest. Returns the largest c; 0:
 * there is none to divide by. */
static inline float leap_factors(const leap_shape *p, bool keep, float *c) {
    float top = 0;
    for (int32_t u = 0; u < p->rows; u++) top = c[u] > top ? c[u] : top;
    for (int32_t u = 0; u < p->rows; u++) {
        float m = c[u] > 1e-6f * top ? c[u] : 1e-6f * top;
        c[u] = keep ? m : leap_power(p, m);
    }
    return keep ? top : leap_power(p, top);
}

/* c_u of R: the mean of |R_uv| over v, or, `keep`, what is in c; then as leap_factors. R becomes R / c. */
static inline float leap_smooth(const leap_shape *p, bool keep, float *R, float *c) {
    const int32_t nv = p->columns;
    for (int32_t u = 0; !keep && u < p->rows; u++) {
        const float *x = R + (size_t)u * (size_t)nv;
        float sum[16] = {0};
        for (int32_t v = 0; v < nv; v += 16)
            for (int32_t j = 0; j < 16 && v + j < nv; j++) sum[j] += fabsf(x[v + j]);
        for (int32_t half = 8; half; half /= 2)
            for (int32_t j = 0; j < half; j++) sum[j] += sum[j + half];
        c[u] = sum[0] / (float)nv;
    }
    const float top = leap_factors(p, keep, c);
    for (int32_t u = 0; u < p->rows; u++) {
        float *x = R + (size_t)u * (size_t)nv;
        for (int32_t v = 0; v < nv; v++) x[v] /= c[u];
    }
    return top;
}

/* Codes of n <= 64 columns from `at`, a multiple of 64, of row u; x holds whole numbers. */
static inline void leap_put(const leap_shape *p, const float *x, int32_t u, int32_t at, int32_t n, uint8_t *packed) {
    uint8_t *row = packed + (size_t)u * p->row_bytes, *high = packed + p->high_at + (size_t)u * p->high_row_bytes;
    int8_t q[64];
    if (p->form.bits == 12) { /* x = 16 high + low, low 0 .. 15 */
        float up[64];
        for (int32_t i = 0; i < n; i++) up[i] = floorf(x[i] * 0.0625f);
        for (int32_t i = 0; i < n; i++) high[at + i] = (uint8_t)(int8_t)up[i];
        for (int32_t i = 0; i < n; i++) q[i] = (int8_t)(x[i] - 16.0f * up[i]);
    } else
        for (int32_t i = 0; i < n; i++) q[i] = (int8_t)x[i];
    switch (p->form.bits) {
    case 8:
        memcpy(row + at, q, (size_t)n);
        break;
    case 6:
        pack_int6(q, n, row + at / 2, high + at / 4);
        break;
    case 5:
        pack_int5(q, n, row + at / 2, high + at / 8);
        break;
    default:
        pack_int4(q, n, row + at / 2);
        break;
    }
}

static inline void leap_get(const leap_shape *p, const uint8_t *packed, int32_t u, int32_t at, int32_t n, float *x) {
    const uint8_t *row = packed + (size_t)u * p->row_bytes, *high = packed + p->high_at + (size_t)u * p->high_row_bytes;
    int8_t q[64];
    switch (p->form.bits) {
    case 12:
        unpack_nibbles(row + at / 2, n, q);
        break;
    case 8:
        memcpy(q, row + at, (size_t)n);
        break;
    case 6:
        unpack_int6(row + at / 2, high + at / 4, n, q);
        break;
    case 5:
        unpack_int5(row + at / 2, high + at / 8, n, q);
        break;
    default:
        unpack_int4(row + at / 2, n, q);
        break;
    }
    for (int32_t i = 0; i < n; i++) x[i] = (float)q[i];
    if (p->form.bits != 12) return;
    for (int32_t i = 0; i < n; i++) x[i] += 16.0f * (float)(int8_t)high[at + i];
}

/* The scale of each column that reaches its largest value, which is in `scale`. */
static inline void leap_reach(const leap_shape *p, float *scale) {
    for (int32_t v = 0; v < p->columns; v++) {
        float amax = scale[v] < 3.0e38f ? scale[v] : 3.0e38f;
        scale[v] = amax / p->qmax > 0 ? amax / p->qmax : 1.0f;
    }
}

static inline void leap_scales(const leap_shape *p, const float *R, float *restrict scale) {
    const int32_t nv = p->columns;
    memset(scale, 0, (size_t)nv * sizeof *scale);
    for (int32_t u = 0; u < p->rows; u++) {
        const float *restrict x = R + (size_t)u * (size_t)nv;
        for (int32_t v = 0; v < nv; v++) scale[v] = max_abs(scale[v], x[v]);
    }
    leap_reach(p, scale);
}

/* Scales from what leap_quantise has gathered: `column` holds the scales to start from, over and under. */
static inline void leap_fitted(const leap_shape *p, const float *column, float *restrict s) {
    const int32_t nv = p->columns;
    const float *start = column, *over = column + nv, *under = column + 2 * (size_t)nv;
    for (int32_t v = 0; v < nv; v++) {
        float fit = under[v] > 0 ? over[v] / under[v] : start[v];
        s[v] = p->form.scale == LEAP_SCALE_LS && fit > 0 && fit < 3.0e38f ? fit : start[v];
    }
}

/* Column scales and codes of R / c; column: the scales to start from, then room for two rows. The least-squares scale
 * is the projection of the column on its codes, so that storing never amplifies: s_v = sum_u R_uv c_u q_uv / sum_u (c_u
 * q_uv)^2, computed with c / max c to stay in range. */
static inline void leap_quantise(const leap_shape *p, const float *R, const float *c, float c_top, float *s,
                                 uint8_t *packed, float *column) {
    const int32_t nv = p->columns;
    float *restrict start = column, *restrict over = column + nv, *restrict under = column + 2 * (size_t)nv;
    memset(over, 0, 2 * (size_t)nv * sizeof *over);
    float y[64];
    for (int32_t u = 0; u < p->rows; u++) {
        const float *restrict x = R + (size_t)u * (size_t)nv;
        const float w = c[u] / c_top, w2 = w * w;
        for (int32_t at = 0; at < nv; at += 64) {
            int32_t n = nv - at < 64 ? nv - at : 64;
            for (int32_t i = 0; i < n; i++) y[i] = clamp_code(x[at + i] / start[at + i], p->qmax);
            for (int32_t i = 0; i < n; i++) {
                float code = round_even(y[i]);
                over[at + i] += x[at + i] * code * w2;
                under[at + i] += code * code * w2;
                y[i] = code;
            }
            leap_put(p, y, u, at, n, packed);
        }
    }
    leap_fitted(p, column, s);
}

/* What encode works on, carved from its scratch. */
typedef struct leap_work {
    float *U, *W, *R, *c, *gamma, *column;
    float c_top;
} leap_work;

static inline leap_work leap_carve(const leap_shape *p, float *tmp) {
    const size_t nu = (size_t)p->rows, nv = (size_t)p->columns, r = (size_t)p->r;
    leap_work k = {.U = tmp};
    k.W = k.U + r * nu;
    k.R = k.W + r * nv;
    k.c = k.R + nu * nv;
    k.gamma = k.c + nu;
    k.column = k.gamma + nu;
    return k;
}

/* R = S - diag(gamma) U^T W, of the rounded compensators. */
static inline void leap_residual(const leap_shape *p, const float *S, const leap_work *k) {
    const int32_t nu = p->rows, nv = p->columns;
    memcpy(k->R, S, (size_t)nu * (size_t)nv * sizeof *S);
    for (int32_t m = 0; m < p->r; m++) {
        const float *u = k->U + (size_t)m * (size_t)nu, *w = k->W + (size_t)m * (size_t)nv;
        for (int32_t i = 0; i < nu; i++) leap_axpy(k->R + (size_t)i * (size_t)nv, -(k->gamma[i] * u[i]), w, nv);
    }
}

/* The size of a rounding step over that of the state, squared: (sum c^2) (sum s^2) / |S|^2. */
static inline float leap_metric(const leap_shape *p, const float *S, const leap_work *k) {
    double sum[16] = {0}, c = 0, s = 0;
    const size_t n = (size_t)p->rows * (size_t)p->columns;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t j = 0; j < 16; j++) sum[j] += (double)S[i + j] * (double)S[i + j];
    for (; i < n; i++) sum[0] += (double)S[i] * (double)S[i];
    for (int32_t half = 8; half; half /= 2)
        for (int32_t j = 0; j < half; j++) sum[j] += sum[j + half];
    for (int32_t u = 0; u < p->rows; u++) c += (double)k->c[u] * (double)k->c[u];
    for (int32_t v = 0; v < p->columns; v++) s += (double)k->column[v] * (double)k->column[v];
    const double metric = c * s / sum[0];
    return metric < 3.0e38 ? (float)metric : 0.0f; /* 0, of a state without a size: nothing is kept */
}

/* Compensators rounded, in k and in `packed`; c and gamma of new ones. */
static inline void leap_round_all(const leap_shape *p, uint8_t *packed, const leap_work *k) {
    const int32_t nu = p->rows, nv = p->columns;
    for (int32_t m = 0; m < p->r; m++)
        leap_round(k->U + (size_t)m * (size_t)nu, k->W + (size_t)m * (size_t)nv, nu, nv,
                   (uint16_t *)(void *)(packed + p->u_at) + (size_t)m * (size_t)nu,
                   (uint16_t *)(void *)(packed + p->w_at) + (size_t)m * (size_t)nv);
    for (int32_t u = 0; u < nu; u++) k->c[u] = k->gamma[u] = 1.0f;
}

/* New compensators, rounded into `packed` too. */
static inline void leap_refit(const leap_shape *p, uint64_t key, const float *S, const uint8_t *old, uint8_t *packed,
                              const leap_work *k) {
    bool warm = leap_start(p, old, key, k->W);
    leap_fit(p, S, warm ? LEAP_WARM : LEAP_COLD, k->U, k->W);
    leap_round_all(p, packed, k);
}

/* The compensators of the last image, decayed, and its c, which in KDA decays with its row, so that neither codes nor s
 * need to change where nothing is written. */
static inline void leap_recall(const leap_shape *p, const float *decay, const uint8_t *old, const leap_work *k) {
    const size_t nu = (size_t)p->rows, nv = (size_t)p->columns, r = (size_t)p->r;
    const uint16_t *U = (const uint16_t *)(const void *)(old + p->u_at);
    const uint16_t *W = (const uint16_t *)(const void *)(old + p->w_at);
    const float *gamma = (const float *)(const void *)(old + p->gamma_at);
    const float *c = (const float *)(const void *)(old + p->c_at);
    for (size_t i = 0; i < r * nu; i++) k->U[i] = fp16_to_float(U[i]);
    for (size_t i = 0; i < r * nv; i++) k->W[i] = fp16_to_float(W[i]);
    for (size_t u = 0; u < nu; u++) {
        k->gamma[u] = gamma[p->gammas > 1 ? u : 0] * decay[u];
        k->c[u] = p->form.rotate ? 1.0f : p->gammas > 1 ? c[u] * decay[u] : c[u];
    }
}

/* Compensators, kept or new, their residual and its scales are in k afterwards, U and W in `packed`. The old ones are
 * kept while the residual that they leave is not worse, by more than form.sticky allows, than it was after the fit;
 * nothing is written before that is known. Returns the metric after the fit. */
static inline float leap_compensate(const leap_shape *p, uint64_t key, const float *S, const float *decay,
                                    const uint8_t *old, uint8_t *packed, leap_work *k) {
    for (bool keep = p->gammas && decay && old;; keep = false) {
        if (keep) leap_recall(p, decay, old, k);
        else leap_refit(p, key, S, old, packed, k);
        leap_residual(p, S, k);
        k->c_top = 1.0f;
        if (p->form.rotate) leap_rotate(p, k->R);
        else k->c_top = leap_smooth(p, keep, k->R, k->c);
        leap_scales(p, k->R, k->column);
        const float metric = p->gammas ? leap_metric(p, S, k) : 0;
        if (!keep) return metric;
        const float fitted = *(const float *)(const void *)(old + p->metric_at);
        if (metric > 0 && metric <= fitted * ((float)p->form.sticky / 100.0f)) {
            memmove(packed + p->u_at, old + p->u_at, (size_t)p->r * (size_t)(p->rows + p->columns) * 2);
            return fitted;
        }
    }
}

/* Bytes between the planes have one value: images are compared. */
static inline void leap_clear_padding(const leap_shape *p, uint8_t *packed) {
    const size_t codes_end = p->row_bytes * (size_t)p->rows,
                 high_end = p->high_at + p->high_row_bytes * (size_t)p->rows,
                 w_end = p->w_at + (size_t)p->r * (size_t)p->columns * 2;
    memset(packed + codes_end, 0, p->high_at - codes_end);
    memset(packed + high_end, 0, p->c_at - high_end);
    if (p->gammas) memset(packed + w_end, 0, p->gamma_at - w_end);
}

/* decay: e^G of the folded window, and NULL from a pack, which fits anew. */
static inline void leap_encode(const leap_shape *p, uint64_t key, const float *S, const float *decay,
                               const uint8_t *old, uint8_t *packed, float *tmp) {
    leap_work k = leap_carve(p, tmp);
    const float metric = leap_compensate(p, key, S, decay, old, packed, &k);
    leap_clear_padding(p, packed);
    if (!p->form.rotate) memcpy(packed + p->c_at, k.c, (size_t)p->rows * sizeof *k.c);
    if (p->gammas) {
        memcpy(packed + p->gamma_at, k.gamma, (size_t)p->gammas * sizeof *k.gamma);
        memcpy(packed + p->metric_at, &metric, sizeof metric);
    }
    leap_quantise(p, k.R, k.c, k.c_top, (float *)(void *)(packed + p->s_at), packed, k.column);
}

static inline void leap_decode(const leap_shape *p, const uint8_t *packed, float *S) {
    const int32_t nu = p->rows, nv = p->columns;
    const float *c = (const float *)(const void *)(packed + p->c_at),
                *s = (const float *)(const void *)(packed + p->s_at),
                *gamma = p->gammas ? (const float *)(const void *)(packed + p->gamma_at) : NULL;
    const uint16_t *U = (const uint16_t *)(const void *)(packed + p->u_at);
    const uint16_t *W = (const uint16_t *)(const void *)(packed + p->w_at);
    for (int32_t u = 0; u < nu; u++) {
        float *restrict x = S + (size_t)u * (size_t)nv;
        const float factor = p->form.rotate ? 1.0f : c[u];
        for (int32_t at = 0; at < nv; at += 64) {
            float q[64];
            int32_t n = nv - at < 64 ? nv - at : 64;
            leap_get(p, packed, u, at, n, q);
            for (int32_t i = 0; i < n; i++) x[at + i] = factor * (s[at + i] * q[i]);
        }
    }
    if (p->form.rotate) leap_rotate(p, S);
    for (int32_t m = 0; m < p->r; m++) {
        float w[EBB_MAX_STATE_DIM];
        for (int32_t v = 0; v < nv; v++) w[v] = fp16_to_float(W[(size_t)m * (size_t)nv + (size_t)v]);
        for (int32_t u = 0; u < nu; u++) {
            float a = fp16_to_float(U[(size_t)m * (size_t)nu + (size_t)u]);
            if (gamma) a *= gamma[p->gammas > 1 ? u : 0];
            leap_axpy(S + (size_t)u * (size_t)nv, a, w, nv);
        }
    }
}

#endif
