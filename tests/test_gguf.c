/* test_gguf.c: GGUF files: blocks bit for bit as the gguf package decodes them; models that llama.cpp's converter wrote
 * against transformers (llama in F32 with Llama 3's RoPE, qwen3 in F16, glm4 in BF16, and llama with a matrix in every
 * type of blocks); their tokenizers; and files that are cut or lie. Golden data: data/make_gguf_golden.py. */
#define _GNU_SOURCE /* memmem */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "format/block_gguf.h"
#include "gguf_world.h"
#include "model/gguf.h"

#define DATA SOURCE_DIR "/tests/data/"

static json_t *golden(const char *which) {
    json_t *root = load_json(DATA "gguf_golden.json"), *part = json_incref(json_object_get(root, which));
    json_decref(root);
    return part;
}

static const char *const models[] = {"llama", "qwen3", "glm4", "quant"};

static const char *model_path(const char *which, char path[static 256]) {
    snprintf(path, 256, DATA "gguf_%s.gguf", which);
    return path;
}

/* ---- blocks ---- */

static void test_blocks(void **state) {
    (void)state;
    static const int32_t types[] = {EBB_Q4_0, EBB_Q4_1, EBB_Q5_0, EBB_Q5_1, EBB_Q8_0, EBB_Q4_K, EBB_Q5_K, EBB_Q6_K};
    enum { BLOCKS = 4 };
    ebb_error error;
    mapped_file file;
    float values[BLOCKS * GGUF_SUPER];
    must(map_file(DATA "gguf_blocks.bin", &file, &error), &error);
    const uint8_t *at = file.data;
    for (int32_t i = 0; i < COUNT(types); i++) {
        const int64_t n = BLOCKS * ebb_type_block((ebb_type)types[i]);
        const size_t bytes = ebb_type_row_bytes((ebb_type)types[i], n);
        assert_int_equal(bytes, BLOCKS * gguf_block_bytes(types[i]));
        assert_int_equal(ebb_type_row_bytes((ebb_type)types[i], n - 1), 0);
        gguf_decode_row(types[i], at, n, values);
        if (memcmp(values, at + bytes, (size_t)n * sizeof *values))
            fail_msg("%s: other values than the gguf package's", ebb_type_name((ebb_type)types[i]));
        at += bytes + (size_t)n * sizeof *values;
    }
    assert_ptr_equal(at, file.data + file.bytes);
    unmap_file(&file);
}

/* ---- models ---- */

static void test_parity(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        char path[256];
        json_t *part = golden(models[i]);
        const json_t *items = json_object_get(part, "items");
        assert_true(json_array_size(items) >= 3);
        const double worst = run_model(model_path(models[i], path), items, true);
        print_message("%s: the largest error of a logit is %g\n", models[i], worst);
        assert_true(worst < 1e-3);
        json_decref(part);
    }
}

