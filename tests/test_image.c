/* test_image.c: images of single stores, and the checksum: saved at every window phase and put into another pool, a
 * store goes on bit for bit; equal content gives equal bytes; whatever is wrong with an image is refused by name and
 * changes nothing. */
#include "core/image.h"
#include "delta_world.h"
#include "ebb/image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

enum { PROMPT = 21, MOST = 96 };

static ebb_device *device;
static const ebb_state_layer gdn = {.kind = EBB_GDN, .key_heads = 1, .heads = 2, .key_dim = 16, .value_dim = 32},
                             kda = {.kind = EBB_KDA, .key_heads = 2, .heads = 2, .key_dim = 16, .value_dim = 16},
                             odd = {.kind = EBB_GDN, .key_heads = 2, .heads = 6, .key_dim = 7, .value_dim = 5},
                             staged = {.kind = EBB_KDA,
                                       .key_heads = 1,
                                       .heads = 2,
                                       .key_dim = 16,
                                       .value_dim = 16,
                                       .conv_width = 4};
static const ebb_origin origin = {7, 9, "delta best"};

/* ---- the checksum ---- */

static void test_crc32c(void **state) {
    (void)state;
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32], noise[1000];
    for (int i = 0; i < 32; i++) ones[i] = 0xFF, up[i] = (uint8_t)i, down[i] = (uint8_t)(31 - i);
    for (int i = 0; i < 1000; i++) noise[i] = (uint8_t)mix64((uint64_t)i);
    uint32_t (*const each[])(uint32_t, const void *, size_t) = {crc32c, crc32c_tables};
    for (int k = 0; k < 2; k++) { /* RFC 3720, B.4 */
        assert_int_equal(each[k](0, "123456789", 9), 0xE3069283u);
        assert_int_equal(each[k](0, zeros, 32), 0x8A9136AAu);
        assert_int_equal(each[k](0, ones, 32), 0x62A8AB43u);
        assert_int_equal(each[k](0, up, 32), 0x46DD794Eu);
        assert_int_equal(each[k](0, down, 32), 0x113FDB5Cu);
        assert_int_equal(each[k](0, "", 0), 0);
    }
    for (size_t at = 0; at < 9; at++)
        for (size_t n = 0; n < 100; n++) {
            uint32_t whole = crc32c(0, noise + at, n + 31);
            assert_int_equal(crc32c(crc32c(0, noise + at, n), noise + at + n, 31), whole);
            assert_int_equal(crc32c_tables(crc32c_tables(0, noise + at, n), noise + at + n, 31), whole);
        }
}

/* ---- methods as text ---- */

static void test_method_text(void **state) {
    (void)state;
    int32_t n;
    char text[512], small[8];
    ebb_error error;
    const ebb_state_method *methods = ebb_state_methods(&n);
    for (int32_t i = 0; i < n; i++) {
        ebb_state_spec a, b;
        must(ebb_state_parse(methods[i].name, &a, &error), &error);
        must(ebb_state_text(&a, text, sizeof text, &error), &error);
        must(ebb_state_parse(text, &b, &error), &error);
        assert_ptr_equal(a.method, b.method);
        assert_int_equal(a.window, b.window);
        assert_memory_equal(a.param, b.param, sizeof a.param);
    }
    ebb_state_spec spec;
    must(ebb_state_parse("leap8:scale=max,r=2", &spec, &error), &error);
    must(ebb_state_text(&spec, text, sizeof text, &error), &error);
    assert_string_equal(text, "leap8:p=16,bits=8,r=2,scale=max,theta=0.5,sticky=0,rotate=none");
    assert_int_equal(ebb_state_text(&spec, small, sizeof small, &error), EBB_BAD_ARGUMENT);
    const ebb_kv_method *kv = ebb_kv_methods(&n);
    for (int32_t i = 0; i < n; i++) {
        ebb_kv_spec a, b;
        must(ebb_kv_parse(kv[i].name, &a, &error), &error);
        must(ebb_kv_text(&a, text, sizeof text, &error), &error);
        must(ebb_kv_parse(text, &b, &error), &error);
        assert_memory_equal(a.param, b.param, sizeof a.param);
    }
}

