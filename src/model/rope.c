/* model/rope.c: the rotation of queries and keys as config.json describes it, and its frequencies. Called by
 * architectures. */
#include "model/model_int.h"

#include <math.h>
#include <string.h>

static ebb_status read_llama3(const json_place *at, const json_place *rope, rope_config *r, ebb_error *error) {
    int64_t original = 0;
    ebb_status status = config_number(rope, "factor", JSON_NEEDED, 0, 1e6, &r->factor, error);
    if (!status) status = config_number(rope, "low_freq_factor", JSON_NEEDED, 0, 1e6, &r->low, error);
    if (!status) status = config_number(rope, "high_freq_factor", JSON_NEEDED, 0, 1e6, &r->high, error);
    const json_place *from = json_has(rope, "original_max_position_embeddings") ? rope : at;
    const char *key = from == rope ? "original_max_position_embeddings" : "max_position_embeddings";
    if (!status) status = json_get_int(from, key, JSON_NEEDED, 1, (int64_t)1 << 40, &original, error);
    if (status) return status;
    r->original = (double)original;
    if (!(r->high > r->low))
        return json_fail(rope, error, EBB_BAD_FILE, "has high_freq_factor %g, expected above low_freq_factor = %g",
                         r->high, r->low);
    return EBB_OK;
}

static ebb_status read_type(const json_place *rope, bool nested, const char **type, ebb_error *error) {
    *type = "default";
    if (!nested) return EBB_OK;
    ebb_status status = json_get_text(rope, "type", JSON_OPTIONAL, type, error);
    return status ? status : json_get_text(rope, "rope_type", JSON_OPTIONAL, type, error);
}

ebb_status rope_read(const json_place *at, int32_t head_dim, rope_config *r, ebb_error *error) {
    json_place rope = *at;
    const char *type, *key = json_has(at, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const bool nested = json_has(at, key), scales = r->llama3;
    ebb_status status = json_get_object(at, key, JSON_OPTIONAL, &rope, error);
    if (!status) status = read_type(&rope, nested, &type, error);
    if (status) return status;
    r->llama3 = scales && !strcmp(type, "llama3");
    if (!r->llama3 && strcmp(type, "default") != 0) {
        char shown[64];
        return json_fail(&rope, error, EBB_UNSUPPORTED, "has rope_type %s, only default %s served",
                         json_shown(type, shown), scales ? "and llama3 are" : "is");
    }
    if (r->llama3 && (status = read_llama3(at, &rope, r, error))) return status;
    const json_place *theta_at = json_has(&rope, "rope_theta") ? &rope : at;
    const json_place *part_at = json_has(&rope, "partial_rotary_factor") ? &rope : at;
    const json_need need = r->theta > 0 ? JSON_OPTIONAL : JSON_NEEDED;
    status = config_number(theta_at, "rope_theta", need, 1, 1e15, &r->theta, error);
    if (!status) status = config_number(part_at, "partial_rotary_factor", JSON_OPTIONAL, 0, 1, &r->part, error);
    if (status) return status;
    r->rotary = (int32_t)(head_dim * r->part);
    if (r->rotary < 2 || r->rotary % 2)
        return json_fail(part_at, error, EBB_BAD_FILE,
                         "partial_rotary_factor %g of head_dim %d is %d dimensions, expected an even number of them",
                         r->part, head_dim, r->rotary);
    return EBB_OK;
}

/* Waves shorter than original / high keep their frequency f, those longer than original / low get f / factor, and
 * between the two the weight of f rises with the number of waves that fit `original`. Rounded where PyTorch rounds. */
static float scaled(const rope_config *r, float f) {
    const float original = (float)r->original, low = (float)r->low, high = (float)r->high, factor = (float)r->factor;
    const float wave = 6.2831853071795864769f / f;
    if (wave < original / high) return f;
    if (wave > original / low) return f / factor;
    const float keep = (original / wave - low) / (high - low);
    return (1.0f - keep) * f / factor + keep * f;
}

ebb_status rope_frequencies(model_loader *loader, const rope_config *r, const float **inv_freq, ebb_error *error) {
    const int64_t n = r->rotary / 2;
    const float *divisors = NULL;
    float *f = model_floats_new(loader->model, n);
    if (!f) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the RoPE frequencies");
    if (load_has(loader, LAYER_ROOT, "rope_freqs.weight")) {
        ebb_status status = load_floats(loader, LAYER_ROOT, "rope_freqs.weight", 1, &n, 0, &divisors, error);
        if (status) return status;
    }
    /* 1 / theta^(2i / rotary), rounded to FP32 where PyTorch rounds. */
    for (int64_t i = 0; i < n; i++) {
        float power = (float)pow(r->theta, (double)((float)(2 * i) / (float)r->rotary));
        f[i] = 1.0f / power;
        if (r->llama3) f[i] = scaled(r, f[i]);
        if (divisors) f[i] /= divisors[i];
    }
    *inv_freq = f;
    return EBB_OK;
}
