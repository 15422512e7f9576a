/* state/draw.h: the random numbers of codecs that round stochastically. They are keyed by what is rounded (seed, layer,
 * global head, position, element), so neither batch mates, nor drafts, nor when a window is folded change a bit.
 * Included by codecs. */
#ifndef STATE_DRAW_H
#define STATE_DRAW_H

#include "core/core.h"
#include "ebb/state.h"

/* The key of one store of one head: seed, layer and head are in rng_key. */
static inline uint64_t draw_key(const ebb_head *head) { return mix64(head->rng_key ^ mix64((uint64_t)head->pos)); }

/* 32 uniform bits for an element of it. */
static inline uint32_t draw(uint64_t key, uint64_t element) { return (uint32_t)(mix64(key + element) >> 32); }

#endif
