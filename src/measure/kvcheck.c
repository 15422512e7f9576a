/* measure/kvcheck.c: what KV methods and prefill modes do to the outputs of attention (ebb/measure.h). Called by
 * programs.
 *
 * The model runs over an FP32 cache, all tokens in one pass. A tap hands out q, k and v of each attention layer; they
 * go through a store of one layer: the prompt at once, then token by token what counts as generated. FP32 with full
 * prefill comes first, and gives the outputs that the others are compared with. */
#include "measure/kvcheck_int.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct check_run {
    ebb_model *model;
    const ebb_kvcheck_config *config;
    kv_opened *stores; /* [1 + n_stores]: FP32 first */
    ebb_kvcheck *check;
    ebb_tensor q, k;        /* of the layer whose tap is being called */
    int32_t store;          /* place among the attention layers */
    float *reference, *out; /* [tokens][q_heads * V dims], of this layer */
    ebb_status status;      /* of the taps */
    ebb_error *error;
    int64_t done;
} check_run;

/* ---- stores ---- */

ebb_status kv_choice_open(const ebb_kv_choice *choice, int32_t layers, kv_opened *opened, ebb_error *error) {
    *opened = (kv_opened){0};
    ebb_status status = ebb_kv_parse(choice->kv ? choice->kv : "bf16", &opened->spec, error);
    if (!status) status = ebb_kv_prefill(&opened->spec, &opened->prefill, error);
    if (!status && choice->prefill) status = ebb_prefill_parse(choice->prefill, &opened->prefill, error);
    if (!status && choice->kv_bits) status = ebb_kv_bits_read(choice->kv_bits, layers, &opened->bits, error);
    return status;
}

ebb_status kv_choice_pool(ebb_device *device, const kv_opened *opened, const ebb_kv_layer *layers, int32_t n,
                          int32_t index, int64_t tokens, ebb_kv_pool **pool, ebb_error *error) {
    ebb_kv_spec spec = opened->spec;
    if (opened->bits) spec.bits = opened->bits + index, spec.n_bits = n;
    const ebb_kv_pool_config c = {.size = sizeof c,
                                  .spec = &spec,
                                  .layers = layers + index,
                                  .n_layers = n,
                                  .slots = 1,
                                  .max_tokens = tokens,
                                  .max_new = 1,
                                  .prefill = &opened->prefill};
    ebb_status status = ebb_kv_pool_open(device, &c, pool, error);
    if (!status) status = ebb_kv_pool_reserve(*pool, 0, tokens, error);
    return status;
}

ebb_status kvcheck_config_check(const ebb_model *model, const ebb_kvcheck_config *c, ebb_error *error) {
    const ebb_model_info *info = ebb_model_describe(model);
    if (c->size != sizeof *c)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_kvcheck_config.size is %zu, this library expects %zu", c->size,
                        sizeof *c);
    if (info->kv_layers < 1)
        return ebb_fail(error, EBB_UNSUPPORTED, "this model (%s) has no attention layers; kvcheck needs some",
                        info->architecture);
    if (c->n_stores < 0 || c->n_stores > EBB_MAX_KV_CHOICES || (c->n_stores && !c->stores))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%d KV stores, expected 0 to %d", c->n_stores, EBB_MAX_KV_CHOICES);
    if (c->tokens < 2 || c->tokens > info->max_position || c->tokens > INT32_MAX || !c->ids)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a text of %lld tokens, expected 2 to %lld, the model's own limit",
                        (long long)c->tokens, (long long)info->max_position);
    if (c->steps < 0 || c->steps >= c->tokens)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%lld of %lld tokens are generated; expected 0 to %lld",
                        (long long)c->steps, (long long)c->tokens, (long long)c->tokens - 1);
    if (c->mass && c->steps < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "attention masses of 0 generated tokens; expected 1 or more");
    if (!(c->ratio >= 0 && c->ratio <= 1))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a ratio of %g of vertical keys; expected 0 to 1", c->ratio);
    return EBB_OK;
}

