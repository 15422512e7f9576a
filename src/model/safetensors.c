/* model/safetensors.c: the safetensors format: 8 bytes little-endian header length, a JSON header
 * {name: {"dtype", "shape", "data_offsets": [begin, end]}}, then the data, which the tensors cover without gap or
 * overlap. */
#include "model/safetensors.h"

#include "format/block_gguf.h"
#include "format/float16.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_LIMIT ((uint64_t)100000000) /* the limit of the format's own library */
#define INDEX_LIMIT ((size_t)256 << 20)
#define SHARD_LIMIT 10000

static const char index_name[] = "model.safetensors.index.json";

typedef struct st_file {
    char *name; /* base name */
    mapped_file map;
    json_t *header; /* owns the names of its tensors */
    const uint8_t *data;
    size_t data_bytes;
} st_file;

struct st_set {
    char *directory;
    int32_t n_files;
    st_file *files;
    int64_t n, room;
    st_tensor *tensors;
    void *block; /* of adopted tensors: their names, and what was made of the file; NULL: in the headers and maps */
};

static const struct {
    const char *name;
    int32_t bits, type;
} dtypes[] = {
    {"BF16", 16, EBB_BF16}, {"F16", 16, EBB_FP16}, {"F32", 32, EBB_FP32}, {"F64", 64, 0},    {"C64", 64, 0},
    {"F8_E4M3", 8, 0},      {"F8_E5M2", 8, 0},     {"F8_E8M0", 8, 0},     {"F6_E2M3", 6, 0}, {"F6_E3M2", 6, 0},
    {"F4", 4, 0},           {"BOOL", 8, 0},        {"I8", 8, 0},          {"U8", 8, 0},      {"I16", 16, 0},
    {"U16", 16, 0},         {"I32", 32, 0},        {"U32", 32, 0},        {"I64", 64, 0},    {"U64", 64, 0},
};

/* ---- one tensor of a header ---- */

static ebb_status read_dtype(const st_file *file, st_tensor *t, const json_t *entry, size_t *bits, ebb_error *error) {
    t->dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!t->dtype) return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s: dtype is not a string", file->name, t->name);
    for (int32_t i = 0; i < COUNT(dtypes); i++)
        if (!strcmp(t->dtype, dtypes[i].name)) {
            t->type = dtypes[i].type;
            *bits = (size_t)dtypes[i].bits;
            return EBB_OK;
        }
    return ebb_fail(error, EBB_UNSUPPORTED, "%s: tensor %s: unknown dtype %s", file->name, t->name, t->dtype);
}

/* The shape, and the bytes that it takes at `bits` an element. */
static ebb_status read_shape(const st_file *file, st_tensor *t, const json_t *entry, size_t bits, size_t *bytes,
                             ebb_error *error) {
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s: shape is not a list", file->name, t->name);
    if (json_array_size(shape) > ST_DIMS)
        return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s has %zu dimensions; at most %d are expected", file->name,
                        t->name, json_array_size(shape), ST_DIMS);
    size_t total = bits;
    t->dims = (int32_t)json_array_size(shape);
    for (int32_t d = 0; d < t->dims; d++) {
        const json_t *size = json_array_get(shape, (size_t)d);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s: dimension %d of shape is not a whole number >= 0",
                            file->name, t->name, d);
        t->shape[d] = (int64_t)json_integer_value(size);
        if (!size_mul(total, (size_t)t->shape[d], &total))
            return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s: its shape is larger than any memory", file->name,
                            t->name);
    }
    if (total % 8 != 0)
        return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s: its shape does not fill whole bytes at dtype %s",
                        file->name, t->name, t->dtype);
    *bytes = total / 8;
    return EBB_OK;
}

static ebb_status read_tensor(const st_file *file, st_tensor *t, const json_t *entry, ebb_error *error) {
    size_t bits = 0, bytes = 0;
    if (!json_is_object(entry))
        return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s is not described by a JSON object", file->name, t->name);
    ebb_status status = read_dtype(file, t, entry, &bits, error);
    if (!status) status = read_shape(file, t, entry, bits, &bytes, error);
    if (status) return status;

    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s: data_offsets is not a list of two whole numbers",
                        file->name, t->name);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin)
        return ebb_fail(error, EBB_BAD_FILE,
                        "%s: tensor %s: data_offsets are %" JSON_INTEGER_FORMAT " .. %" JSON_INTEGER_FORMAT
                        "; 0 <= begin <= end is expected",
                        file->name, t->name, begin, end);
    if ((uint64_t)end > file->data_bytes)
        return ebb_fail(error, EBB_BAD_FILE,
                        "%s: tensor %s ends at byte %" JSON_INTEGER_FORMAT
                        " of the data, but the file holds %zu: it is cut",
                        file->name, t->name, end, file->data_bytes);
    if ((size_t)(end - begin) != bytes)
        return ebb_fail(error, EBB_BAD_FILE,
                        "%s: tensor %s: data_offsets give %" JSON_INTEGER_FORMAT
                        " bytes; its shape and dtype %s need %zu",
                        file->name, t->name, end - begin, t->dtype, bytes);
    t->data = file->data + begin;
    t->bytes = bytes;
    return EBB_OK;
}

