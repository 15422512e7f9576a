/* test_tokenizer_files.c: tokenizer files that are damaged, contradict themselves or ask for what is not supported:
 * opening them answers a status and a sentence, and whatever opens works. */
#include "tokenizer_files.h"

static void write_bytes(const scratch *s, const void *bytes, size_t n) {
    FILE *file = fopen(s->file, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void put_utf8(int32_t point, char out[3]) {
    out[0] = (char)(point < 0x80 ? point : 0xc0 | point >> 6);
    out[1] = (char)(point < 0x80 ? 0 : 0x80 | (point & 0x3f));
    out[2] = 0;
}

/* A small file: the 256 bytes (id = byte), "he" 256, "hel" 257, special <|im_start|> 258 and <|im_end|> 259. */
static json_t *small_json(void) {
    json_t *vocab = json_object();
    int32_t other = 0x100;
    for (int32_t i = 0; i < 256; i++) {
        bool printable = (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i != 0xad);
        char key[3];
        put_utf8(printable ? i : other++, key);
        json_object_set_new(vocab, key, json_integer(i));
    }
    json_object_set_new(vocab, "he", json_integer(256));
    json_object_set_new(vocab, "hel", json_integer(257));
    return json_pack("{s:[{s:i,s:s,s:b},{s:i,s:s,s:b}], s:n, s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]}, s:{s:s},"
                     " s:{s:s,s:n,s:b,s:o,s:[ss]}}",
                     "added_tokens", "id", 258, "content", "<|im_start|>", "special", 1, "id", 259, "content",
                     "<|im_end|>", "special", 1, "normalizer", "pre_tokenizer", "type", "Sequence", "pretokenizers",
                     "type", "Split", "pattern", "Regex", "\\p{L}+|\\s+", "behavior", "Isolated", "invert", 0, "type",
                     "ByteLevel", "add_prefix_space", 0, "use_regex", 0, "decoder", "type", "ByteLevel", "model",
                     "type", "BPE", "dropout", "ignore_merges", 0, "vocab", vocab, "merges", "h e", "he l");
}

/* Opening what is in the scratch directory answers OK or an error with a sentence; a tokenizer that opens works. */
static ebb_status try_open(const scratch *s, ebb_error *error) {
    static const char text[] = "hello <|im_end|> he\xc3\xa9\n";
    ebb_tokenizer *t;
    *error = (ebb_error){0};
    ebb_status status = ebb_tokenizer_open(s->directory, &t, error);
    if (status) {
        assert_null(t);
        assert_int_equal(error->code, status);
        assert_true(strlen(error->text) > 10);
        return status;
    }
    int32_t *ids;
    int64_t n;
    status = ebb_tokenize(t, text, sizeof text - 1, true, &ids, &n, error);
    if (status) assert_true(strlen(error->text) > 10);
    else
        for (int64_t i = 0; i < n; i++) assert_non_null(ebb_token_bytes(t, ids[i], NULL));
    free(ids);
    ebb_tokenizer_close(t);
    return EBB_OK;
}

static void test_small(void **state) {
    const scratch *s = *state;
    json_t *root = small_json();
    assert_non_null(root);
    write_json(s, root);
    json_decref(root);
    ebb_tokenizer *t = open_ok(s->directory);
    assert_int_equal(ebb_tokenizer_size(t), 260);
    expect_ids(t, "hehel!<|im_end|>", 16, true, (int32_t[]){256, 257, '!', 259}, 4);
    expect_ids(t, "<|im_end|>", 10, false, (int32_t[]){'<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'}, 10);
    ebb_tokenizer_close(t);
}

/* With ignore_merges a word that is a token stays whole, unless that token is special. */
static void test_ignore_merges(void **state) {
    const scratch *s = *state;
    json_t *root = small_json(), *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    json_object_set_new(vocab, "xyz", json_integer(300));
    json_object_set_new(vocab, "stop", json_integer(301));
    json_array_append_new(json_object_get(root, "added_tokens"),
                          json_pack("{s:i,s:s,s:b}", "id", 301, "content", "stop", "special", 1));
    write_json(s, root);
    ebb_tokenizer *t = open_ok(s->directory);
    expect_ids(t, "xyz hel", 7, true, (int32_t[]){'x', 'y', 'z', ' ', 257}, 5);
    ebb_tokenizer_close(t);
    json_object_set_new(model, "ignore_merges", json_true());
    write_json(s, root);
    json_decref(root);
    t = open_ok(s->directory);
    expect_ids(t, "xyz hel", 7, true, (int32_t[]){300, ' ', 257}, 3);
    expect_ids(t, "stop", 4, true, (int32_t[]){301}, 1);
    expect_ids(t, "stop", 4, false, (int32_t[]){'s', 't', 'o', 'p'}, 4);
    expect_ids(t, "stop\0\0\0", 7, true, (int32_t[]){301, 0, 0, 0}, 4);
    ebb_tokenizer_close(t);
}

#define SPLIT(regex, more)                                                                                           \
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":" regex \
    "},\"behavior\":\"Isolated\",\"invert\":false}" more                                                             \
    ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":"                                             \
    "false}]}}"
#define PATTERN(regex) SPLIT("\"" regex "\"", "")
#define ADDED(more) "{\"added_tokens\":[{\"id\":258,\"content\":\"<s>\"" more "}]}"

/* Patches of the small file, what opening answers, and words that the sentence must have. */
static const struct {
    const char *patch;
    ebb_status status;
    const char *says;
} patches[] = {
    {"{}", EBB_OK, ""},
    /* the model */
    {"{\"model\":null}", EBB_BAD_FILE, "field model is null"},
    {"{\"model\":[]}", EBB_BAD_FILE, "field model is an array, expected an object"},
    {"{\"model\":{\"type\":\"Unigram\"}}", EBB_UNSUPPORTED, "Unigram"},
    {"{\"model\":{\"type\":null}}", EBB_BAD_FILE, "model.type"},
    {"{\"model\":{\"type\":1}}", EBB_BAD_FILE, "model.type"},
    {"{\"model\":{\"dropout\":0.0}}", EBB_OK, ""},
    {"{\"model\":{\"dropout\":0.1}}", EBB_UNSUPPORTED, "dropout"},
    {"{\"model\":{\"dropout\":\"x\"}}", EBB_BAD_FILE, "model.dropout"},
    {"{\"model\":{\"byte_fallback\":true,\"unk_token\":\"a\"}}", EBB_OK, ""}, /* never asked for: all bytes are there */
    {"{\"model\":{\"continuing_subword_prefix\":\"\"}}", EBB_OK, ""},
    {"{\"model\":{\"continuing_subword_prefix\":\"##\"}}", EBB_UNSUPPORTED, "continuing_subword_prefix"},
    {"{\"model\":{\"end_of_word_suffix\":\"</w>\"}}", EBB_UNSUPPORTED, "end_of_word_suffix"},
    {"{\"model\":{\"ignore_merges\":\"yes\"}}", EBB_BAD_FILE,
     "model.ignore_merges is a string, expected true or false"},
    /* the vocabulary */
    {"{\"model\":{\"vocab\":[]}}", EBB_BAD_FILE, "model.vocab is an array"},
    {"{\"model\":{\"vocab\":null}}", EBB_BAD_FILE, "model.vocab"},
    {"{\"model\":{\"vocab\":{\"he\":-1}}}", EBB_BAD_FILE, "model.vocab.he is -1"},
    {"{\"model\":{\"vocab\":{\"he\":16777216}}}", EBB_BAD_FILE, "16777216"},
    {"{\"model\":{\"vocab\":{\"he\":16777215}}}", EBB_OK, ""},
    {"{\"model\":{\"vocab\":{\"he\":9223372036854775807}}}", EBB_BAD_FILE, "model.vocab.he"},
    {"{\"model\":{\"vocab\":{\"he\":2.5}}}", EBB_BAD_FILE, "model.vocab.he is 2.5"},
    {"{\"model\":{\"vocab\":{\"he\":256.0}}}", EBB_OK, ""},
    {"{\"model\":{\"vocab\":{\"he\":1e300}}}", EBB_BAD_FILE, "model.vocab.he"},
    {"{\"model\":{\"vocab\":{\"he\":\"256\"}}}", EBB_BAD_FILE, "model.vocab.he is a string"},
    {"{\"model\":{\"vocab\":{\"he\":null}}}", EBB_BAD_FILE, "model.vocab.he"},
    {"{\"model\":{\"vocab\":{\"lo\":257}}}", EBB_BAD_FILE, "'lo' the id 257, which 'hel' has"},
    {"{\"model\":{\"vocab\":{\"lo\":259}}}", EBB_BAD_FILE, "'lo' the id 259 of the added token '<|im_end|>'"},
    {"{\"model\":{\"vocab\":{\"<|im_end|>\":259}}}", EBB_OK, ""},
    {"{\"model\":{\"vocab\":{\"<|im_end|>\":300}}}", EBB_BAD_FILE, "'<|im_end|>' the id 300, the added token has 259"},
    {"{\"model\":{\"vocab\":{\"a b\":300}}}", EBB_BAD_FILE, "'a b'"}, /* a space is written U+0120 */
    {"{\"model\":{\"vocab\":{\"\\u6f22\":300}}}", EBB_BAD_FILE, "\xe6\xbc\xa2"},
    {"{\"model\":{\"vocab\":{\"\\u0144\":300}}}", EBB_BAD_FILE, "\xc5\x84"},
    {"{\"model\":{\"vocab\":{\"\":300}}}", EBB_BAD_FILE, "''"},
    /* merges */
    {"{\"model\":{\"merges\":{}}}", EBB_BAD_FILE, "model.merges is an object"},
    {"{\"model\":{\"merges\":[]}}", EBB_OK, ""},
    {"{\"model\":{\"merges\":[\"he\"]}}", EBB_BAD_FILE, "model.merges[0]"},
    {"{\"model\":{\"merges\":[\"h e\",\"h e l\"]}}", EBB_BAD_FILE, "model.merges[1]"},
    {"{\"model\":{\"merges\":[[\"h\"]]}}", EBB_BAD_FILE, "model.merges[0]"},
    {"{\"model\":{\"merges\":[[\"h\",1]]}}", EBB_BAD_FILE, "model.merges[0]"},
    {"{\"model\":{\"merges\":[7]}}", EBB_BAD_FILE, "model.merges[0]"},
    {"{\"model\":{\"merges\":[[\"h\",\"e\"],[\"he\",\"l\"]]}}", EBB_OK, ""},
    {"{\"model\":{\"merges\":[\"xyz e\"]}}", EBB_BAD_FILE, "'xyz"},
    {"{\"model\":{\"merges\":[\"h hell\"]}}", EBB_BAD_FILE, "'hell'"},
    {"{\"model\":{\"merges\":[\" e\"]}}", EBB_BAD_FILE, "model.merges[0]"},
    {"{\"model\":{\"merges\":[\"l l\"]}}", EBB_BAD_FILE, "model.merges[0]"},
    {"{\"model\":{\"vocab\":{\"ab\":300},\"merges\":[\"a "
     "b\"]},\"added_tokens\":[{\"id\":300,\"content\":\"ab\",\"special\":true}]}",
     EBB_UNSUPPORTED, "special token 'ab'"},
    /* added tokens */
    {"{\"added_tokens\":null}", EBB_OK, ""},
    {"{\"added_tokens\":{}}", EBB_BAD_FILE, "added_tokens"},
    {"{\"added_tokens\":[7]}", EBB_BAD_FILE, "added_tokens[0]"},
    {"{\"added_tokens\":[{}]}", EBB_BAD_FILE, "added_tokens[0].id"},
    {ADDED(""), EBB_OK, ""},
    {ADDED(",\"lstrip\":true,\"rstrip\":true,\"normalized\":true"), EBB_OK, ""},
    {ADDED(",\"single_word\":true"), EBB_UNSUPPORTED, "single_word"},
    {ADDED(",\"lstrip\":1"), EBB_BAD_FILE, "added_tokens[0].lstrip"},
    {ADDED(",\"special\":\"yes\""), EBB_BAD_FILE, "added_tokens[0].special"},
    {ADDED("},{\"id\":258,\"content\":\"x\""), EBB_BAD_FILE, "added_tokens[1] ('x') has the id 258"},
    {ADDED("},{\"id\":300,\"content\":\"<s>\""), EBB_BAD_FILE, "'<s>', ids 258 and 300"},
    {"{\"added_tokens\":[{\"id\":258}]}", EBB_BAD_FILE, "added_tokens[0].content"},
    {"{\"added_tokens\":[{\"id\":258,\"content\":\"\"}]}", EBB_BAD_FILE, "empty"},
    {"{\"added_tokens\":[{\"id\":-1,\"content\":\"x\"}]}", EBB_BAD_FILE, "added_tokens[0].id is -1"},
    {"{\"added_tokens\":[{\"id\":16777216,\"content\":\"xx\"}]}", EBB_BAD_FILE, "added_tokens[0].id"},
    {"{\"added_tokens\":[{\"id\":1e12,\"content\":\"xx\"}]}", EBB_BAD_FILE, "added_tokens[0].id"},
    {"{\"added_tokens\":[{\"id\":70000.0,\"content\":\"xx\"}]}", EBB_OK, ""},
    {"{\"added_tokens\":[{\"id\":258,\"content\":\"e\\u0301\",\"normalized\":true}],\"normalizer\":{\"type\":\"NFC\"}}",
     EBB_UNSUPPORTED, "not normalized"},
    /* normalizer */
    {"{\"normalizer\":{\"type\":\"NFC\"}}", EBB_OK, ""},
    {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]}}", EBB_OK, ""},
    {"{\"normalizer\":{\"type\":\"NFKC\"}}", EBB_UNSUPPORTED, "NFKC"},
    {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}}",
     EBB_UNSUPPORTED, "Lowercase"},
    {"{\"normalizer\":\"NFC\"}", EBB_BAD_FILE, "normalizer"},
    {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[null]}}", EBB_BAD_FILE, "normalizers[0]"},
    /* pre-tokenizer and decoder */
    {"{\"pre_tokenizer\":null}", EBB_BAD_FILE, "pre_tokenizer"},
    {"{\"pre_tokenizer\":{\"type\":\"Whitespace\"}}", EBB_UNSUPPORTED, "Whitespace"},
    {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[]}}", EBB_UNSUPPORTED, "no ByteLevel"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}}", EBB_OK, ""},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}}", EBB_UNSUPPORTED, "add_prefix_space"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":null}}", EBB_BAD_FILE, "add_prefix_space"},
    {SPLIT("\"a\"", ",{\"type\":\"Split\",\"pattern\":{\"Regex\":\"b\"},\"behavior\":\"Removed\"}"), EBB_UNSUPPORTED,
     "Removed"},
    {SPLIT("\"a\"", ",{\"type\":\"Split\",\"pattern\":{\"Regex\":\"b\"},\"behavior\":\"Isolated\",\"invert\":true}"),
     EBB_UNSUPPORTED, "invert"},
    {SPLIT("\"a\"", ",{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":\"Isolated\"}"), EBB_BAD_FILE,
     "pattern.Regex"},
    {SPLIT("\"a\"", ",{\"type\":\"Split\",\"pattern\":\"b\",\"behavior\":\"Isolated\"}"), EBB_BAD_FILE, "pattern"},
    {SPLIT("\"a\"", ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"), EBB_UNSUPPORTED, "last step"},
    {SPLIT("7", ""), EBB_BAD_FILE, "pattern.Regex is a number, expected a string"},
    {"{\"decoder\":{\"type\":\"WordPiece\"}}", EBB_UNSUPPORTED, "WordPiece"},
    {"{\"decoder\":null}", EBB_OK, ""},
    /* patterns */
    {PATTERN(""), EBB_OK, ""},
    {PATTERN("(?i:'s)|(?:a)|(?!b)(?=c)|(?>d)|(?<=e)f|(?<!g)h|[^\\\\]\\\\[]+|\\\\{|\\\\p{^L}|x{2,3}|y{z|\\\\x{41}"),
     EBB_OK, ""},
    {PATTERN("(a"), EBB_UNSUPPORTED, "missing closing parenthesis"},
    {PATTERN("a**b|*"), EBB_UNSUPPORTED, "PCRE2"},
    {PATTERN("\\\\p{Nonsense}"), EBB_UNSUPPORTED, "PCRE2"},
    {PATTERN("\\\\w+"), EBB_UNSUPPORTED, "\\w at offset 0"},
    {PATTERN("a\\\\bc"), EBB_UNSUPPORTED, "\\b at offset 1"},
    {PATTERN("[\\\\S]"), EBB_UNSUPPORTED, "\\S inside a class"},
    {PATTERN("[a[b]]"), EBB_UNSUPPORTED, "class inside a class"},
    {PATTERN("[a&&b]"), EBB_UNSUPPORTED, "intersection"},
    {PATTERN("[\\\\p{Lu}\\\\p{M}&&[^\\\\p{Han}x]]+"), EBB_OK, ""},
    {PATTERN("[\\\\p{L}a&&[^b]]"), EBB_UNSUPPORTED, "something else than general categories"},
    {PATTERN("[\\\\p{Han}&&[^b]]"), EBB_UNSUPPORTED, "something else than general categories"},
    {PATTERN("[\\\\p{L}&&[^a]&&[^b]]"), EBB_UNSUPPORTED, "more than one intersection"},
    {PATTERN("[\\\\p{L}&&[^a]b]"), EBB_UNSUPPORTED, "more than one intersection"},
    {PATTERN("[\\\\p{L}&&[^a"), EBB_UNSUPPORTED, "without its ]"},
    {PATTERN("[\\\\p{L}&&[^]]"), EBB_UNSUPPORTED, "nothing before or behind"},
    {PATTERN("[&&[^a]]"), EBB_UNSUPPORTED, "nothing before or behind"},
    {PATTERN("[^\\\\p{L}&&[^a]]"), EBB_UNSUPPORTED, "intersection"},
    {PATTERN("[]a]"), EBB_UNSUPPORTED, "begins with ]"},
    {PATTERN("[a"), EBB_UNSUPPORTED, "without its ]"},
    {PATTERN("a\\\\"), EBB_UNSUPPORTED, "backslash"},
    {PATTERN("\\\\p{L"), EBB_UNSUPPORTED, "brace"},
    {PATTERN("(?x)a"), EBB_UNSUPPORTED, "kind of group"},
    {PATTERN("(?m:a)"), EBB_UNSUPPORTED, "kind of group"},
    {PATTERN("(*ACCEPT)"), EBB_UNSUPPORTED, "(*"},
    {PATTERN("\\\\p{N}{1,3}+"), EBB_UNSUPPORTED, "{...}+"},
    {PATTERN("\\\\p{N}{,3}"), EBB_UNSUPPORTED, "{,"},
    {PATTERN("((a{1,60000}){1,60000})"), EBB_UNSUPPORTED, "PCRE2"},
};

static void test_patches(void **state) {
    const scratch *s = *state;
    for (int i = 0; i < COUNT(patches); i++) {
        json_error_t wrong;
        json_t *root = small_json(), *patch = json_loads(patches[i].patch, 0, &wrong);
        if (!patch) fail_msg("%s: %s", patches[i].patch, wrong.text);
        merge_patch(root, patch);
        write_json(s, root);
        json_decref(patch);
        json_decref(root);
        ebb_error error;
        ebb_status status = try_open(s, &error);
        if (status != patches[i].status || (status && !strstr(error.text, patches[i].says)))
            fail_msg("%s\nanswers %s: %s", patches[i].patch, ebb_status_name(status), error.text);
        if (status) assert_non_null(strstr(error.text, "tokenizer.json"));
    }
}

static void test_missing_byte(void **state) {
    const scratch *s = *state;
    ebb_error error;
    json_t *root = small_json(), *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_object_del(vocab, "\xc3\xb5"); /* byte 0xf5: UTF-8 never has it */
    write_json(s, root);
    assert_int_equal(try_open(s, &error), EBB_OK);
    json_object_del(vocab, "z"); /* left out: its neighbours stand side by side */
    write_json(s, root);
    ebb_tokenizer *t = open_ok(s->directory);
    const int32_t a = ebb_tokenizer_id(t, "a"), b = ebb_tokenizer_id(t, "b"), without[] = {a, b};
    expect_ids(t, "azb", 3, true, without, 2);
    expect_ids(t, "z", 1, true, NULL, 0);
    expect_ids(t, "zz", 2, true, NULL, 0);
    ebb_tokenizer_close(t);
    json_t *model = json_object_get(root, "model");
    json_object_set_new(model, "unk_token", json_string("b"));
    write_json(s, root);
    t = open_ok(s->directory);
    const int32_t with[] = {a, b, b, a};
    expect_ids(t, "azza", 4, true, with, 4);
    ebb_tokenizer_close(t);
    json_object_set_new(model, "fuse_unk", json_true());
    write_json(s, root);
    assert_int_equal(try_open(s, &error), EBB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "fuse_unk true and no token for the byte 0x7a"));
    json_object_set_new(model, "byte_fallback", json_true());
    write_json(s, root);
    assert_int_equal(try_open(s, &error), EBB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "byte_fallback true"));
    json_object_set_new(model, "byte_fallback", json_false());
    json_object_set_new(model, "fuse_unk", json_false());
    json_object_set_new(model, "unk_token", json_string("none such"));
    write_json(s, root);
    assert_int_equal(try_open(s, &error), EBB_BAD_FILE);
    json_decref(root);
}

