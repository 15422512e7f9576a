/* op/x86/delta_records.h: reads the records of a window without adding them to S: P and Z begin as their share of
 * S^T k and S^T q. Part of op/x86/delta.h.
 *
 * Records of a head lie apart by a token's records of all heads, so each is a miss of its own: fetch_head asks for all
 * of them before the first is needed. Sums are the same as one record at a time, newest first, would give. */
#ifndef OP_X86_DELTA_RECORDS_H
#define OP_X86_DELTA_RECORDS_H

#include "op/x86/delta_fold.h"

enum { MAX_RECORDS = EBB_MAX_WINDOW + EBB_MAX_NEW, ACROSS = VL == 16 ? 8 : 4 }; /* vectors of P and Z in registers */

/* A record's part in P and in Z: of k and q with its key, times its age. */
typedef struct shares {
    float k[MAX_RECORDS], q[MAX_RECORDS];
} shares;

/* All that a step of one head reads and that is not one long stream, at once: one wait instead of many. */
static void fetch_head(const ebb_state_view *s, int32_t slot, int32_t head, int32_t key_head, int64_t pos) {
    const size_t one = s->record_type == EBB_FP32 ? 4 : 2, gates = (size_t)gates_of(s->layer) * sizeof(float);
    const uint8_t *packed = packed_of(s, slot, head);
    for (int64_t t = *base_of(s, slot, head); t < pos; t++) {
        fetch(key_record(s, slot, key_head, t), (size_t)s->layer->key_dim * one);
        fetch(delta_record(s, slot, head, t), (size_t)s->layer->value_dim * one);
        fetch(decay_record(s, slot, head, t), gates);
    }
    if (is_leap_codec(s)) {
        const leap_shape p = leap_of(s, head);
        fetch(packed + p.c_at, p.bytes - p.c_at);
    }
    fetch(packed, s->packed_head < AHEAD ? s->packed_head : AHEAD);
}

/* GDN: ages are e^total, total the log decay since the record, which begins with this token's own. Returns the total
 * of the whole window. */
static float read_keys(const ebb_state_view *s, int32_t slot, int32_t head, int32_t key_head, int64_t base, int64_t pos,
                       float total, const scratch *r, shares *of) {
    const int32_t dk = s->layer->key_dim, n = (int32_t)(pos - base);
    const size_t bytes = (size_t)dk * (s->record_type == EBB_FP32 ? 4 : 2);
    float age[MAX_RECORDS + VL];
    for (int32_t i = 0; i < n; i++) {
        age[i] = total;
        total += *decay_record(s, slot, head, pos - 1 - i);
    }
    for (int32_t i = n; i % VL; i++) age[i] = 0;
    for (int32_t i = 0; i < n; i += VL) vf_store(age + i, vf_exp(vf_load(age + i)));
    for (int32_t i = 0; i < n; i += 2) { /* two at a time; the last may be alone */
        const void *one = key_record(s, slot, key_head, pos - 1 - i);
        const void *two = i + 1 < n ? key_record(s, slot, key_head, pos - 2 - i) : one;
        if (r->ahead) fetch((const uint8_t *)one + bytes, bytes), fetch((const uint8_t *)two + bytes, bytes);
        vf a = vf_zero(), b = a, c = a, d = a;
        for (int32_t u = 0; u < dk; u += VL) {
            const vf k = vf_load(r->k + u), q = vf_load(r->q + u);
            const vf e = load_record(s, one, u), f = load_record(s, two, u);
            a = vf_fma(e, k, a), b = vf_fma(e, q, b);
            c = vf_fma(f, k, c), d = vf_fma(f, q, d);
        }
        float sum[4];
        vf_sum4(a, b, c, d, sum);
        of->k[i] = age[i] * sum[0], of->q[i] = age[i] * sum[1];
        if (i + 1 == n) break;
        of->k[i + 1] = age[i + 1] * sum[2], of->q[i + 1] = age[i + 1] * sum[3];
    }
    return total;
}

/* KDA: every channel of a key has its own age. The totals are left in r->suffix. */
static void read_aged_keys(const ebb_state_view *s, int32_t slot, int32_t head, int32_t key_head, int64_t base,
                           int64_t pos, const float *g, const scratch *r, shares *of) {
    const int32_t dk = s->layer->key_dim;
    memcpy(r->suffix, g, (size_t)dk * sizeof *g);
    for (int32_t i = 0; i < pos - base; i++) {
        const void *k = key_record(s, slot, key_head, pos - 1 - i);
        const float *gt = decay_record(s, slot, head, pos - 1 - i);
        vf a = vf_zero(), b = vf_zero();
        for (int32_t u = 0; u < dk; u += VL) {
            const vf sum = vf_load(r->suffix + u), e = vf_mul(load_record(s, k, u), vf_exp(sum));
            vf_store(r->suffix + u, vf_add(sum, vf_load(gt + u)));
            a = vf_fma(e, vf_load(r->k + u), a);
            b = vf_fma(e, vf_load(r->q + u), b);
        }
        of->k[i] = vf_sum(a), of->q[i] = vf_sum(b);
    }
}

/* P = sum of->k d, Z = sum of->q d over n vectors of values from `at`. */
INLINE void read_values(int n, const ebb_state_view *s, int32_t slot, int32_t head, int64_t base, int64_t pos,
                        int32_t at, const shares *of, const scratch *r) {
    const size_t dv = (size_t)s->layer->value_dim, bytes = dv * (s->record_type == EBB_FP32 ? 4 : 2);
    vf p[ACROSS], z[ACROSS];
    for (int b = 0; b < n; b++) p[b] = z[b] = vf_zero();
    for (int32_t i = 0; i < pos - base; i++) {
        const void *d = delta_record(s, slot, head, pos - 1 - i);
        const vf k = vf_set1(of->k[i]), q = vf_set1(of->q[i]);
        if (r->ahead) fetch((const uint8_t *)d + bytes + (size_t)at * bytes / dv, (size_t)n * VL * bytes / dv);
        for (int b = 0; b < n; b++) {
            const vf e = load_record(s, d, at + b * VL);
            p[b] = vf_fma(k, e, p[b]);
            z[b] = vf_fma(q, e, z[b]);
        }
    }
    for (int b = 0; b < n; b++) vf_store(r->P + at + b * VL, p[b]), vf_store(r->Z + at + b * VL, z[b]);
}

/* P, Z = records base .. pos-1; x, y = e^G o k, e^G o q. */
static void read_records(const ebb_state_view *s, int32_t slot, int32_t head, int32_t key_head, int64_t base,
                         int64_t pos, const float *g, const scratch *r) {
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim;
    const bool kda = s->layer->kind == EBB_KDA;
    shares of;
    vf age = vf_zero();
    if (kda) read_aged_keys(s, slot, head, key_head, base, pos, g, r, &of);
    else age = vf_exp(vf_set1(read_keys(s, slot, head, key_head, base, pos, *g, r, &of)));
    int32_t at = 0;
    for (; at + ACROSS * VL <= dv; at += ACROSS * VL) read_values(ACROSS, s, slot, head, base, pos, at, &of, r);
    for (; at < dv; at += VL) read_values(1, s, slot, head, base, pos, at, &of, r);
    for (int32_t u = 0; u < dk; u += VL) {
        if (kda) age = vf_exp(vf_load(r->suffix + u));
        vf_store(r->x + u, vf_mul(age, vf_load(r->k + u)));
        vf_store(r->y + u, vf_mul(age, vf_load(r->q + u)));
    }
}

#endif
