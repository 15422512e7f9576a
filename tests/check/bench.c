/* check/bench.c: ebb-check --bench: the list of families, and what is printed. See bench.h. */
#include "bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bench_family *const families[] = {&bench_gemm, &bench_delta, &bench_chunk, &bench_attention, &bench_append, &bench_select, &bench_point};

/* ---- places ---- */

static void places_close(bench *b) {
    for (int32_t i = 0; i < b->places; i++) ebb_device_close(b->place[i].device);
}

static ebb_status places_open(bench *b, int32_t threads, ebb_error *error) {
    static const struct {
        const char *row;
        int32_t needs, mask;
    } rows[] = {{"avx512", EBB_CPU_AVX512, EBB_CPU_ALL},
                {"avx2", EBB_CPU_AVX2, EBB_CPU_AVX2},
                {"neon", EBB_CPU_NEON, EBB_CPU_ALL},
                {"ref", 0, EBB_CPU_NONE}};
    for (int32_t r = 0; r < COUNT(rows); r++) {
        if (rows[r].needs & ~cpu_features()) continue;
        for (int32_t t = 1; t <= threads; t += threads > 1 ? threads - 1 : 1) {
            const ebb_device_config config = {.size = sizeof config, .threads = t, .features = rows[r].mask};
            bench_place *place = &b->place[b->places];
            if (!rows[r].needs && t > 1) continue;
            *place = (bench_place){.row = rows[r].row, .threads = t};
            const ebb_status status = ebb_device_open("cpu", &config, &place->device, error);
            if (status) return status;
            b->places++;
        }
    }
    return EBB_OK;
}

/* ---- a shape ---- */

void bench_begin(bench *b, double bytes, double flops, double working_set, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(b->shape, sizeof b->shape, format, args);
    va_end(args);
    b->bytes = bytes, b->flops = flops, b->working_set = working_set, b->n = 0;
}

bool bench_wants(const bench *b, int32_t place) { return strcmp(b->place[place].row, "ref") || b->flops < 5e7; }

void bench_add(bench *b, int32_t place, double units, ebb_status (*run)(void *ctx, ebb_error *error), void *ctx) {
    b->at[b->n] = place;
    b->cases[b->n++] = (bench_case){.run = run, .ctx = ctx, .units = units};
}

static double share(const bench *b, const bench_case *c, const bench_roof *roof) {
    const double bytes = b->bytes / (roof->read_gbs * 1e9), flops = b->flops / (roof->fma_gflops * 1e9);
    return (bytes > flops ? bytes : flops) / c->median;
}

/* Time of the same row on one thread over the time of this case; 0 where that was not measured. */
static double speedup(const bench *b, const bench_case *c, const bench_place *place) {
    for (int32_t i = 0; i < b->n && place->threads > 1; i++) {
        const bench_place *other = &b->place[b->at[i]];
        if (other->threads == 1 && !strcmp(other->row, place->row)) return b->cases[i].median / c->median;
    }
    return 0;
}

static void print_text(const bench *b, const bench_case *c, const bench_place *place, const bench_roof *roof) {
    char scaling[16] = "";
    const bool cached = b->working_set < b->cache_bytes;
    if (place->threads > 1) snprintf(scaling, sizeof scaling, "%.2f", speedup(b, c, place));
    printf("| %-58s | %-6s | %7d | %11.2f | %11.2f | %9.3f | %9.3f | %6.1f | %8.2f | %5.1f%s | %7s |\n", b->shape,
           place->row, place->threads, c->median * 1e6, c->least * 1e6, b->bytes / 1e6, b->flops / 1e6,
           b->bytes / c->median / 1e9, b->flops / c->median / 1e9, 100 * share(b, c, roof), cached ? "\\*" : "  ",
           scaling);
    fflush(stdout);
}

static void print_json(bench *b, const bench_case *c, const bench_place *place, const bench_roof *roof) {
    printf("%s\n  {\"family\": \"%s\", \"shape\": \"%s\", \"row\": \"%s\", \"threads\": %d, \"median_us\": %.3f, "
           "\"least_us\": %.3f, \"bytes\": %.0f, \"flop\": %.0f, \"working_set\": %.0f, \"roofline\": %.4f}",
           b->any ? "," : "", b->family, b->shape, place->row, place->threads, c->median * 1e6, c->least * 1e6,
           b->bytes, b->flops, b->working_set, share(b, c, roof));
    b->any = true;
}

