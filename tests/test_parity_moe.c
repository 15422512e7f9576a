/* test_parity_moe.c: models with mixtures of experts, FP32 stores, against transformers: logits behind prompts in one
 * piece, in pieces of 64, 3 and 1, and token by token; answers of 64 tokens; a change in any tensor. Bits that do not
 * depend on who else is in a batch; experts that are packed when a token needs them, and not before. Golden data:
 * data/make_moe_golden.py (FP32 weights) and data/make_hybrid_gguf.py (BF16 weights). */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gguf_world.h"
#include "model/moe.h"

#define DATA SOURCE_DIR "/tests/data/"

/* Of the error of a logit over 1 + |logit|: what a model may have, and what a change of a weight has to make. */
#define LIMIT 1e-4

static const struct {
    const char *folder, *file, *architecture;
} models[] = {
    {"hybrid_qwen3next", "hybrid_golden.json", "qwen3_next"},
    {"hybrid_qwen35moe", "hybrid_golden.json", "qwen3_5_moe_text"},
    {"hybrid_kimi_moe", "hybrid_golden.json", "kimi_linear"},
    {"moe_next", "moe_golden.json", "qwen3_next"},
    {"moe_35", "moe_golden.json", "qwen3_5_moe_text"},
    {"moe_kimi", "moe_golden.json", "kimi_linear"},
};

static json_t *golden(int32_t i) {
    char path[256];
    snprintf(path, sizeof path, DATA "%s", models[i].file);
    json_t *root = load_json(path);
    const char *key = models[i].folder + (strncmp(models[i].folder, "hybrid_", 7) ? 0 : 7);
    json_t *part = json_incref(json_object_get(root, key));
    assert_true(json_array_size(part) >= 5);
    json_decref(root);
    return part;
}

/* ---- a model and its engine ---- */

typedef struct world {
    ebb_device *device;
    ebb_model *model;
    ebb_engine *engine;
} world;

static void open_world(world *w, const char *path, const ebb_allocator *memory) {
    ebb_error error = {EBB_OK, ""};
    const ebb_device_config device = {
        .size = sizeof device, .threads = 2, .memory = memory ? *memory : (ebb_allocator){0}};
    must(ebb_device_open("cpu", &device, &w->device, &error), &error);
    must(ebb_model_open(w->device, path, NULL, &w->model, &error), &error);
    const ebb_engine_config config = {.size = sizeof config,
                                      .state = "fp32",
                                      .kv = "fp32",
                                      .max_tokens = 512,
                                      .max_seqs = 8,
                                      .prefill_tokens = EBB_GRID};
    must(ebb_engine_open(w->model, &config, &w->engine, &error), &error);
}

static void open_model(world *w, int32_t i) {
    char path[256];
    snprintf(path, sizeof path, DATA "%s", models[i].folder);
    open_world(w, path, NULL);
}

static void close_world(world *w) {
    ebb_engine_close(w->engine);
    ebb_model_close(w->model);
    ebb_device_close(w->device);
}

static int32_t open_sequence(world *w) {
    ebb_error error;
    const ebb_sampling greedy = EBB_GREEDY;
    int32_t id;
    must(ebb_sequence_open(w->engine, &greedy, &id, &error), &error);
    return id;
}

/* Prompt tokens in pieces, so that the logits are those behind the last one. */
static void put_pieces(world *w, int32_t id, const int32_t *ids, int64_t n, int64_t piece) {
    ebb_error error;
    for (int64_t t = 0; t < n; t += piece) {
        if (t) ebb_sequence_forget(w->engine, id);
        must(ebb_sequence_append(w->engine, id, ids + t, min_i64(piece, n - t), &error), &error);
        must(ebb_engine_prefill(w->engine, &error), &error);
    }
}

