/* op/arm/delta_neon.c: the NEON row of the delta-rule step; see op/x86/delta.h. */
#include "op/x86/delta.h"
