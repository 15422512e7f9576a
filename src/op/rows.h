/* op/rows.h: kernel rows, the inside of src/op. A row is one implementation of one op family on one device; rows.c
 * lists them all, best first. op/ref is the definition; ebb-check compares every other row with it. */
#ifndef OP_ROWS_H
#define OP_ROWS_H

#include "device/device_int.h"
#include "ebb/op.h"

typedef struct kernel_id {
    const char *name; /* ref, avx2, avx512, neon */
    int32_t needs;    /* EBB_CPU_* */
    int32_t version;  /* raised when its bits change */
} kernel_id;

/* y [m][n] (+)= x W^T for panels [first, last) of the weight. Each output sums k ascending in one FP32 accumulator, so
 * a row's bits do not depend on m. */
typedef struct gemm_row {
    kernel_id id;
    void (*run)(const ebb_weight *w, const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t m,
                int64_t first_panel, int64_t last_panel, int32_t flags);
} gemm_row;

/* What a delta row works on, after the stages of op/delta.c: FP32, q and k as read by the recurrence (normalised; q not
 * yet scaled), heads contiguous inside a token. */
typedef struct delta_core {
    const ebb_state_view *s;
    const ebb_batch *b;
    const float *q, *k, *v, *g, *beta;
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride; /* between tokens, in floats */
    float *out;
    int64_t out_stride;
    const float *erase, *remove; /* of EBB_ERASE, like k */
    int64_t erase_stride, remove_stride;
} delta_core;

/* Work items are a few neighbouring key heads of a sequence: step does all value heads of key heads first .. end - 1,
 * pack and unpack one value head, with `scratch` of scratch(view) bytes of this worker. How many key heads an item has
 * changes no bits. */
typedef struct delta_row {
    kernel_id id;
    const char *(*refuse)(const ebb_state_view *view); /* NULL: served; else a sentence */
    size_t (*scratch)(const ebb_state_view *view);     /* bytes per worker */
    void (*step)(const delta_core *c, int32_t seq, int32_t first, int32_t end, void *scratch);
    /* S of one value head at pos -> packed, base = pos; `old` as in codec->encode. */
    void (*pack)(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const float *S, const void *old,
                 void *scratch);
    /* packed + records -> S at pos */
    void (*unpack)(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, float *S, void *scratch);
} delta_row;

/* Chunked prefill of one value head over n tokens from absolute position pos: reads and updates S [key_dim][value_dim],
 * writes out. Pointers are at this head's first element of the first token; strides between tokens. Chunks of 64
 * aligned to absolute positions. q is scaled by key_dim^-1/2 inside. */
typedef struct chunk_args {
    int32_t kind; /* ebb_state_kind */
    int32_t key_dim, value_dim;
    int64_t pos, n;
    const float *q, *k, *v, *g, *beta;
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride, out_stride;
    float *S, *out;
    const float *erase, *remove; /* of EBB_ERASE, which has no beta */
    int64_t erase_stride, remove_stride;
} chunk_args;
#define CHUNK 64
typedef struct chunk_row {
    kernel_id id;
    const char *(*refuse)(const ebb_state_layer *layer);
    size_t (*scratch)(const ebb_state_layer *layer); /* bytes per worker */
    void (*run)(const chunk_args *c, void *scratch);
} chunk_row;

/* Attention of one tile of query rows of one KV head: rows are (token, query head of the group), `n` of them, each with
 * its own causal limit. q and out: row pointers. Keys 0 .. limit[i]-1 are in the store. Key blocks of 64 aligned to
 * absolute positions; a row's bits depend on its own q and the store only, not on the tile.
 *
 * How row i reads key j, for j < limit[i]: below codes[i] as its code, or as its 16-bit row where it is vertical; from
 * there on as a row of the tail. Values likewise, by values[i]. A store without tail has codes = values = limit.
 *
 * Of a prompt with a prefill mode (`mode`; EBB_PREFILL_FULL for generated tokens), keys below low[i] take part in INT8,
 * or not at all (sparse_only), and the weights of all keys are rounded to FP16. Vertical keys do not: those that the
 * store keeps in 16 bits; and, with vquant_vert and sparse_only, those that bitmap mark[i] names, which is asked from
 * codes[i] on, and below it too where the store keeps none (rule.select). op/ref/attention.c has the equations. */
