/* op/x86/delta_leap_fold.h: leap.h's decode and encode in vectors and by blocks of rows, with the same bits: every
 * number is made by the same operations in the same order, products are not fused with sums, and a sum along a row has
 * leap_dot's 16 parts and its tree. Sticky and rotated forms are left to leap.h. Part of op/x86/delta.h. */
#ifndef OP_X86_DELTA_LEAP_FOLD_H
#define OP_X86_DELTA_LEAP_FOLD_H

#include "op/x86/delta_leap.h"

enum {
    BLOCK = 4,                 /* rows of a block: dimensions are multiples of 8 or 16 */
    PARTS = 16 / VL,           /* vectors that hold the 16 parts of a sum */
    FIT = VL == 16 ? 4 : 1,    /* compensators that share a row block: FIT * BLOCK * PARTS sums */
    NARROW = VL == 16 ? 4 : 2, /* vectors of columns beside four compensators: 16 sums, or 8 */
    NEAR = 16                  /* rows that stay in the first cache while two blocks of columns take them */
};

/* ---- decode ---- */

/* Rows u .. u + BLOCK - 1 of S; U and W are FP32. */
INLINE void leap_rows(reader kind, const leap_shape *p, const uint8_t *packed, int32_t u, const float *U,
                      const float *W, float *S) {
    const size_t nu = (size_t)p->rows, nv = (size_t)p->columns;
    const float *c = (const float *)(const void *)(packed + p->c_at),
                *s = (const float *)(const void *)(packed + p->s_at);
    for (size_t v = 0; v < nv; v += VL) {
        vf x[BLOCK];
        const vf scale = vf_load(s + v);
        for (int j = 0; j < BLOCK; j++) {
            const size_t i = (size_t)(u + j) * nv + v;
            x[j] = vf_mul(vf_set1(c[u + j]), vf_mul(scale, load_codes(kind, packed, packed + p->high_at, i)));
        }
        for (int32_t m = 0; m < p->r; m++) {
            const vf w = vf_load(W + (size_t)m * nv + v);
            for (int j = 0; j < BLOCK; j++)
                x[j] = vf_add(x[j], vf_mul(vf_set1(U[(size_t)m * nu + (size_t)(u + j)]), w));
        }
        for (int j = 0; j < BLOCK; j++) vf_store(S + (size_t)(u + j) * nv + v, x[j]);
    }
}

INLINE void leap_all_rows(reader kind, const leap_shape *p, const uint8_t *packed, const float *U, const float *W,
                          float *S) {
    for (int32_t u = 0; u < p->rows; u += BLOCK) leap_rows(kind, p, packed, u, U, W, S);
}

static void leap_decode_tile(const leap_shape *p, const uint8_t *packed, float *S, float *tmp) {
    if (p->gammas || p->form.rotate) {
        leap_decode(p, packed, S);
        return;
    }
    float *U = tmp, *W = tmp + (size_t)p->r * (size_t)p->rows;
    const uint16_t *U_half = (const uint16_t *)(const void *)(packed + p->u_at);
    const uint16_t *W_half = (const uint16_t *)(const void *)(packed + p->w_at);
    for (int32_t i = 0; i < p->r * p->rows; i += VL) vf_store(U + i, vf_load_fp16(U_half + i));
    for (int32_t i = 0; i < p->r * p->columns; i += VL) vf_store(W + i, vf_load_fp16(W_half + i));
    switch (leap_reader(p->form.bits)) {
    case READ_LEAP12:
        leap_all_rows(READ_LEAP12, p, packed, U, W, S);
        break;
    case READ_LEAP8:
        leap_all_rows(READ_LEAP8, p, packed, U, W, S);
        break;
    case READ_LEAP6:
        leap_all_rows(READ_LEAP6, p, packed, U, W, S);
        break;
    case READ_LEAP5:
        leap_all_rows(READ_LEAP5, p, packed, U, W, S);
        break;
    default:
        leap_all_rows(READ_LEAP4, p, packed, U, W, S);
        break;
    }
}

/* ---- the fit: Y = S W, U = orth(Y), W = S^T U ---- */

