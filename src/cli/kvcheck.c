/* cli/kvcheck.c: `ebb kvcheck`: KV methods and prefill modes against full precision: outputs of attention, foretelling
 * a text, needles and LongBench (ebb/measure.h). */
#define _GNU_SOURCE
#include "cli/kvcheck.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/options.h"
#include "core/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const usage_text usage = {
    "ebb kvcheck -m DIR --text FILE [-n N] [--kv METHOD,METHOD,...] [--prefill MODE,MODE,...] [options]",
    "What storing keys and values in few bits, and rounding them in prefill, does to a model. Of the text's first N\n"
    "tokens the last --steps are generated tokens, the others a prompt. Parts:\n"
    "  attention  the q, k, v of an FP32 pass go through every store; MSE and relative RMS of the outputs by layer\n"
    "  mass       softmax weight on the newest 128 and 256 keys, and on the vertical keys below them\n"
    "  nll        -log p of the text by a pass over every store, and its difference to FP32, paired by token\n"
    "--needles and --longbench add the answers to problems, and how many of them are right.\n",
    "A store is a METHOD with the prefill that it brings along, or with every MODE of --prefill; the reference is "
    "FP32\n"
    "with full prefill. 'ebb formats' lists the methods; names of the published code are METHODs too (sage_w0, "
    "hybrid_full,\n"
    "d_k4v4_vert, ...). A comma before key= belongs to the method. With -o, what is measured is kept in a folder, and\n"
    "the same command goes on where it was interrupted (Ctrl-C: what was finished is printed, exit code 130).\n",
};

static int read_options(kvcheck_options *o, int argc, char **argv, bool *help) {
    const option_row table[] = {
        {"model", 'm', OPTION_TEXT, &o->model, 0, 0, "DIR", "model folder or GGUF file (needed)"},
        {"text", 0, OPTION_TEXT, &o->text, 0, 0, "FILE", "UTF-8 text, up to 1 GiB (needed but for --longbench alone)"},
        {"tokens", 'n', OPTION_INT, &o->tokens, 2, 1 << 30, "N", "tokens of the text, 4096"},
        {"steps", 0, OPTION_INT, &o->steps, 0, 1 << 30, "K", "the last K of them are generated, 256"},
        {"kv", 0, OPTION_TEXT, &o->kv, 0, 0, "METHODS", "what to compare, hyquant,k4v4,k8v8,kivi4"},
        {"prefill", 0, OPTION_TEXT, &o->prefill, 0, 0, "MODES", "each of the METHODS with each of these"},
        {"kv-bits", 0, OPTION_TEXT, &o->kv_bits, 0, 0, "FILE", "JSON file of the bits of each layer, for kvtuner"},
        {"state", 0, OPTION_TEXT, &o->state, 0, 0, "METHOD", "how recurrent states are stored, fp32"},
        {"parts", 0, OPTION_TEXT, &o->parts, 0, 0, "PARTS", "of attention,mass,nll; or none; all"},
        {"ratio", 0, OPTION_REAL, &o->ratio, 0, 1, "R", "of the keys that mass takes as vertical, 0.05"},
        {"needles", 0, OPTION_TEXT, &o->needles, 0, 0, "N,N,...", "find a sentence in pieces of the text of N tokens"},
        {"depths", 0, OPTION_INT, &o->depths, 1, 64, "N", "places of the sentence, from begin to end, 8"},
        {"problems", 0, OPTION_INT, &o->problems, 1, 65536, "N", "problems of each length, 96"},
        {"seed", 0, OPTION_INT, &o->seed, 0, 1 << 30, "N", "another seed makes other problems, 0"},
        {"longbench", 0, OPTION_TEXT, &o->longbench, 0, 0, "PATH", "LongBench v1: a .jsonl file or a folder of them"},
        {"prompts", 0, OPTION_TEXT, &o->prompts, 0, 0, "FILE", "its dataset2prompt.json; {context}, newline, {input}"},
        {"maxlen", 0, OPTION_TEXT, &o->maxlen, 0, 0, "FILE", "its dataset2maxlen.json; the published lengths"},
        {"input", 0, OPTION_INT, &o->input, 16, 1 << 30, "N", "longer prompts lose their middle, 3500 tokens"},
        {"limit", 0, OPTION_INT, &o->limit, 1, 1 << 30, "N", "problems of a data set at most"},
        {"answer", 0, OPTION_INT, &o->answer, 1, 1 << 20, "N", "tokens of the answer to a needle, 24"},
        {"batch", 0, OPTION_INT, &o->batch, 1, 4096, "N", "problems side by side, 4"},
        {"out", 'o', OPTION_TEXT, &o->folder, 0, 0, "DIR", "keep finished parts here, and take those that are"},
        {"svg", 0, OPTION_TEXT, &o->svg, 0, 0, "FILE", "draw the recall of needles, else the errors by layer"},
        {"json", 0, OPTION_FLAG, &o->json, 0, 0, NULL, "one JSON object instead of tables"},
        {"threads", 't', OPTION_INT, &o->threads, 0, 1024, "N", "threads; 0, the default, is one per CPU"},
        {"rows", 0, OPTION_TEXT, &o->rows, 0, 0, "NAME", "kernel rows: ref, avx2, avx512; the best if not given"},
        {0},
    };
    options_result result = options_read(&usage, table, argc, argv, NULL);
    *help = result == OPTIONS_HELP;
    return result == OPTIONS_BAD ? EXIT_USAGE : EXIT_OK;
}

