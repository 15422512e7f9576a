/* core/error.c: statuses and the one sentence of an error. Called from everywhere. */
#include "core/core.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cut `text`, filled by vsnprintf, where a UTF-8 character would be split. */
static void trim_to_character(char *text) {
    size_t n = strlen(text), i = n;
    while (i > 0 && n - i < 4 && ((unsigned char)text[i - 1] & 0xC0) == 0x80) i--;
    if (i == 0) return;
    unsigned char lead = (unsigned char)text[i - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (n - (i - 1) < need) text[i - 1] = '\0';
}

ebb_status ebb_fail(ebb_error *error, ebb_status code, const char *format, ...) {
    if (!error) return code;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    if (n < 0) error->text[0] = '\0';
    if (n >= (int)sizeof error->text) trim_to_character(error->text);
    for (char *c = error->text; *c; c++) /* names out of files may hold anything; an error is one line */
        if ((unsigned char)*c < 0x20 || *c == 0x7F) *c = '?';
    error->code = code;
    return code;
}

const char *ebb_status_name(ebb_status status) {
    switch (status) {
    case EBB_OK:
        return "ok";
    case EBB_BAD_ARGUMENT:
        return "bad argument";
    case EBB_BAD_FILE:
        return "bad file";
    case EBB_UNSUPPORTED:
        return "unsupported";
    case EBB_NO_MEMORY:
        return "out of memory";
    case EBB_DEVICE_FAULT:
        return "device fault";
    case EBB_INTERRUPTED:
        return "interrupted";
    }
    return "unknown status";
}

#define TEXT(x) #x
#define VERSION(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)
const char *ebb_version(void) { return VERSION(EBB_VERSION_MAJOR, EBB_VERSION_MINOR, EBB_VERSION_PATCH); }

bool size_mul(size_t a, size_t b, size_t *product) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *product = r;
    return true;
}

bool size_add(size_t a, size_t b, size_t *sum) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *sum = r;
    return true;
}
