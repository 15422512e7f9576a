/* kv/image.c: images of KV slots: tokens to bytes and back. Called by engines and by anyone who keeps caches. The
 * layout is in docs/images.md: what the query at pos can read or choose from, and nothing else, so that it depends on
 * no slot, ring or max_new. */
#include "core/image.h"
#include "kv/kv_int.h"
#include "state/params.h"

#include <inttypes.h>
#include <stdlib.h>

ebb_status ebb_kv_text(const ebb_kv_spec *spec, char *text, size_t room, ebb_error *error) {
    if (!spec || !spec->method || !text) return ebb_fail(error, EBB_BAD_ARGUMENT, "no KV method or place given");
    if (params_text(spec->method->name, spec->method->codec->params, spec->param, text, room)) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s with its parameters does not fit %zu bytes", spec->method->name,
                    room);
}

/* ---- checks and the description ---- */

static ebb_status describe(const ebb_kv_pool *pool, image_text *t, ebb_error *error) {
    static const char *const roles[] = {"none", "k", "v", "kv"};
    char method[512];
    const ebb_kv_view *v;
    int32_t n = 0;
    ebb_status status = ebb_kv_text(ebb_kv_pool_spec(pool), method, sizeof method, error);
    if (status) return status;
    while (ebb_kv_pool_view(pool, n)) n++;
    image_text_add(t, "method %s\nlayers %d\n", method, n);
    for (int32_t i = 0; (v = ebb_kv_pool_view(pool, i)); i++) {
        const ebb_kv_layer *l = v->layer;
        ebb_planes planes;
        ebb_kv_rule rule;
        if ((status = v->codec->layout(l, v->param, &rule, &planes, error))) return status;
        image_text_add(t, "layer %d heads=%d head_begin=%d", i, l->heads, l->head_begin);
        for (int32_t p = 0; p < l->parts; p++) image_text_add(t, " %s=%d", roles[l->part[p].role & 3], l->part[p].dims);
        if (ebb_kv_pool_spec(pool)->bits) image_text_add(t, " bits=%d/%d", kv_bits_of(v, 0), kv_bits_of(v, 1));
        image_text_add(t, " packed=%zu\n", planes.bytes);
    }
    /* A prefill that keeps something in the store. */
    v = ebb_kv_pool_view(pool, 0);
    if (kv_keeps_marks(v)) {
        if ((status = ebb_prefill_text(&v->prefill, method, sizeof method, error))) return status;
        image_text_add(t, "prefill %s\n", method);
    }
    return t->failed ? ebb_fail(error, EBB_NO_MEMORY, "no memory for the description of an image") : EBB_OK;
}

/* ---- the payload: one walk measures, saves, checks and loads, so that they cannot differ ---- */

typedef enum walk_mode { MEASURE, SAVE, CHECK, LOAD } walk_mode;

typedef struct walk {
    walk_mode mode;
    uint8_t *save;
    const uint8_t *load;
    size_t bytes, left; /* walked so far; left of what is loaded */
    bool failed;        /* CHECK: there is less than that, or `wrong` says what is wrong */
    const char *wrong;
} walk;

static bool in_store(const walk *w) { return w->mode == SAVE || w->mode == LOAD; }
static bool from_image(const walk *w) { return w->mode == CHECK || w->mode == LOAD; }

/* `store` is not looked at where nothing is moved. */
static void move(walk *w, void *store, size_t bytes) {
    if (w->failed) return;
    if (from_image(w) && bytes > w->left) {
        w->failed = true;
        return;
    }
    if (w->mode == SAVE) memcpy(w->save + w->bytes, store, bytes);
    if (w->mode == LOAD) memcpy(store, w->load, bytes);
    if (from_image(w)) w->load += bytes, w->left -= bytes;
    w->bytes += bytes;
}