static void write_bytes(const char *path, const uint8_t *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

/* Make the first weight of a tensor, or the scale of its first block, another number of usual size. The first row of
 * the embedding is the one of a token that no prompt may have: there another one is changed. */
static void perturb(const gguf_file *file, const gguf_tensor *t, uint8_t *copy, const json_t *items) {
    const int64_t ids = json_integer_value(json_array_get(json_object_get(json_array_get(items, 0), "ids"), 0));
    const size_t row = t->dims == 2 ? t->bytes / (size_t)t->shape[0] : 0;
    uint8_t *at = copy + (t->data - file->map.data);
    if (!strcmp(t->name, "token_embd.weight")) at += (size_t)ids * row;
    if (t->type == EBB_FP32) at[3] ^= 0x82, at[2] ^= 0x80; /* sign and exponent */
    else if (t->type == EBB_Q6_K) at[209] ^= 0x84;
    else at[1] ^= 0x84;
}

static void test_every_tensor_counts(void **state) {
    (void)state;
    static const char path[] = "/tmp/ebb_gguf_perturbed.gguf";
    char name[64], from[256];
    snprintf(name, sizeof name, "%s.%d", path, (int)getpid());
    for (int32_t i = 0; i < COUNT(models); i++) {
        ebb_error error;
        gguf_file file;
        json_t *part = golden(models[i]);
        const json_t *items = json_object_get(part, "items");
        must(gguf_open(model_path(models[i], from), &file, &error), &error);
        uint8_t *copy = malloc(file.map.bytes);
        for (uint64_t t = 0; t < file.n_tensors; t++) {
            memcpy(copy, file.map.data, file.map.bytes);
            perturb(&file, &file.tensors[t], copy, items);
            write_bytes(name, copy, file.map.bytes);
            const double worst = run_model(name, items, false);
            if (worst < 1e-3) fail_msg("%s: %s changed and nobody noticed: %g", models[i], file.tensors[t].name, worst);
        }
        free(copy);
        gguf_close(&file);
        json_decref(part);
    }
    unlink(name);
}

static void test_description(void **state) {
    (void)state;
    ebb_error error;
    ebb_device *device;
    ebb_model *model;
    char path[256];
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    must(ebb_model_open(device, model_path("quant", path), NULL, &model, &error), &error);
    const ebb_model_info *info = ebb_model_describe(model);
    assert_string_equal(info->architecture, "llama");
    assert_int_equal(info->kv_layers, 1);
    assert_int_equal(info->state_layers, 0);
    assert_int_equal(info->max_position, 512);
    assert_int_equal(info->n_stop, 1);
    assert_int_equal(info->stop[0], ebb_tokenizer_id(ebb_model_tokenizer(model), "<|im_end|>"));
    /* The blocks stay: of 390 thousand weights in 4 to 8 bits not even a byte each is held. */
    assert_true(info->parameters > 380000);
    assert_true(info->weight_bytes < (size_t)info->parameters);
    ebb_model_close(model);
    ebb_device_close(device);
}

/* ---- tokenizers ---- */

static void test_texts(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        ebb_error error;
        ebb_tokenizer *t;
        char path[256];
        json_t *part = golden(models[i]);
        const json_t *texts = json_object_get(part, "texts");
        assert_true(json_array_size(texts) >= 20);
        must(ebb_tokenizer_open(model_path(models[i], path), &t, &error), &error);
        int32_t n_prefix;
        const int32_t *prefix = ebb_tokenizer_prefix(t, &n_prefix);
        assert_int_equal(n_prefix, !strcmp(models[i], "llama"));
        if (n_prefix) assert_int_equal(prefix[0], ebb_tokenizer_id(t, "<|begin_of_text|>"));
        check_texts(t, texts);
        ebb_tokenizer_close(t);
        json_decref(part);
    }
}

/* The template in the file says how a conversation is written. */
static void test_chat(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        ebb_error error;
        ebb_tokenizer *t;
        ebb_message messages[8];
        int64_t n, n_want;
        int32_t *got;
        char path[256];
        json_t *part = golden(models[i]);
        const json_t *chat = json_object_get(part, "chat"), *talk = json_object_get(chat, "talk");
        int32_t *want = ids_of(json_object_get(chat, "ids"), &n_want);
        const int32_t turns = (int32_t)json_array_size(talk);
        assert_in_range(turns, 2, COUNT(messages));
        for (int32_t m = 0; m < turns; m++) {
            const json_t *message = json_array_get(talk, (size_t)m);
            messages[m] = (ebb_message){json_string_value(json_object_get(message, "role")),
                                        json_string_value(json_object_get(message, "content"))};
        }
        must(ebb_tokenizer_open(model_path(models[i], path), &t, &error), &error);
        must(ebb_chat(t, messages, turns, true, &got, &n, &error), &error);
        assert_int_equal(n, n_want);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        free(got), free(want);
        ebb_tokenizer_close(t);
        json_decref(part);
    }
}

/* ---- files that are cut or lie ---- */

typedef struct bytes {
    uint8_t at[4096];
    size_t n;
} bytes;

static void put(bytes *b, uint64_t value, size_t size) {
    for (size_t i = 0; i < size; i++) b->at[b->n++] = (uint8_t)(value >> 8 * i);
}

static void put_text(bytes *b, const char *text) {
    put(b, strlen(text), 8);
    memcpy(b->at + b->n, text, strlen(text));
    b->n += strlen(text);
}

static void put_head(bytes *b, uint32_t version, uint64_t tensors, uint64_t fields) {
    b->n = 0;
    put(b, 0x46554747, 4); /* GGUF */
    put(b, version, 4);
    put(b, tensors, 8);
    put(b, fields, 8);
}

static void put_int(bytes *b, const char *key, uint32_t value) {
    put_text(b, key);
    put(b, GGUF_UINT32, 4);
    put(b, value, 4);
}

