/* server/client.h: a client of the server's own API, as far as load generators and tests need one: a connection a
 * request, bodies with a length, chunked, or up to the end. Called by cli/bench_serve.c and tests. */
#ifndef SERVER_CLIENT_H
#define SERVER_CLIENT_H

#include "server/answer_parts.h"

typedef struct http_client {
    int fd; /* -1: closed */
    int status;
    text_buffer in; /* read and not yet taken */
    bool chunked, ended;
    size_t left; /* of the chunk or of the body; SIZE_MAX: up to the end of the connection */
} http_client;

/* "http://ADDRESS:PORT" with an address, not a name; 127.0.0.1 and ::1 and localhost are understood. */
ebb_status client_url(const char *url, char host[64], int32_t *port, ebb_error *error);
/* Send a request (`body` NULL: GET, else POST) and read the head of its answer. `seconds`: the longest silence. */
ebb_status client_ask(http_client *c, const char *host, int32_t port, const char *path, const char *key,
                      const char *body, double seconds, ebb_error *error);
/* The next line of the body without its newline; false at its end, or when it broke off: then `error` has a sentence.
 */
bool client_line(http_client *c, text_buffer *line, ebb_error *error);
ebb_status client_rest(http_client *c, text_buffer *body, ebb_error *error); /* all that is left */
void client_close(http_client *c);

/* The object of an event of a stream; NULL: this line has none ([DONE], a comment, an empty line). */
json_t *client_event(const text_buffer *line);

#endif
