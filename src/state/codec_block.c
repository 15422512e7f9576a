/* state/codec_block.c: the codec of plain formats: every number alone (fp32, fp16, bf16), or with a scale for 32 along
 * the value axis, for a row or for a column (fp8, integers). block.h has the layout, and the arithmetic of the forms
 * that most methods are: groups of 32 with an FP32 scale from the largest magnitude, to nearest even. The others are
 * here: other groups and types of scales, scales by least squares, stochastic rounding. A row of methods.c names a
 * form.
 */
#include "state/block.h"
#include "state/codebook.h"
#include "state/draw.h"
#include "state/params.h"

#include <stdio.h>

static const ebb_param params[] = {
    EBB_PARAM_WINDOW,
    {"format", 0, 7, 0, BLOCK_FORMATS, "storage format of the matrix"},
    {"group", 0, 2, 0, BLOCK_GROUPS, "values with one scale: 32 along the value axis, a row or a column (integers)"},
    {"scale", 0, 2, 0, BLOCK_SCALES, "type of a scale"},
    {"fit", 0, 1, 0, BLOCK_FITS, "scale by the largest magnitude, or by least squares over the codes"},
    {"round", 0, 1, 0, BLOCK_ROUNDS, "to nearest even, or stochastic (fp16, bf16, integers)"},
    {"seed", 0, 9007199254740992.0, 0, NULL, "of the random numbers of round=stoch"},
    {NULL, 0, 0, 0, NULL, NULL},
};

/* A parameter that the format has no use for is refused, not ignored. */
static ebb_status check(const block_shape *s, const double *param, ebb_error *error) {
    static const struct {
        int32_t param;
        const char *formats; /* that have a use for it */
    } uses[] = {{BLOCK_PARAM_GROUP, "the integer formats"},
                {BLOCK_PARAM_SCALE, "fp8 and the integer formats"},
                {BLOCK_PARAM_FIT, "fp8 and the integer formats"},
                {BLOCK_PARAM_ROUND, "fp16, bf16 and the integer formats"},
                {BLOCK_PARAM_SEED, "round=stoch"}};
    const bool integers = s->format >= BLOCK_INT8, halves = s->format == BLOCK_FP16 || s->format == BLOCK_BF16;
    const bool useful[] = {integers, s->scales > 0, s->scales > 0, integers || halves, s->round == BLOCK_STOCH};
    for (int32_t i = 0; i < COUNT(uses); i++) {
        const ebb_param *p = &params[uses[i].param];
        const double value = param[uses[i].param];
        char word[24], format[8];
        if (useful[i] || value == p->preset) continue;
        param_choice(&params[BLOCK_PARAM_FORMAT], s->format, format, sizeof format);
        if (p->choices) param_choice(p, value, word, sizeof word);
        else snprintf(word, sizeof word, "%.0f", value);
        return ebb_fail(error, EBB_BAD_ARGUMENT, "format=%s with %s=%s: %s goes with %s", format, p->name, word,
                        p->name, uses[i].formats);
    }
    return EBB_OK;
}

static ebb_status layout(const ebb_head *head, ebb_planes *planes, ebb_error *error) {
    const block_shape s = block_shape_of(head->layer, head->param);
    *planes = (ebb_planes){.bytes = s.bytes, .exact = s.format == BLOCK_FP32, .n = 1};
    planes->plane[0].name = "codes";
    planes->plane[0].bytes = s.row_bytes * (size_t)s.rows;
    if (s.high_row_bytes) {
        planes->plane[planes->n].name = "high";
        planes->plane[planes->n].at = s.high_at;
        planes->plane[planes->n++].bytes = s.high_row_bytes * (size_t)s.rows;
    }
    if (s.scales) {
        planes->plane[planes->n].name = "scales";
        planes->plane[planes->n].at = s.scales_at;
        planes->plane[planes->n++].bytes = s.bytes - s.scales_at;
    }
    return check(&s, head->param, error);
}

/* ---- scales ---- */

