/* model/layout_file.c: calibrated layouts (ebb/state.h) as safetensors files, and the layout of a model's method. The
 * format is in docs/formats.md: metadata that name format, method, model and the dimensions of every layer, and tensors
 * layer.N.key_order, value_order (U16), value_scale (F32) and bits (U8). Called by engine, measure and programs. */
#include "model/model_int.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYOUT_VERSION = 1, LAYOUT_LAYERS = 65536 };
static const char format_name[] = "ebb-layout";
static const char layer_text[] = "heads=%d key_dim=%d value_dim=%d";

/* The tables of a layer, in the order in which they lie in a file: the widest first, so that all are aligned. */
enum { VALUE_SCALE, KEY_ORDER, VALUE_ORDER, BITS, TABLES };
static const struct table_kind {
    const char *name, *dtype;
    size_t each; /* bytes of an element */
} kinds[TABLES] = {{"value_scale", "F32", 4}, {"key_order", "U16", 2}, {"value_order", "U16", 2}, {"bits", "U8", 1}};

static const void *table_of(const ebb_layout_layer *l, int kind) {
    switch (kind) {
    case VALUE_SCALE:
        return l->value_scale;
    case KEY_ORDER:
        return l->key_order;
    case VALUE_ORDER:
        return l->value_order;
    default:
        return l->bits;
    }
}

/* Elements of a row of a table; 0: the table is a list, one element a head. */
static int32_t row_of(const ebb_layout_layer *l, int kind) {
    return kind == BITS ? 0 : kind == KEY_ORDER ? l->key_dim : l->value_dim;
}

static size_t table_bytes(const ebb_layout_layer *l, int kind) {
    const int32_t row = row_of(l, kind);
    return (size_t)l->heads * (size_t)(row ? row : 1) * kinds[kind].each;
}

static void tensor_name(int32_t layer, int kind, char name[static 48]) {
    snprintf(name, 48, "layer.%d.%s", layer, kinds[kind].name);
}

/* ---- reading ---- */

static ebb_status word(const st_set *set, const char *path, const char *key, const char **text, ebb_error *error) {
    *text = st_metadata(set, key);
    return *text ? EBB_OK : ebb_fail(error, EBB_BAD_FILE, "%s: the metadata have no text '%s'", path, key);
}

/* Numbers are read and printed again: what is not the same has another form or does not fit. */
static ebb_status read_metadata(const st_set *set, const char *path, const char **method, uint64_t *model, int32_t *n,
                                ebb_error *error) {
    const char *format, *version, *hash, *layers;
    char again[32];
    ebb_status status;
    int number = 0;
    if ((status = word(set, path, "format", &format, error)) ||
        (status = word(set, path, "version", &version, error)) || (status = word(set, path, "method", method, error)) ||
        (status = word(set, path, "model", &hash, error)) || (status = word(set, path, "layers", &layers, error)))
        return status;
    if (strcmp(format, format_name) != 0)
        return ebb_fail(error, EBB_BAD_FILE, "%s: format '%.40s', expected '%s'", path, format, format_name);
    if (sscanf(version, "%9d", &number) != 1 || number != LAYOUT_VERSION)
        return ebb_fail(error, EBB_UNSUPPORTED, "%s: version %.20s of the layout format, this library reads version %d",
                        path, version, LAYOUT_VERSION);
    if (strlen(*method) >= EBB_METHOD_TEXT)
        return ebb_fail(error, EBB_BAD_FILE, "%s: a method of %zu bytes, expected fewer than %d", path, strlen(*method),
                        EBB_METHOD_TEXT);
    *model = 0;
    if (sscanf(hash, "%16" SCNx64, model) == 1) snprintf(again, sizeof again, "%016" PRIx64, *model);
    else again[0] = '\0';
    if (strcmp(hash, again) != 0)
        return ebb_fail(error, EBB_BAD_FILE, "%s: model '%.40s', expected a hash of 16 hexadecimal digits", path, hash);
    *n = 0;
    if (sscanf(layers, "%9d", n) == 1) snprintf(again, sizeof again, "%d", *n);
    if (strcmp(layers, again) != 0 || *n < 1 || *n > LAYOUT_LAYERS)
        return ebb_fail(error, EBB_BAD_FILE, "%s: layers '%.20s', expected a number from 1 to %d", path, layers,
                        LAYOUT_LAYERS);
    return EBB_OK;
}

