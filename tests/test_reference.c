/* tests/test_reference.c: the bundled models against their reference.json, which independent implementations computed
 * in FP32 (transformers for Gated DeltaNet, the trainer's token-by-token recurrence for Kimi Delta Attention): ids of a
 * text, mean next-token loss, all logits of the last position and a greedy continuation, by prefill and token by token.
 */
#include "ebb/ebb.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

typedef struct fixture {
    const char *name;
    ebb_device *device;
    ebb_model *model;
    ebb_state_pool *state;
    ebb_kv_pool *kv;
    ebb_runner *runner;
    json_t *reference;
    int32_t *ids;
    int64_t n;
    float *logits; /* [n][vocab] */
} fixture;

static void open_pools(fixture *f) {
    const ebb_model_info *info = ebb_model_describe(f->model);
    ebb_error error;
    ebb_state_spec state;
    ebb_kv_spec kv;
    must(ebb_state_parse("fp32", &state, &error), &error);
    must(ebb_kv_parse("fp32", &kv, &error), &error);
    ebb_state_pool_config sc = {.size = sizeof sc,
                                .spec = &state,
                                .layers = ebb_model_state_layers(f->model),
                                .n_layers = info->state_layers,
                                .slots = 1,
                                .max_new = 1};
    ebb_kv_pool_config kc = {.size = sizeof kc,
                             .spec = &kv,
                             .layers = ebb_model_kv_layers(f->model),
                             .n_layers = info->kv_layers,
                             .slots = 1,
                             .max_tokens = 256};
    must(ebb_state_pool_open(f->device, &sc, &f->state, &error), &error);
    if (info->kv_layers) {
        must(ebb_kv_pool_open(f->device, &kc, &f->kv, &error), &error);
        must(ebb_kv_pool_reserve(f->kv, 0, 256, &error), &error);
    }
    ebb_runner_config rc = {
        .size = sizeof rc, .state = f->state, .kv = f->kv, .max_seqs = 1, .max_new = 1, .max_tokens = 256};
    must(ebb_runner_open(f->model, &rc, &f->runner, &error), &error);
}