/* A number that decides how the walk goes on: it is known in all modes. */
static void move_known(walk *w, void *known, size_t bytes) {
    const uint8_t *at = w->load;
    move(w, known, bytes);
    if (w->mode == CHECK && !w->failed) memcpy(known, at, bytes);
}

static void refuse(walk *w, const char *wrong) {
    if (!w->failed) w->wrong = wrong;
    w->failed = true;
}

/* What is walked: a slot of a layer at a position, and from where its tail is needed. */
typedef struct place {
    const ebb_kv_view *v;
    kv_shape kv;
    int32_t slot;
    int64_t pos, tail;
    kv_live live;
} place;

/* Codes of all whole groups of tokens: those of a page lie together. */
static void walk_codes(walk *w, const place *p, int32_t head, const ebb_planes *planes) {
    const ebb_kv_view *v = p->v;
    for (int32_t plane = 0; plane < planes->n; plane++)
        for (int64_t t = 0; t < p->pos && !w->failed; t += v->page) {
            const int64_t groups = min_i64(v->page, p->pos - t) / v->rule.group;
            void *at = in_store(w) && groups ? kv_at(v, p->slot, head, plane, t) : NULL;
            if (groups) move(w, at, (size_t)groups * planes->plane[plane].bytes);
        }
}

/* Places of vertical keys inside a page: ascending. */
static void check_places(walk *w, const uint8_t *at, int32_t n) {
    for (int32_t i = 1; i < n && w->mode == CHECK && !w->failed; i++)
        if (at[i] <= at[i - 1]) refuse(w, "vertical keys that do not ascend");
}

static void mark_places(const place *p, int32_t head, int64_t token, const uint8_t *at, int32_t n) {
    uint8_t *marks = kv_marks(p->v, p->slot, head, 0, token);
    memset(marks, 0, (size_t)p->v->page / 8);
    for (int32_t i = 0; i < n; i++) marks[at[i] / 8] |= (uint8_t)(1 << at[i] % 8);
}

/* select=segment: the vertical keys of every whole interval. */
static void walk_segments(walk *w, const place *p, int32_t head) {
    const ebb_kv_view *v = p->v;
    const size_t n = (size_t)v->overlay_rows, row = (size_t)p->kv.all * sizeof(uint16_t);
    for (int64_t t = 0; t + v->page <= p->pos && !w->failed; t += v->page) {
        uint8_t *at = in_store(w) ? kv_marks(v, p->slot, head, v->marks, t) : NULL;
        const uint8_t *from = w->load;
        move(w, at, n);
        if (w->mode == CHECK && !w->failed) check_places(w, from, v->overlay_rows);
        move(w, at ? at + align_up(n, KV_ALIGN) : NULL, n * row);
        if (w->mode == LOAD) mark_places(p, head, t, at, v->overlay_rows);
    }
}

/* A prefill with a choice of its own, by segment: its bitmaps of every whole interval. */
static void walk_marks(walk *w, const place *p, int32_t head) {
    const int32_t mark = kv_prefill_mark(p->v, 0);
    for (int64_t t = 0; t + p->v->page <= p->pos && !w->failed; t += p->v->page)
        move(w, in_store(w) ? kv_marks(p->v, p->slot, head, mark, t) : NULL, (size_t)p->v->page / 8);
}

/* select=prompt and paper: for every page that was chosen from, the number of rows, their places and the rows. */
static void walk_prompt(walk *w, const place *p, int32_t head) {
    const ebb_kv_view *v = p->v;
    const kv_extra e = kv_extra_of(v, &p->kv, p->slot, head);
    int32_t used = 0;
    for (int64_t page = 0; page * v->page < p->live.selected && !w->failed; page++) {
        int32_t n = from_image(w) ? 0 : e.first[page + 1] - e.first[page];
        move_known(w, &n, sizeof n);
        if (w->failed) return;
        if (n < 0 || n > v->page || n > v->extra_rows - used) {
            refuse(w, "more vertical keys than this pool keeps of a prompt");
            return;
        }
        const uint8_t *from = w->load;
        move(w, e.place + used, (size_t)n);
        if (!w->failed) check_places(w, from, n);
        move(w, e.rows + (int64_t)used * p->kv.all, (size_t)n * (size_t)p->kv.all * sizeof(uint16_t));
        if (w->mode == LOAD) {
            e.first[page] = used;
            e.first[page + 1] = used + n;
            mark_places(p, head, page * v->page, e.place + used, n);
        }
        used += n;
    }
    if (p->live.end == p->pos) move(w, e.query, (size_t)p->kv.k * sizeof(float)); /* the choice is still to come */
}