/* Store scale i; returns it as it is stored. FP16 has no positive number below 2^-24, so no scale is 0. */
static float put_scale(const block_shape *s, int32_t i, float x, uint8_t *packed) {
    uint8_t *at = packed + s->scales_at;
    uint16_t *half = (uint16_t *)(void *)at + i;
    switch (s->scale) {
    case BLOCK_SCALE_FP32:
        return ((float *)(void *)at)[i] = x;
    case BLOCK_SCALE_FP16:
        *half = float_to_fp16(x > 5.9604644775390625e-8f ? x : 5.9604644775390625e-8f);
        return fp16_to_float(*half);
    default:
        *half = float_to_bf16(x);
        return bf16_to_float(*half);
    }
}

static float get_scale(const block_shape *s, int32_t i, const uint8_t *packed) {
    const uint8_t *at = packed + s->scales_at;
    const uint16_t *half = (const uint16_t *)(const void *)at + i;
    if (s->scale == BLOCK_SCALE_FP32) return ((const float *)(const void *)at)[i];
    return s->scale == BLOCK_SCALE_FP16 ? fp16_to_float(*half) : bf16_to_float(*half);
}

/* The scale that makes the stored group the projection of its values on their codes z (maths 5.5), so that storing
 * never amplifies; over = sum y z and under = sum z z, y the values in steps of `scale`. Cut so that every code of that
 * scale is finite. */
static float fitted(const block_shape *s, float scale, float over, float under) {
    const float fit = over > 0 && under > 0 ? scale * (over / under) : scale;
    return fit < 3.0e38f / s->qmax ? fit : 3.0e38f / s->qmax;
}

/* ---- codes ---- */

/* One row in steps of step[v]: y before rounding, z after, q as it is stored. */
typedef struct coded_row {
    float step[EBB_MAX_STATE_DIM], y[EBB_MAX_STATE_DIM], z[EBB_MAX_STATE_DIM];
    int8_t q[EBB_MAX_STATE_DIM];
} coded_row;

static void code_row(const block_shape *s, uint64_t key, int32_t u, const float *x, coded_row *r) {
    const int32_t n = s->columns;
    const uint64_t first = (uint64_t)u * (uint64_t)n;
    for (int32_t v = 0; v < n; v++) r->y[v] = clamp_code(x[v] / r->step[v], s->qmax);
    if (s->format == BLOCK_FP8) {
        for (int32_t v = 0; v < n; v++) r->q[v] = (int8_t)float_to_fp8_in_range(r->y[v]);
        for (int32_t v = 0; v < n; v++) r->z[v] = fp8_to_float((uint8_t)r->q[v]);
        return;
    }
    if (s->round == BLOCK_STOCH)
        for (int32_t v = 0; v < n; v++) r->z[v] = round_stoch(r->y[v], draw(key, first + (uint64_t)v));
    else
        for (int32_t v = 0; v < n; v++) r->z[v] = round_even(r->y[v]);
    for (int32_t v = 0; v < n; v++) r->q[v] = (int8_t)r->z[v];
}

static void put_row(const block_shape *s, int32_t u, const int8_t *q, uint8_t *packed) {
    uint8_t *low = packed + (size_t)u * s->row_bytes, *high = packed + s->high_at + (size_t)u * s->high_row_bytes;
    pack_codes(s->bits, q, s->columns, low, high);
}

/* Groups along the value axis: of 32, or whole rows. */
static void encode_row_groups(const block_shape *s, uint64_t key, const float *S, uint8_t *packed) {
    const int32_t n = s->columns, size = s->group == BLOCK_OF_ROW ? n : BLOCK_GROUP;
    coded_row r;
    for (int32_t u = 0, first = 0; u < s->rows; u++) {
        const float *x = S + (size_t)u * (size_t)n;
        for (int32_t at = 0, i = first; at < n; at += size, i++) {
            const int32_t m = n - at < size ? n - at : size;
            float step = block_scale(x + at, m, s->qmax);
            if (s->fit == BLOCK_MAX) step = put_scale(s, i, step, packed);
            for (int32_t v = 0; v < m; v++) r.step[at + v] = step;
        }
        code_row(s, key, u, x, &r);
        put_row(s, u, r.q, packed);
        for (int32_t at = 0; at < n; at += size, first++) {
            const int32_t m = n - at < size ? n - at : size;
            if (s->fit == BLOCK_MAX) continue;
            const float over = row_dot(r.y + at, r.z + at, m), under = row_dot(r.z + at, r.z + at, m);
            put_scale(s, first, fitted(s, r.step[at], over, under), packed);
        }
    }
}

