/* engine/engine.c: sequences over one model and one pair of stores. Called by programs and servers. A step is plan
 * (which sequences, which tokens), forward, collect (sample, advance positions): positions advance only after the
 * forward of all layers succeeded, so a failed step can be repeated. */
#include "engine/engine_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static ebb_status fill_config(ebb_engine *e, const ebb_engine_config *config, ebb_error *error) {
    ebb_engine_config *c = &e->config;
    *c = *config;
    if (c->state && !e->info->state_layers)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "state method %s is given, but this model has no recurrent layers",
                        c->state);
    if (!c->state) c->state = "fp32";
    if (!c->kv) c->kv = "bf16";
    if (!c->max_seqs) c->max_seqs = 1;
    if (!c->max_new) c->max_new = 1;
    if (!c->max_tokens) c->max_tokens = min_i64(4096, e->info->max_position);
    if (!c->prefill_tokens) c->prefill_tokens = 2 * EBB_GRID;
    if (c->max_seqs < 1 || c->max_seqs > 65536)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "max_seqs = %d, expected 1 to 65536", c->max_seqs);
    if (c->max_tokens < 1 || c->max_tokens > e->info->max_position)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a context of %lld tokens, expected 1 to %lld, the model's own limit",
                        (long long)c->max_tokens, (long long)e->info->max_position);
    if (c->prefill_tokens < EBB_GRID || c->prefill_tokens % EBB_GRID || c->prefill_tokens > 1 << 20)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "prefill_tokens = %lld, expected a multiple of %d up to 2^20",
                        (long long)c->prefill_tokens, EBB_GRID);
    if (c->layout && !e->info->state_layers)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s is given, but this model has no recurrent layers", c->layout);
    if (c->max_new < 1 || c->max_new > EBB_MAX_NEW)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "max_new = %d, expected 1 to %d", c->max_new, EBB_MAX_NEW);
    return EBB_OK;
}

static ebb_status parse_kv(ebb_engine *e, ebb_error *error) {
    const ebb_engine_config *c = &e->config;
    ebb_status status = ebb_kv_parse(c->kv, &e->kv_spec, error);
    if (!status) status = ebb_kv_prefill(&e->kv_spec, &e->prefill, error);
    if (!status && c->prefill) status = ebb_prefill_parse(c->prefill, &e->prefill, error);
    if (status || (!c->kv_bits && !c->prefill)) return status;
    if (!e->info->kv_layers)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s is given, but this model has no attention layers",
                        c->prefill ? c->prefill : c->kv_bits);
    if (!c->kv_bits) return EBB_OK;
    status = ebb_kv_bits_read(c->kv_bits, e->info->kv_layers, &e->kv_bits, error);
    e->kv_spec.bits = e->kv_bits;
    e->kv_spec.n_bits = e->info->kv_layers;
    return status;
}

/* What depends on a whole prompt is said aloud, and such a prompt is not cut. */
static void note_purity(ebb_engine *e) {
    char sentence[240];
    const ebb_kv_view *v = ebb_kv_pool_view(e->kv, 0);
    e->whole_prompts = v->rule.select >= EBB_SELECT_PROMPT || v->prefill.select >= EBB_SELECT_PROMPT;
    if (!e->whole_prompts && v->rule.pure) return;
    if (e->whole_prompts)
        e->config.prefill_tokens =
            max_i64(e->config.prefill_tokens, (e->config.max_tokens + EBB_GRID - 1) / EBB_GRID * EBB_GRID);
    snprintf(sentence, sizeof sentence,
             "KV method %s: what it keeps depends on the whole prompt: pages cannot be shared between sequences%s",
             e->config.kv, e->whole_prompts ? ", and a prompt goes through in one piece" : "");
    ebb_device_notice(ebb_model_device(e->model), sentence);
}

