/* test_codec_kvquant.c: KVQuant against its definition: outliers, nearest level, scales, in both forms; what `fixed`
 * promises and `published` does not; exact sizes, odd shapes, extremes. */
#include "heavy_head.h"
#include "state/kvquant.h"

static const char *const methods[] = {
    "kvquant8", "kvquant6", "kvquant4", "kvquant8:ends=fixed", "kvquant6:ends=fixed", "kvquant4:ends=fixed"};
static const int32_t shapes[][2] = {{128, 128}, {16, 96}, {7, 5}, {3, 1}, {2, 1024}, {5, 300}};

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *method;
        int32_t dk, dv;
        size_t bytes;
    } table[] = {
        {"kvquant8", 128, 128, 128 * (128 + 2 + 2 * 2 + 2)},
        {"kvquant6", 128, 128, 128 * (96 + 2 + 2 * 2 + 2)},
        {"kvquant4", 128, 128, 128 * (64 + 2 + 2 * 2 + 2)},
        {"kvquant8-w:ends=fixed", 128, 128, 17664},
        {"kvquant6:ends=fixed", 128, 128, 13568},
        {"kvquant4:ends=fixed", 128, 128, 9472},
        {"kvquant8:outliers=0", 128, 128, 16384 + 256},
        {"kvquant8:outliers=100", 128, 128, 16384 + 256 + 128 * 13 * 3},
        {"kvquant8", 4, 300, 1200 + 8 + 4 * 5 * 2 + 4 * 5 * 2}, /* columns above 256 take two bytes */
        {"kvquant4", 7, 5, 24 + 14 + 14 + 7},                   /* at least one outlier */
    };
    for (int i = 0; i < COUNT(table); i++) {
        one_head t;
        head_open(&t, table[i].method, table[i].dk, table[i].dv);
        if (t.planes.bytes != table[i].bytes) fail_msg("%s: %zu bytes", table[i].method, t.planes.bytes);
        size_t end = 0;
        for (int32_t p = 0; p < t.planes.n; p++) {
            assert_true(t.planes.plane[p].at >= end);
            end = t.planes.plane[p].at + t.planes.plane[p].bytes;
        }
        assert_int_equal(end, t.planes.bytes);
        head_close(&t);
    }
}

/* |x| larger than that of how many others. */
static int32_t place_of(const float *x, int32_t n, int32_t v) {
    int32_t larger = 0;
    for (int32_t i = 0; i < n; i++) larger += fabsf(x[i]) > fabsf(x[v]);
    return larger;
}

static void row_is_stored(const char *method, const kvquant_shape *s, const float *x, const float *z) {
    const bool fixed = s->ends == KVQUANT_FIXED;
    const int32_t n = s->codes.columns;
    const float *level = kvquant_levels(s);
    float rest = 0, top = 0;
    for (int32_t v = 0; v < n; v++) {
        top = max_abs(top, x[v]);
        if (place_of(x, n, v) >= s->outliers) rest = max_abs(rest, x[v]);
    }
    double scale = fixed ? fmax(rest, (double)top / 32768) : fp16_to_float(float_to_fp16(rest));
    for (int32_t v = 0; v < n; v++) {
        if (place_of(x, n, v) < s->outliers) {
            if (fabs((double)z[v] - x[v]) > fabs((double)x[v]) / 2048)
                fail_msg("%s, %d columns: outlier %g stored as %g", method, n, (double)x[v], (double)z[v]);
            continue;
        }
        double least = 1e9;
        for (int q = 0; q < 1 << (s->codes.bits - 1); q++)
            least = fmin(least, fabs(fabs((double)x[v]) / scale - (double)level[q]));
        if (fabs((double)z[v] - x[v]) / scale > least + 1e-5)
            fail_msg("%s, %d columns: %g of %g stored as %g", method, n, (double)x[v], scale, (double)z[v]);
    }
}

static void test_definition(void **state) {
    (void)state;
    for (int m = 0; m < COUNT(methods); m++)
        for (int s = 0; s < COUNT(shapes); s++) {
            const int32_t dk = shapes[s][0], dv = shapes[s][1];
            float *S = malloc((size_t)(dk * dv) * sizeof *S), *D = malloc((size_t)(dk * dv) * sizeof *D);
            one_head t;
            head_open(&t, methods[m], dk, dv);
            heavy_fill(S, dk, dv, 1);
            head_store(&t, S, D);
            const kvquant_shape shape = kvquant_shape_of(&t.layer, t.spec.param);
            for (int32_t u = 0; u < dk; u++)
                row_is_stored(methods[m], &shape, S + (int64_t)u * dv, D + (int64_t)u * dv);
            head_close(&t);
            free(S), free(D);
        }
}