/* ---- what is asked for ---- */

static int check_parts(kvcheck_work *w) {
    const char *at = w->o.parts;
    while (strcmp(w->o.parts, "none") != 0 && at) {
        const size_t n = strcspn(at, ",");
        if (n == 9 && !memcmp(at, "attention", n)) w->attention = true;
        else if (n == 4 && !memcmp(at, "mass", n)) w->mass = true;
        else if (n == 3 && !memcmp(at, "nll", n)) w->nll = true;
        else return usage_error("kvcheck: --parts %s: expected some of attention,mass,nll, or none", w->o.parts);
        at = at[n] ? at + n + 1 : NULL;
    }
    return EXIT_OK;
}

static int check_lengths(kvcheck_work *w) {
    for (const char *at = w->o.needles; at;) {
        char *end;
        errno = 0;
        const long long n = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ',') || errno || n < 128 || n > 1 << 30)
            return usage_error("kvcheck: --needles %s: expected lengths from 128 tokens on, with commas between",
                               w->o.needles);
        if (w->lengths == KVCHECK_LENGTHS)
            return usage_error("kvcheck: --needles names more than %d lengths", KVCHECK_LENGTHS);
        w->length[w->lengths++] = n;
        at = *end ? end + 1 : NULL;
    }
    return EXIT_OK;
}

static int add_store(kvcheck_work *w, const char *kv, const char *prefill, const char *bits) {
    ebb_kv_spec spec;
    ebb_prefill mode;
    ebb_error error;
    if (ebb_kv_parse(kv, &spec, &error)) return usage_error("kvcheck: --kv: %s", error.text);
    if (prefill && ebb_prefill_parse(prefill, &mode, &error)) return usage_error("kvcheck: --prefill: %s", error.text);
    if (w->stores == EBB_MAX_KV_CHOICES) return usage_error("kvcheck: more than %d stores", EBB_MAX_KV_CHOICES - 1);
    char *name = w->name[w->stores];
    const int n = snprintf(name, KVCHECK_NAME, "%s%s%s", kv, prefill ? " + " : "", prefill ? prefill : "");
    if (n < 0 || n >= KVCHECK_NAME) return usage_error("kvcheck: the name of store %s is too long", kv);
    w->store[w->stores++] = (ebb_kv_choice){kv, prefill, bits};
    return EXIT_OK;
}

static int check_stores(kvcheck_work *w) {
    ebb_error error;
    int code = EXIT_OK;
    if (method_list_read(w->o.kv, &w->kv, &error)) return usage_error("kvcheck: --kv: %s", error.text);
    if (w->o.prefill && method_list_read(w->o.prefill, &w->prefill, &error))
        return usage_error("kvcheck: --prefill: %s", error.text);
    w->store[w->stores++] = (ebb_kv_choice){"fp32", "full", NULL};
    snprintf(w->name[0], KVCHECK_NAME, "fp32");
    for (int32_t i = 0; i < w->kv.n && !code; i++) {
        const char *bits = strncmp(w->kv.names[i], "kvtuner", 7) == 0 ? w->o.kv_bits : NULL;
        if (!w->prefill.n) code = add_store(w, w->kv.names[i], NULL, bits);
        for (int32_t j = 0; j < w->prefill.n && !code; j++)
            code = add_store(w, w->kv.names[i], w->prefill.names[j], bits);
    }
    return code;
}

