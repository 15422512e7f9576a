/* model/model.c: opening a checkpoint, a folder or a GGUF file. It owns the weights; architectures (qwen35.c) say which
 * tensors go where and load them with the functions at the end of this file. Called by programs. */
#include "model/model_int.h"

#include "model/gguf.h"
#include "model/moe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Model types as config.json spells them. A new architecture is one file with a load function and one row here. */
static const model_architecture architectures[] = {
    {"qwen3_5_text", "qwen3_5_text", qwen35_load},
    {"qwen3_5", "qwen3_5_text", qwen35_load}, /* with a vision tower beside it, in text_config */
    {"qwen3_5_moe_text", "qwen3_5_moe_text", qwen35_load},
    {"qwen3_5_moe", "qwen3_5_moe_text", qwen35_load},
    {"qwen3_next", "qwen3_next", qwen35_load},
    {"kimi_linear", "kimi_linear", kimi_load},
    {"qwen3", "qwen3", softmax_load},
    {"llama", "llama", softmax_load},
    {"glm4", "glm4", softmax_load},
};

static const model_architecture *find_architecture(const char *model_type) {
    for (int32_t i = 0; i < COUNT(architectures); i++)
        if (!strcmp(architectures[i].model_type, model_type)) return &architectures[i];
    return NULL;
}

