/* op/delta.c: the public delta-rule ops: check, plan, run the stages around a kernel row. Called by models and by
 * anyone who drives a state store. Rows (op/ref, op/x86) do the recurrence; the stages (short convolution, norms,
 * gates) are point rows. */
#include "op/batch.h"
#include "op/rows.h"
#include "state/records.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the arena: per-worker scratch, then the outputs of the stages ---- */

typedef struct arena {
    uint8_t *worker;
    size_t per_worker;
    float *qkv, *g, *beta;
} arena;

static size_t matrix_bytes(const ebb_state_layer *l) {
    return (size_t)l->key_dim * (size_t)l->value_dim * sizeof(float);
}

static size_t carve(const ebb_plan *plan, const ebb_state_view *s, uint8_t *at, arena *a) {
    const delta_row *row = plan->row;
    const chunk_row *chunk = plan->chunk;
    const ebb_state_layer *l = s->layer;
    const size_t tokens = (size_t)plan->max_tokens, gates = (size_t)l->heads * (size_t)gates_of(l);
    size_t inner = row->scratch(s), outer = chunk->scratch(l), used = 0;
    a->per_worker = align_up(matrix_bytes(l), 64) + align_up(inner > outer ? inner : outer, 64);
    a->worker = at;
    used += a->per_worker * (size_t)ebb_device_threads(plan->device);
    const size_t floats[] = {plan->stages & (EBB_CONV | EBB_L2NORM) ? tokens * (size_t)ebb_state_conv_channels(l) : 0,
                             plan->stages & EBB_GATES ? tokens * gates : 0,
                             plan->stages & EBB_GATES ? tokens * (size_t)l->heads : 0};
    float **place[] = {&a->qkv, &a->g, &a->beta};
    for (int i = 0; i < 3; i++) {
        *place[i] = at ? (float *)(void *)(at + used) : NULL;
        used += align_up(floats[i] * sizeof(float), 64);
    }
    return used;
}

/* ---- plans ---- */

static const delta_row *choose_row(ebb_device *device, const ebb_state_view *view, const char *algorithm,
                                   ebb_error *error) {
    const char *why = "this device has no such row";
    for (const delta_row *const *row = rows_of(device)->delta; *row; row++) {
        if (algorithm && strcmp(algorithm, (*row)->id.name)) continue;
        const char *refusal =
            (*row)->id.needs & ~device->features ? "this CPU lacks its instructions" : (*row)->refuse(view);
        if (!refusal) return *row;
        why = refusal;
    }
    ebb_fail(error, EBB_UNSUPPORTED, "no delta row%s%s: %s", algorithm ? " " : "", algorithm ? algorithm : "", why);
    return NULL;
}

/* The chunk row of the same name where it serves the layer, else the best one. */
static const chunk_row *choose_chunk(ebb_device *device, const ebb_state_layer *layer, const char *name) {
    const chunk_row *best = NULL;
    for (const chunk_row *const *row = rows_of(device)->chunk; *row; row++) {
        if ((*row)->id.needs & ~device->features || (*row)->refuse(layer)) continue;
        if (!strcmp((*row)->id.name, name)) return *row;
        if (!best) best = *row;
    }
    return best;
}

ebb_status ebb_delta_plan(ebb_device *device, const ebb_state_view *view, const char *algorithm, uint32_t stages,
                          int32_t max_seqs, int32_t max_new, int64_t max_tokens, ebb_plan *plan, ebb_error *error) {
    if (!device || !view || !plan)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a plan needs a device, a view and a place to go");
    if (stages & ~(uint32_t)EBB_STAGES) return ebb_fail(error, EBB_BAD_ARGUMENT, "unknown stages 0x%x", stages);
    if (max_seqs < 1 || max_new < 1 || max_tokens < 1 || max_tokens > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "a plan for %d sequences, %d new and %lld tokens, expected at least one of each", max_seqs,
                        max_new, (long long)max_tokens);
    if (max_new > view->cap - view->window + 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a plan for %d new tokens over a pool made for %d", max_new,
                        view->cap - view->window + 1);
    if ((stages & EBB_CONV) && view->layer->conv_width < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the convolution stage over a layer without convolution");
    if (view->layer->kind == EBB_ERASE && (stages & ~(uint32_t)EBB_OUT_NORM))
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "stages 0x%x over a layer of kind ERASE, expected none but the output norm (0x%x)", stages,
                        (unsigned)EBB_OUT_NORM);
    const delta_row *row = choose_row(device, view, algorithm, error);
    if (!row) return EBB_UNSUPPORTED;
    *plan = (ebb_plan){.size = sizeof *plan,
                       .device = device,
                       .stages = stages,
                       .max_seqs = max_seqs,
                       .max_new = max_new,
                       .max_tokens = max_tokens,
                       .row = row,
                       .chunk = choose_chunk(device, view->layer, row->id.name),
                       .row_name = row->id.name};
    plan->chunk_name = ((const chunk_row *)plan->chunk)->id.name;
    plan->numerics = numerics_row(HASH64_BEGIN, "delta", &row->id);
    plan->numerics = numerics_row(plan->numerics, "chunk", &((const chunk_row *)plan->chunk)->id);
    plan->numerics = numerics_row(plan->numerics, "point", &point_row_of(device)->id);
    plan->numerics = numerics_codec(plan->numerics, view->codec->name, view->codec->params, view->param);
    arena a;
    plan->scratch = carve(plan, view, NULL, &a);
    return EBB_OK;
}

