/* test_engine.c: sequences on the bundled model: short prompts, the same tokens alone and in any batch, reused slots,
 * conversations, interruption, and every refusal. */
#include "core/core.h"
#include "ebb/ebb.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

static ebb_device *device;
static ebb_model *model;
static const ebb_sampling greedy = {0.0f, 1.0f, 0.0f, 0, 1.0f, 64, 0};

static ebb_engine *open_engine(const char *state, int32_t seqs, int64_t tokens) {
    ebb_engine_config config = {.size = sizeof config,
                                .state = state,
                                .kv = "fp32",
                                .max_seqs = seqs,
                                .max_tokens = tokens,
                                .prefill_tokens = EBB_GRID};
    ebb_engine *e;
    ebb_error error;
    must(ebb_engine_open(model, &config, &e, &error), &error);
    return e;
}

static int64_t text_ids(const char *text, int32_t **ids) {
    int64_t n;
    ebb_error error;
    must(ebb_tokenize(ebb_model_tokenizer(model), text, strlen(text), true, ids, &n, &error), &error);
    return n;
}

/* Greedy answers of `n` tokens. */
static void answer(ebb_engine *e, int32_t id, int32_t *out, int n) {
    ebb_error error;
    for (int i = 0; i < n; i++) {
        if (i) must(ebb_engine_step(e, &id, 1, &error), &error);
        out[i] = ebb_sequence_token(e, id);
    }
}

/* A runner over its own pools, for passes that the engine would not make. */
typedef struct session {
    ebb_state_spec state_spec;
    ebb_kv_spec kv_spec;
    ebb_state_pool *state;
    ebb_kv_pool *kv;
    ebb_runner *runner;
} session;

static void open_session(session *s) {
    const ebb_model_info *info = ebb_model_describe(model);
    ebb_error error;
    must(ebb_state_parse("fp32", &s->state_spec, &error), &error);
    must(ebb_kv_parse("fp32", &s->kv_spec, &error), &error);
    ebb_state_pool_config p = {.size = sizeof p,
                               .spec = &s->state_spec,
                               .layers = ebb_model_state_layers(model),
                               .n_layers = info->state_layers,
                               .slots = 2,
                               .max_new = 8};
    ebb_kv_pool_config k = {.size = sizeof k,
                            .spec = &s->kv_spec,
                            .layers = ebb_model_kv_layers(model),
                            .n_layers = info->kv_layers,
                            .slots = 2,
                            .max_tokens = 256};
    must(ebb_state_pool_open(device, &p, &s->state, &error), &error);
    must(ebb_kv_pool_open(device, &k, &s->kv, &error), &error);
    must(ebb_kv_pool_reserve(s->kv, 0, 64, &error), &error);
    must(ebb_kv_pool_reserve(s->kv, 1, 64, &error), &error);
    ebb_runner_config r = {
        .size = sizeof r, .state = s->state, .kv = s->kv, .max_seqs = 2, .max_new = 8, .max_tokens = 64};
    must(ebb_runner_open(model, &r, &s->runner, &error), &error);
}
static void close_session(session *s) {
    ebb_runner_close(s->runner);
    ebb_kv_pool_close(s->kv);
    ebb_state_pool_close(s->state);
}
static void forward(session *s, ebb_pass pass, int32_t slot, int64_t pos, const int32_t *ids, int32_t n,
                    float *logits) {
    const int32_t cu[2] = {0, n};
    const int64_t want = n - 1;
    ebb_batch b = {1, n, &slot, cu, &pos};
    ebb_error error;
    must(ebb_forward(s->runner, pass, &b, ids, &want, 1, logits, &error), &error);
}

/* Prompts of 1, 2, 3 and more tokens, shorter than the convolution: prefill gives what the same tokens give one by one,
 * and what a draft of all of them gives. */
static void test_short_prompts(void **state) {
    (void)state;
    int32_t *ids;
    const int64_t n = text_ids("Alice was beginning to get very tired", &ids);
    const int32_t vocab = ebb_model_describe(model)->vocab;
    float *a = calloc((size_t)vocab, 4), *b = calloc((size_t)vocab, 4), *c = calloc((size_t)vocab, 4);
    session s;
    open_session(&s);
    assert_true(n >= 7);
    for (int32_t len = 1; len <= 7; len++) {
        forward(&s, EBB_PREFILL, 0, 0, ids, len, a);
        for (int32_t i = 0; i < len; i++) forward(&s, EBB_STEP, 1, i, ids + i, 1, b);
        forward(&s, EBB_STEP, 1, 0, ids, len, c);
        for (int32_t i = 0; i < vocab; i++) {
            if (!(fabsf(a[i] - b[i]) < 1e-4f))
                fail_msg("%d tokens, logit %d: prefill %g, steps %g", len, i, (double)a[i], (double)b[i]);
            if (b[i] != c[i]) fail_msg("%d tokens, logit %d: steps and one draft differ", len, i);
        }
    }
    close_session(&s);
    free(a), free(b), free(c), free(ids);
}

