/* model/softmax.c: models of softmax attention alone: Qwen3 (dense), Llama (and what has its architecture, as SmolLM2)
 * and GLM-4-0414. They have a KV cache and no recurrent state. Called by model.c.
 *
 * What differs is a row of the table: norms of query and key heads (Qwen3), norms of what is added to the residual
 * stream (GLM-4), whether gate and up are one matrix (GLM-4), and how dimensions pair up when they rotate. */
#include "model/model_int.h"

#include <math.h>
#include <string.h>

typedef struct softmax_kind {
    const char *model_type;
    bool qk_norm, post_norms, fused_mlp, interleaved;
    bool out_bias;        /* attention_bias means o_proj too */
    bool mlp_bias;        /* the field mlp_bias is there */
    double eps, part;     /* presets of rms_norm_eps and partial_rotary_factor; part 1: a head turns as a whole */
    int32_t head_dim;     /* preset; 0: an equal part of hidden_size */
    int64_t max_position; /* preset */
} softmax_kind;

static const softmax_kind kinds[] = {
    {"qwen3", .qk_norm = true, .out_bias = true, .eps = 1e-6, .part = 1, .head_dim = 128, .max_position = 32768},
    {"llama", .out_bias = true, .mlp_bias = true, .eps = 1e-6, .part = 1, .max_position = 2048},
    {"glm4", .post_norms = true, .fused_mlp = true, .interleaved = true, .eps = 1.5625e-7, .part = 0.5, .head_dim = 128,
     .max_position = 131072},
};

typedef struct softmax_config {
    const softmax_kind *kind;
    int32_t vocab, hidden, inter, layers, q_heads, kv_heads, head_dim;
    bool attention_bias, mlp_bias;
    bool interleaved; /* the rows of q and k that rotate together are neighbours */
    bool untied;      /* the checkpoint has to have a head of its own */
    double eps;
    int64_t max_position;
    rope_config rope;
} softmax_config;

/* ---- config.json ---- */

static ebb_status read_sizes(const json_place *at, softmax_config *c, ebb_error *error) {
    const struct {
        const char *key;
        int32_t hi, *value;
    } sizes[] = {
        {"vocab_size", 1 << 24, &c->vocab},         {"hidden_size", 65536, &c->hidden},
        {"intermediate_size", 1 << 20, &c->inter},  {"num_hidden_layers", 1024, &c->layers},
        {"num_attention_heads", 1024, &c->q_heads},
    };
    for (int32_t i = 0; i < COUNT(sizes); i++) {
        ebb_status status = config_int(at, sizes[i].key, JSON_NEEDED, 1, sizes[i].hi, sizes[i].value, error);
        if (status) return status;
    }
    c->kv_heads = c->q_heads;
    c->head_dim = c->kind->head_dim ? c->kind->head_dim : c->hidden / c->q_heads;
    c->eps = c->kind->eps;
    c->max_position = c->kind->max_position;
    const char *limit = "max_position_embeddings";
    ebb_status status = config_int(at, "num_key_value_heads", JSON_OPTIONAL, 1, 1024, &c->kv_heads, error);
    if (!status) status = config_int(at, "head_dim", JSON_OPTIONAL, 1, EBB_MAX_HEAD_DIM, &c->head_dim, error);
    if (!status) status = config_number(at, "rms_norm_eps", JSON_OPTIONAL, 0, 1, &c->eps, error);
    if (!status) status = json_get_int(at, limit, JSON_OPTIONAL, 1, (int64_t)1 << 40, &c->max_position, error);
    if (status) return status;
    if (!json_has(at, "head_dim") && !c->kind->head_dim && c->hidden % c->q_heads)
        return json_fail(at, error, EBB_BAD_FILE,
                         "hidden_size is %d, expected a multiple of num_attention_heads = %d, or a head_dim", c->hidden,
                         c->q_heads);
    if (c->head_dim < 2 || c->head_dim % 2 || c->head_dim > EBB_MAX_HEAD_DIM)
        return json_fail(at, error, EBB_BAD_FILE, "head_dim is %d, expected an even number of at most %d", c->head_dim,
                         EBB_MAX_HEAD_DIM);
    if (c->q_heads % c->kv_heads)
        return json_fail(at, error, EBB_BAD_FILE,
                         "num_attention_heads is %d, expected a multiple of num_key_value_heads = %d", c->q_heads,
                         c->kv_heads);
    return EBB_OK;
}

