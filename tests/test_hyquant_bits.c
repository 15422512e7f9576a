/* tests/test_hyquant_bits.c: promises about the bits of attention over low-bit KV stores: pieces, batches, slots,
 * threads, drafts, later tokens and what a slot held before change nothing that they may not. What it computes:
 * test_hyquant.c. */
#include "hyquant_world.h"

enum { LONG = 540 };

/* What is decided from tokens that have come, and not from where a prompt ends. */
static const setup pure[] = {
    {"k4v4", "full"},
    {"k4v4:window=256", "full"},
    {"k8v8-vert:window=128", "full"},
    {"kivi4", "full"},
    {"kivi2", "sage_w"},
    {"bf16", "sage_w0"},
    {"fp16", "sage_w:window=70"},
    {"bf16", "vquant_vert"},
    {"bf16", "vquant_vert:window=0,ratio=0.2,pv=fp8"},
    {"bf16", "sparse_only:window=128"},
    {"k4v4", "vquant_vert"},
    {"k4v4", "sage_w0"},
    {"k2v4:window=64", "sage_w0"},
    {"hyquant", "vquant_vert"},
    {"hyquant:window=0", "vquant_vert:window=0"},
    {"hyquant:ratio=1", "vquant_vert:ratio=1"},
    {"k4v4-vert", "sage_w0:pv=fp8"},
    {"k4v4-vert", "sparse_only"},
};

/* Bytes of the codes of tokens below `tokens` and of the vertical keys of whole intervals. */
static uint8_t *store_bytes(const rig *r, int32_t slot, int64_t tokens, size_t *bytes) {
    const ebb_kv_view *s = ebb_kv_pool_view(r->pool, 0);
    ebb_planes planes;
    ebb_kv_rule rule;
    assert_int_equal(s->codec->layout(s->layer, s->param, &rule, &planes, NULL), EBB_OK);
    const int64_t overlay = s->head_bytes - s->overlay_at;
    uint8_t *all = calloc((size_t)(tokens * s->layer->heads), planes.bytes + (size_t)overlay), *to = all;
    for (int32_t h = 0; h < s->layer->heads; h++) {
        for (int64_t t = 0; t + rule.group <= tokens; t += rule.group, to += planes.bytes)
            kv_fetch(s, &planes, slot, h, t, to);
        for (int64_t t = 0; s->marks && t + EBB_GRID <= tokens; t += EBB_GRID) {
            memcpy(to, kv_marks(s, slot, h, 0, t), 32);
            to += 32;
            kv_verticals v = kv_verticals_of(s, &r->kv, slot, h, t);
            if (v.n == 0) continue;
            memcpy(to, v.place, (size_t)v.n);
            to += v.n;
            memcpy(to, v.rows, (size_t)(v.n * r->kv.all) * 2);
            to += v.n * r->kv.all * 2;
        }
    }
    *bytes = (size_t)(to - all);
    return all;
}

static void assert_store(const rig *r, const char *what, int32_t slot, int64_t tokens, const uint8_t *want,
                         size_t want_bytes) {
    size_t bytes;
    uint8_t *got = store_bytes(r, slot, tokens, &bytes);
    if (bytes != want_bytes || memcmp(got, want, bytes) != 0)
        fail_msg("%s, prefill mode %d: %s changes the store", r->spec.method->name, r->prefill.mode, what);
    free(got);
}

