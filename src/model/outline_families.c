/* model/outline_families.c: the layers and tensors of each family, by the fields of its config.json. The same names and
 * shapes are what qwen35.c, kimi.c, moe.c and softmax.c load; test_synth.c holds the two together. Called by
 * outline.c. */
#include "model/outline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct size_field {
    const char *key;
    json_need need;
    int32_t lo, hi, *value; /* an optional one leaves *value alone */
} size_field;

static ebb_status read_sizes(const json_place *at, const size_field *fields, int32_t n, ebb_error *error) {
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < n && !status; i++)
        status = config_int(at, fields[i].key, fields[i].need, fields[i].lo, fields[i].hi, fields[i].value, error);
    return status;
}

/* Fields of every family. */
typedef struct trunk {
    int32_t hidden, inter, layers, q_heads, kv_heads, head_dim;
    int32_t experts, used, expert_inter, shared_inter; /* experts 0: none */
    bool tied;
} trunk;

static ebb_status read_trunk(ebb_outline *o, trunk *c, ebb_error *error) {
    const json_place *at = &o->config.text, *root = &o->config.root;
    const size_field sizes[] = {
        {"vocab_size", JSON_NEEDED, 1, 1 << 24, &o->info.vocab},
        {"hidden_size", JSON_NEEDED, 1, 65536, &c->hidden},
        {"num_hidden_layers", JSON_NEEDED, 1, 1024, &c->layers},
        {"num_attention_heads", JSON_NEEDED, 1, 1024, &c->q_heads},
    };
    ebb_status status = read_sizes(at, sizes, COUNT(sizes), error);
    o->info.hidden = c->hidden;
    o->info.max_position = 32768;
    const char *limit = json_has(at, "max_position_embeddings") ? "max_position_embeddings" : "model_max_length";
    if (!status) status = json_get_int(at, limit, JSON_OPTIONAL, 1, (int64_t)1 << 40, &o->info.max_position, error);
    if (!status) status = json_get_bool(root, "tie_word_embeddings", JSON_OPTIONAL, &c->tied, error);
    if (!status) status = json_get_bool(at, "tie_word_embeddings", JSON_OPTIONAL, &c->tied, error);
    if (!status && (o->attends = calloc((size_t)c->layers, sizeof *o->attends)) == NULL)
        status = ebb_fail(error, EBB_NO_MEMORY, "no memory for %d layers", c->layers);
    return status;
}

static ebb_status expect_multiple(const json_place *at, const char *name, int32_t value, int32_t of, ebb_error *error) {
    if (value % of == 0) return EBB_OK;
    return json_fail(at, error, EBB_BAD_FILE, "%s is %d, expected a multiple of %d", name, value, of);
}

static int32_t count_attending(const ebb_outline *o, int32_t layers) {
    int32_t n = 0;
    for (int32_t i = 0; i < layers; i++) n += o->attends[i];
    return n;
}

static void add_ends(ebb_outline *o, const trunk *c, outline_fill norm) {
    outline_vector(o, -1, "norm.weight", norm, c->hidden);
    if (!c->tied) outline_matrix(o, -1, "lm_head.weight", o->info.vocab, c->hidden);
}

static void add_mlp(ebb_outline *o, int32_t i, const trunk *c) {
    outline_matrix(o, i, "mlp.gate_proj.weight", c->inter, c->hidden);
    outline_matrix(o, i, "mlp.up_proj.weight", c->inter, c->hidden);
    outline_matrix(o, i, "mlp.down_proj.weight", c->hidden, c->inter);
}

/* The experts of a layer, each a matrix by itself, and what a token leaves alone of them. */
static void add_experts(ebb_outline *o, int32_t i, const trunk *c, const char *in, const char *const names[3]) {
    for (int32_t e = 0; e < c->experts; e++)
        for (int32_t j = 0; j < 3; j++) {
            char name[64];
            snprintf(name, sizeof name, "%s.%d.%s.weight", in, e, names[j]);
            const bool down = j == 2;
            outline_matrix(o, i, name, down ? c->hidden : c->expert_inter, down ? c->expert_inter : c->hidden);
        }
}

