/* state/codec_micro.c: the codec of floats of 4 and 6 bits with block scales: MXFP4, MXFP6 (OCP), NVFP4, and the same
 * with 6 bits, NVFP6, which is no standard. Arithmetic is in format/block_micro.h, the layout in micro.h. */
#include "state/micro.h"

static const ebb_param params[] = {
    EBB_PARAM_WINDOW,
    {"format", 0, 2, 0, "e2m1|e2m3|e3m2", "exponent and mantissa bits of a code"},
    {"scales", 0, 1, 0, "mx|nv", "powers of two for 32 values, or FP8 for 16 and one FP32 for all"},
    {NULL, 0, 0, 0, NULL, NULL},
};

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    (void)error;
    micro_shape s = micro_shape_of(head->layer, head->param);
    const struct {
        const char *name;
        size_t at, bytes;
    } parts[] = {
        {"codes", 0, s.high_at},
        {"high", s.high_at, s.scales_at - s.high_at},
        {"scales", s.scales_at, (size_t)s.rows * (size_t)s.blocks},
        {"global", s.global_at, s.bytes - s.global_at},
    };
    *planes = (ebb_planes){.bytes = s.bytes};
    for (int i = 0; i < 4; i++) {
        if (!parts[i].bytes) continue;
        planes->plane[planes->n].name = parts[i].name;
        planes->plane[planes->n].at = parts[i].at;
        planes->plane[planes->n].bytes = parts[i].bytes;
        planes->n++;
    }
    return EBB_OK;
}

static void encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                   float *tmp) {
    (void)decay, (void)old, (void)tmp;
    micro_shape s = micro_shape_of(head->layer, head->param);
    micro_encode(&s, S, packed);
}

static void decode(const ebb_head *head, const void *packed, float *S) {
    micro_shape s = micro_shape_of(head->layer, head->param);
    micro_decode(&s, packed, S);
}

const ebb_state_codec codec_micro = {"micro", params, 0, layout, encode, decode};
