/* measure/memory.c: what the memory of a model costs under a method, from its layers alone: the same layout functions
 * that pools are made of. Called by programs (`ebb info --config`). */
#include "core/core.h"
#include "ebb/measure.h"
#include "state/layout.h"

/* Sizes of a calibrated method are those of a layout that changes nothing. */
ebb_status ebb_state_memory_of(const ebb_outline *outline, const char *method, int32_t max_new,
                               ebb_state_memory *memory, ebb_error *error) {
    const ebb_state_layer *layers = ebb_outline_state_layers(outline);
    const int32_t n = ebb_outline_describe(outline)->state_layers;
    ebb_state_spec spec;
    ebb_layout *layout = NULL;
    double values = 0, packed = 0;
    *memory = (ebb_state_memory){0};
    ebb_status status = ebb_state_parse(method, &spec, error);
    if (!status && ebb_state_layout_name(spec.method))
        status = layout_identity(ebb_state_layout_name(spec.method), layers, n, &layout, error);
    spec.layout = layout;
    for (int32_t l = 0; l < n && !status; l++) {
        ebb_state_sizes sizes;
        status = ebb_state_size(&spec, &layers[l], max_new, &sizes, error);
        if (status) break;
        const size_t inputs = layers[l].conv_width ? (size_t)layers[l].conv_width - 1 : 0;
        memory->packed += sizes.packed;
        memory->live += sizes.live;
        memory->checkpoint +=
            sizes.packed + inputs * (size_t)ebb_state_conv_channels(&layers[l]) * ebb_type_bytes(EBB_FP32);
        packed += 8.0 * (double)sizes.packed_head * layers[l].heads;
        values += (double)layers[l].heads * layers[l].key_dim * layers[l].value_dim;
    }
    memory->bits = values > 0 ? packed / values : 0;
    ebb_layout_free(layout);
    return status;
}

ebb_status ebb_kv_memory_of(const ebb_outline *outline, const char *method, int64_t tokens, int32_t max_new,
                            ebb_kv_memory *memory, ebb_error *error) {
    const ebb_kv_layer *layers = ebb_outline_kv_layers(outline);
    const int32_t n = ebb_outline_describe(outline)->kv_layers;
    ebb_kv_spec spec;
    ebb_prefill prefill;
    *memory = (ebb_kv_memory){0};
    ebb_status status = ebb_kv_parse(method, &spec, error);
    if (!status) status = ebb_kv_prefill(&spec, &prefill, error);
    for (int32_t l = 0; l < n && !status; l++) {
        ebb_kv_cost cost;
        status = ebb_kv_layer_cost(&spec, &prefill, &layers[l], l, tokens, max_new, &cost, error);
        if (status) break;
        memory->token += cost.token;
        memory->sequence += (size_t)((tokens + EBB_KV_PAGE - 1) / EBB_KV_PAGE) * cost.page + cost.tail;
    }
    return status;
}
