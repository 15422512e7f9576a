/* model/pretokenize.c: ebb_tokenize: the way of a text through the tokenizer. Added tokens are matched in the raw text;
 * what is between them is normalized, searched for the added tokens that want normalized text, split into words by the
 * file's patterns, and merged word by word (bpe.c). Each step sees one stretch of text only, as in the library that
 * wrote the file: no look-ahead and no normalization reaches across an added token. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* Backtracking a text of n bytes may need: enough for one pass back over a run as long as the text. */
#define MATCH_LIMIT(n) (10000000 + 4 * (uint32_t)((n) < (1 << 28) ? (n) : (1 << 28)))
#define HEAP_LIMIT_KIB (256 << 10)
#define JIT_STACK_BYTES (1 << 20)

typedef struct passage {
    const ebb_tokenizer *t;
    bool special;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    bpe_work work;
    id_list out;
    ebb_error *error;
} passage;

static ebb_status no_memory(const passage *p) {
    return ebb_fail(p->error, EBB_NO_MEMORY, "no memory to tokenize the text");
}

/* ---- words ---- */

static ebb_status split(passage *p, int32_t level, const uint8_t *text, size_t n);

static ebb_status match_failed(const passage *p, int code, size_t at) {
    PCRE2_UCHAR reason[120];
    pcre2_get_error_message(code, reason, sizeof reason);
    if (code == PCRE2_ERROR_NOMEMORY) return no_memory(p);
    return ebb_fail(p->error, EBB_UNSUPPORTED,
                    "the tokenizer's pattern cannot split this text: %s, %zu bytes into a stretch of it",
                    (const char *)reason, at);
}

/* Cut `text` by pattern `level` and hand the pieces, matches and what is between them alike, to the next level. */
static ebb_status split_by(passage *p, int32_t level, const uint8_t *text, size_t n) {
    const PCRE2_SIZE *match = pcre2_get_ovector_pointer(p->match);
    size_t done = 0, from = 0; /* text before `done` is handed on, the next search begins at `from` */
    ebb_status status = EBB_OK;
    while (from < n) {
        int found = pcre2_match(p->t->splits[level], text, n, from, PCRE2_NO_UTF_CHECK, p->match, p->limits);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) return match_failed(p, found, from);
        size_t begin = match[0], end = match[1];
        if (begin > done) status = split(p, level + 1, text + done, begin - done);
        if (!status && end > begin) status = split(p, level + 1, text + begin, end - begin);
        if (status) return status;
        done = end;
        from = end > begin ? end : end < n ? end + (size_t)utf8_length(text + end, n - end) : n;
    }
    return done < n ? split(p, level + 1, text + done, n - done) : EBB_OK;
}

static ebb_status split(passage *p, int32_t level, const uint8_t *text, size_t n) {
    if (level < p->t->n_splits) return split_by(p, level, text, n);
    return bpe_encode(p->t, text, n, &p->work, &p->out) ? no_memory(p) : EBB_OK;
}

/* ---- added tokens ---- */

/* The longest token of the set that `text` begins with, or NULL; a special one has no marked byte. The tokens that
 * share the first `depth` bytes are neighbours in the sorted set, [lo, hi), the one that ends there first. */
static const added_token *added_at(const added_set *set, const uint8_t *text, const uint8_t *mark, size_t n,
                                   bool special) {
    const added_token *longest = NULL;
    int32_t lo = 0, hi = set->n;
    for (size_t depth = 0; depth < n && lo < hi; depth++) {
        int32_t a = lo, b = hi;
        special = special && !(mark && mark[depth]);
        while (a < b) { /* the first token whose next byte is not below the text's */
            int32_t mid = a + (b - a) / 2;
            if ((uint8_t)set->tokens[mid].text[depth] < text[depth]) a = mid + 1;
            else b = mid;
        }
        lo = a, b = hi;
        while (a < b) { /* the first one above it */
            int32_t mid = a + (b - a) / 2;
            if ((uint8_t)set->tokens[mid].text[depth] <= text[depth]) a = mid + 1;
            else b = mid;
        }
        hi = a;
        if (lo < hi && set->tokens[lo].n == depth + 1) {
            if (special || !set->tokens[lo].special) longest = &set->tokens[lo];
            lo++; /* it has no byte at the next depth */
        }
    }
    return longest;
}

