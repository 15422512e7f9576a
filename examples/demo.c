/* What `make demo` runs: what low-bit storage of the recurrent state does to a model that has to remember. Four
 * problems of the registers task (128 steps over four registers; one wrong digit spoils the rest) are answered under
 * five state methods, then a few lines of prose under two. Uses the public API only. */
#include <ebb/ebb.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBLEMS = 4, LONGEST = 2048, PROSE = 80 };
static const char *const methods[] = {"fp32", "int4", "int4-w", "leap8", "leap4"};

typedef struct problem {
    ebb_prompt prompt;
    int32_t *ids;
    char *expected;
    char *text; /* of the answer */
    size_t bytes, room;
    ebb_detokenizer detokenizer;
} problem;

static bool collect(void *ctx, int32_t index, int32_t token) {
    problem *p = (problem *)ctx + index;
    if (p->room - p->bytes < 1024) {
        char *more = realloc(p->text, p->room += 8192);
        if (!more) return false;
        p->text = more;
    }
    size_t written;
    if (ebb_detokenize(&p->detokenizer, token, p->text + p->bytes, p->room - p->bytes, &written)) return false;
    p->bytes += written;
    return true;
}

/* ---- the problem set ---- */

static ebb_status read_problem(const ebb_tokenizer *tokenizer, const char *line, problem *p, ebb_error *error) {
    json_t *root = json_loads(line, 0, NULL);
    const char *content = NULL, *answer = NULL;
    ebb_status status = EBB_OK;
    if (!root || json_unpack(root, "{s:[{s:s}], s:s}", "messages", "content", &content, "answer", &answer) != 0)
        status = ebb_fail(error, EBB_BAD_FILE, "the problem set has a line without messages and answer");
    if (!status) {
        const ebb_message message = {"user", content};
        status = ebb_chat(tokenizer, &message, 1, true, &p->ids, &p->prompt.count, error);
    }
    if (!status && !(p->expected = strdup(answer))) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a problem");
    p->prompt.ids = p->ids;
    json_decref(root);
    return status;
}

static ebb_status read_problems(const ebb_tokenizer *tokenizer, const char *path, problem *problems, ebb_error *error) {
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen(path, "r");
    if (!file) return ebb_fail(error, EBB_BAD_FILE, "%s cannot be opened", path);
    ebb_status status = EBB_OK;
    for (int i = 0; i < PROBLEMS && !status; i++)
        if (getline(&line, &room, file) < 0)
            status = ebb_fail(error, EBB_BAD_FILE, "%s: fewer than %d problems", path, PROBLEMS);
        else status = read_problem(tokenizer, line, &problems[i], error);
    free(line);
    fclose(file);
    return status;
}

/* ---- answers ---- */

/* The step (line, from 1) at which an answer leaves the expected one; 0: it is right. */
static int first_wrong_step(const char *text, const char *expected) {
    int step = 1;
    for (; *text && *text == *expected; text++, expected++) step += *text == '\n';
    return *text == *expected ? 0 : step;
}

static ebb_status generate(ebb_model *model, const char *method, problem *problems, int n, const ebb_sampling *sampling,
                           int64_t longest, ebb_usage *usage, ebb_error *error) {
    ebb_engine *engine = NULL;
    ebb_engine_config config = {.size = sizeof config, .state = method, .max_seqs = n};
    ebb_prompt prompts[PROBLEMS];
    for (int i = 0; i < n; i++) {
        prompts[i] = problems[i].prompt;
        problems[i].bytes = 0;
        problems[i].detokenizer = (ebb_detokenizer){.tokenizer = ebb_model_tokenizer(model)};
    }
    ebb_status status = ebb_engine_open(model, &config, &engine, error);
    if (!status) status = ebb_generate(engine, prompts, n, sampling, longest, collect, problems, usage, error);
    ebb_engine_close(engine);
    return status;
}

static ebb_status registers(ebb_model *model, const char *method, problem *problems, ebb_error *error) {
    ebb_usage usage;
    ebb_status status = generate(model, method, problems, PROBLEMS, &EBB_GREEDY, LONGEST, &usage, error);
    if (status) return status;
    int right = 0;
    char wrong[64] = "", *at = wrong;
    for (int i = 0; i < PROBLEMS; i++) {
        int step = first_wrong_step(problems[i].bytes ? problems[i].text : "", problems[i].expected);
        right += step == 0;
        if (step) at += snprintf(at, sizeof wrong - (size_t)(at - wrong), " %d", step);
        else at += snprintf(at, sizeof wrong - (size_t)(at - wrong), " -");
    }
    printf("%-8s %3d of %d  %-18s %10zu %10zu %10.0f\n", method, right, PROBLEMS, wrong + 1, usage.state_packed,
           usage.state_live, (double)usage.decode_tokens / usage.decode_seconds);
    fflush(stdout);
    return EBB_OK;
}

static ebb_status prose(ebb_model *model, const char *method, ebb_error *error) {
    static const char start[] = "It was a dark and stormy night, and";
    ebb_sampling sampling = ebb_model_describe(model)->sampling; /* the model's own, with a seed of ours */
    sampling.seed = 4;
    problem p = {0};
    ebb_usage usage;
    ebb_status status =
        ebb_tokenize(ebb_model_tokenizer(model), start, strlen(start), false, &p.ids, &p.prompt.count, error);
    p.prompt.ids = p.ids;
    if (!status) status = generate(model, method, &p, 1, &sampling, PROSE, &usage, error);
    if (!status)
        printf("\n[%s, %zu bytes of state]\n%s%s\n", method, usage.state_packed + usage.state_live, start,
               p.bytes ? p.text : "");
    free(p.ids), free(p.text);
    return status;
}

static ebb_status show(ebb_model *model, const char *set, ebb_error *error) {
    problem problems[PROBLEMS] = {0};
    ebb_status status = read_problems(ebb_model_tokenizer(model), set, problems, error);
    if (!status)
        printf("registers: %d problems of 128 steps, greedy, decoded together; state bytes are per sequence\n\n"
               "%-8s %8s  %-18s %10s %10s %10s\n",
               PROBLEMS, "state", "right", "first wrong step", "packed", "live", "tokens/s");
    fflush(stdout);
    for (size_t i = 0; i < sizeof methods / sizeof *methods && !status; i++)
        status = registers(model, methods[i], problems, error);
    if (!status) status = prose(model, "fp32", error);
    if (!status) status = prose(model, "leap8", error);
    for (int i = 0; i < PROBLEMS; i++) free(problems[i].ids), free(problems[i].expected), free(problems[i].text);
    return status;
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "models/tiny-gdn",
               *set = argc > 2 ? argv[2] : "models/eval/registers-128.jsonl";
    ebb_error error;
    ebb_device *device = NULL;
    ebb_model *model = NULL;
    ebb_status status = ebb_device_open("cpu", NULL, &device, &error);
    if (!status) status = ebb_model_open(device, folder, NULL, &model, &error);
    if (!status) {
        const ebb_model_info *info = ebb_model_describe(model);
        printf("%s: %s, %.1f M parameters, %d layers with recurrent states, %d with a KV cache, %d threads\n\n", folder,
               info->architecture, (double)info->parameters * 1e-6, info->state_layers, info->kv_layers,
               ebb_device_threads(device));
        status = show(model, set, &error);
    }
    if (status) fprintf(stderr, "demo: %s\n", error.text);
    ebb_model_close(model);
    ebb_device_close(device);
    return status != EBB_OK;
}
