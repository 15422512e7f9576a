/* tests/toy_session.h: a folder for toy models, a device that counts notices, and a model in use over a pair of pools.
 */
#ifndef TESTS_TOY_SESSION_H
#define TESTS_TOY_SESSION_H

#define _GNU_SOURCE
#include "ebb/ebb.h"
#include "toy_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "must.h"

enum { MAX_TOKENS = 1024, SLOTS = 5, STEP = 4 };

typedef struct notices {
    int32_t n;
    char last[256];
} notices;

typedef struct fixture {
    char folder[64];
    notices notices;
    ebb_device *device;
} fixture;

static inline void on_notice(void *ctx, const char *sentence) {
    notices *n = ctx;
    n->n++;
    snprintf(n->last, sizeof n->last, "%s", sentence);
}

static inline int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    ebb_device_config config = {.size = sizeof config, .threads = 2, .log = {&f->notices, on_notice}};
    snprintf(f->folder, sizeof f->folder, "/tmp/ebb-test-XXXXXX");
    if (!mkdtemp(f->folder) || ebb_device_open("cpu", &config, &f->device, NULL)) return -1;
    *state = f;
    return 0;
}

static inline int teardown(void **state) {
    fixture *f = *state;
    toy_clear(f->folder);
    rmdir(f->folder);
    ebb_device_close(f->device);
    free(f);
    return 0;
}

static inline ebb_model *open_ok(fixture *f) {
    ebb_error error;
    ebb_model *model = NULL;
    must(ebb_model_open(f->device, f->folder, NULL, &model, &error), &error);
    assert_non_null(model);
    return model;
}

/* ---- a model in use ---- */

typedef struct session {
    ebb_model *model;
    ebb_state_pool *state;
    ebb_kv_pool *kv;
    ebb_runner *runner;
    float logits[MAX_TOKENS * TOY_VOCAB];
} session;

static inline void session_open(session *s, ebb_device *device, ebb_model *model, const char *state, const char *kv,
                                ebb_tap tap) {
    const ebb_model_info *info = ebb_model_describe(model);
    ebb_error error;
    ebb_state_spec state_spec;
    ebb_kv_spec kv_spec;
    must(ebb_state_parse(state, &state_spec, &error), &error);
    must(ebb_kv_parse(kv, &kv_spec, &error), &error);
    ebb_state_pool_config sc = {.size = sizeof sc,
                                .spec = &state_spec,
                                .layers = ebb_model_state_layers(model),
                                .n_layers = info->state_layers,
                                .slots = SLOTS,
                                .max_new = STEP};
    ebb_kv_pool_config kc = {.size = sizeof kc,
                             .spec = &kv_spec,
                             .layers = ebb_model_kv_layers(model),
                             .n_layers = info->kv_layers,
                             .slots = SLOTS,
                             .max_tokens = MAX_TOKENS};
    s->model = model;
    must(ebb_state_pool_open(device, &sc, &s->state, &error), &error);
    must(ebb_kv_pool_open(device, &kc, &s->kv, &error), &error);
    for (int32_t i = 0; i < SLOTS; i++) must(ebb_kv_pool_reserve(s->kv, i, MAX_TOKENS, &error), &error);
    ebb_runner_config rc = {.size = sizeof rc,
                            .state = s->state,
                            .kv = s->kv,
                            .max_seqs = SLOTS,
                            .max_new = STEP,
                            .max_tokens = MAX_TOKENS,
                            .tap = tap};
    must(ebb_runner_open(model, &rc, &s->runner, &error), &error);
}

static inline void session_close(session *s) {
    ebb_runner_close(s->runner);
    ebb_kv_pool_close(s->kv);
    ebb_state_pool_close(s->state);
    ebb_model_close(s->model);
}

static inline int32_t id_at(int32_t sequence, int64_t t) {
    return (int32_t)(mix64((uint64_t)sequence * 1000003u + (uint64_t)t) % TOY_VOCAB);
}

/* Tokens pos .. pos + n - 1 of one sequence in its own call; logits of all of them to `logits`. */
static inline void feed(session *s, ebb_pass pass, int32_t sequence, int32_t slot, int64_t pos, int64_t n,
                        float *logits) {
    int32_t ids[MAX_TOKENS], cu[] = {0, (int32_t)n};
    int64_t want[MAX_TOKENS];
    ebb_error error;
    for (int64_t t = 0; t < n; t++) ids[t] = id_at(sequence, pos + t), want[t] = t;
    const ebb_batch batch = {.seqs = 1, .tokens = n, .slot = &slot, .cu = cu, .pos = &pos};
    must(ebb_forward(s->runner, pass, &batch, ids, want, n, logits, &error), &error);
}

static inline void same_bits(const float *a, const float *b, int64_t rows) {
    for (int64_t i = 0; i < rows * TOY_VOCAB; i++) assert_true(isfinite(a[i]));
    assert_memory_equal(a, b, (size_t)(rows * TOY_VOCAB) * sizeof *a);
}

#endif
