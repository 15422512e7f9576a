/* op/linear.c: linear layers: packing weights into panels, y = x W^T over the gemm row of the device, and rows of the
 * matrix as embeddings. Called by models and by whoever runs a layer; the arithmetic is in op/ref/gemm.c. */
#include "format/float16.h"
#include "op/rows.h"

#include <stdatomic.h>
#include <string.h>

/* ---- packing ---- */

enum {
    PACK_K = 64,      /* columns transposed at a time: a tile of 8 KiB */
    SCAN_VALUES = 256 /* values widened at a time when looking for the type */
};

typedef struct pack_job {
    const ebb_weight_part *parts;
    int32_t n_parts;
    int64_t k;
    ebb_weight *weight;
    atomic_bool wide; /* a weight that is no BF16 number was seen */
} pack_job;

/* `n` values from element `at` of a part, which may lie at any address, as FP32. */
static void widen(const ebb_weight_part *part, int64_t at, int64_t n, float *out) {
    const uint8_t *data = (const uint8_t *)part->data + (size_t)at * ebb_type_bytes((ebb_type)part->type);
    if (part->type == EBB_FP32) {
        memcpy(out, data, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, data + 2 * i, sizeof half);
        out[i] = part->type == EBB_BF16 ? bf16_to_float(half) : fp16_to_float(half);
    }
}

/* The part that holds row `row` of the stack; *row becomes the row inside it. NULL below the last one. */
static const ebb_weight_part *part_of(const pack_job *job, int64_t *row) {
    for (int32_t i = 0; i < job->n_parts; i++) {
        if (*row < job->parts[i].n) return &job->parts[i];
        *row -= job->parts[i].n;
    }
    return NULL;
}

static void scan_row(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    pack_job *job = ctx;
    int64_t row = item;
    const ebb_weight_part *part = part_of(job, &row);
    float values[SCAN_VALUES];
    if (part->type == EBB_BF16) return;
    for (int64_t k = 0; k < job->k; k += SCAN_VALUES) {
        if (atomic_load_explicit(&job->wide, memory_order_relaxed)) return;
        int64_t n = min_i64(job->k - k, SCAN_VALUES);
        uint32_t low = 0;
        widen(part, row * job->k + k, n, values);
        for (int64_t i = 0; i < n; i++) low |= float_bits(values[i]) & 0xFFFFu;
        if (low) atomic_store_explicit(&job->wide, true, memory_order_relaxed);
    }
}

/* Columns k0 .. k0 + n - 1 of a panel: its rows side by side, turned. */
static void turn(float tile[EBB_PANEL][PACK_K], int64_t at, int64_t n, ebb_weight *weight) {
    if (weight->type == EBB_FP32) {
        float *out = (float *)weight->panels + at;
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < EBB_PANEL; c++) out[k * EBB_PANEL + c] = tile[c][k];
    } else {
        uint16_t *out = (uint16_t *)weight->panels + at;
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < EBB_PANEL; c++) out[k * EBB_PANEL + c] = (uint16_t)(float_bits(tile[c][k]) >> 16);
    }
}

static void pack_panel(void *ctx, int64_t panel, int32_t worker) {
    (void)worker;
    pack_job *job = ctx;
    float tile[EBB_PANEL][PACK_K];
    const ebb_weight_part *part[EBB_PANEL];
    int64_t row[EBB_PANEL];
    for (int c = 0; c < EBB_PANEL; c++) {
        row[c] = panel * EBB_PANEL + c;
        part[c] = part_of(job, &row[c]);
    }
    for (int64_t k = 0; k < job->k; k += PACK_K) {
        int64_t n = min_i64(job->k - k, PACK_K);
        for (int c = 0; c < EBB_PANEL; c++) {
            if (part[c]) widen(part[c], row[c] * job->k + k, n, tile[c]);
            else memset(tile[c], 0, sizeof tile[c]);
        }
        turn(tile, (panel * job->k + k) * EBB_PANEL, n, job->weight);
    }
}

