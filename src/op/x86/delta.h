/* op/x86/delta.h: the delta-rule step for AVX2 and AVX-512; compiled twice, by delta_avx2.c and delta_avx512.c.
 *
 * Read-out never rebuilds S (maths 2.1): with the packed part S_0 at `base`, records (k_i, d_i) of the tokens since,
 * and G the log decay summed up to this token, x = e^G o k, y = e^G o q;  [P Z] = S_0^T [x y] + sum_i ((e^{G - G_i} o
 * k_i) . [k q]) d_i d = beta (v - P);  o = Z + (k . q) d S_0 is read once, in its stored form: integers are widened in
 * registers, block scales and LeapQuant's smoothing multiply x and y, its column scales multiply P and Z, its
 * compensators are records of age zero (maths 2.2, 2.3). A codec without a reader here is decoded to a tile first.
 * Folding decodes to a tile, adds the window's records and encodes with the codec's own inline code, so packed bytes do
 * not depend on the vector width. */
#include "op/rows.h"
#include "op/x86/simd.h"
#include "state/block.h"
#include "state/leap.h"
#include "state/records.h"

#include <math.h>

extern const ebb_state_codec codec_block, codec_leap;

typedef enum reader { READ_FP32, READ_FP16, READ_BF16, READ_INT8, READ_INT4, READ_LEAP8, READ_LEAP4, READ_TILE } reader;

static inline reader reader_of(const ebb_state_view *s) {
    if (s->codec == &codec_block) return (reader)(int)s->param[BLOCK_PARAM_FORMAT];
    if (s->codec == &codec_leap) return s->param[LEAP_PARAM_BITS] != 0 ? READ_LEAP8 : READ_LEAP4;
    return READ_TILE;
}

/* Scratch of one worker. */
typedef struct scratch {
    float *tile, *tmp, *k, *q, *x, *y, *P, *Z, *suffix, *decay, *coef, *rows;
    uint8_t *packed[2]; /* images of boundaries that a step crosses but has not committed */
} scratch;

static size_t carve(const ebb_state_view *s, uint8_t *at, scratch *r) {
    const size_t dk = (size_t)s->layer->key_dim, dv = (size_t)s->layer->value_dim, p = (size_t)s->window;
    const size_t floats[] = {dk * dv, s->scratch, dk, dk, dk, dk, dv, dv, dk, dk, p * dk, p * dv};
    float **place[] = {&r->tile, &r->tmp, &r->k,      &r->q,     &r->x,    &r->y,
                       &r->P,    &r->Z,   &r->suffix, &r->decay, &r->coef, &r->rows};
    size_t used = 0;
    for (int i = 0; i < COUNT(floats); i++) {
        if (at) *place[i] = (float *)(void *)(at + used);
        used += align_up(floats[i] * sizeof(float), 64);
    }
    for (int i = 0; i < 2; i++) {
        if (at) r->packed[i] = at + used;
        used += align_up(s->packed_head, 64);
    }
    return used;
}

static size_t scratch_bytes(const ebb_state_view *s) { return carve(s, NULL, &(scratch){0}); }

static const char *refuse(const ebb_state_view *s) {
    if (s->layer->key_dim % VL || s->layer->value_dim % VL)
        return VL == 16 ? "key and value dimensions must be multiples of 16"
                        : "key and value dimensions must be multiples of 8";
    return NULL;
}

/* ---- vectors ---- */

static inline vf load_record(const ebb_state_view *s, const void *record, int32_t i) {
    return s->record_type == EBB_FP32 ? vf_load((const float *)record + i) : vf_load_fp16((const uint16_t *)record + i);
}

static inline void store_record(const ebb_state_view *s, void *record, int32_t i, vf a) {
    if (s->record_type == EBB_FP32) vf_store((float *)record + i, a);
    else vf_store_fp16((uint16_t *)record + i, a);
}

static inline float dot(const float *a, const float *b, int32_t n) {
    vf sum = vf_zero();
    for (int32_t i = 0; i < n; i += VL) sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
    return vf_sum(sum);
}

/* ---- reading S_0: P += S_0^T x, Z += S_0^T y over NB vectors of columns from `at` ---- */

