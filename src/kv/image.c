/* kv/image.c: images of KV slots: tokens to bytes and back, copies, and rows in FP32. Called by engines and by anyone
 * who keeps caches. The layout is in docs/images.md: per layer, head and plane, tokens 0 .. pos - 1.
 *
 * Pages hold whole groups of tokens; so far every method has groups of one, and others are refused. */
#include "core/image.h"
#include "kv/kv_int.h"
#include "state/params.h"

#include <inttypes.h>
#include <stdlib.h>

ebb_status ebb_kv_text(const ebb_kv_spec *spec, char *text, size_t room, ebb_error *error) {
    if (!spec || !spec->method || !text) return ebb_fail(error, EBB_BAD_ARGUMENT, "no KV method or place given");
    if (params_text(spec->method->name, spec->method->codec->params, spec->param, text, room)) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s with its parameters does not fit %zu bytes", spec->method->name,
                    room);
}

/* ---- checks and the description ---- */

static ebb_status planes_of(const ebb_kv_view *v, ebb_planes *planes, ebb_error *error) {
    int32_t group;
    ebb_status status = v->codec->layout(v->layer, v->param, &group, planes, error);
    if (!status && (group != 1 || v->group != 1))
        return ebb_fail(error, EBB_UNSUPPORTED,
                        "images of a KV method that stores groups of %d tokens; only groups of 1", group);
    return status;
}

static ebb_status check_slot(const ebb_kv_pool *pool, int32_t slot, ebb_error *error) {
    if (!pool) return ebb_fail(error, EBB_BAD_ARGUMENT, "no KV pool");
    const int32_t slots = ebb_kv_pool_view(pool, 0)->slots;
    if (slot >= 0 && slot < slots) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "KV slot %d does not exist; expected 0 to %d", slot, slots - 1);
}

/* Pages for tokens 0 .. end - 1. */
static ebb_status check_room(const ebb_kv_pool *pool, int32_t slot, int64_t end, ebb_error *error) {
    const ebb_kv_view *v = ebb_kv_pool_view(pool, 0);
    const int32_t *block = v->block + (int64_t)slot * v->block_stride;
    if (end < 0 || end > (int64_t)v->block_stride * v->page)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%" PRId64 " tokens of a KV slot that holds 0 to %" PRId64, end,
                        (int64_t)v->block_stride * v->page);
    for (int64_t page = 0; page * v->page < end; page++)
        if (block[page] < 0)
            return ebb_fail(error, EBB_BAD_ARGUMENT,
                            "%" PRId64 " tokens of KV slot %d, whose page %" PRId64 " is not reserved", end, slot,
                            page);
    return EBB_OK;
}

static ebb_status describe(const ebb_kv_pool *pool, image_text *t, ebb_error *error) {
    static const char *const roles[] = {"none", "k", "v", "kv"};
    char method[512];
    const ebb_kv_view *v;
    int32_t n = 0;
    ebb_status status = ebb_kv_text(ebb_kv_pool_spec(pool), method, sizeof method, error);
    if (status) return status;
    while (ebb_kv_pool_view(pool, n)) n++;
    image_text_add(t, "method %s\nlayers %d\n", method, n);
    for (int32_t i = 0; (v = ebb_kv_pool_view(pool, i)); i++) {
        const ebb_kv_layer *l = v->layer;
        ebb_planes planes;
        if ((status = planes_of(v, &planes, error))) return status;
        image_text_add(t, "layer %d heads=%d head_begin=%d", i, l->heads, l->head_begin);
        for (int32_t p = 0; p < l->parts; p++) image_text_add(t, " %s=%d", roles[l->part[p].role & 3], l->part[p].dims);
        image_text_add(t, " packed=%zu\n", planes.bytes);
    }
    return t->failed ? ebb_fail(error, EBB_NO_MEMORY, "no memory for the description of an image") : EBB_OK;
}

