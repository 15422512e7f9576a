/* server/metrics.h: what the server counts, and its text for Prometheus. The engine's thread writes, any thread prints.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "server/answer_parts.h"

#include <pthread.h>

/* Of seconds: cumulative when printed. */
enum { HISTOGRAM_BOUNDS = 16 };
typedef struct histogram {
    int64_t counts[HISTOGRAM_BOUNDS + 1];
    int64_t n;
    double sum;
} histogram;
void histogram_add(histogram *h, double seconds);

/* Ends of answers, as they are counted. */
typedef enum request_end { END_STOP, END_LENGTH, END_CANCELLED, END_TIMEOUT, END_FAILED, REQUEST_ENDS } request_end;

typedef struct metrics {
    pthread_mutex_t lock;
    histogram first_token, next_token, whole; /* seconds from request to first token, between tokens, of a request */
    int64_t requests[REQUEST_ENDS];
    int64_t refused; /* requests that never began: a wrong body, no key, a full queue */
    int64_t prompt_tokens, cached_tokens, answer_tokens;
} metrics;

void metrics_open(metrics *m);
void metrics_close(metrics *m);
void metrics_end(metrics *m, request_end end, double seconds);
void metrics_refused(metrics *m);

/* Lines of one metric: # HELP, # TYPE and its value. */
bool metrics_line(text_buffer *text, const char *name, const char *type, const char *help, double value);
/* All that `m` counts. */
bool metrics_print(metrics *m, text_buffer *text);

#endif
