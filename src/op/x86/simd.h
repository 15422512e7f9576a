/* op/x86/simd.h: one spelling for 8 lanes of AVX2, 16 lanes of AVX-512 and 8 lanes of NEON (op/arm/simd.h), so that a
 * kernel is written once (NAME.h) and compiled three times (NAME_avx2.c, NAME_avx512.c, op/arm/NAME_neon.c). Included
 * by those only; x86 files are built with the matching -m flags. Masked forms touch only the first n lanes. Conversions
 * round to nearest even. max and min answer their second operand where one is NaN. */
#ifndef OP_X86_SIMD_H
#define OP_X86_SIMD_H

#if defined(__aarch64__)
#    include "op/arm/simd.h"
#else

#    include <immintrin.h>
#    include <stddef.h>
#    include <stdint.h>

#    if defined(__GNUC__) && !defined(__OPTIMIZE__)
#        pragma GCC diagnostic ignored \
            "-Wsign-conversion" /* GCC's intrinsics are macros at -O0, with such constants inside */
#    endif

#    if defined(__AVX512F__)

#        define VL 16
#        define ISA(name) name##_avx512
#        define ISA_NAME "avx512"
#        define ISA_NEEDS EBB_CPU_AVX512
typedef __m512 vf;
static inline vf vf_zero(void) { return _mm512_setzero_ps(); }
static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
static inline vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p); }
static inline void vf_store_n(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), a); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); } /* a b + c */
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline vf vf_load_fp16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline void vf_store_fp16(uint16_t *p, vf a) { /* saturating: see float16.h */
    a = vf_min(vf_max(a, vf_set1(-65504.0f)), vf_set1(65504.0f));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vf vf_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline vf vf_load_u8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* 16 four-bit codes of 8 bytes, low nibble first, sign-extended. */
static inline vf vf_load_i4(const uint8_t *p) {
    __m128i b = _mm_loadl_epi64((const __m128i *)p), lo = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
    __m128i x = _mm_unpacklo_epi8(_mm_and_si128(b, lo), _mm_and_si128(_mm_srli_epi16(b, 4), lo));
    x = _mm_sub_epi8(_mm_xor_si128(x, eight), eight);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
}
/* 16 codes of two planes (block_int.h): 8 bytes of low nibbles, 4 or 2 bytes of the bits above. Those are shifted to
 * the top of their lanes, so that the arithmetic shift back is also the sign. */
static inline __m512i low_nibbles(const uint8_t *p) {
    __m128i b = _mm_loadl_epi64((const __m128i *)p);
    b = _mm_and_si128(_mm_unpacklo_epi8(b, _mm_srli_epi16(b, 4)), _mm_set1_epi8(15));
    return _mm512_cvtepu8_epi32(b);
}
static inline vf vf_load_i6(const uint8_t *low, const uint8_t *high) {
    int32_t bits;
    __builtin_memcpy(&bits, high, 4);
    const __m512i up = _mm512_setr_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512i top = _mm512_srai_epi32(_mm512_sllv_epi32(_mm512_set1_epi32(bits), up), 30);
    return _mm512_cvtepi32_ps(_mm512_or_si512(_mm512_slli_epi32(top, 4), low_nibbles(low)));
}
static inline vf vf_load_i12(const uint8_t *low, const uint8_t *high) { /* 16 bytes of upper bits */
    __m512i top = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)high));
    return _mm512_cvtepi32_ps(_mm512_or_si512(_mm512_slli_epi32(top, 4), low_nibbles(low)));
}
static inline vf vf_load_i5(const uint8_t *low, const uint8_t *high) {
    uint16_t bits;
    __builtin_memcpy(&bits, high, 2);
    const __m512i up = _mm512_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16);
    __m512i top = _mm512_srai_epi32(_mm512_sllv_epi32(_mm512_set1_epi32(bits), up), 31);
    return _mm512_cvtepi32_ps(_mm512_or_si512(_mm512_slli_epi32(top, 4), low_nibbles(low)));
}
/* 16 E4M3 codes as 2^-8 of their values: their bits are those of an FP16 number whose exponent is 8 too small. */
static inline vf vf_load_fp8(const uint8_t *p) {
    __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    x = _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi16(INT16_MIN)),
                        _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(0x3F80)));
    return _mm512_cvtph_ps(x);
}
static inline float vf_sum(vf a) {
    return _mm512_reduce_add_ps(a);
} /* a fixed tree: the same bits for the same lanes */
static inline vf vf_pow2(vf n) { return _mm512_scalef_ps(vf_set1(1.0f), n); } /* n whole, -126 .. 127 */
static inline float vf_top(vf a) { return _mm512_reduce_max_ps(a); }          /* the largest lane */
static inline vf vf_from(vf x, vf low, vf a) {                                /* a where x >= low, else 0 */
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_GE_OQ), a);
}
static inline vf vf_or_nan(vf a, vf b) { /* b; NaN where a is */
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}
/* The sums over the lanes of the first n (1 or 4) of four, all by one tree, to to[0 .. n - 1]. */
static inline void vf_scores4(vf a, vf b, vf c, vf d, int n, float *to) {
    const vf ab = vf_add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const vf cd = vf_add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const vf wide = vf_add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
    const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(wide), _mm512_extractf32x8_ps(wide, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    if (n == 4) _mm_storeu_ps(to, four);
    else _mm_store_ss(to, four);
}
#        define unpack_lo _mm512_unpacklo_ps
#        define unpack_hi _mm512_unpackhi_ps
#        define shuffle _mm512_shuffle_ps
static inline vf four_apart(const float *p) { /* four floats at p, p + 16, ... side by side */
    vf a = _mm512_castps128_ps512(_mm_loadu_ps(p));
    a = _mm512_insertf32x4(a, _mm_loadu_ps(p + 16), 1);
    a = _mm512_insertf32x4(a, _mm_loadu_ps(p + 32), 2);
    return _mm512_insertf32x4(a, _mm_loadu_ps(p + 48), 3);
}

#    else

#        define VL 8
#        define ISA(name) name##_avx2
#        define ISA_NAME "avx2"
#        define ISA_NEEDS EBB_CPU_AVX2
typedef __m256 vf;
static inline __m256i lanes_below(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vf_zero(void) { return _mm256_setzero_ps(); }
static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
static inline vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, lanes_below(n)); }
static inline void vf_store_n(float *p, vf a, int n) { _mm256_maskstore_ps(p, lanes_below(n), a); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); } /* a b + c */
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vf vf_load_fp16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline void vf_store_fp16(uint16_t *p, vf a) { /* saturating: see float16.h */
    a = vf_min(vf_max(a, vf_set1(-65504.0f)), vf_set1(65504.0f));
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vf vf_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline vf vf_load_u8(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
/* 8 four-bit codes of 4 bytes, low nibble first, sign-extended. */
static inline vf vf_load_i4(const uint8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    __m128i b = _mm_cvtsi32_si128(four), lo = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
    __m128i x = _mm_unpacklo_epi8(_mm_and_si128(b, lo), _mm_and_si128(_mm_srli_epi16(b, 4), lo));
    x = _mm_sub_epi8(_mm_xor_si128(x, eight), eight);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
}
/* 8 codes of two planes (block_int.h): 4 bytes of low nibbles, 2 bytes or 1 of the bits above. Those are shifted to the
 * top of their lanes, so that the arithmetic shift back is also the sign. */
static inline __m256i low_nibbles(const uint8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    __m128i b = _mm_cvtsi32_si128(four);
    b = _mm_and_si128(_mm_unpacklo_epi8(b, _mm_srli_epi16(b, 4)), _mm_set1_epi8(15));
    return _mm256_cvtepu8_epi32(b);
}
static inline vf vf_load_i6(const uint8_t *low, const uint8_t *high) {
    uint16_t bits;
    __builtin_memcpy(&bits, high, 2);
    const __m256i up = _mm256_setr_epi32(30, 28, 26, 24, 22, 20, 18, 16);
    __m256i top = _mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(bits), up), 30);
    return _mm256_cvtepi32_ps(_mm256_or_si256(_mm256_slli_epi32(top, 4), low_nibbles(low)));
}
static inline vf vf_load_i12(const uint8_t *low, const uint8_t *high) { /* 8 bytes of upper bits */
    __m256i top = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)high));
    return _mm256_cvtepi32_ps(_mm256_or_si256(_mm256_slli_epi32(top, 4), low_nibbles(low)));
}
static inline vf vf_load_i5(const uint8_t *low, const uint8_t *high) {
    const __m256i up = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    __m256i top = _mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(*high), up), 31);
    return _mm256_cvtepi32_ps(_mm256_or_si256(_mm256_slli_epi32(top, 4), low_nibbles(low)));
}
/* 8 E4M3 codes as 2^-8 of their values: their bits are those of an FP16 number whose exponent is 8 too small. */
static inline vf vf_load_fp8(const uint8_t *p) {
    __m128i x = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
    x = _mm_or_si128(_mm_and_si128(x, _mm_set1_epi16(INT16_MIN)),
                     _mm_and_si128(_mm_slli_epi16(x, 7), _mm_set1_epi16(0x3F80)));
    return _mm256_cvtph_ps(x);
}
static inline float vf_sum(vf a) { /* a fixed tree: the same bits for the same lanes */
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
static inline vf vf_pow2(vf n) { /* n whole, -126 .. 127 */
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline float vf_top(vf a) { /* the largest lane */
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
static inline vf vf_from(vf x, vf low, vf a) { /* a where x >= low, else 0 */
    return _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_GE_OQ), a);
}
static inline vf vf_or_nan(vf a, vf b) { return _mm256_or_ps(b, _mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
static inline void vf_scores4(vf a, vf b, vf c, vf d, int n, float *to) {
    const vf ab = vf_add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const vf cd = vf_add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const vf x = vf_add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    if (n == 4) _mm_storeu_ps(to, four);
    else _mm_store_ss(to, four);
}
#        define unpack_lo _mm256_unpacklo_ps
#        define unpack_hi _mm256_unpackhi_ps
#        define shuffle _mm256_shuffle_ps
static inline vf four_apart(const float *p) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 16), 1);
}

