/* test_codec_block.c: the plain formats in all their forms: scales and codes against a definition of their own, the
 * bytes of the methods of old, what least squares promises, stochastic rounding and what its numbers are keyed by, and
 * the fast rows' reading of forms that no method has a name for. */
#include "delta_world.h"
#include "heavy_head.h"
#include "must.h"
#include "state/block.h"

static ebb_device *device;

/* ---- sizes ---- */

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *method;
        int32_t dk, dv;
        size_t bytes;
    } table[] = {{"fp32", 128, 128, 65536},
                 {"bf16-stoch", 128, 128, 32768},
                 {"int8", 128, 128, 18432},
                 {"int8-stoch", 128, 128, 18432},
                 {"int8-ls", 128, 128, 18432},
                 {"int8-fp16s", 128, 128, 17408},
                 {"int8-bf16s", 128, 128, 17408},
                 {"int8-row", 128, 128, 16896},
                 {"int8-col", 128, 128, 16896},
                 {"int6", 128, 128, 14336},
                 {"int6:group=row", 128, 128, 12800},
                 {"int5", 128, 128, 12288},
                 {"int4-row", 128, 128, 8704},
                 {"int4-col:scale=fp16", 128, 128, 8448},
                 {"fp8:scale=bf16", 128, 128, 17408},
                 {"int6", 7, 5, 24 + 16 + 28}, /* rows of 3 and 2 bytes, each plane from a multiple of 4 */
                 {"int5", 7, 5, 24 + 8 + 28},
                 {"int4:scale=bf16", 7, 37, 136 + 28},
                 {"int8-col:scale=fp16", 7, 5, 36 + 10}};
    for (int i = 0; i < COUNT(table); i++) {
        one_head t;
        head_open(&t, table[i].method, table[i].dk, table[i].dv);
        if (t.planes.bytes != table[i].bytes)
            fail_msg("%s: %zu bytes, expected %zu", table[i].method, t.planes.bytes, table[i].bytes);
        const int32_t last = t.planes.n - 1;
        assert_int_equal(t.planes.plane[last].at + t.planes.plane[last].bytes, t.planes.bytes);
        for (int32_t p = 1; p <= last; p++) {
            const size_t end = t.planes.plane[p - 1].at + t.planes.plane[p - 1].bytes;
            assert_int_equal(t.planes.plane[p].at, align_up(end, 4));
        }
        head_close(&t);
    }
}

/* The bytes that the methods of old had before there were other forms. */
static void test_golden(void **state) {
    (void)state;
    static const struct {
        const char *method;
        uint64_t hash;
    } golden[] = {{"fp32", 0x8e5e81d060c990eeu}, {"fp16", 0x0f0d4541814ad9a4u}, {"bf16", 0x1f7ea6f44a43f4e6u},
                  {"fp8", 0x96d0825eb36a5636u},  {"int8", 0x684d199e5cbd17a3u}, {"int4", 0x152aadb7a17cb05cu}};
    float S[37 * 45];
    for (int i = 0; i < COUNT(golden); i++) {
        one_head t;
        head_open(&t, golden[i].method, 37, 45);
        heavy_fill(S, 37, 45, 8);
        head_put(&t, S);
        const uint64_t hash = hash64(HASH64_BEGIN, t.packed, t.planes.bytes);
        if (hash != golden[i].hash) fail_msg("%s: bytes of hash %016llx", golden[i].method, (unsigned long long)hash);
        head_close(&t);
    }
}

/* ---- every form against its definition ---- */

static const char *const formats[] = {"fp8", "int8", "int6", "int5", "int4"};
static const char *const groups[] = {"32", "row", "column"}, *const scales[] = {"fp32", "fp16", "bf16"},
                         *const fits[] = {"max", "ls"};
static const int32_t shapes[][2] = {{128, 128}, {9, 33}, {7, 5}, {2, 52}, {1, 1}, {33, 1}, {16, 96}};

