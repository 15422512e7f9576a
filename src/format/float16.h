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

static inline EBB_HD float fp16_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7FFFu;
    if (rest >= 0x7C00u) return bits_float(sign | 0x7F800000u | ((rest & 0x3FFu) << 13));
    if (rest >= 0x0400u) return bits_float(sign | ((rest << 13) + 0x38000000u));
    float tiny = (float)rest * 5.9604644775390625e-8f; /* subnormal: rest * 2^-24, exact */
    return bits_float(sign | float_bits(tiny));
}

static inline EBB_HD uint16_t float_to_fp16(float x) {
    uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (a >= 0x477FF000u) return (uint16_t)(sign | 0x7BFFu); /* 65520 and above would round to infinity: saturate */
    if (a < 0x38800000u) {                                   /* below 2^-14: to a multiple of 2^-24 */
        float scaled = bits_float(a) * 16777216.0f;
        return (uint16_t)(sign | (uint32_t)round_even(scaled));
    }
    a += 0xFFFu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

#endif