static void walk_tail(walk *w, const place *p, int32_t head) {
    const size_t row = (size_t)p->kv.all * sizeof(uint16_t);
    for (int64_t t = p->tail; t < p->pos && !w->failed; t++)
        move(w, in_store(w) ? kv_tail_row(p->v, p->kv.all, p->slot, head, t) : NULL, row);
}

/* The sum of the queries that choose in the interval of pos, once there is one. */
static void walk_query_sum(walk *w, const place *p, int32_t head) {
    const int64_t choosing = kv_choosing(p->v), last = p->pos - 1;
    if (!choosing || p->pos % EBB_GRID == 0 || last % EBB_GRID < EBB_GRID - choosing) return;
    move(w, in_store(w) ? kv_query_sum(p->v, &p->kv, p->slot, head, last) : NULL, (size_t)p->kv.k * sizeof(float));
}

static void walk_live(walk *w, place *p) {
    kv_live *live = kv_live_of(p->v, p->slot);
    if (!from_image(w)) p->live = *live;
    int64_t fields[3] = {p->live.begin, p->live.end, p->live.selected};
    move_known(w, fields, sizeof fields);
    if (w->mode == LOAD) *live = (kv_live){fields[0], fields[1], fields[2], 0};
    p->live = (kv_live){fields[0], fields[1], fields[2], 0};
    if (w->mode == CHECK &&
        (fields[0] < 0 || fields[0] > fields[1] || fields[1] > p->pos || fields[2] < 0 || fields[2] > p->pos))
        refuse(w, "a prompt that does not lie before its position");
}

static ebb_status walk_layer(walk *w, const ebb_kv_view *v, int32_t slot, int64_t pos, ebb_error *error) {
    ebb_planes planes;
    ebb_kv_rule rule;
    ebb_status status = v->codec->layout(v->layer, v->param, &rule, &planes, error);
    if (status || pos == 0) return status;
    place p = {.v = v, .kv = kv_shape_of(v->layer), .slot = slot, .pos = pos, .tail = pos};
    if (v->extra) walk_live(w, &p);
    if (v->rule.tail) p.tail = kv_tail_from(&v->rule, v->extra ? &p.live : NULL, pos);
    if (!w->failed && pos - p.tail > v->tail_cap) refuse(w, "more rows of 16 bits than the tail of this pool holds");
    for (int32_t head = 0; !w->failed && head < v->layer->heads; head++) {
        walk_codes(w, &p, head, &planes);
        if (v->rule.select == EBB_SELECT_SEGMENT) walk_segments(w, &p, head);
        if (v->rule.select >= EBB_SELECT_PROMPT) walk_prompt(w, &p, head);
        if (kv_keeps_marks(v)) walk_marks(w, &p, head);
        walk_tail(w, &p, head);
        walk_query_sum(w, &p, head);
    }
    return EBB_OK;
}

static ebb_status walk_pool(walk *w, const ebb_kv_pool *pool, int32_t slot, int64_t pos, ebb_error *error) {
    const ebb_kv_view *v;
    ebb_status status = EBB_OK;
    for (int32_t i = 0; !status && !w->failed && (v = ebb_kv_pool_view(pool, i)); i++)
        status = walk_layer(w, v, slot, pos, error);
    if (status || !w->failed) return status;
    if (w->wrong) return ebb_fail(error, EBB_BAD_FILE, "the image has %s", w->wrong);
    return ebb_fail(error, EBB_BAD_FILE, "the image ends before the keys and values of %" PRId64 " tokens do", pos);
}

