/* state/rotated.h: the arithmetic and the byte layout of the two codecs that rotate the value axis before they round:
 * QuaRot (integers) and TurboQuant (a Lloyd-Max codebook), inline so that a fast row compiles the same code and gets
 * the same bits. Included by codec_rotated.c.
 *
 * A key row x becomes y = H D x: D fixed random signs, the same for every head, and H the Walsh-Hadamard transform of
 * blocks of n values, n the largest power of two that divides value_dim (an odd value_dim has its signs changed and no
 * more). The factor 1 / sqrt(n) that makes it a rotation is left to the scale: rounded, it would shrink or grow a state
 * a little at every store, always to the same side. A row is then one FP32 scale and codes:
 *   QuaRot      y = scale * code, integers within +-(2^(bits-1) - 1);
 *   TurboQuant  y = scale * level[code], the scale the root mean square of y (maths 4.9).
 * Planes: codes [key_dim] rows | high [key_dim] rows (6 bits only) | scales FP32 [key_dim]; 16,896, 12,800 and 8,704
 * bytes at 128 x 128 with 8, 6 and 4 bits. */
#ifndef STATE_ROTATED_H
#define STATE_ROTATED_H

#include "format/hadamard.h"
#include "state/codebook.h"
#include "state/lloyd_max.h"

enum { ROTATED_PARAM_P, ROTATED_PARAM_BITS, ROTATED_PARAM_SCALE, ROTATED_PARAM_CLIP }; /* clip: QuaRot only */
enum { QUAROT_SCALE_MAX, QUAROT_SCALE_LS };
enum { TURBO_NORM_STORED, TURBO_NORM_LS };

/* Rows are cut here, so that no decoded row overflows on the way back: 1024 values of 4.6 times this still fit. */
#define ROTATED_LIMIT 5e34f
#define ROTATED_SEED 0x9a0b1c2d3e4f5061u

typedef struct rotated_shape {
    code_planes codes;
    int32_t block;
    size_t bytes;
} rotated_shape;

static inline rotated_shape rotated_shape_of(const ebb_state_layer *layer, const double *param) {
    rotated_shape s = {.codes = code_planes_of(layer, param[ROTATED_PARAM_BITS])};
    s.block = s.codes.columns & -s.codes.columns;
    s.bytes = s.codes.end + (size_t)s.codes.rows * 4;
    return s;
}

/* The signs D, once a head. */
static inline void rotation_signs(float *sign, int32_t n) {
    for (int32_t v = 0; v < n; v++) sign[v] = mix64(ROTATED_SEED + (uint64_t)v) >> 63 ? -1.0f : 1.0f;
}

static inline void rotate(const rotated_shape *s, const float *sign, const float *x, float *y) {
    for (int32_t v = 0; v < s->codes.columns; v++) y[v] = sign[v] * x[v];
    for (int32_t v = 0; v < s->codes.columns; v += s->block) hadamard_sums(y + v, s->block);
}

static inline void rotate_back(const rotated_shape *s, const float *sign, float *y) {
    const float share = 1.0f / (float)s->block; /* H H = n, and 1 / n is exact */
    for (int32_t v = 0; v < s->codes.columns; v += s->block) hadamard_sums(y + v, s->block);
    for (int32_t v = 0; v < s->codes.columns; v++) y[v] *= share * sign[v];
}

static inline float row_amax(const float *y, int32_t n) {
    float amax = 0;
    for (int32_t v = 0; v < n; v++) amax = max_abs(amax, y[v]);
    return amax < ROTATED_LIMIT ? amax : ROTATED_LIMIT;
}

/* The scale that makes the decoded row the projection of y on its values z: the store then cannot amplify. `top` keeps
 * the products in range. */
static inline float projection(const float *y, const float *z, int32_t n, float top, float otherwise) {
    float r[EBB_MAX_STATE_DIM];
    for (int32_t v = 0; v < n; v++) r[v] = y[v] / top;
    const float over = row_dot(r, z, n), under = row_dot(z, z, n);
    return over > 0 && under > 0 && over / under * top < ROTATED_LIMIT ? over / under * top : otherwise;
}

/* ---- QuaRot ---- */

