/* op/arm/chunk_neon.c: the NEON row of chunked prefill; see op/x86/chunk.h. */
#include "op/x86/chunk.h"
