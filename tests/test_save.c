/* test_save.c: sequences in files: saved, everything closed and opened anew, loaded and gone on with, under every
 * method at every phase of its window: the tokens and logits of a run that was never interrupted. Forks, rollbacks,
 * FP32, and every refusal. */
#include "default_layout.h"
#include "toy_session.h"

#include <sys/stat.h>

enum { PROMPT = 21, STEPS = 40, SECOND = 5, ROW = TOY_VOCAB };

typedef struct world {
    fixture *f;
    ebb_model *model;
    ebb_engine *engine;
} world;

static const ebb_sampling warm = {0.9f, 0.95f, 0.0f, 30, 1.1f, 16, 5};

static ebb_status try_open(world *w, fixture *f, const char *state, const char *kv, const char *rows, int32_t seqs,
                           int32_t max_new, ebb_error *error) {
    ebb_engine_config config = {.size = sizeof config,
                                .state = state,
                                .kv = kv,
                                .max_seqs = seqs,
                                .max_tokens = 300 + seqs,
                                .max_new = max_new,
                                .algorithm = rows};
    *w = (world){.f = f, .model = open_ok(f)};
    ebb_status status = ebb_engine_open(w->model, &config, &w->engine, error);
    if (status) ebb_model_close(w->model);
    return status;
}

static void open_world(world *w, fixture *f, const char *state, const char *kv, int32_t seqs, int32_t max_new) {
    ebb_error error;
    must(try_open(w, f, state, kv, NULL, seqs, max_new, &error), &error);
}

static void close_world(world *w) {
    ebb_engine_close(w->engine);
    ebb_model_close(w->model);
}

static void new_device(fixture *f) {
    ebb_device_config config = {.size = sizeof config, .threads = 1, .log = {&f->notices, on_notice}};
    ebb_device_close(f->device);
    assert_int_equal(ebb_device_open("cpu", &config, &f->device, NULL), EBB_OK);
    f->notices.n = 0;
}

static const char *path_of(const fixture *f, const char *name, char path[static 160]) {
    snprintf(path, 160, "%s/%s", f->folder, name);
    return path;
}

/* The folder in memory where there is such a place: every save waits for the disk, and here are hundreds. */
static int enter(void **state) {
    if (setup(state)) return -1;
    fixture *f = *state;
    if (access("/dev/shm", W_OK) != 0) return 0;
    rmdir(f->folder);
    snprintf(f->folder, sizeof f->folder, "/dev/shm/ebb-test-XXXXXX");
    return mkdtemp(f->folder) ? 0 : -1;
}

/* Files that a test leaves in the folder. */
static int leave(void **state) {
    fixture *f = *state;
    static const char *const names[] = {"a.ebb",
                                        "b.ebb",
                                        "bad.ebb",
                                        "layouts/damp.safetensors",
                                        "layouts/damp-reorder.safetensors",
                                        "layouts/leap-mix.safetensors"};
    char path[160];
    for (int i = 0; i < COUNT(names); i++) toy_remove(f->folder, names[i]);
    rmdir(path_of(f, "layouts", path));
    return teardown(state);
}

static void prompt(ebb_engine *e, int32_t id, int32_t which, int64_t n) {
    int32_t ids[64];
    ebb_error error;
    for (int64_t t = 0; t < n; t++) ids[t] = id_at(which, t);
    must(ebb_sequence_append(e, id, ids, n, &error), &error);
}

static int32_t start(ebb_engine *e, const ebb_sampling *sampling) {
    int32_t id;
    ebb_error error;
    must(ebb_sequence_open(e, sampling, &id, &error), &error);
    prompt(e, id, 1, PROMPT);
    must(ebb_engine_prefill(e, &error), &error);
    return id;
}

/* What a sequence says from here on: `n` steps, each with its logits. */
typedef struct course {
    int32_t tokens[STEPS];
    float logits[STEPS * ROW];
} course;

