/* tokenizer_files.h: a temporary directory for made tokenizer.json files. Shared by test_tokenizer.c and
 * test_tokenizer_files.c. */
#ifndef TESTS_TOKENIZER_FILES_H
#define TESTS_TOKENIZER_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/core.h"
#include "ebb/model.h"

typedef struct scratch {
    char directory[64], file[96];
} scratch;

static inline int scratch_open(void **state) {
    scratch *s = calloc(1, sizeof *s);
    strcpy(s->directory, "/tmp/ebb-test-XXXXXX");
    if (!mkdtemp(s->directory)) return -1;
    snprintf(s->file, sizeof s->file, "%s/tokenizer.json", s->directory);
    *state = s;
    return 0;
}

static inline int scratch_close(void **state) {
    scratch *s = *state;
    unlink(s->file);
    rmdir(s->directory);
    free(s);
    return 0;
}

static inline void write_json(const scratch *s, const json_t *value) {
    assert_int_equal(json_dump_file(value, s->file, 0), 0);
}

/* Merge `patch` into the object `into`: objects member by member, anything else replaced. Takes no reference. */
static inline void merge_patch(json_t *into, json_t *patch) {
    const char *key;
    json_t *value;
    json_object_foreach(patch, key, value) {
        json_t *old = json_object_get(into, key);
        if (json_is_object(old) && json_is_object(value)) merge_patch(old, value);
        else json_object_set(into, key, value);
    }
}

static inline ebb_tokenizer *open_ok(const char *directory) {
    ebb_tokenizer *t;
    ebb_error error;
    ebb_status status = ebb_tokenizer_open(directory, &t, &error);
    if (status) fail_msg("%s", error.text);
    return t;
}

static inline void expect_ids(const ebb_tokenizer *t, const char *text, size_t n, bool special, const int32_t *wanted,
                              int64_t count) {
    int32_t *ids;
    int64_t got;
    assert_int_equal(ebb_tokenize(t, text, n, special, &ids, &got, NULL), EBB_OK);
    assert_int_equal(got, count);
    if (count) assert_memory_equal(ids, wanted, (size_t)count * sizeof *ids);
    free(ids);
}

#endif