static void put_string(bytes *b, const char *key, const char *value) {
    put_text(b, key);
    put(b, GGUF_STRING, 4);
    put_text(b, value);
}

static void put_tensor(bytes *b, const char *name, uint32_t type, uint64_t k, uint64_t n, uint64_t at) {
    put_text(b, name);
    put(b, 2, 4);
    put(b, k, 8);
    put(b, n, 8);
    put(b, type, 4);
    put(b, at, 8);
}

static void put_data(bytes *b, size_t size) {
    while (b->n % 32) b->at[b->n++] = 0;
    memset(b->at + b->n, 0, size);
    b->n += size;
}

static const char *scratch_path(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/ebb_gguf_test.gguf.%d", (int)getpid());
    return path;
}

static void refused(const bytes *b, ebb_status expected, const char *words) {
    ebb_error error = {EBB_OK, ""};
    gguf_file file;
    write_bytes(scratch_path(), b->at, b->n);
    const ebb_status status = gguf_open(scratch_path(), &file, &error);
    if (status != expected || !strstr(error.text, words))
        fail_msg("'%s' (%s) instead of '%s'", error.text, ebb_status_name(status), words);
    gguf_close(&file);
    unlink(scratch_path());
}

static void test_head(void **state) {
    (void)state;
    bytes b = {.n = 0};
    refused(&b, EBB_BAD_FILE, "does not begin with GGUF");
    put_head(&b, 3, 0, 0);
    b.at[3] = 'X';
    refused(&b, EBB_BAD_FILE, "does not begin with GGUF");
    put_head(&b, 1, 0, 0);
    refused(&b, EBB_UNSUPPORTED, "GGUF version 1, expected 2 or 3");
    put_head(&b, 0x03000000, 0, 0);
    refused(&b, EBB_UNSUPPORTED, "big-endian");
    put_head(&b, 3, 0, UINT64_MAX);
    refused(&b, EBB_BAD_FILE, "do not fit its 24 bytes");
    put_head(&b, 3, 1u << 20, 0);
    refused(&b, EBB_BAD_FILE, "do not fit its 24 bytes");
}

static void test_fields(void **state) {
    (void)state;
    bytes b;
    put_head(&b, 3, 0, 2);
    put_int(&b, "a.b", 1);
    put_int(&b, "a.b", 2);
    refused(&b, EBB_BAD_FILE, "field a.b is there twice");
    put_head(&b, 3, 0, 1);
    put_text(&b, "a");
    put(&b, 13, 4);
    put(&b, 0, 8);
    refused(&b, EBB_BAD_FILE, "field a has the type 13, expected 0 to 12");
    put_head(&b, 3, 0, 1);
    put_text(&b, "");
    put(&b, 0, 8);
    put(&b, 0, 8);
    refused(&b, EBB_BAD_FILE, "the key of a field has 0 bytes");
    put_head(&b, 3, 0, 1);
    put(&b, UINT64_MAX, 8); /* a key longer than the address space */
    put(&b, 0, 8);
    put(&b, 0, 8);
    refused(&b, EBB_BAD_FILE, "the file ends inside the key of a field");
    put_head(&b, 3, 0, 1);
    put_text(&b, "a");
    put(&b, GGUF_BOOL, 4);
    put(&b, 2, 1);
    refused(&b, EBB_BAD_FILE, "field a is the byte 2, expected 0 or 1");
    put_head(&b, 3, 0, 1);
    put_text(&b, "list");
    put(&b, GGUF_ARRAY, 4);
    put(&b, GGUF_UINT64, 4);
    put(&b, (uint64_t)1 << 61, 8); /* times 8: overflows */
    refused(&b, EBB_BAD_FILE, "the file ends inside field list");
    put_head(&b, 3, 0, 1);
    put_text(&b, "list");
    put(&b, GGUF_ARRAY, 4);
    put(&b, GGUF_ARRAY, 4);
    put(&b, 1, 8);
    refused(&b, EBB_UNSUPPORTED, "field list is an array of arrays");
    put_head(&b, 3, 0, 1);
    put_int(&b, "split.count", 4);
    refused(&b, EBB_UNSUPPORTED, "one of 4 files of a split model");
    put_head(&b, 3, 0, 1);
    put_string(&b, "split.count", "4");
    refused(&b, EBB_BAD_FILE, "field split.count is a string, expected a whole number");
}

