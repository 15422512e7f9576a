/* op/x86/attention_words.h: attention over codes where queries and weights are not INT8: products of 16-bit words, read
 * straight from the rows of a page. Included by attention_mixed.h.
 *
 * A word of a row holds the codes of 16 / bits neighbouring dims, its planes. Those of 4 and 2 bits are taken without
 * sign, as c + 8 and c + 2, which costs fewer shifts; 8 or 2 times the sum of the other side is taken away. A query is
 * a whole number of 16 bits times its scale, max |q| / 32767, and the weights of a block times the scales of their
 * values are whole numbers of 15 bits times a step. Both are 30 times finer than the FP16 scale which the codes carry,
 * so nothing is lost that the store has kept; what is rounded is rounded here, for products and sums are exact and
 * their order changes no bit: 2^15 x 2^7 x 512 dims, the largest sum, stays in 31 bits.
 *
 * A key is VNNI products for each of ROWS queries and then a sum across lanes, for KEYS keys and all rows at once.
 * Values go in pairs of keys, so that a product adds both. Neither lays anything down in memory. */
#ifndef OP_X86_ATTENTION_WORDS_H
#define OP_X86_ATTENTION_WORDS_H

#include "op/x86/attention_int.h"

#define WORD_MOST 32767.0f
#define WORDS (2 * VL) /* in a vector */

/* Codes of a part as words: word w of a row holds dims w planes .. (w + 1) planes - 1. A word u stands for
 * by u + more, in half codes where there are four levels. */
typedef struct word_form {
    int32_t bits, planes, cols, pad; /* words of a row, and rounded up to a vector of them */
    int32_t by, more;
    float unit;
} word_form;

static word_form word_form_of(const double *param, int32_t role, int32_t dims) {
    word_form f = {.bits = token_bits(param, role)};
    f.by = token_levels(param, f.bits) ? 2 : 1; /* 2 c + 1 halves */
    f.more = f.bits == 8 ? 0 : f.bits == 4 ? -8 : f.by == 2 ? -3 : -2;
    f.unit = 1.0f / (float)f.by;
    f.planes = 16 / f.bits;
    f.cols = (dims + f.planes - 1) / f.planes;
    f.pad = (int32_t)align_up((size_t)f.cols, WORDS);
    return f;
}

/* One row's query: its words in the order of the codes, [pad / WORDS][planes][WORDS] for each part, 0 where a row ends.
 */
typedef struct word_query {
    const int16_t *word;
    int32_t sum[3]; /* of each part */
    float scale;
} word_query;

/* sum + the two products of words of each double word. */
static inline vi vi_pairs(vi sum, vi a, vi b) {
#if VL == 16 && defined(__AVX512VNNI__)
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); /* see vi_dot */
    return sum;
#else
    return VI(add_epi32)(sum, VI(madd_epi16)(a, b));
#endif
}

/* What plane_words takes its planes of. */
ALWAYS vi words_flipped(vi x, int bits) {
    return bits == 8 ? x : VI_ALL(xor)(x, VI(set1_epi8)((char)(bits == 4 ? 0x88 : 0xaa)));
}

ALWAYS vi plane_words(vi x, int bits, int plane) {
    if (bits == 8) return VI(srai_epi16)(plane ? x : VI(slli_epi16)(x, 8), 8);
    if (plane) x = VI(srli_epi16)(x, plane * bits);
    return plane == 16 / bits - 1 ? x : VI_ALL(and)(x, VI(set1_epi16)((short)((1 << bits) - 1)));
}

/* VL words of two rows, side by side. */
static inline vi words_of_two(const uint8_t *a, const uint8_t *b) {
#if VL == 16
    const vi order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                      20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const vi both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)a)),
                                       _mm256_loadu_si256((const __m256i *)(const void *)b), 1);
    return _mm512_permutexvar_epi16(order, both);
