/* model/pattern.c: the regular expressions of tokenizer files, for PCRE2. They are written for Oniguruma (Ruby's
 * syntax), which reads a few things differently. What is the same goes through; \s is spelled out, since PCRE2 counts
 * U+180E as a space and Unicode does not; so are scripts, by which PCRE2 means every character that is used in them
 * too; [A&&[^B]] becomes one class. What would silently match other text is refused by name. Called by
 * tokenizer.c and tiktoken.c. */
#include "model/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACES "\\t-\\r\\x{20}\\x{85}\\p{Z}" /* Unicode's White_Space, inside a class */

typedef struct translation {
    const char *pattern, *where;
    size_t at; /* in pattern */
    char *out;
    size_t n, room;
    ebb_error *error;
} translation;

static ebb_status refuse(const translation *t, const char *what) {
    return ebb_fail(t->error, EBB_UNSUPPORTED, "%s: the pattern uses %s at offset %zu, which is not supported",
                    t->where, what, t->at);
}

static ebb_status put(translation *t, const char *text, size_t n) {
    if (t->n + n + 1 > t->room) {
        size_t room = (t->n + n + 1) * 2;
        char *out = realloc(t->out, room);
        if (!out) return ebb_fail(t->error, EBB_NO_MEMORY, "%s: no memory for the pattern", t->where);
        t->out = out, t->room = room;
    }
    memcpy(t->out + t->n, text, n);
    t->n += n;
    t->out[t->n] = 0;
    return EBB_OK;
}

static ebb_status put_rest(translation *t, size_t n) {
    ebb_status status = put(t, t->pattern + t->at, n);
    t->at += n;
    return status;
}

/* Whether `name`, of n bytes, is a script: \p{sc:name} is what Oniguruma means by \p{name} then. PCRE2 before 10.40
 * does not know sc: and means the same by \p{name}. */
static ebb_status find_script(const translation *t, const char *name, size_t n, bool *script) {
    char text[48];
    int number;
    PCRE2_SIZE offset;
    *script = false;
    if (n > 32) return EBB_OK;
    snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)n, name);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &number, &offset, NULL);
    if (!code && number == PCRE2_ERROR_HEAP_FAILED)
        return ebb_fail(t->error, EBB_NO_MEMORY, "%s: no memory for the pattern", t->where);
    *script = code != NULL;
    pcre2_code_free(code);
    return EBB_OK;
}

/* \p{...} or \P{...}, which ends at `end`. */
static ebb_status put_property(translation *t, const char *end) {
    const char *s = t->pattern + t->at;
    const size_t begin = s[3] == '^' ? 4 : 3, n = (size_t)(end - s) - begin;
    bool script;
    ebb_status status = find_script(t, s + begin, n, &script);
    if (!status) status = put_rest(t, begin);
    if (!status && script) status = put(t, "sc:", 3);
    return status ? status : put_rest(t, n + 1);
}

/* An escape, with its {...} where it has one, so that the closing brace is not taken for the end of a repetition. */
static ebb_status put_escape(translation *t, bool in_class) {
    const char *s = t->pattern + t->at;
    char c = s[1];
    if (!c) return refuse(t, "a backslash with nothing after it");
    if (c == 's' || (c == 'S' && !in_class)) {
        t->at += 2;
        if (c == 's' && in_class) return put(t, SPACES, strlen(SPACES));
        return c == 's' ? put(t, "[" SPACES "]", strlen(SPACES) + 2) : put(t, "[^" SPACES "]", strlen(SPACES) + 3);
    }
    if (c == 'S') return refuse(t, "the escape \\S inside a class");
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter && !strchr("pPdDrntfeaxAz", c)) {
        char what[] = "the escape \\?";
        what[sizeof what - 2] = c;
        return refuse(t, what);
    }
    if ((c == 'p' || c == 'P' || c == 'x') && s[2] == '{') {
        const char *end = strchr(s, '}');
        if (!end) return refuse(t, "an escape with an open brace");
        return c == 'x' ? put_rest(t, (size_t)(end - s) + 1) : put_property(t, end);
    }
    return put_rest(t, 2);
}

/* The members of a bracket class up to its ]. */
static ebb_status put_members(translation *t) {
    const char *s = t->pattern;
    ebb_status status = EBB_OK;
    while (!status && s[t->at] != ']') {
        if (!s[t->at]) return refuse(t, "a class without its ]");
        if (s[t->at] == '[') return refuse(t, "a class inside a class");
        if (s[t->at] == '&' && s[t->at + 1] == '&')
            return refuse(t, "an intersection of classes other than [...&&[^...]]");
        status = s[t->at] == '\\' ? put_escape(t, true) : put_rest(t, 1);
    }
    return status;
}

static ebb_status put_simple_class(translation *t) {
    const char *s = t->pattern;
    ebb_status status = put_rest(t, s[t->at + 1] == '^' ? 2 : 1);
    if (!status && s[t->at] == ']') return refuse(t, "a class that is empty or begins with ]");
    if (!status) status = put_members(t);
    return status ? status : put_rest(t, 1);
}

