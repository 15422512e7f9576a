/* model/qwen35.c: Qwen3.5 and Qwen3.6, dense and with mixtures of experts, and Qwen3-Next: Gated DeltaNet layers with
 * every few layers a gated full attention. Also the text part of the checkpoints with a vision tower. Called by
 * model.c.
 *
 * Qwen3-Next differs in two things: projections of the GDN layers are interleaved by key head, and fields say which
 * layers have experts, where all of the others' do or none. */
#include "model/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct qwen35_config {
    int32_t vocab, hidden, layers;
    int32_t inter;                                      /* of MLPs; 0 where all layers have experts */
    int32_t q_heads, kv_heads, head_dim;                /* attention layers */
    int32_t key_heads, heads, key_dim, value_dim, conv; /* GDN layers */
    bool gated;                                         /* each query head has an output gate */
    bool tiled;                                         /* columns of out_proj as ebb_tile_heads orders them */
    bool next;                                          /* Qwen3-Next */
    bool *full, *experts;                               /* [layers]: attention layers; layers with experts */
    moe_config moe;                                     /* router.experts 0: none */
    rope_config rope;                                   /* on text mRoPE is plain RoPE */
    double eps;
    int64_t max_position;
} qwen35_config;

/* ---- config.json ---- */

static ebb_status read_sizes(const json_place *at, qwen35_config *c, ebb_error *error) {
    const struct {
        const char *key;
        int32_t hi, *value;
    } sizes[] = {
        {"vocab_size", 1 << 24, &c->vocab},
        {"hidden_size", 65536, &c->hidden},
        {"num_hidden_layers", 1024, &c->layers},
        {"num_attention_heads", 1024, &c->q_heads},
        {"num_key_value_heads", 1024, &c->kv_heads},
        {"head_dim", EBB_MAX_HEAD_DIM, &c->head_dim},
        {"linear_num_key_heads", 1024, &c->key_heads},
        {"linear_num_value_heads", 1024, &c->heads},
        {"linear_key_head_dim", 512, &c->key_dim},
        {"linear_value_head_dim", 512, &c->value_dim},
        {"linear_conv_kernel_dim", EBB_MAX_CONV, &c->conv},
    };
    for (int32_t i = 0; i < COUNT(sizes); i++) {
        ebb_status status = config_int(at, sizes[i].key, JSON_NEEDED, 1, sizes[i].hi, sizes[i].value, error);
        if (status) return status;
    }
    if (c->head_dim % 2)
        return json_fail(at, error, EBB_BAD_FILE, "head_dim is %d, expected an even number", c->head_dim);
    if (c->q_heads % c->kv_heads)
        return json_fail(at, error, EBB_BAD_FILE,
                         "num_attention_heads is %d, expected a multiple of num_key_value_heads = %d", c->q_heads,
                         c->kv_heads);
    if (c->heads % c->key_heads)
        return json_fail(at, error, EBB_BAD_FILE,
                         "linear_num_value_heads is %d, expected a multiple of linear_num_key_heads = %d", c->heads,
                         c->key_heads);
    c->eps = 1e-6;
    c->max_position = 32768;
    ebb_status status = config_number(at, "rms_norm_eps", JSON_OPTIONAL, 0, 1, &c->eps, error);
    if (!status)
        status =
            json_get_int(at, "max_position_embeddings", JSON_OPTIONAL, 1, (int64_t)1 << 40, &c->max_position, error);
    return status;
}

