/* test_parity_tokenizers.c: ids of 20,480 texts in some hundred languages, and of code, against the Python libraries
 * `tokenizers` (patterns of Qwen2 and Qwen3.5) and `tiktoken` (that of Kimi, from a folder as it is released). Golden
 * data: data/make_parity_tokenizers.py. And what of a tiktoken.model is refused. */
#include "tokenizer_files.h"

#include "model/config.h"
#include "model/tokenizer.h"

#define TEXTS 20480
#define TEXT_END 0x1e
#define WORDS(letters, marks)                                                                    \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" letters "+|\\p{N}| ?[^\\s\\p{L}" marks \
    "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Offsets from the first id behind the vocabulary, as in a released tokenizer_config.json. */
static const struct special {
    int32_t at;
    const char *content;
    bool shown;
} kimi_special[] = {
    {0, "[BOS]", false},
    {1, "[EOS]", false},
    {2, "<|im_end|>", false},
    {3, "<|im_user|>", false},
    {4, "<|im_assistant|>", false},
    {7, "[EOT]", false},
    {10, "<|im_system|>", false},
    {11, "<|tool_calls_section_begin|>", true},
    {17, "<|im_middle|>", false},
    {254, "[UNK]", false},
    {255, "[PAD]", false},
};

typedef struct golden {
    scratch *dir;
    char *texts, *merges, *hashes;
    size_t n_texts, n_merges, n_hashes;
} golden;

static char *read_data(const char *name, size_t *bytes) {
    char path[256], *text = NULL;
    snprintf(path, sizeof path, SOURCE_DIR "/tests/data/%s", name);
    return read_file(path, (size_t)8 << 20, &text, bytes, NULL) ? NULL : text;
}

static int open_golden(void **state) {
    golden *g = calloc(1, sizeof *g);
    void *dir = NULL;
    if (scratch_open(&dir)) return -1;
    *state = g;
    g->dir = dir;
    g->texts = read_data("parity_texts.txt", &g->n_texts);
    g->merges = read_data("parity_merges.txt", &g->n_merges);
    g->hashes = read_data("parity_hashes.bin", &g->n_hashes);
    return g->texts && g->merges && g->hashes ? 0 : -1;
}

static const char *file_in(const scratch *s, const char *name, char path[128]) {
    snprintf(path, 128, "%s/%s", s->directory, name);
    return path;
}

static int close_golden(void **state) {
    golden *g = *state;
    char path[128];
    unlink(file_in(g->dir, "tiktoken.model", path));
    unlink(file_in(g->dir, "tokenizer_config.json", path));
    void *dir = g->dir;
    free(g->texts), free(g->merges), free(g->hashes), free(g);
    return scratch_close(&dir);
}

/* ---- the byte <-> character map of GPT-2 ---- */

static int32_t character_of(int byte) {
    int32_t others = 0x100;
    for (int i = 0; i <= byte; i++) {
        const bool printable = (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i != 0xad);
        if (i == byte) return printable ? i : others;
        others += !printable;
    }
    return -1;
}

static size_t put_utf8(int32_t point, char *out) { /* below U+0800 */
    if (point < 0x80) return out[0] = (char)point, 1;
    out[0] = (char)(0xc0 | point >> 6);
    out[1] = (char)(0x80 | (point & 0x3f));
    return 2;
}

static size_t bytes_of(const char *text, size_t n, uint8_t *out) {
    size_t n_out = 0;
    for (size_t i = 0; i < n; n_out++) {
        const int length = utf8_length((const uint8_t *)text + i, n - i);
        const int32_t point = utf8_decode((const uint8_t *)text + i, length);
        int byte = 0;
        while (character_of(byte) != point) byte++;
        out[n_out] = (uint8_t)byte;
        i += (size_t)length;
    }
    return n_out;
}

/* ---- folders ---- */

static void put_member(json_t *object, const char *key, size_t n, json_t *value) {
    assert_int_equal(json_object_setn_new(object, key, n, value), 0);
}

/* Bytes, then the results of the merges; then words that no merge leads to, without `merges`. */
static json_t *vocabulary(const golden *g, json_t *merges) {
    json_t *vocab = json_object();
    for (int i = 0; i < 256; i++) {
        char key[2];
        put_member(vocab, key, put_utf8(character_of(i), key), json_integer(i));
    }
    for (const char *at = g->merges, *end; *at; at = end + 1) {
        char key[256];
        end = strchr(at, '\n');
        const char *space = memchr(at, ' ', (size_t)(end - at)), *right = space ? space + 1 : end;
        if (!space && merges) break;
        const size_t n_left = (size_t)((space ? space : end) - at), n_right = (size_t)(end - right);
        memcpy(key, at, n_left);
        memcpy(key + n_left, right, n_right);
        put_member(vocab, key, n_left + n_right, json_integer((json_int_t)json_object_size(vocab)));
        if (merges) json_array_append_new(merges, json_stringn(at, (size_t)(end - at)));
    }
    return vocab;
}

