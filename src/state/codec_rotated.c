/* state/codec_rotated.c: QuaRot and TurboQuant on a recurrent state: key rows rotated along the value axis, then
 * integers or a Lloyd-Max codebook with one FP32 scale per row. Arithmetic and layout are in rotated.h. The presets are
 * the published methods; `ls` makes the scale the least-squares one, with which storing never amplifies (maths 5.5). */
#include "state/rotated.h"

static const ebb_param quarot_params[] = {
    EBB_PARAM_WINDOW,
    {"bits", 0, 2, 2, CODE_BITS, "bits of a code"},
    {"scale", 0, 1, 0, "max|ls", "row scale: the largest value as published, or least squares"},
    {"clip", 50, 100, 100, NULL, "percent of a row's largest value that is the largest code"},
    {NULL, 0, 0, 0, NULL, NULL},
};

static const ebb_param turbo_params[] = {
    EBB_PARAM_WINDOW,
    {"bits", 0, 2, 2, CODE_BITS, "bits of a code"},
    {"norm", 0, 1, 0, "stored|ls", "row scale: its norm as published, or least squares"},
    {NULL, 0, 0, 0, NULL, NULL},
};

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    (void)error;
    const rotated_shape s = rotated_shape_of(head->layer, head->param);
    *planes = (ebb_planes){.bytes = s.bytes, .n = s.codes.bits == 6 ? 3 : 2};
    planes->plane[0].name = "codes";
    planes->plane[0].bytes = s.codes.low_row * (size_t)s.codes.rows;
    if (s.codes.bits == 6) {
        planes->plane[1].name = "high";
        planes->plane[1].at = s.codes.high_at;
        planes->plane[1].bytes = s.codes.high_row * (size_t)s.codes.rows;
    }
    planes->plane[planes->n - 1].name = "scales";
    planes->plane[planes->n - 1].at = s.codes.end;
    planes->plane[planes->n - 1].bytes = (size_t)s.codes.rows * 4;
    return EBB_OK;
}

static void encode_quarot(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                          float *tmp) {
    (void)decay, (void)old, (void)tmp;
    const rotated_shape s = rotated_shape_of(head->layer, head->param);
    quarot_encode(&s, head->param, S, packed);
}

static void decode_quarot(const ebb_head *head, const void *packed, float *S) {
    const rotated_shape s = rotated_shape_of(head->layer, head->param);
    quarot_decode(&s, packed, S);
}

static void encode_turbo(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                         float *tmp) {
    (void)decay, (void)old, (void)tmp;
    const rotated_shape s = rotated_shape_of(head->layer, head->param);
    turbo_encode(&s, head->param, S, packed);
}

static void decode_turbo(const ebb_head *head, const void *packed, float *S) {
    const rotated_shape s = rotated_shape_of(head->layer, head->param);
    turbo_decode(&s, packed, S);
}

const ebb_state_codec codec_quarot = {"quarot", quarot_params, 0, layout, encode_quarot, decode_quarot};
const ebb_state_codec codec_turboquant = {"turboquant", turbo_params, 0, layout, encode_turbo, decode_turbo};
