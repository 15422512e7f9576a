/* kv/methods.c: THE table of KV methods, and what a method string says: NAME[:key=value,...]. */
#include <math.h>

#include "kv/kv_int.h"
#include "state/params.h"

static const ebb_kv_method methods[] = {
    {"fp32", &kv_codec_float, "format=fp32", "keys and values as FP32: exact"},
    {"fp16", &kv_codec_float, "format=fp16", "keys and values as FP16, saturating at 65504"},
    {"bf16", &kv_codec_float, "format=bf16", "keys and values as BF16"},
};

const ebb_kv_method *ebb_kv_methods(int32_t *count) {
    *count = COUNT(methods);
    return methods;
}

ebb_status ebb_kv_parse(const char *text, ebb_kv_spec *spec, ebb_error *error) {
    int32_t row;
    const char *params;
    if (!text) return ebb_fail(error, EBB_BAD_ARGUMENT, "no KV method is given; expected NAME[:key=value,...]");
    ebb_status status = method_find("KV", text, methods, COUNT(methods), sizeof methods[0], &row, &params, error);
    if (status) return status;
    const ebb_kv_method *method = &methods[row];
    *spec = (ebb_kv_spec){.method = method};
    return params_read(method->name, method->codec->params, method->defaults, params, spec->param, error);
}

ebb_status kv_layer_check(const ebb_kv_layer *layer, ebb_error *error) {
    if (layer->heads < 1 || layer->q_heads < 1 || layer->q_heads % layer->heads)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "an attention layer has %d query heads and %d KV heads; expected a multiple and its divisor",
                        layer->q_heads, layer->heads);
    if (layer->parts < 1 || layer->parts > COUNT(layer->part))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV layer has %d parts; expected 1 to 3", layer->parts);
    int32_t values = 0;
    for (int32_t i = 0; i < layer->parts; i++) {
        int32_t dims = layer->part[i].dims, role = layer->part[i].role;
        if (dims < 1 || dims > EBB_MAX_HEAD_DIM)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "part %d of a KV layer has %d dims; expected 1 to %d", i, dims,
                            EBB_MAX_HEAD_DIM);
        if (role < EBB_ROLE_K || role > (EBB_ROLE_K | EBB_ROLE_V))
            return ebb_fail(error, EBB_BAD_ARGUMENT, "part %d of a KV layer has role %d; expected key, value or both",
                            i, role);
        values += (role & EBB_ROLE_V) != 0;
        if (role == EBB_ROLE_V && (i == 0 || i + 1 < layer->parts))
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "part %d of %d of a KV layer is a value only; expected behind all key parts", i,
                            layer->parts);
    }
    if (values != 1) return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV layer has %d value parts; expected one", values);
    if (!isfinite(layer->scale))
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the score scale of an attention layer is %g; expected a finite number", (double)layer->scale);
    return EBB_OK;
}

ebb_status ebb_kv_token_bytes(const ebb_kv_spec *spec, const ebb_kv_layer *layer, size_t *bytes, ebb_error *error) {
    int32_t group;
    ebb_planes planes;
    ebb_status status = spec->method->codec->layout(layer, spec->param, &group, &planes, error);
    if (status) return status;
    size_t all;
    if (!size_mul((size_t)layer->heads, planes.bytes, &all))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV layer of %d heads is too large", layer->heads);
    *bytes = (all + (size_t)group - 1) / (size_t)group;
    return EBB_OK;
}
