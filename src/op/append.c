/* op/append.c: tokens of a call become 16-bit rows of the tail and codes of the pages. A store with a tail encodes what
 * it has rounded to 16 bits, so that a token says the same wherever it is read. Called by op/attention.c, and by
 * op/select.c to read keys. */
#include "op/attention.h"

#include <string.h>

#include "kv/token.h"

/* Tokens of a work item: a group, which is encoded when its last token has come; else a few, at absolute positions. */
static int64_t span_of(const attn_job *job) {
    const int64_t group = job->args->s.rule.group;
    return group > 1 ? group : ATTN_APPEND;
}

int64_t attn_append_items(const attn_job *job, int32_t seq) {
    const int64_t span = span_of(job), pos = job->args->b.pos[seq];
    if (job->from[seq] == job->to[seq]) return 0;
    return (pos + job->to[seq] - 1) / span - (pos + job->from[seq]) / span + 1;
}

/* Row `token` of the call, all heads, each [all dims]. */
static void token_rows(const attn_job *job, int64_t token, float *rows) {
    const kv_shape *kv = &job->kv;
    for (int32_t head = 0; head < job->args->s.layer->heads; head++, rows += kv->all) {
        memcpy(rows, attn_row_at(&job->args->k, token, head), (size_t)kv->k * sizeof *rows);
        if (!kv->shared) memcpy(rows + kv->v_at, attn_row_at(&job->args->v, token, head), (size_t)kv->v * sizeof *rows);
    }
}

/* To the tail, and back: rows become what the tail says of them. */
static void to_tail(const attn_job *job, int32_t slot, int64_t token, float *rows) {
    const ebb_kv_view *s = &job->args->s;
    const int32_t all = job->kv.all;
    for (int32_t head = 0; head < s->layer->heads; head++, rows += all) {
        uint16_t *wide = kv_tail_row(s, all, slot, head, token);
        job->append->narrow(s->rule.tail, rows, all, wide);
        job->append->widen(s->rule.tail, wide, all, rows);
    }
}

/* One token of the codec "token". */
static void put_codes(const attn_job *job, int32_t slot, int64_t token, const float *rows) {
    const ebb_kv_view *s = &job->args->s;
    append_part part = {.x_stride = job->kv.all, .heads = s->layer->heads, .stride = s->head_bytes};
    for (int32_t i = 0; i < s->layer->parts; i++) {
        part.x = rows;
        part.dims = s->layer->part[i].dims;
        part.bits = token_bits(s->param, s->layer->part[i].role);
        part.levels = token_levels(s->param, part.bits);
        part.code = kv_at(s, slot, 0, 2 * i, token);
        part.scale = kv_at(s, slot, 0, 2 * i + 1, token);
        job->append->codes(&part);
        rows += part.dims;
    }
}

static void put_token(const attn_job *job, int32_t slot, int64_t token, const float *rows, uint8_t *packed,
                      float *tmp) {
    const ebb_kv_view *s = &job->args->s;
    if (s->codec == &kv_codec_token) {
        put_codes(job, slot, token, rows);
        return;
    }
    for (int32_t head = 0; head < s->layer->heads; head++, rows += job->kv.all)
        kv_put(s, &job->planes, slot, head, token, rows, packed, tmp);
}

/* The rows of a group out of the tail, part after part, each [group][dims]. `row` is room for one token. */
static void gather(const attn_job *job, int32_t slot, int32_t head, int64_t first, float *row, float *rows) {
    const ebb_kv_view *s = &job->args->s;
    const int64_t group = s->rule.group;
    for (int64_t t = 0; t < group; t++) {
        job->append->widen(s->rule.tail, kv_tail_row(s, job->kv.all, slot, head, first + t), job->kv.all, row);
        const float *from = row;
        float *to = rows;
        for (int32_t i = 0; i < s->layer->parts; i++) {
            const int32_t dims = s->layer->part[i].dims;
            memcpy(to + t * dims, from, (size_t)dims * sizeof *to);
            from += dims;
            to += group * dims;
        }
    }
}

/* Work item: the tokens of this round that lie in one span, all KV heads. */
void attn_append(void *ctx, int64_t item, int32_t worker) {
    const attn_job *job = ctx;
    const ebb_kv_view *s = &job->args->s;
    const ebb_batch *b = &job->args->b;
    const int32_t seq = attn_sequence(job, &item), slot = b->slot[seq];
    const int64_t span = span_of(job), group = s->rule.group, pos = b->pos[seq], begin = pos + job->from[seq],
                  end = pos + job->to[seq], first = (begin / span + item) * span, last = first + span;
    float *rows = (float *)(void *)attn_scratch(job, worker), *row = rows + (group > 1 ? group * job->kv.all : 0);
    uint8_t *packed = attn_scratch(job, worker) + job->shape.group;
    float *tmp = (float *)(void *)(packed + job->shape.packed);
    for (int64_t t = max_i64(first, begin); t < min_i64(last, end); t++) {
        token_rows(job, b->cu[seq] + t - pos, row);
        if (s->rule.tail) to_tail(job, slot, t, row);
        if (group == 1) put_token(job, slot, t, row, packed, tmp);
    }
    if (group == 1 || last > end) return;
    for (int32_t head = 0; head < s->layer->heads; head++) {
        gather(job, slot, head, first, row, rows);
        kv_put(s, &job->planes, slot, head, first, rows, packed, tmp);
    }
}

void attn_rewrite(void *ctx, int64_t item, int32_t worker) {
    const attn_job *job = ctx;
    const ebb_kv_view *s = &job->args->s;
    const int32_t slot = job->args->b.slot[attn_sequence(job, &item)];
    s->codec->rewrite(s, slot, kv_live_of(s, slot)->selected, (float *)(void *)attn_scratch(job, worker));
}

/* `scratch` begins as that of an append. */
void attn_read_keys(const attn_job *job, int32_t slot, int32_t head, int64_t first, int64_t n, uint8_t *scratch,
                    float *keys) {
    const ebb_kv_view *s = &job->args->s;
    const int32_t k = job->kv.k;
    float *rows = (float *)(void *)scratch; /* without a tail a group is one token */
    for (int64_t t = first; t < first + n; t++, keys += k) {
        if (s->rule.tail) {
            job->append->widen(s->rule.tail, kv_tail_row(s, job->kv.all, slot, head, t), k, keys);
            continue;
        }
        kv_get(s, &job->planes, slot, head, t, rows, scratch + job->shape.group);
        memcpy(keys, rows, (size_t)k * sizeof *keys);
    }
}
