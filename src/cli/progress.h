/* cli/progress.h: a progress bar on a terminal, with rate and time left; nothing in a pipe. Also where Ctrl-C stops
 * long work. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include "ebb/core.h"

typedef struct progress_bar {
    bool show;           /* stderr is a terminal */
    bool drawn;          /* something is on the line */
    double start, last;  /* of this piece of work; of the last drawing */
    int64_t first, seen; /* units done at the start; at the last report */
} progress_bar;

ebb_progress progress_of(progress_bar *bar);
void progress_clear(progress_bar *bar); /* wipe the line before other output */

#endif
