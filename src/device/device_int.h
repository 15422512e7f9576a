/* device/device_int.h: the inside of devices and queues, for src/device and src/op only. */
#ifndef DEVICE_DEVICE_INT_H
#define DEVICE_DEVICE_INT_H

#include "core/core.h"
#include "ebb/device.h"

typedef struct workers workers;

typedef enum device_kind { DEVICE_CPU } device_kind;

struct ebb_device {
    device_kind kind;
    const char *name;
    ebb_allocator memory;
    ebb_log log;
    workers *workers;
    int32_t features;
};

struct ebb_queue {
    ebb_device *device;
    void *arena; /* 64-byte aligned scratch for one op at a time */
    size_t arena_bytes;
};

/* Run fn(ctx, item, worker) for item 0 .. items-1 on the workers and the calling thread, and return when all are done.
 * worker is 0 .. threads-1 and is the index of per-worker scratch. Items are handed out one by one, so nothing may
 * depend on which worker gets which: every item writes its own output. One call at a time per pool (later callers
 * wait). */
typedef void (*work_fn)(void *ctx, int64_t item, int32_t worker);
ebb_status workers_open(int32_t threads, workers **pool, ebb_error *error);
void workers_close(workers *pool);
int32_t workers_count(const workers *pool);
void workers_run(workers *pool, int64_t items, work_fn fn, void *ctx);

/* The same, but in the calling thread alone when `cost` (scalar operations in all) is too small to share. */
void queue_run(ebb_queue *queue, int64_t items, int64_t cost, work_fn fn, void *ctx);

#endif
