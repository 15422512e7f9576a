/* measure/eval_task.c: reads tasks: files with a JSON object a line, in the forms in which GSM8K, MATH500, GPQA, AIME
 * and RULER are published, and in one of our own (docs/eval.md). Called by programs. */
#include "measure/eval_int.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line before it is tokenized. What is asked of the model is `text`, or the messages of `turns`. */
typedef struct line_form {
    const char *file;
    int64_t number;
    const json_t *line;
    char *text;
    const json_t *turns;
    bool plain; /* `text` is written as it is, without a turn of a chat around it */
    ebb_scoring scoring;
    json_t *answers; /* list of texts */
} line_form;

static const struct {
    const char *name;
    ebb_scoring scoring;
} scorings[] = {{"exact", EBB_SCORE_EXACT},   {"number", EBB_SCORE_NUMBER}, {"boxed", EBB_SCORE_BOXED},
                {"choice", EBB_SCORE_CHOICE}, {"all", EBB_SCORE_ALL},       {"any", EBB_SCORE_ANY}};

static ebb_status bad_line(const line_form *f, const char *what, ebb_error *error) {
    return ebb_fail(error, EBB_BAD_FILE, "%.100s: line %lld %s", f->file, (long long)f->number, what);
}

static ebb_status no_memory(const line_form *f, ebb_error *error) {
    return ebb_fail(error, EBB_NO_MEMORY, "no memory for line %lld of %.100s", (long long)f->number, f->file);
}

static const char *text_at(const line_form *f, const char *field) {
    return json_string_value(json_object_get(f->line, field));
}

/* a and b after one another; malloc'ed. */
static char *joined(const char *a, const char *b) {
    const size_t n = strlen(a), m = strlen(b);
    char *text = malloc(n + m + 1);
    if (text) memcpy(text, a, n), memcpy(text + n, b, m + 1);
    return text;
}

static ebb_status read_scoring(const line_form *f, const char *name, ebb_scoring *scoring, ebb_error *error) {
    for (int32_t i = 0; i < COUNT(scorings); i++)
        if (strcmp(name, scorings[i].name) == 0) return *scoring = scorings[i].scoring, EBB_OK;
    if (!f)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "scoring %s: expected exact, number, boxed, choice, all or any", name);
    return bad_line(f, "has an unknown \"scoring\"; expected exact, number, boxed, choice, all or any", error);
}

/* A text or a number as a text, onto the answers. */
static ebb_status add_answer(line_form *f, const json_t *value, ebb_error *error) {
    char number[64];
    const char *text = json_string_value(value);
    if (json_is_integer(value))
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value)), text = number;
    if (json_is_real(value)) snprintf(number, sizeof number, "%.15g", json_real_value(value)), text = number;
    if (!text) return bad_line(f, "has an answer that is neither a text nor a number", error);
    return json_array_append_new(f->answers, json_string(text)) ? no_memory(f, error) : EBB_OK;
}

static ebb_status add_answers(line_form *f, const json_t *value, ebb_error *error) {
    size_t i;
    json_t *each;
    ebb_status status = EBB_OK;
    if (!json_is_array(value)) return add_answer(f, value, error);
    json_array_foreach(value, i, each) if (!status) status = add_answer(f, each, error);
    if (!status && !json_array_size(value)) status = bad_line(f, "has an empty list of answers", error);
    return status;
}

/* ---- the forms ---- */

/* {"question", "answer": "... #### 18"} */
static ebb_status gsm8k(line_form *f, ebb_error *error) {
    const char *answer = text_at(f, "answer"), *mark = answer ? strstr(answer, "####") : NULL;
    if (!mark) return bad_line(f, "has a \"question\" but no \"answer\" with #### and a number", error);
    f->scoring = EBB_SCORE_NUMBER;
    if (!(f->text = joined(text_at(f, "question"), "\nThink step by step, and end with the answer as one number.")))
        return no_memory(f, error);
    return json_array_append_new(f->answers, json_string(mark + 4)) ? no_memory(f, error) : EBB_OK;
}

