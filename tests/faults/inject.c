/* faults/inject.c: see inject.h. */
#define _GNU_SOURCE
#include "faults/inject.h"

#include "core/core.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { FRAMES = 10, SLOTS = 1 << 18, MOST_CALLS = 1 << 20 };

/* One thing handed out: a block or a pattern by its address, a file by its number, a mapping by its address. */
typedef enum thing { A_BLOCK, A_FILE, A_MAP } thing;
typedef struct held {
    uint64_t key; /* 0: empty */
    thing what;
    const char *function;
    int64_t call;
} held;

static struct {
    pthread_mutex_t lock; /* workers give back what they were started with */
    bool armed, rest;
    int64_t fail, calls;
    fault_call *list; /* [MOST_CALLS], of the last counting run */
    fault_call failed;
    void *frames[FRAMES + 2];
    int n_frames;
    void *lexer;   /* jansson's caller that is left alone (json_alloc) */
    bool learning; /* which one that is */
    held slots[SLOTS];
    int64_t n_held[3];
} f = {.lock = PTHREAD_MUTEX_INITIALIZER};

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void __real_free(void *block);

/* ---- the numbered calls ---- */

static uint64_t stack_hash(void *const *frames, int n) {
    return hash64(HASH64_BEGIN, frames, (size_t)n * sizeof *frames);
}

/* Is this the call that fails? */
static bool fails(fault_kind kind, const char *function) {
    pthread_mutex_lock(&f.lock);
    if (!f.armed) {
        pthread_mutex_unlock(&f.lock);
        return false;
    }
    const int64_t call = ++f.calls;
    const bool first = call == f.fail, fail = first || (f.rest && f.fail && call > f.fail);
    if (f.fail == 0 || first) {
        void *frames[FRAMES + 2];
        const int n = backtrace(frames, FRAMES + 2);
        const fault_call here = {kind, function, stack_hash(frames + 1, n - 1)};
        if (first) f.failed = here, f.n_frames = n, memcpy(f.frames, frames, sizeof frames);
        else if (call <= MOST_CALLS) f.list[call - 1] = here;
    }
    pthread_mutex_unlock(&f.lock);
    return fail;
}

/* ---- what is handed out ---- */

static uint64_t key_of(thing what, uint64_t value) { return value * 4 + (uint64_t)what + 1; }
static size_t slot_of(uint64_t key) { return (size_t)(mix64(key) % SLOTS); }

static void hold(thing what, uint64_t value, const char *function) {
    pthread_mutex_lock(&f.lock);
    if (f.armed) {
        size_t i = slot_of(key_of(what, value));
        while (f.slots[i].key) i = (i + 1) % SLOTS;
        f.slots[i] = (held){key_of(what, value), what, function, f.calls};
        if (++f.n_held[what] > SLOTS / 2) abort(); /* make SLOTS larger */
    }
    pthread_mutex_unlock(&f.lock);
}

static void release(thing what, uint64_t value) {
    const uint64_t key = key_of(what, value);
    pthread_mutex_lock(&f.lock);
    size_t i = slot_of(key);
    while (f.slots[i].key && f.slots[i].key != key) i = (i + 1) % SLOTS;
    if (f.slots[i].key) {
        f.n_held[what]--;
        f.slots[i].key = 0;
        for (size_t j = (i + 1) % SLOTS; f.slots[j].key; j = (j + 1) % SLOTS) { /* close the gap */
            const size_t home = slot_of(f.slots[j].key);
            if ((j - home) % SLOTS < (j - i) % SLOTS) continue;
            f.slots[i] = f.slots[j];
            f.slots[i = j].key = 0;
        }
    }
    pthread_mutex_unlock(&f.lock);
}

static void *block(void *at, const char *function) {
    if (at) hold(A_BLOCK, (uintptr_t)at, function);
    return at;
}

static bool no_memory(const char *function) {
    if (!fails(FAULT_MEMORY, function)) return false;
    errno = ENOMEM;
    return true;
}

static bool no_file(const char *function, int why) {
    if (!fails(FAULT_FILE, function)) return false;
    errno = why;
    return true;
}

/* ---- memory ---- */

void *__wrap_malloc(size_t bytes) { return no_memory("malloc") ? NULL : block(__real_malloc(bytes), "malloc"); }

void *__wrap_calloc(size_t n, size_t bytes) {
    return no_memory("calloc") ? NULL : block(__real_calloc(n, bytes), "calloc");
}

void *__wrap_realloc(void *old, size_t bytes) {
    if (no_memory("realloc")) return NULL;
    const uintptr_t was = (uintptr_t)old;
    release(A_BLOCK, was); /* before another thread can be given the address */
    return block(__real_realloc(old, bytes), "realloc");
}

