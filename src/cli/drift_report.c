/* cli/drift_report.c: a measurement of drift as Markdown tables, as one JSON object and as a figure. Called by drift.c.
 */
#include "cli/drift_report.h"
#include "cli/json_out.h"
#include "measure/plot.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ebb_drift_summary summary_of(const drift_report *r, int64_t point, int32_t method) {
    ebb_drift_summary s;
    ebb_drift_summarize(r->drift, point, method, 0, r->drift->heads, &s);
    return s;
}

static int method_width(const drift_report *r) {
    size_t width = strlen("method");
    for (int32_t i = 0; i < r->drift->methods; i++)
        if (strlen(r->methods[i]) > width) width = strlen(r->methods[i]);
    return (int)width;
}

/* ---- tables ---- */

enum { COLUMNS = 8 }; /* positions that a table shows at most */

/* The last position and every so many before it. */
static int32_t choose_columns(const ebb_drift *d, int64_t *points) {
    const int64_t stride = (d->points + COLUMNS - 1) / COLUMNS;
    int32_t n = 0;
    for (int64_t i = stride ? (d->points - 1) % stride : 0; i < d->points; i += stride) points[n++] = i;
    return n;
}

static void print_rule(int width) {
    for (int i = 0; i < width; i++) putchar('-');
}

static void print_head(const drift_report *r, drift_by by, const int64_t *points, int32_t n, int width) {
    printf("| %-*s ", width, "method");
    if (by != BY_ALL) printf("| layer ");
    if (by == BY_HEAD) printf("| head ");
    for (int32_t i = 0; i < n; i++) printf("| %8lld ", (long long)r->drift->position[points[i]]);
    printf("|\n|:");
    print_rule(width + 1);
    if (by != BY_ALL) printf("|------:");
    if (by == BY_HEAD) printf("|-----:");
    for (int32_t i = 0; i < n; i++) printf("|---------:");
    puts("|");
}

/* Heads from `first` that share a row. */
static int32_t group_heads(const ebb_drift *d, drift_by by, int32_t first) {
    int32_t n = 1;
    if (by == BY_ALL) return d->heads;
    while (by == BY_LAYER && first + n < d->heads && d->head[first + n].layer == d->head[first].layer) n++;
    return n;
}

/* Method x position: the mean over the heads of a row, of the states or of the outputs. */
static void print_table(const drift_report *r, drift_by by, bool output) {
    const ebb_drift *d = r->drift;
    const int width = method_width(r);
    int64_t points[COLUMNS + 1];
    const int32_t columns = choose_columns(d, points);
    print_head(r, by, points, columns, width);
    for (int32_t m = 0; m < d->methods; m++)
        for (int32_t first = 0, n; first < d->heads; first += n) {
            n = group_heads(d, by, first);
            printf("| %-*s ", width, r->methods[m]);
            if (by != BY_ALL) printf("| %5d ", d->head[first].layer);
            if (by == BY_HEAD) printf("| %4d ", d->head[first].head);
            for (int32_t i = 0; i < columns; i++) {
                ebb_drift_summary s;
                ebb_drift_summarize(d, points[i], m, first, n, &s);
                printf("| %8.2e ", output ? s.output_mean : s.state_mean);
            }
            puts("|");
        }
}

/* All heads of every method at the last position. */
static void print_last(const drift_report *r) {
    const ebb_drift *d = r->drift;
    const int width = method_width(r);
    printf("| %-*s |    bytes |     mean |      RMS |    worst | layer | head | its decay | output RMS |\n|:", width,
           "method");
    print_rule(width + 1);
    puts("|---------:|---------:|---------:|---------:|------:|-----:|----------:|-----------:|");
    for (int32_t m = 0; m < d->methods; m++) {
        const ebb_drift_summary s = summary_of(r, d->points - 1, m);
        const ebb_drift_head *worst = &d->head[s.state_worst];
        printf("| %-*s | %8zu | %8.2e | %8.2e | %8.2e | %5d | %4d | %9.5f | %10.2e |\n", width, r->methods[m],
               d->packed[m], s.state_mean, s.state_rms, s.state_max, worst->layer, worst->head, worst->decay,
               s.output_rms);
    }
}

void drift_print(const drift_report *r, drift_by by) {
    static const char *const of[] = {"all heads", "the heads of a layer", "each head"};
    const ebb_drift *d = r->drift;
    printf("%s on %s: %d %s of %lld tokens, KV cache %s, %d heads with a state\nkernel rows: %s; %d %s\n", r->model,
           r->text, d->seqs, d->seqs == 1 ? "sequence" : "sequences",
           (long long)(d->points ? d->position[d->points - 1] : 0), r->kv, d->heads, d->rows, r->threads,
           r->threads == 1 ? "thread" : "threads");
    if (!d->points) return;
    printf("\nState drift |S_q - S| / |S| after so many tokens, mean over %s:\n\n", of[by]);
    print_table(r, by, false);
    printf("\nOutput error |o_q - o| / |o| over the tokens since the measuring position before, mean over %s:\n\n",
           of[by]);
    print_table(r, by, true);
    printf("\nAfter %lld tokens, all heads (bytes: of the packed states of one sequence):\n\n",
           (long long)d->position[d->points - 1]);
    print_last(r);
}

/* ---- JSON ---- */

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *heads_json(const ebb_drift *d) {
    json_t *heads = json_array();
    for (int32_t i = 0; i < d->heads && d->points; i++)
        heads = json_and(heads, json_pack("{s:i, s:i, s:o}", "layer", d->head[i].layer, "head", d->head[i].head,
                                          "decay", number(d->head[i].decay)));
    return heads;
}

