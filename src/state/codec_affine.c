/* state/codec_affine.c: the codec of DAMP's integers: unsigned, groups of 32 along the value axis with a scale and a
 * zero point, with or without a block Hadamard transform of the value axis. Arithmetic is in format/block_affine.h, the
 * layout in affine.h. `zero=exact` (the default) is the form that cannot fail, `zero=paper` the published one. */
#include "state/affine.h"

static const ebb_param params[] = {
    EBB_PARAM_WINDOW,
    {"bits", 0, 1, 1, "4|8", "bits of a code"},
    {"hadamard", 0, 1, 0, "none|32", "transform of the value axis in blocks of 32"},
    {"meta", 0, 1, 0, "fp16|fp32", "type of scale and zero point"},
    {"zero", 0, 1, 0, "exact|paper", "range extended to 0 and scale rounded up, or as published"},
    {NULL, 0, 0, 0, NULL, NULL},
};

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    (void)error;
    affine_shape s = affine_shape_of(head->layer, head->param);
    *planes = (ebb_planes){.bytes = s.bytes, .n = 2};
    planes->plane[0].name = "codes";
    planes->plane[0].bytes = s.row_bytes * (size_t)s.rows;
    planes->plane[1].name = "pairs";
    planes->plane[1].at = s.pairs_at;
    planes->plane[1].bytes = s.bytes - s.pairs_at;
    return EBB_OK;
}

static void encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                   float *tmp) {
    (void)decay, (void)old, (void)tmp;
    affine_shape s = affine_shape_of(head->layer, head->param);
    affine_encode(&s, S, packed);
}

static void decode(const ebb_head *head, const void *packed, float *S) {
    affine_shape s = affine_shape_of(head->layer, head->param);
    affine_decode(&s, packed, S);
}

const ebb_state_codec codec_affine = {"affine", params, 0, layout, encode, decode};
