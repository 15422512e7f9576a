/* ebb/op.h: algorithms over stores and tensors. Every op takes a queue, checks its arguments, and never allocates,
 * synchronises or reads user input. A plan picks the kernel row (src/op/rows.c) once; `ebb_plan.row_name` is what a
 * banner prints.
 *
 * Row invariance: an op gives a sequence the same bits whatever its batch mates, their number, its place, and the
 * number of threads. All activations are FP32; arithmetic follows the recurrences of DeltaNet papers as written beside
 * each op. */
#ifndef EBB_OP_H
#define EBB_OP_H

#include "ebb/kv.h"
#include "ebb/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sequences of ONE pool. Token rows of sequence i are cu[i] .. cu[i + 1] - 1 of every tensor; none is allowed. */
typedef struct ebb_batch {
    int32_t seqs;
    int64_t tokens;      /* cu[seqs] */
    const int32_t *slot; /* [seqs], all different; -1 = padding: touches nothing, its outputs are unspecified */
    const int32_t *cu;   /* [seqs + 1], cu[0] = 0, never falling */
    const int64_t *pos;  /* [seqs] tokens committed before this call; 0 = fresh slot */
} ebb_batch;

/* ---- linear layers: y = x W^T ---- */

/* Weights [n][k] packed for the device: panels of EBB_PANEL outputs, k ascending inside, so that every number of rows
 * sums in the same order. Packing never rounds: BF16 panels where every weight is a BF16 number, FP16 panels where all
 * are FP16 in the file, FP32 panels else; quantized weights (the block types of ebb/format.h) keep their blocks, in as
 * many bytes, and are widened while they are multiplied: the bits of y are those of FP32 panels of the widened values.
 */
#define EBB_PANEL 32
#define EBB_WEIGHT_STACKS 8
typedef struct ebb_weight_stack { /* some rows of one type */
    int64_t n;
    int32_t type;
} ebb_weight_stack;
typedef struct ebb_weight {
    int64_t n, k;
    int32_t type; /* of the panels; where several stacks follow each other: of the first */
    void *panels; /* ceil(n / EBB_PANEL) panels of [k][EBB_PANEL] (quantized: src/op/panel.h), the last padded with 0 */
    size_t bytes;
    int32_t stacks; /* 0: one type; else the panels of stack[0], padded, then those of stack[1] ... */
    ebb_weight_stack stack[EBB_WEIGHT_STACKS];
} ebb_weight;

typedef struct ebb_weight_part { /* one matrix [n][k], row-major, stacked under the ones before it */
    const void *data;
    int32_t type; /* EBB_FP32, EBB_FP16, EBB_BF16, or blocks: EBB_Q4_0 .. EBB_Q6_K; data need not be aligned */
    int64_t n;
} ebb_weight_part;

/* Pack `parts` stacked along n into device memory. Neighbours of one quantized type make one stack, and so do plain
 * neighbours. EBB_NO_MEMORY, EBB_BAD_ARGUMENT (sizes < 1, overflow, unknown type, k that is no whole number of blocks,
 * more than EBB_WEIGHT_STACKS stacks). */
EBB_API ebb_status ebb_weight_pack(ebb_device *device, const ebb_weight_part *parts, int32_t n_parts, int64_t k,
                                   ebb_weight *weight, ebb_error *error);
EBB_API void ebb_weight_free(ebb_device *device, ebb_weight *weight);

enum { EBB_ADD = 1 }; /* y += x W^T instead of y = x W^T */
/* x [m][k] FP32 with rows x_stride apart, y [m][n] with rows y_stride apart; they may not overlap. */
EBB_API ebb_status ebb_linear(ebb_queue *queue, const ebb_weight *weight, const float *x, int64_t x_stride, float *y,
                              int64_t y_stride, int64_t m, int32_t flags);
/* One weight a head, weights[heads] of one shape: in each row, y of head h is x of head h times W_h^T. x is FP32
 * [m][heads][k + more], y [m][heads][n + more] with any strides between rows and heads; the `more` values behind the k
 * are copied behind the n. x and y may not overlap. */
EBB_API ebb_status ebb_linear_heads(ebb_queue *queue, const ebb_weight *weights, const ebb_tensor *x,
                                    const ebb_tensor *y, ebb_error *error);
