/* server/completions.c: /v1/chat/completions and /v1/completions: from a body to a job, from its events to an answer,
 * whole or as a stream. Called by http.c, in the thread of the connection. */
#include "server/http.h"
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How often a thread that waits looks whether its client has gone, in seconds. */
static const double glance = 0.2;

/* A request under way. In a stream it belongs to the response, and goes with it. */
typedef struct answering {
    http_call *call;
    server *server;
    job *job;
    reply reply;
    text_buffer out; /* of a stream: not yet sent */
    double started, sent;
    bool done;
    request_end end;
} answering;

/* A line about an answer that has ended, where lines are wanted. */
static void log_answer(const answering *a) {
    static const char *const ends[REQUEST_ENDS] = {"stop", "length", "cancelled", "timeout", "failed"};
    const ebb_log *log = &a->server->config.log;
    char line[200];
    int64_t tokens = 0;
    if (!log->notice) return;
    for (int32_t i = 0; i < a->reply.n; i++) tokens += a->reply.choices[i].tokens;
    snprintf(line, sizeof line, "%s: prompt %lld tokens, cached %lld, answer %lld, %s after %.3f s", a->reply.id,
             (long long)a->reply.prompt_tokens, (long long)a->reply.cached_tokens, (long long)tokens, ends[a->end],
             seconds_now() - a->started);
    log->notice(log->ctx, line);
}

static void close_answering(answering *a) {
    if (!a) return;
    if (a->job) {
        job_cancel(a->job, -1); /* what still runs, when the client has gone; nothing else */
        if (a->server->loop && !reply_over(&a->reply)) loop_wake(a->server->loop);
        metrics_end(&a->server->metrics, a->end, seconds_now() - a->started);
        log_answer(a);
        server_count(a->server, -1);
    }
    reply_close(&a->reply);
    job_release(a->job);
    text_free(&a->out);
    free(a);
}

/* ---- prompts ---- */

/* The conversation as ids; *thinking: the template has opened the model's thoughts. */
static ebb_status chat_ids(const server *s, const api_request *r, int32_t **ids, int64_t *n, bool *thinking,
                           ebb_error *error) {
    const time_t now = time(NULL);
    struct tm local;
    char *text = NULL;
    size_t bytes = 0;
    char *messages = json_dumps(r->messages, JSON_COMPACT),
         *tools = r->tools ? json_dumps(r->tools, JSON_COMPACT) : NULL;
    char *variables = r->variables ? json_dumps(r->variables, JSON_COMPACT) : NULL;
    ebb_chat_call call = {.size = sizeof call,
                          .json = messages,
                          .tools = tools,
                          .variables = variables,
                          .jinja = s->config.jinja,
                          .now = localtime_r(&now, &local) ? (int64_t)now + local.tm_gmtoff : 0,
                          .reply = true};
    ebb_status status = messages && (tools || !r->tools) && (variables || !r->variables)
                            ? ebb_chat_text(s->tokenizer, &call, &text, &bytes, error)
                            : ebb_fail(error, EBB_NO_MEMORY, "no memory for a conversation");
    if (!status) status = ebb_chat_ids(s->tokenizer, &call, ids, n, NULL, error);
    while (bytes && strchr(" \t\r\n", text[bytes - 1])) bytes--;
    *thinking = !status && bytes >= 7 && memcmp(text + bytes - 7, "<think>", 7) == 0;
    free(text), free(messages), free(tools), free(variables);
    return status;
}

static ebb_status copy_ids(const json_t *from, int32_t vocab, int32_t **ids, int64_t *n, ebb_error *error) {
    *n = (int64_t)json_array_size(from);
    *ids = malloc((size_t)(*n + 1) * sizeof **ids);
    if (!*ids) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a prompt");
    for (int64_t i = 0; i < *n; i++) {
        const json_int_t id = json_integer_value(json_array_get(from, (size_t)i));
        if (id >= vocab)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "'prompt' has the token %lld, expected 0 to %d", (long long)id,
                            vocab - 1);
        (*ids)[i] = (int32_t)id;
    }
    return EBB_OK;
}

