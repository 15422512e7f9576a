/* delta_world.h: one delta layer with a pool, a plan and inputs of a long sequence, for tests that drive the state
 * store directly. Needs ebb-core only. */
#ifndef DELTA_WORLD_H
#define DELTA_WORLD_H

#include "default_layout.h"
#include "op/rows.h"
#include "state/records.h"

#include <math.h>
#include <stdlib.h>

typedef struct delta_world {
    ebb_device *device;
    ebb_queue *queue;
    ebb_state_layer layer;
    ebb_state_spec spec;
    ebb_layout *layout; /* of calibrated methods: default_layout.h */
    ebb_state_pool *pool;
    ebb_plan plan;
    int64_t n;     /* tokens of inputs */
    int64_t gates; /* floats of g a token */
    float *q, *k, *v, *g, *beta;
    float
        *weights; /* of the stages, where the layer has a convolution: then all stages are planned, and v serves as z */
    ebb_mixer mixer;
} delta_world;

static inline float world_uniform(uint64_t *s) {
    return (float)((double)(int64_t)(mix64((*s)++) >> 11) / 4503599627370496.0 - 1.0);
}

/* Floats of the stages' weights: conv, a_log, dt_bias, out_norm. */
static inline int64_t world_weights(const delta_world *w) {
    const ebb_state_layer *l = &w->layer;
    return l->conv_width ? ebb_state_conv_channels(l) * l->conv_width + l->heads + w->gates + l->value_dim : 0;
}

/* Unit keys and queries, values of size 1, decays of mean -rate a token, beta in .1 .. .9. */
static inline void world_inputs(delta_world *w, uint64_t seed, float rate) {
    const ebb_state_layer *l = &w->layer;
    const int64_t nk = (int64_t)l->key_heads * l->key_dim, nv = (int64_t)l->heads * l->value_dim;
    for (int64_t t = 0; t < w->n; t++) {
        for (int64_t i = 0; i < nk; i++)
            w->q[t * nk + i] = world_uniform(&seed), w->k[t * nk + i] = world_uniform(&seed);
        for (int32_t h = 0; h < l->key_heads; h++) {
            float *k = w->k + t * nk + (int64_t)h * l->key_dim, *q = w->q + t * nk + (int64_t)h * l->key_dim, sk = 0,
                  sq = 0;
            for (int32_t u = 0; u < l->key_dim; u++) sk += k[u] * k[u], sq += q[u] * q[u];
            for (int32_t u = 0; u < l->key_dim; u++) k[u] /= sqrtf(sk + 1e-6f), q[u] /= sqrtf(sq + 1e-6f);
        }
        for (int64_t i = 0; i < nv; i++) w->v[t * nv + i] = world_uniform(&seed);
        for (int64_t i = 0; i < w->gates; i++) w->g[t * w->gates + i] = -rate * (1 + world_uniform(&seed));
        for (int32_t h = 0; h < l->heads; h++) w->beta[t * l->heads + h] = .5f + .4f * world_uniform(&seed);
    }
    for (int64_t i = 0; i < world_weights(w); i++) w->weights[i] = .5f * world_uniform(&seed);
}

static inline ebb_status world_open(delta_world *w, ebb_device *device, const char *method, const char *algorithm,
                                    ebb_state_layer layer, int32_t slots, int32_t max_new, int64_t n,
                                    ebb_error *error) {
    *w = (delta_world){.device = device, .layer = layer, .n = n};
    w->gates = (int64_t)layer.heads * (layer.kind == EBB_GDN ? 1 : layer.key_dim);
    const size_t nk = (size_t)layer.key_heads * (size_t)layer.key_dim,
                 nv = (size_t)layer.heads * (size_t)layer.value_dim;
    w->q = calloc((size_t)n * nk, sizeof(float));
    w->k = calloc((size_t)n * nk, sizeof(float));
    w->v = calloc((size_t)n * nv, sizeof(float));
    w->g = calloc((size_t)n * (size_t)w->gates, sizeof(float));
    w->beta = calloc((size_t)n * (size_t)layer.heads, sizeof(float));
    w->weights = calloc((size_t)world_weights(w) + 1, sizeof(float));
    w->mixer = (ebb_mixer){.conv = w->weights, .eps = 1e-6f};
    w->mixer.a_log = w->weights + (layer.conv_width ? ebb_state_conv_channels(&layer) * layer.conv_width : 0);
    w->mixer.dt_bias = w->mixer.a_log + layer.heads;
    w->mixer.out_norm = w->mixer.dt_bias + w->gates;
    ebb_status status = ebb_state_parse(method, &w->spec, error);
    if (!status) status = default_layout_for(&w->spec, &w->layer, 1, &w->layout, error);
    if (status) return status;
    ebb_state_pool_config config = {.size = sizeof config,
                                    .spec = &w->spec,
                                    .layers = &w->layer,
                                    .n_layers = 1,
                                    .slots = slots,
                                    .max_new = max_new};
    if ((status = ebb_state_pool_open(device, &config, &w->pool, error))) return status;
    status = ebb_delta_plan(device, ebb_state_pool_view(w->pool, 0), algorithm, layer.conv_width ? EBB_STAGES : 0,
                            slots, max_new, n, &w->plan, error);
    return status ? status : ebb_queue_open(device, w->plan.scratch, &w->queue, error);
}

