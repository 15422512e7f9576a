/* All that a program needs to generate text; the recurrent states are kept in 8 bits by LeapQuant. */
#include <ebb/ebb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool print(void *detokenizer, int32_t prompt, int32_t token) {
    char text[1024];
    if (ebb_detokenize(detokenizer, token, text, sizeof text, NULL) == EBB_OK) fputs(text, stdout);
    return prompt == 0; /* go on */
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "models/tiny-gdn", *text = argc > 2 ? argv[2] : "Alice was beginning";
    ebb_engine_config config = {.size = sizeof config, .state = "leap8", .kv = "bf16"};
    ebb_device *device = NULL;
    ebb_model *model = NULL;
    ebb_engine *engine = NULL;
    int32_t *ids = NULL;
    int64_t count = 0;
    ebb_error error;
    bool ok = !ebb_device_open("cpu", NULL, &device, &error) && !ebb_model_open(device, folder, NULL, &model, &error) &&
              !ebb_engine_open(model, &config, &engine, &error) &&
              !ebb_tokenize(ebb_model_tokenizer(model), text, strlen(text), true, &ids, &count, &error);
    ebb_detokenizer out = {.tokenizer = ok ? ebb_model_tokenizer(model) : NULL};
    ok = ok && !ebb_generate(engine, &(ebb_prompt){ids, count}, 1, &EBB_GREEDY, 40, print, &out, NULL, &error);
    fprintf(ok ? stdout : stderr, "%s\n", ok ? "" : error.text);
    free(ids), ebb_engine_close(engine), ebb_model_close(model), ebb_device_close(device);
    return !ok;
}
