/* model/moe.c: see moe.h. Of a token h
 *
 *     y = sum_e w_e down_e(swiglu(gate_up_e(h)))  +  s down(swiglu(gate_up(h)))
 *
 * over its experts in ascending number, added to the shared expert's part one by one; s is sigmoid(shared_gate . h) or
 * 1, and w is what ebb_route makes of the logits. A token's sum has the same order whichever tokens share its experts,
 * and linear layers compute a row alike in any company, so its bits depend on itself alone.
 *
 * Tokens of one expert go through it together: their rows are gathered, and added back. One token alone goes through
 * all of its experts at once. */
#include "model/moe.h"

#include "model/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- loading ---- */

ebb_status moe_check(const json_place *at, const moe_config *c, ebb_error *error) {
    const ebb_router *r = &c->router;
    if (r->used > r->experts)
        return json_fail(at, error, EBB_BAD_FILE, "has %d experts for a token, expected at most num_experts = %d",
                         r->used, r->experts);
    if (r->used > EBB_MAX_ROUTES || r->groups > EBB_MAX_ROUTES)
        return json_fail(at, error, EBB_UNSUPPORTED, "has %d experts for a token and %d groups, at most %d are served",
                         r->used, r->groups, EBB_MAX_ROUTES);
    if (r->experts % r->groups || r->top_groups > r->groups || r->used > r->experts / r->groups * r->top_groups)
        return json_fail(at, error, EBB_BAD_FILE,
                         "has %d of %d groups of experts for a token, expected equal groups with %d experts or more",
                         r->top_groups, r->groups, r->used);
    return EBB_OK;
}

/* Matrix `e` of a stack of `n`, rows from `first` on. */
static ebb_weight_part part_of(const st_tensor *t, int64_t e, int64_t n, int64_t first, int64_t rows) {
    const size_t each = t->bytes / (size_t)n, row = each / (size_t)t->shape[1];
    return (ebb_weight_part){t->data + (size_t)e * each + (size_t)first * row, t->type, rows};
}

/* All experts in two tensors, gate above up in the first. */
static ebb_status find_fused(model_loader *loader, int32_t layer, const moe_config *c, struct model_moe *moe,
                             ebb_error *error) {
    const int64_t n = c->router.experts, inter = c->inter, hidden = loader->model->info.hidden;
    const st_tensor *in, *out;
    char name[96];
    snprintf(name, sizeof name, "%s.gate_up_proj", c->experts);
    ebb_status status = load_raw(loader, layer, name, 3, (int64_t[]){n, 2 * inter, hidden}, &in, error);
    snprintf(name, sizeof name, "%s.down_proj", c->experts);
    if (!status) status = load_raw(loader, layer, name, 3, (int64_t[]){n, hidden, inter}, &out, error);
    if (!status) loader->model->info.expert_bytes += in->bytes + out->bytes;
    for (int64_t e = 0; e < n && !status; e++) {
        moe->experts[e].gate = part_of(in, e, n, 0, inter);
        moe->experts[e].up = part_of(in, e, n, inter, inter);
        moe->experts[e].down = part_of(out, e, n, 0, hidden);
    }
    return status;
}

static ebb_status find_one(model_loader *loader, int32_t layer, const moe_config *c, int32_t e, model_expert *expert,
                           ebb_error *error) {
    const int64_t inter = c->inter, hidden = loader->model->info.hidden;
    const struct {
        const char *name;
        int64_t n, k;
        ebb_weight_part *part;
    } rows[] = {{c->gate, inter, hidden, &expert->gate},
                {c->up, inter, hidden, &expert->up},
                {c->down, hidden, inter, &expert->down}};
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < COUNT(rows) && !status; i++) {
        const st_tensor *t;
        char name[96];
        snprintf(name, sizeof name, "%s.%d.%s.weight", c->experts, e, rows[i].name);
        status = load_raw(loader, layer, name, 2, (int64_t[]){rows[i].n, rows[i].k}, &t, error);
        if (status) break;
        *rows[i].part = (ebb_weight_part){t->data, t->type, rows[i].n};
        loader->model->info.expert_bytes += t->bytes;
    }
    return status;
}

