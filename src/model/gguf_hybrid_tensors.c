/* model/gguf_hybrid_tensors.c: the tensors of GGUF files whose models have recurrent layers, under the names of Hugging
 * Face's checkpoints, with what a converter did to them undone (gguf.h):
 *
 *   norms             have 1 added where the model multiplies by 1 + w
 *   ssm_a             is -exp(A_log)
 *   value heads       qwen35, qwen35moe: the first one of each key head, then the second of each, ... They are put back
 *                     in the rows of weights and in vectors; for columns see gguf_hybrid.c
 *   ssm_ba            qwen3next: rows of b and of a in turns, for each key head; ssm_in likewise q, k, v and z
 *   experts           of a layer are one stack; here each has its name
 *   small shapes      dimensions of 1 have come or gone
 *
 * Weights stay as they lie in the file, mapped, in their type: another order of rows is a list of runs. Only vectors
 * and convolutions are copied, as FP32. Called by gguf_names.c. */
#include "model/gguf_words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is known ---- */

/* Rows of the tensor that lie in another order in the file. */
typedef enum row_order {
    IN_ORDER,
    BY_CHANNEL, /* q | k | value heads as ebb_tile_heads orders them; these three where the family has them so */
    BY_VALUE,   /* such value heads */
    BY_HEAD,    /* one row of each */
    TURN_QKV,   /* of each key head q | k | v | z: q of all, k of all, v of all */
    TURN_Z,     /* z of all */
    TURN_B,     /* of each key head b | a: b of all */
    TURN_A      /* a of all */
} row_order;
typedef enum row_change { AS_IS, COPIED, ONE_LESS, AS_LOG } row_change; /* all but the first: a copy in FP32 */
typedef enum row_shape {
    SAME,
    FLAT,    /* of one dimension */
    ROW,     /* a matrix of one row */
    TAPS,    /* [channels][1][taps] */
    EXPERTS, /* a matrix each, whose number is the * of the name */
    GATES,   /* the upper half of each */
    UPS      /* the lower half */
} row_shape;

typedef struct hybrid_word {
    const char *gguf, *name; /* behind "blk.LAYER." if there is one; behind "model.layers.LAYER." or "mtp.layers.N." */
    bool root;               /* the name is whole */
    row_order order;
    row_change change;
    row_shape shape;
} hybrid_word;

/* clang-format off */
static const hybrid_word qwen_words[] = {
    {"token_embd.weight", "model.embed_tokens.weight", true, 0, 0, 0},
    {"output_norm.weight", "model.norm.weight", true, 0, ONE_LESS, 0},
    {"output.weight", "lm_head.weight", true, 0, 0, 0},
    {"attn_norm.weight", "input_layernorm.weight", false, 0, ONE_LESS, 0},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", false, 0, ONE_LESS, 0},
    {"attn_q.weight", "self_attn.q_proj.weight", false, 0, 0, 0},
    {"attn_k.weight", "self_attn.k_proj.weight", false, 0, 0, 0},
    {"attn_v.weight", "self_attn.v_proj.weight", false, 0, 0, 0},
    {"attn_output.weight", "self_attn.o_proj.weight", false, 0, 0, 0},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", false, 0, ONE_LESS, 0},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", false, 0, ONE_LESS, 0},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight", false, BY_CHANNEL, 0, 0},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight", false, BY_VALUE, 0, 0},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight", false, BY_HEAD, 0, 0},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight", false, BY_HEAD, 0, 0},
    {"ssm_ba.weight", "linear_attn.in_proj_b.weight", false, TURN_B, 0, 0}, /* qwen3next */
    {"ssm_ba.weight", "linear_attn.in_proj_a.weight", false, TURN_A, 0, 0},
    {"ssm_in.weight", "linear_attn.in_proj_qkv.weight", false, TURN_QKV, 0, 0}, /* older ones */
    {"ssm_in.weight", "linear_attn.in_proj_z.weight", false, TURN_Z, 0, 0},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight", false, BY_CHANNEL, COPIED, TAPS},
    {"ssm_a", "linear_attn.A_log", false, BY_HEAD, AS_LOG, FLAT},
    {"ssm_dt.bias", "linear_attn.dt_bias", false, BY_HEAD, COPIED, FLAT},
    {"ssm_norm.weight", "linear_attn.norm.weight", false, 0, 0, 0},
    {"ssm_out.weight", "linear_attn.out_proj.weight", false, 0, 0, 0},
    {"ffn_gate.weight", "mlp.gate_proj.weight", false, 0, 0, 0},
    {"ffn_up.weight", "mlp.up_proj.weight", false, 0, 0, 0},
    {"ffn_down.weight", "mlp.down_proj.weight", false, 0, 0, 0},
    {"ffn_gate_inp.weight", "mlp.gate.weight", false, 0, 0, 0},
    {"ffn_gate_exps.weight", "mlp.experts.*.gate_proj.weight", false, 0, 0, EXPERTS},
    {"ffn_up_exps.weight", "mlp.experts.*.up_proj.weight", false, 0, 0, EXPERTS},
    {"ffn_down_exps.weight", "mlp.experts.*.down_proj.weight", false, 0, 0, EXPERTS},
    {"ffn_gate_up_exps.weight", "mlp.experts.*.gate_proj.weight", false, 0, 0, GATES},
    {"ffn_gate_up_exps.weight", "mlp.experts.*.up_proj.weight", false, 0, 0, UPS},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", false, 0, 0, ROW},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", false, 0, 0, 0},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", false, 0, 0, 0},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", false, 0, 0, 0},
    {"nextn.eh_proj.weight", "mtp.fc.weight", true, 0, 0, 0},
    {"nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight", true, 0, ONE_LESS, 0},
    {"nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight", true, 0, ONE_LESS, 0},
    {"nextn.shared_head_norm.weight", "mtp.norm.weight", true, 0, ONE_LESS, 0},
};

