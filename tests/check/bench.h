/* check/bench.h: ebb-check --bench: every kernel row on a list of shapes, through the public calls. A family (one file
 * each) has shapes; for a shape it sets up one case a place (a row on a number of threads), all of which are timed in
 * turn by bench_time.h, and bench_end prints them beside the roofline. */
#ifndef CHECK_BENCH_H
#define CHECK_BENCH_H

#include "bench_time.h"
#include "check.h"

enum { BENCH_PLACES = 8 };
typedef struct bench_place { /* a device that has `row` as its best one */
    const char *row;
    int32_t threads;
    ebb_device *device;
} bench_place;

typedef struct bench {
    bench_place place[BENCH_PLACES]; /* best rows first, ref last and on one thread */
    int32_t places;
    bench_roof roof[2]; /* of one thread, and of all */
    double cache_bytes, load;
    bool json, any; /* any: a line is printed already */
    /* the shape that is being timed */
    const char *family;
    char shape[96];
    double bytes, flops, working_set; /* of a unit: the fewest bytes that must move, FLOP; what all calls touch */
    bench_case cases[BENCH_PLACES];
    int32_t at[BENCH_PLACES], n; /* their places */
} bench;

typedef struct bench_family {
    const char *name;
    int32_t shapes;
    ebb_status (*run)(bench *b, int32_t shape, ebb_error *error);
} bench_family;
extern const bench_family bench_gemm, bench_point, bench_delta, bench_chunk, bench_attention, bench_append,
    bench_select;

/* --bench [--family NAME] [--threads N] [--json]; the exit status of the program. */
int bench_main(const char *family, int32_t threads, bool json);

void bench_begin(bench *b, double bytes, double flops, double working_set, const char *format, ...) EBB_PRINTF(5, 6);
/* The reference is a definition and slow: it runs shapes of few FLOP only. */
bool bench_wants(const bench *b, int32_t place);
void bench_add(bench *b, int32_t place, double units, ebb_status (*run)(void *ctx, ebb_error *error), void *ctx);
ebb_status bench_end(bench *b, ebb_error *error);

float *bench_floats(int64_t n, uint64_t seed); /* normal numbers; NULL: no memory */
ebb_status bench_no_memory(ebb_error *error);

#endif
