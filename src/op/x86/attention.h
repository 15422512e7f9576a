/* op/x86/attention.h: softmax attention over float KV stores (fp32, fp16, bf16), compiled for AVX2, AVX-512 and NEON by
 * attention_avx2.c, attention_avx512.c and op/arm/attention_neon.c. Called by op/attention.c through the row table;
 * op/ref/attention.c is the definition. On x86 attention_mixed.h adds low-bit codes and the INT8 modes of prefill.
 *
 * What one row computes never depends on its tile. A score is VL partial sums along the key, each over dims ascending,
 * added by one fixed tree; the softmax of a block runs over all its ATTN_BLOCK lanes, with -inf where there is no key;
 * values are added one key at a time, j ascending, and a key at or beyond the row's limit is never added at all (0
 * times an infinite value would be NaN). So the blocking below only decides how often a key is loaded: ROWS query rows
 * share it in registers, and a tile with more rows than that widens the block to FP32 once. */
#ifndef OP_X86_ATTENTION_H
#define OP_X86_ATTENTION_H

#include "op/rows.h"
#include "op/x86/simd.h"

#include <math.h>
#include <string.h>

#include "kv/kv_int.h"

#if VL == 16
#    define ROWS 4 /* by 4 keys or 4 vectors of a value: 16 sums of 32 registers */
#else
#    define ROWS 2 /* 8 sums of 16 registers, or pairs */
#endif
#define KEYS 4
/* Keys asked for before they are read, where they lie one behind the other: into the second cache, of which nearly all
 * of the read bandwidth can be had. The first one has too few lines on their way: asking there, whatever the distance,
 * adds the wait to the arithmetic. */
#define AHEAD ATTN_BLOCK
#define ASK(address) __builtin_prefetch(address, 0, 2)

#if defined(__clang__)
#    define UNROLL _Pragma("clang loop unroll(full)")
#else
#    define UNROLL _Pragma("GCC unroll 16")
#endif
#define ALWAYS static inline __attribute__((always_inline))

/* The keys, part by part, and the values of one block, each a step of bytes apart; what is `ahead` bytes behind one is
 * asked for. */
typedef struct kv_rows {
    struct {
        const uint8_t *at;
        int64_t step, dims, ahead;
    } k[3];
    int32_t k_parts, format; /* format: KV_FLOAT_* */
    const uint8_t *v;
    int64_t v_step, v_dims, v_ahead;
} kv_rows;

/* Scratch of one worker; what depends on the dims of the layer lies behind it. */
typedef struct tile_scratch {
    float score[ATTN_TILE][ATTN_BLOCK]; /* scores of one block, then their weights */
    float max[ATTN_TILE], total[ATTN_TILE], shrink[ATTN_TILE];
    int64_t count[ATTN_TILE]; /* keys of this block below the row's limit, 0 .. ATTN_BLOCK */
    kv_shape kv;
    float *sum;   /* [ATTN_TILE][kv.v] */
    float *k, *v; /* a widened block: [ATTN_BLOCK][kv.k], and [ATTN_BLOCK][kv.v] unless the value is in the key */
} tile_scratch;

ALWAYS vf load_value(const uint8_t *row, int64_t d, int32_t format) {
    if (format == KV_FLOAT_FP32) return vf_load((const float *)(const void *)row + d);
    if (format == KV_FLOAT_FP16) return vf_load_fp16((const uint16_t *)(const void *)row + d);
    return vf_load_bf16((const uint16_t *)(const void *)row + d);
}

/* The same, and asks for what is read in the next block. FP32 is left alone: most of it is scratch. */
ALWAYS vf load_ahead(const uint8_t *row, int64_t d, int64_t ahead, int32_t format) {
    if (format != KV_FLOAT_FP32) ASK(row + ahead + d * (int64_t)sizeof(uint16_t));
    return load_value(row, d, format);
}

