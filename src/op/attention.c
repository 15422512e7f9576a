/* op/attention.c: causal softmax attention over a KV store: choosing a kernel row, checking a call, and running it, the
 * queries cut into tiles. The arithmetic is in op/ref/attention.c (the definition) and in the rows of op/x86; append.c
 * and select.c write the store. A row of the output depends on its query and its sequence's store only, so nothing here
 * changes a bit of it: not the batch, the tile, the thread, nor whether its tokens came one by one.
 *
 * A call runs in rounds. A store that keeps newest tokens in a ring, or chooses vertical keys interval by interval,
 * takes the tokens of a sequence up to the next multiple of the grid in one round, so that the ring never loses a row
 * that is still to be read, and an interval's keys are chosen before a later token is computed. Other stores take all
 * in one. */
#include "op/attention.h"

#include <string.h>

/* ---- plan ---- */

static bool same_rule(const ebb_kv_rule *a, const ebb_kv_rule *b) {
    bool same = a->group == b->group && a->tail == b->tail && a->select == b->select && a->ratio == b->ratio;
    for (int32_t i = 0; i < 2; i++) same &= a->window[i] == b->window[i] && a->slide[i] == b->slide[i];
    return same;
}

/* Codes exist for every token below a bound: bounds are multiples of the group, or stay behind its end. */
static bool groups_end(const ebb_kv_rule *r) {
    if (r->group == 1) return true;
    for (int32_t i = 0; i < 2; i++)
        if (r->slide[i] < 1 || (r->slide[i] % r->group && r->window[i] < r->group - 1)) return false;
    return r->tail && EBB_KV_PAGE % r->group == 0;
}

static ebb_status rule_check(const ebb_kv_view *s, const ebb_kv_rule *rule, ebb_error *error) {
    if (!same_rule(&s->rule, rule))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the rule of the KV view is not the one of its codec \"%s\"",
                        s->codec->name);
    if (!groups_end(rule))
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "attention over groups of %d tokens needs a tail that a group ends in before it is read",
                        rule->group);
    const ebb_prefill *p = &s->prefill;
    const attn_choice choice = attn_choice_of(s);
    if (rule->select && !rule->tail)
        return ebb_fail(error, EBB_UNSUPPORTED, "a KV store with vertical keys needs a tail of 16-bit rows");
    if (choice.kept && attn_prefill_chooses(p) &&
        (p->select != choice.select || p->window != choice.window || p->ratio != choice.ratio))
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "prefill chooses vertical keys with window %d and ratio %g, the KV store with %d and %g, or "
                        "from other queries; expected the same of both",
                        p->window, p->ratio, choice.window, choice.ratio);
    if (p->mode != EBB_PREFILL_FULL && rule->tail && rule->slide[0] % ATTN_BLOCK)
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "prefill in INT8 over keys that leave the tail in steps of %d; expected a multiple of %d",
                        rule->slide[0], ATTN_BLOCK);
    return EBB_OK;
}

/* The parts of the view that its rule and prefill read. */
static ebb_status memory_check(const ebb_kv_view *s, ebb_error *error) {
    const attn_choice choice = attn_choice_of(s);
    const int32_t group = s->layer->q_heads / s->layer->heads,
                  marks = attn_prefill_chooses(&s->prefill) ? kv_prefill_mark(s, group - 1) + 1 : choice.kept;
    const bool sums = choice.select == EBB_SELECT_SEGMENT;
    if ((s->rule.tail && (s->tail_cap < ATTN_BLOCK || s->tail_cap % ATTN_BLOCK)) ||
        ((s->rule.tail || sums) && (!s->tail || s->max_new < 1)))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the KV view has no tail, or one of %d tokens and steps of %d",
                        s->tail_cap, s->max_new);
    if (choice.select && (s->page != EBB_KV_PAGE || s->marks < marks))
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the KV view has pages of %d tokens with %d bitmaps of vertical keys; expected %d and %d",
                        s->page, s->marks, EBB_KV_PAGE, marks);
    if (choice.kept && sums && s->overlay_rows != kv_vertical_count(EBB_GRID, choice.ratio))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the KV view has room for %d vertical keys a page; expected %lld",
                        s->overlay_rows, (long long)kv_vertical_count(EBB_GRID, choice.ratio));
    if (((choice.kept && attn_by_prompt(&choice)) || s->codec->rewrite) && !s->extra)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the KV view keeps nothing of its prompts; expected an extra part");
    return EBB_OK;
}

