/* tests/test_hyquant.c: what attention over low-bit KV stores computes: codes, vertical keys and the 16-bit tail, and
 * the modes of prefill. Against a full softmax in FP64 that follows the definitions of ebb/kv.h, and against outputs of
 * an independent implementation in NumPy (data/make_hyquant_golden.py). Promises about bits: test_hyquant_bits.c. */
#include "hyquant_world.h"

#include <stdio.h>

enum { LONG = 540 };

/* ---- in FP64 from the definitions: how a query reads each key of its sequence ---- */

/* One sequence of `tokens` tokens and one KV head. */
typedef struct exact {
    const rig *r;
    const ebb_kv_view *s;
    int32_t id, head;
    int64_t tokens;
    float *coded, *wide; /* [tokens][all] */
    bool *vertical;      /* of the keys of whole intervals */
} exact;

static void exact_codes(exact *e, const ebb_planes *planes) {
    const int64_t group = e->s->rule.group, all = e->r->kv.all;
    float *rows = calloc((size_t)(group * all), sizeof *rows), *tmp = calloc(planes->scratch + 1, sizeof *tmp);
    void *packed = calloc(1, planes->bytes);
    for (int64_t first = 0; first + group <= e->tokens; first += group) {
        for (int pass = 0; pass < 2; pass++) { /* in, then out */
            float *part = rows;
            for (int64_t i = 0, at = 0; i < e->r->layer.parts; at += e->r->layer.part[i++].dims)
                for (int64_t t = 0; t < group; t++)
                    for (int32_t d = 0; d < e->r->layer.part[i].dims; d++, part++) {
                        float *wide = e->wide + (first + t) * all + at + d;
                        if (pass) e->coded[(first + t) * all + at + d] = *part;
                        else *part = *wide;
                    }
            if (pass) break;
            e->s->codec->encode(&e->r->layer, e->s->param, rows, packed, tmp);
            e->s->codec->decode(&e->r->layer, e->s->param, packed, rows);
        }
    }
    free(rows), free(tmp), free(packed);
}

/* The vertical keys of one interval: the highest scores of its last queries, found by repeated search. */
static void exact_segment(exact *e, int64_t first) {
    const rig *r = e->r;
    const int64_t group = r->layer.q_heads / r->layer.heads, w = e->s->rule.window[0],
                  last = w && w < EBB_GRID ? w : EBB_GRID;
    double *query = calloc((size_t)r->kv.k, sizeof *query), score[EBB_GRID];
    for (int64_t t = first + EBB_GRID - last; t < first + EBB_GRID; t++)
        for (int64_t h = 0; h < group; h++)
            for (int32_t d = 0; d < r->kv.k; d++)
                query[d] += (double)input(e->id, Q, t, e->head * group + h, d) / (double)group;
    for (int64_t t = 0; t < EBB_GRID; t++) {
        score[t] = 0;
        for (int32_t d = 0; d < r->kv.k; d++) score[t] += query[d] * (double)e->wide[(first + t) * r->kv.all + d];
    }
    for (int64_t n = (int64_t)ceil(e->s->rule.ratio * EBB_GRID); n > 0; n--) {
        int64_t best = -1;
        for (int64_t t = 0; t < EBB_GRID; t++)
            if (!e->vertical[first + t] && (best < 0 || score[t] > score[best])) best = t;
        e->vertical[first + best] = true;
    }
    free(query);
}

static exact exact_new(const rig *r, int32_t id, int32_t head, int64_t tokens) {
    exact e = {r, ebb_kv_pool_view(r->pool, 0), id, head, tokens, NULL, NULL, NULL};
    const size_t values = (size_t)(tokens * r->kv.all);
    e.coded = calloc(values, sizeof(float));
    e.wide = calloc(values, sizeof(float));
    e.vertical = calloc((size_t)tokens, sizeof(bool));
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t d = 0; d < r->kv.all; d++) {
            float x = d < r->kv.k ? input(id, K, t, head, d) : input(id, V, t, head, d - r->kv.v_at);
            if (e.s->rule.tail == EBB_FP16) x = fp16_to_float(float_to_fp16(x));
            if (e.s->rule.tail == EBB_BF16) x = bf16_to_float(float_to_bf16(x));
            e.wide[t * r->kv.all + d] = x;
        }
    ebb_kv_rule rule;
    ebb_planes planes;
    assert_int_equal(e.s->codec->layout(&r->layer, e.s->param, &rule, &planes, NULL), EBB_OK);
    exact_codes(&e, &planes);
    if (rule.select == EBB_SELECT_SEGMENT)
        for (int64_t b = EBB_GRID; b <= tokens; b += EBB_GRID) exact_segment(&e, b - EBB_GRID);
    return e;
}

