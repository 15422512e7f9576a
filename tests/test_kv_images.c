/* tests/test_kv_images.c: KV stores of every kind, saved at any position of a conversation and put into another pool,
 * go on bit for bit; equal content gives equal bytes, however it came about; copies go on independently; what is wrong
 * with an image is refused by name. */
#include "hyquant_world.h"

#include <stdio.h>

#include "core/image.h"
#include "ebb/image.h"

enum { TOKENS = 600 };

static const setup setups[] = {
    {"bf16", "full"},
    {"k4v4", "full"},
    {"k4v4:window=256", "full"},
    {"k8v8-vert:window=128", "full"},
    {"k4v4-vert:window=0", "full"},
    {"k4v4-vert:window=300,wide=bf16", "sage_w"},
    {"hyquant", "vquant_vert"},
    {"hyquant:window=64", "vquant_vert:window=64"},
    {"hyquant-k4v2:ratio=1,window=64", "vquant_vert:ratio=1,window=64"},
    {"k2v4-vert:ratio=0", "full"},
    {"kivi4", "full"},
    {"kivi2:residual=32", "full"},
    {"bf16", "vquant_vert:window=64"},
    {"k8v8", "sparse_only"},
    {"fp16", "vquant_vert:select=prompt"},
    {"hyquant:select=prompt", "vquant_vert:select=prompt"},
    {"hyquant:select=paper,window=64", "vquant_vert:select=paper,window=64"},
    {"k4v4-vert:select=prompt,window=0,ratio=1", "full"},
    {"kivi-hqq:residual=20", "full"},
};

/* A conversation: prompts in whole pieces, and tokens one by one. */
static const struct phase {
    int64_t begin, end;
    bool prompt;
} phases[] = {{0, 200, true}, {200, 300, true}, {300, 520, false}, {520, 580, true}, {580, TOKENS, false}};

/* From position `from` on. Where a piece begins or a token comes, `at` may look. */
static void talk(rig *r, int32_t slot, int64_t from, float *out, void (*at)(void *ctx, int64_t pos), void *ctx) {
    for (int32_t i = 0; i < COUNT(phases); i++)
        for (int64_t t = phases[i].begin; t < phases[i].end;) {
            const int64_t end = phases[i].prompt ? phases[i].end : t + 1;
            if (t >= from) {
                if (at) at(ctx, t);
                feed_all(r, 0, slot, t, end, phases[i].prompt, out);
            }
            t = end;
        }
}

/* ---- images ---- */

typedef struct image {
    uint8_t *data;
    size_t bytes;
} image;

static image save(const rig *r, int32_t slot, int64_t pos) {
    ebb_error error = {0};
    image i = {.bytes = ebb_kv_image_bytes(r->pool, slot, pos, NULL, &error)};
    if (!i.bytes) fail_msg("%s", error.text);
    i.data = malloc(i.bytes);
    memset(i.data, 0xA5, i.bytes);
    if (ebb_kv_save(r->pool, slot, pos, NULL, i.data, i.bytes, &error)) fail_msg("%s", error.text);
    return i;
}

/* Bytes that are NaN in every float format, and marks of every key. */
static void poison(const rig *r) {
    const ebb_kv_view *v = ebb_kv_pool_view(r->pool, 0);
    memset(v->pages, 0xFF, (size_t)(v->page_bytes * v->slots * v->block_stride));
    if (v->tail) memset(v->tail, 0xFF, (size_t)(v->tail_slot * v->slots));
    if (v->extra) memset(v->extra, 0xFF, (size_t)(v->extra_slot * v->slots));
}

/* Another pool of the same store. */
static void open_other(rig *r, const rig *like, int32_t slots, int32_t max_new, int64_t tokens) {
    ebb_device_config device = {.size = sizeof device, .threads = 1};
    *r = *like;
    r->max_tokens = tokens;
    assert_int_equal(ebb_device_open("cpu", &device, &r->device, NULL), EBB_OK);
    ebb_kv_pool_config c = {sizeof c, &r->spec, &r->layer, 1, slots, tokens, 0, max_new, &r->prefill};
    assert_int_equal(ebb_kv_pool_open(r->device, &c, &r->pool, NULL), EBB_OK);
    const ebb_kv_view *v = ebb_kv_pool_view(r->pool, 0);
    assert_int_equal(ebb_attn_plan(r->device, v, NULL, slots, max_new, 4 * tokens, &r->plan, NULL), EBB_OK);
    assert_int_equal(ebb_queue_open(r->device, r->plan.scratch, &r->queue, NULL), EBB_OK);
}

