/* cli/eval_report.c: the results of `ebb eval` as Markdown tables and as figures. Called by eval.c. */
#define _GNU_SOURCE
#include "cli/eval.h"
#include "core/core.h"
#include "measure/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const json_t *at(const json_t *object, const char *name) { return json_object_get(object, name); }
static double real_at(const json_t *object, const char *name) {
    const json_t *v = at(object, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static int name_width(const eval_work *w) {
    size_t width = strlen("method");
    for (int32_t i = 0; i < w->methods; i++)
        if (strlen(w->method[i].name) > width) width = strlen(w->method[i].name);
    return (int)width;
}

/* Under a head whose first column is `width` wide, the others as `columns` says. */
static void rule(FILE *to, int width, const int *columns, int n) {
    fprintf(to, "|:");
    for (int i = 0; i <= width; i++) fputc('-', to);
    for (int c = 0; c < n; c++) {
        fputc('|', to);
        for (int i = 0; i <= columns[c]; i++) fputc('-', to);
        fputc(':', to);
    }
    fputs("|\n", to);
}

/* "12,345" is easier to read than 12345. */
static const char *grouped(double value, char text[32]) {
    char plain[24];
    if (!isfinite(value)) return strcpy(text, "-");
    const int n = snprintf(plain, sizeof plain, "%.0f", value);
    char *out = text;
    for (int i = 0; i < n; i++) {
        *out++ = plain[i];
        if (i + 1 < n && (n - i - 1) % 3 == 0) *out++ = ',';
    }
    *out = '\0';
    return text;
}

/* ---- tasks ---- */

static void print_task(const eval_work *w, FILE *to, const char *file, const json_t *of) {
    const int width = name_width(w);
    static const int columns[] = {11, 5, 14, 14, 11, 6, 4};
    const json_t *any = at(of, w->method[0].name);
    char bytes[32];
    fprintf(to, "\nAnswers to %s, %.0f problems", file, real_at(any, "n"));
    if (real_at(any, "runs") > 1) fprintf(to, ", %.0f answers to each", real_at(any, "runs"));
    fprintf(
        to,
        ". Score in %% with its 95 %% interval; difference to %s in points, paired by problem;\nthe median first wrong "
        "token of wrong answers; tokens of an answer; answers cut at the limit:\n\n",
        w->method[0].name);
    fprintf(to, "| %-*s | state bytes | score |           95 %% |     difference | first error | tokens |  cut |\n",
            width, "method");
    rule(to, width, columns, COUNT(columns));
    for (int32_t i = 0; i < w->methods; i++) {
        const json_t *m = at(of, w->method[i].name);
        if (!m) continue;
        fprintf(to, "| %-*s | %11s | %5.1f | %5.1f to %5.1f |", width, w->method[i].name,
                grouped(real_at(m, "state_packed"), bytes), 100 * real_at(m, "score"), 100 * real_at(m, "low"),
                100 * real_at(m, "high"));
        if (i) fprintf(to, " %+6.1f ± %5.1f |", 100 * real_at(m, "difference"), 100 * real_at(m, "half"));
        else fprintf(to, "                |");
        if (json_is_number(at(m, "first_error"))) fprintf(to, " %11.0f |", real_at(m, "first_error"));
        else fprintf(to, "             |");
        fprintf(to, " %6.0f | %4.0f |\n", real_at(m, "tokens"), real_at(m, "cut"));
    }
}

/* ---- texts ---- */

/* The last measured point of drift. */
static const json_t *last_point(const json_t *cell) {
    const json_t *points = at(cell, "points");
    return json_array_get(points, json_array_size(points) - 1);
}

static void print_number(FILE *to, double v) {
    if (isfinite(v)) fprintf(to, " %9.2e |", v);
    else fprintf(to, "         - |");
}

static void print_text(const eval_work *w, FILE *to, const char *file) {
    const json_t *nll = at(at(w->result, "nll"), file), *drift = at(at(w->result, "drift"), file),
                 *injected = at(at(w->result, "injected"), file);
    static const int columns[] = {11, 9, 7, 21, 9, 9, 9, 9};
    const int width = name_width(w);
    char bytes[32], kv[32];
    fprintf(
        to,
        "\n%s, %lld tokens. NLL: -log p, nat a token, and its difference to %s with the 95 %% interval; injected: the "
        "error of\nstoring an FP32 state once; drift of the states and error of the outputs at the end (RMS over "
        "heads), and the worst head:\n\n",
        file, (long long)w->o.tokens, w->method[0].name);
    fprintf(
        to,
        "| %-*s | state bytes |  KV bytes |     NLL |            difference |  injected |     drift |     worst |    "
        "output |\n",
        width, "method");
    rule(to, width, columns, COUNT(columns));
    for (int32_t i = 0; i < w->methods; i++) {
        const char *name = w->method[i].name;
        const json_t *n = at(nll, name), *d = at(drift, name), *in = at(injected, name), *last = last_point(d);
        if (!n && !d && !in) continue;
        const double packed = real_at(n ? n : d, "state_packed");
        fprintf(to, "| %-*s | %11s | %9s |", width, name, grouped(packed, bytes), grouped(real_at(n, "kv"), kv));
        if (json_is_true(at(n, "diverged"))) fprintf(to, "       - |                     - |");
        else if (!n) fprintf(to, "         |                       |");
        else if (!i) fprintf(to, " %7.4f |                       |", real_at(n, "nll"));
        else
            fprintf(to, " %7.4f | %+9.2e ± %9.2e |", real_at(n, "nll"), real_at(n, "difference"),
                    real_at(n, "difference_half"));
        print_number(to, real_at(in, "rms"));
        print_number(to, real_at(last, "state_rms"));
        print_number(to, real_at(last, "state_max"));
        print_number(to, real_at(last, "output_rms"));
        fputc('\n', to);
    }
}

/* |delta log p| and KL by position. */
static void print_marks(const eval_work *w, FILE *to, const char *file) {
    const json_t *nll = at(at(w->result, "nll"), file);
    int64_t marks[EVAL_MARKS], begin = 1;
    const int32_t n = eval_marks(w->o.tokens, marks);
    int columns[2 * EVAL_MARKS];
    const int width = name_width(w);
    if (!nll) return;
    for (int32_t i = 0; i < n; i++) columns[i] = 19, columns[n + i] = 9;
    fprintf(to, "\nAgainst %s, tokens", w->method[0].name);
    for (int32_t i = 0; i < n; i++, begin = marks[i - 1] + 1)
        fprintf(to, "%s %lld to %lld", i ? "," : "", (long long)begin, (long long)marks[i]);
    fprintf(to, ":\nmean |delta log p| (its 95th percentile), and KL over the %lld likeliest tokens:\n\n| %-*s |",
            (long long)w->o.top, width, "method");
    for (int32_t i = 0; i < n; i++) fprintf(to, " %19lld |", (long long)marks[i]);
    for (int32_t i = 0; i < n; i++) fprintf(to, "  KL %5lld |", (long long)marks[i]);
    fputc('\n', to);
    rule(to, width, columns, 2 * n);
    for (int32_t i = 1; i < w->methods; i++) {
        const json_t *m = at(nll, w->method[i].name);
        if (!m) continue;
        fprintf(to, "| %-*s |", width, w->method[i].name);
        for (int32_t j = 0; j < n; j++) {
            const json_t *mark = json_array_get(at(m, "marks"), (size_t)j);
            if (mark) fprintf(to, " %8.2e (%8.2e) |", real_at(mark, "mean"), real_at(mark, "p95"));
            else fprintf(to, "                   - |");
        }
        for (int32_t j = 0; j < n; j++) print_number(to, real_at(json_array_get(at(m, "marks"), (size_t)j), "kl"));
        fputc('\n', to);
    }
}

void eval_print(const eval_work *w, FILE *to) {
    const char *file;
    json_t *of;
    const json_t *model = at(w->result, "model");
    fprintf(to, "%s, ebb %s, %.0f threads", json_string_value(model), ebb_version(), real_at(w->result, "threads"));
    if (w->sampling.temperature > 0)
        fprintf(to, "; temperature %g, top-p %g, top-k %d, seed %lld", (double)w->sampling.temperature,
                (double)w->sampling.top_p, w->sampling.top_k, (long long)w->o.seed);
    fputc('\n', to);
    json_object_foreach(json_object_get(w->result, "tasks"), file, of) print_task(w, to, file, of);
    const char *const groups[] = {"nll", "drift", "injected"};
    const char *seen[EVAL_FILES];
    int32_t n = 0;
    for (int32_t g = 0; g < COUNT(groups); g++) json_object_foreach(json_object_get(w->result, groups[g]), file, of) {
            int32_t i = 0;
            while (i < n && strcmp(seen[i], file) != 0) i++;
            if (i < n || n == EVAL_FILES) continue;
            seen[n++] = file;
            print_text(w, to, file);
            print_marks(w, to, file);
        }
}

/* ---- figures ---- */

typedef struct figure {
    plot_series series[EVAL_METHODS];
    double x[EVAL_METHODS][64], y[EVAL_METHODS][64];
    int32_t n;
} figure;

static void add_series(figure *f, const char *label, int64_t n) {
    const int32_t i = f->n++;
    f->series[i] = (plot_series){
        .label = label, .x = f->x[i], .y = f->y[i], .n = n, .color = i, .dash = i / PLOT_COLORS % PLOT_DASHES};
}

static ebb_status write_figure(const eval_work *w, const figure *f, const char *kind, const char *file,
                               const plot *shape, ebb_error *error) {
    char name[256];
    plot p = *shape;
    p.series = f->series, p.n = f->n;
    snprintf(name, sizeof name, "%s-%.150s.svg", kind, file);
    for (char *c = name; *c; c++)
        if (*c == '/') *c = '_';
    char *path = path_join(w->o.folder, name);
    ebb_status status = path ? plot_write(&p, path, error) : ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    free(path);
    return status;
}

/* Score over bytes, a point a method. */
static ebb_status draw_task(const eval_work *w, figure *f, const char *file, const json_t *of, ebb_error *error) {
    f->n = 0;
    for (int32_t i = 0; i < w->methods; i++) {
        const json_t *m = at(of, w->method[i].name);
        if (!m) continue;
        f->x[f->n][0] = real_at(m, "state_packed"), f->y[f->n][0] = 100 * real_at(m, "score");
        add_series(f, w->method[i].name, 1);
    }
    const plot shape = {.title = file,
                        .subtitle = "right answers by bytes of the states of one sequence",
                        .x = {"bytes", true},
                        .y = {"right, %", false}};
    return f->n ? write_figure(w, f, "task", file, &shape, error) : EBB_OK;
}

static ebb_status draw_marks(const eval_work *w, figure *f, const char *file, const json_t *of, ebb_error *error) {
    f->n = 0;
    for (int32_t i = 1; i < w->methods; i++) {
        const json_t *marks = at(at(of, w->method[i].name), "marks");
        const int64_t n = (int64_t)json_array_size(marks);
        for (int64_t j = 0; j < n; j++) {
            const json_t *mark = json_array_get(marks, (size_t)j);
            f->x[f->n][j] = real_at(mark, "to"), f->y[f->n][j] = real_at(mark, "mean");
        }
        if (n) add_series(f, w->method[i].name, n);
    }
    const plot shape = {.title = file,
                        .subtitle = "mean |delta log p| of the tokens up to here",
                        .x = {"tokens", true},
                        .y = {"|delta log p|", true}};
    return f->n ? write_figure(w, f, "logp", file, &shape, error) : EBB_OK;
}

static ebb_status draw_drift(const eval_work *w, figure *f, const char *file, const json_t *of, ebb_error *error) {
    f->n = 0;
    for (int32_t i = 0; i < w->methods; i++) {
        const json_t *points = at(at(of, w->method[i].name), "points");
        const int64_t n = min_i64((int64_t)json_array_size(points), COUNT(f->x[0]));
        for (int64_t j = 0; j < n; j++) {
            const json_t *point = json_array_get(points, (size_t)j);
            f->x[f->n][j] = real_at(point, "position"), f->y[f->n][j] = real_at(point, "state_rms");
        }
        if (n) add_series(f, w->method[i].name, n);
    }
    const plot shape = {.title = file,
                        .subtitle = "drift of the states, RMS over heads",
                        .x = {"tokens", true},
                        .y = {"|S_q - S| / |S|", true}};
    return f->n ? write_figure(w, f, "drift", file, &shape, error) : EBB_OK;
}

ebb_status eval_draw(const eval_work *w, ebb_error *error) {
    const char *file;
    json_t *of;
    ebb_status status = EBB_OK;
    figure *f = calloc(1, sizeof *f);
    if (!f) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a figure");
    json_object_foreach(json_object_get(w->result, "tasks"), file, of) if (!status) status =
        draw_task(w, f, file, of, error);
    json_object_foreach(json_object_get(w->result, "nll"), file, of) if (!status) status =
        draw_marks(w, f, file, of, error);
    json_object_foreach(json_object_get(w->result, "drift"), file, of) if (!status) status =
        draw_drift(w, f, file, of, error);
    free(f);
    return status;
}