static inline void world_close(delta_world *w) {
    ebb_queue_close(w->queue);
    ebb_state_pool_close(w->pool);
    ebb_layout_free(w->layout);
    free(w->q), free(w->k), free(w->v), free(w->g), free(w->beta), free(w->weights);
}

/* Arguments of the tokens `from` .. of the inputs, or of arrays of the same shapes. */
static inline ebb_delta_args world_args(const delta_world *w, const ebb_batch *b, float *q, float *k, float *v,
                                        float *g, float *beta, float *out) {
    const ebb_state_layer *l = &w->layer;
    const int64_t nk = (int64_t)l->key_heads * l->key_dim, nv = (int64_t)l->heads * l->value_dim,
                  ng = w->gates / l->heads;
    ebb_delta_args a = {.size = sizeof a, .s = *ebb_state_pool_view(w->pool, 0), .b = *b};
    a.q = (ebb_tensor){q, EBB_FP32, 3, {b->tokens, l->key_heads, l->key_dim}, {nk, l->key_dim, 1}};
    a.k = (ebb_tensor){k, EBB_FP32, 3, {b->tokens, l->key_heads, l->key_dim}, {nk, l->key_dim, 1}};
    a.v = (ebb_tensor){v, EBB_FP32, 3, {b->tokens, l->heads, l->value_dim}, {nv, l->value_dim, 1}};
    a.g = (ebb_tensor){g, EBB_FP32, 3, {b->tokens, l->heads, ng}, {w->gates, ng, 1}};
    a.beta = (ebb_tensor){beta, EBB_FP32, 2, {b->tokens, l->heads}, {l->heads, 1}};
    a.out = (ebb_tensor){out, EBB_FP32, 3, {b->tokens, l->heads, l->value_dim}, {nv, l->value_dim, 1}};
    a.z = a.v;
    a.mixer = &w->mixer;
    return a;
}

/* One sequence in `slot`: n tokens of the inputs at position pos (input row pos too). prefill or step. */
static inline ebb_status world_run(delta_world *w, bool prefill, int32_t slot, int64_t pos, int32_t n, float *out,
                                   ebb_error *error) {
    const ebb_state_layer *l = &w->layer;
    const int64_t nk = (int64_t)l->key_heads * l->key_dim, nv = (int64_t)l->heads * l->value_dim;
    const int32_t cu[2] = {0, n};
    const ebb_batch b = {1, n, &slot, cu, &pos};
    ebb_delta_args a = world_args(w, &b, w->q + pos * nk, w->k + pos * nk, w->v + pos * nv, w->g + pos * w->gates,
                                  w->beta + pos * l->heads, out);
    return (prefill ? ebb_delta_prefill : ebb_delta_step)(w->queue, &w->plan, &a, error);
}

/* S of every head at pos. */
static inline ebb_status world_read(delta_world *w, int32_t slot, int64_t pos, float *S, ebb_error *error) {
    const int32_t cu[2] = {0, 0};
    const ebb_batch b = {1, 0, &slot, cu, &pos};
    ebb_delta_args a = world_args(w, &b, NULL, NULL, NULL, NULL, NULL, NULL);
    return ebb_delta_read(w->queue, &w->plan, &a, S, error);
}

/* The recurrence of maths 1.1 in FP64 for one value head over tokens 0 .. n-1 of the inputs: out [n][value_dim], S. */
static inline void world_exact(const delta_world *w, int32_t head, int64_t n, double *S, double *out) {
    const ebb_state_layer *l = &w->layer;
    const int32_t dk = l->key_dim, dv = l->value_dim, kh = head / (l->heads / l->key_heads);
    double *p = calloc((size_t)dv, sizeof *p);
    for (int64_t t = 0; t < n; t++) {
        const float *q = w->q + (t * l->key_heads + kh) * dk, *k = w->k + (t * l->key_heads + kh) * dk;
        const float *v = w->v + (t * l->heads + head) * dv, *g = w->g + t * w->gates + head * (w->gates / l->heads);
        double beta = w->beta[t * l->heads + head], scale = 1 / sqrt((double)dk);
        for (int32_t i = 0; i < dv; i++) p[i] = 0;
        for (int32_t u = 0; u < dk; u++)
            for (int32_t i = 0; i < dv; i++)
                p[i] += (S[u * dv + i] *= exp((double)g[l->kind == EBB_KDA ? u : 0])) * k[u];
        for (int32_t i = 0; i < dv; i++) p[i] = beta * (v[i] - p[i]);
        for (int32_t i = 0; i < dv; i++) out[t * dv + i] = 0;
        for (int32_t u = 0; u < dk; u++)
            for (int32_t i = 0; i < dv; i++) out[t * dv + i] += (S[u * dv + i] += k[u] * p[i]) * (q[u] * scale);
    }
    free(p);
}

#endif
