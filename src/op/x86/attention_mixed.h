/* op/x86/attention_mixed.h: attention where keys are read in different ways: low-bit codes, vertical keys and a tail of
 * 16-bit rows in one online softmax, and the INT8 keys of a prefill mode. Included by attention.h, whose kernels do
 * what is in FP32; attention_words.h does codes, attention_int.h what a prefill mode has in INT8. Nothing is
 * dequantized.
 *
 * Bounds are multiples of ATTN_BLOCK where a row does not read all its keys alike, so that a row reads all keys of a
 * block in one way, its class, but for the vertical and the marked ones. Neighbouring rows of one class go together. */
#ifndef OP_X86_ATTENTION_MIXED_H
#define OP_X86_ATTENTION_MIXED_H

#include "op/x86/attention_words.h"

enum { CODED = 1, BELOW = 2, EACH = 4 }; /* of a class: read as codes; below `low`; INT8 with a scale a key */

/* Some keys of a block, one after another, and where in the block they are. */
typedef struct few_keys {
    kv_rows rows;
    int32_t n;
    uint8_t place[ATTN_BLOCK];
} few_keys;

typedef struct mixed_tile {
    const attn_tile *tile;
    tile_scratch *t;
    bool token;            /* a store of codec token, else a float store */
    int64_t keys;          /* of the row that has most */
    int64_t start, count;  /* the block: keys start .. start + count - 1 */
    int64_t next;          /* where the next one begins, which is asked for; `start` where there is none */
    int_keys coded;        /* keys of the pages, for queries in INT8 */
    int_keys int8[2];      /* rows in INT8: one scale, a scale each */
    kv_verticals vertical; /* of the page of the block */
    few_keys marked;       /* of the rows below `low` */
    uint64_t marks;        /* a bit a key */
    kv_rows rows;          /* of the tail, or of a float store */
    bool rows_ready, scales_ready, marks_ready;
    word_form key_form[3], value_form; /* of the pages */
    uint8_t *bytes;                    /* rows in INT8 */
    float *code_sum;                   /* [ATTN_TILE][v_dims]: as t->sum, of the codes only, their dims in planes */
    int64_t v_dims, words;             /* words of a query */
    float *mark_rows;
    word_query q[ATTN_TILE];
    int_query q8[ATTN_TILE];
    word_weights weights[ROWS];
    float k_scale[3][ATTN_BLOCK], v_scale[ATTN_BLOCK]; /* of codes */
    float plus[ATTN_BLOCK];                            /* to the scores of codes: -inf where they do not count */
    float zeros[ATTN_BLOCK], ones[ROWS], other[ROWS][ATTN_BLOCK];
    int32_t dot[ROWS][ATTN_BLOCK];
    int16_t *word;
    int8_t *digit;
} mixed_tile;

/* ---- FP32 kernels for any number of rows ---- */

#define ANY_FORMAT(rows, call, ...)                                              \
case rows:                                                                       \
    if (b->format == KV_FLOAT_FP32) call(rows, KV_FLOAT_FP32, __VA_ARGS__);      \
    else if (b->format == KV_FLOAT_FP16) call(rows, KV_FLOAT_FP16, __VA_ARGS__); \
    else call(rows, KV_FLOAT_BF16, __VA_ARGS__);                                 \
    break;
#if ROWS == 4
#    define ANY_ROWS(call, ...)          \
        ANY_FORMAT(1, call, __VA_ARGS__) \
        ANY_FORMAT(2, call, __VA_ARGS__) ANY_FORMAT(3, call, __VA_ARGS__) ANY_FORMAT(4, call, __VA_ARGS__)
#else
#    define ANY_ROWS(call, ...) ANY_FORMAT(1, call, __VA_ARGS__) ANY_FORMAT(2, call, __VA_ARGS__)
#endif

static void score_any(int32_t rows, const float *const *q, const kv_rows *b, int64_t count,
                      float (*score)[ATTN_BLOCK]) {
    switch (rows) { ANY_ROWS(score_rows, q, b, count, score) }
}

