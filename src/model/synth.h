/* model/synth.h: random checkpoints, streamed to disk. synth.c has the values, the file and the folder; synth_gguf.c
 * the GGUF file. For these files only. */
#ifndef MODEL_SYNTH_H
#define MODEL_SYNTH_H

#include "model/outline.h"

/* A file that is being written, under a name of its own until it is whole. */
typedef struct synth_file {
    char *path, *tmp;
    int fd;
    uint8_t *block; /* what waits to be written */
    size_t n;
    uint64_t done, total; /* bytes */
    uint64_t seed;
    const ebb_progress *progress;
    ebb_error *error;
} synth_file;

/* Refuses a path that is there, and a disk with less than `total` bytes. */
ebb_status synth_open(synth_file *f, const char *path, uint64_t total, const ebb_synth_config *config,
                      ebb_error *error);
ebb_status synth_write(synth_file *f, const void *data, size_t bytes);
/* Zeros up to a multiple of `to`. */
ebb_status synth_pad(synth_file *f, size_t to);
/* Gives the file its name where `status` is EBB_OK, else removes it. Of a zeroed one does nothing. */
ebb_status synth_close(synth_file *f, ebb_status status);

/* How the values of one tensor are written. */
typedef struct synth_values {
    const char *name; /* keys the random numbers */
    int32_t type;     /* EBB_BF16, EBB_FP32, EBB_Q8_0 or EBB_Q4_0 */
    int32_t fill;     /* outline_fill */
    bool converted;   /* as in a GGUF file: 1 + w, and -exp(A_log) */
    int64_t n, k;     /* of all; of a row */
} synth_values;
ebb_status synth_tensor(synth_file *f, const synth_values *v);

/* A header, growing. What finds no memory is lost, and `failed` says so. */
typedef struct synth_text {
    char *data;
    size_t n, room;
    bool failed;
} synth_text;
void synth_put(synth_text *t, const void *data, size_t bytes);
void synth_print(synth_text *t, const char *format, ...) EBB_PRINTF(2, 3); /* up to 255 bytes */

/* The checkpoint as a GGUF file. */
ebb_status synth_gguf(const ebb_outline *o, const char *path, const ebb_synth_config *config, ebb_error *error);

/* The words of a vocabulary without merges: the character that stands for each byte, as GPT-2 has it. Returns the
 * bytes of it in UTF-8, 1 or 2. */
size_t synth_byte_token(int byte, char text[3]);
enum { SYNTH_BYTES = 256 };

#endif