typedef struct form {
    int format, group, scale, fit; /* places in those arrays */
    char method[96];
} form;

typedef void (*form_fn)(const form *f, int32_t dk, int32_t dv);

static void for_each(form_fn fn) {
    for (int i = 0; i < COUNT(formats) * 18; i++) {
        form f = {i / 18, i / 6 % 3, i / 2 % 3, i % 2, ""};
        if (f.format == 0 && f.group != 0) continue;
        snprintf(f.method, sizeof f.method, "%s:group=%s,scale=%s,fit=%s", formats[f.format], groups[f.group],
                 scales[f.scale], fits[f.fit]);
        for (int s = 0; s < COUNT(shapes); s++) fn(&f, shapes[s][0], shapes[s][1]);
    }
}

static int bits_of(const form *f) { return f->format ? atoi(formats[f->format] + 3) : 8; }

/* Which scale the value u, v has. */
static int32_t scale_at(const form *f, int32_t dv, int32_t u, int32_t v) {
    return f->group == 0 ? u * ((dv + 31) / 32) + v / 32 : f->group == 1 ? u : v;
}

static double stored_scale(const one_head *t, const form *f, int32_t i) {
    const uint8_t *at = head_plane(t, "scales");
    float x;
    uint16_t half;
    if (f->scale == 0) {
        memcpy(&x, at + (size_t)i * 4, 4);
        return x;
    }
    memcpy(&half, at + (size_t)i * 2, 2);
    return f->scale == 1 ? fp16_to_float(half) : bf16_to_float(half);
}

/* The code of u, v, by the layout of docs/formats.md: what fp8 codes mean, or a whole number. */
static double stored_code(const one_head *t, const form *f, int32_t dv, int32_t u, int32_t v) {
    const uint8_t *codes = head_plane(t, "codes");
    const int bits = bits_of(f), top = bits - 4;
    if (f->format == 0) return fp8_to_float(codes[u * dv + v]);
    if (bits == 8) return (int8_t)codes[u * dv + v];
    int code = codes[u * ((dv + 1) / 2) + v / 2] >> (v % 2 ? 4 : 0) & 15;
    if (top) {
        const uint8_t *high = head_plane(t, "high") + (size_t)u * (size_t)((dv * top + 7) / 8);
        code |= (high[v * top / 8] >> (v * top % 8) & ((1 << top) - 1)) << 4;
    }
    return code >> (bits - 1) ? code - (1 << bits) : code;
}

static double to_type(double x, int type) {
    if (type == 0) return (double)(float)x;
    if (type == 1) return fmax(fp16_to_float(float_to_fp16((float)x)), ldexp(1, -24));
    return bf16_to_float(float_to_bf16((float)x));
}

static double relative(double a, double b) { return fabs(a - b) / (fabs(b) + 1e-300); }

