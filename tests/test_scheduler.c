/* test_scheduler.c: requests alone and together, budgets, preemption, turns, rules for tokens, and every refusal. */
#define _GNU_SOURCE
#include "scheduler_world.h"

#include <math.h>
#include <stdio.h>

static ebb_device *device;
static ebb_model *model;
static const ebb_sampling greedy = {0.0f, 1.0f, 0.0f, 0, 1.0f, 64, 0};

static void test_random_leap(void **state) {
    (void)state;
    world w = {.model = model, .random = 1, .cache_mem = (size_t)3 << 20};
    run_world(&w, "leap8", "bf16", 200);
}

static void test_random_fp32(void **state) {
    (void)state;
    world w = {.model = model, .random = 1u << 20};
    run_world(&w, "fp32", "hyquant", 50);
}

/* ---- a few requests and the order of their events ---- */

typedef struct journal {
    ebb_event events[4096];
    int32_t n;
    char error[240];
} journal;

static void note(void *ctx, const ebb_event *event) {
    journal *l = ctx;
    assert_true(l->n < COUNT(l->events));
    if (event->error) snprintf(l->error, sizeof l->error, "%s", event->error->text);
    l->events[l->n++] = *event;
}

typedef struct bench {
    ebb_engine *engine;
    ebb_scheduler *scheduler;
    journal log;
} bench;

static bench *open_bench(int32_t seqs, int64_t step_tokens) {
    bench *b = calloc(1, sizeof *b);
    ebb_error error;
    assert_non_null(b);
    b->engine = world_engine(model, "leap8", "bf16", seqs);
    const ebb_scheduler_config c = {.size = sizeof c, .step_tokens = step_tokens, .event = note, .ctx = &b->log};
    must(ebb_scheduler_open(b->engine, &c, &b->scheduler, &error), &error);
    return b;
}

static void close_bench(bench *b) {
    ebb_scheduler_close(b->scheduler);
    ebb_engine_close(b->engine);
    free(b);
}

static int64_t ask(bench *b, int32_t first, int64_t n, int64_t answer, int32_t priority) {
    int32_t ids[CONTEXT];
    int64_t id;
    ebb_error error;
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(((int64_t)first + 7 * i) % 200);
    const ebb_request r = {.size = sizeof r,
                           .prompt = ids,
                           .n_prompt = n,
                           .sampling = greedy,
                           .max_answer = answer,
                           .ignore_stop = true,
                           .priority = priority};
    must(ebb_scheduler_submit(b->scheduler, &r, &id, &error), &error);
    return id;
}

static void run_all(bench *b) {
    int64_t left = 1;
    ebb_error error;
    while (left) must(ebb_scheduler_step(b->scheduler, &left, &error), &error);
}

static int32_t find_event(const bench *b, int64_t id, ebb_event_kind what) {
    for (int32_t i = 0; i < b->log.n; i++)
        if (b->log.events[i].request == id && b->log.events[i].kind == what) return i;
    fail_msg("request %lld has no event %d", (long long)id, (int)what);
    return -1;
}

/* An answer under way goes on, and a short prompt has its turn, while a long one is processed. */
static void test_turns(void **state) {
    (void)state;
    bench *b = open_bench(3, EBB_GRID);
    ebb_error error;
    const int64_t first = ask(b, 1, 5, 30, 0);
    must(ebb_scheduler_step(b->scheduler, NULL, &error), &error);
    const int64_t slow = ask(b, 2, 700, 3, 0), brief = ask(b, 3, 20, 3, 0);
    const int32_t from = b->log.n;
    run_all(b);
    const int32_t slow_token = find_event(b, slow, EBB_EVENT_TOKEN);
    int32_t pieces = 0, tokens = 0;
    assert_true(find_event(b, brief, EBB_EVENT_TOKEN) < slow_token);
    for (int32_t i = from; i < slow_token; i++) {
        pieces += b->log.events[i].request == slow && b->log.events[i].kind == EBB_EVENT_PROMPT;
        tokens += b->log.events[i].request == first && b->log.events[i].kind == EBB_EVENT_TOKEN;
    }
    assert_int_equal(pieces, 3);
    assert_true(tokens >= 3);
    close_bench(b);
}

