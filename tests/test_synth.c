/* test_synth.c: outlines and synthetic checkpoints. The tensors that an outline lists are those of committed
 * checkpoints of every family; a checkpoint that is written opens in the library, which wants every tensor and no
 * other, and runs. What fails or is interrupted leaves nothing behind. */
#define _GNU_SOURCE
#include "ebb/ebb.h"
#include "model/gguf.h"
#include "model/outline.h"
#include "model/safetensors.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "must.h"

typedef struct fixture {
    char folder[64], config[96], out[96];
    ebb_device *device;
} fixture;

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    const ebb_device_config config = {.size = sizeof config, .threads = 2};
    snprintf(f->folder, sizeof f->folder, "/tmp/ebb-test-XXXXXX");
    if (!mkdtemp(f->folder) || ebb_device_open("cpu", &config, &f->device, NULL)) return -1;
    snprintf(f->config, sizeof f->config, "%s/a.json", f->folder);
    snprintf(f->out, sizeof f->out, "%s/out", f->folder);
    *state = f;
    return 0;
}

/* Removes a folder of files; the number of files that were there, -1: no such folder. */
static int clear_folder(const char *path) {
    DIR *folder = opendir(path);
    int n = 0;
    if (!folder) return -1;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char file[512];
        if (entry->d_name[0] == '.') continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (unlink(file) == 0) n++;
    }
    closedir(folder);
    rmdir(path);
    return n;
}

static int teardown(void **state) {
    fixture *f = *state;
    clear_folder(f->out);
    clear_folder(f->folder);
    ebb_device_close(f->device);
    free(f);
    return 0;
}

static ebb_outline *outline_of(const char *path) {
    ebb_outline *o = NULL;
    ebb_error error;
    must(ebb_outline_open(path, &o, &error), &error);
    return o;
}

static ebb_outline *outline_text(const fixture *f, const char *text) {
    FILE *file = fopen(f->config, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return outline_of(f->config);
}

/* ---- outlines ---- */

/* The checkpoint has these tensors in these shapes, and no others. */
static void same_tensors(const ebb_outline *o, const char *folder) {
    st_set *set = NULL;
    ebb_error error;
    must(st_open(folder, &set, &error), &error);
    int64_t n;
    st_tensors(set, &n);
    if (n != o->n) fail_msg("%s: %lld tensors, the outline has %lld", folder, (long long)n, (long long)o->n);
    for (int64_t i = 0; i < o->n; i++) {
        const outline_tensor *t = &o->tensors[i];
        const st_tensor *there = st_find(set, t->name);
        if (!there) fail_msg("%s has no %s", folder, t->name);
        bool same = there->dims == t->dims;
        for (int32_t d = 0; d < t->dims && same; d++) same = there->shape[d] == t->shape[d];
        if (t->fill == FILL_A_LOG) /* flat or not */
            same = there->bytes / ebb_type_bytes((ebb_type)there->type) == (size_t)outline_elements(t);
        if (!same) fail_msg("%s: %s has another shape", folder, t->name);
    }
    st_close(set);
}

static const char *const committed[] = {
    "models/tiny-gdn",
    "models/tiny-kda",
    "tests/data/random_qwen35",
    "tests/data/random_kimi",
    "tests/data/softmax_qwen3",
    "tests/data/softmax_llama",
    "tests/data/softmax_glm4",
    "tests/data/hybrid_qwen35moe",
    "tests/data/hybrid_qwen3next",
    "tests/data/hybrid_kimi_moe",
};

static void committed_checkpoints(void **state) {
    const fixture *f = *state;
    for (int i = 0; i < COUNT(committed); i++) {
        char path[256];
        ebb_error error;
        ebb_model *model = NULL;
        snprintf(path, sizeof path, SOURCE_DIR "/%s", committed[i]);
        ebb_outline *o = outline_of(path);
        same_tensors(o, path);
        must(ebb_model_open(f->device, path, NULL, &model, &error), &error);
        const ebb_model_info *m = ebb_model_describe(model);
        const ebb_outline_info *about = ebb_outline_describe(o);
        assert_int_equal(m->parameters, about->parameters);
        assert_int_equal(m->vocab, about->vocab);
        assert_int_equal(m->max_position, about->max_position);
        assert_int_equal(m->state_layers, about->state_layers);
        assert_int_equal(m->kv_layers, about->kv_layers);
        assert_memory_equal(ebb_model_state_layers(model), ebb_outline_state_layers(o),
                            (size_t)m->state_layers * sizeof(ebb_state_layer));
        for (int32_t k = 0; k < m->kv_layers; k++) {
            const ebb_kv_layer *a = &ebb_model_kv_layers(model)[k], *b = &ebb_outline_kv_layers(o)[k];
            assert_true(a->heads == b->heads && a->q_heads == b->q_heads && a->parts == b->parts);
            for (int32_t p = 0; p < a->parts; p++) assert_int_equal(a->part[p].dims, b->part[p].dims);
        }
        ebb_model_close(model);
        ebb_outline_close(o);
    }
}

/* Billions of parameters as the releases say them. */
static void released_sizes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double billions;
        int32_t states, kvs;
    } models[] = {
        {"qwen3.5-0.8b", 0.752, 18, 6},        {"qwen3.5-2b", 1.882, 18, 6},
        {"qwen3.5-4b", 4.206, 24, 8},          {"qwen3.5-9b", 8.954, 24, 8},
        {"qwen3.6-27b", 26.896, 48, 16},       {"qwen3.6-35b-a3b", 34.661, 30, 10},
        {"qwen3.5-122b-a10b", 122.11, 36, 12}, {"qwen3.5-397b-a17b", 396.35, 45, 15},
        {"qwen3-next-80b-a3b", 79.67, 36, 12}, {"kimi-linear-48b-a3b", 49.12, 20, 7},
        {"qwen3-0.6b", 0.596, 0, 28},          {"qwen3-8b", 8.191, 0, 36},
    };
    for (int i = 0; i < COUNT(models); i++) {
        char path[256];
        snprintf(path, sizeof path, SOURCE_DIR "/models/configs/%s.json", models[i].name);
        ebb_outline *o = outline_of(path);
        const ebb_outline_info *m = ebb_outline_describe(o);
        const double billions = (double)m->parameters / 1e9;
        if (fabs(billions / models[i].billions - 1) > 1e-3)
            fail_msg("%s: %.3f billion parameters", models[i].name, billions);
        assert_int_equal(m->state_layers, models[i].states);
        assert_int_equal(m->kv_layers, models[i].kvs);
        ebb_outline_close(o);
    }
}

