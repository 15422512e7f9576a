/* format/block_int.h: symmetric integers with one FP32 scale per group of GROUP values along a row (the last group may
 * be shorter). s = max(amax, 1e-30) / qmax, code = clamp(round(x / s)). Decay of a whole group scales s and leaves the
 * codes alone, so a pure decay step costs no error (grid preservation). Codes of 6 and 5 bits are kept in two planes,
 * the low 4 bits as INT4 has them and the rest, so that every row of 32 begins at a whole word in both. Valid C11 and
 * CUDA C; called by formats.c, by codecs and by fast rows. */
#ifndef FORMAT_BLOCK_INT_H
#define FORMAT_BLOCK_INT_H

#include "format/rounding.h"

enum { BLOCK_GROUP = 32 };

/* The largest magnitude of a whole group: a tree of constant loops, which vectorise. */
static inline EBB_HD float group_amax(const float *__restrict__ x) {
    float top[16];
    for (int j = 0; j < 16; j++) top[j] = max_abs(max_abs(0, x[j]), x[j + 16]);
    for (int j = 0; j < 8; j++) top[j] = top[j] > top[j + 8] ? top[j] : top[j + 8];
    for (int j = 0; j < 4; j++) top[j] = top[j] > top[j + 4] ? top[j] : top[j + 4];
    top[0] = top[0] > top[2] ? top[0] : top[2];
    top[1] = top[1] > top[3] ? top[1] : top[3];
    return top[0] > top[1] ? top[0] : top[1];
}

/* Scale of n values. An infinite amax is cut, so that the scale, and with it every decoded value, is
 * finite. */
static inline EBB_HD float block_scale(const float *x, int n, float qmax) {
    float amax = 1e-30f;
    if (n == BLOCK_GROUP) amax = max_abs(amax, group_amax(x));
    else
        for (int i = 0; i < n; i++) amax = max_abs(amax, x[i]);
    return (amax < 3.0e38f ? amax : 3.0e38f) / qmax;
}

/* Codes of one group. Called with a constant n for whole groups. Two loops, because in one the compiler turns the clamp
 * into branches to constant codes and no longer vectorises. */
static inline EBB_HD void block_codes(const float *__restrict__ x, int n, float s, float qmax, int8_t *__restrict__ q) {
    float y[BLOCK_GROUP];
    for (int i = 0; i < n; i++) y[i] = clamp_code(x[i] / s, qmax);
    for (int i = 0; i < n; i++) q[i] = (int8_t)round_even(y[i]);
}

static inline EBB_HD void block_values(const int8_t *__restrict__ q, int n, float s, float *__restrict__ x) {
    for (int i = 0; i < n; i++) x[i] = s * (float)q[i];
}

static inline EBB_HD void int8_encode_row(const float *x, int64_t n, int8_t *codes, float *scales) {
    for (; n >= BLOCK_GROUP; n -= BLOCK_GROUP, x += BLOCK_GROUP, codes += BLOCK_GROUP)
        block_codes(x, BLOCK_GROUP, *scales = block_scale(x, BLOCK_GROUP, 127.0f), 127.0f, codes), scales++;
    if (n > 0) block_codes(x, (int)n, *scales = block_scale(x, (int)n, 127.0f), 127.0f, codes);
}

static inline EBB_HD void int8_decode_row(const int8_t *codes, const float *scales, int64_t n, float *x) {
    for (; n >= BLOCK_GROUP; n -= BLOCK_GROUP, x += BLOCK_GROUP, codes += BLOCK_GROUP)
        block_values(codes, BLOCK_GROUP, *scales++, x);
    if (n > 0) block_values(codes, (int)n, *scales, x);
}

/* Two codes a byte, the low nibble is the even column; an odd last code has a zero neighbour. */
static inline EBB_HD void pack_int4(const int8_t *__restrict__ q, int n, uint8_t *__restrict__ codes) {
    for (int i = 0; i < n / 2; i++) {
        uint16_t pair;
        memcpy(&pair, q + 2 * i, 2);
        codes[i] = (uint8_t)((pair & 15) | ((pair >> 4) & 240));
    }
    if (n & 1) codes[n / 2] = (uint8_t)(q[n - 1] & 15);
}

/* n nibbles to bytes. */
static inline EBB_HD void unpack_nibbles(const uint8_t *__restrict__ codes, int n, int8_t *__restrict__ q) {
    for (int i = 0; i < n / 2; i++) {
        uint16_t pair = (uint16_t)((codes[i] | codes[i] << 4) & 0x0F0F);
        memcpy(q + 2 * i, &pair, 2);
    }
    if (n & 1) q[n - 1] = (int8_t)(codes[n / 2] & 15);
}

/* Both codes of a byte at once: (x ^ 8) - 8 in each half, by an addition that carries nothing from one to the other. */
static inline EBB_HD void unpack_int4(const uint8_t *__restrict__ codes, int n, int8_t *__restrict__ q) {
    for (int i = 0; i < n / 2; i++) {
        uint16_t pair = (uint16_t)((codes[i] | codes[i] << 4) & 0x0F0F);
        pair = (uint16_t)(((pair ^ 0x0808) + 0x7878) ^ 0x8080);
        memcpy(q + 2 * i, &pair, 2);
    }
    if (n & 1) q[n - 1] = (int8_t)(((codes[n / 2] & 15) ^ 8) - 8);
}

/* Bytes of n codes in the plane of the bits above the low 4: bits is 8 where there is no such plane. */
static inline EBB_HD size_t high_bytes(int bits, int64_t n) {
    return bits == 5 || bits == 6 ? ((size_t)n * (size_t)(bits - 4) + 7) / 8 : 0;
}