static inline void quarot_encode(const rotated_shape *s, const double *param, const float *S, uint8_t *packed) {
    const int32_t n = s->codes.columns;
    const float qmax = (float)((1 << (s->codes.bits - 1)) - 1), clip = (float)param[ROTATED_PARAM_CLIP] / 100.0f;
    float *scales = (float *)(void *)(packed + s->codes.end);
    float sign[EBB_MAX_STATE_DIM];
    rotation_signs(sign, n);
    codes_pad(&s->codes, packed);
    for (int32_t u = 0; u < s->codes.rows; u++) {
        float y[EBB_MAX_STATE_DIM], z[EBB_MAX_STATE_DIM];
        int8_t q[EBB_MAX_STATE_DIM];
        rotate(s, sign, S + (size_t)u * (size_t)n, y);
        const float amax = row_amax(y, n), top = amax > 1e-30f ? amax : 1e-30f, scale = top * clip / qmax;
        for (int32_t v = 0; v < n; v++) z[v] = round_even(clamp_code(y[v] / scale, qmax));
        for (int32_t v = 0; v < n; v++) q[v] = (int8_t)z[v];
        codes_put(&s->codes, q, u, packed);
        scales[u] = param[ROTATED_PARAM_SCALE] == QUAROT_SCALE_LS ? projection(y, z, n, top, scale) : scale;
    }
}

static inline void quarot_decode(const rotated_shape *s, const uint8_t *packed, float *S) {
    const int32_t n = s->codes.columns;
    const float *scales = (const float *)(const void *)(packed + s->codes.end);
    float sign[EBB_MAX_STATE_DIM];
    rotation_signs(sign, n);
    for (int32_t u = 0; u < s->codes.rows; u++) {
        float *y = S + (size_t)u * (size_t)n;
        int8_t q[EBB_MAX_STATE_DIM];
        codes_get(&s->codes, packed, u, q);
        for (int32_t v = 0; v < n; v++) y[v] = scales[u] * (float)q[v];
        rotate_back(s, sign, y);
    }
}

/* ---- TurboQuant, the variant of least mean square error ---- */

static inline const float *turbo_levels(const rotated_shape *s) {
    return s->codes.bits == 8 ? lloyd_max_8 : s->codes.bits == 6 ? lloyd_max_6 : lloyd_max_4;
}

static inline void turbo_encode(const rotated_shape *s, const double *param, const float *S, uint8_t *packed) {
    const int32_t n = s->codes.columns, half = 1 << (s->codes.bits - 1);
    const float *level = turbo_levels(s);
    float *scales = (float *)(void *)(packed + s->codes.end);
    float sign[EBB_MAX_STATE_DIM], middle[CODEBOOK_HALF], value[256];
    rotation_signs(sign, n);
    codebook_middles(level, half, middle);
    codebook_values(level, half, value);
    codes_pad(&s->codes, packed);
    for (int32_t u = 0; u < s->codes.rows; u++) {
        float y[EBB_MAX_STATE_DIM], z[EBB_MAX_STATE_DIM];
        int8_t q[EBB_MAX_STATE_DIM];
        rotate(s, sign, S + (size_t)u * (size_t)n, y);
        const float amax = row_amax(y, n), top = amax > 1e-30f ? amax : 1e-30f;
        for (int32_t v = 0; v < n; v++) z[v] = y[v] / top;
        const float rms = sqrtf(row_dot(z, z, n) / (float)n); /* of y / top: squares stay in range */
        const bool good = rms > 0 && rms <= 1;                /* not for zeros, infinities and NaN */
        for (int32_t v = 0; v < n; v++) z[v] = good ? z[v] / rms : z[v];
        codebook_codes(middle, half, z, n, q);
        codebook_read(value, q, n, z);
        codes_put(&s->codes, q, u, packed);
        scales[u] = rms > 0 ? (good ? rms : 1.0f) * top : 0.0f;
        if (param[ROTATED_PARAM_SCALE] == TURBO_NORM_LS && good) scales[u] = projection(y, z, n, top, scales[u]);
    }
}

static inline void turbo_decode(const rotated_shape *s, const uint8_t *packed, float *S) {
    const int32_t n = s->codes.columns;
    const float *scales = (const float *)(const void *)(packed + s->codes.end);
    float sign[EBB_MAX_STATE_DIM], value[256];
    rotation_signs(sign, n);
    codebook_values(turbo_levels(s), 1 << (s->codes.bits - 1), value);
    for (int32_t u = 0; u < s->codes.rows; u++) {
        float *y = S + (size_t)u * (size_t)n;
        int8_t q[EBB_MAX_STATE_DIM];
        codes_get(&s->codes, packed, u, q);
        codebook_read(value, q, n, y);
        for (int32_t v = 0; v < n; v++) y[v] *= scales[u];
        rotate_back(s, sign, y);
    }
}

#endif
