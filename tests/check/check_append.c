/* check/check_append.c: rows that write tokens into KV stores and that score keys, against op/ref: all bytes and all
 * bits the same, on hostile numbers too; and that nothing beyond their output is touched. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 19, DIMS = EBB_MAX_HEAD_DIM, APART = 7, MARGIN = 64, GUARD = 0xA5 };

typedef enum input_kind { NORMAL, HALVES, TINY, HUGE, CONSTANT, ZEROS, SPECIAL, SUBNORMAL, INPUT_KINDS } input_kind;
static const char *const kinds[INPUT_KINDS] = {"normal", "halves", "tiny",     "huge",
                                               "equal",  "zero",   "NaN, inf", "subnormal"};

static float number_of(rng *r, input_kind kind, int64_t i) {
    static const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 3e38f, -3e38f, 65504, 65519.9f, 65520};
    switch (kind) {
    case TINY:
        return 1e-6f * rng_normal(r);
    case HUGE:
        return 1e18f * rng_normal(r);
    case CONSTANT:
        return -3.0f;
    case ZEROS:
        return i % 2 ? 0.0f : -0.0f;
    case SPECIAL:
        return rng_below(r, 4) ? rng_normal(r) : special[rng_below(r, COUNT(special))];
    case SUBNORMAL:
        return 1e-40f * rng_normal(r);
    default:
        return rng_normal(r);
    }
}

/* ---- append ---- */

static void check_words(check *c, const append_row *row, const append_row *ref, int32_t type, input_kind kind, rng *r) {
    static const int32_t lengths[] = {1, 3, 7, 8, 15, 16, 31, 64, 80, 130, 256, DIMS};
    float x[DIMS], y[DIMS + 1], want[DIMS];
    uint16_t word[DIMS + 1], words[DIMS];
    for (int32_t l = 0; l < COUNT(lengths); l++) {
        const int32_t n = lengths[l];
        for (int32_t i = 0; i < n; i++) x[i] = number_of(r, kind, i);
        word[n] = 0x1234, y[n] = 1.5f;
        row->narrow(type, x, n, word), ref->narrow(type, x, n, words);
        if (memcmp(word, words, (size_t)n * sizeof *word)) check_fail(c, "%d numbers are other words than in ref", n);
        row->widen(type, words, n, y), ref->widen(type, words, n, want);
        if (memcmp(y, want, (size_t)n * sizeof *y)) check_fail(c, "%d words are other numbers than in ref", n);
        if (word[n] != 0x1234 || y[n] != 1.5f) check_fail(c, "touches what is behind %d numbers", n);
    }
}

/* All words but NaNs, of which only one form is ever stored. */
static void check_all_words(check *c, const append_row *row, const append_row *ref, int32_t type) {
    for (uint32_t first = 0; first < 65536; first += DIMS) {
        uint16_t word[DIMS];
        float y[DIMS], want[DIMS];
        const uint32_t top = type == EBB_FP16 ? 0x7C00 : 0x7F80;
        for (uint32_t i = 0; i < DIMS; i++)
            word[i] = (uint16_t)((first + i) & 0x7FFF) > top ? 0 : (uint16_t)(first + i);
        row->widen(type, word, DIMS, y), ref->widen(type, word, DIMS, want);
        if (memcmp(y, want, sizeof y)) check_fail(c, "words from %#x on are other numbers than in ref", first);
    }
}

/* Codes and scales of all heads lie as in a page: `stride` bytes from one head to the next. */
static void check_part(check *c, const append_row *row, const append_row *ref, append_part p, int32_t heads,
                       const float *x) {
    enum { BYTES = HEADS * (DIMS + MARGIN) };
    static const size_t scale_bytes = sizeof(uint16_t);
    uint8_t got[BYTES], want[BYTES];
    const size_t code_bytes = (size_t)p.dims * (size_t)p.bits / 8;
    memset(got, GUARD, sizeof got), memset(want, GUARD, sizeof want);
    p.x = x, p.x_stride = p.dims + APART, p.heads = heads, p.stride = (int64_t)(code_bytes + scale_bytes) + 5;
    p.code = got, p.scale = got + code_bytes + 1;
    row->codes(&p);
    p.code = want, p.scale = want + code_bytes + 1;
    ref->codes(&p);
    if (memcmp(got, want, sizeof got)) check_fail(c, "%d heads of %d dims have other bytes than in ref", heads, p.dims);
}