/* Where the file does not say, the tensors do. */
static ebb_status read_flags(const model_loader *loader, softmax_config *c, ebb_error *error) {
    const json_place *at = &loader->config->text;
    bool tied = true;
    c->attention_bias = load_has(loader, 0, "self_attn.q_proj.bias");
    c->mlp_bias = c->kind->mlp_bias && load_has(loader, 0, "mlp.down_proj.bias");
    c->interleaved = c->kind->interleaved;
    ebb_status status = json_get_bool(at, "attention_bias", JSON_OPTIONAL, &c->attention_bias, error);
    if (!status && c->kind->mlp_bias) status = json_get_bool(at, "mlp_bias", JSON_OPTIONAL, &c->mlp_bias, error);
    if (!status) status = json_get_bool(at, "rope_interleave", JSON_OPTIONAL, &c->interleaved, error);
    if (!status) status = json_get_bool(at, "tie_word_embeddings", JSON_OPTIONAL, &tied, error);
    c->untied = !tied;
    return status;
}

static ebb_status refuse_windows(const json_place *at, ebb_error *error) {
    json_place list, item;
    bool sliding = false;
    char shown[64];
    ebb_status status = json_get_bool(at, "use_sliding_window", JSON_OPTIONAL, &sliding, error);
    if (status) return status;
    if (sliding)
        return json_fail(at, error, EBB_UNSUPPORTED, "has use_sliding_window true, only full attention is served");
    if (!json_has(at, "layer_types")) return EBB_OK;
    if ((status = json_get_array(at, "layer_types", JSON_NEEDED, &list, error))) return status;
    for (size_t i = 0; i < json_array_size(list.value); i++) {
        json_item(&list, i, &item);
        const char *type = json_string_value(item.value);
        if (!type) return json_fail(&item, error, EBB_BAD_FILE, "is not a string");
        if (strcmp(type, "full_attention") != 0)
            return json_fail(&item, error, EBB_UNSUPPORTED, "is %s, only full_attention is served",
                             json_shown(type, shown));
    }
    return EBB_OK;
}

/* What would make another model of it. */
static ebb_status refuse_variants(const json_place *root, const json_place *at, ebb_error *error) {
    char shown[64];
    const char *act = "silu";
    ebb_status status = json_get_text(at, "hidden_act", JSON_OPTIONAL, &act, error);
    if (status) return status;
    if (json_has(at, "quantization_config") || json_has(root, "quantization_config"))
        return json_fail(at, error, EBB_UNSUPPORTED,
                         "has a quantization_config: only BF16, F16 and F32 weights are served");
    if (strcmp(act, "silu") != 0)
        return json_fail(at, error, EBB_UNSUPPORTED, "has hidden_act %s, only silu is served", json_shown(act, shown));
    return refuse_windows(at, error);
}

static ebb_status read_fields(const model_loader *loader, softmax_config *c, ebb_error *error) {
    const config_files *files = loader->config;
    for (int32_t i = 0; i < COUNT(kinds); i++)
        if (!strcmp(kinds[i].model_type, files->model_type)) c->kind = &kinds[i];
    c->rope = (rope_config){.theta = 10000, .part = c->kind->part, .llama3 = true};
    ebb_status status = refuse_variants(&files->root, &files->text, error);
    if (!status) status = read_sizes(&files->text, c, error);
    if (!status) status = read_flags(loader, c, error);
    if (!status) status = rope_read(&files->text, c->head_dim, &c->rope, error);
    if (!status && c->kind->part == 1 && c->rope.rotary != c->head_dim)
        status = json_fail(&files->text, error, EBB_UNSUPPORTED,
                           "has partial_rotary_factor %g, only 1 is served for model_type %s", c->rope.part,
                           c->kind->model_type);
    return status;
}

