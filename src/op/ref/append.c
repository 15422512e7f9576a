/* op/ref/append.c: the definition of what a token becomes in a KV store: rows of 16 bits (format/float16.h) and codes
 * (kv/token.h). Called by op/append.c through the row table. Other rows write the same bytes. */
#include "format/float16.h"
#include "kv/token.h"
#include "op/rows.h"

static void narrow(int32_t type, const float *x, int64_t n, uint16_t *y) {
    for (int64_t i = 0; i < n; i++) y[i] = type == EBB_FP16 ? float_to_fp16(x[i]) : float_to_bf16(x[i]);
}

static void widen(int32_t type, const uint16_t *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = type == EBB_FP16 ? fp16_to_float(x[i]) : bf16_to_float(x[i]);
}

static void codes(const append_part *p) {
    for (int32_t h = 0; h < p->heads; h++) {
        uint16_t scale;
        token_encode(p->x + h * p->x_stride, p->dims, p->bits, p->levels, p->code + h * p->stride, &scale);
        memcpy(p->scale + h * p->stride, &scale, sizeof scale);
    }
}

const append_row append_ref = {.id = {"ref", 0, 1}, .narrow = narrow, .widen = widen, .codes = codes};
