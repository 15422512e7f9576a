/* test_transformers.c: ebb with FP32 stores against Hugging Face transformers in FP32: the bundled model on 16 prompts
 * of 1 to 939 tokens, and a small random model whose dimensions all differ, so that no transposed or swapped one can
 * hide. Logits, losses, and greedy answers token by token. Golden data: data/make_transformers_golden.py. */
#include "core/core.h"
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

static json_t *golden(const char *which) {
    json_error_t why;
    json_t *root = json_load_file(SOURCE_DIR "/tests/data/transformers_golden.json", 0, &why), *list;
    if (!root) fail_msg("%s", why.text);
    list = json_incref(json_object_get(root, which));
    json_decref(root);
    return list;
}

static int32_t *ints(const json_t *list, int64_t *n) {
    *n = (int64_t)json_array_size(list);
    int32_t *x = calloc((size_t)*n + 1, sizeof *x);
    for (int64_t i = 0; i < *n; i++) x[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return x;
}

/* One prompt: its last logits, then the answer. An answer may leave the golden one only where two logits are all but
 * equal. */
static void compare(ebb_engine *engine, const json_t *item, double limit, int index) {
    ebb_error error;
    ebb_sampling greedy = EBB_GREEDY;
    int64_t n, n_answer;
    int32_t id, *ids = ints(json_object_get(item, "ids"), &n),
                *answer = ints(json_object_get(item, "answer"), &n_answer);
    const json_t *logits = json_object_get(item, "logits");
    must(ebb_sequence_open(engine, &greedy, &id, &error), &error);
    must(ebb_sequence_append(engine, id, ids, n, &error), &error);
    must(ebb_engine_prefill(engine, &error), &error);
    for (size_t i = 0; i < json_array_size(logits); i++) {
        double want = json_number_value(json_array_get(logits, i)), got = (double)ebb_sequence_logits(engine, id)[i];
        if (!(fabs(want - got) <= limit * (1 + fabs(want))))
            fail_msg("prompt %d of %lld tokens, logit %zu: %g, transformers says %g", index, (long long)n, i, got,
                     want);
    }
    for (int64_t t = 0; t < n_answer; t++) {
        if (t) must(ebb_engine_step(engine, &id, 1, &error), &error);
        const float *l = ebb_sequence_logits(engine, id);
        int32_t got = ebb_sequence_token(engine, id), want = answer[t];
        if (got == want) continue;
        if (!((double)(l[got] - l[want]) < limit))
            fail_msg("prompt %d of %lld tokens, answer token %lld: %d, transformers says %d, %g below", index,
                     (long long)n, (long long)t, got, want, (double)(l[got] - l[want]));
        break; /* a tie: what follows is another text */
    }
    ebb_sequence_close(engine, id);
    free(ids), free(answer);
}

static void against(const char *folder, const char *which, const char *rows) {
    ebb_error error = {EBB_OK, ""};
    ebb_device *device;
    ebb_model *model;
    ebb_engine *engine;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    must(ebb_model_open(device, folder, NULL, &model, &error), &error);
    ebb_engine_config config = {.size = sizeof config,
                                .state = "fp32",
                                .kv = "fp32",
                                .max_tokens = 1200,
                                .prefill_tokens = EBB_GRID,
                                .algorithm = rows};
    must(ebb_engine_open(model, &config, &engine, &error), &error);
    json_t *list = golden(which);
    assert_true(json_array_size(list) >= 10);
    for (size_t i = 0; i < json_array_size(list); i++) compare(engine, json_array_get(list, i), 1e-3, (int)i);
    json_decref(list);
    ebb_engine_close(engine);
    ebb_model_close(model);
    ebb_device_close(device);
}

static void test_tiny_gdn(void **state) {
    (void)state;
    against(SOURCE_DIR "/models/tiny-gdn", "model", NULL);
}

static void test_random_model(void **state) {
    (void)state;
    against(SOURCE_DIR "/tests/data/random_qwen35", "random", "ref");
    against(SOURCE_DIR "/tests/data/random_qwen35", "random", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_model), cmocka_unit_test(test_tiny_gdn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
