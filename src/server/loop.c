/* server/loop.c: the thread of the engine (loop.h). Called by http.c and completions.c. It alternates: a piece of the
 * prompts that wait, then a step of all answers under way, so that a long prompt delays no answer by more than one
 * piece; and looks between the two for new jobs and cancelled ones. */
#define _GNU_SOURCE
#include "server/loop.h"
#include "core/core.h"
#include "ebb/engine.h"
#include "server/draw.h"
#include "server/prefix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An answer in the queue or in a slot. */
typedef struct place {
    job *job; /* NULL: a free slot */
    int32_t choice;
    int32_t id;       /* of its sequence; the index of its slot */
    int32_t *tokens;  /* prompt and answer, as they are drawn from */
    int64_t n_tokens; /* of them */
    int64_t fed;      /* prompt tokens that the engine was given, up to the next cut */
    int64_t branch;   /* the cut where this prompt leaves others; 0: none */
    bool decoding;    /* its prompt has been processed */
} place;

struct loop {
    const server_config *config;
    metrics *metrics;
    ebb_engine *engine;
    const ebb_model_info *info;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    job *inbox, **inbox_end;
    bool closing;
    int64_t jobs;
    loop_stats stats;

    /* the thread's own */
    place *slots; /* [n_slots]: those of checkpoints stay free */
    int32_t n_slots, running;
    prefix_cache *prefixes; /* NULL: none */
    char cache[200];        /* what is said about it */
    place *queue;           /* a ring */
    int64_t first, n_queue, room;
    int32_t *ids; /* [n_slots] */
    drawing draw;
    int32_t passes; /* forwards that the prefill may still do */
};

/* ---- the queue ---- */

static bool enqueue(loop *l, place p) {
    if (l->n_queue == l->room) {
        const int64_t room = 2 * l->room + 64;
        place *queue = malloc((size_t)room * sizeof *queue);
        if (!queue) return false;
        for (int64_t i = 0; i < l->n_queue; i++) queue[i] = l->queue[(l->first + i) % l->room];
        free(l->queue);
        l->queue = queue, l->room = room, l->first = 0;
    }
    l->queue[(l->first + l->n_queue++) % l->room] = p;
    return true;
}

/* A choice has come to its end, whatever that is: the last one takes the engine's hold of the job with it. */
static void leave_job(loop *l, job *j, int32_t choice) {
    j->choices[choice].running = false;
    for (int32_t i = 0; i < j->n; i++)
        if (j->choices[i].running) return;
    pthread_mutex_lock(&l->lock);
    l->jobs--;
    pthread_mutex_unlock(&l->lock);
    job_release(j);
}

/* ---- events ---- */

static void end_place(loop *l, place *p, end_reason reason) {
    const place ended = *p;
    const job_event e = {.kind = EVENT_END, .choice = ended.choice, .reason = reason};
    job_put(ended.job, &e);
    ebb_sequence_close(l->engine, ended.id);
    free(ended.tokens);
    *p = (place){0};
    l->running--;
    leave_job(l, ended.job, ended.choice);
}

static void fail_place(loop *l, place *p, ebb_status status, const char *sentence) {
    job_fail(p->job, status, sentence);
    end_place(l, p, REASON_CANCELLED);
}

static void count_token(loop *l, place *p) {
    job_choice *c = &p->job->choices[p->choice];
    const double now = seconds_now();
    pthread_mutex_lock(&l->metrics->lock);
    if (!c->tokens) histogram_add(&l->metrics->first_token, now - p->job->submitted);
    else histogram_add(&l->metrics->next_token, now - c->last);
    l->metrics->answer_tokens++;
    pthread_mutex_unlock(&l->metrics->lock);
    c->last = now;
    c->tokens++;
}

