/* check/check_delta.c: delta rows against op/ref: the same memory, the same step, side by side. After every step the
 * row's pool is overwritten with ref's, so that one rounding that fell the other way cannot hide or excuse a later
 * difference. */
#include "check.h"

#include "../delta_world.h"

#include <stdio.h>
#include <string.h>

typedef struct shape {
    int32_t kind, key_heads, heads, dk, dv;
} shape;

/* Relative Frobenius distance. */
static double distance(const float *a, const float *b, int64_t n) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), s += (double)b[i] * b[i];
    return isfinite(d) ? sqrt(d / (s + 1e-60)) : INFINITY;
}

static void adversarial(delta_world *w, int kind) {
    const ebb_state_layer *l = &w->layer;
    const int64_t nk = (int64_t)l->key_heads * l->key_dim, nv = (int64_t)l->heads * l->value_dim;
    for (int64_t i = 0; kind == 1 && i < w->n * w->gates; i++) w->g[i] = i % 7 == 3 ? -1000.0f : 0.0f;
    for (int64_t i = 0; kind == 2 && i < w->n * nv; i++) w->v[i] *= 6e4f;
    for (int64_t i = 0; kind == 3 && i < w->n * nv; i++) w->v[i] *= 1e-30f;
    for (int64_t i = 0; kind == 4 && i < w->n * nk; i++) w->k[i] = w->q[i] = 0;
    for (int64_t i = 0; kind == 5 && i < w->n * nv; i++) w->v[i] = 0.25f;
    for (int64_t i = 0; kind == 6 && i < w->n * l->heads; i++) w->beta[i] = (float)(i & 1);
}

/* A code that rounds the other way moves an output by a fraction of the codec's own error, a few of 16,384 codes a
 * fold: the fewer bits, the further. */
static double limit_of(const char *method) {
    const int bits = atoi(method + strcspn(method, "0123456789")); /* of a code: in the method's name */
    if (bits == 32) return 2e-5;
    const bool six = bits == 6 || !strncmp(method, "fp8", 3) || !strcmp(method, "leap-mix"); /* some heads of that */
    double limit = bits == 4 || bits == 5 ? 2e-2 : six ? 5e-3 : 2e-3;
    return strncmp(method, "kvquant", 7) ? limit : 3 * limit; /* another value may be the outlier */
}

static void compare(check *c, ebb_device *device, const delta_row *row, const char *method, shape s, int inputs) {
    static const char *const names[] = {"random",    "decay 0/-1000", "v 6e4",   "v 1e-30",
                                        "k = q = 0", "v constant",    "beta 0/1"};
    enum { N = 90, NEW = 8 };
    ebb_state_layer layer = {
        .kind = s.kind, .key_heads = s.key_heads, .heads = s.heads, .key_dim = s.dk, .value_dim = s.dv};
    delta_world a = {0}, b = {0};
    ebb_error error;
    char what[80];
    snprintf(what, sizeof what, "%s %s %dx%d %d/%d %s", method, s.kind == EBB_GDN ? "gdn" : "kda", s.dk, s.dv,
             s.key_heads, s.heads, names[inputs]);
    if (world_open(&a, device, method, "ref", layer, 1, NEW, N, &error)) {
        check_row(c, "delta", row->id.name, what);
        check_fail(c, "%s", error.text);
        check_done(c);
        world_close(&a);
        return;
    }
    if (row->refuse(ebb_state_pool_view(a.pool, 0))) {
        world_close(&a);
        return;
    }
    check_row(c, "delta", row->id.name, what);
    const size_t bytes = ebb_state_pool_bytes(&(ebb_state_pool_config){.size = sizeof(ebb_state_pool_config),
                                                                       .spec = &a.spec,
                                                                       .layers = &layer,
                                                                       .n_layers = 1,
                                                                       .slots = 1,
                                                                       .max_new = NEW},
                                              &error);
    const int64_t nv = (int64_t)s.heads * s.dv, nS = nv * s.dk;
    float *oa = calloc((size_t)(nv * NEW), sizeof *oa), *ob = calloc((size_t)(nv * NEW), sizeof *ob);
    float *Sa = calloc((size_t)nS, sizeof *Sa), *Sb = calloc((size_t)nS, sizeof *Sb);
    if (world_open(&b, device, method, row->id.name, layer, 1, NEW, N, &error)) check_fail(c, "%s", error.text);
    world_inputs(&a, 5, .05f), adversarial(&a, inputs);
    world_inputs(&b, 5, .05f), adversarial(&b, inputs);
    uint8_t *ma = ebb_state_pool_view(a.pool, 0)->packed, *mb = ebb_state_pool_view(b.pool, 0)->packed;
    rng r = {11};
    const int64_t tokens = a.spec.window > 1 ? N : N / 3; /* a few boundaries of either kind */
    for (int64_t pos = 0; pos < tokens && !c->row_failed;) {
        int32_t n = (int32_t)min_i64(1 + rng_below(&r, NEW), tokens - pos);
        if (pos) memcpy(mb, ma, bytes);
        if (world_run(&a, false, 0, pos, n, oa, &error) || world_run(&b, false, 0, pos, n, ob, &error))
            check_fail(c, "%s", error.text);
        double limit = limit_of(method), d = distance(ob, oa, nv * n);
        if (!(d < limit)) check_fail(c, "outputs differ by %.2e at token %lld", d, (long long)pos);
        pos += n;
        if (world_read(&a, 0, pos, Sa, &error) || world_read(&b, 0, pos, Sb, &error)) check_fail(c, "%s", error.text);
        d = distance(Sb, Sa, nS);
        if (!(d < limit)) check_fail(c, "states differ by %.2e at token %lld", d, (long long)pos);
    }
    check_done(c);
    free(oa), free(ob), free(Sa), free(Sb);
    world_close(&a), world_close(&b);
}

