/* measure/protocols.c: the three protocols of calibration, from sums along documents to a layout. Called by
 * calibrate.c.
 *
 * The papers: DAMP, version 1, A.2 and A.4; version 2, A.2 and Eq. 14 to 16. Bits by head: docs/calibration.md. */
#include "core/core.h"
#include "measure/calibrate_int.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- scores ---- */

/* E log a of a channel over parts first .. first + n - 1: domains are equal, in a domain tokens are. domain >= 0: in
 * that one. */
static double log_decay_of(const run *r, int32_t first, int32_t n, int32_t domain, int64_t channel) {
    double mean = 0;
    for (int32_t d = 0; d < r->config.n_domains; d++) {
        double sum = 0, tokens = 0;
        if (domain >= 0 && d != domain) continue;
        for (int32_t i = first; i < first + n; i++) {
            sum += r->sums.part[i].log_decay[d * r->at.channels + channel];
            tokens += (double)r->sums.part[i].tokens[d];
        }
        mean += sum / tokens;
    }
    return domain >= 0 ? mean : mean / r->config.n_domains;
}

/* Of a head: the mean over its channels. */
static double head_log_decay(const run *r, int32_t first, int32_t n, int32_t domain, int32_t head) {
    const struct places_layer *l = &r->at.first[r->out->head[head].layer];
    const int64_t channel = l->channel + (int64_t)r->out->head[head].head * l->channels;
    double sum = 0;
    for (int32_t i = 0; i < l->channels; i++) sum += log_decay_of(r, first, n, domain, channel + i);
    return sum / l->channels;
}

/* The same sum of several parts, each as its documents are many. `at` is the place of the array in part_sums. */
static double joined(const run *r, int32_t first, int32_t n, size_t array, int64_t at) {
    double sum = 0, documents = 0;
    for (int32_t i = first; i < first + n; i++) {
        double *const *x = (double *const *)(const void *)((const char *)&r->sums.part[i] + array);
        sum += (*x)[at] * r->split[i];
        documents += r->split[i];
    }
    return sum / documents;
}

/* Scores of the key rows of a head under a candidate, from parts first .. first + n - 1. */
static void score_rows(const run *r, int32_t first, int32_t n, int32_t candidate, int32_t head, selector by,
                       double *score) {
    const ebb_calibrated_head *h = &r->out->head[head];
    const struct places_layer *l = &r->at.first[h->layer];
    const int32_t rows = r->at.layers[h->layer].key_dim;
    const int64_t begin = l->row + (int64_t)h->head * rows, under = candidate * r->at.rows + begin;
    for (int32_t u = 0; u < rows; u++) {
        const int64_t channel = l->channel + (int64_t)h->head * l->channels + (l->channels > 1 ? u : 0);
        const double P = by == SELECT_PRODUCT || by == SELECT_PERSISTENCE
                             ? persistence(log_decay_of(r, first, n, -1, channel), 1)
                             : 1;
        switch (by) {
        case SELECT_RANDOM: /* of each part another */
            score[u] = (double)mix64(mix64(r->config.seed + (uint64_t)(first * 8 + n)) + (uint64_t)(begin + u));
            break;
        case SELECT_ENERGY:
            score[u] = joined(r, first, n, offsetof(part_sums, energy), begin + u);
            break;
        case SELECT_PERSISTENCE:
            score[u] = P;
            break;
        case SELECT_RISK:
            score[u] = joined(r, first, n, offsetof(part_sums, risk), under + u);
            break;
        case SELECT_ERROR:
        case SELECT_PRODUCT:
        case SELECTORS:
            score[u] = joined(r, first, n, offsetof(part_sums, error), under + u) * P;
            break;
        }
    }
}

/* Rank the rows of a head into its key order. */
static void order_rows(run *r, tables *t, int32_t first, int32_t n, int32_t candidate, int32_t head) {
    const ebb_calibrated_head *h = &r->out->head[head];
    const int32_t rows = r->at.layers[h->layer].key_dim;
    uint16_t *order = t->key_order + r->at.first[h->layer].row + (int64_t)h->head * rows;
    score_rows(r, first, n, candidate, head, r->by, r->score);
    rank_by(r->score, rows, r->ranking);
    for (int32_t i = 0; i < rows; i++) order[i] = (uint16_t)r->ranking[i].at;
}

