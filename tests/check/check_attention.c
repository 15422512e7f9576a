/* check/check_attention.c: every attention row against op/ref on stores of every method, and its promise that a row of
 * a tile has the bits it has alone. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/kv_int.h"

enum { SLOT = 1, SLOTS = 2 };

typedef enum input_kind { RANDOM, LARGE, EQUAL, ONE_HOT, RISING, ZERO, INPUT_KINDS } input_kind;
/* Scores of a few hundred are known to some 1e-5 in FP32, whatever the order of the sums; so are their weights. */
static const struct {
    const char *name;
    double tolerance;
} kinds[INPUT_KINDS] = {{"random", 1e-5},  {"large", 1e-3},  {"equal", 1e-5},
                        {"one-hot", 1e-3}, {"rising", 1e-3}, {"zero", 1e-5}};

/* Heads, and dims of K and V; rest > 0 or v == 0: an MLA latent of `k` dims, with `rest` more in the key only. */
typedef struct attn_shape {
    int32_t q_heads, heads, k, v, rest;
} attn_shape;

static ebb_kv_layer layer_of(const attn_shape *s) {
    ebb_kv_layer layer = {
        .q_heads = s->q_heads, .heads = s->heads, .parts = 2, .scale = 1.0f / sqrtf((float)(s->k + s->rest))};
    layer.part[0].dims = (int16_t)s->k;
    layer.part[0].role = s->v ? EBB_ROLE_K : EBB_ROLE_K | EBB_ROLE_V;
    layer.part[1].dims = (int16_t)(s->v ? s->v : s->rest);
    layer.part[1].role = s->v ? EBB_ROLE_V : EBB_ROLE_K;
    if (!layer.part[1].dims) layer.parts = 1;
    return layer;
}

/* A store of one layer filled with `tokens` tokens, and as many query rows as a caller wants. */
typedef struct store {
    ebb_device *device;
    ebb_kv_spec spec;
    ebb_kv_layer layer;
    kv_shape kv;
    ebb_kv_pool *pool;
    const ebb_kv_view *view;
    int64_t tokens;
    float size; /* of its values: an error of a weight shows times it */
} store;

static void key_of(rng *r, input_kind kind, int64_t token, int64_t tokens, int32_t dim, float *key) {
    float size = kind == LARGE ? 30.0f : kind == ZERO ? 0.0f : 1.0f;
    for (int32_t d = 0; d < dim; d++) key[d] = size * rng_normal(r);
    if (kind == EQUAL)
        for (int32_t d = 0; d < dim; d++) key[d] = (float)(d % 3);
    if (kind == ONE_HOT)
        for (int32_t d = 0; d < dim; d++) key[d] = token == tokens / 3 ? 64.0f : -64.0f;
    if (kind == RISING)
        for (int32_t d = 0; d < dim; d++) key[d] = (float)token * 0.25f;
}

static bool store_open(store *s, ebb_device *device, const char *method, const attn_shape *shape, int64_t tokens,
                       input_kind kind, rng *r) {
    *s = (store){.device = device, .layer = layer_of(shape), .tokens = tokens, .size = 1};
    s->kv = kv_shape_of(&s->layer);
    ebb_kv_pool_config config = {sizeof config, &s->spec, &s->layer, 1, SLOTS, tokens, 0};
    ebb_planes planes;
    int32_t group;
    if (ebb_kv_parse(method, &s->spec, NULL) || ebb_kv_pool_open(device, &config, &s->pool, NULL)) return false;
    s->view = ebb_kv_pool_view(s->pool, 0);
    if (ebb_kv_pool_reserve(s->pool, SLOT, tokens, NULL) ||
        s->spec.method->codec->layout(&s->layer, s->spec.param, &group, &planes, NULL)) {
        ebb_kv_pool_close(s->pool);
        return false;
    }
    float rows[2 * EBB_MAX_HEAD_DIM];
    uint8_t packed[2 * EBB_MAX_HEAD_DIM * sizeof(float)];
    for (int64_t t = 0; t < tokens; t++) {
        for (int32_t h = 0; h < shape->heads; h++) {
            key_of(r, kind, t, tokens, s->kv.k, rows);
            for (int32_t d = s->kv.k; d < s->kv.all; d++) rows[d] = rng_normal(r);
            for (int32_t d = 0; s->kv.shared && d < s->kv.v; d++) s->size = fmaxf(s->size, fabsf(rows[s->kv.v_at + d]));
            kv_put(s->view, &planes, SLOT, h, t, rows, packed, NULL);
        }
    }
    return true;
}

