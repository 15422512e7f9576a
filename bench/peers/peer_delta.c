/* peers/peer_delta.c: GATED_DELTA_NET of ggml_bench.c, heads of 128 x 128: a token whose states stay in the caches, and
 * a prompt of 1,024 tokens. ggml's operator copies the state from one tensor to another, ebb's updates its store, once
 * a token (fp32) or once a window (leap8: the mean over its 16 tokens is timed). */
#include "peer.h"
#include "plain.h"

#include <stdio.h>
#include <stdlib.h>

enum { D = 128, PROMPT = 1024, MOST_HEADS = 32, BEFORE = 8 };

typedef struct delta_inputs {
    int32_t heads, kind;
    int64_t tokens, gates; /* gates: floats of g a token and head */
    float *q, *k, *v, *g, *beta;
} delta_inputs;

typedef struct delta_ctx {
    const delta_inputs *in;
    ebb_state_layer layer;
    ebb_state_spec spec;
    ebb_state_pool *pool;
    ebb_queue *queue;
    ebb_plan plan;
    float *out;
    int64_t pos, n; /* n > 1: that prompt at position 0, else steps from pos on */
} delta_ctx;

typedef struct plain_ctx {
    const delta_inputs *in;
    float *S, *out;
    int64_t from, n;
} plain_ctx;

static void inputs_free(delta_inputs *in) { free(in->q), free(in->k), free(in->v), free(in->g), free(in->beta); }

/* Keys and queries of length about 1, decays of -0.01 to -0.1 a token. */
static ebb_status inputs_new(delta_inputs *in, int32_t heads, int32_t kind, int64_t tokens, ebb_error *error) {
    *in = (delta_inputs){.heads = heads, .kind = kind, .tokens = tokens, .gates = kind == EBB_KDA ? D : 1};
    const int64_t rows = tokens * heads;
    in->q = peer_numbers(rows * D, 1), in->k = peer_numbers(rows * D, 2), in->v = peer_numbers(rows * D, 3);
    in->g = peer_numbers(rows * in->gates, 4), in->beta = peer_numbers(rows, 5);
    if (!in->q || !in->k || !in->v || !in->g || !in->beta) {
        inputs_free(in);
        *in = (delta_inputs){0};
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for %lld tokens", (long long)tokens);
    }
    for (int64_t i = 0; i < rows * D; i++) in->q[i] *= 0.0884f, in->k[i] *= 0.0884f; /* 128^-1/2 */
    for (int64_t i = 0; i < rows * in->gates; i++) in->g[i] = -0.01f - 0.03f * fminf(3.0f, fabsf(in->g[i]));
    for (int64_t i = 0; i < rows; i++) in->beta[i] = 1 / (1 + expf(-in->beta[i]));
    return EBB_OK;
}

/* ---- ebb ---- */

static ebb_delta_args args_of(const delta_ctx *c, int64_t from, int64_t n, int64_t *pos) {
    static const int32_t slot = 0;
    const delta_inputs *in = c->in;
    const int64_t h = in->heads, token = h * D;
    const ebb_tensor rows = {NULL, EBB_FP32, 3, {n, h, D}, {token, D, 1}};
    ebb_delta_args a = {.size = sizeof a, .s = *ebb_state_pool_view(c->pool, 0)};
    a.q = a.k = a.v = a.out = rows;
    a.q.data = in->q + from * token, a.k.data = in->k + from * token, a.v.data = in->v + from * token;
    a.g = (ebb_tensor){in->g + from * h * in->gates, EBB_FP32, 3, {n, h, in->gates}, {h * in->gates, in->gates, 1}};
    a.beta = (ebb_tensor){in->beta + from * h, EBB_FP32, 2, {n, h}, {h, 1}};
    a.out.data = c->out;
    a.b = (ebb_batch){1, n, &slot, NULL, pos};
    return a;
}

static ebb_status feed(delta_ctx *c, int64_t from, int64_t n, int64_t pos, ebb_error *error) {
    const int32_t cu[2] = {0, (int32_t)n};
    ebb_delta_args a = args_of(c, from, n, &pos);
    a.b.cu = cu;
    return n > 1 ? ebb_delta_prefill(c->queue, &c->plan, &a, error) : ebb_delta_step(c->queue, &c->plan, &a, error);
}

