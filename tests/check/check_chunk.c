/* check/check_chunk.c: the chunk rows of this CPU against op/ref. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const chunk_row chunk_ref;
#ifdef EBB_X86
extern const chunk_row chunk_avx2, chunk_avx512;
#elif defined(EBB_ARM)
extern const chunk_row chunk_neon;
#endif
static const chunk_row *const rows[] = {
#ifdef EBB_X86
    &chunk_avx512, &chunk_avx2,
#elif defined(EBB_ARM)
    &chunk_neon,
#endif
    NULL};

/* What fills a head's tensors. Keys are always short of length 1, as the recurrence needs to stay bounded. */
typedef enum filling {
    PLAIN,
    ZERO_QKV,
    TINY,
    LARGE_V,
    NO_DECAY,
    FULL_DECAY,
    MIXED_DECAY,
    ZERO_BETA,
    SAME_KEY,
    FILLINGS
} filling;
static const char *const filling_name[FILLINGS] = {"random",      "q k v 0",       "q k 1e-30", "v 6e4",  "no decay",
                                                   "decay -1000", "decay 0/-1000", "beta 0",    "one key"};

typedef struct head {
    chunk_args args;
    float *q, *k, *v, *g, *beta, *S, *out, *first_S;
    void *scratch;
    const chunk_row *row;
} head;

static void head_free(head *h) {
    free(h->q), free(h->k), free(h->v), free(h->g), free(h->beta), free(h->S), free(h->out), free(h->first_S),
        free(h->scratch);
}

static float *floats(int64_t n) { return aligned_new((size_t)n * sizeof(float)); }

static bool head_new(head *h, const chunk_row *row, int32_t kind, int32_t key_dim, int32_t value_dim, int64_t pos,
                     int64_t n) {
    ebb_state_layer layer = {.kind = kind, .key_heads = 1, .heads = 1, .key_dim = key_dim, .value_dim = value_dim};
    int64_t gates = kind == EBB_KDA ? key_dim : 1, size = (int64_t)key_dim * value_dim;
    *h = (head){.row = row};
    h->q = floats(n * key_dim), h->k = floats(n * key_dim), h->v = floats(n * value_dim), h->g = floats(n * gates);
    h->beta = floats(n), h->S = floats(size), h->out = floats(n * value_dim), h->first_S = floats(size);
    h->scratch = aligned_new(row->scratch(&layer));
    h->args = (chunk_args){kind,    key_dim,   value_dim, pos, n,         h->q, h->k,   h->v, h->g, h->beta, key_dim,
                           key_dim, value_dim, gates,     1,   value_dim, h->S, h->out, NULL, NULL, 0,       0};
    if (h->q && h->k && h->v && h->g && h->beta && h->S && h->out && h->first_S && h->scratch) return true;
    head_free(h);
    return false;
}

static float gate_of(rng *r, filling f) {
    if (f == NO_DECAY) return 0.0f;
    if (f == FULL_DECAY) return -1000.0f;
    if (f == MIXED_DECAY) return rng_below(r, 4) ? 0.0f : -1000.0f;
    return 0.3f * logf(0.5f * rng_uniform(r) + 0.5f + 1e-7f) - 1e-4f;
}

static void head_fill(head *h, filling f, uint64_t seed) {
    rng r = {seed};
    const chunk_args *a = &h->args;
    float side = 1.0f / sqrtf((float)a->key_dim), size = f == TINY ? 1e-30f : f == ZERO_QKV ? 0.0f : side;
    for (int64_t i = 0; i < a->n * a->key_dim; i++) {
        h->q[i] = size * rng_normal(&r);
        h->k[i] = size * rng_uniform(&r);
        if (f == SAME_KEY && i >= a->key_dim) h->k[i] = h->k[i - a->key_dim];
    }
    for (int64_t i = 0; i < a->n * a->value_dim; i++)
        h->v[i] = f == ZERO_QKV ? 0.0f : (f == LARGE_V ? 6e4f : 1.0f) * rng_normal(&r);
    for (int64_t i = 0; i < a->n * a->g_stride; i++) h->g[i] = fminf(0.0f, gate_of(&r, f));
    for (int64_t i = 0; i < a->n; i++) h->beta[i] = f == ZERO_BETA ? 0.0f : 0.5f * rng_uniform(&r) + 0.5f;
    for (int64_t i = 0; i < (int64_t)a->key_dim * a->value_dim; i++)
        h->first_S[i] = f == ZERO_QKV ? 0.0f : rng_normal(&r);
}

static void head_run(head *h) {
    memcpy(h->S, h->first_S, (size_t)h->args.key_dim * (size_t)h->args.value_dim * sizeof(float));
    h->row->run(&h->args, h->scratch);
}

/* Errors are measured against the largest value of the tensor: a chunk sums them all. */
static void compare(check *c, const char *what, const float *x, const float *y, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)y[i]));
    double d = check_distance(x, y, n, 3e-6 * most + 1e-37, 1e-5);
    if (!(d <= 1)) check_fail(c, "%s is %.3g times the tolerance away from ref", what, d);
}

static void check_one(check *c, const chunk_row *row, int32_t kind, int32_t key_dim, int32_t value_dim, int64_t pos,
                      int64_t n) {
    head mine, ref;
    char what[64];
    if (!head_new(&mine, row, kind, key_dim, value_dim, pos, n)) {
        check_row(c, "chunk", row->id.name, "memory");
        check_fail(c, "no memory for %d x %d", (int)key_dim, (int)value_dim);
        check_done(c);
        return;
    }
    snprintf(what, sizeof what, "%s %dx%d pos %lld n %lld", kind == EBB_KDA ? "kda" : "gdn", (int)key_dim,
             (int)value_dim, (long long)pos, (long long)n);
    check_row(c, "chunk", row->id.name, what);
    if (!head_new(&ref, &chunk_ref, kind, key_dim, value_dim, pos, n)) check_fail(c, "no memory for ref");
    else {
        for (int32_t f = 0; f < FILLINGS; f++) {
            char name[64];
            head_fill(&mine, (filling)f, (uint64_t)f + 100);
            head_fill(&ref, (filling)f, (uint64_t)f + 100);
            head_run(&mine);
            head_run(&ref);
            snprintf(name, sizeof name, "S of '%s'", filling_name[f]);
            compare(c, name, mine.S, ref.S, (int64_t)key_dim * value_dim);
            snprintf(name, sizeof name, "out of '%s'", filling_name[f]);
            compare(c, name, mine.out, ref.out, n * value_dim);
        }
        head_free(&ref);
    }
    check_done(c);
    head_free(&mine);
}

void check_chunk(check *c) {
    static const int32_t dims[][2] = {{128, 128}, {64, 128}, {96, 96}, {256, 256}, {16, 48}, {8, 24}};
    static const int64_t runs[][2] = {{0, 1}, {0, 64}, {17, 3}, {63, 130}, {200, 65}};
    for (const chunk_row *const *row = rows; *row; row++) {
        if (!check_can(c, &(*row)->id)) continue;
        for (int32_t kind = EBB_GDN; kind <= EBB_KDA; kind++)
            for (int32_t d = 0; d < COUNT(dims); d++) {
                ebb_state_layer layer = {
                    .kind = kind, .key_heads = 1, .heads = 1, .key_dim = dims[d][0], .value_dim = dims[d][1]};
                if ((*row)->refuse(&layer)) continue;
                for (int32_t i = 0; i < COUNT(runs); i++)
                    check_one(c, *row, kind, dims[d][0], dims[d][1], runs[i][0], runs[i][1]);
            }
    }
}
