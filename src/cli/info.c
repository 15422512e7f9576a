/* cli/info.c: `ebb info`: what a model is, and what its memory costs under every method. Sizes and kernel rows are
 * asked of real pools and plans, the ones a run would make, over memory that is reserved and never touched. */
#define _GNU_SOURCE
#include "cli/info.h"
#include "cli/fit.h"
#include "cli/interrupt.h"
#include "cli/method_list.h"
#include "cli/options.h"
#include "cli/open.h"
#include "core/core.h"
#include "state/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct info_options {
    const char *model, *config; /* one of them */
    const char *state, *kv;     /* NULL: all methods; with config the usual ones */
    const char *fit;            /* bytes of a device; NULL: not asked */
    int64_t ctx, max_new;       /* ctx 0: 4096, cut to the model's limit */
    int64_t batch, every;       /* with config */
    bool json;
} info_options;

static const usage_text usage = {
    "ebb info -m DIR [options]\n       ebb info --config FILE [--fit 141GB] [options]",
    "What a model is, and what its memory costs: architecture, layers, tokenizer and limits; for every method the "
    "bytes\n"
    "of one sequence, and the kernel rows that serve it on this CPU.\n"
    "  packed   bytes of the packed states of all layers\n"
    "  live     bytes beside them: records of a window, positions, inputs of the short convolution\n"
    "  conv     the part of live that is convolution inputs\n"
    "  a token  bytes of the keys and values of a token in all layers\n"
    "  tail     bytes of a sequence whatever its length: newest keys and values in 16 bits, what is kept of a prompt\n"
    "  at N     bytes of the pages and the tail of a sequence of N tokens\n",
    "With --config there are no weights: parameters, and bytes of states, keys and values, and checkpoints of the\n"
    "prefix cache under the usual methods or those given; with --fit, how many sequences the device holds. What is\n"
    "assumed stands below the tables. models/configs has the config.json of some releases.\n\n"
    "METHODS is NAME or NAME:key=value,...; several with commas between them. 'ebb formats' lists the names.\n",
};

/* ---- layers of the same shape ---- */

static bool same_state(const ebb_state_layer *a, const ebb_state_layer *b) {
    return a->kind == b->kind && a->key_heads == b->key_heads && a->heads == b->heads && a->key_dim == b->key_dim &&
           a->value_dim == b->value_dim && a->conv_width == b->conv_width;
}

static bool same_kv(const ebb_kv_layer *a, const ebb_kv_layer *b) {
    bool same = a->q_heads == b->q_heads && a->heads == b->heads && a->parts == b->parts;
    for (int32_t i = 0; same && i < a->parts; i++)
        same = a->part[i].dims == b->part[i].dims && a->part[i].role == b->part[i].role;
    return same;
}

const ebb_state_layer *info_state_shape(const info *i, int32_t *at, int32_t *count) {
    const ebb_state_layer *layers = ebb_model_state_layers(i->model);
    for (; *at < i->about->state_layers; ++*at) {
        int32_t first = 0;
        while (!same_state(&layers[first], &layers[*at])) first++;
        if (first < *at) continue;
        *count = 0;
        for (int32_t l = *at; l < i->about->state_layers; l++) *count += same_state(&layers[l], &layers[*at]);
        return &layers[(*at)++];
    }
    return NULL;
}

const ebb_kv_layer *info_kv_shape(const info *i, int32_t *at, int32_t *count) {
    const ebb_kv_layer *layers = ebb_model_kv_layers(i->model);
    for (; *at < i->about->kv_layers; ++*at) {
        int32_t first = 0;
        while (!same_kv(&layers[first], &layers[*at])) first++;
        if (first < *at) continue;
        *count = 0;
        for (int32_t l = *at; l < i->about->kv_layers; l++) *count += same_kv(&layers[l], &layers[*at]);
        return &layers[(*at)++];
    }
    return NULL;
}

/* ---- a device whose memory is addresses only: the pools of the largest context fit it ---- */

static void *reserve(void *ctx, size_t bytes, size_t align) {
    (void)ctx, (void)align; /* pages are aligned to more */
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return block == MAP_FAILED ? NULL : block;
}

static void unreserve(void *ctx, void *block, size_t bytes) {
    (void)ctx;
    munmap(block, bytes);
}