/* The same request gives the same tokens alone, in any batch, at any place, beside longer and shorter prompts; with
 * sampling too. */
static void test_alone_and_in_a_batch(void **state) {
    (void)state;
    enum { SEQS = 5, ANSWER = 24 };
    static const char *const texts[SEQS] = {
        "The river", "Once upon a time there was a", "def main(", "A",
        "It was a dark and stormy night, and the rain fell in torrents, except at occasional intervals"};
    static const char *const methods[] = {"fp32", "int4", "leap8"};
    const ebb_sampling sampled = {0.8f, 0.95f, 0.0f, 40, 1.1f, 64, 7};
    ebb_error error;
    for (int m = 0; m < 3; m++)
        for (int warm = 0; warm < 2; warm++) {
            const ebb_sampling *sampling = warm ? &sampled : &greedy;
            int32_t alone[SEQS][ANSWER], together[SEQS][ANSWER], ids[SEQS], *tokens[SEQS];
            int64_t count[SEQS];
            ebb_engine *e = open_engine(methods[m], SEQS, 512);
            for (int i = 0; i < SEQS; i++) {
                count[i] = text_ids(texts[i], &tokens[i]);
                int32_t id;
                must(ebb_sequence_open(e, sampling, &id, &error), &error);
                assert_int_equal(id, 0); /* the same slot again and again: nothing of the last tenant is left */
                must(ebb_sequence_append(e, id, tokens[i], count[i], &error), &error);
                must(ebb_engine_prefill(e, &error), &error);
                answer(e, id, alone[i], ANSWER);
                ebb_sequence_close(e, id);
            }
            for (int i = SEQS - 1; i >= 0; i--) {
                must(ebb_sequence_open(e, sampling, &ids[i], &error), &error);
                must(ebb_sequence_append(e, ids[i], tokens[i], count[i], &error), &error);
            }
            must(ebb_engine_prefill(e, &error), &error);
            for (int t = 0; t < ANSWER; t++) {
                if (t) must(ebb_engine_step(e, ids, SEQS, &error), &error);
                for (int i = 0; i < SEQS; i++) together[i][t] = ebb_sequence_token(e, ids[i]);
            }
            for (int i = 0; i < SEQS; i++) {
                if (memcmp(alone[i], together[i], sizeof alone[i]))
                    fail_msg("%s: '%s' has another answer in a batch", methods[m], texts[i]);
                free(tokens[i]);
            }
            ebb_engine_close(e);
        }
}

/* The whole model gives the same bits with 1, 2, 3 and 4 threads, in prefill and in steps. */
static void test_threads(void **state) {
    (void)state;
    enum { ANSWER = 6 };
    ebb_device *own_device = device;
    ebb_model *own_model = model;
    ebb_error error;
    const size_t row = (size_t)ebb_model_describe(model)->vocab;
    float *one = calloc(row * ANSWER, sizeof *one);
    for (int32_t threads = 1; threads <= 4; threads++) {
        ebb_device_config config = {.size = sizeof config, .threads = threads};
        must(ebb_device_open("cpu", &config, &device, &error), &error);
        must(ebb_model_open(device, SOURCE_DIR "/models/tiny-gdn", NULL, &model, &error), &error);
        ebb_engine *e = open_engine("leap8", 1, 600);
        int32_t *ids, id;
        int64_t n = text_ids("It was a dark and stormy night, and the rain fell in torrents", &ids);
        must(ebb_sequence_open(e, &greedy, &id, &error), &error);
        for (int i = 0; i < 20; i++)
            must(ebb_sequence_append(e, id, ids, n, &error), &error); /* more than a grid interval */
        must(ebb_engine_prefill(e, &error), &error);
        for (size_t t = 0; t < ANSWER; t++) {
            if (t) must(ebb_engine_step(e, &id, 1, &error), &error);
            if (threads == 1) memcpy(one + t * row, ebb_sequence_logits(e, id), row * sizeof *one);
            else if (memcmp(one + t * row, ebb_sequence_logits(e, id), row * sizeof *one))
                fail_msg("other logits with %d threads, answer token %zu", threads, t);
        }
        free(ids);
        ebb_engine_close(e);
        ebb_model_close(model);
        ebb_device_close(device);
    }
    free(one);
    device = own_device, model = own_model;
}

/* A conversation: the answer is committed token by token, the next turn is prefilled behind it. A stop token is
 * dropped, another last token is kept. */
