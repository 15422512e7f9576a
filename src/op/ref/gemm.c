/* op/ref/gemm.c: the definition of y (+)= x W^T. Each output is one FP32 accumulator from +0 with a fused multiply-add
 * for each k ascending; EBB_ADD adds it to y in one rounding at the end. Every other row of gemm has the same bits. */
#include "op/rows.h"

#include <math.h>
#include <string.h>

/* Row k of a panel, widened. */
static void panel_row(const ebb_weight *w, int64_t panel, int64_t k, float *row) {
    int64_t at = (panel * w->k + k) * EBB_PANEL;
    if (w->type == EBB_FP32) {
        memcpy(row, (const float *)w->panels + at, EBB_PANEL * sizeof *row);
        return;
    }
    for (int c = 0; c < EBB_PANEL; c++) {
        uint32_t bits = (uint32_t)((const uint16_t *)w->panels)[at + c] << 16;
        memcpy(&row[c], &bits, sizeof bits);
    }
}

static void gemm_run(const ebb_weight *w, const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t m,
                     int64_t first_panel, int64_t last_panel, int32_t flags) {
    for (int64_t panel = first_panel; panel < last_panel; panel++) {
        int64_t columns = min_i64(EBB_PANEL, w->n - panel * EBB_PANEL);
        for (int64_t i = 0; i < m; i++) {
            float sum[EBB_PANEL] = {0}, row[EBB_PANEL], *out = y + i * y_stride + panel * EBB_PANEL;
            for (int64_t k = 0; k < w->k; k++) {
                panel_row(w, panel, k, row);
                for (int c = 0; c < EBB_PANEL; c++) sum[c] = fmaf(x[i * x_stride + k], row[c], sum[c]);
            }
            for (int64_t c = 0; c < columns; c++) out[c] = flags & EBB_ADD ? out[c] + sum[c] : sum[c];
        }
    }
}

const gemm_row gemm_ref = {{"ref", 0, 1}, gemm_run};
