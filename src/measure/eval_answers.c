/* measure/eval_answers.c: free generation of answers to a task, several runs of each problem, and their scores
 * (ebb/measure.h). Called by programs.
 *
 * As ebb_generate does it: sequences that end hand their slot to the next problem. But every answer draws by its own
 * seed, and one that must be right letter for letter ends where it no longer is. */
#include "measure/eval_int.h"

#include <stdlib.h>
#include <string.h>

typedef struct answering { /* one running sequence */
    int32_t index, id;     /* run * n + problem */
    int64_t fed;           /* tokens of the prompt */
    ebb_detokenizer state;
    size_t n, room;
} answering;

typedef struct eval_run {
    const ebb_eval_config *c;
    const eval_watch *watch;
    ebb_engine *engine;
    const ebb_tokenizer *tokenizer;
    ebb_eval_answer *answers;
    answering *running;   /* [batch] */
    int32_t *ids;         /* [batch] */
    int32_t n, next, all; /* answers that run; that began; of all problems and runs */
    ebb_status status;    /* of a token or a text that could not be kept */
    ebb_error *error;
} eval_run;

static const ebb_problem *problem_of(const eval_run *r, const answering *a) {
    return &r->c->task->problem[a->index % r->c->task->n];
}

/* ---- texts ---- */

/* `id` < 0: what is left of a character. */
static bool add_token(ebb_eval_answer *answer, answering *a, int32_t id) {
    size_t written = 0, bytes = 0;
    if (id >= 0) ebb_token_bytes(a->state.tokenizer, id, &bytes);
    const size_t room = 3 * bytes + 32; /* every byte may become a U+FFFD */
    if (a->room - a->n < room) {
        char *text = realloc(answer->text, 2 * a->room + room);
        if (!text) return false;
        answer->text = text;
        a->room = 2 * a->room + room;
    }
    if (ebb_detokenize(&a->state, id, answer->text + a->n, a->room - a->n, &written)) return false;
    a->n += written;
    return true;
}

/* May this text still become the right one? White space before and behind it does not count. */
static bool still_right(const char *text, const char *right) {
    static const char space[] = " \t\r\n";
    text += strspn(text, space), right += strspn(right, space);
    while (*right && *text == *right) text++, right++;
    return !*text || (!right[strspn(right, space)] && !text[strspn(text, space)]);
}

static ebb_status no_text(const eval_run *r) {
    return ebb_fail(r->error, EBB_NO_MEMORY, "no memory for the text of an answer");
}

/* Take the produced token; of a prompt that is decoded, the next one instead. True: the answer goes on. */
static bool take_token(eval_run *r, answering *a) {
    ebb_eval_answer *answer = &r->answers[a->index];
    const ebb_problem *p = problem_of(r, a);
    const int32_t token = ebb_sequence_token(r->engine, a->id);
    if (a->fed < p->count) return !(r->status = ebb_sequence_choose(r->engine, a->id, p->ids[a->fed++], r->error));
    if (ebb_engine_is_stop(r->engine, token)) return false;
    if (!add_token(answer, a, token)) return r->status = no_text(r), false;
    answer->tokens++;
    if (p->scoring == EBB_SCORE_EXACT && !still_right(answer->text, p->answer[0])) {
        answer->first_error = answer->tokens - 1;
        return false;
    }
    answer->cut = answer->tokens >= r->c->max_answer || ebb_sequence_room(r->engine, a->id) <= 0;
    return !answer->cut;
}

static void end_answer(eval_run *r, answering *a) {
    ebb_eval_answer *answer = &r->answers[a->index];
    const ebb_problem *p = problem_of(r, a);
    if (!r->status && !add_token(answer, a, -1)) r->status = no_text(r);
    ebb_sequence_close(r->engine, a->id);
    if (r->status) return;
    answer->score = ebb_score(p, answer->text);
    /* A text that ends too early goes wrong with the token that ends it. */
    if (p->scoring == EBB_SCORE_EXACT && answer->score < 1 && answer->first_error < 0)
        answer->first_error = answer->tokens;
}

/* Those from `first` on have a new token. */
static void take_all(eval_run *r, int32_t first) {
    int32_t left = first;
    for (int32_t i = first; i < r->n; i++)
        if (take_token(r, &r->running[i])) r->running[left++] = r->running[i];
        else end_answer(r, &r->running[i]);
    r->n = left;
}

/* ---- the run ---- */

static bool report(const eval_run *r) {
    const ebb_progress *p = &r->c->progress;
    return !p->report || p->report(p->ctx, "answers", r->next - r->n, r->all);
}

/* Long prompts can be interrupted too; what counts are answers. */
static bool on_prompt(void *ctx, const char *what, int64_t done, int64_t total) {
    (void)what, (void)done, (void)total;
    return report(ctx);
}

