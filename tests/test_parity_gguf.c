/* test_parity_gguf.c: models with recurrent layers from GGUF files that llama.cpp's converter wrote, FP32 stores:
 * logits of transformers, logits of the folder that the file was made of, and a change in any tensor. Golden data and
 * files: data/make_hybrid_gguf.py. */
#define _GNU_SOURCE /* memmem */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "gguf_world.h"
#include "model/gguf.h"

#define DATA SOURCE_DIR "/tests/data/"

/* Of the error of a logit over 1 + |logit|: what a model may have, and what a change of a weight has to make. */
#define LIMIT 1e-4

static const struct {
    const char *name;    /* DATA/hybrid_NAME.gguf */
    const char *golden;  /* part of hybrid_golden.json */
    const char *folder;  /* with the same weights; NULL: there is none */
    bool tiled;          /* value heads lie in another order */
    const char *further; /* begins names of a layer that only predicts (MTP), of which nothing is computed here */
} models[] = {
    {"qwen35", "qwen35", DATA "hybrid_qwen35", true, "blk.3."},
    {"qwen35_q8", "qwen35_q8", NULL, true, "blk.3."},
    {"qwen35moe", "qwen35moe", DATA "hybrid_qwen35moe", true, NULL},
    {"qwen3next", "qwen3next", DATA "hybrid_qwen3next", false, NULL},
    {"kimi_moe", "kimi_moe", DATA "hybrid_kimi_moe", false, NULL},
    {"kimi_q8", "kimi_q8", NULL, false, NULL},
};

static json_t *golden(const char *which) {
    json_t *root = load_json(DATA "hybrid_golden.json"), *part = json_incref(json_object_get(root, which));
    assert_true(json_array_size(part) >= 5);
    json_decref(root);
    return part;
}

static const char *model_path(const char *which, char path[static 256]) {
    snprintf(path, 256, DATA "hybrid_%s.gguf", which);
    return path;
}

/* ---- a model and its engine ---- */

typedef struct world {
    ebb_device *device;
    ebb_model *model;
    ebb_engine *engine;
} world;

static void open_world(world *w, const char *path) {
    ebb_error error = {EBB_OK, ""};
    must(ebb_device_open("cpu", NULL, &w->device, &error), &error);
    must(ebb_model_open(w->device, path, NULL, &w->model, &error), &error);
    const ebb_engine_config config = {
        .size = sizeof config, .state = "fp32", .kv = "fp32", .max_tokens = 512, .prefill_tokens = EBB_GRID};
    must(ebb_engine_open(w->model, &config, &w->engine, &error), &error);
}

static void close_world(world *w) {
    ebb_engine_close(w->engine);
    ebb_model_close(w->model);
    ebb_device_close(w->device);
}

static int32_t begin(world *w, const int32_t *ids, int64_t n) {
    ebb_error error;
    const ebb_sampling greedy = EBB_GREEDY;
    int32_t id;
    must(ebb_sequence_open(w->engine, &greedy, &id, &error), &error);
    must(ebb_sequence_append(w->engine, id, ids, n, &error), &error);
    must(ebb_engine_prefill(w->engine, &error), &error);
    return id;
}

static double larger(double a, double b) { return b > a || isnan(b) ? b : a; }

/* ---- against golden data ---- */

/* An answer may leave the golden one only where two logits are all but equal; it is not followed further then. */
static void check_answer(world *w, int32_t id, const json_t *answer, const char *name) {
    ebb_error error;
    for (size_t t = 0; t < json_array_size(answer); t++) {
        if (t) must(ebb_engine_step(w->engine, &id, 1, &error), &error);
        const float *logits = ebb_sequence_logits(w->engine, id);
        const int32_t got = ebb_sequence_token(w->engine, id),
                      want = (int32_t)json_integer_value(json_array_get(answer, t));
        if (got == want) continue;
        if (!((double)(logits[got] - logits[want]) < 1e-3))
            fail_msg("%s: answer token %zu is %d, expected %d", name, t, got, want);
        return;
    }
}

/* The largest error of a logit over 1 + |logit|. */
static double run_golden(const char *path, const char *name, const json_t *items, bool answers) {
    world w;
    double worst = 0;
    open_world(&w, path);
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        int64_t n;
        int32_t *ids = ids_of(json_object_get(item, "ids"), &n), id = begin(&w, ids, n);
        worst = larger(worst, logits_error(w.engine, id, item));
        if (answers) check_answer(&w, id, json_object_get(item, "answer"), name);
        ebb_sequence_close(w.engine, id);
        free(ids);
    }
    close_world(&w);
    return worst;
}

