/* model/jinja_value.c: the arena, values, texts under construction, equality, order, str() and repr(). See
 * jinja_int.h. */
#include "model/jinja_int.h"
#include "model/tokenizer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- the arena and failures ---- */

enum { ALIGN = 16, CHUNK = 16384 };
typedef struct jchunk {
    struct jchunk *next;
    size_t used, room;
} jchunk;

jvalue jfail(jworld *w, ebb_status code, const char *format, ...) {
    if (w->status) return junknown(jwords(""));
    char text[sizeof w->error->text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    w->status = ebb_fail(w->error, code, "chat template, line %d: %s", w->line, text);
    return junknown(jwords(""));
}

const char *jshown(jtext text, char out[64]) {
    size_t n = text.n < 60 ? text.n : 60;
    while (n < text.n && n > 0 && ((uint8_t)text.s[n] & 0xc0) == 0x80) n--;
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)text.s[i] < 0x20 || text.s[i] == 0x7f ? '?' : text.s[i];
    if (n < text.n) memcpy(out + n, "...", 3), n += 3;
    out[n] = '\0';
    return out;
}

void *jnew(jworld *w, size_t bytes) {
    if (w->status) return NULL;
    if (bytes > w->memory) {
        jfail(w, EBB_BAD_FILE, "the template takes more memory than a conversation may");
        return NULL;
    }
    bytes = align_up(bytes ? bytes : 1, ALIGN);
    const size_t head = align_up(sizeof(jchunk), ALIGN);
    if (!w->chunks || w->chunks->room - w->chunks->used < bytes) {
        const size_t room = bytes > CHUNK / 4 ? bytes : CHUNK;
        jchunk *chunk = malloc(head + room);
        if (!chunk) {
            jfail(w, EBB_NO_MEMORY, "no memory for the conversation");
            return NULL;
        }
        *chunk = (jchunk){w->chunks, 0, room};
        w->chunks = chunk;
    }
    void *at = (char *)w->chunks + head + w->chunks->used;
    w->chunks->used += bytes;
    w->memory -= bytes < w->memory ? bytes : w->memory;
    memset(at, 0, bytes);
    return at;
}

void jworld_free(jworld *w) {
    while (w->chunks) {
        jchunk *next = w->chunks->next;
        free(w->chunks);
        w->chunks = next;
    }
}

bool jspend(jworld *w, size_t bytes) {
    w->steps -= (int64_t)(bytes / 16 + 1);
    if (w->steps < 0) jfail(w, EBB_BAD_FILE, "the template takes more steps than a conversation may");
    return !w->status;
}

bool jenter(jworld *w) {
    if (++w->depth > J_MOST_DEPTH) jfail(w, EBB_BAD_FILE, "nested deeper than %d", J_MOST_DEPTH);
    return !w->status;
}

/* ---- texts ---- */

jtext jwords(const char *text) { return (jtext){text, NULL, strlen(text)}; }
bool jsame(jtext a, jtext b) { return a.n == b.n && (a.n == 0 || !memcmp(a.s, b.s, a.n)); }
bool jis(jtext a, const char *b) { return jsame(a, jwords(b)); }
jtext jpart(jtext t, size_t from, size_t to) { return (jtext){t.s + from, t.mark ? t.mark + from : NULL, to - from}; }

static bool make_room(jworld *w, jbuilder *b, size_t n) {
    if (n <= b->room - b->n) return !w->status;
    const size_t room = 2 * (b->n + n) + 64;
    char *s = jnew(w, room);
    uint8_t *mark = b->mark ? jnew(w, room) : NULL;
    if (!s || (b->mark && !mark)) return false;
    if (b->n) memcpy(s, b->s, b->n);
    if (b->mark) memcpy(mark, b->mark, b->n);
    b->s = s, b->mark = mark, b->room = room;
    return true;
}

void jput(jworld *w, jbuilder *b, jtext text) {
    if (!text.n || !make_room(w, b, text.n)) return;
    if (text.mark && !b->mark && !(b->mark = jnew(w, b->room))) return;
    memcpy(b->s + b->n, text.s, text.n);
    if (text.mark) memcpy(b->mark + b->n, text.mark, text.n);
    b->n += text.n;
}

void jput_c(jworld *w, jbuilder *b, const char *text) { jput(w, b, jwords(text)); }
jtext jbuilt(const jbuilder *b) { return (jtext){b->s ? b->s : "", b->mark, b->n}; }

