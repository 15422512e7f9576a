/* server/http.c: HTTP by libmicrohttpd: opening and closing, who may ask, bodies, the table of routes. Called by
 * cli/serve.c (server.h). A connection has a thread of its own, which may wait; /health and /metrics take no part of
 * the engine's thread, and answer while it is busy. */
#define _GNU_SOURCE
#include "server/http.h"
#include "core/core.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Seconds that a client may take for its request, or for taking what it is sent; bytes of a thread's stack. */
enum { PATIENCE = 60, STACK = 4 << 20 };
/* A body that is too large is read to its end nevertheless, up to as many times the limit: a client that is still
 * sending does not see an answer. */
#define PATIENT_BODIES ((size_t)8)

typedef struct route {
    const char *method, *path;
    http_handler run;
    bool open;   /* no key is asked for */
    bool prefix; /* of paths that go on */
} route;

static const route routes[] = {
    {"POST", "/v1/chat/completions", route_chat, false, false},
    {"POST", "/v1/completions", route_completion, false, false},
    {"GET", "/v1/models", route_models, false, false},
    {"GET", "/v1/models/", route_model, false, true},
    {"POST", "/tokenize", route_tokenize, false, false},
    {"POST", "/detokenize", route_detokenize, false, false},
    {"GET", "/metrics", route_metrics, false, false},
    {"GET", "/health", route_health, true, false},
    {"GET", "/", route_page, true, false},
};

/* ---- answers ---- */

static enum MHD_Result send_response(http_call *call, unsigned status, const char *type,
                                     struct MHD_Response *response) {
    if (!response) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (status == MHD_HTTP_UNAUTHORIZED) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE) MHD_add_response_header(response, "Retry-After", "1");
    const enum MHD_Result result = MHD_queue_response(call->connection, status, response);
    MHD_destroy_response(response);
    call->answered = true;
    return result;
}

enum MHD_Result http_text(http_call *call, unsigned status, const char *type, const char *text, size_t bytes) {
    return send_response(call, status, type,
                         MHD_create_response_from_buffer(bytes, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY));
}

enum MHD_Result http_json(http_call *call, unsigned status, char *json) {
    if (!json) return MHD_NO;
    return send_response(call, status, "application/json",
                         MHD_create_response_from_buffer(strlen(json), json, MHD_RESPMEM_MUST_FREE));
}

enum MHD_Result http_error(http_call *call, unsigned status, const char *code, const char *sentence) {
    const char *type = status == MHD_HTTP_UNAUTHORIZED ? "authentication_error"
                       : status < 500                  ? "invalid_request_error"
                                                       : "server_error";
    if (!call->taken) metrics_refused(&call->server->metrics);
    return http_json(call, status, reply_error(type, code, sentence));
}

enum MHD_Result http_fail(http_call *call, const ebb_error *error) {
    const unsigned status = error->code == EBB_BAD_ARGUMENT || error->code == EBB_UNSUPPORTED ? MHD_HTTP_BAD_REQUEST
                            : error->code == EBB_NO_MEMORY ? MHD_HTTP_SERVICE_UNAVAILABLE
                                                           : MHD_HTTP_INTERNAL_SERVER_ERROR;
    return http_error(call, status, error->code == EBB_UNSUPPORTED ? "unsupported" : NULL, error->text);
}

bool http_gone(http_call *call) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(call->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    char byte;
    if (!info) return true;
    const ssize_t n = recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* ---- who may ask ---- */

static const char *header(const http_call *call, const char *name) {
    return MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND, name);
}

/* Takes as long for a wrong key as for a right one of its length. */
static bool has_key(const http_call *call) {
    const char *key = call->server->config.api_key, *given = header(call, "Authorization");
    unsigned differ = 0;
    if (!key) return true;
    if (!given || strncasecmp(given, "Bearer ", 7) != 0 || strlen(given + 7) != strlen(key)) return false;
    for (size_t i = 0; key[i]; i++) differ |= (unsigned)(given[7 + i] ^ key[i]);
    return differ == 0;
}

static bool is_loopback(const char *host, size_t n) {
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};
    for (int32_t i = 0; i < COUNT(names); i++)
        if (n == strlen(names[i]) && strncasecmp(host, names[i], n) == 0) return true;
    return false;
}

