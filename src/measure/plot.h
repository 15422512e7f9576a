/* measure/plot.h: line plots as SVG files. For the commands that draw their measurements. */
#ifndef MEASURE_PLOT_H
#define MEASURE_PLOT_H

#include "ebb/core.h"

/* Points that cannot be drawn (not finite; not positive on a logarithmic axis) are left out and break the line. */
typedef struct plot_series {
    const char *label; /* at the line's end; NULL: none */
    const double *x, *y;
    int64_t n;
    int32_t color, dash; /* 0 and up, modulo PLOT_COLORS and PLOT_DASHES: two series should differ in one */
    bool thin;           /* a companion of another series: pale, without points */
} plot_series;
enum { PLOT_COLORS = 7, PLOT_DASHES = 5 };

typedef struct plot_axis {
    const char *title;
    bool log;
} plot_axis;

typedef struct plot {
    const char *title, *subtitle; /* NULL: none */
    plot_axis x, y;
    const plot_series *series;
    int32_t n;
} plot;

/* The SVG as text, NUL-terminated and malloc'ed: the same bytes for the same plot. 800 wide, 500 high or as high as the
 * labels need. Text may be anything: what XML does not allow in it becomes U+FFFD. */
ebb_status plot_svg(const plot *p, char **svg, size_t *bytes, ebb_error *error);
/* To a file. EBB_BAD_FILE names it and the reason. */
ebb_status plot_write(const plot *p, const char *path, ebb_error *error);

#endif
