/* kv/pool.c: the pages of all full-attention layers of a model. One block table, shared by the layers, says which page
 * holds which tokens of a slot; each layer has its own array of pages under the same ids. Pages are never cleared:
 * nothing at or beyond a slot's pos is ever read, so a page that changes hands leaks nothing, and the operating system
 * commits memory only where tokens were written. Called by the engine, one thread at a time. */
#include <stdlib.h>

#include "kv/kv_int.h"

struct ebb_kv_pool {
    ebb_device *device;
    ebb_kv_spec spec;
    int32_t n_layers, slots;
    int64_t max_tokens;
    ebb_kv_layer *layers;
    ebb_kv_view *views;
    size_t *region; /* bytes of each layer's pages */
    int32_t *block; /* [slots][stride] page ids, -1: none; device memory */
    size_t block_bytes;
    int32_t *spare; /* stack of free page ids */
    int64_t n_spare;
    int32_t *held;   /* pages of each slot */
    size_t page_all; /* bytes of one page id over all layers */
};

static int64_t pages_for(int64_t tokens) { return tokens / EBB_KV_PAGE + (tokens % EBB_KV_PAGE != 0); }

static ebb_status too_large(ebb_error *error) {
    return ebb_fail(error, EBB_BAD_ARGUMENT,
                    "a KV pool of this many heads, slots and tokens exceeds the address space");
}

/* The one place that says how a page is laid out: heads, inside a head planes, inside a plane groups of tokens. */
static ebb_status view_layout(ebb_kv_view *view, const ebb_kv_spec *spec, const ebb_kv_layer *layer, ebb_error *error) {
    ebb_planes planes;
    int32_t group;
    ebb_status status = spec->method->codec->layout(layer, spec->param, &group, &planes, error);
    if (status) return status;
    *view = (ebb_kv_view){
        .layer = layer, .codec = spec->method->codec, .param = spec->param, .page = EBB_KV_PAGE, .group = group};
    size_t at = 0, page_bytes;
    for (int32_t i = 0; i < planes.n; i++) {
        view->plane_at[i] = (int64_t)at;
        view->plane_bytes[i] = (int64_t)planes.plane[i].bytes;
        at += align_up((size_t)(EBB_KV_PAGE / group) * planes.plane[i].bytes, KV_ALIGN);
    }
    if (!size_mul((size_t)layer->heads, at, &page_bytes) || page_bytes > INT64_MAX) return too_large(error);
    view->head_bytes = (int64_t)at;
    view->page_bytes = (int64_t)page_bytes;
    return EBB_OK;
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

static ebb_status open_layer(ebb_kv_pool *pool, int32_t i, int64_t stride, int64_t pages, ebb_error *error) {
    ebb_kv_view *view = &pool->views[i];
    ebb_status status = view_layout(view, &pool->spec, &pool->layers[i], error);
    if (status) return status;
    view->block = pool->block;
    view->block_stride = (int32_t)stride;
    view->slots = pool->slots;
    size_t bytes;
    if (!size_mul((size_t)view->page_bytes, (size_t)pages, &bytes) || bytes > INT64_MAX ||
        !size_add(pool->page_all, (size_t)view->page_bytes, &pool->page_all))
        return too_large(error);
    view->pages = ebb_device_alloc(pool->device, bytes);
    if (!view->pages)
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for %lld KV pages of layer %d: %zu bytes", (long long)pages, i,
                        bytes);
    pool->region[i] = bytes;
    return EBB_OK;
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
    pool->layers = calloc((size_t)pool->n_layers, sizeof *pool->layers);
    pool->views = calloc((size_t)pool->n_layers, sizeof *pool->views);
    pool->region = calloc((size_t)pool->n_layers, sizeof *pool->region);
    if (!pool->layers || !pool->views || !pool->region) {
        status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a KV pool of %d layers", pool->n_layers);
        goto done;
    }
    status = open_table(pool, stride, pages, error);
    for (int32_t i = 0; i < pool->n_layers && !status; i++) {
        pool->layers[i] = config->layers[i];
        status = open_layer(pool, i, stride, pages, error);
    }

done:
    if (status) ebb_kv_pool_close(pool);
    else *pool_out = pool;
    return status;
}

void ebb_kv_pool_close(ebb_kv_pool *pool) {
    if (!pool) return;
    for (int32_t i = 0; pool->views && pool->region && i < pool->n_layers; i++)
        ebb_device_free(pool->device, pool->views[i].pages, pool->region[i]);
    ebb_device_free(pool->device, pool->block, pool->block_bytes);
    free(pool->layers);
    free(pool->views);
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
    return slot >= 0 && slot < pool->slots ? (size_t)pool->held[slot] * pool->page_all : 0;
}
