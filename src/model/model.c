/* model/model.c: opening a checkpoint folder. It owns the weights; architectures (qwen35.c) say which tensors go where
 * and load them with the functions at the end of this file. Called by programs. */
#include "model/model_int.h"

#include "format/float16.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Model types as config.json spells them. A new architecture is one file with a load function and one row here. */
static const struct architecture {
    const char *model_type, *name; /* in the file; as ebb_model_info gives it */
    ebb_status (*load)(model_loader *loader, ebb_error *error);
} architectures[] = {
    {"qwen3_5_text", "qwen3_5_text", qwen35_load},
    {"qwen3_5", "qwen3_5_text", qwen35_load}, /* with a vision tower beside it, in text_config */
    {"kimi_linear", "kimi_linear", kimi_load},
};

static const struct architecture *find_architecture(const char *model_type) {
    for (int32_t i = 0; i < COUNT(architectures); i++)
        if (!strcmp(architectures[i].model_type, model_type)) return &architectures[i];
    return NULL;
}

static ebb_status choose_architecture(const config_files *config, const struct architecture **found, ebb_error *error) {
    const char *unknown = config->model_type;
    *found = find_architecture(config->model_type);
    if (*found && config->outer_type && !find_architecture(config->outer_type))
        *found = NULL, unknown = config->outer_type;
    if (*found) return EBB_OK;
    char shown[64], served[96];
    size_t at = 0;
    for (int32_t i = 0; i < COUNT(architectures) && at < sizeof served; i++)
        at += (size_t)snprintf(served + at, sizeof served - at, i ? ", %s" : "%s", architectures[i].model_type);
    return ebb_fail(error, EBB_UNSUPPORTED, "%s: model_type %s is not served, expected one of %s",
                    json_file(config->path), json_shown(unknown, shown), served);
}

/* ---- tensors that a text model leaves alone ---- */

static bool starts(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }
static bool is_vision(const char *name) { return starts(name, "model.visual.") || starts(name, "visual."); }
static bool is_mtp(const char *name) { return starts(name, "mtp.") || starts(name, "model.mtp."); }

static int64_t bytes_to_load(const st_set *set) {
    int64_t n, bytes = 0;
    const st_tensor *t = st_tensors(set, &n);
    for (int64_t i = 0; i < n; i++)
        if (!is_vision(t[i].name) && !is_mtp(t[i].name)) bytes += (int64_t)t[i].bytes;
    return bytes;
}

/* Vision and multi-token prediction are left out with a notice. Any other tensor that nothing asked for (a bias, a
 * scale of quantized weights) would make answers silently wrong. */
static ebb_status check_unused(const ebb_model *model, const st_set *set, ebb_error *error) {
    int64_t n, vision = 0, mtp = 0;
    const st_tensor *t = st_tensors(set, &n);
    for (int64_t i = 0; i < n; i++) {
        if (is_vision(t[i].name)) vision++;
        else if (is_mtp(t[i].name)) mtp++;
        else if (!t[i].used)
            return ebb_fail(error, EBB_UNSUPPORTED, "%s: tensor %s has no place in %s", t[i].file, t[i].name,
                            model->info.architecture);
    }
    if (vision + mtp > 0) {
        char text[120];
        snprintf(text, sizeof text, "%lld tensors skipped: %lld of vision, %lld of multi-token prediction",
                 (long long)(vision + mtp), (long long)vision, (long long)mtp);
        ebb_device_notice(model->device, text);
    }
    return EBB_OK;
}

/* ---- the model's name ---- */

/* Tensors come sorted by name, so shards and order do not count; their ends stand for their data, which may be large.
 */
static uint64_t hash_tensors(const char *architecture, const st_set *set) {
    enum { ENDS = 1024 };
    int64_t n;
    const st_tensor *t = st_tensors(set, &n);
    uint64_t hash = hash64(HASH64_BEGIN, architecture, strlen(architecture) + 1);
    for (int64_t i = 0; i < n; i++) {
        const size_t end = t[i].bytes < ENDS ? t[i].bytes : ENDS;
        hash = hash64(hash, t[i].name, strlen(t[i].name) + 1);
        hash = hash64(hash, t[i].dtype, strlen(t[i].dtype) + 1);
        hash = hash64(hash, t[i].shape, (size_t)t[i].dims * sizeof t[i].shape[0]);
        hash = hash64(hash, t[i].data, end);
        hash = mix64(hash64(hash, t[i].data + t[i].bytes - end, end));
    }
    return hash ? hash : 1;
}

/* ---- opening ---- */

