/* check/check_point.c: pointwise rows against op/ref within rounding (rope bit for bit), on random, tiny, huge, zero
 * and NaN inputs, every length around the vector widths; nothing after the row may change, and NaN may not vanish. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LONG = 1024, WIDTHS = 8, ROOM = LONG + 32 };
static const int64_t lengths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 128, 129, 1023, 1024};
static const float untouched = 12345.5f;

/* What a kernel reads and writes; kept as one block so that a case is set up once and run by two rows. */
typedef struct point_case {
    float a[ROOM], b[ROOM], c[ROOM], taps[LONG * WIDTHS + 32], past[WIDTHS][ROOM];
    const float *x[WIDTHS];
    int64_t n;
    int32_t width, gate;
    float eps;
    float got[ROOM], want[ROOM];
} point_case;

/* Kinds of input. */
enum { NORMAL, ZERO, TINY, HUGE_ONES, WIDE, WITH_NAN, KINDS };
static const char *const kind_name[] = {"normal", "zero", "1e-30", "6e4", "-200..200", "NaN"};

static float value_of(rng *r, int kind, int64_t i, int64_t n) {
    switch (kind) {
    case ZERO:
        return i % 2 ? 0.0f : -0.0f;
    case TINY:
        return 1e-30f * rng_normal(r);
    case HUGE_ONES:
        return i % 3 ? 6e4f : -6e4f;
    case WIDE:
        return 200 * rng_uniform(r);
    case WITH_NAN:
        return i == n / 2 ? NAN : rng_normal(r);
    }
    return rng_normal(r);
}

static void fill_case(point_case *p, rng *r, int kind, int64_t n) {
    p->n = n;
    p->eps = 1e-6f;
    for (int64_t i = 0; i < ROOM; i++) {
        bool in = i < n;
        p->a[i] = in ? value_of(r, kind, i, n) : untouched;
        p->b[i] = in ? value_of(r, kind == WITH_NAN ? NORMAL : kind, i, n) : untouched;
        p->c[i] = rng_normal(r);
        for (int t = 0; t < WIDTHS; t++) p->past[t][i] = in && t ? rng_normal(r) : in ? p->a[i] : untouched;
    }
    for (int64_t i = 0; i < LONG * WIDTHS; i++) p->taps[i] = rng_normal(r);
    for (int t = 0; t < WIDTHS; t++) p->x[t] = p->past[t];
}

/* ---- one call of each kernel: in from the case, out to `y` [ROOM], which holds `a` or untouched values before ---- */

typedef void (*point_call)(const point_row *row, const point_case *p, float *y);

static void copy_a(const point_case *p, float *y) { memcpy(y, p->a, sizeof p->a); }
static void clear_y(float *y) {
    for (int64_t i = 0; i < ROOM; i++) y[i] = untouched;
}

static void call_rms(const point_row *row, const point_case *p, float *y) {
    clear_y(y);
    row->rms_norm(p->a, p->c, p->eps, p->n, y);
}
static void call_rms_in_place(const point_row *row, const point_case *p, float *y) {
    copy_a(p, y);
    row->rms_norm(y, p->c, p->eps, p->n, y);
}
static void call_l2(const point_row *row, const point_case *p, float *y) {
    copy_a(p, y);
    row->l2_norm(y, p->n);
}
static void call_swiglu(const point_row *row, const point_case *p, float *y) {
    clear_y(y);
    row->swiglu(p->a, p->b, p->n, y);
}
static void call_conv(const point_row *row, const point_case *p, float *y) {
    clear_y(y);
    row->conv(p->x, p->taps, p->width, p->n, y);
}
static void call_gates(const point_row *row, const point_case *p, float *y) {
    clear_y(y);
    row->gates(p->a, p->c, 3.5f, p->n, y);
}
static void call_sigmoid(const point_row *row, const point_case *p, float *y) {
    clear_y(y);
    row->sigmoid(p->a, p->n, y);
}
static void call_norm_gate(const point_row *row, const point_case *p, float *y) {
    copy_a(p, y);
    row->norm_gate(y, p->c, p->b, p->eps, p->gate, p->n);
}
static void call_gate_nan(const point_row *row, const point_case *p, float *y) { /* the gate holds the NaN */
    memcpy(y, p->b, sizeof p->b);
    row->norm_gate(y, p->c, p->a, p->eps, p->gate, p->n);
}
static void call_mul_sigmoid(const point_row *row, const point_case *p, float *y) {
    memcpy(y, p->b, sizeof p->b);
    row->mul_sigmoid(y, p->a, p->n);
}
static void call_rope(const point_row *row, const point_case *p, float *y) {
    copy_a(p, y);
    row->rope(y, p->b, p->c, (int32_t)(p->n & ~(int64_t)1));
}

