/* server/metrics.c: counters and histograms, and Prometheus' text of them (metrics.h). Called by loop.c and http.c. */
#include "server/metrics.h"
#include "core/core.h"

#include <string.h>

static const double bounds[HISTOGRAM_BOUNDS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                0.5,   1,      2.5,   5,    10,    30,   60,  300};

void histogram_add(histogram *h, double seconds) {
    int32_t i = 0;
    while (i < HISTOGRAM_BOUNDS && seconds > bounds[i]) i++;
    h->counts[i]++;
    h->n++;
    h->sum += seconds;
}

void metrics_open(metrics *m) {
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
}

void metrics_close(metrics *m) { pthread_mutex_destroy(&m->lock); }

void metrics_end(metrics *m, request_end end, double seconds) {
    pthread_mutex_lock(&m->lock);
    m->requests[end]++;
    histogram_add(&m->whole, seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_refused(metrics *m) {
    pthread_mutex_lock(&m->lock);
    m->refused++;
    pthread_mutex_unlock(&m->lock);
}

/* ---- text ---- */

static bool head(text_buffer *text, const char *name, const char *type, const char *help) {
    return text_format(text, "# HELP ebb_%s %s\n# TYPE ebb_%s %s\n", name, help, name, type);
}

bool metrics_line(text_buffer *text, const char *name, const char *type, const char *help, double value) {
    return head(text, name, type, help) && text_format(text, "ebb_%s %.17g\n", name, value);
}

static bool print_histogram(text_buffer *text, const char *name, const char *help, const histogram *h) {
    int64_t n = 0;
    bool good = head(text, name, "histogram", help);
    for (int32_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
        n += h->counts[i];
        good = good && text_format(text, "ebb_%s_bucket{le=\"%g\"} %lld\n", name, bounds[i], (long long)n);
    }
    return good && text_format(text, "ebb_%s_bucket{le=\"+Inf\"} %lld\nebb_%s_sum %.9g\nebb_%s_count %lld\n", name,
                               (long long)h->n, name, h->sum, name, (long long)h->n);
}

bool metrics_print(metrics *shared, text_buffer *text) {
    static const char *const ends[REQUEST_ENDS] = {"stop", "length", "cancelled", "timeout", "failed"};
    pthread_mutex_lock(&shared->lock);
    const metrics m = *shared;
    pthread_mutex_unlock(&shared->lock);
    bool good = head(text, "requests_total", "counter", "Requests that have ended, by how.");
    for (int32_t i = 0; i < REQUEST_ENDS; i++)
        good = good && text_format(text, "ebb_requests_total{end=\"%s\"} %lld\n", ends[i], (long long)m.requests[i]);
    return good &&
           metrics_line(text, "requests_refused_total", "counter", "Requests answered with an error before they began.",
                        (double)m.refused) &&
           metrics_line(text, "prompt_tokens_total", "counter", "Prompt tokens of requests.",
                        (double)m.prompt_tokens) &&
           metrics_line(text, "cached_tokens_total", "counter", "Prompt tokens that the prefix cache held.",
                        (double)m.cached_tokens) &&
           metrics_line(text, "answer_tokens_total", "counter", "Tokens generated.", (double)m.answer_tokens) &&
           print_histogram(text, "time_to_first_token_seconds", "From the request to its first token.",
                           &m.first_token) &&
           print_histogram(text, "inter_token_seconds", "Between the tokens of an answer.", &m.next_token) &&
           print_histogram(text, "request_seconds", "From the request to its end.", &m.whole);
}
