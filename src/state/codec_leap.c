/* state/codec_leap.c: LeapQuant's codec: compensator tokens, residual smoothing, an integer residual. Arithmetic and
 * layout are in leap.h. `scale=ls` (the default) is the least-squares column scale, without which 4 bits diverge on
 * heads with a long memory; `scale=max` is the published one. `theta`, `sticky` and `rotate` are ours; their presets
 * are the published method. */
#include "state/leap.h"

static const ebb_param params[] = {
    EBB_PARAM_WINDOW,
    {"bits", 0, 4, 3, LEAP_BITS, "bits of a residual code"},
    {"r", 0, LEAP_MAX_R, 4, NULL, "compensator tokens, at most the smaller dimension"},
    {"scale", 0, 1, 0, "ls|max", "column scale: least squares, or the largest value as published"},
    {"theta", 0, 4, 2, LEAP_THETA, "exponent of the smoothing: c = (row mean)^theta"},
    {"sticky", 0, LEAP_MAX_STICKY, 0, NULL,
     "fit only when rounding, relative to the state, exceeds this percentage of that after the last fit; 0: always"},
    {"rotate", 0, 1, 0, "none|key", "a Hadamard matrix along the key axis instead of the smoothing"},
    {NULL, 0, 0, 0, NULL, NULL},
};

ebb_planes leap_planes(const leap_shape *p) {
    ebb_planes planes = {.bytes = p->bytes, .scratch = leap_scratch(p)};
    const size_t rows = (size_t)p->rows, columns = (size_t)p->columns, r = (size_t)p->r;
    const struct {
        const char *name;
        size_t at, bytes;
    } plane[] = {{"codes", 0, rows * p->row_bytes},
                 {"high", p->high_at, rows * p->high_row_bytes},
                 {"c", p->c_at, p->s_at - p->c_at},
                 {"s", p->s_at, columns * 4},
                 {"u", p->u_at, r * rows * 2},
                 {"w", p->w_at, r * columns * 2},
                 {"gamma", p->gamma_at, (size_t)p->gammas * 4},
                 {"metric", p->metric_at, p->gammas ? 4 : 0}};
    for (int i = 0; i < COUNT(plane); i++) {
        if (!plane[i].bytes) continue;
        planes.plane[planes.n].name = plane[i].name;
        planes.plane[planes.n].at = plane[i].at;
        planes.plane[planes.n++].bytes = plane[i].bytes;
    }
    return planes;
}

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    (void)error;
    const leap_shape p = leap_shape_of(head->layer, leap_form_of(head->param));
    *planes = leap_planes(&p);
    return EBB_OK;
}

static void encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                   float *tmp) {
    const leap_shape p = leap_shape_of(head->layer, leap_form_of(head->param));
    leap_encode(&p, head->rng_key, S, decay, old, packed, tmp);
}

static void decode(const ebb_head *head, const void *packed, float *S) {
    const leap_shape p = leap_shape_of(head->layer, leap_form_of(head->param));
    leap_decode(&p, packed, S);
}

const ebb_state_codec codec_leap = {"leap", params, EBB_KEEPS_OLD, layout, encode, decode};
