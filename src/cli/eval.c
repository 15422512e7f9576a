/* cli/eval.c: `ebb eval`: what ways of storing do to answers and texts (ebb/measure.h). Its middle, eval_run, also
 * serves `ebb reproduce`. */
#define _GNU_SOURCE
#include "cli/eval.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/options.h"
#include "core/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const usage_text usage = {
    "ebb eval -m DIR [--task FILE,...] [--text FILE,...] [--state METHOD,...] [options]",
    "What storing states, keys and values in few bits does to a model. A METHOD of --state with every one of --kv and\n"
    "--prefill is compared with the first of them, or, unless that has fp32 states, with fp32 states put before it.\n"
    "Tasks are answered freely, token after token: the share that is right, the first wrong token, the difference to\n"
    "the reference paired by problem, with 95 % intervals. Texts are foretold: parts\n"
    "  nll       -log p, and |delta log p| and KL of the likeliest tokens, up to 128, 512, 2048 and 16384 tokens\n"
    "  drift     of states and outputs along the FP32 trajectory, as 'ebb drift'\n"
    "  injected  the error of storing an FP32 state once\n",
    "Task files have a JSON object a line: {\"messages\" or \"prompt\", \"answer\"}, or the fields of GSM8K, MATH500, "
    "GPQA,\n"
    "MMLU-Pro, AIME or RULER (docs/eval.md). With -o a folder keeps every finished (task, method) cell, eval.json, "
    "eval.md\n"
    "and figures; the same command goes on where it was interrupted (Ctrl-C: what was finished is printed, exit code "
    "130).\n",
};

eval_options eval_defaults(void) {
    return (eval_options){.state = "fp32,bf16,int8,leap8,leap4",
                          .kv = "bf16",
                          .parts = "nll,drift,injected",
                          .limit = 0,
                          .seeds = 1,
                          .answer = 1024,
                          .batch = 8,
                          .tokens = 2048,
                          .top = 20,
                          .every = 64,
                          .top_p = 1};
}

static int read_options(eval_options *o, int argc, char **argv, bool *help) {
    const option_row table[] = {
        {"model", 'm', OPTION_TEXT, &o->model, 0, 0, "DIR", "model folder or GGUF file (needed)"},
        {"task", 0, OPTION_TEXT, &o->tasks, 0, 0, "FILES", "problems to answer"},
        {"text", 0, OPTION_TEXT, &o->texts, 0, 0, "FILES", "UTF-8 texts to foretell"},
        {"state", 0, OPTION_TEXT, &o->state, 0, 0, "METHODS", "of states, fp32,bf16,int8,leap8,leap4"},
        {"kv", 0, OPTION_TEXT, &o->kv, 0, 0, "METHODS", "of keys and values, bf16"},
        {"prefill", 0, OPTION_TEXT, &o->prefill, 0, 0, "MODES", "how prompts attend; as the KV method has it"},
        {"kv-bits", 0, OPTION_TEXT, &o->kv_bits, 0, 0, "FILE", "JSON file of the bits of each layer, for kvtuner"},
        {"layouts", 0, OPTION_TEXT, &o->layouts, 0, 0, "DIR", "layouts NAME.safetensors; else the model's own"},
        {"limit", 0, OPTION_INT, &o->limit, 1, 1 << 30, "N", "problems of a task at most"},
        {"scoring", 0, OPTION_TEXT, &o->scoring, 0, 0, "HOW",
         "exact, number, boxed, choice, all or any; as the form has it"},
        {"seeds", 0, OPTION_INT, &o->seeds, 1, 4096, "K", "answers to every problem, 1; the score is their mean"},
        {"seed", 0, OPTION_INT, &o->seed, 0, 1 << 30, "N", "of what is drawn, 0"},
        {"temperature", 0, OPTION_REAL, &o->temperature, 0, 100, "T", "0, the default: greedy"},
        {"top-p", 0, OPTION_REAL, &o->top_p, 1e-6, 1, "P", "1, the default: off"},
        {"top-k", 0, OPTION_INT, &o->top_k, 0, 1 << 30, "K", "0, the default: off"},
        {"own-sampling", 0, OPTION_FLAG, &o->own, 0, 0, NULL, "as the model's generation_config.json has it instead"},
        {"answer", 0, OPTION_INT, &o->answer, 1, 1 << 24, "N", "tokens of an answer at most, 1024"},
        {"batch", 0, OPTION_INT, &o->batch, 1, 4096, "N", "answers side by side, 8; changes no result"},
        {"decoded", 0, OPTION_FLAG, &o->decoded, 0, 0, NULL, "prompts of tasks go in as generated tokens do"},
        {"tokens", 'n', OPTION_INT, &o->tokens, 2, 1 << 30, "N", "tokens of a text, 2048"},
        {"prompt", 0, OPTION_INT, &o->prompt, 0, 1 << 30, "N", "of them as a prompt, 0; the others as generated"},
        {"top", 0, OPTION_INT, &o->top, 1, 1000, "K", "likeliest tokens of KL, 20"},
        {"every", 0, OPTION_INT, &o->every, 1, 1 << 30, "N", "tokens between two states of injected, 64"},
        {"parts", 0, OPTION_TEXT, &o->parts, 0, 0, "PARTS", "of texts: of nll,drift,injected; all"},
        {"out", 'o', OPTION_TEXT, &o->folder, 0, 0, "DIR", "keep what is measured here, and take what is"},
        {"json", 0, OPTION_FLAG, &o->json, 0, 0, NULL, "one JSON object instead of tables"},
        {"threads", 't', OPTION_INT, &o->threads, 0, 1024, "N", "threads; 0, the default, is one per CPU"},
        {"rows", 0, OPTION_TEXT, &o->rows, 0, 0, "NAME", "kernel rows: ref, avx2, avx512, neon; the best if not given"},
        {0},
    };
    options_result result = options_read(&usage, table, argc, argv, NULL);
    *help = result == OPTIONS_HELP;
    return result == OPTIONS_BAD ? EXIT_USAGE : EXIT_OK;
}

