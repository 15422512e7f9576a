/* cli/run.c: `ebb run`: one prompt and its answer, or a conversation on a terminal. */
#define _GNU_SOURCE
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/session.h"
#include "core/core.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROMPT_LIMIT ((size_t)64 << 20)

static const usage_text usage = {
    "ebb run -m DIR [-p TEXT | -f FILE | --chat TEXT] [options]",
    "Generate text with a model folder as Hugging Face publishes it (config.json, *.safetensors, tokenizer.json).\n"
    "-p, -f and standard input are raw prompts: no chat template, every byte counts, and special tokens such as\n"
    "<|im_start|> in them are read as such; where the tokenizer begins every text with a token of its own, it does.\n"
    "--chat puts TEXT into the chat template, where special tokens are plain text.\n"
    "Without a prompt: standard input, or a conversation when that is a terminal.\n",
    "The sampling options default to the model's generation_config.json. METHOD is NAME or NAME:key=value,...;\n"
    "'ebb formats' lists the names. The text goes to standard output; all else goes to standard error, and only\n"
    "when that is a terminal or is asked for. Ctrl-C ends the answer; what there is stays.\n",
};

static int read_options(run_options *o, int argc, char **argv, bool *help) {
    const option_row table[] = {
        {"model", 'm', OPTION_TEXT, &o->model, 0, 0, "DIR", "model folder or GGUF file (needed)"},
        {"prompt", 'p', OPTION_TEXT, &o->prompt, 0, 0, "TEXT", "raw prompt"},
        {"file", 'f', OPTION_TEXT, &o->file, 0, 0, "FILE", "raw prompt from a file, up to 64 MiB; - is standard input"},
        {"chat", 0, OPTION_TEXT, &o->chat, 0, 0, "TEXT", "one user message, answered"},
        {"chat-template", 0, OPTION_TEXT, &o->chat_template, 0, 0, "FILE",
         "write chats as this Jinja template, or as chatml, llama3 or glm4; the model's own"},
        {"chat-vars", 0, OPTION_TEXT, &o->chat_vars, 0, 0, "JSON", "object of variables for the chat template"},
        {"no-think", 0, OPTION_FLAG, &o->no_think, 0, 0, NULL, "short for --chat-vars '{\"enable_thinking\": false}'"},
        {"tokens", 'n', OPTION_INT, &o->tokens, 0, 1 << 30, "N",
         "longest answer in tokens, 256; 0 only reads the prompt"},
        {"threads", 't', OPTION_INT, &o->threads, 0, 1024, "N", "threads; 0, the default, is one per CPU"},
        {"state", 0, OPTION_TEXT, &o->state, 0, 0, "METHOD", "how recurrent states are stored, fp32"},
        {"layout", 0, OPTION_TEXT, &o->layout, 0, 0, "FILE",
         "layout of a calibrated state method; DIR/layouts/METHOD.safetensors"},
        {"kv", 0, OPTION_TEXT, &o->kv, 0, 0, "METHOD", "how the KV cache is stored, bf16"},
        {"kv-window", 0, OPTION_INT, &o->kv_window, 0, 4096, "N", "short for window=N of the KV method"},
        {"kv-top-ratio", 0, OPTION_REAL, &o->kv_ratio, 0, 1, "R", "short for ratio=R: of the keys that are vertical"},
        {"kv-select", 0, OPTION_TEXT, &o->kv_select, 0, 0, "HOW", "short for select=HOW: segment, prompt or paper"},
        {"kv-bits", 0, OPTION_TEXT, &o->kv_bits, 0, 0, "FILE", "JSON file of the bits of each layer, for kvtuner"},
        {"prefill", 0, OPTION_TEXT, &o->prefill, 0, 0, "MODE",
         "how prompts attend: full, sage_w0, sage_w, vquant_vert, sparse_only; as the KV method says"},
        {"load", 0, OPTION_TEXT, &o->load, 0, 0, "FILE", "go on with what --save kept, bit for bit, before the prompt"},
        {"save", 0, OPTION_TEXT, &o->save, 0, 0, "FILE", "keep tokens, states and KV cache after the answer"},
        {"save-fp32", 0, OPTION_TEXT, &o->save_fp32, 0, 0, "FILE", "the same in FP32, to be loaded under any methods"},
        {"ctx", 0, OPTION_INT, &o->context, 1, 1 << 30, "N",
         "tokens of prompt and answer together; 4096, or what they need"},
        {"temp", 0, OPTION_REAL, &o->temperature, 0, 100, "T", "temperature; 0 takes the likeliest token always"},
        {"top-p", 0, OPTION_REAL, &o->top_p, 0, 1, "P", "sample from the likeliest tokens that hold P; 1 is off"},
        {"top-k", 0, OPTION_INT, &o->top_k, 0, INT32_MAX, "K", "sample from the K likeliest tokens; 0 is off"},
        {"min-p", 0, OPTION_REAL, &o->min_p, 0, 1, "P", "drop tokens below P of the likeliest; 0 is off"},
        {"repeat-penalty", 0, OPTION_REAL, &o->repeat_penalty, 0.01, 100, "X",
         "divide the logits of recent tokens; 1 is off"},
        {"seed", 0, OPTION_INT, &o->seed, 0, 9.2e18, "N", "of the random numbers, 0: the same N, the same text"},
        {"rows", 0, OPTION_TEXT, &o->rows, 0, 0, "NAME", "kernel rows: ref, avx2, avx512, neon; the best if not given"},
        {"json", 0, OPTION_FLAG, &o->json, 0, 0, NULL, "last line of output: one object with the text and the numbers"},
        {"stats", 0, OPTION_FLAG, &o->stats, 0, 0, NULL, "the line of statistics also without a terminal"},
        {"verbose", 'v', OPTION_FLAG, &o->verbose, 0, 0, NULL, "the line about the model also without a terminal"},
        {0},
    };
    options_result result = options_read(&usage, table, argc, argv, NULL);
    *help = result == OPTIONS_HELP;
    return result == OPTIONS_BAD ? EXIT_USAGE : EXIT_OK;
}