/* {"problem", "answer"} of MATH500 and AIME; 2024's AIME has "Problem" and "Answer". */
static ebb_status boxed(line_form *f, const char *problem, const char *answer, ebb_error *error) {
    const json_t *value = json_object_get(f->line, answer);
    if (!value) return bad_line(f, "has a \"problem\" but no \"answer\"", error);
    f->scoring = EBB_SCORE_BOXED;
    if (!(f->text = joined(problem, "\nReason step by step, and end with the answer in \\boxed{}.")))
        return no_memory(f, error);
    return add_answers(f, value, error);
}

/* Options with letters behind the question, and a line that says how to answer. */
static ebb_status lettered(line_form *f, const char *question, const char *const *options, int32_t n, int32_t right,
                           ebb_error *error) {
    size_t bytes = strlen(question) + 128, at;
    char letter[2] = {(char)('A' + right), '\0'};
    for (int32_t i = 0; i < n; i++) bytes += strlen(options[i]) + 8;
    if (!(f->text = malloc(bytes))) return no_memory(f, error);
    at = (size_t)snprintf(f->text, bytes, "%s\n\n", question);
    for (int32_t i = 0; i < n; i++) at += (size_t)snprintf(f->text + at, bytes - at, "%c) %s\n", 'A' + i, options[i]);
    snprintf(f->text + at, bytes - at,
             "\nThink step by step, and end with \"Answer: \" and the letter of your choice.");
    f->scoring = EBB_SCORE_CHOICE;
    return json_array_append_new(f->answers, json_string(letter)) ? no_memory(f, error) : EBB_OK;
}

/* {"Question", "Correct Answer", "Incorrect Answer 1..3"}: the place of the right one follows from the line's number.
 */
static ebb_status gpqa(line_form *f, ebb_error *error) {
    const int32_t right = (int32_t)(mix64((uint64_t)f->number) % 4);
    const char *options[4];
    char field[32];
    for (int32_t i = 0, wrong = 1; i < 4; i++) {
        if (i == right) snprintf(field, sizeof field, "Correct Answer");
        else snprintf(field, sizeof field, "Incorrect Answer %d", wrong++);
        if (!(options[i] = text_at(f, field)))
            return bad_line(f, "has a \"Question\" but not a \"Correct Answer\" and \"Incorrect Answer 1\" to 3",
                            error);
    }
    return lettered(f, text_at(f, "Question"), options, 4, right, error);
}

/* {"question", "choices" or "options": [...], "answer": letter or place from 0} as MMLU-Pro has it. */
static ebb_status choices(line_form *f, const json_t *list, ebb_error *error) {
    const char *options[10], *question = text_at(f, "question"), *letter = text_at(f, "answer");
    const json_t *answer = json_object_get(f->line, "answer");
    const int32_t n = (int32_t)json_array_size(list);
    if (!question) question = text_at(f, "prompt");
    int64_t right = json_is_integer(answer) ? json_integer_value(answer) : -1;
    if (letter && letter[0] >= 'A' && letter[0] <= 'J' && !letter[1]) right = letter[0] - 'A';
    if (!question || n < 2 || n > 10 || right < 0 || right >= n)
        return bad_line(
            f, "expected a question, 2 to 10 choices, and the letter or the place (from 0) of the right one", error);
    for (int32_t i = 0; i < n; i++)
        if (!(options[i] = json_string_value(json_array_get(list, (size_t)i))))
            return bad_line(f, "has a choice that is not a text", error);
    return lettered(f, question, options, n, (int32_t)right, error);
}

/* {"input", "outputs": [...]} and, where there is one, an "answer_prefix" that the answer begins with. */
static ebb_status ruler(line_form *f, ebb_error *error) {
    const char *prefix = text_at(f, "answer_prefix");
    f->scoring = EBB_SCORE_ALL;
    if (!(f->text = joined(text_at(f, "input"), prefix ? prefix : ""))) return no_memory(f, error);
    return add_answers(f, json_object_get(f->line, "outputs"), error);
}

