/* model/jinja_lex.c: a template as words: the text between tags as it is printed, and what is inside tags. White space
 * is cut as with trim_blocks and lstrip_blocks: the newline after a block or comment, and the blanks of a line before
 * one; `-` cuts all, `+` nothing. See jinja_int.h. */
#include "model/jinja_int.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct lexer {
    jworld *w;
    jtext t;
    size_t at, room, n;
    int32_t line;
    bool fresh; /* what was read last ended a line */
} lexer;

static jword *add(lexer *l, jword_kind kind) {
    jworld *w = l->w;
    if (l->n == l->room) {
        const size_t room = 2 * l->room + 64;
        jword *more = jnew(w, room * sizeof *more);
        if (!more) return NULL;
        if (l->n) memcpy(more, w->words, l->n * sizeof *more);
        w->words = more, l->room = room;
    }
    w->words[l->n] = (jword){.kind = kind, .line = l->line};
    return &w->words[l->n++];
}

static void fail(lexer *l, const char *what) {
    l->w->line = l->line;
    jfail(l->w, EBB_BAD_FILE, "%s", what);
}

static void go_to(lexer *l, size_t at) {
    for (; l->at < at; l->at++) l->line += l->t.s[l->at] == '\n';
}

static bool starts(const lexer *l, size_t at, const char *with) {
    const size_t n = strlen(with);
    return l->t.n - at >= n && !memcmp(l->t.s + at, with, n);
}

static size_t skip_blanks(const lexer *l, size_t at) {
    const jtext rest = jpart(l->t, at, l->t.n);
    return l->t.n - jstrip(rest, NULL, true, false).n;
}

/* The text up to `end`, in front of a tag with this sign; `lstrip`: of a kind whose line is cut before it. */
static void put_text(lexer *l, size_t end, char sign, bool lstrip) {
    jtext text = jpart(l->t, l->at, end);
    if (sign == '-') text = jstrip(text, NULL, false, true);
    else if (sign != '+' && lstrip) {
        size_t from = text.n;
        while (from > 0 && text.s[from - 1] != '\n') from--;
        if ((from > 0 || l->fresh) && jstrip(jpart(text, from, text.n), NULL, true, false).n == 0) text.n = from;
    }
    jword *word = text.n ? add(l, W_TEXT) : NULL;
    if (word) word->text = text;
    go_to(l, end);
}

static char sign_at(const lexer *l, size_t at) {
    return at < l->t.n && (l->t.s[at] == '-' || l->t.s[at] == '+') ? l->t.s[at] : '\0';
}

/* Behind the closing "%}" or "#}" at `at`, in front of which `sign` stood. */
static void close_tag(lexer *l, size_t at, char sign, bool trims) {
    size_t end = at + 2;
    if (sign == '-') end = skip_blanks(l, end);
    else if (sign != '+' && trims && end < l->t.n && l->t.s[end] == '\n') end++;
    go_to(l, end);
    l->fresh = l->t.s[end - 1] == '\n';
}

static void read_comment(lexer *l) {
    const size_t from = l->at + 2 + (sign_at(l, l->at + 2) != 0);
    for (size_t at = from; at < l->t.n; at++) {
        if (!starts(l, at, "#}")) continue;
        const char sign = at > from ? sign_at(l, at - 1) : '\0';
        close_tag(l, at, sign, true);
        return;
    }
    fail(l, "a comment without its #}");
}

/* Is there {%- NAME -%} at `at`? Where it ends, and the signs. */
static bool bare_tag(const lexer *l, size_t at, const char *name, size_t *close, char *left, char *right) {
    if (!starts(l, at, "{%")) return false;
    at += 2;
    if ((*left = sign_at(l, at))) at++;
    at = skip_blanks(l, at);
    if (!starts(l, at, name)) return false;
    at = skip_blanks(l, at + strlen(name));
    if ((*right = sign_at(l, at))) at++;
    *close = at;
    return starts(l, at, "%}");
}

/* {% raw %}: its text goes on to {% endraw %}, tags or not. The newline behind {% raw %} stays. */
static bool read_raw(lexer *l) {
    size_t close;
    char left, right;
    if (!bare_tag(l, l->at, "raw", &close, &left, &right) || right == '+') return false;
    close_tag(l, close, right, false);
    for (size_t at = l->at; at < l->t.n; at++) {
        if (!bare_tag(l, at, "endraw", &close, &left, &right)) continue;
        put_text(l, at, left, true);
        close_tag(l, close, right, true);
        return true;
    }
    fail(l, "a raw block without its endraw");
    return true;
}

