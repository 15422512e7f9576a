/* cli/reproduce.c: `ebb reproduce`: the papers' sampling settings and lists of methods, applied to a user's checkpoint
 * and task files: presets over `ebb eval`. */
#define _GNU_SOURCE
#include "cli/cli.h"
#include "cli/eval.h"
#include "cli/open.h"
#include "cli/options.h"

#include <stdlib.h>
#include <string.h>

/* What a paper says of an evaluation. top_p 0: the settings of the model's own card, its generation_config.json. */
typedef struct paper_row {
    const char *name, *model; /* part of the checkpoint's name that these settings are of; NULL: of any other */
    const char *states;
    double temperature, top_p;
    int32_t top_k, seeds; /* seeds 0: by task */
    int64_t answer;
} paper_row;

#define LEAPQUANT_STATES                                                                                         \
    "fp32,bf16,fp8,int8,kvquant8,quarot8,turboquant8,leap8,int6,nvfp6,mxfp6,kvquant6,quarot6,turboquant6,leap6," \
    "int4,nvfp4,mxfp4,kvquant4,quarot4,turboquant4,leap4"
#define DAMP_STATES "fp32,fp16,bf16,fp8,int8-affine,int8-h32,nvfp4,int4-affine,int4-h32,damp"

static const paper_row papers[] = {
    /* LeapQuant, 4.1: three seeds, the sampling of each model's card. */
    {"leapquant", NULL, LEAPQUANT_STATES, 0, 0, 0, 3, 32768},
    /* DAMP, 6.1. */
    {"damp", "kimi", DAMP_STATES, 1.0, 1.0, 0, 0, 262144},
    {"damp", NULL, DAMP_STATES, 0.7, 0.8, 20, 0, 65536},
};

/* DAMP, 6.1: generations a problem, by a part of the file's name. */
static const struct {
    const char *part;
    int32_t seeds;
} damp_tasks[] = {{"aime", 128}, {"hmmt", 64}, {"imo", 16}, {"gpqa", 32}, {"mmlu", 16}, {"lcb", 8}, {"livecode", 8}};

static const usage_text usage = {
    "ebb reproduce --model DIR --tasks FILE,... [--paper NAME] [options]",
    "A paper's evaluation on a checkpoint of yours: its list of state methods and its sampling, over 'ebb eval'.\n"
    "  leapquant  22 methods, 3 answers to a problem, sampled as generation_config.json says, 32768 tokens at most\n"
    "  damp       10 methods; temperature 0.7, top-p 0.8, top-k 20, 65536 tokens, or for kimi 1.0, 1.0, off, 262144;\n"
    "             answers to a problem by the file's name: aime 128, hmmt 64, gpqa 32, imo and mmlu 16, lcb 8, others "
    "1\n"
    "damp needs a layout: 'ebb calibrate'. What is given here as an option goes before the paper.\n",
    NULL,
};

static const paper_row *find_paper(const char *name, const char *model) {
    char last[128];
    last_part(model, last, sizeof last);
    for (size_t i = 0; i < sizeof papers / sizeof *papers; i++)
        if (strcmp(papers[i].name, name) == 0 && (!papers[i].model || strcasestr(last, papers[i].model)))
            return &papers[i];
    return NULL;
}

static int32_t seeds_of(const paper_row *paper, const char *task) {
    char last[128];
    last_part(task, last, sizeof last);
    if (paper->seeds) return paper->seeds;
    for (size_t i = 0; i < sizeof damp_tasks / sizeof *damp_tasks; i++)
        if (strcasestr(last, damp_tasks[i].part)) return damp_tasks[i].seeds;
    return 1;
}

