/* model/gguf_hybrid.c: the fields of GGUF files whose models have recurrent layers, in the words of config.json
 * (gguf.h):
 *
 *   qwen3next     Qwen3-Next, as qwen3_next
 *   qwen35        Qwen3.5 and 3.6, dense, as qwen3_5_text
 *   qwen35moe     the same with mixtures of experts, as qwen3_5_moe_text
 *   kimi-linear   Kimi-Linear, as kimi_linear
 *
 * One thing of the file no released config.json can say: with out_proj_tiled the value heads in the columns of the
 * mixer's output projection lie as ebb_tile_heads orders them, because blocks of quantized weights cannot be put into
 * another order where a block is wider than a head. The rows of the other weights are (gguf_hybrid_tensors.c). Called
 * by gguf_names.c. */
#include "model/gguf_words.h"

#include <inttypes.h>
#include <stdio.h>

enum { MOST_HEADS = 65536 };

/* ---- what places layers and tensors ---- */

static ebb_status read_layers(config_writer *w, hybrid_sizes *sizes) {
    int64_t blocks = 0;
    ebb_status status = get_whole(w, "block_count", JSON_NEEDED, &blocks);
    if (!status) status = get_whole(w, "nextn_predict_layers", JSON_OPTIONAL, &sizes->further);
    if (!status && sizes->further && sizes->further >= blocks)
        status =
            ebb_fail(w->error, EBB_BAD_FILE, "%s: field %s is %" PRId64 ", expected less than block_count = %" PRId64,
                     json_file(w->file->path), w->key, sizes->further, blocks);
    sizes->layers = blocks - sizes->further;
    return status;
}

ebb_status read_hybrid_sizes(config_writer *w, hybrid_sizes *sizes) {
    int64_t inner = 0;
    *sizes = (hybrid_sizes){0};
    const struct {
        const char *name;
        int64_t *value;
    } rows[] = {{"ssm.group_count", &sizes->key_heads},
                {"ssm.time_step_rank", &sizes->heads},
                {"ssm.state_size", &sizes->key_dim},
                {"expert_count", &sizes->experts}};
    ebb_status status = read_layers(w, sizes);
    for (int32_t i = 0; i < COUNT(rows) && !status; i++)
        status =
            gguf_get_int(w->file, field_key(w, rows[i].name), JSON_OPTIONAL, 0, MOST_HEADS, rows[i].value, w->error);
    if (!status) status = get_whole(w, "ssm.inner_size", JSON_OPTIONAL, &inner);
    if (status || !inner) return status;
    if (!sizes->heads || inner % sizes->heads)
        return ebb_fail(w->error, EBB_BAD_FILE,
                        "%s: field %s is %" PRId64 ", expected a multiple of ssm.time_step_rank = %" PRId64,
                        json_file(w->file->path), w->key, inner, sizes->heads);
    sizes->value_dim = inner / sizes->heads;
    return EBB_OK;
}

/* ---- experts ---- */

/* 1 softmax, 2 sigmoid: a family has one of them. */
static ebb_status check_gating(config_writer *w, int64_t expected) {
    int64_t gating = expected;
    ebb_status status = get_whole(w, "expert_gating_func", JSON_OPTIONAL, &gating);
    if (!status && gating != expected)
        status = ebb_fail(w->error, EBB_UNSUPPORTED, "%s: field %s is %" PRId64 ", only %" PRId64 " (%s) is served",
                          json_file(w->file->path), w->key, gating, expected, expected == 1 ? "softmax" : "sigmoid");
    return status;
}

/* Weights of the chosen experts are divided by their sum, unless the file says otherwise. */
static ebb_status put_expert_norm(config_writer *w, const char *key) {
    bool norm = true;
    ebb_status status = gguf_get_bool(w->file, field_key(w, "expert_weights_norm"), JSON_OPTIONAL, &norm, w->error);
    return status ? status : put_value(w, w->config, key, json_boolean(norm));
}

/* ---- Qwen ---- */

static const field_word qwen_fields[] = {
    {"context_length", "max_position_embeddings", WHOLE},
    {"embedding_length", "hidden_size", WHOLE},
    {"feed_forward_length", "intermediate_size", WHOLE},
    {"attention.head_count", "num_attention_heads", WHOLE},
    {"attention.head_count_kv", "num_key_value_heads", WHOLE},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", NUMBER},
    {"rope.freq_base", "rope_theta", NUMBER},
    {"full_attention_interval", "full_attention_interval", WHOLE},
    {"ssm.conv_kernel", "linear_conv_kernel_dim", WHOLE},
    {"ssm.state_size", "linear_key_head_dim", WHOLE},
    {"ssm.group_count", "linear_num_key_heads", WHOLE},
    {"ssm.time_step_rank", "linear_num_value_heads", WHOLE},
    {"expert_count", "num_experts", WHOLE},
    {"expert_used_count", "num_experts_per_tok", WHOLE},
    {"expert_feed_forward_length", "moe_intermediate_size", WHOLE},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", WHOLE},
    {"block_count", NULL, CHECKED},
    {"nextn_predict_layers", NULL, CHECKED},
    {"ssm.inner_size", NULL, CHECKED},
    {"attention.recurrent_layers", NULL, CHECKED},
    {"attention.key_length", NULL, CHECKED},
    {"attention.value_length", NULL, CHECKED},
    {"attention.causal", NULL, CHECKED},
    {"rope.dimension_count", NULL, CHECKED},
    {"rope.dimension_sections", NULL, CHECKED}, /* which of three positions turns what: on text all are the same */
    {"rope.scaling.type", NULL, CHECKED},
    {"expert_gating_func", NULL, CHECKED},
    {"expert_weights_norm", NULL, CHECKED},
    {"vocab_size", NULL, CHECKED},
};

