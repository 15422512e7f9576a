/* slow_million.c: one million tokens through a head that forgets slowly: the states stay finite and near the recurrence
 * in FP64 that runs alongside.
 *
 * The head is synthetic and fixed by SEED: GDN, 128 x 128, g = log(.9999) and one beta at every token; every token
 * writes a key of length 1 and a value of length 1 (uniform in a cube, then divided by their length). Directions are
 * independent, so that the state has no structure that a codec could use. At beta = .5 the writes erase what lies in
 * their way within some hundred tokens, and rounding errors with it; at beta = .02 the decay does most of the
 * forgetting, in thousands of tokens, which is the hard case. Drift is ||S_q - S||_F / ||S||_F, S in FP64; a table of
 * it is printed in Markdown. */
#include "delta_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "must.h"

enum { DIM = 128, TOKENS = 1000000, STRIDE = 16, EVERY = 4096 /* a measurement, and every power of 4 */ };
static const uint64_t SEED = 20261130;
static const float DECAY = .9999f;

static const char *const methods[] = {"fp32", "int8", "leap8", "leap4"};
enum { METHODS = 4 };

typedef struct inputs { /* of STRIDE tokens */
    float k[STRIDE * DIM], q[STRIDE * DIM], v[STRIDE * DIM], g[STRIDE], beta[STRIDE];
} inputs;

static void unit(float *x, uint64_t *s) {
    float sum = 0;
    for (int i = 0; i < DIM; i++) x[i] = world_uniform(s), sum += x[i] * x[i];
    for (int i = 0; i < DIM; i++) x[i] /= sqrtf(sum);
}

static void next_inputs(inputs *in, float beta, uint64_t *s) {
    for (int t = 0; t < STRIDE; t++) {
        unit(in->k + t * DIM, s), unit(in->v + t * DIM, s);
        memcpy(in->q + t * DIM, in->k + t * DIM, sizeof(float) * DIM); /* outputs are not looked at */
        in->g[t] = logf(DECAY), in->beta[t] = beta;
    }
}

/* S <- e^g S + k d^T, d = beta (v - e^g S^T k) for one token, in FP64 (maths 1.1). */
static void exact_token(double *restrict S, const float *k, const float *v, double g, double beta) {
    const double a = exp(g);
    double d[DIM] = {0};
    for (int u = 0; u < DIM; u++)
        for (int i = 0; i < DIM; i++) d[i] += S[u * DIM + i] * k[u];
    for (int i = 0; i < DIM; i++) d[i] = beta * (v[i] - a * d[i]);
    for (int u = 0; u < DIM; u++)
        for (int i = 0; i < DIM; i++) S[u * DIM + i] = a * S[u * DIM + i] + k[u] * d[i];
}

/* The tokens of a stride, in steps of a window: longer ones would fold twice, once to look ahead. */
static void advance(delta_world *w, inputs *in, int64_t pos) {
    float out[STRIDE * DIM];
    ebb_error error = {EBB_OK, ""};
    const int32_t slot = 0, n = w->spec.window < STRIDE ? w->spec.window : STRIDE, cu[2] = {0, n};
    for (int32_t at = 0; at < STRIDE; at += n, pos += n) {
        const ebb_batch b = {1, n, &slot, cu, &pos};
        ebb_delta_args a =
            world_args(w, &b, in->q + at * DIM, in->k + at * DIM, in->v + at * DIM, in->g + at, in->beta + at, out);
        must(ebb_delta_step(w->queue, &w->plan, &a, &error), &error);
    }
}

static double drift_of(delta_world *w, int64_t pos, const double *exact) {
    float S[DIM * DIM];
    ebb_error error = {EBB_OK, ""};
    double d = 0, s = 0;
    must(world_read(w, 0, pos, S, &error), &error);
    for (int i = 0; i < DIM * DIM; i++) {
        if (!isfinite(S[i])) fail_msg("%s: not finite at token %lld", w->spec.method->name, (long long)pos);
        d += (S[i] - exact[i]) * (S[i] - exact[i]), s += exact[i] * exact[i];
    }
    return sqrt(d / s);
}

static bool power_of_4(int64_t n) { return n >= 256 && !(n & (n - 1)) && (n & 0x5555555555555555); }

static void print_row(int64_t pos, const double *drift) {
    if (pos) printf("| %lld |", (long long)pos);
    else printf("| largest, of every %d |", EVERY);
    for (int m = 0; m < METHODS; m++) printf(" %#.3g |", drift[m]);
    printf("\n");
    fflush(stdout);
}

/* Run all methods side by side and fill the largest drift of each. */
static void run(delta_world *world, float beta, double *most) {
    double *exact = calloc(DIM * DIM, sizeof *exact);
    inputs *in = malloc(sizeof *in);
    uint64_t s = SEED;
    assert_true(exact && in);
    for (int64_t pos = STRIDE; pos <= TOKENS; pos += STRIDE) {
        next_inputs(in, beta, &s);
        for (int t = 0; t < STRIDE; t++) exact_token(exact, in->k + t * DIM, in->v + t * DIM, in->g[t], in->beta[t]);
        for (int m = 0; m < METHODS; m++) advance(&world[m], in, pos - STRIDE);
        const bool print = power_of_4(pos) || pos == TOKENS;
        if (!print && pos % EVERY) continue;
        double drift[METHODS];
        for (int m = 0; m < METHODS; m++) {
            drift[m] = drift_of(&world[m], pos, exact);
            most[m] = fmax(most[m], drift[m]);
        }
        if (print) print_row(pos, drift);
    }
    free(exact), free(in);
}

static void million(float beta) {
    const ebb_device_config config = {.size = sizeof config, .threads = 1};
    const ebb_state_layer layer = {.kind = EBB_GDN, .key_heads = 1, .heads = 1, .key_dim = DIM, .value_dim = DIM};
    ebb_device *device;
    ebb_error error = {EBB_OK, ""};
    delta_world world[METHODS];
    double most[METHODS] = {0}, start = seconds_now();
    must(ebb_device_open("cpu", &config, &device, &error), &error);
    printf("decay %.4f, beta %.2f\n\n| tokens |", (double)DECAY, (double)beta);
    for (int m = 0; m < METHODS; m++) {
        must(world_open(&world[m], device, methods[m], NULL, layer, 1, STRIDE, STRIDE, &error), &error);
        printf(" %s |", methods[m]);
    }
    printf("\n|---|---|---|---|---|\n");
    run(world, beta, most);
    print_row(0, most);
    printf("\n%.0f s\n", seconds_now() - start);
    for (int m = 0; m < METHODS; m++) {
        const double limit = strcmp(methods[m], "fp32") ? 1 : 1e-5;
        if (!(most[m] < limit)) fail_msg("%s: drift %.3g, expected below %g", methods[m], most[m], limit);
        world_close(&world[m]);
    }
    ebb_device_close(device);
}

static void test_dense_writes(void **state) {
    (void)state;
    million(.5f);
}
static void test_long_memory(void **state) {
    (void)state;
    million(.02f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense_writes), cmocka_unit_test(test_long_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
