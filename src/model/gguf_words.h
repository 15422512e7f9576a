/* model/gguf_words.h: writing a config.json from the fields of a GGUF file, shared by gguf_names.c (softmax families)
 * and gguf_hybrid.c, gguf_hybrid_tensors.c (families with recurrent layers). For these files only. */
#ifndef MODEL_GGUF_WORDS_H
#define MODEL_GGUF_WORDS_H

#include "model/gguf.h"

typedef enum field_kind { WHOLE, NUMBER, CHECKED } field_kind;
typedef struct field_word {
    const char *name, *key; /* behind "ARCHITECTURE."; in config.json */
    field_kind kind;        /* CHECKED: read by its name elsewhere, or of no meaning here */
} field_word;

typedef struct config_writer {
    const gguf_file *file;
    const char *architecture; /* general.architecture */
    json_t *config;
    ebb_error *error;
    char key[96]; /* of field_key */
} config_writer;

/* "llama.block_count"; until the next call. */
const char *field_key(config_writer *w, const char *name);
bool has_field(config_writer *w, const char *name);
/* 0 to INT32_MAX. */
ebb_status get_whole(config_writer *w, const char *name, json_need need, int64_t *value);

/* Takes over `value`; NULL says that there was no memory for it. */
ebb_status put_value(const config_writer *w, json_t *object, const char *key, json_t *value);
ebb_status put_whole(const config_writer *w, json_t *object, const char *key, int64_t value);
/* A field that is not in the table may change the model, and is refused; the others are put by their kind. */
ebb_status put_fields(config_writer *w, const field_word *words, int32_t n);

/* head_dim, and of it what rotates if a part may. */
ebb_status put_heads(config_writer *w, bool partial_rope);
/* vocab_size, and whether the head is tied to the embedding, as the tensors have it. */
ebb_status put_vocab(config_writer *w);
/* Fields of every family that say what no code here serves. */
ebb_status refuse_masks(config_writer *w);

const gguf_tensor *find_tensor(const gguf_file *file, const char *name); /* NULL: there is none */

enum { NAME_ROOM = 128 };
/* "blk.LAYER.": the layer and what follows; false: another name. */
bool layer_of(const char *name, int64_t *layer, const char **rest);
/* A tensor as it lies in the file, under `name`. */
st_tensor as_it_lies(const gguf_file *file, const gguf_tensor *t, const char *name);

/* ---- families with recurrent layers (gguf_hybrid.c, gguf_hybrid_tensors.c) ---- */

typedef struct hybrid_family {
    const char *name, *model_type; /* as general.architecture and config.json have it */
    bool tiled;                    /* value heads lie as ebb_tile_heads orders them */
    bool moonshot;                 /* tensors have Moonshot's names, not Qwen's */
    ebb_status (*put)(const struct hybrid_family *family, config_writer *w);
} hybrid_family;

/* NULL: none of these. */
const hybrid_family *find_hybrid(gguf_text architecture);

/* What places tensors: counts are at most 65536, and 0 where the family has no such thing. */
typedef struct hybrid_sizes {
    int64_t layers, further;                      /* layers of the model, blocks behind them that predict (MTP) */
    int64_t key_heads, heads, key_dim, value_dim; /* of GDN layers */
    int64_t experts;
} hybrid_sizes;
ebb_status read_hybrid_sizes(config_writer *w, hybrid_sizes *sizes);

ebb_status hybrid_tensors(const gguf_file *file, const hybrid_family *family, st_set **set, ebb_error *error);

#endif