/* Codes are x / s to nearest even; s is amax / qmax in its type, or least squares over the codes; values are s code. */
static void form_is_the_definition(const form *f, int32_t dk, int32_t dv) {
    const int32_t n = dk * dv, n_scales = scale_at(f, dv, dk - 1, dv - 1) + 1;
    const float qmax = f->format ? (float)((1 << (bits_of(f) - 1)) - 1) : 448;
    float *S = malloc((size_t)n * sizeof *S), *D = malloc((size_t)n * sizeof *D);
    double *amax = calloc((size_t)n_scales * 3, sizeof *amax), *over = amax + n_scales, *under = over + n_scales;
    one_head t;
    head_open(&t, f->method, dk, dv);
    heavy_fill(S, dk, dv, 4);
    head_store(&t, S, D);
    for (int32_t i = 0; i < n; i++) {
        double *top = &amax[scale_at(f, dv, i / dv, i % dv)];
        *top = fmax(*top, fabs((double)S[i]));
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t at = scale_at(f, dv, i / dv, i % dv);
        const float start = (float)amax[at] / qmax, step = f->fit ? start : (float)to_type((double)start, f->scale);
        const float y = clamp_code(S[i] / step, qmax);
        const double want = f->format ? nearbyint((double)y) : (double)fp8_to_float(float_to_fp8(y));
        const double code = stored_code(&t, f, dv, i / dv, i % dv), s = stored_scale(&t, f, at);
        if (code != want) fail_msg("%s %dx%d: code %g at %d, expected %g", f->method, dk, dv, code, i, want);
        assert_true(D[i] == (float)(s * code));
        over[at] += S[i] * code, under[at] += code * code;
    }
    for (int32_t i = 0; i < n_scales; i++) {
        const double start = (double)((float)amax[i] / qmax), s = stored_scale(&t, f, i);
        const double want = f->fit && under[i] > 0 ? over[i] / under[i] : start;
        const double last_place = f->scale == 0 ? 1e-6 : f->scale == 1 ? 5e-4 : 4e-3; /* a tie may fall either way */
        if (f->fit ? relative(s, want) > last_place : s != to_type(want, f->scale))
            fail_msg("%s %dx%d: scale %g, expected %g", f->method, dk, dv, s, want);
    }
    head_close(&t);
    free(S), free(D), free(amax);
}
static void test_definition(void **state) {
    (void)state;
    for_each(form_is_the_definition);
}

/* Least squares in FP32: no group grows, and none is further from its values than the largest magnitude leaves it. */
static void ls_is_a_projection(const form *f, int32_t dk, int32_t dv) {
    if (!f->fit || f->scale || dk * dv < 32) return;
    const int32_t n = dk * dv;
    float *S = malloc((size_t)n * 3 * sizeof *S), *D = S + n, *M = D + n;
    char other[96];
    one_head t;
    heavy_fill(S, dk, dv, 6);
    head_open(&t, f->method, dk, dv);
    head_store(&t, S, D);
    head_close(&t);
    snprintf(other, sizeof other, "%s:group=%s", formats[f->format], groups[f->group]);
    head_open(&t, other, dk, dv);
    head_store(&t, S, M);
    head_close(&t);
    for (int32_t g = 0; g <= scale_at(f, dv, dk - 1, dv - 1); g++) {
        double size = 0, kept = 0, ls = 0, max = 0;
        for (int32_t i = 0; i < n; i++) {
            if (scale_at(f, dv, i / dv, i % dv) != g) continue;
            size += S[i] * S[i], kept += D[i] * D[i];
            ls += (S[i] - D[i]) * (S[i] - D[i]), max += (S[i] - M[i]) * (S[i] - M[i]);
        }
        if (!(kept <= size * (1 + 1e-6)) || !(ls <= max * (1 + 1e-4) + 1e-12 * size))
            fail_msg("%s %dx%d, group %d: norm %g of %g, error %g, max fit %g", f->method, dk, dv, g, sqrt(kept),
                     sqrt(size), sqrt(ls), sqrt(max));
    }
    free(S);
}
static void test_least_squares(void **state) {
    (void)state;
    for_each(ls_is_a_projection);
}

