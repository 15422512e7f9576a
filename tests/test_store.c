/* test_store.c: the promises of the state store, for every method and every kernel row, bit for bit: drafts that are
 * rejected, steps that are aborted and repeated, slots full of another tenant's NaN: all give what plain decoding
 * gives. */
#include "delta_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "must.h"

enum { N = 150, NEW = 8 };

static ebb_device *device;
static const ebb_state_layer gdn = {.kind = EBB_GDN, .key_heads = 1, .heads = 2, .key_dim = 32, .value_dim = 48},
                             kda = {.kind = EBB_KDA, .key_heads = 1, .heads = 2, .key_dim = 32, .value_dim = 16},
                             odd = {.kind = EBB_GDN, .key_heads = 2, .heads = 2, .key_dim = 7, .value_dim = 5},
                             staged = {.kind = EBB_GDN,
                                       .key_heads = 1,
                                       .heads = 2,
                                       .key_dim = 32,
                                       .value_dim = 16,
                                       .conv_width = 4};

static void open_world(delta_world *w, const char *method, const char *row, ebb_state_layer layer, int32_t max_new,
                       int64_t n) {
    ebb_error error = {EBB_OK, ""};
    if (world_open(w, device, method, row, layer, 2, max_new, n, &error))
        fail_msg("%s %s: %s", method, row, error.text);
    world_inputs(w, 42, .02f);
}

/* NaN in every byte of the pool that fresh sequences will use: none of it may be read. */
static void poison(delta_world *w) {
    const ebb_state_view *v = ebb_state_pool_view(w->pool, 0);
    memset(v->packed, 0xFF, (size_t)(v->packed_slot + v->live_slot) * (size_t)v->slots);
}

static float *decode_plain(delta_world *w, int64_t first) {
    ebb_error error;
    const int64_t nv = (int64_t)w->layer.heads * w->layer.value_dim;
    float *out = calloc((size_t)(w->n * nv), sizeof *out);
    poison(w);
    if (first) must(world_run(w, true, 0, 0, (int32_t)first, out, &error), &error);
    for (int64_t t = first; t < w->n; t++) must(world_run(w, false, 0, t, 1, out + t * nv, &error), &error);
    return out;
}

/* One step of T tokens of which `good` are real and the rest junk. */
static void draft(delta_world *w, int64_t pos, int32_t T, int32_t good, uint64_t *s, float *out) {
    const ebb_state_layer *l = &w->layer;
    const int64_t nk = (int64_t)l->key_heads * l->key_dim, nv = (int64_t)l->heads * l->value_dim;
    float *q = calloc((size_t)(T * nk), 4), *k = calloc((size_t)(T * nk), 4), *v = calloc((size_t)(T * nv), 4);
    float *g = calloc((size_t)(T * w->gates), 4), *beta = calloc((size_t)T * (size_t)l->heads, 4);
    for (int64_t i = 0; i < T * nk; i++) q[i] = world_uniform(s), k[i] = world_uniform(s);
    for (int64_t i = 0; i < T * nv; i++) v[i] = 1e4f * world_uniform(s);
    for (int64_t i = 0; i < T * w->gates; i++) g[i] = -3;
    for (int64_t i = 0; i < T * l->heads; i++) beta[i] = 1;
    memcpy(q, w->q + pos * nk, (size_t)(good * nk) * 4), memcpy(k, w->k + pos * nk, (size_t)(good * nk) * 4);
    memcpy(v, w->v + pos * nv, (size_t)(good * nv) * 4),
        memcpy(g, w->g + pos * w->gates, (size_t)(good * w->gates) * 4);
    memcpy(beta, w->beta + pos * l->heads, (size_t)(good * l->heads) * 4);
    const int32_t slot = 1, cu[2] = {0, T};
    ebb_batch b = {1, T, &slot, cu, &pos};
    ebb_error error;
    ebb_delta_args a = world_args(w, &b, q, k, v, g, beta, out);
    must(ebb_delta_step(w->queue, &w->plan, &a, &error), &error);
    free(q), free(k), free(v), free(g), free(beta);
}

