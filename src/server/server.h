/* server/server.h: `ebb serve`: a model behind the OpenAI API. Called by cli/serve.c. One thread runs the engine
 * (loop.c), each connection has its own (http.c). */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "server/answer_parts.h"
#include "ebb/model.h"

typedef struct server_config {
    const char *host;      /* an address, as 127.0.0.1 or ::1; a name is not looked up */
    int32_t port;          /* 0: any that is free */
    const char *api_key;   /* NULL: none is asked for */
    const char *name;      /* of the model, as requests have it */
    const char *jinja;     /* chat template instead of the model's, or NULL */
    ebb_sampling sampling; /* where a request says nothing */
    size_t body_most;      /* bytes of a body */
    int32_t connections_most, queue_most;
    double timeout;    /* seconds of a request; 0: no limit */
    double keep_alive; /* seconds without an event after which a stream gets a comment */
    /* the engine */
    ebb_model *model;
    const char *state, *kv, *layout, *prefill, *kv_bits, *rows; /* as in ebb_engine_config */
    int32_t max_seqs;                                           /* answers at a time */
    int32_t checkpoints;                                        /* of the prefix cache; 0: none */
    size_t cache_most;                                          /* their bytes */
    int64_t max_tokens;
    ebb_log log; /* a line an answer, where wanted; called from many threads */
} server_config;

typedef struct server server;
/* Starts to serve. The config and what it points to stay with the caller until the server is closed. */
ebb_status server_open(const server_config *config, server **s, ebb_error *error);
/* Address, effective concurrency, methods, kernels: lines for people. False: no memory. */
bool server_banner(const server *s, text_buffer *text);
int32_t server_port(const server *s);
/* No new requests from now on; answers that are under way. */
int64_t server_drain(server *s);
void server_close(server *s); /* what is under way is cancelled */

#endif
