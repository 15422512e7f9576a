/* op/x86/gemm_avx2.c: the AVX2 row of gemm; see gemm.h. */
#include "op/x86/gemm.h"
