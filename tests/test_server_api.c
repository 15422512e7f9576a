/* test_server_api.c: the server as its clients see it, inside of one process: answers are those of the engine alone,
 * whoever else asks; streams, forms, errors, limits; who leaves takes only his own answer with him. */
#define _GNU_SOURCE
#include "core/core.h"
#include "ebb/ebb.h"
#include "server/client.h"
#include "server/server.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "must.h"

static const double patience = 120;

typedef struct world {
    ebb_device *device;
    ebb_model *model;
    server_config config;
    server *server;
} world;

static int open_world(void **state) {
    world *w = calloc(1, sizeof *w);
    ebb_error error;
    const ebb_device_config config = {.size = sizeof config, .threads = 2};
    signal(SIGPIPE, SIG_IGN);
    if (!w || ebb_device_open("cpu", &config, &w->device, &error) ||
        ebb_model_open(w->device, SOURCE_DIR "/models/tiny-gdn", NULL, &w->model, &error))
        return -1;
    w->config = (server_config){.host = "127.0.0.1",
                                .name = "tiny",
                                .sampling = EBB_GREEDY,
                                .body_most = 1 << 20,
                                .connections_most = 64,
                                .queue_most = 32,
                                .timeout = 100,
                                .keep_alive = 0.3,
                                .model = w->model,
                                .state = "leap8",
                                .kv = "bf16",
                                .max_seqs = 3,
                                .checkpoints = 6,
                                .cache_most = (size_t)256 << 20,
                                .max_tokens = 8192};
    if (server_open(&w->config, &w->server, &error)) return -1;
    *state = w;
    return 0;
}

static int close_world(void **state) {
    world *w = *state;
    server_close(w->server);
    ebb_model_close(w->model);
    ebb_device_close(w->device);
    free(w);
    return 0;
}

/* ---- asking ---- */

static json_t *ask_key(const server *s, const char *path, const char *key, const char *body, int status) {
    http_client c;
    text_buffer text = {0};
    ebb_error error;
    must(client_ask(&c, "127.0.0.1", server_port(s), path, key, body, patience, &error), &error);
    must(client_rest(&c, &text, &error), &error);
    if (c.status != status)
        fail_msg("%s: status %d, expected %d: %s", path, c.status, status, text.data ? text.data : "");
    json_t *json = text.bytes ? json_loadb(text.data, text.bytes, 0, NULL) : NULL;
    client_close(&c);
    text_free(&text);
    return json;
}

static json_t *ask(const server *s, const char *path, const char *body, int status) {
    return ask_key(s, path, NULL, body, status);
}

static const char *at(const json_t *choice, const char *object, const char *key) {
    return json_string_value(json_object_get(json_object_get(choice, object), key));
}

static json_t *choice_of(const json_t *answer, size_t i) {
    json_t *choice = json_array_get(json_object_get(answer, "choices"), i);
    assert_non_null(choice);
    return choice;
}

/* The text of the only answer of a chat, malloc'ed. */
static char *chat_text(const server *s, const char *body) {
    json_t *answer = ask(s, "/v1/chat/completions", body, 200);
    const char *text = at(choice_of(answer, 0), "message", "content");
    assert_non_null(text);
    char *copy = strdup(text);
    json_decref(answer);
    return copy;
}

static double metric(const server *s, const char *name) {
    http_client c;
    text_buffer line = {0};
    ebb_error error;
    double value = -1;
    must(client_ask(&c, "127.0.0.1", server_port(s), "/metrics", NULL, NULL, patience, &error), &error);
    assert_int_equal(c.status, 200);
    while (client_line(&c, &line, &error))
        if (strncmp(line.data, name, strlen(name)) == 0 && line.data[strlen(name)] == ' ')
            value = atof(line.data + strlen(name) + 1);
    client_close(&c);
    text_free(&line);
    if (value < 0) fail_msg("no metric %s", name);
    return value;
}

