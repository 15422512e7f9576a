/* check/bench_append.c: writing tokens into KV stores and choosing vertical keys for ebb-check --bench, the rows alone:
 * a token of 8 KV heads of 128 dims, and an interval of 256 keys of one head; on one thread, data in L1 or L2. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, DIM = 128, GROUP = 4, KEYS = EBB_GRID };

typedef struct append_ctx {
    const append_row *append;
    const select_row *select;
    int32_t shape;
    float *x, *y;
    uint16_t *word;
    uint8_t *code;
} append_ctx;

/* Bits of codes; 16: rows of the tail, written and read back. Levels: of 2 bits. */
static const struct {
    const char *name;
    int32_t bits;
    bool levels;
} appends[] = {{"fp16 rows", 16, false},
               {"8 bits", 8, false},
               {"4 bits", 4, false},
               {"2 bits", 2, true},
               {"2 bits, paper", 2, false}};

static ebb_status run_append(void *p, ebb_error *error) {
    const append_ctx *c = p;
    (void)error;
    if (appends[c->shape].bits == 16) {
        c->append->narrow(EBB_FP16, c->x, HEADS * DIM, c->word);
        c->append->widen(EBB_FP16, c->word, HEADS * DIM, c->y);
        return EBB_OK;
    }
    const append_part part = {.x = c->x,
                              .x_stride = DIM,
                              .heads = HEADS,
                              .dims = DIM,
                              .bits = appends[c->shape].bits,
                              .levels = appends[c->shape].levels,
                              .code = c->code,
                              .scale = c->code + DIM,
                              .stride = DIM + 2};
    c->append->codes(&part);
    return EBB_OK;
}

static ebb_status run_select(void *p, ebb_error *error) {
    const append_ctx *c = p;
    (void)error;
    if (c->shape) {
        memset(c->y, 0, DIM * sizeof *c->y);
        c->select->add(c->x, DIM, GROUP, DIM, c->y);
    } else c->select->score(c->x, c->x, DIM, KEYS, c->y);
    return EBB_OK;
}

static bool find_rows(append_ctx *c, const bench_place *place) {
    const append_row *const *append = rows_of(place->device)->append;
    const select_row *const *select = rows_of(place->device)->select;
    while (*append && strcmp((*append)->id.name, place->row)) append++;
    while (*select && strcmp((*select)->id.name, place->row)) select++;
    c->append = *append, c->select = *select;
    return *append && *select;
}

static ebb_status run_all(bench *b, int32_t shape, ebb_status (*run)(void *, ebb_error *), ebb_error *error) {
    append_ctx ctx[BENCH_PLACES], base = {.shape = shape};
    base.x = bench_floats(KEYS * DIM, 1), base.y = bench_floats(KEYS * DIM, 2);
    base.word = malloc(HEADS * DIM * sizeof *base.word), base.code = malloc(HEADS * (DIM + 2));
    ebb_status status = base.x && base.y && base.word && base.code ? EBB_OK : bench_no_memory(error);
    for (int32_t i = 0; i < b->places && !status; i++) {
        if (b->place[i].threads > 1) continue;
        ctx[i] = base;
        if (find_rows(&ctx[i], &b->place[i])) bench_add(b, i, 1, run, &ctx[i]);
    }
    if (!status) status = bench_end(b, error);
    free(base.x), free(base.y), free(base.word), free(base.code);
    return status;
}

static ebb_status append_run(bench *b, int32_t shape, ebb_error *error) {
    const double values = HEADS * DIM, bytes = values * (4 + appends[shape].bits / 8.0 + (shape ? 0 : 4));
    bench_begin(b, bytes, 0, bytes, "%s, %d heads of %d dims", appends[shape].name, HEADS, DIM);
    return run_all(b, shape, run_append, error);
}

static ebb_status select_run(bench *b, int32_t shape, ebb_error *error) {
    const double bytes = 4.0 * DIM * (shape ? GROUP + 2 : KEYS), flops = shape ? DIM * (GROUP + 2) : 2.0 * KEYS * DIM;
    if (shape) bench_begin(b, bytes, flops, bytes, "mean of %d queries of %d dims", GROUP, DIM);
    else bench_begin(b, bytes, flops, bytes, "scores of %d keys of %d dims", KEYS, DIM);
    return run_all(b, shape, run_select, error);
}

const bench_family bench_append = {"append", COUNT(appends), append_run};
const bench_family bench_select = {"select", 2, select_run};
