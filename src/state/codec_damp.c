/* state/codec_damp.c: DAMP on a recurrent state, in its two published versions. A layout, made by calibration, ranks
 * the key rows of every value head by risk; the first `rows` are kept in 16 bits. codec_damp stores the others as
 * unsigned integers after a block Hadamard transform (first version); codec_reorder scales and reorders the value axis
 * and stores symmetric integers (second version). Arithmetic and layout are in damp.h. */
#include "state/damp.h"

#define PARAM_ROWS \
    { "rows", 0, DAMP_MAX_ROWS, 16, NULL, "protected key rows of a head, all at most" }
#define PARAM_HIGH \
    { "high", 0, 2, 0, DAMP_HIGH, "format of the protected rows" }

static const ebb_param damp_params[] = {
    EBB_PARAM_WINDOW,
    PARAM_ROWS,
    PARAM_HIGH,
    {"low", 0, 2, 0, DAMP_LOW, "format of the other rows; integers after a Hadamard transform of blocks of 32"},
    {"zero", 0, 1, 0, "exact|paper", "integers: range extended to 0 and scale rounded up, or as published"},
    {NULL, 0, 0, 0, NULL, NULL},
};

static const ebb_param reorder_params[] = {
    EBB_PARAM_WINDOW,
    PARAM_ROWS,
    PARAM_HIGH,
    {"low", 0, 1, 0, REORDER_LOW, "format of the other rows"},
    {NULL, 0, 0, 0, NULL, NULL},
};

/* The tables that the codec reads have to be there. */
static ebb_status check_table(const ebb_head *head, const char *codec, bool reorder, ebb_error *error) {
    const ebb_layout_layer *t = head->table;
    const char *lacks = NULL;
    if (!t)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s needs a layout; `ebb calibrate --method %s` makes one", codec,
                        codec);
    if (reorder && !t->value_scale) lacks = "value_scale";
    if (reorder && !t->value_order) lacks = "value_order";
    if (head->param[DAMP_PARAM_ROWS] > 0 && !t->key_order) lacks = "key_order";
    return lacks ? ebb_fail(error, EBB_BAD_ARGUMENT,
                            "layer %d of the layout has no %s, which %s needs; `ebb calibrate --method %s` makes one",
                            head->layer->index, lacks, codec, codec)
                 : EBB_OK;
}

static void add_plane(ebb_planes *planes, const char *name, size_t at, size_t bytes) {
    if (bytes == 0) return;
    planes->plane[planes->n].name = name;
    planes->plane[planes->n].at = at;
    planes->plane[planes->n++].bytes = bytes;
}

static ebb_planes planes_of(const damp_shape *s) {
    const size_t low = (size_t)(s->rows - s->high);
    ebb_planes planes = {.bytes = s->bytes};
    add_plane(&planes, "high", 0, (size_t)s->high * (size_t)s->columns * 2);
    add_plane(&planes, "codes", s->codes_at, low * s->code_row);
    add_plane(&planes, s->low <= DAMP_AFFINE4 ? "pairs" : "scales", s->meta_at, low * s->meta_row);
    add_plane(&planes, "global", s->global_at, s->bytes - s->global_at);
    return planes;
}

/* ---- the first version ---- */

static ebb_status damp_layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    const damp_shape s = damp_shape_of(head, false);
    *planes = planes_of(&s);
    return check_table(head, "damp", false, error);
}

static void damp_encode_head(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                             float *tmp) {
    (void)decay, (void)old, (void)tmp;
    const damp_shape s = damp_shape_of(head, false);
    damp_encode(&s, draw_key(head), S, packed);
}

static void damp_decode_head(const ebb_head *head, const void *packed, float *S) {
    const damp_shape s = damp_shape_of(head, false);
    damp_decode(&s, packed, S);
}

const ebb_state_codec codec_damp = {
    "damp", damp_params, EBB_NEEDS_TABLE, damp_layout, damp_encode_head, damp_decode_head,
};

/* ---- the second ---- */

static ebb_status reorder_layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    const damp_shape s = damp_shape_of(head, true);
    *planes = planes_of(&s);
    return check_table(head, "damp-reorder", true, error);
}

static void reorder_encode_head(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                                float *tmp) {
    (void)decay, (void)old, (void)tmp;
    const damp_shape s = damp_shape_of(head, true);
    damp_encode(&s, draw_key(head), S, packed);
}

static void reorder_decode_head(const ebb_head *head, const void *packed, float *S) {
    const damp_shape s = damp_shape_of(head, true);
    damp_decode(&s, packed, S);
}

const ebb_state_codec codec_reorder = {
    "damp-reorder", reorder_params, EBB_NEEDS_TABLE, reorder_layout, reorder_encode_head, reorder_decode_head,
};