static const hybrid_word kimi_words[] = {
    {"token_embd.weight", "model.embed_tokens.weight", true, 0, 0, 0},
    {"output_norm.weight", "model.norm.weight", true, 0, 0, 0},
    {"output.weight", "lm_head.weight", true, 0, 0, 0},
    {"attn_norm.weight", "input_layernorm.weight", false, 0, 0, 0},
    {"ffn_norm.weight", "post_attention_layernorm.weight", false, 0, 0, 0},
    {"attn_q.weight", "self_attn.q_proj.weight", false, 0, 0, 0},
    {"attn_k.weight", "self_attn.k_proj.weight", false, 0, 0, 0},
    {"attn_v.weight", "self_attn.v_proj.weight", false, 0, 0, 0},
    {"attn_output.weight", "self_attn.o_proj.weight", false, 0, 0, 0},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", false, 0, 0, 0},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", false, 0, 0, 0},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight", false, 0, 0, 0}, /* of older files */
    {"attn_k_b.weight", "self_attn.k_b_proj.weight", false, 0, 0, 0},
    {"attn_v_b.weight", "self_attn.v_b_proj.weight", false, 0, 0, 0},
    {"ssm_conv1d_q.weight", "self_attn.q_conv1d.weight", false, 0, COPIED, TAPS},
    {"ssm_conv1d_k.weight", "self_attn.k_conv1d.weight", false, 0, COPIED, TAPS},
    {"ssm_conv1d_v.weight", "self_attn.v_conv1d.weight", false, 0, COPIED, TAPS},
    {"ssm_f_a.weight", "self_attn.f_a_proj.weight", false, 0, 0, 0},
    {"ssm_f_b.weight", "self_attn.f_b_proj.weight", false, 0, 0, 0},
    {"ssm_g_a.weight", "self_attn.g_a_proj.weight", false, 0, 0, 0},
    {"ssm_g_b.weight", "self_attn.g_b_proj.weight", false, 0, 0, 0},
    {"ssm_beta.weight", "self_attn.b_proj.weight", false, 0, 0, 0},
    {"ssm_a", "self_attn.A_log", false, 0, AS_LOG, FLAT},
    {"ssm_dt.bias", "self_attn.dt_bias", false, 0, COPIED, FLAT},
    {"ssm_norm.weight", "self_attn.o_norm.weight", false, 0, 0, 0},
    {"ffn_gate.weight", "mlp.gate_proj.weight", false, 0, 0, 0},
    {"ffn_up.weight", "mlp.up_proj.weight", false, 0, 0, 0},
    {"ffn_down.weight", "mlp.down_proj.weight", false, 0, 0, 0},
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight", false, 0, 0, 0},
    {"exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias", false, 0, 0, 0},
    {"ffn_gate_exps.weight", "block_sparse_moe.experts.*.w1.weight", false, 0, 0, EXPERTS},
    {"ffn_up_exps.weight", "block_sparse_moe.experts.*.w3.weight", false, 0, 0, EXPERTS},
    {"ffn_down_exps.weight", "block_sparse_moe.experts.*.w2.weight", false, 0, 0, EXPERTS},
    {"ffn_gate_shexp.weight", "block_sparse_moe.shared_experts.gate_proj.weight", false, 0, 0, 0},
    {"ffn_up_shexp.weight", "block_sparse_moe.shared_experts.up_proj.weight", false, 0, 0, 0},
    {"ffn_down_shexp.weight", "block_sparse_moe.shared_experts.down_proj.weight", false, 0, 0, 0},
};
/* clang-format on */

