/* model/tokenizer.c: loading a tokenizer.json, and the lookups of ebb/model.h. The file is not trusted: every field
 * that is used is checked, and whatever would make the ids differ from those of the library that wrote the file is
 * refused by name. Not used: truncation and padding. */
#include "model/tokenizer.h"
#include "model/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT ((size_t)256 << 20)

typedef struct loader {
    ebb_tokenizer *t;
    json_place root, model, vocab, merges, added; /* added.value NULL: none */
    size_t n_arena;                               /* used */
    size_t longest;                               /* key of the vocabulary, in bytes of its UTF-8 */
    uint8_t *key;                                 /* room for two such keys */
    bool byte_level;                              /* the pre-tokenizer has a ByteLevel step */
    ebb_error *error;
} loader;

/* ---- the byte <-> character map of GPT-2 ---- */

/* Printable bytes of Latin-1 stand for themselves, the other 68 for U+0100 and up, in order. -1: not in the map. */
static int byte_of(int32_t point) {
    if ((point >= 0x21 && point <= 0x7e) || (point >= 0xa1 && point <= 0xff && point != 0xad)) return point;
    int32_t k = point - 0x100;
    if (k < 0 || k > 67) return -1;
    return k < 33 ? k : k < 67 ? 0x7f + k - 33 : 0xad;
}

/* The bytes that a key of the vocabulary stands for (never more than the key has); -1: a character outside the map. */
static int64_t key_bytes(const char *key, size_t n, uint8_t *out) {
    const uint8_t *s = (const uint8_t *)key;
    int64_t n_out = 0;
    for (size_t i = 0; i < n;) {
        int length = utf8_length(s + i, n - i);
        int byte = length > 0 ? byte_of(utf8_decode(s + i, length)) : -1;
        if (byte < 0) return -1;
        out[n_out++] = (uint8_t)byte;
        i += (size_t)length;
    }
    return n_out;
}

/* ---- added tokens ---- */

static int by_text(const void *a, const void *b) {
    const added_token *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

ebb_status added_ready(added_set *set, const json_place *at, ebb_error *error) {
    qsort(set->tokens, (size_t)set->n, sizeof *set->tokens, by_text);
    for (int32_t i = 0; i < set->n; i++) {
        set->first[(uint8_t)set->tokens[i].text[0]] = true;
        char shown[64];
        if (i && !by_text(&set->tokens[i - 1], &set->tokens[i]))
            return json_fail(at, error, EBB_BAD_FILE, "has two tokens '%s', ids %d and %d",
                             json_shown(set->tokens[i].text, shown), set->tokens[i - 1].id, set->tokens[i].id);
    }
    return EBB_OK;
}

/* Copy `n` bytes and a NUL to the arena, which has room. */
static const char *keep(loader *l, const void *bytes, size_t n) {
    char *at = l->t->arena + l->n_arena;
    memcpy(at, bytes, n);
    at[n] = 0;
    l->n_arena += n + 1;
    return at;
}

/* The normalizer would have to change the token itself before it can be found in normalized text. */
static ebb_status refuse_unnormalized(loader *l, const json_place *at, const char *content, size_t n) {
    uint8_t *form = NULL;
    size_t n_form = n;
    char shown[64];
    ebb_status status = l->t->nfc ? nfc((const uint8_t *)content, n, &form, &n_form, l->error) : EBB_OK;
    if (!status && form && (n_form != n || memcmp(form, content, n)))
        status = json_fail(at, l->error, EBB_UNSUPPORTED, "('%s') asks for normalized text and is not normalized",
                           json_shown(content, shown));
    free(form);
    return status;
}

static ebb_status load_added_token(loader *l, const json_place *at) {
    int64_t id = 0;
    const char *content = NULL;
    bool special = false, lstrip = false, rstrip = false, single_word = false;
    ebb_status status = json_get_int(at, "id", JSON_NEEDED, 0, MAX_TOKEN_ID, &id, l->error);
    if (!status) status = json_get_text(at, "content", JSON_NEEDED, &content, l->error);
    if (!status) status = json_get_bool(at, "special", JSON_OPTIONAL, &special, l->error);
    if (!status) status = json_get_bool(at, "lstrip", JSON_OPTIONAL, &lstrip, l->error);
    if (!status) status = json_get_bool(at, "rstrip", JSON_OPTIONAL, &rstrip, l->error);
    if (!status) status = json_get_bool(at, "single_word", JSON_OPTIONAL, &single_word, l->error);
    bool normalized = !special;
    if (!status) status = json_get_bool(at, "normalized", JSON_OPTIONAL, &normalized, l->error);
    if (status) return status;
    char shown[64];
    if (!content[0]) return json_fail(at, l->error, EBB_BAD_FILE, "has an empty content");
    if (single_word)
        return json_fail(at, l->error, EBB_UNSUPPORTED, "('%s') asks for single_word, which is not supported",
                         json_shown(content, shown));
    token *here = &l->t->tokens[id];
    if (here->flags)
        return json_fail(at, l->error, EBB_BAD_FILE, "('%s') has the id %d of another token",
                         json_shown(content, shown), (int)id);
    size_t n = strlen(content);
    *here = (token){keep(l, content, n), (uint32_t)n, TOKEN_HERE | TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0u)};
    added_set *set = normalized ? &l->t->normalized : &l->t->raw;
    set->tokens[set->n++] = (added_token){here->bytes, n, (int32_t)id, special, lstrip, rstrip};
    return normalized ? refuse_unnormalized(l, at, content, n) : EBB_OK;
}

