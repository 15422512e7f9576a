/* tests/test_kv.c: the KV store: method strings, sizes, the float codec, and pools with their block table. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv_int.h"

static ebb_kv_layer layer_of(int32_t q_heads, int32_t heads, int16_t dim) {
    return (ebb_kv_layer){.q_heads = q_heads,
                          .heads = heads,
                          .parts = 2,
                          .part = {{dim, EBB_ROLE_K}, {dim, EBB_ROLE_V}},
                          .scale = 1.0f / sqrtf((float)dim)};
}

static ebb_kv_spec spec_of(const char *text) {
    ebb_kv_spec spec;
    assert_int_equal(ebb_kv_parse(text, &spec, NULL), EBB_OK);
    return spec;
}

static ebb_device *open_device(const ebb_allocator *memory) {
    ebb_device_config config = {.size = sizeof config, .threads = 1};
    ebb_device *device;
    if (memory) config.memory = *memory;
    assert_int_equal(ebb_device_open("cpu", &config, &device, NULL), EBB_OK);
    return device;
}

/* ---- methods ---- */

static void test_table(void **state) {
    (void)state;
    int32_t count;
    const ebb_kv_method *methods = ebb_kv_methods(&count);
    static const char *const names[] = {"fp32",      "fp16",    "bf16",         "k8v8",         "k4v4",
                                        "k4v2",      "k2v4",    "k8v8-vert",    "k4v4-vert",    "k4v2-vert",
                                        "k2v4-vert", "hyquant", "hyquant-k4v2", "hyquant-k2v4", "kvtuner",
                                        "kivi4",     "kivi2",   "kivi-hqq"};
    assert_int_equal(count, COUNT(names));
    for (int32_t i = 0; i < count; i++) {
        assert_string_equal(methods[i].name, names[i]);
        ebb_kv_spec spec = spec_of(names[i]);
        assert_ptr_equal(spec.method, &methods[i]);
        if (i < 3) assert_true(spec.param[0] == i);
    }
}

static void test_parse(void **state) {
    (void)state;
    ebb_kv_spec spec = spec_of("fp32:format=bf16");
    assert_true(spec.param[0] == KV_FLOAT_BF16);
    static const struct {
        const char *text, *says;
    } bad[] = {{NULL, "no KV method"},
               {"", "bf16"},
               {"int3", "bf16"},
               {"bf1", "bf16"},
               {"bf16x", "bf16"},
               {"bf16:p=2", "p=2"},
               {"bf16:format=int8", "int8"},
               {"bf16:format", "format"}};
    for (int32_t i = 0; i < COUNT(bad); i++) {
        ebb_error error = {0};
        assert_int_equal(ebb_kv_parse(bad[i].text, &spec, &error), EBB_BAD_ARGUMENT);
        assert_non_null(strstr(error.text, bad[i].says));
    }
}

static void test_token_bytes(void **state) {
    (void)state;
    static const struct {
        const char *method;
        size_t head; /* bytes of a token and KV head of 128 */
    } rows[] = {{"fp32", 1024},   {"fp16", 512},     {"bf16", 512},           {"k8v8", 260},  {"k4v4", 132},
                {"k4v2", 100},    {"k2v4", 100},     {"k4v4-vert", 132},      {"kivi4", 160}, {"kivi2", 96},
                {"hyquant", 132}, {"kivi-hqq", 512}, {"k2v4:grid=paper", 100}};
    for (int32_t i = 0; i < COUNT(rows); i++) {
        ebb_kv_spec spec = spec_of(rows[i].method);
        ebb_kv_layer layer = layer_of(8, 2, 128);
        size_t bytes = 0;
        assert_int_equal(ebb_kv_token_bytes(&spec, &layer, &bytes, NULL), EBB_OK);
        assert_int_equal(bytes, 2 * rows[i].head);
    }
}

