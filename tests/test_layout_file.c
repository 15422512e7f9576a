/* test_layout_file.c: calibrated layouts as files: what is written is what is read, damaged and hostile files are
 * refused by a sentence, and a model takes its own layouts, no other's. */
#include "default_layout.h"
#include "toy_session.h"

#include <sys/stat.h>

static const ebb_state_layer shapes[2] = {
    {.kind = EBB_GDN, .key_heads = 1, .heads = 2, .key_dim = 4, .value_dim = 3},
    {.kind = EBB_GDN, .key_heads = 1, .heads = 3, .head_begin = 1, .key_dim = 2, .value_dim = 5, .index = 1}};

static const char *path_of(const fixture *f, const char *name) {
    static char paths[4][160];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, 160, "%s/%s", f->folder, name);
    return path;
}

static ebb_layout *new_layout(const char *method, uint64_t model) {
    ebb_layout *layout = NULL;
    ebb_error error;
    must(default_layout(method, model, shapes, 2, &layout, &error), &error);
    return layout;
}

static void same_table(const void *a, const void *b, size_t bytes) {
    assert_int_equal(a == NULL, b == NULL);
    if (a) assert_memory_equal(a, b, bytes);
}

static void same_layout(const ebb_layout *a, const ebb_layout *b) {
    int32_t n, m;
    ebb_layout_table(a, 0, &n), ebb_layout_table(b, 0, &m);
    assert_int_equal(n, m);
    assert_string_equal(ebb_layout_method(a), ebb_layout_method(b));
    assert_true(ebb_layout_model(a) == ebb_layout_model(b));
    for (int32_t i = 0; i < n; i++) {
        const ebb_layout_layer *x = ebb_layout_table(a, i, NULL), *y = ebb_layout_table(b, i, NULL);
        assert_int_equal(x->heads, y->heads);
        assert_int_equal(x->key_dim, y->key_dim);
        assert_int_equal(x->value_dim, y->value_dim);
        const size_t heads = (size_t)x->heads, keys = heads * (size_t)x->key_dim, values = heads * (size_t)x->value_dim;
        same_table(x->key_order, y->key_order, keys * sizeof *x->key_order);
        same_table(x->value_order, y->value_order, values * sizeof *x->value_order);
        same_table(x->value_scale, y->value_scale, values * sizeof *x->value_scale);
        same_table(x->bits, y->bits, heads);
    }
}

/* ---- writing and reading ---- */

static void test_round_trip(void **state) {
    fixture *f = *state;
    const char *path = path_of(f, "a.safetensors"), *second = path_of(f, "b.safetensors");
    const ebb_layout_note notes[] = {{"protocol", "32 documents, \"every\" 8th token"},
                                     {"domains", "Prosa, Mathématik"}};
    ebb_layout *layout = new_layout("damp-reorder", 0x00ff00ff12345678u), *back = NULL;
    ebb_error error;
    char *text, *again;
    size_t bytes, more;
    must(ebb_layout_write(path, layout, notes, 2, &error), &error);
    must(ebb_layout_read(path, &back, &error), &error);
    same_layout(layout, back);
    must(ebb_layout_write(second, back, notes, 2, &error), &error); /* canonical */
    must(read_file(path, 1 << 20, &text, &bytes, &error), &error);
    must(read_file(second, 1 << 20, &again, &more, &error), &error);
    assert_int_equal(bytes, more);
    assert_memory_equal(text, again, bytes);
    text[bytes - 1] = '\0';
    assert_non_null(strstr(text + 8, "\"domains\":\"Prosa, Mathématik\""));
    assert_non_null(strstr(text + 8, "\"model\":\"00ff00ff12345678\""));
    assert_int_equal(text[0] & 7, 0); /* the data begin at a multiple of 8 */
    assert_false(file_exists(path_of(f, "a.safetensors.tmp")));
    free(text), free(again);
    ebb_layout_free(layout), ebb_layout_free(back);
}

