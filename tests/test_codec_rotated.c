/* test_codec_rotated.c: QuaRot and TurboQuant against their definitions in double arithmetic: the rotation, the nearest
 * code, the scales, the codebook; exact sizes, odd shapes, extremes. */
#include "heavy_head.h"
#include "state/rotated.h"

static const int32_t shapes[][2] = {{128, 128}, {16, 96}, {8, 48}, {7, 5}, {3, 1}, {2, 1024}, {33, 34}};

/* Row x of n values into the rotated basis: signs, then blocks of H_ij = (-1)^popcount(i & j) / sqrt(block). */
static void rotate_double(const float *x, int32_t n, double *y) {
    int32_t block = 1;
    while (n % (2 * block) == 0) block *= 2;
    for (int32_t i = 0; i < n; i++) {
        y[i] = 0;
        for (int32_t j = 0; j < block; j++) {
            const int32_t from = i / block * block + j;
            const bool minus = mix64(ROTATED_SEED + (uint64_t)from) >> 63;
            y[i] += (__builtin_popcount((uint32_t)(i % block & j)) & 1) != minus ? -(double)x[from] : (double)x[from];
        }
        y[i] /= sqrt((double)block);
    }
}

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *method;
        int32_t dv;
        size_t bytes;
    } table[] = {{"quarot8", 128, 16896},
                 {"quarot6", 128, 12800},
                 {"quarot4", 128, 8704},
                 {"turboquant8", 128, 16896},
                 {"turboquant6-w", 128, 12800},
                 {"turboquant4:norm=ls", 128, 8704},
                 {"quarot6", 5, 128 * 3 + 128 * 2 + 512}};
    for (int i = 0; i < COUNT(table); i++) {
        one_head t;
        head_open(&t, table[i].method, 128, table[i].dv);
        assert_int_equal(t.planes.bytes, table[i].bytes);
        size_t end = 0;
        for (int32_t p = 0; p < t.planes.n; p++) {
            assert_true(t.planes.plane[p].at >= end);
            end = t.planes.plane[p].at + t.planes.plane[p].bytes;
        }
        assert_int_equal(end, t.planes.bytes);
        head_close(&t);
    }
}

typedef void (*check_row)(const char *method, const double *y, const double *z, int32_t n);

/* Every stored row, before and after, in the rotated basis. */
static void for_each_row(const char *method, check_row check) {
    for (int s = 0; s < COUNT(shapes); s++) {
        const int32_t dk = shapes[s][0], dv = shapes[s][1];
        float *S = malloc((size_t)(dk * dv) * sizeof *S), *D = malloc((size_t)(dk * dv) * sizeof *D);
        double *y = malloc((size_t)dv * sizeof *y), *z = malloc((size_t)dv * sizeof *z);
        one_head t;
        head_open(&t, method, dk, dv);
        heavy_fill(S, dk, dv, 1);
        head_store(&t, S, D);
        for (int32_t u = 0; u < dk; u++) {
            rotate_double(S + (int64_t)u * dv, dv, y);
            rotate_double(D + (int64_t)u * dv, dv, z);
            check(method, y, z, dv);
        }
        head_close(&t);
        free(S), free(D), free(y), free(z);
    }
}

static int bits_of(const char *method) { return method[strcspn(method, "468")] - '0'; }

static double amax_of(const double *y, int32_t n) {
    double amax = 0;
    for (int32_t v = 0; v < n; v++) amax = fmax(amax, fabs(y[v]));
    return amax;
}

static void is_rounded(const char *method, const double *y, const double *z, int32_t n) {
    const double qmax = (1 << (bits_of(method) - 1)) - 1, scale = amax_of(y, n) / qmax;
    for (int32_t v = 0; v < n; v++) {
        const double q = z[v] / scale;
        if (fabs(q - nearbyint(q)) > 1e-3 || fabs(q - y[v] / scale) > .5 + 1e-3)
            fail_msg("%s, %d columns: %.5g stored as %.5g steps", method, n, y[v] / scale, q);
    }
}
static void test_quarot(void **state) {
    (void)state;
    for_each_row("quarot8", is_rounded);
    for_each_row("quarot6", is_rounded);
    for_each_row("quarot4", is_rounded);
}

static const float *levels_of(const char *method) {
    return bits_of(method) == 8 ? lloyd_max_8 : bits_of(method) == 6 ? lloyd_max_6 : lloyd_max_4;
}

static void is_nearest(const char *method, const double *y, const double *z, int32_t n) {
    const int half = 1 << (bits_of(method) - 1);
    const float *level = levels_of(method);
    double norm = 0;
    for (int32_t v = 0; v < n; v++) norm += y[v] * y[v];
    norm = sqrt(norm / n);
    for (int32_t v = 0; v < n; v++) {
        double least = 1e9, there = 1e9;
        for (int q = 0; q < half; q++)
            for (int minus = 0; minus < 2; minus++) {
                const double x = minus ? -(double)level[q] : (double)level[q];
                least = fmin(least, fabs(x - y[v] / norm));
                there = fmin(there, fabs(x - z[v] / norm));
            }
        if (there > 1e-4 || fabs(z[v] - y[v]) / norm > least + 1e-4)
            fail_msg("%s, %d columns: %.5g stored as %.5g", method, n, y[v] / norm, z[v] / norm);
    }
}
static void test_turboquant(void **state) {
    (void)state;
    for_each_row("turboquant8", is_nearest);
    for_each_row("turboquant6", is_nearest);
    for_each_row("turboquant4", is_nearest);
}