/* ---- what is asked for ---- */

static int check_parts(eval_work *w) {
    for (const char *at = w->o.parts; at;) {
        const size_t n = strcspn(at, ",");
        if (n == 3 && !memcmp(at, "nll", n)) w->nll = true;
        else if (n == 5 && !memcmp(at, "drift", n)) w->drift = true;
        else if (n == 8 && !memcmp(at, "injected", n)) w->injected = true;
        else return usage_error("%s: --parts %s: expected some of nll,drift,injected", w->command, w->o.parts);
        at = at[n] ? at + n + 1 : NULL;
    }
    return EXIT_OK;
}

static int read_list(const eval_work *w, const char *option, const char *text, method_list *list) {
    ebb_error error;
    if (text && method_list_read(text, list, &error))
        return usage_error("%s: --%s: %s", w->command, option, error.text);
    return EXIT_OK;
}

/* `state` NULL: of a model without recurrent layers. */
static int add_method(eval_work *w, const char *state, const char *kv, const char *prefill) {
    eval_method *m = &w->method[w->methods];
    ebb_state_spec spec;
    ebb_kv_spec kv_spec;
    ebb_prefill mode;
    ebb_error error;
    if (state && ebb_state_parse(state, &spec, &error)) return usage_error("%s: --state: %s", w->command, error.text);
    if (ebb_kv_parse(kv, &kv_spec, &error)) return usage_error("%s: --kv: %s", w->command, error.text);
    if (prefill && ebb_prefill_parse(prefill, &mode, &error))
        return usage_error("%s: --prefill: %s", w->command, error.text);
    if (w->methods == EVAL_METHODS) return usage_error("%s: more than %d methods", w->command, EVAL_METHODS);
    const bool show = !state || w->kvs.n > 1 || strcmp(kv, "bf16") != 0;
    const int n = snprintf(m->name, sizeof m->name, "%s%s%s%s%s", state ? state : "", state && show ? " + " : "",
                           show ? kv : "", prefill ? " + " : "", prefill ? prefill : "");
    if (n < 0 || n >= EVAL_NAME) return usage_error("%s: the name of method %s is too long", w->command, state);
    m->store = (ebb_eval_store){.state = state, .kv = kv, .prefill = prefill};
    m->store.kv_bits = strncmp(kv, "kvtuner", 7) == 0 ? w->o.kv_bits : NULL;
    w->methods++;
    return EXIT_OK;
}

