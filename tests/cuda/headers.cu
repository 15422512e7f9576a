/* tests/cuda/headers.cu: the rounding code is one for every device, so its headers must be valid CUDA C. Compiled, not run, by
 * `make cuda-compile`; a CUDA device will include them the same way. */
#include "format/block_affine.h"
#include "format/block_gguf.h"
#include "format/block_int.h"
#include "format/block_micro.h"
#include "format/float16.h"
#include "format/float8.h"

__global__ void store_rows(const float *x, int64_t n, int8_t *codes8, uint8_t *codes4, float *scales, uint16_t *half, float *back) {
    const int64_t row = blockIdx.x;
    int8_encode_row(x + row * n, n, codes8 + row * n, scales);
    int8_decode_row(codes8 + row * n, scales, n, back);
    int4_encode_row(x + row * n, n, codes4 + row * (n + 1) / 2, scales);
    int4_decode_row(codes4 + row * (n + 1) / 2, scales, n, back);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) half[i] = (uint16_t)(float_to_fp16(x[i]) ^ float_to_bf16(x[i]));
}

__global__ void affine_rows(affine_form form, const float *x, int64_t n, uint8_t *codes, uint8_t *pairs, float *back) {
    affine_encode_row(form, x, n, codes, pairs);
    affine_decode_row(form, codes, pairs, n, back);
}

__global__ void micro_rows(micro_code code, int nv, const float *x, int64_t n, uint8_t *low, uint8_t *high, uint8_t *scales, float *back) {
    const micro_form form = micro_form_of(code, nv);
    const float global = micro_global(form, micro_amax(0, x, n));
    micro_encode_row(form, global, x, n, low, high, scales);
    micro_decode_row(form, global, low, high, scales, n, back);
}

__global__ void gguf_rows(int32_t type, const uint8_t *blocks, int64_t n, float *x) { gguf_decode_row(type, blocks, n, x); }

__global__ void store_planes(const float *x, int8_t *q, uint8_t *low, uint8_t *high, uint8_t *codes, float *scales, float *back) {
    fp8_encode_row(x, BLOCK_GROUP, codes, scales);
    fp8_decode_row(codes, scales, BLOCK_GROUP, back);
    pack_int6(q, BLOCK_GROUP, low, high);
    unpack_int6(low, high, BLOCK_GROUP, q);
    pack_int5(q, BLOCK_GROUP, low, high);
    unpack_int5(low, high, BLOCK_GROUP, q);
}
