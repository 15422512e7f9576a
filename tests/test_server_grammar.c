/* test_server_grammar.c: schemas as grammars: what texts they hold, what they refuse by name, and the tokens that may
 * come next. */
#include "core/core.h"
#include "ebb/model.h"
#include "server/mask.h"
#include "server/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

static grammar *of_schema(const char *text) {
    ebb_error error;
    grammar *g = NULL;
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(schema);
    must(schema_value(schema, &g, &error), &error);
    json_decref(schema);
    return g;
}

static int32_t state_after(grammar *g, const char *text) {
    int32_t state = grammar_start(g);
    for (; *text && state >= 0; text++) state = grammar_next(g, state, (uint8_t)*text);
    return state;
}

static bool holds(grammar *g, const char *text) { return grammar_whole(g, state_after(g, text)); }

static void check(const char *schema, const char *const *good, const char *const *bad) {
    grammar *g = of_schema(schema);
    for (; *good; good++)
        if (!holds(g, *good)) fail_msg("%s does not hold %s", schema, *good);
    for (; *bad; bad++)
        if (holds(g, *bad)) fail_msg("%s holds %s", schema, *bad);
    grammar_free(g);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_values(void **state) {
    (void)state;
    check("{}",
          LIST("1", "-0.5e+10", "\"a\\n\\u00e9\\ud83d\\ude00 \xf0\x9f\x99\x82\"", "[]", "[1, 2]", "{}", "true", "null",
               "{\"a\":[{\"b\":null}]}", "{\n  \"a\": 1\n}"),
          LIST("", "01", "1.", "-", "\"", "\"\n\"", "\"\\ud83d\"", "\"\xff\"", "\"\xed\xa0\x80\"", "[1,]", "[,1]",
               "{a:1}", "{\"a\":1,}", "{\"a\"}", "tru", "nul", "1 ", "{}x"));
    check("{\"type\": \"integer\"}", LIST("0", "-12", "123456789012345678"),
          LIST("1.0", "1e3", "1234567890123456789", "\"1\""));
    check("{\"type\": [\"string\", \"null\"]}", LIST("\"x\"", "null"), LIST("1", "true"));
    check("{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", LIST("\"ab\"", "\"\xc3\xa9\xc3\xa9\xc3\xa9\""),
          LIST("\"a\"", "\"abcd\"", "\"\""));
    check("{\"enum\": [\"red\", 3, null, {\"a\": [1]}]}", LIST("\"red\"", "3", "null", "{\"a\":[1]}"),
          LIST("\"blue\"", "\"re\"", "4"));
    check("{\"const\": \"x\\\"y\"}", LIST("\"x\\\"y\""), LIST("\"x\"", "x"));
}

static void test_objects(void **state) {
    (void)state;
    check(
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"string\"}}, "
        "\"required\": [\"a\", \"b\"], \"additionalProperties\": false}",
        LIST("{\"a\":1,\"b\":\"x\"}", "{\n  \"a\": 1,\n  \"b\": \"x\"\n}"),
        LIST("{}", "{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{\"a\":1,\"b\":\"x\",\"c\":1}", "{\"a\":\"x\",\"b\":\"x\"}"));
    check("{\"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"integer\"}, \"c\": {\"type\": "
          "\"integer\"}}, "
          "\"required\": [\"b\"]}",
          LIST("{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"b\":2,\"c\":3}", "{\"a\":1,\"b\":2,\"c\":3}"),
          LIST("{}", "{\"a\":1}", "{,\"b\":1}", "{\"b\":1,}", "{\"a\":1 \"b\":1}"));
    check("{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}", LIST("{}", "{\"x\":1, \"y\":2}"),
          LIST("{\"x\":\"1\"}"));
    check("{\"type\": \"object\"}", LIST("{}", "{\"x\":[]}"), LIST("[]"));
}

static void test_arrays(void **state) {
    (void)state;
    check("{\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, \"minItems\": 1, \"maxItems\": 2}",
          LIST("[true]", "[true, false]"), LIST("[]", "[true,true,true]", "[1]"));
    check("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 2}", LIST("[1,2]", "[1,2,3,4,5]"),
          LIST("[]", "[1]"));
    check("{\"type\": \"array\", \"maxItems\": 0}", LIST("[]"), LIST("[1]"));
}

static void test_choices_and_refs(void **state) {
    (void)state;
    check("{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"object\", \"properties\": {\"x\": {\"const\": 1}}, "
          "\"required\": [\"x\"]}, "
          "{\"type\": \"object\", \"properties\": {\"x\": {\"const\": 2}, \"y\": {}}, \"required\": [\"x\", \"y\"]}]}",
          LIST("7", "{\"x\":1}", "{\"x\":2,\"y\":[]}"), LIST("{\"x\":2}", "{\"x\":1,\"y\":1}", "\"7\""));
    check("{\"$ref\": \"#/$defs/tree\", \"$defs\": {\"tree\": {\"type\": \"object\", \"properties\": {\"v\": "
          "{\"type\": \"integer\"}, "
          "\"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/tree\"}, {\"type\": \"null\"}]}}, \"required\": [\"v\", "
          "\"next\"]}}}",
          LIST("{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"),
          LIST("{\"v\":1}", "{\"v\":1,\"next\":3}"));
}

static void refuses(const char *text, ebb_status code, const char *word) {
    ebb_error error = {EBB_OK, ""};
    grammar *g = NULL;
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(schema);
    assert_int_equal(schema_value(schema, &g, &error), code);
    if (!strstr(error.text, word)) fail_msg("'%s' does not name '%s'", error.text, word);
    json_decref(schema);
}

static void test_refusals(void **state) {
    (void)state;
    refuses("{\"type\": \"string\", \"pattern\": \"a*\"}", EBB_UNSUPPORTED, "'pattern'");
    refuses("{\"properties\": {\"q\": {\"type\": \"integer\", \"minimum\": 3}}}", EBB_UNSUPPORTED, "property q");
    refuses("{\"properties\": {\"q\": {}}, \"required\": [\"r\"]}", EBB_UNSUPPORTED, "required");
    refuses("{\"$ref\": \"#/$defs/none\"}", EBB_UNSUPPORTED, "$ref");
    refuses("{\"type\": \"thing\"}", EBB_UNSUPPORTED, "type");
    refuses("{\"type\": \"integer\", \"enum\": [\"x\"]}", EBB_UNSUPPORTED, "enum");
    refuses("{\"type\": \"array\", \"minItems\": 3, \"maxItems\": 2}", EBB_UNSUPPORTED, "maxItems");
    refuses("{\"type\": \"array\", \"maxItems\": 100000}", EBB_UNSUPPORTED, "maxItems");
    refuses("{\"$ref\": \"#\"}", EBB_BAD_ARGUMENT, "too deep"); /* a rule that is itself */
    refuses("false", EBB_UNSUPPORTED, "object");
}

/* A nest that is too deep cannot go on, and one that is not can be closed. */
static void test_depth(void **state) {
    (void)state;
    grammar *g = of_schema("{}");
    int32_t s = grammar_start(g), depth = 0;
    for (int32_t next; (next = grammar_next(g, s, '[')) >= 0; depth++) s = next;
    assert_in_range(depth, 60, GRAMMAR_DEPTH);
    for (int32_t i = 0; i < depth; i++) {
        s = grammar_next(g, s, ']');
        assert_true(s >= 0);
    }
    assert_true(grammar_over(g, s));
    grammar_free(g);
}

/* Equal situations are one state: a long text makes no more of them than a short one. */
static void test_states(void **state) {
    (void)state;
    grammar *g = of_schema("{\"type\": \"array\", \"items\": {\"type\": \"string\"}}");
    assert_true(holds(g, "[\"abc\",\"def\"]"));
    const int32_t n = grammar_states(g);
    assert_true(holds(g, "[\"abcdefghijkl\",\"mnopqrst\",\"uvw\",\"x\"]"));
    assert_int_equal(grammar_states(g), n);
    grammar_free(g);
}

/* ---- tokens ---- */

static bool takes(grammar *g, int32_t state, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes && state >= 0; i++) state = grammar_next(g, state, (uint8_t)text[i]);
    return state >= 0;
}

