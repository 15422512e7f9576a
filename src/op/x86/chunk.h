/* op/x86/chunk.h: chunked prefill of the delta rule for AVX2, AVX-512 and NEON. Compiled by chunk_avx2.c,
 * chunk_avx512.c and op/arm/chunk_neon.c, reached through the row table only. The algorithm and its equations are those
 * of op/ref/chunk.c; here all the work of a chunk is small matrix products with lanes along the output columns, so no
 * sum ever crosses lanes except inside a KDA block: Akk, Aqk   [K; Q] K^T, with K^T copied       Delta, O   [K; Q] S,
 * then Aqk Delta       S   K^T Delta GDN weighs Akk and Aqk by exp(G_i - G_j), a 64 x 64 table; KDA puts the decays
 * into the rows and keys of 16-token blocks. Arrays of a chunk are padded with zero rows to a multiple of 16, so no
 * product has a ragged edge. */
#include "op/rows.h"
#include "op/x86/simd.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 16, MAX_DIM = 256, ROWS = VL == 16 ? 8 : 4, COLS = 2 };
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

typedef struct work {
    float *k, *q;   /* [CHUNK][key_dim]: K and scaled Q; KDA: decayed from the chunk's start in the end */
    float *key;     /* [key_dim][CHUNK]: K^T; in the end decayed to the chunk's end */
    float *l, *aqk; /* [CHUNK][CHUNK]: -diag(beta) Akk, strictly lower; Aqk, lower */
    float *delta;   /* [CHUNK][value_dim] */
    float *out;     /* [CHUNK][value_dim] */
    float *beta;    /* [CHUNK] */
    float *from;    /* [CHUNK]: GDN: exp(G_i); KDA: ones, its rows carry the decay */
    float *sum;     /* [max(CHUNK, MAX_DIM)]: running sums of gates */
    float *last;    /* [MAX_DIM]: exp of the chunk's decay so far */
    float *gate;    /* GDN [CHUNK], KDA [BLOCK][key_dim] */
    float *tail;    /* [BLOCK][key_dim]: KDA: keys of the block being decayed */
} work;

static size_t work_floats(int32_t key_dim, int32_t value_dim) {
    return (size_t)key_dim * (3 * CHUNK + 2 * BLOCK) + (size_t)value_dim * 2 * CHUNK + 2 * CHUNK * CHUNK + 3 * CHUNK +
           2 * MAX_DIM;
}

static work work_of(const chunk_args *c, void *scratch) {
    size_t dim = (size_t)c->key_dim, vdim = (size_t)c->value_dim;
    work w;
    w.k = scratch;
    w.q = w.k + CHUNK * dim;
    w.key = w.q + CHUNK * dim;
    w.l = w.key + CHUNK * dim;
    w.aqk = w.l + CHUNK * CHUNK;
    w.delta = w.aqk + CHUNK * CHUNK;
    w.out = w.delta + CHUNK * vdim;
    w.beta = w.out + CHUNK * vdim;
    w.from = w.beta + CHUNK;
    w.sum = w.from + CHUNK;
    w.last = w.sum + MAX_DIM;
    w.gate = w.last + MAX_DIM;
    w.tail = w.gate + (BLOCK * dim > CHUNK ? BLOCK * dim : CHUNK);
    return w;
}

/* ---- C (m x n) = A (m x k) B (k x n), in tiles of ROWS x COLS vectors that stay in registers ---- */

typedef struct product {
    const float *a, *b;
    float *c;
    int32_t lda, ldb, ldc;
    int32_t m, n, k;    /* m a multiple of ROWS, n of VL */
    bool add;           /* C += */
    const float *scale; /* with add: C = diag(scale) C + A B; NULL: ones */
} product;

