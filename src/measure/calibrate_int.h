/* measure/calibrate_int.h: the inside of a calibration. For calibrate.c and protocols.c. */
#ifndef MEASURE_CALIBRATE_INT_H
#define MEASURE_CALIBRATE_INT_H

#include "ebb/measure.h"
#include "measure/selectors.h"
#include "measure/tally.h"

enum {
    EVERY = 8,     /* version 1: a state every so many tokens */
    HORIZON = 256, /* decays that follow a state */
    WINDOW = 1024,
    WINDOW_STEP = 2048, /* version 2: windows of written tokens, and where they begin */
    FIT = 0,
    TUNE = 1,
    CHECK = 2, /* parts of version 2 */
    PLAIN = 0,
    CHOSEN = 1 /* candidates of its last run */
};

typedef enum protocol_kind { BY_ROWS, BY_CANDIDATES, BY_BITS } protocol_kind;
typedef struct protocol {
    const char *layout; /* the layouts it makes */
    protocol_kind kind;
    selector own;
    int32_t documents, parts, tables, candidates;
    int64_t tokens, written;
} protocol;

typedef struct run {
    ebb_model *model;
    const ebb_model_info *info;
    ebb_calibrate_config config;
    const protocol *p;
    ebb_state_spec spec, low; /* the method; without protected rows */
    selector by;
    places at;
    ebb_sampling *writing; /* [documents of all domains] */
    document *documents;   /* likewise */
    int32_t n;
    int64_t text, length; /* tokens of a document: of text, in all */
    int64_t *stops;
    int32_t n_stops;
    int32_t split[MAX_PARTS]; /* documents of all domains in a part */
    collector *collector;
    tally sums;
    tables tables, candidate[CANDIDATES]; /* the result; the candidates */
    ebb_layout *layouts[2 * CANDIDATES];  /* of the stores in use */
    int32_t *choice;                      /* [heads]: candidate */
    double *score, *other;                /* [most rows of a head, or heads] */
    ranked *ranking, *ranking_other, *scratch;
    ebb_calibration *out;
} run;

/* The protocol of r->p over the documents, and the result (protocols.c). */
ebb_status calibrate_run(run *r, ebb_error *error);

#endif
