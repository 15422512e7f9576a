/* op/x86/delta_scratch.h: what the parts of the delta row share: how a store is read, the scratch of a worker, and
 * vectors of records. Part of
 * op/x86/delta.h, which is compiled once for each width. */
#ifndef OP_X86_DELTA_SCRATCH_H
#define OP_X86_DELTA_SCRATCH_H

#include "op/rows.h"
#include "op/x86/simd.h"
#include "state/block.h"
#include "state/damp.h"
#include "state/leap.h"
#include "state/records.h"

#include <math.h>

enum { GROUP_VECTORS = BLOCK_GROUP / VL };

#define INLINE static inline __attribute__((always_inline)) /* called with constants, one copy for each */

extern const ebb_state_codec codec_block, codec_leap, codec_mixed, codec_damp, codec_reorder;

/* How codes are widened, and whose scales they have. The first six as BLOCK_FORMATS, with groups of 32 along the row
 * where there are any; the next five as LEAP_BITS, integers with a scale per column or none. */
typedef enum reader {
    READ_FP32,
    READ_FP16,
    READ_BF16,
    READ_FP8,
    READ_INT8,
    READ_INT4,
    READ_LEAP4,
    READ_LEAP5,
    READ_LEAP6,
    READ_LEAP8,
    READ_LEAP12,
    READ_LEAP_MIX, /* of a head one of these */
    READ_DAMP,     /* 16-bit rows, then integers */
    READ_TILE
} reader;

/* Scratch of one worker. */
typedef struct scratch {
    float *tile, *tmp, *k, *q, *x, *y, *P, *Z, *suffix, *decay, *coef, *rows;
    uint8_t *packed[2]; /* images of boundaries that a step crosses but has not committed */
    ptrdiff_t ahead;    /* from an image to that of the head which this worker does next; 0: that is not known */
} scratch;

static inline void fetch(const void *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const uint8_t *)at + i, 0, 2); /* second cache */
}

static size_t carve(const ebb_state_view *s, uint8_t *at, scratch *r) {
    const size_t dk = (size_t)s->layer->key_dim, dv = (size_t)s->layer->value_dim, p = (size_t)s->window;
    const size_t floats[] = {dk * dv, s->scratch, dk, dk, dk, dk, dv, dv, dk, dk, p * dk, p * dv};
    float **place[] = {&r->tile, &r->tmp, &r->k,      &r->q,     &r->x,    &r->y,
                       &r->P,    &r->Z,   &r->suffix, &r->decay, &r->coef, &r->rows};
    size_t used = 0;
    for (int i = 0; i < COUNT(floats); i++) {
        if (at) *place[i] = (float *)(void *)(at + used);
        used += align_up(floats[i] * sizeof(float), 64);
    }
    for (int i = 0; i < 2; i++) {
        if (at) r->packed[i] = at + used;
        used += align_up(s->packed_head, 64);
    }
    return used;
}

/* ---- vectors ---- */

static inline vf load_record(const ebb_state_view *s, const void *record, int32_t i) {
    return s->record_type == EBB_FP32 ? vf_load((const float *)record + i) : vf_load_fp16((const uint16_t *)record + i);
}

static inline void store_record(const ebb_state_view *s, void *record, int32_t i, vf a) {
    if (s->record_type == EBB_FP32) vf_store((float *)record + i, a);
    else vf_store_fp16((uint16_t *)record + i, a);
}

static inline float dot(const float *a, const float *b, int32_t n) {
    vf sum = vf_zero();
    for (int32_t i = 0; i < n; i += VL) sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
    return vf_sum(sum);
}

