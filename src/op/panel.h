/* op/panel.h: the panels of a weight: EBB_PANEL rows of the matrix side by side, k ascending. Plain types are
 * [k][EBB_PANEL] numbers. A quantized type (format/block_gguf.h) keeps its blocks: the panel block of 32 row blocks has
 * the same bytes in another order, so that the lanes of a kernel lie along the rows as they do for plain types:
 *
 *   head    [d, or d and minimum][32] FP16
 *   scales  [of the block][32] bytes, _K types only
 *   high    [k][32] upper bits of the codes, 1 or 2 of each, the lowest bits of the first byte first
 *   codes   [k][32] of 8 bits, or of 4: byte j of the 16 has row j in its low nibble and row j + 16 in its high one
 *
 * Packing and taking back are each other's inverse and never look at a value. Called by op/weight.c, the rows of gemm,
 * and tests. */
#ifndef OP_PANEL_H
#define OP_PANEL_H

#include "core/core.h"
#include "ebb/op.h"
#include "format/block_gguf.h"

#include <string.h>

enum { QUANT_BLOCK_BYTES = 210 }; /* of the largest block of a row */

/* Where the pieces of a block of one row lie in the file's order. */
typedef struct quant_layout {
    int32_t values, bytes;
    int32_t halves, halves_at; /* FP16 numbers */
    int32_t scales, scales_at; /* bytes */
    int32_t high_bits, high_at, code_bits, codes_at;
} quant_layout;

static inline EBB_HD quant_layout quant_layout_of(int32_t type) {
    switch (type) {
    case EBB_Q4_0:
        return (quant_layout){32, 18, 1, 0, 0, 0, 0, 0, 4, 2};
    case EBB_Q4_1:
        return (quant_layout){32, 20, 2, 0, 0, 0, 0, 0, 4, 4};
    case EBB_Q5_0:
        return (quant_layout){32, 22, 1, 0, 0, 0, 1, 2, 4, 6};
    case EBB_Q5_1:
        return (quant_layout){32, 24, 2, 0, 0, 0, 1, 4, 4, 8};
    case EBB_Q8_0:
        return (quant_layout){32, 34, 1, 0, 0, 0, 0, 0, 8, 2};
    case EBB_Q4_K:
        return (quant_layout){256, 144, 2, 0, 12, 4, 0, 0, 4, 16};
    case EBB_Q5_K:
        return (quant_layout){256, 176, 2, 0, 12, 4, 1, 16, 4, 48};
    default:
        return (quant_layout){256, 210, 1, 208, 16, 192, 2, 128, 4, 0};
    }
}

/* The pieces of a panel block. */
typedef struct panel_block {
    const uint8_t *halves, *scales, *high, *codes;
} panel_block;

static inline EBB_HD panel_block panel_block_at(const quant_layout *l, const uint8_t *p) {
    panel_block b = {p, NULL, NULL, NULL};
    b.scales = b.halves + l->halves * 2 * EBB_PANEL;
    b.high = b.scales + l->scales * EBB_PANEL;
    b.codes = b.high + l->values * (EBB_PANEL / 8) * l->high_bits;
    return b;
}

/* Bytes of one panel of k columns; 0 where the type has no such rows. */
static inline size_t panel_bytes(int32_t type, int64_t k) {
    size_t row = ebb_type_row_bytes((ebb_type)type, k), bytes;
    return size_mul(row, EBB_PANEL, &bytes) ? bytes : 0;
}

/* Where the code of value i of a block is: a byte and a shift, and those of its upper bits. */
typedef struct code_place {
    int32_t low, low_shift, high, high_shift;
} code_place;

static inline EBB_HD code_place code_place_of(int32_t type, int32_t i) {
    switch (type) {
    case EBB_Q8_0:
        return (code_place){i, 0, 0, 0};
    case EBB_Q4_K:
    case EBB_Q5_K:
        return (code_place){i / 64 * 32 + i % 32, 4 * (i / 32 % 2), i % 32, i / 32};
    case EBB_Q6_K:
        return (code_place){i / 128 * 64 + i % 64, 4 * (i / 64 % 2), i / 128 * 32 + i % 32, 2 * (i / 32 % 4)};
    default:
        return (code_place){i % 16, 4 * (i / 16), i / 8, i % 8};
    }
}