static bool is_space(int32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static size_t skip_spaces(const uint8_t *text, size_t at, size_t n) {
    while (at < n) {
        int length = utf8_length(text + at, n - at);
        if (!is_space(utf8_decode(text + at, length))) break;
        at += (size_t)length;
    }
    return at;
}

/* Where the spaces before `at` begin, not before `from`. */
static size_t skip_spaces_back(const uint8_t *text, size_t from, size_t at) {
    while (at > from) {
        size_t begin = at - 1;
        while ((text[begin] & 0xc0) == 0x80) begin--;
        if (!is_space(utf8_decode(text + begin, (int)(at - begin)))) break;
        at = begin;
    }
    return at;
}

/* Emit the added tokens of `set` in `text` and hand what is between them to `gap`. `mark` may be NULL: see
 * tokenize_marked. */
static ebb_status each_added(passage *p, const added_set *set, const uint8_t *text, const uint8_t *mark, size_t n,
                             ebb_status (*gap)(passage *, const uint8_t *, const uint8_t *, size_t)) {
    size_t done = 0;
    ebb_status status = EBB_OK;
    for (size_t i = 0; i < n && set->n;) {
        const added_token *found =
            set->first[text[i]] ? added_at(set, text + i, mark ? mark + i : NULL, n - i, p->special) : NULL;
        if (!found) {
            i++;
            continue;
        }
        size_t begin = found->lstrip ? skip_spaces_back(text, done, i) : i;
        i += found->n; /* tokens of spaces are still found among the spaces that rstrip takes, as in the library */
        if (begin > done) status = gap(p, text + done, mark ? mark + done : NULL, begin - done);
        if (status) return status;
        if (!id_push(&p->out, found->id)) return no_memory(p);
        done = found->rstrip ? skip_spaces(text, i, n) : i;
    }
    return done < n ? gap(p, text + done, mark ? mark + done : NULL, n - done) : EBB_OK;
}

static ebb_status words(passage *p, const uint8_t *text, const uint8_t *mark, size_t n) {
    (void)mark;
    return split(p, 0, text, n);
}

/* Marks do not follow a text into another form: there no special token is looked for. */
static ebb_status normalized(passage *p, const uint8_t *text, const uint8_t *mark, size_t n) {
    const bool special = p->special;
    uint8_t *form = NULL;
    size_t n_form = n;
    ebb_status status = p->t->nfc ? nfc(text, n, &form, &n_form, p->error) : EBB_OK;
    if (status) return status;
    if (n_form > INT32_MAX)
        status = ebb_fail(p->error, EBB_BAD_ARGUMENT, "the text has %zu bytes when normalized", n_form);
    else {
        p->special = special && !(form && mark);
        status = each_added(p, &p->t->normalized, form ? form : text, form ? NULL : mark, n_form, words);
        p->special = special;
    }
    free(form);
    return status;
}

/* ---- the public call ---- */

static ebb_status check_utf8(const uint8_t *text, size_t n, ebb_error *error) {
    for (size_t i = 0; i < n;) {
        if (text[i] < 0x80) {
            i++;
            continue;
        }
        int length = utf8_length(text + i, n - i);
        if (length <= 0)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "the text is not UTF-8: byte %zu is 0x%02x", i, text[i]);
        i += (size_t)length;
    }
    return EBB_OK;
}

static ebb_status passage_open(passage *p, size_t n) {
    p->match = pcre2_match_data_create(1, NULL);
    p->limits = pcre2_match_context_create(NULL);
    p->stack =
        pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL); /* NULL where there is no JIT: not needed then */
    if (!p->match || !p->limits) return no_memory(p);
    pcre2_set_match_limit(p->limits, MATCH_LIMIT(n));
    pcre2_set_heap_limit(p->limits, HEAP_LIMIT_KIB);
    if (p->stack) pcre2_jit_stack_assign(p->limits, NULL, p->stack);
    return EBB_OK;
}

static ebb_status tokenize(const ebb_tokenizer *tokenizer, const char *text, const uint8_t *mark, size_t bytes,
                           bool special, int32_t **ids, int64_t *count, ebb_error *error) {
    if (!tokenizer || (!text && bytes) || !ids || !count)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "ebb_tokenize needs a tokenizer, a text, and places for ids and their count");
    *ids = NULL;
    *count = 0;
    if (bytes > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the text has %zu bytes, at most %d can be tokenized at once", bytes,
                        INT32_MAX);
    const uint8_t *s = (const uint8_t *)(text ? text : "");
    passage p = {.t = tokenizer, .special = special, .error = error};
    ebb_status status = check_utf8(s, bytes, error);
    if (!status) status = passage_open(&p, bytes);
    if (!status) status = each_added(&p, &tokenizer->raw, s, mark, bytes, normalized);
    if (!status && !p.out.ids && !(p.out.ids = malloc(sizeof *p.out.ids))) status = no_memory(&p);
    if (!status) {
        *ids = p.out.ids, *count = p.out.n;
        p.out.ids = NULL;
    }
    free(p.out.ids);
    bpe_work_free(&p.work);
    pcre2_jit_stack_free(p.stack);
    pcre2_match_context_free(p.limits);
    pcre2_match_data_free(p.match);
    return status;
}

ebb_status ebb_tokenize(const ebb_tokenizer *tokenizer, const char *text, size_t bytes, bool special, int32_t **ids,
                        int64_t *count, ebb_error *error) {
    return tokenize(tokenizer, text, NULL, bytes, special, ids, count, error);
}

ebb_status tokenize_marked(const ebb_tokenizer *t, const char *text, const uint8_t *mark, size_t bytes, int32_t **ids,
                           int64_t *count, ebb_error *error) {
    return tokenize(t, text, mark, bytes, true, ids, count, error);
}
