/* server/body.c: bodies of completions and chats (body.h). Called by the server's routes. body_chat.c reads messages
 * and tools. */
#include "server/body.h"
#include "server/body_int.h"
#include "core/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields ---- */

enum { CHAT = 1, TEXT = 2, BOTH = 3 };

/* Fields of the two APIs. */
static const struct {
    const char *name;
    int32_t where;
} fields[] = {
    {"model", BOTH},
    {"stream", BOTH},
    {"stream_options", BOTH},
    {"messages", CHAT},
    {"tools", CHAT},
    {"tool_choice", CHAT},
    {"parallel_tool_calls", CHAT},
    {"chat_template_kwargs", CHAT},
    {"reasoning_effort", CHAT},
    {"reasoning_format", CHAT},
    {"response_format", BOTH},
    {"prompt", TEXT},
    {"echo", TEXT},
    {"best_of", TEXT},
    {"suffix", TEXT},
    {"n", BOTH},
    {"max_tokens", BOTH},
    {"max_completion_tokens", CHAT},
    {"temperature", BOTH},
    {"top_p", BOTH},
    {"top_k", BOTH},
    {"min_p", BOTH},
    {"repetition_penalty", BOTH},
    {"presence_penalty", BOTH},
    {"frequency_penalty", BOTH},
    {"seed", BOTH},
    {"logprobs", BOTH},
    {"top_logprobs", CHAT},
    {"logit_bias", BOTH},
    {"stop", BOTH},
    {"ignore_eos", BOTH},
    {"return_progress", BOTH},
    {"modalities", CHAT},
    /* these name the caller or what is stored elsewhere: they change nothing here */
    {"user", BOTH},
    {"metadata", BOTH},
    {"store", BOTH},
    {"service_tier", BOTH},
    {"safety_identifier", BOTH},
    {"prompt_cache_key", BOTH},
};

/* A member that is there and not null. */
json_t *body_member(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static ebb_status check_fields(const api_request *r, ebb_error *error) {
    const int32_t where = r->chat ? CHAT : TEXT;
    const char *key;
    json_t *value;
    json_object_foreach(r->root, key, value) {
        bool known = false;
        for (int32_t i = 0; i < COUNT(fields); i++)
            known |= strcmp(fields[i].name, key) == 0 && (fields[i].where & where);
        if (!known)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "unknown field '%.80s' of a %s request", key,
                            r->chat ? "chat completion" : "completion");
    }
    return EBB_OK;
}

static ebb_status read_flag(const json_t *object, const char *key, bool *flag, ebb_error *error) {
    const json_t *value = body_member(object, key);
    if (!value) return EBB_OK;
    if (!json_is_boolean(value)) return ebb_fail(error, EBB_BAD_ARGUMENT, "'%s' must be true or false", key);
    *flag = json_is_true(value);
    return EBB_OK;
}

static ebb_status read_real(const json_t *object, const char *key, double lo, double hi, double *real,
                            ebb_error *error) {
    const json_t *value = body_member(object, key);
    if (!value) return EBB_OK;
    if (!json_is_number(value)) return ebb_fail(error, EBB_BAD_ARGUMENT, "'%s' must be a number", key);
    *real = json_number_value(value);
    if (*real >= lo && *real <= hi) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "'%s' is %g, expected %g to %g", key, *real, lo, hi);
}

static ebb_status read_float(const json_t *object, const char *key, double lo, double hi, float *to, ebb_error *error) {
    double real = (double)*to;
    const ebb_status status = read_real(object, key, lo, hi, &real, error);
    if (!status) *to = (float)real;
    return status;
}

static ebb_status read_whole(const json_t *object, const char *key, int64_t lo, int64_t hi, int64_t *whole,
                             ebb_error *error) {
    const json_t *value = body_member(object, key);
    if (!value) return EBB_OK;
    if (!json_is_integer(value)) return ebb_fail(error, EBB_BAD_ARGUMENT, "'%s' must be a whole number", key);
    *whole = json_integer_value(value);
    if (*whole >= lo && *whole <= hi) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "'%s' is %lld, expected %lld to %lld", key, (long long)*whole,
                    (long long)lo, (long long)hi);
}

static ebb_status read_small(const json_t *object, const char *key, int32_t lo, int32_t hi, int32_t *to,
                             ebb_error *error) {
    int64_t whole = *to;
    const ebb_status status = read_whole(object, key, lo, hi, &whole, error);
    if (!status) *to = (int32_t)whole;
    return status;
}

/* ---- sampling ---- */

static ebb_status read_sampling(api_request *r, ebb_error *error) {
    int64_t seed = 0;
    ebb_sampling *s = &r->sampling;
    ebb_status status;
    if ((status = read_float(r->root, "temperature", 0, 2, &s->temperature, error)) ||
        (status = read_float(r->root, "top_p", 0, 1, &s->top_p, error)) ||
        (status = read_float(r->root, "min_p", 0, 1, &s->min_p, error)) ||
        (status = read_small(r->root, "top_k", -1, INT32_MAX, &s->top_k, error)) ||
        (status = read_float(r->root, "repetition_penalty", 0.01, 10, &s->repeat_penalty, error)) ||
        (status = read_real(r->root, "presence_penalty", -2, 2, &r->presence, error)) ||
        (status = read_real(r->root, "frequency_penalty", -2, 2, &r->frequency, error)) ||
        (status = read_whole(r->root, "seed", INT64_MIN, INT64_MAX, &seed, error)))
        return status;
    if (s->top_k < 0) s->top_k = 0; /* both are used for "off" */
    if (body_member(r->root, "seed")) s->seed = (uint64_t)seed;
    return ebb_sampling_check(s, error);
}