/* layer_types where the file lists them; an interval is a field like others. */
static ebb_status put_layer_types(config_writer *w, int64_t layers) {
    const gguf_field *recurrent;
    ebb_status status = gguf_get_array(w->file, field_key(w, "attention.recurrent_layers"), JSON_OPTIONAL, GGUF_BOOL,
                                       &recurrent, w->error);
    if (status || !recurrent) return status;
    if (recurrent->count < (uint64_t)layers)
        return ebb_fail(w->error, EBB_BAD_FILE, "%s: field %s has %" PRIu64 " entries, expected one a layer, %" PRId64,
                        json_file(w->file->path), w->key, recurrent->count, layers);
    json_t *list = json_array();
    status = put_value(w, w->config, "layer_types", list);
    for (int64_t i = 0; i < layers && !status; i++) {
        const char *type = recurrent->data[i] ? "linear_attention" : "full_attention";
        if (json_array_append_new(list, json_string(type))) status = put_value(w, list, "", NULL);
    }
    return status;
}

static ebb_status put_qwen(const hybrid_family *family, config_writer *w) {
    hybrid_sizes sizes;
    json_t *c = w->config;
    ebb_status status = put_value(w, c, "model_type", json_string(family->model_type));
    if (!status) status = put_value(w, c, "rope_theta", json_real(10000.0)); /* the format's preset */
    if (!status) status = put_fields(w, qwen_fields, COUNT(qwen_fields));
    if (!status) status = put_heads(w, true);
    if (!status) status = read_hybrid_sizes(w, &sizes);
    if (!status) status = put_whole(w, c, "num_hidden_layers", sizes.layers);
    if (!status) status = put_whole(w, c, "mtp_num_hidden_layers", sizes.further);
    if (!status) status = put_whole(w, c, "linear_value_head_dim", sizes.value_dim);
    if (!status) status = put_layer_types(w, sizes.layers);
    if (!status) status = check_gating(w, 1);
    if (!status && sizes.experts) status = put_expert_norm(w, "norm_topk_prob");
    if (!status && family->tiled && sizes.heads != sizes.key_heads)
        status = put_value(w, c, "out_proj_tiled", json_true());
    return status;
}

/* ---- Kimi ---- */

static const field_word kimi_fields[] = {
    {"context_length", "model_max_length", WHOLE},
    {"embedding_length", "hidden_size", WHOLE},
    {"block_count", "num_hidden_layers", WHOLE},
    {"feed_forward_length", "intermediate_size", WHOLE},
    {"attention.head_count", "num_attention_heads", WHOLE},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", NUMBER},
    {"attention.kv_lora_rank", "kv_lora_rank", WHOLE},
    {"attention.q_lora_rank", "q_lora_rank", WHOLE},
    {"attention.value_length_mla", "v_head_dim", WHOLE},
    {"rope.dimension_count", "qk_rope_head_dim", WHOLE},
    {"expert_count", "num_experts", WHOLE},
    {"expert_used_count", "num_experts_per_token", WHOLE},
    {"expert_feed_forward_length", "moe_intermediate_size", WHOLE},
    {"expert_shared_count", "num_shared_experts", WHOLE},
    {"leading_dense_block_count", "first_k_dense_replace", WHOLE},
    {"expert_weights_scale", "routed_scaling_factor", NUMBER},
    {"expert_group_count", "num_expert_group", WHOLE},
    {"expert_group_used_count", "topk_group", WHOLE},
    {"attention.head_count_kv", NULL, CHECKED}, /* of each layer: 0 in those of KDA */
    {"attention.key_length_mla", NULL, CHECKED},
    {"attention.key_length", NULL, CHECKED},   /* of the latent and the rest of a key, as attention reads them */
    {"attention.value_length", NULL, CHECKED}, /* what the converter leaves of a head_dim that nothing reads */
    {"attention.causal", NULL, CHECKED},
    {"rope.freq_base", NULL, CHECKED}, /* nothing rotates */
    {"rope.scaling.type", NULL, CHECKED},
    {"kda.head_dim", NULL, CHECKED},
    {"ssm.conv_kernel", NULL, CHECKED},
    {"expert_gating_func", NULL, CHECKED},
    {"expert_weights_norm", NULL, CHECKED},
    {"vocab_size", NULL, CHECKED},
};

