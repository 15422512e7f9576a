/* cli/info_print.c: what `ebb info` knows, as text for people and as JSON for programs. Called by info.c. */
#include "cli/info.h"
#include "cli/json_out.h"
#include "core/core.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct feature {
    int32_t bit;
    const char *name;
} features[] = {{EBB_CPU_AVX2, "avx2"}, {EBB_CPU_AVX512, "avx512"}, {EBB_CPU_NEON, "neon"}};

static const char *role_name(int32_t role) {
    return role == EBB_ROLE_K ? "key" : role == EBB_ROLE_V ? "value" : "key and value";
}

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

static const char *kind_name(int32_t kind) { return kind == EBB_KDA ? "kda" : "gdn"; }

/* ---- as text ---- */

static void print_state_shape(const ebb_state_layer *l, int32_t count) {
    printf("             %d with a recurrent state: %s, %d key head%s of %d, %d value head%s of %d", count,
           kind_name(l->kind), l->key_heads, plural(l->key_heads), l->key_dim, l->heads, plural(l->heads),
           l->value_dim);
    if (l->heads != l->key_heads) printf(" (%d a key head)", l->heads / l->key_heads);
    if (l->conv_width) printf(", convolution of %d", l->conv_width);
    putchar('\n');
}

static void print_kv_shape(const ebb_kv_layer *l, int32_t count) {
    printf("             %d with a KV cache: %d query head%s, %d KV head%s", count, l->q_heads, plural(l->q_heads),
           l->heads, plural(l->heads));
    for (int32_t p = 0; p < l->parts; p++) printf(", %s %d", role_name(l->part[p].role), l->part[p].dims);
    putchar('\n');
}

/* A token as one word of a line: what a terminal would act on is shown as '?'. */
static void print_token(const ebb_tokenizer *tokenizer, int32_t id) {
    size_t bytes;
    const char *text = ebb_token_bytes(tokenizer, id, &bytes);
    for (size_t b = 0; b < bytes; b++)
        putchar((unsigned char)text[b] < 0x20 || text[b] == 0x7f ? '?' : (unsigned char)text[b]);
    printf(" (%d)", id);
}

static void print_tokenizer(const info *i) {
    const ebb_tokenizer *tokenizer = ebb_model_tokenizer(i->model);
    int32_t special = 0;
    for (int32_t id = 0; id < ebb_tokenizer_size(tokenizer); id++) special += ebb_tokenizer_special(tokenizer, id);
    printf("tokenizer    %d ids, %d of them special\nstop tokens  ", ebb_tokenizer_size(tokenizer), special);
    for (int32_t s = 0; s < i->about->n_stop; s++) {
        if (s) fputs(", ", stdout);
        print_token(tokenizer, i->about->stop[s]);
    }
    puts(i->about->n_stop ? "" : "none");
}

static void print_cpu(const info *i) {
    const int32_t present = ebb_device_features(i->device), threads = ebb_device_threads(i->device);
    bool none = true;
    printf("CPU          %d thread%s;", threads, plural(threads));
    for (int32_t f = 0; f < COUNT(features); f++)
        if (present & features[f].bit) printf("%s %s", none ? "" : ",", features[f].name), none = false;
    printf("%s\nkernels      gemm %s; the others stand below\n", none ? " no vector instructions used" : "",
           ebb_linear_row(i->device));
}

static void print_model(const info *i) {
    const ebb_model_info *m = i->about;
    int32_t at = 0, count;
    printf("model        %s\narchitecture %s\n", i->folder, m->architecture);
    printf("parameters   %lld; %zu bytes of weights in memory", (long long)m->parameters, m->weight_bytes);
    if (m->expert_bytes) printf(", %zu of experts in the file until a token needs them", m->expert_bytes);
    putchar('\n');
    if (ebb_model_has_mtp(i->model)) puts("             layers of multi-token prediction are there, and not used");
    printf("vocabulary   %d\nhidden       %d\nlayers       %d\n", m->vocab, m->hidden, m->layers);
    for (const ebb_state_layer *l; (l = info_state_shape(i, &at, &count));) print_state_shape(l, count);
    at = 0;
    for (const ebb_kv_layer *l; (l = info_kv_shape(i, &at, &count));) print_kv_shape(l, count);
    print_tokenizer(i);
    printf("context      at most %lld tokens\n", (long long)m->max_position);
    print_cpu(i);
}

