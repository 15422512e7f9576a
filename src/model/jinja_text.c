/* model/jinja_text.c: what templates do with texts: filters and the methods of Python's str. Lengths and places count
 * characters, as in Python. See jinja_int.h. */
#define _GNU_SOURCE
#include "model/jinja_int.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- characters ---- */

size_t jchar_bytes(jtext t, size_t at) {
    const uint8_t c = (uint8_t)t.s[at];
    const size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    return n < t.n - at ? n : t.n - at;
}

size_t jcount(jtext t) {
    size_t n = 0;
    for (size_t i = 0; i < t.n; i++) n += ((uint8_t)t.s[i] & 0xc0) != 0x80;
    return n;
}

size_t jchar_at(jtext t, size_t from, size_t n) {
    for (; n > 0 && from < t.n; n--) from += jchar_bytes(t, from);
    return from;
}

static int32_t code_at(jtext t, size_t at) { return utf8_decode((const uint8_t *)t.s + at, (int)jchar_bytes(t, at)); }

/* What Python's str.strip takes for a blank. */
static bool blank(int32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool in_set(jtext t, size_t at, const jtext *set) {
    const size_t n = jchar_bytes(t, at);
    if (!set) return blank(code_at(t, at));
    for (size_t i = 0; i < set->n; i += jchar_bytes(*set, i))
        if (jchar_bytes(*set, i) == n && !memcmp(set->s + i, t.s + at, n)) return true;
    return false;
}

jtext jstrip(jtext t, const jtext *set, bool left, bool right) {
    size_t from = 0, to = t.n;
    while (left && from < to && in_set(t, from, set)) from += jchar_bytes(t, from);
    while (right && to > from) {
        size_t at = to - 1;
        while (at > from && ((uint8_t)t.s[at] & 0xc0) == 0x80) at--;
        if (!in_set(t, at, set)) break;
        to = at;
    }
    return jpart(t, from, to);
}

bool jfind(jworld *w, jtext t, jtext what, size_t from, size_t *at) {
    if (from > t.n || !jspend(w, 0)) return false;
    const char *found = what.n ? memmem(t.s + from, t.n - from, what.s, what.n) : t.s + from;
    *at = found ? (size_t)(found - t.s) : t.n;
    jspend(w, *at - from);
    return found != NULL;
}

/* ---- case ---- */

typedef enum letter_case { LOWER, UPPER } letter_case;

/* One character in another case. utf8proc has the simple mappings of Unicode; of the others only the sharp s. */
static void put_case(jworld *w, jbuilder *b, jtext t, size_t at, letter_case to) {
    const jtext one = jpart(t, at, at + jchar_bytes(t, at));
    const int32_t c = code_at(t, at), other = to == UPPER ? utf8proc_toupper(c) : utf8proc_tolower(c);
    uint8_t made[4];
    static const uint8_t marks[4] = {1, 1, 1, 1};
    const uint8_t *mark = one.mark && one.mark[0] ? marks : NULL;
    if (c == 0xdf && to == UPPER) jput(w, b, (jtext){"SS", mark, 2});
    else if (other == c) jput(w, b, one);
    else {
        const utf8proc_ssize_t n = utf8proc_encode_char(other, made);
        jput(w, b, (jtext){(const char *)made, mark, (size_t)n});
    }
}

/* Is the character one that begins a word for the filter `title`, or for the method? */
static bool breaks_word(jtext t, size_t at, bool method) {
    const int32_t c = code_at(t, at);
    if (method) return utf8proc_toupper(c) == c && utf8proc_tolower(c) == c;
    return blank(c) || (c < 0x80 && strchr("-({[<", c));
}

typedef enum casing { ALL_LOWER, ALL_UPPER, CAPITAL, TITLE_FILTER, TITLE_METHOD } casing;

static jvalue recase(jworld *w, jtext t, casing how) {
    jbuilder b = {0};
    bool first = true;
    if (!jspend(w, 16 * t.n)) return jof_text(t);
    for (size_t at = 0; at < t.n && !w->status; at += jchar_bytes(t, at)) {
        put_case(w, &b, t, at, how == ALL_UPPER || (how != ALL_LOWER && first) ? UPPER : LOWER);
        first = how >= TITLE_FILTER && breaks_word(t, at, how == TITLE_METHOD);
    }
    return jof_text(jbuilt(&b));
}

/* ---- parts ---- */

static jtext replaced(jworld *w, jtext t, jtext old, jtext new, int64_t most) {
    jbuilder b = {0};
    size_t from = 0, at;
    for (int64_t i = 0; (most < 0 || i < most) && from <= t.n && jfind(w, t, old, from, &at); i++) {
        if (!old.n && i) {
            if (from == t.n) break;
            at = from + jchar_bytes(t, from); /* an empty text stands before every character, and at the end */
        }
        jput(w, &b, jpart(t, from, at));
        jput(w, &b, new);
        from = at + old.n;
    }
    if (from < t.n) jput(w, &b, jpart(t, from, t.n));
    return jbuilt(&b);
}

static jvalue split_blanks(jworld *w, jtext t, int64_t most) {
    jvalue made = jnew_seq(w, J_LIST);
    t = jstrip(t, NULL, true, false);
    for (int64_t i = 0; t.n && jspend(w, 0); i++) {
        size_t end = 0;
        while (end < t.n && !blank(code_at(t, end))) end += jchar_bytes(t, end);
        if (most >= 0 && i == most) end = t.n;
        jseq_add(w, made.as.seq, jof_text(jpart(t, 0, end)));
        t = jstrip(jpart(t, end, t.n), NULL, true, false);
    }
    return made;
}

static jvalue split(jworld *w, jvalue self, const jargs *args) {
    const jtext t = self.as.text;
    const int64_t most = jint_arg(w, args->v[1], -1);
    size_t from = 0, at;
    if (args->v[0].kind == J_ABSENT || args->v[0].kind == J_NONE) return split_blanks(w, t, most);
    const jtext by = jtext_arg(w, args->v[0], "");
    if (!by.n) return jfail(w, EBB_BAD_FILE, "split by an empty text");
    jvalue made = jnew_seq(w, J_LIST);
    for (int64_t i = 0; (most < 0 || i < most) && jfind(w, t, by, from, &at); i++) {
        jseq_add(w, made.as.seq, jof_text(jpart(t, from, at)));
        from = at + by.n;
    }
    jseq_add(w, made.as.seq, jof_text(jpart(t, from, t.n)));
    return made;
}

static jvalue rsplit(jworld *w, jvalue self, const jargs *args) {
    jtext t = self.as.text;
    const int64_t most = jint_arg(w, args->v[1], -1);
    const jargs plain = {.v = (jvalue[]){args->v[0], {.kind = J_ABSENT}}, .n = 2};
    if (most < 0) return split(w, self, &plain);
    const jtext by = jtext_arg(w, args->v[0], "");
    if (!by.n) return jfail(w, EBB_UNSUPPORTED, "rsplit at blanks is beyond what is served");
    jvalue reversed = jnew_seq(w, J_LIST), made = jnew_seq(w, J_LIST);
    for (size_t at = t.n; (int64_t)reversed.as.seq->n < most && at >= by.n && jspend(w, 0); at--) {
        if (memcmp(t.s + at - by.n, by.s, by.n) != 0) continue;
        jseq_add(w, reversed.as.seq, jof_text(jpart(t, at, t.n)));
        t = jpart(t, 0, at - by.n);
        at = t.n + 1;
    }
    jseq_add(w, made.as.seq, jof_text(t));
    for (size_t i = reversed.as.seq->n; !w->status && i > 0; i--) jseq_add(w, made.as.seq, reversed.as.seq->v[i - 1]);
    return made;
}

/* The line that begins at `from`: where its end is, and where the next one begins. */
static size_t line_end(jtext t, size_t from, size_t *next) {
    for (size_t at = from; at < t.n; at += jchar_bytes(t, at)) {
        const int32_t c = code_at(t, at);
        if (!((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029)) continue;
        *next = at + jchar_bytes(t, at);
        if (c == '\r' && *next < t.n && t.s[*next] == '\n') ++*next;
        return at;
    }
    return *next = t.n;
}

static jvalue splitlines(jworld *w, jvalue self, const jargs *args) {
    const jtext t = self.as.text;
    jvalue made = jnew_seq(w, J_LIST);
    for (size_t from = 0, next; from < t.n && jspend(w, 0); from = next) {
        const size_t end = line_end(t, from, &next);
        jseq_add(w, made.as.seq, jof_text(jpart(t, from, jtruth(args->v[0]) ? next : end)));
    }
    return made;
}

static jvalue strip_by(jworld *w, jtext t, jvalue chars, bool left, bool right) {
    if (!jspend(w, t.n)) return jof_text(t);
    if (chars.kind == J_ABSENT || chars.kind == J_NONE) return jof_text(jstrip(t, NULL, left, right));
    const jtext set = jtext_arg(w, chars, "");
    return jof_text(jstrip(t, &set, left, right));
}

static jvalue strip(jworld *w, jvalue v, const jargs *args) { return strip_by(w, v.as.text, args->v[0], true, true); }
static jvalue lstrip(jworld *w, jvalue v, const jargs *args) { return strip_by(w, v.as.text, args->v[0], true, false); }
static jvalue rstrip(jworld *w, jvalue v, const jargs *args) { return strip_by(w, v.as.text, args->v[0], false, true); }

static bool at_end(jtext t, jtext part, bool end) {
    return part.n <= t.n && (!part.n || !memcmp(t.s + (end ? t.n - part.n : 0), part.s, part.n));
}

static jvalue has_end(jworld *w, jvalue self, const jargs *args, bool end) {
    const jvalue parts = args->v[0];
    bool found = false;
    if (parts.kind != J_TUPLE) return jof_bool(at_end(self.as.text, jtext_arg(w, parts, ""), end));
    for (size_t i = 0; i < parts.as.seq->n && !found; i++)
        found = at_end(self.as.text, jtext_arg(w, parts.as.seq->v[i], ""), end);
    return jof_bool(found);
}

static jvalue startswith(jworld *w, jvalue v, const jargs *args) { return has_end(w, v, args, false); }
static jvalue endswith(jworld *w, jvalue v, const jargs *args) { return has_end(w, v, args, true); }

static jvalue removeprefix(jworld *w, jvalue v, const jargs *args) {
    const jtext t = v.as.text, part = jtext_arg(w, args->v[0], "");
    return jof_text(at_end(t, part, false) ? jpart(t, part.n, t.n) : t);
}

static jvalue removesuffix(jworld *w, jvalue v, const jargs *args) {
    const jtext t = v.as.text, part = jtext_arg(w, args->v[0], "");
    return jof_text(at_end(t, part, true) ? jpart(t, 0, t.n - part.n) : t);
}

static jvalue find(jworld *w, jvalue v, const jargs *args) {
    size_t at;
    const jtext what = jtext_arg(w, args->v[0], "");
    const int64_t start = jint_arg(w, args->v[1], 0);
    if (start < 0) return jfail(w, EBB_UNSUPPORTED, "find from a negative place is beyond what is served");
    const size_t from = jchar_at(v.as.text, 0, (size_t)start);
    if ((size_t)start > jcount(v.as.text) || !jfind(w, v.as.text, what, from, &at)) return jof_int(-1);
    return jof_int((int64_t)jcount(jpart(v.as.text, 0, at)));
}

static jvalue rfind(jworld *w, jvalue v, const jargs *args) {
    const jtext t = v.as.text, what = jtext_arg(w, args->v[0], "");
    for (size_t at = t.n + 1; !w->status && at-- > 0 && jspend(w, 0);)
        if (at + what.n <= t.n && (!what.n || !memcmp(t.s + at, what.s, what.n)))
            return jof_int((int64_t)jcount(jpart(t, 0, at)));
    return jof_int(-1);
}

static jvalue count(jworld *w, jvalue v, const jargs *args) {
    const jtext what = jtext_arg(w, args->v[0], "");
    int64_t n = 0;
    if (!what.n) return jof_int((int64_t)jcount(v.as.text) + 1);
    for (size_t from = 0, at; jfind(w, v.as.text, what, from, &at); n++) from = at + what.n;
    return jof_int(n);
}

static jvalue replace_method(jworld *w, jvalue v, const jargs *args) {
    const jtext old = jtext_arg(w, args->v[0], ""), new = jtext_arg(w, args->v[1], "");
    return jof_text(replaced(w, v.as.text, old, new, jint_arg(w, args->v[2], -1)));
}

static jvalue join_method(jworld *w, jvalue v, const jargs *args) {
    jbuilder b = {0};
    const jseq *seq = jiterate(w, args->v[0]);
    for (size_t i = 0; seq && i < seq->n && jspend(w, v.as.text.n); i++) {
        if (i) jput(w, &b, v.as.text);
        jput(w, &b, jtext_arg(w, seq->v[i], ""));
    }
    return jof_text(jbuilt(&b));
}

static jvalue upper(jworld *w, jvalue v, const jargs *args) { return (void)args, recase(w, jto_text(w, v), ALL_UPPER); }
static jvalue lower(jworld *w, jvalue v, const jargs *args) { return (void)args, recase(w, jto_text(w, v), ALL_LOWER); }
static jvalue capital(jworld *w, jvalue v, const jargs *args) { return (void)args, recase(w, jto_text(w, v), CAPITAL); }
static jvalue title(jworld *w, jvalue v, const jargs *args) {
    return (void)args, recase(w, jto_text(w, v), TITLE_FILTER);
}
static jvalue title_method(jworld *w, jvalue v, const jargs *args) {
    return (void)args, recase(w, v.as.text, TITLE_METHOD);
}

const jrow jtext_methods[] = {{"startswith", "prefix", 1, startswith},
                              {"endswith", "suffix", 1, endswith},
                              {"removeprefix", "prefix", 1, removeprefix},
                              {"removesuffix", "suffix", 1, removesuffix},
                              {"split", "sep maxsplit", 0, split},
                              {"rsplit", "sep maxsplit", 0, rsplit},
                              {"splitlines", "keepends", 0, splitlines},
                              {"strip", "chars", 0, strip},
                              {"lstrip", "chars", 0, lstrip},
                              {"rstrip", "chars", 0, rstrip},
                              {"find", "sub start", 1, find},
                              {"rfind", "sub", 1, rfind},
                              {"count", "sub", 1, count},
                              {"replace", "old new count", 2, replace_method},
                              {"join", "iterable", 1, join_method},
                              {"upper", "", 0, upper},
                              {"lower", "", 0, lower},
                              {"title", "", 0, title_method},
                              {"capitalize", "", 0, capital},
                              {0}};

/* ---- filters ---- */

static jvalue trim_filter(jworld *w, jvalue v, const jargs *args) {
    return strip_by(w, jto_text(w, v), args->v[0], true, true);
}

static jvalue replace_filter(jworld *w, jvalue v, const jargs *args) {
    const jtext t = jto_text(w, v), old = jto_text(w, args->v[0]), new = jto_text(w, args->v[1]);
    return jof_text(replaced(w, t, old, new, jint_arg(w, args->v[2], -1)));
}

static jvalue string_filter(jworld *w, jvalue v, const jargs *args) { return (void)args, jof_text(jto_text(w, v)); }

/* Lines but the first get blanks in front, empty ones only with `blank`. */
static jvalue indent_filter(jworld *w, jvalue v, const jargs *args) {
    const bool first = jtruth(args->v[1]), blanks = jtruth(args->v[2]);
    const jtext t = jtext_arg(w, v, "");
    jbuilder b = {0}, spaces = {0};
    if (args->v[0].kind == J_TEXT) jput(w, &spaces, args->v[0].as.text);
    else
        for (int64_t i = jint_arg(w, args->v[0], 4); i > 0 && jspend(w, 0); i--) jput_c(w, &spaces, " ");
    size_t from = 0, next = 0;
    for (bool more = true, begin = true; more && jspend(w, 0); from = next, begin = false) {
        const size_t end = line_end(t, from, &next);
        more = end < t.n && next <= t.n;
        if (!begin) jput_c(w, &b, "\n");
        if (begin ? first : blanks || end > from) jput(w, &b, jbuilt(&spaces));
        jput(w, &b, jpart(t, from, end));
    }
    return jof_text(jbuilt(&b));
}

/* The number that the text is, as Python's int and float read it; false: it is none. Underscores are left out. */
static bool read_number(jworld *w, jtext t, int base, bool real, jvalue *v) {
    char text[80], *end;
    t = jstrip(t, NULL, true, true);
    if (!t.n || t.n >= sizeof text || memchr(t.s, '_', t.n)) return false;
    memcpy(text, t.s, t.n);
    text[t.n] = '\0';
    errno = 0;
    if (real) *v = jof_real(strtod(text, &end));
    else *v = jof_int(strtoll(text, &end, base));
    const bool out_of_range = !real && errno;
    if (out_of_range) jfail(w, EBB_BAD_FILE, "a whole number that does not fit 64 bits");
    return !*end && end != text && !strpbrk(text, real ? "xXpP(" : " ");
}

static jvalue int_filter(jworld *w, jvalue v, const jargs *args) {
    const jvalue otherwise = args->v[0].kind == J_ABSENT ? jof_int(0) : args->v[0];
    const int64_t base = jint_arg(w, args->v[1], 10);
    jvalue number = v;
    if (base != 10 && base != 16 && base != 8 && base != 2)
        return jfail(w, EBB_UNSUPPORTED, "the filter int with this base is beyond what is served");
    if (v.kind == J_TEXT && read_number(w, v.as.text, (int)base, false, &number)) return number;
    if (v.kind == J_TEXT && !read_number(w, v.as.text, 10, true, &number)) return otherwise;
    if (number.kind == J_BOOL) return jof_int(number.as.yes);
    if (number.kind == J_INT) return number;
    if (number.kind != J_REAL) return otherwise;
    if (isnan(number.as.real) || isinf(number.as.real)) return otherwise;
    if (fabs(number.as.real) >= 9.2e18) return jfail(w, EBB_BAD_FILE, "a whole number that does not fit 64 bits");
    return jof_int((int64_t)number.as.real);
}

static jvalue float_filter(jworld *w, jvalue v, const jargs *args) {
    const jvalue otherwise = args->v[0].kind == J_ABSENT ? jof_real(0) : args->v[0];
    jvalue number;
    if (jnumber(v)) return jof_real(jto_real(v));
    return v.kind == J_TEXT && read_number(w, v.as.text, 10, true, &number) ? number : otherwise;
}

static jvalue safe_filter(jworld *w, jvalue v, const jargs *args) { return string_filter(w, v, args); }

const jrow jtext_filters[] = {{"trim", "chars", 0, trim_filter},
                              {"upper", "", 0, upper},
                              {"lower", "", 0, lower},
                              {"title", "", 0, title},
                              {"capitalize", "", 0, capital},
                              {"replace", "old new count", 2, replace_filter},
                              {"string", "", 0, string_filter},
                              {"safe", "", 0, safe_filter},
                              {"indent", "width first blank", 0, indent_filter},
                              {"int", "default base", 0, int_filter},
                              {"float", "default", 0, float_filter},
                              {0}};
