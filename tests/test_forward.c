/* tests/test_forward.c: the invariances of the forward pass, its taps and its refusals, on a toy model. */
#include "toy_session.h"

enum { DECODED = 300 }; /* first row of the logits of decode steps, behind those of the prompt */
static const char *const methods[][2] = {{"fp32", "fp32"}, {"leap8", "bf16"}};

/* Sequences of uneven lengths, one empty, one padding, in one batch: each gets the bits that it gets alone. */
static void a_batch_is_its_sequences_alone(void **state) {
    fixture *f = *state;
    static session alone, batch;
    static const int32_t slots[SLOTS] = {3, 0, -1, 4, 1}, cu[SLOTS + 1] = {0, 70, 70, 75, 76, 206};
    static const int64_t zeros[SLOTS];
    int32_t ids[256] = {0};
    int64_t want[256], pos[SLOTS];
    ebb_error error;
    toy_make(f->folder, &TOY);
    for (int32_t m = 0; m < COUNT(methods); m++) {
        session_open(&alone, f->device, open_ok(f), methods[m][0], methods[m][1], (ebb_tap){0});
        session_open(&batch, f->device, open_ok(f), methods[m][0], methods[m][1], (ebb_tap){0});
        ebb_batch b = {.seqs = SLOTS, .tokens = cu[SLOTS], .slot = slots, .cu = cu, .pos = zeros};
        for (int64_t t = 0; t < b.tokens; t++) want[t] = t;
        for (int32_t i = 0; i < SLOTS; i++)
            for (int32_t t = cu[i]; t < cu[i + 1]; t++) ids[t] = id_at(i, t - cu[i]);
        must(ebb_forward(batch.runner, EBB_PREFILL, &b, ids, want, b.tokens, batch.logits, &error), &error);
        for (int32_t i = 0; i < SLOTS; i++) {
            if (slots[i] < 0 || cu[i + 1] == cu[i]) continue;
            feed(&alone, EBB_PREFILL, i, 0, 0, cu[i + 1] - cu[i], alone.logits);
            same_bits(alone.logits, batch.logits + cu[i] * TOY_VOCAB, cu[i + 1] - cu[i]);
            /* decode alone, so that the slot of `alone` can be used again */
            for (int32_t t = cu[i + 1] - cu[i], end = t + 20; t < end; t++)
                feed(&alone, EBB_STEP, i, 0, t, 1, alone.logits + (DECODED + 20 * i + t - (end - 20)) * TOY_VOCAB);
        }
        /* the same decode steps in a batch: the order of the sequences turns with every step */
        for (int32_t step = 0; step < 20; step++) {
            static const int32_t one_each[] = {0, 1, 2, 3};
            static const int32_t live[] = {0, 3, 4};
            int32_t order[3], at[3];
            for (int32_t j = 0; j < 3; j++) {
                int32_t i = live[(j + step) % 3];
                order[j] = slots[i], at[j] = i;
                pos[j] = cu[i + 1] - cu[i] + step;
                ids[j] = id_at(i, pos[j]);
            }
            ebb_batch d = {.seqs = 3, .tokens = 3, .slot = order, .cu = one_each, .pos = pos};
            must(ebb_forward(batch.runner, EBB_STEP, &d, ids, (int64_t[]){2, 0, 1}, 3, batch.logits, &error), &error);
            for (int32_t j = 0; j < 3; j++)
                same_bits(alone.logits + (DECODED + 20 * at[j] + step) * TOY_VOCAB,
                          batch.logits + (j + 1) % 3 * TOY_VOCAB, 1);
        }
        session_close(&alone);
        session_close(&batch);
    }
}

static void a_cut_prompt_is_the_whole(void **state) {
    fixture *f = *state;
    enum { N = 3 * EBB_GRID + 41 };
    static session whole, cut;
    static const int64_t cuts[][5] = {{0, EBB_GRID, 2 * EBB_GRID, 3 * EBB_GRID, N}, {0, 2 * EBB_GRID, N, N, N}};
    toy_make(f->folder, &TOY);
    for (int32_t m = 0; m < COUNT(methods); m++) {
        session_open(&whole, f->device, open_ok(f), methods[m][0], methods[m][1], (ebb_tap){0});
        session_open(&cut, f->device, open_ok(f), methods[m][0], methods[m][1], (ebb_tap){0});
        feed(&whole, EBB_PREFILL, 1, 2, 0, N, whole.logits);
        for (int32_t c = 0; c < COUNT(cuts); c++) {
            for (int32_t i = 0; i < 4; i++)
                feed(&cut, EBB_PREFILL, 1, c, cuts[c][i], cuts[c][i + 1] - cuts[c][i],
                     cut.logits + cuts[c][i] * TOY_VOCAB);
            same_bits(whole.logits, cut.logits, N);
        }
        session_close(&whole);
        session_close(&cut);
    }
}

