/* test_format.c: storage formats: every 16-bit and 8-bit pattern, ties, saturation, NaN, odd lengths, bit planes, and
 * the CPU's own conversions. */
#include "ebb/format.h"
#include "format/block_int.h"
#include "format/float16.h"
#include "format/float8.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__x86_64__)
#    include <immintrin.h>
__attribute__((target("f16c"))) static float cpu_to_float(uint16_t h) { return _cvtsh_ss(h); }
__attribute__((target("f16c"))) static uint16_t cpu_to_half(float x) { return _cvtss_sh(x, 0); }
#endif

static void test_fp16(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = fp16_to_float((uint16_t)h);
        if (isnan(x)) assert_true(isnan(fp16_to_float(float_to_fp16(x))));
        else if (isinf(x)) assert_int_equal(float_to_fp16(x) & 0x7FFF, 0x7BFF); /* saturates */
        else assert_int_equal(float_to_fp16(x), h);
    }
    assert_int_equal(float_to_fp16(65519.99f), 0x7BFF);
    assert_int_equal(float_to_fp16(-1e30f), 0xFBFF);
    assert_int_equal(float_to_fp16(2.98e-8f), 0x0000); /* just below half of the smallest */
    assert_int_equal(float_to_fp16(2.9802322e-8f), 0x0000);
    assert_int_equal(float_to_fp16(2.981e-8f), 0x0001);
    assert_int_equal(float_to_fp16(1.0f + 1.0f / 2048), 0x3C00); /* tie to even */
    assert_int_equal(float_to_fp16(1.0f + 3.0f / 2048), 0x3C02);
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("f16c")) return;
    for (uint32_t i = 0; i < 2000000; i++) {
        uint32_t u = i * 2147u + (i << 19);
        float x = bits_float(u);
        if (isnan(x) || fabsf(x) >= 65520.0f) continue;
        if (cpu_to_half(x) != float_to_fp16(x))
            fail_msg("%a: %04x, the CPU says %04x", (double)x, float_to_fp16(x), cpu_to_half(x));
    }
    for (uint32_t h = 0; h < 65536; h++)
        if (!isnan(fp16_to_float((uint16_t)h))) assert_true(cpu_to_float((uint16_t)h) == fp16_to_float((uint16_t)h));
#endif
}

static void test_bf16(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = bf16_to_float((uint16_t)h);
        if (isnan(x)) assert_true(isnan(bf16_to_float(float_to_bf16(x))));
        else assert_int_equal(float_to_bf16(x), h);
    }
    assert_true(bf16_to_float(float_to_bf16(1.0f + 1.0f / 256)) == 1.0f); /* tie to even */
    assert_true(bf16_to_float(float_to_bf16(1.0f + 3.0f / 256)) == 1.0f + 1.0f / 64);
    assert_true(isnan(bf16_to_float(float_to_bf16(bits_float(0x7F800001u)))));
}

/* E4M3 by its definition (OCP 8-bit floating point): (-1)^s 2^(e-7) (1 + m/8), (-1)^s 2^-6 m/8 where e = 0. */
static double e4m3(int code) {
    const int e = code >> 3 & 15, m = code & 7;
    if (e == 15 && m == 7) return NAN;
    const double size = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return code & 128 ? -size : size;
}

/* The nearest of all codes of x's sign, the even one of two. */
static int nearest_e4m3(float x) {
    int best = 0;
    for (int code = 1; code < 127; code++) {
        const double d = fabs(e4m3(code) - fabs((double)x)), b = fabs(e4m3(best) - fabs((double)x));
        if (d < b || (d == b && code % 2 == 0)) best = code;
    }
    return best | (signbit(x) ? 128 : 0);
}

static void fp8_is(float x, int code) {
    if (float_to_fp8(x) != code) fail_msg("%a: %02x, expected %02x", (double)x, float_to_fp8(x), (unsigned)code);
}

static void test_fp8(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        const float x = fp8_to_float((uint8_t)code);
        if (isnan(e4m3(code))) {
            assert_true(isnan(x));
            continue;
        }
        assert_true((double)x == e4m3(code) && !signbit(x) == (code < 128));
        fp8_is(x, code);
    }
    for (int sign = 0; sign < 256; sign += 128) /* all halfway cases, and the floats beside them */
        for (int code = 0; code < 126; code++) {
            const float a = (float)e4m3(code | sign), b = (float)e4m3((code + 1) | sign), half = (a + b) / 2;
            fp8_is(half, (code % 2 ? code + 1 : code) | sign);
            fp8_is(nextafterf(half, a), code | sign);
            fp8_is(nextafterf(half, b), (code + 1) | sign);
        }
    for (uint32_t i = 0; i < 300000;
         i++) { /* every exponent, from far below the smallest code to far above the largest */
        const float x = bits_float((uint32_t)((100 + i % 40) << 23 | (i * 2654435761u & 0x7FFFFF) | (i & 1u) << 31));
        fp8_is(x, nearest_e4m3(x));
    }
    fp8_is(464, 0x7E), fp8_is(nextafterf(464, INFINITY), 0x7E), fp8_is(480, 0x7E); /* saturates */
    fp8_is(-1e30f, 0xFE), fp8_is(INFINITY, 0x7E), fp8_is(-INFINITY, 0xFE), fp8_is(NAN, 0xFE);
    fp8_is(1e-45f, 0), fp8_is(-0.0f, 0x80);
}

