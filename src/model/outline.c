/* model/outline.c: what a config.json says of a model, without its weights: ebb_outline of ebb/model.h. What a family
 * has is in outline_families.c. Called by programs. */
#include "model/outline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_LIMIT ((size_t)64 << 20)
#define MOST_TENSORS ((int64_t)1 << 19) /* releases have up to 10^5 */

int64_t outline_elements(const outline_tensor *t) {
    int64_t n = 1;
    for (int32_t i = 0; i < t->dims; i++) n *= t->shape[i];
    return n;
}

/* ---- tensors ---- */

static bool grow(ebb_outline *o) {
    if (o->n < o->room) return true;
    const int64_t room = o->room ? 2 * o->room : 256;
    outline_tensor *tensors = realloc(o->tensors, (size_t)room * sizeof *tensors);
    if (!tensors) return false;
    o->tensors = tensors, o->room = room;
    return true;
}

/* What is small and sensitive is kept in FP32, as in the releases that say so. */
static int32_t type_of(const char *name, outline_fill fill) {
    const bool wide = fill == FILL_A_LOG || strstr(name, "self_attn.dt_bias") || strstr(name, "e_score_correction");
    return wide ? EBB_FP32 : EBB_BF16;
}

void outline_add(ebb_outline *o, int32_t layer, const char *name, outline_fill fill, int32_t dims,
                 const int64_t *shape) {
    size_t elements = 1;
    bool fits = true;
    if (o->failed) return;
    for (int32_t i = 0; i < dims; i++) fits = fits && size_mul(elements, (size_t)shape[i], &elements);
    fits = fits && elements < (size_t)1 << 44 && o->info.parameters < (int64_t)1 << 46 && o->n < MOST_TENSORS;
    if (!fits || !grow(o)) {
        o->failed = fits ? EBB_NO_MEMORY : EBB_UNSUPPORTED;
        return;
    }
    outline_tensor *t = &o->tensors[o->n++];
    *t = (outline_tensor){.layer = layer, .type = type_of(name, fill), .fill = (int32_t)fill, .dims = dims};
    memcpy(t->shape, shape, (size_t)dims * sizeof *shape);
    if (layer >= 0) snprintf(t->name, sizeof t->name, "%slayers.%d.%s", o->prefix, layer, name);
    else snprintf(t->name, sizeof t->name, "%s%s", strcmp(name, "lm_head.weight") ? o->prefix : "", name);
    o->info.parameters += (int64_t)elements;
    o->info.weight_bytes += elements * (t->type == EBB_FP32 ? 4 : 2);
}

void outline_matrix(ebb_outline *o, int32_t layer, const char *name, int64_t n, int64_t k) {
    outline_add(o, layer, name, FILL_MATRIX, 2, (int64_t[]){n, k});
}

void outline_vector(ebb_outline *o, int32_t layer, const char *name, outline_fill fill, int64_t n) {
    outline_add(o, layer, name, fill, 1, &n);
}

ebb_status outline_layers(ebb_outline *o, int32_t layers, int32_t state, ebb_error *error) {
    o->info.layers = layers;
    o->info.state_layers = state;
    o->info.kv_layers = layers - state;
    o->state = calloc((size_t)state + 1, sizeof *o->state);
    o->kv = calloc((size_t)(layers - state) + 1, sizeof *o->kv);
    return o->state && o->kv ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for %d layers", layers);
}

/* ---- the public calls ---- */

static ebb_status read_outline(ebb_outline *o, const char *path, ebb_error *error) {
    json_place root = {0};
    char shown[64];
    ebb_status status = json_open(path, CONFIG_LIMIT, &root, error);
    if (!status) status = config_from(path, (json_t *)root.value, &o->config, error); /* takes the document over */
    if (status) return status;
    const config_files *c = &o->config;
    const char *unknown = !outline_knows(c->model_type)                    ? c->model_type
                          : c->outer_type && !outline_knows(c->outer_type) ? c->outer_type
                                                                           : NULL;
    if (unknown)
        return ebb_fail(error, EBB_UNSUPPORTED, "%s: model_type %s is not known here", json_file(path),
                        json_shown(unknown, shown));
    o->prefix = c->text.value != c->root.value ? "model.language_model." : "model.";
    o->info.architecture = c->model_type;
    status = outline_family(o, error);
    if (!status && o->failed)
        status = ebb_fail(error, o->failed,
                          o->failed == EBB_NO_MEMORY ? "no memory for the tensors of %s"
                                                     : "%s describes a model of more than 2^46 weights or 2^19 tensors",
                          json_file(path));
    return status;
}

ebb_status ebb_outline_open(const char *path, ebb_outline **outline, ebb_error *error) {
    if (!path || !outline) return ebb_fail(error, EBB_BAD_ARGUMENT, "an outline needs a path and a place to go");
    struct stat about;
    const bool folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    char *file = folder ? path_join(path, "config.json") : strdup(path);
    ebb_outline *o = calloc(1, sizeof *o);
    ebb_status status =
        file && o ? read_outline(o, file, error) : ebb_fail(error, EBB_NO_MEMORY, "no memory for an outline");
    free(file);
    if (status) ebb_outline_close(o);
    *outline = status ? NULL : o;
    return status;
}

void ebb_outline_close(ebb_outline *o) {
    if (!o) return;
    config_close(&o->config);
    free(o->attends), free(o->state), free(o->kv), free(o->tensors);
    free(o);
}

const ebb_outline_info *ebb_outline_describe(const ebb_outline *o) { return &o->info; }
const ebb_state_layer *ebb_outline_state_layers(const ebb_outline *o) { return o->state; }
const ebb_kv_layer *ebb_outline_kv_layers(const ebb_outline *o) { return o->kv; }
