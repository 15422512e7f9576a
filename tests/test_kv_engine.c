/* tests/test_kv_engine.c: engines over every kind of KV store: a conversation that is saved, forked, rolled back or cut
 * into pieces says what one that was not says; the prefill that a method brings; bits from a file; and what is refused.
 */
#include "toy_session.h"

#include <sys/stat.h>

enum { PROMPT = 300, STEPS = 20, SECOND = 30, MORE = 6, ALL = STEPS + MORE, ROW = TOY_VOCAB, CONTEXT = 400 };

static const ebb_sampling warm = {0.9f, 0.95f, 0.0f, 30, 1.1f, 16, 5};

static const struct kv_setup {
    const char *kv, *prefill;
    bool whole;   /* notices: prompts are not cut */
    bool rewrite; /* rounds at the end of a prompt */
} setups[] = {
    {"k4v4", NULL, false, false},
    {"k4v4:window=64", "sage_w", false, false},
    {"k8v8-vert:window=0", NULL, false, false},
    {"hyquant:window=64", NULL, false, false},
    {"hyquant:select=prompt,window=64", NULL, true, false},
    {"hyquant:select=paper,window=32", NULL, true, false},
    {"kivi4:residual=32", NULL, false, false},
    {"vquant_vert:window=64", NULL, false, false},
    {"sparse_only:select=prompt", NULL, true, false},
    {"kvtuner", NULL, false, false},
    {"kivi-hqq:residual=8", NULL, false, true},
};

static void write_text(const fixture *f, const char *name, const char *text, char path[static 160]) {
    snprintf(path, 160, "%s/%s", f->folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fputs(text, file) < 0 || fclose(file)) abort();
}

static int leave(void **state) {
    fixture *f = *state;
    toy_remove(f->folder, "a.ebb"), toy_remove(f->folder, "b.ebb"), toy_remove(f->folder, "bits.json");
    return teardown(state);
}

typedef struct world {
    ebb_model *model;
    ebb_engine *engine;
} world;

static ebb_status try_open(world *w, fixture *f, const struct kv_setup *u, int32_t seqs, int64_t piece,
                           ebb_error *error) {
    char bits[160];
    write_text(f, "bits.json", "{\"k\": [8, 4], \"v\": [4, 2]}", bits);
    ebb_engine_config config = {.size = sizeof config,
                                .state = "fp32",
                                .kv = u->kv,
                                .prefill = u->prefill,
                                .kv_bits = strcmp(u->kv, "kvtuner") ? NULL : bits,
                                .max_seqs = seqs,
                                .max_tokens = CONTEXT,
                                .prefill_tokens = piece,
                                .max_new = 4};
    w->model = open_ok(f);
    ebb_status status = ebb_engine_open(w->model, &config, &w->engine, error);
    if (status) ebb_model_close(w->model);
    return status;
}

static void open_world(world *w, fixture *f, const struct kv_setup *u, int32_t seqs, int64_t piece) {
    ebb_error error;
    f->notices.n = 0;
    must(try_open(w, f, u, seqs, piece, &error), &error);
    assert_int_equal(f->notices.n, u->whole || u->rewrite);
    if (f->notices.n) assert_non_null(strstr(f->notices.last, "pages cannot be shared"));
    if (f->notices.n) assert_int_equal(strstr(f->notices.last, "in one piece") != NULL, u->whole);
}

static void close_world(world *w) {
    ebb_engine_close(w->engine);
    ebb_model_close(w->model);
}

static void prompt(ebb_engine *e, int32_t id, int32_t which, int64_t n) {
    static int32_t ids[PROMPT];
    ebb_error error;
    for (int64_t t = 0; t < n; t++) ids[t] = id_at(which, t);
    must(ebb_sequence_append(e, id, ids, n, &error), &error);
}

typedef struct course {
    int32_t tokens[ALL];
    float logits[ALL * ROW];
} course;

/* Steps from .. to - 1; before step STEPS comes the second prompt. */
static void go_on(ebb_engine *e, int32_t id, int64_t from, int64_t to, course *c) {
    ebb_error error;
    for (int64_t i = from; i < to; i++) {
        if (i == STEPS) {
            prompt(e, id, 2, SECOND);
            must(ebb_engine_prefill(e, &error), &error);
        } else must(ebb_engine_step(e, &id, 1, &error), &error);
        c->tokens[i] = ebb_sequence_token(e, id);
        memcpy(c->logits + i * ROW, ebb_sequence_logits(e, id), ROW * sizeof(float));
    }
}

static int32_t start(ebb_engine *e) {
    int32_t id;
    ebb_error error;
    must(ebb_sequence_open(e, &warm, &id, &error), &error);
    prompt(e, id, 1, PROMPT);
    return id;
}

static void same(const course *a, const course *b, int64_t from, int64_t to, const struct kv_setup *u,
                 const char *what) {
    if (memcmp(a->tokens + from, b->tokens + from, (size_t)(to - from) * sizeof(int32_t)) ||
        memcmp(a->logits + from * ROW, b->logits + from * ROW, (size_t)(to - from) * ROW * sizeof(float)))
        fail_msg("%s: %s says something else", u->kv, what);
}