/* Names of the published code, and what comes along. */
static void test_aliases(void **state) {
    (void)state;
    static const struct {
        const char *alias, *text;
    } rows[] = {{"d_k4v4", "k4v4:window=256"},
                {"d_k8v8:ratio=1", "k8v8:window=256,ratio=1"},
                {"d_k2v4:window=64", "k2v4:window=64"},
                {"d_k4v2_vert", "k4v2-vert"},
                {"hybrid_full", "hyquant"},
                {"hybrid_full:window=128,ratio=0.1,select=paper", "hyquant:ratio=0.1,window=128,select=paper"},
                {"hybrid_k2v4", "hyquant-k2v4"},
                {"flash_attention_2", "bf16"},
                {"sage_w0", "bf16"}};
    for (int32_t i = 0; i < COUNT(rows); i++) {
        ebb_kv_spec a = spec_of(rows[i].alias), b = spec_of(rows[i].text);
        assert_ptr_equal(a.method, b.method);
        assert_memory_equal(a.param, b.param, sizeof a.param);
    }
    ebb_prefill p, q;
    static const struct {
        const char *kv, *prefill;
    } brought[] = {{"bf16", "full"},
                   {"k4v4-vert", "full"},
                   {"dense", "full"},
                   {"hyquant", "vquant_vert"},
                   {"hybrid_k4v2:window=0,ratio=1", "vquant_vert:window=0,ratio=1"},
                   {"hyquant:ratio=0", "vquant_vert:ratio=0"},
                   {"sage_w0", "sage_w0"},
                   {"sage_w:window=128,pv=fp8", "sage_w:pv=fp8,window=128"},
                   {"sparse_only:select=prompt", "sparse_only:select=prompt"}};
    for (int32_t i = 0; i < COUNT(brought); i++) {
        ebb_kv_spec spec = spec_of(brought[i].kv);
        char text[128];
        assert_int_equal(ebb_kv_prefill(&spec, &p, NULL), EBB_OK);
        assert_int_equal(ebb_prefill_parse(brought[i].prefill, &q, NULL), EBB_OK);
        assert_memory_equal(&p, &q, sizeof p);
        assert_int_equal(ebb_prefill_text(&p, text, sizeof text, NULL), EBB_OK);
        assert_int_equal(ebb_prefill_parse(text, &q, NULL), EBB_OK);
        assert_memory_equal(&p, &q, sizeof p);
    }
    static const struct {
        const char *text, *says;
    } bad[] = {{NULL, "MODE"},
               {"", "full"},
               {"full:window=3", "no parameters"},
               {"sage_w0:window=3", "window"},
               {"sage_w:window=-1", "0 to 4096"},
               {"vquant_vert:ratio=1.5", "a number from 0 to 1"},
               {"vquant_vert:select=all", "segment|prompt|paper"}};
    for (int32_t i = 0; i < COUNT(bad); i++) {
        ebb_error error = {0};
        assert_int_equal(ebb_prefill_parse(bad[i].text, &p, &error), EBB_BAD_ARGUMENT);
        if (!strstr(error.text, bad[i].says)) fail_msg("'%s' does not say '%s'", error.text, bad[i].says);
    }
}

