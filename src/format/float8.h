/* format/float8.h: FP8 E4M3 (OCP: 1 sign, 4 exponent bits with bias 7, 3 mantissa bits; largest 448, no infinity,
 * S.1111.111 is NaN) with one FP32 scale per group of BLOCK_GROUP values along a row, as block_int.h has for integers:
 * s = max(amax, 1e-30) / 448, code = E4M3(x / s), to nearest even and saturating. Like a code of the integers a code is
 * always a number: NaN becomes -448, an infinity +-448, and S.1111.111 is never written. Valid C11 and CUDA C; called
 * by formats.c and by fast rows. */
#ifndef FORMAT_FLOAT8_H
#define FORMAT_FLOAT8_H

#include "format/block_int.h"

#define FP8_MAX 448.0f

/* Both conversions choose by masks: with conditional expressions compilers make branches and no longer vectorise. */
static inline EBB_HD float fp8_to_float(uint8_t h) {
    uint32_t sign = (uint32_t)(h & 0x80u) << 24, rest = h & 0x7Fu;
    uint32_t tiny = float_bits((float)(int32_t)rest * 0.001953125f); /* subnormal: rest * 2^-9, exact */
    uint32_t normal = (rest << 20) + 0x3C000000u;                    /* the exponent's bias from 7 to 127 */
    uint32_t below = 0u - (uint32_t)(rest < 8), nan = 0u - (uint32_t)(rest == 0x7Fu);
    return bits_float(sign | (tiny & below) | (normal & ~below) | (nan & 0x7FC00000u));
}

/* |x| <= 448. */
static inline EBB_HD uint8_t float_to_fp8_in_range(float x) {
    uint32_t u = float_bits(x), a = u & 0x7FFFFFFFu;
    uint32_t normal = (a + 0x7FFFFu + ((a >> 20) & 1u) - 0x3C000000u) >> 20;
    uint32_t tiny = float_bits(bits_float(a) + 16384.0f) - 0x46800000u; /* beside 2^14 the last place is 2^-9 */
    uint32_t below = 0u - (uint32_t)(a < 0x3C800000u);                  /* 2^-6 */
    return (uint8_t)((u >> 24 & 0x80u) | (tiny & below) | (normal & ~below));
}

static inline EBB_HD uint8_t float_to_fp8(float x) { return float_to_fp8_in_range(clamp_code(x, FP8_MAX)); }

/* One group; called with a constant n for whole groups. Two loops for the reason that block_codes has. */
static inline EBB_HD void fp8_codes(const float *__restrict__ x, int n, float s, uint8_t *__restrict__ codes) {
    float y[BLOCK_GROUP];
    for (int i = 0; i < n; i++) y[i] = clamp_code(x[i] / s, FP8_MAX);
    for (int i = 0; i < n; i++) codes[i] = float_to_fp8_in_range(y[i]);
}

static inline EBB_HD void fp8_values(const uint8_t *__restrict__ codes, int n, float s, float *__restrict__ x) {
    for (int i = 0; i < n; i++) x[i] = s * fp8_to_float(codes[i]);
}

static inline EBB_HD void fp8_encode_row(const float *x, int64_t n, uint8_t *codes, float *scales) {
    for (; n >= BLOCK_GROUP; n -= BLOCK_GROUP, x += BLOCK_GROUP, codes += BLOCK_GROUP)
        fp8_codes(x, BLOCK_GROUP, *scales = block_scale(x, BLOCK_GROUP, FP8_MAX), codes), scales++;
    if (n > 0) fp8_codes(x, (int)n, *scales = block_scale(x, (int)n, FP8_MAX), codes);
}

static inline EBB_HD void fp8_decode_row(const uint8_t *codes, const float *scales, int64_t n, float *x) {
    for (; n >= BLOCK_GROUP; n -= BLOCK_GROUP, x += BLOCK_GROUP, codes += BLOCK_GROUP)
        fp8_values(codes, BLOCK_GROUP, *scales++, x);
    if (n > 0) fp8_values(codes, (int)n, *scales, x);
}

#endif