/* Drafts of 1..NEW tokens with random acceptance, and steps that are run, thrown away and run again. */
static void drafts_equal_plain(const char *method, const char *row, ebb_state_layer layer, int64_t prompt) {
    delta_world w;
    open_world(&w, method, row, layer, NEW, N);
    const int64_t nv = (int64_t)layer.heads * layer.value_dim;
    float *plain = decode_plain(&w, prompt), *out = calloc((size_t)(NEW * nv), sizeof *out),
          *prefix = calloc((size_t)(N * nv), 4);
    uint64_t s = 77;
    ebb_error error;
    if (prompt) must(world_run(&w, true, 1, 0, (int32_t)prompt, prefix, &error), &error);
    assert_memory_equal(prefix, plain, (size_t)(prompt * nv) * 4);
    for (int64_t pos = prompt; pos < N;) {
        int32_t T = 1 + (int32_t)(mix64(s++) % NEW);
        if (pos + T > N) T = (int32_t)(N - pos);
        int32_t good = 1 + (int32_t)(mix64(s++) % (uint64_t)T);
        if (mix64(s++) % 4 == 0) draft(&w, pos, T, (int32_t)(mix64(s++) % (uint64_t)(T + 1)), &s, out);
        draft(&w, pos, T, good, &s, out);
        if (memcmp(out, plain + pos * nv, (size_t)(good * nv) * 4))
            fail_msg("%s %s: other bits at token %lld after drafts", method, row, (long long)pos);
        pos += good;
    }
    free(plain), free(out), free(prefix);
    world_close(&w);
}

typedef void (*each_fn)(const char *method, const char *row, ebb_state_layer layer);

/* EBB_STORE_METHODS=codec (make tsan): the last method of each codec stands for the others, whose threads do the same.
 */
static bool left_out(const ebb_state_method *methods, int32_t n, int32_t m) {
    const char *which = getenv("EBB_STORE_METHODS");
    if (!which || strcmp(which, "codec") != 0) return false;
    for (int32_t i = m + 1; i < n; i++)
        if (methods[i].codec == methods[m].codec) return true;
    return false;
}

static void for_each(each_fn fn) {
    int32_t n;
    const ebb_state_method *methods = ebb_state_methods(&n);
    const ebb_state_layer *const layers[] = {&gdn, &kda, &odd, &staged};
    for (const delta_row *const *row = rows_of(device)->delta; *row; row++) {
        if ((*row)->id.needs & ~ebb_device_features(device)) continue;
        for (int32_t m = 0; m < n; m++)
            for (int i = 0; i < COUNT(layers) && !left_out(methods, n, m); i++)
                if (strcmp((*row)->id.name, "ref") == 0 || layers[i] != &odd)
                    fn(methods[m].name, (*row)->id.name, *layers[i]);
    }
}

static void drafts(const char *method, const char *row, ebb_state_layer layer) {
    drafts_equal_plain(method, row, layer, 0);
    drafts_equal_plain(method, row, layer, 21);
}
static void test_drafts(void **state) {
    (void)state;
    for_each(drafts);
}

/* Relative distance of outputs [n][heads][value_dim] and of S [heads][key_dim][value_dim] from the FP64 recurrence. */
static double distance_to_exact(const delta_world *w, int64_t n, const float *out, const float *S) {
    const int64_t dv = w->layer.value_dim, nv = w->layer.heads * dv, nS = w->layer.key_dim * dv;
    double *exact = calloc((size_t)(n * dv), sizeof *exact), *S64 = calloc((size_t)nS, sizeof *S64), worst = 0;
    for (int32_t h = 0; h < w->layer.heads; h++) {
        memset(S64, 0, (size_t)nS * sizeof *S64);
        world_exact(w, h, n, S64, exact);
        double d = 0, e = 1e-300, ds = 0, es = 1e-300;
        for (int64_t i = 0; i < nS; i++) ds += pow(S[h * nS + i] - S64[i], 2), es += S64[i] * S64[i];
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < dv; i++) {
                double x = exact[t * dv + i];
                d += pow(x - out[t * nv + h * dv + i], 2), e += x * x;
            }
        worst = fmax(worst, fmax(sqrt(d / e), sqrt(ds / es)));
    }
    free(exact), free(S64);
    return isfinite(worst) ? worst : INFINITY;
}

/* Distance from the FP64 recurrence that N tokens may bring: some three times what they do bring; for the methods that
 * are not named here by the bits of a code, which are in the method's name. */
