/* model/chat.c: conversations as text and as ids, written by a template: the model's own, one that the caller has, or,
 * where there is none, one of three below. Texts of the messages are followed through the template, so that no content
 * can be read as a special token and end its turn. */
#include "model/jinja.h"
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* ---- templates for models without one ---- */

static const char chatml[] =
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n' if add_generation_prompt }}";
static const char llama3[] = "{{ '<|begin_of_text|>' if messages or add_generation_prompt }}{% for m in messages %}"
                             "{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ m.content | trim ~ "
                             "'<|eot_id|>' }}{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
                             "{% endif %}";
static const char glm4[] = "{{ '[gMASK]<sop>' if messages or add_generation_prompt }}{% for m in messages %}"
                           "{% if m.role not in ['system', 'user', 'assistant', 'observation'] %}{{ raise_exception("
                           "'the conversations of this model have no role ' ~ m.role) }}{% endif %}"
                           "{{ '<|' ~ m.role ~ '|>\\n' ~ m.content }}{% endfor %}"
                           "{{ '<|assistant|>' if add_generation_prompt }}";

static const struct form {
    const char *name, *family, *template;
    const char *wanted[5]; /* special tokens without which it is not to be had; NULL ends them */
} forms[] = {
    {"chatml", "ChatML", chatml, {"<|im_start|>", "<|im_end|>"}},
    {"llama3", "Llama 3", llama3, {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
    {"glm4", "GLM-4", glm4, {"[gMASK]", "<sop>", "<|user|>", "<|assistant|>"}},
};

/* The first token of a form that the tokenizer lacks, or that could be typed by a user; NULL: it has all. */
static const char *missing(const ebb_tokenizer *t, const struct form *form) {
    for (int32_t i = 0; i < COUNT(form->wanted) && form->wanted[i]; i++)
        if (!ebb_tokenizer_special(t, ebb_tokenizer_id(t, form->wanted[i]))) return form->wanted[i];
    return NULL;
}

static ebb_status use_form(const ebb_tokenizer *t, const struct form *form, const char **template, ebb_error *error) {
    const char *lacking = missing(t, form);
    *template = form->template;
    if (!lacking) return EBB_OK;
    return ebb_fail(error, EBB_UNSUPPORTED, "the tokenizer has no special token %s, which %s conversations need",
                    lacking, form->family);
}

static ebb_status find_template(const ebb_tokenizer *t, const ebb_chat_call *call, const char **template,
                                ebb_error *error) {
    for (int32_t i = 0; call->jinja && i < COUNT(forms); i++)
        if (!strcmp(call->jinja, forms[i].name)) return use_form(t, &forms[i], template, error);
    *template = call->jinja                            ? call->jinja
                : call->tools && t->chat_tool_template ? t->chat_tool_template
                                                       : t->chat_template;
    if (*template) return EBB_OK;
    if (t->chat_tool_template)
        return ebb_fail(error, EBB_UNSUPPORTED, "the model has a chat template for tools only, and none named default");
    for (int32_t i = 0; i < COUNT(forms); i++)
        if (!missing(t, &forms[i])) return use_form(t, &forms[i], template, error);
    return use_form(t, &forms[0], template, error);
}

/* ---- what a template sees ---- */

static ebb_status no_memory(ebb_error *error) {
    return ebb_fail(error, EBB_NO_MEMORY, "no memory for the conversation");
}

static bool is_utf8(const char *text) {
    const size_t n = strlen(text);
    int length = 1;
    for (size_t at = 0; at < n && length > 0; at += (size_t)length)
        length = utf8_length((const uint8_t *)text + at, n - at);
    return length > 0;
}

static ebb_status add_messages(json_t *list, const ebb_message *messages, int32_t n, ebb_error *error) {
    for (int32_t i = 0; i < n; i++) {
        const ebb_message *m = &messages[i];
        if (!m->role || !m->content)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "message %d has no %s", i, m->role ? "content" : "role");
        if (!is_utf8(m->role) || !is_utf8(m->content))
            return ebb_fail(error, EBB_BAD_ARGUMENT, "message %d has a %s that is not UTF-8", i,
                            is_utf8(m->role) ? "content" : "role");
        if (json_array_append_new(list, json_pack("{s:s, s:s}", "role", m->role, "content", m->content)))
            return no_memory(error);
    }
    return EBB_OK;
}

static ebb_status parse(const char *text, const char *what, bool array, json_t **value, ebb_error *error) {
    json_error_t wrong;
    char shown[64];
    *value = json_loads(text, JSON_REJECT_DUPLICATES, &wrong);
    if (!*value && !wrong.text[0]) return no_memory(error);
    if (!*value)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s: not JSON: %s (line %d, column %d)", what,
                        json_shown(wrong.text, shown), wrong.line, wrong.column);
    if (array ? json_is_array(*value) : json_is_object(*value)) return EBB_OK;
    json_decref(*value);
    *value = NULL;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "%s: a JSON %s was expected", what, array ? "array" : "object");
}

/* `history` stands before the messages of the call. */
static ebb_status find_messages(const ebb_chat_call *call, const ebb_message *history, int32_t n_history, json_t **list,
                                ebb_error *error) {
    json_t *more = NULL;
    if (!(*list = json_array())) return no_memory(error);
    ebb_status status = add_messages(*list, history, n_history, error);
    if (!status && call->json) status = parse(call->json, "messages", true, &more, error);
    else if (!status) status = add_messages(*list, call->messages, call->n_messages, error);
    if (!status && more && json_array_extend(*list, more)) status = no_memory(error);
    json_decref(more);
    return status;
}

