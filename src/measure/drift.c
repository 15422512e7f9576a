/* measure/drift.c: how far the states of several methods drift from FP32 ones along the same inputs (ebb/measure.h).
 * Called by programs.
 *
 * The runner's own pool is FP32 and drives the model; each method is a shadow of the run. Tokens go in steps of up to
 * EBB_MAX_NEW, cut at the measuring positions: a step of n tokens gives the bits of n steps of one. */
#include "core/core.h"
#include "ebb/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    ebb_model *model;
    const ebb_model_info *info;
    const ebb_state_layer *layers; /* [info->state_layers] */
    ebb_drift_config config;
    int64_t planned;                                  /* measuring positions */
    ebb_state_pool *pools[1 + EBB_MAX_DRIFT_METHODS]; /* the reference, then the methods */
    ebb_layout *layouts[1 + EBB_MAX_DRIFT_METHODS];   /* of the calibrated ones */
    char given[EBB_METHOD_TEXT];                      /* what config.layout is made for */
    bool used;                                        /* by a method */
    ebb_kv_pool *kv;
    ebb_runner *runner;
    ebb_queue *queue; /* for reading states */
    ebb_plan *plans;  /* [1 + n_methods][state layers], likewise */
    float *S, *S_q;   /* one layer of all sequences: of the reference, of a method */
    int32_t *slot, *cu, *ids;
    int64_t *pos;
    int32_t *first_head;  /* [state layers]: among the heads of all layers */
    double *error, *norm; /* [n_methods][heads]: of the outputs since the last measured position */
    double *decay;        /* [heads]: sums of e^g over the tokens */
    int32_t store, layer; /* of the shadow call before: place among the state layers, layer of the model */
    ebb_drift *drift;
} run;

/* ---- opening ---- */

static ebb_status check_config(const run *r, ebb_error *error) {
    const ebb_drift_config *c = &r->config;
    if (r->info->state_layers < 1)
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "this model (%s) has no recurrent layers; drift is measured on states of GDN or KDA layers",
                        r->info->architecture);
    if (c->n_methods < 1 || c->n_methods > EBB_MAX_DRIFT_METHODS || !c->methods)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%d state methods, expected 1 to %d", c->n_methods,
                        EBB_MAX_DRIFT_METHODS);
    if (c->seqs < 1 || c->seqs > 65536)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%d sequences, expected 1 to 65536", c->seqs);
    if (c->tokens < 1 || c->tokens > r->info->max_position || !c->ids)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "sequences of %lld tokens, expected 1 to %lld, the model's own limit",
                        (long long)c->tokens, (long long)r->info->max_position);
    if (c->every < 0 || c->per_decade < 0 || c->per_decade > 1000)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "measuring every %lld tokens, %d times a decade: expected 0 or more, and 0 to 1000",
                        (long long)c->every, c->per_decade);
    return EBB_OK;
}

/* The first measuring position after `pos`. */
static int64_t next_position(const ebb_drift_config *c, int64_t pos) {
    int64_t next = pos ? 2 * pos : 1;
    if (c->every) next = pos > INT64_MAX - c->every ? c->tokens : pos + c->every;
    else if (c->per_decade) {
        double i = pos ? floor(log10((double)pos) * c->per_decade) : 0;
        while ((next = llround(pow(10, i / c->per_decade))) <= pos) i++;
    }
    return min_i64(next, c->tokens);
}

static ebb_status open_drift(run *r, ebb_error *error) {
    const ebb_drift_config *c = &r->config;
    size_t cells, bytes;
    ebb_drift *d = r->drift = calloc(1, sizeof *d);
    if (!d) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a measurement");
    d->methods = c->n_methods;
    d->seqs = c->seqs;
    for (int32_t i = 0; i < r->info->state_layers; i++) d->heads += r->layers[i].heads;
    for (int64_t pos = 0; pos < c->tokens; pos = next_position(c, pos)) r->planned++;
    const bool fits = size_mul((size_t)d->methods * (size_t)d->heads, (size_t)r->planned, &cells) &&
                      size_mul(cells, sizeof *d->cells, &bytes);
    if (fits) d->position = calloc((size_t)r->planned, sizeof *d->position);
    if (fits) d->cells = calloc(cells, sizeof *d->cells);
    d->head = calloc((size_t)d->heads, sizeof *d->head);
    if (!d->position || !d->cells || !d->head)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for %lld measuring positions of %d methods and %d heads",
                        (long long)r->planned, d->methods, d->heads);
    return EBB_OK;
}

