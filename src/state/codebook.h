/* state/codebook.h: rows of 8, 6 or 4-bit codes, and symmetric codebooks over them. A codebook is the positive half of
 * its levels, ascending: code q >= 0 means level[q], code q < 0 means -level[~q], so a codebook of 2^b levels fills b
 * bits in two's complement and has no zero. Included by rotated.h and kvquant.h. */
#ifndef STATE_CODEBOOK_H
#define STATE_CODEBOOK_H

#include "core/core.h"
#include "ebb/state.h"
#include "format/block_int.h"

/* The planes of all rows: `low` at 0, all of an 8-bit code or its low 4 bits, `high` (6 bits only) at the next multiple
 * of 4, and what follows them at the next multiple of 4. */
typedef struct code_planes {
    int32_t rows, columns, bits;
    size_t low_row, high_row, high_at, end;
} code_planes;

enum { CODEBOOK_HALF = 128 }; /* positive levels of 8 bits */
static const uint8_t code_bits[] = {4, 6, 8};
#define CODE_BITS "4|6|8"

static inline code_planes code_planes_of(const ebb_state_layer *layer, double bits) {
    code_planes p = {.rows = layer->key_dim, .columns = layer->value_dim, .bits = code_bits[(int)bits]};
    p.low_row = p.bits == 8 ? (size_t)p.columns : ((size_t)p.columns + 1) / 2;
    p.high_row = high_bytes(p.bits, p.columns);
    p.high_at = align_up(p.low_row * (size_t)p.rows, 4);
    p.end = align_up(p.high_at + p.high_row * (size_t)p.rows, 4);
    return p;
}

/* Padding has one value: images are compared. */
static inline void codes_pad(const code_planes *p, uint8_t *packed) {
    const size_t low_end = p->low_row * (size_t)p->rows, high_end = p->high_at + p->high_row * (size_t)p->rows;
    memset(packed + low_end, 0, p->high_at - low_end);
    memset(packed + high_end, 0, p->end - high_end);
}

static inline void codes_put(const code_planes *p, const int8_t *q, int32_t row, uint8_t *packed) {
    uint8_t *low = packed + (size_t)row * p->low_row, *high = packed + p->high_at + (size_t)row * p->high_row;
    if (p->bits == 8) memcpy(low, q, (size_t)p->columns);
    else if (p->bits == 6) pack_int6(q, p->columns, low, high);
    else pack_int4(q, p->columns, low);
}

static inline void codes_get(const code_planes *p, const uint8_t *packed, int32_t row, int8_t *q) {
    const uint8_t *low = packed + (size_t)row * p->low_row, *high = packed + p->high_at + (size_t)row * p->high_row;
    if (p->bits == 8) memcpy(q, low, (size_t)p->columns);
    else if (p->bits == 6) unpack_int6(low, high, p->columns, q);
    else unpack_int4(low, p->columns, q);
}

/* The values of codes as a table over their bytes: signs are random, and a branch for each would be mispredicted half of
 * the time. */
static inline void codebook_values(const float *level, int32_t half, float value[256]) {
    for (int32_t q = 0; q < half; q++) value[q] = level[q], value[255 - q] = -level[q];
}

static inline void codebook_read(const float value[256], const int8_t *q, int32_t n, float *x) {
    for (int32_t v = 0; v < n; v++) x[v] = value[(uint8_t)q[v]];
}

/* The thresholds between neighbours, their middles; half - 1 of them. */
static inline void codebook_middles(const float *level, int32_t half, float *middle) {
    for (int32_t q = 0; q + 1 < half; q++) middle[q] = 0.5f * (level[q] + level[q + 1]);
}

/* Codes of the nearest of 2 * half levels, half a power of two. A value on a threshold takes the smaller magnitude, NaN
 * the smallest. A binary search of all values side by side, and without branches: values are random. */
static inline void codebook_codes(const float *middle, int32_t half, const float *x, int32_t n, int8_t *q) {
    int32_t at[EBB_MAX_STATE_DIM];
    for (int32_t v = 0; v < n; v++) at[v] = 0;
    for (int32_t step = half / 2; step; step /= 2)
        for (int32_t v = 0; v < n; v++) at[v] += step & -(int32_t)(fabsf(x[v]) > middle[at[v] + step - 1]);
    for (int32_t v = 0; v < n; v++) q[v] = (int8_t)(at[v] ^ -(int32_t)(x[v] < 0));
}

/* a . b in 16 partial sums and a fixed tree: one order whatever the vector width. */
static inline float row_dot(const float *restrict a, const float *restrict b, int32_t n) {
    float sum[16] = {0};
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int32_t j = 0; j < 16; j++) sum[j] += a[i + j] * b[i + j];
    for (int32_t j = 0; i + j < n; j++) sum[j] += a[i + j] * b[i + j];
    for (int32_t half = 8; half; half /= 2)
        for (int32_t j = 0; j < half; j++) sum[j] += sum[j + half];
    return sum[0];
}

#endif