#    endif

static inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
static inline uint16_t float_to_half(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }

/* to[t] = p [VL][4] at t: a 4 x 4 transpose in each 128-bit lane. */
static inline void vf_load_fours(const float *p, vf to[4]) {
    const vf k = four_apart(p), l = four_apart(p + 4), m = four_apart(p + 8), n = four_apart(p + 12);
    const vf a = unpack_lo(k, l), b = unpack_hi(k, l), c = unpack_lo(m, n), d = unpack_hi(m, n);
    to[0] = shuffle(a, c, 0x44);
    to[1] = shuffle(a, c, 0xEE);
    to[2] = shuffle(b, d, 0x44);
    to[3] = shuffle(b, d, 0xEE);
}
#    undef unpack_lo
#    undef unpack_hi
#    undef shuffle

static inline __m256 pair_lo(__m256 a, __m256 b) {
    return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
static inline __m256 pair_hi(__m256 a, __m256 b) {
    return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}

/* y[u][j] = x[j][u] for 8 rows j and 8 columns u. */
static inline void transpose8(const float *x, ptrdiff_t x_stride, float *y, ptrdiff_t y_stride) {
    __m256 r[8], s[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(x + i * x_stride);
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = pair_lo(s[i], s[i + 2]);
        r[i + 1] = pair_hi(s[i], s[i + 2]);
        r[i + 2] = pair_lo(s[i + 1], s[i + 3]);
        r[i + 3] = pair_hi(s[i + 1], s[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(y + i * y_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(y + (i + 4) * y_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

#endif

/* e^x, relative error below 2e-7; 0 below -87, e^88 above 88. */
static inline vf vf_exp(vf x) {
    vf low = vf_set1(-87.0f);
    vf y = vf_min(vf_max(x, low), vf_set1(88.0f));
    vf n = vf_round(vf_mul(y, vf_set1(1.44269504088896f)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), y); /* ln 2 in two parts */
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(vf_mul(p, r), r, vf_add(r, vf_set1(1.0f)));
    p = vf_mul(p, vf_pow2(n));
    return vf_from(x, low, p);
}

#endif
