/* tests/test_layout.c: calibrated tables: what is copied, what is refused. */
#include "core/core.h"
#include "ebb/state.h"
#include "state/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

enum { HEADS = 2, KEYS = 4, VALUES = 3 };

typedef struct tables {
    uint16_t key_order[HEADS * KEYS], value_order[HEADS * VALUES];
    float value_scale[HEADS * VALUES];
    uint8_t bits[HEADS];
} tables;

static const tables good = {{3, 0, 1, 2, 0, 1, 2, 3}, {2, 1, 0, 0, 1, 2}, {1, 2, 0.5f, 1e-20f, 1e20f, 3}, {8, 12}};

static ebb_layout_layer layer_of(const tables *t) {
    return (ebb_layout_layer){HEADS, KEYS, VALUES, t->key_order, t->value_order, t->value_scale, t->bits};
}

static void a_layout_is_a_copy(void **state) {
    (void)state;
    tables t = good;
    ebb_layout *layout = NULL;
    ebb_error error;
    ebb_layout_layer layers[2] = {layer_of(&t), layer_of(&t)};
    layers[1].value_order = NULL, layers[1].value_scale = NULL, layers[1].bits = NULL;
    must(ebb_layout_new("damp", 7, layers, 2, &layout, &error), &error);
    memset(&t, 0xff, sizeof t);
    int32_t n = 0;
    const ebb_layout_layer *table = ebb_layout_table(layout, 0, &n);
    assert_int_equal(n, 2);
    assert_string_equal(ebb_layout_method(layout), "damp");
    assert_true(ebb_layout_model(layout) == 7);
    assert_memory_equal(table->key_order, good.key_order, sizeof good.key_order);
    assert_memory_equal(table->value_order, good.value_order, sizeof good.value_order);
    assert_memory_equal(table->value_scale, good.value_scale, sizeof good.value_scale);
    assert_memory_equal(table->bits, good.bits, sizeof good.bits);
    assert_null(ebb_layout_table(layout, 1, NULL)->bits);
    assert_null(ebb_layout_table(layout, 2, NULL));
    assert_null(ebb_layout_table(layout, -1, NULL));
    ebb_layout_free(layout);
    ebb_layout_free(NULL);
}

static void refused(const tables *t, const char *words) {
    ebb_layout *layout = NULL;
    ebb_error error = {EBB_OK, ""};
    const ebb_layout_layer layer = layer_of(t);
    assert_int_equal(ebb_layout_new("damp", 0, &layer, 1, &layout, &error), EBB_BAD_ARGUMENT);
    assert_null(layout);
    if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
}

static void bad_tables(void **state) {
    (void)state;
    tables t = good;
    t.key_order[5] = 0;
    refused(&t, "head 1: key_order[1] is 0, expected a permutation of 0 .. 3");
    t = good, t.key_order[0] = KEYS;
    refused(&t, "head 0: key_order[0] is 4");
    t = good, t.value_order[4] = 2, t.value_order[5] = 2;
    refused(&t, "head 1: value_order[2] is 2");
    t = good, t.value_scale[4] = 0;
    refused(&t, "head 1: value_scale[1] is 0");
    t = good, t.value_scale[0] = -1;
    refused(&t, "value_scale[0] is -1");
    t = good, t.bits[1] = 1;
    refused(&t, "head 1: 1 bits, expected 2 to 16");
    ebb_layout *layout = NULL;
    ebb_error error;
    ebb_layout_layer layer = layer_of(&good);
    layer.heads = 0;
    assert_int_equal(ebb_layout_new("damp", 0, &layer, 1, &layout, &error), EBB_BAD_ARGUMENT);
    layer.heads = HEADS, layer.value_dim = EBB_MAX_STATE_DIM + 1;
    assert_int_equal(ebb_layout_new("damp", 0, &layer, 1, &layout, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_layout_new("damp", 0, &layer, 0, &layout, &error), EBB_BAD_ARGUMENT);
}

/* A state layer finds its own table, and no other model's. */
static void tables_of_layers(void **state) {
    (void)state;
    ebb_layout *layout = NULL;
    ebb_error error;
    const ebb_layout_layer *table = NULL, layer = layer_of(&good);
    must(ebb_layout_new("damp", 0, &layer, 1, &layout, &error), &error);
    ebb_state_layer s = {.kind = EBB_GDN, .key_heads = 1, .heads = 2, .key_dim = KEYS, .value_dim = VALUES};
    must(layout_of_layer(layout, "damp", &s, &table, &error), &error);
    assert_ptr_equal(table, ebb_layout_table(layout, 0, NULL));
    s.heads = 1, s.head_begin = 1; /* a shard */
    must(layout_of_layer(layout, "damp", &s, &table, &error), &error);
    s.head_begin = 2;
    assert_int_equal(layout_of_layer(layout, "damp", &s, &table, &error), EBB_BAD_ARGUMENT);
    s.head_begin = 0, s.key_dim = KEYS + 1;
    assert_int_equal(layout_of_layer(layout, "damp", &s, &table, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "made for another model"));
    s.key_dim = KEYS, s.index = 1;
    assert_int_equal(layout_of_layer(layout, "damp", &s, &table, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(layout_of_layer(NULL, "damp", &s, &table, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "ebb calibrate --method damp"));
    ebb_layout_free(layout);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layout_is_a_copy),
        cmocka_unit_test(bad_tables),
        cmocka_unit_test(tables_of_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
