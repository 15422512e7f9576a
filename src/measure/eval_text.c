/* measure/eval_text.c: a text foretold by a model whose memory is stored in some way, against the same in FP32; and the
 * error that storing a state once injects (ebb/measure.h). Called by programs.
 *
 * The generated tokens of a text are known, so they go in steps of up to EBB_MAX_NEW, which gives the bits of as many
 * steps of one. */
#include "measure/collect.h"
#include "measure/eval_int.h"
#include "measure/kvcheck_int.h"
#include "measure/roundtrip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 512, K = 20 };

/* ---- logits of a token ---- */

/* log of the sum of e^logit. */
static double log_total(const float *row, int32_t vocab) {
    double total = 0;
    float most = row[0];
    for (int32_t i = 1; i < vocab; i++) most = row[i] > most ? row[i] : most;
    for (int32_t i = 0; i < vocab; i++) total += exp((double)(row[i] - most));
    return (double)most + log(total);
}

/* The k largest, by falling logit, the lower id first among equals. */
static void likeliest(const float *row, int32_t vocab, int32_t k, int32_t *top) {
    int32_t n = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (n == k && !(row[id] > row[top[n - 1]])) continue;
        int32_t at = n < k ? n++ : n - 1;
        for (; at > 0 && row[id] > row[top[at - 1]]; at--) top[at] = top[at - 1];
        top[at] = id;
    }
}

/* KL of the row from the reference, over the reference's likeliest tokens and a class of all others. */
static double divergence(const float *row, double total, const ebb_foretold *reference, int64_t t) {
    double kl = 0, p_all = 0, q_all = 0;
    for (int32_t i = 0; i < reference->k; i++) {
        const double log_p = (double)reference->top_logp[t * reference->k + i],
                     log_q = (double)row[reference->top[t * reference->k + i]] - total;
        kl += exp(log_p) * (log_p - log_q);
        p_all += exp(log_p), q_all += exp(log_q);
    }
    const double p = 1 - p_all, q = fmax(1 - q_all, 1e-12);
    return p > 1e-12 ? kl + p * log(p / q) : kl;
}

static void note(ebb_foretold *f, const ebb_foretold *reference, const float *row, int32_t vocab, int64_t t,
                 int32_t next) {
    const double total = log_total(row, vocab);
    f->logp[t] = (float)((double)row[next] - total);
    likeliest(row, vocab, f->k, f->top + t * f->k);
    for (int32_t i = 0; i < f->k; i++) f->top_logp[t * f->k + i] = (float)((double)row[f->top[t * f->k + i]] - total);
    if (reference) f->kl[t] = (float)divergence(row, total, reference, t);
}

/* ---- the pass ---- */

typedef struct pass {
    const ebb_foretell_config *c;
    const ebb_model_info *info;
    ebb_layout *layout;
    ebb_state_pool *state;
    ebb_kv_pool *kv;
    ebb_runner *runner;
    int64_t piece; /* of the prompt */
    float *logits; /* [most tokens of a forward][vocab] */
    int64_t *want;
    ebb_foretold *f;
} pass;

static ebb_status open_state(pass *p, ebb_model *model, ebb_error *error) {
    const ebb_eval_store *s = &p->c->store;
    ebb_state_spec spec;
    if (!p->info->state_layers) {
        if (!s->state) return EBB_OK;
        return ebb_fail(error, EBB_BAD_ARGUMENT, "state method %s is given, but this model has no recurrent layers",
                        s->state);
    }
    ebb_status status = ebb_state_parse(s->state ? s->state : "fp32", &spec, error);
    if (!status) status = ebb_model_layout(model, spec.method, s->layout, &p->layout, error);
    if (status) return status;
    spec.layout = p->layout;
    const ebb_state_pool_config c = {.size = sizeof c,
                                     .spec = &spec,
                                     .layers = ebb_model_state_layers(model),
                                     .n_layers = p->info->state_layers,
                                     .slots = 1,
                                     .max_new = EBB_MAX_NEW};
    status = ebb_state_pool_open(ebb_model_device(model), &c, &p->state, error);
    if (!status) ebb_state_pool_slot_bytes(p->state, &p->f->state_packed, &p->f->state_live);
    return status;
}

