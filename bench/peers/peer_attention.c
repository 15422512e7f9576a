/* peers/peer_attention.c: FLASH_ATTN_EXT of ggml_bench.c: one token behind a context in FP16, 8 query heads on 2 KV
 * heads of 256 (Qwen3.5-0.8B). The plain loop has the same keys and values in FP32. */
#include "peer.h"
#include "plain.h"

#include <stdio.h>
#include <stdlib.h>

enum { D = 256, Q_HEADS = 8, KV_HEADS = 2, TOKEN = KV_HEADS * D };

typedef struct attn_ctx {
    ebb_kv_pool *pool;
    ebb_queue *queue;
    ebb_plan plan;
    int64_t keys; /* with the token itself */
    float *q, *k, *v, *out, *plain, *weights;
} attn_ctx;

/* n tokens at `pos`, `q_heads` query heads each. */
static ebb_status feed(const attn_ctx *c, const ebb_kv_view *view, const float *q, int64_t pos, int64_t n, float *out,
                       ebb_error *error) {
    const int64_t heads = view->layer->q_heads;
    ebb_attn_args a = {.size = sizeof a, .s = *view, .prompt = n > 1};
    a.b = (ebb_batch){1, n, (int32_t[]){0}, (int32_t[]){0, (int32_t)n}, (int64_t[]){pos}};
    a.q = (ebb_tensor){(float *)(uintptr_t)q, EBB_FP32, 3, {n, heads, D}, {heads * D, D, 1}};
    a.k = (ebb_tensor){c->k + pos * TOKEN, EBB_FP32, 3, {n, KV_HEADS, D}, {TOKEN, D, 1}};
    a.v = (ebb_tensor){c->v + pos * TOKEN, EBB_FP32, 3, {n, KV_HEADS, D}, {TOKEN, D, 1}};
    a.out = (ebb_tensor){out, EBB_FP32, 3, {n, heads, D}, {heads * D, D, 1}};
    return ebb_attn(c->queue, &c->plan, &a, error);
}

static ebb_status run_ebb(void *p, ebb_error *error) {
    const attn_ctx *c = p;
    return feed(c, ebb_kv_pool_view(c->pool, 0), c->q, c->keys - 1, 1, c->out, error);
}

static ebb_status run_plain(void *p, ebb_error *error) {
    const attn_ctx *c = p;
    (void)error;
    for (int64_t h = 0; h < Q_HEADS; h++) {
        const int64_t at = h / (Q_HEADS / KV_HEADS) * D;
        plain_attention(c->q + h * D, c->k + at, c->v + at, TOKEN, c->keys, D, 1.0f / 16, c->weights, c->plain + h * D);
    }
    return EBB_OK;
}

static ebb_kv_layer layer_of(int32_t q_heads) {
    ebb_kv_layer layer = {.q_heads = q_heads, .heads = KV_HEADS, .parts = 2, .scale = 1.0f / 16};
    layer.part[0].dims = layer.part[1].dims = D;
    layer.part[0].role = EBB_ROLE_K, layer.part[1].role = EBB_ROLE_V;
    return layer;
}

/* The context goes in as a prompt of one query head a KV head, which costs a quarter. `k` serves as its queries. */
static ebb_status fill(attn_ctx *c, ebb_device *device, const ebb_kv_layer *narrow, ebb_error *error) {
    ebb_kv_view view = *ebb_kv_pool_view(c->pool, 0);
    const int64_t n = c->keys - 1;
    float *out = aligned_new((size_t)(n * TOKEN) * sizeof *out);
    view.layer = narrow;
    ebb_status status = out ? ebb_attn_plan(device, &view, NULL, 1, 1, n, &c->plan, error)
                            : ebb_fail(error, EBB_NO_MEMORY, "no memory for a context");
    if (!status) status = ebb_queue_open(device, c->plan.scratch, &c->queue, error);
    if (!status) status = feed(c, &view, c->k, 0, n, out, error);
    ebb_queue_close(c->queue);
    c->queue = NULL;
    free(out);
    return status;
}

