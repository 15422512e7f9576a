/* measure/roundtrip.c: a state pool of one slot, written and read (roundtrip.h). Called by calibrate.c and tally.c. */
#include "measure/roundtrip.h"

#include <stdlib.h>

ebb_status roundtrip_open(roundtrip *r, ebb_model *model, const ebb_state_spec *spec, const char *algorithm,
                          ebb_error *error) {
    ebb_device *device = ebb_model_device(model);
    const int32_t n = ebb_model_describe(model)->state_layers;
    const ebb_state_pool_config c = {.size = sizeof c,
                                     .spec = spec,
                                     .layers = ebb_model_state_layers(model),
                                     .n_layers = n,
                                     .slots = 1,
                                     .max_new = 1};
    size_t scratch = 0;
    ebb_status status = ebb_state_pool_open(device, &c, &r->pool, error);
    if (status) return status;
    r->plans = calloc((size_t)n, sizeof *r->plans);
    if (!r->plans) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d plans", n);
    for (int32_t i = 0; i < n; i++) {
        r->plans[i].size = sizeof *r->plans;
        status = ebb_delta_plan(device, ebb_state_pool_view(r->pool, i), algorithm, 0, 1, 1, 1, &r->plans[i], error);
        if (status) return status;
        if (r->plans[i].scratch > scratch) scratch = r->plans[i].scratch;
    }
    return ebb_queue_open(device, scratch, &r->queue, error);
}

ebb_status roundtrip_layer(roundtrip *r, int32_t layer, const float *S, float *stored, ebb_error *error) {
    const int32_t slot = 0, cu[] = {0, 0};
    const int64_t pos = EBB_MAX_WINDOW; /* any but 0 */
    const ebb_delta_args args = {.size = sizeof args,
                                 .s = *ebb_state_pool_view(r->pool, layer),
                                 .b = {.seqs = 1, .slot = &slot, .cu = cu, .pos = &pos}};
    ebb_status status = ebb_delta_write(r->queue, &r->plans[layer], &args, S, error);
    if (!status) status = ebb_delta_read(r->queue, &r->plans[layer], &args, stored, error);
    return status ? status : ebb_queue_sync(r->queue, error);
}

void roundtrip_close(roundtrip *r) {
    ebb_queue_close(r->queue);
    free(r->plans);
    ebb_state_pool_close(r->pool);
    *r = (roundtrip){0};
}