/* U [n][4 from u] = rows u .. u + 3 of S times n rows of W. */
INLINE void fit_keys(int n, const leap_shape *p, const float *S, int32_t u, const float *W, float *U) {
    const size_t nu = (size_t)p->rows, nv = (size_t)p->columns;
    const float *rows = S + (size_t)u * nv;
    vf sum[FIT][BLOCK][PARTS];
    for (int m = 0; m < n; m++)
        for (int j = 0; j < BLOCK; j++)
            for (int part = 0; part < PARTS; part++) sum[m][j][part] = vf_zero();
    for (size_t v = 0; v < nv; v += 16)
        for (int part = 0; part < PARTS && v + (size_t)part * VL < nv; part++) {
            const size_t at = v + (size_t)part * VL;
            vf x[BLOCK];
            for (int j = 0; j < BLOCK; j++) x[j] = vf_load(rows + (size_t)j * nv + at);
            for (int m = 0; m < n; m++) {
                const vf w = vf_load(W + (size_t)m * nv + at);
                for (int j = 0; j < BLOCK; j++) sum[m][j][part] = vf_add(sum[m][j][part], vf_mul(x[j], w));
            }
        }
    for (int m = 0; m < n; m++) {
        for (int j = 0; j < BLOCK && PARTS == 2; j++) sum[m][j][0] = vf_add(sum[m][j][0], sum[m][j][PARTS - 1]);
        vf_sum4(sum[m][0][0], sum[m][1][0], sum[m][2][0], sum[m][3][0], U + (size_t)m * nu + (size_t)u);
    }
}

/* W [n][`across` vectors from `at`] += the same rows of U times rows first .. last - 1 of S. */
INLINE void fit_values(int n, int across, const leap_shape *p, const float *S, int32_t first, int32_t last, size_t at,
                       const float *U, float *W) {
    const size_t nu = (size_t)p->rows, nv = (size_t)p->columns;
    vf sum[BLOCK][NARROW];
    for (int m = 0; m < n; m++)
        for (int b = 0; b < across; b++) sum[m][b] = vf_load(W + (size_t)m * nv + at + (size_t)b * VL);
    for (int32_t u = first; u < last; u++) {
        vf x[NARROW];
        for (int b = 0; b < across; b++) x[b] = vf_load(S + (size_t)u * nv + at + (size_t)b * VL);
        for (int m = 0; m < n; m++) {
            const vf a = vf_set1(U[(size_t)m * nu + (size_t)u]);
            for (int b = 0; b < across; b++) sum[m][b] = vf_add(sum[m][b], vf_mul(a, x[b]));
        }
    }
    for (int m = 0; m < n; m++)
        for (int b = 0; b < across; b++) vf_store(W + (size_t)m * nv + at + (size_t)b * VL, sum[m][b]);
}

/* n rows of U and W, and rows first .. last - 1 of S. */
INLINE void fit_columns(int n, const leap_shape *p, const float *S, int32_t first, int32_t last, const float *U,
                        float *W) {
    size_t at = 0;
    for (; at + NARROW * VL <= (size_t)p->columns; at += NARROW * VL)
        fit_values(n, NARROW, p, S, first, last, at, U, W);
    for (; at < (size_t)p->columns; at += VL) fit_values(n, 1, p, S, first, last, at, U, W);
}

/* As leap_fit. */
static void leap_fit_tile(const leap_shape *p, const float *S, int iterations, float *U, float *W) {
    const int32_t nu = p->rows, nv = p->columns, r = p->r;
    for (int it = 0; it < iterations; it++) {
        for (int32_t u = 0; u < nu; u += BLOCK) {
            int32_t m = 0;
            for (; m + FIT <= r; m += FIT)
                fit_keys(FIT, p, S, u, W + (size_t)m * (size_t)nv, U + (size_t)m * (size_t)nu);
            for (; m < r; m++) fit_keys(1, p, S, u, W + (size_t)m * (size_t)nv, U + (size_t)m * (size_t)nu);
        }
        leap_orthonormalise(U, r, nu);
        memset(W, 0, (size_t)r * (size_t)nv * sizeof *W);
        for (int32_t u = 0; u < nu; u += NEAR) {
            const int32_t last = u + NEAR < nu ? u + NEAR : nu;
            int32_t m = 0;
            for (; m + BLOCK <= r; m += BLOCK)
                fit_columns(BLOCK, p, S, u, last, U + (size_t)m * (size_t)nu, W + (size_t)m * (size_t)nv);
            for (; m < r; m++) fit_columns(1, p, S, u, last, U + (size_t)m * (size_t)nu, W + (size_t)m * (size_t)nv);
        }
    }
}

/* ---- the residual and its codes ---- */

