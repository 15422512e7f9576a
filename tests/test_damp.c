/* test_damp.c: the calibrated codecs, DAMP in both versions: sizes, what is done to protected rows and to the others,
 * that orders and scales are undone, that protecting the worst rows helps, stochastic rounding, and what a layout has
 * to hold. */
#include "delta_world.h"
#include "heavy_head.h"
#include "state/damp.h"

#include <stdio.h>
#include <string.h>

#include "must.h"

enum { DK = 24, DV = 72, N = DK * DV };
static ebb_device *device;

static double uniform(uint64_t *s) { return (double)(int64_t)(mix64((*s)++) >> 11) / 4503599627370496.0 - 1.0; }

/* A head whose layout is drawn at random, with scales that are powers of two where `exact`. */
typedef struct damp_head {
    one_head t;
    uint16_t *key_order, *value_order; /* of head 0 */
    float *value_scale;
    ebb_layout_layer table;
} damp_head;

static void open_head(damp_head *d, const char *method, int32_t dk, int32_t dv, bool exact) {
    uint64_t s = 3;
    head_open(&d->t, method, dk, dv);
    d->key_order = shuffled(1, dk, &s), d->value_order = shuffled(1, dv, &s);
    d->value_scale = calloc((size_t)dv, sizeof *d->value_scale);
    for (int32_t v = 0; v < dv; v++) {
        const double e = 3 * uniform(&s);
        d->value_scale[v] = (float)exp2(exact ? rint(e) : e);
    }
    d->table = (ebb_layout_layer){1, dk, dv, d->key_order, d->value_order, d->value_scale, NULL};
    d->t.head.table = &d->table;
}

static void close_head(damp_head *d) {
    free(d->key_order), free(d->value_order), free(d->value_scale);
    head_close(&d->t);
}

/* ---- sizes ---- */

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *method;
        int32_t dk, dv;
        size_t bytes;
    } table[] = {{"damp", 128, 128, 20224},
                 {"damp-w", 128, 128, 20224},
                 {"damp-reorder", 128, 128, 20224},
                 {"damp:high=bf16,zero=paper", 128, 128, 20224},
                 {"damp:rows=0", 128, 128, 18432},
                 {"damp:rows=128", 128, 128, 32768},
                 {"damp:low=int4", 128, 128, 4096 + 112 * (64 + 16)},
                 {"damp:low=nvfp4", 128, 128, 4096 + 112 * (64 + 8) + 4},
                 {"int8-reorder", 128, 128, 18432},
                 {"int4-reorder-w", 128, 128, 10240},
                 {"damp-reorder:rows=8,low=int4", 128, 128, 2048 + 120 * (64 + 16)},
                 {"damp", 7, 5, 72},
                 {"damp:rows=3", 7, 5, 32 + 20 + 16},
                 {"damp:rows=3,low=nvfp4", 7, 5, 32 + 12 + 4 + 4},
                 {"int4-reorder", 7, 5, 24 + 28},
                 {"damp-reorder:rows=1", 3, 33, 68 + 68 + 16}};
    for (int i = 0; i < COUNT(table); i++) {
        one_head t;
        head_open(&t, table[i].method, table[i].dk, table[i].dv);
        if (t.planes.bytes != table[i].bytes)
            fail_msg("%s %dx%d: %zu bytes, expected %zu", table[i].method, table[i].dk, table[i].dv, t.planes.bytes,
                     table[i].bytes);
        float *S = calloc((size_t)(table[i].dk * table[i].dv), sizeof *S);
        head_put(&t, S);
        size_t end = 0;
        for (int32_t p = 0; p < t.planes.n; p++) {
            for (; end < t.planes.plane[p].at; end++) assert_int_equal(t.packed[end], 0); /* padding */
            assert_int_equal(end, t.planes.plane[p].at);
            end += t.planes.plane[p].bytes;
        }
        for (; end < t.planes.bytes; end++) assert_int_equal(t.packed[end], 0);
        free(S);
        head_close(&t);
    }
}

/* ---- rows ---- */

/* The first rows of key_order are rounded to 16 bits and nothing else; the others are what int8-h32 makes of them,
 * wherever they lie. */