/* The two lists of layers, which count from 1; *first: the first layer of KDA, -1: there is none. */
static ebb_status put_layer_lists(config_writer *w, json_t *linear, int64_t *first) {
    const gguf_field *heads;
    int64_t layers = 0;
    json_t *lists[2] = {json_array(), json_array()};
    ebb_status status = put_value(w, linear, "kda_layers", lists[0]);
    if (!status) status = put_value(w, linear, "full_attn_layers", lists[1]);
    else json_decref(lists[1]);
    if (!status) status = get_whole(w, "block_count", JSON_NEEDED, &layers);
    if (!status)
        status =
            gguf_get_array(w->file, field_key(w, "attention.head_count_kv"), JSON_NEEDED, GGUF_INT32, &heads, w->error);
    if (!status && heads->count != (uint64_t)layers)
        status =
            ebb_fail(w->error, EBB_BAD_FILE, "%s: field %s has %" PRIu64 " entries, expected one a layer, %" PRId64,
                     json_file(w->file->path), w->key, heads->count, layers);
    *first = -1;
    for (int64_t i = 0; i < layers && !status; i++) {
        const bool full = gguf_int32(heads, (uint64_t)i) != 0;
        if (!full && *first < 0) *first = i;
        if (json_array_append_new(lists[full], json_integer(i + 1))) status = put_value(w, linear, "", NULL);
    }
    return status;
}

/* No field has the number of KDA heads: there is one number of ssm_a for each. */
static ebb_status put_kda_heads(config_writer *w, json_t *linear, int64_t first) {
    char name[64];
    int64_t heads = 1;
    if (first < 0) return put_whole(w, linear, "num_heads", 1);
    snprintf(name, sizeof name, "blk.%" PRId64 ".ssm_a", first);
    const gguf_tensor *t = find_tensor(w->file, name);
    if (!t) return ebb_fail(w->error, EBB_BAD_FILE, "%s: there is no tensor %s", json_file(w->file->path), name);
    for (int32_t d = 0; d < t->dims; d++) heads *= t->shape[d];
    return put_whole(w, linear, "num_heads", heads);
}

static ebb_status put_linear(config_writer *w) {
    int64_t dim = 0, conv = 0, first;
    json_t *linear = json_object();
    ebb_status status = put_value(w, w->config, "linear_attn_config", linear);
    if (!status) status = get_whole(w, "kda.head_dim", JSON_NEEDED, &dim);
    if (!status) status = put_whole(w, linear, "head_dim", dim);
    if (!status) status = get_whole(w, "ssm.conv_kernel", JSON_NEEDED, &conv);
    if (!status) status = put_whole(w, linear, "short_conv_kernel_size", conv);
    if (!status) status = put_layer_lists(w, linear, &first);
    return status ? status : put_kda_heads(w, linear, first);
}

/* A key is its part of each head and the rest that all share, together key_length_mla. */
static ebb_status put_latent(config_writer *w) {
    int64_t key = 0, rest = 0;
    ebb_status status = get_whole(w, "rope.dimension_count", JSON_NEEDED, &rest);
    if (!status) status = get_whole(w, "attention.key_length_mla", JSON_NEEDED, &key);
    if (!status && key <= rest)
        status = ebb_fail(w->error, EBB_BAD_FILE,
                          "%s: field %s is %" PRId64 ", expected more than rope.dimension_count = %" PRId64,
                          json_file(w->file->path), w->key, key, rest);
    if (!status) status = put_whole(w, w->config, "qk_nope_head_dim", key - rest);
    return status ? status : put_value(w, w->config, "mla_use_nope", json_true());
}

static ebb_status put_kimi(const hybrid_family *family, config_writer *w) {
    ebb_status status = put_value(w, w->config, "model_type", json_string(family->model_type));
    if (!status) status = put_fields(w, kimi_fields, COUNT(kimi_fields));
    if (!status) status = put_latent(w);
    if (!status) status = put_linear(w);
    if (!status) status = check_gating(w, 2);
    if (!status) status = put_value(w, w->config, "moe_router_activation_func", json_string("sigmoid"));
    return status ? status : put_expert_norm(w, "moe_renormalize");
}

/* ---- the table ---- */

const hybrid_family *find_hybrid(gguf_text architecture) {
    static const hybrid_family families[] = {
        {"qwen3next", "qwen3_next", false, false, put_qwen},
        {"qwen35", "qwen3_5_text", true, false, put_qwen},
        {"qwen35moe", "qwen3_5_moe_text", true, false, put_qwen},
        {"kimi-linear", "kimi_linear", false, true, put_kimi},
    };
    for (int32_t i = 0; i < COUNT(families); i++)
        if (gguf_is(architecture, families[i].name)) return &families[i];
    return NULL;
}
