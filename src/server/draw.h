/* server/draw.h: a token of an answer drawn by the rules of its request, and its log-probability. Called by loop.c, in
 * the engine's thread. */
#ifndef SERVER_DRAW_H
#define SERVER_DRAW_H

#include "ebb/engine.h"
#include "server/job.h"

typedef struct drawing {
    const ebb_model_info *info;
    const ebb_tokenizer *tokenizer;
    float *logits;    /* [vocab] */
    int32_t *scratch; /* [vocab] */
} drawing;
bool drawing_open(drawing *d, ebb_model *model);
void drawing_close(drawing *d);

/* event->token is what the engine drew; where the rules of the choice say otherwise it is drawn again, and the engine
 * told. `tokens` are those before it. `logprobs` >= 0: event gets them, of the model's own logits. NULL, or the
 * sentence that says why this answer cannot go on. */
const char *draw_token(drawing *d, ebb_engine *engine, int32_t id, job_choice *c, const int32_t *tokens,
                       int64_t n_tokens, job_event *event, int32_t logprobs, ebb_error *error);

#endif
