/* test_device.c: devices, queues and workers: every item once, whatever the threads; two queues of one device at the
 * same time; refusals. Under `make tsan` this is the race test of the worker pool. */
#include "device/device_int.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct tally {
    int32_t count[1000];
    int32_t worker_max;
} tally;

static void touch(void *ctx, int64_t item, int32_t worker) {
    tally *t = ctx;
    t->count[item]++; /* not atomic: each item has one worker */
    if (worker > 100) t->worker_max = worker;
}

static void test_every_item_once(void **state) {
    (void)state;
    for (int32_t threads = 1; threads <= 5; threads++) {
        workers *pool;
        ebb_error error;
        assert_int_equal(workers_open(threads, &pool, &error), EBB_OK);
        tally *t = calloc(1, sizeof *t);
        for (int round = 0; round < 300; round++) workers_run(pool, 1 + round * 3, touch, t);
        for (int i = 0; i < 898; i++) {
            int expected = i == 0 ? 300 : 300 - (i + 2) / 3;
            if (t->count[i] != expected)
                fail_msg("%d threads: item %d done %d times, expected %d", threads, i, t->count[i], expected);
        }
        free(t);
        workers_close(pool);
    }
}

static void *use_queue(void *device) {
    ebb_queue *queue;
    if (ebb_queue_open(device, 4096, &queue, NULL)) return "no queue";
    for (int round = 0; round < 200; round++) {
        tally *t = calloc(1, sizeof *t);
        queue_run(queue, 100, 1 << 20, touch, t);
        for (int i = 0; i < 100; i++)
            if (t->count[i] != 1) return "an item was lost or done twice";
        free(t);
    }
    ebb_queue_close(queue);
    return NULL;
}

static void test_two_queues(void **state) {
    (void)state;
    ebb_device *device;
    ebb_device_config config = {.size = sizeof config, .threads = 3};
    assert_int_equal(ebb_device_open("cpu", &config, &device, NULL), EBB_OK);
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) pthread_create(&thread[i], NULL, use_queue, device);
    for (int i = 0; i < 3; i++) {
        void *complaint;
        pthread_join(thread[i], &complaint);
        if (complaint) fail_msg("%s", (const char *)complaint);
    }
    ebb_device_close(device);
}

static void test_refusals(void **state) {
    (void)state;
    ebb_device *device;
    ebb_error error = {EBB_OK, ""};
    ebb_device_config config = {.size = sizeof config, .threads = -1};
    assert_int_equal(ebb_device_open("tpu", NULL, &device, &error), EBB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "tpu"));
    assert_int_equal(ebb_device_open("cpu", &config, &device, &error), EBB_BAD_ARGUMENT);
    config.threads = 1, config.size = 3;
    assert_int_equal(ebb_device_open("cpu", &config, &device, &error), EBB_BAD_ARGUMENT);
    config.size = sizeof config, config.features = EBB_CPU_NONE;
    assert_int_equal(ebb_device_open("cpu", &config, &device, &error), EBB_OK);
    assert_int_equal(ebb_device_features(device), 0);
    assert_int_equal(ebb_device_threads(device), 1);
    assert_null(ebb_device_alloc(device, 0));
    ebb_device_close(device);
}

static void test_errors(void **state) {
    (void)state;
    ebb_error error;
    char name[400];
    memset(name, 'x', sizeof name), name[sizeof name - 1] = 0;
    memcpy(name + 232, "\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC", 12); /* cut inside a character */
    assert_int_equal(ebb_fail(&error, EBB_BAD_FILE, "%s", name), EBB_BAD_FILE);
    assert_int_equal(strlen(error.text), 238);
    ebb_fail(&error, EBB_BAD_FILE, "two\nlines\x1b[2J");
    assert_string_equal(error.text, "two?lines?[2J");
    assert_int_equal(ebb_fail(NULL, EBB_NO_MEMORY, "nobody listens"), EBB_NO_MEMORY);
    assert_string_equal(ebb_status_name(EBB_INTERRUPTED), "interrupted");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_item_once), cmocka_unit_test(test_two_queues),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
