/* cli/fit.h: `ebb info --config FILE`: memory of a model without its weights. Gathered by fit.c, shown by fit_print.c,
 * called by info.c. */
#ifndef CLI_FIT_H
#define CLI_FIT_H

#include "cli/method_list.h"
#include "ebb/measure.h"

typedef struct fit_state {
    const char *name;
    ebb_error refused; /* code EBB_OK: served; else why not, and the rest does not count */
    ebb_state_memory memory;
} fit_state;

typedef struct fit_kv {
    const char *name;
    ebb_error refused;
    ebb_kv_memory memory;
} fit_kv;

typedef struct fit_plan {
    const char *path, *room_text; /* as given */
    const ebb_outline_info *about;
    const ebb_outline *outline;
    int64_t context, batch, every; /* tokens of a sequence; sequences; cached tokens a checkpoint */
    int32_t max_new;
    double room; /* bytes of the device; 0: not asked */
    fit_state *states;
    fit_kv *kvs;
    int32_t n_states, n_kvs;
    size_t full_state, full_checkpoint; /* of fp32, what the others are compared with */
} fit_plan;

typedef struct fit_options {
    const char *config, *room; /* room NULL: not asked */
    int64_t context, batch, every, max_new;
    bool json;
} fit_options;

/* The whole command; empty lists mean the usual methods. */
int fit_command(const fit_options *options, const method_list *states, const method_list *kvs);

/* Bytes of a sequence under a pair of methods (NULL: the model has no such layers), with the checkpoints of its cached
 * tokens if asked; and how many sequences there is room for. */
double fit_sequence(const fit_plan *p, const fit_state *state, const fit_kv *kv, bool checkpoints);
int64_t fit_count(const fit_plan *p, double bytes);

void fit_print_text(const fit_plan *p);
bool fit_print_json(const fit_plan *p); /* false: no memory */

#endif
