/* model/gguf.c: the GGUF format (gguf.h): "GGUF", a version, the numbers of tensors and of fields, the fields (key,
 * type, value), the tensors (name, sizes, type, offset), padding, and the data, where each tensor begins at the next
 * multiple of the alignment. All little-endian, nothing aligned before the data. */
#include "model/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define KEY_LIMIT 65535 /* of the format */

static const char alignment_key[] = "general.alignment";

static const struct {
    const char *name;
    int32_t code, type; /* in the file; ebb_type, 0: not served */
} tensor_types[] = {
    {"F32", 0, EBB_FP32},   {"F16", 1, EBB_FP16},   {"BF16", 30, EBB_BF16}, {"Q4_0", 2, EBB_Q4_0},
    {"Q4_1", 3, EBB_Q4_1},  {"Q5_0", 6, EBB_Q5_0},  {"Q5_1", 7, EBB_Q5_1},  {"Q8_0", 8, EBB_Q8_0},
    {"Q4_K", 12, EBB_Q4_K}, {"Q5_K", 13, EBB_Q5_K}, {"Q6_K", 14, EBB_Q6_K}, {"Q8_1", 9, 0},
    {"Q2_K", 10, 0},        {"Q3_K", 11, 0},        {"Q8_K", 15, 0},        {"IQ2_XXS", 16, 0},
    {"IQ2_XS", 17, 0},      {"IQ3_XXS", 18, 0},     {"IQ1_S", 19, 0},       {"IQ4_NL", 20, 0},
    {"IQ3_S", 21, 0},       {"IQ2_S", 22, 0},       {"IQ4_XS", 23, 0},      {"I8", 24, 0},
    {"I16", 25, 0},         {"I32", 26, 0},         {"I64", 27, 0},         {"F64", 28, 0},
    {"IQ1_M", 29, 0},       {"TQ1_0", 34, 0},       {"TQ2_0", 35, 0},       {"MXFP4", 39, 0},
};

static const struct {
    const char *name; /* as sentences have it */
    size_t bytes;     /* 0: varies */
} value_types[GGUF_TYPES] = {
    [GGUF_UINT8] = {"a whole number", 1},  [GGUF_INT8] = {"a whole number", 1},   [GGUF_UINT16] = {"a whole number", 2},
    [GGUF_INT16] = {"a whole number", 2},  [GGUF_UINT32] = {"a whole number", 4}, [GGUF_INT32] = {"a whole number", 4},
    [GGUF_UINT64] = {"a whole number", 8}, [GGUF_INT64] = {"a whole number", 8},  [GGUF_FLOAT32] = {"a number", 4},
    [GGUF_FLOAT64] = {"a number", 8},      [GGUF_BOOL] = {"true or false", 1},    [GGUF_STRING] = {"a string", 0},
    [GGUF_ARRAY] = {"an array", 0},
};

/* ---- texts ---- */

bool gguf_is(gguf_text text, const char *word) { return text.n == strlen(word) && !memcmp(text.bytes, word, text.n); }

const char *gguf_shown(gguf_text text, char out[64]) {
    char copy[80] = {0};
    memcpy(copy, text.bytes, text.n < sizeof copy - 1 ? text.n : sizeof copy - 1);
    return json_shown(copy, out);
}

json_t *gguf_json(gguf_text text) { return memchr(text.bytes, 0, text.n) ? NULL : json_stringn(text.bytes, text.n); }

static int text_order(gguf_text a, gguf_text b) {
    int order = memcmp(a.bytes, b.bytes, a.n < b.n ? a.n : b.n);
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

/* ---- little-endian numbers ---- */

static uint64_t unsigned_at(const uint8_t *data, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)data[i] << 8 * i;
    return value;
}

/* ---- a place in the file, which never passes its end ---- */

typedef struct reader {
    gguf_file *file;
    const uint8_t *at, *end;
    ebb_error *error;
} reader;

