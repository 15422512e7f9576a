/* format/formats.c: THE table of storage formats of a row of numbers. Codecs of both stores name their format here. */
#include "core/core.h"
#include "ebb/format.h"
#include "format/block_gguf.h"
#include "format/block_int.h"
#include "format/float16.h"
#include "format/float8.h"

#include <string.h>

static void fp32_encode(const float *x, int64_t n, void *codes, float *scales) {
    (void)scales;
    memcpy(codes, x, (size_t)n * 4);
}
static void fp32_decode(const void *codes, const float *scales, int64_t n, float *x) {
    (void)scales;
    memcpy(x, codes, (size_t)n * 4);
}
static void fp16_encode(const float *x, int64_t n, void *codes, float *scales) {
    (void)scales;
    for (int64_t i = 0; i < n; i++) ((uint16_t *)codes)[i] = float_to_fp16(x[i]);
}
static void fp16_decode(const void *codes, const float *scales, int64_t n, float *x) {
    (void)scales;
    for (int64_t i = 0; i < n; i++) x[i] = fp16_to_float(((const uint16_t *)codes)[i]);
}
static void bf16_encode(const float *x, int64_t n, void *codes, float *scales) {
    (void)scales;
    for (int64_t i = 0; i < n; i++) ((uint16_t *)codes)[i] = float_to_bf16(x[i]);
}
static void bf16_decode(const void *codes, const float *scales, int64_t n, float *x) {
    (void)scales;
    for (int64_t i = 0; i < n; i++) x[i] = bf16_to_float(((const uint16_t *)codes)[i]);
}
static void fp8_encode(const float *x, int64_t n, void *codes, float *scales) { fp8_encode_row(x, n, codes, scales); }
static void fp8_decode(const void *codes, const float *scales, int64_t n, float *x) {
    fp8_decode_row(codes, scales, n, x);
}
static void int8_encode(const float *x, int64_t n, void *codes, float *scales) { int8_encode_row(x, n, codes, scales); }
static void int8_decode(const void *codes, const float *scales, int64_t n, float *x) {
    int8_decode_row(codes, scales, n, x);
}
static void int4_encode(const float *x, int64_t n, void *codes, float *scales) { int4_encode_row(x, n, codes, scales); }
static void int4_decode(const void *codes, const float *scales, int64_t n, float *x) {
    int4_decode_row(codes, scales, n, x);
}

static const ebb_format formats[] = {
    {"fp32", 32, 0, fp32_encode, fp32_decode},          {"fp16", 16, 0, fp16_encode, fp16_decode},
    {"bf16", 16, 0, bf16_encode, bf16_decode},          {"fp8", 8, BLOCK_GROUP, fp8_encode, fp8_decode},
    {"int8", 8, BLOCK_GROUP, int8_encode, int8_decode}, {"int4", 4, BLOCK_GROUP, int4_encode, int4_decode},
};

const ebb_format *ebb_formats(int32_t *count) {
    *count = COUNT(formats);
    return formats;
}

const ebb_format *ebb_format_find(const char *name) {
    for (int32_t i = 0; i < COUNT(formats); i++)
        if (!strcmp(formats[i].name, name)) return &formats[i];
    return NULL;
}

size_t ebb_format_code_bytes(const ebb_format *format, int64_t n) { return ((size_t)n * (size_t)format->bits + 7) / 8; }

int64_t ebb_format_scales(const ebb_format *format, int64_t n) {
    return format->group ? (n + format->group - 1) / format->group : 0;
}

const char *ebb_type_name(ebb_type type) {
    switch (type) {
    case EBB_FP32:
        return "fp32";
    case EBB_FP16:
        return "fp16";
    case EBB_BF16:
        return "bf16";
    case EBB_INT32:
        return "int32";
    case EBB_INT64:
        return "int64";
    case EBB_UINT8:
        return "uint8";
    case EBB_Q4_0:
        return "q4_0";
    case EBB_Q4_1:
        return "q4_1";
    case EBB_Q5_0:
        return "q5_0";
    case EBB_Q5_1:
        return "q5_1";
    case EBB_Q8_0:
        return "q8_0";
    case EBB_Q4_K:
        return "q4_k";
    case EBB_Q5_K:
        return "q5_k";
    case EBB_Q6_K:
        return "q6_k";
    }
    return "unknown";
}

size_t ebb_type_bytes(ebb_type type) {
    switch (type) {
    case EBB_FP32:
    case EBB_INT32:
        return 4;
    case EBB_FP16:
    case EBB_BF16:
        return 2;
    case EBB_INT64:
        return 8;
    case EBB_UINT8:
        return 1;
    default:
        return 0;
    }
}

int32_t ebb_type_block(ebb_type type) { return ebb_type_bytes(type) ? 1 : gguf_block_values((int32_t)type); }

size_t ebb_type_row_bytes(ebb_type type, int64_t n) {
    const int64_t block = ebb_type_block(type);
    const size_t each = ebb_type_bytes(type) ? ebb_type_bytes(type) : (size_t)gguf_block_bytes((int32_t)type);
    size_t bytes;
    return block && n >= 0 && n % block == 0 && size_mul((size_t)(n / block), each, &bytes) ? bytes : 0;
}