static ebb_status read_dimensions(const st_set *set, const char *path, int32_t layer, ebb_layout_layer *l,
                                  ebb_error *error) {
    char key[32], again[80] = "";
    const char *text;
    snprintf(key, sizeof key, "layer.%d", layer);
    ebb_status status = word(set, path, key, &text, error);
    if (status) return status;
    if (sscanf(text, "heads=%9d key_dim=%9d value_dim=%9d", &l->heads, &l->key_dim, &l->value_dim) == 3)
        snprintf(again, sizeof again, layer_text, l->heads, l->key_dim, l->value_dim);
    if (strcmp(text, again) != 0)
        return ebb_fail(error, EBB_BAD_FILE, "%s: %s is '%.60s', expected 'heads=N key_dim=N value_dim=N'", path, key,
                        text);
    return EBB_OK;
}

/* A copy of a table, because nothing in a file is aligned; *table stays NULL where the file has none. */
static ebb_status read_table(const st_set *set, const char *path, int32_t layer, const ebb_layout_layer *l, int kind,
                             void **table, int64_t *found, ebb_error *error) {
    char name[48];
    tensor_name(layer, kind, name);
    const st_tensor *t = st_find(set, name);
    const int32_t row = row_of(l, kind);
    if (!t) return EBB_OK;
    ++*found;
    if (strcmp(t->dtype, kinds[kind].dtype) != 0)
        return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %s has dtype %s, expected %s", path, name, t->dtype,
                        kinds[kind].dtype);
    if (t->dims != (row ? 2 : 1) || t->shape[0] != l->heads || (row && t->shape[1] != row))
        return ebb_fail(error, EBB_BAD_FILE, "%s: the shape of tensor %s is not that of %d heads of %d x %d", path,
                        name, l->heads, l->key_dim, l->value_dim);
    *table = malloc(t->bytes ? t->bytes : 1);
    if (!*table) return ebb_fail(error, EBB_NO_MEMORY, "%s: no memory for tensor %s", path, name);
    memcpy(*table, t->data, t->bytes);
    return EBB_OK;
}

static ebb_status read_layer(const st_set *set, const char *path, int32_t layer, ebb_layout_layer *l, int64_t *found,
                             ebb_error *error) {
    void *table[TABLES] = {NULL};
    ebb_status status = read_dimensions(set, path, layer, l, error);
    for (int kind = 0; kind < TABLES && !status; kind++)
        status = read_table(set, path, layer, l, kind, &table[kind], found, error);
    l->value_scale = table[VALUE_SCALE], l->key_order = table[KEY_ORDER];
    l->value_order = table[VALUE_ORDER], l->bits = table[BITS];
    return status;
}

/* A tensor that is no table of a layer would be ignored, which nobody who wrote it wants. */
static ebb_status check_tensors(const st_set *set, const char *path, int32_t layers, int64_t found, ebb_error *error) {
    int64_t n;
    const st_tensor *t = st_tensors(set, &n);
    for (int64_t i = 0; i < n && found < n; i++) {
        bool known = false;
        int layer;
        if (sscanf(t[i].name, "layer.%9d", &layer) == 1 && layer >= 0 && layer < layers)
            for (int kind = 0; kind < TABLES && !known; kind++) {
                char name[48];
                tensor_name(layer, kind, name);
                known = strcmp(name, t[i].name) == 0;
            }
        if (!known)
            return ebb_fail(error, EBB_BAD_FILE, "%s: tensor %.60s is no table of the %d layers", path, t[i].name,
                            layers);
    }
    return EBB_OK;
}

static void free_tables(ebb_layout_layer *layers, int32_t n) {
    for (int32_t i = 0; layers && i < n; i++)
        for (int kind = 0; kind < TABLES; kind++) free((void *)(uintptr_t)table_of(&layers[i], kind));
    free(layers);
}

