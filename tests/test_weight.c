/* test_weight.c: quantized weights: the order of their bytes, products and embeddings against the widened values,
 * stacks of several types, refusals. The rows of gemm are compared on all types by ebb-check. */
#include "op/panel.h"

#include "core/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST_ROWS = 300 }; /* of x */

static ebb_device *device_new(int32_t threads, int32_t features) {
    ebb_device_config config = {.size = sizeof config, .threads = threads, .features = features};
    ebb_device *device;
    assert_int_equal(ebb_device_open("cpu", &config, &device, NULL), EBB_OK);
    return device;
}

static float random_value(uint64_t *seed) {
    *seed = mix64(*seed);
    return (float)(int32_t)(*seed >> 40) / 8388608.0f - 1.0f;
}

/* n rows of k values of any type at an odd address, beside their values. */
typedef struct matrix {
    uint8_t *block;
    float *values;
    ebb_weight_part part;
} matrix;

static void random_blocks(int32_t type, uint8_t *data, size_t bytes, uint64_t *seed) {
    const quant_layout l = quant_layout_of(type);
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(*seed = mix64(*seed));
    for (size_t at = 0; at < bytes; at += (size_t)l.bytes)
        for (int32_t h = 0; h < l.halves; h++) {
            const uint16_t half = float_to_fp16(random_value(seed) * 0.03f);
            memcpy(data + at + l.halves_at + 2 * h, &half, sizeof half);
        }
}

static matrix matrix_new(int32_t type, int64_t n, int64_t k, uint64_t seed) {
    const size_t bytes = (size_t)n * ebb_type_row_bytes((ebb_type)type, k);
    matrix m = {.block = malloc(bytes + 1), .values = malloc((size_t)(n * k) * sizeof *m.values)};
    uint8_t *data = m.block + 1;
    m.part = (ebb_weight_part){data, type, n};
    if (gguf_block_values(type)) {
        random_blocks(type, data, bytes, &seed);
        gguf_decode_row(type, data, n * k, m.values);
        return m;
    }
    for (int64_t i = 0; i < n * k; i++) {
        m.values[i] = random_value(&seed);
        const uint16_t half = float_to_bf16(m.values[i]);
        if (type == EBB_BF16) m.values[i] = bf16_to_float(half), memcpy(data + 2 * i, &half, sizeof half);
        else memcpy(data + 4 * i, &m.values[i], sizeof(float));
    }
    return m;
}

static void matrix_free(matrix *m) { free(m->block), free(m->values); }

/* ---- the order of bytes ---- */

static void test_order(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int32_t type = EBB_Q4_0; type <= EBB_Q6_K; type++) {
        const quant_layout l = quant_layout_of(type);
        uint8_t rows[EBB_PANEL][QUANT_BLOCK_BYTES], panel[EBB_PANEL * QUANT_BLOCK_BYTES], back[QUANT_BLOCK_BYTES];
        const uint8_t *at[EBB_PANEL];
        assert_int_equal(l.values, gguf_block_values(type));
        assert_int_equal(l.bytes, gguf_block_bytes(type));
        assert_int_equal(panel_bytes(type, 3 * l.values), 3 * EBB_PANEL * (size_t)l.bytes);
        for (int c = 0; c < EBB_PANEL; c++) {
            for (int i = 0; i < l.bytes; i++) rows[c][i] = (uint8_t)(seed = mix64(seed));
            at[c] = c == 7 ? NULL : rows[c];
        }
        memset(rows[7], 0, sizeof rows[7]);
        panel_pack(type, at, panel);
        for (int c = 0; c < EBB_PANEL; c++) {
            panel_take(type, panel, c, back);
            assert_memory_equal(back, rows[c], (size_t)l.bytes);
        }
    }
    assert_int_equal(panel_bytes(EBB_Q4_K, 32), 0);
}

/* ---- products ---- */

