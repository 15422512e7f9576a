/* op/linear.c: linear layers: y = x W^T over the gemm row of the device. Called by models and by whoever runs a layer;
 * weights are packed in op/weight.c, the arithmetic is in op/ref/gemm.c. */
#include "op/panel.h"
#include "op/rows.h"

#include <string.h>

/* ---- y = x W^T ---- */

enum {
    ITEM_PANELS = 4, /* of one work item where rows are few; what gemm rows do at a time, else */
    MANY_PANELS = 8,
    MANY_ROWS = 48,
    ITEM_ROWS = 192 /* of one work item at most */
};

/* How a product is cut: items are (group of panels of one stack, block of rows). The cut shows in no bit. */
typedef struct cut {
    int64_t m, panels, groups, row_blocks; /* panels of a group; groups of all stacks */
} cut;

static int64_t groups_of(const cut *c, int64_t n) { return (n + c->panels * EBB_PANEL - 1) / (c->panels * EBB_PANEL); }

static cut cut_of(const ebb_weight *w, int64_t m) {
    cut c = {
        .m = m, .panels = m < MANY_ROWS ? ITEM_PANELS : MANY_PANELS, .row_blocks = (m + ITEM_ROWS - 1) / ITEM_ROWS};
    for (int32_t i = 0; i < weight_stacks(w); i++) c.groups += groups_of(&c, w->stacks ? w->stack[i].n : w->n);
    return c;
}

/* Row blocks of one group of panels follow each other, so that workers share the group's weights in the last cache. */
static void run_item(const gemm_row *row, const ebb_weight *w, const cut *c, int64_t item, const float *x,
                     int64_t x_stride, float *y, int64_t y_stride, int32_t flags) {
    const int64_t block = item % c->row_blocks, r0 = c->m * block / c->row_blocks;
    const int64_t r1 = c->m * (block + 1) / c->row_blocks;
    int64_t group = item / c->row_blocks, column = 0;
    ebb_weight s = weight_stack(w, 0, &column);
    for (int32_t i = 1; group >= groups_of(c, s.n); i++) {
        group -= groups_of(c, s.n);
        s = weight_stack(w, i, &column);
    }
    const int64_t p0 = group * c->panels, panels = (s.n + EBB_PANEL - 1) / EBB_PANEL;
    row->run(&s, x + r0 * x_stride, x_stride, y + r0 * y_stride + column, y_stride, r1 - r0, p0,
             min_i64(panels, p0 + c->panels), flags);
}

typedef struct linear_job {
    const gemm_row *row;
    const ebb_weight *weight;
    const float *x;
    float *y;
    int64_t x_stride, y_stride;
    int32_t flags;
    cut cut;
} linear_job;

static void linear_item(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    const linear_job *j = ctx;
    run_item(j->row, j->weight, &j->cut, item, j->x, j->x_stride, j->y, j->y_stride, j->flags);
}

/* Multiply-adds of a call in units of scalar work: rows do at least eight at a time. */
static int64_t linear_cost(int64_t m, int64_t n, int64_t k) {
    double cost = (double)m * (double)n * (double)k / 8;
    return cost < 1e15 ? (int64_t)cost : (int64_t)1e15;
}

ebb_status ebb_linear(ebb_queue *queue, const ebb_weight *weight, const float *x, int64_t x_stride, float *y,
                      int64_t y_stride, int64_t m, int32_t flags) {
    if (!queue || !weight_ok(weight) || m < 0 || flags & ~EBB_ADD) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!x || !y || x_stride < weight->k || y_stride < weight->n) return EBB_BAD_ARGUMENT;
    linear_job job = {.row = gemm_row_of(queue->device),
                      .weight = weight,
                      .x = x,
                      .y = y,
                      .x_stride = x_stride,
                      .y_stride = y_stride,
                      .flags = flags,
                      .cut = cut_of(weight, m)};
    queue_run(queue, job.cut.groups * job.cut.row_blocks, linear_cost(m, weight->n, weight->k), linear_item, &job);
    return EBB_OK;
}

/* ---- one weight a head ---- */

typedef struct heads_job {
    const gemm_row *row;
    const ebb_weight *weights;
    const ebb_tensor *x, *y;
    int64_t each; /* work items of the head that has most */
} heads_job;

