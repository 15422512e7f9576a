/* kv/codec_float.c: keys and values as rows of plain floating-point numbers: every token is sealed at once (group 1),
 * plane "k" and plane "v" are its two rows. Reached through the table in methods.c. */
#include "kv/kv_int.h"

static const char *const format_names[KV_FLOAT_FORMATS] = {"fp32", "fp16", "bf16"};

static const ebb_param params[] = {
    {"format", 0, KV_FLOAT_FORMATS - 1, KV_FLOAT_BF16, "fp32|fp16|bf16", "how one number is stored"},
    {0},
};

/* NULL: no such format; layout refuses it, so encode and decode never see it. */
static const ebb_format *format_of(const double *param) {
    for (int32_t i = 0; i < KV_FLOAT_FORMATS; i++)
        if (param[0] == i) return ebb_format_find(format_names[i]);
    return NULL;
}

static ebb_status float_layout(const ebb_kv_layer *layer, const double *param, int32_t *group, ebb_planes *planes,
                               ebb_error *error) {
    ebb_status status = kv_layer_check(layer, error);
    if (status) return status;
    const ebb_format *format = format_of(param);
    if (!format)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "format %g of a float KV store is not an index of fp32|fp16|bf16",
                        param[0]);
    if (layer->parts != 2 || layer->part[0].role != EBB_ROLE_K || layer->part[1].role != EBB_ROLE_V)
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "a float KV store holds one key part and one value part, not %d parts of other roles",
                        layer->parts);
    size_t k = ebb_format_code_bytes(format, layer->part[0].dims),
           v = ebb_format_code_bytes(format, layer->part[1].dims);
    *group = 1;
    *planes = (ebb_planes){.bytes = k + v, .exact = param[0] == KV_FLOAT_FP32, .n = 2};
    planes->plane[0].name = "k";
    planes->plane[0].bytes = k;
    planes->plane[1].name = "v";
    planes->plane[1].at = k;
    planes->plane[1].bytes = v;
    return EBB_OK;
}

static void float_encode(const ebb_kv_layer *layer, const double *param, const float *rows, void *packed, float *tmp) {
    (void)tmp;
    const ebb_format *format = format_of(param);
    int64_t k = layer->part[0].dims, v = layer->part[1].dims;
    format->encode(rows, k, packed, NULL);
    format->encode(rows + k, v, (uint8_t *)packed + ebb_format_code_bytes(format, k), NULL);
}

static void float_decode(const ebb_kv_layer *layer, const double *param, const void *packed, float *rows) {
    const ebb_format *format = format_of(param);
    int64_t k = layer->part[0].dims, v = layer->part[1].dims;
    format->decode(packed, NULL, k, rows);
    format->decode((const uint8_t *)packed + ebb_format_code_bytes(format, k), NULL, v, rows + k);
}

const ebb_kv_codec kv_codec_float = {
    .name = "float",
    .params = params,
    .flags = EBB_PREFIX_PURE,
    .layout = float_layout,
    .encode = float_encode,
    .decode = float_decode,
};