static ebb_status view_check(const ebb_kv_view *s, ebb_planes *planes, ebb_error *error) {
    if (!s || !s->layer || !s->codec || !s->param || !s->pages || !s->block)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the KV view lacks its layer, codec, parameters, pages or block table");
    ebb_kv_rule rule;
    ebb_status status = s->codec->layout(s->layer, s->param, &rule, planes, error);
    if (!status) status = rule_check(s, &rule, error);
    if (status) return status;
    if (s->page < ATTN_BLOCK || s->page % ATTN_BLOCK)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "KV pages hold %d tokens; expected a multiple of %d", s->page,
                        ATTN_BLOCK);
    if (s->slots < 1 || s->block_stride < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the KV view has %d slots of %d pages; expected 1 or more of each",
                        s->slots, s->block_stride);
    for (int32_t i = 0; i < planes->n; i++)
        if (s->plane_bytes[i] != (int64_t)planes->plane[i].bytes || s->plane_at[i] < 0)
            return ebb_fail(
                error, EBB_BAD_ARGUMENT, "plane %s of the KV view has %lld bytes a group at %lld; expected %zu",
                planes->plane[i].name, (long long)s->plane_bytes[i], (long long)s->plane_at[i], planes->plane[i].bytes);
    return memory_check(s, error);
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

static arena_shape arena_of(const ebb_device *device, const attn_row *row, const ebb_kv_view *view,
                            const ebb_planes *planes, int32_t max_seqs) {
    arena_shape a = {.list = align_up(((size_t)max_seqs + 1) * sizeof(int64_t), 64)};
    const attn_choice choice = attn_choice_of(view);
    const kv_shape kv = kv_shape_of(view->layer);
    const int64_t keys = attn_by_prompt(&choice) ? (int64_t)view->block_stride * view->page : EBB_GRID;
    const size_t heads = (size_t)view->layer->heads, /* of a token; its rows serve to gather a group too */
        tokens = view->rule.group > 1 ? (size_t)view->rule.group + heads : heads;
    a.group = align_up(tokens * (size_t)kv.all * sizeof(float), 64);
    a.packed = align_up(planes->bytes, 64);
    a.score = align_up(a.group + a.packed + planes->scratch * sizeof(float), 64);
    const size_t choose = choice.select ? ((ATTN_KEYS + 1) * (size_t)kv.k + (size_t)keys) * sizeof(float) : 0,
                 append = a.score + choose, tile = row->scratch(view);
    a.worker = align_up(append > tile ? append : tile, 64);
    a.bytes = 3 * a.list + a.worker * (size_t)ebb_device_threads(device);
    return a;
}

