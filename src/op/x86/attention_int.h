/* op/x86/attention_int.h: scores of queries in INT8, which prefill modes have, for AVX2, AVX-512 and AVX-512 with VNNI:
 * blocks of ATTN_BLOCK keys as bytes, laid side by side once for all rows of a tile, and their dot products. All
 * products and sums are exact, so that their order, and the instructions, change no bit. Included by attention_words.h.
 *
 * A dot product needs unsigned bytes on one side: a code c is kept as c + offset and the sum of the other side times
 * the offset is taken away. */
#ifndef OP_X86_ATTENTION_INT_H
#define OP_X86_ATTENTION_INT_H

#include "kv/token.h"

enum { DIGIT_CODES, DIGIT_ROWS, DIGITS }; /* a query's dims in the order of the codes, or in their own */

#if VL == 16
typedef __m512i vi;
#    define VI(op) _mm512_##op
#    define VI_ALL(op) _mm512_##op##_si512
static inline vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
static inline void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
static inline vi vi_right(vi a, int n) { return _mm512_srli_epi16(a, n); }
#else
typedef __m256i vi;
#    define VI(op) _mm256_##op
#    define VI_ALL(op) _mm256_##op##_si256
static inline vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void vi_store(void *p, vi a) { _mm256_storeu_si256((__m256i *)p, a); }
static inline vi vi_right(vi a, int n) { return _mm256_srli_epi16(a, n); }
#endif

/* sum + the four products of unsigned bytes u and signed bytes s of each double word. */
static inline vi vi_dot(vi sum, vi u, vi s) {
#if VL == 16 && defined(__AVX512VNNI__)
    /* The intrinsic costs GCC a copy of the sum for most products. */
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s));
    return sum;
#else /* halves of u, so that no sum of two products leaves 16 bits */
    const vi low = VI(maddubs_epi16)(VI_ALL(and)(u, VI(set1_epi8)(15)), s),
             high = VI(maddubs_epi16)(VI_ALL(and)(vi_right(u, 4), VI(set1_epi8)(15)), s);
    return VI(add_epi32)(
        sum, VI(add_epi32)(VI(madd_epi16)(low, VI(set1_epi16)(1)), VI(madd_epi16)(high, VI(set1_epi16)(16))));
#endif
}

static inline vi vi_four(const void *p) { /* the same four bytes in every double word */
    int32_t four;
    memcpy(&four, p, sizeof four);
    return VI(set1_epi32)(four);
}

/* ---- codes as bytes ---- */

/* Codes of a part as bytes. Byte c of a token's codes holds those of `planes` dims, planes c .. planes c + planes - 1,
 * which go to as many planes of `cols` columns; `pad` columns apart. A byte u says u - offset units. */
typedef struct code_form {
    int32_t bits, planes, cols, pad, offset;
    bool levels;
    uint8_t flip; /* makes two's complement unsigned */
} code_form;

static code_form form_of(const double *param, int32_t role, int32_t dims) {
    code_form f = {.bits = token_bits(param, role)};
    f.levels = token_levels(param, f.bits);
    f.planes = 8 / f.bits;
    f.cols = dims / f.planes;
    f.pad = (int32_t)align_up((size_t)f.cols, 16);
    f.offset = f.bits == 8 ? 128 : f.bits == 4 ? 8 : f.levels ? 3 : 2;
    f.flip = f.bits == 8 ? 0x80 : f.bits == 4 ? 0x88 : 0xAA;
    return f;
}

/* The codes of one plane out of bytes that are flipped. */
ALWAYS vi plane_bytes(vi x, int bits, bool levels, int plane) {
    if (bits == 8) return x;
    const vi u = VI_ALL(and)(vi_right(x, plane * bits), VI(set1_epi8)((char)((1 << bits) - 1)));
    return levels ? VI(add_epi8)(u, u) : u;
}

/* ---- keys side by side ---- */

/* a[i] = double word i of each of VL rows. */
ALWAYS void transpose_doubles(vi a[VL]) {
    vi b[VL];
    UNROLL for (int i = 0; i < VL; i += 2) {
        b[i] = VI(unpacklo_epi32)(a[i], a[i + 1]);
        b[i + 1] = VI(unpackhi_epi32)(a[i], a[i + 1]);
    }
    UNROLL for (int i = 0; i < VL; i += 4) UNROLL for (int j = 0; j < 2; j++) {
        a[i + 2 * j] = VI(unpacklo_epi64)(b[i + j], b[i + j + 2]);
        a[i + 2 * j + 1] = VI(unpackhi_epi64)(b[i + j], b[i + j + 2]);
    }
#if VL == 16
    UNROLL for (int j = 0; j < 4; j++) {
        b[j] = _mm512_shuffle_i32x4(a[j], a[j + 4], 0x88);
        b[j + 4] = _mm512_shuffle_i32x4(a[j], a[j + 4], 0xdd);
        b[j + 8] = _mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0x88);
        b[j + 12] = _mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0xdd);
    }
    UNROLL for (int j = 0; j < 4; j++) {
        a[j] = _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88);
        a[j + 8] = _mm512_shuffle_i32x4(b[j], b[j + 8], 0xdd);
        a[j + 4] = _mm512_shuffle_i32x4(b[j + 4], b[j + 12], 0x88);
        a[j + 12] = _mm512_shuffle_i32x4(b[j + 4], b[j + 12], 0xdd);
    }