/* Experts, in all layers or, of Qwen3-Next, in those that the fields say. c->moe.router.experts stays 0 without any. */
static ebb_status read_experts(const config_files *files, qwen35_config *c, ebb_error *error) {
    static const moe_config names = {.router = {.groups = 1, .top_groups = 1, .normalize = true, .scale = 1},
                                     .logits = "mlp.gate.weight",
                                     .experts = "mlp.experts",
                                     .gate = "gate_proj",
                                     .up = "up_proj",
                                     .down = "down_proj",
                                     .shared = "mlp.shared_expert",
                                     .shared_gate = "mlp.shared_expert_gate.weight"};
    const json_place *at = &files->text;
    int32_t experts = 0;
    c->moe = names;
    c->next = !strcmp(files->model_type, "qwen3_next");
    const bool may = c->next || !strncmp(files->model_type, "qwen3_5_moe", 11);
    ebb_status status =
        config_int(at, "num_experts", may && !c->next ? JSON_NEEDED : JSON_OPTIONAL, 0, 65536, &experts, error);
    if (status || !experts) return status;
    if (!may)
        return json_fail(at, error, EBB_UNSUPPORTED,
                         "has num_experts %d: mixture-of-experts (MoE) layers are not served for model_type %s",
                         experts, files->model_type);
    const struct {
        const char *key;
        int32_t hi, *value;
    } sizes[] = {{"num_experts_per_tok", 65536, &c->moe.router.used},
                 {"moe_intermediate_size", 1 << 20, &c->moe.inter},
                 {"shared_expert_intermediate_size", 1 << 20, &c->moe.shared_inter}};
    c->moe.router.experts = experts;
    for (int32_t i = 0; i < COUNT(sizes) && !status; i++)
        status = config_int(at, sizes[i].key, JSON_NEEDED, 1, sizes[i].hi, sizes[i].value, error);
    if (!status) status = json_get_bool(at, "norm_topk_prob", JSON_OPTIONAL, &c->moe.router.normalize, error);
    if (!status && !c->next && !c->moe.router.normalize)
        status = json_fail(at, error, EBB_UNSUPPORTED,
                           "has norm_topk_prob false, only true is served for model_type %s", files->model_type);
    return status ? status : moe_check(at, &c->moe, error);
}

/* What would make another model of it. */
static ebb_status refuse_variants(const json_place *root, const json_place *at, qwen35_config *c, ebb_error *error) {
    char shown[64];
    bool bias = false;
    const char *act = "silu", *gate = "silu";
    c->gated = true;
    ebb_status status = json_get_text(at, "hidden_act", JSON_OPTIONAL, &act, error);
    if (!status) status = json_get_bool(at, "attention_bias", JSON_OPTIONAL, &bias, error);
    if (!status) status = json_get_bool(at, "attn_output_gate", JSON_OPTIONAL, &c->gated, error);
    if (!status) status = json_get_bool(at, "out_proj_tiled", JSON_OPTIONAL, &c->tiled, error);
    if (!status) status = json_get_text(at, "output_gate_type", JSON_OPTIONAL, &gate, error);
    if (status) return status;
    if (json_has(at, "quantization_config") || json_has(root, "quantization_config"))
        return json_fail(at, error, EBB_UNSUPPORTED,
                         "has a quantization_config: only BF16, F16 and F32 weights are served");
    if (strcmp(act, "silu") != 0)
        return json_fail(at, error, EBB_UNSUPPORTED, "has hidden_act %s, only silu is served", json_shown(act, shown));
    if (bias) return json_fail(at, error, EBB_UNSUPPORTED, "has attention_bias true, only false is served");
    if (strcmp(gate, "silu") != 0 && strcmp(gate, "swish") != 0)
        return json_fail(at, error, EBB_UNSUPPORTED, "has output_gate_type %s, only silu (swish) is served",
                         json_shown(gate, shown));
    return EBB_OK;
}

/* Which layers are full attention: layer_types, else every full_attention_interval-th. */
static ebb_status read_layer_types(const json_place *at, const qwen35_config *c, ebb_error *error) {
    json_place list, item;
    bool *full = c->full;
    if (!json_has(at, "layer_types")) {
        int32_t interval = 4;
        ebb_status status = config_int(at, "full_attention_interval", JSON_OPTIONAL, 1, 1 << 20, &interval, error);
        for (int32_t i = 0; i < c->layers; i++) full[i] = (i + 1) % interval == 0;
        return status;
    }
    ebb_status status = json_get_array(at, "layer_types", JSON_NEEDED, &list, error);
    if (status) return status;
    if (json_array_size(list.value) != (size_t)c->layers)
        return json_fail(&list, error, EBB_BAD_FILE, "has %zu entries, expected num_hidden_layers = %d",
                         json_array_size(list.value), c->layers);
    for (int32_t i = 0; i < c->layers; i++) {
        char shown[64];
        json_item(&list, (size_t)i, &item);
        const char *type = json_string_value(item.value);
        if (!type) return json_fail(&item, error, EBB_BAD_FILE, "is not a string");
        full[i] = !strcmp(type, "full_attention");
        if (!full[i] && strcmp(type, "linear_attention") != 0)
            return json_fail(&item, error, EBB_UNSUPPORTED,
                             "is %s, only linear_attention and full_attention are served", json_shown(type, shown));
    }
    return EBB_OK;
}

