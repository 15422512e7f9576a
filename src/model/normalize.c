/* model/normalize.c: UTF-8 and Unicode's normalization form C, for pretokenize.c and detokenize.c.
 * utf8proc has the tables and the composition; the reordering of combining marks is done here, because utf8proc sorts
 * them by exchanging neighbours: quadratic, and a prompt may hold a million marks in a row. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int utf8_length(const uint8_t *s, size_t n) {
    uint8_t lead = s[0], lo = 0x80, hi = 0xbf;
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return -1;
    int need = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0) lo = 0xa0; /* shorter forms exist */
    if (lead == 0xed) hi = 0x9f; /* surrogates */
    if (lead == 0xf0) lo = 0x90;
    if (lead == 0xf4) hi = 0x8f; /* above U+10FFFF */
    for (int i = 1; i < need; i++) {
        if ((size_t)i >= n) return 0;
        if (s[i] < lo || s[i] > hi) return -1;
        lo = 0x80, hi = 0xbf;
    }
    return need;
}

int32_t utf8_decode(const uint8_t *s, int length) {
    switch (length) {
    case 1:
        return s[0];
    case 2:
        return (s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    case 3:
        return (s[0] & 0x0f) << 12 | (s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    default:
        return (s[0] & 0x07) << 18 | (s[1] & 0x3f) << 12 | (s[2] & 0x3f) << 6 | (s[3] & 0x3f);
    }
}

/* Code points of one stretch being normalized. */
typedef struct points {
    int32_t *at, *spare;
    size_t n, room;
} points;

static bool points_reserve(points *p, size_t more) {
    if (p->n + more <= p->room) return true;
    size_t room = (p->n + more) * 2;
    int32_t *at = realloc(p->at, room * sizeof *at);
    if (at) p->at = at;
    int32_t *spare = realloc(p->spare, room * sizeof *spare);
    if (spare) p->spare = spare;
    if (!at || !spare) return false;
    p->room = room;
    return true;
}

static uint8_t mark_class(int32_t point) { return (uint8_t)utf8proc_get_property(point)->combining_class; }

/* Canonical order of one run of combining marks: a stable counting sort by class. */
static void order_marks(int32_t *at, int32_t *spare, size_t n) {
    size_t begin[257] = {0};
    for (size_t i = 0; i < n; i++) begin[mark_class(at[i]) + 1]++;
    for (int c = 0; c < 256; c++) begin[c + 1] += begin[c];
    for (size_t i = 0; i < n; i++) spare[begin[mark_class(at[i])]++] = at[i];
    memcpy(at, spare, n * sizeof *at);
}

static void order_all_marks(points *p) {
    for (size_t i = 0; i < p->n;) {
        size_t end = i;
        while (end < p->n && mark_class(p->at[end])) end++;
        if (end - i > 1) order_marks(p->at + i, p->spare, end - i);
        i = end + 1;
    }
}

static const utf8proc_option_t composed_form = (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

static ebb_status decompose(points *p, const uint8_t *text, size_t n) {
    int boundary = 0;
    p->n = 0;
    for (size_t i = 0; i < n;) {
        int length = utf8_length(text + i, n - i);
        utf8proc_ssize_t wrote, room = 32; /* the longest canonical decomposition has 4 */
        do {
            if (!points_reserve(p, (size_t)room)) return EBB_NO_MEMORY;
            wrote =
                utf8proc_decompose_char(utf8_decode(text + i, length), p->at + p->n, room, composed_form, &boundary);
            if (wrote < 0) return EBB_UNSUPPORTED;
        } while (wrote > room && (room = wrote, true));
        p->n += (size_t)wrote;
        i += (size_t)length;
    }
    return EBB_OK;
}

typedef struct bytes {
    uint8_t *at;
    size_t n, room;
} bytes;

static bool bytes_reserve(bytes *b, size_t more) {
    if (b->n + more <= b->room) return true;
    size_t room = (b->n + more) + (b->n + more) / 2;
    uint8_t *at = realloc(b->at, room);
    if (!at) return false;
    b->at = at, b->room = room;
    return true;
}

/* Normalize one stretch and append it. */
static ebb_status append_form(bytes *out, points *p, const uint8_t *text, size_t n) {
    ebb_status status = decompose(p, text, n);
    if (status) return status;
    order_all_marks(p);
    utf8proc_ssize_t composed = utf8proc_normalize_utf32(p->at, (utf8proc_ssize_t)p->n, composed_form);
    if (composed < 0) return EBB_UNSUPPORTED;
    if (!bytes_reserve(out, 4 * (size_t)composed)) return EBB_NO_MEMORY;
    for (utf8proc_ssize_t i = 0; i < composed; i++) out->n += (size_t)utf8proc_encode_char(p->at[i], out->at + out->n);
    return EBB_OK;
}

/* Below U+0300 (first byte 0xCC) nothing decomposes further than it composes again, and nothing combines. */
static bool may_change(const uint8_t *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (text[i] >= 0xcc) return true;
    return false;
}

ebb_status nfc(const uint8_t *text, size_t n, uint8_t **form, size_t *n_form, ebb_error *error) {
    *form = NULL;
    if (!may_change(text, n)) return EBB_OK;
    bytes out = {0};
    points p = {0};
    ebb_status status = EBB_OK;
    /* An ASCII character never combines with what is before it: the text is cut there, and most stretches are only
     * copied. */
    for (size_t i = 0; i < n && !status;) {
        size_t end = i + 1;
        while (end < n && text[end] >= 0x80) end++;
        if (may_change(text + i, end - i)) status = append_form(&out, &p, text + i, end - i);
        else if (!bytes_reserve(&out, end - i)) status = EBB_NO_MEMORY;
        else {
            memcpy(out.at + out.n, text + i, end - i);
            out.n += end - i;
        }
        i = end;
    }
    free(p.at), free(p.spare);
    if (!status) {
        *form = out.at, *n_form = out.n;
        return EBB_OK;
    }
    free(out.at);
    return ebb_fail(error, status,
                    status == EBB_NO_MEMORY ? "no memory to normalize %zu bytes of text"
                                            : "the Unicode tables cannot normalize these %zu bytes of text",
                    n);
}
