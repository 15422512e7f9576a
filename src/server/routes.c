/* server/routes.c: what needs no engine: health, metrics, the model's name, tokens, the chat page. Called by http.c. */
#include "server/http.h"
#include "server/page.h"
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

enum MHD_Result route_health(http_call *call) {
    const bool draining = server_draining(call->server);
    loop_stats now;
    text_buffer text = {0};
    loop_now(call->server->loop, &now);
    if (!text_format(&text, "{\"status\":\"%s\",\"running\":%lld,\"queued\":%lld}", draining ? "draining" : "ok",
                     (long long)now.running, (long long)now.queued))
        return MHD_NO;
    return http_json(call, draining ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, text.data);
}

/* ---- metrics ---- */

/* A label's value: quotes, backslashes and newlines are escaped. */
static bool add_label(text_buffer *text, const char *name, const char *value) {
    bool good = text_format(text, "%s=\"", name);
    for (; value && *value && good; value++) {
        if (*value == '"' || *value == '\\') good = text_add(text, "\\", 1);
        good = good && (*value == '\n' ? text_add(text, "\\n", 2) : text_add(text, value, 1));
    }
    return good && text_add(text, "\"", 1);
}

static bool print_info(const server *s, text_buffer *text) {
    const loop_texts names = loop_names(s->loop);
    const struct {
        const char *name, *value;
    } labels[] = {{"version", ebb_version()}, {"model", s->config.name}, {"state", names.state}, {"kv", names.kv},
                  {"prefill", names.prefill}, {"kernels", names.rows},   {"cache", names.cache}};
    bool good = text_format(text, "# HELP ebb_info What is in use.\n# TYPE ebb_info gauge\nebb_info{");
    for (int32_t i = 0; i < COUNT(labels); i++)
        good = good && (i == 0 || text_add(text, ",", 1)) && add_label(text, labels[i].name, labels[i].value);
    return good && text_format(text, "} 1\n");
}

static bool print_loop(const server *s, text_buffer *text) {
    loop_stats n;
    loop_now(s->loop, &n);
    const struct {
        const char *name, *type, *help;
        double value;
    } lines[] = {
        {"requests_queued", "gauge", "Answers that wait for their turn.", (double)n.queued},
        {"requests_running", "gauge", "Answers under way.", (double)n.running},
        {"slots", "gauge", "Answers at a time.", (double)n.slots},
        {"context_tokens", "gauge", "Tokens that one sequence may have.", (double)n.context},
        {"state_bytes", "gauge", "Recurrent states held by sequences.", (double)n.state_bytes},
        {"state_bytes_budget", "gauge", "Their limit.", (double)n.state_most},
        {"kv_bytes", "gauge", "KV cache held by sequences.", (double)n.kv_bytes},
        {"kv_bytes_budget", "gauge", "Its limit.", (double)n.kv_most},
        {"checkpoint_bytes", "gauge", "Prefix cache: checkpoints and pages.", (double)n.cache_bytes},
        {"checkpoint_bytes_budget", "gauge", "Its limit.", (double)n.cache_most},
        {"checkpoints", "gauge", "Prefix cache: checkpoints.", (double)n.checkpoints},
        {"prefix_lookup_tokens_total", "counter", "Prompt tokens asked of the prefix cache.", (double)n.looked_up},
        {"prefix_hit_tokens_total", "counter", "Prompt tokens that it held.", (double)n.cached},
        {"prefix_hit_rate", "gauge", "By tokens, since the start.",
         n.looked_up ? (double)n.cached / (double)n.looked_up : 0},
        {"evictions_total", "counter", "Checkpoints that made room for others.", (double)n.evictions},
        {"preemptions_total", "counter", "Answers that were set aside and resumed.", (double)n.preemptions},
        {"draft_tokens_total", "counter", "Tokens drafted by speculative decoding.", (double)n.drafted},
        {"draft_accepted_total", "counter", "Drafted tokens that were accepted.", (double)n.accepted},
        {"uptime_seconds", "gauge", "Since the start.", seconds_now() - s->started},
    };
    bool good = true;
    for (int32_t i = 0; i < COUNT(lines) && good; i++)
        good = metrics_line(text, lines[i].name, lines[i].type, lines[i].help, lines[i].value);
    return good;
}