/* Bytes of `pos` tokens of all layers. */
static ebb_status payload_bytes(const ebb_kv_pool *pool, int64_t pos, size_t *bytes, ebb_error *error) {
    const ebb_kv_view *v;
    *bytes = 0;
    for (int32_t i = 0; (v = ebb_kv_pool_view(pool, i)); i++) {
        ebb_planes planes;
        size_t layer;
        ebb_status status = planes_of(v, &planes, error);
        if (status) return status;
        if (!size_mul(planes.bytes, (size_t)v->layer->heads, &layer) || !size_mul(layer, (size_t)pos, &layer) ||
            !size_add(*bytes, layer, bytes))
            return ebb_fail(error, EBB_BAD_ARGUMENT, "%" PRId64 " tokens of this KV pool do not fit an address space",
                            pos);
    }
    return EBB_OK;
}

/* ---- moving bytes: a page's tokens of a plane lie together ---- */

static ebb_status move_layer(const ebb_kv_view *v, int32_t slot, int64_t pos, image_cursor *c, ebb_error *error) {
    ebb_planes planes;
    ebb_status status = planes_of(v, &planes, error);
    for (int32_t head = 0; !status && head < v->layer->heads; head++)
        for (int32_t plane = 0; plane < planes.n; plane++)
            for (int64_t t = 0; t < pos; t += v->page)
                image_move(c, kv_at(v, slot, head, plane, t),
                           (size_t)min_i64(v->page, pos - t) * planes.plane[plane].bytes);
    return status;
}

/* ---- saving ---- */

static ebb_status measure(const ebb_kv_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                          image_text *text, size_t *bytes, ebb_error *error) {
    size_t payload;
    ebb_status status = check_slot(pool, slot, error);
    if (status || (status = check_room(pool, slot, pos, error)) || (status = describe(pool, text, error)) ||
        (status = payload_bytes(pool, pos, &payload, error)))
        return status;
    image_text_rows(text, origin);
    if (text->failed) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the description of an image");
    *bytes = image_bytes(text->bytes, payload);
    return *bytes ? EBB_OK : ebb_fail(error, EBB_BAD_ARGUMENT, "an image of this pool does not fit an address space");
}

size_t ebb_kv_image_bytes(const ebb_kv_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                          ebb_error *error) {
    image_text text = {0};
    size_t bytes = 0;
    if (measure(pool, slot, pos, origin, &text, &bytes, error)) bytes = 0;
    free(text.text);
    return bytes;
}

ebb_status ebb_kv_save(const ebb_kv_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin, void *image,
                       size_t bytes, ebb_error *error) {
    image_text text = {0};
    const ebb_kv_view *v;
    size_t need;
    ebb_status status = measure(pool, slot, pos, origin, &text, &need, error);
    if (!status && (!image || bytes != need))
        status = ebb_fail(error, EBB_BAD_ARGUMENT, "room of %zu bytes for an image of %zu", image ? bytes : 0, need);
    if (status) goto done;
    image_cursor c = {.save = image_begin(image, bytes, EBB_IMAGE_KV, pos, origin, &text)};
    for (int32_t i = 0; !status && (v = ebb_kv_pool_view(pool, i)); i++) status = move_layer(v, slot, pos, &c, error);
    if (!status) image_seal(image, bytes);
done:
    free(text.text);
    return status;
}

/* ---- loading ---- */

