/* op/x86/attention_avx512vnni.c: the AVX-512 row of attention for CPUs that have VNNI; see attention.h. */
#include "op/x86/attention.h"
