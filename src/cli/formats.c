/* cli/formats.c: `ebb formats`: what every storage method costs, exactly, at any dimensions. All numbers come from the
 * codecs' own layout functions, the ones that pools are made of. */
#include "cli/options.h"
#include "cli/json_out.h"
#include "core/core.h"
#include "ebb/kv.h"
#include "ebb/state.h"
#include "state/layout.h"
#include "state/params.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct formats_options {
    int64_t key_dim, value_dim, key_heads, heads, conv, max_new, head_dim;
    const char *kind;
    bool json, verbose;
} formats_options;

typedef struct state_row {
    const char *name, *help;
    ebb_state_spec spec;
    ebb_state_sizes sizes;
    ebb_planes planes;
    double bits;       /* packed bits a value */
    size_t live, conv; /* bytes a value head; conv inputs apart */
} state_row;

static const usage_text usage = {
    "ebb formats [options] [METHOD ...]",
    "List the storage methods of recurrent states (all, or the METHODs given, as NAME or NAME:key=value,...) and of\n"
    "the KV cache, with their exact sizes.\n"
    "  bits/value  packed bits of one value of the key-dim x value-dim matrix, scales and all\n"
    "  packed      bytes of one packed head\n"
    "  live        bytes of one head beside them: the records of a window and the position of the packed part; a key\n"
    "              record is shared by the value heads of its key head\n"
    "  conv        bytes of one head's short-convolution inputs, of the last conv - 1 + max-new tokens\n"
    "  token       bytes of the codes of one token and KV head, key and value\n"
    "  overlay     bytes of the vertical keys of 256 tokens and a KV head\n"
    "  tail        bytes of a KV head beside the pages, for 4,096 tokens or more: the newest rows in 16 bits\n",
    NULL,
};

/* Sizes of a calibrated method are those of a layout that changes nothing. */
static ebb_status measure(const ebb_state_layer *layer, const formats_options *o, const char *text, state_row *row,
                          ebb_error *error) {
    ebb_layout *layout = NULL;
    ebb_status status = ebb_state_parse(text, &row->spec, error);
    if (!status && ebb_state_layout_name(row->spec.method))
        status = layout_identity(ebb_state_layout_name(row->spec.method), layer, 1, &layout, error);
    row->spec.layout = layout;
    if (!status) status = ebb_state_size(&row->spec, layer, (int32_t)o->max_new, &row->sizes, error);
    const ebb_layout_layer *table = layout ? ebb_layout_table(layout, 0, NULL) : NULL;
    const ebb_head head = {.layer = layer, .param = row->spec.param, .table = table};
    if (!status) status = row->spec.method->codec->layout(&head, &row->planes, error);
    row->spec.layout = NULL; /* nothing else is asked of it */
    ebb_layout_free(layout);
    if (status) return status;
    const size_t heads = (size_t)layer->heads;
    const ebb_state_sizes *z = &row->sizes;
    row->name = text;
    row->help = row->spec.method->help;
    row->bits = 8.0 * (double)z->packed_head / ((double)layer->key_dim * layer->value_dim);
    row->live = (z->bases + z->key_records + z->delta_records + z->decay_records + heads - 1) / heads;
    row->conv = (z->conv + heads - 1) / heads;
    return EBB_OK;
}

/* ---- as text ---- */

static void print_planes(const state_row *row) {
    const ebb_param *params = row->spec.method->codec->params;
    for (int32_t i = 0; i < row->planes.n; i++)
        printf("    plane %-8s at %7zu, %7zu bytes\n", row->planes.plane[i].name, row->planes.plane[i].at,
               row->planes.plane[i].bytes);
    for (int32_t i = 0; params[i].name; i++) {
        char value[24], range[48];
        param_value(&params[i], row->spec.param[i], value, sizeof value);
        if (params[i].choices && *params[i].choices) snprintf(range, sizeof range, "%s", params[i].choices);
        else snprintf(range, sizeof range, "%g to %g", params[i].lo, params[i].hi);
        printf("    %s=%s (%s): %s\n", params[i].name, value, range, params[i].help);
    }
}

typedef struct kv_row {
    const ebb_kv_method *method;
    ebb_kv_cost cost;  /* of one KV head */
    ebb_error refused; /* code EBB_OK: served */
} kv_row;

static int name_width(const state_row *rows, int32_t n) {
    size_t width = 8;
    for (int32_t i = 0; i < n; i++)
        if (strlen(rows[i].name) > width) width = strlen(rows[i].name);
    return (int)width;
}

