/* ebb/state.h: the recurrent-state store. One page to read first.
 *
 * A layer keeps, per sequence (slot) and value head, a matrix S [key_dim][value_dim]. The store holds it as a *packed
 * part*, the codec's image of S at token `base`, and a *ring of records* (key, delta, decay) for the tokens base ..
 * pos-1. A method is a codec plus a window p plus parameters; a per-token method has p = 1. A kernel folds whole
 * committed windows into the packed part when pos - base >= p; when it folds never changes a bit. `pos` belongs to the
 * caller and is passed with every batch (ebb/op.h): repeating an aborted step is harmless, and rollback is a smaller
 * pos >= base, at most max_new tokens behind the furthest. pos = 0 means fresh: nothing of the slot is read. */
#ifndef EBB_STATE_H
#define EBB_STATE_H

#include "ebb/device.h"
#include "ebb/format.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EBB_GRID 256      /* prefill rounds the state at every multiple of this; checkpoints exist only there */
#define EBB_MAX_PARAMS 16 /* of a codec */
#define EBB_MAX_WINDOW 64
#define EBB_MAX_STATE_DIM 1024 /* of key_dim and value_dim */
#define EBB_MAX_CONV 8         /* of conv_width */
#define EBB_MAX_NEW 64         /* largest max_new: tokens one step may add */

/* Decay per head; per key channel; per key channel, with directions of erasure apart from the key (ebb/op.h). */
typedef enum ebb_state_kind { EBB_GDN = 1, EBB_KDA, EBB_ERASE } ebb_state_kind;

/* What one layer stores. GVA: heads is a multiple of key_heads, value head h reads key head h / (heads / key_heads). */
typedef struct ebb_state_layer {
    int32_t kind; /* ebb_state_kind */
    int32_t key_heads, heads;
    int32_t head_begin; /* first global value head here (tensor parallel); keys the random numbers */
    int32_t key_dim, value_dim;
    int32_t conv_width; /* taps of the short convolution over q|k|v; 0: none */
    int32_t index;      /* among the state layers of the model: names its table in a layout */
} ebb_state_layer;

/* Channels of the short convolution: q, then k (key_heads * key_dim each), then v (heads * value_dim). */
EBB_API int64_t ebb_state_conv_channels(const ebb_state_layer *layer);

/* ---- layouts: calibrated tables of a model's state layers (DAMP's protected rows, bits by head) ---- */

#define EBB_METHOD_TEXT 96 /* bytes of a method's name in a layout, with its NUL */

/* One layer; arrays are per global value head. NULL: the method does without. */
typedef struct ebb_layout_layer {
    int32_t heads, key_dim, value_dim;
    const uint16_t *key_order;   /* [heads][key_dim]: key rows in stored order, the riskiest first */
    const uint16_t *value_order; /* [heads][value_dim]: value coordinates in stored order */
    const float *value_scale; /* [heads][value_dim]: divides value coordinates before they are stored, 1e-20 .. 1e20 */
    const uint8_t *bits;      /* [heads]: of a stored value */
} ebb_layout_layer;

typedef struct ebb_layout ebb_layout;

/* Copies the tables. `model`: the hash of the model they were made for (ebb_model_info), 0: any. */
EBB_API ebb_status ebb_layout_new(const char *method, uint64_t model, const ebb_layout_layer *layers, int32_t n,
                                  ebb_layout **layout, ebb_error *error);
EBB_API void ebb_layout_free(ebb_layout *layout); /* NULL is allowed */
EBB_API const char *ebb_layout_method(const ebb_layout *layout);
EBB_API uint64_t ebb_layout_model(const ebb_layout *layout);
/* Table of a state layer (NULL: there is none) and the number of layers. */
EBB_API const ebb_layout_layer *ebb_layout_table(const ebb_layout *layout, int32_t layer, int32_t *count);

/* ---- codecs: how ONE boundary matrix is stored. Pure, one head, FP32; knows no device, thread, pool or window. ----
 */

typedef struct ebb_param {
    const char *name;
    double lo, hi, preset;
    const char *choices; /* "ls|max": the value is an index into these words; NULL: a whole number lo..hi; "": any */
    const char *help;
} ebb_param;

/* Every codec's table begins with the window. */
#define EBB_PARAM_WINDOW \
    { "p", 1, EBB_MAX_WINDOW, 1, NULL, "tokens of a window, a power of two" }

typedef struct ebb_planes {
    size_t bytes;   /* of one packed head */
    size_t scratch; /* floats of `tmp` that encode needs */
    bool exact;     /* decode(encode(S)) == S bit for bit: records stay FP32 whatever the window */
    int32_t n;
    struct {
        const char *name;
        size_t at, bytes;
    } plane[8];
} ebb_planes;

typedef struct ebb_head {
    const ebb_state_layer *layer;
    int32_t head; /* value head, 0 .. heads-1 */
    const double *param;
    const ebb_layout_layer *table; /* of the layer, for codecs that need one, else NULL */
    uint64_t rng_key;              /* of the head; with pos the key of what encode draws */
    int64_t pos;                   /* of the state that encode writes: the position at which it becomes valid */
} ebb_head;

enum { EBB_NEEDS_TABLE = 1, EBB_KEEPS_OLD = 2 }; /* codec flags: calibrated; encode reads the old packed bytes */

/* S is dense row-major [key_dim][value_dim]. `decay` is e^G of the folded window, [key_dim] (NULL from a pack);
 * `old` the packed bytes S came from (NULL: none). old == packed is allowed: read before writing. */
