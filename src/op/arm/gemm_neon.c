/* op/arm/gemm_neon.c: the NEON row of gemm; see op/x86/gemm.h. */
#include "op/x86/gemm.h"
