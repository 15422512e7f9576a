/* cli/eval_cells.c: the cells of `ebb eval`: one task or text by one method, measured or taken from the folder. Called
 * by eval.c. */
#define _GNU_SOURCE
#include "cli/eval.h"
#include "cli/open.h"
#include "core/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 }; /* tokens of a text whose log p are taken as one: neighbours depend on each other */

/* ---- tasks ---- */

static json_t *answers_json(const ebb_eval_answer *answers, int32_t n, int32_t runs, const ebb_usage *usage) {
    json_t *scores = json_array(), *errors = json_array(), *texts = json_array();
    double tokens = 0;
    int32_t cut = 0;
    for (int32_t i = 0; i < n * runs; i++) {
        scores = json_and(scores, json_real(answers[i].score));
        errors = json_and(errors, json_integer(answers[i].first_error));
        texts = json_and(texts, json_string(answers[i].text));
        tokens += (double)answers[i].tokens;
        cut += answers[i].cut;
    }
    return json_pack("{s:i, s:i, s:o, s:o, s:o, s:f, s:i, s:I, s:I}", "n", n, "runs", runs, "scores", scores,
                     "first_errors", errors, "texts", texts, "tokens", tokens / (n * runs), "cut", cut, "state_packed",
                     (json_int_t)usage->state_packed, "state_live", (json_int_t)usage->state_live);
}

static ebb_status task_cell(eval_work *w, const eval_method *m, const char *file, const ebb_task *task, int32_t runs,
                            json_t **cell, ebb_error *error) {
    char key[640], name[EVAL_NAME + 160], more[256];
    const ebb_sampling *s = &w->sampling;
    snprintf(name, sizeof name, "task-%.120s%s-%s", file, w->o.decoded ? "-decoded" : "", m->name);
    snprintf(more, sizeof more,
             "task %016llx n %d runs %d answer %lld temperature %g top_p %g top_k %d min_p %g repeat %g %d seed %llu%s",
             (unsigned long long)task->hash, task->n, runs, (long long)w->o.answer, (double)s->temperature,
             (double)s->top_p, s->top_k, (double)s->min_p, (double)s->repeat_penalty, s->repeat_last,
             (unsigned long long)s->seed, w->o.decoded ? " decoded" : "");
    eval_key(w, m, more, key);
    if ((*cell = eval_load(w, name, key))) return EBB_OK;
    const ebb_eval_config config = {.size = sizeof config,
                                    .store = m->store,
                                    .algorithm = w->o.rows,
                                    .task = task,
                                    .sampling = *s,
                                    .runs = runs,
                                    .batch = (int32_t)w->o.batch,
                                    .max_answer = w->o.answer,
                                    .decoded = w->o.decoded,
                                    .progress = progress_of(&w->bar)};
    ebb_usage usage = {0};
    const int32_t all = task->n * runs;
    ebb_eval_answer *answers = calloc((size_t)all, sizeof *answers);
    if (!answers) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d answers", all);
    ebb_status status = ebb_eval_answers(w->model, &config, answers, &usage, error);
    progress_clear(&w->bar);
    if (!status) *cell = answers_json(answers, task->n, runs, &usage);
    for (int32_t i = 0; i < all; i++) free(answers[i].text);
    free(answers);
    return status ? status : eval_save(w, name, key, *cell, error);
}

