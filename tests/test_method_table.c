/* test_method_table.c: docs/methods.md holds a table of what every state method promises and of what it does where it
 * promises nothing. Every cell is measured here and compared; a method without a row fails, and so does a row without a
 * method. With EBB_WRITE_TABLE=1 the test prints the table as measured instead. */
#include "delta_world.h"
#include "heavy_head.h"

#include <stdio.h>

#include "must.h"

enum { T1, T2, T3, T4, T5, T6, T7, T8, T9, T10, SINGLE, TWICE, DECAYED, LATER, NORM, CELLS };

/* What a cell may say. `must` is |value - centre| <= limit. A number is met within 20 % of its distance from the
 * centre, or where both are within `floor` of it. */
typedef struct column {
    const char *name;
    double centre, limit, floor;
    enum { PROMISE, PROMISE_OR_NUMBER, NUMBER, BYTES } kind;
} column;

static const column columns[CELLS] = {
    {"T1", 0, 1e-5, 0, PROMISE},
    {"T2", 0, 1e-5, 0, PROMISE},
    {"T3", 0, 0, 0, PROMISE},
    {"T4", 0, 1e-6, 1e-6, PROMISE_OR_NUMBER},
    {"T5", 0, 1e-6, 1e-6, PROMISE_OR_NUMBER},
    {"T6", 0, 1e-6, 1e-6, PROMISE_OR_NUMBER},
    {"T7", 0, 0, 0, PROMISE},
    {"T8", 0, 0, 0, BYTES},
    {"T9", 0, 1e-5, 0, PROMISE},
    {"T10", 1, 1e-3, 1e-3, PROMISE_OR_NUMBER},
    {"single", 0, 0, 1e-6, NUMBER},
    {"Q(Q)-Q", 0, 0, 1e-6, NUMBER},
    {"Q(aQ)-aQ", 0, 0, 1e-6, NUMBER},
    {"200 decays", 0, 0, 2e-5, NUMBER}, /* 200 roundings of FP32 */
    {"norm", 1, 0, 5e-4, NUMBER},
};

enum { DK = 32, DV = 32, TOKENS = 40, NEW = 16 };
static const double slow = .999; /* the decay of T4, T10 and of the last three columns */
static const float rates[] = {4e-4f, .03f, 1, 8};
static ebb_device *device;

static ebb_state_layer small_layer(int32_t kind) {
    return (ebb_state_layer){.kind = kind, .key_heads = 1, .heads = 1, .key_dim = DK, .value_dim = DV};
}

static void open_world(delta_world *w, const char *method, int32_t kind, float rate, int64_t n) {
    ebb_error error = {EBB_OK, ""};
    if (world_open(w, device, method, "ref", small_layer(kind), 2, NEW, n, &error))
        fail_msg("%s: %s", method, error.text);
    world_inputs(w, 42, rate);
}

static double relative(double distance_squared, double size_squared) {
    const double r = sqrt(distance_squared / (size_squared + 1e-300));
    return isfinite(r) ? r : INFINITY;
}

/* ---- T1 and T9: the store along a run ---- */

typedef struct follower { /* the store in FP64: S at the position, restarted from the decoded image at a boundary */
    double S[DK * DV], error[DK * DV]; /* error: sum of the injected errors, each carried on by A_t */
    double far, size;                  /* squared: outputs against FP64, and their size */
} follower;

/* X <- diag(e^g) X, and p = k^T X. */
static void decay_and_read(const delta_world *w, int64_t t, double *X, double *p) {
    const float *k = w->k + t * DK, *g = w->g + t * w->gates;
    memset(p, 0, DV * sizeof *p);
    for (int u = 0; u < DK; u++)
        for (int v = 0; v < DV; v++) p[v] += (X[u * DV + v] *= exp((double)g[w->layer.kind == EBB_KDA ? u : 0])) * k[u];
}

