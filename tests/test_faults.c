/* test_faults.c: every call that can fail does so once: memory, threads, files, patterns, JSON documents. Each scenario
 * is run to number such calls (faults/inject.h), then again and again with one of them failing, and with all failing
 * from there on. It must answer the status that belongs to the fault and a sentence, or the right result; give back all
 * memory, files and mappings; and work the next time.
 *
 * By default one call is failed for each way that leads to it (its innermost callers), at its first and last time;
 * EBB_FAULTS=all (make faults) fails every one. */
#include "default_layout.h"
#include "toy_session.h"

#include "cli/cli.h"
#include "faults/inject.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- what a scenario has, and tells ---- */

typedef struct world {
    fixture *f;
    ebb_model *model; /* open before a scenario begins; NULL: it opens its own */
    ebb_error error;
    uint64_t result;   /* a hash of everything that came out */
    int out, terminal; /* the commands print to the one; the other is standard output */
} world;

typedef ebb_status (*scenario)(world *w);

static void tell(world *w, const void *data, size_t bytes) { w->result = hash64(w->result, data, bytes); }

static const char *path_of(const world *w, const char *name, char path[static 160]) {
    snprintf(path, 160, "%s/%s", w->f->folder, name);
    return path;
}

/* ---- the runs ---- */

/* What src/cli/main.c says on stderr. */
static char said[512];

int fail_with(const ebb_error *error) {
    snprintf(said, sizeof said, "%s", error->text);
    return error->code == EBB_INTERRUPTED ? EXIT_INTERRUPTED : EXIT_FAILED;
}

int usage_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(said, sizeof said, format, args);
    va_end(args);
    return EXIT_USAGE;
}

static ebb_status run_once(world *w, scenario fn, int64_t fail, bool rest, fault_tally *tally) {
    w->error = (ebb_error){EBB_OK, ""};
    w->result = HASH64_BEGIN;
    faults_arm(fail, rest);
    ebb_status status = fn(w);
    faults_disarm(tally);
    return status;
}

/* The status that the fault asks for: no memory is no bad file. `rest`: what failed later may have decided it. */
static bool fits(ebb_status status, bool rest) {
    const fault_call *failed = faults_failed();
    if (rest || failed->kind == FAULT_JSON) return status == EBB_NO_MEMORY || status == EBB_BAD_FILE;
    return status == (failed->kind == FAULT_FILE ? EBB_BAD_FILE : EBB_NO_MEMORY);
}

static void check(world *w, const char *name, scenario fn, int64_t call, bool rest, uint64_t right) {
    fault_tally tally;
    const ebb_status status = run_once(w, fn, call, rest, &tally);
    const fault_call *failed = faults_failed();
    if (!failed) fail_msg("%s: call %lld did not come", name, (long long)call);
    const char *wrong = NULL;
    if (status && !w->error.text[0]) wrong = "fails without a sentence";
    else if (status && !fits(status, rest)) wrong = "fails with another status";
    else if (!status && w->result != right) wrong = "succeeds with another result";
    else if (tally.blocks + tally.files + tally.maps) wrong = "keeps what it was given";
    if (!wrong) return;
    faults_print();
    fail_msg("%s: with call %lld (%s) failing%s it %s: %s \"%s\"; %lld blocks, %lld files, %lld maps kept, one of call "
             "%lld (%s)",
             name, (long long)call, failed->function, rest ? ", and all that follow," : "", wrong,
             ebb_status_name(status), w->error.text, (long long)tally.blocks, (long long)tally.files,
             (long long)tally.maps, (long long)tally.leak_call, tally.leak ? tally.leak : "none");
}

static int by_stack(const void *a, const void *b) {
    const fault_call *x = faults_call(*(const int32_t *)a), *y = faults_call(*(const int32_t *)b);
    if (x->stack != y->stack) return x->stack < y->stack ? -1 : 1;
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Which of calls 1 .. n are failed: all, or the first and the last of each stack. */
static int32_t choose_calls(int32_t n, int32_t *calls) {
    const char *how = getenv("EBB_FAULTS");
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) calls[i] = i + 1;
    if (how && strcmp(how, "all") == 0) return n;
    qsort(calls, (size_t)n, sizeof *calls, by_stack);
    for (int32_t i = 0; i < n; i++) {
        const uint64_t stack = faults_call(calls[i])->stack;
        const bool first = kept == 0 || i == 0 || stack != faults_call(calls[kept - 1])->stack,
                   last = i + 1 == n || stack != faults_call(calls[i + 1])->stack;
        if (first || last) calls[kept++] = calls[i];
    }
    return kept;
}

