/* state/affine.h: the byte layout of codec_affine, inline so that a fast row compiles the same code for wider vectors
 * and gets the same bits. Included by codec_affine.c, by codecs that keep some of their rows this way, and by delta
 * kernels.
 *
 * Planes: codes [key_dim] rows of ceil(value_dim * bits / 8) bytes, then pairs (scale, zero point), FP16 or FP32,
 * [key_dim][groups] with groups of 32 along the value axis, aligned to the bytes of a pair. */
#ifndef STATE_AFFINE_H
#define STATE_AFFINE_H

#include "ebb/state.h"
#include "format/block_affine.h"

enum { AFFINE_PARAM_P, AFFINE_PARAM_BITS, AFFINE_PARAM_HADAMARD, AFFINE_PARAM_META, AFFINE_PARAM_ZERO };

typedef struct affine_shape {
    affine_form form;
    int32_t rows, columns, groups;
    size_t row_bytes, row_pairs, pairs_at, bytes;
} affine_shape;

/* Of `rows` rows of `columns` values. */
static inline affine_shape affine_shape_of_rows(affine_form form, int32_t rows, int32_t columns) {
    affine_shape s = {.form = form, .rows = rows, .columns = columns};
    const size_t pair = affine_pair_bytes(form);
    s.groups = (columns + BLOCK_GROUP - 1) / BLOCK_GROUP;
    s.row_bytes = ((size_t)columns * (size_t)form.bits + 7) / 8;
    s.row_pairs = (size_t)s.groups * pair;
    s.pairs_at = (s.row_bytes * (size_t)rows + pair - 1) / pair * pair;
    s.bytes = s.pairs_at + s.row_pairs * (size_t)rows;
    return s;
}

static inline affine_shape affine_shape_of(const ebb_state_layer *layer, const double *param) {
    affine_form form = {param[AFFINE_PARAM_BITS] != 0 ? 8 : 4, param[AFFINE_PARAM_HADAMARD] != 0,
                        param[AFFINE_PARAM_META] != 0, param[AFFINE_PARAM_ZERO] != 0};
    return affine_shape_of_rows(form, layer->key_dim, layer->value_dim);
}

/* Rows first .. first + count - 1 of the planes, from and to x, which is row `first`. */
static inline void affine_encode_rows(const affine_shape *s, int32_t first, int32_t count, const float *x,
                                      uint8_t *codes, uint8_t *pairs) {
    for (int32_t i = 0; i < count; i++)
        affine_encode_row(s->form, x + (size_t)i * (size_t)s->columns, s->columns,
                          codes + (size_t)(first + i) * s->row_bytes, pairs + (size_t)(first + i) * s->row_pairs);
}

static inline void affine_decode_rows(const affine_shape *s, int32_t first, int32_t count, const uint8_t *codes,
                                      const uint8_t *pairs, float *x) {
    for (int32_t i = 0; i < count; i++)
        affine_decode_row(s->form, codes + (size_t)(first + i) * s->row_bytes,
                          pairs + (size_t)(first + i) * s->row_pairs, s->columns, x + (size_t)i * (size_t)s->columns);
}

static inline void affine_encode(const affine_shape *s, const float *S, uint8_t *packed) {
    const size_t codes_end = s->row_bytes * (size_t)s->rows;
    memset(packed + codes_end, 0, s->pairs_at - codes_end); /* padding has one value: images are compared */
    affine_encode_rows(s, 0, s->rows, S, packed, packed + s->pairs_at);
}

static inline void affine_decode(const affine_shape *s, const uint8_t *packed, float *S) {
    affine_decode_rows(s, 0, s->rows, packed, packed + s->pairs_at, S);
}

#endif