/* Until a metric has a value; bounded. */
static void wait_metric(const server *s, const char *name, double value) {
    for (int32_t i = 0; i < 3000; i++) {
        if (metric(s, name) == value) return;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    fail_msg("%s is %g, expected %g", name, metric(s, name), value);
}

/* ---- what the engine says alone ---- */

static bool keep(void *ctx, int32_t prompt, int32_t token) {
    text_buffer *text = ctx;
    (void)prompt;
    return text_add(text, (const char *)&token, sizeof token);
}

/* A greedy answer of `n` tokens to one user message. */
static char *alone(const world *w, const char *user, int64_t n) {
    const ebb_message message = {"user", user};
    const ebb_engine_config config = {.size = sizeof config, .state = "leap8", .kv = "bf16", .max_tokens = 8192};
    const ebb_tokenizer *tokenizer = ebb_model_tokenizer(w->model);
    ebb_engine *engine;
    ebb_prompt prompt;
    int32_t *ids;
    text_buffer tokens = {0}, text = {0};
    ebb_error error;
    must(ebb_engine_open(w->model, &config, &engine, &error), &error);
    must(ebb_chat(tokenizer, &message, 1, true, &ids, &prompt.count, &error), &error);
    prompt.ids = ids;
    must(ebb_generate(engine, &prompt, 1, &EBB_GREEDY, n, keep, &tokens, NULL, &error), &error);
    ebb_detokenizer d = {.tokenizer = tokenizer};
    for (size_t i = 0; i <= tokens.bytes / sizeof(int32_t); i++) {
        char some[512];
        size_t written;
        const int32_t id = i < tokens.bytes / sizeof(int32_t) ? ((const int32_t *)(const void *)tokens.data)[i] : -1;
        assert_int_equal(ebb_detokenize(&d, id, some, sizeof some, &written), EBB_OK);
        assert_true(text_add(&text, some, written));
    }
    free(ids);
    text_free(&tokens);
    ebb_engine_close(engine);
    return text.data;
}

/* ---- tests ---- */

static void test_small_routes(void **state) {
    const world *w = *state;
    json_t *health = ask(w->server, "/health", NULL, 200), *models = ask(w->server, "/v1/models", NULL, 200);
    assert_string_equal(json_string_value(json_object_get(health, "status")), "ok");
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(models, "data"), 0), "id")),
                        "tiny");
    json_t *tokens = ask(w->server, "/tokenize", "{\"content\": \"na\\u00efve caf\\u00e9, twice\"}", 200);
    json_t *back = json_pack("{s:O}", "tokens", json_object_get(tokens, "tokens"));
    char *body = json_dumps(back, 0);
    json_t *text = ask(w->server, "/detokenize", body, 200);
    assert_string_equal(json_string_value(json_object_get(text, "content")), "na\xc3\xafve caf\xc3\xa9, twice");
    free(body);
    json_decref(health), json_decref(models), json_decref(tokens), json_decref(back), json_decref(text);
    json_decref(ask(w->server, "/", NULL, 200));
}

#define CHAT(user, rest) \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"" user "\"}], \"max_tokens\": 24, \"temperature\": 0" rest "}"

typedef struct asker {
    const server *s;
    const char *body;
    char *text;
} asker;

static void *ask_it(void *ctx) {
    asker *a = ctx;
    a->text = chat_text(a->s, a->body);
    return NULL;
}

/* Six at a time over three slots: each answer is that of the engine alone. */
static void test_same_as_alone(void **state) {
    const world *w = *state;
    static const char *const users[] = {"Hello", "What is the sea?", "One two three four five",
                                        "A",     "Tell me of Alice", "Why?"};
    static const char *const bodies[] = {
        CHAT("Hello", ""), CHAT("What is the sea?", ""), CHAT("One two three four five", ""),
        CHAT("A", ""),     CHAT("Tell me of Alice", ""), CHAT("Why?", "")};
    enum { N = 6 };
    asker askers[N];
    pthread_t threads[N];
    for (int32_t i = 0; i < N; i++) {
        askers[i] = (asker){w->server, bodies[i], NULL};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_it, &askers[i]), 0);
    }
    for (int32_t i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        char *want = alone(w, users[i], 24);
        assert_string_equal(askers[i].text, want);
        free(want), free(askers[i].text);
    }
}

