/* server/answer_parts.c: an answer cut into thoughts, text and calls while it comes (answer_parts.h). Called by the
 * server. calls.c reads what a call says. */
#include "server/answer_parts.h"
#include "core/core.h"

#include <string.h>

/* Where the text at hand stands; a section is where Kimi's calls are. */
enum { TEXT, THINK, CALL, SECTION, KIMI };

typedef struct mark {
    const char *text;
    int32_t states; /* a bit each: where it is looked for */
} mark;

enum { THINK_BEGIN, THINK_END, CALL_BEGIN, CALL_END, SECTION_BEGIN, SECTION_END, KIMI_BEGIN, KIMI_END, MARKS };
static const mark marks[MARKS] = {
    [THINK_BEGIN] = {"<think>", 1 << TEXT},
    [THINK_END] = {"</think>", 1 << THINK},
    [CALL_BEGIN] = {"<tool_call>", 1 << TEXT | 1 << CALL},
    [CALL_END] = {"</tool_call>", 1 << CALL},
    [SECTION_BEGIN] = {"<|tool_calls_section_begin|>", 1 << TEXT},
    [SECTION_END] = {"<|tool_calls_section_end|>", 1 << SECTION | 1 << KIMI},
    [KIMI_BEGIN] = {"<|tool_call_begin|>", 1 << TEXT | 1 << SECTION | 1 << KIMI},
    [KIMI_END] = {"<|tool_call_end|>", 1 << KIMI},
};

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* Thoughts come before anything else. */
static bool nothing_before(const part_parser *p, size_t at) {
    if (p->said || p->called) return false;
    while (at > 0 && is_blank(p->held.data[at - 1])) at--;
    return at == 0;
}

static bool looked_for(const part_parser *p, int32_t m, size_t at) {
    if (!(marks[m].states >> p->state & 1)) return false;
    if (m == THINK_BEGIN) return p->reasoning && nothing_before(p, at);
    return m == THINK_END || p->tools != NULL;
}

/* The first mark in held[from ..), MARKS: none; *at: where it begins, or where one may begin at the end of the text. */
static int32_t find_mark(const part_parser *p, size_t from, size_t *at) {
    const text_buffer *h = &p->held;
    for (*at = from; *at < h->bytes; (*at)++) {
        if (h->data[*at] != '<') continue;
        const size_t left = h->bytes - *at;
        bool maybe = false;
        for (int32_t m = 0; m < MARKS; m++) {
            if (!looked_for(p, m, *at)) continue;
            const size_t n = strlen(marks[m].text);
            if (memcmp(h->data + *at, marks[m].text, left < n ? left : n) != 0) continue;
            if (left >= n) return m;
            maybe = true;
        }
        if (maybe) break;
    }
    return MARKS;
}

/* Hand on the first `bytes` of what is held. Blanks after a mark, and those before one, belong to it; blanks at the end
 * wait until it is known what follows. */
static bool say(part_parser *p, size_t bytes, bool at_mark) {
    const bool strips = p->tools || p->reasoning || p->thinking;
    size_t from = 0, to = bytes;
    while (p->fresh && from < to && is_blank(p->held.data[from])) from++;
    while (strips && to > from && is_blank(p->held.data[to - 1])) to--;
    bool good = true;
    if (to > from) {
        const bool thought = p->state == THINK;
        p->fresh = false;
        p->said |= !thought;
        good = p->sink.text(p->sink.ctx, thought ? PART_REASONING : PART_CONTENT, p->held.data + from, to - from);
    }
    text_drop(&p->held, at_mark ? bytes : to);
    return good;
}

/* The text of a call is complete: held[0 .. bytes). `whole`: its end mark came. False: no memory; *read: it was a call.
 */
static bool say_call(part_parser *p, size_t bytes, bool *read) {
    const int32_t n = parse_calls(p->held.data ? p->held.data : "", bytes, p->tools, &p->sink);
    *read = n > 0;
    p->called |= n > 0;
    return n >= 0;
}