static void run_tile(const attn_row *row, const store *s, int32_t head, int32_t n, float *q, const int64_t *limit,
                     float *out, void *scratch) {
    attn_tile tile = {.s = s->view, .slot = SLOT, .head = head, .n = n};
    for (int32_t i = 0; i < n; i++) {
        tile.q[i] = q + i * s->kv.k;
        tile.out[i] = out + i * s->kv.v;
        tile.limit[i] = limit[i];
    }
    row->run(&tile, scratch);
}

/* Limits as a tile has them: rising, a few of them equal; the first at any distance from a block. */
static void limits_of(rng *r, int64_t tokens, int32_t n, int64_t *limit) {
    limit[0] = 1 + rng_below(r, tokens - n / 2);
    for (int32_t i = 1; i < n; i++) limit[i] = min_i64(tokens, limit[i - 1] + rng_below(r, 2));
}

static void check_tile(check *c, const attn_row *row, const attn_row *ref, const store *s, int32_t n, double tolerance,
                       rng *r) {
    enum { MOST = ATTN_TILE * 2 * EBB_MAX_HEAD_DIM };
    int32_t k = s->kv.k, v = s->kv.v, head = (int32_t)rng_below(r, s->layer.heads);
    float *q = malloc(MOST * sizeof *q), *out = malloc(MOST * sizeof *out), *want = malloc(MOST * sizeof *want);
    void *scratch = aligned_new(row->scratch(s->view)), *ref_scratch = aligned_new(ref->scratch(s->view));
    int64_t limit[ATTN_TILE];
    if (!q || !out || !want || !scratch || !ref_scratch) {
        check_fail(c, "no memory");
        goto done;
    }
    for (int32_t i = 0; i < n * k; i++) q[i] = rng_normal(r);
    limits_of(r, s->tokens, n, limit);
    run_tile(ref, s, head, n, q, limit, want, ref_scratch);
    run_tile(row, s, head, n, q, limit, out, scratch);
    double far = check_distance(out, want, n * v, tolerance * (double)s->size, tolerance);
    if (!(far <= 1)) check_fail(c, "%d rows are %.3g times the tolerance from ref", n, far);
    for (int32_t i = 0; i < n; i++) {
        run_tile(row, s, head, 1, q + i * k, limit + i, want, scratch);
        if (!check_same_bits(want, out + i * v, v)) check_fail(c, "row %d of %d has other bits alone", i, n);
    }
done:
    free(q), free(out), free(want), free(scratch), free(ref_scratch);
}

static const attn_row *ref_of(const ebb_device *device) {
    const attn_row *const *row = rows_of(device)->attn;
    while (row[1]) row++; /* the list ends with ref */
    return *row;
}

static void check_row_kind(check *c, ebb_device *device, const attn_row *row, const char *method, input_kind kind,
                           rng *r) {
    static const attn_shape shapes[] = {{4, 2, 128, 128, 0},  {1, 1, 16, 16, 0},   {5, 1, 48, 48, 0},
                                        {16, 2, 256, 256, 0}, {3, 3, 80, 80, 0},   {4, 2, 64, 16, 0},
                                        {2, 1, 16, 144, 0},   {32, 1, 512, 0, 64}, {4, 1, 128, 0, 32},
                                        {6, 2, 48, 0, 16},    {3, 1, 16, 0, 0}};
    static const int32_t tiles[] = {1, 2, 3, 4, 5, 7, 31, ATTN_TILE};
    char what[64];
    snprintf(what, sizeof what, "%s, %s", method, kinds[kind].name);
    check_row(c, "attention", row->id.name, what);
    for (int32_t i = 0; i < COUNT(shapes); i++) {
        store s;
        if (!store_open(&s, device, method, &shapes[i], 300 + 9 * i, kind, r)) {
            check_fail(c, "no store of %d dims", shapes[i].k);
            continue;
        }
        if (row->refuse(s.view)) check_fail(c, "refuses %d dims: %s", shapes[i].k, row->refuse(s.view));
        else
            for (int32_t t = 0; t < COUNT(tiles); t++)
                check_tile(c, row, ref_of(device), &s, tiles[t], kinds[kind].tolerance, r);
        ebb_kv_pool_close(s.pool);
    }
    check_done(c);
}