/* ---- images of states ---- */

typedef struct image {
    uint8_t *data;
    size_t bytes;
} image;

static image save_state(delta_world *w, int32_t slot, int64_t pos) {
    ebb_error error;
    image i = {.bytes = ebb_state_image_bytes(w->pool, slot, pos, &origin, &error)};
    if (!i.bytes) fail_msg("%s", error.text);
    i.data = malloc(i.bytes);
    memset(i.data, 0xA5, i.bytes);
    must(ebb_state_save(w->pool, slot, pos, &origin, i.data, i.bytes, &error), &error);
    return i;
}

static void open_world(delta_world *w, const char *method, ebb_state_layer layer, int32_t slots, int32_t max_new) {
    ebb_error error = {EBB_OK, ""};
    must(world_open(w, device, method, NULL, layer, slots, max_new, MOST, &error), &error);
    world_inputs(w, 42, .02f);
}

static void poison(delta_world *w) {
    const ebb_state_view *v = ebb_state_pool_view(w->pool, 0);
    memset(v->packed, 0xFF, (size_t)(v->packed_slot + v->live_slot) * (size_t)v->slots);
}

/* Saved at every phase from the prompt past a boundary, loaded into another slot of a pool of another max_new that is
 * full of NaN, and gone on with: the same outputs. */
static void phases(const char *method, ebb_state_layer layer) {
    delta_world a, b;
    open_world(&a, method, layer, 1, 1);
    open_world(&b, method, layer, 3, 5);
    const int32_t p = a.spec.window;
    const int64_t nv = (int64_t)layer.heads * layer.value_dim;
    assert_true(PROMPT + 2 * p + 4 <= MOST || p == 64);
    const int64_t last = min_i64(PROMPT + p + 2, MOST - 4), end = min_i64(last + p + 2, MOST);
    float *plain = calloc((size_t)(MOST * nv), sizeof *plain), *out = calloc((size_t)(MOST * nv), sizeof *out);
    image *images = calloc(MOST, sizeof *images);
    ebb_error error;
    poison(&a);
    must(world_run(&a, true, 0, 0, PROMPT, plain, &error), &error);
    for (int64_t t = PROMPT; t < end; t++) {
        if (t <= last) images[t] = save_state(&a, 0, t);
        must(world_run(&a, false, 0, t, 1, plain + t * nv, &error), &error);
    }
    for (int64_t at = PROMPT; at <= last; at++) {
        int64_t pos;
        poison(&b);
        must(ebb_state_load(b.pool, 2, images[at].data, images[at].bytes, &pos, &error), &error);
        assert_int_equal(pos, at);
        image again = save_state(&b, 2, pos); /* canonical: another slot, ring and number of slots */
        assert_int_equal(again.bytes, images[at].bytes);
        assert_memory_equal(again.data, images[at].data, again.bytes);
        free(again.data);
        const int64_t stop = min_i64(end, at + p + 2);
        for (int64_t t = at; t < stop; t++) must(world_run(&b, false, 2, t, 1, out + t * nv, &error), &error);
        if (memcmp(out + at * nv, plain + at * nv, (size_t)((stop - at) * nv) * sizeof *out))
            fail_msg("%s, kind %d: other bits behind an image at token %lld", method, layer.kind, (long long)at);
        free(images[at].data);
    }
    free(plain), free(out), free(images);
    world_close(&a), world_close(&b);
}

static void test_phases(void **state) {
    (void)state;
    int32_t n;
    const ebb_state_method *methods = ebb_state_methods(&n);
    const ebb_state_layer *const layers[] = {&gdn, &kda, &odd, &staged};
    for (int32_t m = 0; m < n; m++)
        for (int i = 0; i < COUNT(layers); i++) phases(methods[m].name, *layers[i]);
    phases("leap8:p=64", gdn);
    phases("int8:p=2", kda);
}

