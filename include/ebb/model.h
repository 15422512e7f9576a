/* ebb/model.h: checkpoints, tokenizers, chat templates and the forward pass. */
#ifndef EBB_MODEL_H
#define EBB_MODEL_H

#include "ebb/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tokenizer: byte-level BPE of a tokenizer.json ---- */

typedef struct ebb_tokenizer ebb_tokenizer;

/* `directory`: a model folder, or a GGUF file. */
EBB_API ebb_status ebb_tokenizer_open(const char *directory, ebb_tokenizer **tokenizer, ebb_error *error);
EBB_API void ebb_tokenizer_close(ebb_tokenizer *tokenizer);
EBB_API int32_t ebb_tokenizer_size(const ebb_tokenizer *tokenizer); /* largest id + 1 */
EBB_API int32_t ebb_tokenizer_id(const ebb_tokenizer *tokenizer,
                                 const char *content); /* of a whole token, added or not, or -1 */
EBB_API bool ebb_tokenizer_special(const ebb_tokenizer *tokenizer, int32_t id);
/* The ids that begin every text of this tokenizer, as <|begin_of_text|>: ebb_tokenize, which also serves pieces of
 * texts, leaves them to the caller. ebb_chat puts what its form begins with. */
EBB_API const int32_t *ebb_tokenizer_prefix(const ebb_tokenizer *tokenizer, int32_t *count);
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
/* A conversation and what its template may use: zeros but for `size` and messages are those of ebb_chat. */
typedef struct ebb_chat_call {
    size_t size;
    const ebb_message *messages;
    int32_t n_messages;
    const char *json;  /* the messages as a JSON array instead, with tool_calls and whatever else a template reads */
    const char *tools; /* JSON array, as chat APIs have it, or NULL */
    const char *variables; /* JSON object of more variables: {"enable_thinking": false}, or NULL */
    const char *jinja;     /* a template, or chatml, llama3 or glm4; NULL: the model's */
    int64_t now;           /* what strftime_now tells, in seconds since 1970 on the local clock; 0: it is not there */
    bool reply;            /* with the head of an assistant turn */
    const char *before;    /* text that a sequence holds already, or NULL */
    size_t n_before;
} ebb_chat_call;
/* The conversation as text, as the model's chat template (Jinja) writes it: docs/models.md. Without a template it is
 * written as ChatML, Llama 3 or GLM-4, whose special tokens are there. EBB_BAD_FILE: the template is wrong;
 * EBB_BAD_ARGUMENT: it does not take this conversation; EBB_UNSUPPORTED: it is beyond what is served, or there is none
 * and no form fits. *text is malloc'ed. */
EBB_API ebb_status ebb_chat_text(const ebb_tokenizer *tokenizer, const ebb_chat_call *call, char **text, size_t *bytes,
                                 ebb_error *error);
/* Its ids, *ids malloc'ed. What comes from messages, tools and variables is never read as special tokens. Where the
 * text begins with `before`, the ids are those of the rest, and *goes_on (may be NULL) is true: else they are those of
 * all, as when a template leaves something of earlier turns out. */
EBB_API ebb_status ebb_chat_ids(const ebb_tokenizer *tokenizer, const ebb_chat_call *call, int32_t **ids,
                                int64_t *count, bool *goes_on, ebb_error *error);
/* The same for messages alone. */
EBB_API ebb_status ebb_chat(const ebb_tokenizer *tokenizer, const ebb_message *messages, int32_t n_messages, bool reply,
                            int32_t **ids, int64_t *count, ebb_error *error);
/* What comes after an answer of the model, whatever was said before: the end of its turn, then the messages of `call`.
 * EBB_UNSUPPORTED: the template does not show an answer as it is. */
EBB_API ebb_status ebb_chat_after(const ebb_tokenizer *tokenizer, const ebb_chat_call *call, int32_t **ids,
                                  int64_t *count, ebb_error *error);
/* The same for messages alone. */
EBB_API ebb_status ebb_chat_continue(const ebb_tokenizer *tokenizer, const ebb_message *messages, int32_t n_messages,
                                     bool reply, int32_t **ids, int64_t *count, ebb_error *error);

/* ---- models ---- */

typedef struct ebb_model ebb_model;