static uint64_t numerics_prefill(uint64_t id, const ebb_prefill *p) {
    const double values[] = {p->mode, p->select, p->window, p->fp8, p->ratio};
    return mix64(hash64(id, values, sizeof values));
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
    if (view->prefill.mode != EBB_PREFILL_FULL) plan->numerics = numerics_prefill(plan->numerics, &view->prefill);
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

/* A store that goes back at most max_new tokens keeps no more than that needs; one that rewrites cannot go back. */
static ebb_status steps_check(const ebb_attn_args *args, ebb_error *error) {
    const ebb_kv_view *s = &args->s;
    const ebb_batch *b = &args->b;
    const int32_t most = s->codec->rewrite ? 1 : s->max_new;
    if (args->prompt || (!s->rule.tail && !s->marks && !s->codec->rewrite)) return EBB_OK;
    for (int32_t i = 0; i < b->seqs; i++)
        if (b->slot[i] != -1 && b->cu[i + 1] - b->cu[i] > most)
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "sequence %d adds %d generated tokens to a KV store that takes %d at once", i,
                            b->cu[i + 1] - b->cu[i], most);
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

/* ---- rounds ---- */

/* 0 for padding. */
static int64_t tokens_of(const ebb_batch *b, int32_t seq) {
    return b->slot[seq] == -1 ? 0 : b->cu[seq + 1] - b->cu[seq];
}

static bool keeps_prompts(const attn_job *job) {
    return (job->choice.kept && attn_by_prompt(&job->choice)) || job->args->s.codec->rewrite;
}

/* The end of the round that begins at position `pos`. */
static int64_t round_end(const attn_job *job, int64_t pos) {
    const bool grid =
        job->choice.select == EBB_SELECT_SEGMENT || (job->args->s.rule.tail && !attn_by_prompt(&job->choice));
    return grid ? (pos / EBB_GRID + 1) * EBB_GRID : INT64_MAX;
}

/* false: all tokens are done. */
static bool next_round(const attn_job *job) {
    const ebb_batch *b = &job->args->b;
    bool more = false;
    for (int32_t i = 0; i < b->seqs; i++) {
        const int64_t n = tokens_of(b, i);
        job->from[i] = job->to[i];
        if (job->to[i] >= n) continue;
        job->to[i] = min_i64(n, round_end(job, b->pos[i] + job->from[i]) - b->pos[i]);
        more = true;
    }
    return more;
}

typedef int64_t (*items_of)(const attn_job *job, int32_t seq);

/* One pass over the work items of all sequences; `cost` operations in all. */
static void run_pass(ebb_queue *queue, attn_job *job, items_of items, int64_t cost, work_fn fn) {
    const int32_t seqs = job->args->b.seqs;
    job->item_at[0] = 0;
    for (int32_t i = 0; i < seqs; i++) job->item_at[i + 1] = job->item_at[i] + items(job, i);
    if (job->item_at[seqs]) queue_run(queue, job->item_at[seqs], cost, fn, job);
}

static int64_t head_items(const attn_job *job, int32_t seq) {
    return job->from[seq] < job->to[seq] ? job->args->s.layer->heads : 0;
}

static int64_t segment_items(const attn_job *job, int32_t seq) {
    return (job->args->b.pos[seq] + job->to[seq]) % EBB_GRID ? 0 : head_items(job, seq);
}

/* ---- what is kept of prompts ---- */

/* A piece that begins inside a prompt, or where it ends, goes on with it. */
static void note_call(const attn_job *job) {
    const ebb_batch *b = &job->args->b;
    for (int32_t i = 0; i < b->seqs; i++) {
        const int64_t n = tokens_of(b, i), pos = b->pos[i];
        if (n == 0) continue;
        kv_live *live = kv_live_of(&job->args->s, b->slot[i]);
        if (pos == 0) *live = (kv_live){0};
        if (job->args->prompt) {
            if (pos < live->begin || pos > live->end) live->begin = pos;
            live->end = pos + n;
        } else live->end = min_i64(live->end, pos);
    }
}

static int64_t choice_items(const attn_job *job, int32_t seq) {
    if (!tokens_of(&job->args->b, seq)) return 0;
    const kv_live *live = kv_live_of(&job->args->s, job->args->b.slot[seq]);
    return attn_chosen_end(&job->choice, live->end) > live->selected ? job->args->s.layer->heads : 0;
}

/* The vertical keys of a prompt, before the first token behind it. */
static void choose_prompts(ebb_queue *queue, attn_job *job) {
    const ebb_batch *b = &job->args->b;
    run_pass(queue, job, choice_items, INT64_MAX, attn_choose_prompt);
    for (int32_t i = 0; i < b->seqs; i++) {
        if (!choice_items(job, i)) continue;
        kv_live *live = kv_live_of(&job->args->s, b->slot[i]);
        live->selected = attn_chosen_end(&job->choice, live->end);
    }
}

/* Moves `selected` to what is to be rounded before a generated token: the prompt behind which it is the first, else all
 * when the residual is full. There is no way back behind that, so such tokens come one by one. */
static int64_t rewrite_items(const attn_job *job, int32_t seq) {
    const ebb_kv_view *s = &job->args->s;
    if (!tokens_of(&job->args->b, seq)) return 0;
    kv_live *live = kv_live_of(s, job->args->b.slot[seq]);
    const int64_t full = live->selected + s->rule.window[0];
    const int64_t end = live->end > live->selected ? live->end : job->args->b.pos[seq] >= full ? full : live->selected;
    if (end == live->selected) return 0;
    live->selected = end;
    return 1;
}

/* ---- tiles ---- */

static int64_t tile_items(const attn_job *job, int32_t seq) {
    const ebb_kv_layer *layer = job->args->s.layer;
    const int64_t rows = (job->to[seq] - job->from[seq]) * (layer->q_heads / layer->heads);
    return (rows + ATTN_TILE - 1) / ATTN_TILE * layer->heads;
}

/* How row i of a tile, the query at position `at`, reads keys. While the keys of a prompt are not chosen, they stay in
 * the tail from where its first query found it. */
static void tile_row(const attn_job *job, attn_tile *tile, int32_t i, int64_t at, int32_t query_head) {
    const ebb_kv_view *s = tile->s;
    const bool whole = job->args->prompt && job->choice.kept && attn_by_prompt(&job->choice);
    const int64_t from = whole ? kv_live_of(s, tile->slot)->begin : at;
    tile->limit[i] = at + 1;
    tile->codes[i] = ebb_kv_bound(&s->rule, EBB_ROLE_K, from);
    tile->values[i] = ebb_kv_bound(&s->rule, EBB_ROLE_V, from);
    tile->low[i] = tile->mode == EBB_PREFILL_FULL ? 0 : attn_low(&s->prefill, at);
    tile->mark[i] = tile->mode == EBB_PREFILL_FULL ? 0 : kv_prefill_mark(s, query_head);
}

/* Work item: up to ATTN_TILE (token, query head of the group) rows of one KV head of one sequence. Items run from the
 * last to the first, because the last tiles of a prompt see the most keys and should not be left for the end. */
static void attend_tile(void *ctx, int64_t item, int32_t worker) {
    const attn_job *job = ctx;
    const ebb_attn_args *args = job->args;
    const ebb_batch *b = &args->b;
    const ebb_kv_layer *layer = args->s.layer;
    item = job->item_at[b->seqs] - 1 - item;
    const int32_t seq = attn_sequence(job, &item);
    const int64_t group = layer->q_heads / layer->heads, rows = (job->to[seq] - job->from[seq]) * group;
    attn_tile tile = {.s = &args->s,
                      .slot = b->slot[seq],
                      .head = (int32_t)(item % layer->heads),
                      .mode = args->prompt ? args->s.prefill.mode : EBB_PREFILL_FULL};
    int64_t first = item / layer->heads * ATTN_TILE;
    tile.n = (int32_t)min_i64(ATTN_TILE, rows - first);
    for (int32_t i = 0; i < tile.n; i++) {
        int64_t token = job->from[seq] + (first + i) / group, n = (first + i) % group, head = tile.head * group + n;
        tile.q[i] = attn_row_at(&args->q, b->cu[seq] + token, head);
        tile.out[i] = attn_row_at(&args->out, b->cu[seq] + token, head);
        tile_row(job, &tile, i, b->pos[seq] + token, (int32_t)n);
    }
    job->row->run(&tile, attn_scratch(job, worker));
    if (!args->gate.data) return;
    for (int32_t i = 0; i < tile.n; i++) {
        int64_t token = b->cu[seq] + job->from[seq] + (first + i) / group,
                head = tile.head * group + (first + i) % group;
        job->point->mul_sigmoid(tile.out[i], attn_row_at(&args->gate, token, head), job->kv.v);
    }
}

/* ---- the run ---- */

/* Operations of the tiles of a round: 2 for each query row, key, and dim of the key and the value. */
static int64_t tile_cost(const attn_job *job) {
    const ebb_batch *b = &job->args->b;
    double cost = 0, each = 2.0 * (job->kv.k + job->kv.v) * job->args->s.layer->q_heads;
    for (int32_t i = 0; i < b->seqs; i++) {
        double n = (double)(job->to[i] - job->from[i]), seen = (double)(b->pos[i] + job->from[i]) + 0.5 * (n + 1);
        cost += n * each * seen;
    }
    return cost < 1e18 ? (int64_t)cost : (int64_t)1e18;
}

static void run_round(ebb_queue *queue, attn_job *job) {
    const ebb_attn_args *args = job->args;
    const ebb_batch *b = &args->b;
    const attn_choice *choice = &job->choice;
    int64_t tokens = 0;
    for (int32_t i = 0; i < b->seqs; i++) tokens += job->to[i] - job->from[i];
    const int64_t values = tokens * args->s.layer->heads * job->kv.all, queries = tokens * args->s.layer->q_heads;
    run_pass(queue, job, attn_append_items, values * 4, attn_append);
    if (choice->select == EBB_SELECT_SEGMENT) run_pass(queue, job, head_items, queries * job->kv.k, attn_sum_queries);
    if (attn_by_prompt(choice) && args->prompt) run_pass(queue, job, head_items, INT64_MAX, attn_mark_prompt);
    run_pass(queue, job, tile_items, tile_cost(job), attend_tile);
    if (choice->select == EBB_SELECT_SEGMENT) run_pass(queue, job, segment_items, values * 2, attn_choose_segment);
}

static void run_rounds(ebb_queue *queue, attn_job *job) {
    const bool generated = !job->args->prompt;
    memset(job->to, 0, (size_t)job->args->b.seqs * sizeof *job->to);
    if (keeps_prompts(job)) note_call(job);
    if (job->choice.kept && attn_by_prompt(&job->choice) && generated) choose_prompts(queue, job);
    if (job->args->s.codec->rewrite && generated) run_pass(queue, job, rewrite_items, INT64_MAX, attn_rewrite);
    while (next_round(job)) run_round(queue, job);
}

ebb_status ebb_attn(ebb_queue *queue, const ebb_plan *plan, const ebb_attn_args *args, ebb_error *error) {
    if (args->size != sizeof *args || plan->size != sizeof *plan || plan->device != queue->device)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the attention arguments, the plan or the queue are not of this version and device");
    const ebb_kv_view *s = &args->s;
    const ebb_batch *b = &args->b;
    attn_job job = {.args = args, .row = plan->row, .point = point_row_of(queue->device)};
    job.append = append_row_of(queue->device);
    job.select = select_row_of(queue->device);
    ebb_status status = view_check(s, &job.planes, error);
    if (!status) status = check_batch(b, plan->max_seqs, plan->max_tokens, s->slots, error);
    if (!status) status = slots_check(s, b, error);
    if (!status) status = steps_check(args, error);
    if (status || b->tokens == 0) return status;
    status = tensors_check(args, error);
    if (status) return status;
    const char *why = row_refusal(queue->device, job.row, s);
    if (why)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the plan's attention kernel \"%s\" cannot serve this store: %s",
                        job.row->id.name, why);
    job.kv = kv_shape_of(s->layer);
    job.choice = attn_choice_of(s);
    job.shape = arena_of(queue->device, job.row, s, &job.planes, b->seqs);
    if (job.shape.bytes > queue->arena_bytes)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the queue has %zu bytes of scratch; attention needs %zu",
                        queue->arena_bytes, job.shape.bytes);
    uint8_t *arena = queue->arena;
    job.from = queue->arena;
    job.to = (int64_t *)(void *)(arena + job.shape.list);
    job.item_at = (int64_t *)(void *)(arena + 2 * job.shape.list);
    job.workers = arena + 3 * job.shape.list;
    run_rounds(queue, &job);
    return EBB_OK;
}
