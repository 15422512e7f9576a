/* model/forward.c: the forward pass. A runner holds what passes of one model over one pair of pools need: a plan per
 * layer, a queue and the activations, all made when it is opened; ebb_forward itself allocates nothing, but experts of
 * a mixture that a token is the first to need. Called by the engine.
 *
 * Per layer: x += out(mixer(in(norm(x)))); x += down(swiglu(gate_up(norm(x)))), or a mixture of experts
 * (moe.c). Each of the four may have a bias, and what is added to x a norm of its own. */
#include "model/moe.h"
#include "model/runner.h"

#include "op/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SHADOWS = 64 };

/* ---- opening ---- */

static ebb_status check_config(const ebb_model *model, const ebb_runner_config *config, ebb_error *error) {
    if (!model || !config) return ebb_fail(error, EBB_BAD_ARGUMENT, "a runner needs a model and a configuration");
    if (config->size != sizeof *config)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_runner_config.size is %zu, this library expects %zu",
                        config->size, sizeof *config);
    if (config->max_seqs < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "max_seqs is %d; 1 or more is expected", config->max_seqs);
    if (config->max_new < 1 || config->max_new > EBB_MAX_NEW)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "max_new is %d; 1 .. %d is expected", config->max_new, EBB_MAX_NEW);
    if (config->max_tokens < 1 || config->max_tokens > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "max_tokens is %lld; 1 .. %d is expected",
                        (long long)config->max_tokens, INT32_MAX);
    if (model->info.state_layers && !config->state)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the model has %d recurrent layers; a state pool is expected",
                        model->info.state_layers);
    if (model->info.kv_layers && !config->kv)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the model has %d attention layers; a KV pool is expected",
                        model->info.kv_layers);
    if (config->shadow.n < 0 || config->shadow.n > MAX_SHADOWS || (config->shadow.n && !config->shadow.pools))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%d shadow pools; 0 to %d and their list are expected",
                        config->shadow.n, MAX_SHADOWS);
    for (int32_t i = 0; i < config->shadow.n; i++)
        if (!config->shadow.pools[i])
            return ebb_fail(error, EBB_BAD_ARGUMENT, "shadow pool %d is missing from the list", i);
    return EBB_OK;
}

static ebb_status check_state_layer(const ebb_state_view *view, const ebb_state_layer *layer, int32_t index,
                                    ebb_error *error) {
    if (view && view->layer->kind == layer->kind && view->layer->key_heads == layer->key_heads &&
        view->layer->heads == layer->heads && view->layer->key_dim == layer->key_dim &&
        view->layer->value_dim == layer->value_dim && view->layer->conv_width == layer->conv_width)
        return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT,
                    "the state pool has no layer %d as this model's: it was made for another model", index);
}

static ebb_status check_kv_layer(const ebb_kv_view *view, const ebb_kv_layer *layer, int32_t index, ebb_error *error) {
    bool same = view && view->layer->q_heads == layer->q_heads && view->layer->heads == layer->heads &&
                view->layer->parts == layer->parts;
    for (int32_t i = 0; same && i < layer->parts; i++)
        same = view->layer->part[i].dims == layer->part[i].dims && view->layer->part[i].role == layer->part[i].role;
    if (same) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT,
                    "the KV pool has no layer %d as this model's: it was made for another model", index);
}