static ebb_status open_state(ebb_model *model, const ebb_kvcheck_config *config, kvcheck_model *m, ebb_error *error) {
    const ebb_model_info *info = ebb_model_describe(model);
    ebb_state_spec spec;
    if (!info->state_layers) {
        if (!config->state) return EBB_OK;
        return ebb_fail(error, EBB_BAD_ARGUMENT, "state method %s is given, but this model has no recurrent layers",
                        config->state);
    }
    ebb_status status = ebb_state_parse(config->state ? config->state : "fp32", &spec, error);
    if (!status) status = ebb_model_layout(model, spec.method, NULL, &m->layout, error);
    if (status) return status;
    spec.layout = m->layout;
    const ebb_state_pool_config c = {.size = sizeof c,
                                     .spec = &spec,
                                     .layers = ebb_model_state_layers(model),
                                     .n_layers = info->state_layers,
                                     .slots = 1,
                                     .max_new = 1};
    return ebb_state_pool_open(ebb_model_device(model), &c, &m->state, error);
}

ebb_status kvcheck_open(ebb_model *model, const ebb_kvcheck_config *config, const kv_opened *kv, int64_t piece,
                        ebb_tap tap, kvcheck_model *m, ebb_error *error) {
    const int32_t layers = ebb_model_describe(model)->kv_layers;
    ebb_status status = open_state(model, config, m, error);
    if (!status)
        status = kv_choice_pool(ebb_model_device(model), kv, ebb_model_kv_layers(model), layers, 0, config->tokens,
                                &m->kv, error);
    if (status) return status;
    const ebb_runner_config c = {.size = sizeof c,
                                 .state = m->state,
                                 .kv = m->kv,
                                 .max_seqs = 1,
                                 .max_new = 1,
                                 .max_tokens = piece,
                                 .algorithm = config->algorithm,
                                 .tap = tap};
    return ebb_runner_open(model, &c, &m->runner, error);
}

void kvcheck_close(kvcheck_model *m) {
    ebb_runner_close(m->runner);
    ebb_kv_pool_close(m->kv);
    ebb_state_pool_close(m->state);
    ebb_layout_free(m->layout);
}

/* ---- one layer through one store ---- */

static int32_t dims_of(const ebb_kv_layer *l, int32_t role) {
    int32_t dims = 0;
    for (int32_t i = 0; i < l->parts; i++)
        if (l->part[i].role & role) dims += l->part[i].dims;
    return dims;
}

/* `n` tokens from `from` of a tapped tensor (NULL: no data), as attention takes them. */
static ebb_tensor rows_of(const ebb_tensor *t, int64_t from, int64_t n, int64_t heads, int64_t dims) {
    if (!t) return (ebb_tensor){0};
    return (ebb_tensor){(float *)t->data + from * t->stride[0], EBB_FP32, 3, {n, heads, dims}, {t->stride[0], dims, 1}};
}

typedef struct replay {
    const ebb_kv_layer *layer;
    ebb_kv_view view;
    ebb_queue *queue;
    ebb_plan plan;
    ebb_tensor q, k, v, out;
} replay;

static ebb_status feed(replay *p, int64_t pos, int64_t n, bool prompt, ebb_error *error) {
    const ebb_kv_layer *l = p->layer;
    const int32_t slot = 0, cu[] = {0, (int32_t)n}, kd = dims_of(l, EBB_ROLE_K), vd = dims_of(l, EBB_ROLE_V);
    const ebb_attn_args args = {.size = sizeof args,
                                .s = p->view,
                                .b = {.seqs = 1, .tokens = n, .slot = &slot, .cu = cu, .pos = &pos},
                                .q = rows_of(&p->q, pos, n, l->q_heads, kd),
                                .k = rows_of(&p->k, pos, n, l->heads, kd),
                                .v = rows_of(p->v.data ? &p->v : NULL, pos, n, l->heads, vd),
                                .out = rows_of(&p->out, pos, n, l->q_heads, vd),
                                .prompt = prompt};
    return ebb_attn(p->queue, &p->plan, &args, error);
}