/* A text, begun as the tokenizer begins texts; special tokens in it are read as such, as in raw prompts everywhere. */
static ebb_status text_ids(const server *s, const json_t *text, int32_t **ids, int64_t *n, ebb_error *error) {
    int32_t n_prefix, *own = NULL;
    const int32_t *prefix = ebb_tokenizer_prefix(s->tokenizer, &n_prefix);
    ebb_status status =
        ebb_tokenize(s->tokenizer, json_string_value(text), json_string_length(text), true, &own, n, error);
    if (status) return status;
    const bool has = n_prefix && *n >= n_prefix && memcmp(own, prefix, (size_t)n_prefix * sizeof *prefix) == 0;
    const int64_t more = has ? 0 : n_prefix;
    *ids = malloc((size_t)(*n + more + 1) * sizeof **ids);
    if (!*ids) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a prompt");
    else {
        if (more) memcpy(*ids, prefix, (size_t)more * sizeof **ids);
        memcpy(*ids + more, own, (size_t)*n * sizeof **ids);
        *n += more;
    }
    free(own);
    return status;
}

static ebb_status prompt_ids(const server *s, const api_request *r, int32_t number, job_choice *c, bool *thinking,
                             ebb_error *error) {
    if (r->chat) return chat_ids(s, r, &c->prompt, &c->n_prompt, thinking, error);
    const json_t *prompt = json_array_get(r->prompts, (size_t)number);
    if (json_is_string(prompt)) return text_ids(s, prompt, &c->prompt, &c->n_prompt, error);
    return copy_ids(prompt, ebb_model_describe(s->config.model)->vocab, &c->prompt, &c->n_prompt, error);
}

/* ---- jobs ---- */

static ebb_status copy_prompt(const job_choice *from, job_choice *to, ebb_error *error) {
    to->prompt = malloc((size_t)(from->n_prompt + 1) * sizeof *to->prompt);
    if (!to->prompt) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a prompt");
    memcpy(to->prompt, from->prompt, (size_t)from->n_prompt * sizeof *to->prompt);
    to->n_prompt = from->n_prompt;
    return EBB_OK;
}

static void set_rules(const job *j, bool thinking, job_choice *c) {
    const api_request *r = &j->request;
    c->rules = (token_rules){.masks = j->form ? j->form->masks : NULL,
                             .thinking = thinking,
                             .bias = r->bias,
                             .n_bias = r->n_bias,
                             .presence = (float)r->presence,
                             .frequency = (float)r->frequency,
                             .ignore_stop = r->ignore_stop};
    if (j->form) c->rules.state = grammar_start(masker_grammar(j->form->masks));
}

/* Prompts and rules of all answers: n of each prompt. The first answer has the seed that was given, or that of one with
 * n = 1; the others have seeds made of it. */
static ebb_status fill_job(server *s, job *j, bool *thinking, const char **code, ebb_error *error) {
    api_request *r = &j->request;
    const bool seeded = json_is_integer(json_object_get(r->root, "seed"));
    const uint64_t seed = seeded ? r->sampling.seed : mix64(s->random + server_number(s));
    loop_stats now;
    loop_now(s->loop, &now);
    for (int32_t i = 0; i < r->n_bias; i++)
        if (r->bias[i].token >= ebb_model_describe(s->config.model)->vocab)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "'logit_bias' names the token %d, which this model does not have",
                            r->bias[i].token);
    for (int32_t i = 0; i < j->n; i++) {
        job_choice *c = &j->choices[i];
        ebb_status status = i % r->n ? copy_prompt(&j->choices[i - i % r->n], c, error)
                                     : prompt_ids(s, r, i / r->n, c, thinking, error);
        if (status) return status;
        if (!c->n_prompt) return ebb_fail(error, EBB_BAD_ARGUMENT, "the prompt has no tokens, expected at least one");
        if (c->n_prompt >= now.context) *code = "context_length_exceeded";
        if (c->n_prompt >= now.context)
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "the prompt has %lld tokens, and this server's context %lld: no room for an answer",
                            (long long)c->n_prompt, (long long)now.context);
        c->sampling = r->sampling;
        c->sampling.seed = i % r->n ? mix64(seed + (uint64_t)(i % r->n)) : seed;
        set_rules(j, *thinking, c);
    }
    j->max_tokens = r->max_tokens;
    j->logprobs = r->logprobs;
    return EBB_OK;
}

