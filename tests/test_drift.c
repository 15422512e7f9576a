/* tests/test_drift.c: measuring the drift of states: exact where it must be, equal to a computation by other means, and
 * able to see one wrong bit. */
#include "toy_session.h"

#include "model/model_int.h"

enum { SEQS = 2, TOKENS = 100, HEADS = 2 * TOY_HEADS, LIVE_MAX = 8 };
static const char *const some[] = {"fp32", "bf16", "int4", "leap8:r=2,p=8", "fp32-w"};

typedef struct inputs {
    int32_t ids[SEQS * TOKENS];
    ebb_drift_config config;
} inputs;

static void fill(inputs *in, const char *const *methods, int32_t n) {
    for (int32_t s = 0; s < SEQS; s++)
        for (int32_t t = 0; t < TOKENS; t++) in->ids[s * TOKENS + t] = id_at(s, t);
    in->config = (ebb_drift_config){
        .size = sizeof in->config, .methods = methods, .n_methods = n, .ids = in->ids, .seqs = SEQS, .tokens = TOKENS};
}

static const ebb_drift_cell *cell(const ebb_drift *d, int64_t point, int32_t method, int32_t head) {
    return &d->cells[(point * d->methods + method) * d->heads + head];
}

static ebb_drift *run_ok(ebb_model *model, const ebb_drift_config *config) {
    ebb_error error;
    ebb_drift *d = NULL;
    must(ebb_drift_run(model, config, &d, &error), &error);
    assert_non_null(d);
    return d;
}

static void fp32_is_exact(void **state) {
    fixture *f = *state;
    static const int64_t positions[] = {1, 2, 4, 8, 16, 32, 64, 100};
    inputs in;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    fill(&in, some, COUNT(some));
    ebb_drift *d = run_ok(model, &in.config);
    assert_int_equal(d->points, COUNT(positions));
    assert_int_equal(d->heads, HEADS);
    assert_int_equal(d->packed[0], 2 * TOY_HEADS * TOY_KEY_DIM * TOY_VALUE_DIM * 4);
    assert_non_null(strstr(d->rows, "delta"));
    for (int32_t h = 0; h < HEADS; h++) {
        assert_int_equal(d->head[h].layer, h < TOY_HEADS ? 0 : 2);
        assert_int_equal(d->head[h].head, h % TOY_HEADS);
        assert_true(d->head[h].decay > 0 && d->head[h].decay < 1);
        for (int64_t p = 0; p < d->points; p++) {
            assert_int_equal(d->position[p], positions[p]);
            const ebb_drift_cell *exact = cell(d, p, 0, h);
            assert_true(exact->state == 0 && exact->state_error == 0 && exact->output_error == 0);
            assert_true(exact->state_norm > 0 && exact->output_norm > 0);
            assert_true(cell(d, p, 1, h)->state > 0 && cell(d, p, 1, h)->state < 0.02);
            assert_true(cell(d, p, 2, h)->state > cell(d, p, 1, h)->state);
            assert_true(cell(d, p, 4, h)->state < 1e-5); /* another order of sums, no rounding */
        }
    }
    assert_true(d->head[0].decay != d->head[1].decay);
    ebb_drift_free(d);
    ebb_model_close(model);
}

/* ---- by other means: token by token, one sequence at a time ---- */

typedef struct sums {
    double error[HEADS], norm[HEADS];
} sums;

static void on_outputs(void *ctx, int32_t layer, int32_t pool, const ebb_tensor *own, const ebb_tensor *shadow) {
    sums *s = ctx;
    (void)pool;
    for (int32_t i = 0; i < TOY_HEADS * TOY_VALUE_DIM; i++) {
        const double o = ((const float *)own->data)[i], q = ((const float *)shadow->data)[i];
        s->error[layer / 2 * TOY_HEADS + i / TOY_VALUE_DIM] += (q - o) * (q - o);
        s->norm[layer / 2 * TOY_HEADS + i / TOY_VALUE_DIM] += o * o;
    }
}

