/* op/x86/select.h: the sums and scores of op/ref/select.c, bit for bit, compiled for AVX2, AVX-512 and NEON by
 * select_avx2.c, select_avx512.c and op/arm/select_neon.c. Called by op/select.c through the row table. Lanes are dims
 * in the sums and keys in the scores, so that every number is added up in the order of the definition. */
#ifndef OP_X86_SELECT_H
#define OP_X86_SELECT_H

#include "op/rows.h"
#include "op/x86/simd.h"

static void add(const float *q, int64_t stride, int64_t n, int32_t dims, float *sum) {
    const vf heads = vf_set1((float)n);
    for (int32_t d = 0; d < dims; d += VL) {
        const int lanes = dims - d < VL ? dims - d : VL;
        vf mean = vf_zero();
        for (int64_t i = 0; i < n; i++) mean = vf_add(mean, vf_load_n(q + i * stride + d, lanes));
        vf_store_n(sum + d, vf_add(vf_load_n(sum + d, lanes), vf_div(mean, heads)), lanes);
    }
}

static float score_one(const float *query, const float *key, int32_t dims) {
    float sum = 0;
    for (int32_t d = 0; d < dims; d++) sum += query[d] * key[d];
    return sum;
}

/* Dims that are turned together: a load of 16 lanes that were stored as twice 8 just before waits for both, so there
 * what is loaded was stored long ago. */
enum { TURN = VL == 16 ? 32 : 8 };

/* t [n][VL] = dims first .. first + n - 1 of VL keys. */
static void turn(const float *key, int32_t dims, int32_t n, float *t) {
    int32_t d = 0;
    for (; d + 8 <= n; d += 8)
        for (int32_t i = 0; i < VL; i += 8) transpose8(key + i * dims + d, dims, t + d * VL + i, VL);
    for (; d < n; d++)
        for (int32_t i = 0; i < VL; i++) t[d * VL + i] = key[i * dims + d];
}

/* VL keys, a lane each. */
static vf score_lanes(const float *query, const float *key, int32_t dims) {
    float t[TURN * VL];
    vf sum = vf_zero();
    for (int32_t first = 0; first < dims; first += TURN) {
        const int32_t n = dims - first < TURN ? dims - first : TURN;
        turn(key + first, dims, n, t);
        for (int32_t d = 0; d < n; d++) sum = vf_add(sum, vf_mul(vf_set1(query[first + d]), vf_load(t + d * VL)));
    }
    return sum;
}

static void score(const float *query, const float *key, int32_t dims, int64_t n, float *scores) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(scores + i, score_lanes(query, key + i * dims, dims));
    for (; i < n; i++) scores[i] = score_one(query, key + i * dims, dims);
}

const select_row ISA(select) = {.id = {ISA_NAME, ISA_NEEDS, 1}, .add = add, .score = score};

#endif