static void test_golden(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        char path[256];
        json_t *items = golden(models[i].golden);
        const double worst = run_golden(model_path(models[i].name, path), models[i].name, items, true);
        print_message("%s: the largest error of a logit is %g\n", models[i].name, worst);
        if (!(worst < LIMIT)) fail_msg("%s: a logit is off by %g", models[i].name, worst);
        json_decref(items);
    }
}

/* ---- against the folder ---- */

static double logits_between(const world *a, int32_t in_a, const world *b, int32_t in_b) {
    const float *x = ebb_sequence_logits(a->engine, in_a), *y = ebb_sequence_logits(b->engine, in_b);
    double worst = 0;
    for (int32_t i = 0; i < ebb_model_describe(a->model)->vocab; i++)
        worst = larger(worst, fabs((double)x[i] - (double)y[i]) / (1 + fabs((double)y[i])));
    return worst;
}

enum { LONGEST = 300 };
static const int64_t lengths[] = {1, 2, 5, 63, 64, 65, 257, LONGEST};

/* Prompts by prefill, then an answer of both. Returns the largest distance after a prompt. */
static double run_both(const char *path, const char *folder, int32_t steps, double *later) {
    world a, b;
    ebb_error error;
    int32_t ids[LONGEST];
    double worst = 0;
    *later = 0;
    open_world(&a, path);
    open_world(&b, folder);
    const int32_t vocab = ebb_model_describe(a.model)->vocab;
    assert_int_equal(ebb_model_describe(b.model)->vocab, vocab);
    for (int32_t i = 0; i < COUNT(lengths); i++) {
        for (int64_t t = 0; t < lengths[i]; t++) ids[t] = (int32_t)(mix64((uint64_t)(i * 1000 + t)) % (uint64_t)vocab);
        const int32_t in_a = begin(&a, ids, lengths[i]), in_b = begin(&b, ids, lengths[i]);
        worst = larger(worst, logits_between(&a, in_a, &b, in_b));
        for (int32_t t = 0; t < steps; t++) {
            if (ebb_sequence_token(a.engine, in_a) != ebb_sequence_token(b.engine, in_b)) return 1;
            must(ebb_engine_step(a.engine, &in_a, 1, &error), &error);
            must(ebb_engine_step(b.engine, &in_b, 1, &error), &error);
            *later = larger(*later, logits_between(&a, in_a, &b, in_b));
        }
        ebb_sequence_close(a.engine, in_a);
        ebb_sequence_close(b.engine, in_b);
    }
    close_world(&a);
    close_world(&b);
    return worst;
}

/* Every bit is the same, but where value heads are summed in another order (out_proj_tiled). */
static void test_folder(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        char path[256];
        double later;
        if (!models[i].folder) continue;
        const double worst = run_both(model_path(models[i].name, path), models[i].folder, 24, &later);
        print_message("%s: logits are within %g of those of the folder, within %g in 24 steps\n", models[i].name, worst,
                      later);
        if (!(worst <= (models[i].tiled ? 1e-5 : 0) && later <= (models[i].tiled ? 1e-4 : 0)))
            fail_msg("%s: a logit is off by %g, or by %g later", models[i].name, worst, later);
    }
}

/* ---- tensors, those of layers that predict included, against the folder's ---- */

static int64_t elements(const st_tensor *t) {
    int64_t n = 1;
    for (int32_t d = 0; d < t->dims; d++) n *= t->shape[d];
    return n;
}

/* In the order of the model; the caller frees it. */
static float *values_of(const st_set *set, const char *name, int64_t *n) {
    const st_tensor *t = st_find(set, name);
    if (!t) fail_msg("there is no tensor %s", name);
    float *x = calloc((size_t)(*n = elements(t)) + 1, sizeof *x), *to = x;
    if (!t->runs) st_widen(t->type, t->data, *n, x);
    const int64_t k = t->shape[1];
    for (int32_t i = 0; i < t->n_runs; to += t->runs[i++].n * k)
        st_widen(t->type, t->data + (size_t)t->runs[i].first * ebb_type_row_bytes((ebb_type)t->type, k),
                 t->runs[i].n * k, to);
    assert_true(!t->runs || to == x + *n);
    return x;
}