static void count_idle(ebb_outline *o, const trunk *c) {
    o->info.idle_parameters += (int64_t)(c->experts - c->used) * 3 * c->hidden * c->expert_inter;
}

/* ---- Qwen3-Next, Qwen3.5, Qwen3.6: Gated DeltaNet, gated attention ---- */

typedef struct qwen_config {
    trunk t;
    int32_t key_heads, heads, key_dim, value_dim, conv, interval, sparse_step;
    bool next; /* Qwen3-Next: projections interleaved by key head, a tensor for each expert */
    bool gated;
} qwen_config;

static bool is_next(const char *type) { return !strcmp(type, "qwen3_next"); }
static bool has_experts(const char *type) { return is_next(type) || !strncmp(type, "qwen3_5_moe", 11); }

static ebb_status read_qwen(ebb_outline *o, qwen_config *c, ebb_error *error) {
    const json_place *at = &o->config.text;
    const bool experts = has_experts(o->info.architecture);
    const json_need moe = experts ? JSON_NEEDED : JSON_OPTIONAL;
    const int32_t most = experts ? 65536 : 0;
    const size_field sizes[] = {
        {"intermediate_size", experts ? JSON_OPTIONAL : JSON_NEEDED, 1, 1 << 20, &c->t.inter},
        {"num_key_value_heads", JSON_NEEDED, 1, 1024, &c->t.kv_heads},
        {"head_dim", JSON_NEEDED, 1, EBB_MAX_HEAD_DIM, &c->t.head_dim},
        {"linear_num_key_heads", JSON_NEEDED, 1, 1024, &c->key_heads},
        {"linear_num_value_heads", JSON_NEEDED, 1, 1024, &c->heads},
        {"linear_key_head_dim", JSON_NEEDED, 1, 512, &c->key_dim},
        {"linear_value_head_dim", JSON_NEEDED, 1, 512, &c->value_dim},
        {"linear_conv_kernel_dim", JSON_NEEDED, 1, EBB_MAX_CONV, &c->conv},
        {"full_attention_interval", JSON_OPTIONAL, 1, 1 << 20, &c->interval},
        {"num_experts", moe, experts, most, &c->t.experts},
        {"num_experts_per_tok", moe, experts, most, &c->t.used},
        {"moe_intermediate_size", moe, experts, 1 << 20, &c->t.expert_inter},
        {"shared_expert_intermediate_size", moe, experts, 1 << 20, &c->t.shared_inter},
        {"decoder_sparse_step", JSON_OPTIONAL, 1, 1024, &c->sparse_step},
    };
    *c = (qwen_config){.interval = 4, .sparse_step = 1, .next = is_next(o->info.architecture), .gated = true};
    ebb_status status = read_trunk(o, &c->t, error);
    if (!status) status = read_sizes(at, sizes, COUNT(sizes), error);
    if (!status) status = json_get_bool(at, "attn_output_gate", JSON_OPTIONAL, &c->gated, error);
    if (status) return status;
    if (c->t.used > c->t.experts)
        return json_fail(at, error, EBB_BAD_FILE, "num_experts_per_tok is %d, expected at most num_experts = %d",
                         c->t.used, c->t.experts);
    status = expect_multiple(at, "num_attention_heads", c->t.q_heads, c->t.kv_heads, error);
    return status ? status : expect_multiple(at, "linear_num_value_heads", c->heads, c->key_heads, error);
}