/* What a pool allocates is what ebb_kv_layer_cost says, for every method and prefill. */
static void test_cost(void **state) {
    (void)state;
    enum { BOTH = EBB_ROLE_K | EBB_ROLE_V };
    const ebb_kv_bits bits[2] = {{8, 2}, {4, 4}};
    ebb_kv_layer layers[2] = {layer_of(8, 2, 64), layer_of(4, 1, 80)};
    layers[1] =
        (ebb_kv_layer){.q_heads = 4, .heads = 1, .parts = 2, .part = {{96, BOTH}, {32, EBB_ROLE_K}}, .scale = 1};
    static const char *const more[] = {"hyquant:select=prompt", "hyquant:select=paper",     "k4v4-vert:window=0",
                                       "k4v4:window=64",        "k8v8-vert:ratio=1",        "k8v8-vert:ratio=0",
                                       "vquant_vert",           "sparse_only:select=paper", "kivi4:residual=32"};
    int32_t count;
    const ebb_kv_method *methods = ebb_kv_methods(&count);
    ebb_device *device = open_device(NULL);
    for (int32_t m = 0; m < count + COUNT(more); m++) {
        ebb_kv_spec spec = spec_of(m < count ? methods[m].name : more[m - count]);
        ebb_prefill prefill;
        assert_int_equal(ebb_kv_prefill(&spec, &prefill, NULL), EBB_OK);
        if (!strcmp(spec.method->name, "kvtuner")) spec.bits = bits, spec.n_bits = 2;
        for (int64_t tokens = 100; tokens < 3000; tokens += 1400) {
            ebb_kv_pool_config config = {sizeof config, &spec, layers, 2, 3, tokens, 5, 4, &prefill};
            ebb_kv_pool *pool;
            ebb_error error;
            if (ebb_kv_pool_open(device, &config, &pool, &error)) fail_msg("%s", error.text);
            size_t page = 0, tail = 0;
            for (int32_t i = 0; i < 2; i++) {
                ebb_kv_cost cost;
                const ebb_kv_view *v = ebb_kv_pool_view(pool, i);
                assert_int_equal(ebb_kv_layer_cost(&spec, &prefill, &layers[i], i, tokens, 4, &cost, NULL), EBB_OK);
                assert_int_equal(cost.page, v->page_bytes);
                assert_int_equal(cost.tail, v->tail_slot + v->extra_slot);
                assert_true(cost.overlay <= cost.page);
                const int64_t window = v->rule.window[v->rule.window[1] > v->rule.window[0]];
                const int64_t slide = v->rule.slide[v->rule.slide[1] > v->rule.slide[0]];
                if (v->rule.tail)
                    assert_true(v->tail_cap % 64 == 0 && v->tail_cap >= min_i64(tokens, window + slide + 260));
                if (v->rule.select >= EBB_SELECT_PROMPT) assert_true(v->tail_cap >= tokens);
                page += cost.page, tail += cost.tail;
            }
            assert_int_equal(ebb_kv_pool_slot_bytes(pool, 1), tail);
            assert_int_equal(ebb_kv_pool_reserve(pool, 1, 100, NULL), EBB_OK);
            assert_int_equal(ebb_kv_pool_slot_bytes(pool, 1), tail + page);
            ebb_kv_pool_close(pool);
        }
    }
    ebb_device_close(device);
}

/* What cannot be served is refused by name. */
static void test_method_refusals(void **state) {
    (void)state;
    static const ebb_kv_bits two[] = {{4, 4}, {3, 4}};
    ebb_device *device = open_device(NULL);
    ebb_prefill other, fp = {.mode = 9};
    assert_int_equal(ebb_prefill_parse("vquant_vert:window=128", &other, NULL), EBB_OK);
    const struct {
        const char *method;
        int16_t dim;
        const ebb_kv_bits *bits;
        int32_t n_bits;
        const ebb_prefill *prefill;
        ebb_status status;
        const char *says;
    } bad[] = {{"k4v4", 63, NULL, 0, NULL, EBB_UNSUPPORTED, "4-bit codes of a key part of 63 dims"},
               {"k8v8:v=2", 66, NULL, 0, NULL, EBB_UNSUPPORTED, "2-bit codes of a value part of 66 dims"},
               {"kivi2", 66, NULL, 0, NULL, EBB_UNSUPPORTED, "2-bit codes of a key part of 66 dims"},
               {"kivi4:residual=100", 64, NULL, 0, NULL, EBB_BAD_ARGUMENT, "multiple of 32"},
               {"kvtuner", 64, NULL, 0, NULL, EBB_BAD_ARGUMENT, "--kv-bits FILE"},
               {"kvtuner", 64, two, 1, NULL, EBB_BAD_ARGUMENT, "none for layer 1"},
               {"kvtuner", 64, two, 2, NULL, EBB_BAD_ARGUMENT, "3 bits for the keys of KV layer 1"},
               {"bf16", 64, two, 2, NULL, EBB_BAD_ARGUMENT, "method bf16 has none"},
               {"k4v4-vert", 64, NULL, 0, &other, EBB_UNSUPPORTED, "expected the same"},
               {"bf16", 64, NULL, 0, &fp, EBB_BAD_ARGUMENT, "mode 9"}};
    for (int32_t i = 0; i < COUNT(bad); i++) {
        ebb_kv_spec spec = spec_of(bad[i].method);
        spec.bits = bad[i].bits, spec.n_bits = bad[i].n_bits;
        ebb_kv_layer layers[2] = {layer_of(2, 1, bad[i].dim), layer_of(2, 1, bad[i].dim)};
        ebb_kv_pool_config config = {sizeof config, &spec, layers, 2, 1, 100, 0, 0, bad[i].prefill};
        ebb_kv_pool *pool;
        ebb_error error = {0};
        assert_int_equal(ebb_kv_pool_open(device, &config, &pool, &error), bad[i].status);
        if (!strstr(error.text, bad[i].says)) fail_msg("'%s' does not say '%s'", error.text, bad[i].says);
    }
    ebb_device_close(device);
}

