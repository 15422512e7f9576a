/* cli/kvcheck_tasks.c: the problems of `ebb kvcheck`: needles in the text, and LongBench files. Answers of each store
 * to a set of problems are one part, which is kept. Called by kvcheck.c. */
#define _GNU_SOURCE
#include "cli/kvcheck.h"
#include "core/core.h"
#include "measure/longbench.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers ---- */

/* A JSON list of the answers, kept under `name`. */
static ebb_status answers_part(kvcheck_work *w, int32_t store, const char *name, const char *more,
                               const ebb_prompt *prompts, int32_t n, int64_t max_answer, json_t **answers,
                               ebb_error *error) {
    char key[512];
    kvcheck_key(w, store, more, key);
    *answers = kvcheck_load(w, name, key);
    if (json_array_size(*answers) == (size_t)n && n) return EBB_OK;
    json_decref(*answers);
    *answers = NULL;
    const ebb_answers_config config = {.size = sizeof config,
                                       .store = w->store[store],
                                       .state = w->o.state,
                                       .algorithm = w->o.rows,
                                       .prompts = prompts,
                                       .n = n,
                                       .batch = (int32_t)min_i64(w->o.batch, n),
                                       .max_answer = max_answer,
                                       .progress = progress_of(&w->bar)};
    char **text = calloc((size_t)n + 1, sizeof *text);
    if (!text) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d answers", n);
    ebb_status status = ebb_answers(w->model, &config, text, error);
    progress_clear(&w->bar);
    if (!status) *answers = json_array();
    for (int32_t i = 0; i < n && !status; i++) *answers = json_and(*answers, json_string(text[i]));
    for (int32_t i = 0; i < n; i++) free(text[i]);
    free(text);
    return status ? status : kvcheck_save(w, name, key, *answers, error);
}

/* ---- needles ---- */

/* Per depth and in all; the difference to FP32 is paired by problem. */
static json_t *recall_json(const kvcheck_work *w, const float *exact, const float *right) {
    const int32_t n = (int32_t)w->o.problems, depths = (int32_t)w->o.depths;
    double low, high, difference, half;
    int64_t all = 0;
    json_t *by_depth = json_array();
    for (int32_t d = 0; d < depths; d++) {
        int64_t good = 0, of = 0;
        for (int32_t i = d; i < n; i += depths) good += right[i] > 0, of++;
        all += good;
        by_depth = json_and(by_depth, json_pack("[I, I]", (json_int_t)good, (json_int_t)of));
    }
    ebb_wilson(all, n, &low, &high);
    ebb_paired(exact, right, n, &difference, &half);
    return json_pack("{s:I, s:i, s:f, s:f, s:f, s:f, s:o}", "right", (json_int_t)all, "n", n, "low", low, "high", high,
                     "difference", difference, "half", isfinite(half) ? half : 1.0, "depths", by_depth);
}

static ebb_status one_length(kvcheck_work *w, int64_t length, const ebb_needle *needles, const ebb_prompt *prompts,
                             float *exact, float *right, ebb_error *error) {
    const int32_t n = (int32_t)w->o.problems;
    char more[160], name[KVCHECK_NAME + 48], group[48];
    ebb_status status = EBB_OK;
    snprintf(more, sizeof more, "needles %lld depths %lld problems %d seed %lld answer %lld", (long long)length,
             (long long)w->o.depths, n, (long long)w->o.seed, (long long)w->o.answer);
    snprintf(group, sizeof group, "needles %lld", (long long)length);
    for (int32_t s = 0; s < w->stores && !status; s++) {
        json_t *answers = NULL;
        snprintf(name, sizeof name, "needles-%lld-%s", (long long)length, w->name[s]);
        status = answers_part(w, s, name, more, prompts, n, w->o.answer, &answers, error);
        for (int32_t i = 0; i < n && !status; i++) {
            const char *text = json_string_value(json_array_get(answers, (size_t)i));
            right[i] = text && strstr(text, needles[i].number);
            if (s == 0) exact[i] = right[i];
        }
        if (!status) status = kvcheck_put(w, group, w->name[s], recall_json(w, exact, right), error);
        json_decref(answers);
    }
    return status;
}

