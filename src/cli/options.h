/* cli/options.h: command-line options as a table. The same table reads the arguments and prints the help, so that
 * neither can say what the other does not do. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "cli/cli.h"

typedef enum option_kind { OPTION_FLAG, OPTION_TEXT, OPTION_INT, OPTION_REAL } option_kind;

typedef struct option_row {
    const char *name; /* without dashes; NULL ends the table */
    char letter;      /* of the short form, or 0 */
    option_kind kind;
    void *to;          /* bool, const char *, int64_t or double; left alone when the option is not given */
    double lo, hi;     /* range of a number */
    const char *value; /* what follows, for the help: "DIR" */
    const char *help;
} option_row;

typedef struct usage_text {
    const char *synopsis; /* "ebb run -m DIR ..." */
    const char *about;    /* paragraphs before the options; lines end with \n */
    const char *notes;    /* after the options, or NULL */
} usage_text;

typedef enum options_result { OPTIONS_OK, OPTIONS_HELP, OPTIONS_BAD } options_result;

/* Read argv[1 .. argc-1]. --help and -h print the help on stdout and answer OPTIONS_HELP. Words that are not options
 * are moved to argv[1 .. *words], in order; words == NULL: there may be none. What is wrong is told on stderr:
 * OPTIONS_BAD. */
options_result options_read(const usage_text *usage, const option_row *table, int argc, char **argv, int *words);

#endif