static void test_priority(void **state) {
    (void)state;
    bench *b = open_bench(1, 0);
    ebb_scheduler_stats now;
    ebb_error error;
    const int64_t low = ask(b, 1, 9, 20, 0);
    for (int32_t i = 0; i < 5; i++) must(ebb_scheduler_step(b->scheduler, NULL, &error), &error);
    const int64_t equal = ask(b, 2, 9, 5, 0), high = ask(b, 3, 9, 5, 1);
    must(ebb_scheduler_step(b->scheduler, NULL, &error), &error);
    ebb_scheduler_now(b->scheduler, &now);
    assert_true(now.preempted == 1 && now.queued == 1 && now.running == 1 && now.saved_bytes > 0);
    run_all(b);
    assert_true(find_event(b, high, EBB_EVENT_END) < find_event(b, low, EBB_EVENT_END));
    assert_true(find_event(b, low, EBB_EVENT_END) < find_event(b, equal, EBB_EVENT_TOKEN));
    assert_int_equal(b->log.events[find_event(b, low, EBB_EVENT_END)].done, 20);
    close_bench(b);
}

/* ---- a prompt without an answer, the end of the context, stops ---- */

static void test_ends(void **state) {
    (void)state;
    bench *b = open_bench(2, 0);
    const int64_t none = ask(b, 1, 300, 0, 0), whole = ask(b, 2, CONTEXT, 5, 0), rest = ask(b, 3, CONTEXT - 9, -1, 0);
    run_all(b);
    const ebb_event *end = &b->log.events[find_event(b, none, EBB_EVENT_END)];
    assert_true(end->end == EBB_END_LENGTH && end->done == 0);
    end = &b->log.events[find_event(b, whole, EBB_EVENT_END)];
    assert_true(end->end == EBB_END_LENGTH && end->done == 1); /* a token that is not read back needs no room */
    end = &b->log.events[find_event(b, rest, EBB_EVENT_END)];
    assert_true(end->end == EBB_END_LENGTH && end->done == 10);
    const int32_t token = b->log.events[find_event(b, rest, EBB_EVENT_TOKEN)].token;

    int32_t ids[CONTEXT];
    int64_t id;
    ebb_error error;
    for (int64_t i = 0; i < CONTEXT - 9; i++) ids[i] = (int32_t)((3 + 7 * i) % 200);
    const ebb_request r = {.size = sizeof r,
                           .prompt = ids,
                           .n_prompt = CONTEXT - 9,
                           .sampling = greedy,
                           .max_answer = -1,
                           .stops = &token,
                           .n_stops = 1};
    must(ebb_scheduler_submit(b->scheduler, &r, &id, &error), &error);
    run_all(b);
    end = &b->log.events[find_event(b, id, EBB_EVENT_END)];
    assert_true(end->end == EBB_END_STOP && end->done == 0);
    close_bench(b);
}

/* ---- rules and log probabilities ---- */

static bool only_even(void *ctx, float *logits, int32_t vocab) {
    int32_t *calls = ctx;
    for (int32_t i = 1; i < vocab; i += 2) logits[i] = -INFINITY;
    return ++*calls <= 6;
}

static void test_rules(void **state) {
    (void)state;
    bench *b = open_bench(2, 0);
    int32_t calls = 0;
    const int32_t ids[] = {5, 6, 7};
    int64_t id;
    ebb_error error;
    const ebb_request r = {.size = sizeof r,
                           .prompt = ids,
                           .n_prompt = 3,
                           .sampling = greedy,
                           .max_answer = 20,
                           .ignore_stop = true,
                           .logprobs = 4,
                           .logits = only_even,
                           .ctx = &calls};
    must(ebb_scheduler_submit(b->scheduler, &r, &id, &error), &error);
    run_all(b);
    for (int32_t i = 0; i < b->log.n; i++) {
        const ebb_event *e = &b->log.events[i];
        if (e->kind != EBB_EVENT_TOKEN) continue;
        assert_true(e->token % 2 == 0 && e->n_top == 4);
        assert_true(isfinite(e->logprob) && e->logprob < 0);
    }
    const ebb_event *end = &b->log.events[find_event(b, id, EBB_EVENT_END)];
    assert_true(end->end == EBB_END_ERROR && end->done == 6);
    assert_non_null(strstr(b->log.error, "leave no token after 6"));
    close_bench(b);
}

