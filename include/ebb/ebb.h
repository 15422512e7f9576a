/* ebb.h: the whole public C API of ebb. A program that needs the stores and kernels only includes ebb/op.h and links
 * ebb-core; models, engine and tokenizer are in the library ebb. */
#ifndef EBB_H
#define EBB_H

#include "ebb/core.h"
#include "ebb/device.h"
#include "ebb/format.h"
#include "ebb/state.h"
#include "ebb/kv.h"
#include "ebb/image.h"
#include "ebb/op.h"
#include "ebb/model.h"
#include "ebb/engine.h"
#include "ebb/scheduler.h"
#include "ebb/measure.h"

#endif