static ebb_status read_layer_types(ebb_outline *o, const qwen_config *c, ebb_error *error) {
    json_place list, item;
    const json_place *at = &o->config.text;
    for (int32_t i = 0; i < c->t.layers; i++) o->attends[i] = (i + 1) % c->interval == 0;
    if (!json_has(at, "layer_types")) return EBB_OK;
    ebb_status status = json_get_array(at, "layer_types", JSON_NEEDED, &list, error);
    if (status) return status;
    if (json_array_size(list.value) != (size_t)c->t.layers)
        return json_fail(&list, error, EBB_BAD_FILE, "has %zu entries, expected num_hidden_layers = %d",
                         json_array_size(list.value), c->t.layers);
    for (int32_t i = 0; i < c->t.layers; i++) {
        json_item(&list, (size_t)i, &item);
        const char *type = json_string_value(item.value);
        o->attends[i] = type && !strcmp(type, "full_attention");
        if (!o->attends[i] && (!type || strcmp(type, "linear_attention")))
            return json_fail(&item, error, EBB_BAD_FILE, "is neither linear_attention nor full_attention");
    }
    return EBB_OK;
}

static void add_delta(ebb_outline *o, int32_t i, const qwen_config *c) {
    const int64_t keys = (int64_t)c->key_heads * c->key_dim, values = (int64_t)c->heads * c->value_dim;
    const int64_t channels = 2 * keys + values, hidden = c->t.hidden;
    if (c->next) {
        outline_matrix(o, i, "linear_attn.in_proj_qkvz.weight", channels + values, hidden);
        outline_matrix(o, i, "linear_attn.in_proj_ba.weight", 2 * (int64_t)c->heads, hidden);
    } else {
        outline_matrix(o, i, "linear_attn.in_proj_qkv.weight", channels, hidden);
        outline_matrix(o, i, "linear_attn.in_proj_z.weight", values, hidden);
        outline_matrix(o, i, "linear_attn.in_proj_b.weight", c->heads, hidden);
        outline_matrix(o, i, "linear_attn.in_proj_a.weight", c->heads, hidden);
    }
    outline_add(o, i, "linear_attn.conv1d.weight", FILL_CONV, 3, (int64_t[]){channels, 1, c->conv});
    outline_vector(o, i, "linear_attn.A_log", FILL_A_LOG, c->heads);
    outline_vector(o, i, "linear_attn.dt_bias", FILL_DT_BIAS, c->heads);
    outline_vector(o, i, "linear_attn.norm.weight", FILL_NORM, c->value_dim);
    outline_matrix(o, i, "linear_attn.out_proj.weight", hidden, values);
}

static void add_attention(ebb_outline *o, int32_t i, const trunk *c, bool gated, bool norms, outline_fill norm) {
    const int64_t q = (int64_t)c->q_heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    outline_matrix(o, i, "self_attn.q_proj.weight", gated ? 2 * q : q, c->hidden);
    outline_matrix(o, i, "self_attn.k_proj.weight", kv, c->hidden);
    outline_matrix(o, i, "self_attn.v_proj.weight", kv, c->hidden);
    outline_matrix(o, i, "self_attn.o_proj.weight", c->hidden, q);
    if (norms) outline_vector(o, i, "self_attn.q_norm.weight", norm, c->head_dim);
    if (norms) outline_vector(o, i, "self_attn.k_norm.weight", norm, c->head_dim);
}

static void add_qwen_moe(ebb_outline *o, int32_t i, const qwen_config *c) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    const trunk *t = &c->t;
    outline_matrix(o, i, "mlp.gate.weight", t->experts, t->hidden);
    if (c->next) add_experts(o, i, t, "mlp.experts", names);
    else {
        const int64_t in[] = {t->experts, 2 * (int64_t)t->expert_inter, t->hidden};
        const int64_t out[] = {t->experts, t->hidden, t->expert_inter};
        outline_add(o, i, "mlp.experts.gate_up_proj", FILL_MATRIX, 3, in);
        outline_add(o, i, "mlp.experts.down_proj", FILL_MATRIX, 3, out);
    }
    outline_matrix(o, i, "mlp.shared_expert.gate_proj.weight", t->shared_inter, t->hidden);
    outline_matrix(o, i, "mlp.shared_expert.up_proj.weight", t->shared_inter, t->hidden);
    outline_matrix(o, i, "mlp.shared_expert.down_proj.weight", t->hidden, t->shared_inter);
    outline_matrix(o, i, "mlp.shared_expert_gate.weight", 1, t->hidden);
    count_idle(o, t);
}