typedef struct seen {
    double sum;
    int32_t tokens;
} seen;

static void see_top(void *ctx, const ebb_event *event) {
    seen *s = ctx;
    if (event->kind != EBB_EVENT_TOKEN) return;
    s->tokens++;
    assert_true(event->top[0].token == event->token && event->top[0].logprob == event->logprob);
    for (int32_t i = 0; i < event->n_top; i++) {
        s->sum += exp((double)event->top[i].logprob);
        if (i) assert_true(event->top[i].logprob <= event->top[i - 1].logprob);
    }
}

static bool four(void *ctx, float *logits, int32_t vocab) {
    (void)ctx;
    for (int32_t i = 4; i < vocab; i++) logits[i] = -INFINITY;
    return true;
}

/* Where the rules leave four tokens, the four most probable ones have all there is. */
static void test_logprobs(void **state) {
    (void)state;
    seen s = {0};
    const int32_t ids[] = {9, 8};
    int64_t id, left = 1;
    ebb_error error;
    ebb_engine *e = world_engine(model, "fp32", "bf16", 1);
    ebb_scheduler *scheduler;
    const ebb_scheduler_config c = {.size = sizeof c, .event = see_top, .ctx = &s};
    const ebb_request r = {.size = sizeof r,
                           .prompt = ids,
                           .n_prompt = 2,
                           .sampling = greedy,
                           .max_answer = 5,
                           .ignore_stop = true,
                           .logprobs = 4,
                           .logits = four};
    must(ebb_scheduler_open(e, &c, &scheduler, &error), &error);
    must(ebb_scheduler_submit(scheduler, &r, &id, &error), &error);
    while (left) must(ebb_scheduler_step(scheduler, &left, &error), &error);
    assert_int_equal(s.tokens, 5);
    assert_true(fabs(s.sum - 5) < 1e-5);
    ebb_scheduler_close(scheduler);
    ebb_engine_close(e);
}

/* ---- the prefix cache ---- */

typedef struct probe { /* what one request is told */
    float logprobs[8][4];
    int32_t tokens[8];
    int64_t n, cached;
} probe;

static void see_probe(void *ctx, const ebb_event *event) {
    probe *p = event->ctx;
    (void)ctx;
    if (event->kind == EBB_EVENT_PROMPT) p->cached = event->cached;
    if (event->kind != EBB_EVENT_TOKEN) return;
    p->tokens[p->n] = event->token;
    for (int32_t i = 0; i < 4; i++) p->logprobs[p->n][i] = event->top[i].logprob;
    p->n++;
}

static void probe_one(ebb_scheduler *s, const int32_t *ids, int64_t n, probe *p) {
    int64_t id, left = 1;
    ebb_error error;
    *p = (probe){0};
    const ebb_request r = {.size = sizeof r,
                           .prompt = ids,
                           .n_prompt = n,
                           .sampling = greedy,
                           .max_answer = 8,
                           .ignore_stop = true,
                           .logprobs = 4,
                           .ctx = p};
    must(ebb_scheduler_submit(s, &r, &id, &error), &error);
    while (left) must(ebb_scheduler_step(s, &left, &error), &error);
    assert_int_equal(p->n, 8);
}

static ebb_scheduler *cached_scheduler(ebb_engine *e, size_t cache_mem) {
    ebb_scheduler *s;
    ebb_error error;
    const ebb_scheduler_config c = {.size = sizeof c, .cache_mem = cache_mem, .event = see_probe};
    must(ebb_scheduler_open(e, &c, &s, &error), &error);
    return s;
}