/* A page of another site in a browser on this machine must not speak to a server that asks for no key. */
static bool from_elsewhere(const http_call *call) {
    const char *origin = header(call, "Origin"), *host = header(call, "Host");
    const server_config *c = &call->server->config;
    if (c->api_key || !host) return false;
    if ((strcmp(c->host, "127.0.0.1") == 0 || strcmp(c->host, "::1") == 0) &&
        !is_loopback(host, *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":")))
        return true;
    return origin && strcmp(origin, "null") != 0
               ? !strstr(origin, "://") || strcmp(strstr(origin, "://") + 3, host) != 0
               : origin != NULL;
}

/* ---- requests ---- */

static enum MHD_Result dispatch(http_call *call) {
    bool known = false;
    for (int32_t i = 0; i < COUNT(routes); i++) {
        const route *r = &routes[i];
        if (strcmp(call->path, r->path) != 0 && !(r->prefix && strncmp(call->path, r->path, strlen(r->path)) == 0))
            continue;
        known = true;
        if (strcmp(call->method, r->method) != 0 &&
            !(strcmp(call->method, "HEAD") == 0 && strcmp(r->method, "GET") == 0))
            continue;
        if (!r->open && !has_key(call))
            return http_error(call, MHD_HTTP_UNAUTHORIZED, "invalid_api_key", "the API key is missing or wrong");
        return r->run(call);
    }
    return known ? http_error(call, MHD_HTTP_METHOD_NOT_ALLOWED, NULL, "this path does not take this method")
                 : http_error(call, MHD_HTTP_NOT_FOUND, NULL, "there is no such path; docs/server.md lists them");
}

static enum MHD_Result too_large(http_call *call) {
    char sentence[120];
    snprintf(sentence, sizeof sentence, "the body is larger than the %zu bytes that this server takes",
             call->server->config.body_most);
    return http_error(call, MHD_HTTP_CONTENT_TOO_LARGE, "body_too_large", sentence);
}

/* The head of a request is there. */
static enum MHD_Result begin_call(http_call *call) {
    const char *length = header(call, "Content-Length");
    call->begun = true;
    if (from_elsewhere(call))
        return http_error(call, MHD_HTTP_FORBIDDEN, NULL,
                          "a page of another origin may not ask this server without a key");
    if (length && strtoull(length, NULL, 10) > PATIENT_BODIES * call->server->config.body_most) return too_large(call);
    return MHD_YES;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *data, size_t *bytes, void **own) {
    http_call *call = *own;
    (void)version;
    if (!call) {
        if (!(call = calloc(1, sizeof *call))) return MHD_NO;
        *call = (http_call){.server = ctx, .connection = connection};
        *own = call;
    }
    call->path = path, call->method = method;
    if (!call->begun) return begin_call(call);
    if (*bytes) {
        const size_t n = *bytes;
        *bytes = 0;
        call->seen += n; /* an answer has to wait until all of the body has come, which is dropped then */
        if (call->seen > PATIENT_BODIES * call->server->config.body_most) return MHD_NO;
        if (call->seen > call->server->config.body_most) text_free(&call->body);
        else return text_add(&call->body, data, n) ? MHD_YES : MHD_NO;
        return MHD_YES;
    }
    if (call->answered) return MHD_YES;
    if (call->seen > call->server->config.body_most) return too_large(call);
    /* From here on the server takes its time, not the client. */
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    const enum MHD_Result result = dispatch(call);
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)PATIENCE);
    return result;
}

static void on_completed(void *ctx, struct MHD_Connection *connection, void **own,
                         enum MHD_RequestTerminationCode code) {
    http_call *call = *own;
    (void)ctx, (void)connection, (void)code;
    if (!call) return;
    text_free(&call->body);
    free(call);
    *own = NULL;
}

/* ---- opening and closing ---- */

bool server_closing(server *s) {
    pthread_mutex_lock(&s->lock);
    const bool closing = s->closing;
    pthread_mutex_unlock(&s->lock);
    return closing;
}

bool server_draining(server *s) {
    pthread_mutex_lock(&s->lock);
    const bool draining = s->draining;
    pthread_mutex_unlock(&s->lock);
    return draining;
}

uint64_t server_number(server *s) {
    pthread_mutex_lock(&s->lock);
    const uint64_t number = ++s->requests;
    pthread_mutex_unlock(&s->lock);
    return number;
}

void server_count(server *s, int64_t more) {
    pthread_mutex_lock(&s->lock);
    s->under_way += more;
    pthread_mutex_unlock(&s->lock);
}