static void read_state(ebb_device *device, const ebb_state_pool *pool, int32_t layer, int32_t slot, int64_t pos,
                       float *S) {
    ebb_error error;
    ebb_plan plan = {.size = sizeof plan};
    ebb_queue *queue = NULL;
    const ebb_delta_args args = {
        .size = sizeof args, .s = *ebb_state_pool_view(pool, layer), .b = {.seqs = 1, .slot = &slot, .pos = &pos}};
    must(ebb_delta_plan(device, &args.s, NULL, 0, 1, 1, 1, &plan, &error), &error);
    must(ebb_queue_open(device, plan.scratch, &queue, &error), &error);
    must(ebb_delta_read(queue, &plan, &args, S, &error), &error);
    ebb_queue_close(queue);
}

static double distance(const float *a, const float *b, double *norm) {
    double error = 0;
    *norm = 0;
    for (int32_t i = 0; i < TOY_KEY_DIM * TOY_VALUE_DIM; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        *norm += (double)b[i] * (double)b[i];
    }
    return error;
}

static void near(double a, double b) { assert_true(fabs(a - b) <= 1e-9 * fabs(b)); }

/* The whole measurement once more; and bf16 after one token is the reference rounded. */
static void agrees_with_token_by_token(void **state) {
    fixture *f = *state;
    static float S[TOY_HEADS * TOY_KEY_DIM * TOY_VALUE_DIM], Q[TOY_HEADS * TOY_KEY_DIM * TOY_VALUE_DIM];
    static session s;
    static const char *const methods[] = {"bf16", "leap8:r=2,p=8"};
    double drift[2][HEADS] = {{0}};
    inputs in;
    ebb_error error;
    toy_make(f->folder, &TOY);
    session_open(&s, f->device, open_ok(f), "fp32", "bf16", (ebb_tap){0});
    fill(&in, methods, 2);
    in.config.every = 37; /* 37, 74, 100 */
    ebb_drift *d = run_ok(s.model, &in.config);
    assert_int_equal(d->points, 3);
    in.config.every = 1;
    ebb_drift *first = run_ok(s.model, &in.config);
    assert_int_equal(first->points, TOKENS);
    for (int32_t m = 0; m < 2; m++) {
        sums out = {0};
        ebb_state_spec spec;
        ebb_state_pool *pool = NULL;
        must(ebb_state_parse(methods[m], &spec, &error), &error);
        const ebb_state_pool_config pc = {.size = sizeof pc,
                                          .spec = &spec,
                                          .layers = ebb_model_state_layers(s.model),
                                          .n_layers = 2,
                                          .slots = SLOTS,
                                          .max_new = STEP};
        must(ebb_state_pool_open(f->device, &pc, &pool, &error), &error);
        ebb_runner_config rc = {.size = sizeof rc,
                                .state = s.state,
                                .kv = s.kv,
                                .max_seqs = 1,
                                .max_new = STEP,
                                .max_tokens = STEP,
                                .shadow = {&pool, 1, &out, on_outputs}};
        ebb_runner_close(s.runner);
        must(ebb_runner_open(s.model, &rc, &s.runner, &error), &error);
        for (int32_t q = 0; q < SEQS; q++)
            for (int64_t t = 0; t < 74; t++) {
                if (t == 37 && q == 0) memset(&out, 0, sizeof out);
                sums kept = out;
                feed(&s, EBB_STEP, q, q + 1, t, 1, s.logits);
                if (t < 37 && q > 0) out = kept; /* only the tokens of the second interval count */
                if (t == 0 && m == 0) {
                    double norm, wrong;
                    read_state(f->device, s.state, 0, q + 1, 1, S);
                    for (int32_t i = 0; i < COUNT(S); i++) Q[i] = bf16_to_float(float_to_bf16(S[i]));
                    wrong = distance(Q, S, &norm);
                    drift[0][0] += sqrt(wrong / norm) / SEQS;
                }
            }
        if (m == 0) near(cell(first, 0, 0, 0)->state, drift[0][0]);
        drift[0][0] = 0;
        for (int32_t layer = 0; layer < 2; layer++)
            for (int32_t q = 0; q < SEQS; q++) {
                read_state(f->device, s.state, layer, q + 1, 74, S);
                read_state(f->device, pool, layer, q + 1, 74, Q);
                for (int32_t h = 0; h < TOY_HEADS; h++) {
                    double norm, wrong = distance(Q + h * TOY_KEY_DIM * TOY_VALUE_DIM,
                                                  S + h * TOY_KEY_DIM * TOY_VALUE_DIM, &norm);
                    drift[m][layer * TOY_HEADS + h] += sqrt(wrong / norm) / SEQS;
                }
            }
        for (int32_t h = 0; h < HEADS; h++) {
            near(cell(d, 1, m, h)->state, drift[m][h]);
            near(cell(d, 1, m, h)->output_error, out.error[h]);
            near(cell(d, 1, m, h)->output_norm, out.norm[h]);
        }
        ebb_state_pool_close(pool);
    }
    /* where else it is measured changes nothing of a measurement */
    for (int32_t h = 0; h < 2 * HEADS; h++)
        assert_true(cell(d, 2, 0, h)->state == cell(first, TOKENS - 1, 0, h)->state);
    ebb_drift_free(d);
    ebb_drift_free(first);
    session_close(&s);
}