static void inject(world *w, const char *name, scenario fn) {
    fault_tally tally, again;
    if (run_once(w, fn, 0, false, &tally)) fail_msg("%s: %s", name, w->error.text);
    const uint64_t right = w->result;
    assert_int_equal(tally.blocks + tally.files + tally.maps, 0);
    assert_true(tally.calls > 0 && tally.calls <= INT32_MAX);
    int32_t *calls = calloc((size_t)tally.calls, sizeof *calls);
    assert_non_null(calls);
    const int32_t n = choose_calls((int32_t)tally.calls, calls);
    for (int32_t i = 0; i < n; i++) {
        check(w, name, fn, calls[i], false, right);
        check(w, name, fn, calls[i], true, right);
    }
    free(calls);
    assert_int_equal(run_once(w, fn, 0, false, &again), EBB_OK);
    assert_true(w->result == right);
    assert_int_equal(again.calls, tally.calls);
    print_message("%-24s %6lld calls, %lld of them failed\n", name, (long long)tally.calls, (long long)n);
}

/* ---- scenarios: a model ---- */

static ebb_status open_a_model(world *w, const char *folder) {
    ebb_device *device = NULL;
    ebb_model *model = NULL;
    const ebb_device_config config = {.size = sizeof config, .threads = 2, .log = {&w->f->notices, on_notice}};
    ebb_status status = ebb_device_open("cpu", &config, &device, &w->error);
    if (!status) status = ebb_model_open(device, folder, NULL, &model, &w->error);
    if (!status) tell(w, &ebb_model_describe(model)->hash, sizeof(uint64_t));
    ebb_model_close(model);
    ebb_device_close(device);
    return status;
}

static ebb_status open_toy(world *w) { return open_a_model(w, w->f->folder); }
static ebb_status open_kimi(world *w) { return open_a_model(w, SOURCE_DIR "/tests/data/random_kimi"); }
static ebb_status open_gguf(world *w) { return open_a_model(w, SOURCE_DIR "/tests/data/gguf_quant.gguf"); }

static ebb_status tokenize(world *w) {
    static const char text[] =
        "It's  caf\xc3\xa9 caf\x65\xcc\x81 \xe4\xbd\xa0\xe5\xa5\xbd 2026\r\n <|im_start|> the end";
    static const ebb_message messages[] = {{"system", "be brief"}, {"user", text}};
    char path[160];
    ebb_tokenizer *t = NULL;
    int32_t *ids = NULL, *chat = NULL;
    int64_t n = 0, n_chat = 0;
    ebb_status status = ebb_tokenizer_open(path_of(w, "chatml", path), &t, &w->error);
    if (!status) status = ebb_tokenize(t, text, sizeof text - 1, true, &ids, &n, &w->error);
    if (!status) status = ebb_chat(t, messages, 2, true, &chat, &n_chat, &w->error);
    if (!status) tell(w, ids, (size_t)n * sizeof *ids), tell(w, chat, (size_t)n_chat * sizeof *chat);
    free(ids), free(chat);
    ebb_tokenizer_close(t);
    return status;
}

/* Kimi's: from a line a token. */
static ebb_status tiktoken(world *w) {
    static const char text[] = "It's 2026: na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd <|im_end|>";
    char path[160];
    ebb_tokenizer *t = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    ebb_status status = ebb_tokenizer_open(path_of(w, "kimi", path), &t, &w->error);
    if (!status) status = ebb_tokenize(t, text, sizeof text - 1, true, &ids, &n, &w->error);
    if (!status) tell(w, ids, (size_t)n * sizeof *ids);
    free(ids);
    ebb_tokenizer_close(t);
    return status;
}

/* What fails leaves nothing behind. */
static ebb_status synth_to(world *w, const ebb_outline *outline, const char *name, const char *const *files) {
    const ebb_synth_config config = {.size = sizeof config};
    char path[160], file[256];
    ebb_status status = ebb_synth(outline, path_of(w, name, path), &config, &w->error);
    if (status && access(path, F_OK) == 0) fail_msg("%s is left behind: %s", name, w->error.text);
    for (; *files; files++) {
        snprintf(file, sizeof file, "%s%s", path, *files);
        const bool there = unlink(file) == 0;
        if (!status) tell(w, &there, sizeof there);
    }
    rmdir(path);
    return status;
}

