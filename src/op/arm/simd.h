/* op/arm/simd.h: the vectors of op/x86/simd.h for NEON, so that its kernels are compiled a third time. Included by that
 * file only.
 *
 * A vector is a pair of NEON registers: 32 registers of 4 lanes hold what AVX2's 16 of 8 do, so that the blocking of
 * the kernels fits, codes of a few bits fill whole bytes, and sums over lanes have AVX2's trees. Comparisons with NaN
 * answer as x86 does: the second operand of max and min stays. */
#ifndef OP_ARM_SIMD_H
#define OP_ARM_SIMD_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VL 8
#define ISA(name) name##_neon
#define ISA_NAME "neon"
#define ISA_NEEDS EBB_CPU_NEON

typedef struct vf {
    float32x4_t lo, hi;
} vf;

static inline vf vf_pair(float32x4_t lo, float32x4_t hi) { return (vf){lo, hi}; }
static inline vf vf_set1(float x) { return vf_pair(vdupq_n_f32(x), vdupq_n_f32(x)); }
static inline vf vf_zero(void) { return vf_set1(0.0f); }
static inline vf vf_load(const float *p) { return vf_pair(vld1q_f32(p), vld1q_f32(p + 4)); }
static inline void vf_store(float *p, vf a) {
    vst1q_f32(p, a.lo);
    vst1q_f32(p + 4, a.hi);
}
static inline vf vf_load_n(const float *p, int n) {
    float x[VL] = {0};
    memcpy(x, p, (size_t)n * sizeof *x);
    return vf_load(x);
}
static inline void vf_store_n(float *p, vf a, int n) {
    float x[VL];
    vf_store(x, a);
    memcpy(p, x, (size_t)n * sizeof *x);
}
static inline vf vf_add(vf a, vf b) { return vf_pair(vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)); }
static inline vf vf_sub(vf a, vf b) { return vf_pair(vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)); }
static inline vf vf_mul(vf a, vf b) { return vf_pair(vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)); }
static inline vf vf_div(vf a, vf b) { return vf_pair(vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)); }
static inline vf vf_fma(vf a, vf b, vf c) { /* a b + c */
    return vf_pair(vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi));
}
static inline vf vf_max(vf a, vf b) {
    return vf_pair(vbslq_f32(vcgtq_f32(a.lo, b.lo), a.lo, b.lo), vbslq_f32(vcgtq_f32(a.hi, b.hi), a.hi, b.hi));
}
static inline vf vf_min(vf a, vf b) {
    return vf_pair(vbslq_f32(vcltq_f32(a.lo, b.lo), a.lo, b.lo), vbslq_f32(vcltq_f32(a.hi, b.hi), a.hi, b.hi));
}
static inline vf vf_round(vf a) { return vf_pair(vrndnq_f32(a.lo), vrndnq_f32(a.hi)); }
static inline vf vf_abs(vf a) { return vf_pair(vabsq_f32(a.lo), vabsq_f32(a.hi)); }

/* ---- 16-bit numbers ---- */

static inline vf vf_load_bf16(const uint16_t *p) {
    const uint16x8_t x = vld1q_u16(p);
    return vf_pair(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)),
                   vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(x), 16)));
}
static inline vf vf_of_halves(uint16x8_t x) {
    return vf_pair(vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(x))),
                   vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(x))));
}
static inline vf vf_load_fp16(const uint16_t *p) { return vf_of_halves(vld1q_u16(p)); }
static inline void vf_put_halves(uint16_t *p, vf a) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.lo)));
    vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(a.hi)));
}
static inline void vf_store_fp16(uint16_t *p, vf a) { /* saturating: see float16.h */
    vf_put_halves(p, vf_min(vf_max(a, vf_set1(-65504.0f)), vf_set1(65504.0f)));
}
static inline float half_to_float(uint16_t h) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}
static inline uint16_t float_to_half(float x) { /* to nearest even */
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
}

/* ---- codes: eight of 16 bits each, then floats ---- */

