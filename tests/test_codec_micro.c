/* test_codec_micro.c: floats of 4 and 6 bits with block scales (MXFP4, MXFP6, NVFP4, NVFP6): every code and the nearest
 * code of many numbers against the definitions, whole images against a plain encoder, exact sizes, extremes, and the
 * idempotence numbers. */
#include "one_head.h"
#include "state/micro.h"

static double uniform(uint64_t *s) { return (double)(int64_t)(mix64((*s)++) >> 11) / 4503599627370496.0 - 1.0; }

/* ---- definitions ---- */

/* The value of a code with e exponent bits, m mantissa bits and this bias. */
static double plain_value(int code, int e, int m, int bias) {
    int exponent = code >> m & ((1 << e) - 1), fraction = code & ((1 << m) - 1);
    double a = exponent ? ldexp(1 + ldexp(fraction, -m), exponent - bias) : ldexp(fraction, 1 - bias - m);
    return code >> (e + m) & 1 ? -a : a;
}

/* The code nearest to x among 0 .. last and their negatives; of two as near the even one; saturating. */
static int plain_code(double x, int e, int m, int bias, int last) {
    int best = 0;
    for (int c = 1; c <= last; c++) {
        double far = fabs(fabs(x) - plain_value(c, e, m, bias)), least = fabs(fabs(x) - plain_value(best, e, m, bias));
        if (far < least || (far == least && c % 2 == 0)) best = c;
    }
    return signbit(x) ? best | 1 << (e + m) : best;
}

typedef struct plain_form {
    const char *method;
    micro_code code;
    int e, m, bias, last, emax, nv;
    double max;
    size_t bytes; /* of 128 x 128 */
} plain_form;

static const plain_form forms[] = {
    {"mxfp4", MICRO_E2M1, 2, 1, 1, 7, 2, 0, 6, 8704},
    {"mxfp6", MICRO_E2M3, 2, 3, 1, 31, 2, 0, 7.5, 12800},
    {"mxfp6:format=e3m2", MICRO_E3M2, 3, 2, 3, 31, 4, 0, 28, 12800},
    {"nvfp4", MICRO_E2M1, 2, 1, 1, 7, 2, 1, 6, 9216 + 4},
    {"nvfp6", MICRO_E2M3, 2, 3, 1, 31, 2, 1, 7.5, 13312 + 4},
    {"nvfp6:format=e3m2", MICRO_E3M2, 3, 2, 3, 31, 4, 1, 28, 13312 + 4},
};

