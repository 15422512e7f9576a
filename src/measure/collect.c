/* measure/collect.c: an FP32 run of a model over documents, with its states and decays (collect.h). Called by
 * calibrate.c.
 *
 * Tokens go in steps of up to EBB_MAX_NEW, cut at the stops: a step of n tokens gives the bits of n steps of one. Where
 * the text ends the model goes on by itself, a token a step. */
#include "measure/collect.h"
#include "core/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct collector {
    collect_config config;
    const ebb_model_info *info;
    const ebb_state_layer *layers;
    ebb_state_pool *pool;
    ebb_kv_pool *kv;
    ebb_runner *runner;
    ebb_plan *plans; /* [state layers], for reading */
    ebb_queue *queue;
    float *S; /* one layer of a batch */
    float *logits;
    int32_t *slot, *cu, *ids, *scratch;
    int64_t *pos, *want;
    document **batch;
    int32_t n; /* documents in the batch */
    int64_t done;
};

/* ---- opening ---- */

static ebb_status open_pools(collector *c, ebb_error *error) {
    ebb_device *device = ebb_model_device(c->config.model);
    ebb_state_spec state;
    ebb_kv_spec kv;
    ebb_status status = ebb_state_parse("fp32", &state, error);
    if (!status) status = ebb_kv_parse(c->config.kv ? c->config.kv : "bf16", &kv, error);
    if (status) return status;
    const ebb_state_pool_config sc = {.size = sizeof sc,
                                      .spec = &state,
                                      .layers = c->layers,
                                      .n_layers = c->info->state_layers,
                                      .slots = c->config.batch,
                                      .max_new = EBB_MAX_NEW};
    if ((status = ebb_state_pool_open(device, &sc, &c->pool, error)) || !c->info->kv_layers) return status;
    const ebb_kv_pool_config kc = {.size = sizeof kc,
                                   .spec = &kv,
                                   .layers = ebb_model_kv_layers(c->config.model),
                                   .n_layers = c->info->kv_layers,
                                   .slots = c->config.batch,
                                   .max_tokens = c->config.length};
    status = ebb_kv_pool_open(device, &kc, &c->kv, error);
    for (int32_t i = 0; i < c->config.batch && !status; i++)
        status = ebb_kv_pool_reserve(c->kv, i, c->config.length, error);
    return status;
}

static ebb_status open_reading(collector *c, ebb_error *error) {
    ebb_device *device = ebb_model_device(c->config.model);
    size_t scratch = 0;
    c->plans = calloc((size_t)c->info->state_layers, sizeof *c->plans);
    if (!c->plans) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d plans", c->info->state_layers);
    for (int32_t i = 0; i < c->info->state_layers; i++) {
        c->plans[i].size = sizeof *c->plans;
        ebb_status status = ebb_delta_plan(device, ebb_state_pool_view(c->pool, i), c->config.algorithm, 0,
                                           c->config.batch, 1, c->config.batch, &c->plans[i], error);
        if (status) return status;
        if (c->plans[i].scratch > scratch) scratch = c->plans[i].scratch;
    }
    return ebb_queue_open(device, scratch, &c->queue, error);
}

static ebb_status open_arrays(collector *c, ebb_error *error) {
    const size_t batch = (size_t)c->config.batch, vocab = (size_t)c->info->vocab;
    size_t values = 0, bytes;
    for (int32_t i = 0; i < c->info->state_layers; i++) {
        const ebb_state_layer *l = &c->layers[i];
        const size_t layer = (size_t)l->heads * (size_t)l->key_dim * (size_t)l->value_dim;
        if (layer > values) values = layer;
    }
    if (size_mul(values, batch * sizeof *c->S, &bytes)) c->S = aligned_new(bytes);
    if (size_mul(vocab, batch * sizeof *c->logits, &bytes)) c->logits = malloc(bytes);
    c->scratch = calloc(vocab, sizeof *c->scratch);
    c->slot = calloc(batch, sizeof *c->slot);
    c->cu = calloc(batch + 1, sizeof *c->cu);
    c->ids = calloc(batch * EBB_MAX_NEW, sizeof *c->ids);
    c->pos = calloc(batch, sizeof *c->pos);
    c->want = calloc(batch, sizeof *c->want);
    c->batch = calloc(batch, sizeof *c->batch);
    if (!c->S || !c->logits || !c->scratch || !c->slot || !c->cu || !c->ids || !c->pos || !c->want || !c->batch)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory to run %d documents side by side", c->config.batch);
    for (int32_t i = 0; i < c->config.batch; i++) c->slot[i] = i;
    return EBB_OK;
}