static ebb_status open_paper(ebb_device **device, ebb_error *error) {
    const ebb_device_config config = {.size = sizeof config, .threads = 1, .memory = {NULL, reserve, unreserve}};
    return ebb_device_open("cpu", &config, device, error);
}

/* A method that cannot serve this model is a line of the table; anything else ends the command. */
static ebb_status line_or_end(ebb_status status, const ebb_error *why, ebb_error *refused, ebb_error *error) {
    if (status == EBB_OK) return EBB_OK;
    if (status != EBB_UNSUPPORTED && status != EBB_BAD_ARGUMENT) return ebb_fail(error, status, "%s", why->text);
    *refused = *why;
    return EBB_OK;
}

/* Add a row's name to those of the layers before, once. */
static void add_row(char *names, size_t room, const char *name) {
    const size_t n = strlen(name), used = strlen(names);
    for (const char *c = names; *c; c += strcspn(c, ", "), c += strspn(c, ", "))
        if (strcspn(c, ", ") == n && memcmp(c, name, n) == 0) return;
    snprintf(names + used, room - used, "%s%s", used ? ", " : "", name);
}

/* ---- what a state method costs ---- */

static ebb_status state_rows(const info *i, const ebb_state_pool *pool, info_state *row, ebb_error *error) {
    ebb_status status = EBB_OK;
    for (int32_t l = 0; l < i->about->state_layers && !status; l++) {
        ebb_plan plan;
        status = ebb_delta_plan(ebb_model_device(i->model), ebb_state_pool_view(pool, l), NULL, EBB_STAGES, 1,
                                i->max_new, 2 * EBB_GRID, &plan, error);
        if (status) break;
        add_row(row->step, sizeof row->step, plan.row_name);
        add_row(row->prefill, sizeof row->prefill, plan.chunk_name);
    }
    return status;
}

/* A calibrated method has the sizes of the layout in the model's folder or, where there is none, of one that changes
 * nothing. */
static ebb_status open_layout(const info *i, ebb_state_spec *spec, ebb_layout **layout, ebb_error *error) {
    const char *name = ebb_state_layout_name(spec->method);
    if (!name) return EBB_OK;
    ebb_status status = ebb_model_layout(i->model, spec->method, NULL, layout, error);
    if (status == EBB_UNSUPPORTED)
        status = layout_identity(name, ebb_model_state_layers(i->model), i->about->state_layers, layout, error);
    spec->layout = *layout;
    return status;
}

static ebb_status measure_state(const info *i, ebb_device *paper, info_state *row, ebb_error *error) {
    ebb_state_spec spec;
    ebb_state_pool *pool = NULL;
    ebb_layout *layout = NULL;
    ebb_state_pool_config config = {.size = sizeof config,
                                    .spec = &spec,
                                    .layers = ebb_model_state_layers(i->model),
                                    .n_layers = i->about->state_layers,
                                    .slots = 1,
                                    .max_new = i->max_new};
    ebb_error why;
    ebb_status status = ebb_state_parse(row->name, &spec, &why);
    if (!status) status = open_layout(i, &spec, &layout, &why);
    if (!status) status = ebb_state_pool_open(paper, &config, &pool, &why);
    if (!status) ebb_state_pool_slot_bytes(pool, &row->packed, &row->live);
    for (int32_t l = 0; l < i->about->state_layers && !status; l++) {
        ebb_state_sizes sizes;
        status = ebb_state_size(&spec, &config.layers[l], i->max_new, &sizes, &why);
        if (!status) row->conv += sizes.conv;
    }
    if (!status) status = state_rows(i, pool, row, &why);
    ebb_state_pool_close(pool);
    ebb_layout_free(layout);
    return line_or_end(status, &why, &row->refused, error);
}

/* ---- what a KV method costs ---- */

/* Bytes of one sequence of `tokens` tokens; the pool stays open. */
static ebb_status kv_bytes(const info *i, ebb_device *paper, const ebb_kv_spec *spec, int64_t tokens,
                           ebb_kv_pool **pool, size_t *bytes, ebb_error *error) {
    ebb_prefill prefill;
    const ebb_kv_pool_config config = {.size = sizeof config,
                                       .spec = spec,
                                       .layers = ebb_model_kv_layers(i->model),
                                       .n_layers = i->about->kv_layers,
                                       .slots = 1,
                                       .max_tokens = tokens,
                                       .max_new = i->max_new,
                                       .prefill = &prefill};
    ebb_status status = ebb_kv_prefill(spec, &prefill, error);
    if (!status) status = ebb_kv_pool_open(paper, &config, pool, error);
    if (!status) status = ebb_kv_pool_reserve(*pool, 0, tokens, error);
    if (!status) *bytes = ebb_kv_pool_slot_bytes(*pool, 0);
    return status;
}

