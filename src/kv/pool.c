/* kv/pool.c: the pages of all full-attention layers of a model, and what slots have beside them. One block table,
 * shared by the layers, says which page holds which tokens of a slot; each layer has its own array of pages under the
 * same ids, and one tail and one extra part a slot where its method has them (cost.c). Nothing is ever cleared: nothing
 * at or beyond a slot's pos is ever read, so memory that changes hands leaks nothing, and the operating system commits
 * it only where tokens were written. Called by the engine, one thread at a time. */
#include <stdlib.h>

#include "kv/kv_int.h"

struct ebb_kv_pool {
    ebb_device *device;
    ebb_kv_spec spec;
    int32_t n_layers, slots;
    int64_t max_tokens;
    ebb_kv_layer *layers;
    ebb_kv_view *views;
    double (*params)[EBB_MAX_PARAMS]; /* of each layer */
    struct region {
        size_t pages, tail, extra; /* bytes */
    } * region;                    /* of each layer */
    int32_t *block;                /* [slots][stride] page ids, -1: none; device memory */
    size_t block_bytes;
    int32_t *spare; /* stack of free page ids */
    int64_t n_spare;
    int32_t *held;   /* pages of each slot */
    size_t page_all; /* bytes of one page id over all layers */
    size_t slot_all; /* bytes of one slot's tails and extra parts */
};

static int64_t pages_for(int64_t tokens) { return tokens / EBB_KV_PAGE + (tokens % EBB_KV_PAGE != 0); }

static ebb_status too_large(ebb_error *error) {
    return ebb_fail(error, EBB_BAD_ARGUMENT,
                    "a KV pool of this many heads, slots and tokens exceeds the address space");
}

static ebb_status config_check(const ebb_kv_pool_config *config, ebb_error *error) {
    if (!config || config->size != sizeof *config)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the KV pool configuration has size %zu; expected %zu",
                        config ? config->size : 0, sizeof *config);
    if (!config->spec || !config->spec->method)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the KV pool configuration names no method");
    if (!config->layers || config->n_layers < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV pool of %d layers is asked for; expected 1 or more",
                        config->n_layers);
    if (config->slots < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV pool of %d slots is asked for; expected 1 or more",
                        config->slots);
    if (config->max_tokens < 1 || pages_for(config->max_tokens) > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV pool of %lld tokens a slot is asked for; expected 1 to %lld",
                        (long long)config->max_tokens, (long long)INT32_MAX * EBB_KV_PAGE);
    if (config->pages < 0 || config->pages > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV pool of %lld pages is asked for; expected 0 to %d",
                        (long long)config->pages, INT32_MAX);
    return EBB_OK;
}

static ebb_status open_table(ebb_kv_pool *pool, int64_t stride, int64_t pages, ebb_error *error) {
    size_t cells;
    if (!size_mul((size_t)pool->slots, (size_t)stride, &cells) ||
        !size_mul(cells, sizeof *pool->block, &pool->block_bytes))
        return too_large(error);
    pool->block = ebb_device_alloc(pool->device, pool->block_bytes);
    pool->spare = malloc((size_t)pages * sizeof *pool->spare);
    pool->held = calloc((size_t)pool->slots, sizeof *pool->held);
    if (!pool->block || !pool->spare || !pool->held)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the block table of %d slots of %lld pages", pool->slots,
                        (long long)stride);
    for (size_t i = 0; i < cells; i++) pool->block[i] = -1;
    for (int64_t i = 0; i < pages; i++) pool->spare[i] = (int32_t)(pages - 1 - i); /* page 0 goes first */
    pool->n_spare = pages;
    return EBB_OK;
}

/* `each` bytes, n times; none at all is no failure. */
static ebb_status open_part(ebb_kv_pool *pool, const char *what, int32_t layer, int64_t each, int64_t n, uint8_t **part,
                            size_t *bytes, ebb_error *error) {
    size_t all;
    if (!size_mul((size_t)each, (size_t)n, &all) || all > INT64_MAX) return too_large(error);
    if (!all) return EBB_OK;
    *part = ebb_device_alloc(pool->device, all);
    if (!*part)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for %lld KV %s of layer %d: %zu bytes", (long long)n, what,
                        layer, all);
    *bytes = all;
    return EBB_OK;
}

static ebb_status open_layer(ebb_kv_pool *pool, const ebb_kv_pool_config *config, int32_t i, int64_t pages,
                             ebb_error *error) {
    ebb_kv_view *view = &pool->views[i];
    struct region *r = &pool->region[i];
    pool->layers[i] = config->layers[i];
    ebb_status status = kv_layer_params(&pool->spec, i, pool->params[i], error);
    if (!status)
        status = kv_view_layout(&pool->spec, config->prefill, &pool->layers[i], pool->params[i], config->max_tokens,
                                config->max_new, view, error);
    if (status) return status;
    view->block = pool->block;
    view->slots = pool->slots;
    if (!size_add(pool->page_all, (size_t)view->page_bytes, &pool->page_all) ||
        !size_add(pool->slot_all, (size_t)view->tail_slot, &pool->slot_all) ||
        !size_add(pool->slot_all, (size_t)view->extra_slot, &pool->slot_all))
        return too_large(error);
    status = open_part(pool, "pages", i, view->page_bytes, pages, &view->pages, &r->pages, error);
    if (!status) status = open_part(pool, "tails", i, view->tail_slot, pool->slots, &view->tail, &r->tail, error);
    if (!status)
        status = open_part(pool, "prompt parts", i, view->extra_slot, pool->slots, &view->extra, &r->extra, error);
    return status;
}

