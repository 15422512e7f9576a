/* slow_smollm2.c: a real GGUF model, SmolLM2-135M-Instruct in Q4_1 and Q8_0, against transformers, which reads the same
 * file, and the tokenizers library: logits, 64 greedy tokens of each prompt, and ids of texts. Golden data:
 * data/make_smollm2_golden.py. The model is not in the repository: scripts/get_smollm2.sh fetches it; EBB_SMOLLM2 says
 * where it lies. Skipped where it is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "gguf_world.h"

static const char *model_file(void) {
    static const char usual[] = SOURCE_DIR "/build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    const char *path = getenv("EBB_SMOLLM2");
    if (!path && file_exists(usual)) path = usual;
    if (!path) {
        print_message("skipped: there is no %s and EBB_SMOLLM2 is not set; scripts/get_smollm2.sh fetches it\n", usual);
        skip();
    }
    return path;
}

static void test_tokens(void **state) {
    (void)state;
    ebb_error error;
    ebb_tokenizer *t;
    must(ebb_tokenizer_open(model_file(), &t, &error), &error);
    json_t *golden = load_json(SOURCE_DIR "/tests/data/smollm2_golden.json");
    const json_t *texts = json_object_get(golden, "texts");
    assert_true(json_array_size(texts) >= 400);
    check_texts(t, texts);
    json_decref(golden);
    ebb_tokenizer_close(t);
}

static void test_logits(void **state) {
    (void)state;
    const char *path = model_file();
    json_t *golden = load_json(SOURCE_DIR "/tests/data/smollm2_golden.json");
    const double worst = run_model(path, json_object_get(golden, "items"), true);
    print_message("SmolLM2: the largest error of a logit is %g\n", worst);
    assert_true(worst < 1e-3);
    json_decref(golden);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tokens), cmocka_unit_test(test_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