/* ---- small ones of every family ---- */

#define QWEN(type)                                                                                              \
    "{\"model_type\":\"" type "\",\"vocab_size\":300,\"hidden_size\":64,\"num_hidden_layers\":4,"               \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"linear_num_key_heads\":2,"           \
    "\"linear_num_value_heads\":4,\"linear_key_head_dim\":32,\"linear_value_head_dim\":32,"                     \
    "\"linear_conv_kernel_dim\":4,\"rms_norm_eps\":1e-6,\"max_position_embeddings\":4096,\"rope_theta\":10000," \
    "\"partial_rotary_factor\":0.25,"
#define EXPERTS                                                                                         \
    "\"num_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"norm_topk_prob\":true," \
    "\"shared_expert_intermediate_size\":32}"
#define KIMI                                                                                               \
    "{\"model_type\":\"kimi_linear\",\"vocab_size\":300,\"hidden_size\":64,\"num_hidden_layers\":3,"       \
    "\"intermediate_size\":96,\"num_attention_heads\":2,\"rms_norm_eps\":1e-5,\"model_max_length\":4096,"  \
    "\"kv_lora_rank\":32,\"q_lora_rank\":null,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":16,"            \
    "\"v_head_dim\":16,\"mla_use_nope\":true,\"num_experts\":6,\"num_experts_per_token\":2,"               \
    "\"num_shared_experts\":1,\"moe_intermediate_size\":32,\"first_k_dense_replace\":1,"                   \
    "\"moe_router_activation_func\":\"sigmoid\",\"moe_renormalize\":true,\"routed_scaling_factor\":2.446," \
    "\"linear_attn_config\":{\"head_dim\":32,\"num_heads\":2,\"short_conv_kernel_size\":4,"                \
    "\"kda_layers\":[1,2],\"full_attn_layers\":[3]}}"

static const char dense[] = QWEN("qwen3_5_text") "\"intermediate_size\":96}";
static const char *const families[] = {dense, QWEN("qwen3_5_moe_text") EXPERTS, QWEN("qwen3_next") EXPERTS, KIMI};

static ebb_status synth(const ebb_outline *o, const char *path, uint64_t seed, int32_t type, ebb_error *error) {
    const ebb_synth_config config = {.size = sizeof config, .seed = seed, .type = type};
    return ebb_synth(o, path, &config, error);
}