static ebb_status cut(const reader *r, const char *where) {
    return ebb_fail(r->error, EBB_BAD_FILE, "%s: the file ends inside %s: it is cut, or a length in it is wrong",
                    json_file(r->file->path), where);
}

static bool left(const reader *r, uint64_t bytes) { return bytes <= (uint64_t)(r->end - r->at); }

static ebb_status read_unsigned(reader *r, size_t bytes, const char *where, uint64_t *value) {
    if (!left(r, bytes)) return cut(r, where);
    *value = unsigned_at(r->at, bytes);
    r->at += bytes;
    return EBB_OK;
}

static ebb_status read_text(reader *r, const char *where, gguf_text *text) {
    uint64_t n = 0;
    ebb_status status = read_unsigned(r, 8, where, &n);
    if (status) return status;
    if (!left(r, n)) return cut(r, where);
    *text = (gguf_text){(const char *)r->at, (size_t)n};
    r->at += n;
    return EBB_OK;
}

/* ---- fields ---- */

static ebb_status skip_texts(reader *r, uint64_t count, const char *where) {
    gguf_text text;
    ebb_status status = EBB_OK;
    for (uint64_t i = 0; i < count && !status; i++) status = read_text(r, where, &text);
    return status;
}

static ebb_status read_type(reader *r, const char *where, gguf_type *type) {
    uint64_t code = 0;
    ebb_status status = read_unsigned(r, 4, where, &code);
    if (status) return status;
    if (code >= GGUF_TYPES)
        return ebb_fail(r->error, EBB_BAD_FILE, "%s: %s has the type %" PRIu64 ", expected 0 to %d",
                        json_file(r->file->path), where, code, GGUF_TYPES - 1);
    *type = (gguf_type)code;
    return EBB_OK;
}

static ebb_status read_array(reader *r, gguf_field *field, const char *where) {
    ebb_status status = read_type(r, where, &field->element);
    if (!status) status = read_unsigned(r, 8, where, &field->count);
    if (status) return status;
    field->data = r->at;
    if (field->element == GGUF_ARRAY)
        return ebb_fail(r->error, EBB_UNSUPPORTED, "%s: %s is an array of arrays, which is not supported",
                        json_file(r->file->path), where);
    if (field->element == GGUF_STRING) return skip_texts(r, field->count, where);
    size_t bytes;
    if (!size_mul((size_t)field->count, value_types[field->element].bytes, &bytes) || !left(r, bytes))
        return cut(r, where);
    r->at += bytes;
    return EBB_OK;
}

static ebb_status read_value(reader *r, gguf_field *field, const char *where) {
    gguf_text text;
    field->data = r->at;
    if (field->type == GGUF_ARRAY) return read_array(r, field, where);
    if (field->type == GGUF_STRING) return read_text(r, where, &text);
    const size_t bytes = value_types[field->type].bytes;
    if (!left(r, bytes)) return cut(r, where);
    if (field->type == GGUF_BOOL && *r->at > 1)
        return ebb_fail(r->error, EBB_BAD_FILE, "%s: %s is the byte %d, expected 0 or 1", json_file(r->file->path),
                        where, *r->at);
    r->at += bytes;
    return EBB_OK;
}

static ebb_status read_field(reader *r, gguf_field *field) {
    char shown[64], where[96];
    ebb_status status = read_text(r, "the key of a field", &field->key);
    if (status) return status;
    if (field->key.n == 0 || field->key.n > KEY_LIMIT)
        return ebb_fail(r->error, EBB_BAD_FILE, "%s: the key of a field has %zu bytes, expected 1 to %d",
                        json_file(r->file->path), field->key.n, KEY_LIMIT);
    snprintf(where, sizeof where, "field %s", gguf_shown(field->key, shown));
    status = read_type(r, where, &field->type);
    return status ? status : read_value(r, field, where);
}

