/* op/x86/gemm.h: y (+)= x W^T, compiled for AVX2, AVX-512 and NEON by gemm_avx2.c, gemm_avx512.c and
 * op/arm/gemm_neon.c. Called by op/linear.c through the row table. Lanes run along the outputs and k ascends inside one
 * accumulator an output, so the bits of a row of y are those of op/ref/gemm.c whatever the number of rows, their place
 * and the blocking: partial sums are stored and reloaded as they are, and what y held before is added last. Quantized
 * panels are widened to FP32 a few columns at a time (op/x86/gemm_widen.h), just before they are multiplied. */
#ifndef OP_X86_GEMM_H
#define OP_X86_GEMM_H

#include "op/rows.h"
#include "op/x86/gemm_widen.h"

/* A strip is two vectors wide: a whole panel for AVX-512, half of one for AVX2 and NEON. */
#define STRIP (2 * VL)
#define PANEL_STRIPS (EBB_PANEL / STRIP)

#if VL == 16
#    define TILE_ROWS 12 /* 24 accumulators, two weights and a broadcast of 32 registers */
#    define FEW_ROWS 6
#    define PREFETCH_ROWS 4
#else
#    define TILE_ROWS 6 /* 12 accumulators of 16 registers, or pairs */
#    define FEW_ROWS 3
#    define PREFETCH_ROWS 2
#endif
#define TILE_VECTORS (2 * TILE_ROWS)

/* From so many rows on the loads no longer run ahead of the arithmetic by themselves. Measured on Zen 4: M = 8 takes
 * 0.73 ms instead of 0.98 ms; M = 1 streams best alone. */
#define PREFETCH_BYTES 2048

/* Many rows: blocks of x [BLOCK_ROWS][BLOCK_K] are copied at a stride of an odd number of cache lines (rows that are
 * a power of two apart would fall into one set) and meet GROUP panels before the next block. Fewer rows take more
 * columns at a time, so that plain weights are read in longer runs. */
#define BLOCK_ROWS 48
#define BLOCK_K 256
#define GROUP 8

#if defined(__clang__)
#    define UNROLL _Pragma("clang loop unroll(full)")
#else
#    define UNROLL _Pragma("GCC unroll 32")
#endif

typedef struct strips { /* weights of up to four strips, each at its first k; all step by one panel row a k */
    const uint8_t *at[4];
} strips;

static int64_t number_bytes(int32_t type) { return type == EBB_FP32 ? 4 : 2; }

static const uint8_t *strip_at(const ebb_weight *w, int64_t strip) {
    int64_t element = number_bytes(w->type), panel = strip / PANEL_STRIPS, half = strip % PANEL_STRIPS;
    return (const uint8_t *)w->panels + (panel * w->k * EBB_PANEL + half * STRIP) * element;
}

static inline __attribute__((always_inline)) vf weight_load(const uint8_t *p, int32_t type, int vector) {
    if (type == EBB_BF16) return vf_load_bf16((const uint16_t *)(const void *)p + vector * VL);
    if (type == EBB_FP16) return vf_load_fp16((const uint16_t *)(const void *)p + vector * VL);
    return vf_load((const float *)(const void *)p + vector * VL);
}

/* sums [count][rows][STRIP] += x [rows][k] times `count` strips. Inlined into tile() with constant rows, count and
 * type, which puts all the sums into registers. */
static inline __attribute__((always_inline)) void tile_of(int rows, int count, int32_t type, const float *x,
                                                          int64_t x_stride, const strips *w, int64_t k, float *sums) {
    const int64_t step = EBB_PANEL * (type == EBB_FP32 ? 4 : 2);
    const uint8_t *at[4];
    vf s[TILE_VECTORS];
    UNROLL for (int j = 0; j < count; j++) at[j] = w->at[j];
    UNROLL for (int i = 0; i < 2 * rows * count; i++) s[i] = vf_load(sums + i * VL);
    for (int64_t i = 0; i < k; i++) {
        UNROLL for (int j = 0; j < count; j++) {
            vf w0 = weight_load(at[j], type, 0), w1 = weight_load(at[j], type, 1);
            if (rows >= PREFETCH_ROWS) __builtin_prefetch(at[j] + PREFETCH_BYTES);
            at[j] += step;
            UNROLL for (int r = 0; r < rows; r++) {
                vf b = vf_set1(x[r * x_stride + i]);
                s[2 * (j * rows + r)] = vf_fma(b, w0, s[2 * (j * rows + r)]);
                s[2 * (j * rows + r) + 1] = vf_fma(b, w1, s[2 * (j * rows + r) + 1]);
            }
        }
    }
    UNROLL for (int i = 0; i < 2 * rows * count; i++) vf_store(sums + i * VL, s[i]);
}