/* A prompt that is cut gives other bits where its vertical keys, or its rounding, depend on all of it. */
static ebb_status open_kv(pass *p, ebb_model *model, ebb_error *error) {
    const ebb_eval_store *s = &p->c->store;
    const ebb_kv_choice choice = {s->kv, s->prefill, s->kv_bits};
    kv_opened kv = {0};
    p->piece = min_i64(max_i64(p->c->prompt, 1), PIECE);
    if (!p->info->kv_layers) return EBB_OK;
    ebb_status status = kv_choice_open(&choice, p->info->kv_layers, &kv, error);
    ebb_kv_spec spec = kv.spec;
    if (kv.bits) spec.bits = kv.bits, spec.n_bits = p->info->kv_layers;
    const ebb_kv_pool_config c = {.size = sizeof c,
                                  .spec = &spec,
                                  .layers = ebb_model_kv_layers(model),
                                  .n_layers = p->info->kv_layers,
                                  .slots = 1,
                                  .max_tokens = p->c->tokens,
                                  .max_new = EBB_MAX_NEW,
                                  .prefill = &kv.prefill};
    if (!status) status = ebb_kv_pool_open(ebb_model_device(model), &c, &p->kv, error);
    if (!status) status = ebb_kv_pool_reserve(p->kv, 0, p->c->tokens, error);
    if (!status) {
        const ebb_kv_view *v = ebb_kv_pool_view(p->kv, 0);
        if (v->rule.select >= EBB_SELECT_PROMPT || v->prefill.select >= EBB_SELECT_PROMPT)
            p->piece = max_i64(p->c->prompt, 1);
    }
    free(kv.bits);
    return status;
}

static ebb_status open_result(pass *p, ebb_error *error) {
    const size_t n = (size_t)p->c->tokens - 1;
    size_t all;
    ebb_foretold *f = p->f = calloc(1, sizeof *f);
    if (!f) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a text of %zu tokens", n + 1);
    f->n = (int64_t)n;
    f->k = (int32_t)min_i64(p->c->k ? p->c->k : K, p->info->vocab);
    f->logp = calloc(n, sizeof *f->logp);
    if (p->c->reference) f->kl = calloc(n, sizeof *f->kl);
    if (size_mul(n, (size_t)f->k, &all)) {
        f->top = calloc(all, sizeof *f->top);
        f->top_logp = calloc(all, sizeof *f->top_logp);
    }
    if (!f->logp || (p->c->reference && !f->kl) || !f->top || !f->top_logp)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d likeliest tokens of %zu", f->k, n + 1);
    return EBB_OK;
}

static ebb_status open_pass(pass *p, ebb_model *model, ebb_error *error) {
    ebb_status status = open_result(p, error);
    if (!status) status = open_state(p, model, error);
    if (!status) status = open_kv(p, model, error);
    if (status) return status;
    const int64_t most = max_i64(p->piece, EBB_MAX_NEW);
    size_t bytes;
    p->want = calloc((size_t)most, sizeof *p->want);
    if (size_mul((size_t)most, (size_t)p->info->vocab * sizeof *p->logits, &bytes)) p->logits = aligned_new(bytes);
    if (!p->want || !p->logits)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the logits of %lld tokens", (long long)most);
    for (int64_t i = 0; i < most; i++) p->want[i] = i;
    const ebb_runner_config c = {.size = sizeof c,
                                 .state = p->state,
                                 .kv = p->kv,
                                 .max_seqs = 1,
                                 .max_new = EBB_MAX_NEW,
                                 .max_tokens = most,
                                 .algorithm = p->c->algorithm};
    return ebb_runner_open(model, &c, &p->runner, error);
}

static ebb_status feed(pass *p, int64_t pos, int64_t n, ebb_pass kind, ebb_error *error) {
    const int32_t slot = 0, cu[] = {0, (int32_t)n};
    const ebb_batch b = {.seqs = 1, .tokens = n, .slot = &slot, .cu = cu, .pos = &pos};
    const int64_t known = min_i64(n, p->f->n - pos); /* what follows the last token is not known */
    ebb_status status = ebb_forward(p->runner, kind, &b, p->c->ids + pos, p->want, known, p->logits, error);
    for (int64_t t = 0; t < known && !status; t++)
        note(p->f, p->c->reference, p->logits + t * p->info->vocab, p->info->vocab, pos + t, p->c->ids[pos + t + 1]);
    return status;
}