static ebb_status open_stores(ebb_engine *e, ebb_error *error) {
    ebb_device *device = ebb_model_device(e->model);
    ebb_status status;
    if ((status = ebb_state_parse(e->config.state, &e->state_spec, error)) || (status = parse_kv(e, error)))
        return status;
    if (e->info->state_layers) {
        status = ebb_model_layout(e->model, e->state_spec.method, e->config.layout, &e->layout, error);
        if (status) return status;
        e->state_spec.layout = e->layout;
        ebb_state_pool_config c = {.size = sizeof c,
                                   .spec = &e->state_spec,
                                   .layers = ebb_model_state_layers(e->model),
                                   .n_layers = e->info->state_layers,
                                   .slots = e->config.max_seqs,
                                   .max_new = e->config.max_new};
        if ((status = ebb_state_pool_open(device, &c, &e->state, error))) return status;
    }
    if (e->info->kv_layers) {
        ebb_kv_pool_config c = {.size = sizeof c,
                                .spec = &e->kv_spec,
                                .layers = ebb_model_kv_layers(e->model),
                                .n_layers = e->info->kv_layers,
                                .slots = e->config.max_seqs,
                                .max_tokens = e->config.max_tokens,
                                .max_new = e->config.max_new,
                                .prefill = &e->prefill};
        if ((status = ebb_kv_pool_open(device, &c, &e->kv, error))) return status;
        note_purity(e);
    }
    return EBB_OK;
}

/* Tokens of one forward: a prefill, or a step of every sequence. */
static int64_t forward_tokens(const ebb_engine *e) {
    return max_i64(e->config.prefill_tokens, (int64_t)e->config.max_seqs * e->config.max_new);
}

static bool open_arrays(ebb_engine *e) {
    const size_t n = (size_t)e->config.max_seqs, vocab = (size_t)e->info->vocab;
    size_t cells;
    if (!size_mul(n, vocab, &cells)) return false;
    e->seqs = calloc(n, sizeof *e->seqs);
    e->rows = calloc(cells, sizeof *e->rows);
    e->logits = calloc(cells, sizeof *e->logits);
    e->scratch = calloc(vocab, sizeof *e->scratch);
    e->batch_slot = calloc(n, sizeof *e->batch_slot);
    e->batch_cu = calloc(n + 1, sizeof *e->batch_cu);
    e->batch_pos = calloc(n, sizeof *e->batch_pos);
    e->want = calloc(n, sizeof *e->want);
    e->batch_ids = calloc((size_t)forward_tokens(e), sizeof *e->batch_ids);
    return e->seqs && e->rows && e->logits && e->scratch && e->batch_slot && e->batch_cu && e->batch_pos && e->want &&
           e->batch_ids;
}

ebb_status ebb_engine_open(ebb_model *model, const ebb_engine_config *config, ebb_engine **out, ebb_error *error) {
    static const ebb_engine_config preset = {.size = sizeof preset};
    if (!model || !out) return ebb_fail(error, EBB_BAD_ARGUMENT, "an engine needs a model and a place to go");
    if (!config) config = &preset;
    if (config->size != sizeof *config)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_engine_config.size is %zu, this library expects %zu",
                        config->size, sizeof *config);
    ebb_engine *e = calloc(1, sizeof *e);
    if (!e) return ebb_fail(error, EBB_NO_MEMORY, "no memory for an engine");
    e->model = model;
    e->info = ebb_model_describe(model);
    ebb_status status = fill_config(e, config, error);
    if (!status) status = open_stores(e, error);
    if (!status && !open_arrays(e))
        status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the logits of %d sequences", e->config.max_seqs);
    if (!status) {
        ebb_runner_config r = {.size = sizeof r,
                               .state = e->state,
                               .kv = e->kv,
                               .max_seqs = e->config.max_seqs,
                               .max_new = e->config.max_new,
                               .max_tokens = forward_tokens(e),
                               .algorithm = e->config.algorithm,
                               .tap = e->config.tap};
        status = ebb_runner_open(model, &r, &e->runner, error);
    }
    if (status) ebb_engine_close(e);
    else *out = e;
    return status;
}