void __wrap_free(void *old) {
    if (old) release(A_BLOCK, (uintptr_t)old);
    __real_free(old);
}

int __real_posix_memalign(void **out, size_t align, size_t bytes);
int __wrap_posix_memalign(void **out, size_t align, size_t bytes) {
    if (no_memory("posix_memalign")) return ENOMEM;
    const int code = __real_posix_memalign(out, align, bytes);
    if (code == 0) block(*out, "posix_memalign");
    return code;
}

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text) { return no_memory("strdup") ? NULL : block(__real_strdup(text), "strdup"); }

char *__real_strndup(const char *text, size_t n);
char *__wrap_strndup(const char *text, size_t n) {
    return no_memory("strndup") ? NULL : block(__real_strndup(text, n), "strndup");
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    return no_memory("pthread_create") ? EAGAIN : __real_pthread_create(thread, attr, run, arg);
}

/* jansson takes its memory from here (faults_arm), but for what its lexer gathers a token in: jansson 2.14 does not
 * look whether that could grow, and then reads past its end. */
static void *json_alloc(size_t bytes) {
    void *caller = __builtin_return_address(0);
    if (f.learning) f.lexer = bytes == 64 ? caller : f.lexer;
    else if (caller != f.lexer && fails(FAULT_JSON, "json_malloc")) return NULL;
    return block(__real_malloc(bytes), "json_malloc");
}

/* A string of 40 characters makes it grow from 16 to 32 to 64 bytes, and nothing else takes 64. */
static void find_lexer(void) {
    f.learning = true;
    json_decref(json_loads("\"0123456789012345678901234567890123456789\"", JSON_DECODE_ANY, NULL));
    f.learning = false;
}

/* ---- PCRE2, whose memory is its own: its objects are followed ---- */

pcre2_code *__real_pcre2_compile_8(PCRE2_SPTR pattern, PCRE2_SIZE n, uint32_t options, int *code, PCRE2_SIZE *at,
                                   pcre2_compile_context *context);
pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR pattern, PCRE2_SIZE n, uint32_t options, int *code, PCRE2_SIZE *at,
                                   pcre2_compile_context *context) {
    if (no_memory("pcre2_compile")) {
        *code = 121; /* "failed to allocate heap memory" */
        *at = 0;
        return NULL;
    }
    return block(__real_pcre2_compile_8(pattern, n, options, code, at, context), "pcre2_compile");
}

int __real_pcre2_match_8(const pcre2_code *code, PCRE2_SPTR text, PCRE2_SIZE n, PCRE2_SIZE from, uint32_t options,
                         pcre2_match_data *data, pcre2_match_context *context);
int __wrap_pcre2_match_8(const pcre2_code *code, PCRE2_SPTR text, PCRE2_SIZE n, PCRE2_SIZE from, uint32_t options,
                         pcre2_match_data *data, pcre2_match_context *context) {
    if (no_memory("pcre2_match")) return PCRE2_ERROR_NOMEMORY;
    return __real_pcre2_match_8(code, text, n, from, options, data, context);
}

pcre2_compile_context *__real_pcre2_compile_context_create_8(pcre2_general_context *general);
pcre2_compile_context *__wrap_pcre2_compile_context_create_8(pcre2_general_context *general) {
    static const char name[] = "pcre2_compile_context_create";
    return no_memory(name) ? NULL : block(__real_pcre2_compile_context_create_8(general), name);
}

pcre2_match_context *__real_pcre2_match_context_create_8(pcre2_general_context *general);
pcre2_match_context *__wrap_pcre2_match_context_create_8(pcre2_general_context *general) {
    static const char name[] = "pcre2_match_context_create";
    return no_memory(name) ? NULL : block(__real_pcre2_match_context_create_8(general), name);
}

pcre2_match_data *__real_pcre2_match_data_create_8(uint32_t pairs, pcre2_general_context *general);
pcre2_match_data *__wrap_pcre2_match_data_create_8(uint32_t pairs, pcre2_general_context *general) {
    static const char name[] = "pcre2_match_data_create";
    return no_memory(name) ? NULL : block(__real_pcre2_match_data_create_8(pairs, general), name);
}

pcre2_jit_stack *__real_pcre2_jit_stack_create_8(size_t first, size_t most, pcre2_general_context *general);
pcre2_jit_stack *__wrap_pcre2_jit_stack_create_8(size_t first, size_t most, pcre2_general_context *general) {
    static const char name[] = "pcre2_jit_stack_create";
    return no_memory(name) ? NULL : block(__real_pcre2_jit_stack_create_8(first, most, general), name);
}

