/* test_chunk.c: every chunk row of this machine against the per-token recurrence in FP64. */
#include "op/rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const chunk_row chunk_ref;
#ifdef EBB_X86
extern const chunk_row chunk_avx2, chunk_avx512;
#elif defined(EBB_ARM)
extern const chunk_row chunk_neon;
#endif

static const chunk_row *const rows[] = {
    &chunk_ref,
#ifdef EBB_X86
    &chunk_avx2,
    &chunk_avx512,
#elif defined(EBB_ARM)
    &chunk_neon,
#endif
};

static bool usable(const chunk_row *row, const ebb_state_layer *layer) {
    return (row->id.needs & ~cpu_features()) == 0 && row->refuse(layer) == NULL;
}

static uint64_t random_state;
static double uniform(void) { return (double)(mix64(random_state++) >> 11) * 0x1p-53; }
static double normal(void) { return sqrt(-2 * log(uniform() + 0x1p-54)) * cos(6.283185307179586 * uniform()); }

/* One head's inputs, and S before them. */
typedef struct input {
    int32_t kind, key_dim, value_dim;
    int64_t n;
    float *q, *k, *v, *g, *beta, *S;
} input;

static float *floats(int64_t n) {
    float *x = aligned_new((size_t)n * sizeof *x);
    assert_non_null(x);
    memset(x, 0, (size_t)n * sizeof *x);
    return x;
}

static int64_t gates_of(const input *in) { return in->kind == EBB_KDA ? in->key_dim : 1; }

static void fill_unit(float *x, int64_t n, int64_t dim) {
    for (int64_t i = 0; i < n; i++) {
        double sum = 1e-6;
        for (int64_t u = 0; u < dim; u++) {
            x[i * dim + u] = (float)normal();
            sum += (double)x[i * dim + u] * (double)x[i * dim + u];
        }
        for (int64_t u = 0; u < dim; u++) x[i * dim + u] = (float)((double)x[i * dim + u] / sqrt(sum));
    }
}

/* Log decays are exponential with mean -lambda: near 0 and far from it side by side. */
static input input_new(int32_t kind, int32_t key_dim, int32_t value_dim, int64_t n, double lambda) {
    input in = {.kind = kind, .key_dim = key_dim, .value_dim = value_dim, .n = n};
    random_state = (uint64_t)(kind * 1000003 + key_dim * 1009 + value_dim) * 131 + (uint64_t)(lambda * 1e4);
    in.q = floats(n * key_dim), in.k = floats(n * key_dim), in.v = floats(n * value_dim);
    in.g = floats(n * gates_of(&in)), in.beta = floats(n), in.S = floats((int64_t)key_dim * value_dim);
    fill_unit(in.q, n, key_dim);
    fill_unit(in.k, n, key_dim);
    for (int64_t i = 0; i < n * value_dim; i++) in.v[i] = (float)normal();
    for (int64_t i = 0; i < n * gates_of(&in); i++) in.g[i] = (float)(lambda * log(1 - uniform()));
    for (int64_t i = 0; i < n; i++) in.beta[i] = (float)uniform();
    for (int64_t i = 0; i < (int64_t)key_dim * value_dim; i++) in.S[i] = (float)normal();
    return in;
}

static void input_free(input *in) { free(in->q), free(in->k), free(in->v), free(in->g), free(in->beta), free(in->S); }

/* Tokens first .. first + n - 1 of the recurrence, as maths has it: decay, erase, write, read. */
static void recur(const input *in, int64_t first, int64_t n, double *S, double *out) {
    int32_t dim = in->key_dim, vdim = in->value_dim;
    double p[256];
    for (int64_t t = first; t < first + n; t++) {
        double *o = out + t * vdim;
        memset(p, 0, sizeof p);
        memset(o, 0, (size_t)vdim * sizeof *o);
        for (int32_t u = 0; u < dim; u++) {
            double a = exp((double)in->g[t * gates_of(in) + (in->kind == EBB_KDA ? u : 0)]),
                   k = (double)in->k[t * dim + u];
            for (int32_t x = 0; x < vdim; x++) {
                S[u * vdim + x] *= a;
                p[x] += k * S[u * vdim + x];
            }
        }
        for (int32_t x = 0; x < vdim; x++) p[x] = (double)in->beta[t] * ((double)in->v[t * vdim + x] - p[x]);
        for (int32_t u = 0; u < dim; u++) {
            double k = (double)in->k[t * dim + u], q = (double)in->q[t * dim + u] / sqrt(dim);
            for (int32_t x = 0; x < vdim; x++) {
                S[u * vdim + x] += k * p[x];
                o[x] += q * S[u * vdim + x];
            }
        }
    }
}