static void same(const char *name, const float *x, const float *want, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(x[i] - want[i]) <= 2e-7f * (1 + fabsf(want[i]))))
            fail_msg("%s: element %lld is %g, expected %g", name, (long long)i, (double)x[i], (double)want[i]);
}

/* `want` moves on, over the `rows` rows of `k` from row `first` of another tensor. */
static void same_rows(const st_set *set, const char *base, const char *what, int64_t first, int64_t rows, int64_t k,
                      const float **want) {
    char name[160];
    int64_t n;
    snprintf(name, sizeof name, "%s%s", base, what);
    float *x = values_of(set, name, &n);
    assert_true(n >= (first + rows) * k);
    same(name, x + first * k, *want, rows * k);
    *want += rows * k;
    free(x);
}

typedef struct head_sizes {
    int64_t keys, heads, key_dim, value_dim;
} head_sizes;

/* Interleaved by key head in the folder, in order here. */
static void same_turns(const st_set *set, const char *base, const char *what, const head_sizes *s, int64_t k,
                       const float *want) {
    const int64_t each = s->heads / s->keys, wide = each * s->value_dim, keys = s->keys * s->key_dim;
    for (int64_t g = 0; g < s->keys; g++) {
        if (!strcmp(what, "in_proj_ba.weight")) {
            same_rows(set, base, "in_proj_b.weight", g * each, each, k, &want);
            same_rows(set, base, "in_proj_a.weight", g * each, each, k, &want);
            continue;
        }
        same_rows(set, base, "in_proj_qkv.weight", g * s->key_dim, s->key_dim, k, &want);
        same_rows(set, base, "in_proj_qkv.weight", keys + g * s->key_dim, s->key_dim, k, &want);
        same_rows(set, base, "in_proj_qkv.weight", 2 * keys + g * wide, wide, k, &want);
        same_rows(set, base, "in_proj_z.weight", g * wide, wide, k, &want);
    }
}

/* Columns of the value heads: the first one of each key head, then the second ones. */
static void same_tiled(const st_set *set, const char *name, const head_sizes *s, const float *want) {
    int64_t n;
    float *x = values_of(set, name, &n);
    const int64_t k = s->heads * s->value_dim, each = s->heads / s->keys;
    for (int64_t i = 0; i < n; i++) {
        const int64_t head = i % k / s->value_dim, tile = head % each * s->keys + head / each;
        same(name, x + i / k * k + tile * s->value_dim + i % s->value_dim, want + i, 1);
    }
    free(x);
}

/* One tensor of all experts in the folder, or two where gate and up are in one. */
static void same_experts(const st_set *set, const char *base, const char *what, const st_tensor *t, const float *want) {
    const bool pair = strstr(what, "gate_up") != NULL;
    for (int64_t e = 0; e < t->shape[0]; e++) {
        char name[64];
        snprintf(name, sizeof name, "%lld.%s_proj.weight", (long long)e, pair ? "gate" : "down");
        same_rows(set, base, name, 0, t->shape[1] / (pair ? 2 : 1), t->shape[2], &want);
        snprintf(name, sizeof name, "%lld.up_proj.weight", (long long)e);
        if (pair) same_rows(set, base, name, 0, t->shape[1] / 2, t->shape[2], &want);
    }
}

/* Of each head W_uk, turned here, and W_uv. */
static void same_latent(const st_set *set, const char *base, const float *want) {
    char name[160];
    int64_t n;
    snprintf(name, sizeof name, "%sk_b_proj.weight", base);
    float *k = values_of(set, name, &n);
    const st_tensor *t = st_find(set, name);
    const int64_t heads = t->shape[0], rank = t->shape[1], nope = t->shape[2];
    snprintf(name, sizeof name, "%sv_b_proj.weight", base);
    float *v = values_of(set, name, &n);
    const int64_t dim = n / heads / rank;
    for (int64_t h = 0; h < heads; h++, want += (nope + dim) * rank) {
        for (int64_t i = 0; i < nope * rank; i++)
            same("k_b", &k[h * rank * nope + i % rank * nope + i / rank], &want[i], 1);
        same("v_b", &v[h * dim * rank], &want[nope * rank], dim * rank);
    }
    free(k), free(v);
}