/* ---- the list ---- */

typedef struct builder {
    const gguf_file *file;
    const hybrid_family *family;
    hybrid_sizes sizes;
    bool tiled;
    ebb_error *error;
    st_tensor *list;
    size_t n;
    float *floats; /* free memory of the block: copies, runs, names */
    st_run *runs;
    char *names;
} builder;

/* What a list takes at most. */
typedef struct room {
    size_t tensors, floats, runs;
} room;

static int64_t elements(const gguf_tensor *t) {
    int64_t n = 1;
    for (int32_t d = 0; d < t->dims; d++) n *= t->shape[d]; /* fits: its bytes were counted when the file was opened */
    return n;
}

static bool moves(const builder *b, row_order order) { return order > BY_HEAD || (order && b->tiled); }

/* Counts that do not fit the tensor are refused before they are used. */
static size_t at_most(int64_t count, const gguf_tensor *t) { return (size_t)min_i64(count, elements(t)); }

static room room_of(const builder *b, const hybrid_word *word, const gguf_tensor *t) {
    room r = {.tensors = word->shape >= EXPERTS ? at_most(b->sizes.experts, t) : 1};
    if (moves(b, word->order)) r.runs = at_most(1 + b->sizes.heads + 3 * b->sizes.key_heads, t);
    if (word->change) r.floats = (r.runs ? 2 : 1) * (size_t)elements(t);
    return r;
}

/* ---- rows ---- */

static int64_t put_run(builder *b, int64_t first, int64_t n) {
    *b->runs++ = (st_run){first, n};
    return n;
}

/* The first value heads of all key heads lie before the second ones, behind `first` other rows. */
static int64_t put_tiled(builder *b, int64_t first, int64_t dim) {
    const int64_t keys = b->sizes.key_heads, each = b->sizes.heads / keys;
    int64_t n = first ? put_run(b, 0, first) : 0;
    for (int64_t k = 0; k < keys; k++)
        for (int64_t j = 0; j < each; j++) n += put_run(b, first + (j * keys + k) * dim, dim);
    return n;
}

/* Rows `from` to `from` + `n` of the `all` rows of each key head. */
static int64_t put_turns(builder *b, int64_t all, int64_t from, int64_t n) {
    for (int64_t k = 0; k < b->sizes.key_heads; k++) put_run(b, k * all + from, n);
    return b->sizes.key_heads * n;
}

/* Runs of rows as the model has them. Returns how many rows. */
static int64_t put_runs(builder *b, row_order order) {
    const hybrid_sizes *s = &b->sizes;
    const int64_t each = s->heads / s->key_heads, dim = s->key_dim, wide = each * s->value_dim;
    if (order == BY_CHANNEL) return put_tiled(b, 2 * s->key_heads * dim, s->value_dim);
    if (order == BY_VALUE) return put_tiled(b, 0, s->value_dim);
    if (order == BY_HEAD) return put_tiled(b, 0, 1);
    if (order == TURN_B) return put_turns(b, 2 * each, 0, each);
    if (order == TURN_A) return put_turns(b, 2 * each, each, each);
    if (order == TURN_Z) return put_turns(b, 2 * (dim + wide), 2 * dim + wide, wide);
    int64_t n = put_turns(b, 2 * (dim + wide), 0, dim);
    n += put_turns(b, 2 * (dim + wide), dim, dim);
    return n + put_turns(b, 2 * (dim + wide), 2 * dim, wide);
}

/* Rows that such a tensor has in the file. */
static int64_t rows_in_file(const hybrid_sizes *s, row_order order) {
    const int64_t keys = 2 * s->key_heads * s->key_dim, values = s->heads * s->value_dim;
    if (order == BY_CHANNEL) return keys + values;
    if (order == BY_VALUE) return values;
    if (order == BY_HEAD) return s->heads;
    return order >= TURN_B ? 2 * s->heads : keys + 2 * values;
}

