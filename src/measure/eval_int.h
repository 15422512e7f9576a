/* measure/eval_int.h: what the files of eval share, and the hook by which a test corrupts a state. */
#ifndef MEASURE_EVAL_INT_H
#define MEASURE_EVAL_INT_H

#include "core/core.h"
#include "ebb/measure.h"

/* Seen before every step: the engine between two tokens. */
typedef struct eval_watch {
    void *ctx;
    void (*call)(void *ctx, ebb_engine *engine);
} eval_watch;
ebb_status eval_answers_watched(ebb_model *model, const ebb_eval_config *config, const eval_watch *watch,
                                ebb_eval_answer *answers, ebb_usage *usage, ebb_error *error);

#endif
