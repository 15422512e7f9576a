/* test_eval.c: free answers and foretold texts of tiny-gdn-pure and tiny-gdn under several ways of storing; and that a
 * corrupted state changes the score. */
#include "core/core.h"
#include "engine/engine_int.h"
#include "measure/eval_int.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 6, TOKENS = 200 };

static ebb_device *device;
static ebb_model *pure, *hybrid;
static ebb_task *copies;
static int32_t *ids; /* of a text */

static int open_all(void **state) {
    (void)state;
    ebb_error error = {EBB_OK, ""};
    char *text = NULL;
    size_t bytes;
    int64_t count = 0;
    if (ebb_device_open("cpu", NULL, &device, &error) ||
        ebb_model_open(device, SOURCE_DIR "/models/tiny-gdn-pure", NULL, &pure, &error) ||
        ebb_model_open(device, SOURCE_DIR "/models/tiny-gdn", NULL, &hybrid, &error) ||
        ebb_task_read(pure, SOURCE_DIR "/models/eval/copy-80.jsonl", NULL, N, &copies, &error) ||
        read_file(SOURCE_DIR "/models/eval/heldout_books.txt", (size_t)1 << 24, &text, &bytes, &error) ||
        ebb_tokenize(ebb_model_tokenizer(pure), text, 4096, false, &ids, &count, &error))
        fail_msg("%s", error.text);
    free(text);
    assert_true(count >= TOKENS);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    free(ids);
    ebb_task_free(copies);
    ebb_model_close(pure), ebb_model_close(hybrid);
    ebb_device_close(device);
    return 0;
}

static ebb_eval_config config_of(const char *method, int32_t batch) {
    return (ebb_eval_config){.size = sizeof(ebb_eval_config),
                             .store = {.state = method},
                             .task = copies,
                             .sampling = EBB_GREEDY,
                             .batch = batch,
                             .max_answer = 256};
}

static void answer(const ebb_eval_config *config, const eval_watch *watch, ebb_eval_answer *answers) {
    ebb_error error = {EBB_OK, ""};
    if (eval_answers_watched(pure, config, watch, answers, NULL, &error)) fail_msg("%s", error.text);
}

static int32_t right_of(ebb_eval_answer *answers, int32_t n) {
    int32_t right = 0;
    for (int32_t i = 0; i < n; i++) {
        assert_non_null(answers[i].text);
        assert_int_equal(answers[i].score >= 1, answers[i].first_error < 0);
        right += answers[i].score >= 1;
        free(answers[i].text);
    }
    return right;
}

/* The same answers side by side as one by one; 4 bits a token lose them, and early. */
static void test_answers(void **state) {
    (void)state;
    ebb_eval_answer one[N], many[N], worse[N];
    const ebb_eval_config alone = config_of("fp32", 1), beside = config_of("fp32", 4), rough = config_of("int4", N);
    answer(&alone, NULL, one);
    answer(&beside, NULL, many);
    answer(&rough, NULL, worse);
    for (int32_t i = 0; i < N; i++) {
        assert_string_equal(one[i].text, many[i].text);
        assert_int_equal(one[i].first_error, many[i].first_error);
        if (worse[i].first_error >= 0) assert_true(worse[i].tokens == worse[i].first_error + 1 || !worse[i].cut);
    }
    const int32_t good = right_of(one, N), bad = right_of(worse, N);
    right_of(many, N);
    if (good < N - 2 || bad > 1) fail_msg("fp32 %d, int4 %d of %d right", good, bad, N);
}

/* Between two tokens: the packed states of all sequences, one byte of every 64 another one. */
static void corrupt(void *ctx, ebb_engine *engine) {
    int32_t *steps = ctx;
    if (++*steps != 10) return;
    for (int32_t i = 0; i < engine->info->state_layers; i++) {
        const ebb_state_view *v = ebb_state_pool_view(engine->state, i);
        for (int64_t at = 3; at < v->packed_slot * v->slots; at += 64) v->packed[at] ^= 0x01;
    }
}
static void count(void *ctx, ebb_engine *engine) {
    (void)engine;
    ++*(int32_t *)ctx;
}

