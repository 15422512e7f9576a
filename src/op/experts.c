/* op/experts.c: what a mixture of experts does beside its matrices: choosing experts for each token, and moving rows to
 * the experts and back. Called by models. Plain loops that no kernel row could give other bits: each row is computed
 * alone, in one order. */
#include "core/core.h"
#include "device/device_int.h"
#include "ebb/op.h"

#include <math.h>
#include <string.h>

/* Scalar operations of m rows of n values, `each` a value. */
static int64_t rows_cost(int64_t m, int64_t n, double each) {
    double cost = (double)m * (double)n * each;
    return cost < 1e15 ? (int64_t)cost : (int64_t)1e15;
}

/* ---- choosing ---- */

/* The largest values seen, best first; of equal ones the first seen. */
typedef struct top_list {
    int32_t n, room, id[EBB_MAX_ROUTES];
    float value[EBB_MAX_ROUTES];
} top_list;

static void top_put(top_list *t, int32_t id, float value) {
    int32_t at = t->n;
    if (at == t->room) {
        if (!(value > t->value[at - 1])) return;
        at--;
    } else t->n++;
    for (; at > 0 && value > t->value[at - 1]; at--) t->value[at] = t->value[at - 1], t->id[at] = t->id[at - 1];
    t->value[at] = value;
    t->id[at] = id;
}

typedef struct route_job {
    const ebb_router *router;
    float *logits, *weight;
    int32_t *expert;
    int64_t stride;
} route_job;

/* Logits become scores. */
static void score(const ebb_router *r, float *x) {
    if (r->sigmoid) {
        for (int32_t e = 0; e < r->experts; e++) x[e] = 1.0f / (1.0f + expf(-x[e]));
        return;
    }
    float most = x[0], sum = 0;
    for (int32_t e = 1; e < r->experts; e++) most = x[e] > most ? x[e] : most;
    for (int32_t e = 0; e < r->experts; e++) sum += x[e] = expf(x[e] - most);
    for (int32_t e = 0; e < r->experts; e++) x[e] /= sum;
}

static float choice(const ebb_router *r, const float *x, int32_t e) { return r->bias ? x[e] + r->bias[e] : x[e]; }

/* Experts of one group, its best ones to `top`. */
static void put_group(const ebb_router *r, const float *x, int32_t group, top_list *top) {
    const int32_t each = r->experts / r->groups;
    for (int32_t e = group * each; e < (group + 1) * each; e++) top_put(top, e, choice(r, x, e));
}

/* A group is as good as its two best experts together. */
static void choose(const ebb_router *r, const float *x, top_list *top) {
    top_list groups = {.room = r->top_groups};
    *top = (top_list){.room = r->used};
    for (int32_t g = 0; g < r->groups && r->top_groups < r->groups; g++) {
        top_list pair = {.room = 2};
        put_group(r, x, g, &pair);
        top_put(&groups, g, pair.n == 2 ? pair.value[0] + pair.value[1] : pair.value[0]);
    }
    for (int32_t g = 0; g < r->groups; g++) {
        bool in = r->top_groups == r->groups;
        for (int32_t i = 0; i < groups.n; i++) in = in || groups.id[i] == g;
        if (in) put_group(r, x, g, top);
    }
}

static void route_row(void *ctx, int64_t row, int32_t worker) {
    (void)worker;
    const route_job *j = ctx;
    const ebb_router *r = j->router;
    float *x = j->logits + row * j->stride, *weight = j->weight + row * r->used, sum = 0;
    int32_t *expert = j->expert + row * r->used;
    top_list top;
    score(r, x);
    choose(r, x, &top);
    for (int32_t i = 0; i < r->used; i++) { /* by ascending number */
        int32_t at = i;
        for (; at > 0 && expert[at - 1] > top.id[i]; at--) expert[at] = expert[at - 1];
        expert[at] = top.id[i];
    }
    for (int32_t i = 0; i < r->used; i++) sum += weight[i] = x[expert[i]];
    for (int32_t i = 0; i < r->used && r->normalize; i++) weight[i] /= sum + (r->sigmoid ? 1e-20f : 0.0f);
    for (int32_t i = 0; i < r->used; i++) weight[i] *= r->scale;
}

