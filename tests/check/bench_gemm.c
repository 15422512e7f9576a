/* check/bench_gemm.c: linear layers for ebb-check --bench: one square weight, and all layers of a model one after
 * another, so that they come from memory. */
#include "bench.h"

#include "op/panel.h"

#include <stdlib.h>
#include <string.h>

/* Weights of the shapes of Qwen3.5-0.8B (hidden 1024, MLP 3584, 16 GDN heads of 128 x 128): q k v z, out, gate and up,
 * down of a layer; as many layers as make 1 GiB in BF16. */
static const int64_t layer_nk[][2] = {{8192, 1024}, {1024, 2048}, {7168, 1024}, {1024, 3584}};
enum { MATRICES = COUNT(layer_nk), LAYERS = 25, MOST = LAYERS * MATRICES, SQUARE = 2048 };

static const struct {
    bool model;
    int32_t type;
    int64_t m;
} shapes[] = {
    {false, EBB_BF16, 512}, {false, EBB_FP32, 512}, {false, EBB_Q8_0, 512}, {false, EBB_Q4_0, 512},
    {false, EBB_Q4_K, 512}, {false, EBB_BF16, 64},  {false, EBB_BF16, 8},   {false, EBB_BF16, 1},
    {false, EBB_FP32, 1},   {true, EBB_BF16, 1},    {true, EBB_BF16, 8},    {true, EBB_Q8_0, 1},
    {true, EBB_Q4_0, 1},
};

typedef struct gemm_world {
    int32_t n;
    ebb_weight w[MOST];
    int64_t m;
    float *x, *y;
} gemm_world;

typedef struct gemm_ctx {
    const gemm_world *world;
    ebb_queue *queue;
} gemm_ctx;

static ebb_status run(void *p, ebb_error *error) {
    const gemm_ctx *c = p;
    const gemm_world *g = c->world;
    for (int32_t i = 0; i < g->n; i++)
        if (ebb_linear(c->queue, &g->w[i], g->x, g->w[i].k, g->y, g->w[i].n, g->m, 0))
            return ebb_fail(error, EBB_BAD_ARGUMENT, "a linear layer of %lld x %lld was refused", (long long)g->w[i].n,
                            (long long)g->w[i].k);
    return EBB_OK;
}

/* n x k random numbers of a type: any codes, scales of 1/128. */
static void *numbers(int32_t type, int64_t n, int64_t k) {
    const size_t bytes = (size_t)n * ebb_type_row_bytes((ebb_type)type, k);
    uint8_t *w = aligned_new(bytes);
    rng r = {3};
    for (size_t i = 0; w && i + 8 <= bytes; i += 8) {
        uint64_t bits = rng_next(&r);
        if (type == EBB_BF16) bits = (bits & 0x803F803F803F803Fu) | 0x3C003C003C003C00u;
        if (type == EBB_FP32) bits = (bits & 0x807FFFFF807FFFFFu) | 0x3C0000013C000001u;
        memcpy(w + i, &bits, 8);
    }
    if (!w || !gguf_block_values(type)) return w;
    const quant_layout l = quant_layout_of(type);
    for (size_t at = 0; at + (size_t)l.bytes <= bytes; at += (size_t)l.bytes)
        for (int32_t h = 0; h < l.halves; h++) memcpy(w + at + l.halves_at + 2 * h, &(uint16_t){0x2000}, 2);
    return w;
}

static ebb_status pack_all(ebb_device *device, gemm_world *g, bool model, int32_t type, ebb_error *error) {
    const int64_t square[2] = {SQUARE, SQUARE};
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < (model ? MATRICES : 1) && !status; i++) {
        const int64_t *nk = model ? layer_nk[i] : square;
        void *w = numbers(type, nk[0], nk[1]);
        const ebb_weight_part part = {w, type, nk[0]};
        if (!w) return bench_no_memory(error);
        for (int32_t l = 0; l < (model ? LAYERS : 1) && !status; l++) {
            status = ebb_weight_pack(device, &part, 1, nk[1], &g->w[l * MATRICES + i], error);
            if (!status) g->n++;
        }
        free(w);
    }
    return status;
}

static ebb_status gemm_run(bench *b, int32_t shape, ebb_error *error) {
    const bool model = shapes[shape].model;
    const int32_t type = shapes[shape].type;
    const int64_t m = shapes[shape].m;
    ebb_device *owner = b->place[0].device; /* panels are the same for all rows */
    gemm_ctx ctx[BENCH_PLACES] = {{NULL, NULL}};
    gemm_world *g = calloc(1, sizeof *g);
    ebb_status status = g ? EBB_OK : bench_no_memory(error);
    double bytes = 0, flops = 0;
    if (status) return status;
    g->m = m, g->x = bench_floats(m * 8192, 7), g->y = bench_floats(m * 8192, 8);
    status = g->x && g->y ? pack_all(owner, g, model, type, error) : bench_no_memory(error);
    for (int32_t i = 0; i < g->n && !status; i++) {
        const ebb_weight *w = &g->w[i];
        bytes += (double)w->bytes + 4.0 * (double)(m * (w->n + w->k)), flops += 2.0 * (double)(m * w->n * w->k);
    }
    bench_begin(b, bytes, flops, bytes, "%s, %s, M = %lld", model ? "25 layers of Qwen3.5-0.8B" : "N = K = 2048",
                ebb_type_name((ebb_type)type), (long long)m);
    for (int32_t p = 0; p < b->places && !status; p++) {
        if (!bench_wants(b, p)) continue;
        ctx[p].world = g;
        status = ebb_queue_open(b->place[p].device, 0, &ctx[p].queue, error);
        bench_add(b, p, 1, run, &ctx[p]);
    }
    if (!status) status = bench_end(b, error);
    for (int32_t p = 0; p < b->places; p++) ebb_queue_close(ctx[p].queue);
    for (int32_t i = 0; i < MOST; i++) ebb_weight_free(owner, &g->w[i]);
    free(g->x), free(g->y), free(g);
    return status;
}

const bench_family bench_gemm = {"gemm", COUNT(shapes), gemm_run};
