/* measure/longbench.h: LongBench v1 (Bai et al. 2023): its tasks, its prompts and its metrics, written from their
 * definitions. For the commands that run it. */
#ifndef MEASURE_LONGBENCH_H
#define MEASURE_LONGBENCH_H

#include "ebb/core.h"

typedef enum longbench_metric {
    LONGBENCH_F1,        /* token F1 after normalisation */
    LONGBENCH_ROUGE_L,   /* F of the package rouge 1.0.1 */
    LONGBENCH_CLASS,     /* which of all classes the answer contains */
    LONGBENCH_PARAGRAPH, /* share of the numbers in the answer that are the paragraph's */
    LONGBENCH_COUNT,     /* share of the numbers in the answer that are right */
    LONGBENCH_CODE       /* edit similarity of the first line of code */
} longbench_metric;

typedef struct longbench_task {
    const char *name;
    longbench_metric metric;
    int32_t answer;  /* tokens of an answer at most */
    bool plain;      /* no chat form around the prompt */
    bool first_line; /* of the answer counts */
} longbench_task;

/* The task of a data set, or of NAME_e; EBB_UNSUPPORTED: unknown, or one in Chinese whose metric is not here. */
ebb_status longbench_find(const char *dataset, longbench_task *task, ebb_error *error);

/* 0 .. 1: of an answer against one reference. `classes` [n] of LONGBENCH_CLASS. A failure is EBB_NO_MEMORY. */
ebb_status longbench_score(longbench_metric metric, const char *answer, const char *reference,
                           const char *const *classes, int32_t n, double *score, ebb_error *error);
/* The best over all references, of what of the answer counts. */
ebb_status longbench_best(const longbench_task *task, const char *answer, const char *const *references,
                          int32_t n_references, const char *const *classes, int32_t n, double *score, ebb_error *error);

/* Template with {context} and {input} filled in; malloc'ed, NULL: no memory. */
char *longbench_prompt(const char *form, const char *context, const char *input);

#endif
