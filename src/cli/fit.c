/* cli/fit.c: `ebb info --config FILE --fit SIZE`: how many sequences a device holds under every method, before there
 * are weights to load. All of it is arithmetic over the layers that config.json describes; fit_print.c says what is
 * assumed. Called by info.c. */
#include "cli/fit.h"
#include "cli/cli.h"
#include "core/core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const usual_states[] = {"fp32", "bf16", "damp", "leap8", "leap4"};
static const char *const usual_kvs[] = {"bf16", "k8v8", "hyquant"};

/* "141GB", "80 GiB": 0 where it is not a size. */
static double size_of(const char *text) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"B", 1},         {"KB", 1e3},           {"MB", 1e6},
                 {"GB", 1e9},      {"TB", 1e12},          {"KiB", 1024},
                 {"MiB", 1048576}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
    char *end;
    const double number = strtod(text, &end);
    while (*end == ' ') end++;
    for (int32_t i = 0; i < COUNT(units); i++)
        if (!strcmp(end, units[i].name) && number > 0 && number * units[i].bytes < 1e18) return number * units[i].bytes;
    return 0;
}

double fit_sequence(const fit_plan *p, const fit_state *state, const fit_kv *kv, bool checkpoints) {
    const double kept = checkpoints ? (double)(p->context / p->every) : 0;
    double bytes = kv ? (double)kv->memory.sequence : 0;
    if (state) bytes += (double)(state->memory.packed + state->memory.live) + kept * (double)state->memory.checkpoint;
    return bytes;
}

int64_t fit_count(const fit_plan *p, double bytes) {
    const double left = p->room - (double)p->about->weight_bytes;
    return left > 0 && bytes > 0 ? (int64_t)floor(left / bytes) : 0;
}

/* A method that cannot serve this model is a line of the table; anything else ends the command. */
static ebb_status line_or_end(ebb_status status, ebb_error *refused, ebb_error *error) {
    if (status == EBB_OK) refused->code = EBB_OK;
    if (status == EBB_OK || status == EBB_UNSUPPORTED || status == EBB_BAD_ARGUMENT) return EBB_OK;
    return ebb_fail(error, status, "%s", refused->text);
}

static ebb_status measure(fit_plan *p, ebb_error *error) {
    ebb_state_memory full = {0};
    ebb_status status =
        p->about->state_layers ? ebb_state_memory_of(p->outline, "fp32", p->max_new, &full, error) : EBB_OK;
    p->full_state = full.packed, p->full_checkpoint = full.checkpoint;
    for (int32_t i = 0; i < p->n_states && !status; i++) {
        fit_state *s = &p->states[i];
        status = line_or_end(ebb_state_memory_of(p->outline, s->name, p->max_new, &s->memory, &s->refused), &s->refused,
                             error);
    }
    for (int32_t i = 0; i < p->n_kvs && !status; i++) {
        fit_kv *k = &p->kvs[i];
        status = line_or_end(ebb_kv_memory_of(p->outline, k->name, p->context, p->max_new, &k->memory, &k->refused),
                             &k->refused, error);
    }
    return status;
}

static ebb_status open_rows(fit_plan *p, const method_list *states, const method_list *kvs, ebb_error *error) {
    if (states->n && !p->about->state_layers)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "--state is given, but this model has no recurrent layers");
    if (kvs->n && !p->about->kv_layers)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "--kv is given, but this model has no attention layers");
    p->n_states = !p->about->state_layers ? 0 : states->n ? states->n : COUNT(usual_states);
    p->n_kvs = !p->about->kv_layers ? 0 : kvs->n ? kvs->n : COUNT(usual_kvs);
    p->states = calloc((size_t)p->n_states + 1, sizeof *p->states);
    p->kvs = calloc((size_t)p->n_kvs + 1, sizeof *p->kvs);
    if (!p->states || !p->kvs) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the tables");
    for (int32_t i = 0; i < p->n_states; i++) p->states[i].name = states->n ? states->names[i] : usual_states[i];
    for (int32_t i = 0; i < p->n_kvs; i++) p->kvs[i].name = kvs->n ? kvs->names[i] : usual_kvs[i];
    return EBB_OK;
}

static ebb_status gather(fit_plan *p, const fit_options *o, const method_list *states, const method_list *kvs,
                         ebb_error *error) {
    enum { USUAL = 4096 };
    p->about = ebb_outline_describe(p->outline);
    p->context = o->context ? o->context : min_i64(USUAL, p->about->max_position);
    if (p->context > p->about->max_position)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a context of %lld tokens, expected 1 to %lld, the model's own limit",
                        (long long)p->context, (long long)p->about->max_position);
    ebb_status status = open_rows(p, states, kvs, error);
    return status ? status : measure(p, error);
}

int fit_command(const fit_options *o, const method_list *states, const method_list *kvs) {
    ebb_outline *outline = NULL;
    ebb_error error;
    fit_plan p = {.path = o->config,
                  .room_text = o->room,
                  .batch = o->batch,
                  .every = o->every,
                  .max_new = (int32_t)o->max_new,
                  .room = o->room ? size_of(o->room) : 0};
    if (o->room && p.room == 0)
        return usage_error("info: --fit %s: expected a number and B, KB, MB, GB, TB, KiB, MiB, GiB or TiB", o->room);
    if (o->every % EBB_GRID)
        return usage_error("info: --every %lld: expected a multiple of %d", (long long)o->every, EBB_GRID);
    ebb_status status = ebb_outline_open(o->config, &outline, &error);
    p.outline = outline;
    if (!status) status = gather(&p, o, states, kvs, &error);
    if (!status && !o->json) fit_print_text(&p);
    if (!status && o->json && !fit_print_json(&p)) status = ebb_fail(&error, EBB_NO_MEMORY, "no memory for the JSON");
    free(p.states), free(p.kvs);
    ebb_outline_close(outline);
    return status ? fail_with(&error) : EXIT_OK;
}
