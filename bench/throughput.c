/* bench/throughput.c: tokens per second of a model on this machine, by state method and batch: prompts of 512 tokens,
 * answers of 128, greedy. Run by `make bench`. Medians of several runs, with the least and the most, because machines
 * are noisy. throughput [MODEL [METHOD,METHOD... [RUNS]]] */
#include <ebb/ebb.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 512, ANSWER = 128, MAX_RUNS = 21, MAX_BATCH = 32 };

typedef struct sample {
    double prompt, decode; /* tokens per second */
} sample;

static bool count_only(void *ctx, int32_t prompt, int32_t token) {
    (void)prompt, (void)token;
    ++*(int64_t *)ctx;
    return true;
}

/* One run: `batch` different prompts, none of which may end before ANSWER tokens (`emitted` tells). */
static ebb_status run(ebb_engine *engine, int32_t vocab, int32_t batch, sample *out, ebb_error *error) {
    static int32_t ids[MAX_BATCH][PROMPT];
    ebb_prompt prompts[MAX_BATCH];
    ebb_usage usage;
    int64_t emitted = 0;
    for (int32_t b = 0; b < batch; b++) {
        for (int32_t i = 0; i < PROMPT; i++)
            ids[b][i] = (int32_t)((uint32_t)(i * 7919 + b * 104729 + 17) % (uint32_t)(vocab / 2));
        prompts[b] = (ebb_prompt){ids[b], PROMPT};
    }
    ebb_status status = ebb_generate(engine, prompts, batch, &EBB_GREEDY, ANSWER, count_only, &emitted, &usage, error);
    if (status) return status;
    out->prompt = (double)usage.prompt_tokens / usage.prompt_seconds;
    out->decode = (double)usage.decode_tokens / usage.decode_seconds;
    return EBB_OK;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_spread(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    printf("  %8.0f (%.0f to %.0f)", v[n / 2], v[0], v[n - 1]);
}

static ebb_status measure(ebb_model *model, const char *method, int32_t batch, int runs, ebb_error *error) {
    ebb_engine_config config = {
        .size = sizeof config, .state = method, .max_seqs = batch, .max_tokens = PROMPT + ANSWER};
    ebb_engine *engine;
    ebb_usage usage;
    double prompt[MAX_RUNS], decode[MAX_RUNS];
    ebb_status status = ebb_engine_open(model, &config, &engine, error);
    if (status) return status;
    for (int i = -1; i < runs && !status; i++) { /* the first is not counted */
        sample s = {0, 0};
        status = run(engine, ebb_model_describe(model)->vocab, batch, &s, error);
        if (i >= 0) prompt[i] = s.prompt, decode[i] = s.decode;
    }
    if (!status) {
        ebb_engine_usage(engine, -1, &usage);
        printf("%-10s %5d", method, batch);
        print_spread(prompt, runs);
        print_spread(decode, runs);
        printf("  %9zu %7zu\n", usage.state_packed, usage.state_live);
    }
    ebb_engine_close(engine);
    return status;
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "models/tiny-gdn";
    char methods[256];
    snprintf(methods, sizeof methods, "%s", argc > 2 ? argv[2] : "fp32,bf16,int8,int8-w,int4,int4-w,leap8,leap4");
    int runs = argc > 3 ? atoi(argv[3]) : 5;
    ebb_device *device;
    ebb_model *model;
    ebb_error error = {EBB_OK, ""};
    if (runs < 1 || runs > MAX_RUNS) {
        fprintf(stderr, "throughput: %d runs, expected 1 to %d\n", runs, MAX_RUNS);
        return 2;
    }
    if (ebb_device_open("cpu", NULL, &device, &error) || ebb_model_open(device, folder, NULL, &model, &error)) {
        fprintf(stderr, "throughput: %s\n", error.text);
        return 1;
    }
    printf(
        "%s, %d threads, prompts of %d tokens, answers of %d, kv bf16; tokens/s: median (least to most) of %d runs\n",
        folder, ebb_device_threads(device), PROMPT, ANSWER, runs);
    printf("%-10s %5s  %-24s  %-24s  %9s %7s\n", "state", "batch", "prompt tokens/s", "decode tokens/s", "packed",
           "live");
    ebb_status status = EBB_OK;
    for (char *m = strtok(methods, ","); m && !status; m = strtok(NULL, ","))
        for (int32_t batch = 1; batch <= MAX_BATCH && !status; batch += MAX_BATCH - 1)
            status = measure(model, m, batch, runs, &error);
    if (status) fprintf(stderr, "throughput: %s\n", error.text);
    ebb_model_close(model);
    ebb_device_close(device);
    return status != EBB_OK;
}
