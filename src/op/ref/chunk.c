/* op/ref/chunk.c: the definition of chunked prefill of the delta rule (GDN, KDA, ERASE), in plain C, for any
 * dimensions. Called by op/delta.c through the row table; every other chunk row is compared with it.
 *
 * Over a chunk of up to 64 tokens that starts with state S, with G_i the sum of the log decays of its tokens 0..i:
 *     L     = strict_lower(diag(beta) Akk)     Akk_ij = sum_u k_iu k_ju exp(G_iu - G_ju)
 *     Delta = (I + L)^-1 diag(beta) (V - (e^G o K) S)                 by forward substitution
 *     O     = (e^G o Q) S + lower(Aqk) Delta   Aqk_ij = sum_u q_iu k_ju exp(G_iu - G_ju), the diagonal included
 *     S'    = diag(e^G_last) S + (K o e^(G_last - G))^T Delta
 * A GDN decay is a KDA decay that is equal in all channels, and is treated as such. EBB_ERASE has two writes a token,
 * (p, -pi) and (k, v), where one write (k, delta) is above, and reads with e:
 *     Pi = (I + strict_lower(Aep))^-1 ((e^G o E) S + strict_lower(Aek) V)
 *     O  = (e^G o Q) S + lower(Aqk) V - lower(Aqp) Pi
 *     S' = diag(e^G_last) S + (K o e^(G_last - G))^T V - (P o e^(G_last - G))^T Pi
 *
 * Nothing here is ever exp() of a positive number. The chunk is cut into blocks of 16 tokens. When block I is reached,
 * every earlier key j is kept decayed to the start of I, k_j exp(A - G_j), and the rows of I are decayed from there,
 * k_i exp(G_i - A): both factors are at most 1, and their product is exp(G_i - G_j). Inside a block no such anchor
 * exists, so its 120 pairs take exp(G_i - G_j) directly. Differences of G are summed from their own terms, never
 * subtracted: G itself may be -64000, where an FP32 difference would be off by whole per cents. */
#include "op/rows.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 16 };
static const float least_gate = -1e4f; /* exp of it is 0, and 64 of it are finite: a gate of -inf is served as this */

/* One write of every token: keys x and rows delta with S = decayed S + sum x delta^T. */
typedef struct writes {
    const float *x; /* of the first token of the call */
    int64_t stride;
    float *key; /* [CHUNK][key_dim] keys decayed to the start of the present block, in the end to the chunk's end */
    float *akk, *aqk; /* [CHUNK][CHUNK] of k (ERASE: e) and q with x */
    float *delta;     /* [CHUNK][value_dim] */
} writes;

typedef struct work {
    float *from_start; /* [key_dim] exp of the chunk's decay before the present block */
    float *sum;        /* [key_dim] */
    float *row;        /* [key_dim] */
    float *decay;      /* [key_dim] of the whole block */
    float *gate;       /* [BLOCK][key_dim] */
    float *k, *q;      /* [BLOCK][key_dim] rows of the block, decayed from its start, then from the chunk's start */
    const float *read; /* what k is a row of: c->k, or c->erase */
    int64_t read_stride;
    writes write[2]; /* the first one is solved for, the second one (ERASE: k and v) is given */
    int32_t n_writes;
} work;

static size_t writes_floats(int32_t key_dim, int32_t value_dim) {
    return (size_t)key_dim * CHUNK + 2 * CHUNK * CHUNK + (size_t)value_dim * CHUNK;
}

static size_t work_floats(int32_t kind, int32_t key_dim, int32_t value_dim) {
    return (size_t)key_dim * (4 + 3 * BLOCK) + (kind == EBB_ERASE ? 2 : 1) * writes_floats(key_dim, value_dim);
}

static work work_of(const chunk_args *c, void *scratch) {
    const size_t dim = (size_t)c->key_dim;
    const bool erase = c->kind == EBB_ERASE;
    work w;
    w.from_start = scratch;
    w.sum = w.from_start + dim;
    w.row = w.sum + dim;
    w.decay = w.row + dim;
    w.gate = w.decay + dim;
    w.k = w.gate + BLOCK * dim;
    w.q = w.k + BLOCK * dim;
    w.read = erase ? c->erase : c->k;
    w.read_stride = erase ? c->erase_stride : c->k_stride;
    w.n_writes = erase ? 2 : 1;
    for (int32_t i = 0; i < w.n_writes; i++) {
        writes *to = &w.write[i];
        to->x = i == 0 && erase ? c->remove : c->k;
        to->stride = i == 0 && erase ? c->remove_stride : c->k_stride;
        to->key = w.q + BLOCK * dim + (size_t)i * writes_floats(c->key_dim, c->value_dim);
        to->akk = to->key + CHUNK * dim;
        to->aqk = to->akk + CHUNK * CHUNK;
        to->delta = to->aqk + CHUNK * CHUNK;
    }
    return w;
}

