/* cli/cli.h: what the commands of the program share: exit codes, the table of commands, how failures are told. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "ebb/core.h"

enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1, /* a file, a model or the memory did not do; one sentence on stderr */
    EXIT_USAGE = 2,  /* the command line was wrong; one sentence on stderr */
    EXIT_INTERRUPTED = 130
};

typedef struct command_row {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
} command_row;

int run_command(int argc, char **argv);
int formats_command(int argc, char **argv);
int drift_command(int argc, char **argv);
int eval_command(int argc, char **argv);
int reproduce_command(int argc, char **argv);
int kvcheck_command(int argc, char **argv);
int info_command(int argc, char **argv);
int serve_command(int argc, char **argv);
int bench_command(int argc, char **argv);
int synth_command(int argc, char **argv);
int calibrate_command(int argc, char **argv);

/* "ebb: SENTENCE" on stderr; the exit code that belongs to it. */
int fail_with(const ebb_error *error);
int usage_error(const char *format, ...) EBB_PRINTF(1, 2);

#endif