/* Tokens first .. first + n - 1 of the input through a row, at positions from pos on. */
static void run_row(const chunk_row *row, const input *in, int64_t first, int64_t n, int64_t pos, float *S,
                    float *out) {
    ebb_state_layer layer = {
        .kind = in->kind, .key_heads = 1, .heads = 1, .key_dim = in->key_dim, .value_dim = in->value_dim};
    void *scratch = aligned_new(row->scratch(&layer));
    assert_non_null(scratch);
    memset(scratch, 0xff, row->scratch(&layer)); /* NaN: nothing may be read before it is written */
    chunk_args args = {
        .kind = in->kind, .key_dim = in->key_dim, .value_dim = in->value_dim, .pos = pos, .n = n, .S = S};
    args.q = in->q + first * in->key_dim, args.k = in->k + first * in->key_dim, args.v = in->v + first * in->value_dim;
    args.g = in->g + first * gates_of(in), args.beta = in->beta + first, args.out = out + first * in->value_dim;
    args.q_stride = args.k_stride = in->key_dim, args.v_stride = args.out_stride = in->value_dim;
    args.g_stride = gates_of(in), args.beta_stride = 1;
    row->run(&args, scratch);
    free(scratch);
}

static double relative_error(const float *x, const double *y, int64_t n) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        size += y[i] * y[i];
    }
    return size > 0 ? sqrt(error / size) : sqrt(error);
}

#define LIMIT 5e-6
static double worst_error;

static void expect_close(const char *row, const char *what, const input *in, int64_t n, int64_t pos, double lambda,
                         double error) {
    if (error > worst_error) worst_error = error;
    if (!(error < LIMIT))
        fail_msg("%s: %s of %s %dx%d, %lld tokens from %lld, lambda %g: relative error %g", row, what,
                 in->kind == EBB_KDA ? "kda" : "gdn", (int)in->key_dim, (int)in->value_dim, (long long)n,
                 (long long)pos, lambda, error);
}

static const int64_t lengths[] = {0, 1, 3, 63, 64, 65, 129, 500, 1000};
static const int64_t starts[] = {0, 1, 17, 63, 64, 200};

/* All rows at the first `n_lengths` lengths; large heads from one or two of the starts, to stay quick. */
static void compare(int32_t kind, int32_t key_dim, int32_t value_dim, double lambda, int32_t n_lengths) {
    ebb_state_layer layer = {.kind = kind, .key_heads = 1, .heads = 1, .key_dim = key_dim, .value_dim = value_dim};
    int64_t size = (int64_t)key_dim * value_dim, longest = lengths[n_lengths - 1], done = 0;
    input in = input_new(kind, key_dim, value_dim, longest, lambda);
    double *S = malloc((size_t)size * sizeof *S), *out = malloc((size_t)(longest * value_dim) * sizeof *out);
    float *row_S = floats(size), *row_out = floats(longest * value_dim);
    assert_non_null(S);
    assert_non_null(out);
    for (int64_t i = 0; i < size; i++) S[i] = (double)in.S[i];
    for (int32_t l = 0; l < n_lengths; l++) {
        int64_t n = lengths[l];
        recur(&in, done, n - done, S, out);
        done = n;
        for (int32_t s = 0; s < COUNT(starts); s++)
            for (int32_t r = 0; r < COUNT(rows); r++) {
                if (!usable(rows[r], &layer)) continue;
                if (size > 1024 && s != 2 && (size > 16384 || s != l % COUNT(starts))) continue;
                memcpy(row_S, in.S, (size_t)size * sizeof *row_S);
                run_row(rows[r], &in, 0, n, starts[s], row_S, row_out);
                expect_close(rows[r]->id.name, "S", &in, n, starts[s], lambda, relative_error(row_S, S, size));
                expect_close(rows[r]->id.name, "out", &in, n, starts[s], lambda,
                             relative_error(row_out, out, n * value_dim));
            }
    }
    free(S), free(out), free(row_S), free(row_out);
    input_free(&in);
}

