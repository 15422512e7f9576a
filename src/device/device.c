/* device/device.c: devices and queues. The CPU is the one device here; a further kind adds a file and a branch in
 * ebb_device_open. Called by programs, pools and ops. */
#include "device/device_int.h"

#include <stdlib.h>
#include <string.h>

static void *own_alloc(void *ctx, size_t bytes, size_t align) {
    (void)ctx, (void)align;
    return aligned_new(bytes);
}

static void own_free(void *ctx, void *block, size_t bytes) {
    (void)ctx, (void)bytes;
    free(block);
}

static ebb_status open_cpu(const ebb_device_config *config, ebb_device **out, ebb_error *error) {
    int32_t threads = config->threads ? config->threads : cpu_count();
    if (threads < 0 || threads > 1024)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "threads = %d, expected 1 to 1024, or 0 for one per CPU", threads);
    if ((config->memory.alloc == NULL) != (config->memory.free == NULL))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "an allocator needs both alloc and free");
    ebb_device *device = calloc(1, sizeof *device);
    if (!device) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a device");
    device->kind = DEVICE_CPU;
    device->name = "cpu";
    device->memory = config->memory.alloc ? config->memory : (ebb_allocator){NULL, own_alloc, own_free};
    device->log = config->log;
    device->features = cpu_features();
    if (config->features) device->features &= config->features;
    ebb_status status = workers_open(threads, &device->workers, error);
    if (status) {
        free(device);
        return status;
    }
    *out = device;
    return EBB_OK;
}

ebb_status ebb_device_open(const char *name, const ebb_device_config *config, ebb_device **device, ebb_error *error) {
    static const ebb_device_config preset = {.size = sizeof preset};
    if (!name || !device) return ebb_fail(error, EBB_BAD_ARGUMENT, "a device needs a name and a place to go");
    if (!config) config = &preset;
    if (config->size != sizeof *config)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_device_config.size is %zu, this library expects %zu",
                        config->size, sizeof *config);
    if (strcmp(name, "cpu") == 0) return open_cpu(config, device, error);
    return ebb_fail(error, EBB_UNSUPPORTED, "no device '%s' in this build, expected cpu", name);
}

void ebb_device_close(ebb_device *device) {
    if (!device) return;
    workers_close(device->workers);
    free(device);
}

const char *ebb_device_name(const ebb_device *device) { return device->name; }
int32_t ebb_device_threads(const ebb_device *device) { return workers_count(device->workers); }
int32_t ebb_device_features(const ebb_device *device) { return device->features; }

void ebb_device_notice(const ebb_device *device, const char *sentence) {
    if (device->log.notice) device->log.notice(device->log.ctx, sentence);
}

void *ebb_device_alloc(ebb_device *device, size_t bytes) {
    return bytes ? device->memory.alloc(device->memory.ctx, bytes, 64) : NULL;
}

void ebb_device_free(ebb_device *device, void *block, size_t bytes) {
    if (block) device->memory.free(device->memory.ctx, block, bytes);
}

ebb_status ebb_queue_open(ebb_device *device, size_t arena_bytes, ebb_queue **out, ebb_error *error) {
    if (!device || !out) return ebb_fail(error, EBB_BAD_ARGUMENT, "a queue needs a device and a place to go");
    ebb_queue *queue = calloc(1, sizeof *queue);
    if (!queue) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a queue");
    queue->device = device;
    queue->arena_bytes = arena_bytes;
    if (arena_bytes && !(queue->arena = ebb_device_alloc(device, arena_bytes))) {
        free(queue);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a scratch arena of %zu bytes", arena_bytes);
    }
    *out = queue;
    return EBB_OK;
}

void ebb_queue_close(ebb_queue *queue) {
    if (!queue) return;
    ebb_device_free(queue->device, queue->arena, queue->arena_bytes);
    free(queue);
}

ebb_device *ebb_queue_device(const ebb_queue *queue) { return queue->device; }
size_t ebb_queue_arena_bytes(const ebb_queue *queue) { return queue->arena_bytes; }

ebb_status ebb_queue_sync(ebb_queue *queue, ebb_error *error) {
    if (!queue) return ebb_fail(error, EBB_BAD_ARGUMENT, "no queue");
    return EBB_OK; /* the CPU runs every op before its call returns */
}

void queue_run(ebb_queue *queue, int64_t items, int64_t cost, work_fn fn, void *ctx) {
    enum { WORTH_SHARING = 20000 }; /* scalar operations: some 5 us */
    if (cost < WORTH_SHARING) {
        for (int64_t i = 0; i < items; i++) fn(ctx, i, 0);
        return;
    }
    workers_run(queue->device->workers, items, fn, ctx);
}