/* The KV method with what the short options say behind its own parameters. */
static int join_kv(run_options *o) {
    char ratio[32] = "", window[32] = "";
    if (!isnan(o->kv_ratio)) snprintf(ratio, sizeof ratio, "%.15g", o->kv_ratio);
    if (o->kv_window >= 0) snprintf(window, sizeof window, "%lld", (long long)o->kv_window);
    const struct {
        const char *key, *value;
    } given[] = {{"window", window}, {"ratio", ratio}, {"select", o->kv_select ? o->kv_select : ""}};
    const char *kv = o->kv;
    bool more = strchr(kv, ':') != NULL;
    for (int32_t i = 0; i < COUNT(given); i++) {
        if (!*given[i].value) continue;
        if (kv != o->kv_text) snprintf(o->kv_text, sizeof o->kv_text, "%s", kv);
        kv = o->kv_text;
        const size_t at = strlen(kv);
        const int n = snprintf(o->kv_text + at, sizeof o->kv_text - at, "%c%s=%s", more ? ',' : ':', given[i].key,
                               given[i].value);
        if (n < 0 || at + (size_t)n >= sizeof o->kv_text)
            return usage_error("run: --kv: a method of more than %zu characters", sizeof o->kv_text - 1);
        more = true;
    }
    o->kv = kv;
    return EXIT_OK;
}

/* What no single option can see. */
static int check_options(const run_options *o, bool interactive) {
    ebb_error error;
    ebb_state_spec state;
    ebb_kv_spec kv;
    ebb_prefill prefill;
    if (!o->model) return usage_error("run: no model given; -m DIR names its folder");
    if ((o->prompt != NULL) + (o->file != NULL) + (o->chat != NULL) > 1)
        return usage_error("run: more than one of -p, -f and --chat given; a run has one prompt");
    if (o->no_think && o->chat_vars)
        return usage_error("run: both --no-think and --chat-vars given; enable_thinking can be one of the variables");
    if (!o->chat && !interactive && (o->no_think || o->chat_vars || o->chat_template))
        return usage_error(
            "run: --chat-template, --chat-vars and --no-think need --chat: a raw prompt has no template");
    if (ebb_state_parse(o->state ? o->state : "fp32", &state, &error))
        return usage_error("run: --state: %s", error.text);
    if (o->layout && !ebb_state_layout_name(state.method))
        return usage_error("run: --layout: method %s is not calibrated and needs no layout", state.method->name);
    if (ebb_kv_parse(o->kv, &kv, &error)) return usage_error("run: --kv: %s", error.text);
    if (o->prefill && ebb_prefill_parse(o->prefill, &prefill, &error))
        return usage_error("run: --prefill: %s", error.text);
    if (o->load && !o->prompt && !o->file && !o->chat && !interactive)
        return usage_error("run: --load needs a prompt (-p, -f or --chat) where there is no terminal");
    if (interactive && o->json) return usage_error("run: --json needs a prompt (-p, -f, --chat or standard input)");
    return EXIT_OK;
}