static ebb_status synth(world *w) {
    static const char *const in_folder[] = {"/config.json", "/tokenizer.json", "/model.safetensors", NULL};
    static const char *const itself[] = {"", NULL};
    ebb_outline *outline = NULL;
    ebb_status status = ebb_outline_open(SOURCE_DIR "/tests/data/random_kimi", &outline, &w->error);
    if (!status) status = synth_to(w, outline, "synth", in_folder);
    ebb_outline_close(outline);
    if (status) return status;
    status = ebb_outline_open(SOURCE_DIR "/tests/fuzz/corpus/config/small-qwen", &outline, &w->error);
    if (!status) status = synth_to(w, outline, "synth.gguf", itself);
    ebb_outline_close(outline);
    return status;
}

/* ---- scenarios: an engine ---- */

enum { PROMPT = 20, ANSWER = 6 };

static ebb_status open_engine(world *w, const char *state, const char *kv, ebb_engine **engine) {
    const ebb_engine_config config = {
        .size = sizeof config, .state = state, .kv = kv, .max_seqs = 3, .max_tokens = 300, .max_new = 2};
    *engine = NULL;
    return ebb_engine_open(w->model, &config, engine, &w->error);
}

static ebb_status feed_prompt(world *w, ebb_engine *e, int32_t id) {
    int32_t ids[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = id_at(1, i);
    ebb_status status = ebb_sequence_append(e, id, ids, PROMPT, &w->error);
    return status ? status : ebb_engine_prefill(e, &w->error);
}

static ebb_status steps(world *w, ebb_engine *e, int32_t id, int32_t n) {
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < n && !status; i++) {
        status = ebb_engine_step(e, &id, 1, &w->error);
        const int32_t token = ebb_sequence_token(e, id);
        tell(w, &token, sizeof token);
    }
    return status;
}

static bool told(void *ctx, int32_t prompt, int32_t token) {
    const int32_t pair[] = {prompt, token};
    tell(ctx, pair, sizeof pair);
    return true;
}

static ebb_status generate(world *w, const char *state, const char *kv) {
    int32_t ids[PROMPT];
    const ebb_prompt prompts[] = {{ids, PROMPT}, {ids, 3}};
    ebb_engine *e;
    ebb_status status = open_engine(w, state, kv, &e);
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = id_at(0, i);
    if (!status) status = ebb_generate(e, prompts, 2, &EBB_GREEDY, ANSWER, told, w, NULL, &w->error);
    ebb_engine_close(e);
    return status;
}

static ebb_status generate_fp32(world *w) { return generate(w, "fp32", "bf16"); }
static ebb_status generate_leap(world *w) { return generate(w, "leap8:r=2,p=4", "hyquant"); }
static ebb_status generate_int4(world *w) { return generate(w, "int4-w", "kivi4"); }
static ebb_status generate_damp(world *w) { return generate(w, "damp", "bf16"); }
static ebb_status generate_mix(world *w) { return generate(w, "leap-mix", "k8v8"); }

/* Save, load, fork, roll back, and through FP32 to another method. */
static ebb_status keep(world *w) {
    char path[160], exact[160];
    int32_t id = 0, loaded = 0, fork = 0, other = 0;
    ebb_engine *e, *e2 = NULL;
    path_of(w, "a.ebb", path), path_of(w, "b.ebb", exact);
    unlink(path), unlink(exact);
    ebb_status status = open_engine(w, "leap8", "bf16", &e);
    if (!status) status = ebb_sequence_open(e, &EBB_GREEDY, &id, &w->error);
    if (!status) status = feed_prompt(w, e, id);
    if (!status) status = steps(w, e, id, 3);
    if (!status) status = ebb_sequence_save(e, id, path, &w->error);
    if (!status) status = ebb_sequence_export(e, id, exact, &w->error);
    if (!status) status = ebb_sequence_load(e, path, NULL, &loaded, &w->error);
    if (!status) status = ebb_sequence_fork(e, loaded, &fork, &w->error);
    if (!status) status = steps(w, e, loaded, 2);
    if (!status) status = steps(w, e, fork, 2);
    if (!status) status = ebb_sequence_rollback(e, fork, PROMPT + 4, &w->error);
    if (!status) status = open_engine(w, "int8-w", "fp16", &e2);
    if (!status) status = ebb_sequence_load(e2, exact, NULL, &other, &w->error);
    if (!status) status = steps(w, e2, other, 2);
    ebb_engine_close(e2);
    ebb_engine_close(e);
    return status;
}

