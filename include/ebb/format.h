/* ebb/format.h: how a row of numbers is stored. The table of formats is in src/format/formats.c. */
#ifndef EBB_FORMAT_H
#define EBB_FORMAT_H

#include "ebb/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Types of plain tensors (weights, activations, records); then those of the quantized weights of GGUF files, whose rows
 * are blocks of 32 values, or 256 where the name ends in K, with scales inside (src/format/block_gguf.h). */
typedef enum ebb_type {
    EBB_FP32 = 1,
    EBB_FP16,
    EBB_BF16,
    EBB_INT32,
    EBB_INT64,
    EBB_UINT8,
    EBB_Q4_0 = 32,
    EBB_Q4_1,
    EBB_Q5_0,
    EBB_Q5_1,
    EBB_Q8_0,
    EBB_Q4_K,
    EBB_Q5_K,
    EBB_Q6_K
} ebb_type;

EBB_API const char *ebb_type_name(ebb_type type);
EBB_API size_t ebb_type_bytes(ebb_type type); /* of one element; 0 for blocks and for an unknown type */
/* Values of a block: 1 for plain types, 0 for an unknown type. */
EBB_API int32_t ebb_type_block(ebb_type type);
/* Bytes of a row of n >= 0 values; 0 also for an unknown type, n that is no whole number of blocks, and overflow. */
EBB_API size_t ebb_type_row_bytes(ebb_type type, int64_t n);

/* A strided view. Strides are in elements; the last dimension need not be contiguous unless an op says so. */
typedef struct ebb_tensor {
    void *data;
    int32_t type, dims; /* ebb_type; 0..4 */
    int64_t shape[4], stride[4];
} ebb_tensor;

/* One storage format of a row of n values: ceil(n * bits / 8) bytes of codes and ceil(n / group) FP32 scales.
 * encode and decode are pure, round half to even, and give the same bits on every CPU. decode(encode(x)) is finite for
 * finite x. NaN and infinities are stored by the formats without scales only (of these, FP16 saturates infinities); the
 * others store NaN as the most negative code and an infinity as the largest. */
typedef struct ebb_format {
    const char *name; /* fp32 fp16 bf16 fp8 int8 int4 */
    int32_t bits;     /* of one code */
    int32_t group;    /* values that share one FP32 scale, the last group may be shorter; 0: no scales */
    void (*encode)(const float *x, int64_t n, void *codes, float *scales);
    void (*decode)(const void *codes, const float *scales, int64_t n, float *x);
} ebb_format;

EBB_API const ebb_format *ebb_formats(int32_t *count);
EBB_API const ebb_format *ebb_format_find(const char *name); /* NULL: no such format */
EBB_API size_t ebb_format_code_bytes(const ebb_format *format, int64_t n);
EBB_API int64_t ebb_format_scales(const ebb_format *format, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
