/* kv/codec_kivi.c: keys and values as KIVI stores them (the paper, and issue threads of its code): asymmetric codes,
 * keys per channel over groups of 32 tokens, values per token in groups of 32 channels, the newest tokens in 16 bits.
 * Reached through the table in methods.c.
 *
 * One encode is 32 tokens. Part i has plane 2i, the codes [32][dims], packed as those of token.h but unsigned, and
 * plane 2i + 1, pairs of FP16 scale and zero: [dims] of a key part, [32][ceil(dims / 32)] of a value part. With lo and
 * hi the ends of a group: zero = FP16(lo), scale = FP16((hi - lo) / qmax), code = round((x - zero) / scale) within 0 ..
 * qmax, value = code * scale + zero. Where the scale is 0 all codes are 0. A NaN counts in no range and gets the code
 * 0; values beyond 65504 count as that. An MLA latent is stored as a key. */
#include "format/float16.h"
#include "kv/kv_int.h"

enum { KIVI_BITS, KIVI_RESIDUAL, KIVI_WIDE };
enum { KIVI_GROUP = 32, KIVI_PAIR = 4 };

static const ebb_param params[] = {
    {"bits", 0, 1, 1, "2|4", "bits of a code"},
    {"residual", KIVI_GROUP, 4096, 128, NULL, "newest tokens in 16 bits, a multiple of 32: keys up to as many, values"},
    {"wide", 0, 1, 0, "fp16|bf16", "type of the 16-bit rows"},
    {0},
};

static int32_t bits_of(const double *param) { return 2 << (int32_t)param[KIVI_BITS]; }

static bool is_key(const ebb_kv_layer *layer, int32_t part) { return layer->part[part].role & EBB_ROLE_K; }

static size_t row_bytes(const ebb_kv_layer *layer, int32_t part, int32_t bits) {
    return (size_t)layer->part[part].dims * (size_t)bits / 8;
}

static int32_t pairs_of(const ebb_kv_layer *layer, int32_t part) {
    const int32_t dims = layer->part[part].dims;
    return is_key(layer, part) ? dims : KIVI_GROUP * ((dims + KIVI_GROUP - 1) / KIVI_GROUP);
}

static ebb_status kivi_layout(const ebb_kv_layer *layer, const double *param, ebb_kv_rule *rule, ebb_planes *planes,
                              ebb_error *error) {
    static const char *const names[][2] = {[EBB_ROLE_K] = {"k", "k pairs"},
                                           [EBB_ROLE_V] = {"v", "v pairs"},
                                           [EBB_ROLE_K | EBB_ROLE_V] = {"kv", "kv pairs"}};
    const int32_t bits = bits_of(param), residual = (int32_t)param[KIVI_RESIDUAL], whole = 8 / bits;
    ebb_status status = kv_layer_check(layer, error);
    if (status) return status;
    if (residual % KIVI_GROUP)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "residual=%d of a KIVI store; expected a multiple of %d", residual,
                        KIVI_GROUP);
    *rule = (ebb_kv_rule){.group = KIVI_GROUP,
                          .tail = param[KIVI_WIDE] == 0 ? EBB_FP16 : EBB_BF16,
                          .window = {0, residual},
                          .slide = {residual, 1},
                          .pure = 1};
    *planes = (ebb_planes){.n = 2 * layer->parts};
    for (int32_t i = 0; i < planes->n; i++) {
        const int32_t part = i / 2, dims = layer->part[part].dims;
        if (dims % whole)
            return ebb_fail(error, EBB_UNSUPPORTED, "%d-bit codes of a %s part of %d dims; expected a multiple of %d",
                            bits, is_key(layer, part) ? "key" : "value", dims, whole);
        planes->plane[i].name = names[layer->part[part].role][i % 2];
        planes->plane[i].at = planes->bytes;
        planes->plane[i].bytes =
            i % 2 ? (size_t)pairs_of(layer, part) * KIVI_PAIR : KIVI_GROUP * row_bytes(layer, part, bits);
        planes->bytes += planes->plane[i].bytes;
    }
    return EBB_OK;
}

/* Scale and zero of the `n` values that are `step` apart. */
static void fit_pair(const float *x, int32_t n, int64_t step, float qmax, uint16_t *pair) {
    float lo = INFINITY, hi = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        const float v = x[i * step];
        lo = v < lo ? v : lo;
        hi = v > hi ? v : hi;
    }
    if (lo > hi) lo = hi = 0; /* all are NaN */
    lo = lo > -65504.0f ? lo : -65504.0f, lo = lo < 65504.0f ? lo : 65504.0f;
    hi = hi > -65504.0f ? hi : -65504.0f, hi = hi < 65504.0f ? hi : 65504.0f;
    pair[0] = float_to_fp16((hi - lo) / qmax);
    pair[1] = float_to_fp16(lo);
}

