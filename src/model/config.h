/* model/config.h: the JSON files beside the weights, as far as every architecture shares them: config.json with its
 * model type and text part, stop tokens from all files that name some, and the sampling of generation_config.json. The
 * fields that make an architecture are read by its own file. Called by src/model only. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include "ebb/model.h"
#include "model/json.h"

#define CONFIG_MAX_STOP 64

typedef struct config_files {
    char *path;             /* of config.json */
    json_place root, text;  /* the whole of config.json; its text_config, or the whole when there is none */
    const char *outer_type; /* model_type of root, NULL when only text_config names one */
    const char *model_type; /* of the text model */
    int32_t n_stop;
    int32_t stop[CONFIG_MAX_STOP];
    ebb_sampling sampling;
} config_files;

/* Read config.json, which must be there, and generation_config.json and tokenizer_config.json where they are. */
ebb_status config_open(const char *directory, const ebb_tokenizer *tokenizer, config_files *config, ebb_error *error);
/* The same of a document that another reader made of the file `path` (gguf.h), with generation_config inside. Takes
 * over `root`. */
ebb_status config_from(const char *path, json_t *root, config_files *config, ebb_error *error);
/* <|im_end|>, where the tokenizer has that special token, ends an answer whether a file names it or not: the
 * text_config of Qwen3.5 names <|endoftext|> alone. Done by config_open; of a GGUF file when its tokenizer is there. */
ebb_status config_stop_turn(config_files *config, const ebb_tokenizer *tokenizer, ebb_error *error);
void config_close(config_files *config);

/* Members with a range, as json_get_*; in `at` of config.json. */
ebb_status config_int(const json_place *at, const char *key, json_need need, int32_t lo, int32_t hi, int32_t *value,
                      ebb_error *error);
/* lo < value <= hi */
ebb_status config_number(const json_place *at, const char *key, json_need need, double lo, double hi, double *value,
                         ebb_error *error);

#endif
