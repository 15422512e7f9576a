/* op/x86/gemm_avx512.c: the AVX-512 row of gemm; see gemm.h. */
#include "op/x86/gemm.h"