/* Where &&[^ stands in the class that begins at `at`; NULL: it has none. */
static const char *find_except(const char *at) {
    if (at[1] == '^') return NULL;
    for (at++; *at && *at != ']' && *at != '['; at++) {
        if (!strncmp(at, "&&[^", 4)) return at;
        if (*at == '\\' && at[1]) at++;
    }
    return NULL;
}

/* Write the general categories that are not among those of `at`, which end at `end`. */
static ebb_status put_other_categories(translation *t, const char *at, const char *end) {
    static const char all[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
    bool among[sizeof all / 2] = {false};
    for (const char *next; at < end; at = next + 1) {
        next = memchr(at, '}', (size_t)(end - at));
        const size_t n = next && !strncmp(at, "\\p{", 3) ? (size_t)(next - at) - 3 : 0;
        bool known = false;
        for (size_t c = 0; c < COUNT(among) && (n == 1 || n == 2); c++)
            if (!memcmp(all + 2 * c, at + 3, n)) known = among[c] = true;
        if (!known) return refuse(t, "an intersection of something else than general categories, [\\p{..}&&[^...]]");
    }
    ebb_status status = EBB_OK;
    for (size_t c = 0; c < COUNT(among) && !status; c++) {
        const char category[] = {'\\', 'p', '{', all[2 * c], all[2 * c + 1], '}'};
        if (!among[c]) status = put(t, category, sizeof category);
    }
    return status;
}

/* A bracket class. Those of PCRE2 do not nest: [A&&[^B]] becomes what is in no other category than A and not in B. (A
 * lookahead before A would do for short words: it costs stack for every character of a run.) */
static ebb_status put_class(translation *t) {
    const char *begin = t->pattern + t->at, *except = find_except(begin);
    if (!except) return put_simple_class(t);
    if (except == begin + 1 || except[4] == ']') return refuse(t, "an intersection with nothing before or behind it");
    ebb_status status = put(t, "[^", 2);
    if (!status) status = put_other_categories(t, begin + 1, except);
    t->at = (size_t)(except - t->pattern) + 4;
    if (!status) status = put_members(t);
    if (!status && t->pattern[t->at + 1] != ']') return refuse(t, "more than one intersection in a class");
    t->at += 2;
    return status ? status : put(t, "]", 1);
}

static ebb_status put_group(translation *t) {
    static const char *const known[] = {"(?i:", "(?:", "(?!", "(?=", "(?>", "(?<=", "(?<!"};
    const char *s = t->pattern + t->at;
    if (s[1] == '*') return refuse(t, "(*");
    if (s[1] != '?') return put_rest(t, 1);
    for (int i = 0; i < COUNT(known); i++)
        if (!strncmp(s, known[i], strlen(known[i]))) return put_rest(t, strlen(known[i]));
    return refuse(t, "a kind of group other than (?i: (?: (?! (?= (?> (?<= (?<!");
}

/* {n}, {n,}, {n,m}: alike. Ruby takes {,m} for a repetition, and a + after any of them for another one. */
static ebb_status put_repetition(translation *t) {
    const char *s = t->pattern + t->at;
    size_t digits = strspn(s + 1, "0123456789,");
    if (digits == 0 || s[1 + digits] != '}') return put_rest(t, 1);
    if (s[1] == ',') return refuse(t, "{,");
    if (s[2 + digits] == '+') return refuse(t, "{...}+");
    return put_rest(t, digits + 2);
}

static ebb_status translate(translation *t) {
    ebb_status status = put(t, "", 0);
    while (!status && t->pattern[t->at]) {
        char c = t->pattern[t->at];
        if (c == '\\') status = put_escape(t, false);
        else if (c == '[') status = put_class(t);
        else if (c == '(') status = put_group(t);
        else if (c == '{') status = put_repetition(t);
        else status = put_rest(t, 1);
    }
    return status;
}

static ebb_status compile(const translation *t, pcre2_code **code) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return ebb_fail(t->error, EBB_NO_MEMORY, "%s: no memory for the pattern", t->where);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int number;
    PCRE2_SIZE offset;
    /* Multi-line: ^ and $ are about lines in Ruby. */
    *code = pcre2_compile((PCRE2_SPTR)t->out, t->n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                          &number, &offset, context);
    pcre2_compile_context_free(context);
    if (!*code && number == PCRE2_ERROR_HEAP_FAILED)
        return ebb_fail(t->error, EBB_NO_MEMORY, "%s: no memory for the pattern", t->where);
    if (!*code) {
        PCRE2_UCHAR reason[120];
        pcre2_get_error_message(number, reason, sizeof reason);
        return ebb_fail(t->error, EBB_UNSUPPORTED, "%s: PCRE2 rejects the pattern: %s (offset %zu of its translation)",
                        t->where, (const char *)reason, (size_t)offset);
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* without it PCRE2 interprets: slower, the same matches */
    return EBB_OK;
}

ebb_status pattern_compile(const char *pattern, const char *where, pcre2_code **code, ebb_error *error) {
    translation t = {.pattern = pattern, .where = where, .error = error};
    *code = NULL;
    if (strlen(pattern) > 65535)
        return ebb_fail(error, EBB_UNSUPPORTED, "%s: the pattern has %zu bytes, at most 65535 are supported", where,
                        strlen(pattern));
    ebb_status status = translate(&t);
    if (!status) status = compile(&t, code);
    free(t.out);
    return status;
}
