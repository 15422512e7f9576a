/* test_delta_rows.c: what the fast delta rows do their own way, beside what ebb-check compares: images in vectors are
 * the codecs' bit for bit, also of matrices that hold what is not a number; a fold and a read in one pass are a fold
 * and a read; and how many heads a work item has changes nothing. */
#include "delta_world.h"
#include "must.h"

#include <string.h>

static const delta_row *row_named(const char *name) {
    ebb_device *device;
    const delta_row *found = NULL;
    ebb_error error;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    for (const delta_row *const *row = rows_of(device)->delta; *row; row++)
        if (!strcmp((*row)->id.name, name) && !((*row)->id.needs & ~ebb_device_features(device))) found = *row;
    ebb_device_close(device);
    return found; /* rows are constants */
}

static const char *const fast[] = {"avx512", "avx2"};

/* ---- images ---- */

enum { ORDINARY, TINY, HUGE_ONES, ZEROS, MATRICES, NOT_NUMBERS = MATRICES };

static void fill(float *S, int64_t n, int what) {
    uint64_t seed = 3 + (uint64_t)what;
    for (int64_t i = 0; i < n; i++) {
        const float x = world_uniform(&seed) * (i % 13 ? 1.0f : 7.0f);
        S[i] = what == TINY ? x * 1e-41f : what == HUGE_ONES ? x * 3e37f : what == ZEROS ? (i % 2 ? 0.0f : -0.0f) : x;
        if (what != NOT_NUMBERS) continue;
        if (i % 97 == 5) S[i] = i % 2 ? NAN : -NAN;
        if (i % 89 == 7) S[i] = i % 2 ? INFINITY : -INFINITY;
    }
}

