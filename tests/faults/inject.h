/* faults/inject.h: makes the n-th call that can fail do so. The linker sends the library's calls of malloc, open, mmap
 * and their kin to inject.c (--wrap, in tests/CMakeLists.txt), so that the library itself knows nothing of it. Between
 * faults_arm and faults_disarm calls are numbered 1, 2, ..., and what they hand out is followed until it is given back.
 * For test_faults.c. */
#ifndef FAULTS_INJECT_H
#define FAULTS_INJECT_H

#include <stdbool.h>
#include <stdint.h>

/* What answers: a JSON document that could not be read for want of memory is a malformed one to jansson, and only the
 * sentence can tell, so that such calls have a kind of their own. */
typedef enum fault_kind { FAULT_MEMORY = 1, FAULT_JSON, FAULT_FILE } fault_kind;

typedef struct fault_call {
    fault_kind kind;
    const char *function; /* "malloc" */
    uint64_t stack;       /* hash of its innermost callers */
} fault_call;

typedef struct fault_tally {
    int64_t calls;
    int64_t blocks, files, maps; /* handed out and not given back */
    const char *leak;            /* function that handed out one of them; NULL: none */
    int64_t leak_call;           /* and its number */
} fault_tally;

/* fail: number of the call that fails, 0: none; rest: and all after it. */
void faults_arm(int64_t fail, bool rest);
void faults_disarm(fault_tally *tally);
/* Call 1 .. calls of the last run that was armed with fail == 0. */
const fault_call *faults_call(int64_t number);
/* The call that failed first in the last run; NULL: none did. */
const fault_call *faults_failed(void);
/* Where that was, on stderr, for addr2line. */
void faults_print(void);

#endif
