/* core/image.h: the frame that images of every kind share: header, description, payload, checksum. For the image.c of
 * state, kv and engine. */
#ifndef CORE_IMAGE_H
#define CORE_IMAGE_H

#include <string.h>

#include "core/core.h"
#include "ebb/image.h"

#define IMAGE_MAX_POSITION ((int64_t)1 << 48)

/* ---- descriptions: lines of "KEY word word ...", the last one "rows TEXT" ---- */

typedef struct image_text {
    char *text; /* malloc'ed */
    size_t bytes, room;
    bool failed; /* no memory */
} image_text;

void image_text_add(image_text *t, const char *format, ...) EBB_PRINTF(2, 3);
void image_text_rows(image_text *t, const ebb_origin *origin); /* the last line */

/* ---- writing ---- */

/* Bytes of an image with this description and payload; 0: they do not fit an address space. */
size_t image_bytes(size_t text_bytes, size_t payload);
/* Write header and description; returns where the payload goes. `bytes` is image_bytes(...). */
uint8_t *image_begin(void *image, size_t bytes, ebb_image_kind kind, int64_t pos, const ebb_origin *origin,
                     const image_text *text);
void image_seal(void *image, size_t bytes); /* when all else is written: the checksum */

/* ---- reading ---- */

typedef struct image_view {
    ebb_image_info info;
    size_t own_bytes; /* of the description without its last line */
    const char *rows; /* of the last line, rows_bytes long */
    size_t rows_bytes;
    const uint8_t *payload;
    size_t payload_bytes;
} image_view;

/* Check the frame. kind 0: any. */
ebb_status image_open(const void *image, size_t bytes, int32_t kind, image_view *view, ebb_error *error);
/* The first word after `key` at the beginning of a line; NULL: there is no such line. */
const char *image_word(const image_view *view, const char *key, size_t *bytes);
/* Is the image's description, but for its rows, this one? Else a sentence with the first word that differs. `store`
 * says what is compared: "state store". */
ebb_status image_same(const image_view *view, const image_text *own, const char *store, ebb_error *error);

/* ---- payloads: one function moves the bytes in both directions, so that they cannot differ ---- */

typedef struct image_cursor {
    uint8_t *save; /* one of them is not NULL */
    const uint8_t *load;
} image_cursor;

static inline void image_move(image_cursor *c, void *store, size_t bytes) {
    if (bytes == 0) return;
    if (c->save) {
        memcpy(c->save, store, bytes);
        c->save += bytes;
    } else {
        memcpy(store, c->load, bytes);
        c->load += bytes;
    }
}

#endif