static void heads_item(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    const heads_job *j = ctx;
    const int64_t head = item / j->each, part = item % j->each, m = j->x->shape[0];
    const ebb_weight *w = &j->weights[head];
    const cut c = cut_of(w, m);
    const float *x = (const float *)j->x->data + head * j->x->stride[1];
    float *y = (float *)j->y->data + head * j->y->stride[1];
    if (part >= c.groups * c.row_blocks) return;
    run_item(j->row, w, &c, part, x, j->x->stride[0], y, j->y->stride[0], 0);
    const int64_t more = j->x->shape[2] - w->k;
    for (int64_t r = 0; part == 0 && more > 0 && r < m; r++, x += j->x->stride[0], y += j->y->stride[0])
        memcpy(y + w->n, x + w->k, (size_t)more * sizeof *y);
}

static ebb_status check_heads(const char *name, const ebb_tensor *t, ebb_error *error) {
    int64_t across, row;
    if (!t || t->type != EBB_FP32 || t->dims != 3 || t->shape[0] < 0 || t->shape[1] < 1 || t->shape[1] > INT32_MAX ||
        (t->shape[0] && !t->data))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s is no fp32 tensor of rows, heads and values", name);
    if (t->stride[2] != 1 || t->stride[1] < t->shape[2] ||
        __builtin_mul_overflow(t->shape[1] - 1, t->stride[1], &across) ||
        __builtin_add_overflow(across, t->shape[2], &row) || t->stride[0] < row)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s has strides %lld, %lld, %lld: its %lld heads of %lld overlap",
                        name, (long long)t->stride[0], (long long)t->stride[1], (long long)t->stride[2],
                        (long long)t->shape[1], (long long)t->shape[2]);
    return EBB_OK;
}

static ebb_status check_linear_heads(const ebb_weight *weights, const ebb_tensor *x, const ebb_tensor *y,
                                     ebb_error *error) {
    ebb_status status = check_heads("x", x, error);
    if (!status) status = check_heads("y", y, error);
    if (status) return status;
    if (x->shape[0] != y->shape[0] || x->shape[1] != y->shape[1])
        return ebb_fail(error, EBB_BAD_ARGUMENT, "x has %lld rows of %lld heads, y %lld of %lld; expected the same",
                        (long long)x->shape[0], (long long)x->shape[1], (long long)y->shape[0], (long long)y->shape[1]);
    for (int64_t h = 0; h < x->shape[1]; h++) {
        const ebb_weight *w = weights ? &weights[h] : NULL;
        if (!weight_ok(w) || w->n != weights->n || w->k != weights->k)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "the weight of head %lld is none or of another shape",
                            (long long)h);
    }
    int64_t more = x->shape[2] - weights->k;
    if (more < 0 || y->shape[2] - weights->n != more)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "heads of %lld become heads of %lld by a weight of %lld x %lld",
                        (long long)x->shape[2], (long long)y->shape[2], (long long)weights->n, (long long)weights->k);
    return EBB_OK;
}

ebb_status ebb_linear_heads(ebb_queue *queue, const ebb_weight *weights, const ebb_tensor *x, const ebb_tensor *y,
                            ebb_error *error) {
    if (!queue) return ebb_fail(error, EBB_BAD_ARGUMENT, "a linear layer needs a queue");
    ebb_status status = check_linear_heads(weights, x, y, error);
    if (status || x->shape[0] == 0) return status;
    const int64_t m = x->shape[0], heads = x->shape[1];
    heads_job job = {.row = gemm_row_of(queue->device), .weights = weights, .x = x, .y = y};
    for (int64_t h = 0; h < heads; h++) {
        const cut c = cut_of(&weights[h], m);
        job.each = max_i64(job.each, c.groups * c.row_blocks);
    }
    queue_run(queue, heads * job.each, linear_cost(m * heads, weights->n, weights->k), heads_item, &job);
    return EBB_OK;
}

const char *ebb_linear_row(const ebb_device *device) { return gemm_row_of(device)->id.name; }
uint64_t ebb_linear_numerics(const ebb_device *device) {
    return numerics_row(HASH64_BEGIN, "gemm", &gemm_row_of(device)->id);
}
