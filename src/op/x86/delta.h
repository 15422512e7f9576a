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
#include "state/damp.h"
#include "state/leap.h"
#include "state/records.h"

#include <math.h>

extern const ebb_state_codec codec_block, codec_leap, codec_mixed, codec_damp, codec_reorder;

/* How codes are widened, and whose scales they have. The first six as BLOCK_FORMATS, with groups of 32 along the row
 * where there are any; the next five as LEAP_BITS, integers with a scale per column or none. */
typedef enum reader {
    READ_FP32,
    READ_FP16,
    READ_BF16,
    READ_FP8,
    READ_INT8,
    READ_INT4,
    READ_LEAP4,
    READ_LEAP5,
    READ_LEAP6,
    READ_LEAP8,
    READ_LEAP12,
    READ_LEAP_MIX, /* of a head one of these */
    READ_DAMP,     /* 16-bit rows, then integers */
    READ_TILE
} reader;

static inline reader block_reader(const ebb_state_view *s) {
    const block_shape p = block_shape_of(s->layer, s->param);
    if (p.bits == 6 || p.bits == 5) {
        if (p.group == BLOCK_OF_32) return READ_TILE;
        return p.bits == 6 ? READ_LEAP6 : READ_LEAP5;
    }
    if (p.group == BLOCK_OF_32) return (reader)p.format;
    return p.bits == 8 ? READ_LEAP8 : READ_LEAP4;
}