/* A scale of 11 bits exactly, and values whose quotients by it are halves: an inverse of the scale is not enough. */
static void halves_of(rng *r, int32_t dims, int32_t bits, float *x) {
    const float scale = (float)(1024 + rng_below(r, 1024)) / 4096, most = bits == 8 ? 127.0f : bits == 4 ? 7.0f : 1.0f;
    for (int32_t i = 0; i < dims; i++) x[i] = scale * ((float)rng_below(r, 2 * (int64_t)most) - most + 0.5f);
    x[rng_below(r, dims)] = most * scale;
}

static void check_codes(check *c, const append_row *row, const append_row *ref, int32_t bits, bool levels,
                        input_kind kind, rng *r) {
    static const int32_t dims[] = {4, 16, 20, 48, 64, 80, 96, 128, 192, 256, 512}, heads[] = {1, 2, 3, 8, 9, HEADS};
    float x[HEADS * (DIMS + APART)];
    for (int32_t d = 0; d < COUNT(dims); d++)
        for (int32_t h = 0; h < COUNT(heads); h++) {
            for (int32_t i = 0; i < COUNT(x); i++) x[i] = number_of(r, kind, i);
            for (int32_t i = 0; i < HEADS && kind == HALVES; i++)
                halves_of(r, dims[d], bits, x + i * (dims[d] + APART));
            check_part(c, row, ref, (append_part){.dims = dims[d], .bits = bits, .levels = levels}, heads[h], x);
        }
}

static void check_append_row(check *c, const append_row *row, const append_row *ref, rng *r) {
    static const struct {
        const char *name;
        int32_t bits;
        bool levels;
    } grids[] = {{"8 bits", 8, false}, {"4 bits", 4, false}, {"2 bits, three levels", 2, false}, {"2 bits", 2, true}};
    char what[64];
    for (input_kind kind = 0; kind < INPUT_KINDS; kind++) {
        for (int32_t bf16 = 0; bf16 < 2; bf16++) {
            snprintf(what, sizeof what, "%s, %s", bf16 ? "bf16" : "fp16", kinds[kind]);
            check_row(c, "append", row->id.name, what);
            check_words(c, row, ref, bf16 ? EBB_BF16 : EBB_FP16, kind, r);
            if (kind == NORMAL) check_all_words(c, row, ref, bf16 ? EBB_BF16 : EBB_FP16);
            check_done(c);
        }
        for (int32_t g = 0; g < COUNT(grids); g++) {
            snprintf(what, sizeof what, "%s, %s", grids[g].name, kinds[kind]);
            check_row(c, "append", row->id.name, what);
            check_codes(c, row, ref, grids[g].bits, grids[g].levels, kind, r);
            check_done(c);
        }
    }
}

/* ---- whole stores ---- */

enum { PROMPT = 600, STEPS = 3, TOKENS = PROMPT + STEPS };

typedef struct store_case {
    const char *method, *prefill;
    int32_t q_heads, heads, k, v; /* v == 0: an MLA latent of k dims, with 32 more in the key only */
} store_case;

typedef struct store_rows { /* of all tokens, one behind the other */
    float *q, *k, *v, *out;
} store_rows;

static bool feed(ebb_device *device, const ebb_kv_view *view, int32_t dims, const store_case *s, const store_rows *x) {
    ebb_plan plan = {.size = sizeof plan};
    ebb_queue *queue = NULL;
    const int32_t width = s->v ? s->v : s->k;
    bool good = !ebb_attn_plan(device, view, "ref", 1, 1, PROMPT, &plan, NULL) &&
                !ebb_queue_open(device, plan.scratch, &queue, NULL);
    for (int64_t pos = 0, n = PROMPT; good && pos < TOKENS; pos += n, n = 1) {
        const int64_t q = s->q_heads * (int64_t)dims, k = s->heads * (int64_t)dims, v = s->heads * (int64_t)width,
                      out = s->q_heads * (int64_t)width;
        ebb_attn_args args = {.size = sizeof args, .s = *view, .prompt = pos == 0};
        args.b = (ebb_batch){1, n, (int32_t[]){0}, (int32_t[]){0, (int32_t)n}, (int64_t[]){pos}};
        args.q = (ebb_tensor){x->q + pos * q, EBB_FP32, 3, {n, s->q_heads, dims}, {q, dims, 1}};
        args.k = (ebb_tensor){x->k + pos * k, EBB_FP32, 3, {n, s->heads, dims}, {k, dims, 1}};
        if (s->v) args.v = (ebb_tensor){x->v + pos * v, EBB_FP32, 3, {n, s->heads, width}, {v, width, 1}};
        args.out = (ebb_tensor){x->out + pos * out, EBB_FP32, 3, {n, s->q_heads, width}, {out, width, 1}};
        good = !ebb_attn(queue, &plan, &args, NULL);
    }
    ebb_queue_close(queue);
    return good;
}