static ebb_status load_added(loader *l) {
    size_t n = l->added.value ? json_array_size(l->added.value) : 0;
    l->t->raw.tokens = calloc(n + 1, sizeof(added_token));
    l->t->normalized.tokens = calloc(n + 1, sizeof(added_token));
    if (!l->t->raw.tokens || !l->t->normalized.tokens) return EBB_NO_MEMORY;
    ebb_status status = EBB_OK;
    for (size_t i = 0; i < n && !status; i++) {
        json_place at;
        json_item(&l->added, i, &at);
        status = load_added_token(l, &at);
    }
    if (!status) status = added_ready(&l->t->raw, &l->added, l->error);
    if (!status) status = added_ready(&l->t->normalized, &l->added, l->error);
    return status;
}

/* The added token with this content, or -1. */
static int32_t added_id(const ebb_tokenizer *t, const char *content) {
    const added_set *const sets[] = {&t->raw, &t->normalized};
    added_token wanted = {.text = content, .n = strlen(content)};
    for (int i = 0; i < COUNT(sets); i++) {
        const added_token *a = bsearch(&wanted, sets[i]->tokens, (size_t)sets[i]->n, sizeof wanted, by_text);
        if (a) return a->id;
    }
    return -1;
}

/* ---- vocabulary ---- */

/* The id that the vocabulary gives to `key`. */
static ebb_status key_id(loader *l, const char *key, const json_t *value, int32_t *id) {
    int64_t whole = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
    ebb_status status = EBB_OK;
    if (whole < 0 || whole > MAX_TOKEN_ID) /* the same check again, for its sentence */
        status = json_get_int(&l->vocab, key, JSON_NEEDED, 0, MAX_TOKEN_ID, &whole, l->error);
    *id = (int32_t)whole;
    return status;
}

static ebb_status two_tokens_one_id(loader *l, const char *key, int32_t id) {
    const char *other;
    json_t *value;
    char a[64], b[64];
    json_object_foreach((json_t *)l->vocab.value, other, value) if (json_number_value(value) == id) break;
    return json_fail(&l->vocab, l->error, EBB_BAD_FILE, "gives '%s' the id %d, which '%s' has", json_shown(key, a), id,
                     json_shown(other ? other : l->t->tokens[id].bytes, b));
}

/* A key that is also an added token is that token's text, not mapped bytes; it takes part in merging where both are the
 * same. */
static ebb_status load_added_key(loader *l, const char *key, size_t n, int32_t id) {
    const token *here = &l->t->tokens[id];
    char shown[64];
    if (here->n != n || memcmp(here->bytes, key, n))
        return json_fail(&l->vocab, l->error, EBB_BAD_FILE, "gives '%s' the id %d of the added token '%s'",
                         json_shown(key, shown), id, json_shown(here->bytes, (char[64]){0}));
    if (key_bytes(key, n, l->key) == (int64_t)n && !memcmp(l->key, key, n)) vocab_put(l->t, id);
    return EBB_OK;
}

