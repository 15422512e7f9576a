/* model/outline.h: a model by its config.json alone: layers, and the tensors that a checkpoint of it has in the
 * released layout. outline.c makes it, synth.c writes such a checkpoint. For src/model only. */
#ifndef MODEL_OUTLINE_H
#define MODEL_OUTLINE_H

#include "model/config.h"

/* What random values of a tensor look like (synth.c). */
typedef enum outline_fill {
    FILL_MATRIX,  /* [..][k]: variance 1 / k */
    FILL_OFFSET,  /* a norm that multiplies by 1 + w: about 0 */
    FILL_NORM,    /* one that multiplies by w: about 1 */
    FILL_CONV,    /* taps of the short convolution */
    FILL_A_LOG,   /* decay rates */
    FILL_DT_BIAS, /* time steps, before softplus */
    FILL_BIAS     /* about 0 */
} outline_fill;

typedef struct outline_tensor {
    char name[96];
    int32_t layer; /* -1: of none */
    int32_t type;  /* EBB_BF16 or EBB_FP32 */
    int32_t fill;  /* outline_fill */
    int32_t dims;
    int64_t shape[4];
} outline_tensor;

struct ebb_outline {
    config_files config;
    ebb_outline_info info;
    bool *attends; /* [layers] */
    ebb_state_layer *state;
    ebb_kv_layer *kv;
    outline_tensor *tensors;
    int64_t n, room;
    const char *prefix; /* of the names of the text model's tensors */
    ebb_status failed;  /* adding a tensor found no memory, or a shape that is too large */
};

int64_t outline_elements(const outline_tensor *t);

/* The tensors of a family, and its layers (outline_families.c); the model_type is known to be there. */
ebb_status outline_family(ebb_outline *o, ebb_error *error);
bool outline_knows(const char *model_type);

/* For families. Names are PREFIXlayers.LAYER.NAME; layer -1: PREFIXNAME. Failure is kept in o->failed. */
void outline_add(ebb_outline *o, int32_t layer, const char *name, outline_fill fill, int32_t dims,
                 const int64_t *shape);
void outline_matrix(ebb_outline *o, int32_t layer, const char *name, int64_t n, int64_t k);
void outline_vector(ebb_outline *o, int32_t layer, const char *name, outline_fill fill, int64_t n);
/* Room for the layers of o->info, of which `state` are state layers. */
ebb_status outline_layers(ebb_outline *o, int32_t layers, int32_t state, ebb_error *error);

#endif
