/* op/attention.c: causal softmax attention over a KV store: choosing a kernel row, checking a call, appending keys and
 * values to the pages, and cutting the queries into tiles. The arithmetic is in op/ref/attention.c (the definition) and
 * in the rows of op/x86. A row of the output depends on its query and its sequence's store only, so nothing here
 * changes a bit of it: not the batch, the tile, the thread, nor whether its tokens came one by one. */
#include "op/batch.h"
#include "op/rows.h"

#include <string.h>

#include "kv/kv_int.h"

/* ---- plan ---- */

static ebb_status view_check(const ebb_kv_view *s, ebb_planes *planes, ebb_error *error) {
    if (!s || !s->layer || !s->codec || !s->param || !s->pages || !s->block)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the KV view lacks its layer, codec, parameters, pages or block table");
    int32_t group;
    ebb_status status = s->codec->layout(s->layer, s->param, &group, planes, error);
    if (status) return status;
    if (group != 1 || s->group != 1)
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "attention over groups of %d tokens is not served; expected groups of 1",
                        group != 1 ? group : s->group);
    if (s->page < ATTN_BLOCK || s->page % ATTN_BLOCK)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "KV pages hold %d tokens; expected a multiple of %d", s->page,
                        ATTN_BLOCK);
    if (s->slots < 1 || s->block_stride < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the KV view has %d slots of %d pages; expected 1 or more of each",
                        s->slots, s->block_stride);
    for (int32_t i = 0; i < planes->n; i++)
        if (s->plane_bytes[i] != (int64_t)planes->plane[i].bytes || s->plane_at[i] < 0)
            return ebb_fail(
                error, EBB_BAD_ARGUMENT, "plane %s of the KV view has %lld bytes a token at %lld; expected %zu",
                planes->plane[i].name, (long long)s->plane_bytes[i], (long long)s->plane_at[i], planes->plane[i].bytes);
    return EBB_OK;
}

static const char *row_refusal(const ebb_device *device, const attn_row *row, const ebb_kv_view *view) {
    if (row->id.needs & ~device->features) return "this CPU, or the mask of features allowed, lacks what it needs";
    return row->refuse(view);
}

static ebb_status choose_row(const ebb_device *device, const ebb_kv_view *view, const char *algorithm,
                             const attn_row **chosen, ebb_error *error) {
    const char *name = algorithm, *why = "it is not built for this device";
    for (const attn_row *const *row = rows_of(device)->attn; *row; row++) {
        if (algorithm && strcmp(algorithm, (*row)->id.name)) continue;
        name = (*row)->id.name;
        why = row_refusal(device, *row, view);
        if (why) continue;
        *chosen = *row;
        return EBB_OK;
    }
    return ebb_fail(error, EBB_UNSUPPORTED, "attention kernel \"%s\" cannot serve this store: %s", name ? name : "",
                    why);
}

/* The arena: where each sequence's tiles begin, then one part for each worker, used by the append and then by the
 * tiles. The append needs a token's rows, their packed bytes and the encoder's scratch. */
typedef struct arena_shape {
    size_t tiles, rows, packed, worker, bytes;
} arena_shape;

static arena_shape arena_of(const ebb_device *device, const attn_row *row, const ebb_kv_view *view,
                            const ebb_planes *planes, int32_t max_seqs) {
    arena_shape a = {.tiles = align_up(((size_t)max_seqs + 1) * sizeof(int64_t), 64)};
    a.rows = align_up((size_t)kv_shape_of(view->layer).all * sizeof(float), 64);
    a.packed = align_up(planes->bytes, 64);
    size_t append = a.rows + a.packed + planes->scratch * sizeof(float), tile = row->scratch(view);
    a.worker = align_up(append > tile ? append : tile, 64);
    a.bytes = a.tiles + a.worker * (size_t)ebb_device_threads(device);
    return a;
}