static void exact_free(exact *e) { free(e->coded), free(e->wide), free(e->vertical); }

/* Full attention of query head `n` of the group at position i. */
static void exact_row(const exact *e, int64_t i, int64_t n, double *out) {
    const rig *r = e->r;
    const int64_t q_head = e->head * (r->layer.q_heads / r->layer.heads) + n, all = r->kv.all,
                  codes = ebb_kv_bound(&e->s->rule, EBB_ROLE_K, i), values = ebb_kv_bound(&e->s->rule, EBB_ROLE_V, i);
    double max = -INFINITY, total = 0, *score = calloc((size_t)i + 1, sizeof *score);
    for (int64_t j = 0; j <= i; j++) {
        const float *k = (j < codes && !e->vertical[j] ? e->coded : e->wide) + j * all;
        for (int32_t d = 0; d < r->kv.k; d++) score[j] += (double)input(e->id, Q, i, q_head, d) * (double)k[d];
        score[j] *= (double)r->layer.scale;
        max = fmax(max, score[j]);
    }
    for (int32_t d = 0; d < r->kv.v; d++) out[d] = 0;
    for (int64_t j = 0; j <= i; j++) {
        const float *v = (j < values && !e->vertical[j] ? e->coded : e->wide) + j * all + r->kv.v_at;
        const double w = exp(score[j] - max);
        for (int32_t d = 0; d < r->kv.v; d++) out[d] += w * (double)v[d];
        total += w;
    }
    for (int32_t d = 0; d < r->kv.v; d++) out[d] /= total;
    free(score);
}

/* A prompt, then generated tokens, then a prompt again, all against FP64 at every `each`-th token, as near as fast rows
 * are, which have the queries of codes in 16 bits. */
static void one_exact(const char *method, ebb_kv_layer layer, int64_t prompt, int64_t steps, int64_t again,
                      int64_t each) {
    rig r;
    const int64_t tokens = prompt + steps + again;
    rig_open(&r, method, "full", layer, tokens);
    float *out = outputs(&r);
    feed_all(&r, 3, 2, 0, prompt, true, out);
    feed_all(&r, 3, 2, prompt, prompt + steps, false, out);
    feed_all(&r, 3, 2, prompt + steps, tokens, true, out);
    for (int32_t head = 0; head < layer.heads; head++) {
        exact e = exact_new(&r, 3, head, tokens);
        for (int64_t i = 0; i < tokens; i++) {
            if (i % each && i != tokens - 1 && i != prompt) continue;
            for (int32_t n = 0; n < layer.q_heads / layer.heads; n++) {
                double want[EBB_MAX_HEAD_DIM];
                exact_row(&e, i, n, want);
                const float *got = out + i * row_floats(&r) + (head * (layer.q_heads / layer.heads) + n) * r.kv.v;
                for (int32_t d = 0; d < r.kv.v; d++)
                    if (!(fabs((double)got[d] - want[d]) < 1e-3 * (1 + fabs(want[d]))))
                        fail_msg("%s, token %lld, head %d.%d [%d]: %g, expected %g", method, (long long)i, head, n, d,
                                 (double)got[d], want[d]);
            }
        }
        exact_free(&e);
    }
    free(out);
    rig_close(&r);
}

static void test_exact(void **state) {
    (void)state;
    static const char *const methods[] = {"k8v8",
                                          "k4v4",
                                          "k4v2",
                                          "k2v4:grid=paper",
                                          "k4v4:window=256",
                                          "k4v4:window=100,wide=bf16",
                                          "k4v4-vert",
                                          "k8v8-vert:window=128",
                                          "k4v2-vert:window=0",
                                          "k2v4-vert:window=64,ratio=0.3",
                                          "k4v4-vert:ratio=0",
                                          "k4v4-vert:window=0,ratio=1",
                                          "kivi4",
                                          "kivi2:residual=32",
                                          "hyquant:window=40,wide=bf16"};
    for (int32_t m = 0; m < COUNT(methods); m++) {
        one_exact(methods[m], layer_of(2, 2, 16), 530, 70, 300, 37);
        one_exact(methods[m], latent_of(3, 32, 16), 300, 3, 400, 53);
        one_exact(methods[m], layer_of(1 + m % 8, 1, m % 2 ? 80 : 96), 1, 260, 20, 31);
    }
    one_exact("k4v4-vert", layer_of(4, 1, 64), 1300, 10, 900, 173);
    one_exact("k4v4-vert:window=600", layer_of(2, 1, 16), 1500, 10, 900, 173);
}