static ebb_status look_at_layout(run *r, ebb_error *error) {
    ebb_layout *layout = NULL;
    ebb_status status = r->config.layout ? ebb_layout_read(r->config.layout, &layout, error) : EBB_OK;
    if (layout) snprintf(r->given, sizeof r->given, "%s", ebb_layout_method(layout));
    ebb_layout_free(layout);
    return status;
}

static ebb_status check_layout(const run *r, ebb_error *error) {
    if (!r->config.layout || r->used) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "%s: a layout for method %s, which is not among those measured",
                    r->config.layout, r->given);
}

static ebb_status open_layout(run *r, int32_t index, ebb_state_spec *spec, ebb_error *error) {
    const char *name = ebb_state_layout_name(spec->method);
    if (!name) return EBB_OK;
    const bool given = strcmp(name, r->given) == 0;
    r->used |= given;
    ebb_status status =
        ebb_model_layout(r->model, spec->method, given ? r->config.layout : NULL, &r->layouts[index], error);
    spec->layout = r->layouts[index];
    return status;
}

/* Pool 0 is the reference, which is exact whatever its window. */
static ebb_status open_pool(run *r, int32_t index, ebb_error *error) {
    ebb_state_spec spec;
    ebb_status status = ebb_state_parse(index ? r->config.methods[index - 1] : "fp32", &spec, error);
    if (!status) status = open_layout(r, index, &spec, error);
    if (status) return status;
    ebb_state_pool_config c = {.size = sizeof c,
                               .spec = &spec,
                               .layers = r->layers,
                               .n_layers = r->info->state_layers,
                               .slots = r->config.seqs,
                               .max_new = EBB_MAX_NEW};
    status = ebb_state_pool_open(ebb_model_device(r->model), &c, &r->pools[index], error);
    size_t live;
    if (!status && index) ebb_state_pool_slot_bytes(r->pools[index], &r->drift->packed[index - 1], &live);
    return status;
}

static ebb_status open_kv(run *r, ebb_error *error) {
    ebb_kv_spec spec;
    ebb_status status = ebb_kv_parse(r->config.kv ? r->config.kv : "bf16", &spec, error);
    if (status || !r->info->kv_layers) return status;
    ebb_kv_pool_config c = {.size = sizeof c,
                            .spec = &spec,
                            .layers = ebb_model_kv_layers(r->model),
                            .n_layers = r->info->kv_layers,
                            .slots = r->config.seqs,
                            .max_tokens = r->config.tokens};
    status = ebb_kv_pool_open(ebb_model_device(r->model), &c, &r->kv, error);
    for (int32_t i = 0; i < r->config.seqs && !status; i++)
        status = ebb_kv_pool_reserve(r->kv, i, r->config.tokens, error);
    return status;
}

/* Plans without stages, and a queue, for ebb_delta_read. */
static ebb_status open_reading(run *r, ebb_error *error) {
    const int32_t layers = r->info->state_layers, pools = 1 + r->config.n_methods;
    size_t scratch = 0;
    r->plans = calloc((size_t)pools * (size_t)layers, sizeof *r->plans);
    if (!r->plans) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d plans", pools * layers);
    for (int32_t i = 0; i < pools * layers; i++) {
        r->plans[i].size = sizeof *r->plans;
        ebb_status status =
            ebb_delta_plan(ebb_model_device(r->model), ebb_state_pool_view(r->pools[i / layers], i % layers),
                           r->config.algorithm, 0, r->config.seqs, 1, r->config.seqs, &r->plans[i], error);
        if (status) return status;
        if (r->plans[i].scratch > scratch) scratch = r->plans[i].scratch;
    }
    return ebb_queue_open(ebb_model_device(r->model), scratch, &r->queue, error);
}

static size_t matrix_values(const ebb_state_layer *l) { return (size_t)l->key_dim * (size_t)l->value_dim; }

