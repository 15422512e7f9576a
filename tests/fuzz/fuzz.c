/* fuzz/fuzz.c: the program ebb-fuzz: libFuzzer over the target that EBB_FUZZ names; EBB_FUZZ=list prints the names. Run
 * by scripts/fuzz.sh. */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const fuzz_target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = getenv("EBB_FUZZ");
    (void)argc, (void)argv;
    if (name && strcmp(name, "list") == 0) {
        for (const fuzz_target *t = fuzz_targets; t->name; t++) puts(t->name);
        exit(0);
    }
    target = fuzz_find(name);
    if (target) return 0;
    fprintf(stderr, "ebb-fuzz: EBB_FUZZ=%s names no target; EBB_FUZZ=list prints them\n", name ? name : "");
    exit(1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    target->run(data, bytes);
    return 0;
}