static ebb_status order_rows(builder *b, row_order order, st_tensor *t) {
    const hybrid_sizes *s = &b->sizes;
    const int64_t lie = rows_in_file(s, order);
    if (s->key_heads < 1 || s->heads < 1 || s->heads % s->key_heads || s->key_dim < 1 || s->value_dim < 1)
        return ebb_fail(b->error, EBB_BAD_FILE,
                        "%s: fields ssm.group_count, time_step_rank, state_size and inner_size make %" PRId64
                        " value heads of %" PRId64 " for %" PRId64 " key heads of %" PRId64
                        ", expected a multiple, and no 0",
                        json_file(b->file->path), s->heads, s->value_dim, s->key_heads, s->key_dim);
    if (t->shape[0] != lie)
        return ebb_fail(b->error, EBB_BAD_FILE,
                        "%s: tensor %s has %" PRId64 " rows in the file; its fields make it %" PRId64, t->file, t->name,
                        t->shape[0], lie);
    t->runs = b->runs;
    t->shape[0] = put_runs(b, order);
    t->n_runs = (int32_t)(b->runs - t->runs);
    t->bytes = t->bytes / (size_t)lie * (size_t)t->shape[0];
    return EBB_OK;
}

/* ---- values ---- */

static ebb_status change(row_change how, const st_tensor *t, int64_t n, float *x, ebb_error *error) {
    for (int64_t i = 0; i < n && how == ONE_LESS; i++) x[i] -= 1;
    for (int64_t i = 0; i < n && how == AS_LOG; i++) {
        if (!(x[i] < 0))
            return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s has %g in the file, expected -exp(A_log), below 0",
                            t->file, t->name, (double)x[i]);
        x[i] = (float)log(-(double)x[i]);
    }
    return EBB_OK;
}

/* As FP32, in the order of the runs, which it has no longer. */
static ebb_status copy(builder *b, row_change how, int64_t n, st_tensor *t) {
    float *wide = b->floats, *to = wide;
    st_widen(t->type, t->data, n, wide);
    b->floats += n;
    if (t->runs) {
        const int64_t row = n / t->shape[0];
        to = b->floats;
        for (int32_t i = 0; i < t->n_runs; i++) {
            memcpy(b->floats, wide + t->runs[i].first * row, (size_t)(t->runs[i].n * row) * sizeof *wide);
            b->floats += t->runs[i].n * row;
        }
    }
    t->data = (const uint8_t *)to;
    t->bytes = (size_t)n * sizeof *to;
    t->type = EBB_FP32;
    t->dtype = "F32";
    t->runs = NULL;
    t->n_runs = 0;
    return change(how, t, n, to, b->error);
}

/* ---- shapes ---- */

static void set_shape(st_tensor *t, int32_t dims, int64_t a, int64_t b, int64_t c) {
    t->dims = dims;
    t->shape[0] = a, t->shape[1] = b, t->shape[2] = c;
}

static void reshape(row_shape shape, int64_t n, st_tensor *t) {
    const int64_t last = t->shape[t->dims - 1];
    if (shape == FLAT) set_shape(t, 1, n, 0, 0);
    else if (shape == ROW) set_shape(t, 2, 1, n, 0);
    else if (shape == TAPS) set_shape(t, 3, n / last, 1, last);
}

/* Matrix `e` of a stack, or half of its rows. */
static void slice(row_shape shape, int64_t e, st_tensor *t) {
    const int64_t experts = t->shape[0], parts = shape == EXPERTS ? 1 : 2;
    t->bytes /= (size_t)(experts * parts);
    t->data += (size_t)(e * parts + (shape == UPS)) * t->bytes;
    set_shape(t, 2, t->shape[1] / parts, t->shape[2], 0);
}

/* ---- names ---- */

/* The next name: of a layer, or of a block that predicts a further token, or whole. Returns where it is. */
static char *put_name(builder *b, const hybrid_word *word, int64_t layer, int64_t expert) {
    char *name = b->names;
    const char *star = strchr(word->name, '*');
    const int64_t further = layer - b->sizes.layers;
    int at = 0;
    b->names += NAME_ROOM;
    if (!word->root && further >= 0 && further < b->sizes.further)
        at = snprintf(name, NAME_ROOM, "mtp.layers.%" PRId64 ".", further);
    else if (!word->root) at = snprintf(name, NAME_ROOM, "model.layers.%" PRId64 ".", layer);
    name += at;
    if (star)
        snprintf(name, (size_t)(NAME_ROOM - at), "%.*s%" PRId64 "%s", (int)(star - word->name), word->name, expert,
                 star + 1);
    else snprintf(name, (size_t)(NAME_ROOM - at), "%s", word->name);
    return name - at;
}

