/* measure/heatmap.h: tables of shares as an SVG of coloured cells. For the commands that draw their measurements. */
#ifndef MEASURE_HEATMAP_H
#define MEASURE_HEATMAP_H

#include "ebb/core.h"

typedef struct heatmap {
    const char *title, *x; /* of the figure, of the columns */
    int32_t rows, columns;
    const char *const *row; /* [rows] labels */
    const double *cells;    /* [rows][columns], 0 .. 1; not finite: an empty cell */
} heatmap;

/* EBB_BAD_FILE names the file and the reason. Text may be anything: what XML does not allow becomes '?'. */
ebb_status heatmap_write(const heatmap *map, const char *path, ebb_error *error);

#endif
