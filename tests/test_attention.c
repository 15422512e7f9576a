/* tests/test_attention.c: softmax attention over a KV store: against a full softmax in FP64, and the promises about
 * bits: not the batch, the tile, the thread, the pages, nor how a prompt is cut changes a row. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "kv/kv_int.h"
#include "op/rows.h"

enum { SLOTS = 6, MAX_TOKENS = 600 };
static const char *const row_names[] = {"ref", "avx2", "avx512"};
static const char *const method_names[] = {"fp32", "fp16", "bf16"};

/* ---- inputs: a number for every (sequence, what, token, head, dim), so nothing need be kept ---- */

enum { Q, K, V, GATE };

static float input(int64_t seq, int what, int64_t token, int64_t head, int64_t d) {
    uint64_t key = mix64((uint64_t)(((((seq * 4 + what) << 20) + token) * 64 + head) * 256 + d));
    return (float)((double)(key >> 11) / 4503599627370496.0 - 1.0) * 1.7f;
}

/* ---- one store and one plan ---- */

typedef struct rig {
    ebb_device *device;
    ebb_queue *queue;
    ebb_kv_spec spec;
    ebb_kv_layer layer;
    ebb_kv_pool *pool;
    ebb_plan plan;
} rig;

static ebb_kv_layer layer_of(int32_t group, int32_t heads, int32_t dim) {
    return (ebb_kv_layer){.q_heads = group * heads,
                          .heads = heads,
                          .parts = 2,
                          .part = {{(int16_t)dim, EBB_ROLE_K}, {(int16_t)dim, EBB_ROLE_V}},
                          .scale = 1.0f / sqrtf((float)dim)};
}

/* The value is the first `rank` dims of the key. */
static ebb_kv_layer latent_of(int32_t q_heads, int32_t rank, int32_t rest) {
    return (ebb_kv_layer){.q_heads = q_heads,
                          .heads = 1,
                          .parts = rest ? 2 : 1,
                          .part = {{(int16_t)rank, EBB_ROLE_K | EBB_ROLE_V}, {(int16_t)rest, EBB_ROLE_K}},
                          .scale = 1.0f / sqrtf((float)(rank + rest))};
}

/* false: this CPU or this shape has no such row, by a status and a sentence. */
static bool rig_open(rig *r, const char *row, const char *method, ebb_kv_layer layer, int32_t threads) {
    ebb_device_config config = {.size = sizeof config, .threads = threads};
    ebb_error error = {0};
    *r = (rig){.layer = layer};
    assert_int_equal(ebb_device_open("cpu", &config, &r->device, NULL), EBB_OK);
    assert_int_equal(ebb_kv_parse(method, &r->spec, NULL), EBB_OK);
    ebb_kv_pool_config pool = {sizeof pool, &r->spec, &r->layer, 1, SLOTS, MAX_TOKENS, 0, 0, NULL};
    assert_int_equal(ebb_kv_pool_open(r->device, &pool, &r->pool, NULL), EBB_OK);
    ebb_status status = ebb_attn_plan(r->device, ebb_kv_pool_view(r->pool, 0), row, SLOTS, 1, 2000, &r->plan, &error);
    if (status) {
        assert_int_equal(status, EBB_UNSUPPORTED);
        assert_non_null(strstr(error.text, row));
        ebb_kv_pool_close(r->pool);
        ebb_device_close(r->device);
        return false;
    }
    if (row) assert_string_equal(r->plan.row_name, row);
    assert_int_equal(ebb_queue_open(r->device, r->plan.scratch, &r->queue, NULL), EBB_OK);
    return true;
}

static void rig_close(rig *r) {
    ebb_queue_close(r->queue);
    ebb_kv_pool_close(r->pool);
    ebb_device_close(r->device);
}

/* ---- one call; sequence number id[i] names the inputs of seq i ---- */

typedef struct call {
    int32_t seqs;
    int32_t id[SLOTS], slot[SLOTS], n[SLOTS];
    int64_t pos[SLOTS];
    bool gated;
} call;

typedef struct tensors {
    ebb_attn_args args;
    int32_t cu[SLOTS + 1];
    float *q, *k, *v, *gate, *out;
} tensors;