ebb_status ebb_kv_load(ebb_kv_pool *pool, int32_t slot, const void *image, size_t bytes, int64_t *pos,
                       ebb_error *error) {
    image_text own = {0};
    image_view view;
    const ebb_kv_view *v;
    size_t need;
    if (!pos) return ebb_fail(error, EBB_BAD_ARGUMENT, "no place for the position of an image");
    ebb_status status = check_slot(pool, slot, error);
    if (!status) status = image_open(image, bytes, EBB_IMAGE_KV, &view, error);
    if (!status) status = describe(pool, &own, error);
    if (!status) status = image_same(&view, &own, "KV store", error);
    if (!status) status = payload_bytes(pool, view.info.position, &need, error);
    if (!status && need != view.payload_bytes)
        status =
            ebb_fail(error, EBB_BAD_FILE, "the image holds %zu bytes of keys and values; %" PRId64 " tokens take %zu",
                     view.payload_bytes, view.info.position, need);
    if (!status) status = ebb_kv_pool_reserve(pool, slot, view.info.position, error);
    image_cursor c = {.load = status ? NULL : view.payload};
    for (int32_t i = 0; !status && (v = ebb_kv_pool_view(pool, i)); i++)
        status = move_layer(v, slot, view.info.position, &c, error);
    if (!status) *pos = view.info.position;
    free(own.text);
    return status;
}

/* ---- copies ---- */

ebb_status ebb_kv_pool_copy(ebb_kv_pool *pool, int32_t from, int32_t to, int64_t pos, ebb_error *error) {
    const ebb_kv_view *v;
    ebb_status status = check_slot(pool, from, error);
    if (status || (status = check_slot(pool, to, error)) || (status = check_room(pool, from, pos, error)) || from == to)
        return status;
    if ((status = ebb_kv_pool_reserve(pool, to, pos, error))) return status;
    for (int32_t i = 0; (v = ebb_kv_pool_view(pool, i)); i++) {
        const int32_t *a = v->block + (int64_t)from * v->block_stride, *b = v->block + (int64_t)to * v->block_stride;
        for (int64_t page = 0; page * v->page < pos; page++)
            memcpy(v->pages + b[page] * v->page_bytes, v->pages + a[page] * v->page_bytes, (size_t)v->page_bytes);
    }
    return EBB_OK;
}

/* ---- rows in FP32 ---- */

/* One of them is not NULL. */
typedef struct row_cursor {
    float *read;
    const float *write;
} row_cursor;

static ebb_status move_rows(const ebb_kv_pool *pool, int32_t layer, int32_t slot, int64_t first, int64_t n,
                            row_cursor c, ebb_error *error) {
    ebb_planes planes;
    ebb_status status = check_slot(pool, slot, error);
    if (status) return status;
    const ebb_kv_view *v = ebb_kv_pool_view(pool, layer);
    if (!v) return ebb_fail(error, EBB_BAD_ARGUMENT, "the KV pool has no layer %d", layer);
    if (first < 0 || n < 0 || first > IMAGE_MAX_POSITION || n > IMAGE_MAX_POSITION || (n && !c.read && !c.write))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "%" PRId64 " rows from token %" PRId64 ", or no place for them", n,
                        first);
    if ((status = check_room(pool, slot, first + n, error)) || (status = planes_of(v, &planes, error))) return status;
    uint8_t *packed = aligned_new(planes.bytes);
    float *tmp = aligned_new(planes.scratch * sizeof *tmp);
    const size_t all = (size_t)kv_shape_of(v->layer).all;
    if (!packed || !tmp) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a row of keys and values");
    for (int64_t t = first; !status && t < first + n; t++)
        for (int32_t head = 0; head < v->layer->heads; head++) {
            if (c.read) kv_get(v, &planes, slot, head, t, c.read, packed), c.read += all;
            else kv_put(v, &planes, slot, head, t, c.write, packed, tmp), c.write += all;
        }
    free(packed), free(tmp);
    return status;
}

ebb_status ebb_kv_read(const ebb_kv_pool *pool, int32_t layer, int32_t slot, int64_t first, int64_t n, float *rows,
                       ebb_error *error) {
    return move_rows(pool, layer, slot, first, n, (row_cursor){.read = rows}, error);
}

ebb_status ebb_kv_write(ebb_kv_pool *pool, int32_t layer, int32_t slot, int64_t first, int64_t n, const float *rows,
                        ebb_error *error) {
    return move_rows(pool, layer, slot, first, n, (row_cursor){.write = rows}, error);
}