/* The first tokens, where the convolution has fewer inputs than it is wide, and a fresh slot. */
static void test_first_tokens(void **state) {
    (void)state;
    enum { END = 8 };
    delta_world a, b;
    ebb_error error;
    int64_t pos = -1;
    open_world(&a, "leap8", staged, 1, 1), open_world(&b, "leap8", staged, 2, 2);
    const int64_t nv = (int64_t)staged.heads * staged.value_dim;
    float plain[END * 32], out[END * 32];
    poison(&a);
    image images[END];
    for (int64_t t = 0; t < END; t++) {
        images[t] = save_state(&a, 0, t);
        must(world_run(&a, false, 0, t, 1, plain + t * nv, &error), &error);
    }
    for (int64_t at = 0; at < END; at++) {
        poison(&b);
        must(ebb_state_load(b.pool, 1, images[at].data, images[at].bytes, &pos, &error), &error);
        assert_int_equal(pos, at);
        for (int64_t t = at; t < END; t++) must(world_run(&b, false, 1, t, 1, out + t * nv, &error), &error);
        assert_memory_equal(out + at * nv, plain + at * nv, (size_t)((END - at) * nv) * sizeof *out);
        free(images[at].data);
    }
    world_close(&a), world_close(&b);
}

/* Copies of a slot go on independently. */
static void test_copy(void **state) {
    (void)state;
    delta_world w;
    ebb_error error;
    open_world(&w, "leap4", staged, 3, 1);
    const int64_t nv = (int64_t)staged.heads * staged.value_dim;
    float first[8 * 32], second[8 * 32];
    poison(&w);
    must(world_run(&w, true, 0, 0, PROMPT, w.q, &error), &error); /* outputs nobody looks at */
    world_inputs(&w, 42, .02f);
    for (int64_t t = PROMPT; t < PROMPT + 9; t++) must(world_run(&w, false, 0, t, 1, first, &error), &error);
    must(ebb_state_pool_copy(w.pool, 0, 2, &error), &error);
    for (int64_t t = 0; t < 8; t++) must(world_run(&w, false, 0, PROMPT + 9 + t, 1, first + t * nv, &error), &error);
    for (int64_t t = 0; t < 8; t++) must(world_run(&w, false, 2, PROMPT + 9 + t, 1, second + t * nv, &error), &error);
    assert_memory_equal(first, second, sizeof first);
    assert_int_equal(ebb_state_pool_copy(w.pool, 0, 3, &error), EBB_BAD_ARGUMENT);
    world_close(&w);
}

/* ---- refusals ---- */

static void refused(ebb_status status, ebb_status expected, const ebb_error *error, const char *part) {
    if (status != expected) fail_msg("%s instead of %s", ebb_status_name(status), ebb_status_name(expected));
    if (part && !strstr(error->text, part)) fail_msg("'%s' does not say '%s'", error->text, part);
}

/* All bytes of a pool of one layer. */
static size_t pool_bytes(const delta_world *w) {
    const ebb_state_view *v = ebb_state_pool_view(w->pool, 0);
    return (size_t)(v->packed_slot + v->live_slot) * (size_t)v->slots;
}

/* Every flipped byte and every length is refused, and the slot stays as it is. The bytes come in memory of their exact
 * length, so that a sanitizer sees a read beyond. */
