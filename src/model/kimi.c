/* model/kimi.c: Kimi-Linear: Kimi Delta Attention (KDA) layers with every few layers a latent attention (MLA) without
 * positions; MLPs in the first layers, mixtures of experts in the others. Tensors have Moonshot's names. Called by
 * model.c. */
#include "model/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct kimi_config {
    int32_t vocab, hidden, inter, layers;
    int32_t q_heads, rank, nope, rope, value_dim; /* MLA: dims of the latent, of a head's two key parts, of its value */
    int32_t heads, head_dim, conv;                /* KDA */
    int32_t dense, freq; /* layers before it have no experts; of the others every freq-th has, those that it divides */
    moe_config moe;      /* router.experts 0: none */
    double eps;
    int64_t max_position;
} kimi_config;

/* Moonshot's code leaves the norm of the latent at its own preset, whatever rms_norm_eps is. */
static const float latent_eps = 1e-6f;

/* ---- config.json ---- */

typedef struct size_field {
    const char *key;
    int32_t hi, *value;
} size_field;

static ebb_status read_ints(const json_place *at, const size_field *fields, int32_t n, ebb_error *error) {
    for (int32_t i = 0; i < n; i++) {
        ebb_status status = config_int(at, fields[i].key, JSON_NEEDED, 1, fields[i].hi, fields[i].value, error);
        if (status) return status;
    }
    return EBB_OK;
}

static ebb_status read_sizes(const json_place *at, const json_place *linear, kimi_config *c, ebb_error *error) {
    const size_field sizes[] = {
        {"vocab_size", 1 << 24, &c->vocab},         {"hidden_size", 65536, &c->hidden},
        {"intermediate_size", 1 << 20, &c->inter},  {"num_hidden_layers", 1024, &c->layers},
        {"num_attention_heads", 1024, &c->q_heads}, {"kv_lora_rank", EBB_MAX_HEAD_DIM, &c->rank},
        {"qk_nope_head_dim", 1024, &c->nope},       {"qk_rope_head_dim", EBB_MAX_HEAD_DIM, &c->rope},
        {"v_head_dim", 1024, &c->value_dim}};
    const size_field kda[] = {{"num_heads", 1024, &c->heads},
                              {"head_dim", 512, &c->head_dim},
                              {"short_conv_kernel_size", EBB_MAX_CONV, &c->conv}};
    ebb_status status = read_ints(at, sizes, COUNT(sizes), error);
    if (!status) status = read_ints(linear, kda, COUNT(kda), error);
    if (status) return status;
    int32_t kv_heads = c->q_heads;
    c->eps = 1e-6;
    c->max_position = 32768;
    status = config_int(at, "num_key_value_heads", JSON_OPTIONAL, 1, 1024, &kv_heads, error);
    if (!status) status = config_number(at, "rms_norm_eps", JSON_OPTIONAL, 0, 1, &c->eps, error);
    const char *limit = json_has(at, "max_position_embeddings") ? "max_position_embeddings" : "model_max_length";
    if (!status) status = json_get_int(at, limit, JSON_OPTIONAL, 1, (int64_t)1 << 40, &c->max_position, error);
    if (!status && kv_heads != c->q_heads)
        status = json_fail(at, error, EBB_BAD_FILE, "num_key_value_heads is %d, expected num_attention_heads = %d",
                           kv_heads, c->q_heads);
    return status;
}

static bool has_experts(const kimi_config *c, int32_t layer) {
    return c->moe.router.experts && layer >= c->dense && layer % c->freq == 0;
}

static ebb_status read_router(const json_place *at, kimi_config *c, ebb_error *error) {
    ebb_router *r = &c->moe.router;
    int32_t shared = 0;
    double scale = 1;
    char shown[64];
    const char *scores = "sigmoid";
    const size_field sizes[] = {{"num_experts_per_token", 65536, &r->used},
                                {"moe_intermediate_size", 1 << 20, &c->moe.inter}};
    ebb_status status = read_ints(at, sizes, COUNT(sizes), error);
    if (!status) status = config_int(at, "num_shared_experts", JSON_OPTIONAL, 0, 1024, &shared, error);
    if (!status) status = config_int(at, "num_expert_group", JSON_OPTIONAL, 1, 65536, &r->groups, error);
    if (!status) status = config_int(at, "topk_group", JSON_OPTIONAL, 1, 65536, &r->top_groups, error);
    if (!status) status = config_number(at, "routed_scaling_factor", JSON_OPTIONAL, 0, 1e6, &scale, error);
    if (!status) status = json_get_bool(at, "moe_renormalize", JSON_OPTIONAL, &r->normalize, error);
    if (!status) status = json_get_text(at, "moe_router_activation_func", JSON_OPTIONAL, &scores, error);
    if (status) return status;
    if (strcmp(scores, "sigmoid") != 0)
        return json_fail(at, error, EBB_UNSUPPORTED, "has moe_router_activation_func %s, only sigmoid is served",
                         json_shown(scores, shown));
    r->scale = (float)scale;
    if ((int64_t)shared * c->moe.inter > 1 << 20)
        return json_fail(at, error, EBB_BAD_FILE, "has %d shared experts of %d, expected at most %d together", shared,
                         c->moe.inter, 1 << 20);
    c->moe.shared_inter = shared * c->moe.inter;
    return moe_check(at, &c->moe, error);
}