/* Plans of the state layers of a shadow. */
static ebb_status plan_shadow(ebb_runner *r, const ebb_runner_config *config, int32_t index, size_t *scratch,
                              ebb_error *error) {
    const ebb_model *m = r->model;
    const ebb_state_pool *pool = config->shadow.pools[index];
    for (int32_t i = 0; i < m->info.layers; i++) {
        ebb_plan *plan = &r->plans[(size_t)(1 + index) * (size_t)m->info.layers + (size_t)i];
        if (m->layers[i].mixer != MIXER_DELTA) continue;
        const int32_t store = m->layers[i].store;
        const ebb_state_view *view = ebb_state_pool_view(pool, store);
        ebb_status status = check_state_layer(view, &m->state_layers[store], store, error);
        if (!status && view->slots < r->slots)
            status = ebb_fail(error, EBB_BAD_ARGUMENT, "shadow pool %d has %d slots; %d are expected", index,
                              view->slots, r->slots);
        if (!status)
            status = ebb_delta_plan(m->device, view, config->algorithm, EBB_STAGES, config->max_seqs, config->max_new,
                                    config->max_tokens, plan, error);
        if (status) return status;
        if (plan->scratch > *scratch) *scratch = plan->scratch;
    }
    return EBB_OK;
}

/* A plan per layer; *scratch is the largest that one needs. */
static ebb_status plan_layers(ebb_runner *r, const ebb_runner_config *config, size_t *scratch, ebb_error *error) {
    const ebb_model *m = r->model;
    for (int32_t i = 0; i < m->info.layers; i++) {
        ebb_plan *plan = &r->plans[i];
        int32_t store = m->layers[i].store;
        ebb_status status;
        *plan = (ebb_plan){.size = sizeof *plan};
        if (m->layers[i].mixer == MIXER_DELTA) {
            const ebb_state_view *view = ebb_state_pool_view(config->state, store);
            status = check_state_layer(view, &m->state_layers[store], store, error);
            if (!status)
                status = ebb_delta_plan(m->device, view, config->algorithm, EBB_STAGES, config->max_seqs,
                                        config->max_new, config->max_tokens, plan, error);
        } else {
            const ebb_kv_view *view = ebb_kv_pool_view(config->kv, store);
            status = check_kv_layer(view, &m->kv_layers[store], store, error);
            if (!status)
                status = ebb_attn_plan(m->device, view, config->algorithm, config->max_seqs, config->max_new,
                                       config->max_tokens, plan, error);
        }
        if (status) return status;
        if (plan->scratch > *scratch) *scratch = plan->scratch;
    }
    return EBB_OK;
}

/* Rows are padded to whole cache lines in size; only proj has a padded stride. The ranges of config.json keep every
 * product below 2^60. */
static int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

static ebb_status open_activations(ebb_runner *r, ebb_error *error) {
    const ebb_model *m = r->model;
    int64_t n = r->max_tokens, hidden = padded(m->info.hidden), inter = m->intermediate, proj = 0, mix = 0;
    mixer_widths most = {0};
    for (int32_t i = 0; i < m->info.layers; i++) {
        proj = max_i64(proj, padded(m->layers[i].in.n));
        mix = max_i64(mix, padded(m->layers[i].out.k));
        mixer_widths w = mixer_widths_of(m, i);
        most.q = max_i64(most.q, padded(w.q));
        for (int j = 0; j < 2; j++) most.side[j] = max_i64(most.side[j], padded(w.side[j]));
    }
    int64_t mixer = proj + mix + most.q + most.side[0] + most.side[1], mlp = padded(2 * inter) + padded(inter);
    int64_t either = n * max_i64(mixer, mlp);
    for (int32_t i = 0; i < m->info.layers; i++)
        if (m->layers[i].moe) either = max_i64(either, moe_floats(m, m->layers[i].moe, n));
    r->block_bytes = (size_t)(2 * n * hidden + either) * sizeof *r->block;
    r->block = ebb_device_alloc(m->device, r->block_bytes);
    if (!r->block)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the activations of %lld tokens: %zu bytes", (long long)n,
                        r->block_bytes);
    r->x = r->block;
    r->h = r->x + n * hidden;
    r->proj = r->gate_up = r->h + n * hidden;
    r->mix = r->proj + n * proj;
    r->q = r->mix + n * mix;
    r->side[0] = r->q + n * most.q;
    r->side[1] = r->side[0] + n * most.side[0];
    r->act = r->gate_up + n * padded(2 * inter);
    r->proj_stride = proj;
    return EBB_OK;
}

