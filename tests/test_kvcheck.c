/* tests/test_kvcheck.c: measuring KV stores: exact where it must be, equal to attention computed by hand, and the
 * metrics of LongBench against the packages it uses (data/make_longbench_golden.py). */
#include "toy_session.h"

#include "measure/heatmap.h"
#include "measure/longbench.h"

enum { TOKENS = 600, STEPS_LAST = 40, ATTENTION = 2 };

static int32_t ids[TOKENS];

static ebb_kvcheck_config config_of(const ebb_kv_choice *stores, int32_t n) {
    for (int32_t t = 0; t < TOKENS; t++) ids[t] = id_at(0, t);
    return (ebb_kvcheck_config){.size = sizeof(ebb_kvcheck_config),
                                .stores = stores,
                                .n_stores = n,
                                .ids = ids,
                                .tokens = TOKENS,
                                .steps = STEPS_LAST};
}

static ebb_kvcheck *run_ok(ebb_model *model, const ebb_kvcheck_config *config) {
    ebb_error error;
    ebb_kvcheck *check = NULL;
    must(ebb_kvcheck_run(model, config, &check, &error), &error);
    assert_non_null(check);
    return check;
}

static double rms(const ebb_kvcheck *c, int32_t store, int32_t layer, int32_t steps) {
    const ebb_kvcheck_cell *cell = &c->cell[(store * c->layers + layer) * 2 + steps];
    const int64_t tokens = steps ? STEPS_LAST : TOKENS - STEPS_LAST;
    assert_int_equal(cell->values, tokens * TOY_Q_HEADS * TOY_HEAD_DIM);
    assert_true(cell->norm > 0);
    return sqrt(cell->error / cell->norm);
}

/* ---- outputs of attention ---- */

static void stores_in_order(void **state) {
    fixture *f = *state;
    enum { EXACT, K8, K4, K2, SAGE, HYQUANT, PROMPT, KIVI, N };
    static const ebb_kv_choice stores[N] = {
        [EXACT] = {.kv = "fp32"},
        [K8] = {.kv = "k8v8"},
        [K4] = {.kv = "k4v4"},
        [K2] = {.kv = "k2v4"},
        [SAGE] = {.kv = "bf16", .prefill = "sage_w0"},
        [HYQUANT] = {.kv = "hyquant:window=64"},
        [PROMPT] = {.kv = "hyquant:window=64,select=prompt"},
        [KIVI] = {.kv = "kivi4"},
    };
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    const ebb_kvcheck_config config = config_of(stores, N);
    ebb_kvcheck *c = run_ok(model, &config);
    assert_int_equal(c->stores, N);
    assert_int_equal(c->layers, ATTENTION);
    assert_non_null(strstr(c->rows, "attention"));
    assert_null(c->mass);
    for (int32_t i = 0; i < ATTENTION; i++) {
        assert_int_equal(c->layer[i], 2 * i + 1);
        for (int32_t steps = 0; steps < 2; steps++) {
            assert_true(rms(c, EXACT, i, steps) == 0);
            assert_true(rms(c, K8, i, steps) > 0 && rms(c, K8, i, steps) < 0.02);
            assert_true(rms(c, K4, i, steps) > 2 * rms(c, K8, i, steps));
            assert_true(rms(c, K2, i, steps) > rms(c, K4, i, steps));
            assert_true(rms(c, HYQUANT, i, steps) < rms(c, K4, i, steps));
            assert_true(rms(c, KIVI, i, steps) > 0 && rms(c, KIVI, i, steps) < rms(c, K4, i, steps));
        }
        assert_true(rms(c, SAGE, i, 0) > rms(c, SAGE, i, 1)); /* generated tokens attend in full */
        assert_true(rms(c, PROMPT, i, 1) > 0);
    }
    ebb_kvcheck_free(c);
    ebb_model_close(model);
}

/* One layer's q, k and v as the taps give them. */
typedef struct tapped {
    int32_t layer;
    float q[TOKENS * TOY_Q_HEADS * TOY_HEAD_DIM];
    float k[TOKENS * TOY_KV_HEADS * TOY_HEAD_DIM], v[TOKENS * TOY_KV_HEADS * TOY_HEAD_DIM];
} tapped;

