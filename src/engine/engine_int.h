/* engine/engine_int.h: the inside of an engine and its sequences. For src/engine only. */
#ifndef ENGINE_ENGINE_INT_H
#define ENGINE_ENGINE_INT_H

#include "core/core.h"
#include "ebb/engine.h"

typedef struct sequence {
    bool open;
    ebb_sampling sampling;
    int32_t *tokens;  /* [max_tokens]: committed below pos, then prompt tokens that wait */
    int64_t pos, end; /* committed; known */
    int32_t produced; /* the token sampled last, not committed; -1: none */
    bool keep;        /* commit `produced` before the prompt tokens that were appended after it */
    bool blank;       /* no pass has made logits since it was loaded or rolled back */
    int64_t furthest; /* positions below this may have been written to the rings */
    int64_t floor;    /* where the last prefill or load ended: no way back behind it */
} sequence;

struct ebb_engine {
    ebb_model *model;
    const ebb_model_info *info;
    ebb_engine_config config;
    ebb_state_spec state_spec;
    ebb_kv_spec kv_spec;
    ebb_prefill prefill;
    ebb_kv_bits *kv_bits; /* of each KV layer; NULL: the method's own */
    bool whole_prompts;   /* no prompt is cut: its last queries choose vertical keys */
    ebb_layout *layout;   /* of the state method, where it is calibrated */
    ebb_state_pool *state;
    ebb_kv_pool *kv;
    ebb_runner *runner;
    sequence *seqs;       /* [max_seqs]; the index is the slot and the id */
    float *rows, *logits; /* [max_seqs][vocab]: out of the forward pass; kept per sequence */
    int32_t *scratch;     /* [vocab] */
    int32_t *batch_slot, *batch_cu, *batch_ids;
    int64_t *batch_pos, *want;
    ebb_usage total;
};

/* NULL: no open sequence has this id. */
static inline sequence *sequence_find(const ebb_engine *e, int32_t id) {
    return e && id >= 0 && id < e->config.max_seqs && e->seqs[id].open ? &e->seqs[id] : NULL;
}

/* One forward of prompt tokens that wait, at most `tokens` of them, the sequences ids [n] first come first served; a
 * prompt that does not go through whole is cut at the grid. None of them keeps a token from before its prompt. */
ebb_status engine_prefill_some(ebb_engine *e, const int32_t *ids, int32_t n, int64_t tokens, ebb_error *error);
/* A sequence in memory, as ebb_sequence_save and ebb_sequence_load have it in a file; *image is malloc'ed. */
ebb_status sequence_put(ebb_engine *e, int32_t id, uint8_t **image, size_t *bytes, ebb_error *error);
ebb_status sequence_take(ebb_engine *e, const uint8_t *image, size_t bytes, int32_t *id, ebb_error *error);

#endif