/* "gemm avx512, delta avx512, attention avx512"; " (prefill ref)" where another row serves the chunks. */
static void name_rows(ebb_runner *r) {
    const ebb_model *m = r->model;
    const ebb_plan *delta = NULL, *attention = NULL;
    for (int32_t i = 0; i < m->info.layers; i++)
        if (m->layers[i].mixer == MIXER_DELTA) delta = &r->plans[i];
        else attention = &r->plans[i];
    const bool mixed = delta && strcmp(delta->row_name, delta->chunk_name) != 0;
    snprintf(r->rows, sizeof r->rows, "gemm %s%s%s%s%s%s%s%s", ebb_linear_row(m->device), delta ? ", delta " : "",
             delta ? delta->row_name : "", mixed ? " (prefill " : "", mixed ? delta->chunk_name : "", mixed ? ")" : "",
             attention ? ", attention " : "", attention ? attention->row_name : "");
}

/* A batch may name slots that both pools have. */
static int32_t pool_slots(const ebb_runner_config *config) {
    int32_t slots = INT32_MAX;
    if (config->state) slots = ebb_state_pool_view(config->state, 0)->slots;
    if (config->kv && ebb_kv_pool_view(config->kv, 0)->slots < slots) slots = ebb_kv_pool_view(config->kv, 0)->slots;
    return slots;
}

ebb_status ebb_runner_open(ebb_model *model, const ebb_runner_config *config, ebb_runner **out, ebb_error *error) {
    size_t scratch = 0;
    if (!out) return ebb_fail(error, EBB_BAD_ARGUMENT, "a runner needs a place to go");
    *out = NULL;
    ebb_status status = check_config(model, config, error);
    if (status) return status;
    ebb_runner *r = calloc(1, sizeof *r);
    const size_t shadows = (size_t)config->shadow.n;
    if (r) r->plans = calloc((1 + shadows) * (size_t)model->info.layers, sizeof *r->plans);
    if (r) r->shadow_pools = calloc(shadows + 1, sizeof(ebb_state_pool *));
    if (!r || !r->plans || !r->shadow_pools) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a runner");
    if (status) goto done;
    r->model = model;
    r->state = config->state;
    r->kv = config->kv;
    r->max_seqs = config->max_seqs;
    r->max_tokens = config->max_tokens;
    r->tap = config->tap;
    r->slots = pool_slots(config);
    r->shadow = config->shadow;
    for (size_t i = 0; i < shadows; i++) r->shadow_pools[i] = config->shadow.pools[i];
    if ((status = plan_layers(r, config, &scratch, error))) goto done;
    for (int32_t i = 0; i < config->shadow.n; i++)
        if ((status = plan_shadow(r, config, i, &scratch, error))) goto done;
    if ((status = ebb_queue_open(model->device, scratch, &r->queue, error))) goto done;
    if ((status = open_activations(r, error))) goto done;
    name_rows(r);
done:
    if (status) ebb_runner_close(r);
    *out = status ? NULL : r;
    return status;
}

void ebb_runner_close(ebb_runner *r) {
    if (!r) return;
    ebb_queue_close(r->queue);
    if (r->model) ebb_device_free(r->model->device, r->block, r->block_bytes);
    free(r->plans);
    free(r->shadow_pools);
    free(r);
}

const char *ebb_runner_rows(const ebb_runner *runner) { return runner->rows; }

uint64_t ebb_runner_numerics(const ebb_runner *r) {
    uint64_t id = ebb_linear_numerics(r->model->device);
    for (int32_t i = 0; i < r->model->info.layers; i++) id = mix64(id ^ r->plans[i].numerics);
    return id;
}

/* ---- one pass ---- */

