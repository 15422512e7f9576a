/* tests/test_info.c: every size that `ebb info` prints is that of a pool opened here, for the bundled model and for one
 * of odd dimensions; and what it says of a model is what the library says. */
#include "state/layout.h"
#include "toy_session.h"

#include "info_program.h"

static json_t *info_of(const char *folder, const char *options) {
    char arguments[400], *text = malloc(ROOM);
    assert_non_null(text);
    snprintf(arguments, sizeof arguments, "-m %s --json %s", folder, options);
    if (run(arguments, text) != 0) fail_msg("%s: %s", arguments, text);
    json_t *info = json_loads(text, 0, NULL);
    if (!info) fail_msg("%s: no JSON: %s", arguments, text);
    free(text);
    return info;
}

static int64_t number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("no number '%s'", key);
    return json_integer_value(value);
}

static const char *word(const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    if (!value) fail_msg("no text '%s'", key);
    return value;
}

/* ---- sizes ---- */

/* Of a calibrated method: the model's own or, where it has none, one that changes nothing. */
static ebb_layout *layout_of(const ebb_model *model, ebb_state_spec *spec) {
    ebb_layout *layout = NULL;
    ebb_error error;
    ebb_status status = ebb_model_layout(model, spec->method, NULL, &layout, &error);
    if (status == EBB_UNSUPPORTED)
        status = layout_identity("any", ebb_model_state_layers(model), ebb_model_describe(model)->state_layers, &layout,
                                 &error);
    must(status, &error);
    spec->layout = layout;
    return layout;
}

static void compare_state(ebb_model *model, const json_t *row, int32_t max_new) {
    ebb_error error;
    ebb_state_spec spec;
    ebb_state_pool *pool = NULL;
    must(ebb_state_parse(word(row, "method"), &spec, &error), &error);
    ebb_layout *layout = layout_of(model, &spec);
    const ebb_state_pool_config config = {.size = sizeof config,
                                          .spec = &spec,
                                          .layers = ebb_model_state_layers(model),
                                          .n_layers = ebb_model_describe(model)->state_layers,
                                          .slots = 3,
                                          .max_new = max_new};
    ebb_status status = ebb_state_pool_open(ebb_model_device(model), &config, &pool, &error);
    if (json_object_get(row, "refused")) {
        assert_int_not_equal(status, EBB_OK);
        assert_string_equal(word(row, "refused"), error.text);
        ebb_layout_free(layout);
        return;
    }
    must(status, &error);
    size_t packed, live, conv = 0;
    ebb_state_pool_slot_bytes(pool, &packed, &live);
    for (int32_t l = 0; l < config.n_layers; l++) {
        const ebb_state_view *v = ebb_state_pool_view(pool, l);
        conv += (size_t)v->conv_ring * (size_t)ebb_state_conv_channels(v->layer) * sizeof(float);
    }
    assert_int_equal(number(row, "packed_bytes"), packed);
    assert_int_equal(number(row, "live_bytes"), live);
    assert_int_equal(number(row, "conv_bytes"), conv);
    ebb_plan plan;
    must(ebb_delta_plan(ebb_model_device(model), ebb_state_pool_view(pool, 0), NULL, EBB_STAGES, 3, max_new, 512, &plan,
                        &error),
         &error);
    assert_non_null(strstr(word(row, "step"), plan.row_name));
    assert_non_null(strstr(word(row, "prefill"), plan.chunk_name));
    ebb_state_pool_close(pool);
    ebb_layout_free(layout);
}

/* tail: what a slot has before it has pages. */
static size_t kv_bytes(ebb_model *model, const ebb_kv_spec *spec, int64_t tokens, int32_t max_new, size_t *tail) {
    ebb_error error;
    ebb_prefill prefill;
    ebb_kv_pool *pool = NULL;
    const ebb_kv_pool_config config = {.size = sizeof config,
                                       .spec = spec,
                                       .layers = ebb_model_kv_layers(model),
                                       .n_layers = ebb_model_describe(model)->kv_layers,
                                       .slots = 2,
                                       .max_tokens = tokens,
                                       .max_new = max_new,
                                       .prefill = &prefill};
    must(ebb_kv_prefill(spec, &prefill, &error), &error);
    must(ebb_kv_pool_open(ebb_model_device(model), &config, &pool, &error), &error);
    *tail = ebb_kv_pool_slot_bytes(pool, 1);
    must(ebb_kv_pool_reserve(pool, 1, tokens, &error), &error);
    size_t bytes = ebb_kv_pool_slot_bytes(pool, 1);
    ebb_kv_pool_close(pool);
    return bytes;
}

