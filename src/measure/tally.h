/* measure/tally.h: the sums of a calibration: errors of key rows under candidate stores, weighed by the decays that
 * follow. A visitor of collect.h. */
#ifndef MEASURE_TALLY_H
#define MEASURE_TALLY_H

#include "measure/collect.h"
#include "measure/roundtrip.h"
#include "measure/tables.h"

enum { MAX_PARTS = 3, MAX_DOMAINS = 16 };

/* Weighed sums over the states of the documents of one part. e_u is the squared error of key row u, W_u = 1 + sum over
 * the next `horizon` tokens of the product of a_u^2 so far. */
typedef struct part_sums {
    int64_t states;
    double *square;              /* [values]: mean over the key rows of S_uv^2 */
    double *energy;              /* [rows]: |S_u|^2 */
    double *error;               /* [candidates][rows]: e_u of the low tier */
    double *risk;                /* [candidates][rows]: e_u W_u of the low tier */
    double *left;                /* [candidates][heads]: sum over u of e_u W_u of the whole store */
    double *log_decay;           /* [domains][channels]: sums of log a */
    int64_t tokens[MAX_DOMAINS]; /* of these */
} part_sums;

/* A state that waits for the decays that follow it. */
typedef struct pending {
    bool waits;
    int64_t from, until;
    double *low, *whole;     /* [candidates][rows]: e_u */
    double *product, *ahead; /* [channels] */
} pending;

typedef struct tally {
    const places *at;
    int32_t candidates, parts, domains, batch, alive;
    int64_t horizon;
    bool fresh; /* the documents run for the first time: their decays and squares count */
    roundtrip low[CANDIDATES], whole[CANDIDATES]; /* not open: not measured */
    part_sums part[MAX_PARTS];
    part_sums *document; /* [batch]: of the documents that run, added to their parts in the order of the documents */
    pending *waiting;    /* [batch][alive] */
    float *stored;       /* one layer */
} tally;

/* `t` is all zeros but for its first line and horizon; alive: states of one document that wait at a time. After a
 * failure too it is closed by tally_close. */
ebb_status tally_open(tally *t, ebb_error *error);
visitor tally_visitor(tally *t);
void tally_close(tally *t);

/* States of one document that wait at a time. */
int32_t tally_alive(const int64_t *stops, int32_t n, int64_t horizon);

#endif