/* ---- one wrong bit ---- */

typedef struct meddler {
    uint8_t *pools[LIVE_MAX]; /* blocks as large as an fp32 pool, in the order they were taken */
    size_t bytes;
    int32_t n;
    int64_t when;
} meddler;

static void *take(void *ctx, size_t bytes, size_t align) {
    meddler *m = ctx;
    void *block = NULL;
    if (posix_memalign(&block, align, bytes)) return NULL;
    if (bytes == m->bytes && m->n < LIVE_MAX) m->pools[m->n++] = block;
    return block;
}

static void give(void *ctx, void *block, size_t bytes) {
    (void)ctx, (void)bytes;
    free(block);
}

/* Once, after some tokens: another sign in value head 1 of layer 0 of the second fp32 pool, the first shadow. */
static bool meddle(void *ctx, const char *what, int64_t done, int64_t total) {
    meddler *m = ctx;
    assert_string_equal(what, "drift");
    assert_int_equal(total, TOKENS * SEQS);
    if (done >= m->when && m->when > 0) {
        assert_int_equal(m->n, 2);
        for (int32_t i = 0; i < 4 * TOY_VALUE_DIM; i += 4) /* row 0 of that head */
            m->pools[1][TOY_KEY_DIM * TOY_VALUE_DIM * 4 + i + 3] ^= 0x80;
        m->when = 0;
    }
    return true;
}

static void a_wrong_bit_shows(void **state) {
    fixture *f = *state;
    static const char *const exact[] = {"fp32"};
    inputs in;
    ebb_error error;
    ebb_state_spec spec;
    meddler m = {.when = 32 * SEQS};
    toy_make(f->folder, &TOY);
    const ebb_device_config dc = {.size = sizeof dc, .threads = 2, .memory = {&m, take, give}};
    ebb_device *device = NULL;
    ebb_model *model = NULL;
    must(ebb_device_open("cpu", &dc, &device, &error), &error);
    must(ebb_model_open(device, f->folder, NULL, &model, &error), &error);
    must(ebb_state_parse("fp32", &spec, &error), &error);
    const ebb_state_pool_config pc = {.size = sizeof pc,
                                      .spec = &spec,
                                      .layers = ebb_model_state_layers(model),
                                      .n_layers = 2,
                                      .slots = SEQS,
                                      .max_new = EBB_MAX_NEW};
    m.bytes = ebb_state_pool_bytes(&pc, &error);
    fill(&in, exact, 1);
    in.config.every = 1;
    in.config.progress = (ebb_progress){&m, meddle};
    ebb_drift *d = run_ok(model, &in.config);
    assert_int_equal(m.when, 0);
    for (int64_t p = 0; p < d->points; p++)
        for (int32_t h = 0; h < HEADS; h++) {
            if (h == 1 && d->position[p] > 40) continue; /* the toy forgets it within some tokens */
            const bool wrong = h == 1 && d->position[p] > 32;
            assert_true((cell(d, p, 0, h)->state > 0) == wrong);
            assert_true((cell(d, p, 0, h)->output_error > 0) == wrong);
        }
    ebb_drift_free(d);
    ebb_model_close(model);
    ebb_device_close(device);
}

