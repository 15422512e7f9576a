/* test_softmax_models.c: Qwen3, Llama (with llama3 RoPE scaling; with every bias; tied) and GLM-4 against Hugging Face
 * transformers in FP32, on small random checkpoints; every single tensor matters; and the life of a sequence in a model
 * without recurrent layers. Golden data: data/make_softmax_golden.py. */
#include "core/core.h"
#include "ebb/ebb.h"
#include "format/float16.h"
#include "model/safetensors.h"

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

#define DATA SOURCE_DIR "/tests/data"

static const char *const names[] = {"qwen3", "llama", "smollm", "glm4"};

static json_t *golden(const char *name) {
    json_error_t why;
    json_t *root = json_load_file(DATA "/softmax_models.json", 0, &why);
    if (!root) fail_msg("%s", why.text);
    json_t *list = json_incref(json_object_get(root, name));
    json_decref(root);
    assert_true(json_array_size(list) >= 9);
    return list;
}

static int32_t *ints(const json_t *list, int64_t *n) {
    *n = (int64_t)json_array_size(list);
    int32_t *x = calloc((size_t)*n + 1, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < *n; i++) x[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return x;
}

/* ---- a model in use ---- */

typedef struct run {
    ebb_device *device;
    ebb_model *model;
    ebb_engine *engine;
} run;

static ebb_status try_open(run *r, const char *folder, const ebb_engine_config *config, ebb_error *error) {
    const ebb_device_config two = {.size = sizeof two, .threads = 2};
    *r = (run){0};
    ebb_status status = ebb_device_open("cpu", &two, &r->device, error);
    if (!status) status = ebb_model_open(r->device, folder, NULL, &r->model, error);
    if (!status) status = ebb_engine_open(r->model, config, &r->engine, error);
    return status;
}

static void shut(run *r) {
    ebb_engine_close(r->engine);
    ebb_model_close(r->model);
    ebb_device_close(r->device);
}

static void open_run(run *r, const char *folder, const char *kv, const char *rows) {
    const ebb_engine_config config = {
        .size = sizeof config, .kv = kv, .max_seqs = 3, .max_tokens = 600, .max_new = 8, .algorithm = rows};
    ebb_error error;
    must(try_open(r, folder, &config, &error), &error);
}

static int32_t begin(const run *r, const int32_t *ids, int64_t n) {
    ebb_error error;
    int32_t id;
    must(ebb_sequence_open(r->engine, &EBB_GREEDY, &id, &error), &error);
    must(ebb_sequence_append(r->engine, id, ids, n, &error), &error);
    return id;
}

static void step(const run *r, int32_t id) {
    ebb_error error;
    must(ebb_engine_step(r->engine, &id, 1, &error), &error);
}

static void prefill(const run *r) {
    ebb_error error;
    must(ebb_engine_prefill(r->engine, &error), &error);
}

/* ---- parity ---- */

/* The largest difference of a prompt's last logits. */
static double difference(const run *r, int32_t id, const json_t *item) {
    const json_t *logits = json_object_get(item, "logits");
    double worst = 0;
    assert_int_equal(json_array_size(logits), 32);
    for (size_t i = 0; i < 32; i++) {
        double d = fabs(json_number_value(json_array_get(logits, i)) - (double)ebb_sequence_logits(r->engine, id)[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst;
}

static double compare(const run *r, const json_t *item, int index) {
    int64_t n, n_answer;
    int32_t *ids = ints(json_object_get(item, "ids"), &n), *answer = ints(json_object_get(item, "answer"), &n_answer);
    int32_t id = begin(r, ids, n);
    prefill(r);
    const double worst = difference(r, id, item);
    assert_int_equal(n_answer, 24);
    for (int64_t t = 0; t < n_answer; t++) {
        if (t) step(r, id);
        if (ebb_sequence_token(r->engine, id) != answer[t])
            fail_msg("prompt %d, answer token %lld: %d, transformers says %d", index, (long long)t,
                     ebb_sequence_token(r->engine, id), answer[t]);
    }
    ebb_sequence_close(r->engine, id);
    free(ids), free(answer);
    return worst;
}

static void against(const char *name, const char *rows) {
    char folder[256];
    run r;
    double worst = 0;
    json_t *list = golden(name);
    snprintf(folder, sizeof folder, "%s/softmax_%s", DATA, name);
    open_run(&r, folder, "fp32", rows);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const double d = compare(&r, json_array_get(list, i), (int)i);
        worst = d > worst || isnan(d) ? d : worst;
    }
    print_message("%s, %s: largest logit difference %.2e\n", name, ebb_engine_rows(r.engine), worst);
    assert_true(worst < 1e-3);
    json_decref(list);
    shut(&r);
}

static void test_parity(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(names); i++) {
        against(names[i], "ref");
        against(names[i], NULL);
    }
}

static void test_description(void **state) {
    (void)state;
    static const char *const architectures[] = {"qwen3", "llama", "llama", "glm4"};
    static const int32_t heads[] = {6, 4, 6, 6}, kv_heads[] = {2, 2, 3, 2}, dims[] = {32, 16, 10, 24};
    for (int i = 0; i < COUNT(names); i++) {
        char folder[256];
        run r;
        snprintf(folder, sizeof folder, "%s/softmax_%s", DATA, names[i]);
        open_run(&r, folder, NULL, NULL);
        const ebb_model_info *info = ebb_model_describe(r.model);
        assert_string_equal(info->architecture, architectures[i]);
        assert_int_equal(info->layers, 2);
        assert_int_equal(info->state_layers, 0);
        assert_int_equal(info->kv_layers, 2);
        assert_int_equal(info->max_position, 2048);
        const ebb_kv_layer *l = &ebb_model_kv_layers(r.model)[1];
        assert_int_equal(l->q_heads, heads[i]);
        assert_int_equal(l->heads, kv_heads[i]);
        assert_int_equal(l->part[0].dims, dims[i]);
        shut(&r);
    }
}

/* ---- folders with something changed ---- */

typedef struct scratch {
    char folder[64];
} scratch;

static int scratch_open(void **state) {
    scratch *s = calloc(1, sizeof *s);
    if (!s) return -1;
    strcpy(s->folder, "/tmp/ebb-test-XXXXXX");
    *state = s;
    return mkdtemp(s->folder) ? 0 : -1;
}

static int scratch_close(void **state) {
    scratch *s = *state;
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json", "sequence"};
    for (int i = 0; i < COUNT(files); i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", s->folder, files[i]);
        unlink(path);
    }
    rmdir(s->folder);
    free(s);
    return 0;
}

static void write_file(const scratch *s, const char *file, const void *data, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", s->folder, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static char *read_data(const char *name, const char *file, size_t *bytes) {
    char path[256], *data;
    ebb_error error;
    snprintf(path, sizeof path, "%s/softmax_%s/%s", DATA, name, file);
    must(read_file(path, (size_t)1 << 24, &data, bytes, &error), &error);
    return data;
}

static void copy(const scratch *s, const char *name) {
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};
    for (int i = 0; i < COUNT(files); i++) {
        size_t bytes;
        char *data = read_data(name, files[i], &bytes);
        write_file(s, files[i], data, bytes);
        free(data);
    }
}

/* ---- a changed weight is noticed ---- */

/* Which element to change: of a row that the prompts read and the golden logits show. Biases of keys count in the
 * dimensions that rotate only, and the first ones do. */
static size_t element_of(const char *name, const st_tensor *t, int32_t first_id) {
    const bool embedding = strstr(name, "embed_tokens") != NULL;
    return t->dims == 2 && embedding ? (size_t)first_id * (size_t)t->shape[1] + 3 : 3;
}

static bool noticed(const scratch *s, const json_t *list) {
    run r;
    bool seen = false;
    open_run(&r, s->folder, "fp32", NULL);
    for (size_t i = 2; i < 5 && !seen; i++) { /* 3, 5 and 63 tokens */
        int64_t n;
        int32_t *ids = ints(json_object_get(json_array_get(list, i), "ids"), &n), id = begin(&r, ids, n);
        prefill(&r);
        seen = !(difference(&r, id, json_array_get(list, i)) < 1e-3);
        ebb_sequence_close(r.engine, id);
        free(ids);
    }
    shut(&r);
    return seen;
}

/* Adds 1 to a BF16 number; returns what was there. */
static uint16_t bump(char *place) {
    uint16_t old, now;
    memcpy(&old, place, sizeof old);
    now = float_to_bf16(bf16_to_float(old) + 1);
    memcpy(place, &now, sizeof now);
    return old;
}

/* One element of one tensor at a time. The tensors lie at the end of the file, without gaps. */
static int64_t perturb_each(const scratch *s, const char *name) {
    size_t bytes, total = 0;
    st_set *set;
    int64_t count, n;
    ebb_error error;
    char *file = read_data(name, "model.safetensors", &bytes), folder[256];
    json_t *list = golden(name);
    int32_t *ids = ints(json_object_get(json_array_get(list, 2), "ids"), &n);
    snprintf(folder, sizeof folder, "%s/softmax_%s", DATA, name);
    must(st_open(folder, &set, &error), &error);
    const st_tensor *t = st_tensors(set, &count);
    const uint8_t *first = t[0].data;
    for (int64_t i = 0; i < count; i++) {
        total += t[i].bytes;
        if (t[i].data < first) first = t[i].data;
    }
    copy(s, name);
    assert_false(noticed(s, list));
    for (int64_t i = 0; i < count; i++) {
        char *place = file + (bytes - total) + (t[i].data - first) + 2 * element_of(t[i].name, &t[i], ids[0]);
        const uint16_t old = bump(place);
        write_file(s, "model.safetensors", file, bytes);
        if (!noticed(s, list)) fail_msg("%s: a change of %s is not noticed", name, t[i].name);
        memcpy(place, &old, sizeof old);
    }
    st_close(set);
    free(file), free(ids);
    json_decref(list);
    return count;
}

static void test_every_tensor_matters(void **state) {
    static const int64_t counts[] = {3 + 2 * 11, 3 + 2 * 9, 2 + 2 * 16, 3 + 2 * 13};
    for (int i = 0; i < COUNT(names); i++) assert_int_equal(perturb_each(*state, names[i]), counts[i]);
}

/* ---- config.json ---- */

/* The model with `key` of config.json set to the JSON text `value` (NULL: left out); the status and its sentence. */
static ebb_status open_changed(const scratch *s, const char *name, const char *key, const char *value,
                               ebb_error *error) {
    char path[128];
    run r;
    const ebb_engine_config config = {.size = sizeof config};
    copy(s, name);
    snprintf(path, sizeof path, "%s/config.json", s->folder);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    if (value) json_object_set_new(root, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else json_object_del(root, key);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    *error = (ebb_error){EBB_OK, ""};
    ebb_status status = try_open(&r, s->folder, &config, error);
    shut(&r);
    return status;
}

static void test_refusals(void **state) {
    static const struct {
        const char *name, *key, *value, *sentence;
    } cases[] = {
        {"qwen3", "use_sliding_window", "true", "use_sliding_window true"},
        {"qwen3", "layer_types", "[\"full_attention\", \"sliding_attention\"]", "layer_types[1] is sliding_attention"},
        {"qwen3", "rope_parameters", "{\"rope_type\": \"yarn\", \"rope_theta\": 1e6, \"factor\": 4}",
         "rope_type yarn, only default and llama3 are served"},
        {"qwen3", "hidden_act", "\"gelu\"", "hidden_act gelu"},
        {"qwen3", "quantization_config", "{}", "quantization_config"},
        {"qwen3", "num_key_value_heads", "4", "a multiple of num_key_value_heads = 4"},
        {"qwen3", "head_dim", "21", "head_dim is 21, expected an even number"},
        {"qwen3", "attention_bias", "true", "self_attn.q_proj.bias"},
        {"llama", "attention_bias", "true", "self_attn.q_proj.bias"},
        {"llama", "mlp_bias", "true", "mlp.gate_proj.bias"},
        {"llama", "partial_rotary_factor", "0.5", "only 1 is served for model_type llama"},
        {"llama", "rope_parameters", "{\"rope_type\": \"llama3\", \"factor\": 8}", "low_freq_factor"},
        {"llama", "rope_parameters",
         "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4}",
         "expected above low_freq_factor = 4"},
        {"smollm", "attention_bias", "false", "self_attn.k_proj.bias has no place in llama"},
        {"smollm", "mlp_bias", "false", "mlp.down_proj.bias has no place in llama"},
        {"smollm", "tie_word_embeddings", "false", "lm_head.weight"},
        {"glm4", "attention_bias", "false", "self_attn.k_proj.bias has no place in glm4"},
        {"glm4", "rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 1e4, \"partial_rotary_factor\": 0.3}",
         "expected an even number"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        ebb_error error;
        ebb_status status = open_changed(*state, cases[i].name, cases[i].key, cases[i].value, &error);
        if (!status || !strstr(error.text, cases[i].sentence))
            fail_msg("%s with %s %s: %s '%s', expected '%s'", cases[i].name, cases[i].key, cases[i].value,
                     ebb_status_name(status), error.text, cases[i].sentence);
    }
}

/* What older files, and files that say less, mean the same by. */
static void test_older_files(void **state) {
    static const struct {
        const char *name, *key, *value;
    } cases[] = {
        {"smollm", "head_dim", NULL},
        {"smollm", "attention_bias", NULL},
        {"smollm", "mlp_bias", NULL},
        {"smollm", "tie_word_embeddings", NULL},
        {"qwen3", "layer_types", NULL},
        {"qwen3", "attention_bias", NULL},
        {"glm4", "attention_bias", NULL},
        {"glm4", "rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 10000.0}"},
        {"glm4", "rope_parameters", NULL},
    };
    const scratch *s = *state;
    for (int i = 0; i < COUNT(cases); i++) {
        ebb_error error;
        must(open_changed(s, cases[i].name, cases[i].key, cases[i].value, &error), &error);
        json_t *list = golden(cases[i].name);
        if (noticed(s, list)) fail_msg("%s without its %s is another model", cases[i].name, cases[i].key);
        json_decref(list);
    }
    /* rope_theta at the top and rope_scaling beside it */
    ebb_error error;
    must(open_changed(s, "llama", "rope_parameters", NULL, &error), &error);
    json_t *list = golden("llama");
    assert_true(noticed(s, list)); /* no scaling at all is another model */
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", s->folder);
    json_t *root = json_load_file(path, 0, NULL);
    json_object_set_new(root, "rope_theta", json_real(10000.0));
    json_object_set_new(root, "rope_scaling",
                        json_pack("{s:s, s:f, s:f, s:f, s:i}", "type", "llama3", "factor", 8.0, "low_freq_factor", 1.0,
                                  "high_freq_factor", 4.0, "original_max_position_embeddings", 160));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    assert_false(noticed(s, list));
    json_decref(list);
}

/* ---- a sequence without recurrent states ---- */

enum { VOCAB = 256, PROMPT = 130, STEPS = 6 };

static void some_ids(int32_t *ids, int64_t n, uint64_t key) {
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(mix64(key * 977 + (uint64_t)i) % VOCAB);
}

static void keep_logits(const run *r, int32_t id, float *to) {
    const float *row = ebb_sequence_logits(r->engine, id);
    assert_non_null(row);
    memcpy(to, row, VOCAB * sizeof *to);
}

/* Bits do not depend on batch mates. */
static void batches(const run *r) {
    int32_t ids[3][PROMPT], seq[3];
    const int64_t lengths[3] = {PROMPT, 17, 65};
    float alone[3][VOCAB], together[VOCAB];
    ebb_error error;
    for (int i = 0; i < 3; i++) {
        some_ids(ids[i], lengths[i], (uint64_t)i + 1);
        seq[0] = begin(r, ids[i], lengths[i]);
        prefill(r);
        step(r, seq[0]);
        keep_logits(r, seq[0], alone[i]);
        ebb_sequence_close(r->engine, seq[0]);
    }
    for (int i = 0; i < 3; i++) seq[i] = begin(r, ids[i], lengths[i]);
    prefill(r);
    must(ebb_engine_step(r->engine, seq, 3, &error), &error);
    for (int i = 0; i < 3; i++) {
        keep_logits(r, seq[i], together);
        assert_memory_equal(together, alone[i], sizeof together);
        ebb_sequence_close(r->engine, seq[i]);
    }
}

/* A fork, a rollback, and a file each go on with the very bits. */
static void branches(const run *r, const scratch *s) {
    int32_t ids[PROMPT], id, fork, loaded;
    float path_bits[STEPS][VOCAB], bits[VOCAB];
    char file[128];
    ebb_error error;
    ebb_usage usage;
    snprintf(file, sizeof file, "%s/sequence", s->folder);
    some_ids(ids, PROMPT, 9);
    id = begin(r, ids, PROMPT);
    prefill(r);
    must(ebb_sequence_fork(r->engine, id, &fork, &error), &error);
    must(ebb_sequence_save(r->engine, id, file, &error), &error);
    for (int t = 0; t < STEPS; t++) step(r, id), keep_logits(r, id, path_bits[t]);
    must(ebb_sequence_load(r->engine, file, NULL, &loaded, &error), &error);
    const int32_t others[2] = {fork, loaded};
    for (int t = 0; t < STEPS; t++)
        for (int i = 0; i < 2; i++) {
            step(r, others[i]);
            keep_logits(r, others[i], bits);
            assert_memory_equal(bits, path_bits[t], sizeof bits);
        }
    must(ebb_sequence_rollback(r->engine, id, PROMPT + 2, &error), &error);
    for (int t = 2; t < STEPS; t++) {
        step(r, id);
        keep_logits(r, id, bits);
        assert_memory_equal(bits, path_bits[t], sizeof bits);
    }
    ebb_engine_usage(r->engine, id, &usage);
    assert_int_equal(usage.state_packed, 0);
    assert_int_equal(usage.state_live, 0);
    assert_true(usage.kv > 0);
    ebb_sequence_close(r->engine, id), ebb_sequence_close(r->engine, fork), ebb_sequence_close(r->engine, loaded);
}

/* FP32 goes from one KV method to another. */
static void exports(const run *r, const scratch *s, const char *folder) {
    int32_t ids[PROMPT], id, loaded;
    char file[128];
    ebb_error error;
    run other;
    snprintf(file, sizeof file, "%s/sequence", s->folder);
    some_ids(ids, PROMPT, 4);
    id = begin(r, ids, PROMPT);
    prefill(r);
    must(ebb_sequence_export(r->engine, id, file, &error), &error);
    ebb_sequence_close(r->engine, id);
    open_run(&other, folder, "bf16", NULL);
    must(ebb_sequence_load(other.engine, file, NULL, &loaded, &error), &error);
    step(&other, loaded);
    shut(&other);
}

static void test_sequences(void **state) {
    const scratch *s = *state;
    for (int i = 0; i < COUNT(names); i++) {
        char folder[256];
        run r;
        snprintf(folder, sizeof folder, "%s/softmax_%s", DATA, names[i]);
        open_run(&r, folder, "fp16", NULL);
        batches(&r);
        branches(&r, s);
        exports(&r, s, folder);
        shut(&r);
    }
}

/* A state method has nothing to act on: not taken in silence. */
static void test_state_method(void **state) {
    (void)state;
    ebb_error error;
    run r;
    const ebb_engine_config config = {.size = sizeof config, .state = "leap8"};
    assert_int_equal(try_open(&r, DATA "/softmax_qwen3", &config, &error), EBB_BAD_ARGUMENT);
    assert_string_equal(error.text, "state method leap8 is given, but this model has no recurrent layers");
    shut(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),
        cmocka_unit_test(test_description),
        cmocka_unit_test_setup_teardown(test_every_tensor_matters, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_refusals, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_older_files, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_sequences, scratch_open, scratch_close),
        cmocka_unit_test(test_state_method),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
