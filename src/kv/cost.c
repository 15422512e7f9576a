/* kv/cost.c: the one place that says how a layer's store is laid out: pages, vertical keys, tail, and what is kept of a
 * prompt. Pools are made of it, and the costs that programs print are read off it. */
#include "kv/kv_int.h"
#include "kv/token.h"

static const ebb_prefill full = {.mode = EBB_PREFILL_FULL};

static ebb_status too_large(ebb_error *error) {
    return ebb_fail(error, EBB_BAD_ARGUMENT,
                    "a KV pool of this many heads, slots and tokens exceeds the address space");
}

ebb_status kv_layer_params(const ebb_kv_spec *spec, int32_t index, double *param, ebb_error *error) {
    memcpy(param, spec->param, sizeof spec->param);
    if (!spec->bits) return EBB_OK;
    if (spec->method->codec != &kv_codec_token)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "bits for each layer are given, but the KV method %s has none; expected kvtuner or k4v4",
                        spec->method->name);
    if (index < 0 || index >= spec->n_bits)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "the bits of %d KV layers are given, and none for layer %d",
                        spec->n_bits, index);
    const int32_t bits[2] = {spec->bits[index].k, spec->bits[index].v};
    for (int32_t i = 0; i < 2; i++) {
        if (bits[i] != 2 && bits[i] != 4 && bits[i] != 8)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "%d bits for the %s of KV layer %d; expected 2, 4 or 8", bits[i],
                            i ? "values" : "keys", index);
        param[i ? TOKEN_V : TOKEN_K] = bits[i] == 2 ? TOKEN_BITS_2 : bits[i] == 4 ? TOKEN_BITS_4 : TOKEN_BITS_8;
    }
    return EBB_OK;
}

int32_t kv_bits_of(const ebb_kv_view *view, int32_t values) {
    return 2 << (int32_t)view->param[values ? TOKEN_V : TOKEN_K];
}

static bool sparse_prefill(const ebb_prefill *p) {
    return p->mode == EBB_PREFILL_VQUANT || p->mode == EBB_PREFILL_SPARSE;
}

static ebb_status rule_check(const ebb_kv_rule *rule, const ebb_prefill *p, ebb_error *error) {
    if (p->mode < EBB_PREFILL_FULL || p->mode > EBB_PREFILL_SPARSE || p->window < 0 || p->window > 4096 ||
        p->select < EBB_SELECT_NONE || p->select > EBB_SELECT_PAPER || !(p->ratio >= 0 && p->ratio <= 1))
        return ebb_fail(
            error, EBB_BAD_ARGUMENT,
            "a prefill of mode %d, select %d, window %d and ratio %g; expected what ebb_prefill_parse gives", p->mode,
            p->select, p->window, p->ratio);
    if (sparse_prefill(p) && p->select == EBB_SELECT_NONE && p->ratio > 0)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a prefill with vertical keys that nothing selects");
    if (sparse_prefill(p) && p->select && rule->select &&
        (p->select != rule->select || p->window != rule->window[0] || p->ratio != rule->ratio))
        return ebb_fail(
            error, EBB_UNSUPPORTED,
            "prefill chooses vertical keys with window %d, ratio %g and select %d, the KV cache with %d, %g "
            "and %d; expected the same",
            p->window, p->ratio, p->select, rule->window[0], rule->ratio, rule->select);
    if (rule->group < 1 || EBB_KV_PAGE % rule->group)
        return ebb_fail(error, EBB_UNSUPPORTED, "groups of %d tokens; expected a divisor of %d", rule->group,
                        EBB_KV_PAGE);
    return EBB_OK;
}

/* Bitmaps of a page (kv_prefill_mark says which is whose). */
static int32_t marks_of(const ebb_kv_view *v) {
    const int32_t own = v->rule.select != EBB_SELECT_NONE, group = v->layer->q_heads / v->layer->heads;
    if (!sparse_prefill(&v->prefill) || v->prefill.select == EBB_SELECT_NONE) return own;
    return kv_prefill_mark(v, group - 1) + 1;
}

/* Heads, inside a head planes, inside a plane groups of tokens; behind the planes the vertical keys. */
static ebb_status page_layout(ebb_kv_view *v, const ebb_planes *planes, const kv_shape *kv, ebb_error *error) {
    size_t at = 0, bytes;
    for (int32_t i = 0; i < planes->n; i++) {
        v->plane_at[i] = (int64_t)at;
        v->plane_bytes[i] = (int64_t)planes->plane[i].bytes;
        at += align_up((size_t)(EBB_KV_PAGE / v->rule.group) * planes->plane[i].bytes, KV_ALIGN);
    }
    v->marks = marks_of(v);
    if (v->rule.select == EBB_SELECT_SEGMENT) v->overlay_rows = (int32_t)kv_vertical_count(EBB_KV_PAGE, v->rule.ratio);
    v->overlay_at = (int64_t)at;
    at += (size_t)v->marks * (EBB_KV_PAGE / 8);
    if (v->overlay_rows) at += align_up((size_t)v->overlay_rows, KV_ALIGN);
    at = align_up(at + (size_t)v->overlay_rows * (size_t)kv->all * sizeof(uint16_t), KV_ALIGN);
    if (!size_mul((size_t)v->layer->heads, at, &bytes) || bytes > INT64_MAX) return too_large(error);
    v->head_bytes = (int64_t)at;
    v->page_bytes = (int64_t)bytes;
    return EBB_OK;
}