/* The first token as a prompt, the others as if they had been produced. */
static void put_steps(world *w, int32_t id, const int32_t *ids, int64_t n) {
    ebb_error error;
    put_pieces(w, id, ids, 1, 1);
    for (int64_t t = 1; t < n; t++) {
        must(ebb_sequence_choose(w->engine, id, ids[t], &error), &error);
        must(ebb_engine_step(w->engine, &id, 1, &error), &error);
    }
}

static double larger(double a, double b) { return b > a || isnan(b) ? b : a; }

/* ---- against golden data ---- */

/* An answer may leave the golden one only where two logits are all but equal; it is not followed further then. */
static void check_answer(world *w, int32_t id, const json_t *answer, const char *name) {
    ebb_error error;
    assert_int_equal(json_array_size(answer), 64);
    for (size_t t = 0; t < json_array_size(answer); t++) {
        if (t) must(ebb_engine_step(w->engine, &id, 1, &error), &error);
        const float *logits = ebb_sequence_logits(w->engine, id);
        const int32_t got = ebb_sequence_token(w->engine, id);
        const int32_t want = (int32_t)json_integer_value(json_array_get(answer, t));
        if (got == want) continue;
        if (!((double)(logits[got] - logits[want]) < 1e-3))
            fail_msg("%s: answer token %zu is %d, expected %d", name, t, got, want);
        return;
    }
}

enum { STEPS = 0, WHOLE = 1 << 20 };

/* The largest error of a logit over 1 + |logit|. */
static double run_golden(world *w, const json_t *items, int64_t piece, bool answers, const char *name) {
    double worst = 0;
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        int64_t n;
        const int32_t id = open_sequence(w);
        int32_t *ids = ids_of(json_object_get(item, "ids"), &n);
        if (piece == STEPS) put_steps(w, id, ids, n);
        else put_pieces(w, id, ids, n, piece);
        worst = larger(worst, logits_error(w->engine, id, item));
        if (answers) check_answer(w, id, json_object_get(item, "answer"), name);
        ebb_sequence_close(w->engine, id);
        free(ids);
    }
    return worst;
}

static void test_golden(void **state) {
    (void)state;
    static const int64_t pieces[] = {WHOLE, 64, 3, 1, STEPS};
    for (int32_t i = 0; i < COUNT(models); i++) {
        world w;
        json_t *items = golden(i);
        double worst = 0;
        open_model(&w, i);
        assert_string_equal(ebb_model_describe(w.model)->architecture, models[i].architecture);
        for (int32_t p = 0; p < COUNT(pieces); p++) {
            const double off = run_golden(&w, items, pieces[p], p == 0 || pieces[p] == STEPS, models[i].folder);
            if (!(off < LIMIT))
                fail_msg("%s in pieces of %lld: a logit is off by %g", models[i].folder, (long long)pieces[p], off);
            worst = larger(worst, off);
        }
        print_message("%s: the largest error of a logit is %g\n", models[i].folder, worst);
        close_world(&w);
        json_decref(items);
    }
}

/* ---- bits ---- */

enum { SEQS = 8, STEPS_EACH = 12 };

/* Eight sequences of different lengths in one batch have the bits that each has alone. */
static void test_company(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        world w;
        ebb_error error;
        int32_t ids[SEQS], prompt[SEQS * 11];
        open_model(&w, i);
        const int32_t vocab = ebb_model_describe(w.model)->vocab;
        float *alone = calloc((size_t)(SEQS * vocab), sizeof *alone);
        for (int32_t t = 0; t < COUNT(prompt); t++) prompt[t] = (int32_t)(mix64((uint64_t)t) % (uint64_t)vocab);
        for (int32_t s = 0; s < SEQS; s++) {
            int32_t id = open_sequence(&w);
            put_pieces(&w, id, prompt, 1 + 11 * s, WHOLE);
            for (int32_t t = 0; t < STEPS_EACH; t++) must(ebb_engine_step(w.engine, &id, 1, &error), &error);
            memcpy(alone + s * vocab, ebb_sequence_logits(w.engine, id), (size_t)vocab * sizeof *alone);
            ebb_sequence_close(w.engine, id);
        }
        for (int32_t s = 0; s < SEQS; s++) {
            ids[s] = open_sequence(&w);
            must(ebb_sequence_append(w.engine, ids[s], prompt, 1 + 11 * s, &error), &error);
        }
        must(ebb_engine_prefill(w.engine, &error), &error);
        for (int32_t t = 0; t < STEPS_EACH; t++) must(ebb_engine_step(w.engine, ids, SEQS, &error), &error);
        for (int32_t s = 0; s < SEQS; s++)
            if (memcmp(alone + s * vocab, ebb_sequence_logits(w.engine, ids[s]), (size_t)vocab * sizeof *alone) != 0)
                fail_msg("%s: sequence %d has other bits in company", models[i].folder, s);
        free(alone);
        close_world(&w);
    }
}

