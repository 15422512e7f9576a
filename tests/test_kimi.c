/* test_kimi.c: Kimi-Linear against the trainer's per-token step in FP32: tiny-kda on 16 prompts of 1 to 869 tokens, and
 * a small random model whose dimensions all differ. Logits and greedy answers, by prefill and token by token. Golden
 * data: data/make_kda_golden.py. */
#define _GNU_SOURCE
#include "core/core.h"
#include "ebb/ebb.h"
#include "format/float16.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "must.h"

#define TINY_KDA SOURCE_DIR "/models/tiny-kda"
#define RANDOM_KIMI SOURCE_DIR "/tests/data/random_kimi"

enum { SEQS = 16, PREFILL = 2 * EBB_GRID, CONTEXT = 1024 };

/* ---- golden data ---- */

typedef struct item {
    int64_t n, n_answer, n_logits, n_top;
    int32_t *ids, *answer, *top;
    double *logits, *top_logits;
} item;

static void item_read(const json_t *root, item *it) {
    const json_t *ids = json_object_get(root, "ids"), *answer = json_object_get(root, "answer"),
                 *logits = json_object_get(root, "logits"), *top = json_object_get(root, "top");
    *it = (item){.n = (int64_t)json_array_size(ids),
                 .n_answer = (int64_t)json_array_size(answer),
                 .n_logits = (int64_t)json_array_size(logits),
                 .n_top = (int64_t)json_array_size(top)};
    assert_true(it->n > 0 && it->n_answer > 0 && it->n_logits > 0 && it->n_top > 0);
    it->ids = calloc((size_t)it->n, sizeof *it->ids);
    it->answer = calloc((size_t)it->n_answer, sizeof *it->answer);
    it->logits = calloc((size_t)it->n_logits, sizeof *it->logits);
    it->top = calloc((size_t)it->n_top, sizeof *it->top);
    it->top_logits = calloc((size_t)it->n_top, sizeof *it->top_logits);
    for (int64_t i = 0; i < it->n; i++) it->ids[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    for (int64_t i = 0; i < it->n_answer; i++)
        it->answer[i] = (int32_t)json_integer_value(json_array_get(answer, (size_t)i));
    for (int64_t i = 0; i < it->n_logits; i++) it->logits[i] = json_number_value(json_array_get(logits, (size_t)i));
    for (int64_t i = 0; i < it->n_top; i++) {
        const json_t *pair = json_array_get(top, (size_t)i);
        it->top[i] = (int32_t)json_integer_value(json_array_get(pair, 0));
        it->top_logits[i] = json_number_value(json_array_get(pair, 1));
    }
}

static int32_t golden_read(const char *which, item items[SEQS]) {
    json_error_t why;
    json_t *root = json_load_file(SOURCE_DIR "/tests/data/kda_golden.json", 0, &why);
    if (!root) fail_msg("%s", why.text);
    const json_t *list = json_object_get(root, which);
    const int32_t n = (int32_t)json_array_size(list);
    assert_in_range(n, 10, SEQS);
    for (int32_t i = 0; i < n; i++) item_read(json_array_get(list, (size_t)i), &items[i]);
    json_decref(root);
    return n;
}

static void golden_free(item *items, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        free(items[i].ids), free(items[i].answer), free(items[i].logits), free(items[i].top), free(items[i].top_logits);
}

/* ---- a model over FP32 stores, one slot a prompt ---- */

typedef struct rig {
    ebb_device *device;
    ebb_model *model;
    const ebb_model_info *info;
    ebb_state_pool *state;
    ebb_kv_pool *kv;
    ebb_runner *runner;
    float *logits; /* [SEQS][vocab] */
} rig;

static void rig_open(rig *r, const char *folder, const char *rows, const char *state, const char *kv) {
    ebb_error error;
    ebb_state_spec state_spec;
    ebb_kv_spec kv_spec;
    const bool ref = rows && !strcmp(rows, "ref"); /* the linear layers too */
    ebb_device_config dc = {.size = sizeof dc, .features = ref ? EBB_CPU_NONE : 0};
    must(ebb_device_open("cpu", &dc, &r->device, &error), &error);
    must(ebb_model_open(r->device, folder, NULL, &r->model, &error), &error);
    must(ebb_state_parse(state, &state_spec, &error), &error);
    must(ebb_kv_parse(kv, &kv_spec, &error), &error);
    r->info = ebb_model_describe(r->model);
    ebb_state_pool_config sc = {.size = sizeof sc,
                                .spec = &state_spec,
                                .layers = ebb_model_state_layers(r->model),
                                .n_layers = r->info->state_layers,
                                .slots = SEQS,
                                .max_new = 1};
    ebb_kv_pool_config kc = {.size = sizeof kc,
                             .spec = &kv_spec,
                             .layers = ebb_model_kv_layers(r->model),
                             .n_layers = r->info->kv_layers,
                             .slots = SEQS,
                             .max_tokens = CONTEXT};
    must(ebb_state_pool_open(r->device, &sc, &r->state, &error), &error);
    must(ebb_kv_pool_open(r->device, &kc, &r->kv, &error), &error);
    for (int32_t i = 0; i < SEQS; i++) must(ebb_kv_pool_reserve(r->kv, i, CONTEXT, &error), &error);
    ebb_runner_config rc = {.size = sizeof rc,
                            .state = r->state,
                            .kv = r->kv,
                            .max_seqs = SEQS,
                            .max_new = 1,
                            .max_tokens = PREFILL,
                            .algorithm = rows};
    must(ebb_runner_open(r->model, &rc, &r->runner, &error), &error);
    r->logits = calloc((size_t)SEQS * (size_t)r->info->vocab, sizeof *r->logits);
}

static void rig_close(rig *r) {
    free(r->logits);
    ebb_runner_close(r->runner);
    ebb_kv_pool_close(r->kv);
    ebb_state_pool_close(r->state);
    ebb_model_close(r->model);
    ebb_device_close(r->device);
}

/* The prompt by prefill; logits of its last token. */
static void prefill(rig *r, int32_t slot, const item *it) {
    ebb_error error;
    for (int64_t pos = 0, n; pos < it->n; pos += n) {
        n = min_i64(PREFILL, it->n - pos);
        const ebb_batch b = {.seqs = 1, .tokens = n, .slot = &slot, .cu = (int32_t[]){0, (int32_t)n}, .pos = &pos};
        const bool last = pos + n == it->n;
        must(ebb_forward(r->runner, EBB_PREFILL, &b, it->ids + pos, (int64_t[]){n - 1}, last, r->logits, &error),
             &error);
    }
}

static int32_t argmax(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* ---- the comparison ---- */

static double far_off; /* the largest distance seen, in units of 1 + |logit| */

static bool near(double got, double want) {
    double off = fabs(got - want) / (1 + fabs(want));
    if (!(off <= far_off)) far_off = off;
    return off <= 1e-3;
}

static bool logits_near(const float *got, const item *it) {
    for (int64_t i = 0; i < it->n_logits; i++)
        if (!near((double)got[i], it->logits[i])) return false;
    for (int64_t i = 0; i < it->n_top; i++)
        if (!near((double)got[it->top[i]], it->top_logits[i])) return false;
    return true;
}

static void check(const item *it, int32_t index, const char *how, const float *logits) {
    if (!logits_near(logits, it))
        fail_msg("prompt %d of %lld tokens, %s: logits are %.3g off", index, (long long)it->n, how, far_off);
}

static void check_token(const item *it, int32_t index, const char *how, int64_t t, int32_t got) {
    if (got != it->answer[t])
        fail_msg("prompt %d of %lld tokens, %s: answer token %lld is %d, expected %d", index, (long long)it->n, how,
                 (long long)t, got, it->answer[t]);
}

/* All sequences at once, one token of each in a step: from position 0, or from the end of the prompts. Each step gives
 * the next token of the prompt, then those of the answer. */
static void by_steps(rig *r, const item *items, int32_t n, bool prompts, int64_t answers, const char *how) {
    ebb_error error;
    int64_t pos[SEQS], most = 0;
    for (int32_t i = 0; i < n; i++) {
        pos[i] = prompts ? 0 : items[i].n;
        most = max_i64(most, items[i].n + answers - 1);
    }
    for (int64_t step = 0; step < most; step++) {
        int32_t slot[SEQS], ids[SEQS], cu[SEQS + 1] = {0}, of[SEQS], live = 0;
        int64_t at[SEQS], want[SEQS];
        for (int32_t i = 0; i < n; i++) {
            if (pos[i] >= items[i].n + answers - 1) continue;
            slot[live] = of[live] = i;
            at[live] = pos[i];
            want[live] = live;
            ids[live] = pos[i] < items[i].n ? items[i].ids[pos[i]] : items[i].answer[pos[i] - items[i].n];
            live++;
            cu[live] = live;
        }
        const ebb_batch b = {.seqs = live, .tokens = live, .slot = slot, .cu = cu, .pos = at};
        must(ebb_forward(r->runner, EBB_STEP, &b, ids, want, live, r->logits, &error), &error);
        for (int32_t j = 0; j < live; j++) {
            const item *it = &items[of[j]];
            const float *logits = r->logits + (int64_t)j * r->info->vocab;
            const int64_t t = ++pos[of[j]] - it->n;
            if (t == 0) check(it, of[j], how, logits);
            if (t >= 0) check_token(it, of[j], how, t, argmax(logits, r->info->vocab));
        }
    }
}

static void against(const char *folder, const char *which, const char *rows, int64_t longest, int64_t answers) {
    rig r = {0};
    item items[SEQS];
    int32_t all = golden_read(which, items), n = 0;
    far_off = 0;
    rig_open(&r, folder, rows, "fp32", "fp32");
    for (int32_t i = 0; i < all; i++) { /* the short ones go first */
        if (items[i].n > longest) continue;
        item it = items[i];
        items[i] = items[n];
        items[n++] = it;
    }
    for (int32_t i = 0; i < n; i++) {
        prefill(&r, i, &items[i]);
        check(&items[i], i, "prefill", r.logits);
        check_token(&items[i], i, "prefill", 0, argmax(r.logits, r.info->vocab));
    }
    answers = min_i64(answers, items[0].n_answer);
    by_steps(&r, items, n, false, answers, "answer after prefill");
    by_steps(&r, items, n, true, answers, "token by token");
    print_message("%s, %s: %d prompts, logits at most %.2g (1 + |logit|) off\n", which, ebb_runner_rows(r.runner), n,
                  far_off);
    golden_free(items, all);
    rig_close(&r);
}

static void test_tiny_kda(void **state) {
    (void)state;
    against(TINY_KDA, "model", NULL, CONTEXT, 64);
    against(TINY_KDA, "model", "ref", 14, 4);
}

static void test_random_model(void **state) {
    (void)state;
    against(RANDOM_KIMI, "random", NULL, CONTEXT, 24);
    against(RANDOM_KIMI, "random", "ref", CONTEXT, 24);
}

/* ---- folders with something else in them ---- */

static const char *const file_names[] = {"config.json", "tokenizer.json", "model.safetensors"};

static void copy_file(const char *to, const char *name) {
    char from[512];
    snprintf(from, sizeof from, RANDOM_KIMI "/%s", name);
    mapped_file f;
    ebb_error error;
    must(map_file(from, &f, &error), &error);
    snprintf(from, sizeof from, "%s/%s", to, name);
    FILE *out = fopen(from, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(f.data, 1, f.bytes, out), f.bytes);
    assert_int_equal(fclose(out), 0);
    unmap_file(&f);
}

static int setup(void **state) {
    char *folder = strdup("/tmp/ebb-test-XXXXXX");
    if (!folder || !mkdtemp(folder)) return -1;
    for (int32_t i = 0; i < COUNT(file_names); i++) copy_file(folder, file_names[i]);
    *state = folder;
    return 0;
}

static int teardown(void **state) {
    char path[512];
    for (int32_t i = 0; i < COUNT(file_names); i++) {
        snprintf(path, sizeof path, "%s/%s", (char *)*state, file_names[i]);
        unlink(path);
    }
    rmdir(*state);
    free(*state);
    return 0;
}

/* Where the data of a tensor begins in the safetensors file, and its type and elements. */
static size_t tensor_at(json_t *header, size_t begin, const char *name, bool *fp32, size_t *n) {
    const json_t *t = json_object_get(header, name), *at = json_object_get(t, "data_offsets");
    if (!t) fail_msg("no tensor %s", name);
    *fp32 = !strcmp(json_string_value(json_object_get(t, "dtype")), "F32");
    size_t first = (size_t)json_integer_value(json_array_get(at, 0)),
           end = (size_t)json_integer_value(json_array_get(at, 1));
    *n = (end - first) / (*fp32 ? 4 : 2);
    return begin + first;
}

/* Write the model with every element of one tensor a little larger. */
static void perturb(const char *folder, const char *name) {
    mapped_file f;
    ebb_error error;
    char path[512];
    must(map_file(RANDOM_KIMI "/model.safetensors", &f, &error), &error);
    uint8_t *data = malloc(f.bytes);
    assert_non_null(data);
    memcpy(data, f.data, f.bytes);
    size_t length = 0, n;
    for (int i = 7; i >= 0; i--) length = length << 8 | data[i];
    json_t *header = json_loadb((const char *)data + 8, length, 0, NULL);
    bool fp32;
    uint8_t *at = data + tensor_at(header, 8 + length, name, &fp32, &n);
    for (size_t i = 0; i < n; i++, at += fp32 ? 4 : 2) {
        uint32_t bits = 0;
        float x;
        memcpy(fp32 ? (void *)&bits : (void *)((uint8_t *)&bits + 2), at, fp32 ? 4 : 2);
        memcpy(&x, &bits, sizeof x);
        x = x * 1.0625f + 0.03125f * (float)(i % 3);
        uint16_t half = float_to_bf16(x);
        memcpy(at, fp32 ? (void *)&x : (void *)&half, fp32 ? 4 : 2);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, f.bytes, out), f.bytes);
    assert_int_equal(fclose(out), 0);
    json_decref(header);
    free(data);
    unmap_file(&f);
}

/* Every kind of tensor counts: when one changes, the logits no longer fit. */
static void test_every_tensor_counts(void **state) {
    static const char *const names[] = {"model.embed_tokens.weight",
                                        "lm_head.weight",
                                        "model.norm.weight",
                                        "model.layers.0.input_layernorm.weight",
                                        "model.layers.1.post_attention_layernorm.weight",
                                        "model.layers.2.mlp.gate_proj.weight",
                                        "model.layers.2.mlp.up_proj.weight",
                                        "model.layers.2.mlp.down_proj.weight",
                                        "model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.0.self_attn.k_proj.weight",
                                        "model.layers.0.self_attn.v_proj.weight",
                                        "model.layers.0.self_attn.b_proj.weight",
                                        "model.layers.0.self_attn.f_a_proj.weight",
                                        "model.layers.0.self_attn.f_b_proj.weight",
                                        "model.layers.0.self_attn.g_a_proj.weight",
                                        "model.layers.0.self_attn.g_b_proj.weight",
                                        "model.layers.2.self_attn.q_conv1d.weight",
                                        "model.layers.2.self_attn.k_conv1d.weight",
                                        "model.layers.2.self_attn.v_conv1d.weight",
                                        "model.layers.2.self_attn.A_log",
                                        "model.layers.0.self_attn.A_log",
                                        "model.layers.2.self_attn.dt_bias",
                                        "model.layers.2.self_attn.o_norm.weight",
                                        "model.layers.2.self_attn.o_proj.weight",
                                        "model.layers.1.self_attn.q_proj.weight",
                                        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
                                        "model.layers.1.self_attn.kv_a_layernorm.weight",
                                        "model.layers.1.self_attn.kv_b_proj.weight",
                                        "model.layers.3.self_attn.kv_b_proj.weight",
                                        "model.layers.3.self_attn.o_proj.weight"};
    item items[SEQS];
    int32_t n = golden_read("random", items), at = 0;
    while (items[at].n < 60) at++;
    far_off = 0;
    for (int32_t i = -1; i < COUNT(names); i++) {
        rig r = {0};
        if (i >= 0) perturb(*state, names[i]);
        rig_open(&r, *state, NULL, "fp32", "fp32");
        prefill(&r, 0, &items[at]);
        if (logits_near(r.logits, &items[at]) != (i < 0))
            fail_msg("%s: logits %s", i < 0 ? "the model as it is" : names[i], i < 0 ? "differ" : "do not change");
        rig_close(&r);
    }
    golden_free(items, n);
}

/* ---- config.json ---- */

static void write_config(const char *folder, const char *field, const char *value, bool linear) {
    char path[512];
    json_t *c = json_load_file(RANDOM_KIMI "/config.json", 0, NULL);
    json_t *at = linear ? json_object_get(c, "linear_attn_config") : c;
    if (value) json_object_set_new(at, field, json_loads(value, JSON_DECODE_ANY, NULL));
    else json_object_del(at, field);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(json_dump_file(c, path, 0), 0);
    json_decref(c);
}

static void test_config(void **state) {
    static const struct {
        const char *field, *value;
        bool linear;
        ebb_status code;
        const char *words;
    } bad[] = {
        {"vocab_size", NULL, false, EBB_BAD_FILE, "vocab_size is missing"},
        {"vocab_size", "255", false, EBB_BAD_FILE, "embed_tokens.weight has shape [256, 24]"},
        {"hidden_size", "\"24\"", false, EBB_BAD_FILE, "hidden_size is a string, expected a whole number"},
        {"intermediate_size", "0", false, EBB_BAD_FILE, "intermediate_size is 0, expected 1 to"},
        {"num_hidden_layers", "1025", false, EBB_BAD_FILE, "num_hidden_layers is 1025, expected 1 to 1024"},
        {"num_hidden_layers", "3", false, EBB_BAD_FILE, "full_attn_layers[1] is 4, expected a layer, 1 to"},
        {"num_hidden_layers", "5", false, EBB_BAD_FILE, "names layer 5 neither in kda_layers nor in full_attn_layers"},
        {"num_attention_heads", "3", false, EBB_BAD_FILE, "num_key_value_heads is 2, expected num_attention_heads = 3"},
        {"num_key_value_heads", "1", false, EBB_BAD_FILE, "num_key_value_heads is 1, expected num_attention_heads = 2"},
        {"kv_lora_rank", "513", false, EBB_BAD_FILE, "kv_lora_rank is 513, expected 1 to 512"},
        {"kv_lora_rank", "32", false, EBB_BAD_FILE, "kv_a_proj_with_mqa.weight has shape"},
        {"kv_lora_rank", "null", false, EBB_BAD_FILE, "kv_lora_rank is null"},
        {"qk_nope_head_dim", "21", false, EBB_BAD_FILE, "self_attn.q_proj.weight has shape"},
        {"qk_rope_head_dim", "true", false, EBB_BAD_FILE, "qk_rope_head_dim is true or false"},
        {"v_head_dim", "13", false, EBB_BAD_FILE, "has shape"},
        {"q_lora_rank", "64", false, EBB_UNSUPPORTED, "has a q_lora_rank, only null"},
        {"mla_use_nope", "false", false, EBB_UNSUPPORTED, "has mla_use_nope false, only true"},
        {"mla_use_nope", NULL, false, EBB_BAD_FILE, "mla_use_nope is missing"},
        {"mla_use_nope", "1", false, EBB_BAD_FILE, "mla_use_nope is a number, expected true or false"},
        {"hidden_act", "\"gelu\"", false, EBB_UNSUPPORTED, "has hidden_act gelu, only silu is served"},
        {"rms_norm_eps", "-1", false, EBB_BAD_FILE, "rms_norm_eps is -1"},
        {"model_max_length", "0", false, EBB_BAD_FILE, "model_max_length is 0"},
        {"quantization_config", "{}", false, EBB_UNSUPPORTED, "has a quantization_config"},
        {"first_k_dense_replace", "-1", false, EBB_BAD_FILE, "first_k_dense_replace is -1"},
        {"num_experts", "-3", false, EBB_BAD_FILE, "num_experts is -3"},
        {"linear_attn_config", NULL, false, EBB_BAD_FILE, "linear_attn_config is missing"},
        {"linear_attn_config", "[]", false, EBB_BAD_FILE, "linear_attn_config is an array, expected an object"},
        {"num_heads", "0", true, EBB_BAD_FILE, "linear_attn_config.num_heads is 0"},
        {"num_heads", "4", true, EBB_BAD_FILE, "self_attn.q_proj.weight has shape [48, 24]; config.json makes it [64"},
        {"head_dim", "513", true, EBB_BAD_FILE, "linear_attn_config.head_dim is 513, expected 1 to 512"},
        {"short_conv_kernel_size", "4", true, EBB_BAD_FILE, "q_conv1d.weight has shape [48, 1, 3]"},
        {"short_conv_kernel_size", "9", true, EBB_BAD_FILE, "short_conv_kernel_size is 9, expected 1 to 8"},
        {"kda_layers", NULL, true, EBB_BAD_FILE, "kda_layers is missing"},
        {"kda_layers", "3", true, EBB_BAD_FILE, "kda_layers is a number, expected an array"},
        {"kda_layers", "[1]", true, EBB_BAD_FILE, "names layer 3 neither"},
        {"kda_layers", "[0,1,3]", true, EBB_BAD_FILE, "kda_layers[0] is 0, expected a layer, 1 to"},
        {"kda_layers", "[1,3,4]", true, EBB_BAD_FILE, "full_attn_layers[1] is 4 again"},
        {"kda_layers", "[1,3,3.5]", true, EBB_BAD_FILE, "kda_layers[2] is not a whole number"},
        {"full_attn_layers", "[2,2]", true, EBB_BAD_FILE, "full_attn_layers[1] is 2 again"},
        {"gate_lower_bound", "-5", true, EBB_UNSUPPORTED, "has a gate_lower_bound"},
    };
    ebb_device *device;
    ebb_error error;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    for (int32_t i = 0; i < COUNT(bad); i++) {
        ebb_model *model = NULL;
        write_config(*state, bad[i].field, bad[i].value, bad[i].linear);
        error.text[0] = '\0';
        ebb_status status = ebb_model_open(device, *state, NULL, &model, &error);
        if (status != bad[i].code || !strstr(error.text, bad[i].words))
            fail_msg("%s = %s: %s '%s'; expected %s '%s'", bad[i].field, bad[i].value ? bad[i].value : "(none)",
                     ebb_status_name(status), error.text, ebb_status_name(bad[i].code), bad[i].words);
        assert_null(model);
    }
    ebb_device_close(device);
}

static void test_experts(void **state) {
    char path[512];
    ebb_device *device;
    ebb_model *model = NULL;
    ebb_error error;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    snprintf(path, sizeof path, "%s/config.json", (char *)*state);
    json_t *c = json_load_file(RANDOM_KIMI "/config.json", 0, NULL);
    json_object_set_new(c, "num_experts", json_integer(8));
    assert_int_equal(json_dump_file(c, path, 0), 0); /* all layers are below first_k_dense_replace */
    must(ebb_model_open(device, *state, NULL, &model, &error), &error);
    assert_string_equal(ebb_model_describe(model)->architecture, "kimi_linear");
    assert_int_equal(ebb_model_describe(model)->state_layers, 2);
    assert_int_equal(ebb_model_describe(model)->kv_layers, 2);
    ebb_model_close(model);
    json_object_set_new(c, "first_k_dense_replace", json_integer(1));
    assert_int_equal(json_dump_file(c, path, 0), 0);
    assert_int_equal(ebb_model_open(device, *state, NULL, &model, &error), EBB_BAD_FILE);
    assert_non_null(strstr(error.text, "num_experts_per_token is missing"));
    json_decref(c);
    ebb_device_close(device);
}

/* ---- low-bit stores, and the taps ---- */

static void on_tap(void *ctx, int32_t layer, ebb_tap_point point, ebb_tensor *t) {
    int64_t *width = ctx;
    if (point == EBB_TAP_QKV) width[2 * layer] = t->shape[1];
    if (point == EBB_TAP_MIXER_OUT) width[2 * layer + 1] = t->shape[1];
}

static void test_taps_and_bytes(void **state) {
    (void)state;
    rig r = {0};
    ebb_error error;
    ebb_kv_spec spec;
    size_t bytes;
    rig_open(&r, RANDOM_KIMI, NULL, "fp32", "bf16");
    must(ebb_kv_parse("bf16", &spec, &error), &error);
    must(ebb_kv_token_bytes(&spec, ebb_model_kv_layers(r.model), &bytes, &error), &error);
    assert_int_equal(bytes, (48 + 16) * 2);
    assert_int_equal(ebb_model_state_layers(r.model)[1].index, 1);
    ebb_runner_close(r.runner);
    int64_t width[8] = {0};
    ebb_runner_config rc = {.size = sizeof rc,
                            .state = r.state,
                            .kv = r.kv,
                            .max_seqs = SEQS,
                            .max_new = 1,
                            .max_tokens = PREFILL,
                            .tap = {width, on_tap}};
    must(ebb_runner_open(r.model, &rc, &r.runner, &error), &error);
    item it = {.n = 3, .ids = (int32_t[]){1, 2, 3}};
    prefill(&r, 0, &it);
    static const int64_t want[] = {144, 48, 136, 24, 144, 48, 136, 24};
    assert_memory_equal(width, want, sizeof want);
    rig_close(&r);
}

/* Two prompts and a step of both in one batch have the bits that they have alone, with low-bit stores. */
static void test_row_invariance(void **state) {
    (void)state;
    enum { N = 70, M = 5 };
    rig r = {0};
    ebb_error error;
    int32_t ids[N + M + 2];
    for (int32_t i = 0; i < N + M + 2; i++) ids[i] = 1 + (i * 37) % 255;
    rig_open(&r, RANDOM_KIMI, NULL, "leap8", "bf16");
    const size_t vocab = (size_t)r.info->vocab;
    float *alone = calloc(4 * vocab, sizeof *alone);
    for (int32_t i = 0; i < 2; i++) {
        item it = {.n = i ? M : N, .ids = ids + (i ? N : 0)};
        prefill(&r, i, &it);
        memcpy(alone + (size_t)i * vocab, r.logits, vocab * sizeof *alone);
        const ebb_batch b = {.seqs = 1, .tokens = 1, .slot = &i, .cu = (int32_t[]){0, 1}, .pos = &it.n};
        must(ebb_forward(r.runner, EBB_STEP, &b, ids + N + M + i, (int64_t[]){0}, 1, alone + (size_t)(2 + i) * vocab,
                         &error),
             &error);
    }
    const ebb_batch both = {.seqs = 2,
                            .tokens = N + M,
                            .slot = (int32_t[]){7, 3},
                            .cu = (int32_t[]){0, N, N + M},
                            .pos = (int64_t[]){0, 0}};
    must(ebb_forward(r.runner, EBB_PREFILL, &both, ids, (int64_t[]){N - 1, N + M - 1}, 2, r.logits, &error), &error);
    assert_memory_equal(r.logits, alone, 2 * vocab * sizeof *alone);
    const ebb_batch step = {
        .seqs = 2, .tokens = 2, .slot = (int32_t[]){7, 3}, .cu = (int32_t[]){0, 1, 2}, .pos = (int64_t[]){N, M}};
    must(ebb_forward(r.runner, EBB_STEP, &step, ids + N + M, (int64_t[]){0, 1}, 2, r.logits, &error), &error);
    assert_memory_equal(r.logits, alone + 2 * vocab, 2 * vocab * sizeof *alone);
    free(alone);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_model),
        cmocka_unit_test(test_tiny_kda),
        cmocka_unit_test_setup_teardown(test_every_tensor_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_config, setup, teardown),
        cmocka_unit_test_setup_teardown(test_experts, setup, teardown),
        cmocka_unit_test(test_taps_and_bytes),
        cmocka_unit_test(test_row_invariance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
