/* op/x86/point_avx512.c: the AVX-512 row of the pointwise kernels; see point.h. */
#include "op/x86/point.h"
