/* op/ref/attention.c: the definition of softmax attention over a KV store, for any codec, parts and dims. Row by row,
 * with scores s_j over the keys j below the row's limit, k_j and v_j as kv_int.h cuts a token's parts:
 *   out = sum_j e^(s_j - m) v_j / sum_j e^(s_j - m),  m = max_j s_j,
 * as an online softmax over blocks of ATTN_BLOCK keys aligned to absolute positions. op/rows.h says from where a row
 * reads a key and a value: the codes of the pages, a vertical key's 16-bit row, or the tail.
 *
 * s_j = scale (q . k_j), but in the modes of prefill, for the keys below `low` that are not vertical:
 *   q is rounded to q8 with one scale, s_q = max |q| / 127, q8 = round(q / s_q);
 *   of integer codes c with a scale s_p for each part,  s_j = scale s_q sum_p s_p (q8 . c_j)_p;
 *   of a block that ends at or below the limit, with mean m over its 64 keys and s_k = max |k - m| / 127 over them,
 *     k8_j = round((k_j - m) / s_k),  s_j = scale (s_q s_k (q8 . k8_j) + q . m);
 *   of the block in which the row itself lies (sage_w0) s_k is of each key alone and m = 0: no later key is looked at.
 * Their weights are rounded to FP16 before they meet the values, not in the sum below them. With pv=fp8, values of the
 * keys that took part in INT8 are E4M3 with a scale for each channel of the block, max |v| / 448 over these keys, and
 * their weights, times 448, are E4M3. Called by op/attention.c through the row table. */
#include "op/rows.h"

#include <math.h>
#include <string.h>

#include "format/float8.h"
#include "kv/kv_int.h"

enum { FROM_CODES, FROM_ROWS };                                  /* what is rounded to INT8 */
enum { WHOLE_BLOCK, EACH_KEY };                                  /* and how */
enum { LEFT_OUT, CODED, WIDE, INTEGERS, INT8_CODED, INT8_WIDE }; /* how a row reads a key */

typedef struct int8_block { /* keys of a block in INT8: k = code * scale + mean */
    bool ready;
    int8_t *code; /* [ATTN_BLOCK][K dims] */
    float *mean;  /* [K dims] */
    float scale[ATTN_BLOCK];
} int8_block;

/* What one worker keeps: a block of keys in every form that a row of the tile reads, and the rows' INT8 queries. */
typedef struct ref_tile {
    const attn_tile *t;
    kv_shape kv;
    ebb_planes planes;
    int64_t start, count; /* the block: keys start .. start + count - 1 */
    bool vertical[ATTN_BLOCK];
    float *coded, *wide; /* [ATTN_BLOCK][all]: what the codes say; 16-bit rows, where the tile reads one */
    int8_t *integers;    /* [ATTN_BLOCK][K dims] */
    float part_scale[ATTN_BLOCK][3];
    int8_block int8[2][2]; /* of FROM_CODES, FROM_ROWS; WHOLE_BLOCK, EACH_KEY */
    int8_t *q;             /* [ATTN_TILE][K dims] */
    float q_scale[ATTN_TILE];
    float *group; /* one group of tokens, as the codec gives it */
    uint8_t *packed;
} ref_tile;

static const char *ref_refuse(const ebb_kv_view *view) {
    (void)view; /* what op/attention.c lets through is served */
    return NULL;
}

/* Places the arrays of `r` behind it, at `at` (NULL: none), and answers their bytes. */
static size_t carve(const ebb_kv_view *s, uint8_t *at, ref_tile *r) {
    ebb_kv_rule rule;
    if (s->codec->layout(s->layer, s->param, &rule, &r->planes, NULL)) return 0; /* checked before */
    r->kv = kv_shape_of(s->layer);
    const size_t all = (size_t)r->kv.all, k = (size_t)r->kv.k, keys = ATTN_BLOCK, line = sizeof(float);
    size_t used = align_up(sizeof *r, 64);
#define CARVE(field, bytes)                     \
    do {                                        \
        if (at) r->field = (void *)(at + used); \
        used += align_up(bytes, 64);            \
    } while (0)
    CARVE(coded, keys * all * line);
    CARVE(wide, keys * all * line);
    CARVE(group, (size_t)s->rule.group * all * line);
    CARVE(packed, r->planes.bytes);
    if (s->prefill.mode != EBB_PREFILL_FULL) {
        CARVE(integers, keys * k);
        CARVE(q, ATTN_TILE * k);
        for (int32_t i = 0; i < 4; i++) {
            CARVE(int8[i / 2][i % 2].code, keys * k);
            CARVE(int8[i / 2][i % 2].mean, k * line);
        }
    }
#undef CARVE
    return used;
}

