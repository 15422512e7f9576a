/* test_eval_score.c: reading tasks in their published forms, and the scoring of answers. */
#include "core/core.h"
#include "ebb/measure.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static ebb_device *device;
static ebb_model *model;

static int open_model(void **state) {
    (void)state;
    ebb_error error = {EBB_OK, ""};
    if (ebb_device_open("cpu", NULL, &device, &error) ||
        ebb_model_open(device, SOURCE_DIR "/models/tiny-gdn", NULL, &model, &error))
        fail_msg("%s", error.text);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    ebb_model_close(model);
    ebb_device_close(device);
    return 0;
}

static double score(ebb_scoring scoring, const char *answer, const char *text) {
    char copy[256];
    char *list[] = {copy};
    snprintf(copy, sizeof copy, "%s", answer);
    return ebb_score(&(ebb_problem){.scoring = scoring, .answer = list, .n_answers = 1}, text);
}

typedef struct score_row {
    ebb_scoring scoring;
    const char *answer, *text;
    double score;
} score_row;

static void test_scores(void **state) {
    (void)state;
    static const score_row rows[] = {
        {EBB_SCORE_EXACT, "a b", " a b\n", 1},
        {EBB_SCORE_EXACT, "a b", "a b c", 0},
        {EBB_SCORE_EXACT, "a b", "a", 0},
        {EBB_SCORE_NUMBER, " 16", "4*9=36, so 16 are left.", 1},
        {EBB_SCORE_NUMBER, "1,350", "about 1,350 riders", 1},
        {EBB_SCORE_NUMBER, "1350", "1,350.", 1},
        {EBB_SCORE_NUMBER, "1350", "$1350.00", 1},
        {EBB_SCORE_NUMBER, "1350", "1,35", 0},
        {EBB_SCORE_NUMBER, "-6", "so it is -6", 1},
        {EBB_SCORE_NUMBER, "6", "it is 10-6", 1},
        {EBB_SCORE_NUMBER, "6", "so it is -6", 0},
        {EBB_SCORE_NUMBER, "6", "none", 0},
        {EBB_SCORE_NUMBER, "0.5", "it is .5", 1},
        {EBB_SCORE_BOXED, "\\frac{1}{2}", "thus \\boxed{\\dfrac12}.", 1},
        {EBB_SCORE_BOXED, "\\frac{1}{2}", "\\boxed{2} no, \\boxed{\\frac{1}{2}}", 1},
        {EBB_SCORE_BOXED, "\\frac{1}{2}", "\\boxed{\\frac{1}{2}} no, \\boxed{2}", 0},
        {EBB_SCORE_BOXED, "\\left(-2,0\\right)", "$\\boxed{(-2, 0)}$", 1},
        {EBB_SCORE_BOXED, "120^\\circ", "\\boxed{120}", 1},
        {EBB_SCORE_BOXED, "60", "\\boxed{060}", 1},
        {EBB_SCORE_BOXED, "60", "The answer is 60.", 1},
        {EBB_SCORE_BOXED, "60", "\\boxed{61}, not 60", 0},
        {EBB_SCORE_BOXED, "60", "\\boxed{60", 1}, /* never closed: its last number */
        {EBB_SCORE_BOXED, "x+1", "it is x+1", 0},
        {EBB_SCORE_CHOICE, "B", "Answer: B", 1},
        {EBB_SCORE_CHOICE, "B", "The answer is (B).", 1},
        {EBB_SCORE_CHOICE, "B", "**Answer:** B) because A is not", 1},
        {EBB_SCORE_CHOICE, "B", "\\boxed{\\text{B}}, answer A", 1},
        {EBB_SCORE_CHOICE, "B", "Answer: C", 0},
        {EBB_SCORE_CHOICE, "B", "A stone. I think B", 1},
        {EBB_SCORE_CHOICE, "B", "Because", 0},
        {EBB_SCORE_CHOICE, "D", "answer: I would say D", 1},
        {EBB_SCORE_ALL, "Amber", "it is amber.", 1},
        {EBB_SCORE_ANY, "amber", "it is not", 0},
    };
    for (int32_t i = 0; i < COUNT(rows); i++) {
        const double got = score(rows[i].scoring, rows[i].answer, rows[i].text);
        if (fabs(got - rows[i].score) > 1e-12)
            fail_msg("row %d: \"%s\" for \"%s\" scores %g, expected %g", i, rows[i].text, rows[i].answer, got,
                     rows[i].score);
    }
    char one[] = "12", two[] = "34";
    char *both[] = {one, two};
    const ebb_problem all = {.scoring = EBB_SCORE_ALL, .answer = both, .n_answers = 2};
    const ebb_problem any = {.scoring = EBB_SCORE_ANY, .answer = both, .n_answers = 2};
    assert_true(fabs(ebb_score(&all, "34 and 56") - 0.5) < 1e-12);
    assert_true(ebb_score(&any, "34 and 56") >= 1);
}