/* Tolerances are for inputs of size 1; `bits`: rounded alike, so no tolerance. */
static const struct {
    const char *name;
    point_call call;
    double atol, rtol;
    bool bits;
} kernels[] = {
    {"rms_norm", call_rms, 1e-37, 2e-6, false},
    {"rms_norm in place", call_rms_in_place, 1e-37, 2e-6, false},
    {"l2_norm", call_l2, 1e-37, 2e-6, false},
    {"swiglu", call_swiglu, 1e-30, 2e-6, false},
    {"conv", call_conv, 4e-6, 4e-6, false},
    {"gates", call_gates, 1e-36, 2e-6, false},
    {"sigmoid", call_sigmoid, 1e-36, 2e-6, false},
    {"norm_gate", call_norm_gate, 1e-33, 4e-6, false},
    {"norm_gate, gate first", call_gate_nan, 1e-33, 4e-6, false},
    {"mul_sigmoid", call_mul_sigmoid, 1e-31, 2e-6, false},
    {"rope", call_rope, 0, 0, true},
};

static void compare(check *c, const point_case *p, int kernel, int kind) {
    double atol = kernels[kernel].atol * (kind == HUGE_ONES ? 6e4 : kind == WIDE ? 200 : 1);
    bool ok = kernels[kernel].bits && kind != WITH_NAN
                  ? check_same_bits(p->got, p->want, p->n)
                  : check_distance(p->got, p->want, p->n, atol, kernels[kernel].rtol) <= 1;
    for (int64_t i = 0; !ok && i < p->n; i++) {
        if (check_distance(&p->got[i], &p->want[i], 1, atol, kernels[kernel].rtol) <= 1) continue;
        check_fail(c, "%s input, n %lld, width %d, gate %d, element %lld: %.9g, ref has %.9g", kind_name[kind],
                   (long long)p->n, p->width, p->gate, (long long)i, (double)p->got[i], (double)p->want[i]);
    }
    if (!ok) check_fail(c, "%s input, n %lld: bits differ", kind_name[kind], (long long)p->n);
    if (!check_same_bits(p->got + p->n, p->want + p->n, ROOM - p->n))
        check_fail(c, "%s input, n %lld: wrote beyond the row", kind_name[kind], (long long)p->n);
}

/* Taps that reach before the sequence are NULL: the first `missing` of them. */
static void run_widths(check *c, const point_row *row, const point_row *ref, point_case *p, int kernel, int kind) {
    for (p->width = 1; p->width <= WIDTHS; p->width++)
        for (int32_t missing = 0; missing < p->width; missing++) {
            for (int t = 0; t < p->width; t++) p->x[t] = t < missing ? NULL : p->past[p->width - 1 - t];
            call_conv(ref, p, p->want);
            call_conv(row, p, p->got);
            compare(c, p, kernel, kind);
        }
}

