/* fuzz/text.c: what is read from people: text, tokens, conversations, names of methods, command lines. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"

#include "cli/cli.h"
#include "cli/method_list.h"
#include "cli/options.h"
#include "ebb/ebb.h"
#include "model/jinja.h"
#include "model/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- tokenizers ---- */

/* Does the tokenizer leave text as it is: no normalization, no added tokens, a token for every byte that UTF-8 has? */
static int keeps_text(const ebb_tokenizer *t) {
    int keeps = !t->nfc && !t->normalized.n && !t->raw.n;
    for (int i = 0; i < 256; i++) {
        size_t n;
        const char *piece = ebb_token_bytes(t, t->byte_id[i], &n);
        if (i != 0xc0 && i != 0xc1 && i < 0xf5) keeps &= piece && n == 1 && (uint8_t)*piece == i;
    }
    return keeps;
}

static void there_and_back(const ebb_tokenizer *t, const char *text, size_t bytes) {
    int32_t *ids = NULL;
    int64_t n = 0;
    size_t at = 0;
    const int same = keeps_text(t);
    if (ebb_tokenize(t, text, bytes, false, &ids, &n, NULL)) return;
    for (int64_t i = 0; i < n; i++) {
        size_t n_piece;
        const char *piece = ebb_token_bytes(t, ids[i], &n_piece);
        fuzz_expect(piece && n_piece, "an id has its bytes");
        if (same) fuzz_expect(at + n_piece <= bytes && !memcmp(text + at, piece, n_piece), "text comes back");
        at += n_piece;
    }
    fuzz_expect(!same || at == bytes, "all text comes back");
    free(ids);
}

/* Words, spaces, accents, Chinese, a special token. */
static const char some_text[] =
    "It's 2026: na\xc3\xafve cafe\xcc\x81s,\r\n\n  \xe4\xbd\xa0\xe5\xa5\xbd <|im_end|> \xf0\x9f\x99\x82!";

void fuzz_tokenizer(const uint8_t *data, size_t bytes) {
    ebb_tokenizer *t = NULL;
    ebb_error error = {EBB_OK, ""};
    char path[160];
    fuzz_chatml(); /* loaded before it is overwritten */
    fuzz_file("chatml/tokenizer.json", data, bytes);
    snprintf(path, sizeof path, "%s/chatml", fuzz_folder());
    const ebb_status status = ebb_tokenizer_open(path, &t, &error);
    fuzz_expect(!status || error.text[0], "a failure has its sentence");
    if (!status) there_and_back(t, some_text, sizeof some_text - 1);
    ebb_tokenizer_close(t);
}

/* A tokenizer_config.json up to a zero byte, then a tiktoken.model. All of a text is in its ids: there is a token for
 * every byte. */
void fuzz_tiktoken(const uint8_t *data, size_t bytes) {
    const uint8_t *zero = bytes ? memchr(data, 0, bytes) : NULL;
    const size_t config = zero ? (size_t)(zero - data) : bytes;
    ebb_tokenizer *t = NULL;
    ebb_error error = {EBB_OK, ""};
    char path[160];
    snprintf(path, sizeof path, "%s/kimi", fuzz_folder());
    mkdir(path, 0777); /* may be there */
    fuzz_file("kimi/tokenizer_config.json", data, config);
    fuzz_file("kimi/tiktoken.model", zero ? zero + 1 : data, zero ? bytes - config - 1 : 0);
    const ebb_status status = ebb_tokenizer_open(path, &t, &error);
    fuzz_expect(!status || error.text[0], "a failure has its sentence");
    if (!status) {
        t->raw.n = 0; /* special tokens are no part of this */
        there_and_back(t, some_text, sizeof some_text - 1);
    }
    ebb_tokenizer_close(t);
}

void fuzz_tokenize(const uint8_t *data, size_t bytes) {
    int32_t *ids = NULL;
    int64_t n = 0;
    const ebb_tokenizer *t = fuzz_chatml();
    there_and_back(t, (const char *)data, bytes);
    if (ebb_tokenize(t, (const char *)data, bytes, true, &ids, &n, NULL)) return;
    for (int64_t i = 0; i < n; i++) fuzz_expect(ids[i] >= 0 && ids[i] < ebb_tokenizer_size(t), "an id is in range");
    free(ids);
}