static ebb_status replay_store(check_run *r, const ebb_tensor *v, int32_t index, float *out) {
    const ebb_kvcheck_config *c = r->config;
    ebb_device *device = ebb_model_device(r->model);
    const ebb_kv_layer *layers = ebb_model_kv_layers(r->model), *l = layers + r->store;
    const int64_t prompt = c->tokens - c->steps, width = (int64_t)l->q_heads * dims_of(l, EBB_ROLE_V);
    ebb_kv_pool *pool = NULL;
    replay p = {.layer = l, .plan = {.size = sizeof p.plan}, .q = r->q, .k = r->k};
    if (v) p.v = *v;
    p.out = (ebb_tensor){out, EBB_FP32, 2, {c->tokens, width}, {width, 1}};
    ebb_status status = kv_choice_pool(device, &r->stores[index], layers, 1, r->store, c->tokens, &pool, r->error);
    if (!status) {
        p.view = *ebb_kv_pool_view(pool, 0);
        status = ebb_attn_plan(device, &p.view, c->algorithm, 1, 1, c->tokens, &p.plan, r->error);
    }
    if (!status) status = ebb_queue_open(device, p.plan.scratch, &p.queue, r->error);
    if (!status) status = feed(&p, 0, prompt, true, r->error);
    for (int64_t pos = prompt; !status && pos < c->tokens; pos++) status = feed(&p, pos, 1, false, r->error);
    if (!status) status = ebb_queue_sync(p.queue, r->error);
    ebb_queue_close(p.queue);
    ebb_kv_pool_close(pool);
    return status;
}

/* ---- comparing ---- */

static void compare(const check_run *r, int64_t width, int32_t store) {
    const ebb_kvcheck_config *c = r->config;
    const int64_t prompt = c->tokens - c->steps;
    ebb_kvcheck_cell *cell = r->check->cell + ((int64_t)store * r->check->layers + r->store) * 2;
    for (int64_t t = 0; t < c->tokens; t++) {
        ebb_kvcheck_cell *to = &cell[t >= prompt];
        for (int64_t i = t * width; i < (t + 1) * width; i++) {
            const double o = (double)r->reference[i], apart = (double)r->out[i] - o;
            to->error += apart * apart;
            to->norm += o * o;
        }
        to->values += width;
    }
}

static ebb_status go_on(check_run *r) {
    const ebb_progress *p = &r->config->progress;
    const int64_t all = (int64_t)r->check->layers * (r->config->n_stores + 1 + r->config->mass);
    if (!p->report || p->report(p->ctx, "attention", r->done++, all)) return EBB_OK;
    return ebb_fail(r->error, EBB_INTERRUPTED, "interrupted after %d of %d layers", r->store, r->check->layers);
}

static ebb_status measure_mass(check_run *r) {
    const ebb_kvcheck_config *c = r->config;
    const ebb_kv_layer *l = ebb_model_kv_layers(r->model) + r->store;
    const mass_input in = {.layer = l,
                           .dims = dims_of(l, EBB_ROLE_K),
                           .q = r->q.data,
                           .k = r->k.data,
                           .q_stride = r->q.stride[0],
                           .k_stride = r->k.stride[0],
                           .tokens = c->tokens,
                           .steps = c->steps,
                           .ratio = c->ratio > 0 ? c->ratio : 0.05};
    return mass_measure(&in, r->check->mass + (int64_t)r->store * EBB_KVCHECK_WINDOWS, r->error);
}

static ebb_status measure_layer(check_run *r, const ebb_tensor *v, int32_t layer) {
    const ebb_kv_layer *l = ebb_model_kv_layers(r->model) + r->store;
    const int64_t width = (int64_t)l->q_heads * dims_of(l, EBB_ROLE_V);
    ebb_status status = EBB_OK;
    r->check->layer[r->store] = layer;
    for (int32_t i = 0; i <= r->config->n_stores && !status; i++) {
        status = go_on(r);
        if (!status) status = replay_store(r, v, i, i ? r->out : r->reference);
        if (!status && i) compare(r, width, i - 1);
    }
    if (!status && r->config->mass) status = go_on(r);
    if (!status && r->config->mass) status = measure_mass(r);
    return status;
}