static ebb_kv_layer gqa_layer(const trunk *c) {
    return (ebb_kv_layer){.q_heads = c->q_heads,
                          .heads = c->kv_heads,
                          .parts = 2,
                          .part = {{(int16_t)c->head_dim, EBB_ROLE_K}, {(int16_t)c->head_dim, EBB_ROLE_V}},
                          .scale = (float)(1.0 / sqrt((double)c->head_dim))};
}

/* Layers of mlp_only_layers, and those that decoder_sparse_step passes over, have a dense MLP. */
static ebb_status add_qwen_mlp(ebb_outline *o, int32_t i, const qwen_config *c, ebb_error *error) {
    const json_t *dense = json_object_get(o->config.text.value, "mlp_only_layers");
    bool moe = c->t.experts && (i + 1) % c->sparse_step == 0;
    for (size_t k = 0; k < json_array_size(dense); k++)
        if (json_integer_value(json_array_get(dense, k)) == i) moe = false;
    if (moe) add_qwen_moe(o, i, c);
    else if (c->t.inter) add_mlp(o, i, &c->t);
    else return json_fail(&o->config.text, error, EBB_BAD_FILE, "has no intermediate_size for layer %d", i);
    return EBB_OK;
}

static ebb_status qwen_outline(ebb_outline *o, ebb_error *error) {
    qwen_config c;
    ebb_status status = read_qwen(o, &c, error);
    if (!status) status = read_layer_types(o, &c, error);
    if (!status) status = outline_layers(o, c.t.layers, c.t.layers - count_attending(o, c.t.layers), error);
    if (status) return status;
    int32_t states = 0, kvs = 0;
    outline_matrix(o, -1, "embed_tokens.weight", o->info.vocab, c.t.hidden);
    for (int32_t i = 0; i < c.t.layers && !status; i++) {
        outline_vector(o, i, "input_layernorm.weight", FILL_OFFSET, c.t.hidden);
        outline_vector(o, i, "post_attention_layernorm.weight", FILL_OFFSET, c.t.hidden);
        if (o->attends[i]) {
            o->kv[kvs++] = gqa_layer(&c.t);
            add_attention(o, i, &c.t, c.gated, true, FILL_OFFSET);
        } else {
            o->state[states] =
                (ebb_state_layer){EBB_GDN, c.key_heads, c.heads, 0, c.key_dim, c.value_dim, c.conv, states};
            states++;
            add_delta(o, i, &c);
        }
        status = add_qwen_mlp(o, i, &c, error);
    }
    add_ends(o, &c.t, FILL_OFFSET);
    return status;
}

/* ---- Kimi-Linear: KDA, latent attention ---- */

typedef struct kimi_config {
    trunk t;
    int32_t rank, nope, rope, value_dim, heads, dim, conv, dense, shared, freq;
} kimi_config;

