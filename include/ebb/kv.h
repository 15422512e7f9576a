/* ebb/kv.h: the KV-cache store of full-attention layers; the same shape as the state store: a packed part (pages,
 * immutable once their tokens are behind the window, shareable) with the codes of all tokens, and a ring of the newest
 * tokens in 16 bits, the tail. The plain float methods have no tail. Page tables are per slot and shared by all layers
 * of a pool. A page is one interval of the grid, so it carries its own vertical keys. */
#ifndef EBB_KV_H
#define EBB_KV_H

#include "ebb/device.h"
#include "ebb/format.h"
#include "ebb/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A key is its K parts in order, a value the one V part, which is the last part unless it is K too. K | V together: an
 * MLA latent, stored once, read as key and as value. */
enum { EBB_ROLE_K = 1, EBB_ROLE_V = 2 };
#define EBB_KV_PAGE EBB_GRID /* tokens of one page */
#define EBB_MAX_HEAD_DIM 512 /* of one part */

struct ebb_kv_view;

typedef struct ebb_kv_layer {
    int32_t q_heads, heads; /* query heads; KV heads, a divisor of q_heads */
    int32_t head_begin;
    int32_t parts; /* K then V; or an MLA latent K | V, then the rest of the key, K */
    struct {
        int16_t dims, role;
    } part[3];
    float scale; /* of q . k, usually head_dim^-1/2 */
} ebb_kv_layer;

/* How prompt tokens attend (papers/hyquant, "Prefill"); generated tokens always attend at full precision. In all modes
 * but `full`, q is rounded to INT8 (one scale a row) and keys outside of the window too (one scale a block of 64 keys,
 * after its mean is subtracted; q . mean is added back), and softmax weights are rounded to FP16. Low-bit codes are
 * integers already and stay as they are. */
typedef enum ebb_prefill_mode {
    EBB_PREFILL_FULL,   /* every key as it is stored */
    EBB_PREFILL_SAGE0,  /* sage_w0: INT8 for every key */
    EBB_PREFILL_SAGE,   /* sage_w: INT8 before the window */
    EBB_PREFILL_VQUANT, /* vquant_vert: the same, but vertical keys stay 16-bit */
    EBB_PREFILL_SPARSE, /* sparse_only: window and vertical keys, the others are left out (an ablation) */
} ebb_prefill_mode;

/* Which queries choose the vertical keys, and among which keys. */
typedef enum ebb_select {
    EBB_SELECT_NONE,
    EBB_SELECT_SEGMENT, /* each interval of EBB_GRID tokens by its own last queries: prefix-pure */
    EBB_SELECT_PROMPT,  /* the prompt but its window, once, by the last `window` queries of the prompt */
    EBB_SELECT_PAPER,   /* as the published code: prefill per query head, the cache from the prompt but two windows */
} ebb_select;

typedef struct ebb_prefill {
    int32_t mode, select; /* ebb_prefill_mode; ebb_select of vquant_vert and sparse_only */
    int32_t window;       /* tokens; 0 .. 4,096 */
    int32_t fp8;          /* 1: values and weights of the INT8 keys rounded to E4M3 (op/ref only) */
    double ratio;         /* of the keys that are vertical, 0 .. 1 */
} ebb_prefill;

/* "full", "sage_w0", "sage_w", "vquant_vert", "sparse_only", each with :key=value,... (window, ratio, select, pv). */
EBB_API ebb_status ebb_prefill_parse(const char *text, ebb_prefill *prefill, ebb_error *error);
EBB_API ebb_status ebb_prefill_text(const ebb_prefill *prefill, char *text, size_t room, ebb_error *error);

/* What a store keeps beside the codes of all its tokens. Codes are written when a token (or the last one of its group)
 * is appended; what this rule decides is how they are read. Seen from the query at position i, a key below
 * ebb_kv_bound(rule, EBB_ROLE_K, i) is read as its code, unless it is vertical, and the others as 16-bit rows of the
 * tail; values likewise. Prompt and generated tokens follow one rule, so that pieces of any size give the same bits. */