static ebb_status find_experts(model_loader *loader, int32_t layer, const moe_config *c, struct model_moe *moe,
                               ebb_error *error) {
    char name[96];
    snprintf(name, sizeof name, "%s.gate_up_proj", c->experts);
    if (load_has(loader, layer, name)) return find_fused(loader, layer, c, moe, error);
    ebb_status status = EBB_OK;
    for (int32_t e = 0; e < c->router.experts && !status; e++)
        status = find_one(loader, layer, c, e, &moe->experts[e], error);
    return status;
}

static ebb_status load_shared(model_loader *loader, int32_t layer, const moe_config *c, struct model_moe *moe,
                              ebb_error *error) {
    const int64_t hidden = loader->model->info.hidden;
    char gate[96], up[96], down[96];
    snprintf(gate, sizeof gate, "%s.gate_proj.weight", c->shared);
    snprintf(up, sizeof up, "%s.up_proj.weight", c->shared);
    snprintf(down, sizeof down, "%s.down_proj.weight", c->shared);
    const matrix_part in[] = {{gate, c->shared_inter}, {up, c->shared_inter}}, out = {down, hidden};
    ebb_status status = load_matrix(loader, layer, in, 2, hidden, &moe->shared_gate_up, error);
    return status ? status : load_matrix(loader, layer, &out, 1, c->shared_inter, &moe->shared_down, error);
}

ebb_status moe_load(model_loader *loader, int32_t layer, const moe_config *c, ebb_error *error) {
    const int32_t n = c->router.experts;
    struct model_moe *moe = calloc(1, sizeof *moe);
    if (moe) moe->experts = calloc((size_t)n, sizeof *moe->experts);
    if (!moe || !moe->experts || pthread_mutex_init(&moe->lock, NULL)) {
        if (moe) free(moe->experts);
        free(moe);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the %d experts of layer %d", n, layer);
    }
    loader->model->layers[layer].moe = moe;
    loader->model->mapped = true;
    moe->router = c->router;
    moe->inter = c->inter;
    moe->shared_inter = c->shared_inter;
    const bool gated = c->shared_inter && c->shared_gate;
    const matrix_part rows[] = {{c->logits, n}, {c->shared_gate, 1}};
    ebb_status status =
        load_matrix(loader, layer, rows, gated ? 2 : 1, loader->model->info.hidden, &moe->logits, error);
    if (!status && c->bias)
        status = load_floats(loader, layer, c->bias, 1, (int64_t[]){n}, 0, &moe->router.bias, error);
    if (!status && c->shared_inter) status = load_shared(loader, layer, c, moe, error);
    return status ? status : find_experts(loader, layer, c, moe, error);
}

void moe_free(ebb_device *device, struct model_moe *moe) {
    if (!moe) return;
    for (int32_t e = 0; e < moe->router.experts; e++) {
        ebb_weight_free(device, &moe->experts[e].gate_up_packed);
        ebb_weight_free(device, &moe->experts[e].down_packed);
    }
    ebb_weight_free(device, &moe->logits);
    ebb_weight_free(device, &moe->shared_gate_up);
    ebb_weight_free(device, &moe->shared_down);
    pthread_mutex_destroy(&moe->lock);
    free(moe->experts);
    free(moe);
}

/* ---- an expert that is needed ---- */

static ebb_status pack(ebb_device *device, model_expert *x, int64_t hidden, int64_t inter, ebb_error *error) {
    const ebb_weight_part in[] = {x->gate, x->up};
    ebb_status status = ebb_weight_pack(device, in, 2, hidden, &x->gate_up_packed, error);
    if (!status && (status = ebb_weight_pack(device, &x->down, 1, inter, &x->down_packed, error)))
        ebb_weight_free(device, &x->gate_up_packed);
    return status;
}

static ebb_status need(const ebb_model *m, struct model_moe *moe, int32_t e, const model_expert **expert,
                       ebb_error *error) {
    model_expert *x = &moe->experts[e];
    ebb_status status = EBB_OK;
    *expert = x;
    if (atomic_load_explicit(&x->packed, memory_order_acquire)) return EBB_OK;
    pthread_mutex_lock(&moe->lock);
    if (!atomic_load_explicit(&x->packed, memory_order_relaxed)) {
        status = pack(m->device, x, m->info.hidden, moe->inter, error);
        if (!status) atomic_store_explicit(&x->packed, true, memory_order_release);
    }
    pthread_mutex_unlock(&moe->lock);
    return status;
}