/* score[r][j ..) = q[r] . k[j ..), unscaled; inlined with constant rows, keys (1 or KEYS) and format. */
ALWAYS void dot_rows(int rows, int keys, int32_t format, const float *const *q, const kv_rows *block, int64_t j0,
                     float (*score)[ATTN_BLOCK]) {
    vf s[ROWS * KEYS];
    UNROLL for (int i = 0; i < ROWS * KEYS; i++) s[i] = vf_zero();
    int64_t at = 0;
    for (int32_t part = 0; part < block->k_parts; part++) {
        const int64_t dims = block->k[part].dims, step = block->k[part].step, ahead = block->k[part].ahead;
        const uint8_t *k = block->k[part].at + j0 * step;
        for (int64_t d = 0; d < dims; d += VL) {
            vf key[KEYS];
            UNROLL for (int j = 0; j < keys; j++) key[j] = load_ahead(k + j * step, d, ahead, format);
            UNROLL for (int r = 0; r < rows; r++) {
                vf x = vf_load(q[r] + at + d);
                UNROLL for (int j = 0; j < keys; j++) s[r * KEYS + j] = vf_fma(x, key[j], s[r * KEYS + j]);
            }
        }
        at += dims;
    }
    UNROLL for (int r = 0; r < rows; r++)
        vf_scores4(s[r * KEYS], s[r * KEYS + 1], s[r * KEYS + 2], s[r * KEYS + 3], keys, score[r] + j0);
}

ALWAYS void score_rows(int rows, int32_t format, const float *const *q, const kv_rows *block, int64_t count,
                       float (*score)[ATTN_BLOCK]) {
    int64_t j = 0;
    for (; j + KEYS <= count; j += KEYS) dot_rows(rows, KEYS, format, q, block, j, score);
    if (j < count && count > KEYS) dot_rows(rows, KEYS, format, q, block, count - KEYS, score); /* some once more */
    else
        for (; j < count; j++) dot_rows(rows, 1, format, q, block, j, score);
}