/* A pool keeps its own copy of what it is made of, but for the bits, which are in the parameters. */
static ebb_status open_arrays(ebb_kv_pool *pool, ebb_error *error) {
    const size_t n = (size_t)pool->n_layers;
    pool->layers = calloc(n, sizeof *pool->layers);
    pool->views = calloc(n, sizeof *pool->views);
    pool->params = calloc(n, sizeof *pool->params);
    pool->region = calloc(n, sizeof *pool->region);
    if (pool->layers && pool->views && pool->params && pool->region) return EBB_OK;
    return ebb_fail(error, EBB_NO_MEMORY, "no memory for a KV pool of %d layers", pool->n_layers);
}

ebb_status ebb_kv_pool_open(ebb_device *device, const ebb_kv_pool_config *config, ebb_kv_pool **pool_out,
                            ebb_error *error) {
    *pool_out = NULL;
    ebb_status status = config_check(config, error);
    if (status) return status;
    int64_t stride = pages_for(config->max_tokens), pages = config->pages ? config->pages : stride * config->slots;
    if (pages > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%d slots of %lld tokens need %lld KV pages; expected %d at most",
                        config->slots, (long long)config->max_tokens, (long long)pages, INT32_MAX);

    ebb_kv_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return ebb_fail(error, EBB_NO_MEMORY, "no memory for a KV pool");
    pool->device = device;
    pool->spec = *config->spec;
    pool->n_layers = config->n_layers;
    pool->slots = config->slots;
    pool->max_tokens = config->max_tokens;
    status = open_arrays(pool, error);
    if (!status) status = open_table(pool, stride, pages, error);
    for (int32_t i = 0; i < pool->n_layers && !status; i++) status = open_layer(pool, config, i, pages, error);
    if (status) ebb_kv_pool_close(pool);
    else *pool_out = pool;
    return status;
}

void ebb_kv_pool_close(ebb_kv_pool *pool) {
    if (!pool) return;
    for (int32_t i = 0; pool->views && pool->region && i < pool->n_layers; i++) {
        ebb_device_free(pool->device, pool->views[i].pages, pool->region[i].pages);
        ebb_device_free(pool->device, pool->views[i].tail, pool->region[i].tail);
        ebb_device_free(pool->device, pool->views[i].extra, pool->region[i].extra);
    }
    ebb_device_free(pool->device, pool->block, pool->block_bytes);
    free(pool->layers);
    free(pool->views);
    free(pool->params);
    free(pool->region);
    free(pool->spare);
    free(pool->held);
    free(pool);
}

const ebb_kv_view *ebb_kv_pool_view(const ebb_kv_pool *pool, int32_t layer) {
    return layer >= 0 && layer < pool->n_layers ? &pool->views[layer] : NULL;
}

const ebb_kv_spec *ebb_kv_pool_spec(const ebb_kv_pool *pool) { return &pool->spec; }

ebb_status ebb_kv_pool_reserve(ebb_kv_pool *pool, int32_t slot, int64_t tokens, ebb_error *error) {
    if (slot < 0 || slot >= pool->slots)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "KV slot %d does not exist; expected 0 to %d", slot, pool->slots - 1);
    if (tokens < 0 || tokens > pool->max_tokens)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "room for %lld tokens is asked of a KV slot that holds 0 to %lld",
                        (long long)tokens, (long long)pool->max_tokens);
    int64_t need = pages_for(tokens), held = pool->held[slot];
    if (need <= held) return EBB_OK;
    if (need - held > pool->n_spare)
        return ebb_fail(error, EBB_NO_MEMORY, "KV slot %d needs %lld more pages of %d tokens; %lld are free", slot,
                        (long long)(need - held), EBB_KV_PAGE, (long long)pool->n_spare);
    int32_t *row = pool->block + (int64_t)slot * pool->views[0].block_stride;
    for (; held < need; held++) row[held] = pool->spare[--pool->n_spare];
    pool->held[slot] = (int32_t)need;
    return EBB_OK;
}

void ebb_kv_pool_release(ebb_kv_pool *pool, int32_t slot) {
    if (slot < 0 || slot >= pool->slots) return; /* holds nothing */
    int32_t *row = pool->block + (int64_t)slot * pool->views[0].block_stride;
    for (int32_t i = pool->held[slot]; i-- > 0;) {
        pool->spare[pool->n_spare++] = row[i];
        row[i] = -1;
    }
    pool->held[slot] = 0;
}

size_t ebb_kv_pool_slot_bytes(const ebb_kv_pool *pool, int32_t slot) {
    return slot >= 0 && slot < pool->slots ? (size_t)pool->held[slot] * pool->page_all + pool->slot_all : 0;
}

size_t ebb_kv_pool_bytes_for(const ebb_kv_pool *pool, int64_t tokens) {
    return tokens > 0 ? (size_t)pages_for(min_i64(tokens, pool->max_tokens)) * pool->page_all + pool->slot_all : 0;
}
