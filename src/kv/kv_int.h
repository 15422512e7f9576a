/* kv/kv_int.h: the inside of the KV store: its codecs, the checks of layers and views, and where a token lies in its
 * page. For src/kv and the attention of src/op only. */
#ifndef KV_KV_INT_H
#define KV_KV_INT_H

#include <math.h>
#include <string.h>

#include "core/core.h"
#include "ebb/kv.h"
#include "format/float16.h"

#define KV_ALIGN 64 /* of a plane inside a page */

/* codec_float: param[0] is an index into these formats; plane i holds the rows of part i. */
enum { KV_FLOAT_FP32, KV_FLOAT_FP16, KV_FLOAT_BF16, KV_FLOAT_FORMATS };
extern const ebb_kv_codec kv_codec_float, kv_codec_token, kv_codec_kivi, kv_codec_hqq;

/* EBB_BAD_ARGUMENT names the field of the layer that makes no sense. */
ebb_status kv_layer_check(const ebb_kv_layer *layer, ebb_error *error);
/* The parameters of layer `index`: those of the spec, with the bits of this layer where it gives them. */
ebb_status kv_layer_params(const ebb_kv_spec *spec, int32_t index, double *param, ebb_error *error);
/* Bits of keys, or of values, of a layer whose spec gives them. */
int32_t kv_bits_of(const ebb_kv_view *view, int32_t values);
/* All of a view but its pointers to memory and the number of slots; `layer` and `param` stay the caller's. */
ebb_status kv_view_layout(const ebb_kv_spec *spec, const ebb_prefill *prefill, const ebb_kv_layer *layer,
                          const double *param, int64_t max_tokens, int32_t max_new, ebb_kv_view *view,
                          ebb_error *error);

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

/* Plane `plane` of the group of token `token`. The page must be reserved. */
static inline uint8_t *kv_at(const ebb_kv_view *s, int32_t slot, int32_t head, int32_t plane, int64_t token) {
    int64_t id = s->block[(int64_t)slot * s->block_stride + token / s->page];
    return s->pages + id * s->page_bytes + head * s->head_bytes + s->plane_at[plane] +
           token % s->page / s->rule.group * s->plane_bytes[plane];
}

/* Through any codec, the group of `token`: rows is all parts, each [group][dims]; packed is scratch of planes->bytes,
 * tmp of planes->scratch floats. */
static inline void kv_put(const ebb_kv_view *s, const ebb_planes *planes, int32_t slot, int32_t head, int64_t token,
                          const float *rows, uint8_t *packed, float *tmp) {
    s->codec->encode(s->layer, s->param, rows, packed, tmp);
    for (int32_t i = 0; i < planes->n; i++)
        memcpy(kv_at(s, slot, head, i, token), packed + planes->plane[i].at, planes->plane[i].bytes);
}

static inline void kv_fetch(const ebb_kv_view *s, const ebb_planes *planes, int32_t slot, int32_t head, int64_t token,
                            uint8_t *packed) {
    for (int32_t i = 0; i < planes->n; i++)
        memcpy(packed + planes->plane[i].at, kv_at(s, slot, head, i, token), planes->plane[i].bytes);
}

static inline void kv_get(const ebb_kv_view *s, const ebb_planes *planes, int32_t slot, int32_t head, int64_t token,
                          float *rows, uint8_t *packed) {
    kv_fetch(s, planes, slot, head, token, packed);
    s->codec->decode(s->layer, s->param, packed, rows);
}

/* rows.c. kv_check_room: are there pages for tokens 0 .. end - 1? */
ebb_status kv_check_slot(const ebb_kv_pool *pool, int32_t slot, ebb_error *error);
ebb_status kv_check_room(const ebb_kv_pool *pool, int32_t slot, int64_t end, ebb_error *error);

/* ---- 16-bit rows: the tail and the vertical keys ---- */

