/* op/ref/delta.c: the definition of the delta-rule step over a state store, for any codec and any dimensions. It
 * rebuilds S at the token (packed part, then the records one by one) and applies the recurrence as it is written
 * (maths 1.1): S <- diag(e^g) S;  d = beta (v - S^T k);  o = S^T q + (k . q) d;  S <- S + k d^T where what enters the
 * store are the rounded k and d, and what leaves as output is not rounded. EBB_ERASE (maths 2.14) likewise, with two
 * records: pi = S^T e;  o = S^T q + (k . q) v - (p . q) pi;  S <- S + k v^T + p (-pi)^T. Every other delta row is
 * checked against this one. Called through op/delta.c. */
#include "op/rows.h"
#include "state/records.h"

#include <math.h>

typedef struct ref_scratch { /* of one worker */
    float *S, *tmp, *k, *q, *d, *p, *decay;
    uint8_t *packed[2]; /* images of boundaries that a step crosses but has not committed */
} ref_scratch;

static const char *refuse(const ebb_state_view *view) {
    (void)view;
    return NULL;
}

static size_t carve(const ebb_state_view *s, uint8_t *at, ref_scratch *r) {
    const size_t dk = (size_t)s->layer->key_dim, dv = (size_t)s->layer->value_dim;
    const size_t floats[] = {dk * dv, s->scratch, dk, dk, dv, dv, dk};
    float **place[] = {&r->S, &r->tmp, &r->k, &r->q, &r->d, &r->p, &r->decay};
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

static size_t scratch_bytes(const ebb_state_view *s) { return carve(s, NULL, &(ref_scratch){0}); }

static float decay_of(const ebb_state_view *s, const float *g, int32_t u) {
    return expf(s->layer->kind == EBB_GDN ? g[0] : g[u]);
}

/* S += p (-pi)^T, the second record of a position of an EBB_ERASE layer. */
static void apply_erasure(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const ref_scratch *r) {
    const ebb_state_layer *l = s->layer;
    const int32_t key_head = head / (l->heads / l->key_heads);
    record_read(s, key_record(s, slot, l->key_heads + key_head, pos), r->k, l->key_dim);
    record_read(s, delta_record(s, slot, l->heads + head, pos), r->d, l->value_dim);
    for (int32_t u = 0; u < l->key_dim; u++)
        for (int32_t v = 0; v < l->value_dim; v++) r->S[(int64_t)u * l->value_dim + v] += r->k[u] * r->d[v];
}

/* S <- diag(e^g) S + k d^T for the record of one position. */
static void apply_record(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const ref_scratch *r) {
    const ebb_state_layer *l = s->layer;
    const float *g = decay_record(s, slot, head, pos);
    record_read(s, key_record(s, slot, head / (l->heads / l->key_heads), pos), r->k, l->key_dim);
    record_read(s, delta_record(s, slot, head, pos), r->d, l->value_dim);
    for (int32_t u = 0; u < l->key_dim; u++) {
        float a = decay_of(s, g, u), *row = r->S + (int64_t)u * l->value_dim;
        for (int32_t v = 0; v < l->value_dim; v++) row[v] = a * row[v] + r->k[u] * r->d[v];
    }
    if (l->kind == EBB_ERASE) apply_erasure(s, slot, head, pos, r);
}

/* e^G of the window that begins at `base`, for encode. */
static void window_decay(const ebb_state_view *s, int32_t slot, int32_t head, int64_t base, float *decay) {
    for (int32_t u = 0; u < s->layer->key_dim; u++) {
        float G = 0;
        for (int64_t t = base; t < base + s->window; t++)
            G += decay_record(s, slot, head, t)[s->layer->kind == EBB_GDN ? 0 : u];
        decay[u] = expf(G);
    }
}

/* Fold every whole committed window into the packed part. */
static void fold_due(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const ref_scratch *r) {
    ebb_head h = head_of(s, head);
    uint8_t *packed = packed_of(s, slot, head);
    int64_t *base = base_of(s, slot, head);
    for (; pos - *base >= s->window; *base += s->window) {
        s->codec->decode(&h, packed, r->S);
        for (int64_t t = *base; t < *base + s->window; t++) apply_record(s, slot, head, t, r);
        window_decay(s, slot, head, *base, r->decay);
        h.pos = *base + s->window;
        s->codec->encode(&h, r->S, r->decay, packed, packed, r->tmp);
    }
}

static void start_fresh(const ebb_state_view *s, int32_t slot, int32_t head, const ref_scratch *r) {
    const ebb_head h = head_of(s, head);
    memset(r->S, 0, (size_t)s->layer->key_dim * (size_t)s->layer->value_dim * sizeof(float));
    s->codec->encode(&h, r->S, NULL, NULL, packed_of(s, slot, head), r->tmp);
    *base_of(s, slot, head) = 0;
}

/* One token of one value head of an EBB_ERASE layer, as `token`. */
static void erase_token(const delta_core *c, int32_t slot, int32_t head, int64_t pos, int64_t row,
                        const ref_scratch *r) {
    const ebb_state_view *s = c->s;
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim,
                  key_head = head / (s->layer->heads / s->layer->key_heads);
    const float *g = c->g + row * c->g_stride + (int64_t)head * dk, *v = c->v + row * c->v_stride + (int64_t)head * dv;
    const float *e = c->erase + row * c->erase_stride + (int64_t)key_head * dk,
                *p = c->remove + row * c->remove_stride + (int64_t)key_head * dk;
    float *o = c->out + row * c->out_stride + (int64_t)head * dv, kq = 0, pq = 0;
    memset(r->p, 0, (size_t)dv * sizeof *r->p);
    memset(o, 0, (size_t)dv * sizeof *o);
    for (int32_t u = 0; u < dk; u++) {
        float a = decay_of(s, g, u), *S = r->S + (int64_t)u * dv;
        kq += r->k[u] * r->q[u];
        pq += p[u] * r->q[u];
        for (int32_t i = 0; i < dv; i++) {
            S[i] *= a;
            r->p[i] += S[i] * e[u];
            o[i] += S[i] * r->q[u];
        }
    }
    for (int32_t i = 0; i < dv; i++) {
        o[i] += kq * v[i] - pq * r->p[i];
        r->p[i] = -r->p[i];
    }
    record_write(s, delta_record(s, slot, head, pos), v, dv);
    record_write(s, delta_record(s, slot, s->layer->heads + head, pos), r->p, dv);
    memcpy(decay_record(s, slot, head, pos), g, (size_t)dk * sizeof *g);
    record_read(s, delta_record(s, slot, head, pos), r->d, dv);
    record_read(s, key_record(s, slot, key_head, pos), r->k, dk);
    for (int32_t u = 0; u < dk; u++)
        for (int32_t i = 0; i < dv; i++) r->S[(int64_t)u * dv + i] += r->k[u] * r->d[i];
    apply_erasure(s, slot, head, pos, r);
}

/* One token of one value head: k and q are in the scratch, S is at this token, and its record is left in the ring. */
static void token(const delta_core *c, int32_t slot, int32_t head, int64_t pos, int64_t row, const ref_scratch *r) {
    const ebb_state_view *s = c->s;
    const int32_t dk = s->layer->key_dim, dv = s->layer->value_dim;
    const bool kda = s->layer->kind == EBB_KDA;
    const float *g = c->g + row * c->g_stride + (int64_t)head * (kda ? dk : 1);
    const float *v = c->v + row * c->v_stride + (int64_t)head * dv;
    const float beta = c->beta[row * c->beta_stride + head];
    float *o = c->out + row * c->out_stride + (int64_t)head * dv, kq = 0;
    memset(r->p, 0, (size_t)dv * sizeof *r->p);
    memset(o, 0, (size_t)dv * sizeof *o);
    for (int32_t u = 0; u < dk; u++) {
        float a = decay_of(s, g, u), *S = r->S + (int64_t)u * dv;
        kq += r->k[u] * r->q[u];
        for (int32_t i = 0; i < dv; i++) {
            S[i] *= a;
            r->p[i] += S[i] * r->k[u];
            o[i] += S[i] * r->q[u];
        }
    }
    for (int32_t i = 0; i < dv; i++) {
        r->d[i] = beta * (v[i] - r->p[i]);
        o[i] += kq * r->d[i];
    }
    void *delta = delta_record(s, slot, head, pos);
    record_write(s, delta, r->d, dv);
    memcpy(decay_record(s, slot, head, pos), g, (kda ? (size_t)dk : 1) * sizeof *g);
    record_read(s, delta, r->d, dv);
    record_read(s, key_record(s, slot, head / (s->layer->heads / s->layer->key_heads), pos), r->k, dk);
    for (int32_t u = 0; u < dk; u++)
        for (int32_t i = 0; i < dv; i++) r->S[(int64_t)u * dv + i] += r->k[u] * r->d[i];
}

/* All tokens of one value head. Boundaries inside the step are crossed on images in scratch: nothing is committed. */
static void head_tokens(const delta_core *c, int32_t seq, int32_t key_head, int32_t head, const ref_scratch *r) {
    const ebb_state_view *s = c->s;
    ebb_head h = head_of(s, head);
    const int32_t slot = c->b->slot[seq], dk = s->layer->key_dim;
    const float scale = 1.0f / sqrtf((float)dk);
    const int64_t pos = c->b->pos[seq], first = c->b->cu[seq], n = c->b->cu[seq + 1] - first;
    const uint8_t *packed = packed_of(s, slot, head);
    int64_t base = *base_of(s, slot, head);
    s->codec->decode(&h, packed, r->S);
    for (int64_t t = base; t < pos; t++) apply_record(s, slot, head, t, r);
    for (int64_t i = 0; i < n; i++) {
        if (pos + i - base >= s->window) {
            uint8_t *image = r->packed[packed == r->packed[0]];
            window_decay(s, slot, head, base, r->decay);
            h.pos = base + s->window;
            s->codec->encode(&h, r->S, r->decay, packed, image, r->tmp);
            s->codec->decode(&h, image, r->S);
            packed = image;
            base += s->window;
        }
        const float *k = c->k + (first + i) * c->k_stride + (int64_t)key_head * dk;
        const float *q = c->q + (first + i) * c->q_stride + (int64_t)key_head * dk;
        memcpy(r->k, k, (size_t)dk * sizeof *k);
        for (int32_t u = 0; u < dk; u++) r->q[u] = q[u] * scale;
        (s->layer->kind == EBB_ERASE ? erase_token : token)(c, slot, head, pos + i, first + i, r);
    }
}

static void key_head_tokens(const delta_core *c, int32_t seq, int32_t key_head, const ref_scratch *r) {
    const ebb_state_view *s = c->s;
    const int32_t group = s->layer->heads / s->layer->key_heads, slot = c->b->slot[seq];
    const int64_t pos = c->b->pos[seq], first = c->b->cu[seq], n = c->b->cu[seq + 1] - first;
    for (int32_t h = key_head * group; h < (key_head + 1) * group; h++) {
        if (pos == 0) start_fresh(s, slot, h, r);
        else fold_due(s, slot, h, pos, r);
    }
    const int32_t dk = s->layer->key_dim;
    for (int64_t i = 0; i < n; i++) {
        record_write(s, key_record(s, slot, key_head, pos + i),
                     c->k + (first + i) * c->k_stride + (int64_t)key_head * dk, dk);
        if (s->layer->kind == EBB_ERASE)
            record_write(s, key_record(s, slot, s->layer->key_heads + key_head, pos + i),
                         c->remove + (first + i) * c->remove_stride + (int64_t)key_head * dk, dk);
    }
    for (int32_t h = key_head * group; h < (key_head + 1) * group; h++) head_tokens(c, seq, key_head, h, r);
}

static void step(const delta_core *c, int32_t seq, int32_t first, int32_t end, void *scratch) {
    ref_scratch r;
    carve(c->s, scratch, &r);
    for (int32_t key_head = first; key_head < end; key_head++) key_head_tokens(c, seq, key_head, &r);
}

static void pack(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, const float *S, const void *old,
                 void *scratch) {
    ref_scratch r;
    carve(s, scratch, &r);
    ebb_head h = head_of(s, head);
    h.pos = pos;
    s->codec->encode(&h, S, NULL, old, packed_of(s, slot, head), r.tmp);
    *base_of(s, slot, head) = pos;
}

static void unpack(const ebb_state_view *s, int32_t slot, int32_t head, int64_t pos, float *S, void *scratch) {
    ref_scratch r;
    carve(s, scratch, &r);
    const ebb_head h = head_of(s, head);
    fold_due(s, slot, head, pos, &r);
    r.S = S;
    s->codec->decode(&h, packed_of(s, slot, head), S);
    for (int64_t t = *base_of(s, slot, head); t < pos; t++) apply_record(s, slot, head, t, &r);
}

const delta_row delta_ref = {{"ref", 0, 1}, refuse, scratch_bytes, step, pack, unpack};
