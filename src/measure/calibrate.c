/* measure/calibrate.c: layouts from texts (ebb/measure.h): what is asked for, and which slices of the texts are run.
 * What is measured along them is in protocols.c. Called by programs. */
#include "core/core.h"
#include "measure/calibrate_int.h"
#include "state/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const protocol protocols[] = {
    {"damp", BY_ROWS, SELECT_PRODUCT, 8, 2, TABLES_KEYS, 1, 256, 0},
    {"damp-reorder", BY_CANDIDATES, SELECT_RISK, 12, 3, TABLES_KEYS | TABLES_VALUES, CANDIDATES, 1024, 4096},
    {"leap-mix", BY_BITS, SELECTORS, 8, 2, TABLES_BITS, BIT_CLASSES, 256, 0},
};

/* ---- what is asked for ---- */

static ebb_status find_protocol(run *r, ebb_error *error) {
    ebb_status status = ebb_state_parse(r->config.method ? r->config.method : "", &r->spec, error);
    if (status) return status;
    const char *name = ebb_state_layout_name(r->spec.method);
    for (int32_t i = 0; name && i < COUNT(protocols); i++)
        if (strcmp(name, protocols[i].layout) == 0) r->p = &protocols[i];
    if (!r->p)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s needs no calibration; damp, damp-reorder and leap-mix do",
                        r->spec.method->name);
    const int32_t rows = param_index(r->spec.method->codec->params, "rows");
    r->low = r->spec;
    if (rows >= 0) r->low.param[rows] = 0;
    r->by = r->p->own;
    if (!r->config.selector) return EBB_OK;
    if (r->p->kind == BY_BITS)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s ranks heads by how long they remember: no selector",
                        r->spec.method->name);
    return selector_find(r->config.selector, &r->by, error);
}

static ebb_status check_config(run *r, ebb_error *error) {
    ebb_calibrate_config *c = &r->config;
    const bool writes = r->p->kind == BY_CANDIDATES;
    if (r->info->state_layers < 1)
        return ebb_fail(error, EBB_UNSUPPORTED, "this model (%s) has no recurrent layers to calibrate for",
                        r->info->architecture);
    if (!c->domains || c->n_domains < 1 || c->n_domains > EBB_MAX_DOMAINS)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%d texts, expected 1 to %d", c->n_domains, EBB_MAX_DOMAINS);
    if (!c->documents) c->documents = r->p->documents;
    if (!c->tokens) c->tokens = r->p->tokens;
    if (!c->written) c->written = r->p->written;
    if (!c->batch) c->batch = 8;
    if (c->documents < r->p->parts || c->documents > 4096)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%d documents of a text, expected %d (one for each part) to 4096",
                        c->documents, r->p->parts);
    if (c->tokens < EVERY || c->tokens > 1 << 24)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "documents of %lld tokens, expected %d or more", (long long)c->tokens,
                        EVERY);
    if (!writes && (c->written || c->from_text))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s is calibrated on text alone, no token is written",
                        r->spec.method->name);
    if (writes && (c->written < 2 * HORIZON || c->written > 1 << 24))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%lld written tokens, expected %d or more", (long long)c->written,
                        2 * HORIZON);
    if (c->every < 0 || c->every > (writes ? c->written - HORIZON : c->tokens))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a state every %lld tokens, expected 1 to %lld: one in a document",
                        (long long)c->every, (long long)(writes ? c->written - HORIZON : c->tokens));
    if (c->batch < 1 || c->batch > 4096)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%d documents side by side, expected 1 to 4096", c->batch);
    return EBB_OK;
}

/* Are the decays that follow a state part of what is measured? */
static bool looks_ahead(const run *r) { return r->by == SELECT_RISK || r->p->kind != BY_ROWS; }

/* Lengths, and the positions where states are taken. */
static ebb_status plan_documents(run *r, ebb_error *error) {
    const ebb_calibrate_config *c = &r->config;
    const bool writes = r->p->kind == BY_CANDIDATES;
    r->length = c->tokens + (writes ? c->written : looks_ahead(r) ? HORIZON : 0);
    r->text = writes && !c->from_text ? c->tokens : r->length;
    if (r->length > r->info->max_position)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "documents of %lld tokens, the model takes %lld", (long long)r->length,
                        (long long)r->info->max_position);
    r->stops = calloc((size_t)r->length + 1, sizeof *r->stops);
    if (!r->stops) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the positions of a document");
    const int64_t every = c->every ? c->every : EVERY, last = r->length - (writes ? HORIZON : 0);
    if (!writes)
        for (int64_t pos = every; pos <= c->tokens; pos += every) r->stops[r->n_stops++] = pos;
    for (int64_t pos = c->tokens + every; writes && c->every && pos <= last; pos += every) r->stops[r->n_stops++] = pos;
    for (int64_t begin = c->tokens; writes && !c->every && begin < r->length; begin += WINDOW_STEP)
        for (int64_t pos = begin + HORIZON; pos < begin + WINDOW && pos <= last; pos += HORIZON)
            r->stops[r->n_stops++] = pos;
    return EBB_OK;
}