/* 6-bit codes: the low 4 bits in `low` as INT4 has them, bits 4 and 5 four a byte in `high`, the first column lowest.
 * Bits beyond the last code are zero. */
static inline EBB_HD void pack_int6(const int8_t *__restrict__ q, int n, uint8_t *__restrict__ low,
                                    uint8_t *__restrict__ high) {
    pack_int4(q, n, low);
    for (int i = 0; i < n / 4; i++) {
        uint32_t four;
        memcpy(&four, q + 4 * i, 4);
        four = (four >> 4) & 0x03030303u;
        high[i] = (uint8_t)(four | four >> 6 | four >> 12 | four >> 18);
    }
    if (n & 3) high[n / 4] = 0;
    for (int i = n & ~3; i < n; i++) high[n / 4] = (uint8_t)(high[n / 4] | ((q[i] >> 4) & 3) << 2 * (i & 3));
}

static inline EBB_HD void unpack_int6(const uint8_t *__restrict__ low, const uint8_t *__restrict__ high, int n,
                                      int8_t *__restrict__ q) {
    unpack_nibbles(low, n, q);
    for (int i = 0; i < n / 4; i++) {
        uint32_t four, two_bits = high[i];
        memcpy(&four, q + 4 * i, 4);
        four |= ((two_bits | two_bits << 6 | two_bits << 12 | two_bits << 18) & 0x03030303u) << 4;
        memcpy(q + 4 * i, &four, 4);
    }
    for (int i = n & ~3; i < n; i++) q[i] = (int8_t)(q[i] | (high[n / 4] >> 2 * (i & 3) & 3) << 4);
    for (int i = 0; i < n; i++) q[i] = (int8_t)((q[i] ^ 32) - 32);
}

/* 5-bit codes: likewise, with bit 4, the sign, eight a byte in `high`. */
static inline EBB_HD void pack_int5(const int8_t *__restrict__ q, int n, uint8_t *__restrict__ low,
                                    uint8_t *__restrict__ high) {
    pack_int4(q, n, low);
    for (int i = 0; i < n / 8; i++) {
        uint64_t eight;
        memcpy(&eight, q + 8 * i, 8);
        eight = (eight >> 4) & 0x0101010101010101u;
        eight |= eight >> 7; /* pairs, then fours, then all eight beside each other */
        eight |= eight >> 14;
        high[i] = (uint8_t)(eight | eight >> 28);
    }
    if (n & 7) high[n / 8] = 0;
    for (int i = n & ~7; i < n; i++) high[n / 8] = (uint8_t)(high[n / 8] | ((q[i] >> 4) & 1) << (i & 7));
}

static inline EBB_HD void unpack_int5(const uint8_t *__restrict__ low, const uint8_t *__restrict__ high, int n,
                                      int8_t *__restrict__ q) {
    unpack_nibbles(low, n, q);
    for (int i = 0; i < n / 8; i++) {
        uint64_t eight, signs = high[i];
        memcpy(&eight, q + 8 * i, 8);
        signs = (signs | signs << 28) & 0x0000000F0000000Fu; /* the way back */
        signs = (signs | signs << 14) & 0x0003000300030003u;
        signs = (signs | signs << 7) & 0x0101010101010101u;
        eight |= signs << 4;
        memcpy(q + 8 * i, &eight, 8);
    }
    for (int i = n & ~7; i < n; i++) q[i] = (int8_t)(q[i] | (high[n / 8] >> (i & 7) & 1) << 4);
    for (int i = 0; i < n; i++) q[i] = (int8_t)((q[i] ^ 16) - 16);
}

/* A row of n codes of 8, 6, 5 or 4 bits; `high` is left alone by 8 and 4. */
static inline EBB_HD void pack_codes(int bits, const int8_t *__restrict__ q, int n, uint8_t *__restrict__ low,
                                     uint8_t *__restrict__ high) {
    if (bits == 8) memcpy(low, q, (size_t)n);
    else if (bits == 6) pack_int6(q, n, low, high);
    else if (bits == 5) pack_int5(q, n, low, high);
    else pack_int4(q, n, low);
}

static inline EBB_HD void unpack_codes(int bits, const uint8_t *__restrict__ low, const uint8_t *__restrict__ high,
                                       int n, int8_t *__restrict__ q) {
    if (bits == 8) memcpy(q, low, (size_t)n);
    else if (bits == 6) unpack_int6(low, high, n, q);
    else if (bits == 5) unpack_int5(low, high, n, q);
    else unpack_int4(low, n, q);
}

static inline EBB_HD void int4_encode_row(const float *x, int64_t n, uint8_t *codes, float *scales) {
    int8_t q[BLOCK_GROUP];
    for (; n >= BLOCK_GROUP; n -= BLOCK_GROUP, x += BLOCK_GROUP, codes += BLOCK_GROUP / 2) {
        block_codes(x, BLOCK_GROUP, *scales = block_scale(x, BLOCK_GROUP, 7.0f), 7.0f, q), scales++;
        pack_int4(q, BLOCK_GROUP, codes);
    }
    if (n <= 0) return;
    block_codes(x, (int)n, *scales = block_scale(x, (int)n, 7.0f), 7.0f, q);
    pack_int4(q, (int)n, codes);
}

static inline EBB_HD void int4_decode_row(const uint8_t *codes, const float *scales, int64_t n, float *x) {
    int8_t q[BLOCK_GROUP];
    for (; n >= BLOCK_GROUP; n -= BLOCK_GROUP, x += BLOCK_GROUP, codes += BLOCK_GROUP / 2) {
        unpack_int4(codes, BLOCK_GROUP, q);
        block_values(q, BLOCK_GROUP, *scales++, x);
    }
    if (n <= 0) return;
    unpack_int4(codes, (int)n, q);
    block_values(q, (int)n, *scales, x);
}

#endif