/* ---- inside tags ---- */

static bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80); }
static bool digit(char c) { return c >= '0' && c <= '9'; }

static void put_code_point(lexer *l, jbuilder *b, uint32_t c) {
    char s[5] = "";
    if (c == 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
        fail(l, "an escape that is no character");
        return;
    }
    if (c < 0x80) s[0] = (char)c;
    else if (c < 0x800) s[0] = (char)(0xc0 | c >> 6), s[1] = (char)(0x80 | (c & 63));
    else if (c < 0x10000) {
        s[0] = (char)(0xe0 | c >> 12), s[1] = (char)(0x80 | (c >> 6 & 63)), s[2] = (char)(0x80 | (c & 63));
    } else {
        s[0] = (char)(0xf0 | c >> 18), s[1] = (char)(0x80 | (c >> 12 & 63)), s[2] = (char)(0x80 | (c >> 6 & 63));
        s[3] = (char)(0x80 | (c & 63));
    }
    jput_c(l->w, b, s);
}

/* What stands behind a backslash at `at`; where it ends. */
static size_t read_escape(lexer *l, jbuilder *b, size_t at, size_t end) {
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char c = l->t.s[at];
    const char *simple = c ? strchr(from, c) : NULL;
    const size_t hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    char digits[12] = "", *stop;
    if (c == '\n') return at + 1;
    if (simple) {
        jput(l->w, b, (jtext){&to[simple - from], NULL, 1});
        return at + 1;
    }
    if (c >= '0' && c <= '7') {
        size_t n = 0;
        for (; n < 3 && at + n < end && l->t.s[at + n] >= '0' && l->t.s[at + n] <= '7'; n++) digits[n] = l->t.s[at + n];
        put_code_point(l, b, (uint32_t)strtoul(digits, NULL, 8));
        return at + n;
    }
    if (!hex) {
        if (c == 'N') fail(l, "\\N escapes are beyond what is served");
        jput_c(l->w, b, "\\"); /* Python keeps what it does not know */
        return at;
    }
    if (at + 1 + hex > end) {
        fail(l, "an escape that is cut short");
        return end;
    }
    memcpy(digits, l->t.s + at + 1, hex);
    const uint32_t code = (uint32_t)strtoul(digits, &stop, 16);
    if (*stop || digits[0] == '+' || digits[0] == '-' || digits[0] == ' ') fail(l, "an escape with a wrong digit");
    else put_code_point(l, b, code);
    return at + 1 + hex;
}

static void read_string(lexer *l) {
    const char quote = l->t.s[l->at];
    size_t end = l->at + 1;
    bool escapes = false;
    for (; end < l->t.n && l->t.s[end] != quote; end++)
        if (l->t.s[end] == '\\') escapes = true, end++;
    if (end >= l->t.n) {
        fail(l, "a string without its end");
        return;
    }
    jtext text = jpart(l->t, l->at + 1, end);
    jword *word = add(l, W_VALUE);
    if (escapes) {
        jbuilder b = {0};
        for (size_t at = l->at + 1; at < end && !l->w->status;) {
            size_t to = at;
            while (to < end && l->t.s[to] != '\\') to++;
            jput(l->w, &b, jpart(l->t, at, to));
            at = to < end ? read_escape(l, &b, to + 1, end) : end;
        }
        text = jbuilt(&b);
    }
    if (word) word->value = jof_text(text);
    go_to(l, end + 1);
}

/* Decimal numbers; the underscores between digits go. */
static void read_number(lexer *l) {
    char digits[64];
    size_t n = 0, at = l->at;
    bool real = false;
    for (; at < l->t.n && n < sizeof digits - 1; at++) {
        const char c = l->t.s[at], next = at + 1 < l->t.n ? l->t.s[at + 1] : '\0';
        const char after = at + 2 < l->t.n ? l->t.s[at + 2] : '\0';
        const bool exponent = c == 'e' || c == 'E';
        if (c == '_' && digit(next)) continue;
        if (c == '.' && !real && digit(next)) real = true;
        else if (exponent && (digit(next) || ((next == '+' || next == '-') && digit(after)))) {
            real = true;
            digits[n++] = c;
            if (!digit(next)) digits[n++] = next, at++;
            continue;
        } else if (!digit(c)) break;
        digits[n++] = c;
    }
    digits[n] = '\0';
    const bool other_base = n == 1 && digits[0] == '0' && at < l->t.n && strchr("xXbBoO", l->t.s[at]);
    errno = 0;
    const long long whole = strtoll(digits, NULL, 10);
    if (n == sizeof digits - 1 || other_base || (at < l->t.n && letter(l->t.s[at])) || (!real && errno) ||
        (!real && n > 1 && digits[0] == '0')) {
        fail(l, "a number that is wrong, or beyond what is served");
        return;
    }
    jword *word = add(l, W_VALUE);
    if (word) word->value = real ? jof_real(strtod(digits, NULL)) : jof_int(whole);
    go_to(l, at);
}

