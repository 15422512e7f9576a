/* cli/calibrate_report.c: calibrations as Markdown, as one JSON object and as figures. Called by calibrate.c. */
#include "cli/calibrate_report.h"
#include "cli/json_out.h"
#include "core/core.h"
#include "measure/plot.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- numbers of a run ---- */

static double overlap(const ebb_calibrated_head *h) { return h->overlap; }
static double correlation(const ebb_calibrated_head *h) { return h->spearman; }
static double kept(const ebb_calibrated_head *h) { return h->kept; }
static double gap(const ebb_calibrated_head *h) { return h->gap; }
static double share(const ebb_calibrated_head *h) { return h->share; }
static double decay(const ebb_calibrated_head *h) { return h->decay; }
static double left_tune(const ebb_calibrated_head *h) { return h->left_tune; }
static double left(const ebb_calibrated_head *h) { return h->left; }
typedef double (*head_number)(const ebb_calibrated_head *h);

/* Of the heads that have it; NAN: none has. */
static double mean_of(const ebb_calibration *c, head_number of) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < c->heads; i++)
        if (isfinite(of(&c->head[i]))) sum += of(&c->head[i]), n++;
    return n ? sum / n : NAN;
}

static double mean_of_runs(const calibrate_report *r, head_number of) {
    double sum = 0;
    for (int32_t i = 0; i < r->n; i++) sum += mean_of(r->runs[i], of) / r->n;
    return sum;
}

