/* cli/main.c: the program ebb: THE table of commands. A new command is a row here and a file beside this one. */
#include "cli/cli.h"
#include "core/core.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const command_row commands[] = {
    {"run", "generate text with a model", run_command},
    {"serve", "serve a model over HTTP as the OpenAI API has it", serve_command},
    {"bench", "'bench serve': load a server with conversations, and say what its clients see", bench_command},
    {"formats", "list the storage methods with their exact sizes", formats_command},
    {"drift", "how far the states of several methods drift from FP32 ones along a text", drift_command},
    {"kvcheck", "what KV methods and prefill modes do to attention, a text and answers", kvcheck_command},
    {"eval", "answers, likelihood and drift of a model under several ways of storing", eval_command},
    {"reproduce", "the papers' evaluations on a checkpoint and task files", reproduce_command},
    {"calibrate", "make the layout that damp, damp-reorder or leap-mix needs for a model", calibrate_command},
    {"info", "what a model is, and what its memory costs under every method", info_command},
    {"synth", "write a checkpoint with random weights at the sizes of a config.json", synth_command},
};

int fail_with(const ebb_error *error) {
    fprintf(stderr, "ebb: %s\n", error->text);
    return error->code == EBB_INTERRUPTED ? EXIT_INTERRUPTED : EXIT_FAILED;
}

int usage_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("ebb ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_USAGE;
}

static const command_row *find_command(const char *name) {
    for (int32_t i = 0; i < COUNT(commands); i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static int unknown_command(const char *name) {
    fprintf(stderr, "ebb: unknown command '%s', expected", name);
    for (int32_t i = 0; i < COUNT(commands); i++) fprintf(stderr, " %s,", commands[i].name);
    fputs(" help, --help or --version\n", stderr);
    return EXIT_USAGE;
}

static int print_help(FILE *to) {
    fprintf(to,
            "ebb %s: hybrid linear-attention language models with low-bit memory\n\nusage: ebb COMMAND "
            "[options]\n\ncommands:\n",
            ebb_version());
    for (int32_t i = 0; i < COUNT(commands); i++) fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("  help       'ebb help COMMAND' or 'ebb COMMAND --help': the options of a command\n\n"
          "  --version  print the version\n  --help     this text\n\n"
          "exit codes: 0 done, 1 a file or a model did not do, 2 the command line was wrong, 130 interrupted\n",
          to);
    return to == stdout ? EXIT_OK : EXIT_USAGE;
}

static int help_for(const char *name) {
    char help[] = "--help", *argv[] = {NULL, help, NULL};
    const command_row *c = find_command(name);
    if (!c) return unknown_command(name);
    char own[32];
    snprintf(own, sizeof own, "%s", c->name);
    argv[0] = own;
    return c->run(2, argv);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) return print_help(stderr);
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) return printf("ebb %s\n", ebb_version()), EXIT_OK;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return print_help(stdout);
    if (strcmp(name, "help") == 0) return argc > 2 ? help_for(argv[2]) : print_help(stdout);
    const command_row *c = find_command(name);
    return c ? c->run(argc - 1, argv + 1) : unknown_command(name);
}

int main(int argc, char **argv) {
    int code = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("ebb: standard output could not be written\n", stderr);
        if (code == EXIT_OK) code = EXIT_FAILED;
    }
    return code;
}