static void on_tap(void *ctx, int32_t layer, ebb_tap_point point, ebb_tensor *t) {
    tapped *p = ctx;
    if (layer != p->layer || point < EBB_TAP_Q) return;
    float *to = point == EBB_TAP_Q ? p->q : point == EBB_TAP_K ? p->k : p->v;
    assert_int_equal(t->shape[0], TOKENS);
    assert_int_equal(t->shape[1], (point == EBB_TAP_Q ? TOY_Q_HEADS : TOY_KV_HEADS) * TOY_HEAD_DIM);
    for (int64_t i = 0; i < TOKENS; i++)
        memcpy(to + i * t->shape[1], (const float *)t->data + i * t->stride[0], (size_t)t->shape[1] * sizeof *to);
}

static double weights[TOKENS];

static const float *q_at(const tapped *p, int32_t token, int32_t head) {
    return p->q + (token * TOY_Q_HEADS + head) * TOY_HEAD_DIM;
}

static const float *row_at(const float *rows, int32_t token, int32_t head) {
    return rows + (token * TOY_KV_HEADS + head) * TOY_HEAD_DIM;
}

static void soften(const tapped *p, int32_t token, int32_t head) {
    const int32_t kv = head / (TOY_Q_HEADS / TOY_KV_HEADS);
    double total = 0;
    for (int32_t j = 0; j <= token; j++) {
        double sum = 0;
        for (int32_t d = 0; d < TOY_HEAD_DIM; d++)
            sum += (double)q_at(p, token, head)[d] * (double)row_at(p->k, j, kv)[d];
        total += weights[j] = exp(sum / sqrt(TOY_HEAD_DIM));
    }
    for (int32_t j = 0; j <= token; j++) weights[j] /= total;
}

static void attend(const tapped *p, int32_t token, int32_t head, double out[TOY_HEAD_DIM]) {
    const int32_t kv = head / (TOY_Q_HEADS / TOY_KV_HEADS);
    soften(p, token, head);
    for (int32_t d = 0; d < TOY_HEAD_DIM; d++) {
        out[d] = 0;
        for (int32_t j = 0; j <= token; j++) out[d] += weights[j] * (double)row_at(p->v, j, kv)[d];
    }
}

static tapped exact, rounded;
static session in_use;

static void fill_tapped(fixture *f) {
    toy_make(f->folder, &TOY);
    exact.layer = 3;
    session_open(&in_use, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){&exact, on_tap});
    feed(&in_use, EBB_PREFILL, 0, 0, 0, TOKENS, in_use.logits);
    session_close(&in_use);
}

/* BF16 keys and values, everything else in FP64. */
static void equals_attention_by_hand(void **state) {
    fixture *f = *state;
    static const ebb_kv_choice store = {.kv = "bf16"};
    double error[2] = {0}, norm[2] = {0};
    fill_tapped(f);
    rounded = exact;
    for (int32_t i = 0; i < TOKENS * TOY_KV_HEADS * TOY_HEAD_DIM; i++) {
        rounded.k[i] = bf16_to_float(float_to_bf16(exact.k[i]));
        rounded.v[i] = bf16_to_float(float_to_bf16(exact.v[i]));
    }
    for (int32_t t = 0; t < TOKENS; t++)
        for (int32_t h = 0; h < TOY_Q_HEADS; h++) {
            double a[TOY_HEAD_DIM], b[TOY_HEAD_DIM];
            attend(&exact, t, h, a), attend(&rounded, t, h, b);
            for (int32_t d = 0; d < TOY_HEAD_DIM; d++) {
                error[t >= TOKENS - STEPS_LAST] += (a[d] - b[d]) * (a[d] - b[d]);
                norm[t >= TOKENS - STEPS_LAST] += a[d] * a[d];
            }
        }
    ebb_model *model = open_ok(f);
    const ebb_kvcheck_config config = config_of(&store, 1);
    ebb_kvcheck *c = run_ok(model, &config);
    for (int32_t i = 0; i < 2; i++) {
        assert_true(fabs(c->cell[2 + i].norm - norm[i]) < 1e-5 * norm[i]);
        assert_true(fabs(c->cell[2 + i].error - error[i]) < 1e-2 * error[i]);
    }
    ebb_kvcheck_free(c);
    ebb_model_close(model);
}