static int rising(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Sorted and without what is not a number, malloc'ed; NULL: no memory. */
static double *sorted(const ebb_calibration *c, head_number of, int32_t *n) {
    double *values = malloc((size_t)c->heads * sizeof *values);
    *n = 0;
    for (int32_t i = 0; values && i < c->heads; i++)
        if (isfinite(of(&c->head[i]))) values[(*n)++] = of(&c->head[i]);
    if (values) qsort(values, (size_t)*n, sizeof *values, rising);
    return values;
}

static double quantile(const double *values, int32_t n, double q) {
    const double at = q * (n - 1);
    const int32_t low = (int32_t)at, high = low + 1 < n ? low + 1 : low;
    return values[low] + (at - low) * (values[high] - values[low]);
}

/* ---- Markdown ---- */

static void put_number(FILE *to, double v, int decimals) {
    if (isfinite(v)) fprintf(to, " %.*f |", decimals, v);
    else fputs(" - |", to);
}

/* false: no memory. */
static bool put_quantiles(FILE *to, const char *what, const ebb_calibration *c, head_number of, int decimals) {
    static const double q[] = {0, 0.1, 0.5, 0.9, 1};
    int32_t n;
    double *values = sorted(c, of, &n);
    if (values && n) {
        fprintf(to, "| %s |", what);
        for (int32_t i = 0; i < COUNT(q); i++) put_number(to, quantile(values, n, q[i]), decimals);
        put_number(to, mean_of(c, of), decimals);
        fputc('\n', to);
    }
    free(values);
    return values != NULL;
}

static void put_protocol(FILE *to, const calibrate_report *r) {
    const ebb_calibration *c = r->runs[0];
    fprintf(to, "%s, method %s", r->model, r->method);
    if (c->selector) fprintf(to, ", rows ranked by %s", c->selector);
    fprintf(to, ".\n%d documents of each of %d texts (", c->documents, c->domains);
    for (int32_t i = 0; i < c->domains; i++) fprintf(to, "%s%s", i ? ", " : "", r->texts[i]);
    fprintf(to, "), %lld tokens each", (long long)c->length);
    if (r->written) fprintf(to, ", of which the model wrote %lld", (long long)r->written);
    fprintf(to, "; %lld states of each of %d heads. %d threads, %s.\n", (long long)c->states, c->heads, r->threads,
            c->kernels);
    if (r->layout)
        fprintf(to, "Layout: %s, from seed %llu; %zu bytes of states a sequence.\n", r->layout,
                (unsigned long long)r->first, c->packed);
}

static void put_agreement(FILE *to, const calibrate_report *r) {
    const bool bits = r->runs[0]->head[0].bits > 0;
    fprintf(to, "\n| seed | seconds | tokens | %s | Spearman of the %s |%s\n|---:|---:|---:|---:|---:|%s\n",
            bits ? "heads with the same bits" : "overlap of the protected rows", bits ? "decays" : "rankings",
            bits ? "" : " score kept | score, last protected row over the next |", bits ? "" : "---:|---:|");
    for (int32_t i = 0; i < r->n; i++) {
        const ebb_calibration *c = r->runs[i];
        fprintf(to, "| %llu | %.1f | %lld |", (unsigned long long)(r->first + (uint64_t)i), r->seconds[i],
                (long long)c->tokens);
        put_number(to, 100 * mean_of(c, overlap), 1);
        put_number(to, bits ? c->decay_spearman : mean_of(c, correlation), 4);
        if (!bits) put_number(to, 100 * mean_of(c, kept), 2), put_number(to, mean_of(c, gap), 3);
        fputc('\n', to);
    }
    if (r->n > 1) {
        fputs("| mean | | |", to);
        put_number(to, 100 * mean_of_runs(r, overlap), 1);
        double decays = 0;
        for (int32_t i = 0; i < r->n; i++) decays += r->runs[i]->decay_spearman / r->n;
        put_number(to, bits ? decays : mean_of_runs(r, correlation), 4);
        if (!bits) put_number(to, 100 * mean_of_runs(r, kept), 2), put_number(to, mean_of_runs(r, gap), 3);
        fputc('\n', to);
    }
    fputs("\nBetween disjoint documents, the mean over the heads, in percent", to);
    if (!bits && r->runs[0]->rows)
        fprintf(to,
                " (by chance %.1f). Kept: the rows that one side protects, scored by the other, against its own best",
                100.0 * r->runs[0]->rows / r->runs[0]->key_dim);
    fputs(".\n", to);
}

static bool put_heads_summary(FILE *to, const ebb_calibration *c) {
    bool whole = true;
    fputs("\n| over the heads | least | p10 | p50 | p90 | most | mean |\n|:---|---:|---:|---:|---:|---:|---:|\n", to);
    whole &= put_quantiles(to, "effective decay", c, decay, 5);
    whole &= put_quantiles(to, "overlap", c, overlap, 3);
    whole &= put_quantiles(to, "Spearman", c, correlation, 4);
    whole &= put_quantiles(to, "score kept", c, kept, 4);
    whole &= put_quantiles(to, "score, last protected row over the next", c, gap, 3);
    whole &= put_quantiles(to, "share of the error in the worst rows, as many as protected", c, share, 3);
    whole &= put_quantiles(to, "e W left, documents that chose", c, left_tune, 4);
    whole &= put_quantiles(to, "e W left, documents that check", c, left, 4);
    return whole;
}

static void put_domains(FILE *to, const calibrate_report *r) {
    const ebb_calibration *c = r->runs[0];
    if (c->domains < 2) return;
    fputs("\nSpearman of the decays between the texts:\n\n| |", to);
    for (int32_t i = 0; i < c->domains; i++) fprintf(to, " %s |", r->texts[i]);
    fputs("\n|:---|", to);
    for (int32_t i = 0; i < c->domains; i++) fputs("---:|", to);
    for (int32_t i = 0; i < c->domains; i++) {
        fprintf(to, "\n| %s |", r->texts[i]);
        for (int32_t j = 0; j < c->domains; j++) put_number(to, c->domain_order[i * c->domains + j], 4);
    }
    fputc('\n', to);
}

static void put_candidates(FILE *to, const ebb_calibration *c) {
    if (!c->n_candidates) return;
    fputs("\n| scale RMS^alpha | reordered | e W left, documents that chose | heads that chose it |\n"
          "|---:|:---|---:|---:|\n",
          to);
    for (int32_t i = 0; i < c->n_candidates; i++) {
        const ebb_calibrated_candidate *one = &c->candidates[i];
        fprintf(to, "| %.2f | %s |", one->alpha, one->reorder ? "yes" : "no");
        put_number(to, one->left, 4);
        fprintf(to, " %d |\n", one->heads);
    }
    fputs("\n\"Left\" is relative to the low format without scale, order and protected rows.\n", to);
}

static void put_bits(FILE *to, const ebb_calibration *c) {
    int32_t n[17] = {0};
    if (!c->head[0].bits) return;
    for (int32_t i = 0; i < c->heads; i++) n[c->head[i].bits]++;
    fputs("\n| bits | heads |\n|---:|---:|\n", to);
    for (int32_t i = 0; i < COUNT(n); i++)
        if (n[i]) fprintf(to, "| %d | %d |\n", i, n[i]);
}

ebb_status calibrate_print(const calibrate_report *r, FILE *to, ebb_error *error) {
    put_protocol(to, r);
    put_agreement(to, r);
    if (!put_heads_summary(to, r->runs[0])) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a table");
    put_candidates(to, r->runs[0]);
    put_bits(to, r->runs[0]);
    put_domains(to, r);
    return EBB_OK;
}

static void put_heads(FILE *to, const ebb_calibration *c) {
    fputs("\n## Heads\n\n| state layer | head | decay | overlap | Spearman | score gap | error share | left | "
          "candidate | "
          "bits |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
          to);
    for (int32_t i = 0; i < c->heads; i++) {
        const ebb_calibrated_head *h = &c->head[i];
        fprintf(to, "| %d | %d |", h->layer, h->head);
        put_number(to, h->decay, 5), put_number(to, h->overlap, 3), put_number(to, h->spearman, 4);
        put_number(to, h->gap, 3), put_number(to, h->share, 3), put_number(to, h->left, 4);
        put_number(to, h->candidate >= 0 ? (double)h->candidate : (double)NAN, 0);
        put_number(to, h->bits ? (double)h->bits : (double)NAN, 0);
        fputc('\n', to);
    }
}

/* ---- JSON ---- */

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *heads_json(const ebb_calibration *c) {
    json_t *heads = json_array();
    for (int32_t i = 0; i < c->heads; i++) {
        const ebb_calibrated_head *h = &c->head[i];
        json_t *domains = json_array();
        for (int32_t d = 0; d < c->domains; d++) domains = json_and(domains, number(c->domain_decay[d * c->heads + i]));
        json_t *head = json_pack("{s:i, s:i, s:i, s:i, s:o}", "layer", h->layer, "head", h->head, "candidate",
                                 h->candidate, "bits", h->bits, "decay_by_text", domains);
        static const struct {
            const char *name;
            head_number of;
        } numbers[] = {{"decay", decay}, {"overlap", overlap}, {"spearman", correlation}, {"kept", kept},
                       {"gap", gap},     {"share", share},     {"left_tune", left_tune},  {"left", left}};
        for (int32_t k = 0; k < COUNT(numbers); k++) head = json_with(head, numbers[k].name, number(numbers[k].of(h)));
        heads = json_and(heads, head);
    }
    return heads;
}

static json_t *run_json(const calibrate_report *r, int32_t i) {
    const ebb_calibration *c = r->runs[i];
    json_t *order = json_array(), *concentration = json_array(), *candidates = json_array();
    for (int32_t j = 0; j < c->domains * c->domains; j++) order = json_and(order, number(c->domain_order[j]));
    for (int32_t j = 0; j < c->key_dim; j++) concentration = json_and(concentration, number(c->concentration[j]));
    for (int32_t j = 0; j < c->n_candidates; j++)
        candidates = json_and(candidates, json_pack("{s:f, s:b, s:i, s:o}", "alpha", c->candidates[j].alpha, "reorder",
                                                    c->candidates[j].reorder, "heads", c->candidates[j].heads, "left",
                                                    number(c->candidates[j].left)));
    return json_pack("{s:I, s:f, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "seed",
                     (json_int_t)(r->first + (uint64_t)i), "seconds", r->seconds[i], "tokens", (json_int_t)c->tokens,
                     "states", (json_int_t)c->states, "overlap", number(mean_of(c, overlap)), "spearman",
                     number(mean_of(c, correlation)), "decay_spearman", number(c->decay_spearman), "decay_order", order,
                     "concentration", concentration, "candidates", candidates, "heads", heads_json(c));
}

ebb_status calibrate_print_json(const calibrate_report *r, ebb_error *error) {
    const ebb_calibration *c = r->runs[0];
    json_t *texts = json_array(), *runs = json_array();
    for (int32_t i = 0; i < c->domains; i++) texts = json_and(texts, json_string(r->texts[i]));
    for (int32_t i = 0; i < r->n; i++) runs = json_and(runs, run_json(r, i));
    json_t *root = json_pack("{s:s, s:s, s:s?, s:s?, s:o, s:i, s:I, s:I, s:i, s:I, s:s, s:i, s:o}", "model", r->model,
                             "method", r->method, "selector", c->selector, "layout", r->layout, "texts", texts,
                             "documents", c->documents, "text_tokens", (json_int_t)r->tokens, "written_tokens",
                             (json_int_t)r->written, "protected_rows", c->rows, "packed_bytes", (json_int_t)c->packed,
                             "rows", c->kernels, "threads", r->threads, "runs", runs);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!text) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the JSON of this calibration");
    puts(text);
    free(text);
    return EBB_OK;
}