/* ---- scenarios: layouts and measurements ---- */

static ebb_status layouts(world *w) {
    char path[160];
    ebb_layout *layout = NULL, *read = NULL, *own = NULL;
    static const ebb_layout_note notes[] = {{"made_by", "test"}, {"seed", "7"}};
    ebb_state_spec spec;
    ebb_status status = default_layout("damp", 0, ebb_model_state_layers(w->model),
                                       ebb_model_describe(w->model)->state_layers, &layout, &w->error);
    path_of(w, "a.layout", path);
    if (!status) status = ebb_layout_write(path, layout, notes, 2, &w->error);
    if (!status) status = ebb_layout_read(path, &read, &w->error);
    if (!status) status = ebb_state_parse("damp-w", &spec, &w->error);
    if (!status) status = ebb_model_layout(w->model, spec.method, path, &own, &w->error);
    if (!status) tell(w, ebb_layout_table(own, 1, NULL)->key_order, TOY_HEADS * TOY_KEY_DIM * sizeof(uint16_t));
    ebb_layout_free(layout), ebb_layout_free(read), ebb_layout_free(own);
    return status;
}

static ebb_status kv_bits(world *w) {
    char path[160];
    ebb_kv_bits *bits = NULL;
    ebb_status status = ebb_kv_bits_read(path_of(w, "bits.json", path), 2, &bits, &w->error);
    if (!status) tell(w, bits, 2 * sizeof *bits);
    free(bits);
    return status;
}

static ebb_status drift(world *w) {
    static const char *const methods[] = {"bf16", "leap4", "damp"};
    int32_t ids[48];
    ebb_drift *d = NULL;
    for (int32_t i = 0; i < COUNT(ids); i++) ids[i] = id_at(0, i);
    const ebb_drift_config config = {
        .size = sizeof config, .methods = methods, .n_methods = 3, .ids = ids, .seqs = 2, .tokens = 24};
    ebb_status status = ebb_drift_run(w->model, &config, &d, &w->error);
    if (!status) tell(w, d->cells, (size_t)d->points * (size_t)d->methods * (size_t)d->heads * sizeof *d->cells);
    ebb_drift_free(d);
    return status;
}

static ebb_status calibrate(world *w, const char *method, int64_t written) {
    int32_t ids[512];
    const ebb_domain domains[] = {{"a", ids, 256}, {"b", ids + 256, 256}};
    ebb_calibration *c = NULL;
    for (int32_t i = 0; i < COUNT(ids); i++) ids[i] = id_at(2, i);
    const ebb_calibrate_config config = {.size = sizeof config,
                                         .method = method,
                                         .domains = domains,
                                         .n_domains = 2,
                                         .documents = 3,
                                         .tokens = 16,
                                         .written = written};
    ebb_status status = ebb_calibrate(w->model, &config, &c, &w->error);
    if (!status) tell(w, c->domain_decay, 2 * (size_t)c->heads * sizeof(double));
    ebb_calibration_free(c);
    return status;
}

static ebb_status calibrate_damp(world *w) { return calibrate(w, "damp", 0); }

/* ---- scenarios: the program's commands ---- */

/* The command's answer as a status; what it printed is its result. */
static ebb_status command(world *w, int (*run)(int, char **), const char *const *words) {
    char *argv[24], text[24][160], printed[4096];
    int argc = 0;
    for (; words[argc]; argc++) {
        if (strncmp(words[argc], "@/", 2) == 0) path_of(w, words[argc] + 2, text[argc]);
        else snprintf(text[argc], sizeof text[argc], "%s", strcmp(words[argc], "@") ? words[argc] : w->f->folder);
        argv[argc] = text[argc];
    }
    argv[argc] = NULL;
    said[0] = '\0';
    fflush(stdout);
    if (ftruncate(w->out, 0) || lseek(w->out, 0, SEEK_SET) || dup2(w->out, STDOUT_FILENO) < 0) abort();
    const int code = run(argc, argv);
    fflush(stdout);
    if (dup2(w->terminal, STDOUT_FILENO) < 0) abort();
    for (ssize_t at = 0, n; code == EXIT_OK && (n = pread(w->out, printed, sizeof printed, at)) > 0; at += n)
        tell(w, printed, (size_t)n);
    snprintf(w->error.text, sizeof w->error.text, "%s", said);
    if (code == EXIT_OK) return EBB_OK;
    return strstr(said, "memory") || strstr(said, "worker threads") ? EBB_NO_MEMORY : EBB_BAD_FILE;
}

