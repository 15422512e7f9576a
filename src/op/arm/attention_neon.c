/* op/arm/attention_neon.c: the NEON row of attention; see op/x86/attention.h. */
#include "op/x86/attention.h"