static ebb_status choose_architecture(const config_files *config, const model_architecture **found, ebb_error *error) {
    const char *unknown = config->model_type;
    *found = find_architecture(config->model_type);
    if (*found && config->outer_type && !find_architecture(config->outer_type))
        *found = NULL, unknown = config->outer_type;
    if (*found) return EBB_OK;
    char shown[64], served[128];
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
static ebb_status check_unused(ebb_model *model, const st_set *set, ebb_error *error) {
    int64_t n, vision = 0, mtp = 0;
    const st_tensor *t = st_tensors(set, &n);
    for (int64_t i = 0; i < n; i++) {
        if (is_vision(t[i].name)) vision++;
        else if (is_mtp(t[i].name)) mtp++;
        else if (!t[i].used)
            return ebb_fail(error, EBB_UNSUPPORTED, "%s: tensor %s has no place in %s", t[i].file, t[i].name,
                            model->info.architecture);
    }
    model->mtp = mtp > 0;
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

/* Tokenizer, config and tensors of a folder; of a GGUF file, which stays open as long as its tensors. */
static ebb_status open_folder(model_loader *loader, const char *directory, config_files *config, ebb_error *error) {
    ebb_model *m = loader->model;
    ebb_status status = ebb_tokenizer_open(directory, &m->tokenizer, error);
    if (!status) status = config_open(directory, m->tokenizer, config, error);
    if (!status) status = choose_architecture(config, &loader->architecture, error);
    return status ? status : st_open(directory, &loader->tensors, error);
}

static ebb_status open_gguf(model_loader *loader, const char *path, gguf_file *file, config_files *config,
                            ebb_error *error) {
    json_t *root = NULL;
    ebb_status status = gguf_open(path, file, error);
    if (!status) status = gguf_config(file, &root, error);
    if (!status) status = config_from(path, root, config, error);
    if (!status) status = choose_architecture(config, &loader->architecture, error);
    if (!status) status = gguf_tokenizer(file, &loader->model->tokenizer, error);
    if (!status) status = config_stop_turn(config, loader->model->tokenizer, error);
    return status ? status : gguf_tensors(file, &loader->tensors, error);
}

static void close_files(ebb_model *m) {
    st_close(m->tensors);
    if (m->file) gguf_close(m->file);
    free(m->file);
    m->tensors = NULL;
    m->file = NULL;
}

static ebb_status load(model_loader *loader, ebb_error *error) {
    const model_architecture *architecture = loader->architecture;
    ebb_model *m = loader->model;
    m->info.architecture = architecture->name;
    loader->total = bytes_to_load(loader->tensors);
    bool nested = st_find(loader->tensors, "model.language_model.embed_tokens.weight") != NULL;
    loader->prefix = nested ? "model.language_model." : "model.";
    ebb_status status = architecture->load(loader, error);
    if (!status) status = check_unused(m, loader->tensors, error);
    if (!status) m->info.hash = hash_tensors(architecture->name, loader->tensors);
    if (!status && m->head.n) m->info.lookup_bytes = m->embedding.bytes;
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
    m->folder = strdup(directory);
    m->file = calloc(1, sizeof *m->file);
    if (!m->folder || !m->file) {
        status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
        goto done;
    }
    status = gguf_is_file(directory) ? open_gguf(&loader, m->folder, m->file, &config, error)
                                     : open_folder(&loader, directory, &config, error);
    m->tensors = loader.tensors;
    if (status) goto done;
    if ((status = load(&loader, error))) goto done;
    memcpy(m->stop, config.stop, sizeof m->stop);
    m->info.stop = m->stop;
    m->info.n_stop = config.n_stop;
    m->info.sampling = config.sampling;
done:
    config_close(&config);
    if (!status && !m->mapped) close_files(m);
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
        moe_free(m->device, l->moe);
    }
    close_files(m);
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
bool ebb_model_has_mtp(const ebb_model *model) { return model->mtp; }
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

static int64_t elements(const st_tensor *t) {
    int64_t n = 1;
    for (int32_t d = 0; d < t->dims; d++) n *= t->shape[d]; /* fits: the bytes were counted when the file was opened */
    return n;
}

/* Count a tensor that has been loaded, and report it. */
static ebb_status loaded(model_loader *loader, const st_tensor *t, ebb_error *error) {
    const ebb_progress *p = loader->progress;
    loader->done += (int64_t)t->bytes;
    loader->model->info.parameters += elements(t);
    if (p && p->report && !p->report(p->ctx, "weights", loader->done, loader->total))
        return ebb_fail(error, EBB_INTERRUPTED, "loading was stopped after %lld of %lld bytes", (long long)loader->done,
                        (long long)loader->total);
    return EBB_OK;
}

/* The rows of a tensor as parts of a weight: one, or one of each run. */
static int32_t put_parts(const st_tensor *t, ebb_weight_part *to) {
    const size_t row = ebb_type_row_bytes((ebb_type)t->type, t->shape[1]);
    if (!t->runs) *to = (ebb_weight_part){t->data, t->type, t->shape[0]};
    for (int32_t i = 0; i < t->n_runs; i++)
        to[i] = (ebb_weight_part){t->data + (size_t)t->runs[i].first * row, t->type, t->runs[i].n};
    return t->runs ? t->n_runs : 1;
}

ebb_status load_matrix(model_loader *loader, int32_t layer, const matrix_part *parts, int32_t n_parts, int64_t k,
                       ebb_weight *weight, ebb_error *error) {
    enum { MOST = 8 };
    const st_tensor *t[MOST];
    int32_t n = 0;
    if (n_parts < 1 || n_parts > MOST)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight of %d parts; expected 1 to %d", n_parts, MOST);
    for (int32_t i = 0; i < n_parts; i++) {
        ebb_status status = take(loader, layer, parts[i].name, 2, (int64_t[]){parts[i].n, k}, &t[i], error);
        if (status) return status;
        n += t[i]->runs ? t[i]->n_runs : 1;
    }
    ebb_weight_part *stacked = calloc((size_t)n, sizeof *stacked);
    if (!stacked) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the %d parts of a weight", n);
    n = 0;
    for (int32_t i = 0; i < n_parts; i++) n += put_parts(t[i], stacked + n);
    ebb_status status = load_parts(loader, stacked, n, k, weight, error);
    free(stacked);
    if (status) return status;
    for (int32_t i = 0; i < n_parts; i++)
        if ((status = loaded(loader, t[i], error))) return status;
    return EBB_OK;
}

ebb_status load_parts(model_loader *loader, const ebb_weight_part *parts, int32_t n_parts, int64_t k,
                      ebb_weight *weight, ebb_error *error) {
    ebb_status status = ebb_weight_pack(loader->model->device, parts, n_parts, k, weight, error);
    if (!status) loader->model->info.weight_bytes += weight->bytes;
    return status;
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
    st_widen(t->type, t->data, elements(t), floats);
    for (int64_t i = 0; add != 0 && i < elements(t); i++) floats[i] += add;
    return loaded(loader, t, error);
}

ebb_status load_floats(model_loader *loader, int32_t layer, const char *name, int32_t dims, const int64_t *shape,
                       float add, const float **floats, ebb_error *error) {
    const st_tensor *t;
    ebb_status status = take(loader, layer, name, dims, shape, &t, error);
    if (status) return status;
    float *widened = model_floats_new(loader->model, elements(t));
    if (!widened) return ebb_fail(error, EBB_NO_MEMORY, "no memory for tensor %s", t->name);
    *floats = widened;
    return load_floats_to(loader, layer, name, dims, shape, add, widened, error);
}
