/* test_server_parts.c: an answer cut into thoughts, text and calls, however it is cut into pieces on the way; and stop
 * strings. */
#include "core/core.h"
#include "server/answer_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

typedef struct heard {
    text_buffer content, reasoning, calls; /* calls as NAME(ARGUMENTS); */
} heard;

static bool on_text(void *ctx, part_kind kind, const char *text, size_t bytes) {
    heard *h = ctx;
    assert_true(bytes > 0);
    return text_add(kind == PART_REASONING ? &h->reasoning : &h->content, text, bytes);
}

static bool on_call(void *ctx, const char *name, const char *arguments) {
    return text_format(&((heard *)ctx)->calls, "%s(%s);", name, arguments);
}

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": "
    "{\"s\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}}}}}]";

typedef struct expected {
    const char *text, *content, *reasoning, *calls;
    bool reasons, thinking, no_tools;
} expected;

static void same(const text_buffer *got, const char *want, const expected *e, size_t piece) {
    if (strcmp(got->data ? got->data : "", want ? want : "") != 0)
        fail_msg("'%s' in pieces of %zu: '%s', expected '%s'", e->text, piece, got->data ? got->data : "",
                 want ? want : "");
}

static void run(const expected *e, size_t piece) {
    heard h = {0};
    json_t *tools = e->no_tools ? NULL : json_loads(tools_text, 0, NULL);
    part_parser p = {.sink = {&h, on_text, on_call}, .tools = tools, .reasoning = e->reasons, .thinking = e->thinking};
    const size_t n = strlen(e->text);
    for (size_t at = 0; at < n; at += piece) assert_true(part_feed(&p, e->text + at, n - at < piece ? n - at : piece));
    assert_true(part_end(&p));
    same(&h.content, e->content, e, piece);
    same(&h.reasoning, e->reasoning, e, piece);
    same(&h.calls, e->calls, e, piece);
    part_free(&p);
    json_decref(tools);
    text_free(&h.content), text_free(&h.reasoning), text_free(&h.calls);
}

#define JSON_CALL "{\"name\": \"f\", \"arguments\": {\"n\": 1}}"

static const expected answers[] = {
    /* text */
    {"plain <b>text</b> ", .content = "plain <b>text</b> "},
    {"a < b, <tool", .content = "a < b, <tool"},
    {" \n lead and end \n", .content = " \n lead and end \n"},
    {"<tool_call>\n" JSON_CALL "\n</tool_call>", .no_tools = true,
     .content = "<tool_call>\n" JSON_CALL "\n</tool_call>"},
    /* Qwen's JSON */
    {"<tool_call>\n" JSON_CALL "\n</tool_call>", .calls = "f({\"n\":1});"},
    {"Let me see.\n\n<tool_call>" JSON_CALL "</tool_call>", .content = "Let me see.", .calls = "f({\"n\":1});"},
    {"<tool_call>" JSON_CALL "</tool_call><tool_call>" JSON_CALL "</tool_call>", .calls = "f({\"n\":1});f({\"n\":1});"},
    {"<tool_call>\n" JSON_CALL "\n<tool_call>\n" JSON_CALL, .calls = "f({\"n\":1});f({\"n\":1});"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}</tool_call> done", .content = "done",
     .calls = "f({\"n\":1});"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}</tool_call>", .calls = "f({\"n\":1});"},
    {"<tool_call>{\"name\": \"f\", \"parameters\": {}}</tool_call>", .calls = "f({});"},
    {"<tool_call>{\"name\": \"f\"}</tool_call>", .calls = "f({});"},
    {"<tool_call>[" JSON_CALL ", " JSON_CALL "]</tool_call>", .calls = "f({\"n\":1});f({\"n\":1});"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a </tool_call> \\\" b\"}}</tool_call>",
     .calls = "f({\"s\":\"a </tool_call> \\\" b\"});"},
    {"<tool_call>what is this</tool_call> after", .content = "<tool_call>what is this</tool_call>after"},
    {"<tool_call>{\"name\": 3}</tool_call>", .content = "<tool_call>{\"name\": 3}</tool_call>"},
    {"<tool_call>", .content = "<tool_call>"},
    /* Qwen's functions */
    {"<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>\n</"
     "tool_call>",
     .calls = "f({\"s\":\"12\",\"n\":12});"},
    {"<tool_call><function=f><parameter=s>two\nlines</parameter></function></tool_call>",
     .calls = "f({\"s\":\"two\\nlines\"});"},
    {"<tool_call>\n<function=f>\n<parameter=n>\n3\n<parameter=s>\nx\n</function>",
     .calls = "f({\"n\":3,\"s\":\"x\"});"},
    {"<tool_call><function=f></function><function=g></function></tool_call>", .calls = "f({});g({});"},
    {"<tool_call><function=g><parameter=list>[1, 2]</parameter></function></tool_call>",
     .calls = "g({\"list\":[1,2]});"},
    /* Kimi */
    {"I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\": "
     "1}<|tool_call_end|>"
     "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     .content = "I look.", .calls = "f({\"n\":1});g({});"},
    {"<|tool_call_begin|>f<|tool_call_argument_begin|>{\"n\": 1}", .calls = "f({\"n\":1});"},
    {"<|tool_call_begin|>f:0 nothing<|tool_call_end|>", .content = "<|tool_call_begin|>f:0 nothing<|tool_call_end|>"},
    /* thoughts */
    {"<think>\nhm\n</think>\n\nyes", .reasons = true, .reasoning = "hm", .content = "yes"},
    {"hm, <b>\n</think>\n\nyes ", .reasons = true, .thinking = true, .reasoning = "hm, <b>", .content = "yes "},
    {"never ends", .reasons = true, .thinking = true, .reasoning = "never ends"},
    {"<think></think>yes", .reasons = true, .content = "yes"},
    {"a <think> b", .reasons = true, .content = "a <think> b"},
    {"<think>x</think>", .content = "<think>x</think>"},
    {"<think>call <tool_call> it</think><tool_call>" JSON_CALL "</tool_call>", .reasons = true,
     .reasoning = "call <tool_call> it", .calls = "f({\"n\":1});"},
};

static void test_parts(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(answers); i++)
        for (size_t piece = 1; piece < 40; piece++) run(&answers[i], piece);
    for (int32_t i = 0; i < COUNT(answers); i++) run(&answers[i], 4096);
}

/* ---- stop strings ---- */

static void stops(const char *text, const char *const *strings, int32_t n, const char *want, bool stopped) {
    for (size_t piece = 1; piece <= strlen(text); piece++) {
        text_buffer out = {0};
        stop_strings s = {.strings = strings, .n = n};
        for (size_t at = 0; at < strlen(text); at += piece) {
            const size_t left = strlen(text) - at;
            assert_true(stop_feed(&s, text + at, left < piece ? left : piece, &out));
        }
        assert_true(stop_end(&s, &out));
        assert_string_equal(out.data ? out.data : "", want);
        assert_int_equal(s.stopped, stopped);
        stop_free(&s);
        text_free(&out);
    }
}

static void test_stops(void **state) {
    (void)state;
    const char *const two[] = {"END", "\n\n"};
    stops("one ENDless", two, 2, "one ", true);
    stops("one\n\ntwo END", two, 2, "one", true);
    stops("one EN", two, 2, "one EN", false);
    stops("EEEND", two, 2, "EE", true);
    stops("nothing", NULL, 0, "nothing", false);
    stops("\xc3\xa9\xe2\x82\xac!", two, 2, "\xc3\xa9\xe2\x82\xac!", false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts), cmocka_unit_test(test_stops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
