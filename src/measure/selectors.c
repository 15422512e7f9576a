/* measure/selectors.c: rankings of key rows and heads (selectors.h). Called by calibrate.c. */
#include "measure/selectors.h"
#include "core/core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const selector_names[SELECTORS] = {"random", "energy", "error", "persistence", "product", "risk"};
const uint8_t bit_classes[BIT_CLASSES] = {6, 8, 12};

ebb_status selector_find(const char *name, selector *which, ebb_error *error) {
    char known[96] = "";
    for (int32_t i = 0; i < SELECTORS; i++) {
        if (strcmp(name, selector_names[i]) == 0) {
            *which = (selector)i;
            return EBB_OK;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", selector_names[i]);
    }
    return ebb_fail(error, EBB_BAD_ARGUMENT, "no selector '%s', expected one of %s", name, known);
}

double persistence(double log_decay, int32_t steps) {
    const double forgotten = -expm1(2 * steps * log_decay);
    return 1 / (forgotten > PERSISTENCE_FLOOR ? forgotten : PERSISTENCE_FLOOR);
}

/* ---- rankings ---- */

static int falling(const void *x, const void *y) {
    const ranked *a = x, *b = y;
    if (a->value != b->value) return a->value > b->value ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

void rank_by(const double *values, int32_t n, ranked *out) {
    for (int32_t i = 0; i < n; i++) out[i] = (ranked){values[i], i};
    qsort(out, (size_t)n, sizeof *out, falling);
}

/* One past the last place with the value of place `first`. */
static int32_t end_of_ties(const ranked *r, int32_t first, int32_t n) {
    int32_t end = first + 1;
    while (end < n && r[end].value == r[first].value) end++;
    return end;
}

double spearman(const double *a, const double *b, int32_t n, ranked *scratch) {
    const double mean = 0.5 * (n - 1);
    ranked *of_a = scratch + n; /* the value is the rank */
    double aa = 0, bb = 0, ab = 0;
    rank_by(a, n, scratch);
    for (int32_t i = 0, end; i < n; i = end) {
        end = end_of_ties(scratch, i, n);
        for (int32_t j = i; j < end; j++) of_a[scratch[j].at].value = 0.5 * (i + end - 1) - mean;
    }
    rank_by(b, n, scratch);
    for (int32_t i = 0, end; i < n; i = end) {
        end = end_of_ties(scratch, i, n);
        for (int32_t j = i; j < end; j++) {
            const double x = of_a[scratch[j].at].value, y = 0.5 * (i + end - 1) - mean;
            aa += x * x, bb += y * y, ab += x * y;
        }
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
}

double overlap_of(const ranked *a, const ranked *b, int32_t k) {
    int32_t common = 0;
    for (int32_t i = 0; i < k; i++)
        for (int32_t j = 0; j < k; j++) common += a[i].at == b[j].at;
    return k ? (double)common / k : 1;
}

/* ---- bits by head ---- */

enum { LOW_BITS, MIDDLE_BITS, HIGH_BITS };

size_t choose_bits(const bit_costs *c, const ranked *ranking, uint8_t *bits) {
    size_t used = 0, best_used;
    int32_t slow = 0, fast = 0, best_slow = 0, best_fast = 0; /* heads taken from both ends */
    double gain = 0, best = 0;
    for (int32_t i = 0; i < c->n; i++) used += c->bytes[MIDDLE_BITS][i];
    best_used = used;
    while (slow + fast < c->n) {
        const int32_t up = ranking[slow++].at;
        used += c->bytes[HIGH_BITS][up] - c->bytes[MIDDLE_BITS][up];
        gain += c->error[MIDDLE_BITS][up] - c->error[HIGH_BITS][up];
        while (used > c->budget && slow + fast < c->n) {
            const int32_t down = ranking[c->n - 1 - fast++].at;
            used -= c->bytes[MIDDLE_BITS][down] - c->bytes[LOW_BITS][down];
            gain -= c->error[LOW_BITS][down] - c->error[MIDDLE_BITS][down];
        }
        if (used <= c->budget && gain > best) best = gain, best_slow = slow, best_fast = fast, best_used = used;
    }
    for (int32_t i = 0; i < c->n; i++)
        bits[ranking[i].at] = bit_classes[i < best_slow ? HIGH_BITS : i >= c->n - best_fast ? LOW_BITS : MIDDLE_BITS];
    return best_used;
}