static void weigh_any(int32_t rows, const kv_rows *b, int64_t first, int64_t last, const float *shrink,
                      float (*weight)[ATTN_BLOCK], float *sum) {
    switch (rows) { ANY_ROWS(weigh_rows, b, first, last, shrink, weight, sum) }
}

/* ---- queries ---- */

/* In INT8, in the order of the codes and in that of the rows. */
static void query_to_int8(mixed_tile *m, int32_t r, float most) {
    const float *x = m->tile->q[r];
    int_query *q = &m->q8[r];
    const int32_t dims = m->t->kv.k;
    int8_t *digit = m->digit + (int64_t)r * DIGITS * dims;
    *q = (int_query){.digit = digit, .scale = most / 127.0f};
    for (int32_t p = 0, at = 0, begin = 0; p < m->coded.parts; begin = at, p++) {
        const code_form *f = &m->coded.form[p];
        for (int32_t plane = 0; plane < f->planes; plane++)
            for (int32_t c = 0; c < f->cols; c++, at++) {
                const int32_t d = begin + c * f->planes + plane;
                const float code = most > 0 ? round_even(clamp_code(x[d] / q->scale, 127.0f)) : 0;
                digit[DIGIT_CODES * dims + at] = digit[DIGIT_ROWS * dims + d] = (int8_t)code;
                q->sum[p] += (int32_t)code;
            }
    }
}

static void query_to_words(mixed_tile *m, int32_t r, float most) {
    const float *x = m->tile->q[r], by = most > 0 ? WORD_MOST / most : 0;
    word_query *q = &m->q[r];
    int16_t *word = m->word + (int64_t)r * m->words;
    *q = (word_query){.word = word, .scale = most / WORD_MOST};
    memset(word, 0, (size_t)m->words * sizeof *word);
    for (int32_t p = 0; p < m->coded.parts; word += m->key_form[p].pad * m->key_form[p].planes, p++) {
        const word_form *f = &m->key_form[p];
        const int32_t dims = m->tile->s->layer->part[p].dims;
        for (int32_t d = 0; d < dims; d++) {
            const int32_t c = d / f->planes, whole = (int32_t)lrintf(clamp_code(x[d] * by, WORD_MOST));
            word[(c / WORDS * f->planes + d % f->planes) * WORDS + c % WORDS] = (int16_t)whole;
            q->sum[p] += whole;
        }
        x += dims;
    }
}

static void round_query(mixed_tile *m, int32_t r) {
    const float *x = m->tile->q[r];
    float most = 0, broken = 0; /* NaN, where an element is not finite */
    for (int32_t d = 0; d < m->t->kv.k; d++) {
        most = max_abs(most, x[d]);
        broken += x[d] * 0.0f;
    }
    if (m->token) query_to_words(m, r, most);
    m->q[r].scale += broken;
    if (m->tile->s->prefill.mode != EBB_PREFILL_FULL) query_to_int8(m, r, most);
}

/* ---- the keys and values of a block ---- */

static const uint8_t *plane_of(const mixed_tile *m, int32_t plane) {
    return kv_at(m->tile->s, m->tile->slot, m->tile->head, plane, m->start);
}

/* From where something of this block is to where the same of the next one is, which may be in another page. */
static int64_t ahead_of(const mixed_tile *m, int32_t plane) {
    return kv_at(m->tile->s, m->tile->slot, m->tile->head, plane, m->next) - plane_of(m, plane);
}

/* Scales of the keys below `count`, 0 from there on: what is there may be anything. */
static void read_scales(const mixed_tile *m, int32_t plane, float unit, float *to) {
    const uint8_t *at = plane_of(m, plane);
    const uint16_t *from = (const uint16_t *)(const void *)at;
    const int64_t ahead = ahead_of(m, plane);
    for (size_t i = 0; i < ATTN_BLOCK * sizeof *from; i += 64) ASK(at + ahead + i);
    for (int64_t j = 0; j < ATTN_BLOCK; j += VL) vf_store(to + j, vf_mul(vf_load_fp16(from + j), vf_set1(unit)));
    for (int64_t j = m->count; j < ATTN_BLOCK; j++) to[j] = 0;
}