static ebb_status load_key(loader *l, const char *key, const json_t *value) {
    int32_t id;
    char shown[64];
    size_t n = strlen(key);
    ebb_status status = key_id(l, key, value, &id);
    if (status) return status;
    if (l->t->tokens[id].flags & TOKEN_ADDED) return load_added_key(l, key, n, id);
    int32_t other = added_id(l->t, key);
    if (other >= 0)
        return json_fail(&l->vocab, l->error, EBB_BAD_FILE, "gives '%s' the id %d, the added token has %d",
                         json_shown(key, shown), id, other);
    int64_t bytes = key_bytes(key, n, l->key);
    if (bytes <= 0)
        return json_fail(&l->vocab, l->error, EBB_BAD_FILE, "has the token '%s', which is not of byte-level characters",
                         json_shown(key, shown));
    if (l->t->tokens[id].flags) return two_tokens_one_id(l, key, id);
    l->t->tokens[id] = (token){keep(l, l->key, (size_t)bytes), (uint32_t)bytes, TOKEN_HERE};
    vocab_put(l->t, id);
    return EBB_OK;
}

/* A byte without a token (SmolLM2's vocabulary lacks some control characters) is unk_token where the file names one,
 * else it is left out of the text, as in the library. Other ways to stand in for it are refused. */
static ebb_status find_bytes(loader *l) {
    const char *name = NULL;
    bool fused = false, spelled = false;
    ebb_status status = json_get_text(&l->model, "unk_token", JSON_OPTIONAL, &name, l->error);
    if (!status) status = json_get_bool(&l->model, "fuse_unk", JSON_OPTIONAL, &fused, l->error);
    if (!status) status = json_get_bool(&l->model, "byte_fallback", JSON_OPTIONAL, &spelled, l->error);
    if (status) return status;
    const int32_t unknown = name ? ebb_tokenizer_id(l->t, name) : -1;
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        l->t->byte_id[i] = vocab_find(l->t, &byte, 1);
        const bool in_utf8 = i != 0xc0 && i != 0xc1 && i < 0xf5;
        if (l->t->byte_id[i] >= 0 || !in_utf8) continue;
        if (spelled || (name && fused))
            return json_fail(&l->model, l->error, EBB_UNSUPPORTED,
                             "has %s true and no token for the byte 0x%02x, which is not supported",
                             spelled ? "byte_fallback" : "fuse_unk", i);
        if (name && unknown < 0)
            return json_fail(&l->model, l->error, EBB_BAD_FILE, "has an unk_token that is not in the vocabulary");
        l->t->byte_id[i] = unknown;
    }
    return EBB_OK;
}

/* The largest id, the longest key, and room for all bytes; the values are checked here for the first time. */
static ebb_status measure(loader *l) {
    size_t arena = 1;
    int64_t largest = -1;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)l->vocab.value, key, value) {
        int32_t id;
        ebb_status status = key_id(l, key, value, &id);
        if (status) return status;
        size_t n = strlen(key);
        arena += n + 1;
        if (n > l->longest) l->longest = n;
        largest = max_i64(largest, id);
    }
    for (size_t i = 0; l->added.value && i < json_array_size(l->added.value); i++) {
        const json_t *item = json_array_get(l->added.value, i);
        double id = json_number_value(json_object_get(item, "id"));
        if (id >= 0 && id <= MAX_TOKEN_ID) largest = max_i64(largest, (int64_t)id);
        arena += json_string_length(json_object_get(item, "content")) + 1;
    }
    l->t->size = (int32_t)(largest + 1);
    l->t->tokens = calloc((size_t)largest + 2, sizeof *l->t->tokens);
    l->t->arena = malloc(arena);
    l->key = malloc(2 * l->longest + 1);
    return l->t->tokens && l->t->arena && l->key ? EBB_OK : EBB_NO_MEMORY;
}

static ebb_status load_vocab(loader *l) {
    const char *key;
    json_t *value;
    ebb_status status = measure(l);
    if (!status) status = load_added(l);
    if (!status) status = vocab_new(l->t, json_object_size(l->vocab.value));
    if (status) return status;
    json_object_foreach((json_t *)l->vocab.value, key, value) {
        status = load_key(l, key, value);
        if (status) return status;
    }
    return find_bytes(l);
}

/* ---- merges ---- */

