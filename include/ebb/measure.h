/* ebb/measure.h: what a storage method does to a model, in numbers: the drift of recurrent states, and the
 * calibration of the methods that need a layout. */
#ifndef EBB_MEASURE_H
#define EBB_MEASURE_H

#include "ebb/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- drift: several state methods along one trajectory ----
 *
 * Tokens go through the model as generated ones do (EBB_STEP); its states are FP32, written at every token: the
 * reference. Beside it every method keeps the states of all layers, driven by the same inputs (q, k, v, decay, beta,
 * gate), whatever its own outputs are: what differs is what storing did, not another text. All sequences have the same
 * number of tokens, begin fresh and advance together; a position is a number of tokens of one sequence. */

typedef struct ebb_drift_config {
    size_t size;
    const char *const *methods; /* [n_methods], 1 .. EBB_MAX_DRIFT_METHODS */
    int32_t n_methods;
    /* File of a layout, for the calibrated methods it was made for; there must be one. Others, and all where it is
     * NULL, take the model's own (ebb_model_layout). */
    const char *layout;
    const char *kv;        /* method of the one KV cache; NULL: "bf16" */
    const char *algorithm; /* kernel rows; NULL: the best */
    const int32_t *ids;    /* [seqs][tokens] */
    int32_t seqs;          /* 0: 1 */
    int64_t tokens;        /* of one sequence, 1 .. the model's max_position */
    /* Measuring positions; the last token always is one. every > 0: its multiples. per_decade > 0: so many a decade,
     * evenly in the logarithm. Neither: powers of two. */
    int64_t every;
    int32_t per_decade;    /* 0 .. 1000 */
    ebb_progress progress; /* in tokens, of all sequences */
} ebb_drift_config;
#define EBB_MAX_DRIFT_METHODS 64

/* One value head of one layer under one method at one position. Sums are over the sequences, in FP64. */
typedef struct ebb_drift_cell {
    double state;                     /* mean over the sequences of |S_q - S|_F / |S|_F */
    double state_error, state_norm;   /* sums of |S_q - S|_F^2 and |S|_F^2 */
    double output_error, output_norm; /* sums of |o_q - o|^2 and |o|^2 over the tokens since the position before */
} ebb_drift_cell;

typedef struct ebb_drift_head {
    int32_t layer, head; /* layer of the model, value head of the layer */
    double decay;        /* e^g, the mean over the tokens (and, KDA, the key channels) */
} ebb_drift_head;

typedef struct ebb_drift {
    int32_t methods, heads; /* heads: of all layers with a state, layer by layer */
    int32_t seqs;
    int64_t points;                       /* positions measured */
    int64_t *position;                    /* [points], rising */
    ebb_drift_head *head;                 /* [heads] */
    ebb_drift_cell *cells;                /* [points][methods][heads] */
    size_t packed[EBB_MAX_DRIFT_METHODS]; /* bytes of the packed states of one sequence */
    char rows[128];                       /* kernel rows in use */
} ebb_drift;

/* EBB_UNSUPPORTED: the model has no recurrent layers. EBB_INTERRUPTED: *drift holds what was measured so far, the
 * position where it stopped too; after any other failure it is NULL. Memory: the states of every method and of the
 * reference for `seqs` sequences, the KV cache, twice the FP32 states of one layer, and 40 bytes a cell. */
EBB_API ebb_status ebb_drift_run(ebb_model *model, const ebb_drift_config *config, ebb_drift **drift, ebb_error *error);
EBB_API void ebb_drift_free(ebb_drift *drift); /* NULL is allowed */

/* Several heads together. A head's output drift is sqrt(output_error / output_norm). */
typedef struct ebb_drift_summary {
    double state_mean, output_mean;    /* mean over the heads of the drift of a head */
    double state_rms, output_rms;      /* sqrt(sum of errors / sum of norms) */
    double state_max, output_max;      /* of the worst head */
    int32_t state_worst, output_worst; /* which that is */
} ebb_drift_summary;
/* Heads first .. first + n - 1 at a measured point. A head that is not finite makes mean, RMS and maximum so. */
EBB_API void ebb_drift_summarize(const ebb_drift *drift, int64_t point, int32_t method, int32_t first, int32_t n,
                                 ebb_drift_summary *summary);

