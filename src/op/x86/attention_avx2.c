/* op/x86/attention_avx2.c: the AVX2 row of attention; see attention.h. */
#include "op/x86/attention.h"