static void test_damage(void **state) {
    (void)state;
    delta_world a, b;
    ebb_error error;
    int64_t pos = 77;
    ebb_state_layer small = {
        .kind = EBB_GDN, .key_heads = 1, .heads = 2, .key_dim = 8, .value_dim = 8, .conv_width = 2};
    open_world(&a, "leap8:r=1,p=4", small, 1, 1), open_world(&b, "leap8:r=1,p=4", small, 1, 2);
    poison(&a), poison(&b);
    float out[32 * 16];
    must(world_run(&a, true, 0, 0, 5, out, &error), &error);
    must(world_run(&a, false, 0, 5, 1, out, &error), &error);
    image i = save_state(&a, 0, 6);
    const ebb_state_view *v = ebb_state_pool_view(b.pool, 0);
    uint8_t *before = malloc(pool_bytes(&b));
    memcpy(before, v->packed, pool_bytes(&b));
    for (size_t at = 0; at < i.bytes; at++)
        for (int bit = 0; bit < 8; bit += 1 + (at > 64) * 6) {
            i.data[at] ^= (uint8_t)(1 << bit);
            ebb_status status = ebb_state_load(b.pool, 0, i.data, i.bytes, &pos, &error);
            if (status != EBB_BAD_FILE && status != EBB_UNSUPPORTED)
                fail_msg("byte %zu, bit %d flipped: %s", at, bit, ebb_status_name(status));
            i.data[at] ^= (uint8_t)(1 << bit);
        }
    for (size_t n = 0; n < i.bytes; n++) {
        uint8_t *cut = malloc(n ? n : 1);
        memcpy(cut, i.data, n);
        refused(ebb_state_load(b.pool, 0, cut, n, &pos, &error), EBB_BAD_FILE, &error, NULL);
        free(cut);
    }
    uint8_t *longer = calloc(1, i.bytes + 1);
    memcpy(longer, i.data, i.bytes);
    refused(ebb_state_load(b.pool, 0, longer, i.bytes + 1, &pos, &error), EBB_BAD_FILE, &error, "followed by");
    assert_memory_equal(before, v->packed, pool_bytes(&b));
    assert_int_equal(pos, 77);
    must(ebb_state_load(b.pool, 0, i.data, i.bytes, &pos, &error), &error);
    assert_int_equal(pos, 6);
    free(longer), free(before), free(i.data);
    world_close(&a), world_close(&b);
}

/* Damage with a right checksum: what a hostile writer would send. Nothing is read or written out of bounds (sanitizers
 * see it), and what is accepted has bases that the kernels can work with. */
static void test_hostile(void **state) {
    (void)state;
    delta_world w;
    ebb_error error;
    ebb_state_layer small = {
        .kind = EBB_KDA, .key_heads = 1, .heads = 2, .key_dim = 8, .value_dim = 8, .conv_width = 2};
    open_world(&w, "int8:p=4", small, 2, 1);
    poison(&w);
    float out[32 * 16];
    must(world_run(&w, true, 0, 0, 5, out, &error), &error);
    must(world_run(&w, false, 0, 5, 1, out, &error), &error);
    image good = save_state(&w, 0, 6);
    uint64_t seed = 1;
    int32_t accepted = 0;
    for (int round = 0; round < 20000; round++) {
        size_t n = good.bytes;
        uint8_t *bad = malloc(n);
        memcpy(bad, good.data, n);
        for (uint64_t i = 0, flips = 1 + mix64(seed++) % 3; i < flips; i++) {
            size_t at = mix64(seed++) % (round % 2 ? n : 64);
            const uint8_t values[] = {0, 1, 0x7F, 0x80, 0xFF, (uint8_t)mix64(seed)};
            bad[at] = values[mix64(seed++) % COUNT(values)];
        }
        if (round % 3 == 0) { /* another length that the header knows of */
            n = 64 + mix64(seed++) % (good.bytes - 64);
            uint64_t bytes = n;
            memcpy(bad + 16, &bytes, 8);
            uint8_t *exact = malloc(n);
            memcpy(exact, bad, n);
            free(bad);
            bad = exact;
        }
        image_seal(bad, n);
        int64_t pos = -1;
        if (!ebb_state_load(w.pool, 1, bad, n, &pos, &error)) {
            accepted++;
            assert_true(pos >= 0);
            must(world_run(&w, false, 1, min_i64(pos, MOST - 1) == pos ? pos : 0, 1, out, &error), &error);
        }
        free(bad);
    }
    assert_true(accepted > 0); /* records may be any numbers */
    free(good.data);
    world_close(&w);
}