static bool router_ok(const ebb_router *r) {
    if (!r || r->experts < 1 || r->used < 1 || r->used > EBB_MAX_ROUTES || r->groups < 1 || r->top_groups < 1)
        return false;
    if (r->groups > EBB_MAX_ROUTES || r->experts % r->groups || r->top_groups > r->groups) return false;
    return r->used <= r->experts / r->groups * r->top_groups;
}

ebb_status ebb_route(ebb_queue *queue, const ebb_router *router, float *logits, int64_t stride, int32_t *expert,
                     float *weight, int64_t m) {
    if (!queue || !router_ok(router) || m < 0) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!logits || !expert || !weight || stride < router->experts) return EBB_BAD_ARGUMENT;
    route_job job = {router, logits, weight, expert, stride};
    queue_run(queue, m, rows_cost(m, router->experts, 8), route_row, &job);
    return EBB_OK;
}

/* ---- rows there and back ---- */

typedef struct move_job {
    const float *x, *scale;
    float *y;
    const int32_t *rows;
    int64_t x_stride, y_stride, scale_stride, n;
} move_job;

static void gather_row(void *ctx, int64_t i, int32_t worker) {
    (void)worker;
    const move_job *j = ctx;
    memcpy(j->y + i * j->y_stride, j->x + j->rows[i] * j->x_stride, (size_t)j->n * sizeof *j->y);
}

ebb_status ebb_gather_rows(ebb_queue *queue, const float *x, int64_t x_stride, const int32_t *rows, int64_t n, float *y,
                           int64_t y_stride, int64_t m) {
    if (!queue || n < 1 || m < 0) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!x || !rows || !y || x_stride < n || y_stride < n) return EBB_BAD_ARGUMENT;
    move_job job = {.x = x, .y = y, .rows = rows, .x_stride = x_stride, .y_stride = y_stride, .n = n};
    queue_run(queue, m, rows_cost(m, n, 1), gather_row, &job);
    return EBB_OK;
}

static void add_row(void *ctx, int64_t i, int32_t worker) {
    (void)worker;
    const move_job *j = ctx;
    const float *x = j->x + i * j->x_stride, scale = j->scale[i];
    float *y = j->y + j->rows[i] * j->y_stride;
    for (int64_t c = 0; c < j->n; c++) y[c] += scale * x[c];
}

ebb_status ebb_add_rows(ebb_queue *queue, const float *x, int64_t x_stride, const int32_t *rows, const float *scale,
                        int64_t n, float *y, int64_t y_stride, int64_t m) {
    if (!queue || n < 1 || m < 0) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!x || !rows || !scale || !y || x_stride < n || y_stride < n) return EBB_BAD_ARGUMENT;
    move_job job = {.x = x, .scale = scale, .y = y, .rows = rows, .x_stride = x_stride, .y_stride = y_stride, .n = n};
    queue_run(queue, m, rows_cost(m, n, 1), add_row, &job);
    return EBB_OK;
}

static void gate_row(void *ctx, int64_t i, int32_t worker) {
    (void)worker;
    const move_job *j = ctx;
    const float gate = 1.0f / (1.0f + expf(-j->scale[i * j->scale_stride]));
    float *y = j->y + i * j->y_stride;
    for (int64_t c = 0; c < j->n; c++) y[c] *= gate;
}

ebb_status ebb_gate_rows(ebb_queue *queue, const float *gate, int64_t gate_stride, int64_t n, float *y,
                         int64_t y_stride, int64_t m) {
    if (!queue || n < 1 || m < 0) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!gate || !y || gate_stride < 1 || y_stride < n) return EBB_BAD_ARGUMENT;
    move_job job = {.scale = gate, .y = y, .y_stride = y_stride, .scale_stride = gate_stride, .n = n};
    queue_run(queue, m, rows_cost(m, n, 1), gate_row, &job);
    return EBB_OK;
}