/* ---- experts that are not needed ---- */

static int32_t packed_experts(const ebb_model *m, int32_t *layers) {
    int32_t n = *layers = 0;
    for (int32_t i = 0; i < m->info.layers; i++) {
        struct model_moe *moe = m->layers[i].moe;
        *layers += moe != NULL;
        for (int32_t e = 0; moe && e < moe->router.experts; e++) n += atomic_load(&moe->experts[e].packed);
    }
    return n;
}

static void test_cold(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        world w;
        int32_t layers, used = strstr(models[i].folder, "hybrid") ? 2 : 3;
        open_model(&w, i);
        assert_int_equal(packed_experts(w.model, &layers), 0);
        assert_true(layers >= 2);
        const int32_t id = open_sequence(&w), token = 7;
        put_pieces(&w, id, &token, 1, 1);
        assert_int_equal(packed_experts(w.model, &layers), layers * used);
        close_world(&w);
    }
}

/* Memory that ends when it is told to. */
static void *limited_alloc(void *ctx, size_t bytes, size_t align) {
    void *block = NULL;
    return *(bool *)ctx || posix_memalign(&block, align, bytes) ? NULL : block;
}
static void limited_free(void *ctx, void *block, size_t bytes) {
    (void)ctx, (void)bytes;
    free(block);
}

static void test_no_memory(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        world w;
        bool ended = false;
        ebb_error error;
        char path[256];
        const ebb_allocator memory = {&ended, limited_alloc, limited_free};
        json_t *items = golden(i);
        int64_t n;
        int32_t *ids = ids_of(json_object_get(json_array_get(items, 3), "ids"), &n);
        snprintf(path, sizeof path, DATA "%s", models[i].folder);
        open_world(&w, path, &memory);
        const int32_t id = open_sequence(&w);
        must(ebb_sequence_append(w.engine, id, ids, n, &error), &error);
        ended = true;
        assert_int_equal(ebb_engine_prefill(w.engine, &error), EBB_NO_MEMORY);
        assert_non_null(strstr(error.text, "no memory for a weight of"));
        ebb_sequence_close(w.engine, id);
        ended = false;
        assert_true(run_golden(&w, items, WHOLE, false, models[i].folder) < LIMIT);
        free(ids);
        json_decref(items);
        close_world(&w);
    }
}

/* ---- every tensor counts ---- */

static char scratch[64];