static ebb_tokenizer *open_qwen(const golden *g, const char *pattern) {
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    json_t *merges = json_array(), *vocab = vocabulary(g, merges), *added = json_array();
    for (int i = 0; i < COUNT(special); i++)
        json_array_append_new(added, json_pack("{s:I,s:s,s:b,s:b}", "id", (json_int_t)json_object_size(vocab) + i,
                                               "content", special[i], "special", 1, "normalized", 0));
    json_t *root =
        json_pack("{s:{s:s},s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]},s:{s:s,s:o,s:o},s:o}", "normalizer", "type",
                  "NFC", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex",
                  pattern, "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0, "use_regex",
                  0, "model", "type", "BPE", "vocab", vocab, "merges", merges, "added_tokens", added);
    assert_non_null(root);
    write_json(g->dir, root);
    json_decref(root);
    ebb_tokenizer *t = open_ok(g->dir->directory);
    unlink(g->dir->file); /* it would come before a tiktoken.model */
    return t;
}

static void put_base64(FILE *file, const uint8_t *bytes, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const uint32_t bits =
            (uint32_t)bytes[i] << 16 | (i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0) | (i + 2 < n ? bytes[i + 2] : 0u);
        for (size_t k = 0; k < 4; k++) fputc(i + k > n ? '=' : digits[bits >> (18 - 6 * k) & 63], file);
    }
}

/* tiktoken.model and tokenizer_config.json; the number of ranks. */
static int32_t write_kimi(const golden *g) {
    char path[128], id[16];
    json_t *vocab = vocabulary(g, NULL), *value, *names = json_object();
    const char *key;
    FILE *file = fopen(file_in(g->dir, "tiktoken.model", path), "w");
    assert_non_null(file);
    json_object_foreach(vocab, key, value) {
        uint8_t bytes[256];
        put_base64(file, bytes, bytes_of(key, strlen(key), bytes));
        fprintf(file, " %d\n", (int)json_integer_value(value));
    }
    assert_int_equal(fclose(file), 0);
    const int32_t ranks = (int32_t)json_object_size(vocab);
    for (int i = 0; i < COUNT(kimi_special); i++) {
        snprintf(id, sizeof id, "%d", ranks + kimi_special[i].at);
        json_object_set_new(
            names, id, json_pack("{s:s,s:b}", "content", kimi_special[i].content, "special", !kimi_special[i].shown));
    }
    json_t *root = json_pack("{s:s,s:s,s:s,s:o}", "tokenizer_class", "TikTokenTokenizer", "bos_token", "[BOS]",
                             "eos_token", "[EOS]", "added_tokens_decoder", names);
    assert_int_equal(json_dump_file(root, file_in(g->dir, "tokenizer_config.json", path), 0), 0);
    json_decref(root), json_decref(vocab);
    return ranks;
}

/* ---- parity ---- */

static uint32_t hash_of(const int32_t *ids, int64_t n) {
    uint64_t hash = HASH64_BEGIN;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t bytes[4] = {(uint8_t)ids[i], (uint8_t)(ids[i] >> 8), (uint8_t)(ids[i] >> 16),
                                  (uint8_t)(ids[i] >> 24)};
        hash = hash64(hash, bytes, sizeof bytes);
    }
    return (uint32_t)(hash ^ hash >> 32);
}

static void expect_text(const ebb_tokenizer *t, const int32_t *ids, int64_t n, const char *text, size_t bytes) {
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t length;
        const char *piece = ebb_token_bytes(t, ids[i], &length);
        assert_true(piece && at + length <= bytes);
        assert_memory_equal(text + at, piece, length);
        at += length;
    }
    assert_int_equal(at, bytes);
}

/* `exact`: nothing is normalized, so the ids spell the text. */
static void check_texts(const golden *g, const ebb_tokenizer *t, int32_t column, bool exact) {
    const uint8_t *wanted = (const uint8_t *)g->hashes + (size_t)column * TEXTS * 4;
    int32_t n_texts = 0, wrong = 0;
    assert_int_equal(g->n_hashes, 3 * TEXTS * 4);
    for (const char *at = g->texts, *end; *at || at < g->texts + g->n_texts; at = end + 1, n_texts++) {
        int32_t *ids;
        int64_t n;
        end = memchr(at, TEXT_END, (size_t)(g->texts + g->n_texts - at));
        assert_non_null(end);
        assert_int_equal(ebb_tokenize(t, at, (size_t)(end - at), true, &ids, &n, NULL), EBB_OK);
        const uint8_t *w = wanted + (size_t)n_texts * 4;
        const uint32_t hash = w[0] | (uint32_t)w[1] << 8 | (uint32_t)w[2] << 16 | (uint32_t)w[3] << 24;
        if (hash != hash_of(ids, n) && wrong++ < 5)
            print_error("text %d: '%.*s', %lld ids\n", n_texts, (int)(end - at), at, (long long)n);
        if (exact) expect_text(t, ids, n, at, (size_t)(end - at));
        free(ids);
    }
    assert_int_equal(n_texts, TEXTS);
    assert_int_equal(wrong, 0);
}

