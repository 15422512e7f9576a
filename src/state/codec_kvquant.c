/* state/codec_kvquant.c: KVQuant on a recurrent state: per key row a few outliers in FP16, the rest on a k-means
 * codebook. Arithmetic and layout are in kvquant.h. `ends=published` (the preset) is the method as published, except
 * that its codebook is a fixed one (kmeans.h) and not trained per model; `ends=fixed` repairs it. */
#include "state/kvquant.h"

static const ebb_param params[] = {
    EBB_PARAM_WINDOW,
    {"bits", 0, 2, 2, CODE_BITS, "bits of a code"},
    {"outliers", 0, 100, 16, NULL, "of a thousand values of a row, kept in FP16; at least one where it is not 0"},
    {"ends", 0, 1, 0, "published|fixed", "codebook and FP16 scale as published, or end points at 1 and an FP32 scale"},
    {NULL, 0, 0, 0, NULL, NULL},
};

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    (void)error;
    const kvquant_shape s = kvquant_shape_of(head->layer, head->param);
    const code_planes *c = &s.codes;
    const size_t rows = (size_t)c->rows;
    const struct {
        const char *name;
        size_t at, bytes;
    } all[] = {
        {"codes", 0, c->low_row * rows},
        {"high", c->high_at, c->high_row * rows},
        {"scales", c->end, rows * s.scale_bytes},
        {"outliers", s.outliers_at, rows * (size_t)s.outliers * 2},
        {"columns", s.columns_at, rows * (size_t)s.outliers * s.column_bytes},
    };
    *planes = (ebb_planes){.bytes = s.bytes};
    for (int i = 0; i < COUNT(all); i++) {
        if (all[i].bytes == 0) continue;
        planes->plane[planes->n].name = all[i].name;
        planes->plane[planes->n].at = all[i].at;
        planes->plane[planes->n++].bytes = all[i].bytes;
    }
    return EBB_OK;
}

static void encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                   float *tmp) {
    (void)decay, (void)old, (void)tmp;
    const kvquant_shape s = kvquant_shape_of(head->layer, head->param);
    kvquant_encode(&s, S, packed);
}

static void decode(const ebb_head *head, const void *packed, float *S) {
    const kvquant_shape s = kvquant_shape_of(head->layer, head->param);
    kvquant_decode(&s, packed, S);
}

const ebb_state_codec codec_kvquant = {"kvquant", params, 0, layout, encode, decode};
