/* core/image.c: the frame of images: see image.h and docs/images.md. Sizes in an image are not trusted: everything is
 * checked against the bytes that are there before it is used. Called by the image.c of state, kv and engine. */
#include "core/image.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "images are little-endian, and so is this code");

static const char magic[8] = {'e', 'b', 'b', 'i', 'm', 'a', 'g', 'e'};

typedef struct header { /* as it lies in the image */
    char magic[8];
    uint32_t version, kind;
    uint64_t bytes; /* of the whole image */
    int64_t position;
    uint64_t numerics, model;
    uint32_t text_bytes; /* of the description, which follows, padded with zeros to a multiple of 8 */
    uint32_t zero[2];
    uint32_t crc; /* of all bytes but these four */
} header;
_Static_assert(sizeof(header) == 64, "the header has no padding");

enum { CRC_AT = 60 };

/* ---- descriptions ---- */

void image_text_add(image_text *t, const char *format, ...) {
    va_list args, again;
    if (t->failed) return;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0 && t->bytes + (size_t)n + 1 > t->room) {
        size_t room = 2 * t->room + (size_t)n + 256;
        char *more = realloc(t->text, room);
        if (more) t->text = more, t->room = room;
        else n = -1;
    }
    t->failed = n < 0;
    if (n >= 0) {
        vsnprintf(t->text + t->bytes, t->room - t->bytes, format, again);
        t->bytes += (size_t)n;
    }
    va_end(again);
}

void image_text_rows(image_text *t, const ebb_origin *origin) {
    const char *rows = origin && origin->rows ? origin->rows : "unknown";
    size_t at = t->bytes + strlen("rows ");
    image_text_add(t, "rows %s\n", rows);
    for (size_t i = at; !t->failed && i + 1 < t->bytes; i++) /* one line, printable, whatever the caller's text is */
        if (t->text[i] < 0x20 || t->text[i] > 0x7E) t->text[i] = '?';
}

/* ---- writing ---- */

size_t image_bytes(size_t text_bytes, size_t payload) {
    size_t bytes;
    if (text_bytes > UINT32_MAX - 8 || !size_add(sizeof(header) + align_up(text_bytes, 8), payload, &bytes)) return 0;
    return bytes;
}

uint8_t *image_begin(void *image, size_t bytes, ebb_image_kind kind, int64_t pos, const ebb_origin *origin,
                     const image_text *text) {
    header h = {.version = EBB_IMAGE_VERSION,
                .kind = kind,
                .bytes = bytes,
                .position = pos,
                .numerics = origin ? origin->numerics : 0,
                .model = origin ? origin->model : 0,
                .text_bytes = (uint32_t)text->bytes};
    uint8_t *at = image;
    memcpy(h.magic, magic, sizeof magic);
    memcpy(at, &h, sizeof h);
    memcpy(at + sizeof h, text->text, text->bytes);
    memset(at + sizeof h + text->bytes, 0, align_up(text->bytes, 8) - text->bytes);
    return at + sizeof h + align_up(text->bytes, 8);
}

static uint32_t checksum(const uint8_t *image, size_t bytes) {
    return crc32c(crc32c(0, image, CRC_AT), image + sizeof(header), bytes - sizeof(header));
}

void image_seal(void *image, size_t bytes) {
    uint32_t crc = checksum(image, bytes);
    memcpy((uint8_t *)image + CRC_AT, &crc, sizeof crc);
}

/* ---- reading ---- */

static const char *kind_name(uint32_t kind) {
    static const char *const names[] = {"nothing known", "a state", "a KV cache", "a sequence"};
    return names[kind <= EBB_IMAGE_SEQUENCE ? kind : 0];
}

static ebb_status check_header(const header *h, const uint8_t *image, size_t bytes, int32_t kind, ebb_error *error) {
    if (memcmp(h->magic, magic, sizeof magic))
        return ebb_fail(error, EBB_BAD_FILE, "not an image of ebb: it does not begin with 'ebbimage'");
    if (h->version > EBB_IMAGE_VERSION)
        return ebb_fail(error, EBB_UNSUPPORTED, "an image of version %u; this library reads up to version %d",
                        h->version, EBB_IMAGE_VERSION);
    if (h->version < 1) return ebb_fail(error, EBB_BAD_FILE, "an image of version 0; versions begin at 1");
    if (h->bytes != bytes)
        return ebb_fail(error, EBB_BAD_FILE, "an image of %zu bytes; its header says %llu: it is %s", bytes,
                        (unsigned long long)h->bytes, h->bytes > bytes ? "cut" : "followed by something");
    const uint32_t crc = checksum(image, bytes);
    if (h->crc != crc)
        return ebb_fail(error, EBB_BAD_FILE, "an image with checksum %08x; its bytes have %08x: it is damaged", h->crc,
                        crc);
    if (h->kind < EBB_IMAGE_STATE || h->kind > EBB_IMAGE_SEQUENCE || (kind && h->kind != (uint32_t)kind))
        return ebb_fail(error, EBB_BAD_FILE, "an image of kind %u (%s); expected %s", h->kind, kind_name(h->kind),
                        kind ? kind_name((uint32_t)kind) : "1 to 3");
    if (h->position < 0 || h->position > IMAGE_MAX_POSITION)
        return ebb_fail(error, EBB_BAD_FILE, "an image at position %lld; expected 0 to 2^48", (long long)h->position);
    if (h->zero[0] || h->zero[1]) return ebb_fail(error, EBB_BAD_FILE, "an image whose unused fields are not zero");
    return EBB_OK;
}