/* The sequence has produced a token: draw it again where there are rules, tell it, and see whether the answer ends. */
static void take_token(loop *l, place *p) {
    job *j = p->job;
    job_choice *c = &j->choices[p->choice];
    job_event e = {.kind = EVENT_TOKEN, .choice = p->choice, .token = ebb_sequence_token(l->engine, p->id)};
    ebb_error error;
    const char *failed = draw_token(&l->draw, l->engine, p->id, c, p->tokens, p->n_tokens, &e, j->logprobs, &error);
    if (failed) {
        free(e.top);
        fail_place(l, p, EBB_UNSUPPORTED, failed);
        return;
    }
    if (ebb_engine_is_stop(l->engine, e.token) && !c->rules.ignore_stop) {
        free(e.top);
        end_place(l, p, REASON_STOP);
        return;
    }
    count_token(l, p);
    p->tokens[p->n_tokens++] = e.token;
    if (!job_put(j, &e) || (j->max_tokens >= 0 && c->tokens >= j->max_tokens) ||
        ebb_sequence_room(l->engine, p->id) == 0)
        end_place(l, p, REASON_LENGTH);
}

/* ---- coming and going ---- */

/* With the lock: what was submitted goes to the queue. */
static job *take_inbox(loop *l) {
    job *list = l->inbox;
    l->inbox = NULL, l->inbox_end = &l->inbox;
    return list;
}

static void queue_jobs(loop *l, job *list) {
    while (list) {
        job *j = list;
        const int32_t n = j->n; /* the job may go with its last choice */
        list = j->next;
        for (int32_t i = 0; i < n; i++) j->choices[i].running = true;
        for (int32_t i = 0; i < n; i++) {
            if (enqueue(l, (place){.job = j, .choice = i})) continue;
            job_fail(j, EBB_NO_MEMORY, "no memory for the queue");
            leave_job(l, j, i);
        }
    }
}

/* Jobs that nobody waits for any more leave, from their slot or out of the queue. */
static void drop_cancelled(loop *l, bool all) {
    const job_event e = {.kind = EVENT_END, .reason = REASON_CANCELLED};
    const int64_t n = l->n_queue;
    for (int32_t i = 0; i < l->n_slots; i++) {
        place *p = &l->slots[i];
        if (!p->job) continue;
        if (all) job_fail(p->job, EBB_INTERRUPTED, "the server is shutting down");
        if (all || job_cancelled(p->job, p->choice)) end_place(l, p, REASON_CANCELLED);
    }
    for (int64_t i = 0; i < n; i++) {
        const place p = l->queue[l->first];
        l->first = (l->first + 1) % l->room;
        l->n_queue--;
        if (all) job_fail(p.job, EBB_INTERRUPTED, "the server is shutting down");
        if (all || job_cancelled(p.job, p.choice)) {
            job_event own = e;
            own.choice = p.choice;
            job_put(p.job, &own);
            leave_job(l, p.job, p.choice);
        } else l->queue[(l->first + l->n_queue++) % l->room] = p; /* there is room: it came from here */
    }
}

/* Give the engine the prompt up to its next cut: where it leaves others, its last multiple of the grid, its end. */
static ebb_status feed(loop *l, place *p, ebb_error *error) {
    const job_choice *c = &p->job->choices[p->choice];
    const int64_t last = (c->n_prompt - 1) / EBB_GRID * EBB_GRID, from = p->fed;
    p->fed = c->n_prompt;
    if (l->prefixes && last > from) p->fed = last;
    if (p->branch > from) p->fed = min_i64(p->fed, p->branch);
    return ebb_sequence_append(l->engine, p->id, c->prompt + from, p->fed - from, error);
}

