/* test_linear.c: linear layers, embeddings and pointwise ops through the public calls: against FP64, every input type,
 * mixed parts, foreign memory, bad arguments. */
#include "core/core.h"
#include "ebb/op.h"
#include "format/float16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- fixtures ---- */

typedef struct world {
    ebb_device *device;
    ebb_queue *queue;
} world;

static int open_world(void **state) {
    static world w;
    ebb_device_config config = {.size = sizeof config, .threads = 3};
    if (ebb_device_open("cpu", &config, &w.device, NULL)) return -1;
    *state = &w;
    return ebb_queue_open(w.device, 0, &w.queue, NULL) == EBB_OK ? 0 : -1;
}

static int close_world(void **state) {
    world *w = *state;
    ebb_queue_close(w->queue);
    ebb_device_close(w->device);
    return 0;
}

static float random_value(uint64_t *seed) {
    *seed = mix64(*seed);
    return (float)(int32_t)(*seed >> 40) / 8388608.0f - 1.0f; /* -1 .. 1, 24 bits */
}

/* A matrix as a file holds it: n x k values of a type, at an odd address, beside the same values in FP32. */
typedef struct matrix {
    uint8_t *block, *data;
    float *values;
    int32_t type;
    int64_t n, k;
} matrix;

static matrix matrix_new(int32_t type, int64_t n, int64_t k, uint64_t seed) {
    matrix m = {.type = type, .n = n, .k = k};
    size_t size = ebb_type_bytes((ebb_type)type);
    m.block = malloc((size_t)(n * k) * size + 1);
    m.data = m.block + 1;
    m.values = malloc((size_t)(n * k) * sizeof *m.values);
    for (int64_t i = 0; i < n * k; i++) {
        float v = random_value(&seed);
        uint16_t half = type == EBB_BF16 ? float_to_bf16(v) : float_to_fp16(v);
        if (type != EBB_FP32) v = type == EBB_BF16 ? bf16_to_float(half) : fp16_to_float(half);
        memcpy(m.data + (size_t)i * size, type == EBB_FP32 ? (const void *)&v : (const void *)&half, size);
        m.values[i] = v;
    }
    return m;
}

static ebb_weight_part part_of(const matrix *m) { return (ebb_weight_part){m->data, m->type, m->n}; }
static void matrix_free(matrix *m) { free(m->block), free(m->values); }

/* y = x W^T against FP64, with rows of x and y further apart than they are long, and EBB_ADD. */
static void check_product(const world *w, const ebb_weight *weight, const float *values, int64_t m) {
    int64_t n = weight->n, k = weight->k, x_stride = k + 3, y_stride = n + 5;
    uint64_t seed = (uint64_t)m;
    float *x = malloc((size_t)(m * x_stride) * sizeof *x), *y = malloc((size_t)(m * y_stride) * sizeof *y);
    for (int64_t i = 0; i < m * x_stride; i++) x[i] = random_value(&seed);
    for (int flags = 0; flags <= EBB_ADD; flags++) {
        for (int64_t i = 0; i < m * y_stride; i++) y[i] = 0.5f;
        assert_int_equal(ebb_linear(w->queue, weight, x, x_stride, y, y_stride, m, flags), EBB_OK);
        for (int64_t i = 0; i < m; i++) {
            for (int64_t j = 0; j < n; j++) {
                double sum = flags & EBB_ADD ? 0.5 : 0, size = 1;
                for (int64_t c = 0; c < k; c++) {
                    double p = (double)x[i * x_stride + c] * (double)values[j * k + c];
                    sum += p;
                    size += fabs(p);
                }
                assert_true(fabs((double)y[i * y_stride + j] - sum) <= 1e-7 * size * sqrt((double)k));
            }
            for (int64_t j = n; j < y_stride; j++) assert_true(y[i * y_stride + j] == 0.5f);
        }
    }
    free(x), free(y);
}

/* Row j of the matrix must come back exactly. */
static void check_rows(const world *w, const ebb_weight *weight, const float *values) {
    int64_t n = weight->n, k = weight->k;
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    float *y = malloc((size_t)(n * (k + 1)) * sizeof *y);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(n - 1 - i);
    assert_int_equal(ebb_embed(w->queue, weight, ids, n, y, k + 1), EBB_OK);
    for (int64_t i = 0; i < n; i++)
        assert_memory_equal(y + i * (k + 1), values + (n - 1 - i) * k, (size_t)k * sizeof *y);
    free(ids), free(y);
}