/* Code i of n has its low nibble and the bits above it where docs/formats.md says, and no other bit is set. */
static void planes(int bits, int n, int8_t *q, uint8_t *low, uint8_t *high) {
    const int n_low = (n + 1) / 2, n_high = (int)high_bytes(bits, n), width = bits - 4;
    int8_t back[140];
    uint8_t rest_low[70], rest_high[35];
    memset(low, 0xFF, (size_t)n_low), memset(high, 0xFF, (size_t)n_high);
    if (bits == 6) pack_int6(q, n, low, high), unpack_int6(low, high, n, back);
    else pack_int5(q, n, low, high), unpack_int5(low, high, n, back);
    assert_memory_equal(back, q, (size_t)n);
    memcpy(rest_low, low, (size_t)n_low), memcpy(rest_high, high, (size_t)n_high);
    for (int i = 0; i < n; i++) {
        const int nibble = low[i / 2] >> 4 * (i % 2) & 15;
        const int above = high[i * width / 8] >> i * width % 8 & ((1 << width) - 1);
        assert_int_equal(nibble | above << 4, q[i] & ((1 << bits) - 1));
        rest_low[i / 2] = (uint8_t)(rest_low[i / 2] ^ nibble << 4 * (i % 2));
        rest_high[i * width / 8] = (uint8_t)(rest_high[i * width / 8] ^ above << i * width % 8);
    }
    for (int i = 0; i < n_low; i++) assert_int_equal(rest_low[i], 0);
    for (int i = 0; i < n_high; i++) assert_int_equal(rest_high[i], 0);
}

static void test_planes(void **state) {
    (void)state;
    for (int bits = 5; bits <= 6; bits++)
        for (int n = 1; n <= 140; n++) {
            int8_t *q = malloc((size_t)n); /* exactly: the sanitizer watches its ends */
            uint8_t *low = malloc((size_t)(n + 1) / 2), *high = malloc(high_bytes(bits, n));
            for (int seed = 0; seed < 8; seed++) {
                for (int i = 0; i < n; i++) q[i] = (int8_t)((i * 7 + seed * 37) % (1 << bits) - (1 << (bits - 1)));
                planes(bits, n, q, low, high);
            }
            free(q), free(low), free(high);
        }
    assert_int_equal(high_bytes(6, 32), 8);
    assert_int_equal(high_bytes(5, 33), 5);
    assert_int_equal(high_bytes(8, 32), 0);
}

static void test_round(void **state) {
    (void)state;
    for (int i = -400; i <= 400; i++) {
        float x = (float)i / 8;
        assert_true(round_even(x) == nearbyintf(x));
    }
    assert_true(clamp_code(NAN, 7) == -7 && clamp_code(INFINITY, 7) == 7 && clamp_code(-INFINITY, 7) == -7);
}

/* How far x may be from what is stored: half a step (a hair more for the division). */
static float half_step(const ebb_format *f, float x, float scale) {
    if (f->bits == 32) return 0;
    if (!strcmp(f->name, "fp8")) return fmaxf(fabsf(x) / 16, scale / 1024) * 1.0002f;
    return f->group ? scale * 0.5001f : fabsf(x) / 256 + 6e-8f;
}

/* Storing what was stored changes no code, and no scale by more than a rounding. */
static void test_blocks(void **state) {
    (void)state;
    int32_t n_formats;
    const ebb_format *f = ebb_formats(&n_formats);
    static const int64_t lengths[] = {1, 5, 31, 32, 33, 63, 65, 128, 200};
    static const float sizes[] = {0.0f, 1e-30f, 1e-3f, 1.0f, 6e4f};
    for (int32_t i = 0; i < n_formats; i++)
        for (size_t j = 0; j < sizeof lengths / sizeof lengths[0]; j++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                const int64_t n = lengths[j];
                const size_t bytes = ebb_format_code_bytes(&f[i], n);
                float x[200], y[200], z[200], scales[8], again[8];
                uint8_t *codes = malloc(bytes); /* exactly: the sanitizer watches its ends */
                for (int64_t k = 0; k < n; k++) x[k] = sizes[s] * sinf((float)(k * 7 + 3));
                f[i].encode(x, n, codes, scales);
                f[i].decode(codes, scales, n, y);
                f[i].encode(y, n, codes, again);
                f[i].decode(codes, again, n, z);
                for (int64_t k = 0; k < n; k++) {
                    const float bound = half_step(&f[i], x[k], f[i].group ? scales[k / f[i].group] : 0);
                    if (!(fabsf(y[k] - x[k]) <= bound))
                        fail_msg("%s: %g stored as %g", f[i].name, (double)x[k], (double)y[k]);
                    assert_true(fabsf(z[k] - y[k]) <= 2e-7f * fabsf(y[k]));
                }
                free(codes);
            }
    float hostile[64], back[64], scales[2];
    int8_t codes[64];
    for (int k = 0; k < 64; k++) hostile[k] = k == 3 ? NAN : k == 40 ? INFINITY : 1.0f;
    for (int32_t i = 0; i < n_formats; i++) {
        if (!f[i].group) continue;
        f[i].encode(hostile, 64, codes, scales);
        f[i].decode(codes, scales, 64, back);
        for (int k = 0; k < 64; k++) assert_true(isfinite(back[k]));
        assert_true(fabsf(back[3] + 1) < 1e-6f && back[40] > 2.9e38f); /* NaN is the most negative code */
    }
}

static void test_table(void **state) {
    (void)state;
    assert_null(ebb_format_find("int9"));
    assert_int_equal(ebb_format_code_bytes(ebb_format_find("int4"), 5), 3);
    assert_int_equal(ebb_format_scales(ebb_format_find("int8"), 33), 2);
    assert_int_equal(ebb_format_code_bytes(ebb_format_find("fp8"), 5), 5);
    assert_int_equal(ebb_format_scales(ebb_format_find("fp8"), 32), 1);
    assert_int_equal(ebb_type_bytes(EBB_BF16), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp16),  cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_fp8),   cmocka_unit_test(test_planes),
                                       cmocka_unit_test(test_round), cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