/* Finite values stay finite in every form, NaN and infinities come back as numbers, padding is 0. */
static void stays_finite(const form *f, int32_t dk, int32_t dv) {
    static const float values[] = {0.0f, -0.0f, 1e-42f,  1e-30f,  6e-8f,    1.49f, 65504,    7e4f,
                                   1e7f, 1e30f, 2.9e38f, 3.4e38f, -3.4e38f, NAN,   INFINITY, -INFINITY};
    const int n = dk * dv;
    char stoch[112];
    snprintf(stoch, sizeof stoch, "%s,round=stoch", f->method);
    float *S = malloc((size_t)n * sizeof *S), *D = malloc((size_t)n * sizeof *D);
    for (int how = 0; how < 2; how++) {
        if (how && !f->format) continue;
        one_head t;
        head_open(&t, how ? stoch : f->method, dk, dv);
        for (int i = 0; i < COUNT(values) && n < 2000; i++)
            for (int j = 0; j < COUNT(values); j++) {
                for (int v = 0; v < n; v++) S[v] = v % 5 ? values[i] : values[j];
                head_store(&t, S, D);
                for (int v = 0; v < n; v++)
                    if (!isfinite(D[v]))
                        fail_msg("%s: %g beside %g became %g", f->method, (double)values[i], (double)values[j],
                                 (double)D[v]);
            }
        for (int32_t p = 1; p < t.planes.n && n < 2000; p++)
            for (size_t at = t.planes.plane[p - 1].at + t.planes.plane[p - 1].bytes; at < t.planes.plane[p].at; at++)
                assert_int_equal(t.packed[at], 0);
        head_close(&t);
    }
    free(S), free(D);
}
static void test_finite(void **state) {
    (void)state;
    for_each(stays_finite);
}

/* ---- stochastic rounding ---- */

/* One of the two neighbours, each as often as makes the mean x: over all numbers that are drawn from, exactly; what is
 * representable stays. */
static void check_half(float x, bool fp16) {
    const uint32_t draws = fp16 ? 1u << 13 : 1u << 16;
    float least = INFINITY, most = -INFINITY;
    double sum = 0;
    for (uint32_t r = 0; r < draws; r++) {
        const float y = fp16 ? fp16_to_float(float_to_fp16_stoch(x, r | 0xABC00000u))
                             : bf16_to_float(float_to_bf16_stoch(x, r | 0xABC00000u));
        least = fminf(least, y), most = fmaxf(most, y), sum += (double)y / draws;
    }
    const float even = fp16 ? fp16_to_float(float_to_fp16(x)) : bf16_to_float(float_to_bf16(x));
    if (even == x) assert_true(least == x && most == x);
    assert_true(least <= x && x <= most && (even == least || even == most));
    if (fabs(sum - (double)x) > (double)(most - least) / 4096)
        fail_msg("%s of %a: mean %a between %a and %a", fp16 ? "fp16" : "bf16", (double)x, sum, (double)least,
                 (double)most);
}

static void test_halves(void **state) {
    (void)state;
    static const float some[] = {1.0f,     1.0001f, -1.0007f, 3.14159f, 2047.3f, -65503.7f, 6.1e-5f,
                                 6.09e-5f, 1e-5f,   -3.1e-7f, 5.9e-8f,  2e-8f,   0.0f,      0.33333f};
    for (int i = 0; i < COUNT(some); i++) check_half(some[i], true), check_half(some[i], false);
    check_half(1e30f, false), check_half(-1e-35f, false), check_half(1e-40f, false);
    for (uint32_t h = 0; h < 65536; h++)
        for (int high = 0; high < 2; high++) {
            const float x = fp16_to_float((uint16_t)h), y = bf16_to_float((uint16_t)h);
            const uint32_t random = high ? 0xFFFFFFFFu : 0;
            if (isfinite(x)) assert_true(fp16_to_float(float_to_fp16_stoch(x, random)) == x);
            if (!isnan(y)) assert_int_equal(float_to_bf16_stoch(y, random), h);
            else assert_true(isnan(bf16_to_float(float_to_bf16_stoch(y, random))));
        }
    assert_true(isnan(fp16_to_float(float_to_fp16_stoch(NAN, 77))));
    for (int high = 0; high < 2; high++) { /* nothing finite becomes infinite */
        assert_int_equal(float_to_fp16_stoch(-1e9f, high ? 0xFFFFFFFFu : 0), 0xFBFF);
        assert_int_equal(float_to_fp16_stoch(65519.0f, high ? 0xFFFFFFFFu : 0), 0x7BFF);
        assert_int_equal(float_to_bf16_stoch(3.4e38f, high ? 0xFFFFFFFFu : 0), 0x7F7F);
        assert_int_equal(float_to_bf16_stoch(-3.4e38f, high ? 0xFFFFFFFFu : 0), 0xFF7F);
    }
}