static void put64(image i, size_t at, uint64_t value) {
    memcpy(i.data + at, &value, sizeof value);
    image_seal(i.data, i.bytes);
}

static void test_refusals(void **state) {
    (void)state;
    delta_world a, b;
    ebb_error error;
    int64_t pos;
    uint32_t version = 2, kind = EBB_IMAGE_KV;
    float out[MOST * 64];
    open_world(&a, "leap8", gdn, 1, 8);
    poison(&a);
    must(world_run(&a, false, 0, 0, 4, out, &error), &error);
    for (int64_t t = 4; t < 16; t += 4) must(world_run(&a, false, 0, t, 4, out, &error), &error);
    must(world_run(&a, false, 0, 15, 8, out, &error), &error);
    image i = save_state(&a, 0, 20); /* 20 records behind base 0 */

    ebb_image_info info;
    must(ebb_image_describe(i.data, i.bytes, &info, &error), &error);
    assert_int_equal(info.kind, EBB_IMAGE_STATE);
    assert_int_equal(info.position, 20);
    assert_int_equal(info.tokens, 20);
    assert_int_equal(info.numerics, origin.numerics);
    assert_int_equal(info.model, origin.model);
    static const char text[] = "method leap8:p=16,bits=8,r=4,scale=ls,theta=0.5,sticky=0,rotate=none\nseed 0\nlayers "
                               "1\nlayer 0 kind=gdn key_heads=1 heads=2 ";
    assert_memory_equal(info.text, text, sizeof text - 1);
    assert_memory_equal(info.text + info.text_bytes - 16, "rows delta best\n", 16);

    open_world(&b, "leap8", gdn, 1, 1);
    refused(ebb_state_load(b.pool, 0, i.data, i.bytes, &pos, &error), EBB_BAD_ARGUMENT, &error, "tokens 0 to 19");
    refused(ebb_state_load(b.pool, 1, i.data, i.bytes, &pos, &error), EBB_BAD_ARGUMENT, &error, "slot 1");
    world_close(&b);
    open_world(&b, "leap8:r=2", gdn, 1, 8);
    refused(ebb_state_load(b.pool, 0, i.data, i.bytes, &pos, &error), EBB_BAD_ARGUMENT, &error,
            "leap8:p=16,bits=8,r=4,scale=ls");
    refused(ebb_state_load(b.pool, 0, i.data, i.bytes, &pos, &error), EBB_BAD_ARGUMENT, &error,
            "leap8:p=16,bits=8,r=2,scale=ls");
    world_close(&b);
    ebb_state_layer other = gdn;
    other.value_dim = 16;
    open_world(&b, "leap8", other, 1, 8);
    refused(ebb_state_load(b.pool, 0, i.data, i.bytes, &pos, &error), EBB_BAD_ARGUMENT, &error,
            "layer 0 value_dim=32; this state store has value_dim=16");
    world_close(&b);

    refused(ebb_state_save(a.pool, 0, 20, &origin, i.data, i.bytes - 1, &error), EBB_BAD_ARGUMENT, &error, "room of");
    assert_int_equal(ebb_state_image_bytes(a.pool, 0, 60, &origin, &error), 0); /* its ring does not reach that far */
    refused(error.code, EBB_BAD_ARGUMENT, &error, "tokens 0 to 59");

    memcpy(i.data + 8, &version, 4);
    image_seal(i.data, i.bytes);
    refused(ebb_state_load(a.pool, 0, i.data, i.bytes, &pos, &error), EBB_UNSUPPORTED, &error, "version 2");
    version = 1;
    memcpy(i.data + 8, &version, 4);
    memcpy(i.data + 12, &kind, 4);
    image_seal(i.data, i.bytes);
    refused(ebb_state_load(a.pool, 0, i.data, i.bytes, &pos, &error), EBB_BAD_FILE, &error, "a KV cache");
    kind = EBB_IMAGE_STATE;
    memcpy(i.data + 12, &kind, 4);
    i.data[0] = 'E';
    image_seal(i.data, i.bytes);
    refused(ebb_state_load(a.pool, 0, i.data, i.bytes, &pos, &error), EBB_BAD_FILE, &error, "not an image");
    i.data[0] = 'e';
    put64(i, 24, (uint64_t)INT64_MAX);
    refused(ebb_state_load(a.pool, 0, i.data, i.bytes, &pos, &error), EBB_BAD_FILE, &error, "position");
    put64(i, 24, 19);
    refused(ebb_state_load(a.pool, 0, i.data, i.bytes, &pos, &error), EBB_BAD_FILE, &error, "after its last layer");
    put64(i, 24, 20);
    must(ebb_state_load(a.pool, 0, i.data, i.bytes, &pos, &error), &error);
    free(i.data);
    world_close(&a);
}

