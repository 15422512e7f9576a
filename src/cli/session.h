/* cli/session.h: what `ebb run` holds: the options, the model, the engine and its one sequence; and the making of one
 * answer. */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H

#include "cli/cli.h"
#include "cli/progress.h"
#include "ebb/ebb.h"

typedef struct run_options {
    const char *model, *prompt, *file, *chat;  /* NULL: not given */
    const char *state, *layout, *kv, *rows;    /* state NULL: fp32, where the model has recurrent layers */
    const char *load, *save, *save_fp32;       /* files of sequences, or NULL */
    const char *kv_bits, *kv_select, *prefill; /* NULL: not given */
    int64_t kv_window;                         /* -1: not given */
    double kv_ratio;                           /* NAN: not given */
    char kv_text[512];                         /* `kv` points here where one of its short forms is given */
    int64_t tokens, threads, context;          /* context 0: as much as the prompt and the answer need, at least 4096 */
    double temperature, top_p, min_p, repeat_penalty; /* NAN: as generation_config.json says */
    int64_t top_k, seed;                              /* -1: the same */
    const char *chat_template, *chat_vars;            /* NULL: not given */
    bool no_think, json, stats, verbose;
} run_options;

/* A conversation as its template sees it. Without messages in a sequence that has begun (--load, /load) only what comes
 * next is known. */
typedef struct chat_talk {
    ebb_message *messages; /* their texts are this struct's own */
    int32_t n;
    char *said; /* what the sequence holds, as text, malloc'ed */
    size_t n_said;
    char *jinja; /* of --chat-template, or NULL */
    int64_t now; /* of the first turn; 0: not yet */
} chat_talk;

typedef struct session {
    run_options options;
    bool talks; /* stderr is a terminal: banner, statistics, progress */
    progress_bar bar;
    ebb_device *device;
    ebb_model *model;
    ebb_engine *engine;
    ebb_sampling sampling;
    int32_t slots; /* sequences of the engine; 0: one */
    int32_t sequence;
    chat_talk talk;
    int64_t known;                         /* tokens of the file that --load names */
    bool begun;                            /* the sequence has tokens: a turn of a chat comes after another one */
    const char *loaded, *saved, *exported; /* files that were read and written, for --json */
} session;

/* Looks at the file of --load, then opens device and model. */
ebb_status session_open_model(session *s, ebb_error *error);
/* Engine and sequence, new or of --load, with room for a prompt of `prompt_tokens` and its answer; prints the banner.
 */
ebb_status session_open_engine(session *s, int64_t prompt_tokens, ebb_error *error);
const char *session_state(const session *s); /* the state method in use, "none" for a model without recurrent layers */
ebb_status session_reset(session *s, ebb_error *error); /* an empty sequence */
/* The sequence of a file in the place of the present one, which stays when that fails and the engine has two slots. */
ebb_status session_load(session *s, const char *path, ebb_error *error);
ebb_status session_save(session *s, ebb_error *error); /* what --save and --save-fp32 ask for */
void session_close(session *s);

typedef struct answer {
    char *text; /* NUL-terminated UTF-8 */
    size_t bytes, room;
    int32_t *ids;
    int64_t tokens, ids_room;
    const char *stop; /* "stop", "length", "interrupted" */
    ebb_usage usage;  /* of this answer */
} answer;

/* Feed the prompt and generate. `stream`: write the text to stdout as it comes, and end its line. Ctrl-C ends the
 * answer. */
ebb_status answer_run(session *s, const int32_t *ids, int64_t count, bool stream, answer *a, ebb_error *error);
void answer_free(answer *a);
void answer_statistics(const session *s, const answer *a); /* one line on stderr, where it is wanted */
ebb_status answer_json(const session *s, const answer *a, ebb_error *error); /* one line on stdout */

/* Ids of a user turn and the head of the reply; where the sequence has begun, first the end of the turn before, which
 * no one has fed yet. *again: the template writes earlier turns otherwise than the sequence holds them, and the ids are
 * those of the whole conversation. *ids is malloc'ed. */
ebb_status chat_turn(session *s, const char *text, int32_t **ids, int64_t *count, bool *again, ebb_error *error);
void talk_forget(chat_talk *talk); /* the messages, when their sequence goes */
void talk_close(chat_talk *talk);
/* Conversation on a terminal until its end; the exit code. */
int chat_loop(session *s);

#endif
