/* model/gguf_tokenizer.c: the tokenizer of a GGUF file in the words of a tokenizer.json, which tokenizer.c reads. The
 * file has the tokens, their kinds and the merges; how text is cut before merging it only names (tokenizer.ggml.pre),
 * and each name stands here with the steps that the tokenizer.json of its model family has. Called by tokenizer.c. */
#include "model/gguf.h"
#include "model/tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of tokens, as in the file. */
enum { KIND_NORMAL = 1, KIND_UNKNOWN, KIND_CONTROL, KIND_USER, KIND_UNUSED };

/* Contractions, letters, up to so many digits, signs, ends of lines, spaces. In Qwen3.5 marks are letters. */
#define WORDS_OF(letters, digits)                                                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[" letters "]+|\\p{N}" digits "| ?[^\\s" letters \
    "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS(digits) WORDS_OF("\\p{L}", digits)

static const struct pre_tokenizer {
    const char *name, *split;
    bool gpt2;          /* then by the pattern of GPT-2, which ByteLevel has */
    bool nfc;           /* text is normalized first */
    bool ignore_merges; /* a word that is a token needs no merging */
    bool bos;           /* a text begins with the token that begins texts, if the file does not say otherwise */
} pre_tokenizers[] = {
    {"qwen2", WORDS(""), false, true, false, false},
    {"qwen35", WORDS_OF("\\p{L}\\p{M}", ""), false, true, false, false},
    {"kimi-k2", kimi_words, false, false, true, false},
    {"llama-bpe", WORDS("{1,3}"), false, false, true, true},
    {"llama3", WORDS("{1,3}"), false, false, true, true},
    {"llama-v3", WORDS("{1,3}"), false, false, true, true},
    {"glm4", WORDS("{1,3}"), false, false, true, false},
    {"chatglm-bpe", WORDS("{1,3}"), false, false, false, false},
    {"smollm", "\\p{N}", true, false, false, false},
};

typedef struct writer {
    const gguf_file *file;
    ebb_error *error;
    const struct pre_tokenizer *pre;
    const gguf_field *tokens, *kinds, *merges; /* kinds NULL: all are normal */
    json_t *root, *vocab, *added;              /* vocab, added: inside root */
} writer;

static ebb_status no_memory(const writer *w) { return ebb_fail(w->error, EBB_NO_MEMORY, "no memory for a tokenizer"); }

static ebb_status put(const writer *w, json_t *object, const char *key, json_t *value) {
    return value && json_object_set_new(object, key, value) == 0 ? EBB_OK : no_memory(w);
}

/* ---- what the file must say ---- */

static ebb_status find_pre(writer *w) {
    gguf_text model = {0}, pre = {0};
    char shown[64];
    ebb_status status = gguf_get_text(w->file, "tokenizer.ggml.model", JSON_NEEDED, &model, w->error);
    if (status) return status;
    if (!gguf_is(model, "gpt2"))
        return ebb_fail(w->error, EBB_UNSUPPORTED,
                        "%s: field tokenizer.ggml.model is %s, only gpt2 (byte-level BPE) is served",
                        json_file(w->file->path), gguf_shown(model, shown));
    status = gguf_get_text(w->file, "tokenizer.ggml.pre", JSON_NEEDED, &pre, w->error);
    for (int32_t i = 0; i < COUNT(pre_tokenizers) && !status; i++)
        if (gguf_is(pre, pre_tokenizers[i].name)) w->pre = &pre_tokenizers[i];
    if (!status && !w->pre)
        status = ebb_fail(w->error, EBB_UNSUPPORTED,
                          "%s: field tokenizer.ggml.pre is %s, expected qwen2, qwen35, kimi-k2, llama-bpe, glm4, "
                          "chatglm-bpe or smollm",
                          json_file(w->file->path), gguf_shown(pre, shown));
    return status;
}

static ebb_status find_arrays(writer *w) {
    const gguf_file *f = w->file;
    ebb_status status = gguf_get_array(f, "tokenizer.ggml.tokens", JSON_NEEDED, GGUF_STRING, &w->tokens, w->error);
    if (!status)
        status = gguf_get_array(f, "tokenizer.ggml.token_type", JSON_OPTIONAL, GGUF_INT32, &w->kinds, w->error);
    if (!status) status = gguf_get_array(f, "tokenizer.ggml.merges", JSON_NEEDED, GGUF_STRING, &w->merges, w->error);
    if (!status && w->kinds && w->kinds->count != w->tokens->count)
        status = ebb_fail(w->error, EBB_BAD_FILE,
                          "%s: field tokenizer.ggml.token_type has %" PRIu64
                          " entries, expected one for each of %" PRIu64 " tokens",
                          json_file(f->path), w->kinds->count, w->tokens->count);
    return status;
}