static inline vf vf_of_codes(int16x8_t x) {
    return vf_pair(vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(x))));
}
static inline vf vf_load_i8(const int8_t *p) { return vf_of_codes(vmovl_s8(vld1_s8(p))); }
static inline vf vf_load_u8(const uint8_t *p) { return vf_of_codes(vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)))); }
/* The nibbles of 4 bytes, the low one of each first. */
static inline uint8x8_t low_nibbles(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    const uint8x8_t b = vreinterpret_u8_u32(vdup_n_u32(four));
    return vzip1_u8(vand_u8(b, vdup_n_u8(15)), vshr_n_u8(b, 4));
}
static inline vf vf_load_i4(const uint8_t *p) { /* sign-extended */
    const int8x8_t x = vreinterpret_s8_u8(veor_u8(low_nibbles(p), vdup_n_u8(8)));
    return vf_of_codes(vmovl_s8(vsub_s8(x, vdup_n_s8(8))));
}
/* Codes of two planes (block_int.h): `top` has the bits above the nibble, sign-extended. */
static inline vf vf_of_planes(int16x8_t top, const uint8_t *low) {
    return vf_of_codes(vorrq_s16(vshlq_n_s16(top, 4), vreinterpretq_s16_u16(vmovl_u8(low_nibbles(low)))));
}
static inline vf vf_load_i5(const uint8_t *low, const uint8_t *high) {
    static const int16_t up[VL] = {15, 14, 13, 12, 11, 10, 9, 8};
    return vf_of_planes(vshrq_n_s16(vshlq_s16(vdupq_n_s16(*high), vld1q_s16(up)), 15), low);
}
static inline vf vf_load_i6(const uint8_t *low, const uint8_t *high) {
    static const int16_t up[VL] = {14, 12, 10, 8, 6, 4, 2, 0};
    int16_t bits;
    memcpy(&bits, high, sizeof bits);
    return vf_of_planes(vshrq_n_s16(vshlq_s16(vdupq_n_s16(bits), vld1q_s16(up)), 14), low);
}
static inline vf vf_load_i12(const uint8_t *low, const uint8_t *high) { /* 8 bytes of upper bits */
    return vf_of_planes(vmovl_s8(vld1_s8((const int8_t *)high)), low);
}
/* 8 E4M3 codes as 2^-8 of their values: their bits are those of an FP16 number whose exponent is 8 too small. */
static inline vf vf_load_fp8(const uint8_t *p) {
    const uint16x8_t x = vmovl_u8(vld1_u8(p));
    return vf_of_halves(
        vorrq_u16(vshlq_n_u16(vandq_u16(x, vdupq_n_u16(0x80)), 8), vshlq_n_u16(vandq_u16(x, vdupq_n_u16(0x7F)), 7)));
}
/* Whole numbers of -128 .. 127, and of 0 .. 255, to bytes. */
static inline int16x8_t vf_codes(vf a) {
    return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a.lo)), vqmovn_s32(vcvtnq_s32_f32(a.hi)));
}
static inline void vf_store_i8(int8_t *p, vf a) { vst1_s8(p, vqmovn_s16(vf_codes(a))); }
static inline void vf_store_u8(uint8_t *p, vf a) { vst1_u8(p, vqmovun_s16(vf_codes(a))); }

/* ---- across lanes ---- */

static inline float32x4_t low_halves(float32x4_t a, float32x4_t b) {
    return vcombine_f32(vget_low_f32(a), vget_low_f32(b));
}
static inline float32x4_t high_halves(float32x4_t a, float32x4_t b) {
    return vcombine_f32(vget_high_f32(a), vget_high_f32(b));
}
/* (0 + 2) + (1 + 3) of the lanes of each of four. */
static inline float32x4_t sums_of_4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
    const float32x4_t ab = vaddq_f32(vzip1q_f32(a, b), vzip2q_f32(a, b));
    const float32x4_t cd = vaddq_f32(vzip1q_f32(c, d), vzip2q_f32(c, d));
    return vaddq_f32(low_halves(ab, cd), high_halves(ab, cd));
}
static inline float vf_sum(vf a) { /* a fixed tree: the same bits for the same lanes */
    const float32x4_t x = vaddq_f32(a.lo, a.hi);
    const float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}