void ebb_engine_close(ebb_engine *e) {
    if (!e) return;
    for (int32_t i = 0; e->seqs && i < e->config.max_seqs; i++) free(e->seqs[i].tokens);
    ebb_runner_close(e->runner);
    ebb_kv_pool_close(e->kv);
    ebb_state_pool_close(e->state);
    ebb_layout_free(e->layout);
    free(e->kv_bits);
    free(e->seqs), free(e->rows), free(e->logits), free(e->scratch);
    free(e->batch_slot), free(e->batch_cu), free(e->batch_pos), free(e->want), free(e->batch_ids);
    free(e);
}

const char *ebb_engine_rows(const ebb_engine *e) { return ebb_runner_rows(e->runner); }

bool ebb_engine_is_stop(const ebb_engine *e, int32_t token) {
    for (int32_t i = 0; i < e->info->n_stop; i++)
        if (e->info->stop[i] == token) return true;
    return false;
}

/* ---- sequences ---- */

ebb_status ebb_sequence_open(ebb_engine *e, const ebb_sampling *sampling, int32_t *id, ebb_error *error) {
    if (!e || !sampling || !id)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a sequence needs an engine, a sampling and a place to go");
    ebb_status status = ebb_sampling_check(sampling, error);
    if (status) return status;
    for (int32_t i = 0; i < e->config.max_seqs; i++) {
        if (e->seqs[i].open) continue;
        int32_t *tokens = malloc((size_t)e->config.max_tokens * sizeof *tokens);
        if (!tokens) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the tokens of a sequence");
        e->seqs[i] = (sequence){.open = true, .sampling = *sampling, .tokens = tokens, .produced = -1};
        *id = i;
        return EBB_OK;
    }
    return ebb_fail(error, EBB_NO_MEMORY, "all %d sequences of the engine are in use", e->config.max_seqs);
}

void ebb_sequence_close(ebb_engine *e, int32_t id) {
    sequence *s = sequence_find(e, id);
    if (!s) return;
    if (e->kv) ebb_kv_pool_release(e->kv, id);
    free(s->tokens);
    *s = (sequence){.produced = -1};
}

ebb_status ebb_sequence_append(ebb_engine *e, int32_t id, const int32_t *ids, int64_t count, ebb_error *error) {
    sequence *s = sequence_find(e, id);
    if (!s) return ebb_fail(error, EBB_BAD_ARGUMENT, "no open sequence %d", id);
    if (!ids || count < 1) return ebb_fail(error, EBB_BAD_ARGUMENT, "a prompt of 0 tokens, expected at least one");
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= e->info->vocab)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "prompt token %lld is %d, expected 0 to %d", (long long)i, ids[i],
                            e->info->vocab - 1);
    const bool keep = s->keep || (s->produced >= 0 && !ebb_engine_is_stop(e, s->produced));
    if (count > e->config.max_tokens - s->end - (keep && !s->keep))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a prompt of %lld tokens after %lld, but the context holds %lld",
                        (long long)count, (long long)s->end, (long long)e->config.max_tokens);
    if (keep && !s->keep) s->tokens[s->end++] = s->produced;
    s->keep = keep;
    s->produced = -1;
    memcpy(s->tokens + s->end, ids, (size_t)count * sizeof *ids);
    s->end += count;
    return EBB_OK;
}

int32_t ebb_sequence_token(const ebb_engine *e, int32_t id) {
    const sequence *s = sequence_find(e, id);
    return s ? s->produced : -1;
}
const float *ebb_sequence_logits(const ebb_engine *e, int32_t id) {
    const sequence *s = sequence_find(e, id);
    return s && !s->blank ? e->logits + (size_t)id * (size_t)e->info->vocab : NULL;
}
int64_t ebb_sequence_position(const ebb_engine *e, int32_t id) {
    const sequence *s = sequence_find(e, id);
    return s ? s->pos : 0;
}
int64_t ebb_sequence_room(const ebb_engine *e, int32_t id) {
    const sequence *s = sequence_find(e, id);
    return s ? e->config.max_tokens - s->end : 0;
}

