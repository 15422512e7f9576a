/* kv/kv_int.h: the inside of the KV store: its codecs, the checks of layers and views, and where a token lies in its
 * page. For src/kv and the attention of src/op only. */
#ifndef KV_KV_INT_H
#define KV_KV_INT_H

#include <string.h>

#include "core/core.h"
#include "ebb/kv.h"

#define KV_ALIGN 64 /* of a plane inside a page */

/* codec_float: param[0] is an index into these formats; the rows of K and V are the planes 0 and 1. */
enum { KV_FLOAT_FP32, KV_FLOAT_FP16, KV_FLOAT_BF16, KV_FLOAT_FORMATS };
extern const ebb_kv_codec kv_codec_float;

/* EBB_BAD_ARGUMENT names the field of the layer that makes no sense. */
ebb_status kv_layer_check(const ebb_kv_layer *layer, ebb_error *error);

/* Plane `plane` of token `token` of a store that seals every token (group 1). The page must be reserved. */
static inline uint8_t *kv_at(const ebb_kv_view *s, int32_t slot, int32_t head, int32_t plane, int64_t token) {
    int64_t id = s->block[(int64_t)slot * s->block_stride + token / s->page];
    return s->pages + id * s->page_bytes + head * s->head_bytes + s->plane_at[plane] +
           token % s->page * s->plane_bytes[plane];
}

/* Through any codec with group 1: rows is K [dims] then V [dims], packed is scratch of planes->bytes, tmp of
 * planes->scratch floats. */
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