static ebb_status open_arrays(run *r, ebb_error *error) {
    const size_t seqs = (size_t)r->config.seqs, methods = (size_t)r->config.n_methods, heads = (size_t)r->drift->heads;
    size_t values = 0, all;
    for (int32_t i = 0; i < r->info->state_layers; i++) {
        size_t layer = (size_t)r->layers[i].heads * matrix_values(&r->layers[i]);
        if (layer > values) values = layer;
    }
    r->first_head = calloc((size_t)r->info->state_layers, sizeof *r->first_head);
    r->slot = calloc(seqs, sizeof *r->slot);
    r->cu = calloc(seqs + 1, sizeof *r->cu);
    r->pos = calloc(seqs, sizeof *r->pos);
    r->ids = calloc(seqs * EBB_MAX_NEW, sizeof *r->ids);
    r->error = calloc(methods * heads, sizeof *r->error);
    r->norm = calloc(methods * heads, sizeof *r->norm);
    r->decay = calloc(heads, sizeof *r->decay);
    if (size_mul(values, seqs, &all) && size_mul(all, sizeof *r->S, &all)) {
        r->S = aligned_new(all);
        r->S_q = aligned_new(all);
    }
    if (!r->first_head || !r->slot || !r->cu || !r->pos || !r->ids || !r->error || !r->norm || !r->decay || !r->S ||
        !r->S_q)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory to compare the states of %d sequences", r->config.seqs);
    for (int32_t i = 0; i < r->config.seqs; i++) r->slot[i] = i;
    for (int32_t i = 1; i < r->info->state_layers; i++)
        r->first_head[i] = r->first_head[i - 1] + r->layers[i - 1].heads;
    return EBB_OK;
}

/* ---- outputs ---- */

/* A new layer number is the next state layer: the run visits them in order. */
static void on_shadow(void *ctx, int32_t layer, int32_t pool, const ebb_tensor *own, const ebb_tensor *shadow) {
    run *r = ctx;
    if (layer != r->layer) {
        r->layer = layer;
        r->store++;
    }
    const ebb_state_layer *l = &r->layers[r->store];
    const int32_t first = r->first_head[r->store];
    for (int32_t h = 0; h < l->heads; h++) {
        r->drift->head[first + h].layer = layer;
        r->drift->head[first + h].head = h;
        double error = 0, norm = 0;
        for (int64_t t = 0; t < own->shape[0]; t++) {
            const float *o = (const float *)own->data + t * own->stride[0] + (int64_t)h * l->value_dim;
            const float *q = (const float *)shadow->data + t * shadow->stride[0] + (int64_t)h * l->value_dim;
            for (int32_t i = 0; i < l->value_dim; i++) {
                const double apart = (double)q[i] - (double)o[i];
                error += apart * apart;
                norm += (double)o[i] * (double)o[i];
            }
        }
        r->error[(int64_t)pool * r->drift->heads + first + h] += error;
        r->norm[(int64_t)pool * r->drift->heads + first + h] += norm;
    }
}

/* The log decays of the tokens just run are in the reference's ring of records, which holds EBB_MAX_NEW of them. */
static void add_decays(run *r, int64_t pos, int64_t n) {
    for (int32_t i = 0; i < r->info->state_layers; i++) {
        const ebb_state_view *v = ebb_state_pool_view(r->pools[0], i);
        const ebb_state_layer *l = &r->layers[i];
        const int64_t channels = l->kind == EBB_KDA ? l->key_dim : 1;
        for (int64_t s = 0; s < r->config.seqs; s++) {
            const float *ring = (const float *)(const void *)(v->live + s * v->live_slot + v->decay_at);
            for (int64_t t = pos; t < pos + n; t++)
                for (int64_t j = 0; j < l->heads * channels; j++)
                    r->decay[r->first_head[i] + j / channels] +=
                        exp((double)ring[t % v->cap * l->heads * channels + j]) / (double)channels;
        }
    }
}

