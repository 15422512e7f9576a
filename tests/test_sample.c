/* test_sample.c: sampling against a brute-force reference in FP64 that sorts everything. */
#include "core/core.h"
#include "ebb/op.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state = 1;
static double uniform(void) { return (double)(mix64(random_state++) >> 11) * 0x1p-53; }
static double normal(void) { return sqrt(-2 * log(uniform() + 0x1p-54)) * cos(6.283185307179586 * uniform()); }

enum { MOST = 4096 };

typedef struct entry {
    double logit;
    int32_t id;
} entry;

static int by_order(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* probability[id] under the sampling rules; 0 for what the filters drop. */
static void reference(const ebb_sampling *s, const float *logits, int32_t vocab, const int32_t *history,
                      int64_t n_history, double *probability) {
    static entry e[MOST];
    static double w[MOST];
    double sum = 0, run = 0;
    int32_t n = vocab;
    for (int32_t i = 0; i < vocab; i++) {
        bool seen = false;
        for (int64_t h = max_i64(0, n_history - s->repeat_last); h < n_history; h++) seen = seen || history[h] == i;
        float x = logits[i];
        if (seen) x = x > 0 ? x / s->repeat_penalty : x * s->repeat_penalty;
        e[i] = (entry){isnan(x) ? -INFINITY : (double)x, i};
        probability[i] = 0;
    }
    qsort(e, (size_t)vocab, sizeof e[0], by_order);
    if (s->top_k && s->top_k < n) n = s->top_k;
    for (int32_t i = 0; i < n; i++) sum += w[i] = exp((e[i].logit - e[0].logit) / (double)s->temperature);
    int32_t kept = 0;
    while (kept < n) {
        run += w[kept++];
        if (s->top_p < 1 && run >= (double)s->top_p * sum) break;
    }
    while (kept > 1 && w[kept - 1] < (double)s->min_p) kept--;
    sum = 0;
    for (int32_t i = 0; i < kept; i++) sum += w[i];
    for (int32_t i = 0; i < kept; i++) probability[e[i].id] = w[i] / sum;
}

static int32_t sample(const ebb_sampling *s, const float *logits, int32_t vocab, const int32_t *history, int64_t n,
                      int64_t position) {
    static float copy[MOST];
    static int32_t scratch[MOST];
    memcpy(copy, logits, (size_t)vocab * sizeof copy[0]);
    memset(scratch, 0x5a, sizeof scratch);
    return ebb_sample(s, copy, vocab, history, n, position, scratch);
}

/* Draw and compare: nothing outside the kept set, frequencies within 5 sigma, and everything likely is seen. */
static void expect_distribution(const ebb_sampling *s, const float *logits, int32_t vocab, const int32_t *history,
                                int64_t n, int32_t draws) {
    static double want[MOST];
    static int32_t seen[MOST];
    memset(seen, 0, sizeof seen);
    reference(s, logits, vocab, history, n, want);
    for (int32_t i = 0; i < draws; i++) {
        int32_t id = sample(s, logits, vocab, history, n, i);
        assert_in_range(id, 0, vocab - 1);
        seen[id]++;
    }
    for (int32_t i = 0; i < vocab; i++) {
        double mean = want[i] * draws, sigma = sqrt(draws * want[i] * (1 - want[i]));
        if (want[i] == 0 && seen[i])
            fail_msg("token %d was dropped by the filters, drawn %d times", (int)i, (int)seen[i]);
        if (fabs(seen[i] - mean) > 5 * sigma + 3)
            fail_msg("token %d: drawn %d of %d times, expected %.1f +- %.1f", (int)i, (int)seen[i], (int)draws, mean,
                     sigma);
    }
}

static void fill(float *logits, int32_t vocab, double spread) {
    for (int32_t i = 0; i < vocab; i++) logits[i] = (float)(spread * normal());
}

static void test_frequencies(void **state) {
    (void)state;
    static const ebb_sampling settings[] = {
        {1, 1, 0, 0, 1, 64, 1},          {0.7f, 1, 0, 0, 1, 64, 2},       {2, 0.9f, 0, 0, 1, 64, 3},
        {1, 1, 0, 5, 1, 64, 4},          {1, 1, 0.1f, 0, 1, 64, 5},       {0.8f, 0.95f, 0.05f, 20, 1, 64, 6},
        {1.5f, 0.5f, 0, 10, 1.3f, 3, 7}, {100, 0.99f, 0.5f, 0, 1, 64, 8}, {1, 1, 0, 0, 0.5f, 64, 9},
    };
    static const int32_t history[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, -1, 1000000};
    float logits[50];
    for (int32_t i = 0; i < COUNT(settings); i++) {
        fill(logits, 50, 2);
        expect_distribution(&settings[i], logits, 50, history, COUNT(history), 20000);
    }
}

/* Larger vocabularies and random settings: a draw never leaves the kept set, which is small here. */
static void test_kept_sets(void **state) {
    (void)state;
    static float logits[MOST];
    static const int32_t sizes[] = {1, 2, 3, 17, 256, 1000, MOST};
    for (int32_t i = 0; i < 60; i++) {
        int32_t vocab = sizes[i % COUNT(sizes)];
        ebb_sampling s = {(float)(0.1 + 2 * uniform()), 1, 0, 0, 1, 64, (uint64_t)i};
        if (i & 1) s.top_p = (float)(0.02 + 0.97 * uniform());
        if (i & 2) s.top_k = 1 + (int32_t)(uniform() * vocab * 1.2);
        if (i & 4) s.min_p = (float)(0.5 * uniform());
        fill(logits, vocab, i % 5 ? 3 : 0.01);
        expect_distribution(&s, logits, vocab, NULL, 0, 300);
    }
}

/* Few distinct logits: the order among equals decides what top-k and top-p keep. */
static void test_ties(void **state) {
    (void)state;
    static float logits[64];
    for (int32_t i = 0; i < 64; i++) logits[i] = (float)(i * 7 % 3);
    for (int32_t k = 1; k <= 64; k += 3) {
        ebb_sampling s = {1, 1, 0, k, 1, 64, (uint64_t)k};
        expect_distribution(&s, logits, 64, NULL, 0, 2000);
        s.top_k = 0, s.top_p = (float)k / 64.5f;
        expect_distribution(&s, logits, 64, NULL, 0, 2000);
    }
    for (int32_t i = 0; i < 64; i++) logits[i] = 1;
    ebb_sampling s = {1, 0.4999f, 0, 0, 1, 64, 3}; /* 32 of 64 equals: the lower ids */
    expect_distribution(&s, logits, 64, NULL, 0, 5000);
}

static void test_greedy(void **state) {
    (void)state;
    ebb_sampling s = EBB_GREEDY;
    float logits[] = {1, 7, -2, 7, 6.5f};
    assert_int_equal(sample(&s, logits, 5, NULL, 0, 0), 1);
    s.repeat_penalty = 1.1f;
    int32_t history[] = {1, 3};
    assert_int_equal(sample(&s, logits, 5, history, 1, 0), 3); /* 7 / 1.1 < 7 */
    assert_int_equal(sample(&s, logits, 5, history, 2, 0), 4);
    s.repeat_last = 1;
    assert_int_equal(sample(&s, logits, 5, history, 2, 0), 1); /* only the 3 is in the window */
    s.repeat_last = 0;
    assert_int_equal(sample(&s, logits, 5, history, 2, 0), 1);
    s.repeat_last = 64;
    float negative[] = {-1, -1.05f, -3};
    int32_t zero[] = {0, 0, 0};
    assert_int_equal(sample(&s, negative, 3, zero, 1, 0), 1); /* -1.1 */
    /* Three times in the window, penalized once: -1.1 still beats -1.3. */
    negative[1] = -1.3f;
    assert_int_equal(sample(&s, negative, 3, zero, 3, 0), 0);
}

/* top_k 1 is greedy at any temperature, and so is a temperature near 0. */
static void test_nearly_greedy(void **state) {
    (void)state;
    static float logits[300];
    for (int32_t i = 0; i < 200; i++) {
        ebb_sampling greedy = EBB_GREEDY, one = {50, 1, 0, 1, 1, 64, 5}, cold = {1e-38f, 1, 0, 0, 1, 64, 5};
        ebb_sampling narrow = {1, 1e-7f, 0, 0, 1, 64, 5};
        fill(logits, 300, 1);
        int32_t best = sample(&greedy, logits, 300, NULL, 0, i);
        assert_int_equal(sample(&one, logits, 300, NULL, 0, i), best);
        assert_int_equal(sample(&cold, logits, 300, NULL, 0, i), best);
        assert_int_equal(sample(&narrow, logits, 300, NULL, 0, i), best);
    }
}

static void test_special_logits(void **state) {
    (void)state;
    ebb_sampling settings[] = {
        EBB_GREEDY, {1, 1, 0, 0, 1, 64, 1}, {1, 0.9f, 0, 0, 1, 64, 1}, {2, 0.9f, 0.1f, 2, 1.5f, 64, 1}};
    float none[] = {-INFINITY, -INFINITY, -INFINITY}, nan[] = {NAN, NAN, NAN}, one[] = {NAN, -INFINITY, -3e38f, NAN};
    float infinite[] = {0, INFINITY, 3, -INFINITY}, largest[] = {FLT_MAX, -FLT_MAX, -FLT_MAX},
          two[] = {-INFINITY, 2, NAN, 2};
    int32_t history[] = {0, 1, 2};
    for (int32_t i = 0; i < COUNT(settings); i++)
        for (int32_t position = 0; position < 50; position++) {
            assert_int_equal(sample(&settings[i], none, 3, history, 3, position), 0);
            assert_int_equal(sample(&settings[i], nan, 3, history, 3, position), 0);
            assert_int_equal(sample(&settings[i], one, 4, history, 1, position), 2);
            assert_int_equal(sample(&settings[i], infinite, 4, history, 3, position), 1);
            assert_int_equal(sample(&settings[i], largest, 3, history, 3, position), 0);
            int32_t id = sample(&settings[i], two, 4, NULL, 0, position);
            assert_true(i == 0 ? id == 1 : id == 1 || id == 3);
            assert_int_equal(sample(&settings[i], two, 1, NULL, 0, position), 0); /* a vocabulary of one */
        }
}

/* The draw is a function of (seed, position), whatever was drawn before and whatever scratch holds. */
static void test_determinism(void **state) {
    (void)state;
    static float logits[1000], copy[1000];
    static int32_t first[200], scratch[1000];
    int32_t other_seed = 0, other_position = 0;
    ebb_sampling s = {1.2f, 0.97f, 0.001f, 400, 1, 64, 42}, t = s;
    t.seed = 43;
    fill(logits, 1000, 1);
    for (int32_t i = 0; i < 200; i++) first[i] = sample(&s, logits, 1000, NULL, 0, i);
    for (int32_t i = 199; i >= 0; i--) {
        for (int32_t j = 0; j < 1000; j++) scratch[j] = i * j;
        memcpy(copy, logits, sizeof copy);
        assert_int_equal(ebb_sample(&s, copy, 1000, NULL, 0, i, scratch), first[i]);
        other_seed += sample(&t, logits, 1000, NULL, 0, i) != first[i];
        other_position += i > 0 && first[i] != first[i - 1];
    }
    assert_true(other_seed > 150);
    assert_true(other_position > 150);
    s.seed = UINT64_MAX;
    assert_in_range(sample(&s, logits, 1000, NULL, 0, INT64_MAX), 0, 999);
}

static void test_check(void **state) {
    (void)state;
    const ebb_sampling good[] = {
        EBB_GREEDY, {100, 1e-6f, 0.999f, INT32_MAX, 10, INT32_MAX, 1}, {0, 1, 0, 0, 1e-6f, 0, 0}};
    static const struct {
        ebb_sampling s;
        const char *field;
    } bad[] = {
        {{-0.1f, 1, 0, 0, 1, 64, 0}, "temperature"},
        {{NAN, 1, 0, 0, 1, 64, 0}, "temperature"},
        {{INFINITY, 1, 0, 0, 1, 64, 0}, "temperature"},
        {{100.5f, 1, 0, 0, 1, 64, 0}, "temperature"},
        {{1, 0, 0, 0, 1, 64, 0}, "top_p"},
        {{1, 1.01f, 0, 0, 1, 64, 0}, "top_p"},
        {{1, NAN, 0, 0, 1, 64, 0}, "top_p"},
        {{1, 1, -0.1f, 0, 1, 64, 0}, "min_p"},
        {{1, 1, 1, 0, 1, 64, 0}, "min_p"},
        {{1, 1, NAN, 0, 1, 64, 0}, "min_p"},
        {{1, 1, 0, -1, 1, 64, 0}, "top_k"},
        {{1, 1, 0, 0, 0, 64, 0}, "repeat_penalty"},
        {{1, 1, 0, 0, 10.5f, 64, 0}, "repeat_penalty"},
        {{1, 1, 0, 0, NAN, 64, 0}, "repeat_penalty"},
        {{1, 1, 0, 0, 1, -1, 0}, "repeat_last"},
    };
    for (int32_t i = 0; i < COUNT(good); i++) assert_int_equal(ebb_sampling_check(&good[i], NULL), EBB_OK);
    for (int32_t i = 0; i < COUNT(bad); i++) {
        ebb_error error = {EBB_OK, ""};
        assert_int_equal(ebb_sampling_check(&bad[i].s, &error), EBB_BAD_ARGUMENT);
        assert_ptr_equal(strstr(error.text, bad[i].field), error.text); /* the sentence begins with the field */
    }
}

/* A vocabulary of 250,000, as Qwen3.5 has, with every filter on. The rates are for a reader; a hang is what would fail.
 */
static void test_large_vocabulary(void **state) {
    (void)state;
    enum { VOCAB = 250000, DRAWS = 10 };
    float *logits = malloc(VOCAB * sizeof *logits), *copy = malloc(VOCAB * sizeof *copy);
    int32_t *scratch = malloc(VOCAB * sizeof *scratch);
    assert_non_null(logits);
    assert_non_null(copy);
    assert_non_null(scratch);
    static const ebb_sampling settings[] = {{1, 1, 0, 0, 1, 64, 1},
                                            {1, 0.95f, 0, 0, 1, 64, 1},
                                            {1, 1, 0, 50, 1, 64, 1},
                                            {100, 0.95f, 0.01f, 200000, 1, 64, 1}};
    fill(logits, VOCAB, 3);
    for (int32_t i = 0; i < COUNT(settings); i++) {
        double seconds = 0;
        for (int32_t d = 0; d < DRAWS; d++) {
            memcpy(copy, logits, VOCAB * sizeof *copy);
            double start = seconds_now();
            assert_in_range(ebb_sample(&settings[i], copy, VOCAB, NULL, 0, d, scratch), 0, VOCAB - 1);
            seconds += seconds_now() - start;
        }
        print_message("vocab %d, setting %d: %.0f draws/s\n", VOCAB, (int)i, DRAWS / seconds);
    }
    free(logits), free(copy), free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_kept_sets),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_nearly_greedy),
        cmocka_unit_test(test_special_logits),
        cmocka_unit_test(test_determinism),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_large_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
