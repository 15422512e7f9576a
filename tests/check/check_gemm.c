/* check/check_gemm.c: gemm rows. The definition (op/ref/gemm.c) fixes every rounding, so all rows are compared bit for
 * bit: whatever the number of rows, their place in the batch, the strides and the number of threads. */
#include "check.h"
#include "op/panel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 257, PAD = 5 }; /* rows of x at most; floats between rows that nobody may touch */
static const int64_t sizes_n[] = {1, 31, 32, 33, 1000}, other_n = 100;
/* k of plain types, of blocks of 32 and of blocks of 256 */
enum { SIZES_K = 5 };
static const int64_t plain_k[SIZES_K] = {1, 3, 63, 65, 320}, block_k[SIZES_K] = {32, 64, 96, 288, 320},
                     super_k[SIZES_K] = {256, 512, 768, 1024, 1280};
static const float untouched = 12345.5f;

static bool same_float(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)); }

static float *floats_new(int64_t n) {
    float *p = malloc((size_t)n * sizeof *p);
    if (!p) fprintf(stderr, "ebb-check: no memory for %lld floats\n", (long long)n), exit(1);
    return p;
}

/* Random numbers of a type. BF16 are given as FP32, which packing sees through; other FP32 are no BF16 numbers. */
static void fill_numbers(rng *r, int64_t n, int32_t type, void *w) {
    for (int64_t i = 0; i < n; i++) {
        const float x = rng_normal(r);
        if (type == EBB_FP16) {
            ((uint16_t *)w)[i] = float_to_fp16(x);
            continue;
        }
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits = type == EBB_BF16 ? bits & 0xFFFF0000u : bits | 1u;
        memcpy((float *)w + i, &bits, sizeof bits);
    }
}

/* Random blocks: every code and every byte of scales, FP16 scales of both signs, some of them 0 or subnormal. */
static void fill_blocks(rng *r, int64_t n, int32_t type, uint8_t *w) {
    const quant_layout l = quant_layout_of(type);
    for (int64_t i = 0; i < n / l.values; i++, w += l.bytes) {
        for (int32_t j = 0; j < l.bytes; j++) w[j] = (uint8_t)rng_next(r);
        for (int32_t j = 0; j < l.halves; j++) {
            const float size = rng_below(r, 20) ? 0.05f : rng_below(r, 2) ? 1e-6f : 0.0f;
            const uint16_t half = float_to_fp16(size * rng_normal(r));
            memcpy(w + l.halves_at + 2 * j, &half, sizeof half);
        }
    }
}

static ebb_weight weight_new(ebb_device *device, rng *r, int64_t n, int64_t k, int32_t type) {
    void *w = floats_new(n * k);
    ebb_weight weight;
    ebb_error error;
    ebb_weight_part part = {w, type == EBB_BF16 ? EBB_FP32 : type, n};
    if (gguf_block_values(type)) fill_blocks(r, n * k, type, w);
    else fill_numbers(r, n * k, type, w);
    if (ebb_weight_pack(device, &part, 1, k, &weight, &error)) fprintf(stderr, "ebb-check: %s\n", error.text), exit(1);
    free(w);
    return weight;
}

/* Row i of x: mostly normal, with zeros, tiny, large, wildly mixed and NaN rows among them, each alone. */
static void fill_row(rng *r, int64_t i, int64_t k, float *x) {
    for (int64_t j = 0; j < k; j++) {
        float v = rng_normal(r);
        switch (i % 13) {
        case 3:
            v = j % 2 ? 0.0f : -0.0f;
            break;
        case 5:
            v *= 1e-30f;
            break;
        case 6:
            v *= 6e4f;
            break;
        case 8:
            v *= powf(10, (float)rng_below(r, 70) - 38);
            break;
        case 9:
            v = j == k / 2 ? NAN : v;
            break;
        case 11:
            v = j == k / 3 ? INFINITY : v;
            break;
        }
        x[j] = v;
    }
}

typedef struct gemm_case {
    ebb_weight w;
    float *x, *start, *want, *want_add; /* start: what y holds before */
    int64_t x_stride, y_stride;
} gemm_case;

static gemm_case case_new(ebb_device *device, int64_t n, int64_t k, int32_t type) {
    rng r = {(uint64_t)(n * 1000 + k)};
    gemm_case g = {.w = weight_new(device, &r, n, k, type), .x_stride = k + PAD, .y_stride = n + PAD};
    g.x = floats_new(ROWS * g.x_stride);
    for (int64_t i = 0; i < ROWS * g.x_stride; i++) g.x[i] = NAN;
    for (int64_t i = 0; i < ROWS; i++) fill_row(&r, i, k, g.x + i * g.x_stride);
    g.start = floats_new(ROWS * g.y_stride);
    g.want = floats_new(ROWS * g.y_stride);
    g.want_add = floats_new(ROWS * g.y_stride);
    for (int64_t i = 0; i < ROWS * g.y_stride; i++) {
        g.start[i] = i % g.y_stride < n ? rng_normal(&r) : untouched;
        g.want[i] = g.want_add[i] = g.start[i];
    }
    return g;
}

