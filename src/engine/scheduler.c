/* engine/scheduler.c: requests over one engine (ebb/scheduler.h). Called by programs and servers.
 *
 * Jobs stand in one list in the order in which they have a right to run: by priority, then by age. The head of those
 * that wait is never passed by one behind it, however small, and what has to make room is the last of those that run.
 * A prompt is cut at the grid alone and an op gives a row the same bits in any batch, so nothing here decides a bit. */
#include "ebb/scheduler.h"
#include "engine/cache.h"
#include "engine/engine_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    ebb_request r; /* prompt and stops are the job's own */
    int32_t *prompt, *stops;
    int64_t handle;
    int32_t id;     /* its sequence; -1: none */
    uint8_t *image; /* of its sequence, while it has made room for others */
    size_t image_bytes;
    int64_t answered;
    int64_t fed, branch; /* prompt tokens given to the engine; where the prompt leaves those that are cached */
    int64_t cached;      /* that came from the cache; -1: nobody looked */
    int64_t stood;       /* its position before a pass */
    uint64_t served;     /* when it came into its slot, or its prompt had a pass last */
    bool decoding;       /* its prompt has been processed */
    bool cancelled, ended;
} job;

struct ebb_scheduler {
    ebb_engine *engine;
    ebb_scheduler_config config;
    job **jobs; /* [n] */
    int64_t n, room, handles;
    int32_t slots, running;
    uint64_t clock;
    size_t state_each, kv_now, saved;
    int64_t ended, preemptions, looked_up, cached;
    prefix_cache *cache; /* NULL: none */
    int32_t *ids;        /* [slots], of a pass */
    job **of_pass;       /* [slots] */
    float *logits;       /* [vocab] */
};

/* ---- opening ---- */

static ebb_status set_budgets(ebb_scheduler *s, ebb_error *error) {
    const ebb_engine *e = s->engine;
    ebb_scheduler_config *c = &s->config;
    ebb_usage usage;
    ebb_engine_usage(e, -1, &usage);
    s->state_each = usage.state_packed + usage.state_live;
    s->slots = e->config.max_seqs;
    if (c->state_mem && s->state_each && c->state_mem / s->state_each < (size_t)s->slots)
        s->slots = (int32_t)(c->state_mem / s->state_each);
    if (!c->state_mem) c->state_mem = s->state_each * (size_t)s->slots;
    if (!s->slots)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "state_mem = %zu bytes; one sequence takes %zu", c->state_mem,
                        s->state_each);
    if (!c->kv_mem && e->kv)
        c->kv_mem = ebb_kv_pool_bytes_for(e->kv, e->config.max_tokens) * (size_t)e->config.max_seqs;
    if (e->kv && c->kv_mem < ebb_kv_pool_bytes_for(e->kv, 1))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "kv_mem = %zu bytes; a sequence of one token takes %zu", c->kv_mem,
                        ebb_kv_pool_bytes_for(e->kv, 1));
    if (!c->step_tokens) c->step_tokens = e->config.prefill_tokens;
    if (c->step_tokens < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "step_tokens = %lld, expected 1 or more", (long long)c->step_tokens);
    return EBB_OK;
}

/* A checkpoint serves prompts that go on in another way only where nothing of it depends on what came later. */
static ebb_status open_cache(ebb_scheduler *s, ebb_error *error) {
    const ebb_engine *e = s->engine;
    const ebb_kv_view *v = e->kv ? ebb_kv_pool_view(e->kv, 0) : NULL;
    if (!s->config.cache_mem) return EBB_OK;
    if (e->whole_prompts || (v && (!v->rule.pure || e->kv_spec.method->codec->rewrite))) {
        s->config.cache_mem = 0;
        ebb_device_notice(ebb_model_device(e->model),
                          "no prefix cache: what this KV method keeps depends on the whole prompt");
        return EBB_OK;
    }
    s->cache = cache_new(s->config.cache_mem);
    return s->cache ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for a prefix cache");
}

