/* op/select.c: which keys of a store are vertical: those that the newest queries look at most (papers/hyquant,
 * "Vertical lines"). The score of a key of one KV head is (sum over the choosing tokens of the mean over the head's
 * query heads, after RoPE) . key, and the highest scores win, of equal ones the lowest position. Called by
 * op/attention.c. */
#include "op/attention.h"

#include <string.h>

/* ---- the highest of many scores ---- */

/* Greater scores have greater numbers; -0 and 0 are equal, and a NaN is below all. */
static uint32_t order_of(float score) {
    if (isnan(score)) return 0;
    score += 0.0f;
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Scores above `order` are chosen, and the first `equal` of those that are it. */
typedef struct threshold {
    uint32_t order;
    int64_t equal;
} threshold;

/* Of the `count` highest of n, byte by byte from the top: how many scores begin with what is known of the last of them.
 */
static threshold threshold_of(const float *score, int64_t n, int64_t count) {
    threshold c = {0, count};
    for (int32_t shift = 24; shift >= 0; shift -= 8) {
        int64_t many[256] = {0};
        for (int64_t i = 0; i < n; i++) {
            const uint32_t order = order_of(score[i]);
            if (shift == 24 || order >> (shift + 8) == c.order >> (shift + 8)) many[order >> shift & 255]++;
        }
        uint32_t byte = 255;
        for (; many[byte] < c.equal; byte--) c.equal -= many[byte];
        c.order |= byte << shift;
    }
    return c;
}

static bool is_chosen(threshold *c, float score) {
    const uint32_t order = order_of(score);
    return order > c->order || (order == c->order && c->equal-- > 0);
}

/* ---- queries and keys ---- */

typedef struct chooser { /* one sequence and KV head, and its part of the arena */
    const attn_job *job;
    const ebb_kv_view *s;
    int32_t seq, slot, head;
    uint8_t *scratch;
    float *query, *key, *score;
} chooser;

static chooser chooser_of(const attn_job *job, int64_t item, int32_t worker) {
    chooser c = {.job = job, .s = &job->args->s};
    c.seq = attn_sequence(job, &item);
    c.slot = job->args->b.slot[c.seq];
    c.head = (int32_t)item;
    c.scratch = attn_scratch(job, worker);
    c.query = (float *)(void *)(c.scratch + job->shape.score);
    c.key = c.query + job->kv.k;
    c.score = c.key + ATTN_KEYS * (int64_t)job->kv.k;
    return c;
}

/* sum += the mean of query heads first .. first + n - 1 of a token of the call. */
static void add_query(const chooser *c, int64_t token, int64_t first, int64_t n, float *sum) {
    const ebb_tensor *q = &c->job->args->q;
    c->job->select->add(attn_row_at(q, token, first), q->stride[1], n, c->job->kv.k, sum);
}

static int64_t group_of(const chooser *c) { return c->s->layer->q_heads / c->s->layer->heads; }

/* score[i] = query . key of token first + i, below `end`. */
static void score_keys(const chooser *c, const float *query, int64_t first, int64_t end) {
    for (int64_t t = first; t < end; t += ATTN_KEYS) {
        const int64_t n = min_i64(ATTN_KEYS, end - t);
        attn_read_keys(c->job, c->slot, c->head, t, n, c->scratch, c->key);
        c->job->select->score(query, c->key, c->job->kv.k, n, c->score + t - first);
    }
}

static void set_mark(const chooser *c, int32_t mark, int64_t token, bool on) {
    const int64_t bit = token % c->s->page;
    uint8_t *byte = kv_marks(c->s, c->slot, c->head, mark, token) + bit / 8;
    *byte = (uint8_t)((*byte & ~(1u << bit % 8)) | (uint32_t)on << bit % 8);
}

/* ---- segment: each interval of the grid by its own last queries ---- */

/* The first token of the interval of `token` that chooses, counted from the beginning of the interval. */
static int64_t first_chooser(const attn_job *job) { return EBB_GRID - min_i64(EBB_GRID, attn_choosers(&job->choice)); }

void attn_sum_queries(void *ctx, int64_t item, int32_t worker) {
    const attn_job *job = ctx;
    const chooser c = chooser_of(job, item, worker);
    const ebb_batch *b = &job->args->b;
    const int64_t group = group_of(&c), first = first_chooser(job);
    const size_t bytes = (size_t)job->kv.k * sizeof(float);
    for (int64_t i = job->from[c.seq]; i < job->to[c.seq]; i++) {
        const int64_t token = b->pos[c.seq] + i, in = token % EBB_GRID;
        if (in < first) continue;
        float *sum = kv_query_sum(c.s, &job->kv, c.slot, c.head, token);
        if (in == first) memset(sum, 0, bytes);
        else memcpy(sum, kv_query_sum(c.s, &job->kv, c.slot, c.head, token - 1), bytes);
        add_query(&c, b->cu[c.seq] + i, c.head * group, group, sum);
    }
}

void attn_choose_segment(void *ctx, int64_t item, int32_t worker) {
    const attn_job *job = ctx;
    const chooser c = chooser_of(job, item, worker);
    const int64_t end = job->args->b.pos[c.seq] + job->to[c.seq], first = end - EBB_GRID,
                  count = kv_vertical_count(EBB_GRID, job->choice.ratio);
    uint8_t *place = kv_marks(c.s, c.slot, c.head, c.s->marks, first);
    uint16_t *row = (uint16_t *)(void *)(place + align_up((size_t)c.s->overlay_rows, KV_ALIGN));
    threshold cut = {0, 0};
    if (count) {
        score_keys(&c, kv_query_sum(c.s, &job->kv, c.slot, c.head, end - 1), first, end);
        cut = threshold_of(c.score, EBB_GRID, count);
    }
    for (int64_t t = first; t < end; t++) {
        const bool on = count && is_chosen(&cut, c.score[t - first]);
        set_mark(&c, 0, t, on);
        if (!on || !job->choice.kept) continue;
        *place++ = (uint8_t)(t - first);
        memcpy(row, kv_tail_row(c.s, job->kv.all, c.slot, c.head, t), (size_t)job->kv.all * sizeof *row);
        row += job->kv.all;
    }
}

/* ---- prompt, paper: a whole prompt by its last queries ---- */

/* query = the sum over the last queries of this piece of a prompt, of the mean over query heads first .. + n - 1. */
static void sum_piece(const chooser *c, int64_t first, int64_t n, float *query) {
    const ebb_batch *b = &c->job->args->b;
    const int64_t tokens = b->cu[c->seq + 1] - b->cu[c->seq], last = min_i64(tokens, attn_choosers(&c->job->choice));
    memset(query, 0, (size_t)c->job->kv.k * sizeof *query);
    for (int64_t t = b->cu[c->seq + 1] - last; t < b->cu[c->seq + 1]; t++) add_query(c, t, first, n, query);
}

static void mark_keys(const chooser *c, int32_t mark, const float *query, int64_t first, int64_t end) {
    const int64_t count = kv_vertical_count(end - first, c->job->choice.ratio);
    threshold cut = {0, 0};
    if (count) {
        score_keys(c, query, first, end);
        cut = threshold_of(c->score, end - first, count);
    }
    for (int64_t t = first; t < end; t++) set_mark(c, mark, t, count && is_chosen(&cut, c->score[t - first]));
}

/* What the piece's queries say: their sum for the cache, which chooses when the prompt has ended, and the marks of
 * prefill, among the keys that have no code yet, or have been chosen among before. */
void attn_mark_prompt(void *ctx, int64_t item, int32_t worker) {
    const attn_job *job = ctx;
    const chooser c = chooser_of(job, item, worker);
    const int64_t group = group_of(&c), end = job->args->b.pos[c.seq] + job->to[c.seq] - job->choice.window;
    int64_t first = 0;
    sum_piece(&c, c.head * group, group, c.query);
    if (job->choice.kept) {
        const kv_live *live = kv_live_of(c.s, c.slot);
        memcpy(kv_extra_of(c.s, &job->kv, c.slot, c.head).query, c.query, (size_t)job->kv.k * sizeof(float));
        first = ebb_kv_bound(&c.s->rule, EBB_ROLE_K, live->begin);
        if (job->choice.select == EBB_SELECT_PROMPT) first = max_i64(first, live->selected);
    }
    if (!attn_prefill_chooses(&c.s->prefill)) return;
    if (job->choice.select == EBB_SELECT_PROMPT) {
        mark_keys(&c, kv_prefill_mark(c.s, 0), c.query, first, end);
        return;
    }
    for (int32_t n = 0; n < group; n++) {
        sum_piece(&c, c.head * group + n, 1, c.query);
        mark_keys(&c, kv_prefill_mark(c.s, n), c.query, first, end);
    }
}

/* The published cache leaves out two windows: docs/hyquant.md. */
int64_t attn_chosen_end(const attn_choice *c, int64_t end) {
    return end - (c->select == EBB_SELECT_PAPER ? 2 : 1) * (int64_t)c->window;
}

/* Among the keys since those of the prompts before; in all as many as one prompt of this length would have. */
void attn_choose_prompt(void *ctx, int64_t item, int32_t worker) {
    const attn_job *job = ctx;
    const chooser c = chooser_of(job, item, worker);
    const kv_live *live = kv_live_of(c.s, c.slot);
    const kv_extra e = kv_extra_of(c.s, &job->kv, c.slot, c.head);
    const int64_t first = live->selected, end = attn_chosen_end(&job->choice, live->end), page = c.s->page;
    if (first == 0) e.first[0] = 0;
    int32_t rows = first ? e.first[(first - 1) / page + 1] : 0;
    const int64_t count = min_i64(end - first, kv_vertical_count(end, job->choice.ratio) - rows);
    threshold cut = {0, 0};
    if (count > 0) {
        score_keys(&c, e.query, first, end);
        cut = threshold_of(c.score, end - first, count);
    }
    for (int64_t t = first; t < end; t++) {
        const bool on = count > 0 && is_chosen(&cut, c.score[t - first]);
        set_mark(&c, 0, t, on);
        if (on) {
            e.place[rows] = (uint8_t)(t % page);
            memcpy(e.rows + (int64_t)rows++ * job->kv.all, kv_tail_row(c.s, job->kv.all, c.slot, c.head, t),
                   (size_t)job->kv.all * sizeof *e.rows);
        }
        e.first[t / page + 1] = rows;
    }
}