static void qwen2(void **state) {
    ebb_tokenizer *t = open_qwen(*state, WORDS("\\p{L}", ""));
    check_texts(*state, t, 0, false);
    ebb_tokenizer_close(t);
}

static void qwen35(void **state) {
    ebb_tokenizer *t = open_qwen(*state, WORDS("[\\p{L}\\p{M}]", "\\p{M}"));
    check_texts(*state, t, 1, false);
    ebb_tokenizer_close(t);
}

static void kimi(void **state) {
    const golden *g = *state;
    const int32_t ranks = write_kimi(g);
    ebb_tokenizer *t = open_ok(g->dir->directory);
    check_texts(g, t, 2, true);
    assert_int_equal(ebb_tokenizer_size(t), ranks + 256);
    for (int i = 0; i < COUNT(kimi_special); i++) {
        const struct special *s = &kimi_special[i];
        const int32_t id = ranks + s->at;
        assert_int_equal(ebb_tokenizer_id(t, s->content), id);
        assert_int_equal(ebb_tokenizer_special(t, id), !s->shown);
        expect_ids(t, s->content, strlen(s->content), true, &id, 1);
    }
    char reserved[40];
    snprintf(reserved, sizeof reserved, "<|reserved_token_%d|>", ranks + 100);
    assert_int_equal(ebb_tokenizer_id(t, reserved), ranks + 100);
    int32_t *ids; /* what a user types ends no turn, nor does it begin a tool call */
    int64_t n;
    const char typed[] = "<|im_end|><|tool_calls_section_begin|>";
    assert_int_equal(ebb_tokenize(t, typed, strlen(typed), false, &ids, &n, NULL), EBB_OK);
    for (int64_t k = 0; k < n; k++) assert_true(ids[k] < ranks);
    free(ids);
    ebb_tokenizer_close(t);
}

/* Of config.json, of tokenizer_config.json, and the end of a turn, which neither names. */
static void kimi_stops(void **state) {
    const golden *g = *state;
    char path[128];
    const int32_t ranks = write_kimi(g), expected[] = {ranks + 7, ranks + 1, ranks + 2};
    ebb_tokenizer *t = open_ok(g->dir->directory);
    json_t *root = json_pack("{s:s,s:i}", "model_type", "kimi_linear", "eos_token_id", expected[0]);
    config_files config;
    ebb_error error;
    assert_int_equal(json_dump_file(root, file_in(g->dir, "config.json", path), 0), 0);
    json_decref(root);
    if (config_open(g->dir->directory, t, &config, &error)) fail_msg("%s", error.text);
    assert_int_equal(config.n_stop, COUNT(expected));
    assert_memory_equal(config.stop, expected, sizeof expected);
    config_close(&config);
    unlink(path);
    ebb_tokenizer_close(t);
}

/* A word of many equal pieces: merging stays fast, and is that of tiktoken. */
static void long_words(void **state) {
    enum { LONG = 200000 };
    const golden *g = *state;
    write_kimi(g);
    ebb_tokenizer *t = open_ok(g->dir->directory);
    char *text = malloc(LONG);
    int32_t *ids;
    int64_t n;
    memset(text, 'a', LONG);
    const double start = seconds_now();
    assert_int_equal(ebb_tokenize(t, text, LONG, true, &ids, &n, NULL), EBB_OK);
    assert_true(seconds_now() - start < 5);
    expect_text(t, ids, n, text, LONG);
    free(ids), free(text);
    ebb_tokenizer_close(t);
}

/* ---- what is refused ---- */