/* {"messages" or "prompt", "answer"}: our own. */
static ebb_status own(line_form *f, ebb_error *error) {
    const json_t *answer = json_object_get(f->line, "answer"), *more = json_object_get(f->line, "answers");
    const char *prompt = text_at(f, "prompt");
    f->turns = json_object_get(f->line, "messages");
    if (!json_array_size(f->turns) && !prompt)
        return bad_line(
            f,
            "is of no known form; expected \"messages\" or \"prompt\" and \"answer\", or the fields of GSM8K, "
            "MATH500, GPQA, AIME or RULER",
            error);
    if (!answer && !more) return bad_line(f, "has no \"answer\"", error);
    f->scoring = more ? EBB_SCORE_ALL : EBB_SCORE_EXACT;
    if (!json_array_size(f->turns)) {
        f->turns = NULL;
        f->plain = true;
        if (!(f->text = joined(prompt, ""))) return no_memory(f, error);
    }
    return add_answers(f, answer ? answer : more, error);
}

static ebb_status read_form(line_form *f, ebb_error *error) {
    const json_t *list = json_object_get(f->line, "choices");
    if (!list) list = json_object_get(f->line, "options");
    if (list) return choices(f, list, error);
    if (text_at(f, "Question")) return gpqa(f, error);
    if (text_at(f, "problem")) return boxed(f, text_at(f, "problem"), "answer", error);
    if (text_at(f, "Problem")) return boxed(f, text_at(f, "Problem"), "Answer", error);
    if (text_at(f, "input") && json_object_get(f->line, "outputs")) return ruler(f, error);
    if (text_at(f, "question")) return gsm8k(f, error);
    return own(f, error);
}

/* ---- to ids ---- */

static ebb_status plain_ids(const ebb_tokenizer *t, const char *text, ebb_problem *p, ebb_error *error) {
    int32_t *ids = NULL, n = 0;
    int64_t count = 0;
    const int32_t *begin = ebb_tokenizer_prefix(t, &n);
    ebb_status status = ebb_tokenize(t, text, strlen(text), false, &ids, &count, error);
    if (!status && !(p->ids = malloc((size_t)(count + n + 1) * sizeof *ids)))
        status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a prompt");
    if (!status) {
        if (n) memcpy(p->ids, begin, (size_t)n * sizeof *ids);
        memcpy(p->ids + n, ids, (size_t)count * sizeof *ids);
        p->count = count + n;
    }
    free(ids);
    return status;
}

static ebb_status chat_ids(const ebb_tokenizer *t, const line_form *f, ebb_problem *p, ebb_error *error) {
    const ebb_message turn = {"user", f->text};
    char *json = f->turns ? json_dumps(f->turns, 0) : NULL;
    if (f->turns && !json) return no_memory(f, error);
    const ebb_chat_call call = {
        .size = sizeof call, .messages = &turn, .n_messages = !f->turns, .json = json, .reply = true};
    ebb_status status = ebb_chat_ids(t, &call, &p->ids, &p->count, NULL, error);
    free(json);
    return status;
}

static ebb_status to_problem(const ebb_tokenizer *t, const line_form *f, ebb_problem *p, ebb_error *error) {
    ebb_error why = {EBB_OK, ""};
    ebb_status status = f->plain ? plain_ids(t, f->text, p, &why) : chat_ids(t, f, p, &why);
    if (status == EBB_UNSUPPORTED && f->text) status = plain_ids(t, f->text, p, &why); /* no chat form */
    if (status) return ebb_fail(error, status, "%.80s: line %lld: %.120s", f->file, (long long)f->number, why.text);
    p->scoring = f->scoring;
    p->answer = calloc(json_array_size(f->answers), sizeof *p->answer);
    if (!p->answer) return no_memory(f, error);
    for (size_t i = 0; i < json_array_size(f->answers); i++, p->n_answers++)
        if (!(p->answer[i] = joined(json_string_value(json_array_get(f->answers, i)), ""))) return no_memory(f, error);
    return EBB_OK;
}