/* The latent of real Kimi-Linear and DeepSeek models: 512 stored once, 64 more in the key. */
static void test_latents(void **state) {
    (void)state;
    enum { BOTH = EBB_ROLE_K | EBB_ROLE_V };
    ebb_kv_layer latent = {
        .q_heads = 32, .heads = 1, .parts = 2, .part = {{512, BOTH}, {64, EBB_ROLE_K}}, .scale = 0.0721688f};
    kv_shape kv = kv_shape_of(&latent);
    assert_true(kv.k == 576 && kv.v == 512 && kv.v_part == 0 && kv.v_at == 0 && kv.all == 576 && kv.shared);
    ebb_kv_spec spec = spec_of("bf16");
    size_t bytes = 0;
    assert_int_equal(ebb_kv_token_bytes(&spec, &latent, &bytes, NULL), EBB_OK);
    assert_int_equal(bytes, 576 * 2);
    ebb_device *device = open_device(NULL);
    ebb_kv_pool_config config = {sizeof config, &spec, &latent, 1, 1, 300, 0, 0, NULL};
    ebb_kv_pool *pool;
    assert_int_equal(ebb_kv_pool_open(device, &config, &pool, NULL), EBB_OK);
    const ebb_kv_view *v = ebb_kv_pool_view(pool, 0);
    assert_int_equal(v->plane_bytes[0], 1024);
    assert_int_equal(v->plane_at[1], 256 * 1024);
    assert_int_equal(v->plane_bytes[1], 128);
    assert_int_equal(v->page_bytes, 256 * 576 * 2);
    ebb_kv_pool_close(pool);
    ebb_device_close(device);

    ebb_kv_layer plain = layer_of(4, 2, 64), middle = latent;
    plain.part[1].dims = 16;
    kv = kv_shape_of(&plain);
    assert_true(kv.k == 64 && kv.v == 16 && kv.v_part == 1 && kv.v_at == 64 && kv.all == 80 && !kv.shared);
    middle.parts = 3;
    middle.part[0].role = EBB_ROLE_K;
    middle.part[1].role = BOTH;
    middle.part[2].dims = 8;
    middle.part[2].role = EBB_ROLE_K;
    kv = kv_shape_of(&middle);
    assert_true(kv.k == 584 && kv.v == 64 && kv.v_part == 1 && kv.v_at == 512 && kv.all == 584 && kv.shared);
    assert_int_equal(ebb_kv_token_bytes(&spec, &middle, &bytes, NULL), EBB_OK);
    assert_int_equal(bytes, 584 * 2);
}

static void test_bad_layers(void **state) {
    (void)state;
    ebb_kv_spec spec = spec_of("fp32");
    ebb_kv_layer good = layer_of(4, 2, 64), bad[14];
    for (int32_t i = 0; i < COUNT(bad); i++) bad[i] = good;
    bad[0].q_heads = 3;
    bad[1].heads = 0;
    bad[2].heads = -2;
    bad[3].q_heads = 0;
    bad[4].part[0].dims = 0;
    bad[5].part[1].dims = EBB_MAX_HEAD_DIM + 1;
    bad[6].parts = 0;
    bad[7].parts = 4;
    bad[8].part[1].role = 0;
    bad[9].scale = NAN;
    bad[10].part[0].role = 4;
    bad[11].part[0].role = EBB_ROLE_K | EBB_ROLE_V; /* two values */
    bad[12].part[1].role = EBB_ROLE_K;              /* none */
    bad[13].part[0].role = EBB_ROLE_V;              /* in front of the key */
    bad[13].part[1].role = EBB_ROLE_K;
    size_t bytes;
    ebb_error error;
    assert_int_equal(ebb_kv_token_bytes(&spec, &good, &bytes, NULL), EBB_OK);
    for (int32_t i = 0; i < COUNT(bad); i++) {
        error.text[0] = '\0';
        assert_int_equal(ebb_kv_token_bytes(&spec, &bad[i], &bytes, &error), EBB_BAD_ARGUMENT);
        assert_true(error.text[0] != '\0');
    }
    spec.param[0] = 7;
    assert_int_equal(ebb_kv_token_bytes(&spec, &good, &bytes, &error), EBB_BAD_ARGUMENT);
}