ebb_status ebb_scheduler_open(ebb_engine *engine, const ebb_scheduler_config *config, ebb_scheduler **out,
                              ebb_error *error) {
    if (!engine || !config || !config->event || !out)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "a scheduler needs an engine, a function for events and a place to go");
    if (config->size != sizeof *config)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_scheduler_config.size is %zu, this library expects %zu",
                        config->size, sizeof *config);
    for (int32_t i = 0; i < engine->config.max_seqs; i++)
        if (engine->seqs[i].open)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "sequence %d of the engine is open; a scheduler needs all of them",
                            i);
    ebb_scheduler *s = calloc(1, sizeof *s);
    if (!s) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a scheduler");
    s->engine = engine;
    s->config = *config;
    ebb_status status = set_budgets(s, error);
    if (!status) status = open_cache(s, error);
    if (!status) {
        s->ids = calloc((size_t)s->slots, sizeof *s->ids);
        s->of_pass = calloc((size_t)s->slots, sizeof *s->of_pass);
        s->logits = calloc((size_t)engine->info->vocab, sizeof *s->logits);
        if (!s->ids || !s->of_pass || !s->logits)
            status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a scheduler of %d sequences", s->slots);
    }
    if (status) ebb_scheduler_close(s);
    else *out = s;
    return status;
}

static void free_job(job *j) {
    if (!j) return;
    free(j->prompt), free(j->stops), free(j->image), free(j);
}

void ebb_scheduler_close(ebb_scheduler *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n; i++) {
        if (s->jobs[i]->id >= 0) ebb_sequence_close(s->engine, s->jobs[i]->id);
        free_job(s->jobs[i]);
    }
    cache_free(s->cache);
    free(s->jobs), free(s->ids), free(s->of_pass), free(s->logits), free(s);
}

/* ---- requests ---- */

/* Bytes of KV cache for so many tokens, as far as the context goes. */
static size_t kv_bytes(const ebb_scheduler *s, int64_t tokens) {
    return s->engine->kv ? ebb_kv_pool_bytes_for(s->engine->kv, tokens) : 0;
}

/* What a job takes until its next token: its whole prompt, and all it has answered. */
static size_t need(const ebb_scheduler *s, const job *j) { return kv_bytes(s, j->r.n_prompt + j->answered); }

static ebb_status check(const ebb_scheduler *s, const ebb_request *r, ebb_error *error) {
    const int64_t context = s->engine->config.max_tokens;
    const int32_t vocab = s->engine->info->vocab;
    if (r->size != sizeof *r)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_request.size is %zu, this library expects %zu", r->size,
                        sizeof *r);
    if (!r->prompt || r->n_prompt < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a prompt of 0 tokens, expected at least one");
    if (r->n_prompt > context)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a prompt of %lld tokens, but the context holds %lld",
                        (long long)r->n_prompt, (long long)context);
    for (int64_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= vocab)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "prompt token %lld is %d, expected 0 to %d", (long long)i,
                            r->prompt[i], vocab - 1);
    if (r->max_answer < -1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "max_answer = %lld, expected -1 or more", (long long)r->max_answer);
    if (r->n_stops < 0 || (r->n_stops && !r->stops))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%d stop tokens are named, but not given", r->n_stops);
    if (r->logprobs < 0 || r->logprobs > EBB_MAX_LOGPROBS || r->logprobs > vocab)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "logprobs = %d, expected 0 to %lld", r->logprobs,
                        (long long)min_i64(EBB_MAX_LOGPROBS, vocab));
    const int64_t answer = r->max_answer < 0 ? context : r->max_answer;
    const size_t most = kv_bytes(s, r->n_prompt + min_i64(answer, context - r->n_prompt));
    if (most > s->config.kv_mem)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "prompt and answer may take %zu bytes of KV cache, but all sequences have %zu (kv_mem)", most,
                        s->config.kv_mem);
    return ebb_sampling_check(&r->sampling, error);
}

static int32_t *copy_ids(const int32_t *ids, int64_t n) {
    int32_t *copy = malloc((size_t)(n ? n : 1) * sizeof *copy);
    if (copy && n) memcpy(copy, ids, (size_t)n * sizeof *copy);
    return copy;
}

