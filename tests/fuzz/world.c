/* fuzz/world.c: see fuzz.h. Called by the targets. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"

#include "ebb/ebb.h"
#include "toy_model.h"

#include <sys/stat.h>

static char folder[64];

const fuzz_target fuzz_targets[] = {
    {"safetensors", fuzz_safetensors},
    {"index", fuzz_index},
    {"gguf", fuzz_gguf},
    {"layout", fuzz_layout},
    {"config", fuzz_config},
    {"kv_bits", fuzz_kv_bits},
    {"generation", fuzz_generation},
    {"image_state", fuzz_image_state},
    {"image_kv", fuzz_image_kv},
    {"image_sequence", fuzz_image_sequence},
    {"tokenizer", fuzz_tokenizer},
    {"tiktoken", fuzz_tiktoken},
    {"tokenize", fuzz_tokenize},
    {"detokenize", fuzz_detokenize},
    {"pattern", fuzz_pattern},
    {"chat", fuzz_chat},
    {"template", fuzz_template},
    {"methods", fuzz_methods},
    {"options", fuzz_options},
    {"body", fuzz_body},
    {"schema", fuzz_schema},
    {"answer", fuzz_answer},
    {0},
};

const fuzz_target *fuzz_find(const char *name) {
    for (const fuzz_target *t = fuzz_targets; name && t->name; t++)
        if (strcmp(t->name, name) == 0) return t;
    return NULL;
}

void fuzz_expect(int truth, const char *what) {
    if (truth) return;
    fprintf(stderr, "fuzz: not so: %s\n", what);
    abort();
}

static void remove_folder(void) {
    char line[96];
    snprintf(line, sizeof line, "rm -rf '%s'", folder);
    if (system(line) != 0) fprintf(stderr, "fuzz: %s is left behind\n", folder);
}

const char *fuzz_folder(void) {
    char path[80], *text = NULL;
    size_t bytes = 0;
    if (folder[0]) return folder;
    snprintf(folder, sizeof folder, "%s/ebb-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    fuzz_expect(mkdtemp(folder) != NULL, "a folder can be made");
    atexit(remove_folder);
    toy t = TOY;
    t.shards = 2;
    toy_make(folder, &t);
    snprintf(path, sizeof path, "%s/index", folder);
    fuzz_expect(mkdir(path, 0777) == 0, "a folder can be made");
    for (int i = 0; i < t.shards; i++) {
        char from[128], to[128];
        snprintf(from, sizeof from, "%s/shard-%d.safetensors", folder, i);
        snprintf(to, sizeof to, "%s/shard-%d.safetensors", path, i);
        fuzz_expect(link(from, to) == 0, "a shard can be linked");
    }
    snprintf(path, sizeof path, "%s/chatml", folder);
    fuzz_expect(mkdir(path, 0777) == 0, "a folder can be made");
    fuzz_expect(!read_file(SOURCE_DIR "/tests/fuzz/corpus/tokenizer/chatml", 1 << 20, &text, &bytes, NULL),
                "there is a tokenizer");
    toy_write(path, "tokenizer.json", text, bytes);
    free(text);
    return folder;
}

const char *fuzz_file(const char *name, const void *data, size_t bytes) {
    static char path[160];
    toy_write(fuzz_folder(), name, data, bytes);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

char *fuzz_string(const uint8_t *data, size_t bytes) {
    char *text = malloc(bytes + 1);
    fuzz_expect(text != NULL, "there is memory");
    if (bytes) memcpy(text, data, bytes);
    text[bytes] = '\0';
    return text;
}

/* What is open lives as long as the program; it is reachable, so no leak. */
ebb_device *fuzz_device(void) {
    static ebb_device *device;
    const ebb_device_config config = {.size = sizeof config, .threads = 1};
    if (!device) fuzz_expect(!ebb_device_open("cpu", &config, &device, NULL), "a device opens");
    return device;
}

ebb_model *fuzz_model(void) {
    static ebb_model *model;
    if (!model) fuzz_expect(!ebb_model_open(fuzz_device(), fuzz_folder(), NULL, &model, NULL), "the toy model opens");
    return model;
}

ebb_tokenizer *fuzz_chatml(void) {
    static ebb_tokenizer *tokenizer;
    char path[80];
    if (tokenizer) return tokenizer;
    snprintf(path, sizeof path, "%s/chatml", fuzz_folder());
    fuzz_expect(!ebb_tokenizer_open(path, &tokenizer, NULL), "the tokenizer opens");
    return tokenizer;
}
