/* format/block_gguf.h: the quantized weights of GGUF files, back to FP32: whole blocks of 32 or 256 values along a row,
 * scales and codes together in one block, little-endian, at any address. Only decoding: these files are read here, not
 * written. With d, m, d_j, m_j the block's scales and q a code:
 *
 *   Q8_0  d q, q of 8 bits                  Q4_0, Q5_0   d (q - 8), d (q - 16)
 *   Q4_1, Q5_1  d q + m                     Q4_K, Q5_K   d s_j q - m t_j for each 32, s_j and t_j of 6 bits
 *   Q6_K  d s_j (q - 32) for each 16, s_j of 8 bits with a sign
 *
 * Every product and sum is rounded to FP32 in the order written, as ggml has it, so that the values are the same bits.
 * Blocks do not depend on each other: a row may be decoded from any block on. Valid C11 and CUDA C; called by
 * linear layers and by the reader of GGUF files. */
#ifndef FORMAT_BLOCK_GGUF_H
#define FORMAT_BLOCK_GGUF_H

#include "ebb/format.h"
#include "format/float16.h"

enum { GGUF_BLOCK = 32, GGUF_SUPER = 256 }; /* values of a block of the types without and with _K */

/* Values of a block; 0: the type has none. */
static inline EBB_HD int gguf_block_values(int32_t type) {
    switch (type) {
    case EBB_Q4_0:
    case EBB_Q4_1:
    case EBB_Q5_0:
    case EBB_Q5_1:
    case EBB_Q8_0:
        return GGUF_BLOCK;
    case EBB_Q4_K:
    case EBB_Q5_K:
    case EBB_Q6_K:
        return GGUF_SUPER;
    default:
        return 0;
    }
}

/* Bytes of a block; 0: the type has none. */
static inline EBB_HD int gguf_block_bytes(int32_t type) {
    switch (type) {
    case EBB_Q4_0:
        return 2 + 16;
    case EBB_Q4_1:
        return 4 + 16;
    case EBB_Q5_0:
        return 2 + 4 + 16;
    case EBB_Q5_1:
        return 4 + 4 + 16;
    case EBB_Q8_0:
        return 2 + 32;
    case EBB_Q4_K:
        return 4 + 12 + 128;
    case EBB_Q5_K:
        return 4 + 12 + 32 + 128;
    case EBB_Q6_K:
        return 128 + 64 + 16 + 2;
    default:
        return 0;
    }
}

static inline EBB_HD float gguf_half(const uint8_t *b) { return fp16_to_float((uint16_t)(b[0] | b[1] << 8)); }

/* ---- blocks of 32: the low nibbles are values 0 .. 15, the high ones 16 .. 31 ---- */

static inline EBB_HD void gguf_q8_0(const uint8_t *__restrict__ b, float *__restrict__ x) {
    const float d = gguf_half(b);
    for (int i = 0; i < 32; i++) x[i] = d * (float)(int8_t)b[2 + i];
}