ebb_status collect_open(const collect_config *config, collector **out, ebb_error *error) {
    *out = NULL;
    collector *c = calloc(1, sizeof *c);
    if (!c) return ebb_fail(error, EBB_NO_MEMORY, "no memory to run a model");
    c->config = *config;
    c->done = config->done;
    c->info = ebb_model_describe(config->model);
    c->layers = ebb_model_state_layers(config->model);
    ebb_status status = open_pools(c, error);
    if (!status) status = open_reading(c, error);
    if (!status) status = open_arrays(c, error);
    const ebb_runner_config rc = {.size = sizeof rc,
                                  .state = c->pool,
                                  .kv = c->kv,
                                  .max_seqs = config->batch,
                                  .max_new = EBB_MAX_NEW,
                                  .max_tokens = (int64_t)config->batch * EBB_MAX_NEW,
                                  .algorithm = config->algorithm};
    if (!status) status = ebb_runner_open(config->model, &rc, &c->runner, error);
    if (status) {
        collect_close(c);
        return status;
    }
    *out = c;
    return EBB_OK;
}

void collect_close(collector *c) {
    if (!c) return;
    ebb_runner_close(c->runner);
    ebb_queue_close(c->queue);
    ebb_kv_pool_close(c->kv);
    ebb_state_pool_close(c->pool);
    free(c->plans), free(c->S), free(c->logits), free(c->scratch);
    free(c->slot), free(c->cu), free(c->ids), free(c->pos), free(c->want), free(c->batch);
    free(c);
}

int64_t collect_tokens(const collector *c) { return c->done; }
const char *collect_rows(const collector *c) { return ebb_runner_rows(c->runner); }

/* ---- running ---- */

/* The log decays of the tokens just run are in the ring of records, which holds EBB_MAX_NEW of them. */
static void show_decays(const collector *c, const visitor *v, int64_t pos, int64_t n) {
    for (int32_t i = 0; i < c->info->state_layers; i++) {
        const ebb_state_view *view = ebb_state_pool_view(c->pool, i);
        const ebb_state_layer *l = &c->layers[i];
        const int64_t each = (int64_t)l->heads * (l->kind == EBB_KDA ? l->key_dim : 1);
        for (int32_t s = 0; s < c->n; s++) {
            const float *ring = (const float *)(const void *)(view->live + s * view->live_slot + view->decay_at);
            for (int64_t t = pos; t < pos + n; t++) v->decay(v->ctx, c->batch[s], s, i, t, ring + t % view->cap * each);
        }
    }
    for (int32_t s = 0; s < c->n; s++) v->settle(v->ctx, c->batch[s], s, pos + n);
}

/* What comes after the last known token, for every document. A stop token would end it, so it gets no chance. */
static void write_on(collector *c) {
    for (int32_t s = 0; s < c->n; s++) {
        document *d = c->batch[s];
        float *logits = c->logits + (int64_t)s * c->info->vocab;
        for (int32_t i = 0; i < c->info->n_stop; i++)
            if (c->info->stop[i] >= 0 && c->info->stop[i] < c->info->vocab) logits[c->info->stop[i]] = -INFINITY;
        d->ids[d->known] = ebb_sample(d->by, logits, c->info->vocab, d->ids, d->known, d->known, c->scratch);
        d->known++;
    }
}

