/* op/x86/gemm_widen.h: quantized panels (op/panel.h) to FP32, 32 columns at a time. Included by op/x86/gemm.h only. The
 * arithmetic is that of format/block_gguf.h, a product and, where there is a minimum, a sum, each rounded; codes become
 * floats exactly, by table where AVX-512 has one. */
#ifndef OP_X86_GEMM_WIDEN_H
#define OP_X86_GEMM_WIDEN_H

#include "op/panel.h"
#include "op/x86/simd.h"

#include <string.h>

#define WIDEN_K 32 /* a block, or the part of a _K block that has one scale (Q6_K: two) */
#define WIDEN_AHEAD 4096
#define WIDEN_INLINE static inline __attribute__((always_inline))

/* nibbles: low + the codes of rows c .. c + VL - 1 of a panel row of 16 bytes. add_bits: 16 more where a bit is set.
 * add_pairs: 16 times two bits more. */
#if VL == 16

WIDEN_INLINE vf nibbles(const uint8_t *p, int c, float low) {
    const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i i = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    if (c) i = _mm512_srli_epi32(i, 4);
    return _mm512_permutexvar_ps(i, _mm512_add_ps(codes, _mm512_set1_ps(low))); /* by the low four bits of i */
}
WIDEN_INLINE vf add_bits(vf x, const uint8_t *high, int c) {
    uint16_t bits;
    memcpy(&bits, high + c / 8, sizeof bits);
    return _mm512_mask_add_ps(x, bits, x, _mm512_set1_ps(16.0f));
}
WIDEN_INLINE vf add_pairs(vf x, const uint8_t *high, int c) {
    const __m512i shift = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512 sixteens = _mm512_setr_ps(0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48);
    int32_t bits;
    memcpy(&bits, high + c / 4, sizeof bits);
    return _mm512_add_ps(x, _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi32(bits), shift), sixteens));
}
typedef __m512i vi;
WIDEN_INLINE vi bytes_load(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
WIDEN_INLINE vi vi_and(vi a, int b) { return _mm512_and_si512(a, _mm512_set1_epi32(b)); }
WIDEN_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
WIDEN_INLINE vi vi_right(vi a, unsigned n) { return _mm512_srli_epi32(a, n); }
WIDEN_INLINE vi vi_left(vi a, unsigned n) { return _mm512_slli_epi32(a, n); }
WIDEN_INLINE vf vf_of(vi a) { return _mm512_cvtepi32_ps(a); }

#else

#    if defined(__aarch64__)

typedef struct vi {
    int32x4_t lo, hi;
} vi;
WIDEN_INLINE vi vi_pair(int32x4_t lo, int32x4_t hi) { return (vi){lo, hi}; }
WIDEN_INLINE vi bytes_load(const uint8_t *p) {
    const int16x8_t x = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)));
    return vi_pair(vmovl_s16(vget_low_s16(x)), vmovl_s16(vget_high_s16(x)));
}
WIDEN_INLINE vi vi_and(vi a, int b) {
    return vi_pair(vandq_s32(a.lo, vdupq_n_s32(b)), vandq_s32(a.hi, vdupq_n_s32(b)));
}
WIDEN_INLINE vi vi_or(vi a, vi b) { return vi_pair(vorrq_s32(a.lo, b.lo), vorrq_s32(a.hi, b.hi)); }
WIDEN_INLINE vi vi_left(vi a, int n) {
    return vi_pair(vshlq_s32(a.lo, vdupq_n_s32(n)), vshlq_s32(a.hi, vdupq_n_s32(n)));
}
WIDEN_INLINE vi vi_right(vi a, int n) { return vi_left(a, -n); } /* of numbers that are not negative */
WIDEN_INLINE vf vf_of(vi a) { return vf_pair(vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)); }
WIDEN_INLINE vf add_bits(vf x, const uint8_t *high, int c) {
    static const int32_t down[VL] = {0, -1, -2, -3, -4, -5, -6, -7};
    const int32x4_t bits = vdupq_n_s32(high[c / 8] << 4);
    const vi i = vi_pair(vshlq_s32(bits, vld1q_s32(down)), vshlq_s32(bits, vld1q_s32(down + 4)));
    return vf_add(x, vf_of(vi_and(i, 16)));
}
WIDEN_INLINE vf add_pairs(vf x, const uint8_t *high, int c) {
    static const int32_t down[VL] = {0, -2, -4, -6, -8, -10, -12, -14};
    uint16_t two;
    memcpy(&two, high + c / 4, sizeof two);
    const int32x4_t bits = vdupq_n_s32(two << 4);
    const vi i = vi_pair(vshlq_s32(bits, vld1q_s32(down)), vshlq_s32(bits, vld1q_s32(down + 4)));
    return vf_add(x, vf_of(vi_and(i, 48)));
}

#    else