static ebb_status check_parts(const ebb_weight_part *parts, int32_t n_parts, int64_t k, int64_t *rows,
                              ebb_error *error) {
    if (!parts || n_parts < 1) return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight needs at least one part");
    if (k < 1) return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight has %lld columns, expected 1 or more", (long long)k);
    *rows = 0;
    for (int32_t i = 0; i < n_parts; i++) {
        const ebb_weight_part *part = &parts[i];
        size_t count, bytes;
        if (!part->data) return ebb_fail(error, EBB_BAD_ARGUMENT, "part %d of a weight has no data", i);
        if (part->type != EBB_FP32 && part->type != EBB_FP16 && part->type != EBB_BF16)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "part %d of a weight has type %d, expected fp32, fp16 or bf16", i,
                            part->type);
        if (part->n < 1)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "part %d of a weight has %lld rows, expected 1 or more", i,
                            (long long)part->n);
        if (part->n > INT64_MAX - EBB_PANEL - *rows || !size_mul((size_t)part->n, (size_t)k, &count) ||
            !size_mul(count, sizeof(float), &bytes) || bytes > PTRDIFF_MAX)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "part %d of a weight, %lld x %lld, does not fit into memory", i,
                            (long long)part->n, (long long)k);
        *rows += part->n;
    }
    return EBB_OK;
}

/* Panels of `weight`, whose n and k are set, as 32-bit numbers: what has to fit whatever the type. */
static bool panel_values(const ebb_weight *weight, size_t *values) {
    size_t panels = ((size_t)weight->n + EBB_PANEL - 1) / EBB_PANEL, bytes;
    return size_mul(panels, EBB_PANEL, values) && size_mul(*values, (size_t)weight->k, values) &&
           size_mul(*values, sizeof(float), &bytes) && bytes <= PTRDIFF_MAX;
}

ebb_status ebb_weight_pack(ebb_device *device, const ebb_weight_part *parts, int32_t n_parts, int64_t k,
                           ebb_weight *weight, ebb_error *error) {
    if (!device || !weight) return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight needs a device and a place to go");
    ebb_weight w = {.k = k};
    size_t values;
    ebb_status status = check_parts(parts, n_parts, k, &w.n, error);
    if (status) return status;
    if (!panel_values(&w, &values))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight of %lld x %lld does not fit into memory", (long long)w.n,
                        (long long)k);

    pack_job job = {.parts = parts, .n_parts = n_parts, .k = k, .weight = &w};
    workers_run(device->workers, w.n, scan_row, &job);
    w.type = atomic_load(&job.wide) ? EBB_FP32 : EBB_BF16;
    w.bytes = values * ebb_type_bytes((ebb_type)w.type);
    w.panels = ebb_device_alloc(device, w.bytes);
    if (!w.panels)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a weight of %lld x %lld: %zu bytes of %s panels",
                        (long long)w.n, (long long)k, w.bytes, ebb_type_name((ebb_type)w.type));
    workers_run(device->workers, (w.n + EBB_PANEL - 1) / EBB_PANEL, pack_panel, &job);
    *weight = w;
    return EBB_OK;
}

void ebb_weight_free(ebb_device *device, ebb_weight *weight) {
    if (!weight) return;
    ebb_device_free(device, weight->panels, weight->bytes);
    *weight = (ebb_weight){0};
}

/* ---- y = x W^T ---- */

enum {
    ITEM_PANELS = 4, /* of one work item: what gemm rows do at a time */
    ITEM_ROWS = 192  /* of one work item at most */
};

typedef struct linear_job {
    const gemm_row *row;
    const ebb_weight *weight;
    const float *x;
    float *y;
    int64_t x_stride, y_stride, m, row_blocks;
    int32_t flags;
} linear_job;

/* Row blocks of one group of panels follow each other, so that workers share the group's weights in the last cache. */
static void linear_item(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    const linear_job *j = ctx;
    int64_t panels = (j->weight->n + EBB_PANEL - 1) / EBB_PANEL;
    int64_t p0 = item / j->row_blocks * ITEM_PANELS, p1 = min_i64(panels, p0 + ITEM_PANELS);
    int64_t block = item % j->row_blocks, r0 = j->m * block / j->row_blocks, r1 = j->m * (block + 1) / j->row_blocks;
    j->row->run(j->weight, j->x + r0 * j->x_stride, j->x_stride, j->y + r0 * j->y_stride, j->y_stride, r1 - r0, p0, p1,
                j->flags);
}

/* Multiply-adds of a call in units of scalar work: rows do at least eight at a time. */
static int64_t linear_cost(int64_t m, int64_t n, int64_t k) {
    double cost = (double)m * (double)n * (double)k / 8;
    return cost < 1e15 ? (int64_t)cost : (int64_t)1e15;
}

static bool weight_ok(const ebb_weight *w) {
    return w && w->panels && w->n >= 1 && w->k >= 1 && (w->type == EBB_BF16 || w->type == EBB_FP32);
}

