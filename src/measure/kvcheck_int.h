/* measure/kvcheck_int.h: what the files of kvcheck share. For src/measure/kvcheck*.c and answers.c. */
#ifndef MEASURE_KVCHECK_INT_H
#define MEASURE_KVCHECK_INT_H

#include "core/core.h"
#include "ebb/measure.h"

/* A choice of KV method, prefill and bits, read. */
typedef struct kv_opened {
    ebb_kv_spec spec;
    ebb_prefill prefill;
    ebb_kv_bits *bits; /* of every layer; NULL: none */
} kv_opened;

/* For a model with `layers` attention layers; the caller frees `bits`. */
ebb_status kv_choice_open(const ebb_kv_choice *choice, int32_t layers, kv_opened *opened, ebb_error *error);
/* A pool over `layers` of the model, the first of which is layer `index` of its KV layers, for one sequence. */
ebb_status kv_choice_pool(ebb_device *device, const kv_opened *opened, const ebb_kv_layer *layers, int32_t n,
                          int32_t index, int64_t tokens, ebb_kv_pool **pool, ebb_error *error);

ebb_status kvcheck_config_check(const ebb_model *model, const ebb_kvcheck_config *config, ebb_error *error);

/* A runner with its pools, for one sequence. */
typedef struct kvcheck_model {
    ebb_state_pool *state;
    ebb_kv_pool *kv;
    ebb_runner *runner;
    ebb_layout *layout;
} kvcheck_model;
/* `piece`: tokens of one forward. */
ebb_status kvcheck_open(ebb_model *model, const ebb_kvcheck_config *config, const kv_opened *kv, int64_t piece,
                        ebb_tap tap, kvcheck_model *m, ebb_error *error);
void kvcheck_close(kvcheck_model *m);

/* Rows of the queries and keys of one layer, after RoPE. */
typedef struct mass_input {
    const ebb_kv_layer *layer;
    int32_t dims; /* of a key */
    const float *q, *k;
    int64_t q_stride, k_stride; /* between tokens */
    int64_t tokens, steps;      /* the last `steps` of the tokens are generated */
    double ratio;
} mass_input;
ebb_status mass_measure(const mass_input *in, ebb_kvcheck_mass *mass, ebb_error *error);

#endif