static ebb_status tail_layout(ebb_kv_view *v, const kv_shape *kv, int64_t max_tokens, ebb_error *error) {
    const ebb_kv_rule *r = &v->rule;
    size_t head = 0, slot;
    if (r->tail) {
        int64_t cap = max_i64(r->window[0], r->window[1]) + max_i64(r->slide[0], r->slide[1]) + EBB_GRID + v->max_new;
        if (r->select >= EBB_SELECT_PROMPT || cap > max_tokens) cap = max_tokens;
        cap = (cap + 63) / 64 * 64;
        if (cap > INT32_MAX)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV tail of %lld tokens in 16 bits; expected %d at most",
                            (long long)cap, INT32_MAX);
        v->tail_cap = (int32_t)cap;
        if (!size_mul((size_t)cap, (size_t)kv->all * sizeof(uint16_t), &head)) return too_large(error);
        head = align_up(head, KV_ALIGN);
    }
    if (v->marks) head += align_up((size_t)(v->max_new + 2) * (size_t)kv->k * sizeof(float), KV_ALIGN);
    if (!size_mul(head, (size_t)v->layer->heads, &slot) || slot > INT64_MAX) return too_large(error);
    v->tail_head = (int64_t)head;
    v->tail_slot = (int64_t)slot;
    return EBB_OK;
}

static ebb_status extra_layout(ebb_kv_view *v, const kv_shape *kv, int64_t max_tokens, ebb_error *error) {
    const bool chosen = v->rule.select >= EBB_SELECT_PROMPT;
    if (!chosen && !v->codec->rewrite) return EBB_OK;
    size_t head = 0, slot, rows = 0;
    if (chosen) {
        v->extra_rows = (int32_t)kv_vertical_count(max_tokens, v->rule.ratio);
        if (!size_mul((size_t)v->extra_rows, (size_t)kv->all * sizeof(uint16_t), &rows)) return too_large(error);
        head = align_up(((size_t)v->block_stride + 1) * sizeof(int32_t), KV_ALIGN) +
               align_up((size_t)kv->k * sizeof(float), KV_ALIGN) + align_up((size_t)v->extra_rows, KV_ALIGN);
        if (!size_add(head, align_up(rows, KV_ALIGN), &head)) return too_large(error);
    }
    if (!size_mul(head, (size_t)v->layer->heads, &slot) ||
        !size_add(slot, align_up(sizeof(kv_live), KV_ALIGN), &slot) || slot > INT64_MAX)
        return too_large(error);
    v->extra_head = (int64_t)head;
    v->extra_slot = (int64_t)slot;
    return EBB_OK;
}

ebb_status kv_view_layout(const ebb_kv_spec *spec, const ebb_prefill *prefill, const ebb_kv_layer *layer,
                          const double *param, int64_t max_tokens, int32_t max_new, ebb_kv_view *view,
                          ebb_error *error) {
    ebb_planes planes;
    const int64_t pages = max_tokens / EBB_KV_PAGE + (max_tokens % EBB_KV_PAGE != 0);
    *view = (ebb_kv_view){.layer = layer,
                          .codec = spec->method->codec,
                          .param = param,
                          .page = EBB_KV_PAGE,
                          .block_stride = (int32_t)pages,
                          .max_new = max_new ? max_new : 1,
                          .prefill = prefill ? *prefill : full};
    if (max_tokens < 1 || pages > INT32_MAX)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV pool of %lld tokens a slot is asked for; expected 1 to %lld",
                        (long long)max_tokens, (long long)INT32_MAX * EBB_KV_PAGE);
    if (max_new < 0 || max_new > EBB_MAX_NEW)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV pool for steps of %d tokens is asked for; expected 1 to %d",
                        max_new, EBB_MAX_NEW);
    ebb_status status = view->codec->layout(layer, param, &view->rule, &planes, error);
    if (!status) status = rule_check(&view->rule, &view->prefill, error);
    if (status) return status;
    const kv_shape kv = kv_shape_of(layer);
    status = page_layout(view, &planes, &kv, error);
    if (!status) status = tail_layout(view, &kv, max_tokens, error);
    if (!status) status = extra_layout(view, &kv, max_tokens, error);
    return status;
}

static ebb_status token_bytes(const ebb_kv_layer *layer, const ebb_kv_codec *codec, const double *param, size_t *bytes,
                              ebb_error *error) {
    ebb_kv_rule rule;
    ebb_planes planes;
    size_t all;
    ebb_status status = codec->layout(layer, param, &rule, &planes, error);
    if (status) return status;
    if (!size_mul((size_t)layer->heads, planes.bytes, &all))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a KV layer of %d heads is too large", layer->heads);
    *bytes = (all + (size_t)rule.group - 1) / (size_t)rule.group;
    return EBB_OK;
}

ebb_status ebb_kv_layer_cost(const ebb_kv_spec *spec, const ebb_prefill *prefill, const ebb_kv_layer *layer,
                             int32_t index, int64_t max_tokens, int32_t max_new, ebb_kv_cost *cost, ebb_error *error) {
    double param[EBB_MAX_PARAMS];
    ebb_kv_view v;
    *cost = (ebb_kv_cost){0};
    ebb_status status = kv_layer_params(spec, index, param, error);
    if (!status) status = kv_view_layout(spec, prefill, layer, param, max_tokens, max_new, &v, error);
    if (!status) status = token_bytes(layer, v.codec, param, &cost->token, error);
    if (status) return status;
    cost->page = (size_t)v.page_bytes;
    cost->overlay = (size_t)(v.head_bytes - v.overlay_at) * (size_t)layer->heads;
    cost->tail = (size_t)v.tail_slot + (size_t)v.extra_slot;
    return EBB_OK;
}

ebb_status ebb_kv_token_bytes(const ebb_kv_spec *spec, const ebb_kv_layer *layer, size_t *bytes, ebb_error *error) {
    if (spec->bits)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "bits differ from layer to layer: ebb_kv_layer_cost knows them");
    return token_bytes(layer, spec->method->codec, spec->param, bytes, error);
}
