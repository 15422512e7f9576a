/* server/client.c: a small HTTP client (client.h). Called by cli/bench_serve.c and tests. */
#define _GNU_SOURCE
#include "server/client.h"
#include "core/core.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { HEAD_MOST = 1 << 16 };

ebb_status client_url(const char *url, char host[64], int32_t *port, ebb_error *error) {
    static const char scheme[] = "http://";
    const char *at = url + (strncmp(url, scheme, sizeof scheme - 1) == 0 ? sizeof scheme - 1 : 0);
    const size_t n = *at == '[' ? strcspn(at, "]") + 1 : strcspn(at, ":/");
    const char *digits = at[n] == ':' ? at + n + 1 : "80";
    char *rest;
    const long number = strtol(digits, &rest, 10);
    if (!n || n >= 64 || rest == digits || (*rest && strcmp(rest, "/") != 0) || number < 1 || number > 65535)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "'%.100s' is no address of a server, expected http://127.0.0.1:8080",
                        url);
    memcpy(host, at, n);
    host[n] = '\0';
    if (*host == '[') {
        memmove(host, host + 1, n);
        host[strcspn(host, "]")] = '\0';
    }
    if (strcmp(host, "localhost") == 0) memcpy(host, "127.0.0.1", 10);
    *port = (int32_t)number;
    return EBB_OK;
}

static ebb_status connect_to(http_client *c, const char *host, int32_t port, double seconds, ebb_error *error) {
    struct sockaddr_storage address = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    const struct timeval patience = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    const int yes = 1;
    socklen_t bytes = sizeof *v4;
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) v4->sin_family = AF_INET, v4->sin_port = htons((uint16_t)port);
    else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6, v6->sin6_port = htons((uint16_t)port);
        bytes = sizeof *v6;
    } else return ebb_fail(error, EBB_BAD_ARGUMENT, "'%.60s' is no address, expected one as 127.0.0.1", host);
    c->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, bytes))
        return ebb_fail(error, EBB_BAD_FILE, "%s port %d: %s", host, port, strerror(errno));
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return EBB_OK;
}

static ebb_status send_all(http_client *c, const char *data, size_t bytes, ebb_error *error) {
    while (bytes) {
        const ssize_t n = send(c->fd, data, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ebb_fail(error, EBB_BAD_FILE, "the request could not be sent: %s", strerror(errno));
        data += n;
        bytes -= (size_t)n;
    }
    return EBB_OK;
}

/* More bytes; false: there are no more, *error tells when that is wrong. */
static bool receive(http_client *c, ebb_error *error) {
    char some[16384];
    ssize_t n;
    error->text[0] = '\0';
    do n = recv(c->fd, some, sizeof some, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0) ebb_fail(error, EBB_BAD_FILE, "the answer broke off: %s", strerror(errno));
    else if (n > 0 && text_add(&c->in, some, (size_t)n)) return true;
    else if (n > 0) ebb_fail(error, EBB_NO_MEMORY, "no memory for an answer");
    return false;
}

/* Bytes up to and with the next newline of what is read, at least `from` on; 0: not there yet. */
static size_t line_end(const http_client *c, size_t from) {
    const char *end = c->in.bytes > from ? memchr(c->in.data + from, '\n', c->in.bytes - from) : NULL;
    return end ? (size_t)(end - c->in.data) + 1 : 0;
}

static void read_header(http_client *c, const char *line) {
    static const char length[] = "Content-Length:", coding[] = "Transfer-Encoding: chunked";
    if (strncasecmp(line, length, sizeof length - 1) == 0) c->left = strtoull(line + sizeof length - 1, NULL, 10);
    if (strncasecmp(line, coding, sizeof coding - 1) == 0) c->chunked = true;
}

static ebb_status read_head(http_client *c, ebb_error *error) {
    bool first = true;
    c->left = SIZE_MAX;
    for (;;) {
        size_t n;
        while (!(n = line_end(c, 0))) {
            if (c->in.bytes < HEAD_MOST && receive(c, error)) continue;
            return error->text[0] ? error->code : ebb_fail(error, EBB_BAD_FILE, "the server closed without an answer");
        }
        if (n <= 2) {
            text_drop(&c->in, n);
            if (c->chunked) c->left = 0;
            return EBB_OK;
        }
        c->in.data[n - 1] = '\0';
        if (first) c->status = strncmp(c->in.data, "HTTP/1.", 7) == 0 ? atoi(c->in.data + 9) : 0;
        else read_header(c, c->in.data);
        first = false;
        text_drop(&c->in, n);
    }
}

ebb_status client_ask(http_client *c, const char *host, int32_t port, const char *path, const char *key,
                      const char *body, double seconds, ebb_error *error) {
    text_buffer out = {0};
    *c = (http_client){.fd = -1};
    ebb_status status = connect_to(c, host, port, seconds, error);
    const bool made =
        text_format(&out, "%s %s HTTP/1.1\r\nHost: %s%s%s:%d\r\nConnection: close\r\n", body ? "POST" : "GET", path,
                    strchr(host, ':') ? "[" : "", host, strchr(host, ':') ? "]" : "", port) &&
        (!key || text_format(&out, "Authorization: Bearer %s\r\n", key)) &&
        (!body || text_format(&out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body))) &&
        text_add(&out, "\r\n", 2) && (!body || text_add(&out, body, strlen(body)));
    if (!status && !made) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a request");
    if (!status) status = send_all(c, out.data, out.bytes, error);
    if (!status) status = read_head(c, error);
    text_free(&out);
    if (status) client_close(c);
    return status;
}