static ebb_status refuse_true(const writer *w, const char *key) {
    bool value = false;
    ebb_status status = gguf_get_bool(w->file, key, JSON_OPTIONAL, &value, w->error);
    if (!status && value)
        status = ebb_fail(w->error, EBB_UNSUPPORTED, "%s: field %s is true, which is not supported",
                          json_file(w->file->path), key);
    return status;
}

/* ---- tokens and merges ---- */

static ebb_status not_text(const writer *w, const char *field, uint64_t i, gguf_text text) {
    char shown[64];
    return ebb_fail(w->error, EBB_BAD_FILE, "%s: entry %" PRIu64 " of field %s, '%s', is not UTF-8 text",
                    json_file(w->file->path), i, field, gguf_shown(text, shown));
}

static ebb_status add_token(const writer *w, gguf_text text, uint64_t id, bool special) {
    json_t *content = gguf_json(text), *entry = content ? json_object() : NULL;
    if (!entry) {
        json_decref(content);
        return not_text(w, "tokenizer.ggml.tokens", id, text);
    }
    ebb_status status = put(w, entry, "content", content);
    if (!status) status = put(w, entry, "id", json_integer((json_int_t)id));
    if (!status) status = put(w, entry, "special", json_boolean(special));
    if (!status) status = put(w, entry, "normalized", json_false());
    if (status) json_decref(entry);
    else if (json_array_append_new(w->added, entry)) status = no_memory(w);
    return status;
}

static ebb_status put_token(const writer *w, gguf_text text, uint64_t id) {
    char shown[64];
    json_t *key = gguf_json(text);
    if (!key) return not_text(w, "tokenizer.ggml.tokens", id, text);
    ebb_status status = EBB_OK;
    if (json_object_get(w->vocab, json_string_value(key)))
        status = ebb_fail(w->error, EBB_BAD_FILE, "%s: field tokenizer.ggml.tokens has '%s' twice",
                          json_file(w->file->path), gguf_shown(text, shown));
    else status = put(w, w->vocab, json_string_value(key), json_integer((json_int_t)id));
    json_decref(key);
    return status;
}

static ebb_status put_tokens(const writer *w) {
    const uint8_t *at = w->tokens->data;
    ebb_status status = EBB_OK;
    for (uint64_t id = 0; id < w->tokens->count && !status; id++) {
        const gguf_text text = gguf_next_text(&at);
        const int32_t kind = w->kinds ? gguf_int32(w->kinds, id) : KIND_NORMAL;
        if (kind == KIND_UNUSED) continue;
        if (kind == KIND_NORMAL) status = put_token(w, text, id);
        else if (kind == KIND_CONTROL || kind == KIND_UNKNOWN) status = add_token(w, text, id, true);
        else if (kind == KIND_USER) status = add_token(w, text, id, false);
        else
            status = ebb_fail(w->error, EBB_UNSUPPORTED,
                              "%s: entry %" PRIu64 " of field tokenizer.ggml.token_type is %d, expected 1 to 5",
                              json_file(w->file->path), id, kind);
    }
    return status;
}

static ebb_status put_merges(const writer *w, json_t *model) {
    const uint8_t *at = w->merges->data;
    json_t *list = json_array();
    ebb_status status = put(w, model, "merges", list);
    for (uint64_t i = 0; i < w->merges->count && !status; i++) {
        const gguf_text text = gguf_next_text(&at);
        json_t *pair = gguf_json(text);
        if (!pair) status = not_text(w, "tokenizer.ggml.merges", i, text);
        else if (json_array_append_new(list, pair)) status = no_memory(w);
    }
    return status;
}

static ebb_status put_model(writer *w) {
    json_t *model = json_object();
    ebb_status status = put(w, w->root, "model", model);
    if (!status) status = put(w, model, "type", json_string("BPE"));
    if (!status) status = put(w, model, "ignore_merges", json_boolean(w->pre->ignore_merges));
    if (!status) status = put(w, model, "vocab", w->vocab = json_object());
    if (!status) status = put(w, w->root, "added_tokens", w->added = json_array());
    if (!status) status = put_tokens(w);
    return status ? status : put_merges(w, model);
}

/* ---- the steps around them ---- */

