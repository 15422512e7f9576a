/* tests/test_config.c: the JSON files beside the weights: where the text model is described, stop tokens from every
 * file that names some, and the sampling of generation_config.json. */
#define _GNU_SOURCE
#include "model/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct fixture {
    char folder[64];
    ebb_tokenizer *tokenizer; /* of models/tiny-gdn: <|endoftext|> 8187, <|im_start|> 8188, <|im_end|> 8189 */
} fixture;

static const char *const names[] = {"config.json", "generation_config.json", "tokenizer_config.json"};

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    snprintf(f->folder, sizeof f->folder, "/tmp/ebb-test-XXXXXX");
    *state = f;
    return !mkdtemp(f->folder) || ebb_tokenizer_open(SOURCE_DIR "/models/tiny-gdn", &f->tokenizer, NULL) ? -1 : 0;
}

static void put(const fixture *f, const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    unlink(path);
    if (!text) return;
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, strlen(text), out), strlen(text));
    assert_int_equal(fclose(out), 0);
}

static int teardown(void **state) {
    fixture *f = *state;
    for (int32_t i = 0; i < COUNT(names); i++) put(f, names[i], NULL);
    rmdir(f->folder);
    ebb_tokenizer_close(f->tokenizer);
    free(f);
    return 0;
}

#define FLAT "{\"model_type\":\"qwen3_5_text\"}"

static config_files open_ok(const fixture *f, const char *config, const char *generation, const char *tokenizer) {
    config_files c;
    ebb_error error;
    put(f, "config.json", config);
    put(f, "generation_config.json", generation);
    put(f, "tokenizer_config.json", tokenizer);
    if (config_open(f->folder, f->tokenizer, &c, &error)) fail_msg("%s", error.text);
    return c;
}

static void refused(const fixture *f, const char *config, const char *generation, const char *tokenizer,
                    const char *words) {
    config_files c;
    ebb_error error = {0};
    put(f, "config.json", config);
    put(f, "generation_config.json", generation);
    put(f, "tokenizer_config.json", tokenizer);
    ebb_status status = config_open(f->folder, f->tokenizer, &c, &error);
    if (status != EBB_BAD_FILE) fail_msg("%s, expected '%s'", ebb_status_name(status), words);
    if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
    assert_null(c.path);
    assert_null(c.root.value);
}

static void model_types(void **state) {
    const fixture *f = *state;
    config_files c = open_ok(f, FLAT, NULL, NULL);
    assert_string_equal(c.model_type, "qwen3_5_text");
    assert_ptr_equal(c.text.value, c.root.value);
    assert_int_equal(c.n_stop, 1); /* <|im_end|>, which no file names */
    assert_int_equal(c.stop[0], 8189);
    assert_true(c.sampling.temperature == 0 && c.sampling.top_p == 1 && c.sampling.repeat_penalty == 1);
    config_close(&c);
    c = open_ok(f, "{\"model_type\":\"a\",\"text_config\":{\"model_type\":\"b\",\"x\":1}}", NULL, NULL);
    assert_string_equal(c.outer_type, "a");
    assert_string_equal(c.model_type, "b");
    assert_true(json_has(&c.text, "x"));
    config_close(&c);
    c = open_ok(f, "{\"model_type\":\"a\",\"text_config\":{}}", NULL, NULL);
    assert_string_equal(c.model_type, "a");
    config_close(&c);
    c = open_ok(f, "{\"text_config\":{\"model_type\":\"b\"}}", NULL, NULL);
    assert_null(c.outer_type);
    config_close(&c);
    refused(f, NULL, NULL, NULL, "config.json");
    refused(f, "{}", NULL, NULL, "model_type is missing");
    refused(f, "[]", NULL, NULL, "config.json must hold a JSON object");
    refused(f, "{\"model_type\":\"a\",\"model_type\":\"b\"}", NULL, NULL, "config.json");
    refused(f, "{\"model_type\":{}}", NULL, NULL, "model_type is an object, expected a string");
}

static void stop_tokens(void **state) {
    const fixture *f = *state;
    config_files c = open_ok(f, "{\"model_type\":\"a\",\"eos_token_id\":5,\"text_config\":{\"eos_token_id\":[6,5,7]}}",
                             "{\"eos_token_id\":[7,8,8189]}", "{\"eos_token\":\"<|endoftext|>\"}");
    const int32_t expected[] = {5, 6, 7, 8, 8189, 8187};
    assert_int_equal(c.n_stop, COUNT(expected));
    assert_memory_equal(c.stop, expected, sizeof expected);
    config_close(&c);
    c = open_ok(f, FLAT, "{\"eos_token_id\":null}", "{\"eos_token\":{\"content\":\"<|im_end|>\",\"lstrip\":false}}");
    assert_int_equal(c.n_stop, 1);
    assert_int_equal(c.stop[0], 8189);
    config_close(&c);
    c = open_ok(f, FLAT, NULL, "{\"eos_token\":\"<|endoftext|>\"}");
    assert_int_equal(c.n_stop, 2);
    assert_int_equal(c.stop[0], 8187);
    assert_int_equal(c.stop[1], 8189);
    config_close(&c);
    c = open_ok(f, FLAT, NULL, "{\"eos_token\":null}");
    assert_int_equal(c.n_stop, 1);
    config_close(&c);

    refused(f, FLAT, NULL, "{\"eos_token\":\"</s>\"}",
            "tokenizer_config.json: field eos_token is '</s>', expected a token");
    refused(f, FLAT, NULL, "{\"eos_token\":{}}", "eos_token.content is missing");
    refused(f, FLAT, NULL, "{\"eos_token\":2}", "eos_token is a number, expected a string");
    refused(f, FLAT, "{\"eos_token_id\":-1}", NULL, "generation_config.json: field eos_token_id is -1");
    refused(f, FLAT, "{\"eos_token_id\":[1,2.5]}", NULL, "eos_token_id[1] is not a token id");
    refused(f, FLAT, "{\"eos_token_id\":[4294967296]}", NULL, "eos_token_id[0] is not a token id");
    refused(f, FLAT, "{\"eos_token_id\":\"x\"}", NULL, "eos_token_id is a string");
    refused(f, "{\"model_type\":\"a\",\"eos_token_id\":[[1]]}", NULL, NULL, "config.json: field eos_token_id[0]");
    refused(f, FLAT, "{", NULL, "generation_config.json");
    refused(f, FLAT, NULL, "7", "tokenizer_config.json");

    char many[1024] = "{\"model_type\":\"a\",\"eos_token_id\":[0";
    for (int i = 1; i <= CONFIG_MAX_STOP; i++) snprintf(many + strlen(many), sizeof many - strlen(many), ",%d", i);
    snprintf(many + strlen(many), sizeof many - strlen(many), "]}");
    refused(f, many, NULL, NULL, "more than 64 stop tokens");
}