static void load_gates(const chunk_args *c, int64_t token, int32_t n, float *gate) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t u = 0; u < c->key_dim; u++) {
            float g = c->g[(token + i) * c->g_stride + (c->kind == EBB_GDN ? 0 : u)];
            gate[i * c->key_dim + u] = g < least_gate ? least_gate : g > 0.0f ? 0.0f : g;
        }
}

/* exp of a row of sums of gates; GDN has one gate, so one exp. */
static void decay_row(const chunk_args *c, const float *sum, float *decay) {
    for (int32_t u = 0; u < c->key_dim; u++) decay[u] = c->kind != EBB_GDN || u == 0 ? expf(sum[u]) : decay[0];
}

static float dot(const float *a, const float *b, int32_t n) {
    float sum = 0;
    for (int32_t u = 0; u < n; u++) sum += a[u] * b[u];
    return sum;
}

/* Akk and Aqk inside the block: pairs j <= i of its n tokens, at `first` in the chunk. */
static void scores_inside(const chunk_args *c, const work *w, const writes *to, int64_t token, int32_t first, int32_t n,
                          float q_scale) {
    int32_t dim = c->key_dim;
    for (int32_t j = 0; j < n; j++) {
        const float *xj = to->x + (token + j) * to->stride;
        memset(w->sum, 0, (size_t)dim * sizeof(float));
        for (int32_t i = j; i < n; i++) {
            const float *ki = w->read + (token + i) * w->read_stride, *qi = c->q + (token + i) * c->q_stride;
            int32_t at = (first + i) * CHUNK + first + j;
            if (i > j)
                for (int32_t u = 0; u < dim; u++) w->sum[u] += w->gate[i * dim + u];
            decay_row(c, w->sum, w->row);
            for (int32_t u = 0; u < dim; u++) w->row[u] *= xj[u];
            to->akk[at] = i > j ? dot(ki, w->row, dim) : 0.0f;
            to->aqk[at] = dot(qi, w->row, dim) * q_scale;
        }
    }
}

/* w->k and w->q: the block's rows, times exp(G_i - A) with A the sum before the block. */
static void decay_rows(const chunk_args *c, const work *w, int64_t token, int32_t n, float q_scale) {
    int32_t dim = c->key_dim;
    memset(w->sum, 0, (size_t)dim * sizeof(float));
    for (int32_t i = 0; i < n; i++) {
        const float *k = w->read + (token + i) * w->read_stride, *q = c->q + (token + i) * c->q_stride;
        for (int32_t u = 0; u < dim; u++) w->sum[u] += w->gate[i * dim + u];
        decay_row(c, w->sum, w->row);
        for (int32_t u = 0; u < dim; u++) {
            w->k[i * dim + u] = k[u] * w->row[u];
            w->q[i * dim + u] = q[u] * q_scale * w->row[u];
        }
    }
}

/* Akk and Aqk of the block's rows with the keys of earlier blocks. */
static void scores_before(const chunk_args *c, const work *w, const writes *to, int32_t first, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < first; j++) {
            to->akk[(first + i) * CHUNK + j] = dot(w->k + i * c->key_dim, to->key + j * c->key_dim, c->key_dim);
            to->aqk[(first + i) * CHUNK + j] = dot(w->q + i * c->key_dim, to->key + j * c->key_dim, c->key_dim);
        }
}

/* y += the sum over tokens j < n of row[j] delta_j: what earlier tokens wrote, as this one reads it. */
static void add_writes(const chunk_args *c, const writes *from, const float *row, int32_t n, float *y) {
    for (int32_t j = 0; j < n; j++)
        for (int32_t x = 0; x < c->value_dim; x++) y[x] += row[j] * from->delta[j * c->value_dim + x];
}

/* d is what token i reads: make it what token i writes. */
static void finish_delta(const chunk_args *c, const work *w, int64_t token, int32_t i, float *d) {
    const float *v = c->v + token * c->v_stride;
    if (c->kind == EBB_ERASE) {
        for (int32_t x = 0; x < c->value_dim; x++) d[x] = -d[x];
        memcpy(w->write[1].delta + i * c->value_dim, v, (size_t)c->value_dim * sizeof *v);
    } else {
        const float beta = c->beta[token * c->beta_stride];
        for (int32_t x = 0; x < c->value_dim; x++) d[x] = beta * (v[x] - d[x]);
    }
}

