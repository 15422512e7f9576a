/* test_experts.c: the ops of mixtures of experts: choosing experts against a plain sort in double precision, with
 * biases, groups and ties; rows to experts and back. */
#include "core/core.h"
#include "ebb/ebb.h"

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

static int setup(void **state) {
    static bench b;
    const ebb_device_config config = {.size = sizeof config, .threads = 3};
    *state = &b;
    return ebb_device_open("cpu", &config, &b.device, NULL) || ebb_queue_open(b.device, 0, &b.queue, NULL) ? -1 : 0;
}

static int teardown(void **state) {
    bench *b = *state;
    ebb_queue_close(b->queue);
    ebb_device_close(b->device);
    return 0;
}

static float uniform(uint64_t *seed) { return (float)(mix64((*seed)++) >> 40) / (float)(1 << 23) - 1; }

/* ---- choosing ---- */

enum { ROWS = 40, MOST = 96, STRIDE = MOST + 3 };

/* How many of the `n` values marked `in` are before value `i`: larger, or equal with a lower number. */
static int32_t rank_of(const double *x, const bool *in, int32_t n, int32_t i) {
    int32_t before = 0;
    for (int32_t j = 0; j < n; j++) before += (!in || in[j]) && j != i && (x[j] > x[i] || (x[j] >= x[i] && j < i));
    return before;
}

/* Marks the chosen experts and gives their scores. */
static void plain_choice(const ebb_router *r, const float *logits, double *score, bool *chosen) {
    double choice[MOST], group[MOST], sum = 0, most = (double)logits[0];
    bool in[MOST];
    const int32_t n = r->experts, each = n / r->groups;
    for (int32_t e = 0; e < n; e++) most = fmax(most, (double)logits[e]);
    for (int32_t e = 0; e < n; e++) sum += exp((double)logits[e] - most);
    for (int32_t e = 0; e < n; e++) {
        const double x = (double)logits[e];
        score[e] = r->sigmoid ? 1 / (1 + exp(-x)) : exp(x - most) / sum;
        choice[e] = score[e] + (r->bias ? (double)r->bias[e] : 0);
    }
    for (int32_t g = 0; g < r->groups; g++) {
        group[g] = 0;
        for (int32_t e = 0; e < each; e++)
            if (rank_of(choice + g * each, NULL, each, e) < 2) group[g] += choice[g * each + e];
    }
    for (int32_t e = 0; e < n; e++) in[e] = rank_of(group, NULL, r->groups, e / each) < r->top_groups;
    for (int32_t e = 0; e < n; e++) chosen[e] = in[e] && rank_of(choice, in, n, e) < r->used;
}

static void check_row(const ebb_router *r, const float *logits, const int32_t *expert, const float *weight) {
    double score[MOST], sum = 0;
    bool chosen[MOST];
    int32_t at = 0;
    plain_choice(r, logits, score, chosen);
    for (int32_t e = 0; e < r->experts; e++) sum += chosen[e] ? score[e] : 0;
    for (int32_t e = 0; e < r->experts; e++) {
        if (!chosen[e]) continue;
        const double want = score[e] / (r->normalize ? sum : 1) * (double)r->scale;
        assert_int_equal(expert[at], e);
        if (!(fabs((double)weight[at] - want) <= 1e-5 * want))
            fail_msg("weight %g, expected %g", (double)weight[at], want);
        at++;
    }
    assert_int_equal(at, r->used);
}

static void test_route(void **state) {
    const bench *b = *state;
    static float bias[MOST];
    uint64_t seed = 1;
    for (int32_t e = 0; e < MOST; e++) bias[e] = 0.3f * uniform(&seed);
    const ebb_router routers[] = {{8, 3, 1, 1, false, true, 1, NULL},       {8, 3, 1, 1, false, false, 1, NULL},
                                  {MOST, 10, 1, 1, false, true, 1, NULL},   {MOST, 64, 1, 1, true, true, 2.446f, bias},
                                  {MOST, 8, 8, 3, true, true, 2.5f, bias},  {8, 3, 4, 2, true, false, 1.7f, bias},
                                  {4, 2, 4, 2, true, true, 1, bias},        {1, 1, 1, 1, false, true, 1, NULL},
                                  {MOST, 1, 48, 1, true, false, 0.5f, NULL}};
    for (int32_t i = 0; i < COUNT(routers); i++) {
        const ebb_router *r = &routers[i];
        float logits[ROWS * STRIDE], scores[ROWS * STRIDE], weight[ROWS * EBB_MAX_ROUTES];
        int32_t expert[ROWS * EBB_MAX_ROUTES];
        /* Every fourth row has whole numbers, so that many are equal. */
        for (int32_t k = 0; k < ROWS * STRIDE; k++) {
            logits[k] = 4 * uniform(&seed);
            if (k / STRIDE % 4 == 0 && !r->bias) logits[k] = rintf(logits[k]);
        }
        memcpy(scores, logits, sizeof scores);
        assert_int_equal(ebb_route(b->queue, r, scores, STRIDE, expert, weight, ROWS), EBB_OK);
        for (int32_t t = 0; t < ROWS; t++)
            check_row(r, logits + t * STRIDE, expert + t * r->used, weight + t * r->used);
    }
}

