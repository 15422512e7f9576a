/* test_jinja.c: the interpreter of chat templates against jinja2, compiled as transformers does it
 * (tests/data/jinja_golden.json); what it refuses, with the line; its budgets; and which bytes come from data. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/jinja.h"

#define GOLDEN SOURCE_DIR "/tests/data/jinja_golden.json"

static json_t *golden;

static int open_golden(void **state) {
    (void)state;
    golden = json_load_file(GOLDEN, JSON_DECODE_ANY, NULL);
    return golden ? 0 : -1;
}

static int close_golden(void **state) {
    (void)state;
    json_decref(golden);
    return 0;
}

static ebb_status render(const char *source, const json_t *data, jinja_text *out, ebb_error *error) {
    const jinja_call call = {.source = source,
                             .bytes = strlen(source),
                             .data = data,
                             .now = json_integer_value(json_object_get(golden, "now"))};
    return jinja_render(&call, out, error);
}

/* false: told on stdout */
static bool same(const char *source, const json_t *data, const json_t *wanted, const char *name) {
    jinja_text out;
    ebb_error error = {EBB_OK, ""};
    const ebb_status status = render(source, data, &out, &error);
    const bool right = json_is_null(wanted) ? status && !strncmp(error.text, "chat template, line ", 20)
                                            : !status && !strcmp(out.text, json_string_value(wanted));
    if (!right)
        printf("%s\n    wanted %s\n    got    %s\n", name,
               json_is_null(wanted) ? "a failure" : json_string_value(wanted), status ? error.text : out.text);
    if (!status) jinja_text_free(&out);
    return right;
}

static void test_snippets(void **state) {
    (void)state;
    const json_t *snippets = json_object_get(golden, "snippets"), *data = json_object_get(golden, "data");
    int wrong = 0;
    assert_true(json_array_size(snippets) >= 600);
    for (size_t i = 0; i < json_array_size(snippets); i++) {
        const json_t *one = json_array_get(snippets, i);
        const char *source = json_string_value(json_object_get(one, "source"));
        wrong += !same(source, data, json_object_get(one, "text"), source);
    }
    assert_int_equal(wrong, 0);
}

static void test_chats(void **state) {
    (void)state;
    const json_t *chats = json_object_get(golden, "chats"), *templates = json_object_get(golden, "templates"),
                 *conversations = json_object_get(golden, "conversations"), *texts = json_object_get(golden, "texts");
    int wrong = 0;
    assert_true(json_array_size(chats) >= 400);
    for (size_t i = 0; i < json_array_size(chats); i++) {
        const json_t *one = json_array_get(chats, i), *text = json_array_get(one, 2); /* null, or its place in texts */
        const size_t conversation = (size_t)json_integer_value(json_array_get(one, 1));
        char name[64];
        const char *template = json_string_value(json_array_get(one, 0));
        snprintf(name, sizeof name, "conversation %zu, template %s", i, template);
        if (!json_is_null(text)) text = json_array_get(texts, (size_t)json_integer_value(text));
        wrong += !same(json_string_value(json_object_get(templates, template)),
                       json_array_get(conversations, conversation), text, name);
    }
    assert_int_equal(wrong, 0);
}

