/* state/layout.c: calibrated tables of the state layers of one model: which key rows are protected, how value
 * coordinates are scaled and ordered, how many bits a head gets. A layout is made by calibration or read from a file
 * by the model room; codecs find their layer's table in ebb_head.table. Called by pools, codecs and the model room. */
#include "state/layout.h"
#include "core/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct ebb_layout {
    char method[EBB_METHOD_TEXT];
    uint64_t model;
    int32_t n;
    ebb_layout_layer *layers; /* [n]; their arrays belong to the layout */
};

static ebb_status check_permutation(const char *what, int32_t layer, const uint16_t *order, int32_t heads, int32_t n,
                                    ebb_error *error) {
    bool seen[EBB_MAX_STATE_DIM];
    for (int32_t h = 0; order && h < heads; h++) {
        memset(seen, 0, sizeof seen);
        for (int32_t i = 0; i < n; i++) {
            const uint16_t at = order[(size_t)h * (size_t)n + (size_t)i];
            if (at >= n || seen[at])
                return ebb_fail(error, EBB_BAD_ARGUMENT,
                                "layout, layer %d, head %d: %s[%d] is %d, expected a permutation of 0 .. %d", layer, h,
                                what, i, at, n - 1);
            seen[at] = true;
        }
    }
    return EBB_OK;
}

static ebb_status check_table(const ebb_layout_layer *l, int32_t layer, ebb_error *error) {
    if (l->heads < 1 || l->heads > 65536 || l->key_dim < 1 || l->key_dim > EBB_MAX_STATE_DIM || l->value_dim < 1 ||
        l->value_dim > EBB_MAX_STATE_DIM)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "layout, layer %d: %d heads of %d x %d are not a state layer", layer,
                        l->heads, l->key_dim, l->value_dim);
    ebb_status status = check_permutation("key_order", layer, l->key_order, l->heads, l->key_dim, error);
    if (!status) status = check_permutation("value_order", layer, l->value_order, l->heads, l->value_dim, error);
    for (int64_t i = 0; !status && l->value_scale && i < (int64_t)l->heads * l->value_dim; i++)
        if (!(l->value_scale[i] >= 1e-20f && l->value_scale[i] <= 1e20f))
            status = ebb_fail(error, EBB_BAD_ARGUMENT,
                              "layout, layer %d, head %lld: value_scale[%lld] is %g, expected 1e-20 to 1e20", layer,
                              (long long)(i / l->value_dim), (long long)(i % l->value_dim), (double)l->value_scale[i]);
    for (int32_t h = 0; !status && l->bits && h < l->heads; h++)
        if (l->bits[h] < 2 || l->bits[h] > 16)
            status = ebb_fail(error, EBB_BAD_ARGUMENT, "layout, layer %d, head %d: %d bits, expected 2 to 16", layer, h,
                              l->bits[h]);
    return status;
}

/* A copy of n elements of `each` bytes; *failed is set when there is no memory. */
static void *copy_of(const void *from, size_t n, size_t each, bool *failed) {
    size_t bytes;
    if (!from) return NULL;
    void *to = size_mul(n, each, &bytes) ? malloc(bytes) : NULL;
    if (to) memcpy(to, from, bytes);
    else *failed = true;
    return to;
}

ebb_status ebb_layout_new(const char *method, uint64_t model, const ebb_layout_layer *layers, int32_t n,
                          ebb_layout **out, ebb_error *error) {
    if (!method || !layers || n < 1 || !out || strlen(method) >= EBB_METHOD_TEXT)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a layout needs a method, at least one layer and a place to go");
    *out = NULL;
    for (int32_t i = 0; i < n; i++) {
        ebb_status status = check_table(&layers[i], i, error);
        if (status) return status;
    }
    bool failed = false;
    ebb_layout *layout = calloc(1, sizeof *layout);
    if (layout) layout->layers = calloc((size_t)n, sizeof *layout->layers);
    if (!layout || !layout->layers) failed = true;
    for (int32_t i = 0; !failed && i < n; i++) {
        const ebb_layout_layer *from = &layers[i];
        ebb_layout_layer *to = &layout->layers[i];
        const size_t heads = (size_t)from->heads, keys = heads * (size_t)from->key_dim,
                     values = heads * (size_t)from->value_dim;
        layout->n = i + 1;
        *to = (ebb_layout_layer){.heads = from->heads, .key_dim = from->key_dim, .value_dim = from->value_dim};
        to->key_order = copy_of(from->key_order, keys, sizeof *from->key_order, &failed);
        to->value_order = copy_of(from->value_order, values, sizeof *from->value_order, &failed);
        to->value_scale = copy_of(from->value_scale, values, sizeof *from->value_scale, &failed);
        to->bits = copy_of(from->bits, heads, sizeof *from->bits, &failed);
    }
    if (failed) {
        ebb_layout_free(layout);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a layout of %d layers", n);
    }
    memcpy(layout->method, method, strlen(method) + 1);
    layout->model = model;
    *out = layout;
    return EBB_OK;
}

