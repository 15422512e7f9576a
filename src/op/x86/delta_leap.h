/* op/x86/delta_leap.h: reads the images of codec_leap and codec_mixed. Part of op/x86/delta.h. */
#ifndef OP_X86_DELTA_LEAP_H
#define OP_X86_DELTA_LEAP_H

#include "op/x86/delta_codes.h"

static inline bool is_leap_codec(const ebb_state_view *s) {
    return s->codec == &codec_leap || s->codec == &codec_mixed;
}

static inline leap_shape leap_of(const ebb_state_view *s, int32_t head) {
    const ebb_head h = head_of(s, head);
    return leap_shape_of(s->layer, s->codec == &codec_mixed ? leap_mix_form(&h) : leap_form_of(s->param));
}

static inline reader leap_reader(int32_t bits) {
    return bits == 12  ? READ_LEAP12
           : bits == 8 ? READ_LEAP8
           : bits == 6 ? READ_LEAP6
           : bits == 5 ? READ_LEAP5
                       : READ_LEAP4;
}

/* P, Z += (diag(gamma) U^T W)^T [x y]. */
static void read_compensators(const leap_shape *p, const uint8_t *packed, const float *x, const float *y, float *P,
                              float *Z) {
    const uint16_t *U = (const uint16_t *)(const void *)(packed + p->u_at),
                   *W = (const uint16_t *)(const void *)(packed + p->w_at);
    const float *gamma = (const float *)(const void *)(packed + p->gamma_at);
    for (int32_t m = 0; m < p->r; m++, U += p->rows, W += p->columns) {
        vf a = vf_zero(), b = vf_zero();
        for (int32_t u = 0; u < p->rows; u += VL) {
            vf e = vf_load_fp16(U + u);
            if (p->gammas) e = vf_mul(e, p->gammas > 1 ? vf_load(gamma + u) : vf_set1(*gamma));
            a = vf_fma(e, vf_load(x + u), a);
            b = vf_fma(e, vf_load(y + u), b);
        }
        a = vf_set1(vf_sum(a)), b = vf_set1(vf_sum(b));
        for (int32_t v = 0; v < p->columns; v += VL) {
            vf e = vf_load_fp16(W + v);
            vf_store(P + v, vf_fma(a, e, vf_load(P + v)));
            vf_store(Z + v, vf_fma(b, e, vf_load(Z + v)));
        }
    }
}

/* The compensators, then the residual: x and y are rotated or multiplied by c in place. */
static void read_leap(const ebb_state_view *s, int32_t head, const uint8_t *packed, const scratch *r) {
    const leap_shape p = leap_of(s, head);
    const float *c = (const float *)(const void *)(packed + p.c_at),
                *scales = (const float *)(const void *)(packed + p.s_at);
    if (r->ahead) fetch(packed + r->ahead + p.c_at, p.bytes - p.c_at);
    read_compensators(&p, packed, r->x, r->y, r->P, r->Z);
    if (p.form.rotate) leap_rotate_key(&p, r->x), leap_rotate_key(&p, r->y);
    for (int32_t u = 0; !p.form.rotate && u < p.rows; u += VL) {
        vf_store(r->x + u, vf_mul(vf_load(c + u), vf_load(r->x + u)));
        vf_store(r->y + u, vf_mul(vf_load(c + u), vf_load(r->y + u)));
    }
    read_codes(leap_reader(p.form.bits), packed, packed + p.high_at, p.rows, p.columns, r->x, r->y, scales, r->P, r->Z);
}

#endif