/* A sequence of its own, or a copy of a checkpoint that the prompt begins with. */
static ebb_status open_sequence(loop *l, place *p, ebb_error *error) {
    const job_choice *c = &p->job->choices[p->choice];
    int32_t from;
    ebb_status status;
    if (l->prefixes) p->branch = prefix_branch(l->prefixes, c->prompt, c->n_prompt);
    p->fed = l->prefixes ? prefix_find(l->prefixes, c->prompt, c->n_prompt, &from) : 0;
    if (!p->fed) return ebb_sequence_open(l->engine, &c->sampling, &p->id, error);
    if ((status = ebb_sequence_fork(l->engine, from, &p->id, error))) return status;
    if ((status = ebb_sequence_resample(l->engine, p->id, &c->sampling, error))) ebb_sequence_close(l->engine, p->id);
    return status;
}

static void tell_cached(loop *l, const place *p) {
    const int64_t n = p->job->choices[p->choice].n_prompt;
    const job_event e = {.kind = EVENT_PROGRESS, .choice = p->choice, .done = p->fed, .total = n, .cached = p->fed};
    if (p->fed) job_put(p->job, &e);
    l->stats.looked_up += n, l->stats.cached += p->fed; /* this thread alone writes them; note_stats tells them */
    pthread_mutex_lock(&l->metrics->lock);
    l->metrics->prompt_tokens += n;
    l->metrics->cached_tokens += p->fed;
    pthread_mutex_unlock(&l->metrics->lock);
}

static ebb_status begin_place(loop *l, place *p, ebb_error *error) {
    const job_choice *c = &p->job->choices[p->choice];
    p->tokens = malloc((size_t)(l->config->max_tokens + 1) * sizeof *p->tokens);
    if (!p->tokens) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the tokens of an answer");
    memcpy(p->tokens, c->prompt, (size_t)c->n_prompt * sizeof *p->tokens);
    p->n_tokens = c->n_prompt;
    ebb_status status = open_sequence(l, p, error);
    if (status) return status;
    tell_cached(l, p);
    status = feed(l, p, error);
    if (status) ebb_sequence_close(l->engine, p->id);
    return status;
}

/* First come, first served: as many as may run at a time. */
static void admit(loop *l) {
    while (l->running < l->config->max_seqs && l->n_queue) {
        place p = l->queue[l->first];
        ebb_error error;
        l->first = (l->first + 1) % l->room;
        l->n_queue--;
        const ebb_status status = begin_place(l, &p, &error);
        if (status) {
            free(p.tokens);
            job_fail(p.job, status, error.text);
            leave_job(l, p.job, p.choice);
            continue;
        }
        l->slots[p.id] = p;
        l->running++;
    }
}

/* ---- passes ---- */

/* Asked before every forward of a prefill: one, then the answers under way have their step. */
static bool one_pass(void *ctx, const char *what, int64_t done, int64_t total) {
    loop *l = ctx;
    (void)what, (void)done, (void)total;
    return l->passes-- > 0;
}

/* A pass that failed: what was in it cannot go on. */
static void fail_pass(loop *l, bool decoding, const ebb_error *error) {
    for (int32_t i = 0; i < l->n_slots; i++)
        if (l->slots[i].job && l->slots[i].decoding == decoding) fail_place(l, &l->slots[i], error->code, error->text);
}

/* The engine has processed what it was given: up to a cut, which is kept and gone on from, or to the end. */
static void fed_all(loop *l, place *p) {
    ebb_error error;
    ebb_status status;
    if (p->fed == p->job->choices[p->choice].n_prompt) {
        p->decoding = true;
        take_token(l, p);
        return;
    }
    status = prefix_keep(l->prefixes, p->id, p->tokens, p->fed, &error);
    ebb_sequence_forget(l->engine, p->id); /* what it produced at the cut is not part of the prompt */
    if (!status) status = feed(l, p, &error);
    if (status) fail_place(l, p, status, error.text);
}