/* ---- against the golden outputs ---- */

static void assert_kept(const rig *r, int32_t head, const int32_t *kept, int32_t n, int64_t tokens) {
    const ebb_kv_view *s = ebb_kv_pool_view(r->pool, 0);
    int32_t seen = 0;
    for (int64_t t = 0; t < tokens; t += EBB_GRID) {
        if (s->rule.select == EBB_SELECT_SEGMENT && t + EBB_GRID > tokens) break;
        const kv_verticals v = kv_verticals_of(s, &r->kv, 0, head, t);
        for (int32_t i = 0; i < v.n; i++, seen++)
            if (seen >= n || kept[seen] != t + v.place[i])
                fail_msg("%s: vertical key %d of head %d is %lld", r->spec.method->name, seen, head,
                         (long long)(t + v.place[i]));
    }
    assert_int_equal(seen, n);
}

static void assert_golden_row(const rig *r, FILE *file, const float *out) {
    int32_t token;
    assert_int_equal(fscanf(file, "%d", &token), 1);
    for (int64_t d = 0; d < row_floats(r); d++) {
        double want, got = (double)out[token * row_floats(r) + d];
        assert_int_equal(fscanf(file, "%lf", &want), 1);
        if (!(fabs(got - want) < 1e-4))
            fail_msg("%s, prefill mode %d, select %d: token %d [%lld]: %g, expected %g", r->spec.method->name,
                     r->prefill.mode, r->prefill.select, token, (long long)d, got, want);
    }
}

static void one_golden(FILE *file) {
    char method[64], prefill[64], word[8];
    int32_t seq, q_heads, heads, dims, tokens, n, prompt;
    rig r;
    assert_int_equal(fscanf(file, "%63s %63s %d %d %d %d %d", method, prefill, &seq, &q_heads, &heads, &dims, &tokens),
                     7);
    rig_open(&r, method, prefill, layer_of(q_heads / heads, heads, dims), tokens);
    float *out = outputs(&r);
    int32_t *kept = calloc((size_t)tokens, sizeof *kept), head;
    for (int64_t pos = 0; fscanf(file, "%7s", word) == 1 && strcmp(word, "end") != 0;) {
        if (!strcmp(word, "turn")) {
            assert_int_equal(fscanf(file, "%d %d", &n, &prompt), 2);
            feed_all(&r, seq, 0, pos, pos + n, prompt, out);
            pos += n;
        } else if (!strcmp(word, "kept")) {
            assert_int_equal(fscanf(file, "%d %d", &head, &n), 2);
            for (int32_t i = 0; i < n; i++) assert_int_equal(fscanf(file, "%d", &kept[i]), 1);
            assert_kept(&r, head, kept, n, pos);
        } else {
            assert_string_equal(word, "row");
            assert_golden_row(&r, file, out);
        }
    }
    free(out), free(kept);
    rig_close(&r);
}

static void test_golden(void **state) {
    (void)state;
    FILE *file = fopen(SOURCE_DIR "/tests/data/hyquant_golden.txt", "r");
    char word[8];
    int32_t cases = 0;
    assert_non_null(file);
    for (; fscanf(file, "%7s", word) == 1; cases++) {
        assert_string_equal(word, "case");
        one_golden(file);
    }
    fclose(file);
    assert_int_equal(cases, 15);
}

/* ---- choices by prompt ---- */

static void assert_near(const rig *r, const char *what, const float *a, const float *b, int64_t from, int64_t to,
                        double tolerance) {
    for (int64_t d = from * row_floats(r); d < to * row_floats(r); d++)
        if (!(fabs((double)a[d] - (double)b[d]) < tolerance))
            fail_msg("%s: %s: token %lld: %g, expected %g", r->spec.method->name, what, (long long)(d / row_floats(r)),
                     (double)a[d], (double)b[d]);
}