static void same_tensor(const st_set *set, const st_tensor *t, const head_sizes *s, bool tiled, const float *want) {
    char base[128];
    snprintf(base, sizeof base, "%s", t->name);
    static const char *const behind[] = {"linear_attn.", "experts.", "self_attn."};
    const char *what = t->name;
    for (int32_t i = 0; i < COUNT(behind); i++) {
        const char *at = strstr(t->name, behind[i]);
        if (at) what = at + strlen(behind[i]);
    }
    base[what - t->name] = 0;
    if (!strcmp(what, "in_proj_qkvz.weight") || !strcmp(what, "in_proj_ba.weight"))
        same_turns(set, base, what, s, t->shape[1], want);
    else if (tiled && !strcmp(what, "out_proj.weight")) same_tiled(set, t->name, s, want);
    else if (!strcmp(what, "gate_up_proj") || !strcmp(what, "down_proj")) same_experts(set, base, what, t, want);
    else if (!strcmp(what, "kv_b_proj.weight")) same_latent(set, base, want);
    else {
        int64_t n;
        float *x = values_of(set, t->name, &n);
        assert_int_equal(n, elements(t));
        same(t->name, x, want, n);
        free(x);
    }
}

static void test_tensors(void **state) {
    (void)state;
    static const struct {
        const char *name, *folder;
        head_sizes sizes;
        bool tiled;
    } rows[] = {{"qwen35", DATA "hybrid_qwen35", {2, 6, 8, 16}, true},
                {"qwen35moe", DATA "hybrid_qwen35moe", {2, 4, 8, 16}, true},
                {"qwen3next", DATA "hybrid_qwen3next", {2, 4, 8, 16}, false},
                {"kimi_moe", DATA "hybrid_kimi_moe", {0}, false}};
    for (int32_t i = 0; i < COUNT(rows); i++) {
        ebb_error error;
        gguf_file file;
        st_set *set, *folder;
        char path[256];
        int64_t n, all;
        must(gguf_open(model_path(rows[i].name, path), &file, &error), &error);
        must(gguf_tensors(&file, &set, &error), &error);
        must(st_open(rows[i].folder, &folder, &error), &error);
        const st_tensor *t = st_tensors(folder, &n);
        for (int64_t j = 0; j < n; j++) {
            float *want = values_of(folder, t[j].name, &all);
            same_tensor(set, &t[j], &rows[i].sizes, rows[i].tiled, want);
            free(want);
        }
        print_message("%s: %lld tensors are those of the folder\n", rows[i].name, (long long)n);
        st_close(folder);
        st_close(set);
        gguf_close(&file);
    }
}

/* What older files have: q, k, v and z of each key head in one tensor. */
static void test_older(void **state) {
    (void)state;
    static const head_sizes sizes = {2, 4, 8, 16};
    static const char name[] = "model.layers.0.linear_attn.in_proj_qkvz.weight";
    ebb_error error;
    gguf_file file;
    st_set *set, *folder;
    char path[256];
    int64_t n;
    must(gguf_open(model_path("older", path), &file, &error), &error);
    must(gguf_tensors(&file, &set, &error), &error);
    must(st_open(DATA "hybrid_qwen3next", &folder, &error), &error);
    float *want = values_of(folder, name, &n);
    same_tensor(set, st_find(folder, name), &sizes, false, want);
    free(want);
    st_close(folder);
    st_close(set);
    gguf_close(&file);
}

/* ---- every tensor counts ---- */

