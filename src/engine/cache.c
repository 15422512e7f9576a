/* engine/cache.c: the prefix cache of a scheduler (cache.h). Called by scheduler.c. Checkpoints are few, for each of
 * them has a whole state: a look at all of them costs less than one forward. */
#include "engine/cache.h"
#include "ebb/op.h"

#include <stdlib.h>
#include <string.h>

typedef struct checkpoint {
    int32_t *tokens; /* [n] */
    int64_t n;
    uint8_t *image;
    size_t image_bytes;
    uint64_t used; /* the clock when it was of use last */
} checkpoint;

struct prefix_cache {
    checkpoint *all; /* [n] */
    int64_t n, room;
    size_t budget, bytes;
    uint64_t clock;
    int64_t evictions;
};

static size_t size_of(const checkpoint *k) { return k->image_bytes + (size_t)k->n * sizeof *k->tokens; }

prefix_cache *cache_new(size_t budget) {
    prefix_cache *c = calloc(1, sizeof *c);
    if (c) c->budget = budget;
    return c;
}

static void drop(prefix_cache *c, int64_t i) {
    c->bytes -= size_of(&c->all[i]);
    free(c->all[i].tokens), free(c->all[i].image);
    c->all[i] = c->all[--c->n];
}

void cache_free(prefix_cache *c) {
    if (!c) return;
    while (c->n) drop(c, c->n - 1);
    free(c->all), free(c);
}

/* ---- finding ---- */

static int64_t common(const checkpoint *k, const int32_t *ids, int64_t n) {
    const int64_t most = min_i64(k->n, n);
    int64_t i = 0;
    while (i < most && k->tokens[i] == ids[i]) i++;
    return i;
}

int64_t cache_find(prefix_cache *c, const int32_t *ids, int64_t n, const uint8_t **image, size_t *bytes) {
    checkpoint *best = NULL;
    for (int64_t i = 0; i < c->n; i++) {
        checkpoint *k = &c->all[i];
        if (k->n < n && (!best || k->n > best->n) && common(k, ids, n) == k->n) best = k;
    }
    if (!best) return 0;
    best->used = ++c->clock;
    *image = best->image, *bytes = best->image_bytes;
    return best->n;
}

int64_t cache_branch(const prefix_cache *c, const int32_t *ids, int64_t n) {
    int64_t most = 0;
    for (int64_t i = 0; i < c->n; i++) most = max_i64(most, common(&c->all[i], ids, n - 1));
    return most / EBB_GRID * EBB_GRID;
}

bool cache_has(const prefix_cache *c, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < c->n; i++)
        if (c->all[i].n == n && common(&c->all[i], ids, n) == n) return true;
    return false;
}

/* ---- keeping ---- */

/* Tokens that a byte saves, the less the longer nobody asked for them. */
static double worth(const prefix_cache *c, const checkpoint *k) {
    return (double)k->n / (double)size_of(k) / (double)(c->clock - k->used + 1);
}

static void make_room(prefix_cache *c, size_t bytes) {
    while (c->n && c->bytes + bytes > c->budget) {
        int64_t least = 0;
        for (int64_t i = 1; i < c->n; i++)
            if (worth(c, &c->all[i]) < worth(c, &c->all[least])) least = i;
        drop(c, least);
        c->evictions++;
    }
}

ebb_status cache_keep(prefix_cache *c, const int32_t *ids, int64_t n, uint8_t *image, size_t bytes, ebb_error *error) {
    checkpoint k = {.n = n, .image = image, .image_bytes = bytes};
    if (size_of(&k) > c->budget || cache_has(c, ids, n)) {
        free(image);
        return EBB_OK;
    }
    make_room(c, size_of(&k));
    if (c->n == c->room) {
        checkpoint *all = realloc(c->all, (size_t)(2 * c->room + 8) * sizeof *all);
        if (all) c->all = all, c->room = 2 * c->room + 8;
    }
    if (c->n < c->room) k.tokens = malloc((size_t)n * sizeof *k.tokens);
    if (!k.tokens) {
        free(image);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for a checkpoint of %lld tokens", (long long)n);
    }
    memcpy(k.tokens, ids, (size_t)n * sizeof *k.tokens);
    k.used = ++c->clock;
    c->bytes += size_of(&k);
    c->all[c->n++] = k;
    return EBB_OK;
}

cache_stats cache_now(const prefix_cache *c) {
    return c ? (cache_stats){.checkpoints = c->n, .evictions = c->evictions, .bytes = c->bytes} : (cache_stats){0};
}