static void read_code_scales(mixed_tile *m) {
    if (m->scales_ready) return;
    for (int32_t p = 0; p < m->coded.parts; p++) read_scales(m, 2 * p + 1, m->key_form[p].unit, m->k_scale[p]);
    read_scales(m, 2 * m->t->kv.v_part + 1, m->value_form.unit, m->v_scale);
    const int32_t in = (int32_t)(m->start % m->tile->s->page);
    memset(m->plus, 0, sizeof m->plus);
    for (int32_t i = 0; i < m->vertical.n; i++) {
        const int32_t j = m->vertical.place[i] - in;
        if (j >= 0 && j < ATTN_BLOCK) m->plus[j] = -INFINITY; /* they were attended to with the page */
    }
    m->scales_ready = true;
}

static void read_keys(mixed_tile *m) {
    if (m->coded.ready) return;
    for (int32_t p = 0; p < m->coded.parts; p++)
        lay_keys(plane_of(m, 2 * p), m->tile->s->plane_bytes[2 * p], &m->coded.form[p], m->coded.u[p]);
    m->coded.ready = true;
}

static kv_rows rows_from(const mixed_tile *m, const uint16_t *row) {
    const kv_shape *kv = &m->t->kv;
    const int64_t step = kv->all * (int64_t)sizeof *row;
    return (kv_rows){.k = {{(const uint8_t *)row, step, kv->k, AHEAD * step}},
                     .k_parts = 1,
                     .format = m->tile->s->rule.tail == EBB_FP16 ? KV_FLOAT_FP16 : KV_FLOAT_BF16,
                     .v = (const uint8_t *)(row + kv->v_at),
                     .v_step = step,
                     .v_dims = kv->v,
                     .v_ahead = AHEAD * step};
}

static void read_rows(mixed_tile *m) {
    const attn_tile *tile = m->tile;
    if (m->rows_ready) return;
    kv_rows b = m->token ? rows_from(m, kv_tail_row(tile->s, m->t->kv.all, tile->slot, tile->head, m->start))
                         : block_in_place(tile, m->start, m->next, &m->t->kv);
    m->rows = block_widened(tile, b, m->count, m->t);
    m->rows_ready = true;
}

/* Those of the page that begins with the block. */
static void read_verticals(mixed_tile *m) {
    const attn_tile *tile = m->tile;
    m->vertical = kv_verticals_of(tile->s, &m->t->kv, tile->slot, tile->head, m->start);
}

/* The share of those of the next page that is asked for with this block. */
static word_asks ask_verticals(const mixed_tile *m) {
    const attn_tile *tile = m->tile;
    const int64_t page = tile->s->page, in = m->start % page, next = m->start - in + page;
    if (next >= m->keys) return (word_asks){0};
    const kv_verticals all = kv_verticals_of(tile->s, &m->t->kv, tile->slot, tile->head, next);
    const int64_t line = 64 / (int64_t)sizeof *all.rows, lines = all.n * m->t->kv.all / line,
                  with = (lines * KEYS + page - 1) / page;
    if (all.n) ASK(all.place);
    return (word_asks){(const uint8_t *)(all.rows + in / KEYS * with * line), with};
}

static void read_marks(mixed_tile *m) {
    const attn_tile *tile = m->tile;
    if (m->marks_ready) return;
    m->marks_ready = true;
    m->marks = 0;
    m->marked.n = 0;
    if (tile->mode != EBB_PREFILL_VQUANT || tile->s->prefill.select == EBB_SELECT_NONE) return;
    const int64_t in = m->start % tile->s->page;
    memcpy(&m->marks, kv_marks(tile->s, tile->slot, tile->head, tile->mark[0], m->start) + in / 8, sizeof m->marks);
}

/* The marked keys among the rows, in FP32. */
static void gather_marked(mixed_tile *m) {
    const kv_rows *b = &m->rows;
    const int64_t dims = m->t->kv.k;
    for (int64_t j = 0; j < m->count; j++) {
        if (!(m->marks >> j & 1)) continue;
        float *to = m->mark_rows + m->marked.n * dims;
        for (int32_t p = 0; p < b->k_parts; to += b->k[p++].dims)
            widen(b->k[p].at + j * b->k[p].step, b->k[p].step, b->format, 1, b->k[p].dims, to, 0);
        m->marked.place[m->marked.n++] = (uint8_t)j;
    }
    m->marked.rows = (kv_rows){.k = {{(const uint8_t *)m->mark_rows, dims * (int64_t)sizeof(float), dims}},
                               .k_parts = 1,
                               .format = KV_FLOAT_FP32};
}