/* ---- activations ---- */

typedef struct space {
    float *logits;          /* [tokens][experts, shared gate] */
    float *weight;          /* [tokens][used] */
    int32_t *expert;        /* [tokens][used] */
    int32_t *row;           /* tokens of one expert after another */
    float *row_weight;      /* their weights */
    int32_t *first;         /* [experts + 1]: where they begin */
    float *in, *gate_up;    /* rows of an expert */
    float *act, *out, *sum; /* sum: [tokens][hidden] */
    int64_t logits_stride;
} space;

/* The next `n` floats behind *at; base NULL counts only. */
static float *carve(float *base, int64_t *at, int64_t n) {
    float *here = base ? base + *at : NULL;
    *at += (n + 15) / 16 * 16;
    return here;
}

static int64_t lay_out(const ebb_model *m, const struct model_moe *moe, int64_t tokens, float *base, space *s) {
    const ebb_router *r = &moe->router;
    const int64_t hidden = m->info.hidden;
    /* One token has a row for each of its experts; an expert has one for each token at most. */
    const int64_t rows = max_i64(tokens, r->used), wide = max_i64(rows * moe->inter, tokens * moe->shared_inter);
    int64_t at = 0;
    s->logits_stride = moe->logits.n;
    s->logits = carve(base, &at, tokens * moe->logits.n);
    s->weight = carve(base, &at, tokens * r->used);
    s->expert = (int32_t *)carve(base, &at, tokens * r->used);
    s->row = (int32_t *)carve(base, &at, tokens * r->used);
    s->row_weight = carve(base, &at, tokens * r->used);
    s->first = (int32_t *)carve(base, &at, r->experts + 1);
    s->in = carve(base, &at, rows * hidden);
    s->gate_up = carve(base, &at, 2 * wide);
    s->act = carve(base, &at, wide);
    s->out = carve(base, &at, rows * hidden);
    s->sum = carve(base, &at, tokens * hidden);
    return at;
}

int64_t moe_floats(const ebb_model *model, const struct model_moe *moe, int64_t tokens) {
    space s;
    return lay_out(model, moe, tokens, NULL, &s);
}

/* ---- running ---- */

/* sum = the shared expert's part, 0 without one. */
static ebb_status run_shared(ebb_runner *r, const struct model_moe *moe, const space *s, int64_t n) {
    const int64_t hidden = r->model->info.hidden, inter = moe->shared_inter, experts = moe->router.experts;
    if (!inter) {
        memset(s->sum, 0, (size_t)(n * hidden) * sizeof *s->sum);
        return EBB_OK;
    }
    ebb_status status = ebb_linear(r->queue, &moe->shared_gate_up, r->h, hidden, s->gate_up, 2 * inter, n, 0);
    if (!status) status = ebb_swiglu(r->queue, s->gate_up, 2 * inter, inter, s->act, inter, n);
    if (!status) status = ebb_linear(r->queue, &moe->shared_down, s->act, inter, s->sum, hidden, n, 0);
    if (!status && moe->logits.n > experts)
        status = ebb_gate_rows(r->queue, s->logits + experts, s->logits_stride, hidden, s->sum, hidden, n);
    return status;
}

/* Tokens of each expert, ascending: what (token, expert) pairs are when they are sorted by expert. */
static void sort_tokens(const struct model_moe *moe, const space *s, int64_t n) {
    const int32_t experts = moe->router.experts, used = moe->router.used;
    memset(s->first, 0, (size_t)(experts + 1) * sizeof *s->first);
    for (int64_t i = 0; i < n * used; i++) s->first[s->expert[i] + 1]++;
    for (int32_t e = 0; e < experts; e++) s->first[e + 1] += s->first[e];
    for (int64_t i = 0; i < n * used; i++) {
        const int32_t at = s->first[s->expert[i]]++;
        s->row[at] = (int32_t)(i / used);
        s->row_weight[at] = s->weight[i];
    }
    for (int32_t e = experts; e > 0; e--) s->first[e] = s->first[e - 1];
    s->first[0] = 0;
}