static const double lambdas[] = {0, 1e-4, 0.03, 1, 8, 1000};

static void compare_dims(int32_t key_dim, int32_t value_dim, int32_t n_lengths) {
    worst_error = 0;
    for (int32_t i = 0; i < COUNT(lambdas); i++) {
        compare(EBB_GDN, key_dim, value_dim, lambdas[i], n_lengths);
        compare(EBB_KDA, key_dim, value_dim, lambdas[i], n_lengths);
    }
    print_message("%dx%d: worst relative error %.2g\n", (int)key_dim, (int)value_dim, worst_error);
}

static void test_7x5(void **state) {
    (void)state;
    compare_dims(7, 5, COUNT(lengths));
}
static void test_64x128(void **state) {
    (void)state;
    compare_dims(64, 128, COUNT(lengths) - 1);
}
static void test_96x96(void **state) {
    (void)state;
    compare_dims(96, 96, 7);
}
static void test_256x256(void **state) {
    (void)state;
    compare_dims(256, 256, 6);
}
static void test_8x24(void **state) { /* AVX2 serves it with ragged panels, AVX-512 refuses */
    (void)state;
    compare_dims(8, 24, 7);
}
static void test_16x32(void **state) { /* the smallest head that all rows serve: all starts */
    (void)state;
    compare_dims(16, 32, COUNT(lengths));
}

/* A fast KDA head: e^6 a token in the wrong direction would overflow within 15 tokens. */
static void test_fast_decay(void **state) {
    (void)state;
    compare(EBB_KDA, 128, 128, 6, 7);
    compare(EBB_GDN, 128, 128, 6, 7);
}

/* For each row: run `in` from S and hand over what came out. */
static void for_rows(const input *in,
                     void (*expect)(const chunk_row *, const input *, const float *S, const float *out)) {
    ebb_state_layer layer = {
        .kind = in->kind, .key_heads = 1, .heads = 1, .key_dim = in->key_dim, .value_dim = in->value_dim};
    int64_t size = (int64_t)in->key_dim * in->value_dim;
    for (int32_t r = 0; r < COUNT(rows); r++) {
        if (!usable(rows[r], &layer)) continue;
        float *S = floats(size), *out = floats(in->n * in->value_dim);
        memcpy(S, in->S, (size_t)size * sizeof *S);
        run_row(rows[r], in, 0, in->n, 5, S, out);
        expect(rows[r], in, S, out);
        free(S), free(out);
    }
}

static void expect_same_state(const chunk_row *row, const input *in, const float *S, const float *out) {
    for (int64_t i = 0; i < (int64_t)in->key_dim * in->value_dim; i++)
        if (S[i] != in->S[i]) fail_msg("%s: S changed at %lld", row->id.name, (long long)i);
    for (int64_t i = 0; i < in->n * in->value_dim; i++) assert_true(out[i] == 0.0f);
}

/* Nothing is written and nothing decays: S keeps its bits. */
static void test_zero_inputs(void **state) {
    (void)state;
    for (int32_t kind = EBB_GDN; kind <= EBB_KDA; kind++) {
        input in = input_new(kind, 32, 16, 150, 0);
        memset(in.q, 0, (size_t)(in.n * 32) * sizeof(float));
        memset(in.k, 0, (size_t)(in.n * 32) * sizeof(float));
        memset(in.v, 0, (size_t)(in.n * 16) * sizeof(float));
        for_rows(&in, expect_same_state);
        input_free(&in);
    }
}

static void expect_recurrence(const chunk_row *row, const input *in, const float *S, const float *out) {
    int64_t size = (int64_t)in->key_dim * in->value_dim;
    double *want_S = malloc((size_t)size * sizeof *want_S),
           *want = malloc((size_t)(in->n * in->value_dim) * sizeof *want);
    assert_non_null(want_S);
    assert_non_null(want);
    for (int64_t i = 0; i < size; i++) want_S[i] = (double)in->S[i];
    recur(in, 0, in->n, want_S, want);
    expect_close(row->id.name, "S", in, in->n, 5, -1, relative_error(S, want_S, size));
    expect_close(row->id.name, "out", in, in->n, 5, -1, relative_error(out, want, in->n * in->value_dim));
    free(want_S), free(want);
}