/* sum[r][d ..) = sum[r] shrink[r] + weights [first, last) times values, for `vectors` vectors of a value. */
ALWAYS void add_values(int rows, int vectors, int32_t format, const kv_rows *block, int64_t first, int64_t last,
                       int64_t d, const float *shrink, float (*weight)[ATTN_BLOCK], float *sum) {
    vf s[ROWS * 4];
    UNROLL for (int r = 0; r < rows; r++) {
        vf by = vf_set1(shrink[r]);
        UNROLL for (int i = 0; i < vectors; i++) s[r * 4 + i] =
            vf_mul(vf_load(sum + r * block->v_dims + d + i * VL), by);
    }
    for (int64_t j = first; j < last; j++) {
        vf value[4];
        UNROLL for (int i = 0; i < vectors; i++) value[i] =
            load_ahead(block->v + j * block->v_step, d + i * VL, block->v_ahead, format);
        UNROLL for (int r = 0; r < rows; r++) {
            vf w = vf_set1(weight[r][j]);
            UNROLL for (int i = 0; i < vectors; i++) s[r * 4 + i] = vf_fma(w, value[i], s[r * 4 + i]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vectors; i++)
        vf_store(sum + r * block->v_dims + d + i * VL, s[r * 4 + i]);
}

ALWAYS void weigh_rows(int rows, int32_t format, const kv_rows *block, int64_t first, int64_t last, const float *shrink,
                       float (*weight)[ATTN_BLOCK], float *sum) {
    int64_t d = 0, dim = block->v_dims;
    for (; d + 4 * VL <= dim; d += 4 * VL) add_values(rows, 4, format, block, first, last, d, shrink, weight, sum);
    for (; d < dim; d += VL) add_values(rows, 1, format, block, first, last, d, shrink, weight, sum);
}

/* e^x, and NaN for NaN, which vf_exp turns into 0: a broken key must show. */
ALWAYS vf exp_or_nan(vf x) { return vf_or_nan(x, vf_exp(x)); }

/* One step of the online softmax of row r: its scores become weights e^(s - max), 0 where there is no key. */
static void soften(tile_scratch *t, int32_t r, float scale) {
    enum { VECTORS = ATTN_BLOCK / VL };
    float *score = t->score[r];
    const int64_t count = t->count[r];
    vf by = vf_set1(scale), top = vf_set1(t->max[r]), sum = vf_zero(), s[VECTORS];
    UNROLL for (int i = 0; i < VECTORS; i++) s[i] = vf_mul(vf_load(score + i * VL), by);
    if (count < ATTN_BLOCK) {
        UNROLL for (int i = 0; i < VECTORS; i++) vf_store(score + i * VL, s[i]);
        for (int64_t j = count; j < ATTN_BLOCK; j++) score[j] = -INFINITY;
        UNROLL for (int i = 0; i < VECTORS; i++) s[i] = vf_load(score + i * VL);
    }
    UNROLL for (int i = 0; i < VECTORS; i++) top = vf_max(s[i], top);
    const float max = vf_top(top);
    UNROLL for (int i = 0; i < VECTORS; i++) {
        s[i] = exp_or_nan(vf_sub(s[i], vf_set1(max)));
        vf_store(score + i * VL, s[i]);
        sum = vf_add(sum, s[i]);
    }
    t->shrink[r] = 1.0f;
    if (max != t->max[r]) { /* 0 at the first block, whose old max is -inf */
        float shrink[VL];
        vf_store(shrink, vf_exp(vf_set1(t->max[r] - max)));
        t->shrink[r] = shrink[0];
    }
    t->total[r] = t->total[r] * t->shrink[r] + vf_sum(sum);
    t->max[r] = max;
}

/* One block of keys for rows first .. first + rows - 1 of the tile. Each row adds its own keys only: first those that
 * all the rows have, then the rest of each. */
ALWAYS void attend_rows(int rows, int32_t format, const attn_tile *tile, const kv_rows *block, int32_t first,
                        tile_scratch *t) {
    const ebb_kv_layer *layer = tile->s->layer;
    int64_t least = ATTN_BLOCK, most = 0;
    for (int32_t r = first; r < first + rows; r++) {
        least = min_i64(least, t->count[r]);
        most = max_i64(most, t->count[r]);
        t->shrink[r] = 1.0f;
    }
    score_rows(rows, format, tile->q + first, block, most, t->score + first);
    for (int32_t r = first; r < first + rows; r++)
        if (t->count[r] > 0) soften(t, r, layer->scale);
    weigh_rows(rows, format, block, 0, least, t->shrink + first, t->score + first, t->sum + first * block->v_dims);
    static const float keep = 1.0f;
    for (int32_t r = first; r < first + rows; r++)
        if (t->count[r] > least)
            weigh_rows(1, format, block, least, t->count[r], &keep, t->score + r, t->sum + r * block->v_dims);
}

#define FORMATS(rows)                                                                                 \
case rows:                                                                                            \
    if (block->format == KV_FLOAT_FP32) attend_rows(rows, KV_FLOAT_FP32, tile, block, first, t);      \
    else if (block->format == KV_FLOAT_FP16) attend_rows(rows, KV_FLOAT_FP16, tile, block, first, t); \
    else attend_rows(rows, KV_FLOAT_BF16, tile, block, first, t);                                     \
    break;

static void attend_block(const attn_tile *tile, const kv_rows *block, tile_scratch *t) {
    for (int32_t first = 0; first < tile->n; first += ROWS) {
        switch (tile->n - first) {
            FORMATS(1)
#if ROWS == 4
            FORMATS(2)
            FORMATS(3)
        default:
            FORMATS(4)
#else
        default:
            FORMATS(2)
#endif
        }
    }
}

/* FP32 rows `apart` floats apart. */
static void widen(const uint8_t *rows, int64_t step, int32_t format, int64_t keys, int64_t dim, float *wide,
                  int64_t apart) {
    for (int64_t j = 0; j < keys; j++)
        for (int64_t d = 0; d < dim; d += VL) vf_store(wide + j * apart + d, load_value(rows + j * step, d, format));
}

/* Keys start .. of the store where they lie. The next block, from `next` on, may be in another page. */
static kv_rows block_in_place(const attn_tile *tile, int64_t start, int64_t next, const kv_shape *kv) {
    const ebb_kv_view *s = tile->s;
    kv_rows b = {.format = (int32_t)s->param[0], .v_dims = kv->v};
    for (int32_t i = 0; i < s->layer->parts; i++) {
        if (!(s->layer->part[i].role & EBB_ROLE_K)) continue;
        b.k[b.k_parts].at = kv_at(s, tile->slot, tile->head, i, start);
        b.k[b.k_parts].step = s->plane_bytes[i];
        b.k[b.k_parts].ahead = kv_at(s, tile->slot, tile->head, i, next) - b.k[b.k_parts].at;
        b.k[b.k_parts++].dims = s->layer->part[i].dims;
    }
    b.v = kv_at(s, tile->slot, tile->head, kv->v_part, start);
    b.v_step = s->plane_bytes[kv->v_part];
    b.v_ahead = kv_at(s, tile->slot, tile->head, kv->v_part, next) - b.v;
    return b;
}

/* The same keys: in place where each is loaded once or is FP32 already, else widened, the parts of a key joined. */
static kv_rows block_widened(const attn_tile *tile, kv_rows b, int64_t keys, tile_scratch *t) {
    const kv_shape *kv = &t->kv;
    if (tile->n <= ROWS || b.format == KV_FLOAT_FP32) return b;
    for (int64_t part = 0, at = 0; part < b.k_parts; at += b.k[part++].dims)
        widen(b.k[part].at, b.k[part].step, b.format, keys, b.k[part].dims, t->k + at, kv->k);
    if (!kv->shared) widen(b.v, b.v_step, b.format, keys, kv->v, t->v, kv->v);
    const int64_t one = (int64_t)sizeof(float);
    return (kv_rows){.k = {{(const uint8_t *)t->k, kv->k * one, kv->k}},
                     .k_parts = 1,
                     .format = KV_FLOAT_FP32,
                     .v = (const uint8_t *)(kv->shared ? t->k + kv->v_at : t->v),
                     .v_step = (kv->shared ? kv->k : kv->v) * one,
                     .v_dims = kv->v};
}

static tile_scratch *scratch_new(void *scratch, const ebb_kv_layer *layer) {
    tile_scratch *t = scratch;
    t->kv = kv_shape_of(layer);
    t->sum = (float *)((uint8_t *)scratch + align_up(sizeof *t, 64));
    t->k = t->sum + ATTN_TILE * t->kv.v;
    t->v = t->k + ATTN_BLOCK * t->kv.k;
    return t;
}

static size_t scratch_bytes(const ebb_kv_view *view) {
    kv_shape kv = kv_shape_of(view->layer);
    size_t floats = ATTN_TILE * (size_t)kv.v + ATTN_BLOCK * ((size_t)kv.k + (kv.shared ? 0 : (size_t)kv.v));
    return align_up(sizeof(tile_scratch), 64) + floats * sizeof(float);
}

static void tile_end(const attn_tile *tile, const tile_scratch *t) {
    const int64_t dim = t->kv.v;
    for (int32_t r = 0; r < tile->n; r++)
        for (int64_t d = 0; d < dim; d += VL)
            vf_store(tile->out[r] + d, vf_div(vf_load(t->sum + r * dim + d), vf_set1(t->total[r])));
}

static void tile_run(const attn_tile *tile, void *scratch) {
    tile_scratch *t = scratch_new(scratch, tile->s->layer);
    int64_t dim = t->kv.v, keys = 0;
    for (int32_t r = 0; r < tile->n; r++) {
        t->max[r] = -INFINITY;
        t->total[r] = 0;
        keys = max_i64(keys, tile->limit[r]);
    }
    memset(t->sum, 0, (size_t)(tile->n * dim) * sizeof(float));
    for (int64_t start = 0; start < keys; start += ATTN_BLOCK) {
        for (int32_t r = 0; r < tile->n; r++) t->count[r] = max_i64(0, min_i64(ATTN_BLOCK, tile->limit[r] - start));
        const int64_t next = start + ATTN_BLOCK < keys ? start + ATTN_BLOCK : start;
        kv_rows block = block_in_place(tile, start, next, &t->kv);
        block = block_widened(tile, block, min_i64(ATTN_BLOCK, keys - start), t);
        attend_block(tile, &block, t);
    }
    tile_end(tile, t);
}

static const char *refuse_dims(const ebb_kv_view *view) {
    for (int32_t i = 0; i < view->layer->parts; i++)
        if (view->layer->part[i].dims % VL)
            return VL == 16 ? "it serves head dims that are multiples of 16 only"
                            : "it serves head dims that are multiples of 8 only";
    return NULL;
}

#if defined(__aarch64__)
static const char *refuse(const ebb_kv_view *view) {
    if (view->codec != &kv_codec_float) return "it serves the float KV methods only";
    if (view->prefill.mode != EBB_PREFILL_FULL) return "it serves prefill=full only";
    return refuse_dims(view);
}

const attn_row ISA(attn) = {{ISA_NAME, ISA_NEEDS, 1}, refuse, scratch_bytes, tile_run};
#else
#    include "op/x86/attention_mixed.h"

/* With VNNI the same name, because the same bits. */
#    if defined(__AVX512VNNI__)
const attn_row attn_avx512vnni = {{ISA_NAME, ISA_NEEDS | EBB_CPU_VNNI, 2}, refuse_mixed, scratch_mixed, run_mixed};
#    else
const attn_row ISA(attn) = {{ISA_NAME, ISA_NEEDS, 2}, refuse_mixed, scratch_mixed, run_mixed};
#    endif
#endif

#endif