static ebb_status read_bias(api_request *r, ebb_error *error) {
    const json_t *all = body_member(r->root, "logit_bias");
    const char *key;
    json_t *value;
    if (!all) return EBB_OK;
    if (!json_is_object(all) || json_object_size(all) > BODY_MOST_BIAS)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "'logit_bias' must be an object of at most %d token ids",
                        BODY_MOST_BIAS);
    r->bias = calloc(json_object_size(all) + 1, sizeof *r->bias);
    if (!r->bias) return ebb_fail(error, EBB_NO_MEMORY, "no memory for logit_bias");
    json_object_foreach((json_t *)all, key, value) {
        char *rest;
        const long id = strtol(key, &rest, 10);
        const double bias = json_number_value(value);
        if (!*key || *rest || id < 0 || id > INT32_MAX || !json_is_number(value) || !(fabs(bias) <= 100))
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "'logit_bias' has '%.40s', expected a token id with a number from -100 to 100", key);
        r->bias[r->n_bias++] = (token_bias){(int32_t)id, (float)bias};
    }
    return EBB_OK;
}

static ebb_status add_stop(api_request *r, const json_t *value, ebb_error *error) {
    const char *text = json_string_value(value);
    if (!text || !*text || json_string_length(value) != strlen(text) || strlen(text) > 1024 ||
        r->n_stops == COUNT(r->stops))
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "'stop' must be a text or an array of up to %d texts, of 1 to 1024 bytes each",
                        COUNT(r->stops));
    r->stops[r->n_stops++] = text;
    return EBB_OK;
}

static ebb_status read_stops(api_request *r, ebb_error *error) {
    const json_t *stop = body_member(r->root, "stop"), *one;
    size_t i;
    if (!stop) return EBB_OK;
    if (!json_is_array(stop)) return add_stop(r, stop, error);
    json_array_foreach((json_t *)stop, i, one) {
        const ebb_status status = add_stop(r, one, error);
        if (status) return status;
    }
    return EBB_OK;
}

/* Chats say logprobs: true and top_logprobs: n, completions logprobs: n. */
static ebb_status read_logprobs(api_request *r, ebb_error *error) {
    bool wanted = false;
    ebb_status status;
    r->logprobs = -1;
    if (!r->chat) return read_small(r->root, "logprobs", 0, BODY_MOST_LOGPROBS, &r->logprobs, error);
    if ((status = read_flag(r->root, "logprobs", &wanted, error)) ||
        (status = read_small(r->root, "top_logprobs", 0, BODY_MOST_LOGPROBS, &r->logprobs, error)))
        return status;
    if (!wanted && r->logprobs > 0) return ebb_fail(error, EBB_BAD_ARGUMENT, "'top_logprobs' needs 'logprobs': true");
    r->logprobs = wanted ? (r->logprobs < 0 ? 0 : r->logprobs) : -1;
    return EBB_OK;
}

static ebb_status read_form(api_request *r, ebb_error *error) {
    const json_t *format = body_member(r->root, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!format) return EBB_OK;
    if (type && strcmp(type, "text") == 0) return EBB_OK;
    if (type && strcmp(type, "json_object") == 0) r->form = FORM_OBJECT;
    else if (type && strcmp(type, "json_schema") == 0) {
        r->form = FORM_SCHEMA;
        r->schema = json_object_get(json_object_get(format, "json_schema"), "schema");
        if (!json_is_object(r->schema))
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "'response_format' of type json_schema needs json_schema.schema, an object");
    } else
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "'response_format' must have a type: text, json_object or json_schema");
    return EBB_OK;
}

static ebb_status read_output(api_request *r, ebb_error *error) {
    const json_t *options = body_member(r->root, "stream_options");
    ebb_status status;
    r->n = 1, r->max_tokens = -1;
    if ((status = read_flag(r->root, "stream", &r->stream, error)) ||
        (status = read_small(r->root, "n", 1, BODY_MOST_CHOICES, &r->n, error)) ||
        (status = read_whole(r->root, "max_tokens", 1, (int64_t)1 << 40, &r->max_tokens, error)) ||
        (status = read_whole(r->root, "max_completion_tokens", 1, (int64_t)1 << 40, &r->max_tokens, error)) ||
        (status = read_flag(r->root, "ignore_eos", &r->ignore_stop, error)) ||
        (status = read_flag(r->root, "return_progress", &r->progress, error)))
        return status;
    if (options && !json_is_object(options))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "'stream_options' must be an object");
    if (options && !r->stream) return ebb_fail(error, EBB_BAD_ARGUMENT, "'stream_options' needs 'stream': true");
    return read_flag(options, "include_usage", &r->stream_usage, error);
}

