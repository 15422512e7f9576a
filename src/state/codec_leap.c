/* state/codec_leap.c: LeapQuant's codec: compensator tokens, residual smoothing, an integer residual. Arithmetic and
 * layout are in leap.h. `scale=ls` (the default) is the least-squares column scale, without which 4 bits diverge on
 * heads with a long memory; `scale=max` is the published one. */
#include "state/leap.h"

static const ebb_param params[] = {
    EBB_PARAM_WINDOW,
    {"bits", 0, 1, 1, "4|8", "bits of a residual code"},
    {"r", 0, LEAP_MAX_R, 4, NULL, "compensator tokens, at most the smaller dimension"},
    {"scale", 0, 1, 0, "ls|max", "column scale: least squares, or the largest value as published"},
    {NULL, 0, 0, 0, NULL, NULL},
};

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    (void)error;
    leap_shape p = leap_shape_of(head->layer, head->param);
    *planes = (ebb_planes){.bytes = p.bytes, .scratch = leap_scratch(&p), .n = 5};
    const char *const name[] = {"codes", "c", "s", "u", "w"};
    const size_t at[] = {0, p.c_at, p.s_at, p.u_at, p.w_at, p.bytes};
    for (int i = 0; i < 5; i++) {
        planes->plane[i].name = name[i];
        planes->plane[i].at = at[i];
        planes->plane[i].bytes = at[i + 1] - at[i];
    }
    planes->plane[0].bytes = p.row_bytes * (size_t)p.rows;
    return EBB_OK;
}

static void encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                   float *tmp) {
    (void)decay;
    leap_shape p = leap_shape_of(head->layer, head->param);
    leap_encode(&p, head->rng_key, S, old, packed, tmp);
}

static void decode(const ebb_head *head, const void *packed, float *S) {
    leap_shape p = leap_shape_of(head->layer, head->param);
    leap_decode(&p, packed, S);
}

const ebb_state_codec codec_leap = {"leap", params, EBB_KEEPS_OLD, layout, encode, decode};