/* The mask of many states against every token by itself. */
static void test_masks(void **state) {
    (void)state;
    static const char text[] = "{\"name\": \"caf\xc3\xa9 and more\", \"n\": -12, \"list\": [true, null]}";
    ebb_tokenizer *tokenizer;
    ebb_error error;
    must(ebb_tokenizer_open(SOURCE_DIR "/models/tiny-gdn", &tokenizer, &error), &error);
    const int32_t vocab = ebb_tokenizer_size(tokenizer);
    token_table *table = token_table_new(tokenizer, vocab);
    masker *m = masker_new(
        table, of_schema("{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"n\": "
                         "{\"type\": \"number\"}, \"list\": {}}, \"required\": [\"name\", \"n\", \"list\"]}"));
    assert_non_null(m);
    int32_t at = grammar_start(masker_grammar(m));
    for (const char *c = text;; c++) {
        const uint64_t *bits = masker_bits(m, at);
        int32_t n = 0;
        assert_non_null(bits);
        for (int32_t id = 0; id < vocab; id++) {
            size_t bytes;
            const char *token = ebb_token_bytes(tokenizer, id, &bytes);
            const bool may =
                token && bytes && !ebb_tokenizer_special(tokenizer, id) && takes(masker_grammar(m), at, token, bytes);
            if (may != mask_has(bits, id)) fail_msg("token %d after '%.*s'", id, (int)(c - text), text);
            n += may;
        }
        assert_int_equal(n > 0, *c != '\0');
        if (!*c) break;
        at = grammar_next(masker_grammar(m), at, (uint8_t)*c);
        assert_true(at >= 0);
    }
    assert_true(grammar_over(masker_grammar(m), at));
    masker_free(m);
    token_table_free(table);
    ebb_tokenizer_close(tokenizer);
}