static void go_on(ebb_engine *e, int32_t id, int64_t from, int64_t to, course *c) {
    ebb_error error;
    for (int64_t i = from; i < to; i++) {
        must(ebb_engine_step(e, &id, 1, &error), &error);
        c->tokens[i] = ebb_sequence_token(e, id);
        memcpy(c->logits + i * ROW, ebb_sequence_logits(e, id), ROW * sizeof(float));
    }
}

static void same_course(const course *a, const course *b, int64_t from, int64_t to, const char *what) {
    if (memcmp(a->tokens + from, b->tokens + from, (size_t)(to - from) * sizeof(int32_t)))
        fail_msg("%s: other tokens from step %lld", what, (long long)from);
    if (memcmp(a->logits + from * ROW, b->logits + from * ROW, (size_t)(to - from) * ROW * sizeof(float)))
        fail_msg("%s: other logits from step %lld", what, (long long)from);
}

static uint8_t *file_bytes(const char *path, size_t *bytes) {
    char *text;
    ebb_error error;
    must(read_file(path, (size_t)1 << 26, &text, bytes, &error), &error);
    return (uint8_t *)text;
}

static void same_file(const char *a, const char *b) {
    size_t na, nb;
    uint8_t *x = file_bytes(a, &na), *y = file_bytes(b, &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(x, y, na);
    free(x), free(y);
}

/* ---- every method, every phase ---- */

static void phases(fixture *f, const char *state, const char *kv) {
    static course plain, run;
    world w;
    ebb_error error;
    char a[160], b[160];
    path_of(f, "a.ebb", a), path_of(f, "b.ebb", b);
    ebb_state_spec spec;
    must(ebb_state_parse(state, &spec, &error), &error);
    const int64_t last = min_i64(spec.window + 1, STEPS - 4);
    open_world(&w, f, state, kv, 1, 1);
    int32_t id = start(w.engine, &warm);
    go_on(w.engine, id, 0, STEPS, &plain);
    close_world(&w);
    open_world(&w, f, state, kv, 1, 1);
    id = start(w.engine, &warm);
    for (int64_t at = 0; at <= last; at++) {
        world other;
        int32_t taken, loaded, first = ebb_sequence_token(w.engine, id);
        must(ebb_sequence_save(w.engine, id, a, &error), &error);
        ebb_device *own = f->device;
        f->device = NULL;
        new_device(f); /* nothing of the first one is used: device, model and engine are new */
        open_world(&other, f, state, kv, 3, 4);
        must(ebb_sequence_open(other.engine, &warm, &taken, &error), &error);
        must(ebb_sequence_load(other.engine, a, NULL, &loaded, &error), &error);
        assert_int_not_equal(loaded, id); /* another slot */
        assert_int_equal(f->notices.n, 0);
        assert_int_equal(ebb_sequence_token(other.engine, loaded), first);
        assert_int_equal(ebb_sequence_position(other.engine, loaded), PROMPT + at);
        assert_null(ebb_sequence_logits(other.engine, loaded));
        must(ebb_sequence_save(other.engine, loaded, b, &error), &error);
        same_file(a, b);
        const int64_t end = min_i64(STEPS, at + spec.window + 2);
        go_on(other.engine, loaded, at, end, &run);
        same_course(&run, &plain, at, end, state);
        close_world(&other);
        ebb_device_close(f->device);
        f->device = own;
        go_on(w.engine, id, at, at + 1, &run);
        same_course(&run, &plain, at, at + 1, "the sequence that was saved");
    }
    close_world(&w);
}

/* A layout for every calibrated method, in the model's folder. */
static void write_layouts(fixture *f) {
    char name[80], path[160];
    int32_t n;
    ebb_error error;
    const ebb_state_method *methods = ebb_state_methods(&n);
    ebb_model *model = open_ok(f);
    const ebb_model_info *info = ebb_model_describe(model);
    mkdir(path_of(f, "layouts", path), 0777);
    for (int32_t i = 0; i < n; i++) {
        const char *of = ebb_state_layout_name(&methods[i]);
        ebb_layout *layout;
        if (!of) continue;
        snprintf(name, sizeof name, "layouts/%s.safetensors", of);
        must(default_layout(of, info->hash, ebb_model_state_layers(model), info->state_layers, &layout, &error),
             &error);
        must(ebb_layout_write(path_of(f, name, path), layout, NULL, 0, &error), &error);
        ebb_layout_free(layout);
    }
    ebb_model_close(model);
}

static void test_every_phase(void **state) {
    fixture *f = *state;
    int32_t n, k;
    const ebb_state_method *methods = ebb_state_methods(&n);
    const ebb_kv_method *kv = ebb_kv_methods(&k);
    toy_make(f->folder, &TOY);
    write_layouts(f);
    for (int32_t i = 0; i < n; i++) phases(f, methods[i].name, kv[i % 3].name);
    for (int32_t i = 0; i < k; i++) /* kvtuner needs a file, kivi-hqq says that it is impure: test_kv_engine.c */
        if (strcmp(kv[i].name, "kvtuner") != 0 && strcmp(kv[i].name, "kivi-hqq") != 0) phases(f, "fp32", kv[i].name);
}

/* ---- conversations ---- */

/* Two turns; saved between them, or with the second prompt waiting, or not at all. A kept token, and one that is
 * forgotten. */
static void two_turns(fixture *f, int save, bool forget, course *c) {
    world w;
    ebb_error error;
    char path[160];
    path_of(f, "a.ebb", path);
    open_world(&w, f, "leap8", "bf16", 1, 1);
    int32_t id = start(w.engine, &warm);
    go_on(w.engine, id, 0, 7, c);
    if (forget) ebb_sequence_forget(w.engine, id);
    if (save == 2) prompt(w.engine, id, 2, SECOND);
    if (save) {
        must(ebb_sequence_save(w.engine, id, path, &error), &error);
        close_world(&w);
        open_world(&w, f, "leap8", "bf16", 2, 3);
        must(ebb_sequence_load(w.engine, path, NULL, &id, &error), &error);
    }
    if (save != 2) prompt(w.engine, id, 2, SECOND);
    assert_int_equal(ebb_sequence_room(w.engine, id), (save ? 302 : 301) - PROMPT - 7 - SECOND - !forget);
    must(ebb_engine_prefill(w.engine, &error), &error);
    go_on(w.engine, id, 7, 20, c);
    close_world(&w);
}

static void test_two_turns(void **state) {
    static course plain, saved;
    toy_make(((fixture *)*state)->folder, &TOY);
    for (int forget = 0; forget < 2; forget++) {
        two_turns(*state, 0, forget, &plain);
        for (int save = 1; save <= 2; save++) {
            two_turns(*state, save, forget, &saved);
            same_course(&saved, &plain, 0, 20, save == 1 ? "saved between turns" : "saved with a prompt waiting");
        }
    }
}

/* The stored sampling goes on; another one can be given. */
static void test_sampling(void **state) {
    fixture *f = *state;
    world w;
    ebb_error error;
    int32_t a, b;
    char path[160];
    toy_make(f->folder, &TOY);
    path_of(f, "a.ebb", path);
    open_world(&w, f, "fp32", "fp32", 3, 1);
    int32_t id = start(w.engine, &warm);
    must(ebb_sequence_save(w.engine, id, path, &error), &error);
    must(ebb_sequence_load(w.engine, path, NULL, &a, &error), &error);
    must(ebb_sequence_load(w.engine, path, &EBB_GREEDY, &b, &error), &error);
    assert_memory_equal(ebb_sequence_sampling(w.engine, a), &warm, sizeof warm);
    assert_true(ebb_sequence_sampling(w.engine, b)->temperature == 0.0f);
    must(ebb_sequence_resample(w.engine, b, &warm, &error), &error);
    assert_memory_equal(ebb_sequence_sampling(w.engine, b), &warm, sizeof warm);
    assert_int_equal(ebb_sequence_load(w.engine, path, NULL, &a, &error), EBB_NO_MEMORY);
    close_world(&w);
}

/* ---- fork and rollback ---- */

/* A fork goes on as the first one would have; what each is given later does not touch the other. */
static void test_fork(void **state) {
    fixture *f = *state;
    static course plain, a, b;
    static const char *const methods[] = {"leap8", "fp32", "int4-w"};
    toy_make(f->folder, &TOY);
    for (int m = 0; m < COUNT(methods); m++) {
        world w;
        ebb_error error;
        int32_t fork, none;
        open_world(&w, f, methods[m], "bf16", 1, 1);
        int32_t id = start(w.engine, &warm);
        go_on(w.engine, id, 0, STEPS, &plain);
        close_world(&w);
        open_world(&w, f, methods[m], "bf16", 2, 1);
        id = start(w.engine, &warm);
        go_on(w.engine, id, 0, 13, &a);
        must(ebb_sequence_fork(w.engine, id, &fork, &error), &error);
        assert_int_not_equal(id, fork);
        assert_memory_equal(ebb_sequence_logits(w.engine, id), ebb_sequence_logits(w.engine, fork), ROW * 4);
        assert_int_equal(ebb_sequence_fork(w.engine, id, &none, &error), EBB_NO_MEMORY);
        prompt(w.engine, fork, 3, 9); /* another way */
        must(ebb_engine_prefill(w.engine, &error), &error);
        go_on(w.engine, fork, 13, STEPS, &b);
        go_on(w.engine, id, 13, STEPS, &a);
        same_course(&a, &plain, 0, STEPS, "the first one beside its fork");
        assert_memory_not_equal(a.logits + 13 * ROW, b.logits + 13 * ROW, ROW * 4);
        ebb_sequence_close(w.engine, fork);
        close_world(&w);
        open_world(&w, f, methods[m], "bf16", 2, 1);
        id = start(w.engine, &warm);
        go_on(w.engine, id, 0, 13, &a);
        must(ebb_sequence_fork(w.engine, id, &fork, &error), &error);
        prompt(w.engine, id, 3, 9);
        must(ebb_engine_prefill(w.engine, &error), &error);
        go_on(w.engine, fork, 13, 20, &a);
        ebb_sequence_close(w.engine, id);
        go_on(w.engine, fork, 20, STEPS, &a);
        same_course(&a, &plain, 0, STEPS, "a fork whose origin went another way and is closed");
        assert_int_equal(ebb_sequence_fork(w.engine, id, &none, &error), EBB_BAD_ARGUMENT);
        close_world(&w);
    }
}

/* From every position back by every distance: what is in reach goes on like a run that never went there, also with
 * another prompt; what is not is refused with the numbers. */
static void test_rollback(void **state) {
    fixture *f = *state;
    enum { NEW = 6, END = 24 };
    static course plain, run;
    static const char *const methods[] = {"leap8", "int8", "leap8:p=4"};
    toy_make(f->folder, &TOY);
    for (int m = 0; m < COUNT(methods); m++) {
        world w;
        ebb_error error;
        ebb_state_spec spec;
        must(ebb_state_parse(methods[m], &spec, &error), &error);
        open_world(&w, f, methods[m], "bf16", 2, NEW);
        int32_t id = start(w.engine, &warm), first = ebb_sequence_token(w.engine, id), back = 0;
        go_on(w.engine, id, 0, STEPS, &plain);
        ebb_sequence_close(w.engine, id);
        id = start(w.engine, &warm);
        for (int32_t at = 0; at < END; at++) {
            /* Packed at the last boundary that a step has begun behind. */
            const int32_t base = at ? (at - 1) / spec.window * spec.window : 0;
            for (int32_t to = at; to >= 0; to--) {
                int32_t fork;
                must(ebb_sequence_fork(w.engine, id, &fork, &error), &error);
                ebb_status status = ebb_sequence_rollback(w.engine, fork, PROMPT + to, &error);
                const bool reach = to >= base && at - to <= NEW;
                if (status != (reach ? EBB_OK : EBB_BAD_ARGUMENT))
                    fail_msg("%s: from %d to %d: %s", methods[m], at, to, ebb_status_name(status));
                if (reach) {
                    assert_int_equal(ebb_sequence_token(w.engine, fork), to ? plain.tokens[to - 1] : first);
                    assert_int_equal(ebb_sequence_position(w.engine, fork), PROMPT + to);
                    go_on(w.engine, fork, to, min_i64(STEPS, to + spec.window + 2), &run);
                    same_course(&run, &plain, to, min_i64(STEPS, to + spec.window + 2), methods[m]);
                    back += to < at;
                } else assert_non_null(strstr(error.text, "out of reach"));
                ebb_sequence_close(w.engine, fork);
            }
            go_on(w.engine, id, at, at + 1, &run);
        }
        assert_true(back > END - 4);
        /* A waiting prompt is dropped; behind a prompt there is no way back. */
        prompt(w.engine, id, 2, SECOND);
        const int64_t pos = ebb_sequence_position(w.engine, id);
        must(ebb_sequence_rollback(w.engine, id, pos, &error), &error);
        assert_int_equal(ebb_sequence_token(w.engine, id), plain.tokens[END - 1]);
        go_on(w.engine, id, END, STEPS, &run);
        same_course(&run, &plain, END, STEPS, "a prompt that was dropped");
        prompt(w.engine, id, 2, SECOND);
        must(ebb_engine_prefill(w.engine, &error), &error);
        assert_int_equal(ebb_sequence_rollback(w.engine, id, ebb_sequence_position(w.engine, id) - 1, &error),
                         EBB_BAD_ARGUMENT);
        assert_int_equal(ebb_sequence_rollback(w.engine, id, ebb_sequence_position(w.engine, id) + 1, &error),
                         EBB_BAD_ARGUMENT);
        close_world(&w);
    }
}

/* ---- FP32 ---- */

static void test_fp32(void **state) {
    fixture *f = *state;
    static course plain, run;
    static const char *const methods[] = {"int8", "leap4", "bf16-w", "fp32-w"};
    world w;
    ebb_error error;
    int32_t id;
    char a[160], b[160];
    path_of(f, "a.ebb", a), path_of(f, "b.ebb", b);
    toy_make(f->folder, &TOY);
    open_world(&w, f, "fp32", "fp32", 1, 4);
    id = start(w.engine, &warm);
    go_on(w.engine, id, 0, 9, &plain);
    must(ebb_sequence_save(w.engine, id, b, &error), &error); /* what is due is folded, so this is an export too */
    must(ebb_sequence_export(w.engine, id, a, &error), &error);
    same_file(a, b);
    go_on(w.engine, id, 9, STEPS, &plain);
    close_world(&w);
    open_world(&w, f, "fp32", "fp32", 1, 1); /* exact */
    f->notices.n = 0;
    must(ebb_sequence_load(w.engine, a, NULL, &id, &error), &error);
    assert_int_equal(f->notices.n, 0);
    go_on(w.engine, id, 9, STEPS, &run);
    same_course(&run, &plain, 9, STEPS, "FP32");
    close_world(&w);
    for (int m = 0; m < COUNT(methods); m++) { /* into any method, and near */
        open_world(&w, f, methods[m], "bf16", 1, 1);
        f->notices.n = 0;
        must(ebb_sequence_load(w.engine, a, NULL, &id, &error), &error);
        assert_int_equal(f->notices.n, 1);
        assert_non_null(strstr(f->notices.last, "FP32 imported into state"));
        assert_non_null(strstr(f->notices.last, methods[m]));
        go_on(w.engine, id, 9, 10, &run);
        double d = 0, s = 0;
        for (int i = 0; i < ROW; i++) {
            d += pow(run.logits[9 * ROW + i] - plain.logits[9 * ROW + i], 2);
            s += pow(plain.logits[9 * ROW + i], 2);
        }
        if (!(d < 0.01 * s)) fail_msg("%s: logits %g from FP32", methods[m], sqrt(d / s));
        must(ebb_sequence_export(w.engine, id, b, &error), &error); /* and out again */
        close_world(&w);
        open_world(&w, f, "leap8", "fp16", 1, 1);
        f->notices.n = 0;
        must(ebb_sequence_load(w.engine, b, NULL, &id, &error), &error);
        assert_int_equal(f->notices.n, 1);
        close_world(&w);
    }
}

/* ---- refusals ---- */

static void refused(ebb_status status, ebb_status expected, const ebb_error *error, const char *part) {
    if (status != expected)
        fail_msg("%s instead of %s: %s", ebb_status_name(status), ebb_status_name(expected), error->text);
    if (part && !strstr(error->text, part)) fail_msg("'%s' does not say '%s'", error->text, part);
}

static void write_bytes(const char *path, const uint8_t *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) abort();
}