static bool alike(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

static void check_images(const delta_row *row, const char *method, int32_t dk, int32_t dv, int matrices) {
    const ebb_state_layer layer = {.kind = EBB_GDN, .key_heads = 1, .heads = 2, .key_dim = dk, .value_dim = dv};
    ebb_device *device;
    ebb_error error = {EBB_OK, ""};
    delta_world w;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    must(world_open(&w, device, method, "ref", layer, 1, 1, 1, &error), &error);
    const ebb_state_view *v = ebb_state_pool_view(w.pool, 0);
    ebb_head h = head_of(v, 1);
    ebb_planes planes;
    must(v->codec->layout(&h, &planes, &error), &error);
    const int64_t n = (int64_t)dk * dv;
    float *S = calloc((size_t)n, sizeof *S), *a = calloc((size_t)n, sizeof *a), *b = calloc((size_t)n, sizeof *b);
    float *tmp = calloc(v->scratch + 1, sizeof *tmp);
    uint8_t *packed = aligned_new(v->packed_head), *scratch = aligned_new(row->scratch(v));
    assert_true(S && a && b && tmp && packed && scratch);
    h.pos = 8;
    for (int what = 0; what < matrices && !row->refuse(v); what++) {
        fill(S, n, what);
        v->codec->encode(&h, S, NULL, NULL, packed, tmp);
        row->pack(v, 0, 1, h.pos, S, NULL, scratch);
        if (memcmp(packed, packed_of(v, 0, 1), planes.bytes))
            fail_msg("%s packs other bytes of %s, %dx%d, matrix %d", row->id.name, method, dk, dv, what);
        v->codec->decode(&h, packed, a);
        row->unpack(v, 0, 1, h.pos, b, scratch);
        if (!alike(a, b, n))
            fail_msg("%s reads other values of %s, %dx%d, matrix %d", row->id.name, method, dk, dv, what);
    }
    free(S), free(a), free(b), free(tmp), free(packed), free(scratch);
    world_close(&w);
    ebb_device_close(device);
}

static void test_images(void **state) {
    (void)state;
    static const struct {
        const char *method;
        int matrices;
    } methods[] = {{"fp16", MATRICES + 1},
                   {"bf16", MATRICES + 1},
                   {"int8", MATRICES + 1},
                   {"int4", MATRICES + 1},
                   {"fp8", MATRICES + 1},
                   {"damp", MATRICES + 1},
                   {"damp:zero=paper", MATRICES + 1},
                   {"leap8", MATRICES},
                   {"leap6", MATRICES},
                   {"leap5", MATRICES},
                   {"leap4", MATRICES},
                   {"leap8:bits=12", MATRICES},
                   {"leap8:r=0", MATRICES},
                   {"leap8:r=7,scale=max,theta=1", MATRICES},
                   {"leap4:r=16,theta=0.25", MATRICES}};
    static const int32_t dims[][2] = {{128, 128}, {96, 160}, {32, 256}, {72, 40}, {48, 16}};
    for (int r = 0; r < COUNT(fast); r++) {
        const delta_row *row = row_named(fast[r]);
        for (int m = 0; row && m < COUNT(methods); m++)
            for (int d = 0; d < COUNT(dims); d++)
                check_images(row, methods[m].method, dims[d][0], dims[d][1], methods[m].matrices);
    }
}

/* ---- a fold and a read in one pass ---- */

/* Tokens one by one, in one pass where the row can; and the same with a read before each token, which folds. */
static void check_through(const char *row, ebb_state_layer layer) {
    enum { N = 24 };
    ebb_device *device;
    ebb_error error = {EBB_OK, ""};
    delta_world a, b;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    must(world_open(&a, device, "fp32", row, layer, 1, 1, N, &error), &error);
    must(world_open(&b, device, "fp32", row, layer, 1, 1, N, &error), &error);
    world_inputs(&a, 31, .1f), world_inputs(&b, 31, .1f);
    const int64_t nv = (int64_t)layer.heads * layer.value_dim, nS = nv * layer.key_dim;
    float *oa = calloc((size_t)nv, sizeof *oa), *ob = calloc((size_t)nv, sizeof *ob);
    float *Sa = calloc((size_t)nS, sizeof *Sa), *Sb = calloc((size_t)nS, sizeof *Sb);
    assert_true(oa && ob && Sa && Sb);
    for (int64_t t = 0; t < N; t++) {
        if (t) must(world_read(&b, 0, t, Sb, &error), &error);
        must(world_run(&a, false, 0, t, 1, oa, &error), &error);
        must(world_run(&b, false, 0, t, 1, ob, &error), &error);
        assert_memory_equal(oa, ob, (size_t)nv * sizeof *oa);
    }
    must(world_read(&a, 0, N, Sa, &error), &error);
    must(world_read(&b, 0, N, Sb, &error), &error);
    assert_memory_equal(Sa, Sb, (size_t)nS * sizeof *Sa);
    free(oa), free(ob), free(Sa), free(Sb);
    world_close(&a), world_close(&b);
    ebb_device_close(device);
}

static void test_through(void **state) {
    (void)state;
    static const ebb_state_layer layers[] = {
        {.kind = EBB_GDN, .key_heads = 2, .heads = 4, .key_dim = 128, .value_dim = 128},
        {.kind = EBB_KDA, .key_heads = 1, .heads = 2, .key_dim = 128, .value_dim = 128},
        {.kind = EBB_GDN, .key_heads = 1, .heads = 2, .key_dim = 64, .value_dim = 96},
        {.kind = EBB_KDA, .key_heads = 2, .heads = 2, .key_dim = 32, .value_dim = 256}};
    for (int r = 0; r < COUNT(fast); r++)
        for (int l = 0; row_named(fast[r]) && l < COUNT(layers); l++) check_through(fast[r], layers[l]);
}

/* A step that is repeated after its fold was committed: the same bits again. */
static void test_repeated_step(void **state) {
    (void)state;
    const ebb_state_layer layer = {.kind = EBB_GDN, .key_heads = 1, .heads = 2, .key_dim = 128, .value_dim = 128};
    enum { N = 6, NV = 2 * 128 };
    for (int r = 0; r < COUNT(fast); r++) {
        if (!row_named(fast[r])) continue;
        ebb_device *device;
        ebb_error error = {EBB_OK, ""};
        delta_world w;
        float once[NV], again[NV];
        must(ebb_device_open("cpu", NULL, &device, &error), &error);
        must(world_open(&w, device, "fp32", fast[r], layer, 1, 1, N, &error), &error);
        world_inputs(&w, 5, .1f);
        for (int64_t t = 0; t < N; t++) {
            must(world_run(&w, false, 0, t, 1, once, &error), &error);
            must(world_run(&w, false, 0, t, 1, again, &error), &error);
            assert_memory_equal(once, again, sizeof once);
        }
        world_close(&w);
        ebb_device_close(device);
    }
}

/* ---- items ---- */

/* Outputs of n tokens of two sequences, at this number of threads. */
static void run_threads(const char *method, const char *row, ebb_state_layer layer, int32_t threads, int64_t n,
                        float *out) {
    ebb_device_config config = {.size = sizeof config, .threads = threads};
    ebb_device *device;
    ebb_error error = {EBB_OK, ""};
    delta_world w;
    const int64_t nv = (int64_t)layer.heads * layer.value_dim;
    must(ebb_device_open("cpu", &config, &device, &error), &error);
    must(world_open(&w, device, method, row, layer, 2, 2, 2 * n, &error), &error);
    world_inputs(&w, 77, .05f);
    for (int64_t t = 0; t < 2 * n; t += 2)
        must(world_run(&w, false, (int32_t)(t / 2 % 2), t / 4 * 2, 2, out + t * nv, &error), &error);
    world_close(&w);
    ebb_device_close(device);
}

static void test_items(void **state) {
    (void)state;
    static const char *const methods[] = {"fp32", "leap8", "int8-w", "damp"};
    enum { N = 24 };
    const ebb_state_layer layer = {.kind = EBB_GDN, .key_heads = 13, .heads = 26, .key_dim = 32, .value_dim = 64};
    const size_t floats = (size_t)2 * N * 26 * 64;
    float *one = calloc(floats, sizeof *one), *many = calloc(floats, sizeof *many);
    assert_true(one && many);
    for (int r = 0; r < COUNT(fast); r++)
        for (int m = 0; row_named(fast[r]) && m < COUNT(methods); m++) {
            run_threads(methods[m], fast[r], layer, 1, N, one); /* items of three key heads, and one of one */
            for (int32_t threads = 2; threads <= 5; threads++) {
                run_threads(methods[m], fast[r], layer, threads, N, many);
                assert_memory_equal(one, many, floats * sizeof *one);
            }
        }
    free(one), free(many);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_through),
        cmocka_unit_test(test_repeated_step),
        cmocka_unit_test(test_items),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
