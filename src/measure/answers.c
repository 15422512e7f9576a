/* measure/answers.c: greedy answers of a model over a KV store, as text; and needles, the problems that ask for one
 * sentence of a long text. Called by programs. */
#include "core/core.h"
#include "ebb/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers ---- */

typedef struct answer_text {
    ebb_detokenizer state;
    char *text;
    size_t n, room;
} answer_text;

typedef struct answer_run {
    answer_text *answer; /* [n] */
    bool failed;
} answer_run;

/* `id` < 0: what is left of a character. */
static bool add_token(answer_text *a, int32_t id) {
    size_t written = 0, bytes = 0;
    if (id >= 0) ebb_token_bytes(a->state.tokenizer, id, &bytes);
    const size_t room = 3 * bytes + 32; /* every byte may become a U+FFFD */
    if (a->room - a->n < room) {
        char *text = realloc(a->text, a->room = 2 * a->room + room);
        if (!text) return false;
        a->text = text;
    }
    if (ebb_detokenize(&a->state, id, a->text + a->n, a->room - a->n, &written)) return false;
    a->n += written;
    return true;
}

static bool on_token(void *ctx, int32_t prompt, int32_t token) {
    answer_run *r = ctx;
    if (!add_token(&r->answer[prompt], token)) r->failed = true;
    return !r->failed;
}

static ebb_status check_answers(const ebb_answers_config *c, ebb_error *error) {
    if (c->size != sizeof *c)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "ebb_answers_config.size is %zu, this library expects %zu", c->size,
                        sizeof *c);
    if (c->n < 0 || (c->n && !c->prompts) || c->max_answer < 1 || c->batch < 0)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "%d prompts, %d side by side, answers of %lld tokens; expected 0, 0 and 1 or more", c->n,
                        c->batch, (long long)c->max_answer);
    return EBB_OK;
}

static ebb_status open_engine(ebb_model *model, const ebb_answers_config *c, ebb_engine **engine, ebb_error *error) {
    int64_t longest = 0;
    for (int32_t i = 0; i < c->n; i++) longest = max_i64(longest, c->prompts[i].count);
    const ebb_engine_config config = {.size = sizeof config,
                                      .state = c->state,
                                      .kv = c->store.kv,
                                      .prefill = c->store.prefill,
                                      .kv_bits = c->store.kv_bits,
                                      .max_seqs = c->batch ? c->batch : 1,
                                      .max_tokens = longest + c->max_answer,
                                      .algorithm = c->algorithm,
                                      .progress = c->progress};
    return ebb_engine_open(model, &config, engine, error);
}

ebb_status ebb_answers(ebb_model *model, const ebb_answers_config *config, char **text, ebb_error *error) {
    if (!model || !config || !text)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "answers need a model, a configuration and a place to go");
    ebb_status status = check_answers(config, error);
    if (status || !config->n) return status;
    ebb_engine *engine = NULL;
    answer_run r = {.answer = calloc((size_t)config->n, sizeof *r.answer)};
    if (!r.answer) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for %d answers", config->n);
    for (int32_t i = 0; i < config->n && !status; i++) r.answer[i].state.tokenizer = ebb_model_tokenizer(model);
    if (!status) status = open_engine(model, config, &engine, error);
    if (!status)
        status = ebb_generate(engine, config->prompts, config->n, &EBB_GREEDY, config->max_answer, on_token, &r, NULL,
                              error);
    for (int32_t i = 0; i < config->n && !status; i++)
        if (r.failed || !add_token(&r.answer[i], -1))
            status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the text of an answer");
    for (int32_t i = 0; i < config->n; i++) {
        text[i] = status ? NULL : r.answer[i].text;
        if (status && r.answer) free(r.answer[i].text);
    }
    free(r.answer);
    ebb_engine_close(engine);
    return status;
}

/* ---- needles ---- */

static const char *const words[] = {"falcon", "umber",  "honey",  "dolphin", "nettle", "copper",  "lantern", "orchid",
                                    "marble", "island", "meadow", "kettle",  "ribbon", "glacier", "candle",  "velvet"};