ebb_status ebb_layout_read(const char *path, ebb_layout **layout, ebb_error *error) {
    if (!path || !layout) return ebb_fail(error, EBB_BAD_ARGUMENT, "a layout needs the name of a file and a place");
    *layout = NULL;
    st_set *set = NULL;
    ebb_layout_layer *layers = NULL;
    const char *method = NULL;
    uint64_t model = 0;
    int32_t n = 0;
    int64_t found = 0;
    ebb_error why = {EBB_OK, ""};
    ebb_status status = st_open_file(path, &set, error);
    if (!status) status = read_metadata(set, path, &method, &model, &n, error);
    if (status) goto done;
    if (!(layers = calloc((size_t)n, sizeof *layers))) {
        status = ebb_fail(error, EBB_NO_MEMORY, "%s: no memory for a layout of %d layers", path, n);
        goto done;
    }
    for (int32_t i = 0; i < n && !status; i++) status = read_layer(set, path, i, &layers[i], &found, error);
    if (!status) status = check_tensors(set, path, n, found, error);
    if (!status && (status = ebb_layout_new(method, model, layers, n, layout, &why)))
        status = ebb_fail(error, status == EBB_BAD_ARGUMENT ? EBB_BAD_FILE : status, "%s: %s", path, why.text);
done:
    free_tables(layers, n);
    st_close(set);
    return status;
}

/* ---- writing ---- */

static bool reserved(const char *key) {
    static const char *const own[] = {"format", "version", "method", "model", "layers"};
    for (int32_t i = 0; i < COUNT(own); i++)
        if (!strcmp(key, own[i])) return true;
    return strncmp(key, "layer.", 6) == 0;
}

static ebb_status add_metadata(json_t *root, const ebb_layout *layout, const ebb_layout_note *notes, int32_t n_notes,
                               ebb_error *error) {
    char text[80], key[32];
    int32_t n;
    json_error_t why;
    const ebb_layout_layer *l = ebb_layout_table(layout, 0, &n);
    json_t *m = json_object();
    bool failed = json_object_set_new(root, "__metadata__", m) != 0;
    failed |= json_object_set_new(m, "format", json_string(format_name)) != 0;
    snprintf(text, sizeof text, "%d", LAYOUT_VERSION);
    failed |= json_object_set_new(m, "version", json_string(text)) != 0;
    failed |= json_object_set_new(m, "method", json_string(ebb_layout_method(layout))) != 0;
    snprintf(text, sizeof text, "%016" PRIx64, ebb_layout_model(layout));
    failed |= json_object_set_new(m, "model", json_string(text)) != 0;
    snprintf(text, sizeof text, "%d", n);
    failed |= json_object_set_new(m, "layers", json_string(text)) != 0;
    for (int32_t i = 0; i < n; i++) {
        l = ebb_layout_table(layout, i, NULL);
        snprintf(key, sizeof key, "layer.%d", i);
        snprintf(text, sizeof text, layer_text, l->heads, l->key_dim, l->value_dim);
        failed |= json_object_set_new(m, key, json_string(text)) != 0;
    }
    for (int32_t i = 0; i < n_notes; i++) {
        if (reserved(notes[i].key) || json_object_get(m, notes[i].key))
            return ebb_fail(error, EBB_BAD_ARGUMENT, "a note of a layout is called '%.40s', which is taken",
                            notes[i].key);
        json_t *note = json_pack_ex(&why, 0, "{s:s}", notes[i].key, notes[i].text);
        if (!note && json_error_code(&why) == json_error_invalid_utf8)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "a note of a layout is not UTF-8: its key or its text");
        failed |= !note || json_object_update(m, note) != 0;
        json_decref(note);
    }
    return failed ? ebb_fail(error, EBB_NO_MEMORY, "no memory for the metadata of a layout") : EBB_OK;
}

/* Describe the tensors, behind each other in this order; *bytes of them. */
static bool add_tensors(json_t *root, const ebb_layout *layout, size_t *bytes) {
    int32_t n;
    *bytes = 0;
    ebb_layout_table(layout, 0, &n);
    for (int kind = 0; kind < TABLES; kind++)
        for (int32_t i = 0; i < n; i++) {
            const ebb_layout_layer *l = ebb_layout_table(layout, i, NULL);
            const int32_t row = row_of(l, kind);
            char name[48];
            if (!table_of(l, kind)) continue;
            const size_t begin = *bytes, end = *bytes += table_bytes(l, kind);
            json_t *shape = row ? json_pack("[i, i]", l->heads, row) : json_pack("[i]", l->heads);
            json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", kinds[kind].dtype, "shape", shape,
                                      "data_offsets", (json_int_t)begin, (json_int_t)end);
            tensor_name(i, kind, name);
            if (json_object_set_new(root, name, entry) != 0) return false;
        }
    return true;
}