#define TILE(rows, count)                                                               \
case (rows)*8 + (count):                                                                \
    if (type == EBB_BF16) tile_of(rows, count, EBB_BF16, x, x_stride, w, k, sums);      \
    else if (type == EBB_FP16) tile_of(rows, count, EBB_FP16, x, x_stride, w, k, sums); \
    else tile_of(rows, count, EBB_FP32, x, x_stride, w, k, sums);                       \
    break;

/* Every shape that few_rows and many_rows ask for. */
static void tile(int64_t rows, int64_t count, int32_t type, const float *x, int64_t x_stride, const strips *w,
                 int64_t k, float *sums) {
    switch (rows * 8 + count) {
        /* clang-format off */
        TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1)
#if VL == 16
        TILE(7, 1) TILE(8, 1) TILE(9, 1) TILE(10, 1) TILE(11, 1) TILE(12, 1)
        TILE(1, 4) TILE(2, 4) TILE(3, 4) TILE(4, 2) TILE(5, 2) TILE(6, 2)
#else
        TILE(1, 4) TILE(2, 2) TILE(3, 2)
#endif
        /* clang-format on */
    }
}

/* One row of one strip: y (+)= sums for the first `columns` columns, which may be none or more than the strip has. */
static void put_row(float *y, const float *sums, int64_t columns, int32_t flags) {
    for (int v = 0; v < 2; v++) {
        int n = (int)min_i64(columns - v * VL, VL);
        if (n <= 0) return;
        vf s = vf_load(sums + v * VL);
        if (flags & EBB_ADD) s = vf_add(vf_load_n(y + v * VL, n), s);
        vf_store_n(y + v * VL, s, n);
    }
}

/* Up to FEW_ROWS rows: bound by reading the weights, so several strips at once keep loads and FMAs in flight. */
static void few_rows(const ebb_weight *w, const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t m,
                     int64_t first_strip, int64_t last_strip, int32_t flags) {
    const int64_t at_once = TILE_VECTORS >= 8 * m ? 4 : 2;
    _Alignas(64) float sums[TILE_VECTORS * VL];
    for (int64_t strip = first_strip, count; strip < last_strip; strip += count) {
        strips at;
        count = last_strip - strip >= at_once ? at_once : 1;
        for (int64_t j = 0; j < count; j++) at.at[j] = strip_at(w, strip + j);
        memset(sums, 0, (size_t)(m * count * STRIP) * sizeof *sums);
        tile(m, count, w->type, x, x_stride, &at, w->k, sums);
        for (int64_t j = 0; j < count; j++)
            for (int64_t r = 0; r < m; r++)
                put_row(y + r * y_stride + (strip + j) * STRIP, sums + (j * m + r) * STRIP, w->n - (strip + j) * STRIP,
                        flags);
    }
}

/* The same of quantized panels, one at a time; WIDEN_K columns of it are FP32 in the first cache when they are read. */
static void few_rows_quantized(const ebb_weight *w, const float *x, int64_t x_stride, float *y, int64_t y_stride,
                               int64_t m, int64_t first_strip, int64_t last_strip, int32_t flags) {
    const int64_t bytes = (int64_t)panel_bytes(w->type, w->k);
    _Alignas(64) float sums[PANEL_STRIPS * FEW_ROWS * STRIP], slab[WIDEN_K * EBB_PANEL];
    for (int64_t panel = first_strip / PANEL_STRIPS; panel < last_strip / PANEL_STRIPS; panel++) {
        memset(sums, 0, (size_t)(PANEL_STRIPS * m * STRIP) * sizeof *sums);
        for (int64_t k = 0; k < w->k; k += WIDEN_K) {
            widen_panel(w->type, (const uint8_t *)w->panels + panel * bytes, k, WIDEN_K, slab);
            for (int64_t s = 0; s < PANEL_STRIPS; s++) {
                const strips at = {{(const uint8_t *)(slab + s * STRIP)}};
                tile(m, 1, EBB_FP32, x + k, x_stride, &at, WIDEN_K, sums + s * m * STRIP);
            }
        }
        for (int64_t s = 0; s < PANEL_STRIPS; s++)
            for (int64_t r = 0; r < m; r++)
                put_row(y + r * y_stride + panel * EBB_PANEL + s * STRIP, sums + (s * m + r) * STRIP,
                        w->n - panel * EBB_PANEL - s * STRIP, flags);
    }
}

