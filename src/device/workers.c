/* device/workers.c: the worker threads of the CPU device. Called by queues (queue_run) and by loading code.
 *
 * A decode step of a small model is some sixty short parallel regions, so waking must cost about a microsecond: workers
 * spin for a while on the ticket before they sleep on a condition variable. */
#define _GNU_SOURCE
#include "device/device_int.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS = 20000 }; /* about 50 us */

/* A ticket is (job number << 32) + next item. An item is claimed by raising the ticket of its own job, so a worker that
 * slept through a job cannot touch the next one by mistake; and a job ends when its items are done, not when every
 * worker has looked at it: on a busy machine the caller does the work of a worker that the system has put aside. */
struct workers {
    int32_t threads, started; /* including the caller; started: threads - 1 when all came up */
    pthread_t *thread;
    pthread_mutex_t one_job; /* held for the length of a workers_run */
    pthread_mutex_t lock;    /* for `wake` */
    pthread_cond_t wake;
    _Atomic uint64_t ticket;
    _Atomic int64_t done; /* items of this job that are finished */
    _Atomic bool stop;
    int32_t sleepers; /* under lock */
    _Atomic int64_t items;
    _Atomic(work_fn) fn;
    _Atomic(void *) ctx;
};

typedef struct worker_arg {
    workers *pool;
    int32_t index;
} worker_arg;

static inline void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static inline uint64_t job_of(uint64_t ticket) { return ticket >> 32; }

/* Claim and do items of `job` until there are none, or another job has begun. */
static void take_items(workers *pool, uint64_t job, int32_t index) {
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (job_of(ticket) == job &&
           (int64_t)(ticket & UINT32_MAX) < atomic_load_explicit(&pool->items, memory_order_acquire)) {
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        work_fn fn = atomic_load_explicit(&pool->fn, memory_order_relaxed);
        fn(atomic_load_explicit(&pool->ctx, memory_order_relaxed), (int64_t)(ticket & UINT32_MAX), index);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
}

/* Wait for a job other than `seen`; returns its number. */
static uint64_t await_job(workers *pool, uint64_t seen) {
    uint64_t job;
    for (int i = 0; i < SPINS; i++) {
        if ((job = job_of(atomic_load_explicit(&pool->ticket, memory_order_acquire))) != seen) return job;
        pause_cpu();
    }
    pthread_mutex_lock(&pool->lock);
    pool->sleepers++;
    while ((job = job_of(atomic_load_explicit(&pool->ticket, memory_order_acquire))) == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
    pool->sleepers--;
    pthread_mutex_unlock(&pool->lock);
    return job;
}

static void *work(void *p) {
    worker_arg arg = *(worker_arg *)p;
    free(p);
    workers *pool = arg.pool;
    for (uint64_t seen = 0;;) {
        seen = await_job(pool, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) return NULL;
        take_items(pool, seen, arg.index);
    }
}

/* Publish a job whose fields are set; returns its number, which is never 0. */
static uint64_t next_job(workers *pool) {
    uint64_t job = (job_of(atomic_load_explicit(&pool->ticket, memory_order_relaxed)) + 1) & UINT32_MAX;
    job += job == 0;
    pthread_mutex_lock(&pool->lock);
    atomic_store_explicit(&pool->ticket, job << 32, memory_order_release);
    if (pool->sleepers) pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    return job;
}

ebb_status workers_open(int32_t threads, workers **out, ebb_error *error) {
    workers *pool = calloc(1, sizeof *pool);
    if (!pool) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d workers", threads);
    pool->threads = threads;
    pthread_mutex_init(&pool->one_job, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->thread = calloc((size_t)threads, sizeof *pool->thread);
    bool made = pool->thread != NULL;
    for (int32_t i = 1; made && i < threads; i++) {
        worker_arg *arg = malloc(sizeof *arg);
        made = arg != NULL;
        if (!made) break;
        *arg = (worker_arg){pool, i};
        made = pthread_create(&pool->thread[i - 1], NULL, work, arg) == 0;
        if (made) pool->started++;
        else free(arg);
    }
    if (!made) {
        workers_close(pool);
        return ebb_fail(error, EBB_NO_MEMORY, "cannot start %d worker threads", threads);
    }
    *out = pool;
    return EBB_OK;
}

void workers_close(workers *pool) {
    if (!pool) return;
    atomic_store_explicit(&pool->stop, true, memory_order_release);
    atomic_store_explicit(&pool->items, 0, memory_order_release);
    next_job(pool);
    for (int32_t i = 0; i < pool->started; i++) pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->one_job);
    free(pool->thread);
    free(pool);
}

int32_t workers_count(const workers *pool) { return pool->threads; }

void workers_run(workers *pool, int64_t items, work_fn fn, void *ctx) {
    if (pool->threads == 1 || items < 2 || items > UINT32_MAX / 2) {
        for (int64_t i = 0; i < items; i++) fn(ctx, i, 0);
        return;
    }
    pthread_mutex_lock(&pool->one_job);
    /* Close the last job before its fields change: a late worker that sees the new item count must not find the old
     * ticket. */
    uint64_t last = atomic_load_explicit(&pool->ticket, memory_order_relaxed);
    atomic_store_explicit(&pool->ticket, last | UINT32_MAX, memory_order_release);
    atomic_store_explicit(&pool->items, items, memory_order_release);
    atomic_store_explicit(&pool->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&pool->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    take_items(pool, next_job(pool), 0);
    for (int64_t spins = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < items; spins++) {
        if (spins < SPINS) pause_cpu();
        else sched_yield();
    }
    pthread_mutex_unlock(&pool->one_job);
}
