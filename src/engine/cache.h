/* engine/cache.h: prefixes of prompts that were processed, as images of sequences at multiples of EBB_GRID, where a
 * prompt may be cut without changing a bit. For scheduler.c. */
#ifndef ENGINE_CACHE_H
#define ENGINE_CACHE_H

#include "core/core.h"

typedef struct prefix_cache prefix_cache;

prefix_cache *cache_new(size_t budget); /* bytes of images and tokens; NULL: no memory */
void cache_free(prefix_cache *c);

/* The longest checkpoint that a prompt begins with, shorter than it: its tokens, and its image until the next call; 0:
 * there is none. */
int64_t cache_find(prefix_cache *c, const int32_t *ids, int64_t n, const uint8_t **image, size_t *bytes);
/* Where a prompt leaves those that are known: the multiple of EBB_GRID up to which it has most in common with one,
 * below n. A checkpoint there serves both. */
int64_t cache_branch(const prefix_cache *c, const int32_t *ids, int64_t n);
bool cache_has(const prefix_cache *c, const int32_t *ids, int64_t n);
/* Take the image (malloc'ed, the cache's from here on) of a sequence that has seen ids [n]. What makes room goes by how
 * long ago it was of use, and how many tokens a byte of it saves. EBB_NO_MEMORY: nothing is kept. */
ebb_status cache_keep(prefix_cache *c, const int32_t *ids, int64_t n, uint8_t *image, size_t bytes, ebb_error *error);

typedef struct cache_stats {
    int64_t checkpoints, evictions;
    size_t bytes;
} cache_stats;
cache_stats cache_now(const prefix_cache *c); /* zeros for NULL */

#endif
