/* fuzz/files.c: the files of a model and of ebb itself: checkpoints, configurations, layouts, images. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"

#include "core/image.h"
#include "ebb/ebb.h"
#include "model/config.h"
#include "model/gguf.h"
#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Every call that fails says why. */
static ebb_status said(ebb_status status, const ebb_error *error) {
    fuzz_expect(!status || (error->text[0] && error->code == status), "a failure has its sentence");
    return status;
}

/* ---- checkpoints ---- */

/* Every byte of every tensor is there. */
static void read_set(const st_set *set) {
    int64_t n;
    const st_tensor *t = st_tensors(set, &n);
    uint64_t hash = HASH64_BEGIN;
    for (int64_t i = 0; i < n; i++) {
        hash = hash64(hash, t[i].data, t[i].bytes);
        fuzz_expect(st_find(set, t[i].name) == &t[i], "a tensor is found by its name");
    }
    st_metadata(set, "format");
}

void fuzz_safetensors(const uint8_t *data, size_t bytes) {
    st_set *set = NULL;
    ebb_error error = {EBB_OK, ""};
    if (said(st_open_file(fuzz_file("fuzz.safetensors", data, bytes), &set, &error), &error)) return;
    read_set(set);
    st_close(set);
}

/* Beside shard-0.safetensors and shard-1.safetensors of the toy model. */
void fuzz_index(const uint8_t *data, size_t bytes) {
    st_set *set = NULL;
    ebb_error error = {EBB_OK, ""};
    char path[160];
    fuzz_file("index/model.safetensors.index.json", data, bytes);
    snprintf(path, sizeof path, "%s/index", fuzz_folder());
    if (said(st_open(path, &set, &error), &error)) return;
    read_set(set);
    st_close(set);
}

/* Each part by itself, for a model opens only with all of its tensors, and no seed is so large. */
void fuzz_gguf(const uint8_t *data, size_t bytes) {
    gguf_file file = {0};
    json_t *config = NULL;
    st_set *set = NULL;
    ebb_tokenizer *tokenizer = NULL;
    ebb_model *model = NULL;
    ebb_error error = {EBB_OK, ""};
    char path[160];
    snprintf(path, sizeof path, "%s", fuzz_file("fuzz.gguf", data, bytes));
    if (!said(gguf_open(path, &file, &error), &error)) {
        said(gguf_config(&file, &config, &error), &error);
        said(gguf_tokenizer(&file, &tokenizer, &error), &error);
        if (!said(gguf_tensors(&file, &set, &error), &error)) read_set(set);
        json_decref(config);
        ebb_tokenizer_close(tokenizer);
        st_close(set);
    }
    gguf_close(&file);
    said(ebb_model_open(fuzz_device(), path, NULL, &model, &error), &error);
    ebb_model_close(model);
}

/* What can be read can be written, and is the same then. */
void fuzz_layout(const uint8_t *data, size_t bytes) {
    ebb_layout *layout = NULL, *again = NULL;
    ebb_error error = {EBB_OK, ""};
    char path[160];
    int32_t n, m;
    if (said(ebb_layout_read(fuzz_file("fuzz.layout", data, bytes), &layout, &error), &error)) return;
    snprintf(path, sizeof path, "%s/again.layout", fuzz_folder());
    fuzz_expect(!said(ebb_layout_write(path, layout, NULL, 0, &error), &error), "a layout can be written");
    fuzz_expect(!said(ebb_layout_read(path, &again, &error), &error), "a written layout can be read");
    ebb_layout_table(layout, 0, &n), ebb_layout_table(again, 0, &m);
    fuzz_expect(n == m, "a layout keeps its layers");
    for (int32_t i = 0; i < n; i++) {
        const ebb_layout_layer *a = ebb_layout_table(layout, i, NULL), *b = ebb_layout_table(again, i, NULL);
        const size_t keys = (size_t)a->heads * (size_t)a->key_dim * sizeof *a->key_order;
        fuzz_expect(a->heads == b->heads && a->key_dim == b->key_dim && a->value_dim == b->value_dim &&
                        !a->key_order == !b->key_order && !a->bits == !b->bits,
                    "a layout keeps its tables");
        fuzz_expect(!a->key_order || !memcmp(a->key_order, b->key_order, keys), "a layout keeps its order");
        fuzz_expect(!a->bits || !memcmp(a->bits, b->bits, (size_t)a->heads), "a layout keeps its bits");
    }
    ebb_layout_free(layout), ebb_layout_free(again);
}