static ebb_status read_kimi(ebb_outline *o, const json_place *linear, kimi_config *c, ebb_error *error) {
    const json_place *at = &o->config.text;
    const size_field sizes[] = {
        {"intermediate_size", JSON_NEEDED, 1, 1 << 20, &c->t.inter},
        {"kv_lora_rank", JSON_NEEDED, 1, EBB_MAX_HEAD_DIM, &c->rank},
        {"qk_nope_head_dim", JSON_NEEDED, 1, 1024, &c->nope},
        {"qk_rope_head_dim", JSON_NEEDED, 1, EBB_MAX_HEAD_DIM, &c->rope},
        {"v_head_dim", JSON_NEEDED, 1, 1024, &c->value_dim},
        {"num_experts", JSON_OPTIONAL, 0, 65536, &c->t.experts},
        {"num_experts_per_token", JSON_OPTIONAL, 0, 65536, &c->t.used},
        {"moe_intermediate_size", JSON_OPTIONAL, 1, 1 << 20, &c->t.expert_inter},
        {"num_shared_experts", JSON_OPTIONAL, 0, 1024, &c->shared},
        {"first_k_dense_replace", JSON_OPTIONAL, 0, 1024, &c->dense},
        {"moe_layer_freq", JSON_OPTIONAL, 1, 1024, &c->freq},
    };
    const size_field kda[] = {{"num_heads", JSON_NEEDED, 1, 1024, &c->heads},
                              {"head_dim", JSON_NEEDED, 1, 512, &c->dim},
                              {"short_conv_kernel_size", JSON_NEEDED, 1, EBB_MAX_CONV, &c->conv}};
    *c = (kimi_config){.freq = 1};
    ebb_status status = read_trunk(o, &c->t, error);
    if (!status) status = read_sizes(at, sizes, COUNT(sizes), error);
    if (!status) status = read_sizes(linear, kda, COUNT(kda), error);
    if (!status && json_has(at, "q_lora_rank"))
        status = json_fail(at, error, EBB_UNSUPPORTED, "has a q_lora_rank, only null (a full q_proj) is known here");
    if (!status && c->t.experts && (!c->t.expert_inter || !c->t.used || c->t.used > c->t.experts))
        status = json_fail(at, error, EBB_BAD_FILE,
                           "has num_experts %d, expected a moe_intermediate_size and 1 to %d num_experts_per_token",
                           c->t.experts, c->t.experts);
    return status;
}

/* full_attn_layers counts from 1; the others are KDA layers. */
static ebb_status read_kimi_layers(ebb_outline *o, const json_place *linear, int32_t layers, ebb_error *error) {
    json_place list, item;
    ebb_status status = json_get_array(linear, "full_attn_layers", JSON_NEEDED, &list, error);
    for (size_t i = 0; !status && i < json_array_size(list.value); i++) {
        json_item(&list, i, &item);
        const json_int_t layer = json_integer_value(item.value);
        if (!json_is_integer(item.value) || layer < 1 || layer > layers)
            return json_fail(&item, error, EBB_BAD_FILE, "is not a layer, expected 1 to num_hidden_layers = %d",
                             layers);
        o->attends[layer - 1] = true;
    }
    return status;
}

static void add_kda(ebb_outline *o, int32_t i, const kimi_config *c) {
    static const char *const names[] = {"q", "k", "v"};
    const int64_t wide = (int64_t)c->heads * c->dim, hidden = c->t.hidden;
    char name[48];
    for (int32_t j = 0; j < COUNT(names); j++) {
        snprintf(name, sizeof name, "self_attn.%s_proj.weight", names[j]);
        outline_matrix(o, i, name, wide, hidden);
        snprintf(name, sizeof name, "self_attn.%s_conv1d.weight", names[j]);
        outline_add(o, i, name, FILL_CONV, 3, (int64_t[]){wide, 1, c->conv});
    }
    outline_matrix(o, i, "self_attn.f_a_proj.weight", c->dim, hidden);
    outline_matrix(o, i, "self_attn.f_b_proj.weight", wide, c->dim);
    outline_matrix(o, i, "self_attn.b_proj.weight", c->heads, hidden);
    outline_matrix(o, i, "self_attn.g_a_proj.weight", c->dim, hidden);
    outline_matrix(o, i, "self_attn.g_b_proj.weight", wide, c->dim);
    outline_add(o, i, "self_attn.A_log", FILL_A_LOG, 4, (int64_t[]){1, 1, c->heads, 1});
    outline_vector(o, i, "self_attn.dt_bias", FILL_DT_BIAS, wide);
    outline_vector(o, i, "self_attn.o_norm.weight", FILL_NORM, c->dim);
    outline_matrix(o, i, "self_attn.o_proj.weight", hidden, wide);
}