static ebb_tensor tensor_of(float *data, int64_t tokens, int64_t heads, int64_t dim, int64_t head_stride) {
    return (ebb_tensor){data, EBB_FP32, 3, {tokens, heads, dim}, {heads * head_stride, head_stride, 1}};
}

static float *fill(const call *c, int what, int64_t heads, int64_t dim, int64_t head_stride, int64_t tokens) {
    float *x = calloc((size_t)(max_i64(tokens, 1) * heads * head_stride), sizeof *x), *at = x;
    for (int32_t i = 0; i < c->seqs; i++)
        for (int64_t t = 0; t < c->n[i]; t++, at += heads * head_stride)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < dim; d++) at[h * head_stride + d] = input(c->id[i], what, c->pos[i] + t, h, d);
    return x;
}

static void tensors_new(tensors *t, const rig *r, const call *c) {
    kv_shape kv = kv_shape_of(&r->layer);
    int64_t n = 0;
    *t = (tensors){.cu = {0}};
    for (int32_t i = 0; i < c->seqs; i++) t->cu[i + 1] = (int32_t)(n += c->n[i]);
    t->q = fill(c, Q, r->layer.q_heads, kv.k, kv.k, n);
    t->k = fill(c, K, r->layer.heads, kv.k, kv.k, n);
    if (!kv.shared) t->v = fill(c, V, r->layer.heads, kv.v, kv.v, n);
    t->gate = fill(c, GATE, r->layer.q_heads, kv.v, 2 * kv.v, n); /* interleaved with q, as projections come */
    t->out = calloc((size_t)(max_i64(n, 1) * r->layer.q_heads * kv.v), sizeof(float));
    t->args = (ebb_attn_args){.size = sizeof t->args,
                              .s = *ebb_kv_pool_view(r->pool, 0),
                              .b = {c->seqs, n, c->slot, t->cu, c->pos},
                              .q = tensor_of(t->q, n, r->layer.q_heads, kv.k, kv.k),
                              .k = tensor_of(t->k, n, r->layer.heads, kv.k, kv.k),
                              .out = tensor_of(t->out, n, r->layer.q_heads, kv.v, kv.v)};
    if (!kv.shared) t->args.v = tensor_of(t->v, n, r->layer.heads, kv.v, kv.v);
    if (c->gated) t->args.gate = tensor_of(t->gate, n, r->layer.q_heads, kv.v, 2 * kv.v);
}

static void tensors_free(tensors *t) { free(t->q), free(t->k), free(t->v), free(t->gate), free(t->out); }

static void reserve(rig *r, const call *c) {
    for (int32_t i = 0; i < c->seqs; i++)
        if (c->slot[i] >= 0)
            assert_int_equal(ebb_kv_pool_reserve(r->pool, c->slot[i], c->pos[i] + c->n[i], NULL), EBB_OK);
}

/* The outputs, malloc'ed: [tokens][q_heads][dim]. */
static float *attend(rig *r, const call *c) {
    tensors t;
    ebb_error error = {0};
    reserve(r, c);
    tensors_new(&t, r, c);
    if (ebb_attn(r->queue, &r->plan, &t.args, &error)) fail_msg("%s", error.text);
    float *out = t.out;
    t.out = NULL;
    tensors_free(&t);
    return out;
}

/* ---- against a full softmax in FP64 over what the store keeps ---- */

static float stored(const rig *r, float x) {
    static const char *const words[] = {"fp32", "fp16", "bf16"};
    const ebb_format *format = ebb_format_find(words[(int)r->spec.param[0]]);
    uint32_t code;
    float y;
    format->encode(&x, 1, &code, NULL);
    format->decode(&code, NULL, 1, &y);
    return y;
}