/* ---- rows in INT8 ---- */

static void store_bytes(uint8_t *to, vf x) { /* whole numbers, 0 .. 255 */
#if VL == 16
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
#else
    const __m256i whole = _mm256_cvtps_epi32(x);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64((__m128i *)(void *)to, _mm_packus_epi16(half, half));
#endif
}

static vf vf_abs(vf x) { return vf_max(x, vf_sub(vf_zero(), x)); }

ALWAYS void mean_of(const kv_rows *b, int32_t p, int64_t d, int vectors, float *mean) {
    vf sum[4];
    UNROLL for (int i = 0; i < vectors; i++) sum[i] = vf_zero();
    for (int64_t j = 0; j < ATTN_BLOCK; j++)
        UNROLL for (int i = 0; i < vectors; i++) sum[i] =
            vf_add(sum[i], load_value(b->k[p].at + j * b->k[p].step, d + i * VL, b->format));
    UNROLL for (int i = 0; i < vectors; i++) vf_store(mean + d + i * VL, vf_mul(sum[i], vf_set1(1.0f / ATTN_BLOCK)));
}

static void find_mean(const kv_rows *b, float *mean) {
    for (int32_t p = 0; p < b->k_parts; mean += b->k[p++].dims) {
        int64_t d = 0;
        for (; d + 4 * VL <= b->k[p].dims; d += 4 * VL) mean_of(b, p, d, 4, mean);
        for (; d < b->k[p].dims; d += VL) mean_of(b, p, d, 1, mean);
    }
}

/* max |k - mean| of `keys` keys from key j on. */
ALWAYS float largest(const kv_rows *b, int64_t j, int keys, const float *mean) {
    vf most[4];
    UNROLL for (int i = 0; i < keys; i++) most[i] = vf_zero();
    for (int32_t p = 0; p < b->k_parts; mean += b->k[p++].dims)
        for (int64_t d = 0; d < b->k[p].dims; d += VL) UNROLL for (int i = 0; i < keys; i++) {
                const vf x = load_value(b->k[p].at + (j + i) * b->k[p].step, d, b->format);
                most[i] = vf_max(vf_abs(vf_sub(x, vf_load(mean + d))), most[i]);
            }
    UNROLL for (int i = 1; i < keys; i++) most[0] = vf_max(most[i], most[0]);
    return vf_top(most[0]);
}

/* The codes of a key, to be divided by its scale or, `quick`, multiplied by its inverse. Answers how far a quotient is
 * from its code at most. */
ALWAYS float round_key(const kv_rows *b, int64_t j, const float *mean, float scale, bool quick, uint8_t *to) {
    const vf by = vf_set1(quick ? 1.0f / scale : scale), most = vf_set1(127.0f), least = vf_set1(-127.0f);
    vf far = vf_zero();
    for (int32_t p = 0; p < b->k_parts; mean += b->k[p].dims, to += b->k[p++].dims)
        for (int64_t d = 0; d < b->k[p].dims; d += VL) {
            const vf x = vf_sub(load_value(b->k[p].at + j * b->k[p].step, d, b->format), vf_load(mean + d));
            const vf code = vf_min(vf_max(quick ? vf_mul(x, by) : vf_div(x, by), least), most);
            const vf whole = vf_round(code);
            far = vf_max(vf_abs(vf_sub(code, whole)), far);
            store_bytes(to + d, vf_add(whole, vf_set1(128.0f)));
        }
    return vf_top(far);
}

/* The product rounds otherwise than the quotient only beside 1/2. */
static void round_key_exactly(const kv_rows *b, int64_t j, const float *mean, float scale, uint8_t *to) {
    if (scale > 1e-30f && round_key(b, j, mean, scale, true, to) < 0.49995f) return;
    round_key(b, j, mean, scale > 0 ? scale : INFINITY, false, to);
}

