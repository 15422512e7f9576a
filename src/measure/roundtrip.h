/* measure/roundtrip.h: state matrices through a store and back, as its codec rounds them. For calibration. */
#ifndef MEASURE_ROUNDTRIP_H
#define MEASURE_ROUNDTRIP_H

#include "ebb/model.h"

typedef struct roundtrip {
    ebb_state_pool *pool; /* of one slot; NULL: not open */
    ebb_plan *plans;      /* [state layers] */
    ebb_queue *queue;
} roundtrip;

/* `r` is all zeros. After a failure too it is closed by roundtrip_close. */
ebb_status roundtrip_open(roundtrip *r, ebb_model *model, const ebb_state_spec *spec, const char *algorithm,
                          ebb_error *error);
/* One layer of one sequence, [heads][key_dim][value_dim], to what the store gives back. */
ebb_status roundtrip_layer(roundtrip *r, int32_t layer, const float *S, float *stored, ebb_error *error);
void roundtrip_close(roundtrip *r);

#endif