/* ---- tensors ---- */

/* Biases one after another, as the rows of the stacked weight are. */
static ebb_status load_bias(model_loader *loader, int32_t layer, const matrix_part *parts, int32_t n_parts,
                            const float **bias, ebb_error *error) {
    int64_t n = 0;
    for (int32_t i = 0; i < n_parts; i++) n += parts[i].n;
    float *to = model_floats_new(loader->model, n);
    if (!to) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the biases of layer %d", layer);
    *bias = to;
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < n_parts && !status; to += parts[i].n, i++)
        status = load_floats_to(loader, layer, parts[i].name, 1, &parts[i].n, 0, to, error);
    return status;
}

/* Old Llama checkpoints hold the frequencies of each layer; they are those of config.json. */
static ebb_status skip_frequencies(model_loader *loader, const softmax_config *c, int32_t i, ebb_error *error) {
    static const char name[] = "self_attn.rotary_emb.inv_freq";
    const st_tensor *unused;
    if (!load_has(loader, i, name)) return EBB_OK;
    return load_raw(loader, i, name, 1, (int64_t[]){c->rope.rotary / 2}, &unused, error);
}

static ebb_status load_attention(model_loader *loader, const softmax_config *c, const float *inv_freq, int32_t i,
                                 ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    const int64_t dim = c->head_dim, q = c->q_heads * dim, kv = c->kv_heads * dim;
    loader->model->kv_layers[l->store] =
        (ebb_kv_layer){.q_heads = c->q_heads,
                       .heads = c->kv_heads,
                       .parts = 2,
                       .part = {{(int16_t)dim, EBB_ROLE_K}, {(int16_t)dim, EBB_ROLE_V}},
                       .scale = (float)(1.0 / sqrt((double)dim))};
    const matrix_part in[] = {
        {"self_attn.q_proj.weight", q}, {"self_attn.k_proj.weight", kv}, {"self_attn.v_proj.weight", kv}};
    const matrix_part in_bias[] = {
        {"self_attn.q_proj.bias", q}, {"self_attn.k_proj.bias", kv}, {"self_attn.v_proj.bias", kv}};
    const matrix_part out = {"self_attn.o_proj.weight", c->hidden}, out_bias = {"self_attn.o_proj.bias", c->hidden};
    l->rope =
        (ebb_rope){.eps = (float)c->eps, .rotary = c->rope.rotary, .inv_freq = inv_freq, .interleaved = c->interleaved};
    ebb_status status = load_matrix(loader, i, in, COUNT(in), c->hidden, &l->in, error);
    if (!status) status = load_matrix(loader, i, &out, 1, q, &l->out, error);
    if (!status && c->attention_bias) status = load_bias(loader, i, in_bias, COUNT(in_bias), &l->in_bias, error);
    if (!status && c->attention_bias && c->kind->out_bias)
        status = load_bias(loader, i, &out_bias, 1, &l->out_bias, error);
    if (!status && c->kind->qk_norm)
        status = load_floats(loader, i, "self_attn.q_norm.weight", 1, &dim, 0, &l->rope.q_norm, error);
    if (!status && c->kind->qk_norm)
        status = load_floats(loader, i, "self_attn.k_norm.weight", 1, &dim, 0, &l->rope.k_norm, error);
    if (!status) status = skip_frequencies(loader, c, i, error);
    return status;
}

