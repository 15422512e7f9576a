/* tests/scheduler_world.h: random requests to a scheduler over a bundled model, each of them compared with its answer
 * alone. What no sequence holds is filled with NaN before every step. */
#ifndef TESTS_SCHEDULER_WORLD_H
#define TESTS_SCHEDULER_WORLD_H

#include "ebb/ebb.h"
#include "engine/engine_int.h"
#include "must.h"

#include <stdlib.h>
#include <string.h>

enum { KINDS = 12, ANSWER = 40, CONTEXT = 768, LIVE = 24 };

typedef struct kind { /* of requests: a prompt, a sampling, and what is answered alone */
    int32_t *prompt;
    int64_t n;
    ebb_sampling sampling;
    int32_t answer[ANSWER];
    int64_t n_answer;
} kind;

typedef struct asked {
    const kind *k;
    int64_t id, most, cancel_at; /* answer tokens; cancel_at -1: never, -2: before its first step */
    int64_t got, done;
    bool open, cancelled;
} asked;

typedef struct world {
    ebb_model *model;
    ebb_engine *engine;
    ebb_scheduler *scheduler;
    kind kinds[KINDS];
    asked live[LIVE];
    uint64_t random;
    int64_t ended, tokens;
    size_t kv_mem, cache_mem;
} world;

static inline uint64_t draw_below(world *w, uint64_t n) { return mix64(w->random++) % n; }

static inline bool keep_answer(void *ctx, int32_t prompt, int32_t token) {
    kind *k = ctx;
    (void)prompt;
    k->answer[k->n_answer++] = token;
    return true;
}

static inline ebb_engine *world_engine(ebb_model *model, const char *state, const char *kv, int32_t seqs) {
    ebb_engine_config c = {
        .size = sizeof c, .state = state, .kv = kv, .max_seqs = seqs, .max_tokens = CONTEXT, .prefill_tokens = 512};
    ebb_engine *e;
    ebb_error error;
    must(ebb_engine_open(model, &c, &e, &error), &error);
    return e;
}

/* Prompts below, at and beyond the grid, and what each of them is answered by an engine of its own. */
static inline void world_kinds(world *w, const char *state, const char *kv) {
    static const int64_t lengths[KINDS] = {1, 2, 3, 7, 31, 64, 130, 255, 256, 257, 512, 600};
    ebb_engine *e = world_engine(w->model, state, kv, 1);
    ebb_error error;
    for (int32_t i = 0; i < KINDS; i++) {
        kind *k = &w->kinds[i];
        k->n = lengths[i];
        k->prompt = malloc((size_t)k->n * sizeof *k->prompt);
        assert_non_null(k->prompt);
        for (int64_t t = 0; t < k->n; t++)
            k->prompt[t] = (int32_t)(mix64((uint64_t)(i * 4096 + t)) % (uint64_t)ebb_model_describe(w->model)->vocab);
        k->sampling = (ebb_sampling){i % 3 ? 0.0f : 0.8f, 0.95f, 0.0f, 0, 1.0f, 64, (uint64_t)i};
        k->n_answer = 0;
        const ebb_prompt p = {k->prompt, k->n};
        must(ebb_generate(e, &p, 1, &k->sampling, ANSWER, keep_answer, k, NULL, &error), &error);
    }
    ebb_engine_close(e);
}

static inline asked *find_asked(world *w, int64_t id) {
    for (int32_t i = 0; i < LIVE; i++)
        if (w->live[i].open && w->live[i].id == id) return &w->live[i];
    return NULL;
}

static inline void on_event(void *ctx, const ebb_event *event) {
    world *w = ctx;
    asked *a = find_asked(w, event->request);
    assert_non_null(a);
    assert_ptr_equal(event->ctx, a->k);
    if (event->kind == EBB_EVENT_PROMPT) {
        assert_true(event->done > a->done && event->done <= a->k->n && event->total == a->k->n);
        a->done = event->done;
    } else if (event->kind == EBB_EVENT_TOKEN) {
        assert_int_equal(a->done, a->k->n);
        assert_true(a->got < a->most && a->got < a->k->n_answer);
        if (event->token != a->k->answer[a->got])
            fail_msg("prompt of %lld tokens, answer token %lld: %d, alone it is %d", (long long)a->k->n,
                     (long long)a->got, event->token, a->k->answer[a->got]);
        w->tokens++;
        if (++a->got == a->cancel_at) a->cancelled = true, ebb_scheduler_cancel(w->scheduler, a->id);
    } else {
        const int64_t whole = min_i64(a->most, a->k->n_answer);
        assert_true(event->end != EBB_END_ERROR);
        assert_true(a->cancelled || event->end == (a->most <= a->k->n_answer ? EBB_END_LENGTH : EBB_END_STOP));
        assert_true(event->done == a->got && (event->end == EBB_END_CANCELLED || a->got == whole));
        a->open = false;
        w->ended++;
    }
}

