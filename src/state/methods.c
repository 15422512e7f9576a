/* state/methods.c: THE table of state methods: a name, a codec, its parameters. A new method is a row here, and a file
 * for its codec if it has a new one; op/ref serves it at once. A program of your own can add rows without touching the
 * library: compile this file into it with -DEBB_EXTRA_STATE_HEADER='"mine.h"', a header that declares the codec and
 * defines EBB_EXTRA_STATE_METHODS as the rows (tests/toy does so). */
#include "core/core.h"
#include "state/params.h"

#include <string.h>

#ifdef EBB_EXTRA_STATE_HEADER
#    include EBB_EXTRA_STATE_HEADER
#endif

extern const ebb_state_codec codec_block, codec_leap, codec_mixed;
extern const ebb_state_codec codec_affine, codec_micro;
extern const ebb_state_codec codec_quarot, codec_turboquant, codec_kvquant;
extern const ebb_state_codec codec_damp, codec_reorder;

static const ebb_state_method methods[] = {
    {"fp32", &codec_block, "format=fp32", "the state as it is, written at every token"},
    {"fp32-w", &codec_block, "format=fp32,p=16", "FP32, written once per window"},
    {"replay", &codec_block, "format=fp32,p=16", "ReplaySSM: fp32-w by another name; format=bf16: bf16-w"},
    {"fp16", &codec_block, "format=fp16", "FP16 at every token, saturating at 65504"},
    {"fp16-w", &codec_block, "format=fp16,p=16", "FP16 once per window"},
    {"fp16-stoch", &codec_block, "format=fp16,round=stoch", "FP16, stochastic rounding, at every token"},
    {"fp16-stoch-w", &codec_block, "format=fp16,round=stoch,p=16", "FP16, stochastic rounding, once per window"},
    {"bf16", &codec_block, "format=bf16", "BF16 at every token: what serving engines offer"},
    {"bf16-w", &codec_block, "format=bf16,p=16", "BF16 once per window"},
    {"bf16-stoch", &codec_block, "format=bf16,round=stoch", "BF16, stochastic rounding, at every token"},
    {"bf16-stoch-w", &codec_block, "format=bf16,round=stoch,p=16", "BF16, stochastic rounding, once per window"},
    {"fp8", &codec_block, "format=fp8", "FP8 E4M3, groups of 32 with FP32 scale, at every token"},
    {"fp8-w", &codec_block, "format=fp8,p=16", "FP8 E4M3 once per window"},
    {"int8", &codec_block, "format=int8", "INT8, groups of 32 with FP32 scale, at every token"},
    {"int8-w", &codec_block, "format=int8,p=16", "INT8 once per window"},
    {"int8-stoch", &codec_block, "format=int8,round=stoch", "int8, stochastic rounding, at every token"},
    {"int8-stoch-w", &codec_block, "format=int8,round=stoch,p=16", "int8, stochastic rounding, once per window"},
    {"int8-fp16s", &codec_block, "format=int8,scale=fp16", "int8 with FP16 scales, which stagnate, at every token"},
    {"int8-fp16s-w", &codec_block, "format=int8,scale=fp16,p=16", "int8 with FP16 scales, once per window"},
    {"int8-bf16s", &codec_block, "format=int8,scale=bf16", "int8 with BF16 scales, which stagnate, at every token"},
    {"int8-bf16s-w", &codec_block, "format=int8,scale=bf16,p=16", "int8 with BF16 scales, once per window"},
    {"int8-ls", &codec_block, "format=int8,fit=ls", "int8, scales by least squares, at every token"},
    {"int8-ls-w", &codec_block, "format=int8,fit=ls,p=16", "int8, scales by least squares, once per window"},
    {"int8-row", &codec_block, "format=int8,group=row", "INT8, an FP32 scale per row, at every token"},
    {"int8-row-w", &codec_block, "format=int8,group=row,p=16", "INT8, an FP32 scale per row, once per window"},
    {"int8-col", &codec_block, "format=int8,group=column", "INT8, an FP32 scale per column, at every token"},
    {"int8-col-w", &codec_block, "format=int8,group=column,p=16", "INT8, an FP32 scale per column, once per window"},
    {"int6", &codec_block, "format=int6", "INT6, groups of 32 with FP32 scale, at every token"},
    {"int6-w", &codec_block, "format=int6,p=16", "INT6 once per window"},
    {"int5", &codec_block, "format=int5", "INT5, groups of 32 with FP32 scale, at every token"},
    {"int5-w", &codec_block, "format=int5,p=16", "INT5 once per window"},
    {"int4", &codec_block, "format=int4", "INT4, groups of 32 with FP32 scale, at every token"},
    {"int4-w", &codec_block, "format=int4,p=16", "INT4 once per window"},
    {"int4-ls", &codec_block, "format=int4,fit=ls", "int4, scales by least squares, at every token"},
    {"int4-ls-w", &codec_block, "format=int4,fit=ls,p=16", "int4, scales by least squares, once per window"},
    {"int4-row", &codec_block, "format=int4,group=row", "INT4, an FP32 scale per row, at every token"},
    {"int4-row-w", &codec_block, "format=int4,group=row,p=16", "INT4, an FP32 scale per row, once per window"},
    {"int4-col", &codec_block, "format=int4,group=column", "INT4, an FP32 scale per column, at every token"},
    {"int4-col-w", &codec_block, "format=int4,group=column,p=16", "INT4, an FP32 scale per column, once per window"},
    {"leap8", &codec_leap, "bits=8,r=4,p=16", "LeapQuant, 8-bit residual, 4 compensators"},
    {"leap6", &codec_leap, "bits=6,r=4,p=16", "LeapQuant, 6-bit residual, 4 compensators"},
    {"leap5", &codec_leap, "bits=5,r=4,p=16", "LeapQuant, 5-bit residual, 4 compensators"},
    {"leap4", &codec_leap, "bits=4,r=8,p=16", "LeapQuant, 4-bit residual, 8 compensators"},
    {"leap8-sticky", &codec_leap, "bits=8,r=4,sticky=150,p=16",
     "leap8 that fits its compensators only when they are due"},
    {"leap4-sticky", &codec_leap, "bits=4,r=8,sticky=150,p=16",
     "leap4 that fits its compensators only when they are due"},
    {"leap8-key", &codec_leap, "bits=8,r=4,rotate=key,p=16", "leap8 with a rotated key axis instead of smoothing"},
    {"leap-mix", &codec_mixed, "r=4,p=16", "LeapQuant with calibrated bits by head: 6, 8 or 12"},
    {"quarot8", &codec_quarot, "bits=8", "QuaRot: rotated rows, INT8 with an FP32 scale per row, at every token"},
    {"quarot8-w", &codec_quarot, "bits=8,p=16", "QuaRot, INT8, once per window"},
    {"quarot6", &codec_quarot, "bits=6", "QuaRot: rotated rows, INT6 with an FP32 scale per row, at every token"},
    {"quarot6-w", &codec_quarot, "bits=6,p=16", "QuaRot, INT6, once per window"},
    {"quarot4", &codec_quarot, "bits=4", "QuaRot: rotated rows, INT4 with an FP32 scale per row, at every token"},
    {"quarot4-w", &codec_quarot, "bits=4,p=16", "QuaRot, INT4, once per window"},
    {"turboquant8", &codec_turboquant, "bits=8", "TurboQuant: rotated rows, 8-bit Lloyd-Max codebook, at every token"},
    {"turboquant8-w", &codec_turboquant, "bits=8,p=16", "TurboQuant, 8 bits, once per window"},
    {"turboquant6", &codec_turboquant, "bits=6", "TurboQuant: rotated rows, 6-bit Lloyd-Max codebook, at every token"},
    {"turboquant6-w", &codec_turboquant, "bits=6,p=16", "TurboQuant, 6 bits, once per window"},
    {"turboquant4", &codec_turboquant, "bits=4", "TurboQuant: rotated rows, 4-bit Lloyd-Max codebook, at every token"},
    {"turboquant4-w", &codec_turboquant, "bits=4,p=16", "TurboQuant, 4 bits, once per window"},
    {"kvquant8", &codec_kvquant, "bits=8", "KVQuant: FP16 outliers, 8-bit k-means codebook, at every token"},
    {"kvquant8-w", &codec_kvquant, "bits=8,p=16", "KVQuant, 8 bits, once per window"},
    {"kvquant6", &codec_kvquant, "bits=6", "KVQuant: FP16 outliers, 6-bit k-means codebook, at every token"},
    {"kvquant6-w", &codec_kvquant, "bits=6,p=16", "KVQuant, 6 bits, once per window"},
    {"kvquant4", &codec_kvquant, "bits=4", "KVQuant: FP16 outliers, 4-bit k-means codebook, at every token"},
    {"kvquant4-w", &codec_kvquant, "bits=4,p=16", "KVQuant, 4 bits, once per window"},
    {"int8-affine", &codec_affine, "bits=8", "UINT8, groups of 32 with FP16 scale and zero point, at every token"},
    {"int8-affine-w", &codec_affine, "bits=8,p=16", "UINT8 with scale and zero point, once per window"},
    {"int8-h32", &codec_affine, "bits=8,hadamard=32", "int8-affine after a Hadamard transform of blocks of 32"},
    {"int8-h32-w", &codec_affine, "bits=8,hadamard=32,p=16", "int8-h32 once per window"},
    {"int4-affine", &codec_affine, "bits=4", "UINT4, groups of 32 with FP16 scale and zero point, at every token"},
    {"int4-affine-w", &codec_affine, "bits=4,p=16", "UINT4 with scale and zero point, once per window"},
    {"int4-h32", &codec_affine, "bits=4,hadamard=32", "int4-affine after a Hadamard transform of blocks of 32"},
    {"int4-h32-w", &codec_affine, "bits=4,hadamard=32,p=16", "int4-h32 once per window"},
    {"mxfp4", &codec_micro, "scales=mx,format=e2m1", "MXFP4: E2M1, a power of two for 32 values, at every token"},
    {"mxfp4-w", &codec_micro, "scales=mx,format=e2m1,p=16", "MXFP4 once per window"},
    {"mxfp6", &codec_micro, "scales=mx,format=e2m3", "MXFP6: E2M3, a power of two for 32 values, at every token"},
    {"mxfp6-w", &codec_micro, "scales=mx,format=e2m3,p=16", "MXFP6 once per window"},
    {"nvfp4", &codec_micro, "scales=nv,format=e2m1", "NVFP4: E2M1, an FP8 scale for 16 values, at every token"},
    {"nvfp4-w", &codec_micro, "scales=nv,format=e2m1,p=16", "NVFP4 once per window"},
    {"nvfp6", &codec_micro, "scales=nv,format=e2m3", "NVFP4 with E2M3 codes (no standard), at every token"},
    {"nvfp6-w", &codec_micro, "scales=nv,format=e2m3,p=16", "nvfp6 (no standard) once per window"},
    {"damp", &codec_damp, "", "DAMP: 16 calibrated rows in FP16, the others int8-h32, at every token"},
    {"damp-w", &codec_damp, "p=16", "DAMP once per window"},
    {"damp-reorder", &codec_reorder, "", "DAMP v2: 16 calibrated rows in FP16, the others int8-reorder"},
    {"damp-reorder-w", &codec_reorder, "p=16", "DAMP v2 once per window"},
    {"int8-reorder", &codec_reorder, "rows=0", "INT8, value axis scaled and reordered by calibration, at every token"},
    {"int8-reorder-w", &codec_reorder, "rows=0,p=16", "int8-reorder once per window"},
    {"int4-reorder", &codec_reorder, "rows=0,low=int4", "INT4, value axis scaled and reordered by calibration"},
    {"int4-reorder-w", &codec_reorder, "rows=0,low=int4,p=16", "int4-reorder once per window"},
#ifdef EBB_EXTRA_STATE_METHODS
    EBB_EXTRA_STATE_METHODS
#endif
};

