/* ebb/device.h: where memory lives and work runs. A device owns an allocator (its own or the caller's), workers and CPU
 * features; a queue is one in-order line of work on it. Ops (ebb/op.h) take a queue and never allocate. */
#ifndef EBB_DEVICE_H
#define EBB_DEVICE_H

#include "ebb/core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ebb_device ebb_device;
typedef struct ebb_queue ebb_queue;

/* Memory of a device. `alloc` returns NULL when there is none; blocks are aligned to `align` (a power of two). */
typedef struct ebb_allocator {
    void *ctx;
    void *(*alloc)(void *ctx, size_t bytes, size_t align);
    void (*free)(void *ctx, void *block, size_t bytes);
} ebb_allocator;

/* CPU features, as far as kernel rows ask for them. */
enum {
    EBB_CPU_AVX2 = 1 << 0,   /* AVX2, FMA and F16C together */
    EBB_CPU_AVX512 = 1 << 1, /* AVX-512 F, BW, DQ and VL together */
    EBB_CPU_NEON = 1 << 2,   /* Advanced SIMD of 64-bit ARM, where it is never missing */
    EBB_CPU_VNNI = 1 << 3,   /* AVX-512 VNNI, beside EBB_CPU_AVX512 */
    EBB_CPU_NONE = 1 << 30,  /* a mask that allows none: "ref" rows only */
    EBB_CPU_ALL = -1
};

typedef struct ebb_device_config {
    size_t size;          /* sizeof(ebb_device_config) */
    int32_t threads;      /* workers including the calling thread; 0 = one per CPU this process may use */
    int32_t features;     /* mask of EBB_CPU_*: what the device may use of what is there; 0 = all */
    ebb_allocator memory; /* alloc == NULL: the device's own */
    ebb_log log;
} ebb_device_config;

/* Open a device by name ("cpu"). `config` may be NULL. The device outlives everything made on it.
 * EBB_UNSUPPORTED: no such device in this build. EBB_BAD_ARGUMENT: threads < 0 or > 1024. */
EBB_API ebb_status ebb_device_open(const char *name, const ebb_device_config *config, ebb_device **device,
                                   ebb_error *error);
EBB_API void ebb_device_close(ebb_device *device); /* NULL is allowed */
EBB_API const char *ebb_device_name(const ebb_device *device);
EBB_API int32_t ebb_device_threads(const ebb_device *device);
EBB_API int32_t ebb_device_features(const ebb_device *device); /* EBB_CPU_*: present and allowed */

/* Say a sentence to the device's log, if it has one. */
EBB_API void ebb_device_notice(const ebb_device *device, const char *sentence);

/* Device memory, 64-byte aligned, not cleared. NULL when there is none or bytes == 0. */
EBB_API void *ebb_device_alloc(ebb_device *device, size_t bytes);
EBB_API void ebb_device_free(ebb_device *device, void *block, size_t bytes); /* NULL is allowed */

/* A queue with a scratch arena of `arena_bytes` (the largest `scratch` of the plans that will run on it). On the CPU a
 * queue runs its ops in the calling thread, helped by the device's workers. One queue belongs to one thread at a time.
 */
EBB_API ebb_status ebb_queue_open(ebb_device *device, size_t arena_bytes, ebb_queue **queue, ebb_error *error);
EBB_API void ebb_queue_close(ebb_queue *queue);
EBB_API ebb_device *ebb_queue_device(const ebb_queue *queue);
EBB_API size_t ebb_queue_arena_bytes(const ebb_queue *queue);
/* Wait until everything enqueued is done; answers the first asynchronous fault, which is sticky. */
EBB_API ebb_status ebb_queue_sync(ebb_queue *queue, ebb_error *error);

#ifdef __cplusplus
}
#endif
#endif
