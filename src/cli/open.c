/* cli/open.c: devices, models and texts from the command line (open.h). Called by the commands. */
#define _GNU_SOURCE
#include "cli/open.h"
#include "core/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t text_limit = (size_t)1 << 30;

static void notice(void *ctx, const char *sentence) {
    progress_clear(ctx);
    fprintf(stderr, "ebb: %s\n", sentence);
}

ebb_status open_model(const char *folder, int64_t threads, progress_bar *bar, ebb_device **device, ebb_model **model,
                      ebb_error *error) {
    const ebb_device_config config = {.size = sizeof config, .threads = (int32_t)threads, .log = {bar, notice}};
    const ebb_progress progress = progress_of(bar);
    ebb_status status = ebb_device_open("cpu", &config, device, error);
    if (!status) status = ebb_model_open(*device, folder, &progress, model, error);
    progress_clear(bar);
    return status;
}

ebb_status open_text(const ebb_model *model, const char *path, int32_t **ids, int64_t *count, ebb_error *error) {
    char *text = NULL;
    size_t bytes;
    ebb_error why;
    ebb_status status = read_file(path, text_limit, &text, &bytes, error);
    if (status) return status;
    if (ebb_tokenize(ebb_model_tokenizer(model), text, bytes, false, ids, count, &why))
        status = ebb_fail(error, why.code, "%s: %s", path, why.text);
    free(text);
    return status;
}

ebb_status check_writable(const char *path, ebb_error *error) {
    const bool there = file_exists(path);
    FILE *file = fopen(path, "ab");
    if (!file) return ebb_fail(error, EBB_BAD_FILE, "%s: cannot be written: %s", path, strerror(errno));
    fclose(file);
    if (!there) unlink(path);
    return EBB_OK;
}

const char *last_part(const char *path, char *name, size_t room) {
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/') end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--) {
    }
    snprintf(name, room, "%.*s", (int)(end - begin), path + begin);
    return name;
}