static ebb_status kv_rows(const info *i, const ebb_kv_pool *pool, info_kv *row, ebb_error *error) {
    ebb_status status = EBB_OK;
    for (int32_t l = 0; l < i->about->kv_layers && !status; l++) {
        ebb_plan plan;
        status = ebb_attn_plan(ebb_model_device(i->model), ebb_kv_pool_view(pool, l), NULL, 1, i->max_new, 2 * EBB_GRID,
                               &plan, error);
        if (!status) add_row(row->row, sizeof row->row, plan.row_name);
    }
    return status;
}

static ebb_status measure_kv(const info *i, ebb_device *paper, info_kv *row, ebb_error *error) {
    const ebb_kv_layer *layers = ebb_model_kv_layers(i->model);
    ebb_kv_spec spec;
    ebb_kv_pool *ctx = NULL, *most = NULL;
    ebb_prefill prefill;
    ebb_error why;
    ebb_status status = ebb_kv_parse(row->name, &spec, &why);
    if (!status) status = ebb_kv_prefill(&spec, &prefill, &why);
    for (int32_t l = 0; l < i->about->kv_layers && !status; l++) {
        ebb_kv_cost cost;
        status = ebb_kv_layer_cost(&spec, &prefill, &layers[l], l, i->ctx, i->max_new, &cost, &why);
        row->token += cost.token;
        row->tail += cost.tail;
    }
    if (!status) status = kv_bytes(i, paper, &spec, i->ctx, &ctx, &row->at_ctx, &why);
    if (!status) status = kv_rows(i, ctx, row, &why);
    if (!status) status = kv_bytes(i, paper, &spec, i->about->max_position, &most, &row->at_most, &why);
    ebb_kv_pool_close(ctx);
    ebb_kv_pool_close(most);
    return line_or_end(status, &why, &row->refused, error);
}

/* ---- the command ---- */

/* The names given, or all of the tables; none where the model has no such layers. */
static ebb_status open_rows(info *i, const method_list *states, const method_list *kvs, ebb_error *error) {
    int32_t all_states, all_kvs;
    const ebb_state_method *state = ebb_state_methods(&all_states);
    const ebb_kv_method *kv = ebb_kv_methods(&all_kvs);
    i->n_states = !i->about->state_layers ? 0 : states->n ? states->n : all_states;
    i->n_kvs = !i->about->kv_layers ? 0 : kvs->n ? kvs->n : all_kvs;
    i->states = calloc((size_t)i->n_states + 1, sizeof *i->states);
    i->kvs = calloc((size_t)i->n_kvs + 1, sizeof *i->kvs);
    if (!i->states || !i->kvs) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the tables");
    for (int32_t r = 0; r < i->n_states; r++) i->states[r].name = states->n ? states->names[r] : state[r].name;
    for (int32_t r = 0; r < i->n_kvs; r++) i->kvs[r].name = kvs->n ? kvs->names[r] : kv[r].name;
    return EBB_OK;
}

static ebb_status gather(info *i, const info_options *o, const method_list *states, const method_list *kvs,
                         ebb_error *error) {
    enum { USUAL = 4096 };
    ebb_device *paper = NULL;
    const int64_t most = i->about->max_position;
    i->ctx = o->ctx ? o->ctx : min_i64(USUAL, most);
    i->max_new = (int32_t)o->max_new;
    if (states->n && !i->about->state_layers)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "--state is given, but this model has no recurrent layers");
    if (kvs->n && !i->about->kv_layers)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "--kv is given, but this model has no attention layers");
    if (i->ctx > most)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a context of %lld tokens, expected 1 to %lld, the model's own limit",
                        (long long)i->ctx, (long long)most);
    ebb_status status = open_paper(&paper, error);
    if (!status) status = open_rows(i, states, kvs, error);
    for (int32_t r = 0; r < i->n_states && !status; r++) status = measure_state(i, paper, &i->states[r], error);
    for (int32_t r = 0; r < i->n_kvs && !status; r++) status = measure_kv(i, paper, &i->kvs[r], error);
    ebb_device_close(paper);
    return status;
}

