/* measure/tally.c: what calibration adds up along a run (tally.h). Called by calibrate.c and, through the visitor, by
 * collect.c. */
#include "measure/tally.h"
#include "core/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static double *doubles(int64_t n, int64_t times, bool *failed) {
    double *x = calloc((size_t)times * (size_t)n, sizeof *x);
    if (!x) *failed = true;
    return x;
}

static void open_sums(const tally *t, part_sums *p, bool *failed) {
    p->square = doubles(t->at->values, 1, failed);
    p->energy = doubles(t->at->rows, 1, failed);
    p->error = doubles(t->at->rows, t->candidates, failed);
    p->risk = doubles(t->at->rows, t->candidates, failed);
    p->left = doubles(t->at->heads, t->candidates, failed);
    p->log_decay = doubles(t->at->channels, t->domains, failed);
}

static void close_sums(part_sums *p) {
    free(p->square), free(p->energy), free(p->error), free(p->risk), free(p->left), free(p->log_decay);
}

static void move_values(double *to, double *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i], from[i] = 0;
}

/* to += from, from = 0. */
static void move_sums(const tally *t, part_sums *to, part_sums *from) {
    move_values(to->square, from->square, t->at->values);
    move_values(to->energy, from->energy, t->at->rows);
    move_values(to->error, from->error, t->at->rows * t->candidates);
    move_values(to->risk, from->risk, t->at->rows * t->candidates);
    move_values(to->left, from->left, (int64_t)t->at->heads * t->candidates);
    move_values(to->log_decay, from->log_decay, t->at->channels * t->domains);
    to->states += from->states, from->states = 0;
    for (int32_t i = 0; i < t->domains; i++) to->tokens[i] += from->tokens[i], from->tokens[i] = 0;
}

ebb_status tally_open(tally *t, ebb_error *error) {
    const places *at = t->at;
    bool failed = false;
    size_t most = 0;
    t->document = calloc((size_t)t->batch, sizeof *t->document);
    for (int32_t i = 0; i < t->parts; i++) open_sums(t, &t->part[i], &failed);
    for (int32_t i = 0; t->document && i < t->batch; i++) open_sums(t, &t->document[i], &failed);
    t->waiting = calloc((size_t)t->batch * (size_t)t->alive, sizeof *t->waiting);
    for (int32_t i = 0; t->waiting && i < t->batch * t->alive; i++) {
        pending *w = &t->waiting[i];
        w->low = doubles(at->rows, t->candidates, &failed);
        w->whole = doubles(at->rows, t->candidates, &failed);
        w->product = doubles(at->channels, 1, &failed);
        w->ahead = doubles(at->channels, 1, &failed);
    }
    for (int32_t i = 0; i < at->n; i++) {
        const ebb_state_layer *l = &at->layers[i];
        const size_t values = (size_t)l->heads * (size_t)l->key_dim * (size_t)l->value_dim;
        if (values > most) most = values;
    }
    t->stored = aligned_new(most * sizeof *t->stored);
    if (failed || !t->stored || !t->waiting || !t->document)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the sums of %d heads in %d candidates", at->heads,
                        t->candidates);
    return EBB_OK;
}

void tally_close(tally *t) {
    for (int32_t i = 0; i < MAX_PARTS; i++) close_sums(&t->part[i]);
    for (int32_t i = 0; t->document && i < t->batch; i++) close_sums(&t->document[i]);
    for (int32_t i = 0; t->waiting && i < t->batch * t->alive; i++) {
        pending *w = &t->waiting[i];
        free(w->low), free(w->whole), free(w->product), free(w->ahead);
    }
    for (int32_t i = 0; i < CANDIDATES; i++) roundtrip_close(&t->low[i]), roundtrip_close(&t->whole[i]);
    free(t->document), free(t->waiting), free(t->stored);
    t->document = NULL, t->waiting = NULL, t->stored = NULL;
}

int32_t tally_alive(const int64_t *stops, int32_t n, int64_t horizon) {
    int32_t most = 1;
    for (int32_t i = 0; i < n; i++) {
        int32_t alive = 0;
        for (int32_t j = 0; j <= i; j++) alive += stops[j] + horizon > stops[i] || j == i;
        if (alive > most) most = alive;
    }
    return most;
}

/* ---- the visitor ---- */

static void on_decay(void *ctx, const document *d, int32_t place, int32_t layer, int64_t pos, const float *g) {
    tally *t = ctx;
    const struct places_layer *first = &t->at->first[layer];
    const int64_t n = (int64_t)t->at->layers[layer].heads * first->channels;
    if (t->fresh) {
        double *sum = t->document[place].log_decay + d->domain * t->at->channels + first->channel;
        for (int64_t j = 0; j < n; j++) sum[j] += (double)g[j];
        if (layer == 0) t->document[place].tokens[d->domain]++;
    }
    for (int32_t i = 0; i < t->alive; i++) {
        pending *w = &t->waiting[place * t->alive + i];
        if (!w->waits || pos < w->from || pos >= w->until) continue;
        for (int64_t j = 0; j < n; j++) {
            w->product[first->channel + j] *= exp(2 * (double)g[j]);
            w->ahead[first->channel + j] += w->product[first->channel + j];
        }
    }
}