static inline __attribute__((always_inline)) void read_columns(reader kind, int NB, const uint8_t *packed, int32_t dk,
                                                               int32_t dv, int32_t at, const float *x, const float *y,
                                                               const float *scales, float *P, float *Z) {
    vf p[4], z[4];
    for (int b = 0; b < NB; b++) p[b] = z[b] = vf_zero();
    const int32_t groups = (dv + BLOCK_GROUP - 1) / BLOCK_GROUP;
    for (int32_t u = 0; u < dk; u++) {
        const size_t row = (size_t)u * (size_t)dv;
        vf xu = vf_set1(x[u]), yu = vf_set1(y[u]);
        for (int b = 0; b < NB; b++) {
            const int32_t v = at + b * VL;
            vf e;
            switch (kind) {
            case READ_FP16:
                e = vf_load_fp16((const uint16_t *)(const void *)packed + row + (size_t)v);
                break;
            case READ_BF16:
                e = vf_load_bf16((const uint16_t *)(const void *)packed + row + (size_t)v);
                break;
            case READ_INT8:
            case READ_LEAP8:
                e = vf_load_i8((const int8_t *)packed + row + (size_t)v);
                break;
            case READ_INT4:
            case READ_LEAP4:
                e = vf_load_i4(packed + (row + (size_t)v) / 2);
                break;
            default:
                e = vf_load((const float *)(const void *)packed + row + (size_t)v);
                break;
            }
            if (kind == READ_INT8 || kind == READ_INT4) e = vf_mul(e, vf_set1(scales[u * groups + v / BLOCK_GROUP]));
            p[b] = vf_fma(e, xu, p[b]);
            z[b] = vf_fma(e, yu, z[b]);
        }
    }
    for (int b = 0; b < NB; b++) {
        const int32_t v = at + b * VL;
        vf s = kind == READ_LEAP8 || kind == READ_LEAP4 ? vf_load(scales + v) : vf_set1(1.0f);
        vf_store(P + v, vf_fma(s, p[b], vf_load(P + v)));
        vf_store(Z + v, vf_fma(s, z[b], vf_load(Z + v)));
    }
}

static inline __attribute__((always_inline)) void read_all(reader kind, const uint8_t *packed, int32_t dk, int32_t dv,
                                                           const float *x, const float *y, const float *scales,
                                                           float *P, float *Z) {
    int32_t at = 0;
    for (; at + 4 * VL <= dv; at += 4 * VL) read_columns(kind, 4, packed, dk, dv, at, x, y, scales, P, Z);
    for (; at < dv; at += VL) read_columns(kind, 1, packed, dk, dv, at, x, y, scales, P, Z);
}

/* The compensators, then the smoothed residual: x and y are multiplied by c in place. */
static void read_leap(const ebb_state_view *s, const uint8_t *packed, float *x, float *y, float *P, float *Z) {
    const leap_shape p = leap_shape_of(s->layer, s->param);
    const uint16_t *U = (const uint16_t *)(const void *)(packed + p.u_at),
                   *W = (const uint16_t *)(const void *)(packed + p.w_at);
    for (int32_t m = 0; m < p.r; m++, U += p.rows, W += p.columns) {
        vf a = vf_zero(), b = vf_zero();
        for (int32_t u = 0; u < p.rows; u += VL) {
            vf e = vf_load_fp16(U + u);
            a = vf_fma(e, vf_load(x + u), a);
            b = vf_fma(e, vf_load(y + u), b);
        }
        a = vf_set1(vf_sum(a)), b = vf_set1(vf_sum(b));
        for (int32_t v = 0; v < p.columns; v += VL) {
            vf e = vf_load_fp16(W + v);
            vf_store(P + v, vf_fma(a, e, vf_load(P + v)));
            vf_store(Z + v, vf_fma(b, e, vf_load(Z + v)));
        }
    }
    const float *c = (const float *)(const void *)(packed + p.c_at),
                *scales = (const float *)(const void *)(packed + p.s_at);
    for (int32_t u = 0; u < p.rows; u += VL) {
        vf_store(x + u, vf_mul(vf_load(c + u), vf_load(x + u)));
        vf_store(y + u, vf_mul(vf_load(c + u), vf_load(y + u)));
    }
    if (p.bits == 8) read_all(READ_LEAP8, packed, p.rows, p.columns, x, y, scales, P, Z);
    else read_all(READ_LEAP4, packed, p.rows, p.columns, x, y, scales, P, Z);
}

