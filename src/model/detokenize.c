/* model/detokenize.c: ids back into text that is UTF-8 at every moment. Bytes that are not become U+FFFD the way
 * Python's errors="replace" has it: one for every longest beginning of a character that does not continue. */
#include "model/tokenizer.h"

#include <string.h>

typedef struct writer {
    ebb_detokenizer state; /* a copy: the caller's changes only when all of the token fits */
    char *text;
    size_t room, n;
    bool full;
} writer;

static void put(writer *w, const void *bytes, size_t n) {
    if (w->full || n >= w->room - w->n) {
        w->full = true;
        return;
    }
    memcpy(w->text + w->n, bytes, n);
    w->n += n;
}

static void put_replacement(writer *w) {
    put(w, "\xef\xbf\xbd", 3);
    w->state.n_held = 0;
}

static void feed(writer *w, uint8_t byte) {
    ebb_detokenizer *s = &w->state;
    s->held[s->n_held++] = byte;
    int length = utf8_length(s->held, (size_t)s->n_held);
    if (length < 0 && s->n_held > 1) { /* what was held ends before this byte, which may begin a character itself */
        put_replacement(w);
        s->held[s->n_held++] = byte;
        length = utf8_length(s->held, 1);
    }
    if (length < 0) put_replacement(w);
    else if (length > 0) {
        put(w, s->held, (size_t)length);
        s->n_held = 0;
    }
}

ebb_status ebb_detokenize(ebb_detokenizer *state, int32_t id, char *text, size_t room, size_t *written) {
    if (written) *written = 0;
    if (!state || !state->tokenizer || !text || !room || state->n_held < 0 || state->n_held > 3)
        return EBB_BAD_ARGUMENT;
    writer w = {.state = *state, .text = text, .room = room};
    if (id < 0) {
        if (w.state.n_held) put_replacement(&w);
    } else if (state->show_special || !ebb_tokenizer_special(state->tokenizer, id)) {
        size_t n;
        const char *bytes = ebb_token_bytes(state->tokenizer, id, &n);
        for (size_t i = 0; i < n && !w.full; i++) feed(&w, (uint8_t)bytes[i]);
    }
    if (w.full) {
        text[0] = 0;
        return EBB_BAD_ARGUMENT;
    }
    text[w.n] = 0;
    if (written) *written = w.n;
    *state = w.state;
    return EBB_OK;
}
