/* model/config.c: see config.h. */
#include "model/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_LIMIT ((size_t)64 << 20)

ebb_status config_int(const json_place *at, const char *key, json_need need, int32_t lo, int32_t hi, int32_t *value,
                      ebb_error *error) {
    int64_t wide = *value;
    ebb_status status = json_get_int(at, key, need, lo, hi, &wide, error);
    if (!status) *value = (int32_t)wide;
    return status;
}

ebb_status config_number(const json_place *at, const char *key, json_need need, double lo, double hi, double *value,
                         ebb_error *error) {
    double number = *value;
    ebb_status status = json_get_number(at, key, need, &number, error);
    if (status || !json_has(at, key)) return status;
    if (!(number > lo && number <= hi))
        return ebb_fail(error, EBB_BAD_FILE, "%s: field %s%s%s is %g, expected above %g and at most %g",
                        json_file(at->file), at->path, at->path[0] ? "." : "", key, number, lo, hi);
    *value = number;
    return EBB_OK;
}

/* ---- stop tokens ---- */

static ebb_status add_stop(config_files *config, int32_t id, ebb_error *error) {
    for (int32_t i = 0; i < config->n_stop; i++)
        if (config->stop[i] == id) return EBB_OK;
    if (config->n_stop == CONFIG_MAX_STOP)
        return ebb_fail(error, EBB_BAD_FILE, "%s: more than %d stop tokens are named", json_file(config->path),
                        CONFIG_MAX_STOP);
    config->stop[config->n_stop++] = id;
    return EBB_OK;
}

/* eos_token_id of the object at `at`: absent, null, an id, or a list of ids. */
static ebb_status add_eos(config_files *config, const json_place *at, ebb_error *error) {
    json_place list;
    if (!json_has(at, "eos_token_id")) return EBB_OK;
    if (!json_is_array(json_object_get(at->value, "eos_token_id"))) {
        int32_t id = 0;
        ebb_status status = config_int(at, "eos_token_id", JSON_NEEDED, 0, INT32_MAX, &id, error);
        return status ? status : add_stop(config, id, error);
    }
    ebb_status status = json_get_array(at, "eos_token_id", JSON_NEEDED, &list, error);
    for (size_t i = 0; !status && i < json_array_size(list.value); i++) {
        json_place item;
        json_item(&list, i, &item);
        json_int_t id = json_integer_value(item.value);
        if (!json_is_integer(item.value) || id < 0 || id > INT32_MAX)
            return json_fail(&item, error, EBB_BAD_FILE, "is not a token id, expected a whole number 0 to %d",
                             INT32_MAX);
        status = add_stop(config, (int32_t)id, error);
    }
    return status;
}

/* eos_token of tokenizer_config.json: absent, null, a string, or an object with `content`. */
static ebb_status read_tokenizer_config(config_files *config, const char *path, const ebb_tokenizer *tokenizer,
                                        ebb_error *error) {
    json_place root;
    const char *content = NULL;
    ebb_status status = json_open(path, CONFIG_LIMIT, &root, error);
    if (status) return status;
    if (json_is_object(json_object_get(root.value, "eos_token"))) {
        json_place token;
        status = json_get_object(&root, "eos_token", JSON_NEEDED, &token, error);
        if (!status) status = json_get_text(&token, "content", JSON_NEEDED, &content, error);
    } else status = json_get_text(&root, "eos_token", JSON_OPTIONAL, &content, error);
    if (!status && content) {
        char shown[64];
        int32_t id = ebb_tokenizer_id(tokenizer, content);
        if (id < 0)
            status = ebb_fail(error, EBB_BAD_FILE, "%s: field eos_token is '%s', expected a token of tokenizer.json",
                              json_file(path), json_shown(content, shown));
        else status = add_stop(config, id, error);
    }
    json_close(&root);
    return status;
}

ebb_status config_stop_turn(config_files *config, const ebb_tokenizer *tokenizer, ebb_error *error) {
    const int32_t id = ebb_tokenizer_id(tokenizer, "<|im_end|>");
    return id >= 0 && ebb_tokenizer_special(tokenizer, id) ? add_stop(config, id, error) : EBB_OK;
}

/* ---- sampling ---- */

