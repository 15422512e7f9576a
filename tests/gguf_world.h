/* gguf_world.h: running a GGUF model against golden data, for test_gguf.c and slow_smollm2.c. */
#ifndef TESTS_GGUF_WORLD_H
#define TESTS_GGUF_WORLD_H

#include "core/core.h"
#include "ebb/ebb.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "must.h"

static inline json_t *load_json(const char *path) {
    json_error_t why;
    json_t *root = json_load_file(path, 0, &why);
    if (!root) fail_msg("%s: %s", path, why.text);
    return root;
}

static inline int32_t *ids_of(const json_t *list, int64_t *n) {
    *n = (int64_t)json_array_size(list);
    int32_t *x = calloc((size_t)*n + 1, sizeof *x);
    for (int64_t i = 0; i < *n; i++) x[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return x;
}

/* The largest error of the logits after a prompt, each over 1 + |logit|; `at` NULL: all of them are in the golden data.
 */
static inline double logits_error(ebb_engine *engine, int32_t id, const json_t *item) {
    const json_t *logits = json_object_get(item, "logits"), *at = json_object_get(item, "at");
    const float *got = ebb_sequence_logits(engine, id);
    double worst = 0;
    for (size_t i = 0; i < json_array_size(logits); i++) {
        const size_t token = at ? (size_t)json_integer_value(json_array_get(at, i)) : i;
        const double want = json_number_value(json_array_get(logits, i));
        const double off = fabs((double)got[token] - want) / (1 + fabs(want));
        worst = off > worst || isnan(off) ? off : worst;
    }
    return worst;
}

/* One prompt: the error of its logits, and where the greedy answer leaves the golden one (its length: nowhere); NULL:
 * not asked for. */
static inline double run_item(ebb_engine *engine, const json_t *item, int64_t *same) {
    ebb_error error;
    const ebb_sampling greedy = EBB_GREEDY;
    int64_t n, n_answer;
    int32_t id, *ids = ids_of(json_object_get(item, "ids"), &n);
    int32_t *answer = ids_of(json_object_get(item, "answer"), &n_answer);
    must(ebb_sequence_open(engine, &greedy, &id, &error), &error);
    must(ebb_sequence_append(engine, id, ids, n, &error), &error);
    must(ebb_engine_prefill(engine, &error), &error);
    const double worst = logits_error(engine, id, item);
    for (int64_t t = 0; same && t < n_answer && ebb_sequence_token(engine, id) == answer[t];) {
        *same = ++t;
        if (t < n_answer) must(ebb_engine_step(engine, &id, 1, &error), &error);
    }
    ebb_sequence_close(engine, id);
    free(ids), free(answer);
    return worst;
}

/* The largest error over all prompts; every answer has to be the golden one if `answers`. */
static inline double run_model(const char *path, const json_t *items, bool answers) {
    ebb_error error = {EBB_OK, ""};
    ebb_device *device;
    ebb_model *model;
    ebb_engine *engine;
    double worst = 0;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    must(ebb_model_open(device, path, NULL, &model, &error), &error);
    const ebb_engine_config config = {.size = sizeof config, .kv = "fp32", .max_tokens = 512};
    must(ebb_engine_open(model, &config, &engine, &error), &error);
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        const size_t n = json_array_size(json_object_get(item, "answer"));
        int64_t same = 0;
        const double off = run_item(engine, item, answers ? &same : NULL);
        worst = off > worst || isnan(off) ? off : worst;
        if (answers && same != (int64_t)n)
            fail_msg("%s: prompt %zu leaves the golden answer at token %lld of %zu", path, i, (long long)same, n);
    }
    ebb_engine_close(engine);
    ebb_model_close(model);
    ebb_device_close(device);
    return worst;
}

/* Every text has the golden ids, special tokens in it included, behind those that begin every text. */
static inline void check_texts(const ebb_tokenizer *t, const json_t *texts) {
    ebb_error error;
    int32_t skip;
    const int32_t *prefix = ebb_tokenizer_prefix(t, &skip);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *item = json_array_get(texts, i), *text = json_object_get(item, "text");
        int64_t n, n_want;
        int32_t *got, *want = ids_of(json_object_get(item, "ids"), &n_want);
        assert_memory_equal(want, prefix, (size_t)skip * sizeof *want);
        must(ebb_tokenize(t, json_string_value(text), json_string_length(text), true, &got, &n, &error), &error);
        const bool alike = n == n_want - skip && memcmp(got, want + skip, (size_t)n * sizeof *got) == 0;
        if (!alike) fail_msg("text %zu, '%s': other ids than the golden ones", i, json_string_value(text));
        free(got), free(want);
    }
}

#endif