/* P += S_0^T x, Z += S_0^T y for the image `packed` (or the tile it was decoded to). x and y are spent. */
static void read_packed(const ebb_state_view *s, const uint8_t *packed, const scratch *r) {
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim;
    const float *scales = NULL;
    const reader kind = reader_of(s);
    if (kind == READ_INT8 || kind == READ_INT4)
        scales = (const float *)(const void *)(packed + block_shape_of(s->layer, s->param).scales_at);
    switch (kind) {
    case READ_FP32:
        read_all(READ_FP32, packed, dk, dv, r->x, r->y, scales, r->P, r->Z);
        break;
    case READ_FP16:
        read_all(READ_FP16, packed, dk, dv, r->x, r->y, scales, r->P, r->Z);
        break;
    case READ_BF16:
        read_all(READ_BF16, packed, dk, dv, r->x, r->y, scales, r->P, r->Z);
        break;
    case READ_INT8:
        read_all(READ_INT8, packed, dk, dv, r->x, r->y, scales, r->P, r->Z);
        break;
    case READ_INT4:
        read_all(READ_INT4, packed, dk, dv, r->x, r->y, scales, r->P, r->Z);
        break;
    case READ_LEAP8:
    case READ_LEAP4:
        read_leap(s, packed, r->x, r->y, r->P, r->Z);
        break;
    default:
        read_all(READ_FP32, (const uint8_t *)r->tile, dk, dv, r->x, r->y, scales, r->P, r->Z);
        break;
    }
}

/* ---- folding ---- */

static void decode_tile(const ebb_state_view *s, int32_t head, const uint8_t *packed, float *S) {
    if (s->codec == &codec_block) {
        block_shape p = block_shape_of(s->layer, s->param);
        block_decode(&p, packed, S);
    } else if (s->codec == &codec_leap) {
        leap_shape p = leap_shape_of(s->layer, s->param);
        leap_decode(&p, packed, S);
    } else {
        ebb_head h = head_of(s, head);
        s->codec->decode(&h, packed, S);
    }
}

static void encode_tile(const ebb_state_view *s, int32_t head, const float *S, const float *decay, const void *old,
                        uint8_t *packed, float *tmp) {
    ebb_head h = head_of(s, head);
    if (s->codec == &codec_block) {
        block_shape p = block_shape_of(s->layer, s->param);
        block_encode(&p, S, packed);
    } else if (s->codec == &codec_leap) {
        leap_shape p = leap_shape_of(s->layer, s->param);
        leap_encode(&p, h.rng_key, S, old, packed, tmp);
    } else s->codec->encode(&h, S, decay, old, packed, tmp);
}

/* S <- diag(e^G) S + sum_i diag(e^{G - G_i}) k_i d_i^T for the n <= window records from `base`; decay <- e^G. */
static void add_records(const ebb_state_view *s, int32_t slot, int32_t head, int64_t base, int32_t n, float *S,
                        const scratch *r) {
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim,
                  key_head = head / (s->layer->heads / s->layer->key_heads);
    const bool kda = s->layer->kind == EBB_KDA;
    vf total = vf_zero(); /* GDN: the log decay after record i, in every lane */
    if (kda) memset(r->suffix, 0, (size_t)dk * sizeof(float));
    for (int32_t i = n - 1; i >= 0; i--) {
        const void *k = key_record(s, slot, key_head, base + i), *d = delta_record(s, slot, head, base + i);
        const float *g = decay_record(s, slot, head, base + i);
        vf e = vf_exp(total);
        for (int32_t u = 0; u < dk; u += VL) {
            if (kda) e = vf_exp(vf_load(r->suffix + u));
            vf_store(r->coef + i * dk + u, vf_mul(e, load_record(s, k, u)));
            if (kda) vf_store(r->suffix + u, vf_add(vf_load(r->suffix + u), vf_load(g + u)));
        }
        for (int32_t v = 0; v < dv; v += VL) vf_store(r->rows + i * dv + v, load_record(s, d, v));
        if (!kda) total = vf_add(total, vf_set1(*g));
    }
    for (int32_t u = 0; u < dk; u += VL) vf_store(r->decay + u, vf_exp(kda ? vf_load(r->suffix + u) : total));
    for (int32_t u = 0; u < dk; u++) {
        float *row = S + (int64_t)u * dv;
        vf a = vf_set1(r->decay[u]);
        for (int32_t v = 0; v < dv; v += VL) {
            vf sum = vf_mul(a, vf_load(row + v));
            for (int32_t i = 0; i < n; i++)
                sum = vf_fma(vf_set1(r->coef[i * dk + u]), vf_load(r->rows + i * dv + v), sum);
            vf_store(row + v, sum);
        }
    }
}