static void test_refusals(void **state) {
    fixture *f = *state;
    world w;
    ebb_error error;
    int32_t id, other = -7;
    char a[160], none[200], bad[160];
    path_of(f, "a.ebb", a), path_of(f, "bad.ebb", bad);
    snprintf(none, sizeof none, "%s/none/c.ebb", f->folder);
    toy_make(f->folder, &TOY);
    open_world(&w, f, "leap8", "bf16", 2, 1);
    id = start(w.engine, &warm);
    must(ebb_sequence_save(w.engine, id, a, &error), &error);
    refused(ebb_sequence_save(w.engine, id, none, &error), EBB_BAD_FILE, &error, "c.ebb.tmp");
    refused(ebb_sequence_save(w.engine, 1, bad, &error), EBB_BAD_ARGUMENT, &error, "no open sequence 1");
    refused(ebb_sequence_save(w.engine, id, f->folder, &error), EBB_BAD_FILE, &error, f->folder); /* a directory */
    snprintf(none, sizeof none, "%s.tmp", f->folder);
    assert_false(file_exists(none)); /* nothing half-written stays */
    snprintf(none, sizeof none, "%s.tmp", a);
    assert_false(file_exists(none));
    refused(ebb_sequence_load(w.engine, none, NULL, &other, &error), EBB_BAD_FILE, &error, none);
    size_t n;
    uint8_t *good = file_bytes(a, &n);
    for (size_t at = 0; at < n; at += at < 400 ? 1 : 61) { /* a flipped byte, a cut */
        good[at] ^= 0x10;
        write_bytes(bad, good, n);
        good[at] ^= 0x10;
        ebb_status status = ebb_sequence_load(w.engine, bad, NULL, &other, &error);
        if (status != EBB_BAD_FILE && status != EBB_UNSUPPORTED) fail_msg("byte %zu: %s", at, ebb_status_name(status));
        write_bytes(bad, good, at);
        refused(ebb_sequence_load(w.engine, bad, NULL, &other, &error), EBB_BAD_FILE, &error, "bad.ebb: ");
    }
    assert_int_equal(other, -7);
    good[8] = 9;
    write_bytes(bad, good, n);
    refused(ebb_sequence_load(w.engine, bad, NULL, &other, &error), EBB_UNSUPPORTED, &error, "version 9");
    free(good);
    must(ebb_sequence_load(w.engine, a, NULL, &other, &error), &error); /* its slot was never lost */
    close_world(&w);

    open_world(&w, f, "int8", "bf16", 1, 1);
    refused(ebb_sequence_load(w.engine, a, NULL, &other, &error), EBB_BAD_ARGUMENT, &error, "leap8:p=16,bits=8,r=4");
    refused(ebb_sequence_load(w.engine, a, NULL, &other, &error), EBB_BAD_ARGUMENT, &error, "int8:p=1,format=int8");
    must(ebb_sequence_open(w.engine, &warm, &other, &error), &error); /* nor here */
    close_world(&w);
    open_world(&w, f, "leap8", "fp32", 1, 1);
    refused(ebb_sequence_load(w.engine, a, NULL, &other, &error), EBB_BAD_ARGUMENT, &error, "bf16:format=bf16");
    close_world(&w);
    ebb_engine_config small = {.size = sizeof small, .state = "leap8", .max_tokens = 20};
    w.model = open_ok(f);
    must(ebb_engine_open(w.model, &small, &w.engine, &error), &error);
    refused(ebb_sequence_load(w.engine, a, NULL, &other, &error), EBB_BAD_ARGUMENT, &error, "21 tokens");
    close_world(&w);
    toy fp32 = TOY; /* the same numbers as other tensors: another model */
    fp32.type = EBB_FP32;
    toy_make(f->folder, &fp32);
    open_world(&w, f, "leap8", "bf16", 1, 1);
    refused(ebb_sequence_load(w.engine, a, NULL, &other, &error), EBB_BAD_ARGUMENT, &error, "belongs to model");
    close_world(&w);
}

