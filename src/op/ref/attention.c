/* op/ref/attention.c: the definition of softmax attention over a KV store, for any codec, parts and dims. Row by row,
 * with s_j = scale (q . k_j) over the keys j below the row's limit, k_j and v_j as kv_int.h cuts a token's parts:
 *   out = sum_j e^(s_j - m) v_j / sum_j e^(s_j - m),  m = max_j s_j,
 * as an online softmax over blocks of ATTN_BLOCK keys aligned to absolute positions. Called by op/attention.c through
 * the row table. */
#include "op/rows.h"

#include <math.h>
#include <string.h>

#include "kv/kv_int.h"

static const char *ref_refuse(const ebb_kv_view *view) {
    (void)view; /* what op/attention.c lets through is served */
    return NULL;
}

/* A block of decoded tokens, all parts of each, then the packed bytes of one. */
static size_t ref_scratch(const ebb_kv_view *view) {
    ebb_planes planes;
    int32_t group;
    if (view->codec->layout(view->layer, view->param, &group, &planes, NULL)) return 0; /* checked before */
    return ATTN_BLOCK * (size_t)kv_shape_of(view->layer).all * sizeof(float) + planes.bytes;
}

static float dot(const float *a, const float *b, int32_t n) {
    float sum = 0;
    for (int32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* The online softmax of one row: out is the sum of values weighted by e^(s - max), total the sum of the weights. */
typedef struct running {
    float max, total;
} running;

static void attend_block(const kv_shape *kv, float scale, const float *q, const float *rows, int64_t count, running *r,
                         float *out) {
    float score[ATTN_BLOCK], max = r->max;
    for (int64_t j = 0; j < count; j++) {
        score[j] = scale * dot(q, rows + j * kv->all, kv->k);
        max = fmaxf(max, score[j]);
    }
    float shrink = expf(r->max - max), total = 0; /* 0 at the first block, whose old max is -inf */
    for (int32_t d = 0; d < kv->v; d++) out[d] *= shrink;
    for (int64_t j = 0; j < count; j++) {
        const float *v = rows + j * kv->all + kv->v_at;
        float weight = expf(score[j] - max);
        for (int32_t d = 0; d < kv->v; d++) out[d] += weight * v[d];
        total += weight;
    }
    r->total = r->total * shrink + total;
    r->max = max;
}

static void ref_run(const attn_tile *t, void *scratch) {
    const ebb_kv_view *s = t->s;
    const kv_shape kv = kv_shape_of(s->layer);
    float *rows = scratch;
    uint8_t *packed = (uint8_t *)(rows + (int64_t)ATTN_BLOCK * kv.all);
    ebb_planes planes;
    int32_t group;
    if (s->codec->layout(s->layer, s->param, &group, &planes, NULL)) return; /* checked before */

    running state[ATTN_TILE];
    int64_t keys = 0;
    for (int32_t i = 0; i < t->n; i++) {
        state[i] = (running){-INFINITY, 0};
        memset(t->out[i], 0, (size_t)kv.v * sizeof(float));
        keys = max_i64(keys, t->limit[i]);
    }
    for (int64_t start = 0; start < keys; start += ATTN_BLOCK) {
        for (int64_t j = start; j < min_i64(keys, start + ATTN_BLOCK); j++)
            kv_get(s, &planes, t->slot, t->head, j, rows + (j - start) * kv.all, packed);
        for (int32_t i = 0; i < t->n; i++) {
            int64_t count = min_i64(ATTN_BLOCK, t->limit[i] - start);
            if (count > 0) attend_block(&kv, s->layer->scale, t->q[i], rows, count, &state[i], t->out[i]);
        }
    }
    for (int32_t i = 0; i < t->n; i++)
        for (int32_t d = 0; d < kv.v; d++) t->out[i][d] /= state[i].total;
}

const attn_row attn_ref = {{"ref", 0, 1}, ref_refuse, ref_scratch, ref_run};