#if defined(__aarch64__)
static inline void vf_hadamard32(vf *x) { vf_hadamard(x, hadamard_factor(32)); }
#elif VL == 16
static inline vf vf_abs(vf a) { return _mm512_abs_ps(a); }
static inline vf vf_number(vf a, vf b) { /* b; 0 where a is not a number */
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, a, _CMP_ORD_Q), b);
}
static inline vf vf_minus(vf a, __mmask16 lanes) { /* with the other sign in those lanes */
    return _mm512_mask_xor_ps(a, lanes, a, vf_set1(-0.0f));
}
static inline vf vf_quiet(vf a, vf b) { /* b; where a is not a number, that, quiet and with its sign */
    const __m512i nan = _mm512_or_si512(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN)),
                                        _mm512_set1_epi32(0x7FC00000));
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_castsi512_ps(nan));
}
static inline void vf_store_half(uint16_t *p, vf a) { /* as float_to_fp16 */
    const vf x = vf_quiet(a, vf_min(vf_max(a, vf_set1(-65504.0f)), vf_set1(65504.0f)));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* Whole numbers of -128 .. 127 to bytes. */
static inline void vf_store_i8(int8_t *p, vf a) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
static inline void vf_store_u8(uint8_t *p, vf a) { /* whole numbers of 0 .. 255 */
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
/* x <- H x / sqrt(32), by hadamard.h's butterflies. */
static inline void vf_hadamard32(vf *x) {
    for (int b = 0; b < 2; b++) {
        x[b] = vf_add(_mm512_permute_ps(x[b], 0xB1), vf_minus(x[b], 0xAAAA));
        x[b] = vf_add(_mm512_permute_ps(x[b], 0x4E), vf_minus(x[b], 0xCCCC));
        x[b] = vf_add(_mm512_shuffle_f32x4(x[b], x[b], 0xB1), vf_minus(x[b], 0xF0F0));
        x[b] = vf_add(_mm512_shuffle_f32x4(x[b], x[b], 0x4E), vf_minus(x[b], 0xFF00));
    }
    const vf factor = vf_set1(hadamard_factor(32)), sum = vf_add(x[0], x[1]), difference = vf_sub(x[0], x[1]);
    x[0] = vf_mul(sum, factor), x[1] = vf_mul(difference, factor);
}
/* vf_sum of each of four, by its tree, to to[0 .. 3]. */
static inline void vf_sum4(vf a, vf b, vf c, vf d, float *to) {
    const vf ab = vf_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    const vf cd = vf_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    vf x = vf_add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    x = vf_add(x, _mm512_permute_ps(x, 0x4E));
    x = vf_add(x, _mm512_permute_ps(x, 0xB1));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, x)));
}
#else
static inline vf vf_abs(vf a) { return _mm256_andnot_ps(vf_set1(-0.0f), a); }
static inline vf vf_number(vf a, vf b) { return _mm256_and_ps(b, _mm256_cmp_ps(a, a, _CMP_ORD_Q)); }
static inline vf vf_quiet(vf a, vf b) {
    const vf nan = _mm256_or_ps(_mm256_and_ps(a, vf_set1(-0.0f)), _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)));
    return _mm256_blendv_ps(b, nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
static inline void vf_store_half(uint16_t *p, vf a) {
    const vf x = vf_quiet(a, vf_min(vf_max(a, vf_set1(-65504.0f)), vf_set1(65504.0f)));
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void vf_store_i8(int8_t *p, vf a) {
    const __m256i x = _mm256_cvtps_epi32(a);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(half, half));
}
static inline void vf_store_u8(uint8_t *p, vf a) {
    const __m256i x = _mm256_cvtps_epi32(a);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(half, half));
}
static inline void vf_hadamard32(vf *x) {
    const vf s = vf_set1(-0.0f), o = vf_zero(), one = _mm256_blend_ps(o, s, 0xAA), two = _mm256_blend_ps(o, s, 0xCC),
             four = _mm256_blend_ps(o, s, 0xF0), factor = vf_set1(hadamard_factor(32));
    for (int b = 0; b < 4; b++) {
        x[b] = vf_add(_mm256_permute_ps(x[b], 0xB1), _mm256_xor_ps(x[b], one));
        x[b] = vf_add(_mm256_permute_ps(x[b], 0x4E), _mm256_xor_ps(x[b], two));
        x[b] = vf_add(_mm256_permute2f128_ps(x[b], x[b], 1), _mm256_xor_ps(x[b], four));
    }
    const vf a = vf_add(x[0], x[1]), b = vf_sub(x[0], x[1]), c = vf_add(x[2], x[3]), d = vf_sub(x[2], x[3]);
    x[0] = vf_mul(vf_add(a, c), factor), x[1] = vf_mul(vf_add(b, d), factor);
    x[2] = vf_mul(vf_sub(a, c), factor), x[3] = vf_mul(vf_sub(b, d), factor);
}
static inline void vf_sum4(vf a, vf b, vf c, vf d, float *to) {
    const vf ab = vf_add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    const vf cd = vf_add(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    vf x = vf_add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE)); /* a c, and b d above */
    x = vf_add(x, _mm256_permute_ps(x, 0xB1));
    const __m128 ac = _mm256_castps256_ps128(x), bd = _mm256_extractf128_ps(x, 1);
    _mm_storeu_ps(to, _mm_movelh_ps(_mm_unpacklo_ps(ac, bd), _mm_unpackhi_ps(ac, bd)));
}
#endif

#endif