static ebb_status run_prompt(void *p, ebb_error *error) {
    delta_ctx *c = p;
    return feed(c, 0, c->n, 0, error);
}

static ebb_status run_window(void *p, ebb_error *error) {
    delta_ctx *c = p;
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < 16 && !status; i++, c->pos++) status = feed(c, c->pos % c->in->tokens, 1, c->pos, error);
    return status;
}

static void ctx_close(delta_ctx *c) {
    ebb_queue_close(c->queue);
    ebb_state_pool_close(c->pool);
    free(c->out);
    *c = (delta_ctx){0};
}

static ebb_status ctx_open(delta_ctx *c, ebb_device *device, const delta_inputs *in, const char *method,
                           ebb_error *error) {
    *c = (delta_ctx){.in = in, .n = in->tokens};
    c->layer =
        (ebb_state_layer){.kind = in->kind, .key_heads = in->heads, .heads = in->heads, .key_dim = D, .value_dim = D};
    c->out = aligned_new((size_t)(in->tokens * in->heads * D) * sizeof(float));
    ebb_status status =
        c->out ? ebb_state_parse(method, &c->spec, error) : ebb_fail(error, EBB_NO_MEMORY, "no memory for outputs");
    const ebb_state_pool_config config = {
        .size = sizeof config, .spec = &c->spec, .layers = &c->layer, .n_layers = 1, .slots = 1, .max_new = 1};
    if (!status) status = ebb_state_pool_open(device, &config, &c->pool, error);
    if (!status)
        status = ebb_delta_plan(device, ebb_state_pool_view(c->pool, 0), NULL, 0, 1, 1, in->tokens, &c->plan, error);
    return status ? status : ebb_queue_open(device, c->plan.scratch, &c->queue, error);
}

/* ---- plain C ---- */

static ebb_status run_plain(void *p, ebb_error *error) {
    const plain_ctx *c = p;
    const delta_inputs *in = c->in;
    (void)error;
    for (int64_t t = 0; t < c->n; t++)
        for (int64_t h = 0; h < in->heads; h++) {
            const int64_t row = (c->from + t) * in->heads + h;
            plain_delta(c->S + h * D * D, in->q + row * D, in->k + row * D, in->v + row * D, in->g + row * in->gates,
                        in->gates > 1, in->beta[row], c->out + (t * in->heads + h) * D, D);
        }
    return EBB_OK;
}

/* ---- ggml ---- */

/* Tokens from .. from + n - 1 on the state S [heads][key][value], which ggml has transposed. NULL: zeros. */
static ebb_status peer_make(peer *p, const delta_inputs *in, int64_t from, int64_t n, const float *S, int32_t threads,
                            ebb_error *error) {
    const int64_t h = in->heads, rows = n * h;
    ebb_status status = peer_open(p, (size_t)(rows * (4 * D + in->gates + 1) + 2 * h * D * D) * sizeof(float), error);
    if (status) return status;
    struct ggml_context *ctx = p->tensors;
    struct ggml_tensor *q = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, D, h, n, 1), *k = ggml_dup_tensor(ctx, q),
                       *v = ggml_dup_tensor(ctx, q), *g = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, in->gates, h, n, 1),
                       *beta = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 1, h, n, 1),
                       *state = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, D, D, h, 1);
    float *transposed = state->data;
    memcpy(q->data, in->q + from * h * D, ggml_nbytes(q));
    memcpy(k->data, in->k + from * h * D, ggml_nbytes(k));
    memcpy(v->data, in->v + from * h * D, ggml_nbytes(v));
    memcpy(g->data, in->g + from * h * in->gates, ggml_nbytes(g));
    memcpy(beta->data, in->beta + from * h, ggml_nbytes(beta));
    for (int64_t i = 0; i < h * D * D; i++) transposed[i] = S ? S[i / (D * D) * D * D + i % D * D + i / D % D] : 0.0f;
    p->result = ggml_gated_delta_net(ctx, q, k, v, g, beta, state, 1);
    if ((status = peer_ready(p, threads, error))) return status;
    return peer_run(p, error);
}

/* ---- contests ---- */

