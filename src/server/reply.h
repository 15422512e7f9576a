/* server/reply.h: what goes back to a client: the objects of the OpenAI API, whole or as a stream of events, made of
 * the events of a job. Called by the server's routes. */
#ifndef SERVER_REPLY_H
#define SERVER_REPLY_H

#include "server/answer_parts.h"
#include "server/job.h"

/* One answer. What came and has not been sent waits in content, reasoning, calls and logprobs. */
typedef struct reply_choice {
    struct reply *reply;
    ebb_detokenizer text;
    stop_strings stop;
    part_parser parts;
    text_buffer content, reasoning;
    json_t *calls, *logprobs;
    int32_t n_calls;
    int64_t cached;         /* prompt tokens */
    int64_t tokens, offset; /* of the answer; bytes of text before the next token, for logprobs of completions */
    bool begun, over;       /* a chunk was sent; nothing more is taken */
    const char *finish;     /* NULL: not yet */
} reply_choice;

typedef struct reply {
    const api_request *request;
    const ebb_tokenizer *tokenizer;
    const char *model;
    char id[48];
    int64_t created;
    int64_t prompt_tokens, cached_tokens, reasoning_tokens;
    int32_t n;
    reply_choice *choices;
} reply;

/* `thinking`: the prompt has opened the thoughts of the model. */
ebb_status reply_open(reply *r, const api_request *request, const ebb_tokenizer *tokenizer, const char *model,
                      int32_t n, bool thinking, uint64_t number, ebb_error *error);
void reply_close(reply *r);

/* Take an event; what is to be sent for it, in a stream, is added to `out` (NULL: not a stream). True in *stop: this
 * choice has ended here (a stop string, its one call), the engine need not go on. false: no memory. */
bool reply_event(reply *r, const job_event *event, text_buffer *out, bool *stop);
bool reply_over(const reply *r); /* all choices have ended */
/* The end of a stream: usage where it was asked for, and [DONE]. */
bool reply_done(reply *r, text_buffer *out);
char *reply_body(reply *r); /* the object of a request that is no stream, malloc'ed; NULL: no memory */

/* {"error": {...}}, malloc'ed. `code` may be NULL. */
char *reply_error(const char *type, const char *code, const char *sentence);
bool reply_error_event(text_buffer *out, const char *type, const char *code, const char *sentence);

#endif