static void test_tensors(void **state) {
    (void)state;
    bytes b;
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 0, 8, 4, 0);
    put_data(&b, 127);
    refused(&b, EBB_BAD_FILE, "tensor w needs 128 bytes from byte 0 of the data, which has 127");
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 0, 8, 4, 32);
    put_data(&b, 256);
    refused(&b, EBB_BAD_FILE, "tensor w begins at byte 32 of the data, expected 0");
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 11, 256, 1, 0);
    put_data(&b, 256);
    refused(&b, EBB_UNSUPPORTED, "tensor w has type Q3_K, expected F32");
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 999, 256, 1, 0);
    put_data(&b, 256);
    refused(&b, EBB_UNSUPPORTED, "tensor w has the unknown type 999");
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 12, 128, 2, 0);
    put_data(&b, 256);
    refused(&b, EBB_BAD_FILE, "tensor w has rows of 128, expected a multiple of 256 at Q4_K");
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 0, (uint64_t)1 << 40, (uint64_t)1 << 40, 0);
    put_data(&b, 256);
    refused(&b, EBB_BAD_FILE, "tensor w is larger than any memory");
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 0, 0, 4, 0);
    put_data(&b, 256);
    refused(&b, EBB_BAD_FILE, "tensor w has a dimension of 0");
    put_head(&b, 3, 1, 0);
    put_text(&b, "w");
    put(&b, 5, 4);
    put_data(&b, 256);
    refused(&b, EBB_BAD_FILE, "tensor w has 5 dimensions, expected 1 to 4");
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "a_name_that_is_longer_than_the_sixty_four_bytes_that_the_format_allows", 0, 8, 4, 0);
    put_data(&b, 256);
    refused(&b, EBB_BAD_FILE, "is none of 1 to 64 bytes");
    put_head(&b, 3, 1, 1);
    put_int(&b, "general.alignment", 24);
    put_tensor(&b, "w", 0, 8, 4, 0);
    put_data(&b, 256);
    refused(&b, EBB_BAD_FILE, "field general.alignment is 24, expected a power of two");
}

/* Cut anywhere, a file is refused by a sentence; the sanitizers see whether a byte behind its end is read. */
static void test_cut(void **state) {
    (void)state;
    bytes b, part;
    put_head(&b, 2, 2, 3);
    put_int(&b, "general.alignment", 64);
    put_string(&b, "general.architecture", "llama");
    put_text(&b, "list");
    put(&b, GGUF_ARRAY, 4);
    put(&b, GGUF_STRING, 4);
    put(&b, 2, 8);
    put_text(&b, "one");
    put_text(&b, "");
    put_tensor(&b, "v", 8, 32, 2, 0);
    put_tensor(&b, "w", 0, 2, 2, 128);
    while (b.n % 64) put(&b, 0, 1);
    const size_t data = b.n;
    put_data(&b, 128 + 16);
    ebb_error error;
    gguf_file file;
    write_bytes(scratch_path(), b.at, b.n);
    must(gguf_open(scratch_path(), &file, &error), &error);
    assert_int_equal(file.n_tensors, 2);
    assert_int_equal(file.tensors[0].bytes, 68);
    assert_int_equal(file.tensors[0].shape[0], 2);
    assert_int_equal(file.tensors[0].shape[1], 32);
    assert_ptr_equal(file.tensors[1].data, file.map.data + data + 128);
    gguf_close(&file);
    for (size_t n = 0; n < b.n; n++) {
        part = b;
        part.n = n;
        refused(&part, EBB_BAD_FILE, n < 4 ? "does not begin with GGUF" : "");
    }
}

