/* state/image.c: images of recurrent states: a slot to bytes and back, copies of slots, and conv inputs in FP32. Called
 * by engines and by anyone who keeps states. The layout is in docs/images.md.
 *
 * Per layer: base per head | packed heads, exact codec bytes | records of the positions from the lowest base on, each
 * key, delta, decay | the last conv_width - 1 conv inputs, both in position order. At position 0 there is nothing. */
#include "core/image.h"
#include "state/params.h"
#include "state/records.h"

#include <inttypes.h>
#include <stdlib.h>

ebb_status ebb_state_text(const ebb_state_spec *spec, char *text, size_t room, ebb_error *error) {
    if (!spec || !spec->method || !text) return ebb_fail(error, EBB_BAD_ARGUMENT, "no state method or place given");
    if (params_text(spec->method->name, spec->method->codec->params, spec->param, text, room)) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s with its parameters does not fit %zu bytes", spec->method->name,
                    room);
}

/* ---- sizes ---- */

static ebb_status head_bytes(const ebb_state_view *v, int32_t head, size_t *bytes, ebb_error *error) {
    ebb_planes planes;
    const ebb_head h = head_of(v, head);
    ebb_status status = v->codec->layout(&h, &planes, error);
    *bytes = status ? 0 : planes.bytes;
    return status;
}

static ebb_status packed_bytes(const ebb_state_view *v, size_t *bytes, ebb_error *error) {
    *bytes = 0;
    for (int32_t head = 0; head < v->layer->heads; head++) {
        size_t one;
        ebb_status status = head_bytes(v, head, &one, error);
        if (status) return status;
        *bytes += one;
    }
    return EBB_OK;
}

/* Bytes of the records of one position: of the keys, deltas and decays of all heads. */
typedef struct record_bytes {
    size_t key, delta, decay;
} record_bytes;

static record_bytes record_bytes_of(const ebb_state_view *v) {
    const ebb_state_layer *l = v->layer;
    const size_t each = ebb_type_bytes((ebb_type)v->record_type) * (size_t)records_of(l), heads = (size_t)l->heads;
    return (record_bytes){(size_t)l->key_heads * (size_t)l->key_dim * each, heads * (size_t)l->value_dim * each,
                          heads * (size_t)gates_of(l) * sizeof(float)};
}

static int64_t conv_inputs(const ebb_state_view *v, int64_t pos) {
    return v->layer->conv_width ? min_i64(pos, v->layer->conv_width - 1) : 0;
}
static size_t conv_bytes(const ebb_state_view *v) { return (size_t)ebb_state_conv_channels(v->layer) * sizeof(float); }

/* The lowest of the layer's bases, which lie unaligned at `bases`: all of them must leave records that fit the ring. */
static ebb_status lowest_base(const ebb_state_view *v, const uint8_t *bases, int64_t pos, int64_t *first,
                              ebb_error *error) {
    *first = pos;
    for (int32_t head = 0; head < v->layer->heads; head++) {
        int64_t base;
        memcpy(&base, bases + (size_t)head * sizeof base, sizeof base);
        if (base < 0 || base > pos)
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "head %d is packed at token %" PRId64 ", the state stands at %" PRId64, head, base, pos);
        if (pos - base > v->cap)
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "head %d has records of tokens %" PRId64 " to %" PRId64 ", but the ring of this pool holds "
                            "%d: open it with a larger max_new",
                            head, base, pos - 1, v->cap);
        *first = min_i64(*first, base);
    }
    return EBB_OK;
}

/* Bytes of a layer whose bases lie at `bases`; *first is where its records begin. */
static ebb_status layer_bytes(const ebb_state_view *v, const uint8_t *bases, int64_t pos, int64_t *first, size_t *bytes,
                              ebb_error *error) {
    size_t packed;
    ebb_status status = lowest_base(v, bases, pos, first, error);
    if (status || (status = packed_bytes(v, &packed, error))) return status;
    const record_bytes r = record_bytes_of(v);
    *bytes = (size_t)v->layer->heads * sizeof(int64_t) + packed + (size_t)(pos - *first) * (r.key + r.delta + r.decay) +
             (size_t)conv_inputs(v, pos) * conv_bytes(v);
    return EBB_OK;
}

/* ---- the description ---- */

static const char *kind_name(int32_t kind) { return kind == EBB_GDN ? "gdn" : kind == EBB_KDA ? "kda" : "erase"; }

/* What a calibrated table says, as one number. */
static uint64_t table_hash(const ebb_layout_layer *t) {
    const size_t heads = (size_t)t->heads, keys = heads * (size_t)t->key_dim, values = heads * (size_t)t->value_dim;
    uint64_t hash = HASH64_BEGIN;
    if (t->key_order) hash = hash64(hash, t->key_order, keys * sizeof *t->key_order);
    if (t->value_order) hash = hash64(mix64(hash), t->value_order, values * sizeof *t->value_order);
    if (t->value_scale) hash = hash64(mix64(hash), t->value_scale, values * sizeof *t->value_scale);
    if (t->bits) hash = hash64(mix64(hash), t->bits, heads);
    return mix64(hash);
}

