/* server/prefix.h: prefixes of prompts that the engine has processed, kept for prompts that begin alike: copies of
 * sequences at multiples of EBB_GRID, where a prompt may be cut without changing a bit. Only what prefill made is kept,
 * so a prompt that finds its prefix here is answered as one that does not. Called by loop.c in the engine's thread. */
#ifndef SERVER_PREFIX_H
#define SERVER_PREFIX_H

#include "ebb/engine.h"

typedef struct prefix_cache prefix_cache;

/* At most `most` checkpoints and `budget` bytes of states and KV cache. The engine has `most` slots more than answers
 * take. NULL: no memory. */
prefix_cache *prefix_new(ebb_engine *engine, int32_t most, size_t budget);
void prefix_free(prefix_cache *c); /* closes its sequences */

/* The longest checkpoint that a prompt begins with, shorter than it: its tokens, and its sequence, to be forked before
 * the next call; 0: there is none. */
int64_t prefix_find(prefix_cache *c, const int32_t *ids, int64_t n, int32_t *sequence);
/* Where a prompt leaves those that are known: the multiple of EBB_GRID up to which it has most in common with one,
 * below n. A checkpoint there serves both. */
int64_t prefix_branch(const prefix_cache *c, const int32_t *ids, int64_t n);
/* Keep a copy of a sequence that stands at `n` tokens, a multiple of EBB_GRID, all of them prompt. What makes room goes
 * by how long ago it was of use, and how many tokens a byte of it saves. */
ebb_status prefix_keep(prefix_cache *c, int32_t sequence, const int32_t *ids, int64_t n, ebb_error *error);

typedef struct prefix_stats {
    int64_t checkpoints, evictions;
    size_t bytes;
} prefix_stats;
prefix_stats prefix_now(const prefix_cache *c);

/* Can prompts of these methods be cut and shared? NULL, or the reason why not. */
const char *prefix_refuse(const ebb_model *model, const char *kv, const char *prefill);

#endif