/* Token t: what the store returned in `out`, holds as records and, with S32, gives back at t + 1. */
static void follow(const delta_world *w, int64_t t, bool boundary, const float *out, const float *S32, follower *f) {
    const ebb_state_view *view = ebb_state_pool_view(w->pool, 0);
    const float *q = w->q + t * DK, *k = w->k + t * DK, *v = w->v + t * DV;
    float kept_k[DK], kept_d[DV];
    double p[DV], kq = 0, beta = w->beta[t];
    record_read(view, key_record(view, 0, 0, t), kept_k, DK);
    record_read(view, delta_record(view, 0, 0, t), kept_d, DV);
    decay_and_read(w, t, f->error, p); /* the free error: A_t = (I - beta k k^T) diag(e^g) */
    for (int i = 0; i < DK * DV; i++) f->error[i] -= beta * k[i / DV] * p[i % DV];
    decay_and_read(w, t, f->S, p);
    for (int u = 0; u < DK; u++) kq += (double)k[u] * q[u] / sqrt(DK);
    for (int i = 0; i < DV; i++) {
        double d = beta * (v[i] - p[i]), o = kq * d;
        for (int u = 0; u < DK; u++) o += f->S[u * DV + i] * q[u] / sqrt(DK);
        f->far += pow(out[i] - o, 2), f->size += o * o;
        for (int u = 0; u < DK; u++) {
            const double exact = f->S[u * DV + i] + k[u] * d;
            f->S[u * DV + i] += (double)kept_k[u] * kept_d[i];
            if (boundary) f->S[u * DV + i] = S32[u * DV + i];
            f->error[u * DV + i] += f->S[u * DV + i] - exact;
        }
    }
}

/* T1: outputs are the recurrence in FP64 on what the last boundary decodes to; an exact codec gives the recurrence from
 * the first token on. T9: S_q - S is the sum of the errors injected at the stores, propagated by the transitions. */
static void measure_run(const char *method, int32_t kind, float rate, double *value) {
    delta_world w;
    open_world(&w, method, kind, rate, TOKENS);
    follower *f = calloc(1, sizeof *f);
    double *exact = calloc(DK * DV, sizeof *exact), *outputs = calloc((size_t)TOKENS * DV, sizeof *outputs);
    float *out = calloc((size_t)TOKENS * DV, sizeof *out), *S = calloc(DK * DV, sizeof *S);
    double far = 0, size = 0, off = 0, whole = 0;
    ebb_error error;
    ebb_planes planes;
    const ebb_head head = head_of(ebb_state_pool_view(w.pool, 0), 0);
    must(w.spec.method->codec->layout(&head, &planes, &error), &error);
    for (int64_t t = 0; t < TOKENS; t++) {
        must(world_run(&w, false, 0, t, 1, out + t * DV, &error), &error);
        must(world_read(&w, 0, t + 1, S, &error), &error);
        const bool boundary = *base_of(ebb_state_pool_view(w.pool, 0), 0, 0) == t + 1;
        assert_int_equal(boundary, (t + 1) % w.spec.window == 0);
        follow(&w, t, boundary, out + t * DV, S, f);
    }
    world_exact(&w, 0, TOKENS, exact, outputs);
    for (int i = 0; i < DK * DV; i++) off += pow(S[i] - exact[i] - f->error[i], 2), whole += exact[i] * exact[i];
    for (int i = 0; i < TOKENS * DV; i++) far += pow(out[i] - outputs[i], 2), size += outputs[i] * outputs[i];
    value[T1] = fmax(value[T1], relative(f->far, f->size));
    if (planes.exact) value[T1] = fmax(value[T1], relative(far, size));
    value[T9] = fmax(value[T9], relative(off, whole));
    free(f), free(exact), free(outputs), free(out), free(S);
    world_close(&w);
}

/* T2: the prompt of a fresh sequence is the recurrence in FP64, up to the first multiple of EBB_GRID whatever the
 * codec. */
static double chunk_distance(const char *method, int32_t kind, float rate) {
    enum { PROMPT = 70 };
    delta_world w;
    open_world(&w, method, kind, rate, PROMPT);
    float *out = calloc((size_t)PROMPT * DV, sizeof *out);
    double *exact = calloc(DK * DV, sizeof *exact), *outputs = calloc((size_t)PROMPT * DV, sizeof *outputs);
    double far = 0, size = 0;
    ebb_error error;
    must(world_run(&w, true, 0, 0, PROMPT, out, &error), &error);
    world_exact(&w, 0, PROMPT, exact, outputs);
    for (int i = 0; i < PROMPT * DV; i++) far += pow(out[i] - outputs[i], 2), size += outputs[i] * outputs[i];
    free(out), free(exact), free(outputs);
    world_close(&w);
    return relative(far, size);
}