/* ---- configurations ---- */

/* The config.json of the toy model's folder. */
void fuzz_config(const uint8_t *data, size_t bytes) {
    ebb_outline *outline = NULL;
    ebb_model *model = NULL;
    ebb_error error = {EBB_OK, ""};
    fuzz_model(); /* loaded before its configuration is overwritten */
    if (!said(ebb_outline_open(fuzz_file("config.json", data, bytes), &outline, &error), &error)) {
        const ebb_outline_info *m = ebb_outline_describe(outline);
        fuzz_expect(m->parameters > 0 && m->idle_parameters < m->parameters, "an outline has its parameters");
    }
    ebb_outline_close(outline);
    if (said(ebb_model_open(fuzz_device(), fuzz_folder(), NULL, &model, &error), &error)) return;
    const ebb_model_info *info = ebb_model_describe(model);
    fuzz_expect(info->hash != 0 && info->state_layers + info->kv_layers == info->layers, "a model has its layers");
    ebb_model_close(model);
}

void fuzz_kv_bits(const uint8_t *data, size_t bytes) {
    ebb_kv_bits *bits = NULL;
    ebb_error error = {EBB_OK, ""};
    said(ebb_kv_bits_read(fuzz_file("bits.json", data, bytes), 4, &bits, &error), &error);
    free(bits);
}

/* As generation_config.json and as tokenizer_config.json, beside a good config.json. */
void fuzz_generation(const uint8_t *data, size_t bytes) {
    static const char good[] = "{\"model_type\": \"qwen3_5_text\"}";
    static const char *const names[] = {"chatml/generation_config.json", "chatml/tokenizer_config.json"};
    char path[160];
    snprintf(path, sizeof path, "%s/chatml", fuzz_folder());
    fuzz_file("chatml/config.json", good, sizeof good - 1);
    for (int i = 0; i < COUNT(names); i++) {
        config_files config;
        ebb_error error = {EBB_OK, ""};
        const char *file = fuzz_file(names[i], data, bytes);
        if (!said(config_open(path, fuzz_chatml(), &config, &error), &error)) {
            fuzz_expect(!ebb_sampling_check(&config.sampling, NULL), "the sampling is in range");
            config_close(&config);
        }
        unlink(file);
    }
}

/* ---- images ---- */

enum { IMAGE_HEADER = 64, IMAGE_BYTES_AT = 16, IMAGE_TEXT_AT = 48 }; /* docs/images.md */

/* A size and a checksum that are right, so that what lies behind them is reached. */
static void seal(uint8_t *image, size_t bytes) {
    const uint64_t size = bytes;
    if (bytes < IMAGE_HEADER) return;
    memcpy(image + IMAGE_BYTES_AT, &size, sizeof size);
    image_seal(image, bytes);
}

static uint8_t *sealed(const uint8_t *data, size_t bytes) {
    uint8_t *image = (uint8_t *)fuzz_string(data, bytes);
    seal(image, bytes);
    return image;
}

