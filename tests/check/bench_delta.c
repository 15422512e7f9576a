/* check/bench_delta.c: the delta rule for ebb-check --bench: a token of a layer under several state methods (family
 * delta), and prompts in chunks (family chunk). 32 heads of 128 x 128. */
#include "bench.h"

#include "../default_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 32, DIM = 128, TOKEN = HEADS * DIM, MOST_LAYERS = 24, MOST_SEQS = 64, BANK = 128, PROMPT = 1024 };

typedef struct delta_world { /* what the cases of a shape share */
    int32_t n_layers, seqs, kind;
    int64_t tokens; /* of the inputs */
    ebb_state_layer layer[MOST_LAYERS];
    ebb_state_spec spec;
    ebb_layout *layout;
    float *q, *k, *v, *g, *beta;
    int64_t gates; /* floats of g a token */
} delta_world;

typedef struct delta_ctx {
    const delta_world *w;
    ebb_state_pool *pool;
    ebb_queue *queue;
    ebb_plan plan;
    float *out;
    int32_t slot[MOST_SEQS], cu[MOST_SEQS + 1], layer, calls;
    int64_t pos[MOST_LAYERS][MOST_SEQS];
} delta_ctx;

static void world_close(delta_world *w) {
    ebb_layout_free(w->layout);
    free(w->q), free(w->k), free(w->v), free(w->g), free(w->beta);
}

/* Keys and queries of length 1, values of size 1, decays of -0.01 to -0.1 a token. */
static ebb_status world_open(delta_world *w, const char *method, int32_t kind, int32_t n_layers, int32_t seqs,
                             int64_t tokens, ebb_error *error) {
    *w = (delta_world){.n_layers = n_layers, .seqs = seqs, .kind = kind, .tokens = tokens};
    w->gates = kind == EBB_GDN ? HEADS : TOKEN;
    for (int32_t i = 0; i < n_layers; i++)
        w->layer[i] = (ebb_state_layer){
            .kind = kind, .key_heads = HEADS, .heads = HEADS, .key_dim = DIM, .value_dim = DIM, .index = i};
    w->q = bench_floats(tokens * TOKEN, 1), w->k = bench_floats(tokens * TOKEN, 2);
    w->v = bench_floats(tokens * TOKEN, 3), w->g = bench_floats(tokens * w->gates, 4);
    w->beta = bench_floats(tokens * HEADS, 5);
    if (!w->q || !w->k || !w->v || !w->g || !w->beta) return bench_no_memory(error);
    for (int64_t i = 0; i < tokens * TOKEN; i++) w->q[i] *= 0.0884f, w->k[i] *= 0.0884f; /* 128^-1/2 */
    for (int64_t i = 0; i < tokens * w->gates; i++) w->g[i] = -0.01f - 0.03f * fminf(3.0f, fabsf(w->g[i]));
    for (int64_t i = 0; i < tokens * HEADS; i++) w->beta[i] = 1 / (1 + expf(-w->beta[i]));
    const ebb_status status = ebb_state_parse(method, &w->spec, error);
    return status ? status : default_layout_for(&w->spec, w->layer, n_layers, &w->layout, error);
}

static void ctx_close(delta_ctx *c) {
    ebb_queue_close(c->queue);
    ebb_state_pool_close(c->pool);
    free(c->out);
    *c = (delta_ctx){0};
}

/* False: `row` does not serve this store, another would. */
static ebb_status ctx_open(delta_ctx *c, const delta_world *w, const bench_place *place, int64_t out_tokens,
                           int64_t max_tokens, bool *served, ebb_error *error) {
    const ebb_state_pool_config config = {.size = sizeof config,
                                          .spec = &w->spec,
                                          .layers = w->layer,
                                          .n_layers = w->n_layers,
                                          .slots = w->seqs,
                                          .max_new = 1};
    *c = (delta_ctx){.w = w, .out = bench_floats(out_tokens * TOKEN, 6)};
    ebb_status status = c->out ? ebb_state_pool_open(place->device, &config, &c->pool, error) : bench_no_memory(error);
    if (!status)
        status = ebb_delta_plan(place->device, ebb_state_pool_view(c->pool, 0), NULL, 0, w->seqs, 1, max_tokens,
                                &c->plan, error);
    if (!status) status = ebb_queue_open(place->device, c->plan.scratch, &c->queue, error);
    for (int32_t i = 0; i < w->seqs; i++) c->slot[i] = i, c->cu[i + 1] = i + 1;
    *served = !status && !strcmp(c->plan.row_name, place->row) && !strcmp(c->plan.chunk_name, place->row);
    return status;
}

