/* test_cycles.c: opened and closed again and again, nothing grows: devices with their threads, models, engines with a
 * sequence in use and saved, pools and queues. 200 cycles; EBB_CYCLES=10000 (make slow) as many more. */
#include "toy_session.h"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

enum { WARM = 50 }; /* cycles after which caches are full: of malloc, of thread stacks */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WATCHED = 0 }; /* their allocators keep what is freed; leaks they find themselves */
#else
enum { WATCHED = 1 };
#endif

static int32_t cycles(void) {
    const char *n = getenv("EBB_CYCLES");
    return n ? atoi(n) : 200;
}

/* ---- what must not grow ---- */

typedef struct held {
    size_t heap, resident; /* bytes that malloc has handed out; of memory in use */
    int32_t files, threads;
} held;

static int32_t entries(const char *folder) {
    DIR *dir = opendir(folder);
    int32_t n = 0;
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static held look(void) {
    const struct mallinfo2 m = mallinfo2();
    long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &size, &resident), 2);
    fclose(f);
    return (held){m.uordblks + m.hblkhd, (size_t)resident * (size_t)sysconf(_SC_PAGESIZE), entries("/proc/self/fd"),
                  entries("/proc/self/task")};
}

/* malloc counts the blocks that threads keep for themselves as handed out, so that both sizes waver; a leak of one
 * smallest block a cycle is past these bounds after 4096 cycles. */
static void flat(const char *what, held first) {
    const held now = look();
    const bool heap = now.heap <= first.heap + ((size_t)128 << 10),
               rss = now.resident <= first.resident + ((size_t)1 << 20);
    if (WATCHED && !(heap && rss))
        fail_msg("%s: after %d cycles %zu bytes of heap became %zu, %zu resident bytes %zu", what, cycles(), first.heap,
                 now.heap, first.resident, now.resident);
    assert_int_equal(now.files, first.files);
    assert_int_equal(now.threads, first.threads);
    if (WATCHED)
        print_message("%-8s %d cycles: heap %+lld bytes, resident %+lld\n", what, cycles(),
                      (long long)now.heap - (long long)first.heap, (long long)now.resident - (long long)first.resident);
}

static void repeat(const char *what, fixture *f, void (*cycle)(fixture *)) {
    for (int32_t i = 0; i < WARM; i++) cycle(f);
    const held first = look();
    for (int32_t i = 0; i < cycles(); i++) cycle(f);
    flat(what, first);
}

/* ---- cycles ---- */

static void engine_cycle(fixture *f) {
    ebb_device_config dc = {.size = sizeof dc, .threads = 2};
    const ebb_engine_config ec = {.size = sizeof ec, .state = "leap8", .kv = "bf16", .max_seqs = 2, .max_tokens = 300};
    int32_t id, again, ids[9];
    char path[80];
    ebb_device *device;
    ebb_model *model;
    ebb_engine *engine;
    ebb_error error;
    for (int32_t i = 0; i < COUNT(ids); i++) ids[i] = id_at(0, i);
    snprintf(path, sizeof path, "%s/a.ebb", f->folder);
    must(ebb_device_open("cpu", &dc, &device, &error), &error);
    must(ebb_model_open(device, f->folder, NULL, &model, &error), &error);
    must(ebb_engine_open(model, &ec, &engine, &error), &error);
    must(ebb_sequence_open(engine, &EBB_GREEDY, &id, &error), &error);
    must(ebb_sequence_append(engine, id, ids, COUNT(ids), &error), &error);
    must(ebb_engine_prefill(engine, &error), &error);
    must(ebb_engine_step(engine, &id, 1, &error), &error);
    must(ebb_sequence_save(engine, id, path, &error), &error);
    must(ebb_sequence_load(engine, path, NULL, &again, &error), &error);
    ebb_engine_close(engine); /* with its sequences open */
    ebb_model_close(model);
    ebb_device_close(device);
}

/* Refused when nearly all is loaded: what was opened on the way is closed. */
static void refused_cycle(fixture *f) {
    ebb_model *model = NULL;
    ebb_error error;
    assert_int_equal(ebb_model_open(f->device, SOURCE_DIR "/tests", NULL, &model, &error), EBB_BAD_FILE);
    ebb_tokenizer *tokenizer = NULL;
    assert_int_equal(ebb_tokenizer_open(SOURCE_DIR "/tests/data/random_kimi/none", &tokenizer, &error), EBB_BAD_FILE);
    assert_null(tokenizer);
}

static void pool_cycle(fixture *f) {
    ebb_state_layer layer = {
        .kind = EBB_KDA, .key_heads = 2, .heads = 4, .key_dim = 32, .value_dim = 32, .conv_width = 4};
    const ebb_kv_layer kv_layer = {
        .q_heads = 4, .heads = 2, .parts = 2, .scale = 1, .part = {{32, EBB_ROLE_K}, {32, EBB_ROLE_V}}};
    ebb_state_spec spec;
    ebb_kv_spec kv_spec;
    ebb_state_pool *pool;
    ebb_kv_pool *kv;
    ebb_queue *queue;
    ebb_error error;
    must(ebb_state_parse("int8-w", &spec, &error), &error);
    must(ebb_kv_parse("fp16", &kv_spec, &error), &error);
    const ebb_state_pool_config sc = {
        .size = sizeof sc, .spec = &spec, .layers = &layer, .n_layers = 1, .slots = 3, .max_new = 4};
    const ebb_kv_pool_config kc = {
        .size = sizeof kc, .spec = &kv_spec, .layers = &kv_layer, .n_layers = 1, .slots = 3, .max_tokens = 1000};
    must(ebb_state_pool_open(f->device, &sc, &pool, &error), &error);
    must(ebb_kv_pool_open(f->device, &kc, &kv, &error), &error);
    must(ebb_kv_pool_reserve(kv, 1, 700, &error), &error);
    must(ebb_queue_open(f->device, 100000, &queue, &error), &error);
    ebb_queue_close(queue);
    ebb_kv_pool_close(kv);
    ebb_state_pool_close(pool);
}

static void test_engines(void **state) { repeat("engines", *state, engine_cycle); }
static void test_refused(void **state) { repeat("refused", *state, refused_cycle); }
static void test_pools(void **state) { repeat("pools", *state, pool_cycle); }

/* A folder in memory where there is such a place: saves wait for the disk. */
static int enter(void **state) {
    if (setup(state)) return -1;
    fixture *f = *state;
    if (access("/dev/shm", W_OK) == 0) {
        rmdir(f->folder);
        snprintf(f->folder, sizeof f->folder, "/dev/shm/ebb-test-XXXXXX");
        if (!mkdtemp(f->folder)) return -1;
    }
    const toy t = TOY;
    toy_make(f->folder, &t);
    return 0;
}

static int leave(void **state) {
    toy_remove(((fixture *)*state)->folder, "a.ebb");
    return teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engines),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_pools),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
