/* server/stop.c: text that grows, and the strings at which an answer ends (answer_parts.h). Called by the server. */
#include "server/answer_parts.h"
#include "core/core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

static bool text_room(text_buffer *text, size_t bytes) {
    size_t need, room;
    if (!size_add(text->bytes, bytes, &need) || !size_add(need, 1, &need) || !size_mul(need, 2, &room)) return false;
    if (need <= text->room) return true;
    char *data = realloc(text->data, room);
    if (!data) return false;
    text->data = data, text->room = room;
    return true;
}

bool text_add(text_buffer *text, const char *data, size_t bytes) {
    if (!text_room(text, bytes)) return false;
    if (bytes) memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
    text->data[text->bytes] = '\0';
    return true;
}

bool text_format(text_buffer *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !text_room(text, (size_t)n)) return false;
    va_start(args, format);
    vsnprintf(text->data + text->bytes, (size_t)n + 1, format, args);
    va_end(args);
    text->bytes += (size_t)n;
    return true;
}

void text_drop(text_buffer *text, size_t bytes) {
    if (!bytes) return;
    memmove(text->data, text->data + bytes, text->bytes - bytes + 1);
    text->bytes -= bytes;
}

void text_free(text_buffer *text) {
    free(text->data);
    *text = (text_buffer){0};
}

/* ---- stop strings ---- */

/* Does `stop` begin at text[at], as far as the text goes? */
static bool begins(const text_buffer *text, size_t at, const char *stop, size_t n) {
    const size_t left = text->bytes - at;
    return memcmp(text->data + at, stop, left < n ? left : n) == 0;
}

bool stop_feed(stop_strings *s, const char *text, size_t bytes, text_buffer *out) {
    if (s->stopped) return true;
    if (!s->n) return text_add(out, text, bytes);
    if (!text_add(&s->held, text, bytes)) return false;
    size_t at = 0;
    for (; at < s->held.bytes; at++) {
        bool maybe = false;
        for (int32_t i = 0; i < s->n && !s->stopped; i++) {
            const size_t n = strlen(s->strings[i]);
            if (!begins(&s->held, at, s->strings[i], n)) continue;
            maybe = true;
            s->stopped = s->held.bytes - at >= n;
        }
        if (maybe) break;
    }
    if (!text_add(out, s->held.data ? s->held.data : "", at)) return false;
    text_drop(&s->held, s->stopped ? s->held.bytes : at);
    return true;
}

bool stop_end(stop_strings *s, text_buffer *out) {
    const bool added = s->stopped || !s->held.bytes || text_add(out, s->held.data, s->held.bytes);
    s->held.bytes = 0;
    return added;
}

void stop_free(stop_strings *s) { text_free(&s->held); }
