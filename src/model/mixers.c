/* model/mixers.c: the mixers of a layer, between its input and its output projection: Gated DeltaNet, Kimi Delta
 * Attention, gated softmax attention, and latent attention (MLA). Called by forward.c. */
#include "model/runner.h"

/* [tokens][heads][dim] inside rows of `stride` floats, heads `pitch` apart. */
static ebb_tensor heads_of(float *data, int64_t tokens, int64_t heads, int64_t dim, int64_t stride, int64_t pitch) {
    return (ebb_tensor){data, EBB_FP32, 3, {tokens, heads, dim}, {stride, pitch, 1}};
}

/* The same in rows of their own. */
static ebb_tensor dense_heads(float *data, int64_t tokens, int64_t heads, int64_t dim) {
    return heads_of(data, tokens, heads, dim, heads * dim, dim);
}

static ebb_tensor scalars_of(float *data, int64_t tokens, int64_t heads, int64_t stride) {
    return (ebb_tensor){data, EBB_FP32, 2, {tokens, heads}, {stride, 1}};
}

mixer_widths mixer_widths_of(const ebb_model *model, int32_t layer) {
    const model_layer *l = &model->layers[layer];
    mixer_widths w = {.q = l->out.k};
    if (l->mixer == MIXER_DELTA) {
        const ebb_state_layer *s = &model->state_layers[l->store];
        if (s->kind == EBB_KDA)
            w.side[0] = (int64_t)s->heads * s->key_dim, w.side[1] = (int64_t)s->heads * s->value_dim;
    } else if (l->absorb) {
        const ebb_kv_layer *s = &model->kv_layers[l->store];
        w.q = (int64_t)s->q_heads * (s->part[0].dims + s->part[1].dims);
        w.side[0] = (int64_t)s->q_heads * s->part[0].dims;
    }
    return w;
}

/* ---- delta rule ---- */

static ebb_status run_delta(ebb_runner *r, ebb_pass pass, const ebb_plan *plan, const ebb_delta_args *args,
                            ebb_error *error) {
    if (pass == EBB_PREFILL) return ebb_delta_prefill(r->queue, plan, args, error);
    return ebb_delta_step(r->queue, plan, args, error);
}

/* The same inputs into the pool of a shadow; its output goes to where the mixer's own is not. */
static ebb_status run_shadow(ebb_runner *r, ebb_pass pass, int32_t layer, int32_t index, ebb_delta_args args,
                             ebb_error *error) {
    const ebb_tensor own = args.out;
    args.s = *ebb_state_pool_view(r->shadow_pools[index], r->model->layers[layer].store);
    args.out.data = own.data == r->mix ? r->q : r->mix;
    const ebb_plan *plan = &r->plans[(size_t)(1 + index) * (size_t)r->model->info.layers + (size_t)layer];
    ebb_status status = run_delta(r, pass, plan, &args, error);
    if (!status && r->shadow.call) r->shadow.call(r->shadow.ctx, layer, index, &own, &args.out);
    return status;
}

/* What lies behind q | k | v in a projected row: z | b | a of Gated DeltaNet. */
static void gdn_gates(const ebb_runner *r, const ebb_state_layer *s, float *row, ebb_delta_args *args) {
    int64_t n = args->b.tokens, stride = r->proj_stride, values = (int64_t)s->heads * s->value_dim;
    float *beta = row + values, *a = beta + s->heads;
    args->z = heads_of(row, n, s->heads, s->value_dim, stride, s->value_dim);
    args->beta = scalars_of(beta, n, s->heads, stride);
    args->g = scalars_of(a, n, s->heads, stride);
}

/* b | f_a | g_a of KDA, whose g and z are products of two matrices. */
static ebb_status kda_gates(ebb_runner *r, const model_layer *l, const ebb_state_layer *s, float *row,
                            ebb_delta_args *args) {
    int64_t n = args->b.tokens, stride = r->proj_stride;
    float *f = row + s->heads, *g = f + l->decay.k;
    args->beta = scalars_of(row, n, s->heads, stride);
    args->g = dense_heads(r->side[0], n, s->heads, s->key_dim);
    args->z = dense_heads(r->side[1], n, s->heads, s->value_dim);
    ebb_status status = ebb_linear(r->queue, &l->decay, f, stride, r->side[0], l->decay.n, n, 0);
    if (!status) status = ebb_linear(r->queue, &l->gate, g, stride, r->side[1], l->gate.n, n, 0);
    return status;
}

/* mix = the gated output of the recurrence over one projected row a token: q | k | v, then what makes the gates. */
static ebb_status delta_mixer(ebb_runner *r, ebb_pass pass, const ebb_batch *b, int32_t layer, ebb_error *error) {
    const model_layer *l = &r->model->layers[layer];
    const ebb_state_layer *s = &r->model->state_layers[l->store];
    int64_t n = b->tokens, stride = r->proj_stride, keys = (int64_t)s->key_heads * s->key_dim;
    int64_t values = (int64_t)s->heads * s->value_dim;
    float *q = r->proj, *k = q + keys, *v = k + keys, *gates = v + values;
    runner_tap(r, layer, EBB_TAP_QKV, r->proj, n, 2 * keys + values, stride);
    ebb_delta_args args = {
        .size = sizeof args,
        .s = *ebb_state_pool_view(r->state, l->store),
        .b = *b,
        .q = heads_of(q, n, s->key_heads, s->key_dim, stride, s->key_dim),
        .k = heads_of(k, n, s->key_heads, s->key_dim, stride, s->key_dim),
        .v = heads_of(v, n, s->heads, s->value_dim, stride, s->value_dim),
        .out = dense_heads(l->tiled ? r->q : r->mix, n, s->heads, s->value_dim), /* a delta layer leaves q free */
        .mixer = &l->delta,
    };
    ebb_status status = EBB_OK;
    if (s->kind == EBB_KDA) status = kda_gates(r, l, s, gates, &args);
    else gdn_gates(r, s, gates, &args);
    if (status) return runner_where(status, layer, "the gates of the mixer", error);
    status = run_delta(r, pass, &r->plans[layer], &args, error);
    for (int32_t i = 0; !status && i < r->shadow.n; i++) status = run_shadow(r, pass, layer, i, args, error);
    if (status || !l->tiled) return status;
    status = ebb_tile_heads(r->queue, r->q, s->heads, s->key_heads, s->value_dim, r->mix, n);
    return runner_where(status, layer, "the order of the value heads", error);
}

