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

/* x <- H x, n a power of two up to HADAMARD_MAX. Distances 1, 2, 4, ...; a + b stays, a - b goes to the far place. */
static inline EBB_HD void hadamard_sums(float *x, int n) {
    for (int far = 1; far < n; far *= 2)
        for (int i = 0; i < n; i += 2 * far)
            for (int j = i; j < i + far; j++) {
                float a = x[j], b = x[j + far];
                x[j] = a + b;
                x[j + far] = a - b;
            }
}

/* x <- H x / sqrt(n): one product with 1 / sqrt(n) at the end. */
static inline EBB_HD void hadamard(float *x, int n) {
    hadamard_sums(x, n);
    const float factor = hadamard_factor(n);
    for (int i = 0; i < n; i++) x[i] *= factor;
}

#endif