/* Tokens pos .. pos + n - 1 of every sequence. */
static ebb_status feed(run *r, int64_t pos, int64_t n, ebb_error *error) {
    const ebb_drift_config *c = &r->config;
    for (int32_t i = 0; i < c->seqs; i++) {
        r->pos[i] = pos;
        r->cu[i + 1] = r->cu[i] + (int32_t)n;
        memcpy(r->ids + r->cu[i], c->ids + i * c->tokens + pos, (size_t)n * sizeof *r->ids);
    }
    const ebb_batch b = {.seqs = c->seqs, .tokens = c->seqs * n, .slot = r->slot, .cu = r->cu, .pos = r->pos};
    r->store = r->layer = -1;
    ebb_status status = ebb_forward(r->runner, EBB_STEP, &b, r->ids, NULL, 0, NULL, error);
    if (!status) add_decays(r, pos, n);
    return status;
}

/* ---- states ---- */

static double relative(double error, double norm) {
    if (isnan(error) || isnan(norm)) return NAN;
    return norm > 0 ? sqrt(error / norm) : error > 0 ? INFINITY : 0;
}

static ebb_status read_states(run *r, int32_t pool, int32_t layer, int64_t pos, float *S, ebb_error *error) {
    for (int32_t i = 0; i < r->config.seqs; i++) r->pos[i] = pos;
    const ebb_delta_args args = {.size = sizeof args,
                                 .s = *ebb_state_pool_view(r->pools[pool], layer),
                                 .b = {.seqs = r->config.seqs, .slot = r->slot, .cu = r->cu, .pos = r->pos}};
    return ebb_delta_read(r->queue, &r->plans[pool * r->info->state_layers + layer], &args, S, error);
}

/* Head h of S_q against S, all sequences. */
static void compare(const run *r, const ebb_state_layer *l, int32_t h, ebb_drift_cell *cell) {
    const size_t n = matrix_values(l);
    for (size_t s = 0; s < (size_t)r->config.seqs; s++) {
        const size_t at = (s * (size_t)l->heads + (size_t)h) * n;
        double error = 0, norm = 0;
        for (size_t i = at; i < at + n; i++) {
            const double apart = (double)r->S_q[i] - (double)r->S[i];
            error += apart * apart;
            norm += (double)r->S[i] * (double)r->S[i];
        }
        cell->state += relative(error, norm) / r->config.seqs;
        cell->state_error += error;
        cell->state_norm += norm;
    }
}

/* All layers at `pos`; the sums of the outputs begin anew. */
static ebb_status measure(run *r, int64_t pos, ebb_error *error) {
    ebb_drift *d = r->drift;
    ebb_drift_cell *cells = d->cells + d->points * d->methods * d->heads;
    for (int32_t i = 0; i < r->info->state_layers; i++) {
        ebb_status status = read_states(r, 0, i, pos, r->S, error);
        for (int32_t m = 0; m < d->methods && !status; m++) {
            status = read_states(r, 1 + m, i, pos, r->S_q, error);
            for (int32_t h = 0; h < r->layers[i].heads && !status; h++)
                compare(r, &r->layers[i], h, &cells[m * d->heads + r->first_head[i] + h]);
        }
        if (status) return status;
    }
    for (int32_t i = 0; i < d->methods * d->heads; i++) {
        cells[i].output_error = r->error[i], cells[i].output_norm = r->norm[i];
        r->error[i] = r->norm[i] = 0;
    }
    for (int32_t i = 0; i < d->heads; i++) d->head[i].decay = r->decay[i] / ((double)pos * d->seqs);
    d->position[d->points++] = pos;
    return ebb_queue_sync(r->queue, error);
}

/* ---- the run ---- */

static ebb_status open_run(run *r, ebb_error *error) {
    ebb_status status = check_config(r, error);
    if (!status) status = open_drift(r, error);
    if (!status) status = look_at_layout(r, error);
    for (int32_t i = 0; i <= r->config.n_methods && !status; i++) status = open_pool(r, i, error);
    if (!status) status = check_layout(r, error);
    if (!status) status = open_kv(r, error);
    if (!status) status = open_reading(r, error);
    if (!status) status = open_arrays(r, error);
    if (status) return status;
    const ebb_runner_config c = {.size = sizeof c,
                                 .state = r->pools[0],
                                 .kv = r->kv,
                                 .max_seqs = r->config.seqs,
                                 .max_new = EBB_MAX_NEW,
                                 .max_tokens = (int64_t)r->config.seqs * EBB_MAX_NEW,
                                 .algorithm = r->config.algorithm,
                                 .shadow = {r->pools + 1, r->config.n_methods, r, on_shadow}};
    status = ebb_runner_open(r->model, &c, &r->runner, error);
    if (!status) snprintf(r->drift->rows, sizeof r->drift->rows, "%s", ebb_runner_rows(r->runner));
    return status;
}

