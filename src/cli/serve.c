/* cli/serve.c: `ebb serve`: a model behind the OpenAI API (src/server), until Ctrl-C or SIGTERM. */
#define _GNU_SOURCE
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/options.h"
#include "core/core.h"
#include "ebb/ebb.h"
#include "server/server.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TEMPLATE_LIMIT = 16 << 20 };

typedef struct serve_options {
    const char *model, *name, *host, *api_key, *api_key_file, *chat_template;
    const char *state, *layout, *kv, *kv_bits, *prefill, *rows;
    int64_t checkpoints, cache_mib, port, threads, context, sequences, queue, connections, body_kib;
    bool verbose;
    double timeout, keep_alive, grace, temperature, top_p;
} serve_options;

static const usage_text usage = {
    "ebb serve -m DIR [options]",
    "Serve a model over HTTP as the OpenAI API has it: /v1/chat/completions, /v1/completions, /v1/models; and\n"
    "/tokenize, /detokenize, /health, /metrics. A chat page is at /. docs/server.md has the fields.\n",
    "Ctrl-C or SIGTERM takes no new requests, lets those under way end for --grace seconds, and leaves; a second one\n"
    "leaves at once. With --host 0.0.0.0 everybody who reaches this machine can ask: give an --api-key then.\n",
};

static int read_options(serve_options *o, int argc, char **argv, bool *help) {
    const option_row table[] = {
        {"model", 'm', OPTION_TEXT, &o->model, 0, 0, "DIR", "model folder or GGUF file (needed)"},
        {"name", 0, OPTION_TEXT, &o->name, 0, 0, "NAME", "the model's name in requests; the last part of DIR"},
        {"host", 0, OPTION_TEXT, &o->host, 0, 0, "ADDRESS", "address to listen on; 127.0.0.1"},
        {"port", 0, OPTION_INT, &o->port, 0, 65535, "N", "port, 8080; 0 takes any that is free"},
        {"api-key", 0, OPTION_TEXT, &o->api_key, 0, 0, "KEY", "ask for this key (the environment's EBB_API_KEY)"},
        {"api-key-file", 0, OPTION_TEXT, &o->api_key_file, 0, 0, "FILE", "the same, the first line of a file"},
        {"threads", 't', OPTION_INT, &o->threads, 0, 1024, "N", "threads; 0, the default, is one per CPU"},
        {"state", 0, OPTION_TEXT, &o->state, 0, 0, "METHOD", "how recurrent states are stored, fp32"},
        {"layout", 0, OPTION_TEXT, &o->layout, 0, 0, "FILE",
         "layout of a calibrated state method; DIR/layouts/METHOD.safetensors"},
        {"kv", 0, OPTION_TEXT, &o->kv, 0, 0, "METHOD", "how the KV cache is stored, bf16"},
        {"kv-bits", 0, OPTION_TEXT, &o->kv_bits, 0, 0, "FILE", "JSON file of the bits of each layer, for kvtuner"},
        {"prefill", 0, OPTION_TEXT, &o->prefill, 0, 0, "MODE", "how prompts attend; as the KV method says"},
        {"rows", 0, OPTION_TEXT, &o->rows, 0, 0, "NAME", "kernel rows: ref, avx2, avx512, neon; the best if not given"},
        {"ctx", 0, OPTION_INT, &o->context, 1, 1 << 30, "N",
         "tokens of a prompt and its answer; 4096, or the model's limit"},
        {"seqs", 0, OPTION_INT, &o->sequences, 1, 4096, "N", "answers at a time, 8"},
        {"checkpoints", 0, OPTION_INT, &o->checkpoints, 0, 4096, "N",
         "prefixes of prompts that are kept, 32; 0: no prefix cache"},
        {"cache-mem", 0, OPTION_INT, &o->cache_mib, 1, 1 << 24, "MIB", "their memory, 1024"},
        {"queue", 0, OPTION_INT, &o->queue, 0, 1 << 20, "N",
         "requests that may wait, 1024; more are answered with 503"},
        {"connections", 0, OPTION_INT, &o->connections, 1, 1 << 16, "N", "connections at a time, 1024"},
        {"max-body", 0, OPTION_INT, &o->body_kib, 1, 1 << 20, "KIB", "largest body of a request, 8192"},
        {"timeout", 0, OPTION_REAL, &o->timeout, 0, 1e6, "S", "seconds that a request may take, 600; 0: no limit"},
        {"keep-alive", 0, OPTION_REAL, &o->keep_alive, 0.1, 3600, "S",
         "a comment into silent streams every S seconds, 10"},
        {"grace", 0, OPTION_REAL, &o->grace, 0, 1e6, "S", "seconds for answers under way at the end, 30"},
        {"chat-template", 0, OPTION_TEXT, &o->chat_template, 0, 0, "FILE",
         "write chats as this Jinja template, or as chatml, llama3 or glm4; the model's own"},
        {"temp", 0, OPTION_REAL, &o->temperature, 0, 2, "T",
         "temperature where a request gives none; as the model says"},
        {"top-p", 0, OPTION_REAL, &o->top_p, 0, 1, "P", "the same for top_p"},
        {"verbose", 'v', OPTION_FLAG, &o->verbose, 0, 0, NULL, "a line on standard error for every answer"},
        {0},
    };
    const options_result result = options_read(&usage, table, argc, argv, NULL);
    *help = result == OPTIONS_HELP;
    return result == OPTIONS_BAD ? EXIT_USAGE : EXIT_OK;
}