/* What a weight gives must be, bit for bit, what FP32 panels of `values` give, on every kind of device. */
static void check_weight(const ebb_weight *weight, const float *values) {
    static const int32_t features[] = {EBB_CPU_ALL, EBB_CPU_AVX2, EBB_CPU_NONE};
    static const int64_t some[] = {1, 2, 5, 9, 47, 49, MOST_ROWS};
    const int64_t n = weight->n, k = weight->k, y_stride = n + 3;
    float *x = malloc((size_t)(MOST_ROWS * k) * sizeof *x), *want = malloc((size_t)(MOST_ROWS * y_stride) * sizeof *x);
    float *y = malloc((size_t)(MOST_ROWS * y_stride) * sizeof *x);
    uint64_t seed = 77;
    for (int64_t i = 0; i < MOST_ROWS * k; i++) x[i] = random_value(&seed);
    for (int f = 0; f < COUNT(features); f++) {
        ebb_device *device = device_new(f + 1, features[f]);
        ebb_queue *queue;
        ebb_weight wide;
        ebb_weight_part part = {values, EBB_FP32, n};
        assert_int_equal(ebb_queue_open(device, 0, &queue, NULL), EBB_OK);
        assert_int_equal(ebb_weight_pack(device, &part, 1, k, &wide, NULL), EBB_OK);
        for (int i = 0; i < COUNT(some) - (features[f] == EBB_CPU_NONE); i++) {
            const int32_t flags = i % 2 ? EBB_ADD : 0;
            for (int64_t j = 0; j < some[i] * y_stride; j++) y[j] = want[j] = 0.25f;
            assert_int_equal(ebb_linear(queue, weight, x, k, y, y_stride, some[i], flags), EBB_OK);
            assert_int_equal(ebb_linear(queue, &wide, x, k, want, y_stride, some[i], flags), EBB_OK);
            assert_memory_equal(y, want, (size_t)(some[i] * y_stride) * sizeof *y);
        }
        ebb_weight_free(device, &wide);
        ebb_queue_close(queue);
        ebb_device_close(device);
    }
    free(x), free(y), free(want);
}

static void check_embed(ebb_device *device, const ebb_weight *weight, const float *values) {
    const int64_t n = weight->n, k = weight->k;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    float *y = malloc((size_t)(n * k) * sizeof *y);
    ebb_queue *queue;
    assert_int_equal(ebb_queue_open(device, 0, &queue, NULL), EBB_OK);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(n - 1 - i);
    assert_int_equal(ebb_embed(queue, weight, ids, n, y, k), EBB_OK);
    for (int64_t i = 0; i < n; i++) assert_memory_equal(y + i * k, values + (n - 1 - i) * k, (size_t)k * sizeof *y);
    ebb_queue_close(queue);
    free(ids), free(y);
}

static void test_types(void **state) {
    (void)state;
    ebb_device *device = device_new(2, EBB_CPU_ALL);
    for (int32_t type = EBB_Q4_0; type <= EBB_Q6_K; type++) {
        const int64_t k = gguf_block_values(type) == 32 ? 352 : 512, n = 70;
        matrix m = matrix_new(type, n, k, (uint64_t)type);
        ebb_weight weight;
        assert_int_equal(ebb_weight_pack(device, &m.part, 1, k, &weight, NULL), EBB_OK);
        assert_int_equal(weight.type, type);
        assert_int_equal(weight.stacks, 0);
        assert_int_equal(weight.bytes, 96 * ebb_type_row_bytes((ebb_type)type, k));
        check_weight(&weight, m.values);
        check_embed(device, &weight, m.values);
        ebb_weight_free(device, &weight);
        matrix_free(&m);
    }
    ebb_device_close(device);
}

/* ---- stacks ---- */

enum { PARTS = 8, K = 256 };
static const struct {
    int32_t type;
    int64_t n;
} stacked[PARTS] = {{EBB_Q4_K, 33}, {EBB_Q4_K, 40}, {EBB_Q6_K, 64}, {EBB_BF16, 5},
                    {EBB_FP32, 3},  {EBB_Q4_K, 7},  {EBB_Q8_0, 1},  {EBB_BF16, 300}};

