/* erase_world.h: a layer of kind EBB_ERASE with a pool, a plan and inputs, and its recurrence in FP64, for tests. */
#ifndef ERASE_WORLD_H
#define ERASE_WORLD_H

#include "delta_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

/* ---- a layer with inputs ---- */

/* Tensors of some tokens; erase and remove lie in one array, [tokens][2][key_heads][key_dim]. */
typedef struct inputs {
    float *q, *k, *v, *g, *ep;
} inputs;

static inline inputs inputs_new(const ebb_state_layer *l, int64_t n) {
    const size_t rows = (size_t)n, nk = (size_t)l->key_heads * (size_t)l->key_dim;
    inputs in = {.q = calloc(rows * nk, 4), .k = calloc(rows * nk, 4), .ep = calloc(2 * rows * nk, 4)};
    in.v = calloc(rows * (size_t)l->heads * (size_t)l->value_dim, 4);
    in.g = calloc(rows * (size_t)l->heads * (size_t)l->key_dim, 4);
    return in;
}
static inline void inputs_free(inputs *in) { free(in->q), free(in->k), free(in->v), free(in->g), free(in->ep); }

typedef struct erase_world {
    delta_world w; /* its beta is not used */
    inputs in;
    int64_t nk, nv, ng; /* floats of a token */
} erase_world;

typedef enum filling { RANDOM, NO_DECAY, FULL_DECAY, MIXED_DECAY, ZERO_ERASE, ZERO_REMOVE, ZERO_KV, FILLINGS } filling;
static const char *const filling_name[FILLINGS] = {"random",  "no decay", "decay -inf", "decay 0 or -1000",
                                                   "erase 0", "remove 0", "k v 0"};

/* p is of length 1, e is p with every channel weighed by 0 .. 1, and a noise that takes it out of that direction. */
static inline void fill(erase_world *w, filling f) {
    const ebb_state_layer *l = &w->w.layer;
    const int32_t dk = l->key_dim;
    uint64_t s = 99;
    world_inputs(&w->w, 42, .02f);
    memcpy(w->in.q, w->w.q, (size_t)(w->w.n * w->nk) * 4), memcpy(w->in.k, w->w.k, (size_t)(w->w.n * w->nk) * 4);
    memcpy(w->in.v, w->w.v, (size_t)(w->w.n * w->nv) * 4), memcpy(w->in.g, w->w.g, (size_t)(w->w.n * w->ng) * 4);
    for (int64_t row = 0; row < w->w.n * l->key_heads; row++) {
        float *e = w->in.ep + (row / l->key_heads) * 2 * w->nk + row % l->key_heads * dk, *p = e + w->nk, sum = 1e-6f;
        for (int32_t u = 0; u < dk; u++) p[u] = world_uniform(&s), sum += p[u] * p[u];
        for (int32_t u = 0; u < dk; u++) {
            p[u] /= sqrtf(sum);
            e[u] = p[u] * (.5f + .5f * world_uniform(&s)) + .3f * world_uniform(&s) / sqrtf((float)dk);
            if (f == ZERO_ERASE) e[u] = 0;
            if (f == ZERO_REMOVE) p[u] = 0;
        }
    }
    for (int64_t i = 0; i < w->w.n * w->ng; i++) {
        if (f == NO_DECAY) w->in.g[i] = 0;
        if (f == FULL_DECAY) w->in.g[i] = -INFINITY;
        if (f == MIXED_DECAY) w->in.g[i] = mix64(s++) % 4 ? 0.0f : -1000.0f;
    }
    for (int64_t i = 0; f == ZERO_KV && i < w->w.n * w->nk; i++) w->in.k[i] = 0;
    for (int64_t i = 0; f == ZERO_KV && i < w->w.n * w->nv; i++) w->in.v[i] = 0;
}

static inline void erase_world_open(erase_world *w, ebb_device *device, const char *method, ebb_state_layer layer,
                                    int32_t max_new, int64_t n) {
    ebb_error error = {EBB_OK, ""};
    if (world_open(&w->w, device, method, NULL, layer, 3, max_new, n, &error)) fail_msg("%s: %s", method, error.text);
    w->in = inputs_new(&layer, n);
    w->nk = (int64_t)layer.key_heads * layer.key_dim, w->nv = (int64_t)layer.heads * layer.value_dim;
    w->ng = (int64_t)layer.heads * layer.key_dim;
    fill(w, RANDOM);
}
static inline void close_world(erase_world *w) {
    inputs_free(&w->in);
    world_close(&w->w);
}

/* NaN in every byte of the pool: none of it may be read. */
static inline void poison(erase_world *w) {
    const ebb_state_view *v = ebb_state_pool_view(w->w.pool, 0);
    memset(v->packed, 0xFF, (size_t)(v->packed_slot + v->live_slot) * (size_t)v->slots);
}