ebb_status bench_end(bench *b, ebb_error *error) {
    const ebb_status status = bench_measure(b->cases, b->n, error);
    bench_progress_clear();
    for (int32_t i = 0; i < b->n && !status; i++) {
        const bench_place *place = &b->place[b->at[i]];
        const bench_roof *roof = &b->roof[place->threads > 1];
        if (b->json) print_json(b, &b->cases[i], place, roof);
        else print_text(b, &b->cases[i], place, roof);
    }
    return status;
}

float *bench_floats(int64_t n, uint64_t seed) {
    float *x = aligned_new((size_t)n * sizeof *x);
    rng r = {seed};
    for (int64_t i = 0; x && i < n; i++) x[i] = i < 1 << 16 ? rng_normal(&r) : x[i - (1 << 16)]; /* drawing is slow */
    return x;
}

ebb_status bench_no_memory(ebb_error *error) { return ebb_fail(error, EBB_NO_MEMORY, "no memory for a benchmark"); }

/* ---- the program ---- */

static void print_machine(const bench *b) {
    char cpu[128];
    bench_cpu(cpu, sizeof cpu);
    if (b->json) printf("{\"cpu\": \"%s\", \"ebb\": \"%s\", \"load\": %.2f, \"roofs\": [", cpu, ebb_version(), b->load);
    else
        printf("ebb %s on %s, largest cache %.0f MiB; load average before: %.2f\n\n", ebb_version(), cpu,
               b->cache_bytes / 1048576, b->load);
    if (!b->json) printf("| threads | read, GB/s | FMA, GFLOP/s | by |\n|---|---|---|---|\n");
    for (int32_t i = 0; i < 2; i++) {
        const bench_roof *r = &b->roof[i];
        if (i && r->threads == 1) continue;
        if (b->json)
            printf("%s{\"threads\": %d, \"read_gbs\": %.2f, \"fma_gflops\": %.2f}", i ? ", " : "", r->threads,
                   r->read_gbs, r->fma_gflops);
        else printf("| %d | %.1f | %.1f | %s |\n", r->threads, r->read_gbs, r->fma_gflops, r->fma);
    }
    if (b->json) printf("], \"rows\": [");
}

static void print_head(const char *family) {
    printf(
        "\n%s\n\n| %-58s | row    | threads |  median, us |   least, us |  MB moved |     MFLOP |   GB/s |  GFLOP/s | "
        "roof %% | x 1 thr |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
        family, "shape");
}

static bool chosen(const bench_family *f, const char *family) { return !family || !strcmp(f->name, family); }

static ebb_status run_families(bench *b, const char *family, ebb_error *error) {
    int32_t total = 0, done = 0;
    const double start = seconds_now();
    ebb_status status = EBB_OK;
    for (int32_t f = 0; f < COUNT(families); f++)
        if (chosen(families[f], family)) total += families[f]->shapes;
    if (!total) return ebb_fail(error, EBB_BAD_ARGUMENT, "no family \"%s\" to be timed", family);
    for (int32_t f = 0; f < COUNT(families) && !status; f++) {
        if (!chosen(families[f], family)) continue;
        b->family = families[f]->name;
        if (!b->json) print_head(b->family);
        for (int32_t i = 0; i < families[f]->shapes && !status; i++) {
            bench_progress(b->family, done++, total, start);
            status = families[f]->run(b, i, error);
        }
    }
    return status;
}

int bench_main(const char *family, int32_t threads, bool json) {
    ebb_error error = {EBB_OK, ""};
    bench *b = calloc(1, sizeof *b);
    ebb_status status = b ? EBB_OK : bench_no_memory(&error);
    if (threads == 0) threads = cpu_count();
    if (!status) {
        b->json = json, b->cache_bytes = bench_cache_bytes(), b->load = bench_load();
        status = places_open(b, threads, &error);
    }
    bench_progress("roofline", 0, 1, 0);
    if (!status) status = bench_roofline(1, &b->roof[0], &error);
    if (!status) status = bench_roofline(threads, &b->roof[1], &error);
    bench_progress_clear();
    if (!status) {
        print_machine(b);
        status = run_families(b, family, &error);
        if (json) printf("\n]}\n");
        else printf("\n\\* the working set fits the largest cache, so the share can pass 100 %%\n");
    }
    if (status) fprintf(stderr, "ebb-check: %s\n", error.text);
    if (b) places_close(b);
    free(b);
    return status != EBB_OK;
}