/* The kernel row that linear layers use on this device, for banners. */
EBB_API const char *ebb_linear_row(const ebb_device *device);
EBB_API uint64_t ebb_linear_numerics(const ebb_device *device); /* as ebb_plan.numerics, of that row */
/* Row ids[i] of the weight matrix, widened, to y [m][k]: token embedding. Ids must be in range. */
EBB_API ebb_status ebb_embed(ebb_queue *queue, const ebb_weight *weight, const int32_t *ids, int64_t m, float *y,
                             int64_t y_stride);

/* ---- pointwise ---- */

/* y = x / sqrt(mean(x^2) + eps) * w, rows of n; w as multiplied (1 + w of the file already applied). y may be x. */
EBB_API ebb_status ebb_rms_norm(ebb_queue *queue, const float *x, int64_t x_stride, const float *w, float eps,
                                int64_t n, float *y, int64_t y_stride, int64_t m);
/* y += x, rows of n; x_stride 0: one row x for all of y, a bias. */
EBB_API ebb_status ebb_add(ebb_queue *queue, const float *x, int64_t x_stride, int64_t n, float *y, int64_t y_stride,
                           int64_t m);
/* y = silu(gate) * up with [gate | up] rows of 2n. */
EBB_API ebb_status ebb_swiglu(ebb_queue *queue, const float *gate_up, int64_t stride, int64_t n, float *y,
                              int64_t y_stride, int64_t m);
/* Rows of `heads` of `dim` values in another order: head j of each of `groups` groups of neighbours, then head j + 1 of
 * each. x and y may not overlap. */
EBB_API ebb_status ebb_tile_heads(ebb_queue *queue, const float *x, int64_t heads, int64_t groups, int64_t dim,
                                  float *y, int64_t m);

/* ---- mixtures of experts ---- */

/* How a token's experts follow from its logits: scores are sigmoid(logit), else the softmax of all; the `used` largest
 * scores + bias are chosen, of equal ones the lowest number. With groups of neighbours, from the top_groups groups
 * alone whose two largest are largest together. An expert's weight is its score, without the bias, divided by the sum
 * of the chosen ones if `normalize` (+ 1e-20 for sigmoid), times scale. */
#define EBB_MAX_ROUTES 64
typedef struct ebb_router {
    int32_t experts, used;      /* used: at most EBB_MAX_ROUTES, and as many as top_groups groups have */
    int32_t groups, top_groups; /* groups: 1, or at most EBB_MAX_ROUTES that divide the experts */
    bool sigmoid, normalize;
    float scale;
    const float *bias; /* [experts]; NULL: none */
} ebb_router;
/* Of each of m rows of logits [experts], which become scores: the chosen experts, ascending, and their weights, [m]
 * [used]. */
EBB_API ebb_status ebb_route(ebb_queue *queue, const ebb_router *router, float *logits, int64_t stride, int32_t *expert,
                             float *weight, int64_t m);
/* Row i of y = row rows[i] of x; rows of n. x and y may not overlap. */
EBB_API ebb_status ebb_gather_rows(ebb_queue *queue, const float *x, int64_t x_stride, const int32_t *rows, int64_t n,
                                   float *y, int64_t y_stride, int64_t m);
/* Row rows[i] of y += scale[i] * row i of x; rows are all different. */
EBB_API ebb_status ebb_add_rows(ebb_queue *queue, const float *x, int64_t x_stride, const int32_t *rows,
                                const float *scale, int64_t n, float *y, int64_t y_stride, int64_t m);
/* Row i of y *= sigmoid(gate[i gate_stride]); rows of n. */
EBB_API ebb_status ebb_gate_rows(ebb_queue *queue, const float *gate, int64_t gate_stride, int64_t n, float *y,
                                 int64_t y_stride, int64_t m);

/* ---- delta rule: GDN, KDA and ERASE over a state store ---- */

/* Stages done inside the op, in this order, before (the first three) and after the recurrence. 0: the core contract. An
 * ERASE layer has EBB_OUT_NORM only. */