static void print_states(const ebb_state_layer *layer, const formats_options *o, const state_row *rows, int32_t n) {
    const int width = name_width(rows, n);
    printf("recurrent state, one head: %s, %d x %d, %d key and %d value heads, steps of at most %lld tokens\n\n",
           o->kind, layer->key_dim, layer->value_dim, layer->key_heads, layer->heads, (long long)o->max_new);
    printf("%-*s  bits/value   packed    live    conv  window  records  what it is\n", width, "method");
    for (int32_t i = 0; i < n; i++) {
        printf("%-*s  %10.4f  %7zu %7zu %7zu  %6d  %-7s  %s\n", width, rows[i].name, rows[i].bits,
               rows[i].sizes.packed_head, rows[i].live, rows[i].conv, rows[i].spec.window,
               ebb_type_name((ebb_type)rows[i].sizes.record_type), rows[i].help);
        if (o->verbose) print_planes(&rows[i]);
    }
}

static void print_kv(const kv_row *rows, int32_t n, int64_t head_dim) {
    printf("\nKV cache, one KV head of %lld, key and value; pages of %d tokens\n\n", (long long)head_dim, EBB_KV_PAGE);
    printf("%-12s  bits/value  token  overlay     tail  what it is\n", "method");
    for (int32_t i = 0; i < n; i++) {
        const ebb_kv_cost *c = &rows[i].cost;
        printf("%-12s  ", rows[i].method->name);
        if (rows[i].refused.code) printf("%10s  %5s  %7s  %7s  ", "-", "-", "-", "-");
        else
            printf("%10.4f  %5zu  %7zu  %7zu  ", 8.0 * (double)c->token / (double)(2 * head_dim), c->token, c->overlay,
                   c->tail);
        puts(rows[i].refused.code ? rows[i].refused.text : rows[i].method->help);
    }
}

/* ---- as JSON ---- */

static json_t *state_json(const state_row *row) {
    json_t *planes = json_array();
    for (int32_t i = 0; i < row->planes.n; i++)
        planes = json_and(planes, json_pack("{s:s, s:I, s:I}", "name", row->planes.plane[i].name, "at",
                                            (json_int_t)row->planes.plane[i].at, "bytes",
                                            (json_int_t)row->planes.plane[i].bytes));
    return json_pack("{s:s, s:f, s:I, s:I, s:I, s:i, s:s, s:o}", "method", row->name, "bits", row->bits, "packed_bytes",
                     (json_int_t)row->sizes.packed_head, "live_bytes", (json_int_t)row->live, "conv_bytes",
                     (json_int_t)row->conv, "window", row->spec.window, "records",
                     ebb_type_name((ebb_type)row->sizes.record_type), "planes", planes);
}

static json_t *kv_json(const kv_row *row) {
    if (row->refused.code) return json_pack("{s:s, s:s}", "method", row->method->name, "refused", row->refused.text);
    return json_pack("{s:s, s:I, s:I, s:I, s:I}", "method", row->method->name, "token_bytes",
                     (json_int_t)row->cost.token, "page_bytes", (json_int_t)row->cost.page, "overlay_bytes",
                     (json_int_t)row->cost.overlay, "tail_bytes", (json_int_t)row->cost.tail);
}

static int print_json(const state_row *rows, int32_t n, const kv_row *kv, int32_t n_kv) {
    json_t *states = json_array(), *kvs = json_array();
    for (int32_t i = 0; i < n; i++) states = json_and(states, state_json(&rows[i]));
    for (int32_t i = 0; i < n_kv; i++) kvs = json_and(kvs, kv_json(&kv[i]));
    json_t *root = json_pack("{s:o, s:o}", "state", states, "kv", kvs);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!text) {
        ebb_error error;
        ebb_fail(&error, EBB_NO_MEMORY, "no memory for the JSON of the table");
        return fail_with(&error);
    }
    puts(text);
    free(text);
    return EXIT_OK;
}

/* ---- the command ---- */

