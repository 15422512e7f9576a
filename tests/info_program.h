/* tests/info_program.h: `ebb info` run from outside, for test_info.c and test_info_fit.c. */
#ifndef TESTS_INFO_PROGRAM_H
#define TESTS_INFO_PROGRAM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { ROOM = 1 << 20 };

/* What the program prints, and its exit code. */
static int run(const char *arguments, char *text) {
    char command[512];
    snprintf(command, sizeof command, "%s info %s 2>&1 </dev/null", EBB_PROGRAM, arguments);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, ROOM - 1, f);
    text[n] = '\0';
    int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#endif
