/* cli/drift.c: `ebb drift`: state methods side by side along one text (ebb/measure.h). */
#define _GNU_SOURCE
#include "cli/cli.h"
#include "cli/drift_report.h"
#include "cli/interrupt.h"
#include "cli/method_list.h"
#include "cli/open.h"
#include "cli/options.h"
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct drift_options {
    const char *model, *text, *state, *layout, *kv, *rows, *svg, *by;
    int64_t tokens, seqs, every, per_decade, threads;
    bool json;
} drift_options;

typedef struct drift_work {
    drift_options o;
    drift_by by;
    method_list methods;
    progress_bar bar;
    ebb_device *device;
    ebb_model *model;
    int32_t *ids; /* [seqs][tokens] */
    ebb_drift *drift;
} drift_work;

static const usage_text usage = {
    "ebb drift -m DIR --text FILE [-n N] [--state METHOD,METHOD,...] [options]",
    "How far recurrent states drift from FP32 ones when they are stored by other methods. The text goes through the\n"
    "model token by token, as an answer would; FP32 states drive it, and every METHOD keeps its own beside them, from\n"
    "the same inputs. At positions 1, 2, 4, ... each is compared, head by head: state drift is |S_q - S| / |S|\n"
    "(Frobenius), output error |o_q - o| / |o| over the tokens since the position before.\n",
    "METHOD is NAME or NAME:key=value,...; a comma before key= belongs to the method, so\n"
    "--state leap8:r=2,scale=max,int8 names two. 'ebb formats' lists the names. Special tokens in the text are plain\n"
    "text. Ctrl-C ends the run; what was measured is printed and drawn, and the exit code is 130.\n",
};

static int read_options(drift_options *o, int argc, char **argv, bool *help) {
    const option_row table[] = {
        {"model", 'm', OPTION_TEXT, &o->model, 0, 0, "DIR", "model folder or GGUF file (needed)"},
        {"text", 0, OPTION_TEXT, &o->text, 0, 0, "FILE", "UTF-8 text, up to 1 GiB (needed)"},
        {"tokens", 'n', OPTION_INT, &o->tokens, 1, 1 << 30, "N", "tokens of a sequence, 4096"},
        {"seqs", 0, OPTION_INT, &o->seqs, 1, 65536, "K",
         "sequences side by side: the first K times N tokens of the text, 1"},
        {"state", 0, OPTION_TEXT, &o->state, 0, 0, "METHODS", "what to compare, bf16,bf16-w,int8,int8-w,leap8,leap4"},
        {"layout", 0, OPTION_TEXT, &o->layout, 0, 0, "FILE",
         "layout of the calibrated METHODS it was made for; DIR/layouts/METHOD.safetensors"},
        {"kv", 0, OPTION_TEXT, &o->kv, 0, 0, "METHOD", "how the KV cache is stored, bf16"},
        {"every", 0, OPTION_INT, &o->every, 1, 1 << 30, "N", "measure at multiples of N instead"},
        {"per-decade", 0, OPTION_INT, &o->per_decade, 1, 1000, "N", "measure N times a decade instead"},
        {"by", 0, OPTION_TEXT, &o->by, 0, 0, "WHAT", "rows of the tables: all, layer or head; all"},
        {"svg", 0, OPTION_TEXT, &o->svg, 0, 0, "FILE", "draw the state drift"},
        {"json", 0, OPTION_FLAG, &o->json, 0, 0, NULL, "one JSON object instead of tables, with every head"},
        {"threads", 't', OPTION_INT, &o->threads, 0, 1024, "N", "threads; 0, the default, is one per CPU"},
        {"rows", 0, OPTION_TEXT, &o->rows, 0, 0, "NAME", "kernel rows: ref, avx2, avx512, neon; the best if not given"},
        {0},
    };
    options_result result = options_read(&usage, table, argc, argv, NULL);
    *help = result == OPTIONS_HELP;
    return result == OPTIONS_BAD ? EXIT_USAGE : EXIT_OK;
}