static void print_states(const info *i, int width) {
    printf("\nrecurrent state, bytes of one sequence, steps of at most %d token%s\n\n", i->max_new, plural(i->max_new));
    printf("%-*s  %12s %12s %12s  kernels\n", width, "method", "packed", "live", "conv");
    for (int32_t r = 0; r < i->n_states; r++) {
        const info_state *s = &i->states[r];
        printf("%-*s  ", width, s->name);
        if (s->refused.code) {
            printf("not served: %s\n", s->refused.text);
            continue;
        }
        printf("%12zu %12zu %12zu  %s", s->packed, s->live, s->conv, s->step);
        if (strcmp(s->step, s->prefill) != 0) printf(" (prefill %s)", s->prefill);
        putchar('\n');
    }
}

static void print_kvs(const info *i, int width) {
    char ctx[32], most[32];
    snprintf(ctx, sizeof ctx, "at %lld", (long long)i->ctx);
    snprintf(most, sizeof most, "at %lld", (long long)i->about->max_position);
    printf("\nKV cache, bytes of one sequence, pages of %d tokens\n\n", EBB_KV_PAGE);
    printf("%-*s  %12s %12s %12s %16s  kernels\n", width, "method", "a token", "tail", ctx, most);
    for (int32_t r = 0; r < i->n_kvs; r++) {
        const info_kv *k = &i->kvs[r];
        printf("%-*s  ", width, k->name);
        if (k->refused.code) printf("not served: %s\n", k->refused.text);
        else printf("%12zu %12zu %12zu %16zu  %s\n", k->token, k->tail, k->at_ctx, k->at_most, k->row);
    }
}

void info_print_text(const info *i) {
    size_t width = 8;
    for (int32_t r = 0; r < i->n_states; r++)
        if (strlen(i->states[r].name) > width) width = strlen(i->states[r].name);
    for (int32_t r = 0; r < i->n_kvs; r++)
        if (strlen(i->kvs[r].name) > width) width = strlen(i->kvs[r].name);
    print_model(i);
    if (i->n_states) print_states(i, (int)width);
    if (i->n_kvs) print_kvs(i, (int)width);
}

/* ---- as JSON ---- */

static json_t *shapes_json(const info *i) {
    json_t *states = json_array(), *kvs = json_array();
    int32_t at = 0, count;
    for (const ebb_state_layer *l; (l = info_state_shape(i, &at, &count));)
        states =
            json_and(states, json_pack("{s:i, s:s, s:i, s:i, s:i, s:i, s:i}", "count", count, "kind",
                                       kind_name(l->kind), "key_heads", l->key_heads, "value_heads", l->heads,
                                       "key_dim", l->key_dim, "value_dim", l->value_dim, "conv_width", l->conv_width));
    at = 0;
    for (const ebb_kv_layer *l; (l = info_kv_shape(i, &at, &count));) {
        json_t *parts = json_array();
        for (int32_t p = 0; p < l->parts; p++)
            parts = json_and(parts, json_pack("{s:i, s:b, s:b}", "dims", l->part[p].dims, "key",
                                              (l->part[p].role & EBB_ROLE_K) != 0, "value",
                                              (l->part[p].role & EBB_ROLE_V) != 0));
        kvs = json_and(kvs, json_pack("{s:i, s:i, s:i, s:o}", "count", count, "query_heads", l->q_heads, "kv_heads",
                                      l->heads, "parts", parts));
    }
    return json_pack("{s:i, s:o, s:o}", "count", i->about->layers, "state", states, "kv", kvs);
}