void fuzz_image_state(const uint8_t *data, size_t bytes) {
    static ebb_state_pool *pool;
    ebb_error error = {EBB_OK, ""};
    ebb_image_info info;
    int64_t pos = 0;
    if (!pool) {
        ebb_state_spec spec;
        const ebb_state_layer *layers = ebb_model_state_layers(fuzz_model());
        fuzz_expect(!ebb_state_parse("leap8:r=2,p=4", &spec, NULL), "a method is known");
        const ebb_state_pool_config config = {
            .size = sizeof config, .spec = &spec, .layers = layers, .n_layers = 2, .slots = 2, .max_new = 4};
        fuzz_expect(!ebb_state_pool_open(fuzz_device(), &config, &pool, NULL), "a pool opens");
    }
    uint8_t *image = sealed(data, bytes);
    said(ebb_image_describe(image, bytes, &info, &error), &error);
    if (!said(ebb_state_load(pool, 1, image, bytes, &pos, &error), &error)) {
        const size_t same = ebb_state_image_bytes(pool, 1, pos, NULL, &error);
        uint8_t *again = malloc(same ? same : 1);
        fuzz_expect(again && same && !ebb_state_save(pool, 1, pos, NULL, again, same, &error), "a slot can be saved");
        free(again);
    }
    free(image);
}

void fuzz_image_kv(const uint8_t *data, size_t bytes) {
    static ebb_kv_pool *pool;
    ebb_error error = {EBB_OK, ""};
    int64_t pos = 0;
    if (!pool) {
        ebb_kv_spec spec;
        fuzz_expect(!ebb_kv_parse("bf16", &spec, NULL), "a method is known");
        const ebb_kv_pool_config config = {.size = sizeof config,
                                           .spec = &spec,
                                           .layers = ebb_model_kv_layers(fuzz_model()),
                                           .n_layers = 2,
                                           .slots = 2,
                                           .max_tokens = 300};
        fuzz_expect(!ebb_kv_pool_open(fuzz_device(), &config, &pool, NULL), "a pool opens");
    }
    uint8_t *image = sealed(data, bytes);
    if (!said(ebb_kv_load(pool, 1, image, bytes, &pos, &error), &error)) {
        const size_t same = ebb_kv_image_bytes(pool, 1, pos, NULL, &error);
        uint8_t *again = malloc(same ? same : 1);
        fuzz_expect(again && same && !ebb_kv_save(pool, 1, pos, NULL, again, same, &error), "a slot can be saved");
        free(again);
    }
    ebb_kv_pool_release(pool, 1);
    free(image);
}

/* The two images inside a sequence have checksums of their own. */
static void seal_inside(uint8_t *image, size_t bytes) {
    uint32_t text;
    int64_t tokens;
    uint64_t state, kv;
    if (bytes < IMAGE_HEADER) return;
    memcpy(&text, image + IMAGE_TEXT_AT, sizeof text);
    const size_t at = IMAGE_HEADER + align_up(text, 8), fields = 64;
    if (at > bytes || bytes - at < fields) return;
    memcpy(&tokens, image + at, 8), memcpy(&state, image + at + 48, 8), memcpy(&kv, image + at + 56, 8);
    const size_t rest = bytes - at - fields;
    if (tokens < 0 || (uint64_t)tokens > rest / 4) return;
    const size_t ids = align_up((size_t)tokens * 4, 8);
    if (ids > rest || state > rest - ids) return;
    seal(image + at + fields + ids, state);
    if (kv <= rest - ids - state) seal(image + at + fields + ids + state, kv);
}

/* Loaded, it can go on: whatever the numbers in its states are. */
void fuzz_image_sequence(const uint8_t *data, size_t bytes) {
    static ebb_engine *engine;
    ebb_error error = {EBB_OK, ""};
    int32_t id = -1;
    const ebb_engine_config config = {
        .size = sizeof config, .state = "leap8:r=2,p=4", .kv = "bf16", .max_seqs = 2, .max_tokens = 300, .max_new = 4};
    if (!engine) fuzz_expect(!ebb_engine_open(fuzz_model(), &config, &engine, NULL), "an engine opens");
    uint8_t *image = (uint8_t *)fuzz_string(data, bytes);
    seal_inside(image, bytes);
    seal(image, bytes);
    const char *path = fuzz_file("fuzz.ebb", image, bytes);
    free(image);
    if (said(ebb_sequence_load(engine, path, NULL, &id, &error), &error)) return;
    if (ebb_sequence_token(engine, id) >= 0) said(ebb_engine_step(engine, &id, 1, &error), &error);
    ebb_sequence_close(engine, id);
}
