/* ebb/engine.h: sequences over one model and one pair of stores. */
#ifndef EBB_ENGINE_H
#define EBB_ENGINE_H

#include "ebb/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ebb_engine ebb_engine;

typedef struct ebb_engine_config {
    size_t size;
    const char *state, *kv; /* methods; NULL: "fp32", "bf16"; state is NULL for a model without recurrent layers */
    const char *layout;     /* file of a calibrated state method's layout; NULL: the model's own (ebb_model_layout) */
    const char *prefill;    /* how prompts attend (ebb/kv.h); NULL: as the KV method brings along, else "full" */
    const char *kv_bits;    /* JSON file of the bits of each KV layer: ebb_kv_bits_read; NULL: none */
    int32_t max_seqs;       /* slots; 0: 1 */
    int64_t max_tokens;     /* context of one sequence, prompt and answer; 0: 4096, cut to the model's own limit */
    int64_t prefill_tokens; /* prompt tokens of one forward, a multiple of EBB_GRID; 0: 512. With select=prompt and
                               paper a prompt goes through in one piece, whatever is asked here */
    int32_t max_new;        /* tokens one step may add to a sequence; 0: 1 */
    const char *algorithm;  /* kernel rows; NULL: the best */
    ebb_progress progress;  /* of long prompts */
    ebb_tap tap;
} ebb_engine_config;

EBB_API ebb_status ebb_engine_open(ebb_model *model, const ebb_engine_config *config, ebb_engine **engine,
                                   ebb_error *error);
EBB_API void ebb_engine_close(ebb_engine *engine);
EBB_API const char *ebb_engine_rows(const ebb_engine *engine);

typedef struct ebb_usage {
    size_t state_packed, state_live; /* bytes of one sequence: packed states; records, bases and conv inputs */
    size_t kv;                       /* bytes of the pages a sequence holds now, and of its tail */
    int64_t prompt_tokens, decode_tokens;
    double prompt_seconds, decode_seconds; /* inside forward passes and sampling, over all sequences */
} ebb_usage;

/* A sequence takes a slot; EBB_NO_MEMORY: all are taken. `id` names it until it is closed. */
EBB_API ebb_status ebb_sequence_open(ebb_engine *engine, const ebb_sampling *sampling, int32_t *id, ebb_error *error);
EBB_API void ebb_sequence_close(ebb_engine *engine, int32_t id);
/* Prompt tokens to process at the next ebb_engine_prefill; after an answer they continue the conversation. A prompt
 * without a token, an id outside the vocabulary or more tokens than the context holds: EBB_BAD_ARGUMENT. */
EBB_API ebb_status ebb_sequence_append(ebb_engine *engine, int32_t id, const int32_t *ids, int64_t count,
                                       ebb_error *error);
/* Process all appended prompt tokens; afterwards each such sequence has its first answer token. EBB_INTERRUPTED: what
 * was processed is kept, call again to go on. */
EBB_API ebb_status ebb_engine_prefill(ebb_engine *engine, ebb_error *error);
/* One decode step of the sequences ids[0 .. n-1]: commits the token each one last produced and produces the next.
 * EBB_NO_MEMORY when a sequence is out of pages; a sequence at the end of its context is EBB_BAD_ARGUMENT: nothing is
 * done. */
EBB_API ebb_status ebb_engine_step(ebb_engine *engine, const int32_t *ids, int32_t n, ebb_error *error);
/* The token a sequence produced last (-1 before its first prefill), its logits [vocab] before sampling (NULL after a
 * load or a rollback, until the next pass), the tokens committed to its memory, and their number. Valid until the next
 * call on the engine. */
EBB_API int32_t ebb_sequence_token(const ebb_engine *engine, int32_t id);
EBB_API const float *ebb_sequence_logits(const ebb_engine *engine, int32_t id);
EBB_API int64_t ebb_sequence_position(const ebb_engine *engine, int32_t id);
EBB_API int64_t ebb_sequence_room(const ebb_engine *engine, int32_t id); /* tokens that still fit its context */
EBB_API bool ebb_engine_is_stop(const ebb_engine *engine, int32_t token);
EBB_API void ebb_engine_usage(const ebb_engine *engine, int32_t id, ebb_usage *usage);

/* ---- keeping, copying and rewinding a sequence (src/engine/image.c, branch.c; docs/images.md) ---- */

/* Write all of a sequence to a file: tokens, position, produced token, sampling, state and KV image. What is there
 * before is replaced at once, when the new file is whole. A sequence that is loaded goes on with the very bits of one
 * that was never interrupted. Whole windows are folded before (src/state), which may shorten the reach of a rollback.
 */
EBB_API ebb_status ebb_sequence_save(ebb_engine *engine, int32_t id, const char *path, ebb_error *error);
/* The same with states and KV in FP32 ("fp32" methods), which an engine with any methods can load. */
EBB_API ebb_status ebb_sequence_export(ebb_engine *engine, int32_t id, const char *path, ebb_error *error);
/* Load it as a new sequence. `sampling` NULL: as it was saved. Written by another model or with other methods it is
 * refused, but FP32 is encoded into the methods of this engine; that, and other kernel rows, are said in a notice. */
EBB_API ebb_status ebb_sequence_load(ebb_engine *engine, const char *path, const ebb_sampling *sampling, int32_t *id,
                                     ebb_error *error);
/* A copy in a slot of its own: both go on independently, each as the one would have. */
EBB_API ebb_status ebb_sequence_fork(ebb_engine *engine, int32_t id, int32_t *fork, ebb_error *error);
/* Go back to `position`, as if the later tokens had never come; the produced token is again the one that followed it.
 * Prompt tokens that wait are dropped. EBB_BAD_ARGUMENT: out of reach: before the packed part of the states, before the
 * end of the last prompt or load, or more than max_new behind the furthest. */
EBB_API ebb_status ebb_sequence_rollback(ebb_engine *engine, int32_t id, int64_t position, ebb_error *error);
/* Another token in the place of the produced one, for callers that draw by rules of their own. EBB_BAD_ARGUMENT: nothing
 * was produced yet, or the token is outside the vocabulary. */
EBB_API ebb_status ebb_sequence_choose(ebb_engine *engine, int32_t id, int32_t token, ebb_error *error);
/* Forget the produced token: a prompt that follows does not keep it. */
EBB_API void ebb_sequence_forget(ebb_engine *engine, int32_t id);
/* The sampling of a sequence (NULL: no such sequence), and another one from here on. */
EBB_API const ebb_sampling *ebb_sequence_sampling(const ebb_engine *engine, int32_t id);
EBB_API ebb_status ebb_sequence_resample(ebb_engine *engine, int32_t id, const ebb_sampling *sampling,
                                         ebb_error *error);

/* Generate answers to a static batch of prompts, the whole of what a program usually wants: each prompt is an array of
 * ids; `emit` sees every token as it comes (index of the prompt, id, last of its answer) and may return false to end
 * that answer; a stop token ends an answer and is not emitted. */
typedef struct ebb_prompt {
    const int32_t *ids;
    int64_t count;
} ebb_prompt;
typedef bool (*ebb_emit)(void *ctx, int32_t prompt, int32_t token);
EBB_API ebb_status ebb_generate(ebb_engine *engine, const ebb_prompt *prompts, int32_t n, const ebb_sampling *sampling,
                                int64_t max_answer, ebb_emit emit, void *ctx, ebb_usage *usage, ebb_error *error);

#ifdef __cplusplus
}
#endif
#endif