static bool go_on(const run *r, int64_t pos) {
    const ebb_progress *p = &r->config.progress;
    return !p->report || p->report(p->ctx, "drift", pos * r->config.seqs, r->config.tokens * r->config.seqs);
}

static ebb_status run_all(run *r, ebb_error *error) {
    ebb_status status = EBB_OK;
    int64_t measured = 0, pos = 0;
    while (pos < r->config.tokens && go_on(r, pos)) {
        const int64_t stop = next_position(&r->config, measured), n = min_i64(stop - pos, EBB_MAX_NEW);
        if ((status = feed(r, pos, n, error))) return status;
        pos += n;
        if (pos < stop) continue;
        if ((status = measure(r, pos, error))) return status;
        measured = pos;
    }
    if (pos > measured && (status = measure(r, pos, error))) return status;
    if (pos == r->config.tokens) return go_on(r, pos), EBB_OK;
    return ebb_fail(error, EBB_INTERRUPTED, "interrupted after %lld of %lld tokens", (long long)pos,
                    (long long)r->config.tokens);
}

static void close_run(run *r) {
    ebb_runner_close(r->runner);
    ebb_queue_close(r->queue);
    ebb_kv_pool_close(r->kv);
    for (int32_t i = 0; i < COUNT(r->pools); i++) {
        ebb_state_pool_close(r->pools[i]);
        ebb_layout_free(r->layouts[i]);
    }
    free(r->plans), free(r->S), free(r->S_q);
    free(r->slot), free(r->cu), free(r->pos), free(r->ids);
    free(r->first_head), free(r->error), free(r->norm), free(r->decay);
}

ebb_status ebb_drift_run(ebb_model *model, const ebb_drift_config *config, ebb_drift **drift, ebb_error *error) {
    if (!model || !config || !drift)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a measurement needs a model, a configuration and a place to go");
    *drift = NULL;
    if (config->size != sizeof *config)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_drift_config.size is %zu, this library expects %zu", config->size,
                        sizeof *config);
    run r = {
        .model = model, .info = ebb_model_describe(model), .layers = ebb_model_state_layers(model), .config = *config};
    if (!r.config.seqs) r.config.seqs = 1;
    ebb_status status = open_run(&r, error);
    if (!status) status = run_all(&r, error);
    close_run(&r);
    if (!status || status == EBB_INTERRUPTED) *drift = r.drift;
    else ebb_drift_free(r.drift);
    return status;
}

void ebb_drift_free(ebb_drift *drift) {
    if (!drift) return;
    free(drift->position), free(drift->head), free(drift->cells);
    free(drift);
}

/* ---- several heads together ---- */

/* The larger of both, or the one that is no number. */
static bool is_worse(double a, double b) { return isnan(a) ? !isnan(b) : a > b; }

void ebb_drift_summarize(const ebb_drift *d, int64_t point, int32_t method, int32_t first, int32_t n,
                         ebb_drift_summary *summary) {
    const ebb_drift_cell *cells = d->cells + (point * d->methods + method) * d->heads;
    double state_error = 0, state_norm = 0, output_error = 0, output_norm = 0;
    ebb_drift_summary s = {.state_max = -1, .output_max = -1};
    for (int32_t i = first; i < first + n; i++) {
        const double state = cells[i].state, output = relative(cells[i].output_error, cells[i].output_norm);
        if (is_worse(state, s.state_max)) s.state_max = state, s.state_worst = i;
        if (is_worse(output, s.output_max)) s.output_max = output, s.output_worst = i;
        s.state_mean += state / n, s.output_mean += output / n;
        state_error += cells[i].state_error, state_norm += cells[i].state_norm;
        output_error += cells[i].output_error, output_norm += cells[i].output_norm;
    }
    s.state_rms = relative(state_error, state_norm);
    s.output_rms = relative(output_error, output_norm);
    *summary = s;
}