#define COMMAND(function, run, ...)                             \
    static ebb_status function(world *w) {                      \
        static const char *const words[] = {__VA_ARGS__, NULL}; \
        return command(w, run, words);                          \
    }
COMMAND(command_formats, formats_command, "formats", "-v", "--key-dim", "16", "--value-dim=24", "leap8", "damp")
COMMAND(command_formats_json, formats_command, "formats", "--json", "--key-dim", "16", "--value-dim=24")
COMMAND(command_info, info_command, "info", "-m", "@", "--state", "fp32,leap8:r=2,p=4", "--kv", "bf16")
COMMAND(command_info_json, info_command, "info", "-m", "@", "--state", "int8", "--kv", "bf16", "--json")
COMMAND(command_fit, info_command, "info", "--config", "@", "--fit", "1GB", "--state", "fp32,damp", "--kv", "bf16")
COMMAND(command_fit_json, info_command, "info", "--config", "@", "--fit", "1GB", "--json")
COMMAND(command_run, run_command, "run", "-m", "@", "-p", "01", "-n", "4", "--state", "leap8", "--save", "@/a.ebb")
COMMAND(command_load, run_command, "run", "-m", "@", "-f", "@/text", "-n", "4", "--load", "@/kept.ebb", "--state",
        "leap8")
COMMAND(command_drift, drift_command, "drift", "-m", "@", "--text", "@/text", "-n", "8", "--state", "bf16,leap8",
        "--svg", "@/a.svg")
COMMAND(command_drift_json, drift_command, "drift", "-m", "@", "--text", "@/text", "-n", "4", "--state", "int8",
        "--json")
COMMAND(command_calibrate, calibrate_command, "calibrate", "-m", "@", "--text", "@/text", "--documents", "2", "-n", "8",
        "-o", "@/a.layout", "--report", "@/report")

/* ---- the tests ---- */

static void in_model(void **state, const char *name, scenario fn) {
    world w = {.f = *state};
    w.model = open_ok(w.f);
    inject(&w, name, fn);
    ebb_model_close(w.model);
}

static void in_folder(void **state, const char *name, scenario fn) {
    char path[160];
    world w = {.f = *state};
    w.out = open(path_of(&w, "out", path), O_RDWR | O_CREAT, 0666);
    w.terminal = dup(STDOUT_FILENO);
    assert_true(w.out >= 0 && w.terminal >= 0);
    inject(&w, name, fn);
    assert_int_equal(close(w.out) | close(w.terminal), 0);
}

#define TEST(where, fn) \
    static void test_##fn(void **state) { where(state, #fn, fn); }
TEST(in_folder, open_toy)
TEST(in_folder, open_kimi)
TEST(in_folder, open_gguf)
TEST(in_folder, tokenize)
TEST(in_folder, tiktoken)
TEST(in_folder, synth)
TEST(in_model, generate_fp32)
TEST(in_model, generate_leap)
TEST(in_model, generate_int4)
TEST(in_model, generate_damp)
TEST(in_model, generate_mix)
TEST(in_model, keep)
TEST(in_model, layouts)
TEST(in_folder, kv_bits)
TEST(in_model, drift)
TEST(in_model, calibrate_damp)
TEST(in_folder, command_formats)
TEST(in_folder, command_formats_json)
TEST(in_folder, command_info)
TEST(in_folder, command_info_json)
TEST(in_folder, command_fit)
TEST(in_folder, command_fit_json)
TEST(in_folder, command_run)
TEST(in_folder, command_load)
TEST(in_folder, command_drift)
TEST(in_folder, command_drift_json)
TEST(in_folder, command_calibrate)

/* A folder in memory where there is such a place (saves wait for the disk), with a model in three shards, layouts for
 * the calibrated methods, a text and a kept sequence. */
