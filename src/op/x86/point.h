/* op/x86/point.h: the pointwise kernels of op/ref/point.c over vectors, compiled for AVX2, AVX-512 and NEON by
 * point_avx2.c, point_avx512.c and op/arm/point_neon.c. Called by ops through the row table. Every loop walks whole
 * vectors and ends with a masked one, so an element's bits depend on its own inputs (norms: on its row) and never on
 * where the row lies. NaN goes in and NaN comes out. */
#ifndef OP_X86_POINT_H
#define OP_X86_POINT_H

#include "op/rows.h"
#include "op/x86/simd.h"

#include <math.h>
#include <string.h>

/* The lanes of a walk over n elements that start at i, and loads and stores of as many. */
static inline int lanes_at(int64_t i, int64_t n) { return n - i < VL ? (int)(n - i) : VL; }
static inline vf get(const float *p, int lanes) { return lanes == VL ? vf_load(p) : vf_load_n(p, lanes); }
static inline void set(float *p, vf a, int lanes) {
    if (lanes == VL) vf_store(p, a);
    else vf_store_n(p, a, lanes);
}

/* max and min answer their second argument when one is NaN, so this clamp keeps NaN; vf_exp does not. */
static inline vf clamp_nan(vf x, float lo, float hi) { return vf_min(vf_set1(hi), vf_max(vf_set1(lo), x)); }

static inline vf sigmoid_vf(vf x) {
    vf c = clamp_nan(x, -100.0f, 100.0f), one = vf_set1(1.0f);
    vf e = vf_exp(vf_sub(vf_zero(), c));
    return vf_add(vf_div(one, vf_add(one, e)), vf_sub(c, c)); /* + 0, or NaN */
}

/* x sigmoid(x); x is held above -100, where the product is 6e-37 at most, for vf_exp stops at e^88. */
static inline vf silu_vf(vf x) {
    vf one = vf_set1(1.0f), e = vf_exp(vf_sub(vf_zero(), x));
    return vf_mul(vf_max(vf_set1(-100.0f), x), vf_div(one, vf_add(one, e)));
}

/* max(x, 0) + log1p(u) with u = e^-|x| in (0, 1]; log1p(u) = 2 atanh(s), s = u / (2 + u) <= 1/3: a short series. */
static inline vf softplus_vf(vf x) {
    vf u = vf_exp(vf_min(x, vf_sub(vf_zero(), x)));
    vf s = vf_div(u, vf_add(vf_set1(2.0f), u)), q = vf_mul(s, s);
    vf p = vf_set1(2.0f / 15);
    p = vf_fma(p, q, vf_set1(2.0f / 13));
    p = vf_fma(p, q, vf_set1(2.0f / 11));
    p = vf_fma(p, q, vf_set1(2.0f / 9));
    p = vf_fma(p, q, vf_set1(2.0f / 7));
    p = vf_fma(p, q, vf_set1(2.0f / 5));
    p = vf_fma(p, q, vf_set1(2.0f / 3));
    p = vf_fma(p, q, vf_set1(2.0f));
    return vf_fma(p, s, vf_max(vf_zero(), x));
}

/* Lane j adds elements j, j + VL, ...: one fused sum a lane, then the tree of vf_sum. */
static float sum_squares(const float *x, int64_t n) {
    vf s = vf_zero();
    for (int64_t i = 0; i < n; i += VL) {
        vf a = get(x + i, lanes_at(i, n));
        s = vf_fma(a, a, s);
    }
    return vf_sum(s);
}

static float rms_factor(const float *x, float eps, int64_t n) {
    return 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);
}

static void rms_norm(const float *x, const float *w, float eps, int64_t n, float *y) {
    vf f = vf_set1(rms_factor(x, eps, n));
    for (int64_t i = 0; i < n; i += VL) {
        int lanes = lanes_at(i, n);
        set(y + i, vf_mul(vf_mul(get(x + i, lanes), f), get(w + i, lanes)), lanes);
    }
}