/* ---- positions, stopping, refusals ---- */

static void positions(void **state) {
    fixture *f = *state;
    static const char *const one[] = {"bf16"};
    static const int64_t per_decade[] = {1, 2, 3, 6, 10, 18, 32, 56, 100}, every[] = {30, 60, 90, 100};
    inputs in;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    fill(&in, one, 1);
    in.config.per_decade = 4;
    ebb_drift *d = run_ok(model, &in.config);
    assert_int_equal(d->points, COUNT(per_decade));
    assert_memory_equal(d->position, per_decade, sizeof per_decade);
    ebb_drift_free(d);
    in.config.per_decade = 0, in.config.every = 30;
    d = run_ok(model, &in.config);
    assert_int_equal(d->points, COUNT(every));
    assert_memory_equal(d->position, every, sizeof every);
    ebb_drift_free(d);
    in.config.every = INT64_MAX, in.config.tokens = 1, in.config.seqs = 0; /* 0: one */
    d = run_ok(model, &in.config);
    assert_int_equal(d->points, 1);
    assert_int_equal(d->position[0], 1);
    assert_int_equal(d->seqs, 1);
    ebb_drift_free(d);
    ebb_model_close(model);
}

static bool stop_at(void *ctx, const char *what, int64_t done, int64_t total) {
    (void)what, (void)total;
    return done < *(int64_t *)ctx;
}

/* What was measured before a stop is what the whole run measures there. */
static void stopping(void **state) {
    fixture *f = *state;
    inputs in;
    ebb_error error;
    int64_t limit = 64 * SEQS;
    ebb_drift *cut = NULL;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    fill(&in, some, COUNT(some));
    in.config.every = 80;
    in.config.progress = (ebb_progress){&limit, stop_at};
    assert_int_equal(ebb_drift_run(model, &in.config, &cut, &error), EBB_INTERRUPTED);
    assert_non_null(strstr(error.text, "64 of 100"));
    assert_int_equal(cut->points, 1);
    assert_int_equal(cut->position[0], 64);
    in.config.progress.report = NULL;
    in.config.every = 64;
    ebb_drift *whole = run_ok(model, &in.config);
    assert_int_equal(whole->points, 2);
    assert_memory_equal(whole->cells, cut->cells, (size_t)(cut->methods * cut->heads) * sizeof *cut->cells);
    ebb_drift_free(cut);
    limit = 0; /* before the first token */
    in.config.progress.report = stop_at;
    assert_int_equal(ebb_drift_run(model, &in.config, &cut, &error), EBB_INTERRUPTED);
    assert_int_equal(cut->points, 0);
    ebb_drift_free(cut);
    ebb_drift_free(whole);
    ebb_model_close(model);
}

static void refused(ebb_model *model, const ebb_drift_config *config, ebb_status code, const char *what) {
    ebb_error error;
    ebb_drift *d = (ebb_drift *)&error;
    assert_int_equal(ebb_drift_run(model, config, &d, &error), code);
    assert_null(d);
    if (!strstr(error.text, what)) fail_msg("'%s' does not name '%s'", error.text, what);
}

