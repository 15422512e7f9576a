/* core/system.c: the operating system: memory, files, time, the CPU. Called from everywhere. */
#define _GNU_SOURCE
#include "core/core.h"

#include "ebb/device.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(EBB_X86)
#    include <cpuid.h>
#endif

/* Pools and weights are read from end to end at every token, and the walks of 4 KiB pages are a fifth of that time in a
 * virtual machine (docs/notes/cpu-delta.md): large blocks begin on a huge page and ask for more of them. A system that
 * has none to give says so, which changes nothing. */
#define HUGE_PAGE ((size_t)2 << 20)

void *aligned_new(size_t bytes) {
    void *block = NULL;
    if (bytes > SIZE_MAX - HUGE_PAGE) return NULL;
    const size_t align = bytes < 2 * HUGE_PAGE ? 64 : HUGE_PAGE;
    bytes = align_up(bytes ? bytes : 1, 64);
    if (posix_memalign(&block, align, bytes)) return NULL;
#ifdef MADV_HUGEPAGE
    if (align == HUGE_PAGE) madvise(block, bytes, MADV_HUGEPAGE);
#endif
    return block;
}

ebb_status map_file(const char *path, mapped_file *file, ebb_error *error) {
    static const uint8_t nothing[1];
    ebb_status status = EBB_OK;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ebb_fail(error, EBB_BAD_FILE, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0) status = ebb_fail(error, EBB_BAD_FILE, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode)) status = ebb_fail(error, EBB_BAD_FILE, "%s: not a regular file", path);
    else if (st.st_size == 0) *file = (mapped_file){nothing, 0};
    else {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) status = ebb_fail(error, EBB_BAD_FILE, "%s: cannot map: %s", path, strerror(errno));
        else *file = (mapped_file){data, (size_t)st.st_size};
    }
    close(fd);
    return status;
}

void unmap_file(mapped_file *file) {
    if (file->bytes) munmap((void *)(uintptr_t)file->data, file->bytes);
    *file = (mapped_file){NULL, 0};
}

ebb_status read_file(const char *path, size_t limit, char **text, size_t *bytes, ebb_error *error) {
    mapped_file file = {NULL, 0};
    ebb_status status = map_file(path, &file, error);
    if (status) return status;
    if (file.bytes > limit)
        status = ebb_fail(error, EBB_BAD_FILE, "%s: %zu bytes, expected at most %zu", path, file.bytes, limit);
    else if (!(*text = malloc(file.bytes + 1)))
        status = ebb_fail(error, EBB_NO_MEMORY, "%s: no memory for %zu bytes", path, file.bytes);
    else {
        memcpy(*text, file.data, file.bytes);
        (*text)[file.bytes] = '\0';
        *bytes = file.bytes;
    }
    unmap_file(&file);
    return status;
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

char *path_join(const char *directory, const char *name) {
    size_t n = strlen(directory) + strlen(name) + 2;
    char *path = malloc(n);
    if (path) snprintf(path, n, "%s/%s", directory, name);
    return path;
}

static ebb_status write_all(int fd, const uint8_t *data, size_t bytes) {
    while (bytes) {
        ssize_t n = write(fd, data, bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return EBB_BAD_FILE;
        data += n;
        bytes -= (size_t)n;
    }
    return EBB_OK;
}

/* The rename is on disk when its directory is. A file system that cannot say so is not a failure. */
static void sync_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    char *directory = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(directory);
}

ebb_status replace_file(const char *path, const uint8_t *data, size_t bytes, ebb_error *error) {
    size_t room = strlen(path) + sizeof ".tmp";
    char *tmp = malloc(room);
    if (!tmp) return ebb_fail(error, EBB_NO_MEMORY, "%s: no memory for a name", path);
    snprintf(tmp, room, "%s.tmp", path);
    ebb_status status = EBB_OK;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = ebb_fail(error, EBB_BAD_FILE, "%s: %s", tmp, strerror(errno));
        free(tmp);
        return status;
    }
    if (write_all(fd, data, bytes) || fsync(fd) != 0)
        status = ebb_fail(error, EBB_BAD_FILE, "%s: cannot write %zu bytes: %s", tmp, bytes, strerror(errno));
    if (close(fd) != 0 && !status) status = ebb_fail(error, EBB_BAD_FILE, "%s: %s", tmp, strerror(errno));
    if (!status && rename(tmp, path) != 0) status = ebb_fail(error, EBB_BAD_FILE, "%s: %s", path, strerror(errno));
    if (status) unlink(tmp);
    else sync_directory(path);
    free(tmp);
    return status;
}

int32_t cpu_features(void) {
    int32_t features = 0;
#if defined(EBB_X86)
    unsigned a, b, c = 0, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    if (f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) features |= EBB_CPU_AVX2;
    if ((features & EBB_CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        features |= EBB_CPU_AVX512;
    if ((features & EBB_CPU_AVX512) && __builtin_cpu_supports("avx512vnni")) features |= EBB_CPU_VNNI;
#elif defined(EBB_ARM)
    features |= EBB_CPU_NEON;
#endif
    return features;
}

int32_t cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < 1024 ? (int32_t)n : 1;
}

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