/* ---- documents: slices of the texts, drawn by the seed ---- */

static ebb_status add_domain(run *r, int32_t domain, ebb_error *error) {
    const ebb_calibrate_config *c = &r->config;
    const ebb_domain *d = &c->domains[domain];
    const int64_t slices = d->count / r->text;
    if (slices < c->documents)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s has %lld tokens; %d documents of %lld tokens need %lld",
                        d->name ? d->name : "a text", (long long)d->count, c->documents, (long long)r->text,
                        (long long)(c->documents * r->text));
    for (int64_t i = 0; i < d->count; i++)
        if (d->ids[i] < 0 || d->ids[i] >= r->info->vocab)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "%s: token %lld is %d, expected 0 to %d",
                            d->name ? d->name : "a text", (long long)i, d->ids[i], r->info->vocab - 1);
    int64_t *order = calloc((size_t)slices, sizeof *order); /* shuffled as far as needed */
    if (!order) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the slices of a text");
    for (int64_t i = 0; i < slices; i++) order[i] = i;
    for (int32_t i = 0; i < c->documents; i++) {
        const uint64_t key = mix64(mix64(c->seed) + (uint64_t)domain * 65537 + (uint64_t)i);
        const int64_t other = i + (int64_t)(key % (uint64_t)(slices - i)), taken = order[other];
        order[other] = order[i];
        document *doc = &r->documents[r->n];
        doc->domain = domain;
        doc->part = i % r->p->parts;
        doc->known = r->text;
        doc->by = &r->writing[r->n++];
        memcpy(doc->ids, d->ids + taken * r->text, (size_t)r->text * sizeof *doc->ids);
    }
    free(order);
    return EBB_OK;
}

static ebb_status open_documents(run *r, ebb_error *error) {
    const ebb_calibrate_config *c = &r->config;
    const size_t n = (size_t)c->documents * (size_t)c->n_domains;
    ebb_status status = EBB_OK;
    r->documents = calloc(n, sizeof *r->documents);
    r->writing = calloc(n, sizeof *r->writing);
    for (size_t i = 0; r->documents && r->writing && i < n && !status; i++) {
        r->writing[i] = (ebb_sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = mix64(c->seed + i)};
        r->documents[i].ids = calloc((size_t)r->length, sizeof *r->documents[i].ids);
        if (!r->documents[i].ids) status = EBB_NO_MEMORY;
    }
    if (!r->documents || !r->writing || status)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for %zu documents of %lld tokens", n, (long long)r->length);
    for (int32_t i = 0; i < c->n_domains && !status; i++) status = add_domain(r, i, error);
    for (int32_t i = 0; i < r->n && !status; i++) r->split[r->documents[i].part]++;
    for (int32_t i = 0; i < r->n && !status; i++) /* a part's weights sum to 1 */
        r->documents[i].weight = 1.0 / ((double)r->split[r->documents[i].part] * (r->n_stops ? r->n_stops : 1));
    return status;
}

/* ---- opening ---- */