static void pieces_of(const setup *u, ebb_kv_layer layer) {
    static const int32_t cuts[][4] = {{1, 1, 1, 1}, {3, 61, 1, 30}, {64, 7, 2, 100}, {256, 256, 17, 300}, {257, 128}};
    rig r;
    size_t bytes;
    rig_open(&r, u->method, u->prefill, layer, LONG);
    float *whole = outputs(&r), *out = outputs(&r);
    feed_all(&r, 0, 1, 0, LONG, true, whole);
    uint8_t *store = store_bytes(&r, 1, LONG, &bytes);
    for (int32_t i = 0; i < COUNT(cuts); i++) {
        ebb_kv_pool_release(r.pool, 2);
        feed(&r, 0, 2, 0, LONG, true, cuts[i], cuts[i][3] ? 4 : 2, 0, out);
        assert_bits(&r, "a prompt in pieces", out, whole, 0, LONG);
        assert_store(&r, "a prompt in pieces", 2, LONG, store, bytes);
    }
    if (r.prefill.mode == EBB_PREFILL_FULL) {
        feed(&r, 0, 3, 0, LONG, false, (int32_t[]){1, 2, MAX_NEW}, 3, 0, out);
        assert_bits(&r, "steps", out, whole, 0, LONG);
        assert_store(&r, "steps", 3, LONG, store, bytes);
    }
    free(store), free(whole), free(out);
    rig_close(&r);
}

static void test_pieces(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(pure); i++) {
        pieces_of(&pure[i], layer_of(3, 1, 16));
        if (i % 3 == 0) pieces_of(&pure[i], latent_of(2, 32, 8));
    }
}

/* Other slots, mates of other lengths, threads: the same. Also with a choice by prompt. */
static void test_batches(void **state) {
    (void)state;
    static const setup whole[] = {{"hyquant:select=prompt", "vquant_vert:select=prompt"},
                                  {"hyquant:select=paper", "vquant_vert:select=paper"},
                                  {"bf16", "vquant_vert:select=paper"},
                                  {"k4v4-vert:select=paper,window=64", "full"},
                                  {"kivi-hqq", "full"}};
    for (int32_t u = 0; u < COUNT(pure) + COUNT(whole); u++) {
        const setup *one = u < COUNT(pure) ? &pure[u] : &whole[u - COUNT(pure)];
        float *want = NULL;
        for (int32_t threads = 1; threads <= 2; threads++) {
            rig r;
            ebb_error error;
            if (rig_try(&r, one->method, one->prefill, layer_of(2, 2, 8), LONG, threads, &error))
                fail_msg("%s", error.text);
            const int64_t row = row_floats(&r);
            float *out = calloc((size_t)(4 * LONG * row), sizeof *out), *got = outputs(&r);
            if (threads == 1) {
                want = outputs(&r);
                feed_all(&r, 5, 0, 0, 500, true, want);
                feed(&r, 5, 0, 500, 515, false, (int32_t[]){1}, 1, 0, want);
                feed_all(&r, 5, 0, 515, LONG, true, want);
            }
            call prompt = {4, {7, 8, 5, 9}, {3, 0, 1, -1}, {1, 300, 500, 5}, {0, 0, 0, 0}, true, 0};
            run(&r, &prompt, out);
            memcpy(got, out + 301 * row, (size_t)(500 * row) * sizeof *out);
            for (int64_t t = 500; t < 515; t++) {
                call step = {3, {5, 8, 7}, {1, 0, 3}, {1, 1, 0}, {t, t - 200, 1}, false, 0};
                run(&r, &step, out);
                memcpy(got + t * row, out, (size_t)row * sizeof *out);
            }
            call again = {2, {8, 5}, {0, 1}, {200, 25}, {315, 515}, true, 0};
            run(&r, &again, out);
            memcpy(got + 515 * row, out + 200 * row, (size_t)(25 * row) * sizeof *out);
            assert_bits(&r, threads == 1 ? "a batch" : "the number of threads", got, want, 0, LONG);
            free(out), free(got);
            rig_close(&r);
        }
        free(want);
    }
}