static ebb_status read_stdin(char **text, size_t *bytes, ebb_error *error) {
    size_t room = 0;
    *text = NULL;
    *bytes = 0;
    for (;;) {
        if (*bytes == room) {
            char *more = realloc(*text, room = 2 * room + 4096);
            if (!more) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the prompt");
            *text = more;
        }
        size_t n = fread(*text + *bytes, 1, room - *bytes, stdin);
        *bytes += n;
        if (*bytes > PROMPT_LIMIT)
            return ebb_fail(error, EBB_BAD_FILE, "standard input: more than %zu bytes, the most a prompt may have",
                            PROMPT_LIMIT);
        if (interrupted()) return ebb_fail(error, EBB_INTERRUPTED, "interrupted while reading standard input");
        if (ferror(stdin)) return ebb_fail(error, EBB_BAD_FILE, "standard input: %s", strerror(errno));
        if (n == 0) return EBB_OK;
    }
}

/* A text that begins a sequence begins with what the tokenizer puts there, unless it has been written out. */
static ebb_status read_text(const session *s, const char *text, size_t bytes, int32_t **ids, int64_t *count,
                            ebb_error *error) {
    const ebb_tokenizer *tokenizer = ebb_model_tokenizer(s->model);
    int32_t n;
    const int32_t *prefix = ebb_tokenizer_prefix(tokenizer, &n);
    ebb_status status = ebb_tokenize(tokenizer, text, bytes, true, ids, count, error);
    if (status || !n || s->begun || (*count >= n && !memcmp(*ids, prefix, (size_t)n * sizeof *prefix))) return status;
    int32_t *all = malloc((size_t)(n + *count) * sizeof *all);
    if (all) {
        memcpy(all, prefix, (size_t)n * sizeof *all);
        memcpy(all + n, *ids, (size_t)*count * sizeof *all);
    }
    free(*ids);
    *ids = all;
    *count = all ? n + *count : 0;
    return all ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory for the prompt");
}

static ebb_status read_prompt(session *s, int32_t **ids, int64_t *count, ebb_error *error) {
    const run_options *o = &s->options;
    bool again;
    if (o->chat) return chat_turn(s, o->chat, ids, count, &again, error);
    if (o->prompt) return read_text(s, o->prompt, strlen(o->prompt), ids, count, error);
    char *text = NULL;
    size_t bytes;
    ebb_status status = o->file && strcmp(o->file, "-") != 0 ? read_file(o->file, PROMPT_LIMIT, &text, &bytes, error)
                                                             : read_stdin(&text, &bytes, error);
    if (!status) status = read_text(s, text, bytes, ids, count, error);
    free(text);
    return status;
}

static int run_prompt(session *s) {
    ebb_error error;
    int32_t *ids = NULL;
    int64_t count = 0;
    answer a = {0};
    ebb_status status = read_prompt(s, &ids, &count, &error);
    if (!status && count == 0)
        status = ebb_fail(&error, EBB_BAD_ARGUMENT, "a prompt of 0 tokens, expected at least one");
    if (!status) status = session_open_engine(s, count, &error);
    if (!status) status = answer_run(s, ids, count, !s->options.json || isatty(STDOUT_FILENO), &a, &error);
    ebb_error unsaved;
    ebb_status save = status ? EBB_OK : session_save(s, &unsaved); /* the answer is told all the same */
    if (!status && s->options.json) status = answer_json(s, &a, &error);
    if (!status) answer_statistics(s, &a);
    if (!status && save) status = ebb_fail(&error, save, "%s", unsaved.text);
    int code = status ? fail_with(&error) : strcmp(a.stop, "interrupted") == 0 ? EXIT_INTERRUPTED : EXIT_OK;
    answer_free(&a);
    free(ids);
    return code;
}

int run_command(int argc, char **argv) {
    ebb_error error;
    bool help;
    session s = {.options = {.kv = "bf16",
                             .kv_window = -1,
                             .kv_ratio = NAN,
                             .tokens = 256,
                             .temperature = NAN,
                             .top_p = NAN,
                             .min_p = NAN,
                             .repeat_penalty = NAN,
                             .top_k = -1,
                             .seed = -1}};
    run_options *o = &s.options;
    int code = read_options(o, argc, argv, &help);
    if (code || help) return code;
    const bool interactive = !o->prompt && !o->file && !o->chat && isatty(STDIN_FILENO);
    if ((code = join_kv(o)) || (code = check_options(o, interactive))) return code;
    s.talks = s.bar.show = isatty(STDERR_FILENO);
    interrupt_watch(!interactive);
    if (session_open_model(&s, &error)) code = fail_with(&error);
    else code = interactive ? chat_loop(&s) : run_prompt(&s);
    session_close(&s);
    return code;
}
