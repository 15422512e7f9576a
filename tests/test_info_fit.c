/* test_info_fit.c: `ebb info --config FILE`: the figures of the papers come out of the released sizes, the bytes are
 * those of pools, and as many sequences fit as there is room for. */
#define _GNU_SOURCE
#include "ebb/ebb.h"
#include "core/core.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "info_program.h"
#include "must.h"

static json_t *fit_of(const char *model, const char *options) {
    char arguments[400], *text = malloc(ROOM);
    assert_non_null(text);
    snprintf(arguments, sizeof arguments, "--config %s/%s --json %s", SOURCE_DIR, model, options);
    if (run(arguments, text) != 0) fail_msg("%s: %s", arguments, text);
    json_t *fit = json_loads(text, 0, NULL);
    if (!fit) fail_msg("%s: no JSON: %s", arguments, text);
    free(text);
    return fit;
}

static int64_t number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("no number '%s'", key);
    return json_integer_value(value);
}

static double real(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("no number '%s'", key);
    return json_number_value(value);
}

static const json_t *row_of(const json_t *root, const char *table, const char *method) {
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(root, table), i, row) {
        if (!strcmp(json_string_value(json_object_get(row, "method")), method)) return row;
    }
    fail_msg("no row %s in %s", method, table);
    return NULL;
}

/* ---- figures of the papers ---- */

/* DAMP, section 1: 15 GB of FP32 states at batch 256; 69.1 % less at 9.9 bits. LeapQuant, 4.3: 1.19 bytes a value, 3.4
 * times less. */
static void states(void **state) {
    (void)state;
    json_t *fit = fit_of("models/configs/qwen3.6-35b-a3b.json", "");
    const double fp32 = real(row_of(fit, "state", "fp32"), "packed_bytes");
    assert_int_equal(number(fit, "batch"), 256);
    assert_true(fp32 * 256 == 15.0 * 1073741824.0);
    const json_t *damp = row_of(fit, "state", "damp"), *leap = row_of(fit, "state", "leap8");
    assert_true(fabs(real(damp, "bits") - 9.875) < 1e-9);
    assert_true(fabs(100 * real(damp, "state_change") + 69.1) < 0.05);
    assert_true(fabs(real(leap, "bits") / 8 - 1.19) < 0.005);
    assert_true(fabs(fp32 / real(leap, "packed_bytes") - 3.4) < 0.05);
    json_decref(fit);
}

/* LeapQuant, 4.3: with a checkpoint per 1K cached tokens 41, 51 and 56 % less memory. */
static void prefix_cache(void **state) {
    (void)state;
    static const struct {
        const char *model;
        double percent;
    } cases[] = {{"qwen3.5-9b", 41}, {"qwen3.6-35b-a3b", 51}, {"kimi-linear-48b-a3b", 56}};
    for (int i = 0; i < COUNT(cases); i++) {
        char model[96];
        snprintf(model, sizeof model, "models/configs/%s.json", cases[i].model);
        json_t *fit = fit_of(model, "--every 1024");
        const double change = 100 * real(row_of(fit, "state", "leap8"), "cached_change");
        if (fabs(change + cases[i].percent) > 1) fail_msg("%s: %.1f %%", cases[i].model, change);
        json_decref(fit);
    }
}

/* ---- bytes ---- */

static void compare_states(ebb_device *device, const ebb_model *model, const json_t *row) {
    ebb_error error;
    ebb_state_spec spec;
    ebb_state_pool *pool = NULL;
    size_t packed, live;
    must(ebb_state_parse(json_string_value(json_object_get(row, "method")), &spec, &error), &error);
    const ebb_state_pool_config config = {.size = sizeof config,
                                          .spec = &spec,
                                          .layers = ebb_model_state_layers(model),
                                          .n_layers = ebb_model_describe(model)->state_layers,
                                          .slots = 1,
                                          .max_new = 3};
    must(ebb_state_pool_open(device, &config, &pool, &error), &error);
    ebb_state_pool_slot_bytes(pool, &packed, &live);
    assert_int_equal(number(row, "packed_bytes"), packed);
    assert_int_equal(number(row, "live_bytes"), live);
    for (int32_t l = 0; l < config.n_layers; l++) /* the inputs that the next token's convolution reads */
        packed += (size_t)(config.layers[l].conv_width - 1) * (size_t)ebb_state_conv_channels(&config.layers[l]) *
                  sizeof(float);
    assert_int_equal(number(row, "checkpoint_bytes"), packed);
    ebb_state_pool_close(pool);
}

static void compare_kv(ebb_device *device, const ebb_model *model, const json_t *row) {
    ebb_error error;
    ebb_kv_spec spec;
    ebb_kv_pool *pool = NULL;
    ebb_prefill prefill;
    must(ebb_kv_parse(json_string_value(json_object_get(row, "method")), &spec, &error), &error);
    must(ebb_kv_prefill(&spec, &prefill, &error), &error);
    const ebb_kv_pool_config config = {.size = sizeof config,
                                       .spec = &spec,
                                       .layers = ebb_model_kv_layers(model),
                                       .n_layers = ebb_model_describe(model)->kv_layers,
                                       .slots = 1,
                                       .max_tokens = 3000,
                                       .max_new = 3,
                                       .prefill = &prefill};
    must(ebb_kv_pool_open(device, &config, &pool, &error), &error);
    must(ebb_kv_pool_reserve(pool, 0, 3000, &error), &error);
    assert_int_equal(number(row, "context_bytes"), ebb_kv_pool_slot_bytes(pool, 0));
    ebb_kv_pool_close(pool);
}

