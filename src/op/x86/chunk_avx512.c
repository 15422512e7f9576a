/* op/x86/chunk_avx512.c: chunk.h for AVX-512: 16 lanes. */
#include "op/x86/chunk.h"