/* T3: outputs that differ after going back to an earlier position, as rejected drafts do, and on again. */
static double rollback_differences(const char *method, int32_t kind) {
    delta_world w;
    open_world(&w, method, kind, .03f, TOKENS);
    float plain[TOKENS][DV], out[DV];
    int different = 0;
    ebb_error error;
    for (int64_t t = 0; t < TOKENS; t++) must(world_run(&w, false, 0, t, 1, plain[t], &error), &error);
    uint64_t s = 3;
    for (int64_t pos = 0, furthest = 0; pos < TOKENS; pos++) {
        must(world_run(&w, false, 1, pos, 1, out, &error), &error);
        different += memcmp(out, plain[pos], sizeof out) != 0;
        furthest = max_i64(furthest, pos);
        const int64_t base = *base_of(ebb_state_pool_view(w.pool, 0), 1, 0);
        const int64_t reach = min_i64(pos - base, pos - furthest + NEW);
        if (mix64(s++) % 4 == 0) pos -= (int64_t)(mix64(s++) % (uint64_t)(reach + 1));
    }
    world_close(&w);
    return different;
}

/* ---- T4 and T10: tokens that decay and write nothing ---- */

static void decay_only(delta_world *w, int64_t from, int64_t n) {
    ebb_error error;
    float out[NEW * DV];
    for (int64_t done = 0; done < n; done += NEW) {
        const int32_t tokens = (int32_t)min_i64(NEW, n - done);
        const int32_t slot = 0, cu[2] = {0, tokens};
        const int64_t pos = from + done;
        const ebb_batch b = {1, tokens, &slot, cu, &pos};
        ebb_delta_args args = world_args(w, &b, w->q, w->k, w->v, w->g, w->beta, out);
        must(ebb_delta_step(w->queue, &w->plan, &args, &error), &error);
    }
}

/* A state of position 64, packed, then n tokens that decay by `slow` with beta = 0: before and after. */
static void decayed_state(const char *method, int64_t n, float *before, float *after) {
    delta_world w;
    ebb_error error;
    open_world(&w, method, EBB_GDN, 0, NEW);
    n = n ? n : w.spec.window;
    for (int i = 0; i < NEW; i++) w.g[i] = (float)log(slow), w.beta[i] = 0;
    heavy_fill(before, DK, DV, 11);
    const int32_t slot = 0, cu[2] = {0, 0};
    const int64_t pos = 64;
    const ebb_batch b = {1, 0, &slot, cu, &pos};
    ebb_delta_args args = world_args(&w, &b, NULL, NULL, NULL, NULL, NULL, NULL);
    must(ebb_delta_write(w.queue, &w.plan, &args, before, &error), &error);
    must(world_read(&w, 0, pos, before, &error), &error);
    decay_only(&w, pos, n);
    must(world_read(&w, 0, pos + n, after, &error), &error);
    world_close(&w);
}

static double fold_distance(const char *method) {
    float before[DK * DV], after[DK * DV];
    ebb_state_spec spec;
    decayed_state(method, 0, before, after);
    must(ebb_state_parse(method, &spec, NULL), &(ebb_error){EBB_OK, "a row of the table"});
    return head_distance(after, before, pow(slow, spec.window), DK * DV) / head_norm(before, DK * DV);
}

static double decay_ratio(const char *method) {
    enum { LONG = 1600 };
    float before[DK * DV], after[DK * DV];
    decayed_state(method, LONG, before, after);
    return head_norm(after, DK * DV) / (head_norm(before, DK * DV) * pow(slow, LONG));
}

/* ---- T5 to T8: the codec alone ---- */

