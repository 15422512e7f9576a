/* op/arm/select_neon.c: the NEON row of scoring keys; see op/x86/select.h. */
#include "op/x86/select.h"