/* Which layers have experts. Qwen3-Next: every decoder_sparse_step-th, but not those of mlp_only_layers. */
static ebb_status read_sparse_layers(const json_place *at, const qwen35_config *c, ebb_error *error) {
    json_place list = {0}, item;
    int32_t step = 1;
    ebb_status status = EBB_OK;
    if (c->next) status = config_int(at, "decoder_sparse_step", JSON_OPTIONAL, 1, 1 << 20, &step, error);
    if (!status && c->next) status = json_get_array(at, "mlp_only_layers", JSON_OPTIONAL, &list, error);
    for (int32_t i = 0; i < c->layers && !status; i++) c->experts[i] = c->moe.router.experts && (i + 1) % step == 0;
    for (size_t i = 0; list.value && i < json_array_size(list.value) && !status; i++) {
        json_item(&list, i, &item);
        if (!json_is_integer(item.value) || json_integer_value(item.value) < 0 ||
            json_integer_value(item.value) >= c->layers)
            status = json_fail(&item, error, EBB_BAD_FILE, "is no layer, expected 0 to %d", c->layers - 1);
        else c->experts[json_integer_value(item.value)] = false;
    }
    return status;
}

static ebb_status read_inter(const json_place *at, qwen35_config *c, ebb_error *error) {
    bool dense = false;
    for (int32_t i = 0; i < c->layers; i++) dense = dense || !c->experts[i];
    return dense ? config_int(at, "intermediate_size", JSON_NEEDED, 1, 1 << 20, &c->inter, error) : EBB_OK;
}

/* ---- tensors ---- */

/* Rows first .. first + n - 1 of the `each` rows of every key head. Returns behind them. */
static ebb_weight_part *put_turns(ebb_weight_part *to, const st_tensor *t, int64_t heads, int64_t first, int64_t n) {
    const int64_t each = t->shape[0] / heads;
    const size_t row = t->bytes / (size_t)t->shape[0];
    for (int64_t h = 0; h < heads; h++)
        *to++ = (ebb_weight_part){t->data + (size_t)(h * each + first) * row, t->type, n};
    return to;
}

/* in_proj_qkvz has, key head by key head, q | k | v | z of it and its value heads, in_proj_ba b | a. */
static ebb_status load_interleaved(model_loader *loader, const qwen35_config *c, int32_t i, ebb_weight *weight,
                                   ebb_error *error) {
    const int64_t heads = c->key_heads, each = c->heads / heads, dim = c->key_dim, wide = each * c->value_dim;
    const st_tensor *qkvz, *ba;
    const int64_t shape[] = {heads * 2 * (dim + wide), c->hidden}, gates[] = {2 * (int64_t)c->heads, c->hidden};
    ebb_status status = load_raw(loader, i, "linear_attn.in_proj_qkvz.weight", 2, shape, &qkvz, error);
    if (!status) status = load_raw(loader, i, "linear_attn.in_proj_ba.weight", 2, gates, &ba, error);
    if (status) return status;
    ebb_weight_part *parts = calloc((size_t)(6 * heads), sizeof *parts), *to = parts;
    if (!parts)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the %lld parts of a weight", (long long)(6 * heads));
    to = put_turns(to, qkvz, heads, 0, dim);
    to = put_turns(to, qkvz, heads, dim, dim);
    to = put_turns(to, qkvz, heads, 2 * dim, wide);
    to = put_turns(to, qkvz, heads, 2 * dim + wide, wide);
    to = put_turns(to, ba, heads, 0, each);
    to = put_turns(to, ba, heads, each, each);
    status = load_parts(loader, parts, (int32_t)(to - parts), c->hidden, weight, error);
    free(parts);
    return status;
}