/* Tokens at or after a multiple of the grid change nothing before it. */
static void test_visibility(void **state) {
    (void)state;
    for (int32_t u = 0; u < COUNT(pure); u++) {
        rig r;
        size_t bytes;
        rig_open(&r, pure[u].method, pure[u].prefill, layer_of(2, 1, 32), LONG);
        float *a = outputs(&r), *b = outputs(&r);
        feed_all(&r, 0, 0, 0, LONG, true, a);
        feed(&r, 0, 1, 0, LONG, true, (int32_t[]){LONG}, 1, 512, b);
        assert_bits(&r, "a later token", a, b, 0, 512);
        assert_memory_not_equal(a + 512 * row_floats(&r), b + 512 * row_floats(&r), (size_t)row_floats(&r) * 4);
        uint8_t *store = store_bytes(&r, 0, 512, &bytes);
        assert_store(&r, "a later token", 1, 512, store, bytes);
        free(store), free(a), free(b);
        rig_close(&r);
    }
}

/* Drafts that are rejected: the tokens behind `keep` are wrong, and are computed again from there. */
static void test_drafts(void **state) {
    (void)state;
    static const char *const methods[] = {"k4v4",
                                          "k4v4:window=256",
                                          "k4v4-vert:window=0",
                                          "k8v8-vert",
                                          "kivi4:residual=64",
                                          "k4v4-vert:select=prompt",
                                          "hyquant",
                                          "k4v4-vert:select=paper,window=32"};
    for (int32_t m = 0; m < COUNT(methods); m++) {
        rig r;
        rig_open(&r, methods[m], "full", layer_of(2, 2, 16), LONG);
        float *want = outputs(&r), *got = outputs(&r);
        feed_all(&r, 1, 0, 0, 200, true, want);
        feed(&r, 1, 0, 200, LONG, false, (int32_t[]){1}, 1, 0, want);
        feed_all(&r, 1, 2, 0, 200, true, got);
        for (int64_t pos = 200, i = 0; pos < LONG; i++) {
            const int64_t n = min_i64(1 + (i * 7) % MAX_NEW, LONG - pos), keep = 1 + (i * 3) % n;
            call c = {1, {1}, {2}, {(int32_t)n}, {pos}, false, keep < n ? pos + keep : 0};
            run(&r, &c, got + pos * row_floats(&r));
            assert_bits(&r, "a rejected draft", got, want, pos, pos + keep);
            if (i % 4 == 0) run(&r, &c, got + pos * row_floats(&r)); /* a step that is repeated */
            assert_bits(&r, "a repeated step", got, want, pos, pos + keep);
            pos += keep;
        }
        free(want), free(got);
        rig_close(&r);
    }
}

/* A slot that was in use, filled with bytes that are NaN in every float format. */
static void test_stale_slots(void **state) {
    (void)state;
    static const setup more[] = {{"hyquant:select=prompt", "vquant_vert:select=prompt"},
                                 {"k4v4-vert:select=paper", "sparse_only:select=paper,window=256"}};
    for (int32_t u = 0; u < COUNT(pure) + COUNT(more); u++) {
        const setup *one = u < COUNT(pure) ? &pure[u] : &more[u - COUNT(pure)];
        rig r;
        rig_open(&r, one->method, one->prefill, layer_of(3, 1, 16), LONG);
        const ebb_kv_view *s = ebb_kv_pool_view(r.pool, 0);
        float *a = outputs(&r), *b = outputs(&r);
        feed_all(&r, 0, 0, 0, 525, true, a);
        feed_all(&r, 0, 0, 525, LONG, false, a);
        ebb_kv_pool_release(r.pool, 0);
        memset(s->pages, 0xFF, (size_t)(s->page_bytes * SLOTS * s->block_stride));
        if (s->tail) memset(s->tail, 0xFF, (size_t)(s->tail_slot * SLOTS));
        if (s->extra) memset(s->extra, 0xFF, (size_t)(s->extra_slot * SLOTS));
        feed_all(&r, 0, 0, 0, 525, true, b);
        feed_all(&r, 0, 0, 525, LONG, false, b);
        assert_bits(&r, "what a slot held before", b, a, 0, LONG);
        free(a), free(b);
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces), cmocka_unit_test(test_batches),     cmocka_unit_test(test_visibility),
        cmocka_unit_test(test_drafts), cmocka_unit_test(test_stale_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