/* Protected rows of a head. */
static int32_t protected_rows(const run *r, int32_t head) {
    const int32_t rows = r->at.layers[r->out->head[head].layer].key_dim;
    return r->out->rows < rows ? r->out->rows : rows;
}

/* What the k first of `own` score among `values`, over what their k first do. */
static double kept_of(const ranked *own, const ranked *best, const double *values, int32_t k) {
    double sum = 0, most = 0;
    for (int32_t i = 0; i < k; i++) sum += values[own[i].at], most += best[i].value;
    return most > 0 ? sum / most : 1;
}

/* How well two parts agree about a head, and how clear the cut is in the ranking that the layout has. */
static void compare_parts(run *r, int32_t head, int32_t a, int32_t under_a, int32_t b, int32_t under_b,
                          int32_t own_parts) {
    ebb_calibrated_head *h = &r->out->head[head];
    const int32_t rows = r->at.layers[h->layer].key_dim, k = protected_rows(r, head);
    score_rows(r, a, 1, under_a, head, r->by, r->score);
    score_rows(r, b, 1, under_b, head, r->by, r->other);
    h->spearman = spearman(r->score, r->other, rows, r->scratch);
    rank_by(r->score, rows, r->ranking);
    rank_by(r->other, rows, r->ranking_other);
    if (k > 0) h->overlap = overlap_of(r->ranking, r->ranking_other, k);
    if (k > 0) h->kept = kept_of(r->ranking, r->ranking_other, r->other, k);
    score_rows(r, a, own_parts, under_a, head, r->by, r->score);
    rank_by(r->score, rows, r->ranking);
    if (k > 0 && k < rows) h->gap = r->ranking[k - 1].value / r->ranking[k].value;
}

/* Cumulative share of the squared error in the worst rows: of the head, and into the mean over heads. */
static void add_concentration(run *r, int32_t head, int32_t first, int32_t n, int32_t candidate) {
    ebb_calibrated_head *h = &r->out->head[head];
    const int32_t rows = r->at.layers[h->layer].key_dim, k = protected_rows(r, head);
    double total = 0, sum = 0;
    score_rows(r, first, n, candidate, head, SELECT_ERROR, r->score);
    rank_by(r->score, rows, r->ranking);
    for (int32_t i = 0; i < rows; i++) total += r->ranking[i].value;
    for (int32_t i = 0; i < r->out->key_dim; i++) {
        if (i < rows) sum += r->ranking[i].value;
        if (i + 1 == k && total > 0) h->share = sum / total;
        r->out->concentration[i] += (total > 0 ? sum / total : 1) / r->out->heads;
    }
}

/* ---- version 1, and what it shares: stores to measure ---- */

/* Measure candidate `index` with the tables as they are: its low tier, and the whole store if asked. */
static ebb_status open_candidate(run *r, int32_t index, const tables *t, bool low, bool whole, ebb_error *error) {
    ebb_layout **layout = &r->layouts[2 * index];
    ebb_layout_free(*layout);
    *layout = NULL;
    roundtrip_close(&r->sums.low[index]), roundtrip_close(&r->sums.whole[index]);
    ebb_status status = tables_layout(t, r->p->layout, r->info->hash, layout, error);
    ebb_state_spec spec = r->low;
    spec.layout = *layout;
    if (!status && low) status = roundtrip_open(&r->sums.low[index], r->model, &spec, r->config.algorithm, error);
    spec = r->spec;
    spec.layout = *layout;
    if (!status && whole) status = roundtrip_open(&r->sums.whole[index], r->model, &spec, r->config.algorithm, error);
    return status;
}

static ebb_status run_part(run *r, int32_t part, bool fresh, ebb_error *error) {
    bool wanted[MAX_PARTS] = {false};
    const visitor v = tally_visitor(&r->sums);
    if (part >= 0) wanted[part] = true;
    r->sums.fresh = fresh;
    return collect_run(r->collector, r->documents, r->n, part >= 0 ? wanted : NULL, &v, error);
}

