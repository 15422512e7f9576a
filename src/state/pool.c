/* state/pool.c: sizes, views and pools of recurrent states. A pool is one block of memory, its own or the caller's;
 * slots are never cleared, because nothing of a fresh slot is read. Called by engines and by anyone who drives the ops
 * on foreign memory. */
#include "state/layout.h"
#include "state/records.h"

#include <stdlib.h>

struct ebb_state_pool {
    ebb_device *device;
    ebb_state_spec spec;
    ebb_state_layer *layers;
    ebb_state_view *views;
    uint32_t **head_at;
    int32_t n_layers, slots;
    uint8_t *memory;
    size_t bytes;
    bool own;
};

int64_t ebb_state_conv_channels(const ebb_state_layer *layer) {
    return 2 * (int64_t)layer->key_heads * layer->key_dim + (int64_t)layer->heads * layer->value_dim;
}

static ebb_status check_layer(const ebb_state_layer *l, ebb_error *error) {
    if (l->kind != EBB_GDN && l->kind != EBB_KDA && l->kind != EBB_ERASE)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "state layer kind %d, expected %d (GDN), %d (KDA) or %d (ERASE)",
                        l->kind, EBB_GDN, EBB_KDA, EBB_ERASE);
    if (l->key_heads < 1 || l->heads < l->key_heads || l->heads > 65536 || l->heads % l->key_heads)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "%d key heads and %d value heads, expected value heads a multiple of key heads", l->key_heads,
                        l->heads);
    if (l->key_dim < 1 || l->key_dim > EBB_MAX_STATE_DIM || l->value_dim < 1 || l->value_dim > EBB_MAX_STATE_DIM)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "state of %d x %d, expected dimensions from 1 to %d", l->key_dim,
                        l->value_dim, EBB_MAX_STATE_DIM);
    if (l->conv_width < 0 || l->conv_width > EBB_MAX_CONV)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "convolution of width %d, expected 0 to %d", l->conv_width,
                        EBB_MAX_CONV);
    if (l->head_begin < 0 || l->index < 0)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "head_begin = %d and index = %d, expected 0 or more", l->head_begin,
                        l->index);
    return EBB_OK;
}

static ebb_status planes_of(const ebb_state_spec *spec, const ebb_state_layer *layer, int32_t head, ebb_planes *planes,
                            ebb_error *error) {
    ebb_head h = {.layer = layer, .head = head, .param = spec->param};
    if (spec->method->codec->flags & EBB_NEEDS_TABLE) {
        ebb_status status = layout_of_layer(spec->layout, ebb_state_layout_name(spec->method), layer, &h.table, error);
        if (status) return status;
    }
    return spec->method->codec->layout(&h, planes, error);
}

ebb_status ebb_state_size(const ebb_state_spec *spec, const ebb_state_layer *layer, int32_t max_new,
                          ebb_state_sizes *sizes, ebb_error *error) {
    if (!spec || !spec->method || !layer || !sizes)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "no method, layer or place given");
    if (max_new < 1 || max_new > EBB_MAX_NEW)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "max_new = %d, expected 1 to %d", max_new, EBB_MAX_NEW);
    ebb_status status = check_layer(layer, error);
    if (status) return status;
    ebb_state_sizes z = {.cap = spec->window - 1 + max_new};
    z.conv_ring = layer->conv_width ? layer->conv_width - 1 + max_new : 0;
    bool exact = true;
    for (int32_t h = 0; h < layer->heads; h++) {
        ebb_planes planes;
        if ((status = planes_of(spec, layer, h, &planes, error))) return status;
        exact = exact && planes.exact;
        if (planes.bytes > z.packed_head) z.packed_head = planes.bytes;
        z.packed += align_up(planes.bytes, 64);
    }
    if (z.packed > UINT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a layer's packed states take %zu bytes, expected below 4 GiB",
                        z.packed);
    z.record_type = spec->window == 1 || exact ? EBB_FP32 : EBB_FP16;
    const size_t cap = (size_t)z.cap, heads = (size_t)layer->heads, each = ebb_type_bytes((ebb_type)z.record_type),
                 rows = cap * (size_t)records_of(layer);
    z.bases = heads * sizeof(int64_t);
    z.key_records = rows * (size_t)layer->key_heads * (size_t)layer->key_dim * each;
    z.delta_records = rows * heads * (size_t)layer->value_dim * each;
    z.decay_records = cap * heads * (size_t)gates_of(layer) * 4;
    z.conv = layer->conv_width ? (size_t)z.conv_ring * (size_t)ebb_state_conv_channels(layer) * 4 : 0;
    z.live = align_up(z.bases, 64) + align_up(z.key_records, 64) + align_up(z.delta_records, 64) +
             align_up(z.decay_records, 64) + align_up(z.conv, 64);
    *sizes = z;
    return EBB_OK;
}

/* Offsets of the parts of a live slot, in the order of ebb/state.h. */
static void place_parts(ebb_state_view *v, const ebb_state_sizes *z) {
    size_t at = 0;
    v->base_at = (int64_t)at;
    v->key_at = (int64_t)(at += align_up(z->bases, 64));
    v->delta_at = (int64_t)(at += align_up(z->key_records, 64));
    v->decay_at = (int64_t)(at += align_up(z->delta_records, 64));
    v->conv_at = (int64_t)(at += align_up(z->decay_records, 64));
}