static ebb_status describe(const ebb_state_pool *pool, image_text *t, ebb_error *error) {
    char method[512];
    const ebb_state_view *v;
    const ebb_state_spec *spec = ebb_state_pool_spec(pool);
    int32_t n = 0;
    ebb_status status = ebb_state_text(spec, method, sizeof method, error);
    if (status) return status;
    while (ebb_state_pool_view(pool, n)) n++;
    image_text_add(t, "method %s\nseed %" PRIu64 "\nlayers %d\n", method, spec->seed, n);
    for (int32_t i = 0; (v = ebb_state_pool_view(pool, i)); i++) {
        const ebb_state_layer *l = v->layer;
        size_t packed;
        if ((status = packed_bytes(v, &packed, error))) return status;
        image_text_add(t,
                       "layer %d kind=%s key_heads=%d heads=%d head_begin=%d key_dim=%d value_dim=%d conv=%d index=%d "
                       "packed=%zu records=%s",
                       i, kind_name(l->kind), l->key_heads, l->heads, l->head_begin, l->key_dim, l->value_dim,
                       l->conv_width, l->index, packed, ebb_type_name((ebb_type)v->record_type));
        if (v->table) image_text_add(t, " layout=%016" PRIx64, table_hash(v->table));
        image_text_add(t, "\n");
    }
    return t->failed ? ebb_fail(error, EBB_NO_MEMORY, "no memory for the description of an image") : EBB_OK;
}

/* ---- moving bytes ---- */

/* One layer of a slot, to or from an image. */
static ebb_status move_layer(const ebb_state_view *v, int32_t slot, int64_t pos, int64_t first, image_cursor *c,
                             ebb_error *error) {
    const record_bytes r = record_bytes_of(v);
    image_move(c, base_of(v, slot, 0), (size_t)v->layer->heads * sizeof(int64_t));
    for (int32_t head = 0; head < v->layer->heads; head++) {
        size_t bytes;
        ebb_status status = head_bytes(v, head, &bytes, error);
        if (status) return status;
        image_move(c, packed_of(v, slot, head), bytes);
    }
    for (int64_t t = first; t < pos; t++) { /* the heads of a position lie together */
        image_move(c, key_record(v, slot, 0, t), r.key);
        image_move(c, delta_record(v, slot, 0, t), r.delta);
        image_move(c, decay_record(v, slot, 0, t), r.decay);
    }
    for (int64_t t = pos - conv_inputs(v, pos); t < pos; t++) image_move(c, conv_record(v, slot, t), conv_bytes(v));
    return EBB_OK;
}

static ebb_status check_slot(const ebb_state_pool *pool, int32_t slot, int64_t pos, ebb_error *error) {
    if (!pool) return ebb_fail(error, EBB_BAD_ARGUMENT, "no state pool");
    const int32_t slots = ebb_state_pool_view(pool, 0)->slots;
    if (slot < 0 || slot >= slots)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "state slot %d does not exist; expected 0 to %d", slot, slots - 1);
    if (pos < 0 || pos > IMAGE_MAX_POSITION)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "position %" PRId64 "; expected 0 to 2^48", pos);
    return EBB_OK;
}

/* ---- saving ---- */

/* The description (to be freed) and the bytes of an image. */
static ebb_status measure(const ebb_state_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                          image_text *text, size_t *bytes, ebb_error *error) {
    const ebb_state_view *v;
    size_t payload = 0;
    ebb_status status = check_slot(pool, slot, pos, error);
    if (status || (status = describe(pool, text, error))) return status;
    image_text_rows(text, origin);
    if (text->failed) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the description of an image");
    for (int32_t i = 0; pos > 0 && (v = ebb_state_pool_view(pool, i)); i++) {
        int64_t first;
        size_t layer;
        status = layer_bytes(v, (const uint8_t *)base_of(v, slot, 0), pos, &first, &layer, error);
        if (status) return status;
        payload += layer;
    }
    *bytes = image_bytes(text->bytes, payload);
    return *bytes ? EBB_OK : ebb_fail(error, EBB_BAD_ARGUMENT, "an image of this pool does not fit an address space");
}

size_t ebb_state_image_bytes(const ebb_state_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                             ebb_error *error) {
    image_text text = {0};
    size_t bytes = 0;
    if (measure(pool, slot, pos, origin, &text, &bytes, error)) bytes = 0;
    free(text.text);
    return bytes;
}