static ebb_status check_model(const server *s, const api_request *r, bool *unknown, ebb_error *error) {
    *unknown = r->model && strcmp(r->model, s->config.name) != 0;
    if (!*unknown) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "the model '%.80s' is not here; this server has '%.80s'", r->model,
                    s->config.name);
}

/* From the body to a job that is in the engine's queue. */
static ebb_status begin_answering(http_call *call, bool chat, answering **out, unsigned *http, const char **code,
                                  ebb_error *error) {
    server *s = call->server;
    answering *a = calloc(1, sizeof *a);
    api_request request = {0};
    bool thinking = false, unknown = false;
    job *j = NULL;
    if (!a) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a request");
    *a = (answering){.call = call, .server = s, .started = seconds_now(), .end = END_CANCELLED};
    a->sent = a->started;
    ebb_status status =
        body_read(chat, call->body.data ? call->body.data : "", call->body.bytes, &s->config.sampling, &request, error);
    if (!status) status = check_model(s, &request, &unknown, error);
    if (unknown) *http = MHD_HTTP_NOT_FOUND, *code = "model_not_found";
    const int32_t n = status ? 0 : request.n * (chat ? 1 : (int32_t)json_array_size(request.prompts));
    if (!status && !(j = job_new(n))) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a request");
    if (!j) body_free(&request);
    else {
        j->request = request, j->forms = &s->forms;
        j->submitted = a->started;
        status = forms_get(&s->forms, &j->request, &j->form, error);
    }
    if (!status) status = fill_job(s, j, &thinking, code, error);
    if (!status)
        status = reply_open(&a->reply, &j->request, s->tokenizer, s->config.name, n, thinking, server_number(s), error);
    for (int32_t i = 0; i < n && !status; i += request.n) a->reply.prompt_tokens += j->choices[i].n_prompt;
    if (!status && !(status = loop_submit(s->loop, j, error))) {
        a->job = j;
        call->taken = true;
        server_count(s, 1);
        *out = a;
        return EBB_OK;
    }
    reply_close(&a->reply);
    job_release(j);
    free(a);
    return status;
}

/* ---- waiting for the engine ---- */

static request_end end_of(const reply *r) {
    for (int32_t i = 0; i < r->n; i++)
        if (r->choices[i].finish && strcmp(r->choices[i].finish, "length") == 0) return END_LENGTH;
    return END_STOP;
}

/* What happened while an answer waited. */
typedef enum waited { WAITED_EVENT, WAITED_NOTHING, WAITED_GONE, WAITED_TIMEOUT, WAITED_FAILED } waited;

/* Take one event, and give it to the reply. */
static waited wait_event(answering *a, text_buffer *out, ebb_error *error) {
    job_event e;
    bool stop = false;
    if (server_closing(a->server)) {
        ebb_fail(error, EBB_INTERRUPTED, "the server is shutting down");
        return WAITED_FAILED;
    }
    if (a->server->config.timeout > 0 && seconds_now() - a->started > a->server->config.timeout) return WAITED_TIMEOUT;
    if (!job_take(a->job, glance, &e)) return http_gone(a->call) ? WAITED_GONE : WAITED_NOTHING;
    if (e.kind == EVENT_FAILED) {
        ebb_fail(error, e.status, "%s", e.text);
        return WAITED_FAILED;
    }
    const bool good = reply_event(&a->reply, &e, out, &stop);
    free(e.top);
    if (stop) {
        job_cancel(a->job, e.choice);
        loop_wake(a->server->loop);
    }
    if (good) return WAITED_EVENT;
    ebb_fail(error, EBB_NO_MEMORY, "no memory for an answer");
    return WAITED_FAILED;
}

