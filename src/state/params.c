/* state/params.c: see params.h. */
#include "state/params.h"
#include "core/core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int32_t param_index(const ebb_param *params, const char *name) {
    for (int32_t i = 0; params[i].name; i++)
        if (!strcmp(params[i].name, name)) return i;
    return -1;
}

void param_choice(const ebb_param *param, double value, char *word, size_t room) {
    const char *at = param->choices;
    for (int i = (int)value; i > 0 && at; i--) at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL;
    snprintf(word, room, "%.*s", at ? (int)strcspn(at, "|") : 0, at ? at : "");
}

/* Index of the word text[0 .. n) among "a|b|c", or -1. */
static int choice_of(const char *choices, const char *text, size_t n) {
    for (int i = 0;; i++) {
        size_t m = strcspn(choices, "|");
        if (m == n && !memcmp(choices, text, n)) return i;
        if (!choices[m]) return -1;
        choices += m + 1;
    }
}

static ebb_status one_value(const char *method, const ebb_param *p, const char *text, size_t n, double *value,
                            ebb_error *error) {
    const bool real = p->choices && !*p->choices;
    if (p->choices && !real) {
        int i = choice_of(p->choices, text, n);
        if (i < 0)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s: %s=%.*s, expected %s", method, p->name, (int)n, text,
                            p->choices);
        *value = i;
        return EBB_OK;
    }
    char number[32], *end = number;
    double v = 0;
    if (n > 0 && n < sizeof number) {
        memcpy(number, text, n);
        number[n] = '\0';
        v = strtod(number, &end);
    }
    if (end == number || *end || !(v >= p->lo && v <= p->hi) || (!real && v != floor(v)))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s: %s=%.*s, expected a %snumber from %g to %g", method,
                        p->name, (int)n, text, real ? "" : "whole ", p->lo, p->hi);
    *value = v;
    return EBB_OK;
}

static ebb_status read_list(const char *method, const ebb_param *params, const char *text, double *values,
                            ebb_error *error) {
    while (text && *text) {
        size_t n = strcspn(text, ","), key = strcspn(text, "=,");
        int32_t i = -1;
        for (int32_t j = 0; params[j].name && i < 0; j++)
            if (strlen(params[j].name) == key && !memcmp(params[j].name, text, key)) i = j;
        if (i < 0 || key >= n) {
            char known[120] = "";
            for (int32_t j = 0; params[j].name; j++) {
                size_t at = strlen(known);
                snprintf(known + at, sizeof known - at, "%s%s", j ? ", " : "", params[j].name);
            }
            return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s: '%.*s' is not key=value with one of the keys %s",
                            method, (int)n, text, known);
        }
        ebb_status status = one_value(method, &params[i], text + key + 1, n - key - 1, &values[i], error);
        if (status) return status;
        text += n;
        if (*text == ',') text++;
    }
    return EBB_OK;
}

ebb_status params_read(const char *method, const ebb_param *params, const char *defaults, const char *text,
                       double *values, ebb_error *error) {
    for (int32_t i = 0; params[i].name; i++) values[i] = params[i].preset;
    ebb_status status = read_list(method, params, defaults, values, error);
    return status ? status : read_list(method, params, text, values, error);
}

void param_value(const ebb_param *param, double value, char *text, size_t room) {
    if (!param->choices) snprintf(text, room, "%.0f", value);
    else if (*param->choices) param_choice(param, value, text, room);
    else {
        snprintf(text, room, "%.15g", value); /* the shortest of the two that reads back as the same number */
        if (strtod(text, NULL) != value) snprintf(text, room, "%.17g", value);
    }
}

bool params_text(const char *method, const ebb_param *params, const double *values, char *text, size_t room) {
    int n = snprintf(text, room, "%s", method);
    for (int32_t i = 0; params[i].name && n >= 0 && (size_t)n < room; i++) {
        char value[32];
        param_value(&params[i], values[i], value, sizeof value);
        n += snprintf(text + n, room - (size_t)n, "%c%s=%s", i ? ',' : ':', params[i].name, value);
    }
    return n >= 0 && (size_t)n < room;
}

static const char *row_name(const void *rows, size_t stride, int32_t i) {
    return *(const char *const *)((const char *)rows + stride * (size_t)i);
}

ebb_status method_find(const char *kind, const char *text, const void *rows, int32_t count, size_t stride, int32_t *row,
                       const char **params, ebb_error *error) {
    size_t n = strcspn(text, ":");
    for (int32_t i = 0; i < count; i++) {
        const char *name = row_name(rows, stride, i);
        if (strlen(name) == n && !memcmp(name, text, n)) {
            *row = i;
            *params = text[n] ? text + n + 1 : NULL;
            return EBB_OK;
        }
    }
    char known[180] = "";
    for (int32_t i = 0; i < count; i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? " " : "", row_name(rows, stride, i));
    }
    return ebb_fail(error, EBB_BAD_ARGUMENT, "no %s method '%.*s', expected one of: %s", kind, (int)(n < 40 ? n : 40),
                    text, known);
}