/* The two halves of a merge, "a b" or ["a", "b"]. */
static bool halves(const json_t *item, const char *half[2], size_t n[2]) {
    if (json_is_string(item)) {
        const char *text = json_string_value(item), *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' ')) return false;
        half[0] = text, n[0] = (size_t)(space - text);
        half[1] = space + 1, n[1] = strlen(space + 1);
        return true;
    }
    if (!json_is_array(item) || json_array_size(item) != 2) return false;
    for (size_t i = 0; i < 2; i++) {
        half[i] = json_string_value(json_array_get(item, i));
        if (!half[i]) return false;
        n[i] = strlen(half[i]);
    }
    return true;
}

static ebb_status load_merge(loader *l, size_t rank) {
    const char *half[2];
    size_t n[2], n_key = 0;
    int32_t id[2];
    char shown[64];
    json_place at;
    json_item(&l->merges, rank, &at);
    if (!halves(at.value, half, n))
        return json_fail(&at, l->error, EBB_BAD_FILE, "is not a merge, expected \"a b\" or [\"a\", \"b\"]");
    for (int i = 0; i < 2; i++) {
        int64_t bytes = n[i] <= l->longest ? key_bytes(half[i], n[i], l->key + n_key) : -1;
        id[i] = bytes > 0 ? vocab_find(l->t, l->key + n_key, (size_t)bytes) : -1;
        if (id[i] < 0)
            return json_fail(&at, l->error, EBB_BAD_FILE, "merges '%s', which is not in the vocabulary",
                             json_shown(half[i], shown));
        n_key += (size_t)bytes;
    }
    int32_t result = vocab_find(l->t, l->key, n_key);
    if (result < 0)
        return json_fail(&at, l->error, EBB_BAD_FILE, "('%s') merges to what is not in the vocabulary",
                         json_shown(half[0], shown));
    if (l->t->tokens[result].flags & TOKEN_SPECIAL)
        return json_fail(&at, l->error, EBB_UNSUPPORTED, "merges plain text to the special token '%s'",
                         json_shown(l->t->tokens[result].bytes, shown));
    merges_put(l->t, id[0], id[1], result);
    return EBB_OK;
}

static ebb_status load_merges(loader *l) {
    size_t n = json_array_size(l->merges.value);
    ebb_status status = merges_new(l->t, n);
    for (size_t i = 0; i < n && !status; i++) status = load_merge(l, i);
    return status;
}

/* ---- the steps around the model ---- */

static ebb_status expect_type(const json_place *at, const char *expected, ebb_error *error) {
    const char *type = NULL;
    char shown[64];
    ebb_status status = json_get_text(at, "type", JSON_NEEDED, &type, error);
    if (status || !strcmp(type, expected)) return status;
    return json_fail(at, error, EBB_UNSUPPORTED, "has the type '%s', expected %s", json_shown(type, shown), expected);
}

static ebb_status refuse_text(const json_place *at, const char *key, ebb_error *error) {
    const char *text = "";
    char shown[64];
    ebb_status status = json_get_text(at, key, JSON_OPTIONAL, &text, error);
    if (status || !text[0]) return status;
    return json_fail(at, error, EBB_UNSUPPORTED, "has the %s '%s', which is not supported", key,
                     json_shown(text, shown));
}

static ebb_status load_model(loader *l) {
    double dropout = 0;
    ebb_status status = json_get_object(&l->root, "model", JSON_NEEDED, &l->model, l->error);
    if (!status) status = expect_type(&l->model, "BPE", l->error);
    if (!status) status = json_get_number(&l->model, "dropout", JSON_OPTIONAL, &dropout, l->error);
    if (!status && dropout != 0)
        status =
            json_fail(&l->model, l->error, EBB_UNSUPPORTED, "has a dropout of %g, which is not supported", dropout);
    if (!status) status = refuse_text(&l->model, "continuing_subword_prefix", l->error);
    if (!status) status = refuse_text(&l->model, "end_of_word_suffix", l->error);
    if (!status) status = json_get_bool(&l->model, "ignore_merges", JSON_OPTIONAL, &l->t->ignore_merges, l->error);
    if (!status) status = json_get_object(&l->model, "vocab", JSON_NEEDED, &l->vocab, l->error);
    if (!status) status = json_get_array(&l->model, "merges", JSON_NEEDED, &l->merges, l->error);
    if (!status) status = json_get_array(&l->root, "added_tokens", JSON_OPTIONAL, &l->added, l->error);
    return status;
}