/* Rows of the block decayed from the chunk's start read S; then the triangle. Delta rows before the block are final. */
static void solve(const chunk_args *c, const work *w, int64_t token, int32_t first, int32_t n) {
    int32_t dim = c->key_dim, vdim = c->value_dim;
    for (int32_t i = 0; i < n; i++) {
        const int32_t at = first + i;
        float *k = w->k + i * dim, *q = w->q + i * dim, *d = w->write[0].delta + at * vdim;
        float *out = c->out + (token + i) * c->out_stride;
        for (int32_t u = 0; u < dim; u++) k[u] *= w->from_start[u], q[u] *= w->from_start[u];
        memset(d, 0, (size_t)vdim * sizeof(float));
        memset(out, 0, (size_t)vdim * sizeof(float));
        for (int32_t u = 0; u < dim; u++)
            for (int32_t x = 0; x < vdim; x++) {
                d[x] += k[u] * c->S[u * vdim + x];
                out[x] += q[u] * c->S[u * vdim + x];
            }
        for (int32_t s = 0; s < w->n_writes; s++) add_writes(c, &w->write[s], w->write[s].akk + at * CHUNK, at, d);
        finish_delta(c, w, token + i, at, d);
        for (int32_t s = 0; s < w->n_writes; s++)
            add_writes(c, &w->write[s], w->write[s].aqk + at * CHUNK, at + 1, out);
    }
}

/* Move the anchor to the end of the block: keys of earlier blocks by the block's whole decay, its own by what follows
 * them. */
static void decay_keys(const chunk_args *c, const work *w, const writes *to, int64_t token, int32_t first, int32_t n) {
    int32_t dim = c->key_dim;
    for (int32_t j = 0; j < first; j++)
        for (int32_t u = 0; u < dim; u++) to->key[j * dim + u] *= w->decay[u];
    memset(w->sum, 0, (size_t)dim * sizeof(float));
    for (int32_t j = n - 1; j >= 0; j--) {
        const float *x = to->x + (token + j) * to->stride;
        decay_row(c, w->sum, w->row);
        for (int32_t u = 0; u < dim; u++) {
            to->key[(first + j) * dim + u] = x[u] * w->row[u];
            w->sum[u] += w->gate[j * dim + u];
        }
    }
}

/* w->sum is the log decay of the block, left there by decay_rows; it is spent here. */
static void end_block(const chunk_args *c, const work *w, int64_t token, int32_t first, int32_t n) {
    decay_row(c, w->sum, w->decay);
    for (int32_t u = 0; u < c->key_dim; u++) w->from_start[u] *= w->decay[u];
    for (int32_t s = 0; s < w->n_writes; s++) decay_keys(c, w, &w->write[s], token, first, n);
}

static void update_state(const chunk_args *c, const work *w, int32_t n) {
    for (int32_t u = 0; u < c->key_dim; u++) {
        float *row = c->S + u * c->value_dim;
        for (int32_t x = 0; x < c->value_dim; x++) row[x] *= w->from_start[u];
        for (int32_t s = 0; s < w->n_writes; s++)
            for (int32_t j = 0; j < n; j++)
                for (int32_t x = 0; x < c->value_dim; x++)
                    row[x] += w->write[s].key[j * c->key_dim + u] * w->write[s].delta[j * c->value_dim + x];
    }
}

/* Tokens token .. token + n - 1 of the call, inside one chunk. */
static void run_chunk(const chunk_args *c, const work *w, int64_t token, int32_t n) {
    float q_scale = 1.0f / sqrtf((float)c->key_dim);
    for (int32_t u = 0; u < c->key_dim; u++) w->from_start[u] = 1.0f;
    for (int32_t first = 0; first < n; first += BLOCK) {
        int32_t m = n - first < BLOCK ? n - first : BLOCK;
        load_gates(c, token + first, m, w->gate);
        for (int32_t s = 0; s < w->n_writes; s++) scores_inside(c, w, &w->write[s], token + first, first, m, q_scale);
        decay_rows(c, w, token + first, m, q_scale);
        for (int32_t s = 0; s < w->n_writes; s++) scores_before(c, w, &w->write[s], first, m);
        solve(c, w, token + first, first, m);
        end_block(c, w, token + first, first, m);
    }
    update_state(c, w, n);
}

static const char *refuse(const ebb_state_layer *layer) {
    (void)layer;
    return NULL;
}

static size_t scratch_bytes(const ebb_state_layer *layer) {
    return work_floats(layer->kind, layer->key_dim, layer->value_dim) * sizeof(float);
}

static void run(const chunk_args *c, void *scratch) {
    work w = work_of(c, scratch);
    for (int64_t token = 0; token < c->n;) {
        int32_t room = (int32_t)(CHUNK - (c->pos + token) % CHUNK);
        int32_t n = (int32_t)min_i64(room, c->n - token);
        run_chunk(c, &w, token, n);
        token += n;
    }
}

const chunk_row chunk_ref = {{"ref", 0, 1}, refuse, scratch_bytes, run};
