/* tests/test_kv_codecs.c: the low-bit codecs of KV stores: hand-made vectors, every byte against a second, plain
 * implementation written from docs/formats.md, error bounds in FP64, and hostile values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv_int.h"
#include "kv/token.h"

enum { BOTH = EBB_ROLE_K | EBB_ROLE_V, MOST = 32 * 3 * EBB_MAX_HEAD_DIM };

static const ebb_kv_layer layers[] = {
    {.q_heads = 1, .heads = 1, .parts = 2, .part = {{64, EBB_ROLE_K}, {64, EBB_ROLE_V}}, .scale = 1},
    {.q_heads = 1, .heads = 1, .parts = 2, .part = {{80, EBB_ROLE_K}, {96, EBB_ROLE_V}}, .scale = 1},
    {.q_heads = 1, .heads = 1, .parts = 2, .part = {{128, EBB_ROLE_K}, {128, EBB_ROLE_V}}, .scale = 1},
    {.q_heads = 1, .heads = 1, .parts = 2, .part = {{192, EBB_ROLE_K}, {256, EBB_ROLE_V}}, .scale = 1},
    {.q_heads = 1, .heads = 1, .parts = 2, .part = {{512, BOTH}, {64, EBB_ROLE_K}}, .scale = 1},
    {.q_heads = 1, .heads = 1, .parts = 3, .part = {{4, EBB_ROLE_K}, {36, BOTH}, {12, EBB_ROLE_K}}, .scale = 1},
};

static ebb_kv_spec spec_of(const char *text) {
    ebb_kv_spec spec;
    assert_int_equal(ebb_kv_parse(text, &spec, NULL), EBB_OK);
    return spec;
}

static ebb_planes planes_of(const ebb_kv_spec *spec, const ebb_kv_layer *layer) {
    ebb_planes planes;
    ebb_kv_rule rule;
    assert_int_equal(spec->method->codec->layout(layer, spec->param, &rule, &planes, NULL), EBB_OK);
    assert_int_equal(planes.scratch, 0);
    return planes;
}

/* Normal numbers with a few large channels. */
static void fill(float *x, int32_t n, uint64_t seed, float size) {
    for (int32_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint64_t k = 0; k < 6; k++) sum += (double)(mix64(seed + 8 * (uint64_t)i + k) >> 11) * 0x1p-53 - 0.5;
        x[i] = (float)sum * size * (i % 37 == 5 ? 8.0f : 1.0f);
    }
}

/* The FP16 number nearest to x >= 0, ties to even, in FP64: what float16.h does with bits. */
static double nearest_fp16(double x) {
    int exponent;
    frexp(x, &exponent);
    const double step = ldexp(1, exponent - 11 > -24 ? exponent - 11 : -24), y = nearbyint(x / step) * step;
    return y > 65504 ? 65504 : y;
}

/* ---- token: hand-made ---- */

static void test_token_by_hand(void **state) {
    (void)state;
    static const struct {
        const char *method;
        float x[8]; /* key of 4, value of 4 */
        uint8_t bytes[16];
        size_t n;
    } cases[] = {
        /* s = 1 (3C00): -3.5 goes to -4, 2.5 to 2 */
        {"k4v4", {7, -3.5f, 0, 1, -7, 2.5f, 6, .25f}, {0xC7, 0x10, 0x00, 0x3C, 0x29, 0x06, 0x00, 0x3C}, 8},
        /* s = 2 (4000): 127, -64 (of -63.5), 0, 0 (of a half) */
        {"k8v8", {254, -127, 0, 1, -254, 3, 2, 0}, {127, 192, 0, 0, 0, 0x40, 129, 2, 1, 0, 0, 0x40}, 12},
        /* the published three: s = 1 */
        {"k8v8:k=2,v=2,grid=paper", {1, -1, .4f, .6f, 0, 0, .5f, -1}, {0x4D, 0, 0x3C, 0xC0, 0, 0x3C}, 6},
        /* four levels: 1.5, -1.5, .5, -.5 times 2, and of a half */
        {"k8v8:k=2,v=2", {3, -3, 1, -1, .25f, .25f, -.75f, .75f}, {0xC9, 0, 0x40, 0x60, 0, 0x38}, 6},
    };
    const ebb_kv_layer four = {
        .q_heads = 1, .heads = 1, .parts = 2, .part = {{4, EBB_ROLE_K}, {4, EBB_ROLE_V}}, .scale = 1};
    for (int32_t i = 0; i < COUNT(cases); i++) {
        ebb_kv_spec spec = spec_of(cases[i].method);
        uint8_t packed[17];
        memset(packed, 0xAB, sizeof packed);
        assert_int_equal(planes_of(&spec, &four).bytes, cases[i].n);
        spec.method->codec->encode(&four, spec.param, cases[i].x, packed, NULL);
        assert_memory_equal(packed, cases[i].bytes, cases[i].n);
        assert_int_equal(packed[cases[i].n], 0xAB);
    }
}

