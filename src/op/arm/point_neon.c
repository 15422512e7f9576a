/* op/arm/point_neon.c: the NEON row of the pointwise kernels; see op/x86/point.h. */
#include "op/x86/point.h"
