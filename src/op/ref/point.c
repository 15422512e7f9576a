/* op/ref/point.c: the definition of the pointwise kernels, in plain FP32 with libm. Called by ops through the row
 * table; other rows agree within rounding, and rope agrees bit for bit. */
#include "op/rows.h"

#include <math.h>

static float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

/* x sigmoid(x); below -100 it is smaller than any FP32 number, down to minus infinity. */
static float silu_of(float x) { return x < -100.0f ? -0.0f : x * sigmoid_of(x); }

static float softplus_of(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* Sum of squares in 16 interleaved partial sums, added up as a tree: a fixed order. */
static float sum_squares(const float *x, int64_t n) {
    float s[16] = {0};
    for (int64_t i = 0; i < n; i++) s[i % 16] += x[i] * x[i];
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) s[i] += s[i + width];
    return s[0];
}

static float rms_factor(const float *x, float eps, int64_t n) {
    return 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);
}

static void rms_norm(const float *x, const float *w, float eps, int64_t n, float *y) {
    float f = rms_factor(x, eps, n);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * f * w[i];
}

static void l2_norm(float *x, int64_t n) {
    float f = 1.0f / sqrtf(sum_squares(x, n) + 1e-6f);
    for (int64_t i = 0; i < n; i++) x[i] *= f;
}

static void swiglu(const float *gate, const float *up, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = silu_of(gate[i]) * up[i];
}

static void conv(const float *const *x, const float *taps, int32_t width, int64_t channels, float *y) {
    for (int64_t c = 0; c < channels; c++) {
        float s = 0;
        for (int32_t t = 0; t < width; t++)
            if (x[t]) s += taps[c * width + t] * x[t][c];
        y[c] = silu_of(s);
    }
}

static void gates(const float *raw, const float *bias, float a_exp, int64_t n, float *g) {
    for (int64_t i = 0; i < n; i++) g[i] = -a_exp * softplus_of(raw[i] + bias[i]);
}

static void sigmoid(const float *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = sigmoid_of(x[i]);
}

static void norm_gate(float *o, const float *w, const float *z, float eps, int32_t gate, int64_t n) {
    float f = rms_factor(o, eps, n);
    for (int64_t i = 0; i < n; i++)
        o[i] = o[i] * f * w[i] * (gate == EBB_GATE_SIGMOID ? sigmoid_of(z[i]) : silu_of(z[i]));
}

static void mul_sigmoid(float *o, const float *gate, int64_t n) {
    for (int64_t i = 0; i < n; i++) o[i] *= sigmoid_of(gate[i]);
}

/* NeoX: dimension i turns with dimension i + rotary / 2. */
static void rope(float *x, const float *cosine, const float *sine, int32_t rotary) {
    int32_t half = rotary / 2;
    for (int32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}

const point_row point_ref = {.id = {"ref", 0, 1},
                             .rms_norm = rms_norm,
                             .l2_norm = l2_norm,
                             .swiglu = swiglu,
                             .conv = conv,
                             .gates = gates,
                             .sigmoid = sigmoid,
                             .norm_gate = norm_gate,
                             .mul_sigmoid = mul_sigmoid,
                             .rope = rope};