#else
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)a),
                  y = _mm_loadu_si128((const __m128i *)(const void *)b);
    return _mm256_set_m128i(_mm_unpackhi_epi16(x, y), _mm_unpacklo_epi16(x, y));
#endif
}

/* ---- scores ---- */

/* to[r][j .. j + 3] = the sums of the lanes of a[r * KEYS] .. a[r * KEYS + 3]. */
ALWAYS void add_lanes(int rows, const vi a[ROWS * KEYS], int64_t j, int32_t (*to)[ATTN_BLOCK]) {
    vi four[ROWS]; /* in each 128 bits, a double word a key */
    UNROLL for (int r = 0; r < ROWS; r++) {
        if (r >= rows) {
            four[r] = VI_ALL(setzero)();
            continue;
        }
        const vi *x = a + r * KEYS;
        const vi m = VI(add_epi32)(VI(unpacklo_epi32)(x[0], x[1]), VI(unpackhi_epi32)(x[0], x[1])),
                 n = VI(add_epi32)(VI(unpacklo_epi32)(x[2], x[3]), VI(unpackhi_epi32)(x[2], x[3]));
        four[r] = VI(add_epi32)(VI(unpacklo_epi64)(m, n), VI(unpackhi_epi64)(m, n));
    }
#if VL == 16
    const vi m = _mm512_add_epi32(_mm512_shuffle_i32x4(four[0], four[1], 0x88),
                                  _mm512_shuffle_i32x4(four[0], four[1], 0xdd)),
             n = _mm512_add_epi32(_mm512_shuffle_i32x4(four[2], four[3], 0x88),
                                  _mm512_shuffle_i32x4(four[2], four[3], 0xdd)),
             all = _mm512_add_epi32(_mm512_shuffle_i32x4(m, n, 0x88), _mm512_shuffle_i32x4(m, n, 0xdd));
    UNROLL for (int r = 0; r < rows; r++)
        _mm_storeu_si128((__m128i *)(void *)(to[r] + j), r == 0   ? _mm512_castsi512_si128(all)
                                                         : r == 1 ? _mm512_extracti32x4_epi32(all, 1)
                                                         : r == 2 ? _mm512_extracti32x4_epi32(all, 2)
                                                                  : _mm512_extracti32x4_epi32(all, 3));
#else
    const vi all = _mm256_add_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                                    _mm256_permute2x128_si256(four[0], four[1], 0x31));
    _mm_storeu_si128((__m128i *)(void *)(to[0] + j), _mm256_castsi256_si128(all));
    if (rows > 1) _mm_storeu_si128((__m128i *)(void *)(to[1] + j), _mm256_extracti128_si256(all, 1));
#endif
}

/* What else to ask for while a block is read: a few lines with every KEYS keys, for many at once are not fetched. */
typedef struct word_asks {
    const uint8_t *at;
    int64_t lines; /* with every KEYS keys */
} word_asks;

/* dot[r][j] = the codes of key j times the words of query r, in one part whose words begin at `at`. Reads up to a
 * vector behind a row: in a page, scales follow the codes. Asks for what is `ahead` bytes behind a row. */