static void measure_codec(const char *method, double *value) {
    float S[DK * DV], D[DK * DV], E[DK * DV];
    one_head t;
    head_open(&t, method, DK, DV);
    for (uint64_t seed = 0; seed < 100; seed++) {
        heavy_fill(S, DK, DV, seed);
        head_store(&t, S, D);
        head_store(&t, D, E);
        value[T5] = fmax(value[T5], head_distance(E, D, 1, DK * DV) / head_norm(S, DK * DV));
        value[T6] = fmax(value[T6], head_norm(D, DK * DV) / head_norm(S, DK * DV) - 1);
    }
    static const float sizes[] = {0, 1e-30f, 1, 6e4f};
    for (int i = 0; i < 2 * COUNT(sizes); i++) {
        heavy_fill(S, DK, DV, 7);
        for (int j = 0; j < DK * DV; j++) S[j] = sizes[i / 2] * (i & 1 ? 1 : S[j]);
        head_store(&t, S, D);
        for (int j = 0; j < DK * DV; j++) value[T7] += !isfinite(D[j]);
        t.spec.method->codec->encode(&t.head, S, NULL, t.packed, t.packed, t.tmp); /* in place, from the last image */
        head_get(&t, D);
        for (int j = 0; j < DK * DV; j++) value[T7] += !isfinite(D[j]);
    }
    head_close(&t);
    head_open(&t, method, 128, 128);
    value[T8] = (double)t.planes.bytes;
    head_close(&t);
}

/* Maths 4.6, on the matrix of tests/data: every store begins from nothing. */
static void measure_idempotence(const char *method, double *value) {
    const idem_numbers m = idem_measure(method);
    value[SINGLE] = m.single, value[TWICE] = m.again, value[DECAYED] = m.decayed, value[LATER] = m.after;
    value[NORM] = m.ratio;
}

/* ---- the table ---- */

enum { MAX_ROWS = 256, NAME = 64, CELL = 24 };

typedef struct row {
    char name[NAME];
    ebb_state_spec spec;
    double value[CELLS];
    char cell[CELLS][CELL]; /* of the document */
} row;

/* The codec's own columns do not depend on the window: a row that differs by p alone takes those of the row before. */
static bool same_codec(const row *x, const row *y) {
    return x->spec.method->codec == y->spec.method->codec &&
           !memcmp(x->spec.param + 1, y->spec.param + 1, sizeof x->spec.param - sizeof x->spec.param[0]);
}

static void measure(row *r, const row *done, int n) {
    for (int kind = EBB_GDN; kind <= EBB_KDA; kind++) {
        for (int i = 0; i < COUNT(rates); i++) {
            measure_run(r->name, kind, rates[i], r->value);
            r->value[T2] = fmax(r->value[T2], chunk_distance(r->name, kind, rates[i]));
        }
        r->value[T3] += rollback_differences(r->name, kind);
    }
    r->value[T4] = fold_distance(r->name);
    r->value[T10] = decay_ratio(r->name);
    for (int i = 0; i < n; i++) {
        if (!same_codec(r, &done[i])) continue;
        static const int own[] = {T5, T6, T7, T8, SINGLE, TWICE, DECAYED, LATER, NORM};
        for (int j = 0; j < COUNT(own); j++) r->value[own[j]] = done[i].value[own[j]];
        return;
    }
    measure_codec(r->name, r->value);
    measure_idempotence(r->name, r->value);
}

static bool promised(const column *c, double value) { return fabs(value - c->centre) <= c->limit; }

/* The cell of a measured value. */
static void write_cell(const column *c, double value, char *cell) {
    if (c->kind == BYTES) snprintf(cell, CELL, "%.0f", value);
    else if (c->kind != NUMBER && promised(c, value)) snprintf(cell, CELL, "must");
    else if (c->centre == 0 && value < c->floor) snprintf(cell, CELL, "<%.0e", c->floor);
    else if (c->centre == 0 || value >= 100) snprintf(cell, CELL, "%.1e", value);
    else snprintf(cell, CELL, "%.4f", value);
}