/* ---- checks ---- */

static ebb_status check_tensor(const char *name, const ebb_tensor *t, int64_t tokens, int64_t heads, int64_t dim,
                               ebb_error *error) {
    if (!t->data && tokens) return ebb_fail(error, EBB_BAD_ARGUMENT, "tensor %s has no data", name);
    if (t->type != EBB_FP32)
        return ebb_fail(error, EBB_UNSUPPORTED, "tensor %s is not fp32, which is all the cpu device serves", name);
    if (t->shape[0] < tokens || t->shape[1] != heads || (t->dims == 3 ? t->shape[2] : 1) != dim)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "tensor %s is %lld x %lld x %lld, expected %lld x %lld x %lld", name,
                        (long long)t->shape[0], (long long)t->shape[1], (long long)(t->dims == 3 ? t->shape[2] : 1),
                        (long long)tokens, (long long)heads, (long long)dim);
    if (t->stride[1] != dim || (t->dims == 3 && t->stride[2] != 1) || t->stride[0] < heads * dim)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "tensor %s: heads of a token must be contiguous and tokens apart",
                        name);
    return EBB_OK;
}

/* The tensors that make the erasure: those of the layer's kind are there, those of the others are not. */
static ebb_status check_erasure(const ebb_delta_args *a, ebb_error *error) {
    const ebb_state_layer *l = a->s.layer;
    const int64_t n = a->b.tokens;
    ebb_status status;
    if (l->kind == EBB_ERASE) {
        if (a->beta.data)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "tensor beta has data, which layers of kind ERASE do not read");
        if ((status = check_tensor("erase", &a->erase, n, l->key_heads, l->key_dim, error))) return status;
        return check_tensor("remove", &a->remove, n, l->key_heads, l->key_dim, error);
    }
    if (a->erase.data || a->remove.data)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "tensor %s has data, which only layers of kind ERASE read",
                        a->erase.data ? "erase" : "remove");
    return check_tensor("beta", &a->beta, n, l->heads, 1, error);
}

static ebb_status check_args(const ebb_plan *plan, const ebb_delta_args *a, bool prefill, ebb_error *error) {
    if (!plan || plan->size != sizeof *plan || !a || a->size != sizeof *a)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a plan or arguments of another version of ebb");
    ebb_status status = check_batch(&a->b, plan->max_seqs, plan->max_tokens, a->s.slots, error);
    if (status) return status;
    const ebb_state_layer *l = a->s.layer;
    const int64_t n = a->b.tokens;
    if ((status = check_tensor("q", &a->q, n, l->key_heads, l->key_dim, error)) ||
        (status = check_tensor("k", &a->k, n, l->key_heads, l->key_dim, error)) ||
        (status = check_tensor("v", &a->v, n, l->heads, l->value_dim, error)) ||
        (status = check_tensor("g", &a->g, n, l->heads, gates_of(l), error)) || (status = check_erasure(a, error)) ||
        (status = check_tensor("out", &a->out, n, l->heads, l->value_dim, error)))
        return status;
    if ((plan->stages & EBB_OUT_NORM) && (status = check_tensor("z", &a->z, n, l->heads, l->value_dim, error)))
        return status;
    if ((plan->stages & (EBB_CONV | EBB_GATES | EBB_OUT_NORM)) && !a->mixer)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the planned stages need their weights (mixer)");
    for (int32_t i = 0; i < a->b.seqs; i++) {
        const int64_t pos = a->b.pos[i], count = a->b.cu[i + 1] - a->b.cu[i];
        if (a->b.slot[i] < 0) continue;
        if (!prefill && count > plan->max_new)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "a step of %lld tokens, planned for at most %d", (long long)count,
                            plan->max_new);
        int64_t base = pos ? *base_of(&a->s, a->b.slot[i], 0) : 0;
        if (base < 0 || base > pos || pos - base > a->s.cap)
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "slot %d is packed at token %lld and keeps %d records: position %lld is out of reach",
                            a->b.slot[i], (long long)base, a->s.cap, (long long)pos);
    }
    return EBB_OK;
}