static bool make_place(ebb_scheduler *s) {
    if (s->n < s->room) return true;
    const int64_t room = 2 * s->room + 16;
    job **jobs = realloc(s->jobs, (size_t)room * sizeof *jobs);
    if (!jobs) return false;
    s->jobs = jobs, s->room = room;
    return true;
}

ebb_status ebb_scheduler_submit(ebb_scheduler *s, const ebb_request *request, int64_t *id, ebb_error *error) {
    if (!s || !request || !id)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "submitting needs a scheduler, a request and a place for its id");
    ebb_status status = check(s, request, error);
    if (status) return status;
    job *j = calloc(1, sizeof *j);
    if (j) {
        *j = (job){.r = *request, .id = -1, .cached = -1};
        j->r.prompt = j->prompt = copy_ids(request->prompt, request->n_prompt);
        j->r.stops = j->stops = copy_ids(request->stops, request->n_stops);
    }
    if (!j || !j->prompt || !j->stops || !make_place(s)) {
        free_job(j);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a request of %lld tokens", (long long)request->n_prompt);
    }
    int64_t at = s->n++;
    for (; at > 0 && s->jobs[at - 1]->r.priority < j->r.priority; at--) s->jobs[at] = s->jobs[at - 1];
    s->jobs[at] = j;
    *id = j->handle = ++s->handles;
    return EBB_OK;
}

void ebb_scheduler_cancel(ebb_scheduler *s, int64_t id) {
    for (int64_t i = 0; s && i < s->n; i++)
        if (s->jobs[i]->handle == id) s->jobs[i]->cancelled = true;
}

/* ---- coming and going ---- */

static void tell(const ebb_scheduler *s, const job *j, ebb_event event) {
    event.request = j->handle;
    event.ctx = j->r.ctx;
    s->config.event(s->config.ctx, &event);
}

/* Out of its slot; what it holds beside that stays. */
static void leave_slot(ebb_scheduler *s, job *j) {
    if (j->id < 0) return;
    ebb_sequence_close(s->engine, j->id);
    j->id = -1;
    s->running--;
    s->kv_now -= need(s, j);
}

static void drop_image(ebb_scheduler *s, job *j) {
    s->saved -= j->image_bytes;
    free(j->image);
    j->image = NULL, j->image_bytes = 0;
}

static void end_job(ebb_scheduler *s, job *j, ebb_end end, const ebb_error *error) {
    leave_slot(s, j);
    drop_image(s, j);
    j->ended = true;
    s->ended++;
    tell(s, j, (ebb_event){.kind = EBB_EVENT_END, .done = j->answered, .end = end, .error = error});
}

/* Make room: its memory goes to an image, from which it goes on as if nothing had been. */
static void preempt(ebb_scheduler *s, job *j) {
    ebb_error error;
    ebb_status status = EBB_OK;
    if (ebb_sequence_position(s->engine, j->id) > 0) /* else there is nothing to keep */
        status = sequence_put(s->engine, j->id, &j->image, &j->image_bytes, &error);
    if (status) {
        end_job(s, j, EBB_END_ERROR, &error);
        return;
    }
    s->saved += j->image_bytes;
    s->preemptions++;
    leave_slot(s, j);
}

/* Give the engine the prompt up to its next cut: where it leaves others, its last multiple of the grid, its end. */
static ebb_status feed(ebb_scheduler *s, job *j, ebb_error *error) {
    const int64_t n = j->r.n_prompt, last = (n - 1) / EBB_GRID * EBB_GRID, from = j->fed;
    int64_t to = s->cache && last > from ? last : n;
    if (s->cache && j->branch > from) to = min_i64(to, j->branch);
    const ebb_status status = ebb_sequence_append(s->engine, j->id, j->prompt + from, to - from, error);
    if (!status) j->fed = to;
    return status;
}

