/* op/weight.c: weights: matrices as files hold them, stacked and packed into panels (op/panel.h), and rows of them as
 * embeddings. Called by models and by whoever runs a layer. */
#include "format/float16.h"
#include "op/panel.h"
#include "op/rows.h"

#include <stdatomic.h>
#include <string.h>

enum {
    PACK_K = 64,      /* columns transposed at a time: a tile of 8 KiB */
    SCAN_VALUES = 256 /* values widened at a time when looking for the type */
};

static bool is_quantized(int32_t type) { return ebb_type_block((ebb_type)type) > 1; }

/* ---- one stack: parts of one quantized type, or of plain types ---- */

typedef struct pack_job {
    const ebb_weight_part *parts;
    int32_t n_parts;
    ebb_weight stack;       /* n, k, and then its type and panels */
    atomic_bool wide, fp32; /* a weight was seen that is no BF16 number; that is no FP16 number of a file */
} pack_job;

/* `n` values from element `at` of a plain part, which may lie at any address, as FP32. */
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
    if (part->type != EBB_FP16) atomic_store_explicit(&job->fp32, true, memory_order_relaxed);
    if (part->type == EBB_BF16) return;
    for (int64_t k = 0; k < job->stack.k; k += SCAN_VALUES) {
        if (atomic_load_explicit(&job->wide, memory_order_relaxed)) return;
        int64_t n = min_i64(job->stack.k - k, SCAN_VALUES);
        uint32_t low = 0;
        widen(part, row * job->stack.k + k, n, values);
        for (int64_t i = 0; i < n; i++) low |= float_bits(values[i]) & 0xFFFFu;
        if (low) atomic_store_explicit(&job->wide, true, memory_order_relaxed);
    }
}

static int32_t plain_type(ebb_device *device, pack_job *job) {
    workers_run(device->workers, job->stack.n, scan_row, job);
    if (!atomic_load(&job->wide)) return EBB_BF16;
    return atomic_load(&job->fp32) ? EBB_FP32 : EBB_FP16;
}

/* Columns of a panel: its rows side by side, turned. */
static void turn(float tile[EBB_PANEL][PACK_K], int64_t at, int64_t n, ebb_weight *stack) {
    float *wide = (float *)stack->panels + at;
    uint16_t *half = (uint16_t *)stack->panels + at;
    if (stack->type == EBB_FP32) {
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < EBB_PANEL; c++) wide[k * EBB_PANEL + c] = tile[c][k];
    } else if (stack->type == EBB_BF16) {
        for (int64_t k = 0; k < n; k++)
            for (int c = 0; c < EBB_PANEL; c++) half[k * EBB_PANEL + c] = (uint16_t)(float_bits(tile[c][k]) >> 16);
    }
}

/* Rows of a panel, each in its part; NULL below the last one. */
typedef struct panel_rows {
    const ebb_weight_part *part[EBB_PANEL];
    int64_t row[EBB_PANEL];
} panel_rows;

static panel_rows rows_of_panel(const pack_job *job, int64_t panel) {
    panel_rows r;
    for (int c = 0; c < EBB_PANEL; c++) {
        r.row[c] = panel * EBB_PANEL + c;
        r.part[c] = part_of(job, &r.row[c]);
    }
    return r;
}

static void pack_wide(void *ctx, int64_t panel, int32_t worker) {
    (void)worker;
    pack_job *job = ctx;
    const int64_t k_all = job->stack.k;
    const panel_rows r = rows_of_panel(job, panel);
    float tile[EBB_PANEL][PACK_K];
    for (int64_t k = 0; k < k_all; k += PACK_K) {
        int64_t n = min_i64(k_all - k, PACK_K);
        for (int c = 0; c < EBB_PANEL; c++) {
            if (r.part[c]) widen(r.part[c], r.row[c] * k_all + k, n, tile[c]);
            else memset(tile[c], 0, sizeof tile[c]);
        }
        turn(tile, (panel * k_all + k) * EBB_PANEL, n, &job->stack);
    }
}

/* FP16 as it is in the file: a NaN keeps its bits. */
static void pack_fp16(void *ctx, int64_t panel, int32_t worker) {
    (void)worker;
    pack_job *job = ctx;
    const int64_t k = job->stack.k;
    const panel_rows r = rows_of_panel(job, panel);
    uint16_t *out = (uint16_t *)job->stack.panels + panel * k * EBB_PANEL;
    for (int c = 0; c < EBB_PANEL; c++) {
        const uint8_t *row = r.part[c] ? (const uint8_t *)r.part[c]->data + 2 * r.row[c] * k : NULL;
        for (int64_t i = 0; i < k; i++) {
            uint16_t half = 0;
            if (row) memcpy(&half, row + 2 * i, sizeof half);
            out[i * EBB_PANEL + c] = half;
        }
    }
}

