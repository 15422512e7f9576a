/* check/bench_time.c: see bench_time.h. Called by ebb-check --bench and by bench/peers. */
#define _GNU_SOURCE /* getloadavg */
#include "bench_time.h"

#include "device/device_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef EBB_X86
#    include <immintrin.h>
#elif defined(EBB_ARM)
#    include <arm_neon.h>
#endif

/* ---- timing ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds a call of one run. A call that is not timed goes first: it brings data into the caches, and the workers out
 * of their sleep. Where a call takes long, that is done in the first run only. */
static ebb_status run_once(const bench_case *c, bool first, bool *slow, double *seconds, ebb_error *error) {
    int64_t calls = 0;
    double start = seconds_now(), end;
    ebb_status status = first || !*slow ? c->run(c->ctx, error) : EBB_OK;
    if (first) *slow = seconds_now() - start > BENCH_SECONDS;
    start = seconds_now();
    do {
        if (status || (status = c->run(c->ctx, error))) return status;
        calls++;
        end = seconds_now();
    } while (end - start < BENCH_SECONDS);
    *seconds = (end - start) / (double)calls;
    if (c->rest) c->rest(c->ctx);
    return EBB_OK;
}

ebb_status bench_measure(bench_case *cases, int32_t n, ebb_error *error) {
    double *runs = calloc((size_t)n * BENCH_RUNS + 1, sizeof *runs);
    ebb_status status = EBB_OK;
    if (!runs) return ebb_fail(error, EBB_NO_MEMORY, "no memory for %d timings", n);
    for (int32_t r = 0; r < BENCH_RUNS && !status; r++)
        for (int32_t i = 0; i < n && !status; i++)
            status = run_once(&cases[i], r == 0, &cases[i].slow, &runs[i * BENCH_RUNS + r], error);
    for (int32_t i = 0; i < n && !status; i++) {
        double *mine = runs + i * BENCH_RUNS;
        qsort(mine, BENCH_RUNS, sizeof *mine, by_value);
        cases[i].median = mine[BENCH_RUNS / 2] / cases[i].units;
        cases[i].least = mine[0] / cases[i].units;
    }
    free(runs);
    return status;
}

/* ---- the roofline ---- */

typedef struct roof_part { /* of one thread */
    void (*run)(struct roof_part *part);
    const uint64_t *memory; /* `words` of them */
    size_t words;
    int32_t streams;
    double sum; /* so that nothing is optimised away */
} roof_part;

enum { ROOF_RUNS = 15, FMA_ROUNDS = 1 << 20, AHEAD = 128 };
#define ROOF_BYTES ((size_t)256 << 20)

/* One core has its misses in flight for several streams at once; how many are best differs, so all are tried. AHEAD is
 * in words: 1 KiB; a prefetch behind the end of the memory does nothing. */
static void read_streams(roof_part *part) {
    const size_t each = part->words / (size_t)part->streams / 8 * 8;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < each; i += 8)
        for (int32_t s = 0; s < part->streams; s++) {
            const uint64_t *at = part->memory + (size_t)s * each + i;
            __builtin_prefetch(at + AHEAD);
            for (int j = 0; j < 8; j++) sum[j] |= at[j];
        }
    for (int j = 0; j < 8; j++) part->sum += (double)sum[j];
}

/* Independent accumulators, more than the latency of an FMA times the number that begin in a cycle. */
enum { CHAINS = 12 };

#ifdef EBB_X86
__attribute__((target("avx512f"))) static void fma_avx512(roof_part *part) {
    __m512 sum[2 * CHAINS];
    const __m512 x = _mm512_set1_ps(1.0f + 1e-7f), y = _mm512_set1_ps(1e-7f);
    for (int c = 0; c < 2 * CHAINS; c++) sum[c] = _mm512_set1_ps((float)c);
    for (int32_t i = 0; i < FMA_ROUNDS; i++)
#    pragma GCC unroll 24
        for (int c = 0; c < 2 * CHAINS; c++) sum[c] = _mm512_fmadd_ps(sum[c], x, y);
    for (int c = 0; c < 2 * CHAINS; c++) part->sum += (double)_mm512_cvtss_f32(sum[c]);
}

__attribute__((target("avx2,fma"))) static void fma_avx2(roof_part *part) {
    __m256 sum[CHAINS];
    const __m256 x = _mm256_set1_ps(1.0f + 1e-7f), y = _mm256_set1_ps(1e-7f);
    for (int c = 0; c < CHAINS; c++) sum[c] = _mm256_set1_ps((float)c);
    for (int32_t i = 0; i < FMA_ROUNDS; i++)
#    pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) sum[c] = _mm256_fmadd_ps(sum[c], x, y);
    for (int c = 0; c < CHAINS; c++) part->sum += (double)_mm256_cvtss_f32(sum[c]);
}
#elif defined(EBB_ARM)
static void fma_neon(roof_part *part) {
    float32x4_t sum[2 * CHAINS];
    const float32x4_t x = vdupq_n_f32(1.0f + 1e-7f), y = vdupq_n_f32(1e-7f);
    for (int c = 0; c < 2 * CHAINS; c++) sum[c] = vdupq_n_f32((float)c);
    for (int32_t i = 0; i < FMA_ROUNDS; i++)
#    pragma GCC unroll 24
        for (int c = 0; c < 2 * CHAINS; c++) sum[c] = vfmaq_f32(y, sum[c], x);
    for (int c = 0; c < 2 * CHAINS; c++) part->sum += (double)vgetq_lane_f32(sum[c], 0);
}
#endif

