/* cli/fit_print.c: what `ebb info --config FILE` knows, as text for people and as JSON for programs. Called by fit.c.
 */
#include "cli/fit.h"
#include "cli/json_out.h"
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double gib = 1073741824.0;

/* What `bytes` are more than `full`, as a part of it. */
static double change(double bytes, double full) { return full > 0 ? bytes / full - 1 : 0; }

/* N cached tokens of the prefix cache: their keys and values, and one checkpoint. */
static double cached(const fit_plan *p, size_t checkpoint, const fit_kv *kv) {
    return (double)checkpoint + (kv ? (double)p->every * (double)kv->memory.token : 0);
}

/* The KV method of the tables that are about states: the first that is served. */
static const fit_kv *first_kv(const fit_plan *p) {
    for (int32_t i = 0; i < p->n_kvs; i++)
        if (!p->kvs[i].refused.code) return &p->kvs[i];
    return NULL;
}

/* ---- as text ---- */

static int name_width(const fit_plan *p) {
    size_t width = 8;
    for (int32_t i = 0; i < p->n_states; i++)
        if (strlen(p->states[i].name) > width) width = strlen(p->states[i].name);
    for (int32_t i = 0; i < p->n_kvs; i++)
        if (strlen(p->kvs[i].name) > width) width = strlen(p->kvs[i].name);
    return (int)width;
}

static void print_model(const fit_plan *p) {
    const ebb_outline_info *m = p->about;
    printf("model        %s\narchitecture %s\n", p->path, m->architecture);
    printf("parameters   %lld", (long long)m->parameters);
    if (m->idle_parameters) printf("; a token uses %lld", (long long)(m->parameters - m->idle_parameters));
    printf("\nweights      %.1f GB (%.1f GiB) in BF16\n", (double)m->weight_bytes / 1e9, (double)m->weight_bytes / gib);
    printf("layers       %d: %d with a recurrent state, %d with a KV cache\n", m->layers, m->state_layers,
           m->kv_layers);
    printf("context      at most %lld tokens\n", (long long)m->max_position);
}

static void print_states(const fit_plan *p, int width) {
    printf("\nrecurrent state, bytes of one sequence (packed; live: what a window holds back, and convolution "
           "inputs)\n\n");
    printf("%-*s  bits/value       packed     of fp32            live  packed, %lld sequences\n", width, "method",
           (long long)p->batch);
    for (int32_t i = 0; i < p->n_states; i++) {
        const fit_state *s = &p->states[i];
        printf("%-*s  ", width, s->name);
        if (s->refused.code) {
            printf("not served: %s\n", s->refused.text);
            continue;
        }
        const double packed = (double)s->memory.packed, full = (double)p->full_state;
        printf("%10.4f %12zu  %+6.1f %% %5.2fx %10zu  %8.2f GiB\n", s->memory.bits, s->memory.packed,
               100 * change(packed, full), full / packed, s->memory.live, (double)p->batch * packed / gib);
    }
}

static void print_kvs(const fit_plan *p, int width) {
    printf("\nKV cache, bytes of one sequence\n\n%-*s       a token  at %lld tokens\n", width, "method",
           (long long)p->context);
    for (int32_t i = 0; i < p->n_kvs; i++) {
        const fit_kv *k = &p->kvs[i];
        if (k->refused.code) printf("%-*s  not served: %s\n", width, k->name, k->refused.text);
        else printf("%-*s  %12zu  %12zu\n", width, k->name, k->memory.token, k->memory.sequence);
    }
}

static void print_cached(const fit_plan *p, int width) {
    const fit_kv *kv = first_kv(p);
    const double full = cached(p, p->full_checkpoint, kv);
    printf("\nprefix cache, bytes of %lld cached tokens: one checkpoint of the states", (long long)p->every);
    if (kv) printf(", and keys and values as %s", kv->name);
    printf("\n\n%-*s    checkpoint      together  of fp32\n", width, "method");
    for (int32_t i = 0; i < p->n_states; i++) {
        const fit_state *s = &p->states[i];
        if (s->refused.code) continue;
        const double bytes = cached(p, s->memory.checkpoint, kv);
        printf("%-*s  %12zu  %12.0f  %+5.1f %%\n", width, s->name, s->memory.checkpoint, bytes,
               100 * change(bytes, full));
    }
}

static void print_pair(const fit_plan *p, int width, const fit_state *s, const fit_kv *k) {
    if ((s && s->refused.code) || (k && k->refused.code)) return;
    const double alone = fit_sequence(p, s, k, false), kept = fit_sequence(p, s, k, true);
    printf("%-*s  %-*s  %14.0f %10lld  %14.0f %10lld\n", width, s ? s->name : "-", width, k ? k->name : "-", alone,
           (long long)fit_count(p, alone), kept, (long long)fit_count(p, kept));
}