static int check_options(const serve_options *o) {
    ebb_error error;
    ebb_state_spec state;
    ebb_kv_spec kv;
    if (!o->model) return usage_error("serve: no model given; -m DIR names its folder");
    if (ebb_state_parse(o->state ? o->state : "fp32", &state, &error))
        return usage_error("serve: --state: %s", error.text);
    if (ebb_kv_parse(o->kv, &kv, &error)) return usage_error("serve: --kv: %s", error.text);
    if (o->api_key && o->api_key_file) return usage_error("serve: both --api-key and --api-key-file given");
    if (o->api_key && !*o->api_key) return usage_error("serve: --api-key is empty");
    return EXIT_OK;
}

/* ---- texts from files ---- */

/* The key: of the option, the file or the environment. *held is malloc'ed where it came from a file. */
static ebb_status read_key(const serve_options *o, const char **key, char **held, ebb_error *error) {
    const char *environment = getenv("EBB_API_KEY");
    size_t bytes;
    *key = o->api_key ? o->api_key : environment && *environment ? environment : NULL;
    if (!o->api_key_file) return EBB_OK;
    ebb_status status = read_file(o->api_key_file, 1 << 16, held, &bytes, error);
    if (status) return status;
    (*held)[strcspn(*held, "\r\n")] = '\0';
    *key = *held;
    return **held ? EBB_OK
                  : ebb_fail(error, EBB_BAD_FILE, "%s: its first line is empty, expected a key", o->api_key_file);
}

static ebb_status read_template(const char *asked, const char **jinja, char **held, ebb_error *error) {
    static const char *const names[] = {"chatml", "llama3", "glm4"};
    size_t bytes;
    *jinja = asked;
    for (int32_t i = 0; asked && i < COUNT(names); i++)
        if (strcmp(asked, names[i]) == 0) return EBB_OK;
    if (!asked) return EBB_OK;
    const ebb_status status = read_file(asked, TEMPLATE_LIMIT, held, &bytes, error);
    *jinja = *held;
    if (!status && strlen(*held) != bytes)
        return ebb_fail(error, EBB_BAD_FILE, "%s holds a zero byte, a chat template was expected", asked);
    return status;
}

/* ---- until the end ---- */

/* SIGTERM is told as Ctrl-C is. */
static void watch_signals(void) {
    struct sigaction action;
    interrupt_watch(false);
    sigaction(SIGINT, NULL, &action);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a client that has gone is an error of its connection */
}