/* What op/batch.h asks of the batch, and ids of the vocabulary. */
static ebb_status check_tokens(const ebb_runner *r, const ebb_batch *b, const int32_t *ids, ebb_error *error) {
    ebb_status status = check_batch(b, r->max_seqs, r->max_tokens, r->slots, error);
    if (status) return status;
    if (b->tokens > 0 && !ids) return ebb_fail(error, EBB_BAD_ARGUMENT, "a batch of tokens needs their ids");
    for (int64_t t = 0; t < b->tokens; t++)
        if (ids[t] < 0 || ids[t] >= r->model->info.vocab)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "token %lld has id %d; 0 .. %d is expected", (long long)t, ids[t],
                            r->model->info.vocab - 1);
    return EBB_OK;
}

static ebb_status check_want(const ebb_runner *r, const ebb_batch *b, const int64_t *want, int64_t n,
                             const float *logits, ebb_error *error) {
    if (n < 0 || n > r->max_tokens)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "logits of %lld rows are wanted; 0 .. %lld is expected", (long long)n,
                        (long long)r->max_tokens);
    if (n > 0 && (!want || !logits))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "wanted logits need their rows and a place");
    for (int64_t i = 0; i < n; i++)
        if (want[i] < 0 || want[i] >= b->tokens)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "logits of row %lld are wanted; the batch has rows 0 .. %lld",
                            (long long)want[i], (long long)b->tokens - 1);
    return EBB_OK;
}

ebb_status runner_where(ebb_status status, int32_t layer, const char *what, ebb_error *error) {
    if (!status) return EBB_OK;
    return ebb_fail(error, status, "layer %d: %s failed: %s", layer, what, ebb_status_name(status));
}

void runner_tap(const ebb_runner *r, int32_t layer, ebb_tap_point point, float *data, int64_t rows, int64_t width,
                int64_t stride) {
    if (!r->tap.call) return;
    ebb_tensor t = {data, EBB_FP32, 2, {rows, width}, {stride, 1}};
    r->tap.call(r->tap.ctx, layer, point, &t);
}

static ebb_status project(ebb_runner *r, const ebb_weight *w, const float *bias, const float *from, int64_t from_stride,
                          float *to, int64_t to_stride, int64_t n) {
    ebb_status status = ebb_linear(r->queue, w, from, from_stride, to, to_stride, n, 0);
    if (!status && bias) status = ebb_add(r->queue, bias, 0, w->n, to, to_stride, n);
    return status;
}

/* x += post(W from + bias); h is free by then, for the norm and the sum behind it. */
static ebb_status project_back(ebb_runner *r, const ebb_weight *w, const float *bias, const float *post,
                               const float *from, int64_t n) {
    const int64_t hidden = r->model->info.hidden;
    ebb_status status;
    if (post) {
        status = project(r, w, bias, from, w->k, r->h, hidden, n);
        if (!status) status = ebb_rms_norm(r->queue, r->h, hidden, post, r->model->eps, hidden, r->h, hidden, n);
        if (!status) status = ebb_add(r->queue, r->h, hidden, hidden, r->x, hidden, n);
        return status;
    }
    status = ebb_linear(r->queue, w, from, w->k, r->x, hidden, n, EBB_ADD);
    if (!status && bias) status = ebb_add(r->queue, bias, 0, hidden, r->x, hidden, n);
    return status;
}

static ebb_status run_mlp(ebb_runner *r, int32_t layer, int64_t n, ebb_error *error) {
    const model_layer *l = &r->model->layers[layer];
    const int64_t hidden = r->model->info.hidden, inter = r->model->intermediate;
    ebb_status status = project(r, &l->gate_up, l->gate_up_bias, r->h, hidden, r->gate_up, 2 * inter, n);
    if (!status) status = ebb_swiglu(r->queue, r->gate_up, 2 * inter, inter, r->act, inter, n);
    if (!status) status = project_back(r, &l->down, l->down_bias, l->mlp_post, r->act, n);
    return runner_where(status, layer, "the MLP", error);
}