static void round_rows(mixed_tile *m, bool each) {
    int_keys *k = &m->int8[each];
    const int32_t dims = m->t->kv.k;
    const int64_t apart = (int64_t)align_up((size_t)dims, 64);
    const code_form whole = {.bits = 8, .planes = 1, .cols = dims, .pad = dims};
    float most = 0;
    if (k->ready) return;
    if (!each) find_mean(&m->rows, k->mean);
    for (int64_t j = 0; !each && j < ATTN_BLOCK; j += 4) {
        const float top = largest(&m->rows, j, 4, k->mean);
        most = top > most ? top : most;
    }
    for (int64_t j = 0; j < m->count; j++) {
        k->scale[0][j] = (each ? largest(&m->rows, j, 1, k->mean) : most) / 127.0f;
        round_key_exactly(&m->rows, j, k->mean, k->scale[0][j], m->bytes + j * apart);
    }
    for (int32_t p = 1; p < k->parts; p++) memcpy(k->scale[p], k->scale[0], sizeof k->scale[p]);
    lay_keys(m->bytes, apart, &whole, k->u[0]);
    k->ready = true;
}

/* ---- scores of rows first .. first + n - 1, which are of one class ---- */

/* Those of the few keys replace what there is. */
static void score_few(mixed_tile *m, int32_t n, int32_t first, const few_keys *few) {
    if (!few->n) return;
    score_any(n, m->tile->q + first, &few->rows, few->n, m->other);
    for (int32_t r = 0; r < n; r++)
        for (int32_t i = 0; i < few->n; i++) m->t->score[first + r][few->place[i]] = m->other[r][i];
}

static void score_words(mixed_tile *m, int32_t n, int32_t first, float (*score)[ATTN_BLOCK]) {
    int64_t at = 0;
    for (int32_t p = 0; p < m->coded.parts; p++) {
        const word_form *f = &m->key_form[p];
        dot_words_any(n, plane_of(m, 2 * p), m->tile->s->plane_bytes[2 * p], ahead_of(m, 2 * p),
                      p ? (word_asks){0} : ask_verticals(m), f, m->q + first, at, m->dot);
        add_scores(n, f, p, m->q + first, m->k_scale[p], m->plus, m->dot, score);
        at += (int64_t)f->pad * f->planes;
    }
}

static void score_codes(mixed_tile *m, int32_t n, int32_t first, int32_t class) {
    const bool full = m->marks && !m->tile->s->rule.select; /* some are not in INT8 */
    read_code_scales(m);
    if (!(class & BELOW)) score_words(m, n, first, m->t->score + first);
    else {
        read_keys(m);
        score_int(n, DIGIT_CODES, &m->coded, m->k_scale, m->plus, m->t->kv.k, m->q8 + first, m->t->score + first);
    }
    if ((class & BELOW) && full) {
        score_words(m, n, first, m->other);
        for (int32_t r = 0; r < n; r++)
            for (int32_t j = 0; j < ATTN_BLOCK; j++)
                if (m->marks >> j & 1) m->t->score[first + r][j] = m->other[r][j];
    }
}

static void score_int8(mixed_tile *m, int32_t n, int32_t first, bool each) {
    const int32_t dims = m->t->kv.k;
    round_rows(m, each);
    score_int(n, DIGIT_ROWS, &m->int8[each], m->int8[each].scale, m->zeros, dims, m->q8 + first, m->t->score + first);
    for (int32_t r = first; !each && r < first + n; r++) {
        vf sum = vf_zero();
        for (int32_t d = 0; d < dims; d += VL)
            sum = vf_fma(vf_load(m->tile->q[r] + d), vf_load(m->int8[0].mean + d), sum);
        const vf mean = vf_set1(vf_sum(sum));
        for (int32_t j = 0; j < ATTN_BLOCK; j += VL)
            vf_store(m->t->score[r] + j, vf_add(vf_load(m->t->score[r] + j), mean));
    }
    if (m->marks && !m->marked.n) gather_marked(m);
    score_few(m, n, first, &m->marked);
}