static void pack_blocks(void *ctx, int64_t panel, int32_t worker) {
    (void)worker;
    pack_job *job = ctx;
    const int32_t type = job->stack.type;
    const int64_t blocks = job->stack.k / gguf_block_values(type);
    const size_t bytes = (size_t)gguf_block_bytes(type), row_bytes = (size_t)blocks * bytes;
    const panel_rows r = rows_of_panel(job, panel);
    const uint8_t *rows[EBB_PANEL];
    uint8_t *out = (uint8_t *)job->stack.panels + (size_t)panel * EBB_PANEL * row_bytes;
    for (int c = 0; c < EBB_PANEL; c++)
        rows[c] = r.part[c] ? (const uint8_t *)r.part[c]->data + (size_t)r.row[c] * row_bytes : NULL;
    for (int64_t i = 0; i < blocks; i++, out += EBB_PANEL * bytes) {
        panel_pack(type, rows, out);
        for (int c = 0; c < EBB_PANEL; c++)
            if (rows[c]) rows[c] += bytes;
    }
}

static void pack_stack(ebb_device *device, pack_job *job) {
    const int32_t type = job->stack.type;
    work_fn pack = is_quantized(type) ? pack_blocks : type == EBB_FP16 ? pack_fp16 : pack_wide;
    workers_run(device->workers, (job->stack.n + EBB_PANEL - 1) / EBB_PANEL, pack, job);
}

/* ---- the whole weight ---- */

static ebb_status check_part(const ebb_weight_part *part, int32_t i, int64_t k, int64_t rows_before, ebb_error *error) {
    size_t bytes;
    const int32_t block = ebb_type_block((ebb_type)part->type);
    if (!part->data) return ebb_fail(error, EBB_BAD_ARGUMENT, "part %d of a weight has no data", i);
    if (part->type != EBB_FP32 && part->type != EBB_FP16 && part->type != EBB_BF16 && block <= 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "part %d of a weight has type %d, expected fp32, fp16, bf16 or a quantized one", i, part->type);
    if (part->n < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "part %d of a weight has %lld rows, expected 1 or more", i,
                        (long long)part->n);
    if (k % block)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "part %d of a weight has %lld columns of %s, expected a multiple of %d", i, (long long)k,
                        ebb_type_name((ebb_type)part->type), block);
    if (part->n > INT64_MAX - EBB_PANEL - rows_before || !size_mul((size_t)part->n, (size_t)k, &bytes) ||
        !size_mul(bytes, sizeof(float), &bytes) || bytes > PTRDIFF_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "part %d of a weight, %lld x %lld, does not fit into memory", i,
                        (long long)part->n, (long long)k);
    return EBB_OK;
}

/* Cut the parts into stacks: jobs whose n and k are set, and the type where it is quantized. */
static ebb_status make_stacks(const ebb_weight_part *parts, int32_t n_parts, int64_t k, pack_job *jobs, int32_t *n_jobs,
                              int64_t *rows, ebb_error *error) {
    if (!parts || n_parts < 1) return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight needs at least one part");
    if (k < 1) return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight has %lld columns, expected 1 or more", (long long)k);
    *n_jobs = 0, *rows = 0;
    for (int32_t i = 0; i < n_parts; i++) {
        ebb_status status = check_part(&parts[i], i, k, *rows, error);
        if (status) return status;
        const int32_t type = is_quantized(parts[i].type) ? parts[i].type : 0;
        if (i == 0 || type != jobs[*n_jobs - 1].stack.type) {
            if (*n_jobs == EBB_WEIGHT_STACKS)
                return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight changes its type more than %d times",
                                EBB_WEIGHT_STACKS - 1);
            jobs[(*n_jobs)++] = (pack_job){.parts = parts + i, .stack = {.k = k, .type = type}};
        }
        jobs[*n_jobs - 1].n_parts++;
        jobs[*n_jobs - 1].stack.n += parts[i].n;
        *rows += parts[i].n;
    }
    return EBB_OK;
}

/* Types of plain stacks, and the bytes of all. */
static ebb_status size_stacks(ebb_device *device, pack_job *jobs, int32_t n_jobs, ebb_weight *w, ebb_error *error) {
    bool fits = true;
    for (int32_t i = 0; i < n_jobs; i++) { /* as FP32 they have to fit whatever the type */
        ebb_weight *s = &jobs[i].stack;
        size_t panels = ((size_t)s->n + EBB_PANEL - 1) / EBB_PANEL, bytes = panel_bytes(EBB_FP32, s->k);
        fits = fits && bytes && size_mul(panels, bytes, &bytes) && bytes <= PTRDIFF_MAX;
        if (!fits) break;
        if (!s->type) s->type = plain_type(device, &jobs[i]);
        s->bytes = panels * panel_bytes(s->type, s->k);
        fits = size_add(w->bytes, s->bytes, &w->bytes) && w->bytes <= PTRDIFF_MAX;
        w->stack[i] = (ebb_weight_stack){s->n, s->type};
    }
    if (!fits)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight of %lld x %lld does not fit into memory", (long long)w->n,
                        (long long)w->k);
    w->type = w->stack[0].type;
    w->stacks = n_jobs > 1 ? n_jobs : 0;
    return EBB_OK;
}

