/* toy/toy.h: the rows of the toy codec, compiled into the table of src/state/methods.c by tests only. */
#ifndef TOY_TOY_H
#define TOY_TOY_H

#include "ebb/state.h"

extern const ebb_state_codec codec_toy;

#define EBB_EXTRA_STATE_METHODS                         \
    {"toy", &codec_toy, "", "12 bits a value, a test"}, \
        {"toy-w", &codec_toy, "p=16", "12 bits a value once per window, a test"},

#endif
