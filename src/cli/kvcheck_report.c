/* cli/kvcheck_report.c: the results of `ebb kvcheck` as Markdown tables, as one JSON object and as a figure. Called by
 * kvcheck.c. */
#include "cli/kvcheck.h"
#include "core/core.h"
#include "measure/heatmap.h"
#include "measure/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double number(const json_t *of, const char *key) { return json_number_value(json_object_get(of, key)); }

static const json_t *of_store(const kvcheck_work *w, const char *group, int32_t store) {
    return json_object_get(json_object_get(w->result, group), w->name[store]);
}

static int name_width(const kvcheck_work *w) {
    int width = 8;
    for (int32_t i = 0; i < w->stores; i++)
        if ((int)strlen(w->name[i]) > width) width = (int)strlen(w->name[i]);
    return width;
}

static void print_rule(int width, const char *columns) {
    fputs("|:", stdout);
    for (int i = 0; i <= width; i++) putchar('-');
    puts(columns);
}

/* ---- tables ---- */

/* sqrt(error / norm) of all layers together. */
static double all_layers(const json_t *cells) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < json_array_size(cells); i++) {
        error += number(json_array_get(cells, i), "error");
        norm += number(json_array_get(cells, i), "norm");
    }
    return norm > 0 ? sqrt(error / norm) : 0;
}

static double relative(const json_t *cell) {
    const double norm = number(cell, "norm");
    return norm > 0 ? sqrt(number(cell, "error") / norm) : 0;
}

static void print_attention(const kvcheck_work *w, const char *pass, const char *what) {
    const int width = name_width(w);
    printf("\nOutputs of attention against FP32, %s: relative RMS of all layers; of the layers' MSE the least, the\n"
           "median and the largest; relative RMS of the worst layer:\n\n"
           "| %-*s | all RMS  | MSE least | median   | largest  | worst RMS | layer |\n",
           what, width, "store");
    print_rule(width, "|---------:|----------:|---------:|---------:|----------:|------:|");
    for (int32_t s = 1; s < w->stores; s++) {
        const json_t *cells = json_object_get(of_store(w, "attention", s), pass);
        const size_t n = json_array_size(cells);
        double sorted[1024], worst = -1;
        int layer = -1;
        if (!n || n > COUNT(sorted)) continue;
        for (size_t i = 0; i < n; i++) {
            const json_t *cell = json_array_get(cells, i);
            size_t j = i;
            for (; j > 0 && sorted[j - 1] > number(cell, "mse"); j--) sorted[j] = sorted[j - 1];
            sorted[j] = number(cell, "mse");
            if (relative(cell) > worst) worst = relative(cell), layer = (int)number(cell, "layer");
        }
        printf("| %-*s | %8.2e | %9.2e | %8.2e | %8.2e | %9.2e | %5d |\n", width, w->name[s], all_layers(cells),
               sorted[0], sorted[n / 2], sorted[n - 1], worst, layer);
    }
}

static void print_mass(const kvcheck_work *w) {
    const json_t *list = json_object_get(json_object_get(w->result, "mass"), "all");
    if (!list) return;
    printf(
        "\nSoftmax weight of the generated tokens, percent: on the newest keys, and on the %g %% vertical keys below\n"
        "them as select=segment and select=prompt choose them:\n\n"
        "| layer | 128 newest | segment | prompt | 256 newest | segment | prompt |\n"
        "|------:|-----------:|--------:|-------:|-----------:|--------:|-------:|\n",
        100 * w->o.ratio);
    double sum[6] = {0};
    const size_t n = json_array_size(list) / EBB_KVCHECK_WINDOWS;
    for (size_t i = 0; i <= n; i++) {
        double x[6];
        for (size_t j = 0; j < 6; j++) {
            static const char *const keys[] = {"newest", "segment", "prompt"};
            if (i < n) sum[j] += x[j] = 100 * number(json_array_get(list, 2 * i + j / 3), keys[j % 3]);
            else x[j] = sum[j] / (double)n;
        }
        if (i < n) printf("| %5d ", (int)number(json_array_get(list, 2 * i), "layer"));
        else fputs("|  mean ", stdout);
        printf("| %10.1f | %7.1f | %6.1f | %10.1f | %7.1f | %6.1f |\n", x[0], x[1], x[2], x[3], x[4], x[5]);
    }
}

