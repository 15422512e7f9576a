/* state/params.h: parameters of codecs, as in "leap8:r=4,scale=max". Called by the method tables of state and kv. */
#ifndef STATE_PARAMS_H
#define STATE_PARAMS_H

#include "ebb/state.h"

/* Fill values[] from the presets of `params`, then `defaults`, then `text` ("key=value,..." or NULL). EBB_BAD_ARGUMENT
 * names the key or value that is wrong and what is known. `method` is for the sentences. */
ebb_status params_read(const char *method, const ebb_param *params, const char *defaults, const char *text,
                       double *values, ebb_error *error);
/* Place of a parameter in its table; -1: there is none. */
int32_t param_index(const ebb_param *params, const char *name);
/* The word of a parameter with choices. */
void param_choice(const ebb_param *param, double value, char *word, size_t room);
/* Any value as params_read reads it. */
void param_value(const ebb_param *param, double value, char *text, size_t room);

/* "METHOD:key=value,..." with every parameter, as params_read reads it; false: it does not fit. */
bool params_text(const char *method, const ebb_param *params, const double *values, char *text, size_t room);

/* Find NAME of "NAME:params" in a table of rows of `stride` bytes that begin with a const char *name; *text becomes the
 * params or NULL. Unknown: EBB_BAD_ARGUMENT with the list of names. */
ebb_status method_find(const char *kind, const char *text, const void *rows, int32_t count, size_t stride, int32_t *row,
                       const char **params, ebb_error *error);

#endif
