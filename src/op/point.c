/* op/point.c: pointwise ops over rows: RMS norm, sums, SwiGLU, and what comes before attention: norm per head and RoPE.
 * Called by models; the arithmetic is that of the point row of the device (op/ref/point.c). */
#include "op/batch.h"
#include "op/rows.h"

#include <math.h>
#include <string.h>

enum { ITEM_ROWS = 16 }; /* rows of one work item */

static int64_t row_items(int64_t m) { return (m + ITEM_ROWS - 1) / ITEM_ROWS; }

/* Scalar operations of m rows of n values, `each` a value. */
static int64_t rows_cost(int64_t m, int64_t n, double each) {
    double cost = (double)m * (double)n * each;
    return cost < 1e15 ? (int64_t)cost : (int64_t)1e15;
}

/* ---- RMS norm, sums and SwiGLU ---- */

typedef struct rows_job {
    const point_row *row;
    const float *x, *w;
    float *y, eps;
    int64_t x_stride, y_stride, n, m;
} rows_job;

static void rms_norm_item(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    const rows_job *j = ctx;
    int64_t end = min_i64(j->m, (item + 1) * ITEM_ROWS);
    for (int64_t i = item * ITEM_ROWS; i < end; i++)
        j->row->rms_norm(j->x + i * j->x_stride, j->w, j->eps, j->n, j->y + i * j->y_stride);
}

ebb_status ebb_rms_norm(ebb_queue *queue, const float *x, int64_t x_stride, const float *w, float eps, int64_t n,
                        float *y, int64_t y_stride, int64_t m) {
    if (!queue || n < 1 || m < 0 || !(eps >= 0)) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!x || !w || !y || x_stride < n || y_stride < n) return EBB_BAD_ARGUMENT;
    rows_job job = {point_row_of(queue->device), x, w, y, eps, x_stride, y_stride, n, m};
    queue_run(queue, row_items(m), rows_cost(m, n, 1), rms_norm_item, &job);
    return EBB_OK;
}

/* One addition an element: no row of the device could give other bits. */
static void add_item(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    const rows_job *j = ctx;
    int64_t end = min_i64(j->m, (item + 1) * ITEM_ROWS);
    for (int64_t i = item * ITEM_ROWS; i < end; i++) {
        const float *x = j->x + i * j->x_stride;
        float *y = j->y + i * j->y_stride;
        for (int64_t c = 0; c < j->n; c++) y[c] += x[c];
    }
}

ebb_status ebb_add(ebb_queue *queue, const float *x, int64_t x_stride, int64_t n, float *y, int64_t y_stride,
                   int64_t m) {
    if (!queue || n < 1 || m < 0) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!x || !y || (x_stride && x_stride < n) || y_stride < n) return EBB_BAD_ARGUMENT;
    rows_job job = {.x = x, .x_stride = x_stride, .y = y, .y_stride = y_stride, .n = n, .m = m};
    queue_run(queue, row_items(m), rows_cost(m, n, 1), add_item, &job);
    return EBB_OK;
}

static void swiglu_item(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    const rows_job *j = ctx;
    int64_t end = min_i64(j->m, (item + 1) * ITEM_ROWS);
    for (int64_t i = item * ITEM_ROWS; i < end; i++) {
        const float *gate = j->x + i * j->x_stride;
        j->row->swiglu(gate, gate + j->n, j->n, j->y + i * j->y_stride);
    }
}

ebb_status ebb_swiglu(ebb_queue *queue, const float *gate_up, int64_t stride, int64_t n, float *y, int64_t y_stride,
                      int64_t m) {
    if (!queue || n < 1 || n > INT64_MAX / 2 || m < 0) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!gate_up || !y || stride < 2 * n || y_stride < n) return EBB_BAD_ARGUMENT;
    rows_job job = {.row = point_row_of(queue->device),
                    .x = gate_up,
                    .x_stride = stride,
                    .y = y,
                    .y_stride = y_stride,
                    .n = n,
                    .m = m};
    queue_run(queue, row_items(m), rows_cost(m, n, 4), swiglu_item, &job);
    return EBB_OK;
}