static void test_beta(void **state) {
    (void)state;
    for (int32_t kind = EBB_GDN; kind <= EBB_KDA; kind++)
        for (int32_t beta = 0; beta <= 1; beta++) {
            input in = input_new(kind, 32, 64, 150, 0.03);
            for (int64_t i = 0; i < in.n; i++) in.beta[i] = (float)beta;
            for_rows(&in, expect_recurrence);
            input_free(&in);
        }
}

/* The same key again and again, beta 1: the triangle is full of ones. */
static void test_repeated_key(void **state) {
    (void)state;
    for (int32_t kind = EBB_GDN; kind <= EBB_KDA; kind++) {
        input in = input_new(kind, 32, 64, 150, 0.03);
        for (int64_t i = 0; i < in.n; i++) {
            memcpy(in.k + i * 32, in.k, 32 * sizeof(float));
            in.beta[i] = 1;
        }
        for_rows(&in, expect_recurrence);
        input_free(&in);
    }
}

/* A gate of -inf forgets everything before it, and nothing else. */
static void test_infinite_gate(void **state) {
    (void)state;
    for (int32_t kind = EBB_GDN; kind <= EBB_KDA; kind++) {
        input in = input_new(kind, 32, 64, 150, 0.03);
        for (int64_t t = 7; t < in.n; t += 41)
            for (int64_t u = 0; u < gates_of(&in); u += 3) in.g[t * gates_of(&in) + u] = -INFINITY;
        for_rows(&in, expect_recurrence);
        input_free(&in);
    }
}

static void expect_nan_from_40(const chunk_row *row, const input *in, const float *S, const float *out) {
    bool nan_after = true;
    for (int64_t i = 0; i < in->n * in->value_dim; i++)
        if (i / in->value_dim < 40) assert_true(isfinite(out[i]));
        else nan_after = nan_after && isnan(out[i]);
    if (!nan_after || !isnan(S[0])) fail_msg("%s: a NaN gate was swallowed", row->id.name);
}

/* A NaN gate must show, and must not reach earlier tokens. */
static void test_nan_gate(void **state) {
    (void)state;
    for (int32_t kind = EBB_GDN; kind <= EBB_KDA; kind++) {
        input in = input_new(kind, 32, 64, 70, 0.03);
        for (int64_t u = 0; u < gates_of(&in); u++) in.g[40 * gates_of(&in) + u] = NAN;
        for_rows(&in, expect_nan_from_40);
        input_free(&in);
    }
}

/* Cut at multiples of 64 of the position: the same bits as in one call. */
static void test_split(void **state) {
    (void)state;
    static const int64_t from[] = {0, 37, 64};
    static const int64_t cuts[][3] = {{64, 128, 256}, {27, 91, 219}, {128, 192, 256}};
    for (int32_t kind = EBB_GDN; kind <= EBB_KDA; kind++)
        for (int32_t i = 0; i < COUNT(from); i++)
            for (int32_t r = 0; r < COUNT(rows); r++) {
                ebb_state_layer layer = {.kind = kind, .key_heads = 1, .heads = 1, .key_dim = 64, .value_dim = 32};
                if (!usable(rows[r], &layer)) continue;
                input in = input_new(kind, 64, 32, 300, 0.1);
                float *S1 = floats(64 * 32), *S2 = floats(64 * 32), *out1 = floats(300 * 32), *out2 = floats(300 * 32);
                memcpy(S1, in.S, 64 * 32 * sizeof(float));
                memcpy(S2, in.S, 64 * 32 * sizeof(float));
                run_row(rows[r], &in, 0, 300, from[i], S1, out1);
                int64_t done = 0;
                for (int32_t part = 0; part < 4; part++) {
                    int64_t end = part < 3 ? cuts[i][part] : 300;
                    run_row(rows[r], &in, done, end - done, from[i] + done, S2, out2);
                    done = end;
                }
                assert_memory_equal(S1, S2, 64 * 32 * sizeof(float));
                assert_memory_equal(out1, out2, 300 * 32 * sizeof(float));
                free(S1), free(S2), free(out1), free(out2);
                input_free(&in);
            }
}