static inline __attribute__((always_inline)) void tile(const product *p, int32_t i, int32_t j, int cols) {
    const float *a = p->a + (ptrdiff_t)i * p->lda, *b = p->b + j;
    float *c = p->c + (ptrdiff_t)i * p->ldc + j;
    ptrdiff_t lda = p->lda, ldb = p->ldb, ldc = p->ldc;
    vf acc[ROWS][COLS];
    for (int r = 0; r < ROWS; r++)
        for (int x = 0; x < cols; x++) {
            acc[r][x] = p->add ? vf_load(c + r * ldc + x * VL) : vf_zero();
            if (p->scale) acc[r][x] = vf_mul(acc[r][x], vf_set1(p->scale[i + r]));
        }
    for (int32_t s = 0; s < p->k; s++) {
        vf row[COLS];
        for (int x = 0; x < cols; x++) row[x] = vf_load(b + s * ldb + x * VL);
        for (int r = 0; r < ROWS; r++) {
            vf one = vf_set1(a[r * lda + s]);
            for (int x = 0; x < cols; x++) acc[r][x] = vf_fma(one, row[x], acc[r][x]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int x = 0; x < cols; x++) vf_store(c + r * ldc + x * VL, acc[r][x]);
}

/* Columns outside, so that a panel of B is read from L1 by all the rows. */
static void multiply(const product *p) {
    int32_t j = 0;
    for (; j + COLS * VL <= p->n; j += COLS * VL)
        for (int32_t i = 0; i < p->m; i += ROWS) tile(p, i, j, COLS);
    for (; j < p->n; j += VL)
        for (int32_t i = 0; i < p->m; i += ROWS) tile(p, i, j, 1);
}

/* ---- pieces ---- */

/* exp of a sum of gates; a NaN stays one. */
static inline vf decay(vf sum) { return vf_add(vf_exp(sum), vf_sub(sum, sum)); }

/* Gates are served within [-1e4, 0], as in op/ref/chunk.c; the order of operands lets a NaN through. */
static inline vf clamp_gate(vf g) { return vf_min(vf_zero(), vf_max(vf_set1(-1e4f), g)); }

/* Rows of a block [BLOCK][dim] -> columns first .. first + BLOCK - 1 of w->key. */
static void transpose_block(const float *rows, int32_t dim, float *key, int32_t first) {
    for (int32_t j = 0; j < BLOCK; j += 8)
        for (int32_t u = 0; u < dim; u += 8) transpose8(rows + j * dim + u, dim, key + u * CHUNK + first + j, CHUNK);
}

static void load_rows(const float *x, int64_t stride, int32_t n, int32_t padded, int32_t dim, float scale, float *y) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t u = 0; u < dim; u += VL)
            vf_store(y + i * dim + u, vf_mul(vf_load(x + i * stride + u), vf_set1(scale)));
    memset(y + n * dim, 0, (size_t)(padded - n) * (size_t)dim * sizeof(float));
}

/* Akk and Aqk of the block of rows at `first` with the keys at 0 .. keys-1. */
static void scores(const work *w, int32_t dim, int32_t first, int32_t keys) {
    product p = {
        .a = w->k + first * dim, .lda = dim, .b = w->key, .ldb = CHUNK, .c = w->l + first * CHUNK, .ldc = CHUNK};
    p.m = BLOCK, p.n = keys, p.k = dim;
    multiply(&p);
    p.a = w->q + first * dim, p.c = w->aqk + first * CHUNK;
    multiply(&p);
}

/* ---- GDN: one gate per token ---- */

/* Row i of l and aqk: weigh by exp(G_i - G_j), and l by -beta too. w->sum holds G_i - G_j, grown by one gate a row;
 * entry j starts at row j. What lies right of the diagonal is never read. */