typedef struct form_row {
    const char *file;
    int32_t n, which; /* problems; one of them */
    ebb_scoring scoring;
    const char *answer, *right; /* of it; a text that scores 1 */
} form_row;

static void test_forms(void **state) {
    (void)state;
    static const form_row rows[] = {
        {"gsm8k", 5, 1, EBB_SCORE_NUMBER, " 1,350", "1350"},
        {"math500", 5, 0, EBB_SCORE_BOXED, "\\frac{1}{2}", "\\boxed{\\frac12}"},
        {"gpqa", 5, 0, EBB_SCORE_CHOICE, NULL, NULL},
        {"aime", 5, 1, EBB_SCORE_BOXED, "60", "\\boxed{60}"},
        {"ruler", 5, 1, EBB_SCORE_ALL, "9120034", "3355710, 9120034"},
        {"own", 5, 0, EBB_SCORE_EXACT, "yes", "yes"},
        {"own", 5, 1, EBB_SCORE_ANY, "four", "Four!"},
        {"own", 5, 2, EBB_SCORE_CHOICE, "B", "B"},
        {"own", 5, 3, EBB_SCORE_CHOICE, "A", "A"},
        {"own", 5, 4, EBB_SCORE_ALL, "2", "2 3"},
    };
    for (int32_t i = 0; i < COUNT(rows); i++) {
        char path[256];
        ebb_error error = {EBB_OK, ""};
        ebb_task *task = NULL;
        snprintf(path, sizeof path, SOURCE_DIR "/tests/data/tasks/%s.jsonl", rows[i].file);
        if (ebb_task_read(model, path, NULL, 0, &task, &error)) fail_msg("%s", error.text);
        assert_int_equal(task->n, rows[i].n);
        const ebb_problem *p = &task->problem[rows[i].which];
        assert_int_equal(p->scoring, rows[i].scoring);
        assert_true(p->count > 4 && p->n_answers > 0);
        if (rows[i].answer) assert_string_equal(p->answer[0], rows[i].answer);
        if (rows[i].right) assert_true(ebb_score(p, rows[i].right) >= 1);
        assert_true(ebb_score(p, "nothing of the kind") < 1);
        ebb_task_free(task);
    }
}

/* The right option of GPQA stands where its letter says. */
static void test_letters(void **state) {
    (void)state;
    ebb_error error = {EBB_OK, ""};
    ebb_task *task = NULL;
    if (ebb_task_read(model, SOURCE_DIR "/tests/data/tasks/gpqa.jsonl", NULL, 1, &task, &error))
        fail_msg("%s", error.text);
    assert_int_equal(task->n, 1);
    char text[4096] = "", option[64];
    ebb_detokenizer d = {.tokenizer = ebb_model_tokenizer(model)};
    size_t n = 0, written;
    for (int64_t i = 0; i < task->problem[0].count; i++, n += written)
        assert_int_equal(ebb_detokenize(&d, task->problem[0].ids[i], text + n, sizeof text - n, &written), EBB_OK);
    snprintf(option, sizeof option, "%s) neutron\n", task->problem[0].answer[0]);
    assert_non_null(strstr(text, option));
    ebb_task_free(task);
}