typedef struct keeping {
    const rig *r;
    image *images; /* [TOKENS] */
} keeping;

static void keep(void *ctx, int64_t pos) {
    static const int64_t at[] = {0, 200, 300, 301, 383, 384, 385, 428, 511, 512, 513, 520, 580, 581, 599};
    keeping *k = ctx;
    for (int32_t i = 0; i < COUNT(at); i++)
        if (at[i] == pos && (pos || ebb_kv_pool_slot_bytes(k->r->pool, 1))) k->images[pos] = save(k->r, 1, pos);
}

static void going_on(const setup *u, ebb_kv_layer layer) {
    rig a, b;
    rig_open(&a, u->method, u->prefill, layer, TOKENS);
    float *want = outputs(&a), *got = outputs(&a);
    image images[TOKENS] = {0};
    keeping k = {&a, images};
    talk(&a, 1, 0, want, keep, &k);
    const bool rewrites = a.spec.method->codec->rewrite != NULL; /* when it does depends on max_new */
    open_other(&b, &a, 3, rewrites ? MAX_NEW : 2, TOKENS + 500);
    for (int64_t at = 0; at < TOKENS; at++) {
        ebb_error error = {0};
        int64_t pos = -1;
        if (!images[at].data) continue;
        poison(&b);
        if (ebb_kv_load(b.pool, 2, images[at].data, images[at].bytes, &pos, &error))
            fail_msg("%s at %lld: %s", u->method, (long long)at, error.text);
        assert_int_equal(pos, at);
        image again = save(&b, 2, pos);
        assert_int_equal(again.bytes, images[at].bytes);
        if (memcmp(again.data, images[at].data, again.bytes) != 0)
            fail_msg("%s, %s at %lld: another image of what was loaded", u->method, u->prefill, (long long)at);
        assert_int_equal(ebb_kv_pool_copy(b.pool, 2, 0, pos, NULL), EBB_OK);
        talk(&b, 2, at, got, NULL, NULL);
        assert_bits(&b, "an image", got, want, at, TOKENS);
        talk(&b, 0, at, got, NULL, NULL);
        assert_bits(&b, "a copy", got, want, at, TOKENS);
        ebb_kv_pool_release(b.pool, 0), ebb_kv_pool_release(b.pool, 2);
        free(again.data), free(images[at].data);
    }
    free(want), free(got);
    rig_close(&a), rig_close(&b);
}

static void test_going_on(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(setups); i++) {
        going_on(&setups[i], layer_of(2, 2, 8));
        if (i % 4 == 2) going_on(&setups[i], latent_of(2, 16, 4));
    }
}

/* 400 tokens one by one, in one piece, in pieces of 1, 3, 17 and 128, alone or in a batch: the same bytes. */
static void test_pieces(void **state) {
    (void)state;
    enum { N = 400 };
    static const int32_t sizes[] = {1, 3, 17, 128, 300};
    for (int32_t i = 0; i < COUNT(setups); i++) {
        rig r;
        rig_open(&r, setups[i].method, setups[i].prefill, layer_of(2, 2, 8), TOKENS);
        if (!ebb_kv_pool_view(r.pool, 0)->rule.pure || r.prefill.select > EBB_SELECT_SEGMENT) {
            rig_close(&r); /* the end of a prompt is an input of such a store */
            continue;
        }
        float *out = calloc((size_t)(SLOTS * TOKENS * row_floats(&r)), sizeof *out);
        feed_all(&r, 0, 0, 0, N, true, out);
        image whole = save(&r, 0, N);
        for (int32_t k = 0; k <= COUNT(sizes) + 1; k++) {
            ebb_kv_pool_release(r.pool, 1);
            if (k < COUNT(sizes)) feed(&r, 0, 1, 0, N, true, &sizes[k], 1, 0, out);
            else if (k == COUNT(sizes)) feed_all(&r, 0, 1, 0, N, false, out);
            else {
                call c = {3, {4, 0, 5}, {3, 1, 2}, {77, N, 500}, {0, 0, 0}, true, 0};
                run(&r, &c, out);
            }
            image other = save(&r, 1, N);
            assert_int_equal(other.bytes, whole.bytes);
            if (memcmp(other.data, whole.data, whole.bytes) != 0)
                fail_msg("%s, %s: other bytes in pieces, case %d", setups[i].method, setups[i].prefill, k);
            free(other.data);
        }
        free(whole.data), free(out);
        rig_close(&r);
    }
}

