/* tests/test_calibrate.c: layouts from texts: known answers, the same computed by other means, the same bytes every
 * time, and what is refused. */
#include "toy_session.h"

#include "measure/selectors.h"
#include "measure/tally.h"

enum { TEXT = 4096, DOMAINS = 2 };
static const char *const random_kimi = SOURCE_DIR "/tests/data/random_kimi";

/* ---- pure functions ---- */

static void rankings(void **state) {
    (void)state;
    static const double a[] = {3, 1, 4, 1, 5}, b[] = {30, 10, 40, 10, 50}, c[] = {-3, -1, -4, -1, -5},
                        d[] = {1, 2, 3, 4, 5}, e[] = {2, 1, 4, 3, 5}, same[] = {7, 7, 7, 7, 7};
    ranked ra[5], rd[5], scratch[10];
    rank_by(a, 5, ra);
    static const int32_t expected[] = {4, 2, 0, 1, 3}; /* equal ones by place */
    for (int32_t i = 0; i < 5; i++) assert_int_equal(ra[i].at, expected[i]);
    assert_true(fabs(spearman(a, b, 5, scratch) - 1) < 1e-12);
    assert_true(fabs(spearman(a, c, 5, scratch) + 1) < 1e-12);
    assert_true(fabs(spearman(d, e, 5, scratch) - 0.8) < 1e-12); /* 1 - 6 * 4 / (5 * 24) */
    assert_true(isnan(spearman(a, same, 5, scratch)));
    rank_by(d, 5, rd); /* 4 3 2 1 0 */
    assert_true(overlap_of(ra, rd, 2) == 0.5 && overlap_of(ra, rd, 3) == 2.0 / 3 && overlap_of(ra, rd, 0) == 1);
    assert_true(fabs(persistence(log(0.5), 1) - 4.0 / 3) < 1e-12);
    assert_true(fabs(persistence(log(0.99), 16) - 1 / (1 - pow(0.99, 32))) < 1e-9);
    assert_true(persistence(-1e-9, 1) == 1e4 && persistence(0, 1) == 1e4);
}

/* Sizes of 128 x 128 heads: two heads of 6 bits pay for one of 12. */
static void bits_by_head(void **state) {
    (void)state;
    enum { N = 30 };
    double memory[N], error[3][N];
    ranked ranking[N];
    uint8_t bits[N];
    size_t low[N], middle[N], high[N];
    for (int32_t i = 0; i < N; i++) {
        memory[i] = pow(10, 0.08 * i); /* head 29 remembers longest */
        low[i] = 15360, middle[i] = 19456, high[i] = 27648;
        for (int32_t class = 0; class < 3; class ++) error[class][i] = memory[i] * ldexp(1, -2 * bit_classes[class]);
    }
    const bit_costs costs = {N, {low, middle, high}, {error[0], error[1], error[2]}, (size_t)N * 19456};
    rank_by(memory, N, ranking);
    assert_int_equal(choose_bits(&costs, ranking, bits), costs.budget);
    int32_t n[13] = {0};
    for (int32_t i = 0; i < N; i++) {
        n[bits[i]]++;
        assert_true(i == 0 || bits[i] >= bits[i - 1]);
    }
    const int32_t slow = n[12];
    assert_true(slow >= 3 && n[6] == 2 * slow && n[6] + n[8] + n[12] == N);
    for (int32_t i = 0; i < N / 2 + 3; i++) error[0][i] = error[1][i]; /* heads that 6 bits do not hurt */
    assert_int_equal(choose_bits(&costs, ranking, bits), costs.budget);
    memset(n, 0, sizeof n);
    for (int32_t i = 0; i < N; i++) n[bits[i]]++;
    assert_true(n[12] > slow && n[6] == 2 * n[12]);
    for (int32_t class = 0; class < 3; class ++) /* all forget at once: nothing to gain */
        for (int32_t i = 0; i < N; i++) error[class][i] = ldexp(1, -2 * bit_classes[class]);
    assert_int_equal(choose_bits(&costs, ranking, bits), costs.budget);
    for (int32_t i = 0; i < N; i++) assert_int_equal(bits[i], 8);
}

