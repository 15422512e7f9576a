/* check/bench_attention.c: softmax attention for ebb-check --bench, with the heads of Qwen3.5-0.8B (8 query heads on 2
 * KV heads of 256): a token behind contexts of several lengths, and whole prompts. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { Q_HEADS = 8, KV_HEADS = 2, DIM = 256 };

static const struct {
    const char *method;
    int64_t context, n; /* tokens before, and of the call */
} shapes[] = {{"fp16", 1024, 1},    {"fp16", 4096, 1}, {"fp16", 65536, 1}, {"k8v8", 4096, 1}, {"k4v4", 4096, 1},
              {"hyquant", 4096, 1}, {"fp16", 0, 8},    {"fp16", 0, 512},   {"fp16", 0, 1024}, {"hyquant", 0, 1024}};

typedef struct attn_ctx {
    ebb_kv_pool *pool;
    ebb_queue *queue;
    ebb_plan plan;
    int64_t pos, n;
    float *q, *k, *v, *out;
} attn_ctx;

/* A prompt from position 0, or one generated token at `pos`, again and again: repeating a step is harmless. */
static ebb_status run(void *p, ebb_error *error) {
    const attn_ctx *c = p;
    const int64_t n = c->n;
    ebb_attn_args a = {.size = sizeof a, .s = *ebb_kv_pool_view(c->pool, 0), .prompt = c->pos == 0};
    a.b = (ebb_batch){1, n, (int32_t[]){0}, (int32_t[]){0, (int32_t)n}, (int64_t[]){c->pos}};
    a.q = (ebb_tensor){c->q, EBB_FP32, 3, {n, Q_HEADS, DIM}, {Q_HEADS * DIM, DIM, 1}};
    a.k = (ebb_tensor){c->k, EBB_FP32, 3, {n, KV_HEADS, DIM}, {KV_HEADS * DIM, DIM, 1}};
    a.v = (ebb_tensor){c->v, EBB_FP32, 3, {n, KV_HEADS, DIM}, {KV_HEADS * DIM, DIM, 1}};
    a.out = (ebb_tensor){c->out, EBB_FP32, 3, {n, Q_HEADS, DIM}, {Q_HEADS * DIM, DIM, 1}};
    return ebb_attn(c->queue, &c->plan, &a, error);
}

/* Put `tokens` tokens into the cache as a prompt. The attention that this costs grows with their square, so long
 * contexts of the plain 16-bit method are written into the pages: every 16 bits are a number of size 1. */
static ebb_status fill(attn_ctx *c, int64_t tokens, ebb_error *error) {
    const ebb_kv_view *view = ebb_kv_pool_view(c->pool, 0);
    if (!view->rule.tail) {
        uint16_t *numbers = (uint16_t *)view->pages;
        const int64_t n = (tokens / view->page + 1) * view->page_bytes / 2;
        rng r = {11};
        for (int64_t i = 0; i < n; i++) numbers[i] = (uint16_t)((rng_next(&r) & 0x83FF) | 0x3800);
        return EBB_OK;
    }
    attn_ctx prompt = *c;
    prompt.pos = 0, prompt.n = tokens;
    return run(&prompt, error);
}

static ebb_status attention_run(bench *b, int32_t shape, ebb_error *error) {
    const int64_t context = shapes[shape].context, n = shapes[shape].n, longest = n > 1 ? n : context;
    ebb_kv_layer layer = {.q_heads = Q_HEADS, .heads = KV_HEADS, .parts = 2, .scale = 1.0f / 16};
    layer.part[0].dims = layer.part[1].dims = DIM;
    layer.part[0].role = EBB_ROLE_K, layer.part[1].role = EBB_ROLE_V;
    ebb_kv_spec spec;
    ebb_prefill prefill;
    ebb_kv_cost cost;
    attn_ctx ctx[BENCH_PLACES] = {{0}}, base = {.pos = context, .n = n};
    ebb_kv_pool_config config = {sizeof config, &spec, &layer, 1, 1, context + n, 0, 1, &prefill};
    ebb_status status = ebb_kv_parse(shapes[shape].method, &spec, error);
    if (!status) status = ebb_kv_prefill(&spec, &prefill, error);
    if (!status) status = ebb_kv_layer_cost(&spec, &prefill, &layer, 0, context + n, 1, &cost, error);
    if (!status) status = ebb_kv_pool_open(b->place[0].device, &config, &base.pool, error);
    if (!status) status = ebb_kv_pool_reserve(base.pool, 0, context + n, error);
    base.q = bench_floats(longest * Q_HEADS * DIM, 1), base.out = bench_floats(longest * Q_HEADS * DIM, 2);
    base.k = bench_floats(longest * KV_HEADS * DIM, 3), base.v = bench_floats(longest * KV_HEADS * DIM, 4);
    if (!status && (!base.q || !base.out || !base.k || !base.v)) status = bench_no_memory(error);
    if (status) goto done;
    /* query rows times their keys; the codes of the cache are read once, or written once */
    const double pairs = Q_HEADS * (double)n * ((double)context + 0.5 * (double)(n + 1));
    const double bytes = (double)(context + n) * (double)cost.token + 4.0 * (double)n * DIM * 2 * (Q_HEADS + KV_HEADS);
    bench_begin(b, bytes, pairs * 4 * DIM, bytes, "%s, %s %lld tokens", shapes[shape].method,
                n > 1 ? "a prompt of" : "a token behind", (long long)longest);
    for (int32_t i = 0, filled = n > 1; i < b->places && !status; i++) {
        const bench_place *place = &b->place[i];
        if (!bench_wants(b, i)) continue;
        ctx[i] = base;
        status = ebb_attn_plan(place->device, ebb_kv_pool_view(base.pool, 0), NULL, 1, 1, longest, &ctx[i].plan, error);
        if (!status) status = ebb_queue_open(place->device, ctx[i].plan.scratch, &ctx[i].queue, error);
        if (status || strcmp(ctx[i].plan.row_name, place->row)) continue;
        if (!filled) status = fill(&ctx[i], context, error), filled = 1;
        bench_add(b, i, 1, run, &ctx[i]);
    }
    if (!status) status = bench_end(b, error);
done:
    for (int32_t i = 0; i < BENCH_PLACES; i++) ebb_queue_close(ctx[i].queue);
    ebb_kv_pool_close(base.pool);
    free(base.q), free(base.out), free(base.k), free(base.v);
    return status;
}

const bench_family bench_attention = {"attention", COUNT(shapes), attention_run};
