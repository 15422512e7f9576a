/* bench/decode.c: what share of the machine's read bandwidth decoding reaches, in one run: tokens per second at batch 1
 * and 8, the bytes of weights that a step reads, and a plain read by as many threads. Says whether the tokens of a
 * prompt are the same in both batches. The model may be one of `ebb synth`. Medians of several steps.
 *
 *   decode MODEL [STATE [STEPS [USED/EXPERTS]]]     USED/EXPERTS of a mixture: 8/256 */
#include <ebb/ebb.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_time.h"

enum { PROMPT = 16, MOST_STEPS = 256, BATCH = 8 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* `batch` sequences, sequence b with the prompt of number b; the tokens of the first go to `ids`. */
static ebb_status decode(ebb_model *model, const char *state, int32_t batch, int steps, int32_t *ids, double *seconds,
                         ebb_error *error) {
    const int32_t vocab = ebb_model_describe(model)->vocab;
    ebb_engine_config config = {
        .size = sizeof config, .state = state, .max_seqs = batch, .max_tokens = PROMPT + MOST_STEPS + 1};
    ebb_engine *engine;
    int32_t slot[BATCH], prompt[PROMPT];
    double time[MOST_STEPS];
    ebb_status status = ebb_engine_open(model, &config, &engine, error);
    if (status) return status;
    for (int32_t b = 0; b < batch && !status; b++) {
        for (int32_t i = 0; i < PROMPT; i++) prompt[i] = (i * 7919 + b * 10729 + 17) % (vocab / 2);
        status = ebb_sequence_open(engine, &EBB_GREEDY, &slot[b], error);
        if (!status) status = ebb_sequence_append(engine, slot[b], prompt, PROMPT, error);
    }
    if (!status) status = ebb_engine_prefill(engine, error);
    for (int i = 0; i < steps && !status; i++) {
        ids[i] = ebb_sequence_token(engine, slot[0]);
        const double begin = now();
        status = ebb_engine_step(engine, slot, batch, error);
        time[i] = now() - begin;
    }
    ebb_engine_close(engine);
    if (status) return status;
    qsort(time, (size_t)steps, sizeof *time, by_value);
    *seconds = time[steps / 2];
    return EBB_OK;
}

/* Bytes of weights that one token reads: all but the embedding, of which it reads a row, and experts it does not use.
 */
static double bytes_read(const ebb_model_info *info, double used) {
    return (double)info->weight_bytes - (double)info->lookup_bytes + (double)info->expert_bytes * used;
}

int main(int argc, char **argv) {
    const char *state = argc > 2 ? argv[2] : "leap8";
    const int steps = argc > 3 ? atoi(argv[3]) : 32;
    int used = 0, experts = 1;
    int32_t ids[2][MOST_STEPS];
    ebb_device *device = NULL;
    ebb_model *model = NULL;
    ebb_error error = {EBB_OK, ""};
    if (argc < 2 || argc > 5 || steps < 1 || steps > MOST_STEPS ||
        (argc > 4 && (sscanf(argv[4], "%d/%d", &used, &experts) != 2 || experts < 1))) {
        fprintf(stderr, "usage: decode MODEL [STATE [STEPS (1 to %d) [USED/EXPERTS]]]\n", MOST_STEPS);
        return 2;
    }
    ebb_status status = ebb_device_open("cpu", NULL, &device, &error);
    if (!status) status = ebb_model_open(device, argv[1], NULL, &model, &error);
    if (!status) {
        const ebb_model_info *info = ebb_model_describe(model);
        const double bytes = bytes_read(info, (double)used / experts);
        bench_roof roof;
        double seconds[2];
        status = bench_roofline(ebb_device_threads(device), &roof, &error);
        if (!status) status = decode(model, state, 1, steps, ids[0], &seconds[0], &error);
        if (!status) status = decode(model, state, BATCH, steps, ids[1], &seconds[1], &error);
        if (!status) {
            printf("%s, %s, %d threads: %.2f GB of weights a token; a plain read has %.1f GB/s\n", argv[1], state,
                   ebb_device_threads(device), bytes / 1e9, roof.read_gbs);
            printf("batch 1: %.1f tokens/s, %.1f GB/s, %.0f %% of the read bandwidth\n", 1 / seconds[0],
                   bytes / seconds[0] / 1e9, 100 * bytes / seconds[0] / (roof.read_gbs * 1e9));
            printf("batch %d: %.1f tokens/s; tokens of the first sequence: %s\n", BATCH, BATCH / seconds[1],
                   memcmp(ids[0], ids[1], (size_t)steps * sizeof *ids[0]) ? "OTHERS" : "the same");
        }
    }
    if (status) fprintf(stderr, "decode: %s\n", error.text);
    if (model) ebb_model_close(model);
    if (device) ebb_device_close(device);
    return status != EBB_OK;
}