static ebb_status calibrate_rows(run *r, ebb_error *error) {
    ebb_status status = open_candidate(r, PLAIN, &r->tables, true, false, error);
    if (!status) status = run_part(r, -1, true, error);
    for (int32_t h = 0; h < r->at.heads && !status; h++) {
        order_rows(r, &r->tables, 0, 2, PLAIN, h);
        compare_parts(r, h, 0, PLAIN, 1, PLAIN, 2);
        add_concentration(r, h, 0, 2, PLAIN);
    }
    return status;
}

/* ---- version 2 ---- */

/* e W that a whole store leaves, over that of the low tier alone, without scale and order. */
static double left_of(const run *r, int32_t part, int32_t candidate, int32_t head) {
    const part_sums *p = &r->sums.part[part];
    double plain = 0;
    score_rows(r, part, 1, PLAIN, head, SELECT_RISK, r->score);
    for (int32_t u = 0; u < r->at.layers[r->out->head[head].layer].key_dim; u++) plain += r->score[u];
    const double left = p->left[candidate * r->at.heads + head];
    return plain > 0 ? left / plain : left > 0 ? INFINITY : 1;
}

/* Scales and orders from the RMS of the fitting documents, then protected rows for each. */
static ebb_status fit(run *r, ebb_error *error) {
    ebb_status status = run_part(r, FIT, true, error);
    for (int32_t c = 0; c < CANDIDATES && !status; c++) {
        if ((status = tables_open(&r->candidate[c], &r->at, r->p->tables, error))) break;
        tables_scale(&r->candidate[c], scaling_at(c), r->sums.part[FIT].square);
        status = open_candidate(r, c, &r->candidate[c], true, false, error);
    }
    if (!status) status = run_part(r, FIT, false, error);
    for (int32_t c = 0; c < CANDIDATES && !status; c++)
        for (int32_t h = 0; h < r->at.heads; h++) order_rows(r, &r->candidate[c], FIT, 1, c, h);
    return status;
}

/* The candidate that leaves least, head by head; the first of equals. */
static ebb_status tune(run *r, ebb_error *error) {
    ebb_status status = EBB_OK;
    ebb_calibration *out = r->out;
    for (int32_t c = 0; c < CANDIDATES && !status; c++)
        status = open_candidate(r, c, &r->candidate[c], c == PLAIN, true, error);
    if (!status) status = run_part(r, TUNE, true, error);
    if (status) return status;
    out->n_candidates = CANDIDATES;
    for (int32_t c = 0; c < CANDIDATES; c++) {
        out->candidates[c].alpha = 0.25 * scaling_at(c).quarters;
        out->candidates[c].reorder = scaling_at(c).reorder;
        for (int32_t h = 0; h < r->at.heads; h++) {
            const double left = left_of(r, TUNE, c, h);
            out->candidates[c].left += left / r->at.heads;
            if (c == 0 || left < out->head[h].left_tune) out->head[h].left_tune = left, r->choice[h] = c;
        }
    }
    for (int32_t h = 0; h < r->at.heads; h++) {
        out->head[h].candidate = r->choice[h];
        out->candidates[r->choice[h]].heads++;
        tables_copy_values(&r->tables, &r->candidate[r->choice[h]], h);
        order_rows(r, &r->tables, FIT, 1, r->choice[h], h);
    }
    return EBB_OK;
}

/* The frozen choice on documents that had no part in it. */
static ebb_status check(run *r, ebb_error *error) {
    for (int32_t c = 0; c < CANDIDATES; c++) roundtrip_close(&r->sums.low[c]), roundtrip_close(&r->sums.whole[c]);
    ebb_status status = open_candidate(r, PLAIN, &r->candidate[0], true, false, error);
    if (!status) status = open_candidate(r, CHOSEN, &r->tables, true, true, error);
    if (!status) status = run_part(r, CHECK, true, error);
    for (int32_t h = 0; h < r->at.heads && !status; h++) {
        r->out->head[h].left = left_of(r, CHECK, CHOSEN, h);
        compare_parts(r, h, FIT, r->choice[h], CHECK, CHOSEN, 1);
        add_concentration(r, h, FIT, 1, r->choice[h]);
    }
    return status;
}