/* ---- weights and values ---- */

static void round_to_fp16(float *weight) {
    uint16_t half[VL];
    for (int32_t j = 0; j < ATTN_BLOCK; j += VL) {
        const vf x = vf_load(weight + j);
        vf_store_fp16(half, x);
        vf_store(weight + j, vf_or_nan(x, vf_load_fp16(half)));
    }
}

static void shrink_sums(int32_t n, const float *shrink, int64_t dims, float *sum) {
    for (int32_t r = 0; r < n; r++, sum += dims)
        for (int64_t d = 0; d < dims && shrink[r] != 1.0f; d += VL)
            vf_store(sum + d, vf_mul(vf_load(sum + d), vf_set1(shrink[r])));
}

static void weigh_codes(mixed_tile *m, int32_t n, int32_t first) {
    tile_scratch *t = m->t;
    const int32_t plane = 2 * t->kv.v_part;
    for (int32_t r = 0; r < n; r++) weights_to_words(t->score[first + r], m->v_scale, &m->weights[r]);
    weigh_words_any(n, plane_of(m, plane), m->tile->s->plane_bytes[plane], ahead_of(m, plane), &m->value_form,
                    m->weights, t->shrink + first, m->v_dims, m->code_sum + first * m->v_dims);
    shrink_sums(n, t->shrink + first, t->kv.v, t->sum + first * t->kv.v);
}

static void weigh_wide(mixed_tile *m, const kv_rows *rows, int32_t n, int32_t first) {
    tile_scratch *t = m->t;
    int64_t least = ATTN_BLOCK;
    for (int32_t r = first; r < first + n; r++) least = min_i64(least, t->count[r]);
    weigh_any(n, rows, 0, least, t->shrink + first, t->score + first, t->sum + first * t->kv.v);
    for (int32_t r = first; r < first + n; r++)
        if (t->count[r] > least) weigh_any(1, rows, least, t->count[r], m->ones, t->score + r, t->sum + r * t->kv.v);
    if (m->token) shrink_sums(n, t->shrink + first, m->v_dims, m->code_sum + first * m->v_dims);
}

/* ---- a block ---- */

static int32_t class_of(const mixed_tile *m, int32_t r) {
    const attn_tile *tile = m->tile;
    int32_t class = m->token && m->start < tile->codes[r] ? CODED : 0;
    if (m->start < tile->low[r]) class |= BELOW;
    if ((class & (CODED | BELOW)) == BELOW && m->start + ATTN_BLOCK > tile->limit[r]) class |= EACH;
    return class;
}

static void soften_rows(mixed_tile *m, int32_t n, int32_t first) {
    for (int32_t r = first; r < first + n; r++) {
        m->t->shrink[r] = 1.0f;
        if (m->t->count[r] == 0) continue;
        soften(m->t, r, m->tile->s->layer->scale);
        if (m->tile->mode != EBB_PREFILL_FULL) round_to_fp16(m->t->score[r]);
    }
}

/* The vertical keys of the page that begins with this block, as blocks of their own: each row has those it reads as
 * codes, which are the first ones. */
static void attend_verticals(mixed_tile *m, int32_t n, int32_t first) {
    tile_scratch *t = m->t;
    int64_t count[ROWS] = {0};
    read_verticals(m);
    for (int32_t r = 0; r < n; r++) count[r] = t->count[first + r];
    for (int32_t from = 0; from < m->vertical.n; from += ATTN_BLOCK) {
        const kv_rows rows = rows_from(m, m->vertical.rows + from * m->t->kv.all);
        const int32_t some = m->vertical.n - from < ATTN_BLOCK ? m->vertical.n - from : ATTN_BLOCK;
        int64_t most = 0;
        for (int32_t r = first; r < first + n; r++) {
            t->count[r] = 0;
            while (t->count[r] < some && m->start + m->vertical.place[from + t->count[r]] < m->tile->codes[r])
                t->count[r]++;
            most = max_i64(most, t->count[r]);
        }
        if (!most) break;
        score_any(n, m->tile->q + first, &rows, most, t->score + first);
        soften_rows(m, n, first);
        weigh_wide(m, &rows, n, first);
    }
    for (int32_t r = 0; r < n; r++) t->count[first + r] = count[r];
}