static void write_bytes(const char *path, const uint8_t *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

static const char *scratch_path(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/ebb_parity_gguf.%d", (int)getpid());
    return path;
}

/* Another number of usual size in place of the first weight, or of the scale of the first block: of every expert, for
 * no prompt needs all; of the embedding in the row of a token that prompts have. Decays stay below 0. */
static void perturb(const gguf_file *file, const gguf_tensor *t, uint8_t *copy, int64_t token) {
    const size_t pieces = t->dims == 3 ? (size_t)t->shape[0] : 1, row = t->bytes / (size_t)t->shape[0];
    uint8_t *at = copy + (t->data - file->map.data);
    if (!strcmp(t->name, "token_embd.weight")) at += (size_t)token * row;
    for (size_t i = 0; i < pieces; i++, at += row) {
        if (t->type != EBB_FP32) at[1] ^= 0x84; /* sign and exponent */
        else if (strstr(t->name, "ssm_a")) at[2] ^= 0x80;
        else at[3] ^= 0x82, at[2] ^= 0x80;
    }
}

static void test_every_tensor_counts(void **state) {
    (void)state;
    for (int32_t i = 0; i < COUNT(models); i++) {
        ebb_error error;
        gguf_file file;
        char path[256];
        json_t *items = golden(models[i].golden);
        const json_t *ids = json_object_get(json_array_get(items, 4), "ids");
        const int64_t token = json_integer_value(json_array_get(ids, 0));
        must(gguf_open(model_path(models[i].name, path), &file, &error), &error);
        uint8_t *copy = malloc(file.map.bytes);
        for (uint64_t t = 0; t < file.n_tensors; t++) {
            const gguf_tensor *tensor = &file.tensors[t];
            if (models[i].further && !strncmp(tensor->name, models[i].further, strlen(models[i].further))) continue;
            memcpy(copy, file.map.data, file.map.bytes);
            perturb(&file, tensor, copy, token);
            write_bytes(scratch_path(), copy, file.map.bytes);
            const double worst = run_golden(scratch_path(), models[i].name, items, false);
            if (worst < LIMIT) fail_msg("%s: %s changed and nobody noticed: %g", models[i].name, tensor->name, worst);
        }
        free(copy);
        gguf_close(&file);
        json_decref(items);
    }
    unlink(scratch_path());
}

/* ---- what is said of them ---- */

static void test_description(void **state) {
    (void)state;
    char path[256];
    world w;
    open_world(&w, model_path("qwen35_q8", path));
    const ebb_model_info *info = ebb_model_describe(w.model);
    assert_string_equal(info->architecture, "qwen3_5_text");
    assert_int_equal(info->state_layers, 2);
    assert_int_equal(info->kv_layers, 1);
    assert_int_equal(info->max_position, 2048);
    /* Blocks stay: most weights are held in 8.5 bits, the small rest in 32. */
    print_message("%lld parameters in %zu bytes\n", (long long)info->parameters, info->weight_bytes);
    assert_true((double)info->weight_bytes < 1.5 * (double)info->parameters);
    close_world(&w);
}

/* How text is cut into words, which the file only names, shows in which neighbours merge: a letter and an accent, a
 * letter and a Han character, a small and a capital letter, two digits. */
static void test_words(void **state) {
    (void)state;
    static const char *const texts[] = {"x\u0301", "a\u5b57", "aB", "12"};
    static const struct {
        const char *name;
        int64_t tokens[COUNT(texts)];
    } rows[] = {{"qwen35", {2, 3, 1, 2}}, {"qwen3next", {3, 3, 1, 2}}, {"kimi_moe", {2, 4, 2, 1}}};
    for (int32_t i = 0; i < COUNT(rows); i++) {
        ebb_error error;
        ebb_tokenizer *t;
        char path[256];
        must(ebb_tokenizer_open(model_path(rows[i].name, path), &t, &error), &error);
        for (int32_t j = 0; j < COUNT(texts); j++) {
            int32_t *ids;
            int64_t n;
            must(ebb_tokenize(t, texts[j], strlen(texts[j]), true, &ids, &n, &error), &error);
            if (n != rows[i].tokens[j])
                fail_msg("%s: '%s' is %lld tokens, expected %lld", rows[i].name, texts[j], (long long)n,
                         (long long)rows[i].tokens[j]);
            free(ids);
        }
        ebb_tokenizer_close(t);
    }
}

/* ---- files that lie ---- */

/* One thing of a file changed: a text by one of the same length; the whole number of 32 bits of a field; both in
 * place. */
typedef struct lie {
    const char *which, *from, *to; /* to NULL: the field `from` becomes `value` */
    uint32_t value;
    ebb_status status;
    const char *words;
} lie;

static void tell(const lie *l, char *text, size_t n) {
    char *at = memmem(text, n, l->from, strlen(l->from));
    if (!at) fail_msg("no %s in %s", l->from, l->which);
    if (l->to) {
        assert_int_equal(strlen(l->from), strlen(l->to));
        memcpy(at, l->to, strlen(l->to));
    } else memcpy(at + strlen(l->from) + 4, &l->value, sizeof l->value);
}

static void refused(ebb_device *device, const lie *l, const char *text, size_t n) {
    ebb_error error = {EBB_OK, ""};
    ebb_model *model;
    write_bytes(scratch_path(), (const uint8_t *)text, n);
    const ebb_status status = ebb_model_open(device, scratch_path(), NULL, &model, &error);
    unlink(scratch_path());
    if (status != l->status || !strstr(error.text, l->words))
        fail_msg("'%s' (%s) instead of '%s'", error.text, ebb_status_name(status), l->words);
}

static void test_lies(void **state) {
    (void)state;
    static const lie lies[] = {
        {"qwen35", "qwen35.ssm.state_size", "qwen35.ssm.state_sise", 0, EBB_UNSUPPORTED,
         "field qwen35.ssm.state_sise is not known, and may change the model"},
        {"qwen35", "blk.0.ssm_alpha.weight", "blk.0.ssm_alpho.weight", 0, EBB_BAD_FILE,
         "tensor model.layers.0.linear_attn.in_proj_a.weight is missing"},
        {"qwen35", "blk.0.ssm_out.weight", "blk.9.ssm_out.weight", 0, EBB_BAD_FILE,
         "tensor model.layers.0.linear_attn.out_proj.weight is missing"},
        {"qwen35", "qwen35.ssm.group_count", NULL, 4, EBB_BAD_FILE, "make 6 value heads of 16 for 4 key heads of 8"},
        {"qwen35", "qwen35.ssm.group_count", NULL, 0, EBB_BAD_FILE, "for 0 key heads of 8"},
        {"qwen35", "qwen35.ssm.group_count", NULL, 3, EBB_BAD_FILE, "has 128 rows in the file; its fields make it 144"},
        {"qwen35", "qwen35.ssm.inner_size", NULL, 97, EBB_BAD_FILE,
         "ssm.inner_size is 97, expected a multiple of ssm.time_step_rank = 6"},
        {"qwen35", "qwen35.nextn_predict_layers", NULL, 4, EBB_BAD_FILE, "is 4, expected less than block_count = 4"},
        {"qwen35", "qwen35.ssm.time_step_rank", NULL, 70000, EBB_BAD_FILE, "is 70000, expected 0 to 65536"},
        {"qwen35moe", "qwen35moe.expert_count", NULL, 3, EBB_BAD_FILE, "is no stack of 3 matrices, one of each expert"},
        {"qwen3next", "blk.0.ssm_ba.weight", "blk.0.ssm_bb.weight", 0, EBB_BAD_FILE,
         "tensor model.layers.0.linear_attn.in_proj_b.weight is missing"},
        {"kimi_moe", "kimi-linear.kda.head_dim", "kimi-linear.kda.head_dip", 0, EBB_UNSUPPORTED,
         "field kimi-linear.kda.head_dip is not known"},
        {"kimi_moe", "kimi-linear.attention.key_length_mla", NULL, 8, EBB_BAD_FILE,
         "is 8, expected more than rope.dimension_count = 8"},
        {"kimi_moe", "kimi-linear.block_count", NULL, 5, EBB_BAD_FILE, "has 3 entries, expected one a layer, 5"},
        {"kimi_moe", "blk.0.ssm_a", "blk.0.ssm_o", 0, EBB_BAD_FILE, "there is no tensor blk.0.ssm_a"},
        {"kimi_moe", "blk.1.attn_v_b.weight", "blk.1.attn_u_b.weight", 0, EBB_BAD_FILE,
         "tensor model.layers.1.self_attn.v_b_proj.weight is missing"},
    };
    ebb_device *device;
    ebb_error error;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    for (int32_t i = 0; i < COUNT(lies); i++) {
        char path[256], *text;
        size_t n;
        must(read_file(model_path(lies[i].which, path), (size_t)1 << 24, &text, &n, &error), &error);
        tell(&lies[i], text, n);
        refused(device, &lies[i], text, n);
        free(text);
    }
    ebb_device_close(device);
}

/* A decay that no A_log gives. */
static void test_growth(void **state) {
    (void)state;
    static const lie grows = {"kimi_moe", NULL, NULL, 0, EBB_BAD_FILE, "expected -exp(A_log), below 0"};
    ebb_device *device;
    ebb_error error;
    gguf_file file;
    char path[256], *text;
    size_t n;
    must(ebb_device_open("cpu", NULL, &device, &error), &error);
    must(read_file(model_path(grows.which, path), (size_t)1 << 24, &text, &n, &error), &error);
    must(gguf_open(path, &file, &error), &error);
    for (uint64_t t = 0; t < file.n_tensors; t++)
        if (!strcmp(file.tensors[t].name, "blk.2.ssm_a")) text[file.tensors[t].data - file.map.data + 3] ^= (char)0x80;
    gguf_close(&file);
    refused(device, &grows, text, n);
    free(text);
    ebb_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_older),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_every_tensor_counts),
        cmocka_unit_test(test_description),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
