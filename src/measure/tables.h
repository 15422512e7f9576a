/* measure/tables.h: a layout while calibration makes it, and the candidates of value scaling and reordering. */
#ifndef MEASURE_TABLES_H
#define MEASURE_TABLES_H

#include "ebb/model.h"

/* Where layers and heads lie in arrays over the whole model. A channel is what has a decay of its own: a head (GDN) or
 * a key row (KDA). Value places are those of [heads][value_dim]. */
typedef struct places {
    const ebb_state_layer *layers; /* [n] */
    int32_t n, heads;
    int64_t rows, values, channels;
    int32_t most_rows, most_values; /* of one head */
    struct places_layer {
        int32_t head;
        int64_t row, value, channel;
        int32_t channels; /* of one head: 1 or key_dim */
    } * first;            /* [n]: of the layer's first head */
} places;

ebb_status places_open(places *p, const ebb_state_layer *layers, int32_t n, ebb_error *error);
void places_close(places *p);
/* Layer of a head of the model. */
int32_t places_layer(const places *p, int32_t head);

typedef struct tables {
    const places *at;
    ebb_layout_layer *layers; /* [at->n], pointing into the arrays below */
    uint16_t *key_order;      /* [rows], the identity at first */
    uint16_t *value_order;    /* [values], likewise; NULL: without */
    float *value_scale;       /* [values], 1 at first */
    uint8_t *bits;            /* [heads], 8 at first; NULL: without */
} tables;

/* Identity tables: of key rows (and value coordinates), or of bits. */
enum { TABLES_KEYS = 1, TABLES_VALUES = 2, TABLES_BITS = 4 };
ebb_status tables_open(tables *t, const places *at, int32_t kinds, ebb_error *error);
void tables_close(tables *t);
ebb_status tables_layout(const tables *t, const char *method, uint64_t model, ebb_layout **layout, ebb_error *error);

/* ---- candidates of DAMP's second version: c_v = RMS_v^alpha, coordinates by falling RMS or as they are ---- */

typedef struct scaling {
    int32_t quarters; /* alpha = quarters / 4 */
    bool reorder;
} scaling;
/* alpha = 1 makes all RMS equal: there is nothing to reorder by. The first one changes nothing. */
enum { CANDIDATES = 9 };
scaling scaling_at(int32_t index);
/* Fill value_order and value_scale of all heads from mean squares [values]. */
void tables_scale(tables *t, scaling c, const double *mean_square);
/* Take one head's value tables from another. */
void tables_copy_values(tables *to, const tables *from, int32_t head);

#endif