/* q, then k, then v, unless the value is in the key: the last of them starts the measurement. */
static void on_tap(void *ctx, int32_t layer, ebb_tap_point point, ebb_tensor *t) {
    check_run *r = ctx;
    if (r->status || point < EBB_TAP_Q) return;
    const ebb_kv_layer *l = ebb_model_kv_layers(r->model) + r->store;
    const bool shared = l->part[l->parts - 1].role != EBB_ROLE_V;
    if (point == EBB_TAP_Q) r->q = *t;
    if (point == EBB_TAP_K) r->k = *t;
    if (point == EBB_TAP_Q || (point == EBB_TAP_K && !shared)) return;
    r->status = measure_layer(r, shared ? NULL : t, layer);
    r->store++;
}

/* ---- the run ---- */

static ebb_status open_check(check_run *r, ebb_error *error) {
    const ebb_kvcheck_config *c = r->config;
    const int32_t layers = ebb_model_describe(r->model)->kv_layers;
    const ebb_kv_choice exact = {.kv = "fp32", .prefill = "full"};
    size_t widest = 0, bytes;
    r->check = calloc(1, sizeof *r->check);
    r->stores = calloc((size_t)c->n_stores + 1, sizeof *r->stores);
    if (!r->check || !r->stores) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a measurement");
    r->check->stores = c->n_stores;
    r->check->layers = layers;
    r->check->layer = calloc((size_t)layers, sizeof *r->check->layer);
    r->check->cell = calloc((size_t)(c->n_stores + 1) * (size_t)layers * 2, sizeof *r->check->cell);
    if (c->mass) r->check->mass = calloc((size_t)layers * EBB_KVCHECK_WINDOWS, sizeof *r->check->mass);
    for (int32_t i = 0; i < layers; i++) {
        const ebb_kv_layer *l = ebb_model_kv_layers(r->model) + i;
        const size_t width = (size_t)l->q_heads * (size_t)dims_of(l, EBB_ROLE_V) * sizeof(float);
        if (width > widest) widest = width;
    }
    if (size_mul(widest, (size_t)c->tokens, &bytes)) r->reference = aligned_new(bytes), r->out = aligned_new(bytes);
    if (!r->check->layer || !r->check->cell || (c->mass && !r->check->mass) || !r->reference || !r->out)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the outputs of %lld tokens", (long long)c->tokens);
    ebb_status status = kv_choice_open(&exact, layers, &r->stores[0], error);
    for (int32_t i = 0; i < c->n_stores && !status; i++)
        status = kv_choice_open(&c->stores[i], layers, &r->stores[1 + i], error);
    return status;
}

ebb_status ebb_kvcheck_run(ebb_model *model, const ebb_kvcheck_config *config, ebb_kvcheck **check, ebb_error *error) {
    if (!model || !config || !check)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a measurement needs a model, a configuration and a place to go");
    *check = NULL;
    ebb_status status = kvcheck_config_check(model, config, error);
    if (status) return status;
    check_run r = {.model = model, .config = config, .error = error};
    kvcheck_model m = {0};
    const int32_t slot = 0, cu[] = {0, (int32_t)config->tokens};
    const int64_t pos = 0;
    const ebb_batch b = {.seqs = 1, .tokens = config->tokens, .slot = &slot, .cu = cu, .pos = &pos};
    status = open_check(&r, error);
    if (!status) status = kvcheck_open(model, config, &r.stores[0], config->tokens, (ebb_tap){&r, on_tap}, &m, error);
    if (!status) status = ebb_forward(m.runner, EBB_PREFILL, &b, config->ids, NULL, 0, NULL, error);
    if (!status) {
        snprintf(r.check->rows, sizeof r.check->rows, "%s", ebb_runner_rows(m.runner));
        status = r.status;
    }
    kvcheck_close(&m);
    for (int32_t i = 0; r.stores && i <= config->n_stores; i++) free(r.stores[i].bits);
    free(r.stores), free(r.reference), free(r.out);
    if (!status) *check = r.check;
    else ebb_kvcheck_free(r.check);
    return status;
}

void ebb_kvcheck_free(ebb_kvcheck *check) {
    if (!check) return;
    free(check->layer), free(check->cell), free(check->mass);
    free(check);
}