/* ---- token: a second implementation ---- */

static double plain_scale(const float *x, int32_t n, int32_t bits, bool levels) {
    if (levels) {
        float squares = 0;
        for (int32_t i = 0; i < n; i++) squares += x[i] * x[i];
        float s = sqrtf(squares / (float)n);
        for (int step = 0; step < 4; step++) {
            float top = 0, bottom = 0;
            for (int32_t i = 0; i < n; i++) {
                const bool outer = fabsf(x[i]) > s;
                top += fabsf(x[i]) * (outer ? 1.5f : .5f);
                bottom += outer ? 2.25f : .25f;
            }
            s = top / bottom;
        }
        return nearest_fp16(s > 0x1p-24 ? (double)s : 0x1p-24);
    }
    float most = 1e-5f;
    for (int32_t i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    return nearest_fp16((double)(most / (float)((1 << (bits - 1)) - 1)));
}

static int32_t plain_code(float x, double s, int32_t bits, bool levels) {
    if (levels) return (double)x > s ? 1 : x >= 0 ? 0 : (double)x >= -s ? -1 : -2;
    const float qmax = (float)((1 << (bits - 1)) - 1), q = nearbyintf(x / (float)s);
    return (int32_t)(q > qmax ? qmax : q < -qmax ? -qmax : q);
}

/* Bytes and values of one part; moves both on. */
static void check_part(const float *x, const float *back, int32_t n, int32_t bits, bool levels, const uint8_t **at) {
    const double s = plain_scale(x, n, bits, levels);
    uint16_t stored;
    uint8_t expected[EBB_MAX_HEAD_DIM] = {0};
    for (int32_t i = 0; i < n; i++) {
        const int32_t c = plain_code(x[i], s, bits, levels);
        expected[i * bits / 8] |= (uint8_t)((uint32_t)(c & ((1 << bits) - 1)) << i * bits % 8);
        const double value = (c + (levels ? .5 : 0)) * s, most = levels ? 2 * s : ((1 << (bits - 1)) - .5) * s;
        assert_true((double)back[i] == (double)(float)value);
        if (fabs((double)x[i]) <= most) assert_true(fabs((double)back[i] - (double)x[i]) <= s / 2 * (1 + 0x1p-20));
    }
    assert_memory_equal(*at, expected, (size_t)(n * bits / 8));
    memcpy(&stored, *at + n * bits / 8, sizeof stored);
    assert_true((double)fp16_to_float(stored) == s);
    *at += n * bits / 8 + 2;
}

static void test_token(void **state) {
    (void)state;
    static const struct {
        const char *method;
        int32_t k, v;
        bool paper;
    } rows[] = {{"k8v8", 8, 8, false},        {"k4v4", 4, 4, false},           {"k4v2", 4, 2, false},
                {"k2v4", 2, 4, false},        {"k2v4:grid=paper", 2, 4, true}, {"k8v8:k=4,v=8", 4, 8, false},
                {"hyquant-k4v2", 4, 2, false}};
    static const float sizes[] = {1, 1e-4f, 3e4f, 1e-9f};
    float x[MOST], back[MOST];
    uint8_t packed[4096];
    for (int32_t m = 0; m < COUNT(rows); m++)
        for (int32_t l = 0; l < COUNT(layers); l++)
            for (int32_t k = 0; k < COUNT(sizes); k++) {
                const ebb_kv_layer *layer = &layers[l];
                ebb_kv_spec spec = spec_of(rows[m].method);
                const ebb_planes planes = planes_of(&spec, layer);
                const int32_t all = kv_shape_of(layer).all;
                fill(x, all, (uint64_t)(m * 100 + l), sizes[k]);
                spec.method->codec->encode(layer, spec.param, x, packed, NULL);
                spec.method->codec->decode(layer, spec.param, packed, back);
                const uint8_t *at = packed;
                for (int32_t i = 0, d = 0; i < layer->parts; d += layer->part[i++].dims) {
                    const int32_t bits = layer->part[i].role & EBB_ROLE_K ? rows[m].k : rows[m].v;
                    assert_ptr_equal(packed + planes.plane[2 * i].at, at);
                    check_part(x + d, back + d, layer->part[i].dims, bits, bits == 2 && !rows[m].paper, &at);
                }
                assert_int_equal(at - packed, planes.bytes);
                int8_t code[EBB_MAX_HEAD_DIM * 3];
                float scale[3];
                spec.method->codec->codes(layer, spec.param, packed, code, scale);
                for (int32_t i = 0, d = 0; i < layer->parts && layer->part[i].role & EBB_ROLE_K; i++)
                    for (int32_t end = d + layer->part[i].dims; d < end; d++)
                        assert_true((float)code[d] * scale[i] == back[d]);
            }
}

/* The four levels are within 2 % of the best scale there is, found by trying every split of the sorted magnitudes. */
static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void test_levels(void **state) {
    (void)state;
    enum { N = 128 };
    float x[2 * N], back[2 * N], sorted[N];
    uint8_t packed[256];
    ebb_kv_spec spec = spec_of("k8v8:k=2,v=2"), paper = spec_of("k8v8:k=2,v=2,grid=paper");
    double ls = 0, best = 0, three = 0, power = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        fill(x, 2 * N, seed << 20, 1);
        for (int i = 5; i < 2 * N; i += 37) x[i] *= .125f; /* no outliers: they are what three levels serve */
        spec.method->codec->encode(&layers[2], spec.param, x, packed, NULL);
        spec.method->codec->decode(&layers[2], spec.param, packed, back);
        double sum = 0, squares = 0, outer = 0, gain = 0;
        for (int i = 0; i < N; i++) {
            ls += pow((double)back[i] - (double)x[i], 2);
            sorted[i] = fabsf(x[i]);
            sum += (double)sorted[i], squares += (double)sorted[i] * (double)sorted[i];
        }
        qsort(sorted, N, sizeof *sorted, descending);
        for (int m = 0; m <= N; m++) { /* m outer ones: the error is squares - top^2 / bottom */
            const double top = .5 * sum + outer, bottom = .25 * N + 2.0 * m;
            gain = fmax(gain, top * top / bottom);
            if (m < N) outer += (double)sorted[m];
        }
        best += squares - gain;
        power += squares;
        paper.method->codec->encode(&layers[2], paper.param, x, packed, NULL);
        paper.method->codec->decode(&layers[2], paper.param, packed, back);
        for (int i = 0; i < N; i++) three += pow((double)back[i] - (double)x[i], 2);
    }
    assert_true(ls < 1.02 * best);
    assert_true(ls < .6 * three);
    assert_true(three > .3 * power);
}

