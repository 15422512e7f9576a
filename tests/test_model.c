/* tests/test_model.c: loading model folders: every sound variant is the same model, every broken one is refused by
 * name. */
#include "toy_session.h"

/* Opening the folder fails with `code` and a sentence that has `words` in it. */
static void refused(fixture *f, ebb_status code, const char *words) {
    ebb_error error = {0};
    ebb_model *model = NULL;
    ebb_status status = ebb_model_open(f->device, f->folder, NULL, &model, &error);
    if (status != code)
        fail_msg("%s '%s'; expected %s '%s'", ebb_status_name(status), error.text, ebb_status_name(code), words);
    assert_null(model);
    if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
}

static void every_variant_is_the_same_model(void **state) {
    fixture *f = *state;
    enum { N = 9 };
    static session base, s;
    const toy variants[] = {
        {.type = EBB_FP32, .prefix = "model.", .shards = 1},
        {.type = EBB_FP16, .prefix = "model.", .shards = 3},
        {.type = EBB_BF16, .prefix = "model.", .shards = 2, .nested = true},
        {.type = EBB_BF16, .prefix = "model.language_model.", .shards = 1, .nested = true, .vision = true},
        {.type = EBB_FP16, .prefix = "model.language_model.", .shards = 3, .vision = true},
        {.type = EBB_BF16, .prefix = "model.", .shards = 1, .field = "full_attention_interval", .value = "2"},
        {.type = EBB_BF16, .prefix = "model.", .shards = 1, .field = "output_gate_type", .value = "\"swish\""},
        {.type = EBB_BF16, .prefix = "model.", .shards = 1, .field = "rms_norm_eps"},
    };
    toy_make(f->folder, &TOY);
    session_open(&base, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    feed(&base, EBB_PREFILL, 0, 0, 0, N, base.logits);
    const ebb_model_info *info = ebb_model_describe(base.model);
    assert_int_equal(info->state_layers, 2);
    assert_int_equal(info->kv_layers, 2);
    assert_int_equal(info->max_position, 4096);
    assert_string_equal(info->architecture, "qwen3_5_text");
    for (int32_t i = 0; i < COUNT(variants); i++) {
        toy_make(f->folder, &variants[i]);
        session_open(&s, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
        feed(&s, EBB_PREFILL, 0, 0, 0, N, s.logits);
        same_bits(base.logits, s.logits, N);
        assert_int_equal(ebb_model_describe(s.model)->parameters, info->parameters);
        session_close(&s);
    }
    session_close(&base);
}

/* These are other models, which load and differ. */
static void untied_and_ungated(void **state) {
    fixture *f = *state;
    static session base, s;
    const toy variants[] = {{.type = EBB_BF16, .prefix = "model.", .shards = 1, .untied = true},
                            {.type = EBB_BF16, .prefix = "model.", .shards = 2, .ungated = true}};
    toy_make(f->folder, &TOY);
    session_open(&base, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    feed(&base, EBB_PREFILL, 0, 0, 0, 5, base.logits);
    for (int32_t i = 0; i < COUNT(variants); i++) {
        toy_make(f->folder, &variants[i]);
        session_open(&s, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
        feed(&s, EBB_PREFILL, 0, 0, 0, 5, s.logits);
        same_bits(s.logits, s.logits, 5);
        assert_memory_not_equal(base.logits, s.logits, 5 * TOY_VOCAB * sizeof(float));
        session_close(&s);
    }
    session_close(&base);
}

/* Older files have theta and the rotary part beside the other fields. */
static void flat_rope(void **state) {
    fixture *f = *state;
    static session base, s;
    char path[128];
    toy_make(f->folder, &TOY);
    session_open(&base, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    feed(&base, EBB_PREFILL, 0, 0, 0, 20, base.logits);
    snprintf(path, sizeof path, "%s/config.json", f->folder);
    json_t *c = json_load_file(path, 0, NULL);
    json_object_del(c, "rope_parameters");
    json_object_set_new(c, "rope_theta", json_integer(10000));
    json_object_set_new(c, "rope_scaling", json_null());
    toy_write_json(f->folder, "config.json", json_incref(c));
    session_open(&s, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    feed(&s, EBB_PREFILL, 0, 0, 0, 20, s.logits);
    same_bits(base.logits, s.logits, 20);
    session_close(&s);
    json_object_set_new(c, "partial_rotary_factor", json_real(0.5));
    toy_write_json(f->folder, "config.json", c);
    session_open(&s, f->device, open_ok(f), "fp32", "fp32", (ebb_tap){0});
    feed(&s, EBB_PREFILL, 0, 0, 0, 20, s.logits);
    assert_memory_not_equal(base.logits, s.logits, 20 * TOY_VOCAB * sizeof(float));
    session_close(&s);
    session_close(&base);
}

static void vision_gives_one_notice(void **state) {
    fixture *f = *state;
    toy_make(f->folder,
             &(toy){.type = EBB_BF16, .prefix = "model.language_model.", .shards = 2, .nested = true, .vision = true});
    ebb_model_close(open_ok(f));
    assert_int_equal(f->notices.n, 1);
    assert_string_equal(f->notices.last, "3 tensors skipped: 2 of vision, 1 of multi-token prediction");
    toy_make(f->folder, &TOY);
    ebb_model_close(open_ok(f));
    assert_int_equal(f->notices.n, 1);
}

static void every_field_broken_in_turn(void **state) {
    fixture *f = *state;
    static const struct {
        const char *field, *value;
        ebb_status code;
        const char *words;
    } bad[] = {
        {"model_type", "\"mamba\"", EBB_UNSUPPORTED,
         "model_type mamba is not served, expected one of qwen3_5_text, qwen3_5"},
        {"model_type", "7", EBB_BAD_FILE, "model_type is a number, expected a string"},
        {"vocab_size", NULL, EBB_BAD_FILE, "vocab_size is missing"},
        {"vocab_size", "0", EBB_BAD_FILE, "vocab_size is 0, expected 1 to 16777216"},
        {"vocab_size", "16777217", EBB_BAD_FILE, "vocab_size"},
        {"vocab_size", "65", EBB_BAD_FILE, "embed_tokens.weight has shape [64, 32]; config.json makes it [65, 32]"},
        {"hidden_size", "\"32\"", EBB_BAD_FILE, "hidden_size is a string, expected a whole number"},
        {"hidden_size", "31.5", EBB_BAD_FILE, "hidden_size"},
        {"hidden_size", "4398046511105", EBB_BAD_FILE, "hidden_size is 4398046511105, expected 1 to 65536"},
        {"hidden_size", "64", EBB_BAD_FILE, "embed_tokens.weight has shape"},
        {"intermediate_size", "-48", EBB_BAD_FILE, "intermediate_size is -48"},
        {"intermediate_size", "47", EBB_BAD_FILE,
         "mlp.gate_proj.weight has shape [48, 32]; config.json makes it [47, 32]"},
        {"num_hidden_layers", "0", EBB_BAD_FILE, "num_hidden_layers is 0, expected 1 to 1024"},
        {"num_hidden_layers", "1025", EBB_BAD_FILE, "num_hidden_layers is 1025"},
        {"num_hidden_layers", "5", EBB_BAD_FILE, "layer_types has 4 entries, expected num_hidden_layers = 5"},
        {"num_attention_heads", "0", EBB_BAD_FILE, "num_attention_heads is 0"},
        {"num_attention_heads", "3", EBB_BAD_FILE,
         "num_attention_heads is 3, expected a multiple of num_key_value_heads = 2"},
        {"num_attention_heads", "6", EBB_BAD_FILE, "self_attn.q_proj.weight has shape"},
        {"num_key_value_heads", "0", EBB_BAD_FILE, "num_key_value_heads is 0"},
        {"head_dim", "514", EBB_BAD_FILE, "head_dim is 514, expected 1 to 512"},
        {"head_dim", "15", EBB_BAD_FILE, "head_dim is 15, expected an even number"},
        {"head_dim", "4", EBB_BAD_FILE, "partial_rotary_factor 0.25 of head_dim 4 is 1 dimensions"},
        {"linear_num_key_heads", "3", EBB_BAD_FILE,
         "linear_num_value_heads is 4, expected a multiple of linear_num_key_heads = 3"},
        {"linear_num_value_heads", "0", EBB_BAD_FILE, "linear_num_value_heads is 0"},
        {"linear_key_head_dim", "513", EBB_BAD_FILE, "linear_key_head_dim is 513, expected 1 to 512"},
        {"linear_value_head_dim", "null", EBB_BAD_FILE, "linear_value_head_dim is null"},
        {"linear_conv_kernel_dim", "9", EBB_BAD_FILE, "linear_conv_kernel_dim is 9, expected 1 to 8"},
        {"linear_conv_kernel_dim", "3", EBB_BAD_FILE,
         "conv1d.weight has shape [160, 1, 4]; config.json makes it [160, 1, 3]"},
        {"rms_norm_eps", "0", EBB_BAD_FILE, "rms_norm_eps is 0, expected above 0 and at most 1"},
        {"rms_norm_eps", "true", EBB_BAD_FILE, "rms_norm_eps is true or false, expected a number"},
        {"max_position_embeddings", "0", EBB_BAD_FILE, "max_position_embeddings is 0"},
        {"rope_parameters", "[]", EBB_BAD_FILE, "rope_parameters is an array, expected an object"},
        {"rope_parameters", NULL, EBB_BAD_FILE, "rope_theta is missing"},
        {"rope_parameters", "{\"rope_theta\":0}", EBB_BAD_FILE, "rope_parameters.rope_theta is 0"},
        {"rope_parameters", "{\"rope_theta\":1e4,\"rope_type\":\"yarn\"}", EBB_UNSUPPORTED,
         "has rope_type yarn, only default"},
        {"rope_parameters", "{\"rope_theta\":1e4,\"partial_rotary_factor\":2}", EBB_BAD_FILE,
         "partial_rotary_factor is 2"},
        {"hidden_act", "\"gelu\"", EBB_UNSUPPORTED, "hidden_act gelu, only silu is served"},
        {"attention_bias", "true", EBB_UNSUPPORTED, "attention_bias true, only false is served"},
        {"attention_bias", "1", EBB_BAD_FILE, "attention_bias is a number, expected true or false"},
        {"attn_output_gate", "false", EBB_BAD_FILE,
         "self_attn.q_proj.weight has shape [128, 32]; config.json makes it [64, 32]"},
        {"output_gate_type", "\"sigmoid\"", EBB_UNSUPPORTED, "output_gate_type sigmoid, only silu (swish) is served"},
        {"num_experts", "256", EBB_UNSUPPORTED, "num_experts 256: mixture-of-experts (MoE) layers are not served"},
        {"quantization_config", "{}", EBB_UNSUPPORTED, "quantization_config"},
        {"layer_types", "\"full_attention\"", EBB_BAD_FILE, "layer_types is a string, expected an array"},
        {"layer_types", "[1,2,3,4]", EBB_BAD_FILE, "layer_types[0] is not a string"},
        {"layer_types", "[\"linear_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]",
         EBB_UNSUPPORTED, "layer_types[2] is sliding_attention, only linear_attention and full_attention are served"},
        {"layer_types", NULL, EBB_BAD_FILE, "layers.1.linear_attn.in_proj_qkv.weight is missing"},
    };
    for (int32_t i = 0; i < 2 * COUNT(bad); i++) {
        toy t = TOY;
        t.nested = i >= COUNT(bad);
        t.field = bad[i % COUNT(bad)].field;
        t.value = bad[i % COUNT(bad)].value;
        toy_make(f->folder, &t);
        refused(f, bad[i % COUNT(bad)].code, bad[i % COUNT(bad)].words);
    }
}

static void every_file_missing_or_empty(void **state) {
    fixture *f = *state;
    static const char *const names[] = {"config.json", "tokenizer.json", "model.safetensors.index.json",
                                        "shard-1.safetensors"};
    toy t = TOY;
    t.shards = 2;
    for (int32_t i = 0; i < COUNT(names); i++) {
        toy_make(f->folder, &t);
        toy_write(f->folder, names[i], "", 0);
        refused(f, EBB_BAD_FILE, names[i]);
        toy_remove(f->folder, names[i]);
        refused(f, EBB_BAD_FILE, names[i]);
    }
    toy_make(f->folder, &t);
    toy_write(f->folder, "config.json", "{\"text_config\":{}}", strlen("{\"text_config\":{}}"));
    refused(f, EBB_BAD_FILE, "text_config.model_type is missing");
    toy_write(f->folder, "config.json", "{\"text_config\":3}", strlen("{\"text_config\":3}"));
    refused(f, EBB_BAD_FILE, "text_config is a number, expected an object");
    const char *foreign = "{\"model_type\":\"llava\",\"text_config\":{\"model_type\":\"qwen3_5_text\"}}";
    toy_write(f->folder, "config.json", foreign, strlen(foreign));
    refused(f, EBB_UNSUPPORTED, "model_type llava is not served");
}

static void every_tensor_broken_in_turn(void **state) {
    fixture *f = *state;
    toy t = TOY;
    toy_list all;
    toy_tensors(&all, &t);
    for (int32_t i = 0; i < all.n; i++) {
        const char *name = all.tensors[i].name;
        char words[160];
        t.omit = name;
        toy_make(f->folder, &t);
        snprintf(words, sizeof words, "tensor %s is missing from the checkpoint", name);
        refused(f, EBB_BAD_FILE, words);
        t.omit = NULL, t.reshape = name;
        toy_make(f->folder, &t);
        snprintf(words, sizeof words, "tensor %s has shape [", name);
        refused(f, EBB_BAD_FILE, words);
        t.reshape = NULL, t.retype = name;
        toy_make(f->folder, &t);
        snprintf(words, sizeof words, "tensor %s has dtype I8; BF16, F16 or F32 is expected", name);
        refused(f, EBB_UNSUPPORTED, words);
        t.retype = NULL;
    }
    t.extra = "model.layers.1.self_attn.q_proj.bias";
    toy_make(f->folder, &t);
    refused(f, EBB_UNSUPPORTED, "tensor model.layers.1.self_attn.q_proj.bias has no place in qwen3_5_text");
}

static void every_shard_cut(void **state) {
    fixture *f = *state;
    toy t = TOY;
    t.shards = 3;
    toy_make(f->folder, &t);
    for (int32_t i = 0; i < 3; i++) {
        char name[32], path[128];
        mapped_file whole;
        snprintf(name, sizeof name, "shard-%d.safetensors", i);
        snprintf(path, sizeof path, "%s/%s", f->folder, name);
        must(map_file(path, &whole, NULL), NULL);
        for (int32_t cut = 0; cut < 12; cut++) {
            size_t keep = cut < 2 ? (size_t)cut * 8 : whole.bytes - ((size_t)1 << (cut - 2));
            if (keep > whole.bytes) continue;
            uint8_t *copy = malloc(whole.bytes);
            assert_non_null(copy);
            memcpy(copy, whole.data, whole.bytes);
            toy_remove(f->folder, name); /* the mapped file stays whole */
            toy_write(f->folder, name, copy, keep);
            refused(f, EBB_BAD_FILE, name);
            toy_remove(f->folder, name);
            toy_write(f->folder, name, copy, whole.bytes);
            free(copy);
        }
        unmap_file(&whole);
    }
    ebb_model_close(open_ok(f));
}

typedef struct watch {
    int64_t calls, stop_at, last, total;
} watch;

static bool watch_report(void *ctx, const char *what, int64_t done, int64_t total) {
    watch *w = ctx;
    (void)what;
    assert_true(done > w->last && done <= total && total > 0);
    w->last = done;
    w->total = total;
    return ++w->calls != w->stop_at;
}

static void loading_can_be_stopped(void **state) {
    fixture *f = *state;
    watch w = {0};
    ebb_model *model;
    ebb_error error;
    toy_make(f->folder,
             &(toy){.type = EBB_BF16, .prefix = "model.language_model.", .shards = 2, .nested = true, .vision = true});
    must(ebb_model_open(f->device, f->folder, &(ebb_progress){&w, watch_report}, &model, &error), &error);
    assert_int_equal(w.last, w.total);
    ebb_model_close(model);
    for (int64_t stop = 1, n = w.calls; stop <= n; stop++) {
        w = (watch){.stop_at = stop};
        assert_int_equal(ebb_model_open(f->device, f->folder, &(ebb_progress){&w, watch_report}, &model, &error),
                         EBB_INTERRUPTED);
        assert_int_equal(w.calls, stop);
        assert_null(model);
    }
}

typedef struct bounded {
    int64_t left, live;
} bounded;

static void *bounded_alloc(void *ctx, size_t bytes, size_t align) {
    bounded *b = ctx;
    if (b->left-- <= 0) return NULL;
    b->live++;
    (void)align;
    return aligned_new(bytes);
}

static void bounded_free(void *ctx, void *block, size_t bytes) {
    bounded *b = ctx;
    (void)bytes;
    b->live--;
    free(block);
}

static void without_memory(void **state) {
    fixture *f = *state;
    bounded b = {0};
    ebb_device *device;
    ebb_model *model = NULL;
    ebb_error error;
    ebb_device_config config = {.size = sizeof config, .threads = 1, .memory = {&b, bounded_alloc, bounded_free}};
    toy_make(f->folder, &TOY);
    must(ebb_device_open("cpu", &config, &device, &error), &error);
    int64_t base = b.live;
    for (int64_t n = 0; n < 1000 && !model; n++) {
        b.left = n;
        ebb_status status = ebb_model_open(device, f->folder, NULL, &model, &error);
        if (status) {
            assert_int_equal(status, EBB_NO_MEMORY);
            assert_int_equal(b.live, base);
        }
    }
    assert_non_null(model);
    ebb_model_close(model);
    assert_int_equal(b.live, base);
    ebb_device_close(device);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_variant_is_the_same_model),
        TEST(untied_and_ungated),
        TEST(flat_rope),
        TEST(vision_gives_one_notice),
        TEST(every_field_broken_in_turn),
        TEST(every_file_missing_or_empty),
        TEST(every_tensor_broken_in_turn),
        TEST(every_shard_cut),
        TEST(loading_can_be_stopped),
        TEST(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