void ebb_engine_usage(const ebb_engine *e, int32_t id, ebb_usage *usage) {
    *usage = e->total;
    if (e->state) ebb_state_pool_slot_bytes(e->state, &usage->state_packed, &usage->state_live);
    if (e->kv && sequence_find(e, id)) usage->kv = ebb_kv_pool_slot_bytes(e->kv, id);
}

/* ---- one forward: the batch under construction is in the engine's arrays ---- */

typedef struct pass {
    ebb_batch batch;
    int64_t n_want;
} pass;

static pass begin(const ebb_engine *e) {
    e->batch_cu[0] = 0;
    return (pass){.batch = {.slot = e->batch_slot, .cu = e->batch_cu, .pos = e->batch_pos}};
}

static ebb_status add(ebb_engine *e, pass *p, int32_t id, int64_t n, bool want, ebb_error *error) {
    sequence *s = &e->seqs[id];
    ebb_status status = e->kv ? ebb_kv_pool_reserve(e->kv, id, s->pos + n, error) : EBB_OK;
    if (status) return status;
    s->furthest = max_i64(s->furthest, s->pos + n); /* a pass that fails may have written there too */
    const int32_t i = p->batch.seqs++;
    memcpy(e->batch_ids + p->batch.tokens, s->tokens + s->pos, (size_t)n * sizeof *s->tokens);
    p->batch.tokens += n;
    e->batch_slot[i] = id;
    e->batch_pos[i] = s->pos;
    e->batch_cu[i + 1] = (int32_t)p->batch.tokens;
    if (want) e->want[p->n_want++] = p->batch.tokens - 1;
    return EBB_OK;
}

static void sample(ebb_engine *e, int32_t id, float *row) {
    sequence *s = &e->seqs[id];
    memcpy(e->logits + (size_t)id * (size_t)e->info->vocab, row, (size_t)e->info->vocab * sizeof *row);
    s->blank = false;
    s->produced = ebb_sample(&s->sampling, row, e->info->vocab, s->tokens, s->pos, s->pos, e->scratch);
}

/* Run the pass; on success advance positions and sample where logits were wanted. */
static ebb_status finish(ebb_engine *e, pass *p, ebb_pass kind, bool choose, ebb_error *error) {
    ebb_status status = ebb_forward(e->runner, kind, &p->batch, e->batch_ids, e->want, p->n_want, e->rows, error);
    if (status) return status;
    for (int32_t i = 0, row = 0; i < p->batch.seqs; i++) {
        const int32_t id = e->batch_slot[i];
        e->seqs[id].pos += e->batch_cu[i + 1] - e->batch_cu[i];
        if (kind == EBB_PREFILL) e->seqs[id].floor = e->seqs[id].pos;
        if (row < p->n_want && e->want[row] == e->batch_cu[i + 1] - 1) {
            if (choose) sample(e, id, e->rows + (size_t)row * (size_t)e->info->vocab);
            row++;
        }
    }
    return EBB_OK;
}

/* ---- prefill ---- */

/* Answer tokens that a new prompt follows are generated tokens: they enter by a step. */
static ebb_status commit_kept(ebb_engine *e, ebb_error *error) {
    pass p = begin(e);
    ebb_status status;
    for (int32_t id = 0; id < e->config.max_seqs; id++)
        if (e->seqs[id].open && e->seqs[id].keep && (status = add(e, &p, id, 1, false, error))) return status;
    if (!p.batch.seqs || (status = finish(e, &p, EBB_STEP, false, error))) return p.batch.seqs ? status : EBB_OK;
    for (int32_t i = 0; i < p.batch.seqs; i++) e->seqs[e->batch_slot[i]].keep = false;
    return EBB_OK;
}

static int64_t waiting(const ebb_engine *e) {
    int64_t n = 0;
    for (int32_t id = 0; id < e->config.max_seqs; id++) n += e->seqs[id].open ? e->seqs[id].end - e->seqs[id].pos : 0;
    return n;
}

/* Fill one forward: whole remainders, or up to a grid multiple, which is where a prompt may be cut without changing a
 * bit. */
