/* op/x86/delta_avx2.c: the delta-rule step on 8 lanes; see delta.h. */
#include "op/x86/delta.h"