static void test_rows(void **state) {
    (void)state;
    static const struct {
        const char *method, *low;
        int rows, bf16;
    } table[] = {{"damp:rows=5", "int8-h32", 5, 0},
                 {"damp:rows=5,high=bf16,zero=paper", "int8-h32:zero=paper", 5, 1},
                 {"damp:rows=20,low=int4", "int4-h32", 20, 0},
                 {"damp:rows=0", "int8-h32", 0, 0},
                 {"damp:rows=100", "int8-h32", DK, 0}};
    for (int i = 0; i < COUNT(table); i++) {
        damp_head d;
        one_head low;
        float S[N], D[N], E[N];
        open_head(&d, table[i].method, DK, DV, true);
        head_open(&low, table[i].low, DK, DV);
        heavy_fill(S, DK, DV, 5);
        head_store(&d.t, S, D);
        head_store(&low, S, E);
        for (int r = 0; r < DK; r++) {
            const int at = d.key_order[r] * DV;
            for (int v = at; v < at + DV; v++)
                if (r >= table[i].rows) assert_true(D[v] == E[v]);
                else if (table[i].bf16) assert_true(D[v] == bf16_to_float(float_to_bf16(S[v])));
                else assert_true(D[v] == fp16_to_float(float_to_fp16(S[v])));
        }
        head_close(&low);
        close_head(&d);
    }
}

/* nvfp4 has one scale for the lower rows together: the same as nvfp4 of a matrix of these rows. */
static void test_nvfp4_rows(void **state) {
    (void)state;
    enum { HIGH = 6 };
    damp_head d;
    one_head low;
    float S[N], D[N], L[N], E[N];
    open_head(&d, "damp:rows=6,low=nvfp4", DK, DV, true);
    head_open(&low, "nvfp4", DK - HIGH, DV);
    heavy_fill(S, DK, DV, 5);
    for (int r = 0; r < HIGH; r++) S[d.key_order[r] * DV] = 1e4f; /* must not enter that scale */
    for (int r = HIGH; r < DK; r++) memcpy(L + (r - HIGH) * DV, S + d.key_order[r] * DV, DV * sizeof *S);
    head_store(&d.t, S, D);
    head_store(&low, L, E);
    for (int r = HIGH; r < DK; r++) assert_memory_equal(D + d.key_order[r] * DV, E + (r - HIGH) * DV, DV * sizeof *S);
    head_close(&low);
    close_head(&d);
}

/* ---- the reordered value axis ---- */

/* From the definition: T_uj = S_uv / c_v with v = order[j], groups of 32 of T, back. */
static void test_reorder_is_the_definition(void **state) {
    (void)state;
    static const char *const methods[] = {"damp-reorder:rows=5", "int8-reorder", "int4-reorder",
                                          "damp-reorder:rows=5,low=int4"};
    for (int m = 0; m < COUNT(methods); m++) {
        damp_head d;
        float S[N], D[N];
        open_head(&d, methods[m], DK, DV, false);
        const int high = strncmp(methods[m], "damp", 4) ? 0 : 5;
        const float qmax = strstr(methods[m], "int4") ? 7 : 127;
        heavy_fill(S, DK, DV, 8);
        head_store(&d.t, S, D);
        for (int r = 0; r < DK; r++) {
            const int u = high ? d.key_order[r] : r;
            for (int g = 0; g < DV; g += 32) {
                const int n = DV - g < 32 ? DV - g : 32;
                float top = 0;
                for (int j = g; j < g + n; j++)
                    top = fmaxf(top, fabsf(S[u * DV + d.value_order[j]] / d.value_scale[d.value_order[j]]));
                for (int j = g; j < g + n; j++) {
                    const int v = d.value_order[j];
                    const float t = S[u * DV + v] / d.value_scale[v], s = top / qmax;
                    const float back = r < high ? fp16_to_float(float_to_fp16(t)) : s * nearbyintf(t / s);
                    if (D[u * DV + v] != back * d.value_scale[v])
                        fail_msg("%s, row %d, column %d: %a, expected %a", methods[m], u, v, (double)D[u * DV + v],
                                 (double)(back * d.value_scale[v]));
                }
            }
        }
        close_head(&d);
    }
}