static ebb_status read_line(const ebb_tokenizer *t, const char *scoring, line_form *f, ebb_problem *p,
                            ebb_error *error) {
    const char *own_scoring = text_at(f, "scoring");
    if (!json_is_object(f->line)) return bad_line(f, "is no JSON object", error);
    if (!(f->answers = json_array())) return no_memory(f, error);
    ebb_status status = read_form(f, error);
    if (!status && own_scoring) status = read_scoring(f, own_scoring, &f->scoring, error);
    if (!status && scoring) status = read_scoring(NULL, scoring, &f->scoring, error);
    return status ? status : to_problem(t, f, p, error);
}

static uint64_t hash_problem(uint64_t hash, const ebb_problem *p) {
    const int32_t scoring = (int32_t)p->scoring;
    hash = hash64(hash, p->ids, (size_t)p->count * sizeof *p->ids);
    hash = hash64(hash, &scoring, sizeof scoring);
    for (int32_t i = 0; i < p->n_answers; i++) hash = hash64(hash, p->answer[i], strlen(p->answer[i]) + 1);
    return hash;
}

static ebb_status read_lines(const ebb_tokenizer *t, const char *path, char *text, const char *scoring, int32_t limit,
                             ebb_task *task, ebb_error *error) {
    int64_t lines = 1, number = 0;
    ebb_status status = EBB_OK;
    for (const char *c = text; *c; c++) lines += *c == '\n';
    if (!(task->problem = calloc((size_t)lines, sizeof *task->problem)))
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the problems of %.120s", path);
    for (char *at = text, *end; *at && !status && (!limit || task->n < limit); at = end) {
        end = at + strcspn(at, "\n");
        if (*end) *end++ = '\0';
        number++;
        if (!at[strspn(at, " \t\r")]) continue;
        json_t *line = json_loads(at, 0, NULL);
        line_form f = {.file = path, .number = number, .line = line};
        status = read_line(t, scoring, &f, &task->problem[task->n++], error);
        if (!status) task->hash = hash_problem(task->hash, &task->problem[task->n - 1]);
        free(f.text);
        json_decref(f.answers), json_decref(line);
    }
    if (!status && !task->n) status = ebb_fail(error, EBB_BAD_FILE, "%.120s: no problem in it", path);
    return status;
}

ebb_status ebb_task_read(const ebb_model *model, const char *path, const char *scoring, int32_t limit, ebb_task **task,
                         ebb_error *error) {
    char *text = NULL;
    size_t bytes;
    ebb_scoring known;
    if (!model || !path || !task || limit < 0)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "a task needs a model, a path, a limit of 0 or more and a place to go");
    *task = NULL;
    ebb_status status = scoring ? read_scoring(NULL, scoring, &known, error) : EBB_OK;
    if (!status) status = read_file(path, (size_t)1 << 30, &text, &bytes, error);
    if (status) return status;
    ebb_task *t = calloc(1, sizeof *t);
    if (t) t->hash = HASH64_BEGIN;
    status = t ? read_lines(ebb_model_tokenizer(model), path, text, scoring, limit, t, error)
               : ebb_fail(error, EBB_NO_MEMORY, "no memory for a task");
    free(text);
    if (!status) *task = t;
    else ebb_task_free(t);
    return status;
}

void ebb_task_free(ebb_task *task) {
    if (!task) return;
    for (int32_t i = 0; task->problem && i < task->n; i++) {
        ebb_problem *p = &task->problem[i];
        for (int32_t j = 0; j < p->n_answers; j++) free(p->answer[j]);
        free(p->answer), free(p->ids);
    }
    free(task->problem), free(task);
}