/* Logits that are no numbers still choose experts that there are. */
static void test_nan(void **state) {
    const bench *b = *state;
    const ebb_router routers[] = {{6, 3, 1, 1, false, true, 1, NULL}, {6, 3, 3, 2, true, true, 1, NULL}};
    for (int32_t i = 0; i < COUNT(routers); i++) {
        float logits[6], weight[3];
        int32_t expert[3];
        for (int32_t e = 0; e < 6; e++) logits[e] = e % 2 ? NAN : (float)e;
        assert_int_equal(ebb_route(b->queue, &routers[i], logits, 6, expert, weight, 1), EBB_OK);
        for (int32_t k = 0; k < 3; k++) assert_true(expert[k] >= (k ? expert[k - 1] + 1 : 0) && expert[k] < 6);
    }
}

static void test_bad_routers(void **state) {
    const bench *b = *state;
    const ebb_router bad[] = {{8, 9, 1, 1, false, true, 1, NULL},    {8, 0, 1, 1, false, true, 1, NULL},
                              {100, 65, 1, 1, false, true, 1, NULL}, {8, 2, 3, 1, false, true, 1, NULL},
                              {8, 2, 4, 5, false, true, 1, NULL},    {8, 3, 4, 1, false, true, 1, NULL},
                              {8, 2, 0, 1, false, true, 1, NULL},    {8, 2, 1, 0, false, true, 1, NULL},
                              {65, 1, 65, 1, false, true, 1, NULL},  {0, 1, 1, 1, false, true, 1, NULL}};
    float x[128] = {0}, w[64];
    int32_t e[64];
    for (int32_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(ebb_route(b->queue, &bad[i], x, 128, e, w, 1), EBB_BAD_ARGUMENT);
    const ebb_router good = {8, 2, 1, 1, false, true, 1, NULL};
    assert_int_equal(ebb_route(b->queue, &good, x, 7, e, w, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_route(b->queue, &good, x, 8, NULL, w, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_route(b->queue, &good, x, 8, e, w, -1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_route(NULL, &good, x, 8, e, w, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_route(b->queue, &good, NULL, 0, NULL, NULL, 0), EBB_OK);
}

/* ---- rows ---- */

enum { N = 5, FROM = 6, TO = 4, PITCH = 7 };

static void test_rows(void **state) {
    const bench *b = *state;
    static const int32_t rows[TO] = {3, 0, 5, 1};
    static const float scale[TO] = {0.5f, -2, 3, 0.25f};
    float x[FROM * PITCH], y[TO * PITCH], sum[FROM * PITCH], gated[FROM * PITCH], gate[FROM * 2];
    uint64_t seed = 9;
    for (int32_t i = 0; i < FROM * PITCH; i++) x[i] = uniform(&seed), sum[i] = gated[i] = uniform(&seed);
    for (int32_t i = 0; i < FROM * 2; i++) gate[i] = 3 * uniform(&seed);
    for (int32_t i = 0; i < TO * PITCH; i++) y[i] = 77;
    const float *start = memcpy((float[FROM *PITCH]){0}, sum, sizeof sum);
    assert_int_equal(ebb_gather_rows(b->queue, x, PITCH, rows, N, y, PITCH, TO), EBB_OK);
    assert_int_equal(ebb_add_rows(b->queue, y, PITCH, rows, scale, N, sum, PITCH, TO), EBB_OK);
    assert_int_equal(ebb_gate_rows(b->queue, gate, 2, N, gated, PITCH, FROM), EBB_OK);
    for (int32_t i = 0; i < TO; i++)
        for (int32_t c = 0; c < PITCH; c++) assert_true(y[i * PITCH + c] == (c < N ? x[rows[i] * PITCH + c] : 77));
    for (int32_t r = 0; r < FROM; r++)
        for (int32_t c = 0; c < PITCH; c++) {
            const int32_t at = r * PITCH + c;
            float want = start[at];
            for (int32_t i = 0; i < TO && c < N; i++)
                if (rows[i] == r) want += scale[i] * x[at];
            assert_true(sum[at] == want);
            const double open = c < N ? 1 / (1 + exp(-(double)gate[2 * r])) : 1;
            assert_true(fabs((double)gated[at] - (double)start[at] * open) <= 1e-6);
        }
    assert_int_equal(ebb_gather_rows(b->queue, x, N - 1, rows, N, y, PITCH, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_gather_rows(b->queue, x, PITCH, NULL, N, y, PITCH, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_add_rows(b->queue, y, PITCH, rows, NULL, N, sum, PITCH, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_add_rows(b->queue, y, PITCH, rows, scale, 0, sum, PITCH, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_gate_rows(b->queue, NULL, 2, N, sum, PITCH, 1), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_gate_rows(b->queue, gate, 0, N, sum, PITCH, 1), EBB_BAD_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_bad_routers),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
