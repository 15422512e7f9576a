/* heavy_head.h: heavy-tailed matrices for one_head.h, as states are: normal numbers with log-normal factors per row
 * (sigma 1) and per column (sigma 0.7). Needs ebb-core only. */
#ifndef HEAVY_HEAD_H
#define HEAVY_HEAD_H

#include "one_head.h"

static inline double heavy_uniform(uint64_t *s) {
    return (double)(int64_t)(mix64((*s)++) >> 11) / 4503599627370496.0 - 1.0;
}
static inline double heavy_normal(uint64_t *s) {
    const double u = (heavy_uniform(s) + 1) / 2, v = heavy_uniform(s);
    return sqrt(-2 * log(u + 1e-300)) * cos(3.14159265358979323846 * v);
}

static inline void heavy_fill(float *S, int32_t key_dim, int32_t value_dim, uint64_t seed) {
    uint64_t s = mix64(seed);
    for (int32_t u = 0; u < key_dim; u++) {
        const double row = exp(heavy_normal(&s));
        uint64_t column = mix64(seed + 1000);
        for (int32_t v = 0; v < value_dim; v++)
            S[(int64_t)u * value_dim + v] = (float)(row * exp(.7 * heavy_normal(&column)) * heavy_normal(&s));
    }
}

/* D = Q(S), from nothing. */
static inline void head_store(one_head *t, const float *S, float *D) {
    head_put(t, S);
    head_get(t, D);
}

/* ||S|| */
static inline double head_norm(const float *S, int64_t n) { return head_distance(S, S, 0, n); }

#endif