static int show(const info_options *o, const method_list *states, const method_list *kvs) {
    progress_bar bar = {.show = isatty(STDERR_FILENO)};
    ebb_device *device = NULL;
    ebb_model *model = NULL;
    info i = {.folder = o->model};
    ebb_error error;
    interrupt_watch(true);
    ebb_status status = open_model(o->model, 0, &bar, &device, &model, &error);
    if (!status) {
        i.model = model, i.device = device, i.about = ebb_model_describe(model);
        status = gather(&i, o, states, kvs, &error);
    }
    if (!status && !o->json) info_print_text(&i);
    if (!status && o->json && !info_print_json(&i)) status = ebb_fail(&error, EBB_NO_MEMORY, "no memory for the JSON");
    free(i.states), free(i.kvs);
    ebb_model_close(model);
    ebb_device_close(device);
    return status ? fail_with(&error) : EXIT_OK;
}

/* The lists, with every method in them known: a wrong one is told before a model is loaded. */
static int read_methods(const info_options *o, method_list *states, method_list *kvs) {
    ebb_error error;
    ebb_state_spec state;
    ebb_kv_spec kv;
    ebb_status status = o->state ? method_list_read(o->state, states, &error) : EBB_OK;
    for (int32_t r = 0; r < states->n && !status; r++) status = ebb_state_parse(states->names[r], &state, &error);
    if (status) return usage_error("info: --state: %s", error.text);
    status = o->kv ? method_list_read(o->kv, kvs, &error) : EBB_OK;
    for (int32_t r = 0; r < kvs->n && !status; r++) status = ebb_kv_parse(kvs->names[r], &kv, &error);
    return status ? usage_error("info: --kv: %s", error.text) : EXIT_OK;
}

int info_command(int argc, char **argv) {
    info_options o = {.max_new = 1, .batch = 256, .every = 1024};
    const option_row table[] = {
        {"model", 'm', OPTION_TEXT, &o.model, 0, 0, "DIR", "model folder or GGUF file (needed, or --config)"},
        {"config", 0, OPTION_TEXT, &o.config, 0, 0, "FILE", "config.json of a model without weights, in place of -m"},
        {"fit", 0, OPTION_TEXT, &o.fit, 0, 0, "SIZE", "with --config: memory of the device, as 141GB or 80GiB"},
        {"batch", 0, OPTION_INT, &o.batch, 1, 1 << 24, "N", "with --config: sequences whose states are added up, 256"},
        {"every", 0, OPTION_INT, &o.every, EBB_GRID, (double)((int64_t)1 << 40), "N",
         "with --config: cached tokens a checkpoint, 1024"},
        {"state", 0, OPTION_TEXT, &o.state, 0, 0, "METHODS", "state methods to show, all"},
        {"kv", 0, OPTION_TEXT, &o.kv, 0, 0, "METHODS", "KV methods to show, all"},
        {"ctx", 0, OPTION_INT, &o.ctx, 1, (double)((int64_t)1 << 40), "N",
         "tokens of a sequence, beside the model's maximum; 4096"},
        {"context", 0, OPTION_INT, &o.ctx, 1, (double)((int64_t)1 << 40), "N", "the same"},
        {"max-new", 0, OPTION_INT, &o.max_new, 1, EBB_MAX_NEW, "N", "tokens one step may add, 1"},
        {"json", 0, OPTION_FLAG, &o.json, 0, 0, NULL, "one JSON object"},
        {0},
    };
    options_result result = options_read(&usage, table, argc, argv, NULL);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? EXIT_OK : EXIT_USAGE;
    if (!o.model == !o.config)
        return usage_error("info: %s; -m DIR names its folder, --config FILE a config.json without weights",
                           o.model ? "-m and --config are both given" : "no model given");
    if (o.fit && !o.config) return usage_error("info: --fit goes with --config");
    method_list states = {0}, kvs = {0};
    int code = read_methods(&o, &states, &kvs);
    const fit_options fit = {o.config, o.fit, o.ctx, o.batch, o.every, o.max_new, o.json};
    if (code == EXIT_OK) code = o.config ? fit_command(&fit, &states, &kvs) : show(&o, &states, &kvs);
    method_list_free(&states);
    method_list_free(&kvs);
    return code;
}