static void test_conversation(void **state) {
    (void)state;
    ebb_engine *e = open_engine("leap8", 1, 600);
    ebb_error error;
    int32_t id, first[6], second[6], *a, *b;
    const int64_t na = text_ids("It was a dark night.", &a), nb = text_ids(" And then", &b);
    must(ebb_sequence_open(e, &greedy, &id, &error), &error);
    assert_int_equal(ebb_sequence_token(e, id), -1);
    must(ebb_sequence_append(e, id, a, na, &error), &error);
    must(ebb_engine_prefill(e, &error), &error);
    answer(e, id, first, 6);
    assert_int_equal(ebb_sequence_position(e, id), na + 5);
    must(ebb_sequence_append(e, id, b, nb, &error), &error);
    must(ebb_engine_prefill(e, &error), &error);
    assert_int_equal(ebb_sequence_position(e, id), na + 6 + nb);
    assert_int_equal(ebb_sequence_room(e, id), 600 - na - 6 - nb);
    answer(e, id, second, 6);
    for (int i = 0; i < 6; i++) assert_true(second[i] >= 0);
    ebb_usage u;
    ebb_engine_usage(e, id, &u);
    assert_int_equal(u.state_packed, 6 * 4 * 19456);
    assert_true(u.kv > 0 && u.prompt_tokens >= na + nb && u.decode_tokens == 10);
    ebb_engine_close(e);
    free(a), free(b);
}

/* A long prompt is cut at the grid into several forwards without changing a bit, and can be interrupted and resumed. */
typedef struct watcher {
    int calls, stop_at;
} watcher;
static bool watch(void *ctx, const char *what, int64_t done, int64_t total) {
    watcher *w = ctx;
    assert_string_equal(what, "prompt");
    assert_true(done >= 0 && done <= total);
    return w->calls++ != w->stop_at;
}
static void test_interrupted_prompt(void **state) {
    (void)state;
    enum { LONG = 900 };
    int32_t *ids, whole[8], pieces[8], id;
    char *text = calloc(1, 8000);
    for (int i = 0; i < 300; i++) sprintf(text + strlen(text), "%d apples ", i);
    assert_true(text_ids(text, &ids) >= LONG);
    ebb_error error;
    watcher w = {0, 2};
    ebb_engine_config config = {
        .size = sizeof config, .state = "int8", .kv = "bf16", .max_tokens = 2048, .prefill_tokens = 4 * EBB_GRID};
    ebb_engine *e;
    must(ebb_engine_open(model, &config, &e, &error), &error);
    must(ebb_sequence_open(e, &greedy, &id, &error), &error);
    must(ebb_sequence_append(e, id, ids, LONG, &error), &error);
    must(ebb_engine_prefill(e, &error), &error);
    answer(e, id, whole, 8);
    ebb_engine_close(e);
    config.prefill_tokens = EBB_GRID;
    config.progress = (ebb_progress){&w, watch};
    must(ebb_engine_open(model, &config, &e, &error), &error);
    must(ebb_sequence_open(e, &greedy, &id, &error), &error);
    must(ebb_sequence_append(e, id, ids, LONG, &error), &error);
    assert_int_equal(ebb_engine_prefill(e, &error), EBB_INTERRUPTED);
    assert_int_equal(ebb_sequence_position(e, id), 2 * EBB_GRID);
    must(ebb_engine_prefill(e, &error), &error);
    assert_int_equal(ebb_sequence_position(e, id), LONG);
    answer(e, id, pieces, 8);
    assert_memory_equal(whole, pieces, sizeof whole);
    ebb_engine_close(e);
    free(ids), free(text);
}