static ebb_status run_text(pass *p, ebb_error *error) {
    const ebb_progress *watch = &p->c->progress;
    ebb_status status = EBB_OK;
    for (int64_t pos = 0, n; pos < p->c->tokens && !status; pos += n) {
        const bool step = pos >= p->c->prompt;
        n = step ? min_i64(EBB_MAX_NEW, p->c->tokens - pos) : min_i64(p->piece, p->c->prompt - pos);
        if (watch->report && !watch->report(watch->ctx, "text", pos, p->c->tokens))
            return ebb_fail(error, EBB_INTERRUPTED, "interrupted after %lld of %lld tokens", (long long)pos,
                            (long long)p->c->tokens);
        status = feed(p, pos, n, step ? EBB_STEP : EBB_PREFILL, error);
    }
    return status;
}

static ebb_status check(const ebb_model *model, const ebb_foretell_config *c, ebb_error *error) {
    const ebb_model_info *info = ebb_model_describe(model);
    if (c->size != sizeof *c)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_foretell_config.size is %zu, this library expects %zu", c->size,
                        sizeof *c);
    if (!c->ids || c->tokens < 2 || c->tokens > info->max_position || c->tokens > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a text of %lld tokens, expected 2 to %lld, the model's own limit",
                        (long long)c->tokens, (long long)info->max_position);
    if (c->prompt < 0 || c->prompt >= c->tokens || c->k < 0 || c->k > 1000)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "a prompt of %lld tokens of %lld and %d likeliest: expected 0 to one less, and 0 to 1000",
                        (long long)c->prompt, (long long)c->tokens, c->k);
    if (c->reference && c->reference->n != c->tokens - 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a reference of %lld tokens for a text of %lld",
                        (long long)c->reference->n + 1, (long long)c->tokens);
    return EBB_OK;
}

ebb_status ebb_foretell(ebb_model *model, const ebb_foretell_config *config, ebb_foretold **foretold,
                        ebb_error *error) {
    if (!model || !config || !foretold)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a text needs a model, a configuration and a place to go");
    *foretold = NULL;
    ebb_status status = check(model, config, error);
    if (status) return status;
    pass p = {.c = config, .info = ebb_model_describe(model)};
    status = open_pass(&p, model, error);
    if (!status) status = run_text(&p, error);
    if (!status) {
        if (p.kv) p.f->kv = ebb_kv_pool_slot_bytes(p.kv, 0);
        snprintf(p.f->rows, sizeof p.f->rows, "%s", ebb_runner_rows(p.runner));
    }
    ebb_runner_close(p.runner);
    ebb_kv_pool_close(p.kv);
    ebb_state_pool_close(p.state);
    ebb_layout_free(p.layout);
    free(p.logits), free(p.want);
    if (!status) *foretold = p.f;
    else ebb_foretold_free(p.f);
    return status;
}

void ebb_foretold_free(ebb_foretold *f) {
    if (!f) return;
    free(f->logp), free(f->top), free(f->top_logp), free(f->kl);
    free(f);
}

/* ---- the error that is injected ---- */

typedef struct injecting {
    const ebb_state_layer *layers;
    roundtrip store;
    float *stored; /* one layer */
    double error, norm;
    int64_t heads; /* seen, over all states */
    ebb_injected *out;
} injecting;

static ebb_status on_state(void *ctx, const document *d, int32_t place, int32_t layer, int32_t stop, int64_t pos,
                           const float *S, ebb_error *error) {
    (void)d, (void)place, (void)stop, (void)pos;
    injecting *in = ctx;
    const ebb_state_layer *l = &in->layers[layer];
    const size_t n = (size_t)l->key_dim * (size_t)l->value_dim;
    ebb_status status = roundtrip_layer(&in->store, layer, S, in->stored, error);
    for (size_t h = 0; h < (size_t)l->heads && !status; h++, in->heads++) {
        double apart = 0, norm = 0;
        for (size_t i = h * n; i < (h + 1) * n; i++) {
            const double x = (double)S[i], e = (double)in->stored[i] - x;
            apart += e * e, norm += x * x;
        }
        const double relative = norm > 0 ? sqrt(apart / norm) : 0;
        in->out->mean += relative;
        if (!(relative <= in->out->worst)) in->out->worst = relative;
        in->error += apart, in->norm += norm;
    }
    if (layer == 0) in->out->states++;
    return status;
}

