/* fuzz/server.c: what the server reads: bodies of requests, schemas, and what a model writes: thoughts and calls. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"

#include "core/core.h"
#include "server/answer_parts.h"
#include "server/body.h"
#include "server/schema.h"

#include <stdlib.h>
#include <string.h>

/* As a body of either API; what is taken is in range. */
void fuzz_body(const uint8_t *data, size_t bytes) {
    for (int chat = 0; chat < 2; chat++) {
        api_request r;
        ebb_error error = {EBB_OK, ""};
        const ebb_status status = body_read(chat, (const char *)data, bytes, &EBB_GREEDY, &r, &error);
        fuzz_expect(!status || (error.text[0] && error.code == status), "a failure has its sentence");
        if (!status) {
            fuzz_expect(!ebb_sampling_check(&r.sampling, NULL), "the sampling is in range");
            fuzz_expect(r.n >= 1 && r.n <= BODY_MOST_CHOICES && r.max_tokens != 0, "the numbers are in range");
            fuzz_expect(chat ? json_array_size(r.messages) > 0 : json_array_size(r.prompts) > 0, "there is a prompt");
            fuzz_expect(r.form != FORM_CALL || r.tools, "a call has its tools");
        }
        body_free(&r);
    }
    json_t *root = NULL, *tokens;
    const char *content;
    bool special;
    if (!body_tokenize((const char *)data, bytes, &root, &content, &special, NULL))
        fuzz_expect(content != NULL, "a text");
    json_decref(root);
    root = NULL;
    if (!body_detokenize((const char *)data, bytes, &root, &tokens, NULL))
        fuzz_expect(json_is_array(tokens), "an array");
    json_decref(root);
}

/* A schema, up to the first zero byte, and then a text that is held to it: the states of a text do not depend on when
 * it is asked for, and what is whole is JSON. */
void fuzz_schema(const uint8_t *data, size_t bytes) {
    const uint8_t *zero = memchr(data, 0, bytes);
    const size_t n = zero ? (size_t)(zero - data) : bytes;
    grammar *g = NULL;
    ebb_error error = {EBB_OK, ""};
    json_t *schema = json_loadb((const char *)data, n, JSON_DECODE_ANY, NULL);
    if (!schema) return;
    const ebb_status status = schema_value(schema, &g, &error);
    fuzz_expect(!status || (error.text[0] && error.code == status), "a failure has its sentence");
    if (!status) {
        int32_t state = grammar_start(g);
        for (size_t i = n + 1; i < bytes && state >= 0; i++) {
            const int32_t next = grammar_next(g, state, data[i]);
            fuzz_expect(next == grammar_next(g, state, data[i]), "a state has one successor");
            state = next;
            if (!grammar_whole(g, state)) continue;
            json_t *value = json_loadb((const char *)data + n + 1, i - n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            fuzz_expect(value != NULL, "what is whole is JSON");
            json_decref(value);
        }
        grammar_free(g);
    }
    json_decref(schema);
}

/* ---- answers ---- */

static bool on_text(void *ctx, part_kind kind, const char *text, size_t bytes) {
    text_buffer *to = ctx;
    fuzz_expect(bytes > 0, "a part has text");
    return text_add(&to[kind == PART_REASONING], text, bytes);
}

static bool on_call(void *ctx, const char *name, const char *arguments) {
    json_t *object = json_loads(arguments, JSON_ALLOW_NUL, NULL);
    fuzz_expect(*name && json_is_object(object), "a call has a name and an object");
    json_decref(object);
    return text_format((text_buffer *)ctx + 2, "%s(%s);", name, arguments);
}

static void parse(const char *text, size_t bytes, size_t piece, int how, const json_t *tools, text_buffer out[3]) {
    part_parser p = {
        .sink = {out, on_text, on_call}, .tools = how & 1 ? tools : NULL, .reasoning = how & 2, .thinking = how & 4};
    for (size_t at = 0; at < bytes; at += piece)
        fuzz_expect(part_feed(&p, text + at, bytes - at < piece ? bytes - at : piece), "text is taken");
    fuzz_expect(part_end(&p), "an answer ends");
    part_free(&p);
}

/* The first byte says how; the rest comes whole and in pieces, and the parts are the same. */
void fuzz_answer(const uint8_t *data, size_t bytes) {
    static const char tools_text[] =
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"}}}}}]";
    if (bytes < 2 || bytes > 20000) return;
    const int how = data[0];
    const char *text = (const char *)data + 1;
    json_t *tools = json_loads(tools_text, 0, NULL);
    text_buffer whole[3] = {{0}}, cut[3] = {{0}};
    parse(text, bytes - 1, bytes, how, tools, whole);
    parse(text, bytes - 1, (size_t)(how >> 3) + 1, how, tools, cut);
    for (int i = 0; i < 3; i++) {
        fuzz_expect(whole[i].bytes == cut[i].bytes &&
                        (!whole[i].bytes || !memcmp(whole[i].data, cut[i].data, cut[i].bytes)),
                    "pieces do not matter");
        text_free(&whole[i]), text_free(&cut[i]);
    }
    json_decref(tools);
}