static void refused(ebb_status status, ebb_status expected, const ebb_error *error, const char *part) {
    assert_int_equal(status, expected);
    if (!strstr(error->text, part)) fail_msg("'%s' does not say '%s'", error->text, part);
}
static void test_refusals(void **state) {
    (void)state;
    ebb_engine *e;
    ebb_error error = {EBB_OK, ""};
    int32_t id, other, ids[301];
    for (int i = 0; i < 301; i++) ids[i] = 100 + i;
    ebb_engine_config c = {.size = sizeof c, .state = "int9"};
    refused(ebb_engine_open(model, &c, &e, &error), EBB_BAD_ARGUMENT, &error, "int9");
    c.state = NULL, c.kv = "k4v3";
    refused(ebb_engine_open(model, &c, &e, &error), EBB_BAD_ARGUMENT, &error, "k4v3");
    c.kv = NULL, c.max_tokens = (int64_t)1 << 40;
    refused(ebb_engine_open(model, &c, &e, &error), EBB_BAD_ARGUMENT, &error, "context");
    c.max_tokens = 0, c.prefill_tokens = 100;
    refused(ebb_engine_open(model, &c, &e, &error), EBB_BAD_ARGUMENT, &error, "prefill_tokens");
    c.prefill_tokens = 0, c.algorithm = "sse9";
    refused(ebb_engine_open(model, &c, &e, &error), EBB_UNSUPPORTED, &error, "sse9");
    e = open_engine("int8-w", 1, 300);
    ebb_sampling bad = greedy;
    bad.temperature = -1;
    refused(ebb_sequence_open(e, &bad, &id, &error), EBB_BAD_ARGUMENT, &error, "temperature");
    must(ebb_sequence_open(e, &greedy, &id, &error), &error);
    refused(ebb_sequence_open(e, &greedy, &other, &error), EBB_NO_MEMORY, &error, "in use");
    refused(ebb_sequence_append(e, id, ids, 0, &error), EBB_BAD_ARGUMENT, &error, "0 tokens");
    refused(ebb_engine_step(e, &id, 1, &error), EBB_BAD_ARGUMENT, &error, "no produced token");
    ids[3] = 8192;
    refused(ebb_sequence_append(e, id, ids, 5, &error), EBB_BAD_ARGUMENT, &error, "8192");
    ids[3] = 5;
    refused(ebb_sequence_append(e, id, ids, 301, &error), EBB_BAD_ARGUMENT, &error, "holds 300");
    must(ebb_sequence_append(e, id, ids, 298, &error), &error);
    refused(ebb_sequence_append(e, id, ids, 3, &error), EBB_BAD_ARGUMENT, &error, "holds 300");
    must(ebb_engine_prefill(e, &error), &error);
    must(ebb_engine_step(e, &id, 1, &error), &error);
    must(ebb_engine_step(e, &id, 1, &error), &error);
    int32_t last = ebb_sequence_token(e, id);
    refused(ebb_engine_step(e, &id, 1, &error), EBB_BAD_ARGUMENT, &error, "end of its context");
    assert_int_equal(ebb_sequence_token(e, id), last);
    int32_t twice[2] = {id, id};
    refused(ebb_engine_step(e, twice, 2, &error), EBB_BAD_ARGUMENT, &error, "has 1");
    ebb_engine_close(e);
    ebb_engine_close(NULL);
}

/* ebb_generate: more prompts than slots, answers cut by length and by the caller. */
typedef struct collector {
    int32_t n[7], token[7][16];
} collector;
static bool collect(void *ctx, int32_t prompt, int32_t token) {
    collector *c = ctx;
    c->token[prompt][c->n[prompt]++] = token;
    return !(prompt == 2 && c->n[2] == 4);
}
static void test_generate(void **state) {
    (void)state;
    int32_t *ids[7];
    ebb_prompt prompts[7];
    ebb_error error;
    for (int i = 0; i < 7; i++) {
        char text[60];
        snprintf(text, sizeof text, "%.*s", 8 * (i + 1), "Alice was beginning to get very tired of sitting by her");
        prompts[i].count = text_ids(text, &ids[i]);
        prompts[i].ids = ids[i];
    }
    collector few = {0}, many = {0};
    ebb_usage u;
    ebb_engine *e = open_engine("leap4", 3, 256);
    must(ebb_generate(e, prompts, 7, &greedy, 12, collect, &few, &u, &error), &error);
    assert_true(u.prompt_tokens > 0 && u.decode_tokens > 0 && u.kv > 0);
    ebb_engine_close(e);
    e = open_engine("leap4", 7, 256);
    must(ebb_generate(e, prompts, 7, &greedy, 12, collect, &many, &u, &error), &error);
    ebb_engine_close(e);
    assert_int_equal(few.n[2], 4);
    for (int i = 0; i < 7; i++) {
        assert_true(few.n[i] <= 12 && (i == 2 || few.n[i] > 0));
        assert_int_equal(few.n[i], many.n[i]);
        assert_memory_equal(few.token[i], many.token[i], (size_t)few.n[i] * 4);
        free(ids[i]);
    }
}

static int setup(void **state) {
    (void)state;
    ebb_error error = {EBB_OK, ""};
    if (!ebb_device_open("cpu", NULL, &device, &error) &&
        !ebb_model_open(device, SOURCE_DIR "/models/tiny-gdn", NULL, &model, &error))
        return 0;
    fprintf(stderr, "%s\n", error.text);
    return 1;
}
static int teardown(void **state) {
    (void)state;
    ebb_model_close(model);
    ebb_device_close(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_prompts),
        cmocka_unit_test(test_alone_and_in_a_batch),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_interrupted_prompt),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_generate),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