/* ---- packing and products ---- */

static void test_types(void **state) {
    static const int32_t types[] = {EBB_FP32, EBB_FP16, EBB_BF16};
    const world *w = *state;
    for (int t = 0; t < COUNT(types); t++) {
        matrix m = matrix_new(types[t], 70, 83, 1);
        ebb_weight_part part = part_of(&m);
        ebb_weight weight;
        assert_int_equal(ebb_weight_pack(w->device, &part, 1, m.k, &weight, NULL), EBB_OK);
        assert_int_equal(weight.n, 70);
        assert_int_equal(weight.k, 83);
        assert_int_equal(weight.type, types[t]);
        assert_int_equal(weight.bytes, 96 * 83 * ebb_type_bytes((ebb_type)weight.type));
        assert_int_equal((uintptr_t)weight.panels % 64, 0);
        check_product(w, &weight, m.values, 1);
        check_product(w, &weight, m.values, 50);
        check_rows(w, &weight, m.values);
        ebb_weight_free(w->device, &weight);
        assert_null(weight.panels);
        matrix_free(&m);
    }
}

/* Parts of all types, which end inside a panel, and columns beyond one transposed tile. */
static void test_mixed_parts(void **state) {
    const world *w = *state;
    matrix m[4] = {matrix_new(EBB_BF16, 33, 257, 2), matrix_new(EBB_FP32, 1, 257, 3), matrix_new(EBB_FP16, 62, 257, 4),
                   matrix_new(EBB_BF16, 5, 257, 5)};
    ebb_weight_part parts[4];
    ebb_weight weight;
    float *values = malloc(101 * 257 * sizeof *values);
    for (int64_t i = 0, row = 0; i < 4; row += m[i].n, i++) {
        parts[i] = part_of(&m[i]);
        memcpy(values + row * 257, m[i].values, (size_t)(m[i].n * 257) * sizeof *values);
    }
    assert_int_equal(ebb_weight_pack(w->device, parts, 4, 257, &weight, NULL), EBB_OK);
    assert_int_equal(weight.n, 101);
    assert_int_equal(weight.type, EBB_FP32);
    check_product(w, &weight, values, 7);
    check_rows(w, &weight, values);
    ebb_weight_free(w->device, &weight);
    for (int i = 0; i < 4; i++) matrix_free(&m[i]);
    free(values);
}

/* One weight decides the type, wherever it is, and FP32 or FP16 files that hold BF16 numbers lose nothing in BF16
 * panels. */
static void test_narrow_where_exact(void **state) {
    const world *w = *state;
    enum { N = 40, K = 300 };
    float *values = malloc(N * K * sizeof *values);
    uint16_t *half = malloc(N * K * sizeof *half);
    for (int i = 0; i < N * K; i++) {
        values[i] = (float)(i % 251 - 125) / 64;
        half[i] = float_to_fp16(values[i]);
    }
    ebb_weight weight;
    ebb_weight_part parts[2] = {{values, EBB_FP32, N}, {half, EBB_FP16, N}};
    assert_int_equal(ebb_weight_pack(w->device, parts, 2, K, &weight, NULL), EBB_OK);
    assert_int_equal(weight.type, EBB_BF16);
    ebb_weight first = weight;
    first.n = N;
    check_rows(w, &first, values);
    ebb_weight_free(w->device, &weight);

    half[N * K - 1] = 0x3C01; /* 1 + 2^-10: eleven bits */
    assert_int_equal(ebb_weight_pack(w->device, parts, 2, K, &weight, NULL), EBB_OK);
    assert_int_equal(weight.type, EBB_FP32);
    ebb_weight_free(w->device, &weight);
    free(values), free(half);
}

static void test_not_finite(void **state) {
    const world *w = *state;
    const uint32_t bits[4] = {0x7F800000u, 0xFF800000u, 0x7FC00000u,
                              0x7F800001u}; /* the last: a NaN that BF16 has not */
    ebb_weight_part part = {bits, EBB_FP32, 1};
    ebb_weight weight;
    float back[4];
    for (int64_t k = 3; k <= 4; k++) {
        assert_int_equal(ebb_weight_pack(w->device, &part, 1, k, &weight, NULL), EBB_OK);
        assert_int_equal(weight.type, k == 3 ? EBB_BF16 : EBB_FP32);
        assert_int_equal(ebb_embed(w->queue, &weight, (const int32_t[]){0}, 1, back, 4), EBB_OK);
        assert_memory_equal(back, bits, (size_t)k * sizeof(float));
        ebb_weight_free(w->device, &weight);
    }
}