/* A step of several tokens gives the bits of one token a step, and prefill agrees with both. */
static void steps_of_many_tokens(void **state) {
    fixture *f = *state;
    static session one, many;
    toy_make(f->folder, &TOY);
    session_open(&one, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    session_open(&many, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    feed(&one, EBB_PREFILL, 2, 0, 0, 1, one.logits);
    feed(&many, EBB_PREFILL, 2, 0, 0, 1, many.logits);
    for (int64_t t = 1; t < 33; t++) feed(&one, EBB_STEP, 2, 0, t, 1, one.logits + t * TOY_VOCAB);
    for (int64_t t = 1; t < 33; t += STEP) feed(&many, EBB_STEP, 2, 0, t, STEP, many.logits + t * TOY_VOCAB);
    same_bits(one.logits, many.logits, 33);
    feed(&many, EBB_PREFILL, 2, 1, 0, 33, many.logits);
    for (int32_t i = 0; i < 33 * TOY_VOCAB; i++)
        if (fabsf(one.logits[i] - many.logits[i]) > 1e-4f) fail_msg("logit %d differs", i);
    session_close(&one);
    session_close(&many);
}

/* ---- taps and refusals ---- */

typedef struct tapped {
    int32_t n;
    struct {
        int32_t layer;
        ebb_tap_point point;
        int64_t rows, width;
    } seen[64];
    bool wipe; /* set the logits to zero */
} tapped;

static void on_tap(void *ctx, int32_t layer, ebb_tap_point point, ebb_tensor *t) {
    tapped *p = ctx;
    assert_true(p->n < COUNT(p->seen));
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->type, EBB_FP32);
    for (int64_t r = 0; r < t->shape[0]; r++)
        for (int64_t c = 0; c < t->shape[1]; c++) {
            float *x = (float *)t->data + r * t->stride[0] + c * t->stride[1];
            assert_true(isfinite(*x));
            if (p->wipe && point == EBB_TAP_LOGITS) *x = 0;
        }
    p->seen[p->n].layer = layer;
    p->seen[p->n].point = point;
    p->seen[p->n].rows = t->shape[0];
    p->seen[p->n++].width = t->shape[1];
}

static void taps(void **state) {
    fixture *f = *state;
    static session s;
    tapped p = {0};
    const int64_t qkv[] = {160, 192}, mixed[] = {TOY_HEADS * TOY_VALUE_DIM, TOY_Q_HEADS * TOY_HEAD_DIM};
    int32_t slot = 0, cu[] = {0, 3}, ids[] = {1, 2, 3}, at = 0;
    int64_t pos = 0, want[] = {2};
    ebb_error error;
    toy_make(f->folder, &TOY);
    session_open(&s, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){&p, on_tap});
    const ebb_batch b = {.seqs = 1, .tokens = 3, .slot = &slot, .cu = cu, .pos = &pos};
    must(ebb_forward(s.runner, EBB_PREFILL, &b, ids, want, 1, s.logits, &error), &error);
#define SEEN(l, p_, r, w)                                                                        \
    assert_true(p.seen[at].layer == (l) && p.seen[at].point == (p_) && p.seen[at].rows == (r) && \
                p.seen[at].width == (w)),                                                        \
        at++
    SEEN(-1, EBB_TAP_EMBED, 3, TOY_HIDDEN);
    for (int32_t i = 0; i < TOY_LAYERS; i++) {
        SEEN(i, EBB_TAP_MIXER_IN, 3, TOY_HIDDEN);
        SEEN(i, EBB_TAP_QKV, 3, qkv[i % 2]);
        if (i % 2) {
            SEEN(i, EBB_TAP_Q, 3, TOY_Q_HEADS * TOY_HEAD_DIM);
            SEEN(i, EBB_TAP_K, 3, TOY_KV_HEADS * TOY_HEAD_DIM);
            SEEN(i, EBB_TAP_V, 3, TOY_KV_HEADS * TOY_HEAD_DIM);
        }
        SEEN(i, EBB_TAP_MIXER_OUT, 3, mixed[i % 2]);
        SEEN(i, EBB_TAP_RESIDUAL, 3, TOY_HIDDEN);
    }
    SEEN(-1, EBB_TAP_FINAL, 1, TOY_HIDDEN);
    SEEN(-1, EBB_TAP_LOGITS, 1, TOY_VOCAB);
#undef SEEN
    assert_int_equal(p.n, at);
    p = (tapped){.wipe = true};
    must(ebb_forward(s.runner, EBB_PREFILL, &b, ids, want, 1, s.logits, &error), &error);
    for (int32_t i = 0; i < TOY_VOCAB; i++) assert_true(s.logits[i] == 0);
    p = (tapped){0}; /* nothing wanted: no head */
    must(ebb_forward(s.runner, EBB_PREFILL, &b, ids, NULL, 0, NULL, &error), &error);
    assert_int_equal(p.seen[p.n - 1].point, EBB_TAP_RESIDUAL);
    session_close(&s);
}

