/* slow_registers.c: what rounding the state does to answers, by greedy free generation, 16 sequences in one forward.
 * Right means the whole answer, token for token. tiny-gdn and tiny-kda answer the registers task, which needs the state
 * to be right for 128 (32) steps; tiny-gdn-pure, which has no attention layer to look anything up in, copies 80 words.
 * EBB_REGISTERS_LIMIT=12 answers the first 12 problems only, with the thresholds scaled. */
#include "core/core.h"
#include "ebb/ebb.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PROBLEMS = 96, SEQS = 16 };

typedef struct problems {
    int32_t n;
    int32_t *ids[MAX_PROBLEMS], *answer[MAX_PROBLEMS];
    int64_t n_ids[MAX_PROBLEMS], n_answer[MAX_PROBLEMS];
    int64_t got[MAX_PROBLEMS]; /* tokens that matched so far */
} problems;

static ebb_device *device;
static ebb_model *model;
static problems set;

static void load_problem(const char *line, problems *p) {
    ebb_error error;
    const ebb_tokenizer *t = ebb_model_tokenizer(model);
    json_t *root = json_loads(line, 0, NULL), *message = json_array_get(json_object_get(root, "messages"), 0);
    const char *answer = json_string_value(json_object_get(root, "answer"));
    ebb_message m = {"user", json_string_value(json_object_get(message, "content"))};
    assert_non_null(m.content);
    assert_non_null(answer);
    assert_int_equal(ebb_chat(t, &m, 1, true, &p->ids[p->n], &p->n_ids[p->n], &error), EBB_OK);
    assert_int_equal(ebb_tokenize(t, answer, strlen(answer), false, &p->answer[p->n], &p->n_answer[p->n], &error),
                     EBB_OK);
    json_decref(root);
    p->n++;
}

static void open_task(const char *folder, const char *file) {
    ebb_error error = {EBB_OK, ""};
    const char *limit = getenv("EBB_REGISTERS_LIMIT");
    int32_t want = limit && atoi(limit) > 0 ? (int32_t)min_i64(atoi(limit), MAX_PROBLEMS) : MAX_PROBLEMS;
    if (ebb_device_open("cpu", NULL, &device, &error) || ebb_model_open(device, folder, NULL, &model, &error))
        fail_msg("%s", error.text);
    FILE *f = fopen(file, "r");
    char *line = NULL;
    size_t room = 0;
    while (f && set.n < want && getline(&line, &room, f) > 0) load_problem(line, &set);
    free(line);
    if (f) fclose(f);
    if (set.n != want) fail_msg("%s has %d problems, expected %d", file, set.n, want);
}

static int close_task(void **state) {
    (void)state;
    for (int32_t i = 0; i < set.n; i++) free(set.ids[i]), free(set.answer[i]);
    set = (problems){0};
    ebb_model_close(model);
    ebb_device_close(device);
    model = NULL;
    device = NULL;
    return 0;
}

/* Stop an answer at its first wrong token: it cannot become right again. */
static bool compare(void *ctx, int32_t prompt, int32_t token) {
    problems *p = ctx;
    int64_t at = p->got[prompt]++;
    if (at < p->n_answer[prompt] && p->answer[prompt][at] == token) return true;
    p->got[prompt] = -1;
    return false;
}

static int32_t score(const char *method) {
    ebb_engine_config config = {.size = sizeof config, .state = method, .max_seqs = SEQS, .max_tokens = 2048};
    ebb_engine *engine;
    ebb_error error = {EBB_OK, ""};
    ebb_usage usage;
    ebb_prompt prompts[MAX_PROBLEMS];
    int32_t right = 0;
    double start = seconds_now();
    if (ebb_engine_open(model, &config, &engine, &error)) fail_msg("%s", error.text);
    for (int32_t i = 0; i < set.n; i++) {
        prompts[i] = (ebb_prompt){set.ids[i], set.n_ids[i]};
        set.got[i] = 0;
    }
    ebb_sampling greedy = EBB_GREEDY;
    if (ebb_generate(engine, prompts, set.n, &greedy, 1024, compare, &set, &usage, &error)) fail_msg("%s", error.text);
    for (int32_t i = 0; i < set.n; i++) right += set.got[i] == set.n_answer[i];
    printf("%-8s %2d of %d right, %zu + %zu bytes of state a sequence, prompt %.0f, decode %.0f tokens/s, %.0f s\n",
           method, right, set.n, usage.state_packed, usage.state_live,
           (double)usage.prompt_tokens / usage.prompt_seconds, (double)usage.decode_tokens / usage.decode_seconds,
           seconds_now() - start);
    fflush(stdout);
    ebb_engine_close(engine);
    return right;
}

static void at_least(const char *const *methods, int32_t n, int32_t least) {
    for (int32_t i = 0; i < n; i++) {
        int32_t right = score(methods[i]);
        if (right < least) fail_msg("%s: %d of %d right, expected at least %d", methods[i], right, set.n, least);
    }
}

static void at_most(const char *method, int32_t most) {
    const int32_t right = score(method);
    if (right > most) fail_msg("%s: %d of %d right, expected at most %d", method, right, set.n, most);
}

static void test_registers(void **state) {
    (void)state;
    static const char *const good[] = {"fp32", "bf16", "int8-w", "leap8", "leap4"};
    open_task(SOURCE_DIR "/models/tiny-gdn", SOURCE_DIR "/models/eval/registers-128.jsonl");
    at_least(good, COUNT(good), (int32_t)floor(91.0 / 96 * set.n) - (set.n < MAX_PROBLEMS));
    at_most("int4", (int32_t)ceil(72.0 / 96 * set.n));
}

/* KDA: a decay for each key channel. 95 % right. */
static void test_kda(void **state) {
    (void)state;
    static const char *const good[] = {"fp32", "leap8", "leap4"};
    open_task(SOURCE_DIR "/models/tiny-kda", SOURCE_DIR "/models/eval/registers-32.jsonl");
    at_least(good, COUNT(good), (int32_t)ceil(0.95 * set.n) - (set.n < MAX_PROBLEMS));
}

/* All that was read is in the state: 4 bits a token lose nearly every answer, 4 bits a window few. */
static void test_pure(void **state) {
    (void)state;
    static const char *const good[] = {"fp32", "leap8", "leap4"};
    open_task(SOURCE_DIR "/models/tiny-gdn-pure", SOURCE_DIR "/models/eval/copy-80.jsonl");
    at_least(good, COUNT(good), (int32_t)floor(0.75 * set.n));
    at_most("int4", (int32_t)ceil(0.25 * set.n));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_registers, close_task),
                                       cmocka_unit_test_teardown(test_kda, close_task),
                                       cmocka_unit_test_teardown(test_pure, close_task)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
