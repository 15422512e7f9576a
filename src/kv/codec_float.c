/* kv/codec_float.c: keys and values as rows of plain floating-point numbers: every token is sealed at once (group 1),
 * each part of the layer is one plane: "k" and "v", or "kv" and "k" of an MLA latent. Reached through the table in
 * methods.c. */
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

static ebb_status float_layout(const ebb_kv_layer *layer, const double *param, ebb_kv_rule *rule, ebb_planes *planes,
                               ebb_error *error) {
    ebb_status status = kv_layer_check(layer, error);
    if (status) return status;
    const ebb_format *format = format_of(param);
    if (!format)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "format %g of a float KV store is not an index of fp32|fp16|bf16",
                        param[0]);
    static const char *const names[] = {[EBB_ROLE_K] = "k", [EBB_ROLE_V] = "v", [EBB_ROLE_K | EBB_ROLE_V] = "kv"};
    *rule = (ebb_kv_rule){.group = 1, .pure = 1};
    *planes = (ebb_planes){.exact = param[0] == KV_FLOAT_FP32, .n = layer->parts};
    for (int32_t i = 0; i < layer->parts; i++) {
        planes->plane[i].name = names[layer->part[i].role];
        planes->plane[i].at = planes->bytes;
        planes->plane[i].bytes = ebb_format_code_bytes(format, layer->part[i].dims);
        planes->bytes += planes->plane[i].bytes;
    }
    return EBB_OK;
}

static void float_encode(const ebb_kv_layer *layer, const double *param, const float *rows, void *packed, float *tmp) {
    (void)tmp;
    const ebb_format *format = format_of(param);
    uint8_t *to = packed;
    for (int32_t i = 0; i < layer->parts; i++) {
        int64_t dims = layer->part[i].dims;
        format->encode(rows, dims, to, NULL);
        to += ebb_format_code_bytes(format, dims);
        rows += dims;
    }
}

static void float_decode(const ebb_kv_layer *layer, const double *param, const void *packed, float *rows) {
    const ebb_format *format = format_of(param);
    const uint8_t *from = packed;
    for (int32_t i = 0; i < layer->parts; i++) {
        int64_t dims = layer->part[i].dims;
        format->decode(from, NULL, dims, rows);
        from += ebb_format_code_bytes(format, dims);
        rows += dims;
    }
}

const ebb_kv_codec kv_codec_float = {
    .name = "float",
    .params = params,
    .layout = float_layout,
    .encode = float_encode,
    .decode = float_decode,
};