static ebb_status load_normalizer(loader *l, const json_place *at) {
    const char *type = NULL;
    json_place steps;
    ebb_status status = json_get_text(at, "type", JSON_NEEDED, &type, l->error);
    if (status) return status;
    if (!strcmp(type, "NFC")) {
        l->t->nfc = true;
        return EBB_OK;
    }
    if (strcmp(type, "Sequence")) return expect_type(at, "NFC, or a Sequence of it", l->error);
    status = json_get_array(at, "normalizers", JSON_NEEDED, &steps, l->error);
    for (size_t i = 0; !status && i < json_array_size(steps.value); i++) {
        json_place step;
        json_item(&steps, i, &step);
        status = load_normalizer(l, &step);
    }
    return status;
}

static ebb_status add_split(loader *l, const json_place *at, const char *pattern) {
    char where[sizeof l->error->text];
    if (l->t->n_splits == MAX_SPLITS)
        return json_fail(at, l->error, EBB_UNSUPPORTED, "is one Split too many, at most %d are supported", MAX_SPLITS);
    snprintf(where, sizeof where, "%s: field %s", json_file(at->file), at->path);
    ebb_status status = pattern_compile(pattern, where, &l->t->splits[l->t->n_splits], l->error);
    if (!status) l->t->n_splits++;
    return status;
}

static ebb_status load_split(loader *l, const json_place *at) {
    const char *behavior = NULL, *regex = NULL;
    bool invert = false;
    char shown[64];
    json_place pattern;
    ebb_status status = json_get_object(at, "pattern", JSON_NEEDED, &pattern, l->error);
    if (!status) status = json_get_text(at, "behavior", JSON_NEEDED, &behavior, l->error);
    if (!status) status = json_get_bool(at, "invert", JSON_OPTIONAL, &invert, l->error);
    if (status) return status;
    if (strcmp(behavior, "Isolated"))
        return json_fail(at, l->error, EBB_UNSUPPORTED, "has the behavior '%s', expected Isolated",
                         json_shown(behavior, shown));
    if (invert) return json_fail(at, l->error, EBB_UNSUPPORTED, "has invert true, expected false");
    status = json_get_text(&pattern, "Regex", JSON_NEEDED, &regex, l->error);
    return status ? status : add_split(l, &pattern, regex);
}