/* Packed bytes are the codec's, the same at every vector width: a row's pack against encode, cold and warm. */
static void packs_alike(check *c, ebb_device *device, const delta_row *row, const char *method, shape s) {
    static const float sizes[] = {0.0f, 1e-30f, 1.0f, 6e4f};
    ebb_state_layer layer = {
        .kind = s.kind, .key_heads = s.key_heads, .heads = s.heads, .key_dim = s.dk, .value_dim = s.dv};
    delta_world w;
    ebb_error error;
    rng r = {21};
    char what[80];
    ebb_status status = world_open(&w, device, method, "ref", layer, 1, 1, 1, &error);
    const ebb_state_view *v = status ? NULL : ebb_state_pool_view(w.pool, 0);
    if (status || row->refuse(v)) {
        world_close(&w);
        return;
    }
    snprintf(what, sizeof what, "%s packs the same bytes, %dx%d", method, s.dk, s.dv);
    check_row(c, "delta", row->id.name, what);
    const int64_t n = (int64_t)s.dk * s.dv;
    float *S = calloc((size_t)n, sizeof *S), *tmp = calloc(v->scratch + 1, sizeof *tmp);
    uint8_t *packed = calloc(1, v->packed_head), *scratch = aligned_new(row->scratch(v));
    ebb_head h = head_of(v, s.heads - 1);
    h.pos = 8;
    ebb_planes planes = {0};
    if (v->codec->layout(&h, &planes, &error)) check_fail(c, "%s", error.text);
    memset(packed_of(v, 0, s.heads - 1), 0xA5, planes.bytes); /* what was there must not show, padding included */
    for (int z = 0; z < COUNT(sizes); z++)
        for (int warm = 0; warm < 3; warm++) {
            for (int64_t i = 0; i < n; i++)
                S[i] = sizes[z] * (rng_normal(&r) + 4 * (float)(i % s.dv == 3)) * (i / s.dv % 9 ? 1 : 5);
            const void *old = warm ? packed_of(v, 0, s.heads - 1) : NULL;
            v->codec->encode(&h, S, NULL, warm ? packed : NULL, packed, tmp);
            row->pack(v, 0, s.heads - 1, h.pos, S, old, scratch);
            if (memcmp(packed, packed_of(v, 0, s.heads - 1), planes.bytes))
                check_fail(c, "other bytes for a matrix of size %g", (double)sizes[z]);
        }
    check_done(c);
    free(S), free(tmp), free(packed), free(scratch);
    world_close(&w);
}