/* ---- KIVI ---- */

static void kivi_group(const float *x, int32_t n, int32_t step, int32_t bits, const float *back, const uint16_t *pair,
                       uint32_t *codes) {
    const float qmax = (float)((1 << bits) - 1);
    float lo = INFINITY, hi = -INFINITY;
    for (int32_t i = 0; i < n; i++) lo = fminf(lo, x[i * step]), hi = fmaxf(hi, x[i * step]);
    const float s = (float)nearest_fp16((double)((hi - lo) / qmax)),
                z = (float)copysign(nearest_fp16(fabs((double)lo)), (double)lo);
    assert_true(fp16_to_float(pair[0]) == s && fp16_to_float(pair[1]) == z);
    for (int32_t i = 0; i < n; i++) {
        float q = s > 0 ? nearbyintf((x[i * step] - z) / s) : 0;
        q = q < 0 ? 0 : q > qmax ? qmax : q;
        codes[i * step] = (uint32_t)q;
        assert_true(back[i * step] == q * s + z);
        const double bound = (double)s * .5 + ((double)s * (double)qmax + fabs((double)z)) * 0x1p-10 + 0x1p-24 * qmax;
        assert_true(fabs((double)back[i * step] - (double)x[i * step]) <= bound);
    }
}

static void test_kivi(void **state) {
    (void)state;
    enum { G = 32 };
    float *x = calloc(MOST, sizeof *x), *back = calloc(MOST, sizeof *back);
    uint32_t *codes = calloc(MOST, sizeof *codes);
    uint8_t *packed = aligned_new(MOST * 4);
    for (int32_t bits = 2; bits <= 4; bits += 2)
        for (int32_t l = 0; l < COUNT(layers); l++)
            for (int32_t size = 0; size < 3; size++) {
                const ebb_kv_layer *layer = &layers[l];
                ebb_kv_spec spec = spec_of(bits == 2 ? "kivi2" : "kivi4");
                const ebb_planes planes = planes_of(&spec, layer);
                fill(x, G * kv_shape_of(layer).all, (uint64_t)(l + bits), size == 0 ? 1 : size == 1 ? 1e3f : 0);
                spec.method->codec->encode(layer, spec.param, x, packed, NULL);
                spec.method->codec->decode(layer, spec.param, packed, back);
                for (int32_t p = 0, at = 0; p < layer->parts; at += G * layer->part[p++].dims) {
                    const int32_t dims = layer->part[p].dims;
                    const uint16_t *pair = (const uint16_t *)(const void *)(packed + planes.plane[2 * p + 1].at);
                    const uint8_t *code = packed + planes.plane[2 * p].at;
                    if (layer->part[p].role & EBB_ROLE_K)
                        for (int32_t d = 0; d < dims; d++)
                            kivi_group(x + at + d, G, dims, bits, back + at + d, pair + 2 * d, codes + at + d);
                    else
                        for (int32_t t = 0; t < G; t++)
                            for (int32_t d = 0; d < dims; d += G, pair += 2) {
                                const int32_t from = at + t * dims + d;
                                kivi_group(x + from, dims - d < G ? dims - d : G, 1, bits, back + from, pair,
                                           codes + from);
                            }
                    for (int32_t i = 0; i < G * dims; i++)
                        assert_int_equal(code[i * bits / 8] >> i * bits % 8 & ((1 << bits) - 1), codes[at + i]);
                }
            }
    free(x), free(back), free(codes), free(packed);
}