/* A layout that changes nothing: the formats that the methods are made of. */
static void test_identity(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"damp:rows=0", "int8-h32"}, {"int8-reorder", "int8"}, {"int4-reorder", "int4"}, {"damp:rows=128", "fp16"}};
    for (int i = 0; i < COUNT(pairs); i++) {
        one_head a, b;
        float S[N], D[N], E[N];
        head_open(&a, pairs[i][0], DK, DV), head_open(&b, pairs[i][1], DK, DV);
        heavy_fill(S, DK, DV, 2);
        head_store(&a, S, D), head_store(&b, S, E);
        assert_memory_equal(D, E, sizeof D);
        assert_int_equal(a.planes.bytes, b.planes.bytes);
        assert_memory_equal(a.packed, b.packed, a.planes.bytes);
        head_close(&a), head_close(&b);
    }
}

/* Powers of two and orders alone lose nothing. */
static void test_undone(void **state) {
    (void)state;
    damp_head d;
    float S[N], D[N];
    open_head(&d, "damp-reorder:rows=128", DK, DV, true);
    uint64_t seed = 4;
    for (int i = 0; i < N; i++) S[i] = (float)(rint(1000 * uniform(&seed)) / 64);
    head_store(&d.t, S, D);
    assert_memory_equal(S, D, sizeof S);
    close_head(&d);
}

/* ---- calibration pays ---- */

/* The rows of the worst int8-h32 error first, or last. */
static void rank_rows(const float *S, uint16_t *order, bool worst_first) {
    enum { DIM = 128 };
    float *D = malloc(DIM * DIM * sizeof *D);
    double e[DIM];
    one_head t;
    head_open(&t, "int8-h32", DIM, DIM);
    head_store(&t, S, D);
    for (int u = 0; u < DIM; u++) e[u] = head_distance(D + u * DIM, S + u * DIM, 1, DIM), order[u] = (uint16_t)u;
    for (int i = 1; i < DIM; i++)
        for (int j = i; j > 0 && (e[order[j]] > e[order[j - 1]]) == worst_first; j--) {
            const uint16_t swap = order[j];
            order[j] = order[j - 1], order[j - 1] = swap;
        }
    head_close(&t);
    free(D);
}

static double error_with(const char *method, const float *S, const uint16_t *order) {
    enum { DIM = 128 };
    float *D = malloc(DIM * DIM * sizeof *D);
    one_head t;
    head_open(&t, method, DIM, DIM);
    ebb_layout_layer table = {.heads = 1, .key_dim = DIM, .value_dim = DIM, .key_order = order};
    if (order) t.head.table = &table;
    head_store(&t, S, D);
    const double e = head_distance(D, S, 1, DIM * DIM) / head_norm(S, DIM * DIM);
    head_close(&t);
    free(D);
    return e;
}

static void test_protecting_the_worst_rows(void **state) {
    (void)state;
    float *S = malloc(16384 * sizeof *S);
    uint16_t worst[128], best[128];
    idem_matrix(S);
    rank_rows(S, worst, true), rank_rows(S, best, false);
    assert_int_equal(worst[0], best[127]);
    const double plain = error_with("int8-h32", S, NULL), good = error_with("damp", S, worst),
                 bad = error_with("damp", S, best);
    if (!(good < .5 * plain)) fail_msg("damp: %.3g, int8-h32: %.3g", good, plain);
    if (!(bad > .9 * plain)) fail_msg("damp with the wrong rows: %.3g, int8-h32: %.3g", bad, plain);
    free(S);
}