ebb_status ebb_weight_pack(ebb_device *device, const ebb_weight_part *parts, int32_t n_parts, int64_t k,
                           ebb_weight *weight, ebb_error *error) {
    if (!device || !weight) return ebb_fail(error, EBB_BAD_ARGUMENT, "a weight needs a device and a place to go");
    pack_job jobs[EBB_WEIGHT_STACKS];
    ebb_weight w = {.k = k};
    int32_t n_jobs = 0;
    ebb_status status = make_stacks(parts, n_parts, k, jobs, &n_jobs, &w.n, error);
    if (!status) status = size_stacks(device, jobs, n_jobs, &w, error);
    if (status) return status;
    w.panels = ebb_device_alloc(device, w.bytes);
    if (!w.panels)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a weight of %lld x %lld: %zu bytes of %s panels",
                        (long long)w.n, (long long)k, w.bytes, ebb_type_name((ebb_type)w.type));
    uint8_t *at = w.panels;
    for (int32_t i = 0; i < n_jobs; at += jobs[i++].stack.bytes) {
        jobs[i].stack.panels = at;
        pack_stack(device, &jobs[i]);
    }
    *weight = w;
    return EBB_OK;
}

void ebb_weight_free(ebb_device *device, ebb_weight *weight) {
    if (!weight) return;
    ebb_device_free(device, weight->panels, weight->bytes);
    *weight = (ebb_weight){0};
}

bool weight_ok(const ebb_weight *w) {
    if (!w || !w->panels || w->n < 1 || w->k < 1 || w->stacks < 0 || w->stacks > EBB_WEIGHT_STACKS) return false;
    for (int32_t i = 0; i < weight_stacks(w); i++) {
        const int32_t type = w->stacks ? w->stack[i].type : w->type;
        if (type != EBB_BF16 && type != EBB_FP16 && type != EBB_FP32 && !is_quantized(type)) return false;
    }
    return true;
}

/* ---- embeddings ---- */

typedef struct embed_job {
    const ebb_weight *weight;
    const int32_t *ids;
    float *y;
    int64_t y_stride;
} embed_job;

static void blocks_row(const ebb_weight *w, int64_t id, float *y) {
    const int32_t values = gguf_block_values(w->type), bytes = gguf_block_bytes(w->type);
    const uint8_t *at = (const uint8_t *)w->panels + (size_t)(id / EBB_PANEL) * panel_bytes(w->type, w->k);
    uint8_t block[QUANT_BLOCK_BYTES];
    for (int64_t k = 0; k < w->k; k += values, at += bytes * EBB_PANEL) {
        panel_take(w->type, at, (int32_t)(id % EBB_PANEL), block);
        gguf_decode_row(w->type, block, values, y + k);
    }
}

static void plain_row(const ebb_weight *w, int64_t id, float *y) {
    const int64_t at = id / EBB_PANEL * w->k * EBB_PANEL + id % EBB_PANEL;
    const float *wide = (const float *)w->panels + at;
    const uint16_t *half = (const uint16_t *)w->panels + at;
    for (int64_t k = 0; k < w->k; k++) {
        if (w->type == EBB_FP32) y[k] = wide[k * EBB_PANEL];
        else y[k] = w->type == EBB_BF16 ? bf16_to_float(half[k * EBB_PANEL]) : fp16_to_float(half[k * EBB_PANEL]);
    }
}

static void embed_item(void *ctx, int64_t item, int32_t worker) {
    (void)worker;
    const embed_job *j = ctx;
    int64_t first = 0;
    ebb_weight s = {0};
    for (int32_t i = 0; i < weight_stacks(j->weight); i++) {
        s = weight_stack(j->weight, i, &first);
        if (j->ids[item] - first < s.n) break;
    }
    float *y = j->y + item * j->y_stride;
    if (is_quantized(s.type)) blocks_row(&s, j->ids[item] - first, y);
    else plain_row(&s, j->ids[item] - first, y);
}

ebb_status ebb_embed(ebb_queue *queue, const ebb_weight *weight, const int32_t *ids, int64_t m, float *y,
                     int64_t y_stride) {
    if (!queue || !weight_ok(weight) || m < 0) return EBB_BAD_ARGUMENT;
    if (m == 0) return EBB_OK;
    if (!ids || !y || y_stride < weight->k) return EBB_BAD_ARGUMENT;
    for (int64_t i = 0; i < m; i++)
        if (ids[i] < 0 || ids[i] >= weight->n) return EBB_BAD_ARGUMENT;
    embed_job job = {weight, ids, y, y_stride};
    const double cost = (double)m * (double)weight->k / 2;
    queue_run(queue, m, cost < 1e15 ? (int64_t)cost : (int64_t)1e15, embed_item, &job);
    return EBB_OK;
}
