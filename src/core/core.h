/* core/core.h: what every room may call: checked sizes, aligned memory, mapped files, CPU features, time. */
#ifndef CORE_CORE_H
#define CORE_CORE_H

#include "ebb/core.h"

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof(array)[0]))

static inline size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

/* *product = a * b; false when it does not fit (leave *product alone). Sizes that come from files go through these. */
bool size_mul(size_t a, size_t b, size_t *product);
bool size_add(size_t a, size_t b, size_t *sum);

/* 64-byte aligned memory; NULL when there is none. Freed with free(). */
void *aligned_new(size_t bytes);

/* A file mapped read-only. bytes == 0: an empty file, data is not NULL. EBB_BAD_FILE names the file and the reason. */
typedef struct mapped_file {
    const uint8_t *data;
    size_t bytes;
} mapped_file;
ebb_status map_file(const char *path, mapped_file *file, ebb_error *error);
void unmap_file(mapped_file *file);

/* The whole of a text file, NUL-terminated, malloc'ed; larger than `limit` bytes is EBB_BAD_FILE. */
ebb_status read_file(const char *path, size_t limit, char **text, size_t *bytes, ebb_error *error);
/* PATH.tmp, then renamed: PATH is the old file or the whole new one, whatever happens. */
ebb_status replace_file(const char *path, const uint8_t *data, size_t bytes, ebb_error *error);
bool file_exists(const char *path);
char *path_join(const char *directory, const char *name); /* DIRECTORY/NAME, malloc'ed; NULL: no memory */

int32_t cpu_features(void); /* EBB_CPU_* of this machine, usable under this operating system */
int32_t cpu_count(void);    /* CPUs this process may run on */
double seconds_now(void);   /* monotonic */

/* CRC-32C of `bytes` bytes that follow those whose CRC is `crc`; 0 begins. The second computes it by tables whatever
 * the CPU has. */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);
uint32_t crc32c_tables(uint32_t crc, const void *data, size_t bytes);

/* A 64-bit mix (splitmix64's finaliser): the base of every keyed random number here. */
static inline uint64_t mix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* FNV-1a over `bytes` bytes that follow those whose hash is `hash`; HASH64_BEGIN begins. Names things, protects none.
 */
#define HASH64_BEGIN 0xcbf29ce484222325u
static inline uint64_t hash64(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

#endif