static ebb_status run_layer(ebb_runner *r, ebb_pass pass, const ebb_batch *b, int32_t layer, ebb_error *error) {
    const ebb_model *m = r->model;
    const model_layer *l = &m->layers[layer];
    int64_t n = b->tokens, hidden = m->info.hidden;
    ebb_status status = ebb_rms_norm(r->queue, r->x, hidden, l->mixer_norm, m->eps, hidden, r->h, hidden, n);
    if (status) return runner_where(status, layer, "the norm before the mixer", error);
    runner_tap(r, layer, EBB_TAP_MIXER_IN, r->h, n, hidden, hidden);
    status = project(r, &l->in, l->in_bias, r->h, hidden, r->proj, r->proj_stride, n);
    if (status) return runner_where(status, layer, "the input projection of the mixer", error);
    status = mixer_run(r, pass, b, layer, error);
    if (status) return status;
    runner_tap(r, layer, EBB_TAP_MIXER_OUT, r->mix, n, l->out.k, l->out.k);
    status = project_back(r, &l->out, l->out_bias, l->mixer_post, r->mix, n);
    if (status) return runner_where(status, layer, "the output projection of the mixer", error);

    status = ebb_rms_norm(r->queue, r->x, hidden, l->mlp_norm, m->eps, hidden, r->h, hidden, n);
    if (status) return runner_where(status, layer, "the norm before the MLP", error);
    status = l->moe ? moe_run(r, layer, n, error) : run_mlp(r, layer, n, error);
    if (status) return status;
    runner_tap(r, layer, EBB_TAP_RESIDUAL, r->x, n, hidden, hidden);
    return EBB_OK;
}

/* The last norm and the head, of the wanted rows only: norm gathers runs of neighbouring rows into h. */
static ebb_status run_head(ebb_runner *r, const int64_t *want, int64_t n_want, float *logits, ebb_error *error) {
    const ebb_model *m = r->model;
    const ebb_weight *head = m->head.n ? &m->head : &m->embedding;
    int64_t hidden = m->info.hidden;
    for (int64_t i = 0, n; i < n_want; i += n) {
        for (n = 1; i + n < n_want && want[i + n] == want[i] + n;) n++;
        ebb_status status = ebb_rms_norm(r->queue, r->x + want[i] * hidden, hidden, m->final_norm, m->eps, hidden,
                                         r->h + i * hidden, hidden, n);
        if (status) return runner_where(status, -1, "the last norm", error);
    }
    runner_tap(r, -1, EBB_TAP_FINAL, r->h, n_want, hidden, hidden);
    ebb_status status = ebb_linear(r->queue, head, r->h, hidden, logits, head->n, n_want, 0);
    if (status) return runner_where(status, -1, "the head", error);
    runner_tap(r, -1, EBB_TAP_LOGITS, logits, n_want, head->n, head->n);
    return EBB_OK;
}

ebb_status ebb_forward(ebb_runner *r, ebb_pass pass, const ebb_batch *batch, const int32_t *ids, const int64_t *want,
                       int64_t n_want, float *logits, ebb_error *error) {
    if (!r) return ebb_fail(error, EBB_BAD_ARGUMENT, "a forward pass needs a runner");
    if (pass != EBB_PREFILL && pass != EBB_STEP)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "pass is %d; EBB_PREFILL or EBB_STEP is expected", (int)pass);
    ebb_status status = check_tokens(r, batch, ids, error);
    if (!status) status = check_want(r, batch, want, n_want, logits, error);
    if (status || batch->tokens == 0) return status;

    const ebb_model *m = r->model;
    int64_t hidden = m->info.hidden;
    status = ebb_embed(r->queue, &m->embedding, ids, batch->tokens, r->x, hidden);
    if (status) return runner_where(status, -1, "the embedding", error);
    runner_tap(r, -1, EBB_TAP_EMBED, r->x, batch->tokens, hidden, hidden);
    for (int32_t i = 0; i < m->info.layers; i++)
        if ((status = run_layer(r, pass, batch, i, error))) return status;
    if (n_want > 0 && (status = run_head(r, want, n_want, logits, error))) return status;
    return ebb_queue_sync(r->queue, error);
}