static ebb_status load_byte_level(loader *l, const json_place *at) {
    bool add_prefix_space = true, use_regex = true;
    ebb_status status = json_get_bool(at, "add_prefix_space", JSON_NEEDED, &add_prefix_space, l->error);
    if (!status) status = json_get_bool(at, "use_regex", JSON_OPTIONAL, &use_regex, l->error);
    if (status) return status;
    if (add_prefix_space) return json_fail(at, l->error, EBB_UNSUPPORTED, "has add_prefix_space true, expected false");
    l->byte_level = true;
    /* the pattern of GPT-2 */
    return use_regex
               ? add_split(l, at, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+")
               : EBB_OK;
}

/* Digits as words of their own, or runs of them. */
static ebb_status load_digits(loader *l, const json_place *at) {
    bool individual = false;
    ebb_status status = json_get_bool(at, "individual_digits", JSON_OPTIONAL, &individual, l->error);
    return status ? status : add_split(l, at, individual ? "\\p{N}" : "\\p{N}+");
}

/* Splits, then one ByteLevel, whose characters nothing may split again. */
static ebb_status load_pre_tokenizer(loader *l, const json_place *at) {
    const char *type = NULL;
    json_place steps;
    ebb_status status = json_get_text(at, "type", JSON_NEEDED, &type, l->error);
    if (status) return status;
    bool sequence = !strcmp(type, "Sequence");
    if (l->byte_level && !sequence)
        return json_fail(at, l->error, EBB_UNSUPPORTED,
                         "comes after ByteLevel, which is supported as the last step only");
    if (!strcmp(type, "Split")) return load_split(l, at);
    if (!strcmp(type, "Digits")) return load_digits(l, at);
    if (!strcmp(type, "ByteLevel")) return load_byte_level(l, at);
    if (!sequence) return expect_type(at, "Split, Digits, ByteLevel or a Sequence of them", l->error);
    status = json_get_array(at, "pretokenizers", JSON_NEEDED, &steps, l->error);
    for (size_t i = 0; !status && i < json_array_size(steps.value); i++) {
        json_place step;
        json_item(&steps, i, &step);
        status = load_pre_tokenizer(l, &step);
    }
    return status;
}

static ebb_status load_steps(loader *l) {
    json_place at = {0};
    ebb_status status = json_get_object(&l->root, "normalizer", JSON_OPTIONAL, &at, l->error);
    if (!status && at.value) status = load_normalizer(l, &at);
    if (!status) status = json_get_object(&l->root, "pre_tokenizer", JSON_NEEDED, &at, l->error);
    if (!status) status = load_pre_tokenizer(l, &at);
    if (!status && !l->byte_level)
        status = json_fail(&at, l->error, EBB_UNSUPPORTED, "has no ByteLevel step, only byte-level BPE is supported");
    at.value = NULL;
    if (!status) status = json_get_object(&l->root, "decoder", JSON_OPTIONAL, &at, l->error);
    if (!status && at.value) status = expect_type(&at, "ByteLevel", l->error);
    return status;
}

/* ---- the public calls ---- */

ebb_status tokenizer_read(const json_place *root, ebb_tokenizer **tokenizer, ebb_error *error) {
    loader l = {.t = calloc(1, sizeof(ebb_tokenizer)), .root = *root, .error = error};
    *tokenizer = NULL;
    ebb_status status = l.t ? load_model(&l) : EBB_NO_MEMORY;
    if (!status) status = load_steps(&l);
    if (!status) status = load_vocab(&l);
    if (!status) status = load_merges(&l);
    if (!status) status = postprocess_load(l.t, root, error);
    if (!status) {
        *tokenizer = l.t;
        l.t = NULL;
    } else if (status == EBB_NO_MEMORY) ebb_fail(error, status, "no memory for the tokenizer of %s", root->file);
    ebb_tokenizer_close(l.t);
    free(l.key);
    return status;
}

static ebb_status open_gguf(const char *path, ebb_tokenizer **tokenizer, ebb_error *error) {
    gguf_file file;
    ebb_status status = gguf_open(path, &file, error);
    if (!status) status = gguf_tokenizer(&file, tokenizer, error);
    gguf_close(&file);
    return status;
}

/* tokenizer.json or, in a folder without one, tiktoken.model. */
static ebb_status open_folder(const char *directory, ebb_tokenizer **tokenizer, ebb_error *error) {
    json_place root = {0};
    ebb_status status;
    char *path = path_join(directory, "tokenizer.json"), *ranks = path_join(directory, "tiktoken.model");
    if (!path || !ranks) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the tokenizer of %s", directory);
    else if (!file_exists(path) && file_exists(ranks)) status = tiktoken_open(directory, tokenizer, error);
    else {
        status = json_open(path, FILE_LIMIT, &root, error);
        if (!status) status = tokenizer_read(&root, tokenizer, error);
    }
    json_close(&root);
    free(path), free(ranks);
    return status;
}

ebb_status ebb_tokenizer_open(const char *directory, ebb_tokenizer **tokenizer, ebb_error *error) {
    if (!directory || !tokenizer)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_tokenizer_open needs a directory and a place for the tokenizer");
    *tokenizer = NULL;
    if (gguf_is_file(directory)) return open_gguf(directory, tokenizer, error);
    ebb_status status = open_folder(directory, tokenizer, error);
    if (!status && (status = chat_open(*tokenizer, directory, error))) {
        ebb_tokenizer_close(*tokenizer);
        *tokenizer = NULL;
    }
    return status;
}

void ebb_tokenizer_close(ebb_tokenizer *t) {
    if (!t) return;
    for (int32_t i = 0; i < t->n_splits; i++) pcre2_code_free(t->splits[i]);
    free(t->raw.tokens), free(t->normalized.tokens);
    free(t->slots), free(t->merges);
    free(t->vocab), free(t->tokens), free(t->arena);
    chat_close(t);
    free(t);
}

int32_t ebb_tokenizer_size(const ebb_tokenizer *t) { return t->size; }

int32_t ebb_tokenizer_id(const ebb_tokenizer *t, const char *content) {
    int32_t id = added_id(t, content);
    return id >= 0 || !content[0] ? id : vocab_find(t, content, strlen(content));
}

bool ebb_tokenizer_special(const ebb_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->size && (t->tokens[id].flags & TOKEN_SPECIAL);
}

const char *ebb_token_bytes(const ebb_tokenizer *t, int32_t id, size_t *bytes) {
    bool here = id >= 0 && id < t->size && t->tokens[id].flags;
    if (bytes) *bytes = here ? t->tokens[id].n : 0;
    return here ? t->tokens[id].bytes : NULL;
}