/* `most`: the largest context is opened too. */
static void compare_kv(ebb_model *model, const json_t *row, int64_t ctx, int32_t max_new, bool most) {
    const ebb_model_info *about = ebb_model_describe(model);
    ebb_error error;
    ebb_kv_spec spec;
    size_t token = 0, tail, most_tail;
    must(ebb_kv_parse(word(row, "method"), &spec, &error), &error);
    if (!strcmp(word(row, "method"), "kvtuner")) {
        assert_non_null(strstr(word(row, "refused"), "--kv-bits FILE"));
        return;
    }
    assert_null(json_object_get(row, "refused"));
    for (int32_t l = 0; l < about->kv_layers; l++) {
        size_t bytes;
        must(ebb_kv_token_bytes(&spec, &ebb_model_kv_layers(model)[l], &bytes, &error), &error);
        token += bytes;
    }
    assert_int_equal(number(row, "token_bytes"), token);
    assert_int_equal(number(row, "context_bytes"), kv_bytes(model, &spec, ctx, max_new, &tail));
    assert_int_equal(number(row, "tail_bytes"), tail);
    if (most)
        assert_int_equal(number(row, "max_context_bytes"),
                         kv_bytes(model, &spec, about->max_position, max_new, &most_tail));
}

static void compare(ebb_model *model, const json_t *info, bool most) {
    const int64_t ctx = number(info, "context"), max_new = number(info, "max_new");
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(info, "state"), i, row) compare_state(model, row, (int32_t)max_new);
    json_array_foreach(json_object_get(info, "kv"), i, row) compare_kv(model, row, ctx, (int32_t)max_new, most);
}

static void all_methods_of_the_bundled_model(void **state) {
    (void)state;
    ebb_error error;
    ebb_device *device = NULL;
    ebb_model *model = NULL;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    must(ebb_model_open(device, SOURCE_DIR "/models/tiny-gdn", NULL, &model, &error), &error);
    json_t *info = info_of(SOURCE_DIR "/models/tiny-gdn", "");
    const ebb_model_info *about = ebb_model_describe(model);
    int32_t states, kvs;
    ebb_state_methods(&states);
    ebb_kv_methods(&kvs);
    assert_int_equal(json_array_size(json_object_get(info, "state")), states);
    assert_int_equal(json_array_size(json_object_get(info, "kv")), kvs);
    assert_int_equal(number(info, "context"), 4096);
    compare(model, info, false);

    assert_string_equal(word(info, "architecture"), about->architecture);
    assert_int_equal(number(info, "parameters"), about->parameters);
    assert_int_equal(number(info, "weight_bytes"), about->weight_bytes);
    assert_int_equal(number(info, "vocabulary"), about->vocab);
    assert_int_equal(number(info, "hidden"), about->hidden);
    assert_int_equal(number(info, "max_context"), about->max_position);
    const json_t *cpu = json_object_get(info, "cpu"), *tokenizer = json_object_get(info, "tokenizer");
    assert_string_equal(word(cpu, "gemm"), ebb_linear_row(device));
    assert_int_equal(number(cpu, "threads"), ebb_device_threads(device));
    assert_int_equal(number(tokenizer, "size"), ebb_tokenizer_size(ebb_model_tokenizer(model)));
    const json_t *stop = json_object_get(tokenizer, "stop");
    assert_int_equal(json_array_size(stop), about->n_stop);
    for (int32_t i = 0; i < about->n_stop; i++) {
        size_t bytes;
        const char *text = ebb_token_bytes(ebb_model_tokenizer(model), about->stop[i], &bytes);
        assert_int_equal(number(json_array_get(stop, (size_t)i), "id"), about->stop[i]);
        assert_memory_equal(word(json_array_get(stop, (size_t)i), "text"), text, bytes);
    }
    json_decref(info);
    ebb_model_close(model);
    ebb_device_close(device);
}