ALWAYS void dot_words(int rows, int bits, const uint8_t *key, int64_t step, int64_t ahead, word_asks asks,
                      const word_form *f, const word_query *q, int64_t at, int32_t (*dot)[ATTN_BLOCK]) {
    for (int64_t j = 0; j < ATTN_BLOCK; j += KEYS, key += KEYS * step) {
        vi sum[ROWS * KEYS];
        for (int64_t i = 0; i < asks.lines; i++, asks.at += 64) ASK(asks.at);
        UNROLL for (int i = 0; i < ROWS * KEYS; i++) sum[i] = VI_ALL(setzero)();
        for (int32_t c = 0; c < f->pad; c += WORDS) {
            const int16_t *word[ROWS];
            vi x[KEYS], k[KEYS];
            UNROLL for (int r = 0; r < rows; r++) word[r] = q[r].word + at + c * (16 / bits);
            UNROLL for (int i = 0; i < KEYS; i++) {
                x[i] = words_flipped(vi_load(key + i * step + c * 2), bits);
                ASK(key + ahead + i * step + c * 2);
            }
            UNROLL for (int p = 0; p < 16 / bits; p++) {
                UNROLL for (int i = 0; i < KEYS; i++) k[i] = plane_words(x[i], bits, p);
                UNROLL for (int r = 0; r < rows; r++) {
                    const vi w = vi_load(word[r] + p * WORDS);
                    UNROLL for (int i = 0; i < KEYS; i++) sum[r * KEYS + i] = vi_pairs(sum[r * KEYS + i], k[i], w);
                }
            }
        }
        add_lanes(rows, sum, j, dot);
    }
}

#define DOT_WORDS(rows)                                                               \
case rows:                                                                            \
    if (f->bits == 8) dot_words(rows, 8, key, step, ahead, asks, f, q, at, dot);      \
    else if (f->bits == 4) dot_words(rows, 4, key, step, ahead, asks, f, q, at, dot); \
    else dot_words(rows, 2, key, step, ahead, asks, f, q, at, dot);                   \
    break;

static void dot_words_any(int32_t rows, const uint8_t *key, int64_t step, int64_t ahead, word_asks asks,
                          const word_form *f, const word_query *q, int64_t at, int32_t (*dot)[ATTN_BLOCK]) {
    switch (rows) {
        DOT_WORDS(1)
#if ROWS == 4
        DOT_WORDS(2)
        DOT_WORDS(3)
    default:
        DOT_WORDS(4)
#else
    default:
        DOT_WORDS(2)
#endif
    }
}

/* score[r] = the scores of part 0 + `plus` of each key, then += those of the others. */
static void add_scores(int32_t rows, const word_form *f, int32_t part, const word_query *q, const float *scale,
                       const float *plus, int32_t (*dot)[ATTN_BLOCK], float (*score)[ATTN_BLOCK]) {
    for (int32_t r = 0; r < rows; r++) {
        const vi more = VI(set1_epi32)(f->more * q[r].sum[part]);
        for (int32_t j = 0; j < ATTN_BLOCK; j += VL) {
            vi whole = vi_load(dot[r] + j);
            if (f->by == 2) whole = VI(add_epi32)(whole, whole);
            const vf x = VI(cvtepi32_ps)(VI(add_epi32)(whole, more)),
                     by = vf_mul(vf_load(scale + j), vf_set1(q[r].scale));
            vf_store(score[r] + j, vf_fma(x, by, vf_load(part ? score[r] + j : plus + j)));
        }
    }
}

/* ---- values ---- */

typedef struct word_weights { /* of one row: weight times scale of the value = word * step */
    int16_t word[ATTN_BLOCK];
    int32_t sum; /* of the words */
    float step;
} word_weights;

static inline int32_t vi_sum(vi x) {
#if VL == 16
    return _mm512_reduce_add_epi32(x);
#else
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
#endif
}

static inline void store_words(int16_t *to, vi x) {
#if VL == 16
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(x));
#else
    _mm_storeu_si128((__m128i *)(void *)to, _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
#endif
}

/* `weight` are 0 or more. */
static void weights_to_words(const float *weight, const float *scale, word_weights *to) {
    enum { VECTORS = ATTN_BLOCK / VL };
    vf x[VECTORS], most = vf_zero();
    UNROLL for (int i = 0; i < VECTORS; i++) {
        x[i] = vf_mul(vf_load(weight + i * VL), vf_load(scale + i * VL));
        most = vf_max(x[i], most);
    }
    const float top = vf_top(most);
    const vf by = vf_set1(top > 0 ? WORD_MOST / top : 0);
    to->step = top / WORD_MOST;
    vi sum = VI_ALL(setzero)();
    UNROLL for (int i = 0; i < VECTORS; i++) {
        const vi w = VI(cvtps_epi32)(vf_min(vf_max(vf_mul(x[i], by), vf_zero()), vf_set1(WORD_MOST)));
        store_words(to->word + i * VL, w);
        sum = VI(add_epi32)(sum, w);
    }
    to->sum = vi_sum(sum);
}