/* Rows through one expert: sum += weight * it. */
static ebb_status run_expert(ebb_runner *r, const struct model_moe *moe, const model_expert *x, const space *s,
                             int64_t first, int64_t m) {
    const int64_t hidden = r->model->info.hidden, inter = moe->inter;
    ebb_status status = ebb_gather_rows(r->queue, r->h, hidden, s->row + first, hidden, s->in, hidden, m);
    if (!status) status = ebb_linear(r->queue, &x->gate_up_packed, s->in, hidden, s->gate_up, 2 * inter, m, 0);
    if (!status) status = ebb_swiglu(r->queue, s->gate_up, 2 * inter, inter, s->act, inter, m);
    if (!status) status = ebb_linear(r->queue, &x->down_packed, s->act, inter, s->out, hidden, m, 0);
    if (!status)
        status =
            ebb_add_rows(r->queue, s->out, hidden, s->row + first, s->row_weight + first, hidden, s->sum, hidden, m);
    return status;
}

static ebb_status run_many(ebb_runner *r, struct model_moe *moe, const space *s, int64_t n, ebb_error *error) {
    ebb_status status = EBB_OK;
    sort_tokens(moe, s, n);
    for (int32_t e = 0; e < moe->router.experts && !status; e++) {
        const model_expert *x;
        const int32_t m = s->first[e + 1] - s->first[e];
        if (!m) continue;
        if ((status = need(r->model, moe, e, &x, error))) return status;
        status = run_expert(r, moe, x, s, s->first[e], m);
    }
    return status ? ebb_fail(error, status, "an expert failed: %s", ebb_status_name(status)) : EBB_OK;
}

/* One row of `heads` rows of `dim`, one behind the other. */
static ebb_tensor row_of(float *data, int64_t heads, int64_t dim) {
    return (ebb_tensor){data, EBB_FP32, 3, {1, heads, dim}, {heads * dim, dim, 1}};
}

/* The experts of one token side by side, so that there is work for all workers. */
static ebb_status run_one(ebb_runner *r, struct model_moe *moe, const space *s, ebb_error *error) {
    const int64_t hidden = r->model->info.hidden, inter = moe->inter, used = moe->router.used;
    ebb_weight in[EBB_MAX_ROUTES], out[EBB_MAX_ROUTES];
    ebb_status status = EBB_OK;
    for (int64_t i = 0; i < used; i++) {
        const model_expert *x;
        if ((status = need(r->model, moe, s->expert[i], &x, error))) return status;
        in[i] = x->gate_up_packed;
        out[i] = x->down_packed;
        memcpy(s->in + i * hidden, r->h, (size_t)hidden * sizeof *s->in);
    }
    const ebb_tensor x = row_of(s->in, used, hidden), gate_up = row_of(s->gate_up, used, 2 * inter);
    const ebb_tensor act = row_of(s->act, used, inter), y = row_of(s->out, used, hidden);
    status = ebb_linear_heads(r->queue, in, &x, &gate_up, error);
    if (!status) status = ebb_swiglu(r->queue, s->gate_up, 2 * inter, inter, s->act, inter, used);
    if (!status) status = ebb_linear_heads(r->queue, out, &act, &y, error);
    for (int64_t i = 0; i < used && !status; i++)
        status = ebb_add_rows(r->queue, s->out + i * hidden, hidden, &(int32_t){0}, s->weight + i, hidden, s->sum,
                              hidden, 1);
    return status;
}

ebb_status moe_run(ebb_runner *r, int32_t layer, int64_t n, ebb_error *error) {
    struct model_moe *moe = r->model->layers[layer].moe;
    const int64_t hidden = r->model->info.hidden;
    space s;
    lay_out(r->model, moe, r->max_tokens, r->gate_up, &s);
    ebb_status status = ebb_linear(r->queue, &moe->logits, r->h, hidden, s.logits, s.logits_stride, n, 0);
    if (!status) status = run_shared(r, moe, &s, n);
    if (!status) status = ebb_route(r->queue, &moe->router, s.logits, s.logits_stride, s.expert, s.weight, n);
    if (status) return runner_where(status, layer, "the router", error);
    if ((status = ebb_queue_sync(r->queue, error))) return status; /* the host reads what was chosen */
    status = n == 1 ? run_one(r, moe, &s, error) : run_many(r, moe, &s, n, error);
    if (status) return status;
    status = ebb_add(r->queue, s.sum, hidden, hidden, r->x, hidden, n);
    return runner_where(status, layer, "the sum of the experts", error);
}
