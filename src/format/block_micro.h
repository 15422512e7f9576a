/* format/block_micro.h: floats of 4 and 6 bits, with a scale per block along a row (the last block may be shorter).
 *
 *   code   E2M1 (0 .5 1 1.5 2 3 4 6 and negatives), E2M3 (to 7.5) or E3M2 (to 28): sign, exponent, mantissa; no
 *          infinity, no NaN; to nearest even, saturating
 *   mx     blocks of 32, scale s = 2^(floor(log2 amax) - emax), kept as E8M0, the exponent plus 127 (OCP MX)
 *   nv     blocks of 16, scale s = g E4M3(amax / max / g) with g = amax of the matrix / (448 max) in FP32
 *
 * value = s * code. A code is always a number: NaN becomes -max. amax is kept within 1e-30 .. 3e38 and an E4M3 scale is
 * never 0, so every scale is a normal FP32 number and finite values stay finite. Valid C11 and CUDA C; called by codecs
 * and by fast rows. */
#ifndef FORMAT_BLOCK_MICRO_H
#define FORMAT_BLOCK_MICRO_H

#include "format/block_int.h"
#include "format/float8.h"

typedef enum micro_code { MICRO_E2M1, MICRO_E2M3, MICRO_E3M2 } micro_code;

typedef struct micro_form {
    int bits, mantissa; /* of a code; of its mantissa */
    int emin, emax;     /* exponents of the smallest normal number and of the largest */
    float max;
    int nv, group; /* flag: nv rather than mx; values of a block */
} micro_form;

static inline EBB_HD micro_form micro_form_of(micro_code code, int nv) {
    const int group = nv ? 16 : 32;
    const micro_form e2m1 = {4, 1, 0, 2, 6.0f, nv, group}, e2m3 = {6, 3, 0, 2, 7.5f, nv, group},
                     e3m2 = {6, 2, -2, 4, 28.0f, nv, group};
    return code == MICRO_E2M1 ? e2m1 : code == MICRO_E2M3 ? e2m3 : e3m2;
}

/* ---- codes; chosen by masks as in float8.h ---- */

/* |x| <= f.max. */
static inline EBB_HD int8_t micro_from_float(micro_form f, float x) {
    const int drop = 23 - f.mantissa;
    const uint32_t rebias = (uint32_t)(126 + f.emin) << 23;
    const uint32_t beside = (uint32_t)(127 + f.emin + drop) << 23; /* there the last place is the subnormals' step */
    uint32_t u = float_bits(x), a = u & 0x7FFFFFFFu;
    uint32_t normal = (a + ((1u << (drop - 1)) - 1u) + ((a >> drop) & 1u) - rebias) >> drop;
    uint32_t tiny = float_bits(bits_float(a) + bits_float(beside)) - beside;
    uint32_t below = 0u - (uint32_t)(a < rebias + (1u << 23));
    return (int8_t)((u >> 31) << (f.bits - 1) | (tiny & below) | (normal & ~below));
}

static inline EBB_HD float micro_to_float(micro_form f, int8_t code) {
    const uint32_t c = (uint8_t)code, sign = c >> (f.bits - 1) & 1u, rest = c & ((1u << (f.bits - 1)) - 1u);
    const float step = bits_float((uint32_t)(127 + f.emin - f.mantissa) << 23);
    uint32_t tiny = float_bits((float)(int32_t)rest * step);
    uint32_t normal = (rest << (23 - f.mantissa)) + ((uint32_t)(126 + f.emin) << 23);
    uint32_t below = 0u - (uint32_t)(rest < 1u << f.mantissa);
    return bits_float(sign << 31 | (tiny & below) | (normal & ~below));
}

/* ---- scales: one byte a block ---- */

/* The largest magnitude of m and n values; NaN is passed over. */
static inline EBB_HD float micro_amax(float m, const float *__restrict__ x, int64_t n) {
    float top[16];
    for (int j = 0; j < 16; j++) top[j] = m;
    for (; n >= 16; n -= 16, x += 16)
        for (int j = 0; j < 16; j++) top[j] = max_abs(top[j], x[j]);
    for (int j = 0; j < (int)n; j++) top[j] = max_abs(top[j], x[j]);
    for (int j = 0; j < 8; j++) top[j] = top[j] > top[j + 8] ? top[j] : top[j + 8];
    for (int j = 0; j < 4; j++) top[j] = top[j] > top[j + 4] ? top[j] : top[j + 4];
    top[0] = top[0] > top[2] ? top[0] : top[2];
    top[1] = top[1] > top[3] ? top[1] : top[3];
    return top[0] > top[1] ? top[0] : top[1];
}