/* ---- one file ---- */

static int by_data(const void *a, const void *b) {
    const st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors before the one that begins there */
}

/* The tensors must cover the data exactly: an overlap or a gap means that some offset is wrong. Sorts them. */
static ebb_status check_cover(const st_file *file, st_tensor *t, int64_t n, ebb_error *error) {
    size_t at = 0;
    if (n > 0) qsort(t, (size_t)n, sizeof *t, by_data);
    for (int64_t i = 0; i < n; i++) {
        size_t begin = (size_t)(t[i].data - file->data);
        if (begin < at)
            return ebb_fail(error, EBB_BAD_FILE, "%s: tensors %s and %s overlap", file->name, t[i - 1].name, t[i].name);
        if (begin > at)
            return ebb_fail(error, EBB_BAD_FILE, "%s: bytes %zu .. %zu of the data, before %s, belong to no tensor",
                            file->name, at, begin - 1, t[i].name);
        at = begin + t[i].bytes;
    }
    if (at != file->data_bytes)
        return ebb_fail(error, EBB_BAD_FILE, "%s: %zu bytes follow the last tensor; none is expected", file->name,
                        file->data_bytes - at);
    return EBB_OK;
}

static ebb_status parse_header(st_file *file, ebb_error *error) {
    uint64_t length = 0;
    if (file->map.bytes < 8)
        return ebb_fail(error, EBB_BAD_FILE, "%s: %zu bytes; a safetensors file has at least 8", file->name,
                        file->map.bytes);
    for (int i = 0; i < 8; i++) length |= (uint64_t)file->map.data[i] << 8 * i;
    if (length < 2 || length > HEADER_LIMIT)
        return ebb_fail(error, EBB_BAD_FILE, "%s: the header claims %" PRIu64 " bytes; 2 .. %" PRIu64 " are expected",
                        file->name, length, HEADER_LIMIT);
    if (length > file->map.bytes - 8)
        return ebb_fail(error, EBB_BAD_FILE,
                        "%s: the header claims %" PRIu64 " bytes, but only %zu follow: the file is cut", file->name,
                        length, file->map.bytes - 8);
    json_error_t why;
    file->header = json_loadb((const char *)file->map.data + 8, (size_t)length, JSON_REJECT_DUPLICATES, &why);
    if (!file->header && !why.text[0])
        return ebb_fail(error, EBB_NO_MEMORY, "%s: no memory for the header", file->name);
    if (!file->header) return ebb_fail(error, EBB_BAD_FILE, "%s: the header is not JSON: %s", file->name, why.text);
    if (!json_is_object(file->header))
        return ebb_fail(error, EBB_BAD_FILE, "%s: the header is not a JSON object", file->name);
    file->data = file->map.data + 8 + length;
    file->data_bytes = file->map.bytes - 8 - (size_t)length;
    return EBB_OK;
}

static ebb_status room_for(st_set *set, size_t more, ebb_error *error) {
    size_t room = (size_t)set->n + more;
    if (room <= (size_t)set->room) return EBB_OK;
    st_tensor *grown = room > SIZE_MAX / sizeof *grown ? NULL : realloc(set->tensors, room * sizeof *grown);
    if (!grown) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the list of %zu tensors", room);
    set->tensors = grown;
    set->room = (int64_t)room;
    return EBB_OK;
}

/* Map `file`, check all of it, and append its tensors to the set. */
static ebb_status read_tensors(st_set *set, st_file *file, ebb_error *error) {
    const char *name;
    json_t *entry;
    int64_t first = set->n;
    char *path = path_join(set->directory, file->name);
    if (!path) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    ebb_status status = map_file(path, &file->map, error);
    free(path);
    if (!status) status = parse_header(file, error);
    if (!status) status = room_for(set, json_object_size(file->header), error);
    if (status) return status;
    json_object_foreach(file->header, name, entry) {
        if (!strcmp(name, "__metadata__")) continue;
        st_tensor *t = &set->tensors[set->n];
        *t = (st_tensor){.name = name, .file = file->name};
        if ((status = read_tensor(file, t, entry, error))) return status;
        set->n++;
    }
    return check_cover(file, set->n > first ? set->tensors + first : NULL, set->n - first, error);
}

