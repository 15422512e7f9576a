/* tests/test_safetensors.c: the safetensors reader on sound and on hostile files: every hostile one must be refused
 * with a sentence that names the file. Memory safety is what the sanitizer build of this test shows. */
#define _GNU_SOURCE
#include "model/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct fixture {
    char folder[64];
} fixture;

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f) return -1;
    snprintf(f->folder, sizeof f->folder, "/tmp/ebb-test-XXXXXX");
    if (!mkdtemp(f->folder)) return -1;
    *state = f;
    return 0;
}

static const char *const files[] = {"model.safetensors", "model.safetensors.index.json", "a.safetensors",
                                    "b.safetensors"};

static void clear(const fixture *f) {
    char path[128];
    for (int i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", f->folder, files[i]);
        unlink(path);
    }
}

static int teardown(void **state) {
    fixture *f = *state;
    clear(f);
    rmdir(f->folder);
    free(f);
    return 0;
}

static void put_bytes(const fixture *f, const char *name, const void *data, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    if (bytes) assert_int_equal(fwrite(data, 1, bytes, out), bytes);
    assert_int_equal(fclose(out), 0);
}

/* A file with this header length field, header and `data` bytes of data, byte i of which is i. */
static void put_raw(const fixture *f, const char *name, uint64_t length, const char *header, size_t header_bytes,
                    size_t data) {
    uint8_t *file = malloc(8 + header_bytes + data);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(length >> 8 * i);
    memcpy(file + 8, header, header_bytes);
    for (size_t i = 0; i < data; i++) file[8 + header_bytes + i] = (uint8_t)i;
    put_bytes(f, name, file, 8 + header_bytes + data);
    free(file);
}

static void put(const fixture *f, const char *name, const char *header, size_t data) {
    put_raw(f, name, strlen(header), header, strlen(header), data);
}

static st_set *open_ok(const fixture *f) {
    ebb_error error = {0};
    st_set *set = NULL;
    if (st_open(f->folder, &set, &error)) fail_msg("%s", error.text);
    assert_non_null(set);
    return set;
}

/* Opening fails with `code` and a sentence that has `words` in it. */
static void refused(const fixture *f, ebb_status code, const char *words) {
    ebb_error error = {0};
    st_set *set = NULL;
    ebb_status status = st_open(f->folder, &set, &error);
    if (status != code)
        fail_msg("status %s, expected %s with '%s'", ebb_status_name(status), ebb_status_name(code), words);
    assert_null(set);
    if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
    assert_int_equal(st_open(f->folder, &set, NULL), code);
}

#define A "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}"
#define B "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]}"

static void reads_a_sound_file(void **state) {
    const fixture *f = *state;
    ebb_error error;
    int64_t n;
    const int64_t shape[] = {2, 3}, other[] = {3, 2};
    const st_tensor *t;
    clear(f);
    put(f, "model.safetensors", "{\"__metadata__\":{\"format\":\"pt\",\"x\":3}," B "," A "}   ", 16);
    st_set *set = open_ok(f);
    assert_string_equal(st_tensors(set, &n)[0].name, "a");
    assert_int_equal(n, 2);
    assert_null(st_find(set, "__metadata__"));
    assert_int_equal(st_take(set, "a", 2, shape, &t, &error), EBB_OK);
    assert_int_equal(t->type, EBB_BF16);
    assert_int_equal(t->bytes, 12);
    assert_int_equal(t->data[11], 11);
    assert_true(t->used);
    assert_string_equal(t->file, "model.safetensors");
    assert_false(st_find(set, "b")->used);
    assert_int_equal(st_find(set, "b")->data[0], 12);
    assert_int_equal(st_take(set, "b", 0, NULL, &t, &error), EBB_OK);

    assert_int_equal(st_take(set, "a", 2, other, &t, &error), EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "tensor a has shape [2, 3]; config.json makes it [3, 2]"));
    assert_int_equal(st_take(set, "a", 1, other, &t, &error), EBB_BAD_FILE);
    assert_int_equal(st_take(set, "c", 2, other, &t, &error), EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "tensor c is missing"));
    st_close(set);
}