static ebb_status load_mlp(model_loader *loader, const softmax_config *c, int32_t i, ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    const matrix_part gate_up[] = {{"mlp.gate_proj.weight", c->inter}, {"mlp.up_proj.weight", c->inter}};
    const matrix_part fused = {"mlp.gate_up_proj.weight", 2 * (int64_t)c->inter}; /* gate first */
    const matrix_part down = {"mlp.down_proj.weight", c->hidden}, down_bias = {"mlp.down_proj.bias", c->hidden};
    const matrix_part biases[] = {{"mlp.gate_proj.bias", c->inter}, {"mlp.up_proj.bias", c->inter}};
    ebb_status status = c->kind->fused_mlp
                            ? load_matrix(loader, i, &fused, 1, c->hidden, &l->gate_up, error)
                            : load_matrix(loader, i, gate_up, COUNT(gate_up), c->hidden, &l->gate_up, error);
    if (!status) status = load_matrix(loader, i, &down, 1, c->inter, &l->down, error);
    if (!status && c->mlp_bias) status = load_bias(loader, i, biases, COUNT(biases), &l->gate_up_bias, error);
    if (!status && c->mlp_bias) status = load_bias(loader, i, &down_bias, 1, &l->down_bias, error);
    return status;
}

/* post_attention_layernorm is the norm before the MLP in all three; GLM-4's names of the other two say where they are.
 */
static ebb_status load_norms(model_loader *loader, const softmax_config *c, int32_t i, ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    const struct {
        const char *name;
        const float **norm;
    } norms[] = {{"input_layernorm.weight", &l->mixer_norm},
                 {"post_attention_layernorm.weight", &l->mlp_norm},
                 {"post_self_attn_layernorm.weight", &l->mixer_post},
                 {"post_mlp_layernorm.weight", &l->mlp_post}};
    ebb_status status = EBB_OK;
    for (int32_t n = 0; n < (c->kind->post_norms ? 4 : 2) && !status; n++)
        status = load_floats(loader, i, norms[n].name, 1, (int64_t[]){c->hidden}, 0, norms[n].norm, error);
    return status;
}

static ebb_status load_layer(model_loader *loader, const softmax_config *c, const float *inv_freq, int32_t i,
                             ebb_error *error) {
    loader->model->layers[i].mixer = MIXER_ATTENTION;
    loader->model->layers[i].store = i;
    ebb_status status = load_norms(loader, c, i, error);
    if (!status) status = load_attention(loader, c, inv_freq, i, error);
    if (!status) status = load_mlp(loader, c, i, error);
    return status;
}

static ebb_status load_tensors(model_loader *loader, const softmax_config *c, ebb_error *error) {
    ebb_model *m = loader->model;
    const matrix_part embedding = {"embed_tokens.weight", c->vocab}, head = {"lm_head.weight", c->vocab};
    const float *inv_freq = NULL;
    ebb_status status = load_matrix(loader, LAYER_NONE, &embedding, 1, c->hidden, &m->embedding, error);
    if (!status) status = rope_frequencies(loader, &c->rope, &inv_freq, error);
    for (int32_t i = 0; !status && i < c->layers; i++) status = load_layer(loader, c, inv_freq, i, error);
    if (!status)
        status = load_floats(loader, LAYER_NONE, "norm.weight", 1, (int64_t[]){c->hidden}, 0, &m->final_norm, error);
    if (!status && (c->untied || load_has(loader, LAYER_ROOT, head.name)))
        status = load_matrix(loader, LAYER_ROOT, &head, 1, c->hidden, &m->head, error);
    return status;
}

ebb_status softmax_load(model_loader *loader, ebb_error *error) {
    ebb_model *m = loader->model;
    softmax_config c = {0};
    ebb_status status = read_fields(loader, &c, error);
    if (!status) status = model_layers_new(m, c.layers, 0, error);
    if (status) return status;
    m->info.vocab = c.vocab;
    m->info.hidden = c.hidden;
    m->info.max_position = c.max_position;
    m->intermediate = c.inter;
    m->eps = (float)c.eps;
    return load_tensors(loader, &c, error);
}
