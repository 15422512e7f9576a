/* op/x86/delta_codes.h: P += S_0^T x and Z += S_0^T y over codes, which are widened in registers and never stored wide.
 * Part of op/x86/delta.h.
 *
 * Memory is read in the order in which it lies, row by row: of blocks of columns every stream skips lines, and the CPU
 * prefetches badly or not at all (a third of the bandwidth for FP32). So the sums of a whole row stay in registers, or
 * where it is too long for that, those of a few rows are added to sums in memory. A column's sum is that of its rows in
 * ascending order, from zero, either way; P and Z are added last. */
#ifndef OP_X86_DELTA_CODES_H
#define OP_X86_DELTA_CODES_H

#include "op/x86/delta_scratch.h"

enum {
    REGISTERS = 8, /* vectors of a row whose sums stay in registers: 16 of 32, with AVX-512 */
    SIDE = 4,      /* rows side by side else, of codes */
    AHEAD = 4096   /* bytes that codes are fetched ahead; behind the last ones lies the next head */
};

INLINE bool has_groups(reader kind) { return kind == READ_FP8 || kind == READ_INT8 || kind == READ_INT4; }
INLINE bool is_leap(reader kind) { return kind >= READ_LEAP4 && kind <= READ_LEAP12; }

/* One vector of the stored matrix, element i of its plane of codes; `high` is the plane of the upper bits, if any. */
INLINE vf load_codes(reader kind, const uint8_t *packed, const uint8_t *high, size_t i) {
    switch (kind) {
    case READ_FP16:
        return vf_load_fp16((const uint16_t *)(const void *)packed + i);
    case READ_BF16:
        return vf_load_bf16((const uint16_t *)(const void *)packed + i);
    case READ_FP8:
        return vf_load_fp8(packed + i);
    case READ_INT8:
    case READ_LEAP8:
        return vf_load_i8((const int8_t *)packed + i);
    case READ_INT4:
    case READ_LEAP4:
        return vf_load_i4(packed + i / 2);
    case READ_LEAP5:
        return vf_load_i5(packed + i / 2, high + i / 8);
    case READ_LEAP6:
        return vf_load_i6(packed + i / 2, high + i / 4);
    case READ_LEAP12:
        return vf_load_i12(packed + i / 2, high + i);
    default:
        return vf_load((const float *)(const void *)packed + i);
    }
}

INLINE vf scaled_codes(reader kind, const uint8_t *packed, const uint8_t *high, int32_t u, int32_t v, int32_t dv,
                       const float *scales) {
    const vf e = load_codes(kind, packed, high, (size_t)u * (size_t)dv + (size_t)v);
    if (!has_groups(kind)) return e;
    return vf_mul(e, vf_set1(scales[u * ((dv + BLOCK_GROUP - 1) / BLOCK_GROUP) + v / BLOCK_GROUP]));
}

/* Bytes of n codes in the first plane. */
INLINE size_t code_bytes(reader kind, int32_t n) {
    const size_t bytes = (size_t)n;
    return kind == READ_FP32                                             ? 4 * bytes
           : kind == READ_FP16 || kind == READ_BF16                      ? 2 * bytes
           : kind == READ_FP8 || kind == READ_INT8 || kind == READ_LEAP8 ? bytes
                                                                         : bytes / 2;
}

INLINE void fetch_ahead(const uint8_t *row, size_t n) { fetch(row + AHEAD, n); }

/* Rows of REGISTERS vectors. Of FP32 they are a stream that the CPU follows by itself. */
INLINE void read_short(reader kind, const uint8_t *packed, const uint8_t *high, int32_t dk, const float *x,
                       const float *y, const float *scales, float *sum_P, float *sum_Z) {
    enum { DV = REGISTERS * VL };
    vf p[REGISTERS], z[REGISTERS];
    for (int b = 0; b < REGISTERS; b++) p[b] = z[b] = vf_zero();
    for (int32_t u = 0; u < dk; u++) {
        const vf xu = vf_set1(x[u]), yu = vf_set1(y[u]);
        if (kind != READ_FP32) fetch_ahead(packed + code_bytes(kind, u * DV), code_bytes(kind, DV));
        for (int b = 0; b < REGISTERS; b++) {
            const vf e = scaled_codes(kind, packed, high, u, b * VL, DV, scales);
            p[b] = vf_fma(e, xu, p[b]);
            z[b] = vf_fma(e, yu, z[b]);
        }
    }
    for (int b = 0; b < REGISTERS; b++) vf_store(sum_P + b * VL, p[b]), vf_store(sum_Z + b * VL, z[b]);
}