/* ---- the folder ---- */

static ebb_status add_file(st_set *set, const char *name, ebb_error *error) {
    for (int32_t i = 0; i < set->n_files; i++)
        if (!strcmp(set->files[i].name, name)) return EBB_OK;
    if (set->n_files == SHARD_LIMIT)
        return ebb_fail(error, EBB_BAD_FILE, "%s: more than %d shards are named", index_name, SHARD_LIMIT);
    st_file *grown = realloc(set->files, (size_t)(set->n_files + 1) * sizeof *grown);
    if (grown) set->files = grown;
    char *copy = grown ? strdup(name) : NULL;
    if (!copy) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the list of shards");
    set->files[set->n_files++] = (st_file){.name = copy};
    return EBB_OK;
}

static ebb_status read_index(const char *path, json_t **index, const json_t **map, ebb_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    json_error_t why;
    ebb_status status = read_file(path, INDEX_LIMIT, &text, &bytes, error);
    if (status) return status;
    *index = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!*index && !why.text[0]) return ebb_fail(error, EBB_NO_MEMORY, "%s: no memory to read it", index_name);
    if (!*index) return ebb_fail(error, EBB_BAD_FILE, "%s: line %d: not JSON: %s", index_name, why.line, why.text);
    *map = json_object_get(*index, "weight_map");
    if (!json_is_object(*map)) return ebb_fail(error, EBB_BAD_FILE, "%s: weight_map is not a JSON object", index_name);
    return EBB_OK;
}

/* The shards that the index names. A shard lies in the folder itself: no path leads out of it. */
static ebb_status list_shards(st_set *set, const json_t *map, ebb_error *error) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, name, value) {
        const char *shard = json_string_value(value);
        if (!shard || !*shard)
            return ebb_fail(error, EBB_BAD_FILE, "%s: the shard of %s is not a file name", index_name, name);
        if (strpbrk(shard, "/\\") || strstr(shard, ".."))
            return ebb_fail(error, EBB_BAD_FILE, "%s: the shard of %s is '%s'; a plain file name is expected",
                            index_name, name, shard);
        ebb_status status = add_file(set, shard, error);
        if (status) return status;
    }
    if (set->n_files == 0) return ebb_fail(error, EBB_BAD_FILE, "%s: weight_map is empty", index_name);
    return EBB_OK;
}

static ebb_status check_index(const st_set *set, const json_t *map, ebb_error *error) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, name, value) {
        const st_tensor *t = st_find(set, name);
        if (!t || strcmp(t->file, json_string_value(value)) != 0)
            return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s is not in %s, where the index says it is", index_name,
                            name, json_string_value(value));
    }
    return EBB_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

static ebb_status sort_by_name(st_set *set, ebb_error *error) {
    if (set->n > 0) qsort(set->tensors, (size_t)set->n, sizeof *set->tensors, by_name);
    for (int64_t i = 1; i < set->n; i++)
        if (!strcmp(set->tensors[i - 1].name, set->tensors[i].name))
            return ebb_fail(error, EBB_BAD_FILE, "tensor %s is in both %s and %s", set->tensors[i].name,
                            set->tensors[i - 1].file, set->tensors[i].file);
    return EBB_OK;
}

/* Read all files and sort the tensors by name. */
static ebb_status read_files(st_set *set, ebb_error *error) {
    for (int32_t i = 0; i < set->n_files; i++) {
        ebb_status status = read_tensors(set, &set->files[i], error);
        if (status) return status;
    }
    return sort_by_name(set, error);
}

static ebb_status open_sharded(st_set *set, const char *path, ebb_error *error) {
    json_t *index = NULL;
    const json_t *map = NULL;
    ebb_status status = read_index(path, &index, &map, error);
    if (!status) status = list_shards(set, map, error);
    if (!status) status = read_files(set, error);
    if (!status) status = check_index(set, map, error);
    json_decref(index);
    return status;
}

