/* model/postprocess.c: the post_processor of a tokenizer.json, as far as it changes ids: the tokens that begin every
 * text, such as <|begin_of_text|>. They are not put by ebb_tokenize, which also serves pieces of texts; whoever begins
 * one asks for them (ebb_tokenizer_prefix). Called by tokenizer.c. */
#include "model/json.h"
#include "model/tokenizer.h"

#include <string.h>

/* The ids of the token that a step of the template names. */
static ebb_status add_special(ebb_tokenizer *t, const json_place *template, const json_place *step, ebb_error *error) {
    const char *name = NULL;
    json_place all, named, ids;
    ebb_status status = json_get_text(step, "id", JSON_NEEDED, &name, error);
    if (!status) status = json_get_object(template, "special_tokens", JSON_NEEDED, &all, error);
    if (!status) status = json_get_object(&all, name, JSON_NEEDED, &named, error);
    if (!status) status = json_get_array(&named, "ids", JSON_NEEDED, &ids, error);
    for (size_t i = 0; !status && i < json_array_size(ids.value); i++) {
        json_place item;
        json_item(&ids, i, &item);
        const json_int_t id = json_integer_value(item.value);
        if (!json_is_integer(item.value) || id < 0 || id >= t->size || !t->tokens[id].flags)
            return json_fail(&item, error, EBB_BAD_FILE, "is not the id of a token");
        if (t->n_prefix == MAX_PREFIX)
            return json_fail(template, error, EBB_UNSUPPORTED, "begins texts with more than %d tokens", MAX_PREFIX);
        t->prefix[t->n_prefix++] = (int32_t)id;
    }
    return status;
}

/* single: [{"SpecialToken": {"id": NAME}}, ..., {"Sequence": {"id": "A"}}] */
static ebb_status load_template(ebb_tokenizer *t, const json_place *at, ebb_error *error) {
    json_place single, item, step;
    bool text = false;
    if (t->n_prefix) return json_fail(at, error, EBB_UNSUPPORTED, "is a second TemplateProcessing, expected one");
    ebb_status status = json_get_array(at, "single", JSON_NEEDED, &single, error);
    for (size_t i = 0; !status && i < json_array_size(single.value); i++) {
        json_item(&single, i, &item);
        if (!json_is_object(item.value)) return json_fail(&item, error, EBB_BAD_FILE, "is not an object");
        if (json_has(&item, "Sequence")) {
            if (text) return json_fail(&item, error, EBB_UNSUPPORTED, "puts the text twice");
            text = true;
        } else if (text)
            return json_fail(&item, error, EBB_UNSUPPORTED, "puts a token behind the text, which is not supported");
        else {
            status = json_get_object(&item, "SpecialToken", JSON_NEEDED, &step, error);
            if (!status) status = add_special(t, at, &step, error);
        }
    }
    if (!status && !text) status = json_fail(&single, error, EBB_BAD_FILE, "has no Sequence, the place of the text");
    return status;
}

static ebb_status load_step(ebb_tokenizer *t, const json_place *at, ebb_error *error) {
    const char *type = NULL;
    char shown[64];
    json_place steps;
    ebb_status status = json_get_text(at, "type", JSON_NEEDED, &type, error);
    if (status || !strcmp(type, "ByteLevel")) return status; /* that one is about offsets */
    if (!strcmp(type, "TemplateProcessing")) return load_template(t, at, error);
    if (strcmp(type, "Sequence") != 0)
        return json_fail(at, error, EBB_UNSUPPORTED,
                         "has the type '%s', expected ByteLevel, TemplateProcessing or a Sequence of them",
                         json_shown(type, shown));
    status = json_get_array(at, "processors", JSON_NEEDED, &steps, error);
    for (size_t i = 0; !status && i < json_array_size(steps.value); i++) {
        json_place step;
        json_item(&steps, i, &step);
        if (!json_is_object(step.value)) return json_fail(&step, error, EBB_BAD_FILE, "is not an object");
        status = load_step(t, &step, error);
    }
    return status;
}

ebb_status postprocess_load(ebb_tokenizer *t, const json_place *root, ebb_error *error) {
    json_place at = {0};
    ebb_status status = json_get_object(root, "post_processor", JSON_OPTIONAL, &at, error);
    return status || !at.value ? status : load_step(t, &at, error);
}

const int32_t *ebb_tokenizer_prefix(const ebb_tokenizer *t, int32_t *count) {
    *count = t->n_prefix;
    return t->prefix;
}
