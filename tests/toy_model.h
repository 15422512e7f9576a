/* tests/toy_model.h: writes a tiny random model folder (4 layers of hidden 32, vocabulary of 64) in any of the shapes
 * that a checkpoint can have, and, on request, with something wrong in it. Weights are multiples of 1/64 that depend on
 * the tensor's name only, so that every numeric type, prefix and number of shards gives the same model. */
#ifndef TESTS_TOY_MODEL_H
#define TESTS_TOY_MODEL_H

#include "core/core.h"
#include "ebb/format.h"
#include "format/float16.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TOY_VOCAB = 64,
    TOY_HIDDEN = 32,
    TOY_INTER = 48,
    TOY_LAYERS = 4,
    TOY_Q_HEADS = 4,
    TOY_KV_HEADS = 2,
    TOY_HEAD_DIM = 16,
    TOY_KEY_HEADS = 2,
    TOY_HEADS = 4,
    TOY_KEY_DIM = 16,
    TOY_VALUE_DIM = 24,
    TOY_CONV = 4,
    TOY_MOST = 96 /* tensors */
};

typedef struct toy {
    ebb_type type;      /* of matrices and norms */
    const char *prefix; /* "model." or "model.language_model." */
    int32_t shards;     /* 1: model.safetensors */
    bool nested;        /* fields in text_config of a qwen3_5 */
    bool ungated, untied, vision;
    const char *omit, *reshape, *retype; /* this tensor is left out, gets one row more, is stored as I8 */
    const char *extra;                   /* one more tensor of this name */
    const char *field, *value;           /* this field of the text config gets this JSON text; NULL: is left out */
} toy;

#define TOY ((toy){.type = EBB_BF16, .prefix = "model.", .shards = 1})

typedef struct toy_tensor {
    char name[96];
    const char *dtype;
    ebb_type type;
    int32_t dims;
    int64_t shape[3];
} toy_tensor;

typedef struct toy_list {
    const toy *t;
    int32_t n;
    toy_tensor tensors[TOY_MOST];
} toy_list;

static inline void toy_write(const char *folder, const char *name, const void *data, size_t bytes) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) abort();
}

static inline void toy_write_json(const char *folder, const char *name, json_t *value) {
    char *text = json_dumps(value, 0);
    if (!text) abort();
    toy_write(folder, name, text, strlen(text));
    free(text);
    json_decref(value);
}

/* ---- JSON files ---- */

/* 256 tokens of one byte each, id = byte. */
static inline void toy_tokenizer(const char *folder) {
    json_t *vocab = json_object();
    for (int byte = 0, other = 256; byte < 256; byte++) {
        bool itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
        int c = itself ? byte : other++;
        char key[3] = {(char)c, 0, 0};
        if (c >= 0x80) key[0] = (char)(0xc0 | c >> 6), key[1] = (char)(0x80 | (c & 0x3f));
        json_object_set_new(vocab, key, json_integer(byte));
    }
    toy_write_json(folder, "tokenizer.json",
                   json_pack("{s:s, s:[], s:n, s:{s:s, s:b, s:b, s:b}, s:{s:s}, s:{s:s, s:o, s:[]}}", "version", "1.0",
                             "added_tokens", "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0,
                             "trim_offsets", 0, "use_regex", 0, "decoder", "type", "ByteLevel", "model", "type", "BPE",
                             "vocab", vocab, "merges"));
}

static inline void toy_config(const char *folder, const toy *t) {
    json_t *c = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:i}", "model_type",
        "qwen3_5_text", "vocab_size", TOY_VOCAB, "hidden_size", TOY_HIDDEN, "intermediate_size", TOY_INTER,
        "num_hidden_layers", TOY_LAYERS, "num_attention_heads", TOY_Q_HEADS, "num_key_value_heads", TOY_KV_HEADS,
        "head_dim", TOY_HEAD_DIM, "linear_num_key_heads", TOY_KEY_HEADS, "linear_num_value_heads", TOY_HEADS,
        "linear_key_head_dim", TOY_KEY_DIM, "linear_value_head_dim", TOY_VALUE_DIM, "linear_conv_kernel_dim", TOY_CONV,
        "hidden_act", "silu", "rms_norm_eps", 1e-6, "max_position_embeddings", 4096);
    json_object_set_new(
        c, "rope_parameters",
        json_pack("{s:s, s:f, s:f}", "rope_type", "default", "rope_theta", 10000.0, "partial_rotary_factor", 0.25));
    json_object_set_new(c, "attn_output_gate", json_boolean(!t->ungated));
    json_object_set_new(
        c, "layer_types",
        json_pack("[s, s, s, s]", "linear_attention", "full_attention", "linear_attention", "full_attention"));
    if (t->field) {
        if (t->value) json_object_set_new(c, t->field, json_loads(t->value, JSON_DECODE_ANY, NULL));
        else json_object_del(c, t->field);
    }
    if (t->nested) c = json_pack("{s:s, s:o, s:{}}", "model_type", "qwen3_5", "text_config", c, "vision_config");
    toy_write_json(folder, "config.json", c);
}

