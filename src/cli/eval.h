/* cli/eval.h: what the files of `ebb eval` and `ebb reproduce` share: the options, the ways of storing compared, and
 * the results. A result is JSON from the moment it is measured; one (task or text, method) is a cell, which is kept in
 * a folder and taken from there when its key is the same. */
#ifndef CLI_EVAL_H
#define CLI_EVAL_H

#include "cli/json_out.h"
#include "cli/method_list.h"
#include "cli/progress.h"
#include "ebb/measure.h"

#include <stdio.h>

typedef struct eval_options {
    const char *model, *tasks, *texts, *state, *kv, *prefill, *kv_bits, *layouts, *scoring, *parts, *folder, *rows;
    int64_t limit, seeds, seed, answer, batch, tokens, prompt, top, every, threads;
    double temperature, top_p;
    int64_t top_k;
    bool own, json, decoded; /* own: the sampling of the model's generation_config.json */
} eval_options;

enum { EVAL_METHODS = 96, EVAL_NAME = 200, EVAL_FILES = 64, EVAL_MARKS = 5 };

typedef struct eval_method {
    char name[EVAL_NAME];
    ebb_eval_store store;
    char layout[1024];    /* what store.layout points to */
    uint64_t layout_hash; /* of the file; 0: none */
} eval_method;

typedef struct eval_work {
    const char *command; /* "eval" */
    eval_options o;
    bool nll, drift, injected; /* asked for by --parts */
    method_list states, kvs, prefills, tasks, texts;
    const int32_t *runs; /* [tasks.n]: of each task, or NULL: o.seeds of all */
    ebb_sampling sampling;
    eval_method *method; /* [methods]; the first is what the others are compared with */
    int32_t methods;
    progress_bar bar;
    ebb_device *device;
    ebb_model *model;
    json_t *result;
} eval_work;

/* Tokens up to which |delta log p| and KL are told apart: of a text of `tokens` tokens, the last is its end. */
int32_t eval_marks(int64_t tokens, int64_t *marks);

/* Everything after the options are read and filled in: open, measure, report. The exit code. */
int eval_run(eval_work *w);
void eval_close(eval_work *w);
eval_options eval_defaults(void);

/* cells: results of one task or text into w->result. EBB_INTERRUPTED: the cells that were finished are there. */
ebb_status eval_task_cells(eval_work *w, int32_t task, ebb_error *error);
ebb_status eval_text_cells(eval_work *w, int32_t text, ebb_error *error);
/* result[group][file][name] = value, which is taken. */
ebb_status eval_put(eval_work *w, const char *group, const char *file, const char *name, json_t *value,
                    ebb_error *error);
/* A cell measured before with this key, or NULL; and keep one. */
json_t *eval_load(const eval_work *w, const char *name, const char *key);
ebb_status eval_save(const eval_work *w, const char *name, const char *key, json_t *value, ebb_error *error);
void eval_key(const eval_work *w, const eval_method *m, const char *more, char key[640]);

/* report */
void eval_print(const eval_work *w, FILE *to);
ebb_status eval_draw(const eval_work *w, ebb_error *error); /* figures, into the folder */

#endif
