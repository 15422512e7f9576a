/* slow_scheduler.c: 10,000 random requests to a scheduler, each of them answered as it is alone (test_scheduler.c does
 * a few hundred). */
#include "scheduler_world.h"

static void test_ten_thousand(void **state) {
    const ebb_device_config config = {.size = sizeof config, .threads = 2};
    world w = {.random = 99, .cache_mem = (size_t)3 << 20};
    ebb_device *device;
    ebb_error error;
    (void)state;
    must(ebb_device_open("cpu", &config, &device, &error), &error);
    must(ebb_model_open(device, SOURCE_DIR "/models/tiny-gdn", NULL, &w.model, &error), &error);
    run_world(&w, "leap8", "bf16", 10000);
    ebb_model_close(w.model);
    ebb_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ten_thousand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