static void stacks_new(ebb_device *device, ebb_weight *weight, float **values) {
    matrix m[PARTS];
    ebb_weight_part parts[PARTS];
    int64_t n = 0;
    for (int i = 0; i < PARTS; i++) n += stacked[i].n;
    *values = malloc((size_t)(n * K) * sizeof(float));
    n = 0;
    for (int i = 0; i < PARTS; i++) {
        m[i] = matrix_new(stacked[i].type, stacked[i].n, K, (uint64_t)i + 9);
        parts[i] = m[i].part;
        memcpy(*values + n * K, m[i].values, (size_t)(stacked[i].n * K) * sizeof(float));
        n += stacked[i].n;
    }
    assert_int_equal(ebb_weight_pack(device, parts, PARTS, K, weight, NULL), EBB_OK);
    assert_int_equal(weight->n, n);
    for (int i = 0; i < PARTS; i++) matrix_free(&m[i]);
}

/* Neighbours of one kind share a stack; outputs lie side by side as if there were none. */
static void test_stacks(void **state) {
    (void)state;
    static const ebb_weight_stack want[] = {{73, EBB_Q4_K}, {64, EBB_Q6_K}, {8, EBB_FP32},
                                            {7, EBB_Q4_K},  {1, EBB_Q8_0},  {300, EBB_BF16}};
    ebb_device *device = device_new(2, EBB_CPU_ALL);
    ebb_weight weight;
    float *values;
    size_t bytes = 0;
    stacks_new(device, &weight, &values);
    assert_int_equal(weight.stacks, COUNT(want));
    for (int i = 0; i < COUNT(want); i++) {
        assert_int_equal(weight.stack[i].n, want[i].n);
        assert_int_equal(weight.stack[i].type, want[i].type);
        bytes += align_up((size_t)want[i].n, EBB_PANEL) * ebb_type_row_bytes((ebb_type)want[i].type, K);
    }
    assert_int_equal(weight.bytes, bytes);
    check_weight(&weight, values);
    check_embed(device, &weight, values);
    ebb_weight_free(device, &weight);
    ebb_device_close(device);
    free(values);
}

/* Heads of one shape whose weights are cut into different numbers of stacks. */
static void test_heads(void **state) {
    (void)state;
    enum { HEADS = 3, ROWS = 60, MORE = 2 };
    ebb_device *device = device_new(3, EBB_CPU_ALL);
    ebb_queue *queue;
    ebb_weight weights[HEADS];
    float *values;
    uint64_t seed = 8;
    stacks_new(device, &weights[1], &values);
    const int64_t n = weights[1].n, x_head = K + MORE, y_head = n + MORE;
    for (int h = 0; h < HEADS; h += 2) {
        matrix m = matrix_new(h ? EBB_Q5_K : EBB_BF16, n, K, (uint64_t)h);
        assert_int_equal(ebb_weight_pack(device, &m.part, 1, K, &weights[h], NULL), EBB_OK);
        matrix_free(&m);
    }
    float *x = malloc((size_t)(ROWS * HEADS * x_head) * sizeof *x), *alone = malloc((size_t)(ROWS * n) * sizeof *x);
    float *y = malloc((size_t)(ROWS * HEADS * y_head) * sizeof *y);
    for (int64_t i = 0; i < ROWS * HEADS * x_head; i++) x[i] = random_value(&seed);
    assert_int_equal(ebb_queue_open(device, 0, &queue, NULL), EBB_OK);
    ebb_tensor tx = {x, EBB_FP32, 3, {ROWS, HEADS, x_head}, {HEADS * x_head, x_head, 1}};
    ebb_tensor ty = {y, EBB_FP32, 3, {ROWS, HEADS, y_head}, {HEADS * y_head, y_head, 1}};
    assert_int_equal(ebb_linear_heads(queue, weights, &tx, &ty, NULL), EBB_OK);
    for (int h = 0; h < HEADS; h++) {
        assert_int_equal(ebb_linear(queue, &weights[h], x + h * x_head, HEADS * x_head, alone, n, ROWS, 0), EBB_OK);
        for (int64_t r = 0; r < ROWS; r++) {
            const float *got = y + (r * HEADS + h) * y_head;
            assert_memory_equal(got, alone + r * n, (size_t)n * sizeof *got);
            assert_memory_equal(got + n, x + (r * HEADS + h) * x_head + K, MORE * sizeof *got);
        }
    }
    for (int h = 0; h < HEADS; h++) ebb_weight_free(device, &weights[h]);
    ebb_queue_close(queue);
    ebb_device_close(device);
    free(x), free(y), free(alone), free(values);
}