/* Liveness: whatever is measured here goes through the stored state. */
static void test_corrupted_state(void **state) {
    (void)state;
    ebb_eval_answer kept[N], broken[N];
    const ebb_eval_config config = config_of("fp32", N);
    int32_t steps = 0;
    answer(&config, &(eval_watch){&steps, count}, kept);
    assert_true(steps > 20);
    steps = 0;
    answer(&config, &(eval_watch){&steps, corrupt}, broken);
    assert_true(steps >= 10);
    for (int32_t i = 0; i < N; i++)
        if (broken[i].first_error >= 0 && kept[i].first_error < 0) assert_true(broken[i].first_error >= 10);
    const int32_t good = right_of(kept, N), bad = right_of(broken, N);
    if (bad >= good - 2) fail_msg("%d right, and %d with a corrupted state", good, bad);
}

/* A prompt that is decoded takes a step a token, and is understood as one that went through prefill. */
static void test_decoded(void **state) {
    (void)state;
    ebb_eval_answer prefilled[N], decoded[N];
    ebb_eval_config config = config_of("fp32", N);
    int32_t steps = 0, longer = 0;
    answer(&config, &(eval_watch){&steps, count}, prefilled);
    config.decoded = true;
    answer(&config, &(eval_watch){&longer, count}, decoded);
    assert_true(longer >= steps + copies->problem[0].count - 1);
    const int32_t good = right_of(prefilled, N), too = right_of(decoded, N);
    if (too < good - 1) fail_msg("%d right, %d where prompts were decoded", good, too);
}

/* Runs of a problem draw differently; the same seed draws the same, whatever the batch. */
static void test_sampled(void **state) {
    (void)state;
    enum { RUNS = 3 };
    ebb_eval_answer a[N * RUNS], b[N * RUNS];
    ebb_eval_config config = config_of("leap8", 5);
    int32_t differ = 0;
    config.sampling.temperature = 2;
    config.runs = RUNS;
    answer(&config, NULL, a);
    config.batch = N * RUNS;
    answer(&config, NULL, b);
    for (int32_t i = 0; i < N * RUNS; i++) {
        assert_string_equal(a[i].text, b[i].text);
        if (i >= N) differ += strcmp(a[i].text, a[i % N].text) != 0;
        free(b[i].text);
    }
    for (int32_t i = 0; i < N * RUNS; i++) free(a[i].text);
    assert_true(differ > 0);
}

static bool stop_at_once(void *ctx, const char *what, int64_t done, int64_t total) {
    (void)ctx, (void)what, (void)total;
    return done < 1;
}

static void test_refusals(void **state) {
    (void)state;
    ebb_eval_answer answers[N];
    ebb_error error;
    ebb_eval_config config = config_of("fp32", 2), bad = config;
    bad.size = 1;
    assert_int_equal(ebb_eval_answers(pure, &bad, answers, NULL, &error), EBB_BAD_ARGUMENT);
    bad = config, bad.max_answer = 0;
    assert_int_equal(ebb_eval_answers(pure, &bad, answers, NULL, &error), EBB_BAD_ARGUMENT);
    bad = config, bad.sampling.top_p = 0;
    assert_int_equal(ebb_eval_answers(pure, &bad, answers, NULL, &error), EBB_BAD_ARGUMENT);
    bad = config, bad.store.state = "int3";
    assert_int_equal(ebb_eval_answers(pure, &bad, answers, NULL, &error), EBB_BAD_ARGUMENT);
    for (int32_t i = 0; i < N; i++) assert_null(answers[i].text);
    config.progress = (ebb_progress){NULL, stop_at_once};
    assert_int_equal(ebb_eval_answers(pure, &config, answers, NULL, &error), EBB_INTERRUPTED);
    for (int32_t i = 0; i < N; i++) assert_null(answers[i].text);
}

/* ---- texts ---- */

static ebb_foretold *foretell(ebb_model *model, ebb_eval_store store, int64_t prompt, const ebb_foretold *reference) {
    const ebb_foretell_config config = {
        .size = sizeof config, .store = store, .ids = ids, .tokens = TOKENS, .prompt = prompt, .reference = reference};
    ebb_foretold *f = NULL;
    ebb_error error = {EBB_OK, ""};
    if (ebb_foretell(model, &config, &f, &error)) fail_msg("%s", error.text);
    return f;
}

static double mean_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    return sum / (double)n;
}