static ebb_status add_experts(builder *b, const hybrid_word *word, const gguf_tensor *t, int64_t layer) {
    if (t->dims != 3 || t->shape[0] != b->sizes.experts || (word->shape != EXPERTS && t->shape[1] % 2))
        return ebb_fail(
            b->error, EBB_BAD_FILE, "%s: tensor %s is no stack of %" PRId64 " matrices, one of each expert%s",
            json_file(b->file->path), t->name, b->sizes.experts, word->shape == EXPERTS ? "" : ", gate above up");
    for (int64_t e = 0; e < b->sizes.experts; e++) {
        b->list[b->n] = as_it_lies(b->file, t, put_name(b, word, layer, e));
        slice(word->shape, e, &b->list[b->n++]);
    }
    return EBB_OK;
}

static ebb_status add(builder *b, const hybrid_word *word, const gguf_tensor *t, int64_t layer) {
    if (word->shape >= EXPERTS) return add_experts(b, word, t, layer);
    const int64_t n = elements(t);
    st_tensor *to = &b->list[b->n++];
    *to = as_it_lies(b->file, t, put_name(b, word, layer, 0));
    reshape(word->shape, n, to);
    ebb_status status = moves(b, word->order) ? order_rows(b, word->order, to) : EBB_OK;
    return !status && word->change ? copy(b, word->change, n, to) : status;
}

/* ---- all of them ---- */

/* The next word for a tensor behind `word`, NULL first: some tensors are two in the checkpoint. */
static const hybrid_word *next_word(const hybrid_family *f, const hybrid_word *word, const gguf_tensor *t,
                                    int64_t *layer) {
    const char *rest = t->name;
    *layer = -1;
    const bool in_layer = layer_of(t->name, layer, &rest);
    const hybrid_word *words = f->moonshot ? kimi_words : qwen_words;
    const hybrid_word *end = words + (f->moonshot ? COUNT(kimi_words) : COUNT(qwen_words));
    for (word = word ? word + 1 : words; word < end; word++) {
        const bool whole = word->root && strncmp(word->gguf, "nextn.", 6) != 0;
        if (whole != in_layer && !strcmp(word->gguf, rest)) return word;
    }
    return NULL;
}

/* Names that are not known stay as they are: an architecture that does not ask for one refuses it. */
static ebb_status add_all(builder *b) {
    ebb_status status = EBB_OK;
    for (uint64_t i = 0; i < b->file->n_tensors && !status; i++) {
        const gguf_tensor *t = &b->file->tensors[i];
        int64_t layer;
        const hybrid_word *word = next_word(b->family, NULL, t, &layer);
        if (!word) b->list[b->n++] = as_it_lies(b->file, t, t->name);
        for (; word && !status; word = next_word(b->family, word, t, &layer)) status = add(b, word, t, layer);
    }
    return status;
}

static room room_of_all(const builder *b) {
    room all = {0};
    for (uint64_t i = 0; i < b->file->n_tensors; i++) {
        const gguf_tensor *t = &b->file->tensors[i];
        int64_t layer;
        const hybrid_word *word = next_word(b->family, NULL, t, &layer);
        if (!word) all.tensors++;
        for (; word; word = next_word(b->family, word, t, &layer)) {
            const room r = room_of(b, word, t);
            all.tensors += r.tensors, all.floats += r.floats, all.runs += r.runs;
        }
    }
    return all;
}

ebb_status hybrid_tensors(const gguf_file *file, const hybrid_family *family, st_set **set, ebb_error *error) {
    builder b = {.file = file, .family = family, .error = error};
    config_writer w = {.file = file, .architecture = family->name, .error = error};
    ebb_status status = read_hybrid_sizes(&w, &b.sizes);
    if (status) return status;
    b.tiled = family->tiled && b.sizes.heads != b.sizes.key_heads;
    const room all = room_of_all(&b);
    const size_t float_bytes = all.floats * sizeof *b.floats, run_bytes = all.runs * sizeof *b.runs;
    float *block = malloc(align_up(float_bytes, sizeof *b.runs) + run_bytes + (all.tensors + 1) * NAME_ROOM);
    b.list = calloc(all.tensors + 1, sizeof *b.list);
    if (!block || !b.list) {
        free(b.list);
        free(block);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the list of %zu tensors", all.tensors);
    }
    b.floats = block;
    b.runs = (st_run *)((char *)block + align_up(float_bytes, sizeof *b.runs));
    b.names = (char *)(b.runs + all.runs);
    if ((status = add_all(&b))) {
        free(b.list);
        free(block);
        return status;
    }
    return st_adopt(b.list, (int64_t)b.n, block, set, error);
}
