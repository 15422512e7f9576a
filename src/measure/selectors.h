/* measure/selectors.h: from scores to a layout: rankings, how well two of them agree, and how many bits a
 * head gets. Pure; for calibration. */
#ifndef MEASURE_SELECTORS_H
#define MEASURE_SELECTORS_H

#include "ebb/core.h"

/* What key rows are ranked by. */
typedef enum selector {
    SELECT_RANDOM,      /* a number keyed by the seed */
    SELECT_ENERGY,      /* E |S_u|^2 */
    SELECT_ERROR,       /* E e_u, e_u = |[Q(S) - S]_u|^2 of the low tier */
    SELECT_PERSISTENCE, /* P_u = 1 / max(1 - a_eff^2, tau) */
    SELECT_PRODUCT,     /* E e_u times P_u: DAMP's first version */
    SELECT_RISK,        /* E [e_u W_u], W_u from the decays that follow: DAMP's second version */
    SELECTORS
} selector;
extern const char *const selector_names[SELECTORS];

/* *which of a name; EBB_BAD_ARGUMENT lists them. */
ebb_status selector_find(const char *name, selector *which, ebb_error *error);

#define PERSISTENCE_FLOOR 1e-4 /* tau */
/* 1 / max(1 - a^(2 steps), tau): what an error that a store of one write per `steps` tokens injects adds up to. */
double persistence(double log_decay, int32_t steps);

typedef struct ranked {
    double value;
    int32_t at;
} ranked;
/* Places 0 .. n-1 by falling value, equal ones by place. */
void rank_by(const double *values, int32_t n, ranked *out);
/* Spearman's correlation, equal values share their mean rank; NAN when one side does not vary. scratch [2n]. */
double spearman(const double *a, const double *b, int32_t n, ranked *scratch);
/* Share of the first k places of `a` that are among the first k of `b`; 1 when k is 0. */
double overlap_of(const ranked *a, const ranked *b, int32_t k);

/* ---- bits by head ---- */

enum { BIT_CLASSES = 3 };
extern const uint8_t bit_classes[BIT_CLASSES]; /* 6, 8, 12 */

typedef struct bit_costs {
    int32_t n;
    const size_t *bytes[BIT_CLASSES]; /* [n]: of a packed head in each class */
    const double *error[BIT_CLASSES]; /* [n]: what storing adds up to in a head of each class, over its energy */
    size_t budget;                    /* for all heads; 8 bits everywhere must fit */
} bit_costs;
/* The heads that remember longest get 12 bits and as many of those that forget first 6 as pay for them; how many,
 * minimises the sum of the errors. ranking [n]: the heads by falling memory. Returns the bytes used. */
size_t choose_bits(const bit_costs *costs, const ranked *ranking, uint8_t *bits);

#endif