/* Slots and pages that no sequence holds: what is read there comes out as NaN. */
static inline void poison(const world *w) {
    const ebb_engine *e = w->engine;
    const ebb_state_view *s;
    const ebb_kv_view *v;
    for (int32_t i = 0; e->state && (s = ebb_state_pool_view(e->state, i)); i++)
        for (int32_t slot = 0; slot < e->config.max_seqs; slot++) {
            if (e->seqs[slot].open) continue;
            memset(s->packed + slot * s->packed_slot, 0xff, (size_t)s->packed_slot);
            memset(s->live + slot * s->live_slot, 0xff, (size_t)s->live_slot);
        }
    for (int32_t i = 0; e->kv && (v = ebb_kv_pool_view(e->kv, i)); i++) {
        const int64_t pages = v->block_stride * e->config.max_seqs;
        bool *held = calloc((size_t)pages, sizeof *held);
        assert_non_null(held);
        for (int64_t cell = 0; cell < pages; cell++)
            if (v->block[cell] >= 0) held[v->block[cell]] = true;
        for (int64_t page = 0; page < pages; page++)
            if (!held[page]) memset(v->pages + page * v->page_bytes, 0xff, (size_t)v->page_bytes);
        free(held);
        for (int32_t slot = 0; slot < e->config.max_seqs; slot++)
            if (!e->seqs[slot].open && v->tail_slot) memset(v->tail + slot * v->tail_slot, 0xff, (size_t)v->tail_slot);
    }
}

static inline void check_budgets(const world *w, int64_t slots) {
    ebb_scheduler_stats now;
    size_t kv = 0;
    int64_t running = 0;
    ebb_scheduler_now(w->scheduler, &now);
    for (int32_t i = 0; i < w->engine->config.max_seqs; i++) {
        ebb_usage usage;
        if (!w->engine->seqs[i].open) continue;
        ebb_engine_usage(w->engine, i, &usage);
        kv += usage.kv;
        running++;
    }
    assert_true(running == now.running && running <= slots);
    assert_true(kv <= w->kv_mem && now.state_bytes <= now.state_mem);
    assert_true(now.cache_bytes <= w->cache_mem);
    assert_int_equal(now.submitted, now.ended + now.queued + now.running + now.preempted);
}

static inline void submit_one(world *w, asked *a) {
    ebb_error error;
    *a = (asked){.k = &w->kinds[draw_below(w, 3) ? draw_below(w, 6) : draw_below(w, KINDS)], .cancel_at = -1};
    a->most = (int64_t)draw_below(w, ANSWER + 1);
    if (draw_below(w, 5) == 0) a->cancel_at = (int64_t)draw_below(w, ANSWER) - 2;
    const ebb_request r = {.size = sizeof r,
                           .prompt = a->k->prompt,
                           .n_prompt = a->k->n,
                           .sampling = a->k->sampling,
                           .max_answer = a->most,
                           .priority = (int32_t)draw_below(w, 3) - 1,
                           .logprobs = draw_below(w, 4) ? 0 : 3,
                           .ctx = (void *)a->k};
    must(ebb_scheduler_submit(w->scheduler, &r, &a->id, &error), &error);
    a->open = true;
    if (a->cancel_at == -2) a->cancelled = true, ebb_scheduler_cancel(w->scheduler, a->id);
}

/* `requests` of them, a few at a time, through 4 slots of which the states have room for 3 and the KV cache for less.
 */
static inline void run_world(world *w, const char *state, const char *kv, int64_t requests) {
    ebb_scheduler_stats now;
    ebb_usage usage;
    ebb_error error;
    int64_t submitted = 0, left = 0;
    world_kinds(w, state, kv);
    w->engine = world_engine(w->model, state, kv, 4);
    ebb_engine_usage(w->engine, -1, &usage);
    w->kv_mem = ebb_kv_pool_bytes_for(w->engine->kv, 600 + ANSWER) + ebb_kv_pool_bytes_for(w->engine->kv, 65);
    const ebb_scheduler_config c = {.size = sizeof c,
                                    .state_mem = 4 * (usage.state_packed + usage.state_live) - 1,
                                    .kv_mem = w->kv_mem,
                                    .cache_mem = w->cache_mem,
                                    .step_tokens = 300,
                                    .event = on_event,
                                    .ctx = w};
    must(ebb_scheduler_open(w->engine, &c, &w->scheduler, &error), &error);
    w->ended = w->tokens = 0;
    while (submitted < requests || left) {
        for (int32_t i = 0; i < LIVE && submitted < requests; i++)
            if (!w->live[i].open && draw_below(w, 4) == 0) submit_one(w, &w->live[i]), submitted++;
        poison(w);
        must(ebb_scheduler_step(w->scheduler, &left, &error), &error);
        check_budgets(w, 3);
    }
    ebb_scheduler_now(w->scheduler, &now);
    assert_true(w->ended == requests && w->tokens > requests && now.preemptions > requests / 20);
    assert_true(!now.kv_bytes && !now.saved_bytes && !now.running);
    ebb_scheduler_close(w->scheduler);
    ebb_engine_close(w->engine);
    for (int32_t i = 0; i < KINDS; i++) free(w->kinds[i].prompt);
}

#endif