/* Heads side by side: strides larger than the dimensions, and no float outside the head is written. */
static void test_strides(void **state) {
    (void)state;
    enum { DIM = 32, VDIM = 16, N = 100, PAD = 7 };
    for (int32_t kind = EBB_GDN; kind <= EBB_KDA; kind++)
        for (int32_t r = 0; r < COUNT(rows); r++) {
            ebb_state_layer layer = {.kind = kind, .key_heads = 1, .heads = 1, .key_dim = DIM, .value_dim = VDIM};
            if (!usable(rows[r], &layer)) continue;
            input in = input_new(kind, DIM, VDIM, N, 0.1);
            int64_t gates = gates_of(&in);
            float *S1 = floats(DIM * VDIM), *S2 = floats(DIM * VDIM), *out1 = floats(N * VDIM);
            float *q = floats(N * (DIM + PAD)), *k = floats(N * (DIM + PAD)), *v = floats(N * (VDIM + PAD));
            float *g = floats(N * (gates + PAD)), *beta = floats(N * PAD), *out2 = floats(N * (VDIM + PAD));
            for (int64_t t = 0; t < N; t++) {
                memcpy(q + t * (DIM + PAD), in.q + t * DIM, DIM * sizeof(float));
                memcpy(k + t * (DIM + PAD), in.k + t * DIM, DIM * sizeof(float));
                memcpy(v + t * (VDIM + PAD), in.v + t * VDIM, VDIM * sizeof(float));
                memcpy(g + t * (gates + PAD), in.g + t * gates, (size_t)gates * sizeof(float));
                beta[t * PAD] = in.beta[t];
            }
            for (int64_t i = 0; i < N * (VDIM + PAD); i++) out2[i] = 12345;
            memcpy(S1, in.S, DIM * VDIM * sizeof(float));
            memcpy(S2, in.S, DIM * VDIM * sizeof(float));
            run_row(rows[r], &in, 0, N, 3, S1, out1);
            void *scratch = aligned_new(rows[r]->scratch(&layer));
            assert_non_null(scratch);
            chunk_args args = {kind, DIM,       VDIM,      3,          N,           q,   k,          v,  g,
                               beta, DIM + PAD, DIM + PAD, VDIM + PAD, gates + PAD, PAD, VDIM + PAD, S2, out2,
                               NULL, NULL,      0,         0};
            rows[r]->run(&args, scratch);
            assert_memory_equal(S1, S2, DIM * VDIM * sizeof(float));
            for (int64_t t = 0; t < N; t++) {
                assert_memory_equal(out1 + t * VDIM, out2 + t * (VDIM + PAD), VDIM * sizeof(float));
                for (int64_t i = 0; i < PAD; i++) assert_true(out2[t * (VDIM + PAD) + VDIM + i] == 12345);
            }
            free(S1), free(S2), free(out1), free(out2), free(scratch);
            free(q), free(k), free(v), free(g), free(beta);
            input_free(&in);
        }
}

static void test_refuse(void **state) {
    (void)state;
    ebb_state_layer odd = {.kind = EBB_GDN, .key_heads = 1, .heads = 1, .key_dim = 7, .value_dim = 5};
    for (int32_t r = 0; r < COUNT(rows); r++) {
        if (rows[r] == &chunk_ref) assert_null(rows[r]->refuse(&odd));
        else assert_non_null(rows[r]->refuse(&odd));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_7x5),          cmocka_unit_test(test_64x128),        cmocka_unit_test(test_96x96),
        cmocka_unit_test(test_256x256),      cmocka_unit_test(test_8x24),          cmocka_unit_test(test_16x32),
        cmocka_unit_test(test_fast_decay),   cmocka_unit_test(test_zero_inputs),   cmocka_unit_test(test_beta),
        cmocka_unit_test(test_repeated_key), cmocka_unit_test(test_infinite_gate), cmocka_unit_test(test_nan_gate),
        cmocka_unit_test(test_split),        cmocka_unit_test(test_strides),       cmocka_unit_test(test_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