#define PCRE2_FREE(name, type)                           \
    void __real_##name(type *object);                    \
    void __wrap_##name(type *object);                    \
    void __wrap_##name(type *object) {                   \
        if (object) release(A_BLOCK, (uintptr_t)object); \
        __real_##name(object);                           \
    }
PCRE2_FREE(pcre2_code_free_8, pcre2_code)
PCRE2_FREE(pcre2_compile_context_free_8, pcre2_compile_context)
PCRE2_FREE(pcre2_match_context_free_8, pcre2_match_context)
PCRE2_FREE(pcre2_match_data_free_8, pcre2_match_data)
PCRE2_FREE(pcre2_jit_stack_free_8, pcre2_jit_stack)

/* ---- files ---- */

int __real_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? (mode_t)va_arg(args, int) : 0;
    va_end(args);
    if (no_file("open", EMFILE)) return -1;
    const int fd = __real_open(path, flags, mode);
    if (fd >= 0) hold(A_FILE, (uint64_t)fd, "open");
    return fd;
}

/* A close that reports what an earlier write could not do: the file is closed all the same. */
int __real_close(int fd);
int __wrap_close(int fd) {
    const bool fail = no_file("close", EIO);
    release(A_FILE, (uint64_t)fd);
    const int code = __real_close(fd);
    if (!fail) return code;
    errno = EIO;
    return -1;
}

int __real_fstat(int fd, struct stat *st);
int __wrap_fstat(int fd, struct stat *st) { return no_file("fstat", EIO) ? -1 : __real_fstat(fd, st); }

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fd < 0 ? no_memory("mmap") : no_file("mmap", ENODEV)) return MAP_FAILED;
    void *map = __real_mmap(at, bytes, protection, flags, fd, offset);
    if (map != MAP_FAILED) hold(A_MAP, (uintptr_t)map, "mmap");
    return map;
}

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes) {
    release(A_MAP, (uintptr_t)at);
    return __real_munmap(at, bytes);
}

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes) {
    return no_file("write", ENOSPC) ? -1 : __real_write(fd, data, bytes);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd) { return no_file("fsync", EIO) ? -1 : __real_fsync(fd); }

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) { return no_file("rename", EACCES) ? -1 : __real_rename(from, to); }

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode) { return no_file("mkdir", EACCES) ? -1 : __real_mkdir(path, mode); }

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode) {
    if (no_file("fopen", EMFILE)) return NULL;
    FILE *file = __real_fopen(path, mode);
    if (file) hold(A_FILE, (uint64_t)fileno(file), "fopen");
    return file;
}

int __real_fclose(FILE *file);
int __wrap_fclose(FILE *file) {
    const bool fail = no_file("fclose", ENOSPC);
    release(A_FILE, (uint64_t)fileno(file));
    const int code = __real_fclose(file);
    if (!fail) return code;
    errno = ENOSPC;
    return EOF;
}

/* Time stands still, so that what a command prints of it is the same in every run. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t) {
    (void)clock;
    *t = (struct timespec){1, 0};
    return 0;
}

/* ---- the test's side ---- */

void faults_arm(int64_t fail, bool rest) {
    void *frame;
    backtrace(&frame, 1); /* the first call loads a library */
    json_set_alloc_funcs(json_alloc, __wrap_free);
    if (!f.lexer) find_lexer();
    if (!f.list && !(f.list = __real_calloc(MOST_CALLS, sizeof *f.list))) abort();
    if (f.n_held[A_BLOCK] + f.n_held[A_FILE] + f.n_held[A_MAP]) { /* what the last run left behind */
        memset(f.slots, 0, sizeof f.slots);
        memset(f.n_held, 0, sizeof f.n_held);
    }
    f.failed = (fault_call){0};
    f.fail = fail, f.rest = rest, f.calls = 0;
    pthread_mutex_lock(&f.lock);
    f.armed = true;
    pthread_mutex_unlock(&f.lock);
}

void faults_disarm(fault_tally *tally) {
    pthread_mutex_lock(&f.lock);
    f.armed = false;
    pthread_mutex_unlock(&f.lock);
    if (f.calls > MOST_CALLS) abort(); /* make MOST_CALLS larger */
    *tally = (fault_tally){f.calls, f.n_held[A_BLOCK], f.n_held[A_FILE], f.n_held[A_MAP], NULL, 0};
    if (tally->blocks + tally->files + tally->maps == 0) return;
    for (size_t i = 0; i < SLOTS; i++)
        if (f.slots[i].key) tally->leak = f.slots[i].function, tally->leak_call = f.slots[i].call;
}

const fault_call *faults_call(int64_t number) { return &f.list[number - 1]; }
const fault_call *faults_failed(void) { return f.failed.kind ? &f.failed : NULL; }
void faults_print(void) { backtrace_symbols_fd(f.frames, f.n_frames, STDERR_FILENO); }