typedef struct ebb_kv_rule {
    int32_t group;               /* tokens of one encode: 1, or a divisor of EBB_KV_PAGE and of slide */
    int32_t tail;                /* EBB_FP16 or EBB_BF16; 0: no tail, every token is read as its code */
    int32_t window[2], slide[2]; /* of keys, of values: the bound is the last multiple of slide up to i - window */
    int32_t select;              /* ebb_select: which keys below the bound keep a 16-bit row */
    int32_t pure;                /* 1: what is read below a grid multiple depends on tokens below it only */
    double ratio;
} ebb_kv_rule;

/* Keys (EBB_ROLE_K) or values (EBB_ROLE_V) of tokens below this are read as codes by the query at position i. */
static inline int64_t ebb_kv_bound(const ebb_kv_rule *rule, int32_t role, int64_t i) {
    if (!rule->tail) return i + 1;
    const int32_t r = role == EBB_ROLE_V, slide = rule->slide[r];
    int64_t bound = i > rule->window[r] ? (i - rule->window[r]) / slide * slide : 0;
    const int64_t whole = i / EBB_GRID * EBB_GRID; /* the vertical keys of the interval of i are not chosen yet */
    return rule->select && bound > whole ? whole : bound;
}

/* How one group of tokens of one KV head is stored. encode/decode take `rows`: for each part, [group][dims]. */
typedef struct ebb_kv_codec {
    const char *name;
    const ebb_param *params;
    ebb_status (*layout)(const ebb_kv_layer *layer, const double *param, ebb_kv_rule *rule, ebb_planes *planes,
                         ebb_error *error);
    void (*encode)(const ebb_kv_layer *layer, const double *param, const float *rows, void *packed, float *tmp);
    void (*decode)(const ebb_kv_layer *layer, const double *param, const void *packed, float *rows);
    /* The integers behind the key parts of one token (group 1), [K dims], and one scale a part: key = code * scale.
     * NULL: this codec has none. */
    void (*codes)(const ebb_kv_layer *layer, const double *param, const void *packed, int8_t *code, float *scale);
    /* Stores that rewrite what they hold (kivi-hqq): called by attention to round tokens 0 .. tokens - 1 together, over
     * all heads of the layer: when the first token behind a prompt comes, and when rule.window[0] more than were
     * rounded last (kv_live.selected) have come and no rollback can lead behind them. NULL: none. */
    void (*rewrite)(const struct ebb_kv_view *view, int32_t slot, int64_t tokens, float *tmp);
} ebb_kv_codec;

typedef struct ebb_kv_method {
    const char *name;
    const ebb_kv_codec *codec;
    const char *defaults;
    const char *help;
} ebb_kv_method;

typedef struct ebb_kv_bits { /* of one layer: 2, 4 or 8 */
    int8_t k, v;
} ebb_kv_bits;

typedef struct ebb_kv_spec {
    const ebb_kv_method *method;
    double param[EBB_MAX_PARAMS];
    const ebb_kv_bits *bits; /* one a layer, instead of the method's: kvtuner; NULL: none. The caller keeps it */
    int32_t n_bits;
    ebb_prefill prefill; /* what the name brings along: ebb_kv_prefill */
} ebb_kv_spec;

EBB_API const ebb_kv_method *ebb_kv_methods(int32_t *count);
/* Names of the published code's modes are read as well ("hybrid_full", "d_k4v4_vert", ...: docs/hyquant.md). */
EBB_API ebb_status ebb_kv_parse(const char *text, ebb_kv_spec *spec, ebb_error *error);
/* The prefill that a method brings along unless another is asked for: vquant_vert for hyquant and its variants. */
EBB_API ebb_status ebb_kv_prefill(const ebb_kv_spec *spec, ebb_prefill *prefill, ebb_error *error);

/* What a layer costs; every store's allocation is made of these. */
typedef struct ebb_kv_cost {
    size_t token;   /* bytes of the codes of one token, all KV heads */
    size_t page;    /* of one page of EBB_KV_PAGE tokens with its vertical keys, as allocated */
    size_t overlay; /* of them, for vertical keys */
    size_t tail;    /* of a slot, whatever its length: 16-bit rows, query sums, and what is kept of a prompt */
} ebb_kv_cost;
EBB_API ebb_status ebb_kv_layer_cost(const ebb_kv_spec *spec, const ebb_prefill *prefill, const ebb_kv_layer *layer,
                                     int32_t index, int64_t max_tokens, int32_t max_new, ebb_kv_cost *cost,
                                     ebb_error *error);