/* Whole models with one thing changed: the same length, so that everything else stays where it is. */
static void test_lies(void **state) {
    (void)state;
    static const struct {
        const char *which, *from, *to;
        ebb_status status;
        const char *words;
    } lies[] = {
        {"llama", "llama.block_count", "llama.block_kount", EBB_UNSUPPORTED,
         "field llama.block_kount is not known, and may change the model"},
        {"llama", "general.architecture", "general.architektur!", EBB_BAD_FILE,
         "field general.architecture is missing"},
        {"qwen3", "gpt2", "bert", EBB_UNSUPPORTED, "field tokenizer.ggml.model is bert, only gpt2"},
        {"qwen3", "qwen2", "qwen9", EBB_UNSUPPORTED, "field tokenizer.ggml.pre is qwen9, expected"},
        {"qwen3", "tokenizer.ggml.merges", "tokenizer.ggml.mergez", EBB_BAD_FILE,
         "field tokenizer.ggml.merges is missing"},
        {"qwen3", "blk.1.attn_q.weight", "blk.1.attn_Q.weight", EBB_BAD_FILE,
         "tensor model.layers.1.self_attn.q_proj.weight is missing"},
        {"qwen3", "output.weight", "outp_t.weight", EBB_UNSUPPORTED, "tensor outp_t.weight has no place in qwen3"},
        {"llama", "blk.1.attn_k.weight", "blk.0.attn_k.weight", EBB_BAD_FILE,
         "tensor model.layers.0.self_attn.k_proj.weight is in both"},
        {"glm4", "blk.1.attn_v.bias", "blk.1.attn_w.bias", EBB_BAD_FILE,
         "tensor model.layers.1.self_attn.v_proj.bias is missing"},
        {"glm4", "glm4.attention.head_count_kv", "glm4.attention.head_count_kw", EBB_UNSUPPORTED,
         "field glm4.attention.head_count_kw is not known"},
        {"glm4", "token_embd.weight", "token_embx.weight", EBB_BAD_FILE, "there is no matrix token_embd.weight"},
    };
    ebb_device *device;
    ebb_error error;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    for (int32_t i = 0; i < COUNT(lies); i++) {
        char path[256], *text;
        size_t n;
        ebb_model *model;
        must(read_file(model_path(lies[i].which, path), (size_t)1 << 24, &text, &n, &error), &error);
        char *at = memmem(text, n, lies[i].from, strlen(lies[i].from));
        if (!at) fail_msg("no %s in %s", lies[i].from, path);
        assert_int_equal(strlen(lies[i].from), strlen(lies[i].to));
        memcpy(at, lies[i].to, strlen(lies[i].to));
        write_bytes(scratch_path(), (uint8_t *)text, n);
        const ebb_status status = ebb_model_open(device, scratch_path(), NULL, &model, &error);
        if (status != lies[i].status || !strstr(error.text, lies[i].words))
            fail_msg("'%s' (%s) instead of '%s'", error.text, ebb_status_name(status), lies[i].words);
        unlink(scratch_path());
        free(text);
    }
    ebb_device_close(device);
}

/* Values of fields that are well-formed and cannot be served. */
static void test_values(void **state) {
    (void)state;
    ebb_error error;
    gguf_file file;
    char path[256];
    int64_t whole = 0;
    double number = 0;
    bool flag = true;
    gguf_text text;
    const gguf_field *array;
    must(gguf_open(model_path("llama", path), &file, &error), &error);
    must(gguf_get_int(&file, "llama.block_count", JSON_NEEDED, 0, 9, &whole, &error), &error);
    assert_int_equal(whole, 2);
    must(gguf_get_number(&file, "llama.rope.freq_base", JSON_NEEDED, &number, &error), &error);
    assert_true(number == 50000);
    must(gguf_get_number(&file, "llama.block_count", JSON_NEEDED, &number, &error), &error);
    assert_true(number == 2);
    must(gguf_get_bool(&file, "not.there", JSON_OPTIONAL, &flag, &error), &error);
    assert_true(flag);
    assert_int_equal(gguf_get_int(&file, "llama.block_count", JSON_NEEDED, 3, 9, &whole, &error), EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "field llama.block_count is 2, expected 3 to 9"));
    assert_int_equal(gguf_get_text(&file, "llama.block_count", JSON_NEEDED, &text, &error), EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "is a whole number, expected a string"));
    assert_int_equal(gguf_get_array(&file, "tokenizer.ggml.tokens", JSON_NEEDED, GGUF_INT32, &array, &error),
                     EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "expected an array of 32-bit numbers"));
    gguf_close(&file);
    assert_false(gguf_is_file(SOURCE_DIR));
    assert_false(gguf_is_file("/nowhere/at/all"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),      cmocka_unit_test(test_parity), cmocka_unit_test(test_every_tensor_counts),
        cmocka_unit_test(test_description), cmocka_unit_test(test_texts),  cmocka_unit_test(test_chat),
        cmocka_unit_test(test_head),        cmocka_unit_test(test_fields), cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_cut),         cmocka_unit_test(test_lies),   cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