static void test_codec(void **state) {
    (void)state;
    enum { K = 20, V = 12 };
    static const double step[] = {0, 0x1p-11, 0x1p-8}; /* relative rounding error of the formats */
    ebb_kv_layer layer = layer_of(1, 1, K);
    layer.part[1].dims = V;
    float rows[K + V], back[K + V];
    uint8_t packed[(K + V) * 4 + 1];
    for (int i = 0; i < K + V; i++) rows[i] = sinf((float)i * 1.7f) * (float)(i + 1);
    int32_t count;
    const ebb_kv_method *methods = ebb_kv_methods(&count);
    for (int32_t m = 0; m < 3; m++) { /* the float codec; test_kv_codecs.c has the others */
        ebb_kv_spec spec = spec_of(methods[m].name);
        const ebb_kv_codec *codec = spec.method->codec;
        ebb_kv_rule rule;
        ebb_planes planes;
        assert_int_equal(codec->layout(&layer, spec.param, &rule, &planes, NULL), EBB_OK);
        assert_int_equal(rule.group, 1);
        assert_int_equal(planes.n, 2);
        assert_int_equal(planes.plane[1].at, planes.plane[0].bytes);
        assert_int_equal(planes.bytes, planes.plane[0].bytes + planes.plane[1].bytes);
        assert_int_equal(planes.exact, m == 0);
        memset(packed, 0xAB, sizeof packed);
        codec->encode(&layer, spec.param, rows, packed, NULL);
        assert_int_equal(packed[planes.bytes], 0xAB);
        codec->decode(&layer, spec.param, packed, back);
        bool rounded = false;
        for (int i = 0; i < K + V; i++) {
            assert_true(fabs((double)back[i] - (double)rows[i]) <= step[m] * fabs((double)rows[i]));
            rounded |= back[i] != rows[i];
        }
        assert_int_equal(rounded, m != 0);
    }
}

/* ---- pools ---- */

static void test_pool_layout(void **state) {
    (void)state;
    ebb_device *device = open_device(NULL);
    ebb_kv_spec spec = spec_of("bf16");
    ebb_kv_layer layers[2] = {layer_of(4, 2, 20), layer_of(8, 8, 64)};
    ebb_kv_pool_config config = {sizeof config, &spec, layers, 2, 3, 1000, 0, 0, NULL};
    ebb_kv_pool *pool;
    assert_int_equal(ebb_kv_pool_open(device, &config, &pool, NULL), EBB_OK);
    layers[0].heads = 77; /* the pool keeps its own copy */
    const ebb_kv_view *v = ebb_kv_pool_view(pool, 0), *w = ebb_kv_pool_view(pool, 1);
    assert_null(ebb_kv_pool_view(pool, 2));
    assert_null(ebb_kv_pool_view(pool, -1));
    assert_int_equal(v->layer->heads, 2);
    assert_int_equal(v->page, EBB_KV_PAGE);
    assert_int_equal(v->rule.group, 1);
    assert_int_equal(v->slots, 3);
    assert_int_equal(v->block_stride, 4);
    assert_ptr_equal(v->block, w->block);
    assert_ptr_not_equal(v->pages, w->pages);
    assert_int_equal(v->plane_bytes[0], 40);
    assert_int_equal(v->plane_at[0], 0);
    assert_int_equal(v->plane_at[1], 256 * 40);
    assert_int_equal(v->plane_at[1] % KV_ALIGN, 0);
    assert_int_equal(v->head_bytes, 2 * 256 * 40);
    assert_int_equal(v->page_bytes, 2 * v->head_bytes);
    assert_int_equal((uintptr_t)v->pages % 64, 0);
    for (int i = 0; i < 12; i++) assert_int_equal(v->block[i], -1);
    assert_int_equal(ebb_kv_pool_spec(pool)->method == spec.method, 1);
    assert_int_equal(ebb_kv_pool_reserve(pool, 1, 257, NULL), EBB_OK);
    assert_int_equal(ebb_kv_pool_slot_bytes(pool, 1), 2 * (size_t)(v->page_bytes + w->page_bytes));
    assert_int_equal(ebb_kv_pool_slot_bytes(pool, 0), 0);
    assert_int_equal(ebb_kv_pool_slot_bytes(pool, 9), 0);
    ebb_kv_pool_close(pool);
    ebb_kv_pool_close(NULL);
    ebb_device_close(device);
}