/* ends=fixed: a stored matrix is stored without a change, and decays with its rows. (Where an outlier rounds to the
 * scale itself the two may change places, so the bytes are not compared.) */
static void test_grid(void **state) {
    (void)state;
    const float a = .999f;
    for (int m = 3; m < COUNT(methods); m++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            float S[32 * 96], D[32 * 96], E[32 * 96];
            one_head t;
            head_open(&t, methods[m], 32, 96);
            heavy_fill(S, 32, 96, seed);
            head_store(&t, S, D);
            head_store(&t, D, E);
            assert_memory_equal(D, E, sizeof D);
            for (int i = 0; i < 32 * 96; i++) S[i] = (i / 96 % 2 ? a : 1) * D[i];
            head_store(&t, S, E);
            for (int i = 0; i < 32 * 96; i++) assert_true(fabsf(E[i] - S[i]) <= 3e-7f * fabsf(S[i]));
            head_close(&t);
        }
}

/* As published, the largest of the rest goes down at every store; fixed, it stays. */
static double after_stores(const char *method, int stores) {
    float S[8 * 128], D[8 * 128];
    one_head t;
    head_open(&t, method, 8, 128);
    heavy_fill(S, 8, 128, 6);
    head_store(&t, S, D);
    memcpy(S, D, sizeof S);
    for (int i = 0; i < stores; i++) head_store(&t, D, D);
    head_close(&t);
    return head_distance(D, S, 1, 8 * 128) / head_norm(S, 8 * 128);
}
static void test_shrinking(void **state) {
    (void)state;
    assert_true(after_stores("kvquant4", 100) > .1);
    assert_true(after_stores("kvquant4:ends=fixed", 100) == 0);
}

static void test_codebooks(void **state) {
    (void)state;
    for (int m = 0; m < COUNT(methods); m++) {
        one_head t;
        head_open(&t, methods[m], 4, 4);
        const kvquant_shape s = kvquant_shape_of(&t.layer, t.spec.param);
        const int half = 1 << (s.codes.bits - 1);
        const float *level = kvquant_levels(&s);
        float middle[CODEBOOK_HALF], value[256];
        codebook_middles(level, half, middle);
        codebook_values(level, half, value);
        assert_true(level[0] > 0);
        for (int q = 1; q < half; q++) assert_true(level[q] > level[q - 1]);
        assert_true(s.ends == KVQUANT_FIXED ? level[half - 1] == 1 : level[half - 1] < 1);
        for (int q = -half; q < half; q++) { /* every level is its own code */
            const float x = value[(uint8_t)q];
            int8_t code;
            codebook_codes(middle, half, &x, 1, &code);
            assert_int_equal(code, q);
        }
        head_close(&t);
    }
}

/* Whatever is finite comes back finite, zeros as zeros, NaN and infinities do no harm; a row of equal values, where any
 * could be the outlier, takes the first columns. */
static void test_extremes(void **state) {
    (void)state;
    static const float sizes[] = {0, 1e-44f, 1e-38f, 1e-30f, 1, 6e4f, 1e30f, 3e38f};
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
                if (z & 1 && dv <= 256) assert_int_equal(head_plane(&t, "columns")[0], 0);
                S[0] = NAN, S[n / 2] = INFINITY, S[n - 1] = -INFINITY;
                head_store(&t, S, D);
                head_close(&t);
                free(S), free(D);
            }
}

/* The bytes depend on the matrix alone, padding too. */
static void test_bytes(void **state) {
    (void)state;
    for (int m = 0; m < COUNT(methods); m++) {
        float S[7 * 5];
        one_head a, b;
        head_open(&a, methods[m], 7, 5), head_open(&b, methods[m], 7, 5);
        memset(b.packed, 0, b.planes.bytes);
        heavy_fill(S, 7, 5, 2);
        head_put(&a, S), head_put(&b, S);
        assert_memory_equal(a.packed, b.packed, a.planes.bytes);
        head_close(&a), head_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),     cmocka_unit_test(test_definition), cmocka_unit_test(test_grid),
        cmocka_unit_test(test_shrinking), cmocka_unit_test(test_codebooks),  cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