static double drift_of(const char *method) {
    static const struct {
        const char *prefix;
        double drift;
    } table[] = {{"fp8", .3}, {"int5", .6}, {"leap6", .06}, {"leap5", .12}, {"leap4", .2}};
    for (int i = 0; i < COUNT(table); i++)
        if (!strncmp(method, table[i].prefix, strlen(table[i].prefix))) return table[i].drift;
    switch (atoi(method + strcspn(method, "0123456789"))) {
    case 32:
        return 1e-5;
    case 6:
        return .4;
    case 4:
        return 1.2;
    default:
        return .1;
    }
}

/* The store read through its window is the recurrence, in FP64, within the codec's error: 1e-5 for FP32. */
static void recurrence(const char *method, const char *row, ebb_state_layer layer) {
    delta_world w;
    ebb_error error;
    if (layer.conv_width) return; /* the recurrence alone */
    open_world(&w, method, row, layer, 1, N);
    float *out = decode_plain(&w, 0), *S = calloc((size_t)(layer.heads * layer.key_dim * layer.value_dim), 4);
    must(world_read(&w, 0, N, S, &error), &error);
    double far = distance_to_exact(&w, N, out, S);
    if (!(far < drift_of(method))) fail_msg("%s %s: %.2e from FP64", method, row, far);
    free(out), free(S);
    world_close(&w);
}
static void test_recurrence(void **state) {
    (void)state;
    for_each(recurrence);
}

/* Prompt tokens by prefill, cut anywhere at grid multiples, give the same bits; a sequence without tokens is untouched.
 */
static void prefill_cuts(const char *method, const char *row, ebb_state_layer layer) {
    enum { LONG = 3 * EBB_GRID + 70 };
    delta_world w;
    open_world(&w, method, row, layer, 1, LONG);
    const int64_t nv = (int64_t)layer.heads * layer.value_dim;
    const int64_t nS = nv * layer.key_dim;
    float *a = calloc((size_t)(LONG * nv), 4), *b = calloc((size_t)(LONG * nv), 4), *Sa = calloc((size_t)nS, 4),
          *Sb = calloc((size_t)nS, 4);
    ebb_error error;
    poison(&w);
    must(world_run(&w, true, 0, 0, LONG, a, &error), &error);
    const int64_t cuts[] = {0, EBB_GRID, 3 * EBB_GRID, LONG};
    for (int i = 0; i < 3; i++)
        must(world_run(&w, true, 1, cuts[i], (int32_t)(cuts[i + 1] - cuts[i]), b + cuts[i] * nv, &error), &error);
    must(world_run(&w, true, 1, LONG, 0, b, &error), &error);
    must(world_run(&w, false, 1, LONG, 0, b, &error), &error);
    assert_memory_equal(a, b, (size_t)(LONG * nv) * 4);
    must(world_read(&w, 0, LONG, Sa, &error), &error);
    must(world_read(&w, 1, LONG, Sb, &error), &error);
    assert_memory_equal(Sa, Sb, (size_t)nS * 4);
    free(a), free(b), free(Sa), free(Sb);
    world_close(&w);
}
static void test_prefill_cuts(void **state) {
    (void)state;
    for_each(prefill_cuts);
}

/* Rollback: an earlier position, down to the last boundary and at most max_new tokens back, then the same tokens again.
 */
static void rollback(const char *method, const char *row, ebb_state_layer layer) {
    delta_world w;
    open_world(&w, method, row, layer, NEW, N);
    const int64_t nv = (int64_t)layer.heads * layer.value_dim;
    float *plain = decode_plain(&w, 0), *out = calloc((size_t)nv, 4);
    ebb_error error;
    uint64_t s = 3;
    for (int64_t pos = 0, furthest = 0; pos < N; pos++) {
        must(world_run(&w, false, 1, pos, 1, out, &error), &error);
        assert_memory_equal(out, plain + pos * nv, (size_t)nv * 4);
        furthest = max_i64(furthest, pos);
        int64_t base = *base_of(ebb_state_pool_view(w.pool, 0), 1, 0),
                reach = min_i64(pos - base, pos - furthest + NEW);
        if (mix64(s++) % 5 == 0) pos -= (int64_t)(mix64(s++) % (uint64_t)(reach + 1));
    }
    free(plain), free(out);
    world_close(&w);
}
static void test_rollback(void **state) {
    (void)state;
    for_each(rollback);
}

