/* model/moe.h: mixtures of experts in place of a layer's MLP: loading one, and running it. Called by architectures,
 * model.c and forward.c. */
#ifndef MODEL_MOE_H
#define MODEL_MOE_H

#include "model/model_int.h"

#include <pthread.h>
#include <stdatomic.h>

/* An expert stays in its mapped file until a token first needs it; then it is packed, and stays so. */
typedef struct model_expert {
    ebb_weight_part gate, up, down; /* [inter][hidden] twice, [hidden][inter] */
    ebb_weight gate_up_packed, down_packed;
    atomic_bool packed;
} model_expert;

struct model_moe {
    ebb_router router;
    ebb_weight logits; /* rows: of each expert, and below them the gate of the shared expert where it has one */
    int32_t inter;
    int32_t shared_inter; /* 0: there is no shared expert */
    ebb_weight shared_gate_up, shared_down;
    pthread_mutex_t lock;  /* of packing: runners of several threads may need one expert at once */
    model_expert *experts; /* [router.experts] */
};

/* What an architecture says of its mixtures, and what tensors of one are called in a layer. */
typedef struct moe_config {
    ebb_router router; /* but its bias */
    int32_t inter, shared_inter;
    const char *logits, *bias; /* bias NULL: none */
    const char *experts;       /* EXPERTS.E.GATE.weight; or EXPERTS.gate_up_proj and EXPERTS.down_proj, of all */
    const char *gate, *up, *down;
    const char *shared;      /* SHARED.gate_proj.weight, ... */
    const char *shared_gate; /* [1][hidden]; NULL: the shared expert is added as it is */
} moe_config;

/* Refuses a router that ebb_route does not serve; `at` is where its fields are. */
ebb_status moe_check(const json_place *at, const moe_config *c, ebb_error *error);
ebb_status moe_load(model_loader *loader, int32_t layer, const moe_config *c, ebb_error *error);
void moe_free(ebb_device *device, struct model_moe *moe); /* NULL is allowed */

/* ---- running (runner.h) ---- */

struct ebb_runner;
/* Floats of activations that `tokens` tokens need. */
int64_t moe_floats(const ebb_model *model, const struct model_moe *moe, int64_t tokens);
/* x += the mixture of h. EBB_NO_MEMORY when an expert that is needed for the first time cannot be packed. */
ebb_status moe_run(struct ebb_runner *r, int32_t layer, int64_t tokens, ebb_error *error);

#endif
