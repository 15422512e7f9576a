/* cli/calibrate.c: `ebb calibrate`: the layout of a method that needs one, from texts (ebb/measure.h). */
#define _GNU_SOURCE
#include "cli/calibrate_report.h"
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

enum { MOST_SEEDS = 64 };

typedef struct calibrate_options {
    const char *model, *texts, *output, *method, *selector, *kv, *rows, *report;
    int64_t documents, tokens, written, every, seed, seeds, batch, threads;
    bool from_text, json;
} calibrate_options;

typedef struct calibrate_work {
    calibrate_options o;
    char *list; /* o.texts, cut at its commas */
    const char *paths[EBB_MAX_DOMAINS];
    char names[EBB_MAX_DOMAINS][64];
    const char *shown[EBB_MAX_DOMAINS];
    int32_t *ids[EBB_MAX_DOMAINS];
    ebb_domain domains[EBB_MAX_DOMAINS];
    int32_t n;
    char *output; /* the layout's file */
    const char *layout_name;
    progress_bar bar;
    ebb_device *device;
    ebb_model *model;
    ebb_calibration *runs[MOST_SEEDS];
    double seconds[MOST_SEEDS];
} calibrate_work;

/* clang-format off: lines of the help end where the text says */
static const usage_text usage = {
    "ebb calibrate -m DIR --text FILE,FILE,... [--method METHOD] [-o FILE] [options]",
    "Make the layout that a calibrated method needs: which key rows a head keeps in 16 bits (damp), how its values "
    "are\n"
    "scaled and ordered too (damp-reorder, int8-reorder, int4-reorder), or how many bits it gets (leap-mix). Each "
    "FILE\n"
    "is a domain of its own and weighs the same: documents are drawn from it by the seed. The model runs over them "
    "with\n"
    "FP32 states; what storing does to these is measured by the method's own codec.\n",
    "METHOD may have parameters: damp:rows=8. Selectors for comparison: random, energy (of a row), error (of storing "
    "it),\n"
    "persistence (under decay), product (of the last two), risk (error times the decays that follow). Special tokens "
    "in\n"
    "the texts are plain text. docs/calibration.md has the protocols. Ctrl-C ends the run without a layout.\n",
};
/* clang-format on */

static int read_options(calibrate_options *o, int argc, char **argv, bool *help) {
    const option_row table[] = {
        {"model", 'm', OPTION_TEXT, &o->model, 0, 0, "DIR", "model folder or GGUF file (needed)"},
        {"text", 0, OPTION_TEXT, &o->texts, 0, 0, "FILES", "UTF-8 texts, separated by commas (needed)"},
        {"method", 0, OPTION_TEXT, &o->method, 0, 0, "METHOD", "damp, damp-reorder, leap-mix and their kin; damp"},
        {"output", 'o', OPTION_TEXT, &o->output, 0, 0, "FILE", "the layout; DIR/layouts/NAME.safetensors"},
        {"selector", 0, OPTION_TEXT, &o->selector, 0, 0, "WHAT", "rank key rows by this, not by the method's own"},
        {"documents", 0, OPTION_INT, &o->documents, 1, 4096, "N", "of each text; 8, 12 for the kin of damp-reorder"},
        {"tokens", 'n', OPTION_INT, &o->tokens, 1, 1 << 24, "N", "of text in a document; 256, 1024"},
        {"written", 0, OPTION_INT, &o->written, 1, 1 << 24, "N", "tokens that follow, the model's own; none, 4096"},
        {"every", 0, OPTION_INT, &o->every, 1, 1 << 24, "N",
         "a state every N tokens; 8, 256 to 768 of 2048 written ones"},
        {"from-text", 0, OPTION_FLAG, &o->from_text, 0, 0, NULL, "they are taken from the text instead"},
        {"seed", 0, OPTION_INT, &o->seed, 0, 1e15, "N", "draws documents, parts and tokens; 0"},
        {"seeds", 0, OPTION_INT, &o->seeds, 1, MOST_SEEDS, "K",
         "run K times, with seeds from --seed on; the layout is the first one's; 1"},
        {"report", 0, OPTION_TEXT, &o->report, 0, 0, "DIR", "write calibration.md and figures there"},
        {"json", 0, OPTION_FLAG, &o->json, 0, 0, NULL, "one JSON object instead of tables, with every head"},
        {"kv", 0, OPTION_TEXT, &o->kv, 0, 0, "METHOD", "how the KV cache is stored, bf16"},
        {"batch", 0, OPTION_INT, &o->batch, 1, 4096, "N", "documents side by side, 8; changes no result"},
        {"threads", 't', OPTION_INT, &o->threads, 0, 1024, "N", "threads; 0, the default, is one per CPU"},
        {"rows", 0, OPTION_TEXT, &o->rows, 0, 0, "NAME", "kernel rows: ref, avx2, avx512, neon; the best if not given"},
        {0},
    };
    options_result result = options_read(&usage, table, argc, argv, NULL);
    *help = result == OPTIONS_HELP;
    return result == OPTIONS_BAD ? EXIT_USAGE : EXIT_OK;
}

