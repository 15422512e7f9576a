/* server/reply_text.c: tokens of an answer as text, parts, calls and log-probabilities (reply_int.h). Called by
 * reply.c. Text never ends inside a UTF-8 character, and never holds a part of a stop string. */
#include "server/reply_int.h"
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parts ---- */

static bool on_text(void *ctx, part_kind kind, const char *text, size_t bytes) {
    reply_choice *c = ctx;
    return text_add(kind == PART_REASONING ? &c->reasoning : &c->content, text, bytes);
}

static bool on_call(void *ctx, const char *name, const char *arguments) {
    reply_choice *c = ctx;
    char id[64];
    if (c->reply->request->one_call && c->n_calls) return true;
    snprintf(id, sizeof id, "call_%s_%d_%d", strchr(c->reply->id, '-') + 1, (int)(c - c->reply->choices), c->n_calls);
    json_t *call = json_pack("{s:i, s:s, s:s, s:{s:s, s:s}}", "index", c->n_calls, "id", id, "type", "function",
                             "function", "name", name, "arguments", arguments);
    if (!c->calls) c->calls = json_array();
    c->n_calls++;
    return call && c->calls && json_array_append_new(c->calls, call) == 0;
}

void reply_text_open(reply *r, reply_choice *c, bool thinking) {
    const api_request *q = r->request;
    c->reply = r;
    c->text = (ebb_detokenizer){.tokenizer = r->tokenizer};
    c->stop = (stop_strings){.strings = q->stops, .n = q->n_stops};
    c->parts = (part_parser){.sink = {c, on_text, on_call},
                             .tools = q->tools,
                             .reasoning = q->chat && q->split_reasoning,
                             .thinking = thinking && q->split_reasoning};
}

void reply_text_close(reply_choice *c) {
    stop_free(&c->stop);
    part_free(&c->parts);
    text_free(&c->content), text_free(&c->reasoning);
    json_decref(c->calls), json_decref(c->logprobs);
}

/* ---- text ---- */

/* Marks of thoughts and calls are special tokens of some models: their text is wanted, that of others is not. */
static bool is_mark(const reply_choice *c, int32_t token) {
    static const char *const marks[] = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<|tool_call"};
    size_t bytes;
    const char *text = ebb_token_bytes(c->reply->tokenizer, token, &bytes);
    for (int32_t i = 0; i < COUNT(marks) && text; i++)
        if (bytes >= strlen(marks[i]) && memcmp(text, marks[i], strlen(marks[i])) == 0)
            return c->reply->request->chat && (c->reply->request->split_reasoning || i > 1);
    return false;
}

/* The text of a token (-1: what is held) goes through the stop strings to `ready`. */
static bool detokenize(reply_choice *c, int32_t token, text_buffer *ready) {
    enum { REPLACEMENT = 3, HELD = 4 }; /* bytes of U+FFFD, which any byte may become */
    size_t bytes = 0, written = 0;
    char few[256], *text = few;
    if (token >= 0) ebb_token_bytes(c->reply->tokenizer, token, &bytes);
    const size_t room = REPLACEMENT * (bytes + HELD) + 1;
    if (room > sizeof few && !(text = malloc(room))) return false;
    c->text.show_special = token >= 0 && is_mark(c, token);
    const bool good =
        ebb_detokenize(&c->text, token, text, room, &written) == EBB_OK && stop_feed(&c->stop, text, written, ready);
    if (text != few) free(text);
    return good;
}

static bool hand_on(reply_choice *c, const text_buffer *ready) {
    if (!ready->bytes) return true;
    if (!c->reply->request->chat) return text_add(&c->content, ready->data, ready->bytes);
    return part_feed(&c->parts, ready->data, ready->bytes);
}

/* ---- log-probabilities ---- */