static void exact_row(const rig *r, int64_t id, int64_t token, int32_t q_head, bool gated, double *out) {
    kv_shape kv = kv_shape_of(&r->layer);
    int32_t head = q_head / (r->layer.q_heads / r->layer.heads), value = kv.shared ? K : V;
    int64_t value_at = kv.shared ? kv.v_at : 0;
    double score[MAX_TOKENS], max = -INFINITY, total = 0;
    for (int64_t j = 0; j <= token; j++) {
        score[j] = 0;
        for (int32_t d = 0; d < kv.k; d++)
            score[j] += (double)input(id, Q, token, q_head, d) * (double)stored(r, input(id, K, j, head, d));
        score[j] *= (double)r->layer.scale;
        if (score[j] > max) max = score[j];
    }
    for (int32_t d = 0; d < kv.v; d++) out[d] = 0;
    for (int64_t j = 0; j <= token; j++) {
        double w = exp(score[j] - max);
        total += w;
        for (int32_t d = 0; d < kv.v; d++) out[d] += w * (double)stored(r, input(id, value, j, head, value_at + d));
    }
    for (int32_t d = 0; d < kv.v; d++) {
        out[d] /= total;
        if (gated) out[d] /= 1 + exp(-(double)input(id, GATE, token, q_head, d));
    }
}

/* Every `each`-th token of a call, and the last one of each sequence. */
static void assert_exact(const rig *r, const call *c, const float *out, int64_t each) {
    int32_t dim = kv_shape_of(&r->layer).v;
    for (int32_t i = 0; i < c->seqs; i++) {
        for (int64_t t = 0; t < c->n[i]; t++, out += r->layer.q_heads * dim) {
            if (c->slot[i] < 0 || (t % each && t != c->n[i] - 1)) continue;
            for (int32_t h = 0; h < r->layer.q_heads; h++) {
                double want[EBB_MAX_HEAD_DIM];
                exact_row(r, c->id[i], c->pos[i] + t, h, c->gated, want);
                for (int32_t d = 0; d < dim; d++)
                    if (!(fabs((double)out[h * dim + d] - want[d]) < 3e-6))
                        fail_msg("%s %s dim %d: sequence %d token %lld head %d [%d]: %g, expected %g", r->plan.row_name,
                                 r->spec.method->name, dim, c->id[i], (long long)(c->pos[i] + t), h, d,
                                 (double)out[h * dim + d], want[d]);
            }
        }
    }
}

/* Prompts of several lengths at once, then a batch that mixes decode, a long and an empty prompt, and padding. */
static void one_layer(const char *row, const char *method, ebb_kv_layer layer, bool gated) {
    rig r;
    if (!rig_open(&r, row, method, layer, 2)) return;
    call prompt = {6, {0, 1, 2, 3, 4, 5}, {5, 0, 2, 1, 4, 3}, {1, 3, 63, 64, 65, 300}, {0}, gated};
    float *out = attend(&r, &prompt);
    assert_exact(&r, &prompt, out, 37);
    free(out);
    call mixed = {6, {0, 1, 9, 3, 4, 5}, {5, 0, -1, 1, 4, 3}, {1, 70, 2, 0, 1, 1}, {1, 3, 63, 64, 65, 300}, gated};
    out = attend(&r, &mixed);
    assert_exact(&r, &mixed, out, 23);
    free(out);
    rig_close(&r);
}

static void test_exact(void **state) {
    (void)state;
    static const struct {
        int32_t group, heads, dim;
    } shapes[] = {{1, 1, 16}, {2, 2, 64},  {3, 1, 20}, {4, 2, 24}, {5, 1, 32},
                  {6, 1, 48}, {7, 1, 256}, {8, 1, 80}, {2, 1, 128}};
    for (int32_t i = 0; i < COUNT(row_names); i++)
        for (int32_t s = 0; s < COUNT(shapes); s++)
            one_layer(row_names[i], method_names[s % 3], layer_of(shapes[s].group, shapes[s].heads, shapes[s].dim),
                      s % 2);
    for (int32_t i = 0; i < COUNT(row_names); i++)
        for (int32_t m = 0; m < COUNT(method_names); m++)
            one_layer(row_names[i], method_names[m], layer_of(2, 1, 32), false);
}