static int check_options(kvcheck_work *w) {
    const kvcheck_options *o = &w->o;
    if (!o->model) return usage_error("kvcheck: no model given; -m DIR names its folder");
    int code = check_parts(w);
    if (!code) code = check_lengths(w);
    if (!code) code = check_stores(w);
    if (code) return code;
    const bool text = w->attention || w->mass || w->nll || w->lengths;
    if (text && !o->text) return usage_error("kvcheck: no text given; --text FILE names it");
    if ((o->prompts || o->maxlen) && !o->longbench)
        return usage_error("kvcheck: --prompts and --maxlen belong to --longbench");
    if (o->steps >= o->tokens)
        return usage_error("kvcheck: --steps %lld of --tokens %lld: expected fewer", (long long)o->steps,
                           (long long)o->tokens);
    if (w->mass && o->steps < 1)
        return usage_error("kvcheck: mass is of generated tokens; expected --steps of 1 or more");
    return EXIT_OK;
}

/* ---- parts ---- */

static bool part_path(const kvcheck_work *w, const char *name, char path[1024]) {
    const int n = snprintf(path, 1024, "%s/%s.json", w->o.folder ? w->o.folder : "", name);
    if (n < 0 || n >= 1024) return false;
    for (char *c = path + strlen(w->o.folder ? w->o.folder : "") + 1; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_=,", *c)) *c = '_';
    return true;
}

void kvcheck_key(const kvcheck_work *w, int32_t store, const char *more, char key[512]) {
    const ebb_kv_choice *s = store >= 0 ? &w->store[store] : NULL;
    snprintf(key, 512, "model %016llx text %016llx rows %s state %s store %s bits %s; %s",
             (unsigned long long)ebb_model_describe(w->model)->hash, (unsigned long long)w->text_hash,
             w->o.rows ? w->o.rows : "best", w->o.state ? w->o.state : "fp32", s ? w->name[store] : "-",
             s && s->kv_bits ? s->kv_bits : "-", more);
}

json_t *kvcheck_load(const kvcheck_work *w, const char *name, const char *key) {
    char path[1024];
    if (!w->o.folder || !part_path(w, name, path) || !file_exists(path)) return NULL;
    json_t *part = json_load_file(path, 0, NULL);
    const char *of = json_string_value(json_object_get(part, "key"));
    json_t *value = of && strcmp(of, key) == 0 ? json_incref(json_object_get(part, "value")) : NULL;
    json_decref(part);
    return value;
}

ebb_status kvcheck_save(const kvcheck_work *w, const char *name, const char *key, json_t *value, ebb_error *error) {
    char path[1024];
    if (!value) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the result %s", name);
    if (!w->o.folder) return EBB_OK;
    if (!part_path(w, name, path))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the path of the result %.100s is too long", name);
    json_t *part = json_pack("{s:s, s:O}", "key", key, "value", value);
    char *text = part ? json_dumps(part, JSON_REAL_PRECISION(9)) : NULL;
    ebb_status status = EBB_OK;
    if (!text) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the result %s", name);
    else status = replace_file(path, (const uint8_t *)text, strlen(text), error);
    free(text);
    json_decref(part);
    return status;
}

ebb_status kvcheck_put(kvcheck_work *w, const char *group, const char *name, json_t *value, ebb_error *error) {
    json_t *of = json_object_get(w->result, group);
    if (!of && !json_object_set_new(w->result, group, json_object())) of = json_object_get(w->result, group);
    if (value && of && json_object_set_new(of, name, value) == 0) return EBB_OK;
    return ebb_fail(error, EBB_NO_MEMORY, "no memory for the result %s", name);
}

/* ---- measuring a text ---- */

static ebb_kvcheck_config config_of(kvcheck_work *w, int32_t store) {
    return (ebb_kvcheck_config){.size = sizeof(ebb_kvcheck_config),
                                .stores = store >= 0 ? &w->store[store] : NULL,
                                .n_stores = store >= 0,
                                .state = w->o.state,
                                .algorithm = w->o.rows,
                                .ids = w->ids,
                                .tokens = w->o.tokens,
                                .steps = w->o.steps,
                                .mass = store < 0,
                                .ratio = w->o.ratio,
                                .progress = progress_of(&w->bar)};
}

static json_t *cells_json(const ebb_kvcheck *c, int32_t steps) {
    json_t *list = json_array();
    for (int32_t i = 0; i < c->layers; i++) {
        const ebb_kvcheck_cell *cell = &c->cell[2 * i + steps];
        if (cell->values)
            list =
                json_and(list, json_pack("{s:i, s:f, s:f, s:f}", "layer", c->layer[i], "mse",
                                         cell->error / (double)cell->values, "error", cell->error, "norm", cell->norm));
    }
    return list;
}

static json_t *masses_json(const ebb_kvcheck *c) {
    json_t *list = json_array();
    for (int32_t i = 0; i < c->layers * EBB_KVCHECK_WINDOWS; i++)
        list = json_and(list, json_pack("{s:i, s:i, s:f, s:f, s:f}", "layer", c->layer[i / EBB_KVCHECK_WINDOWS],
                                        "window", i % EBB_KVCHECK_WINDOWS ? 256 : 128, "newest", c->mass[i].window,
                                        "segment", c->mass[i].segment, "prompt", c->mass[i].prompt));
    return list;
}

/* Outputs of attention through one store; store < 0: masses. */
static ebb_status measure_attention(kvcheck_work *w, int32_t store, ebb_error *error) {
    char key[512], name[KVCHECK_NAME + 32], more[96];
    snprintf(name, sizeof name, "%s", store < 0 ? "mass" : "attention-");
    if (store >= 0) snprintf(name, sizeof name, "attention-%s", w->name[store]);
    snprintf(more, sizeof more, "%s tokens %lld steps %lld ratio %g", store < 0 ? "mass" : "attention",
             (long long)w->o.tokens, (long long)w->o.steps, store < 0 ? w->o.ratio : 0);
    kvcheck_key(w, store, more, key);
    json_t *value = kvcheck_load(w, name, key);
    if (!value) {
        const ebb_kvcheck_config config = config_of(w, store);
        ebb_kvcheck *check = NULL;
        ebb_status status = ebb_kvcheck_run(w->model, &config, &check, error);
        progress_clear(&w->bar);
        if (status) return status;
        if (store < 0) value = masses_json(check);
        else value = json_pack("{s:o, s:o}", "prompt", cells_json(check, 0), "steps", cells_json(check, 1));
        ebb_kvcheck_free(check);
        if ((status = kvcheck_save(w, name, key, value, error))) return json_decref(value), status;
    }
    return kvcheck_put(w, store < 0 ? "mass" : "attention", store < 0 ? "all" : w->name[store], value, error);
}

static ebb_status nll_part(kvcheck_work *w, int32_t store, json_t **value, ebb_error *error) {
    char key[512], name[KVCHECK_NAME + 32], more[96];
    snprintf(name, sizeof name, "nll-%s", w->name[store]);
    snprintf(more, sizeof more, "nll tokens %lld steps %lld", (long long)w->o.tokens, (long long)w->o.steps);
    kvcheck_key(w, store, more, key);
    if ((*value = kvcheck_load(w, name, key))) return EBB_OK;
    const ebb_kvcheck_config config = config_of(w, store);
    size_t bytes = 0;
    float *nll = calloc((size_t)w->o.tokens, sizeof *nll);
    if (!nll) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %lld tokens", (long long)w->o.tokens);
    ebb_status status = ebb_kvcheck_nll(w->model, &config, nll, &bytes, error);
    progress_clear(&w->bar);
    json_t *list = json_array();
    for (int64_t t = 0; t < w->o.tokens - 1 && !status; t++) list = json_and(list, json_real((double)nll[t]));
    free(nll);
    *value = json_pack("{s:I, s:o}", "bytes", (json_int_t)bytes, "nll", list);
    return status ? status : kvcheck_save(w, name, key, *value, error);
}

static float *floats_of(const json_t *list, int64_t n) {
    float *x = (int64_t)json_array_size(list) == n ? calloc((size_t)n + 1, sizeof *x) : NULL;
    for (int64_t i = 0; x && i < n; i++) x[i] = (float)json_number_value(json_array_get(list, (size_t)i));
    return x;
}

static double mean_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    return sum / (double)n;
}

