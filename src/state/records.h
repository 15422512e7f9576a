/* state/records.h: where things lie in a slot: packed heads, bases, and the rings of records and conv inputs. Inline,
 * for kernels (src/op) and the pool. Rings are indexed by position. All offsets are 64-bit. */
#ifndef STATE_RECORDS_H
#define STATE_RECORDS_H

#include "core/core.h"
#include "ebb/state.h"
#include "format/float16.h"

/* For layout and decode; encode wants pos in it too. */
static inline ebb_head head_of(const ebb_state_view *s, int32_t head) {
    uint64_t global = (uint64_t)(uint32_t)(s->layer->head_begin + head);
    return (ebb_head){s->layer, head, s->param, s->table, mix64(s->rng_key ^ (global << 32)), 0};
}

static inline uint8_t *packed_of(const ebb_state_view *s, int32_t slot, int32_t head) {
    return s->packed + (int64_t)slot * s->packed_slot + s->head_at[head];
}

static inline uint8_t *live_of(const ebb_state_view *s, int32_t slot) { return s->live + (int64_t)slot * s->live_slot; }

static inline int64_t *base_of(const ebb_state_view *s, int32_t slot, int32_t head) {
    return (int64_t *)(void *)(live_of(s, slot) + s->base_at) + head;
}

/* Log decays of a head and token. */
static inline int32_t gates_of(const ebb_state_layer *l) { return l->kind == EBB_GDN ? 1 : l->key_dim; }

/* Records of a token. Those of all heads lie together, then the second ones: of head h it is record heads + h. */
static inline int32_t records_of(const ebb_state_layer *l) { return l->kind == EBB_ERASE ? 2 : 1; }

/* Key record of a position, one per KEY head: key_dim values of record_type. */
static inline void *key_record(const ebb_state_view *s, int32_t slot, int32_t key_head, int64_t pos) {
    int64_t row = (pos % s->cap) * records_of(s->layer) * s->layer->key_heads + key_head;
    int64_t bytes = (int64_t)s->layer->key_dim * (s->record_type == EBB_FP32 ? 4 : 2);
    return live_of(s, slot) + s->key_at + row * bytes;
}

static inline void *delta_record(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos) {
    int64_t row = (pos % s->cap) * records_of(s->layer) * s->layer->heads + head;
    int64_t bytes = (int64_t)s->layer->value_dim * (s->record_type == EBB_FP32 ? 4 : 2);
    return live_of(s, slot) + s->delta_at + row * bytes;
}

/* Log decay of a position, FP32: gates_of(layer) numbers. */
static inline float *decay_record(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos) {
    int64_t row = (pos % s->cap) * s->layer->heads + head;
    return (float *)(void *)(live_of(s, slot) + s->decay_at) + row * gates_of(s->layer);
}

static inline float *conv_record(const ebb_state_view *s, int32_t slot, int64_t pos) {
    return (float *)(void *)(live_of(s, slot) + s->conv_at) + (pos % s->conv_ring) * ebb_state_conv_channels(s->layer);
}

static inline void record_write(const ebb_state_view *s, void *record, const float *x, int32_t n) {
    if (s->record_type == EBB_FP32) memcpy(record, x, (size_t)n * sizeof *x);
    else
        for (int32_t i = 0; i < n; i++) ((uint16_t *)record)[i] = float_to_fp16(x[i]);
}

static inline void record_read(const ebb_state_view *s, const void *record, float *x, int32_t n) {
    if (s->record_type == EBB_FP32) memcpy(x, record, (size_t)n * sizeof *x);
    else
        for (int32_t i = 0; i < n; i++) x[i] = fp16_to_float(((const uint16_t *)record)[i]);
}

#endif