static void doze(void) {
    const struct timespec time = {0, 50000000};
    nanosleep(&time, NULL);
}

/* Serve until the first signal; then until the answers under way have ended, the grace or a second signal. */
static void serve(server *s, double grace) {
    while (!interrupted()) doze();
    interrupt_clear();
    const double end = seconds_now() + grace;
    int64_t left = server_drain(s);
    if (left) fprintf(stderr, "ebb: %lld requests are under way; once more leaves at once\n", (long long)left);
    while (left && !interrupted() && seconds_now() < end) {
        doze();
        left = server_drain(s);
    }
    if (left) fprintf(stderr, "ebb: %lld requests are cancelled\n", (long long)left);
}

static void print_line(void *ctx, const char *sentence) {
    (void)ctx;
    fprintf(stderr, "%s\n", sentence);
}

static void fill_config(const serve_options *o, ebb_model *model, const char *name, server_config *c) {
    const ebb_model_info *info = ebb_model_describe(model);
    *c = (server_config){.host = o->host,
                         .port = (int32_t)o->port,
                         .name = name,
                         .sampling = info->sampling,
                         .body_most = (size_t)o->body_kib << 10,
                         .connections_most = (int32_t)o->connections,
                         .queue_most = (int32_t)o->queue,
                         .timeout = o->timeout,
                         .keep_alive = o->keep_alive,
                         .model = model,
                         .state = info->state_layers ? o->state : NULL,
                         .kv = o->kv,
                         .layout = o->layout,
                         .prefill = o->prefill,
                         .kv_bits = o->kv_bits,
                         .rows = o->rows,
                         .max_seqs = (int32_t)o->sequences,
                         .checkpoints = (int32_t)o->checkpoints,
                         .cache_most = (size_t)o->cache_mib << 20,
                         .max_tokens = o->context ? o->context : min_i64(4096, info->max_position)};
    if (o->verbose) c->log.notice = print_line;
    if (!isnan(o->temperature)) c->sampling.temperature = (float)o->temperature;
    if (!isnan(o->top_p)) c->sampling.top_p = (float)o->top_p;
}

static ebb_status run(const serve_options *o, ebb_model *model, ebb_error *error) {
    char name[128], *key = NULL, *jinja = NULL;
    server *s = NULL;
    server_config config;
    text_buffer banner = {0};
    fill_config(o, model, o->name ? o->name : last_part(o->model, name, sizeof name), &config);
    ebb_status status = ebb_sampling_check(&config.sampling, error);
    if (!status) status = read_key(o, &config.api_key, &key, error);
    if (!status) status = read_template(o->chat_template, &config.jinja, &jinja, error);
    if (!status) status = server_open(&config, &s, error);
    if (!status && server_banner(s, &banner)) fputs(banner.data, stderr);
    if (!status) serve(s, o->grace);
    server_close(s);
    text_free(&banner);
    free(key), free(jinja);
    return status;
}

int serve_command(int argc, char **argv) {
    ebb_error error;
    bool help;
    progress_bar bar = {.show = isatty(STDERR_FILENO)};
    ebb_device *device = NULL;
    ebb_model *model = NULL;
    serve_options o = {.host = "127.0.0.1",
                       .kv = "bf16",
                       .port = 8080,
                       .sequences = 8,
                       .checkpoints = 32,
                       .cache_mib = 1024,
                       .queue = 1024,
                       .connections = 1024,
                       .body_kib = 8192,
                       .timeout = 600,
                       .keep_alive = 10,
                       .grace = 30,
                       .temperature = NAN,
                       .top_p = NAN};
    int code = read_options(&o, argc, argv, &help);
    if (code || help || (code = check_options(&o))) return code;
    watch_signals();
    ebb_status status = open_model(o.model, o.threads, &bar, &device, &model, &error);
    if (!status) status = run(&o, model, &error);
    ebb_model_close(model);
    ebb_device_close(device);
    return status ? fail_with(&error) : EXIT_OK;
}