static void attend_class(mixed_tile *m, int32_t n, int32_t first, int32_t class) {
    tile_scratch *t = m->t;
    int64_t most = 0;
    read_marks(m);
    if ((class & CODED) && m->start % m->tile->s->page == 0) attend_verticals(m, n, first);
    if (class & CODED) score_codes(m, n, first, class);
    else {
        read_rows(m);
        for (int32_t r = first; r < first + n; r++) most = max_i64(most, t->count[r]);
        if (class & BELOW) score_int8(m, n, first, class & EACH);
        else score_any(n, m->tile->q + first, &m->rows, most, t->score + first);
    }
    soften_rows(m, n, first);
    if (class & CODED) weigh_codes(m, n, first);
    else weigh_wide(m, &m->rows, n, first);
}

static void attend_mixed(mixed_tile *m) {
    const int32_t rows = m->tile->n;
    m->coded.ready = m->int8[0].ready = m->int8[1].ready = false;
    m->rows_ready = m->scales_ready = m->marks_ready = false;
    for (int32_t first = 0, n; first < rows; first += n) {
        n = 1;
        if (m->t->count[first] == 0) continue;
        const int32_t class = class_of(m, first);
        while (n < ROWS && first + n < rows && m->t->count[first + n] > 0 && class_of(m, first + n) == class) n++;
        attend_class(m, n, first, class);
    }
}

/* ---- a tile ---- */

static void forms_of(const ebb_kv_view *view, mixed_tile *m) {
    const kv_shape kv = kv_shape_of(view->layer);
    m->token = view->codec == &kv_codec_token;
    m->coded.parts = 0;
    m->words = 0;
    for (int32_t p = 0; p < view->layer->parts && view->layer->part[p].role & EBB_ROLE_K; p++) {
        const int32_t dims = view->layer->part[p].dims;
        const code_form rows = {.bits = 8, .planes = 1, .cols = dims, .pad = dims, .offset = 128};
        m->coded.form[p] = m->token ? form_of(view->param, view->layer->part[p].role, dims) : rows;
        if (m->token) m->key_form[p] = word_form_of(view->param, view->layer->part[p].role, dims);
        m->words += (int64_t)m->key_form[p].pad * m->key_form[p].planes;
        m->int8[0].form[p] = m->int8[1].form[p] = rows;
        m->coded.parts++;
    }
    m->int8[0].parts = m->int8[1].parts = m->coded.parts;
    if (!m->token) return;
    m->value_form = word_form_of(view->param, view->layer->part[kv.v_part].role, kv.v);
    m->v_dims = m->value_form.planes * m->value_form.pad;
}

/* Places the arrays of `m` behind it, at `at` (NULL: none), and answers their bytes. */
static size_t carve(const ebb_kv_view *view, uint8_t *at, mixed_tile *m) {
    const size_t dims = (size_t)kv_shape_of(view->layer).k, v = (size_t)m->v_dims;
    size_t used = align_up(sizeof *m, 64);
#define CARVE(field, bytes)                  \
    do {                                     \
        if (at) field = (void *)(at + used); \
        used += align_up(bytes, 64);         \
    } while (0)
    CARVE(m->t, scratch_bytes(view));
    CARVE(m->word, ATTN_TILE * (size_t)m->words * sizeof *m->word);
    CARVE(m->code_sum, v * ATTN_TILE * sizeof(float));
    if (view->prefill.mode != EBB_PREFILL_FULL) {
        CARVE(m->digit, ATTN_TILE * DIGITS * dims);
        for (int32_t p = 0; m->token && p < m->coded.parts; p++)
            CARVE(m->coded.u[p], (size_t)(m->coded.form[p].planes * m->coded.form[p].pad) * ATTN_BLOCK);
        CARVE(m->mark_rows, dims * ATTN_BLOCK * sizeof(float));
        CARVE(m->bytes, align_up(dims, 64) * ATTN_BLOCK);
        for (int32_t i = 0; i < 2; i++) {
            CARVE(m->int8[i].u[0], dims * ATTN_BLOCK);
            CARVE(m->int8[i].scale, 3 * sizeof *m->int8[i].scale);
            CARVE(m->int8[i].mean, dims * sizeof(float));
        }
    }
#undef CARVE
    return used;
}

