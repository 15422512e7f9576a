/* op/sample.c: the choice of the next token from one row of logits, on the host. Called by the engine.
 *
 * Candidates are a list of token ids. "Before" is one strict order of them (larger logit, then lower id), so top-k and
 * top-p have one answer each, and both are found by selection: expected O(vocab), the vocabulary is never sorted. A
 * candidate's weight is exp((logit - max) / temperature) in FP64: the largest weight is 1, none overflows, NaN cannot
 * appear. */
#include "core/core.h"
#include "ebb/op.h"

#include <float.h>
#include <math.h>

ebb_status ebb_sampling_check(const ebb_sampling *s, ebb_error *error) {
    if (!(s->temperature >= 0.0f && s->temperature <= 100.0f))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "temperature is %g; it must be from 0 (greedy) to 100",
                        (double)s->temperature);
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "top_p is %g; it must be above 0 and at most 1 (off)",
                        (double)s->top_p);
    if (!(s->min_p >= 0.0f && s->min_p < 1.0f))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "min_p is %g; it must be from 0 (off) to below 1", (double)s->min_p);
    if (s->top_k < 0)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "top_k is %d; it must be 0 (off) or more", (int)s->top_k);
    if (!(s->repeat_penalty > 0.0f && s->repeat_penalty <= 10.0f))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "repeat_penalty is %g; it must be above 0 and at most 10, 1 being off",
                        (double)s->repeat_penalty);
    if (s->repeat_last < 0)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "repeat_last is %d; it must be 0 (off) or more", (int)s->repeat_last);
    return EBB_OK;
}

typedef struct candidates {
    const float *logits;
    double max, temperature;
    int32_t *ids;
    int32_t n;
} candidates;

static bool before(const float *logits, int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static double weight(const candidates *c, int32_t id) { return exp(((double)c->logits[id] - c->max) / c->temperature); }

/* Each distinct token of the window once. The window's own entries of `seen` are cleared first, not the whole array. */
static void penalize(const ebb_sampling *s, float *logits, int32_t vocab, const int32_t *history, int64_t n,
                     int32_t *seen) {
    int64_t first = max_i64(0, n - s->repeat_last);
    if (s->repeat_penalty == 1.0f) return;
    for (int64_t i = first; i < n; i++)
        if (history[i] >= 0 && history[i] < vocab) seen[history[i]] = 0;
    for (int64_t i = first; i < n; i++) {
        int32_t id = history[i];
        if (id < 0 || id >= vocab || seen[id]) continue;
        seen[id] = 1;
        logits[id] = logits[id] > 0.0f ? logits[id] / s->repeat_penalty : logits[id] * s->repeat_penalty;
    }
}

/* NaN becomes -inf and +inf the largest float, so that differences of logits are defined; answers the first of the
 * largest. */
static int32_t sanitize_argmax(float *logits, int32_t vocab) {
    int32_t best = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (isnan(logits[i])) logits[i] = -INFINITY;
        if (logits[i] > FLT_MAX) logits[i] = FLT_MAX;
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

/* Reorder ids[lo..hi) around one of them, the pivot: what is before it, it, what is after it. Answers the pivot's
 * place. The pivot is picked by a hash, so that no order of logits makes selection quadratic, and equal inputs always
 * split alike. */
static int32_t split(const candidates *c, int32_t lo, int32_t hi) {
    int32_t *ids = c->ids,
            at = lo + (int32_t)(mix64(((uint64_t)(uint32_t)lo << 32) | (uint32_t)hi) % (uint64_t)(hi - lo));
    int32_t pivot = ids[at], place = lo;
    ids[at] = ids[hi - 1];
    for (int32_t i = lo; i < hi - 1; i++) {
        int32_t id = ids[i];
        ids[i] = ids[place];
        ids[place] = id;
        place += before(c->logits, id, pivot);
    }
    ids[hi - 1] = ids[place];
    ids[place] = pivot;
    return place;
}

/* Put the first k of the order in front and drop the rest. */
static void keep_top_k(candidates *c, int32_t k) {
    int32_t lo = 0, hi = c->n;
    while (hi - lo > 1) { /* the boundary between kept and dropped lies in [lo, hi) */
        int32_t place = split(c, lo, hi);
        if (place == k || place + 1 == k) break;
        if (place > k) hi = place;
        else lo = place + 1;
    }
    c->n = k;
}

/* Collect the candidates among the vocabulary, k of them at most. Once twice k and some are held the list is cut to k,
 * and what cannot enter any more is not taken in: ids ascend, so an equal of the last one kept comes after it. */
static void collect(candidates *c, int32_t vocab, int32_t k) {
    float bar = -INFINITY;
    int64_t room = min_i64(vocab, 2 * (int64_t)k + 1024);
    for (int32_t i = 0; i < vocab; i++) {
        if (!(c->logits[i] > bar)) continue;
        c->ids[c->n++] = i;
        if (c->n < room || c->n <= k) continue;
        keep_top_k(c, k);
        bar = c->logits[c->ids[0]];
        for (int32_t j = 1; j < k; j++) bar = fminf(bar, c->logits[c->ids[j]]);
    }
    if (c->n > k) keep_top_k(c, k);
}

static double total_weight(const candidates *c) {
    double sum = 0;
    for (int32_t i = 0; i < c->n; i++) sum += weight(c, c->ids[i]);
    return sum;
}

static void keep_min_p(candidates *c, double min_p) { /* the largest weight is 1 */
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++)
        if (weight(c, c->ids[i]) >= min_p) c->ids[n++] = c->ids[i];
    c->n = n;
}

/* n candidates that weigh less than (total - wanted) / n each cannot hold total - wanted, so what reaches `wanted` lies
 * above that weight: usually few. Half of it leaves room for rounding here and in the sum. */
static void drop_light(candidates *c, double total, double wanted) {
    double least = c->max + c->temperature * log(0.5 * (total - wanted) / c->n);
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        c->ids[n] = c->ids[i];
        n += (double)c->logits[c->ids[i]] >= least;
    }
    c->n = n;
}

