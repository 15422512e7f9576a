/* state/kvquant.h: the arithmetic and the byte layout of KVQuant on a recurrent state, inline so that a fast row
 * compiles the same code and gets the same bits. Included by codec_kvquant.c.
 *
 * Of every key row the largest values (outliers, 16 per thousand: 2 of 128) are kept in FP16 with their columns, the
 * rest is divided by its largest magnitude and takes the nearest level of a k-means codebook (maths 4.7). Two forms:
 *   ends=published  FP16 scale, outliers as they are, a codebook as k-means leaves it. Its last level is below 1, so
 *                   the largest of the rest shrinks at every store; and FP16 scales stagnate under slow decay.
 *   ends=fixed      the last level is 1, FP32 scale, outliers as multiples of the scale: storing what was stored
 *                   changes nothing, and decay of a row changes its scale alone.
 * Planes: codes [key_dim] rows | high [key_dim] rows (6 bits only) | scales FP16 or FP32 [key_dim] | outliers FP16
 * [key_dim][outliers of a row] | columns uint8 (uint16 above 256 columns) [key_dim][outliers of a row], ascending. At
 * 128 x 128: 17,408, 13,312 and 9,216 bytes with 8, 6 and 4 bits, 256 more with ends=fixed. */
#ifndef STATE_KVQUANT_H
#define STATE_KVQUANT_H

#include "format/float16.h"
#include "state/codebook.h"
#include "state/kmeans.h"

enum { KVQUANT_PARAM_P, KVQUANT_PARAM_BITS, KVQUANT_PARAM_OUTLIERS, KVQUANT_PARAM_ENDS };
enum { KVQUANT_PUBLISHED, KVQUANT_FIXED };

/* ends=fixed: no outlier is more scales than this, which is below the largest FP16 number. */
#define KVQUANT_TALLEST 32768.0f

typedef struct kvquant_shape {
    code_planes codes;
    int32_t outliers, ends;
    size_t scale_bytes, column_bytes, outliers_at, columns_at, bytes;
} kvquant_shape;

static inline kvquant_shape kvquant_shape_of(const ebb_state_layer *layer, const double *param) {
    kvquant_shape s = {.codes = code_planes_of(layer, param[KVQUANT_PARAM_BITS])};
    const int32_t thousandths = (int32_t)param[KVQUANT_PARAM_OUTLIERS];
    const size_t rows = (size_t)s.codes.rows;
    s.outliers = (s.codes.columns * thousandths + 500) / 1000;
    if (s.outliers == 0 && thousandths > 0) s.outliers = 1;
    s.ends = (int32_t)param[KVQUANT_PARAM_ENDS];
    s.scale_bytes = s.ends == KVQUANT_FIXED ? 4 : 2;
    s.column_bytes = s.codes.columns > 256 ? 2 : 1;
    s.outliers_at = s.codes.end + rows * s.scale_bytes;
    s.columns_at = s.outliers_at + rows * (size_t)s.outliers * 2;
    s.bytes = s.columns_at + rows * (size_t)s.outliers * s.column_bytes;
    return s;
}

static inline const float *kvquant_levels(const kvquant_shape *s) {
    const bool fixed = s->ends == KVQUANT_FIXED;
    if (s->codes.bits == 8) return fixed ? kmeans_ends_8 : kmeans_8;
    if (s->codes.bits == 6) return fixed ? kmeans_ends_6 : kmeans_6;
    return fixed ? kmeans_ends_4 : kmeans_4;
}

/* Columns of the n largest |x|, ascending; of equal ones the first. NaN counts as 0. Returns the largest magnitude. */
static inline float kvquant_pick(const float *x, int32_t columns, int32_t n, int32_t *column) {
    float size[EBB_MAX_STATE_DIM], amax = 0;
    for (int32_t v = 0; v < columns; v++) amax = max_abs(amax, size[v] = max_abs(0, x[v]));
    for (int32_t i = 0; i < n; i++) {
        int32_t best = 0;
        for (int32_t v = 1; v < columns; v++)
            if (size[v] > size[best]) best = v;
        size[best] = -1;
    }
    for (int32_t v = 0, i = 0; i < n; v++)
        if (size[v] < 0) column[i++] = v;
    return amax;
}

