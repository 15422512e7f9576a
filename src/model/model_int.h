/* model/model_int.h: what an architecture fills in and the forward pass reads. For src/model only.
 *
 * A model is a list of layers, each a mixer (delta rule or attention) and a gated MLP or a mixture of them (moe.h),
 * each behind a norm (some before another one) and around a residual. An architecture is one file with a function that
 * reads its fields of config.json and loads its tensors into that list, and one row of the table in model.c. */
#ifndef MODEL_MODEL_INT_H
#define MODEL_MODEL_INT_H

#include "ebb/model.h"
#include "model/config.h"
#include "model/safetensors.h"

typedef enum mixer_kind { MIXER_DELTA, MIXER_ATTENTION } mixer_kind;

typedef struct model_layer {
    mixer_kind mixer;
    int32_t store;                      /* index among the state layers or the KV layers of the model */
    const float *mixer_norm, *mlp_norm; /* [hidden] as multiplied */
    const float *mixer_post, *mlp_post; /* norms of what is added to the residual stream; NULL: none */
    ebb_weight in;            /* rows; GDN: q | k | v | z | b | a; KDA: q | k | v | b | f_a | g_a; attention: per head
                                 q or q, gate | k | v; MLA: per head q | latent | rest of the key */
    ebb_weight out;           /* the mixer's output projection */
    ebb_mixer delta;          /* MIXER_DELTA */
    ebb_weight decay, gate;   /* KDA: f_b and g_b, which make g of f_a and z of g_a */
    ebb_rope rope;            /* MIXER_ATTENTION, not MLA */
    bool tiled;               /* GDN: columns of `out` begin with the first value head of each key head, then the second
                                 of each (ebb_tile_heads), not with all of the first key head */
    bool gated;               /* MIXER_ATTENTION: each query head has a gate beside it */
    ebb_weight *absorb;       /* MLA (else NULL), of each query head: W_uk^T [rank][nope], queries to latents */
    ebb_weight *expand;       /* MLA, behind them: W_uv [value dim][rank], latents to values */
    const float *latent_norm; /* MLA: [rank] */
    float latent_eps;
    ebb_weight gate_up, down;                                   /* MLP: rows gate | up */
    const float *in_bias, *out_bias, *gate_up_bias, *down_bias; /* of these weights; NULL: none */
    struct model_moe *moe;                                      /* in place of the MLP (moe.h); NULL: none */
} model_layer;

typedef struct model_floats { /* a small FP32 vector in device memory; the model frees them as a list */
    struct model_floats *next;
    float *data;
    size_t bytes;
} model_floats;

struct ebb_model {
    ebb_device *device;
    char *folder;
    ebb_tokenizer *tokenizer;
    ebb_model_info info;
    int32_t stop[CONFIG_MAX_STOP];
    int32_t intermediate; /* of MLPs; 0: all layers have experts */
    float eps;
    model_layer *layers;           /* [info.layers] */
    ebb_state_layer *state_layers; /* [info.state_layers] */
    ebb_kv_layer *kv_layers;       /* [info.kv_layers] */
    ebb_weight embedding, head;    /* head.n == 0: tied to the embedding */
    const float *final_norm;
    model_floats *floats;
    bool mtp;        /* the checkpoint has layers of multi-token prediction */
    bool mapped;     /* experts are read from the files while the model is open */
    st_set *tensors; /* if mapped; with it, of a GGUF file, the file */
    struct gguf_file *file;
};

/* ---- loading, for architectures ---- */

struct model_loader;
typedef struct model_architecture {
    const char *model_type, *name; /* in the file; as ebb_model_info gives it */
    ebb_status (*load)(struct model_loader *loader, ebb_error *error);
} model_architecture;

typedef struct model_loader {
    ebb_model *model;
    const model_architecture *architecture;
    const config_files *config;
    st_set *tensors;
    const char *prefix; /* of the text model's tensors: "model." or "model.language_model." */
    const ebb_progress *progress;
    int64_t done, total; /* bytes of the checkpoint */
} model_loader;

/* Room for `layers` layers, of which the first `state` stores are state layers and the rest KV layers. */
ebb_status model_layers_new(ebb_model *model, int32_t layers, int32_t state_layers, ebb_error *error);

/* A tensor's name is PREFIXlayers.LAYER.NAME; LAYER_NONE: PREFIXNAME; LAYER_ROOT: NAME. */
enum { LAYER_NONE = -1, LAYER_ROOT = -2 };
typedef struct matrix_part {
    const char *name;
    int64_t n;
} matrix_part;
bool load_has(const model_loader *loader, int32_t layer, const char *name);
const st_tensor *load_find(const model_loader *loader, int32_t layer, const char *name); /* NULL: there is none */
/* The tensor as it lies in the file, of this shape; counts it as loaded. */
ebb_status load_raw(model_loader *loader, int32_t layer, const char *name, int32_t dims, const int64_t *shape,
                    const st_tensor **tensor, ebb_error *error);
/* Parts [n][k] stacked into one packed weight. */
ebb_status load_matrix(model_loader *loader, int32_t layer, const matrix_part *parts, int32_t n_parts, int64_t k,
                       ebb_weight *weight, ebb_error *error);
/* The same of rows of tensors that load_raw gave. */
ebb_status load_parts(model_loader *loader, const ebb_weight_part *parts, int32_t n_parts, int64_t k,
                      ebb_weight *weight, ebb_error *error);
/* The tensor widened to FP32, `add` added to each element. */
ebb_status load_floats(model_loader *loader, int32_t layer, const char *name, int32_t dims, const int64_t *shape,
                       float add, const float **floats, ebb_error *error);
/* The same to memory that is there already, of model_floats_new. */
ebb_status load_floats_to(model_loader *loader, int32_t layer, const char *name, int32_t dims, const int64_t *shape,
                          float add, float *floats, ebb_error *error);
/* `n` floats that the model owns; NULL when there is no memory. */
float *model_floats_new(ebb_model *model, int64_t n);

/* ---- RoPE (rope.c) ---- */

typedef struct rope_config {
    double theta;   /* preset before reading; 0: config.json must have it */
    double part;    /* preset likewise: the part of a head's dimensions that turns */
    int32_t rotary; /* these dimensions */
    bool llama3;    /* rope_type llama3, where it may be: frequencies below a band divided by `factor` */
    double factor, low, high, original;
} rope_config;

/* Fields of rope_parameters; of rope_scaling and `at` itself in older files. rope->llama3 says beforehand whether that
 * type is served. */
ebb_status rope_read(const json_place *at, int32_t head_dim, rope_config *rope, ebb_error *error);
/* The frequencies [rotary / 2], divided by those of rope_freqs.weight where the checkpoint has that tensor. */
ebb_status rope_frequencies(model_loader *loader, const rope_config *rope, const float **inv_freq, ebb_error *error);

/* ---- architectures ---- */

ebb_status qwen35_load(model_loader *loader, ebb_error *error);
ebb_status kimi_load(model_loader *loader, ebb_error *error);
ebb_status softmax_load(model_loader *loader, ebb_error *error);

#endif
