/* op/x86/select_avx2.c: the AVX2 row of scoring keys; see select.h. */
#include "op/x86/select.h"