/* A pattern that never ends is stopped by the limit, and says so. */
static void test_catastrophe(void **state) {
    const scratch *s = *state;
    json_error_t wrong;
    json_t *root = small_json(), *patch = json_loads(PATTERN("(a|a|ab?)+[cd]"), 0, &wrong);
    merge_patch(root, patch);
    write_json(s, root);
    json_decref(patch);
    json_decref(root);
    ebb_tokenizer *t = open_ok(s->directory);
    char text[64];
    memset(text, 'a', sizeof text);
    int32_t *ids;
    int64_t n;
    ebb_error error;
    assert_int_equal(ebb_tokenize(t, text, 64, true, &ids, &n, &error), EBB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "limit"));
    assert_null(ids);
    expect_ids(t, "aab", 3, true, (int32_t[]){'a', 'a', 'b'}, 3);
    ebb_tokenizer_close(t);
}

static void test_damaged(void **state) {
    const scratch *s = *state;
    ebb_error error;
    json_t *root = small_json();
    char *good = json_dumps(root, 0), *bad = strdup(good);
    size_t n = strlen(good);
    json_decref(root);
    for (size_t cut = 0; cut < n; cut += cut < 40 ? 1 : 23) {
        write_bytes(s, good, cut);
        assert_int_equal(try_open(s, &error), EBB_BAD_FILE);
    }
    int opened = 0;
    for (uint64_t round = 0; round < 800; round++) {
        memcpy(bad, good, n);
        for (uint64_t flip = 0; flip <= round % 3; flip++) {
            uint64_t random = mix64(round * 4 + flip);
            bad[random % n] = (char)(random >> 40);
        }
        write_bytes(s, bad, n);
        opened += try_open(s, &error) == EBB_OK;
    }
    assert_true(opened > 0 && opened < 800); /* both ways were taken */
    free(good);
    free(bad);
}