/* "texts/prose.txt" -> "prose" */
static void name_of(const char *path, char *name, size_t room) {
    const char *last = strrchr(path, '/'), *from = last && last[1] ? last + 1 : path, *dot = strrchr(from, '.');
    snprintf(name, room, "%.*s", (int)(dot && dot > from ? dot - from : (ptrdiff_t)strlen(from)), from);
}

static int cut_texts(calibrate_work *w) {
    w->list = strdup(w->o.texts);
    if (!w->list) return usage_error("calibrate: no memory for the names of the texts");
    for (char *at = w->list, *next; at; at = next) {
        next = strchr(at, ',');
        if (next) *next++ = '\0';
        if (!*at) return usage_error("calibrate: --text %s has an empty name, expected FILE,FILE,...", w->o.texts);
        if (w->n == EBB_MAX_DOMAINS) return usage_error("calibrate: more than %d texts", EBB_MAX_DOMAINS);
        w->paths[w->n] = at;
        name_of(at, w->names[w->n], sizeof w->names[w->n]);
        w->shown[w->n] = w->names[w->n];
        w->n++;
    }
    return EXIT_OK;
}

/* What no single option can see. */
static int check_options(calibrate_work *w) {
    const calibrate_options *o = &w->o;
    ebb_error error;
    ebb_state_spec state;
    ebb_kv_spec kv;
    if (!o->model) return usage_error("calibrate: no model given; -m DIR names its folder");
    if (!o->texts) return usage_error("calibrate: no text given; --text FILE,FILE,... names one a domain");
    if (ebb_state_parse(o->method, &state, &error)) return usage_error("calibrate: --method: %s", error.text);
    w->layout_name = ebb_state_layout_name(state.method);
    if (!w->layout_name)
        return usage_error("calibrate: method %s needs no calibration; damp, damp-reorder and leap-mix do",
                           state.method->name);
    if (ebb_kv_parse(o->kv, &kv, &error)) return usage_error("calibrate: --kv: %s", error.text);
    return cut_texts(w);
}

static ebb_status choose_output(calibrate_work *w, ebb_error *error) {
    if (w->o.output) w->output = strdup(w->o.output);
    else {
        char name[EBB_METHOD_TEXT + 32];
        char *folder = path_join(w->o.model, "layouts");
        snprintf(name, sizeof name, "%s.safetensors", w->layout_name);
        if (folder && mkdir(folder, 0777) != 0 && errno != EEXIST) {
            ebb_status status = ebb_fail(error, EBB_BAD_FILE, "%s: cannot be made: %s", folder, strerror(errno));
            free(folder);
            return status;
        }
        w->output = folder ? path_join(folder, name) : NULL;
        free(folder);
    }
    return w->output ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for the name of the layout");
}

static ebb_status read_text(calibrate_work *w, int32_t i, ebb_error *error) {
    ebb_domain *d = &w->domains[i];
    ebb_status status = open_text(w->model, w->paths[i], &w->ids[i], &d->count, error);
    d->name = w->paths[i];
    d->ids = w->ids[i];
    return status;
}