/* Columns of very different sizes beside each other: dividing by their RMS and sorting gets the error back. */
static void test_scaling_pays(void **state) {
    (void)state;
    damp_head d;
    one_head plain;
    float S[N], D[N];
    uint64_t seed = 12;
    open_head(&d, "int8-reorder", DK, DV, true);
    head_open(&plain, "int8", DK, DV);
    for (int v = 0; v < DV; v++) {
        d.value_order[v] = (uint16_t)v;
        d.value_scale[v] = v % 8 == 0 ? 30.0f : 1.0f;
        for (int u = 0; u < DK; u++) S[u * DV + v] = d.value_scale[v] * (float)uniform(&seed);
    }
    double e[2] = {0, 0};
    for (int i = 0; i < 2; i++) { /* of the small columns: the large ones drown them */
        head_store(i ? &plain : &d.t, S, D);
        for (int j = 0; j < N; j++)
            if (j % DV % 8) e[i] += pow((double)(D[j] - S[j]), 2);
    }
    assert_true(sqrt(e[0]) < .1 * sqrt(e[1]));
    head_close(&plain);
    close_head(&d);
}

/* ---- stochastic rounding ---- */

/* Every draw gives a neighbour, their mean is x, and FP16 numbers stay. */
static void test_stochastic_fp16(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 300; i++) {
        const float x = (float)(uniform(&seed) * exp2(20 * uniform(&seed) - 8)), a = fabsf(x);
        const double step = exp2(fmax(ilogb((double)a), -14) - 10), below = step * floor(a / step);
        double sum = 0;
        for (uint32_t r = 0; r < 8192; r++) {
            const double y = fabs((double)fp16_to_float(float_to_fp16_stoch(x, r | 0xABCD0000u)));
            assert_true(y == below || y == below + step);
            sum += y;
        }
        assert_true(fabs(sum / 8192 - (double)a) <= step / 8192);
    }
    for (uint32_t h = 0; h < 65536; h++)
        if ((h & 0x7C00u) != 0x7C00u) assert_int_equal(float_to_fp16_stoch(fp16_to_float((uint16_t)h), 8191), h);
    assert_int_equal(float_to_fp16_stoch(1e9f, 8191), 0x7BFF);
    assert_int_equal(float_to_fp16_stoch(-INFINITY, 0), 0xFBFF);
    assert_int_equal(float_to_fp16_stoch(65503.9f, 8191), 0x7BFF);
}

/* Drawn by key and position: the same bits for the same, others for another. */
static void test_stochastic_key(void **state) {
    (void)state;
    damp_head d;
    float S[N], a[N], b[N];
    open_head(&d, "damp:high=fp16-stoch", DK, DV, true);
    heavy_fill(S, DK, DV, 5);
    head_store(&d.t, S, a), head_store(&d.t, S, b);
    assert_memory_equal(a, b, sizeof a);
    d.t.head.pos = 16;
    head_store(&d.t, S, b);
    assert_memory_not_equal(a, b, sizeof a);
    d.t.head.pos = 0, d.t.head.rng_key++;
    head_store(&d.t, S, b);
    assert_memory_not_equal(a, b, sizeof a);
    close_head(&d);
}

/* A slow head, stored at every token: FP16 rows stop decaying, stochastic ones do not (maths 2.8). */
static void test_stagnation(void **state) {
    (void)state;
    static const char *const methods[] = {"damp:rows=128", "damp:rows=128,high=fp16-stoch"};
    double ratio[2];
    for (int m = 0; m < 2; m++) {
        one_head t;
        float S[N];
        head_open(&t, methods[m], DK, DV);
        heavy_fill(S, DK, DV, 6);
        const double before = head_norm(S, N);
        for (int64_t step = 1; step <= 3000; step++) {
            for (int i = 0; i < N; i++) S[i] *= .9998f;
            t.head.pos = step;
            head_store(&t, S, S);
        }
        ratio[m] = head_norm(S, N) / (before * pow(.9998, 3000));
        head_close(&t);
    }
    if (!(ratio[0] > 1.5)) fail_msg("FP16 kept %.3f of what it should", ratio[0]);
    if (!(fabs(ratio[1] - 1) < .02)) fail_msg("FP16, stochastic, kept %.3f of what it should", ratio[1]);
}