static void print_nll(const kvcheck_work *w) {
    const int width = name_width(w);
    if (!json_object_get(w->result, "nll")) return;
    printf("\n-log p of the text, nats a token; the difference to fp32 with its 95 %% interval, paired by token; the "
           "same\n"
           "of the %lld generated tokens; bytes of the cache:\n\n"
           "| %-*s | NLL     | difference          | percent | generated           |       bytes |\n",
           (long long)w->o.steps, width, "store");
    print_rule(width, "|--------:|--------------------:|--------:|--------------------:|------------:|");
    const double exact = number(of_store(w, "nll", 0), "mean");
    for (int32_t s = 0; s < w->stores; s++) {
        const json_t *x = of_store(w, "nll", s);
        if (!x) continue;
        printf("| %-*s | %7.4f | %+8.5f \xC2\xB1 %7.5f | %+7.3f | %+8.5f \xC2\xB1 %7.5f | %11.0f |\n", width,
               w->name[s], number(x, "mean"), number(x, "difference"), number(x, "half"),
               100 * number(x, "difference") / exact, number(x, "steps_difference"), number(x, "steps_half"),
               number(x, "bytes"));
    }
}

static void print_needles(const kvcheck_work *w) {
    const int width = name_width(w);
    for (int32_t l = 0; l < w->lengths; l++) {
        char group[48];
        snprintf(group, sizeof group, "needles %lld", (long long)w->length[l]);
        if (!json_object_get(w->result, group)) continue;
        printf(
            "\nNeedles in %lld tokens: found, with Wilson's 95 %% interval; difference to fp32, paired; by depth:\n\n"
            "| %-*s | found     | percent | interval      | difference      | by depth\n",
            (long long)w->length[l], width, "store");
        print_rule(width, "|----------:|--------:|--------------:|----------------:|:---");
        for (int32_t s = 0; s < w->stores; s++) {
            const json_t *x = of_store(w, group, s), *depths = json_object_get(x, "depths");
            if (!x) continue;
            printf("| %-*s | %4.0f/%4.0f | %7.1f | %5.1f - %5.1f | %+6.1f \xC2\xB1 %6.1f |", width, w->name[s],
                   number(x, "right"), number(x, "n"), 100 * number(x, "right") / number(x, "n"),
                   100 * number(x, "low"), 100 * number(x, "high"), 100 * number(x, "difference"),
                   100 * number(x, "half"));
            for (size_t d = 0; d < json_array_size(depths); d++)
                printf(" %.0f", json_number_value(json_array_get(json_array_get(depths, d), 0)));
            puts(" |");
        }
    }
}

static void print_longbench(const kvcheck_work *w) {
    static const char prefix[] = "longbench ";
    const int width = name_width(w);
    const char *group;
    json_t *stores;
    json_object_foreach(w->result, group, stores) {
        if (strncmp(group, prefix, sizeof prefix - 1) != 0) continue;
        printf(
            "\nLongBench %s, %.0f problems: score, difference to fp32 (paired):\n\n| %-*s |  score | difference      "
            "|\n",
            group + sizeof prefix - 1, number(json_object_get(stores, w->name[0]), "n"), width, "store");
        print_rule(width, "|-------:|----------------:|");
        for (int32_t s = 0; s < w->stores; s++) {
            const json_t *x = json_object_get(stores, w->name[s]);
            if (x)
                printf("| %-*s | %6.2f | %+6.2f \xC2\xB1 %6.2f |\n", width, w->name[s], number(x, "score"),
                       number(x, "difference"), number(x, "half"));
        }
    }
}

