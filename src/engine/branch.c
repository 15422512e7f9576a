/* engine/branch.c: copies of sequences, the way back, and what else changes one between passes. Called by programs. */
#include "ebb/image.h"
#include "engine/engine_int.h"
#include "state/records.h"

#include <string.h>

static ebb_status no_sequence(int32_t id, ebb_error *error) {
    return ebb_fail(error, EBB_BAD_ARGUMENT, "no open sequence %d", id);
}

/* ---- fork ---- */

ebb_status ebb_sequence_fork(ebb_engine *e, int32_t id, int32_t *fork, ebb_error *error) {
    const sequence *s = sequence_find(e, id);
    int32_t to;
    if (!s) return no_sequence(id, error);
    if (!fork) return ebb_fail(error, EBB_BAD_ARGUMENT, "a fork needs a place for its id");
    ebb_status status = ebb_sequence_open(e, &s->sampling, &to, error);
    if (status) return status;
    if (e->state) status = ebb_state_pool_copy(e->state, id, to, error);
    if (!status && e->kv) status = ebb_kv_pool_copy(e->kv, id, to, s->pos, error);
    if (status) {
        ebb_sequence_close(e, to);
        return status;
    }
    const size_t vocab = (size_t)e->info->vocab;
    sequence *copy = &e->seqs[to];
    int32_t *tokens = copy->tokens;
    *copy = *s;
    copy->tokens = tokens;
    memcpy(tokens, s->tokens, (size_t)s->end * sizeof *tokens);
    memcpy(e->logits + (size_t)to * vocab, e->logits + (size_t)id * vocab, vocab * sizeof *e->logits);
    *fork = to;
    return EBB_OK;
}

/* ---- rollback ---- */

/* The highest base of all layers and heads: the packed parts know nothing earlier. */
static int64_t packed_at(const ebb_engine *e, int32_t id) {
    const ebb_state_view *v;
    int64_t base = 0;
    for (int32_t i = 0; e->state && e->seqs[id].pos > 0 && (v = ebb_state_pool_view(e->state, i)); i++)
        for (int32_t head = 0; head < v->layer->heads; head++) base = max_i64(base, *base_of(v, id, head));
    return base;
}

ebb_status ebb_sequence_rollback(ebb_engine *e, int32_t id, int64_t position, ebb_error *error) {
    sequence *s = sequence_find(e, id);
    if (!s) return no_sequence(id, error);
    const int64_t packed = packed_at(e, id), ring = s->furthest - e->config.max_new,
                  lowest = max_i64(max_i64(packed, s->floor), ring);
    if (position > s->pos || (position < lowest && position != s->pos))
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "position %lld is out of reach: sequence %d stands at %lld, its states are packed at %lld, its "
                        "last prompt or load ended at %lld, and it has been at %lld with max_new = %d",
                        (long long)position, id, (long long)s->pos, (long long)packed, (long long)s->floor,
                        (long long)s->furthest, e->config.max_new);
    if (position == s->pos && s->end == s->pos) return EBB_OK;
    /* Behind the last prompt all tokens were generated, and so is one that is kept. */
    s->produced = position < s->pos || s->keep ? s->tokens[position] : -1;
    s->keep = false;
    s->blank = true;
    s->pos = s->end = position;
    return EBB_OK;
}

/* ---- the produced token, and how the next one is chosen ---- */

ebb_status ebb_sequence_choose(ebb_engine *e, int32_t id, int32_t token, ebb_error *error) {
    sequence *s = sequence_find(e, id);
    if (!s) return no_sequence(id, error);
    if (s->produced < 0) return ebb_fail(error, EBB_BAD_ARGUMENT, "sequence %d has produced no token yet", id);
    if (token < 0 || token >= e->info->vocab)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "token %d, expected 0 to %d", token, e->info->vocab - 1);
    s->produced = token;
    return EBB_OK;
}

void ebb_sequence_forget(ebb_engine *e, int32_t id) {
    sequence *s = sequence_find(e, id);
    if (s) s->produced = -1;
}

const ebb_sampling *ebb_sequence_sampling(const ebb_engine *e, int32_t id) {
    const sequence *s = sequence_find(e, id);
    return s ? &s->sampling : NULL;
}

ebb_status ebb_sequence_resample(ebb_engine *e, int32_t id, const ebb_sampling *sampling, ebb_error *error) {
    sequence *s = sequence_find(e, id);
    if (!s) return no_sequence(id, error);
    if (!sampling) return ebb_fail(error, EBB_BAD_ARGUMENT, "no sampling given");
    ebb_status status = ebb_sampling_check(sampling, error);
    if (!status) s->sampling = *sampling;
    return status;
}