/* A stream in one text; how many comments and progress events it had. */
static char *stream_text(const server *s, const char *body, int32_t *comments, int32_t *progress, json_t **usage) {
    http_client c;
    text_buffer line = {0}, text = {0};
    ebb_error error;
    bool done = false;
    *comments = *progress = 0, *usage = NULL;
    must(client_ask(&c, "127.0.0.1", server_port(s), "/v1/chat/completions", NULL, body, patience, &error), &error);
    assert_int_equal(c.status, 200);
    assert_true(text_add(&text, "", 0));
    while (client_line(&c, &line, &error)) {
        json_t *e = client_event(&line);
        *comments += line.data[0] == ':';
        done |= strcmp(line.data, "data: [DONE]") == 0;
        *progress += json_object_get(e, "prompt_progress") != NULL;
        if (json_is_object(json_object_get(e, "usage"))) *usage = json_incref(json_object_get(e, "usage"));
        const char *more = at(json_array_get(json_object_get(e, "choices"), 0), "delta", "content");
        if (more) assert_true(text_add(&text, more, strlen(more)));
        json_decref(e);
    }
    assert_true(done);
    client_close(&c);
    text_free(&line);
    return text.data;
}

static void test_stream(void **state) {
    const world *w = *state;
    int32_t comments, progress;
    json_t *usage;
    char *whole = chat_text(w->server, CHAT("Tell me of Alice", ""));
    char *parts = stream_text(w->server,
                              CHAT("Tell me of Alice", ", \"stream\": true, \"return_progress\": true, "
                                                       "\"stream_options\": {\"include_usage\": true}"),
                              &comments, &progress, &usage);
    assert_string_equal(whole, parts);
    assert_true(progress > 0);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 24);
    json_decref(usage);
    free(whole), free(parts);
}