/* Tables that are not there stay away. */
static void test_some_tables(void **state) {
    fixture *f = *state;
    const char *path = path_of(f, "a.safetensors");
    static const uint16_t order[4] = {1, 0, 0, 1};
    static const uint8_t bits[2] = {6, 12};
    const ebb_layout_layer layers[3] = {{.heads = 2, .key_dim = 2, .value_dim = 7, .key_order = order},
                                        {.heads = 2, .key_dim = 2, .value_dim = 7, .bits = bits},
                                        {.heads = 2, .key_dim = 2, .value_dim = 7}};
    ebb_layout *layout, *back;
    ebb_error error;
    must(ebb_layout_new("leap-mix", 0, layers, 3, &layout, &error), &error);
    must(ebb_layout_write(path, layout, NULL, 0, &error), &error);
    must(ebb_layout_read(path, &back, &error), &error);
    same_layout(layout, back);
    ebb_layout_free(layout), ebb_layout_free(back);
}

static void test_refused_writes(void **state) {
    fixture *f = *state;
    const char *path = path_of(f, "a.safetensors");
    ebb_layout *layout = new_layout("damp", 1);
    ebb_error error;
    const ebb_layout_note taken = {"method", "x"}, layer = {"layer.9", "x"}, binary = {"note", "\xff"},
                          twice[2] = {{"a", "1"}, {"a", "2"}};
    assert_int_equal(ebb_layout_write(path, layout, &taken, 1, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "'method'"));
    assert_int_equal(ebb_layout_write(path, layout, &layer, 1, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_layout_write(path, layout, twice, 2, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_layout_write(path, layout, &binary, 1, &error), EBB_BAD_ARGUMENT);
    assert_int_equal(ebb_layout_write(path, NULL, NULL, 0, &error), EBB_BAD_ARGUMENT);
    assert_false(file_exists(path));
    assert_int_equal(ebb_layout_write(path_of(f, "no/a.safetensors"), layout, NULL, 0, &error), EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "no/a.safetensors"));
    ebb_layout_free(layout);
}

/* ---- hostile files ---- */

static void write_bytes(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

/* A file of this header and 64 bytes of data that begin with two permutations of 2 and an FP32 1.0. */
static void write_file(const char *path, const char *header, size_t data) {
    uint8_t file[4096] = {0};
    const uint16_t order[4] = {0, 1, 1, 0};
    const float one = 1;
    const size_t n = strlen(header);
    assert_true(n + 8 + data <= sizeof file);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(n >> 8 * i);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, order, sizeof order), memcpy(file + 16 + n, &one, sizeof one);
    write_bytes(path, file, 8 + n + data);
}

static void refused(const char *path, int status, const char *words) {
    ebb_layout *layout = NULL;
    ebb_error error = {EBB_OK, ""};
    const ebb_status got = ebb_layout_read(path, &layout, &error);
    if (got != (ebb_status)status) fail_msg("%s, expected %s: %s", ebb_status_name(got), words, error.text);
    assert_null(layout);
    if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
}

#define META \
    "\"format\":\"ebb-layout\",\"version\":\"1\",\"method\":\"damp\",\"model\":\"0000000000000007\",\"layers\":\"1\""
#define ONE ",\"layer.0\":\"heads=2 key_dim=2 value_dim=1\""
#define HEADER(meta, tensors) "{\"__metadata__\":{" meta "}" tensors "}"
#define ORDER(name, dtype, shape, end) \
    ",\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[0," end "]}"
#define GOOD ORDER("layer.0.key_order", "U16", "[2,2]", "8")

static void test_hostile(void **state) {
    fixture *f = *state;
    const char *path = path_of(f, "bad.safetensors");
    static const struct {
        const char *header;
        size_t data;
        int status;
        const char *words;
    } cases[] = {
        {"{}", 0, EBB_BAD_FILE, "no text 'format'"},
        {"{\"__metadata__\":7}", 0, EBB_BAD_FILE, "no text 'format'"},
        {HEADER("\"format\":\"pt\",\"version\":\"1\",\"method\":\"damp\",\"model\":\"7\",\"layers\":\"1\"", ""), 0,
         EBB_BAD_FILE, "format 'pt', expected 'ebb-layout'"},
        {HEADER("\"format\":\"ebb-layout\",\"version\":\"2\",\"method\":\"damp\",\"model\":\"7\",\"layers\":\"1\"", ""),
         0, EBB_UNSUPPORTED, "version 2"},
        {HEADER("\"format\":\"ebb-layout\",\"version\":\"1\",\"model\":\"7\",\"layers\":\"1\"", ""), 0, EBB_BAD_FILE,
         "no text 'method'"},
        {HEADER("\"format\":\"ebb-layout\",\"version\":\"1\",\"method\":\"damp\",\"model\":\"7\",\"layers\":\"1\"", ""),
         0, EBB_BAD_FILE, "model '7', expected a hash"},
        {HEADER("\"format\":\"ebb-layout\",\"version\":\"1\",\"method\":\"damp\",\"model\":\"0000000000000007\","
                "\"layers\":\"99999999999\"",
                ""),
         0, EBB_BAD_FILE, "layers '99999999999'"},
        {HEADER("\"format\":\"ebb-layout\",\"version\":\"1\",\"method\":\"damp\",\"model\":\"0000000000000007\","
                "\"layers\":\"0\"",
                ""),
         0, EBB_BAD_FILE, "layers '0'"},
        {HEADER(META, ""), 0, EBB_BAD_FILE, "no text 'layer.0'"},
        {HEADER(META ",\"layer.0\":\"heads=2 key_dim=2\"", ""), 0, EBB_BAD_FILE, "layer.0 is 'heads=2 key_dim=2'"},
        {HEADER(META ",\"layer.0\":\"heads=2 key_dim=2 value_dim=1 \"", ""), 0, EBB_BAD_FILE, "layer.0 is"},
        {HEADER(META ",\"layer.0\":\"heads=0 key_dim=2 value_dim=1\"", ""), 0, EBB_BAD_FILE, "not a state layer"},
        {HEADER(META ",\"layer.0\":\"heads=-2 key_dim=2 value_dim=1\"", ""), 0, EBB_BAD_FILE, "not a state layer"},
        {HEADER(META ",\"layer.0\":\"heads=65536 key_dim=2000 value_dim=1\"", ""), 0, EBB_BAD_FILE,
         "not a state layer"},
        {HEADER(META ONE, ORDER("layer.0.key_order", "I16", "[2,2]", "8")), 8, EBB_BAD_FILE, "dtype I16, expected U16"},
        {HEADER(META ONE, ORDER("layer.0.key_order", "U16", "[4]", "8")), 8, EBB_BAD_FILE, "shape of tensor"},
        {HEADER(META ONE, ORDER("layer.0.key_order", "U16", "[1,4]", "8")), 8, EBB_BAD_FILE, "shape of tensor"},
        {HEADER(META ONE, ORDER("layer.0.key_order", "U16", "[2,2,1]", "8")), 8, EBB_BAD_FILE, "shape of tensor"},
        {HEADER(META ONE, ORDER("layer.0.key_order", "U16", "[2,2]", "16")), 16, EBB_BAD_FILE, "data_offsets"},
        {HEADER(META ONE, ORDER("layer.0.value_order", "U16", "[2,1]", "4")), 4, EBB_BAD_FILE,
         "head 1: value_order[0] is 1"},
        {HEADER(META ONE, ORDER("layer.0.value_scale", "F32", "[2,1]", "8")), 8, EBB_BAD_FILE, "value_scale[0] is"},
        {HEADER(META ONE, ORDER("layer.0.bits", "U8", "[2]", "2")), 2, EBB_BAD_FILE, "head 0: 0 bits"},
        {HEADER(META ONE, ORDER("layer.1.key_order", "U16", "[2,2]", "8")), 8, EBB_BAD_FILE,
         "layer.1.key_order is no table"},
        {HEADER(META ONE, ORDER("layer.0.keys", "U16", "[2,2]", "8")), 8, EBB_BAD_FILE, "layer.0.keys is no table"},
        {HEADER(META ONE, GOOD), 7, EBB_BAD_FILE, "it is cut"},
        {HEADER(META ONE, GOOD), 9, EBB_BAD_FILE, "follow the last tensor"},
        {"{\"__metadata__\":", 0, EBB_BAD_FILE, "not JSON"},
        {"[]", 0, EBB_BAD_FILE, "not a JSON object"},
    };
    ebb_layout *layout = NULL;
    ebb_error error;
    write_file(path, HEADER(META ONE, GOOD), 8);
    must(ebb_layout_read(path, &layout, &error), &error); /* the cases differ from one that is read */
    assert_int_equal(ebb_layout_table(layout, 0, NULL)->key_order[2], 1);
    ebb_layout_free(layout);
    for (int i = 0; i < COUNT(cases); i++) {
        write_file(path, cases[i].header, cases[i].data);
        refused(path, cases[i].status, cases[i].words);
    }
    refused(path_of(f, "none.safetensors"), EBB_BAD_FILE, "none.safetensors");
    refused(f->folder, EBB_BAD_FILE, "not a regular file");
}

/* A good file, cut anywhere or with any byte changed: refused, or a layout that passed every check. */
static void test_damaged(void **state) {
    fixture *f = *state;
    const char *path = path_of(f, "a.safetensors"), *bad = path_of(f, "bad.safetensors");
    ebb_layout *layout = new_layout("damp", 3);
    ebb_error error;
    char *text;
    size_t bytes;
    must(ebb_layout_write(path, layout, NULL, 0, &error), &error);
    ebb_layout_free(layout);
    must(read_file(path, 1 << 20, &text, &bytes, &error), &error);
    for (size_t n = 0; n < bytes; n++) {
        write_bytes(bad, text, n);
        layout = NULL;
        assert_int_equal(ebb_layout_read(bad, &layout, &error), EBB_BAD_FILE);
        assert_null(layout);
    }
    for (size_t i = 0; i < bytes; i++) {
        text[i] ^= 0x15;
        write_bytes(bad, text, bytes);
        layout = NULL;
        const ebb_status status = ebb_layout_read(bad, &layout, &error);
        assert_int_equal(status != EBB_OK, layout == NULL);
        ebb_layout_free(layout);
        text[i] ^= 0x15;
    }
    free(text);
}

/* ---- the layout of a model ---- */

static void write_for(const ebb_model *model, const char *method, uint64_t hash, const char *path) {
    ebb_layout *layout;
    ebb_error error;
    must(default_layout(method, hash, ebb_model_state_layers(model), ebb_model_describe(model)->state_layers, &layout,
                        &error),
         &error);
    must(ebb_layout_write(path, layout, NULL, 0, &error), &error);
    ebb_layout_free(layout);
}

static ebb_status find(const ebb_model *model, const char *method, const char *path, ebb_error *error) {
    ebb_state_spec spec;
    ebb_layout *layout = NULL;
    must(ebb_state_parse(method, &spec, error), error);
    const ebb_status status = ebb_model_layout(model, spec.method, path, &layout, error);
    assert_int_equal(layout != NULL, status == EBB_OK && ebb_state_layout_name(spec.method));
    ebb_layout_free(layout);
    return status;
}

static void says(ebb_status got, ebb_status status, const ebb_error *error, const char *words) {
    assert_int_equal(got, status);
    if (!strstr(error->text, words)) fail_msg("'%s' does not say '%s'", error->text, words);
}

static void test_model(void **state) {
    fixture *f = *state;
    ebb_error error;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    const uint64_t hash = ebb_model_describe(model)->hash;
    const char *other = path_of(f, "b.safetensors"), *own = path_of(f, "layouts/damp.safetensors");
    says(find(model, "damp-w", NULL, &error), EBB_UNSUPPORTED, &error, "`ebb calibrate --method damp`");
    assert_non_null(strstr(error.text, "damp-w"));
    assert_int_equal(mkdir(path_of(f, "layouts"), 0777), 0);
    write_for(model, "damp", hash, own);
    must(find(model, "damp-w", NULL, &error), &error);
    must(find(model, "damp:rows=3", own, &error), &error);
    must(find(model, "int8", NULL, &error), &error);
    says(find(model, "damp-reorder", NULL, &error), EBB_UNSUPPORTED, &error, "--method damp-reorder`");
    says(find(model, "int8-reorder", own, &error), EBB_BAD_ARGUMENT, &error,
         "for method damp, expected one for damp-reorder");
    says(find(model, "int8", own, &error), EBB_BAD_ARGUMENT, &error, "int8 needs no layout");
    says(find(model, "damp", path_of(f, "none"), &error), EBB_BAD_FILE, &error, "none");
    write_for(model, "damp", hash ^ 1, other);
    says(find(model, "damp", other, &error), EBB_BAD_ARGUMENT, &error, "expected one of this model");
    write_for(model, "damp", 0, other); /* of no model in particular */
    must(find(model, "damp", other, &error), &error);
    ebb_model_close(model);
}

static void answer(ebb_model *model, const char *method, const char *layout, int32_t ids[static 20]) {
    const ebb_engine_config config = {.size = sizeof config, .state = method, .layout = layout, .max_tokens = 64};
    ebb_engine *engine;
    ebb_error error;
    int32_t id, prompt[16];
    for (int32_t i = 0; i < COUNT(prompt); i++) prompt[i] = (i * 7 + 3) % 50;
    must(ebb_engine_open(model, &config, &engine, &error), &error);
    must(ebb_sequence_open(engine, &EBB_GREEDY, &id, &error), &error);
    must(ebb_sequence_append(engine, id, prompt, COUNT(prompt), &error), &error);
    must(ebb_engine_prefill(engine, &error), &error);
    for (int32_t i = 0; i < 20; i++) {
        ids[i] = ebb_sequence_token(engine, id);
        must(ebb_engine_step(engine, &id, 1, &error), &error);
    }
    ebb_engine_close(engine);
}

/* Engines take the layout of the model's folder, or the one given; all rows protected are FP16, whatever the order. */
static void test_engine(void **state) {
    fixture *f = *state;
    ebb_error error;
    ebb_engine *engine = NULL;
    int32_t a[20], b[20];
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    const char *own = path_of(f, "layouts/damp.safetensors"), *second = path_of(f, "b.safetensors");
    ebb_engine_config config = {.size = sizeof config, .state = "damp", .max_tokens = 64};
    says(ebb_engine_open(model, &config, &engine, &error), EBB_UNSUPPORTED, &error, "needs a calibrated layout");
    assert_int_equal(mkdir(path_of(f, "layouts"), 0777), 0);
    write_for(model, "damp", ebb_model_describe(model)->hash, own);
    answer(model, "damp:rows=128", NULL, a);
    answer(model, "fp16", NULL, b);
    assert_memory_equal(a, b, sizeof a);
    answer(model, "damp:rows=3", NULL, a);
    write_for(model, "damp-reorder", 0, second);
    answer(model, "damp-reorder:rows=3", second, a);
    config.layout = second;
    says(ebb_engine_open(model, &config, &engine, &error), EBB_BAD_ARGUMENT, &error, "for method damp-reorder");
    config.state = "leap8";
    says(ebb_engine_open(model, &config, &engine, &error), EBB_BAD_ARGUMENT, &error, "leap8 needs no layout");
    ebb_model_close(model);
}

/* Drift: each calibrated method takes the file made for it, else its own; a file for none of them is refused. */
static void test_drift(void **state) {
    fixture *f = *state;
    ebb_error error;
    ebb_drift *drift = NULL;
    int32_t ids[40];
    for (int32_t i = 0; i < COUNT(ids); i++) ids[i] = (i * 5 + 1) % 50;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    const char *own = path_of(f, "layouts/damp.safetensors"), *given = path_of(f, "b.safetensors");
    static const char *const methods[] = {"damp:rows=4", "int8", "int8-reorder-w"};
    ebb_drift_config config = {
        .size = sizeof config, .methods = methods, .n_methods = 3, .ids = ids, .tokens = COUNT(ids), .layout = given};
    assert_int_equal(mkdir(path_of(f, "layouts"), 0777), 0);
    write_for(model, "damp", ebb_model_describe(model)->hash, own);
    write_for(model, "damp-reorder", 0, given);
    must(ebb_drift_run(model, &config, &drift, &error), &error);
    for (int32_t m = 0; m < 3; m++) {
        ebb_drift_summary s;
        ebb_drift_summarize(drift, drift->points - 1, m, 0, drift->heads, &s);
        assert_true(s.state_rms > 0 && s.state_rms < .05);
    }
    ebb_drift_free(drift);
    config.n_methods = 2;
    says(ebb_drift_run(model, &config, &drift, &error), EBB_BAD_ARGUMENT, &error, "not among those measured");
    ebb_model_close(model);
}

static int leave(void **state) {
    fixture *f = *state;
    static const char *const names[] = {"a.safetensors", "b.safetensors", "bad.safetensors",
                                        "layouts/damp.safetensors"};
    for (int i = 0; i < COUNT(names); i++) toy_remove(f->folder, names[i]);
    rmdir(path_of(f, "layouts"));
    return teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, leave),
        cmocka_unit_test_setup_teardown(test_some_tables, setup, leave),
        cmocka_unit_test_setup_teardown(test_refused_writes, setup, leave),
        cmocka_unit_test_setup_teardown(test_hostile, setup, leave),
        cmocka_unit_test_setup_teardown(test_damaged, setup, leave),
        cmocka_unit_test_setup_teardown(test_model, setup, leave),
        cmocka_unit_test_setup_teardown(test_engine, setup, leave),
        cmocka_unit_test_setup_teardown(test_drift, setup, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