/* ---- bench: 4 query heads on 2 KV heads of 128 dims, and 32 on one MLA latent of 512 + 64 ---- */

typedef struct bench {
    const attn_row *row;
    const store *s;
    int64_t from; /* queries from .. tokens - 1, each sees itself and what is before it */
    float *q, *out;
    void *scratch;
} bench;

static void bench_run(void *ctx) {
    const bench *b = ctx;
    const ebb_kv_layer *layer = &b->s->layer;
    int64_t group = layer->q_heads / layer->heads, rows = (b->s->tokens - b->from) * group;
    for (int32_t head = 0; head < layer->heads; head++) {
        for (int64_t first = 0; first < rows; first += ATTN_TILE) {
            int64_t limit[ATTN_TILE], n = min_i64(ATTN_TILE, rows - first), at = head * rows + first;
            for (int64_t i = 0; i < n; i++) limit[i] = b->from + (first + i) / group + 1;
            run_tile(b->row, b->s, head, (int32_t)n, b->q + at * b->s->kv.k, limit, b->out + at * b->s->kv.v,
                     b->scratch);
        }
    }
}

static void bench_one(check *c, ebb_device *device, const attn_row *row, const char *method, const attn_shape *shape,
                      int64_t tokens, int64_t from, rng *r) {
    store s;
    if (!store_open(&s, device, method, shape, tokens, RANDOM, r)) return;
    int64_t rows = (tokens - from) * shape->q_heads, values = rows * s.kv.k;
    bench b = {row,
               &s,
               from,
               malloc((size_t)values * sizeof(float)),
               malloc((size_t)(rows * s.kv.v) * sizeof(float)),
               aligned_new(row->scratch(s.view))};
    size_t token_bytes = 0;
    ebb_kv_token_bytes(&s.spec, &s.layer, &token_bytes, NULL);
    if (b.q && b.out && b.scratch) {
        for (int64_t i = 0; i < values; i++) b.q[i] = rng_normal(r);
        char what[64];
        snprintf(what, sizeof what, "%s%s, %s of %lld", method, s.kv.shared ? " latents" : "",
                 from ? "decode on a context" : "prefill", (long long)tokens);
        double pairs = 0.5 * (double)rows * (double)(tokens + from + 1); /* query rows times their keys */
        check_report(c, "attention", row->id.name, what, check_time(bench_run, &b, 0.05),
                     (double)tokens * (double)token_bytes, pairs * 2 * (s.kv.k + s.kv.v));
    }
    free(b.q), free(b.out), free(b.scratch);
    ebb_kv_pool_close(s.pool);
}

static void bench_row(check *c, ebb_device *device, const attn_row *row, rng *r) {
    static const char *const methods[] = {"fp32", "bf16"};
    static const attn_shape plain = {4, 2, 128, 128, 0}, latent = {32, 1, 512, 0, 64};
    for (int32_t m = 0; m < COUNT(methods); m++) {
        bench_one(c, device, row, methods[m], &plain, 1 << 17, (1 << 17) - 1, r); /* 128 MiB and more: from memory */
        bench_one(c, device, row, methods[m], &plain, 512, 0, r);
        bench_one(c, device, row, methods[m], &latent, 1 << 15, (1 << 15) - 1, r);
        bench_one(c, device, row, methods[m], &latent, 128, 0, r);
    }
}

void check_attention(check *c) {
    static const char *const methods[] = {"fp32", "fp16", "bf16"};
    ebb_device_config config = {.size = sizeof config, .threads = 1};
    ebb_device *device;
    if (ebb_device_open("cpu", &config, &device, NULL)) {
        check_row(c, "attention", "-", "device");
        check_fail(c, "cannot open the CPU device");
        check_done(c);
        return;
    }
    rng r = {20};
    for (const attn_row *const *row = rows_of(device)->attn; *row; row++) {
        if (!check_can(c, &(*row)->id)) continue;
        for (int32_t m = 0; m < COUNT(methods); m++)
            for (input_kind kind = 0; kind < INPUT_KINDS; kind++) check_row_kind(c, device, *row, methods[m], kind, &r);
        if (c->bench) bench_row(c, device, *row, &r);
    }
    ebb_device_close(device);
}