/* ---- values ---- */

jvalue junknown(jtext what) { return (jvalue){.kind = J_UNDEFINED, .as.text = what}; }
jvalue jof_text(jtext t) { return (jvalue){.kind = J_TEXT, .as.text = t}; }
jvalue jof_int(int64_t i) { return (jvalue){.kind = J_INT, .as.i = i}; }
jvalue jof_real(double d) { return (jvalue){.kind = J_REAL, .as.real = d}; }
jvalue jof_bool(bool yes) { return (jvalue){.kind = J_BOOL, .as.yes = yes}; }
jvalue jof_none(void) { return (jvalue){.kind = J_NONE}; }

jvalue jnew_seq(jworld *w, jkind kind) {
    jseq *seq = jnew(w, sizeof *seq);
    return seq ? (jvalue){.kind = kind, .as.seq = seq} : junknown(jwords(""));
}

void jseq_add(jworld *w, jseq *seq, jvalue v) {
    if (w->status || !seq) return;
    if (seq->n == seq->room) {
        const size_t room = 2 * seq->room + 8;
        jvalue *more = jnew(w, room * sizeof *more);
        if (!more) return;
        if (seq->n) memcpy(more, seq->v, seq->n * sizeof *more);
        seq->v = more, seq->room = room;
    }
    seq->v[seq->n++] = v;
}

jvalue jnew_dict(jworld *w) {
    jdict *d = jnew(w, sizeof *d);
    return d ? (jvalue){.kind = J_DICT, .as.dict = d} : junknown(jwords(""));
}

jvalue *jdict_get(jworld *w, const jdict *d, jvalue key) {
    if (!jspend(w, 2 * d->n)) return NULL;
    for (size_t i = 0; i < d->n; i++)
        if (jequal(w, d->key[i], key)) return &d->value[i];
    return NULL;
}

void jdict_set(jworld *w, jdict *d, jvalue key, jvalue v) {
    if (key.kind == J_LIST || key.kind == J_DICT) jfail(w, EBB_BAD_FILE, "unhashable type: '%s'", jkind_name(key));
    jvalue *old = w->status ? NULL : jdict_get(w, d, key);
    if (old) *old = v;
    if (old || w->status) return;
    if (d->n == d->room) {
        const size_t room = 2 * d->room + 8;
        jvalue *keys = jnew(w, room * sizeof *keys), *values = jnew(w, room * sizeof *values);
        if (!keys || !values) return;
        if (d->n) memcpy(keys, d->key, d->n * sizeof *keys), memcpy(values, d->value, d->n * sizeof *values);
        d->key = keys, d->value = values, d->room = room;
    }
    d->key[d->n] = key, d->value[d->n++] = v;
}

bool jis_seq(jvalue v) { return v.kind >= J_LIST && v.kind <= J_ITERATOR; }
bool jnumber(jvalue v) { return v.kind == J_BOOL || v.kind == J_INT || v.kind == J_REAL; }
double jto_real(jvalue v) { return v.kind == J_REAL ? v.as.real : v.kind == J_BOOL ? v.as.yes : (double)v.as.i; }

bool jtruth(jvalue v) {
    switch (v.kind) {
    case J_ABSENT:
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.as.yes;
    case J_INT:
        return v.as.i != 0;
    case J_REAL:
        return v.as.real != 0;
    case J_TEXT:
        return v.as.text.n > 0;
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
    case J_VIEW:
        return v.as.seq->n > 0;
    case J_DICT:
        return v.as.dict->n > 0;
    case J_LOOP:
        return v.as.loop->seq->n > 0;
    case J_ITERATOR:
    case J_NAMESPACE:
    case J_MACRO:
    case J_METHOD:
    case J_FUNCTION:
        break;
    }
    return true;
}

const char *jkind_name(jvalue v) {
    static const char *const names[] = {"nothing", "Undefined", "NoneType",    "bool",  "int",       "float",
                                        "str",     "list",      "tuple",       "range", "dict_view", "generator",
                                        "dict",    "Namespace", "LoopContext", "Macro", "method",    "function"};
    return names[v.kind];
}

static bool equal_seq(jworld *w, const jseq *a, const jseq *b) {
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) same = jequal(w, a->v[i], b->v[i]);
    return same;
}