/* Nothing is low-bit where every key is vertical: fp16 rows with another store of the same. */
static void test_all_vertical(void **state) {
    (void)state;
    static const setup all[] = {{"k2v4-vert:window=0,ratio=1", "full"},
                                {"hyquant:window=0,ratio=1", "vquant_vert:window=0,ratio=1"},
                                {"hyquant:ratio=1,select=prompt", "vquant_vert:ratio=1,select=prompt"},
                                {"fp16", "vquant_vert:ratio=1,select=paper"},
                                {"fp16", "sparse_only:ratio=1,select=prompt,window=64"},
                                {"fp16", "sparse_only:ratio=1,window=0"}};
    for (int32_t u = 0; u < COUNT(all); u++) {
        rig r, plain;
        rig_open(&r, all[u].method, all[u].prefill, layer_of(2, 2, 32), LONG);
        rig_open(&plain, "fp16", "full", layer_of(2, 2, 32), LONG);
        float *out = outputs(&r), *want = outputs(&plain);
        feed_all(&plain, 2, 0, 0, LONG, true, want);
        feed_all(&r, 2, 1, 0, 530, true, out);
        feed_all(&r, 2, 1, 530, LONG, false, out);
        assert_near(&r, "all keys vertical", out, want, 0, LONG, 4e-4); /* weights are FP16 */
        free(out), free(want);
        rig_close(&r), rig_close(&plain);
    }
}

/* The sets of a conversation: how many keys and where, and that the last piece of a prompt chooses. */
static int64_t count_marks(const rig *r, int32_t slot, int32_t head, int64_t from, int64_t to) {
    const ebb_kv_view *s = ebb_kv_pool_view(r->pool, 0);
    int64_t n = 0;
    for (int64_t t = from; t < to; t++) n += kv_marks(s, slot, head, 0, t)[t % s->page / 8] >> t % 8 & 1;
    return n;
}

static void test_conversation(void **state) {
    (void)state;
    for (int paper = 0; paper < 2; paper++) {
        rig r;
        rig_open(&r, paper ? "k4v4-vert:select=paper,window=64" : "k4v4-vert:select=prompt,window=64", "full",
                 layer_of(2, 2, 16), 1400);
        const ebb_kv_view *s = ebb_kv_pool_view(r.pool, 0);
        float *whole = outputs(&r), *out = outputs(&r);
        feed_all(&r, 4, 0, 0, 700, true, whole);
        feed_all(&r, 4, 0, 700, 720, false, whole);
        const int64_t end = paper ? 700 - 128 : 700 - 64;
        assert_int_equal(kv_live_of(s, 0)->selected, end);
        assert_int_equal(count_marks(&r, 0, 1, 0, end), (int64_t)ceil(0.05 * (double)end));
        feed_all(&r, 4, 0, 720, 1300, true, whole);
        feed_all(&r, 4, 0, 1300, 1400, false, whole);
        const int64_t second = paper ? 1300 - 128 : 1300 - 64;
        assert_int_equal(kv_live_of(s, 0)->selected, second);
        assert_int_equal(count_marks(&r, 0, 0, 0, second), (int64_t)ceil(0.05 * (double)second));
        int64_t listed = 0;
        for (int64_t t = 0; t < second; t += EBB_GRID) {
            const kv_verticals v = kv_verticals_of(s, &r.kv, 0, 0, t);
            for (int32_t i = 0; i < v.n; i++) {
                assert_int_equal(count_marks(&r, 0, 0, t + v.place[i], t + v.place[i] + 1), 1);
                for (int32_t d = 0; d < r.kv.k; d++)
                    assert_int_equal(v.rows[i * r.kv.all + d], float_to_fp16(input(4, K, t + v.place[i], 0, d)));
            }
            listed += v.n;
        }
        assert_int_equal(listed, count_marks(&r, 0, 0, 0, second));
        /* Pieces: the last ones hold the 64 queries that choose. */
        feed(&r, 4, 1, 0, 700, true, (int32_t[]){300, 1, 299, 100}, 4, 0, out);
        feed_all(&r, 4, 1, 700, 720, false, out);
        feed(&r, 4, 1, 720, 1300, true, (int32_t[]){80, 400, 100}, 3, 0, out);
        feed(&r, 4, 1, 1300, 1400, false, (int32_t[]){3, MAX_NEW}, 2, 0, out);
        assert_bits(&r, "a prompt in pieces", out, whole, 0, 1400);
        free(whole), free(out);
        rig_close(&r);
    }
}

/* kivi-hqq: nothing is rounded during a prompt; all of it before the first token behind it, then every 60 tokens, which
 * come one by one. */