ebb_status kvcheck_needles(kvcheck_work *w, ebb_error *error) {
    const int32_t n = (int32_t)w->o.problems;
    ebb_status status = EBB_OK;
    for (int32_t l = 0; l < w->lengths && !status; l++) {
        ebb_needle *needles = calloc((size_t)n, sizeof *needles);
        ebb_prompt *prompts = calloc((size_t)n, sizeof *prompts);
        float *exact = calloc(2 * (size_t)n, sizeof *exact);
        if (!needles || !prompts || !exact) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for %d needles", n);
        if (!status)
            status = ebb_needles(w->model, w->ids, w->count, w->length[l], (int32_t)w->o.depths, n, (uint64_t)w->o.seed,
                                 needles, error);
        for (int32_t i = 0; i < n && !status; i++) prompts[i] = (ebb_prompt){needles[i].ids, needles[i].count};
        if (!status) status = one_length(w, w->length[l], needles, prompts, exact, exact + n, error);
        for (int32_t i = 0; i < n && needles; i++) free(needles[i].ids);
        free(needles), free(prompts), free(exact);
    }
    return status;
}

/* ---- LongBench ---- */

typedef struct bench {
    kvcheck_work *w;
    const char *file;
    json_t *forms, *lengths; /* of the user's copies, or NULL */
    json_t *lines;           /* of one data set */
    char dataset[64];
    longbench_task task;
    ebb_prompt *prompts;
} bench;

static const char *text_at(const json_t *line, const char *field) {
    const char *text = json_string_value(json_object_get(line, field));
    return text ? text : "";
}

static ebb_status line_check(const bench *b, const json_t *line, int64_t number, ebb_error *error) {
    static const char *const needed[] = {"input", "context"};
    for (int32_t i = 0; i < COUNT(needed); i++)
        if (!json_is_string(json_object_get(line, needed[i])))
            return ebb_fail(error, EBB_BAD_FILE, "%.120s: line %lld has no text \"%s\"", b->file, (long long)number,
                            needed[i]);
    const json_t *answers = json_object_get(line, "answers");
    if (json_array_size(answers) < 1 || !json_is_string(json_array_get(answers, 0)))
        return ebb_fail(error, EBB_BAD_FILE, "%.120s: line %lld has no list of \"answers\"", b->file,
                        (long long)number);
    if (b->task.metric == LONGBENCH_CLASS && json_array_size(json_object_get(line, "all_classes")) < 1)
        return ebb_fail(error, EBB_BAD_FILE, "%.120s: line %lld has no list of \"all_classes\"", b->file,
                        (long long)number);
    return EBB_OK;
}

/* The data set is what the first line says, or the file's name. */
static ebb_status read_lines(bench *b, ebb_error *error) {
    char *text = NULL;
    size_t bytes;
    ebb_status status = read_file(b->file, (size_t)1 << 30, &text, &bytes, error);
    if (status) return status;
    b->lines = json_array();
    int64_t number = 0;
    for (char *at = text, *end; *at && !status && number < b->w->o.limit; at = end) {
        end = at + strcspn(at, "\n");
        if (*end) *end++ = '\0';
        if (!*at || *at == '\r') continue;
        json_t *line = json_loads(at, 0, NULL);
        const char *dataset = json_string_value(json_object_get(line, "dataset"));
        const char *slash = strrchr(b->file, '/'), *own = slash ? slash + 1 : b->file;
        number++;
        if (!json_is_object(line))
            status = ebb_fail(error, EBB_BAD_FILE, "%.120s: line %lld is no JSON object", b->file, (long long)number);
        if (!status && number == 1) {
            snprintf(b->dataset, sizeof b->dataset, "%.*s", dataset ? 63 : (int)strcspn(own, "."),
                     dataset ? dataset : own);
            status = longbench_find(b->dataset, &b->task, error);
        }
        if (!status) status = line_check(b, line, number, error);
        if (json_array_append_new(b->lines, line) && !status)
            status = ebb_fail(error, EBB_NO_MEMORY, "no memory for %.120s", b->file);
    }
    free(text);
    if (!status && !number) status = ebb_fail(error, EBB_BAD_FILE, "%.120s: no line in it", b->file);
    return status;
}

