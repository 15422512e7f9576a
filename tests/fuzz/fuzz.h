/* fuzz/fuzz.h: everything that reads bytes which somebody else wrote, as functions of those bytes. fuzz.c gives them to
 * libFuzzer (make fuzz), ../test_fuzz_seeds.c runs them on the corpus. A target must not crash, leak or hang, whatever
 * it is given, and aborts when what was read contradicts itself. */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_target {
    const char *name; /* NULL ends the table; corpus/NAME has its seeds, dict/NAME.dict may have words */
    void (*run)(const uint8_t *data, size_t bytes);
} fuzz_target;

extern const fuzz_target fuzz_targets[];
const fuzz_target *fuzz_find(const char *name); /* NULL: there is none */

/* ---- files.c ---- */

void fuzz_safetensors(const uint8_t *data, size_t bytes);
void fuzz_index(const uint8_t *data, size_t bytes);
void fuzz_gguf(const uint8_t *data, size_t bytes);
void fuzz_layout(const uint8_t *data, size_t bytes);
void fuzz_config(const uint8_t *data, size_t bytes);
void fuzz_kv_bits(const uint8_t *data, size_t bytes);
void fuzz_generation(const uint8_t *data, size_t bytes);
void fuzz_image_state(const uint8_t *data, size_t bytes);
void fuzz_image_kv(const uint8_t *data, size_t bytes);
void fuzz_image_sequence(const uint8_t *data, size_t bytes);

/* ---- text.c ---- */

void fuzz_tokenizer(const uint8_t *data, size_t bytes);
void fuzz_tiktoken(const uint8_t *data, size_t bytes);
void fuzz_tokenize(const uint8_t *data, size_t bytes);
void fuzz_detokenize(const uint8_t *data, size_t bytes);
void fuzz_pattern(const uint8_t *data, size_t bytes);
void fuzz_chat(const uint8_t *data, size_t bytes);
void fuzz_template(const uint8_t *data, size_t bytes);
void fuzz_methods(const uint8_t *data, size_t bytes);
void fuzz_options(const uint8_t *data, size_t bytes);

/* ---- server.c ---- */

void fuzz_body(const uint8_t *data, size_t bytes);
void fuzz_schema(const uint8_t *data, size_t bytes);
void fuzz_answer(const uint8_t *data, size_t bytes);

/* ---- world.c: what targets need around their bytes, made once ---- */

void fuzz_expect(int truth, const char *what); /* aborts with the words */
/* A folder that is there until the program ends: a toy model, in shards, and the tokenizer "chatml". */
const char *fuzz_folder(void);
/* Write FOLDER/NAME; its path, good until the next call. */
const char *fuzz_file(const char *name, const void *data, size_t bytes);
/* The bytes as a C string, malloc'ed. */
char *fuzz_string(const uint8_t *data, size_t bytes);

struct ebb_device;
struct ebb_device *fuzz_device(void);
struct ebb_model;
struct ebb_model *fuzz_model(void);
struct ebb_tokenizer;
struct ebb_tokenizer *fuzz_chatml(void);

#endif
