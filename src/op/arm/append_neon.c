/* op/arm/append_neon.c: the NEON row of writing tokens; see op/x86/append.h. */
#include "op/x86/append.h"
