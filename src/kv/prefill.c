/* kv/prefill.c: what a prefill string says: MODE[:key=value,...]. Called by programs, engines and methods.c. */
#include <stdio.h>

#include "kv/kv_int.h"
#include "state/params.h"

enum { WINDOW, RATIO, SELECT, PV, FIELDS };

static const ebb_param fields[FIELDS] = {
    [WINDOW] = {"window", 0, 4096, 256, NULL, "newest tokens whose keys stay as they are stored"},
    [RATIO] = {"ratio", 0, 1, 0.05, "", "of the keys behind the window that are vertical"},
    [SELECT] = {"select", 0, 2, 0, "segment|prompt|paper", "vertical keys of each 256 tokens, or of the whole prompt"},
    [PV] = {"pv", 0, 1, 0, "fp16|fp8", "values and weights of the INT8 keys; fp8: E4M3, op/ref only"},
};

/* A mode and the fields that mean something to it. */
static const struct mode {
    const char *name;
    bool has[FIELDS];
} modes[] = {
    [EBB_PREFILL_FULL] = {"full", {false}},
    [EBB_PREFILL_SAGE0] = {"sage_w0", {[PV] = true}},
    [EBB_PREFILL_SAGE] = {"sage_w", {[WINDOW] = true, [PV] = true}},
    [EBB_PREFILL_VQUANT] = {"vquant_vert", {[WINDOW] = true, [RATIO] = true, [SELECT] = true, [PV] = true}},
    [EBB_PREFILL_SPARSE] = {"sparse_only", {[WINDOW] = true, [RATIO] = true, [SELECT] = true}},
};

/* The fields of a mode as a table of parameters; place[i] is the field of the i-th. */
static int32_t table_of(const struct mode *mode, ebb_param *table, int32_t *place) {
    int32_t n = 0;
    for (int32_t i = 0; i < FIELDS; i++)
        if (mode->has[i]) place[n] = i, table[n++] = fields[i];
    table[n] = (ebb_param){0};
    return n;
}

ebb_status ebb_prefill_parse(const char *text, ebb_prefill *prefill, ebb_error *error) {
    ebb_param table[FIELDS + 1];
    int32_t place[FIELDS], mode;
    double values[FIELDS] = {0}, value[FIELDS] = {0};
    const char *params;
    if (!text) return ebb_fail(error, EBB_BAD_ARGUMENT, "no prefill is given; expected MODE[:key=value,...]");
    ebb_status status = method_find("prefill", text, modes, COUNT(modes), sizeof modes[0], &mode, &params, error);
    if (status) return status;
    const int32_t n = table_of(&modes[mode], table, place);
    if (!n && params && *params)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "prefill %s takes no parameters, but '%s' is given", modes[mode].name,
                        params);
    if ((status = params_read(modes[mode].name, table, NULL, params, values, error))) return status;
    for (int32_t i = 0; i < n; i++) value[place[i]] = values[i];
    *prefill = (ebb_prefill){.mode = mode, .window = (int32_t)value[WINDOW], .fp8 = value[PV] != 0};
    prefill->ratio = value[RATIO];
    if (value[RATIO] > 0) prefill->select = EBB_SELECT_SEGMENT + (int32_t)value[SELECT];
    return EBB_OK;
}

ebb_status ebb_prefill_text(const ebb_prefill *prefill, char *text, size_t room, ebb_error *error) {
    ebb_param table[FIELDS + 1];
    int32_t place[FIELDS];
    if (prefill->mode < 0 || prefill->mode >= COUNT(modes))
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a prefill of mode %d; expected 0 to %d", prefill->mode,
                        COUNT(modes) - 1);
    const double value[FIELDS] = {[WINDOW] = prefill->window,
                                  [RATIO] = prefill->ratio,
                                  [SELECT] = prefill->select ? prefill->select - EBB_SELECT_SEGMENT : 0,
                                  [PV] = prefill->fp8};
    double values[FIELDS] = {0};
    const int32_t n = table_of(&modes[prefill->mode], table, place);
    for (int32_t i = 0; i < n; i++) values[i] = value[place[i]];
    if (params_text(modes[prefill->mode].name, table, values, text, room)) return EBB_OK;
    return ebb_fail(error, EBB_BAD_ARGUMENT, "a prefill with its parameters does not fit %zu bytes", room);
}