/* Drafts that are rejected leave nothing in an image. */
static void test_rejected_drafts(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(setups); i++) {
        rig r;
        rig_open(&r, setups[i].method, setups[i].prefill, layer_of(2, 2, 8), TOKENS);
        if (r.spec.method->codec->rewrite) {
            rig_close(&r);
            continue;
        }
        float *out = outputs(&r);
        feed_all(&r, 0, 0, 0, 300, true, out);
        feed_all(&r, 0, 1, 0, 300, true, out);
        for (int64_t pos = 300; pos < 530; pos++) {
            feed_all(&r, 0, 0, pos, pos + 1, false, out);
            call c = {1, {0}, {1}, {MAX_NEW}, {pos}, false, pos + 1};
            run(&r, &c, out);
            if (pos < 500 || pos % 3) continue;
            image a = save(&r, 0, pos + 1), b = save(&r, 1, pos + 1);
            assert_int_equal(a.bytes, b.bytes);
            if (memcmp(a.data, b.data, a.bytes) != 0)
                fail_msg("%s, %s: drafts behind %lld are in the image", setups[i].method, setups[i].prefill,
                         (long long)pos);
            free(a.data), free(b.data);
        }
        free(out);
        rig_close(&r);
    }
}

/* ---- rows ---- */

/* Rows as the next query reads them: 16-bit rows behind the bounds, vertical keys, and codes. */
static void test_rows(void **state) {
    (void)state;
    static const char *const methods[] = {"k4v4-vert:window=64", "k8v8:window=100", "k4v4-vert:select=prompt", "kivi4"};
    for (int32_t m = 0; m < COUNT(methods); m++) {
        rig r;
        rig_open(&r, methods[m], "full", layer_of(2, 2, 8), TOKENS);
        const ebb_kv_view *v = ebb_kv_pool_view(r.pool, 0);
        float *out = outputs(&r), *rows = calloc(TOKENS * 2 * 16, sizeof *rows);
        feed_all(&r, 0, 0, 0, 500, true, out);
        feed_all(&r, 0, 0, 500, 520, false, out);
        assert_int_equal(ebb_kv_read(r.pool, 0, 0, 520, 0, 520, rows, NULL), EBB_OK);
        int32_t exact = 0;
        for (int64_t t = 0; t < 520; t++)
            for (int32_t h = 0; h < 2; h++) {
                const bool k_wide = t >= ebb_kv_bound(&v->rule, EBB_ROLE_K, 520),
                           v_wide = t >= ebb_kv_bound(&v->rule, EBB_ROLE_V, 520);
                const kv_verticals verticals = kv_verticals_of(v, &r.kv, 0, h, t);
                bool vertical = false, k_same = true, v_same = true;
                for (int32_t i = 0; i < verticals.n && !k_wide; i++) vertical |= verticals.place[i] == t % 256;
                for (int32_t d = 0; d < 8; d++) {
                    const float k = input(0, K, t, h, d), value = input(0, V, t, h, d), *row = rows + (t * 2 + h) * 16;
                    assert_true(fabsf(row[d] - k) <= .45f && fabsf(row[8 + d] - value) <= .45f);
                    k_same &= fabsf(row[d] - k) <= fabsf(k) * 0x1p-11f + 0x1p-25f;
                    v_same &= fabsf(row[8 + d] - value) <= fabsf(value) * 0x1p-11f + 0x1p-25f;
                }
                if (k_wide || vertical) assert_true(k_same);
                if (v_wide || vertical) assert_true(v_same);
                exact += k_same && !k_wide;
            }
        if (v->rule.select) assert_true(exact >= 2 * 13);
        else assert_int_equal(exact, 0);
        ebb_error error = {0};
        assert_int_equal(ebb_kv_read(r.pool, 0, 0, 500, 0, 520, rows, &error), EBB_BAD_ARGUMENT);
        ebb_status status = ebb_kv_write(r.pool, 0, 0, 0, 520, rows, &error);
        assert_int_equal(status, v->rule.select ? EBB_UNSUPPORTED : EBB_OK);
        if (status) assert_non_null(strstr(error.text, "KV store of k4v4-vert"));
        free(out), free(rows);
        rig_close(&r);
    }
}

/* ---- refusals ---- */