static int apply(eval_work *w, const char *name, int32_t **runs) {
    eval_options *o = &w->o;
    if (!o->model) return usage_error("reproduce: no model given; --model DIR names its folder");
    if (!o->tasks) return usage_error("reproduce: no tasks given; --tasks FILE,... names them");
    const paper_row *paper = find_paper(name, o->model);
    if (!paper) return usage_error("reproduce: --paper %s: expected leapquant or damp", name);
    method_list tasks = {0};
    ebb_error error;
    if (method_list_read(o->tasks, &tasks, &error)) return usage_error("reproduce: --tasks: %s", error.text);
    *runs = calloc((size_t)tasks.n, sizeof **runs);
    for (int32_t i = 0; *runs && i < tasks.n; i++)
        (*runs)[i] = o->seeds ? (int32_t)o->seeds : seeds_of(paper, tasks.names[i]);
    method_list_free(&tasks);
    if (!*runs) return usage_error("reproduce: no memory for the tasks");
    w->runs = *runs;
    if (!o->state) o->state = paper->states;
    if (!o->answer) o->answer = paper->answer;
    o->own = paper->top_p <= 0;
    o->temperature = paper->temperature, o->top_p = paper->top_p, o->top_k = paper->top_k;
    return EXIT_OK;
}

int reproduce_command(int argc, char **argv) {
    const char *paper = "leapquant";
    int32_t *runs = NULL;
    eval_work w = {.command = "reproduce", .o = eval_defaults()};
    eval_options *o = &w.o;
    o->state = NULL, o->seeds = 0, o->answer = 0;
    const option_row table[] = {
        {"model", 'm', OPTION_TEXT, &o->model, 0, 0, "DIR", "model folder or GGUF file (needed)"},
        {"tasks", 0, OPTION_TEXT, &o->tasks, 0, 0, "FILES", "problems, as for 'ebb eval' (needed)"},
        {"paper", 0, OPTION_TEXT, &paper, 0, 0, "NAME", "leapquant, the default, or damp"},
        {"state", 0, OPTION_TEXT, &o->state, 0, 0, "METHODS", "instead of the paper's"},
        {"kv", 0, OPTION_TEXT, &o->kv, 0, 0, "METHODS", "of keys and values, bf16"},
        {"layouts", 0, OPTION_TEXT, &o->layouts, 0, 0, "DIR", "layouts NAME.safetensors; else the model's own"},
        {"limit", 0, OPTION_INT, &o->limit, 1, 1 << 30, "N", "problems of a task at most"},
        {"scoring", 0, OPTION_TEXT, &o->scoring, 0, 0, "HOW", "as for 'ebb eval'"},
        {"seeds", 0, OPTION_INT, &o->seeds, 1, 4096, "K", "answers to every problem, instead of the paper's"},
        {"seed", 0, OPTION_INT, &o->seed, 0, 1 << 30, "N", "of what is drawn, 0"},
        {"answer", 0, OPTION_INT, &o->answer, 1, 1 << 24, "N", "tokens of an answer at most, instead of the paper's"},
        {"batch", 0, OPTION_INT, &o->batch, 1, 4096, "N", "answers side by side, 8; changes no result"},
        {"out", 'o', OPTION_TEXT, &o->folder, 0, 0, "DIR", "keep what is measured here, and take what is"},
        {"json", 0, OPTION_FLAG, &o->json, 0, 0, NULL, "one JSON object instead of tables"},
        {"threads", 't', OPTION_INT, &o->threads, 0, 1024, "N", "threads; 0, the default, is one per CPU"},
        {"rows", 0, OPTION_TEXT, &o->rows, 0, 0, "NAME", "kernel rows: ref, avx2, avx512, neon; the best if not given"},
        {0},
    };
    int code = EXIT_OK;
    const options_result result = options_read(&usage, table, argc, argv, NULL);
    if (result == OPTIONS_BAD) code = EXIT_USAGE;
    if (result == OPTIONS_OK) code = apply(&w, paper, &runs);
    if (result == OPTIONS_OK && !code) code = eval_run(&w);
    free(runs);
    eval_close(&w);
    return code;
}