static ebb_status plan_prefill(ebb_engine *e, pass *p, const int32_t *ids, int32_t n_ids, int64_t most,
                               ebb_error *error) {
    for (int32_t i = 0; i < n_ids; i++) {
        const int32_t id = ids ? ids[i] : i;
        const sequence *s = &e->seqs[id];
        int64_t left = s->open ? s->end - s->pos : 0, n = min_i64(left, most - p->batch.tokens);
        if (n < left) n = e->whole_prompts ? 0 : (s->pos + n) / EBB_GRID * EBB_GRID - s->pos;
        if (n <= 0) continue;
        ebb_status status = add(e, p, id, n, n == left, error);
        if (status) return status;
    }
    return EBB_OK;
}

ebb_status ebb_engine_prefill(ebb_engine *e, ebb_error *error) {
    if (!e) return ebb_fail(error, EBB_BAD_ARGUMENT, "no engine");
    const double start = seconds_now();
    const int64_t total = waiting(e);
    ebb_status status = commit_kept(e, error);
    while (!status && waiting(e)) {
        const ebb_progress *watch = &e->config.progress;
        if (watch->report && !watch->report(watch->ctx, "prompt", total - waiting(e), total)) {
            status = ebb_fail(error, EBB_INTERRUPTED, "the prompt was interrupted after %lld of %lld tokens",
                              (long long)(total - waiting(e)), (long long)total);
            break;
        }
        pass p = begin(e);
        status = plan_prefill(e, &p, NULL, e->config.max_seqs, e->config.prefill_tokens, error);
        if (!status) status = finish(e, &p, EBB_PREFILL, true, error);
    }
    if (!status && e->config.progress.report) e->config.progress.report(e->config.progress.ctx, "prompt", total, total);
    e->total.prompt_tokens += total - waiting(e);
    e->total.prompt_seconds += seconds_now() - start;
    return status;
}

ebb_status engine_prefill_some(ebb_engine *e, const int32_t *ids, int32_t n, int64_t tokens, ebb_error *error) {
    const double start = seconds_now();
    const int64_t most = e->whole_prompts ? e->config.prefill_tokens : min_i64(tokens, e->config.prefill_tokens);
    pass p = begin(e);
    ebb_status status = plan_prefill(e, &p, ids, n, most, error);
    if (!status && p.batch.seqs) status = finish(e, &p, EBB_PREFILL, true, error);
    if (!status) e->total.prompt_tokens += p.batch.tokens;
    e->total.prompt_seconds += seconds_now() - start;
    return status;
}

/* ---- decode ---- */

ebb_status ebb_engine_step(ebb_engine *e, const int32_t *ids, int32_t n, ebb_error *error) {
    if (!e || n < 0 || (n && !ids)) return ebb_fail(error, EBB_BAD_ARGUMENT, "a step needs an engine and sequences");
    if (n > e->config.max_seqs)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a step of %d sequences, the engine has %d", n, e->config.max_seqs);
    const double start = seconds_now();
    for (int32_t i = 0; i < n; i++) {
        const sequence *s = sequence_find(e, ids[i]);
        if (!s || s->produced < 0 || s->end != s->pos)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "sequence %d has no produced token to go on from", ids[i]);
        if (s->end >= e->config.max_tokens)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "sequence %d is at the end of its context of %lld tokens", ids[i],
                            (long long)e->config.max_tokens);
        for (int32_t j = 0; j < i; j++)
            if (ids[j] == ids[i])
                return ebb_fail(error, EBB_BAD_ARGUMENT, "sequence %d is named twice in one step", ids[i]);
    }
    pass p = begin(e);
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < n && !status; i++) {
        sequence *s = &e->seqs[ids[i]];
        s->tokens[s->pos] = s->produced; /* end stays: the token is committed only when the pass succeeds */
        status = add(e, &p, ids[i], 1, true, error);
    }
    if (!status) status = finish(e, &p, EBB_STEP, true, error);
    if (status) return status;
    for (int32_t i = 0; i < n; i++) e->seqs[ids[i]].end = e->seqs[ids[i]].pos;
    e->total.decode_tokens += n;
    e->total.decode_seconds += seconds_now() - start;
    return EBB_OK;
}