static void copy_tensors(const ebb_layout *layout, uint8_t *data) {
    int32_t n;
    ebb_layout_table(layout, 0, &n);
    for (int kind = 0; kind < TABLES; kind++)
        for (int32_t i = 0; i < n; i++) {
            const ebb_layout_layer *l = ebb_layout_table(layout, i, NULL);
            if (!table_of(l, kind)) continue;
            memcpy(data, table_of(l, kind), table_bytes(l, kind));
            data += table_bytes(l, kind);
        }
}

ebb_status ebb_layout_write(const char *path, const ebb_layout *layout, const ebb_layout_note *notes, int32_t n_notes,
                            ebb_error *error) {
    if (!path || !layout || n_notes < 0 || (n_notes && !notes))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "writing a layout needs the name of a file and a layout");
    size_t data = 0, room;
    uint8_t *file = NULL;
    char *header = NULL;
    json_t *root = json_object();
    ebb_status status = root ? add_metadata(root, layout, notes, n_notes, error)
                             : ebb_fail(error, EBB_NO_MEMORY, "%s: no memory for a layout", path);
    if (status) goto done;
    if (add_tensors(root, layout, &data)) header = json_dumps(root, JSON_COMPACT);
    const size_t length = header ? strlen(header) : 0, padded = align_up(length, 8);
    if (header && size_add(8 + padded, data, &room)) file = malloc(room);
    if (!file) {
        status = ebb_fail(error, EBB_NO_MEMORY, "%s: no memory for a layout", path);
        goto done;
    }
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    memset(file + 8, ' ', padded);
    memcpy(file + 8, header, length);
    copy_tensors(layout, file + 8 + padded);
    status = replace_file(path, file, room, error);
done:
    free(file), free(header);
    json_decref(root);
    return status;
}

/* ---- the layout of a model ---- */

/* DIRECTORY/layouts/NAME.safetensors, malloc'ed. */
static char *default_path(const char *directory, const char *name) {
    const size_t n = strlen(directory) + strlen(name) + sizeof "/layouts/.safetensors";
    char *path = malloc(n);
    if (path) snprintf(path, n, "%s/layouts/%s.safetensors", directory, name);
    return path;
}

static ebb_status check_layout(const ebb_model *model, const char *name, const char *path, const ebb_layout *layout,
                               ebb_error *error) {
    const uint64_t made_for = ebb_layout_model(layout), hash = model->info.hash;
    if (strcmp(ebb_layout_method(layout), name) != 0)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%s: a layout for method %s, expected one for %s", path,
                        ebb_layout_method(layout), name);
    if (made_for && made_for != hash)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "%s: a layout of model %016" PRIx64 ", expected one of this model, %016" PRIx64, path, made_for,
                        hash);
    return EBB_OK;
}

ebb_status ebb_model_layout(const ebb_model *model, const ebb_state_method *method, const char *path,
                            ebb_layout **layout, ebb_error *error) {
    if (!model || !method || !layout)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a layout needs a model, a method and a place to go");
    *layout = NULL;
    const char *name = ebb_state_layout_name(method);
    if (!name)
        return path
                   ? ebb_fail(error, EBB_BAD_ARGUMENT, "method %s needs no layout, but %s is given", method->name, path)
                   : EBB_OK;
    char *own = path ? NULL : default_path(model->folder, name);
    ebb_status status = EBB_OK;
    if (!path && !own) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a path");
    if (own && !file_exists(own))
        status = ebb_fail(error, EBB_UNSUPPORTED,
                          "method %s needs a calibrated layout; `ebb calibrate --method %s` makes one, expected in %s",
                          method->name, name, own);
    if (!status) status = ebb_layout_read(path ? path : own, layout, error);
    if (!status && (status = check_layout(model, name, path ? path : own, *layout, error))) {
        ebb_layout_free(*layout);
        *layout = NULL;
    }
    free(own);
    return status;
}
