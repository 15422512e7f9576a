/* cli/progress.c: the progress bar of `ebb run`. Called by the library, through ebb_progress, in the thread that works.
 */
#include "cli/progress.h"
#include "cli/interrupt.h"
#include "core/core.h"

#include <stdio.h>

enum { BAR_WIDTH = 30 };
#define BAR_PATIENCE 0.3 /* seconds that work may take without a bar, and between two drawings a third of it */

static void draw(progress_bar *bar, const char *what, int64_t done, int64_t total, double now) {
    double rate = now > bar->start ? (double)(done - bar->first) / (now - bar->start) : 0;
    int filled = (int)((double)done / (double)total * BAR_WIDTH);
    char cells[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++) cells[i] = i < filled ? '#' : '.';
    cells[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %lld/%lld", what, cells, (long long)done, (long long)total);
    if (rate > 0) fprintf(stderr, ", %.0f/s, %.0f s left", rate, (double)(total - done) / rate);
    fflush(stderr);
    bar->drawn = true;
    bar->last = now;
}

void progress_clear(progress_bar *bar) {
    if (bar->drawn) fputs("\r\033[K", stderr);
    *bar = (progress_bar){.show = bar->show};
}

static bool report(void *ctx, const char *what, int64_t done, int64_t total) {
    progress_bar *bar = ctx;
    const double now = seconds_now();
    if (bar->start == 0 || done < bar->seen) { /* a new piece of work */
        bar->start = now;
        bar->first = done;
    }
    bar->seen = done;
    if (done >= total) progress_clear(bar);
    else if (bar->show && now - bar->start > BAR_PATIENCE && now - bar->last > BAR_PATIENCE / 3)
        draw(bar, what, done, total, now);
    return !interrupted();
}

ebb_progress progress_of(progress_bar *bar) { return (ebb_progress){bar, report}; }