const ebb_state_method *ebb_state_methods(int32_t *count) {
    *count = COUNT(methods);
    return methods;
}

const char *ebb_state_layout_name(const ebb_state_method *method) {
    if (!(method->codec->flags & EBB_NEEDS_TABLE)) return NULL;
    int32_t first = 0;
    while (first < COUNT(methods) - 1 && methods[first].codec != method->codec) first++;
    return methods[first].name;
}

ebb_status ebb_state_parse(const char *text, ebb_state_spec *spec, ebb_error *error) {
    int32_t row;
    const char *params;
    if (!text || !spec) return ebb_fail(error, EBB_BAD_ARGUMENT, "no state method given");
    ebb_status status = method_find("state", text, methods, COUNT(methods), sizeof methods[0], &row, &params, error);
    if (status) return status;
    const ebb_state_method *method = &methods[row];
    ebb_state_spec parsed = {.method = method};
    status = params_read(method->name, method->codec->params, method->defaults, params, parsed.param, error);
    if (status) return status;
    parsed.window = (int32_t)parsed.param[0];
    const int32_t seed = param_index(method->codec->params, "seed");
    if (seed >= 0) parsed.seed = (uint64_t)parsed.param[seed];
    if (parsed.window & (parsed.window - 1))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s: p=%d, expected a power of two from 1 to %d", method->name,
                        parsed.window, EBB_MAX_WINDOW);
    *spec = parsed;
    return EBB_OK;
}