static ebb_status get_float(const json_place *at, const char *key, float *value, ebb_error *error) {
    double wide = (double)*value;
    ebb_status status = json_get_number(at, key, JSON_OPTIONAL, &wide, error);
    if (!status) *value = (float)wide;
    return status;
}

/* do_sample false: greedy, whatever else is there. do_sample true: temperature 1 unless it gives one. do_sample absent:
 * the fields as given, so that it samples if it gives a temperature. */
static ebb_status read_sampling(config_files *config, const json_place *root, ebb_error *error) {
    ebb_sampling s = EBB_GREEDY;
    bool said = json_has(root, "do_sample"), sample = true;
    ebb_error why;
    ebb_status status = json_get_bool(root, "do_sample", JSON_OPTIONAL, &sample, error);
    if (status || !sample) return status;
    if (said) s.temperature = 1.0f;
    status = get_float(root, "temperature", &s.temperature, error);
    if (!status) status = get_float(root, "top_p", &s.top_p, error);
    if (!status) status = get_float(root, "min_p", &s.min_p, error);
    if (!status) status = get_float(root, "repetition_penalty", &s.repeat_penalty, error);
    if (!status) status = config_int(root, "top_k", JSON_OPTIONAL, 0, INT32_MAX, &s.top_k, error);
    if (!status && ebb_sampling_check(&s, &why))
        status = ebb_fail(error, EBB_BAD_FILE, "%s: %s", json_file(root->file), why.text);
    if (!status) config->sampling = s;
    return status;
}

static ebb_status read_generation_config(config_files *config, const char *path, ebb_error *error) {
    json_place root;
    ebb_status status = json_open(path, CONFIG_LIMIT, &root, error);
    if (status) return status;
    status = add_eos(config, &root, error);
    if (!status) status = read_sampling(config, &root, error);
    json_close(&root);
    return status;
}

/* ---- config.json ---- */

/* What is read of a config.json that is open. */
static ebb_status read_root(config_files *config, ebb_error *error) {
    config->text = config->root;
    ebb_status status = json_get_object(&config->root, "text_config", JSON_OPTIONAL, &config->text, error);
    if (!status) status = json_get_text(&config->root, "model_type", JSON_OPTIONAL, &config->outer_type, error);
    config->model_type = config->outer_type;
    if (!status)
        status = json_get_text(&config->text, "model_type", config->outer_type ? JSON_OPTIONAL : JSON_NEEDED,
                               &config->model_type, error);
    if (!status) status = add_eos(config, &config->root, error);
    if (!status && config->text.value != config->root.value) status = add_eos(config, &config->text, error);
    return status;
}

static ebb_status read_config(config_files *config, ebb_error *error) {
    ebb_status status = json_open(config->path, CONFIG_LIMIT, &config->root, error);
    return status ? status : read_root(config, error);
}

ebb_status config_from(const char *path, json_t *root, config_files *config, ebb_error *error) {
    json_place generation = {0};
    *config = (config_files){.path = strdup(path), .sampling = EBB_GREEDY};
    config->root = (json_place){.value = root, .file = config->path};
    ebb_status status = config->path ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    if (!status) status = read_root(config, error);
    if (!status) status = json_get_object(&config->root, "generation_config", JSON_OPTIONAL, &generation, error);
    if (!status && generation.value) status = read_sampling(config, &generation, error);
    if (status) config_close(config);
    return status;
}

ebb_status config_open(const char *directory, const ebb_tokenizer *tokenizer, config_files *config, ebb_error *error) {
    ebb_status status;
    char *generation = path_join(directory, "generation_config.json");
    char *tokens = path_join(directory, "tokenizer_config.json");
    *config = (config_files){.path = path_join(directory, "config.json"), .sampling = EBB_GREEDY};
    if (!config->path || !generation || !tokens) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    else status = read_config(config, error);
    if (!status && file_exists(generation)) status = read_generation_config(config, generation, error);
    if (!status && file_exists(tokens)) status = read_tokenizer_config(config, tokens, tokenizer, error);
    if (!status) status = config_stop_turn(config, tokenizer, error);
    free(generation);
    free(tokens);
    if (status) config_close(config);
    return status;
}

void config_close(config_files *config) {
    json_close(&config->root);
    free(config->path);
    *config = (config_files){0};
}