/* ---- images of KV slots ---- */

static const ebb_kv_layer kv_layers[] = {
    {.q_heads = 4, .heads = 2, .parts = 2, .part = {{16, EBB_ROLE_K}, {16, EBB_ROLE_V}}, .scale = .25f},
    {.q_heads = 3, .heads = 1, .parts = 2, .part = {{24, EBB_ROLE_K | EBB_ROLE_V}, {8, EBB_ROLE_K}}, .scale = .25f},
};

static ebb_kv_pool *open_kv(const char *method, int32_t slots, int64_t tokens) {
    ebb_kv_spec spec;
    ebb_kv_pool *pool;
    ebb_error error;
    static const ebb_kv_bits bits[COUNT(kv_layers)] = {{8, 4}, {4, 2}};
    must(ebb_kv_parse(method, &spec, &error), &error);
    if (!strcmp(method, "kvtuner")) spec.bits = bits, spec.n_bits = COUNT(bits);
    ebb_kv_pool_config c = {.size = sizeof c,
                            .spec = &spec,
                            .layers = kv_layers,
                            .n_layers = COUNT(kv_layers),
                            .slots = slots,
                            .max_tokens = tokens};
    must(ebb_kv_pool_open(device, &c, &pool, &error), &error);
    return pool;
}

static void kv_rows(float *rows, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) rows[i] = (float)(mix64(seed + (uint64_t)i) % 255) - 127; /* exact in BF16 */
}