static void read_name(lexer *l) {
    size_t end = l->at;
    while (end < l->t.n && (letter(l->t.s[end]) || digit(l->t.s[end]))) end++;
    jword *word = add(l, W_NAME);
    if (word) word->text = jpart(l->t, l->at, end);
    go_to(l, end);
}

static void read_operator(lexer *l) {
    static const struct {
        const char *text;
        int32_t op;
    } twos[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<=", OP_LE}, {">=", OP_GE}, {"//", OP_FLOOR}, {"**", OP_POW}};
    int32_t op = 0;
    for (int32_t i = 0; i < COUNT(twos); i++)
        if (starts(l, l->at, twos[i].text)) op = twos[i].op;
    const size_t n = op ? 2 : 1;
    const char c = l->t.s[l->at];
    if (!op && c && strchr("+-*/%~<>=.,:|()[]{}", c)) op = c;
    if (!op) {
        char shown[64], text[96];
        snprintf(text, sizeof text, "unexpected character '%s'",
                 jshown(jpart(l->t, l->at, l->at + jchar_bytes(l->t, l->at)), shown));
        fail(l, text);
        return;
    }
    jword *word = add(l, W_OP);
    if (word) word->op = op;
    go_to(l, l->at + n);
}

/* The words of a tag up to its end, which does not count within brackets. */
static void read_tag(lexer *l, bool print) {
    const char *end = print ? "}}" : "%}";
    int32_t open = 0;
    l->fresh = false;
    while (!l->w->status) {
        go_to(l, skip_blanks(l, l->at));
        if (l->at >= l->t.n) {
            fail(l, print ? "{{ without its }}" : "{% without its %}");
            return;
        }
        const char c = l->t.s[l->at], sign = c == '-' || (c == '+' && !print) ? c : '\0';
        if (!open && starts(l, l->at + (sign != 0), end)) {
            add(l, print ? W_PRINT_END : W_BLOCK_END);
            close_tag(l, l->at + (sign != 0), sign, !print);
            return;
        }
        open += c == '(' || c == '[' || c == '{';
        open -= c == ')' || c == ']' || c == '}';
        if (c == '\'' || c == '"') read_string(l);
        else if (digit(c)) read_number(l);
        else if (letter(c)) read_name(l);
        else read_operator(l);
    }
}

/* Where the next tag begins; the end, if there is none. */
static size_t next_tag(const lexer *l) {
    for (size_t at = l->at; at + 1 < l->t.n; at++)
        if (l->t.s[at] == '{' && strchr("{%#", l->t.s[at + 1]) && l->t.s[at + 1]) return at;
    return l->t.n;
}

/* Newlines become \n; the last one of a source goes. */
static jtext normalized(jworld *w, const char *source, size_t n) {
    char *s = jnew(w, n + 1);
    size_t to = 0;
    if (!s) return jwords("");
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        s[to++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (to && s[to - 1] == '\n') to--;
    return (jtext){s, NULL, to};
}

void jlex(jworld *w, const char *source, size_t n) {
    lexer l = {.w = w, .t = normalized(w, source, n), .line = 1, .fresh = true};
    while (l.at < l.t.n && !w->status) {
        const size_t tag = next_tag(&l);
        const char kind = tag < l.t.n ? l.t.s[tag + 1] : '\0', sign = kind ? sign_at(&l, tag + 2) : '\0';
        put_text(&l, tag, kind ? sign : '+', kind != '{');
        if (!kind || w->status) break;
        if (kind == '#') read_comment(&l);
        else if (kind != '%' || !read_raw(&l)) {
            add(&l, kind == '{' ? W_PRINT : W_BLOCK);
            go_to(&l, tag + 2 + (sign != 0));
            read_tag(&l, kind == '{');
        }
    }
    add(&l, W_END);
}