typedef struct tile_job {
    const float *x;
    float *y;
    int64_t groups, each, dim;
} tile_job;

static void tile_row(void *ctx, int64_t row, int32_t worker) {
    (void)worker;
    const tile_job *j = ctx;
    const int64_t n = j->groups * j->each * j->dim;
    const float *x = j->x + row * n;
    float *y = j->y + row * n;
    for (int64_t g = 0; g < j->groups; g++)
        for (int64_t i = 0; i < j->each; i++, x += j->dim)
            memcpy(y + (i * j->groups + g) * j->dim, x, (size_t)j->dim * sizeof *y);
}

ebb_status ebb_tile_heads(ebb_queue *queue, const float *x, int64_t heads, int64_t groups, int64_t dim, float *y,
                          int64_t m) {
    if (!queue || heads < 1 || groups < 1 || heads % groups || dim < 1 || m < 0) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!x || !y || heads > INT64_MAX / dim) return EBB_BAD_ARGUMENT;
    tile_job job = {x, y, groups, heads / groups, dim};
    queue_run(queue, m, rows_cost(m, heads * dim, 1), tile_row, &job);
    return EBB_OK;
}

/* ---- norm per head and RoPE ---- */

typedef struct rope_job {
    const point_row *row;
    const ebb_rope *rope;
    const ebb_batch *batch;
    const ebb_tensor *q, *q_out, *k;
} rope_job;

/* Dimension 2i turns with 2i + 1. Two products a value, as the NeoX form of the point rows. */
static void rope_pairs(float *x, const float *cosine, const float *sine, int32_t rotary) {
    for (int32_t i = 0; i < rotary / 2; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

/* One head: from -> to, normed and turned; from may be to. */
static void rope_head(const rope_job *j, const float *from, const float *norm, int64_t dim, const float *cosine,
                      const float *sine, float *to) {
    if (norm) j->row->rms_norm(from, norm, j->rope->eps, dim, to);
    else if (from != to) memcpy(to, from, (size_t)dim * sizeof *to);
    if (j->rope->interleaved) rope_pairs(to, cosine, sine, j->rope->rotary);
    else if (j->rope->rotary) j->row->rope(to, cosine, sine, j->rope->rotary);
}

static void rope_token(void *ctx, int64_t token, int32_t worker) {
    (void)worker;
    const rope_job *j = ctx;
    const ebb_tensor *q = j->q, *out = j->q_out, *k = j->k;
    float cosine[EBB_MAX_HEAD_DIM / 2], sine[EBB_MAX_HEAD_DIM / 2];
    int32_t seq = sequence_of(j->batch, token);
    if (j->batch->slot[seq] < 0) return;
    float position = (float)(j->batch->pos[seq] + token - j->batch->cu[seq]);
    for (int32_t i = 0; i < j->rope->rotary / 2; i++) {
        float angle = position * j->rope->inv_freq[i];
        cosine[i] = cosf(angle);
        sine[i] = sinf(angle);
    }
    const float *from = (const float *)q->data + token * q->stride[0];
    float *to = (float *)out->data + token * out->stride[0], *key = (float *)k->data + token * k->stride[0];
    for (int64_t h = 0; h < q->shape[1]; h++)
        rope_head(j, from + h * q->stride[1], j->rope->q_norm, q->shape[2], cosine, sine, to + h * out->stride[1]);
    for (int64_t h = 0; h < k->shape[1]; h++)
        rope_head(j, key + h * k->stride[1], j->rope->k_norm, k->shape[2], cosine, sine, key + h * k->stride[1]);
}

/* [tokens][heads][dim] of FP32 with contiguous heads that do not overlap; `contiguous`: heads follow each other. */
static ebb_status check_heads(const char *name, const ebb_tensor *t, int64_t tokens, bool contiguous,
                              ebb_error *error) {
    if (!t) return ebb_fail(error, EBB_BAD_ARGUMENT, "%s is missing", name);
    if (t->type != EBB_FP32 || t->dims != 3)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s has type %d and %d dimensions, expected fp32 and 3", name, t->type,
                        t->dims);
    int64_t heads = t->shape[1], dim = t->shape[2], across, row;
    if (t->shape[0] != tokens || heads < 1 || dim < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "%s is %lld x %lld x %lld, expected the %lld tokens of the batch x heads x dim", name,
                        (long long)t->shape[0], (long long)heads, (long long)dim, (long long)tokens);
    if (tokens && !t->data) return ebb_fail(error, EBB_BAD_ARGUMENT, "%s has no data", name);
    if (t->stride[2] != 1 || t->stride[1] < dim || (contiguous && t->stride[1] != dim))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s has strides %lld, %lld inside a token, expected %s%lld, 1", name,
                        (long long)t->stride[1], (long long)t->stride[2], contiguous ? "" : "at least ",
                        (long long)dim);
    if (__builtin_mul_overflow(heads - 1, t->stride[1], &across) || __builtin_add_overflow(across, dim, &row) ||
        t->stride[0] < row)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s has tokens %lld apart, expected at least its %lld x %lld values",
                        name, (long long)t->stride[0], (long long)heads, (long long)dim);
    return EBB_OK;
}