static void test_rewrite(void **state) {
    (void)state;
    rig r, plain;
    rig_open(&r, "kivi-hqq:residual=60", "full", layer_of(2, 1, 16), 400);
    rig_open(&plain, "fp16", "full", layer_of(2, 1, 16), 400);
    const ebb_kv_view *s = ebb_kv_pool_view(r.pool, 0);
    float *out = outputs(&r), *want = outputs(&plain);
    feed_all(&plain, 6, 0, 0, 400, true, want);
    feed(&r, 6, 1, 0, 200, true, (int32_t[]){90, 110}, 2, 0, out);
    assert_near(&r, "the prompt", out, want, 0, 200, 1e-6);
    feed_all(&r, 6, 1, 200, 201, false, out);
    assert_int_equal(kv_live_of(s, 1)->selected, 200);
    assert_memory_not_equal(out + 200 * row_floats(&r), want + 200 * row_floats(&r), 16);
    feed_all(&r, 6, 1, 201, 260, false, out);
    assert_int_equal(kv_live_of(s, 1)->selected, 200);
    float *again = outputs(&r);
    feed_all(&r, 6, 1, 260, 261, false, out);
    assert_int_equal(kv_live_of(s, 1)->selected, 260);
    feed_all(&r, 6, 1, 260, 261, false, again);
    assert_bits(&r, "a repeated step", again, out, 260, 261);
    call many = {1, {6}, {1}, {2}, {261}, false, 0};
    ebb_error error = {0};
    assert_int_equal(try_call(&r, &many, again, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "at once"));
    free(again);
    feed_all(&r, 6, 1, 261, 300, true, out);
    feed_all(&r, 6, 1, 300, 301, false, out);
    assert_int_equal(kv_live_of(s, 1)->selected, 300);
    free(out), free(want);
    rig_close(&r), rig_close(&plain);
}

/* ---- refusals ---- */

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *method, *prefill, *says;
        ebb_kv_layer layer;
    } bad[] = {
        {"k4v4", "full", "15", {.q_heads = 2, .heads = 1, .parts = 2, .part = {{15, 1}, {16, 2}}, .scale = 1}},
        {"k2v4", "full", "18", {.q_heads = 2, .heads = 1, .parts = 2, .part = {{18, 1}, {16, 2}}, .scale = 1}},
        {"kvtuner",
         "full",
         "--kv-bits",
         {.q_heads = 2, .heads = 1, .parts = 2, .part = {{16, 1}, {16, 2}}, .scale = 1}},
        {"hyquant",
         "vquant_vert:ratio=0.1",
         "0.1",
         {.q_heads = 2, .heads = 1, .parts = 2, .part = {{16, 1}, {16, 2}}, .scale = 1}},
        {"hyquant",
         "vquant_vert:select=prompt",
         "select",
         {.q_heads = 2, .heads = 1, .parts = 2, .part = {{16, 1}, {16, 2}}, .scale = 1}},
        {"kivi4:residual=96",
         "sage_w",
         "96",
         {.q_heads = 2, .heads = 1, .parts = 2, .part = {{16, 1}, {16, 2}}, .scale = 1}},
    };
    for (int32_t i = 0; i < COUNT(bad); i++) {
        rig r;
        ebb_error error = {0};
        assert_int_not_equal(rig_try(&r, bad[i].method, bad[i].prefill, bad[i].layer, 300, 1, &error), EBB_OK);
        if (!strstr(error.text, bad[i].says)) fail_msg("%s: \"%s\"", bad[i].method, error.text);
        rig_close(&r);
    }
    rig r;
    ebb_error error = {0};
    rig_open(&r, "k4v4-vert", "full", layer_of(2, 1, 16), 300);
    float *out = outputs(&r);
    call many = {1, {0}, {0}, {MAX_NEW + 1}, {0}, false, 0};
    assert_int_equal(try_call(&r, &many, out, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "at once"));
    many.prompt = true;
    assert_int_equal(try_call(&r, &many, out, &error), EBB_OK);
    ebb_kv_view view = *ebb_kv_pool_view(r.pool, 0), spoiled = view;
    ebb_plan plan;
    spoiled.rule.window[0] = 64;
    assert_int_equal(ebb_attn_plan(r.device, &spoiled, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    spoiled = view, spoiled.tail = NULL;
    assert_int_equal(ebb_attn_plan(r.device, &spoiled, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    spoiled = view, spoiled.tail_cap = 100;
    assert_int_equal(ebb_attn_plan(r.device, &spoiled, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    spoiled = view, spoiled.overlay_rows = 1;
    assert_int_equal(ebb_attn_plan(r.device, &spoiled, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    spoiled = view, spoiled.marks = 0;
    assert_int_equal(ebb_attn_plan(r.device, &spoiled, NULL, 1, 1, 1, &plan, &error), EBB_BAD_ARGUMENT);
    free(out);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),        cmocka_unit_test(test_golden),  cmocka_unit_test(test_all_vertical),
        cmocka_unit_test(test_conversation), cmocka_unit_test(test_rewrite), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
