/* kv/methods.c: THE table of KV methods, and what a method string says: NAME[:key=value,...]. */
#include <math.h>
#include <stdio.h>

#include "kv/kv_int.h"
#include "kv/token.h"
#include "state/params.h"

#define VERT "window=256,ratio=0.05"

static const ebb_kv_method methods[] = {
    {"fp32", &kv_codec_float, "format=fp32", "keys and values as FP32: exact"},
    {"fp16", &kv_codec_float, "format=fp16", "keys and values as FP16, saturating at 65504"},
    {"bf16", &kv_codec_float, "format=bf16", "keys and values as BF16"},
    {"k8v8", &kv_codec_token, "k=8,v=8", "INT8, a scale a token"},
    {"k4v4", &kv_codec_token, "k=4,v=4", "INT4, a scale a token"},
    {"k4v2", &kv_codec_token, "k=4,v=2", "keys INT4, values of 2 bits"},
    {"k2v4", &kv_codec_token, "k=2,v=4", "keys of 2 bits, values INT4"},
    {"k8v8-vert", &kv_codec_token, "k=8,v=8," VERT, "k8v8 with vertical keys and a window in 16 bits"},
    {"k4v4-vert", &kv_codec_token, "k=4,v=4," VERT, "k4v4 with vertical keys and a window in 16 bits"},
    {"k4v2-vert", &kv_codec_token, "k=4,v=2," VERT, "k4v2 with vertical keys and a window in 16 bits"},
    {"k2v4-vert", &kv_codec_token, "k=2,v=4," VERT, "k2v4 with vertical keys and a window in 16 bits"},
    {"hyquant", &kv_codec_token, "k=4,v=4," VERT, "HyQuant: k4v4-vert and the prefill vquant_vert"},
    {"hyquant-k4v2", &kv_codec_token, "k=4,v=2," VERT, "k4v2-vert and the prefill vquant_vert"},
    {"hyquant-k2v4", &kv_codec_token, "k=2,v=4," VERT, "k2v4-vert and the prefill vquant_vert"},
    {"kvtuner", &kv_codec_token, "k=layer,v=layer", "k4v4 with the bits of each layer from a file: --kv-bits"},
    {"kivi4", &kv_codec_kivi, "bits=4", "KIVI: 4 bits, keys per channel, values per token, groups of 32"},
    {"kivi2", &kv_codec_kivi, "bits=2", "KIVI with 2 bits"},
    {"kivi-hqq", &kv_codec_hqq, "", "simulation in FP16: HyQuant's KIVI baseline, rounded by HQQ; no memory gain"},
};

/* Names of the published code: another one, with parameters; or the float cache with a prefill. */
static const struct alias {
    const char *name, *method, *params, *prefill;
} aliases[] = {
    {"d_k4v4", "k4v4", "window=256", NULL},       {"d_k8v8", "k8v8", "window=256", NULL},
    {"d_k4v2", "k4v2", "window=256", NULL},       {"d_k2v4", "k2v4", "window=256", NULL},
    {"d_k8v8_vert", "k8v8-vert", NULL, NULL},     {"d_k4v4_vert", "k4v4-vert", NULL, NULL},
    {"d_k4v2_vert", "k4v2-vert", NULL, NULL},     {"d_k2v4_vert", "k2v4-vert", NULL, NULL},
    {"hybrid_full", "hyquant", NULL, NULL},       {"hybrid_k4v2", "hyquant-k4v2", NULL, NULL},
    {"hybrid_k2v4", "hyquant-k2v4", NULL, NULL},  {"dense", "bf16", NULL, "full"},
    {"full_attention", "bf16", NULL, "full"},     {"flash_attention_2", "bf16", NULL, "full"},
    {"sage_w0", "bf16", NULL, "sage_w0"},         {"sage_w", "bf16", NULL, "sage_w"},
    {"vquant_vert", "bf16", NULL, "vquant_vert"}, {"sparse_only", "bf16", NULL, "sparse_only"},
};

const ebb_kv_method *ebb_kv_methods(int32_t *count) {
    *count = COUNT(methods);
    return methods;
}

static const struct alias *alias_of(const char *text) {
    const size_t n = strcspn(text, ":");
    for (int32_t i = 0; i < COUNT(aliases); i++)
        if (strlen(aliases[i].name) == n && !memcmp(aliases[i].name, text, n)) return &aliases[i];
    return NULL;
}

/* HyQuant's prefill chooses its vertical keys as the cache does. */
static void bring_prefill(ebb_kv_spec *spec) {
    if (spec->method->codec != &kv_codec_token || strncmp(spec->method->name, "hyquant", 7) != 0) return;
    spec->prefill = (ebb_prefill){
        .mode = EBB_PREFILL_VQUANT, .window = (int32_t)spec->param[TOKEN_WINDOW], .ratio = spec->param[TOKEN_RATIO]};
    if (spec->prefill.ratio > 0) spec->prefill.select = EBB_SELECT_SEGMENT + (int32_t)spec->param[TOKEN_SELECT];
}

static ebb_status parse_method(const char *text, ebb_kv_spec *spec, ebb_error *error) {
    int32_t row;
    const char *params;
    ebb_status status = method_find("KV", text, methods, COUNT(methods), sizeof methods[0], &row, &params, error);
    if (status) return status;
    const ebb_kv_method *method = &methods[row];
    *spec = (ebb_kv_spec){.method = method};
    status = params_read(method->name, method->codec->params, method->defaults, params, spec->param, error);
    if (!status) bring_prefill(spec);
    return status;
}

ebb_status ebb_kv_parse(const char *text, ebb_kv_spec *spec, ebb_error *error) {
    char as[256];
    if (!text) return ebb_fail(error, EBB_BAD_ARGUMENT, "no KV method is given; expected NAME[:key=value,...]");
    const struct alias *alias = alias_of(text);
    if (!alias) return parse_method(text, spec, error);
    /* What follows the colon belongs to the prefill where the name is one, else to the method. */
    const char *given = text[strlen(alias->name)] ? text + strlen(alias->name) + 1 : "";
    const char *name = alias->prefill ? alias->prefill : alias->method, *preset = alias->params ? alias->params : "";
    const int n = snprintf(as, sizeof as, "%s%s%s%s%s", name, *preset || *given ? ":" : "", preset,
                           *preset && *given ? "," : "", given);
    if (n < 0 || (size_t)n >= sizeof as)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "KV method %s: parameters of %zu bytes; expected less than %zu",
                        alias->name, strlen(given), sizeof as);
    if (!alias->prefill) return parse_method(as, spec, error);
    ebb_prefill prefill;
    ebb_status status = ebb_prefill_parse(as, &prefill, error);
    if (!status) status = parse_method(alias->method, spec, error);
    if (!status) spec->prefill = prefill;
    return status;
}

ebb_status ebb_kv_prefill(const ebb_kv_spec *spec, ebb_prefill *prefill, ebb_error *error) {
    if (!spec || !spec->method || !prefill)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "no KV method, or no place for its prefill");
    *prefill = spec->prefill;
    return EBB_OK;
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