/* ---- HQQ ---- */

static void test_hqq(void **state) {
    (void)state;
    enum { TOKENS = 301, HEADS = 3, K = 20, V = 12 };
    ebb_kv_layer layer = {
        .q_heads = HEADS, .heads = HEADS, .parts = 2, .part = {{K, EBB_ROLE_K}, {V, EBB_ROLE_V}}, .scale = 1};
    ebb_device *device;
    assert_int_equal(ebb_device_open("cpu", NULL, &device, NULL), EBB_OK);
    for (int32_t bits = 2; bits <= 4; bits += 2) {
        ebb_kv_spec spec = spec_of(bits == 2 ? "kivi-hqq" : "kivi-hqq:bits=4");
        ebb_kv_pool_config config = {sizeof config, &spec, &layer, 1, 2, 400, 0, 0, NULL};
        ebb_kv_pool *pool;
        assert_int_equal(ebb_kv_pool_open(device, &config, &pool, NULL), EBB_OK);
        assert_int_equal(ebb_kv_pool_reserve(pool, 0, 300, NULL), EBB_OK);
        assert_int_equal(ebb_kv_pool_reserve(pool, 1, 301, NULL), EBB_OK);
        const ebb_kv_view *v = ebb_kv_pool_view(pool, 0);
        assert_true(v->rule.window[0] == 256 && !v->rule.pure && !v->rule.tail && v->extra);
        static float flat[2][HEADS * TOKENS * K];
        ebb_planes planes = planes_of(&spec, &layer);
        for (int32_t h = 0; h < HEADS; h++)
            for (int32_t t = 0; t < TOKENS; t++) {
                float row[K + V];
                uint8_t packed[2 * (K + V)];
                fill(row, K + V, (uint64_t)(h * TOKENS + t) << 16, 2);
                kv_put(v, &planes, 1, h, t, row, packed, NULL);
                kv_get(v, &planes, 1, h, t, row, packed);
                memcpy(&flat[0][(h * TOKENS + t) * K], row, sizeof(float) * K);
                memcpy(&flat[1][(h * TOKENS + t) * V], row + K, sizeof(float) * V);
            }
        v->codec->rewrite(v, 1, TOKENS, NULL);
        for (int32_t p = 0; p < 2; p++) {
            const int32_t dims = p ? V : K, all = HEADS * TOKENS * dims, n = (all + 63) / 64;
            const float qmax = (float)((1 << bits) - 1);
            for (int32_t j = 0; j < n; j++) {
                float lo = INFINITY, hi = -INFINITY;
                for (int32_t e = j; e < all; e += n) lo = fminf(lo, flat[p][e]), hi = fmaxf(hi, flat[p][e]);
                const float f = fminf(hi > lo ? qmax / (hi - lo) : 2e4f, 2e4f), z = -lo * f;
                for (int32_t e = j; e < all; e += n) {
                    const float q = fminf(fmaxf(nearbyintf(flat[p][e] * f + z), 0), qmax);
                    float row[K + V];
                    uint8_t packed[2 * (K + V)];
                    kv_get(v, &planes, 1, e / (TOKENS * dims), e / dims % TOKENS, row, packed);
                    const float got = row[(p ? K : 0) + e % dims], value = (q - z) / f;
                    assert_true(got == fp16_to_float(float_to_fp16(value)));
                    assert_true(fabsf(got - flat[p][e]) <= .5f / f * 1.001f + fabsf(flat[p][e]) * 0x1p-10f);
                }
            }
        }
        ebb_kv_pool_close(pool);
    }
    ebb_device_close(device);
}