/* ---- completions ---- */

static bool is_ids(const json_t *value) {
    const json_t *one;
    size_t i;
    json_array_foreach((json_t *)value, i, one) {
        if (!json_is_integer(one) || json_integer_value(one) < 0 || json_integer_value(one) > INT32_MAX) return false;
    }
    return json_is_array(value) && json_array_size(value) > 0;
}

static ebb_status read_prompts(api_request *r, ebb_error *error) {
    json_t *prompt = body_member(r->root, "prompt"), *one;
    size_t i;
    const bool single = json_is_string(prompt) || is_ids(prompt);
    r->prompts = single ? json_array() : json_incref(prompt);
    if (single && json_array_append(r->prompts, prompt))
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a prompt");
    const size_t n = json_array_size(r->prompts);
    if (!n || n > BODY_MOST_CHOICES)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "'prompt' must be a text, an array of token ids, or an array of 1 to %d of these",
                        BODY_MOST_CHOICES);
    json_array_foreach(r->prompts, i, one) {
        if (!json_is_string(one) && !is_ids(one))
            return ebb_fail(error, EBB_BAD_ARGUMENT, "'prompt' number %zu is neither a text nor an array of token ids",
                            i + 1);
    }
    if (n * (size_t)r->n > BODY_MOST_CHOICES)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%zu prompts with n = %d answers each, expected at most %d answers", n,
                        r->n, BODY_MOST_CHOICES);
    return EBB_OK;
}

static ebb_status read_completion(api_request *r, ebb_error *error) {
    int32_t best = r->n;
    ebb_status status;
    if ((status = read_prompts(r, error)) || (status = read_flag(r->root, "echo", &r->echo, error)) ||
        (status = read_small(r->root, "best_of", 1, BODY_MOST_CHOICES, &best, error)))
        return status;
    if (best != r->n)
        return ebb_fail(error, EBB_UNSUPPORTED, "'best_of' is served as 'n' only: %d and %d were given", best, r->n);
    if (r->echo) return ebb_fail(error, EBB_UNSUPPORTED, "'echo': true is not served");
    if (body_member(r->root, "suffix")) return ebb_fail(error, EBB_UNSUPPORTED, "'suffix' is not served");
    if (!body_member(r->root, "max_tokens")) r->max_tokens = 16; /* as that API has it */
    return EBB_OK;
}

/* ---- the calls ---- */

static ebb_status load(const char *text, size_t bytes, json_t **root, ebb_error *error) {
    json_error_t why;
    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!*root) return ebb_fail(error, EBB_BAD_ARGUMENT, "the body is not JSON: line %d: %s", why.line, why.text);
    if (json_is_object(*root)) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "the body must be a JSON object");
}

ebb_status body_read(bool chat, const char *text, size_t bytes, const ebb_sampling *preset, api_request *r,
                     ebb_error *error) {
    ebb_status status;
    *r = (api_request){.chat = chat, .sampling = *preset, .split_reasoning = true};
    if ((status = load(text, bytes, &r->root, error)) || (status = check_fields(r, error)) ||
        (status = read_output(r, error)) || (status = read_sampling(r, error)) || (status = read_bias(r, error)) ||
        (status = read_stops(r, error)) || (status = read_logprobs(r, error)) || (status = read_form(r, error)))
        return status;
    const json_t *model = body_member(r->root, "model");
    r->model = json_string_value(model);
    if (model && !r->model) return ebb_fail(error, EBB_BAD_ARGUMENT, "'model' must be a text");
    if ((status = chat ? body_chat(r, error) : read_completion(r, error))) return status;
    if (r->ignore_stop && r->form != FORM_TEXT)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "'ignore_eos' cannot be had with a form: its answer ends where its text is whole");
    return EBB_OK;
}

void body_free(api_request *r) {
    json_decref(r->root), json_decref(r->messages), json_decref(r->prompts), json_decref(r->variables);
    free(r->bias);
    *r = (api_request){0};
}

ebb_status body_tokenize(const char *text, size_t bytes, json_t **root, const char **content, bool *special,
                         ebb_error *error) {
    static const char *const names[] = {"content", "text", "prompt"};
    ebb_status status = load(text, bytes, root, error);
    *content = NULL, *special = false;
    for (int32_t i = 0; i < COUNT(names) && !status && !*content; i++)
        *content = json_string_value(json_object_get(*root, names[i]));
    if (!status && !*content) return ebb_fail(error, EBB_BAD_ARGUMENT, "the body needs 'content', a text");
    return status ? status : read_flag(*root, "parse_special", special, error);
}

ebb_status body_detokenize(const char *text, size_t bytes, json_t **root, json_t **tokens, ebb_error *error) {
    ebb_status status = load(text, bytes, root, error);
    if (status) return status;
    *tokens = json_object_get(*root, "tokens");
    if (json_is_array(*tokens) && (!json_array_size(*tokens) || is_ids(*tokens))) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "the body needs 'tokens', an array of token ids");
}