/* A call that cannot be understood is what the model said, with its marks. */
static bool say_raw(part_parser *p, size_t bytes, const char *begin, const char *close) {
    p->said = true;
    return p->sink.text(p->sink.ctx, PART_CONTENT, begin, strlen(begin)) &&
           (!bytes || p->sink.text(p->sink.ctx, PART_CONTENT, p->held.data, bytes)) &&
           (!*close || p->sink.text(p->sink.ctx, PART_CONTENT, close, strlen(close)));
}

static bool finish_call(part_parser *p, size_t bytes, const char *close) {
    const char *begin = marks[p->state == KIMI ? KIMI_BEGIN : CALL_BEGIN].text;
    bool read;
    if (!say_call(p, bytes, &read)) return false;
    return read || say_raw(p, bytes, begin, close);
}

/* At a mark that lies whole at held[at]. */
static bool pass_mark(part_parser *p, int32_t m, size_t at) {
    static const int32_t next[MARKS] = {
        [THINK_BEGIN] = THINK, [THINK_END] = TEXT,   [CALL_BEGIN] = CALL,       [CALL_END] = TEXT,
        [KIMI_BEGIN] = KIMI,   [KIMI_END] = SECTION, [SECTION_BEGIN] = SECTION, [SECTION_END] = TEXT};
    bool good = true;
    if (p->state == CALL || p->state == KIMI) {
        good = finish_call(p, at, m == CALL_END || m == KIMI_END ? marks[m].text : "");
        text_drop(&p->held, at);
    } else good = say(p, at, true);
    text_drop(&p->held, strlen(marks[m].text));
    p->fresh = true;
    p->tries = 0;
    p->seen = 0;
    p->state = next[m];
    return good;
}

/* </tool_call> inside of a string of the arguments is not the end. Asked a few times only, for a quote may be missing.
 */
static bool ends_inside(part_parser *p, int32_t m, size_t at) {
    enum { TRIES = 8 };
    size_t from = 0;
    bool open = false;
    if (m != CALL_END || p->tries >= TRIES) return false;
    while (from < at && is_blank(p->held.data[from])) from++;
    if (from == at || p->held.data[from] != '{') return false;
    for (; from < at; from++) {
        if (p->held.data[from] == '"') open = !open;
        else if (open && p->held.data[from] == '\\') from++;
    }
    p->tries += open;
    return open;
}

bool part_feed(part_parser *p, const char *text, size_t bytes) {
    size_t at;
    if (p->thinking && !p->begun) p->state = THINK, p->fresh = true;
    p->begun = true;
    if (!text_add(&p->held, text, bytes)) return false;
    for (;;) {
        const int32_t m = find_mark(p, p->seen, &at);
        if (m == MARKS) break;
        if (ends_inside(p, m, at)) p->seen = at + 1;
        else if (!pass_mark(p, m, at)) return false;
    }
    if (p->state != CALL && p->state != KIMI) return say(p, at, false);
    p->seen = at;
    return true;
}

bool part_end(part_parser *p) {
    size_t from = 0, to = p->held.bytes;
    const bool thought = p->state == THINK;
    bool good = true;
    if (p->state == CALL || p->state == KIMI) good = finish_call(p, to, "");
    else {
        while (p->fresh && from < to && is_blank(p->held.data[from])) from++;
        while ((thought || p->called) && to > from && is_blank(p->held.data[to - 1])) to--;
        if (to > from) {
            p->said |= !thought;
            good = p->sink.text(p->sink.ctx, thought ? PART_REASONING : PART_CONTENT, p->held.data + from, to - from);
        }
    }
    p->held.bytes = 0;
    return good;
}

bool part_thinking(const part_parser *p) { return p->begun ? p->state == THINK : p->thinking; }

void part_free(part_parser *p) { text_free(&p->held); }
