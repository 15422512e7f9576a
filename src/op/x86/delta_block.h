/* op/x86/delta_block.h: reads the images of codec_block. Part of op/x86/delta.h. */
#ifndef OP_X86_DELTA_BLOCK_H
#define OP_X86_DELTA_BLOCK_H

#include "op/x86/delta_codes.h"

static inline reader block_reader(const ebb_state_view *s) {
    const block_shape p = block_shape_of(s->layer, s->param);
    if (p.bits == 6 || p.bits == 5) {
        if (p.group == BLOCK_OF_32) return READ_TILE;
        return p.bits == 6 ? READ_LEAP6 : READ_LEAP5;
    }
    if (p.group == BLOCK_OF_32) return (reader)p.format;
    return p.bits == 8 ? READ_LEAP8 : READ_LEAP4;
}

/* FP32 scales of a block image, widened into `room` where they are stored in 16 bits. */
static const float *block_scales(const block_shape *p, const uint8_t *packed, float *room) {
    const uint8_t *at = packed + p->scales_at;
    if (p->scale == BLOCK_SCALE_FP32) return (const float *)(const void *)at;
    const uint16_t *half = (const uint16_t *)(const void *)at;
    for (int32_t i = 0; i < p->scales; i += VL) /* as many as rows or columns, or a multiple of those */
        vf_store(room + i, p->scale == BLOCK_SCALE_FP16 ? vf_load_fp16(half + i) : vf_load_bf16(half + i));
    return room;
}

/* Scales of rows multiply x and y, those of columns P and Z. */
static void read_block(const ebb_state_view *s, const uint8_t *packed, const scratch *r) {
    const block_shape p = block_shape_of(s->layer, s->param);
    const float *scales = p.scales ? block_scales(&p, packed, r->tile) : NULL;
    for (int32_t u = 0; p.group == BLOCK_OF_ROW && u < p.rows; u++) r->x[u] *= scales[u], r->y[u] *= scales[u];
    for (int32_t u = 0; p.format == BLOCK_FP8 && u < p.rows; u++)
        r->x[u] *= 256, r->y[u] *= 256; /* vf_load_fp8 gives 2^-8 */
    read_codes(block_reader(s), packed, packed + p.high_at, p.rows, p.columns, r->x, r->y,
               p.group == BLOCK_OF_ROW ? NULL : scales, r->P, r->Z);
}

#endif