static ebb_delta_args args_of(const delta_ctx *c, int32_t layer, int64_t from, int64_t n) {
    const delta_world *w = c->w;
    const int64_t gates = w->gates / HEADS;
    const ebb_tensor heads = {NULL, EBB_FP32, 3, {n, HEADS, DIM}, {TOKEN, DIM, 1}};
    ebb_delta_args a = {.size = sizeof a, .s = *ebb_state_pool_view(c->pool, layer)};
    a.q = a.k = a.v = a.out = heads;
    a.q.data = w->q + from * TOKEN, a.k.data = w->k + from * TOKEN, a.v.data = w->v + from * TOKEN;
    a.out.data = c->out;
    a.g = (ebb_tensor){w->g + from * w->gates, EBB_FP32, 3, {n, HEADS, gates}, {w->gates, gates, 1}};
    a.beta = (ebb_tensor){w->beta + from * HEADS, EBB_FP32, 2, {n, HEADS}, {HEADS, 1}};
    return a;
}

/* ---- family delta: a token ---- */

static ebb_status step(delta_ctx *c, int32_t layer, ebb_error *error) {
    const int32_t seqs = c->w->seqs;
    ebb_delta_args a = args_of(c, layer, c->pos[layer][0] % (BANK - MOST_SEQS), seqs);
    a.b = (ebb_batch){seqs, seqs, c->slot, c->cu, c->pos[layer]};
    const ebb_status status = ebb_delta_step(c->queue, &c->plan, &a, error);
    for (int32_t i = 0; i < seqs && !status; i++) c->pos[layer][i]++;
    return status;
}

static ebb_status run_steps(void *p, ebb_error *error) {
    delta_ctx *c = p;
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < c->calls && !status; i++, c->layer = (c->layer + 1) % c->w->n_layers)
        status = step(c, c->layer, error);
    return status;
}

/* Every window phase alike: layer l begins l tokens into a window, sequence i another i. */
static ebb_status stagger(delta_ctx *c, ebb_error *error) {
    const int32_t p = c->w->spec.window, seqs = c->w->seqs;
    for (int32_t l = 0; l < c->w->n_layers; l++)
        for (int32_t t = 0; t < 2 * p; t++) {
            int32_t slot[MOST_SEQS];
            for (int32_t i = 0; i < seqs; i++) slot[i] = t < p + (l + i) % p ? i : -1;
            ebb_delta_args a = args_of(c, l, t, seqs);
            a.b = (ebb_batch){seqs, seqs, slot, c->cu, c->pos[l]};
            const ebb_status status = ebb_delta_step(c->queue, &c->plan, &a, error);
            if (status) return status;
            for (int32_t i = 0; i < seqs; i++) c->pos[l][i] += slot[i] >= 0;
        }
    return EBB_OK;
}

typedef struct step_shape {
    const char *method;
    int32_t kind, layers, seqs;
} step_shape;
static const step_shape steps[] = {
    {"fp32", EBB_GDN, 24, 1},  {"int8", EBB_GDN, 24, 1}, {"int8-w", EBB_GDN, 24, 1}, {"leap8", EBB_GDN, 24, 1},
    {"leap4", EBB_GDN, 24, 1}, {"damp", EBB_GDN, 24, 1}, {"damp-w", EBB_GDN, 24, 1}, {"fp32", EBB_GDN, 1, 1},
    {"leap8", EBB_GDN, 1, 1},  {"fp32", EBB_GDN, 4, 64}, {"int8", EBB_GDN, 4, 64},   {"leap8", EBB_GDN, 4, 64},
    {"damp", EBB_GDN, 4, 64},  {"fp32", EBB_KDA, 24, 1}, {"leap8", EBB_KDA, 24, 1},
};

/* A unit is a token of a layer, of all sequences. The fewest bytes: the packed part is read at every token and written
 * once a window; on average half a window of records is read, and one written. FLOP: two read-outs (k and q) and one
 * rank-one update of every head. */
