/* server/calls.c: what a call of a function says (answer_parts.h). Called by answer_parts.c. */
#include "server/answer_parts.h"
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_NAME = 256, MOST_REPAIR = 8 };

typedef struct slice {
    const char *data;
    size_t n;
} slice;

static slice trim(slice s) {
    while (s.n && strchr(" \t\r\n", s.data[0])) s.data++, s.n--;
    while (s.n && strchr(" \t\r\n", s.data[s.n - 1])) s.n--;
    return s;
}

/* Where `word` begins in s; s.n: nowhere. */
static size_t find(slice s, const char *word) {
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= s.n; i++)
        if (memcmp(s.data + i, word, n) == 0) return i;
    return s.n;
}

static slice after(slice s, size_t n) { return (slice){s.data + n, s.n - n}; }

static bool starts(slice s, const char *word) { return s.n >= strlen(word) && memcmp(s.data, word, strlen(word)) == 0; }

/* The schema of a parameter of a function of the request, or NULL. */
static const json_t *parameter_schema(const json_t *tools, const char *name, const char *parameter) {
    const json_t *tool;
    size_t i;
    json_array_foreach((json_t *)tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        const char *own = json_string_value(json_object_get(f, "name"));
        if (own && strcmp(own, name) == 0)
            return json_object_get(json_object_get(json_object_get(f, "parameters"), "properties"), parameter);
    }
    return NULL;
}

static bool emit(const part_sink *sink, const char *name, const json_t *arguments, int32_t *n) {
    char *text = json_dumps(arguments, JSON_COMPACT | JSON_ENCODE_ANY);
    const bool good = text && sink->call(sink->ctx, name, text);
    free(text);
    *n = good ? *n + 1 : -1;
    return good;
}

/* ---- JSON ---- */

/* The value that s begins with, with closing braces added where they are missing; NULL: there is none. */
static json_t *load(slice s) {
    json_error_t error;
    json_t *json = json_loadb(s.data, s.n, JSON_DISABLE_EOF_CHECK, &error);
    char *copy = json ? NULL : malloc(s.n + MOST_REPAIR);
    if (!copy) return json;
    memcpy(copy, s.data, s.n);
    for (size_t more = 1; more < MOST_REPAIR && !json; more++) {
        copy[s.n + more - 1] = '}';
        json = json_loadb(copy, s.n + more, 0, &error);
    }
    free(copy);
    return json;
}

/* {"name": ..., "arguments": {...}}, the arguments also as a text of JSON, or under "parameters". */
static bool json_call(const json_t *call, const part_sink *sink, int32_t *n) {
    if (json_is_object(json_object_get(call, "function"))) call = json_object_get(call, "function");
    const char *name = json_string_value(json_object_get(call, "name"));
    const json_t *arguments = json_object_get(call, "arguments");
    json_t *inner = NULL;
    if (!name || !*name || strlen(name) > MOST_NAME) return false;
    if (!arguments) arguments = json_object_get(call, "parameters");
    if (json_is_string(arguments)) {
        inner = json_loads(json_string_value(arguments), 0, NULL);
        if (inner) arguments = inner;
    }
    json_t *none = arguments && !json_is_null(arguments) ? NULL : json_object();
    const bool good = json_is_object(none ? none : arguments) && emit(sink, name, none ? none : arguments, n);
    json_decref(none), json_decref(inner);
    return good;
}

static int32_t json_calls(slice s, const part_sink *sink) {
    int32_t n = 0;
    json_t *json = load(s);
    const json_t *one;
    size_t i;
    if (json_is_array(json)) {
        json_array_foreach(json, i, one) if (!json_call(one, sink, &n)) break;
    } else if (json) json_call(json, sink, &n);
    json_decref(json);
    return n;
}

/* ---- <function=NAME> <parameter=KEY> VALUE </parameter> </function> ---- */

/* Values are bare text: what is not a string by the function's schema, and is JSON, is that. */
static json_t *parameter_value(const json_t *schema, slice s) {
    const char *type = json_string_value(json_object_get(schema, "type"));
    json_t *json = NULL;
    if (s.n && s.data[0] == '\n') s = after(s, 1);
    if (s.n && s.data[s.n - 1] == '\n') s.n--;
    if (!type || strcmp(type, "string") != 0) json = json_loadb(s.data, s.n, JSON_DECODE_ANY, NULL);
    return json ? json : json_stringn(s.data, s.n);
}

