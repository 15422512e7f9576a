/* test_tokenizer.c: the tokenizer against what the Python library `tokenizers` made of the same files and texts
 * (tests/data/tokenizer_golden.jsonl). */
#include "tokenizer_files.h"

#include "model/tokenizer.h"

#define MODEL SOURCE_DIR "/models/tiny-gdn"
#define GOLDEN SOURCE_DIR "/tests/data/tokenizer_golden.jsonl"

static json_t *load_model_json(void) {
    json_error_t wrong;
    json_t *root = json_load_file(MODEL "/tokenizer.json", 0, &wrong);
    assert_non_null(root);
    return root;
}

/* ---- the golden file ---- */

/* Decode ids one at a time into little room: every piece must be whole characters, all of them the text. */
static void check_decodes(const ebb_tokenizer *t, const int32_t *ids, int64_t n, const char *text, size_t bytes) {
    ebb_detokenizer d = {t, true, {0}, 0};
    size_t done = 0, wrote;
    char piece[200];
    for (int64_t i = 0; i <= n; i++) {
        assert_int_equal(ebb_detokenize(&d, i < n ? ids[i] : -1, piece, sizeof piece, &wrote), EBB_OK);
        for (size_t at = 0; at < wrote;) {
            int length = utf8_length((uint8_t *)piece + at, wrote - at);
            assert_true(length > 0);
            at += (size_t)length;
        }
        assert_true(done + wrote <= bytes);
        assert_memory_equal(piece, text + done, wrote);
        done += wrote;
    }
    assert_int_equal(done, bytes);
}

static void check_ids(const json_t *line, int64_t number, const int32_t *ids, int64_t n) {
    const json_t *wanted = json_object_get(line, "ids");
    bool same = (int64_t)json_array_size(wanted) == n;
    for (int64_t i = 0; i < n && same; i++) same = json_integer_value(json_array_get(wanted, (size_t)i)) == ids[i];
    if (same) return;
    char got[400] = "";
    for (int64_t i = 0; i < n && strlen(got) < 380; i++) snprintf(got + strlen(got), 16, " %d", ids[i]);
    char *text = json_dumps(line, JSON_ENSURE_ASCII | JSON_COMPACT);
    fail_msg("line %lld: %s\ngot%s", (long long)number, text, got);
}

static void check_hash(const json_t *line, int64_t number, const int32_t *ids, int64_t n) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((uint32_t)ids[i] >> shift & 0xff)) * 0x100000001b3u;
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    if (n != json_integer_value(json_object_get(line, "count")) ||
        strcmp(text, json_string_value(json_object_get(line, "fnv"))))
        fail_msg("line %lld: %lld ids with the hash %s", (long long)number, (long long)n, text);
}

static void check_text(const ebb_tokenizer *t, bool exact, const json_t *line, int64_t number) {
    const json_t *text = json_object_get(line, "text"), *times = json_object_get(line, "times");
    size_t n = json_string_length(text), repeat = times ? (size_t)json_integer_value(times) : 1;
    char *all = malloc(n * repeat + 1);
    for (size_t i = 0; i < repeat; i++) memcpy(all + i * n, json_string_value(text), n);
    int32_t *ids;
    int64_t count;
    ebb_error error;
    bool special = !json_is_true(json_object_get(line, "plain"));
    ebb_status status = ebb_tokenize(t, all, n * repeat, special, &ids, &count, &error);
    if (status) fail_msg("line %lld: %s", (long long)number, error.text);
    if (times) check_hash(line, number, ids, count);
    else check_ids(line, number, ids, count);
    if (exact) check_decodes(t, ids, count, all, n * repeat);
    free(ids);
    free(all);
}

/* Python's bytes.decode(errors="replace"), byte tokens fed one by one. */
static void check_replaced(const ebb_tokenizer *t, const json_t *line) {
    const json_t *bytes = json_object_get(line, "bytes"), *replaced = json_object_get(line, "replaced");
    int32_t ids[16];
    size_t n = json_array_size(bytes);
    assert_true(n <= 16);
    for (size_t i = 0; i < n; i++) ids[i] = t->byte_id[json_integer_value(json_array_get(bytes, i))];
    check_decodes(t, ids, (int64_t)n, json_string_value(replaced), json_string_length(replaced));
}