/* Shared experts are one MLP as wide as all of them. Fields of the router are read where a layer has one. */
static ebb_status read_experts(const json_place *at, kimi_config *c, ebb_error *error) {
    static const moe_config names = {
        .router = {.groups = 1, .top_groups = 1, .sigmoid = true, .normalize = true, .scale = 1},
        .logits = "block_sparse_moe.gate.weight",
        .bias = "block_sparse_moe.gate.e_score_correction_bias",
        .experts = "block_sparse_moe.experts",
        .gate = "w1",
        .up = "w3",
        .down = "w2",
        .shared = "block_sparse_moe.shared_experts"};
    bool any = false;
    c->moe = names;
    c->freq = 1;
    ebb_status status = config_int(at, "num_experts", JSON_OPTIONAL, 0, 65536, &c->moe.router.experts, error);
    if (!status) status = config_int(at, "first_k_dense_replace", JSON_OPTIONAL, 0, 1 << 20, &c->dense, error);
    if (!status) status = config_int(at, "moe_layer_freq", JSON_OPTIONAL, 1, 1 << 20, &c->freq, error);
    for (int32_t i = 0; i < c->layers && !status; i++) any = any || has_experts(c, i);
    return any ? read_router(at, c, error) : status;
}

/* What would make another model of it. */
static ebb_status refuse_variants(const json_place *root, const json_place *at, const json_place *linear,
                                  ebb_error *error) {
    char shown[64];
    bool nope = false;
    const char *act = "silu";
    ebb_status status = json_get_text(at, "hidden_act", JSON_OPTIONAL, &act, error);
    if (!status) status = json_get_bool(at, "mla_use_nope", JSON_NEEDED, &nope, error);
    if (status) return status;
    if (json_has(at, "quantization_config") || json_has(root, "quantization_config"))
        return json_fail(at, error, EBB_UNSUPPORTED,
                         "has a quantization_config: only BF16, F16 and F32 weights are served");
    if (strcmp(act, "silu") != 0)
        return json_fail(at, error, EBB_UNSUPPORTED, "has hidden_act %s, only silu is served", json_shown(act, shown));
    if (!nope)
        return json_fail(at, error, EBB_UNSUPPORTED,
                         "has mla_use_nope false, only true (no rotation in MLA) is served");
    if (json_has(at, "q_lora_rank"))
        return json_fail(at, error, EBB_UNSUPPORTED, "has a q_lora_rank, only null (a full q_proj) is served");
    if (json_has(linear, "gate_lower_bound"))
        return json_fail(linear, error, EBB_UNSUPPORTED, "has a gate_lower_bound, only the softplus decay is served");
    return EBB_OK;
}

/* Marks the layers of one list, which counts from 1, as `kind`. */
static ebb_status read_layer_list(const json_place *linear, const char *key, int8_t kind, int32_t layers, int8_t *kinds,
                                  ebb_error *error) {
    json_place list, item;
    ebb_status status = json_get_array(linear, key, JSON_NEEDED, &list, error);
    if (status) return status;
    for (size_t i = 0; i < json_array_size(list.value); i++) {
        json_item(&list, i, &item);
        if (!json_is_integer(item.value))
            return json_fail(&item, error, EBB_BAD_FILE, "is not a whole number, expected a layer, 1 to %d", layers);
        json_int_t layer = json_integer_value(item.value);
        if (layer < 1 || layer > layers)
            return json_fail(&item, error, EBB_BAD_FILE, "is %lld, expected a layer, 1 to num_hidden_layers = %d",
                             (long long)layer, layers);
        if (kinds[layer - 1])
            return json_fail(&item, error, EBB_BAD_FILE,
                             "is %lld again, expected each layer once in kda_layers and full_attn_layers together",
                             (long long)layer);
        kinds[layer - 1] = kind;
    }
    return EBB_OK;
}