/* sum[r] = sum[r] shrink[r] + the block's values, for planes first .. first + planes - 1 of VL words of the rows; the
 * sums of a plane are `pad` apart. */
ALWAYS void add_words(int rows, int bits, int first, int planes, const uint8_t *v, int64_t step, int64_t ahead,
                      const word_form *f, const word_weights *w, const float *shrink, int64_t dims, float *sum) {
    vi s[ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < planes; p++) s[r][p] = VI_ALL(setzero)();
    for (int64_t j = 0; j < ATTN_BLOCK; j += 2, v += 2 * step) {
        const vi x = words_flipped(words_of_two(v, v + step), bits);
        ASK(v + ahead);
        ASK(v + ahead + step);
        vi weight[ROWS];
        UNROLL for (int r = 0; r < rows; r++) weight[r] = vi_four(w[r].word + j);
        UNROLL for (int p = 0; p < planes; p++) {
            const vi value = plane_words(x, bits, first + p);
            UNROLL for (int r = 0; r < rows; r++) s[r][p] = vi_pairs(s[r][p], value, weight[r]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < planes; p++) {
        float *to = sum + r * dims + p * f->pad;
        vi whole = s[r][p];
        if (f->by == 2) whole = VI(add_epi32)(whole, whole);
        whole = VI(add_epi32)(whole, VI(set1_epi32)(f->more * w[r].sum));
        vf_store(to, vf_fma(VI(cvtepi32_ps)(whole), vf_set1(w[r].step), vf_mul(vf_load(to), vf_set1(shrink[r]))));
    }
}

ALWAYS void weigh_words(int rows, int bits, const uint8_t *v, int64_t step, int64_t ahead, const word_form *f,
                        const word_weights *w, const float *shrink, int64_t dims, float *sum) {
    enum { AT_ONCE = 4 };
    for (int32_t c = 0; c < f->cols; c += VL)
        for (int first = 0; first < 16 / bits; first += AT_ONCE)
            if (bits == 8) add_words(rows, 8, 0, 2, v + c * 2, step, ahead, f, w, shrink, dims, sum + c);
            else if (bits == 4) add_words(rows, 4, 0, 4, v + c * 2, step, ahead, f, w, shrink, dims, sum + c);
            else if (first == 0) add_words(rows, 2, 0, 4, v + c * 2, step, ahead, f, w, shrink, dims, sum + c);
            else add_words(rows, 2, 4, 4, v + c * 2, step, ahead, f, w, shrink, dims, sum + AT_ONCE * f->pad + c);
}

#define WEIGH_WORDS(rows)                                                                 \
case rows:                                                                                \
    if (f->bits == 8) weigh_words(rows, 8, v, step, ahead, f, w, shrink, dims, sum);      \
    else if (f->bits == 4) weigh_words(rows, 4, v, step, ahead, f, w, shrink, dims, sum); \
    else weigh_words(rows, 2, v, step, ahead, f, w, shrink, dims, sum);                   \
    break;

static void weigh_words_any(int32_t rows, const uint8_t *v, int64_t step, int64_t ahead, const word_form *f,
                            const word_weights *w, const float *shrink, int64_t dims, float *sum) {
    switch (rows) {
        WEIGH_WORDS(1)
#if ROWS == 4
        WEIGH_WORDS(2)
        WEIGH_WORDS(3)
    default:
        WEIGH_WORDS(4)
#else
    default:
        WEIGH_WORDS(2)
#endif
    }
}

#endif
