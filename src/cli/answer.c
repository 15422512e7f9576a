/* cli/answer.c: one answer: prompt in, tokens out, text as it comes, and what it took. Called by run.c and chat.c. */
#include "cli/interrupt.h"
#include "cli/session.h"
#include "cli/json_out.h"
#include "core/core.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static bool make_room(answer *a, size_t bytes) {
    if (a->room - a->bytes > bytes && a->room) return true;
    size_t room = 2 * (a->room + bytes) + 256;
    char *text = realloc(a->text, room);
    if (!text) return false;
    a->text = text;
    a->room = room;
    return true;
}

static bool keep_id(answer *a, int32_t id) {
    if (a->tokens == a->ids_room) {
        int64_t room = 2 * a->ids_room + 64;
        int32_t *ids = realloc(a->ids, (size_t)room * sizeof *ids);
        if (!ids) return false;
        a->ids = ids;
        a->ids_room = room;
    }
    a->ids[a->tokens++] = id;
    return true;
}

/* Append the text of a token (id < 0: what is still held) and, in a stream, print what became whole characters. */
static ebb_status put(answer *a, ebb_detokenizer *text, int32_t id, bool stream, ebb_error *error) {
    enum { REPLACEMENT = 3, HELD = 4 }; /* bytes of U+FFFD, which any byte may become */
    size_t bytes = 0, written;
    if (id >= 0) ebb_token_bytes(text->tokenizer, id, &bytes);
    if (!make_room(a, REPLACEMENT * (bytes + HELD) + 1) || (id >= 0 && !keep_id(a, id)))
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the text of the answer");
    if (ebb_detokenize(text, id, a->text + a->bytes, a->room - a->bytes, &written))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "token %d has no text", id);
    if (stream && written) {
        fwrite(a->text + a->bytes, 1, written, stdout);
        fflush(stdout);
    }
    a->bytes += written;
    return EBB_OK;
}

static ebb_status generate(session *s, bool stream, answer *a, ebb_error *error) {
    ebb_detokenizer text = {.tokenizer = ebb_model_tokenizer(s->model)};
    ebb_status status = EBB_OK;
    a->stop = "length";
    while (!status && a->tokens < s->options.tokens) {
        int32_t token = ebb_sequence_token(s->engine, s->sequence);
        if (ebb_engine_is_stop(s->engine, token)) {
            a->stop = "stop";
            break;
        }
        status = put(a, &text, token, stream, error);
        if (interrupted()) {
            a->stop = "interrupted";
            break;
        }
        if (a->tokens == s->options.tokens || ebb_sequence_room(s->engine, s->sequence) == 0) break;
        if (!status) status = ebb_engine_step(s->engine, &s->sequence, 1, error);
    }
    ebb_status flushed = put(a, &text, -1, stream, error);
    if (stream && a->bytes && a->text[a->bytes - 1] != '\n') putchar('\n');
    return status ? status : flushed;
}

ebb_status answer_run(session *s, const int32_t *ids, int64_t count, bool stream, answer *a, ebb_error *error) {
    ebb_usage before;
    ebb_engine_usage(s->engine, s->sequence, &before);
    *a = (answer){.stop = "interrupted"};
    if (!make_room(a, 1)) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the text of the answer");
    a->text[0] = '\0';
    ebb_status status = ebb_sequence_append(s->engine, s->sequence, ids, count, error);
    if (!status) status = ebb_engine_prefill(s->engine, error);
    progress_clear(&s->bar);
    if (!status) status = generate(s, stream, a, error);
    else if (status == EBB_INTERRUPTED) status = EBB_OK;
    if (s->options.tokens == 0) ebb_sequence_forget(s->engine, s->sequence); /* no answer was asked for */
    ebb_engine_usage(s->engine, s->sequence, &a->usage);
    a->usage.prompt_tokens -= before.prompt_tokens, a->usage.prompt_seconds -= before.prompt_seconds;
    a->usage.decode_tokens -= before.decode_tokens, a->usage.decode_seconds -= before.decode_seconds;
    return status;
}

void answer_free(answer *a) {
    free(a->text);
    free(a->ids);
    *a = (answer){0};
}

static double rate(int64_t tokens, double seconds) { return tokens > 0 && seconds > 0 ? (double)tokens / seconds : 0; }

void answer_statistics(const session *s, const answer *a) {
    const ebb_usage *u = &a->usage;
    const double kib = 1.0 / 1024;
    if (!s->talks && !s->options.stats) return;
    fflush(stdout);
    fprintf(stderr,
            "prompt %lld tokens, %.0f/s | answer %lld tokens, %.0f/s, %s | state %.1f KiB packed + %.1f KiB live | kv "
            "%.1f KiB\n",
            (long long)u->prompt_tokens, rate(u->prompt_tokens, u->prompt_seconds), (long long)a->tokens,
            rate(u->decode_tokens, u->decode_seconds), a->stop, (double)u->state_packed * kib,
            (double)u->state_live * kib, (double)u->kv * kib);
}

ebb_status answer_json(const session *s, const answer *a, ebb_error *error) {
    const ebb_usage *u = &a->usage;
    json_t *ids = json_array();
    for (int64_t i = 0; i < a->tokens; i++) ids = json_and(ids, json_integer(a->ids[i]));
    json_t *root =
        json_pack("{s:s%, s:I, s:o, s:s, s:I, s:f, s:f, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:i}", "text", a->text,
                  a->bytes, "tokens", (json_int_t)a->tokens, "ids", ids, "stop", a->stop, "prompt_tokens",
                  (json_int_t)u->prompt_tokens, "prompt_tok_s", rate(u->prompt_tokens, u->prompt_seconds),
                  "decode_tok_s", rate(u->decode_tokens, u->decode_seconds), "state", session_state(s), "kv",
                  s->options.kv, "state_bytes", (json_int_t)(u->state_packed + u->state_live), "state_packed_bytes",
                  (json_int_t)u->state_packed, "state_live_bytes", (json_int_t)u->state_live, "kv_bytes",
                  (json_int_t)u->kv, "rows", ebb_engine_rows(s->engine), "threads", ebb_device_threads(s->device));
    bool named = true;
    if (s->loaded) named = json_object_set_new(root, "loaded", json_string(s->loaded)) == 0;
    if (s->saved) named = json_object_set_new(root, "saved", json_string(s->saved)) == 0 && named;
    if (s->exported) named = json_object_set_new(root, "saved_fp32", json_string(s->exported)) == 0 && named;
    if (root && !named) {
        json_decref(root);
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the name of a file is not UTF-8: it has no place in JSON");
    }
    char *line = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!line) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the JSON line");
    puts(line);
    free(line);
    return EBB_OK;
}