static void test_whole_numbers(void **state) {
    (void)state;
    static const float some[] = {0.25f, -0.75f, 7.3f, -126.5f, 126.99f, 1e-3f, 31.0f / 3};
    for (int i = 0; i < COUNT(some); i++) {
        double sum = 0;
        for (uint32_t r = 0; r < 8192; r++) {
            const float z = round_stoch(some[i], r | 0xFFFFE000u);
            assert_true(z == floorf(some[i]) || z == ceilf(some[i]));
            sum += (double)z / 8192;
        }
        assert_true(fabs(sum - (double)some[i]) <= 1.0 / 8192);
    }
    for (int q = -127; q <= 127; q++)
        for (int e = -1; e <= 1; e++) /* beside a whole number, as far as FP32 brings a code that was read back */
            for (uint32_t r = 0; r < 8192; r += 4095)
                assert_true(round_stoch((float)q * (1 + 3.6e-7f * (float)e), r) == (float)q);
}

/* The mean over many stores is the matrix. */
static void test_unbiased(void **state) {
    (void)state;
    enum { DK = 4, DV = 40, STORES = 4000 };
    static const char *const methods[] = {"fp16-stoch",
                                          "bf16-stoch",
                                          "int8-stoch",
                                          "int4:round=stoch",
                                          "int6:round=stoch,group=column",
                                          "int5:round=stoch,group=row,scale=bf16"};
    for (int m = 0; m < COUNT(methods); m++) {
        float S[DK * DV], D[DK * DV];
        double mean[DK * DV] = {0}, spread[DK * DV] = {0};
        one_head t;
        head_open(&t, methods[m], DK, DV);
        heavy_fill(S, DK, DV, 2);
        for (t.head.pos = 0; t.head.pos < STORES; t.head.pos++) {
            head_store(&t, S, D);
            for (int i = 0; i < DK * DV; i++) mean[i] += D[i] - S[i], spread[i] += pow(D[i] - S[i], 2);
        }
        for (int i = 0; i < DK * DV; i++) {
            const double sigma = sqrt(spread[i] / STORES / STORES), clip = strstr(methods[m], "scale=bf16") ? 4e-3 : 0;
            const double off = fabs(mean[i]) / STORES - clip * fabs((double)S[i]);
            if (off > 5 * sigma + 2e-4 * sqrt(spread[i] / STORES) + 1e-6 * fabs((double)S[i]))
                fail_msg("%s: the mean of %g is off by %g, sigma %g", methods[m], (double)S[i], off, sigma);
        }
        head_close(&t);
    }
}

/* ---- what the random numbers hang on: the seed, layer, global head, position and element, and nothing else ---- */

static const char *const stochastic[] = {"fp16-stoch",
                                         "fp16-stoch-w",
                                         "bf16-stoch",
                                         "int8-stoch:p=4",
                                         "int8-stoch-w",
                                         "int6:round=stoch,group=row",
                                         "int4:round=stoch,group=column,scale=fp16,fit=ls"};
enum { TOKENS = 70, NEW = 8, DK = 32, DV = 32, HEADS = 2 };

/* The state after TOKENS tokens in steps of `most` at most, going back now and then, of the layer `index` whose heads
 * begin at `begin`. */
