/* server/prefix.c: the prefix cache of the server (prefix.h). Called by loop.c. */
#include "server/prefix.h"
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

typedef struct checkpoint {
    int32_t *tokens; /* [n] */
    int64_t n;
    int32_t sequence;
    size_t bytes;
    uint64_t used; /* the clock when it was of use last */
    int32_t hits;
    bool continued; /* a longer one begins with it */
} checkpoint;

struct prefix_cache {
    ebb_engine *engine;
    checkpoint *all; /* [most], n of them */
    int32_t n, most;
    size_t budget, bytes;
    uint64_t clock;
    int64_t evictions;
};

prefix_cache *prefix_new(ebb_engine *engine, int32_t most, size_t budget) {
    prefix_cache *c = calloc(1, sizeof *c);
    if (c) *c = (prefix_cache){.engine = engine, .most = most, .budget = budget};
    if (c) c->all = calloc((size_t)most + 1, sizeof *c->all);
    if (c && c->all) return c;
    free(c);
    return NULL;
}

static void drop(prefix_cache *c, int32_t i) {
    ebb_sequence_close(c->engine, c->all[i].sequence);
    free(c->all[i].tokens);
    c->bytes -= c->all[i].bytes;
    c->all[i] = c->all[--c->n];
}

void prefix_free(prefix_cache *c) {
    if (!c) return;
    while (c->n) drop(c, c->n - 1);
    free(c->all);
    free(c);
}

/* ---- finding ---- */

static int64_t common(const checkpoint *k, const int32_t *ids, int64_t n) {
    const int64_t most = min_i64(k->n, n);
    int64_t i = 0;
    while (i < most && k->tokens[i] == ids[i]) i++;
    return i;
}

int64_t prefix_find(prefix_cache *c, const int32_t *ids, int64_t n, int32_t *sequence) {
    checkpoint *best = NULL;
    for (int32_t i = 0; i < c->n; i++) {
        checkpoint *k = &c->all[i];
        if (k->n < n && (!best || k->n > best->n) && common(k, ids, n) == k->n) best = k;
    }
    if (!best) return 0;
    best->used = ++c->clock;
    best->hits++;
    *sequence = best->sequence;
    return best->n;
}

int64_t prefix_branch(const prefix_cache *c, const int32_t *ids, int64_t n) {
    int64_t most = 0;
    for (int32_t i = 0; i < c->n; i++) most = max_i64(most, common(&c->all[i], ids, n - 1));
    return most / EBB_GRID * EBB_GRID;
}

/* ---- keeping ---- */

/* Tokens that a byte saves, the less the longer nobody asked for them. A conversation that went on comes back to its
 * longest prefix: an earlier one that served it alone is of little use. */
static double worth(const prefix_cache *c, const checkpoint *k) {
    const double share = k->continued && k->hits < 2 ? 0.1 : 1;
    return share * (double)k->n / (double)k->bytes / (double)(c->clock - k->used + 1);
}

/* Room for one more of `bytes`; false: it is larger than the budget. */
static bool make_room(prefix_cache *c, size_t bytes) {
    if (bytes > c->budget || !c->most) return false;
    while (c->n == c->most || c->bytes + bytes > c->budget) {
        int32_t least = 0;
        for (int32_t i = 1; i < c->n; i++)
            if (worth(c, &c->all[i]) < worth(c, &c->all[least])) least = i;
        drop(c, least);
        c->evictions++;
    }
    return true;
}

ebb_status prefix_keep(prefix_cache *c, int32_t sequence, const int32_t *ids, int64_t n, ebb_error *error) {
    ebb_usage usage;
    checkpoint k = {.n = n};
    for (int32_t i = 0; i < c->n; i++)
        if (c->all[i].n == n && common(&c->all[i], ids, n) == n) return EBB_OK;
    ebb_engine_usage(c->engine, sequence, &usage);
    k.bytes = usage.state_packed + usage.state_live + usage.kv + (size_t)n * sizeof *k.tokens;
    if (!make_room(c, k.bytes)) return EBB_OK;
    k.tokens = malloc((size_t)n * sizeof *k.tokens);
    if (!k.tokens) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the tokens of a checkpoint");
    memcpy(k.tokens, ids, (size_t)n * sizeof *k.tokens);
    const ebb_status status = ebb_sequence_fork(c->engine, sequence, &k.sequence, error);
    if (status) {
        free(k.tokens);
        return status;
    }
    ebb_sequence_forget(c->engine, k.sequence);
    for (int32_t i = 0; i < c->n; i++)
        c->all[i].continued |= c->all[i].n < n && common(&c->all[i], ids, n) == c->all[i].n;
    k.used = ++c->clock;
    c->bytes += k.bytes;
    c->all[c->n++] = k;
    return EBB_OK;
}

prefix_stats prefix_now(const prefix_cache *c) {
    return c ? (prefix_stats){.checkpoints = c->n, .evictions = c->evictions, .bytes = c->bytes} : (prefix_stats){0};
}

/* ---- methods ---- */

const char *prefix_refuse(const ebb_model *model, const char *kv, const char *prefill) {
    const ebb_kv_layer *layers = ebb_model_kv_layers(model);
    ebb_kv_spec spec;
    ebb_prefill mode;
    ebb_kv_rule rule;
    ebb_planes planes;
    if (!ebb_model_describe(model)->kv_layers) return NULL;
    if (ebb_kv_parse(kv ? kv : "bf16", &spec, NULL) || ebb_kv_prefill(&spec, &mode, NULL) ||
        (prefill && ebb_prefill_parse(prefill, &mode, NULL)) ||
        spec.method->codec->layout(&layers[0], spec.param, &rule, &planes, NULL))
        return "the KV method is not understood";
    if (!rule.pure || mode.select >= EBB_SELECT_PROMPT) return "what this KV method keeps depends on the whole prompt";
    return spec.method->codec->rewrite ? "this KV method rewrites what it holds when a prompt ends" : NULL;
}