/* A sequence of its own, or one that goes on from a checkpoint. */
static ebb_status open_fresh(ebb_scheduler *s, job *j, ebb_error *error) {
    const uint8_t *image;
    size_t bytes;
    ebb_status status;
    j->fed = s->cache ? cache_find(s->cache, j->prompt, j->r.n_prompt, &image, &bytes) : 0;
    j->branch = s->cache ? cache_branch(s->cache, j->prompt, j->r.n_prompt) : 0;
    if (j->fed) {
        if ((status = sequence_take(s->engine, image, bytes, &j->id, error))) return status;
        ebb_sequence_forget(s->engine, j->id);
        status = ebb_sequence_resample(s->engine, j->id, &j->r.sampling, error);
    } else if ((status = ebb_sequence_open(s->engine, &j->r.sampling, &j->id, error))) return status;
    if (!status) status = feed(s, j, error);
    if (status) ebb_sequence_close(s->engine, j->id);
    return status;
}

/* The engine stands at a cut: keep a checkpoint, and go on. */
static ebb_status go_on(ebb_scheduler *s, job *j, ebb_error *error) {
    uint8_t *image;
    size_t bytes;
    ebb_status status = EBB_OK;
    ebb_sequence_forget(s->engine, j->id); /* what it produced at the cut is not part of the prompt */
    if (!cache_has(s->cache, j->prompt, j->fed) && !(status = sequence_put(s->engine, j->id, &image, &bytes, error)))
        status = cache_keep(s->cache, j->prompt, j->fed, image, bytes, error);
    return status ? status : feed(s, j, error);
}

/* The first look of a job at the cache counts. */
static void note_cached(ebb_scheduler *s, job *j, int64_t found) {
    if (j->cached >= 0 || !s->cache) return;
    j->cached = found;
    s->looked_up += j->r.n_prompt, s->cached += found;
    const ebb_event event = {.kind = EBB_EVENT_PROMPT, .done = found, .total = j->r.n_prompt, .cached = found};
    if (found) tell(s, j, event);
}

static void enter_slot(ebb_scheduler *s, job *j) {
    ebb_error error;
    ebb_status status;
    if (j->image) status = sequence_take(s->engine, j->image, j->image_bytes, &j->id, &error);
    else status = open_fresh(s, j, &error);
    if (status) {
        j->id = -1;
        end_job(s, j, EBB_END_ERROR, &error);
        return;
    }
    const bool fresh = !j->image;
    drop_image(s, j);
    j->served = ++s->clock;
    s->running++;
    s->kv_now += need(s, j);
    if (fresh) note_cached(s, j, ebb_sequence_position(s->engine, j->id));
}

static job *last_running(const ebb_scheduler *s) {
    for (int64_t i = s->n; i-- > 0;)
        if (s->jobs[i]->id >= 0) return s->jobs[i];
    return NULL;
}

/* Would it fit beside the running jobs of this priority and above? */
static bool fits(const ebb_scheduler *s, const job *j, int32_t priority) {
    int32_t running = 0;
    size_t kv = need(s, j);
    for (int64_t i = 0; i < s->n; i++) {
        const job *other = s->jobs[i];
        if (other->id < 0 || other->r.priority < priority) continue;
        running++;
        kv += need(s, other);
    }
    return running < s->slots && kv <= s->config.kv_mem;
}

static void admit(ebb_scheduler *s) {
    for (int64_t i = 0; i < s->n; i++) {
        job *j = s->jobs[i];
        if (j->id >= 0 || j->ended) continue;
        if (!fits(s, j, INT32_MIN)) {
            if (!fits(s, j, j->r.priority)) return;
            while (!fits(s, j, INT32_MIN)) preempt(s, last_running(s)); /* of a lower priority, so there is one */
        }
        enter_slot(s, j);
    }
}

static void drop_cancelled(ebb_scheduler *s) {
    for (int64_t i = 0; i < s->n; i++)
        if (s->jobs[i]->cancelled && !s->jobs[i]->ended) end_job(s, s->jobs[i], EBB_END_CANCELLED, NULL);
}

static void sweep(ebb_scheduler *s) {
    int64_t left = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (s->jobs[i]->ended) free_job(s->jobs[i]);
        else s->jobs[left++] = s->jobs[i];
    }
    s->n = left;
}

/* ---- tokens ---- */

