/* kv/codec_token.c: low-bit keys and values with one scale a token, head and part: HyQuant's cache and the strict
 * low-bit modes it is compared with. Plane 2i holds the codes of part i, plane 2i + 1 its scales. What else a store of
 * these methods keeps, a tail of 16-bit rows and vertical keys, is in the rule. The arithmetic is in token.h. Reached
 * through the table in methods.c. */
#include "kv/kv_int.h"
#include "kv/token.h"

static const ebb_param params[] = {
    {"k", 0, TOKEN_BITS_LAYER, TOKEN_BITS_4, "2|4|8|layer", "bits of keys; layer: those given for each layer"},
    {"v", 0, TOKEN_BITS_LAYER, TOKEN_BITS_4, "2|4|8|layer", "bits of values"},
    {"window", 0, 4096, 0, NULL, "newest tokens that are read in 16 bits; 0 with ratio=0: none, and no tail"},
    {"ratio", 0, 1, 0, "", "of the keys behind the window that keep 16 bits: the vertical ones"},
    {"select", 0, 2, 0, "segment|prompt|paper", "vertical keys of each 256 tokens, or of the whole prompt"},
    {"wide", 0, 1, 0, "fp16|bf16", "type of the 16-bit rows"},
    {"grid", 0, 1, TOKEN_GRID_LS, "ls|paper", "2 bits: four levels, or the published three"},
    {0},
};

static ebb_status part_check(const ebb_kv_layer *layer, const double *param, int32_t i, ebb_error *error) {
    const int32_t dims = layer->part[i].dims, role = layer->part[i].role;
    const double bits = param[role & EBB_ROLE_K ? TOKEN_K : TOKEN_V];
    const char *what = role & EBB_ROLE_K ? "key" : "value";
    if (bits == TOKEN_BITS_LAYER)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "this KV method takes the bits of each layer from a file, and none is given: --kv-bits FILE");
    const int32_t whole = 8 / token_bits(param, role);
    if (dims % whole == 0) return EBB_OK;
    return ebb_fail(error, EBB_UNSUPPORTED, "%d-bit codes of a %s part of %d dims; expected a multiple of %d",
                    token_bits(param, role), what, dims, whole);
}

static ebb_status token_layout(const ebb_kv_layer *layer, const double *param, ebb_kv_rule *rule, ebb_planes *planes,
                               ebb_error *error) {
    static const char *const names[][2] = {[EBB_ROLE_K] = {"k", "k scale"},
                                           [EBB_ROLE_V] = {"v", "v scale"},
                                           [EBB_ROLE_K | EBB_ROLE_V] = {"kv", "kv scale"}};
    ebb_status status = kv_layer_check(layer, error);
    for (int32_t i = 0; !status && i < layer->parts; i++) status = part_check(layer, param, i, error);
    if (status) return status;
    const int32_t window = (int32_t)param[TOKEN_WINDOW];
    const int32_t select = param[TOKEN_RATIO] > 0 ? EBB_SELECT_SEGMENT + (int32_t)param[TOKEN_SELECT] : EBB_SELECT_NONE;
    *rule = (ebb_kv_rule){.group = 1, .pure = select <= EBB_SELECT_SEGMENT};
    if (window || select) {
        rule->tail = param[TOKEN_WIDE] == 0 ? EBB_FP16 : EBB_BF16;
        rule->window[0] = rule->window[1] = window;
        rule->slide[0] = rule->slide[1] = TOKEN_SLIDE;
        rule->select = select;
        rule->ratio = param[TOKEN_RATIO];
    }
    *planes = (ebb_planes){.n = 2 * layer->parts};
    for (int32_t i = 0; i < planes->n; i++) {
        const int32_t role = layer->part[i / 2].role;
        planes->plane[i].name = names[role][i % 2];
        planes->plane[i].at = planes->bytes;
        planes->plane[i].bytes =
            i % 2 ? sizeof(uint16_t) : token_code_bytes(layer->part[i / 2].dims, token_bits(param, role));
        planes->bytes += planes->plane[i].bytes;
    }
    return EBB_OK;
}

static void token_encode_all(const ebb_kv_layer *layer, const double *param, const float *rows, void *packed,
                             float *tmp) {
    (void)tmp;
    uint8_t *to = packed;
    for (int32_t i = 0; i < layer->parts; i++) {
        const int32_t dims = layer->part[i].dims, bits = token_bits(param, layer->part[i].role);
        uint16_t scale;
        token_encode(rows, dims, bits, token_levels(param, bits), to, &scale);
        to += token_code_bytes(dims, bits);
        memcpy(to, &scale, sizeof scale); /* behind an odd number of codes it is not aligned */
        to += sizeof scale;
        rows += dims;
    }
}

static void token_decode_all(const ebb_kv_layer *layer, const double *param, const void *packed, float *rows) {
    const uint8_t *from = packed;
    for (int32_t i = 0; i < layer->parts; i++) {
        const int32_t dims = layer->part[i].dims, bits = token_bits(param, layer->part[i].role);
        uint16_t scale;
        memcpy(&scale, from + token_code_bytes(dims, bits), sizeof scale);
        token_decode(from, scale, dims, bits, token_levels(param, bits), rows);
        from += token_code_bytes(dims, bits) + sizeof scale;
        rows += dims;
    }
}

/* Four levels are the odd integers -3 .. 3 times half the scale. */
static void token_codes(const ebb_kv_layer *layer, const double *param, const void *packed, int8_t *code,
                        float *scale) {
    const uint8_t *from = packed;
    for (int32_t i = 0, k = 0; i < layer->parts && layer->part[i].role & EBB_ROLE_K; i++) {
        const int32_t dims = layer->part[i].dims, bits = token_bits(param, layer->part[i].role);
        const bool levels = token_levels(param, bits);
        uint16_t stored;
        memcpy(&stored, from + token_code_bytes(dims, bits), sizeof stored);
        scale[i] = fp16_to_float(stored) * (levels ? 0.5f : 1.0f);
        for (int32_t d = 0; d < dims; d++) {
            const int32_t c = token_code_at(from, d, bits);
            code[k++] = (int8_t)(levels ? 2 * c + 1 : c);
        }
        from += token_code_bytes(dims, bits) + sizeof stored;
    }
}

const ebb_kv_codec kv_codec_token = {
    .name = "token",
    .params = params,
    .layout = token_layout,
    .encode = token_encode_all,
    .decode = token_decode_all,
    .codes = token_codes,
};