static ebb_status load_delta(model_loader *loader, const qwen35_config *c, int32_t i, ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    ebb_state_layer *s = &loader->model->state_layers[l->store];
    *s = (ebb_state_layer){.kind = EBB_GDN,
                           .key_heads = c->key_heads,
                           .heads = c->heads,
                           .key_dim = c->key_dim,
                           .value_dim = c->value_dim,
                           .conv_width = c->conv,
                           .index = l->store};
    int64_t channels = ebb_state_conv_channels(s), values = (int64_t)c->heads * c->value_dim, heads = c->heads;
    const matrix_part in[] = {{"linear_attn.in_proj_qkv.weight", channels},
                              {"linear_attn.in_proj_z.weight", values},
                              {"linear_attn.in_proj_b.weight", heads},
                              {"linear_attn.in_proj_a.weight", heads}};
    const matrix_part out[] = {{"linear_attn.out_proj.weight", c->hidden}};
    l->delta.eps = (float)c->eps;
    l->delta.gate = EBB_GATE_SILU;
    l->tiled = c->tiled;
    ebb_status status = load_has(loader, i, "linear_attn.in_proj_qkvz.weight") && c->next
                            ? load_interleaved(loader, c, i, &l->in, error)
                            : load_matrix(loader, i, in, COUNT(in), c->hidden, &l->in, error);
    if (!status) status = load_matrix(loader, i, out, COUNT(out), values, &l->out, error);
    if (!status)
        status = load_floats(loader, i, "linear_attn.conv1d.weight", 3, (int64_t[]){channels, 1, c->conv}, 0,
                             &l->delta.conv, error);
    if (!status) status = load_floats(loader, i, "linear_attn.A_log", 1, &heads, 0, &l->delta.a_log, error);
    if (!status) status = load_floats(loader, i, "linear_attn.dt_bias", 1, &heads, 0, &l->delta.dt_bias, error);
    if (!status) /* this norm alone multiplies by w, not by 1 + w */
        status = load_floats(loader, i, "linear_attn.norm.weight", 1, (int64_t[]){c->value_dim}, 0, &l->delta.out_norm,
                             error);
    return status;
}

static ebb_status load_attention(model_loader *loader, const qwen35_config *c, const float *inv_freq, int32_t i,
                                 ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    loader->model->kv_layers[l->store] =
        (ebb_kv_layer){.q_heads = c->q_heads,
                       .heads = c->kv_heads,
                       .parts = 2,
                       .part = {{(int16_t)c->head_dim, EBB_ROLE_K}, {(int16_t)c->head_dim, EBB_ROLE_V}},
                       .scale = (float)(1.0 / sqrt((double)c->head_dim))};
    int64_t dim = c->head_dim, q = c->q_heads * dim, kv = c->kv_heads * dim;
    const matrix_part in[] = {{"self_attn.q_proj.weight", c->gated ? 2 * q : q},
                              {"self_attn.k_proj.weight", kv},
                              {"self_attn.v_proj.weight", kv}};
    const matrix_part out[] = {{"self_attn.o_proj.weight", c->hidden}};
    l->gated = c->gated;
    l->rope = (ebb_rope){.eps = (float)c->eps, .rotary = c->rope.rotary, .inv_freq = inv_freq};
    ebb_status status = load_matrix(loader, i, in, COUNT(in), c->hidden, &l->in, error);
    if (!status) status = load_matrix(loader, i, out, COUNT(out), q, &l->out, error);
    if (!status) status = load_floats(loader, i, "self_attn.q_norm.weight", 1, &dim, 1, &l->rope.q_norm, error);
    if (!status) status = load_floats(loader, i, "self_attn.k_norm.weight", 1, &dim, 1, &l->rope.k_norm, error);
    return status;
}

