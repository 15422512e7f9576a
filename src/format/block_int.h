/* format/block_int.h: symmetric integers with one FP32 scale per group of GROUP values along a row (the last group may
 * be shorter). s = max(amax, 1e-30) / qmax, code = clamp(round(x / s)). Decay of a whole group scales s and leaves the
 * codes alone, so a pure decay step costs no error (grid preservation). Valid C11 and CUDA C; called by formats.c and
 * by fast rows. */
#ifndef FORMAT_BLOCK_INT_H
#define FORMAT_BLOCK_INT_H

#include "format/rounding.h"

enum { BLOCK_GROUP = 32 };

/* Scale of n <= BLOCK_GROUP values, by eight running maxima so that it vectorises. An infinite amax is cut, so that the
 * scale, and with it every decoded value, is finite. */
static inline EBB_HD float block_scale(const float *x, int n, float qmax) {
    float top[8] = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) top[j] = max_abs(top[j], x[i + j]);
    float amax = 1e-30f;
    for (; i < n; i++) amax = max_abs(amax, x[i]);
    for (int j = 0; j < 8; j++) amax = max_abs(amax, top[j]);
    return (amax < 3.0e38f ? amax : 3.0e38f) / qmax;
}

static inline EBB_HD void int8_encode_row(const float *x, int64_t n, int8_t *codes, float *scales) {
    for (int64_t at = 0, g = 0; at < n; at += BLOCK_GROUP, g++) {
        int m = n - at < BLOCK_GROUP ? (int)(n - at) : BLOCK_GROUP;
        float s = scales[g] = block_scale(x + at, m, 127.0f);
        for (int i = 0; i < m; i++) codes[at + i] = (int8_t)round_even(clamp_code(x[at + i] / s, 127.0f));
    }
}

static inline EBB_HD void int8_decode_row(const int8_t *codes, const float *scales, int64_t n, float *x) {
    for (int64_t at = 0, g = 0; at < n; at += BLOCK_GROUP, g++) {
        int m = n - at < BLOCK_GROUP ? (int)(n - at) : BLOCK_GROUP;
        for (int i = 0; i < m; i++) x[at + i] = scales[g] * (float)codes[at + i];
    }
}

/* Two codes a byte, the low nibble is the even column; an odd last code has a zero neighbour. */
static inline EBB_HD void pack_int4(const int8_t *q, int64_t n, uint8_t *codes) {
    for (int64_t i = 0; i + 1 < n; i += 2) codes[i / 2] = (uint8_t)((q[i] & 15) | ((q[i + 1] & 15) << 4));
    if (n & 1) codes[n / 2] = (uint8_t)(q[n - 1] & 15);
}

static inline EBB_HD int int4_low(uint8_t b) { return (int)((b & 15u) ^ 8u) - 8; }
static inline EBB_HD int int4_high(uint8_t b) { return (int)((b >> 4) ^ 8u) - 8; }

static inline EBB_HD void int4_encode_row(const float *x, int64_t n, uint8_t *codes, float *scales) {
    for (int64_t at = 0, g = 0; at < n; at += BLOCK_GROUP, g++) {
        int m = n - at < BLOCK_GROUP ? (int)(n - at) : BLOCK_GROUP;
        float s = scales[g] = block_scale(x + at, m, 7.0f);
        int8_t q[BLOCK_GROUP];
        for (int i = 0; i < m; i++) q[i] = (int8_t)round_even(clamp_code(x[at + i] / s, 7.0f));
        pack_int4(q, m, codes + at / 2);
    }
}

static inline EBB_HD void int4_decode_row(const uint8_t *codes, const float *scales, int64_t n, float *x) {
    for (int64_t at = 0, g = 0; at < n; at += BLOCK_GROUP, g++) {
        int m = n - at < BLOCK_GROUP ? (int)(n - at) : BLOCK_GROUP;
        const uint8_t *c = codes + at / 2;
        for (int i = 0; i + 1 < m; i += 2) {
            x[at + i] = scales[g] * (float)int4_low(c[i / 2]);
            x[at + i + 1] = scales[g] * (float)int4_high(c[i / 2]);
        }
        if (m & 1) x[at + m - 1] = scales[g] * (float)int4_low(c[m / 2]);
    }
}

#endif