/* Tokens pos .. pos + n - 1 of every document of the batch. */
static ebb_status feed(collector *c, const visitor *v, int64_t pos, int64_t n, ebb_error *error) {
    const bool writes = pos + n == c->batch[0]->known && c->batch[0]->known < c->config.length;
    for (int32_t s = 0; s < c->n; s++) {
        c->pos[s] = pos;
        c->cu[s + 1] = c->cu[s] + (int32_t)n;
        c->want[s] = c->cu[s + 1] - 1;
        memcpy(c->ids + c->cu[s], c->batch[s]->ids + pos, (size_t)n * sizeof *c->ids);
    }
    const ebb_batch b = {.seqs = c->n, .tokens = c->n * n, .slot = c->slot, .cu = c->cu, .pos = c->pos};
    ebb_status status =
        ebb_forward(c->runner, EBB_STEP, &b, c->ids, c->want, writes ? c->n : 0, writes ? c->logits : NULL, error);
    if (status) return status;
    if (writes) write_on(c);
    show_decays(c, v, pos, n);
    c->done += b.tokens;
    return EBB_OK;
}

static ebb_status show_states(collector *c, const visitor *v, int32_t stop, ebb_error *error) {
    const int64_t pos = c->config.stops[stop];
    for (int32_t s = 0; s < c->n; s++) c->pos[s] = pos;
    for (int32_t i = 0; i < c->info->state_layers; i++) {
        const ebb_state_layer *l = &c->layers[i];
        const int64_t values = (int64_t)l->heads * l->key_dim * l->value_dim;
        const ebb_delta_args args = {.size = sizeof args,
                                     .s = *ebb_state_pool_view(c->pool, i),
                                     .b = {.seqs = c->n, .slot = c->slot, .cu = c->cu, .pos = c->pos}};
        ebb_status status = ebb_delta_read(c->queue, &c->plans[i], &args, c->S, error);
        if (!status) status = ebb_queue_sync(c->queue, error);
        for (int32_t s = 0; s < c->n && !status; s++)
            status = v->state(v->ctx, c->batch[s], s, i, stop, pos, c->S + s * values, error);
        if (status) return status;
    }
    for (int32_t s = 0; s < c->n; s++) v->settle(v->ctx, c->batch[s], s, pos);
    return EBB_OK;
}

static bool go_on(const collector *c) {
    const ebb_progress *p = &c->config.progress;
    return !p->report || p->report(p->ctx, "calibrate", c->done, c->config.total);
}

static ebb_status run_batch(collector *c, const visitor *v, ebb_error *error) {
    int32_t stop = 0;
    for (int64_t pos = 0; pos < c->config.length;) {
        int64_t n = min_i64(c->config.length - pos, EBB_MAX_NEW);
        if (stop < c->config.n_stops) n = min_i64(n, c->config.stops[stop] - pos);
        n = min_i64(n, c->batch[0]->known - pos);
        if (!go_on(c))
            return ebb_fail(error, EBB_INTERRUPTED, "interrupted after %lld of %lld tokens; no layout was made",
                            (long long)c->done, (long long)c->config.total);
        ebb_status status = feed(c, v, pos, n, error);
        pos += n;
        if (!status && stop < c->config.n_stops && pos == c->config.stops[stop])
            status = show_states(c, v, stop++, error);
        if (status) return status;
    }
    for (int32_t s = 0; s < c->n; s++) v->end(v->ctx, c->batch[s], s);
    return EBB_OK;
}

ebb_status collect_run(collector *c, document *documents, int32_t n, const bool *wanted, const visitor *v,
                       ebb_error *error) {
    for (int32_t next = 0; next < n;) {
        for (c->n = 0; next < n && c->n < c->config.batch; next++)
            if (!wanted || wanted[documents[next].part]) c->batch[c->n++] = &documents[next];
        ebb_status status = c->n ? run_batch(c, v, error) : EBB_OK;
        if (status) return status;
    }
    (void)go_on(c);
    return EBB_OK;
}