/* Logits of a few tokens are finite and not all the same. */
static void check_runs(const fixture *f, const char *path, const ebb_outline *o) {
    static const int32_t ids[] = {1, 7, 50, 90, 3, 3, 9};
    ebb_error error;
    ebb_model *model = NULL;
    ebb_engine *engine = NULL;
    must(ebb_model_open(f->device, path, NULL, &model, &error), &error);
    assert_int_equal(ebb_model_describe(model)->parameters, ebb_outline_describe(o)->parameters);
    const int32_t vocab = ebb_model_describe(model)->vocab;
    const ebb_engine_config config = {.size = sizeof config, .max_tokens = 64};
    const ebb_sampling greedy = EBB_GREEDY;
    must(ebb_engine_open(model, &config, &engine, &error), &error);
    int32_t seq;
    must(ebb_sequence_open(engine, &greedy, &seq, &error), &error);
    must(ebb_sequence_append(engine, seq, ids, COUNT(ids), &error), &error);
    must(ebb_engine_prefill(engine, &error), &error);
    must(ebb_engine_step(engine, &seq, 1, &error), &error);
    const float *logits = ebb_sequence_logits(engine, seq);
    float least = INFINITY, most = -INFINITY;
    for (int32_t i = 0; i < vocab; i++) {
        assert_true(isfinite(logits[i]));
        least = fminf(least, logits[i]), most = fmaxf(most, logits[i]);
    }
    if (!(most - least > 0.1f && most - least < 100)) fail_msg("%s: logits from %g to %g", path, least, most);
    ebb_engine_close(engine);
    ebb_model_close(model);
}

static void folders(void **state) {
    const fixture *f = *state;
    for (int i = 0; i < COUNT(families); i++) {
        ebb_error error;
        ebb_outline *o = outline_text(f, families[i]);
        must(synth(o, f->out, 1, 0, &error), &error);
        same_tensors(o, f->out);
        check_runs(f, f->out, o);
        assert_int_equal(clear_folder(f->out), 3); /* config.json, model.safetensors, tokenizer.json */
        ebb_outline_close(o);
    }
}

/* The same shapes as the committed checkpoints, with other values. */
static void like_committed(void **state) {
    const fixture *f = *state;
    for (int i = 0; i < COUNT(committed); i++) {
        char path[256];
        ebb_error error;
        snprintf(path, sizeof path, SOURCE_DIR "/%s", committed[i]);
        ebb_outline *o = outline_of(path);
        must(synth(o, f->out, 7, 0, &error), &error);
        check_runs(f, f->out, o);
        clear_folder(f->out);
        ebb_outline_close(o);
    }
}

static void gguf_files(void **state) {
    const fixture *f = *state;
    static const int32_t types[] = {EBB_BF16, EBB_Q8_0, EBB_Q4_0};
    char path[128];
    snprintf(path, sizeof path, "%s/m.gguf", f->folder);
    for (int i = 0; i < 2 * COUNT(types); i++) {
        ebb_error error;
        ebb_outline *o = outline_text(f, families[i % 2]);
        must(synth(o, path, 1, types[i / 2], &error), &error);
        check_runs(f, path, o);
        unlink(path);
        ebb_outline_close(o);
    }
    ebb_error error;
    ebb_outline *o = outline_text(f, KIMI);
    assert_int_equal(synth(o, path, 1, 0, &error), EBB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "not of kimi_linear; a folder is"));
    ebb_outline_close(o);
    o = outline_text(f, dense);
    assert_int_equal(synth(o, f->out, 1, EBB_Q8_0, &error), EBB_UNSUPPORTED);
    assert_int_equal(clear_folder(f->out), -1);
    ebb_outline_close(o);
}

static const gguf_tensor *tensor_of(const gguf_file *f, const char *name) {
    for (uint64_t k = 0; k < f->n_tensors; k++)
        if (!strcmp(f->tensors[k].name, name)) return &f->tensors[k];
    return NULL;
}

/* The converter can write gate and up of all experts as one tensor. */
static bool in_gate_up(const gguf_file *f, const gguf_tensor *t) {
    char name[64];
    int block;
    if (sscanf(t->name, "blk.%d.ffn_", &block) != 1) return false;
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", block);
    const gguf_tensor *both = tensor_of(f, name);
    return both && (strstr(t->name, "ffn_gate_exps") || strstr(t->name, "ffn_up_exps")) && both->dims == t->dims &&
           both->shape[0] == t->shape[0] && both->shape[1] == 2 * t->shape[1] && both->shape[2] == t->shape[2];
}

