/* ebb/measure.h: what a storage method does to a model, in numbers: the drift of recurrent states, the calibration of
 * the methods that need a layout, and what storing keys and values does to attention and to what the model says. */
#ifndef EBB_MEASURE_H
#define EBB_MEASURE_H

#include "ebb/engine.h"

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

/* ---- kvcheck: KV methods and prefill modes against full precision (docs/hyquant.md) ---- */

typedef struct ebb_kv_choice { /* as in ebb_engine_config */
    const char *kv, *prefill, *kv_bits;
} ebb_kv_choice;

typedef struct ebb_kvcheck_config {
    size_t size;
    const ebb_kv_choice *stores; /* [n_stores], 0 .. EBB_MAX_KV_CHOICES */
    int32_t n_stores;
    const char *state;     /* method of the recurrent states; NULL: "fp32" */
    const char *algorithm; /* kernel rows; NULL: the best */
    const int32_t *ids;    /* [tokens], 2 or more */
    int64_t tokens;
    int64_t steps; /* the last so many are generated tokens, one a step, behind the others, which are the prompt */
    bool mass;     /* measure the attention mass too */
    double ratio;  /* of the vertical keys of the masses; 0: 0.05 */
    ebb_progress progress;
} ebb_kvcheck_config;
#define EBB_MAX_KV_CHOICES 64

/* Of one layer and store: sums over the outputs of attention (before the output gate), in FP64. MSE = error / values,
 * relative RMS = sqrt(error / norm). */
typedef struct ebb_kvcheck_cell {
    double error, norm; /* sums of |o_q - o|^2 and |o|^2 */
    int64_t values;
} ebb_kvcheck_cell;

/* Softmax weight of the generated tokens, the mean over tokens and query heads: on the newest keys, and on the vertical
 * keys below them, as select=segment and select=prompt choose them. */
typedef struct ebb_kvcheck_mass {
    double window, segment, prompt;
} ebb_kvcheck_mass;
#define EBB_KVCHECK_WINDOWS 2 /* 128 and 256 tokens */

typedef struct ebb_kvcheck {
    int32_t stores, layers; /* layers with attention */
    int32_t *layer;         /* [layers] of the model */
    ebb_kvcheck_cell *cell; /* [stores][layers][2]: prompt, generated tokens */
    ebb_kvcheck_mass *mass; /* [layers][EBB_KVCHECK_WINDOWS], or NULL */
    char rows[128];         /* kernel rows of the pass */
} ebb_kvcheck;

/* One pass of the model over an FP32 cache; the q, k and v of every layer go through each store too, and its outputs
 * are compared with those of FP32. EBB_INTERRUPTED: there is no result. */
EBB_API ebb_status ebb_kvcheck_run(ebb_model *model, const ebb_kvcheck_config *config, ebb_kvcheck **check,
                                   ebb_error *error);
EBB_API void ebb_kvcheck_free(ebb_kvcheck *check); /* NULL is allowed */

/* -log p of tokens 1 .. tokens - 1, nll [tokens - 1], by a pass of the model over stores[0]: the prompt in pieces of
 * 512 tokens (at once where its vertical keys depend on all of it), then the steps. `bytes`: of the cache at the end.
 */
EBB_API ebb_status ebb_kvcheck_nll(ebb_model *model, const ebb_kvcheck_config *config, float *nll, size_t *bytes,
                                   ebb_error *error);

/* The mean of n paired differences b - a, and half of its 95 % interval (normal; tokens or problems as independent). */
EBB_API void ebb_paired(const float *a, const float *b, int64_t n, double *mean, double *half);
/* Wilson's 95 % interval of a share, right of n. */
EBB_API void ebb_wilson(int64_t right, int64_t n, double *low, double *high);

/* Greedy answers to prompts, `batch` side by side; the text of answer i is malloc'ed into text[i]. On failure all are
 * NULL. */
typedef struct ebb_answers_config {
    size_t size;
    ebb_kv_choice store;
    const char *state, *algorithm; /* NULL: "fp32", where there are states; the best */
    const ebb_prompt *prompts;
    int32_t n, batch;   /* batch 0: 1 */
    int64_t max_answer; /* tokens */
    ebb_progress progress;
} ebb_answers_config;
EBB_API ebb_status ebb_answers(ebb_model *model, const ebb_answers_config *config, char **text, ebb_error *error);

/* Needles: a sentence with a number somewhere in a piece of text, and the question for it. */
typedef struct ebb_needle {
    int32_t *ids;
    int64_t count;
    int32_t depth;   /* 0 .. depths - 1: evenly from the beginning of the text to its end */
    char number[16]; /* the answer is right when it holds this */
} ebb_needle;
/* `n` problems of about `length` tokens from the text `ids` [count], problem i at depth i % depths: in the model's chat
 * form, or where it has none as a text to go on with. EBB_BAD_ARGUMENT: the text is too short. Free each needle's ids.
 */
EBB_API ebb_status ebb_needles(const ebb_model *model, const int32_t *ids, int64_t count, int64_t length,
                               int32_t depths, int32_t n, uint64_t seed, ebb_needle *needles, ebb_error *error);

/* ---- what memory a model needs that need not be there: bytes of one sequence over all layers ---- */

typedef struct ebb_state_memory {
    size_t packed, live; /* as ebb_state_pool_slot_bytes */
    size_t checkpoint;   /* a state kept at a multiple of EBB_GRID: packed, and the inputs of the convolution in FP32 */
    double bits;         /* of a value */
} ebb_state_memory;
/* A calibrated method has the sizes of a layout that changes nothing. Errors as of ebb_state_parse, ebb_state_size. */
EBB_API ebb_status ebb_state_memory_of(const ebb_outline *outline, const char *method, int32_t max_new,
                                       ebb_state_memory *memory, ebb_error *error);