/* ---- softmax attention ---- */

static void tap_heads(const ebb_runner *r, int32_t layer, ebb_tap_point point, const ebb_tensor *t) {
    if (t->data) runner_tap(r, layer, point, t->data, t->shape[0], t->shape[1] * t->shape[2], t->stride[0]);
}

/* What attention reads, as it reads it. */
static void tap_attention(const ebb_runner *r, int32_t layer, const ebb_attn_args *args) {
    tap_heads(r, layer, EBB_TAP_Q, &args->q);
    tap_heads(r, layer, EBB_TAP_K, &args->k);
    tap_heads(r, layer, EBB_TAP_V, &args->v);
}

/* Gated softmax attention over one projected row a token: per query head q or q | gate, then k, then v. */
static ebb_status attention_mixer(ebb_runner *r, ebb_pass pass, const ebb_batch *b, int32_t layer, ebb_error *error) {
    const model_layer *l = &r->model->layers[layer];
    const ebb_kv_layer *s = &r->model->kv_layers[l->store];
    int64_t n = b->tokens, stride = r->proj_stride, dim = s->part[0].dims, pitch = l->gated ? 2 * dim : dim;
    float *q = r->proj, *k = q + s->q_heads * pitch, *v = k + s->heads * dim;
    runner_tap(r, layer, EBB_TAP_QKV, r->proj, n, l->in.n, stride);
    ebb_attn_args args = {
        .size = sizeof args,
        .s = *ebb_kv_pool_view(r->kv, l->store),
        .b = *b,
        .q = dense_heads(r->q, n, s->q_heads, dim),
        .k = heads_of(k, n, s->heads, dim, stride, dim),
        .v = heads_of(v, n, s->heads, dim, stride, dim),
        .out = dense_heads(r->mix, n, s->q_heads, dim),
        .prompt = pass == EBB_PREFILL,
    };
    if (l->gated) args.gate = heads_of(q + dim, n, s->q_heads, dim, stride, pitch);
    ebb_tensor raw = heads_of(q, n, s->q_heads, dim, stride, pitch);
    ebb_status status = ebb_rope_norm(r->queue, &l->rope, b, &raw, &args.q, &args.k, error);
    if (status) return status;
    tap_attention(r, layer, &args);
    return ebb_attn(r->queue, &r->plans[layer], &args, error);
}

/* Latent attention without positions, absorbed: a projected row is per query head nope | rest, then the latent c, then
 * the rest of the key. With W_uk and W_uv of a head, k = [W_uk c | rest] and v = W_uv c, so that
 *   q . k = (W_uk^T nope) . c + rest . rest   and   sum p v = W_uv (sum p c):
 * attention reads c alone, after its norm, and keys and values of heads are never made. */
static ebb_status latent_mixer(ebb_runner *r, ebb_pass pass, const ebb_batch *b, int32_t layer, ebb_error *error) {
    const model_layer *l = &r->model->layers[layer];
    const ebb_kv_layer *s = &r->model->kv_layers[l->store];
    int64_t n = b->tokens, stride = r->proj_stride, heads = s->q_heads, rank = s->part[0].dims, rest = s->part[1].dims;
    int64_t raw_dim = l->absorb->k + rest;
    float *c = r->proj + heads * raw_dim;
    runner_tap(r, layer, EBB_TAP_QKV, r->proj, n, l->in.n, stride);
    ebb_attn_args args = {
        .size = sizeof args,
        .s = *ebb_kv_pool_view(r->kv, l->store),
        .b = *b,
        .q = dense_heads(r->q, n, heads, rank + rest),
        .k = heads_of(c, n, 1, rank + rest, stride, rank + rest),
        .out = dense_heads(r->side[0], n, heads, rank),
        .prompt = pass == EBB_PREFILL,
    };
    ebb_tensor raw = heads_of(r->proj, n, heads, raw_dim, stride, raw_dim);
    ebb_tensor mix = dense_heads(r->mix, n, heads, l->expand->n);
    ebb_status status = ebb_rms_norm(r->queue, c, stride, l->latent_norm, l->latent_eps, rank, c, stride, n);
    if (status) return runner_where(status, layer, "the norm of the latent", error);
    status = ebb_linear_heads(r->queue, l->absorb, &raw, &args.q, error);
    if (!status) tap_attention(r, layer, &args);
    if (!status) status = ebb_attn(r->queue, &r->plans[layer], &args, error);
    if (!status) status = ebb_linear_heads(r->queue, l->expand, &args.out, &mix, error);
    return status;
}

ebb_status mixer_run(ebb_runner *r, ebb_pass pass, const ebb_batch *b, int32_t layer, ebb_error *error) {
    const model_layer *l = &r->model->layers[layer];
    if (l->mixer == MIXER_DELTA) return delta_mixer(r, pass, b, layer, error);
    return l->absorb ? latent_mixer(r, pass, b, layer, error) : attention_mixer(r, pass, b, layer, error);
}