static bool equal_dict(jworld *w, const jdict *a, const jdict *b) {
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) {
        const jvalue *other = jdict_get(w, b, a->key[i]);
        same = other && jequal(w, a->value[i], *other);
    }
    return same;
}

/* Whole numbers are compared as such: a double does not hold all of them. */
static int compare_numbers(jvalue a, jvalue b) {
    if (a.kind == J_REAL || b.kind == J_REAL) {
        const double x = jto_real(a), y = jto_real(b);
        return x < y ? -1 : x == y ? 0 : 1;
    }
    const int64_t x = a.kind == J_BOOL ? a.as.yes : a.as.i, y = b.kind == J_BOOL ? b.as.yes : b.as.i;
    return x < y ? -1 : x > y;
}

bool jequal(jworld *w, jvalue a, jvalue b) {
    if (jnumber(a) && jnumber(b)) return compare_numbers(a, b) == 0;
    if (a.kind != b.kind || !jspend(w, a.kind == J_TEXT ? a.as.text.n : 0)) return false;
    bool same = false;
    switch (a.kind) {
    case J_ABSENT:
    case J_UNDEFINED:
    case J_NONE:
        return true;
    case J_TEXT:
        return jsame(a.as.text, b.as.text);
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
    case J_VIEW:
        same = jenter(w) && equal_seq(w, a.as.seq, b.as.seq);
        w->depth--;
        return same;
    case J_DICT:
        same = jenter(w) && equal_dict(w, a.as.dict, b.as.dict);
        w->depth--;
        return same;
    case J_ITERATOR:
        return a.as.seq == b.as.seq;
    case J_NAMESPACE:
        return a.as.dict == b.as.dict;
    case J_LOOP:
        return a.as.loop == b.as.loop;
    case J_MACRO:
        return a.as.macro == b.as.macro;
    case J_FUNCTION:
        return a.as.row == b.as.row;
    case J_METHOD:
        return jsame(a.as.method->name, b.as.method->name) && jequal(w, a.as.method->self, b.as.method->self);
    case J_BOOL:
    case J_INT:
    case J_REAL:
        break; /* numbers are dealt with above */
    }
    return false;
}

static int compare_texts(jtext a, jtext b) {
    const size_t n = a.n < b.n ? a.n : b.n;
    const int c = n ? memcmp(a.s, b.s, n) : 0;
    return c ? c : a.n < b.n ? -1 : a.n > b.n;
}

int jcompare(jworld *w, jvalue a, jvalue b) {
    if (jnumber(a) && jnumber(b)) return compare_numbers(a, b);
    char shown[64];
    const jvalue *unknown = a.kind == J_UNDEFINED ? &a : b.kind == J_UNDEFINED ? &b : NULL;
    if (unknown) {
        jfail(w, EBB_BAD_FILE, "'%s' is undefined", jshown(unknown->as.text, shown));
        return 0;
    }
    if (a.kind == J_TEXT && b.kind == J_TEXT && jspend(w, a.as.text.n)) return compare_texts(a.as.text, b.as.text);
    if (a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE) && jenter(w)) {
        const jseq *x = a.as.seq, *y = b.as.seq;
        int c = 0;
        for (size_t i = 0; !c && !w->status && i < x->n && i < y->n; i++)
            if (!jequal(w, x->v[i], y->v[i])) c = jcompare(w, x->v[i], y->v[i]);
        w->depth--;
        return c ? c : x->n < y->n ? -1 : x->n > y->n;
    }
    jfail(w, EBB_BAD_FILE, "'%s' and '%s' have no order", jkind_name(a), jkind_name(b));
    return 0;
}

/* ---- str() and repr() ---- */

/* The shortest digits that give the same number back, in Python's layout: an exponent below 1e-4 and from 1e16 on. */
jtext jrepr_real(jworld *w, double d) {
    char digits[40], text[48];
    if (isnan(d)) return jwords("nan");
    if (isinf(d)) return jwords(d > 0 ? "inf" : "-inf");
    int precision = 0;
    do snprintf(digits, sizeof digits, "%.*e", precision, d);
    while (strtod(digits, NULL) != d && ++precision < 17);
    const int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= 16 || exponent < -4) snprintf(text, sizeof text, "%s", digits);
    else snprintf(text, sizeof text, "%.*f", precision > exponent + 1 ? precision - exponent : 1, d);
    jbuilder b = {0};
    jput_c(w, &b, text);
    return jbuilt(&b);
}