static void refused(rig *r, const image *i, size_t bytes, ebb_status expected, const char *part) {
    ebb_error error = {0};
    int64_t pos = 77;
    ebb_status status = ebb_kv_load(r->pool, 1, i->data, bytes, &pos, &error);
    if (status != expected || (part && !strstr(error.text, part))) fail_msg("%d: %s", status, error.text);
    assert_int_equal(pos, 77);
    assert_int_equal(ebb_kv_pool_view(r->pool, 0)->block[ebb_kv_pool_view(r->pool, 0)->block_stride], -1);
}

static void test_refusals(void **state) {
    (void)state;
    static const setup others[][2] = {{{"k4v4:window=256", "full"}, {"k4v4:window=255", "full"}},
                                      {{"k4v4-vert", "full"}, {"k4v4-vert:ratio=0.06", "full"}},
                                      {{"hyquant", "full"}, {"k4v4-vert", "full"}},
                                      {{"bf16", "vquant_vert"}, {"bf16", "full"}},
                                      {{"bf16", "full"}, {"bf16", "vquant_vert:window=0"}},
                                      {{"kivi4", "full"}, {"kivi2", "full"}}};
    for (int32_t i = 0; i < COUNT(others); i++) {
        rig a, b;
        rig_open(&a, others[i][0].method, others[i][0].prefill, layer_of(2, 1, 8), 300);
        rig_open(&b, others[i][1].method, others[i][1].prefill, layer_of(2, 1, 8), 300);
        float *out = outputs(&a);
        feed_all(&a, 0, 0, 0, 280, true, out);
        image saved = save(&a, 0, 280);
        refused(&b, &saved, saved.bytes, EBB_BAD_ARGUMENT, "this KV store has");
        for (size_t cut = 0; cut < saved.bytes; cut += 1 + saved.bytes / 40)
            refused(&a, &saved, cut, EBB_BAD_FILE, NULL);
        free(saved.data), free(out);
        rig_close(&a), rig_close(&b);
    }
}

/* Damage with a right checksum: what a hostile writer would send. Whatever is accepted can be gone on with; sanitizers
 * see that nothing is read or written out of bounds. */
static void test_hostile(void **state) {
    (void)state;
    static const setup some[] = {{"k4v4-vert:window=0", "full"},
                                 {"hyquant:select=prompt,window=32", "vquant_vert:select=prompt,window=32"},
                                 {"bf16", "vquant_vert"},
                                 {"kivi-hqq", "full"}};
    int32_t accepted = 0, rejected = 0;
    for (int32_t i = 0; i < COUNT(some); i++) {
        rig r;
        rig_open(&r, some[i].method, some[i].prefill, layer_of(1, 1, 8), 320);
        float *out = outputs(&r);
        feed_all(&r, 0, 0, 0, 290, true, out);
        feed_all(&r, 0, 0, 290, 300, false, out);
        image good = save(&r, 0, 300);
        ebb_image_info info;
        assert_int_equal(ebb_image_describe(good.data, good.bytes, &info, NULL), EBB_OK);
        const size_t text_end = (size_t)((const uint8_t *)info.text - good.data) + info.text_bytes;
        uint64_t seed = (uint64_t)i << 32;
        for (int round = 0; round < 1500; round++) {
            size_t n = good.bytes;
            uint8_t *bad = malloc(n);
            memcpy(bad, good.data, n);
            for (uint64_t k = 0, flips = 1 + mix64(seed++) % 3; k < flips; k++) {
                const uint8_t values[] = {0, 1, 0x7F, 0x80, 0xFF, (uint8_t)mix64(seed)};
                size_t at = mix64(seed++) % n;
                if (round % 4 == 1) at = text_end + mix64(seed++) % 40; /* live fields, counts, places */
                if (round % 4 == 2) at = 24 + mix64(seed++) % 8;        /* the position */
                bad[at] = values[mix64(seed++) % COUNT(values)];
            }
            image_seal(bad, n);
            int64_t pos = -1;
            if (ebb_kv_load(r.pool, 1, bad, n, &pos, NULL)) rejected++;
            else {
                accepted++;
                assert_true(pos >= 0 && pos <= 320);
                if (pos < 320) feed_all(&r, 0, 1, pos, pos + 1, round % 2, out);
            }
            ebb_kv_pool_release(r.pool, 1);
            free(bad);
        }
        free(good.data), free(out);
        rig_close(&r);
    }
    assert_true(accepted > 100 && rejected > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_going_on), cmocka_unit_test(test_pieces),   cmocka_unit_test(test_rejected_drafts),
        cmocka_unit_test(test_rows),     cmocka_unit_test(test_refusals), cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