/* ---- calibration: layouts of the methods that need one (ebb_layout of ebb/state.h), from texts ----
 *
 * "damp" (and its parameters): documents of text, a state every 8 tokens; key rows are ranked by E_u P_u, E_u the mean
 * squared error of the method's own low tier, P_u = 1 / max(1 - a_eff^2, 1e-4), a_eff = exp(E log a).
 * "damp-reorder", "int8-reorder", "int4-reorder": prompts of text that the model continues; in windows of 1024 written
 * tokens that begin 2048 apart, states after 256, 512 and 768, each with the 256 decays that follow it. A third of the
 * documents fits value scales and orders, and ranks key rows by E[e_u W_u]; a third chooses among them, head by head; a
 * third checks what was chosen.
 * "leap-mix": documents as for "damp" with 256 more tokens, whose decays are used; 12 bits for the heads whose errors
 * last longest, 6 for as many of the fastest as pay for them, 8 for the others, no more bytes than leap8. Domains have
 * equal weights, within them documents, within these states. docs/calibration.md has the equations. */

#define EBB_MAX_DOMAINS 16

typedef struct ebb_domain {
    const char *name;
    const int32_t *ids; /* of a text */
    int64_t count;
} ebb_domain;

typedef struct ebb_calibrate_config {
    size_t size;
    const char *method;   /* with parameters or without */
    const char *selector; /* random, energy, error, persistence, product, risk; NULL: the method's own */
    const char *kv;       /* method of the KV cache; NULL: "bf16" */
    const char *algorithm;
    const ebb_domain *domains; /* [n_domains], 1 .. EBB_MAX_DOMAINS */
    int32_t n_domains;
    int32_t documents; /* of a domain; 0: 8, or 12 where the model continues */
    int64_t tokens;    /* of text in a document; 0: 256, or 1024 where the model continues */
    int64_t written;   /* tokens of a document after these, 512 or more, or 0: 4096; for the methods with "reorder" */
    int64_t every;     /* a state every so many tokens; 0: 8, or after 256, 512 and 768 of every 2048 written tokens */
    bool from_text;    /* they are text too, not the model's */
    int32_t batch;     /* documents side by side; 0: 8 */
    uint64_t seed;     /* which parts of the texts are documents, how they are split, what the model writes */
    ebb_progress progress; /* in tokens */
} ebb_calibrate_config;

typedef struct ebb_calibrated_head {
    int32_t layer, head;      /* state layer, value head */
    double decay;             /* a_eff, of KDA the geometric mean over the channels */
    double overlap, spearman; /* of the protected rows, and of the whole ranking, between disjoint documents; NAN: there
                                 is no such ranking */
    double kept;            /* what the rows of one side score on the other, over the best rows there; NAN: likewise */
    double gap;             /* score of the last protected row over that of the next; NAN: likewise */
    double share;           /* of the low tier's squared error that lies in as many rows as are protected */
    double left_tune, left; /* "reorder": e W left by the chosen layout over that of int8 (or int4) without scaling,
                               order and protected rows, on the documents that chose, on those that check; else NAN */
    int32_t candidate;      /* "reorder": which was chosen; else -1 */
    int32_t bits;           /* "leap-mix"; else 0 */
} ebb_calibrated_head;

typedef struct ebb_calibrated_candidate {
    double alpha; /* c_v = RMS_v^alpha */
    bool reorder;
    int32_t heads; /* that chose it */
    double left;   /* as above, the mean over the heads of left_tune */
} ebb_calibrated_candidate;
#define EBB_CALIBRATION_CANDIDATES 9

typedef struct ebb_calibration {
    ebb_layout *layout;
    const char *selector; /* NULL: none */
    int32_t heads, rows;  /* value heads of all layers; protected key rows of each */
    int32_t documents, domains;
    int64_t length, from_text, written; /* tokens of a document; of text; written by the model */
    int64_t states, tokens;             /* states used, of each head; tokens that went through the model */
    ebb_calibrated_head *head;          /* [heads] */
    double *domain_decay;               /* [domains][heads]: a_eff in one domain */
    double *domain_order;  /* [domains][domains]: Spearman of the decays of heads (KDA: of channels in a head) */
    int32_t key_dim;       /* the largest */
    double *concentration; /* [key_dim]: share of the squared error in the i + 1 worst rows, mean over heads */
    int32_t n_candidates;  /* 0: the method has none */
    ebb_calibrated_candidate candidates[EBB_CALIBRATION_CANDIDATES];
    size_t packed;         /* bytes of one sequence */
    double decay_spearman; /* of a_eff over the heads, between disjoint documents */
    char kernels[128];     /* rows in use */
} ebb_calibration;

/* EBB_BAD_ARGUMENT: a method without a calibration, or a text too short for its documents (says what is needed).
 * EBB_INTERRUPTED: there is no result. Takes the FP32 states of `batch` documents, the KV cache, one sequence's states
 * per candidate, and the sums. The same inputs give the same layout, byte for byte, on every number of threads. */
EBB_API ebb_status ebb_calibrate(ebb_model *model, const ebb_calibrate_config *config, ebb_calibration **calibration,
                                 ebb_error *error);
EBB_API void ebb_calibration_free(ebb_calibration *calibration); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
