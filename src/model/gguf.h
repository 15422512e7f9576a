/* model/gguf.h: reading GGUF files, versions 2 and 3: one file with metadata, tokenizer and tensors. What is in one is
 * handed on in the words of a Hugging Face folder, a config.json, a tokenizer.json and tensors by their names there, so
 * that architectures and tokenizer do not know where a model comes from. Everything is checked when the file is opened.
 *
 *   gguf.c            the format itself
 *   gguf_names.c      fields and tensors in the words of config.json and of Hugging Face's checkpoints
 *   gguf_hybrid.c, gguf_hybrid_tensors.c    the same of families with recurrent layers
 *   gguf_tokenizer.c  the tokenizer as a tokenizer.json
 *
 * Called by model.c and tokenizer.c. */
#ifndef MODEL_GGUF_H
#define MODEL_GGUF_H

#include "ebb/model.h"
#include "model/json.h"
#include "model/safetensors.h"

#define GGUF_DIMS 4
#define GGUF_NAME 64 /* bytes of a tensor's name at most, as the format has it */

/* Types of metadata values, as in the file. */
typedef enum gguf_type {
    GGUF_UINT8,
    GGUF_INT8,
    GGUF_UINT16,
    GGUF_INT16,
    GGUF_UINT32,
    GGUF_INT32,
    GGUF_FLOAT32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_UINT64,
    GGUF_INT64,
    GGUF_FLOAT64,
    GGUF_TYPES
} gguf_type;

typedef struct gguf_text { /* in the file: no NUL at its end, valid UTF-8 or not */
    const char *bytes;
    size_t n;
} gguf_text;

typedef struct gguf_field {
    gguf_text key;
    gguf_type type, element; /* element: of an array */
    uint64_t count;          /* of an array */
    const uint8_t *data;     /* the value; of an array its first element */
} gguf_field;

typedef struct gguf_tensor {
    char name[GGUF_NAME + 1];
    const char *type_name;
    int32_t type, dims;       /* type: ebb_type */
    int64_t shape[GGUF_DIMS]; /* rows first, the other way round than in the file */
    const uint8_t *data;
    size_t bytes;
} gguf_tensor;

typedef struct gguf_file {
    const char *path; /* borrowed */
    mapped_file map;
    uint64_t n_fields, n_tensors;
    gguf_field *fields; /* sorted by key */
    gguf_tensor *tensors;
} gguf_file;

/* `path` stays the caller's and outlives the file. */
ebb_status gguf_open(const char *path, gguf_file *file, ebb_error *error);
void gguf_close(gguf_file *file); /* of a zeroed one does nothing */

/* Whether `path` is a file, not a folder: then it is opened as GGUF. */
bool gguf_is_file(const char *path);

/* ---- fields; an optional one that is absent leaves *value alone ---- */

const gguf_field *gguf_find(const gguf_file *file, const char *key); /* NULL: there is none */
ebb_status gguf_get_int(const gguf_file *file, const char *key, json_need need, int64_t lo, int64_t hi, int64_t *value,
                        ebb_error *error);
ebb_status gguf_get_number(const gguf_file *file, const char *key, json_need need, double *value, ebb_error *error);
ebb_status gguf_get_bool(const gguf_file *file, const char *key, json_need need, bool *value, ebb_error *error);
ebb_status gguf_get_text(const gguf_file *file, const char *key, json_need need, gguf_text *value, ebb_error *error);
/* An array of strings, of bytes that are true or false, or of whole numbers of 32 bits; NULL when it is optional and
 * absent. */
ebb_status gguf_get_array(const gguf_file *file, const char *key, json_need need, gguf_type element,
                          const gguf_field **array, ebb_error *error);
/* The string at *at, which moves behind it. */
gguf_text gguf_next_text(const uint8_t **at);
int32_t gguf_int32(const gguf_field *array, uint64_t i);

bool gguf_is(gguf_text text, const char *word);
/* A text as it can stand in a sentence. Returns `out`. */
const char *gguf_shown(gguf_text text, char out[64]);
/* The same as a JSON string; NULL when it is not UTF-8, has a NUL, or there is no memory. */
json_t *gguf_json(gguf_text text);

/* ---- in the words of a folder ---- */

/* What config.json would hold, with generation_config inside where the file says how to sample. */
ebb_status gguf_config(const gguf_file *file, json_t **config, ebb_error *error);
/* The tensors by their Hugging Face names; `file` outlives them. */
ebb_status gguf_tensors(const gguf_file *file, st_set **set, ebb_error *error);
ebb_status gguf_tokenizer(const gguf_file *file, ebb_tokenizer **tokenizer, ebb_error *error);

#endif