static ebb_status put_steps(const writer *w) {
    json_t *split = json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern", "Regex", w->pre->split, "behavior",
                              "Isolated", "invert", 0);
    json_t *bytes = json_pack("{s:s,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", w->pre->gpt2);
    json_t *steps = json_pack("{s:s,s:[o,o]}", "type", "Sequence", "pretokenizers", split, bytes);
    ebb_status status = put(w, w->root, "pre_tokenizer", steps);
    if (!status && w->pre->nfc) status = put(w, w->root, "normalizer", json_pack("{s:s}", "type", "NFC"));
    return status;
}

/* A text begins with this token, as the step TemplateProcessing has it. */
static ebb_status put_bos(const writer *w) {
    bool bos = w->pre->bos;
    int64_t id = -1;
    ebb_status status = gguf_get_bool(w->file, "tokenizer.ggml.add_bos_token", JSON_OPTIONAL, &bos, w->error);
    if (status || !bos) return status;
    status = gguf_get_int(w->file, "tokenizer.ggml.bos_token_id", JSON_NEEDED, 0, (int64_t)w->tokens->count - 1, &id,
                          w->error);
    if (status) return status;
    const uint8_t *at = w->tokens->data;
    for (int64_t i = 0; i < id; i++) gguf_next_text(&at);
    const gguf_text text = gguf_next_text(&at);
    json_t *name = gguf_json(text);
    if (!name) return not_text(w, "tokenizer.ggml.tokens", (uint64_t)id, text);
    const char *s = json_string_value(name);
    json_t *step = json_pack("{s:s,s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],s:{s:{s:s,s:[I],s:[s]}}}", "type",
                             "TemplateProcessing", "single", "SpecialToken", "id", s, "type_id", 0, "Sequence", "id",
                             "A", "type_id", 0, "special_tokens", s, "id", s, "ids", (json_int_t)id, "tokens", s);
    json_decref(name);
    return put(w, w->root, "post_processor", step);
}

static ebb_status write_document(writer *w) {
    ebb_status status = w->root ? find_pre(w) : no_memory(w);
    if (!status) status = find_arrays(w);
    if (!status) status = refuse_true(w, "tokenizer.ggml.add_space_prefix");
    if (!status) status = refuse_true(w, "tokenizer.ggml.add_eos_token");
    if (!status) status = put_model(w);
    if (!status) status = put_steps(w);
    return status ? status : put_bos(w);
}

/* The texts of the tokens that templates have by name. An id outside the vocabulary names none. */
static ebb_status name_tokens(const gguf_file *file, ebb_tokenizer *t, ebb_error *error) {
    static const struct {
        const char *key, *name;
    } rows[] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                {"tokenizer.ggml.eos_token_id", "eos_token"},
                {"tokenizer.ggml.padding_token_id", "pad_token"},
                {"tokenizer.ggml.unknown_token_id", "unk_token"}};
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < COUNT(rows) && !status; i++) {
        int64_t id = -1;
        size_t n;
        status = gguf_get_int(file, rows[i].key, JSON_OPTIONAL, 0, MAX_TOKEN_ID, &id, error);
        const char *bytes = status || id < 0 ? NULL : ebb_token_bytes(t, (int32_t)id, &n);
        char *content = bytes ? strndup(bytes, n) : NULL;
        if (bytes) status = content ? chat_name_token(t, rows[i].name, content, error) : EBB_NO_MEMORY;
        if (bytes && !content) ebb_fail(error, status, "no memory for the tokenizer of %s", file->path);
        free(content);
    }
    return status;
}

static ebb_status choose_chat(const gguf_file *file, ebb_tokenizer *t, ebb_error *error) {
    static const char key[] = "tokenizer.chat_template";
    gguf_text text = {0};
    ebb_status status = gguf_get_text(file, key, JSON_OPTIONAL, &text, error);
    if (!status) status = name_tokens(file, t, error);
    if (status || !text.bytes) return status;
    json_t *template = gguf_json(text);
    if (!template) return ebb_fail(error, EBB_BAD_FILE, "%s: field %s is not UTF-8 text", json_file(file->path), key);
    status = chat_choose(t, json_string_value(template), error);
    json_decref(template);
    return status;
}

ebb_status gguf_tokenizer(const gguf_file *file, ebb_tokenizer **tokenizer, ebb_error *error) {
    writer w = {.file = file, .error = error, .root = json_object()};
    *tokenizer = NULL;
    ebb_status status = write_document(&w);
    json_place root = {.value = w.root, .file = file->path};
    if (!status) status = tokenizer_read(&root, tokenizer, error);
    json_close(&root);
    if (!status && (status = choose_chat(file, *tokenizer, error))) {
        ebb_tokenizer_close(*tokenizer);
        *tokenizer = NULL;
    }
    return status;
}