/* The scale of a matrix with this amax; 1 for mx, which has none. */
static inline EBB_HD float micro_global(micro_form f, float amax) {
    amax = amax > 1e-30f ? amax : 1e-30f;
    return f.nv ? (amax < 3.0e38f ? amax : 3.0e38f) / (448.0f * f.max) : 1.0f;
}

static inline EBB_HD uint8_t micro_scale_byte(micro_form f, float global, const float *x, int n) {
    float amax = micro_amax(1e-30f, x, n);
    amax = amax < 3.0e38f ? amax : 3.0e38f;
    if (!f.nv) return (uint8_t)((float_bits(amax) >> 23) - (uint32_t)f.emax);
    uint8_t byte = float_to_fp8(amax / f.max / global);
    return byte ? byte : 1;
}

static inline EBB_HD float micro_scale(micro_form f, float global, uint8_t byte) {
    return f.nv ? global * fp8_to_float(byte) : bits_float((uint32_t)byte << 23);
}

/* ---- one block, and a row: codes of 4 bits as INT4 has them, of 6 bits in the two planes of INT6 ---- */

/* g values, 16 or 32, a constant. Two loops for the reason that block_codes has. */
static inline EBB_HD void micro_encode_block(micro_form f, int g, const float *__restrict__ x, float s,
                                             uint8_t *__restrict__ low, uint8_t *__restrict__ high) {
    float y[BLOCK_GROUP];
    int8_t q[BLOCK_GROUP];
    for (int i = 0; i < g; i++) y[i] = clamp_code(x[i] / s, f.max);
    for (int i = 0; i < g; i++) q[i] = micro_from_float(f, y[i]);
    if (f.bits == 4) pack_int4(q, g, low);
    else pack_int6(q, g, low, high);
}

static inline EBB_HD void micro_decode_block(micro_form f, int g, const uint8_t *__restrict__ low,
                                             const uint8_t *__restrict__ high, float s, float *__restrict__ x) {
    int8_t q[BLOCK_GROUP];
    if (f.bits == 4) unpack_nibbles(low, g, q);
    else unpack_int6(low, high, g, q);
    for (int i = 0; i < g; i++) x[i] = s * micro_to_float(f, q[i]);
}

/* Blocks of g; a shorter last one is a whole one of zeros, of which less is kept. */
static inline EBB_HD void micro_encode_blocks(micro_form f, int g, float global, const float *x, int64_t n,
                                              uint8_t *low, uint8_t *high, uint8_t *scales) {
    for (; n >= g; n -= g, x += g) {
        *scales = micro_scale_byte(f, global, x, g);
        micro_encode_block(f, g, x, micro_scale(f, global, *scales++), low, high);
        low += g / 2, high += high_bytes(f.bits, g);
    }
    if (n <= 0) return;
    float last[BLOCK_GROUP];
    uint8_t last_low[BLOCK_GROUP / 2], last_high[BLOCK_GROUP / 4];
    for (int i = 0; i < g; i++) last[i] = i < n ? x[i] : 0.0f;
    *scales = micro_scale_byte(f, global, last, g);
    micro_encode_block(f, g, last, micro_scale(f, global, *scales), last_low, last_high);
    memcpy(low, last_low, ((size_t)n + 1) / 2);
    if (f.bits == 6) memcpy(high, last_high, high_bytes(6, n));
}

static inline EBB_HD void micro_decode_blocks(micro_form f, int g, float global, const uint8_t *low,
                                              const uint8_t *high, const uint8_t *scales, int64_t n, float *x) {
    for (; n >= g; n -= g, x += g) {
        micro_decode_block(f, g, low, high, micro_scale(f, global, *scales++), x);
        low += g / 2, high += high_bytes(f.bits, g);
    }
    if (n <= 0) return;
    float last[BLOCK_GROUP];
    uint8_t last_low[BLOCK_GROUP / 2] = {0}, last_high[BLOCK_GROUP / 4] = {0};
    memcpy(last_low, low, ((size_t)n + 1) / 2);
    if (f.bits == 6) memcpy(last_high, high, high_bytes(6, n));
    micro_decode_block(f, g, last_low, last_high, micro_scale(f, global, *scales), last);
    memcpy(x, last, (size_t)n * sizeof *x);
}

static inline EBB_HD void micro_encode_row(micro_form f, float global, const float *x, int64_t n, uint8_t *low,
                                           uint8_t *high, uint8_t *scales) {
    if (f.nv) micro_encode_blocks(f, 16, global, x, n, low, high, scales);
    else micro_encode_blocks(f, 32, global, x, n, low, high, scales);
}

static inline EBB_HD void micro_decode_row(micro_form f, float global, const uint8_t *low, const uint8_t *high,
                                           const uint8_t *scales, int64_t n, float *x) {
    if (f.nv) micro_decode_blocks(f, 16, global, low, high, scales, n, x);
    else micro_decode_blocks(f, 32, global, low, high, scales, n, x);
}

#endif