/* The mean score of every problem. NULL: the cell is damaged, or there is no memory. */
static float *problem_scores(const json_t *cell, int32_t n, int32_t runs) {
    const json_t *scores = json_object_get(cell, "scores");
    float *mean = json_array_size(scores) == (size_t)n * (size_t)runs ? calloc((size_t)n, sizeof *mean) : NULL;
    for (int32_t i = 0; mean && i < n * runs; i++)
        mean[i % n] += (float)(json_number_value(json_array_get(scores, (size_t)i)) / runs);
    return mean;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median first wrong token of the answers that have one; NULL for none. */
static json_t *median_error(const json_t *cell) {
    const json_t *errors = json_object_get(cell, "first_errors");
    double *at = calloc(json_array_size(errors) + 1, sizeof *at);
    size_t n = 0;
    for (size_t i = 0; at && i < json_array_size(errors); i++) {
        const json_int_t error = json_integer_value(json_array_get(errors, i));
        if (error >= 0) at[n++] = (double)error;
    }
    if (at) qsort(at, n, sizeof *at, by_size);
    json_t *median = n ? json_real((at[(n - 1) / 2] + at[n / 2]) / 2) : json_null();
    free(at);
    return median;
}

/* Scores that are all 0 or 1 have Wilson's interval, others that of a mean over problems. */
static void interval_of(const float *score, int32_t n, double *mean, double *low, double *high) {
    double half;
    int64_t right = 0;
    bool binary = true;
    for (int32_t i = 0; i < n; i++) right += score[i] >= 1, binary &= score[i] <= 0 || score[i] >= 1;
    ebb_block_mean(score, n, 1, mean, &half);
    if (binary) ebb_wilson(right, n, low, high);
    else *low = fmax(0, *mean - half), *high = fmin(1, *mean + half);
}

/* Half of the interval of a paired difference. Pairs that are all alike have no variance to go by: then the share of
 * problems that may differ, though none of n did, is below 1 - 0.025^(1/n). */
static double paired_half(const float *exact, const float *score, int32_t n, double *difference) {
    double half;
    bool alike = true;
    ebb_paired(exact, score, n, difference, &half);
    for (int32_t i = 1; i < n; i++) alike &= !(fabsf((score[i] - exact[i]) - (score[0] - exact[0])) > 0);
    return alike ? 1 - pow(0.025, 1.0 / n) : half;
}

static json_t *task_summary(const json_t *cell, const float *exact, const float *score, int32_t n) {
    double mean, low, high, difference;
    interval_of(score, n, &mean, &low, &high);
    const double half = paired_half(exact, score, n, &difference);
    return json_pack("{s:i, s:O, s:f, s:f, s:f, s:f, s:f, s:o, s:O, s:O, s:O, s:O}", "n", n, "runs",
                     json_object_get(cell, "runs"), "score", mean, "low", low, "high", high, "difference", difference,
                     "half", half, "first_error", median_error(cell), "tokens", json_object_get(cell, "tokens"), "cut",
                     json_object_get(cell, "cut"), "state_packed", json_object_get(cell, "state_packed"), "state_live",
                     json_object_get(cell, "state_live"));
}

ebb_status eval_task_cells(eval_work *w, int32_t index, ebb_error *error) {
    char file[128];
    ebb_task *task = NULL;
    float *exact = NULL;
    const int32_t runs = w->runs ? w->runs[index] : (int32_t)w->o.seeds;
    ebb_status status = ebb_task_read(w->model, w->tasks.names[index], w->o.scoring, (int32_t)w->o.limit, &task, error);
    last_part(w->tasks.names[index], file, sizeof file);
    for (int32_t i = 0; i < w->methods && !status; i++) {
        json_t *cell = NULL;
        float *score = NULL;
        status = task_cell(w, &w->method[i], file, task, runs, &cell, error);
        if (!status && !(score = problem_scores(cell, task->n, runs)))
            status =
                ebb_fail(error, EBB_BAD_FILE, "the kept result of %.60s on %.60s is damaged, or there is no memory",
                         w->method[i].name, file);
        if (!status && !exact) exact = score;
        if (!status)
            status = eval_put(w, "tasks", file, w->method[i].name, task_summary(cell, exact, score, task->n), error);
        if (score != exact) free(score);
        json_decref(cell);
    }
    free(exact);
    ebb_task_free(task);
    return status;
}

/* ---- texts ---- */

typedef struct text_run {
    eval_work *w;
    char file[128];
    int32_t *ids;
    int64_t tokens;
    uint64_t hash;
    ebb_foretold *reference; /* by the first method; made when a cell is missing */
} text_run;

int32_t eval_marks(int64_t tokens, int64_t *marks) {
    static const int64_t usual[] = {128, 512, 2048, 16384};
    int32_t n = 0;
    for (int32_t i = 0; i < COUNT(usual) && usual[i] < tokens; i++) marks[n++] = usual[i];
    marks[n++] = tokens;
    return n;
}

static ebb_status foretell(text_run *r, const eval_method *m, const ebb_foretold *reference, ebb_foretold **out,
                           ebb_error *error) {
    eval_work *w = r->w;
    const ebb_foretell_config config = {.size = sizeof config,
                                        .store = m->store,
                                        .algorithm = w->o.rows,
                                        .ids = r->ids,
                                        .tokens = r->tokens,
                                        .prompt = w->o.prompt,
                                        .k = (int32_t)w->o.top,
                                        .reference = reference,
                                        .progress = progress_of(&w->bar)};
    ebb_status status = ebb_foretell(w->model, &config, out, error);
    progress_clear(&w->bar);
    return status;
}

/* Tokens begin .. end - 1 of `f` against the reference. */
static json_t *mark_json(const ebb_foretold *f, const ebb_foretold *reference, int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    double mean, half, kl, kl_half;
    float *apart = calloc((size_t)n + 1, sizeof *apart);
    double *sorted = calloc((size_t)n + 1, sizeof *sorted);
    json_t *mark = NULL;
    for (int64_t i = 0; apart && sorted && i < n; i++) {
        apart[i] = fabsf(f->logp[begin + i] - reference->logp[begin + i]);
        sorted[i] = (double)apart[i];
    }
    if (apart && sorted) {
        qsort(sorted, (size_t)n, sizeof *sorted, by_size);
        ebb_block_mean(apart, n, BLOCK, &mean, &half);
        ebb_block_mean(f->kl + begin, n, BLOCK, &kl, &kl_half);
        mark = json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "to", (json_int_t)end, "n", (json_int_t)n, "mean", mean,
                         "half", isfinite(half) ? half : 0.0, "p95", n ? sorted[(n - 1) * 95 / 100] : 0, "kl", kl,
                         "kl_half", isfinite(kl_half) ? kl_half : 0.0);
    }
    free(apart), free(sorted);
    return mark;
}