/* Text of ids [n]; malloc'ed. */
static char *text_of(const ebb_tokenizer *tokenizer, const int32_t *ids, int64_t n) {
    answer_text a = {.state = {.tokenizer = tokenizer}};
    bool ok = true;
    for (int64_t i = 0; i < n && ok; i++) ok = add_token(&a, ids[i]);
    if (ok && add_token(&a, -1)) return a.text;
    free(a.text);
    return NULL;
}

/* The problem as ids: a turn of the user, or without a chat form a text that ends where the number is due. */
static ebb_status ids_of(const ebb_model *model, char *content, const char *word, ebb_needle *needle,
                         ebb_error *error) {
    const ebb_tokenizer *t = ebb_model_tokenizer(model);
    const ebb_message turn = {"user", content};
    ebb_status status = ebb_chat(t, &turn, 1, true, &needle->ids, &needle->count, error);
    if (status != EBB_UNSUPPORTED) return status;
    char *question = strrchr(content, '\n');
    int32_t prefix = 0, *ids = NULL;
    const int32_t *begin = ebb_tokenizer_prefix(t, &prefix);
    if (question) snprintf(question, strlen(question) + 1, "\nThe secret number for %s is", word);
    status = ebb_tokenize(t, content, strlen(content), false, &ids, &needle->count, error);
    if (status) return status;
    needle->ids = malloc((size_t)(needle->count + prefix + 1) * sizeof *ids);
    if (needle->ids) {
        if (prefix) memcpy(needle->ids, begin, (size_t)prefix * sizeof *ids);
        memcpy(needle->ids + prefix, ids, (size_t)needle->count * sizeof *ids);
    } else status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a needle");
    needle->count += prefix;
    free(ids);
    return status;
}

/* `place` tokens of the haystack, the needle, the rest, the question. */
static ebb_status make_needle(const ebb_model *model, const int32_t *hay, int64_t n, int64_t place, uint64_t random,
                              ebb_needle *needle, ebb_error *error) {
    const ebb_tokenizer *t = ebb_model_tokenizer(model);
    const char *word = words[random % (uint64_t)COUNT(words)];
    char *before = text_of(t, hay, place), *behind = text_of(t, hay + place, n - place), *content = NULL;
    ebb_status status = EBB_OK;
    snprintf(needle->number, sizeof needle->number, "%05d", (int)(mix64(random) % 100000));
    if (before && behind) {
        const size_t room = strlen(before) + strlen(behind) + 160;
        if ((content = malloc(room)))
            snprintf(content, room, "%s The secret number for %s is %s. %s\nWhat is the secret number for %s?", before,
                     word, needle->number, behind, word);
    }
    if (!content) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for a needle");
    if (!status) status = ids_of(model, content, word, needle, error);
    free(before), free(behind), free(content);
    return status;
}

ebb_status ebb_needles(const ebb_model *model, const int32_t *ids, int64_t count, int64_t length, int32_t depths,
                       int32_t n, uint64_t seed, ebb_needle *needles, ebb_error *error) {
    enum { AROUND = 64 }; /* tokens of the needle, the question and the chat form, about */
    const int64_t hay = length - AROUND;
    if (hay < 1 || depths < 1 || n < 1)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "%d needles of %lld tokens at %d depths; expected 1 or more, of %d or more, at 1 or more", n,
                        (long long)length, depths, AROUND + 1);
    if (count < hay)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a text of %lld tokens for needles of %lld", (long long)count,
                        (long long)length);
    ebb_status status = EBB_OK;
    for (int32_t i = 0; i < n; i++) needles[i] = (ebb_needle){0};
    for (int32_t i = 0; i < n && !status; i++) {
        const uint64_t random = mix64(seed ^ mix64((uint64_t)length * 65536 + (uint64_t)i));
        const int64_t from = (int64_t)(mix64(random ^ 1) % (uint64_t)(count - hay + 1));
        needles[i].depth = i % depths;
        const int64_t place = depths > 1 ? hay * needles[i].depth / (depths - 1) : hay / 2;
        status = make_needle(model, ids + from, hay, place, random, &needles[i], error);
    }
    for (int32_t i = 0; i < n && status; i++) {
        free(needles[i].ids);
        needles[i].ids = NULL;
    }
    return status;
}