typedef struct ebb_kv_memory {
    size_t token;    /* codes of one token */
    size_t sequence; /* pages and tail of a sequence of `tokens` tokens */
} ebb_kv_memory;
EBB_API ebb_status ebb_kv_memory_of(const ebb_outline *outline, const char *method, int64_t tokens, int32_t max_new,
                                    ebb_kv_memory *memory, ebb_error *error);

/* ---- eval: what a way of storing does to answers and to a text (docs/eval.md) ---- */

typedef struct ebb_eval_store { /* as in ebb_engine_config */
    const char *state, *layout, *kv, *prefill, *kv_bits;
} ebb_eval_store;

typedef enum ebb_scoring {
    EBB_SCORE_EXACT,  /* the answer, letter for letter, but for white space around it */
    EBB_SCORE_NUMBER, /* the last number of the text equals it */
    EBB_SCORE_BOXED,  /* what the last \boxed{} holds equals it; without one the last number */
    EBB_SCORE_CHOICE, /* the letter that was chosen */
    EBB_SCORE_ALL,    /* share of the answers that the text holds, in whatever case */
    EBB_SCORE_ANY     /* 1 where it holds one of them */
} ebb_scoring;

typedef struct ebb_problem {
    int32_t *ids; /* of the prompt */
    int64_t count;
    ebb_scoring scoring;
    char **answer;
    int32_t n_answers;
} ebb_problem;

typedef struct ebb_task {
    int32_t n;
    ebb_problem *problem;
    uint64_t hash; /* of prompts, answers and scoring */
} ebb_task;
/* The first `limit` problems (0: all) of a file with a JSON object a line, in any of the forms of docs/eval.md.
 * `scoring`: exact, number, boxed, choice, all or any; NULL: what the form calls for. EBB_BAD_FILE names the line. */
EBB_API ebb_status ebb_task_read(const ebb_model *model, const char *path, const char *scoring, int32_t limit,
                                 ebb_task **task, ebb_error *error);
EBB_API void ebb_task_free(ebb_task *task); /* NULL is allowed */
/* 0 to 1. */
EBB_API double ebb_score(const ebb_problem *problem, const char *text);

/* The problems of a task, each answered `runs` times, `batch` side by side. Run r of problem i draws by a seed of its
 * own made of sampling.seed, r and i. */
typedef struct ebb_eval_config {
    size_t size;
    ebb_eval_store store;
    const char *algorithm; /* kernel rows; NULL: the best */
    const ebb_task *task;
    ebb_sampling sampling;
    int32_t runs, batch; /* 0: 1 */
    int64_t max_answer;  /* tokens */
    bool decoded;        /* prompts go in as generated tokens do, token after token, but for their first */
    ebb_progress progress;
} ebb_eval_config;

typedef struct ebb_eval_answer {
    char *text;          /* malloc'ed; an answer scored by EBB_SCORE_EXACT ends where it went wrong */
    int64_t tokens;      /* of it */
    int64_t first_error; /* the token that left the one right text; -1: none did, or it is not scored so */
    double score;
    bool cut; /* it came to max_answer, or to the end of the context, before it ended */
} ebb_eval_answer;
/* answers [runs][task->n]. On failure, EBB_INTERRUPTED too, all texts are NULL. `usage` may be NULL. */
EBB_API ebb_status ebb_eval_answers(ebb_model *model, const ebb_eval_config *config, ebb_eval_answer *answers,
                                    ebb_usage *usage, ebb_error *error);

/* A text foretold: the first `prompt` tokens go in as a prompt, the others as generated tokens do. */
typedef struct ebb_foretold {
    int64_t n; /* tokens 1 .. n of the text */
    int32_t k;
    float *logp;     /* [n] of the token that is there */
    int32_t *top;    /* [n][k]: the likeliest tokens */
    float *top_logp; /* [n][k] */
    float *kl;       /* [n], with a reference: sum of p log(p / q) over its k likeliest tokens and all
                        others taken as one */
    size_t state_packed, state_live, kv; /* bytes of the sequence at its end */
    char rows[128];
} ebb_foretold;

typedef struct ebb_foretell_config {
    size_t size;
    ebb_eval_store store;
    const char *algorithm;
    const int32_t *ids;
    int64_t tokens, prompt;        /* 2 or more; 0 .. tokens - 1 */
    int32_t k;                     /* 0: 20 */
    const ebb_foretold *reference; /* of the same text; NULL: none */
    ebb_progress progress;
} ebb_foretell_config;
EBB_API ebb_status ebb_foretell(ebb_model *model, const ebb_foretell_config *config, ebb_foretold **foretold,
                                ebb_error *error);
EBB_API void ebb_foretold_free(ebb_foretold *foretold); /* NULL is allowed */

/* What storing an FP32 state once injects: |Q(S) - S|_F / |S|_F of every head and state, the states those of the
 * model's own FP32 run after every `every` tokens of a text. */
typedef struct ebb_injected {
    int64_t states;          /* of each head */
    double mean, rms, worst; /* over heads and states; sqrt(sum of |Q(S) - S|^2 / sum of |S|^2); the largest */
} ebb_injected;
EBB_API ebb_status ebb_injected_error(ebb_model *model, const ebb_eval_store *store, const char *algorithm,
                                      const int32_t *ids, int64_t tokens, int64_t every, ebb_progress progress,
                                      ebb_injected *injected, ebb_error *error);

/* The mean of n values and half of its 95 % interval, blocks of `block` values that follow one another taken as
 * independent (1: all are). */
EBB_API void ebb_block_mean(const float *x, int64_t n, int64_t block, double *mean, double *half);

#ifdef __cplusplus
}
#endif
#endif