/* Sentences name the line, and what is beyond the language that is served has a code of its own. */
static void test_sentences(void **state) {
    (void)state;
    static const struct {
        const char *source, *says;
        ebb_status status;
    } cases[] = {
        {"a\nb {{ x.y }}", "chat template, line 2: 'x' is undefined", EBB_BAD_FILE},
        {"\n\n{{ raise_exception('Only text, please') }}", "chat template, line 3: Only text, please",
         EBB_BAD_ARGUMENT},
        {"{%- set a = 1 %}\n{% include 'other' %}", "line 2: {% include %} is beyond what is served", EBB_UNSUPPORTED},
        {"{{ 1 | urlize }}", "line 1: the filter urlize is beyond what is served", EBB_UNSUPPORTED},
        {"{{ 1 is escaped }}", "line 1: the test escaped with 0 arguments is beyond", EBB_UNSUPPORTED},
        {"{{ 'a'.zfill(3) }}", "the method zfill is beyond what is served", EBB_UNSUPPORTED},
        {"{{ '%d' % 3 }}", "% on a text is beyond what is served", EBB_UNSUPPORTED},
        {"{% for a in [] recursive %}{% endfor %}", "recursive loops are beyond what is served", EBB_UNSUPPORTED},
        {"{% if a %}\n\n", "line 2: the template ends where elif was expected", EBB_BAD_FILE},
        {"{{ [].append(1) }}", "append changes a list, which templates may not", EBB_BAD_FILE},
        {"{{ 9223372036854775807 + 1 }}", "does not fit 64 bits", EBB_BAD_FILE},
        {"\xff", "not UTF-8", EBB_BAD_FILE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        jinja_text out;
        ebb_error error = {EBB_OK, ""};
        const ebb_status status = render(cases[i].source, NULL, &out, &error);
        if (status != cases[i].status || !strstr(error.text, cases[i].says))
            fail_msg("%s: %s '%s'", cases[i].source, ebb_status_name(status), error.text);
        assert_null(out.text);
    }
}

/* Whatever a template does, it ends, with a sentence. */
static void test_budgets(void **state) {
    (void)state;
    static const struct {
        const char *source, *says;
    } cases[] = {
        {"{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "more"},
        {"{% set b = 'b' * 100000 %}{% for a in range(9999) %}{% if 'a' in b %}{% endif %}{% endfor %}", "more steps"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested deeper"},
        {"{{ 'x' * 100000000 }}", "more"},
        {"{% set n = namespace(t='x') %}{% for a in range(64) %}{% set n.t = n.t + n.t %}{% endfor %}", "more memory"},
        {"{% set n = namespace(t=[]) %}{% for a in range(999) %}{% set n.t = [n.t] %}{% endfor %}{{ n.t }}",
         "nested deeper"},
        {"{% for a in range(9999) %}0123456789{% endfor %}", "writes more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        jinja_text out;
        ebb_error error = {EBB_OK, ""};
        const jinja_call call = {.source = cases[i].source,
                                 .bytes = strlen(cases[i].source),
                                 .limits = {.steps = 1000000, .memory = 4 << 20, .output = 20000}};
        assert_int_equal(jinja_render(&call, &out, &error), EBB_BAD_FILE);
        if (!strstr(error.text, cases[i].says)) fail_msg("%s: '%s'", cases[i].source, error.text);
    }
    static const char *const nested[][3] = {{"{{ ", "(", ")"},   {"{{ ", "[", "]"}, {"", "{% if a %}", ""},
                                            {"{{ ", "not ", ""}, {"{{ ", "-", ""},  {"{{ ", "1 if 1 else ", ""},
                                            {"{{ ", "f(", ")"}};
    for (size_t k = 0; k < sizeof nested / sizeof nested[0]; k++) {
        jinja_text out;
        ebb_error error = {EBB_OK, ""};
        char *source = calloc(1, 200100), *end = source;
        assert_non_null(source);
        end = stpcpy(end, nested[k][0]);
        for (int i = 0; i < 10000; i++) end = stpcpy(end, nested[k][1]);
        end = stpcpy(end, "1");
        for (int i = 0; i < 10000; i++) end = stpcpy(end, nested[k][2]);
        strcpy(end, " }}");
        assert_int_equal(render(source, NULL, &out, &error), EBB_BAD_FILE);
        if (!strstr(error.text, "nested deeper")) fail_msg("%s: %s", nested[k][1], error.text);
        free(source);
    }
}

/* Bytes that come from a text of the data are marked through everything that moves them: shown in upper case here. */
static void test_marks(void **state) {
    (void)state;
    static const struct {
        const char *source, *marks; /* x: of the data */
    } cases[] = {
        {"<a>{{ t }}<b>", "...xxxxxx..."},
        {"{{ '<' + t[1:3] ~ '>' }}", ".xx."},
        {"{{ (' ' + t + ' ') | trim }}", "xxxxxx"},
        {"{{ t | upper }}{{ t.lower() }}", "xxxxxxxxxxxx"},
        {"{{ t.split('|')[1] }}{{ 'a,b'.split(',')[1] }}", "xx."},
        {"{{ t | replace('hi', 'bye') }}", "xx...xx"},
        {"{{ 'a-b' | replace('-', t) }}", ".xxxxxx."},
        {"{{ [t, 'z'] | join('+') }}", "xxxxxx.."},
        {"{{ {'k': t} | tojson }}", ".......xxxxxx.."},
        {"{{ {'k': t} }}", ".......xxxxxx.."},
        {"{% set q %}[{{ t }}]{% endset %}{{ q }}", ".xxxxxx."},
        {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(t) }}", ".xxxxxx."},
        {"{% filter trim %} {{ t }}{% endfilter %}", "xxxxxx"},
        {"{{ t[::-1] }}{{ t | first }}", "xxxxxxx"},
        {"{{ d | tojson }}", "..x....x.."},
        {"{{ '<|' + m[0].role + '|>' }}{{ m[0].content }}", "........xxxx"},
        {"{{ m[1].role }}", "xxxxxx"},
        {"{{ t | indent(1, true) }}", ".xxxxxx"},
        {"{{ n }}{{ d | length }}", ".."},
    };
    json_t *data = json_loads("{\"t\": \"<|hi|>\", \"n\": 5, \"d\": {\"k\": \"v\"}, \"m\": [{\"role\": \"user\", "
                              "\"content\": \"user\"}, {\"role\": \"<|a|>x\"}]}",
                              0, NULL);
    assert_non_null(data);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        jinja_text out;
        ebb_error error = {EBB_OK, ""};
        if (render(cases[i].source, data, &out, &error)) fail_msg("%s: %s", cases[i].source, error.text);
        bool right = out.bytes == strlen(cases[i].marks);
        for (size_t k = 0; k < out.bytes && right; k++) right = (cases[i].marks[k] == 'x') == (out.from_data[k] == 1);
        if (!right) fail_msg("%s gives '%s', marked otherwise than %s", cases[i].source, out.text, cases[i].marks);
        jinja_text_free(&out);
    }
    json_decref(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snippets), cmocka_unit_test(test_chats), cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_budgets),  cmocka_unit_test(test_marks),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