/* A sequence's bits, whatever its mates, its place and the threads. */
static void invariance(check *c, const delta_row *row, const char *method, shape s) {
    enum { N = 36, MATES = 5 };
    char what[80];
    ebb_state_layer layer = {
        .kind = s.kind, .key_heads = s.key_heads, .heads = s.heads, .key_dim = s.dk, .value_dim = s.dv};
    const int64_t nk = (int64_t)s.key_heads * s.dk, nv = (int64_t)s.heads * s.dv;
    float *alone = calloc((size_t)(nv * N), sizeof *alone), *batch = calloc((size_t)(nv * MATES), sizeof *batch);
    snprintf(what, sizeof what, "%s: same bits in any batch, 1-4 threads", method);
    for (int32_t threads = 1; threads <= 4; threads += threads) {
        ebb_device_config config = {.size = sizeof config, .threads = threads};
        ebb_device *device;
        ebb_error error = {EBB_OK, ""};
        delta_world w;
        if (ebb_device_open("cpu", &config, &device, &error)) return;
        if (world_open(&w, device, method, row->id.name, layer, MATES, 1, N * MATES, &error)) {
            world_close(&w), ebb_device_close(device);
            break;
        }
        if (threads == 1) check_row(c, "delta", row->id.name, what);
        world_inputs(&w, 9, .05f);
        const int64_t tokens = w.spec.window > 1 ? N : N / 3;
        for (int64_t t = 0; threads == 1 && t < tokens; t++)
            if (world_run(&w, false, 0, t, 1, alone + t * nv, &error)) check_fail(c, "%s", error.text);
        for (int32_t place = threads - 1; place < MATES; place += threads)
            for (int64_t t = 0; t < tokens && !c->row_failed; t++) {
                int32_t slot[MATES], cu[MATES + 1] = {0};
                int64_t pos[MATES];
                float q[MATES * 1024], k[MATES * 1024], v[MATES * 1024], g[MATES * 1024], beta[MATES * 16];
                for (int32_t i = 0; i < MATES; i++) {
                    int64_t row_of = i == place ? t : N * i / 2 + t; /* mates run other tokens */
                    slot[i] = (i + 2) % MATES, cu[i + 1] = i + 1, pos[i] = t;
                    memcpy(q + i * nk, w.q + row_of * nk, (size_t)nk * 4);
                    memcpy(k + i * nk, w.k + row_of * nk, (size_t)nk * 4);
                    memcpy(v + i * nv, w.v + row_of * nv, (size_t)nv * 4);
                    memcpy(g + i * w.gates, w.g + row_of * w.gates, (size_t)w.gates * 4);
                    memcpy(beta + i * s.heads, w.beta + row_of * s.heads, (size_t)s.heads * 4);
                }
                ebb_batch b = {MATES, MATES, slot, cu, pos};
                ebb_delta_args a = world_args(&w, &b, q, k, v, g, beta, batch);
                if (ebb_delta_step(w.queue, &w.plan, &a, &error)) check_fail(c, "%s", error.text);
                if (!check_same_bits(batch + place * nv, alone + t * nv, nv))
                    check_fail(c, "other bits at token %lld, place %d, %d threads", (long long)t, place, threads);
            }
        if (threads == 4) check_done(c);
        world_close(&w), ebb_device_close(device);
    }
    free(alone), free(batch);
}

/* Methods that rows read in their stored form: one of each reader, at every token and by windows. The others go through
 * the same tile, so a few comparisons of each say as much; --all gives them the whole as well. */
static bool has_reader(const char *method) {
    static const char *const names[] = {"fp32",   "fp32-w", "fp16-w",       "bf16-w",    "fp8-w",   "int8",
                                        "int8-w", "int4-w", "leap8",        "leap6",     "leap5",   "leap4",
                                        "damp",   "damp-w", "leap8-sticky", "leap8-key", "leap-mix"};
    for (int i = 0; i < COUNT(names); i++)
        if (!strcmp(method, names[i])) return true;
    return false;
}

void check_delta(check *c) {
    static const shape shapes[] = {{EBB_GDN, 2, 4, 128, 128}, {EBB_KDA, 2, 2, 128, 128}, {EBB_GDN, 1, 1, 64, 128},
                                   {EBB_KDA, 1, 2, 96, 96},   {EBB_GDN, 1, 1, 256, 256}, {EBB_KDA, 1, 1, 72, 40},
                                   {EBB_GDN, 2, 2, 7, 5}};
    enum { WIDE = 1, SMALL = 5, ODD = COUNT(shapes) - 1 };
    ebb_device *device;
    if (ebb_device_open("cpu", NULL, &device, NULL)) return;
    int32_t n;
    const ebb_state_method *methods = ebb_state_methods(&n);
    for (const delta_row *const *row = rows_of(device)->delta; *row; row++) {
        if (!check_can(c, &(*row)->id)) continue;
        for (int32_t m = 0; m < n; m++) {
            const bool whole = c->all || has_reader(methods[m].name);
            for (int s = 0; s < COUNT(shapes); s++) {
                if (c->quick ? s < SMALL : !whole && s != WIDE && s != ODD) continue;
                for (int inputs = 0;
                     inputs < ((c->quick ? s == SMALL : s < 2) && whole ? 7 : 1) && strcmp((*row)->id.name, "ref");
                     inputs++)
                    compare(c, device, *row, methods[m].name, shapes[s], inputs);
                packs_alike(c, device, *row, methods[m].name, shapes[s]);
            }
            if (whole && !c->quick) invariance(c, *row, methods[m].name, shapes[0]);
        }
    }
    ebb_device_close(device);
}
