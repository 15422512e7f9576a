/* ebb/model.h: checkpoints, tokenizers, chat templates and the forward pass. */
#ifndef EBB_MODEL_H
#define EBB_MODEL_H

#include "ebb/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tokenizer: byte-level BPE of a tokenizer.json ---- */

typedef struct ebb_tokenizer ebb_tokenizer;

EBB_API ebb_status ebb_tokenizer_open(const char *directory, ebb_tokenizer **tokenizer, ebb_error *error);
EBB_API void ebb_tokenizer_close(ebb_tokenizer *tokenizer);
EBB_API int32_t ebb_tokenizer_size(const ebb_tokenizer *tokenizer); /* largest id + 1 */
EBB_API int32_t ebb_tokenizer_id(const ebb_tokenizer *tokenizer,
                                 const char *content); /* of a whole token, added or not, or -1 */
EBB_API bool ebb_tokenizer_special(const ebb_tokenizer *tokenizer, int32_t id);
/* Text to ids. `special`: added special tokens in the text ("<|im_end|>") become their ids; false: they are plain text,
 * so what a user types cannot end a turn. *ids is malloc'ed, the caller frees it. EBB_BAD_ARGUMENT: not UTF-8. */
EBB_API ebb_status ebb_tokenize(const ebb_tokenizer *tokenizer, const char *text, size_t bytes, bool special,
                                int32_t **ids, int64_t *count, ebb_error *error);
/* The bytes of one token (NULL and 0 for an id without a token); special tokens give their content. Owned by the
 * tokenizer. */
EBB_API const char *ebb_token_bytes(const ebb_tokenizer *tokenizer, int32_t id, size_t *bytes);

/* Streaming: feed ids, take text that never ends inside a UTF-8 character. */
typedef struct ebb_detokenizer {
    const ebb_tokenizer *tokenizer;
    bool show_special;
    uint8_t held[4];
    int32_t n_held;
} ebb_detokenizer;
/* Appends at most `room` - 1 bytes and a NUL to `text`; a token that does not fit is EBB_BAD_ARGUMENT and is not
 * consumed. id < 0: flush; held bytes that never became a character come out as U+FFFD. Invalid UTF-8 becomes U+FFFD.
 */
EBB_API ebb_status ebb_detokenize(ebb_detokenizer *state, int32_t id, char *text, size_t room, size_t *written);

/* ---- chat ---- */

typedef struct ebb_message {
    const char *role, *content; /* "system", "user", "assistant" */
} ebb_message;
/* ChatML: the ids of the messages and, if `reply`, the head of an assistant turn. Contents are never read as special
 * tokens. EBB_UNSUPPORTED: the tokenizer has no <|im_start|> / <|im_end|>. *ids is malloc'ed. */
EBB_API ebb_status ebb_chat(const ebb_tokenizer *tokenizer, const ebb_message *messages, int32_t n_messages, bool reply,
                            int32_t **ids, int64_t *count, ebb_error *error);

/* ---- models ---- */

typedef struct ebb_model ebb_model;

typedef struct ebb_model_info {
    const char *architecture; /* "qwen3_5_text" */
    int32_t vocab, hidden, layers, state_layers, kv_layers;
    int64_t max_position, parameters;
    size_t weight_bytes; /* packed, in device memory */
    int32_t n_stop;      /* union over config.json, generation_config.json, tokenizer_config.json */
    const int32_t *stop;
    ebb_sampling sampling; /* of generation_config.json; temperature 0 where it does not sample */
    uint64_t hash;         /* names the weights: architecture, names, types, shapes and 2 KiB of each tensor; never 0 */
} ebb_model_info;

/* Load a Hugging Face folder: config.json, *.safetensors (one file or a sharded index), tokenizer.json,
 * generation_config.json and tokenizer_config.json where present. */
EBB_API ebb_status ebb_model_open(ebb_device *device, const char *directory, const ebb_progress *progress,
                                  ebb_model **model, ebb_error *error);
EBB_API void ebb_model_close(ebb_model *model);
EBB_API const ebb_model_info *ebb_model_describe(const ebb_model *model);
EBB_API const ebb_tokenizer *ebb_model_tokenizer(const ebb_model *model);
EBB_API ebb_device *ebb_model_device(const ebb_model *model);
/* Layers for pools, in model order: [info.state_layers] and [info.kv_layers]. */
EBB_API const ebb_state_layer *ebb_model_state_layers(const ebb_model *model);
EBB_API const ebb_kv_layer *ebb_model_kv_layers(const ebb_model *model);