#else
    UNROLL for (int j = 0; j < 4; j++) {
        b[j] = _mm256_permute2x128_si256(a[j], a[j + 4], 0x20);
        b[j + 4] = _mm256_permute2x128_si256(a[j], a[j + 4], 0x31);
    }
    UNROLL for (int j = 0; j < VL; j++) a[j] = b[j];
#endif
}

/* Rows of codes of all keys of a block, `step` bytes apart, to [planes][pad / 4][ATTN_BLOCK][4]. Reads up to a vector
 * behind a row: in a page, scales follow the codes. Asks for the rows of the next block. */
ALWAYS void lay_form(const uint8_t *rows, int64_t step, const code_form *f, int bits, bool levels, uint8_t *to) {
    const vi flip = VI(set1_epi8)((char)f->flip);
    for (int64_t j = 0; j < ATTN_BLOCK; j += VL, rows += VL * step)
        for (int32_t c = 0; c < f->cols; c += 4 * VL) {
            vi a[VL];
            UNROLL for (int i = 0; i < VL; i++) {
                a[i] = VI_ALL(xor)(vi_load(rows + i * step + c), flip);
                __builtin_prefetch(rows + (ATTN_BLOCK + i) * step + c);
            }
            transpose_doubles(a);
            for (int plane = 0; plane < 8 / bits; plane++) {
                uint8_t *at = to + ((plane * f->pad + c) / 4 * ATTN_BLOCK + j) * 4;
                UNROLL for (int i = 0; i < VL; i++) if (c + 4 * i < f->pad)
                    vi_store(at + i * ATTN_BLOCK * 4, plane_bytes(a[i], bits, levels, plane));
            }
        }
}

static void lay_keys(const uint8_t *rows, int64_t step, const code_form *f, uint8_t *to) {
    if (f->bits == 8) lay_form(rows, step, f, 8, false, to);
    else if (f->bits == 4) lay_form(rows, step, f, 4, false, to);
    else if (f->levels) lay_form(rows, step, f, 2, true, to);
    else lay_form(rows, step, f, 2, false, to);
}

/* ---- scores ---- */

/* Keys of a block as whole numbers, part by part: k = (u - offset) scale, and mean of all where it is not NULL. */
typedef struct int_keys {
    bool ready;
    int32_t parts;
    code_form form[3];
    uint8_t *u[3];              /* [planes][pad / 4][ATTN_BLOCK][4] */
    float (*scale)[ATTN_BLOCK]; /* of rows */
    float *mean;
} int_keys;

/* One row's query in INT8. */
typedef struct int_query {
    const int8_t *digit; /* [DIGITS][dims] */
    int32_t sum[3];      /* over the dims of each part */
    float scale;
} int_query;

/* score[r][j ..) of VL keys, plus[j ..). */
ALWAYS void int_scores(int rows, int order, const int_keys *k, float (*scale)[ATTN_BLOCK], const float *plus,
                       int64_t dims, const int_query *q, int64_t j, float (*score)[ATTN_BLOCK]) {
    vf total[ROWS];
    UNROLL for (int r = 0; r < rows; r++) total[r] = vf_zero();
    int64_t at = 0;
    for (int32_t p = 0; p < k->parts; p++) {
        const code_form *f = &k->form[p];
        vi sum[ROWS];
        UNROLL for (int r = 0; r < rows; r++) sum[r] = VI(set1_epi32)(-f->offset * q[r].sum[p]);
        for (int32_t plane = 0; plane < f->planes; plane++) {
            const uint8_t *u = k->u[p] + (plane * f->pad / 4 * ATTN_BLOCK + j) * 4;
            for (int64_t end = at + f->cols; at < end; at += 4, u += ATTN_BLOCK * 4) {
                const vi key = vi_load(u);
                UNROLL for (int r = 0; r < rows; r++) sum[r] =
                    vi_dot(sum[r], key, vi_four(q[r].digit + order * dims + at));
            }
        }
        UNROLL for (int r = 0; r < rows; r++) total[r] =
            vf_fma(VI(cvtepi32_ps)(sum[r]), vf_load(scale[p] + j), total[r]);
    }
    UNROLL for (int r = 0; r < rows; r++)
        vf_store(score[r] + j, vf_fma(total[r], vf_set1(q[r].scale), vf_load(plus + j)));
}

#define INT_SCORES(rows)                                                                                     \
case rows:                                                                                                   \
    for (int64_t j = 0; j < ATTN_BLOCK; j += VL) int_scores(rows, order, k, scale, plus, dims, q, j, score); \
    break;

/* Unscaled scores of all keys of the block, of queries whose dims are in this order (DIGIT_*). */
static void score_int(int32_t rows, int order, const int_keys *k, float (*scale)[ATTN_BLOCK], const float *plus,
                      int64_t dims, const int_query *q, float (*score)[ATTN_BLOCK]) {
    switch (rows) {
        INT_SCORES(1)
#if ROWS == 4
        INT_SCORES(2)
        INT_SCORES(3)
    default:
        INT_SCORES(4)
#else
    default:
        INT_SCORES(2)
#endif
    }
}

#endif