static void test_golden(void **state) {
    const scratch *s = *state;
    FILE *file = fopen(GOLDEN, "r");
    assert_non_null(file);
    char *buffer = NULL;
    size_t room = 0;
    ssize_t n;
    ebb_tokenizer *t = NULL;
    bool exact = false;
    int64_t number = 0, texts = 0, replaced = 0;
    while ((n = getline(&buffer, &room, file)) > 0) {
        json_error_t wrong;
        json_t *line = json_loadb(buffer, (size_t)n, JSON_ALLOW_NUL, &wrong);
        number++;
        if (!line) fail_msg("line %lld: %s", (long long)number, wrong.text);
        if (json_object_get(line, "variant")) {
            json_t *root = load_model_json();
            merge_patch(root, json_object_get(line, "patch"));
            write_json(s, root);
            json_decref(root);
            ebb_tokenizer_close(t);
            t = open_ok(s->directory);
            exact = json_is_true(json_object_get(line, "exact"));
        } else if (json_object_get(line, "text")) check_text(t, exact, line, number), texts++;
        else if (json_object_get(line, "bytes")) check_replaced(t, line), replaced++;
        json_decref(line);
    }
    assert_true(texts > 1400 && replaced > 100);
    ebb_tokenizer_close(t);
    free(buffer);
    fclose(file);
}

/* ---- the other calls on the model's own file ---- */

static void test_lookups(void **state) {
    (void)state;
    ebb_tokenizer *t = open_ok(MODEL);
    size_t n;
    assert_int_equal(ebb_tokenizer_size(t), 8192);
    assert_int_equal(ebb_tokenizer_id(t, "<|im_end|>"), 8189);
    assert_int_equal(ebb_tokenizer_id(t, " the"), 260);
    assert_int_equal(ebb_tokenizer_id(t, "no such token"), -1);
    assert_int_equal(ebb_tokenizer_id(t, ""), -1);
    assert_true(ebb_tokenizer_special(t, 8189));
    assert_false(ebb_tokenizer_special(t, 260));
    assert_false(ebb_tokenizer_special(t, -1));
    assert_false(ebb_tokenizer_special(t, 8192));
    assert_memory_equal(ebb_token_bytes(t, 260, &n), " the", 4);
    assert_int_equal(n, 4);
    assert_null(ebb_token_bytes(t, 8192, &n));
    assert_int_equal(n, 0);
    assert_null(ebb_token_bytes(t, -1, NULL));
    expect_ids(t, NULL, 0, true, NULL, 0);
    expect_ids(t, "\0", 1, true, (int32_t[]){188}, 1);
    ebb_tokenizer_close(t);
    ebb_tokenizer_close(NULL);
}

static void test_not_utf8(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {{"abc\xff", "byte 3"},          {"\xc3", "byte 0"},
                 {"a\xc0\x80", "byte 1"},        {"\xed\xa0\x80", "byte 0"},
                 {"\xf4\x90\x80\x80", "byte 0"}, {"\xe2\x82\xac\xe2\x82", "byte 3"},
                 {"\xe0\x80\x80", "byte 0"},     {"xy\xf0\x8f\xbf\xbf", "byte 2"}};
    ebb_tokenizer *t = open_ok(MODEL);
    for (int i = 0; i < COUNT(cases); i++) {
        int32_t *ids = (int32_t *)t;
        int64_t count = 7;
        ebb_error error;
        assert_int_equal(ebb_tokenize(t, cases[i].text, strlen(cases[i].text), true, &ids, &count, &error),
                         EBB_BAD_ARGUMENT);
        assert_non_null(strstr(error.text, cases[i].says));
        assert_null(ids);
        assert_int_equal(count, 0);
    }
    ebb_tokenizer_close(t);
}

