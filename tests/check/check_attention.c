/* check/check_attention.c: every attention row against op/ref on stores of every method and in every mode of prefill,
 * and its promise that a row of a tile has the bits it has alone. Stores that a row refuses are left to the next. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/attention.h"

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
    ebb_kv_pool_config config = {sizeof config, &s->spec, &s->layer, 1, SLOTS, tokens, 0, 0, NULL};
    ebb_planes planes;
    ebb_kv_rule rule;
    if (ebb_kv_parse(method, &s->spec, NULL) || ebb_kv_pool_open(device, &config, &s->pool, NULL)) return false;
    s->view = ebb_kv_pool_view(s->pool, 0);
    if (ebb_kv_pool_reserve(s->pool, SLOT, tokens, NULL) ||
        s->spec.method->codec->layout(&s->layer, s->spec.param, &rule, &planes, NULL)) {
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
        tile.limit[i] = tile.codes[i] = tile.values[i] = limit[i];
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

/* ---- low-bit stores and the modes of prefill ---- */

static const struct {
    const char *method, *prefill;
} low_bits[] = {
    {"k8v8", "full"},
    {"k4v4", "full"},
    {"k4v2", "sage_w0"},
    {"k2v4:grid=paper", "full"},
    {"k4v4:window=256", "sage_w"},
    {"k8v8-vert", "full"},
    {"k4v4-vert:window=0", "full"},
    {"hyquant", "vquant_vert"},
    {"hyquant:wide=bf16,window=64", "vquant_vert:window=64"},
    {"hyquant-k2v4:ratio=0.3", "vquant_vert:ratio=0.3"},
    {"hyquant:select=prompt", "vquant_vert:select=prompt"},
    {"hyquant:select=paper", "vquant_vert:select=paper"},
    {"k4v4-vert", "sparse_only"},
    {"bf16", "sage_w0"},
    {"fp16", "sage_w:window=100,pv=fp8"},
    {"fp32", "vquant_vert:window=0"},
    {"bf16", "sparse_only:select=paper"},
    {"kivi4", "full"},
    {"kivi2", "sage_w"},
    {"kivi-hqq", "full"},
};

/* A prompt and a few generated tokens, through ref. */
static bool store_feed(store *s, input_kind kind, rng *r) {
    const int64_t prompt = s->tokens - 3, heads = s->layer.heads, q_heads = s->layer.q_heads, k = s->kv.k, v = s->kv.v;
    float *q = malloc((size_t)(prompt * q_heads * k) * sizeof *q),
          *key = malloc((size_t)(prompt * heads * k) * sizeof *key),
          *value = malloc((size_t)(prompt * heads * v) * sizeof *value),
          *out = malloc((size_t)(prompt * q_heads * v) * sizeof *out);
    ebb_plan plan;
    ebb_queue *queue = NULL;
    bool good = q && key && value && out && !ebb_attn_plan(s->device, s->view, "ref", 1, 1, prompt, &plan, NULL) &&
                !ebb_queue_open(s->device, plan.scratch, &queue, NULL);
    for (int64_t pos = 0, n = prompt; good && pos < s->tokens; pos += n, n = 1) {
        for (int64_t i = 0; i < n * q_heads * k; i++) q[i] = rng_normal(r);
        for (int64_t i = 0; i < n * heads; i++) key_of(r, kind, pos + i / heads, s->tokens, (int32_t)k, key + i * k);
        for (int64_t i = 0; i < n * heads * v; i++) value[i] = rng_normal(r);
        for (int64_t i = 0; s->kv.shared && i < n * heads; i++)
            for (int64_t d = 0; d < v; d++) s->size = fmaxf(s->size, fabsf(key[i * k + s->kv.v_at + d]));
        ebb_attn_args args = {.size = sizeof args,
                              .s = *s->view,
                              .b = {1, n, (int32_t[]){SLOT}, (int32_t[]){0, (int32_t)n}, (int64_t[]){pos}},
                              .q = {q, EBB_FP32, 3, {n, q_heads, k}, {q_heads * k, k, 1}},
                              .k = {key, EBB_FP32, 3, {n, heads, k}, {heads * k, k, 1}},
                              .out = {out, EBB_FP32, 3, {n, q_heads, v}, {q_heads * v, v, 1}},
                              .prompt = pos == 0};
        if (!s->kv.shared) args.v = (ebb_tensor){value, EBB_FP32, 3, {n, heads, v}, {heads * v, v, 1}};
        good = !ebb_attn(queue, &plan, &args, NULL);
    }
    ebb_queue_close(queue);
    free(q), free(key), free(value), free(out);
    return good;
}

static bool low_open(store *s, ebb_device *device, int32_t which, const attn_shape *shape, int64_t tokens,
                     input_kind kind, rng *r) {
    *s = (store){.device = device, .layer = layer_of(shape), .tokens = tokens, .size = 1};
    s->kv = kv_shape_of(&s->layer);
    ebb_prefill prefill;
    ebb_kv_pool_config config = {sizeof config, &s->spec, &s->layer, 1, SLOTS, tokens, 0, 1, &prefill};
    if (ebb_kv_parse(low_bits[which].method, &s->spec, NULL) ||
        ebb_prefill_parse(low_bits[which].prefill, &prefill, NULL) || ebb_kv_pool_open(device, &config, &s->pool, NULL))
        return false;
    s->view = ebb_kv_pool_view(s->pool, 0);
    if (!ebb_kv_pool_reserve(s->pool, SLOT, tokens, NULL) && store_feed(s, kind, r)) return true;
    ebb_kv_pool_close(s->pool);
    return false;
}