static void weigh_row(const work *w, int32_t i) {
    float *l = w->l + i * CHUNK, *aqk = w->aqk + i * CHUNK;
    vf gate = vf_set1(w->gate[i]), minus_beta = vf_set1(-w->beta[i]);
    for (int32_t j = 0; j <= i; j += VL) vf_store(w->sum + j, vf_add(vf_load(w->sum + j), gate));
    w->sum[i] = 0.0f;
    for (int32_t j = 0; j <= i; j += VL) {
        vf d = decay(vf_load(w->sum + j));
        vf_store(l + j, vf_mul(vf_mul(vf_load(l + j), d), minus_beta));
        vf_store(aqk + j, vf_mul(vf_load(aqk + j), d));
    }
}

static void prepare_gdn(const chunk_args *c, const work *w, int64_t token, int32_t n, int32_t padded) {
    int32_t dim = c->key_dim;
    float sum = 0;
    memset(w->gate, 0, CHUNK * sizeof(float));
    memset(w->sum, 0, CHUNK * sizeof(float));
    for (int32_t i = 0; i < n; i++) {
        float g = c->g[(token + i) * c->g_stride];
        w->gate[i] = g < -1e4f ? -1e4f : g > 0.0f ? 0.0f : g;
    }
    for (int32_t i = 0; i < CHUNK; i++) w->from[i] = sum += w->gate[i];
    for (int32_t i = 0; i < CHUNK; i += VL) vf_store(w->from + i, decay(vf_load(w->from + i)));
    for (int32_t u = 0; u < dim; u++) w->last[u] = w->from[CHUNK - 1];

    for (int32_t first = 0; first < padded; first += BLOCK) transpose_block(w->k + first * dim, dim, w->key, first);
    for (int32_t first = 0; first < padded; first += BLOCK) scores(w, dim, first, first + BLOCK);
    for (int32_t i = 0; i < padded; i++) weigh_row(w, i);
    for (int32_t j = 0; j < padded; j += VL) {
        vf d = decay(vf_load(w->sum + j)); /* G_last - G_j */
        for (int32_t u = 0; u < dim; u++) vf_store(w->key + u * CHUNK + j, vf_mul(vf_load(w->key + u * CHUNK + j), d));
    }
}

/* ---- KDA: one gate per token and key channel ---- */

static void load_gates(const chunk_args *c, const work *w, int64_t token, int32_t n) {
    int32_t dim = c->key_dim;
    for (int32_t i = 0; i < n; i++)
        for (int32_t u = 0; u < dim; u += VL)
            vf_store(w->gate + i * dim + u, clamp_gate(vf_load(c->g + (token + i) * c->g_stride + u)));
    memset(w->gate + n * dim, 0, (size_t)(BLOCK - n) * (size_t)dim * sizeof(float));
}

/* Akk and Aqk inside the block. w->tail holds the earlier keys decayed to the present row: k_j exp(G_i - G_j). */
static void scores_inside(const work *w, int32_t dim, int32_t first) {
    float *a = w->sum;
    for (int32_t i = 0; i < BLOCK; i++) {
        const float *k = w->k + (first + i) * dim, *q = w->q + (first + i) * dim;
        float *l = w->l + (first + i) * CHUNK + first, *aqk = w->aqk + (first + i) * CHUNK + first;
        for (int32_t u = 0; u < dim; u += VL) vf_store(a + u, decay(vf_load(w->gate + i * dim + u)));
        for (int32_t j = 0; j < i; j++) {
            float *key = w->tail + j * dim;
            vf kk = vf_zero(), qk = vf_zero();
            for (int32_t u = 0; u < dim; u += VL) {
                vf x = vf_mul(vf_load(key + u), vf_load(a + u));
                vf_store(key + u, x);
                kk = vf_fma(vf_load(k + u), x, kk);
                qk = vf_fma(vf_load(q + u), x, qk);
            }
            l[j] = vf_sum(kk);
            aqk[j] = vf_sum(qk);
        }
        vf qk = vf_zero();
        for (int32_t u = 0; u < dim; u += VL) {
            vf x = vf_load(k + u);
            vf_store(w->tail + i * dim + u, x);
            qk = vf_fma(vf_load(q + u), x, qk);
        }
        aqk[i] = vf_sum(qk);
    }
}