static void check_kernel(check *c, const point_row *row, const point_row *ref, int kernel) {
    static point_case p;
    rng r = {(uint64_t)kernel};
    check_row(c, "point", row->id.name, kernels[kernel].name);
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < COUNT(lengths); i++) {
            fill_case(&p, &r, kind, lengths[i]);
            if (kernels[kernel].call == call_conv) {
                run_widths(c, row, ref, &p, kernel, kind);
                continue;
            }
            for (p.gate = EBB_GATE_SILU; p.gate <= EBB_GATE_SIGMOID; p.gate++) {
                kernels[kernel].call(ref, &p, p.want);
                kernels[kernel].call(row, &p, p.got);
                compare(c, &p, kernel, kind);
            }
        }
    check_done(c);
}

/* A NaN must come out where it went in, and infinities may not turn into one; ref included. */
static void check_extremes(check *c, const point_row *row) {
    float x[20], up[20], y[20];
    check_row(c, "point", row->id.name, "NaN, infinities, +-3e38");
    for (int i = 0; i < 20; i++) x[i] = i == 3 || i == 17 ? NAN : i % 2 ? INFINITY : -INFINITY, up[i] = 0.5f;
    x[0] = -3e38f, x[1] = 3e38f;
    row->swiglu(x, up, 20, y);
    for (int i = 0; i < 20; i++) {
        bool ok = isnan(x[i]) ? isnan(y[i]) : x[i] < 0 ? fabsf(y[i]) < 1e-30f : y[i] == 0.5f * x[i];
        if (!ok) check_fail(c, "silu(%g) = %g", (double)x[i], (double)y[i] * 2);
    }
    row->sigmoid(x, 20, y);
    for (int i = 0; i < 20; i++) {
        bool ok = isnan(x[i]) ? isnan(y[i]) : x[i] < 0 ? fabsf(y[i]) < 1e-30f : y[i] == 1.0f;
        if (!ok) check_fail(c, "sigmoid(%g) = %g", (double)x[i], (double)y[i]);
    }
    memset(up, 0, sizeof up);
    row->gates(x, up, 2.0f, 20, y);
    for (int i = 0; i < 20; i++) {
        bool ok = isnan(x[i]) ? isnan(y[i]) : x[i] < 0 ? fabsf(y[i]) < 1e-30f : y[i] == -2.0f * x[i];
        if (!ok) check_fail(c, "-2 softplus(%g) = %g", (double)x[i], (double)y[i]);
    }
    check_done(c);
}

/* The definition itself against FP64. */
static void check_definition(check *c, const point_row *ref) {
    float x[200], one[200], y[200];
    check_row(c, "point", ref->id.name, "against FP64");
    for (int i = 0; i < 200; i++) x[i] = 0.37f * (float)(i - 100), one[i] = 1;
    ref->swiglu(x, one, 200, y);
    for (int i = 0; i < 200; i++) {
        double v = (double)x[i], want = v / (1 + exp(-v));
        if (!(fabs((double)y[i] - want) <= 1e-30 + 1e-6 * fabs(want))) check_fail(c, "silu(%g) = %g", v, (double)y[i]);
    }
    memset(one, 0, sizeof one);
    ref->gates(x, one, 1.0f, 200, y);
    for (int i = 0; i < 200; i++) {
        double v = (double)x[i], want = -log1p(exp(v));
        if (!(fabs((double)y[i] - want) <= 1e-6 * fabs(want))) check_fail(c, "-softplus(%g) = %g", v, (double)y[i]);
    }
    check_done(c);
}

void check_point(check *c) {
    ebb_device *device;
    ebb_error error;
    const point_row *ref = NULL;
    if (ebb_device_open("cpu", NULL, &device, &error)) {
        check_row(c, "point", "-", "open a device");
        check_fail(c, "%s", error.text);
        check_done(c);
        return;
    }
    const point_row *const *rows = rows_of(device)->point;
    for (int i = 0; rows[i]; i++) ref = rows[i];
    check_definition(c, ref);
    for (int i = 0; rows[i]; i++) {
        if (!check_can(c, &rows[i]->id)) continue;
        check_extremes(c, rows[i]);
        for (int k = 0; rows[i] != ref && k < COUNT(kernels); k++) check_kernel(c, rows[i], ref, k);
    }
    ebb_device_close(device);
}
