/* hyquant_world.h: one attention layer with a KV pool, a plan and inputs that need not be kept, for the tests of
 * low-bit KV stores. Needs ebb-core and cmocka. */
#ifndef HYQUANT_WORLD_H
#define HYQUANT_WORLD_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv_int.h"
#include "op/rows.h"

enum { SLOTS = 4, MAX_NEW = 5 };

/* ---- inputs: a number for every (sequence, what, token, head, dim); a few tokens attract all queries ---- */

enum { Q, K, V };

static inline float input(int64_t seq, int what, int64_t token, int64_t head, int64_t d) {
    uint64_t key = mix64((uint64_t)(((((seq * 4 + what) << 20) + token) * 64 + head) * 1024 + d));
    float x = (float)((double)(key >> 11) / 4503599627370496.0 - 1.0);
    if (what == Q) x += d % 3 == 0 ? 0.5f : 0;
    if (what == K && mix64((uint64_t)(seq * 4096 + token)) % 16 == 0) x += d % 3 == 0 ? 1.0f : 0;
    return x * 1.7f;
}

/* ---- one store and one plan ---- */

typedef struct rig {
    ebb_device *device;
    ebb_queue *queue;
    ebb_kv_spec spec;
    ebb_prefill prefill;
    ebb_kv_layer layer;
    kv_shape kv;
    ebb_kv_pool *pool;
    ebb_plan plan;
    int64_t max_tokens;
} rig;

static inline ebb_kv_layer layer_of(int32_t group, int32_t heads, int32_t dim) {
    return (ebb_kv_layer){.q_heads = group * heads,
                          .heads = heads,
                          .parts = 2,
                          .part = {{(int16_t)dim, EBB_ROLE_K}, {(int16_t)dim, EBB_ROLE_V}},
                          .scale = 1.0f / sqrtf((float)dim)};
}

static inline ebb_kv_layer latent_of(int32_t q_heads, int32_t rank, int32_t rest) {
    return (ebb_kv_layer){.q_heads = q_heads,
                          .heads = 1,
                          .parts = 2,
                          .part = {{(int16_t)rank, EBB_ROLE_K | EBB_ROLE_V}, {(int16_t)rest, EBB_ROLE_K}},
                          .scale = 1.0f / sqrtf((float)(rank + rest))};
}

static inline ebb_status rig_try(rig *r, const char *method, const char *prefill, ebb_kv_layer layer,
                                 int64_t max_tokens, int32_t threads, ebb_error *error) {
    ebb_device_config config = {.size = sizeof config, .threads = threads};
    *r = (rig){.layer = layer, .kv = kv_shape_of(&layer), .max_tokens = max_tokens};
    assert_int_equal(ebb_device_open("cpu", &config, &r->device, NULL), EBB_OK);
    ebb_status status = ebb_kv_parse(method, &r->spec, error);
    if (!status) status = ebb_prefill_parse(prefill, &r->prefill, error);
    ebb_kv_pool_config pool = {sizeof pool, &r->spec, &r->layer, 1, SLOTS, max_tokens, 0, MAX_NEW, &r->prefill};
    if (!status) status = ebb_kv_pool_open(r->device, &pool, &r->pool, error);
    if (!status)
        status = ebb_attn_plan(r->device, ebb_kv_pool_view(r->pool, 0), NULL, SLOTS, MAX_NEW, SLOTS * max_tokens,
                               &r->plan, error);
    if (!status) status = ebb_queue_open(r->device, r->plan.scratch, &r->queue, error);
    return status;
}

static inline void rig_close(rig *r) {
    ebb_queue_close(r->queue);
    ebb_kv_pool_close(r->pool);
    ebb_device_close(r->device);
}

static inline void rig_open(rig *r, const char *method, const char *prefill, ebb_kv_layer layer, int64_t max_tokens) {
    ebb_error error = {0};
    if (rig_try(r, method, prefill, layer, max_tokens, 1, &error)) fail_msg("%s, %s: %s", method, prefill, error.text);
}

/* ---- calls; sequence number id[i] names the inputs of seq i, from token `late` on those of sequence 1,000 + id ----
 */

typedef struct call {
    int32_t seqs;
    int32_t id[SLOTS], slot[SLOTS], n[SLOTS];
    int64_t pos[SLOTS];
    bool prompt;
    int64_t late;
} call;

