/* test_format.c: storage formats: every 16-bit pattern, ties, saturation, NaN, odd lengths, and the CPU's own
 * conversions. */
#include "ebb/format.h"
#include "format/block_int.h"
#include "format/float16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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

static void test_round(void **state) {
    (void)state;
    for (int i = -400; i <= 400; i++) {
        float x = (float)i / 8;
        assert_true(round_even(x) == nearbyintf(x));
    }
    assert_true(clamp_code(NAN, 7) == -7 && clamp_code(INFINITY, 7) == 7 && clamp_code(-INFINITY, 7) == -7);
}

/* Integers: at most half a step off (a hair more for the division), and storing what was stored changes no code and no
 * scale by more than a rounding. */
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
                    float step = f[i].group ? scales[k / f[i].group] : 0;
                    float bound = f[i].bits == 32 ? 0 : f[i].group ? step * 0.5001f : fabsf(x[k]) / 256 + 6e-8f;
                    if (!(fabsf(y[k] - x[k]) <= bound))
                        fail_msg("%s: %g stored as %g", f[i].name, (double)x[k], (double)y[k]);
                    assert_true(fabsf(z[k] - y[k]) <= 2e-7f * fabsf(y[k]));
                }
                free(codes);
            }
    float hostile[64], back[64], scales[2];
    int8_t codes[64];
    for (int k = 0; k < 64; k++) hostile[k] = k == 3 ? NAN : k == 40 ? INFINITY : 1.0f;
    int8_encode_row(hostile, 64, codes, scales);
    int8_decode_row(codes, scales, 64, back);
    for (int k = 0; k < 64; k++) assert_true(isfinite(back[k]));
}

static void test_table(void **state) {
    (void)state;
    assert_null(ebb_format_find("int9"));
    assert_int_equal(ebb_format_code_bytes(ebb_format_find("int4"), 5), 3);
    assert_int_equal(ebb_format_scales(ebb_format_find("int8"), 33), 2);
    assert_int_equal(ebb_type_bytes(EBB_BF16), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp16), cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_round), cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
