/* model/synth_gguf.c: a random checkpoint as a GGUF file, with the fields, names, shapes and transforms of llama.cpp's
 * converter: Qwen3.5 and 3.6, dense (qwen35) and with experts (qwen35moe). Rows of random weights are as random in any
 * order, so value heads need not be put into the converter's. Called by synth.c. */
#include "model/synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 32, /* the format's preset */
    MOST_DIMS = 4,
    NAME_ROOM = 64
};

/* Types as the format counts them: of values, then of tensors. */
enum { VALUE_UINT32 = 4, VALUE_INT32 = 5, VALUE_FLOAT32 = 6, VALUE_BOOL = 7, VALUE_STRING = 8, VALUE_ARRAY = 9 };

static const struct tensor_type {
    int32_t type, number, file; /* ebb_type; of a tensor; of a file whose matrices have it (general.file_type) */
} tensor_types[] = {{EBB_FP32, 0, 0}, {EBB_Q4_0, 2, 2}, {EBB_Q8_0, 8, 7}, {EBB_BF16, 30, 32}};

static const struct tensor_type *find_type(int32_t type) {
    for (int32_t i = 0; i < COUNT(tensor_types); i++)
        if (tensor_types[i].type == type) return &tensor_types[i];
    return NULL;
}

static const struct word {
    const char *name, *gguf; /* behind the layer's part, if there is one */
} words[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm.weight", "ssm_norm.weight"},
    {"linear_attn.out_proj.weight", "ssm_out.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
};

typedef struct out_tensor {
    char name[NAME_ROOM];
    int32_t dims;
    int64_t shape[MOST_DIMS]; /* rows first */
    synth_values values;      /* its name is this one's */
    size_t bytes;
} out_tensor;

typedef struct out_file {
    const ebb_outline *o;
    out_tensor *tensors;
    int64_t n;
    int32_t type; /* of matrices */
    bool experts;
    ebb_error *error;
} out_file;

/* ---- tensors ---- */

/* Behind PREFIX, and behind layers.LAYER. where there is a layer. */
static const char *tail_of(const ebb_outline *o, const outline_tensor *t) {
    const char *name = t->name;
    if (!strncmp(name, o->prefix, strlen(o->prefix))) name += strlen(o->prefix);
    for (int dots = 0; t->layer >= 0 && dots < 2; name++) dots += *name == '.';
    return name;
}

/* Matrices have the type that was asked for where whole blocks fit a row; routers, vectors and convolutions are FP32.
 */
static int32_t type_of(const out_file *f, const outline_tensor *t, const char *tail) {
    const bool router = !strcmp(tail, "mlp.gate.weight") || !strcmp(tail, "mlp.shared_expert_gate.weight");
    if (t->fill != FILL_MATRIX || router) return EBB_FP32;
    return t->shape[t->dims - 1] % ebb_type_block((ebb_type)f->type) ? EBB_BF16 : f->type;
}

static void add(out_file *f, const outline_tensor *t, const char *tail, const char *gguf) {
    out_tensor *out = &f->tensors[f->n++];
    *out = (out_tensor){.dims = t->dims};
    if (t->layer >= 0) snprintf(out->name, sizeof out->name, "blk.%d.%s", t->layer, gguf);
    else snprintf(out->name, sizeof out->name, "%s", gguf);
    memcpy(out->shape, t->shape, sizeof out->shape);
    if (t->fill == FILL_CONV) { /* [channels][1][taps] without the 1 */
        out->dims = 2;
        out->shape[1] = t->shape[2];
    }
    out->values = (synth_values){.type = type_of(f, t, tail), .fill = t->fill, .converted = true, .n = 1};
    for (int32_t d = 0; d < out->dims; d++) out->values.n *= out->shape[d];
    out->values.k = out->shape[out->dims - 1];
    out->bytes = ebb_type_row_bytes((ebb_type)out->values.type, out->values.n);
}

/* Gate and up of all experts, one matrix each in the outline, are two stacks. */
static void add_experts(out_file *f, const outline_tensor *t, const char *tail) {
    outline_tensor half = *t;
    half.shape[1] = t->shape[1] / 2;
    add(f, &half, tail, "ffn_gate_exps.weight");
    add(f, &half, tail, "ffn_up_exps.weight");
}

static ebb_status list_tensors(out_file *f) {
    f->tensors = calloc((size_t)f->o->n * 2, sizeof *f->tensors);
    if (!f->tensors) return ebb_fail(f->error, EBB_NO_MEMORY, "no memory for %lld tensors", (long long)f->o->n);
    for (int64_t i = 0; i < f->o->n; i++) {
        const outline_tensor *t = &f->o->tensors[i];
        const char *tail = tail_of(f->o, t), *gguf = NULL;
        if (!strcmp(tail, "mlp.experts.gate_up_proj")) {
            add_experts(f, t, tail);
            continue;
        }
        for (int32_t w = 0; w < COUNT(words) && !gguf; w++)
            if (!strcmp(words[w].name, tail)) gguf = words[w].gguf;
        if (!gguf) return ebb_fail(f->error, EBB_UNSUPPORTED, "tensor %s has no name in GGUF files here", t->name);
        add(f, t, tail, gguf);
    }
    for (int64_t i = 0; i < f->n; i++) f->tensors[i].values.name = f->tensors[i].name;
    return EBB_OK;
}

/* ---- the header ---- */

typedef struct header {
    synth_text text;
    const char *architecture;
    uint64_t fields;
} header;

static void put(header *h, const void *value, size_t bytes) { synth_put(&h->text, value, bytes); }
static void put_u32(header *h, uint32_t value) { put(h, &value, sizeof value); }
static void put_u64(header *h, uint64_t value) { put(h, &value, sizeof value); }
static void put_text(header *h, const char *text) {
    put_u64(h, strlen(text));
    put(h, text, strlen(text));
}

/* A name that begins with a dot is one of the architecture's. */
static void put_key(header *h, const char *key, uint32_t type) {
    char whole[96];
    snprintf(whole, sizeof whole, "%s%s", key[0] == '.' ? h->architecture : "", key);
    put_text(h, whole);
    put_u32(h, type);
    h->fields++;
}

static void put_number(header *h, const char *key, int64_t value) {
    put_key(h, key, VALUE_UINT32);
    put_u32(h, (uint32_t)value);
}

static void put_real(header *h, const char *key, double value) {
    const float single = (float)value;
    put_key(h, key, VALUE_FLOAT32);
    put(h, &single, sizeof single);
}

static void put_word(header *h, const char *key, const char *text) {
    put_key(h, key, VALUE_STRING);
    put_text(h, text);
}

static void put_array(header *h, const char *key, uint32_t type, uint64_t count) {
    put_key(h, key, VALUE_ARRAY);
    put_u32(h, type);
    put_u64(h, count);
}

/* The vocabulary: a token for each byte, the other ids unused. */
static void put_tokens(header *h, int32_t vocab) {
    enum { NORMAL = 1, UNUSED = 5 };
    char text[24];
    put_word(h, "tokenizer.ggml.model", "gpt2");
    put_word(h, "tokenizer.ggml.pre", "qwen35");
    put_array(h, "tokenizer.ggml.tokens", VALUE_STRING, (uint64_t)vocab);
    for (int32_t i = 0; i < vocab; i++) {
        if (i < SYNTH_BYTES) synth_byte_token(i, text);
        else snprintf(text, sizeof text, "[PAD%d]", i);
        put_text(h, text);
    }
    put_array(h, "tokenizer.ggml.token_type", VALUE_INT32, (uint64_t)vocab);
    for (int32_t i = 0; i < vocab; i++) put_u32(h, i < SYNTH_BYTES ? NORMAL : UNUSED);
    put_array(h, "tokenizer.ggml.merges", VALUE_STRING, 0);
}

/* Whole numbers of config.json, as they are. The outline has checked those that it uses. */
static ebb_status put_sizes(header *h, const json_place *at, bool experts, ebb_error *error) {
    static const struct {
        const char *key, *gguf;
        bool of_experts, optional;
    } rows[] = {
        {"num_hidden_layers", ".block_count", false, false},
        {"max_position_embeddings", ".context_length", false, true},
        {"hidden_size", ".embedding_length", false, false},
        {"intermediate_size", ".feed_forward_length", false, true},
        {"num_attention_heads", ".attention.head_count", false, false},
        {"num_key_value_heads", ".attention.head_count_kv", false, false},
        {"head_dim", ".attention.key_length", false, false},
        {"head_dim", ".attention.value_length", false, false},
        {"linear_conv_kernel_dim", ".ssm.conv_kernel", false, false},
        {"linear_key_head_dim", ".ssm.state_size", false, false},
        {"linear_num_key_heads", ".ssm.group_count", false, false},
        {"linear_num_value_heads", ".ssm.time_step_rank", false, false},
        {"num_experts", ".expert_count", true, false},
        {"num_experts_per_tok", ".expert_used_count", true, false},
        {"moe_intermediate_size", ".expert_feed_forward_length", true, false},
        {"shared_expert_intermediate_size", ".expert_shared_feed_forward_length", true, false},
    };
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < COUNT(rows) && !status; i++) {
        int64_t value = -1;
        if (rows[i].of_experts && !experts) continue;
        status =
            json_get_int(at, rows[i].key, rows[i].optional ? JSON_OPTIONAL : JSON_NEEDED, 0, UINT32_MAX, &value, error);
        if (!status && value >= 0) put_number(h, rows[i].gguf, value);
    }
    return status;
}