static json_t *foretold_json(const ebb_foretold *f, const ebb_foretold *reference, int64_t tokens) {
    int64_t marks[EVAL_MARKS], begin = 0;
    const int32_t n = eval_marks(tokens, marks);
    json_t *blocks = json_array(), *list = json_array();
    for (int64_t i = 0; i < f->n; i += BLOCK) {
        double sum = 0;
        for (int64_t j = i; j < min_i64(f->n, i + BLOCK); j++) sum -= (double)f->logp[j];
        blocks = json_and(blocks, json_real(sum));
    }
    for (int32_t i = 0; i < n; i++) {
        const int64_t end = min_i64(marks[i], f->n);
        list = json_and(list, mark_json(f, reference, begin, end));
        begin = end;
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o}", "n", (json_int_t)f->n, "state_packed",
                     (json_int_t)f->state_packed, "state_live", (json_int_t)f->state_live, "kv", (json_int_t)f->kv,
                     "blocks", blocks, "marks", list);
}

static bool all_finite(const ebb_foretold *f) {
    for (int64_t i = 0; i < f->n; i++)
        if (!isfinite(f->logp[i]) || !isfinite(f->kl[i])) return false;
    return true;
}

static ebb_status nll_cell(text_run *r, const eval_method *m, json_t **cell, ebb_error *error) {
    char key[640], name[EVAL_NAME + 160], more[256];
    snprintf(name, sizeof name, "nll-%s-%s", r->file, m->name);
    snprintf(more, sizeof more, "nll %016llx tokens %lld prompt %lld top %lld reference %.100s",
             (unsigned long long)r->hash, (long long)r->tokens, (long long)r->w->o.prompt, (long long)r->w->o.top,
             r->w->method[0].name);
    eval_key(r->w, m, more, key);
    if ((*cell = eval_load(r->w, name, key))) return EBB_OK;
    ebb_status status = EBB_OK;
    ebb_foretold *f = NULL;
    if (!r->reference) status = foretell(r, &r->w->method[0], NULL, &r->reference, error);
    if (!status) status = foretell(r, m, r->reference, &f, error);
    if (!status) *cell = all_finite(f) ? foretold_json(f, r->reference, r->tokens) : json_pack("{s:b}", "diverged", 1);
    ebb_foretold_free(f);
    return status ? status : eval_save(r->w, name, key, *cell, error);
}

/* Sums of the blocks of a cell; NULL: it is damaged, or there is no memory. */
static float *block_means(const json_t *cell, int64_t n, int64_t *blocks) {
    const json_t *list = json_object_get(cell, "blocks");
    *blocks = (n + BLOCK - 1) / BLOCK;
    float *mean = (int64_t)json_array_size(list) == *blocks ? calloc((size_t)*blocks, sizeof *mean) : NULL;
    for (int64_t i = 0; mean && i < *blocks; i++)
        mean[i] = (float)(json_number_value(json_array_get(list, (size_t)i)) / (double)min_i64(BLOCK, n - i * BLOCK));
    return mean;
}

static json_t *nll_summary(const json_t *cell, const float *exact, const float *mean, int64_t blocks) {
    double all, half, difference, apart;
    ebb_block_mean(mean, blocks, 1, &all, &half);
    ebb_paired(exact, mean, blocks, &difference, &apart);
    return json_pack("{s:f, s:f, s:f, s:f, s:O, s:O, s:O, s:O}", "nll", all, "half", isfinite(half) ? half : 0.0,
                     "difference", difference, "difference_half", isfinite(apart) ? apart : 0.0, "state_packed",
                     json_object_get(cell, "state_packed"), "state_live", json_object_get(cell, "state_live"), "kv",
                     json_object_get(cell, "kv"), "marks", json_object_get(cell, "marks"));
}