static inline EBB_HD void gguf_q4_0(const uint8_t *__restrict__ b, float *__restrict__ x) {
    const float d = gguf_half(b);
    for (int i = 0; i < 16; i++) x[i] = d * (float)((b[2 + i] & 15) - 8);
    for (int i = 0; i < 16; i++) x[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
}

static inline EBB_HD void gguf_q4_1(const uint8_t *__restrict__ b, float *__restrict__ x) {
    const float d = gguf_half(b), m = gguf_half(b + 2);
    for (int i = 0; i < 16; i++) x[i] = d * (float)(b[4 + i] & 15) + m;
    for (int i = 0; i < 16; i++) x[i + 16] = d * (float)(b[4 + i] >> 4) + m;
}

/* Codes of 5 bits: bit i of the word `high` is the top bit of value i. */
static inline EBB_HD void gguf_codes5(const uint8_t *__restrict__ high, const uint8_t *__restrict__ low,
                                      int32_t *__restrict__ q) {
    const uint32_t top = (uint32_t)high[0] | (uint32_t)high[1] << 8 | (uint32_t)high[2] << 16 | (uint32_t)high[3] << 24;
    for (int i = 0; i < 16; i++) q[i] = (int32_t)((low[i] & 15u) | (top >> i & 1u) << 4);
    for (int i = 0; i < 16; i++) q[i + 16] = (int32_t)((uint32_t)low[i] >> 4 | (top >> (i + 16) & 1u) << 4);
}

static inline EBB_HD void gguf_q5_0(const uint8_t *__restrict__ b, float *__restrict__ x) {
    const float d = gguf_half(b);
    int32_t q[32];
    gguf_codes5(b + 2, b + 6, q);
    for (int i = 0; i < 32; i++) x[i] = d * (float)(q[i] - 16);
}

static inline EBB_HD void gguf_q5_1(const uint8_t *__restrict__ b, float *__restrict__ x) {
    const float d = gguf_half(b), m = gguf_half(b + 2);
    int32_t q[32];
    gguf_codes5(b + 4, b + 8, q);
    for (int i = 0; i < 32; i++) x[i] = d * (float)q[i] + m;
}

/* ---- blocks of 256 ---- */

/* Scale and minimum j of 8, 6 bits each in 12 bytes: those of j < 4 are the low six bits of bytes j and j + 4; those of
 * j >= 4 have their low nibbles in byte j + 4 and their two high bits atop the bytes of j - 4. */
static inline EBB_HD void gguf_scale_min(const uint8_t *s, int j, int *scale, int *min) {
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    *min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
}

/* 32 values: nibbles of `low` (the high ones where shift is 4) and, where `high` has the bit, 16 more. */
static inline EBB_HD void gguf_k32(const uint8_t *__restrict__ low, int shift, const uint8_t *__restrict__ high,
                                   int bit, float d, float m, float *__restrict__ x) {
    for (int i = 0; i < 32; i++) x[i] = d * (float)((low[i] >> shift & 15) + (high[i] >> bit & 1) * 16) - m;
}
static inline EBB_HD void gguf_k32_four(const uint8_t *__restrict__ low, int shift, float d, float m,
                                        float *__restrict__ x) {
    for (int i = 0; i < 32; i++) x[i] = d * (float)(low[i] >> shift & 15) - m;
}

/* d, minimum, the 12 bytes of scales; Q5_K then has the top bits, bit j of byte i that of value 32 j + i; then the
 * nibbles: 32 bytes for each 64 values, the low ones first. */
static inline EBB_HD void gguf_q4_k(const uint8_t *__restrict__ b, float *__restrict__ x) {
    const float d = gguf_half(b), min = gguf_half(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, m;
        gguf_scale_min(b + 4, j, &scale, &m);
        gguf_k32_four(b + 16 + 32 * (j / 2), 4 * (j & 1), d * (float)scale, min * (float)m, x + 32 * j);
    }
}

static inline EBB_HD void gguf_q5_k(const uint8_t *__restrict__ b, float *__restrict__ x) {
    const float d = gguf_half(b), min = gguf_half(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, m;
        gguf_scale_min(b + 4, j, &scale, &m);
        gguf_k32(b + 48 + 32 * (j / 2), 4 * (j & 1), b + 16, j, d * (float)scale, min * (float)m, x + 32 * j);
    }
}

/* Low nibbles (64 bytes for each 128 values), top two bits (32 bytes for each 128), 16 scales, d. Of a half of 128,
 * value 32 j + i has its nibble in byte 32 (j & 1) + i, the high one for j >= 2, and its bits in byte i at 2 j. */
static inline EBB_HD void gguf_q6_k(const uint8_t *__restrict__ b, float *__restrict__ x) {
    const float d = gguf_half(b + 208);
    for (int g = 0; g < 16; g++) {
        const int half = g / 8, j = g / 2 & 3, at = 16 * (g & 1);
        const uint8_t *low = b + 64 * half + 32 * (j & 1) + at, *high = b + 128 + 32 * half + at;
        const float s = d * (float)(int8_t)b[192 + g];
        for (int i = 0; i < 16; i++)
            x[16 * g + i] = s * (float)(((low[i] >> (j & 2 ? 4 : 0) & 15) | (high[i] >> 2 * j & 3) << 4) - 32);
    }
}

/* ---- rows ---- */

/* n values, a multiple of the block, of `type`, which has blocks. */
static inline EBB_HD void gguf_decode_row(int32_t type, const uint8_t *blocks, int64_t n, float *x) {
    const int values = gguf_block_values(type), bytes = gguf_block_bytes(type);
    for (; n >= values; n -= values, x += values, blocks += bytes) {
        switch (type) {
        case EBB_Q4_0:
            gguf_q4_0(blocks, x);
            break;
        case EBB_Q4_1:
            gguf_q4_1(blocks, x);
            break;
        case EBB_Q5_0:
            gguf_q5_0(blocks, x);
            break;
        case EBB_Q5_1:
            gguf_q5_1(blocks, x);
            break;
        case EBB_Q8_0:
            gguf_q8_0(blocks, x);
            break;
        case EBB_Q4_K:
            gguf_q4_k(blocks, x);
            break;
        case EBB_Q5_K:
            gguf_q5_k(blocks, x);
            break;
        default:
            gguf_q6_k(blocks, x);
        }
    }
}

#endif