static void other_dtypes_may_be_there(void **state) {
    const fixture *f = *state;
    ebb_error error;
    const st_tensor *t;
    const int64_t three[] = {3};
    clear(f);
    put(f, "model.safetensors",
        "{\"i\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[0,3]},"
        "\"four\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[3,4]},"
        "\"none\":{\"dtype\":\"F64\",\"shape\":[4,0],\"data_offsets\":[4,4]}}",
        4);
    st_set *set = open_ok(f);
    assert_int_equal(st_take(set, "i", 1, three, &t, &error), EBB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "tensor i has dtype I8; BF16, F16 or F32 is expected"));
    st_close(set);
    put(f, "model.safetensors", "{\"i\":{\"dtype\":\"Q9\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    refused(f, EBB_UNSUPPORTED, "unknown dtype Q9");
    put(f, "model.safetensors", "{\"i\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1);
    refused(f, EBB_BAD_FILE, "whole bytes");
}

static void header_lengths(void **state) {
    const fixture *f = *state;
    static const uint64_t hostile[] = {0, 1, (uint64_t)1 << 40, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    clear(f);
    for (int i = 0; i < COUNT(hostile); i++) {
        put_raw(f, "model.safetensors", hostile[i], "{" A "}", strlen("{" A "}"), 12);
        refused(f, EBB_BAD_FILE, "model.safetensors: the header claims");
    }
    put_raw(f, "model.safetensors", strlen("{" A "}") + 13, "{" A "}", strlen("{" A "}"), 12);
    refused(f, EBB_BAD_FILE, "the file is cut");
    put_bytes(f, "model.safetensors", "", 0);
    refused(f, EBB_BAD_FILE, "0 bytes; a safetensors file has at least 8");
    put_bytes(f, "model.safetensors", "\2\0\0\0\0\0\0", 7);
    refused(f, EBB_BAD_FILE, "7 bytes");
    put(f, "model.safetensors", "{}", 0);
    st_close(open_ok(f));

    enum { LONG = 100000 };
    char *header = malloc(LONG + 1);
    assert_non_null(header);
    memset(header, ' ', LONG);
    memcpy(header, "{" A "}", strlen("{" A "}"));
    header[LONG] = '\0';
    put(f, "model.safetensors", header, 12);
    st_set *set = open_ok(f);
    assert_int_equal(st_find(set, "a")->data[11], 11);
    st_close(set);
    free(header);
}

#define T(rest) "{\"a\":{" rest "}}"
static void headers(void **state) {
    const fixture *f = *state;
    static const struct {
        const char *header;
        size_t data;
        const char *words;
    } hostile[] = {
        {"not json", 0, "the header is not JSON"},
        {"{\"a\":", 0, "the header is not JSON"},
        {"[1,2]", 0, "the header is not a JSON object"},
        {"{" A "," A "}", 12, "duplicate"},
        {"{\"a\":7}", 0, "tensor a is not described by a JSON object"},
        {T("\"shape\":[1],\"data_offsets\":[0,2]"), 2, "dtype is not a string"},
        {T("\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,2]"), 2, "dtype is not a string"},
        {T("\"dtype\":\"F16\",\"data_offsets\":[0,2]"), 2, "shape is not a list"},
        {T("\"dtype\":\"F16\",\"shape\":1,\"data_offsets\":[0,2]"), 2, "shape is not a list"},
        {T("\"dtype\":\"F16\",\"shape\":[1.0],\"data_offsets\":[0,2]"), 2, "dimension 0 of shape"},
        {T("\"dtype\":\"F16\",\"shape\":[1,-1],\"data_offsets\":[0,2]"), 2, "dimension 1 of shape"},
        {T("\"dtype\":\"F16\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,2]"), 2, "has 9 dimensions"},
        {T("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0, "larger than any memory"},
        {T("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), 0, "larger than any memory"},
        {T("\"dtype\":\"F32\",\"shape\":[1152921504606846976],\"data_offsets\":[0,0]"), 0, "larger than any memory"},
        {T("\"dtype\":\"F16\",\"shape\":[1]"), 2, "data_offsets is not a list of two"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[]"), 2, "data_offsets is not a list of two"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0]"), 2, "data_offsets is not a list of two"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2,4]"), 2, "data_offsets is not a list of two"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,\"2\"]"), 2, "data_offsets is not a list of two"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":{\"0\":0}"), 2, "data_offsets is not a list of two"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[2,0]"), 2, "data_offsets are 2 .. 0"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[-2,0]"), 2, "data_offsets are -2 .. 0"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,99999999999999999999]"), 2, "not JSON"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[9223372036854775805,9223372036854775807]"), 2,
         "it is cut"},
        {T("\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]"), 3, "it is cut"},
        {T("\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,2]"), 2, "need 4"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, "need 2"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]"), 5, "3 bytes follow the last tensor"},
        {T("\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[2,4]"), 4, "bytes 0 .. 1 of the data, before a"},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12, "tensors a and b overlap"},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", 12, "overlap"},
        {"{}", 1, "1 bytes follow the last tensor"},
    };
    clear(f);
    for (int i = 0; i < COUNT(hostile); i++) {
        put(f, "model.safetensors", hostile[i].header, hostile[i].data);
        refused(f, EBB_BAD_FILE, hostile[i].words);
        refused(f, EBB_BAD_FILE, "model.safetensors: ");
    }
    put(f, "model.safetensors", T("\"dtype\":\"F16\",\"shape\":[0,4611686018427387904],\"data_offsets\":[0,0]"), 0);
    st_close(open_ok(f));
}

