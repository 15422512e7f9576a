/* check/bench_time.h: how anything is timed here, and what this machine could do at best. Used by ebb-check --bench and
 * by bench/peers, so that both measure alike. */
#ifndef CHECK_BENCH_TIME_H
#define CHECK_BENCH_TIME_H

#include "ebb/core.h"

/* Things that do the same work are timed in turn, BENCH_RUNS times each, so that a busy moment of the machine meets all
 * of them. A run is as many calls as take BENCH_SECONDS, after one that is not timed; at least one call. Slow cases are
 * warmed up once. */
enum { BENCH_RUNS = 7 };
#define BENCH_SECONDS 0.02

typedef struct bench_case {
    ebb_status (*run)(void *ctx, ebb_error *error);
    void *ctx;
    void (*rest)(void *ctx); /* after each run, not timed: puts threads to sleep that would spin. NULL: nothing */
    double units;            /* of work that one call does; times are of one */
    double median, least;    /* seconds a unit, filled in */
    bool slow;               /* a call takes longer than BENCH_SECONDS */
} bench_case;

ebb_status bench_measure(bench_case *cases, int32_t n, ebb_error *error);

/* Streaming read of memory far beyond the caches, and multiply-adds in registers, by `threads` threads at once: the
 * best of several runs. */
typedef struct bench_roof {
    int32_t threads;
    double read_gbs, fma_gflops;
    const char *fma; /* what instructions had the peak */
} bench_roof;
ebb_status bench_roofline(int32_t threads, bench_roof *roof, ebb_error *error);

/* Name of the CPU, "unknown" where the system does not tell; bytes of its largest cache, 0 likewise. */
void bench_cpu(char *name, size_t room);
double bench_cache_bytes(void);
/* How many threads of other programs wanted to run in the last minute; 0 where the system does not tell. Asked at the
 * start: with one or more, the times are not worth much, those of several threads nothing. */
double bench_load(void);

/* A line on stderr that is overwritten; nothing unless that is a terminal. */
void bench_progress(const char *what, int32_t done, int32_t total, double start);
void bench_progress_clear(void);

#endif
