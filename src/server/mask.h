/* server/mask.h: which tokens may come next in a text that a grammar holds. Called by the server's logits hook, in the
 * engine's thread. */
#ifndef SERVER_MASK_H
#define SERVER_MASK_H

#include "ebb/model.h"
#include "server/grammar.h"

/* The texts of a vocabulary in order, so that tokens which begin alike are followed together. Read by all threads. */
typedef struct token_table token_table;
token_table *token_table_new(const ebb_tokenizer *tokenizer, int32_t vocab); /* NULL: no memory */
void token_table_free(token_table *table);

/* A grammar and the masks of its states: made when they are asked for, MASK_KEPT of them kept. */
typedef struct masker masker;
enum { MASK_KEPT = 128 };
masker *masker_new(const token_table *table, grammar *g); /* takes the grammar; NULL: no memory, and it is freed */
void masker_free(masker *m);
grammar *masker_grammar(masker *m);

/* Tokens that may follow in `state`, a bit each, [(vocab + 63) / 64], good until the next call; special tokens never.
 * NULL: the grammar is too large to go on. */
const uint64_t *masker_bits(masker *m, int32_t state);
/* The state after a token; GRAMMAR_DEAD or GRAMMAR_FULL as grammar_next. */
int32_t masker_next(masker *m, int32_t state, int32_t token);

bool masker_full(const masker *m); /* was the grammar too large once? */

static inline bool mask_has(const uint64_t *bits, int32_t token) { return bits[token >> 6] >> (token & 63) & 1; }

#endif