static size_t ref_scratch(const ebb_kv_view *view) { return carve(view, NULL, &(ref_tile){0}); }

static float dot(const float *a, const float *b, int32_t n) {
    float sum = 0;
    for (int32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static float int_dot(const int8_t *a, const int8_t *b, int32_t n) {
    int32_t sum = 0;
    for (int32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return (float)sum;
}

/* ---- the keys of a block ---- */

/* Decoded tokens below `end`, each with its parts one after another. */
static void read_codes(ref_tile *r, int64_t end) {
    const ebb_kv_view *s = r->t->s;
    const int64_t group = s->rule.group;
    for (int64_t j = r->start; j < end; j++) {
        float *row = r->coded + (j - r->start) * r->kv.all;
        const int64_t in = j % group;
        if (in == 0 || j == r->start)
            kv_get(s, &r->planes, r->t->slot, r->t->head, j, group == 1 ? row : r->group, r->packed);
        if (r->t->mode != EBB_PREFILL_FULL && s->codec->codes)
            s->codec->codes(s->layer, s->param, r->packed, r->integers + (j - r->start) * r->kv.k,
                            r->part_scale[j - r->start]);
        const float *part = r->group;
        for (int32_t i = 0; group > 1 && i < s->layer->parts; i++) {
            const int32_t dims = s->layer->part[i].dims;
            memcpy(row, part + in * dims, (size_t)dims * sizeof *row);
            part += group * dims;
            row += dims;
        }
    }
}

/* Vertical keys below `end`, and the tail from `tail` on. */
static void read_rows(ref_tile *r, int64_t end, int64_t tail) {
    const ebb_kv_view *s = r->t->s;
    const kv_verticals v =
        end > r->start ? kv_verticals_of(s, &r->kv, r->t->slot, r->t->head, r->start) : (kv_verticals){0};
    const int64_t page = r->start / s->page * s->page, all = r->kv.all;
    memset(r->vertical, 0, sizeof r->vertical);
    for (int32_t i = 0; i < v.n; i++) {
        const int64_t j = page + v.place[i] - r->start;
        if (j < 0 || j >= end - r->start) continue;
        r->vertical[j] = true;
        kv_row_read(&s->rule, v.rows + i * all, r->kv.all, r->wide + j * all);
    }
    for (int64_t j = max_i64(tail, r->start); j < r->start + r->count; j++)
        kv_row_read(&s->rule, kv_tail_row(s, r->kv.all, r->t->slot, r->t->head, j), r->kv.all,
                    r->wide + (j - r->start) * all);
}

static void read_block(ref_tile *r, int64_t start, int64_t limit) {
    const attn_tile *t = r->t;
    int64_t codes = 0, tail = limit;
    for (int32_t i = 0; i < t->n; i++) {
        codes = max_i64(codes, max_i64(t->codes[i], t->values[i]));
        tail = min_i64(tail, min_i64(t->codes[i], t->values[i]));
    }
    r->start = start;
    r->count = min_i64(ATTN_BLOCK, limit - start);
    codes = min_i64(codes, start + r->count);
    read_codes(r, codes);
    read_rows(r, codes, t->s->rule.tail ? tail : limit);
    for (int32_t i = 0; i < 4; i++) r->int8[i / 2][i % 2].ready = false;
}

/* ---- INT8 ---- */

/* s = max |x| / 127; the codes of x are round(x / s), and 0 where s is 0. */
static float int8_scale(float most) { return most / 127.0f; }
static int8_t int8_code(float x, float scale) {
    return (int8_t)(scale > 0 ? round_even(clamp_code(x / scale, 127.0f)) : 0);
}

static void round_query(ref_tile *r, int32_t row) {
    const float *q = r->t->q[row];
    float most = 0;
    for (int32_t d = 0; d < r->kv.k; d++) most = max_abs(most, q[d]);
    r->q_scale[row] = int8_scale(most);
    for (int32_t d = 0; d < r->kv.k; d++) r->q[row * r->kv.k + d] = int8_code(q[d], r->q_scale[row]);
}

static void round_keys(const ref_tile *r, int8_block *b, const float *rows, bool each) {
    const int32_t k = r->kv.k;
    for (int32_t d = 0; d < k; d++) {
        float sum = 0;
        for (int64_t j = 0; !each && j < ATTN_BLOCK; j++) sum += rows[j * r->kv.all + d];
        b->mean[d] = sum * (1.0f / ATTN_BLOCK);
    }
    float block = 0;
    for (int64_t j = 0; j < r->count; j++) {
        float most = 0;
        for (int32_t d = 0; d < k; d++) most = max_abs(most, rows[j * r->kv.all + d] - b->mean[d]);
        b->scale[j] = int8_scale(most);
        block = most > block ? most : block;
    }
    for (int64_t j = 0; j < r->count; j++) {
        if (!each) b->scale[j] = int8_scale(block);
        for (int32_t d = 0; d < k; d++)
            b->code[j * k + d] = int8_code(rows[j * r->kv.all + d] - b->mean[d], b->scale[j]);
    }
    b->ready = true;
}

/* ---- scores ---- */

static bool marked(const attn_tile *t, int32_t row, int64_t token) {
    const bool asked = t->mode == EBB_PREFILL_VQUANT || t->mode == EBB_PREFILL_SPARSE;
    if (!asked || t->s->prefill.select == EBB_SELECT_NONE) return false;
    const int64_t bit = token % t->s->page;
    return kv_marks(t->s, t->slot, t->head, t->mark[row], token)[bit / 8] >> bit % 8 & 1;
}

static int32_t kind_of(const ref_tile *r, int32_t row, int64_t j) {
    const attn_tile *t = r->t;
    const int64_t token = r->start + j;
    const bool below = token < t->low[row], sparse = t->mode == EBB_PREFILL_SPARSE;
    if (token >= t->codes[row]) {
        if (!below || marked(t, row, token)) return WIDE;
        return sparse ? LEFT_OUT : INT8_WIDE;
    }
    if (r->vertical[j]) return WIDE;
    if (!below || (!t->s->rule.select && marked(t, row, token))) return CODED;
    return sparse ? LEFT_OUT : t->s->codec->codes ? INTEGERS : INT8_CODED;
}

static float int8_score(ref_tile *r, int32_t row, int64_t j, int32_t from) {
    const attn_tile *t = r->t;
    const int32_t k = r->kv.k, how = r->start + ATTN_BLOCK <= t->limit[row] ? WHOLE_BLOCK : EACH_KEY;
    int8_block *b = &r->int8[from][how];
    if (!b->ready) round_keys(r, b, from == FROM_CODES ? r->coded : r->wide, how == EACH_KEY);
    const float near = r->q_scale[row] * b->scale[j] * int_dot(r->q + row * k, b->code + j * k, k);
    return t->s->layer->scale * (near + dot(t->q[row], b->mean, k));
}

static float integer_score(const ref_tile *r, int32_t row, int64_t j) {
    const ebb_kv_layer *layer = r->t->s->layer;
    const int8_t *q = r->q + row * r->kv.k, *code = r->integers + j * r->kv.k;
    float sum = 0;
    for (int32_t i = 0, at = 0; at < r->kv.k; at += layer->part[i++].dims)
        sum += r->part_scale[j][i] * int_dot(q + at, code + at, layer->part[i].dims);
    return layer->scale * (r->q_scale[row] * sum);
}

static float score_of(ref_tile *r, int32_t row, int64_t j, int32_t kind) {
    const float *q = r->t->q[row];
    switch (kind) {
    case CODED:
        return r->t->s->layer->scale * dot(q, r->coded + j * r->kv.all, r->kv.k);
    case WIDE:
        return r->t->s->layer->scale * dot(q, r->wide + j * r->kv.all, r->kv.k);
    case INTEGERS:
        return integer_score(r, row, j);
    default:
        return int8_score(r, row, j, kind == INT8_CODED ? FROM_CODES : FROM_ROWS);
    }
}

/* ---- the softmax of one row ---- */

/* out is the sum of values weighted by e^(s - max), total the sum of the weights. */
typedef struct running {
    float max, total;
} running;

static const float *value_of(const ref_tile *r, int32_t row, int64_t j) {
    const bool coded = r->start + j < r->t->values[row] && !r->vertical[j];
    return (coded ? r->coded : r->wide) + j * r->kv.all + r->kv.v_at;
}

/* out += the values of the keys that took part in INT8, and their weights, in E4M3. */
static void add_fp8(const ref_tile *r, int32_t row, int64_t count, const int32_t *kind, const float *weight,
                    float *out) {
    for (int32_t d = 0; d < r->kv.v; d++) {
        float most = 0, sum = 0;
        for (int64_t j = 0; j < count; j++)
            if (kind[j] >= INTEGERS) most = max_abs(most, value_of(r, row, j)[d]);
        const float scale = most / FP8_MAX;
        for (int64_t j = 0; scale > 0 && j < count; j++)
            if (kind[j] >= INTEGERS)
                sum += fp8_to_float(float_to_fp8(weight[j] * FP8_MAX)) *
                       fp8_to_float(float_to_fp8(value_of(r, row, j)[d] / scale));
        out[d] += sum * scale / FP8_MAX;
    }
}

static void attend_block(ref_tile *r, int32_t row, running *state, float *out) {
    const attn_tile *t = r->t;
    const int64_t count = min_i64(r->count, t->limit[row] - r->start);
    const bool fp8 = t->mode != EBB_PREFILL_FULL && t->s->prefill.fp8;
    float score[ATTN_BLOCK], max = state->max, total = 0;
    int32_t kind[ATTN_BLOCK], keys = 0;
    for (int64_t j = 0; j < count; j++) {
        if ((kind[j] = kind_of(r, row, j)) == LEFT_OUT) continue;
        score[j] = score_of(r, row, j, kind[j]);
        max = fmaxf(max, score[j]);
        keys++;
    }
    if (!keys) return;
    float shrink = expf(state->max - max); /* 0 at the first block, whose old max is -inf */
    for (int32_t d = 0; d < r->kv.v; d++) out[d] *= shrink;
    for (int64_t j = 0; j < count; j++) {
        if (kind[j] == LEFT_OUT) continue;
        const float *v = value_of(r, row, j);
        float weight = expf(score[j] - max);
        total += weight;
        score[j] = weight;
        if (fp8 && kind[j] >= INTEGERS) continue;
        if (t->mode != EBB_PREFILL_FULL) weight = fp16_to_float(float_to_fp16(weight));
        for (int32_t d = 0; d < r->kv.v; d++) out[d] += weight * v[d];
    }
    if (fp8) add_fp8(r, row, count, kind, score, out);
    state->total = state->total * shrink + total;
    state->max = max;
}

static void ref_run(const attn_tile *t, void *scratch) {
    ref_tile *r = scratch;
    *r = (ref_tile){.t = t};
    carve(t->s, scratch, r);
    running state[ATTN_TILE];
    int64_t keys = 0;
    for (int32_t i = 0; i < t->n; i++) {
        state[i] = (running){-INFINITY, 0};
        memset(t->out[i], 0, (size_t)r->kv.v * sizeof(float));
        keys = max_i64(keys, t->limit[i]);
        if (t->low[i] > 0) round_query(r, i);
    }
    for (int64_t start = 0; start < keys; start += ATTN_BLOCK) {
        read_block(r, start, keys);
        for (int32_t i = 0; i < t->n; i++)
            if (t->limit[i] > start) attend_block(r, i, &state[i], t->out[i]);
    }
    for (int32_t i = 0; i < t->n; i++)
        for (int32_t d = 0; d < r->kv.v; d++) t->out[i][d] /= state[i].total;
}

const attn_row attn_ref = {{"ref", 0, 1}, ref_refuse, ref_scratch, ref_run};