static void print_fit(const fit_plan *p, int width) {
    const double left = p->room - (double)p->about->weight_bytes;
    printf("\nsequences of %lld tokens that fit %s: %.1f GB after the weights", (long long)p->context, p->room_text,
           left / 1e9);
    if (left <= 0) {
        puts(", so none");
        return;
    }
    printf(";\nfirst without, then with a checkpoint of each %lld of their tokens\n\n", (long long)p->every);
    printf("%-*s  %-*s  %14s %10s  %14s %10s\n", width, "state", width, "kv", "bytes", "sequences", "bytes",
           "sequences");
    for (int32_t i = 0; i < (p->n_states ? p->n_states : 1); i++)
        for (int32_t j = 0; j < (p->n_kvs ? p->n_kvs : 1); j++)
            print_pair(p, width, p->n_states ? &p->states[i] : NULL, p->n_kvs ? &p->kvs[j] : NULL);
}

static void print_assumptions(const fit_plan *p) {
    printf("\nassumed: weights once, in BF16 (decay rates and what else releases keep so in FP32), without vision and\n"
           "multi-token prediction; steps of at most %d token%s; a checkpoint at a multiple of %d tokens: the packed\n"
           "states, nothing held back, and the convolution's inputs in FP32. Of cached tokens only states, keys and\n"
           "values count, no weights. Activations, workspace and fragmentation are not counted. GB is 10^9 bytes, GiB\n"
           "2^30.\n",
           p->max_new, p->max_new == 1 ? "" : "s", EBB_GRID);
}

void fit_print_text(const fit_plan *p) {
    const int width = name_width(p);
    print_model(p);
    if (p->n_states) print_states(p, width);
    if (p->n_kvs) print_kvs(p, width);
    if (p->n_states) print_cached(p, width);
    if (p->room > 0) print_fit(p, width);
    print_assumptions(p);
}

/* ---- as JSON ---- */

static json_t *states_json(const fit_plan *p) {
    const fit_kv *kv = first_kv(p);
    json_t *rows = json_array();
    for (int32_t i = 0; i < p->n_states; i++) {
        const fit_state *s = &p->states[i];
        const ebb_state_memory *m = &s->memory;
        json_t *row =
            s->refused.code
                ? json_pack("{s:s, s:s}", "method", s->name, "refused", s->refused.text)
                : json_pack("{s:s, s:f, s:I, s:I, s:I, s:f, s:f}", "method", s->name, "bits", m->bits, "packed_bytes",
                            (json_int_t)m->packed, "live_bytes", (json_int_t)m->live, "checkpoint_bytes",
                            (json_int_t)m->checkpoint, "state_change", change((double)m->packed, (double)p->full_state),
                            "cached_change", change(cached(p, m->checkpoint, kv), cached(p, p->full_checkpoint, kv)));
        rows = json_and(rows, row);
    }
    return rows;
}

static json_t *kvs_json(const fit_plan *p) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < p->n_kvs; i++) {
        const fit_kv *k = &p->kvs[i];
        rows = json_and(rows, k->refused.code ? json_pack("{s:s, s:s}", "method", k->name, "refused", k->refused.text)
                                              : json_pack("{s:s, s:I, s:I}", "method", k->name, "token_bytes",
                                                          (json_int_t)k->memory.token, "context_bytes",
                                                          (json_int_t)k->memory.sequence));
    }
    return rows;
}

static json_t *fits_json(const fit_plan *p) {
    json_t *rows = json_array();
    for (int32_t i = 0; i < (p->n_states ? p->n_states : 1); i++)
        for (int32_t j = 0; j < (p->n_kvs ? p->n_kvs : 1) && p->room > 0; j++) {
            const fit_state *s = p->n_states ? &p->states[i] : NULL;
            const fit_kv *k = p->n_kvs ? &p->kvs[j] : NULL;
            if ((s && s->refused.code) || (k && k->refused.code)) continue;
            const double alone = fit_sequence(p, s, k, false), kept = fit_sequence(p, s, k, true);
            rows = json_and(rows, json_pack("{s:s?, s:s?, s:I, s:I, s:I, s:I}", "state", s ? s->name : NULL, "kv",
                                            k ? k->name : NULL, "bytes", (json_int_t)alone, "sequences",
                                            (json_int_t)fit_count(p, alone), "checkpointed_bytes", (json_int_t)kept,
                                            "checkpointed_sequences", (json_int_t)fit_count(p, kept)));
        }
    return rows;
}

bool fit_print_json(const fit_plan *p) {
    const ebb_outline_info *m = p->about;
    json_t *root =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "config", p->path,
                  "architecture", m->architecture, "parameters", (json_int_t)m->parameters, "used_parameters",
                  (json_int_t)(m->parameters - m->idle_parameters), "weight_bytes", (json_int_t)m->weight_bytes,
                  "layers", m->layers, "state_layers", m->state_layers, "kv_layers", m->kv_layers, "max_context",
                  (json_int_t)m->max_position, "context", (json_int_t)p->context, "batch", (json_int_t)p->batch,
                  "every", (json_int_t)p->every, "room_bytes", (json_int_t)p->room, "state", states_json(p), "kv",
                  kvs_json(p), "fit", fits_json(p));
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (text) puts(text);
    free(text);
    return text != NULL;
}