/* MLA latents, keys and values of unlike dims, and parts in every order that is served. */
static void test_parts(void **state) {
    (void)state;
    enum { BOTH = EBB_ROLE_K | EBB_ROLE_V };
    const ebb_kv_layer layers[] = {
        latent_of(4, 128, 32),
        latent_of(5, 48, 16),
        latent_of(3, 20, 6),
        latent_of(2, 64, 0),
        {.q_heads = 4, .heads = 2, .parts = 2, .part = {{64, EBB_ROLE_K}, {16, EBB_ROLE_V}}, .scale = 0.1f},
        {.q_heads = 2, .heads = 1, .parts = 2, .part = {{7, EBB_ROLE_K}, {33, EBB_ROLE_V}}, .scale = 0.3f},
        {.q_heads = 2, .heads = 2, .parts = 3, .part = {{32, EBB_ROLE_K}, {16, BOTH}, {48, EBB_ROLE_K}}, .scale = 0.1f},
        {.q_heads = 4,
         .heads = 2,
         .parts = 3,
         .part = {{16, EBB_ROLE_K}, {32, EBB_ROLE_K}, {80, EBB_ROLE_V}},
         .scale = 0.2f},
    };
    for (int32_t i = 0; i < COUNT(row_names); i++) {
        for (int32_t l = 0; l < COUNT(layers); l++)
            one_layer(row_names[i], method_names[(l + i) % 3], layers[l], l % 2);
        for (int32_t m = 0; m < COUNT(method_names); m++) one_layer(row_names[i], method_names[m], layers[0], false);
    }
}

/* ---- scores at the edges: the keys are written by hand, and every score is exact in FP32 ---- */

/* q = 1 and k = score[j] in dim 0, v_j = j in all dims: the output is the mean position of the softmax. */
static double mean_position(const char *row, const char *method, const double *score, int32_t n, double *got) {
    rig r;
    ebb_kv_layer layer = layer_of(1, 1, 16);
    layer.scale = 0.5f;
    *got = NAN;
    if (!rig_open(&r, row, method, layer, 1)) return NAN;
    call c = {1, {0}, {0}, {n}, {0}, false};
    tensors t;
    reserve(&r, &c);
    tensors_new(&t, &r, &c);
    double max = -INFINITY, total = 0, sum = 0;
    for (int32_t j = 0; j < n; j++) max = fmax(max, score[j]);
    for (int32_t j = 0; j < n; j++) {
        for (int d = 0; d < 16; d++) {
            t.q[j * 16 + d] = d ? 0 : 1;
            t.k[j * 16 + d] = d ? 3 : (float)(2 * score[j]);
            t.v[j * 16 + d] = (float)j;
        }
        total += exp(score[j] - max);
        sum += exp(score[j] - max) * j;
    }
    assert_int_equal(ebb_attn(r.queue, &r.plan, &t.args, NULL), EBB_OK);
    *got = (double)t.out[(n - 1) * 16 + 15];
    tensors_free(&t);
    rig_close(&r);
    return sum / total;
}

static double edge_score(int kind, int32_t j, int32_t n) {
    switch (kind) {
    case 0:
        return 0;
    case 1:
        return 1e4;
    case 2:
        return -1e4;
    case 3:
        return j == 70 ? 1e4 : -1e4;
    case 4:
        return j < 64 ? -1e4 : j % 2 ? 1e4 : 1e4 - 1;
    case 5:
        return 64 * j - 6400; /* rising: every block is a new maximum */
    case 6:
        return 6400 - 64 * j;
    default:
        return j == n - 1 ? 8192 : j;
    }
}

static void test_extreme_scores(void **state) {
    (void)state;
    enum { N = 200 };
    for (int32_t i = 0; i < COUNT(row_names); i++) {
        for (int kind = 0; kind < 8; kind++) {
            double score[N], got;
            for (int32_t j = 0; j < N; j++) score[j] = edge_score(kind, j, N);
            double want = mean_position(row_names[i], kind < 5 ? "fp32" : "fp16", score, N, &got);
            if (isnan(want)) continue; /* this CPU lacks the row */
            if (!(fabs(got - want) < 1e-4))
                fail_msg("%s, scores %d: %.9g, expected %.9g", row_names[i], kind, got, want);
        }
    }
}

