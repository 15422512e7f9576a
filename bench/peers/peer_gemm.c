/* peers/peer_gemm.c: matrix products of ggml_bench.c: 2048 x 2048 weights of several types, one row and 512. */
#include "peer.h"
#include "plain.h"

#include <stdio.h>
#include <stdlib.h>

enum { N = 2048, K = 2048, MOST_M = 512 };

static const struct {
    enum ggml_type peer_type;
    int32_t type;
    double limit; /* ggml rounds x to BF16 or to Q8_0 before it multiplies; ebb does not */
} types[] = {{GGML_TYPE_F32, EBB_FP32, 1e-5},
             {GGML_TYPE_BF16, EBB_BF16, 1e-2},
             {GGML_TYPE_Q8_0, EBB_Q8_0, 2e-2},
             {GGML_TYPE_Q4_0, EBB_Q4_0, 2e-2}};

typedef struct gemm_ctx {
    ebb_queue *queue;
    ebb_weight w;
    const float *x, *wt;
    float *y, *plain;
    int64_t m;
} gemm_ctx;

static ebb_status run_ebb(void *p, ebb_error *error) {
    const gemm_ctx *c = p;
    const ebb_status status = ebb_linear(c->queue, &c->w, c->x, K, c->y, N, c->m, 0);
    return status ? ebb_fail(error, status, "ebb_linear refused") : EBB_OK;
}

static ebb_status run_plain(void *p, ebb_error *error) {
    const gemm_ctx *c = p;
    (void)error;
    plain_matmul(c->wt, c->x, c->plain, c->m, N, K);
    return EBB_OK;
}

/* `bytes`: the weights as ggml stores them, which is how files do. */
static ebb_status one(ebb_device *device, int32_t t, int64_t m, const void *bytes, gemm_ctx *c, ebb_error *error) {
    const int32_t threads = ebb_device_threads(device);
    const ebb_weight_part part = {bytes, types[t].type, N};
    contest line = {.threads = threads};
    peer theirs;
    bool repacked = false;
    c->m = m;
    ebb_status status = peer_open(&theirs, (size_t)64 << 20, error);
    if (!status) status = ebb_weight_pack(device, &part, 1, K, &c->w, error);
    if (status) goto done;
    struct ggml_tensor *w = peer_weight(&theirs, types[t].peer_type, N, K, bytes, &repacked);
    struct ggml_tensor *x = ggml_new_tensor_2d(theirs.tensors, GGML_TYPE_F32, K, m);
    memcpy(x->data, c->x, (size_t)(m * K) * sizeof(float));
    theirs.result = ggml_mul_mat(theirs.tensors, w, x);
    snprintf(line.shape, sizeof line.shape, "N = K = 2048, %s, M = %lld", ebb_type_name((ebb_type)types[t].type),
             (long long)m);
    status = peer_ready(&theirs, threads, error);
    if (!status) status = peer_run(&theirs, error);
    if (!status) status = run_ebb(c, error);
    if (status) goto done;
    contest_add(&line, repacked ? "ggml, repacked" : "ggml", peer_run, &theirs, 1);
    contest_add(&line, ebb_linear_row(device), run_ebb, c, 1);
    status = contest_far(&line, c->y, theirs.result->data, m * N, types[t].limit, error);
    if (types[t].type == EBB_FP32 && threads == 1 && !status) {
        run_plain(c, error);
        contest_add(&line, "plain C", run_plain, c, 1);
        status = contest_far(&line, c->plain, theirs.result->data, m * N, types[t].limit, error);
    }
    if (!status) status = contest_run(&line, error);
done:
    ebb_weight_free(device, &c->w);
    peer_close(&theirs);
    return status;
}

ebb_status peer_gemm(int32_t threads, ebb_error *error) {
    static const int64_t rows[] = {1, MOST_M};
    const ebb_device_config config = {.size = sizeof config, .threads = threads};
    ebb_device *device = NULL;
    gemm_ctx c = {0};
    float *w = peer_numbers((int64_t)N * K, 1), *x = peer_numbers((int64_t)MOST_M * K, 2),
          *wt = aligned_new((size_t)N * K * sizeof *wt);
    uint8_t *bytes = aligned_new((size_t)N * K * sizeof *w);
    c.y = aligned_new((size_t)MOST_M * N * sizeof *c.y), c.plain = aligned_new((size_t)MOST_M * N * sizeof *c.y);
    ebb_status status = w && x && wt && bytes && c.y && c.plain
                            ? ebb_device_open("cpu", &config, &device, error)
                            : ebb_fail(error, EBB_NO_MEMORY, "no memory for matrices");
    if (!status) status = ebb_queue_open(device, 0, &c.queue, error);
    c.x = x, c.wt = wt;
    for (int64_t i = 0; i < (status ? 0 : N); i++)
        for (int64_t k = 0; k < K; k++) wt[k * N + i] = w[i * K + k];
    for (int32_t t = 0; t < COUNT(types) && !status; t++) {
        ggml_quantize_chunk(types[t].peer_type, w, bytes, 0, N, K, NULL);
        for (int32_t i = 0; i < COUNT(rows) && !status; i++) status = one(device, t, rows[i], bytes, &c, error);
    }
    ebb_queue_close(c.queue);
    ebb_device_close(device);
    free(w), free(x), free(wt), free(bytes), free(c.y), free(c.plain);
    return status;
}