/* The row [all dims] of a token in the tail, which holds the last tail_cap tokens. */
static inline uint16_t *kv_tail_row(const ebb_kv_view *s, int32_t all, int32_t slot, int32_t head, int64_t token) {
    uint8_t *at = s->tail + slot * s->tail_slot + head * s->tail_head;
    return (uint16_t *)(void *)at + token % s->tail_cap * all;
}

static inline void kv_row_write(const ebb_kv_rule *rule, const float *x, int32_t n, uint16_t *row) {
    for (int32_t d = 0; d < n; d++) row[d] = rule->tail == EBB_FP16 ? float_to_fp16(x[d]) : float_to_bf16(x[d]);
}

static inline void kv_row_read(const ebb_kv_rule *rule, const uint16_t *row, int32_t n, float *x) {
    for (int32_t d = 0; d < n; d++) x[d] = rule->tail == EBB_FP16 ? fp16_to_float(row[d]) : bf16_to_float(row[d]);
}

/* The query sum [K dims] of a token: over the queries of its interval that choose vertical keys, up to this token, each
 * the mean over the query heads of the group. */
static inline float *kv_query_sum(const ebb_kv_view *s, const kv_shape *kv, int32_t slot, int32_t head, int64_t token) {
    uint8_t *at = s->tail + slot * s->tail_slot + head * s->tail_head;
    at += align_up((size_t)s->tail_cap * (size_t)kv->all * sizeof(uint16_t), KV_ALIGN);
    return (float *)(void *)at + token % (s->max_new + 2) * kv->k;
}

/* What a slot keeps of its prompts, at the beginning of its extra part (select=prompt and paper, and codecs that
 * rewrite). Not read at position 0. */
typedef struct kv_live {
    int64_t begin, end; /* the last prompt: its tokens */
    int64_t selected;   /* vertical keys are chosen below this position; for codecs that rewrite: rewritten below it */
    int64_t spare;
} kv_live;

static inline kv_live *kv_live_of(const ebb_kv_view *s, int32_t slot) {
    return (kv_live *)(void *)(s->extra + slot * s->extra_slot);
}

/* Behind it, head h at sizeof(kv_live) rounded up to KV_ALIGN + h * extra_head, each part rounded up to KV_ALIGN:
 * int32 first[block_stride + 1] (rows before each page), the sum of the prompt's last queries float[K dims],
 * uint8 place[extra_rows] (inside the page), 16-bit rows [extra_rows][all dims]. All prompts
 * together take as many rows as one of their length would. */
typedef struct kv_extra {
    int32_t *first;
    float *query;
    uint8_t *place;
    uint16_t *rows;
} kv_extra;

static inline kv_extra kv_extra_of(const ebb_kv_view *s, const kv_shape *kv, int32_t slot, int32_t head) {
    uint8_t *at = s->extra + slot * s->extra_slot + align_up(sizeof(kv_live), KV_ALIGN) + head * s->extra_head;
    kv_extra e;
    e.first = (int32_t *)(void *)at;
    at += align_up(((size_t)s->block_stride + 1) * sizeof(int32_t), KV_ALIGN);
    e.query = (float *)(void *)at;
    at += align_up((size_t)kv->k * sizeof(float), KV_ALIGN);
    e.place = at;
    e.rows = (uint16_t *)(void *)(at + align_up((size_t)s->extra_rows, KV_ALIGN));
    return e;
}

/* Bitmap `mark` of the page of `token`: bit t of byte t / 8, low bits first. Written where keys are chosen; what it
 * says of tokens at or above the bound of a query means nothing to that query. */
static inline uint8_t *kv_marks(const ebb_kv_view *s, int32_t slot, int32_t head, int32_t mark, int64_t token) {
    int64_t id = s->block[(int64_t)slot * s->block_stride + token / s->page];
    return s->pages + id * s->page_bytes + head * s->head_bytes + s->overlay_at + (int64_t)mark * (s->page / 8);
}

/* The bitmap of prefill's vertical keys for query head `n` of the group: with select=paper one a query head, behind the
 * cache's; else the cache's own, for both choose alike. */
