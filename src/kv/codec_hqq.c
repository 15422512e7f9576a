/* kv/codec_hqq.c: what HyQuant's evaluation measured under the name KIVI: the quantized cache of the transformers
 * library with HQQ's quantizer, 2 bits, axis 0, groups of 64 and a residual of 256 tokens. It rounds the whole prompt
 * at its end and everything once more each time the residual is full, and it groups numbers that lie far apart. So this
 * is no store that saves memory but a way to measure accuracy: rows stay FP16, and `rewrite` rounds them in place.
 *
 * Rounding of `tokens` tokens of a part: the numbers [head][token][dim] in one row, n = ceil(count / 64); number j is
 * in one group with j + n, j + 2n, ... With the ends lo and hi of a group: f = min(qmax / (hi - lo), 20000), z = -lo *
 * f, code = round(x * f + z) within 0 .. qmax, value = (code - z) / f. HQQ's optimiser is off, which is the preset of
 * its `quantize`. Rounding is in FP32, the result FP16. There is no way back behind a rounding. Reached through the
 * table in methods.c. */
#include "format/float16.h"
#include "kv/kv_int.h"

enum { HQQ_BITS, HQQ_RESIDUAL };
enum { HQQ_GROUP = 64 };

static const ebb_param params[] = {
    {"bits", 0, 1, 0, "2|4", "bits of a code"},
    {"residual", 1, 4096, 256, NULL, "generated tokens that wait for the next rounding"},
    {0},
};

static ebb_status hqq_layout(const ebb_kv_layer *layer, const double *param, ebb_kv_rule *rule, ebb_planes *planes,
                             ebb_error *error) {
    static const char *const names[] = {[EBB_ROLE_K] = "k", [EBB_ROLE_V] = "v", [EBB_ROLE_K | EBB_ROLE_V] = "kv"};
    const int32_t residual = (int32_t)param[HQQ_RESIDUAL];
    ebb_status status = kv_layer_check(layer, error);
    if (status) return status;
    *rule = (ebb_kv_rule){.group = 1, .window = {residual, residual}};
    *planes = (ebb_planes){.n = layer->parts};
    for (int32_t i = 0; i < layer->parts; i++) {
        planes->plane[i].name = names[layer->part[i].role];
        planes->plane[i].at = planes->bytes;
        planes->plane[i].bytes = (size_t)layer->part[i].dims * sizeof(uint16_t);
        planes->bytes += planes->plane[i].bytes;
    }
    return EBB_OK;
}

static void hqq_encode(const ebb_kv_layer *layer, const double *param, const float *rows, void *packed, float *tmp) {
    (void)param, (void)tmp;
    uint16_t *to = packed;
    for (int32_t d = 0, all = kv_shape_of(layer).all; d < all; d++) to[d] = float_to_fp16(rows[d]);
}

static void hqq_decode(const ebb_kv_layer *layer, const double *param, const void *packed, float *rows) {
    (void)param;
    const uint16_t *from = packed;
    for (int32_t d = 0, all = kv_shape_of(layer).all; d < all; d++) rows[d] = fp16_to_float(from[d]);
}

/* A NaN is in no range and becomes the lowest value. */
static void round_group(uint16_t *const *at, int32_t n, float qmax) {
    float lo = INFINITY, hi = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        const float x = fp16_to_float(*at[i]);
        lo = x < lo ? x : lo;
        hi = x > hi ? x : hi;
    }
    if (lo > hi) lo = hi = 0;
    float f = hi > lo ? qmax / (hi - lo) : 2e4f;
    f = f < 2e4f ? f : 2e4f;
    const float zero = -lo * f;
    for (int32_t i = 0; i < n; i++) {
        float q = fp16_to_float(*at[i]) * f + zero;
        q = q > 0 ? q : 0;
        *at[i] = float_to_fp16((round_even(q < qmax ? q : qmax) - zero) / f);
    }
}

static void hqq_rewrite(const ebb_kv_view *view, int32_t slot, int64_t tokens, float *tmp) {
    (void)tmp;
    const ebb_kv_layer *layer = view->layer;
    const float qmax = view->param[HQQ_BITS] == 0 ? 3 : 15;
    for (int32_t part = 0; part < layer->parts; part++) {
        const int64_t dims = layer->part[part].dims, head = tokens * dims, all = head * layer->heads,
                      n = (all + HQQ_GROUP - 1) / HQQ_GROUP;
        for (int64_t j = 0; j < n; j++) {
            uint16_t *at[HQQ_GROUP];
            int32_t count = 0;
            for (int64_t e = j; e < all; e += n) {
                uint8_t *row = kv_at(view, slot, (int32_t)(e / head), part, e % head / dims);
                at[count++] = (uint16_t *)(void *)row + e % dims;
            }
            round_group(at, count, qmax);
        }
    }
}

const ebb_kv_codec kv_codec_hqq = {
    .name = "hqq",
    .params = params,
    .layout = hqq_layout,
    .encode = hqq_encode,
    .decode = hqq_decode,
    .rewrite = hqq_rewrite,
};