static void put_index(const fixture *f, const char *text) {
    put_bytes(f, "model.safetensors.index.json", text, strlen(text));
}

#define ONE "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
static void shards(void **state) {
    const fixture *f = *state;
    clear(f);
    refused(f, EBB_BAD_FILE, "there is neither model.safetensors nor model.safetensors.index.json");
    put(f, "a.safetensors", "{" A "}", 12);
    put(f, "b.safetensors", ONE, 4);
    put_index(f, "{\"metadata\":{},\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}");
    st_set *set = open_ok(f);
    assert_string_equal(st_find(set, "a")->file, "a.safetensors");
    assert_string_equal(st_find(set, "b")->file, "b.safetensors");
    st_close(set);

    static const struct {
        const char *index, *words;
    } hostile[] = {
        {"", "not JSON"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\"", "not JSON"},
        {"[]", "weight_map is not a JSON object"},
        {"{\"weight_map\":[]}", "weight_map is not a JSON object"},
        {"{\"weight_map\":{}}", "weight_map is empty"},
        {"{\"weight_map\":{\"a\":3}}", "the shard of a is not a file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "the shard of a is not a file name"},
        {"{\"weight_map\":{\"a\":\"../a.safetensors\"}}", "a plain file name is expected"},
        {"{\"weight_map\":{\"a\":\"/tmp/a.safetensors\"}}", "a plain file name is expected"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "a plain file name is expected"},
        {"{\"weight_map\":{\"a\":\"x\\\\a.safetensors\"}}", "a plain file name is expected"},
        {"{\"weight_map\":{\"a\":\"c.safetensors\"}}", "c.safetensors"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\",\"c\":\"a.safetensors\"}}", "tensor c is not in a.safetensors"},
        {"{\"weight_map\":{\"a\":\"b.safetensors\",\"b\":\"a.safetensors\"}}", "is not in"},
        {"{\"weight_map\":{\"a\":\"a.safetensors\",\"a\":\"a.safetensors\"}}", "duplicate"},
    };
    for (int i = 0; i < COUNT(hostile); i++) {
        put_index(f, hostile[i].index);
        refused(f, EBB_BAD_FILE, hostile[i].words);
    }

    put_index(f, "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}");
    put(f, "b.safetensors", ONE, 3);
    refused(f, EBB_BAD_FILE, "b.safetensors: tensor b ends at byte 4 of the data, but the file holds 3");
    put(f, "b.safetensors", "{" A "}", 12);
    refused(f, EBB_BAD_FILE, "tensor a is in both");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_a_sound_file, setup, teardown),
        cmocka_unit_test_setup_teardown(other_dtypes_may_be_there, setup, teardown),
        cmocka_unit_test_setup_teardown(header_lengths, setup, teardown),
        cmocka_unit_test_setup_teardown(headers, setup, teardown),
        cmocka_unit_test_setup_teardown(shards, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