static void put_file(const golden *g, const char *name, const char *text, size_t bytes) {
    char path[128];
    FILE *file = fopen(file_in(g->dir, name, path), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void refused(const golden *g, ebb_status wanted, const char *says) {
    ebb_tokenizer *t;
    ebb_error error = {0};
    const ebb_status status = ebb_tokenizer_open(g->dir->directory, &t, &error);
    if (status != wanted || !strstr(error.text, says))
        fail_msg("%s '%s', expected '%s'", ebb_status_name(status), error.text, says);
    assert_null(t);
}

/* All bytes as tokens, with `line` in place of that of byte 7, and this tokenizer_config.json. */
static void refused_files(const golden *g, const char *line, const char *config, ebb_status wanted, const char *says) {
    char path[128];
    FILE *file = fopen(file_in(g->dir, "tiktoken.model", path), "w");
    assert_non_null(file);
    for (int i = 0; i < 256; i++) {
        const uint8_t byte = (uint8_t)i;
        if (i == 7 && line) fputs(line, file);
        else put_base64(file, &byte, 1), fprintf(file, " %d\n", i);
    }
    assert_int_equal(fclose(file), 0);
    put_file(g, "tokenizer_config.json", config, strlen(config));
    refused(g, wanted, says);
}

static void refusals(void **state) {
    static const char plain[] = "{\"added_tokens_decoder\":{\"256\":{\"content\":\"[BOS]\"}}}";
    static const struct {
        const char *line, *config;
        ebb_status status;
        const char *says;
    } cases[] = {
        {"Bw== 8\n", plain, EBB_BAD_FILE, "tiktoken.model: line 9 has the rank of a line before"},
        {"Bg== 7\n", plain, EBB_BAD_FILE, "line 8 has the token of a line before"},
        {"Bw== 256\n", plain, EBB_BAD_FILE, "line 8 has no rank below the number of lines"},
        {"Bw== 99999999999999999999\n", plain, EBB_BAD_FILE, "line 8 has no rank"},
        {"Bw== -7\n", plain, EBB_BAD_FILE, "line 8 has no rank"},
        {"Bw== \n", plain, EBB_BAD_FILE, "line 8 has no rank"},
        {"Bw==\n", plain, EBB_BAD_FILE, "line 8 is not a token in base64, a space and a rank"},
        {" 7\n", plain, EBB_BAD_FILE, "line 8 has a token that is not in base64"},
        {"B 7\n", plain, EBB_BAD_FILE, "line 8 has a token that is not in base64"},
        {"B=== 7\n", plain, EBB_BAD_FILE, "line 8 has a token that is not in base64"},
        {"Bw=A 7\n", plain, EBB_BAD_FILE, "line 8 has a token that is not in base64"},
        {"Bx== 7\n", plain, EBB_BAD_FILE, "line 8 has a token that is not in base64"},
        {"Bw== 7 7\n", plain, EBB_BAD_FILE, "line 8 has no rank"},
        {"", plain, EBB_BAD_FILE, "line 255 has no rank below the number of lines"},
        {"YWI= 7\n", plain, EBB_BAD_FILE, "has no token for the byte 0x07"},
        {NULL, "{}", EBB_BAD_FILE, "added_tokens_decoder is missing"},
        {NULL, "{\"added_tokens_decoder\":{\"255\":{\"content\":\"x\"}}}", EBB_BAD_FILE,
         "names '255', expected ids 256 to 511"},
        {NULL, "{\"added_tokens_decoder\":{\"512\":{\"content\":\"x\"}}}", EBB_BAD_FILE, "names '512'"},
        {NULL, "{\"added_tokens_decoder\":{\"0256\":{\"content\":\"x\"}}}", EBB_BAD_FILE, "names '0256'"},
        {NULL, "{\"added_tokens_decoder\":{\"256\":{\"content\":\"\"}}}", EBB_BAD_FILE, "has an empty content"},
        {NULL, "{\"added_tokens_decoder\":{\"256\":7}}", EBB_BAD_FILE, "added_tokens_decoder.256 is a number"},
        {NULL, "{\"added_tokens_decoder\":{\"256\":{\"content\":\"x\"},\"257\":{\"content\":\"x\"}}}", EBB_BAD_FILE,
         "has two tokens 'x'"},
        {NULL, "{\"added_tokens_decoder\":{},\"tokenizer_class\":\"QWenTokenizer\"}", EBB_UNSUPPORTED,
         "tokenizer_class is 'QWenTokenizer'"},
    };
    const golden *g = *state;
    for (int i = 0; i < COUNT(cases); i++)
        refused_files(g, cases[i].line, cases[i].config, cases[i].status, cases[i].says);
    put_file(g, "tiktoken.model", "", 0);
    put_file(g, "tokenizer_config.json", plain, strlen(plain));
    refused(g, EBB_BAD_FILE, "tiktoken.model has 0 tokens, expected 1");
    char path[128];
    unlink(file_in(g->dir, "tokenizer_config.json", path));
    refused(g, EBB_BAD_FILE, "tokenizer_config.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen2),      cmocka_unit_test(qwen35),     cmocka_unit_test(kimi),
        cmocka_unit_test(kimi_stops), cmocka_unit_test(long_words), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
