/* ebb/image.h: a slot of a store as bytes, to be kept in a file and put back later, in another slot, pool or process.
 *
 * An image is flat, little-endian, versioned and checked by a CRC-32C; docs/images.md has the layout. It is canonical:
 * the same content gives the same bytes, whatever the slot, the number of slots, max_new, or where a ring begins. It
 * names its method with every parameter and the dimensions of its layers. What is truncated, damaged, newer, of another
 * method or of other layers is refused by a sentence that says which, and nothing of the slot is changed. */
#ifndef EBB_IMAGE_H
#define EBB_IMAGE_H

#include "ebb/kv.h"
#include "ebb/state.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EBB_IMAGE_VERSION 1 /* written; this one and older ones are read */

typedef enum ebb_image_kind { EBB_IMAGE_STATE = 1, EBB_IMAGE_KV, EBB_IMAGE_SEQUENCE } ebb_image_kind;

/* Where an image comes from. */
typedef struct ebb_origin {
    uint64_t numerics; /* which rows decided its bits: ebb_plan.numerics, ebb_runner_numerics; 0: not said */
    uint64_t model;    /* ebb_model_info.hash; 0: none */
    const char *rows;  /* the rows as a person reads them (ebb_runner_rows); NULL: not said */
} ebb_origin;

typedef struct ebb_image_info {
    int32_t kind, version;
    int64_t position;
    int64_t tokens; /* EBB_IMAGE_SEQUENCE: committed and waiting ones; else the position */
    uint64_t numerics, model;
    const char *text; /* inside the image, text_bytes long, lines end with \n: method, layers, rows */
    size_t text_bytes;
} ebb_image_info;

/* Check an image (everything but what only a store can know) and say what it is. */
EBB_API ebb_status ebb_image_describe(const void *image, size_t bytes, ebb_image_info *info, ebb_error *error);

/* A method with every parameter, in the table's order, as ebb_state_parse and ebb_kv_parse read it:
 * "leap8:p=16,bits=8,r=4,scale=ls,...". EBB_BAD_ARGUMENT: it does not fit. */
EBB_API ebb_status ebb_state_text(const ebb_state_spec *spec, char *text, size_t room, ebb_error *error);
EBB_API ebb_status ebb_kv_text(const ebb_kv_spec *spec, char *text, size_t room, ebb_error *error);

/* ---- recurrent states ---- */

/* Bytes of the image of `slot` at `pos` (0 and an error when there is none: no such slot, or pos out of its reach). */
EBB_API size_t ebb_state_image_bytes(const ebb_state_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                                     ebb_error *error);
/* Write it. `bytes` is what ebb_state_image_bytes said for the same arguments. */
EBB_API ebb_status ebb_state_save(const ebb_state_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                                  void *image, size_t bytes, ebb_error *error);
/* Put an image into `slot`, which then stands at *pos. Its records must fit the ring of this pool; behind *pos there is
 * no way back. Comparing model and numerics (ebb_image_describe) is the caller's. */
EBB_API ebb_status ebb_state_load(ebb_state_pool *pool, int32_t slot, const void *image, size_t bytes, int64_t *pos,
                                  ebb_error *error);
/* Make slot `to` what slot `from` is. */
EBB_API ebb_status ebb_state_pool_copy(ebb_state_pool *pool, int32_t from, int32_t to, ebb_error *error);
/* The last min(pos, conv_width - 1) inputs of the short convolution, FP32 [inputs][channels], oldest first: with
 * ebb_delta_read and ebb_delta_write, the whole of a slot in FP32. */
EBB_API ebb_status ebb_state_conv_read(const ebb_state_pool *pool, int32_t layer, int32_t slot, int64_t pos,
                                       float *inputs, ebb_error *error);
EBB_API ebb_status ebb_state_conv_write(ebb_state_pool *pool, int32_t layer, int32_t slot, int64_t pos,
                                        const float *inputs, ebb_error *error);

/* ---- KV caches ---- */

/* The same for a KV slot that stands at pos: codes of its tokens, vertical keys and what the tail still gives. Loading
 * reserves the pages it needs. */
EBB_API size_t ebb_kv_image_bytes(const ebb_kv_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                                  ebb_error *error);
EBB_API ebb_status ebb_kv_save(const ebb_kv_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                               void *image, size_t bytes, ebb_error *error);
EBB_API ebb_status ebb_kv_load(ebb_kv_pool *pool, int32_t slot, const void *image, size_t bytes, int64_t *pos,
                               ebb_error *error);
/* Make slot `to` what slot `from` is at pos, in pages of its own. */
EBB_API ebb_status ebb_kv_pool_copy(ebb_kv_pool *pool, int32_t from, int32_t to, int64_t pos, ebb_error *error);
/* Tokens first .. first + n - 1 of one layer as FP32 [n][heads][dims of all parts], as the query at position pos >=
 * first + n reads them. The pages must be reserved. */
EBB_API ebb_status ebb_kv_read(const ebb_kv_pool *pool, int32_t layer, int32_t slot, int64_t pos, int64_t first,
                               int64_t n, float *rows, ebb_error *error);
/* Write them, ascending up to the position of the slot. EBB_UNSUPPORTED: a store with vertical keys, which are chosen
 * by queries, or one that rounds at the end of a prompt. */
EBB_API ebb_status ebb_kv_write(ebb_kv_pool *pool, int32_t layer, int32_t slot, int64_t first, int64_t n,
                                const float *rows, ebb_error *error);

#ifdef __cplusplus
}
#endif
#endif