static void test_sizes(void **state) {
    static const int64_t sizes[] = {1, 2, 31, 32, 33, 64, 129};
    const world *w = *state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int j = 0; j < COUNT(sizes); j++) {
            matrix m = matrix_new(EBB_BF16, sizes[i], sizes[j], 9);
            ebb_weight_part part = part_of(&m);
            ebb_weight weight;
            assert_int_equal(ebb_weight_pack(w->device, &part, 1, m.k, &weight, NULL), EBB_OK);
            check_product(w, &weight, m.values, 2);
            check_rows(w, &weight, m.values);
            ebb_weight_free(w->device, &weight);
            matrix_free(&m);
        }
}

/* A row alone and among others, on devices of other thread counts: the same bits. */
static void test_row_invariance(void **state) {
    const world *w = *state;
    enum { N = 300, K = 1800, M = 400 }; /* K: beyond every block of columns */
    matrix m = matrix_new(EBB_BF16, N, K, 11);
    ebb_weight_part part = part_of(&m);
    ebb_weight weight;
    uint64_t seed = 5;
    float *x = malloc(M * K * sizeof *x), *all = malloc(M * N * sizeof *all), *one = malloc(M * N * sizeof *one);
    for (int i = 0; i < M * K; i++) x[i] = random_value(&seed);
    assert_int_equal(ebb_weight_pack(w->device, &part, 1, K, &weight, NULL), EBB_OK);
    assert_int_equal(ebb_linear(w->queue, &weight, x, K, all, N, M, 0), EBB_OK);
    for (int32_t threads = 1; threads <= 4; threads++) {
        ebb_device_config config = {.size = sizeof config, .threads = threads};
        ebb_device *device;
        ebb_queue *queue;
        assert_int_equal(ebb_device_open("cpu", &config, &device, NULL), EBB_OK);
        assert_int_equal(ebb_queue_open(device, 0, &queue, NULL), EBB_OK);
        for (int64_t rows = threads; rows <= M; rows = rows * 2 + threads) {
            assert_int_equal(ebb_linear(queue, &weight, x + (M - rows) * K, K, one, N, rows, 0), EBB_OK);
            assert_memory_equal(one, all + (M - rows) * N, (size_t)(rows * N) * sizeof *one);
        }
        ebb_queue_close(queue);
        ebb_device_close(device);
    }
    ebb_weight_free(w->device, &weight);
    matrix_free(&m);
    free(x), free(all), free(one);
}

/* ---- memory ---- */

typedef struct counter {
    int64_t blocks, bytes, left; /* left: allocations that may still succeed */
} counter;

static void *counted_alloc(void *ctx, size_t bytes, size_t align) {
    counter *c = ctx;
    if (c->left == 0) return NULL;
    c->left--;
    c->blocks++;
    c->bytes += (int64_t)bytes;
    assert_int_equal(align, 64);
    return aligned_new(bytes);
}

static void counted_free(void *ctx, void *block, size_t bytes) {
    counter *c = ctx;
    c->blocks--;
    c->bytes -= (int64_t)bytes;
    free(block);
}

static void test_foreign_memory(void **state) {
    (void)state;
    counter c = {.left = 1};
    ebb_device_config config = {
        .size = sizeof config, .threads = 2, .memory = {&c, counted_alloc, counted_free}, .log = {NULL, NULL}};
    ebb_device *device;
    ebb_weight weight = {0}, second = {0};
    ebb_error error = {.text = ""};
    matrix m = matrix_new(EBB_BF16, 64, 10, 1);
    ebb_weight_part part = part_of(&m);
    assert_int_equal(ebb_device_open("cpu", &config, &device, NULL), EBB_OK);
    assert_int_equal(ebb_weight_pack(device, &part, 1, 10, &weight, &error), EBB_OK);
    assert_int_equal(c.blocks, 1);
    assert_int_equal(c.bytes, 64 * 10 * 2);
    assert_int_equal(ebb_weight_pack(device, &part, 1, 10, &second, &error), EBB_NO_MEMORY);
    assert_int_equal(error.code, EBB_NO_MEMORY);
    assert_non_null(strstr(error.text, "64 x 10"));
    assert_null(second.panels);
    ebb_weight_free(device, &second);
    ebb_weight_free(device, &weight);
    ebb_weight_free(device, NULL);
    ebb_device_close(device);
    assert_int_equal(c.blocks, 0);
    assert_int_equal(c.bytes, 0);
    matrix_free(&m);
}