/* A socket that listens, so that what is wrong with the address is told in words. */
static ebb_status listen_on(server *s, int *out, ebb_error *error) {
    struct sockaddr_storage address = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    const server_config *c = &s->config;
    socklen_t bytes = sizeof address;
    const int yes = 1;
    if (inet_pton(AF_INET, c->host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET, v4->sin_port = htons((uint16_t)c->port);
        bytes = sizeof *v4;
    } else if (inet_pton(AF_INET6, c->host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6, v6->sin6_port = htons((uint16_t)c->port);
        bytes = sizeof *v6;
    } else return ebb_fail(error, EBB_BAD_ARGUMENT, "'%.80s' is no address, expected one as 127.0.0.1 or ::1", c->host);
    const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) || listen(fd, 512) ||
        getsockname(fd, (struct sockaddr *)&address, &(socklen_t){sizeof address})) {
        const int why = errno;
        if (fd >= 0) close(fd);
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%.80s port %d: %s", c->host, c->port, strerror(why));
    }
    s->port = ntohs(address.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
    *out = fd;
    return EBB_OK;
}

static ebb_status open_daemon(server *s, ebb_error *error) {
    int fd = -1;
    const ebb_status status = listen_on(s, &fd, error);
    if (status) return status;
    s->daemon = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC, 0, NULL, NULL,
        on_request, s, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->config.connections_most,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)PATIENCE, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_END);
    if (s->daemon) return EBB_OK;
    close(fd);
    return ebb_fail(error, EBB_NO_MEMORY, "the HTTP server did not start");
}

ebb_status server_open(const server_config *config, server **out, ebb_error *error) {
    server *s = calloc(1, sizeof *s);
    if (!s) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a server");
    s->config = *config;
    s->tokenizer = ebb_model_tokenizer(config->model);
    s->started = seconds_now();
    pthread_mutex_init(&s->lock, NULL);
    metrics_open(&s->metrics);
    if (getrandom(&s->random, sizeof s->random, 0) != (ssize_t)sizeof s->random)
        s->random = (uint64_t)(s->started * 1e9);
    s->tokens = token_table_new(s->tokenizer, ebb_model_describe(config->model)->vocab);
    forms_open(&s->forms, s->tokens);
    ebb_status status = s->tokens ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for the table of tokens");
    if (!status) status = loop_open(&s->config, &s->metrics, &s->loop, error);
    if (!status) status = open_daemon(s, error);
    if (status) server_close(s);
    else *out = s;
    return status;
}

int32_t server_port(const server *s) { return s->port; }

static int64_t begin_end(server *s, bool closing) {
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    s->closing |= closing;
    const int64_t under_way = s->under_way;
    pthread_mutex_unlock(&s->lock);
    return under_way;
}

int64_t server_drain(server *s) { return begin_end(s, false); }

/* Streams under way are told why they end, which they have two seconds for: then their connections are cut. */
void server_close(server *s) {
    if (!s) return;
    for (int32_t i = 0; i < 200 && begin_end(s, true); i++) nanosleep(&(struct timespec){0, 10000000}, NULL);
    if (s->daemon) MHD_stop_daemon(s->daemon);
    loop_close(s->loop);
    forms_close(&s->forms);
    token_table_free(s->tokens);
    metrics_close(&s->metrics);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

bool server_banner(const server *s, text_buffer *text) {
    const server_config *c = &s->config;
    const ebb_model_info *info = ebb_model_describe(c->model);
    const loop_texts names = loop_names(s->loop);
    loop_stats now;
    loop_now(s->loop, &now);
    return text_format(text, "%s: %s, %.1f M parameters | state %s | kv %s%s%s | %s | %d threads\n", c->name,
                       info->architecture, (double)info->parameters * 1e-6, names.state, names.kv,
                       names.prefill ? ", prefill " : "", names.prefill ? names.prefill : "", names.rows,
                       ebb_device_threads(ebb_model_device(c->model))) &&
           text_format(text, "%lld answers at a time, the next %d wait | %lld tokens each | %s\n", (long long)now.slots,
                       c->queue_most, (long long)now.context, names.cache) &&
           text_format(text, "http://%s%s%s:%d/ | %s\n", strchr(c->host, ':') ? "[" : "", c->host,
                       strchr(c->host, ':') ? "]" : "", s->port, c->api_key ? "an API key is asked for" : "no API key");
}
