/* op/x86/append_avx2.c: the AVX2 row of writing tokens; see append.h. */
#include "op/x86/append.h"
