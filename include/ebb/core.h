/* ebb/core.h: status, errors, notices, progress. Included by every other header of ebb. */
#ifndef EBB_CORE_H
#define EBB_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#    define EBB_API __attribute__((visibility("default")))
#    define EBB_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#    define EBB_API
#    define EBB_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define EBB_VERSION_MAJOR 0
#define EBB_VERSION_MINOR 1
#define EBB_VERSION_PATCH 0

typedef enum ebb_status {
    EBB_OK,
    EBB_BAD_ARGUMENT, /* the caller passed something that cannot be served */
    EBB_BAD_FILE,     /* a file is truncated, malformed or contradicts itself */
    EBB_UNSUPPORTED,  /* well-formed, but no code here serves it */
    EBB_NO_MEMORY,
    EBB_DEVICE_FAULT, /* an asynchronous fault; the queue it happened on is lost */
    EBB_INTERRUPTED   /* a progress callback asked to stop; what was finished is kept */
} ebb_status;

/* What went wrong, as one sentence that names what was wrong and what was expected.
 * Every function that takes an ebb_error accepts NULL for it; on EBB_OK its content is unspecified. */
typedef struct ebb_error {
    ebb_status code;
    char text[240];
} ebb_error;

/* Fill `error` (if not NULL) and return `code`, so that a failure reads `return ebb_fail(error, EBB_BAD_FILE, ...)`.
 * A text that does not fit is cut at a UTF-8 boundary. */
EBB_API ebb_status ebb_fail(ebb_error *error, ebb_status code, const char *format, ...) EBB_PRINTF(3, 4);

EBB_API const char *ebb_status_name(ebb_status);
EBB_API const char *ebb_version(void); /* "0.1.0" */

/* A place for one-line notices ("17 vision tensors skipped"). notice == NULL: silence. */
typedef struct ebb_log {
    void *ctx;
    void (*notice)(void *ctx, const char *sentence);
} ebb_log;

/* Long work reports here, from the calling thread; returning false asks it to stop at the next safe point,
 * after which the call answers EBB_INTERRUPTED. report == NULL: nobody watches. */
typedef struct ebb_progress {
    void *ctx;
    bool (*report)(void *ctx, const char *what, int64_t done, int64_t total);
} ebb_progress;

#ifdef __cplusplus
}
#endif
#endif
