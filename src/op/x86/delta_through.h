/* op/x86/delta_through.h: the step over an FP32 state that is written at every token: the last token's record is added
 * to S and S is read by this one in the same pass, so that it comes from memory once. Part of op/x86/delta.h. The bits
 * are those of a fold and a read. */
#ifndef OP_X86_DELTA_THROUGH_H
#define OP_X86_DELTA_THROUGH_H

#include "op/x86/delta_records.h"

/* A store that holds one unfolded record of one token at most, and this is the step that folds it. */
static bool is_through(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, int64_t n) {
    if (VL != 16 || s->layer->value_dim != REGISTERS * VL) return false;
    return s->window == 1 && n == 1 && pos > 0 && reader_of(s) == READ_FP32 && *base_of(s, slot, head) == pos - 1;
}

/* As read_short, of delta_codes.h, with S = a S + k d on the way. */
INLINE void through_rows(int32_t dk, float *S, const scratch *r) {
    vf p[REGISTERS], z[REGISTERS];
    for (int b = 0; b < REGISTERS; b++) p[b] = z[b] = vf_zero();
    for (int32_t u = 0; u < dk; u++, S += REGISTERS * VL) {
        const vf a = vf_set1(r->decay[u]), k = vf_set1(r->coef[u]), x = vf_set1(r->x[u]), y = vf_set1(r->y[u]);
        for (int b = 0; b < REGISTERS; b++) {
            const vf e = vf_fma(k, vf_load(r->rows + b * VL), vf_mul(a, vf_load(S + b * VL)));
            vf_store(S + b * VL, e);
            p[b] = vf_fma(e, x, p[b]);
            z[b] = vf_fma(e, y, z[b]);
        }
    }
    for (int b = 0; b < REGISTERS; b++) vf_store(r->P + b * VL, p[b]), vf_store(r->Z + b * VL, z[b]);
}

/* P = S^T x and Z = S^T y of the state with the record of pos - 1, which is in the image afterwards. */
static void read_through(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const scratch *r) {
    float *S = (float *)(void *)packed_of(s, slot, head);
    gather_records(s, slot, head, pos - 1, 1, r);
    through_rows(s->layer->key_dim, S, r);
    *base_of(s, slot, head) = pos;
}

#endif
