/* server/loop.h: the thread of the engine. Connections submit jobs (job.h) and take their events; this thread alone
 * touches the engine, so that it works on while connections wait, and they answer while it works. Called by the
 * server. */
#ifndef SERVER_LOOP_H
#define SERVER_LOOP_H

#include "server/job.h"
#include "server/metrics.h"
#include "server/server.h"

typedef struct loop loop;

typedef struct loop_stats {
    int64_t queued, running;                /* sequences */
    int64_t slots, context;                 /* sequences at a time, tokens of each */
    size_t state_bytes, kv_bytes;           /* held now */
    size_t cache_bytes;                     /* checkpoints and pages that no sequence holds */
    size_t state_most, kv_most, cache_most; /* their budgets */
    int64_t looked_up, cached;              /* prompt tokens asked of the prefix cache, and found */
    int64_t checkpoints, evictions, preemptions;
    int64_t drafted, accepted; /* tokens of speculative decoding */
} loop_stats;

typedef struct loop_texts { /* what is in use, for banner and metrics; good while the loop is open */
    const char *state, *kv, *prefill, *rows, *cache;
} loop_texts;

/* Starts the thread. */
ebb_status loop_open(const server_config *config, metrics *m, loop **l, ebb_error *error);
/* What still runs is cancelled. */
void loop_close(loop *l);
/* The job is held until its last event. EBB_NO_MEMORY: the queue is full, or the loop is closing. */
ebb_status loop_submit(loop *l, job *j, ebb_error *error);
void loop_wake(loop *l); /* a job was cancelled */
void loop_now(loop *l, loop_stats *stats);
loop_texts loop_names(const loop *l);
int64_t loop_jobs(loop *l); /* submitted and not at their end */

#endif
