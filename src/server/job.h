/* server/job.h: a request on its way between the thread of its connection and the thread of the engine. The first makes
 * it, submits it and takes events; the second puts events. It is gone when both have released it. */
#ifndef SERVER_JOB_H
#define SERVER_JOB_H

#include "server/body.h"
#include "server/forms.h"
#include "server/mask.h"

#include <pthread.h>

typedef enum event_kind {
    EVENT_PROGRESS, /* done of total prompt tokens */
    EVENT_TOKEN,
    EVENT_END,   /* of this choice: reason */
    EVENT_FAILED /* of the whole job: text */
} event_kind;

typedef enum end_reason { REASON_STOP, REASON_LENGTH, REASON_CANCELLED } end_reason;

typedef struct token_logprob {
    int32_t token;
    float logprob;
} token_logprob;

typedef struct job_event {
    event_kind kind;
    int32_t choice;
    int32_t token;
    float logprob;      /* of the token, where they were asked for */
    token_logprob *top; /* [n_top], malloc'ed, taken by whoever takes the event */
    int32_t n_top;
    int64_t done, total, cached; /* prompt tokens: processed, all, and those that the prefix cache held */
    end_reason reason;
    ebb_status status;
    const char *text; /* EVENT_FAILED: in the job */
} job_event;

/* How the next token of a choice is held to what was asked. The engine's thread alone uses it. */
typedef struct token_rules {
    masker *masks; /* NULL: any token */
    int32_t state; /* of the grammar */
    bool thinking; /* the grammar waits for </think> */
    char tail[16]; /* last bytes of the answer, to see it */
    int32_t n_tail;
    const token_bias *bias;
    int32_t n_bias;
    float presence, frequency;
    int32_t *seen; /* [n_seen] tokens of the answer, ascending; times beside them; kept where a penalty is asked for */
    int32_t *times;
    int32_t n_seen, room_seen;
    bool ignore_stop;
    const char *failed; /* a sentence: the answer cannot go on */
} token_rules;

typedef struct job_choice {
    int32_t *prompt; /* the job's own */
    int64_t n_prompt;
    ebb_sampling sampling;
    token_rules rules;
    bool cancelled; /* nobody waits for it any more; under the job's lock */
    /* the engine's thread: */
    int64_t handle;
    bool running;
    double last; /* when its last token came */
    int64_t tokens;
} job_choice;

typedef struct job {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t holders;
    job_event *events;
    size_t first, n_events, room;
    char failure[256];
    ebb_status failed;

    api_request request; /* the job's own, and so is the form */
    form_cache *forms;
    form *form;
    int64_t max_tokens;
    int32_t logprobs;
    int32_t n;
    job_choice *choices;
    double submitted;
    bool progress;
    struct job *next; /* in the engine's inbox or list */
} job;

job *job_new(int32_t n); /* held once; NULL: no memory */
void job_hold(job *j);
void job_release(job *j);

/* The engine's side. False: no memory, the job is failed. */
bool job_put(job *j, const job_event *event);
void job_fail(job *j, ebb_status status, const char *sentence);
bool job_cancelled(job *j, int32_t choice);
/* The connection's side: an event, or false when none came within `seconds`. */
bool job_take(job *j, double seconds, job_event *event);
void job_cancel(job *j, int32_t choice); /* -1: all of them */

/* ---- rules.c ---- */

/* Change the logits [vocab] before a token is drawn; false: the rules cannot be kept, rules->failed says why. */
bool rules_apply(token_rules *rules, const int32_t *stops, int32_t n_stops, float *logits, int32_t vocab);
/* A token was drawn. */
bool rules_took(token_rules *rules, const ebb_tokenizer *tokenizer, int32_t token);
void rules_free(token_rules *rules);

#endif