/* All combinations; the reference first. */
static int add_methods(eval_work *w, bool recurrent) {
    const bool own = recurrent && strcmp(w->states.names[0], "fp32") != 0;
    const int32_t states = recurrent ? w->states.n : 1, prefills = w->prefills.n ? w->prefills.n : 1;
    const char *first = w->prefills.n ? w->prefills.names[0] : NULL;
    int code = EXIT_OK;
    if (own) code = add_method(w, "fp32", w->kvs.names[0], first);
    for (int32_t s = 0; s < states; s++)
        for (int32_t k = 0; k < w->kvs.n; k++)
            for (int32_t p = 0; p < prefills && !code; p++)
                code = add_method(w, recurrent ? w->states.names[s] : NULL, w->kvs.names[k],
                                  w->prefills.n ? w->prefills.names[p] : NULL);
    return code;
}

/* Results and cells go by the last part of a path, so two files must not share it. */
static int check_names(const eval_work *w) {
    const int32_t n = w->tasks.n + w->texts.n;
    char name[EVAL_FILES][128];
    if (n > EVAL_FILES) return usage_error("%s: %d tasks and texts; expected %d at most", w->command, n, EVAL_FILES);
    for (int32_t i = 0; i < n; i++) {
        last_part(i < w->tasks.n ? w->tasks.names[i] : w->texts.names[i - w->tasks.n], name[i], sizeof name[i]);
        for (int32_t j = i < w->tasks.n ? 0 : w->tasks.n; j < i; j++)
            if (strcmp(name[i], name[j]) == 0)
                return usage_error("%s: two files are called %s; results go by the file's name", w->command, name[i]);
    }
    return EXIT_OK;
}

/* What needs no model. */
static int check_options(eval_work *w) {
    const eval_options *o = &w->o;
    if (!o->model) return usage_error("%s: no model given; -m DIR names its folder", w->command);
    if (!o->tasks && !o->texts)
        return usage_error("%s: nothing to measure; --task FILE names problems, --text FILE a text", w->command);
    if (o->prompt >= o->tokens)
        return usage_error("%s: --prompt %lld of --tokens %lld: expected fewer", w->command, (long long)o->prompt,
                           (long long)o->tokens);
    if (o->every > o->tokens)
        return usage_error("%s: --every %lld of --tokens %lld: expected no more", w->command, (long long)o->every,
                           (long long)o->tokens);
    int code = check_parts(w);
    if (!code) code = read_list(w, "state", o->state, &w->states);
    if (!code) code = read_list(w, "kv", o->kv, &w->kvs);
    if (!code) code = read_list(w, "prefill", o->prefill, &w->prefills);
    if (!code) code = read_list(w, "task", o->tasks, &w->tasks);
    if (!code) code = read_list(w, "text", o->texts, &w->texts);
    if (!code) code = check_names(w);
    if (!code && !(w->method = calloc(EVAL_METHODS, sizeof *w->method)))
        code = usage_error("%s: no memory for methods", w->command);
    return code;
}

/* The layout of a calibrated method: of --layouts where it is there, else the model's own; and a hash of the file. */
static ebb_status find_layout(eval_work *w, eval_method *m, ebb_error *error) {
    ebb_state_spec spec;
    mapped_file file;
    ebb_status status = m->store.state ? ebb_state_parse(m->store.state, &spec, error) : EBB_OK;
    const char *name = status || !m->store.state ? NULL : ebb_state_layout_name(spec.method);
    if (!name) return status;
    const char *folder = w->o.layouts ? w->o.layouts : w->o.model;
    const int n =
        snprintf(m->layout, sizeof m->layout, "%s%s/%s.safetensors", folder, w->o.layouts ? "" : "/layouts", name);
    if (n < 0 || n >= (int)sizeof m->layout)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the path of the layout of %.60s is too long", m->name);
    if (!file_exists(m->layout) && w->o.layouts)
        snprintf(m->layout, sizeof m->layout, "%s/layouts/%s.safetensors", w->o.model, name);
    if (!file_exists(m->layout)) return EBB_OK; /* whoever opens it says what is missing */
    status = map_file(m->layout, &file, error);
    if (status) return status;
    m->layout_hash = hash64(HASH64_BEGIN, file.data, file.bytes);
    unmap_file(&file);
    m->store.layout = m->layout;
    return EBB_OK;
}