/* Which layers are recurrent, of each and by the rule that most models follow. */
static ebb_status put_layers(header *h, const ebb_outline *o, ebb_error *error) {
    int32_t interval = 4;
    ebb_status status =
        config_int(&o->config.text, "full_attention_interval", JSON_OPTIONAL, 1, 1 << 20, &interval, error);
    if (status) return status;
    put_number(h, ".full_attention_interval", interval);
    put_array(h, ".attention.recurrent_layers", VALUE_BOOL, (uint64_t)o->info.layers);
    for (int32_t i = 0; i < o->info.layers; i++) put(h, &(uint8_t){!o->attends[i]}, 1);
    return EBB_OK;
}

static ebb_status put_rope(header *h, const json_place *at, ebb_error *error) {
    static const int32_t sections[] = {11, 11, 10, 0};
    double theta = 1e7, part = 0.25, eps = 1e-6;
    int32_t dim = 0;
    json_place rope = *at;
    ebb_status status = json_get_object(at, "rope_parameters", JSON_OPTIONAL, &rope, error);
    if (!rope.value) rope = *at;
    if (!status) status = json_get_number(&rope, "rope_theta", JSON_OPTIONAL, &theta, error);
    if (!status) status = config_number(&rope, "partial_rotary_factor", JSON_OPTIONAL, 0, 1, &part, error);
    if (!status) status = config_number(at, "rms_norm_eps", JSON_OPTIONAL, 0, 1, &eps, error);
    if (!status) status = config_int(at, "head_dim", JSON_NEEDED, 1, EBB_MAX_HEAD_DIM, &dim, error);
    if (status) return status;
    put_real(h, ".attention.layer_norm_rms_epsilon", eps);
    put_real(h, ".rope.freq_base", theta);
    put_number(h, ".rope.dimension_count", (int64_t)(part * dim));
    put_array(h, ".rope.dimension_sections", VALUE_INT32, COUNT(sections));
    put(h, sections, sizeof sections);
    return EBB_OK;
}