static bool printable(int32_t c) {
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

static void repr_text(jworld *w, jbuilder *b, jtext t) {
    const bool twice = memchr(t.s, '\'', t.n) && !memchr(t.s, '"', t.n);
    const char quote[2] = {twice ? '"' : '\'', '\0'};
    jput_c(w, b, quote);
    for (size_t at = 0, n; at < t.n && !w->status; at += n) {
        n = jchar_bytes(t, at);
        const int32_t c = utf8_decode((const uint8_t *)t.s + at, (int)n);
        char escape[12] = "";
        if (c == quote[0] || c == '\\') snprintf(escape, sizeof escape, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!printable(c))
            snprintf(escape, sizeof escape, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        if (escape[0]) jput_c(w, b, escape);
        else jput(w, b, jpart(t, at, at + n));
    }
    jput_c(w, b, quote);
}

static void repr(jworld *w, jbuilder *b, jvalue v);

static void repr_seq(jworld *w, jbuilder *b, const jseq *seq, const char *open, const char *close) {
    jput_c(w, b, open);
    for (size_t i = 0; i < seq->n && !w->status; i++) {
        if (i) jput_c(w, b, ", ");
        repr(w, b, seq->v[i]);
    }
    if (open[0] == '(' && seq->n == 1) jput_c(w, b, ",");
    jput_c(w, b, close);
}

static void repr_dict(jworld *w, jbuilder *b, const jdict *d) {
    jput_c(w, b, "{");
    for (size_t i = 0; i < d->n && !w->status; i++) {
        if (i) jput_c(w, b, ", ");
        repr(w, b, d->key[i]);
        jput_c(w, b, ": ");
        repr(w, b, d->value[i]);
    }
    jput_c(w, b, "}");
}

static void repr(jworld *w, jbuilder *b, jvalue v) {
    if (jspend(w, 0) && jenter(w)) {
        if (v.kind == J_TEXT) repr_text(w, b, v.as.text);
        else if (v.kind == J_LIST) repr_seq(w, b, v.as.seq, "[", "]");
        else if (v.kind == J_TUPLE) repr_seq(w, b, v.as.seq, "(", ")");
        else if (v.kind == J_DICT) repr_dict(w, b, v.as.dict);
        else if (v.kind == J_UNDEFINED) jput_c(w, b, "Undefined");
        else jput(w, b, jto_text(w, v));
    }
    w->depth--;
}

jtext jto_text(jworld *w, jvalue v) {
    char number[24];
    jbuilder b = {0};
    if (v.kind == J_TEXT) return v.as.text;
    if (v.kind == J_UNDEFINED || v.kind == J_ABSENT) return jwords("");
    if (v.kind == J_NONE) return jwords("None");
    if (v.kind == J_BOOL) return jwords(v.as.yes ? "True" : "False");
    if (v.kind == J_REAL) return jrepr_real(w, v.as.real);
    if (v.kind == J_INT) snprintf(number, sizeof number, "%lld", (long long)v.as.i), jput_c(w, &b, number);
    else if (v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_DICT) repr(w, &b, v);
    else jfail(w, EBB_UNSUPPORTED, "a %s as text is beyond what is served", jkind_name(v));
    return jbuilt(&b);
}

/* ---- going through ---- */

static void add_chars(jworld *w, jseq *seq, jtext t) {
    for (size_t at = 0, n; at < t.n && jspend(w, 0); at += n) {
        n = jchar_bytes(t, at);
        jseq_add(w, seq, jof_text(jpart(t, at, at + n)));
    }
}

jseq *jiterate(jworld *w, jvalue v) {
    if (w->status) return NULL;
    if (jis_seq(v) && v.kind != J_ITERATOR) return v.as.seq;
    const jvalue made = jnew_seq(w, J_LIST);
    if (w->status) return NULL;
    jseq *seq = made.as.seq;
    if (v.kind == J_ITERATOR) {
        *seq = *v.as.seq;
        *v.as.seq = (jseq){0};
    } else if (v.kind == J_TEXT) add_chars(w, seq, v.as.text);
    else if (v.kind == J_DICT)
        for (size_t i = 0; i < v.as.dict->n; i++) jseq_add(w, seq, v.as.dict->key[i]);
    else if (v.kind != J_UNDEFINED) jfail(w, EBB_BAD_FILE, "'%s' object is not iterable", jkind_name(v));
    return w->status ? NULL : seq;
}