static inline int32_t kv_prefill_mark(const ebb_kv_view *s, int32_t n) {
    return s->prefill.select == EBB_SELECT_PAPER ? 1 + n : 0;
}

/* The vertical keys that the page of `token` keeps in 16 bits, ascending: place inside the page, row [all dims]. Only
 * for tokens below the bound of the query that asks. */
typedef struct kv_verticals {
    int32_t n;
    const uint8_t *place;
    const uint16_t *rows;
} kv_verticals;

static inline kv_verticals kv_verticals_of(const ebb_kv_view *s, const kv_shape *kv, int32_t slot, int32_t head,
                                           int64_t token) {
    if (s->rule.select == EBB_SELECT_NONE) return (kv_verticals){0};
    if (s->rule.select == EBB_SELECT_SEGMENT) {
        const uint8_t *at = kv_marks(s, slot, head, s->marks, token);
        return (kv_verticals){s->overlay_rows, at,
                              (const uint16_t *)(const void *)(at + align_up((size_t)s->overlay_rows, KV_ALIGN))};
    }
    const int64_t page = token / s->page;
    if (page * s->page >= kv_live_of(s, slot)->selected) return (kv_verticals){0};
    const kv_extra e = kv_extra_of(s, kv, slot, head);
    return (kv_verticals){e.first[page + 1] - e.first[page], e.place + e.first[page],
                          e.rows + (int64_t)e.first[page] * kv->all};
}

/* Number of vertical keys among n eligible ones: at least one where any are asked for (papers/hyquant). */
static inline int64_t kv_vertical_count(int64_t n, double ratio) {
    if (n < 1 || ratio <= 0) return 0;
    const int64_t count = (int64_t)ceil((double)n * ratio);
    return count < n ? (count > 1 ? count : 1) : n;
}

/* Tokens at the end of an interval whose queries choose its vertical keys; 0: nothing is chosen by segment. */
static inline int64_t kv_choosing(const ebb_kv_view *s) {
    const bool own = s->rule.select == EBB_SELECT_SEGMENT;
    if (!own && (!s->marks || s->prefill.select != EBB_SELECT_SEGMENT)) return 0;
    const int64_t window = own ? s->rule.window[0] : s->prefill.window;
    return window > 0 && window < EBB_GRID ? window : EBB_GRID;
}

/* Does prefill keep bitmaps of its own from one prompt to the next? With select=prompt and paper it chooses anew. */
static inline bool kv_keeps_marks(const ebb_kv_view *s) {
    return s->marks && s->rule.select == EBB_SELECT_NONE && s->prefill.select == EBB_SELECT_SEGMENT;
}

/* The first token at or above which rows of the tail may still be read or chosen from by what comes at `pos`. `live`
 * is of the slot; NULL: it has none. */
static inline int64_t kv_tail_from(const ebb_kv_rule *rule, const kv_live *live, int64_t pos) {
    int64_t from = min_i64(ebb_kv_bound(rule, EBB_ROLE_K, pos), ebb_kv_bound(rule, EBB_ROLE_V, pos));
    if (!live || rule->select < EBB_SELECT_PROMPT) return from;
    from = min_i64(from, live->selected);
    if (live->end == pos)
        from = min_i64(
            from, min_i64(ebb_kv_bound(rule, EBB_ROLE_K, live->begin), ebb_kv_bound(rule, EBB_ROLE_V, live->begin)));
    return from;
}

/* Codes are read below this from the position `pos`: the bound, and behind a prompt whose vertical keys are still to be
 * chosen (select=prompt and paper) that of its beginning. */
static inline int64_t kv_codes_below(const ebb_kv_view *s, int32_t slot, int32_t role, int64_t pos) {
    const int64_t bound = ebb_kv_bound(&s->rule, role, pos);
    if (s->rule.select < EBB_SELECT_PROMPT || pos == 0 || kv_live_of(s, slot)->end != pos) return bound;
    return min_i64(bound, ebb_kv_bound(&s->rule, role, kv_live_of(s, slot)->begin));
}

#endif
