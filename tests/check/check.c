/* check/check.c: ebb-check [--bench] [--all] [--only FAMILY]: compares every kernel row with op/ref. See check.h. */
#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    void (*run)(check *);
} families[] = {
    {"gemm", check_gemm},   {"point", check_point},         {"delta", check_delta},
    {"chunk", check_chunk}, {"attention", check_attention},
};

void check_row(check *c, const char *family, const char *row, const char *what) {
    c->row_failed = false;
    printf("%-10s %-8s %-44s ", family, row, what);
}

void check_fail(check *c, const char *format, ...) {
    if (!c->row_failed) {
        va_list args;
        va_start(args, format);
        printf("FAILED: ");
        vprintf(format, args);
        printf("\n");
        va_end(args);
    }
    c->row_failed = true;
}

void check_done(check *c) {
    if (c->row_failed) c->failed++;
    else {
        c->passed++;
        printf("ok\n");
    }
}

bool check_can(const check *c, const kernel_id *id) { return (id->needs & ~c->features) == 0; }

uint64_t rng_next(rng *r) { return mix64(r->s++); }
float rng_uniform(rng *r) { return (float)((double)(int64_t)(rng_next(r) >> 11) / 4503599627370496.0 - 1.0); }
float rng_normal(rng *r) {
    double u = ((double)(rng_next(r) >> 11) + 1.0) / 9007199254740993.0,
           v = (double)(rng_next(r) >> 11) / 9007199254740992.0;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
int64_t rng_below(rng *r, int64_t n) { return (int64_t)(rng_next(r) % (uint64_t)n); }

double check_distance(const float *a, const float *b, int64_t n, double atol, double rtol) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        if (a[i] == b[i]) continue; /* infinities too */
        double d = fabs((double)a[i] - (double)b[i]) / (atol + rtol * fabs((double)b[i]));
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
    }
    return worst;
}

bool check_same_bits(const float *a, const float *b, int64_t n) { return memcmp(a, b, (size_t)n * sizeof *a) == 0; }

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double check_time(void (*fn)(void *), void *ctx, double each) {
    double runs[7];
    fn(ctx);
    for (int i = 0; i < COUNT(runs); i++) {
        int64_t calls = 0;
        double start = seconds_now(), end;
        do {
            fn(ctx);
            calls++;
            end = seconds_now();
        } while (end - start < each);
        runs[i] = (end - start) / (double)calls;
    }
    qsort(runs, COUNT(runs), sizeof runs[0], by_value);
    return runs[COUNT(runs) / 2];
}

void check_report(check *c, const char *family, const char *row, const char *what, double seconds, double bytes,
                  double flops) {
    double floor_s = bytes / (c->read_gbs * 1e9), flop_s = flops / (c->fma_gflops * 1e9);
    if (flop_s > floor_s) floor_s = flop_s;
    printf("bench %-10s %-8s %-44s %10.2f us %8.2f GB/s %8.2f GFLOP/s %5.1f %% of roofline\n", family, row, what,
           seconds * 1e6, bytes / seconds / 1e9, flops / seconds / 1e9, 100.0 * floor_s / seconds);
}

/* ---- the roofline of this machine, one thread ---- */

static float *stream;
static const int64_t stream_floats = 64 << 20;
static volatile float sink;

/* Four streams at once, which is what it takes to keep one core's misses in flight. */
static void read_all(void *ctx) {
    (void)ctx;
    const int64_t quarter = stream_floats / 4;
    const float *a = stream, *b = a + quarter, *c = b + quarter, *d = c + quarter;
    float s[16] = {0}, t[16] = {0}, u[16] = {0}, v[16] = {0};
    for (int64_t i = 0; i < quarter; i += 16) {
        for (int j = 0; j < 16; j++) s[j] += a[i + j];
        for (int j = 0; j < 16; j++) t[j] += b[i + j];
        for (int j = 0; j < 16; j++) u[j] += c[i + j];
        for (int j = 0; j < 16; j++) v[j] += d[i + j];
    }
    sink = s[0] + t[7] + u[3] + v[9];
}

/* The GEMM micro-kernel on data in L1 is the FMA peak that our instructions can reach. */
static const gemm_row *peak_row;
static ebb_weight peak_weight;
static float *peak_x, *peak_y;
enum { PEAK_M = 96, PEAK_K = 128, PEAK_N = 4 * EBB_PANEL };
static void fma_all(void *ctx) {
    (void)ctx;
    peak_row->run(&peak_weight, peak_x, PEAK_K, peak_y, PEAK_N, PEAK_M, 0, PEAK_N / EBB_PANEL, 0);
}

static void measure_roofline(check *c, ebb_device *device) {
    stream = aligned_new((size_t)stream_floats * sizeof *stream);
    memset(stream, 0, (size_t)stream_floats * sizeof *stream);
    c->read_gbs = (double)stream_floats * 4 / check_time(read_all, NULL, 0.05) / 1e9;
    free(stream);
    peak_row = gemm_row_of(device);
    float *w = calloc(PEAK_N * PEAK_K, sizeof *w);
    ebb_weight_part part = {w, EBB_FP32, PEAK_N};
    ebb_weight_pack(device, &part, 1, PEAK_K, &peak_weight, NULL);
    peak_x = calloc(PEAK_M * PEAK_K, sizeof *peak_x);
    peak_y = calloc(PEAK_M * PEAK_N, sizeof *peak_y);
    c->fma_gflops = 2.0 * PEAK_M * PEAK_K * PEAK_N / check_time(fma_all, NULL, 0.02) / 1e9;
    printf("roofline of one thread: read %.1f GB/s, FMA %.1f GFLOP/s\n", c->read_gbs, c->fma_gflops);
    ebb_weight_free(device, &peak_weight);
    free(w), free(peak_x), free(peak_y);
}

int main(int argc, char **argv) {
    check c = {.features = cpu_features()};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--bench")) c.bench = true;
        else if (!strcmp(argv[i], "--all")) c.all = true;
        else if (!strcmp(argv[i], "--only") && i + 1 < argc) c.only = argv[++i];
        else {
            fprintf(stderr, "usage: ebb-check [--bench] [--all] [--only FAMILY]\nfamilies:");
            for (int f = 0; f < COUNT(families); f++) fprintf(stderr, " %s", families[f].name);
            fprintf(stderr, "\n");
            return strcmp(argv[i], "--help") != 0;
        }
    }
    ebb_device *device;
    ebb_error error;
    if (ebb_device_open("cpu", NULL, &device, &error)) {
        fprintf(stderr, "ebb-check: %s\n", error.text);
        return 1;
    }
    if (c.bench) measure_roofline(&c, device);
    for (int f = 0; f < COUNT(families); f++)
        if (!c.only || !strcmp(c.only, families[f].name)) families[f].run(&c);
    ebb_device_close(device);
    printf("%lld passed, %lld failed\n", (long long)c.passed, (long long)c.failed);
    return c.failed != 0;
}
