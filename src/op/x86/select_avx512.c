/* op/x86/select_avx512.c: the AVX-512 row of scoring keys; see select.h. */
#include "op/x86/select.h"