static int by_key(const void *a, const void *b) {
    return text_order(((const gguf_field *)a)->key, ((const gguf_field *)b)->key);
}

static ebb_status read_fields(reader *r) {
    gguf_file *f = r->file;
    ebb_status status = EBB_OK;
    for (uint64_t i = 0; i < f->n_fields && !status; i++) status = read_field(r, &f->fields[i]);
    if (status) return status;
    if (f->n_fields) qsort(f->fields, (size_t)f->n_fields, sizeof *f->fields, by_key);
    for (uint64_t i = 1; i < f->n_fields; i++) {
        char shown[64];
        if (!by_key(&f->fields[i - 1], &f->fields[i]))
            return ebb_fail(r->error, EBB_BAD_FILE, "%s: field %s is there twice", json_file(f->path),
                            gguf_shown(f->fields[i].key, shown));
    }
    return EBB_OK;
}

/* ---- tensors ---- */

static ebb_status read_tensor_type(reader *r, gguf_tensor *t) {
    uint64_t code = 0;
    ebb_status status = read_unsigned(r, 4, t->name, &code);
    if (status) return status;
    for (int32_t i = 0; i < COUNT(tensor_types); i++)
        if ((uint64_t)tensor_types[i].code == code) {
            t->type_name = tensor_types[i].name;
            t->type = tensor_types[i].type;
        }
    if (!t->type_name)
        return ebb_fail(r->error, EBB_UNSUPPORTED, "%s: tensor %s has the unknown type %" PRIu64,
                        json_file(r->file->path), t->name, code);
    if (!t->type)
        return ebb_fail(r->error, EBB_UNSUPPORTED,
                        "%s: tensor %s has type %s, expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K "
                        "or Q6_K",
                        json_file(r->file->path), t->name, t->type_name);
    return EBB_OK;
}

/* Sizes come fastest first. */
static ebb_status read_sizes(reader *r, gguf_tensor *t) {
    uint64_t dims = 0, size = 0;
    ebb_status status = read_unsigned(r, 4, t->name, &dims);
    if (status) return status;
    if (dims < 1 || dims > GGUF_DIMS)
        return ebb_fail(r->error, EBB_BAD_FILE, "%s: tensor %s has %" PRIu64 " dimensions, expected 1 to %d",
                        json_file(r->file->path), t->name, dims, GGUF_DIMS);
    t->dims = (int32_t)dims;
    for (int32_t d = t->dims - 1; d >= 0; d--) {
        if ((status = read_unsigned(r, 8, t->name, &size))) return status;
        if (size < 1 || size > (uint64_t)INT64_MAX)
            return ebb_fail(r->error, EBB_BAD_FILE, "%s: tensor %s has a dimension of %" PRIu64 ", expected 1 or more",
                            json_file(r->file->path), t->name, size);
        t->shape[d] = (int64_t)size;
    }
    return EBB_OK;
}

static ebb_status count_bytes(const reader *r, gguf_tensor *t) {
    const int64_t row = t->shape[t->dims - 1];
    const int32_t block = ebb_type_block((ebb_type)t->type);
    if (row % block)
        return ebb_fail(r->error, EBB_BAD_FILE,
                        "%s: tensor %s has rows of %" PRId64 ", expected a multiple of %d at %s",
                        json_file(r->file->path), t->name, row, block, t->type_name);
    size_t bytes = ebb_type_row_bytes((ebb_type)t->type, row);
    bool fits = bytes > 0;
    for (int32_t d = 0; fits && d < t->dims - 1; d++) fits = size_mul(bytes, (size_t)t->shape[d], &bytes);
    if (!fits || bytes > (size_t)INT64_MAX)
        return ebb_fail(r->error, EBB_BAD_FILE, "%s: tensor %s is larger than any memory", json_file(r->file->path),
                        t->name);
    t->bytes = bytes;
    return EBB_OK;
}