static void prefill(loop *l) {
    ebb_error error;
    bool any = false;
    for (int32_t i = 0; i < l->n_slots; i++) any |= l->slots[i].job && !l->slots[i].decoding;
    if (!any) return;
    l->passes = 1;
    const ebb_status status = ebb_engine_prefill(l->engine, &error);
    if (status && status != EBB_INTERRUPTED) {
        fail_pass(l, false, &error);
        return;
    }
    for (int32_t i = 0; i < l->n_slots; i++) {
        place *p = &l->slots[i];
        if (!p->job || p->decoding) continue;
        const job_event e = {.kind = EVENT_PROGRESS,
                             .choice = p->choice,
                             .done = ebb_sequence_position(l->engine, p->id),
                             .total = p->job->choices[p->choice].n_prompt};
        if (p->job->request.progress) job_put(p->job, &e);
        if (ebb_sequence_token(l->engine, p->id) >= 0) fed_all(l, p);
    }
}

static void step(loop *l) {
    ebb_error error;
    int32_t n = 0;
    for (int32_t i = 0; i < l->n_slots; i++)
        if (l->slots[i].job && l->slots[i].decoding) l->ids[n++] = l->slots[i].id;
    if (!n) return;
    if (ebb_engine_step(l->engine, l->ids, n, &error)) fail_pass(l, true, &error);
    else
        for (int32_t i = 0; i < n; i++) take_token(l, &l->slots[l->ids[i]]);
}

/* ---- the thread ---- */

static bool idle(const loop *l) {
    for (int32_t i = 0; i < l->n_slots; i++)
        if (l->slots[i].job) return false;
    return !l->n_queue;
}

static void note_stats(loop *l) {
    loop_stats now = l->stats;
    ebb_usage usage;
    now.queued = l->n_queue, now.running = 0, now.kv_bytes = 0;
    ebb_engine_usage(l->engine, -1, &usage);
    const size_t state = usage.state_packed + usage.state_live;
    for (int32_t i = 0; i < l->n_slots; i++) {
        if (!l->slots[i].job) continue;
        ebb_engine_usage(l->engine, l->slots[i].id, &usage);
        now.running++;
        now.kv_bytes += usage.kv;
    }
    now.state_bytes = state * (size_t)now.running;
    now.state_most = state * (size_t)l->config->max_seqs;
    const prefix_stats kept = prefix_now(l->prefixes);
    now.checkpoints = kept.checkpoints, now.evictions = kept.evictions, now.cache_bytes = kept.bytes;
    pthread_mutex_lock(&l->lock);
    l->stats = now;
    pthread_mutex_unlock(&l->lock);
}

static void *run(void *ctx) {
    loop *l = ctx;
    for (bool closing = false; !closing;) {
        pthread_mutex_lock(&l->lock);
        while (!l->inbox && !l->closing && idle(l)) pthread_cond_wait(&l->changed, &l->lock);
        job *list = take_inbox(l);
        closing = l->closing;
        pthread_mutex_unlock(&l->lock);
        queue_jobs(l, list);
        drop_cancelled(l, closing);
        admit(l);
        note_stats(l);
        prefill(l);
        step(l);
        note_stats(l);
    }
    return NULL;
}

/* ---- the calls ---- */

/* The prefix cache, and what is said of it: why there is none, too. */
static ebb_status open_prefixes(loop *l, const char *refused, ebb_error *error) {
    const server_config *c = l->config;
    if (!c->checkpoints) snprintf(l->cache, sizeof l->cache, "no prefix cache, as asked");
    else if (refused) snprintf(l->cache, sizeof l->cache, "no prefix cache: %s", refused);
    else
        snprintf(l->cache, sizeof l->cache, "prefix cache of %d checkpoints and %zu MiB", c->checkpoints,
                 c->cache_most >> 20);
    if (!c->checkpoints || refused) return EBB_OK;
    l->stats.cache_most = c->cache_most;
    l->prefixes = prefix_new(l->engine, c->checkpoints, c->cache_most);
    return l->prefixes ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for the prefix cache");
}

