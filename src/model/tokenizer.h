/* model/tokenizer.h: the inside of a tokenizer, shared by the files that load it (tokenizer.c, tiktoken.c), compile its
 * patterns (pattern.c), cut text into words (pretokenize.c, normalize.c), merge bytes into tokens (bpe.c) and turn ids
 * back into text (detokenize.c). Nothing here changes after loading, so one tokenizer serves any number of threads. */
#ifndef MODEL_TOKENIZER_H
#define MODEL_TOKENIZER_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/core.h"
#include "ebb/model.h"
#include "model/json.h"

#define MAX_TOKEN_ID ((1 << 24) - 1) /* two ids fit a 64-bit hash key; no vocabulary comes near */
#define MAX_SPLITS 8
#define MAX_PREFIX 8

enum { TOKEN_HERE = 1, TOKEN_ADDED = 2, TOKEN_SPECIAL = 4 };
typedef struct token {
    const char *bytes; /* in ebb_tokenizer.arena */
    uint32_t n;
    uint32_t flags; /* TOKEN_*; 0: an id without a token */
} token;

/* A token that is looked for in the text before anything else happens to it. */
typedef struct added_token {
    const char *text;
    size_t n;
    int32_t id;
    bool special, lstrip, rstrip;
} added_token;

typedef struct added_set {
    added_token *tokens; /* sorted by text, as bytes */
    int32_t n;
    bool first[256]; /* bytes that some token begins with */
} added_set;

/* A merge's place in the array is its rank: the lowest goes first. */
typedef struct merge {
    int32_t left, right, result;
} merge;
typedef struct merge_slot {
    uint64_t pair; /* left << 24 | right */
    int32_t rank;  /* -1: empty */
} merge_slot;

struct ebb_tokenizer {
    token *tokens; /* [size] */
    int32_t size;
    char *arena;
    int32_t byte_id[256]; /* the token of a single byte; none: unk_token, or -1: left out of a text */
    int32_t *vocab;       /* hash of token bytes, open addressing: ids, -1 empty */
    size_t vocab_mask;
    merge *merges;
    int32_t n_merges;
    merge_slot *slots; /* hash of pairs, open addressing */
    size_t slot_mask;
    bool ignore_merges; /* a word that is a token needs no merging */
    bool ranked;        /* ids are ranks: two neighbours merge where both together are a token. No merges then */
    bool nfc;
    added_set raw, normalized; /* matched before and after the normalizer */
    pcre2_code *splits[MAX_SPLITS];
    int32_t n_splits;
    int32_t prefix[MAX_PREFIX]; /* what the post-processor puts before a text */
    int32_t n_prefix;
    char *chat_template, *chat_tool_template; /* Jinja; NULL: the model has none, or no other one for tools */
    json_t *chat_tokens;                      /* object: bos_token and others that templates name, or NULL */
};

/* ---- loading (tokenizer.c) ---- */

/* The tokenizer of a document that is a tokenizer.json, or that another reader made (gguf.h). `root` stays the
 * caller's. */
ebb_status tokenizer_read(const json_place *root, ebb_tokenizer **tokenizer, ebb_error *error);
/* Sort a set for matching; two tokens that match the same text are refused, about `at`. */
ebb_status added_ready(added_set *set, const json_place *at, ebb_error *error);
/* The tokenizer of a folder with the file tiktoken.model (tiktoken.c). */
ebb_status tiktoken_open(const char *directory, ebb_tokenizer **tokenizer, ebb_error *error);
extern const char kimi_words[]; /* the pattern that cuts its texts into words */

/* ---- bytes, UTF-8 (normalize.c) ---- */

/* Bytes of the character that `s` begins with; 0: a valid beginning that needs more than these n > 0 bytes; -1: not
 * UTF-8. */
int utf8_length(const uint8_t *s, size_t n);
/* The code point of a valid character of `length` bytes. */
int32_t utf8_decode(const uint8_t *s, int length);
/* Normalization form C of valid UTF-8. *out is malloc'ed, or NULL when the text is its own form. */
ebb_status nfc(const uint8_t *text, size_t n, uint8_t **out, size_t *n_out, ebb_error *error);

/* ---- texts of two origins (pretokenize.c) ---- */

/* ebb_tokenize with special tokens, but none of them has a byte where `mark` is 1. */
ebb_status tokenize_marked(const ebb_tokenizer *t, const char *text, const uint8_t *mark, size_t bytes, int32_t **ids,
                           int64_t *count, ebb_error *error);

/* ---- patterns (pattern.c) ---- */

/* Compile a regular expression as tokenizer files write it (Oniguruma's syntax) so that it means the same to PCRE2, or
 * refuse it by name. `where` begins the sentence. */
ebb_status pattern_compile(const char *pattern, const char *where, pcre2_code **code, ebb_error *error);

/* ---- what stands around a text (postprocess.c, chat_template.c) ---- */

/* The post_processor of a tokenizer.json, whose tokens are there already. */
ebb_status postprocess_load(ebb_tokenizer *t, const json_place *root, ebb_error *error);
/* Chat templates and named tokens of a model folder, if it has any. */
ebb_status chat_open(ebb_tokenizer *t, const char *directory, ebb_error *error);
/* The chat template; NULL: none. */
ebb_status chat_choose(ebb_tokenizer *t, const char *template, ebb_error *error);
/* What templates call `name`: bos_token and so on. */
ebb_status chat_name_token(ebb_tokenizer *t, const char *name, const char *content, ebb_error *error);
void chat_close(ebb_tokenizer *t);

/* ---- vocabulary and merging (bpe.c) ---- */

typedef struct id_list {
    int32_t *ids;
    int64_t n, room;
} id_list;
bool id_push(id_list *list, int32_t id); /* false: no memory */

/* Room for one word being merged, kept from word to word. */
typedef struct bpe_node {
    int32_t id, prev, next; /* id -1: merged into its left neighbour; prev, next -1: none */
} bpe_node;
typedef struct bpe_work {
    const uint8_t *word;
    bpe_node *nodes; /* ranked: node i begins at byte i of the word */
    uint64_t *heap;  /* rank << 32 | node */
    size_t room, n_heap;
} bpe_work;
void bpe_work_free(bpe_work *work);

ebb_status vocab_new(ebb_tokenizer *t, size_t n_tokens);                 /* an empty hash for so many tokens */
void vocab_put(ebb_tokenizer *t, int32_t id);                            /* the bytes of token `id` are new */
int32_t vocab_find(const ebb_tokenizer *t, const void *bytes, size_t n); /* or -1 */
ebb_status merges_new(ebb_tokenizer *t, size_t n_merges);                /* an empty hash and array */
void merges_put(ebb_tokenizer *t, int32_t left, int32_t right,
                int32_t result); /* of the next rank; a repeated pair moves there */
/* Append the ids of one word of n <= INT32_MAX bytes. */
ebb_status bpe_encode(const ebb_tokenizer *t, const uint8_t *word, size_t n, bpe_work *work, id_list *out);

#endif
