/* op/x86/chunk_avx2.c: chunk.h for AVX2: 8 lanes. */
#include "op/x86/chunk.h"