/* What collect.c reports is not a calibration here. */
static bool on_progress(void *ctx, const char *what, int64_t done, int64_t total) {
    const ebb_progress *p = ctx;
    (void)what;
    return !p->report || p->report(p->ctx, "injected", done, total);
}

static void no_decay(void *ctx, const document *d, int32_t place, int32_t layer, int64_t pos, const float *g) {
    (void)ctx, (void)d, (void)place, (void)layer, (void)pos, (void)g;
}
static void no_settle(void *ctx, const document *d, int32_t place, int64_t pos) {
    (void)ctx, (void)d, (void)place, (void)pos;
}
static void no_end(void *ctx, const document *d, int32_t place) { (void)ctx, (void)d, (void)place; }

static ebb_status open_injecting(injecting *in, ebb_model *model, const ebb_eval_store *store, const char *algorithm,
                                 ebb_layout **layout, ebb_error *error) {
    ebb_state_spec spec;
    size_t most = 0;
    in->layers = ebb_model_state_layers(model);
    for (int32_t i = 0; i < ebb_model_describe(model)->state_layers; i++) {
        const ebb_state_layer *l = &in->layers[i];
        const size_t values = (size_t)l->heads * (size_t)l->key_dim * (size_t)l->value_dim;
        if (values > most) most = values;
    }
    if (!most)
        return ebb_fail(error, EBB_UNSUPPORTED, "this model has no recurrent layers, so storing injects no error");
    if (!(in->stored = aligned_new(most * sizeof *in->stored)))
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the states of a layer");
    ebb_status status = ebb_state_parse(store->state ? store->state : "fp32", &spec, error);
    if (!status) status = ebb_model_layout(model, spec.method, store->layout, layout, error);
    spec.layout = *layout;
    return status ? status : roundtrip_open(&in->store, model, &spec, algorithm, error);
}

ebb_status ebb_injected_error(ebb_model *model, const ebb_eval_store *store, const char *algorithm, const int32_t *ids,
                              int64_t tokens, int64_t every, ebb_progress progress, ebb_injected *injected,
                              ebb_error *error) {
    if (!model || !store || !ids || !injected || tokens < 1 || every < 1 || every > tokens ||
        tokens / every > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a state every %lld of %lld tokens: expected 1 to all of them",
                        (long long)every, (long long)tokens);
    injecting in = {.out = injected};
    ebb_layout *layout = NULL;
    collector *c = NULL;
    const int32_t n = (int32_t)(tokens / every);
    int64_t *stops = calloc((size_t)n, sizeof *stops);
    document text = {
        .ids = (int32_t *)(uintptr_t)ids, .known = tokens, .weight = 1, .by = &EBB_GREEDY}; /* not written */
    const visitor v = {&in, no_decay, on_state, no_settle, no_end};
    *injected = (ebb_injected){0};
    ebb_status status = stops ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for %d positions", n);
    for (int32_t i = 0; stops && i < n; i++) stops[i] = (i + 1) * every;
    if (!status) status = open_injecting(&in, model, store, algorithm, &layout, error);
    const collect_config config = {.model = model,
                                   .algorithm = algorithm,
                                   .length = tokens,
                                   .batch = 1,
                                   .stops = stops,
                                   .n_stops = n,
                                   .progress = {&progress, on_progress},
                                   .total = tokens};
    if (!status) status = collect_open(&config, &c, error);
    if (!status) status = collect_run(c, &text, 1, NULL, &v, error);
    if (status == EBB_INTERRUPTED) ebb_fail(error, status, "interrupted before all states were stored");
    if (!status && in.heads) {
        injected->mean /= (double)in.heads;
        injected->rms = in.norm > 0 ? sqrt(in.error / in.norm) : 0;
    }
    collect_close(c);
    roundtrip_close(&in.store);
    ebb_layout_free(layout);
    free(stops), free(in.stored);
    return status;
}
