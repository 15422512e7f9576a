/* model/qwen35.c: Qwen3.5 and Qwen3.6, dense text models: Gated DeltaNet layers with every few layers a gated full
 * attention. Also the text part of the checkpoints with a vision tower. Called by model.c. */
#include "model/model_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct qwen35_config {
    int32_t vocab, hidden, inter, layers;
    int32_t q_heads, kv_heads, head_dim, rotary;        /* attention layers */
    int32_t key_heads, heads, key_dim, value_dim, conv; /* GDN layers */
    bool gated;                                         /* each query head has an output gate */
    double eps, theta;
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
        {"intermediate_size", 1 << 20, &c->inter},
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

/* Fields of rope_parameters; of rope_scaling or the text config itself in older files. On text mRoPE is plain RoPE. */
static ebb_status read_rope(const json_place *at, qwen35_config *c, ebb_error *error) {
    json_place rope = *at;
    const char *type = "default";
    double part = 0.25;
    bool nested = json_has(at, "rope_parameters") || json_has(at, "rope_scaling");
    const char *key = json_has(at, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    ebb_status status = json_get_object(at, key, JSON_OPTIONAL, &rope, error);
    if (!status && nested) status = json_get_text(&rope, "type", JSON_OPTIONAL, &type, error);
    if (!status && nested) status = json_get_text(&rope, "rope_type", JSON_OPTIONAL, &type, error);
    if (status) return status;
    if (strcmp(type, "default") != 0) {
        char shown[64];
        return json_fail(&rope, error, EBB_UNSUPPORTED, "has rope_type %s, only default is served",
                         json_shown(type, shown));
    }
    const json_place *theta_at = json_has(&rope, "rope_theta") ? &rope : at;
    const json_place *part_at = json_has(&rope, "partial_rotary_factor") ? &rope : at;
    status = config_number(theta_at, "rope_theta", JSON_NEEDED, 1, 1e15, &c->theta, error);
    if (!status) status = config_number(part_at, "partial_rotary_factor", JSON_OPTIONAL, 0, 1, &part, error);
    if (status) return status;
    c->rotary = (int32_t)(c->head_dim * part);
    if (c->rotary < 2 || c->rotary % 2)
        return json_fail(part_at, error, EBB_BAD_FILE,
                         "partial_rotary_factor %g of head_dim %d is %d dimensions, expected an even number of them",
                         part, c->head_dim, c->rotary);
    return EBB_OK;
}

/* What would make another model of it. */
static ebb_status refuse_variants(const json_place *root, const json_place *at, qwen35_config *c, ebb_error *error) {
    char shown[64];
    int64_t experts = 0;
    bool bias = false;
    const char *act = "silu", *gate = "silu";
    c->gated = true;
    ebb_status status = json_get_int(at, "num_experts", JSON_OPTIONAL, 0, INT32_MAX, &experts, error);
    if (!status) status = json_get_text(at, "hidden_act", JSON_OPTIONAL, &act, error);
    if (!status) status = json_get_bool(at, "attention_bias", JSON_OPTIONAL, &bias, error);
    if (!status) status = json_get_bool(at, "attn_output_gate", JSON_OPTIONAL, &c->gated, error);
    if (!status) status = json_get_text(at, "output_gate_type", JSON_OPTIONAL, &gate, error);
    if (status) return status;
    if (experts)
        return json_fail(at, error, EBB_UNSUPPORTED,
                         "has num_experts %lld: mixture-of-experts (MoE) layers are not served", (long long)experts);
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

/* Which layers are full attention: layer_types, else every full_attention_interval-th. `full` has room for c->layers.
 */
static ebb_status read_layer_types(const json_place *at, const qwen35_config *c, bool *full, ebb_error *error) {
    json_place list, item;
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

/* ---- tensors ---- */

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
    ebb_status status = load_matrix(loader, i, in, COUNT(in), c->hidden, &l->in, error);
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
    l->rope = (ebb_rope){.eps = (float)c->eps, .rotary = c->rotary, .inv_freq = inv_freq};
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
    if (!status) status = load_mlp(loader, c, i, error);
    return status;
}

/* 1 / theta^(2i / rotary), rounded to FP32 where PyTorch rounds. */
static ebb_status make_inv_freq(ebb_model *m, const qwen35_config *c, const float **inv_freq, ebb_error *error) {
    float *f = model_floats_new(m, c->rotary / 2);
    if (!f) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the RoPE frequencies");
    for (int32_t i = 0; i < c->rotary / 2; i++) {
        float power = (float)pow(c->theta, (double)((float)(2 * i) / (float)c->rotary));
        f[i] = 1.0f / power;
    }
    *inv_freq = f;
    return EBB_OK;
}

static ebb_status make_layers(ebb_model *m, const qwen35_config *c, const bool *full, ebb_error *error) {
    int32_t state_layers = 0, stores[2] = {0};
    for (int32_t i = 0; i < c->layers; i++) state_layers += !full[i];
    ebb_status status = model_layers_new(m, c->layers, state_layers, error);
    for (int32_t i = 0; !status && i < c->layers; i++) {
        m->layers[i].mixer = full[i] ? MIXER_ATTENTION : MIXER_DELTA;
        m->layers[i].store = stores[full[i]]++;
    }
    return status;
}

static ebb_status read_fields(const config_files *files, qwen35_config *c, ebb_error *error) {
    ebb_status status = refuse_variants(&files->root, &files->text, c, error);
    if (!status) status = read_sizes(&files->text, c, error);
    if (!status) status = read_rope(&files->text, c, error);
    return status;
}

ebb_status qwen35_load(model_loader *loader, ebb_error *error) {
    ebb_model *m = loader->model;
    qwen35_config c = {0};
    bool *full = NULL;
    const float *inv_freq = NULL;
    ebb_status status = read_fields(loader->config, &c, error);
    if (status) return status;
    if (!(full = calloc((size_t)c.layers, sizeof *full))) {
        status = ebb_fail(error, EBB_NO_MEMORY, "no memory for %d layers", c.layers);
        goto done;
    }
    if ((status = read_layer_types(&loader->config->text, &c, full, error))) goto done;
    if ((status = make_layers(m, &c, full, error))) goto done;
    m->info.vocab = c.vocab;
    m->info.hidden = c.hidden;
    m->info.max_position = c.max_position;
    m->intermediate = c.inter;
    m->eps = (float)c.eps;

    const matrix_part embedding = {"embed_tokens.weight", c.vocab}, head = {"lm_head.weight", c.vocab};
    status = load_matrix(loader, LAYER_NONE, &embedding, 1, c.hidden, &m->embedding, error);
    if (!status) status = make_inv_freq(m, &c, &inv_freq, error);
    for (int32_t i = 0; !status && i < c.layers; i++) status = load_layer(loader, &c, inv_freq, i, error);
    if (!status)
        status = load_floats(loader, LAYER_NONE, "norm.weight", 1, (int64_t[]){c.hidden}, 1, &m->final_norm, error);
    /* Tied where the checkpoint has no head of its own: the flags of config.json contradict each other in released
     * files. */
    if (!status && load_has(loader, LAYER_ROOT, head.name))
        status = load_matrix(loader, LAYER_ROOT, &head, 1, c.hidden, &m->head, error);
done:
    free(full);
    return status;
}