/* The text of a token by itself; bytes that are not UTF-8 are shown as U+FFFD. */
static json_t *token_text(const reply_choice *c, int32_t token) {
    size_t bytes = 0;
    const char *text = ebb_token_bytes(c->reply->tokenizer, token, &bytes);
    json_t *plain = json_stringn(text ? text : "", bytes);
    if (plain || bytes > 1024) return plain ? plain : json_string("");
    ebb_detokenizer alone = {.tokenizer = c->reply->tokenizer, .show_special = true};
    char shown[3 * 1024 + 64];
    size_t n = 0, more = 0;
    if (ebb_detokenize(&alone, token, shown, sizeof shown, &n)) return json_string("");
    if (ebb_detokenize(&alone, -1, shown + n, sizeof shown - n, &more)) more = 0;
    return json_stringn(shown, n + more);
}

static json_t *token_entry(const reply_choice *c, int32_t token, float logprob) {
    size_t n = 0;
    const char *text = ebb_token_bytes(c->reply->tokenizer, token, &n);
    json_t *bytes = json_array();
    for (size_t i = 0; i < n && bytes; i++) json_array_append_new(bytes, json_integer((uint8_t)text[i]));
    /* JSON has no infinity: a token that could not come has the smallest number that the API's clients know */
    return json_pack("{s:o, s:f, s:o}", "token", token_text(c, token), "logprob",
                     logprob > -9999.0f ? (double)logprob : -9999.0, "bytes", bytes);
}

static bool chat_logprob(reply_choice *c, const job_event *e) {
    json_t *entry = token_entry(c, e->token, e->logprob), *top = json_array();
    for (int32_t i = 0; i < e->n_top && top; i++)
        json_array_append_new(top, token_entry(c, e->top[i].token, e->top[i].logprob));
    if (!c->logprobs) c->logprobs = json_array();
    if (entry) json_object_set_new(entry, "top_logprobs", top);
    else json_decref(top);
    return entry && c->logprobs && json_array_append_new(c->logprobs, entry) == 0;
}

static bool append(json_t *object, const char *key, json_t *value) {
    return json_array_append_new(json_object_get(object, key), value) == 0;
}

static bool text_logprob(reply_choice *c, const job_event *e) {
    json_t *top = json_object();
    if (!c->logprobs)
        c->logprobs = json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
    for (int32_t i = 0; i < e->n_top && top; i++) {
        json_t *name = token_text(c, e->top[i].token);
        const double logprob = (double)e->top[i].logprob;
        if (name) json_object_set_new(top, json_string_value(name), json_real(logprob > -9999.0 ? logprob : -9999.0));
        json_decref(name);
    }
    return append(c->logprobs, "tokens", token_text(c, e->token)) &&
           append(c->logprobs, "token_logprobs", json_real(e->logprob > -9999.0f ? (double)e->logprob : -9999.0)) &&
           append(c->logprobs, "top_logprobs", top) && append(c->logprobs, "text_offset", json_integer(c->offset));
}

/* ---- tokens ---- */

bool reply_text_token(reply_choice *c, const job_event *e, bool *stop) {
    text_buffer ready = {0};
    size_t bytes = 0;
    bool good = true;
    c->tokens++;
    c->reply->reasoning_tokens += part_thinking(&c->parts);
    if (c->reply->request->logprobs >= 0) good = c->reply->request->chat ? chat_logprob(c, e) : text_logprob(c, e);
    ebb_token_bytes(c->reply->tokenizer, e->token, &bytes);
    c->offset += (int64_t)bytes;
    good = good && detokenize(c, e->token, &ready) && hand_on(c, &ready);
    text_free(&ready);
    *stop = c->stop.stopped || (c->reply->request->one_call && c->n_calls);
    return good;
}

bool reply_text_end(reply_choice *c) {
    text_buffer ready = {0};
    const bool good = detokenize(c, -1, &ready) && stop_end(&c->stop, &ready) && hand_on(c, &ready) &&
                      (!c->reply->request->chat || part_end(&c->parts));
    text_free(&ready);
    return good;
}