/* ---- bits ---- */

enum { LONG = 150 };

static void assert_bits(const rig *r, const char *what, const float *a, const float *b, int64_t tokens) {
    size_t bytes = (size_t)(tokens * r->layer.q_heads * kv_shape_of(&r->layer).v) * sizeof *a;
    if (memcmp(a, b, bytes) != 0) fail_msg("%s %s: %s changes bits", r->plan.row_name, r->spec.method->name, what);
}

/* Sequence 0 in slot 2, cut into the given pieces (the last one as often as needed). */
static float *in_pieces(rig *r, const int32_t *piece, int32_t pieces) {
    size_t token = (size_t)(r->layer.q_heads * kv_shape_of(&r->layer).v);
    float *out = calloc(LONG * token, sizeof *out);
    for (int32_t pos = 0, i = 0; pos < LONG; i++) {
        call c = {1, {0}, {2}, {piece[i < pieces ? i : pieces - 1]}, {pos}, true};
        c.n[0] = c.n[0] < LONG - pos ? c.n[0] : LONG - pos;
        float *part = attend(r, &c);
        memcpy(out + (size_t)pos * token, part, (size_t)c.n[0] * token * sizeof *out);
        free(part);
        pos += c.n[0];
    }
    return out;
}

static void bits_of(const char *row, const char *method, ebb_kv_layer layer) {
    rig r;
    if (!rig_open(&r, row, method, layer, 1)) return;
    float *whole = in_pieces(&r, (int32_t[]){LONG}, 1);
    static const int32_t cuts[3][4] = {{1, 1, 1, 1}, {3, 61, 1, 30}, {64, 7, 2, 100}};
    for (int32_t i = 0; i < COUNT(cuts); i++) {
        float *out = in_pieces(&r, cuts[i], 4);
        assert_bits(&r, i ? "a prompt in pieces" : "single steps", out, whole, LONG);
        free(out);
    }

    /* Another slot, other pages, with mates before and after it. */
    call batch = {4, {3, 0, 7, 4}, {0, 4, -1, 5}, {77, LONG, 5, 1}, {0, 0, 0, 0}, true};
    float *out = attend(&r, &batch);
    assert_bits(&r, "a batch", out + 77 * r.layer.q_heads * kv_shape_of(&layer).v, whole, LONG);
    free(out);
    rig_close(&r);

    for (int32_t threads = 2; threads <= 4; threads++) {
        assert_true(rig_open(&r, row, method, layer, threads));
        out = in_pieces(&r, (int32_t[]){LONG}, 1);
        assert_bits(&r, "the number of threads", out, whole, LONG);
        free(out);
        rig_close(&r);
    }
    free(whole);
}

static void test_bits(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(row_names); i++) {
        for (int32_t m = 0; m < COUNT(method_names); m++) {
            bits_of(row_names[i], method_names[m], layer_of(3, 2, 48));
            bits_of(row_names[i], method_names[m], layer_of(1, 2, 16));
            bits_of(row_names[i], method_names[m], latent_of(5, 64, 16));
        }
        bits_of(row_names[i], "bf16", layer_of(2, 2, 256));
        bits_of(row_names[i], "bf16", latent_of(3, 512, 64));
    }
}

/* ---- what is not a key is not read ---- */

static void poison(rig *r) {
    const ebb_kv_view *v = ebb_kv_pool_view(r->pool, 0);
    memset(v->pages, 0xFF, (size_t)(v->page_bytes * SLOTS * v->block_stride)); /* NaN in all three formats */
}

static void test_stale_pages(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(row_names); i++) {
        for (int32_t m = 0; m < COUNT(method_names); m++) {
            rig r;
            if (!rig_open(&r, row_names[i], method_names[m], i % 2 ? layer_of(3, 2, 32) : latent_of(6, 32, 16), 2))
                continue;
            float *fresh = in_pieces(&r, (int32_t[]){40, 1, 30}, 3);
            ebb_kv_pool_release(r.pool, 2);
            poison(&r);
            float *out = in_pieces(&r, (int32_t[]){40, 1, 30}, 3);
            assert_bits(&r, "what a page held before", out, fresh, LONG);
            free(out);
            free(fresh);
            rig_close(&r);
        }
    }
}

