/* state/micro.h: the byte layout of codec_micro, inline so that a fast row compiles the same code for wider vectors and
 * gets the same bits. Included by codec_micro.c and by delta kernels.
 *
 * Planes: codes [key_dim] rows of ceil(value_dim / 2) bytes | high (6 bits) [key_dim] rows of ceil(value_dim / 4) bytes
 * | scales [key_dim][blocks] bytes, blocks of 32 (mx) or 16 (nv) along the value axis | global (nv) one FP32, aligned
 * to 4. */
#ifndef STATE_MICRO_H
#define STATE_MICRO_H

#include "ebb/state.h"
#include "format/block_micro.h"

enum { MICRO_PARAM_P, MICRO_PARAM_FORMAT, MICRO_PARAM_SCALES };

typedef struct micro_shape {
    micro_form form;
    int32_t rows, columns, blocks;
    size_t low_bytes, high_bytes; /* of a row */
    size_t high_at, scales_at, global_at, bytes;
} micro_shape;

static inline micro_shape micro_shape_of(const ebb_state_layer *layer, const double *param) {
    micro_shape s = {.rows = layer->key_dim, .columns = layer->value_dim};
    s.form = micro_form_of((micro_code)(int)param[MICRO_PARAM_FORMAT], param[MICRO_PARAM_SCALES] != 0);
    s.blocks = (s.columns + s.form.group - 1) / s.form.group;
    s.low_bytes = ((size_t)s.columns + 1) / 2;
    s.high_bytes = high_bytes(s.form.bits, s.columns);
    s.high_at = s.low_bytes * (size_t)s.rows;
    s.scales_at = s.high_at + s.high_bytes * (size_t)s.rows;
    const size_t end = s.scales_at + (size_t)s.rows * (size_t)s.blocks;
    s.global_at = s.form.nv ? (end + 3) / 4 * 4 : end;
    s.bytes = s.global_at + (s.form.nv ? 4 : 0);
    return s;
}

static inline void micro_encode(const micro_shape *s, const float *S, uint8_t *packed) {
    const size_t scales_end = s->scales_at + (size_t)s->rows * (size_t)s->blocks;
    memset(packed + scales_end, 0, s->global_at - scales_end); /* padding has one value: images are compared */
    const float global = micro_global(s->form, micro_amax(0, S, (int64_t)s->rows * s->columns));
    if (s->form.nv) memcpy(packed + s->global_at, &global, sizeof global);
    for (int32_t u = 0; u < s->rows; u++)
        micro_encode_row(s->form, global, S + (size_t)u * (size_t)s->columns, s->columns,
                         packed + (size_t)u * s->low_bytes, packed + s->high_at + (size_t)u * s->high_bytes,
                         packed + s->scales_at + (size_t)u * (size_t)s->blocks);
}

static inline void micro_decode(const micro_shape *s, const uint8_t *packed, float *S) {
    float global = 1;
    if (s->form.nv) memcpy(&global, packed + s->global_at, sizeof global);
    for (int32_t u = 0; u < s->rows; u++)
        micro_decode_row(
            s->form, global, packed + (size_t)u * s->low_bytes, packed + s->high_at + (size_t)u * s->high_bytes,
            packed + s->scales_at + (size_t)u * (size_t)s->blocks, s->columns, S + (size_t)u * (size_t)s->columns);
}

#endif