/* The dimensions that models and hostile users have, decoded token by token. */
static void test_dimensions(void **state) {
    (void)state;
    enum { TOKENS = 40 };
    static const int32_t dims[][2] = {{128, 128}, {64, 128}, {96, 96}, {256, 256}, {7, 5}, {1, 1}, {48, 33}};
    static const struct {
        const char *method;
        double limit;
    } methods[] = {{"fp32", 1e-5},   {"fp32-w", 1e-5}, {"fp16-w", 2e-3}, {"bf16-w", 1e-2}, {"fp8-w", .1},
                   {"int8-w", 2e-2}, {"leap8", 1e-2},  {"leap6", .05},   {"leap5", .1},    {"leap4", .2}};
    for (const delta_row *const *row = rows_of(device)->delta; *row; row++)
        for (int d = 0; d < COUNT(dims); d++)
            for (int kind = EBB_GDN; kind <= EBB_KDA; kind++)
                for (int m = 0; m < COUNT(methods); m++) {
                    ebb_state_layer layer = {
                        .kind = kind, .key_heads = 1, .heads = 2, .key_dim = dims[d][0], .value_dim = dims[d][1]};
                    delta_world w;
                    ebb_error error;
                    ebb_status status =
                        world_open(&w, device, methods[m].method, (*row)->id.name, layer, 2, 1, TOKENS, &error);
                    if (status == EBB_UNSUPPORTED && strcmp((*row)->id.name, "ref")) { /* the row says what it serves */
                        world_close(&w);
                        continue;
                    }
                    must(status, &error);
                    world_inputs(&w, 6, .05f);
                    float *out = decode_plain(&w, 0), *S = calloc((size_t)(2 * layer.key_dim * layer.value_dim), 4);
                    must(world_read(&w, 0, TOKENS, S, &error), &error);
                    double far = distance_to_exact(&w, TOKENS, out, S);
                    if (!(far < methods[m].limit))
                        fail_msg("%s %s %dx%d kind %d: %.2e from FP64", methods[m].method, (*row)->id.name,
                                 layer.key_dim, layer.value_dim, kind, far);
                    free(out), free(S);
                    world_close(&w);
                }
}

/* Prompts cut anywhere, not at the grid, and 4,000 tokens that nothing ever decays: FP32 stays within rounding of FP64.
 */
static void test_prefill_anywhere(void **state) {
    (void)state;
    enum { LONG = 4000 };
    static const int32_t cuts[] = {1, 3, 17, 64, 255, 256, 257, 1000};
    for (int kind = EBB_GDN; kind <= EBB_KDA; kind++)
        for (int still = 0; still < 2; still++) {
            ebb_state_layer layer = {.kind = kind, .key_heads = 1, .heads = 2, .key_dim = 32, .value_dim = 16};
            delta_world w;
            ebb_error error;
            open_world(&w, "fp32", NULL, layer, 1, LONG);
            world_inputs(&w, 12, still ? 0 : .02f);
            const int64_t nv = 2 * 16;
            float *out = calloc((size_t)(LONG * nv), 4), *S = calloc(2 * 32 * 16, 4);
            poison(&w);
            for (int64_t pos = 0, i = 0; pos < LONG; i++) {
                int32_t n = (int32_t)min_i64(cuts[i % COUNT(cuts)], LONG - pos);
                must(world_run(&w, true, 0, pos, n, out + pos * nv, &error), &error);
                pos += n;
            }
            must(world_read(&w, 0, LONG, S, &error), &error);
            double far = distance_to_exact(&w, LONG, out, S);
            if (!(far < 1e-5)) fail_msg("kind %d, decay %s: %.2e from FP64", kind, still ? "0" : ".02", far);
            free(out), free(S);
            world_close(&w);
        }
}

