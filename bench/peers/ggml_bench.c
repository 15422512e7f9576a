/* peers/ggml_bench.c: ggml's operators on the CPU, ebb's and plain C loops: the same work in one process, in turn, and
 * the results compared. `make bench` runs it where bench/peers/build.sh has built ggml. ggml_bench [FAMILY] */
#include "peer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ggml ---- */

ebb_status peer_open(peer *p, size_t bytes, ebb_error *error) {
    *p = (peer){0};
    p->tensors = ggml_init((struct ggml_init_params){bytes + (4 << 20), NULL, false});
    p->work = ggml_init((struct ggml_init_params){1 << 20, NULL, true});
    return p->tensors && p->work ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "ggml has no memory for its tensors");
}

ebb_status peer_ready(peer *p, int32_t threads, ebb_error *error) {
    struct ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    p->graph = ggml_new_graph(p->tensors);
    ggml_build_forward_expand(p->graph, p->result);
    p->pool = ggml_threadpool_new(&params);
    p->plan = ggml_graph_plan(p->graph, threads, p->pool);
    p->scratch = aligned_new(p->plan.work_size + 64);
    p->plan.work_data = p->scratch;
    return p->pool && p->scratch ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "ggml has no memory for its threads");
}

void peer_close(peer *p) {
    if (p->pool) ggml_threadpool_free(p->pool);
    if (p->weights) ggml_backend_buffer_free(p->weights);
    if (p->tensors) ggml_free(p->tensors);
    if (p->work) ggml_free(p->work);
    free(p->scratch);
    *p = (peer){0};
}

ebb_status peer_run(void *ctx, ebb_error *error) {
    peer *p = ctx;
    if (ggml_graph_compute(p->graph, &p->plan) == GGML_STATUS_SUCCESS) return EBB_OK;
    return ebb_fail(error, EBB_UNSUPPORTED, "ggml could not compute %s", ggml_op_name(p->result->op));
}

void peer_rest(void *ctx) { ggml_threadpool_pause(((peer *)ctx)->pool); } /* the next run wakes it */

struct ggml_tensor *peer_weight(peer *p, enum ggml_type type, int64_t n, int64_t k, const void *data, bool *repacked) {
    ggml_backend_reg_t reg = ggml_backend_cpu_reg();
    ggml_backend_dev_t device = ggml_backend_reg_dev_get(reg, 0);
    void *address = ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
    ggml_backend_dev_get_extra_bufts_t extra;
    memcpy(&extra, &address, sizeof extra); /* ISO C has no cast from data to code */
    ggml_backend_buffer_type_t *types = extra ? extra(device) : NULL;
    struct ggml_tensor *w = ggml_new_tensor_2d(p->work, type, k, n);
    *repacked = false;
    for (; types && *types && !*repacked; types++) {
        p->weights = ggml_backend_buft_alloc_buffer(*types, ggml_backend_buft_get_alloc_size(*types, w));
        if (!p->weights) continue;
        w->data = NULL, w->buffer = NULL, w->extra = NULL;
        ggml_backend_tensor_alloc(p->weights, w, ggml_backend_buffer_get_base(p->weights));
        *repacked = w->extra != NULL; /* how the buffer says that it has a better order */
        if (*repacked) break;
        ggml_backend_buffer_free(p->weights);
        p->weights = NULL;
    }
    if (!*repacked) {
        w = ggml_new_tensor_2d(p->tensors, type, k, n);
        memcpy(w->data, data, ggml_nbytes(w));
    } else ggml_backend_tensor_set(w, data, 0, ggml_nbytes(w));
    return w;
}

/* ---- contests ---- */

void contest_add(contest *c, const char *name, ebb_status (*run)(void *, ebb_error *), void *ctx, double units) {
    c->name[c->n] = name;
    c->far[c->n] = 0;
    c->cases[c->n++] = (bench_case){.run = run, .ctx = ctx, .units = units, .rest = run == peer_run ? peer_rest : NULL};
}

ebb_status contest_far(contest *c, const float *a, const float *b, int64_t n, double limit, ebb_error *error) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), s += (double)b[i] * b[i];
    const double far = sqrt(d / (s + 1e-60));
    c->far[c->n - 1] = far;
    if (far <= limit) return EBB_OK; /* NaN is not */
    return ebb_fail(error, EBB_UNSUPPORTED, "%s, %d threads: the result of %s is %.1e away, expected at most %.0e",
                    c->shape, c->threads, c->name[c->n - 1], far, limit);
}

ebb_status contest_run(contest *c, ebb_error *error) {
    const ebb_status status = bench_measure(c->cases, c->n, error);
    bench_progress_clear();
    for (int32_t i = 0; i < c->n && !status; i++)
        printf("| %-48s | %7d | %-14s | %11.2f | %11.2f | %6.2f | %8.1e |\n", c->shape, c->threads, c->name[i],
               c->cases[i].median * 1e6, c->cases[i].least * 1e6, c->cases[0].median / c->cases[i].median, c->far[i]);
    fflush(stdout);
    return status;
}

float *peer_numbers(int64_t n, uint64_t seed) {
    float *x = aligned_new((size_t)n * sizeof *x);
    for (int64_t i = 0; x && i < n; i++) { /* the sum of four uniform numbers */
        const uint64_t r = mix64(seed << 32 | (uint64_t)i);
        double sum = -131070;
        for (int j = 0; j < 4; j++) sum += (double)(r >> (16 * j) & 65535);
        x[i] = (float)(sum / 37837); /* standard deviation 65536 / sqrt(12) * 2 */
    }
    return x;
}

static void quiet(enum ggml_log_level level, const char *text, void *ctx) {
    (void)ctx;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        ebb_status (*run)(int32_t threads, ebb_error *error);
    } families[] = {{"gemm", peer_gemm}, {"delta", peer_delta}, {"attention", peer_attention}};
    const char *family = argc > 1 ? argv[1] : NULL;
    ebb_error error = {EBB_OK, ""};
    ebb_status status = EBB_OK;
    bool known = !family;
    ggml_log_set(quiet, NULL);
    ggml_cpu_init();
    printf("%s beside ebb %s, load average before: %.2f. Times in us; x: the time of ggml over this one; far: distance "
           "of the result to ggml's, relative.\n",
           PEER_VERSION, ebb_version(), bench_load());
    for (int32_t f = 0; f < COUNT(families) && !status; f++) {
        if (family && strcmp(family, families[f].name)) continue;
        known = true;
        printf("\n%s\n\n| %-48s | threads | by             |      median |       least |      x |      far |\n"
               "|---|---|---|---|---|---|---|\n",
               families[f].name, "shape");
        for (int32_t t = 1; t <= cpu_count() && !status; t += cpu_count() > 1 ? cpu_count() - 1 : 1)
            status = families[f].run(t, &error);
    }
    if (!known) status = ebb_fail(&error, EBB_BAD_ARGUMENT, "no family \"%s\": gemm, delta, attention", family);
    if (status) fprintf(stderr, "ggml_bench: %s\n", error.text);
    return status != EBB_OK;
}