/* `at`: of its data, behind the beginning of all data. */
static ebb_status read_tensor(reader *r, gguf_tensor *t, uint64_t *at) {
    gguf_text name;
    char shown[64];
    ebb_status status = read_text(r, "the name of a tensor", &name);
    if (status) return status;
    if (name.n < 1 || name.n > GGUF_NAME || memchr(name.bytes, 0, name.n))
        return ebb_fail(r->error, EBB_BAD_FILE, "%s: the name of a tensor, '%s', is none of 1 to %d bytes",
                        json_file(r->file->path), gguf_shown(name, shown), GGUF_NAME);
    memcpy(t->name, name.bytes, name.n);
    status = read_sizes(r, t);
    if (!status) status = read_tensor_type(r, t);
    if (!status) status = count_bytes(r, t);
    if (!status) status = read_unsigned(r, 8, t->name, at);
    return status;
}

static ebb_status read_alignment(const reader *r, size_t *alignment) {
    int64_t value = 32;
    ebb_status status = gguf_get_int(r->file, alignment_key, JSON_OPTIONAL, 1, 1 << 20, &value, r->error);
    if (!status && (value & (value - 1)))
        return ebb_fail(r->error, EBB_BAD_FILE, "%s: field %s is %" PRId64 ", expected a power of two",
                        json_file(r->file->path), alignment_key, value);
    *alignment = (size_t)value;
    return status;
}

/* Tensors follow each other in the order of their list, with nothing but padding between: another offset is wrong. */
static ebb_status place_tensors(reader *r, const uint64_t *offsets) {
    gguf_file *f = r->file;
    size_t alignment = 1, at = 0;
    ebb_status status = read_alignment(r, &alignment);
    if (status) return status;
    const size_t begin = align_up((size_t)(r->at - f->map.data), alignment);
    const size_t room = f->map.bytes > begin ? f->map.bytes - begin : 0;
    for (uint64_t i = 0; i < f->n_tensors; i++) {
        gguf_tensor *t = &f->tensors[i];
        if (offsets[i] != at)
            return ebb_fail(r->error, EBB_BAD_FILE,
                            "%s: tensor %s begins at byte %" PRIu64 " of the data, expected %zu", json_file(f->path),
                            t->name, offsets[i], at);
        if (at > room || t->bytes > room - at)
            return ebb_fail(r->error, EBB_BAD_FILE,
                            "%s: tensor %s needs %zu bytes from byte %zu of the data, which has %zu: the file is cut",
                            json_file(f->path), t->name, t->bytes, at, room);
        t->data = f->map.data + begin + at;
        at = align_up(at + t->bytes, alignment);
    }
    return EBB_OK;
}

static ebb_status read_tensors(reader *r) {
    gguf_file *f = r->file;
    ebb_status status = EBB_OK;
    uint64_t *offsets = calloc((size_t)f->n_tensors + 1, sizeof *offsets);
    if (!offsets) return ebb_fail(r->error, EBB_NO_MEMORY, "no memory for %" PRIu64 " tensors", f->n_tensors);
    for (uint64_t i = 0; i < f->n_tensors && !status; i++) status = read_tensor(r, &f->tensors[i], &offsets[i]);
    if (!status) status = place_tensors(r, offsets);
    free(offsets);
    return status;
}

/* ---- the file ---- */

