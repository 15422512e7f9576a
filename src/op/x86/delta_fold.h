/* op/x86/delta_fold.h: images to tiles and back, and the records of a window folded into an image. Part of
 * op/x86/delta.h. */
#ifndef OP_X86_DELTA_FOLD_H
#define OP_X86_DELTA_FOLD_H

#include "op/x86/delta_block_fold.h"
#include "op/x86/delta_damp_fold.h"
#include "op/x86/delta_leap_fold.h"

static inline reader reader_of(const ebb_state_view *s) {
    if (s->codec == &codec_block) return block_reader(s);
    if (s->codec == &codec_leap) return (reader)(READ_LEAP4 + (int)s->param[LEAP_PARAM_BITS]);
    if (s->codec == &codec_mixed) return READ_LEAP_MIX;
    if (s->codec == &codec_damp) return s->param[DAMP_PARAM_LOW] == DAMP_AFFINE8 ? READ_DAMP : READ_TILE;
    if (s->codec == &codec_reorder) return READ_DAMP;
    return READ_TILE;
}

static inline bool is_damp(const ebb_state_view *s) { return s->codec == &codec_damp || s->codec == &codec_reorder; }

/* tmp: as for encode. */
static void decode_tile(const ebb_state_view *s, int32_t head, const uint8_t *packed, float *S, float *tmp) {
    const block_shape block = s->codec == &codec_block ? block_shape_of(s->layer, s->param) : (block_shape){0};
    if (block.plain_bytes) block_decode_tile(&block, packed, S);
    else if (is_leap_codec(s)) {
        leap_shape p = leap_of(s, head);
        leap_decode_tile(&p, packed, S, tmp);
    } else if (is_damp(s)) {
        ebb_head h = head_of(s, head);
        damp_shape p = damp_shape_of(&h, s->codec == &codec_reorder);
        damp_decode_tile(&p, packed, S);
    } else {
        ebb_head h = head_of(s, head);
        s->codec->decode(&h, packed, S);
    }
}

/* The image at position `pos`. */
static void encode_tile(const ebb_state_view *s, int32_t head, int64_t pos, const float *S, const float *decay,
                        const void *old, uint8_t *packed, float *tmp) {
    ebb_head h = head_of(s, head);
    h.pos = pos;
    const block_shape block = s->codec == &codec_block ? block_shape_of(s->layer, s->param) : (block_shape){0};
    if (block.plain) block_encode_tile(&block, S, packed);
    else if (is_leap_codec(s)) {
        leap_shape p = leap_of(s, head);
        leap_encode_tile(&p, h.rng_key, S, decay, old, packed, tmp);
    } else if (is_damp(s)) {
        damp_shape p = damp_shape_of(&h, s->codec == &codec_reorder);
        damp_encode_tile(&p, draw_key(&h), S, packed);
    } else s->codec->encode(&h, S, decay, old, packed, tmp);
}

/* `rows` rows from u and `across` vectors from v of S <- diag(decay) S + coef^T rows, of n records. */
INLINE void add_block(int rows, int across, int32_t dk, int32_t dv, int32_t n, int32_t u, int32_t v, float *S,
                      const scratch *r) {
    vf sum[BLOCK][NARROW];
    for (int j = 0; j < rows; j++)
        for (int b = 0; b < across; b++)
            sum[j][b] = vf_mul(vf_set1(r->decay[u + j]), vf_load(S + (int64_t)(u + j) * dv + v + b * VL));
    for (int32_t i = 0; i < n; i++) {
        vf d[NARROW];
        for (int b = 0; b < across; b++) d[b] = vf_load(r->rows + i * dv + v + b * VL);
        for (int j = 0; j < rows; j++) {
            const vf k = vf_set1(r->coef[i * dk + u + j]);
            for (int b = 0; b < across; b++) sum[j][b] = vf_fma(k, d[b], sum[j][b]);
        }
    }
    for (int j = 0; j < rows; j++)
        for (int b = 0; b < across; b++) vf_store(S + (int64_t)(u + j) * dv + v + b * VL, sum[j][b]);
}

/* Of the n <= window records from `base`: coef [n][key_dim] = e^{G - G_i} o k_i, rows [n][value_dim] = d_i, decay =
 * e^G. */
