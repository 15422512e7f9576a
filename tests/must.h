/* must.h: a call that has to succeed, or the test fails with its sentence. */
#ifndef TESTS_MUST_H
#define TESTS_MUST_H

#include "ebb/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static inline void must(ebb_status status, const ebb_error *error) {
    if (status) fail_msg("%s: %s", ebb_status_name(status), error->text);
}

#endif