static void write_bytes(const char *name, const void *data, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void read_bytes(const char *folder, const char *name, char **data, size_t *bytes) {
    ebb_error error;
    char path[256];
    snprintf(path, sizeof path, DATA "%s/%s", folder, name);
    must(read_file(path, (size_t)1 << 24, data, bytes, &error), &error);
}

static void copy_file(const char *folder, const char *name) {
    char *data;
    size_t bytes;
    read_bytes(folder, name, &data, &bytes);
    write_bytes(name, data, bytes);
    free(data);
}

static int make_scratch(void **state) {
    (void)state;
    snprintf(scratch, sizeof scratch, "/tmp/ebb-test-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static int clear_scratch(void **state) {
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json"};
    char path[128];
    (void)state;
    for (int32_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", scratch, names[i]);
        unlink(path);
    }
    return rmdir(scratch);
}

static bool is_left_out(const char *name) { return !strncmp(name, "mtp.", 4) || strstr(name, "visual"); }

/* -4 in place of the first weight: of every expert, for no prompt needs all; of the embedding in the row of a token
 * that prompts have. */
static void perturb(const st_tensor *t, uint8_t *at, int64_t token) {
    const bool stack = strstr(t->name, ".experts.") && t->dims == 3;
    const size_t row = t->bytes / (size_t)t->shape[0];
    if (strstr(t->name, "embed_tokens")) at += (size_t)token * row;
    for (int64_t i = 0; i < (stack ? t->shape[0] : 1); i++, at += row) {
        if (t->type == EBB_FP32) memcpy(at, &(float){-4}, sizeof(float));
        else memcpy(at, &(uint16_t){0xc080}, sizeof(uint16_t));
    }
}

static void test_every_tensor_counts(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        ebb_error error;
        st_set *set;
        char path[256], *data;
        size_t bytes;
        int64_t n, tested = 0;
        json_t *items = golden(i);
        const int64_t token = json_integer_value(json_array_get(json_object_get(json_array_get(items, 4), "ids"), 0));
        copy_file(models[i].folder, "config.json");
        copy_file(models[i].folder, "tokenizer.json");
        read_bytes(models[i].folder, "model.safetensors", &data, &bytes);
        snprintf(path, sizeof path, DATA "%s", models[i].folder);
        must(st_open(path, &set, &error), &error);
        const st_tensor *t = st_tensors(set, &n);
        size_t header = 0;
        for (int k = 0; k < 8; k++) header |= (size_t)(uint8_t)data[k] << 8 * k;
        const uint8_t *first = t[0].data;
        for (int64_t j = 0; j < n; j++) first = t[j].data < first ? t[j].data : first;
        for (int64_t j = 0; j < n; j++) {
            world w;
            if (is_left_out(t[j].name)) continue;
            uint8_t *copy = malloc(bytes);
            memcpy(copy, data, bytes);
            perturb(&t[j], copy + 8 + header + (t[j].data - first), token);
            write_bytes("model.safetensors", copy, bytes);
            free(copy);
            open_world(&w, scratch, NULL);
            const double worst = run_golden(&w, items, WHOLE, false, models[i].folder);
            close_world(&w);
            if (worst < LIMIT) fail_msg("%s: %s changed and nobody noticed: %g", models[i].folder, t[j].name, worst);
            tested++;
        }
        print_message("%s: %lld tensors count\n", models[i].folder, (long long)tested);
        st_close(set);
        free(data);
        json_decref(items);
    }
}

/* ---- what is refused, and what is said ---- */

static void test_refused(void **state) {
    (void)state;
    static const struct {
        int32_t model;
        const char *field, *value; /* value NULL: the field is taken out */
        ebb_status status;
        const char *words;
    } rows[] = {
        {0, "num_experts_per_tok", "5", EBB_BAD_FILE, "has 5 experts for a token, expected at most num_experts = 4"},
        {0, "num_experts_per_tok", NULL, EBB_BAD_FILE, "num_experts_per_tok is missing"},
        {0, "num_experts", "5", EBB_BAD_FILE, "mlp.gate.weight has shape [4, 32]; config.json makes it [5, 32]"},
        {0, "moe_intermediate_size", "8", EBB_BAD_FILE, "experts.0.gate_proj.weight has shape [16, 32]"},
        {0, "shared_expert_intermediate_size", "8", EBB_BAD_FILE, "shared_expert.gate_proj.weight has shape [24, 32]"},
        {0, "mlp_only_layers", "[2]", EBB_BAD_FILE, "mlp_only_layers[0] is no layer, expected 0 to 1"},
        {0, "mlp_only_layers", "[1]", EBB_BAD_FILE, "layers.1.mlp.gate_proj.weight is missing"},
        {0, "decoder_sparse_step", "0", EBB_BAD_FILE, "decoder_sparse_step is 0"},
        {1, "num_experts", NULL, EBB_BAD_FILE, "num_experts is missing"},
        {1, "num_experts", "3", EBB_BAD_FILE, "mlp.gate.weight has shape [4, 32]"},
        {1, "moe_intermediate_size", "8", EBB_BAD_FILE, "experts.gate_up_proj has shape [4, 32, 32]"},
        {1, "norm_topk_prob", "false", EBB_UNSUPPORTED, "has norm_topk_prob false, only true is served"},
        {2, "moe_router_activation_func", "\"softmax\"", EBB_UNSUPPORTED, "softmax, only sigmoid is served"},
        {2, "num_expert_group", "3", EBB_BAD_FILE, "has 1 of 3 groups of experts for a token, expected equal groups"},
        {2, "num_expert_group", "4", EBB_BAD_FILE, "has 1 of 4 groups of experts for a token, expected equal groups"},
        {2, "topk_group", "2", EBB_BAD_FILE, "has 2 of 1 groups"},
        {2, "num_shared_experts", "2", EBB_BAD_FILE, "shared_experts.gate_proj.weight has shape [16, 32]"},
        {2, "num_shared_experts", "0", EBB_UNSUPPORTED, "shared_experts.down_proj.weight has no place in kimi_linear"},
        {2, "num_experts_per_token", NULL, EBB_BAD_FILE, "num_experts_per_token is missing"},
        {2, "first_k_dense_replace", "0", EBB_BAD_FILE, "layers.0.block_sparse_moe.gate.weight is missing"},
        {2, "moe_layer_freq", "2", EBB_BAD_FILE, "layers.1.mlp.gate_proj.weight is missing"},
    };
    for (int32_t i = 0; i < COUNT(rows); i++) {
        const char *folder = models[rows[i].model].folder;
        char path[256];
        ebb_device *device;
        ebb_model *model;
        ebb_error error = {EBB_OK, ""};
        snprintf(path, sizeof path, DATA "%s/config.json", folder);
        json_t *config = load_json(path);
        if (rows[i].value) json_object_set_new(config, rows[i].field, json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        else json_object_del(config, rows[i].field);
        copy_file(folder, "tokenizer.json");
        copy_file(folder, "model.safetensors");
        snprintf(path, sizeof path, "%s/config.json", scratch);
        assert_int_equal(json_dump_file(config, path, 0), 0);
        json_decref(config);
        must(ebb_device_open("cpu", NULL, &device, &error), &error);
        const ebb_status status = ebb_model_open(device, scratch, NULL, &model, &error);
        if (status != rows[i].status || !strstr(error.text, rows[i].words))
            fail_msg("%s = %s: '%s' (%s) instead of '%s'", rows[i].field, rows[i].value ? rows[i].value : "(none)",
                     error.text, ebb_status_name(status), rows[i].words);
        ebb_device_close(device);
    }
}

static void test_description(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        world w;
        open_model(&w, i);
        const ebb_model_info *m = ebb_model_describe(w.model);
        const int64_t expert =
            strstr(models[i].folder, "hybrid") ? 4 * 16 : 8 * 12; /* experts of a layer x their width */
        int32_t layers;
        packed_experts(w.model, &layers);
        assert_int_equal(m->expert_bytes,
                         layers * expert * 3 * 32 * (strstr(models[i].folder, "hybrid") ? 2 : 4)); /* BF16, FP32 */
        assert_int_equal(ebb_model_has_mtp(w.model), !strcmp(models[i].folder, "moe_35"));
        close_world(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_cold),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_description),
        cmocka_unit_test_setup_teardown(test_every_tensor_counts, make_scratch, clear_scratch),
        cmocka_unit_test_setup_teardown(test_refused, make_scratch, clear_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