/* ---- shadows ---- */

typedef struct shadowed {
    int32_t calls[2];
    float apart[2]; /* largest difference of a shadow's output from the runner's own */
} shadowed;

static void on_shadow(void *ctx, int32_t layer, int32_t pool, const ebb_tensor *own, const ebb_tensor *shadow) {
    shadowed *p = ctx;
    assert_true(layer % 2 == 0 && pool >= 0 && pool < 2); /* the toy's even layers are delta layers */
    assert_int_equal(own->shape[0] * own->shape[1] * own->shape[2],
                     shadow->shape[0] * shadow->shape[1] * shadow->shape[2]);
    p->calls[pool]++;
    for (int64_t i = 0; i < own->shape[0] * own->stride[0]; i++) {
        float apart = fabsf(((const float *)own->data)[i] - ((const float *)shadow->data)[i]);
        if (!(apart <= p->apart[pool])) p->apart[pool] = apart;
    }
}

static ebb_state_pool *pool_like(fixture *f, const session *s, const char *method) {
    ebb_error error;
    ebb_state_spec spec;
    ebb_state_pool *pool = NULL;
    must(ebb_state_parse(method, &spec, &error), &error);
    ebb_state_pool_config c = {.size = sizeof c,
                               .spec = &spec,
                               .layers = ebb_model_state_layers(s->model),
                               .n_layers = ebb_model_describe(s->model)->state_layers,
                               .slots = SLOTS,
                               .max_new = STEP};
    must(ebb_state_pool_open(f->device, &c, &pool, &error), &error);
    return pool;
}

/* Shadows see the inputs of the run and change none of its bits: an fp32 shadow of an fp32 run is the run itself, an
 * int4 shadow is near it and not equal. */
