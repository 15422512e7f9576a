/* format/rounding.h: one rounding code for every device. Valid C11 and CUDA C; included by format, state and the
 * kernels. Everything rounds half to even, where it does not say stochastic, and gives the same bits at every vector
 * width, which rests on three rules of the build: no contraction (-ffp-contract=off), no reassociation, FP32
 * evaluation. */
#ifndef FORMAT_ROUNDING_H
#define FORMAT_ROUNDING_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#    define EBB_HD __host__ __device__
#else
#    define EBB_HD
#endif

/* Half-to-even for |x| < 2^22, in two additions that every compiler vectorises: 1.5 * 2^23 leaves no room for a
 * fraction. */
static inline EBB_HD float round_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

/* Stochastic: one of the two whole numbers beside x, with the probabilities that make the mean x, to 2^-14; |x| < 2^9.
 * The low 13 bits of `random` are uniform. What is within 2^-14 of a whole number becomes that, so that a code which
 * was read back and divided by its scale again keeps its value. */
static inline EBB_HD float round_stoch(float x, uint32_t random) {
    return round_even(x + ((float)(int32_t)(random & 0x1FFFu) - 4095.5f) * 1.220703125e-4f);
}

/* x into [-limit, limit]; NaN becomes -limit, so that a code is always a valid integer. */
static inline EBB_HD float clamp_code(float x, float limit) {
    x = x > -limit ? x : -limit;
    return x < limit ? x : limit;
}

/* NaN is passed over. */
static inline EBB_HD float max_abs(float m, float x) {
    x = fabsf(x);
    return x > m ? x : m;
}

static inline EBB_HD uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline EBB_HD float bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

#endif