static ebb_status check_arena(const ebb_queue *queue, const ebb_plan *plan, const ebb_state_view *s, ebb_error *error) {
    arena a;
    size_t need = carve(plan, s, NULL, &a);
    if (!queue || queue->arena_bytes < need)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the queue's arena has %zu bytes, the plan needs %zu",
                        queue ? queue->arena_bytes : 0, need);
    return EBB_OK;
}

/* ---- one op in flight ---- */

typedef struct delta_op {
    const ebb_plan *plan;
    const ebb_delta_args *args;
    const point_row *point;
    arena arena;
    delta_core core;
    int32_t item_heads; /* key heads of an item of a step */
    float *S;           /* of ebb_delta_read */
    const float *S_in;  /* of ebb_delta_write */
} delta_op;

/* One part (q, k or v) of a token's convolution: `at` is its first channel. */
static void conv_part(const delta_op *op, int32_t seq, int64_t row, const ebb_tensor *t, int64_t at, int64_t channels,
                      float *y) {
    const ebb_state_view *s = &op->args->s;
    const ebb_batch *b = &op->args->b;
    const int32_t width = s->layer->conv_width;
    const int64_t j = row - b->cu[seq], pos = b->pos[seq];
    const float *x[EBB_MAX_CONV];
    for (int32_t tap = 0; tap < width; tap++) {
        int64_t back = width - 1 - tap;
        if (j >= back) x[tap] = (const float *)t->data + (row - back) * t->stride[0];
        else x[tap] = pos + j >= back ? conv_record(s, b->slot[seq], pos + j - back) + at : NULL;
    }
    op->point->conv(x, op->args->mixer->conv + at * width, width, channels, y);
}

/* Everything before the recurrence, for one token. */
static void stages_of_token(void *ctx, int64_t row, int32_t worker) {
    (void)worker;
    const delta_op *op = ctx;
    const ebb_delta_args *a = op->args;
    const ebb_state_layer *l = a->s.layer;
    const uint32_t stages = op->plan->stages;
    const int32_t seq = sequence_of(&a->b, row);
    if (a->b.slot[seq] < 0) return;
    const int64_t nk = (int64_t)l->key_heads * l->key_dim, nv = (int64_t)l->heads * l->value_dim;
    float *q = op->arena.qkv + row * (2 * nk + nv), *k = q + nk, *v = k + nk;
    if (stages & EBB_CONV) {
        conv_part(op, seq, row, &a->q, 0, nk, q);
        conv_part(op, seq, row, &a->k, nk, nk, k);
        conv_part(op, seq, row, &a->v, 2 * nk, nv, v);
    } else if (stages & EBB_L2NORM) {
        memcpy(q, (const float *)a->q.data + row * a->q.stride[0], (size_t)nk * sizeof *q);
        memcpy(k, (const float *)a->k.data + row * a->k.stride[0], (size_t)nk * sizeof *k);
    }
    if (stages & EBB_L2NORM)
        for (int32_t h = 0; h < l->key_heads; h++) {
            op->point->l2_norm(q + (int64_t)h * l->key_dim, l->key_dim);
            op->point->l2_norm(k + (int64_t)h * l->key_dim, l->key_dim);
        }
    if (stages & EBB_GATES) {
        const int64_t n = gates_of(l);
        const float *raw = (const float *)a->g.data + row * a->g.stride[0];
        for (int32_t h = 0; h < l->heads; h++)
            op->point->gates(raw + h * n, a->mixer->dt_bias + h * n, expf(a->mixer->a_log[h]), n,
                             op->arena.g + (row * l->heads + h) * n);
        op->point->sigmoid((const float *)a->beta.data + row * a->beta.stride[0], l->heads,
                           op->arena.beta + row * l->heads);
    }
}

