/* cli/session.c: opening what `ebb run` needs, and the lines it says about it. Called by run.c and chat.c. */
#include "cli/session.h"
#include "core/core.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void notice(void *ctx, const char *sentence) {
    progress_clear(ctx);
    fprintf(stderr, "ebb: %s\n", sentence);
}

/* The model's own sampling, and what the command line says over it. */
static ebb_status choose_sampling(session *s, ebb_error *error) {
    const run_options *o = &s->options;
    s->sampling = ebb_model_describe(s->model)->sampling;
    if (!isnan(o->temperature)) s->sampling.temperature = (float)o->temperature;
    if (!isnan(o->top_p)) s->sampling.top_p = (float)o->top_p;
    if (!isnan(o->min_p)) s->sampling.min_p = (float)o->min_p;
    if (!isnan(o->repeat_penalty)) s->sampling.repeat_penalty = (float)o->repeat_penalty;
    if (o->top_k >= 0) s->sampling.top_k = (int32_t)o->top_k;
    if (o->seed >= 0) s->sampling.seed = (uint64_t)o->seed;
    return ebb_sampling_check(&s->sampling, error);
}

ebb_status session_open_model(session *s, ebb_error *error) {
    ebb_device_config config = {
        .size = sizeof config, .threads = (int32_t)s->options.threads, .log = {&s->bar, notice}};
    ebb_progress progress = progress_of(&s->bar);
    ebb_status status = ebb_device_open("cpu", &config, &s->device, error);
    if (!status) status = ebb_model_open(s->device, s->options.model, &progress, &s->model, error);
    progress_clear(&s->bar);
    return status ? status : choose_sampling(s, error);
}

/* "models/tiny-gdn/" -> "tiny-gdn" */
static void last_part(const char *path, char *name, size_t room) {
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/') end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--) {
    }
    snprintf(name, room, "%.*s", (int)(end - begin), path + begin);
}

static void print_banner(const session *s) {
    const ebb_model_info *info = ebb_model_describe(s->model);
    char name[128];
    last_part(s->options.model, name, sizeof name);
    fprintf(stderr, "%s: %s, %.1f M parameters | state %s | kv %s | %s | %d threads\n", name, info->architecture,
            (double)info->parameters * 1e-6, s->options.state, s->options.kv, ebb_engine_rows(s->engine),
            ebb_device_threads(s->device));
}

ebb_status session_open_engine(session *s, int64_t prompt_tokens, ebb_error *error) {
    enum { USUAL = 4096 };
    const run_options *o = &s->options;
    int64_t context = o->context;
    if (!context)
        context = min_i64(max_i64(USUAL, prompt_tokens + o->tokens), ebb_model_describe(s->model)->max_position);
    ebb_engine_config config = {.size = sizeof config,
                                .state = o->state,
                                .kv = o->kv,
                                .max_tokens = context,
                                .algorithm = o->rows,
                                .progress = progress_of(&s->bar)};
    ebb_status status = ebb_engine_open(s->model, &config, &s->engine, error);
    if (status) return status;
    if (s->talks || o->verbose) print_banner(s);
    return ebb_sequence_open(s->engine, &s->sampling, &s->sequence, error);
}

ebb_status session_reset(session *s, ebb_error *error) {
    ebb_sequence_close(s->engine, s->sequence);
    return ebb_sequence_open(s->engine, &s->sampling, &s->sequence, error);
}

void session_close(session *s) {
    ebb_engine_close(s->engine);
    ebb_model_close(s->model);
    ebb_device_close(s->device);
}