static void sampling(void **state) {
    const fixture *f = *state;
    static const struct {
        const char *file;
        float temperature, top_p, min_p;
        int32_t top_k;
        float penalty;
    } cases[] = {
        {"{}", 0, 1, 0, 0, 1},
        {"{\"temperature\":0.7,\"top_p\":0.95}", 0.7f, 0.95f, 0, 0, 1},
        {"{\"do_sample\":true}", 1, 1, 0, 0, 1},
        {"{\"do_sample\":true,\"temperature\":0.6,\"top_k\":20,\"min_p\":0.05,\"repetition_penalty\":1.1}", 0.6f, 1,
         0.05f, 20, 1.1f},
        {"{\"do_sample\":false,\"temperature\":0.6,\"top_k\":20,\"top_p\":0.9}", 0, 1, 0, 0, 1},
        {"{\"do_sample\":null,\"temperature\":null,\"top_k\":null,\"top_p\":1}", 0, 1, 0, 0, 1},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        config_files c = open_ok(f, FLAT, cases[i].file, NULL);
        const ebb_sampling *s = &c.sampling;
        assert_true(s->temperature == cases[i].temperature && s->top_p == cases[i].top_p &&
                    s->min_p == cases[i].min_p && s->top_k == cases[i].top_k && s->repeat_penalty == cases[i].penalty);
        config_close(&c);
    }
    static const char *const bad[][2] = {
        {"{\"temperature\":-1}", "generation_config.json: "},
        {"{\"temperature\":\"hot\"}", "temperature is a string, expected a number"},
        {"{\"temperature\":1,\"top_p\":1.5}", "generation_config.json: "},
        {"{\"temperature\":1,\"top_k\":-3}", "top_k is -3"},
        {"{\"temperature\":1,\"min_p\":2}", "generation_config.json: "},
        {"{\"temperature\":1,\"repetition_penalty\":0}", "generation_config.json: "},
        {"{\"temperature\":1e300}", "generation_config.json: "},
        {"{\"do_sample\":1}", "do_sample is a number, expected true or false"},
    };
    for (int32_t i = 0; i < COUNT(bad); i++) refused(f, FLAT, bad[i][0], NULL, bad[i][1]);
}

static void ranges(void **state) {
    const fixture *f = *state;
    ebb_error error;
    int32_t whole = 11;
    double number = 2.5;
    config_files c = open_ok(f, "{\"model_type\":\"a\",\"i\":7,\"x\":0.5,\"sub\":{\"x\":3}}", NULL, NULL);
    json_place sub;
    assert_int_equal(config_int(&c.root, "i", JSON_NEEDED, 1, 7, &whole, &error), EBB_OK);
    assert_int_equal(whole, 7);
    assert_int_equal(config_int(&c.root, "none", JSON_OPTIONAL, 1, 2, &whole, &error), EBB_OK);
    assert_int_equal(whole, 7);
    assert_int_equal(config_int(&c.root, "i", JSON_NEEDED, 8, 9, &whole, &error), EBB_BAD_FILE);
    assert_int_equal(config_number(&c.root, "none", JSON_OPTIONAL, 0, 1, &number, &error), EBB_OK);
    assert_true(number == 2.5); /* a preset is not checked */
    assert_int_equal(config_number(&c.root, "x", JSON_NEEDED, 0, 0.5, &number, &error), EBB_OK);
    assert_true(number == 0.5);
    assert_int_equal(config_number(&c.root, "x", JSON_NEEDED, 0.5, 1, &number, &error), EBB_BAD_FILE);
    assert_int_equal(json_get_object(&c.root, "sub", JSON_NEEDED, &sub, &error), EBB_OK);
    assert_int_equal(config_number(&sub, "x", JSON_NEEDED, 0, 1, &number, &error), EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "field sub.x is 3, expected above 0 and at most 1"));
    config_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(model_types, setup, teardown),
        cmocka_unit_test_setup_teardown(stop_tokens, setup, teardown),
        cmocka_unit_test_setup_teardown(sampling, setup, teardown),
        cmocka_unit_test_setup_teardown(ranges, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