enum { KIND_KDA = 1, KIND_MLA };

static ebb_status read_layer_kinds(const json_place *linear, int32_t layers, int8_t *kinds, ebb_error *error) {
    ebb_status status = read_layer_list(linear, "kda_layers", KIND_KDA, layers, kinds, error);
    if (!status) status = read_layer_list(linear, "full_attn_layers", KIND_MLA, layers, kinds, error);
    for (int32_t i = 0; !status && i < layers; i++)
        if (!kinds[i])
            status = json_fail(linear, error, EBB_BAD_FILE,
                               "names layer %d neither in kda_layers nor in full_attn_layers, expected 1 to %d in one",
                               i + 1, layers);
    return status;
}

/* ---- tensors ---- */

/* The convolutions of q, k and v, one after another as the channels are. */
static ebb_status load_conv(model_loader *loader, const kimi_config *c, int32_t i, const float **conv,
                            ebb_error *error) {
    static const char *const names[] = {"self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight",
                                        "self_attn.v_conv1d.weight"};
    int64_t channels = (int64_t)c->heads * c->head_dim;
    float *taps = model_floats_new(loader->model, COUNT(names) * channels * c->conv);
    if (!taps) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the convolution of layer %d", i);
    *conv = taps;
    for (int32_t j = 0; j < COUNT(names); j++, taps += channels * c->conv) {
        const st_tensor *t = load_find(loader, i, names[j]);
        const int64_t flat[] = {channels, c->conv}, file[] = {channels, 1, c->conv};
        const bool is_flat = t && t->dims == 2;
        ebb_status status = load_floats_to(loader, i, names[j], is_flat ? 2 : 3, is_flat ? flat : file, 0, taps, error);
        if (status) return status;
    }
    return EBB_OK;
}

static ebb_status load_a_log(model_loader *loader, const kimi_config *c, int32_t i, const float **a_log,
                             ebb_error *error) {
    const st_tensor *t = load_find(loader, i, "self_attn.A_log");
    const int64_t flat[] = {c->heads}, file[] = {1, 1, c->heads, 1};
    const bool is_flat = t && t->dims == 1;
    return load_floats(loader, i, "self_attn.A_log", is_flat ? 1 : 4, is_flat ? flat : file, 0, a_log, error);
}

static ebb_status load_kda(model_loader *loader, const kimi_config *c, int32_t i, ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    loader->model->state_layers[l->store] = (ebb_state_layer){.kind = EBB_KDA,
                                                              .key_heads = c->heads,
                                                              .heads = c->heads,
                                                              .key_dim = c->head_dim,
                                                              .value_dim = c->head_dim,
                                                              .conv_width = c->conv,
                                                              .index = l->store};
    int64_t dim = c->head_dim, wide = c->heads * dim;
    const matrix_part in[] = {{"self_attn.q_proj.weight", wide},  {"self_attn.k_proj.weight", wide},
                              {"self_attn.v_proj.weight", wide},  {"self_attn.b_proj.weight", c->heads},
                              {"self_attn.f_a_proj.weight", dim}, {"self_attn.g_a_proj.weight", dim}};
    const matrix_part f_b = {"self_attn.f_b_proj.weight", wide}, g_b = {"self_attn.g_b_proj.weight", wide};
    const matrix_part out = {"self_attn.o_proj.weight", c->hidden};
    l->delta.eps = (float)c->eps;
    l->delta.gate = EBB_GATE_SIGMOID;
    ebb_status status = load_matrix(loader, i, in, COUNT(in), c->hidden, &l->in, error);
    if (!status) status = load_matrix(loader, i, &f_b, 1, dim, &l->decay, error);
    if (!status) status = load_matrix(loader, i, &g_b, 1, dim, &l->gate, error);
    if (!status) status = load_matrix(loader, i, &out, 1, wide, &l->out, error);
    if (!status) status = load_conv(loader, c, i, &l->delta.conv, error);
    if (!status) status = load_a_log(loader, c, i, &l->delta.a_log, error);
    if (!status) status = load_floats(loader, i, "self_attn.dt_bias", 1, &wide, 0, &l->delta.dt_bias, error);
    if (!status) status = load_floats(loader, i, "self_attn.o_norm.weight", 1, &dim, 0, &l->delta.out_norm, error);
    return status;
}

/* Rows [n][k] of numbers of `bytes` each, turned to [k][n]. */
static void turn(const uint8_t *from, int64_t n, int64_t k, size_t bytes, uint8_t *to) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++, from += bytes) memcpy(to + (size_t)(j * n + i) * bytes, from, bytes);
}