static void case_free(ebb_device *device, gemm_case *g) {
    ebb_weight_free(device, &g->w);
    free(g->x), free(g->start), free(g->want), free(g->want_add);
}

/* y after a call over rows r0 .. r0 + m - 1 against what the definition says: those rows, and nothing else, changed. */
static void compare(check *c, const gemm_case *g, const float *y, int64_t r0, int64_t m, int32_t flags) {
    const float *want = flags & EBB_ADD ? g->want_add : g->want;
    for (int64_t i = 0; i < ROWS; i++) {
        const float *expected = i >= r0 && i < r0 + m ? want : g->start;
        if (!memcmp(y + i * g->y_stride, expected + i * g->y_stride, (size_t)g->y_stride * sizeof *y)) continue;
        for (int64_t j = 0; j < g->y_stride; j++) {
            float a = y[i * g->y_stride + j], b = expected[i * g->y_stride + j];
            if (!same_float(a, b))
                check_fail(c, "row %lld of %lld from %lld, column %lld of %lld, k %lld, flags %d: %.9g, ref has %.9g",
                           (long long)(i - r0), (long long)m, (long long)r0, (long long)j, (long long)g->w.n,
                           (long long)g->w.k, flags, (double)a, (double)b);
        }
    }
}

static void run_rows(check *c, const gemm_row *row, const gemm_case *g, float *y, int64_t r0, int64_t m,
                     int32_t flags) {
    int64_t panels = (g->w.n + EBB_PANEL - 1) / EBB_PANEL;
    memcpy(y, g->start, (size_t)(ROWS * g->y_stride) * sizeof *y);
    row->run(&g->w, g->x + r0 * g->x_stride, g->x_stride, y + r0 * g->y_stride, g->y_stride, m, 0, panels, flags);
    compare(c, g, y, r0, m, flags);
}

/* Narrow weights with every M at both ends of x; wide ones with the Ms around every blocking. */
static void check_batches(check *c, const gemm_row *row, const gemm_case *g) {
    static const int64_t few[] = {0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 48, 49, 97, 256, 257};
    float *y = floats_new(ROWS * g->y_stride);
    const bool ref = row->id.needs == 0; /* it has no blocking, and it is slow */
    if (g->w.n > 33 || ref || c->quick) {
        for (int i = 0; i < COUNT(few); i += ref ? 5 : 1)
            run_rows(c, row, g, y, ROWS - few[i], few[i], i % 2 ? EBB_ADD : 0);
        if (!ref) run_rows(c, row, g, y, 0, ROWS, EBB_ADD);
    } else {
        for (int64_t m = 0; m <= ROWS; m++) {
            run_rows(c, row, g, y, 0, m, m % 2 ? 0 : EBB_ADD);
            run_rows(c, row, g, y, ROWS - m, m, m % 2 ? EBB_ADD : 0);
        }
    }
    free(y);
}

/* A device that has this row as its best, or NULL. */
static ebb_device *device_of(check *c, const gemm_row *row, int32_t threads) {
    ebb_device_config config = {.size = sizeof config, .threads = threads};
    ebb_device *device;
    ebb_error error;
    config.features = row->id.needs ? row->id.needs : EBB_CPU_NONE;
    if (ebb_device_open("cpu", &config, &device, &error)) {
        check_fail(c, "%s", error.text);
        return NULL;
    }
    if (gemm_row_of(device) == row) return device;
    check_fail(c, "a device with features %d chooses %s", config.features, gemm_row_of(device)->id.name);
    ebb_device_close(device);
    return NULL;
}

/* ebb_linear itself: how it splits work may not show. */
static void check_threads(check *c, const gemm_row *row, const gemm_case *g) {
    static const int64_t few[] = {1, 5, 48, 193, 257};
    float *y = floats_new(ROWS * g->y_stride);
    for (int32_t threads = 1; threads <= 4; threads++) {
        ebb_device *device = device_of(c, row, threads);
        ebb_queue *queue = NULL;
        if (!device) break;
        if (ebb_queue_open(device, 0, &queue, NULL)) check_fail(c, "no queue");
        for (int i = 0; queue && i < COUNT(few); i++) {
            int64_t m = few[i], r0 = ROWS - m;
            int32_t flags = threads % 2 ? EBB_ADD : 0;
            memcpy(y, g->start, (size_t)(ROWS * g->y_stride) * sizeof *y);
            if (ebb_linear(queue, &g->w, g->x + r0 * g->x_stride, g->x_stride, y + r0 * g->y_stride, g->y_stride, m,
                           flags))
                check_fail(c, "ebb_linear refused m = %lld", (long long)m);
            compare(c, g, y, r0, m, flags);
        }
        ebb_queue_close(queue);
        ebb_device_close(device);
    }
    free(y);
}