static void run(const char *method, const char *row, int32_t begin, int32_t index, int32_t most, bool back, float *S) {
    const ebb_state_layer layer = {.kind = EBB_KDA,
                                   .key_heads = 1,
                                   .heads = HEADS,
                                   .head_begin = begin,
                                   .key_dim = DK,
                                   .value_dim = DV,
                                   .index = index};
    delta_world w;
    ebb_error error;
    must(world_open(&w, device, method, row, layer, 3, NEW, TOKENS + NEW, &error), &error);
    world_inputs(&w, 42, .02f);
    float out[NEW * HEADS * DV];
    uint64_t s = 5;
    for (int64_t pos = 0; pos < TOKENS;) {
        const int32_t n = (int32_t)min_i64(1 + (int64_t)(mix64(s++) % (uint64_t)most), TOKENS - pos);
        must(world_run(&w, false, 2, pos, n, out, &error), &error);
        if (!back || mix64(s++) % 2) pos += n; /* else the step is run again, with other drafts */
        else pos += (int64_t)(mix64(s++) % (uint64_t)n);
    }
    must(world_read(&w, 2, TOKENS, S, &error), &error);
    world_close(&w);
}

static void test_keyed(void **state) {
    (void)state;
    enum { N = HEADS * DK * DV };
    float *S = malloc(4 * N * sizeof *S), *T = S + N, *U = T + N, *V = U + N;
    for (const delta_row *const *row = rows_of(device)->delta; *row; row++) {
        const char *name = (*row)->id.name;
        if ((*row)->id.needs & ~ebb_device_features(device)) continue;
        for (int m = 0; m < COUNT(stochastic); m++) {
            char seeded[96];
            run(stochastic[m], name, 0, 0, 1, false, S);
            run(stochastic[m], name, 0, 0, NEW, false, T);
            run(stochastic[m], name, 0, 0, NEW, true, U);
            if (memcmp(S, T, N * sizeof *S)) fail_msg("%s %s: steps change bits", stochastic[m], name);
            if (memcmp(S, U, N * sizeof *S)) fail_msg("%s %s: drafts change bits", stochastic[m], name);
            snprintf(seeded, sizeof seeded, "%s%cseed=9", stochastic[m], strchr(stochastic[m], ':') ? ',' : ':');
            run(seeded, name, 0, 0, 1, false, T);
            run(stochastic[m], name, 3, 0, 1, false, U);
            run(stochastic[m], name, 0, 3, 1, false, V);
            for (int h = 0; h < HEADS; h++) {
                const size_t at = (size_t)h * DK * DV, bytes = DK * DV * sizeof *S;
                if (!memcmp(S + at, T + at, bytes)) fail_msg("%s %s: the seed changes nothing", stochastic[m], name);
                if (!memcmp(S + at, U + at, bytes)) fail_msg("%s %s: head_begin changes nothing", stochastic[m], name);
                if (!memcmp(S + at, V + at, bytes)) fail_msg("%s %s: the layer changes nothing", stochastic[m], name);
            }
            run(stochastic[m], name, 1, 0, 1, false, T); /* inputs are by local head: draws alone differ */
            assert_memory_not_equal(S, T, N * sizeof *S);
        }
    }
    free(S);
}

/* Positions and elements: a constant matrix comes back with noise, and with other noise at another position. */
static void test_elements(void **state) {
    (void)state;
    float S[16 * 32], D[16 * 32], E[16 * 32];
    one_head t;
    head_open(&t, "fp16-stoch", 16, 32);
    for (int i = 0; i < 512; i++) S[i] = 1.0003f;
    head_store(&t, S, D);
    t.head.pos = 1;
    head_store(&t, S, E);
    int up[3] = {0};
    for (int i = 0; i < 512; i++) up[0] += D[i] > S[i], up[1] += E[i] > S[i], up[2] += D[i] > S[i] && E[i] > S[i];
    /* 31 % of 512 go up, 9.4 % twice: within 5 sigma */
    assert_in_range(up[0], 105, 212), assert_in_range(up[1], 105, 212), assert_in_range(up[2], 15, 82);
    head_store(&t, S, D);
    assert_memory_equal(D, E, sizeof D);
    head_close(&t);
}

/* The position that rounds a state is the one at which it becomes valid: after a fold, in a step that crosses many, and
 * after a prompt. Token t writes a value under a key of its own and nothing decays, so that the states are known
 * exactly.
 */