/* With least squares what was lost is orthogonal to what was kept, so a row never grows. */
static void is_projection(const char *method, const double *y, const double *z, int32_t n) {
    double yy = 0, yz = 0, zz = 0;
    for (int32_t v = 0; v < n; v++) yy += y[v] * y[v], yz += y[v] * z[v], zz += z[v] * z[v];
    if (fabs(yz - zz) > 1e-5 * yy || zz > yy * (1 + 1e-5))
        fail_msg("%s, %d columns: |x|^2 = %.6g, <x, Q> = %.6g, |Q|^2 = %.6g", method, n, yy, yz, zz);
}
static void test_least_squares(void **state) {
    (void)state;
    for_each_row("quarot8:scale=ls", is_projection);
    for_each_row("quarot6:scale=ls", is_projection);
    for_each_row("quarot4:scale=ls,clip=90", is_projection);
    for_each_row("turboquant8:norm=ls", is_projection);
    for_each_row("turboquant6:norm=ls", is_projection);
    for_each_row("turboquant4:norm=ls", is_projection);
}

/* Every level is the mean of N(0, 1) between the middles to its neighbours. Max 1960: 16 levels leave .009497. */
static void test_codebooks(void **state) {
    (void)state;
    static const char *const methods[] = {"turboquant4", "turboquant6", "turboquant8"};
    static const double known[] = {.009497, 6.443e-4, 4.125e-5}; /* least mean square errors */
    for (int i = 0; i < COUNT(methods); i++) {
        const int half = 1 << (bits_of(methods[i]) - 1);
        const float *level = levels_of(methods[i]);
        double kept = 0;
        for (int q = 0; q < half; q++) {
            const double from = q ? ((double)level[q - 1] + level[q]) / 2 : 0;
            const double to = q + 1 < half ? ((double)level[q] + level[q + 1]) / 2 : 1e3;
            const double mass = (erfc(from / sqrt(2)) - erfc(to / sqrt(2))) / 2;
            const double moment = (exp(-from * from / 2) - exp(-to * to / 2)) / sqrt(2 * 3.14159265358979323846);
            assert_true(fabs(level[q] - moment / mass) < 2e-6);
            kept += 2 * mass * level[q] * level[q];
        }
        if (fabs(1 - kept - known[i]) > 2e-3 * known[i]) fail_msg("%s: error %.5g", methods[i], 1 - kept);
    }
}

/* Clipping pays at 4 bits, which is what the parameter is for. */
static double error_of(const char *method) {
    float *S = malloc(16384 * sizeof *S), *D = malloc(16384 * sizeof *D);
    one_head t;
    head_open(&t, method, 128, 128);
    heavy_fill(S, 128, 128, 4);
    head_store(&t, S, D);
    const double e = head_distance(D, S, 1, 16384) / head_norm(S, 16384);
    head_close(&t);
    free(S), free(D);
    return e;
}
static void test_clip(void **state) {
    (void)state;
    assert_true(error_of("quarot4:clip=90") < .97 * error_of("quarot4"));
    assert_true(error_of("quarot8:clip=90") > error_of("quarot8"));
}

/* The bytes depend on the matrix alone: not on the head, its random key, the memory they go to or its padding. */
static void test_bytes(void **state) {
    (void)state;
    static const char *const methods[] = {"quarot8", "quarot6", "quarot4", "turboquant8", "turboquant6", "turboquant4"};
    for (int m = 0; m < COUNT(methods); m++) {
        float S[7 * 5];
        one_head a, b;
        head_open(&a, methods[m], 7, 5), head_open(&b, methods[m], 7, 5);
        memset(b.packed, 0, b.planes.bytes);
        b.head.head = 3, b.head.rng_key = 1;
        heavy_fill(S, 7, 5, 2);
        head_put(&a, S), head_put(&b, S);
        assert_memory_equal(a.packed, b.packed, a.planes.bytes);
        head_close(&a), head_close(&b);
    }
}

/* Whatever is finite comes back finite, zeros as zeros; NaN and infinities do no harm. */
static void test_extremes(void **state) {
    (void)state;
    static const char *const methods[] = {"quarot8",
                                          "quarot6",
                                          "quarot4:scale=ls",
                                          "turboquant8",
                                          "turboquant6",
                                          "turboquant4:norm=ls",
                                          "turboquant8:norm=ls"};
    static const float sizes[] = {0, 1e-44f, 1e-38f, 1e-30f, 1, 6e4f, 1e30f, 1e36f, 3e38f};
    for (int m = 0; m < COUNT(methods); m++)
        for (int s = 0; s < COUNT(shapes); s++)
            for (int z = 0; z < 2 * COUNT(sizes); z++) {
                const int32_t dk = shapes[s][0], dv = shapes[s][1], n = dk * dv;
                float *S = malloc((size_t)n * sizeof *S), *D = malloc((size_t)n * sizeof *D), size = sizes[z / 2];
                one_head t;
                head_open(&t, methods[m], dk, dv);
                heavy_fill(S, dk, dv, 3);
                for (int32_t i = 0; i < n; i++) S[i] = clamp_code(size * (z & 1 ? 1 : S[i]), 3.4e38f);
                head_store(&t, S, D);
                for (int32_t i = 0; i < n; i++)
                    if (!isfinite(D[i]) || (size == 0 && D[i] != 0))
                        fail_msg("%s %dx%d size %g: %g", methods[m], dk, dv, (double)size, (double)D[i]);
                S[0] = NAN, S[n / 2] = INFINITY, S[n - 1] = -INFINITY;
                head_store(&t, S, D);
                head_close(&t);
                free(S), free(D);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),         cmocka_unit_test(test_quarot),    cmocka_unit_test(test_turboquant),
        cmocka_unit_test(test_least_squares), cmocka_unit_test(test_codebooks), cmocka_unit_test(test_clip),
        cmocka_unit_test(test_bytes),         cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