ebb_status st_open(const char *directory, st_set **out, ebb_error *error) {
    ebb_status status;
    st_set *set = calloc(1, sizeof *set);
    char *single = path_join(directory, "model.safetensors"), *index = path_join(directory, index_name);
    *out = NULL;
    if (set) set->directory = strdup(directory);
    if (!set || !set->directory || !single || !index) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    else if (file_exists(single)) {
        status = add_file(set, "model.safetensors", error);
        if (!status) status = read_files(set, error);
    } else if (file_exists(index)) status = open_sharded(set, index, error);
    else status = ebb_fail(error, EBB_BAD_FILE, "%s: there is neither model.safetensors nor %s", directory, index_name);
    free(single);
    free(index);
    if (status) st_close(set);
    else *out = set;
    return status;
}

ebb_status st_open_file(const char *path, st_set **out, ebb_error *error) {
    const char *slash = strrchr(path, '/');
    st_set *set = calloc(1, sizeof *set);
    *out = NULL;
    if (set) set->directory = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!set || !set->directory) {
        st_close(set);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    }
    ebb_status status = add_file(set, slash ? slash + 1 : path, error);
    if (!status) status = read_files(set, error);
    if (status) st_close(set);
    else *out = set;
    return status;
}

ebb_status st_adopt(st_tensor *tensors, int64_t n, void *block, st_set **out, ebb_error *error) {
    st_set *set = calloc(1, sizeof *set);
    *out = NULL;
    if (!set) {
        free(tensors);
        free(block);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the list of tensors");
    }
    *set = (st_set){.n = n, .room = n, .tensors = tensors, .block = block};
    ebb_status status = sort_by_name(set, error);
    if (status) st_close(set);
    else *out = set;
    return status;
}

void st_close(st_set *set) {
    if (!set) return;
    for (int32_t i = 0; i < set->n_files; i++) {
        json_decref(set->files[i].header);
        unmap_file(&set->files[i].map);
        free(set->files[i].name);
    }
    free(set->files);
    free(set->tensors);
    free(set->block);
    free(set->directory);
    free(set);
}

/* ---- reading ---- */

const st_tensor *st_tensors(const st_set *set, int64_t *count) {
    *count = set->n;
    return set->tensors;
}

const st_tensor *st_find(const st_set *set, const char *name) {
    st_tensor key = {.name = name};
    return set->n ? bsearch(&key, set->tensors, (size_t)set->n, sizeof key, by_name) : NULL;
}

const char *st_metadata(const st_set *set, const char *key) {
    if (set->n_files == 0) return NULL; /* adopted tensors */
    return json_string_value(json_object_get(json_object_get(set->files[0].header, "__metadata__"), key));
}

/* "[1024, 1, 4]" */
static void shape_text(int32_t dims, const int64_t *shape, char text[static 64]) {
    size_t at = (size_t)snprintf(text, 64, "[");
    for (int32_t d = 0; d < dims && at < 64; d++)
        at += (size_t)snprintf(text + at, 64 - at, d ? ", %" PRId64 : "%" PRId64, shape[d]);
    if (at < 63) snprintf(text + at, 64 - at, "]");
}

ebb_status st_take(st_set *set, const char *name, int32_t dims, const int64_t *shape, const st_tensor **tensor,
                   ebb_error *error) {
    const st_tensor *found = st_find(set, name);
    if (!found) return ebb_fail(error, EBB_BAD_FILE, "tensor %s is missing from the checkpoint", name);
    bool same = found->dims == dims;
    for (int32_t d = 0; same && d < dims; d++) same = found->shape[d] == shape[d];
    if (!same) {
        char is[64], want[64];
        shape_text(found->dims, found->shape, is);
        shape_text(dims, shape, want);
        return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s has shape %s; %s it %s", found->file, name, is,
                        set->n_files ? "config.json makes" : "its fields make", want);
    }
    if (!found->type)
        return ebb_fail(error, EBB_UNSUPPORTED, "%s: tensor %s has dtype %s; BF16, F16 or F32 is expected", found->file,
                        name, found->dtype);
    set->tensors[found - set->tensors].used = true;
    *tensor = found;
    return EBB_OK;
}

void st_widen(int32_t type, const uint8_t *data, int64_t n, float *out) {
    if (type == EBB_FP32) {
        memcpy(out, data, (size_t)n * sizeof *out);
        return;
    }
    if (gguf_block_values(type)) {
        gguf_decode_row(type, data, n, out); /* rows are whole blocks: one long row */
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, data + 2 * i, sizeof half);
        out[i] = type == EBB_BF16 ? bf16_to_float(half) : fp16_to_float(half);
    }
}