static ebb_status check_rope(const ebb_rope *rope, const ebb_tensor *q, const ebb_tensor *q_out, const ebb_tensor *k,
                             ebb_error *error) {
    int64_t dim = q->shape[2];
    if (q_out->shape[1] != q->shape[1] || q_out->shape[2] != dim)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "q_out has %lld heads of %lld, expected %lld of %lld as in q",
                        (long long)q_out->shape[1], (long long)q_out->shape[2], (long long)q->shape[1], (long long)dim);
    if (k->shape[2] != dim)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "k has heads of %lld, expected %lld as in q", (long long)k->shape[2],
                        (long long)dim);
    if (rope->rotary < 0 || rope->rotary % 2 || rope->rotary > dim || rope->rotary > EBB_MAX_HEAD_DIM)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "rotary = %d, expected an even number of at most %lld", rope->rotary,
                        (long long)min_i64(dim, EBB_MAX_HEAD_DIM));
    if (rope->rotary && !rope->inv_freq)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "rotary = %d needs inv_freq", rope->rotary);
    if ((rope->q_norm || rope->k_norm) && !(rope->eps >= 0))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "eps = %g, expected 0 or more", (double)rope->eps);
    return EBB_OK;
}

ebb_status ebb_rope_norm(ebb_queue *queue, const ebb_rope *rope, const ebb_batch *batch, const ebb_tensor *q,
                         ebb_tensor *q_out, ebb_tensor *k, ebb_error *error) {
    if (!queue || !rope || !batch) return ebb_fail(error, EBB_BAD_ARGUMENT, "rope needs a queue, a rope and a batch");
    ebb_status status = check_batch(batch, INT32_MAX, INT64_MAX, INT32_MAX, error); /* no plan limits it */
    if (!status) status = check_heads("q", q, batch->tokens, false, error);
    if (!status) status = check_heads("q_out", q_out, batch->tokens, true, error);
    if (!status) status = check_heads("k", k, batch->tokens, true, error);
    if (!status) status = check_rope(rope, q, q_out, k, error);
    if (status) return status;
    rope_job job = {point_row_of(queue->device), rope, batch, q, q_out, k};
    int64_t values = (q->shape[1] + k->shape[1]) * q->shape[2] + 20 * rope->rotary;
    queue_run(queue, batch->tokens, rows_cost(batch->tokens, values, 2), rope_token, &job);
    return EBB_OK;
}