/* The image of the boundary base + window, from the image at base; `to` may be `from`. FP32 images are their own tile.
 */
static void fold(const ebb_state_view *s, int32_t slot, int32_t head, int64_t base, const uint8_t *from, uint8_t *to,
                 const scratch *r) {
    if (reader_of(s) == READ_FP32) {
        if (to != from) memcpy(to, from, s->packed_head);
        add_records(s, slot, head, base, s->window, (float *)(void *)to, r);
        return;
    }
    decode_tile(s, head, from, r->tile);
    add_records(s, slot, head, base, s->window, r->tile, r);
    encode_tile(s, head, r->tile, r->decay, from, to, r->tmp);
}

static void fold_due(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const scratch *r) {
    uint8_t *packed = packed_of(s, slot, head);
    int64_t *base = base_of(s, slot, head);
    for (; pos - *base >= s->window; *base += s->window) fold(s, slot, head, *base, packed, packed, r);
}

static void start_fresh(const ebb_state_view *s, int32_t slot, int32_t head, const scratch *r) {
    memset(r->tile, 0, (size_t)s->layer->key_dim * (size_t)s->layer->value_dim * sizeof(float));
    encode_tile(s, head, r->tile, NULL, NULL, packed_of(s, slot, head), r->tmp);
    *base_of(s, slot, head) = 0;
}

/* ---- one token ---- */

/* P, Z += records base .. pos-1; x, y <- e^G o k, e^G o q. Newest record first, so that the decay from it to now is a
 * running sum that begins with this token's own g. */
static void read_records(const ebb_state_view *s, int32_t slot, int32_t head, int32_t key_head, int64_t base,
                         int64_t pos, const float *g, const scratch *r) {
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim;
    const bool kda = s->layer->kind == EBB_KDA;
    vf total = vf_set1(g[0]);
    if (kda) memcpy(r->suffix, g, (size_t)dk * sizeof *g);
    for (int64_t t = pos - 1; t >= base; t--) {
        const void *k = key_record(s, slot, key_head, t), *d = delta_record(s, slot, head, t);
        const float *gt = decay_record(s, slot, head, t);
        vf a = vf_zero(), b = vf_zero();
        for (int32_t u = 0; u < dk; u += VL) {
            vf e = load_record(s, k, u);
            if (kda) {
                vf sum = vf_load(r->suffix + u);
                e = vf_mul(e, vf_exp(sum));
                vf_store(r->suffix + u, vf_add(sum, vf_load(gt + u)));
            }
            a = vf_fma(e, vf_load(r->k + u), a);
            b = vf_fma(e, vf_load(r->q + u), b);
        }
        vf age = kda ? vf_set1(1.0f) : vf_exp(total);
        a = vf_mul(age, vf_set1(vf_sum(a))), b = vf_mul(age, vf_set1(vf_sum(b)));
        if (!kda) total = vf_add(total, vf_set1(*gt));
        for (int32_t v = 0; v < dv; v += VL) {
            vf e = load_record(s, d, v);
            vf_store(r->P + v, vf_fma(a, e, vf_load(r->P + v)));
            vf_store(r->Z + v, vf_fma(b, e, vf_load(r->Z + v)));
        }
    }
    for (int32_t u = 0; u < dk; u += VL) {
        vf e = vf_exp(kda ? vf_load(r->suffix + u) : total);
        vf_store(r->x + u, vf_mul(e, vf_load(r->k + u)));
        vf_store(r->y + u, vf_mul(e, vf_load(r->q + u)));
    }
}