/* What transformers gives to a template. Variables of the caller come last and over the others. */
static ebb_status make_data(const ebb_chat_call *call, json_t *messages, json_t **data, ebb_error *error) {
    json_t *tools = NULL, *variables = NULL;
    ebb_status status = EBB_OK;
    if (call->tools) status = parse(call->tools, "tools", true, &tools, error);
    if (!status && call->variables) status = parse(call->variables, "variables", false, &variables, error);
    *data = status ? NULL
                   : json_pack("{s:O, s:O?, s:n, s:b}", "messages", messages, "tools", tools ? tools : json_null(),
                               "documents", "add_generation_prompt", (int)call->reply);
    if (!status && (!*data || (variables && json_object_update(*data, variables)))) status = no_memory(error);
    json_decref(tools), json_decref(variables);
    return status;
}

static ebb_status write_out(const ebb_tokenizer *t, const ebb_chat_call *call, const ebb_message *history,
                            int32_t n_history, jinja_text *out, ebb_error *error) {
    json_t *messages = NULL, *data = NULL;
    const char *template = NULL;
    *out = (jinja_text){0};
    if (call->size != sizeof *call || call->n_messages < 0 || (!call->messages && call->n_messages))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a conversation needs its size, %zu, and messages", sizeof *call);
    ebb_status status = find_template(t, call, &template, error);
    if (!status) status = find_messages(call, history, n_history, &messages, error);
    if (!status) status = make_data(call, messages, &data, error);
    if (!status) {
        const jinja_call render = {
            .source = template, .bytes = strlen(template), .data = data, .trusted = t->chat_tokens, .now = call->now};
        status = jinja_render(&render, out, error);
    }
    json_decref(data), json_decref(messages);
    return status;
}

/* ---- the public calls ---- */

static ebb_status check(const ebb_tokenizer *t, const ebb_chat_call *call, const void *out, const void *count,
                        ebb_error *error) {
    if (t && call && out && count) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT,
                    "a conversation needs a tokenizer, messages, and places for what it becomes and its length");
}

ebb_status ebb_chat_text(const ebb_tokenizer *tokenizer, const ebb_chat_call *call, char **text, size_t *bytes,
                         ebb_error *error) {
    jinja_text out;
    ebb_status status = check(tokenizer, call, text, bytes, error);
    if (status) return status;
    *text = NULL, *bytes = 0;
    status = write_out(tokenizer, call, NULL, 0, &out, error);
    if (status) return status;
    *text = out.text, *bytes = out.bytes;
    out.text = NULL;
    jinja_text_free(&out);
    return EBB_OK;
}

static ebb_status ids_from(const ebb_tokenizer *t, const jinja_text *text, size_t from, int32_t **ids, int64_t *count,
                           ebb_error *error) {
    return tokenize_marked(t, text->text + from, text->from_data + from, text->bytes - from, ids, count, error);
}

ebb_status ebb_chat_ids(const ebb_tokenizer *tokenizer, const ebb_chat_call *call, int32_t **ids, int64_t *count,
                        bool *goes_on, ebb_error *error) {
    jinja_text out;
    ebb_status status = check(tokenizer, call, ids, count, error);
    if (status) return status;
    *ids = NULL, *count = 0;
    status = write_out(tokenizer, call, NULL, 0, &out, error);
    if (status) return status;
    const bool same = call->before && call->n_before <= out.bytes && !memcmp(out.text, call->before, call->n_before);
    if (goes_on) *goes_on = same;
    status = ids_from(tokenizer, &out, same ? call->n_before : 0, ids, count, error);
    jinja_text_free(&out);
    return status;
}

/* Where the text goes on behind the answer of the history; 0: the answer is not there. */
static size_t behind(const jinja_text *text, const char *answer) {
    const size_t n = strlen(answer);
    size_t found = 0;
    for (size_t at = 0; at + n <= text->bytes; at++)
        if (!memcmp(text->text + at, answer, n) && !memchr(text->from_data + at, 0, n)) {
            found = at + n;
            break;
        }
    return found;
}

ebb_status ebb_chat_after(const ebb_tokenizer *tokenizer, const ebb_chat_call *call, int32_t **ids, int64_t *count,
                          ebb_error *error) {
    /* a turn that is written to be found: what stands before its answer is in the sequence, in whatever form */
    static const ebb_message history[] = {{"user", "the question"}, {"assistant", "the answer that was given"}};
    jinja_text out;
    ebb_status status = check(tokenizer, call, ids, count, error);
    if (status) return status;
    *ids = NULL, *count = 0;
    status = write_out(tokenizer, call, history, 2, &out, error);
    if (status) return status;
    const size_t from = behind(&out, history[1].content);
    if (from) status = ids_from(tokenizer, &out, from, ids, count, error);
    else
        status = ebb_fail(error, EBB_UNSUPPORTED,
                          "the chat template does not show answers as they are: no turn can "
                          "follow one whose conversation is not known");
    jinja_text_free(&out);
    return status;
}

static ebb_chat_call call_of(const ebb_message *messages, int32_t n, bool reply) {
    return (ebb_chat_call){.size = sizeof(ebb_chat_call), .messages = messages, .n_messages = n, .reply = reply};
}

ebb_status ebb_chat(const ebb_tokenizer *tokenizer, const ebb_message *messages, int32_t n_messages, bool reply,
                    int32_t **ids, int64_t *count, ebb_error *error) {
    const ebb_chat_call call = call_of(messages, n_messages, reply);
    return ebb_chat_ids(tokenizer, &call, ids, count, NULL, error);
}

ebb_status ebb_chat_continue(const ebb_tokenizer *tokenizer, const ebb_message *messages, int32_t n_messages,
                             bool reply, int32_t **ids, int64_t *count, ebb_error *error) {
    const ebb_chat_call call = call_of(messages, n_messages, reply);
    return ebb_chat_after(tokenizer, &call, ids, count, error);
}