/* S after `before` tokens, in ebb's and in the plain loop's hands. */
static ebb_status read_state(delta_ctx *c, int64_t pos, float *S, ebb_error *error) {
    const int32_t cu[2] = {0, 0};
    ebb_delta_args a = args_of(c, 0, 0, &pos);
    a.b.cu = cu;
    return ebb_delta_read(c->queue, &c->plan, &a, S, error);
}

static ebb_status one(ebb_device *device, int32_t heads, int32_t kind, bool prompt, ebb_error *error) {
    const int64_t tokens = prompt ? PROMPT : 4 * BEFORE, n = prompt ? PROMPT : 1, values = n * heads * D;
    const int32_t threads = ebb_device_threads(device);
    contest line = {.threads = threads};
    delta_inputs in;
    delta_ctx wide = {0}, leap = {0};
    peer theirs = {0};
    char name[2][40];
    float *S = aligned_new((size_t)heads * D * D * sizeof *S), *out = aligned_new((size_t)values * sizeof *out);
    plain_ctx plain = {&in, S, out, prompt ? 0 : BEFORE, n};
    ebb_status status = inputs_new(&in, heads, kind, tokens, error);
    if (!status && (!S || !out)) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for states");
    if (!status) status = ctx_open(&wide, device, &in, "fp32", error);
    if (!status) status = ctx_open(&leap, device, &in, "leap8", error);
    if (status) goto done;
    snprintf(line.shape, sizeof line.shape, "%s, %d heads, %s", kind == EBB_KDA ? "KDA" : "GDN", heads,
             prompt ? "1,024 tokens, a token" : "a token, hot");
    memset(S, 0, (size_t)heads * D * D * sizeof *S);
    for (int64_t t = 0; t < plain.from && !status; t++) { /* so short that leap8 has records only, in FP16 */
        status = feed(&wide, t, 1, t, error);
        if (!status) status = feed(&leap, t, 1, t, error);
    }
    if (!status && !prompt) status = read_state(&wide, BEFORE, S, error);
    if (!status) status = peer_make(&theirs, &in, plain.from, n, S, threads, error);
    if (!status) status = prompt ? run_prompt(&wide, error) : feed(&wide, BEFORE, 1, BEFORE, error);
    if (!status) status = prompt ? run_prompt(&leap, error) : feed(&leap, BEFORE, 1, BEFORE, error);
    if (status) goto done;
    run_plain(&plain, error);
    wide.pos = leap.pos = BEFORE + 1;
    contest_add(&line, "ggml", peer_run, &theirs, (double)n);
    snprintf(name[0], sizeof name[0], "%s fp32", prompt ? wide.plan.chunk_name : wide.plan.row_name);
    contest_add(&line, name[0], prompt ? run_prompt : run_window, &wide, prompt ? (double)n : 16);
    status = contest_far(&line, wide.out, theirs.result->data, values, 1e-4, error);
    snprintf(name[1], sizeof name[1], "%s leap8", prompt ? leap.plan.chunk_name : leap.plan.row_name);
    contest_add(&line, name[1], prompt ? run_prompt : run_window, &leap, prompt ? (double)n : 16);
    /* rounded at every multiple of the grid, up to the first of which a prompt must give the same */
    if (!status)
        status = contest_far(&line, leap.out, theirs.result->data, prompt ? (int64_t)EBB_GRID * heads * D : values,
                             5e-3, error);
    if (threads == 1 && !status) {
        contest_add(&line, "plain C", run_plain, &plain, (double)n);
        status = contest_far(&line, out, theirs.result->data, values, 1e-4, error);
    }
    if (!status) status = contest_run(&line, error);
done:
    peer_close(&theirs);
    ctx_close(&wide), ctx_close(&leap);
    inputs_free(&in);
    free(S), free(out);
    return status;
}

ebb_status peer_delta(int32_t threads, ebb_error *error) {
    static const int32_t heads[] = {4, MOST_HEADS};
    const ebb_device_config config = {.size = sizeof config, .threads = threads};
    ebb_device *device = NULL;
    ebb_status status = ebb_device_open("cpu", &config, &device, error);
    for (int32_t kind = EBB_GDN; kind <= EBB_KDA && !status; kind++) {
        for (int32_t i = 0; i < COUNT(heads) && !status; i++) status = one(device, heads[i], kind, false, error);
        if (!status) status = one(device, MOST_HEADS, kind, true, error);
    }
    ebb_device_close(device);
    return status;
}