/* Row blocks of EBB_PANEL rows (NULL: zeros) to one panel block. Inlined with a constant type by panel_pack. */
static inline __attribute__((always_inline)) void panel_pack_of(const int32_t type, const uint8_t *const *rows,
                                                                uint8_t *out) {
    const quant_layout l = quant_layout_of(type);
    const int32_t code_mask = (1 << l.code_bits) - 1, high_mask = (1 << l.high_bits) - 1;
    const panel_block to = panel_block_at(&l, out);
    uint8_t *halves = out, *scales = halves + (to.scales - to.halves), *high = halves + (to.high - to.halves),
            *codes = halves + (to.codes - to.halves);
    memset(out, 0, (size_t)l.bytes * EBB_PANEL);
    for (int32_t c = 0; c < EBB_PANEL; c++) {
        const uint8_t *b = rows[c];
        if (!b) continue;
        for (int32_t i = 0; i < l.halves; i++) memcpy(halves + 2 * (i * EBB_PANEL + c), b + l.halves_at + 2 * i, 2);
        for (int32_t i = 0; i < l.scales; i++) scales[i * EBB_PANEL + c] = b[l.scales_at + i];
        for (int32_t i = 0; i < l.values; i++) {
            const code_place at = code_place_of(type, i);
            const int32_t code = b[l.codes_at + at.low] >> at.low_shift & code_mask;
            if (l.code_bits == 8) codes[i * EBB_PANEL + c] = (uint8_t)code;
            else codes[i * 16 + c % 16] |= (uint8_t)(code << c / 16 * 4);
            if (l.high_bits) {
                const int32_t bits = b[l.high_at + at.high] >> at.high_shift & high_mask;
                high[(i * EBB_PANEL + c) * l.high_bits / 8] |= (uint8_t)(bits << c * l.high_bits % 8);
            }
        }
    }
}

static inline void panel_pack(int32_t type, const uint8_t *const *rows, uint8_t *out) {
    switch (type) {
    case EBB_Q4_0:
        panel_pack_of(EBB_Q4_0, rows, out);
        break;
    case EBB_Q4_1:
        panel_pack_of(EBB_Q4_1, rows, out);
        break;
    case EBB_Q5_0:
        panel_pack_of(EBB_Q5_0, rows, out);
        break;
    case EBB_Q5_1:
        panel_pack_of(EBB_Q5_1, rows, out);
        break;
    case EBB_Q8_0:
        panel_pack_of(EBB_Q8_0, rows, out);
        break;
    case EBB_Q4_K:
        panel_pack_of(EBB_Q4_K, rows, out);
        break;
    case EBB_Q5_K:
        panel_pack_of(EBB_Q5_K, rows, out);
        break;
    default:
        panel_pack_of(EBB_Q6_K, rows, out);
    }
}

/* Row c of a panel block back in the file's order: l.bytes bytes, for gguf_decode_row. */
static inline EBB_HD void panel_take(int32_t type, const uint8_t *in, int32_t c, uint8_t *b) {
    const quant_layout l = quant_layout_of(type);
    const panel_block from = panel_block_at(&l, in);
    const int32_t code_mask = (1 << l.code_bits) - 1, high_mask = (1 << l.high_bits) - 1;
    memset(b, 0, (size_t)l.bytes);
    for (int32_t i = 0; i < l.halves; i++) memcpy(b + l.halves_at + 2 * i, from.halves + 2 * (i * EBB_PANEL + c), 2);
    for (int32_t i = 0; i < l.scales; i++) b[l.scales_at + i] = from.scales[i * EBB_PANEL + c];
    for (int32_t i = 0; i < l.values; i++) {
        const code_place at = code_place_of(type, i);
        const int32_t code =
            l.code_bits == 8 ? from.codes[i * EBB_PANEL + c] : from.codes[i * 16 + c % 16] >> c / 16 * 4 & code_mask;
        b[l.codes_at + at.low] |= (uint8_t)(code << at.low_shift);
        if (l.high_bits) {
            const int32_t bits = from.high[(i * EBB_PANEL + c) * l.high_bits / 8] >> c * l.high_bits % 8 & high_mask;
            b[l.high_at + at.high] |= (uint8_t)(bits << at.high_shift);
        }
    }
}

/* ---- stacks: runs of rows of one type inside a weight ---- */

bool weight_ok(const ebb_weight *w); /* made by ebb_weight_pack, or as if */

static inline int32_t weight_stacks(const ebb_weight *w) { return w->stacks ? w->stacks : 1; }

/* Stack i as a weight of its own; *row is its first row. */
static inline ebb_weight weight_stack(const ebb_weight *w, int32_t i, int64_t *row) {
    ebb_weight s = {.n = w->n, .k = w->k, .type = w->type, .panels = w->panels, .bytes = w->bytes};
    *row = 0;
    if (!w->stacks) return s;
    const uint8_t *at = (const uint8_t *)w->panels;
    for (int32_t j = 0; j <= i; j++) {
        s.n = w->stack[j].n;
        s.type = w->stack[j].type;
        s.bytes = panel_bytes(s.type, s.k) * (size_t)((s.n + EBB_PANEL - 1) / EBB_PANEL);
        if (j == i) break;
        at += s.bytes;
        *row += s.n;
    }
    s.panels = (void *)(uintptr_t)at;
    return s;
}

#endif