static ebb_status open_engine(loop *l, ebb_error *error) {
    const server_config *c = l->config;
    const char *refused = prefix_refuse(c->model, c->kv, c->prefill);
    l->n_slots = c->max_seqs + (refused ? 0 : c->checkpoints);
    l->slots = calloc((size_t)l->n_slots, sizeof *l->slots);
    l->ids = calloc((size_t)l->n_slots, sizeof *l->ids);
    if (!l->slots || !l->ids) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d slots", l->n_slots);
    const ebb_engine_config config = {.size = sizeof config,
                                      .state = c->state,
                                      .kv = c->kv,
                                      .layout = c->layout,
                                      .prefill = c->prefill,
                                      .kv_bits = c->kv_bits,
                                      .max_seqs = l->n_slots,
                                      .max_tokens = c->max_tokens,
                                      .algorithm = c->rows,
                                      .progress = {l, one_pass}};
    const ebb_status status = ebb_engine_open(c->model, &config, &l->engine, error);
    return status ? status : open_prefixes(l, refused, error);
}

ebb_status loop_open(const server_config *config, metrics *m, loop **out, ebb_error *error) {
    loop *l = calloc(1, sizeof *l);
    if (!l) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the thread of the engine");
    l->config = config, l->metrics = m;
    l->info = ebb_model_describe(config->model);
    l->inbox_end = &l->inbox;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->stats.slots = config->max_seqs;
    l->stats.context = config->max_tokens;
    ebb_status status = drawing_open(&l->draw, config->model)
                            ? open_engine(l, error)
                            : ebb_fail(error, EBB_NO_MEMORY, "no memory for the thread of the engine");
    if (!status) note_stats(l);
    if (!status && !(l->started = pthread_create(&l->thread, NULL, run, l) == 0))
        status = ebb_fail(error, EBB_NO_MEMORY, "the thread of the engine did not start");
    if (status) loop_close(l);
    else *out = l;
    return status;
}

void loop_close(loop *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (l->started) pthread_join(l->thread, NULL);
    for (job *j = l->inbox, *next; j; j = next) { /* came after the thread's last look */
        next = j->next;
        job_fail(j, EBB_INTERRUPTED, "the server is shutting down");
        job_release(j);
    }
    prefix_free(l->prefixes);
    ebb_engine_close(l->engine);
    drawing_close(&l->draw);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
    free(l->slots), free(l->queue), free(l->ids), free(l);
}

ebb_status loop_submit(loop *l, job *j, ebb_error *error) {
    pthread_mutex_lock(&l->lock);
    const bool full = l->jobs >= l->config->queue_most + l->config->max_seqs, closing = l->closing;
    if (!full && !closing) {
        job_hold(j);
        j->next = NULL;
        *l->inbox_end = j, l->inbox_end = &j->next;
        l->jobs++;
        pthread_cond_signal(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    if (closing) return ebb_fail(error, EBB_NO_MEMORY, "the server is shutting down");
    if (full)
        return ebb_fail(error, EBB_NO_MEMORY, "%d requests wait already, and this server lets no more wait",
                        l->config->queue_most);
    return EBB_OK;
}

void loop_wake(loop *l) {
    pthread_mutex_lock(&l->lock);
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

void loop_now(loop *l, loop_stats *stats) {
    pthread_mutex_lock(&l->lock);
    *stats = l->stats;
    pthread_mutex_unlock(&l->lock);
}

int64_t loop_jobs(loop *l) {
    pthread_mutex_lock(&l->lock);
    const int64_t jobs = l->jobs;
    pthread_mutex_unlock(&l->lock);
    return jobs;
}

loop_texts loop_names(const loop *l) {
    const server_config *c = l->config;
    return (loop_texts){.state = !l->info->state_layers ? "none"
                                 : c->state             ? c->state
                                                        : "fp32",
                        .kv = !l->info->kv_layers ? "none"
                              : c->kv             ? c->kv
                                                  : "bf16",
                        .prefill = c->prefill,
                        .rows = ebb_engine_rows(l->engine),
                        .cache = l->cache};
}
