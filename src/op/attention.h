/* op/attention.h: the inside of ebb_attn, which goes over a batch in rounds: attention.c checks a call and runs it,
 * append.c writes tokens into the store, select.c chooses vertical keys. For these three files, and ebb-check. */
#ifndef OP_ATTENTION_H
#define OP_ATTENTION_H

#include "kv/kv_int.h"
#include "op/batch.h"
#include "op/rows.h"

/* How vertical keys are chosen: as the cache does it, or, where it keeps none, as its prefill does. */
typedef struct attn_choice {
    int32_t select; /* ebb_select */
    int32_t window;
    double ratio;
    bool kept; /* the cache keeps them in 16 bits; else prefill marks them only */
} attn_choice;

enum { ATTN_APPEND = 16 }; /* tokens of a work item of append, where each is encoded alone */
enum { ATTN_KEYS = 32 };   /* keys that are scored together */

/* The arena: per sequence the tokens of a round and the work items of a pass, then a part for each worker. */
typedef struct arena_shape {
    size_t list;          /* of one number a sequence */
    size_t group, packed; /* at the beginning of a worker's part: rows of a group and of a token, bytes, scratch */
    size_t score;         /* behind them, where this begins: a query, ATTN_KEYS keys, and scores of keys */
    size_t worker, bytes;
} arena_shape;

typedef struct attn_job {
    const ebb_attn_args *args;
    const attn_row *row;
    const point_row *point;
    const append_row *append;
    const select_row *select;
    ebb_planes planes;
    kv_shape kv;
    attn_choice choice;
    arena_shape shape;
    int64_t *from, *to; /* [seqs] tokens of this round, counted from the beginning of the call; padding has none */
    int64_t *item_at;   /* [seqs + 1] work items of this pass before each sequence */
    uint8_t *workers;
} attn_job;

static inline bool attn_prefill_chooses(const ebb_prefill *p) {
    return (p->mode == EBB_PREFILL_VQUANT || p->mode == EBB_PREFILL_SPARSE) && p->select != EBB_SELECT_NONE;
}

static inline attn_choice attn_choice_of(const ebb_kv_view *s) {
    const ebb_prefill *p = &s->prefill;
    if (s->rule.select) return (attn_choice){s->rule.select, s->rule.window[0], s->rule.ratio, true};
    if (!attn_prefill_chooses(p)) return (attn_choice){0};
    return (attn_choice){p->select, p->window, p->ratio, false};
}

/* Of a prompt at once, not of each interval of the grid. */
static inline bool attn_by_prompt(const attn_choice *c) {
    return c->select == EBB_SELECT_PROMPT || c->select == EBB_SELECT_PAPER;
}

/* Newest queries that choose: a window of 0 would leave none. */
static inline int64_t attn_choosers(const attn_choice *c) { return c->window ? c->window : EBB_GRID; }

static inline float *attn_row_at(const ebb_tensor *t, int64_t token, int64_t head) {
    return (float *)t->data + token * t->stride[0] + head * t->stride[1];
}

static inline uint8_t *attn_scratch(const attn_job *job, int32_t worker) {
    return job->workers + (size_t)worker * job->shape.worker;
}

/* The sequence of a work item, which becomes its number among the items of that sequence. */
static inline int32_t attn_sequence(const attn_job *job, int64_t *item) {
    int32_t low = 0;
    for (int32_t high = job->args->b.seqs - 1; low < high;) {
        int32_t middle = low + (high - low) / 2;
        if (job->item_at[middle + 1] > *item) high = middle;
        else low = middle + 1;
    }
    *item -= job->item_at[low];
    return low;
}

/* Of a prompt, keys below this are INT8 for the query at position i: from the beginning of its 128 queries, the window
 * and what is in one block of keys with its end stay as they are; and so does the interval whose vertical keys are not
 * chosen yet. */
static inline int64_t attn_low(const ebb_prefill *p, int64_t i) {
    if (p->mode == EBB_PREFILL_FULL) return 0;
    if (p->mode == EBB_PREFILL_SAGE0) return i + 1;
    const int64_t first = i / 128 * 128 - (p->window - 1), low = first > 0 ? first / ATTN_BLOCK * ATTN_BLOCK : 0;
    return p->mode == EBB_PREFILL_SAGE ? low : min_i64(low, i / EBB_GRID * EBB_GRID);
}

/* append.c: the tokens of a round, one encode a work item, or up to ATTN_APPEND tokens where each has its own */
int64_t attn_append_items(const attn_job *job, int32_t seq);
void attn_append(void *job, int64_t item, int32_t worker);
/* Work item: a slot; everything below live.selected is rounded together. */
void attn_rewrite(void *job, int64_t item, int32_t worker);
/* Keys of n tokens as the store gives them in full width: the tail's rows or, without a tail, what the pages say. */
void attn_read_keys(const attn_job *job, int32_t slot, int32_t head, int64_t first, int64_t n, uint8_t *scratch,
                    float *keys);

/* select.c: one (sequence, KV head) a work item */
void attn_sum_queries(void *job, int64_t item, int32_t worker);    /* segment: query sums of the round's tokens */
void attn_choose_segment(void *job, int64_t item, int32_t worker); /* the interval that ends with the round */
void attn_mark_prompt(void *job, int64_t item, int32_t worker);    /* prompt, paper: the piece's queries; its marks */
void attn_choose_prompt(void *job, int64_t item, int32_t worker);  /* the cache's keys of the prompt that has ended */
int64_t attn_chosen_end(const attn_choice *c, int64_t end);        /* of a prompt that ends there: eligible below */

#endif