static ebb_status open_engine(eval_run *r, ebb_model *model, int32_t batch) {
    const ebb_eval_config *c = r->c;
    int64_t longest = 0;
    for (int32_t i = 0; i < c->task->n; i++) longest = max_i64(longest, c->task->problem[i].count);
    const ebb_engine_config config = {.size = sizeof config,
                                      .state = c->store.state,
                                      .kv = c->store.kv,
                                      .layout = c->store.layout,
                                      .prefill = c->store.prefill,
                                      .kv_bits = c->store.kv_bits,
                                      .max_seqs = batch,
                                      .max_tokens =
                                          min_i64(longest + c->max_answer, ebb_model_describe(model)->max_position),
                                      .algorithm = c->algorithm,
                                      .progress = {r, on_prompt}};
    return ebb_engine_open(model, &config, &r->engine, r->error);
}

static ebb_status start(eval_run *r) {
    const ebb_problem *p = &r->c->task->problem[r->next % r->c->task->n];
    answering *a = &r->running[r->n];
    ebb_sampling sampling = r->c->sampling;
    const uint64_t run = (uint64_t)(r->next / r->c->task->n), problem = (uint64_t)(r->next % r->c->task->n);
    sampling.seed = mix64(sampling.seed ^ mix64((run << 32) + problem + 1));
    const int64_t fed = r->c->decoded ? 1 : p->count;
    *a = (answering){.index = r->next, .fed = fed, .state = {.tokenizer = r->tokenizer}};
    ebb_status status = ebb_sequence_open(r->engine, &sampling, &a->id, r->error);
    if (status) return status;
    if ((status = ebb_sequence_append(r->engine, a->id, p->ids, fed, r->error)))
        return ebb_sequence_close(r->engine, a->id), status;
    r->n++, r->next++;
    return EBB_OK;
}

static ebb_status answer_all(eval_run *r, int32_t batch) {
    ebb_status status = EBB_OK;
    while (!status && (r->n || r->next < r->all)) {
        const int32_t old = r->n;
        if (!report(r))
            return ebb_fail(r->error, EBB_INTERRUPTED, "interrupted after %d of %d answers", r->next - r->n, r->all);
        while (!status && r->n < batch && r->next < r->all) status = start(r);
        if (!status && r->n > old) {
            if (!(status = ebb_engine_prefill(r->engine, r->error))) take_all(r, old);
        } else if (!status) {
            for (int32_t i = 0; i < r->n; i++) r->ids[i] = r->running[i].id;
            if (r->watch) r->watch->call(r->watch->ctx, r->engine);
            if (!(status = ebb_engine_step(r->engine, r->ids, r->n, r->error))) take_all(r, 0);
        }
        if (!status) status = r->status;
    }
    return status;
}

static ebb_status check(const ebb_eval_config *c, ebb_error *error) {
    if (c->size != sizeof *c)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_eval_config.size is %zu, this library expects %zu", c->size,
                        sizeof *c);
    if (!c->task || c->task->n < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a task without problems; expected one or more");
    if (c->runs < 0 || c->batch < 0 || c->max_answer < 1 || (int64_t)max_i64(1, c->runs) * c->task->n > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "%d runs, %d side by side, answers of %lld tokens; expected 0 or more, 0 or more, 1 or more",
                        c->runs, c->batch, (long long)c->max_answer);
    return ebb_sampling_check(&c->sampling, error);
}

ebb_status eval_answers_watched(ebb_model *model, const ebb_eval_config *config, const eval_watch *watch,
                                ebb_eval_answer *answers, ebb_usage *usage, ebb_error *error) {
    if (!model || !config || !answers)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "answers need a model, a configuration and a place to go");
    ebb_status status = check(config, error);
    if (status) return status;
    eval_run r = {
        .c = config, .watch = watch, .tokenizer = ebb_model_tokenizer(model), .answers = answers, .error = error};
    r.all = (config->runs ? config->runs : 1) * config->task->n;
    const int32_t batch = (int32_t)min_i64(config->batch ? config->batch : 1, r.all);
    for (int32_t i = 0; i < r.all; i++) answers[i] = (ebb_eval_answer){.first_error = -1};
    r.running = calloc((size_t)batch, sizeof *r.running);
    r.ids = calloc((size_t)batch, sizeof *r.ids);
    if (!r.running || !r.ids) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for %d answers", batch);
    if (!status) status = open_engine(&r, model, batch);
    if (!status) status = answer_all(&r, batch);
    if (!status && usage) ebb_engine_usage(r.engine, -1, usage);
    ebb_engine_close(r.engine);
    free(r.running), free(r.ids);
    for (int32_t i = 0; i < r.all && status; i++) {
        free(answers[i].text);
        answers[i].text = NULL;
    }
    return status;
}

ebb_status ebb_eval_answers(ebb_model *model, const ebb_eval_config *config, ebb_eval_answer *answers, ebb_usage *usage,
                            ebb_error *error) {
    return eval_answers_watched(model, config, NULL, answers, usage, error);
}