static ebb_status text_nll(text_run *r, ebb_error *error) {
    float *exact = NULL;
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < r->w->methods && !status; i++) {
        const eval_method *m = &r->w->method[i];
        json_t *cell = NULL;
        float *mean = NULL;
        int64_t blocks = 0;
        status = nll_cell(r, m, &cell, error);
        const bool diverged = json_is_true(json_object_get(cell, "diverged"));
        if (!status && !diverged && !(mean = block_means(cell, r->tokens - 1, &blocks)))
            status = ebb_fail(error, EBB_BAD_FILE,
                              "the kept result of %.60s on %.60s is damaged, or there is no memory", m->name, r->file);
        if (!status && i == 0 && diverged)
            status = ebb_fail(error, EBB_UNSUPPORTED, "the log p of %.60s, the reference, is not finite", m->name);
        if (!status && !exact) exact = mean;
        if (!status)
            status = eval_put(r->w, "nll", r->file, m->name,
                              diverged ? json_incref(cell) : nll_summary(cell, exact, mean, blocks), error);
        if (mean != exact) free(mean);
        json_decref(cell);
    }
    free(exact);
    return status;
}

/* ---- drift, and what is injected: of states, so of methods of states ---- */

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static json_t *drift_json(const ebb_drift *d) {
    json_t *points = json_array();
    for (int64_t p = 0; p < d->points; p++) {
        ebb_drift_summary s;
        ebb_drift_summarize(d, p, 0, 0, d->heads, &s);
        points = json_and(points, json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "position", (json_int_t)d->position[p],
                                            "state_mean", number(s.state_mean), "state_rms", number(s.state_rms),
                                            "state_max", number(s.state_max), "output_mean", number(s.output_mean),
                                            "output_rms", number(s.output_rms)));
    }
    return json_pack("{s:I, s:o}", "state_packed", (json_int_t)d->packed[0], "points", points);
}

static ebb_status measure_drift(text_run *r, const eval_method *m, json_t **cell, ebb_error *error) {
    const ebb_drift_config config = {.size = sizeof config,
                                     .methods = &m->store.state,
                                     .n_methods = 1,
                                     .layout = m->store.layout,
                                     .kv = m->store.kv,
                                     .algorithm = r->w->o.rows,
                                     .ids = r->ids,
                                     .tokens = r->tokens,
                                     .progress = progress_of(&r->w->bar)};
    ebb_drift *drift = NULL;
    ebb_status status = ebb_drift_run(r->w->model, &config, &drift, error);
    if (!status) *cell = drift_json(drift);
    ebb_drift_free(drift);
    return status;
}

static ebb_status measure_injected(text_run *r, const eval_method *m, json_t **cell, ebb_error *error) {
    ebb_injected in;
    ebb_status status = ebb_injected_error(r->w->model, &m->store, r->w->o.rows, r->ids, r->tokens, r->w->o.every,
                                           progress_of(&r->w->bar), &in, error);
    if (!status)
        *cell = json_pack("{s:I, s:o, s:o, s:o}", "states", (json_int_t)in.states, "mean", number(in.mean), "rms",
                          number(in.rms), "worst", number(in.worst));
    return status;
}

static ebb_status text_states(text_run *r, bool drift, ebb_error *error) {
    const char *what = drift ? "drift" : "injected";
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < r->w->methods && !status; i++) {
        const eval_method *m = &r->w->method[i];
        char key[640], name[EVAL_NAME + 160], more[128];
        snprintf(name, sizeof name, "%s-%s-%s", what, r->file, m->name);
        snprintf(more, sizeof more, "%s %016llx tokens %lld every %lld", what, (unsigned long long)r->hash,
                 (long long)r->tokens, drift ? 0 : (long long)r->w->o.every);
        eval_key(r->w, m, more, key);
        json_t *cell = eval_load(r->w, name, key);
        if (!cell) {
            status = drift ? measure_drift(r, m, &cell, error) : measure_injected(r, m, &cell, error);
            progress_clear(&r->w->bar);
            if (!status) status = eval_save(r->w, name, key, cell, error);
        }
        if (!status) status = eval_put(r->w, what, r->file, m->name, json_incref(cell), error);
        json_decref(cell);
    }
    return status;
}

ebb_status eval_text_cells(eval_work *w, int32_t index, ebb_error *error) {
    text_run r = {.w = w, .tokens = w->o.tokens};
    int64_t count = 0;
    last_part(w->texts.names[index], r.file, sizeof r.file);
    ebb_status status = open_text(w->model, w->texts.names[index], &r.ids, &count, error);
    if (!status && count < r.tokens)
        status = ebb_fail(error, EBB_BAD_FILE, "%.150s has %lld tokens; --tokens %lld needs as many",
                          w->texts.names[index], (long long)count, (long long)r.tokens);
    if (!status) r.hash = hash64(HASH64_BEGIN, r.ids, (size_t)r.tokens * sizeof *r.ids);
    const bool recurrent = ebb_model_describe(w->model)->state_layers > 0;
    if (!status && w->nll) status = text_nll(&r, error);
    if (!status && w->drift && recurrent) status = text_states(&r, true, error);
    if (!status && w->injected && recurrent) status = text_states(&r, false, error);
    ebb_foretold_free(r.reference);
    free(r.ids);
    return status;
}