/* Ids of a prompt without its middle: half of the room from each end, as text again. */
static ebb_status cut_middle(const ebb_tokenizer *t, char **text, int64_t room, ebb_error *error) {
    int32_t *ids = NULL;
    int64_t count;
    ebb_status status = ebb_tokenize(t, *text, strlen(*text), false, &ids, &count, error);
    if (status || count <= room) return free(ids), status;
    ebb_detokenizer state = {.tokenizer = t};
    size_t n = 0, all = 64, written, bytes;
    for (int64_t i = 0; i < count; i++) ebb_token_bytes(t, ids[i], &bytes), all += 3 * bytes + 32;
    char *cut = malloc(all);
    if (!cut) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a prompt");
    for (int64_t i = 0; i < room / 2 * 2 && !status; i++) {
        const int64_t at = i < room / 2 ? i : count - room / 2 * 2 + i;
        if (i == room / 2 && !ebb_detokenize(&state, -1, cut + n, all - n, &written)) n += written;
        status = ebb_detokenize(&state, ids[at], cut + n, all - n, &written);
        n += written;
    }
    if (!status && !ebb_detokenize(&state, -1, cut + n, all - n, &written)) n += written;
    free(ids);
    if (status) return free(cut), status;
    cut[n] = '\0';
    free(*text);
    *text = cut;
    return EBB_OK;
}

static ebb_status make_prompt(const bench *b, const json_t *line, ebb_prompt *prompt, ebb_error *error) {
    const ebb_tokenizer *t = ebb_model_tokenizer(b->w->model);
    const char *form = json_string_value(json_object_get(b->forms, b->dataset));
    char *text = longbench_prompt(form ? form : "{context}\n{input}", text_at(line, "context"), text_at(line, "input"));
    int32_t *ids = NULL, prefix = 0;
    const int32_t *begin = ebb_tokenizer_prefix(t, &prefix);
    ebb_status status =
        text ? cut_middle(t, &text, b->w->o.input, error) : ebb_fail(error, EBB_NO_MEMORY, "no memory for a prompt");
    if (!status && !b->task.plain) {
        const ebb_message turn = {"user", text};
        status = ebb_chat(t, &turn, 1, true, &ids, &prompt->count, error);
        if (status != EBB_UNSUPPORTED) return free(text), prompt->ids = ids, status;
        status = EBB_OK; /* without a chat form the prompt is the text */
    }
    if (!status) status = ebb_tokenize(t, text, strlen(text), false, &ids, &prompt->count, error);
    int32_t *all = status ? NULL : malloc((size_t)(prompt->count + prefix + 1) * sizeof *all);
    if (!status && !all) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a prompt");
    if (all && prefix) memcpy(all, begin, (size_t)prefix * sizeof *all);
    if (all) memcpy(all + prefix, ids, (size_t)prompt->count * sizeof *all);
    prompt->ids = all;
    prompt->count += prefix;
    free(ids), free(text);
    return status;
}

/* The texts of a JSON list; the caller frees the list only. */
static const char **texts_of(const json_t *list, int32_t *n) {
    *n = (int32_t)json_array_size(list);
    const char **texts = calloc((size_t)*n + 1, sizeof *texts);
    for (int32_t i = 0; texts && i < *n; i++) {
        texts[i] = json_string_value(json_array_get(list, (size_t)i));
        if (!texts[i]) texts[i] = "";
    }
    return texts;
}

static ebb_status score_line(const bench *b, const json_t *line, const char *answer, double *score, ebb_error *error) {
    int32_t n_references, n;
    const char **references = texts_of(json_object_get(line, "answers"), &n_references);
    const char **classes = texts_of(json_object_get(line, "all_classes"), &n);
    ebb_status status = references && classes ? longbench_best(&b->task, answer ? answer : "", references, n_references,
                                                               classes, n, score, error)
                                              : ebb_fail(error, EBB_NO_MEMORY, "no memory to score an answer");
    free(references), free(classes);
    return status;
}