static enum MHD_Result answer_whole(http_call *call, answering *a) {
    ebb_error error;
    waited w = WAITED_NOTHING;
    enum MHD_Result result;
    while (w <= WAITED_NOTHING && !reply_over(&a->reply)) w = wait_event(a, NULL, &error);
    if (w <= WAITED_NOTHING) {
        a->end = end_of(&a->reply);
        result = http_json(call, MHD_HTTP_OK, reply_body(&a->reply));
    } else if (w == WAITED_TIMEOUT) {
        a->end = END_TIMEOUT;
        result = http_error(call, MHD_HTTP_GATEWAY_TIMEOUT, "timeout",
                            "the answer took longer than this server gives a request");
    } else if (w == WAITED_GONE) result = MHD_NO;
    else {
        a->end = END_FAILED;
        result = http_fail(call, &error);
    }
    close_answering(a);
    return result;
}

/* ---- streams ---- */

/* Something to send, or the end. False: the stream breaks off. */
static bool next_part(answering *a) {
    ebb_error error;
    if (reply_over(&a->reply)) {
        a->done = true;
        a->end = end_of(&a->reply);
        return reply_done(&a->reply, &a->out);
    }
    switch (wait_event(a, &a->out, &error)) {
    case WAITED_EVENT:
        return true;
    case WAITED_NOTHING:
        if (seconds_now() - a->sent < a->server->config.keep_alive) return true;
        return text_format(&a->out, ": keep-alive\n\n");
    case WAITED_GONE:
        return false;
    case WAITED_TIMEOUT:
        a->done = true, a->end = END_TIMEOUT;
        return reply_error_event(&a->out, "server_error", "timeout",
                                 "the answer took longer than this server gives a request");
    case WAITED_FAILED:
        break;
    }
    a->done = true, a->end = END_FAILED;
    return reply_error_event(&a->out, "server_error", NULL, error.text);
}

static ssize_t read_stream(void *ctx, uint64_t position, char *to, size_t room) {
    answering *a = ctx;
    (void)position;
    while (!a->out.bytes) {
        if (a->done) return MHD_CONTENT_READER_END_OF_STREAM;
        if (!next_part(a)) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    const size_t n = a->out.bytes < room ? a->out.bytes : room;
    memcpy(to, a->out.data, n);
    text_drop(&a->out, n);
    a->sent = seconds_now();
    return (ssize_t)n;
}

static void end_stream(void *ctx) { close_answering(ctx); }

static enum MHD_Result answer_stream(http_call *call, answering *a) {
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, a, end_stream);
    if (!response) {
        close_answering(a);
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", "text/event-stream");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");
    const enum MHD_Result result = MHD_queue_response(call->connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    call->answered = true;
    return result;
}

static enum MHD_Result run(http_call *call, bool chat) {
    ebb_error error;
    answering *a = NULL;
    unsigned status = 0;
    const char *code = NULL;
    if (server_draining(call->server))
        return http_error(call, MHD_HTTP_SERVICE_UNAVAILABLE, "shutting_down", "the server is shutting down");
    if (!begin_answering(call, chat, &a, &status, &code, &error))
        return a->job->request.stream ? answer_stream(call, a) : answer_whole(call, a);
    return status || code ? http_error(call, status ? status : MHD_HTTP_BAD_REQUEST, code, error.text)
                          : http_fail(call, &error);
}

enum MHD_Result route_chat(http_call *call) { return run(call, true); }
enum MHD_Result route_completion(http_call *call) { return run(call, false); }