typedef __m256i vi;
WIDEN_INLINE vi bytes_load(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
WIDEN_INLINE vi vi_and(vi a, int b) { return _mm256_and_si256(a, _mm256_set1_epi32(b)); }
WIDEN_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
WIDEN_INLINE vi vi_right(vi a, int n) { return _mm256_srli_epi32(a, n); }
WIDEN_INLINE vi vi_left(vi a, int n) { return _mm256_slli_epi32(a, n); }
WIDEN_INLINE vf vf_of(vi a) { return _mm256_cvtepi32_ps(a); }
WIDEN_INLINE vf add_bits(vf x, const uint8_t *high, int c) {
    const vi each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const vi bits = _mm256_and_si256(_mm256_set1_epi32(high[c / 8]), each);
    return vf_add(x, _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, each)), vf_set1(16.0f)));
}
WIDEN_INLINE vf add_pairs(vf x, const uint8_t *high, int c) {
    uint16_t bits;
    memcpy(&bits, high + c / 4, sizeof bits);
    const vi i = _mm256_srlv_epi32(_mm256_set1_epi32(bits << 4), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    return vf_add(x, vf_of(vi_and(i, 48)));
}

#    endif

WIDEN_INLINE vf nibbles(const uint8_t *p, int c, float low) {
    vi i = bytes_load(p + c % 16);
    return vf_add(vf_of(c < 16 ? vi_and(i, 15) : vi_right(i, 4)), vf_set1(low));
}

#endif

/* Codes of rows c .. c + VL - 1 at column i of a block, less what the type takes off. */
WIDEN_INLINE vf code_values(const int32_t type, const panel_block *b, int32_t i, int c) {
    const uint8_t *four = b->codes + 16 * i;
    switch (type) {
    case EBB_Q8_0:
        return vf_load_i8((const int8_t *)b->codes + EBB_PANEL * i + c);
    case EBB_Q4_0:
        return nibbles(four, c, -8);
    case EBB_Q5_0:
        return add_bits(nibbles(four, c, -16), b->high + 4 * i, c);
    case EBB_Q5_1:
    case EBB_Q5_K:
        return add_bits(nibbles(four, c, 0), b->high + 4 * i, c);
    case EBB_Q6_K:
        return add_pairs(nibbles(four, c, -32), b->high + 8 * i, c);
    default:
        return nibbles(four, c, 0);
    }
}

/* Scale and minimum of group j of rows c .. c + VL - 1; a minimum only where the type has one. */
WIDEN_INLINE void group_scale(const int32_t type, const panel_block *b, int32_t j, int c, vf *scale, vf *min) {
    const uint16_t *halves = (const uint16_t *)(const void *)b->halves + c;
    const uint8_t *s = b->scales + EBB_PANEL * j + c;
    const vf d = vf_load_fp16(halves);
    *scale = d, *min = d;
    if (type == EBB_Q4_1 || type == EBB_Q5_1) *min = vf_load_fp16(halves + EBB_PANEL);
    if (type == EBB_Q6_K) *scale = vf_mul(d, vf_load_i8((const int8_t *)s));
    if (type == EBB_Q4_K || type == EBB_Q5_K) { /* gguf_scale_min of block_gguf.h */
        vi six, low;
        if (j < 4) {
            six = vi_and(bytes_load(s), 63);
            low = vi_and(bytes_load(s + 4 * EBB_PANEL), 63);
        } else {
            const vi both = bytes_load(s + 4 * EBB_PANEL);
            six = vi_or(vi_and(both, 15), vi_left(vi_right(bytes_load(s - 4 * EBB_PANEL), 6), 4));
            low = vi_or(vi_right(both, 4), vi_left(vi_right(bytes_load(s), 6), 4));
        }
        *scale = vf_mul(d, vf_of(six));
        *min = vf_mul(vf_load_fp16(halves + EBB_PANEL), vf_of(low));
    }
}

/* Columns i .. i + WIDEN_K - 1 of the panel block at `p`. Asks, a line at a time, for what lies WIDEN_AHEAD bytes
 * behind: one row of x widens as fast as memory gives. */
WIDEN_INLINE void widen_of(const int32_t type, const uint8_t *p, int32_t i, float *out) {
    const quant_layout l = quant_layout_of(type);
    const panel_block b = panel_block_at(&l, p);
    const int32_t group = type == EBB_Q6_K ? 16 : WIDEN_K;
    for (int32_t first = 0; first < WIDEN_K; first += group)
        for (int half = 0; half < 16; half += VL) { /* rows half .. and 16 + half .., which share bytes */
            vf scale[2], min[2];
            for (int v = 0; v < 2; v++) group_scale(type, &b, (i + first) / group, half + 16 * v, &scale[v], &min[v]);
            for (int32_t k = first; k < first + group; k++) {
                if (!half) __builtin_prefetch(p + WIDEN_AHEAD + (i + k) * l.bytes * EBB_PANEL / l.values, 0, 2);
                for (int v = 0; v < 2; v++) {
                    vf x = vf_mul(scale[v], code_values(type, &b, i + k, half + 16 * v));
                    if (type == EBB_Q4_1 || type == EBB_Q5_1) x = vf_add(x, min[v]);
                    if (type == EBB_Q4_K || type == EBB_Q5_K) x = vf_sub(x, min[v]);
                    vf_store(out + k * EBB_PANEL + half + 16 * v, x);
                }
            }
        }
}

#define WIDEN(type)                                                                       \
case type:                                                                                \
    for (int64_t i = 0; i < n; i += WIDEN_K, at += WIDEN_K, out += WIDEN_K * EBB_PANEL) { \
        const int32_t values = quant_layout_of(type).values;                              \
        widen_of(type, p + at / values * block, (int32_t)(at % values), out);             \
    }                                                                                     \
    break;

/* out [n][EBB_PANEL] = columns at .. at + n - 1 of a quantized panel; both are multiples of WIDEN_K. */
static void widen_panel(int32_t type, const uint8_t *p, int64_t at, int64_t n, float *out) {
    const int64_t block = gguf_block_bytes(type) * EBB_PANEL;
    switch (type) {
        WIDEN(EBB_Q4_0)
        WIDEN(EBB_Q4_1)
        WIDEN(EBB_Q5_0)
        WIDEN(EBB_Q5_1)
        WIDEN(EBB_Q8_0)
        WIDEN(EBB_Q4_K)
        WIDEN(EBB_Q5_K)
        WIDEN(EBB_Q6_K)
    }
}

#endif