/* ---- figures ---- */

/* Heads by their memory 1 / (1 - a): one line a text. */
static ebb_status draw_decay(const calibrate_report *r, const char *path, ebb_error *error) {
    const ebb_calibration *c = r->runs[0];
    const size_t heads = (size_t)c->heads, domains = (size_t)c->domains;
    plot_series series[EBB_MAX_DOMAINS] = {{0}};
    double *x = malloc(heads * sizeof *x), *y = malloc(heads * domains * sizeof *y);
    ebb_status status = x && y ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for a figure");
    for (size_t i = 0; i < heads && !status; i++) x[i] = (double)(i + 1);
    for (size_t d = 0; d < domains && !status; d++) {
        double *line = y + d * heads;
        for (size_t i = 0; i < heads; i++) line[i] = 1 / fmax(1 - c->domain_decay[d * heads + i], 1e-9);
        qsort(line, heads, sizeof *line, rising);
        series[d] = (plot_series){.label = r->texts[d],
                                  .x = x,
                                  .y = line,
                                  .n = c->heads,
                                  .color = (int32_t)d % PLOT_COLORS,
                                  .dash = (int32_t)d / PLOT_COLORS};
    }
    const plot p = {.title = "How long heads remember",
                    .subtitle = r->model,
                    .x = {"head, sorted in each text", false},
                    .y = {"1 / (1 - effective decay), tokens", true},
                    .series = series,
                    .n = c->domains};
    if (!status) status = plot_write(&p, path, error);
    free(x), free(y);
    return status;
}

