/* cli/drift_report.h: what `ebb drift` prints and draws of a measurement. For drift.c. */
#ifndef CLI_DRIFT_REPORT_H
#define CLI_DRIFT_REPORT_H

#include "ebb/measure.h"

typedef enum drift_by { BY_ALL, BY_LAYER, BY_HEAD } drift_by;

typedef struct drift_report {
    const ebb_drift *drift;
    const char *const *methods;    /* [drift->methods] */
    const char *model, *text, *kv; /* names */
    int64_t tokens;                /* that were asked for, of one sequence */
    int32_t threads;
    double seconds;
} drift_report;

void drift_print(const drift_report *r, drift_by by); /* Markdown tables */
ebb_status drift_print_json(const drift_report *r, ebb_error *error);
ebb_status drift_draw(const drift_report *r, const char *path, ebb_error *error);

#endif