/* Outliers as they are, or as multiples of the scale, and their columns. */
static inline void kvquant_put_outliers(const kvquant_shape *s, int32_t row, const int32_t *column, const float *kept,
                                        float scale, uint8_t *packed) {
    const size_t first = (size_t)row * (size_t)s->outliers;
    uint16_t *outlier = (uint16_t *)(void *)(packed + s->outliers_at) + first;
    uint8_t *columns = packed + s->columns_at + first * s->column_bytes;
    for (int32_t i = 0; i < s->outliers; i++) {
        const uint16_t wide = (uint16_t)column[i];
        const float multiple = scale > 0 ? clamp_code(kept[i], 3.0e38f) / scale : 0.0f;
        outlier[i] = float_to_fp16(s->ends == KVQUANT_FIXED ? multiple : kept[i]);
        memcpy(columns + (size_t)i * s->column_bytes, &wide, s->column_bytes); /* little-endian: the low byte first */
    }
}

/* The scale as it is stored; `amax` of the rest, `top` of the whole row. */
static inline float kvquant_put_scale(const kvquant_shape *s, int32_t row, float amax, float top, uint8_t *packed) {
    if (s->ends == KVQUANT_FIXED) {
        const float least = top / KVQUANT_TALLEST, wanted = amax > least ? amax : least;
        const float scale = wanted < 3.0e38f ? wanted : 3.0e38f;
        memcpy(packed + s->codes.end + (size_t)row * 4, &scale, 4);
        return scale;
    }
    const uint16_t half = float_to_fp16(amax);
    memcpy(packed + s->codes.end + (size_t)row * 2, &half, 2);
    return fp16_to_float(half);
}

static inline void kvquant_encode(const kvquant_shape *s, const float *S, uint8_t *packed) {
    const int32_t n = s->codes.columns, half = 1 << (s->codes.bits - 1);
    const float *level = kvquant_levels(s);
    float middle[CODEBOOK_HALF];
    codebook_middles(level, half, middle);
    codes_pad(&s->codes, packed);
    for (int32_t u = 0; u < s->codes.rows; u++) {
        float rest[EBB_MAX_STATE_DIM], kept[EBB_MAX_STATE_DIM], amax = 0;
        int32_t column[EBB_MAX_STATE_DIM];
        int8_t q[EBB_MAX_STATE_DIM];
        memcpy(rest, S + (size_t)u * (size_t)n, (size_t)n * sizeof *rest);
        const float top = kvquant_pick(rest, n, s->outliers, column);
        for (int32_t i = 0; i < s->outliers; i++) kept[i] = rest[column[i]], rest[column[i]] = 0;
        for (int32_t v = 0; v < n; v++) amax = max_abs(amax, rest[v]);
        const float scale = kvquant_put_scale(s, u, amax, top, packed);
        kvquant_put_outliers(s, u, column, kept, scale, packed);
        for (int32_t v = 0; v < n; v++) rest[v] = scale > 0 ? rest[v] / scale : 0.0f;
        codebook_codes(middle, half, rest, n, q);
        codes_put(&s->codes, q, u, packed);
    }
}

static inline void kvquant_decode(const kvquant_shape *s, const uint8_t *packed, float *S) {
    const int32_t n = s->codes.columns;
    float value[256];
    codebook_values(kvquant_levels(s), 1 << (s->codes.bits - 1), value);
    for (int32_t u = 0; u < s->codes.rows; u++) {
        const size_t first = (size_t)u * (size_t)s->outliers;
        const uint16_t *outlier = (const uint16_t *)(const void *)(packed + s->outliers_at) + first;
        const uint8_t *columns = packed + s->columns_at + first * s->column_bytes;
        float *x = S + (size_t)u * (size_t)n, scale;
        int8_t q[EBB_MAX_STATE_DIM];
        if (s->ends == KVQUANT_FIXED) memcpy(&scale, packed + s->codes.end + (size_t)u * 4, 4);
        else scale = fp16_to_float(((const uint16_t *)(const void *)(packed + s->codes.end))[u]);
        codes_get(&s->codes, packed, u, q);
        codebook_read(value, q, n, x);
        for (int32_t v = 0; v < n; v++) x[v] *= scale;
        for (int32_t i = 0; i < s->outliers; i++) {
            uint16_t column = 0;
            memcpy(&column, columns + (size_t)i * s->column_bytes, s->column_bytes);
            x[column] = fp16_to_float(outlier[i]) * (s->ends == KVQUANT_FIXED ? scale : 1.0f);
        }
    }
}

#endif