/* Means and paired differences, of all tokens and of the generated ones. */
static json_t *nll_json(const kvcheck_work *w, const float *exact, const float *nll, const json_t *part) {
    const int64_t n = w->o.tokens - 1, steps = min_i64(w->o.steps, n);
    double all, all_half, last = 0, last_half = 0;
    ebb_paired(exact, nll, n, &all, &all_half);
    if (steps > 1) ebb_paired(exact + n - steps, nll + n - steps, steps, &last, &last_half);
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:O}", "mean", mean_of(nll, n), "difference", all, "half", all_half,
                     "steps_difference", last, "steps_half", last_half, "bytes", json_object_get(part, "bytes"));
}

static ebb_status measure_nll(kvcheck_work *w, ebb_error *error) {
    const int64_t n = w->o.tokens - 1;
    float *exact = NULL;
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < w->stores && !status; i++) {
        json_t *part = NULL;
        float *nll = NULL;
        status = nll_part(w, i, &part, error);
        if (!status && !(nll = floats_of(json_object_get(part, "nll"), n)))
            status =
                ebb_fail(error, EBB_BAD_FILE, "the kept result nll-%s is damaged, or there is no memory", w->name[i]);
        if (!status && !exact) exact = nll;
        if (!status) status = kvcheck_put(w, "nll", w->name[i], nll_json(w, exact, nll, part), error);
        if (nll != exact) free(nll);
        json_decref(part);
    }
    free(exact);
    return status;
}