static void masses(void **state) {
    fixture *f = *state;
    double window = 0;
    fill_tapped(f);
    for (int32_t t = TOKENS - STEPS_LAST; t < TOKENS; t++)
        for (int32_t h = 0; h < TOY_Q_HEADS; h++) {
            soften(&exact, t, h);
            for (int32_t j = t - 127; j <= t; j++) window += weights[j] / (STEPS_LAST * TOY_Q_HEADS);
        }
    ebb_model *model = open_ok(f);
    ebb_kvcheck_config config = config_of(NULL, 0);
    config.mass = true;
    ebb_kvcheck *some = run_ok(model, &config);
    config.ratio = 1;
    ebb_kvcheck *all = run_ok(model, &config);
    assert_true(fabs(some->mass[2].window - window) < 1e-4);
    for (int32_t i = 0; i < ATTENTION * EBB_KVCHECK_WINDOWS; i++) {
        const ebb_kvcheck_mass *few = &some->mass[i], *most = &all->mass[i];
        assert_true(few->window == most->window);
        /* the windows begin below the last whole interval, which ends at 512: with all keys nothing is left */
        assert_true(fabs(most->window + most->segment - 1) < 1e-9);
        assert_true(few->segment > 0.02 * most->segment && few->segment < 0.5 * most->segment);
        assert_true(few->prompt > 0 && few->prompt < most->prompt && most->window + most->prompt < 1);
    }
    ebb_kvcheck_free(some);
    ebb_kvcheck_free(all);
    ebb_model_close(model);
}

/* ---- a text ---- */

static double nll_of(ebb_model *model, const ebb_kvcheck_config *config, float *nll, size_t *bytes) {
    ebb_error error;
    double sum = 0;
    must(ebb_kvcheck_nll(model, config, nll, bytes, &error), &error);
    for (int32_t t = 0; t < TOKENS - 1; t++) sum += (double)nll[t];
    return sum / (TOKENS - 1);
}