/* Rows u .. u + n - 1 into the sums. */
INLINE void read_rows(reader kind, int n, const uint8_t *packed, const uint8_t *high, int32_t u, int32_t dv,
                      const float *x, const float *y, const float *scales, float *sum_P, float *sum_Z) {
    vf xs[SIDE], ys[SIDE];
    for (int j = 0; j < n; j++) xs[j] = vf_set1(x[u + j]), ys[j] = vf_set1(y[u + j]);
    fetch_ahead(packed + code_bytes(kind, u * dv), code_bytes(kind, n * dv));
    for (int32_t v = 0; v < dv; v += VL) {
        vf p = vf_load(sum_P + v), z = vf_load(sum_Z + v);
        for (int j = 0; j < n; j++) {
            const vf e = scaled_codes(kind, packed, high, u + j, v, dv, scales);
            p = vf_fma(e, xs[j], p);
            z = vf_fma(e, ys[j], z);
        }
        vf_store(sum_P + v, p);
        vf_store(sum_Z + v, z);
    }
}

/* Rows of any length: wide ones two by two, more of them make streams that skip too far. */
INLINE void read_long(reader kind, const uint8_t *packed, const uint8_t *high, int32_t dk, int32_t dv, const float *x,
                      const float *y, const float *scales, float *sum_P, float *sum_Z) {
    enum { PAIR = 2 };
    const int n = kind == READ_FP32 || kind == READ_FP16 || kind == READ_BF16 ? PAIR : SIDE;
    for (int32_t v = 0; v < dv; v += VL) vf_store(sum_P + v, vf_zero()), vf_store(sum_Z + v, vf_zero());
    int32_t u = 0;
    for (; u + n <= dk; u += n) read_rows(kind, n, packed, high, u, dv, x, y, scales, sum_P, sum_Z);
    for (; u < dk; u++) read_rows(kind, 1, packed, high, u, dv, x, y, scales, sum_P, sum_Z);
}

INLINE void read_all(reader kind, const uint8_t *packed, const uint8_t *high, int32_t dk, int32_t dv, const float *x,
                     const float *y, const float *scales, float *P, float *Z) {
    float sum_P[EBB_MAX_STATE_DIM], sum_Z[EBB_MAX_STATE_DIM];
    if (VL == 16 && dv == REGISTERS * VL) read_short(kind, packed, high, dk, x, y, scales, sum_P, sum_Z);
    else read_long(kind, packed, high, dk, dv, x, y, scales, sum_P, sum_Z);
    for (int32_t v = 0; v < dv; v += VL) {
        vf s = is_leap(kind) && scales ? vf_load(scales + v) : vf_set1(1.0f);
        vf_store(P + v, vf_fma(s, vf_load(sum_P + v), vf_load(P + v)));
        vf_store(Z + v, vf_fma(s, vf_load(sum_Z + v), vf_load(Z + v)));
    }
}

/* P += codes^T x, Z += codes^T y, with what `scales` says of the kind. One copy of each, for all
 * that read: they are most of what this row takes to compile. */
static __attribute__((noinline)) void read_codes(reader kind, const uint8_t *packed, const uint8_t *high, int32_t dk,
                                                 int32_t dv, const float *x, const float *y, const float *scales,
                                                 float *P, float *Z) {
    switch (kind) {
    case READ_FP16:
        read_all(READ_FP16, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_BF16:
        read_all(READ_BF16, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_FP8:
        read_all(READ_FP8, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_INT8:
        read_all(READ_INT8, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_INT4:
        read_all(READ_INT4, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP12:
        read_all(READ_LEAP12, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP8:
        read_all(READ_LEAP8, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP6:
        read_all(READ_LEAP6, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP5:
        read_all(READ_LEAP5, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP4:
        read_all(READ_LEAP4, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    default:
        read_all(READ_FP32, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    }
}

#endif
