/* format/block_affine.h: unsigned integers with a scale s and a zero point z per group of BLOCK_GROUP values along a
 * row (the last group may be shorter): code = clamp(round(x / s) + z, 0 .. qmax), value = s (code - z). s and z are
 * kept in FP16 or FP32, and everything is computed with what was kept. Two ways to choose them:
 *
 *   exact  the range is extended to contain 0, so z is a whole number 0 .. qmax and 0 is stored exactly; s is rounded
 *          up, so the ends of the range have codes, and every value is at most s / 2 off.
 *   paper  s = (max - min) / qmax and z = round(-min / s), both to nearest, as published. FP16 z saturates at 65504: a
 *          group that lies more than 65504 s from 0 is lost. Where s is 0 (one value only, or a range that FP16 does
 *          not see) the formula has no answer; the middle of the range becomes s, and z = 0.
 *
 * Ranges are cut at +-1.7e38 and FP16 scales saturate, so finite values stay finite, and NaN counts as -1.7e38. With
 * h32 the values are those of the block transform below. Valid C11 and CUDA C; called by codecs and by fast rows. */
#ifndef FORMAT_BLOCK_AFFINE_H
#define FORMAT_BLOCK_AFFINE_H

#include "format/block_int.h"
#include "format/float16.h"
#include "format/hadamard.h"

typedef struct affine_form {
    int bits;             /* 8 or 4 */
    int h32, fp32, paper; /* flags: transformed; s and z in FP32 rather than FP16; s and z as published */
} affine_form;

typedef struct affine_pair {
    float s, z;
} affine_pair;

static inline EBB_HD size_t affine_pair_bytes(affine_form f) { return f.fp32 ? 8 : 4; }
static inline EBB_HD float affine_qmax(affine_form f) { return f.bits == 8 ? 255.0f : 15.0f; }

/* Half-to-even for any float: from 2^23 on there is no fraction. */
static inline EBB_HD float round_any(float x) {
    float a = fabsf(x), r = (a + 8388608.0f) - 8388608.0f;
    r = x < 0 ? -r : r;
    return a < 8388608.0f ? r : x;
}

/* The smallest FP16 that is not below x >= 0, 65504 at most. */
static inline EBB_HD float fp16_above(float x) {
    uint16_t h = float_to_fp16(x);
    if (h < 0x7BFFu && fp16_to_float(h) < x) h++;
    return fp16_to_float(h);
}

/* ---- the transform: normalised Hadamard blocks of 32; a shorter rest of n values has blocks of the largest power of
 * two that divides n, so an odd rest stays as it is ---- */

static inline EBB_HD void h32_blocks(float *x, int n) {
    const int block = n & -n;
    for (int i = 0; i < n; i += block) hadamard(x + i, block);
}

/* y = H x. Values are cut at +-1e36, so that no sum of 32 overflows, there or on the way back; NaN counts as 0. */
static inline EBB_HD void h32_forward(const float *__restrict__ x, int n, float *__restrict__ y) {
    for (int i = 0; i < n; i++) {
        float cut = clamp_code(x[i], 1e36f);
        y[i] = x[i] == x[i] ? cut : 0.0f;
    }
    if (n == BLOCK_GROUP) hadamard(y, BLOCK_GROUP);
    else h32_blocks(y, n);
}

/* ---- one group ---- */

/* Extrema of n values, NaN passed over. They start from 0 (exact), or from nothing (paper). */
static inline EBB_HD void affine_range(const float *__restrict__ x, int n, int paper, float *lo, float *hi) {
    float a[16], b[16];
    for (int j = 0; j < 16; j++) a[j] = paper ? 1.7e38f : 0.0f;
    for (int j = 0; j < 16; j++) b[j] = -a[j];
    for (; n >= 16; n -= 16, x += 16) {
        for (int j = 0; j < 16; j++) a[j] = x[j] < a[j] ? x[j] : a[j];
        for (int j = 0; j < 16; j++) b[j] = x[j] > b[j] ? x[j] : b[j];
    }
    for (int j = 0; j < n; j++) {
        a[j] = x[j] < a[j] ? x[j] : a[j];
        b[j] = x[j] > b[j] ? x[j] : b[j];
    }
    for (int j = 0; j < 8; j++) a[j] = a[j + 8] < a[j] ? a[j + 8] : a[j];
    for (int j = 0; j < 8; j++) b[j] = b[j + 8] > b[j] ? b[j + 8] : b[j];
    for (int j = 0; j < 4; j++) a[j] = a[j + 4] < a[j] ? a[j + 4] : a[j];
    for (int j = 0; j < 4; j++) b[j] = b[j + 4] > b[j] ? b[j + 4] : b[j];
    for (int j = 1; j < 4; j++) {
        a[0] = a[j] < a[0] ? a[j] : a[0];
        b[0] = b[j] > b[0] ? b[j] : b[0];
    }
    const int nothing = a[0] > b[0];
    *lo = nothing ? 0.0f : a[0] > -1.7e38f ? a[0] : -1.7e38f;
    *hi = nothing ? 0.0f : b[0] < 1.7e38f ? b[0] : 1.7e38f;
}

