/* op/ref/select.c: the definition of the scores of keys (op/select.c), in plain FP32, dims ascending. Called through
 * the row table. Other rows give the same bits: a score that moved could be another key's turn. */
#include "op/rows.h"

static void add(const float *q, int64_t stride, int64_t n, int32_t dims, float *sum) {
    for (int32_t d = 0; d < dims; d++) {
        float mean = 0;
        for (int64_t i = 0; i < n; i++) mean += q[i * stride + d];
        sum[d] += mean / (float)n;
    }
}

static void score(const float *query, const float *key, int32_t dims, int64_t n, float *scores) {
    for (int64_t i = 0; i < n; i++, key += dims) {
        float sum = 0;
        for (int32_t d = 0; d < dims; d++) sum += query[d] * key[d];
        scores[i] = sum;
    }
}

const select_row select_ref = {.id = {"ref", 0, 1}, .add = add, .score = score};
