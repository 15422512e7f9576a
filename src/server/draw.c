/* server/draw.c: drawing by rules, and log-probabilities (draw.h). Called by loop.c. */
#include "server/draw.h"
#include "core/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool drawing_open(drawing *d, ebb_model *model) {
    d->info = ebb_model_describe(model);
    d->tokenizer = ebb_model_tokenizer(model);
    d->logits = malloc((size_t)d->info->vocab * sizeof *d->logits);
    d->scratch = malloc((size_t)d->info->vocab * sizeof *d->scratch);
    return d->logits && d->scratch;
}

void drawing_close(drawing *d) { free(d->logits), free(d->scratch); }

/* ---- log-probabilities: ln of softmax ---- */

static double log_sum(const float *logits, int32_t n, double *most) {
    double sum = 0;
    *most = (double)logits[0];
    for (int32_t i = 1; i < n; i++) *most = fmax(*most, (double)logits[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - *most);
    return log(sum);
}

/* The k likeliest, best first; of equals the lowest id. */
static int32_t likeliest(const float *logits, int32_t n, int32_t k, token_logprob *top) {
    int32_t held = 0;
    for (int32_t i = 0; i < n; i++) {
        if (held == k && !(logits[i] > top[k - 1].logprob)) continue;
        int32_t at = held < k ? held++ : k - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--) top[at] = top[at - 1];
        top[at] = (token_logprob){i, logits[i]};
    }
    return held;
}

static bool add_logprobs(const float *logits, int32_t vocab, int32_t k, job_event *e) {
    double most;
    const double sum = log_sum(logits, vocab, &most);
    e->logprob = (float)((double)logits[e->token] - most - sum);
    if (!k) return true;
    e->top = calloc((size_t)k, sizeof *e->top);
    if (!e->top) return false;
    e->n_top = likeliest(logits, vocab, k, e->top);
    for (int32_t i = 0; i < e->n_top; i++) e->top[i].logprob = (float)((double)e->top[i].logprob - most - sum);
    return true;
}

/* ---- rules ---- */

static bool has_rules(const token_rules *r) {
    return r->masks || r->n_bias || r->presence != 0 || r->frequency != 0 || r->ignore_stop;
}

const char *draw_token(drawing *d, ebb_engine *engine, int32_t id, job_choice *c, const int32_t *tokens,
                       int64_t n_tokens, job_event *e, int32_t logprobs, ebb_error *error) {
    const float *logits = ebb_sequence_logits(engine, id);
    const int32_t vocab = d->info->vocab;
    if (has_rules(&c->rules)) {
        memcpy(d->logits, logits, (size_t)vocab * sizeof *logits);
        if (!rules_apply(&c->rules, d->info->stop, d->info->n_stop, d->logits, vocab)) return c->rules.failed;
        e->token = ebb_sample(&c->sampling, d->logits, vocab, tokens, n_tokens, n_tokens, d->scratch);
        if (ebb_sequence_choose(engine, id, e->token, error)) return error->text;
        if (!rules_took(&c->rules, d->tokenizer, e->token)) return c->rules.failed;
    }
    return logprobs < 0 || add_logprobs(logits, vocab, logprobs, e) ? NULL : "no memory for log-probabilities";
}