/* ---- arguments ---- */

static void refused(const world *w, const ebb_weight_part *parts, int32_t n, int64_t k, const char *word) {
    ebb_weight weight;
    ebb_error error = {.text = ""};
    assert_int_equal(ebb_weight_pack(w->device, parts, n, k, &weight, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(error.code, EBB_BAD_ARGUMENT);
    if (!strstr(error.text, word)) fail_msg("'%s' does not say '%s'", error.text, word);
    assert_int_equal(ebb_weight_pack(w->device, parts, n, k, &weight, NULL), EBB_BAD_ARGUMENT);
}

static void test_bad_parts(void **state) {
    const world *w = *state;
    float data[4] = {1, 2, 3, 4};
    ebb_weight_part part = {data, EBB_FP32, 2}, two[2] = {part, part};
    refused(w, NULL, 1, 2, "part");
    refused(w, &part, 0, 2, "part");
    refused(w, &part, -1, 2, "part");
    refused(w, &part, 1, 0, "columns");
    refused(w, &part, 1, -5, "columns");
    two[1].data = NULL;
    refused(w, two, 2, 2, "part 1");
    two[1] = (ebb_weight_part){data, EBB_INT32, 2};
    refused(w, two, 2, 2, "type 4");
    two[1] = (ebb_weight_part){data, EBB_FP32, 0};
    refused(w, two, 2, 2, "0 rows");
    two[1].n = INT64_MAX / 2;
    refused(w, two, 2, INT64_MAX / 2, "memory");
    two[1].n = INT64_MAX;
    refused(w, two, 2, 1, "memory");
    two[1].n = two[0].n = INT64_MAX / 4 - 20; /* each fits, both do not */
    refused(w, two, 2, 1, "memory");
    assert_int_equal(ebb_weight_pack(NULL, &part, 1, 2, &(ebb_weight){0}, NULL), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_weight_pack(w->device, &part, 1, 2, NULL, NULL), EBB_BAD_ARGUMENT);
}

static void test_bad_calls(void **state) {
    const world *w = *state;
    float data[6] = {1, 2, 3, 4, 5, 6}, x[4] = {1, 1, 1, 1}, y[6] = {0};
    ebb_weight_part part = {data, EBB_FP32, 3};
    ebb_weight weight;
    assert_int_equal(ebb_weight_pack(w->device, &part, 1, 2, &weight, NULL), EBB_OK);
    ebb_weight broken = weight;
    broken.type = EBB_INT32;
    assert_int_equal(ebb_linear(w->queue, &weight, x, 2, y, 3, 2, 0), EBB_OK);
    assert_int_equal(ebb_linear(w->queue, &weight, NULL, 2, NULL, 3, 0, 0), EBB_OK);
    assert_int_equal(ebb_linear(NULL, &weight, x, 2, y, 3, 2, 0), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_linear(w->queue, NULL, x, 2, y, 3, 2, 0), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_linear(w->queue, &broken, x, 2, y, 3, 2, 0), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_linear(w->queue, &weight, NULL, 2, y, 3, 2, 0), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_linear(w->queue, &weight, x, 2, NULL, 3, 2, 0), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_linear(w->queue, &weight, x, 1, y, 3, 2, 0), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_linear(w->queue, &weight, x, 2, y, 2, 2, 0), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_linear(w->queue, &weight, x, 2, y, 3, -1, 0), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_linear(w->queue, &weight, x, 2, y, 3, 2, 2), EBB_BAD_ARGUMENT);

    const int32_t ids[2] = {2, 0}, high[2] = {0, 3}, low[2] = {-1, 0};
    assert_int_equal(ebb_embed(w->queue, &weight, ids, 2, y, 2), EBB_OK);
    assert_true(y[0] == 5 && y[1] == 6 && y[2] == 1 && y[3] == 2);
    assert_int_equal(ebb_embed(w->queue, &weight, high, 2, y, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_embed(w->queue, &weight, low, 2, y, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_embed(w->queue, &weight, ids, 2, y, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_embed(w->queue, &weight, NULL, 2, y, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_embed(w->queue, &weight, ids, -2, y, 2), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_embed(w->queue, &weight, NULL, 0, NULL, 0), EBB_OK);
    ebb_weight_free(w->device, &weight);
}

/* ---- pointwise ---- */

/* ---- one weight a head ---- */

static ebb_tensor heads_tensor(float *data, int64_t m, int64_t heads, int64_t dim, int64_t pitch, int64_t stride) {
    return (ebb_tensor){data, EBB_FP32, 3, {m, heads, dim}, {stride, pitch, 1}};
}

/* Each head has the bits of ebb_linear with its weight; what lies behind is copied, what lies between is left alone. */
static void test_heads(void **state) {
    enum { HEADS = 3, N = 150, K = 37, MORE = 5, X = K + MORE + 2, Y = N + MORE + 4, MOST = 400 };
    const world *w = *state;
    ebb_weight weights[HEADS];
    static float x[MOST * (HEADS * X + 3)], y[MOST * (HEADS * Y + 1)], alone[MOST * N];
    static const int64_t rows[] = {1, 2, 7, MOST};
    uint64_t seed = 3;
    ebb_error error;
    for (int32_t h = 0; h < HEADS; h++) {
        matrix m = matrix_new(h == 1 ? EBB_FP32 : EBB_BF16, N, K, (uint64_t)h + 1);
        ebb_weight_part part = part_of(&m);
        assert_int_equal(ebb_weight_pack(w->device, &part, 1, K, &weights[h], NULL), EBB_OK);
        matrix_free(&m);
    }
    for (int32_t i = 0; i < COUNT(x); i++) x[i] = random_value(&seed);
    for (int32_t i = 0; i < COUNT(rows); i++) {
        const int64_t m = rows[i];
        for (int32_t more = 0; more <= MORE; more += MORE) {
            ebb_tensor tx = heads_tensor(x, m, HEADS, K + more, X, HEADS * X + 3);
            ebb_tensor ty = heads_tensor(y, m, HEADS, N + more, Y, HEADS * Y + 1);
            for (int32_t j = 0; j < COUNT(y); j++) y[j] = 0.5f;
            if (ebb_linear_heads(w->queue, weights, &tx, &ty, &error)) fail_msg("%s", error.text);
            for (int32_t h = 0; h < HEADS; h++) {
                assert_int_equal(ebb_linear(w->queue, &weights[h], x + h * X, tx.stride[0], alone, N, m, 0), EBB_OK);
                for (int64_t r = 0; r < m; r++) {
                    const float *at = y + r * ty.stride[0] + h * Y;
                    assert_memory_equal(at, alone + r * N, N * sizeof *at);
                    assert_memory_equal(at + N, x + r * tx.stride[0] + h * X + K, (size_t)more * sizeof *at);
                    for (int64_t j = N + more; j < Y; j++) assert_true(at[j] == 0.5f);
                }
            }
        }
    }
    for (int32_t h = 0; h < HEADS; h++) ebb_weight_free(w->device, &weights[h]);
}

static void test_bad_heads(void **state) {
    enum { HEADS = 2, N = 8, K = 4 };
    const world *w = *state;
    ebb_weight weights[HEADS];
    float x[3 * HEADS * K] = {0}, y[3 * HEADS * N] = {0};
    matrix m = matrix_new(EBB_BF16, N, K, 1);
    ebb_weight_part part = part_of(&m);
    for (int32_t h = 0; h < HEADS; h++)
        assert_int_equal(ebb_weight_pack(w->device, &part, 1, K, &weights[h], NULL), EBB_OK);
    for (int32_t i = -1; i < 11; i++) {
        ebb_weight other[HEADS] = {weights[0], weights[1]};
        ebb_tensor tx = heads_tensor(x, 3, HEADS, K, K, HEADS * K), ty = heads_tensor(y, 3, HEADS, N, N, HEADS * N);
        ebb_error error = {0};
        if (i == 0) tx.type = EBB_BF16;
        if (i == 1) tx.dims = 2;
        if (i == 2) ty.data = NULL;
        if (i == 3) ty.shape[0] = 2;
        if (i == 4) tx.shape[1] = 1;
        if (i == 5) tx.stride[1] = K - 1;
        if (i == 6) ty.stride[0] = HEADS * N - 1;
        if (i == 7) tx.stride[2] = 2;
        if (i == 8) other[1].n = N - 1;
        if (i == 9) other[1].panels = NULL;
        if (i == 10) ty.shape[2] = N - 1;
        ebb_status status = ebb_linear_heads(w->queue, other, &tx, &ty, &error);
        if (status != (i < 0 ? EBB_OK : EBB_BAD_ARGUMENT)) fail_msg("case %d: status %d", i, (int)status);
        if (i >= 0) assert_true(strlen(error.text) > 10);
    }
    assert_int_equal(ebb_linear_heads(NULL, weights, NULL, NULL, NULL), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_linear_heads(w->queue, NULL, NULL, NULL, NULL), EBB_BAD_ARGUMENT);
    for (int32_t h = 0; h < HEADS; h++) ebb_weight_free(w->device, &weights[h]);
    matrix_free(&m);
}

static void test_rms_norm_and_swiglu(void **state) {
    const world *w = *state;
    enum { N = 300, M = 100, STRIDE = 2 * N + 1 };
    uint64_t seed = 3;
    float *x = malloc(M * STRIDE * sizeof *x), *y = malloc(M * STRIDE * sizeof *y), norm[N];
    for (int i = 0; i < M * STRIDE; i++) x[i] = random_value(&seed), y[i] = 7;
    for (int i = 0; i < N; i++) norm[i] = 1 + random_value(&seed);
    assert_int_equal(ebb_rms_norm(w->queue, x, STRIDE, norm, 1e-6f, N, y, N + 2, M), EBB_OK);
    for (int i = 0; i < M; i++) {
        double sum = 0;
        for (int j = 0; j < N; j++) sum += (double)x[i * STRIDE + j] * (double)x[i * STRIDE + j];
        for (int j = 0; j < N; j++) {
            double want = (double)x[i * STRIDE + j] / sqrt(sum / N + 1e-6) * (double)norm[j];
            assert_true(fabs((double)y[i * (N + 2) + j] - want) <= 1e-6 * fabs(want));
        }
        assert_true(y[i * (N + 2) + N] == 7);
    }
    assert_int_equal(ebb_swiglu(w->queue, x, STRIDE, N, y, N, M), EBB_OK);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double gate = (double)x[i * STRIDE + j], want = gate / (1 + exp(-gate)) * (double)x[i * STRIDE + N + j];
            assert_true(fabs((double)y[i * N + j] - want) <= 2e-6 * fabs(want));
        }
    assert_int_equal(ebb_rms_norm(w->queue, x, N - 1, norm, 1e-6f, N, y, N, M), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_rms_norm(w->queue, x, N, norm, 1e-6f, N, y, N - 1, M), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_rms_norm(w->queue, x, N, NULL, 1e-6f, N, y, N, M), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_rms_norm(w->queue, x, N, norm, NAN, N, y, N, M), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_rms_norm(w->queue, x, N, norm, 1e-6f, 0, y, N, M), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_rms_norm(w->queue, x, N, norm, 1e-6f, N, y, N, -1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_rms_norm(w->queue, NULL, N, NULL, 1e-6f, N, NULL, N, 0), EBB_OK);
    assert_int_equal(ebb_swiglu(w->queue, x, 2 * N - 1, N, y, N, M), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_swiglu(w->queue, x, 2 * N, N, y, N - 1, M), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_swiglu(w->queue, x, INT64_MAX, INT64_MAX, y, INT64_MAX, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_swiglu(NULL, x, 2 * N, N, y, N, M), EBB_BAD_ARGUMENT);
    free(x), free(y);
}

enum { TOKENS = 9, Q_HEADS = 3, HEADS = 2, DIM = 20, ROTARY = 12 };

typedef struct rope_case {
    float q[TOKENS * Q_HEADS * 2 * DIM], out[TOKENS * (Q_HEADS * DIM + 1)], k[TOKENS * HEADS * DIM];
    float norm[DIM], inv_freq[ROTARY / 2];
    int32_t slot[4], cu[5];
    int64_t pos[4];
    ebb_rope rope;
    ebb_batch batch;
    ebb_tensor q_view, out_view, k_view;
} rope_case;

/* q lies between gates, as models project it; an empty sequence and a padding one are among four. */
static void rope_case_fill(rope_case *c) {
    uint64_t seed = 8;
    for (int i = 0; i < COUNT(c->q); i++) c->q[i] = random_value(&seed);
    for (int i = 0; i < COUNT(c->k); i++) c->k[i] = random_value(&seed);
    for (int i = 0; i < COUNT(c->out); i++) c->out[i] = 7;
    for (int i = 0; i < DIM; i++) c->norm[i] = 1 + random_value(&seed) / 2;
    for (int i = 0; i < ROTARY / 2; i++) c->inv_freq[i] = powf(10000, -2.0f * (float)i / ROTARY);
    memcpy(c->slot, (const int32_t[]){4, 0, -1, 2}, sizeof c->slot);
    memcpy(c->cu, (const int32_t[]){0, 3, 3, 5, TOKENS}, sizeof c->cu);
    memcpy(c->pos, (const int64_t[]){1000, 5, 9, 0}, sizeof c->pos);
    c->rope = (ebb_rope){c->norm, c->norm, 1e-6f, ROTARY, c->inv_freq, false};
    c->batch = (ebb_batch){4, TOKENS, c->slot, c->cu, c->pos};
    c->q_view = (ebb_tensor){c->q, EBB_FP32, 3, {TOKENS, Q_HEADS, DIM}, {Q_HEADS * 2 * DIM, 2 * DIM, 1}};
    c->out_view = (ebb_tensor){c->out, EBB_FP32, 3, {TOKENS, Q_HEADS, DIM}, {Q_HEADS * DIM + 1, DIM, 1}};
    c->k_view = (ebb_tensor){c->k, EBB_FP32, 3, {TOKENS, HEADS, DIM}, {HEADS * DIM, DIM, 1}};
}

static void check_head(const float *before, const float *after, const float *norm, int64_t position,
                       const float *inv_freq) {
    double v[DIM], sum = 0;
    for (int i = 0; i < DIM; i++) sum += (double)before[i] * (double)before[i];
    for (int i = 0; i < DIM; i++) v[i] = (double)before[i] * (norm ? (double)norm[i] / sqrt(sum / DIM + 1e-6) : 1.0);
    for (int i = 0; i < DIM; i++) {
        double want = v[i];
        if (i < ROTARY) {
            double angle = (double)((float)position * inv_freq[i % (ROTARY / 2)]);
            want = i < ROTARY / 2 ? v[i] * cos(angle) - v[i + ROTARY / 2] * sin(angle)
                                  : v[i] * cos(angle) + v[i - ROTARY / 2] * sin(angle);
        }
        assert_true(fabs((double)after[i] - want) <= 2e-6);
    }
}

static void test_rope_norm(void **state) {
    static rope_case c, before;
    const world *w = *state;
    for (int normed = 0; normed < 2; normed++) {
        rope_case_fill(&c);
        rope_case_fill(&before);
        if (!normed) c.rope.q_norm = c.rope.k_norm = NULL;
        assert_int_equal(ebb_rope_norm(w->queue, &c.rope, &c.batch, &c.q_view, &c.out_view, &c.k_view, NULL), EBB_OK);
        assert_memory_equal(c.q, before.q, sizeof c.q);
        for (int64_t t = 0; t < TOKENS; t++) {
            float *out = c.out + t * (Q_HEADS * DIM + 1), *k = c.k + t * HEADS * DIM;
            const float *old_k = before.k + t * HEADS * DIM, *norm = normed ? c.norm : NULL;
            int64_t position = t < 3 ? 1000 + t : t - 5;
            if (t == 3 || t == 4) { /* padding: untouched */
                assert_memory_equal(k, old_k, HEADS * DIM * sizeof *k);
                continue;
            }
            for (int h = 0; h < Q_HEADS; h++)
                check_head(c.q + (t * Q_HEADS + h) * 2 * DIM, out + h * DIM, norm, position, c.inv_freq);
            for (int h = 0; h < HEADS; h++) check_head(old_k + h * DIM, k + h * DIM, norm, position, c.inv_freq);
            assert_true(out[Q_HEADS * DIM] == 7);
        }
    }
}

/* A token alone has the bits it has in a batch. */
static void test_rope_alone(void **state) {
    static rope_case c, one;
    const world *w = *state;
    rope_case_fill(&c);
    assert_int_equal(ebb_rope_norm(w->queue, &c.rope, &c.batch, &c.q_view, &c.out_view, &c.k_view, NULL), EBB_OK);
    for (int64_t t = 5; t < TOKENS; t++) {
        const int32_t cu[2] = {0, 1};
        const int64_t pos = t - 5;
        rope_case_fill(&one);
        one.batch = (ebb_batch){1, 1, one.slot, cu, &pos};
        one.q_view.shape[0] = one.out_view.shape[0] = one.k_view.shape[0] = 1;
        one.q_view.data = one.q + t * one.q_view.stride[0];
        one.k_view.data = one.k + t * one.k_view.stride[0];
        assert_int_equal(ebb_rope_norm(w->queue, &one.rope, &one.batch, &one.q_view, &one.out_view, &one.k_view, NULL),
                         EBB_OK);
        assert_memory_equal(one.out, c.out + t * c.out_view.stride[0], Q_HEADS * DIM * sizeof(float));
        assert_memory_equal(one.k + t * HEADS * DIM, c.k + t * HEADS * DIM, HEADS * DIM * sizeof(float));
    }
}

static void test_rope_arguments(void **state) {
    static rope_case c;
    const world *w = *state;
    ebb_error error;
#define REFUSED(change, word)                                                                                   \
    do {                                                                                                        \
        rope_case_fill(&c);                                                                                     \
        change;                                                                                                 \
        error.text[0] = 0;                                                                                      \
        assert_int_equal(ebb_rope_norm(w->queue, &c.rope, &c.batch, &c.q_view, &c.out_view, &c.k_view, &error), \
                         EBB_BAD_ARGUMENT);                                                                     \
        if (!strstr(error.text, word)) fail_msg("'%s' does not say '%s'", error.text, word);                    \
    } while (0)
    REFUSED(c.rope.rotary = 13, "rotary = 13");
    REFUSED(c.rope.rotary = 22, "at most 20");
    REFUSED(c.rope.rotary = -2, "rotary = -2");
    REFUSED(c.rope.inv_freq = NULL, "inv_freq");
    REFUSED(c.rope.eps = -1, "eps");
    REFUSED(c.batch.tokens = 8, "0 to 8");
    REFUSED(c.batch.seqs = -1, "sequences");
    REFUSED(c.batch.pos = NULL, "pos");
    REFUSED(c.cu[1] = 4, "cu falls");
    REFUSED(c.cu[0] = 1, "cu runs");
    REFUSED(c.pos[3] = -1, "position -1");
    REFUSED(c.q_view.type = EBB_FP16, "q has type 2");
    REFUSED(c.q_view.dims = 2, "2 dimensions");
    REFUSED(c.q_view.data = NULL, "q has no data");
    REFUSED(c.q_view.stride[1] = DIM - 1, "q has strides");
    REFUSED(c.q_view.stride[2] = 2, "q has strides");
    REFUSED(c.q_view.stride[0] = 2 * DIM, "q has tokens 40 apart");
    REFUSED(c.q_view.stride[1] = INT64_MAX, "q has tokens");
    REFUSED(c.out_view.shape[1] = 2, "q_out has 2 heads");
    REFUSED(c.out_view.stride[1] = DIM + 1, "q_out has strides");
    REFUSED(c.k_view.shape[2] = 18; c.k_view.stride[1] = 18, "k has heads of 18");
    REFUSED(c.k_view.shape[0] = 3, "k is 3 x");
#undef REFUSED
    rope_case_fill(&c);
    assert_int_equal(ebb_rope_norm(NULL, &c.rope, &c.batch, &c.q_view, &c.out_view, &c.k_view, NULL), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_rope_norm(w->queue, &c.rope, &c.batch, NULL, &c.out_view, &c.k_view, NULL), EBB_BAD_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_mixed_parts),
        cmocka_unit_test(test_narrow_where_exact),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_row_invariance),
        cmocka_unit_test(test_foreign_memory),
        cmocka_unit_test(test_bad_parts),
        cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_bad_heads),
        cmocka_unit_test(test_rms_norm_and_swiglu),
        cmocka_unit_test(test_rope_norm),
        cmocka_unit_test(test_rope_alone),
        cmocka_unit_test(test_rope_arguments),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