/* The raw inputs of the newest tokens go to the ring, after every token has read it. */
static void keep_conv_inputs(void *ctx, int64_t seq, int32_t worker) {
    (void)worker;
    const delta_op *op = ctx;
    const ebb_delta_args *a = op->args;
    const ebb_state_layer *l = a->s.layer;
    const int64_t nk = (int64_t)l->key_heads * l->key_dim, nv = (int64_t)l->heads * l->value_dim;
    const int64_t first = a->b.cu[seq], end = a->b.cu[seq + 1];
    if (a->b.slot[seq] < 0) return;
    for (int64_t row = max_i64(first, end - a->s.conv_ring); row < end; row++) {
        float *to = conv_record(&a->s, a->b.slot[seq], a->b.pos[seq] + row - first);
        memcpy(to, (const float *)a->q.data + row * a->q.stride[0], (size_t)nk * sizeof *to);
        memcpy(to + nk, (const float *)a->k.data + row * a->k.stride[0], (size_t)nk * sizeof *to);
        memcpy(to + 2 * nk, (const float *)a->v.data + row * a->v.stride[0], (size_t)nv * sizeof *to);
    }
}

/* out = rms_norm(out) * w * gate(z), for one token. */
static void finish_token(void *ctx, int64_t row, int32_t worker) {
    (void)worker;
    const delta_op *op = ctx;
    const ebb_delta_args *a = op->args;
    const int32_t dv = a->s.layer->value_dim;
    if (a->b.slot[sequence_of(&a->b, row)] < 0) return;
    float *o = (float *)a->out.data + row * a->out.stride[0];
    const float *z = (const float *)a->z.data + row * a->z.stride[0];
    for (int32_t h = 0; h < a->s.layer->heads; h++)
        op->point->norm_gate(o + (int64_t)h * dv, a->mixer->out_norm, z + (int64_t)h * dv, a->mixer->eps,
                             a->mixer->gate, dv);
}

/* Run the first stages and point the core at what the recurrence reads. */
static void prepare(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *a, delta_op *op) {
    const ebb_state_layer *l = a->s.layer;
    const int64_t nk = (int64_t)l->key_heads * l->key_dim, channels = ebb_state_conv_channels(l);
    *op = (delta_op){.plan = plan, .args = a, .point = point_row_of(queue->device)};
    carve(plan, &a->s, queue->arena, &op->arena);
    op->core = (delta_core){.s = &a->s,
                            .b = &a->b,
                            .q = a->q.data,
                            .k = a->k.data,
                            .v = a->v.data,
                            .g = a->g.data,
                            .beta = a->beta.data,
                            .q_stride = a->q.stride[0],
                            .k_stride = a->k.stride[0],
                            .v_stride = a->v.stride[0],
                            .g_stride = a->g.stride[0],
                            .beta_stride = a->beta.stride[0],
                            .out = a->out.data,
                            .out_stride = a->out.stride[0],
                            .erase = a->erase.data,
                            .remove = a->remove.data,
                            .erase_stride = a->erase.stride[0],
                            .remove_stride = a->remove.stride[0]};
    if (plan->stages & (EBB_CONV | EBB_L2NORM | EBB_GATES))
        queue_run(queue, a->b.tokens, a->b.tokens * channels * 8, stages_of_token, op);
    if (plan->stages & (EBB_CONV | EBB_L2NORM)) {
        op->core.q = op->arena.qkv;
        op->core.k = op->arena.qkv + nk;
        op->core.q_stride = op->core.k_stride = channels;
    }
    if (plan->stages & EBB_CONV) {
        op->core.v = op->arena.qkv + 2 * nk;
        op->core.v_stride = channels;
        queue_run(queue, a->b.seqs, min_i64(a->b.tokens, (int64_t)a->b.seqs * a->s.conv_ring) * channels / 16,
                  keep_conv_inputs, op);
    }
    if (plan->stages & EBB_GATES) {
        op->core.g = op->arena.g;
        op->core.beta = op->arena.beta;
        op->core.g_stride = (int64_t)l->heads * gates_of(l);
        op->core.beta_stride = l->heads;
    }
}

static void finish(ebb_queue *queue, delta_op *op) {
    const ebb_delta_args *a = op->args;
    if (op->plan->stages & EBB_OUT_NORM)
        queue_run(queue, a->b.tokens, a->b.tokens * a->s.layer->heads * a->s.layer->value_dim * 8, finish_token, op);
}