/* ---- tensors ---- */

static inline void toy_add(toy_list *l, const char *name, ebb_type type, int32_t dims, int64_t a, int64_t b,
                           int64_t c) {
    if (l->t->omit && !strcmp(name, l->t->omit)) return;
    if (l->n == TOY_MOST) abort();
    toy_tensor *x = &l->tensors[l->n++];
    *x = (toy_tensor){.type = type, .dims = dims, .shape = {a, b, c}};
    snprintf(x->name, sizeof x->name, "%s", name);
    x->dtype = type == EBB_FP32 ? "F32" : type == EBB_FP16 ? "F16" : "BF16";
    if (l->t->reshape && !strcmp(name, l->t->reshape)) x->shape[0]++;
    if (l->t->retype && !strcmp(name, l->t->retype)) x->dtype = "I8", x->type = EBB_UINT8;
}

static inline void toy_matrix(toy_list *l, int32_t layer, const char *name, int64_t n, int64_t k) {
    char full[96];
    if (layer >= 0) snprintf(full, sizeof full, "%slayers.%d.%s.weight", l->t->prefix, layer, name);
    else snprintf(full, sizeof full, "%s%s.weight", l->t->prefix, name);
    toy_add(l, full, l->t->type, k ? 2 : 1, n, k ? k : 1, 1);
}

static inline void toy_delta(toy_list *l, int32_t i) {
    char full[96];
    const int64_t values = TOY_HEADS * TOY_VALUE_DIM, channels = 2 * TOY_KEY_HEADS * TOY_KEY_DIM + values;
    toy_matrix(l, i, "linear_attn.in_proj_qkv", channels, TOY_HIDDEN);
    toy_matrix(l, i, "linear_attn.in_proj_z", values, TOY_HIDDEN);
    toy_matrix(l, i, "linear_attn.in_proj_b", TOY_HEADS, TOY_HIDDEN);
    toy_matrix(l, i, "linear_attn.in_proj_a", TOY_HEADS, TOY_HIDDEN);
    toy_matrix(l, i, "linear_attn.norm", TOY_VALUE_DIM, 0);
    toy_matrix(l, i, "linear_attn.out_proj", TOY_HIDDEN, values);
    snprintf(full, sizeof full, "%slayers.%d.linear_attn.conv1d.weight", l->t->prefix, i);
    toy_add(l, full, l->t->type, 3, channels, 1, TOY_CONV);
    snprintf(full, sizeof full, "%slayers.%d.linear_attn.A_log", l->t->prefix, i);
    toy_add(l, full, i ? l->t->type : EBB_FP32, 1, TOY_HEADS, 1, 1);
    snprintf(full, sizeof full, "%slayers.%d.linear_attn.dt_bias", l->t->prefix, i);
    toy_add(l, full, i ? l->t->type : EBB_FP32, 1, TOY_HEADS, 1, 1);
}

static inline void toy_attention(toy_list *l, int32_t i) {
    const int64_t q = TOY_Q_HEADS * TOY_HEAD_DIM, kv = TOY_KV_HEADS * TOY_HEAD_DIM;
    toy_matrix(l, i, "self_attn.q_proj", l->t->ungated ? q : 2 * q, TOY_HIDDEN);
    toy_matrix(l, i, "self_attn.k_proj", kv, TOY_HIDDEN);
    toy_matrix(l, i, "self_attn.v_proj", kv, TOY_HIDDEN);
    toy_matrix(l, i, "self_attn.o_proj", TOY_HIDDEN, q);
    toy_matrix(l, i, "self_attn.q_norm", TOY_HEAD_DIM, 0);
    toy_matrix(l, i, "self_attn.k_norm", TOY_HEAD_DIM, 0);
}