/* All tokens through attention in `ref`, over a store that the device's best rows write. */
static bool store_run(int32_t features, const store_case *s, const store_rows *x) {
    ebb_kv_layer layer = {.q_heads = s->q_heads, .heads = s->heads, .parts = 2, .scale = 0.125f};
    layer.part[0].dims = (int16_t)s->k, layer.part[0].role = s->v ? EBB_ROLE_K : EBB_ROLE_K | EBB_ROLE_V;
    layer.part[1].dims = (int16_t)(s->v ? s->v : 32), layer.part[1].role = s->v ? EBB_ROLE_V : EBB_ROLE_K;
    const ebb_device_config c = {.size = sizeof c, .threads = 1, .features = features};
    ebb_device *device = NULL;
    ebb_kv_pool *pool = NULL;
    ebb_kv_spec spec;
    ebb_prefill prefill;
    const ebb_kv_pool_config config = {sizeof config, &spec, &layer, 1, 1, TOKENS, 0, 1, &prefill};
    const bool good = !ebb_device_open("cpu", &c, &device, NULL) && !ebb_kv_parse(s->method, &spec, NULL) &&
                      !ebb_prefill_parse(s->prefill, &prefill, NULL) &&
                      !ebb_kv_pool_open(device, &config, &pool, NULL) && !ebb_kv_pool_reserve(pool, 0, TOKENS, NULL) &&
                      feed(device, ebb_kv_pool_view(pool, 0), s->v ? s->k : s->k + 32, s, x);
    ebb_kv_pool_close(pool);
    ebb_device_close(device);
    return good;
}

/* Of a store that ref has written, attention gives the same bits: codes, tails and vertical keys are the same. */
static void check_store(check *c, const char *row, int32_t features, const store_case *s, rng *r) {
    enum { VALUES = TOKENS * 4 * 160 };
    float *x = malloc(5 * VALUES * sizeof *x);
    char what[96];
    snprintf(what, sizeof what, "%s, %s, %d heads of %d", s->method, s->prefill, s->heads, s->k);
    check_row(c, "append", row, what);
    for (int64_t i = 0; x && i < 5 * VALUES; i++) x[i] = rng_normal(r);
    store_rows rows = {x, x + VALUES, x + 2 * VALUES, x + 3 * VALUES}, want = rows;
    want.out = x + 4 * VALUES;
    if (!x) check_fail(c, "no memory");
    else if (!store_run(features, s, &rows) || !store_run(EBB_CPU_NONE, s, &want)) check_fail(c, "no store");
    else if (!check_same_bits(rows.out, want.out, (int64_t)TOKENS * s->q_heads * (s->v ? s->v : s->k)))
        check_fail(c, "attention over this store has other bits than over one written by ref");
    check_done(c);
    free(x);
}