/* Lines of printable characters, the last one begins with "rows ", and zeros up to the payload. */
static ebb_status check_text(const char *text, size_t bytes, image_view *v, ebb_error *error) {
    size_t line = bytes;
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != '\n' && (text[i] < 0x20 || text[i] > 0x7E))
            return ebb_fail(error, EBB_BAD_FILE, "byte %zu of an image's description is no printable character", i);
    if (bytes && text[bytes - 1] == '\n')
        for (line = bytes - 1; line > 0 && text[line - 1] != '\n'; line--) {
        }
    if (bytes - line < 6 || memcmp(text + line, "rows ", 5))
        return ebb_fail(error, EBB_BAD_FILE, "an image whose description does not end with a line of rows");
    for (size_t i = bytes; i < align_up(bytes, 8); i++)
        if (text[i]) return ebb_fail(error, EBB_BAD_FILE, "an image whose description is not followed by zeros");
    v->own_bytes = line;
    v->rows = text + line + 5;
    v->rows_bytes = bytes - line - 6;
    return EBB_OK;
}

/* A sequence begins with the number of its tokens, which are 4 bytes each. */
static ebb_status read_tokens(image_view *v, ebb_error *error) {
    v->info.tokens = v->info.position;
    if (v->info.kind != EBB_IMAGE_SEQUENCE) return EBB_OK;
    if (v->payload_bytes >= sizeof v->info.tokens) memcpy(&v->info.tokens, v->payload, sizeof v->info.tokens);
    if (v->payload_bytes < sizeof v->info.tokens || v->info.tokens < v->info.position ||
        (uint64_t)v->info.tokens > v->payload_bytes / 4)
        return ebb_fail(error, EBB_BAD_FILE, "a sequence of %lld tokens at position %lld in %zu bytes",
                        (long long)v->info.tokens, (long long)v->info.position, v->payload_bytes);
    return EBB_OK;
}

ebb_status image_open(const void *image, size_t bytes, int32_t kind, image_view *view, ebb_error *error) {
    header h;
    if (!image || bytes < sizeof h)
        return ebb_fail(error, EBB_BAD_FILE, "an image of %zu bytes; its header alone takes %zu", image ? bytes : 0,
                        sizeof h);
    memcpy(&h, image, sizeof h);
    ebb_status status = check_header(&h, image, bytes, kind, error);
    if (status) return status;
    const size_t body = bytes - sizeof h, text = align_up(h.text_bytes, 8);
    if (text > body)
        return ebb_fail(error, EBB_BAD_FILE, "an image whose description claims %u bytes of the %zu that follow",
                        h.text_bytes, body);
    *view = (image_view){.payload = (const uint8_t *)image + sizeof h + text, .payload_bytes = body - text};
    view->info = (ebb_image_info){.kind = (int32_t)h.kind,
                                  .version = (int32_t)h.version,
                                  .position = h.position,
                                  .numerics = h.numerics,
                                  .model = h.model,
                                  .text = (const char *)image + sizeof h,
                                  .text_bytes = h.text_bytes};
    status = check_text(view->info.text, h.text_bytes, view, error);
    return status ? status : read_tokens(view, error);
}

ebb_status ebb_image_describe(const void *image, size_t bytes, ebb_image_info *info, ebb_error *error) {
    image_view view;
    if (!info) return ebb_fail(error, EBB_BAD_ARGUMENT, "no place for what an image is");
    ebb_status status = image_open(image, bytes, 0, &view, error);
    if (!status) *info = view.info;
    return status;
}

/* Bytes up to the end of the word, or of the line. */
static size_t word_bytes(const char *at, const char *end) {
    size_t n = 0;
    while (at + n < end && at[n] != ' ' && at[n] != '\n') n++;
    return n;
}

const char *image_word(const image_view *view, const char *key, size_t *bytes) {
    const size_t n = strlen(key);
    const char *at = view->info.text, *end = at + view->own_bytes;
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (!line_end) return NULL;
        if ((size_t)(line_end - at) > n && !memcmp(at, key, n) && at[n] == ' ') {
            *bytes = word_bytes(at + n + 1, line_end);
            return at + n + 1;
        }
        at = line_end + 1;
    }
    return NULL;
}

ebb_status image_same(const image_view *view, const image_text *own, const char *store, ebb_error *error) {
    const char *a = view->info.text, *b = own->text, *a_end = a + view->own_bytes, *b_end = b + own->bytes;
    size_t same = 0, word, line;
    while (a + same < a_end && b + same < b_end && a[same] == b[same]) same++;
    if (a + same == a_end && b + same == b_end) return EBB_OK;
    for (word = same; word > 0 && a[word - 1] != ' ' && a[word - 1] != '\n'; word--) {
    }
    for (line = word; line > 0 && a[line - 1] != '\n'; line--) {
    }
    /* The line is named by its key and, where lines repeat, its number: what comes before the word, cut at 24. */
    size_t label = word > line ? word - line - 1 : 0;
    if (label >= 6 && !memcmp(a + line, "layer ", 6)) label = 6 + word_bytes(a + line + 6, a_end);
    return ebb_fail(error, EBB_BAD_ARGUMENT, "the image has %.*s%s%.*s; this %s has %.*s",
                    (int)min_i64((int64_t)label, 24), a + line, label ? " " : "",
                    (int)min_i64((int64_t)word_bytes(a + word, a_end), 80), a + word, store,
                    (int)min_i64((int64_t)word_bytes(b + word, b_end), 80), b + word);
}