static ebb_status delta_run(bench *b, int32_t shape, ebb_error *error) {
    const step_shape *s = &steps[shape];
    delta_world w = {0};
    delta_ctx *ctx = calloc(BENCH_PLACES, sizeof *ctx);
    ebb_state_sizes z;
    ebb_status status =
        ctx ? world_open(&w, s->method, s->kind, s->layers, s->seqs, BANK, error) : bench_no_memory(error);
    if (!status) status = ebb_state_size(&w.spec, &w.layer[0], 1, &z, error);
    if (status) goto done;
    const double p = w.spec.window, heads = (double)HEADS * s->seqs, gates = (double)(w.gates / HEADS);
    const double record = 2.0 * DIM * (z.record_type == EBB_FP32 ? 4 : 2) + 4 * gates,
                 inputs = 4.0 * (4 * DIM + gates + 1);
    const double bytes = (double)z.packed_head * (1 + 1 / p) + (p > 1 ? record * ((p - 1) / 2 + 1) : 0) + inputs;
    bench_begin(b, bytes * heads, 6.0 * DIM * DIM * heads, ((double)z.packed + (double)z.live) * s->seqs * s->layers,
                "%s, %s, %d seq x 32 heads, %d layer%s", s->kind == EBB_KDA ? "KDA" : "GDN", s->method, s->seqs,
                s->layers, s->layers > 1 ? "s in turn" : ", hot");
    for (int32_t i = 0; i < b->places && !status; i++) {
        bool served;
        if (!bench_wants(b, i)) continue;
        status = ctx_open(&ctx[i], &w, &b->place[i], s->seqs, s->seqs, &served, error);
        if (status || !served) continue;
        status = stagger(&ctx[i], error);
        /* whole windows, of the reference one layer's; in a batch every token has all phases */
        ctx[i].calls = s->seqs > 1 ? s->layers : w.spec.window * (strcmp(b->place[i].row, "ref") ? s->layers : 1);
        bench_add(b, i, ctx[i].calls, run_steps, &ctx[i]);
    }
    if (!status) status = bench_end(b, error);
done:
    for (int32_t i = 0; ctx && i < BENCH_PLACES; i++) ctx_close(&ctx[i]);
    world_close(&w);
    free(ctx);
    return status;
}

const bench_family bench_delta = {"delta", COUNT(steps), delta_run};

/* ---- family chunk: prompts ---- */

static ebb_status run_prompt(void *p, ebb_error *error) {
    const delta_ctx *c = p;
    ebb_delta_args a = args_of(c, 0, 0, c->w->tokens);
    a.b = (ebb_batch){1, c->w->tokens, (int32_t[]){0}, (int32_t[]){0, (int32_t)c->w->tokens}, (int64_t[]){0}};
    return ebb_delta_prefill(c->queue, &c->plan, &a, error);
}

static const struct {
    const char *method;
    int32_t kind;
    int64_t tokens;
} prompts[] = {{"fp32", EBB_GDN, PROMPT},  {"fp32", EBB_KDA, PROMPT}, {"leap8", EBB_GDN, PROMPT},
               {"leap8", EBB_KDA, PROMPT}, {"fp32", EBB_GDN, 8},      {"fp32", EBB_KDA, 8}};

/* A unit is a token of 32 heads. FLOP as the equations of the chunked form have them, triangles counted as such: three
 * products with the state, and within a chunk of 64 two triangles of products of keys and two of values. */
static ebb_status chunk_run(bench *b, int32_t shape, ebb_error *error) {
    const int64_t n = prompts[shape].tokens;
    const int32_t kind = prompts[shape].kind;
    const double chunk = n < CHUNK ? (double)n : CHUNK;
    delta_world w = {0};
    delta_ctx *ctx = calloc(BENCH_PLACES, sizeof *ctx);
    ebb_state_sizes z;
    ebb_status status = ctx ? world_open(&w, prompts[shape].method, kind, 1, 1, n, error) : bench_no_memory(error);
    if (!status) status = ebb_state_size(&w.spec, &w.layer[0], 1, &z, error);
    if (status) goto done;
    const double bytes = 4.0 * HEADS * (4 * DIM + (double)(w.gates / HEADS) + 1) + (double)z.packed / (double)n;
    bench_begin(b, bytes, HEADS * (6.0 * DIM * DIM + 4.0 * chunk * DIM), bytes * (double)n,
                "%s, %s, %lld tokens x 32 heads, a token", kind == EBB_KDA ? "KDA" : "GDN", prompts[shape].method,
                (long long)n);
    for (int32_t i = 0; i < b->places && !status; i++) {
        bool served;
        if (!strcmp(b->place[i].row, "ref") && n > CHUNK) continue;
        status = ctx_open(&ctx[i], &w, &b->place[i], n, n, &served, error);
        if (!status && served) bench_add(b, i, (double)n, run_prompt, &ctx[i]);
    }
    if (!status) status = bench_end(b, error);
done:
    for (int32_t i = 0; ctx && i < BENCH_PLACES; i++) ctx_close(&ctx[i]);
    world_close(&w);
    free(ctx);
    return status;
}

const bench_family bench_chunk = {"chunk", COUNT(prompts), chunk_run};