/* Is the value what the cell says? Anything that is not a cell fails. */
static bool cell_met(const column *c, const char *cell, double value) {
    if (!strcmp(cell, "must")) return c->kind != NUMBER && c->kind != BYTES && promised(c, value);
    char *end;
    const double expected = strtod(cell + (*cell == '<'), &end);
    if (end == cell || *end || c->kind == PROMISE) return false;
    if (*cell == '<') return value < expected;
    if (c->kind == BYTES) return value == expected;
    const double off = fabs(expected - c->centre);
    return fabs(value - expected) <= fmax(.2 * off, off < c->floor ? c->floor : 0);
}

/* The rows of docs/methods.md: lines of CELLS + 1 cells whose first is a `name`. */
static int read_document(row *rows) {
    char *text, *line, *rest;
    size_t bytes;
    ebb_error error;
    must(read_file(SOURCE_DIR "/docs/methods.md", 1 << 20, &text, &bytes, &error), &error);
    int n = 0;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        int at = 0;
        if (strncmp(line, "| `", 3)) continue;
        if (n == MAX_ROWS) fail_msg("docs/methods.md: more than %d rows", MAX_ROWS);
        row *r = &rows[n++];
        if (sscanf(line, "| `%63[^`]` |%n", r->name, &at) != 1 || !at) fail_msg("not a row: %s", line);
        for (int i = 0; i < CELLS; i++) {
            int used = 0;
            if (sscanf(line + at, " %23[^ |] |%n", r->cell[i], &used) != 1 || !used)
                fail_msg("docs/methods.md: %s: no cell for %s", r->name, columns[i].name);
            at += used;
        }
        if (line[at + (int)strspn(line + at, " ")]) fail_msg("docs/methods.md: %s has too many cells", r->name);
        for (int i = 0; i < n - 1; i++)
            if (!strcmp(rows[i].name, r->name)) fail_msg("docs/methods.md: %s has two rows", r->name);
        if (ebb_state_parse(r->name, &r->spec, &error)) fail_msg("docs/methods.md: %s", error.text);
    }
    free(text);
    return n;
}

static const row *row_of(const row *rows, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(rows[i].name, name)) return &rows[i];
    return NULL;
}

static row *documented;
static int n_documented;

/* Every method of the library has a row. */
static void test_complete(void **state) {
    (void)state;
    int32_t n;
    const ebb_state_method *methods = ebb_state_methods(&n);
    for (int32_t i = 0; i < n; i++)
        if (!row_of(documented, n_documented, methods[i].name))
            fail_msg("docs/methods.md has no row for %s", methods[i].name);
}

static void test_cells(void **state) {
    (void)state;
    int wrong = 0;
    for (int i = 0; i < n_documented; i++) {
        row *r = &documented[i];
        measure(r, documented, i);
        for (int c = 0; c < CELLS; c++)
            if (!cell_met(&columns[c], r->cell[c], r->value[c])) {
                print_error("%s, %s: the document says %s, measured %.3g\n", r->name, columns[c].name, r->cell[c],
                            r->value[c]);
                wrong++;
            }
    }
    assert_int_equal(wrong, 0);
}

/* Numbers of other programs on the same matrix (maths 4.6): within 20 %, or no more than rounding. Those of TurboQuant
 * with a stored norm and of LeapQuant refitted at every store hang on its random signs and start: least and largest of
 * five signs and of 14 starts. */