static ebb_status load(model_loader *loader, const char *directory, ebb_error *error) {
    const struct architecture *architecture = NULL;
    ebb_model *m = loader->model;
    ebb_status status = choose_architecture(loader->config, &architecture, error);
    if (status) return status;
    m->info.architecture = architecture->name;
    if ((status = st_open(directory, &loader->tensors, error))) return status;
    loader->total = bytes_to_load(loader->tensors);
    bool nested = st_find(loader->tensors, "model.language_model.embed_tokens.weight") != NULL;
    loader->prefix = nested ? "model.language_model." : "model.";
    status = architecture->load(loader, error);
    if (!status) status = check_unused(m, loader->tensors, error);
    if (!status) m->info.hash = hash_tensors(architecture->name, loader->tensors);
    return status;
}

ebb_status ebb_model_open(ebb_device *device, const char *directory, const ebb_progress *progress, ebb_model **out,
                          ebb_error *error) {
    if (!device || !directory || !out)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a model needs a device, a directory and a place to go");
    ebb_status status;
    config_files config = {0};
    model_loader loader = {.config = &config, .progress = progress};
    ebb_model *m = calloc(1, sizeof *m);
    if (!m) {
        status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a model");
        goto done;
    }
    m->device = device;
    loader.model = m;
    if (!(m->folder = strdup(directory))) {
        status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
        goto done;
    }
    if ((status = ebb_tokenizer_open(directory, &m->tokenizer, error))) goto done;
    if ((status = config_open(directory, m->tokenizer, &config, error))) goto done;
    if ((status = load(&loader, directory, error))) goto done;
    memcpy(m->stop, config.stop, sizeof m->stop);
    m->info.stop = m->stop;
    m->info.n_stop = config.n_stop;
    m->info.sampling = config.sampling;
done:
    st_close(loader.tensors);
    config_close(&config);
    if (status) ebb_model_close(m);
    *out = status ? NULL : m;
    return status;
}

void ebb_model_close(ebb_model *m) {
    if (!m) return;
    for (int32_t i = 0; m->layers && i < m->info.layers; i++) {
        model_layer *l = &m->layers[i];
        ebb_weight_free(m->device, &l->in);
        ebb_weight_free(m->device, &l->out);
        ebb_weight_free(m->device, &l->decay);
        ebb_weight_free(m->device, &l->gate);
        for (int32_t h = 0; l->absorb && h < m->kv_layers[l->store].q_heads; h++) {
            ebb_weight_free(m->device, &l->absorb[h]);
            ebb_weight_free(m->device, &l->expand[h]);
        }
        free(l->absorb);
        ebb_weight_free(m->device, &l->gate_up);
        ebb_weight_free(m->device, &l->down);
    }
    ebb_weight_free(m->device, &m->embedding);
    ebb_weight_free(m->device, &m->head);
    for (model_floats *next; m->floats; m->floats = next) {
        next = m->floats->next;
        ebb_device_free(m->device, m->floats->data, m->floats->bytes);
        free(m->floats);
    }
    free(m->layers);
    free(m->state_layers);
    free(m->kv_layers);
    ebb_tokenizer_close(m->tokenizer);
    free(m->folder);
    free(m);
}

const ebb_model_info *ebb_model_describe(const ebb_model *model) { return &model->info; }
const ebb_tokenizer *ebb_model_tokenizer(const ebb_model *model) { return model->tokenizer; }
ebb_device *ebb_model_device(const ebb_model *model) { return model->device; }
const ebb_state_layer *ebb_model_state_layers(const ebb_model *model) { return model->state_layers; }
const ebb_kv_layer *ebb_model_kv_layers(const ebb_model *model) { return model->kv_layers; }

/* ---- for architectures ---- */

ebb_status model_layers_new(ebb_model *m, int32_t layers, int32_t state_layers, ebb_error *error) {
    int32_t kv_layers = layers - state_layers;
    m->layers = calloc((size_t)layers, sizeof *m->layers);
    m->state_layers = calloc((size_t)state_layers + 1, sizeof *m->state_layers);
    m->kv_layers = calloc((size_t)kv_layers + 1, sizeof *m->kv_layers);
    if (!m->layers || !m->state_layers || !m->kv_layers)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d layers", layers);
    m->info.layers = layers;
    m->info.state_layers = state_layers;
    m->info.kv_layers = kv_layers;
    return EBB_OK;
}

float *model_floats_new(ebb_model *m, int64_t n) {
    model_floats *block = calloc(1, sizeof *block);
    if (!block) return NULL;
    block->bytes = (size_t)n * sizeof *block->data;
    block->data = ebb_device_alloc(m->device, block->bytes);
    if (!block->data) {
        free(block);
        return NULL;
    }
    block->next = m->floats;
    m->floats = block;
    m->info.weight_bytes += block->bytes;
    return block->data;
}