/* Columns k .. of a strip, as numbers; `slab` receives them where the panel is quantized, once for all its strips. */
static strips block_at(const ebb_weight *w, int64_t strip, int64_t k, int64_t n, float *slab) {
    if (!gguf_block_values(w->type)) return (strips){{strip_at(w, strip) + k * EBB_PANEL * number_bytes(w->type)}};
    const int64_t panel = strip / PANEL_STRIPS, part = strip % PANEL_STRIPS;
    const uint8_t *at = (const uint8_t *)w->panels + panel * (int64_t)panel_bytes(w->type, w->k);
    if (part == 0) widen_panel(w->type, at, k, n, slab);
    return (strips){{(const uint8_t *)(slab + part * STRIP)}};
}

/* sums [strip][rows][STRIP] = x [rows][k] times a group of strips, which begins at a panel. */
static void block_sums(const ebb_weight *w, const float *x, int64_t x_stride, int64_t rows, int64_t first_strip,
                       int64_t last_strip, float *sums) {
    _Alignas(64) float block[BLOCK_ROWS * (BLOCK_K + 16)], slab[BLOCK_K * EBB_PANEL];
    const int32_t type = gguf_block_values(w->type) ? EBB_FP32 : w->type;
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t block_k = type != w->type ? BLOCK_K : BLOCK_ROWS * BLOCK_K / rows / 32 * 32, stride = block_k + 16;
    memset(sums, 0, (size_t)((last_strip - first_strip) * rows * STRIP) * sizeof *sums);
    for (int64_t k0 = 0; k0 < w->k; k0 += block_k) {
        int64_t k = min_i64(w->k - k0, block_k);
        for (int64_t r = 0; r < rows; r++) memcpy(block + r * stride, x + r * x_stride + k0, (size_t)k * sizeof *block);
        for (int64_t strip = first_strip; strip < last_strip; strip++) {
            const strips at = block_at(w, strip, k0, k, slab);
            float *c = sums + (strip - first_strip) * rows * STRIP;
            for (int64_t t = 0; t < tiles; t++) { /* even tiles: 13 rows are 6 + 7, not 12 + 1 */
                int64_t r0 = rows * t / tiles, r1 = rows * (t + 1) / tiles;
                tile(r1 - r0, 1, type, block + r0 * stride, stride, &at, k, c + r0 * STRIP);
            }
        }
    }
}

static void many_rows(const ebb_weight *w, const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t m,
                      int64_t first_strip, int64_t last_strip, int32_t flags) {
    _Alignas(64) float sums[BLOCK_ROWS * GROUP * EBB_PANEL];
    const int64_t blocks = (m + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t s0 = first_strip; s0 < last_strip; s0 += GROUP * PANEL_STRIPS) {
        int64_t s1 = min_i64(last_strip, s0 + GROUP * PANEL_STRIPS);
        for (int64_t b = 0; b < blocks; b++) {
            int64_t r0 = m * b / blocks, rows = m * (b + 1) / blocks - r0;
            block_sums(w, x + r0 * x_stride, x_stride, rows, s0, s1, sums);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t s = s0; s < s1; s++)
                    put_row(y + (r0 + r) * y_stride + s * STRIP, sums + ((s - s0) * rows + r) * STRIP, w->n - s * STRIP,
                            flags);
        }
    }
}

static void gemm_run(const ebb_weight *w, const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t m,
                     int64_t first_panel, int64_t last_panel, int32_t flags) {
    int64_t s0 = first_panel * PANEL_STRIPS, s1 = last_panel * PANEL_STRIPS;
    if (m <= 0) return;
    if (m <= FEW_ROWS && gguf_block_values(w->type)) few_rows_quantized(w, x, x_stride, y, y_stride, m, s0, s1, flags);
    else if (m <= FEW_ROWS) few_rows(w, x, x_stride, y, y_stride, m, s0, s1, flags);
    else many_rows(w, x, x_stride, y, y_stride, m, s0, s1, flags);
}

const gemm_row ISA(gemm) = {{ISA_NAME, ISA_NEEDS, 1}, gemm_run};

#endif
