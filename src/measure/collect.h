/* measure/collect.h: the states and decays of a model's own FP32 run over many documents. For calibration. */
#ifndef MEASURE_COLLECT_H
#define MEASURE_COLLECT_H

#include "ebb/model.h"

typedef struct document {
    int32_t *ids;           /* [length] */
    int64_t known;          /* ids that are there; the model writes the rest, which stays for another run */
    int32_t domain, part;   /* of the calibration */
    double weight;          /* of one state of it */
    const ebb_sampling *by; /* how the model writes */
} document;

/* What sees the run. Documents run side by side in batches; of one document, tokens and stops come in order. `place` is
 * the document's place in its batch. */
typedef struct visitor {
    void *ctx;
    /* The log decays of a token of a layer: [heads] (GDN) or [heads][key_dim] (KDA). */
    void (*decay)(void *ctx, const document *d, int32_t place, int32_t layer, int64_t pos, const float *g);
    /* A layer's states [heads][key_dim][value_dim] after pos = stops[stop] tokens. */
    ebb_status (*state)(void *ctx, const document *d, int32_t place, int32_t layer, int32_t stop, int64_t pos,
                        const float *S, ebb_error *error);
    /* All layers have been shown up to `pos` tokens. */
    void (*settle)(void *ctx, const document *d, int32_t place, int64_t pos);
    /* The document is over. In the order of the documents, whatever the batch. */
    void (*end)(void *ctx, const document *d, int32_t place);
} visitor;

typedef struct collect_config {
    ebb_model *model;
    const char *kv, *algorithm;
    int64_t length; /* tokens of every document */
    int32_t batch;
    const int64_t *stops; /* rising, up to `length` */
    int32_t n_stops;
    ebb_progress progress; /* in tokens: `done` of them, of `total`, before the first run */
    int64_t done, total;
} collect_config;

typedef struct collector collector;
ebb_status collect_open(const collect_config *config, collector **c, ebb_error *error);
/* Every document that `wanted` names by its part (NULL: all). All have the same number of known ids. */
ebb_status collect_run(collector *c, document *documents, int32_t n, const bool *wanted, const visitor *v,
                       ebb_error *error);
int64_t collect_tokens(const collector *c); /* that went through the model so far */
const char *collect_rows(const collector *c);
void collect_close(collector *c);

#endif