ebb_status ebb_state_save(const ebb_state_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin, void *image,
                          size_t bytes, ebb_error *error) {
    image_text text = {0};
    const ebb_state_view *v;
    size_t need;
    ebb_status status = measure(pool, slot, pos, origin, &text, &need, error);
    if (!status && (!image || bytes != need))
        status = ebb_fail(error, EBB_BAD_ARGUMENT, "room of %zu bytes for an image of %zu", image ? bytes : 0, need);
    if (status) goto done;
    image_cursor c = {.save = image_begin(image, bytes, EBB_IMAGE_STATE, pos, origin, &text)};
    for (int32_t i = 0; pos > 0 && !status && (v = ebb_state_pool_view(pool, i)); i++) {
        int64_t first;
        status = lowest_base(v, (const uint8_t *)base_of(v, slot, 0), pos, &first, error);
        if (!status) status = move_layer(v, slot, pos, first, &c, error);
    }
    if (!status) image_seal(image, bytes);
done:
    free(text.text);
    return status;
}

/* ---- loading ---- */

/* The payload holds exactly the layers of this pool. */
static ebb_status check_payload(const ebb_state_pool *pool, const image_view *image, ebb_error *error) {
    const int64_t pos = image->info.position;
    const ebb_state_view *v;
    size_t at = 0;
    for (int32_t i = 0; pos > 0 && (v = ebb_state_pool_view(pool, i)); i++) {
        const size_t left = image->payload_bytes - at;
        int64_t first;
        size_t bytes = (size_t)v->layer->heads * sizeof(int64_t);
        ebb_error why = {EBB_OK, ""};
        ebb_status status = EBB_OK;
        if (left >= bytes) status = layer_bytes(v, image->payload + at, pos, &first, &bytes, &why);
        if (status) return ebb_fail(error, status, "layer %d of the image: %s", i, why.text);
        if (left < bytes)
            return ebb_fail(error, EBB_BAD_FILE, "layer %d of the image takes %zu bytes, but %zu are left", i, bytes,
                            left);
        at += bytes;
    }
    if (at != image->payload_bytes)
        return ebb_fail(error, EBB_BAD_FILE, "the image has %zu bytes after its last layer; none is expected",
                        image->payload_bytes - at);
    return EBB_OK;
}

ebb_status ebb_state_load(ebb_state_pool *pool, int32_t slot, const void *image, size_t bytes, int64_t *pos,
                          ebb_error *error) {
    image_text own = {0};
    image_view view;
    const ebb_state_view *v;
    if (!pos) return ebb_fail(error, EBB_BAD_ARGUMENT, "no place for the position of an image");
    ebb_status status = check_slot(pool, slot, 0, error);
    if (!status) status = image_open(image, bytes, EBB_IMAGE_STATE, &view, error);
    if (!status) status = describe(pool, &own, error);
    if (!status) status = image_same(&view, &own, "state store", error);
    if (!status) status = check_payload(pool, &view, error);
    image_cursor c = {.load = status ? NULL : view.payload};
    for (int32_t i = 0; !status && view.info.position > 0 && (v = ebb_state_pool_view(pool, i)); i++) {
        int64_t first;
        status = lowest_base(v, c.load, view.info.position, &first, error);
        if (!status) status = move_layer(v, slot, view.info.position, first, &c, error);
    }
    if (!status) *pos = view.info.position;
    free(own.text);
    return status;
}

/* ---- copies, and conv inputs ---- */

ebb_status ebb_state_pool_copy(ebb_state_pool *pool, int32_t from, int32_t to, ebb_error *error) {
    const ebb_state_view *v;
    ebb_status status = check_slot(pool, from, 0, error);
    if (status || (status = check_slot(pool, to, 0, error)) || from == to) return status;
    for (int32_t i = 0; (v = ebb_state_pool_view(pool, i)); i++) {
        memcpy(v->packed + to * v->packed_slot, v->packed + from * v->packed_slot, (size_t)v->packed_slot);
        memcpy(live_of(v, to), live_of(v, from), (size_t)v->live_slot);
    }
    return EBB_OK;
}

static ebb_status move_conv(const ebb_state_pool *pool, int32_t layer, int32_t slot, int64_t pos, image_cursor c,
                            ebb_error *error) {
    ebb_status status = check_slot(pool, slot, pos, error);
    if (status) return status;
    const ebb_state_view *v = ebb_state_pool_view(pool, layer);
    if (!v) return ebb_fail(error, EBB_BAD_ARGUMENT, "the state pool has no layer %d", layer);
    const int64_t n = conv_inputs(v, pos);
    if (n && !c.save && !c.load) return ebb_fail(error, EBB_BAD_ARGUMENT, "no place for %" PRId64 " conv inputs", n);
    for (int64_t t = pos - n; t < pos; t++) image_move(&c, conv_record(v, slot, t), conv_bytes(v));
    return EBB_OK;
}

ebb_status ebb_state_conv_read(const ebb_state_pool *pool, int32_t layer, int32_t slot, int64_t pos, float *inputs,
                               ebb_error *error) {
    return move_conv(pool, layer, slot, pos, (image_cursor){.save = (uint8_t *)inputs}, error);
}

ebb_status ebb_state_conv_write(ebb_state_pool *pool, int32_t layer, int32_t slot, int64_t pos, const float *inputs,
                                ebb_error *error) {
    return move_conv(pool, layer, slot, pos, (image_cursor){.load = (const uint8_t *)inputs}, error);
}
