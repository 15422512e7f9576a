/* op/x86/append_avx512.c: the AVX-512 row of writing tokens; see append.h. */
#include "op/x86/append.h"