static void test_kv(void **state) {
    (void)state;
    enum { TOKENS = 600, WIDTH = 64 };
    static const int64_t lengths[] = {0, 1, 255, 256, 257, 600};
    float *rows = calloc(TOKENS * WIDTH, sizeof *rows), *back = calloc(TOKENS * WIDTH, sizeof *back);
    int32_t n;
    const ebb_kv_method *methods = ebb_kv_methods(&n);
    ebb_error error;
    for (int32_t m = 0; m < n; m++) {
        ebb_kv_pool *a = open_kv(methods[m].name, 2, 600), *b = open_kv(methods[m].name, 3, 2000);
        const ebb_kv_view *v = ebb_kv_pool_view(a, 0);
        if (v->rule.select || v->codec->rewrite) { /* test_kv_images.c has those that rows cannot be written into */
            ebb_kv_pool_close(a), ebb_kv_pool_close(b);
            continue;
        }
        const bool exact = m < 3;                            /* the others give back what they stored */
        must(ebb_kv_pool_reserve(a, 1, 10, &error), &error); /* other pages than the first ones */
        must(ebb_kv_pool_reserve(a, 0, 600, &error), &error);
        for (int32_t layer = 0; layer < COUNT(kv_layers); layer++) {
            kv_rows(rows, TOKENS * WIDTH, (uint64_t)layer);
            must(ebb_kv_write(a, layer, 0, 0, 600, rows, &error), &error);
        }
        for (int k = 0; k < COUNT(lengths); k++) {
            int64_t pos;
            size_t bytes = ebb_kv_image_bytes(a, 0, lengths[k], &origin, &error), twice;
            uint8_t *data = malloc(bytes), *again = malloc(bytes);
            must(ebb_kv_save(a, 0, lengths[k], &origin, data, bytes, &error), &error);
            must(ebb_kv_load(b, 2, data, bytes, &pos, &error), &error);
            assert_int_equal(pos, lengths[k]);
            twice = ebb_kv_image_bytes(b, 2, pos, &origin, &error);
            assert_int_equal(twice, bytes);
            must(ebb_kv_save(b, 2, pos, &origin, again, bytes, &error), &error);
            assert_memory_equal(data, again, bytes);
            must(ebb_kv_pool_copy(b, 2, 0, pos, &error), &error);
            for (int32_t layer = 0; layer < COUNT(kv_layers); layer++) {
                const int64_t width = layer ? 32 : 64;
                kv_rows(rows, TOKENS * WIDTH, (uint64_t)layer);
                if (!exact) must(ebb_kv_read(a, layer, 0, pos, 0, pos, rows, &error), &error);
                must(ebb_kv_read(b, layer, 0, pos, 0, pos, back, &error), &error);
                if (pos) assert_memory_equal(back, rows, (size_t)(pos * width) * sizeof *rows);
            }
            for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 50)
                refused(ebb_kv_load(b, 1, data, cut, &pos, &error), EBB_BAD_FILE, &error, NULL);
            v = ebb_kv_pool_view(b, 0);
            assert_int_equal(v->block[v->block_stride], -1); /* no page was taken for them */
            ebb_kv_pool_release(b, 0);
            ebb_kv_pool_release(b, 2);
            free(data), free(again);
        }
        refused(ebb_kv_read(a, 0, 0, 800, 590, 200, back, &error), EBB_BAD_ARGUMENT, &error, "790");
        assert_int_equal(ebb_kv_image_bytes(a, 1, 300, &origin, &error), 0);
        refused(error.code, EBB_BAD_ARGUMENT, &error, "not reserved");
        ebb_kv_pool_close(a), ebb_kv_pool_close(b);
    }
    ebb_kv_pool *a = open_kv("bf16", 1, 600), *b = open_kv("fp16", 1, 600), *c = open_kv("bf16", 1, 256);
    must(ebb_kv_pool_reserve(a, 0, 600, &error), &error);
    must(ebb_kv_write(a, 0, 0, 0, 600, rows, &error), &error);
    must(ebb_kv_write(a, 1, 0, 0, 600, rows, &error), &error);
    size_t bytes = ebb_kv_image_bytes(a, 0, 600, NULL, &error);
    uint8_t *data = malloc(bytes);
    int64_t pos;
    must(ebb_kv_save(a, 0, 600, NULL, data, bytes, &error), &error);
    refused(ebb_kv_load(b, 0, data, bytes, &pos, &error), EBB_BAD_ARGUMENT, &error, "bf16:format=bf16");
    refused(ebb_kv_load(c, 0, data, bytes, &pos, &error), EBB_BAD_ARGUMENT, &error, "600");
    assert_int_equal(ebb_kv_pool_slot_bytes(c, 0), 0);
    free(data), free(rows), free(back);
    ebb_kv_pool_close(a), ebb_kv_pool_close(b), ebb_kv_pool_close(c);
}

int main(void) {
    const ebb_device_config config = {.size = sizeof config, .threads = 1};
    if (ebb_device_open("cpu", &config, &device, NULL)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c),       cmocka_unit_test(test_method_text), cmocka_unit_test(test_phases),
        cmocka_unit_test(test_first_tokens), cmocka_unit_test(test_copy),        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_hostile),      cmocka_unit_test(test_refusals),    cmocka_unit_test(test_kv),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    ebb_device_close(device);
    return failures;
}