static void tensor_name(const model_loader *loader, int32_t layer, const char *name, char full[static 160]) {
    if (layer >= 0) snprintf(full, 160, "%slayers.%d.%s", loader->prefix, layer, name);
    else snprintf(full, 160, "%s%s", layer == LAYER_ROOT ? "" : loader->prefix, name);
}

const st_tensor *load_find(const model_loader *loader, int32_t layer, const char *name) {
    char full[160];
    tensor_name(loader, layer, name, full);
    return st_find(loader->tensors, full);
}

bool load_has(const model_loader *loader, int32_t layer, const char *name) {
    return load_find(loader, layer, name) != NULL;
}

static ebb_status take(model_loader *loader, int32_t layer, const char *name, int32_t dims, const int64_t *shape,
                       const st_tensor **t, ebb_error *error) {
    char full[160];
    tensor_name(loader, layer, name, full);
    return st_take(loader->tensors, full, dims, shape, t, error);
}

/* Count a tensor that has been loaded, and report it. */
static ebb_status loaded(model_loader *loader, const st_tensor *t, ebb_error *error) {
    const ebb_progress *p = loader->progress;
    loader->done += (int64_t)t->bytes;
    loader->model->info.parameters += (int64_t)(t->bytes / ebb_type_bytes((ebb_type)t->type));
    if (p && p->report && !p->report(p->ctx, "weights", loader->done, loader->total))
        return ebb_fail(error, EBB_INTERRUPTED, "loading was stopped after %lld of %lld bytes", (long long)loader->done,
                        (long long)loader->total);
    return EBB_OK;
}

ebb_status load_matrix(model_loader *loader, int32_t layer, const matrix_part *parts, int32_t n_parts, int64_t k,
                       ebb_weight *weight, ebb_error *error) {
    enum { MOST = 8 };
    const st_tensor *t[MOST];
    ebb_weight_part stacked[MOST];
    if (n_parts < 1 || n_parts > MOST)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight of %d parts; expected 1 to %d", n_parts, MOST);
    for (int32_t i = 0; i < n_parts; i++) {
        ebb_status status = take(loader, layer, parts[i].name, 2, (int64_t[]){parts[i].n, k}, &t[i], error);
        if (status) return status;
        stacked[i] = (ebb_weight_part){t[i]->data, t[i]->type, parts[i].n};
    }
    ebb_status status = ebb_weight_pack(loader->model->device, stacked, n_parts, k, weight, error);
    if (status) return status;
    loader->model->info.weight_bytes += weight->bytes;
    for (int32_t i = 0; i < n_parts; i++)
        if ((status = loaded(loader, t[i], error))) return status;
    return EBB_OK;
}

static float element(const st_tensor *t, int64_t i) {
    uint16_t half;
    float whole;
    if (t->type == EBB_FP32) {
        memcpy(&whole, t->data + 4 * i, sizeof whole);
        return whole;
    }
    memcpy(&half, t->data + 2 * i, sizeof half);
    return t->type == EBB_BF16 ? bf16_to_float(half) : fp16_to_float(half);
}

ebb_status load_raw(model_loader *loader, int32_t layer, const char *name, int32_t dims, const int64_t *shape,
                    const st_tensor **tensor, ebb_error *error) {
    ebb_status status = take(loader, layer, name, dims, shape, tensor, error);
    return status ? status : loaded(loader, *tensor, error);
}

ebb_status load_floats_to(model_loader *loader, int32_t layer, const char *name, int32_t dims, const int64_t *shape,
                          float add, float *floats, ebb_error *error) {
    const st_tensor *t;
    ebb_status status = take(loader, layer, name, dims, shape, &t, error);
    if (status) return status;
    int64_t n = (int64_t)(t->bytes / ebb_type_bytes((ebb_type)t->type));
    for (int64_t i = 0; i < n; i++) floats[i] = element(t, i) + add;
    return loaded(loader, t, error);
}

ebb_status load_floats(model_loader *loader, int32_t layer, const char *name, int32_t dims, const int64_t *shape,
                       float add, const float **floats, ebb_error *error) {
    const st_tensor *t;
    ebb_status status = take(loader, layer, name, dims, shape, &t, error);
    if (status) return status;
    int64_t n = (int64_t)(t->bytes / ebb_type_bytes((ebb_type)t->type));
    float *widened = model_floats_new(loader->model, n);
    if (!widened) return ebb_fail(error, EBB_NO_MEMORY, "no memory for tensor %s", t->name);
    *floats = widened;
    return load_floats_to(loader, layer, name, dims, shape, add, widened, error);
}