static ebb_status calibrate_candidates(run *r, ebb_error *error) {
    ebb_status status = fit(r, error);
    if (!status) status = tune(r, error);
    return status ? status : check(r, error);
}

/* ---- bits by head ---- */

/* Bytes of every head when all heads have `bits`, 0: of leap8. */
static ebb_status head_bytes(run *r, int32_t bits, size_t *bytes, ebb_error *error) {
    ebb_state_spec spec = r->spec;
    ebb_layout *layout = NULL;
    ebb_status status = EBB_OK;
    if (bits) {
        memset(r->tables.bits, bits, (size_t)r->at.heads);
        status = tables_layout(&r->tables, r->p->layout, r->info->hash, &layout, error);
        spec.layout = layout;
    } else status = ebb_state_parse("leap8", &spec, error);
    for (int32_t h = 0; h < r->at.heads && !status; h++) {
        ebb_state_sizes z;
        status = ebb_state_size(&spec, &r->at.layers[r->out->head[h].layer], 1, &z, error);
        if (!status) bytes[h] = z.packed_head;
    }
    ebb_layout_free(layout);
    return status;
}

/* What storing a head in a class injects once (e), with its future (e W), and the energy of its states, from parts
 * first
 * .. first + n - 1. */
typedef struct class_sums {
    double error, risk, energy;
} class_sums;

static class_sums sum_class(const run *r, int32_t first, int32_t n, int32_t class, int32_t head) {
    const ebb_calibrated_head *h = &r->out->head[head];
    const int32_t rows = r->at.layers[h->layer].key_dim;
    const int64_t begin = r->at.first[h->layer].row + (int64_t)h->head * rows;
    class_sums s = {0};
    for (int64_t u = begin; u < begin + rows; u++) {
        s.error += joined(r, first, n, offsetof(part_sums, error), class * r->at.rows + u);
        s.risk += joined(r, first, n, offsetof(part_sums, risk), class * r->at.rows + u);
        s.energy += joined(r, first, n, offsetof(part_sums, energy), u);
    }
    return s;
}

/* A store writes every p-th token, so an error meets a p-th of the tokens that W counts. A head that is always zero
 * costs nothing. */
static double class_error(const class_sums *s, int32_t window) {
    return s->energy > 0 ? (s->error + (s->risk - s->error) / window) / s->energy : 0;
}

/* Stores in which all heads are of one class, and what their heads take. */
static ebb_status open_classes(run *r, size_t *bytes, ebb_error *error) {
    ebb_status status = head_bytes(r, 0, bytes + (size_t)BIT_CLASSES * (size_t)r->at.heads, error);
    for (int32_t i = 0; i < BIT_CLASSES && !status; i++) {
        status = head_bytes(r, bit_classes[i], bytes + (size_t)i * (size_t)r->at.heads, error);
        if (!status) status = open_candidate(r, i, &r->tables, true, false, error);
    }
    return status;
}

static ebb_status calibrate_bits(run *r, ebb_error *error) {
    const size_t heads = (size_t)r->at.heads;
    size_t *bytes = calloc((BIT_CLASSES + 1) * heads, sizeof *bytes);
    double *errors = calloc(BIT_CLASSES * heads, sizeof *errors);
    uint8_t *half[2] = {calloc(heads, 1), calloc(heads, 1)};
    bit_costs costs = {.n = r->at.heads};
    ebb_status status = bytes && errors && half[0] && half[1]
                            ? open_classes(r, bytes, error)
                            : ebb_fail(error, EBB_NO_MEMORY, "no memory for bits by head");
    if (!status) status = run_part(r, -1, true, error);
    for (size_t i = 0; i < BIT_CLASSES; i++) costs.bytes[i] = bytes + i * heads, costs.error[i] = errors + i * heads;
    for (size_t h = 0; h < heads && !status; h++) costs.budget += bytes[BIT_CLASSES * heads + h];
    for (int32_t part = 0; part < 3 && !status; part++) { /* both parts, then all */
        const int32_t first = part < 2 ? part : 0, n = part < 2 ? 1 : 2;
        for (int32_t h = 0; h < r->at.heads; h++) {
            for (int32_t i = 0; i < BIT_CLASSES; i++) {
                const class_sums s = sum_class(r, first, n, i, h);
                errors[(size_t)i * heads + (size_t)h] = class_error(&s, r->spec.window);
                if (i == 0) r->score[h] = s.error > 0 ? s.risk / s.error : 0; /* the mean W: how long it remembers */
            }
        }
        rank_by(r->score, r->at.heads, r->ranking);
        choose_bits(&costs, r->ranking, part < 2 ? half[part] : r->tables.bits);
    }
    for (int32_t h = 0; h < r->at.heads && !status; h++) {
        r->out->head[h].bits = r->tables.bits[h];
        r->out->head[h].overlap = half[0][h] == half[1][h];
    }
    free(bytes), free(errors), free(half[0]), free(half[1]);
    return status;
}

