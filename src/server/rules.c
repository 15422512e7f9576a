/* server/rules.c: logits under the rules of a request (job.h): a grammar, biases, penalties. Called by loop.c in the
 * engine's thread. */
#include "server/job.h"
#include "core/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- penalties: presence and frequency over the tokens of the answer ---- */

/* Where a token is, or would be. */
static int32_t find_seen(const token_rules *r, int32_t token) {
    int32_t lo = 0, hi = r->n_seen;
    while (lo < hi) {
        const int32_t middle = (lo + hi) / 2;
        if (r->seen[middle] < token) lo = middle + 1;
        else hi = middle;
    }
    return lo;
}

static bool count_token(token_rules *r, int32_t token) {
    const int32_t at = find_seen(r, token);
    if (at < r->n_seen && r->seen[at] == token) {
        r->times[at]++;
        return true;
    }
    if (r->n_seen == r->room_seen) {
        const int32_t room = 2 * r->room_seen + 64;
        int32_t *seen = realloc(r->seen, (size_t)room * sizeof *seen);
        if (seen) r->seen = seen;
        int32_t *times = realloc(r->times, (size_t)room * sizeof *times);
        if (times) r->times = times;
        if (!seen || !times) return false;
        r->room_seen = room;
    }
    const size_t behind = (size_t)(r->n_seen - at) * sizeof *r->seen;
    memmove(r->seen + at + 1, r->seen + at, behind);
    memmove(r->times + at + 1, r->times + at, behind);
    r->seen[at] = token, r->times[at] = 1;
    r->n_seen++;
    return true;
}

/* ---- the grammar ---- */

static bool is_stop(const int32_t *stops, int32_t n, int32_t token) {
    for (int32_t i = 0; i < n; i++)
        if (stops[i] == token) return true;
    return false;
}

/* Tokens that the grammar does not let through get -inf. An answer may end where its text is whole, and not before. */
static bool hold_to_grammar(token_rules *r, const int32_t *stops, int32_t n_stops, float *logits, int32_t vocab) {
    grammar *g = masker_grammar(r->masks);
    const uint64_t *bits = masker_bits(r->masks, r->state);
    const bool whole = grammar_whole(g, r->state);
    int32_t n = 0;
    if (!bits) {
        r->failed = "the form that the request asks for is too large to be held: its grammar has too many states";
        return false;
    }
    for (int32_t i = 0; i < vocab; i++) {
        const bool may = mask_has(bits, i) || (whole && is_stop(stops, n_stops, i));
        n += may;
        if (!may) logits[i] = -INFINITY;
    }
    if (!n) r->failed = "no token of this model continues the form that the request asks for";
    return n > 0;
}

bool rules_apply(token_rules *r, const int32_t *stops, int32_t n_stops, float *logits, int32_t vocab) {
    for (int32_t i = 0; i < r->n_bias; i++)
        if (r->bias[i].token < vocab) logits[r->bias[i].token] += r->bias[i].bias;
    for (int32_t i = 0; i < r->n_seen; i++)
        if (r->seen[i] < vocab) logits[r->seen[i]] -= r->presence + r->frequency * (float)r->times[i];
    if (r->ignore_stop)
        for (int32_t i = 0; i < n_stops; i++)
            if (stops[i] < vocab) logits[stops[i]] = -INFINITY;
    return !r->masks || r->thinking || hold_to_grammar(r, stops, n_stops, logits, vocab);
}

/* Does the answer leave its thoughts with these bytes? */
static bool leaves_thoughts(token_rules *r, const char *text, size_t bytes) {
    static const char mark[] = "</think>";
    const int32_t n = (int32_t)sizeof mark - 1;
    for (size_t i = 0; i < bytes; i++) {
        if (r->n_tail == n) memmove(r->tail, r->tail + 1, (size_t)--r->n_tail);
        r->tail[r->n_tail++] = text[i];
        if (r->n_tail == n && memcmp(r->tail, mark, (size_t)n) == 0) return true;
    }
    return false;
}

bool rules_took(token_rules *r, const ebb_tokenizer *tokenizer, int32_t token) {
    size_t bytes;
    const char *text = ebb_token_bytes(tokenizer, token, &bytes);
    if ((r->presence != 0 || r->frequency != 0) && !count_token(r, token)) {
        r->failed = "no memory for the penalties of a request";
        return false;
    }
    if (!r->masks) return true;
    if (r->thinking) {
        r->thinking = !text || !leaves_thoughts(r, text, bytes);
        return true;
    }
    if (r->state >= 0 && !ebb_tokenizer_special(tokenizer, token)) r->state = masker_next(r->masks, r->state, token);
    return true;
}

/* The masks belong to the server, which keeps them for the next request of the same form. */
void rules_free(token_rules *r) { free(r->seen), free(r->times); }