static void gather_records(const ebb_state_view *s, int32_t slot, int32_t head, int64_t base, int32_t n,
                           const scratch *r) {
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim,
                  key_head = head / (s->layer->heads / s->layer->key_heads);
    const bool kda = s->layer->kind == EBB_KDA;
    const size_t one = s->record_type == EBB_FP32 ? 4 : 2;
    vf total = vf_zero(); /* GDN: the log decay after record i, in every lane */
    if (kda) memset(r->suffix, 0, (size_t)dk * sizeof(float));
    for (int32_t i = n - 1; i >= 0; i--) {
        const void *k = key_record(s, slot, key_head, base + i), *d = delta_record(s, slot, head, base + i);
        const float *g = decay_record(s, slot, head, base + i);
        if (r->ahead)
            fetch((const uint8_t *)k + (size_t)dk * one, (size_t)dk * one),
                fetch((const uint8_t *)d + (size_t)dv * one, (size_t)dv * one);
        vf e = vf_exp(total);
        for (int32_t u = 0; u < dk; u += VL) {
            if (kda) e = vf_exp(vf_load(r->suffix + u));
            vf_store(r->coef + i * dk + u, vf_mul(e, load_record(s, k, u)));
            if (kda) vf_store(r->suffix + u, vf_add(vf_load(r->suffix + u), vf_load(g + u)));
        }
        for (int32_t v = 0; v < dv; v += VL) vf_store(r->rows + i * dv + v, load_record(s, d, v));
        if (!kda) total = vf_add(total, vf_set1(*g));
    }
    for (int32_t u = 0; u < dk; u += VL) vf_store(r->decay + u, vf_exp(kda ? vf_load(r->suffix + u) : total));
}

INLINE void add_rows(int rows, int32_t dk, int32_t dv, int32_t n, float *S, const scratch *r) {
    for (int32_t u = 0; u < dk; u += rows) {
        int32_t v = 0;
        for (; v + NARROW * VL <= dv; v += NARROW * VL) add_block(rows, NARROW, dk, dv, n, u, v, S, r);
        for (; v < dv; v += VL) add_block(rows, 1, dk, dv, n, u, v, S, r);
    }
}

/* S <- diag(e^G) S + sum_i diag(e^{G - G_i}) k_i d_i^T for the n <= window records from `base`; decay <- e^G. */
static void add_records(const ebb_state_view *s, int32_t slot, int32_t head, int64_t base, int32_t n, float *S,
                        const scratch *r) {
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim;
    gather_records(s, slot, head, base, n, r);
    if (n == 1) add_rows(1, dk, dv, n, S, r); /* in the order of memory, from which S comes at every token */
    else add_rows(BLOCK, dk, dv, n, S, r);
}

/* The image of the boundary base + window, from the image at base; `to` may be `from`. FP32 images are their own tile.
 */
static void fold(const ebb_state_view *s, int32_t slot, int32_t head, int64_t base, const uint8_t *from, uint8_t *to,
                 const scratch *r) {
    if (reader_of(s) == READ_FP32) {
        if (to != from) memcpy(to, from, s->packed_head);
        add_records(s, slot, head, base, s->window, (float *)(void *)to, r);
        return;
    }
    decode_tile(s, head, from, r->tile, r->tmp);
    add_records(s, slot, head, base, s->window, r->tile, r);
    encode_tile(s, head, base + s->window, r->tile, r->decay, from, to, r->tmp);
}

static void fold_due(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const scratch *r) {
    uint8_t *packed = packed_of(s, slot, head);
    int64_t *base = base_of(s, slot, head);
    for (; pos - *base >= s->window; *base += s->window) fold(s, slot, head, *base, packed, packed, r);
}

static void start_fresh(const ebb_state_view *s, int32_t slot, int32_t head, const scratch *r) {
    memset(r->tile, 0, (size_t)s->layer->key_dim * (size_t)s->layer->value_dim * sizeof(float));
    encode_tile(s, head, 0, r->tile, NULL, NULL, packed_of(s, slot, head), r->tmp);
    *base_of(s, slot, head) = 0;
}

#endif