static ebb_status measure_text(kvcheck_work *w, ebb_error *error) {
    ebb_status status = EBB_OK;
    if ((w->attention || w->mass || w->nll) && w->count < w->o.tokens)
        return ebb_fail(error, EBB_BAD_FILE, "%s has %lld tokens; --tokens %lld needs as many", w->o.text,
                        (long long)w->count, (long long)w->o.tokens);
    for (int32_t i = 1; i < w->stores && w->attention && !status; i++) status = measure_attention(w, i, error);
    if (!status && w->mass) status = measure_attention(w, -1, error);
    if (!status && w->nll) status = measure_nll(w, error);
    return status;
}

/* ---- the run ---- */

static ebb_status make_folder(const kvcheck_work *w, ebb_error *error) {
    if (!w->o.folder || mkdir(w->o.folder, 0777) == 0 || errno == EEXIST) return EBB_OK;
    return ebb_fail(error, EBB_BAD_FILE, "%s: cannot be made: %s", w->o.folder, strerror(errno));
}

static ebb_status open_result(kvcheck_work *w, ebb_error *error) {
    char model[128], text[128];
    json_t *stores = json_array();
    for (int32_t i = 0; i < w->stores; i++) stores = json_and(stores, json_string(w->name[i]));
    w->result =
        json_pack("{s:s, s:s?, s:I, s:I, s:i, s:o}", "model", last_part(w->o.model, model, sizeof model), "text",
                  w->o.text ? last_part(w->o.text, text, sizeof text) : NULL, "tokens", (json_int_t)w->o.tokens,
                  "steps", (json_int_t)w->o.steps, "threads", ebb_device_threads(w->device), "stores", stores);
    return w->result ? EBB_OK : ebb_fail(error, EBB_BAD_ARGUMENT, "a name in the result is not UTF-8");
}

static ebb_status report(const kvcheck_work *w, ebb_error *error) {
    ebb_status status = EBB_OK;
    if (w->o.json) status = kvcheck_print_json(w, error);
    else kvcheck_print(w);
    if (!status && w->o.svg) status = kvcheck_draw(w, error);
    return status;
}

static int run(kvcheck_work *w) {
    ebb_error error, trouble;
    ebb_status status = w->o.svg ? check_writable(w->o.svg, &error) : EBB_OK;
    if (!status) status = make_folder(w, &error);
    if (!status) status = open_model(w->o.model, w->o.threads, &w->bar, &w->device, &w->model, &error);
    if (!status && w->o.text) status = open_text(w->model, w->o.text, &w->ids, &w->count, &error);
    if (!status && w->ids) w->text_hash = hash64(HASH64_BEGIN, w->ids, (size_t)w->count * sizeof *w->ids);
    if (!status) status = open_result(w, &error);
    if (!status) status = measure_text(w, &error);
    if (!status) status = kvcheck_needles(w, &error);
    if (!status && w->o.longbench) status = kvcheck_longbench(w, &error);
    progress_clear(&w->bar);
    if (w->result && (!status || status == EBB_INTERRUPTED) && report(w, &trouble)) return fail_with(&trouble);
    return status ? fail_with(&error) : EXIT_OK;
}

int kvcheck_command(int argc, char **argv) {
    bool help;
    kvcheck_work *w = calloc(1, sizeof *w);
    if (!w) return usage_error("kvcheck: no memory");
    w->o = (kvcheck_options){.tokens = 4096,
                             .steps = 256,
                             .kv = "hyquant,k4v4,k8v8,kivi4",
                             .parts = "attention,mass,nll",
                             .depths = 8,
                             .problems = 96,
                             .batch = 4,
                             .input = 3500,
                             .answer = 24,
                             .limit = 1 << 30,
                             .ratio = 0.05};
    int code = read_options(&w->o, argc, argv, &help);
    if (!code && !help && !(code = check_options(w))) {
        w->bar.show = isatty(STDERR_FILENO);
        interrupt_watch(true);
        code = run(w);
    }
    free(w->ids);
    json_decref(w->result);
    ebb_model_close(w->model);
    ebb_device_close(w->device);
    method_list_free(&w->kv);
    method_list_free(&w->prefill);
    free(w);
    return code;
}