/* ---- cells ---- */

static bool cell_path(const eval_work *w, const char *name, char path[1024]) {
    const int n = snprintf(path, 1024, "%s/%s.json", w->o.folder, name);
    if (n < 0 || n >= 1024) return false;
    for (char *c = path + strlen(w->o.folder) + 1; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_=,", *c)) *c = '_';
    return true;
}

void eval_key(const eval_work *w, const eval_method *m, const char *more, char key[640]) {
    snprintf(key, 640, "ebb %s model %016llx rows %s method %s layout %016llx bits %s; %s", ebb_version(),
             (unsigned long long)ebb_model_describe(w->model)->hash, w->o.rows ? w->o.rows : "best", m->name,
             (unsigned long long)m->layout_hash, m->store.kv_bits ? m->store.kv_bits : "-", more);
}

json_t *eval_load(const eval_work *w, const char *name, const char *key) {
    char path[1024];
    if (!w->o.folder || !cell_path(w, name, path) || !file_exists(path)) return NULL;
    json_t *cell = json_load_file(path, 0, NULL);
    const char *of = json_string_value(json_object_get(cell, "key"));
    json_t *value = of && strcmp(of, key) == 0 ? json_incref(json_object_get(cell, "value")) : NULL;
    json_decref(cell);
    return value;
}

static ebb_status write_json(const char *path, const json_t *value, ebb_error *error) {
    char *text = value ? json_dumps(value, JSON_REAL_PRECISION(9) | JSON_INDENT(1)) : NULL;
    ebb_status status = text ? replace_file(path, (const uint8_t *)text, strlen(text), error)
                             : ebb_fail(error, EBB_NO_MEMORY, "no memory to write %.150s", path);
    free(text);
    return status;
}

ebb_status eval_save(const eval_work *w, const char *name, const char *key, json_t *value, ebb_error *error) {
    char path[1024];
    if (!value) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the result %.150s", name);
    if (!w->o.folder) return EBB_OK;
    if (!cell_path(w, name, path))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the path of the result %.100s is too long", name);
    json_t *cell = json_pack("{s:s, s:O}", "key", key, "value", value);
    ebb_status status = write_json(path, cell, error);
    json_decref(cell);
    return status;
}

/* The member `name` of an object, made where it is missing. */
static json_t *member(json_t *object, const char *name) {
    json_t *of = json_object_get(object, name);
    if (of || !object || json_object_set_new(object, name, json_object())) return of;
    return json_object_get(object, name);
}

ebb_status eval_put(eval_work *w, const char *group, const char *file, const char *name, json_t *value,
                    ebb_error *error) {
    json_t *of = member(member(w->result, group), file);
    if (value && of && json_object_set_new(of, name, value) == 0) return EBB_OK;
    return ebb_fail(error, EBB_NO_MEMORY, "no memory for the result %.100s", name);
}

/* ---- the run ---- */

static ebb_status open_all(eval_work *w, ebb_error *error) {
    ebb_status status = EBB_OK;
    if (w->o.folder && mkdir(w->o.folder, 0777) && errno != EEXIST)
        status = ebb_fail(error, EBB_BAD_FILE, "%s: cannot be made: %s", w->o.folder, strerror(errno));
    if (!status) status = open_model(w->o.model, w->o.threads, &w->bar, &w->device, &w->model, error);
    if (status) return status;
    w->sampling = EBB_GREEDY;
    if (w->o.own) w->sampling = ebb_model_describe(w->model)->sampling;
    else {
        w->sampling.temperature = (float)w->o.temperature;
        w->sampling.top_p = (float)w->o.top_p;
        w->sampling.top_k = (int32_t)w->o.top_k;
    }
    w->sampling.seed = (uint64_t)w->o.seed;
    return EBB_OK;
}

static ebb_status open_result(eval_work *w, ebb_error *error) {
    char model[128];
    json_t *names = json_array();
    for (int32_t i = 0; i < w->methods; i++) names = json_and(names, json_string(w->method[i].name));
    w->result =
        json_pack("{s:s, s:s, s:i, s:o, s:{s:f, s:f, s:i, s:I}}", "model", last_part(w->o.model, model, sizeof model),
                  "version", ebb_version(), "threads", ebb_device_threads(w->device), "methods", names, "sampling",
                  "temperature", (double)w->sampling.temperature, "top_p", (double)w->sampling.top_p, "top_k",
                  w->sampling.top_k, "seed", (json_int_t)w->o.seed);
    return w->result ? EBB_OK : ebb_fail(error, EBB_BAD_ARGUMENT, "a name in the result is not UTF-8");
}

static ebb_status write_tables(const eval_work *w, ebb_error *error) {
    char *text = NULL, *path = path_join(w->o.folder, "eval.md");
    size_t bytes = 0;
    FILE *to = path ? open_memstream(&text, &bytes) : NULL;
    if (to) eval_print(w, to);
    ebb_status status = EBB_OK;
    if (!to || fclose(to)) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the tables");
    else status = replace_file(path, (const uint8_t *)text, bytes, error);
    free(text), free(path);
    return status;
}

static ebb_status report(const eval_work *w, ebb_error *error) {
    ebb_status status = EBB_OK;
    if (w->o.json) {
        if (json_dumpf(w->result, stdout, JSON_REAL_PRECISION(9) | JSON_INDENT(1)))
            return ebb_fail(error, EBB_NO_MEMORY, "no memory for the JSON, or it cannot be written");
        putchar('\n');
    } else eval_print(w, stdout);
    if (!w->o.folder) return EBB_OK;
    char *path = path_join(w->o.folder, "eval.json");
    status = path ? write_json(path, w->result, error) : ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    free(path);
    if (!status) status = write_tables(w, error);
    if (!status) status = eval_draw(w, error);
    return status;
}

static ebb_status measure(eval_work *w, ebb_error *error) {
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < w->methods && !status; i++) status = find_layout(w, &w->method[i], error);
    if (!status) status = open_result(w, error);
    for (int32_t i = 0; i < w->tasks.n && !status; i++) status = eval_task_cells(w, i, error);
    for (int32_t i = 0; i < w->texts.n && !status; i++) status = eval_text_cells(w, i, error);
    progress_clear(&w->bar);
    return status;
}

int eval_run(eval_work *w) {
    ebb_error error, trouble;
    int code = check_options(w);
    if (code) return code;
    w->bar.show = isatty(STDERR_FILENO);
    interrupt_watch(true);
    ebb_status status = open_all(w, &error);
    if (status) return fail_with(&error);
    if ((code = add_methods(w, ebb_model_describe(w->model)->state_layers > 0))) return code;
    status = measure(w, &error);
    if (w->result && (!status || status == EBB_INTERRUPTED) && report(w, &trouble)) return fail_with(&trouble);
    return status ? fail_with(&error) : EXIT_OK;
}

void eval_close(eval_work *w) {
    json_decref(w->result);
    ebb_model_close(w->model);
    ebb_device_close(w->device);
    method_list_free(&w->states), method_list_free(&w->kvs), method_list_free(&w->prefills);
    method_list_free(&w->tasks), method_list_free(&w->texts);
    free(w->method);
}

int eval_command(int argc, char **argv) {
    bool help;
    eval_work w = {.command = "eval", .o = eval_defaults()};
    int code = read_options(&w.o, argc, argv, &help);
    if (!code && !help) code = eval_run(&w);
    eval_close(&w);
    return code;
}
