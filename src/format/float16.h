/* format/float16.h: FP16 and BF16, to nearest even. FP16 saturates at +-65504 (a record or a compensator that
 * overflowed to infinity would poison the state); NaN stays NaN. Valid C11 and CUDA C. */
#ifndef FORMAT_FLOAT16_H
#define FORMAT_FLOAT16_H

#include "format/rounding.h"

static inline EBB_HD float bf16_to_float(uint16_t h) { return bits_float((uint32_t)h << 16); }

static inline EBB_HD uint16_t float_to_bf16(float x) {
    uint32_t u = float_bits(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((u >> 16) | 0x40u); /* NaN stays NaN when its low bits go */
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

/* Both conversions choose by masks: with branches compilers do not vectorise them. */
static inline EBB_HD float fp16_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7FFFu;
    uint32_t tiny = float_bits((float)(int32_t)rest * 5.9604644775390625e-8f); /* subnormal: rest * 2^-24, exact */
    uint32_t special = 0u - (uint32_t)(rest >= 0x7C00u), below = 0u - (uint32_t)(rest < 0x0400u);
    uint32_t normal = (rest << 13) + 0x38000000u + (special & 0x38000000u);
    return bits_float(sign | (tiny & below) | (normal & ~below));
}

static inline EBB_HD uint16_t float_to_fp16(float x) {
    uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
    uint32_t nan = 0u - (uint32_t)(a > 0x7F800000u), below = 0u - (uint32_t)(a < 0x38800000u); /* 2^-14 */
    uint32_t top = 0u - (uint32_t)(a >= 0x477FF000u); /* 65520 and above would round to infinity: saturate */
    uint32_t tiny = float_bits(bits_float(a) + 0.5f) - 0x3F000000u; /* beside 1/2 the last place is 2^-24 */
    uint32_t normal = (a + 0xFFFu + ((a >> 13) & 1u) - 0x38000000u) >> 13;
    uint32_t number = (tiny & below) | (normal & ~below & ~top) | (0x7BFFu & top & ~nan) | (0x7E00u & nan);
    return (uint16_t)(sign | number);
}

/* Stochastic: one of the two FP16 numbers beside x, the farther from 0 with the probability that makes the mean x, to
 * 2^-13 of their distance. The low 13 bits of `random` are uniform. What is FP16 already stays; 65504 is the largest.
 */
static inline EBB_HD uint16_t float_to_fp16_stoch(float x, uint32_t random) {
    uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
    random &= 0x1FFFu;
    if (a > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (a >= 0x477FE000u) return (uint16_t)(sign | 0x7BFFu);
    if (a < 0x38800000u) { /* below 2^-14: a multiple of 2^-24 */
        float scaled = bits_float(a) * 16777216.0f;
        return (uint16_t)(sign | (uint32_t)(scaled + (float)random * 1.220703125e-4f));
    }
    return (uint16_t)(sign | ((a + random - 0x38000000u) >> 13));
}

/* Likewise one of the two BF16 numbers beside x, exactly so: the low 16 bits of `random` are uniform. Finite stays
 * finite. */
static inline EBB_HD uint16_t float_to_bf16_stoch(float x, uint32_t random) {
    uint32_t u = float_bits(x), a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u) return (uint16_t)((u >> 16) | 0x40u);
    if (a > 0x7F7F0000u) return (uint16_t)((u >> 16 & 0x8000u) | (a == 0x7F800000u ? 0x7F80u : 0x7F7Fu));
    return (uint16_t)((u + (random & 0xFFFFu)) >> 16);
}

#endif
