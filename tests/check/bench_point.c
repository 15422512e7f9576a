/* check/bench_point.c: pointwise kernels for ebb-check --bench: one row of 1,024 numbers, on one thread, data in L1. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LONG = 1024, WIDTH = 4, DIM = 128 };

typedef struct point_ctx {
    const point_row *row;
    int32_t shape;
    float *a, *b, *w, *y;
} point_ctx;

/* Passes of a call, in floats read and written a number of the row. */
static const struct {
    const char *name;
    double floats;
} shapes[] = {{"rms_norm", 3}, {"l2_norm", 2},   {"swiglu", 3},      {"conv, 4 taps", 9},      {"gates", 3},
              {"sigmoid", 2},  {"norm_gate", 4}, {"mul_sigmoid", 3}, {"rope, 128 dims", 0.375}};

/* What kernels leave in place is of the size of what they got, but for mul_sigmoid, which gets a copy. */
static ebb_status run(void *p, ebb_error *error) {
    const point_ctx *c = p;
    const point_row *row = c->row;
    const float *x[WIDTH] = {c->a, c->b, c->a, c->b};
    (void)error;
    switch (c->shape) {
    case 0:
        row->rms_norm(c->a, c->w, 1e-6f, LONG, c->y);
        break;
    case 1:
        row->l2_norm(c->y, LONG);
        break;
    case 2:
        row->swiglu(c->a, c->b, LONG, c->y);
        break;
    case 3:
        row->conv(x, c->w, WIDTH, LONG, c->y);
        break;
    case 4:
        row->gates(c->a, c->b, 1.0f, LONG, c->y);
        break;
    case 5:
        row->sigmoid(c->a, LONG, c->y);
        break;
    case 6:
        row->norm_gate(c->y, c->w, c->a, 1e-6f, EBB_GATE_SILU, LONG);
        break;
    case 7:
        memcpy(c->y, c->b, LONG * sizeof *c->y);
        row->mul_sigmoid(c->y, c->a, LONG);
        break;
    default:
        row->rope(c->y, c->w, c->w + DIM, DIM);
        break;
    }
    return EBB_OK;
}

static const point_row *row_named(const bench_place *place) {
    const point_row *const *row = rows_of(place->device)->point;
    while (*row && strcmp((*row)->id.name, place->row)) row++;
    return *row;
}

static ebb_status point_run(bench *b, int32_t shape, ebb_error *error) {
    point_ctx ctx[BENCH_PLACES], base = {.shape = shape};
    base.a = bench_floats(LONG, 1), base.b = bench_floats(LONG, 2), base.y = bench_floats(LONG, 3);
    base.w = bench_floats((int64_t)LONG * WIDTH, 4);
    ebb_status status = base.a && base.b && base.w && base.y ? EBB_OK : bench_no_memory(error);
    bench_begin(b, 4.0 * LONG * shapes[shape].floats, 0, 4.0 * LONG * shapes[shape].floats, "%s, n = %d",
                shapes[shape].name, LONG);
    for (int32_t i = 0; i < (status ? 0 : LONG) && shape == COUNT(shapes) - 1; i++) /* angles: a rotation keeps sizes */
        base.w[i] = i < DIM ? cosf((float)i) : sinf((float)(i - DIM));
    for (int32_t i = 0; i < b->places && !status; i++) {
        if (b->place[i].threads > 1) continue;
        ctx[i] = base;
        if (!(ctx[i].row = row_named(&b->place[i]))) continue;
        bench_add(b, i, 1, run, &ctx[i]);
    }
    if (!status) status = bench_end(b, error);
    free(base.a), free(base.b), free(base.w), free(base.y);
    return status;
}

const bench_family bench_point = {"point", COUNT(shapes), point_run};