static void *worker_scratch(const delta_op *op, int32_t worker) {
    return op->arena.worker + op->arena.per_worker * (size_t)worker + align_up(matrix_bytes(op->args->s.layer), 64);
}
static float *worker_matrix(const delta_op *op, int32_t worker) {
    return (float *)(void *)(op->arena.worker + op->arena.per_worker * (size_t)worker);
}
static int64_t state_cost(const ebb_state_layer *l) { return 4 * (int64_t)l->key_dim * l->value_dim; }

/* ---- step ---- */

/* Key heads of an item: neighbours, so that a row may fetch one head while it does another, and few enough that every
 * thread gets several items. */
static int32_t heads_of_item(const ebb_queue *queue, const ebb_batch *b, const ebb_state_layer *l) {
    enum { MOST = 8, ITEMS_A_THREAD = 4 };
    const int64_t fair = (int64_t)b->seqs * l->key_heads / (ITEMS_A_THREAD * ebb_device_threads(queue->device));
    return (int32_t)(fair < 1 ? 1 : min_i64(fair, MOST));
}

static void step_item(void *ctx, int64_t item, int32_t worker) {
    const delta_op *op = ctx;
    const ebb_batch *b = &op->args->b;
    const int32_t heads = op->args->s.layer->key_heads, items = (heads + op->item_heads - 1) / op->item_heads;
    const int32_t seq = (int32_t)(item / items), first = (int32_t)(item % items) * op->item_heads;
    const int32_t end = first + op->item_heads < heads ? first + op->item_heads : heads;
    if (b->slot[seq] < 0 || b->cu[seq] == b->cu[seq + 1]) return;
    ((const delta_row *)op->plan->row)->step(&op->core, seq, first, end, worker_scratch(op, worker));
}

ebb_status ebb_delta_step(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *args, ebb_error *error) {
    ebb_status status = check_args(plan, args, false, error);
    if (status || (status = check_arena(queue, plan, &args->s, error))) return status;
    delta_op op;
    prepare(queue, plan, args, &op);
    const ebb_state_layer *l = args->s.layer;
    op.item_heads = heads_of_item(queue, &args->b, l);
    const int64_t items = (int64_t)args->b.seqs * ((l->key_heads + op.item_heads - 1) / op.item_heads);
    queue_run(queue, items, args->b.tokens * l->heads * state_cost(l), step_item, &op);
    finish(queue, &op);
    return EBB_OK;
}

/* ---- prefill ---- */

/* n tokens of one value head from position pos, which is row `at` of the tensors. */
static chunk_args chunk_of(const delta_core *c, int32_t head, int64_t at, int64_t pos, int64_t n, float *S) {
    const ebb_state_layer *l = c->s->layer;
    const bool erase = l->kind == EBB_ERASE;
    const int64_t key = (int64_t)(head / (l->heads / l->key_heads)) * l->key_dim, value = (int64_t)head * l->value_dim;
    return (chunk_args){.kind = l->kind,
                        .key_dim = l->key_dim,
                        .value_dim = l->value_dim,
                        .pos = pos,
                        .n = n,
                        .q = c->q + at * c->q_stride + key,
                        .k = c->k + at * c->k_stride + key,
                        .v = c->v + at * c->v_stride + value,
                        .g = c->g + at * c->g_stride + (int64_t)head * gates_of(l),
                        .beta = erase ? NULL : c->beta + at * c->beta_stride + head,
                        .q_stride = c->q_stride,
                        .k_stride = c->k_stride,
                        .v_stride = c->v_stride,
                        .g_stride = c->g_stride,
                        .beta_stride = c->beta_stride,
                        .out_stride = c->out_stride,
                        .S = S,
                        .out = c->out + at * c->out_stride + value,
                        .erase = erase ? c->erase + at * c->erase_stride + key : NULL,
                        .remove = erase ? c->remove + at * c->remove_stride + key : NULL,
                        .erase_stride = c->erase_stride,
                        .remove_stride = c->remove_stride};
}

/* All prompt tokens of one value head: chunks between grid multiples, the state rounded by the codec at each of them.
 */