/* Groups along the key axis: whole columns. */
static void encode_columns(const block_shape *s, uint64_t key, const float *S, uint8_t *packed) {
    const int32_t n = s->columns;
    float over[EBB_MAX_STATE_DIM] = {0}, under[EBB_MAX_STATE_DIM] = {0};
    coded_row r;
    for (int32_t v = 0; v < n; v++) r.step[v] = 0;
    for (int32_t u = 0; u < s->rows; u++)
        for (int32_t v = 0; v < n; v++) r.step[v] = max_abs(r.step[v], S[(size_t)u * (size_t)n + (size_t)v]);
    for (int32_t v = 0; v < n; v++) r.step[v] = block_scale(&r.step[v], 1, s->qmax);
    for (int32_t v = 0; v < n && s->fit == BLOCK_MAX; v++) r.step[v] = put_scale(s, v, r.step[v], packed);
    for (int32_t u = 0; u < s->rows; u++) {
        code_row(s, key, u, S + (size_t)u * (size_t)n, &r);
        put_row(s, u, r.q, packed);
        for (int32_t v = 0; v < n; v++) over[v] += r.y[v] * r.z[v], under[v] += r.z[v] * r.z[v];
    }
    for (int32_t v = 0; v < n && s->fit == BLOCK_LS; v++)
        put_scale(s, v, fitted(s, r.step[v], over[v], under[v]), packed);
}

static void encode_halves(const block_shape *s, uint64_t key, const float *S, uint8_t *packed) {
    const size_t n = (size_t)s->rows * (size_t)s->columns;
    uint16_t *half = (uint16_t *)(void *)packed;
    if (s->format == BLOCK_FP16)
        for (size_t i = 0; i < n; i++) half[i] = float_to_fp16_stoch(S[i], draw(key, i));
    else
        for (size_t i = 0; i < n; i++) half[i] = float_to_bf16_stoch(S[i], draw(key, i));
}

static void decode_groups(const block_shape *s, const uint8_t *packed, float *S) {
    const int32_t n = s->columns, size = s->group == BLOCK_OF_ROW ? n : BLOCK_GROUP;
    float step[EBB_MAX_STATE_DIM];
    int8_t q[EBB_MAX_STATE_DIM];
    for (int32_t v = 0; v < n && s->group == BLOCK_OF_COLUMN; v++) step[v] = get_scale(s, v, packed);
    for (int32_t u = 0, first = 0; u < s->rows; u++) {
        const uint8_t *low = packed + (size_t)u * s->row_bytes,
                      *high = packed + s->high_at + (size_t)u * s->high_row_bytes;
        float *x = S + (size_t)u * (size_t)n;
        for (int32_t at = 0; at < n && s->group != BLOCK_OF_COLUMN; at += size, first++) {
            const float scale = get_scale(s, first, packed);
            for (int32_t v = at; v < at + size && v < n; v++) step[v] = scale;
        }
        unpack_codes(s->bits, low, high, n, q);
        if (s->format == BLOCK_FP8)
            for (int32_t v = 0; v < n; v++) x[v] = step[v] * fp8_to_float((uint8_t)q[v]);
        else
            for (int32_t v = 0; v < n; v++) x[v] = step[v] * (float)q[v];
    }
}

/* ---- the codec ---- */

static void encode(const ebb_head *head, const float *S, const float *decay, const void *old, void *packed,
                   float *tmp) {
    (void)decay, (void)old, (void)tmp;
    const block_shape s = block_shape_of(head->layer, head->param);
    if (s.plain) {
        block_encode(&s, S, packed);
        return;
    }
    const uint64_t key = draw_key(head);
    block_pad(&s, packed);
    if (!s.scales) encode_halves(&s, key, S, packed);
    else if (s.group == BLOCK_OF_COLUMN) encode_columns(&s, key, S, packed);
    else encode_row_groups(&s, key, S, packed);
}

static void decode(const ebb_head *head, const void *packed, float *S) {
    const block_shape s = block_shape_of(head->layer, head->param);
    if (s.plain_bytes) block_decode(&s, packed, S);
    else decode_groups(&s, packed, S);
}

const ebb_state_codec codec_block = {"block", params, 0, layout, encode, decode};
