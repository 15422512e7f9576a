/* op/x86/attention_avx512.c: the AVX-512 row of attention; see attention.h. */
#include "op/x86/attention.h"