/* RMS 1, 2, 4: scales are its powers, order falls; a dead coordinate does not divide by 0. */
static void scales(void **state) {
    (void)state;
    const ebb_state_layer layer = {.kind = EBB_GDN, .key_heads = 1, .heads = 1, .key_dim = 2, .value_dim = 4};
    static const double square[] = {1, 16, 0, 4};
    places at;
    tables t;
    ebb_error error;
    must(places_open(&at, &layer, 1, &error), &error);
    must(tables_open(&t, &at, TABLES_KEYS | TABLES_VALUES, &error), &error);
    assert_true(scaling_at(0).quarters == 0 && !scaling_at(0).reorder);
    for (int32_t c = 0; c < CANDIDATES; c++) {
        const scaling s = scaling_at(c);
        tables_scale(&t, s, square);
        const float floor = (float)pow(4e-6, 0.25 * s.quarters);
        const float scale[] = {1, (float)pow(4, 0.25 * s.quarters), floor, (float)pow(2, 0.25 * s.quarters)};
        static const uint16_t falling[] = {1, 3, 0, 2};
        for (int32_t v = 0; v < 4; v++) {
            assert_true(fabsf(t.value_scale[v] - scale[v]) <= 1e-5f * scale[v]);
            assert_int_equal(t.value_order[v], s.reorder ? falling[v] : v);
        }
    }
    tables_close(&t);
    places_close(&at);
}

/* ---- a known trajectory through the visitor: one row 30 times as large, decays that do not change ---- */

static void known_answer(void **state) {
    fixture *f = *state;
    enum { TOKENS = 40, HORIZON = 20, ROW = 11 };
    static const int64_t stops[] = {10, 15, 20};
    static const double a[TOY_HEADS] = {0.5, 0.9, 0.99, 1};
    static float S[TOY_HEADS * TOY_KEY_DIM * TOY_VALUE_DIM];
    ebb_error error;
    ebb_state_spec spec;
    places at;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    must(places_open(&at, ebb_model_state_layers(model), 2, &error), &error);
    tally t = {.at = &at, .candidates = 1, .parts = 1, .domains = 1, .batch = 1, .horizon = HORIZON};
    t.alive = tally_alive(stops, 3, HORIZON);
    assert_int_equal(t.alive, 3);
    assert_int_equal(tally_alive(stops, 3, 0), 1);
    assert_int_equal(tally_alive(stops, 3, 5), 1);
    t.fresh = true;
    must(tally_open(&t, &error), &error);
    must(ebb_state_parse("int8", &spec, &error), &error);
    must(roundtrip_open(&t.low[0], model, &spec, NULL, &error), &error);
    for (int32_t i = 0; i < COUNT(S); i++) {
        const int32_t row = i / TOY_VALUE_DIM % TOY_KEY_DIM;
        S[i] = (float)(mix64((uint64_t)i) % 2001) * 1e-3f - 1;
        if (row == ROW) S[i] *= 30;
    }
    const visitor v = tally_visitor(&t);
    const document d = {.weight = 1.0 / 3};
    for (int64_t pos = 0, stop = 0; pos < TOKENS; pos++) {
        for (int32_t layer = 0; layer < 2; layer++) {
            float g[TOY_HEADS];
            for (int32_t h = 0; h < TOY_HEADS; h++) g[h] = (float)log(a[h]);
            v.decay(v.ctx, &d, 0, layer, pos, g);
        }
        v.settle(v.ctx, &d, 0, pos + 1);
        if (stop == 3 || pos + 1 != stops[stop]) continue;
        for (int32_t layer = 0; layer < 2; layer++)
            must(v.state(v.ctx, &d, 0, layer, (int32_t)stop, pos + 1, S, &error), &error);
        v.settle(v.ctx, &d, 0, stops[stop++]);
    }
    v.end(v.ctx, &d, 0);
    const part_sums *p = &t.part[0];
    assert_int_equal(p->states, 3);
    assert_int_equal(p->tokens[0], TOKENS);
    for (int32_t h = 0; h < 2 * TOY_HEADS; h++) {
        ranked ranking[TOY_KEY_DIM];
        const double aa = a[h % TOY_HEADS] * a[h % TOY_HEADS];
        const double W = aa < 1 ? (1 - pow(aa, HORIZON + 1)) / (1 - aa) : HORIZON + 1;
        assert_true(fabs(p->log_decay[h] - TOKENS * log(a[h % TOY_HEADS])) < 1e-4);
        rank_by(p->error + h * TOY_KEY_DIM, TOY_KEY_DIM, ranking);
        assert_int_equal(ranking[0].at, ROW);
        assert_true(ranking[0].value > 50 * ranking[1].value && ranking[TOY_KEY_DIM - 1].value > 0);
        for (int32_t u = 0; u < TOY_KEY_DIM; u++) {
            const int32_t row = h * TOY_KEY_DIM + u;
            assert_true(fabs(p->risk[row] - W * p->error[row]) < 1e-4 * p->risk[row]);
        }
    }
    tally_close(&t);
    places_close(&at);
    ebb_model_close(model);
}

