/* test_point_ops.c: sums of rows (biases, residuals), the order of heads and interleaved RoPE against plain loops, bit
 * for bit, whatever the number of rows and threads. */
#include "core/core.h"
#include "ebb/op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

typedef struct bench {
    ebb_device *device;
    ebb_queue *queue;
} bench;

static void open_bench(bench *b, int32_t threads) {
    const ebb_device_config config = {.size = sizeof config, .threads = threads};
    ebb_error error;
    must(ebb_device_open("cpu", &config, &b->device, &error), &error);
    must(ebb_queue_open(b->device, 0, &b->queue, &error), &error);
}

static void close_bench(bench *b) {
    ebb_queue_close(b->queue);
    ebb_device_close(b->device);
}

static void fill(float *x, size_t n, uint64_t key) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(int64_t)(mix64(key * 31 + i) % 20001) / 7000.0f - 1.4f;
}

enum { ROWS = 45, N = 37, X_STRIDE = 40, Y_STRIDE = 51 };

static void test_add(void **state) {
    (void)state;
    float x[ROWS * X_STRIDE], y[ROWS * Y_STRIDE], want[ROWS * Y_STRIDE];
    for (int32_t threads = 1; threads <= 3; threads++)
        for (int64_t stride = 0; stride <= X_STRIDE; stride += X_STRIDE)
            for (int64_t m = 0; m <= ROWS; m += 9) {
                bench b;
                open_bench(&b, threads);
                fill(x, COUNT(x), 1), fill(y, COUNT(y), 2);
                memcpy(want, y, sizeof y);
                for (int64_t i = 0; i < m; i++)
                    for (int64_t c = 0; c < N; c++) want[i * Y_STRIDE + c] += x[i * stride + c];
                assert_int_equal(ebb_add(b.queue, x, stride, N, y, Y_STRIDE, m), EBB_OK);
                assert_memory_equal(y, want, sizeof y);
                close_bench(&b);
            }
}

static void test_add_arguments(void **state) {
    (void)state;
    bench b;
    float x[8] = {0}, y[8] = {0};
    open_bench(&b, 1);
    assert_int_equal(ebb_add(NULL, x, 4, 4, y, 4, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_add(b.queue, NULL, 4, 4, y, 4, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_add(b.queue, x, 4, 4, NULL, 4, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_add(b.queue, x, 3, 4, y, 4, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_add(b.queue, x, 4, 4, y, 3, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_add(b.queue, x, 4, 0, y, 4, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_add(b.queue, x, 4, 4, y, 4, -1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_add(b.queue, NULL, 4, 4, NULL, 4, 0), EBB_OK);
    close_bench(&b);
}

/* Interleaved RoPE is the NeoX form of permuted dimensions: 2i goes to i, 2i + 1 to i + rotary / 2. */
enum { TOKENS = 5, Q_HEADS = 3, HEADS = 2, DIM = 24, ROTARY = 16 };

static int32_t neox_place(int32_t d) { return d >= ROTARY ? d : d % 2 ? d / 2 + ROTARY / 2 : d / 2; }

static void permute(const float *from, int64_t heads, float *to) {
    for (int64_t h = 0; h < heads; h++)
        for (int32_t d = 0; d < DIM; d++) to[h * DIM + neox_place(d)] = from[h * DIM + d];
}

static void test_interleaved(void **state) {
    (void)state;
    const int32_t slots[] = {0, 1}, cu[] = {0, 3, TOKENS};
    const int64_t pos[] = {7, 100};
    const ebb_batch batch = {.seqs = 2, .tokens = TOKENS, .slot = slots, .cu = cu, .pos = pos};
    float freq[ROTARY / 2], norm[DIM], norm_neox[DIM];
    for (int i = 0; i < ROTARY / 2; i++) freq[i] = 1.0f / powf(10000.0f, (float)(2 * i) / ROTARY);
    fill(norm, DIM, 5);
    permute(norm, 1, norm_neox);
    float q[TOKENS * Q_HEADS * DIM], k[TOKENS * HEADS * DIM], q_neox[COUNT(q)], k_neox[COUNT(k)], want[COUNT(q)];
    for (int with = 0; with < 2; with++) {
        bench b;
        ebb_error error;
        open_bench(&b, 2);
        fill(q, COUNT(q), 3), fill(k, COUNT(k), 4);
        permute(q, TOKENS * Q_HEADS, q_neox), permute(k, TOKENS * HEADS, k_neox);
        ebb_rope rope = {.eps = 1e-6f, .rotary = ROTARY, .inv_freq = freq, .interleaved = true};
        if (with) rope.q_norm = rope.k_norm = norm;
        ebb_tensor tq = {q, EBB_FP32, 3, {TOKENS, Q_HEADS, DIM}, {Q_HEADS * DIM, DIM, 1}};
        ebb_tensor tk = {k, EBB_FP32, 3, {TOKENS, HEADS, DIM}, {HEADS * DIM, DIM, 1}};
        must(ebb_rope_norm(b.queue, &rope, &batch, &tq, &tq, &tk, &error), &error);
        rope.interleaved = false;
        if (with) rope.q_norm = rope.k_norm = norm_neox;
        tq.data = q_neox, tk.data = k_neox;
        must(ebb_rope_norm(b.queue, &rope, &batch, &tq, &tq, &tk, &error), &error);
        permute(q, TOKENS * Q_HEADS, want);
        for (int i = 0; i < COUNT(q); i++) assert_true(fabsf(want[i] - q_neox[i]) <= (with ? 1e-5f : 0));
        permute(k, TOKENS * HEADS, want);
        for (int i = 0; i < COUNT(k); i++) assert_true(fabsf(want[i] - k_neox[i]) <= (with ? 1e-5f : 0));
        close_bench(&b);
    }
}

/* Head j of group g from g * each + j to j * groups + g. */
static void test_tile_heads(void **state) {
    (void)state;
    enum { M = 19, ALL = 6, WIDE = 5 };
    float x[M * ALL * WIDE], y[M * ALL * WIDE];
    fill(x, COUNT(x), 3);
    for (int32_t threads = 1; threads <= 3; threads++)
        for (int64_t groups = 1; groups <= ALL; groups++) {
            bench b;
            open_bench(&b, threads);
            const int64_t each = ALL / groups;
            const ebb_status status = ebb_tile_heads(b.queue, x, ALL, groups, WIDE, y, M);
            assert_int_equal(status, ALL % groups ? EBB_BAD_ARGUMENT : EBB_OK);
            for (int64_t i = 0; !status && i < COUNT(x); i++) {
                const int64_t head = i / WIDE % ALL, to = head % each * groups + head / each;
                assert_true(y[i + (to - head) * WIDE] == x[i]);
            }
            assert_int_equal(ebb_tile_heads(b.queue, x, ALL, groups, 0, y, M), EBB_BAD_ARGUMENT);
            assert_int_equal(ebb_tile_heads(b.queue, NULL, ALL, 1, WIDE, y, M), EBB_BAD_ARGUMENT);
            close_bench(&b);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_add_arguments),
        cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_tile_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