static inline EBB_HD affine_pair affine_fit_exact(affine_form f, const float *x, int n) {
    const float qmax = affine_qmax(f), least = f.fp32 ? 1e-30f / qmax : 5.9604644775390625e-8f;
    float lo, hi;
    affine_range(x, n, 0, &lo, &hi);
    affine_pair p;
    p.s = (hi - lo) / qmax;
    p.s = p.s > least ? p.s : least;
    if (!f.fp32) p.s = fp16_above(p.s);
    p.z = round_any((0.0f - lo) / p.s);
    p.z = p.z < qmax ? p.z : qmax;
    return p;
}

static inline EBB_HD affine_pair affine_fit_paper(affine_form f, const float *x, int n) {
    float lo, hi;
    affine_range(x, n, 1, &lo, &hi);
    affine_pair p;
    p.s = (hi - lo) / affine_qmax(f);
    if (!f.fp32) p.s = fp16_to_float(float_to_fp16(p.s));
    if (p.s == 0) {
        p.s = 0.5f * lo + 0.5f * hi;
        if (!f.fp32) p.s = fp16_to_float(float_to_fp16(p.s));
        if (p.s == 0) p.s = f.fp32 ? 1e-30f / affine_qmax(f) : 5.9604644775390625e-8f;
        p.z = 0;
        return p;
    }
    p.z = round_any((0.0f - lo) / p.s);
    if (!f.fp32) p.z = fp16_to_float(float_to_fp16(p.z));
    return p;
}

/* Called with a constant n for whole groups. Two loops for the reason that block_codes has. */
static inline EBB_HD void affine_codes(const float *__restrict__ x, int n, affine_pair p, float qmax,
                                       int8_t *__restrict__ q) {
    float y[BLOCK_GROUP];
    for (int i = 0; i < n; i++) {
        float code = round_any(clamp_code(x[i], 1.7e38f) / p.s) + p.z;
        code = code > 0 ? code : 0.0f;
        y[i] = code < qmax ? code : qmax;
    }
    for (int i = 0; i < n; i++) q[i] = (int8_t)(uint8_t)y[i];
}

static inline EBB_HD void affine_encode_group(affine_form f, const float *__restrict__ x, int n,
                                              uint8_t *__restrict__ codes, uint8_t *__restrict__ pair) {
    float y[BLOCK_GROUP];
    int8_t q[BLOCK_GROUP];
    if (f.h32) h32_forward(x, n, y);
    else memcpy(y, x, (size_t)n * sizeof *x);
    affine_pair p = f.paper ? affine_fit_paper(f, y, n) : affine_fit_exact(f, y, n);
    affine_codes(y, n, p, affine_qmax(f), q);
    if (f.bits == 8) memcpy(codes, q, (size_t)n);
    else pack_int4(q, n, codes);
    if (f.fp32) memcpy(pair, &p, 8);
    else {
        uint16_t half[2] = {float_to_fp16(p.s), float_to_fp16(p.z)};
        memcpy(pair, half, 4);
    }
}

static inline EBB_HD void affine_decode_group(affine_form f, const uint8_t *__restrict__ codes,
                                              const uint8_t *__restrict__ pair, int n, float *__restrict__ x) {
    affine_pair p;
    int8_t q[BLOCK_GROUP];
    if (f.fp32) memcpy(&p, pair, 8);
    else {
        uint16_t half[2];
        memcpy(half, pair, 4);
        p.s = fp16_to_float(half[0]);
        p.z = fp16_to_float(half[1]);
    }
    if (f.bits == 8) memcpy(q, codes, (size_t)n);
    else unpack_nibbles(codes, n, q);
    for (int i = 0; i < n; i++) x[i] = p.s * ((float)(uint8_t)q[i] - p.z);
    if (f.h32) {
        if (n == BLOCK_GROUP) hadamard(x, BLOCK_GROUP);
        else h32_blocks(x, n);
    }
}

/* ---- a row: codes are ceil(n bits / 8) bytes, pairs ceil(n / 32) times affine_pair_bytes ---- */

static inline EBB_HD void affine_encode_row(affine_form f, const float *x, int64_t n, uint8_t *codes, uint8_t *pairs) {
    for (; n >= BLOCK_GROUP; n -= BLOCK_GROUP, x += BLOCK_GROUP) {
        affine_encode_group(f, x, BLOCK_GROUP, codes, pairs);
        codes += BLOCK_GROUP * f.bits / 8;
        pairs += affine_pair_bytes(f);
    }
    if (n > 0) affine_encode_group(f, x, (int)n, codes, pairs);
}

static inline EBB_HD void affine_decode_row(affine_form f, const uint8_t *codes, const uint8_t *pairs, int64_t n,
                                            float *x) {
    for (; n >= BLOCK_GROUP; n -= BLOCK_GROUP, x += BLOCK_GROUP) {
        affine_decode_group(f, codes, pairs, BLOCK_GROUP, x);
        codes += BLOCK_GROUP * f.bits / 8;
        pairs += affine_pair_bytes(f);
    }
    if (n > 0) affine_decode_group(f, codes, pairs, (int)n, x);
}

#endif
