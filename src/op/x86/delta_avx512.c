/* op/x86/delta_avx512.c: the delta-rule step on 16 lanes; see delta.h. */
#include "op/x86/delta.h"