/* ---- whole calibrations ---- */

typedef struct texts {
    int32_t ids[DOMAINS][TEXT];
    ebb_domain domains[DOMAINS];
    ebb_calibrate_config config;
} texts;

static texts *texts_new(const char *method) {
    texts *t = calloc(1, sizeof *t);
    assert_non_null(t);
    for (int32_t d = 0; d < DOMAINS; d++) {
        for (int32_t i = 0; i < TEXT; i++) t->ids[d][i] = id_at(d, i);
        t->domains[d] = (ebb_domain){d ? "second" : "first", t->ids[d], TEXT};
    }
    t->config = (ebb_calibrate_config){.size = sizeof t->config,
                                       .method = method,
                                       .domains = t->domains,
                                       .n_domains = DOMAINS,
                                       .documents = 4,
                                       .tokens = 24,
                                       .batch = 3};
    if (strstr(method, "reorder")) t->config.documents = 3, t->config.written = 512;
    return t;
}

static ebb_calibration *run_ok(ebb_model *model, const ebb_calibrate_config *config) {
    ebb_error error;
    ebb_calibration *c = NULL;
    must(ebb_calibrate(model, config, &c, &error), &error);
    assert_non_null(c);
    return c;
}

static void same_layouts(const ebb_layout *a, const ebb_layout *b) {
    int32_t n, m;
    ebb_layout_table(a, 0, &n);
    ebb_layout_table(b, 0, &m);
    assert_int_equal(n, m);
    assert_string_equal(ebb_layout_method(a), ebb_layout_method(b));
    assert_true(ebb_layout_model(a) == ebb_layout_model(b));
    for (int32_t i = 0; i < n; i++) {
        const ebb_layout_layer *x = ebb_layout_table(a, i, NULL), *y = ebb_layout_table(b, i, NULL);
        const size_t heads = (size_t)x->heads, keys = heads * (size_t)x->key_dim, values = heads * (size_t)x->value_dim;
        assert_true(!x->key_order == !y->key_order && !x->value_order == !y->value_order && !x->bits == !y->bits);
        if (x->key_order) assert_memory_equal(x->key_order, y->key_order, keys * sizeof *x->key_order);
        if (x->value_order) assert_memory_equal(x->value_order, y->value_order, values * sizeof *x->value_order);
        if (x->value_scale) assert_memory_equal(x->value_scale, y->value_scale, values * sizeof *x->value_scale);
        if (x->bits) assert_memory_equal(x->bits, y->bits, heads);
    }
}

/* The layout opens pools of its own model, and none of another. */
static void accepts(ebb_model *model, ebb_model *other, const char *method, const ebb_layout *layout) {
    ebb_error error;
    ebb_state_spec spec;
    must(ebb_state_parse(method, &spec, &error), &error);
    spec.layout = layout;
    ebb_model *const models[] = {model, other};
    for (int32_t i = 0; i < 2; i++) {
        ebb_state_pool *pool = NULL;
        const ebb_state_pool_config c = {.size = sizeof c,
                                         .spec = &spec,
                                         .layers = ebb_model_state_layers(models[i]),
                                         .n_layers = ebb_model_describe(models[i])->state_layers,
                                         .slots = 1,
                                         .max_new = 1};
        ebb_status status = ebb_state_pool_open(ebb_model_device(models[i]), &c, &pool, &error);
        if (i == 0) must(status, &error);
        else {
            assert_int_equal(status, EBB_BAD_ARGUMENT);
            assert_non_null(strstr(error.text, "another model"));
        }
        ebb_state_pool_close(pool);
    }
}

