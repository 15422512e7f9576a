/* model/json.c: see json.h. */
#include "model/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *json_file(const char *path) {
    size_t n = strlen(path);
    if (n <= 100) return path;
    const char *slash = strchr(path + n - 100, '/');
    return slash ? slash + 1 : path;
}

/* Bytes of the longest prefix of `text` within `room` that ends at a character. */
static size_t whole_characters(const char *text, size_t n, size_t room) {
    if (n <= room) return n;
    while (room > 0 && ((unsigned char)text[room] & 0xc0) == 0x80) room--;
    return room;
}

const char *json_shown(const char *text, char out[64]) {
    size_t n = strlen(text), keep = whole_characters(text, n, 60);
    for (size_t i = 0; i < keep; i++) out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    if (keep < n) {
        memcpy(out + keep, "...", 3);
        keep += 3;
    }
    out[keep] = 0;
    return out;
}

ebb_status json_fail(const json_place *at, ebb_error *error, ebb_status code, const char *format, ...) {
    char text[sizeof error->text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!at->path[0]) return ebb_fail(error, code, "%s %s", json_file(at->file), text);
    return ebb_fail(error, code, "%s: field %s %s", json_file(at->file), at->path, text);
}

ebb_status json_open(const char *file, size_t limit, json_place *root, ebb_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    memset(root, 0, sizeof *root);
    ebb_status status = read_file(file, limit, &text, &bytes, error);
    if (status) return status;
    json_error_t wrong;
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &wrong);
    free(text);
    if (!value) {
        if (!wrong.text[0]) /* what jansson says of a document that it has no memory for */
            return ebb_fail(error, EBB_NO_MEMORY, "no memory to read %s", json_file(file));
        char shown[64];
        return ebb_fail(error, EBB_BAD_FILE, "%s is not JSON that can be read: %s (line %d, column %d)",
                        json_file(file), json_shown(wrong.text, shown), wrong.line, wrong.column);
    }
    if (!json_is_object(value)) {
        json_decref(value);
        return ebb_fail(error, EBB_BAD_FILE, "%s must hold a JSON object", json_file(file));
    }
    root->value = value;
    root->file = file;
    return EBB_OK;
}

void json_close(json_place *root) {
    json_decref((json_t *)root->value); /* the one place that owns the document */
    root->value = NULL;
}

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        break;
    }
    return "null";
}

static void place_of(const json_place *at, const char *key, const json_t *value, json_place *out) {
    char shown[64], path[sizeof out->path];
    int n = snprintf(path, sizeof path, "%s%s%s", at->path, at->path[0] ? "." : "", json_shown(key, shown));
    if (n >= (int)sizeof path) path[whole_characters(path, sizeof path, sizeof path - 1)] = 0;
    *out = (json_place){value, at->file, ""};
    memcpy(out->path, path, strlen(path) + 1);
}

void json_item(const json_place *at, size_t i, json_place *item) {
    char path[sizeof item->path];
    int n = snprintf(path, sizeof path, "%s[%zu]", at->path, i);
    if (n >= (int)sizeof path) snprintf(path, sizeof path, "[%zu]", i);
    *item = (json_place){json_array_get(at->value, i), at->file, ""};
    memcpy(item->path, path, strlen(path) + 1);
}

bool json_has(const json_place *at, const char *key) {
    const json_t *value = json_object_get(at->value, key);
    return value && !json_is_null(value);
}

/* The member `key`, or NULL in found->value where an optional one is absent. */
static ebb_status member(const json_place *at, const char *key, json_need need, const char *expected, json_place *found,
                         ebb_error *error) {
    if (!json_is_object(at->value))
        return json_fail(at, error, EBB_BAD_FILE, "must be an object, it is %s", type_name(at->value));
    place_of(at, key, json_object_get(at->value, key), found);
    if (found->value && !json_is_null(found->value)) return EBB_OK;
    if (need == JSON_NEEDED)
        return json_fail(found, error, EBB_BAD_FILE, "is %s, expected %s", found->value ? "null" : "missing", expected);
    found->value = NULL;
    return EBB_OK;
}

static ebb_status wrong_type(const json_place *found, const char *expected, ebb_error *error) {
    return json_fail(found, error, EBB_BAD_FILE, "is %s, expected %s", type_name(found->value), expected);
}

ebb_status json_get_bool(const json_place *at, const char *key, json_need need, bool *value, ebb_error *error) {
    json_place found;
    ebb_status status = member(at, key, need, "true or false", &found, error);
    if (status || !found.value) return status;
    if (!json_is_boolean(found.value)) return wrong_type(&found, "true or false", error);
    *value = json_is_true(found.value);
    return EBB_OK;
}

ebb_status json_get_int(const json_place *at, const char *key, json_need need, int64_t lo, int64_t hi, int64_t *value,
                        ebb_error *error) {
    json_place found;
    ebb_status status = member(at, key, need, "a whole number", &found, error);
    if (status || !found.value) return status;
    if (!json_is_number(found.value)) return wrong_type(&found, "a whole number", error);
    double real = json_number_value(found.value);
    if (json_is_real(found.value) && !(fabs(real) <= 9007199254740992.0 && real == floor(real)))
        return json_fail(&found, error, EBB_BAD_FILE, "is %g, expected a whole number", real);
    int64_t whole = json_is_real(found.value) ? (int64_t)real : (int64_t)json_integer_value(found.value);
    if (whole < lo || whole > hi)
        return json_fail(&found, error, EBB_BAD_FILE, "is %lld, expected %lld to %lld", (long long)whole, (long long)lo,
                         (long long)hi);
    *value = whole;
    return EBB_OK;
}

ebb_status json_get_number(const json_place *at, const char *key, json_need need, double *value, ebb_error *error) {
    json_place found;
    ebb_status status = member(at, key, need, "a number", &found, error);
    if (status || !found.value) return status;
    if (!json_is_number(found.value)) return wrong_type(&found, "a number", error);
    *value = json_number_value(found.value);
    return EBB_OK;
}

ebb_status json_get_text(const json_place *at, const char *key, json_need need, const char **value, ebb_error *error) {
    json_place found;
    ebb_status status = member(at, key, need, "a string", &found, error);
    if (status || !found.value) return status;
    if (!json_is_string(found.value)) return wrong_type(&found, "a string", error);
    *value = json_string_value(found.value);
    return EBB_OK;
}

ebb_status json_get_object(const json_place *at, const char *key, json_need need, json_place *value, ebb_error *error) {
    json_place found;
    ebb_status status = member(at, key, need, "an object", &found, error);
    if (status || !found.value) return status;
    if (!json_is_object(found.value)) return wrong_type(&found, "an object", error);
    *value = found;
    return EBB_OK;
}

ebb_status json_get_array(const json_place *at, const char *key, json_need need, json_place *value, ebb_error *error) {
    json_place found;
    ebb_status status = member(at, key, need, "an array", &found, error);
    if (status || !found.value) return status;
    if (!json_is_array(found.value)) return wrong_type(&found, "an array", error);
    *value = found;
    return EBB_OK;
}