static inline reader reader_of(const ebb_state_view *s) {
    if (s->codec == &codec_block) return block_reader(s);
    if (s->codec == &codec_leap) return (reader)(READ_LEAP4 + (int)s->param[LEAP_PARAM_BITS]);
    if (s->codec == &codec_mixed) return READ_LEAP_MIX;
    if (s->codec == &codec_damp) return s->param[DAMP_PARAM_LOW] == DAMP_AFFINE8 ? READ_DAMP : READ_TILE;
    if (s->codec == &codec_reorder) return READ_DAMP;
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
    if (s->layer->kind == EBB_ERASE) return "the " ISA_NAME " delta kernel serves GDN and KDA layers";
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

static inline __attribute__((always_inline)) bool has_groups(reader kind) {
    return kind == READ_FP8 || kind == READ_INT8 || kind == READ_INT4;
}
static inline __attribute__((always_inline)) bool is_leap(reader kind) {
    return kind >= READ_LEAP4 && kind <= READ_LEAP12;
}

/* One vector of the stored matrix, element i of its plane of codes; `high` is the plane of the upper bits, if any. */
static inline __attribute__((always_inline)) vf load_codes(reader kind, const uint8_t *packed, const uint8_t *high,
                                                           size_t i) {
    switch (kind) {
    case READ_FP16:
        return vf_load_fp16((const uint16_t *)(const void *)packed + i);
    case READ_BF16:
        return vf_load_bf16((const uint16_t *)(const void *)packed + i);
    case READ_FP8:
        return vf_load_fp8(packed + i);
    case READ_INT8:
    case READ_LEAP8:
        return vf_load_i8((const int8_t *)packed + i);
    case READ_INT4:
    case READ_LEAP4:
        return vf_load_i4(packed + i / 2);
    case READ_LEAP5:
        return vf_load_i5(packed + i / 2, high + i / 8);
    case READ_LEAP6:
        return vf_load_i6(packed + i / 2, high + i / 4);
    case READ_LEAP12:
        return vf_load_i12(packed + i / 2, high + i);
    default:
        return vf_load((const float *)(const void *)packed + i);
    }
}

static inline __attribute__((always_inline)) void read_columns(reader kind, int NB, const uint8_t *packed,
                                                               const uint8_t *high, int32_t dk, int32_t dv, int32_t at,
                                                               const float *x, const float *y, const float *scales,
                                                               float *P, float *Z) {
    vf p[4], z[4];
    for (int b = 0; b < NB; b++) p[b] = z[b] = vf_zero();
    const int32_t groups = (dv + BLOCK_GROUP - 1) / BLOCK_GROUP;
    for (int32_t u = 0; u < dk; u++) {
        const size_t row = (size_t)u * (size_t)dv;
        vf xu = vf_set1(x[u]), yu = vf_set1(y[u]);
        for (int b = 0; b < NB; b++) {
            const int32_t v = at + b * VL;
            vf e = load_codes(kind, packed, high, row + (size_t)v);
            if (has_groups(kind)) e = vf_mul(e, vf_set1(scales[u * groups + v / BLOCK_GROUP]));
            p[b] = vf_fma(e, xu, p[b]);
            z[b] = vf_fma(e, yu, z[b]);
        }
    }
    for (int b = 0; b < NB; b++) {
        const int32_t v = at + b * VL;
        vf s = is_leap(kind) && scales ? vf_load(scales + v) : vf_set1(1.0f);
        vf_store(P + v, vf_fma(s, p[b], vf_load(P + v)));
        vf_store(Z + v, vf_fma(s, z[b], vf_load(Z + v)));
    }
}

static inline __attribute__((always_inline)) void read_all(reader kind, const uint8_t *packed, const uint8_t *high,
                                                           int32_t dk, int32_t dv, const float *x, const float *y,
                                                           const float *scales, float *P, float *Z) {
    int32_t at = 0;
    for (; at + 4 * VL <= dv; at += 4 * VL) read_columns(kind, 4, packed, high, dk, dv, at, x, y, scales, P, Z);
    for (; at < dv; at += VL) read_columns(kind, 1, packed, high, dk, dv, at, x, y, scales, P, Z);
}

/* P += codes^T x, Z += codes^T y, with what `scales` says of the kind. One copy of each, for all that read: they are
 * most of what this file takes to compile. */
static __attribute__((noinline)) void read_codes(reader kind, const uint8_t *packed, const uint8_t *high, int32_t dk,
                                                 int32_t dv, const float *x, const float *y, const float *scales,
                                                 float *P, float *Z) {
    switch (kind) {
    case READ_FP16:
        read_all(READ_FP16, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_BF16:
        read_all(READ_BF16, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_FP8:
        read_all(READ_FP8, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_INT8:
        read_all(READ_INT8, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_INT4:
        read_all(READ_INT4, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP12:
        read_all(READ_LEAP12, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP8:
        read_all(READ_LEAP8, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP6:
        read_all(READ_LEAP6, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP5:
        read_all(READ_LEAP5, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    case READ_LEAP4:
        read_all(READ_LEAP4, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    default:
        read_all(READ_FP32, packed, high, dk, dv, x, y, scales, P, Z);
        break;
    }
}

/* FP32 scales of a block image, widened into `room` where they are stored in 16 bits. */
static const float *block_scales(const block_shape *p, const uint8_t *packed, float *room) {
    const uint8_t *at = packed + p->scales_at;
    if (p->scale == BLOCK_SCALE_FP32) return (const float *)(const void *)at;
    const uint16_t *half = (const uint16_t *)(const void *)at;
    for (int32_t i = 0; i < p->scales; i += VL) /* as many as rows or columns, or a multiple of those */
        vf_store(room + i, p->scale == BLOCK_SCALE_FP16 ? vf_load_fp16(half + i) : vf_load_bf16(half + i));
    return room;
}

/* Scales of rows multiply x and y, those of columns P and Z. */
static void read_block(const ebb_state_view *s, const uint8_t *packed, const scratch *r) {
    const block_shape p = block_shape_of(s->layer, s->param);
    const float *scales = p.scales ? block_scales(&p, packed, r->tile) : NULL;
    for (int32_t u = 0; p.group == BLOCK_OF_ROW && u < p.rows; u++) r->x[u] *= scales[u], r->y[u] *= scales[u];
    for (int32_t u = 0; p.format == BLOCK_FP8 && u < p.rows; u++)
        r->x[u] *= 256, r->y[u] *= 256; /* vf_load_fp8 gives 2^-8 */
    read_codes(block_reader(s), packed, packed + p.high_at, p.rows, p.columns, r->x, r->y,
               p.group == BLOCK_OF_ROW ? NULL : scales, r->P, r->Z);
}

static inline bool is_leap_codec(const ebb_state_view *s) {
    return s->codec == &codec_leap || s->codec == &codec_mixed;
}

static inline leap_shape leap_of(const ebb_state_view *s, int32_t head) {
    const ebb_head h = head_of(s, head);
    return leap_shape_of(s->layer, s->codec == &codec_mixed ? leap_mix_form(&h) : leap_form_of(s->param));
}

/* P, Z += (diag(gamma) U^T W)^T [x y]. */
static void read_compensators(const leap_shape *p, const uint8_t *packed, const float *x, const float *y, float *P,
                              float *Z) {
    const uint16_t *U = (const uint16_t *)(const void *)(packed + p->u_at),
                   *W = (const uint16_t *)(const void *)(packed + p->w_at);
    const float *gamma = (const float *)(const void *)(packed + p->gamma_at);
    for (int32_t m = 0; m < p->r; m++, U += p->rows, W += p->columns) {
        vf a = vf_zero(), b = vf_zero();
        for (int32_t u = 0; u < p->rows; u += VL) {
            vf e = vf_load_fp16(U + u);
            if (p->gammas) e = vf_mul(e, p->gammas > 1 ? vf_load(gamma + u) : vf_set1(*gamma));
            a = vf_fma(e, vf_load(x + u), a);
            b = vf_fma(e, vf_load(y + u), b);
        }
        a = vf_set1(vf_sum(a)), b = vf_set1(vf_sum(b));
        for (int32_t v = 0; v < p->columns; v += VL) {
            vf e = vf_load_fp16(W + v);
            vf_store(P + v, vf_fma(a, e, vf_load(P + v)));
            vf_store(Z + v, vf_fma(b, e, vf_load(Z + v)));
        }
    }
}

/* The compensators, then the residual: x and y are rotated or multiplied by c in place. */
static void read_leap(const ebb_state_view *s, int32_t head, const uint8_t *packed, const scratch *r) {
    const leap_shape p = leap_of(s, head);
    const float *c = (const float *)(const void *)(packed + p.c_at),
                *scales = (const float *)(const void *)(packed + p.s_at);
    read_compensators(&p, packed, r->x, r->y, r->P, r->Z);
    if (p.form.rotate) leap_rotate_key(&p, r->x), leap_rotate_key(&p, r->y);
    for (int32_t u = 0; !p.form.rotate && u < p.rows; u += VL) {
        vf_store(r->x + u, vf_mul(vf_load(c + u), vf_load(r->x + u)));
        vf_store(r->y + u, vf_mul(vf_load(c + u), vf_load(r->y + u)));
    }
    const int bits = p.form.bits;
    const reader kind = bits == 12  ? READ_LEAP12
                        : bits == 8 ? READ_LEAP8
                        : bits == 6 ? READ_LEAP6
                        : bits == 5 ? READ_LEAP5
                                    : READ_LEAP4;
    read_codes(kind, packed, packed + p.high_at, p.rows, p.columns, r->x, r->y, scales, r->P, r->Z);
}

/* NB vectors of columns from `at`, all in one group, of codec_damp's integers: P = (lower rows)^T x, Z = (lower rows)^T
 * y, before the transform. */
static inline __attribute__((always_inline)) void read_affine(int NB, const damp_shape *p, const uint8_t *packed,
                                                              int32_t at, const float *x, const float *y, float *P,
                                                              float *Z) {
    const uint8_t *codes = packed + p->codes_at + at, *pairs = packed + p->meta_at + at / BLOCK_GROUP * 4;
    vf a[4], b[4];
    for (int i = 0; i < NB; i++) a[i] = b[i] = vf_zero();
    for (int32_t u = p->high; u < p->rows; u++, codes += p->code_row, pairs += p->meta_row) {
        uint16_t half[2];
        memcpy(half, pairs, sizeof half);
        const float s = half_to_float(half[0]);
        const vf zero = vf_set1(half_to_float(half[1])), sx = vf_set1(s * x[u]), sy = vf_set1(s * y[u]);
        for (int i = 0; i < NB; i++) {
            const vf e = vf_sub(vf_load_u8(codes + i * VL), zero);
            a[i] = vf_fma(e, sx, a[i]);
            b[i] = vf_fma(e, sy, b[i]);
        }
    }
    for (int i = 0; i < NB; i++) {
        vf_store(P + at + i * VL, a[i]);
        vf_store(Z + at + i * VL, b[i]);
    }
}

/* P, Z += H_32 (lower rows)^T [x y]: the transform acts on columns, so it may follow the sums over rows. */
static void read_affine_rows(const damp_shape *p, const uint8_t *packed, const float *x, const float *y, float *low_P,
                             float *low_Z, float *P, float *Z) {
    int32_t at = 0;
    for (; at + BLOCK_GROUP <= p->columns; at += BLOCK_GROUP) {
        read_affine(BLOCK_GROUP / VL, p, packed, at, x, y, low_P, low_Z);
        hadamard(low_P + at, BLOCK_GROUP);
        hadamard(low_Z + at, BLOCK_GROUP);
    }
    const int32_t rest = at;
    for (; at < p->columns; at += VL) read_affine(1, p, packed, at, x, y, low_P, low_Z);
    if (rest < at) {
        h32_blocks(low_P + rest, at - rest);
        h32_blocks(low_Z + rest, at - rest);
    }
    for (int32_t v = 0; v < p->columns; v += VL) {
        vf_store(P + v, vf_add(vf_load(low_P + v), vf_load(P + v)));
        vf_store(Z + v, vf_add(vf_load(low_Z + v), vf_load(Z + v)));
    }
}

/* The protected rows, then the lower ones, with x and y in stored order (in the tile, which nobody else needs now).
 * With a reordered value axis P and Z are gathered in stored order and put in their places, scaled, at the end. */
static void read_damp(const ebb_state_view *s, int32_t head, const uint8_t *packed, const scratch *r) {
    const ebb_head h = head_of(s, head);
    const damp_shape p = damp_shape_of(&h, s->codec == &codec_reorder);
    const int32_t n = p.columns;
    float *x = r->tile, *y = x + p.rows, *P = y + p.rows, *Z = P + n;
    for (int32_t i = 0; i < p.rows; i++) {
        const int32_t u = p.key_order ? p.key_order[i] : i;
        x[i] = r->x[u], y[i] = r->y[u];
    }
    float *to_P = p.value_order ? P : r->P, *to_Z = p.value_order ? Z : r->Z;
    if (p.value_order) memset(P, 0, 2 * (size_t)n * sizeof *P);
    const reader high = p.high_format == DAMP_BF16 ? READ_BF16 : READ_FP16;
    read_codes(high, packed, NULL, p.high, n, x, y, NULL, to_P, to_Z);
    const uint8_t *codes = packed + p.codes_at;
    const float *scales = (const float *)(const void *)(packed + p.meta_at);
    const int32_t low = p.rows - p.high;
    if (p.low == DAMP_AFFINE8) read_affine_rows(&p, packed, x, y, P, Z, r->P, r->Z);
    else {
        const reader kind = p.low == DAMP_INT8 ? READ_INT8 : READ_INT4;
        read_codes(kind, codes, NULL, low, n, x + p.high, y + p.high, scales, P, Z);
    }
    for (int32_t j = 0; p.value_order && j < n; j++) {
        const int32_t v = p.value_order[j];
        r->P[v] += p.value_scale[v] * P[j], r->Z[v] += p.value_scale[v] * Z[j];
    }
}

/* P += S_0^T x, Z += S_0^T y for the image `packed` (or the tile it was decoded to). x and y are spent. */
static void read_packed(const ebb_state_view *s, int32_t head, const uint8_t *packed, const scratch *r) {
    const reader kind = reader_of(s);
    if (kind == READ_TILE)
        read_codes(READ_FP32, (const uint8_t *)r->tile, NULL, s->layer->key_dim, s->layer->value_dim, r->x, r->y, NULL,
                   r->P, r->Z);
    else if (kind == READ_DAMP) read_damp(s, head, packed, r);
    else if (is_leap_codec(s)) read_leap(s, head, packed, r);
    else read_block(s, packed, r);
}

/* ---- folding ---- */

static inline bool is_damp(const ebb_state_view *s) { return s->codec == &codec_damp || s->codec == &codec_reorder; }

static void decode_tile(const ebb_state_view *s, int32_t head, const uint8_t *packed, float *S) {
    const block_shape block = s->codec == &codec_block ? block_shape_of(s->layer, s->param) : (block_shape){0};
    if (block.plain_bytes) block_decode(&block, packed, S);
    else if (is_leap_codec(s)) {
        leap_shape p = leap_of(s, head);
        leap_decode(&p, packed, S);
    } else if (is_damp(s)) {
        ebb_head h = head_of(s, head);
        damp_shape p = damp_shape_of(&h, s->codec == &codec_reorder);
        damp_decode(&p, packed, S);
    } else {
        ebb_head h = head_of(s, head);
        s->codec->decode(&h, packed, S);
    }
}

/* The image at position `pos`. */
static void encode_tile(const ebb_state_view *s, int32_t head, int64_t pos, const float *S, const float *decay,
                        const void *old, uint8_t *packed, float *tmp) {
    ebb_head h = head_of(s, head);
    h.pos = pos;
    const block_shape block = s->codec == &codec_block ? block_shape_of(s->layer, s->param) : (block_shape){0};
    if (block.plain) block_encode(&block, S, packed);
    else if (is_leap_codec(s)) {
        leap_shape p = leap_of(s, head);
        leap_encode(&p, h.rng_key, S, decay, old, packed, tmp);
    } else if (is_damp(s)) {
        damp_shape p = damp_shape_of(&h, s->codec == &codec_reorder);
        damp_encode(&p, draw_key(&h), S, packed);
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
    encode_tile(s, head, base + s->window, r->tile, r->decay, from, to, r->tmp);
}

static void fold_due(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const scratch *r) {
    uint8_t *packed = packed_of(s, slot, head);
    int64_t *base = base_of(s, slot, head);
    for (; pos - *base >= s->window; *base += s->window) fold(s, slot, head, *base, packed, packed, r);
}

static void start_fresh(const ebb_state_view *s, int32_t slot, int32_t head, const scratch *r) {
    memset(r->tile, 0, (size_t)s->layer->key_dim * (size_t)s->layer->value_dim * sizeof(float));
    encode_tile(s, head, 0, r->tile, NULL, NULL, packed_of(s, slot, head), r->tmp);
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
    read_packed(s, head, packed, r);
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
    encode_tile(s, head, pos, S, NULL, old, packed_of(s, slot, head), r.tmp);
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