/* Tokens one by one, and in steps of up to 8 that cross boundaries before they are committed: the same bits. */
static void steps_equal_tokens(const char *method) {
    enum { TOKENS = 90, NEW = 8 };
    const ebb_state_layer layer = {.kind = EBB_KDA, .key_heads = 1, .heads = 2, .key_dim = 32, .value_dim = 48};
    delta_world w;
    ebb_error error = {EBB_OK, ""};
    float *a = calloc(TOKENS * 96, sizeof *a), *b = calloc(TOKENS * 96, sizeof *b);
    if (world_open(&w, device, method, NULL, layer, 2, NEW, TOKENS, &error)) fail_msg("%s: %s", method, error.text);
    world_inputs(&w, 42, .02f);
    for (int64_t t = 0; t < TOKENS; t++) must(world_run(&w, false, 0, t, 1, a + t * 96, &error), &error);
    for (int64_t t = 0, n; t < TOKENS; t += n) {
        n = min_i64(1 + (int64_t)(mix64((uint64_t)t) % NEW), TOKENS - t);
        must(world_run(&w, false, 1, t, (int32_t)n, b + t * 96, &error), &error);
        must(world_run(&w, false, 1, t, (int32_t)n, b + t * 96, &error), &error); /* repeated, as after a failure */
    }
    assert_memory_equal(a, b, TOKENS * 96 * sizeof *a);
    world_close(&w);
    free(a), free(b);
}

static void test_steps(void **state) {
    (void)state;
    static const char *const methods[] = {"damp:high=fp16-stoch,p=4", "damp:high=fp16-stoch", "damp:low=nvfp4",
                                          "damp:rows=5,low=int4,p=2", "damp-reorder:high=bf16,p=4"};
    for (int i = 0; i < COUNT(methods); i++) steps_equal_tokens(methods[i]);
}

/* ---- layouts ---- */

/* Tables are those of global heads. */
static void test_shards(void **state) {
    (void)state;
    ebb_state_layer both = {.kind = EBB_GDN, .key_heads = 1, .heads = 2, .key_dim = DK, .value_dim = DV}, shard = both;
    shard.heads = 1, shard.head_begin = 1;
    static const char *const methods[] = {"damp:rows=4", "damp-reorder:rows=4"};
    for (int m = 0; m < COUNT(methods); m++) {
        ebb_state_spec spec;
        ebb_layout *layout;
        ebb_error error;
        float S[N], D[N], E[N];
        uint8_t packed[N * 2 + 64];
        must(ebb_state_parse(methods[m], &spec, &error), &error);
        must(default_layout_for(&spec, &both, 1, &layout, &error), &error);
        const ebb_layout_layer *table = ebb_layout_table(layout, 0, NULL);
        const ebb_head first = {.layer = &both, .param = spec.param, .table = table},
                       second = {.layer = &both, .head = 1, .param = spec.param, .table = table},
                       sharded = {.layer = &shard, .param = spec.param, .table = table};
        heavy_fill(S, DK, DV, 1);
        spec.method->codec->encode(&sharded, S, NULL, NULL, packed, NULL);
        spec.method->codec->decode(&second, packed, D);
        spec.method->codec->decode(&first, packed, E);
        assert_true(head_distance(S, D, 1, N) < .02 * head_norm(S, N));
        assert_true(head_distance(S, E, 1, N) > .5 * head_norm(S, N));
        ebb_layout_free(layout);
    }
}

static void lacking(const char *method, const ebb_layout_layer *table, const char *words) {
    ebb_state_spec spec;
    ebb_layout *layout = NULL;
    ebb_state_sizes sizes;
    const ebb_state_layer layer = {.kind = EBB_GDN, .key_heads = 1, .heads = 1, .key_dim = DK, .value_dim = DV};
    ebb_error error = {EBB_OK, ""};
    must(ebb_state_parse(method, &spec, &error), &error);
    if (table) must(ebb_layout_new("damp", 0, table, 1, &layout, &error), &error);
    spec.layout = layout;
    const ebb_status status = ebb_state_size(&spec, &layer, 1, &sizes, &error);
    if (!words) must(status, &error);
    else {
        assert_int_equal(status, EBB_BAD_ARGUMENT);
        if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
        assert_non_null(strstr(error.text, "`ebb calibrate --method damp"));
    }
    ebb_layout_free(layout);
}

