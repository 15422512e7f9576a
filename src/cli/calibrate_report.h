/* cli/calibrate_report.h: what `ebb calibrate` prints, writes and draws of calibrations. For calibrate.c. */
#ifndef CLI_CALIBRATE_REPORT_H
#define CLI_CALIBRATE_REPORT_H

#include "ebb/measure.h"

#include <stdio.h>

typedef struct calibrate_report {
    ebb_calibration *const *runs; /* [n]: with seeds first, first + 1, ...; the layout is of the first */
    const double *seconds;        /* [n] */
    int32_t n;
    uint64_t first;
    const char *method, *model, *layout; /* as given; a name; the file written */
    const char *const *texts;            /* [domains] */
    int64_t tokens, written;             /* of a document: of text, written by the model */
    int32_t threads;
} calibrate_report;

/* Markdown, without the heads. */
ebb_status calibrate_print(const calibrate_report *r, FILE *to, ebb_error *error);
ebb_status calibrate_print_json(const calibrate_report *r, ebb_error *error);
/* calibration.md, decay.svg, error.svg and agreement.svg into a folder, which is made where it is not there. */
ebb_status calibrate_write(const calibrate_report *r, const char *folder, ebb_error *error);

#endif