/* A method that cannot serve these dimensions, or not without more, is a row that says so. */
static void measure_kv(const ebb_kv_method *method, int64_t head_dim, int64_t max_new, kv_row *row) {
    enum { TOKENS = 4096 };
    const ebb_kv_layer layer = {.q_heads = 1,
                                .heads = 1,
                                .parts = 2,
                                .scale = 1,
                                .part = {{(int16_t)head_dim, EBB_ROLE_K}, {(int16_t)head_dim, EBB_ROLE_V}}};
    ebb_kv_spec spec;
    ebb_prefill prefill;
    *row = (kv_row){.method = method};
    ebb_status status = ebb_kv_parse(method->name, &spec, &row->refused);
    if (!status) status = ebb_kv_prefill(&spec, &prefill, &row->refused);
    if (!status)
        status = ebb_kv_layer_cost(&spec, &prefill, &layer, 0, TOKENS, (int32_t)max_new, &row->cost, &row->refused);
    if (!status) row->refused = (ebb_error){EBB_OK, ""};
}

static int print_formats(const formats_options *o, char **names, int32_t n_names) {
    ebb_error error;
    ebb_status status = EBB_OK;
    ebb_state_layer layer = {.kind = strcmp(o->kind, "kda") == 0 ? EBB_KDA : EBB_GDN,
                             .key_dim = (int32_t)o->key_dim,
                             .value_dim = (int32_t)o->value_dim,
                             .conv_width = (int32_t)o->conv};
    layer.key_heads = (int32_t)(o->key_heads ? o->key_heads : o->heads ? o->heads : 1);
    layer.heads = (int32_t)(o->heads ? o->heads : layer.key_heads);
    int32_t n, n_kv;
    const ebb_state_method *methods = ebb_state_methods(&n);
    const ebb_kv_method *kv = ebb_kv_methods(&n_kv);
    if (n_names) n = n_names, n_kv = 0;
    int code = EXIT_OK;
    state_row *rows = calloc((size_t)n, sizeof *rows);
    kv_row *kvs = calloc((size_t)n_kv + 1, sizeof *kvs);
    if (!rows || !kvs) status = ebb_fail(&error, EBB_NO_MEMORY, "no memory for the table");
    for (int32_t i = 0; i < n && !status; i++)
        status = measure(&layer, o, n_names ? names[i] : methods[i].name, &rows[i], &error);
    for (int32_t i = 0; i < n_kv && !status; i++) measure_kv(&kv[i], o->head_dim, o->max_new, &kvs[i]);
    if (status == EBB_BAD_ARGUMENT) code = usage_error("formats: %s", error.text);
    else if (status) code = fail_with(&error);
    else if (o->json) code = print_json(rows, n, kvs, n_kv);
    else {
        print_states(&layer, o, rows, n);
        if (n_kv) print_kv(kvs, n_kv, o->head_dim);
    }
    free(rows), free(kvs);
    return code;
}

int formats_command(int argc, char **argv) {
    formats_options o = {.key_dim = 128, .value_dim = 128, .conv = 4, .max_new = 1, .head_dim = 128, .kind = "gdn"};
    const option_row table[] = {
        {"key-dim", 0, OPTION_INT, &o.key_dim, 1, EBB_MAX_STATE_DIM, "N", "rows of a state, 128"},
        {"value-dim", 0, OPTION_INT, &o.value_dim, 1, EBB_MAX_STATE_DIM, "N", "columns of a state, 128"},
        {"key-heads", 0, OPTION_INT, &o.key_heads, 1, 65536, "N", "key heads of a layer, as many as value heads"},
        {"heads", 0, OPTION_INT, &o.heads, 1, 65536, "N", "value heads of a layer, as many as key heads, or 1"},
        {"kind", 0, OPTION_TEXT, &o.kind, 0, 0, "gdn|kda", "decay per head (gdn) or per key channel (kda), gdn"},
        {"conv", 0, OPTION_INT, &o.conv, 0, EBB_MAX_CONV, "N", "taps of the short convolution, 4"},
        {"max-new", 0, OPTION_INT, &o.max_new, 1, EBB_MAX_NEW, "N", "tokens one step may add, 1"},
        {"head-dim", 0, OPTION_INT, &o.head_dim, 1, EBB_MAX_HEAD_DIM, "N", "of the KV cache, 128"},
        {"verbose", 'v', OPTION_FLAG, &o.verbose, 0, 0, NULL, "planes and parameters of every state method"},
        {"json", 0, OPTION_FLAG, &o.json, 0, 0, NULL, "one JSON object"},
        {0},
    };
    int words = 0;
    options_result result = options_read(&usage, table, argc, argv, &words);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? EXIT_OK : EXIT_USAGE;
    if (strcmp(o.kind, "gdn") != 0 && strcmp(o.kind, "kda") != 0)
        return usage_error("formats: --kind %s: expected gdn or kda", o.kind);
    return print_formats(&o, argv + 1, words);
}
