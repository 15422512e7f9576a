/* test_fuzz_seeds.c: the targets of make fuzz on their corpus: every seed, cut short at many lengths, and with bytes
 * changed; what crashed once is among the seeds. Nothing is compared: a target that does not come back, or whose own
 * conditions do not hold, fails, and the sanitizers see the rest.
 *
 * EBB_FUZZ_WRITE=1 writes the seeds that ebb itself makes: images and layouts of the toy model. */
#include "default_layout.h"
#include "ebb/ebb.h"
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

#define CORPUS SOURCE_DIR "/tests/fuzz/corpus/"

enum { CUTS = 32, CHANGES = 64 };

/* Blocks of their own size, so that a read past the end is seen. */
static void run_copy(const fuzz_target *t, const char *data, size_t bytes) {
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    t->run(copy, bytes);
    free(copy);
}

static void run_seed(const fuzz_target *t, const char *path) {
    char *seed = NULL;
    size_t bytes;
    ebb_error error;
    must(read_file(path, (size_t)1 << 20, &seed, &bytes, &error), &error);
    run_copy(t, seed, bytes);
    for (size_t i = 0; i < CUTS; i++) run_copy(t, seed, bytes * i / CUTS);
    uint64_t s = hash64(HASH64_BEGIN, seed, bytes);
    for (int i = 0; i < CHANGES && bytes; i++) {
        char *at = &seed[mix64(s++) % bytes];
        const char was = *at;
        *at = i % 2 ? (char)mix64(s++) : (char)(was ^ (1 << mix64(s++) % 8));
        run_copy(t, seed, bytes);
        if (i % 4) *at = was; /* some changes stay */
    }
    free(seed);
}

static void test_seeds(void **state) {
    (void)state;
    for (const fuzz_target *t = fuzz_targets; t->name; t++) {
        char folder[512], path[1024];
        int n = 0;
        snprintf(folder, sizeof folder, CORPUS "%s", t->name);
        DIR *dir = opendir(folder);
        if (!dir) fail_msg("%s: there is no corpus", folder);
        for (struct dirent *entry; (entry = readdir(dir));) {
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            run_seed(t, path);
            n++;
        }
        closedir(dir);
        assert_true(n > 0);
    }
}

/* ---- seeds that ebb makes ---- */

static void write_seed(const char *name, const void *data, size_t bytes) {
    char path[1024];
    snprintf(path, sizeof path, CORPUS "%s", name);
    ebb_error error;
    must(replace_file(path, data, bytes, &error), &error);
}

static void write_images(ebb_engine *e, int32_t id, const char *name) {
    char path[1024], inner[64];
    size_t bytes, at = 0;
    char *image = NULL;
    ebb_error error;
    snprintf(path, sizeof path, CORPUS "image_sequence/%s", name);
    must(ebb_sequence_save(e, id, path, &error), &error);
    must(read_file(path, (size_t)1 << 20, &image, &bytes, &error), &error);
    for (int kind = 0; kind < 2; kind++) { /* the images inside: magic, bytes at 16 */
        for (at += 8; at + 64 <= bytes && memcmp(image + at, "ebbimage", 8) != 0; at++) {
        }
        uint64_t size;
        memcpy(&size, image + at + 16, sizeof size);
        snprintf(inner, sizeof inner, "%s/%s", kind ? "image_kv" : "image_state", name);
        write_seed(inner, image + at, size);
    }
    free(image);
}

static void write_seeds(void) {
    static const char *const methods[] = {"damp", "damp-reorder", "leap-mix"};
    const ebb_engine_config config = {
        .size = sizeof config, .state = "leap8:r=2,p=4", .kv = "bf16", .max_tokens = 300, .max_new = 4};
    static const int32_t ids[] = {3, 14, 15, 9, 26};
    ebb_engine *e;
    int32_t id;
    ebb_error error;
    must(ebb_engine_open(fuzz_model(), &config, &e, &error), &error);
    must(ebb_sequence_open(e, &EBB_GREEDY, &id, &error), &error);
    must(ebb_sequence_append(e, id, ids, 5, &error), &error);
    must(ebb_engine_prefill(e, &error), &error);
    must(ebb_engine_step(e, &id, 1, &error), &error);
    must(ebb_engine_step(e, &id, 1, &error), &error);
    write_images(e, id, "toy");
    ebb_engine_close(e);
    for (int32_t i = 0; i < COUNT(methods); i++) {
        char path[1024];
        ebb_layout *layout;
        must(default_layout(methods[i], 0, ebb_model_state_layers(fuzz_model()), 1, &layout, &error), &error);
        snprintf(path, sizeof path, CORPUS "layout/%s", methods[i]);
        must(ebb_layout_write(path, layout, NULL, 0, &error), &error);
        ebb_layout_free(layout);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_seeds)};
    if (getenv("EBB_FUZZ_WRITE")) write_seeds();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