static int enter(void **state) {
    static const char *const calibrated[] = {"damp", "leap-mix"};
    static const char text[] = "0123456789 !\"#$%&'()*+,-./ 01 9876543210 /.-,+*)('&%$#\"! 0 0 0 1 2 3";
    static const char bits[] = "{\"k\": [8, 4], \"v\": [4, 2]}";
    char path[160], layout_path[192], *tokenizer = NULL;
    size_t bytes;
    if (setup(state)) return -1;
    fixture *f = *state;
    if (access("/dev/shm", W_OK) == 0) {
        rmdir(f->folder);
        snprintf(f->folder, sizeof f->folder, "/dev/shm/ebb-test-XXXXXX");
        if (!mkdtemp(f->folder)) return -1;
    }
    toy t = TOY;
    t.shards = 3;
    toy_make(f->folder, &t);
    world w = {.f = f, .model = open_ok(f)};
    mkdir(path_of(&w, "layouts", path), 0777);
    for (int32_t i = 0; i < COUNT(calibrated); i++) {
        ebb_layout *layout = NULL;
        snprintf(layout_path, sizeof layout_path, "%s/%s.safetensors", path, calibrated[i]);
        must(default_layout(calibrated[i], 0, ebb_model_state_layers(w.model),
                            ebb_model_describe(w.model)->state_layers, &layout, &w.error),
             &w.error);
        must(ebb_layout_write(layout_path, layout, NULL, 0, &w.error), &w.error);
        ebb_layout_free(layout);
    }
    toy_write(f->folder, "text", text, sizeof text - 1);
    must(read_file(SOURCE_DIR "/tests/fuzz/corpus/tokenizer/chatml", (size_t)1 << 20, &tokenizer, &bytes, &w.error),
         &w.error);
    mkdir(path_of(&w, "chatml", path), 0777);
    toy_write(f->folder, "bits.json", bits, sizeof bits - 1);
    toy_write(f->folder, "chatml/tokenizer.json", tokenizer, bytes);
    free(tokenizer);
    must(read_file(SOURCE_DIR "/tests/fuzz/corpus/tiktoken/kimi", (size_t)1 << 20, &tokenizer, &bytes, &w.error),
         &w.error);
    mkdir(path_of(&w, "kimi", path), 0777);
    const size_t config = strlen(tokenizer); /* a zero byte stands between the two files */
    toy_write(f->folder, "kimi/tokenizer_config.json", tokenizer, config);
    toy_write(f->folder, "kimi/tiktoken.model", tokenizer + config + 1, bytes - config - 1);
    free(tokenizer);
    ebb_engine *e;
    int32_t id;
    must(open_engine(&w, "leap8", "bf16", &e), &w.error);
    must(ebb_sequence_open(e, &EBB_GREEDY, &id, &w.error), &w.error);
    must(feed_prompt(&w, e, id), &w.error);
    must(ebb_sequence_save(e, id, path_of(&w, "kept.ebb", path), &w.error), &w.error);
    ebb_engine_close(e);
    ebb_model_close(w.model);
    return 0;
}

static int leave(void **state) {
    fixture *f = *state;
    char line[256];
    snprintf(line, sizeof line, "cd '%s' && rm -rf layouts report chatml kimi", f->folder);
    if (system(line)) return -1;
    static const char *const names[] = {"text", "bits.json", "out", "kept.ebb", "a.ebb", "b.ebb", "a.layout", "a.svg"};
    for (int32_t i = 0; i < COUNT(names); i++) toy_remove(f->folder, names[i]);
    return teardown(state);
}

int main(void) {
#define UNIT(fn) cmocka_unit_test(test_##fn)
    const struct CMUnitTest tests[] = {
        UNIT(open_toy),
        UNIT(open_kimi),
        UNIT(open_gguf),
        UNIT(tokenize),
        UNIT(tiktoken),
        UNIT(synth),
        UNIT(generate_fp32),
        UNIT(generate_leap),
        UNIT(generate_int4),
        UNIT(generate_damp),
        UNIT(generate_mix),
        UNIT(keep),
        UNIT(layouts),
        UNIT(kv_bits),
        UNIT(drift),
        UNIT(calibrate_damp),
        UNIT(command_formats),
        UNIT(command_formats_json),
        UNIT(command_info),
        UNIT(command_info_json),
        UNIT(command_fit),
        UNIT(command_fit_json),
        UNIT(command_run),
        UNIT(command_load),
        UNIT(command_drift),
        UNIT(command_drift_json),
        UNIT(command_calibrate),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
