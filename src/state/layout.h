/* state/layout.h: the inside of layouts. For src/state. */
#ifndef STATE_LAYOUT_H
#define STATE_LAYOUT_H

#include "ebb/state.h"

/* The table of a layer; a sentence where there is none or where it is of other dimensions. */
ebb_status layout_of_layer(const ebb_layout *layout, const char *method, const ebb_state_layer *layer,
                           const ebb_layout_layer **table, ebb_error *error);

/* A layout that changes nothing, for any method: all orders as they are, scales of 1, 8 bits for every head. `layers`
 * [n] are those of a model, in its order. For sizes, where there is no calibrated one, and for tests. */
ebb_status layout_identity(const char *method, const ebb_state_layer *layers, int32_t n, ebb_layout **layout,
                           ebb_error *error);

#endif