static void test_codes(void **state) {
    (void)state;
    static const double e2m1[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    for (int c = 0; c < 8; c++) assert_true(plain_value(c, 2, 1, 1) == e2m1[c]);
    for (int i = 0; i < COUNT(forms); i++) {
        const plain_form *p = &forms[i];
        micro_form f = micro_form_of(p->code, p->nv);
        assert_true((double)f.max == p->max && f.emax == p->emax && f.group == (p->nv ? 16 : 32));
        assert_true(plain_value(p->last, p->e, p->m, p->bias) == p->max);
        for (int c = 0; c < 2 << (p->e + p->m); c++) {
            float x = micro_to_float(f, (int8_t)c);
            assert_true((double)x == plain_value(c, p->e, p->m, p->bias));
            assert_int_equal((uint8_t)micro_from_float(f, x), c);
        }
        uint64_t seed = 2;
        for (int t = 0; t < 20000; t++) {
            double any = p->max * uniform(&seed),
                   tie = nearbyint(64 * any) / 64; /* that often lies between two codes */
            float x = (float)(t < 10000 ? any : tie);
            int want = plain_code((double)x, p->e, p->m, p->bias, p->last), have = (uint8_t)micro_from_float(f, x);
            if (have != want) fail_msg("%s: %g has code %d, expected %d", p->method, (double)x, have, want);
        }
    }
}

/* ---- whole images ---- */

/* Code of column v of row u, read by the layout of docs/formats.md. */
static int read_code(const one_head *t, const plain_form *p, int u, int v) {
    const int dv = t->layer.value_dim, low = (dv + 1) / 2, high = (dv + 3) / 4;
    int code = head_plane(t, "codes")[u * low + v / 2] >> (v % 2 ? 4 : 0) & 15;
    if (p->e + p->m == 5) code |= (head_plane(t, "high")[u * high + v / 4] >> 2 * (v % 4) & 3) << 4;
    return code;
}

static void check_image(const plain_form *p, int32_t dk, int32_t dv, double spread) {
    one_head t;
    head_open(&t, p->method, dk, dv);
    const int group = p->nv ? 16 : 32, blocks = (dv + group - 1) / group;
    float *S = malloc((size_t)(dk * dv) * sizeof *S), *D = malloc((size_t)(dk * dv) * sizeof *D), top = 0, global = 1;
    uint64_t seed = 5;
    for (int i = 0; i < dk * dv; i++) {
        S[i] = (float)(uniform(&seed) * exp(spread * uniform(&seed)));
        if (i / dv == 1) S[i] = 0; /* a row of nothing */
        top = fmaxf(top, fabsf(S[i]));
    }
    head_put(&t, S);
    head_get(&t, D);
    if (p->nv) {
        memcpy(&global, head_plane(&t, "global"), 4);
        assert_true(global == fmaxf(top, 1e-30f) / (448 * (float)p->max));
    }
    for (int u = 0; u < dk; u++)
        for (int b = 0; b < blocks; b++) {
            const int from = b * group, to = dv < from + group ? dv : from + group;
            float amax = 1e-30f;
            for (int v = from; v < to; v++) amax = fmaxf(amax, fabsf(S[u * dv + v]));
            int byte = ilogb((double)amax) - p->emax + 127;
            if (p->nv) byte = plain_code((double)(amax / (float)p->max / global), 4, 3, 7, 126);
            if (p->nv && !byte) byte = 1;
            assert_int_equal(head_plane(&t, "scales")[u * blocks + b], byte);
            float s = p->nv ? global * (float)plain_value(byte, 4, 3, 7) : ldexpf(1, byte - 127);
            for (int v = from; v < to; v++) {
                int want = plain_code((double)(S[u * dv + v] / s), p->e, p->m, p->bias, p->last);
                if (read_code(&t, p, u, v) != want)
                    fail_msg("%s %dx%d: code %d of %g, expected %d", p->method, dk, dv, read_code(&t, p, u, v),
                             (double)S[u * dv + v], want);
                assert_true(D[u * dv + v] == s * (float)plain_value(want, p->e, p->m, p->bias));
            }
        }
    free(S), free(D);
    head_close(&t);
}

static const int32_t shapes[][2] = {{16, 128}, {5, 96}, {3, 48}, {7, 5}, {3, 33}, {4, 18}, {2, 1}, {3, 63}};

static void test_images(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(forms); i++)
        for (int s = 0; s < COUNT(shapes); s++)
            for (int spread = 0; spread < 20; spread += 6) check_image(&forms[i], shapes[s][0], shapes[s][1], spread);
}

/* 4.25, 6.25, 4.5 and 6.5 bits a value, and 4 bytes more for the global scale; padding is zero. */
static void test_sizes(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(forms); i++) {
        one_head t;
        head_open(&t, forms[i].method, 128, 128);
        assert_int_equal(t.planes.bytes, forms[i].bytes);
        head_close(&t);
    }
    one_head t;
    head_open(&t, "nvfp6", 7, 5);
    assert_int_equal(t.planes.bytes, 7 * 3 + 7 * 2 + 7 + 2 + 4); /* codes, high, scales, padding, global */
    float S[35] = {0}, D[35];
    head_put(&t, S);
    assert_int_equal(t.packed[42] | t.packed[43], 0);
    head_get(&t, D);
    for (int i = 0; i < 35; i++) assert_true(D[i] == 0);
    head_close(&t);
}

/* Finite values stay finite, of any size; NaN and infinities too come back as numbers; every scale is a normal number.
 */