static void token(const delta_core *c, int32_t slot, int32_t head, int32_t key_head, const uint8_t *packed,
                  int64_t base, int64_t pos, int64_t row, const scratch *r) {
    const ebb_state_view *s = c->s;
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim, ng = s->layer->kind == EBB_KDA ? dk : 1;
    const float *g = c->g + row * c->g_stride + (int64_t)head * ng, *v = c->v + row * c->v_stride + (int64_t)head * dv;
    float *o = c->out + row * c->out_stride + (int64_t)head * dv;
    memset(r->P, 0, (size_t)dv * sizeof(float));
    memset(r->Z, 0, (size_t)dv * sizeof(float));
    read_records(s, slot, head, key_head, base, pos, g, r);
    read_packed(s, packed, r);
    vf beta = vf_set1(c->beta[row * c->beta_stride + head]), kq = vf_set1(dot(r->k, r->q, dk));
    void *delta = delta_record(s, slot, head, pos);
    for (int32_t i = 0; i < dv; i += VL) {
        vf d = vf_mul(beta, vf_sub(vf_load(v + i), vf_load(r->P + i)));
        vf_store(o + i, vf_fma(kq, d, vf_load(r->Z + i)));
        store_record(s, delta, i, d);
    }
    memcpy(decay_record(s, slot, head, pos), g, (size_t)ng * sizeof *g);
}

/* All tokens of one value head. Boundaries inside the step are crossed on images in scratch: nothing is committed. */
static void head_tokens(const delta_core *c, int32_t seq, int32_t key_head, int32_t head, const scratch *r) {
    const ebb_state_view *s = c->s;
    const int32_t slot = c->b->slot[seq], dk = s->layer->key_dim;
    const vf scale = vf_set1(1.0f / sqrtf((float)dk));
    const int64_t pos = c->b->pos[seq], first = c->b->cu[seq], n = c->b->cu[seq + 1] - first;
    const bool tile = reader_of(s) == READ_TILE;
    const uint8_t *packed = packed_of(s, slot, head);
    int64_t base = *base_of(s, slot, head);
    if (tile) decode_tile(s, head, packed, r->tile);
    for (int64_t i = 0; i < n; i++) {
        if (pos + i - base >= s->window) {
            uint8_t *image = r->packed[packed == r->packed[0]];
            fold(s, slot, head, base, packed, image, r);
            packed = image;
            base += s->window;
            if (tile) decode_tile(s, head, packed, r->tile);
        }
        const float *k = c->k + (first + i) * c->k_stride + (int64_t)key_head * dk;
        const float *q = c->q + (first + i) * c->q_stride + (int64_t)key_head * dk;
        for (int32_t u = 0; u < dk; u += VL) {
            vf_store(r->k + u, vf_load(k + u));
            vf_store(r->q + u, vf_mul(scale, vf_load(q + u)));
        }
        token(c, slot, head, key_head, packed, base, pos + i, first + i, r);
    }
}

static void step(const delta_core *c, int32_t seq, int32_t key_head, void *memory) {
    const ebb_state_view *s = c->s;
    const int32_t group = s->layer->heads / s->layer->key_heads, slot = c->b->slot[seq], dk = s->layer->key_dim;
    const int64_t pos = c->b->pos[seq], first = c->b->cu[seq], n = c->b->cu[seq + 1] - first;
    scratch r;
    carve(s, memory, &r);
    for (int32_t h = key_head * group; h < (key_head + 1) * group; h++) {
        if (pos == 0) start_fresh(s, slot, h, &r);
        else fold_due(s, slot, h, pos, &r);
    }
    for (int64_t i = 0; i < n; i++) {
        void *record = key_record(s, slot, key_head, pos + i);
        const float *k = c->k + (first + i) * c->k_stride + (int64_t)key_head * dk;
        for (int32_t u = 0; u < dk; u += VL) store_record(s, record, u, vf_load(k + u));
    }
    for (int32_t h = key_head * group; h < (key_head + 1) * group; h++) head_tokens(c, seq, key_head, h, &r);
}

static void pack(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const float *S, const void *old,
                 void *memory) {
    scratch r;
    carve(s, memory, &r);
    encode_tile(s, head, S, NULL, old, packed_of(s, slot, head), r.tmp);
    *base_of(s, slot, head) = pos;
}

static void unpack(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, float *S, void *memory) {
    scratch r;
    carve(s, memory, &r);
    fold_due(s, slot, head, pos, &r);
    int64_t base = *base_of(s, slot, head);
    decode_tile(s, head, packed_of(s, slot, head), S);
    if (pos > base) add_records(s, slot, head, base, (int32_t)(pos - base), S, &r);
}

const delta_row ISA(delta) = {{ISA_NAME, ISA_NEEDS, 1}, refuse, scratch_bytes, step, pack, unpack};