/* A padding sequence (slot -1) beside a live one changes nothing of it, and touches no memory. */
static void test_padding(void **state) {
    (void)state;
    delta_world w;
    open_world(&w, "leap8", NULL, gdn, 1, N);
    const int64_t nk = gdn.key_heads * gdn.key_dim, nv = gdn.heads * gdn.value_dim;
    float *plain = decode_plain(&w, 0), out[3 * 2 * 48], v[3 * 2 * 48], q[3 * 32], k[3 * 32], g[6], beta[6];
    for (int64_t t = 0; t < N; t++) {
        for (int i = 0; i < 3; i++) {
            memcpy(q + i * nk, w.q + t * nk, (size_t)nk * 4), memcpy(k + i * nk, w.k + t * nk, (size_t)nk * 4);
            memcpy(v + i * nv, w.v + t * nv, (size_t)nv * 4), memcpy(g + i * 2, w.g + t * 2, 8);
            memcpy(beta + i * 2, w.beta + t * 2, 8);
        }
        const int32_t slot[3] = {-1, 1, -1}, cu[4] = {0, 1, 2, 3};
        const int64_t pos[3] = {t, t, 1 << 20};
        w.plan.max_seqs = 3;
        ebb_batch b = {3, 3, slot, cu, pos};
        ebb_error error;
        ebb_delta_args a = world_args(&w, &b, q, k, v, g, beta, out);
        must(ebb_delta_step(w.queue, &w.plan, &a, &error), &error);
        assert_memory_equal(out + nv, plain + t * nv, (size_t)nv * 4);
    }
    free(plain);
    world_close(&w);
}

/* Foreign memory and a foreign allocator; strides past 2^31 bytes, on an address range that is reserved but not filled.
 */