/* Cumulative share of the squared error of the low tier. */
static ebb_status draw_error(const calibrate_report *r, const char *path, ebb_error *error) {
    const ebb_calibration *c = r->runs[0];
    double *x = malloc((size_t)c->key_dim * sizeof *x);
    const double cut = c->rows, ends[] = {0, 1}, cuts[] = {cut, cut};
    char subtitle[200];
    if (!x) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a figure");
    for (int32_t i = 0; i < c->key_dim; i++) x[i] = i + 1;
    const plot_series series[] = {{.label = "mean of heads", .x = x, .y = c->concentration, .n = c->key_dim},
                                  {.label = "protected", .x = cuts, .y = ends, .n = 2, .color = 1, .dash = 1}};
    snprintf(subtitle, sizeof subtitle, "%s, %s", r->model, r->method);
    const plot p = {.title = "Where the squared error of storing lies",
                    .subtitle = subtitle,
                    .x = {"key rows, the worst first", false},
                    .y = {"share of the squared error", false},
                    .series = series,
                    .n = c->rows ? 2 : 1};
    ebb_status status = plot_write(&p, path, error);
    free(x);
    return status;
}

/* Overlap of every head, sorted; one line a seed. */
static ebb_status draw_agreement(const calibrate_report *r, const char *path, ebb_error *error) {
    const size_t heads = (size_t)r->runs[0]->heads, runs = (size_t)r->n;
    plot_series *series = calloc(runs, sizeof *series);
    double *x = malloc(heads * sizeof *x), *y = malloc(heads * runs * sizeof *y);
    char(*labels)[32] = calloc(runs, sizeof *labels);
    ebb_status status = series && x && y && labels ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for a figure");
    for (size_t i = 0; i < heads && !status; i++) x[i] = (double)(i + 1);
    for (size_t k = 0; k < runs && !status; k++) {
        double *line = y + k * heads;
        for (size_t i = 0; i < heads; i++) line[i] = r->runs[k]->head[i].overlap;
        qsort(line, heads, sizeof *line, rising);
        snprintf(labels[k], sizeof labels[k], "seed %llu", (unsigned long long)(r->first + k));
        series[k] = (plot_series){.label = labels[k],
                                  .x = x,
                                  .y = line,
                                  .n = (int64_t)heads,
                                  .color = (int32_t)k % PLOT_COLORS,
                                  .dash = (int32_t)k / PLOT_COLORS};
    }
    const plot p = {.title = "Protected rows that disjoint documents agree on",
                    .subtitle = r->model,
                    .x = {"head, sorted", false},
                    .y = {"share of the protected rows", false},
                    .series = series,
                    .n = r->n};
    if (!status) status = plot_write(&p, path, error);
    free(series), free(x), free(y), free(labels);
    return status;
}

