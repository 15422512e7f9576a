/* model/safetensors.h: the tensors of a checkpoint by their Hugging Face names: of a folder, one file or a sharded
 * index, and, through st_adopt, of files of another format (gguf.h). Everything in the files is checked when they are
 * opened, so that whoever holds an st_tensor may read all its bytes. Called by src/model only. */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include "core/core.h"
#include "ebb/format.h"

#define ST_DIMS 8

typedef struct st_run {
    int64_t first, n;
} st_run;

typedef struct st_tensor {
    const char *name, *dtype; /* as in the file */
    int32_t type;             /* ebb_type where weights can have it (BF16, F16, F32; blocks from GGUF), else 0 */
    int32_t dims;
    int64_t shape[ST_DIMS];
    const uint8_t *data; /* mapped; not aligned to anything */
    size_t bytes;
    const char *file; /* base name of its file */
    bool used;        /* st_take was called for it */
    /* Rows of a matrix that lie in another order in the file: these runs of rows of `data`, one after another. NULL: as
     * they lie. Only tensors that load_matrix (model_int.h) takes have runs. */
    const st_run *runs;
    int32_t n_runs;
} st_tensor;

typedef struct st_set st_set;

/* Open DIRECTORY/model.safetensors, else the shards of DIRECTORY/model.safetensors.index.json. Tensors of all shards
 * are there, whether the index lists them or not; every tensor that it lists must be in the shard that it says. */
ebb_status st_open(const char *directory, st_set **set, ebb_error *error);
/* One file of any name. */
ebb_status st_open_file(const char *path, st_set **set, ebb_error *error);
/* Tensors that another reader found. Takes over `tensors` and the memory `block` that their names, runs and data may
 * lie in (both malloc'ed, freed in any case); what else they point to outlives the set. A name that is there twice is
 * refused. */
ebb_status st_adopt(st_tensor *tensors, int64_t n, void *block, st_set **set, ebb_error *error);
void st_close(st_set *set); /* NULL is allowed */

/* The tensors, sorted by name. */
const st_tensor *st_tensors(const st_set *set, int64_t *count);
const st_tensor *st_find(const st_set *set, const char *name); /* NULL: there is none */

/* A text of the metadata of the first file; NULL: there is none. Not for adopted tensors. */
const char *st_metadata(const st_set *set, const char *key);

/* The tensor `name`, which must be there, be of a type of weights, and have this shape; marks it used. */
ebb_status st_take(st_set *set, const char *name, int32_t dims, const int64_t *shape, const st_tensor **tensor,
                   ebb_error *error);

/* `n` values of a type that weights have, whole blocks of it, as FP32. */
void st_widen(int32_t type, const uint8_t *data, int64_t n, float *out);

#endif