static ebb_status read_head(reader *r) {
    enum { LEAST_FIELD = 8 + 1 + 4 + 1, LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8 };
    gguf_file *f = r->file;
    uint64_t version = 0;
    if (!left(r, 4) || memcmp(r->at, "GGUF", 4) != 0)
        return ebb_fail(r->error, EBB_BAD_FILE, "%s: not a GGUF file: it does not begin with GGUF", json_file(f->path));
    r->at += 4;
    ebb_status status = read_unsigned(r, 4, "its head", &version);
    if (status) return status;
    if (version > 0xffff)
        return ebb_fail(r->error, EBB_UNSUPPORTED, "%s: a big-endian GGUF file, only little-endian ones are read",
                        json_file(f->path));
    if (version != 2 && version != 3)
        return ebb_fail(r->error, EBB_UNSUPPORTED, "%s: GGUF version %" PRIu64 ", expected 2 or 3", json_file(f->path),
                        version);
    status = read_unsigned(r, 8, "its head", &f->n_tensors);
    if (!status) status = read_unsigned(r, 8, "its head", &f->n_fields);
    if (status) return status;
    const uint64_t bytes = (uint64_t)(r->end - r->at);
    if (f->n_fields > bytes / LEAST_FIELD || f->n_tensors > bytes / LEAST_TENSOR)
        return ebb_fail(r->error, EBB_BAD_FILE,
                        "%s: %" PRIu64 " fields and %" PRIu64 " tensors do not fit its %zu bytes: the file is cut",
                        json_file(f->path), f->n_fields, f->n_tensors, f->map.bytes);
    f->fields = calloc((size_t)f->n_fields + 1, sizeof *f->fields);
    f->tensors = calloc((size_t)f->n_tensors + 1, sizeof *f->tensors);
    if (!f->fields || !f->tensors)
        return ebb_fail(r->error, EBB_NO_MEMORY, "no memory for %" PRIu64 " fields and %" PRIu64 " tensors",
                        f->n_fields, f->n_tensors);
    return EBB_OK;
}

/* One of several files has a part of the tensors only. */
static ebb_status refuse_split(const gguf_file *file, ebb_error *error) {
    int64_t files = 0;
    ebb_status status = gguf_get_int(file, "split.count", JSON_OPTIONAL, 0, 65535, &files, error);
    if (!status && files > 1)
        status = ebb_fail(error, EBB_UNSUPPORTED,
                          "%s: one of %" PRId64 " files of a split model, which must be merged into one file first",
                          json_file(file->path), files);
    return status;
}

ebb_status gguf_open(const char *path, gguf_file *file, ebb_error *error) {
    *file = (gguf_file){.path = path};
    ebb_status status = map_file(path, &file->map, error);
    if (status) return status;
    reader r = {.file = file, .at = file->map.data, .end = file->map.data + file->map.bytes, .error = error};
    status = read_head(&r);
    if (!status) status = read_fields(&r);
    if (!status) status = refuse_split(file, error);
    if (!status) status = read_tensors(&r);
    if (status) gguf_close(file);
    return status;
}

void gguf_close(gguf_file *file) {
    free(file->fields);
    free(file->tensors);
    unmap_file(&file->map);
    *file = (gguf_file){0};
}

bool gguf_is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

/* ---- reading fields ---- */

const gguf_field *gguf_find(const gguf_file *file, const char *key) {
    const gguf_field wanted = {.key = {key, strlen(key)}};
    return file->n_fields ? bsearch(&wanted, file->fields, (size_t)file->n_fields, sizeof wanted, by_key) : NULL;
}

/* The field, NULL where an optional one is absent. */
static ebb_status need_field(const gguf_file *file, const char *key, json_need need, const gguf_field **field,
                             ebb_error *error) {
    *field = gguf_find(file, key);
    if (*field || need == JSON_OPTIONAL) return EBB_OK;
    return ebb_fail(error, EBB_BAD_FILE, "%s: field %s is missing", json_file(file->path), key);
}

static ebb_status wrong_type(const gguf_file *file, const gguf_field *field, const char *expected, ebb_error *error) {
    char shown[64];
    return ebb_fail(error, EBB_BAD_FILE, "%s: field %s is %s, expected %s", json_file(file->path),
                    gguf_shown(field->key, shown), value_types[field->type].name, expected);
}