/* Product and sum apart, as op/ref computes. */
static void fma_plain(roof_part *part) {
    float sum[4 * CHAINS];
    for (int c = 0; c < 4 * CHAINS; c++) sum[c] = (float)c;
    for (int32_t i = 0; i < FMA_ROUNDS; i++)
        for (int c = 0; c < 4 * CHAINS; c++) sum[c] = sum[c] * 1.0000001f + 1e-7f;
    for (int c = 0; c < 4 * CHAINS; c++) part->sum += (double)sum[c];
}

static void run_part(void *ctx, int64_t item, int32_t worker) {
    roof_part *part = (roof_part *)ctx + item;
    (void)worker;
    part->run(part);
}

/* Least seconds of ROOF_RUNS runs of all parts at once, each on its thread: a part takes milliseconds, and a worker
 * that comes late costs one run. */
static double roof_seconds(ebb_device *device, roof_part *parts) {
    const int32_t n = ebb_device_threads(device);
    double least = 1e30;
    for (int32_t r = 0; r < ROOF_RUNS; r++) {
        const double start = seconds_now();
        workers_run(device->workers, n, run_part, parts);
        const double seconds = seconds_now() - start;
        if (seconds < least) least = seconds;
    }
    return least;
}

static ebb_status measure_read(ebb_device *device, roof_part *parts, bench_roof *roof, ebb_error *error) {
    static const int32_t streams[] = {1, 2, 4, 8};
    const int32_t n = ebb_device_threads(device);
    uint64_t *memory = aligned_new(ROOF_BYTES);
    if (!memory) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a read of %zu MiB", ROOF_BYTES >> 20);
    memset(memory, 1, ROOF_BYTES);
    const size_t words = ROOF_BYTES / sizeof *memory / (size_t)n / 64 * 64;
    for (int32_t s = 0; s < COUNT(streams); s++) {
        for (int32_t i = 0; i < n; i++) {
            parts[i] = (roof_part){.run = read_streams, .words = words, .streams = streams[s]};
            parts[i].memory = memory + (size_t)i * words;
        }
        const double gbs = (double)words * 8.0 * n / roof_seconds(device, parts) / 1e9;
        if (gbs > roof->read_gbs) roof->read_gbs = gbs;
    }
    free(memory);
    return EBB_OK;
}

typedef struct fma_kind {
    const char *name;
    int32_t needs;
    void (*run)(roof_part *part);
    double flops; /* of a call */
} fma_kind;

ebb_status bench_roofline(int32_t threads, bench_roof *roof, ebb_error *error) {
    static const fma_kind kinds[] = {
#ifdef EBB_X86
        {"AVX-512", EBB_CPU_AVX512, fma_avx512, 2.0 * 16 * 2 * CHAINS * FMA_ROUNDS},
        {"AVX2", EBB_CPU_AVX2, fma_avx2, 2.0 * 8 * CHAINS * FMA_ROUNDS},
#elif defined(EBB_ARM)
        {"NEON", EBB_CPU_NEON, fma_neon, 2.0 * 4 * 2 * CHAINS * FMA_ROUNDS},
#endif
        {"C", 0, fma_plain, 2.0 * 4 * CHAINS * FMA_ROUNDS},
    };
    const ebb_device_config config = {.size = sizeof config, .threads = threads};
    ebb_device *device = NULL;
    *roof = (bench_roof){.threads = threads};
    ebb_status status = ebb_device_open("cpu", &config, &device, error);
    if (status) return status;
    roof_part *parts = calloc((size_t)threads, sizeof *parts);
    status = parts ? measure_read(device, parts, roof, error)
                   : ebb_fail(error, EBB_NO_MEMORY, "no memory for %d threads", threads);
    for (int32_t k = 0; k < COUNT(kinds) && !status; k++) {
        if (kinds[k].needs & ~cpu_features()) continue;
        for (int32_t i = 0; i < threads; i++) parts[i] = (roof_part){.run = kinds[k].run};
        const double gflops = kinds[k].flops * threads / roof_seconds(device, parts) / 1e9;
        if (gflops > roof->fma_gflops) roof->fma_gflops = gflops, roof->fma = kinds[k].name;
    }
    free(parts);
    ebb_device_close(device);
    return status;
}

/* ---- the machine ---- */

void bench_cpu(char *name, size_t room) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, room, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) || !value) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, room, "%s", value + 2);
        break;
    }
    if (file) fclose(file);
}

/* Of the first CPU; sysconf has the sum over sockets that a virtual machine may not have. */
double bench_cache_bytes(void) {
    double most = 0;
    for (int i = 0; i < 8; i++) {
        char path[80];
        long kib = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *file = fopen(path, "r");
        if (!file) break;
        if (fscanf(file, "%ldK", &kib) == 1 && (double)kib * 1024 > most) most = (double)kib * 1024;
        fclose(file);
    }
    return most;
}

double bench_load(void) {
    double load;
    return getloadavg(&load, 1) == 1 ? load : 0;
}

void bench_progress(const char *what, int32_t done, int32_t total, double start) {
    if (!isatty(STDERR_FILENO)) return;
    const double gone = seconds_now() - start;
    fprintf(stderr, "\r\033[K%d/%d %s", done, total, what);
    if (done > 0) fprintf(stderr, ", %.0f s left", gone / done * (total - done));
    fflush(stderr);
}

void bench_progress_clear(void) {
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
}