static void positions(const char *method, const char *row) {
    enum { N = 6, STEPS = 3 };
    const ebb_state_layer layer = {.kind = EBB_GDN, .key_heads = 1, .heads = 1, .key_dim = DK, .value_dim = DV};
    delta_world w;
    ebb_error error;
    must(world_open(&w, device, method, row, layer, STEPS, N, N, &error), &error);
    world_inputs(&w, 11, 0);
    memset(w.k, 0, sizeof(float) * N * DK);
    for (int t = 0; t < N; t++) w.k[t * DK + t] = 1, w.beta[t] = 1;
    const ebb_state_view *view = ebb_state_pool_view(w.pool, 0);
    ebb_head head = head_of(view, 0);
    float S[DK * DV] = {0}, whole[DK * DV] = {0}, out[N * DV], read[DK * DV];
    uint8_t *want = calloc(1, view->packed_head), *prompt = calloc(1, view->packed_head);
    for (int t = 0; t < N; t++) {
        memcpy(S + t * DV, w.v + t * DV, sizeof(float) * DV), memcpy(whole + t * DV, w.v + t * DV, sizeof(float) * DV);
        head.pos = t + 1;
        view->codec->encode(&head, S, NULL, NULL, want, NULL);
        view->codec->decode(&head, want, S);
    }
    view->codec->encode(&head, whole, NULL, NULL, prompt, NULL);
    static const int32_t steps[] = {1, 3, N};
    for (int32_t i = 0; i < STEPS; i++) {
        for (int64_t pos = 0; pos < N; pos += steps[i])
            must(world_run(&w, false, i, pos, steps[i], out, &error), &error);
        must(world_read(&w, i, N, read, &error), &error);
        if (memcmp(packed_of(view, i, 0), want, view->packed_head))
            fail_msg("%s %s: steps of %d", method, row, steps[i]);
    }
    must(world_run(&w, true, 0, 0, N, out, &error), &error);
    if (memcmp(packed_of(view, 0, 0), prompt, view->packed_head)) fail_msg("%s %s: a prompt", method, row);
    free(want), free(prompt);
    world_close(&w);
}
static void test_positions(void **state) {
    (void)state;
    static const char *const methods[] = {"fp16-stoch", "bf16-stoch", "int8-stoch", "int4:group=column,round=stoch"};
    for (const delta_row *const *row = rows_of(device)->delta; *row; row++)
        for (int m = 0; m < COUNT(methods) && !((*row)->id.needs & ~ebb_device_features(device)); m++)
            positions(methods[m], (*row)->id.name);
}

/* ---- strings ---- */

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *method, *part;
    } table[] = {{"fp16:group=row", "group goes with the integer formats"},
                 {"fp8:group=column", "group goes with the integer formats"},
                 {"bf16:scale=fp16", "scale goes with fp8 and the integer formats"},
                 {"fp32:fit=ls", "fit goes with fp8 and the integer formats"},
                 {"fp8:round=stoch", "round goes with fp16, bf16 and the integer formats"},
                 {"fp32-w:round=stoch", "format=fp32 with round=stoch"},
                 {"int8:seed=1", "format=int8 with seed=1"}};
    const ebb_state_layer layer = {.kind = EBB_GDN, .key_heads = 1, .heads = 1, .key_dim = 8, .value_dim = 8};
    for (int i = 0; i < COUNT(table); i++) {
        ebb_state_spec spec;
        ebb_state_sizes sizes;
        ebb_error error;
        must(ebb_state_parse(table[i].method, &spec, &error), &error);
        assert_int_equal(ebb_state_size(&spec, &layer, 1, &sizes, &error), EBB_BAD_ARGUMENT);
        if (!strstr(error.text, table[i].part)) fail_msg("'%s' does not say '%s'", error.text, table[i].part);
    }
    ebb_state_spec spec;
    ebb_error error;
    assert_int_equal(ebb_state_parse("int8-stoch:seed=-1", &spec, &error), EBB_BAD_ARGUMENT);
    must(ebb_state_parse("int8-stoch:seed=9007199254740992", &spec, &error), &error);
    assert_true(spec.seed == 9007199254740992u);
    must(ebb_state_parse("int8-stoch", &spec, &error), &error);
    assert_true(spec.seed == 0);
}

