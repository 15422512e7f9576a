/* check/check.c: ebb-check [--all | --quick] [--family NAME] compares every kernel row with op/ref (check.h); ebb-check
 * --bench times them (bench.h). */
#include "bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    void (*run)(check *);
} families[] = {
    {"gemm", check_gemm},           {"point", check_point},   {"delta", check_delta},   {"chunk", check_chunk},
    {"attention", check_attention}, {"append", check_append}, {"select", check_select},
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

static int usage(int status) {
    fprintf(stderr, "usage: ebb-check [--all | --quick] [--family NAME]\n"
                    "       ebb-check --bench [--family NAME] [--threads N] [--json]\nfamilies:");
    for (int f = 0; f < COUNT(families); f++) fprintf(stderr, " %s", families[f].name);
    fprintf(stderr, "\n");
    return status;
}

/* 1 .. 1024, else 0. */
static int32_t threads_of(const char *text) {
    char *end;
    const long n = strtol(text, &end, 10);
    return *end || n < 1 || n > 1024 ? 0 : (int32_t)n;
}

int main(int argc, char **argv) {
    check c = {.features = cpu_features()};
    bool timing = false, json = false;
    int32_t threads = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) return usage(0);
        if (!strcmp(argv[i], "--bench")) timing = true;
        else if (!strcmp(argv[i], "--json")) json = true;
        else if (!strcmp(argv[i], "--all")) c.all = true;
        else if (!strcmp(argv[i], "--quick")) c.quick = true;
        else if (!strcmp(argv[i], "--family") && i + 1 < argc) c.only = argv[++i];
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc && threads_of(argv[i + 1]))
            threads = threads_of(argv[++i]);
        else return usage(2);
    }
    if (timing ? c.all || c.quick : json || threads || (c.all && c.quick)) return usage(2);
    bool known = !c.only;
    for (int f = 0; f < COUNT(families); f++) known |= c.only && !strcmp(c.only, families[f].name);
    if (!known) return usage(2);
    if (timing) return bench_main(c.only, threads, json);
    for (int f = 0; f < COUNT(families); f++)
        if (!c.only || !strcmp(c.only, families[f].name)) families[f].run(&c);
    printf("%lld passed, %lld failed\n", (long long)c.passed, (long long)c.failed);
    return c.failed != 0;
}
