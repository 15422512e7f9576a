/* kv/kv_int.h: the inside of the KV store: its codecs, the checks of layers and views, and where a token lies in its
 * page. For src/kv and the attention of src/op only. */
#ifndef KV_KV_INT_H
#define KV_KV_INT_H

#include <string.h>

#include "core/core.h"
#include "ebb/kv.h"

#define KV_ALIGN 64 /* of a plane inside a page */

/* codec_float: param[0] is an index into these formats; plane i holds the rows of part i. */
enum { KV_FLOAT_FP32, KV_FLOAT_FP16, KV_FLOAT_BF16, KV_FLOAT_FORMATS };
extern const ebb_kv_codec kv_codec_float;

/* EBB_BAD_ARGUMENT names the field of the layer that makes no sense. */
ebb_status kv_layer_check(const ebb_kv_layer *layer, ebb_error *error);

/* How the parts of a checked layer make keys and values. A token's `rows` (group 1) are its parts one after another:
 * the parts with EBB_ROLE_K come first and are the key, the one with EBB_ROLE_V is the value, on its own or inside the
 * key (an MLA latent). */
typedef struct kv_shape {
    int32_t k, v;         /* dims of a key, of a value */
    int32_t v_part, v_at; /* the value's part, and where it begins in `rows` */
    int32_t all;          /* values of `rows` */
    bool shared;          /* the value is stored inside the key */
} kv_shape;

static inline kv_shape kv_shape_of(const ebb_kv_layer *layer) {
    kv_shape s = {0};
    for (int32_t i = 0; i < layer->parts; i++) {
        if (layer->part[i].role & EBB_ROLE_V) {
            s.v = layer->part[i].dims;
            s.v_part = i;
            s.v_at = s.all;
            s.shared = layer->part[i].role & EBB_ROLE_K;
        }
        if (layer->part[i].role & EBB_ROLE_K) s.k += layer->part[i].dims;
        s.all += layer->part[i].dims;
    }
    return s;
}

/* Plane `plane` of token `token` of a store that seals every token (group 1). The page must be reserved. */
static inline uint8_t *kv_at(const ebb_kv_view *s, int32_t slot, int32_t head, int32_t plane, int64_t token) {
    int64_t id = s->block[(int64_t)slot * s->block_stride + token / s->page];
    return s->pages + id * s->page_bytes + head * s->head_bytes + s->plane_at[plane] +
           token % s->page * s->plane_bytes[plane];
}

/* Through any codec with group 1: rows is all parts, packed is scratch of planes->bytes, tmp of planes->scratch floats.
 */
static inline void kv_put(const ebb_kv_view *s, const ebb_planes *planes, int32_t slot, int32_t head, int64_t token,
                          const float *rows, uint8_t *packed, float *tmp) {
    s->codec->encode(s->layer, s->param, rows, packed, tmp);
    for (int32_t i = 0; i < planes->n; i++)
        memcpy(kv_at(s, slot, head, i, token), packed + planes->plane[i].at, planes->plane[i].bytes);
}

static inline void kv_get(const ebb_kv_view *s, const ebb_planes *planes, int32_t slot, int32_t head, int64_t token,
                          float *rows, uint8_t *packed) {
    for (int32_t i = 0; i < planes->n; i++)
        memcpy(packed + planes->plane[i].at, kv_at(s, slot, head, i, token), planes->plane[i].bytes);
    s->codec->decode(s->layer, s->param, packed, rows);
}

#endif