/* ---- refusals ---- */

static void refuse(ebb_device *device, const ebb_weight_part *parts, int32_t n_parts, int64_t k, const char *word) {
    ebb_weight weight;
    ebb_error error = {0};
    assert_int_equal(ebb_weight_pack(device, parts, n_parts, k, &weight, &error), EBB_BAD_ARGUMENT);
    if (!strstr(error.text, word)) fail_msg("'%s' does not say '%s'", error.text, word);
}

static void test_refusals(void **state) {
    (void)state;
    ebb_device *device = device_new(1, EBB_CPU_ALL);
    static const uint8_t data[2 * 256 * 4];
    ebb_weight_part parts[9];
    for (int i = 0; i < 9; i++) parts[i] = (ebb_weight_part){data, i % 2 ? EBB_Q4_0 : EBB_Q8_0, 1};
    refuse(device, parts, 9, 32, "changes its type more than 7 times");
    refuse(device, parts, 1, 33, "33 columns of q8_0, expected a multiple of 32");
    refuse(device, &(ebb_weight_part){data, EBB_Q6_K, 1}, 1, 128, "multiple of 256");
    refuse(device, &(ebb_weight_part){data, EBB_INT32, 1}, 1, 32, "type 4");
    refuse(device, &(ebb_weight_part){data, 40, 1}, 1, 32, "type 40");
    refuse(device, &(ebb_weight_part){NULL, EBB_Q8_0, 1}, 1, 32, "no data");
    refuse(device, &(ebb_weight_part){data, EBB_Q8_0, 0}, 1, 32, "0 rows");
    refuse(device, &(ebb_weight_part){data, EBB_Q8_0, INT64_MAX / 64}, 1, 1024, "does not fit");

    ebb_queue *queue;
    float x[32] = {0}, y[9];
    ebb_weight weight;
    assert_int_equal(ebb_queue_open(device, 0, &queue, NULL), EBB_OK);
    assert_int_equal(ebb_weight_pack(device, parts, 8, 32, &weight, NULL), EBB_OK);
    assert_int_equal(ebb_linear(queue, &weight, x, 32, y, 8, 1, 0), EBB_OK);
    for (int i = 0; i < 4; i++) {
        ebb_weight bad = weight;
        if (i == 0) bad.stacks = -1;
        if (i == 1) bad.stacks = EBB_WEIGHT_STACKS + 1;
        if (i == 2) bad.stack[7].type = EBB_INT64;
        if (i == 3) bad.stacks = 0, bad.type = 31;
        assert_int_equal(ebb_linear(queue, &bad, x, 32, y, 8, 1, 0), EBB_BAD_ARGUMENT);
        assert_int_equal(ebb_embed(queue, &bad, (const int32_t[]){0}, 1, x, 32), EBB_BAD_ARGUMENT);
    }
    ebb_weight_free(device, &weight);
    ebb_queue_close(queue);
    ebb_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order), cmocka_unit_test(test_types),    cmocka_unit_test(test_stacks),
        cmocka_unit_test(test_heads), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
