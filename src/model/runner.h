/* model/runner.h: the inside of a runner, shared by forward.c (the pass) and mixers.c (what a layer does between its
 * projections) and moe.c (mixtures of experts). For these files only. */
#ifndef MODEL_RUNNER_H
#define MODEL_RUNNER_H

#include "model/model_int.h"

struct ebb_runner {
    ebb_model *model;
    ebb_state_pool *state;
    ebb_kv_pool *kv;
    int32_t max_seqs, slots; /* slots: of the smaller pool */
    int64_t max_tokens;
    ebb_tap tap;
    ebb_shadow shadow;
    ebb_state_pool **shadow_pools; /* [shadow.n], the runner's own copy of the list */
    ebb_queue *queue;
    ebb_plan *plans; /* [1 + shadow.n][layers]: of the own pools, then of each shadow (its state layers only) */
    float *block;    /* all activations */
    size_t block_bytes;
    /* Rows of max_tokens tokens. The mixer's and the MLP's lie in the same memory: they never live together. */
    float *x, *h;          /* residual stream; what the last norm made: [hidden] */
    float *proj, *mix, *q; /* mixer: input projection, its output before the output projection, queries as attention
                              reads them; q also takes the output of a shadow */
    float *side[2];        /* KDA: g and z; MLA: in the first, the outputs over latents */
    float *gate_up,
        *act; /* MLP: [2 intermediate], [intermediate]; a mixture of experts lays out what begins at gate_up */
    int64_t proj_stride;
    char rows[128];
};

void runner_tap(const ebb_runner *r, int32_t layer, ebb_tap_point point, float *data, int64_t rows, int64_t width,
                int64_t stride);
/* Ops without an ebb_error answer a bare status: say where it came from. */
ebb_status runner_where(ebb_status status, int32_t layer, const char *what, ebb_error *error);

/* Floats a token that the mixer of a layer needs of q and side[0], side[1]. */
typedef struct mixer_widths {
    int64_t q, side[2];
} mixer_widths;
mixer_widths mixer_widths_of(const ebb_model *model, int32_t layer);

/* From the input projection in proj to mix, what the output projection reads. */
ebb_status mixer_run(ebb_runner *r, ebb_pass pass, const ebb_batch *b, int32_t layer, ebb_error *error);

#endif