static ebb_status one_store(bench *b, int32_t store, int64_t max_answer, float *exact, float *scores,
                            ebb_error *error) {
    kvcheck_work *w = b->w;
    const int32_t n = (int32_t)json_array_size(b->lines);
    char name[KVCHECK_NAME + 96], more[200];
    uint64_t hash = HASH64_BEGIN;
    json_t *answers = NULL;
    double sum = 0, difference, half;
    for (int32_t i = 0; i < n; i++)
        hash = hash64(hash, b->prompts[i].ids, (size_t)b->prompts[i].count * sizeof *b->prompts[i].ids);
    snprintf(name, sizeof name, "longbench-%s-%s", b->dataset, w->name[store]);
    snprintf(more, sizeof more, "longbench %s prompts %016llx n %d answer %lld", b->dataset, (unsigned long long)hash,
             n, (long long)max_answer);
    ebb_status status = answers_part(w, store, name, more, b->prompts, n, max_answer, &answers, error);
    for (int32_t i = 0; i < n && !status; i++) {
        double score;
        status = score_line(b, json_array_get(b->lines, (size_t)i),
                            json_string_value(json_array_get(answers, (size_t)i)), &score, error);
        scores[i] = (float)score;
        if (store == 0) exact[i] = scores[i];
        sum += score;
    }
    json_decref(answers);
    if (status) return status;
    char group[96];
    snprintf(group, sizeof group, "longbench %s", b->dataset);
    ebb_paired(exact, scores, n, &difference, &half);
    return kvcheck_put(w, group, w->name[store],
                       json_pack("{s:f, s:i, s:f, s:f}", "score", 100 * sum / n, "n", n, "difference", 100 * difference,
                                 "half", isfinite(half) ? 100 * half : 100.0),
                       error);
}

static ebb_status one_file(bench *b, ebb_error *error) {
    ebb_status status = read_lines(b, error);
    const int32_t n = (int32_t)json_array_size(b->lines);
    float *scores = calloc(2 * (size_t)n + 1, sizeof *scores);
    b->prompts = calloc((size_t)n + 1, sizeof *b->prompts);
    if (!status && (!scores || !b->prompts)) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for %d problems", n);
    for (int32_t i = 0; i < n && !status; i++)
        status = make_prompt(b, json_array_get(b->lines, (size_t)i), &b->prompts[i], error);
    const json_t *given = json_object_get(b->lengths, b->dataset);
    const int64_t answer = json_integer_value(given) > 0 ? json_integer_value(given) : b->task.answer;
    for (int32_t s = 0; s < b->w->stores && !status; s++) status = one_store(b, s, answer, scores, scores + n, error);
    for (int32_t i = 0; i < n && b->prompts; i++) free((void *)(uintptr_t)b->prompts[i].ids);
    free(b->prompts), free(scores);
    json_decref(b->lines);
    b->lines = NULL;
    return status;
}

static int is_jsonl(const struct dirent *entry) {
    const size_t n = strlen(entry->d_name);
    return n > 6 && strcmp(entry->d_name + n - 6, ".jsonl") == 0;
}

static ebb_status read_config(const char *path, json_t **value, ebb_error *error) {
    *value = path ? json_load_file(path, 0, NULL) : NULL;
    if (!path || json_is_object(*value)) return EBB_OK;
    return ebb_fail(error, EBB_BAD_FILE, "%s: is no JSON object of data sets", path);
}

ebb_status kvcheck_longbench(kvcheck_work *w, ebb_error *error) {
    const char *path = w->o.longbench;
    bench b = {.w = w, .file = path};
    ebb_status status = read_config(w->o.prompts, &b.forms, error);
    if (!status) status = read_config(w->o.maxlen, &b.lengths, error);
    if (!w->o.prompts) fputs("ebb: LongBench without --prompts: a prompt is {context}, a newline, {input}\n", stderr);
    struct dirent **list = NULL;
    const int n = status ? -1 : scandir(path, &list, is_jsonl, alphasort);
    if (!status && n < 0) status = one_file(&b, error); /* no folder: a file, or an error that names it */
    if (n == 0) status = ebb_fail(error, EBB_BAD_FILE, "%s: no .jsonl file in it", path);
    for (int i = 0; i < n; i++) {
        char *file = path_join(path, list[i]->d_name);
        b.file = file;
        if (!status && !file) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
        if (!status) status = one_file(&b, error);
        free(file), free(list[i]);
    }
    free(list);
    json_decref(b.forms), json_decref(b.lengths);
    return status;
}