/* Odd dimensions, a context that is no multiple of a page, steps of several tokens, parameters. */
static void odd_model(void **state) {
    fixture *f = *state;
    toy_make(f->folder, &TOY);
    ebb_model *model = open_ok(f);
    json_t *info = info_of(f->folder, "--ctx 257 --max-new 7 --state leap8:r=2,p=32,int8:p=4,fp32 "
                                      "--kv bf16,hyquant:select=prompt");
    const json_t *states = json_object_get(info, "state"), *kvs = json_object_get(info, "kv");
    assert_int_equal(json_array_size(states), 3);
    assert_string_equal(word(json_array_get(states, 0), "method"), "leap8:r=2,p=32");
    assert_string_equal(word(json_array_get(states, 1), "method"), "int8:p=4");
    assert_int_equal(json_array_size(kvs), 2);
    assert_int_equal(number(info, "context"), 257);
    assert_int_equal(number(info, "max_new"), 7);
    compare(model, info, true);

    const json_t *layers = json_object_get(info, "layers");
    assert_int_equal(number(layers, "count"), TOY_LAYERS);
    assert_int_equal(json_array_size(json_object_get(layers, "state")), 1);
    const json_t *shape = json_array_get(json_object_get(layers, "state"), 0);
    assert_int_equal(number(shape, "count"), 2);
    assert_string_equal(word(shape, "kind"), "gdn");
    assert_int_equal(number(shape, "key_heads"), TOY_KEY_HEADS);
    assert_int_equal(number(shape, "value_heads"), TOY_HEADS);
    assert_int_equal(number(shape, "key_dim"), TOY_KEY_DIM);
    assert_int_equal(number(shape, "value_dim"), TOY_VALUE_DIM);
    assert_int_equal(number(shape, "conv_width"), TOY_CONV);
    shape = json_array_get(json_object_get(layers, "kv"), 0);
    assert_int_equal(number(shape, "count"), 2);
    assert_int_equal(number(shape, "query_heads"), TOY_Q_HEADS);
    assert_int_equal(number(shape, "kv_heads"), TOY_KV_HEADS);
    assert_int_equal(number(json_array_get(json_object_get(shape, "parts"), 1), "dims"), TOY_HEAD_DIM);
    json_decref(info);
    ebb_model_close(model);
}

/* The text has the numbers of the JSON. */
static void text_for_people(void **state) {
    fixture *f = *state;
    char arguments[160], expected[160], *text = malloc(ROOM);
    assert_non_null(text);
    toy_make(f->folder, &TOY);
    json_t *info = info_of(f->folder, "--state leap4 --kv fp16");
    const json_t *row = json_array_get(json_object_get(info, "state"), 0);
    snprintf(arguments, sizeof arguments, "-m %s --state leap4 --kv fp16", f->folder);
    assert_int_equal(run(arguments, text), 0);
    snprintf(expected, sizeof expected, "leap4     %12lld %12lld %12lld  %s", (long long)number(row, "packed_bytes"),
             (long long)number(row, "live_bytes"), (long long)number(row, "conv_bytes"), word(row, "step"));
    if (!strstr(text, expected)) fail_msg("no '%s' in:\n%s", expected, text);
    row = json_array_get(json_object_get(info, "kv"), 0);
    snprintf(expected, sizeof expected, "fp16      %12lld %12lld %12lld ", (long long)number(row, "token_bytes"),
             (long long)number(row, "tail_bytes"), (long long)number(row, "context_bytes"));
    if (!strstr(text, expected)) fail_msg("no '%s' in:\n%s", expected, text);
    if (!strstr(text, "2 with a recurrent state: gdn, 2 key heads of 16, 4 value heads of 24 (2 a key head)"))
        fail_msg("no line about the state layers in:\n%s", text);
    json_decref(info);
    free(text);
}

static void mistakes(void **state) {
    fixture *f = *state;
    static const struct {
        const char *options;
        int code;
        const char *says;
    } cases[] = {
        {"", 2, "-m DIR"},
        {"-m %s --state int3", 2, "--state: "},
        {"-m %s --state int8,,fp32", 2, "empty name"},
        {"-m %s --state int8:q=1", 2, "q"},
        {"-m %s --kv leap8", 2, "--kv: "},
        {"-m %s --ctx 0", 2, "--ctx 0"},
        {"-m %s --max-new 65", 2, "--max-new 65"},
        {"-m %s --ctx 4097", 1, "expected 1 to 4096"},
        {"-m %s/none", 1, "none"},
        {"-m %s stray", 2, "'stray'"},
    };
    char *text = malloc(ROOM);
    assert_non_null(text);
    toy_make(f->folder, &TOY);
    for (int32_t i = 0; i < COUNT(cases); i++) {
        char arguments[160];
        const char *at = strstr(cases[i].options, "%s"), *rest = at ? at + 2 : cases[i].options;
        snprintf(arguments, sizeof arguments, "%s%s%s", at ? "-m " : "", at ? f->folder : "", rest);
        int code = run(arguments, text);
        if (code != cases[i].code || !strstr(text, cases[i].says) || strchr(text, '\n') != text + strlen(text) - 1)
            fail_msg("'%s': exit code %d, expected %d and one line with '%s':\n%s", arguments, code, cases[i].code,
                     cases[i].says, text);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_methods_of_the_bundled_model),
        cmocka_unit_test(odd_model),
        cmocka_unit_test(text_for_people),
        cmocka_unit_test(mistakes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