/* The k largest logits, descending, equal ones by id, as log probabilities; that of `token` is returned. */
static float log_probabilities(const float *logits, int32_t vocab, int32_t token, ebb_logprob *top, int32_t k) {
    int32_t n = 0;
    double sum = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (n == k && logits[i] <= top[k - 1].logprob) continue;
        int32_t at = n < k ? n++ : k - 1;
        for (; at > 0 && top[at - 1].logprob < logits[i]; at--) top[at] = top[at - 1];
        top[at] = (ebb_logprob){i, logits[i]};
    }
    const float most = top[0].logprob;
    for (int32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)most);
    for (int32_t i = 0; i < k; i++) top[i].logprob = (float)((double)top[i].logprob - (double)most - log(sum));
    return (float)((double)logits[token] - (double)most - log(sum));
}

/* The token of a job, by its own rules where it has some; -1: they leave none, and the job has ended. */
static int32_t draw(ebb_scheduler *s, job *j, ebb_event *event, ebb_logprob *top) {
    ebb_engine *e = s->engine;
    const sequence *q = &e->seqs[j->id];
    const int32_t vocab = e->info->vocab;
    ebb_error error;
    int32_t token = q->produced;
    if (!j->r.logits && !j->r.logprobs) return token;
    const float *row = e->logits + (size_t)j->id * (size_t)vocab;
    memcpy(s->logits, row, (size_t)vocab * sizeof *row);
    if (j->r.logits) {
        bool any = j->r.logits(j->r.ctx, s->logits, vocab), kept = false;
        for (int32_t i = 0; any && i < vocab && !kept; i++) kept = s->logits[i] > -INFINITY;
        if (!kept) {
            ebb_fail(&error, EBB_UNSUPPORTED, "the rules of the request leave no token after %lld",
                     (long long)j->answered);
            end_job(s, j, EBB_END_ERROR, &error);
            return -1;
        }
        memcpy(e->rows, s->logits, (size_t)vocab * sizeof *row); /* sampling changes what it is given */
        token = ebb_sample(&q->sampling, e->rows, vocab, q->tokens, q->pos, q->pos, e->scratch);
        e->seqs[j->id].produced = token;
    }
    if (j->r.logprobs) {
        event->logprob = log_probabilities(s->logits, vocab, token, top, j->r.logprobs);
        event->top = top, event->n_top = j->r.logprobs;
    }
    return token;
}

static bool stops(const ebb_scheduler *s, const job *j, int32_t token) {
    for (int32_t i = 0; i < j->r.n_stops; i++)
        if (j->stops[i] == token) return true;
    return !j->r.ignore_stop && ebb_engine_is_stop(s->engine, token);
}

/* A pass has produced a token for this job. */
static void take_token(ebb_scheduler *s, job *j) {
    ebb_logprob top[EBB_MAX_LOGPROBS];
    ebb_event event = {.kind = EBB_EVENT_TOKEN};
    if (j->r.max_answer == 0) {
        end_job(s, j, EBB_END_LENGTH, NULL);
        return;
    }
    event.token = draw(s, j, &event, top);
    if (event.token < 0) return;
    if (stops(s, j, event.token)) {
        end_job(s, j, EBB_END_STOP, NULL);
        return;
    }
    s->kv_now -= need(s, j);
    j->answered++;
    s->kv_now += need(s, j);
    tell(s, j, event);
    if (j->answered == j->r.max_answer || ebb_sequence_room(s->engine, j->id) == 0) end_job(s, j, EBB_END_LENGTH, NULL);
}

/* ---- passes ---- */

/* All jobs that run and are (or are not) at their answer, in the order of the list. */
static int32_t collect(ebb_scheduler *s, bool decoding) {
    int32_t n = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (s->jobs[i]->id >= 0 && s->jobs[i]->decoding == decoding) s->of_pass[n++] = s->jobs[i];
    for (int32_t i = 0; i < n; i++) s->ids[i] = s->of_pass[i]->id;
    return n;
}

/* What was in a pass that failed cannot go on. */
static ebb_status fail_all(ebb_scheduler *s, int32_t n, ebb_status status, const ebb_error *why, ebb_error *error) {
    for (int32_t i = 0; i < n; i++) end_job(s, s->of_pass[i], EBB_END_ERROR, why);
    return ebb_fail(error, status, "%s", why->text);
}