static void test_lacking_tables(void **state) {
    (void)state;
    uint64_t s = 1;
    uint16_t *keys = shuffled(1, DK, &s), *values = shuffled(1, DV, &s);
    float scale[DV];
    for (int v = 0; v < DV; v++) scale[v] = 1;
    lacking("damp-w", NULL, "needs a calibrated layout");
    ebb_layout_layer t = {.heads = 1, .key_dim = DK, .value_dim = DV};
    lacking("damp", &t, "no key_order");
    lacking("damp:rows=0", &t, NULL);
    lacking("damp-reorder", &t, "no key_order");
    t.key_order = keys;
    lacking("damp", &t, NULL);
    lacking("damp-reorder", &t, "no value_order");
    t.value_order = values;
    lacking("int8-reorder", &t, "no value_scale");
    t.value_scale = scale;
    lacking("damp-reorder", &t, NULL);
    t.key_order = NULL;
    lacking("int4-reorder", &t, NULL);
    lacking("int8-reorder:rows=1", &t, "no key_order");
    free(keys), free(values);
}

/* The layouts that serve a method have one name, whatever its window and bits. */
static void test_layout_names(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"damp", "damp"}, {"damp-w", "damp"}, {"damp-reorder-w", "damp-reorder"}, {"int4-reorder", "damp-reorder"},
        {"int8", NULL},   {"fp32", NULL}};
    for (int i = 0; i < COUNT(pairs); i++) {
        ebb_state_spec spec;
        ebb_error error;
        must(ebb_state_parse(pairs[i][0], &spec, &error), &error);
        const char *name = ebb_state_layout_name(spec.method);
        if (!pairs[i][1]) assert_null(name);
        else assert_string_equal(name, pairs[i][1]);
    }
}

/* ---- extremes ---- */

/* Finite stays finite, with scales at both ends of what a layout may have. */
static void test_extremes(void **state) {
    (void)state;
    static const char *const methods[] = {"damp:rows=5",           "damp:rows=5,low=int4,zero=paper",
                                          "damp:rows=5,low=nvfp4", "damp:high=fp16-stoch",
                                          "damp:high=bf16,rows=5", "damp-reorder:rows=5",
                                          "int8-reorder",          "int4-reorder"};
    static const float sizes[] = {0, 1e-42f, 1e-30f, 1e-6f, 1, 6e4f, 1e30f, 3.4028234e38f},
                       scales[] = {1, 1e-20f, 1e20f, 3, 7, 1e19f, 3.3e19f};
    float S[N], D[N];
    for (int m = 0; m < COUNT(methods); m++)
        for (int z = 0; z < COUNT(sizes); z++)
            for (int c = 0; c < COUNT(scales); c++) {
                damp_head d;
                uint64_t seed = 1;
                open_head(&d, methods[m], DK, DV, true);
                for (int v = 0; v < DV; v++) d.value_scale[v] = scales[c];
                const bool bf16 = strstr(methods[m], "bf16") && sizes[z] > 3e38f; /* rounds to infinity there */
                for (int i = 0; i < N; i++) S[i] = sizes[z] * (float)(i % 7 ? uniform(&seed) : 1);
                head_store(&d.t, S, D);
                for (int i = 0; i < N && !bf16; i++)
                    if (!isfinite(D[i]))
                        fail_msg("%s, size %g, scale %g: %g became %g", methods[m], (double)sizes[z], (double)scales[c],
                                 (double)S[i], (double)D[i]);
                S[3] = NAN, S[200] = INFINITY, S[300] = -INFINITY;
                head_store(&d.t, S, D);
                close_head(&d);
            }
}

static int setup(void **state) {
    (void)state;
    return ebb_device_open("cpu", NULL, &device, NULL) != EBB_OK;
}
static int teardown(void **state) {
    (void)state;
    ebb_device_close(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_nvfp4_rows),
        cmocka_unit_test(test_reorder_is_the_definition),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_undone),
        cmocka_unit_test(test_protecting_the_worst_rows),
        cmocka_unit_test(test_scaling_pays),
        cmocka_unit_test(test_stochastic_fp16),
        cmocka_unit_test(test_stochastic_key),
        cmocka_unit_test(test_stagnation),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_lacking_tables),
        cmocka_unit_test(test_layout_names),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