static json_t *token_json(const ebb_tokenizer *tokenizer, int32_t id) {
    size_t bytes;
    json_error_t why;
    const char *text = ebb_token_bytes(tokenizer, id, &bytes);
    json_t *token = text ? json_pack_ex(&why, 0, "{s:i, s:s%}", "id", id, "text", text, bytes) : NULL;
    if (token || (text && json_error_code(&why) != json_error_invalid_utf8)) return token;
    return json_pack("{s:i, s:n}", "id", id,
                     "text"); /* there is no such token, or its bytes are no text by themselves */
}

static json_t *tokenizer_json(const info *i) {
    const ebb_tokenizer *tokenizer = ebb_model_tokenizer(i->model);
    json_t *special = json_array(), *stop = json_array();
    for (int32_t id = 0; id < ebb_tokenizer_size(tokenizer); id++)
        if (ebb_tokenizer_special(tokenizer, id)) special = json_and(special, token_json(tokenizer, id));
    for (int32_t s = 0; s < i->about->n_stop; s++) stop = json_and(stop, token_json(tokenizer, i->about->stop[s]));
    return json_pack("{s:i, s:o, s:o}", "size", ebb_tokenizer_size(tokenizer), "special", special, "stop", stop);
}

static json_t *cpu_json(const info *i) {
    json_t *names = json_array();
    for (int32_t f = 0; f < COUNT(features); f++)
        if (ebb_device_features(i->device) & features[f].bit) names = json_and(names, json_string(features[f].name));
    return json_pack("{s:i, s:o, s:s}", "threads", ebb_device_threads(i->device), "features", names, "gemm",
                     ebb_linear_row(i->device));
}

static json_t *states_json(const info *i) {
    json_t *rows = json_array();
    for (int32_t r = 0; r < i->n_states; r++) {
        const info_state *s = &i->states[r];
        if (s->refused.code)
            rows = json_and(rows, json_pack("{s:s, s:s}", "method", s->name, "refused", s->refused.text));
        else
            rows = json_and(rows, json_pack("{s:s, s:I, s:I, s:I, s:s, s:s}", "method", s->name, "packed_bytes",
                                            (json_int_t)s->packed, "live_bytes", (json_int_t)s->live, "conv_bytes",
                                            (json_int_t)s->conv, "step", s->step, "prefill", s->prefill));
    }
    return rows;
}

static json_t *kvs_json(const info *i) {
    json_t *rows = json_array();
    for (int32_t r = 0; r < i->n_kvs; r++) {
        const info_kv *k = &i->kvs[r];
        if (k->refused.code)
            rows = json_and(rows, json_pack("{s:s, s:s}", "method", k->name, "refused", k->refused.text));
        else
            rows = json_and(rows, json_pack("{s:s, s:I, s:I, s:I, s:I, s:s}", "method", k->name, "token_bytes",
                                            (json_int_t)k->token, "tail_bytes", (json_int_t)k->tail, "context_bytes",
                                            (json_int_t)k->at_ctx, "max_context_bytes", (json_int_t)k->at_most,
                                            "attention", k->row));
    }
    return rows;
}

bool info_print_json(const info *i) {
    const ebb_model_info *m = i->about;
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:b, s:i, s:i, s:o, s:o, s:I, s:I, s:i, s:o, s:o, s:o}", "model", i->folder,
        "architecture", m->architecture, "parameters", (json_int_t)m->parameters, "weight_bytes",
        (json_int_t)m->weight_bytes, "expert_bytes", (json_int_t)m->expert_bytes, "multi_token_prediction",
        (int)ebb_model_has_mtp(i->model), "vocabulary", m->vocab, "hidden", m->hidden, "layers", shapes_json(i),
        "tokenizer", tokenizer_json(i), "context", (json_int_t)i->ctx, "max_context", (json_int_t)m->max_position,
        "max_new", i->max_new, "cpu", cpu_json(i), "state", states_json(i), "kv", kvs_json(i));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text) puts(text);
    free(text);
    return text != NULL;
}