static ebb_status put_fields(const out_file *f, header *h) {
    const ebb_state_layer *s = f->o->state;
    put_word(h, "general.architecture", h->architecture);
    put_word(h, "general.type", "model");
    put_word(h, "general.name", "random weights");
    put_number(h, "general.file_type", find_type(f->type)->file);
    put_number(h, "general.quantization_version", 2);
    if (f->o->info.state_layers) put_number(h, ".ssm.inner_size", (int64_t)s->heads * s->value_dim);
    ebb_status status = put_sizes(h, &f->o->config.text, f->experts, f->error);
    if (!status) status = put_layers(h, f->o, f->error);
    if (!status) status = put_rope(h, &f->o->config.text, f->error);
    if (!status) put_tokens(h, f->o->info.vocab);
    return status;
}

static size_t put_infos(const out_file *f, header *h) {
    size_t at = 0;
    for (int64_t i = 0; i < f->n; i++) {
        const out_tensor *t = &f->tensors[i];
        put_text(h, t->name);
        put_u32(h, (uint32_t)t->dims);
        for (int32_t d = t->dims - 1; d >= 0; d--) put_u64(h, (uint64_t)t->shape[d]);
        put_u32(h, (uint32_t)find_type(t->values.type)->number);
        put_u64(h, at);
        at = align_up(at + t->bytes, ALIGNMENT);
    }
    return at;
}

