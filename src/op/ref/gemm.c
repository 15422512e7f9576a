/* op/ref/gemm.c: the definition of y (+)= x W^T. Each output is one FP32 accumulator from +0 with a fused multiply-add
 * for each k ascending; EBB_ADD adds it to y in one rounding at the end. Quantized weights are first widened to FP32 as
 * format/block_gguf.h has it. Every other row of gemm has the same bits. */
#include "op/panel.h"
#include "op/rows.h"

#include <math.h>
#include <string.h>

enum { TILE_K = 256, ROWS = 16 }; /* TILE_K: a multiple of every block; ROWS: that share a widened tile */

/* Columns k .. k + n - 1 of a panel, widened; k is a multiple of TILE_K. */
static void widen_plain(const ebb_weight *w, int64_t panel, int64_t k, int64_t n, float tile[TILE_K][EBB_PANEL]) {
    const int64_t at = (panel * w->k + k) * EBB_PANEL;
    const float *wide = (const float *)w->panels + at;
    const uint16_t *half = (const uint16_t *)w->panels + at;
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < EBB_PANEL; c++) {
            const int64_t e = i * EBB_PANEL + c;
            tile[i][c] = w->type == EBB_FP32   ? wide[e]
                         : w->type == EBB_BF16 ? bf16_to_float(half[e])
                                               : fp16_to_float(half[e]);
        }
}

static void widen_blocks(const ebb_weight *w, int64_t panel, int64_t k, int64_t n, float tile[TILE_K][EBB_PANEL]) {
    const int32_t values = gguf_block_values(w->type), bytes = gguf_block_bytes(w->type);
    const uint8_t *at = (const uint8_t *)w->panels + (size_t)panel * panel_bytes(w->type, w->k);
    at += k / values * bytes * EBB_PANEL;
    uint8_t block[QUANT_BLOCK_BYTES];
    float row[GGUF_SUPER];
    for (int64_t i = 0; i < n; i += values, at += bytes * EBB_PANEL)
        for (int c = 0; c < EBB_PANEL; c++) {
            panel_take(w->type, at, c, block);
            gguf_decode_row(w->type, block, values, row);
            for (int32_t j = 0; j < values; j++) tile[i + j][c] = row[j];
        }
}

/* Up to ROWS rows of one panel. */
static void panel_rows(const ebb_weight *w, int64_t panel, const float *x, int64_t x_stride, float *y, int64_t y_stride,
                       int64_t rows, int32_t flags) {
    float tile[TILE_K][EBB_PANEL], sum[ROWS][EBB_PANEL] = {{0}};
    for (int64_t k = 0; k < w->k; k += TILE_K) {
        const int64_t n = min_i64(TILE_K, w->k - k);
        if (gguf_block_values(w->type)) widen_blocks(w, panel, k, n, tile);
        else widen_plain(w, panel, k, n, tile);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < n; j++)
                for (int c = 0; c < EBB_PANEL; c++) sum[i][c] = fmaf(x[i * x_stride + k + j], tile[j][c], sum[i][c]);
    }
    const int64_t columns = min_i64(EBB_PANEL, w->n - panel * EBB_PANEL);
    for (int64_t i = 0; i < rows; i++) {
        float *out = y + i * y_stride + panel * EBB_PANEL;
        for (int64_t c = 0; c < columns; c++) out[c] = flags & EBB_ADD ? out[c] + sum[i][c] : sum[i][c];
    }
}

static void gemm_run(const ebb_weight *w, const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t m,
                     int64_t first_panel, int64_t last_panel, int32_t flags) {
    for (int64_t panel = first_panel; panel < last_panel; panel++)
        for (int64_t i = 0; i < m; i += ROWS)
            panel_rows(w, panel, x + i * x_stride, x_stride, y + i * y_stride, y_stride, min_i64(ROWS, m - i), flags);
}

const gemm_row gemm_ref = {{"ref", 0, 1}, gemm_run};