/* Fields of the architecture and tensors are those that llama.cpp's converter made of the same config.json. It writes
 * more: a layer of multi-token prediction, and the tokenizer that there was. */
static void as_converted(void **state) {
    static const char *const models[] = {"hybrid_qwen35", "hybrid_qwen35moe"};
    const fixture *f = *state;
    for (int i = 0; i < COUNT(models); i++) {
        char path[256], made[128];
        gguf_file ours, theirs;
        ebb_error error;
        snprintf(made, sizeof made, "%s/m.gguf", f->folder);
        snprintf(path, sizeof path, SOURCE_DIR "/tests/data/%s", models[i]);
        ebb_outline *o = outline_of(path);
        must(synth(o, made, 1, 0, &error), &error);
        snprintf(path, sizeof path, SOURCE_DIR "/tests/data/%s.gguf", models[i]);
        must(gguf_open(made, &ours, &error), &error);
        must(gguf_open(path, &theirs, &error), &error);
        for (uint64_t t = 0; t < ours.n_tensors; t++) {
            const gguf_tensor *a = &ours.tensors[t], *b = tensor_of(&theirs, a->name);
            if (in_gate_up(&theirs, a)) continue;
            if (!b || a->dims != b->dims || memcmp(a->shape, b->shape, (size_t)a->dims * sizeof a->shape[0]))
                fail_msg("%s: %s is not there, or in another shape", path, a->name);
        }
        int n = 0;
        for (uint64_t k = 0; k < ours.n_fields; k++) {
            const gguf_field *field = &ours.fields[k];
            char key[96];
            snprintf(key, sizeof key, "%.*s", (int)field->key.n, field->key.bytes);
            if (strncmp(key, "qwen35", 6) || !strcmp(key, "qwen35.block_count")) continue;
            const gguf_field *b = gguf_find(&theirs, key);
            if (!b || b->type != field->type) fail_msg("%s has no %s of this type", path, key);
            if (field->type != GGUF_ARRAY && memcmp(field->data, b->data, 4)) fail_msg("%s: %s is another", path, key);
            n++;
        }
        assert_true(n > 12);
        gguf_close(&ours), gguf_close(&theirs);
        unlink(made);
        ebb_outline_close(o);
    }
}

/* The tokenizer beside a config.json goes with it. */
static void own_tokenizer(void **state) {
    const fixture *f = *state;
    ebb_error error;
    ebb_tokenizer *t = NULL;
    ebb_outline *o = outline_of(SOURCE_DIR "/models/tiny-gdn");
    must(synth(o, f->out, 1, 0, &error), &error);
    must(ebb_tokenizer_open(f->out, &t, &error), &error);
    assert_int_equal(ebb_tokenizer_id(t, "<|im_end|>"), 8189);
    ebb_tokenizer_close(t);
    check_runs(f, f->out, o);
    ebb_outline_close(o);
}

static uint64_t hash_of(const fixture *f) {
    char path[128], *data = NULL;
    size_t bytes;
    ebb_error error;
    snprintf(path, sizeof path, "%s/model.safetensors", f->out);
    must(read_file(path, (size_t)1 << 30, &data, &bytes, &error), &error);
    const uint64_t hash = hash64(HASH64_BEGIN, data, bytes);
    free(data);
    clear_folder(f->out);
    return hash;
}

static void seeds(void **state) {
    const fixture *f = *state;
    ebb_error error;
    ebb_outline *o = outline_text(f, dense);
    uint64_t hash[3];
    for (uint64_t i = 0; i < 3; i++) {
        must(synth(o, f->out, i / 2, 0, &error), &error);
        hash[i] = hash_of(f);
    }
    assert_true(hash[0] == hash[1] && hash[1] != hash[2]);
    ebb_outline_close(o);
}

/* ---- what goes wrong ---- */

static bool stop_at(void *ctx, const char *what, int64_t done, int64_t total) {
    (void)what, (void)done, (void)total;
    return --*(int *)ctx > 0;
}

static void interrupted(void **state) {
    const fixture *f = *state;
    ebb_error error = {0};
    ebb_outline *o = outline_of(SOURCE_DIR "/models/tiny-gdn");
    char path[128];
    snprintf(path, sizeof path, "%s/m.gguf", f->folder);
    for (int gguf = 0; gguf < 2; gguf++)
        for (int calls = 1; calls < 4; calls++) {
            int left = calls;
            const ebb_synth_config config = {.size = sizeof config, .progress = {&left, stop_at}};
            assert_int_equal(ebb_synth(o, gguf ? path : f->out, &config, &error), EBB_INTERRUPTED);
            assert_int_equal(left, 0);
        }
    assert_int_equal(clear_folder(f->out), -1);
    assert_int_equal(clear_folder(f->folder), 0);
    ebb_outline_close(o);
}