/* As ebb_kvcheck_nll has it, which goes token by token. */
static void test_foretold(void **state) {
    (void)state;
    static const char *const kvs[] = {"bf16", "k4v4", "hyquant:window=32"};
    for (int32_t i = 0; i < COUNT(kvs); i++) {
        ebb_foretold *f = foretell(hybrid, (ebb_eval_store){.state = "leap8", .kv = kvs[i]}, 96, NULL);
        const ebb_kv_choice choice = {.kv = kvs[i]};
        const ebb_kvcheck_config config = {.size = sizeof config,
                                           .stores = &choice,
                                           .n_stores = 1,
                                           .state = "leap8",
                                           .ids = ids,
                                           .tokens = TOKENS,
                                           .steps = TOKENS - 96};
        float nll[TOKENS];
        size_t bytes;
        ebb_error error = {EBB_OK, ""};
        if (ebb_kvcheck_nll(hybrid, &config, nll, &bytes, &error)) fail_msg("%s", error.text);
        for (int32_t t = 0; t < TOKENS - 1; t++)
            if (fabsf(nll[t] + f->logp[t]) > 1e-5f)
                fail_msg("%s, token %d: %g and %g", kvs[i], t, (double)nll[t], (double)-f->logp[t]);
        ebb_foretold_free(f);
    }
}

/* Nothing apart from itself; fewer bits are further apart; the likeliest tokens come in order. */
static void test_divergence(void **state) {
    (void)state;
    static const char *const methods[] = {"fp32", "bf16", "leap8", "int8", "int4"};
    double kl[COUNT(methods)];
    ebb_foretold *exact = foretell(pure, (ebb_eval_store){.state = "fp32"}, 0, NULL);
    assert_null(exact->kl);
    for (int64_t t = 0; t < exact->n; t++)
        for (int32_t i = 1; i < exact->k; i++)
            assert_true(exact->top_logp[t * exact->k + i] <= exact->top_logp[t * exact->k + i - 1]);
    for (int32_t m = 0; m < COUNT(methods); m++) {
        ebb_foretold *f = foretell(pure, (ebb_eval_store){.state = methods[m]}, 0, exact);
        for (int64_t t = 0; t < f->n; t++) assert_true(f->kl[t] > -1e-5f);
        kl[m] = mean_of(f->kl, f->n);
        if (m == 0) assert_memory_equal(f->logp, exact->logp, (size_t)f->n * sizeof *f->logp);
        ebb_foretold_free(f);
    }
    ebb_foretold_free(exact);
    assert_true(fabs(kl[0]) < 1e-7);
    assert_true(kl[1] > 1e-9 && kl[2] > 1e-9 && kl[3] > kl[2] && kl[4] > 10 * kl[3]);
}

static void test_injected(void **state) {
    (void)state;
    static const char *const methods[] = {"fp32", "bf16", "int8", "int4"};
    ebb_injected in[COUNT(methods)];
    ebb_error error = {EBB_OK, ""};
    for (int32_t m = 0; m < COUNT(methods); m++) {
        const ebb_eval_store store = {.state = methods[m]};
        if (ebb_injected_error(pure, &store, NULL, ids, TOKENS, 50, (ebb_progress){0}, &in[m], &error))
            fail_msg("%s", error.text);
        assert_int_equal(in[m].states, 4);
        assert_true(in[m].worst >= in[m].mean);
    }
    assert_true(in[0].rms <= 0);
    assert_true(in[1].rms > 1e-4 && in[1].rms < 4e-3); /* BF16 has 8 bits of mantissa */
    assert_true(in[2].rms > in[1].rms && in[3].rms > 5 * in[2].rms);
}

static void test_foretold_refusals(void **state) {
    (void)state;
    ebb_foretold *f = NULL;
    ebb_error error;
    ebb_foretell_config config = {.size = sizeof config, .ids = ids, .tokens = TOKENS}, bad = config;
    bad.tokens = 1;
    assert_int_equal(ebb_foretell(pure, &bad, &f, &error), EBB_BAD_ARGUMENT);
    bad = config, bad.prompt = TOKENS;
    assert_int_equal(ebb_foretell(pure, &bad, &f, &error), EBB_BAD_ARGUMENT);
    const ebb_foretold other = {.n = 3};
    bad = config, bad.reference = &other;
    assert_int_equal(ebb_foretell(pure, &bad, &f, &error), EBB_BAD_ARGUMENT);
    config.progress = (ebb_progress){NULL, stop_at_once};
    assert_int_equal(ebb_foretell(pure, &config, &f, &error), EBB_INTERRUPTED);
    assert_null(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers),          cmocka_unit_test(test_corrupted_state),
                                       cmocka_unit_test(test_decoded),          cmocka_unit_test(test_sampled),
                                       cmocka_unit_test(test_refusals),         cmocka_unit_test(test_foretold),
                                       cmocka_unit_test(test_divergence),       cmocka_unit_test(test_injected),
                                       cmocka_unit_test(test_foretold_refusals)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