static int32_t count_pages(const ebb_kv_view *v, int32_t slot) {
    int32_t n = 0;
    for (int32_t i = 0; i < v->block_stride; i++) n += v->block[slot * v->block_stride + i] >= 0;
    return n;
}

/* No page belongs to two places. */
static void assert_distinct(const ebb_kv_view *v, int32_t pages) {
    bool seen[64] = {false};
    for (int32_t i = 0; i < v->slots * v->block_stride; i++) {
        int32_t id = v->block[i];
        if (id < 0) continue;
        assert_true(id < pages);
        assert_false(seen[id]);
        seen[id] = true;
    }
}

static void test_pool_pages(void **state) {
    (void)state;
    ebb_device *device = open_device(NULL);
    ebb_kv_spec spec = spec_of("fp16");
    ebb_kv_layer layer = layer_of(2, 1, 16);
    ebb_kv_pool_config config = {sizeof config, &spec, &layer, 1,   3,
                                 4 * 256,       5,     0,      NULL}; /* overbooked: 5 pages for 12 */
    ebb_kv_pool *pool;
    ebb_error error;
    assert_int_equal(ebb_kv_pool_open(device, &config, &pool, NULL), EBB_OK);
    const ebb_kv_view *v = ebb_kv_pool_view(pool, 0);
    assert_int_equal(ebb_kv_pool_reserve(pool, 0, 0, NULL), EBB_OK);
    assert_int_equal(count_pages(v, 0), 0);
    assert_int_equal(ebb_kv_pool_reserve(pool, 0, 256, NULL), EBB_OK);
    assert_int_equal(count_pages(v, 0), 1);
    int32_t kept = v->block[0];
    assert_int_equal(ebb_kv_pool_reserve(pool, 0, 257, NULL), EBB_OK);
    assert_int_equal(v->block[0], kept);
    assert_int_equal(ebb_kv_pool_reserve(pool, 0, 3, NULL), EBB_OK); /* never shrinks */
    assert_int_equal(count_pages(v, 0), 2);
    assert_int_equal(ebb_kv_pool_reserve(pool, 0, 1025, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "1025"));
    assert_int_equal(ebb_kv_pool_reserve(pool, 0, -1, NULL), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_kv_pool_reserve(pool, 3, 1, NULL), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_kv_pool_reserve(pool, -1, 1, NULL), EBB_BAD_ARGUMENT);

    assert_int_equal(ebb_kv_pool_reserve(pool, 1, 1, NULL), EBB_OK);
    assert_int_equal(ebb_kv_pool_reserve(pool, 1, 1024, &error), EBB_NO_MEMORY); /* 3 more, 2 are left */
    assert_non_null(strstr(error.text, "3 more"));
    assert_int_equal(count_pages(v, 1), 1);
    assert_int_equal(ebb_kv_pool_reserve(pool, 1, 768, NULL), EBB_OK);
    assert_distinct(v, 5);
    assert_int_equal(ebb_kv_pool_reserve(pool, 2, 1, NULL), EBB_NO_MEMORY);

    ebb_kv_pool_release(pool, 0);
    ebb_kv_pool_release(pool, 0);
    ebb_kv_pool_release(pool, 17);
    assert_int_equal(count_pages(v, 0), 0);
    assert_int_equal(ebb_kv_pool_slot_bytes(pool, 0), 0);
    assert_int_equal(ebb_kv_pool_reserve(pool, 2, 512, NULL), EBB_OK);
    assert_int_equal(v->block[2 * v->block_stride], kept); /* in the order they were held */
    assert_distinct(v, 5);
    ebb_kv_pool_close(pool);
    ebb_device_close(device);
}