/* replay is fp32-w, and with format=bf16 it is bf16-w. */
static void test_replay(void **state) {
    (void)state;
    float S[HEADS * DK * DV], T[HEADS * DK * DV];
    run("replay", NULL, 0, 0, 3, false, S), run("fp32-w", NULL, 0, 0, 3, false, T);
    assert_memory_equal(S, T, sizeof S);
    run("replay:format=bf16", NULL, 0, 0, 3, false, S);
    assert_memory_not_equal(S, T, sizeof S);
    run("bf16-w", NULL, 0, 0, 3, false, T);
    assert_memory_equal(S, T, sizeof S);
}

/* ---- the fast rows ---- */

/* One token over a packed state: the output that the reference gives from the same bytes, to rounding. */
static void read_token(const char *method, const char *row, ebb_state_layer layer, float *out) {
    delta_world w;
    ebb_error error;
    float S[48 * 80];
    must(world_open(&w, device, method, row, layer, 1, 1, 65, &error), &error);
    world_inputs(&w, 7, .02f);
    heavy_fill(S, layer.key_dim, layer.value_dim, 3);
    const int32_t slot = 0, cu[2] = {0, 0};
    const int64_t pos = 64;
    const ebb_batch b = {1, 0, &slot, cu, &pos};
    ebb_delta_args args = world_args(&w, &b, NULL, NULL, NULL, NULL, NULL, NULL);
    must(ebb_delta_write(w.queue, &w.plan, &args, S, &error), &error);
    must(world_run(&w, false, 0, pos, 1, out, &error), &error);
    world_close(&w);
}

static void row_reads(const form *f, int32_t dk, int32_t dv) {
    if (dk != 128 || dv != 128) return; /* once a form */
    static const int32_t dims[][2] = {{48, 80}, {32, 64}};
    for (int i = 0; i < 4; i++) {
        const ebb_state_layer layer = {.kind = i % 2 ? EBB_KDA : EBB_GDN,
                                       .key_heads = 1,
                                       .heads = 1,
                                       .key_dim = dims[i / 2][0],
                                       .value_dim = dims[i / 2][1]};
        float want[80], out[80];
        read_token(f->method, "ref", layer, want);
        for (const delta_row *const *row = rows_of(device)->delta; *row; row++) {
            if ((*row)->id.needs & ~ebb_device_features(device)) continue;
            read_token(f->method, (*row)->id.name, layer, out);
            const double far = head_distance(out, want, 1, layer.value_dim) / head_norm(want, layer.value_dim);
            if (!(far < 3e-6)) fail_msg("%s %s: an output %.2e from the reference", f->method, (*row)->id.name, far);
        }
    }
}
static void test_rows_read(void **state) {
    (void)state;
    for_each(row_reads);
}

static int setup(void **state) {
    (void)state;
    return ebb_device_open("cpu", NULL, &device, NULL) != EBB_OK;
}
static int teardown(void **state) {
    (void)state;
    ebb_device_close(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),         cmocka_unit_test(test_golden),    cmocka_unit_test(test_definition),
        cmocka_unit_test(test_least_squares), cmocka_unit_test(test_finite),    cmocka_unit_test(test_halves),
        cmocka_unit_test(test_whole_numbers), cmocka_unit_test(test_unbiased),  cmocka_unit_test(test_keyed),
        cmocka_unit_test(test_elements),      cmocka_unit_test(test_positions), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_replay),        cmocka_unit_test(test_rows_read),
    };
    return cmocka_run_group_tests_name("codec block", tests, setup, teardown);
}