/* W_uk^T [rank][nope] and W_uv [value_dim][rank] of head `h`, as weights. */
static ebb_status pack_latent_head(ebb_model *m, const kimi_config *c, model_layer *l, int32_t h,
                                   const ebb_weight_part *absorb, const ebb_weight_part *expand, ebb_error *error) {
    ebb_status status = ebb_weight_pack(m->device, absorb, 1, c->nope, &l->absorb[h], error);
    if (!status) status = ebb_weight_pack(m->device, expand, 1, c->rank, &l->expand[h], error);
    if (!status) m->info.weight_bytes += l->absorb[h].bytes + l->expand[h].bytes;
    return status;
}

/* kv_b_proj has, head by head, W_uk [nope][rank] and W_uv [value_dim][rank]. */
static ebb_status load_joint_heads(model_loader *loader, const kimi_config *c, int32_t i, ebb_error *error) {
    const int64_t per_head = c->nope + c->value_dim, rank = c->rank;
    const st_tensor *t;
    ebb_status status =
        load_raw(loader, i, "self_attn.kv_b_proj.weight", 2, (int64_t[]){c->q_heads * per_head, rank}, &t, error);
    if (status) return status;
    const size_t number = ebb_type_bytes((ebb_type)t->type);
    if (!number)
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "%s: tensor %s has type %s, whose blocks cannot be turned; F32, F16 or BF16 is expected",
                        t->file, t->name, t->dtype);
    uint8_t *turned = malloc((size_t)(c->nope * rank) * number);
    if (!turned) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the heads of layer %d", i);
    for (int32_t h = 0; h < c->q_heads && !status; h++) {
        const uint8_t *uk = t->data + (size_t)(h * per_head * rank) * number;
        turn(uk, c->nope, rank, number, turned);
        const ebb_weight_part absorb = {turned, t->type, rank};
        const ebb_weight_part expand = {uk + (size_t)(c->nope * rank) * number, t->type, c->value_dim};
        status = pack_latent_head(loader->model, c, &loader->model->layers[i], h, &absorb, &expand, error);
    }
    free(turned);
    return status;
}

/* The same in two tensors, W_uk of each head turned already. */
static ebb_status load_split_heads(model_loader *loader, const kimi_config *c, int32_t i, ebb_error *error) {
    const st_tensor *k, *v;
    const int64_t uk[] = {c->q_heads, c->rank, c->nope}, uv[] = {c->q_heads, c->value_dim, c->rank};
    ebb_status status = load_raw(loader, i, "self_attn.k_b_proj.weight", 3, uk, &k, error);
    if (!status) status = load_raw(loader, i, "self_attn.v_b_proj.weight", 3, uv, &v, error);
    for (int32_t h = 0; h < c->q_heads && !status; h++) {
        const ebb_weight_part absorb = {k->data + (size_t)h * (k->bytes / (size_t)c->q_heads), k->type, c->rank};
        const ebb_weight_part expand = {v->data + (size_t)h * (v->bytes / (size_t)c->q_heads), v->type, c->value_dim};
        status = pack_latent_head(loader->model, c, &loader->model->layers[i], h, &absorb, &expand, error);
    }
    return status;
}

static ebb_status load_latent_heads(model_loader *loader, const kimi_config *c, int32_t i, ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    l->absorb = calloc(2 * (size_t)c->q_heads, sizeof *l->absorb);
    l->expand = l->absorb ? l->absorb + c->q_heads : NULL;
    if (!l->absorb) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the heads of layer %d", i);
    if (load_has(loader, i, "self_attn.k_b_proj.weight")) return load_split_heads(loader, c, i, error);
    return load_joint_heads(loader, c, i, error);
}

static ebb_status load_mla(model_loader *loader, const kimi_config *c, int32_t i, ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    loader->model->kv_layers[l->store] =
        (ebb_kv_layer){.q_heads = c->q_heads,
                       .heads = 1,
                       .parts = 2,
                       .part = {{(int16_t)c->rank, EBB_ROLE_K | EBB_ROLE_V}, {(int16_t)c->rope, EBB_ROLE_K}},
                       .scale = (float)(1.0 / sqrt((double)(c->nope + c->rope)))};
    const matrix_part in[] = {{"self_attn.q_proj.weight", (int64_t)c->q_heads * (c->nope + c->rope)},
                              {"self_attn.kv_a_proj_with_mqa.weight", c->rank + c->rope}};
    const matrix_part out = {"self_attn.o_proj.weight", c->hidden};
    l->latent_eps = latent_eps;
    ebb_status status = load_matrix(loader, i, in, COUNT(in), c->hidden, &l->in, error);
    if (!status) status = load_matrix(loader, i, &out, 1, (int64_t)c->q_heads * c->value_dim, &l->out, error);
    if (!status)
        status = load_floats(loader, i, "self_attn.kv_a_layernorm.weight", 1, (int64_t[]){c->rank}, 0, &l->latent_norm,
                             error);
    if (!status) status = load_latent_heads(loader, c, i, error);
    return status;
}

