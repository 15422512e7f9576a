/* cli/kvcheck.h: what the files of `ebb kvcheck` share: the options, the stores compared, and the results, which are
 * JSON from the moment they are measured, so that a part that is kept in a folder is all that a report needs. */
#ifndef CLI_KVCHECK_H
#define CLI_KVCHECK_H

#include "cli/json_out.h"
#include "cli/method_list.h"
#include "cli/progress.h"
#include "ebb/measure.h"

typedef struct kvcheck_options {
    const char *model, *text, *kv, *prefill, *kv_bits, *state, *rows, *svg, *folder, *parts; /* NULL: not given */
    const char *needles, *longbench, *prompts, *maxlen;
    int64_t tokens, steps, threads, depths, problems, batch, input, answer, limit, seed;
    double ratio;
    bool json;
} kvcheck_options;

enum { KVCHECK_LENGTHS = 16, KVCHECK_NAME = 160 };

typedef struct kvcheck_work {
    kvcheck_options o;
    bool attention, mass, nll; /* asked for by --parts */
    method_list kv, prefill;
    ebb_kv_choice store[EBB_MAX_KV_CHOICES]; /* store 0 is the reference: FP32, full prefill */
    char name[EBB_MAX_KV_CHOICES][KVCHECK_NAME];
    int32_t stores;
    int64_t length[KVCHECK_LENGTHS]; /* of needles */
    int32_t lengths;
    progress_bar bar;
    ebb_device *device;
    ebb_model *model;
    int32_t *ids; /* the text */
    int64_t count;
    uint64_t text_hash;
    json_t *result;
} kvcheck_work;

/* A part that was measured before with the same `key` (what its numbers depend on), or NULL. */
json_t *kvcheck_load(const kvcheck_work *w, const char *name, const char *key);
/* Keep it, where a folder is given. */
ebb_status kvcheck_save(const kvcheck_work *w, const char *name, const char *key, json_t *value, ebb_error *error);
/* Of everything that decides the numbers of a part: the model, the text, rows, state method, and a store (NULL: none).
 */
void kvcheck_key(const kvcheck_work *w, int32_t store, const char *more, char key[512]);
/* result[group][name] = value, which is taken; EBB_NO_MEMORY. */
ebb_status kvcheck_put(kvcheck_work *w, const char *group, const char *name, json_t *value, ebb_error *error);

ebb_status kvcheck_needles(kvcheck_work *w, ebb_error *error);
ebb_status kvcheck_longbench(kvcheck_work *w, ebb_error *error);

void kvcheck_print(const kvcheck_work *w);
ebb_status kvcheck_print_json(const kvcheck_work *w, ebb_error *error);
ebb_status kvcheck_draw(const kvcheck_work *w, ebb_error *error);

#endif
