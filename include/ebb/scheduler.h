/* ebb/scheduler.h: requests over one engine: a queue, continuous batching within byte budgets, preemption, and a cache
 * of prefixes (docs/engine.md). One thread at a time calls it. An answer has the same tokens whatever else is running.
 */
#ifndef EBB_SCHEDULER_H
#define EBB_SCHEDULER_H

#include "ebb/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ebb_scheduler ebb_scheduler;

enum { EBB_MAX_LOGPROBS = 32 };

typedef struct ebb_request {
    size_t size;
    const int32_t *prompt; /* copied, as stops are */
    int64_t n_prompt;
    ebb_sampling sampling;
    int64_t max_answer;   /* tokens; 0: the prompt is processed, and nothing is answered; -1: what the context holds */
    const int32_t *stops; /* tokens that end the answer, beside the model's own; they are not emitted */
    int32_t n_stops;
    bool ignore_stop; /* the model's own stop tokens are answered like others */
    int32_t priority; /* higher ones go first; among equals, who came first */
    int32_t logprobs; /* the most probable tokens told with each token, 0 to EBB_MAX_LOGPROBS */
    /* May change the logits [vocab] before a token is drawn: masks of grammars, biases. NULL: nothing. False ends the
     * request with EBB_END_ERROR. */
    bool (*logits)(void *ctx, float *logits, int32_t vocab);
    void *ctx; /* the caller's, for `logits` and in every event */
} ebb_request;

typedef enum ebb_event_kind {
    EBB_EVENT_PROMPT, /* prompt tokens were processed: done, total */
    EBB_EVENT_TOKEN,
    EBB_EVENT_END /* the last one of a request */
} ebb_event_kind;

typedef enum ebb_end { EBB_END_STOP, EBB_END_LENGTH, EBB_END_CANCELLED, EBB_END_ERROR } ebb_end;

typedef struct ebb_logprob {
    int32_t token;
    float logprob;
} ebb_logprob;

typedef struct ebb_event {
    ebb_event_kind kind;
    int64_t request; /* as ebb_scheduler_submit named it */
    void *ctx;
    int64_t done, total; /* prompt tokens; with EBB_EVENT_END, done is the number of tokens answered */
    int64_t cached;      /* prompt tokens that came from the cache; with EBB_EVENT_PROMPT */
    int32_t token;
    float logprob;          /* of the token, where request.logprobs > 0 */
    const ebb_logprob *top; /* [n_top], descending; of the logits as the hook left them, at temperature 1 */
    int32_t n_top;
    ebb_end end;
    const ebb_error *error; /* EBB_END_ERROR */
} ebb_event;

typedef struct ebb_scheduler_config {
    size_t size;
    size_t state_mem; /* bytes of states of running sequences; 0: all slots of the engine */
    size_t kv_mem;    /* bytes of their KV pages and tails; 0: all there is */
    size_t cache_mem; /* bytes of checkpoints of prompts, for prompts that begin alike; 0: none. A KV method that keeps
                         what depends on a whole prompt has none, which is said in a notice */
    int64_t step_tokens; /* answer and prompt tokens of one ebb_scheduler_step, where prompts can be cut: prompts get
                            what answers leave, an interval of EBB_GRID at least; 0: the engine's prefill_tokens */
    /* Sees every event, and is good until it returns. It may cancel, but not submit, step or close. */
    void (*event)(void *ctx, const ebb_event *event);
    void *ctx;
} ebb_scheduler_config;

/* The engine has no open sequence, and all of its slots are the scheduler's until it is closed. EBB_BAD_ARGUMENT: a
 * budget does not hold one sequence. */
EBB_API ebb_status ebb_scheduler_open(ebb_engine *engine, const ebb_scheduler_config *config, ebb_scheduler **scheduler,
                                      ebb_error *error);
/* What has not ended is dropped without an event. The engine stays open. */
EBB_API void ebb_scheduler_close(ebb_scheduler *scheduler);

/* Queue a request. EBB_BAD_ARGUMENT: it is malformed, or would not fit the context or kv_mem even when alone. */
EBB_API ebb_status ebb_scheduler_submit(ebb_scheduler *scheduler, const ebb_request *request, int64_t *id,
                                        ebb_error *error);
/* It ends at the next step. A request that has ended already is left alone. */
EBB_API void ebb_scheduler_cancel(ebb_scheduler *scheduler, int64_t id);
/* Admit what fits, then one step of all answers and one piece of the prompts. *left (may be NULL): requests that have
 * not ended. A failed pass is returned, and ends the requests that were in it with EBB_END_ERROR; the others go on. */
EBB_API ebb_status ebb_scheduler_step(ebb_scheduler *scheduler, int64_t *left, ebb_error *error);

typedef struct ebb_scheduler_stats {
    int64_t queued, running, preempted; /* requests now: not started yet, in slots, saved and waiting to go on */
    int64_t slots;                      /* most that run at a time, by the engine and state_mem */
    size_t state_bytes, kv_bytes;       /* of the running ones; KV with the whole of prompts under way */
    size_t state_mem, kv_mem;           /* budgets in force */
    size_t saved_bytes;                 /* images of the preempted ones */
    size_t cache_bytes, cache_mem;      /* checkpoints and their budget */
    int64_t checkpoints;
    int64_t submitted, ended, preemptions; /* since it was opened */
    int64_t looked_up, cached, evictions;  /* prompt tokens asked of the cache, and found there; checkpoints dropped */
} ebb_scheduler_stats;
EBB_API void ebb_scheduler_now(const ebb_scheduler *scheduler, ebb_scheduler_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
