/* format/hadamard.h: the Walsh-Hadamard transform of a row, in place, its own inverse. Every sum is one path of
 * butterflies, so its order is written here and the bits do not depend on the vector width. Valid C11 and CUDA C;
 * called by codecs that rotate the value axis. */
#ifndef FORMAT_HADAMARD_H
#define FORMAT_HADAMARD_H

#include "format/rounding.h"

enum { HADAMARD_MAX = 1024 };

/* 1 / sqrt(n) for a power of two n: a power of two, times 1 / sqrt(2) when the exponent is odd. */
static inline EBB_HD float hadamard_factor(int n) {
    uint32_t log2 = 0;
    while (n >> (log2 + 1)) log2++;
    return bits_float((127u - log2 / 2) << 23) * (log2 & 1 ? 0.70710678118654752f : 1.0f);
}

/* Four neighbours at once, n a multiple of 4: compilers do not find distances 1 and 2 by themselves. */
#if defined(__has_builtin) && !defined(__CUDACC__)
#    if __has_builtin(__builtin_shufflevector)
#        define HADAMARD_FOURS 1
#    endif
#endif
#if defined(HADAMARD_FOURS)
typedef float float_four __attribute__((vector_size(16)));
static inline void hadamard_fours(float *x, int n) {
    const float_four one = {1, -1, 1, -1}, two = {1, 1, -1, -1}; /* a product with these is exact */
    float_four a, b;
    for (int i = 0; i < n; i += 4) {
        memcpy(&a, x + i, sizeof a);
        a = __builtin_shufflevector(a, a, 1, 0, 3, 2) + a * one;
        a = __builtin_shufflevector(a, a, 2, 3, 0, 1) + a * two;
        memcpy(x + i, &a, sizeof a);
    }
    for (int far = 4; far < n; far *= 2)
        for (int i = 0; i < n; i += 2 * far)
            for (int j = i; j < i + far; j += 4) {
                memcpy(&a, x + j, sizeof a);
                memcpy(&b, x + j + far, sizeof b);
                const float_four sum = a + b, difference = a - b;
                memcpy(x + j, &sum, sizeof sum);
                memcpy(x + j + far, &difference, sizeof difference);
            }
}
#else
static inline EBB_HD void hadamard_fours(float *x, int n) {
    for (int i = 0; i < n; i += 4) {
        const float a = x[i] + x[i + 1], b = x[i] - x[i + 1], c = x[i + 2] + x[i + 3], d = x[i + 2] - x[i + 3];
        x[i] = a + c, x[i + 1] = b + d;
        x[i + 2] = a - c, x[i + 3] = b - d;
    }
    for (int far = 4; far < n; far *= 2)
        for (int i = 0; i < n; i += 2 * far)
            for (int j = i; j < i + far; j++) {
                const float a = x[j], b = x[j + far];
                x[j] = a + b;
                x[j + far] = a - b;
            }
}
#endif

/* x <- H x, n a power of two up to HADAMARD_MAX. Distances 1, 2, 4, ...; a + b stays, a - b goes to the far place. */
static inline EBB_HD void hadamard_sums(float *x, int n) {
    if (n >= 4) hadamard_fours(x, n);
    if (n != 2) return;
    const float a = x[0], b = x[1];
    x[0] = a + b, x[1] = a - b;
}

/* x <- H x / sqrt(n): one product with 1 / sqrt(n) at the end. */
static inline EBB_HD void hadamard(float *x, int n) {
    hadamard_sums(x, n);
    const float factor = hadamard_factor(n);
    for (int i = 0; i < n; i++) x[i] *= factor;
}

#endif
