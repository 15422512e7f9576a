/* model/tiktoken.c: the tokenizer of a folder as Moonshot releases them (Kimi-Linear, Kimi-K2): tiktoken.model, a line
 * a token, its bytes in base64 and its rank, which is its id; and the special tokens behind them, named by
 * added_tokens_decoder of tokenizer_config.json. How text is cut into words stands in the release's Python code only,
 * so it stands here. Neither file is trusted. Called by tokenizer.c. */
#include "model/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT ((size_t)256 << 20)
#define CONFIG_LIMIT ((size_t)64 << 20)
#define RESERVED 256 /* special tokens, named or not */

/* Chinese characters; words of upper, then lower case with what clings to them; up to three digits; signs; ends of
 * lines; spaces. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
const char kimi_words[] =
    "[\\p{Han}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTION
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

typedef struct reader {
    ebb_tokenizer *t;
    const char *path; /* of tiktoken.model */
    char *text;
    size_t bytes;
    int32_t n_ranks;
    size_t n_arena;         /* used */
    json_place root, names; /* tokenizer_config.json; its added_tokens_decoder */
    ebb_error *error;
} reader;

/* ---- tiktoken.model ---- */

static ebb_status fail_line(const reader *r, int64_t line, const char *what) {
    return ebb_fail(r->error, EBB_BAD_FILE, "%s: line %lld %s", json_file(r->path), (long long)line, what);
}

static int digit_of(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Base64 with its padding; -1: it is not that. Never more than 3 bytes for 4 characters. */
static int64_t decode(const char *text, size_t n, char *out) {
    if (n == 0 || n % 4) return -1;
    const size_t padding = text[n - 1] != '=' ? 0 : text[n - 2] != '=' ? 1 : 2;
    int64_t n_out = 0;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;
        const size_t whole = i + 4 == n ? 4 - padding : 4;
        for (size_t k = 0; k < 4; k++) {
            const int digit = k < whole ? digit_of(text[i + k]) : 0;
            if (digit < 0) return -1;
            bits = bits << 6 | (uint32_t)digit;
        }
        for (size_t k = 0; k + 1 < whole; k++) out[n_out++] = (char)(bits >> (16 - 8 * k) & 0xff);
        if (whole < 4 && bits & (whole == 3 ? 0xffu : 0xffffu)) return -1;
    }
    return n_out;
}

static ebb_status read_rank(const reader *r, int64_t line, const char *text, size_t n, int32_t *rank) {
    int64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || value >= r->n_ranks)
            return fail_line(r, line, "has no rank below the number of lines behind its token");
        value = 10 * value + (text[i] - '0');
    }
    if (n == 0 || value >= r->n_ranks)
        return fail_line(r, line, "has no rank below the number of lines behind its token");
    *rank = (int32_t)value;
    return EBB_OK;
}

static ebb_status read_line(reader *r, int64_t line, const char *text, size_t n) {
    const char *space = memchr(text, ' ', n);
    int32_t rank = -1;
    if (!space) return fail_line(r, line, "is not a token in base64, a space and a rank");
    ebb_status status = read_rank(r, line, space + 1, (size_t)(text + n - space) - 1, &rank);
    if (status) return status;
    if (r->t->tokens[rank].flags) return fail_line(r, line, "has the rank of a line before");
    char *at = r->t->arena + r->n_arena;
    const int64_t bytes = decode(text, (size_t)(space - text), at);
    if (bytes < 0) return fail_line(r, line, "has a token that is not in base64");
    at[bytes] = 0;
    if (vocab_find(r->t, at, (size_t)bytes) >= 0) return fail_line(r, line, "has the token of a line before");
    r->n_arena += (size_t)bytes + 1;
    r->t->tokens[rank] = (token){at, (uint32_t)bytes, TOKEN_HERE};
    vocab_put(r->t, rank);
    return EBB_OK;
}

/* The end of the line at `at`, without what ends it; *next begins the one behind it. */
static const char *line_end(const reader *r, const char *at, const char **next) {
    const char *all = r->text + r->bytes, *end = memchr(at, '\n', (size_t)(all - at));
    *next = end ? end + 1 : all;
    if (!end) end = all;
    return end > at && end[-1] == '\r' ? end - 1 : end;
}

static ebb_status count_ranks(reader *r) {
    int64_t n = 0;
    for (const char *at = r->text, *next; at < r->text + r->bytes; at = next) n += line_end(r, at, &next) > at;
    if (n == 0 || n > MAX_TOKEN_ID - RESERVED)
        return ebb_fail(r->error, EBB_BAD_FILE, "%s has %lld tokens, expected 1 to %d", json_file(r->path),
                        (long long)n, MAX_TOKEN_ID - RESERVED);
    r->n_ranks = (int32_t)n;
    return EBB_OK;
}

static ebb_status read_ranks(reader *r) {
    int64_t line = 1;
    ebb_status status = vocab_new(r->t, (size_t)r->n_ranks);
    for (const char *at = r->text, *next; at < r->text + r->bytes && !status; at = next, line++) {
        const char *end = line_end(r, at, &next);
        if (end > at) status = read_line(r, line, at, (size_t)(end - at));
    }
    for (int i = 0; i < 256 && !status; i++) {
        const uint8_t byte = (uint8_t)i;
        r->t->byte_id[i] = vocab_find(r->t, &byte, 1);
        if (r->t->byte_id[i] < 0)
            status = ebb_fail(r->error, EBB_BAD_FILE, "%s has no token for the byte 0x%02x", json_file(r->path), i);
    }
    return status;
}

