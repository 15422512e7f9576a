/* model/chat_template.c: where the chat template of a model is, and what it calls the tokens of the model by name. Run
 * is it by chat.c. Called by tokenizer.c and gguf_tokenizer.c. */
#include "model/json.h"
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define TEMPLATE_LIMIT ((size_t)16 << 20)

static ebb_status keep(char **to, const char *text, ebb_error *error) {
    free(*to);
    *to = text ? strdup(text) : NULL;
    return !text || *to ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for a chat template");
}

ebb_status chat_choose(ebb_tokenizer *t, const char *template, ebb_error *error) {
    return keep(&t->chat_template, template, error);
}

ebb_status chat_name_token(ebb_tokenizer *t, const char *name, const char *content, ebb_error *error) {
    if (!t->chat_tokens) t->chat_tokens = json_object();
    if (!t->chat_tokens || json_object_set_new(t->chat_tokens, name, json_string(content)))
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the names of tokens");
    return EBB_OK;
}

void chat_close(ebb_tokenizer *t) {
    free(t->chat_template);
    free(t->chat_tool_template);
    json_decref(t->chat_tokens);
}

/* chat_template of tokenizer_config.json: absent, a text, or a list of named texts, of which "default" counts, and
 * "tool_use" where there are tools. */
static ebb_status read_templates(ebb_tokenizer *t, const json_place *root, ebb_error *error) {
    json_place list;
    const char *name = NULL, *text = NULL;
    if (!json_is_array(json_object_get(root->value, "chat_template"))) {
        ebb_status status = json_get_text(root, "chat_template", JSON_OPTIONAL, &text, error);
        return status ? status : chat_choose(t, text, error);
    }
    ebb_status status = json_get_array(root, "chat_template", JSON_NEEDED, &list, error);
    for (size_t i = 0; !status && i < json_array_size(list.value); i++) {
        json_place item;
        json_item(&list, i, &item);
        if (!json_is_object(item.value)) return json_fail(&item, error, EBB_BAD_FILE, "is not an object");
        status = json_get_text(&item, "name", JSON_NEEDED, &name, error);
        if (!status) status = json_get_text(&item, "template", JSON_NEEDED, &text, error);
        if (!status && !strcmp(name, "default")) status = chat_choose(t, text, error);
        if (!status && !strcmp(name, "tool_use")) status = keep(&t->chat_tool_template, text, error);
    }
    return status;
}

/* A token is named by its text, or by an object that has it as content. */
static ebb_status read_tokens(ebb_tokenizer *t, const json_place *root, ebb_error *error) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < COUNT(names) && !status; i++) {
        const json_t *value = json_object_get(root->value, names[i]);
        if (json_is_object(value)) value = json_object_get(value, "content");
        if (json_is_string(value)) status = chat_name_token(t, names[i], json_string_value(value), error);
    }
    return status;
}

ebb_status chat_open(ebb_tokenizer *t, const char *directory, ebb_error *error) {
    char *jinja = path_join(directory, "chat_template.jinja"), *config = path_join(directory, "tokenizer_config.json");
    char *text = NULL;
    size_t bytes;
    json_place root = {0};
    ebb_status status = EBB_OK;
    if (!jinja || !config) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    if (!status && file_exists(config)) {
        status = json_open(config, TEMPLATE_LIMIT, &root, error);
        if (!status) status = read_tokens(t, &root, error);
        if (!status && !file_exists(jinja)) status = read_templates(t, &root, error);
        json_close(&root);
    }
    if (!status && file_exists(jinja)) {
        status = read_file(jinja, TEMPLATE_LIMIT, &text, &bytes, error);
        if (!status && strlen(text) != bytes)
            status = ebb_fail(error, EBB_BAD_FILE, "%s holds a zero byte, text was expected", json_file(jinja));
        if (!status) status = chat_choose(t, text, error);
    }
    free(text), free(jinja), free(config);
    return status;
}
