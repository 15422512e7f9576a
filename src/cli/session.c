/* cli/session.c: opening what `ebb run` needs, and the lines it says about it. Called by run.c and chat.c. */
#include "cli/session.h"
#include "cli/open.h"
#include "core/core.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A sampling (the model's own, or that of a file) with what the command line says over it. */
static ebb_sampling sampling_over(const run_options *o, ebb_sampling p) {
    if (!isnan(o->temperature)) p.temperature = (float)o->temperature;
    if (!isnan(o->top_p)) p.top_p = (float)o->top_p;
    if (!isnan(o->min_p)) p.min_p = (float)o->min_p;
    if (!isnan(o->repeat_penalty)) p.repeat_penalty = (float)o->repeat_penalty;
    if (o->top_k >= 0) p.top_k = (int32_t)o->top_k;
    if (o->seed >= 0) p.seed = (uint64_t)o->seed;
    return p;
}

static ebb_status look_at(session *s, const char *path, ebb_error *error) {
    mapped_file file;
    ebb_image_info info;
    ebb_error why;
    ebb_status status = map_file(path, &file, error);
    if (status) return status;
    status = ebb_image_describe(file.data, file.bytes, &info, &why);
    unmap_file(&file);
    if (status) return ebb_fail(error, status, "%s: %s", path, why.text);
    s->known = info.tokens;
    s->begun = info.tokens > 0;
    return EBB_OK;
}

ebb_status session_open_model(session *s, ebb_error *error) {
    ebb_status status = s->options.load ? look_at(s, s->options.load, error) : EBB_OK;
    if (!status) status = open_model(s->options.model, s->options.threads, &s->bar, &s->device, &s->model, error);
    if (status) return status;
    s->sampling = sampling_over(&s->options, ebb_model_describe(s->model)->sampling);
    return ebb_sampling_check(&s->sampling, error);
}

const char *session_state(const session *s) {
    if (!ebb_model_describe(s->model)->state_layers) return "none";
    return s->options.state ? s->options.state : "fp32";
}

static void print_banner(const session *s) {
    const ebb_model_info *info = ebb_model_describe(s->model);
    char name[128];
    last_part(s->options.model, name, sizeof name);
    fprintf(stderr, "%s: %s, %.1f M parameters | state %s | kv %s%s%s | %s | %d threads\n", name, info->architecture,
            (double)info->parameters * 1e-6, session_state(s), s->options.kv, s->options.prefill ? ", prefill " : "",
            s->options.prefill ? s->options.prefill : "", ebb_engine_rows(s->engine), ebb_device_threads(s->device));
}

ebb_status session_open_engine(session *s, int64_t prompt_tokens, ebb_error *error) {
    enum { USUAL = 4096 };
    const run_options *o = &s->options;
    int64_t context = o->context;
    if (!context)
        context = min_i64(max_i64(USUAL, s->known + 1 + prompt_tokens + o->tokens),
                          ebb_model_describe(s->model)->max_position);
    ebb_engine_config config = {.size = sizeof config,
                                .state = o->state,
                                .kv = o->kv,
                                .layout = o->layout,
                                .prefill = o->prefill,
                                .kv_bits = o->kv_bits,
                                .max_seqs = s->slots,
                                .max_tokens = context,
                                .algorithm = o->rows,
                                .progress = progress_of(&s->bar)};
    ebb_status status = ebb_engine_open(s->model, &config, &s->engine, error);
    if (status) return status;
    if (s->talks || o->verbose) print_banner(s);
    s->sequence = -1;
    if (o->load) {
        s->loaded = o->load;
        return session_load(s, o->load, error);
    }
    return ebb_sequence_open(s->engine, &s->sampling, &s->sequence, error);
}

ebb_status session_load(session *s, const char *path, ebb_error *error) {
    int32_t id;
    const session before = *s;
    ebb_status status = ebb_sequence_load(s->engine, path, NULL, &id, error);
    if (!status && (status = look_at(s, path, error))) ebb_sequence_close(s->engine, id);
    if (status) return status;
    const ebb_sampling sampling = sampling_over(&s->options, *ebb_sequence_sampling(s->engine, id));
    if ((status = ebb_sequence_resample(s->engine, id, &sampling, error))) {
        ebb_sequence_close(s->engine, id);
        s->known = before.known, s->begun = before.begun;
        return status;
    }
    ebb_sequence_close(s->engine, s->sequence);
    s->sequence = id;
    return EBB_OK;
}

ebb_status session_save(session *s, ebb_error *error) {
    const run_options *o = &s->options;
    ebb_status status = EBB_OK;
    if (o->save && !(status = ebb_sequence_save(s->engine, s->sequence, o->save, error))) s->saved = o->save;
    if (!status && o->save_fp32 && !(status = ebb_sequence_export(s->engine, s->sequence, o->save_fp32, error)))
        s->exported = o->save_fp32;
    return status;
}

ebb_status session_reset(session *s, ebb_error *error) {
    ebb_sequence_close(s->engine, s->sequence);
    s->begun = false;
    return ebb_sequence_open(s->engine, &s->sampling, &s->sequence, error);
}

void session_close(session *s) {
    talk_close(&s->talk);
    ebb_engine_close(s->engine);
    ebb_model_close(s->model);
    ebb_device_close(s->device);
}