/* w->tail: the block's keys decayed to its end; its K and Q rows: decayed from its start; w->sum: its whole decay. */
static void decay_block(const work *w, int32_t dim, int32_t first) {
    for (int32_t u = 0; u < dim; u += VL) {
        vf sum = vf_zero();
        for (int32_t j = BLOCK - 1; j >= 0; j--) {
            vf_store(w->tail + j * dim + u, vf_mul(vf_load(w->k + (first + j) * dim + u), decay(sum)));
            sum = vf_add(sum, vf_load(w->gate + j * dim + u));
        }
        sum = vf_zero();
        vf d = vf_set1(1.0f);
        for (int32_t i = 0; i < BLOCK; i++) {
            float *k = w->k + (first + i) * dim + u, *q = w->q + (first + i) * dim + u;
            sum = vf_add(sum, vf_load(w->gate + i * dim + u));
            d = decay(sum);
            vf_store(k, vf_mul(vf_load(k), d));
            vf_store(q, vf_mul(vf_load(q), d));
        }
        vf_store(w->sum + u, d);
    }
}

/* Move the anchor from the start of the block to its end: keys before the block decay by the whole block; the block's
 * rows get the decay from the chunk's start to the block. */
static void move_anchor(const work *w, int32_t dim, int32_t first) {
    for (int32_t u = 0; u < dim; u++) {
        vf d = vf_set1(w->sum[u]);
        for (int32_t j = 0; j < first; j += VL)
            vf_store(w->key + u * CHUNK + j, vf_mul(vf_load(w->key + u * CHUNK + j), d));
    }
    for (int32_t u = 0; u < dim; u += VL) {
        vf d = vf_load(w->last + u);
        for (int32_t i = first; i < first + BLOCK; i++) {
            vf_store(w->k + i * dim + u, vf_mul(vf_load(w->k + i * dim + u), d));
            vf_store(w->q + i * dim + u, vf_mul(vf_load(w->q + i * dim + u), d));
        }
        vf_store(w->last + u, vf_mul(d, vf_load(w->sum + u)));
    }
}

static void prepare_kda(const chunk_args *c, const work *w, int64_t token, int32_t n, int32_t padded) {
    int32_t dim = c->key_dim;
    for (int32_t i = 0; i < CHUNK; i++) w->from[i] = 1.0f; /* the rows carry it */
    for (int32_t u = 0; u < dim; u++) w->last[u] = 1.0f;
    for (int32_t first = 0; first < padded; first += BLOCK) {
        load_gates(c, w, token + first, n - first < BLOCK ? n - first : BLOCK);
        scores_inside(w, dim, first);
        decay_block(w, dim, first);
        scores(w, dim, first, first);
        transpose_block(w->tail, dim, w->key, first);
        move_anchor(w, dim, first);
        for (int32_t i = first; i < first + BLOCK; i++)
            for (int32_t j = 0; j < i; j++) w->l[i * CHUNK + j] *= -w->beta[i];
    }
}

/* ---- one chunk ---- */

/* Delta_i += sum_{j<i} l_ij Delta_j and O_i = e^G_i o O_i + sum_{j<=i} aqk_ij Delta_j for the rows of one block, of
 * which the earlier blocks' part comes from two products and the block's own triangle goes row by row. */