static void bytes_of_pools(void **state) {
    (void)state;
    static const char *const models[] = {"models/tiny-gdn", "models/tiny-kda"};
    for (int i = 0; i < COUNT(models); i++) {
        char path[256];
        size_t at;
        json_t *row;
        ebb_error error;
        ebb_device *device = NULL;
        ebb_model *model = NULL;
        const ebb_device_config config = {.size = sizeof config, .threads = 1};
        snprintf(path, sizeof path, SOURCE_DIR "/%s", models[i]);
        must(ebb_device_open("cpu", &config, &device, &error), &error);
        must(ebb_model_open(device, path, NULL, &model, &error), &error);
        json_t *fit = fit_of(models[i], "--state fp32,bf16,leap8,leap4,int8 --kv bf16,k8v8,k4v4-vert --context 3000 "
                                        "--max-new 3");
        json_array_foreach(json_object_get(fit, "state"), at, row) compare_states(device, model, row);
        json_array_foreach(json_object_get(fit, "kv"), at, row) compare_kv(device, model, row);
        assert_int_equal(number(fit, "parameters"), ebb_model_describe(model)->parameters);
        json_decref(fit);
        ebb_model_close(model);
        ebb_device_close(device);
    }
}

/* ---- how many fit ---- */

static void sequences(void **state) {
    (void)state;
    size_t i;
    json_t *row;
    json_t *fit = fit_of("models/configs/qwen3.5-9b.json", "--fit 24GB --context 10000 --every 2048");
    const double left = 24e9 - real(fit, "weight_bytes");
    assert_int_equal(json_array_size(json_object_get(fit, "fit")), 5 * 3);
    json_array_foreach(json_object_get(fit, "fit"), i, row) {
        const json_t *s = row_of(fit, "state", json_string_value(json_object_get(row, "state")));
        const json_t *k = row_of(fit, "kv", json_string_value(json_object_get(row, "kv")));
        const int64_t bytes = number(s, "packed_bytes") + number(s, "live_bytes") + number(k, "context_bytes");
        assert_int_equal(number(row, "bytes"), bytes);
        assert_int_equal(number(row, "checkpointed_bytes"), bytes + 4 * number(s, "checkpoint_bytes"));
        assert_int_equal(number(row, "sequences"), (int64_t)(left / (double)bytes));
        assert_true(number(row, "checkpointed_sequences") <= number(row, "sequences"));
    }
    json_decref(fit);
    fit = fit_of("models/configs/qwen3.5-9b.json", "--fit 16GiB --state fp32 --kv bf16"); /* less than the weights */
    row = json_array_get(json_object_get(fit, "fit"), 0);
    assert_int_equal(number(row, "sequences"), 0);
    json_decref(fit);
    fit = fit_of("models/configs/qwen3-8b.json", "--fit 80GiB"); /* no recurrent states */
    assert_int_equal(json_array_size(json_object_get(fit, "state")), 0);
    assert_int_equal(json_array_size(json_object_get(fit, "fit")), 3);
    json_decref(fit);
}

static void command_line(void **state) {
    (void)state;
    static const struct {
        const char *arguments;
        int code;
        const char *says;
    } cases[] = {
        {"--config %s/models/configs/qwen3.6-35b-a3b.json --fit 141GB", 0, "assumed: weights once, in BF16"},
        {"--config %s/models/configs/qwen3.6-35b-a3b.json", 0, "15.00 GiB"},
        {"--config %s/models/tiny-gdn", 0, "qwen3_5_text"},
        {"", 2, "no model given"},
        {"-m x --config y", 2, "both given"},
        {"-m x --fit 1GB", 2, "--fit goes with --config"},
        {"--config %s/models/tiny-gdn --fit 141", 2, "--fit 141: expected a number and B, KB"},
        {"--config %s/models/tiny-gdn --fit -1GB", 2, "--fit"},
        {"--config %s/models/tiny-gdn --every 1000", 2, "--every 1000: expected a multiple of 256"},
        {"--config %s/models/tiny-gdn --context 9999999", 1, "expected 1 to 65536"},
        {"--config %s/models/configs/qwen3-8b.json --state leap8", 1, "no recurrent layers"},
        {"--config %s/models/tiny-gdn --state nonsense", 2, "nonsense"},
        {"--config %s/README.md", 1, "is not JSON"},
        {"--config %s/nowhere.json", 1, "nowhere.json"},
    };
    char *text = malloc(ROOM), arguments[400];
    assert_non_null(text);
    for (int i = 0; i < COUNT(cases); i++) {
        const char *here = strstr(cases[i].arguments, "%s");
        if (here)
            snprintf(arguments, sizeof arguments, "%.*s%s%s", (int)(here - cases[i].arguments), cases[i].arguments,
                     SOURCE_DIR, here + 2);
        else snprintf(arguments, sizeof arguments, "%s", cases[i].arguments);
        const int code = run(arguments, text);
        if (code != cases[i].code || !strstr(text, cases[i].says)) fail_msg("%s: %d %s", arguments, code, text);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states),    cmocka_unit_test(prefix_cache), cmocka_unit_test(bytes_of_pools),
        cmocka_unit_test(sequences), cmocka_unit_test(command_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