/* Twice, with other batches, and on one thread: the same layout. */
static void same_every_time(void **state) {
    fixture *f = *state;
    static const char *const methods[] = {"damp:rows=4", "damp-reorder:rows=4", "int4-reorder", "leap-mix"};
    ebb_error error;
    ebb_device *alone;
    ebb_model *single, *other;
    const ebb_device_config dc = {.size = sizeof dc, .threads = 1};
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    must(ebb_device_open("cpu", &dc, &alone, &error), &error);
    must(ebb_model_open(alone, f->folder, NULL, &single, &error), &error);
    must(ebb_model_open(f->device, random_kimi, NULL, &other, &error), &error);
    for (int32_t i = 0; i < COUNT(methods); i++) {
        texts *t = texts_new(methods[i]);
        ebb_calibration *a = run_ok(model, &t->config);
        t->config.batch = 1;
        ebb_calibration *b = run_ok(single, &t->config);
        same_layouts(a->layout, b->layout);
        assert_true(ebb_layout_model(a->layout) == ebb_model_describe(model)->hash);
        assert_int_equal(a->heads, 2 * TOY_HEADS);
        assert_memory_equal(a->head, b->head, (size_t)a->heads * sizeof *a->head);
        accepts(model, other, methods[i], a->layout);
        ebb_calibration_free(a), ebb_calibration_free(b);
        free(t);
    }
    ebb_model_close(model), ebb_model_close(single), ebb_model_close(other);
    ebb_device_close(alone);
}

/* One head of one layer of a document, as the first version defines it: token by token, through the codec alone. */
typedef struct other_means {
    session s;
    double error[2 * TOY_HEADS][TOY_KEY_DIM], log_decay[2 * TOY_HEADS];
    int64_t tokens;
} other_means;

static void read_state(ebb_device *device, const ebb_state_view *view, int64_t pos, float *S) {
    ebb_error error;
    ebb_plan plan = {.size = sizeof plan};
    ebb_queue *queue = NULL;
    const int32_t slot = 0;
    const ebb_delta_args args = {
        .size = sizeof args, .s = *view, .b = {.seqs = 1, .slot = &slot, .cu = (int32_t[]){0, 0}, .pos = &pos}};
    must(ebb_delta_plan(device, view, NULL, 0, 1, 1, 1, &plan, &error), &error);
    must(ebb_queue_open(device, plan.scratch, &queue, &error), &error);
    must(ebb_delta_read(queue, &plan, &args, S, &error), &error);
    ebb_queue_close(queue);
}

static void add_state(other_means *m, int32_t layer, const float *S) {
    static float Q[TOY_KEY_DIM * TOY_VALUE_DIM], tmp[1 << 16];
    static uint8_t packed[1 << 16];
    ebb_error error;
    ebb_state_spec spec;
    must(ebb_state_parse("int8-h32", &spec, &error), &error); /* the low tier of damp */
    for (int32_t h = 0; h < TOY_HEADS; h++) {
        const float *x = S + h * TOY_KEY_DIM * TOY_VALUE_DIM;
        const ebb_head head = {.layer = ebb_state_pool_view(m->s.state, layer)->layer, .head = h, .param = spec.param};
        spec.method->codec->encode(&head, x, NULL, NULL, packed, tmp);
        spec.method->codec->decode(&head, packed, Q);
        for (int32_t i = 0; i < TOY_KEY_DIM * TOY_VALUE_DIM; i++)
            m->error[layer * TOY_HEADS + h][i / TOY_VALUE_DIM] +=
                ((double)Q[i] - (double)x[i]) * ((double)Q[i] - (double)x[i]);
    }
}