/* *data: bytes of what follows. The number of fields, at byte 16, is known last. */
static ebb_status make_header(const out_file *f, synth_text *text, size_t *data) {
    header h = {.architecture = f->experts ? "qwen35moe" : "qwen35"};
    put(&h, "GGUF", 4);
    put_u32(&h, 3);
    put_u64(&h, (uint64_t)f->n);
    put_u64(&h, 0);
    ebb_status status = put_fields(f, &h);
    *data = put_infos(f, &h);
    if (!status && h.text.failed) status = ebb_fail(f->error, EBB_NO_MEMORY, "no memory for the header of a GGUF file");
    if (!status) memcpy(h.text.data + 16, &h.fields, sizeof h.fields);
    *text = h.text;
    return status;
}

/* ---- the file ---- */

static ebb_status write_file(const out_file *f, const char *path, const ebb_synth_config *config) {
    synth_file out = {.fd = -1};
    synth_text text = {0};
    size_t data = 0;
    ebb_status status = make_header(f, &text, &data);
    if (!status) status = synth_open(&out, path, align_up(text.n, ALIGNMENT) + data, config, f->error);
    if (!status) status = synth_write(&out, text.data, text.n);
    for (int64_t i = 0; i < f->n && !status; i++) {
        status = synth_pad(&out, ALIGNMENT);
        if (!status) status = synth_tensor(&out, &f->tensors[i].values);
    }
    if (!status) status = synth_pad(&out, ALIGNMENT);
    free(text.data);
    return synth_close(&out, status);
}

ebb_status synth_gguf(const ebb_outline *o, const char *path, const ebb_synth_config *config, ebb_error *error) {
    out_file f = {.o = o,
                  .type = config->type ? config->type : EBB_BF16,
                  .experts = !strncmp(o->info.architecture, "qwen3_5_moe", 11),
                  .error = error};
    if (strncmp(o->info.architecture, "qwen3_5", 7) != 0)
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "%s: a GGUF file is made of qwen3_5 and qwen3_5_moe here, not of %s; a folder is", path,
                        o->info.architecture);
    if (f.type == EBB_FP32 || !find_type(f.type))
        return ebb_fail(error, EBB_UNSUPPORTED, "%s: weights of type %s are not made here, expected bf16, q8_0 or q4_0",
                        path, ebb_type_name((ebb_type)f.type));
    ebb_status status = list_tensors(&f);
    if (!status) status = write_file(&f, path, config);
    free(f.tensors);
    return status;
}