#define ATTN_BLOCK 64
#define ATTN_TILE 32 /* rows of a tile at most */
typedef struct attn_tile {
    const ebb_kv_view *s;
    int32_t slot, head; /* KV head */
    int32_t mode;       /* ebb_prefill_mode */
    int32_t n;
    const float *q[ATTN_TILE];
    float *out[ATTN_TILE];
    int64_t limit[ATTN_TILE], codes[ATTN_TILE], values[ATTN_TILE], low[ATTN_TILE];
    int32_t mark[ATTN_TILE];
} attn_tile;
typedef struct attn_row {
    kernel_id id;
    const char *(*refuse)(const ebb_kv_view *view);
    size_t (*scratch)(const ebb_kv_view *view); /* bytes per worker */
    void (*run)(const attn_tile *tile, void *scratch);
} attn_row;

/* Pointwise kernels over one token row or one head; op/ref/point.c defines them. */
typedef struct point_row {
    kernel_id id;
    void (*rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y);
    void (*l2_norm)(float *x, int64_t n); /* in place, eps 1e-6 inside the root */
    void (*swiglu)(const float *gate, const float *up, int64_t n, float *y);
    /* y[c] = silu(sum_t taps[c][t] x[t][c]); x[t] NULL reads as 0 */
    void (*conv)(const float *const *x, const float *taps, int32_t width, int64_t channels, float *y);
    void (*gates)(const float *raw, const float *bias, float a_exp, int64_t n,
                  float *g); /* -a_exp softplus(raw + bias) */
    void (*sigmoid)(const float *x, int64_t n, float *y);
    void (*norm_gate)(float *o, const float *w, const float *z, float eps, int32_t gate, int64_t n);
    void (*mul_sigmoid)(float *o, const float *gate, int64_t n);
    void (*rope)(float *x, const float *cos, const float *sin, int32_t rotary);
} point_row;

/* Part `heads` times: the same part of a token's KV heads. Values [dims] are x_stride floats apart; codes and scales
 * (kv/token.h), each `stride` bytes apart. A scale is 2 bytes at any address. */
typedef struct append_part {
    const float *x;
    int64_t x_stride;
    int32_t heads, dims, bits;
    bool levels; /* of 2 bits: four levels */
    uint8_t *code, *scale;
    int64_t stride;
} append_part;

/* Writing tokens into a KV store. op/ref/append.c defines the bytes; every row writes the same. `type`: EBB_FP16 or
 * EBB_BF16. */
typedef struct append_row {
    kernel_id id;
    void (*narrow)(int32_t type, const float *x, int64_t n, uint16_t *y);
    void (*widen)(int32_t type, const uint16_t *x, int64_t n, float *y);
    void (*codes)(const append_part *part);
} append_row;

/* Choosing vertical keys. op/ref/select.c defines sums and scores; every row gives the same bits. */
typedef struct select_row {
    kernel_id id;
    /* sum[d] += the mean of n queries [dims] that are `stride` floats apart */
    void (*add)(const float *q, int64_t stride, int64_t n, int32_t dims, float *sum);
    /* score[i] = query . key i, of n keys [dims] one behind the other */
    void (*score)(const float *query, const float *key, int32_t dims, int64_t n, float *score);
} select_row;

/* Rows that a device may use, best first, ending with ref. */
typedef struct row_table {
    const gemm_row *const *gemm;
    const delta_row *const *delta;
    const chunk_row *const *chunk;
    const attn_row *const *attn;
    const point_row *const *point;
    const append_row *const *append;
    const select_row *const *select;
} row_table; /* each list ends with NULL */
const row_table *rows_of(const ebb_device *device);

/* The first row that the device's features allow; these families serve everything. */
const gemm_row *gemm_row_of(const ebb_device *device);
const point_row *point_row_of(const ebb_device *device);
const append_row *append_row_of(const ebb_device *device);
const select_row *select_row_of(const ebb_device *device);

/* Numerics ids: a hash that takes in, one after another, what decides the bits of a plan. */
uint64_t numerics_row(uint64_t id, const char *family, const kernel_id *row);
uint64_t numerics_codec(uint64_t id, const char *codec, const ebb_param *params, const double *values);

#endif