static void test_known_numbers(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double least[5], largest[5];
    } known[] = {
        {"int8", {7.9e-3, 0, 0, 0, 1}, {7.9e-3, 0, 6e-8, 4e-7, 1}},
        {"fp8", {.021, 0, 0, 0, 1}, {.021, 0, 4e-8, 5e-7, 1}},
        {"bf16", {1.6e-3, 0, 1e-3, .22, 1.22}, {1.6e-3, 0, 1e-3, .22, 1.22}},
        {"nvfp4", {.093, 0, 0, 0, 1}, {.093, 0, 9e-8, 2e-7, 1}},
        {"mxfp4", {.13, 0, .084, .21, 1.19}, {.13, 0, .084, .21, 1.19}},
        {"int8-affine:zero=paper", {6e-3, 2.6e-4, 3.4e-4, .036, 1.016}, {6e-3, 2.6e-4, 3.4e-4, .036, 1.016}},
        {"int8-fp16s", {7.9e-3, 0, 1.7e-4, .028, 1.004}, {7.9e-3, 0, 1.7e-4, .028, 1.004}},
        {"int8-bf16s", {8e-3, 0, 1e-3, .22, 1.22}, {8e-3, 0, 1e-3, .22, 1.22}},
        {"int8-ls", {7.9e-3, 0, 0, 0, 1}, {7.9e-3, 6e-8, 6e-8, 8e-7, 1}},
        {"int4-ls", {.13, 0, 0, 0, 1}, {.13, 6e-8, 6e-8, 8e-7, 1}},
        {"turboquant8", {6e-3, 5.5e-4, 5.5e-4, .1, .966}, {6.3e-3, 9.4e-4, 9.4e-4, .21, 1.12}},
        {"turboquant8:norm=ls", {6.1e-3, 0, 0, 0, 1}, {7.2e-3, 1e-7, 3e-7, 1.2e-5, 1}},
        {"turboquant4:norm=ls", {.094, 0, 0, 0, 1}, {.094, 1e-7, 3e-7, 1e-5, 1}},
        {"leap8:scale=max", {3.6e-3, 1.4e-3, 1.4e-3, .05, 1.001}, {3.8e-3, 2.3e-3, 2.3e-3, .33, 1.08}},
    };
    int wrong = 0;
    for (int i = 0; i < COUNT(known); i++) {
        const row *r = row_of(documented, n_documented, known[i].name);
        if (!r) fail_msg("docs/methods.md has no row for %s", known[i].name);
        for (int c = SINGLE; c <= NORM; c++) {
            const double centre = columns[c].centre, value = r->value[c] - centre;
            const double least = known[i].least[c - SINGLE] - centre, largest = known[i].largest[c - SINGLE] - centre;
            if (value >= least - .2 * fabs(least) && value <= largest + .2 * fabs(largest)) continue;
            if (fabs(value) < columns[c].floor) continue;
            print_error("%s, %s: known %.3g to %.3g, measured %.3g\n", r->name, columns[c].name, least + centre,
                        largest + centre, r->value[c]);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

/* The table as measured: the methods of the library, then the document's rows with parameters. */
static void write_table(void) {
    int32_t n_methods, n = 0;
    const ebb_state_method *methods = ebb_state_methods(&n_methods);
    row *rows = calloc(MAX_ROWS, sizeof *rows);
    for (int32_t i = 0; i < n_methods; i++) snprintf(rows[n++].name, NAME, "%s", methods[i].name);
    for (int i = 0; i < n_documented && n < MAX_ROWS; i++)
        if (strchr(documented[i].name, ':')) snprintf(rows[n++].name, NAME, "%s", documented[i].name);
    printf("| method |");
    for (int c = 0; c < CELLS; c++) printf(" %s |", columns[c].name);
    printf("\n|---|");
    for (int c = 0; c < CELLS; c++) printf("---|");
    for (int i = 0; i < n; i++) {
        ebb_error error;
        must(ebb_state_parse(rows[i].name, &rows[i].spec, &error), &error);
        measure(&rows[i], rows, i);
        printf("\n| `%s` |", rows[i].name);
        for (int c = 0; c < CELLS; c++) {
            char cell[CELL];
            write_cell(&columns[c], rows[i].value[c], cell);
            printf(" %s |", cell);
        }
        fflush(stdout);
    }
    printf("\n");
    free(rows);
}

static int setup(void **state) {
    (void)state;
    documented = calloc(MAX_ROWS, sizeof *documented);
    return !documented || ebb_device_open("cpu", NULL, &device, NULL) != EBB_OK;
}
static int teardown(void **state) {
    (void)state;
    free(documented);
    ebb_device_close(device);
    return 0;
}

static void test_read(void **state) {
    (void)state;
    n_documented = read_document(documented);
    if (getenv("EBB_WRITE_TABLE")) write_table();
    assert_true(n_documented > 0);
}

int main(void) {
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_complete),
        cmocka_unit_test(test_cells),
        cmocka_unit_test(test_known_numbers),
    };
    return cmocka_run_group_tests_name("method table", all, setup, teardown);
}