static void nothing_replaced(void **state) {
    const fixture *f = *state;
    ebb_error error = {0};
    ebb_outline *o = outline_text(f, dense);
    must(synth(o, f->out, 1, 0, &error), &error);
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", f->out);
    assert_int_equal(synth(o, f->out, 1, 0, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "config.json: is there already"));
    unlink(path);
    snprintf(path, sizeof path, "%s/tokenizer.json", f->out);
    unlink(path);
    assert_int_equal(synth(o, f->out, 1, 0, &error), EBB_BAD_ARGUMENT);
    assert_non_null(strstr(error.text, "model.safetensors: is there already"));
    assert_int_equal(clear_folder(f->out), 1);
    ebb_outline_close(o);
}

/* 70 terabytes. */
static void small_disk(void **state) {
    const fixture *f = *state;
    ebb_error error = {0};
    ebb_outline *o = outline_text(f, "{\"model_type\":\"llama\",\"vocab_size\":16777216,\"hidden_size\":65536,"
                                     "\"num_hidden_layers\":160,\"num_attention_heads\":512,"
                                     "\"num_key_value_heads\":8,\"intermediate_size\":1048576}");
    assert_int_equal(synth(o, f->out, 1, 0, &error), EBB_BAD_FILE);
    if (!strstr(error.text, "GB, its disk has")) fail_msg("%s", error.text);
    assert_int_equal(clear_folder(f->out), -1);
    ebb_outline_close(o);
}

static void refused_configs(void **state) {
    static const struct {
        const char *text, *says;
        ebb_status status;
    } cases[] = {
        {"{\"model_type\":\"mamba\"}", "model_type mamba is not known here", EBB_UNSUPPORTED},
        {"{\"model_type\":\"qwen3_5\"}", "vocab_size is missing", EBB_BAD_FILE},
        {QWEN("qwen3_5_text") "\"x\":0}", "intermediate_size is missing", EBB_BAD_FILE},
        {QWEN("qwen3_5_text") "\"intermediate_size\":96,\"num_experts\":4}", "num_experts is 4, expected 0 to 0",
         EBB_BAD_FILE},
        {QWEN("qwen3_next") "\"intermediate_size\":96}", "num_experts is missing", EBB_BAD_FILE},
        {QWEN("qwen3_5_text") "\"intermediate_size\":96,\"layer_types\":[\"full_attention\"]}",
         "layer_types has 1 entries, expected num_hidden_layers = 4", EBB_BAD_FILE},
        {QWEN("qwen3_5_text") "\"intermediate_size\":96,\"layer_types\":[\"full_attention\",1,2,3]}",
         "layer_types[1] is neither", EBB_BAD_FILE},
        {"{\"model_type\":\"kimi_linear\"}", "linear_attn_config is missing", EBB_BAD_FILE},
        {"{\"model_type\":\"llama\",\"vocab_size\":16777216,\"hidden_size\":65536,\"num_hidden_layers\":1024,"
         "\"num_attention_heads\":512,\"intermediate_size\":1048576}",
         "more than 2^46 weights or 2^19 tensors", EBB_UNSUPPORTED},
        {QWEN("qwen3_next") "\"num_experts\":65536,\"num_experts_per_tok\":1,\"moe_intermediate_size\":1,"
                            "\"shared_expert_intermediate_size\":1}",
         "2^19 tensors", EBB_UNSUPPORTED},
    };
    const fixture *f = *state;
    for (int i = 0; i < COUNT(cases); i++) {
        FILE *file = fopen(f->config, "w");
        ebb_outline *o;
        ebb_error error = {0};
        assert_non_null(file);
        assert_true(fputs(cases[i].text, file) >= 0);
        assert_int_equal(fclose(file), 0);
        const ebb_status status = ebb_outline_open(f->config, &o, &error);
        if (status != cases[i].status || !strstr(error.text, cases[i].says))
            fail_msg("%s '%s', expected '%s'", ebb_status_name(status), error.text, cases[i].says);
        assert_null(o);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(committed_checkpoints), TEST(released_sizes), TEST(folders),
        TEST(like_committed),        TEST(gguf_files),     TEST(as_converted),
        TEST(own_tokenizer),         TEST(seeds),          TEST(interrupted),
        TEST(nothing_replaced),      TEST(small_disk),     TEST(refused_configs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