static void add_document(fixture *f, other_means *m, const int32_t *ids, int64_t n) {
    static float S[TOY_HEADS * TOY_KEY_DIM * TOY_VALUE_DIM];
    ebb_error error;
    for (int64_t pos = 0; pos < n; pos++) {
        const int32_t slot = 0, cu[] = {0, 1};
        const ebb_batch b = {.seqs = 1, .tokens = 1, .slot = &slot, .cu = cu, .pos = &pos};
        must(ebb_forward(m->s.runner, EBB_STEP, &b, ids + pos, NULL, 0, NULL, &error), &error);
        m->tokens++;
        for (int32_t layer = 0; layer < 2; layer++) {
            const ebb_state_view *v = ebb_state_pool_view(m->s.state, layer);
            const float *g = (const float *)(const void *)(v->live + v->decay_at) + pos % v->cap * TOY_HEADS;
            for (int32_t h = 0; h < TOY_HEADS; h++) m->log_decay[layer * TOY_HEADS + h] += (double)g[h];
            if ((pos + 1) % 8) continue;
            read_state(f->device, v, pos + 1, S);
            add_state(m, layer, S);
        }
    }
}

static void by_other_means(void **state) {
    fixture *f = *state;
    enum { DOCUMENTS = 3, TOKENS = 48, ROWS = 5 };
    other_means *m = calloc(1, sizeof *m);
    texts *t = texts_new("damp:rows=5");
    assert_non_null(m);
    toy_make(f->folder, &TOY);
    session_open(&m->s, f->device, open_ok(f), "fp32", "bf16", (ebb_tap){0});
    t->config.documents = DOCUMENTS, t->config.tokens = TOKENS;
    for (int32_t d = 0; d < DOMAINS; d++) { /* no other slices: all are documents */
        t->domains[d].count = DOCUMENTS * TOKENS + 7;
        for (int64_t i = 0; i < DOCUMENTS; i++) add_document(f, m, t->ids[d] + i * TOKENS, TOKENS);
    }
    ebb_calibration *c = run_ok(m->s.model, &t->config);
    assert_int_equal(c->rows, ROWS);
    assert_int_equal(c->states, DOMAINS * DOCUMENTS * TOKENS / 8);
    assert_int_equal(c->tokens, DOMAINS * DOCUMENTS * TOKENS);
    assert_int_equal(c->tokens, m->tokens);
    for (int32_t h = 0; h < c->heads; h++) {
        const ebb_layout_layer *l = ebb_layout_table(c->layout, h / TOY_HEADS, NULL);
        const uint16_t *order = l->key_order + h % TOY_HEADS * TOY_KEY_DIM;
        ranked ranking[TOY_KEY_DIM];
        double total = 0, worst = 0;
        rank_by(m->error[h], TOY_KEY_DIM, ranking); /* of GDN, P_u is one number a head */
        for (int32_t u = 0; u < TOY_KEY_DIM; u++) {
            assert_int_equal(order[u], ranking[u].at);
            total += ranking[u].value;
            if (u < ROWS) worst += ranking[u].value;
        }
        assert_true(fabs(c->head[h].decay - exp(m->log_decay[h] / (double)m->tokens)) < 1e-9);
        assert_true(fabs(c->head[h].share - worst / total) < 1e-9);
        assert_true(fabs(c->head[h].gap - ranking[ROWS - 1].value / ranking[ROWS].value) < 1e-9 * c->head[h].gap);
        assert_true(c->head[h].overlap >= 0 && c->head[h].overlap <= 1 && fabs(c->head[h].spearman) <= 1);
    }
    assert_true(fabs(c->concentration[TOY_KEY_DIM - 1] - 1) < 1e-9 && c->concentration[0] > 1.0 / TOY_KEY_DIM);
    assert_true(c->domain_order[0] == 1 && c->domain_order[1] == c->domain_order[2]);
    ebb_calibration_free(c);
    session_close(&m->s);
    free(t), free(m);
}