static ebb_status measure(calibrate_work *w, int32_t run, ebb_error *error) {
    const calibrate_options *o = &w->o;
    const ebb_calibrate_config config = {.size = sizeof config,
                                         .method = o->method,
                                         .selector = o->selector,
                                         .kv = o->kv,
                                         .algorithm = o->rows,
                                         .domains = w->domains,
                                         .n_domains = w->n,
                                         .documents = (int32_t)o->documents,
                                         .tokens = o->tokens,
                                         .written = o->written,
                                         .every = o->every,
                                         .from_text = o->from_text,
                                         .batch = (int32_t)o->batch,
                                         .seed = (uint64_t)(o->seed + run),
                                         .progress = progress_of(&w->bar)};
    const double start = seconds_now();
    ebb_status status = ebb_calibrate(w->model, &config, &w->runs[run], error);
    w->seconds[run] = seconds_now() - start;
    progress_clear(&w->bar);
    return status;
}

/* What the file says of how it was made: nothing that differs from one run to the next. */
static ebb_status save_layout(const calibrate_work *w, ebb_error *error) {
    const ebb_calibration *c = w->runs[0];
    char texts[EBB_MAX_DOMAINS * 66] = "", documents[32], tokens[32], written[32], states[32], seed[32];
    for (int32_t i = 0; i < w->n; i++)
        snprintf(texts + strlen(texts), sizeof texts - strlen(texts), "%s%s", i ? "," : "", w->names[i]);
    snprintf(documents, sizeof documents, "%d", c->documents);
    snprintf(tokens, sizeof tokens, "%lld", (long long)c->from_text);
    snprintf(written, sizeof written, "%lld", (long long)c->written);
    snprintf(states, sizeof states, "%lld", (long long)c->states);
    snprintf(seed, sizeof seed, "%lld", (long long)w->o.seed);
    const ebb_layout_note notes[] = {
        {"calibrated_for", w->o.method},
        {"selector", c->selector ? c->selector : "memory"},
        {"texts", texts},
        {"documents_of_a_text", documents},
        {"tokens_of_text", tokens},
        {"tokens_written", written},
        {"states_of_a_head", states},
        {"seed", seed},
        {"made_by", "ebb calibrate"},
    };
    return ebb_layout_write(w->output, c->layout, notes, COUNT(notes), error);
}

static ebb_status report(const calibrate_work *w, ebb_error *error) {
    char model[128];
    const ebb_calibration *first = w->runs[0];
    const calibrate_report r = {.runs = w->runs,
                                .seconds = w->seconds,
                                .n = (int32_t)w->o.seeds,
                                .first = (uint64_t)w->o.seed,
                                .method = w->o.method,
                                .model = last_part(w->o.model, model, sizeof model),
                                .layout = w->output,
                                .texts = w->shown,
                                .tokens = first->from_text,
                                .written = first->written,
                                .threads = ebb_device_threads(w->device)};
    ebb_status status = EBB_OK;
    if (w->o.json) status = calibrate_print_json(&r, error);
    else status = calibrate_print(&r, stdout, error);
    if (!status && w->o.report) status = calibrate_write(&r, w->o.report, error);
    return status;
}

static int run(calibrate_work *w) {
    ebb_error error;
    ebb_status status = choose_output(w, &error);
    if (!status) status = check_writable(w->output, &error);
    if (!status) status = open_model(w->o.model, w->o.threads, &w->bar, &w->device, &w->model, &error);
    for (int32_t i = 0; i < w->n && !status; i++) status = read_text(w, i, &error);
    for (int32_t i = 0; i < w->o.seeds && !status; i++) {
        status = measure(w, i, &error);
        if (!status && i == 0) status = save_layout(w, &error);
    }
    if (!status) status = report(w, &error);
    return status ? fail_with(&error) : EXIT_OK;
}

int calibrate_command(int argc, char **argv) {
    bool help;
    calibrate_work w = {.o = {.method = "damp", .kv = "bf16", .seeds = 1}};
    int code = read_options(&w.o, argc, argv, &help);
    if (code || help) return code;
    w.bar.show = isatty(STDERR_FILENO);
    if (!(code = check_options(&w))) {
        interrupt_watch(true);
        code = run(&w);
    }
    for (int32_t i = 0; i < MOST_SEEDS; i++) ebb_calibration_free(w.runs[i]);
    for (int32_t i = 0; i < EBB_MAX_DOMAINS; i++) free(w.ids[i]);
    ebb_model_close(w.model);
    ebb_device_close(w.device);
    free(w.list), free(w.output);
    return code;
}