static ebb_status load_mlp(model_loader *loader, const qwen35_config *c, int32_t i, ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    const matrix_part gate_up[] = {{"mlp.gate_proj.weight", c->inter}, {"mlp.up_proj.weight", c->inter}};
    const matrix_part down[] = {{"mlp.down_proj.weight", c->hidden}};
    ebb_status status = load_matrix(loader, i, gate_up, COUNT(gate_up), c->hidden, &l->gate_up, error);
    if (!status) status = load_matrix(loader, i, down, COUNT(down), c->inter, &l->down, error);
    return status;
}

static ebb_status load_layer(model_loader *loader, const qwen35_config *c, const float *inv_freq, int32_t i,
                             ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    const int64_t hidden = c->hidden;
    ebb_status status = load_floats(loader, i, "input_layernorm.weight", 1, &hidden, 1, &l->mixer_norm, error);
    if (!status) status = load_floats(loader, i, "post_attention_layernorm.weight", 1, &hidden, 1, &l->mlp_norm, error);
    if (!status && l->mixer == MIXER_DELTA) status = load_delta(loader, c, i, error);
    else if (!status) status = load_attention(loader, c, inv_freq, i, error);
    if (!status) status = c->experts[i] ? moe_load(loader, i, &c->moe, error) : load_mlp(loader, c, i, error);
    return status;
}

static ebb_status make_layers(ebb_model *m, const qwen35_config *c, ebb_error *error) {
    int32_t state_layers = 0, stores[2] = {0};
    const bool *full = c->full;
    for (int32_t i = 0; i < c->layers; i++) state_layers += !full[i];
    ebb_status status = model_layers_new(m, c->layers, state_layers, error);
    for (int32_t i = 0; !status && i < c->layers; i++) {
        m->layers[i].mixer = full[i] ? MIXER_ATTENTION : MIXER_DELTA;
        m->layers[i].store = stores[full[i]]++;
    }
    return status;
}

static ebb_status read_fields(const config_files *files, qwen35_config *c, ebb_error *error) {
    const json_place *at = &files->text;
    ebb_status status = read_experts(files, c, error);
    if (!status) status = refuse_variants(&files->root, at, c, error);
    if (!status) status = read_sizes(at, c, error);
    c->rope.part = 0.25;
    if (!status) status = rope_read(at, c->head_dim, &c->rope, error);
    if (status) return status;
    if (!(c->full = calloc(2 * (size_t)c->layers, sizeof *c->full)))
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d layers", c->layers);
    c->experts = c->full + c->layers;
    status = read_layer_types(at, c, error);
    if (!status) status = read_sparse_layers(at, c, error);
    return status ? status : read_inter(at, c, error);
}

ebb_status qwen35_load(model_loader *loader, ebb_error *error) {
    ebb_model *m = loader->model;
    qwen35_config c = {0};
    const float *inv_freq = NULL;
    ebb_status status = read_fields(loader->config, &c, error);
    if (status) goto done;
    if ((status = make_layers(m, &c, error))) goto done;
    m->info.vocab = c.vocab;
    m->info.hidden = c.hidden;
    m->info.max_position = c.max_position;
    m->intermediate = c.inter;
    m->eps = (float)c.eps;

    const matrix_part embedding = {"embed_tokens.weight", c.vocab}, head = {"lm_head.weight", c.vocab};
    status = load_matrix(loader, LAYER_NONE, &embedding, 1, c.hidden, &m->embedding, error);
    if (!status) status = rope_frequencies(loader, &c.rope, &inv_freq, error);
    for (int32_t i = 0; !status && i < c.layers; i++) status = load_layer(loader, &c, inv_freq, i, error);
    if (!status)
        status = load_floats(loader, LAYER_NONE, "norm.weight", 1, (int64_t[]){c.hidden}, 1, &m->final_norm, error);
    /* Tied where the checkpoint has no head of its own: the flags of config.json contradict each other in released
     * files. */
    if (!status && load_has(loader, LAYER_ROOT, head.name))
        status = load_matrix(loader, LAYER_ROOT, &head, 1, c.hidden, &m->head, error);
done:
    free(c.full);
    return status;
}