/* A whole number; an unsigned one beyond INT64_MAX is that. */
static bool whole(const gguf_field *f, int64_t *value) {
    const size_t bytes = value_types[f->type].bytes;
    switch (f->type) {
    case GGUF_UINT8:
    case GGUF_UINT16:
    case GGUF_UINT32:
    case GGUF_UINT64: {
        const uint64_t wide = unsigned_at(f->data, bytes);
        *value = wide > (uint64_t)INT64_MAX ? INT64_MAX : (int64_t)wide;
        return true;
    }
    case GGUF_INT8:
    case GGUF_INT16:
    case GGUF_INT32:
    case GGUF_INT64: {
        const uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
        *value = (int64_t)((unsigned_at(f->data, bytes) ^ sign) - sign);
        return true;
    }
    default:
        return false;
    }
}

ebb_status gguf_get_int(const gguf_file *file, const char *key, json_need need, int64_t lo, int64_t hi, int64_t *value,
                        ebb_error *error) {
    const gguf_field *field;
    int64_t wide;
    ebb_status status = need_field(file, key, need, &field, error);
    if (status || !field) return status;
    if (!whole(field, &wide)) return wrong_type(file, field, "a whole number", error);
    if (wide < lo || wide > hi)
        return ebb_fail(error, EBB_BAD_FILE, "%s: field %s is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                        json_file(file->path), key, wide, lo, hi);
    *value = wide;
    return EBB_OK;
}

ebb_status gguf_get_number(const gguf_file *file, const char *key, json_need need, double *value, ebb_error *error) {
    const gguf_field *field;
    int64_t wide;
    ebb_status status = need_field(file, key, need, &field, error);
    if (status || !field) return status;
    if (field->type == GGUF_FLOAT32) {
        const uint32_t bits = (uint32_t)unsigned_at(field->data, 4);
        float number;
        memcpy(&number, &bits, sizeof number);
        *value = (double)number;
    } else if (field->type == GGUF_FLOAT64) {
        const uint64_t bits = unsigned_at(field->data, 8);
        memcpy(value, &bits, sizeof *value);
    } else if (whole(field, &wide)) *value = (double)wide;
    else return wrong_type(file, field, "a number", error);
    return EBB_OK;
}

ebb_status gguf_get_bool(const gguf_file *file, const char *key, json_need need, bool *value, ebb_error *error) {
    const gguf_field *field;
    ebb_status status = need_field(file, key, need, &field, error);
    if (status || !field) return status;
    if (field->type != GGUF_BOOL) return wrong_type(file, field, "true or false", error);
    *value = *field->data != 0;
    return EBB_OK;
}

gguf_text gguf_next_text(const uint8_t **at) {
    const size_t n = (size_t)unsigned_at(*at, 8);
    const gguf_text text = {(const char *)*at + 8, n};
    *at += 8 + n;
    return text;
}

ebb_status gguf_get_text(const gguf_file *file, const char *key, json_need need, gguf_text *value, ebb_error *error) {
    const gguf_field *field;
    ebb_status status = need_field(file, key, need, &field, error);
    if (status || !field) return status;
    if (field->type != GGUF_STRING) return wrong_type(file, field, "a string", error);
    const uint8_t *at = field->data;
    *value = gguf_next_text(&at);
    return EBB_OK;
}

ebb_status gguf_get_array(const gguf_file *file, const char *key, json_need need, gguf_type element,
                          const gguf_field **array, ebb_error *error) {
    ebb_status status = need_field(file, key, need, array, error);
    if (status || !*array) return status;
    const gguf_field *f = *array;
    const bool numbers = element == GGUF_INT32 && (f->element == GGUF_INT32 || f->element == GGUF_UINT32);
    if (f->type == GGUF_ARRAY && (numbers || f->element == element)) return EBB_OK;
    return wrong_type(file, f,
                      element == GGUF_STRING ? "an array of strings"
                      : element == GGUF_BOOL ? "an array of true and false"
                                             : "an array of 32-bit numbers",
                      error);
}

int32_t gguf_int32(const gguf_field *array, uint64_t i) { return (int32_t)unsigned_at(array->data + 4 * i, 4); }