/* Limits, another scoring, and hashes that tell tasks apart. */
static void test_reading(void **state) {
    (void)state;
    ebb_error error = {EBB_OK, ""};
    ebb_task *whole = NULL, *two = NULL, *other = NULL;
    const char *path = SOURCE_DIR "/tests/data/tasks/own.jsonl";
    assert_int_equal(ebb_task_read(model, path, NULL, 0, &whole, &error), EBB_OK);
    assert_int_equal(ebb_task_read(model, path, NULL, 2, &two, &error), EBB_OK);
    assert_int_equal(ebb_task_read(model, path, "any", 2, &other, &error), EBB_OK);
    assert_int_equal(two->n, 2);
    assert_int_equal(other->problem[0].scoring, EBB_SCORE_ANY);
    assert_true(whole->hash != two->hash && two->hash != other->hash);
    ebb_task_free(whole), ebb_task_free(two), ebb_task_free(other);
    assert_int_equal(ebb_task_read(model, path, "best", 0, &whole, &error), EBB_BAD_ARGUMENT);
    assert_null(whole);
    assert_int_equal(ebb_task_read(model, "/no/such.jsonl", NULL, 0, &whole, &error), EBB_BAD_FILE);
}

static void test_bad_lines(void **state) {
    (void)state;
    static const char *const lines[] = {"no JSON",
                                        "[1]",
                                        "{}",
                                        "{\"prompt\": \"x\"}",
                                        "{\"prompt\": \"x\", \"answer\": []}",
                                        "{\"prompt\": \"x\", \"answer\": {}}",
                                        "{\"prompt\": \"x\", \"answer\": \"y\", \"scoring\": \"z\"}",
                                        "{\"question\": \"x\", \"answer\": \"16\"}",
                                        "{\"question\": \"x\", \"choices\": [\"a\"], \"answer\": 0}",
                                        "{\"question\": \"x\", \"choices\": [\"a\", \"b\"], \"answer\": 2}",
                                        "{\"question\": \"x\", \"choices\": [\"a\", 1], \"answer\": 0}",
                                        "{\"Question\": \"x\", \"Correct Answer\": \"y\"}",
                                        "{\"problem\": \"x\"}",
                                        "{\"input\": \"x\", \"outputs\": []}",
                                        ""};
    char path[] = "/tmp/ebb-eval-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (int32_t i = 0; i < COUNT(lines); i++) {
        ebb_task *task = NULL;
        ebb_error error = {EBB_OK, ""};
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "\n%s\n", lines[i]);
        fclose(f);
        if (ebb_task_read(model, path, NULL, 0, &task, &error) != EBB_BAD_FILE) fail_msg("accepted: %s", lines[i]);
        assert_null(task);
        if (*lines[i] && !strstr(error.text, "line 2")) fail_msg("\"%s\" does not name the line", error.text);
    }
    unlink(path);
}

static void test_block_mean(void **state) {
    (void)state;
    const float x[] = {1, 3, 1, 3, 1, 3, 1, 3};
    double mean, half, blocks;
    ebb_block_mean(x, 8, 1, &mean, &half);
    assert_true(fabs(mean - 2) < 1e-12);
    assert_true(fabs(half - 1.959963984540054 * sqrt(8.0 / 7 / 8)) < 1e-9);
    ebb_block_mean(x, 8, 2, &mean, &blocks); /* blocks that are all alike */
    assert_true(blocks < 1e-9);
    ebb_block_mean(x, 1, 1, &mean, &half);
    assert_true(isinf(half));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scores),    cmocka_unit_test(test_forms),
                                       cmocka_unit_test(test_letters),   cmocka_unit_test(test_reading),
                                       cmocka_unit_test(test_bad_lines), cmocka_unit_test(test_block_mean)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}