static void add_mla(ebb_outline *o, int32_t i, const kimi_config *c) {
    const int64_t q = c->t.q_heads;
    outline_matrix(o, i, "self_attn.q_proj.weight", q * (c->nope + c->rope), c->t.hidden);
    outline_matrix(o, i, "self_attn.kv_a_proj_with_mqa.weight", c->rank + c->rope, c->t.hidden);
    outline_vector(o, i, "self_attn.kv_a_layernorm.weight", FILL_NORM, c->rank);
    outline_matrix(o, i, "self_attn.kv_b_proj.weight", q * (c->nope + c->value_dim), c->rank);
    outline_matrix(o, i, "self_attn.o_proj.weight", c->t.hidden, q * c->value_dim);
}

static void add_kimi_mlp(ebb_outline *o, int32_t i, const kimi_config *c) {
    static const char *const names[] = {"w1", "w3", "w2"};
    if (!c->t.experts || i < c->dense || i % c->freq) {
        add_mlp(o, i, &c->t);
        return;
    }
    const int64_t shared = (int64_t)c->shared * c->t.expert_inter;
    outline_matrix(o, i, "block_sparse_moe.gate.weight", c->t.experts, c->t.hidden);
    outline_vector(o, i, "block_sparse_moe.gate.e_score_correction_bias", FILL_BIAS, c->t.experts);
    add_experts(o, i, &c->t, "block_sparse_moe.experts", names);
    count_idle(o, &c->t);
    if (!shared) return;
    outline_matrix(o, i, "block_sparse_moe.shared_experts.gate_proj.weight", shared, c->t.hidden);
    outline_matrix(o, i, "block_sparse_moe.shared_experts.up_proj.weight", shared, c->t.hidden);
    outline_matrix(o, i, "block_sparse_moe.shared_experts.down_proj.weight", c->t.hidden, shared);
}

static ebb_status kimi_outline(ebb_outline *o, ebb_error *error) {
    kimi_config c;
    json_place linear;
    ebb_status status = json_get_object(&o->config.text, "linear_attn_config", JSON_NEEDED, &linear, error);
    if (!status) status = read_kimi(o, &linear, &c, error);
    if (!status) status = read_kimi_layers(o, &linear, c.t.layers, error);
    if (!status) status = outline_layers(o, c.t.layers, c.t.layers - count_attending(o, c.t.layers), error);
    if (status) return status;
    int32_t states = 0, kvs = 0;
    outline_matrix(o, -1, "embed_tokens.weight", o->info.vocab, c.t.hidden);
    for (int32_t i = 0; i < c.t.layers; i++) {
        outline_vector(o, i, "input_layernorm.weight", FILL_NORM, c.t.hidden);
        outline_vector(o, i, "post_attention_layernorm.weight", FILL_NORM, c.t.hidden);
        if (o->attends[i]) {
            o->kv[kvs++] =
                (ebb_kv_layer){.q_heads = c.t.q_heads,
                               .heads = 1,
                               .parts = 2,
                               .part = {{(int16_t)c.rank, EBB_ROLE_K | EBB_ROLE_V}, {(int16_t)c.rope, EBB_ROLE_K}},
                               .scale = (float)(1.0 / sqrt((double)(c.nope + c.rope)))};
            add_mla(o, i, &c);
        } else {
            o->state[states] = (ebb_state_layer){EBB_KDA, c.heads, c.heads, 0, c.dim, c.dim, c.conv, states};
            states++;
            add_kda(o, i, &c);
        }
        add_kimi_mlp(o, i, &c);
    }
    add_ends(o, &c.t, FILL_NORM);
    return status;
}

/* ---- Qwen3, Llama, GLM-4: attention alone ---- */