static uint32_t code_of(float x, const uint16_t *pair, float qmax) {
    const float scale = fp16_to_float(pair[0]), zero = fp16_to_float(pair[1]);
    float q = scale > 0 ? (x - zero) / scale : 0;
    q = q > 0 ? q : 0; /* a NaN too */
    return (uint32_t)round_even(q < qmax ? q : qmax);
}

/* The pair of channel `d` of token `t`: 2 numbers. */
static size_t pair_at(const ebb_kv_layer *layer, int32_t part, int32_t t, int32_t d) {
    if (is_key(layer, part)) return 2 * (size_t)d;
    return 2 * ((size_t)t * (size_t)(pairs_of(layer, part) / KIVI_GROUP) + (size_t)d / KIVI_GROUP);
}

static void encode_part(const ebb_kv_layer *layer, int32_t part, int32_t bits, const float *x, uint8_t *code,
                        uint16_t *pairs) {
    const int32_t dims = layer->part[part].dims;
    const float qmax = bits == 4 ? 15 : 3;
    if (is_key(layer, part))
        for (int32_t d = 0; d < dims; d++) fit_pair(x + d, KIVI_GROUP, dims, qmax, pairs + 2 * d);
    else
        for (int32_t t = 0; t < KIVI_GROUP; t++)
            for (int32_t d = 0; d < dims; d += KIVI_GROUP)
                fit_pair(x + (int64_t)t * dims + d, d + KIVI_GROUP < dims ? KIVI_GROUP : dims - d, 1, qmax,
                         pairs + pair_at(layer, part, t, d));
    memset(code, 0, KIVI_GROUP * row_bytes(layer, part, bits));
    for (int32_t t = 0; t < KIVI_GROUP; t++, x += dims, code += row_bytes(layer, part, bits))
        for (int32_t d = 0; d < dims; d++) {
            const uint32_t c = code_of(x[d], pairs + pair_at(layer, part, t, d), qmax);
            code[d * bits / 8] |= (uint8_t)(c << d * bits % 8);
        }
}

static void decode_part(const ebb_kv_layer *layer, int32_t part, int32_t bits, const uint8_t *code,
                        const uint16_t *pairs, float *x) {
    const int32_t dims = layer->part[part].dims;
    const uint32_t mask = (1u << bits) - 1;
    for (int32_t t = 0; t < KIVI_GROUP; t++, x += dims, code += row_bytes(layer, part, bits))
        for (int32_t d = 0; d < dims; d++) {
            const uint16_t *pair = pairs + pair_at(layer, part, t, d);
            const float c = (float)((uint32_t)code[d * bits / 8] >> d * bits % 8 & mask);
            x[d] = c * fp16_to_float(pair[0]) + fp16_to_float(pair[1]);
        }
}

/* Codes of 32 tokens take a multiple of 4 bytes, so pairs are aligned. */
static void kivi_encode(const ebb_kv_layer *layer, const double *param, const float *rows, void *packed, float *tmp) {
    (void)tmp;
    const int32_t bits = bits_of(param);
    uint8_t *to = packed;
    for (int32_t i = 0; i < layer->parts; i++) {
        uint8_t *pairs = to + KIVI_GROUP * row_bytes(layer, i, bits);
        encode_part(layer, i, bits, rows, to, (uint16_t *)(void *)pairs);
        to = pairs + (size_t)pairs_of(layer, i) * KIVI_PAIR;
        rows += KIVI_GROUP * layer->part[i].dims;
    }
}

static void kivi_decode(const ebb_kv_layer *layer, const double *param, const void *packed, float *rows) {
    const int32_t bits = bits_of(param);
    const uint8_t *from = packed;
    for (int32_t i = 0; i < layer->parts; i++) {
        const uint8_t *pairs = from + KIVI_GROUP * row_bytes(layer, i, bits);
        decode_part(layer, i, bits, from, (const uint16_t *)(const void *)pairs, rows);
        from = pairs + (size_t)pairs_of(layer, i) * KIVI_PAIR;
        rows += KIVI_GROUP * layer->part[i].dims;
    }
}

const ebb_kv_codec kv_codec_kivi = {
    .name = "kivi",
    .params = params,
    .layout = kivi_layout,
    .encode = kivi_encode,
    .decode = kivi_decode,
};