/* ---- special tokens ---- */

/* One that the file does not name is <|reserved_token_ID|>. All of them stand for themselves in a text only where
 * special tokens do; those that are not `special` (the marks of a tool call) are shown in an answer. */
static ebb_status add_special(reader *r, int32_t id) {
    char key[16], reserved[40];
    const char *content = reserved;
    bool special = true;
    ebb_status status = EBB_OK;
    json_place at;
    snprintf(key, sizeof key, "%d", id);
    snprintf(reserved, sizeof reserved, "<|reserved_token_%d|>", id);
    if (json_has(&r->names, key)) {
        status = json_get_object(&r->names, key, JSON_NEEDED, &at, r->error);
        if (!status) status = json_get_text(&at, "content", JSON_NEEDED, &content, r->error);
        if (!status) status = json_get_bool(&at, "special", JSON_OPTIONAL, &special, r->error);
        if (!status && !content[0]) status = json_fail(&at, r->error, EBB_BAD_FILE, "has an empty content");
    }
    if (status) return status;
    const size_t n = strlen(content);
    char *kept = memcpy(r->t->arena + r->n_arena, content, n + 1);
    r->n_arena += n + 1;
    r->t->tokens[id] = (token){kept, (uint32_t)n, TOKEN_HERE | TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0u)};
    r->t->raw.tokens[r->t->raw.n++] = (added_token){.text = kept, .n = n, .id = id, .special = true};
    return EBB_OK;
}

/* Every name must be of an id behind the ranks. */
static ebb_status check_names(const reader *r) {
    const char *key;
    json_t *value;
    char shown[64];
    json_object_foreach((json_t *)r->names.value, key, value) {
        char spelled[24];
        const long id = strtol(key, NULL, 10);
        snprintf(spelled, sizeof spelled, "%ld", id);
        if (strcmp(key, spelled) || id < r->n_ranks || id >= r->n_ranks + RESERVED)
            return json_fail(&r->names, r->error, EBB_BAD_FILE, "names '%s', expected ids %d to %d",
                             json_shown(key, shown), r->n_ranks, r->n_ranks + RESERVED - 1);
    }
    return EBB_OK;
}

static ebb_status add_specials(reader *r) {
    ebb_status status = check_names(r);
    for (int32_t i = 0; i < RESERVED && !status; i++) status = add_special(r, r->n_ranks + i);
    return status ? status : added_ready(&r->t->raw, &r->names, r->error);
}

/* ---- the folder ---- */

/* Other releases have files of this name and another pattern. */
static ebb_status check_class(const reader *r) {
    const char *class = "TikTokenTokenizer";
    char shown[64];
    ebb_status status = json_get_text(&r->root, "tokenizer_class", JSON_OPTIONAL, &class, r->error);
    if (!status && strcmp(class, "TikTokenTokenizer"))
        status =
            ebb_fail(r->error, EBB_UNSUPPORTED,
                     "%s: field tokenizer_class is '%s', with a tiktoken.model TikTokenTokenizer (Kimi) is expected",
                     json_file(r->root.file), json_shown(class, shown));
    return status;
}

/* Memory for all tokens: no text of a file is longer here than there. */
static ebb_status reserve(reader *r) {
    size_t arena = r->bytes + (size_t)r->n_ranks + RESERVED * 40;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r->names.value, key, value) arena +=
        json_string_length(json_object_get(value, "content")) + 1;
    r->t->size = r->n_ranks + RESERVED;
    r->t->tokens = calloc((size_t)r->t->size + 1, sizeof *r->t->tokens);
    r->t->arena = malloc(arena);
    r->t->raw.tokens = calloc(RESERVED, sizeof *r->t->raw.tokens);
    return r->t->tokens && r->t->arena && r->t->raw.tokens ? EBB_OK : EBB_NO_MEMORY;
}

static ebb_status read_all(reader *r, const char *config) {
    ebb_status status = json_open(config, CONFIG_LIMIT, &r->root, r->error);
    if (!status) status = check_class(r);
    if (!status) status = json_get_object(&r->root, "added_tokens_decoder", JSON_NEEDED, &r->names, r->error);
    if (!status) status = read_file(r->path, FILE_LIMIT, &r->text, &r->bytes, r->error);
    if (!status) status = count_ranks(r);
    if (!status) status = reserve(r);
    if (!status) status = read_ranks(r);
    if (!status) status = add_specials(r);
    if (!status) status = pattern_compile(kimi_words, json_file(r->path), &r->t->splits[0], r->error);
    if (!status) r->t->n_splits = 1;
    return status;
}

ebb_status tiktoken_open(const char *directory, ebb_tokenizer **tokenizer, ebb_error *error) {
    char *path = path_join(directory, "tiktoken.model"), *config = path_join(directory, "tokenizer_config.json");
    reader r = {.t = calloc(1, sizeof(ebb_tokenizer)), .path = path, .error = error};
    *tokenizer = NULL;
    ebb_status status = r.t && path && config ? EBB_OK : EBB_NO_MEMORY;
    if (!status) {
        r.t->ranked = r.t->ignore_merges = true;
        status = read_all(&r, config);
    }
    if (status == EBB_NO_MEMORY) ebb_fail(error, status, "no memory for the tokenizer of %s", directory);
    if (!status) {
        *tokenizer = r.t;
        r.t = NULL;
    }
    ebb_tokenizer_close(r.t);
    json_close(&r.root);
    free(r.text), free(path), free(config);
    return status;
}
