/* default_layout.h: layouts for tests of calibrated methods: every table a method may ask for, drawn at random, so that
 * a permutation or a scale that is not undone shows. Needs ebb-core only. */
#ifndef DEFAULT_LAYOUT_H
#define DEFAULT_LAYOUT_H

#include "core/core.h"
#include "ebb/state.h"

#include <math.h>
#include <stdlib.h>

/* [heads] permutations of 0 .. n-1. */
static inline uint16_t *shuffled(int32_t heads, int32_t n, uint64_t *s) {
    uint16_t *order = calloc((size_t)heads * (size_t)n, sizeof *order);
    for (int32_t h = 0; order && h < heads; h++) {
        uint16_t *row = order + (size_t)h * (size_t)n;
        for (int32_t i = 0; i < n; i++) row[i] = (uint16_t)i;
        for (int32_t i = n - 1; i > 0; i--) {
            const int32_t j = (int32_t)(mix64((*s)++) % (uint64_t)(i + 1));
            const uint16_t swap = row[i];
            row[i] = row[j], row[j] = swap;
        }
    }
    return order;
}

/* The layers of a model, in its order: scales within 1/2 .. 2, bits of 6, 8 and 12. */
static inline ebb_status default_layout(const char *method, uint64_t model, const ebb_state_layer *layers, int32_t n,
                                        ebb_layout **layout, ebb_error *error) {
    static const uint8_t classes[] = {6, 8, 12};
    ebb_layout_layer *tables = calloc((size_t)n, sizeof *tables);
    uint64_t s = 17;
    ebb_status status = EBB_OK;
    for (int32_t i = 0; tables && i < n; i++) {
        ebb_layout_layer *t = &tables[i];
        *t = (ebb_layout_layer){.heads = layers[i].head_begin + layers[i].heads,
                                .key_dim = layers[i].key_dim,
                                .value_dim = layers[i].value_dim};
        const int32_t values = t->heads * t->value_dim;
        float *scale = calloc((size_t)values, sizeof *scale);
        uint8_t *bits = calloc((size_t)t->heads, 1);
        t->key_order = shuffled(t->heads, t->key_dim, &s);
        t->value_order = shuffled(t->heads, t->value_dim, &s);
        t->value_scale = scale, t->bits = bits;
        if (!scale || !bits || !t->key_order || !t->value_order) status = EBB_NO_MEMORY;
        for (int32_t j = 0; scale && j < values; j++)
            scale[j] = exp2f((float)((double)(mix64(s++) >> 11) / 4503599627370496.0 - 1.0));
        for (int32_t h = 0; bits && h < t->heads; h++) bits[h] = classes[(i + h) % COUNT(classes)];
    }
    if (!tables || status) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a layout");
    else status = ebb_layout_new(method, model, tables, n, layout, error);
    for (int32_t i = 0; tables && i < n; i++) {
        free((void *)(uintptr_t)tables[i].key_order), free((void *)(uintptr_t)tables[i].value_order);
        free((void *)(uintptr_t)tables[i].value_scale), free((void *)(uintptr_t)tables[i].bits);
    }
    free(tables);
    return status;
}

/* Give a calibrated method its layout, and others none. The caller frees *layout, which may be NULL, after use. */
static inline ebb_status default_layout_for(ebb_state_spec *spec, const ebb_state_layer *layers, int32_t n,
                                            ebb_layout **layout, ebb_error *error) {
    const char *name = ebb_state_layout_name(spec->method);
    *layout = NULL;
    ebb_status status = name ? default_layout(name, 0, layers, n, layout, error) : EBB_OK;
    spec->layout = *layout;
    return status;
}

#endif
