/* server/job.c: the queue of events between two threads (job.h). Called by http.c's routes and loop.c. */
#define _GNU_SOURCE
#include "server/job.h"
#include "core/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

job *job_new(int32_t n) {
    job *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    j->choices = calloc((size_t)n, sizeof *j->choices);
    if (!j->choices) {
        free(j);
        return NULL;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    j->n = n, j->holders = 1;
    return j;
}

void job_hold(job *j) {
    pthread_mutex_lock(&j->lock);
    j->holders++;
    pthread_mutex_unlock(&j->lock);
}

static void job_free(job *j) {
    for (size_t i = 0; i < j->n_events; i++) free(j->events[(j->first + i) % j->room].top);
    for (int32_t i = 0; i < j->n; i++) {
        free(j->choices[i].prompt);
        rules_free(&j->choices[i].rules);
    }
    if (j->form) forms_release(j->forms, j->form, masker_full(j->form->masks));
    body_free(&j->request);
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->changed);
    free(j->events), free(j->choices), free(j);
}

void job_release(job *j) {
    if (!j) return;
    pthread_mutex_lock(&j->lock);
    const int32_t left = --j->holders;
    pthread_mutex_unlock(&j->lock);
    if (!left) job_free(j);
}

/* With the lock. */
static bool make_room(job *j) {
    if (j->n_events < j->room) return true;
    const size_t room = 2 * j->room + 16;
    job_event *events = malloc(room * sizeof *events);
    if (!events) return false;
    for (size_t i = 0; i < j->n_events; i++) events[i] = j->events[(j->first + i) % j->room];
    free(j->events);
    j->events = events, j->room = room, j->first = 0;
    return true;
}

bool job_put(job *j, const job_event *event) {
    pthread_mutex_lock(&j->lock);
    const bool good = make_room(j);
    if (good) j->events[(j->first + j->n_events++) % j->room] = *event;
    else {
        free(event->top);
        snprintf(j->failure, sizeof j->failure, "no memory for the events of a request");
        j->failed = EBB_NO_MEMORY;
    }
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->lock);
    return good;
}

void job_fail(job *j, ebb_status status, const char *sentence) {
    pthread_mutex_lock(&j->lock);
    if (!j->failure[0]) {
        snprintf(j->failure, sizeof j->failure, "%s", sentence);
        j->failed = status;
    }
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->lock);
}

bool job_cancelled(job *j, int32_t choice) {
    pthread_mutex_lock(&j->lock);
    const bool cancelled = j->choices[choice].cancelled;
    pthread_mutex_unlock(&j->lock);
    return cancelled;
}

void job_cancel(job *j, int32_t choice) {
    pthread_mutex_lock(&j->lock);
    for (int32_t i = 0; i < j->n; i++)
        if (choice < 0 || choice == i) j->choices[i].cancelled = true;
    pthread_mutex_unlock(&j->lock);
}

bool job_take(job *j, double seconds, job_event *event) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const double nanoseconds = (double)until.tv_nsec + seconds * 1e9;
    until.tv_sec += (time_t)(nanoseconds / 1e9);
    until.tv_nsec = (long)(nanoseconds - 1e9 * (double)(time_t)(nanoseconds / 1e9));
    pthread_mutex_lock(&j->lock);
    while (!j->n_events && !j->failure[0])
        if (pthread_cond_timedwait(&j->changed, &j->lock, &until) == ETIMEDOUT) break;
    const bool taken = j->n_events || j->failure[0];
    if (j->n_events) { /* what came before a failure is told first */
        *event = j->events[j->first];
        j->first = (j->first + 1) % j->room;
        j->n_events--;
    } else if (taken) *event = (job_event){.kind = EVENT_FAILED, .status = j->failed, .text = j->failure};
    pthread_mutex_unlock(&j->lock);
    return taken;
}