/* ---- hostile values ---- */

/* Whatever comes in, what comes out is finite, and no operation is undefined (sanitizers see that). */
static void test_hostile(void **state) {
    (void)state;
    static const float values[] = {0,       -0.0f,  INFINITY, -INFINITY, NAN,   3e38f, -3e38f, 1e-45f,
                                   -1e-40f, 1e-38f, 65504,    -65520,    1e-5f, 1e20f, 7,      1};
    static const char *const methods[] = {"k8v8", "k4v4", "k4v2", "k2v4", "k2v4:grid=paper", "kivi4", "kivi2"};
    float *x = calloc(MOST, sizeof *x), *back = calloc(MOST, sizeof *back);
    uint8_t *packed = aligned_new(MOST * 4);
    for (int32_t m = 0; m < COUNT(methods); m++)
        for (int32_t round = 0; round < COUNT(values) + 40; round++) {
            const ebb_kv_layer *layer = &layers[round % COUNT(layers)];
            ebb_kv_spec spec = spec_of(methods[m]);
            const int32_t n = 32 * kv_shape_of(layer).all;
            for (int32_t i = 0; i < n; i++)
                x[i] = round < COUNT(values) ? values[round]
                                             : values[mix64((uint64_t)(round * 100000 + i)) % COUNT(values)];
            const bool group = spec.method->codec == &kv_codec_kivi;
            spec.method->codec->encode(layer, spec.param, x, packed, NULL);
            spec.method->codec->decode(layer, spec.param, packed, back);
            for (int32_t i = 0; i < (group ? n : n / 32); i++) assert_true(isfinite(back[i]));
        }
    /* All zeros stay zeros but where there is no level for them, and there they are below any number of a model. */
    ebb_kv_spec four = spec_of("k4v2");
    memset(x, 0, MOST * sizeof *x);
    four.method->codec->encode(&layers[0], four.param, x, packed, NULL);
    four.method->codec->decode(&layers[0], four.param, packed, back);
    for (int32_t i = 0; i < 128; i++) assert_true(i < 64 ? back[i] == 0 : back[i] == 0x1p-25f);
    free(x), free(back), free(packed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_by_hand), cmocka_unit_test(test_token), cmocka_unit_test(test_levels),
        cmocka_unit_test(test_kivi),          cmocka_unit_test(test_hqq),   cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
