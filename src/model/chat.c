/* model/chat.c: conversations as ids, in ChatML: <|im_start|>ROLE\nCONTENT<|im_end|>\n for every message. The two
 * structural tokens are put as ids and everything between them is tokenized as one text without special tokens, so the
 * ids are those of the rendered conversation, and no content can end its turn. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

typedef struct chat {
    const ebb_tokenizer *t;
    int32_t begin, end;
    id_list out;
    ebb_error *error;
} chat;

static ebb_status no_memory(const chat *c) {
    return ebb_fail(c->error, EBB_NO_MEMORY, "no memory for the conversation");
}

static ebb_status put_id(chat *c, int32_t id) { return id_push(&c->out, id) ? EBB_OK : no_memory(c); }

static ebb_status put_text(chat *c, const char *text, size_t n) {
    int32_t *ids;
    int64_t count;
    ebb_status status = ebb_tokenize(c->t, text, n, false, &ids, &count, c->error);
    for (int64_t i = 0; i < count && !status; i++) status = put_id(c, ids[i]);
    free(ids);
    return status;
}

/* <|im_start|>ROLE\nCONTENT, the newline and its neighbours in one text. */
static ebb_status put_turn(chat *c, const char *role, const char *content) {
    size_t n_role = strlen(role), n_content = strlen(content), n;
    if (!size_add(n_role + 1, n_content, &n)) return no_memory(c);
    char *text = malloc(n + 1);
    if (!text) return no_memory(c);
    memcpy(text, role, n_role);
    text[n_role] = '\n';
    memcpy(text + n_role + 1, content, n_content + 1);
    ebb_status status = put_id(c, c->begin);
    if (!status) status = put_text(c, text, n);
    free(text);
    return status;
}

/* The id of a structural token. One that is not special could be typed by a user. */
static int32_t structural(const ebb_tokenizer *t, const char *content) {
    int32_t id = ebb_tokenizer_id(t, content);
    return id >= 0 && ebb_tokenizer_special(t, id) ? id : -1;
}

static ebb_status put_messages(chat *c, const ebb_message *messages, int32_t n_messages) {
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < n_messages && !status; i++) {
        if (!messages[i].role || !messages[i].content)
            return ebb_fail(c->error, EBB_BAD_ARGUMENT, "message %d has no %s", i,
                            messages[i].role ? "content" : "role");
        status = put_turn(c, messages[i].role, messages[i].content);
        if (!status) status = put_id(c, c->end);
        if (!status) status = put_text(c, "\n", 1);
    }
    return status;
}

ebb_status ebb_chat(const ebb_tokenizer *tokenizer, const ebb_message *messages, int32_t n_messages, bool reply,
                    int32_t **ids, int64_t *count, ebb_error *error) {
    if (!tokenizer || n_messages < 0 || (!messages && n_messages) || !ids || !count)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "ebb_chat needs a tokenizer, messages, and places for ids and their count");
    *ids = NULL;
    *count = 0;
    chat c = {tokenizer, structural(tokenizer, "<|im_start|>"), structural(tokenizer, "<|im_end|>"), {0}, error};
    if (c.begin < 0 || c.end < 0)
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "the tokenizer has no special token %s, which ChatML conversations need",
                        c.begin < 0 ? "<|im_start|>" : "<|im_end|>");
    ebb_status status = put_messages(&c, messages, n_messages);
    if (!status && reply) status = put_turn(&c, "assistant", "");
    if (!status && !c.out.ids && !(c.out.ids = malloc(sizeof *c.out.ids))) status = no_memory(&c);
    if (status) {
        free(c.out.ids);
        return status;
    }
    *ids = c.out.ids, *count = c.out.n;
    return EBB_OK;
}