/* Where the state after stops[stop] tokens waits. */
static pending *place_of(tally *t, int32_t place, int32_t stop) {
    return &t->waiting[place * t->alive + stop % t->alive];
}

/* |[stored - S]_u|^2 of the key rows of a layer. */
static ebb_status row_errors(tally *t, roundtrip *r, int32_t layer, const float *S, double *e, ebb_error *error) {
    const ebb_state_layer *l = &t->at->layers[layer];
    ebb_status status = roundtrip_layer(r, layer, S, t->stored, error);
    for (int64_t u = 0; u < (int64_t)l->heads * l->key_dim && !status; u++) {
        const float *x = S + u * l->value_dim, *y = t->stored + u * l->value_dim;
        double sum = 0;
        for (int32_t v = 0; v < l->value_dim; v++) {
            const double apart = (double)y[v] - (double)x[v];
            sum += apart * apart;
        }
        if (!isfinite(sum))
            status = ebb_fail(error, EBB_UNSUPPORTED,
                              "state layer %d, head %lld: a stored state is not finite; nothing to calibrate by", layer,
                              (long long)(u / l->key_dim));
        e[u] = sum;
    }
    return status;
}

static void add_squares(part_sums *p, const places *at, int32_t layer, double weight, const float *S) {
    const ebb_state_layer *l = &at->layers[layer];
    for (int64_t u = 0; u < (int64_t)l->heads * l->key_dim; u++) {
        double *square = p->square + at->first[layer].value + u / l->key_dim * l->value_dim, energy = 0;
        for (int32_t v = 0; v < l->value_dim; v++) {
            const double x = (double)S[u * l->value_dim + v];
            square[v] += weight * x * x / l->key_dim;
            energy += x * x;
        }
        p->energy[at->first[layer].row + u] += weight * energy;
    }
}

static ebb_status on_state(void *ctx, const document *d, int32_t place, int32_t layer, int32_t stop, int64_t pos,
                           const float *S, ebb_error *error) {
    tally *t = ctx;
    const struct places_layer *first = &t->at->first[layer];
    const int64_t channels = (int64_t)t->at->layers[layer].heads * first->channels;
    pending *w = place_of(t, place, stop);
    if (t->fresh) add_squares(&t->document[place], t->at, layer, d->weight, S);
    if (!t->low[0].pool && !t->whole[0].pool) return EBB_OK; /* only squares are wanted */
    w->waits = true, w->from = pos, w->until = pos + t->horizon;
    for (int64_t j = first->channel; j < first->channel + channels; j++) w->product[j] = w->ahead[j] = 1;
    for (int32_t c = 0; c < t->candidates; c++) {
        const int64_t at = c * t->at->rows + first->row;
        ebb_status status = EBB_OK;
        if (t->low[c].pool) status = row_errors(t, &t->low[c], layer, S, w->low + at, error);
        if (!status && t->whole[c].pool) status = row_errors(t, &t->whole[c], layer, S, w->whole + at, error);
        if (status) return status;
    }
    return EBB_OK;
}

/* A state has seen its future: into the sums. */
static void add_pending(const tally *t, const pending *w, part_sums *p, double weight) {
    const places *at = t->at;
    p->states++;
    for (int32_t i = 0; i < at->n; i++) {
        const ebb_state_layer *l = &at->layers[i];
        const struct places_layer *first = &at->first[i];
        for (int64_t u = 0; u < (int64_t)l->heads * l->key_dim; u++) {
            const double W = w->ahead[first->channel + (first->channels == 1 ? u / l->key_dim : u)];
            for (int32_t c = 0; c < t->candidates; c++) {
                const int64_t row = c * at->rows + first->row + u;
                if (t->low[c].pool) {
                    p->error[row] += weight * w->low[row];
                    p->risk[row] += weight * w->low[row] * W;
                }
                if (t->whole[c].pool)
                    p->left[c * at->heads + first->head + u / l->key_dim] += weight * w->whole[row] * W;
            }
        }
    }
}

static void on_settle(void *ctx, const document *d, int32_t place, int64_t pos) {
    tally *t = ctx;
    for (int32_t i = 0; i < t->alive; i++) {
        pending *w = &t->waiting[place * t->alive + i];
        if (!w->waits || pos < w->until) continue;
        w->waits = false;
        add_pending(t, w, &t->document[place], d->weight);
    }
}

static void on_end(void *ctx, const document *d, int32_t place) {
    tally *t = ctx;
    move_sums(t, &t->part[d->part], &t->document[place]);
}

visitor tally_visitor(tally *t) { return (visitor){t, on_decay, on_state, on_settle, on_end}; }
