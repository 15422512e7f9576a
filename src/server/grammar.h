/* server/grammar.h: a context-free grammar over bytes, and where a text stands in it. Answers that must be JSON are
 * held to one (schema.h makes it, mask.h asks it which tokens may come next). Called by the server only.
 *
 * A rule is a list of alternatives, an alternative a sequence of elements: one byte of a set, or another rule. A text
 * stands at a set of stacks of return addresses, all that the bytes so far allow. Stacks and sets of them are interned:
 * a state is a number, and equal states are equal numbers, so what was found out about one is found again.
 *
 * A grammar belongs to one thread at a time. */
#ifndef SERVER_GRAMMAR_H
#define SERVER_GRAMMAR_H

#include "ebb/core.h"

typedef struct grammar grammar;

/* One element of an alternative; grammar_byte, _set, _rule make them. */
typedef uint32_t grammar_element;

enum { GRAMMAR_ALTERNATIVE = 4096, GRAMMAR_DEPTH = 256 }; /* elements of one alternative; levels of a stack */

/* ---- building; the first failure (no memory, or too large) is kept and told by grammar_begin ---- */

grammar *grammar_new(void); /* NULL: no memory */
void grammar_free(grammar *g);
int32_t grammar_rule(grammar *g); /* a new rule, without alternatives */
grammar_element grammar_byte(uint8_t byte);
grammar_element grammar_set(grammar *g, const uint8_t bits[32]); /* bit b of the set: byte b may stand here */
grammar_element grammar_of(int32_t rule);
/* One more alternative: n elements, 0 for the empty text. A rule must not begin with itself, over empty rules or not.
 */
void grammar_alternative(grammar *g, int32_t rule, const grammar_element *elements, int32_t n);
/* The rule of all texts; after it nothing is added. EBB_BAD_ARGUMENT: the grammar is too large. */
ebb_status grammar_begin(grammar *g, int32_t rule, ebb_error *error);

/* ---- texts ---- */

enum { GRAMMAR_DEAD = -1, GRAMMAR_FULL = -2 };

int32_t grammar_start(const grammar *g);
/* The state after one byte more; GRAMMAR_DEAD: no text goes on so; GRAMMAR_FULL: the tables are at their limit. */
int32_t grammar_next(grammar *g, int32_t state, uint8_t byte);
bool grammar_whole(const grammar *g, int32_t state); /* may the text end here? */
bool grammar_over(const grammar *g, int32_t state);  /* must it? */
int32_t grammar_states(const grammar *g);

#endif
