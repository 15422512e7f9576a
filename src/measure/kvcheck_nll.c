/* measure/kvcheck_nll.c: how well a model foretells a text over a KV store, and the statistics of paired comparisons.
 * Called by programs. */
#include "measure/kvcheck_int.h"

#include <math.h>
#include <stdlib.h>

enum { PIECE = 512 };

/* -log of the share of `id` in the softmax of a row. */
static float surprise(const float *row, int32_t vocab, int32_t id) {
    double total = 0;
    float most = row[0];
    for (int32_t i = 1; i < vocab; i++) most = row[i] > most ? row[i] : most;
    for (int32_t i = 0; i < vocab; i++) total += exp((double)(row[i] - most));
    return (float)(log(total) - (double)(row[id] - most));
}

static ebb_status feed(ebb_runner *runner, const ebb_kvcheck_config *c, int32_t vocab, int64_t pos, int64_t n,
                       ebb_pass pass, const int64_t *want, float *logits, float *nll, ebb_error *error) {
    const int32_t slot = 0, cu[] = {0, (int32_t)n};
    const ebb_batch b = {.seqs = 1, .tokens = n, .slot = &slot, .cu = cu, .pos = &pos};
    const int64_t known = min_i64(n, c->tokens - 1 - pos); /* what follows the last token is not known */
    ebb_status status = ebb_forward(runner, pass, &b, c->ids + pos, want, known, logits, error);
    for (int64_t t = 0; t < known && !status; t++)
        nll[pos + t] = surprise(logits + t * vocab, vocab, c->ids[pos + t + 1]);
    return status;
}

/* A prompt that is cut gives other bits where its vertical keys, or its rounding, depend on all of it. */
static ebb_status piece_of(ebb_model *model, const ebb_kvcheck_config *c, const kv_opened *kv, int64_t *piece,
                           ebb_error *error) {
    ebb_kv_pool *pool = NULL;
    ebb_status status =
        kv_choice_pool(ebb_model_device(model), kv, ebb_model_kv_layers(model), 1, 0, EBB_GRID, &pool, error);
    if (status) return status;
    const ebb_kv_view *v = ebb_kv_pool_view(pool, 0);
    const bool whole = v->rule.select >= EBB_SELECT_PROMPT || v->prefill.select >= EBB_SELECT_PROMPT;
    *piece = whole ? c->tokens : min_i64(c->tokens, PIECE);
    ebb_kv_pool_close(pool);
    return EBB_OK;
}

static ebb_status run_text(ebb_runner *runner, const ebb_kvcheck_config *c, int32_t vocab, int64_t piece, float *nll,
                           ebb_error *error) {
    const int64_t prompt = c->tokens - c->steps;
    ebb_status status = EBB_OK;
    size_t bytes;
    float *logits = NULL;
    int64_t *want = calloc((size_t)piece, sizeof *want);
    if (size_mul((size_t)piece, (size_t)vocab * sizeof *logits, &bytes)) logits = aligned_new(bytes);
    if (!want || !logits)
        status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the logits of %lld tokens", (long long)piece);
    for (int64_t t = 0; t < piece && !status; t++) want[t] = t;
    for (int64_t pos = 0, n; pos < c->tokens && !status; pos += n) {
        const bool step = pos >= prompt;
        const ebb_progress *p = &c->progress;
        n = step ? 1 : min_i64(piece, prompt - pos);
        if (p->report && !p->report(p->ctx, "text", pos, c->tokens))
            status = ebb_fail(error, EBB_INTERRUPTED, "interrupted after %lld of %lld tokens", (long long)pos,
                              (long long)c->tokens);
        if (!status) status = feed(runner, c, vocab, pos, n, step ? EBB_STEP : EBB_PREFILL, want, logits, nll, error);
    }
    free(want), free(logits);
    return status;
}

ebb_status ebb_kvcheck_nll(ebb_model *model, const ebb_kvcheck_config *config, float *nll, size_t *bytes,
                           ebb_error *error) {
    if (!model || !config || !nll || !bytes || config->n_stores < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a text needs a model, a configuration with a store, and a place");
    ebb_status status = kvcheck_config_check(model, config, error);
    if (status) return status;
    const ebb_model_info *info = ebb_model_describe(model);
    kv_opened kv;
    kvcheck_model m = {0};
    int64_t piece = 0;
    status = kv_choice_open(&config->stores[0], info->kv_layers, &kv, error);
    if (!status) status = piece_of(model, config, &kv, &piece, error);
    if (!status) status = kvcheck_open(model, config, &kv, piece, (ebb_tap){0}, &m, error);
    if (!status) status = run_text(m.runner, config, info->vocab, piece, nll, error);
    if (!status) *bytes = ebb_kv_pool_slot_bytes(m.kv, 0);
    kvcheck_close(&m);
    free(kv.bits);
    return status;
}

/* ---- statistics ---- */

#define Z95 1.959963984540054

void ebb_paired(const float *a, const float *b, int64_t n, double *mean, double *half) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)b[i] - (double)a[i];
    *mean = n > 0 ? sum / (double)n : 0;
    for (int64_t i = 0; i < n; i++) {
        const double apart = (double)b[i] - (double)a[i] - *mean;
        squares += apart * apart;
    }
    *half = n > 1 ? Z95 * sqrt(squares / (double)(n - 1) / (double)n) : INFINITY;
}

void ebb_wilson(int64_t right, int64_t n, double *low, double *high) {
    const double z2 = Z95 * Z95, m = (double)n, p = n > 0 ? (double)right / m : 0;
    *low = 0, *high = 1;
    if (n < 1) return;
    const double middle = (p + z2 / (2 * m)) / (1 + z2 / m),
                 half = Z95 / (1 + z2 / m) * sqrt(p * (1 - p) / m + z2 / (4 * m * m));
    *low = middle - half > 0 ? middle - half : 0;
    *high = middle + half < 1 ? middle + half : 1;
}
