/* ebb/kv.h: the KV-cache store of full-attention layers; the same shape as the state store: a packed part (pages,
 * immutable once sealed, shareable) for tokens below `sealed`, and a 16-bit tail from there to pos. The plain float
 * methods seal every token at once (group 1), so they have no tail. Page tables are per slot and shared by all layers
 * of a pool. */
#ifndef EBB_KV_H
#define EBB_KV_H

#include "ebb/device.h"
#include "ebb/format.h"
#include "ebb/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A key is its K parts in order, a value the one V part, which is the last part unless it is K too. K | V together: an
 * MLA latent, stored once, read as key and as value. */
enum { EBB_ROLE_K = 1, EBB_ROLE_V = 2 };
#define EBB_KV_PAGE EBB_GRID /* tokens of one page */
#define EBB_MAX_HEAD_DIM 512 /* of one part */

typedef struct ebb_kv_layer {
    int32_t q_heads, heads; /* query heads; KV heads, a divisor of q_heads */
    int32_t head_begin;
    int32_t parts; /* K then V; or an MLA latent K | V, then the rest of the key, K */
    struct {
        int16_t dims, role;
    } part[3];
    float scale; /* of q . k, usually head_dim^-1/2 */
} ebb_kv_layer;

/* How one group of `group` tokens of one KV head is stored. encode/decode take `rows`: for each part, [group][dims]. */
typedef struct ebb_kv_codec {
    const char *name;
    const ebb_param *params;
    uint32_t flags; /* EBB_PREFIX_PURE */
    ebb_status (*layout)(const ebb_kv_layer *layer, const double *param, int32_t *group, ebb_planes *planes,
                         ebb_error *error);
    void (*encode)(const ebb_kv_layer *layer, const double *param, const float *rows, void *packed, float *tmp);
    void (*decode)(const ebb_kv_layer *layer, const double *param, const void *packed, float *rows);
} ebb_kv_codec;
enum { EBB_PREFIX_PURE = 1 }; /* bytes below token p depend on tokens below p only: pages can be shared */

typedef struct ebb_kv_method {
    const char *name;
    const ebb_kv_codec *codec;
    const char *defaults;
    const char *help;
} ebb_kv_method;

typedef struct ebb_kv_spec {
    const ebb_kv_method *method;
    double param[EBB_MAX_PARAMS];
} ebb_kv_spec;

EBB_API const ebb_kv_method *ebb_kv_methods(int32_t *count);
EBB_API ebb_status ebb_kv_parse(const char *text, ebb_kv_spec *spec, ebb_error *error);
/* Bytes of one token of one layer (all KV heads). */
EBB_API ebb_status ebb_kv_token_bytes(const ebb_kv_spec *spec, const ebb_kv_layer *layer, size_t *bytes,
                                      ebb_error *error);

/* One layer as kernels see it. Token t of slot s lives in page id = block[s * block_stride + t / page]; inside a page
 * the planes of the codec are split: head h, plane i, group j at pages + id * page_bytes + h * head_bytes + plane_at[i]
 * + j * plane_bytes[i]. */
typedef struct ebb_kv_view {
    const ebb_kv_layer *layer;
    const ebb_kv_codec *codec;
    const double *param;
    uint8_t *pages;
    int64_t page_bytes, head_bytes;
    int64_t plane_at[8], plane_bytes[8];
    const int32_t *block;
    int32_t block_stride, page, group, slots;
} ebb_kv_view;

typedef struct ebb_kv_pool ebb_kv_pool;

typedef struct ebb_kv_pool_config {
    size_t size;
    const ebb_kv_spec *spec;
    const ebb_kv_layer *layers;
    int32_t n_layers, slots;
    int64_t max_tokens; /* of one slot */
    int64_t pages;      /* in all, shared by the slots; 0: enough for every slot at max_tokens */
} ebb_kv_pool_config;

EBB_API ebb_status ebb_kv_pool_open(ebb_device *device, const ebb_kv_pool_config *config, ebb_kv_pool **pool,
                                    ebb_error *error);
EBB_API void ebb_kv_pool_close(ebb_kv_pool *pool);
EBB_API const ebb_kv_view *ebb_kv_pool_view(const ebb_kv_pool *pool, int32_t layer);
EBB_API const ebb_kv_spec *ebb_kv_pool_spec(const ebb_kv_pool *pool);
/* Make room for tokens 0 .. tokens-1 of `slot`. EBB_NO_MEMORY: no page is left; EBB_BAD_ARGUMENT: beyond max_tokens.
 * On failure the slot keeps what it had. */
EBB_API ebb_status ebb_kv_pool_reserve(ebb_kv_pool *pool, int32_t slot, int64_t tokens, ebb_error *error);
EBB_API void ebb_kv_pool_release(ebb_kv_pool *pool, int32_t slot); /* all pages of the slot */
/* Bytes of the pages that `slot` holds, over all layers. */
EBB_API size_t ebb_kv_pool_slot_bytes(const ebb_kv_pool *pool, int32_t slot);

#ifdef __cplusplus
}
#endif
#endif