ebb_status ebb_attn_plan(ebb_device *device, const ebb_kv_view *view, const char *algorithm, int32_t max_seqs,
                         int32_t max_new, int64_t max_tokens, ebb_plan *plan, ebb_error *error) {
    ebb_planes planes;
    const attn_row *row = NULL;
    ebb_status status = view_check(view, &planes, error);
    if (!status) status = choose_row(device, view, algorithm, &row, error);
    if (status) return status;
    if (max_seqs < 1 || max_new < 0 || max_tokens < 1)
        return ebb_fail(
            error, EBB_BAD_ARGUMENT,
            "an attention plan for %d sequences, %d new tokens and %lld tokens; expected 1, 0 and 1 or more", max_seqs,
            max_new, (long long)max_tokens);
    *plan = (ebb_plan){
        .size = sizeof *plan,
        .device = device,
        .max_seqs = max_seqs,
        .max_new = max_new,
        .max_tokens = max_tokens,
        .row = row,
        .row_name = row->id.name,
        .scratch = arena_of(device, row, view, &planes, max_seqs).bytes,
        .numerics = numerics_row(HASH64_BEGIN, "attention", &row->id),
    };
    plan->numerics = numerics_row(plan->numerics, "point", &point_row_of(device)->id);
    plan->numerics = numerics_codec(plan->numerics, view->codec->name, view->codec->params, view->param);
    return EBB_OK;
}

/* ---- checks of a call ---- */

static ebb_status tensor_check(const char *name, const ebb_tensor *t, int64_t tokens, int64_t heads, int64_t dim,
                               bool dense_heads, ebb_error *error) {
    if (t->type != EBB_FP32 || t->dims != 3 || t->shape[0] != tokens || t->shape[1] != heads || t->shape[2] != dim)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "%s is %s of %d dims [%lld][%lld][%lld]; expected fp32 of 3 dims [%lld][%lld][%lld]", name,
                        ebb_type_name((ebb_type)t->type), t->dims, (long long)t->shape[0], (long long)t->shape[1],
                        (long long)t->shape[2], (long long)tokens, (long long)heads, (long long)dim);
    if (dim > 1 && t->stride[2] != 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the last dimension of %s has stride %lld; expected 1", name,
                        (long long)t->stride[2]);
    if (dense_heads && heads > 1 && t->stride[1] != dim)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the heads of %s are %lld apart; expected %lld", name,
                        (long long)t->stride[1], (long long)dim);
    if (dense_heads && tokens > 1 && t->stride[0] < heads * dim)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the tokens of %s are %lld apart; expected %lld or more", name,
                        (long long)t->stride[0], (long long)(heads * dim));
    if (!t->data) return ebb_fail(error, EBB_BAD_ARGUMENT, "%s has no data", name);
    return EBB_OK;
}

/* Pages for tokens 0 .. pos + n - 1 of sequence i. */
static ebb_status room_check(const ebb_kv_view *s, const ebb_batch *b, int32_t i, ebb_error *error) {
    int64_t n = b->cu[i + 1] - b->cu[i], pos = b->pos[i], room = (int64_t)s->block_stride * s->page;
    if (pos > room - n)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "sequence %d adds %lld tokens at position %lld; its slot has room for %lld", i, (long long)n,
                        (long long)pos, (long long)room);
    const int32_t *block = s->block + (int64_t)b->slot[i] * s->block_stride;
    for (int64_t page = 0; page * s->page < pos + n; page++)
        if (block[page] < 0)
            return ebb_fail(
                error, EBB_BAD_ARGUMENT,
                "sequence %d adds %lld tokens at position %lld, but page %lld of its slot %d is not reserved", i,
                (long long)n, (long long)pos, (long long)page, b->slot[i]);
    return EBB_OK;
}

