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
    static const char *const names[] = {"fp32", "fp16", "bf16"};
    assert_int_equal(count, COUNT(names));
    for (int32_t i = 0; i < count; i++) {
        assert_string_equal(methods[i].name, names[i]);
        ebb_kv_spec spec = spec_of(names[i]);
        assert_ptr_equal(spec.method, &methods[i]);
        assert_true(spec.param[0] == i);
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
        size_t number;
    } rows[] = {{"fp32", 4}, {"fp16", 2}, {"bf16", 2}};
    for (int32_t i = 0; i < COUNT(rows); i++) {
        ebb_kv_spec spec = spec_of(rows[i].method);
        ebb_kv_layer layer = layer_of(8, 2, 128);
        size_t bytes = 0;
        assert_int_equal(ebb_kv_token_bytes(&spec, &layer, &bytes, NULL), EBB_OK);
        assert_int_equal(bytes, 2 * 2 * 128 * rows[i].number);
    }
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
    ebb_kv_pool_config config = {sizeof config, &spec, &latent, 1, 1, 300, 0};
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
    for (int32_t m = 0; m < count; m++) {
        ebb_kv_spec spec = spec_of(methods[m].name);
        const ebb_kv_codec *codec = spec.method->codec;
        int32_t group;
        ebb_planes planes;
        assert_int_equal(codec->layout(&layer, spec.param, &group, &planes, NULL), EBB_OK);
        assert_int_equal(group, 1);
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
    ebb_kv_pool_config config = {sizeof config, &spec, layers, 2, 3, 1000, 0};
    ebb_kv_pool *pool;
    assert_int_equal(ebb_kv_pool_open(device, &config, &pool, NULL), EBB_OK);
    layers[0].heads = 77; /* the pool keeps its own copy */
    const ebb_kv_view *v = ebb_kv_pool_view(pool, 0), *w = ebb_kv_pool_view(pool, 1);
    assert_null(ebb_kv_pool_view(pool, 2));
    assert_null(ebb_kv_pool_view(pool, -1));
    assert_int_equal(v->layer->heads, 2);
    assert_int_equal(v->page, EBB_KV_PAGE);
    assert_int_equal(v->group, 1);
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
    ebb_kv_pool_config config = {sizeof config, &spec, &layer, 1, 3, 4 * 256, 5}; /* overbooked: 5 pages for 12 */
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
    const ebb_kv_pool_config good = {sizeof good, &spec, &layer, 1, 1, 100, 0};
    ebb_kv_pool_config bad[13];
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
    ebb_kv_pool_config config = {sizeof config, &spec, layers, 3, 2, 300, 0};
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
        cmocka_unit_test(test_bad_layers),  cmocka_unit_test(test_codec),      cmocka_unit_test(test_pool_layout),
        cmocka_unit_test(test_latents),     cmocka_unit_test(test_pool_pages), cmocka_unit_test(test_pool_refusals),
        cmocka_unit_test(test_pool_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