/* Whatever tokens are drawn from the masks, the text is a value of the schema, and it ends. */
static void test_random_walks(void **state) {
    (void)state;
    static const char *const schemas[] = {
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"maxLength\": 8}, \"b\": {\"type\": "
        "\"array\", \"items\": "
        "{\"enum\": [1, \"two\", null]}, \"maxItems\": 3}}, \"required\": [\"a\", \"b\"]}",
        "{\"anyOf\": [{\"type\": \"number\"}, {\"type\": \"boolean\"}]}",
    };
    ebb_tokenizer *tokenizer;
    ebb_error error;
    must(ebb_tokenizer_open(SOURCE_DIR "/models/tiny-gdn", &tokenizer, &error), &error);
    const int32_t vocab = ebb_tokenizer_size(tokenizer);
    token_table *table = token_table_new(tokenizer, vocab);
    uint64_t seed = 1;
    for (int32_t k = 0; k < 2; k++) {
        masker *m = masker_new(table, of_schema(schemas[k]));
        for (int32_t walk = 0; walk < 50; walk++) {
            char text[4096];
            size_t n = 0;
            int32_t at = grammar_start(masker_grammar(m));
            for (int32_t step = 0; step < 400 && !grammar_over(masker_grammar(m), at); step++) {
                const uint64_t *bits = masker_bits(m, at);
                int32_t token = (int32_t)(mix64(seed++) % (uint64_t)vocab), left = vocab;
                while (left-- && !mask_has(bits, token)) token = (token + 1) % vocab;
                assert_true(left >= 0);
                size_t bytes;
                const char *piece = ebb_token_bytes(tokenizer, token, &bytes);
                assert_true(n + bytes < sizeof text);
                memcpy(text + n, piece, bytes);
                n += bytes;
                at = masker_next(m, at, token);
            }
            assert_true(grammar_whole(masker_grammar(m), at));
            json_t *json = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            if (!json) fail_msg("not JSON: %.*s", (int)n, text);
            json_decref(json);
        }
        masker_free(m);
    }
    token_table_free(table);
    ebb_tokenizer_close(tokenizer);
}

static void test_call(void **state) {
    (void)state;
    const char *const names[] = {"get_weather", "stop"};
    json_t *const parameters[] = {
        json_loads("{\"type\": \"object\", \"properties\": {\"city\": {\"$ref\": \"#/$defs/c\"}}, "
                   "\"required\": [\"city\"], \"$defs\": {\"c\": {\"type\": \"string\"}}}",
                   0, NULL),
        NULL};
    grammar *g = NULL;
    ebb_error error;
    must(schema_call(names, parameters, 2, &g, &error), &error);
    assert_true(holds(g, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>"));
    assert_true(holds(g, "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>"));
    assert_false(holds(g, "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"));
    assert_false(holds(g, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": 1}}\n</tool_call>"));
    grammar_free(g);
    json_decref(parameters[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_objects),
        cmocka_unit_test(test_arrays),       cmocka_unit_test(test_choices_and_refs),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_depth),
        cmocka_unit_test(test_states),       cmocka_unit_test(test_masks),
        cmocka_unit_test(test_random_walks), cmocka_unit_test(test_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