static void test_detokenize_room(void **state) {
    (void)state;
    ebb_tokenizer *t = open_ok(MODEL);
    char text[16];
    size_t n = 9;
    ebb_detokenizer d = {t, false, {0}, 0};
    assert_int_equal(ebb_detokenize(&d, t->byte_id[0xe2], text, 1, &n), EBB_OK); /* held: nothing to write */
    assert_int_equal(n, 0);
    assert_int_equal(ebb_detokenize(&d, 260, text, 7, &n),
                     EBB_BAD_ARGUMENT); /* U+FFFD and " the" are 7 bytes and a NUL */
    assert_int_equal(n, 0);
    assert_int_equal(d.n_held, 1);
    assert_int_equal(ebb_detokenize(&d, 8189, text, 1, &n), EBB_OK); /* special, hidden: held bytes stay */
    assert_int_equal(d.n_held, 1);
    assert_int_equal(ebb_detokenize(&d, 8192, text, 1, &n), EBB_OK); /* no such token: empty */
    assert_int_equal(ebb_detokenize(&d, 260, text, 8, &n), EBB_OK);
    assert_int_equal(n, 7);
    assert_string_equal(text, "\xef\xbf\xbd the");
    assert_int_equal(ebb_detokenize(&d, -1, text, 1, &n), EBB_OK);
    assert_int_equal(n, 0);
    assert_int_equal(ebb_detokenize(&d, t->byte_id[0xe2], text, 1, &n), EBB_OK);
    for (int flush = 0; flush < 2; flush++) { /* the second has nothing to say */
        assert_int_equal(ebb_detokenize(&d, -1, text, sizeof text, &n), EBB_OK);
        assert_string_equal(text, flush ? "" : "\xef\xbf\xbd");
    }
    d.show_special = true;
    assert_int_equal(ebb_detokenize(&d, 8189, text, sizeof text, &n), EBB_OK);
    assert_string_equal(text, "<|im_end|>");
    assert_int_equal(ebb_detokenize(&d, 260, text, 0, &n), EBB_BAD_ARGUMENT);
    ebb_tokenizer_close(t);
}

/* Merges as "a b" mean the same as ["a", "b"]. */
static void test_merge_strings(void **state) {
    const scratch *s = *state;
    json_t *root = load_model_json(), *strings = json_array(), *item;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(root, "model"), "merges"), i, item) {
        json_array_append_new(strings, json_sprintf("%s %s", json_string_value(json_array_get(item, 0)),
                                                    json_string_value(json_array_get(item, 1))));
    }
    json_object_set_new(json_object_get(root, "model"), "merges", strings);
    write_json(s, root);
    json_decref(root);
    ebb_tokenizer *a = open_ok(MODEL), *b = open_ok(s->directory);
    assert_int_equal(a->n_merges, b->n_merges);
    assert_memory_equal(a->merges, b->merges, (size_t)a->n_merges * sizeof *a->merges);
    ebb_tokenizer_close(a);
    ebb_tokenizer_close(b);
}

/* Time must not grow with the square of a word, of a run of spaces, or of a run of combining marks. */
static void test_long_runs(void **state) {
    const scratch *s = *state;
    json_t *root = load_model_json();
    json_object_set_new(root, "normalizer", json_pack("{ss}", "type", "NFC"));
    write_json(s, root);
    json_decref(root);
    ebb_tokenizer *t = open_ok(s->directory);
    static const char *const runs[] = {"theing", " ", "\n ", "<|im_", "9", "\xcc\x81\xcc\xa3"};
    enum { BYTES = 600000 };
    char *text = malloc(BYTES);
    for (int r = 0; r < COUNT(runs); r++) {
        size_t n = strlen(runs[r]);
        for (size_t i = 0; i < BYTES; i++) text[i] = runs[r][i % n];
        int32_t *ids;
        int64_t count;
        double start = seconds_now();
        assert_int_equal(ebb_tokenize(t, text, BYTES / n * n, true, &ids, &count, NULL), EBB_OK);
        assert_true(count > 0);
        print_message("a run of '%s': %.2f s\n", runs[r], seconds_now() - start);
        free(ids);
    }
    free(text);
    ebb_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_golden, scratch_open, scratch_close),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_not_utf8),
        cmocka_unit_test(test_detokenize_room),
        cmocka_unit_test_setup_teardown(test_merge_strings, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_long_runs, scratch_open, scratch_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
