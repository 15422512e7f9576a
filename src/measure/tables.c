/* measure/tables.c: layouts under construction (tables.h). Called by calibrate.c and tally.c. */
#include "measure/tables.h"
#include "core/core.h"
#include "measure/selectors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- places ---- */

ebb_status places_open(places *p, const ebb_state_layer *layers, int32_t n, ebb_error *error) {
    *p = (places){.layers = layers, .n = n, .first = calloc((size_t)n, sizeof *p->first)};
    if (!p->first) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d layers", n);
    for (int32_t i = 0; i < n; i++) {
        const ebb_state_layer *l = &layers[i];
        const int32_t channels = l->kind == EBB_KDA ? l->key_dim : 1;
        p->first[i] = (struct places_layer){p->heads, p->rows, p->values, p->channels, channels};
        p->heads += l->heads;
        p->rows += (int64_t)l->heads * l->key_dim;
        p->values += (int64_t)l->heads * l->value_dim;
        p->channels += (int64_t)l->heads * channels;
        if (l->key_dim > p->most_rows) p->most_rows = l->key_dim;
        if (l->value_dim > p->most_values) p->most_values = l->value_dim;
    }
    return EBB_OK;
}

void places_close(places *p) {
    free(p->first);
    *p = (places){0};
}

int32_t places_layer(const places *p, int32_t head) {
    int32_t i = p->n - 1;
    while (p->first[i].head > head) i--;
    return i;
}

/* ---- tables ---- */

static void point_layers(tables *t) {
    const places *at = t->at;
    for (int32_t i = 0; i < at->n; i++) {
        const ebb_state_layer *l = &at->layers[i];
        t->layers[i] = (ebb_layout_layer){.heads = l->heads, .key_dim = l->key_dim, .value_dim = l->value_dim};
        if (t->key_order) t->layers[i].key_order = t->key_order + at->first[i].row;
        if (t->value_order) t->layers[i].value_order = t->value_order + at->first[i].value;
        if (t->value_scale) t->layers[i].value_scale = t->value_scale + at->first[i].value;
        if (t->bits) t->layers[i].bits = t->bits + at->first[i].head;
        for (int64_t j = 0; t->key_order && j < (int64_t)l->heads * l->key_dim; j++)
            t->key_order[at->first[i].row + j] = (uint16_t)(j % l->key_dim);
        for (int64_t j = 0; t->value_order && j < (int64_t)l->heads * l->value_dim; j++) {
            t->value_order[at->first[i].value + j] = (uint16_t)(j % l->value_dim);
            t->value_scale[at->first[i].value + j] = 1;
        }
    }
    if (t->bits) memset(t->bits, 8, (size_t)at->heads);
}

ebb_status tables_open(tables *t, const places *at, int32_t kinds, ebb_error *error) {
    const size_t rows = (size_t)at->rows, values = (size_t)at->values, heads = (size_t)at->heads;
    *t = (tables){.at = at, .layers = calloc((size_t)at->n, sizeof *t->layers)};
    if (kinds & TABLES_KEYS) t->key_order = calloc(rows, sizeof *t->key_order);
    if (kinds & TABLES_VALUES) {
        t->value_order = calloc(values, sizeof *t->value_order);
        t->value_scale = calloc(values, sizeof *t->value_scale);
    }
    if (kinds & TABLES_BITS) t->bits = calloc(heads, sizeof *t->bits);
    if (!t->layers || (kinds & TABLES_KEYS && !t->key_order) ||
        (kinds & TABLES_VALUES && !(t->value_order && t->value_scale)) || (kinds & TABLES_BITS && !t->bits)) {
        tables_close(t);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the tables of %d heads", at->heads);
    }
    point_layers(t);
    return EBB_OK;
}

void tables_close(tables *t) {
    free(t->layers), free(t->key_order), free(t->value_order), free(t->value_scale), free(t->bits);
    *t = (tables){0};
}

ebb_status tables_layout(const tables *t, const char *method, uint64_t model, ebb_layout **layout, ebb_error *error) {
    return ebb_layout_new(method, model, t->layers, t->at->n, layout, error);
}

/* ---- candidates ---- */

scaling scaling_at(int32_t index) { return (scaling){index / 2, index % 2 == 1}; }

/* One head. A coordinate that is (nearly) always 0 is scaled as one of a millionth of the largest RMS; all zero: by 1.
 */
static void scale_head(scaling c, const double *mean_square, int32_t n, float *scale, uint16_t *order) {
    double top = 0;
    for (int32_t v = 0; v < n; v++) top = fmax(top, mean_square[v]);
    for (int32_t v = 0; v < n; v++) {
        const double rms = top > 0 ? sqrt(fmax(mean_square[v], 1e-12 * top)) : 1;
        scale[v] = (float)fmin(fmax(pow(rms, 0.25 * c.quarters), 1e-20), 1e20);
        order[v] = (uint16_t)v;
    }
    if (!c.reorder) return;
    ranked ranking[EBB_MAX_STATE_DIM];
    rank_by(mean_square, n, ranking); /* scaled RMS fall as the RMS do */
    for (int32_t v = 0; v < n; v++) order[v] = (uint16_t)ranking[v].at;
}

void tables_scale(tables *t, scaling c, const double *mean_square) {
    for (int32_t i = 0; i < t->at->n; i++) {
        const ebb_state_layer *l = &t->at->layers[i];
        for (int64_t h = 0; h < l->heads; h++) {
            const int64_t at = t->at->first[i].value + h * l->value_dim;
            scale_head(c, mean_square + at, l->value_dim, t->value_scale + at, t->value_order + at);
        }
    }
}

void tables_copy_values(tables *to, const tables *from, int32_t head) {
    const int32_t i = places_layer(to->at, head), n = to->at->layers[i].value_dim;
    const int64_t at = to->at->first[i].value + (int64_t)(head - to->at->first[i].head) * n;
    memcpy(to->value_scale + at, from->value_scale + at, (size_t)n * sizeof *to->value_scale);
    memcpy(to->value_order + at, from->value_order + at, (size_t)n * sizeof *to->value_order);
}