size_t ebb_state_pool_bytes(const ebb_state_pool_config *config, ebb_error *error) {
    size_t total = 0;
    if (!config || config->size != sizeof *config || !config->spec || !config->layers || config->n_layers < 1 ||
        config->slots < 1) {
        ebb_fail(error, EBB_BAD_ARGUMENT,
                 "a state pool needs its own config size, a method, at least one layer and one slot");
        return 0;
    }
    for (int32_t i = 0; i < config->n_layers; i++) {
        ebb_state_sizes z;
        size_t bytes;
        if (ebb_state_size(config->spec, &config->layers[i], config->max_new, &z, error)) return 0;
        if (!size_mul(z.packed + z.live, (size_t)config->slots, &bytes) || !size_add(total, bytes, &total)) {
            ebb_fail(error, EBB_BAD_ARGUMENT, "%d slots of this model do not fit an address space", config->slots);
            return 0;
        }
    }
    return total;
}

/* Fill the view of layer i, whose memory begins at `at`; returns the bytes it takes, 0 on failure. */
static size_t make_view(ebb_state_pool *pool, int32_t i, int32_t max_new, uint8_t *at, ebb_error *error) {
    const ebb_state_layer *layer = &pool->layers[i];
    ebb_state_view *v = &pool->views[i];
    ebb_state_sizes z;
    if (ebb_state_size(&pool->spec, layer, max_new, &z, error)) return 0;
    uint32_t *head_at = pool->head_at[i] = calloc((size_t)layer->heads, sizeof *head_at);
    if (!head_at) {
        ebb_fail(error, EBB_NO_MEMORY, "no memory for a state pool");
        return 0;
    }
    uint32_t offset = 0;
    for (int32_t h = 0; h < layer->heads; h++) {
        ebb_planes planes;
        if (planes_of(&pool->spec, layer, h, &planes, error)) return 0;
        head_at[h] = offset;
        offset += (uint32_t)align_up(planes.bytes, 64);
        if (planes.scratch > v->scratch) v->scratch = planes.scratch;
    }
    v->layer = layer;
    v->codec = pool->spec.method->codec;
    v->param = pool->spec.param;
    if (v->codec->flags & EBB_NEEDS_TABLE) v->table = ebb_layout_table(pool->spec.layout, layer->index, NULL);
    v->rng_key = mix64(pool->spec.seed ^ ((uint64_t)(uint32_t)layer->index << 40));
    v->packed = at;
    v->packed_slot = (int64_t)z.packed;
    v->head_at = head_at;
    v->live = at + z.packed * (size_t)pool->slots;
    v->live_slot = (int64_t)z.live;
    v->window = pool->spec.window;
    v->cap = z.cap;
    v->conv_ring = z.conv_ring;
    v->record_type = z.record_type;
    v->slots = pool->slots;
    v->packed_head = z.packed_head;
    place_parts(v, &z);
    return (z.packed + z.live) * (size_t)pool->slots;
}

ebb_status ebb_state_pool_open(ebb_device *device, const ebb_state_pool_config *config, ebb_state_pool **out,
                               ebb_error *error) {
    ebb_error why = {EBB_OK, ""};
    if (!device || !out) return ebb_fail(error, EBB_BAD_ARGUMENT, "a state pool needs a device and a place to go");
    size_t bytes = ebb_state_pool_bytes(config, &why);
    if (!bytes) return ebb_fail(error, why.code, "%s", why.text);
    if (config->memory && (config->memory_bytes < bytes || (uintptr_t)config->memory % 64))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the pool's memory has %zu bytes, expected %zu, aligned to 64",
                        config->memory_bytes, bytes);
    ebb_status status = EBB_NO_MEMORY;
    const size_t n = (size_t)config->n_layers;
    ebb_state_pool *pool = calloc(1, sizeof *pool);
    if (!pool) goto no_memory;
    pool->device = device;
    pool->spec = *config->spec;
    pool->n_layers = config->n_layers;
    pool->slots = config->slots;
    pool->bytes = bytes;
    pool->own = !config->memory;
    pool->layers = malloc(n * sizeof *pool->layers);
    pool->views = calloc(n, sizeof *pool->views);
    pool->head_at = calloc(n, sizeof *pool->head_at);
    pool->memory = config->memory ? config->memory : ebb_device_alloc(device, bytes);
    if (!pool->layers || !pool->views || !pool->head_at || !pool->memory) goto no_memory;
    memcpy(pool->layers, config->layers, n * sizeof *pool->layers);
    uint8_t *at = pool->memory;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        size_t used = make_view(pool, i, config->max_new, at, &why);
        if (!used) {
            status = ebb_fail(error, why.code, "%s", why.text);
            goto fail;
        }
        at += used;
    }
    *out = pool;
    return EBB_OK;
no_memory:
    status = ebb_fail(error, EBB_NO_MEMORY, "no memory for %zu bytes of recurrent state", bytes);
fail:
    ebb_state_pool_close(pool);
    return status;
}

void ebb_state_pool_close(ebb_state_pool *pool) {
    if (!pool) return;
    for (int32_t i = 0; pool->head_at && i < pool->n_layers; i++) free(pool->head_at[i]);
    if (pool->own) ebb_device_free(pool->device, pool->memory, pool->bytes);
    free(pool->head_at);
    free(pool->views);
    free(pool->layers);
    free(pool);
}

const ebb_state_view *ebb_state_pool_view(const ebb_state_pool *pool, int32_t layer) {
    return layer >= 0 && layer < pool->n_layers ? &pool->views[layer] : NULL;
}

const ebb_state_spec *ebb_state_pool_spec(const ebb_state_pool *pool) { return &pool->spec; }

void ebb_state_pool_slot_bytes(const ebb_state_pool *pool, size_t *packed, size_t *live) {
    *packed = *live = 0;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        *packed += (size_t)pool->views[i].packed_slot;
        *live += (size_t)pool->views[i].live_slot;
    }
}