/* What no single option can see. */
static int check_options(drift_work *w) {
    const drift_options *o = &w->o;
    ebb_error error;
    ebb_state_spec state;
    ebb_kv_spec kv;
    if (!o->model) return usage_error("drift: no model given; -m DIR names its folder");
    if (!o->text) return usage_error("drift: no text given; --text FILE names it");
    if (o->every && o->per_decade) return usage_error("drift: --every and --per-decade exclude each other");
    if (strcmp(o->by, "all") == 0) w->by = BY_ALL;
    else if (strcmp(o->by, "layer") == 0) w->by = BY_LAYER;
    else if (strcmp(o->by, "head") == 0) w->by = BY_HEAD;
    else return usage_error("drift: --by %s: expected all, layer or head", o->by);
    if (method_list_read(o->state, &w->methods, &error)) return usage_error("drift: --state: %s", error.text);
    if (w->methods.n > EBB_MAX_DRIFT_METHODS)
        return usage_error("drift: --state names %d methods, at most %d fit a run", w->methods.n,
                           EBB_MAX_DRIFT_METHODS);
    for (int32_t i = 0; i < w->methods.n; i++)
        if (ebb_state_parse(w->methods.names[i], &state, &error)) return usage_error("drift: --state: %s", error.text);
    if (ebb_kv_parse(o->kv, &kv, &error)) return usage_error("drift: --kv: %s", error.text);
    return EXIT_OK;
}

static ebb_status read_text(drift_work *w, ebb_error *error) {
    int64_t count = 0;
    const int64_t needed = w->o.tokens * w->o.seqs;
    ebb_status status = open_text(w->model, w->o.text, &w->ids, &count, error);
    if (!status && count < needed)
        status = ebb_fail(error, EBB_BAD_FILE, "%s has %lld tokens; --tokens %lld and --seqs %lld need %lld", w->o.text,
                          (long long)count, (long long)w->o.tokens, (long long)w->o.seqs, (long long)needed);
    return status;
}

static ebb_status measure(drift_work *w, ebb_error *error) {
    const ebb_drift_config config = {.size = sizeof config,
                                     .methods = w->methods.names,
                                     .n_methods = w->methods.n,
                                     .layout = w->o.layout,
                                     .kv = w->o.kv,
                                     .algorithm = w->o.rows,
                                     .ids = w->ids,
                                     .seqs = (int32_t)w->o.seqs,
                                     .tokens = w->o.tokens,
                                     .every = w->o.every,
                                     .per_decade = (int32_t)w->o.per_decade,
                                     .progress = progress_of(&w->bar)};
    ebb_status status = ebb_drift_run(w->model, &config, &w->drift, error);
    progress_clear(&w->bar);
    return status;
}

static ebb_status report(const drift_work *w, double seconds, ebb_error *error) {
    char model[128], text[128];
    const drift_report r = {.drift = w->drift,
                            .methods = w->methods.names,
                            .model = last_part(w->o.model, model, sizeof model),
                            .text = last_part(w->o.text, text, sizeof text),
                            .kv = w->o.kv,
                            .tokens = w->o.tokens,
                            .threads = ebb_device_threads(w->device),
                            .seconds = seconds};
    ebb_status status = EBB_OK;
    if (w->o.json) status = drift_print_json(&r, error);
    else drift_print(&r, w->by);
    if (!status && w->o.svg) status = drift_draw(&r, w->o.svg, error);
    return status;
}

static int run(drift_work *w) {
    ebb_error error, trouble;
    ebb_status status = w->o.svg ? check_writable(w->o.svg, &error) : EBB_OK;
    if (!status) status = open_model(w->o.model, w->o.threads, &w->bar, &w->device, &w->model, &error);
    if (!status) status = read_text(w, &error);
    const double start = seconds_now();
    if (!status) status = measure(w, &error);
    if (w->drift && report(w, seconds_now() - start, &trouble)) return fail_with(&trouble);
    return status ? fail_with(&error) : EXIT_OK;
}

int drift_command(int argc, char **argv) {
    bool help;
    drift_work w = {
        .o = {.tokens = 4096, .seqs = 1, .state = "bf16,bf16-w,int8,int8-w,leap8,leap4", .kv = "bf16", .by = "all"}};
    int code = read_options(&w.o, argc, argv, &help);
    if (code || help) return code;
    w.bar.show = isatty(STDERR_FILENO);
    if (!(code = check_options(&w))) {
        interrupt_watch(true);
        code = run(&w);
    }
    ebb_drift_free(w.drift);
    free(w.ids);
    ebb_model_close(w.model);
    ebb_device_close(w.device);
    method_list_free(&w.methods);
    return code;
}