/* R = S - U^T W, and the means of |R| along its rows in c. */
static void residual_tile(const leap_shape *p, const float *S, const leap_work *k) {
    const size_t nu = (size_t)p->rows, nv = (size_t)p->columns;
    for (size_t u = 0; u < nu; u += BLOCK) {
        const float *from = S + u * nv;
        float *to = k->R + u * nv, total[BLOCK];
        vf sum[BLOCK][PARTS];
        for (int j = 0; j < BLOCK; j++)
            for (int part = 0; part < PARTS; part++) sum[j][part] = vf_zero();
        for (size_t v = 0; v < nv; v += 16)
            for (int part = 0; part < PARTS && v + (size_t)part * VL < nv; part++) {
                const size_t at = v + (size_t)part * VL;
                vf x[BLOCK];
                for (int j = 0; j < BLOCK; j++) x[j] = vf_load(from + (size_t)j * nv + at);
                for (int32_t m = 0; m < p->r; m++) {
                    const vf w = vf_load(k->W + (size_t)m * nv + at);
                    for (int j = 0; j < BLOCK; j++)
                        x[j] = vf_sub(x[j], vf_mul(vf_set1(k->U[(size_t)m * nu + u + (size_t)j]), w));
                }
                for (int j = 0; j < BLOCK; j++) {
                    vf_store(to + (size_t)j * nv + at, x[j]);
                    sum[j][part] = vf_add(sum[j][part], vf_abs(x[j]));
                }
            }
        for (int j = 0; j < BLOCK && PARTS == 2; j++) sum[j][0] = vf_add(sum[j][0], sum[j][PARTS - 1]);
        vf_sum4(sum[0][0], sum[1][0], sum[2][0], sum[3][0], total);
        for (int j = 0; j < BLOCK; j++) k->c[u + (size_t)j] = total[j] / (float)nv;
    }
}

/* R becomes R / c; the largest |R| of each column is left in k->column. */
static void smooth_tile(const leap_shape *p, const leap_work *k) {
    const size_t nu = (size_t)p->rows, nv = (size_t)p->columns;
    memset(k->column, 0, nv * sizeof *k->column);
    for (size_t u = 0; u < nu; u += BLOCK) {
        float *row = k->R + u * nv;
        for (size_t v = 0; v < nv; v += VL) {
            vf top = vf_load(k->column + v);
            for (size_t j = 0; j < BLOCK; j++) {
                const vf x = vf_div(vf_load(row + j * nv + v), vf_set1(k->c[u + j]));
                vf_store(row + j * nv + v, x);
                top = vf_max(vf_abs(x), top); /* NaN is passed over: the second operand stays */
            }
            vf_store(k->column + v, top);
        }
    }
}

/* As leap_quantise: codes, over and under; INT8 codes are stored here, others through leap_put. */
static void quantise_tile(const leap_shape *p, const leap_work *k, uint8_t *packed) {
    const size_t nu = (size_t)p->rows, nv = (size_t)p->columns;
    float *start = k->column, *over = start + nv, *under = over + nv, whole[BLOCK][EBB_MAX_STATE_DIM];
    const vf high = vf_set1(p->qmax), low = vf_set1(-p->qmax), magic = vf_set1(12582912.0f); /* round_even */
    memset(over, 0, 2 * nv * sizeof *over);
    for (size_t u = 0; u < nu; u += BLOCK) {
        vf w2[BLOCK];
        for (size_t j = 0; j < BLOCK; j++) {
            const float w = k->c[u + j] / k->c_top;
            w2[j] = vf_set1(w * w);
        }
        for (size_t v = 0; v < nv; v += VL) {
            const vf scale = vf_load(start + v);
            vf a = vf_load(over + v), b = vf_load(under + v);
            for (size_t j = 0; j < BLOCK; j++) {
                const vf x = vf_load(k->R + (u + j) * nv + v);
                vf code = vf_min(vf_max(vf_div(x, scale), low), high);
                code = vf_sub(vf_add(code, magic), magic);
                a = vf_add(a, vf_mul(vf_mul(x, code), w2[j]));
                b = vf_add(b, vf_mul(vf_mul(code, code), w2[j]));
                if (p->form.bits == 8) vf_store_i8((int8_t *)packed + (u + j) * nv + v, code);
                else vf_store(whole[j] + v, code);
            }
            vf_store(over + v, a), vf_store(under + v, b);
        }
        for (size_t j = 0; j < BLOCK && p->form.bits != 8; j++)
            for (size_t at = 0; at < nv; at += 64)
                leap_put(p, whole[j] + at, (int32_t)(u + j), (int32_t)at, (int32_t)(nv - at < 64 ? nv - at : 64),
                         packed);
    }
}

/* As leap_encode. */
static void leap_encode_tile(const leap_shape *p, uint64_t key, const float *S, const float *decay, const uint8_t *old,
                             uint8_t *packed, float *tmp) {
    if (p->gammas || p->form.rotate) {
        leap_encode(p, key, S, decay, old, packed, tmp);
        return;
    }
    leap_work k = leap_carve(p, tmp);
    const bool warm = leap_start(p, old, key, k.W);
    leap_fit_tile(p, S, warm ? LEAP_WARM : LEAP_COLD, k.U, k.W);
    leap_round_all(p, packed, &k);
    residual_tile(p, S, &k);
    k.c_top = leap_factors(p, false, k.c);
    smooth_tile(p, &k);
    leap_reach(p, k.column);
    leap_clear_padding(p, packed);
    memcpy(packed + p->c_at, k.c, (size_t)p->rows * sizeof *k.c);
    quantise_tile(p, &k, packed);
    leap_fitted(p, k.column, (float *)(void *)(packed + p->s_at));
}

#endif