typedef struct ebb_model_info {
    const char *architecture; /* "qwen3_5_text" */
    int32_t vocab, hidden, layers, state_layers, kv_layers;
    int64_t max_position, parameters;
    size_t weight_bytes; /* packed, in device memory, when the model is opened */
    size_t lookup_bytes; /* of these, an embedding that is not the head too: a token reads one row of it */
    size_t expert_bytes; /* of experts, in the files: they stay mapped, and one is packed when a token first needs it */
    int32_t n_stop;      /* union over config.json, generation_config.json, tokenizer_config.json */
    const int32_t *stop;
    ebb_sampling sampling; /* of generation_config.json; temperature 0 where it does not sample */
    uint64_t hash;         /* names the weights: architecture, names, types, shapes and 2 KiB of each tensor; never 0 */
} ebb_model_info;

/* Load a Hugging Face folder: config.json, *.safetensors (one file or a sharded index), tokenizer.json,
 * generation_config.json and tokenizer_config.json where present; or a GGUF file (docs/models.md), which has all of
 * that. */
EBB_API ebb_status ebb_model_open(ebb_device *device, const char *directory, const ebb_progress *progress,
                                  ebb_model **model, ebb_error *error);
EBB_API void ebb_model_close(ebb_model *model);
EBB_API const ebb_model_info *ebb_model_describe(const ebb_model *model);
EBB_API const ebb_tokenizer *ebb_model_tokenizer(const ebb_model *model);
EBB_API ebb_device *ebb_model_device(const ebb_model *model);
/* Whether the checkpoint has layers of multi-token prediction (mtp.*). They are left out of the forward pass. */
EBB_API bool ebb_model_has_mtp(const ebb_model *model);
/* Layers for pools, in model order: [info.state_layers] and [info.kv_layers]. */
EBB_API const ebb_state_layer *ebb_model_state_layers(const ebb_model *model);
EBB_API const ebb_kv_layer *ebb_model_kv_layers(const ebb_model *model);

/* Bits of keys and values for each of `layers` KV layers (ebb_kv_spec.bits), from a JSON file {"k": [8, 4, ...], "v":
 * [4, 2, ...]}; the caller frees them. EBB_BAD_FILE names the field that is wrong. */
EBB_API ebb_status ebb_kv_bits_read(const char *path, int32_t layers, ebb_kv_bits **bits, ebb_error *error);

/* ---- models without their weights ---- */

/* What a config.json says of a model: its layers, and the tensors that a checkpoint has in the released layout, without
 * those of vision and of multi-token prediction. */
typedef struct ebb_outline ebb_outline;
typedef struct ebb_outline_info {
    const char *architecture; /* model_type as the file spells it */
    int32_t vocab, hidden, layers, state_layers, kv_layers;
    int64_t max_position, parameters;
    int64_t idle_parameters; /* of them, those of experts that a token does not use */
    size_t weight_bytes;     /* in BF16; of what releases keep in FP32, in that */
} ebb_outline_info;
/* `path`: a config.json of any name, or a folder with one. */
EBB_API ebb_status ebb_outline_open(const char *path, ebb_outline **outline, ebb_error *error);
EBB_API void ebb_outline_close(ebb_outline *outline);
EBB_API const ebb_outline_info *ebb_outline_describe(const ebb_outline *outline);
EBB_API const ebb_state_layer *ebb_outline_state_layers(const ebb_outline *outline);
EBB_API const ebb_kv_layer *ebb_outline_kv_layers(const ebb_outline *outline);

typedef struct ebb_synth_config {
    size_t size;
    int32_t type; /* ebb_type of the matrices: EBB_BF16 (0 too); in a GGUF file EBB_Q8_0 and EBB_Q4_0 as well */
    uint64_t seed;
    ebb_progress progress; /* in MiB */
} ebb_synth_config;
/* Write a checkpoint of random weights, of a scale at which activations stay finite: to the folder `path`, config.json,
 * model.safetensors and the tokenizer's files beside the outline's config.json or, without any, a tokenizer of single
 * bytes; where the path ends in .gguf, to that file. Nothing that is there is replaced, and what fails or is
 * interrupted leaves nothing behind. */
EBB_API ebb_status ebb_synth(const ebb_outline *outline, const char *path, const ebb_synth_config *config,
                             ebb_error *error);

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
    EBB_TAP_LOGITS,    /* layer -1: [rows][vocab] */
    EBB_TAP_Q,         /* attention layers, after norms and RoPE: [tokens][q_heads * K dims] */
    EBB_TAP_K,         /* [tokens][heads * K dims] */
    EBB_TAP_V          /* [tokens][heads * V dims]; no call where the value is a part of the key */
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
