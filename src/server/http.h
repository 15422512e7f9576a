/* server/http.h: the server from inside, and one request over HTTP. http.c speaks libmicrohttpd, routes.c and
 * completions.c answer. */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include "server/forms.h"
#include "server/loop.h"
#include "server/reply.h"
#include "server/server.h"

#include <microhttpd.h>

struct server {
    server_config config;
    const ebb_tokenizer *tokenizer;
    struct MHD_Daemon *daemon;
    loop *loop;
    token_table *tokens;
    form_cache forms;
    metrics metrics;
    int32_t port;
    double started;
    uint64_t random; /* begins the seeds of requests that give none */
    pthread_mutex_t lock;
    bool draining, closing;
    uint64_t requests;
    int64_t under_way; /* answers, until their last byte */
};

/* A request whose body is being read, or is there. */
typedef struct http_call {
    server *server;
    struct MHD_Connection *connection;
    const char *method, *path;
    text_buffer body;
    size_t seen; /* bytes of the body that have come */
    bool begun, answered;
    bool taken; /* it has become a job */
} http_call;

typedef enum MHD_Result (*http_handler)(http_call *call);

/* Answers, each the last thing a handler does. */
enum MHD_Result http_text(http_call *call, unsigned status, const char *type, const char *text, size_t bytes);
/* `json` is malloc'ed and taken; NULL: no memory. */
enum MHD_Result http_json(http_call *call, unsigned status, char *json);
/* As the API has errors; `code` may be NULL. */
enum MHD_Result http_error(http_call *call, unsigned status, const char *code, const char *sentence);
enum MHD_Result http_fail(http_call *call, const ebb_error *error);
/* Has the client gone? */
bool http_gone(http_call *call);
bool server_closing(server *s);
bool server_draining(server *s);
void server_count(server *s, int64_t more); /* answers under way */
uint64_t server_number(server *s);          /* another one for every request */

/* ---- routes.c ---- */
enum MHD_Result route_health(http_call *call);
enum MHD_Result route_metrics(http_call *call);
enum MHD_Result route_models(http_call *call);
enum MHD_Result route_model(http_call *call);
enum MHD_Result route_tokenize(http_call *call);
enum MHD_Result route_detokenize(http_call *call);
enum MHD_Result route_page(http_call *call);
/* ---- completions.c ---- */
enum MHD_Result route_chat(http_call *call);
enum MHD_Result route_completion(http_call *call);

#endif