/* [positions][heads] */
static json_t *cells_json(const ebb_drift *d, int32_t method, bool output) {
    json_t *rows = json_array();
    for (int64_t p = 0; p < d->points; p++) {
        json_t *row = json_array();
        for (int32_t h = 0; h < d->heads; h++) {
            ebb_drift_summary s;
            ebb_drift_summarize(d, p, method, h, 1, &s);
            row = json_and(row, number(output ? s.output_mean : s.state_mean));
        }
        rows = json_and(rows, row);
    }
    return rows;
}

static json_t *method_json(const drift_report *r, int32_t m) {
    static const char *const names[] = {"state_mean",  "state_rms",  "state_max",
                                        "output_mean", "output_rms", "output_max"};
    enum { N = sizeof names / sizeof *names };
    json_t *method = json_pack("{s:s, s:I}", "method", r->methods[m], "packed_bytes", (json_int_t)r->drift->packed[m]);
    json_t *columns[N];
    for (int i = 0; i < N; i++) columns[i] = json_array();
    for (int64_t p = 0; p < r->drift->points; p++) {
        const ebb_drift_summary s = summary_of(r, p, m);
        const double values[N] = {s.state_mean, s.state_rms, s.state_max, s.output_mean, s.output_rms, s.output_max};
        for (int i = 0; i < N; i++) columns[i] = json_and(columns[i], number(values[i]));
    }
    for (int i = 0; i < N; i++) method = json_with(method, names[i], columns[i]);
    method = json_with(method, "state", cells_json(r->drift, m, false));
    method = json_with(method, "output", cells_json(r->drift, m, true));
    return method;
}

ebb_status drift_print_json(const drift_report *r, ebb_error *error) {
    const ebb_drift *d = r->drift;
    json_t *positions = json_array(), *methods = json_array();
    for (int64_t p = 0; p < d->points; p++) positions = json_and(positions, json_integer(d->position[p]));
    for (int32_t m = 0; m < d->methods; m++) methods = json_and(methods, method_json(r, m));
    const bool complete = d->points && d->position[d->points - 1] == r->tokens;
    json_t *root = json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:f, s:b, s:o, s:o, s:o}", "model", r->model, "text",
                             r->text, "kv", r->kv, "rows", d->rows, "tokens", (json_int_t)r->tokens, "seqs", d->seqs,
                             "threads", r->threads, "seconds", r->seconds, "complete", complete, "positions", positions,
                             "heads", heads_json(d), "methods", methods);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!text) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the JSON of this measurement");
    puts(text);
    free(text);
    return EBB_OK;
}

/* ---- the figure ---- */

/* int8 and int8-w, leap8 and leap8:r=2: one family, one colour. */
static size_t stem(const char *method) { return strcspn(method, "-:"); }

/* A colour for every family; a dash pattern for every method of a colour. */
static void choose_style(const drift_report *r, int32_t m, plot_series *series) {
    int32_t families = 0;
    plot_series *s = &series[m];
    for (int32_t i = 0; i <= m; i++) {
        int32_t first = 0;
        while (stem(r->methods[first]) != stem(r->methods[i]) ||
               strncmp(r->methods[first], r->methods[i], stem(r->methods[i])) != 0)
            first++;
        if (i == m) s->color = first < m ? series[first].color : families % PLOT_COLORS;
        families += first == i;
    }
    s->dash = 0;
    for (int32_t i = 0; i < m; i++) s->dash += series[i].color == s->color;
}

ebb_status drift_draw(const drift_report *r, const char *path, ebb_error *error) {
    const ebb_drift *d = r->drift;
    const size_t points = (size_t)d->points, methods = (size_t)d->methods;
    plot_series *series = calloc(2 * methods, sizeof *series); /* means, then worst heads */
    double *x = calloc(points + 1, sizeof *x), *y = calloc(2 * methods * points + 1, sizeof *y);
    char title[200], subtitle[200];
    ebb_status status = EBB_OK;
    if (!series || !x || !y) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the figure");
    for (size_t p = 0; p < points && !status; p++) x[p] = (double)d->position[p];
    for (int32_t m = 0; m < d->methods && !status; m++) {
        double *mean = y + (size_t)m * points, *worst = mean + methods * points;
        for (int64_t p = 0; p < d->points; p++) {
            const ebb_drift_summary s = summary_of(r, p, m);
            mean[p] = s.state_mean, worst[p] = s.state_max;
        }
        series[m] = (plot_series){.label = r->methods[m], .x = x, .y = mean, .n = d->points};
        choose_style(r, m, series);
        series[d->methods + m] = series[m];
        series[d->methods + m].label = NULL;
        series[d->methods + m].y = worst;
        series[d->methods + m].thin = true;
    }
    snprintf(title, sizeof title, "Drift of the recurrent state: %s", r->model);
    snprintf(subtitle, sizeof subtitle, "%s, %d %s; lines: mean over %d heads, pale: the worst head", r->text, d->seqs,
             d->seqs == 1 ? "sequence" : "sequences", d->heads);
    const plot p = {.title = title,
                    .subtitle = subtitle,
                    .x = {"tokens", true},
                    .y = {"relative error of the state against FP32", true},
                    .series = series,
                    .n = 2 * d->methods};
    if (!status) status = plot_write(&p, path, error);
    free(series), free(x), free(y);
    return status;
}