static inline void toy_tensors(toy_list *l, const toy *t) {
    l->t = t;
    l->n = 0;
    toy_matrix(l, -1, "embed_tokens", TOY_VOCAB, TOY_HIDDEN);
    for (int32_t i = 0; i < TOY_LAYERS; i++) {
        toy_matrix(l, i, "input_layernorm", TOY_HIDDEN, 0);
        toy_matrix(l, i, "post_attention_layernorm", TOY_HIDDEN, 0);
        toy_matrix(l, i, "mlp.gate_proj", TOY_INTER, TOY_HIDDEN);
        toy_matrix(l, i, "mlp.up_proj", TOY_INTER, TOY_HIDDEN);
        toy_matrix(l, i, "mlp.down_proj", TOY_HIDDEN, TOY_INTER);
        if (i % 2 == 0) toy_delta(l, i);
        else toy_attention(l, i);
    }
    toy_matrix(l, -1, "norm", TOY_HIDDEN, 0);
    if (t->untied) toy_add(l, "lm_head.weight", t->type, 2, TOY_VOCAB, TOY_HIDDEN, 1);
    if (t->vision) {
        toy_add(l, "model.visual.blocks.0.attn.proj.weight", EBB_FP32, 2, 3, 5, 1);
        toy_add(l, "model.visual.merger.norm.bias", EBB_FP16, 1, 7, 1, 1);
        toy_add(l, "mtp.fc.weight", EBB_BF16, 2, 3, 6, 1);
    }
    if (t->extra) toy_add(l, t->extra, EBB_FP32, 1, 3, 1, 1);
}

static inline int64_t toy_elements(const toy_tensor *x) { return x->shape[0] * x->shape[1] * x->shape[2]; }

/* Element i: a multiple of 1/64 that every type holds exactly. The prefix does not count. */
static inline float toy_element(const toy *t, const toy_tensor *x, int64_t i) {
    const char *name = strncmp(x->name, t->prefix, strlen(t->prefix)) ? x->name : x->name + strlen(t->prefix);
    uint64_t key = 7;
    for (; *name; name++) key = mix64(key ^ (uint8_t)*name);
    return (float)((int64_t)(mix64(key + (uint64_t)i) % 33) - 16) / 64.0f;
}

static inline void toy_put(uint8_t *to, ebb_type type, float value) {
    uint16_t half = type == EBB_BF16 ? float_to_bf16(value) : float_to_fp16(value);
    if (type == EBB_FP32) memcpy(to, &value, sizeof value);
    else if (type == EBB_UINT8) *to = 1;
    else memcpy(to, &half, sizeof half);
}

/* One safetensors file of the tensors `first`, `first` + `step`, ... */
static inline void toy_file(const char *folder, const char *name, const toy_list *l, int32_t first, int32_t step,
                            json_t *map) {
    json_t *header = json_object();
    size_t bytes = 0, at = 0;
    for (int32_t i = first; i < l->n; i += step) {
        const toy_tensor *x = &l->tensors[i];
        size_t size = (size_t)toy_elements(x) * ebb_type_bytes(x->type);
        json_t *shape = json_array();
        for (int32_t d = 0; d < x->dims; d++) json_array_append_new(shape, json_integer(x->shape[d]));
        json_object_set_new(header, x->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", x->dtype, "shape", shape, "data_offsets",
                                      (json_int_t)bytes, (json_int_t)(bytes + size)));
        json_object_set_new(map, x->name, json_string(name));
        bytes += size;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint8_t *file = text ? malloc(8 + strlen(text) + bytes) : NULL;
    if (!file) abort();
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(strlen(text) >> 8 * i);
    memcpy(file + 8, text, strlen(text));
    at = 8 + strlen(text);
    for (int32_t i = first; i < l->n; i += step)
        for (int64_t e = 0; e < toy_elements(&l->tensors[i]); e++, at += ebb_type_bytes(l->tensors[i].type))
            toy_put(file + at, l->tensors[i].type, toy_element(l->t, &l->tensors[i], e));
    toy_write(folder, name, file, at);
    free(file);
    free(text);
    json_decref(header);
}

static inline void toy_remove(const char *folder, const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static inline void toy_clear(const char *folder) {
    static const char *const names[] = {
        "model.safetensors",   "model.safetensors.index.json", "shard-0.safetensors",
        "shard-1.safetensors", "shard-2.safetensors",          "config.json",
        "tokenizer.json",      "tokenizer_config.json",        "generation_config.json"};
    for (int32_t i = 0; i < COUNT(names); i++) toy_remove(folder, names[i]);
}

/* Write the folder's files anew. At most 3 shards. */
static inline void toy_make(const char *folder, const toy *t) {
    toy_list list;
    json_t *map = json_object();
    toy_clear(folder);
    toy_tokenizer(folder);
    toy_config(folder, t);
    toy_tensors(&list, t);
    for (int32_t i = 0; i < t->shards; i++) {
        char name[32];
        snprintf(name, sizeof name, "shard-%d.safetensors", i);
        toy_file(folder, t->shards == 1 ? "model.safetensors" : name, &list, i, t->shards, map);
    }
    if (t->shards > 1) toy_write_json(folder, "model.safetensors.index.json", json_pack("{s:O}", "weight_map", map));
    json_decref(map);
}

#endif