/* The name behind "<function=" or "<parameter=", up to '>' or a newline; moves s behind it. */
static bool read_name(slice *s, const char *word, char name[MOST_NAME + 1]) {
    slice rest = after(*s, strlen(word));
    size_t n = 0;
    while (n < rest.n && rest.data[n] != '>' && rest.data[n] != '\n') n++;
    const slice own = trim((slice){rest.data, n});
    if (!own.n || own.n > MOST_NAME || memchr(own.data, '\0', own.n)) return false;
    memcpy(name, own.data, own.n);
    name[own.n] = '\0';
    *s = after(rest, n < rest.n && rest.data[n] == '>' ? n + 1 : n);
    return true;
}

/* One value: up to </parameter>, or where that is missing to the next one or to the end of the function. */
static slice read_value(slice *s) {
    const char *const ends[] = {"</parameter>", "<parameter=", "</function>"};
    for (int32_t i = 0; i < COUNT(ends); i++) {
        const size_t at = find(*s, ends[i]);
        if (at == s->n) continue;
        const slice value = {s->data, at};
        *s = after(*s, i == 0 ? at + strlen(ends[0]) : at);
        return value;
    }
    const slice value = *s;
    *s = after(*s, s->n);
    return value;
}

static bool read_parameters(slice s, const char *function, const json_t *tools, json_t *arguments) {
    char name[MOST_NAME + 1];
    for (size_t at; (at = find(s, "<parameter=")) < s.n;) {
        s = after(s, at);
        if (!read_name(&s, "<parameter=", name)) return false;
        json_t *value = parameter_value(parameter_schema(tools, function, name), read_value(&s));
        if (!value || json_object_set_new(arguments, name, value)) return false;
    }
    return true;
}

static int32_t function_calls(slice s, const json_t *tools, const part_sink *sink) {
    char name[MOST_NAME + 1];
    int32_t n = 0;
    for (size_t at; n >= 0 && (at = find(s, "<function=")) < s.n;) {
        s = after(s, at);
        if (!read_name(&s, "<function=", name)) break;
        const size_t close = find(s, "</function>"), next = find(s, "<function=");
        const size_t own = close < next ? close : next;
        json_t *arguments = json_object();
        if (!arguments) return -1;
        const bool good =
            read_parameters((slice){s.data, own}, name, tools, arguments) && json_object_size(arguments) < 4096;
        if (good) emit(sink, name, arguments, &n);
        json_decref(arguments);
        if (!good) break;
        s = after(s, own);
    }
    return n;
}

/* ---- functions.NAME:0<|tool_call_argument_begin|>{...} ---- */

static int32_t kimi_call(slice s, const part_sink *sink) {
    static const char mark[] = "<|tool_call_argument_begin|>";
    const size_t at = find(s, mark);
    slice head = trim((slice){s.data, at});
    char name[MOST_NAME + 1];
    int32_t n = 0;
    if (starts(head, "functions.")) head = after(head, strlen("functions."));
    for (size_t i = head.n; i > 0; i--) { /* :0 */
        if (head.data[i - 1] >= '0' && head.data[i - 1] <= '9') continue;
        if (head.data[i - 1] == ':') head.n = i - 1;
        break;
    }
    if (!head.n || head.n > MOST_NAME || memchr(head.data, '\0', head.n)) return 0;
    memcpy(name, head.data, head.n);
    name[head.n] = '\0';
    const slice body = trim(after(s, at + strlen(mark)));
    json_t *arguments = body.n ? load(body) : json_object();
    if (json_is_object(arguments)) emit(sink, name, arguments, &n);
    json_decref(arguments);
    return n;
}

int32_t parse_calls(const char *text, size_t bytes, const json_t *tools, const part_sink *sink) {
    const slice s = trim((slice){text, bytes});
    if (find(s, "<|tool_call_argument_begin|>") < s.n) return kimi_call(s, sink);
    if (s.n && (s.data[0] == '{' || s.data[0] == '[')) return json_calls(s, sink);
    return find(s, "<function=") < s.n ? function_calls(s, tools, sink) : 0;
}