void ebb_layout_free(ebb_layout *layout) {
    if (!layout) return;
    for (int32_t i = 0; layout->layers && i < layout->n; i++) {
        free((void *)(uintptr_t)layout->layers[i].key_order);
        free((void *)(uintptr_t)layout->layers[i].value_order);
        free((void *)(uintptr_t)layout->layers[i].value_scale);
        free((void *)(uintptr_t)layout->layers[i].bits);
    }
    free(layout->layers);
    free(layout);
}

const char *ebb_layout_method(const ebb_layout *layout) { return layout->method; }
uint64_t ebb_layout_model(const ebb_layout *layout) { return layout->model; }

const ebb_layout_layer *ebb_layout_table(const ebb_layout *layout, int32_t layer, int32_t *count) {
    if (count) *count = layout->n;
    return layer >= 0 && layer < layout->n ? &layout->layers[layer] : NULL;
}

ebb_status layout_of_layer(const ebb_layout *layout, const char *method, const ebb_state_layer *layer,
                           const ebb_layout_layer **table, ebb_error *error) {
    if (!layout)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "method %s needs a calibrated layout and none was given; `ebb calibrate --method %s` makes one",
                        method, method);
    const ebb_layout_layer *t = ebb_layout_table(layout, layer->index, NULL);
    if (!t)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the layout has %d state layers, layer %d is asked for: it was made "
                        "for another model",
                        layout->n, layer->index);
    if (t->key_dim != layer->key_dim || t->value_dim != layer->value_dim || layer->head_begin + layer->heads > t->heads)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the layout's layer %d has %d heads of %d x %d, the model's %d of %d x %d: it was made for "
                        "another model",
                        layer->index, t->heads, t->key_dim, t->value_dim, layer->head_begin + layer->heads,
                        layer->key_dim, layer->value_dim);
    *table = t;
    return EBB_OK;
}

/* ---- a layout that changes nothing ---- */

static uint16_t *counting(int32_t heads, int32_t n) {
    uint16_t *order = calloc((size_t)heads * (size_t)n, sizeof *order);
    for (int32_t i = 0; order && i < heads * n; i++) order[i] = (uint16_t)(i % n);
    return order;
}

static bool fill_identity(ebb_layout_layer *l) {
    const int32_t values = l->heads * l->value_dim;
    float *scale = calloc((size_t)values, sizeof *scale);
    uint8_t *bits = malloc((size_t)l->heads);
    l->key_order = counting(l->heads, l->key_dim);
    l->value_order = counting(l->heads, l->value_dim);
    l->value_scale = scale;
    l->bits = bits;
    for (int32_t i = 0; scale && i < values; i++) scale[i] = 1;
    if (bits) memset(bits, 8, (size_t)l->heads);
    return l->key_order && l->value_order && scale && bits;
}

ebb_status layout_identity(const char *method, const ebb_state_layer *layers, int32_t n, ebb_layout **out,
                           ebb_error *error) {
    ebb_layout *layout = NULL;
    ebb_layout_layer *tables = n > 0 ? calloc((size_t)n, sizeof *tables) : NULL;
    if (!tables) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a layout of %d layers", n);
    for (int32_t i = 0; i < n; i++)
        tables[i] = (ebb_layout_layer){.heads = layers[i].head_begin + layers[i].heads,
                                       .key_dim = layers[i].key_dim,
                                       .value_dim = layers[i].value_dim};
    ebb_status status = ebb_layout_new(method, 0, tables, n, &layout, error);
    for (int32_t i = 0; i < n && !status; i++)
        if (!fill_identity(&layout->layers[i])) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a layout");
    free(tables);
    if (status) ebb_layout_free(layout);
    else *out = layout;
    return status;
}
