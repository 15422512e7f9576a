/* model/gguf_names.c: the fields and tensors of a GGUF file in the words of config.json and of Hugging Face's
 * checkpoints, which architectures read. Tensors are handed on as they lie in the file; where a converter stored them
 * differently the config says so:
 *
 *   rope_interleave       the rows of q and k that rotate together are neighbours (architecture llama), not half a head
 *                         apart
 *   rope_freqs.weight     a tensor of divisors of the RoPE frequencies, in place of Llama 3's rope_scaling
 *
 * A field of the architecture that is not known here may change the model, and is refused. Families with recurrent
 * layers are in gguf_hybrid.c. Called by model.c. */
#include "model/gguf_words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is known ---- */

static const struct architecture {
    const char *name;  /* here and, for these, as model_type */
    bool interleaved;  /* rotating pairs of q and k are neighbours although Hugging Face has them half a head apart */
    bool partial_rope; /* may rotate a part of a head */
    bool fused_up;     /* gate and up in one tensor */
} architectures[] = {
    {"llama", true, false, false},
    {"qwen3", false, false, false},
    {"glm4", false, true, true},
};

static const field_word fields[] = {
    {"context_length", "max_position_embeddings", WHOLE},
    {"embedding_length", "hidden_size", WHOLE},
    {"block_count", "num_hidden_layers", WHOLE},
    {"feed_forward_length", "intermediate_size", WHOLE},
    {"attention.head_count", "num_attention_heads", WHOLE},
    {"attention.head_count_kv", "num_key_value_heads", WHOLE},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", NUMBER},
    {"rope.freq_base", "rope_theta", NUMBER},
    {"vocab_size", NULL, CHECKED}, /* the embedding's rows count */
    {"attention.key_length", NULL, CHECKED},
    {"attention.value_length", NULL, CHECKED},
    {"attention.causal", NULL, CHECKED},
    {"rope.dimension_count", NULL, CHECKED},
    {"rope.scaling.type", NULL, CHECKED},
    {"expert_count", NULL, CHECKED},
    {"expert_used_count", NULL, CHECKED},
};