static size_t scratch_mixed(const ebb_kv_view *view) {
    mixed_tile m = {0};
    forms_of(view, &m);
    return carve(view, NULL, &m); /* the scratch of tile_run is in it */
}

static mixed_tile *mixed_new(const attn_tile *tile, void *scratch) {
    const ebb_kv_view *s = tile->s;
    mixed_tile *m = scratch;
    memset(m, 0, sizeof *m);
    forms_of(s, m);
    carve(s, scratch, m);
    m->tile = tile;
    scratch_new(m->t, s->layer);
    for (int32_t r = 0; r < ROWS; r++) m->ones[r] = 1.0f;
    for (int32_t i = 0; i < 2 && s->prefill.mode != EBB_PREFILL_FULL; i++) {
        for (int32_t p = 1, at = 0; p < m->coded.parts; p++) {
            at += m->int8[i].form[p - 1].cols;
            m->int8[i].u[p] = m->int8[i].u[0] + at * ATTN_BLOCK;
        }
        memset(m->int8[i].mean, 0, (size_t)m->t->kv.k * sizeof(float));
    }
    for (int32_t r = 0; r < tile->n; r++) round_query(m, r);
    memset(m->t->sum, 0, (size_t)(tile->n * m->t->kv.v) * sizeof(float));
    memset(m->code_sum, 0, (size_t)(tile->n * m->v_dims) * sizeof(float));
    return m;
}

/* The values of codes join the others. */
static void join_sums(const mixed_tile *m) {
    const word_form *f = &m->value_form;
    for (int32_t r = 0; m->token && r < m->tile->n; r++) {
        float *to = m->t->sum + r * m->t->kv.v, *from = m->code_sum + r * m->v_dims;
        for (int32_t plane = 0; plane < f->planes; plane++, from += f->pad)
            for (int32_t c = 0; c < f->cols; c++) to[c * f->planes + plane] += from[c];
    }
}

static void run_mixed(const attn_tile *tile, void *scratch) {
    if (tile->s->codec == &kv_codec_float && tile->mode == EBB_PREFILL_FULL) {
        tile_run(tile, scratch);
        return;
    }
    mixed_tile *m = mixed_new(tile, scratch);
    tile_scratch *t = m->t;
    for (int32_t r = 0; r < tile->n; r++) {
        t->max[r] = -INFINITY;
        t->total[r] = 0;
        m->keys = max_i64(m->keys, tile->limit[r]);
    }
    for (m->start = 0; m->start < m->keys; m->start += ATTN_BLOCK) {
        m->count = min_i64(ATTN_BLOCK, m->keys - m->start);
        m->next = m->start + ATTN_BLOCK < m->keys ? m->start + ATTN_BLOCK : m->start;
        for (int32_t r = 0; r < tile->n; r++) t->count[r] = max_i64(0, min_i64(ATTN_BLOCK, tile->limit[r] - m->start));
        attend_mixed(m);
    }
    join_sums(m);
    tile_end(tile, t);
}

static const char *refuse_mixed(const ebb_kv_view *view) {
    const ebb_prefill *p = &view->prefill;
    const bool token = view->codec == &kv_codec_token;
    if (!token && view->codec != &kv_codec_float) return "it serves float and low-bit token codes only";
    if (p->mode == EBB_PREFILL_SPARSE) return "it does not serve prefill=sparse_only";
    if (p->mode != EBB_PREFILL_FULL && p->fp8) return "it does not serve prefill with pv=fp8";
    if (p->mode == EBB_PREFILL_VQUANT && p->select == EBB_SELECT_PAPER)
        return "it does not serve prefill with vertical keys of each query head (select=paper)";
    if (token)
        for (int32_t i = 0; i < view->layer->parts; i++)
            if (view->layer->part[i].dims % 16) return "it serves codes of head dims that are multiples of 16 only";
    return refuse_dims(view);
}

#endif