/* ---- the result ---- */

/* Spearman of the decays in two domains: over the heads (GDN), or over the channels of a head and then the mean (KDA).
 */
static double decay_order(run *r, int32_t a, int32_t b) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < r->at.n; i++) {
        const struct places_layer *l = &r->at.first[i];
        for (int32_t h = 0; h < r->at.layers[i].heads && l->channels > 1; h++) {
            for (int32_t j = 0; j < l->channels; j++) {
                r->score[j] = log_decay_of(r, 0, r->p->parts, a, l->channel + (int64_t)h * l->channels + j);
                r->other[j] = log_decay_of(r, 0, r->p->parts, b, l->channel + (int64_t)h * l->channels + j);
            }
            const double one = spearman(r->score, r->other, l->channels, r->scratch);
            if (isfinite(one)) sum += one, n++;
        }
    }
    if (n) return sum / n;
    for (int32_t h = 0; h < r->at.heads; h++) {
        r->score[h] = head_log_decay(r, 0, r->p->parts, a, h);
        r->other[h] = head_log_decay(r, 0, r->p->parts, b, h);
    }
    return spearman(r->score, r->other, r->at.heads, r->scratch);
}

static void fill_decays(run *r) {
    ebb_calibration *out = r->out;
    const int32_t domains = out->domains, parts = r->p->parts;
    for (int32_t h = 0; h < out->heads; h++) {
        out->head[h].decay = exp(head_log_decay(r, 0, parts, -1, h));
        for (int32_t d = 0; d < domains; d++)
            out->domain_decay[d * out->heads + h] = exp(head_log_decay(r, 0, parts, d, h));
    }
    for (int32_t a = 0; a < domains; a++)
        for (int32_t b = 0; b < domains; b++) out->domain_order[a * domains + b] = a == b ? 1 : decay_order(r, a, b);
    for (int32_t h = 0; h < out->heads; h++) {
        r->score[h] = head_log_decay(r, 0, 1, -1, h);
        r->other[h] = head_log_decay(r, parts - 1, 1, -1, h);
    }
    out->decay_spearman = spearman(r->score, r->other, out->heads, r->scratch);
}

static ebb_status finish(run *r, ebb_error *error) {
    ebb_calibration *out = r->out;
    fill_decays(r);
    for (int32_t i = 0; i < r->p->parts; i++) out->states += r->sums.part[i].states;
    out->tokens = collect_tokens(r->collector);
    snprintf(out->kernels, sizeof out->kernels, "%s", collect_rows(r->collector));
    ebb_status status = tables_layout(&r->tables, r->p->layout, r->info->hash, &out->layout, error);
    ebb_state_spec spec = r->spec;
    spec.layout = out->layout;
    for (int32_t i = 0; i < r->at.n && !status; i++) {
        ebb_state_sizes z;
        status = ebb_state_size(&spec, &r->at.layers[i], 1, &z, error);
        if (!status) out->packed += z.packed;
    }
    return status;
}

ebb_status calibrate_run(run *r, ebb_error *error) {
    ebb_status status = r->p->kind == BY_ROWS         ? calibrate_rows(r, error)
                        : r->p->kind == BY_CANDIDATES ? calibrate_candidates(r, error)
                                                      : calibrate_bits(r, error);
    return status ? status : finish(r, error);
}
