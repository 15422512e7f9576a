/* cli/synth.c: `ebb synth`: a checkpoint of random weights at the shapes of a config.json, to measure with where the
 * real one cannot be had. Called by main.c. */
#define _GNU_SOURCE
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/options.h"
#include "core/core.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct synth_options {
    const char *config, *out, *quant;
    int64_t seed;
    bool quiet;
} synth_options;

static const usage_text usage = {
    "ebb synth --config FILE -o DIR|FILE.gguf [options]",
    "Write a checkpoint with random weights, in the released layout, at the sizes that a config.json says: a folder "
    "in\n"
    "BF16, with a tokenizer of single bytes where none lies beside the config.json; or a GGUF file as llama.cpp's\n"
    "converter writes it (Qwen3.5, Qwen3.6). It says nothing sensible, and runs as fast as the real one. Vision and\n"
    "multi-token prediction are left out. Nothing is replaced, and Ctrl-C leaves nothing behind.\n",
    "models/configs has the config.json of some releases.\n",
};

static bool type_of(const char *quant, int32_t *type) {
    static const struct {
        const char *name;
        int32_t type;
    } types[] = {{"bf16", EBB_BF16}, {"q8_0", EBB_Q8_0}, {"q4_0", EBB_Q4_0}};
    for (int32_t i = 0; i < COUNT(types); i++)
        if (!strcmp(quant, types[i].name)) {
            *type = types[i].type;
            return true;
        }
    return false;
}

static int synth(const synth_options *o, int32_t type) {
    progress_bar bar = {.show = isatty(STDERR_FILENO) && !o->quiet};
    const ebb_synth_config config = {
        .size = sizeof config, .type = type, .seed = (uint64_t)o->seed, .progress = progress_of(&bar)};
    ebb_outline *outline = NULL;
    ebb_error error;
    interrupt_watch(true);
    const double start = seconds_now();
    ebb_status status = ebb_outline_open(o->config, &outline, &error);
    if (!status) status = ebb_synth(outline, o->out, &config, &error);
    progress_clear(&bar);
    if (!status && !o->quiet) {
        const ebb_outline_info *m = ebb_outline_describe(outline);
        printf("%s: %s, %lld parameters, %.1f s\n", o->out, m->architecture, (long long)m->parameters,
               seconds_now() - start);
    }
    ebb_outline_close(outline);
    return status ? fail_with(&error) : EXIT_OK;
}

int synth_command(int argc, char **argv) {
    synth_options o = {.quant = "bf16"};
    int32_t type = 0;
    const option_row table[] = {
        {"config", 0, OPTION_TEXT, &o.config, 0, 0, "FILE", "config.json of the model, or a folder with it (needed)"},
        {"out", 'o', OPTION_TEXT, &o.out, 0, 0, "PATH", "folder, or file that ends in .gguf (needed)"},
        {"quant", 0, OPTION_TEXT, &o.quant, 0, 0, "TYPE", "bf16; in a GGUF file q8_0 or q4_0 as well"},
        {"seed", 0, OPTION_INT, &o.seed, 0, 9007199254740992.0, "N", "of the random numbers, 0"},
        {"quiet", 'q', OPTION_FLAG, &o.quiet, 0, 0, NULL, "no progress, no summary"},
        {0},
    };
    options_result result = options_read(&usage, table, argc, argv, NULL);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? EXIT_OK : EXIT_USAGE;
    if (!o.config) return usage_error("synth: no config.json given; --config FILE names it");
    if (!o.out) return usage_error("synth: nowhere to write; -o DIR or -o FILE.gguf says where");
    if (!type_of(o.quant, &type)) return usage_error("synth: --quant %s: expected bf16, q8_0 or q4_0", o.quant);
    return synth(&o, type);
}