static void add_softmax_layer(ebb_outline *o, int32_t i, const trunk *c, bool bias, bool glm) {
    outline_vector(o, i, "input_layernorm.weight", FILL_NORM, c->hidden);
    outline_vector(o, i, "post_attention_layernorm.weight", FILL_NORM, c->hidden);
    if (glm) outline_vector(o, i, "post_self_attn_layernorm.weight", FILL_NORM, c->hidden);
    if (glm) outline_vector(o, i, "post_mlp_layernorm.weight", FILL_NORM, c->hidden);
    o->kv[i] = gqa_layer(c);
    o->attends[i] = true;
    add_attention(o, i, c, false, !strcmp(o->info.architecture, "qwen3"), FILL_NORM);
    const int64_t q = (int64_t)c->q_heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    if (bias) outline_vector(o, i, "self_attn.q_proj.bias", FILL_BIAS, q);
    if (bias) outline_vector(o, i, "self_attn.k_proj.bias", FILL_BIAS, kv);
    if (bias) outline_vector(o, i, "self_attn.v_proj.bias", FILL_BIAS, kv);
    if (bias && !glm) outline_vector(o, i, "self_attn.o_proj.bias", FILL_BIAS, c->hidden);
    if (!glm) add_mlp(o, i, c);
    if (glm) outline_matrix(o, i, "mlp.gate_up_proj.weight", 2 * (int64_t)c->inter, c->hidden);
    if (glm) outline_matrix(o, i, "mlp.down_proj.weight", c->hidden, c->inter);
}

static ebb_status softmax_outline(ebb_outline *o, ebb_error *error) {
    const json_place *at = &o->config.text;
    const bool llama = !strcmp(o->info.architecture, "llama"), glm = !strcmp(o->info.architecture, "glm4");
    bool bias = false;
    trunk c = {0};
    ebb_status status = read_trunk(o, &c, error);
    if (status) return status;
    c.kv_heads = c.q_heads;
    c.head_dim = llama ? c.hidden / c.q_heads : 128;
    const size_field sizes[] = {{"intermediate_size", JSON_NEEDED, 1, 1 << 20, &c.inter},
                                {"num_key_value_heads", JSON_OPTIONAL, 1, 1024, &c.kv_heads},
                                {"head_dim", JSON_OPTIONAL, 1, EBB_MAX_HEAD_DIM, &c.head_dim}};
    status = read_sizes(at, sizes, COUNT(sizes), error);
    if (!status) status = json_get_bool(at, "attention_bias", JSON_OPTIONAL, &bias, error);
    if (!status) status = expect_multiple(at, "num_attention_heads", c.q_heads, c.kv_heads, error);
    if (!status && (c.head_dim < 1 || c.head_dim > EBB_MAX_HEAD_DIM))
        status = json_fail(at, error, EBB_BAD_FILE, "head_dim is %d, expected 1 to %d", c.head_dim, EBB_MAX_HEAD_DIM);
    if (!status) status = outline_layers(o, c.layers, 0, error);
    if (status) return status;
    outline_matrix(o, -1, "embed_tokens.weight", o->info.vocab, c.hidden);
    for (int32_t i = 0; i < c.layers; i++) add_softmax_layer(o, i, &c, bias, glm);
    add_ends(o, &c, FILL_NORM);
    return EBB_OK;
}

/* ---- the table ---- */

static const struct family {
    const char *model_type;
    ebb_status (*outline)(ebb_outline *o, ebb_error *error);
} families[] = {
    {"qwen3_next", qwen_outline},  {"qwen3_5_text", qwen_outline},     {"qwen3_5", qwen_outline},
    {"qwen3_5_moe", qwen_outline}, {"qwen3_5_moe_text", qwen_outline}, {"kimi_linear", kimi_outline},
    {"qwen3", softmax_outline},    {"llama", softmax_outline},         {"glm4", softmax_outline},
};

bool outline_knows(const char *model_type) {
    for (int32_t i = 0; i < COUNT(families); i++)
        if (!strcmp(families[i].model_type, model_type)) return true;
    return false;
}

ebb_status outline_family(ebb_outline *o, ebb_error *error) {
    int32_t i = 0;
    while (strcmp(families[i].model_type, o->info.architecture)) i++;
    return families[i].outline(o, error);
}