/* Every selector ranks, and persistence alone has nothing to say about the rows of a GDN head. */
static void selectors(void **state) {
    fixture *f = *state;
    ebb_error error;
    ebb_model *kimi;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    must(ebb_model_open(f->device, random_kimi, NULL, &kimi, &error), &error);
    uint16_t orders[SELECTORS][2][3 * TOY_KEY_DIM]; /* three heads of the first layer */
    for (int32_t i = 0; i < SELECTORS; i++)
        for (int32_t kda = 0; kda < 2; kda++) {
            texts *t = texts_new("damp:rows=4");
            t->config.selector = selector_names[i];
            ebb_calibration *c = run_ok(kda ? kimi : model, &t->config);
            assert_string_equal(c->selector, selector_names[i]);
            assert_int_equal(c->length, 24 + (i == SELECT_RISK ? 256 : 0));
            const uint16_t *order = ebb_layout_table(c->layout, 0, NULL)->key_order;
            memcpy(orders[i][kda], order, sizeof orders[i][kda]);
            bool moved = false;
            for (int32_t u = 0; u < TOY_KEY_DIM; u++) moved = moved || order[u] != u;
            assert_int_equal(moved, i != SELECT_PERSISTENCE || kda);
            assert_int_equal(isnan(c->head[0].spearman) != 0, i == SELECT_PERSISTENCE && !kda);
            ebb_calibration_free(c);
            free(t);
        }
    assert_memory_equal(orders[SELECT_PRODUCT][0], orders[SELECT_ERROR][0], sizeof orders[0][0]);
    assert_memory_not_equal(orders[SELECT_PRODUCT][1], orders[SELECT_ERROR][1], sizeof orders[0][0]);
    assert_memory_not_equal(orders[SELECT_PRODUCT][1], orders[SELECT_PERSISTENCE][1], sizeof orders[0][0]);
    assert_memory_not_equal(orders[SELECT_ENERGY][0], orders[SELECT_RANDOM][0], sizeof orders[0][0]);
    ebb_model_close(model), ebb_model_close(kimi);
}

/* Another seed draws other documents. */
static void seeds(void **state) {
    fixture *f = *state;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    texts *t = texts_new("damp");
    ebb_calibration *a = run_ok(model, &t->config);
    t->config.seed = 1;
    ebb_calibration *b = run_ok(model, &t->config);
    assert_true(a->head[0].decay != b->head[0].decay);
    ebb_calibration_free(a), ebb_calibration_free(b);
    ebb_model_close(model);
    free(t);
}

/* The second version: what is chosen is never worse, on the documents that chose, than the store without scale and
 * order and protected rows; text instead of written tokens gives another layout. */
static void second_version(void **state) {
    fixture *f = *state;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    texts *t = texts_new("damp-reorder:rows=4");
    ebb_calibration *c = run_ok(model, &t->config);
    int32_t chosen = 0, scaled = 0;
    assert_int_equal(c->length, 24 + 512);
    assert_int_equal(c->states, DOMAINS * 3);             /* one in each document */
    assert_int_equal(c->tokens, DOMAINS * 4 * c->length); /* the fitting third twice */
    assert_int_equal(c->n_candidates, EBB_CALIBRATION_CANDIDATES);
    for (int32_t i = 0; i < c->n_candidates; i++) chosen += c->candidates[i].heads;
    assert_int_equal(chosen, c->heads);
    for (int32_t h = 0; h < c->heads; h++) {
        const ebb_layout_layer *l = ebb_layout_table(c->layout, h / TOY_HEADS, NULL);
        scaled += l->value_scale[h % TOY_HEADS * TOY_VALUE_DIM] != 1;
        assert_int_equal(l->value_scale[h % TOY_HEADS * TOY_VALUE_DIM] != 1, c->head[h].candidate > 1);
        assert_true(c->head[h].left_tune > 0 && c->head[h].left_tune < 1);
        assert_true(c->head[h].left > 0 && c->head[h].left < 1);
    }
    assert_true(scaled > 0);
    t->config.from_text = true;
    t->config.every = 100; /* 124 and 224 of 536: the last one that has 256 tokens after it, and the one before */
    ebb_calibration *other = run_ok(model, &t->config);
    assert_int_equal(other->states, DOMAINS * 3 * 2);
    assert_memory_not_equal(ebb_layout_table(c->layout, 0, NULL)->value_scale,
                            ebb_layout_table(other->layout, 0, NULL)->value_scale, TOY_VALUE_DIM * sizeof(float));
    ebb_calibration_free(c), ebb_calibration_free(other);
    ebb_model_close(model);
    free(t);
}