static ebb_status peer_make(peer *p, const attn_ctx *c, int32_t threads, ebb_error *error) {
    const size_t values = (size_t)c->keys * TOKEN;
    ebb_status status = peer_open(p, values * 4 + (1 << 20), error);
    if (status) return status;
    struct ggml_tensor *q = ggml_new_tensor_3d(p->tensors, GGML_TYPE_F32, D, 1, Q_HEADS),
                       *k = ggml_new_tensor_3d(p->tensors, GGML_TYPE_F16, D, KV_HEADS, c->keys),
                       *v = ggml_dup_tensor(p->tensors, k);
    memcpy(q->data, c->q, ggml_nbytes(q));
    ggml_fp32_to_fp16_row(c->k, k->data, (int64_t)values);
    ggml_fp32_to_fp16_row(c->v, v->data, (int64_t)values);
    p->result = ggml_flash_attn_ext(p->tensors, q, ggml_permute(p->tensors, k, 0, 2, 1, 3),
                                    ggml_permute(p->tensors, v, 0, 2, 1, 3), NULL, 1.0f / 16, 0, 0);
    if ((status = peer_ready(p, threads, error))) return status;
    return peer_run(p, error);
}

static ebb_status one(ebb_device *device, int64_t keys, ebb_error *error) {
    const int32_t threads = ebb_device_threads(device);
    const ebb_kv_layer layer = layer_of(Q_HEADS), narrow = layer_of(KV_HEADS);
    contest line = {.threads = threads};
    ebb_kv_spec spec;
    ebb_kv_pool_config config = {sizeof config, &spec, &layer, 1, 1, keys, 0, 1, NULL};
    attn_ctx c = {.keys = keys};
    peer theirs = {0};
    c.q = peer_numbers(Q_HEADS * D, 1), c.k = peer_numbers(keys * TOKEN, 2), c.v = peer_numbers(keys * TOKEN, 3);
    c.out = aligned_new(Q_HEADS * D * sizeof *c.out), c.plain = aligned_new(Q_HEADS * D * sizeof *c.plain);
    c.weights = aligned_new((size_t)keys * sizeof *c.weights);
    ebb_status status = c.q && c.k && c.v && c.out && c.plain && c.weights
                            ? ebb_kv_parse("fp16", &spec, error)
                            : ebb_fail(error, EBB_NO_MEMORY, "no memory for %lld keys", (long long)keys);
    if (!status) status = ebb_kv_pool_open(device, &config, &c.pool, error);
    if (!status) status = ebb_kv_pool_reserve(c.pool, 0, keys, error);
    if (!status) status = fill(&c, device, &narrow, error);
    if (!status) status = ebb_attn_plan(device, ebb_kv_pool_view(c.pool, 0), NULL, 1, 1, 1, &c.plan, error);
    if (!status) status = ebb_queue_open(device, c.plan.scratch, &c.queue, error);
    if (!status) status = peer_make(&theirs, &c, threads, error);
    if (!status) status = run_ebb(&c, error);
    if (status) goto done;
    snprintf(line.shape, sizeof line.shape, "a token, %lld keys in fp16", (long long)keys);
    contest_add(&line, "ggml", peer_run, &theirs, 1);
    contest_add(&line, c.plan.row_name, run_ebb, &c, 1);
    run_plain(&c, error);
    /* the cache rounds to FP16; ggml also rounds q, and sums the values in FP16 */
    status = contest_far(&line, c.out, c.plain, Q_HEADS * D, 2e-3, error);
    if (!status) status = contest_far(&line, c.out, theirs.result->data, Q_HEADS * D, 5e-2, error);
    if (threads == 1 && !status) {
        contest_add(&line, "plain C", run_plain, &c, 1);
        status = contest_far(&line, c.plain, theirs.result->data, Q_HEADS * D, 5e-2, error);
    }
    if (!status) status = contest_run(&line, error);
done:
    peer_close(&theirs);
    ebb_queue_close(c.queue);
    ebb_kv_pool_close(c.pool);
    free(c.q), free(c.k), free(c.v), free(c.out), free(c.plain), free(c.weights);
    return status;
}

ebb_status peer_attention(int32_t threads, ebb_error *error) {
    static const int64_t keys[] = {1024, 4096, 8192};
    const ebb_device_config config = {.size = sizeof config, .threads = threads};
    ebb_device *device = NULL;
    ebb_status status = ebb_device_open("cpu", &config, &device, error);
    for (int32_t i = 0; i < COUNT(keys) && !status; i++) status = one(device, keys[i], error);
    ebb_device_close(device);
    return status;
}