static void test_finite(void **state) {
    (void)state;
    enum { DK = 3, DV = 41, N = DK * DV };
    static const float values[] = {0.0f, -0.0f, 1e-45f,  1e-40f,  1e-37f,   1e-30f, 1e-7f,    1,
                                   6e4f, 1e30f, 2.9e38f, 3.4e38f, -3.4e38f, NAN,    INFINITY, -INFINITY};
    float S[N], D[N];
    for (int f = 0; f < COUNT(forms); f++) {
        one_head t;
        head_open(&t, forms[f].method, DK, DV);
        for (int i = 0; i < COUNT(values); i++)
            for (int j = 0; j < COUNT(values); j++) {
                for (int v = 0; v < N; v++) S[v] = v % 4 ? values[i] : values[j];
                head_put(&t, S);
                head_get(&t, D);
                for (int v = 0; v < N; v++)
                    if (!isfinite(D[v]))
                        fail_msg("%s: %g and %g became %g", forms[f].method, (double)values[i], (double)values[j],
                                 (double)D[v]);
                micro_shape s = micro_shape_of(&t.layer, t.spec.param);
                float global = 1;
                if (forms[f].nv) memcpy(&global, head_plane(&t, "global"), 4);
                for (int b = 0; b < DK * s.blocks; b++)
                    assert_true(isnormal(micro_scale(s.form, global, head_plane(&t, "scales")[b])));
            }
        head_close(&t);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"), flatten)) static void wide_encode(const micro_shape *s, const float *S, uint8_t *p) {
    micro_encode(s, S, p);
}
__attribute__((target("avx2,fma"), flatten)) static void wide_decode(const micro_shape *s, const uint8_t *p, float *S) {
    micro_decode(s, p, S);
}

/* The same bits when compiled for wider vectors. */
static void test_width(void **state) {
    (void)state;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) skip();
    for (int i = 0; i < COUNT(forms); i++)
        for (int j = 0; j < COUNT(shapes); j++) {
            one_head t;
            head_open(&t, forms[i].method, shapes[j][0], shapes[j][1]);
            micro_shape s = micro_shape_of(&t.layer, t.spec.param);
            const size_t n = (size_t)(s.rows * s.columns);
            float *S = malloc(n * sizeof *S), *D = malloc(n * sizeof *D), *E = malloc(n * sizeof *E);
            uint8_t *wide = malloc(s.bytes);
            uint64_t seed = 8;
            for (size_t v = 0; v < n; v++) S[v] = (float)(uniform(&seed) * exp(9 * uniform(&seed)));
            head_put(&t, S);
            wide_encode(&s, S, wide);
            assert_memory_equal(t.packed, wide, s.bytes);
            head_get(&t, D);
            wide_decode(&s, wide, E);
            assert_memory_equal(D, E, n * sizeof *D);
            free(S), free(D), free(E), free(wide);
            head_close(&t);
        }
}
#else
static void test_width(void **state) {
    (void)state;
    skip();
}
#endif

/* maths 4.6, rows "MXFP4" and "NVFP4"; powers of two stagnate like BF16. An NVFP6 block of E2M3 codes does not keep its
 * scale when it is stored again (7 and 7.5 are nearer than two E4M3 scales), but then it does. */
static void test_idempotence(void **state) {
    (void)state;
    idem_check("mxfp4", (idem_numbers){.13, 0, .084, .21, 1.19});
    idem_check("nvfp4", (idem_numbers){.093, 0, 9e-8, 2e-7, 1});
    idem_check("mxfp6", (idem_numbers){.031, 0, 7.5e-3, .22, 1.22});
    idem_check("mxfp6:format=e3m2", (idem_numbers){.053, 0, .026, .22, 1.21});
    idem_check("nvfp6:format=e3m2", (idem_numbers){.039, 0, 0, 0, 1});
    idem_check("nvfp6", (idem_numbers){.024, 9.3e-3, 9.3e-3, 9.3e-3, .9984});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),  cmocka_unit_test(test_images), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_finite), cmocka_unit_test(test_width),  cmocka_unit_test(test_idempotence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