/* Saved behind the prompt, between its steps and before the second prompt; a fork; two sequences at once. */
static void interrupted(fixture *f, const struct kv_setup *u) {
    static course plain, run;
    static const int64_t at[] = {0, 1, 13, STEPS, STEPS + 1};
    world w, other;
    ebb_error error;
    char path[160];
    snprintf(path, sizeof path, "%s/a.ebb", f->folder);
    open_world(&w, f, u, 1, 0);
    int32_t id = start(w.engine), loaded, fork;
    must(ebb_engine_prefill(w.engine, &error), &error);
    go_on(w.engine, id, 0, ALL, &plain);
    close_world(&w);
    open_world(&w, f, u, 1, 0);
    id = start(w.engine);
    must(ebb_engine_prefill(w.engine, &error), &error);
    for (int32_t i = 0; i < COUNT(at); i++) {
        go_on(w.engine, id, i ? at[i - 1] : 0, at[i], &run);
        must(ebb_sequence_save(w.engine, id, path, &error), &error);
        open_world(&other, f, u, 3, 256);
        int32_t mate = start(other.engine);
        must(ebb_engine_prefill(other.engine, &error), &error);
        must(ebb_sequence_load(other.engine, path, NULL, &loaded, &error), &error);
        must(ebb_sequence_fork(other.engine, loaded, &fork, &error), &error);
        ebb_sequence_close(other.engine, mate);
        go_on(other.engine, loaded, at[i], ALL, &run);
        same(&run, &plain, at[i], ALL, u, "a sequence from a file");
        go_on(other.engine, fork, at[i], ALL, &run);
        same(&run, &plain, at[i], ALL, u, "a fork");
        close_world(&other);
    }
    close_world(&w);
}

/* A step back, as far as FP32 states go, at every step; test_hyquant_bits.c goes back farther. */
static void rolled_back(fixture *f, const struct kv_setup *u) {
    static course plain, run;
    world w;
    ebb_error error;
    if (u->rewrite) return; /* what it rounds when depends on where its prompt ended; test_hyquant.c */
    open_world(&w, f, u, 1, 0);
    int32_t id = start(w.engine);
    must(ebb_engine_prefill(w.engine, &error), &error);
    go_on(w.engine, id, 0, STEPS, &plain);
    close_world(&w);
    open_world(&w, f, u, 1, 256);
    id = start(w.engine);
    must(ebb_engine_prefill(w.engine, &error), &error);
    for (int64_t i = 0; i < STEPS; i++) {
        go_on(w.engine, id, i, i + 1, &run);
        must(ebb_sequence_rollback(w.engine, id, PROMPT + i, &error), &error);
        go_on(w.engine, id, i, i + 1, &run);
        same(&run, &plain, i, i + 1, u, "a sequence that went back");
    }
    close_world(&w);
}

/* Two prompts in one prefill, of which the second waits or is cut at the grid; and pieces of 256. */
static void together(fixture *f, const struct kv_setup *u) {
    static course plain, run;
    world w;
    ebb_error error;
    open_world(&w, f, u, 1, 512);
    int32_t id = start(w.engine), other;
    must(ebb_engine_prefill(w.engine, &error), &error);
    go_on(w.engine, id, 0, 4, &plain);
    close_world(&w);
    open_world(&w, f, u, 2, 256);
    other = start(w.engine);
    id = start(w.engine);
    must(ebb_engine_prefill(w.engine, &error), &error);
    go_on(w.engine, other, 0, 4, &run);
    same(&run, &plain, 0, 4, u, "the first of two");
    go_on(w.engine, id, 0, 4, &run);
    same(&run, &plain, 0, 4, u, "the second of two");
    close_world(&w);
}

static void test_conversations(void **state) {
    fixture *f = *state;
    toy_make(f->folder, &TOY);
    for (int32_t i = 0; i < COUNT(setups); i++) {
        interrupted(f, &setups[i]);
        rolled_back(f, &setups[i]);
        together(f, &setups[i]);
    }
}

static void first_logits(fixture *f, const char *kv, const char *prefill, float *logits) {
    const struct kv_setup u = {kv, prefill, false, false};
    world w;
    ebb_error error;
    open_world(&w, f, &u, 1, 0);
    int32_t id = start(w.engine);
    must(ebb_engine_prefill(w.engine, &error), &error);
    memcpy(logits, ebb_sequence_logits(w.engine, id), ROW * sizeof *logits);
    close_world(&w);
}

/* A method brings its prefill; one that is asked for wins. */
static void test_prefill(void **state) {
    fixture *f = *state;
    float own[ROW], asked[ROW], other[ROW];
    toy_make(f->folder, &TOY);
    first_logits(f, "hyquant", NULL, own);
    first_logits(f, "k4v4-vert", "vquant_vert", other);
    assert_memory_equal(own, other, sizeof own);
    first_logits(f, "hyquant", "full", asked);
    first_logits(f, "k4v4-vert", NULL, other);
    assert_memory_equal(asked, other, sizeof asked);
    assert_memory_not_equal(own, asked, sizeof own);
    first_logits(f, "sage_w0", NULL, own);
    first_logits(f, "bf16", "sage_w0", other);
    assert_memory_equal(own, other, sizeof own);
}