enum {
    EBB_CONV = 1,     /* q, k, v are raw projections: causal convolution over the slot's conv ring, then SiLU */
    EBB_L2NORM = 2,   /* q, k divided by sqrt(sum of squares + 1e-6) per head */
    EBB_GATES = 4,    /* g = -exp(a_log) softplus(g + dt_bias), beta = sigmoid(beta) */
    EBB_OUT_NORM = 8, /* out = rms_norm(out) * w * gate(z) per value head */
    EBB_STAGES = 15
};
typedef enum ebb_gate { EBB_GATE_SILU, EBB_GATE_SIGMOID } ebb_gate;

typedef struct ebb_mixer { /* FP32 weights of the stages */
    const float *conv;     /* [channels][conv_width], the last tap multiplies the current token */
    const float *a_log;    /* [heads] */
    const float *dt_bias;  /* GDN [heads], KDA [heads][key_dim] */
    const float *out_norm; /* [value_dim] */
    float eps;             /* of the output norm */
    int32_t gate;          /* ebb_gate */
} ebb_mixer;

/* Tensors are FP32 with a contiguous last dimension: q, k [tokens][key_heads][key_dim]; v, out, z
 * [tokens][heads][value_dim]; beta [tokens][heads]; g [tokens][heads] (GDN) or [tokens][heads][key_dim] (KDA, ERASE),
 * log decay <= 0. Within a token, heads are contiguous too (stride[1] == dim). q is scaled by key_dim^-1/2 inside.
 *     GDN, KDA   S <- diag(e^g) S;  S <- S + k (beta (v - S^T k))^T;           out = S^T q
 *     ERASE      S <- diag(e^g) S;  S <- S - remove (S^T erase)^T + k v^T;     out = S^T q
 * with erase, remove [tokens][key_heads][key_dim]. beta must have no data for ERASE, erase and remove for the others.
 */
typedef struct ebb_delta_args {
    size_t size; /* sizeof(ebb_delta_args) */
    ebb_state_view s;
    ebb_batch b;
    ebb_tensor q, k, v, g, beta, z, out;
    const ebb_mixer *mixer;   /* needed by the stages planned */
    ebb_tensor erase, remove; /* of ERASE layers */
} ebb_delta_args;

typedef struct ebb_plan {
    size_t size;
    ebb_device *device;
    uint32_t stages;
    int32_t max_seqs, max_new;
    int64_t max_tokens;     /* of one call */
    const void *row;        /* the kernel row in use */
    const void *chunk;      /* the row that serves prefill */
    const char *row_name;   /* for banners, logs and images */
    const char *chunk_name; /* of the row that serves prefill, where there is one */
    size_t scratch;         /* arena bytes a queue needs to run it */
    uint64_t numerics;      /* names the rows, their versions and the codec: what decides the bits */
} ebb_plan;

/* Choose the row for this store. `algorithm` NULL: the best; else that row ("ref", "avx2", "avx512", "neon") or
 * EBB_UNSUPPORTED with its reason. */
EBB_API ebb_status ebb_delta_plan(ebb_device *device, const ebb_state_view *view, const char *algorithm,
                                  uint32_t stages, int32_t max_seqs, int32_t max_new, int64_t max_tokens,
                                  ebb_plan *plan, ebb_error *error);

/* Generated and draft tokens: 0 .. max_new a sequence. Leaves records pos .. pos + n - 1; commits nothing. */
EBB_API ebb_status ebb_delta_step(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *args, ebb_error *error);
/* Prompt tokens, any number: chunked form; afterwards the packed part is valid at pos + n and the ring is empty. Rounds
 * the state at every multiple of EBB_GRID and at the end. */
EBB_API ebb_status ebb_delta_prefill(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *args,
                                     ebb_error *error);
/* S at pos, FP32 [seqs][heads][key_dim][value_dim] (drift, export). Only s and b of args are read; cu is not. */
EBB_API ebb_status ebb_delta_read(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *args, float *S,
                                  ebb_error *error);
/* Pack S at pos (import): the packed part becomes valid at pos, the ring is empty. Conv inputs are not touched. */
EBB_API ebb_status ebb_delta_write(ebb_queue *queue, const ebb_plan *plan, const ebb_delta_args *args, const float *S,
                                   ebb_error *error);