/* A broken key or value shows in its own row and the later ones, and in no bit of an earlier one. */
static void test_broken_tokens(void **state) {
    (void)state;
    enum { N = 20, BROKEN = 13, DIM = 32 };
    static const float poisons[] = {NAN, INFINITY};
    for (int32_t i = 0; i < COUNT(row_names) * 4; i++) {
        rig r;
        if (!rig_open(&r, row_names[i / 4], "fp32", layer_of(2, 1, DIM), 1)) continue;
        call c = {1, {0}, {0}, {N}, {0}, false};
        float *clean = attend(&r, &c);
        tensors t;
        tensors_new(&t, &r, &c);
        (i % 2 ? t.k : t.v)[BROKEN * DIM + 5] = poisons[i / 2 % 2];
        assert_int_equal(ebb_attn(r.queue, &r.plan, &t.args, NULL), EBB_OK);
        assert_bits(&r, "a later token", t.out, clean, BROKEN);
        for (int32_t d = 0; d < N * 2 * DIM; d++) {
            if (d < BROKEN * 2 * DIM || (i % 2 == 0 && d % DIM != 5)) continue; /* a value touches its own dim only */
            if (poisons[i / 2 % 2] > 0 && i % 2) continue; /* an infinite score may be -inf: no weight */
            if (isfinite(t.out[d])) fail_msg("%s: a broken token does not show", r.plan.row_name);
        }
        tensors_free(&t);
        free(clean);
        rig_close(&r);
    }
}

/* ---- offsets beyond 2^31: a sparse foreign buffer ---- */

static void test_large_offsets(void **state) {
    (void)state;
    enum { DIM = 16, N = 300, STRIDE = 1 << 29, SLOT = 5 };
    for (int32_t i = 0; i < COUNT(row_names); i++) {
        rig r;
        if (!rig_open(&r, row_names[i], "bf16", layer_of(2, 2, DIM), 1)) continue;
        call c = {1, {0}, {SLOT}, {N}, {0}, false};
        float *want = attend(&r, &c);
        tensors t;
        tensors_new(&t, &r, &c);
        ebb_kv_view *s = &t.args.s;
        size_t pages = 6ull << 30, table = (size_t)SLOTS * STRIDE * sizeof(int32_t);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        s->pages = mmap(NULL, pages, PROT_READ | PROT_WRITE, flags, -1, 0);
        int32_t *block = mmap(NULL, table, PROT_READ | PROT_WRITE, flags, -1, 0);
        assert_true(s->pages != MAP_FAILED && (void *)block != MAP_FAILED);
        block[(int64_t)SLOT * STRIDE] = 3; /* this entry is beyond 2^31 entries */
        block[(int64_t)SLOT * STRIDE + 1] = 1;
        s->block = block;
        s->block_stride = STRIDE;
        s->page_bytes = 3ll << 29;
        s->head_bytes = 1ll << 28;
        s->plane_at[1] = 1ll << 26;
        assert_int_equal(ebb_attn(r.queue, &r.plan, &t.args, NULL), EBB_OK);
        assert_bits(&r, "a far page", t.out, want, N);
        const uint8_t *far = s->pages + 3 * s->page_bytes + s->head_bytes; /* 4.75 GiB: k of head 1, token 0 */
        uint16_t code;
        memcpy(&code, far, sizeof code);
        uint32_t bits = (uint32_t)code << 16;
        float first;
        memcpy(&first, &bits, sizeof first);
        assert_true(first == stored(&r, input(0, K, 0, 1, 0)));
        munmap(s->pages, pages);
        munmap(block, table);
        tensors_free(&t);
        free(want);
        rig_close(&r);
    }
}

/* ---- refusals ---- */