static inline void fill(const call *c, int what, int64_t heads, int64_t dim, float *x) {
    for (int32_t i = 0; i < c->seqs; i++)
        for (int64_t t = c->pos[i]; t < c->pos[i] + c->n[i]; t++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < dim; d++)
                    *x++ = input(c->late && t >= c->late ? 1000 + c->id[i] : c->id[i], what, t, h, d);
}

static inline ebb_tensor tensor_of(float *data, int64_t tokens, int64_t heads, int64_t dim) {
    return (ebb_tensor){data, EBB_FP32, 3, {tokens, heads, dim}, {heads * dim, dim, 1}};
}

static inline int64_t row_floats(const rig *r) { return r->layer.q_heads * r->kv.v; }

static inline ebb_status try_call(rig *r, const call *c, float *out, ebb_error *error) {
    int32_t cu[SLOTS + 1] = {0};
    for (int32_t i = 0; i < c->seqs; i++) {
        cu[i + 1] = cu[i] + c->n[i];
        if (c->slot[i] >= 0)
            assert_int_equal(ebb_kv_pool_reserve(r->pool, c->slot[i], c->pos[i] + c->n[i], NULL), EBB_OK);
    }
    const int64_t n = cu[c->seqs], heads = r->layer.heads, q_heads = r->layer.q_heads;
    float *q = malloc((size_t)(n * q_heads * r->kv.k) * 4), *k = malloc((size_t)(n * heads * r->kv.k) * 4),
          *v = malloc((size_t)(n * heads * r->kv.v) * 4);
    fill(c, Q, q_heads, r->kv.k, q);
    fill(c, K, heads, r->kv.k, k);
    fill(c, V, heads, r->kv.v, v);
    ebb_attn_args args = {.size = sizeof args,
                          .s = *ebb_kv_pool_view(r->pool, 0),
                          .b = {c->seqs, n, c->slot, cu, c->pos},
                          .q = tensor_of(q, n, q_heads, r->kv.k),
                          .k = tensor_of(k, n, heads, r->kv.k),
                          .out = tensor_of(out, n, q_heads, r->kv.v),
                          .prompt = c->prompt};
    if (!r->kv.shared) args.v = tensor_of(v, n, heads, r->kv.v);
    ebb_status status = ebb_attn(r->queue, &r->plan, &args, error);
    free(q), free(k), free(v);
    return status;
}

static inline void run(rig *r, const call *c, float *out) {
    ebb_error error = {0};
    if (try_call(r, c, out, &error)) fail_msg("%s: %s", r->spec.method->name, error.text);
}

/* Tokens [pos, end) of sequence `id`, in pieces of the given sizes (the last one as often as needed); out begins at
 * position 0. */
static inline void feed(rig *r, int32_t id, int32_t slot, int64_t pos, int64_t end, bool prompt, const int32_t *piece,
                        int32_t pieces, int64_t late, float *out) {
    for (int32_t i = 0; pos < end; i++) {
        call c = {1,     {id},   {slot}, {(int32_t)min_i64(piece[i < pieces ? i : pieces - 1], end - pos)},
                  {pos}, prompt, late};
        run(r, &c, out + pos * row_floats(r));
        pos += c.n[0];
    }
}

static inline void feed_all(rig *r, int32_t id, int32_t slot, int64_t pos, int64_t end, bool prompt, float *out) {
    const int32_t all = prompt ? (int32_t)(end - pos) : 1;
    feed(r, id, slot, pos, end, prompt, &all, 1, 0, out);
}

static inline float *outputs(const rig *r) { return calloc((size_t)(r->max_tokens * row_floats(r)), sizeof(float)); }

static inline void assert_bits(const rig *r, const char *what, const float *a, const float *b, int64_t from,
                               int64_t to) {
    const int64_t row = row_floats(r);
    for (int64_t t = from; t < to; t++)
        if (memcmp(a + t * row, b + t * row, (size_t)row * sizeof *a) != 0)
            fail_msg("%s, prefill mode %d, select %d: %s changes bits of token %lld", r->spec.method->name,
                     r->prefill.mode, r->prefill.select, what, (long long)t);
}

typedef struct setup {
    const char *method, *prefill;
} setup;

#endif