typedef struct ebb_state_codec {
    const char *name;
    const ebb_param *params; /* ends with a NULL name */
    uint32_t flags;
    ebb_status (*layout)(const ebb_head *head, ebb_planes *planes, ebb_error *error); /* the one size formula */
    void (*encode)(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed, float *tmp);
    void (*decode)(const ebb_head *head, const void *packed, float *S);
} ebb_state_codec;

/* ---- methods: named rows of src/state/methods.c ---- */

typedef struct ebb_state_method {
    const char *name;
    const ebb_state_codec *codec;
    const char *defaults; /* "bits=8,r=4,p=16" over the codec's presets */
    const char *help;
} ebb_state_method;

typedef struct ebb_state_spec { /* a parsed method string such as "leap8:r=2,scale=max" */
    const ebb_state_method *method;
    int32_t window; /* p: a power of two, 1 .. EBB_MAX_WINDOW */
    double param[EBB_MAX_PARAMS];
    uint64_t seed;
    const ebb_layout *layout; /* for calibrated methods; outlives what is made with the spec. NULL: none */
} ebb_state_spec;

EBB_API const ebb_state_method *ebb_state_methods(int32_t *count);
/* Name of the layouts that serve a method: that of the first method with its codec, "damp" for damp and damp-w. NULL:
 * it needs none. */
EBB_API const char *ebb_state_layout_name(const ebb_state_method *method);
/* Parse NAME[:key=value,...]. EBB_BAD_ARGUMENT names the method, key or value that is wrong and what is known. */
EBB_API ebb_status ebb_state_parse(const char *text, ebb_state_spec *spec, ebb_error *error);

/* Bytes of one layer of one slot under `spec`. */
typedef struct ebb_state_sizes {
    size_t packed_head; /* exact bytes of one packed head */
    size_t packed;      /* all heads of the layer, each aligned to 64 */
    size_t bases;       /* int64 base per head */
    size_t key_records, delta_records, decay_records, conv;
    size_t live; /* bases + records + conv, each part aligned to 64 */
    int32_t record_type;
    int32_t cap;       /* records kept: window - 1 + max_new; a ring indexed by position modulo cap */
    int32_t conv_ring; /* conv inputs kept: conv_width - 1 + max_new, likewise; 0: no convolution */
} ebb_state_sizes;
EBB_API ebb_status ebb_state_size(const ebb_state_spec *spec, const ebb_state_layer *layer, int32_t max_new,
                                  ebb_state_sizes *sizes, ebb_error *error);

/* ---- views and pools ---- */

/* One layer of a pool as kernels see it; every pointer may be foreign memory (a torch or vLLM tensor).
 * Packed head: packed + slot * packed_slot + head_at[head].
 * Live slot at live + slot * live_slot: base_at: int64 base[heads] | key_at: key records [cap][key_heads][key_dim] |
 * delta_at: delta records [cap][heads][value_dim] | decay_at: FP32 decay [cap][heads] (GDN) or [cap][heads][key_dim]
 * (KDA, ERASE) | conv_at: FP32 conv inputs [conv_ring][channels]. An ERASE layer has two records a token, (k, v) and
 * (remove, -S^T erase): keys [cap][2][key_heads][key_dim], deltas [cap][2][heads][value_dim]. */
typedef struct ebb_state_view {
    const ebb_state_layer *layer;
    const ebb_state_codec *codec;
    const double *param;
    const ebb_layout_layer *table;
    uint64_t rng_key;
    uint8_t *packed;
    int64_t packed_slot;
    const uint32_t *head_at;
    uint8_t *live;
    int64_t live_slot;
    int64_t base_at, key_at, delta_at, decay_at, conv_at;
    int32_t window, cap, conv_ring, record_type, slots;
    size_t scratch; /* floats codec->encode needs */
    size_t packed_head;
} ebb_state_view;

typedef struct ebb_state_pool ebb_state_pool;

typedef struct ebb_state_pool_config {
    size_t size; /* sizeof(ebb_state_pool_config) */
    const ebb_state_spec *spec;
    const ebb_state_layer *layers;
    int32_t n_layers, slots;
    int32_t max_new;     /* tokens one step may add, 1 .. EBB_MAX_NEW; bounds rollback */
    void *memory;        /* the caller's, 64-byte aligned, ebb_state_pool_bytes long; NULL: from the device */
    size_t memory_bytes; /* of `memory` */
} ebb_state_pool_config;

/* Bytes the slots of such a pool take (0 and an error when the configuration cannot be served). */
EBB_API size_t ebb_state_pool_bytes(const ebb_state_pool_config *config, ebb_error *error);
EBB_API ebb_status ebb_state_pool_open(ebb_device *device, const ebb_state_pool_config *config, ebb_state_pool **pool,
                                       ebb_error *error);
EBB_API void ebb_state_pool_close(ebb_state_pool *pool); /* NULL is allowed */
EBB_API const ebb_state_view *ebb_state_pool_view(const ebb_state_pool *pool, int32_t layer);
EBB_API const ebb_state_spec *ebb_state_pool_spec(const ebb_state_pool *pool);
/* Bytes of one slot over all layers: packed part, and live part (records, bases, conv inputs). */
EBB_API void ebb_state_pool_slot_bytes(const ebb_state_pool *pool, size_t *packed, size_t *live);

#ifdef __cplusplus
}
#endif
#endif