static void test_plan(void **state) {
    (void)state;
    rig r;
    ebb_error error = {0};
    ebb_plan plan;
    assert_true(rig_open(&r, NULL, "bf16", layer_of(2, 1, 64), 1));
    ebb_kv_view view = *ebb_kv_pool_view(r.pool, 0);
    assert_int_equal(ebb_attn_plan(r.device, &view, "avx9", 1, 1, 1, &plan, &error), EBB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "avx9"));
    assert_int_equal(ebb_attn_plan(r.device, &view, NULL, 0, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_attn_plan(r.device, &view, NULL, 1, -1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_attn_plan(r.device, &view, NULL, 1, 1, 0, &plan, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_attn_plan(r.device, NULL, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    ebb_kv_view bad = view;
    bad.rule.group = 4;
    assert_int_equal(ebb_attn_plan(r.device, &bad, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    bad = view;
    bad.page = 100;
    assert_int_equal(ebb_attn_plan(r.device, &bad, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    bad = view;
    bad.plane_bytes[1] = 64;
    assert_int_equal(ebb_attn_plan(r.device, &bad, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    ebb_kv_layer layer = r.layer;
    bad = view;
    bad.layer = &layer;
    layer.part[0].role = EBB_ROLE_K | EBB_ROLE_V; /* two values */
    assert_int_equal(ebb_attn_plan(r.device, &bad, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    layer = r.layer;
    layer.part[1].dims = 32; /* the view has planes of other bytes */
    assert_int_equal(ebb_attn_plan(r.device, &bad, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    bad.plane_bytes[1] = 64;
    assert_int_equal(ebb_attn_plan(r.device, &bad, NULL, 1, 1, 1, &plan, &error), EBB_OK);

    ebb_device_config none = {.size = sizeof none, .threads = 1, .features = EBB_CPU_NONE};
    ebb_device *device;
    assert_int_equal(ebb_device_open("cpu", &none, &device, NULL), EBB_OK);
    assert_int_equal(ebb_attn_plan(device, &view, "avx2", 1, 1, 1, &plan, &error), EBB_UNSUPPORTED);
    assert_int_equal(ebb_attn_plan(device, &view, NULL, 1, 1, 1, &plan, &error), EBB_OK);
    assert_string_equal(plan.row_name, "ref");
    ebb_device_close(device);
    rig_close(&r);

    assert_true(rig_open(&r, NULL, "bf16", layer_of(2, 1, 20), 1)); /* no vector row serves 20 dims */
    assert_string_equal(r.plan.row_name, "ref");
    rig_close(&r);
    assert_true(rig_open(&r, NULL, "bf16", latent_of(2, 64, 4), 1)); /* nor a part of 4 */
    assert_string_equal(r.plan.row_name, "ref");
    rig_close(&r);
}

typedef void (*spoil)(tensors *t, call *c, rig *r);
static void spoil_size(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.size--; }
static void spoil_slot(tensors *t, call *c, rig *r) { (void)t, (void)r, c->slot[0] = SLOTS; }
static void spoil_same_slot(tensors *t, call *c, rig *r) { (void)t, (void)r, c->slot[1] = c->slot[0]; }
static void spoil_pos(tensors *t, call *c, rig *r) { (void)t, (void)r, c->pos[0] = -1; }
static void spoil_far_pos(tensors *t, call *c, rig *r) { (void)t, (void)r, c->pos[1] = INT64_MAX; }
static void spoil_room(tensors *t, call *c, rig *r) { (void)t, (void)r, c->pos[1] = 256; }
static void spoil_cu(tensors *t, call *c, rig *r) { (void)c, (void)r, t->cu[1] = 9; }
static void spoil_cu0(tensors *t, call *c, rig *r) { (void)c, (void)r, t->cu[0] = 1; }
static void spoil_tokens(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.b.tokens = 4; }
static void spoil_many(tensors *t, call *c, rig *r) { (void)t, (void)c, r->plan.max_tokens = 4; }
static void spoil_type(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.k.type = EBB_BF16; }
static void spoil_heads(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.q.shape[1] = 2; }
static void spoil_dim(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.v.shape[2] = 8; }
static void spoil_rows(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.out.shape[0] = 4; }
static void spoil_last(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.q.stride[2] = 2; }
static void spoil_heads_apart(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.out.stride[1] = 17; }
static void spoil_overlap(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.out.stride[0] = 16; }
static void spoil_gate(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.gate.shape[1] = 1; }
static void spoil_data(tensors *t, call *c, rig *r) { (void)c, (void)r, t->args.v.data = NULL; }
static void spoil_arena(tensors *t, call *c, rig *r) { (void)t, (void)c, r->queue->arena_bytes = 64; }

static void test_bad_calls(void **state) {
    (void)state;
    static const spoil spoils[] = {spoil_size,    spoil_slot,  spoil_same_slot, spoil_pos,         spoil_far_pos,
                                   spoil_room,    spoil_cu,    spoil_cu0,       spoil_tokens,      spoil_many,
                                   spoil_type,    spoil_heads, spoil_dim,       spoil_rows,        spoil_last,
                                   spoil_overlap, spoil_gate,  spoil_data,      spoil_heads_apart, spoil_arena};
    for (int32_t i = -1; i < COUNT(spoils); i++) {
        rig r;
        assert_true(rig_open(&r, "ref", "fp32", layer_of(4, 1, 16), 1));
        const ebb_kv_view *v = ebb_kv_pool_view(r.pool, 0);
        size_t bytes = (size_t)(v->page_bytes * SLOTS * v->block_stride);
        memset(v->pages, 0x5A, bytes);
        call c = {2, {0, 1}, {0, 1}, {2, 3}, {0, 0}, true};
        tensors t;
        ebb_error error = {0};
        reserve(&r, &c);
        tensors_new(&t, &r, &c);
        if (i >= 0) spoils[i](&t, &c, &r);
        ebb_status status = ebb_attn(r.queue, &r.plan, &t.args, &error);
        if (status != (i < 0 ? EBB_OK : EBB_BAD_ARGUMENT)) fail_msg("spoil %d: status %d", i, (int)status);
        bool touched = false;
        for (size_t at = 0; at < bytes; at++) touched |= v->pages[at] != 0x5A;
        for (int32_t d = 0; d < 5 * 4 * 16; d++) touched |= t.out[d] != 0;
        assert_int_equal(touched, i < 0);
        if (i >= 0) assert_true(strlen(error.text) > 10);
        tensors_free(&t);
        rig_close(&r);
    }
}

/* A value beside a latent that holds it would be ignored: refused. */
static void test_value_beside_latent(void **state) {
    (void)state;
    rig r;
    assert_true(rig_open(&r, "ref", "fp32", latent_of(2, 16, 8), 1));
    call c = {1, {0}, {0}, {3}, {0}, false};
    tensors t;
    ebb_error error = {0};
    reserve(&r, &c);
    tensors_new(&t, &r, &c);
    t.args.v = t.args.k;
    assert_int_equal(ebb_attn(r.queue, &r.plan, &t.args, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "v has data"));
    t.args.v.data = NULL;
    assert_int_equal(ebb_attn(r.queue, &r.plan, &t.args, &error), EBB_OK);
    tensors_free(&t);
    rig_close(&r);
}

/* No sequence, no token, nothing but padding: nothing happens. */
static void test_nothing_to_do(void **state) {
    (void)state;
    rig r;
    assert_true(rig_open(&r, NULL, "fp32", layer_of(2, 1, 16), 2));
    call none = {0}, empty = {2, {0, 1}, {0, 1}, {0, 0}, {0, 5}, false},
         padding = {2, {0, 1}, {-1, -1}, {3, 1}, {0, 9}, true};
    free(attend(&r, &none));
    assert_int_equal(ebb_kv_pool_reserve(r.pool, 1, 5, NULL), EBB_OK);
    free(attend(&r, &empty));
    float *out = attend(&r, &padding);
    for (int d = 0; d < 4 * 2 * 16; d++) assert_true(out[d] == 0);
    free(out);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),         cmocka_unit_test(test_extreme_scores),
        cmocka_unit_test(test_bits),          cmocka_unit_test(test_stale_pages),
        cmocka_unit_test(test_broken_tokens), cmocka_unit_test(test_large_offsets),
        cmocka_unit_test(test_parts),         cmocka_unit_test(test_value_beside_latent),
        cmocka_unit_test(test_plan),          cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