static void test_choices_and_seeds(void **state) {
    const world *w = *state;
    static const char body[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 12, "
                               "\"temperature\": 1, \"n\": 3, \"seed\": 7}";
    static const char one[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 12, "
                              "\"temperature\": 1, \"seed\": 7}";
    json_t *a = ask(w->server, "/v1/chat/completions", body, 200),
           *b = ask(w->server, "/v1/chat/completions", body, 200);
    json_t *c = ask(w->server, "/v1/chat/completions", one, 200);
    assert_int_equal(json_array_size(json_object_get(a, "choices")), 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(at(choice_of(a, i), "message", "content"), at(choice_of(b, i), "message", "content"));
    assert_string_equal(at(choice_of(a, 0), "message", "content"), at(choice_of(c, 0), "message", "content"));
    assert_string_not_equal(at(choice_of(a, 0), "message", "content"), at(choice_of(a, 1), "message", "content"));
    json_decref(a), json_decref(b), json_decref(c);
}

static void test_stop_and_logprobs(void **state) {
    const world *w = *state;
    char *whole = chat_text(w->server, CHAT("Tell me of Alice", "")), body[512], stop[8] = "";
    const size_t n = strlen(whole);
    assert_true(n > 12);
    for (size_t i = 0, k = 0; i < 3 && k < 6; i++) { /* three bytes of the middle, as JSON */
        if (whole[n / 2 + i] == '"' || whole[n / 2 + i] == '\\') stop[k++] = '\\';
        stop[k++] = whole[n / 2 + i];
    }
    snprintf(body, sizeof body,
             CHAT("Tell me of Alice", ", \"stop\": [\"%s\"], \"logprobs\": true, \"top_logprobs\": 3"), stop);
    json_t *answer = ask(w->server, "/v1/chat/completions", body, 200);
    json_t *choice = choice_of(answer, 0), *entries = json_object_get(json_object_get(choice, "logprobs"), "content"),
           *entry;
    const char *text = at(choice, "message", "content");
    size_t i;
    assert_memory_equal(text, whole, strlen(text));
    assert_true(strlen(text) <= n / 2);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "stop");
    json_array_foreach(entries, i, entry) {
        const json_t *top = json_object_get(entry, "top_logprobs");
        assert_int_equal(json_array_size(top), 3);
        /* greedy: the token taken is the likeliest, and likelihoods descend */
        assert_true(json_number_value(json_object_get(entry, "logprob")) ==
                    json_number_value(json_object_get(json_array_get(top, 0), "logprob")));
        assert_true(json_number_value(json_object_get(json_array_get(top, 1), "logprob")) >=
                    json_number_value(json_object_get(json_array_get(top, 2), "logprob")));
        assert_true(json_number_value(json_object_get(entry, "logprob")) <= 0);
    }
    assert_true(i > 0);
    json_decref(answer);
    free(whole);
}

/* How often the token 300 comes in forty, pushed up by a bias. */
static int32_t times_of(const server *s, const char *more) {
    char body[256];
    int32_t n = 0;
    size_t i;
    json_t *one;
    snprintf(body, sizeof body, "{\"prompt\": \"Alice\", \"max_tokens\": 40, \"temperature\": 0, \"logprobs\": 0%s}",
             more);
    json_t *answer = ask(s, "/v1/completions", body, 200), *name = ask(s, "/detokenize", "{\"tokens\": [300]}", 200);
    json_array_foreach(json_object_get(json_object_get(choice_of(answer, 0), "logprobs"), "tokens"), i, one) n +=
        strcmp(json_string_value(one), json_string_value(json_object_get(name, "content"))) == 0;
    json_decref(answer), json_decref(name);
    return n;
}

static void test_bias_and_penalties(void **state) {
    const world *w = *state;
    assert_int_equal(times_of(w->server, ", \"logit_bias\": {\"300\": 100}"), 40);
    const int32_t free_of = times_of(w->server, ", \"logit_bias\": {\"300\": 20}");
    assert_true(free_of > 20);
    assert_in_range(times_of(w->server, ", \"logit_bias\": {\"300\": 20}, \"frequency_penalty\": 2"), 1, free_of - 10);
    assert_int_equal(times_of(w->server, ", \"logit_bias\": {\"300\": -100}"), 0);
}

static void test_forms(void **state) {
    const world *w = *state;
    for (int32_t seed = 0; seed < 4; seed++) {
        char body[1024];
        snprintf(body, sizeof body,
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"JSON\"}], \"max_tokens\": 400, \"temperature\": "
                 "1, \"seed\": %d, "
                 "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"s\", \"schema\": "
                 "{\"type\": \"object\", "
                 "\"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"string\", \"maxLength\": 9}, "
                 "\"c\": {\"enum\": "
                 "[\"x\", \"y\"]}}, \"required\": [\"a\", \"b\", \"c\"]}}}}",
                 seed);
        char *text = chat_text(w->server, body);
        json_t *value = json_loads(text, 0, NULL);
        if (!json_is_integer(json_object_get(value, "a")) || !json_is_string(json_object_get(value, "b")) ||
            !json_is_string(json_object_get(value, "c")) || json_object_size(value) != 3)
            fail_msg("not of the schema: %s", text);
        json_decref(value);
        free(text);
    }
    json_t *answer = ask(
        w->server, "/v1/chat/completions",
        CHAT("call",
             ", \"tool_choice\": \"required\", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get\", "
             "\"parameters\": {\"type\": \"object\", \"properties\": {\"unit\": {\"enum\": [\"C\", \"F\"]}}, "
             "\"required\": "
             "[\"unit\"]}}}], \"logit_bias\": {}"),
        200);
    json_t *again = ask(w->server, "/v1/chat/completions",
                        "{\"messages\": [{\"role\": \"user\", \"content\": \"call\"}], \"temperature\": 0, "
                        "\"tool_choice\": \"required\", \"tools\": "
                        "[{\"type\": \"function\", \"function\": {\"name\": \"get\", \"parameters\": {\"type\": "
                        "\"object\", \"properties\": {\"unit\": "
                        "{\"enum\": [\"C\", \"F\"]}}, \"required\": [\"unit\"]}}}]}",
                        200);
    const json_t *call =
        json_array_get(json_object_get(json_object_get(choice_of(again, 0), "message"), "tool_calls"), 0);
    assert_string_equal(json_string_value(json_object_get(choice_of(again, 0), "finish_reason")), "tool_calls");
    assert_string_equal(at(call, "function", "name"), "get");
    json_t *arguments = json_loads(at(call, "function", "arguments"), 0, NULL);
    assert_non_null(json_object_get(arguments, "unit"));
    json_decref(arguments), json_decref(answer), json_decref(again);
}

static void refused(const server *s, const char *path, const char *body, int status, const char *word) {
    json_t *answer = ask(s, path, body, status);
    const char *sentence = at(answer, "error", "message");
    if (!sentence || !strstr(sentence, word))
        fail_msg("%s: '%s' does not name '%s'", body, sentence ? sentence : "", word);
    json_decref(answer);
}

static void test_errors(void **state) {
    const world *w = *state;
    const char *const chat = "/v1/chat/completions", *const text = "/v1/completions";
    char *large = malloc((2 << 20) + 1), *longest = malloc(1 << 17);
    refused(w->server, chat, "{", 400, "JSON");
    refused(w->server, chat, "[]", 400, "object");
    refused(w->server, chat, "{}", 400, "messages");
    refused(w->server, chat, "{\"messages\": []}", 400, "messages");
    refused(w->server, chat, "{\"messages\": [{\"role\": \"king\", \"content\": \"x\"}]}", 400, "role");
    refused(w->server, chat, "{\"messages\": [{\"role\": \"user\"}]}", 400, "content");
    refused(w->server, chat, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", 400,
            "parts");
    refused(w->server, chat, CHAT("x", ", \"colour\": 1"), 400, "'colour'");
    refused(w->server, chat, CHAT("x", ", \"top_p\": 7"), 400, "'top_p'");
    refused(w->server, chat, CHAT("x", ", \"n\": 99"), 400, "'n'");
    refused(w->server, chat, CHAT("x", ", \"model\": \"other\""), 404, "other");
    refused(w->server, chat, CHAT("x", ", \"logit_bias\": {\"99999999\": 1}"), 400, "99999999");
    refused(w->server, chat, CHAT("x", ", \"tool_choice\": \"required\""), 400, "tools");
    refused(
        w->server, chat,
        CHAT("x",
             ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"string\", "
             "\"pattern\": \"a\"}}}"),
        400, "'pattern'");
    refused(w->server, text, "{\"prompt\": [99999999]}", 400, "99999999");
    refused(w->server, text, "{\"prompt\": \"x\", \"echo\": true}", 400, "'echo'");
    refused(w->server, text, "{\"prompt\": \"\"}", 400, "token");
    refused(w->server, "/nowhere", NULL, 404, "path");
    refused(w->server, chat, NULL, 405, "method");
    refused(w->server, "/detokenize", "{\"tokens\": [99999999]}", 400, "99999999");
    memset(large, ' ', 2 << 20), large[2 << 20] = '\0';
    refused(w->server, chat, large, 413, "larger");
    strcpy(longest, "{\"prompt\": \"");
    for (size_t i = strlen(longest); i < 40000; i += 2) memcpy(longest + i, "a ", 3);
    strcat(longest, "\"}");
    refused(w->server, text, longest, 400, "context");
    free(large), free(longest);
}

/* ---- leaving ---- */

/* A request that is under way, of which nothing is read but the head. */
static http_client begin_stream(const server *s, int64_t tokens) {
    char body[256];
    http_client c;
    ebb_error error;
    snprintf(
        body, sizeof body,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"max_tokens\": %lld, \"ignore_eos\": true, "
        "\"stream\": true}",
        (long long)tokens);
    must(client_ask(&c, "127.0.0.1", server_port(s), "/v1/chat/completions", NULL, body, patience, &error), &error);
    assert_int_equal(c.status, 200);
    return c;
}

static void test_leaving(void **state) {
    const world *w = *state;
    const double before = metric(w->server, "ebb_requests_total{end=\"cancelled\"}");
    http_client busy[3], waits;
    for (int32_t i = 0; i < 3; i++) busy[i] = begin_stream(w->server, 6000); /* all slots */
    wait_metric(w->server, "ebb_requests_running", 3);
    waits = begin_stream(w->server, 10);
    wait_metric(w->server, "ebb_requests_queued", 1);
    client_close(&waits); /* who waits leaves: those under way go on */
    wait_metric(w->server, "ebb_requests_queued", 0);
    assert_true(metric(w->server, "ebb_requests_running") == 3);
    client_close(&busy[1]);
    wait_metric(w->server, "ebb_requests_running", 2);
    char *text = chat_text(w->server, CHAT("Hello", "")), *want = alone(w, "Hello", 24);
    assert_string_equal(text, want); /* in the slot that was left, beside two others */
    free(text), free(want);
    client_close(&busy[0]), client_close(&busy[2]);
    wait_metric(w->server, "ebb_requests_running", 0);
    wait_metric(w->server, "ebb_requests_total{end=\"cancelled\"}", before + 4);
}

/* A long prompt: /health answers while it is processed, and who leaves frees its slot. */
static void test_health_meanwhile(void **state) {
    const world *w = *state;
    text_buffer body = {0};
    http_client c;
    ebb_error error;
    assert_true(text_format(&body, "{\"prompt\": \""));
    for (int32_t i = 0; i < 6000; i++) assert_true(text_format(&body, "a "));
    assert_true(text_format(&body, "\", \"stream\": true, \"return_progress\": true, \"max_tokens\": 4}"));
    must(client_ask(&c, "127.0.0.1", server_port(w->server), "/v1/completions", NULL, body.data, patience, &error),
         &error);
    wait_metric(w->server, "ebb_requests_running", 1);
    const double tokens = metric(w->server, "ebb_answer_tokens_total");
    json_t *health = ask(w->server, "/health", NULL, 200);
    assert_int_equal(json_integer_value(json_object_get(health, "running")), 1);
    assert_true(metric(w->server, "ebb_answer_tokens_total") == tokens); /* its first token has not come yet */
    json_decref(health);
    client_close(&c);
    wait_metric(w->server, "ebb_requests_running", 0);
    assert_true(metric(w->server, "ebb_answer_tokens_total") == tokens);
    text_free(&body);
}

/* ---- the prefix cache ---- */

/* A piece of a book from `from` on, as JSON text; malloc'ed. */
static char *book(size_t from, size_t bytes) {
    char *text = NULL;
    size_t all;
    ebb_error error;
    must(read_file(SOURCE_DIR "/models/eval/heldout_books.txt", (size_t)1 << 26, &text, &all, &error), &error);
    assert_true(from + bytes <= all);
    for (size_t i = 0; i < bytes; i++)
        text[i] = strchr("\"\\", text[from + i]) || (uint8_t)text[from + i] < ' ' || (uint8_t)text[from + i] > '~'
                      ? ' '
                      : text[from + i];
    text[bytes] = '\0';
    return text;
}

/* An answer to a raw prompt of two pieces with the log-probabilities of its tokens, as JSON; *cached: of its prompt. */
static char *completion(const server *s, const char *a, const char *b, int64_t *cached, int64_t *prompt) {
    text_buffer body = {0};
    assert_true(
        text_format(&body, "{\"prompt\": \"%s%s\", \"max_tokens\": 6, \"temperature\": 0, \"logprobs\": 3}", a, b));
    json_t *answer = ask(s, "/v1/completions", body.data, 200), *usage = json_object_get(answer, "usage");
    *cached = json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    *prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
    char *text = json_dumps(json_object_get(answer, "choices"), JSON_REAL_PRECISION(17));
    json_decref(answer);
    text_free(&body);
    return text;
}

/* Hits answer as misses do, to the last bit of the log-probabilities. What two prompts have in common is kept when the
 * second comes, and found from then on. */
static void hits_and_misses(const world *w, const char *state, const char *kv) {
    server_config config = w->config;
    server *warm, *cold;
    ebb_error error;
    char *head = book(0, 3000), *one = book(5000, 900), *two = book(9000, 900), *more = book(20000, 400);
    config.state = state, config.kv = kv;
    must(server_open(&config, &warm, &error), &error);
    config.checkpoints = 0;
    must(server_open(&config, &cold, &error), &error);
    text_buffer turn = {0};
    assert_true(text_format(&turn, "%s%s", one, more));
    const struct {
        const char *tail;
        bool hits;
    } asks[] = {{one, false}, {one, true}, {two, false}, {turn.data, true}, {two, true}, {"", true}};
    for (int32_t i = 0; i < COUNT(asks); i++) {
        int64_t cached, none, prompt;
        char *a = completion(warm, head, asks[i].tail, &cached, &prompt),
             *b = completion(cold, head, asks[i].tail, &none, &prompt);
        assert_string_equal(a, b);
        assert_int_equal(none, 0);
        assert_int_equal(cached % 256, 0);
        if (asks[i].hits != (cached > 0)) fail_msg("%s, ask %d: %lld tokens cached", state, i, (long long)cached);
        if (i == 1) assert_true(prompt - cached <= 256); /* again: all but the last interval */
        free(a), free(b);
    }
    assert_true(metric(warm, "ebb_checkpoints") > 0 && metric(warm, "ebb_prefix_hit_rate") > 0.3);
    assert_true(metric(cold, "ebb_checkpoints") == 0);
    server_close(warm), server_close(cold);
    text_free(&turn);
    free(head), free(one), free(two), free(more);
}

static void test_prefixes(void **state) {
    hits_and_misses(*state, "leap8", "bf16");
    hits_and_misses(*state, "fp32", "hyquant");
}

/* A method that looks at the whole prompt has no prefix cache, and the banner says so. */
static void test_no_prefixes(void **state) {
    const world *w = *state;
    server_config config = w->config;
    server *s;
    ebb_error error;
    text_buffer banner = {0};
    config.kv = "hyquant:select=prompt";
    must(server_open(&config, &s, &error), &error);
    assert_true(server_banner(s, &banner));
    assert_non_null(strstr(banner.data, "no prefix cache: what this KV method keeps depends on the whole prompt"));
    for (int32_t i = 0; i < 2; i++) {
        int64_t cached, prompt;
        char *text = book(0, 2000), *a = completion(s, text, "", &cached, &prompt);
        assert_int_equal(cached, 0);
        free(text), free(a);
    }
    server_close(s);
    text_free(&banner);
}

/* More prompts than checkpoints: some go, the limits hold, and nothing else changes. */
static void test_evictions(void **state) {
    const world *w = *state;
    server_config config = w->config;
    server *s;
    ebb_error error;
    config.checkpoints = 2;
    must(server_open(&config, &s, &error), &error);
    for (int32_t i = 0; i < 8; i++) {
        int64_t cached, prompt;
        char *text = book((size_t)(i % 4) * 4000, 1600), *a = completion(s, text, "", &cached, &prompt);
        assert_true(metric(s, "ebb_checkpoints") <= 2);
        free(text), free(a);
    }
    assert_true(metric(s, "ebb_evictions_total") >= 2);
    server_close(s);
}

/* ---- servers of their own ---- */

static void test_key(void **state) {
    const world *w = *state;
    server_config config = w->config;
    server *s;
    ebb_error error;
    config.api_key = "secret";
    must(server_open(&config, &s, &error), &error);
    json_decref(ask(s, "/v1/models", NULL, 401));
    json_decref(ask_key(s, "/v1/models", "secreT", NULL, 401));
    json_decref(ask_key(s, "/v1/models", "secret", NULL, 200));
    json_decref(ask(s, "/health", NULL, 200));
    server_close(s);
}

static void test_timeout_and_queue(void **state) {
    const world *w = *state;
    server_config config = w->config;
    server *s;
    ebb_error error;
    config.timeout = 0.3, config.max_seqs = 1, config.queue_most = 1;
    must(server_open(&config, &s, &error), &error);
    http_client a = begin_stream(s, 8000), b = begin_stream(s, 8000);
    json_decref(ask(s, "/v1/chat/completions", CHAT("x", ""), 503)); /* one under way, one waits, none more */
    text_buffer rest = {0};
    must(client_rest(&a, &rest, &error), &error);
    assert_non_null(strstr(rest.data, "\"timeout\""));
    client_close(&a), client_close(&b);
    text_free(&rest);
    wait_metric(s, "ebb_requests_running", 0);
    server_close(s);
}

static void test_shutdown(void **state) {
    const world *w = *state;
    server_config config = w->config;
    server *s;
    ebb_error error;
    text_buffer rest = {0};
    must(server_open(&config, &s, &error), &error);
    http_client c = begin_stream(s, 8000);
    wait_metric(s, "ebb_requests_running", 1);
    assert_int_equal(server_drain(s), 1);
    json_decref(ask(s, "/v1/chat/completions", CHAT("x", ""), 503));
    json_decref(ask(s, "/health", NULL, 503));
    server_close(s); /* does not wait for the answer */
    must(client_rest(&c, &rest, &error), &error);
    assert_non_null(strstr(rest.data, "shutting down"));
    client_close(&c);
    text_free(&rest);
    config.host = "nowhere";
    assert_int_equal(server_open(&config, &s, &error), EBB_BAD_ARGUMENT);
}

/* Comments into a stream whose answer waits. */
static void test_keep_alive(void **state) {
    const world *w = *state;
    server_config config = w->config;
    server *s;
    ebb_error error;
    text_buffer line = {0};
    config.max_seqs = 1, config.keep_alive = 0.05;
    must(server_open(&config, &s, &error), &error);
    http_client busy = begin_stream(s, 8000), waits = begin_stream(s, 2);
    int32_t comments = 0;
    while (comments < 2 && client_line(&waits, &line, &error)) comments += line.data[0] == ':';
    assert_int_equal(comments, 2);
    client_close(&busy), client_close(&waits);
    text_free(&line);
    server_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_routes),
        cmocka_unit_test(test_same_as_alone),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_choices_and_seeds),
        cmocka_unit_test(test_stop_and_logprobs),
        cmocka_unit_test(test_bias_and_penalties),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_health_meanwhile),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_no_prefixes),
        cmocka_unit_test(test_evictions),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_timeout_and_queue),
        cmocka_unit_test(test_shutdown),
        cmocka_unit_test(test_keep_alive),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