/* The definition against plain FP64, so that the rows do not merely agree with each other. */
static void check_ref(check *c, const gemm_case *g, const float *w) {
    for (int64_t i = 0; i < ROWS; i += 7) {
        if (i % 13 == 9 || i % 13 == 11 || i % 13 == 8) continue; /* no error bound with NaN, infinity, overflow */
        for (int64_t j = 0; j < g->w.n; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < g->w.k; k++) {
                double p = (double)g->x[i * g->x_stride + k] * (double)w[j * g->w.k + k];
                sum += p;
                size += fabs(p);
            }
            double error = fabs((double)g->want[i * g->y_stride + j] - sum),
                   bound = 6e-8 * (double)g->w.k * size + 1e-38;
            if (!(error <= bound))
                check_fail(c, "row %lld, column %lld: off by %g, bound %g", (long long)i, (long long)j, error, bound);
        }
    }
}

static void check_embed(check *c, ebb_device *device, const gemm_case *g) {
    int32_t *ids = calloc((size_t)g->w.n, sizeof *ids);
    float *w = floats_new(g->w.n * g->w.k);
    ebb_queue *queue = NULL;
    for (int64_t j = 0; ids && j < g->w.n; j++) ids[j] = (int32_t)j;
    if (ebb_queue_open(device, 0, &queue, NULL) || ebb_embed(queue, &g->w, ids, g->w.n, w, g->w.k))
        check_fail(c, "ebb_embed refused all rows");
    else check_ref(c, g, w);
    ebb_queue_close(queue);
    free(ids), free(w);
}

static void check_width(check *c, ebb_device *device, int64_t n, int32_t type) {
    const gemm_row *const *rows = rows_of(device)->gemm, *ref = NULL;
    const int64_t panels = (n + EBB_PANEL - 1) / EBB_PANEL;
    const int32_t values = gguf_block_values(type);
    const int64_t *sizes_k = values == 0 ? plain_k : values == 32 ? block_k : super_k;
    gemm_case cases[SIZES_K];
    char what[64];
    for (int i = 0; rows[i]; i++) ref = rows[i];
    for (int i = 0; i < SIZES_K; i++) {
        gemm_case *g = &cases[i];
        *g = case_new(device, n, sizes_k[i], type);
        ref->run(&g->w, g->x, g->x_stride, g->want, g->y_stride, ROWS, 0, panels, 0);
        for (int64_t r = 0; r < ROWS; r++) /* EBB_ADD is one more rounding */
            for (int64_t j = r * g->y_stride; j < r * g->y_stride + n; j++) g->want_add[j] = g->start[j] + g->want[j];
    }
    snprintf(what, sizeof what, "n %lld, %s: bits", (long long)n, ebb_type_name((ebb_type)type));
    for (int i = 0; rows[i]; i++) {
        if (!check_can(c, &rows[i]->id)) continue;
        check_row(c, "gemm", rows[i]->id.name, what);
        for (int j = 0; j < SIZES_K; j++) {
            const gemm_case *g = &cases[j];
            if (g->w.type != type) check_fail(c, "packed as %s", ebb_type_name((ebb_type)g->w.type));
            if (rows[i] == ref) check_embed(c, device, g);
            if (rows[i] == ref && n > 33 && g->w.k > 3) continue; /* slow, and the small cases cover it */
            check_batches(c, rows[i], g);
            if (j == 3 || (j == 4 && n > 33)) check_threads(c, rows[i], g);
        }
        check_done(c);
    }
    for (int i = 0; i < SIZES_K; i++) case_free(device, &cases[i]);
}

void check_gemm(check *c) {
    ebb_device *device;
    ebb_error error;
    if (ebb_device_open("cpu", NULL, &device, &error)) fprintf(stderr, "ebb-check: %s\n", error.text), exit(1);
    for (int i = 0; i < COUNT(sizes_n); i++) {
        if (c->quick && sizes_n[i] != 33) continue;
        check_width(c, device, sizes_n[i], EBB_BF16);
        check_width(c, device, sizes_n[i], EBB_FP32);
    }
    check_width(c, device, other_n, EBB_FP16);
    for (int32_t type = EBB_Q4_0; type <= EBB_Q6_K; type++) check_width(c, device, other_n, type);
    ebb_device_close(device);
}