/* The model's hash does not depend on shards, and does on a weight. */
static void test_model_hash(void **state) {
    fixture *f = *state;
    toy t = TOY;
    toy_make(f->folder, &t);
    ebb_model *m = open_ok(f);
    const uint64_t hash = ebb_model_describe(m)->hash;
    assert_true(hash != 0);
    ebb_model_close(m);
    t.shards = 3;
    toy_make(f->folder, &t);
    m = open_ok(f);
    assert_true(ebb_model_describe(m)->hash == hash);
    ebb_model_close(m);
    t.shards = 1;
    toy_make(f->folder, &t);
    char path[160];
    size_t n;
    path_of(f, "model.safetensors", path);
    uint8_t *bytes = file_bytes(path, &n);
    bytes[n - 1] ^= 1; /* the last weight of the last tensor */
    write_bytes(path, bytes, n);
    free(bytes);
    m = open_ok(f);
    assert_true(ebb_model_describe(m)->hash != hash);
    ebb_model_close(m);
}

/* Written by other rows: loaded, with one notice that names both. */
static void test_numerics(void **state) {
    fixture *f = *state;
    world w;
    ebb_error error;
    int32_t id;
    char a[160];
    path_of(f, "a.ebb", a);
    toy_make(f->folder, &TOY);
    if (!(ebb_device_features(f->device) & EBB_CPU_AVX2)) skip();
    must(try_open(&w, f, "leap8", "bf16", "ref", 1, 1, &error), &error);
    id = start(w.engine, &warm);
    must(ebb_sequence_save(w.engine, id, a, &error), &error);
    close_world(&w);
    must(try_open(&w, f, "leap8", "bf16", "ref", 1, 1, &error), &error);
    f->notices.n = 0;
    must(ebb_sequence_load(w.engine, a, NULL, &id, &error), &error);
    assert_int_equal(f->notices.n, 0);
    close_world(&w);
    must(try_open(&w, f, "leap8", "bf16", "avx2", 1, 1, &error), &error);
    must(ebb_sequence_load(w.engine, a, NULL, &id, &error), &error);
    assert_int_equal(f->notices.n, 1);
    assert_non_null(strstr(f->notices.last, "delta ref"));
    assert_non_null(strstr(f->notices.last, "delta avx2"));
    course c;
    go_on(w.engine, id, 0, 3, &c);
    close_world(&w);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)
    const struct CMUnitTest tests[] = {
        TEST(test_every_phase), TEST(test_two_turns), TEST(test_sampling),   TEST(test_fork),     TEST(test_rollback),
        TEST(test_fp32),        TEST(test_refusals),  TEST(test_model_hash), TEST(test_numerics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
