/* op/x86/point_avx2.c: the AVX2 row of the pointwise kernels; see point.h. */
#include "op/x86/point.h"