static int setup_with(void **state, const char *name, int32_t features) {
    static fixture f;
    char path[512];
    ebb_error error;
    const ebb_device_config config = {.size = sizeof config, .features = features};
    f = (fixture){.name = name};
    must(ebb_device_open("cpu", &config, &f.device, &error), &error);
    snprintf(path, sizeof path, SOURCE_DIR "/models/%s", name);
    must(ebb_model_open(f.device, path, NULL, &f.model, &error), &error);
    open_pools(&f);
    snprintf(path, sizeof path, SOURCE_DIR "/models/%s/reference.json", name);
    f.reference = json_load_file(path, 0, NULL);
    assert_non_null(f.reference);
    const json_t *ids = json_object_get(f.reference, "ids");
    f.n = (int64_t)json_array_size(ids);
    f.ids = calloc((size_t)f.n, sizeof *f.ids);
    f.logits = calloc((size_t)f.n * (size_t)ebb_model_describe(f.model)->vocab, sizeof *f.logits);
    assert_non_null(f.ids);
    assert_non_null(f.logits);
    for (int64_t i = 0; i < f.n; i++) f.ids[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    *state = &f;
    return 0;
}

static int gdn_ref(void **state) { return setup_with(state, "tiny-gdn", EBB_CPU_NONE); }
static int gdn_avx2(void **state) { return setup_with(state, "tiny-gdn", EBB_CPU_AVX2); }
static int gdn_best(void **state) { return setup_with(state, "tiny-gdn", EBB_CPU_ALL); }
static int kda_ref(void **state) { return setup_with(state, "tiny-kda", EBB_CPU_NONE); }
static int kda_best(void **state) { return setup_with(state, "tiny-kda", EBB_CPU_ALL); }
static int pure_ref(void **state) { return setup_with(state, "tiny-gdn-pure", EBB_CPU_NONE); }
static int pure_best(void **state) { return setup_with(state, "tiny-gdn-pure", EBB_CPU_ALL); }

static int teardown(void **state) {
    fixture *f = *state;
    ebb_runner_close(f->runner);
    ebb_state_pool_close(f->state);
    ebb_kv_pool_close(f->kv);
    ebb_model_close(f->model);
    ebb_device_close(f->device);
    json_decref(f->reference);
    free(f->ids);
    free(f->logits);
    return 0;
}

/* Logits of tokens first .. first + n - 1, fed at position `first`. */
static void forward(fixture *f, ebb_pass pass, int64_t first, int64_t n) {
    const int32_t slot = 0, cu[] = {0, (int32_t)n};
    const ebb_batch batch = {.seqs = 1, .tokens = n, .slot = &slot, .cu = cu, .pos = &first};
    int64_t want[256];
    ebb_error error;
    for (int64_t i = 0; i < n; i++) want[i] = i;
    float *logits = f->logits + first * ebb_model_describe(f->model)->vocab;
    must(ebb_forward(f->runner, pass, &batch, f->ids + first, want, n, logits, &error), &error);
}

/* Mean cross entropy of the next token over all positions but the last. */
static double loss(const fixture *f) {
    int32_t vocab = ebb_model_describe(f->model)->vocab;
    double sum = 0;
    for (int64_t t = 0; t + 1 < f->n; t++) {
        const float *row = f->logits + t * vocab;
        double most = (double)row[0], total = 0;
        for (int32_t i = 1; i < vocab; i++) most = fmax(most, (double)row[i]);
        for (int32_t i = 0; i < vocab; i++) total += exp((double)row[i] - most);
        sum += most + log(total) - (double)row[f->ids[t + 1]];
    }
    return sum / (double)(f->n - 1);
}

/* The file rounds logits to five decimals. */
static void check_numbers(const fixture *f) {
    const json_t *want = json_object_get(f->reference, "logits");
    const int32_t vocab = ebb_model_describe(f->model)->vocab;
    const float *last = f->logits + (f->n - 1) * vocab;
    double worst = 0, expected = json_number_value(json_object_get(f->reference, "loss")), ours = loss(f);
    assert_int_equal(json_array_size(want), vocab);
    for (int32_t i = 0; i < vocab; i++)
        worst = fmax(worst, fabs((double)last[i] - json_number_value(json_array_get(want, (size_t)i))));
    print_message("%s, rows: %s; loss %.6f, reference %.6f; largest logit difference %.2e\n", f->name,
                  ebb_runner_rows(f->runner), ours, expected, worst);
    assert_true(fabs(ours - expected) < 5e-5);
    assert_true(worst < 2e-4);
}

static void ids_of_the_text(void **state) {
    fixture *f = *state;
    const char *text = json_string_value(json_object_get(f->reference, "text"));
    int32_t *ids;
    int64_t n;
    ebb_error error;
    must(ebb_tokenize(ebb_model_tokenizer(f->model), text, strlen(text), false, &ids, &n, &error), &error);
    assert_int_equal(n, f->n);
    assert_memory_equal(ids, f->ids, (size_t)n * sizeof *ids);
    free(ids);
}

static void what_the_model_says_of_itself(void **state) {
    fixture *f = *state;
    const ebb_model_info *info = ebb_model_describe(f->model);
    assert_string_equal(info->architecture, "qwen3_5_text");
    assert_int_equal(info->vocab, 8192);
    assert_int_equal(info->hidden, 192);
    assert_int_equal(info->layers, 8);
    assert_int_equal(info->state_layers, 6);
    assert_int_equal(info->kv_layers, 2);
    assert_int_equal(info->n_stop, 2);
    assert_int_equal(info->stop[0], 8189);
    assert_int_equal(info->stop[1], 8187);
    assert_true(info->sampling.temperature == 0.7f && info->sampling.top_p == 0.95f);
    assert_int_equal(info->parameters, (11873344 - 48 * 4) / 2 + 48); /* A_log and dt_bias of 6 layers are FP32 */
    assert_int_equal(ebb_model_state_layers(f->model)[5].heads, 4);
    assert_int_equal(ebb_model_kv_layers(f->model)[1].q_heads, 4);
}

static void by_prefill(void **state) {
    fixture *f = *state;
    forward(f, EBB_PREFILL, 0, f->n);
    check_numbers(f);
}

static int32_t best_of(const float *logits, int32_t vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* The text token by token, then its greedy continuation. */
static void token_by_token(void **state) {
    fixture *f = *state;
    const int32_t vocab = ebb_model_describe(f->model)->vocab;
    const json_t *greedy = json_object_get(f->reference, "greedy");
    memset(f->logits, 0, (size_t)f->n * (size_t)vocab * sizeof *f->logits);
    forward(f, EBB_PREFILL, 0, 1);
    for (int64_t t = 1; t < f->n; t++) forward(f, EBB_STEP, t, 1);
    check_numbers(f);

    float *logits = f->logits + (f->n - 1) * vocab;
    assert_true(json_array_size(greedy) >= 32);
    for (size_t i = 0; i < json_array_size(greedy); i++) {
        const int32_t id = best_of(logits, vocab), slot = 0, cu[] = {0, 1};
        const int64_t pos = f->n + (int64_t)i, want = 0;
        const ebb_batch batch = {.seqs = 1, .tokens = 1, .slot = &slot, .cu = cu, .pos = &pos};
        ebb_error error;
        assert_int_equal(id, json_integer_value(json_array_get(greedy, i)));
        must(ebb_forward(f->runner, EBB_STEP, &batch, &id, &want, 1, logits, &error), &error);
    }
}

int main(void) {
    const struct CMUnitTest gdn[] = {
        cmocka_unit_test(ids_of_the_text),
        cmocka_unit_test(what_the_model_says_of_itself),
        cmocka_unit_test(by_prefill),
        cmocka_unit_test(token_by_token),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(ids_of_the_text),
        cmocka_unit_test(by_prefill),
        cmocka_unit_test(token_by_token),
    };
    int failed = cmocka_run_group_tests_name("tiny-gdn, ref", gdn, gdn_ref, teardown);
    failed += cmocka_run_group_tests_name("tiny-gdn, avx2", gdn, gdn_avx2, teardown);
    failed += cmocka_run_group_tests_name("tiny-gdn, best", gdn, gdn_best, teardown);
    failed += cmocka_run_group_tests_name("tiny-kda, ref", others, kda_ref, teardown);
    failed += cmocka_run_group_tests_name("tiny-kda, best", others, kda_best, teardown);
    failed += cmocka_run_group_tests_name("tiny-gdn-pure, ref", others, pure_ref, teardown);
    failed += cmocka_run_group_tests_name("tiny-gdn-pure, best", others, pure_best, teardown);
    return failed;
}