/* Prompts that share more and more with the first one: what was found, and the bits of what was not asked of a cache.
 */
static void test_hit_is_miss(void **state) {
    static const int64_t change[] = {700, 650, 520, 513, 512, 511, 300, 257, 256, 255, 1, 0};
    ebb_engine *warm = world_engine(model, "leap8", "bf16", 2), *cold = world_engine(model, "leap8", "bf16", 1);
    ebb_scheduler *with = cached_scheduler(warm, (size_t)64 << 20), *without = cached_scheduler(cold, 0);
    int32_t ids[700];
    probe a, b;
    (void)state;
    for (int64_t i = 0; i < 700; i++) ids[i] = (int32_t)(mix64((uint64_t)i) % 200);
    probe_one(with, ids, 700, &a);
    assert_int_equal(a.cached, 0);
    for (int32_t round = 0; round < 2; round++)
        for (int32_t i = 0; i < COUNT(change); i++) {
            const int64_t at = change[i];
            for (int64_t t = at; t < 700; t++) ids[t] = (int32_t)(mix64((uint64_t)(t + 1000 * at)) % 200);
            probe_one(with, ids, 700, &a);
            probe_one(without, ids, 700, &b);
            assert_memory_equal(a.tokens, b.tokens, sizeof a.tokens);
            assert_memory_equal(a.logprobs, b.logprobs, sizeof a.logprobs);
            assert_int_equal(b.cached, 0);
            if (at >= 512) assert_int_equal(a.cached, 512);
        }
    /* One that was seen before costs what lies behind its last checkpoint; its first interval alone nothing less. */
    probe_one(with, ids, 700, &a);
    assert_int_equal(a.cached, 512);
    probe_one(with, ids, 256, &a);
    assert_int_equal(a.cached, 0);
    ebb_scheduler_close(with), ebb_scheduler_close(without);
    ebb_engine_close(warm), ebb_engine_close(cold);
}

static void test_cache_budget(void **state) {
    (void)state;
    ebb_engine *e = world_engine(model, "leap8", "bf16", 1);
    ebb_scheduler_stats now;
    probe p;
    int32_t ids[300];
    ebb_scheduler *s = cached_scheduler(e, (size_t)64 << 20);
    for (int64_t i = 0; i < 300; i++) ids[i] = (int32_t)i % 200;
    probe_one(s, ids, 300, &p);
    ebb_scheduler_now(s, &now);
    assert_int_equal(now.checkpoints, 1);
    const size_t one = now.cache_bytes;
    ebb_scheduler_close(s);
    s = cached_scheduler(e, 3 * one + 1);
    for (int32_t k = 0; k < 6; k++) {
        ids[0] = k;
        probe_one(s, ids, 300, &p);
        ids[0] = 0; /* in use all the time: it stays */
        probe_one(s, ids, 300, &p);
        assert_int_equal(p.cached, 256);
        ebb_scheduler_now(s, &now);
        assert_true(now.cache_bytes <= now.cache_mem && now.checkpoints == min_i64(k + 1, 3));
    }
    assert_int_equal(now.evictions, 3);
    assert_int_equal(now.cached, 6 * 256);
    assert_int_equal(now.looked_up, 12 * 300);
    ebb_scheduler_close(s);
    s = cached_scheduler(e, 100); /* less than one checkpoint: none, and no failure */
    probe_one(s, ids, 300, &p);
    ebb_scheduler_now(s, &now);
    assert_true(now.checkpoints == 0 && now.cache_bytes == 0);
    ebb_scheduler_close(s);
    ebb_engine_close(e);
}

/* ---- refusals ---- */

static void refuse(ebb_status status, const ebb_error *error, const char *words) {
    assert_int_equal(status, EBB_BAD_ARGUMENT);
    if (!strstr(error->text, words)) fail_msg("'%s' does not say '%s'", error->text, words);
}