static void leap_mix(void **state) {
    fixture *f = *state;
    ebb_error error;
    ebb_state_spec leap8;
    size_t budget = 0;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    texts *t = texts_new("leap-mix");
    ebb_calibration *c = run_ok(model, &t->config);
    must(ebb_state_parse("leap8", &leap8, &error), &error);
    for (int32_t i = 0; i < 2; i++) {
        ebb_state_sizes z;
        must(ebb_state_size(&leap8, &ebb_model_state_layers(model)[i], 1, &z, &error), &error);
        budget += z.packed;
    }
    assert_true(c->packed > 0 && c->packed <= budget);
    for (int32_t h = 0; h < c->heads; h++) {
        assert_int_equal(c->head[h].bits, ebb_layout_table(c->layout, h / TOY_HEADS, NULL)->bits[h % TOY_HEADS]);
        for (int32_t i = 0; i < c->heads; i++)
            assert_true(c->head[h].decay <= c->head[i].decay || c->head[h].bits >= c->head[i].bits);
    }
    ebb_calibration_free(c);
    ebb_model_close(model);
    free(t);
}

/* ---- refusals ---- */

static bool stop_early(void *ctx, const char *what, int64_t done, int64_t total) {
    (void)what;
    assert_true(done <= total);
    return (*(int32_t *)ctx)++ < 2;
}

static void refused(ebb_model *model, const ebb_calibrate_config *config, const char *part) {
    ebb_error error;
    ebb_calibration *c = (ebb_calibration *)config;
    assert_int_equal(ebb_calibrate(model, config, &c, &error), EBB_BAD_ARGUMENT);
    assert_null(c);
    if (!strstr(error.text, part)) fail_msg("'%s' does not say '%s'", error.text, part);
}

static void refusals(void **state) {
    fixture *f = *state;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    texts *t = texts_new("damp");
    ebb_calibrate_config c = t->config;
    t->domains[1].count = 95;
    refused(model, &c, "second has 95 tokens; 4 documents of 24 tokens need 96");
    t->domains[1].count = TEXT;
    t->ids[1][5] = TOY_VOCAB;
    refused(model, &c, "second: token 5 is 64");
    t->ids[1][5] = 0;
    c.method = "int8";
    refused(model, &c, "method int8 needs no calibration");
    c.method = "damp:rows=x";
    refused(model, &c, "rows=x");
    c = t->config, c.method = NULL;
    refused(model, &c, "method");
    c = t->config, c.selector = "best";
    refused(model, &c, "no selector 'best', expected one of random, energy, error, persistence, product, risk");
    c = t->config, c.documents = 1;
    refused(model, &c, "1 documents of a text, expected 2");
    c = t->config, c.tokens = 7;
    refused(model, &c, "documents of 7 tokens");
    c = t->config, c.tokens = 5000;
    refused(model, &c, "the model takes 4096");
    c = t->config, c.written = 512;
    refused(model, &c, "calibrated on text alone");
    c = t->config, c.every = 25;
    refused(model, &c, "a state every 25 tokens, expected 1 to 24");
    c = t->config, c.n_domains = 0;
    refused(model, &c, "0 texts");
    c = t->config, c.batch = -1;
    refused(model, &c, "-1 documents side by side");
    c = t->config, c.kv = "none";
    refused(model, &c, "none");
    c = t->config, c.size--;
    refused(model, &c, "ebb_calibrate_config.size");
    c = t->config, c.method = "damp-reorder", c.written = 511;
    refused(model, &c, "511 written tokens, expected 512");
    c = t->config, c.method = "leap-mix", c.selector = "energy";
    refused(model, &c, "no selector");
    int32_t calls = 0;
    ebb_error error;
    ebb_calibration *out;
    c = t->config, c.progress = (ebb_progress){&calls, stop_early};
    assert_int_equal(ebb_calibrate(model, &c, &out, &error), EBB_INTERRUPTED);
    assert_null(out);
    free(t);
    ebb_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rankings),        cmocka_unit_test(bits_by_head),   cmocka_unit_test(scales),
        cmocka_unit_test(known_answer),    cmocka_unit_test(by_other_means), cmocka_unit_test(selectors),
        cmocka_unit_test(seeds),           cmocka_unit_test(second_version), cmocka_unit_test(leap_mix),
        cmocka_unit_test(same_every_time), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
