/* peers/plain.h: the operators as plain C loops, on one thread: what a program has that does nothing about speed but
 * order its loops so that the compiler can use vectors. Included by ggml_bench.c. */
#ifndef PEERS_PLAIN_H
#define PEERS_PLAIN_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* y [m][n] = x [m][k] wt [k][n] */
static inline void plain_matmul(const float *restrict wt, const float *restrict x, float *restrict y, int64_t m,
                                int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++) {
        float *restrict row = y + i * n;
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t u = 0; u < k; u++) {
            const float f = x[i * k + u], *restrict w = wt + u * n;
            for (int64_t j = 0; j < n; j++) row[j] += f * w[j];
        }
    }
}

/* One token of one head: S [d][d], key by value; g is one decay or one a channel. */
static inline void plain_delta(float *restrict S, const float *q, const float *k, const float *v, const float *g,
                               int per_channel, float beta, float *restrict out, int64_t d) {
    float read[256] = {0};
    const float one = expf(g[0]), scale = 1 / sqrtf((float)d);
    for (int64_t u = 0; u < d; u++) {
        const float decay = per_channel ? expf(g[u]) : one, key = k[u];
        float *restrict row = S + u * d;
        for (int64_t i = 0; i < d; i++) row[i] *= decay, read[i] += key * row[i];
    }
    for (int64_t i = 0; i < d; i++) read[i] = beta * (v[i] - read[i]), out[i] = 0;
    for (int64_t u = 0; u < d; u++) {
        const float key = k[u], query = q[u] * scale;
        float *restrict row = S + u * d;
        for (int64_t i = 0; i < d; i++) row[i] += key * read[i], out[i] += query * row[i];
    }
}

/* One query row over n keys and values of `d` floats, `stride` apart; weights [n] is scratch. */
static inline void plain_attention(const float *q, const float *k, const float *v, int64_t stride, int64_t n, int64_t d,
                                   float scale, float *restrict weights, float *restrict out) {
    float most = -INFINITY, sum = 0;
    for (int64_t t = 0; t < n; t++) {
        float dot = 0;
        for (int64_t i = 0; i < d; i++) dot += q[i] * k[t * stride + i];
        weights[t] = dot * scale;
        if (weights[t] > most) most = weights[t];
    }
    for (int64_t t = 0; t < n; t++) sum += weights[t] = expf(weights[t] - most);
    memset(out, 0, (size_t)d * sizeof *out);
    for (int64_t t = 0; t < n; t++) {
        const float w = weights[t] / sum, *restrict row = v + t * stride;
        for (int64_t i = 0; i < d; i++) out[i] += w * row[i];
    }
}

#endif