static const struct {
    const char *gguf, *name;
} root_tensors[] = {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}},
  layer_tensors[] = {
      {"attn_norm", "input_layernorm"},
      {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"},
      {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"},
      {"post_attention_norm", "post_self_attn_layernorm"},
      {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},
      {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"},
      {"post_ffw_norm", "post_mlp_layernorm"},
};

/* One of the two. */
static ebb_status find_architecture(const gguf_file *file, const struct architecture **found,
                                    const hybrid_family **hybrid, ebb_error *error) {
    gguf_text name = {0};
    char shown[64];
    ebb_status status = gguf_get_text(file, "general.architecture", JSON_NEEDED, &name, error);
    if (status) return status;
    *hybrid = find_hybrid(name);
    for (int32_t i = 0; i < COUNT(architectures); i++)
        if (gguf_is(name, architectures[i].name)) *found = &architectures[i];
    if (*found || *hybrid) return EBB_OK;
    return ebb_fail(error, EBB_UNSUPPORTED,
                    "%s: architecture %s is not served from GGUF, expected llama, qwen3, glm4, qwen3next, qwen35, "
                    "qwen35moe or kimi-linear",
                    json_file(file->path), gguf_shown(name, shown));
}

/* ---- the config ---- */

static ebb_status no_memory(const config_writer *w) {
    return ebb_fail(w->error, EBB_NO_MEMORY, "no memory for a config");
}

ebb_status put_value(const config_writer *w, json_t *object, const char *key, json_t *value) {
    return value && json_object_set_new(object, key, value) == 0 ? EBB_OK : no_memory(w);
}

ebb_status put_whole(const config_writer *w, json_t *object, const char *key, int64_t value) {
    return put_value(w, object, key, json_integer(value));
}

static ebb_status put(const config_writer *w, const char *key, json_t *value) {
    return put_value(w, w->config, key, value);
}

const char *field_key(config_writer *w, const char *name) {
    snprintf(w->key, sizeof w->key, "%s.%s", w->architecture, name);
    return w->key;
}

bool has_field(config_writer *w, const char *name) { return gguf_find(w->file, field_key(w, name)) != NULL; }

ebb_status get_whole(config_writer *w, const char *name, json_need need, int64_t *value) {
    return gguf_get_int(w->file, field_key(w, name), need, 0, INT32_MAX, value, w->error);
}

static ebb_status refuse_unknown(const config_writer *w, const field_word *words, int32_t n) {
    const size_t prefix = strlen(w->architecture) + 1;
    for (uint64_t i = 0; i < w->file->n_fields; i++) {
        gguf_text key = w->file->fields[i].key;
        char shown[64];
        if (key.n <= prefix || memcmp(key.bytes, w->architecture, prefix - 1) || key.bytes[prefix - 1] != '.') continue;
        bool known = false;
        const gguf_text name = {key.bytes + prefix, key.n - prefix};
        for (int32_t f = 0; f < n && !known; f++) known = gguf_is(name, words[f].name);
        if (!known)
            return ebb_fail(w->error, EBB_UNSUPPORTED, "%s: field %s is not known, and may change the model",
                            json_file(w->file->path), gguf_shown(key, shown));
    }
    return EBB_OK;
}

ebb_status put_fields(config_writer *w, const field_word *words, int32_t n) {
    ebb_status status = refuse_unknown(w, words, n);
    for (int32_t i = 0; i < n && !status; i++) {
        int64_t value = 0;
        double number = 0;
        if (words[i].kind == CHECKED || !has_field(w, words[i].name)) continue;
        if (words[i].kind == NUMBER) {
            status = gguf_get_number(w->file, w->key, JSON_NEEDED, &number, w->error);
            if (!status && !isfinite(number))
                status = ebb_fail(w->error, EBB_BAD_FILE, "%s: field %s is not a finite number",
                                  json_file(w->file->path), w->key);
            if (!status) status = put(w, words[i].key, json_real(number));
        } else {
            status = get_whole(w, words[i].name, JSON_NEEDED, &value);
            if (!status) status = put_whole(w, w->config, words[i].key, value);
        }
    }
    return status;
}

/* Without its key_length a head has an equal part of the embedding; without its dimension_count all of it rotates. */
ebb_status put_heads(config_writer *w, bool partial_rope) {
    int64_t hidden = 0, heads = 0, dim = 0;
    ebb_status status = get_whole(w, "embedding_length", JSON_NEEDED, &hidden);
    if (!status) status = get_whole(w, "attention.head_count", JSON_NEEDED, &heads);
    if (status) return status;
    if (heads && hidden % heads == 0) dim = hidden / heads;
    status = get_whole(w, "attention.key_length", dim ? JSON_OPTIONAL : JSON_NEEDED, &dim);
    int64_t value = dim, rotary = dim;
    if (!status) status = get_whole(w, "attention.value_length", JSON_OPTIONAL, &value);
    if (!status) status = get_whole(w, "rope.dimension_count", JSON_OPTIONAL, &rotary);
    if (status) return status;
    if (dim < 1) return ebb_fail(w->error, EBB_BAD_FILE, "%s: heads of 0 dimensions", json_file(w->file->path));
    if (value != dim)
        return ebb_fail(w->error, EBB_UNSUPPORTED,
                        "%s: field %s is %" PRId64 ", only that of keys, %" PRId64 ", is served",
                        json_file(w->file->path), field_key(w, "attention.value_length"), value, dim);
    if (rotary < 1 || rotary > dim || (rotary != dim && !partial_rope))
        return ebb_fail(w->error, EBB_UNSUPPORTED,
                        "%s: field %s is %" PRId64 ", expected the dimensions of a head, %" PRId64,
                        json_file(w->file->path), field_key(w, "rope.dimension_count"), rotary, dim);
    double part = (double)rotary / (double)dim;
    if ((int64_t)((double)dim * part) < rotary) part = nextafter(part, 2.0); /* read as whole(dim * part) */
    status = put_whole(w, w->config, "head_dim", dim);
    if (!status && partial_rope) status = put(w, "partial_rotary_factor", json_real(part));
    return status;
}

ebb_status refuse_masks(config_writer *w) {
    gguf_text scaling = {"none", 4};
    bool causal = true;
    char shown[64];
    ebb_status status = gguf_get_bool(w->file, field_key(w, "attention.causal"), JSON_OPTIONAL, &causal, w->error);
    if (!status && !causal)
        return ebb_fail(w->error, EBB_UNSUPPORTED, "%s: field %s is false, only causal attention is served",
                        json_file(w->file->path), w->key);
    if (!status) status = gguf_get_text(w->file, field_key(w, "rope.scaling.type"), JSON_OPTIONAL, &scaling, w->error);
    if (!status && !gguf_is(scaling, "none"))
        status = ebb_fail(w->error, EBB_UNSUPPORTED, "%s: field %s is %s, only none is served",
                          json_file(w->file->path), w->key, gguf_shown(scaling, shown));
    return status;
}

static ebb_status refuse_experts(config_writer *w) {
    int64_t experts = 0;
    ebb_status status = get_whole(w, "expert_count", JSON_OPTIONAL, &experts);
    if (!status && experts)
        status = ebb_fail(w->error, EBB_UNSUPPORTED,
                          "%s: field %s is %" PRId64
                          ": mixture-of-experts (MoE) layers are not served for this architecture",
                          json_file(w->file->path), w->key, experts);
    return status;
}

const gguf_tensor *find_tensor(const gguf_file *file, const char *name) {
    for (uint64_t i = 0; i < file->n_tensors; i++)
        if (!strcmp(file->tensors[i].name, name)) return &file->tensors[i];
    return NULL;
}

ebb_status put_vocab(config_writer *w) {
    const gguf_tensor *embedding = find_tensor(w->file, "token_embd.weight");
    if (!embedding || embedding->dims != 2)
        return ebb_fail(w->error, EBB_BAD_FILE, "%s: there is no matrix token_embd.weight", json_file(w->file->path));
    int64_t vocab = embedding->shape[0];
    ebb_status status = get_whole(w, "vocab_size", JSON_OPTIONAL, &vocab);
    if (!status && vocab != embedding->shape[0])
        status =
            ebb_fail(w->error, EBB_BAD_FILE, "%s: field %s is %" PRId64 ", but token_embd.weight has %" PRId64 " rows",
                     json_file(w->file->path), w->key, vocab, embedding->shape[0]);
    if (!status) status = put_whole(w, w->config, "vocab_size", vocab);
    if (!status) status = put(w, "tie_word_embeddings", json_boolean(!find_tensor(w->file, "output.weight")));
    return status;
}

static ebb_status put_softmax(config_writer *w, const struct architecture *a) {
    const bool bias = find_tensor(w->file, "blk.0.attn_q.bias") != NULL;
    const bool mlp_bias = find_tensor(w->file, "blk.0.ffn_down.bias") != NULL;
    ebb_status status = put(w, "model_type", json_string(a->name));
    if (!status) status = put(w, "rope_theta", json_real(10000.0)); /* the format's preset */
    if (!status) status = refuse_experts(w);
    if (!status) status = put_fields(w, fields, COUNT(fields));
    if (!status) status = put_heads(w, a->partial_rope);
    if (!status && a->interleaved) status = put(w, "rope_interleave", json_true());
    if (!status) status = put(w, "attention_bias", json_boolean(bias));
    if (!status) status = put(w, "mlp_bias", json_boolean(mlp_bias));
    return status;
}

/* End of text, of turn, of message: each ends an answer. */
static ebb_status put_stops(const config_writer *w) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    ebb_status status = put(w, "eos_token_id", list);
    for (int32_t i = 0; i < COUNT(keys) && !status; i++) {
        int64_t id = -1;
        status = gguf_get_int(w->file, keys[i], JSON_OPTIONAL, 0, INT32_MAX, &id, w->error);
        if (!status && id >= 0 && json_array_append_new(list, json_integer(id))) status = no_memory(w);
    }
    return status;
}

/* As generation_config.json says it; the file gives a temperature where it samples. */
static ebb_status put_sampling(const config_writer *w) {
    static const struct {
        const char *field, *key;
    } numbers[] = {{"general.sampling.temp", "temperature"},
                   {"general.sampling.top_p", "top_p"},
                   {"general.sampling.min_p", "min_p"},
                   {"general.sampling.penalty_repeat", "repetition_penalty"}};
    int64_t top_k = 0;
    json_t *object = json_object();
    ebb_status status = put(w, "generation_config", object);
    for (int32_t i = 0; i < COUNT(numbers) && !status; i++) {
        double number = 0;
        if (!gguf_find(w->file, numbers[i].field)) continue;
        status = gguf_get_number(w->file, numbers[i].field, JSON_NEEDED, &number, w->error);
        if (!status && !isfinite(number))
            status = ebb_fail(w->error, EBB_BAD_FILE, "%s: field %s is not a finite number", json_file(w->file->path),
                              numbers[i].field);
        if (!status) status = put_value(w, object, numbers[i].key, json_real(number));
    }
    if (!status)
        status = gguf_get_int(w->file, "general.sampling.top_k", JSON_OPTIONAL, 0, INT32_MAX, &top_k, w->error);
    if (!status) status = put_whole(w, object, "top_k", top_k);
    return status;
}

ebb_status gguf_config(const gguf_file *file, json_t **config, ebb_error *error) {
    const struct architecture *softmax = NULL;
    const hybrid_family *hybrid = NULL;
    config_writer w = {.file = file, .config = json_object(), .error = error};
    *config = NULL;
    ebb_status status = w.config ? find_architecture(file, &softmax, &hybrid, error) : no_memory(&w);
    if (!status) w.architecture = hybrid ? hybrid->name : softmax->name;
    if (!status) status = put(&w, "hidden_act", json_string("silu"));
    if (!status) status = refuse_masks(&w);
    if (!status) status = hybrid ? hybrid->put(hybrid, &w) : put_softmax(&w, softmax);
    if (!status) status = put_vocab(&w);
    if (!status) status = put_stops(&w);
    if (!status) status = put_sampling(&w);
    if (status) json_decref(w.config);
    else *config = w.config;
    return status;
}

/* ---- tensors ---- */

bool layer_of(const char *name, int64_t *layer, const char **rest) {
    if (strncmp(name, "blk.", 4) != 0) return false;
    const size_t digits = strspn(name + 4, "0123456789");
    if (digits < 1 || digits > 9 || (digits > 1 && name[4] == '0') || name[4 + digits] != '.') return false;
    *layer = strtoll(name + 4, NULL, 10);
    *rest = name + 4 + digits + 1;
    return true;
}

/* Names that are not known stay as they are: an architecture that does not ask for one refuses it. */
static void translate(const struct architecture *a, const char *gguf, char name[static NAME_ROOM]) {
    const char *rest = gguf, *end = strrchr(gguf, '.');
    int64_t layer = -1;
    const bool in_layer = layer_of(gguf, &layer, &rest);
    const size_t n = end && end > rest ? (size_t)(end - rest) : 0;
    snprintf(name, NAME_ROOM, "%s", gguf);
    for (int32_t i = 0; !in_layer && i < COUNT(root_tensors); i++)
        if (strlen(root_tensors[i].gguf) == n && !memcmp(rest, root_tensors[i].gguf, n))
            snprintf(name, NAME_ROOM, "%s%s", root_tensors[i].name, end);
    for (int32_t i = 0; in_layer && i < COUNT(layer_tensors); i++)
        if (strlen(layer_tensors[i].gguf) == n && !memcmp(rest, layer_tensors[i].gguf, n)) {
            const bool fused = a->fused_up && !strcmp(layer_tensors[i].gguf, "ffn_up");
            snprintf(name, NAME_ROOM, "model.layers.%" PRId64 ".%s%s", layer,
                     fused ? "mlp.gate_up_proj" : layer_tensors[i].name, end);
        }
}

st_tensor as_it_lies(const gguf_file *file, const gguf_tensor *t, const char *name) {
    const char *slash = strrchr(file->path, '/');
    st_tensor tensor = {.name = name,
                        .dtype = t->type_name,
                        .type = t->type,
                        .dims = t->dims,
                        .data = t->data,
                        .bytes = t->bytes,
                        .file = slash ? slash + 1 : file->path};
    memcpy(tensor.shape, t->shape, sizeof t->shape);
    return tensor;
}

static ebb_status softmax_tensors(const gguf_file *file, const struct architecture *architecture, st_set **set,
                                  ebb_error *error) {
    const size_t n = (size_t)file->n_tensors;
    st_tensor *list = calloc(n + 1, sizeof *list);
    char *names = calloc(n + 1, NAME_ROOM);
    if (!list || !names) {
        free(list);
        free(names);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the list of %zu tensors", n);
    }
    for (size_t i = 0; i < n; i++) {
        translate(architecture, file->tensors[i].name, names + i * NAME_ROOM);
        list[i] = as_it_lies(file, &file->tensors[i], names + i * NAME_ROOM);
    }
    return st_adopt(list, (int64_t)n, names, set, error);
}

ebb_status gguf_tensors(const gguf_file *file, st_set **set, ebb_error *error) {
    const struct architecture *softmax = NULL;
    const hybrid_family *hybrid = NULL;
    ebb_status status = find_architecture(file, &softmax, &hybrid, error);
    if (status) return status;
    return hybrid ? hybrid_tensors(file, hybrid, set, error) : softmax_tensors(file, softmax, set, error);
}
