/* server/reply.c: objects of the OpenAI API out of the events of a job (reply.h). Called by the server's routes.
 * reply_text.c turns tokens into texts, calls and logprobs. */
#include "server/reply.h"
#include "server/reply_int.h"
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- opening ---- */

ebb_status reply_open(reply *r, const api_request *request, const ebb_tokenizer *tokenizer, const char *model,
                      int32_t n, bool thinking, uint64_t number, ebb_error *error) {
    *r = (reply){.request = request, .tokenizer = tokenizer, .model = model, .n = n, .created = (int64_t)time(NULL)};
    snprintf(r->id, sizeof r->id, "%s-%016llx", request->chat ? "chatcmpl" : "cmpl",
             (unsigned long long)mix64((uint64_t)r->created * 1000003u + number));
    r->choices = calloc((size_t)n, sizeof *r->choices);
    if (!r->choices) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d answers", n);
    for (int32_t i = 0; i < n; i++) reply_text_open(r, &r->choices[i], thinking);
    return EBB_OK;
}

void reply_close(reply *r) {
    for (int32_t i = 0; r->choices && i < r->n; i++) reply_text_close(&r->choices[i]);
    free(r->choices);
    *r = (reply){0};
}

bool reply_over(const reply *r) {
    for (int32_t i = 0; i < r->n; i++)
        if (!r->choices[i].over) return false;
    return true;
}

/* ---- building JSON: a failure anywhere makes NULL of the whole ---- */

static json_t *with(json_t *object, const char *key, json_t *value) {
    if (object && json_object_set_new(object, key, value) == 0) return object;
    if (!object) json_decref(value);
    json_decref(object);
    return NULL;
}

static json_t *texts(const text_buffer *text) { return json_stringn(text->data ? text->data : "", text->bytes); }

static json_t *head(const reply *r, const char *object) {
    return json_pack("{s:s, s:s, s:I, s:s}", "id", r->id, "object", object, "created", (json_int_t)r->created, "model",
                     r->model);
}

static json_t *usage(const reply *r) {
    json_int_t tokens = 0;
    for (int32_t i = 0; i < r->n; i++) tokens += (json_int_t)r->choices[i].tokens;
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", (json_int_t)r->prompt_tokens,
                     "completion_tokens", tokens, "total_tokens", (json_int_t)r->prompt_tokens + tokens,
                     "prompt_tokens_details", "cached_tokens", (json_int_t)r->cached_tokens,
                     "completion_tokens_details", "reasoning_tokens", (json_int_t)r->reasoning_tokens);
}

static json_t *finish_reason(const reply_choice *c) { return c->finish ? json_string(c->finish) : json_null(); }

/* What waits of the log-probabilities, as either API has it; null where there is none. */
static json_t *take_logprobs(const reply *r, reply_choice *c) {
    json_t *own = c->logprobs;
    c->logprobs = NULL;
    if (!own) return json_null();
    return r->request->chat ? json_pack("{s:o}", "content", own) : own;
}

/* What the model said, as a message or as a delta of one. */
static json_t *message(const reply_choice *c, bool delta) {
    json_t *m = json_object();
    if (!delta || !c->begun) m = with(m, "role", json_string("assistant"));
    if (!delta || c->content.bytes || !c->begun)
        m = with(m, "content", !delta && c->calls && !c->content.bytes ? json_null() : texts(&c->content));
    if (c->reasoning.bytes) m = with(m, "reasoning_content", texts(&c->reasoning));
    if (c->calls) m = with(m, "tool_calls", json_incref(c->calls));
    return m;
}

static json_t *choice_object(const reply *r, reply_choice *c, bool delta) {
    json_t *o = json_pack("{s:i}", "index", (int)(c - r->choices));
    if (!r->request->chat) o = with(o, "text", texts(&c->content));
    else o = with(o, delta ? "delta" : "message", message(c, delta));
    o = with(o, "logprobs", take_logprobs(r, c));
    return with(o, "finish_reason", finish_reason(c));
}