static void test_foreign_and_far(void **state) {
    (void)state;
    delta_world near, far;
    open_world(&near, "leap8", NULL, gdn, 1, N);
    open_world(&far, "leap8", NULL, gdn, 1, N);
    float *plain = decode_plain(&near, 0);
    const ebb_state_view *view = ebb_state_pool_view(far.pool, 0);
    const int64_t gap = (int64_t)3 << 30, nv = gdn.heads * gdn.value_dim, nk = gdn.key_heads * gdn.key_dim;
    uint8_t *packed = mmap(NULL, (size_t)(gap + (1 << 20)), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *live = mmap(NULL, (size_t)(gap + (1 << 20)), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (packed == MAP_FAILED || live == MAP_FAILED) skip();
    ebb_state_view moved = *view;
    moved.packed = packed, moved.live = live;
    moved.packed_slot = moved.live_slot = gap; /* slot 1 begins 3 GiB in */
    float out[2 * 48];
    for (int64_t t = 0; t < N; t++) {
        const int32_t slot = 1, cu[2] = {0, 1};
        ebb_batch b = {1, 1, &slot, cu, &t};
        ebb_error error;
        ebb_delta_args a = world_args(&far, &b, far.q + t * nk, far.k + t * nk, far.v + t * nv, far.g + t * far.gates,
                                      far.beta + t * 2, out);
        a.s = moved;
        must(ebb_delta_step(far.queue, &far.plan, &a, &error), &error);
        assert_memory_equal(out, plain + t * nv, (size_t)nv * 4);
    }
    munmap(packed, (size_t)(gap + (1 << 20))), munmap(live, (size_t)(gap + (1 << 20)));
    free(plain);
    world_close(&near), world_close(&far);
}

/* A foreign allocator sees every byte come back; a pool runs in the caller's memory; too little of it is refused. */
typedef struct counter {
    int64_t blocks, bytes, fail_after;
} counter;
static void *count_alloc(void *ctx, size_t bytes, size_t align) {
    counter *c = ctx;
    if (c->fail_after-- == 0) return NULL;
    c->blocks++, c->bytes += (int64_t)bytes;
    return aligned_alloc(align, align_up(bytes, align));
}
static void count_free(void *ctx, void *block, size_t bytes) {
    counter *c = ctx;
    c->blocks--, c->bytes -= (int64_t)bytes;
    free(block);
}
static void test_foreign_memory(void **state) {
    (void)state;
    counter c = {0, 0, -1};
    ebb_device_config config = {.size = sizeof config, .threads = 2, .memory = {&c, count_alloc, count_free}};
    ebb_device *own = device;
    ebb_error error;
    must(ebb_device_open("cpu", &config, &device, &error), &error);
    delta_world w;
    open_world(&w, "int4-w", NULL, gdn, 1, N);
    free(decode_plain(&w, 10));
    assert_true(c.blocks > 0);
    ebb_state_pool_config pool = {
        .size = sizeof pool, .spec = &w.spec, .layers = &w.layer, .n_layers = 1, .slots = 3, .max_new = 1};
    pool.memory_bytes = ebb_state_pool_bytes(&pool, &error);
    assert_true(pool.memory_bytes > 0);
    pool.memory = aligned_alloc(64, pool.memory_bytes);
    ebb_state_pool *foreign;
    int64_t before = c.blocks;
    must(ebb_state_pool_open(device, &pool, &foreign, &error), &error);
    assert_int_equal(before, c.blocks);
    assert_ptr_equal(ebb_state_pool_view(foreign, 0)->packed, pool.memory);
    ebb_state_pool_close(foreign);
    pool.memory_bytes--;
    assert_int_equal(ebb_state_pool_open(device, &pool, &foreign, &error), EBB_BAD_ARGUMENT);
    free(pool.memory);
    world_close(&w);
    assert_int_equal(c.blocks, 0);
    assert_int_equal(c.bytes, 0);
    c.fail_after = 0;
    pool.memory = NULL;
    assert_int_equal(ebb_state_pool_open(device, &pool, &foreign, &error), EBB_NO_MEMORY);
    ebb_device_close(device);
    device = own;
}

/* A position that the slot cannot serve is refused, not guessed. */
static void test_out_of_reach(void **state) {
    (void)state;
    delta_world w;
    open_world(&w, "leap8", NULL, gdn, 1, N);
    ebb_error error = {EBB_OK, ""};
    float out[2 * 48 * 40];
    must(world_run(&w, true, 0, 0, 40, out, &error), &error);
    assert_int_equal(world_run(&w, false, 0, 39, 1, out, &error), EBB_BAD_ARGUMENT); /* before the packed part */
    assert_non_null(strstr(error.text, "out of reach"));
    assert_int_equal(world_run(&w, false, 0, 120, 1, out, &error), EBB_BAD_ARGUMENT); /* tokens never seen */
    assert_int_equal(world_run(&w, false, 0, 40, 2, out, &error), EBB_BAD_ARGUMENT);  /* more than max_new */
    assert_int_equal(world_run(&w, false, 2, 0, 1, out, &error), EBB_BAD_ARGUMENT);   /* no such slot */
    must(world_run(&w, false, 0, 40, 1, out, &error), &error);
    world_close(&w);
}

/* 1.1 million tokens through one head: positions, rings and folds far past 2^16 and any 32-bit byte offset of inputs.
 */
static void test_million_tokens(void **state) {
    (void)state;
    ebb_state_layer layer = {.kind = EBB_GDN, .key_heads = 1, .heads = 1, .key_dim = 16, .value_dim = 16};
    delta_world w;
    open_world(&w, "int8-w", NULL, layer, 1, 4096);
    float *out = calloc(4096 * 16, 4), S[256];
    ebb_error error;
    const int64_t total = 1100000;
    for (int64_t pos = 0; pos < total;) {
        const int32_t n = (int32_t)min_i64(4096, total - pos), slot = 0, cu[2] = {0, n};
        ebb_batch b = {1, n, &slot, cu, &pos};
        ebb_delta_args a = world_args(&w, &b, w.q, w.k, w.v, w.g, w.beta, out);
        must(ebb_delta_prefill(w.queue, &w.plan, &a, &error), &error);
        pos += n;
    }
    must(world_read(&w, 0, total, S, &error), &error);
    for (int i = 0; i < 256; i++) assert_true(isfinite(S[i]) && fabsf(S[i]) < 100);
    free(out);
    world_close(&w);
}

static int setup(void **state) {
    (void)state;
    return ebb_device_open("cpu", NULL, &device, NULL) != EBB_OK;
}
static int teardown(void **state) {
    (void)state;
    ebb_device_close(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafts),         cmocka_unit_test(test_recurrence),
        cmocka_unit_test(test_prefill_cuts),   cmocka_unit_test(test_rollback),
        cmocka_unit_test(test_dimensions),     cmocka_unit_test(test_prefill_anywhere),
        cmocka_unit_test(test_padding),        cmocka_unit_test(test_foreign_and_far),
        cmocka_unit_test(test_foreign_memory), cmocka_unit_test(test_out_of_reach),
        cmocka_unit_test(test_million_tokens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