static ebb_status write_markdown(const calibrate_report *r, const char *path, ebb_error *error) {
    FILE *file = fopen(path, "wb");
    if (!file) return ebb_fail(error, EBB_BAD_FILE, "%s: cannot be written: %s", path, strerror(errno));
    fputs("# Calibration\n\n", file);
    ebb_status status = calibrate_print(r, file, error);
    fputs("\n![decay](decay.svg)\n", file);
    if (r->runs[0]->selector) fputs("\n![error](error.svg)\n\n![agreement](agreement.svg)\n", file);
    put_heads(file, r->runs[0]);
    const bool bad = ferror(file) != 0;
    if ((fclose(file) != 0 || bad) && !status) status = ebb_fail(error, EBB_BAD_FILE, "%s: cannot be written", path);
    return status;
}

ebb_status calibrate_write(const calibrate_report *r, const char *folder, ebb_error *error) {
    typedef ebb_status (*writer)(const calibrate_report *, const char *, ebb_error *);
    static const struct {
        const char *name;
        writer write;
        bool rows; /* there is something to say about key rows only */
    } files[] = {{"calibration.md", write_markdown, false},
                 {"decay.svg", draw_decay, false},
                 {"error.svg", draw_error, true},
                 {"agreement.svg", draw_agreement, true}};
    ebb_status status = EBB_OK;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return ebb_fail(error, EBB_BAD_FILE, "%s: cannot be made: %s", folder, strerror(errno));
    for (int32_t i = 0; i < COUNT(files) && !status; i++) {
        if (files[i].rows && !r->runs[0]->selector) continue;
        char *path = path_join(folder, files[i].name);
        status = path ? files[i].write(r, path, error) : ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
        free(path);
    }
    return status;
}