static ebb_status load_mlp(model_loader *loader, const kimi_config *c, int32_t i, ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    const matrix_part gate_up[] = {{"mlp.gate_proj.weight", c->inter}, {"mlp.up_proj.weight", c->inter}};
    const matrix_part down = {"mlp.down_proj.weight", c->hidden};
    ebb_status status = load_matrix(loader, i, gate_up, COUNT(gate_up), c->hidden, &l->gate_up, error);
    if (!status) status = load_matrix(loader, i, &down, 1, c->inter, &l->down, error);
    return status;
}

static ebb_status load_layer(model_loader *loader, const kimi_config *c, int32_t i, ebb_error *error) {
    model_layer *l = &loader->model->layers[i];
    const int64_t hidden = c->hidden;
    ebb_status status = load_floats(loader, i, "input_layernorm.weight", 1, &hidden, 0, &l->mixer_norm, error);
    if (!status) status = load_floats(loader, i, "post_attention_layernorm.weight", 1, &hidden, 0, &l->mlp_norm, error);
    if (!status) status = l->mixer == MIXER_DELTA ? load_kda(loader, c, i, error) : load_mla(loader, c, i, error);
    if (!status) status = has_experts(c, i) ? moe_load(loader, i, &c->moe, error) : load_mlp(loader, c, i, error);
    return status;
}

static ebb_status make_layers(ebb_model *m, const kimi_config *c, const int8_t *kinds, ebb_error *error) {
    int32_t state_layers = 0, stores[2] = {0};
    for (int32_t i = 0; i < c->layers; i++) state_layers += kinds[i] == KIND_KDA;
    ebb_status status = model_layers_new(m, c->layers, state_layers, error);
    for (int32_t i = 0; !status && i < c->layers; i++) {
        m->layers[i].mixer = kinds[i] == KIND_KDA ? MIXER_DELTA : MIXER_ATTENTION;
        m->layers[i].store = stores[kinds[i] == KIND_MLA]++;
    }
    return status;
}

static ebb_status load_tensors(model_loader *loader, const kimi_config *c, ebb_error *error) {
    ebb_model *m = loader->model;
    const matrix_part embedding = {"embed_tokens.weight", c->vocab}, head = {"lm_head.weight", c->vocab};
    ebb_status status = load_matrix(loader, LAYER_NONE, &embedding, 1, c->hidden, &m->embedding, error);
    for (int32_t i = 0; !status && i < c->layers; i++) status = load_layer(loader, c, i, error);
    if (!status)
        status = load_floats(loader, LAYER_NONE, "norm.weight", 1, (int64_t[]){c->hidden}, 0, &m->final_norm, error);
    /* Tied where the checkpoint has no head of its own. */
    if (!status && load_has(loader, LAYER_ROOT, head.name))
        status = load_matrix(loader, LAYER_ROOT, &head, 1, c->hidden, &m->head, error);
    return status;
}

static ebb_status read_fields(const config_files *files, kimi_config *c, int8_t **kinds, ebb_error *error) {
    json_place linear;
    ebb_status status = json_get_object(&files->text, "linear_attn_config", JSON_NEEDED, &linear, error);
    if (!status) status = refuse_variants(&files->root, &files->text, &linear, error);
    if (!status) status = read_sizes(&files->text, &linear, c, error);
    if (!status) status = read_experts(&files->text, c, error);
    if (status) return status;
    *kinds = calloc((size_t)c->layers, sizeof **kinds);
    if (!*kinds) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d layers", c->layers);
    return read_layer_kinds(&linear, c->layers, *kinds, error);
}

ebb_status kimi_load(model_loader *loader, ebb_error *error) {
    ebb_model *m = loader->model;
    kimi_config c = {0};
    int8_t *kinds = NULL;
    ebb_status status = read_fields(loader->config, &c, &kinds, error);
    if (status) goto done;
    if ((status = make_layers(m, &c, kinds, error))) goto done;
    m->info.vocab = c.vocab;
    m->info.hidden = c.hidden;
    m->info.max_position = c.max_position;
    m->intermediate = c.inter;
    m->eps = (float)c.eps;
    status = load_tensors(loader, &c, error);
done:
    free(kinds);
    return status;
}
