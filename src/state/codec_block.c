/* state/codec_block.c: the codec of plain formats: every number alone (fp32, fp16, bf16) or integers in groups of 32
 * along the value axis with an FP32 scale (int8, int4). Arithmetic and layout are in block.h; a row of methods.c names
 * a format. */
#include "state/block.h"

static const ebb_param params[] = {
    EBB_PARAM_WINDOW,
    {"format", 0, 4, 0, BLOCK_FORMATS, "storage format of the matrix"},
    {NULL, 0, 0, 0, NULL, NULL},
};

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    (void)error;
    block_shape s = block_shape_of(head->layer, head->param);
    *planes = (ebb_planes){.bytes = s.bytes, .exact = s.format == BLOCK_FP32, .n = s.groups ? 2 : 1};
    planes->plane[0].name = "codes";
    planes->plane[0].bytes = s.row_bytes * (size_t)s.rows;
    if (s.groups) {
        planes->plane[1].name = "scales";
        planes->plane[1].at = s.scales_at;
        planes->plane[1].bytes = s.bytes - s.scales_at;
    }
    return EBB_OK;
}

static void encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                   float *tmp) {
    (void)decay, (void)old, (void)tmp;
    block_shape s = block_shape_of(head->layer, head->param);
    block_encode(&s, S, packed);
}

static void decode(const ebb_head *head, const void *packed, float *S) {
    block_shape s = block_shape_of(head->layer, head->param);
    block_decode(&s, packed, S);
}

const ebb_state_codec codec_block = {"block", params, 0, layout, encode, decode};
