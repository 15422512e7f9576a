/* peers/peer.h: one operator of ggml as something that can be timed, and the table of contenders. Used by ggml_bench.c
 * and its families. */
#ifndef PEERS_PEER_H
#define PEERS_PEER_H

#include "bench_time.h"
#include "core/core.h"
#include "ebb/op.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

typedef struct peer { /* a graph of one node */
    struct ggml_context *tensors, *work;
    struct ggml_threadpool *pool;
    struct ggml_cgraph *graph;
    struct ggml_tensor *result;
    ggml_backend_buffer_t weights;
    uint8_t *scratch;
    struct ggml_cplan plan;
} peer;

/* Room for `bytes` of tensors; then the caller makes them in p->tensors, sets p->result, and calls peer_ready. */
ebb_status peer_open(peer *p, size_t bytes, ebb_error *error);
ebb_status peer_ready(peer *p, int32_t threads, ebb_error *error);
void peer_close(peer *p); /* a zeroed one is allowed */
ebb_status peer_run(void *p, ebb_error *error);
void peer_rest(void *p);

/* A weight [n][k] of that type in the order that ggml's CPU code prefers, or as the file has it where it prefers none;
 * *repacked says which. */
struct ggml_tensor *peer_weight(peer *p, enum ggml_type type, int64_t n, int64_t k, const void *data, bool *repacked);

/* One line of the table: what several contenders did with the same work. */
enum { CONTENDERS = 6 };
typedef struct contest {
    char shape[96];
    int32_t threads;
    bench_case cases[CONTENDERS];
    const char *name[CONTENDERS];
    double far[CONTENDERS]; /* relative distance of the results to those of the first contender */
    int32_t n;
} contest;
void contest_add(contest *c, const char *name, ebb_status (*run)(void *, ebb_error *), void *ctx, double units);
/* |a - b| / |b| into the last contender's `far`; more than `limit` is an error, for then not the same thing is timed.
 */
ebb_status contest_far(contest *c, const float *a, const float *b, int64_t n, double limit, ebb_error *error);
ebb_status contest_run(contest *c, ebb_error *error);

float *peer_numbers(int64_t n, uint64_t seed); /* normal ones; NULL: no memory */

ebb_status peer_gemm(int32_t threads, ebb_error *error);
ebb_status peer_delta(int32_t threads, ebb_error *error);
ebb_status peer_attention(int32_t threads, ebb_error *error);

#endif