/* ---- saving ---- */

static ebb_status measure(const ebb_kv_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                          image_text *text, size_t *bytes, ebb_error *error) {
    walk w = {.mode = MEASURE};
    ebb_status status = kv_check_slot(pool, slot, error);
    if (status || (status = kv_check_room(pool, slot, pos, error)) || (status = describe(pool, text, error)) ||
        (status = walk_pool(&w, pool, slot, pos, error)))
        return status;
    image_text_rows(text, origin);
    if (text->failed) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the description of an image");
    *bytes = image_bytes(text->bytes, w.bytes);
    return *bytes ? EBB_OK : ebb_fail(error, EBB_BAD_ARGUMENT, "an image of this pool does not fit an address space");
}

size_t ebb_kv_image_bytes(const ebb_kv_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin,
                          ebb_error *error) {
    image_text text = {0};
    size_t bytes = 0;
    if (measure(pool, slot, pos, origin, &text, &bytes, error)) bytes = 0;
    free(text.text);
    return bytes;
}

ebb_status ebb_kv_save(const ebb_kv_pool *pool, int32_t slot, int64_t pos, const ebb_origin *origin, void *image,
                       size_t bytes, ebb_error *error) {
    image_text text = {0};
    size_t need;
    ebb_status status = measure(pool, slot, pos, origin, &text, &need, error);
    if (!status && (!image || bytes != need))
        status = ebb_fail(error, EBB_BAD_ARGUMENT, "room of %zu bytes for an image of %zu", image ? bytes : 0, need);
    if (status) goto done;
    walk w = {.mode = SAVE, .save = image_begin(image, bytes, EBB_IMAGE_KV, pos, origin, &text)};
    status = walk_pool(&w, pool, slot, pos, error);
    if (!status) image_seal(image, bytes);
done:
    free(text.text);
    return status;
}

/* ---- loading ---- */

ebb_status ebb_kv_load(ebb_kv_pool *pool, int32_t slot, const void *image, size_t bytes, int64_t *pos,
                       ebb_error *error) {
    image_text own = {0};
    image_view view;
    if (!pos) return ebb_fail(error, EBB_BAD_ARGUMENT, "no place for the position of an image");
    ebb_status status = kv_check_slot(pool, slot, error);
    if (!status) status = image_open(image, bytes, EBB_IMAGE_KV, &view, error);
    if (!status) status = describe(pool, &own, error);
    if (!status) status = image_same(&view, &own, "KV store", error);
    if (status) goto done;
    const ebb_kv_view *v = ebb_kv_pool_view(pool, 0);
    const int64_t at = view.info.position, room = (int64_t)v->block_stride * v->page;
    if (at > room) {
        status = ebb_fail(error, EBB_BAD_ARGUMENT,
                          "the image has %" PRId64 " tokens; a slot of this KV pool holds %" PRId64, at, room);
        goto done;
    }
    walk check = {.mode = CHECK, .load = view.payload, .left = view.payload_bytes};
    walk load = {.mode = LOAD, .load = view.payload, .left = view.payload_bytes};
    status = walk_pool(&check, pool, slot, at, error);
    if (!status && check.left)
        status =
            ebb_fail(error, EBB_BAD_FILE, "the image holds %zu bytes of keys and values; %" PRId64 " tokens take %zu",
                     view.payload_bytes, at, check.bytes);
    if (!status) status = ebb_kv_pool_reserve(pool, slot, at, error);
    if (!status) status = walk_pool(&load, pool, slot, at, error);
    if (!status) *pos = at;
done:
    free(own.text);
    return status;
}