/* ---- streams ---- */

/* data: OBJECT, which is taken. */
static bool send_object(text_buffer *out, json_t *object) {
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    const bool good = text && text_format(out, "data: %s\n\n", text);
    free(text);
    return good;
}

static json_t *chunk(const reply *r, json_t *choices) {
    json_t *o = with(head(r, r->request->chat ? "chat.completion.chunk" : "text_completion"), "choices", choices);
    return r->request->stream_usage ? with(o, "usage", json_null()) : o;
}

static bool send_choice(reply *r, reply_choice *c, text_buffer *out) {
    const bool news = c->content.bytes || c->reasoning.bytes || c->calls || c->logprobs || c->finish;
    if (c->begun && !news) return true;
    json_t *object = choice_object(r, c, true);
    const bool good = send_object(out, chunk(r, object ? json_pack("[o]", object) : NULL));
    c->begun = true;
    c->content.bytes = c->reasoning.bytes = 0;
    json_decref(c->calls);
    c->calls = NULL;
    return good;
}

static bool send_progress(const reply *r, const job_event *e, text_buffer *out) {
    json_t *o = with(chunk(r, json_array()), "prompt_progress",
                     json_pack("{s:I, s:I, s:I}", "total", (json_int_t)e->total, "processed", (json_int_t)e->done,
                               "cached", (json_int_t)r->choices[e->choice].cached));
    return send_object(out, o);
}

bool reply_done(reply *r, text_buffer *out) {
    if (r->request->stream_usage) {
        json_t *o =
            with(with(head(r, r->request->chat ? "chat.completion.chunk" : "text_completion"), "choices", json_array()),
                 "usage", usage(r));
        if (!send_object(out, o)) return false;
    }
    return text_format(out, "data: [DONE]\n\n");
}

/* ---- events ---- */

static bool end_choice(reply_choice *c, end_reason reason) {
    if (c->over) return true;
    const bool good = reply_text_end(c);
    c->over = true;
    c->finish = c->n_calls ? "tool_calls" : reason == REASON_LENGTH ? "length" : "stop";
    return good;
}

bool reply_event(reply *r, const job_event *e, text_buffer *out, bool *stop) {
    reply_choice *c = &r->choices[e->choice];
    bool good = true;
    *stop = false;
    if (e->cached && !c->cached && e->choice % r->request->n == 0)
        r->cached_tokens += c->cached = e->cached; /* of each prompt once */
    if (e->kind == EVENT_PROGRESS) return !out || !r->request->progress || send_progress(r, e, out);
    if (c->over) return true; /* the engine was faster than the end that was found here */
    if (e->kind == EVENT_TOKEN) {
        good = reply_text_token(c, e, stop);
        if (good && *stop) good = end_choice(c, REASON_STOP);
    } else if (e->kind == EVENT_END) good = end_choice(c, e->reason);
    return good && (!out || send_choice(r, c, out));
}

char *reply_body(reply *r) {
    json_t *choices = json_array();
    for (int32_t i = 0; i < r->n && choices; i++) {
        if (json_array_append_new(choices, choice_object(r, &r->choices[i], false)) == 0) continue;
        json_decref(choices);
        choices = NULL;
    }
    json_t *o = with(head(r, r->request->chat ? "chat.completion" : "text_completion"), "choices", choices);
    o = with(o, "usage", usage(r));
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(o);
    return text;
}

/* ---- errors ---- */

static json_t *error_object(const char *type, const char *code, const char *sentence) {
    return json_pack("{s:{s:s, s:s, s:n, s:s?}}", "error", "message", sentence, "type", type, "param", "code", code);
}

char *reply_error(const char *type, const char *code, const char *sentence) {
    json_t *o = error_object(type, code, sentence);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

bool reply_error_event(text_buffer *out, const char *type, const char *code, const char *sentence) {
    return send_object(out, error_object(type, code, sentence));
}