static inline ebb_delta_args args_of(const erase_world *w, const ebb_batch *b, const inputs *in, int64_t row,
                                     float *out) {
    const ebb_state_layer *l = &w->w.layer;
    ebb_delta_args a = world_args(&w->w, b, in->q + row * w->nk, in->k + row * w->nk, in->v + row * w->nv,
                                  in->g + row * w->ng, NULL, out);
    const ebb_tensor direction = {
        in->ep + row * 2 * w->nk, EBB_FP32, 3, {b->tokens, l->key_heads, l->key_dim}, {2 * w->nk, l->key_dim, 1}};
    a.erase = a.remove = direction;
    a.remove.data = in->ep + row * 2 * w->nk + w->nk;
    return a;
}

/* n tokens at `pos`, which are the rows from `row` on of the inputs. */
static inline void run_inputs(erase_world *w, bool prefill, int32_t slot, int64_t pos, const inputs *in, int64_t row,
                              int32_t n, float *out) {
    const int32_t cu[2] = {0, n};
    const ebb_batch b = {1, n, &slot, cu, &pos};
    const ebb_delta_args a = args_of(w, &b, in, row, out);
    ebb_error error = {EBB_OK, ""};
    must((prefill ? ebb_delta_prefill : ebb_delta_step)(w->w.queue, &w->w.plan, &a, &error), &error);
}
static inline void run(erase_world *w, bool prefill, int32_t slot, int64_t pos, int32_t n, float *out) {
    run_inputs(w, prefill, slot, pos, &w->in, pos, n, out);
}

/* The first `prompt` tokens by prefill, the others one by one. */
static inline float *decode(erase_world *w, int32_t slot, int32_t prompt) {
    float *out = calloc((size_t)(w->w.n * w->nv), sizeof *out);
    if (prompt) run(w, true, slot, 0, prompt, out);
    for (int64_t t = prompt; t < w->w.n; t++) run(w, false, slot, t, 1, out + t * w->nv);
    return out;
}

static inline float *read_state(erase_world *w, int32_t slot, int64_t pos) {
    ebb_error error;
    float *S = calloc((size_t)(w->w.layer.heads * w->w.layer.key_dim * w->w.layer.value_dim), sizeof *S);
    must(world_read(&w->w, slot, pos, S, &error), &error);
    return S;
}

/* ---- the judge ---- */

static inline void exact(const erase_world *w, int32_t head, int64_t n, double *S, double *out) {
    const ebb_state_layer *l = &w->w.layer;
    const int32_t dk = l->key_dim, dv = l->value_dim, kh = head / (l->heads / l->key_heads);
    double *pi = calloc((size_t)dv, sizeof *pi);
    for (int64_t t = 0; t < n; t++) {
        const float *q = w->in.q + t * w->nk + kh * dk, *k = w->in.k + t * w->nk + kh * dk;
        const float *e = w->in.ep + t * 2 * w->nk + kh * dk, *p = e + w->nk;
        const float *v = w->in.v + t * w->nv + head * dv, *g = w->in.g + t * w->ng + head * dk;
        for (int32_t i = 0; i < dv; i++) pi[i] = out[t * dv + i] = 0;
        for (int32_t u = 0; u < dk; u++)
            for (int32_t i = 0; i < dv; i++) pi[i] += (S[u * dv + i] *= exp((double)g[u])) * e[u];
        for (int32_t u = 0; u < dk; u++)
            for (int32_t i = 0; i < dv; i++)
                out[t * dv + i] += (S[u * dv + i] += k[u] * (double)v[i] - p[u] * pi[i]) * q[u] / sqrt((double)dk);
    }
    free(pi);
}

static inline double relative(const float *x, int64_t x_stride, const double *y, int64_t rows, int64_t n) {
    double d = 0, e = 1e-300;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            d += pow(x[r * x_stride + i] - y[r * n + i], 2);
            e += pow(y[r * n + i], 2);
        }
    return sqrt(d / e);
}

/* Relative distance of outputs [n][heads][value_dim] and S [heads][key_dim][value_dim], the worst of the heads. */
static inline double distance(const erase_world *w, int64_t n, const float *out, const float *S) {
    const int64_t dv = w->w.layer.value_dim, nS = w->w.layer.key_dim * dv;
    double *o = calloc((size_t)(n * dv) + 1, sizeof *o), *S64 = calloc((size_t)nS, sizeof *S64), worst = 0;
    for (int32_t h = 0; h < w->w.layer.heads; h++) {
        memset(S64, 0, (size_t)nS * sizeof *S64);
        exact(w, h, n, S64, o);
        const double of_out = relative(out + h * dv, w->nv, o, n, dv), of_S = relative(S + h * nS, nS, S64, 1, nS);
        worst = fmax(worst, isnan(of_out) || isnan(of_S) ? INFINITY : fmax(of_out, of_S));
    }
    free(o), free(S64);
    return worst;
}

#endif