ebb_status ebb_linear(ebb_queue *queue, const ebb_weight *weight, const float *x, int64_t x_stride, float *y,
                      int64_t y_stride, int64_t m, int32_t flags) {
    if (!queue || !weight_ok(weight) || m < 0 || flags & ~EBB_ADD) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!x || !y || x_stride < weight->k || y_stride < weight->n) return EBB_BAD_ARGUMENT;
    int64_t groups = (weight->n + ITEM_PANELS * EBB_PANEL - 1) / (ITEM_PANELS * EBB_PANEL);
    linear_job job = {.row = gemm_row_of(queue->device),
                      .weight = weight,
                      .x = x,
                      .y = y,
                      .x_stride = x_stride,
                      .y_stride = y_stride,
                      .m = m,
                      .row_blocks = (m + ITEM_ROWS - 1) / ITEM_ROWS,
                      .flags = flags};
    queue_run(queue, groups * job.row_blocks, linear_cost(m, weight->n, weight->k), linear_item, &job);
    return EBB_OK;
}

/* ---- one weight a head ---- */

typedef struct heads_job {
    const gemm_row *row;
    const ebb_weight *weights;
    const ebb_tensor *x, *y;
    int64_t groups, row_blocks; /* work items of one head */
} heads_job;

static void heads_item(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    const heads_job *j = ctx;
    int64_t each = j->groups * j->row_blocks, head = item / each, m = j->x->shape[0];
    const ebb_weight *w = &j->weights[head];
    int64_t panels = (w->n + EBB_PANEL - 1) / EBB_PANEL, group = item % each / j->row_blocks;
    int64_t block = item % j->row_blocks, r0 = m * block / j->row_blocks, r1 = m * (block + 1) / j->row_blocks;
    const float *x = (const float *)j->x->data + r0 * j->x->stride[0] + head * j->x->stride[1];
    float *y = (float *)j->y->data + r0 * j->y->stride[0] + head * j->y->stride[1];
    j->row->run(w, x, j->x->stride[0], y, j->y->stride[0], r1 - r0, group * ITEM_PANELS,
                min_i64(panels, (group + 1) * ITEM_PANELS), 0);
    const int64_t more = j->x->shape[2] - w->k;
    for (int64_t r = r0; group == 0 && more > 0 && r < r1; r++, x += j->x->stride[0], y += j->y->stride[0])
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
    heads_job job = {.row = gemm_row_of(queue->device),
                     .weights = weights,
                     .x = x,
                     .y = y,
                     .groups = (weights->n + ITEM_PANELS * EBB_PANEL - 1) / (ITEM_PANELS * EBB_PANEL),
                     .row_blocks = (m + ITEM_ROWS - 1) / ITEM_ROWS};
    queue_run(queue, heads * job.groups * job.row_blocks, linear_cost(m * heads, weights->n, weights->k), heads_item,
              &job);
    return EBB_OK;
}

const char *ebb_linear_row(const ebb_device *device) { return gemm_row_of(device)->id.name; }
uint64_t ebb_linear_numerics(const ebb_device *device) {
    return numerics_row(HASH64_BEGIN, "gemm", &gemm_row_of(device)->id);
}

/* ---- embeddings ---- */

typedef struct embed_job {
    const ebb_weight *weight;
    const int32_t *ids;
    float *y;
    int64_t y_stride;
} embed_job;

static void embed_item(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    const embed_job *j = ctx;
    const ebb_weight *w = j->weight;
    int64_t id = j->ids[item], at = id / EBB_PANEL * w->k * EBB_PANEL + id % EBB_PANEL;
    float *y = j->y + item * j->y_stride;
    if (w->type == EBB_FP32) {
        const float *panel = (const float *)w->panels + at;
        for (int64_t k = 0; k < w->k; k++) y[k] = panel[k * EBB_PANEL];
    } else {
        const uint16_t *panel = (const uint16_t *)w->panels + at;
        for (int64_t k = 0; k < w->k; k++) y[k] = bf16_to_float(panel[k * EBB_PANEL]);
    }
}

ebb_status ebb_embed(ebb_queue *queue, const ebb_weight *weight, const int32_t *ids, int64_t m, float *y,
                     int64_t y_stride) {
    if (!queue || !weight_ok(weight) || m < 0) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!ids || !y || y_stride < weight->k) return EBB_BAD_ARGUMENT;
    for (int64_t i = 0; i < m; i++)
        if (ids[i] < 0 || ids[i] >= weight->n) return EBB_BAD_ARGUMENT;
    embed_job job = {weight, ids, y, y_stride};
    queue_run(queue, m, 4 * linear_cost(m, weight->k, 1), embed_item, &job);
    return EBB_OK;
}
