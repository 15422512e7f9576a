/* cli/info.h: what `ebb info` knows of a model, gathered by info.c and shown by info_print.c. */
#ifndef CLI_INFO_H
#define CLI_INFO_H

#include "ebb/ebb.h"

typedef struct info_state { /* one state method; bytes of one sequence over all layers */
    const char *name;
    ebb_error refused; /* code EBB_OK: served; else why not, and the rest does not count */
    size_t packed, live, conv;
    char step[64], prefill[64]; /* kernel rows; several where layers differ */
} info_state;

typedef struct info_kv { /* one KV method */
    const char *name;
    ebb_error refused;
    size_t token;           /* bytes of a token over all layers */
    size_t at_ctx, at_most; /* bytes of a sequence of `ctx` tokens, and of the model's maximum: pages and tail */
    size_t tail;            /* of at_ctx, what is there whatever the length */
    char row[64];
} info_kv;

typedef struct info {
    const char *folder;
    const ebb_model *model;
    const ebb_model_info *about;
    const ebb_device *device;
    int64_t ctx;
    int32_t max_new, n_states, n_kvs;
    info_state *states; /* [n_states] */
    info_kv *kvs;       /* [n_kvs] */
} info;

/* Layers of the same shape count as one: the next layer from *at on that none before it resembles, and how many there
 * are; NULL: no more. */
const ebb_state_layer *info_state_shape(const info *i, int32_t *at, int32_t *count);
const ebb_kv_layer *info_kv_shape(const info *i, int32_t *at, int32_t *count);

void info_print_text(const info *i);
bool info_print_json(const info *i); /* false: no memory */

#endif