/* FP32 goes into a store with a tail, and not into one whose queries are not there. */
static void test_import(void **state) {
    fixture *f = *state;
    static course exact, run;
    world w;
    ebb_error error;
    int32_t id;
    char path[160], again[160];
    snprintf(path, sizeof path, "%s/a.ebb", f->folder);
    snprintf(again, sizeof again, "%s/b.ebb", f->folder);
    toy_make(f->folder, &TOY);
    open_world(&w, f, &(struct kv_setup){"fp32", NULL, false, false}, 1, 0);
    id = start(w.engine);
    must(ebb_engine_prefill(w.engine, &error), &error);
    must(ebb_sequence_export(w.engine, id, path, &error), &error);
    go_on(w.engine, id, 0, 1, &exact);
    close_world(&w);
    static const char *const into[] = {"k8v8:window=256", "k8v8", "kivi4"};
    for (int32_t i = 0; i < COUNT(into); i++) {
        open_world(&w, f, &(struct kv_setup){into[i], NULL, false, false}, 1, 0);
        must(ebb_sequence_load(w.engine, path, NULL, &id, &error), &error);
        assert_non_null(strstr(f->notices.last, "FP32 imported"));
        go_on(w.engine, id, 0, 1, &run);
        double d = 0, s = 0;
        for (int k = 0; k < ROW; k++) d += pow(run.logits[k] - exact.logits[k], 2), s += pow(exact.logits[k], 2);
        if (!(d < 0.02 * s)) fail_msg("%s: logits %g from FP32", into[i], sqrt(d / s));
        must(ebb_sequence_export(w.engine, id, again, &error), &error); /* and out again */
        close_world(&w);
    }
    static const char *const not_into[] = {"hyquant", "bf16", "kivi-hqq"};
    for (int32_t i = 0; i < COUNT(not_into); i++) {
        open_world(&w, f, &(struct kv_setup){not_into[i], i == 1 ? "vquant_vert" : NULL, false, i == 2}, 1, 0);
        assert_int_equal(ebb_sequence_load(w.engine, path, NULL, &id, &error), EBB_UNSUPPORTED);
        if (!strstr(error.text, "cannot be written into a KV store")) fail_msg("%s", error.text);
        must(ebb_sequence_open(w.engine, &warm, &id, &error), &error); /* its slot was not lost */
        close_world(&w);
    }
}

static void test_bits(void **state) {
    fixture *f = *state;
    static const struct {
        const char *text, *says;
    } bad[] = {{"{\"k\": [4, 4]}", "v"},
               {"{\"k\": [4, 4], \"v\": [4]}", "expected 2"},
               {"{\"k\": [4, 4], \"v\": [4, 3]}", "2, 4 or 8"},
               {"{\"k\": [4, 4.0], \"v\": [4, 4]}", "2, 4 or 8"},
               {"{\"k\": 4, \"v\": [4, 4]}", "k"},
               {"[4, 4]", "object"},
               {"{", "bits.json"}};
    ebb_kv_bits *bits;
    ebb_error error;
    char path[160];
    for (int32_t i = 0; i < COUNT(bad); i++) {
        write_text(f, "bits.json", bad[i].text, path);
        assert_int_equal(ebb_kv_bits_read(path, 2, &bits, &error), EBB_BAD_FILE);
        assert_null(bits);
        if (!strstr(error.text, bad[i].says) || !strstr(error.text, "bits.json")) fail_msg("%s", error.text);
    }
    write_text(f, "bits.json", "{\"v\": [4, 2], \"k\": [8, 4]}", path);
    must(ebb_kv_bits_read(path, 2, &bits, &error), &error);
    assert_true(bits[0].k == 8 && bits[0].v == 4 && bits[1].k == 4 && bits[1].v == 2);
    free(bits);
    assert_int_equal(ebb_kv_bits_read(NULL, 2, &bits, &error), EBB_BAD_ARGUMENT);
    toy_make(f->folder, &TOY);
    ebb_engine_config c = {.size = sizeof c, .kv = "kvtuner"};
    ebb_model *model = open_ok(f);
    ebb_engine *e;
    assert_int_equal(ebb_engine_open(model, &c, &e, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "--kv-bits FILE"));
    c.kv = "bf16", c.kv_bits = path;
    assert_int_equal(ebb_engine_open(model, &c, &e, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "method bf16 has none"));
    c.kv_bits = NULL, c.prefill = "sage";
    assert_int_equal(ebb_engine_open(model, &c, &e, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "vquant_vert"));
    ebb_model_close(model);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, leave)

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_conversations), TEST(test_prefill), TEST(test_import),
                                       TEST(test_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