/* Beyond what every op asks: no slot twice (two writers of one page), and a page for every token. */
static ebb_status slots_check(const ebb_kv_view *s, const ebb_batch *b, ebb_error *error) {
    for (int32_t i = 0; i < b->seqs; i++) {
        if (b->slot[i] == -1) continue;
        for (int32_t j = 0; j < i; j++)
            if (b->slot[j] == b->slot[i])
                return ebb_fail(error, EBB_BAD_ARGUMENT, "sequences %d and %d have the same slot %d", j, i, b->slot[i]);
        ebb_status status = room_check(s, b, i, error);
        if (status) return status;
    }
    return EBB_OK;
}

static ebb_status tensors_check(const ebb_attn_args *args, ebb_error *error) {
    const ebb_kv_layer *layer = args->s.layer;
    kv_shape shape = kv_shape_of(layer);
    int64_t n = args->b.tokens;
    if (shape.shared && args->v.data)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "v has data; the values of this layer are a part of k: expected none");
    ebb_status status = tensor_check("q", &args->q, n, layer->q_heads, shape.k, true, error);
    if (!status) status = tensor_check("k", &args->k, n, layer->heads, shape.k, true, error);
    if (!status && !shape.shared) status = tensor_check("v", &args->v, n, layer->heads, shape.v, true, error);
    if (!status) status = tensor_check("out", &args->out, n, layer->q_heads, shape.v, true, error);
    if (!status && args->gate.data)
        status = tensor_check("gate", &args->gate, n, layer->q_heads, shape.v, false, error);
    return status;
}

/* ---- the run ---- */

typedef struct attn_job {
    const ebb_attn_args *args;
    const attn_row *row;
    const point_row *point;
    ebb_planes planes;
    kv_shape kv;
    arena_shape shape;
    int64_t *tile_at; /* [seqs + 1] work items before each sequence */
    uint8_t *workers;
} attn_job;

static float *row_at(const ebb_tensor *t, int64_t token, int64_t head) {
    return (float *)t->data + token * t->stride[0] + head * t->stride[1];
}

/* Work item: one token, all its KV heads, into its page. */
static void append_token(void *ctx, int64_t token, int32_t worker) {
    const attn_job *job = ctx;
    const ebb_kv_view *s = &job->args->s;
    const ebb_batch *b = &job->args->b;
    int32_t seq = sequence_of(b, token);
    if (b->slot[seq] == -1) return;
    uint8_t *scratch = job->workers + (size_t)worker * job->shape.worker, *packed = scratch + job->shape.rows;
    float *rows = (float *)(void *)scratch, *tmp = (float *)(void *)(packed + job->shape.packed);
    const kv_shape *kv = &job->kv;
    for (int32_t head = 0; head < s->layer->heads; head++) {
        memcpy(rows, row_at(&job->args->k, token, head), (size_t)kv->k * sizeof *rows);
        if (!kv->shared) memcpy(rows + kv->v_at, row_at(&job->args->v, token, head), (size_t)kv->v * sizeof *rows);
        kv_put(s, &job->planes, b->slot[seq], head, b->pos[seq] + token - b->cu[seq], rows, packed, tmp);
    }
}

static int64_t tiles_of(int64_t tokens, int64_t group) { return (tokens * group + ATTN_TILE - 1) / ATTN_TILE; }

/* Work item: up to ATTN_TILE (token, query head of the group) rows of one KV head of one sequence. Items run from the
 * last to the first, because the last tiles of a prompt see the most keys and should not be left for the end. */