/* Two bytes an id; the first byte says how much room there is. What comes out is whole UTF-8. */
void fuzz_detokenize(const uint8_t *data, size_t bytes) {
    char text[300];
    size_t written;
    if (!bytes) return;
    ebb_detokenizer d = {.tokenizer = fuzz_chatml(), .show_special = data[0] & 1};
    const size_t room = 8 + data[0];
    for (size_t i = 1; i + 1 < bytes + 2; i += 2) {
        const int32_t id = i + 1 < bytes ? data[i] << 8 | data[i + 1] : -1;
        if (ebb_detokenize(&d, id, text, room, &written)) continue;
        fuzz_expect(written < room && text[written] == '\0', "text ends where it should");
        for (size_t at = 0; at < written;) {
            const int length = utf8_length((const uint8_t *)text + at, written - at);
            fuzz_expect(length > 0, "text is whole UTF-8");
            at += (size_t)length;
        }
    }
}

void fuzz_pattern(const uint8_t *data, size_t bytes) {
    char *pattern = fuzz_string(data, bytes);
    pcre2_code *code = NULL;
    ebb_error error = {EBB_OK, ""};
    const ebb_status status = pattern_compile(pattern, "fuzz", &code, &error);
    fuzz_expect(!status == (code != NULL) && (!status || error.text[0]), "a pattern compiles or a sentence says why");
    pcre2_code_free(code);
    free(pattern);
}

/* Lines are role and content in turn. Whatever they hold, turns begin and end only where the messages do. */
void fuzz_chat(const uint8_t *data, size_t bytes) {
    enum { MOST = 16 };
    ebb_message messages[MOST];
    char *text = fuzz_string(data, bytes), *rest = text;
    int32_t n = 0, *ids = NULL, starts = 0;
    int64_t count = 0;
    for (char *role; n < MOST && (role = strsep(&rest, "\n"));) {
        const char *content = strsep(&rest, "\n");
        messages[n++] = (ebb_message){role, content ? content : ""};
    }
    const ebb_tokenizer *t = fuzz_chatml();
    const int32_t start = ebb_tokenizer_id(t, "<|im_start|>");
    if (!ebb_chat(t, messages, n, bytes % 2 == 0, &ids, &count, NULL)) {
        for (int64_t i = 0; i < count; i++) starts += ids[i] == start;
        fuzz_expect(starts == n + (bytes % 2 == 0), "there are as many turns as messages");
        free(ids);
    }
    free(text);
}

/* A chat template of any kind: it writes a conversation within its budgets, or a sentence says why not. */
void fuzz_template(const uint8_t *data, size_t bytes) {
    char *template = fuzz_string(data, bytes);
    int32_t *ids = NULL;
    int64_t count = 0;
    ebb_error error = {EBB_OK, ""};
    const ebb_tokenizer *t = fuzz_chatml();
    json_t *variables = json_pack("{s:[{s:s,s:s},{s:s,s:s,s:[{s:s,s:{s:i,s:f}}]}],s:n,s:b}", "messages", "role", "user",
                                  "content", "<|im_end|> x", "role", "assistant", "content", "", "tool_calls", "name",
                                  "f", "arguments", "a", 1, "b", 0.5, "tools", "add_generation_prompt", 1);
    const jinja_call call = {.source = template,
                             .bytes = strlen(template),
                             .data = variables,
                             .now = 1000000000,
                             .limits = {.steps = 200000, .memory = 16 << 20, .output = 1 << 20}};
    jinja_text out;
    const ebb_status status = jinja_render(&call, &out, &error);
    fuzz_expect(!status || error.text[0], "a failure has its sentence");
    if (!status && !tokenize_marked(t, out.text, out.from_data, out.bytes, &ids, &count, &error)) free(ids);
    if (!status) jinja_text_free(&out);
    json_decref(variables);
    free(template);
}

/* ---- methods ---- */

