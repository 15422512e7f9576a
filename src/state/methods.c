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

extern const ebb_state_codec codec_block, codec_leap;

static const ebb_state_method methods[] = {
    {"fp32", &codec_block, "format=fp32", "the state as it is, written at every token"},
    {"fp32-w", &codec_block, "format=fp32,p=16", "FP32, written once per window"},
    {"bf16", &codec_block, "format=bf16", "BF16 at every token: what serving engines offer"},
    {"bf16-w", &codec_block, "format=bf16,p=16", "BF16 once per window"},
    {"int8", &codec_block, "format=int8", "INT8, groups of 32 with FP32 scale, at every token"},
    {"int8-w", &codec_block, "format=int8,p=16", "INT8 once per window"},
    {"int4", &codec_block, "format=int4", "INT4, groups of 32 with FP32 scale, at every token"},
    {"int4-w", &codec_block, "format=int4,p=16", "INT4 once per window"},
    {"leap8", &codec_leap, "bits=8,r=4,p=16", "LeapQuant, 8-bit residual, 4 compensators"},
    {"leap4", &codec_leap, "bits=4,r=8,p=16", "LeapQuant, 4-bit residual, 8 compensators"},
#ifdef EBB_EXTRA_STATE_METHODS
    EBB_EXTRA_STATE_METHODS
#endif
};

const ebb_state_method *ebb_state_methods(int32_t *count) {
    *count = COUNT(methods);
    return methods;
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
    if (parsed.window & (parsed.window - 1))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "method %s: p=%d, expected a power of two from 1 to %d", method->name,
                        parsed.window, EBB_MAX_WINDOW);
    *spec = parsed;
    return EBB_OK;
}
