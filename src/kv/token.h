/* kv/token.h: the arithmetic and the byte layout of the codec "token" (codec_token.c), inline so that a fast row
 * compiles the same code and gets the same bits.
 *
 * Every part of a token and KV head is codes with one FP16 scale (papers/hyquant, "Decode"): K4V4 at 128 dims takes 2 *
 * (64 + 2) = 132 bytes. 8 and 4 bits: s = FP16(max(max|x|, 1e-5) / qmax), code = round(x / s) within +-qmax, qmax = 127
 * or 7, value = code * s. 2 bits: four levels (-1.5, -.5, .5, 1.5) s with a least-squares s, or with grid=paper the
 * published three, -s, 0 and s, s = max|x|. Codes are two's complement; of 4 bits code 2j is in the low nibble of byte
 * j, of 2 bits code 4j + i in the bits 2i and 2i + 1; a code c of the four levels stands for c + 1/2.
 *
 * Hostile values have defined results: a NaN counts in no scale and gets the lowest code; an infinity is the largest
 * scale, 65504, and a code at the end of the range. */
#ifndef KV_TOKEN_H
#define KV_TOKEN_H

#include "ebb/kv.h"
#include "format/float16.h"

enum { TOKEN_K, TOKEN_V, TOKEN_WINDOW, TOKEN_RATIO, TOKEN_SELECT, TOKEN_WIDE, TOKEN_GRID, TOKEN_PARAMS };
enum { TOKEN_BITS_2, TOKEN_BITS_4, TOKEN_BITS_8, TOKEN_BITS_LAYER }; /* of TOKEN_K and TOKEN_V */
enum { TOKEN_GRID_LS, TOKEN_GRID_PAPER };
#define TOKEN_SLIDE 128 /* tokens that leave the window together */

/* Bits of a part: one that is a key and a value takes those of keys. */
static inline int32_t token_bits(const double *param, int32_t role) {
    return 2 << (int32_t)param[role & EBB_ROLE_K ? TOKEN_K : TOKEN_V];
}

static inline bool token_levels(const double *param, int32_t bits) {
    return bits == 2 && param[TOKEN_GRID] == TOKEN_GRID_LS;
}

static inline EBB_HD size_t token_code_bytes(int32_t dims, int32_t bits) { return (size_t)dims * (size_t)bits / 8; }

/* The largest code of a symmetric grid. */
static inline EBB_HD float token_qmax(int32_t bits) { return bits == 8 ? 127.0f : bits == 4 ? 7.0f : 1.0f; }

/* ---- scales ---- */

static inline EBB_HD uint16_t token_scale_max(const float *x, int32_t n, int32_t bits) {
    float most = 1e-5f;
    for (int32_t i = 0; i < n; i++) most = max_abs(most, x[i]);
    return float_to_fp16(most / token_qmax(bits));
}

#define TOKEN_LS_STEPS 4
#define TOKEN_LS_LEAST 5.9604644775390625e-8f /* 2^-24 */
#define TOKEN_LS_LIMIT 1e17f                  /* magnitudes beyond count as this: their squares still add up */

/* Four levels: from s = the root mean square, where a Gaussian has nearly its best s, a fixed number of steps of Lloyd:
 * a magnitude above s goes to 1.5 s, the others to .5 s; then s = sum |x| c / sum c^2. */
static inline EBB_HD uint16_t token_scale_ls(const float *x, int32_t n) {
    float squares = 0;
    for (int32_t i = 0; i < n; i++) {
        float a = max_abs(0, x[i]);
        a = a < TOKEN_LS_LIMIT ? a : TOKEN_LS_LIMIT;
        squares += a * a;
    }
    float s = sqrtf(squares / (float)n);
    for (int32_t step = 0; step < TOKEN_LS_STEPS; step++) {
        float top = 0, bottom = 0;
        for (int32_t i = 0; i < n; i++) {
            float a = max_abs(0, x[i]);
            a = a < TOKEN_LS_LIMIT ? a : TOKEN_LS_LIMIT;
            const float c = a > s ? 1.5f : 0.5f;
            top += a * c;
            bottom += c * c;
        }
        s = top / bottom;
    }
    return float_to_fp16(s > TOKEN_LS_LEAST ? s : TOKEN_LS_LEAST);
}

/* ---- codes ---- */

static inline EBB_HD int32_t token_code(float x, float scale, float qmax) {
    return (int32_t)round_even(clamp_code(x / scale, qmax));
}

/* Of four levels; a NaN is not above anything. */
static inline EBB_HD int32_t token_level(float x, float scale) { return (x >= 0) + (x > scale) - 1 - !(x >= -scale); }

static inline EBB_HD void token_encode(const float *x, int32_t n, int32_t bits, bool levels, uint8_t *code,
                                       uint16_t *scale) {
    *scale = levels ? token_scale_ls(x, n) : token_scale_max(x, n, bits);
    const float s = fp16_to_float(*scale), qmax = token_qmax(bits);
    if (bits == 8)
        for (int32_t i = 0; i < n; i++) code[i] = (uint8_t)token_code(x[i], s, qmax);
    else if (bits == 4)
        for (int32_t i = 0; i < n; i += 2)
            code[i / 2] = (uint8_t)((token_code(x[i], s, qmax) & 15) | (token_code(x[i + 1], s, qmax) & 15) << 4);
    else
        for (int32_t i = 0; i < n; i += 4) {
            uint32_t byte = 0;
            for (int32_t j = 0; j < 4; j++) {
                const int32_t c = levels ? token_level(x[i + j], s) : token_code(x[i + j], s, qmax);
                byte |= ((uint32_t)c & 3u) << 2 * j;
            }
            code[i / 4] = (uint8_t)byte;
        }
}

/* Code `i` of a part, sign extended. */
static inline EBB_HD int32_t token_code_at(const uint8_t *code, int32_t i, int32_t bits) {
    if (bits == 8) return (int8_t)code[i];
    if (bits == 4) return ((code[i / 2] >> i % 2 * 4 & 15) ^ 8) - 8;
    return ((code[i / 4] >> i % 4 * 2 & 3) ^ 2) - 2;
}

static inline EBB_HD void token_decode(const uint8_t *code, uint16_t scale, int32_t n, int32_t bits, bool levels,
                                       float *x) {
    const float s = fp16_to_float(scale), shift = levels ? 0.5f : 0.0f;
    for (int32_t i = 0; i < n; i++) x[i] = ((float)token_code_at(code, i, bits) + shift) * s;
}

#endif