static void refusals(void **state) {
    fixture *f = *state;
    static const char *const bad[] = {"fp32", "int3"};
    inputs in;
    ebb_model stateless = {.info = {.architecture = "llama"}};
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    fill(&in, some, COUNT(some));
    ebb_drift_config c = in.config;
#define REFUSED(field, value, code, what) c = in.config, c.field = (value), refused(model, &c, code, what)
    REFUSED(size, 8, EBB_BAD_ARGUMENT, "ebb_drift_config.size");
    REFUSED(n_methods, 0, EBB_BAD_ARGUMENT, "0 state methods");
    REFUSED(n_methods, 65, EBB_BAD_ARGUMENT, "1 to 64");
    REFUSED(seqs, -1, EBB_BAD_ARGUMENT, "-1 sequences");
    REFUSED(tokens, 0, EBB_BAD_ARGUMENT, "0 tokens");
    REFUSED(tokens, 4097, EBB_BAD_ARGUMENT, "4096");
    REFUSED(ids, NULL, EBB_BAD_ARGUMENT, "tokens");
    REFUSED(every, -1, EBB_BAD_ARGUMENT, "every -1");
    REFUSED(per_decade, 1001, EBB_BAD_ARGUMENT, "1001");
    REFUSED(kv, "int3", EBB_BAD_ARGUMENT, "int3");
    REFUSED(algorithm, "abacus", EBB_UNSUPPORTED, "abacus");
#undef REFUSED
    c = in.config, c.methods = bad, c.n_methods = 2;
    refused(model, &c, EBB_BAD_ARGUMENT, "int3");
    in.ids[70] = TOY_VOCAB;
    refused(model, &in.config, EBB_BAD_ARGUMENT, "id 64");
    refused(&stateless, &in.config, EBB_UNSUPPORTED, "llama");
    ebb_model_close(model);
}

static void summaries(void **state) {
    (void)state;
    ebb_drift_cell cells[] = {{0, 0, 1, 0, 1}, {0.1, 4, 16, 9, 4}, {0.5, 12, 32, 0, 0}, {NAN, NAN, 1, 1, 0}};
    const ebb_drift d = {.methods = 1, .heads = 4, .points = 1, .cells = cells};
    ebb_drift_summary s;
    ebb_drift_summarize(&d, 0, 0, 0, 3, &s);
    near(s.state_mean, 0.2);
    near(s.state_rms, sqrt(16.0 / 49.0));
    assert_true(s.state_max == 0.5 && s.state_worst == 2);
    near(s.output_mean, 0.5);
    near(s.output_rms, sqrt(9.0 / 5.0));
    assert_true(s.output_max == 1.5 && s.output_worst == 1);
    ebb_drift_summarize(&d, 0, 0, 1, 3, &s);
    assert_true(isnan(s.state_mean) && isnan(s.state_rms) && isnan(s.state_max) && s.state_worst == 3);
    assert_true(isinf(s.output_mean) && isinf(s.output_max) && s.output_worst == 3);
}

/* The bundled model on prose: a write a window drifts less than a write a token, compensators less than none. */
static void the_bundled_model(void **state) {
    fixture *f = *state;
    enum { INT8, INT8_W, LEAP8, BF16, BF16_W, N = 256 };
    static const char *const methods[] = {"int8", "int8-w", "leap8", "bf16", "bf16-w"};
    ebb_error error;
    ebb_model *model = NULL;
    char *text = NULL;
    size_t bytes;
    int32_t *ids = NULL;
    int64_t count;
    double mean[COUNT(methods)];
    must(ebb_model_open(f->device, SOURCE_DIR "/models/tiny-gdn", NULL, &model, &error), &error);
    must(read_file(SOURCE_DIR "/models/eval/heldout_books.txt", 1 << 20, &text, &bytes, &error), &error);
    must(ebb_tokenize(ebb_model_tokenizer(model), text, bytes, false, &ids, &count, &error), &error);
    assert_true(count >= N);
    const ebb_drift_config c = {
        .size = sizeof c, .methods = methods, .n_methods = COUNT(methods), .ids = ids, .tokens = N, .every = N};
    ebb_drift *d = run_ok(model, &c);
    for (int32_t i = 0; i < COUNT(methods); i++) {
        ebb_drift_summary s;
        ebb_drift_summarize(d, 0, i, 0, d->heads, &s);
        mean[i] = s.state_mean;
    }
    assert_true(mean[LEAP8] < mean[INT8_W] && mean[INT8_W] < mean[INT8] && mean[BF16_W] < mean[BF16]);
    ebb_drift_free(d);
    free(ids), free(text);
    ebb_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_is_exact),     cmocka_unit_test(agrees_with_token_by_token),
        cmocka_unit_test(a_wrong_bit_shows), cmocka_unit_test(positions),
        cmocka_unit_test(stopping),          cmocka_unit_test(refusals),
        cmocka_unit_test(summaries),         cmocka_unit_test(the_bundled_model),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
