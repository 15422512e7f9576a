/* measure/kvcheck_mass.c: how much softmax weight lies on the newest keys and on the vertical ones (papers/hyquant: the
 * top 5 % of the keys and a window have most of it). Called by kvcheck.c.
 *
 * Vertical keys are chosen here once more, from their definition (ebb/kv.h), among FP32 keys: `segment` in every whole
 * interval of the grid by its own last `window` queries; `prompt` among the prompt but its window, by the last `window`
 * queries of the prompt. Scores are (sum over the choosing tokens of the mean over the group's query heads) . key. */
#include "measure/kvcheck_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t windows[EBB_KVCHECK_WINDOWS] = {128, 256};

typedef struct scored {
    double score;
    int64_t token;
} scored;

typedef struct mass_work {
    const mass_input *in;
    int32_t head; /* KV head */
    double *query, *weight;
    scored *order;
    bool *segment, *prompt; /* [tokens]: is this key vertical? */
} mass_work;

static int by_score(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static int32_t group_of(const mass_work *w) { return w->in->layer->q_heads / w->in->layer->heads; }

static const float *query_of(const mass_work *w, int64_t token, int32_t n) {
    return w->in->q + token * w->in->q_stride + (int64_t)(w->head * group_of(w) + n) * w->in->dims;
}

static const float *key_of(const mass_work *w, int64_t token) {
    return w->in->k + token * w->in->k_stride + (int64_t)w->head * w->in->dims;
}

/* Keys first .. end - 1 by the queries of `from` .. to - 1. */
static void choose(mass_work *w, int64_t first, int64_t end, int64_t from, int64_t to, bool *vertical) {
    const int32_t dims = w->in->dims;
    if (end <= first) return;
    memset(w->query, 0, (size_t)dims * sizeof *w->query);
    for (int64_t t = from; t < to; t++)
        for (int32_t n = 0; n < group_of(w); n++)
            for (int32_t d = 0; d < dims; d++) w->query[d] += (double)query_of(w, t, n)[d];
    for (int64_t t = first; t < end; t++) {
        double sum = 0;
        for (int32_t d = 0; d < dims; d++) sum += w->query[d] * (double)key_of(w, t)[d];
        w->order[t - first] = (scored){sum, t};
    }
    qsort(w->order, (size_t)(end - first), sizeof *w->order, by_score);
    const int64_t count = (int64_t)ceil((double)(end - first) * w->in->ratio);
    for (int64_t i = 0; i < count && i < end - first; i++) vertical[w->order[i].token] = true;
}

static void choose_all(mass_work *w, int64_t window) {
    const int64_t prompt = w->in->tokens - w->in->steps;
    memset(w->segment, 0, (size_t)w->in->tokens);
    memset(w->prompt, 0, (size_t)w->in->tokens);
    for (int64_t end = EBB_GRID; end <= w->in->tokens; end += EBB_GRID)
        choose(w, end - EBB_GRID, end, end - window, end, w->segment);
    choose(w, 0, prompt - window, max_i64(0, prompt - window), prompt, w->prompt);
}

/* Weights of query head `n` of the group over keys 0 .. token. */
static void soften(mass_work *w, int64_t token, int32_t n) {
    const float *q = query_of(w, token, n);
    double most = -INFINITY, total = 0;
    for (int64_t t = 0; t <= token; t++) {
        double sum = 0;
        for (int32_t d = 0; d < w->in->dims; d++) sum += (double)q[d] * (double)key_of(w, t)[d];
        w->weight[t] = sum * (double)w->in->layer->scale;
        if (w->weight[t] > most) most = w->weight[t];
    }
    for (int64_t t = 0; t <= token; t++) total += w->weight[t] = exp(w->weight[t] - most);
    for (int64_t t = 0; t <= token; t++) w->weight[t] /= total;
}

/* An interval's vertical keys are chosen when it is whole. */
static void add_weights(const mass_work *w, int64_t token, int64_t window, ebb_kvcheck_mass *mass) {
    const int64_t whole = token / EBB_GRID * EBB_GRID;
    for (int64_t t = 0; t <= token; t++) {
        if (t > token - window) mass->window += w->weight[t];
        else {
            if (w->prompt[t]) mass->prompt += w->weight[t];
            if (w->segment[t] && t < whole) mass->segment += w->weight[t];
        }
    }
}

static bool work_open(const mass_input *in, mass_work *w) {
    const size_t tokens = (size_t)in->tokens;
    *w = (mass_work){.in = in};
    w->query = calloc((size_t)in->dims, sizeof *w->query);
    w->weight = calloc(tokens, sizeof *w->weight);
    w->order = calloc(tokens, sizeof *w->order);
    w->segment = calloc(tokens, sizeof *w->segment);
    w->prompt = calloc(tokens, sizeof *w->prompt);
    return w->query && w->weight && w->order && w->segment && w->prompt;
}

ebb_status mass_measure(const mass_input *in, ebb_kvcheck_mass *mass, ebb_error *error) {
    mass_work w;
    const double shares = (double)in->steps * in->layer->q_heads;
    ebb_status status = EBB_OK;
    memset(mass, 0, EBB_KVCHECK_WINDOWS * sizeof *mass);
    if (!work_open(in, &w)) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for attention masses");
    for (w.head = 0; !status && w.head < in->layer->heads; w.head++)
        for (int32_t i = 0; i < EBB_KVCHECK_WINDOWS; i++) {
            choose_all(&w, windows[i]);
            for (int64_t t = in->tokens - in->steps; t < in->tokens; t++)
                for (int32_t n = 0; n < group_of(&w); n++) {
                    soften(&w, t, n);
                    add_weights(&w, t, windows[i], &mass[i]);
                }
        }
    for (int32_t i = 0; i < EBB_KVCHECK_WINDOWS; i++)
        mass[i].window /= shares, mass[i].segment /= shares, mass[i].prompt /= shares;
    free(w.query), free(w.weight), free(w.order), free(w.segment), free(w.prompt);
    return status;
}