static void a_text(void **state) {
    fixture *f = *state;
    static const ebb_kv_choice stores[] = {{.kv = "fp32"}, {.kv = "k2v4"}, {.kv = "hyquant:select=prompt"}};
    static float a[TOKENS], b[TOKENS];
    size_t bytes, less;
    double mean, half;
    toy_make(f->folder, &TOY);
    session_open(&in_use, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    feed(&in_use, EBB_PREFILL, 0, 0, 0, TOKENS, in_use.logits);
    ebb_kvcheck_config config = config_of(stores, 1);
    nll_of(in_use.model, &config, a, &bytes);
    for (int32_t t = 0; t < TOKENS - 1; t++) {
        const float *row = in_use.logits + t * TOY_VOCAB;
        double total = 0;
        for (int32_t i = 0; i < TOY_VOCAB; i++) total += exp((double)(row[i] - row[ids[t + 1]]));
        assert_true(fabs((double)a[t] - log(total)) < 2e-3); /* the last tokens came in steps */
    }
    config.stores = &stores[1];
    nll_of(in_use.model, &config, b, &less);
    assert_true(less < bytes / 4);
    ebb_paired(a, b, TOKENS - 1, &mean, &half);
    assert_true(half > 0 && memcmp(a, b, sizeof a) != 0);
    config.stores = &stores[2];
    nll_of(in_use.model, &config, b, &less);
    for (int32_t t = 0; t < TOKENS - 1; t++) assert_true(isfinite(b[t]) && b[t] > 0);
    session_close(&in_use);
}

static bool never(void *ctx, const char *what, int64_t done, int64_t total) {
    (void)ctx, (void)what, (void)done, (void)total;
    return false;
}

static void refused(ebb_model *model, const ebb_kvcheck_config *config, ebb_status code, const char *what) {
    ebb_error error;
    ebb_kvcheck *check = (ebb_kvcheck *)&error;
    assert_int_equal(ebb_kvcheck_run(model, config, &check, &error), code);
    assert_null(check);
    if (!strstr(error.text, what)) fail_msg("'%s' does not name '%s'", error.text, what);
}

static void refusals(void **state) {
    fixture *f = *state;
    static const ebb_kv_choice fine = {.kv = "k4v4"}, bad = {.kv = "k3v3"}, odd = {.kv = "k4v4", .prefill = "quick"},
                               bits = {.kv = "kvtuner"};
    float nll[TOKENS];
    size_t bytes;
    ebb_error error;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    ebb_kvcheck_config c = config_of(&fine, 1);
#define REFUSED(field, value, code, what) c = config_of(&fine, 1), c.field = (value), refused(model, &c, code, what)
    REFUSED(size, 8, EBB_BAD_ARGUMENT, "ebb_kvcheck_config.size");
    REFUSED(n_stores, -1, EBB_BAD_ARGUMENT, "-1 KV stores");
    REFUSED(tokens, 1, EBB_BAD_ARGUMENT, "1 tokens");
    REFUSED(tokens, 5000, EBB_BAD_ARGUMENT, "4096");
    REFUSED(steps, TOKENS, EBB_BAD_ARGUMENT, "600 of 600");
    REFUSED(ratio, 1.5, EBB_BAD_ARGUMENT, "1.5");
    REFUSED(stores, &bad, EBB_BAD_ARGUMENT, "k3v3");
    REFUSED(stores, &odd, EBB_BAD_ARGUMENT, "quick");
    REFUSED(stores, &bits, EBB_BAD_ARGUMENT, "kv-bits");
    REFUSED(progress.report, never, EBB_INTERRUPTED, "0 of 2 layers");
    assert_int_equal(ebb_kvcheck_nll(model, &c, nll, &bytes, &error), EBB_INTERRUPTED);
#undef REFUSED
    ebb_model_close(model);
}

/* ---- statistics ---- */

static void statistics(void **state) {
    (void)state;
    double low, high, mean, half;
    const float a[] = {1, 2, 3, 4}, b[] = {2, 2, 4, 6};
    ebb_wilson(8, 10, &low, &high); /* .4902, .9433: Wilson 1927 */
    assert_true(fabs(low - 0.49016) < 1e-4 && fabs(high - 0.94332) < 1e-4);
    ebb_wilson(0, 10, &low, &high);
    assert_true(low == 0 && fabs(high - 0.27753) < 1e-4);
    ebb_wilson(0, 0, &low, &high);
    assert_true(low == 0 && high == 1);
    ebb_paired(a, b, 4, &mean, &half); /* 1, 0, 1, 2: deviation sqrt(2/3) */
    assert_true(fabs(mean - 1) < 1e-12 && fabs(half - 1.959963984540054 * sqrt(2.0 / 3 / 4)) < 1e-12);
    ebb_paired(a, b, 1, &mean, &half);
    assert_true(mean == 1 && isinf(half));
}

/* ---- answers and needles ---- */

static void answers(void **state) {
    fixture *f = *state;
    static const int32_t one[] = {33, 34, 35}, two[] = {40}, three[] = {7, 61, 2, 3, 5};
    static const ebb_prompt prompts[] = {{one, 3}, {two, 1}, {three, 5}};
    char *alone[3], *together[3];
    ebb_error error;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    ebb_answers_config c = {.size = sizeof c,
                            .store = {.kv = "k8v8", .prefill = "sage_w"},
                            .prompts = prompts,
                            .n = 3,
                            .batch = 1,
                            .max_answer = 9};
    must(ebb_answers(model, &c, alone, &error), &error);
    c.batch = 3;
    must(ebb_answers(model, &c, together, &error), &error);
    for (int32_t i = 0; i < 3; i++) {
        assert_string_equal(alone[i], together[i]);
        assert_int_equal(strlen(alone[i]), 9); /* ids below 64 are bytes of ASCII; 0 would be a shorter string */
        free(alone[i]), free(together[i]);
    }
    c.max_answer = 0;
    assert_int_equal(ebb_answers(model, &c, alone, &error), EBB_BAD_ARGUMENT);
    c.max_answer = 9, c.store.kv = "k3v3";
    assert_int_equal(ebb_answers(model, &c, alone, &error), EBB_BAD_ARGUMENT);
    for (int32_t i = 0; i < 3; i++) assert_null(alone[i]);
    ebb_model_close(model);
}

static void needles(void **state) {
    fixture *f = *state;
    enum { N = 10, DEPTHS = 5, HAY = 2000, LENGTH = 700 };
    static int32_t hay[HAY];
    ebb_needle made[N], again[N];
    ebb_error error;
    for (int32_t i = 0; i < HAY; i++) hay[i] = i % 7 == 0 ? ' ' : 'a' + (int32_t)(mix64((uint64_t)i) % 26);
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    must(ebb_needles(model, hay, HAY, LENGTH, DEPTHS, N, 5, made, &error), &error);
    must(ebb_needles(model, hay, HAY, LENGTH, DEPTHS, N, 5, again, &error), &error);
    for (int32_t i = 0; i < N; i++) {
        char text[LENGTH + 200];
        assert_int_equal(made[i].depth, i % DEPTHS);
        assert_true(made[i].count > LENGTH - 64 && made[i].count < LENGTH + 64); /* a byte is a token here */
        assert_int_equal(made[i].count, again[i].count);
        assert_memory_equal(made[i].ids, again[i].ids, (size_t)made[i].count * sizeof(int32_t));
        for (int64_t t = 0; t < made[i].count; t++) text[t] = (char)made[i].ids[t];
        text[made[i].count] = '\0';
        const char *at = strstr(text, made[i].number);
        assert_non_null(at);
        assert_null(strstr(at + 1, made[i].number));
        const double place = (double)(at - text) / (double)made[i].count, want = made[i].depth / (double)(DEPTHS - 1);
        assert_true(fabs(place - want) < 0.12);
        assert_string_equal(text + made[i].count - 3, " is"); /* no chat form: a text to go on with */
        free(made[i].ids), free(again[i].ids);
    }
    assert_int_equal(ebb_needles(model, hay, HAY, 5000, DEPTHS, N, 5, made, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_needles(model, hay, HAY, 64, DEPTHS, N, 5, made, &error), EBB_BAD_ARGUMENT);
    ebb_model_close(model);
}

/* ---- LongBench ---- */

static json_t *load(const char *path) {
    json_error_t why;
    json_t *root = json_load_file(path, 0, &why);
    if (!root) fail_msg("%s: %s", path, why.text);
    return root;
}

static double score(longbench_metric metric, const json_t *pair, const char *const *classes, int32_t n) {
    double x;
    ebb_error error;
    must(longbench_score(metric, json_string_value(json_object_get(pair, "answer")),
                         json_string_value(json_object_get(pair, "reference")), classes, n, &x, &error),
         &error);
    return x;
}

static void metrics(void **state) {
    (void)state;
    static const struct {
        const char *key;
        longbench_metric metric;
    } kinds[] = {{"f1", LONGBENCH_F1},
                 {"rouge", LONGBENCH_ROUGE_L},
                 {"paragraph", LONGBENCH_PARAGRAPH},
                 {"count", LONGBENCH_COUNT},
                 {"code", LONGBENCH_CODE}};
    json_t *golden = load(SOURCE_DIR "/tests/data/longbench_golden.json");
    const json_t *pairs = json_object_get(golden, "pairs"), *class_pairs = json_object_get(golden, "class_pairs"),
                 *list = json_object_get(golden, "classes");
    const char *classes[16];
    int32_t n = 0;
    assert_true(json_array_size(pairs) >= 20 && json_array_size(class_pairs) >= 7);
    for (; n < (int32_t)json_array_size(list); n++) classes[n] = json_string_value(json_array_get(list, (size_t)n));
    for (size_t i = 0; i < json_array_size(pairs); i++)
        for (int32_t k = 0; k < COUNT(kinds); k++) {
            const json_t *pair = json_array_get(pairs, i);
            const double want = json_number_value(json_object_get(pair, kinds[k].key)),
                         got = score(kinds[k].metric, pair, NULL, 0);
            if (!(fabs(got - want) < 1e-9)) fail_msg("pair %zu: %s is %.12g, not %.12g", i, kinds[k].key, got, want);
        }
    for (size_t i = 0; i < json_array_size(class_pairs); i++) {
        const json_t *pair = json_array_get(class_pairs, i);
        const double want = json_number_value(json_object_get(pair, "score")),
                     got = score(LONGBENCH_CLASS, pair, classes, n);
        if (!(fabs(got - want) < 1e-12)) fail_msg("class pair %zu: %.12g, not %.12g", i, got, want);
    }
    json_decref(golden);
}

/* Of every sample line, the reference itself has the best score; the first reference that is right counts. */
static void samples(void **state) {
    (void)state;
    static const char *const names[] = {"qasper", "gov_report", "trec", "passage_retrieval_en", "passage_count", "lcc"};
    ebb_error error;
    for (int32_t i = 0; i < COUNT(names); i++) {
        longbench_task task;
        char path[256], *text, *at, *end;
        size_t bytes;
        int32_t lines = 0;
        snprintf(path, sizeof path, SOURCE_DIR "/tests/data/longbench/%s.jsonl", names[i]);
        must(longbench_find(names[i], &task, &error), &error);
        must(read_file(path, 1 << 20, &text, &bytes, &error), &error);
        for (at = text; *at; at = end, lines++) {
            end = at + strcspn(at, "\n");
            if (*end) *end++ = '\0';
            json_t *line = json_loads(at, 0, NULL), *list = json_object_get(line, "all_classes");
            const char *answer = json_string_value(json_array_get(json_object_get(line, "answers"), 0));
            const char *references[] = {"something else", answer}, *classes[16];
            double best;
            int32_t n = 0;
            assert_non_null(answer);
            for (; n < (int32_t)json_array_size(list); n++)
                classes[n] = json_string_value(json_array_get(list, (size_t)n));
            must(longbench_best(&task, answer, references, 2, classes, n, &best, &error), &error);
            assert_true(best > 1 - 1e-6);
            must(longbench_best(&task, "none of it", references, 2, classes, n, &best, &error), &error);
            assert_true(best < 0.6);
            json_decref(line);
        }
        assert_int_equal(lines, 5);
        free(text);
    }
}

static void tasks(void **state) {
    (void)state;
    longbench_task task;
    ebb_error error;
    double best;
    must(longbench_find("triviaqa_e", &task, &error), &error);
    assert_true(task.metric == LONGBENCH_F1 && task.first_line && task.plain && task.answer == 32);
    const char *const references[] = {"Paris"};
    must(longbench_best(&task, "\n\nParis\nLondon", references, 1, NULL, 0, &best, &error), &error);
    assert_true(best == 1);
    assert_int_equal(longbench_find("vcsum", &task, &error), EBB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "Chinese"));
    assert_int_equal(longbench_find("gsm8k", &task, &error), EBB_UNSUPPORTED);
    char *prompt = longbench_prompt("<{context}> {input}{ {other} {input}", "C{input}", "I");
    assert_string_equal(prompt, "<C{input}> I{ {other} I");
    free(prompt);
}

static void figure(void **state) {
    fixture *f = *state;
    static const char *const rows[] = {"a<b", "two"};
    static const double cells[] = {0, 1, 0.5, NAN};
    const heatmap map = {.title = "T & t", .x = "depth", .rows = 2, .columns = 2, .row = rows, .cells = cells};
    char path[128], *text;
    size_t bytes;
    ebb_error error;
    snprintf(path, sizeof path, "%s/map.svg", f->folder);
    must(heatmap_write(&map, path, &error), &error);
    must(read_file(path, 1 << 20, &text, &bytes, &error), &error);
    unlink(path);
    assert_non_null(strstr(text, ">a&lt;b</text>"));
    assert_non_null(strstr(text, "T &amp; t"));
    assert_non_null(strstr(text, ">100</text>"));
    int32_t cell = 0;
    for (const char *at = text; (at = strstr(at, "fill=\"rgb(")); at++) cell++;
    assert_int_equal(cell, 3);
    free(text);
    assert_int_equal(heatmap_write(&map, "/nowhere/map.svg", &error), EBB_BAD_FILE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_in_order), cmocka_unit_test(equals_attention_by_hand),
        cmocka_unit_test(masses),          cmocka_unit_test(a_text),
        cmocka_unit_test(refusals),        cmocka_unit_test(statistics),
        cmocka_unit_test(answers),         cmocka_unit_test(needles),
        cmocka_unit_test(metrics),         cmocka_unit_test(samples),
        cmocka_unit_test(tasks),           cmocka_unit_test(figure),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