/* A row of a prompt (mode) or a generated one. */
static void low_row(attn_tile *tile, int32_t i, int64_t at, int32_t query_head) {
    const ebb_kv_view *s = tile->s;
    const attn_choice choice = attn_choice_of(s);
    const int64_t from = tile->mode && choice.kept && attn_by_prompt(&choice) ? 0 : at;
    tile->limit[i] = at + 1;
    tile->codes[i] = ebb_kv_bound(&s->rule, EBB_ROLE_K, from);
    tile->values[i] = ebb_kv_bound(&s->rule, EBB_ROLE_V, from);
    if (!tile->mode) return;
    tile->low[i] = attn_low(&s->prefill, at);
    tile->mark[i] = kv_prefill_mark(s, query_head);
}

static void check_low_tile(check *c, const attn_row *row, const attn_row *ref, const store *s, int32_t n, int32_t mode,
                           double tolerance, rng *r) {
    const int32_t k = s->kv.k, v = s->kv.v, group = s->layer.q_heads / s->layer.heads;
    float *q = malloc((size_t)(ATTN_TILE * k) * sizeof *q), *out = malloc((size_t)(ATTN_TILE * v) * sizeof *out),
          *want = malloc((size_t)(ATTN_TILE * v) * sizeof *want);
    void *scratch = aligned_new(row->scratch(s->view)), *ref_scratch = aligned_new(ref->scratch(s->view));
    attn_tile tile = {.s = s->view, .slot = SLOT, .head = (int32_t)rng_below(r, s->layer.heads), .mode = mode, .n = n};
    const int64_t oldest = s->view->rule.tail ? s->tokens - 200 : 0; /* of which the tail has all */
    const int64_t first = oldest + rng_below(r, s->tokens - oldest - ATTN_TILE);
    if (!q || !out || !want || !scratch || !ref_scratch) {
        check_fail(c, "no memory");
        goto done;
    }
    for (int32_t i = 0; i < n * k; i++) q[i] = rng_normal(r);
    for (int32_t i = 0; i < n; i++) low_row(&tile, i, first + i / group, i % group);
    for (int32_t i = 0; i < n; i++) tile.q[i] = q + i * k, tile.out[i] = want + i * v;
    ref->run(&tile, ref_scratch);
    for (int32_t i = 0; i < n; i++) tile.out[i] = out + i * v;
    row->run(&tile, scratch);
    double far = check_distance(out, want, n * v, tolerance * (double)s->size, tolerance);
    if (!(far <= 1)) check_fail(c, "%d rows at %lld are %.3g times the tolerance from ref", n, (long long)first, far);
    for (int32_t i = 0; i < n; i++) {
        attn_tile one = tile;
        one.n = 1, one.q[0] = q + i * k, one.out[0] = want;
        low_row(&one, 0, first + i / group, i % group);
        row->run(&one, scratch);
        if (!check_same_bits(want, out + i * v, v)) check_fail(c, "row %d of %d has other bits alone", i, n);
    }
done:
    free(q), free(out), free(want), free(scratch), free(ref_scratch);
}

/* Fast rows have the queries of codes in 16 bits and their weights in 15: scores are known to 1e-4, where the FP16
 * scale of a key says 5e-4. Weights in FP16 may round to either side: that shows in a thousandth. */
static void check_low_bits(check *c, ebb_device *device, int32_t which, input_kind kind, rng *r) {
    static const attn_shape shapes[] = {{4, 2, 64, 64, 0}, {3, 1, 96, 96, 0}, {2, 1, 128, 0, 32}, {8, 1, 32, 32, 0}};
    static const int32_t tiles[] = {1, 3, 4, 31, ATTN_TILE};
    char what[96];
    store s;
    const bool open = low_open(&s, device, which, &shapes[(which + (int32_t)kind) % COUNT(shapes)], 560, kind, r);
    const double words = 10 * kinds[kind].tolerance;
    snprintf(what, sizeof what, "%s, %s, %s", low_bits[which].method, low_bits[which].prefill, kinds[kind].name);
    for (const attn_row *const *row = rows_of(device)->attn; *row; row++) {
        if (!check_can(c, &(*row)->id)) continue;
        if (open && *row != ref_of(device) && (*row)->refuse(s.view)) continue; /* the plan takes the next one */
        check_row(c, "attention", (*row)->id.name, what);
        if (!open) check_fail(c, "no store");
        for (int32_t t = 0; open && t < COUNT(tiles); t++) {
            check_low_tile(c, *row, ref_of(device), &s, tiles[t], EBB_PREFILL_FULL, words, r);
            if (s.view->prefill.mode != EBB_PREFILL_FULL)
                check_low_tile(c, *row, ref_of(device), &s, tiles[t], s.view->prefill.mode, fmax(words, 1e-3), r);
        }
        check_done(c);
    }
    if (open) ebb_kv_pool_close(s.pool);
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
    }
    for (int32_t i = 0; i < COUNT(low_bits); i++)
        for (input_kind kind = 0; kind < INPUT_KINDS; kind++) check_low_bits(c, device, i, kind, &r);
    ebb_device_close(device);
}