static void shadows(void **state) {
    fixture *f = *state;
    enum { N = 40 };
    static session plain, s;
    shadowed p = {0};
    ebb_error error;
    toy_make(f->folder, &TOY);
    session_open(&plain, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    session_open(&s, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    ebb_state_pool *pools[2] = {pool_like(f, &s, "fp32"), pool_like(f, &s, "int4")};
    ebb_runner_config rc = {.size = sizeof rc,
                            .state = s.state,
                            .kv = s.kv,
                            .max_seqs = SLOTS,
                            .max_new = STEP,
                            .max_tokens = MAX_TOKENS,
                            .shadow = {pools, 2, &p, on_shadow}};
    ebb_runner_close(s.runner);
    must(ebb_runner_open(s.model, &rc, &s.runner, &error), &error);
    feed(&plain, EBB_PREFILL, 0, 1, 0, N, plain.logits);
    feed(&s, EBB_PREFILL, 0, 1, 0, N, s.logits);
    for (int64_t t = N; t < 2 * N; t += STEP) {
        feed(&plain, EBB_STEP, 0, 1, t, STEP, plain.logits + t * TOY_VOCAB);
        feed(&s, EBB_STEP, 0, 1, t, STEP, s.logits + t * TOY_VOCAB);
    }
    same_bits(plain.logits, s.logits, 2 * N);
    assert_int_equal(p.calls[0], (1 + N / STEP) * ebb_model_describe(s.model)->state_layers);
    assert_int_equal(p.calls[1], p.calls[0]);
    assert_true(p.apart[0] == 0);
    assert_true(p.apart[1] > 1e-4f && p.apart[1] < 2);

    ebb_runner *r = NULL;
    rc.shadow.n = -1;
    assert_int_equal(ebb_runner_open(s.model, &rc, &r, &error), EBB_BAD_ARGUMENT);
    rc.shadow = (ebb_shadow){(ebb_state_pool *const[]){NULL}, 1, NULL, NULL};
    assert_int_equal(ebb_runner_open(s.model, &rc, &r, &error), EBB_BAD_ARGUMENT);
    assert_null(r);
    for (int32_t i = 0; i < 2; i++) ebb_state_pool_close(pools[i]);
    session_close(&plain);
    session_close(&s);
}

static void bad_batches(void **state) {
    fixture *f = *state;
    static session s;
    int32_t slots[] = {0, 1, 2, 3, 4, 0}, cu[] = {0, 1, 2, 3, 4, 5, 6}, ids[MAX_TOKENS + 1] = {0};
    int64_t pos[6] = {0}, want[] = {0};
    ebb_error error;
    toy_make(f->folder, &TOY);
    session_open(&s, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
#define REFUSED(words, ...)                                                                                         \
    do {                                                                                                            \
        ebb_batch b = {.seqs = 2, .tokens = 2, .slot = slots, .cu = cu, .pos = pos};                                \
        __VA_ARGS__;                                                                                                \
        assert_int_equal(ebb_forward(s.runner, EBB_PREFILL, &b, ids, want, 1, s.logits, &error), EBB_BAD_ARGUMENT); \
        if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);                      \
    } while (0)
    REFUSED("batch of 6 sequences", b.seqs = 6, b.tokens = 6);
    REFUSED("batch of 1025 tokens", b.tokens = MAX_TOKENS + 1);
    REFUSED("cu runs from 0 to 2, expected 0 to 3", b.tokens = 3);
    REFUSED("has id 64; 0 .. 63 is expected", ids[1] = TOY_VOCAB);
    REFUSED("has id -1", ids[1] = -1);
    ids[1] = 0;
    REFUSED("cu falls at sequence 1", b.cu = (int32_t[]){0, 3, 2});
    REFUSED("sequence 1 is at position -1", b.pos = (int64_t[]){0, -1});
    REFUSED("row 2 are wanted", want[0] = 2);
    want[0] = 0;
    REFUSED("has slot 5", b.slot = (int32_t[]){0, SLOTS});
    REFUSED("without slot, cu or pos", b.pos = NULL);
#undef REFUSED
    const ebb_batch none = {.seqs = 1, .tokens = 0, .slot = slots, .cu = (int32_t[]){0, 0}, .pos = pos};
    must(ebb_forward(s.runner, EBB_PREFILL, &none, NULL, NULL, 0, NULL, &error), &error);
    ebb_runner *r = NULL;
    ebb_runner_config rc = {
        .size = sizeof rc, .state = s.state, .kv = s.kv, .max_seqs = 1, .max_new = 1, .max_tokens = 0};
    assert_int_equal(ebb_runner_open(s.model, &rc, &r, &error), EBB_BAD_ARGUMENT);
    rc.max_tokens = 1, rc.algorithm = "mmx";
    assert_int_equal(ebb_runner_open(s.model, &rc, &r, &error), EBB_UNSUPPORTED);
    rc.algorithm = "ref", rc.state = NULL;
    assert_int_equal(ebb_runner_open(s.model, &rc, &r, &error), EBB_BAD_ARGUMENT);
    rc.state = s.state;
    must(ebb_runner_open(s.model, &rc, &r, &error), &error);
    assert_non_null(strstr(ebb_runner_rows(r), "delta ref, attention ref"));
    ebb_runner_close(r);
    session_close(&s);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_batch_is_its_sequences_alone),
        TEST(a_cut_prompt_is_the_whole),
        TEST(steps_of_many_tokens),
        TEST(taps),
        TEST(shadows),
        TEST(bad_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