/* The head of the next chunk: its size, before which the end of the last one may stand. */
static bool next_chunk(http_client *c, ebb_error *error) {
    for (;;) {
        const size_t n = line_end(c, 0);
        if (!n) {
            if (receive(c, error)) continue;
            if (!error->text[0]) ebb_fail(error, EBB_BAD_FILE, "the answer broke off inside a chunked body");
            return false;
        }
        const bool blank = n <= 2;
        if (!blank) c->left = strtoull(c->in.data, NULL, 16);
        text_drop(&c->in, n);
        if (blank) continue;
        c->ended = c->left == 0;
        return !c->ended;
    }
}

/* Some bytes of the body, of one line at most where that is asked; false: its end, or *error. */
static bool take(http_client *c, text_buffer *to, bool one_line, ebb_error *error) {
    error->text[0] = '\0';
    if (c->ended) return false;
    if (!c->left) {
        c->ended = !c->chunked;
        if (c->ended || !next_chunk(c, error)) return false;
    }
    if (!c->in.bytes && !receive(c, error)) {
        if (!error->text[0] && c->left != SIZE_MAX) ebb_fail(error, EBB_BAD_FILE, "the answer broke off");
        c->ended = true;
        return false;
    }
    size_t n = c->in.bytes < c->left ? c->in.bytes : c->left;
    const char *end = one_line ? memchr(c->in.data, '\n', n) : NULL;
    if (end) n = (size_t)(end - c->in.data) + 1;
    if (!text_add(to, c->in.data, n)) {
        ebb_fail(error, EBB_NO_MEMORY, "no memory for an answer");
        return false;
    }
    text_drop(&c->in, n);
    if (c->left != SIZE_MAX) c->left -= n;
    return true;
}

bool client_line(http_client *c, text_buffer *line, ebb_error *error) {
    line->bytes = 0;
    while (take(c, line, true, error)) {
        if (line->data[line->bytes - 1] != '\n') continue;
        line->data[--line->bytes] = '\0';
        return true;
    }
    return !error->text[0] && line->bytes > 0;
}

ebb_status client_rest(http_client *c, text_buffer *body, ebb_error *error) {
    while (take(c, body, false, error)) {
    }
    return error->text[0] ? error->code : EBB_OK;
}

void client_close(http_client *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    text_free(&c->in);
}

json_t *client_event(const text_buffer *line) {
    static const char mark[] = "data: {";
    const size_t skip = sizeof mark - 2;
    if (line->bytes <= skip || memcmp(line->data, mark, skip + 1) != 0) return NULL;
    return json_loadb(line->data + skip, line->bytes - skip, 0, NULL);
}