static void solve(const work *w, int32_t vdim, int32_t first) {
    product p = {.a = w->l + first * CHUNK, .lda = CHUNK, .b = w->delta, .ldb = vdim, .c = w->delta + first * vdim};
    p.ldc = vdim, p.m = BLOCK, p.n = vdim, p.k = first, p.add = true;
    if (first) multiply(&p);
    p.a = w->aqk + first * CHUNK, p.c = w->out + first * vdim, p.scale = w->from + first;
    multiply(&p);
    for (int32_t x = 0; x < vdim; x += VL)
        for (int32_t i = first; i < first + BLOCK; i++) {
            const float *l = w->l + i * CHUNK, *aqk = w->aqk + i * CHUNK;
            vf d = vf_load(w->delta + i * vdim + x), o = vf_load(w->out + i * vdim + x);
            for (int32_t j = first; j < i; j++) {
                vf e = vf_load(w->delta + j * vdim + x);
                d = vf_fma(vf_set1(l[j]), e, d);
                o = vf_fma(vf_set1(aqk[j]), e, o);
            }
            vf_store(w->delta + i * vdim + x, d);
            vf_store(w->out + i * vdim + x, vf_fma(vf_set1(aqk[i]), d, o));
        }
}

/* Delta before the solve: diag(beta) (V - e^G o (K S)), from K S in place. */
static void right_side(const chunk_args *c, const work *w, int64_t token, int32_t n, int32_t padded) {
    int32_t vdim = c->value_dim;
    for (int32_t i = 0; i < n; i++) {
        const float *v = c->v + (token + i) * c->v_stride;
        float *d = w->delta + i * vdim;
        vf minus = vf_set1(-w->from[i]), beta = vf_set1(w->beta[i]);
        for (int32_t x = 0; x < vdim; x += VL)
            vf_store(d + x, vf_mul(beta, vf_fma(minus, vf_load(d + x), vf_load(v + x))));
    }
    memset(w->delta + n * vdim, 0, (size_t)(padded - n) * (size_t)vdim * sizeof(float));
}

static void run_chunk(const chunk_args *c, const work *w, int64_t token, int32_t n) {
    int32_t dim = c->key_dim, vdim = c->value_dim, padded = (n + BLOCK - 1) / BLOCK * BLOCK;
    for (int32_t i = 0; i < CHUNK; i++) w->beta[i] = i < n ? c->beta[(token + i) * c->beta_stride] : 0.0f;
    load_rows(c->k + token * c->k_stride, c->k_stride, n, padded, dim, 1.0f, w->k);
    load_rows(c->q + token * c->q_stride, c->q_stride, n, padded, dim, 1.0f / sqrtf((float)dim), w->q);
    if (c->kind == EBB_KDA) prepare_kda(c, w, token, n, padded);
    else prepare_gdn(c, w, token, n, padded);

    product p = {
        .a = w->k, .lda = dim, .b = c->S, .ldb = vdim, .c = w->delta, .ldc = vdim, .m = padded, .n = vdim, .k = dim};
    multiply(&p);
    p.a = w->q, p.c = w->out;
    multiply(&p);
    right_side(c, w, token, n, padded);
    for (int32_t first = 0; first < padded; first += BLOCK) solve(w, vdim, first);
    for (int32_t i = 0; i < n; i++)
        memcpy(c->out + (token + i) * c->out_stride, w->out + i * vdim, (size_t)vdim * sizeof(float));
    product s = {
        .a = w->key, .lda = CHUNK, .b = w->delta, .ldb = vdim, .c = c->S, .ldc = vdim, .m = dim, .n = vdim, .k = n};
    s.add = true, s.scale = w->last;
    multiply(&s);
}

/* ---- the row ---- */

static const char *refuse(const ebb_state_layer *layer) {
    if (layer->kind == EBB_ERASE) return "the " ISA_NAME " chunk kernel serves GDN and KDA layers";
    if (layer->key_dim % VL || layer->value_dim % VL || layer->key_dim > MAX_DIM || layer->value_dim > MAX_DIM)
        return "the " ISA_NAME
               " chunk kernel serves key and value dimensions that are multiples of " TEXT(VL) " up to 256";
    return NULL;
}

static size_t scratch_bytes(const ebb_state_layer *layer) {
    return work_floats(layer->key_dim, layer->value_dim) * sizeof(float);
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

const chunk_row ISA(chunk) = {{ISA_NAME, ISA_NEEDS, 1}, refuse, scratch_bytes, run};