static ebb_status open_result(run *r, ebb_error *error) {
    const size_t heads = (size_t)r->at.heads, domains = (size_t)r->config.n_domains;
    ebb_calibration *out = r->out = calloc(1, sizeof *out);
    if (!out) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a calibration");
    out->heads = r->at.heads;
    out->domains = r->config.n_domains;
    out->documents = r->config.documents;
    out->length = r->length;
    out->from_text = r->text;
    out->written = r->length - r->text;
    out->key_dim = r->at.most_rows;
    out->decay_spearman = NAN;
    const int32_t rows = param_index(r->spec.method->codec->params, "rows");
    if (rows >= 0) out->rows = (int32_t)fmin(r->spec.param[rows], r->at.most_rows);
    if (r->p->kind != BY_BITS) out->selector = selector_names[r->by];
    out->head = calloc(heads, sizeof *out->head);
    out->domain_decay = calloc(domains * heads, sizeof *out->domain_decay);
    out->domain_order = calloc(domains * domains, sizeof *out->domain_order);
    out->concentration = calloc((size_t)out->key_dim, sizeof *out->concentration);
    const size_t most = heads > (size_t)r->at.most_rows ? heads : (size_t)r->at.most_rows;
    r->choice = calloc(heads, sizeof *r->choice);
    r->score = calloc(most, sizeof *r->score);
    r->other = calloc(most, sizeof *r->other);
    r->ranking = calloc(most, sizeof *r->ranking);
    r->ranking_other = calloc(most, sizeof *r->ranking_other);
    r->scratch = calloc(2 * most, sizeof *r->scratch);
    if (!out->head || !out->domain_decay || !out->domain_order || !out->concentration || !r->choice || !r->score ||
        !r->other || !r->ranking || !r->ranking_other || !r->scratch)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a calibration of %d heads", r->at.heads);
    for (int32_t h = 0; h < r->at.heads; h++) {
        const int32_t layer = places_layer(&r->at, h);
        out->head[h] = (ebb_calibrated_head){.layer = layer,
                                             .head = h - r->at.first[layer].head,
                                             .overlap = NAN,
                                             .spearman = NAN,
                                             .kept = NAN,
                                             .gap = NAN,
                                             .share = NAN,
                                             .left_tune = NAN,
                                             .left = NAN,
                                             .candidate = -1};
    }
    return EBB_OK;
}

static ebb_status open_run(run *r, ebb_error *error) {
    const ebb_calibrate_config *c = &r->config;
    ebb_status status = find_protocol(r, error);
    if (!status) status = check_config(r, error);
    if (!status) status = plan_documents(r, error);
    if (!status) status = open_documents(r, error);
    if (!status) status = places_open(&r->at, ebb_model_state_layers(r->model), r->info->state_layers, error);
    if (!status) status = open_result(r, error);
    if (!status) status = tables_open(&r->tables, &r->at, r->p->tables, error);
    if (status) return status;
    const int64_t horizon = looks_ahead(r) ? HORIZON : 0;
    const int32_t batch = r->n < c->batch ? r->n : c->batch;
    r->sums.at = &r->at, r->sums.candidates = r->p->candidates, r->sums.parts = r->p->parts;
    r->sums.domains = c->n_domains, r->sums.batch = batch, r->sums.horizon = horizon;
    r->sums.alive = tally_alive(r->stops, r->n_stops, horizon);
    if ((status = tally_open(&r->sums, error))) return status;
    const int64_t again = r->p->kind == BY_CANDIDATES ? r->split[FIT] : 0; /* fitted, then measured */
    const collect_config cc = {.model = r->model,
                               .kv = c->kv,
                               .algorithm = c->algorithm,
                               .length = r->length,
                               .batch = batch,
                               .stops = r->stops,
                               .n_stops = r->n_stops,
                               .progress = c->progress,
                               .total = (r->n + again) * r->length};
    return collect_open(&cc, &r->collector, error);
}

static void close_run(run *r) {
    collect_close(r->collector);
    tally_close(&r->sums);
    tables_close(&r->tables);
    for (int32_t i = 0; i < CANDIDATES; i++) tables_close(&r->candidate[i]);
    for (int32_t i = 0; i < COUNT(r->layouts); i++) ebb_layout_free(r->layouts[i]);
    for (int32_t i = 0; r->documents && i < r->config.documents * r->config.n_domains; i++) free(r->documents[i].ids);
    free(r->documents), free(r->writing), free(r->stops);
    free(r->choice), free(r->score), free(r->other), free(r->ranking), free(r->ranking_other), free(r->scratch);
    places_close(&r->at);
}

ebb_status ebb_calibrate(ebb_model *model, const ebb_calibrate_config *config, ebb_calibration **calibration,
                         ebb_error *error) {
    if (!model || !config || !calibration)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a calibration needs a model, a configuration and a place to go");
    *calibration = NULL;
    if (config->size != sizeof *config)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_calibrate_config.size is %zu, this library expects %zu",
                        config->size, sizeof *config);
    run r = {.model = model, .info = ebb_model_describe(model), .config = *config};
    ebb_status status = open_run(&r, error);
    if (!status) status = calibrate_run(&r, error);
    if (!status) *calibration = r.out;
    else ebb_calibration_free(r.out);
    close_run(&r);
    return status;
}

void ebb_calibration_free(ebb_calibration *c) {
    if (!c) return;
    ebb_layout_free(c->layout);
    free(c->head), free(c->domain_decay), free(c->domain_order), free(c->concentration);
    free(c);
}