static void prefill_item(void *ctx, int64_t item, int32_t worker) {
    const delta_op *op = ctx;
    const delta_core *c = &op->core;
    const ebb_state_view *s = c->s;
    const ebb_state_layer *l = s->layer;
    const delta_row *row = op->plan->row;
    const chunk_row *chunk = op->plan->chunk;
    const int32_t seq = (int32_t)(item / l->heads), head = (int32_t)(item % l->heads), slot = c->b->slot[seq];
    const int64_t first = c->b->cu[seq], end = c->b->pos[seq] + c->b->cu[seq + 1] - first;
    if (slot < 0 || c->b->pos[seq] == end) return;
    float *S = worker_matrix(op, worker);
    void *scratch = worker_scratch(op, worker);
    for (int64_t pos = c->b->pos[seq]; pos < end;) {
        const int64_t stop = min_i64(end, (pos / EBB_GRID + 1) * EBB_GRID), at = first + pos - c->b->pos[seq];
        if (pos == 0) memset(S, 0, matrix_bytes(l));
        else row->unpack(s, slot, head, pos, S, scratch);
        const chunk_args args = chunk_of(c, head, at, pos, stop - pos, S);
        chunk->run(&args, scratch);
        row->pack(s, slot, head, stop, S, pos ? packed_of(s, slot, head) : NULL, scratch);
        pos = stop;
    }
}

ebb_status ebb_delta_prefill(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *args, ebb_error *error) {
    ebb_status status = check_args(plan, args, true, error);
    if (status || (status = check_arena(queue, plan, &args->s, error))) return status;
    delta_op op;
    prepare(queue, plan, args, &op);
    const ebb_state_layer *l = args->s.layer;
    queue_run(queue, (int64_t)args->b.seqs * l->heads, args->b.tokens * l->heads * state_cost(l), prefill_item, &op);
    finish(queue, &op);
    return EBB_OK;
}

/* ---- export and import ---- */

static void read_item(void *ctx, int64_t item, int32_t worker) {
    const delta_op *op = ctx;
    const ebb_delta_args *a = op->args;
    const int32_t heads = a->s.layer->heads, seq = (int32_t)(item / heads), head = (int32_t)(item % heads);
    if (a->b.slot[seq] < 0) return;
    float *S = op->S + item * (int64_t)a->s.layer->key_dim * a->s.layer->value_dim;
    if (a->b.pos[seq] == 0) memset(S, 0, matrix_bytes(a->s.layer));
    else
        ((const delta_row *)op->plan->row)
            ->unpack(&a->s, a->b.slot[seq], head, a->b.pos[seq], S, worker_scratch(op, worker));
}

static void write_item(void *ctx, int64_t item, int32_t worker) {
    const delta_op *op = ctx;
    const ebb_delta_args *a = op->args;
    const int32_t heads = a->s.layer->heads, seq = (int32_t)(item / heads), head = (int32_t)(item % heads);
    if (a->b.slot[seq] < 0) return;
    const float *S = op->S_in + item * (int64_t)a->s.layer->key_dim * a->s.layer->value_dim;
    ((const delta_row *)op->plan->row)
        ->pack(&a->s, a->b.slot[seq], head, a->b.pos[seq], S, NULL, worker_scratch(op, worker));
}

static ebb_status run_copy(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *args, float *S,
                           const float *S_in, ebb_error *error) {
    if (!plan || plan->size != sizeof *plan || !args || args->size != sizeof *args || (!S && !S_in))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a plan or arguments of another version of ebb, or no matrix");
    for (int32_t i = 0; i < args->b.seqs; i++)
        if (args->b.slot[i] >= args->s.slots || args->b.pos[i] < 0)
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "sequence %d has slot %d at position %lld, expected a slot below %d", i, args->b.slot[i],
                            (long long)args->b.pos[i], args->s.slots);
    ebb_status status = check_arena(queue, plan, &args->s, error);
    if (status) return status;
    delta_op op = {.plan = plan, .args = args, .S = S, .S_in = S_in};
    carve(plan, &args->s, queue->arena, &op.arena);
    const ebb_state_layer *l = args->s.layer;
    const int64_t items = (int64_t)args->b.seqs * l->heads;
    queue_run(queue, items, items * state_cost(l), S ? read_item : write_item, &op);
    return EBB_OK;
}

ebb_status ebb_delta_read(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *args, float *S,
                          ebb_error *error) {
    return run_copy(queue, plan, args, S, NULL, error);
}

ebb_status ebb_delta_write(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *args, const float *S,
                           ebb_error *error) {
    return run_copy(queue, plan, args, NULL, S, error);
}