/* Bytes of the codes of one token of one layer (all KV heads), of a spec without bits for each layer. */
EBB_API ebb_status ebb_kv_token_bytes(const ebb_kv_spec *spec, const ebb_kv_layer *layer, size_t *bytes,
                                      ebb_error *error);

/* One layer as kernels see it. Token t of slot s lives in page id = block[s * block_stride + t / page]; inside a page
 * the planes of the codec are split: head h, plane i, group j at pages + id * page_bytes + h * head_bytes + plane_at[i]
 * + j * plane_bytes[i].
 *
 * Vertical keys of a page and head: at overlay_at of the head's bytes, `marks` bitmaps of `page` bits (bitmap 0: the
 * keys that the cache keeps in 16 bits; with select=paper, bitmap 1 + n: those of prefill for query head n of the
 * group), then overlay_rows bytes (the position inside the page of each kept key, ascending), then as many rows [all
 * dims] of rule.tail. With select=prompt and paper the rows lie in the slot's extra part instead. kv_int.h reads both.
 *
 * The tail of a slot: head h at tail + s * tail_slot + h * tail_head: rows [tail_cap][all dims] of 16 bits (token t in
 * row t % tail_cap; tail_cap is a multiple of 64), then query sums [max_new + 2][K dims] FP32. */
typedef struct ebb_kv_view {
    const ebb_kv_layer *layer;
    const ebb_kv_codec *codec;
    const double *param;
    uint8_t *pages;
    int64_t page_bytes, head_bytes;
    int64_t plane_at[8], plane_bytes[8];
    const int32_t *block;
    int32_t block_stride, page, slots;
    ebb_kv_rule rule;
    ebb_prefill prefill;
    int32_t marks, overlay_rows;
    int64_t overlay_at;
    uint8_t *tail;
    int64_t tail_slot, tail_head;
    int32_t tail_cap, max_new;
    uint8_t *extra; /* of select=prompt and paper: see kv_int.h */
    int64_t extra_slot, extra_head;
    int32_t extra_rows;
} ebb_kv_view;

typedef struct ebb_kv_pool ebb_kv_pool;

typedef struct ebb_kv_pool_config {
    size_t size;
    const ebb_kv_spec *spec;
    const ebb_kv_layer *layers;
    int32_t n_layers, slots;
    int64_t max_tokens;         /* of one slot */
    int64_t pages;              /* in all, shared by the slots; 0: enough for every slot at max_tokens */
    int32_t max_new;            /* of a step, and how far behind the furthest position a slot may go back; 0: as 1 */
    const ebb_prefill *prefill; /* NULL: full */
} ebb_kv_pool_config;

EBB_API ebb_status ebb_kv_pool_open(ebb_device *device, const ebb_kv_pool_config *config, ebb_kv_pool **pool,
                                    ebb_error *error);
EBB_API void ebb_kv_pool_close(ebb_kv_pool *pool);
EBB_API const ebb_kv_view *ebb_kv_pool_view(const ebb_kv_pool *pool, int32_t layer);
EBB_API const ebb_kv_spec *ebb_kv_pool_spec(const ebb_kv_pool *pool);
/* Make room for tokens 0 .. tokens-1 of `slot`. EBB_NO_MEMORY: no page is left; EBB_BAD_ARGUMENT: beyond max_tokens.
 * On failure the slot keeps what it had. */
EBB_API ebb_status ebb_kv_pool_reserve(ebb_kv_pool *pool, int32_t slot, int64_t tokens, ebb_error *error);
EBB_API void ebb_kv_pool_release(ebb_kv_pool *pool, int32_t slot); /* all pages of the slot */
/* Bytes of the pages that `slot` holds and of its tail, over all layers. */
EBB_API size_t ebb_kv_pool_slot_bytes(const ebb_kv_pool *pool, int32_t slot);
/* What that is for a slot that holds `tokens`. */
EBB_API size_t ebb_kv_pool_bytes_for(const ebb_kv_pool *pool, int64_t tokens);

#ifdef __cplusplus
}
#endif
#endif
