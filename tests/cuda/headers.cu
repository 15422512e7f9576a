/* tests/cuda/headers.cu: the rounding code is one for every device, so its headers must be valid CUDA C. Compiled, not run, by
 * `make cuda-compile`; a CUDA device will include them the same way. */
#include "format/block_int.h"
#include "format/float16.h"

__global__ void store_rows(const float *x, int64_t n, int8_t *codes8, uint8_t *codes4, float *scales, uint16_t *half, float *back) {
    const int64_t row = blockIdx.x;
    int8_encode_row(x + row * n, n, codes8 + row * n, scales);
    int8_decode_row(codes8 + row * n, scales, n, back);
    int4_encode_row(x + row * n, n, codes4 + row * (n + 1) / 2, scales);
    int4_decode_row(codes4 + row * (n + 1) / 2, scales, n, back);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) half[i] = (uint16_t)(float_to_fp16(x[i]) ^ float_to_bf16(x[i]));
}