void kvcheck_print(const kvcheck_work *w) {
    const char *text = json_string_value(json_object_get(w->result, "text"));
    printf("%s on %s: %lld tokens, of which %lld generated\n", json_string_value(json_object_get(w->result, "model")),
           text ? text : "no text", (long long)w->o.tokens, (long long)w->o.steps);
    if (json_object_get(w->result, "attention")) {
        print_attention(w, "prompt", "prompt");
        if (w->o.steps) print_attention(w, "steps", "generated tokens");
    }
    print_mass(w);
    print_nll(w);
    print_needles(w);
    print_longbench(w);
}

ebb_status kvcheck_print_json(const kvcheck_work *w, ebb_error *error) {
    char *text = json_dumps(w->result, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (!text) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the JSON");
    puts(text);
    free(text);
    return EBB_OK;
}

/* ---- figures ---- */

/* Rows are stores and lengths, columns depths. */
static ebb_status draw_needles(const kvcheck_work *w, ebb_error *error) {
    const int32_t rows = w->stores * w->lengths, columns = (int32_t)w->o.depths;
    double *cells = calloc((size_t)rows * (size_t)columns + 1, sizeof *cells);
    char(*labels)[KVCHECK_NAME + 32] = calloc((size_t)rows + 1, sizeof *labels);
    const char **rows_of = calloc((size_t)rows + 1, sizeof *rows_of);
    ebb_status status = EBB_OK;
    if (!cells || !labels || !rows_of) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the figure");
    for (int32_t i = 0; i < rows && !status; i++) {
        char group[48];
        const int64_t length = w->length[i % w->lengths];
        snprintf(group, sizeof group, "needles %lld", (long long)length);
        const json_t *depths = json_object_get(of_store(w, group, i / w->lengths), "depths");
        snprintf(labels[i], sizeof labels[i], "%s, %lld", w->name[i / w->lengths], (long long)length);
        rows_of[i] = labels[i];
        for (int32_t d = 0; d < columns; d++) {
            const json_t *cell = json_array_get(depths, (size_t)d);
            const double of = json_number_value(json_array_get(cell, 1));
            cells[i * columns + d] = of > 0 ? json_number_value(json_array_get(cell, 0)) / of : NAN;
        }
    }
    const heatmap map = {.title = "Needles found, by store, length and depth",
                         .x = "depth, from the beginning of the text to its end",
                         .rows = rows,
                         .columns = columns,
                         .row = rows_of,
                         .cells = cells};
    if (!status) status = heatmap_write(&map, w->o.svg, error);
    free(cells), free(labels), free(rows_of);
    return status;
}

/* Relative RMS of the prompt's outputs, by layer. */
static ebb_status draw_layers(const kvcheck_work *w, ebb_error *error) {
    const size_t n = json_array_size(json_object_get(of_store(w, "attention", w->stores > 1), "prompt"));
    plot_series *series = calloc((size_t)w->stores, sizeof *series);
    double *x = calloc(2 * (n + 1) * (size_t)w->stores, sizeof *x);
    ebb_status status = EBB_OK;
    if (!series || !x) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the figure");
    for (int32_t s = 1; s < w->stores && !status; s++) {
        const json_t *cells = json_object_get(of_store(w, "attention", s), "prompt");
        double *at = x + 2 * (n + 1) * (size_t)s;
        const size_t have = json_array_size(cells) < n ? json_array_size(cells) : n;
        for (size_t i = 0; i < have; i++) {
            at[i] = number(json_array_get(cells, i), "layer");
            at[n + 1 + i] = relative(json_array_get(cells, i));
        }
        series[s - 1] = (plot_series){.label = w->name[s],
                                      .x = at,
                                      .y = at + n + 1,
                                      .n = (int64_t)have,
                                      .color = s - 1,
                                      .dash = (s - 1) / PLOT_COLORS};
    }
    const plot p = {.title = "Outputs of attention against FP32",
                    .subtitle = json_string_value(json_object_get(w->result, "model")),
                    .x = {"layer", false},
                    .y = {"relative RMS error", true},
                    .series = series,
                    .n = w->stores - 1};
    if (!status) status = plot_write(&p, w->o.svg, error);
    free(series), free(x);
    return status;
}

ebb_status kvcheck_draw(const kvcheck_work *w, ebb_error *error) {
    return w->lengths ? draw_needles(w, error) : draw_layers(w, error);
}