static ebb_status decode(ebb_scheduler *s, int32_t *decoded, ebb_error *error) {
    ebb_error why;
    while (s->running > 1 && s->kv_now > s->config.kv_mem) preempt(s, last_running(s));
    const int32_t n = *decoded = collect(s, true);
    if (!n) return EBB_OK;
    const ebb_status status = ebb_engine_step(s->engine, s->ids, n, &why);
    if (status) return fail_all(s, n, status, &why, error);
    for (int32_t i = 0; i < n; i++) take_token(s, s->of_pass[i]);
    return EBB_OK;
}

/* Prompts of one priority take turns. */
static void take_turns(ebb_scheduler *s, int32_t n) {
    for (int32_t i = 1; i < n; i++) {
        job *j = s->of_pass[i];
        int32_t at = i;
        for (; at > 0; at--) {
            const job *before = s->of_pass[at - 1];
            if (before->r.priority != j->r.priority || before->served <= j->served) break;
            s->of_pass[at] = s->of_pass[at - 1];
        }
        s->of_pass[at] = j;
    }
    for (int32_t i = 0; i < n; i++) s->ids[i] = s->of_pass[i]->id;
}

static ebb_status prefill(ebb_scheduler *s, int64_t decoded, ebb_error *error) {
    ebb_error why;
    const int32_t n = collect(s, false);
    if (!n) return EBB_OK;
    take_turns(s, n);
    const int64_t most = max_i64(EBB_GRID, s->config.step_tokens - decoded);
    for (int32_t i = 0; i < n; i++) s->of_pass[i]->stood = ebb_sequence_position(s->engine, s->ids[i]);
    const ebb_status status = engine_prefill_some(s->engine, s->ids, n, most, &why);
    for (int32_t i = 0; i < n && !status; i++) {
        job *j = s->of_pass[i];
        const int64_t now = ebb_sequence_position(s->engine, j->id);
        if (now == j->stood) continue;
        j->served = ++s->clock;
        j->decoding = now == j->r.n_prompt;
        const int64_t cached = max_i64(j->cached, 0);
        tell(s, j, (ebb_event){.kind = EBB_EVENT_PROMPT, .done = now, .total = j->r.n_prompt, .cached = cached});
        if (j->decoding) take_token(s, j);
        else if (now == j->fed && go_on(s, j, &why)) end_job(s, j, EBB_END_ERROR, &why);
    }
    return status ? fail_all(s, n, status, &why, error) : EBB_OK;
}

ebb_status ebb_scheduler_step(ebb_scheduler *s, int64_t *left, ebb_error *error) {
    int32_t decoded = 0;
    if (!s) return ebb_fail(error, EBB_BAD_ARGUMENT, "no scheduler");
    drop_cancelled(s);
    admit(s);
    ebb_status status = decode(s, &decoded, error);
    if (!status) status = prefill(s, decoded, error);
    sweep(s);
    if (left) *left = s->n;
    return status;
}

void ebb_scheduler_now(const ebb_scheduler *s, ebb_scheduler_stats *stats) {
    *stats = (ebb_scheduler_stats){.slots = s->slots,
                                   .running = s->running,
                                   .state_bytes = s->state_each * (size_t)s->running,
                                   .kv_bytes = s->kv_now,
                                   .state_mem = s->config.state_mem,
                                   .kv_mem = s->config.kv_mem,
                                   .saved_bytes = s->saved,
                                   .cache_bytes = cache_now(s->cache).bytes,
                                   .cache_mem = s->config.cache_mem,
                                   .checkpoints = cache_now(s->cache).checkpoints,
                                   .evictions = cache_now(s->cache).evictions,
                                   .looked_up = s->looked_up,
                                   .cached = s->cached,
                                   .submitted = s->handles,
                                   .ended = s->ended,
                                   .preemptions = s->preemptions};
    for (int64_t i = 0; i < s->n; i++) {
        const job *j = s->jobs[i];
        if (j->id >= 0 || j->ended) continue;
        if (j->image) stats->preempted++;
        else stats->queued++;
    }
}