static void test_refusals(void **state) {
    (void)state;
    bench *b = open_bench(2, 0);
    const int32_t ids[] = {1, 2}, far[] = {1, 1 << 30};
    ebb_request r = {.size = sizeof r, .prompt = ids, .n_prompt = 2, .sampling = greedy, .max_answer = 1};
    ebb_scheduler_config c = {.size = sizeof c, .event = note, .ctx = &b->log};
    ebb_scheduler *other;
    int64_t id;
    ebb_error error;
#define REFUSE_REQUEST(field, value, words)                                           \
    do {                                                                              \
        ebb_request bad = r;                                                          \
        bad.field = value;                                                            \
        refuse(ebb_scheduler_submit(b->scheduler, &bad, &id, &error), &error, words); \
    } while (0)
    REFUSE_REQUEST(size, 1, "ebb_request.size");
    REFUSE_REQUEST(n_prompt, 0, "0 tokens");
    REFUSE_REQUEST(n_prompt, CONTEXT + 1, "the context holds 768");
    REFUSE_REQUEST(prompt, far, "prompt token 1");
    REFUSE_REQUEST(max_answer, -2, "max_answer = -2");
    REFUSE_REQUEST(n_stops, 1, "stop tokens");
    REFUSE_REQUEST(logprobs, EBB_MAX_LOGPROBS + 1, "logprobs = 33");
    REFUSE_REQUEST(sampling.temperature, -1.0f, "temperature");
    ebb_scheduler_cancel(b->scheduler, 77); /* nobody */

    must(ebb_sequence_open(b->engine, &greedy, &(int32_t){0}, &error), &error);
    refuse(ebb_scheduler_open(b->engine, &c, &other, &error), &error, "sequence 0 of the engine is open");
    ebb_sequence_close(b->engine, 0);
    c.state_mem = 1;
    refuse(ebb_scheduler_open(b->engine, &c, &other, &error), &error, "state_mem = 1 ");
    c.state_mem = 0, c.kv_mem = 1;
    refuse(ebb_scheduler_open(b->engine, &c, &other, &error), &error, "kv_mem = 1 ");
    c.kv_mem = 0, c.step_tokens = -1;
    refuse(ebb_scheduler_open(b->engine, &c, &other, &error), &error, "step_tokens = -1");
    c.step_tokens = 0, c.event = NULL;
    refuse(ebb_scheduler_open(b->engine, &c, &other, &error), &error, "a function for events");
    c.event = note, c.size = 3;
    refuse(ebb_scheduler_open(b->engine, &c, &other, &error), &error, "ebb_scheduler_config.size");

    c.size = sizeof c, c.kv_mem = ebb_kv_pool_bytes_for(b->engine->kv, 1);
    must(ebb_scheduler_open(b->engine, &c, &other, &error), &error);
    r.max_answer = -1;
    refuse(ebb_scheduler_submit(other, &r, &id, &error), &error, "(kv_mem)");
    ebb_scheduler_close(other);
    ask(b, 1, 5, 5, 0); /* dropped with the scheduler, running and waiting */
    must(ebb_scheduler_step(b->scheduler, NULL, &error), &error);
    ask(b, 1, 5, 5, 0);
    close_bench(b);
}

static int open_all(void **state) {
    const ebb_device_config config = {.size = sizeof config, .threads = 2};
    (void)state;
    if (ebb_device_open("cpu", &config, &device, NULL)) return -1;
    return ebb_model_open(device, SOURCE_DIR "/models/tiny-gdn", NULL, &model, NULL) ? -1 : 0;
}
static int close_all(void **state) {
    (void)state;
    ebb_model_close(model);
    ebb_device_close(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_leap), cmocka_unit_test(test_random_fp32), cmocka_unit_test(test_turns),
        cmocka_unit_test(test_priority),    cmocka_unit_test(test_ends),        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_logprobs),    cmocka_unit_test(test_hit_is_miss), cmocka_unit_test(test_cache_budget),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
