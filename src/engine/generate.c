/* engine/generate.c: ebb_generate: answers to a static list of prompts. Sequences that end hand their slot to the next
 * prompt. */
#include "core/core.h"
#include "ebb/engine.h"

#include <stdlib.h>

typedef struct answer { /* one running sequence */
    int32_t prompt, id;
    int64_t emitted;
} answer;

/* Hand the produced token on. True: the answer goes on. */
static bool emit_token(ebb_engine *engine, answer *a, int64_t max_answer, ebb_emit emit, void *ctx) {
    int32_t token = ebb_sequence_token(engine, a->id);
    if (a->emitted >= max_answer || ebb_engine_is_stop(engine, token)) return false;
    a->emitted++;
    return emit(ctx, a->prompt, token) && a->emitted < max_answer && ebb_sequence_room(engine, a->id) > 0;
}

static ebb_status start_prompt(ebb_engine *engine, const ebb_prompt *prompt, const ebb_sampling *sampling, int32_t *id,
                               ebb_error *error) {
    ebb_status status = ebb_sequence_open(engine, sampling, id, error);
    if (!status && (status = ebb_sequence_append(engine, *id, prompt->ids, prompt->count, error)))
        ebb_sequence_close(engine, *id);
    return status;
}

/* Emit for every answer; close those that ended, and keep the largest memory that one of them held. */
static int32_t emit_all(ebb_engine *engine, answer *run, int32_t n, int64_t max_answer, ebb_emit emit, void *ctx,
                        ebb_usage *usage) {
    int32_t left = 0;
    for (int32_t i = 0; i < n; i++) {
        bool on = emit_token(engine, &run[i], max_answer, emit, ctx);
        ebb_usage now;
        ebb_engine_usage(engine, run[i].id, &now);
        if (now.kv < usage->kv) now.kv = usage->kv;
        *usage = now;
        if (on) run[left++] = run[i];
        else ebb_sequence_close(engine, run[i].id);
    }
    return left;
}

ebb_status ebb_generate(ebb_engine *engine, const ebb_prompt *prompts, int32_t n, const ebb_sampling *sampling,
                        int64_t max_answer, ebb_emit emit, void *ctx, ebb_usage *usage, ebb_error *error) {
    if (!engine || n < 0 || (n && !prompts) || !sampling || !emit)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "ebb_generate needs an engine, prompts, a sampling and a function for tokens");
    ebb_status status = EBB_OK;
    ebb_usage before, now = {0};
    ebb_engine_usage(engine, -1, &before);
    answer *run = calloc((size_t)(n ? n : 1), sizeof *run);
    int32_t *ids = calloc((size_t)(n ? n : 1), sizeof *ids);
    int32_t running = 0, next = 0;
    if (!run || !ids) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for %d prompts", n);
    while (!status && (running || next < n)) {
        const int32_t old = running;
        while (next < n && !status) {
            status = start_prompt(engine, &prompts[next], sampling, &run[running].id, error);
            if (status == EBB_NO_MEMORY && running) { /* every slot is busy: this prompt waits */
                status = EBB_OK;
                break;
            }
            if (!status) {
                run[running].emitted = 0;
                run[running++].prompt = next++;
            }
        }
        if (!status && running > old) { /* new prompts: their first token comes out of the prefill */
            if ((status = ebb_engine_prefill(engine, error))) break;
            running = old + emit_all(engine, run + old, running - old, max_answer, emit, ctx, &now);
            continue;
        }
        for (int32_t i = 0; i < running; i++) ids[i] = run[i].id;
        if (!status && running && !(status = ebb_engine_step(engine, ids, running, error)))
            running = emit_all(engine, run, running, max_answer, emit, ctx, &now);
    }
    for (int32_t i = 0; i < running; i++) ebb_sequence_close(engine, run[i].id);
    if (usage) {
        *usage = now;
        usage->prompt_tokens -= before.prompt_tokens, usage->decode_tokens -= before.decode_tokens;
        usage->prompt_seconds -= before.prompt_seconds, usage->decode_seconds -= before.decode_seconds;
    }
    free(run), free(ids);
    return status;
}