static void check_stores(check *c, rng *r) {
    static const store_case cases[] = {
        {"fp16", "full", 4, 2, 64, 64},
        {"k8v8", "full", 4, 4, 80, 48},
        {"k2v4", "full", 4, 1, 128, 0},
        {"k4v4:window=256", "sage_w", 3, 3, 96, 96},
        {"hyquant", "vquant_vert", 4, 2, 128, 128},
        {"hyquant-k4v2:wide=bf16", "vquant_vert", 2, 1, 128, 0},
        {"hyquant-k2v4:select=prompt", "vquant_vert:select=prompt", 4, 2, 64, 64},
        {"hyquant:select=paper,window=100", "vquant_vert:select=paper,window=100", 4, 2, 64, 64},
        {"bf16", "vquant_vert", 4, 2, 64, 64},
        {"kivi4", "full", 4, 2, 64, 64},
    };
    static const struct {
        const char *row;
        int32_t needs, mask;
    } masks[] = {{"best", 0, EBB_CPU_ALL}, {"avx2", EBB_CPU_AVX2, EBB_CPU_AVX2}};
    for (int32_t m = 0; m < COUNT(masks); m++)
        for (int32_t i = 0; i < COUNT(cases) && !(masks[m].needs & ~c->features); i++)
            check_store(c, masks[m].row, masks[m].mask, &cases[i], r);
}

static ebb_device *open_device(check *c, const char *family) {
    ebb_device *device = NULL;
    if (!ebb_device_open("cpu", NULL, &device, NULL)) return device;
    check_row(c, family, "-", "device");
    check_fail(c, "cannot open the CPU device");
    check_done(c);
    return NULL;
}

void check_append(check *c) {
    ebb_device *device = open_device(c, "append");
    if (!device) return;
    const append_row *const *rows = rows_of(device)->append, *ref = NULL;
    rng r = {31};
    for (int32_t i = 0; rows[i]; i++) ref = rows[i];
    for (int32_t i = 0; rows[i] != ref; i++)
        if (check_can(c, &rows[i]->id)) check_append_row(c, rows[i], ref, &r);
    ebb_device_close(device);
    if (!c->quick) check_stores(c, &r);
}

/* ---- select ---- */

/* NaN has many forms, all of which are below every other score. */
static bool same_scores(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

static void check_scores(check *c, const select_row *row, const select_row *ref, input_kind kind, rng *r) {
    static const int32_t dims[] = {1, 7, 8, 16, 48, 64, 80, 100, 128, 256, 576}, keys[] = {1, 5, 8, 15, 16, 17, 31, 32};
    enum { KEYS = 32, WIDEST = 576 };
    static const int32_t heads[] = {1, 2, 3, 4, 7, 16};
    float query[WIDEST], got[WIDEST + 1], want[WIDEST + 1];
    static float key[KEYS * WIDEST]; /* 72 KiB */
    for (int32_t d = 0; d < COUNT(dims); d++) {
        for (int32_t i = 0; i < dims[d]; i++) query[i] = number_of(r, kind, i);
        for (int32_t i = 0; i < KEYS * dims[d]; i++) key[i] = number_of(r, kind, i);
        for (int32_t k = 0; k < COUNT(keys); k++) {
            got[keys[k]] = 1.5f;
            row->score(query, key, dims[d], keys[k], got), ref->score(query, key, dims[d], keys[k], want);
            if (!same_scores(got, want, keys[k])) check_fail(c, "%d keys of %d dims score otherwise", keys[k], dims[d]);
            if (got[keys[k]] != 1.5f) check_fail(c, "touches what is behind %d scores", keys[k]);
        }
        for (int32_t h = 0; h < COUNT(heads); h++) {
            memcpy(got, query, sizeof got - sizeof *got), memcpy(want, query, sizeof want - sizeof *want);
            got[dims[d]] = 1.5f;
            row->add(key, dims[d], heads[h], dims[d], got), ref->add(key, dims[d], heads[h], dims[d], want);
            if (!same_scores(got, want, dims[d]))
                check_fail(c, "%d queries of %d dims add up otherwise", heads[h], dims[d]);
            if (got[dims[d]] != 1.5f) check_fail(c, "touches what is behind a sum of %d dims", dims[d]);
        }
    }
}

void check_select(check *c) {
    ebb_device *device = open_device(c, "select");
    if (!device) return;
    const select_row *const *rows = rows_of(device)->select, *ref = NULL;
    rng r = {32};
    for (int32_t i = 0; rows[i]; i++) ref = rows[i];
    for (int32_t i = 0; rows[i] != ref; i++)
        for (input_kind kind = 0; kind < INPUT_KINDS && check_can(c, &rows[i]->id); kind++) {
            check_row(c, "select", rows[i]->id.name, kinds[kind]);
            check_scores(c, rows[i], ref, kind, &r);
            check_done(c);
        }
    ebb_device_close(device);
}
