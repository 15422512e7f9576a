/* op/x86/delta.h: the delta-rule step for AVX2, AVX-512 and NEON; compiled by delta_avx2.c, delta_avx512.c and
 * op/arm/delta_neon.c.
 *
 * Read-out never rebuilds S (maths 2.1): with the packed part S_0 at `base`, records (k_i, d_i) of the tokens since,
 * and G the log decay summed up to this token, x = e^G o k, y = e^G o q;  [P Z] = S_0^T [x y] + sum_i ((e^{G - G_i} o
 * k_i) . [k q]) d_i d = beta (v - P);  o = Z + (k . q) d S_0 is read once, in its stored form: integers are widened in
 * registers, block scales and LeapQuant's smoothing multiply x and y, its column scales multiply P and Z, its
 * compensators are records of age zero (maths 2.2, 2.3). A codec without a reader here is decoded to a tile first.
 * Folding decodes to a tile, adds the window's records and encodes with the codec's own inline code, so packed bytes do
 * not depend on the vector width. */
#include "op/x86/delta_through.h"

static size_t scratch_bytes(const ebb_state_view *s) { return carve(s, NULL, &(scratch){0}); }

static const char *refuse(const ebb_state_view *s) {
    if (s->layer->kind == EBB_ERASE) return "the " ISA_NAME " delta kernel serves GDN and KDA layers";
    if (s->layer->key_dim % VL || s->layer->value_dim % VL)
        return VL == 16 ? "key and value dimensions must be multiples of 16"
                        : "key and value dimensions must be multiples of 8";
    return NULL;
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

/* ---- one token ---- */

static void load_key(const delta_core *c, int32_t key_head, int64_t row, const scratch *r) {
    const int32_t dk = c->s->layer->key_dim;
    const vf scale = vf_set1(1.0f / sqrtf((float)dk));
    const float *k = c->k + row * c->k_stride + (int64_t)key_head * dk;
    const float *q = c->q + row * c->q_stride + (int64_t)key_head * dk;
    for (int32_t u = 0; u < dk; u += VL) {
        vf_store(r->k + u, vf_load(k + u));
        vf_store(r->q + u, vf_mul(scale, vf_load(q + u)));
    }
}

/* What a token does with P and Z: its output, and its record but for the key. */
static void finish_token(const delta_core *c, int32_t slot, int32_t head, int64_t pos, int64_t row, const float *g,
                         const scratch *r) {
    const ebb_state_view *s = c->s;
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim;
    const float *v = c->v + row * c->v_stride + (int64_t)head * dv;
    float *o = c->out + row * c->out_stride + (int64_t)head * dv;
    vf beta = vf_set1(c->beta[row * c->beta_stride + head]), kq = vf_set1(dot(r->k, r->q, dk));
    void *delta = delta_record(s, slot, head, pos);
    for (int32_t i = 0; i < dv; i += VL) {
        vf d = vf_mul(beta, vf_sub(vf_load(v + i), vf_load(r->P + i)));
        vf_store(o + i, vf_fma(kq, d, vf_load(r->Z + i)));
        store_record(s, delta, i, d);
    }
    memcpy(decay_record(s, slot, head, pos), g, (size_t)gates_of(s->layer) * sizeof *g);
}

static const float *gates(const delta_core *c, int32_t head, int64_t row) {
    return c->g + row * c->g_stride + (int64_t)head * gates_of(c->s->layer);
}

/* All tokens of one value head. Boundaries inside the step are crossed on images in scratch: nothing is committed. */
static void head_tokens(const delta_core *c, int32_t seq, int32_t key_head, int32_t head, const scratch *r) {
    const ebb_state_view *s = c->s;
    const int32_t slot = c->b->slot[seq];
    const int64_t pos = c->b->pos[seq], first = c->b->cu[seq], n = c->b->cu[seq + 1] - first;
    const bool tile = reader_of(s) == READ_TILE;
    const uint8_t *packed = packed_of(s, slot, head);
    int64_t base = *base_of(s, slot, head);
    if (tile) decode_tile(s, head, packed, r->tile, r->tmp);
    for (int64_t i = 0; i < n; i++) {
        if (pos + i - base >= s->window) {
            uint8_t *image = r->packed[packed == r->packed[0]];
            fold(s, slot, head, base, packed, image, r);
            packed = image;
            base += s->window;
            if (tile) decode_tile(s, head, packed, r->tile, r->tmp);
        }
        const float *g = gates(c, head, first + i);
        load_key(c, key_head, first + i, r);
        read_records(s, slot, head, key_head, base, pos + i, g, r);
        read_packed(s, head, packed, r);
        finish_token(c, slot, head, pos + i, first + i, g, r);
    }
}

/* The one token of a value head, with the fold that it makes due. */
static void through_token(const delta_core *c, int32_t seq, int32_t key_head, int32_t head, const scratch *r) {
    const int32_t slot = c->b->slot[seq];
    const int64_t pos = c->b->pos[seq], row = c->b->cu[seq];
    const float *g = gates(c, head, row);
    load_key(c, key_head, row, r);
    read_records(c->s, slot, head, key_head, pos, pos, g, r); /* none: x and y */
    read_through(c->s, slot, head, pos, r);
    finish_token(c, slot, head, pos, row, g, r);
}

static void keep_keys(const delta_core *c, int32_t seq, int32_t key_head) {
    const ebb_state_view *s = c->s;
    const int32_t dk = s->layer->key_dim;
    for (int64_t row = c->b->cu[seq]; row < c->b->cu[seq + 1]; row++) {
        void *record = key_record(s, c->b->slot[seq], key_head, c->b->pos[seq] + row - c->b->cu[seq]);
        const float *k = c->k + row * c->k_stride + (int64_t)key_head * dk;
        for (int32_t u = 0; u < dk; u += VL) store_record(s, record, u, vf_load(k + u));
    }
}

/* All value heads of one key head; `last` is the last value head of the item. The new keys may take the place of those
 * that a fold reads. */
static void key_head_tokens(const delta_core *c, int32_t seq, int32_t key_head, int32_t last, scratch *r) {
    const ebb_state_view *s = c->s;
    const int32_t group = s->layer->heads / s->layer->key_heads, slot = c->b->slot[seq];
    const int32_t begin = key_head * group, end = begin + group;
    const int64_t pos = c->b->pos[seq];
    const bool through = is_through(s, slot, begin, pos, c->b->cu[seq + 1] - c->b->cu[seq]);
    for (int32_t h = begin; h < end; h++) {
        r->ahead = h < last ? (ptrdiff_t)s->head_at[h + 1] - (ptrdiff_t)s->head_at[h] : 0;
        if (through) through_token(c, seq, key_head, h, r);
        else if (pos == 0) start_fresh(s, slot, h, r);
        else fold_due(s, slot, h, pos, r);
    }
    keep_keys(c, seq, key_head);
    for (int32_t h = begin; h < end && !through; h++) {
        r->ahead = h < last ? (ptrdiff_t)s->head_at[h + 1] - (ptrdiff_t)s->head_at[h] : 0;
        head_tokens(c, seq, key_head, h, r);
    }
}

/* Key heads first .. end - 1. */
static void step(const delta_core *c, int32_t seq, int32_t first, int32_t end, void *memory) {
    const ebb_state_view *s = c->s;
    const int32_t group = s->layer->heads / s->layer->key_heads;
    scratch r;
    carve(s, memory, &r);
    if (c->b->pos[seq]) fetch_head(s, c->b->slot[seq], first * group, first, c->b->pos[seq]);
    for (int32_t key_head = first; key_head < end; key_head++) key_head_tokens(c, seq, key_head, end * group - 1, &r);
}

static void pack(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const float *S, const void *old,
                 void *memory) {
    scratch r = {0};
    carve(s, memory, &r);
    encode_tile(s, head, pos, S, NULL, old, packed_of(s, slot, head), r.tmp);
    *base_of(s, slot, head) = pos;
}

static void unpack(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, float *S, void *memory) {
    scratch r = {0};
    carve(s, memory, &r);
    fold_due(s, slot, head, pos, &r);
    int64_t base = *base_of(s, slot, head);
    decode_tile(s, head, packed_of(s, slot, head), S, r.tmp);
    if (pos > base) add_records(s, slot, head, base, (int32_t)(pos - base), S, &r);
}

const delta_row ISA(delta) = {{ISA_NAME, ISA_NEEDS, 1}, refuse, scratch_bytes, step, pack, unpack};