enum MHD_Result route_metrics(http_call *call) {
    text_buffer text = {0};
    const bool good = print_info(call->server, &text) && print_loop(call->server, &text) &&
                      metrics_print(&call->server->metrics, &text);
    const enum MHD_Result result =
        good ? http_text(call, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text.data, text.bytes) : MHD_NO;
    text_free(&text);
    return result;
}

/* ---- models and tokens ---- */

static enum MHD_Result send_object(http_call *call, json_t *object) {
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return http_json(call, MHD_HTTP_OK, text);
}

static json_t *model_object(const server *s) {
    const loop_texts names = loop_names(s->loop);
    loop_stats now;
    loop_now(s->loop, &now);
    return json_pack("{s:s, s:s, s:i, s:s, s:I, s:s?, s:s?}", "id", s->config.name, "object", "model", "created", 0,
                     "owned_by", "ebb", "max_model_len", (json_int_t)now.context, "state", names.state, "kv", names.kv);
}

enum MHD_Result route_models(http_call *call) {
    json_t *model = model_object(call->server);
    return send_object(call, model ? json_pack("{s:s, s:[o]}", "object", "list", "data", model) : NULL);
}

enum MHD_Result route_model(http_call *call) {
    if (strcmp(strrchr(call->path, '/') + 1, call->server->config.name) == 0)
        return send_object(call, model_object(call->server));
    return http_error(call, MHD_HTTP_NOT_FOUND, "model_not_found",
                      "this server has another model; /v1/models names it");
}

enum MHD_Result route_tokenize(http_call *call) {
    json_t *root = NULL, *tokens = json_array();
    const char *content;
    int32_t *ids = NULL;
    int64_t n = 0;
    bool special;
    ebb_error error;
    ebb_status status =
        body_tokenize(call->body.data ? call->body.data : "", call->body.bytes, &root, &content, &special, &error);
    if (!status) status = ebb_tokenize(call->server->tokenizer, content, strlen(content), special, &ids, &n, &error);
    for (int64_t i = 0; i < n && !status && tokens; i++) json_array_append_new(tokens, json_integer(ids[i]));
    free(ids);
    json_decref(root);
    if (!status) return send_object(call, json_pack("{s:o, s:I}", "tokens", tokens, "count", (json_int_t)n));
    json_decref(tokens);
    return http_fail(call, &error);
}

/* The text of the ids; what is no character by itself is U+FFFD. */
static ebb_status text_of(const server *s, const json_t *tokens, text_buffer *text, ebb_error *error) {
    enum { REPLACEMENT = 3, HELD = 4, FEW = 4096 };
    ebb_detokenizer d = {.tokenizer = s->tokenizer, .show_special = true};
    for (size_t i = 0; i <= json_array_size(tokens); i++) {
        const int32_t id = i < json_array_size(tokens) ? (int32_t)json_integer_value(json_array_get(tokens, i)) : -1;
        char few[FEW], *room = few;
        size_t bytes = 0, written;
        if (id >= ebb_tokenizer_size(s->tokenizer) || (id >= 0 && !ebb_token_bytes(s->tokenizer, id, &bytes)))
            return ebb_fail(error, EBB_BAD_ARGUMENT, "'tokens' number %zu is %d, which no token has", i + 1, id);
        const size_t most = REPLACEMENT * (bytes + HELD) + 1;
        if (most > sizeof few && !(room = malloc(most)))
            return ebb_fail(error, EBB_NO_MEMORY, "no memory for the text");
        const bool good = ebb_detokenize(&d, id, room, most, &written) == EBB_OK && text_add(text, room, written);
        if (room != few) free(room);
        if (!good) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the text");
    }
    return EBB_OK;
}

enum MHD_Result route_detokenize(http_call *call) {
    json_t *root = NULL, *tokens;
    text_buffer text = {0};
    ebb_error error;
    ebb_status status =
        body_detokenize(call->body.data ? call->body.data : "", call->body.bytes, &root, &tokens, &error);
    if (!status) status = text_of(call->server, tokens, &text, &error);
    json_decref(root);
    const enum MHD_Result result =
        status ? http_fail(call, &error)
               : send_object(call, json_pack("{s:s%}", "content", text.data ? text.data : "", text.bytes));
    text_free(&text);
    return result;
}

enum MHD_Result route_page(http_call *call) {
    return http_text(call, MHD_HTTP_OK, "text/html; charset=utf-8", (const char *)page, page_bytes);
}
