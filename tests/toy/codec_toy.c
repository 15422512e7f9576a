/* toy/codec_toy.c: what it takes to add a state method: this file, and the row in toy/toy.h. It stores each key row as
 * 12-bit integers (in int16) with one FP32 scale. The tests run it through the program and through every promise of the
 * store, unchanged. */
#include "toy/toy.h"
#include "format/rounding.h"

#include <string.h>

static const ebb_param params[] = {EBB_PARAM_WINDOW, {NULL, 0, 0, 0, NULL, NULL}};

static size_t codes_used(const ebb_state_layer *l) { return (size_t)l->key_dim * (size_t)l->value_dim * 2; }
static size_t codes_bytes(const ebb_state_layer *l) { return (codes_used(l) + 3) / 4 * 4; } /* scales are aligned */

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    (void)error;
    *planes = (ebb_planes){.bytes = codes_bytes(head->layer) + (size_t)head->layer->key_dim * 4, .n = 1};
    planes->plane[0].name = "codes and scales";
    planes->plane[0].bytes = planes->bytes;
    return EBB_OK;
}

static void encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                   float *tmp) {
    (void)decay, (void)old, (void)tmp;
    int16_t *codes = packed;
    float *scales = (float *)(void *)((uint8_t *)packed + codes_bytes(head->layer));
    memset((uint8_t *)packed + codes_used(head->layer), 0, codes_bytes(head->layer) - codes_used(head->layer));
    for (int32_t u = 0; u < head->layer->key_dim; u++) {
        const int64_t row = (int64_t)u * head->layer->value_dim;
        float amax = 1e-30f;
        for (int32_t v = 0; v < head->layer->value_dim; v++) amax = max_abs(amax, S[row + v]);
        scales[u] = amax / 2047;
        for (int32_t v = 0; v < head->layer->value_dim; v++)
            codes[row + v] = (int16_t)round_even(clamp_code(S[row + v] / scales[u], 2047));
    }
}

static void decode(const ebb_head *head, const void *packed, float *S) {
    const int16_t *codes = packed;
    const float *scales = (const float *)(const void *)((const uint8_t *)packed + codes_bytes(head->layer));
    for (int32_t u = 0; u < head->layer->key_dim; u++)
        for (int32_t v = 0; v < head->layer->value_dim; v++)
            S[(int64_t)u * head->layer->value_dim + v] =
                scales[u] * (float)codes[(int64_t)u * head->layer->value_dim + v];
}

const ebb_state_codec codec_toy = {"toy", params, 0, layout, encode, decode};