static void test_not_json(void **state) {
    const scratch *s = *state;
    ebb_error error;
    ebb_tokenizer *t;
    static const char *const texts[] = {
        "", " ", "[]", "7", "\"x\"", "{\"a\":1,\"a\":2}", "{\"a\":\"\\u0000\"}", "{\"a\":\"\xff\"}", "{} x"};
    for (int i = 0; i < COUNT(texts); i++) {
        write_bytes(s, texts[i], strlen(texts[i]));
        assert_int_equal(try_open(s, &error), EBB_BAD_FILE);
        assert_non_null(strstr(error.text, "tokenizer.json"));
    }
    enum { DEEP = 100000 };
    char *deep = malloc(DEEP);
    memset(deep, '[', DEEP);
    memcpy(deep, "{\"normalizer\":", 14);
    write_bytes(s, deep, DEEP);
    assert_int_equal(try_open(s, &error), EBB_BAD_FILE);
    free(deep);
    assert_int_equal(ebb_tokenizer_open("/nonexistent", &t, &error), EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "/nonexistent/tokenizer.json"));
    assert_int_equal(ebb_tokenizer_open(NULL, &t, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_tokenizer_open("/nonexistent", &t, NULL), EBB_BAD_FILE);
}

/* As deep as the reader allows: nested Sequences go through, one way or the other. */
static void test_nested(void **state) {
    const scratch *s = *state;
    ebb_error error;
    json_t *root = small_json(), *inner = json_pack("{ss}", "type", "NFC");
    for (int i = 0; i < 1000; i++) inner = json_pack("{s:s,s:[o]}", "type", "Sequence", "normalizers", inner);
    json_object_set_new(root, "normalizer", inner);
    write_json(s, root);
    json_decref(root);
    assert_int_equal(try_open(s, &error), EBB_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_small, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_ignore_merges, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_patches, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_missing_byte, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_catastrophe, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_damaged, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_not_json, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_nested, scratch_open, scratch_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