/* What can be parsed can be written with every parameter, and means the same. */
static void state_method(const char *text) {
    ebb_state_spec spec, again;
    ebb_state_sizes sizes;
    ebb_error error = {EBB_OK, ""};
    char full[512];
    const ebb_state_layer layer = {
        .kind = EBB_KDA, .key_heads = 2, .heads = 4, .key_dim = 32, .value_dim = 48, .conv_width = 4};
    const ebb_status status = ebb_state_parse(text, &spec, &error);
    fuzz_expect(!status || error.text[0], "a failure has its sentence");
    if (status) return;
    fuzz_expect(!ebb_state_text(&spec, full, sizeof full, &error), "a method can be written");
    fuzz_expect(!ebb_state_parse(full, &again, &error), "a written method can be read");
    fuzz_expect(spec.method == again.method && spec.window == again.window, "a method keeps its name and window");
    fuzz_expect(!memcmp(spec.param, again.param, sizeof spec.param), "a method keeps its parameters");
    const ebb_status sized = ebb_state_size(&spec, &layer, 8, &sizes, &error);
    fuzz_expect(sized ? error.text[0] : sizes.packed_head > 0, "a method has a size, or a sentence says why not");
}

static void kv_method(const char *text) {
    ebb_kv_spec spec, again;
    ebb_error error = {EBB_OK, ""};
    char full[512];
    size_t bytes = 0;
    const ebb_kv_layer layer = {
        .q_heads = 4, .heads = 2, .parts = 2, .scale = 1, .part = {{64, EBB_ROLE_K}, {64, EBB_ROLE_V}}};
    if (ebb_kv_parse(text, &spec, &error)) return;
    fuzz_expect(!ebb_kv_text(&spec, full, sizeof full, &error), "a method can be written");
    fuzz_expect(!ebb_kv_parse(full, &again, &error), "a written method can be read");
    fuzz_expect(spec.method == again.method && !memcmp(spec.param, again.param, sizeof spec.param),
                "a method keeps its parameters");
    const ebb_status sized = ebb_kv_token_bytes(&spec, &layer, &bytes, &error);
    fuzz_expect(sized ? error.text[0] : bytes > 0, "a method has a size, or a sentence says why not");
}

void fuzz_methods(const uint8_t *data, size_t bytes) {
    char *text = fuzz_string(data, bytes);
    state_method(text);
    kv_method(text);
    free(text);
}

/* ---- command lines ---- */

/* What src/cli/main.c says on stderr. */
int fail_with(const ebb_error *error) {
    fuzz_expect(error->text[0], "a failure has its sentence");
    return EXIT_FAILED;
}

int usage_error(const char *format, ...) {
    fuzz_expect(format[0], "a failure has its sentence");
    return EXIT_USAGE;
}

/* Lines are words. The table has one option of every kind. */
void fuzz_options(const uint8_t *data, size_t bytes) {
    enum { MOST = 64 };
    char *text = fuzz_string(data, bytes), *rest = text, *argv[MOST + 1], name[] = "fuzz";
    int argc = 1, words = 0;
    const char *word = NULL;
    int64_t whole = 5;
    double real = 0.5;
    bool flag = false;
    const option_row table[] = {
        {"text", 't', OPTION_TEXT, &word, 0, 0, "TEXT", "a text"},
        {"whole", 'n', OPTION_INT, &whole, -3, 1 << 20, "N", "a whole number"},
        {"real", 0, OPTION_REAL, &real, 0, 1, "X", "a number"},
        {"flag", 'f', OPTION_FLAG, &flag, 0, 0, NULL, "yes"},
        {0},
    };
    static const usage_text usage = {"ebb fuzz", "", NULL};
    argv[0] = name;
    while (argc < MOST && (argv[argc] = strsep(&rest, "\n")))
        argc += strcmp(argv[argc], "-h") != 0 && strcmp(argv[argc], "--help") != 0; /* which print */
    argv[argc] = NULL;
    if (options_read(&usage, table, argc, argv, bytes % 2 ? &words : NULL) == OPTIONS_OK) {
        fuzz_expect(whole >= -3 && whole <= 1 << 20 && real >= 0 && real <= 1, "numbers are in range");
        fuzz_expect(words >= 0 && words < argc, "words are words of the line");
        for (int i = 1; i <= words; i++) {
            method_list list;
            if (method_list_read(argv[i], &list, NULL)) continue;
            method_list_free(&list);
        }
    }
    free(text);
}