/* ---- softmax attention over a KV store ---- */

/* In place on q [tokens][q_heads][dim] and k [tokens][heads][dim]: RMS norm per head with weights qw, kw (NULL: none),
 * then RoPE on the first `rotary` dims (0: none) at positions pos[i] + j. Dimension i turns with i + rotary / 2 (NeoX);
 * `interleaved`: 2i turns with 2i + 1 (GPT-J). */
typedef struct ebb_rope {
    const float *q_norm, *k_norm; /* [dim] as multiplied, or NULL */
    float eps;
    int32_t rotary;        /* even, <= dim */
    const float *inv_freq; /* [rotary / 2] */
    bool interleaved;
} ebb_rope;

/* FP32 tensors, last two dimensions contiguous: q [tokens][q_heads][K dims], k [tokens][heads][K dims], all K parts of
 * the layer in order; v [tokens][heads][V dims], data NULL where the value is a K part; out [tokens][q_heads][V dims];
 * gate (data NULL: none) [tokens][q_heads][V dims] with any stride[1]: out *= sigmoid(gate). */
typedef struct ebb_attn_args {
    size_t size;
    ebb_kv_view s;
    ebb_batch b;
    ebb_tensor q, k, v, gate, out;
    int32_t prompt; /* 1: prompt tokens, any number; 0: generated and draft tokens, 0 .. max_new a sequence */
} ebb_attn_args;

/* q with any stride[1] is read (q and gate interleaved per head), normed, rotated and written to q_out, contiguous per
 * token; k is done in place. */
EBB_API ebb_status ebb_rope_norm(ebb_queue *queue, const ebb_rope *rope, const ebb_batch *batch, const ebb_tensor *q,
                                 ebb_tensor *q_out, ebb_tensor *k, ebb_error *error);

EBB_API ebb_status ebb_attn_plan(ebb_device *device, const ebb_kv_view *view, const char *algorithm, int32_t max_seqs,
                                 int32_t max_new, int64_t max_tokens, ebb_plan *plan, ebb_error *error);
/* Append k, v at pos .. pos + n - 1 (pages reserved by the caller), then causal attention of q over 0 .. its own
 * position, in blocks of 64 keys aligned to absolute positions, one online softmax over codes, vertical keys and tail.
 * Prompt and generated tokens are computed alike unless the view has a prefill mode (ebb/kv.h). Prompts go through in
 * intervals of the grid; a prompt may come in pieces. With select=prompt and paper the vertical keys of a prompt are
 * chosen by the queries of its last piece, when the first token behind it comes; prefill chooses within its piece. */
EBB_API ebb_status ebb_attn(ebb_queue *queue, const ebb_plan *plan, const ebb_attn_args *args, ebb_error *error);

/* ---- sampling (on the host) ---- */

typedef struct ebb_sampling {
    float temperature;    /* 0: greedy (the lowest id among equals) */
    float top_p, min_p;   /* 1, 0: off */
    int32_t top_k;        /* 0: off */
    float repeat_penalty; /* 1: off; over the last `repeat_last` tokens of `history` */
    int32_t repeat_last;
    uint64_t seed;
} ebb_sampling;
#ifdef __cplusplus
static const ebb_sampling ebb_greedy = {0.0f, 1.0f, 0.0f, 0, 1.0f, 64, 0}; /* C++ has no compound literals */
#    define EBB_GREEDY ebb_greedy
#else
#    define EBB_GREEDY ((ebb_sampling){0.0f, 1.0f, 0.0f, 0, 1.0f, 64, 0})
#endif

/* EBB_BAD_ARGUMENT names the field out of range. */
EBB_API ebb_status ebb_sampling_check(const ebb_sampling *sampling, ebb_error *error);
/* Choose a token from logits [vocab] (changed in place). `scratch` holds vocab int32. The random number is keyed by
 * (seed, position), so a sequence draws the same in any batch. Order: penalty, temperature, top-k, top-p, min-p. */
EBB_API int32_t ebb_sample(const ebb_sampling *sampling, float *logits, int32_t vocab, const int32_t *history,
                           int64_t n_history, int64_t position, int32_t *scratch);

#ifdef __cplusplus
}
#endif
#endif