static void l2_norm(float *x, int64_t n) {
    vf f = vf_set1(1.0f / sqrtf(sum_squares(x, n) + 1e-6f));
    for (int64_t i = 0; i < n; i += VL) {
        int lanes = lanes_at(i, n);
        set(x + i, vf_mul(get(x + i, lanes), f), lanes);
    }
}

static void swiglu(const float *gate, const float *up, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += VL) {
        int lanes = lanes_at(i, n);
        set(y + i, vf_mul(silu_vf(get(gate + i, lanes)), get(up + i, lanes)), lanes);
    }
}

/* One tap of VL channels, of any width and of fewer channels too, by scalars. */
static inline vf taps_of_any(const float *taps, int32_t width, int lanes) {
    float tap[VL] = {0};
    for (int j = 0; j < lanes; j++) tap[j] = taps[j * width];
    return vf_load(tap);
}

static void conv(const float *const *x, const float *taps, int32_t width, int64_t channels, float *y) {
    for (int64_t c = 0; c < channels; c += VL) {
        int lanes = lanes_at(c, channels);
        bool four = width == 4 && lanes == VL;
        vf tap[4], s = vf_zero();
        if (four) vf_load_fours(taps + c * 4, tap);
        for (int32_t t = 0; t < width; t++) {
            if (!x[t]) continue;
            vf a = four ? tap[t & 3] : taps_of_any(taps + c * width + t, width, lanes);
            s = vf_fma(a, get(x[t] + c, lanes), s);
        }
        set(y + c, silu_vf(s), lanes);
    }
}

static void gates(const float *raw, const float *bias, float a_exp, int64_t n, float *g) {
    vf a = vf_set1(-a_exp);
    for (int64_t i = 0; i < n; i += VL) {
        int lanes = lanes_at(i, n);
        set(g + i, vf_mul(a, softplus_vf(vf_add(get(raw + i, lanes), get(bias + i, lanes)))), lanes);
    }
}

static void sigmoid(const float *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += VL) {
        int lanes = lanes_at(i, n);
        set(y + i, sigmoid_vf(get(x + i, lanes)), lanes);
    }
}

static void norm_gate(float *o, const float *w, const float *z, float eps, int32_t gate, int64_t n) {
    vf f = vf_set1(rms_factor(o, eps, n));
    for (int64_t i = 0; i < n; i += VL) {
        int lanes = lanes_at(i, n);
        vf a = get(z + i, lanes), s = gate == EBB_GATE_SIGMOID ? sigmoid_vf(a) : silu_vf(a);
        set(o + i, vf_mul(vf_mul(vf_mul(get(o + i, lanes), f), get(w + i, lanes)), s), lanes);
    }
}

static void mul_sigmoid(float *o, const float *gate, int64_t n) {
    for (int64_t i = 0; i < n; i += VL) {
        int lanes = lanes_at(i, n);
        set(o + i, vf_mul(get(o + i, lanes), sigmoid_vf(get(gate + i, lanes))), lanes);
    }
}

static void rope(float *x, const float *cosine, const float *sine, int32_t rotary) {
    int32_t half = rotary / 2;
    for (int32_t i = 0; i < half; i += VL) {
        int lanes = lanes_at(i, half);
        vf a = get(x + i, lanes), b = get(x + i + half, lanes);
        vf c = get(cosine + i, lanes), s = get(sine + i, lanes);
        set(x + i, vf_sub(vf_mul(a, c), vf_mul(b, s)), lanes);
        set(x + i + half, vf_add(vf_mul(b, c), vf_mul(a, s)), lanes);
    }
}

const point_row ISA(point) = {.id = {ISA_NAME, ISA_NEEDS, 1},
                              .rms_norm = rms_norm,
                              .l2_norm = l2_norm,
                              .swiglu = swiglu,
                              .conv = conv,
                              .gates = gates,
                              .sigmoid = sigmoid,
                              .norm_gate = norm_gate,
                              .mul_sigmoid = mul_sigmoid,
                              .rope = rope};

#endif