/* The shortest run of the order whose weight reaches top_p of the whole. */
static void keep_top_p(candidates *c, double top_p) {
    double total = total_weight(c), wanted = top_p * total, kept = 0;
    drop_light(c, total, wanted);
    int32_t lo = 0, hi = c->n; /* ids[0..lo) are kept and weigh `kept`; the run ends in [lo, hi) */
    while (lo < hi) {
        int32_t place = split(c, lo, hi);
        double front = 0;
        for (int32_t i = lo; i < place; i++) front += weight(c, c->ids[i]);
        if (kept + front >= wanted) hi = place;
        else {
            kept += front + weight(c, c->ids[place]);
            lo = place + 1;
            if (kept >= wanted) break;
        }
    }
    c->n = lo;
}

static int32_t draw(const candidates *c, uint64_t seed, int64_t position) {
    uint64_t random = mix64(mix64(seed) ^ mix64((uint64_t)position + 0x73616d706c65u)); /* its own stream: "sample" */
    double target = (double)(random >> 11) * 0x1p-53 * total_weight(c), sum = 0;
    int32_t last = c->ids[0];
    for (int32_t i = 0; i < c->n; i++) {
        double w = weight(c, c->ids[i]);
        sum += w;
        if (w > 0) last = c->ids[i];
        if (sum > target) break;
    }
    return last;
}

int32_t ebb_sample(const ebb_sampling *s, float *logits, int32_t vocab, const int32_t *history, int64_t n_history,
                   int64_t position, int32_t *scratch) {
    penalize(s, logits, vocab, history, n_history, scratch);
    int32_t best = sanitize_argmax(logits, vocab);
    if (s->temperature == 0.0f || s->top_k == 1 || logits[best] == -INFINITY) return best;

    candidates c = {logits, (double)logits[best], (double)s->temperature, scratch, 0};
    collect(&c, vocab, s->top_k > 0 ? s->top_k : vocab);
    if (s->top_p < 1.0f) keep_top_p(&c, (double)s->top_p);
    if (s->min_p > 0.0f) keep_min_p(&c, (double)s->min_p);
    return draw(&c, s->seed, position);
}