/* ---- calibrated layouts (ebb/state.h) as files: docs/formats.md ---- */

typedef struct ebb_layout_note { /* what a file says beside its tables: how it was made */
    const char *key, *text;
} ebb_layout_note;

/* EBB_BAD_FILE names what is malformed: nothing of such a file is used. */
EBB_API ebb_status ebb_layout_read(const char *path, ebb_layout **layout, ebb_error *error);
/* What is there before is replaced at once, when the new file is whole. */
EBB_API ebb_status ebb_layout_write(const char *path, const ebb_layout *layout, const ebb_layout_note *notes,
                                    int32_t n_notes, ebb_error *error);
/* The layout that a calibrated method needs, from `path` or (NULL) from layouts/NAME.safetensors in the model's folder,
 * NAME being ebb_state_layout_name: EBB_UNSUPPORTED when there is none. Made for another model or method it is
 * EBB_BAD_ARGUMENT. A method that needs none gets NULL, and a path for it is EBB_BAD_ARGUMENT. */
EBB_API ebb_status ebb_model_layout(const ebb_model *model, const ebb_state_method *method, const char *path,
                                    ebb_layout **layout, ebb_error *error);

/* Taps: called between ops with a tensor of this layer; the data may be changed in place. */
typedef enum ebb_tap_point {
    EBB_TAP_EMBED,     /* layer -1: [tokens][hidden] */
    EBB_TAP_MIXER_IN,  /* after the first norm: [tokens][hidden] */
    EBB_TAP_QKV,       /* raw projections: GDN [tokens][channels], attention [tokens][q|gate.. , k, v] */
    EBB_TAP_MIXER_OUT, /* before the output projection: [tokens][heads * value_dim] */
    EBB_TAP_RESIDUAL,  /* after the layer: [tokens][hidden] */
    EBB_TAP_FINAL,     /* layer -1: after the last norm: [rows][hidden] */
    EBB_TAP_LOGITS     /* layer -1: [rows][vocab] */
} ebb_tap_point;
typedef struct ebb_tap {
    void *ctx;
    void (*call)(void *ctx, int32_t layer, ebb_tap_point point, ebb_tensor *tensor);
} ebb_tap;

/* Shadows: more state pools of the same layers, driven by the same inputs in the same pass, so that several methods are
 * compared along one trajectory. They change nothing of the run. `call` (may be NULL) sees, after each state layer, the
 * gated outputs [tokens][heads * value_dim] of the runner's own pool and of shadow `pool`, before the output
 * projection. */
typedef struct ebb_shadow {
    ebb_state_pool *const *pools; /* [n], each made for the model's state layers; slots and max_new as the runner's */
    int32_t n;
    void *ctx;
    void (*call)(void *ctx, int32_t layer, int32_t pool, const ebb_tensor *own, const ebb_tensor *shadow);
} ebb_shadow;

/* A runner: plans, queue and activations for forward passes of a model over one pair of pools. */
typedef struct ebb_runner ebb_runner;
typedef struct ebb_runner_config {
    size_t size;
    ebb_state_pool *state; /* may be NULL when the model has no such layers */
    ebb_kv_pool *kv;
    int32_t max_seqs, max_new;
    int64_t max_tokens;    /* of one forward */
    const char *algorithm; /* NULL: the best rows */
    ebb_tap tap;
    ebb_shadow shadow; /* n == 0: none */
} ebb_runner_config;
EBB_API ebb_status ebb_runner_open(ebb_model *model, const ebb_runner_config *config, ebb_runner **runner,
                                   ebb_error *error);
EBB_API void ebb_runner_close(ebb_runner *runner);
EBB_API const char *ebb_runner_rows(const ebb_runner *runner); /* "gemm avx512, delta avx512, attention avx512" */
/* One number for all that decides the bits: rows, their versions, codecs. Two runners of one model that have the same
 * give the same bits. */
EBB_API uint64_t ebb_runner_numerics(const ebb_runner *runner);

typedef enum ebb_pass { EBB_PREFILL, EBB_STEP } ebb_pass; /* prompt tokens; generated and draft tokens */
/* Run ids [batch.tokens] of the batch through the model. Logits of token rows want[0 .. n_want-1] go to logits
 * [n_want][vocab]. Advances no position: the caller owns pos. */
EBB_API ebb_status ebb_forward(ebb_runner *runner, ebb_pass pass, const ebb_batch *batch, const int32_t *ids,
                               const int64_t *want, int64_t n_want, float *logits, ebb_error *error);

#ifdef __cplusplus
}
#endif
#endif