/* vf_sum of each of four, by its tree, to to[0 .. 3]. */
static inline void vf_sum4(vf a, vf b, vf c, vf d, float *to) {
    vst1q_f32(to,
              sums_of_4(vaddq_f32(a.lo, a.hi), vaddq_f32(b.lo, b.hi), vaddq_f32(c.lo, c.hi), vaddq_f32(d.lo, d.hi)));
}
/* The sums over the lanes of the first n (1 or 4) of four, halves last. */
static inline void vf_scores4(vf a, vf b, vf c, vf d, int n, float *to) {
    const float32x4_t x = vaddq_f32(sums_of_4(a.lo, b.lo, c.lo, d.lo), sums_of_4(a.hi, b.hi, c.hi, d.hi));
    if (n == 4) vst1q_f32(to, x);
    else *to = vgetq_lane_f32(x, 0);
}
static inline float vf_top(vf a) { /* the largest lane */
    const float32x4_t x = vbslq_f32(vcgtq_f32(a.lo, a.hi), a.lo, a.hi);
    const float32x2_t p = vget_low_f32(x), q = vget_high_f32(x), y = vbsl_f32(vcgt_f32(p, q), p, q);
    const float first = vget_lane_f32(y, 0), second = vget_lane_f32(y, 1);
    return first > second ? first : second;
}
/* to[t] = p [VL][4] at t */
static inline void vf_load_fours(const float *p, vf to[4]) {
    const float32x4x4_t lo = vld4q_f32(p), hi = vld4q_f32(p + 16);
    for (int t = 0; t < 4; t++) to[t] = vf_pair(lo.val[t], hi.val[t]);
}
/* y[u][j] = x[j][u] for 4 rows j and 4 columns u, then for 8 of each. */
static inline void transpose4(const float *x, ptrdiff_t x_stride, float *y, ptrdiff_t y_stride) {
    const float32x4_t a = vld1q_f32(x), b = vld1q_f32(x + x_stride), c = vld1q_f32(x + 2 * x_stride),
                      d = vld1q_f32(x + 3 * x_stride);
    const float32x4_t ab = vzip1q_f32(a, b), cd = vzip1q_f32(c, d), ab2 = vzip2q_f32(a, b), cd2 = vzip2q_f32(c, d);
    vst1q_f32(y, low_halves(ab, cd));
    vst1q_f32(y + y_stride, high_halves(ab, cd));
    vst1q_f32(y + 2 * y_stride, low_halves(ab2, cd2));
    vst1q_f32(y + 3 * y_stride, high_halves(ab2, cd2));
}
static inline void transpose8(const float *x, ptrdiff_t x_stride, float *y, ptrdiff_t y_stride) {
    for (int j = 0; j < 8; j += 4)
        for (int u = 0; u < 8; u += 4) transpose4(x + j * x_stride + u, x_stride, y + u * y_stride + j, y_stride);
}

/* ---- choices by lane ---- */

static inline float32x4_t bits_where(uint32x4_t mask, float32x4_t a) {
    return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(a)));
}
static inline vf vf_from(vf x, vf low, vf a) { /* a where x >= low, else 0 */
    return vf_pair(bits_where(vcgeq_f32(x.lo, low.lo), a.lo), bits_where(vcgeq_f32(x.hi, low.hi), a.hi));
}
static inline vf vf_number(vf a, vf b) { /* b; 0 where a is not a number */
    return vf_pair(bits_where(vceqq_f32(a.lo, a.lo), b.lo), bits_where(vceqq_f32(a.hi, a.hi), b.hi));
}
static inline vf vf_or_nan(vf a, vf b) { /* b; a where that is not a number */
    return vf_pair(vbslq_f32(vceqq_f32(a.lo, a.lo), b.lo, a.lo), vbslq_f32(vceqq_f32(a.hi, a.hi), b.hi, a.hi));
}
static inline float32x4_t quiet_nan(float32x4_t a) { /* with a's sign */
    const uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(vorrq_u32(sign, vdupq_n_u32(0x7FC00000u)));
}
/* As float_to_fp16: saturating, but NaN stays NaN, with its sign. */
static inline void vf_store_half(uint16_t *p, vf a) {
    const vf nan = vf_pair(quiet_nan(a.lo), quiet_nan(a.hi));
    const vf x = vf_min(vf_max(a, vf_set1(-65504.0f)), vf_set1(65504.0f));
    vf_put_halves(
        p, vf_pair(vbslq_f32(vceqq_f32(a.lo, a.lo), x.lo, nan.lo), vbslq_f32(vceqq_f32(a.hi, a.hi), x.hi, nan.hi)));
}
static inline float32x4_t pow2_of(float32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
}
static inline vf vf_pow2(vf n) { return vf_pair(pow2_of(n.lo), pow2_of(n.hi)); } /* n whole, -126 .. 127 */

/* x [4] <- H x factor, H of 32 values, by hadamard.h's butterflies. */
static inline float32x4_t butterfly4(float32x4_t x) {
    static const uint32_t one[4] = {0, 0x80000000u, 0, 0x80000000u}, two[4] = {0, 0, 0x80000000u, 0x80000000u};
    const uint32x4_t odd = vld1q_u32(one), upper = vld1q_u32(two);
    x = vaddq_f32(vrev64q_f32(x), vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), odd)));
    return vaddq_f32(vextq_f32(x, x, 2), vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), upper)));
}
static inline void vf_hadamard(vf *x, float by) {
    for (int b = 0; b < 4; b++) {
        const float32x4_t lo = butterfly4(x[b].lo), hi = butterfly4(x[b].hi);
        x[b] = vf_pair(vaddq_f32(hi, lo), vsubq_f32(lo, hi));
    }
    const vf a = vf_add(x[0], x[1]), b = vf_sub(x[0], x[1]), c = vf_add(x[2], x[3]), d = vf_sub(x[2], x[3]),
             factor = vf_set1(by);
    x[0] = vf_mul(vf_add(a, c), factor), x[1] = vf_mul(vf_add(b, d), factor);
    x[2] = vf_mul(vf_sub(a, c), factor), x[3] = vf_mul(vf_sub(b, d), factor);
}

#endif