static void attend_tile(void *ctx, int64_t item, int32_t worker) {
    const attn_job *job = ctx;
    const ebb_attn_args *args = job->args;
    const ebb_batch *b = &args->b;
    const ebb_kv_layer *layer = args->s.layer;
    item = job->tile_at[b->seqs] - 1 - item;
    int32_t seq = 0;
    for (int32_t high = b->seqs - 1; seq < high;) {
        int32_t middle = seq + (high - seq) / 2;
        if (job->tile_at[middle + 1] > item) high = middle;
        else seq = middle + 1;
    }
    int64_t group = layer->q_heads / layer->heads, rows = (b->cu[seq + 1] - b->cu[seq]) * group;
    item -= job->tile_at[seq];
    attn_tile tile = {.s = &args->s, .slot = b->slot[seq], .head = (int32_t)(item % layer->heads)};
    int64_t first = item / layer->heads * ATTN_TILE;
    tile.n = (int32_t)min_i64(ATTN_TILE, rows - first);
    for (int32_t i = 0; i < tile.n; i++) {
        int64_t token = (first + i) / group, head = tile.head * group + (first + i) % group;
        tile.q[i] = row_at(&args->q, b->cu[seq] + token, head);
        tile.out[i] = row_at(&args->out, b->cu[seq] + token, head);
        tile.limit[i] = b->pos[seq] + token + 1;
    }
    job->row->run(&tile, job->workers + (size_t)worker * job->shape.worker);
    if (!args->gate.data) return;
    for (int32_t i = 0; i < tile.n; i++) {
        int64_t token = b->cu[seq] + (first + i) / group, head = tile.head * group + (first + i) % group;
        job->point->mul_sigmoid(tile.out[i], row_at(&args->gate, token, head), job->kv.v);
    }
}

/* Fills tile_at and answers the operations of all tiles: 2 for each query row, key, and dim of the key and the value.
 */
static int64_t count_tiles(const attn_job *job) {
    const ebb_batch *b = &job->args->b;
    const ebb_kv_layer *layer = job->args->s.layer;
    double cost = 0, each = 2.0 * (job->kv.k + job->kv.v);
    job->tile_at[0] = 0;
    for (int32_t i = 0; i < b->seqs; i++) {
        int64_t n = b->slot[i] == -1 ? 0 : b->cu[i + 1] - b->cu[i];
        job->tile_at[i + 1] = job->tile_at[i] + tiles_of(n, layer->q_heads / layer->heads) * layer->heads;
        cost += (double)n * layer->q_heads * each * ((double)b->pos[i] + 0.5 * (double)(n + 1));
    }
    return cost < 1e18 ? (int64_t)cost : (int64_t)1e18;
}

ebb_status ebb_attn(ebb_queue *queue, const ebb_plan *plan, const ebb_attn_args *args, ebb_error *error) {
    if (args->size != sizeof *args || plan->size != sizeof *plan || plan->device != queue->device)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the attention arguments, the plan or the queue are not of this version and device");
    const ebb_kv_view *s = &args->s;
    const ebb_batch *b = &args->b;
    attn_job job = {.args = args, .row = plan->row, .point = point_row_of(queue->device)};
    ebb_status status = view_check(s, &job.planes, error);
    if (!status) status = check_batch(b, plan->max_seqs, plan->max_tokens, s->slots, error);
    if (!status) status = slots_check(s, b, error);
    if (status || b->tokens == 0) return status;
    status = tensors_check(args, error);
    if (status) return status;
    const char *why = row_refusal(queue->device, job.row, s);
    if (why)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the plan's attention kernel \"%s\" cannot serve this store: %s",
                        job.row->id.name, why);
    job.kv = kv_shape_of(s->layer);
    job.shape = arena_of(queue->device, job.row, s, &job.planes, b->seqs);
    if (job.shape.bytes > queue->arena_bytes)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the queue has %zu bytes of scratch; attention needs %zu",
                        queue->arena_bytes, job.shape.bytes);
    job.tile_at = queue->arena;
    job.workers = (uint8_t *)queue->arena + job.shape.tiles;

    int64_t cost = count_tiles(&job), row_values = (int64_t)s->layer->heads * job.kv.all;
    queue_run(queue, b->tokens, b->tokens * row_values * 4, append_token, &job);
    queue_run(queue, job.tile_at[b->seqs], cost, attend_tile, &job);
    return EBB_OK;
}