static void test_pool_refusals(void **state) {
    (void)state;
    ebb_device *device = open_device(NULL);
    ebb_kv_spec spec = spec_of("fp32"), nameless = {0};
    ebb_kv_layer layer = layer_of(2, 1, 16), odd = layer_of(3, 2, 16), vast = layer_of(INT32_MAX, INT32_MAX, 256);
    const ebb_kv_pool_config good = {sizeof good, &spec, &layer, 1, 1, 100, 0, 0, NULL};
    ebb_kv_pool_config bad[15];
    for (int32_t i = 0; i < COUNT(bad); i++) bad[i] = good;
    bad[0].size = 8;
    bad[1].spec = NULL;
    bad[2].layers = NULL;
    bad[3].n_layers = 0;
    bad[4].slots = 0;
    bad[5].max_tokens = 0;
    bad[6].max_tokens = INT64_MAX;
    bad[7].pages = -1;
    bad[8].pages = (int64_t)INT32_MAX + 1;
    bad[9].layers = &odd;
    bad[10].slots = INT32_MAX, bad[10].max_tokens = 1 << 20;
    bad[11].layers = &vast, bad[11].max_tokens = 1, bad[11].pages = 1 << 14;
    bad[12].spec = &nameless;
    bad[13].max_new = EBB_MAX_NEW + 1;
    bad[14].max_new = -1;
    for (int32_t i = 0; i < COUNT(bad); i++) {
        ebb_kv_pool *pool = (ebb_kv_pool *)&layer;
        ebb_error error = {0};
        assert_int_equal(ebb_kv_pool_open(device, &bad[i], &pool, &error), EBB_BAD_ARGUMENT);
        assert_null(pool);
        assert_true(error.text[0] != '\0');
    }
    assert_int_equal(ebb_kv_pool_open(device, NULL, &(ebb_kv_pool *){NULL}, NULL), EBB_BAD_ARGUMENT);
    ebb_device_close(device);
}

/* An allocator that counts, and fails from its n-th call on. */
typedef struct tight {
    int64_t left, blocks;
    size_t bytes;
} tight;

static void *tight_alloc(void *ctx, size_t bytes, size_t align) {
    tight *t = ctx;
    if (t->left-- <= 0) return NULL;
    t->blocks++;
    t->bytes += bytes;
    return aligned_alloc(align, align_up(bytes, align));
}

static void tight_free(void *ctx, void *block, size_t bytes) {
    tight *t = ctx;
    t->blocks--;
    t->bytes -= bytes;
    free(block);
}

static void test_pool_memory(void **state) {
    (void)state;
    ebb_kv_spec spec = spec_of("bf16");
    ebb_kv_layer layers[3] = {layer_of(2, 1, 16), layer_of(2, 2, 16), layer_of(2, 1, 8)};
    ebb_kv_pool_config config = {sizeof config, &spec, layers, 3, 2, 300, 0, 0, NULL};
    for (int64_t allowed = 0; allowed <= 4; allowed++) { /* block table and three layers */
        tight t = {.left = allowed};
        ebb_allocator memory = {&t, tight_alloc, tight_free};
        ebb_device *device = open_device(&memory);
        ebb_kv_pool *pool;
        ebb_status status = ebb_kv_pool_open(device, &config, &pool, NULL);
        assert_int_equal(status, allowed < 4 ? EBB_NO_MEMORY : EBB_OK);
        if (!status) assert_int_equal(t.blocks, 4);
        ebb_kv_pool_close(pool);
        assert_int_equal(t.blocks, 0);
        assert_int_equal(t.bytes, 0);
        ebb_device_close(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),       cmocka_unit_test(test_parse),      cmocka_unit_test(test_token_bytes),
        cmocka_unit_test(test_aliases),     cmocka_unit_test(test_cost),       cmocka_unit_test(test_method_refusals),
        cmocka_unit_test(test_bad_layers),  cmocka_unit_test(test_codec),      cmocka_unit_test(test_pool_layout),
        cmocka_unit_test(test_latents),     cmocka_unit_test(test_pool_pages), cmocka_unit_test(test_pool_refusals),
        cmocka_unit_test(test_pool_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
