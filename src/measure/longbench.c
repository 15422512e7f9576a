/* measure/longbench.c: the tasks and metrics of LongBench v1 (longbench.h). Called by `ebb kvcheck`.
 *
 * Texts are UTF-8; what is not counts as U+FFFD. Words are compared by their bytes. */
#include "measure/longbench.h"
#include "core/core.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- tasks ---- */

static const longbench_task tasks[] = {
    {"narrativeqa", LONGBENCH_F1, 128, false, false},
    {"qasper", LONGBENCH_F1, 128, false, false},
    {"multifieldqa_en", LONGBENCH_F1, 64, false, false},
    {"hotpotqa", LONGBENCH_F1, 32, false, false},
    {"2wikimqa", LONGBENCH_F1, 32, false, false},
    {"musique", LONGBENCH_F1, 32, false, false},
    {"gov_report", LONGBENCH_ROUGE_L, 512, false, false},
    {"qmsum", LONGBENCH_ROUGE_L, 512, false, false},
    {"multi_news", LONGBENCH_ROUGE_L, 512, false, false},
    {"trec", LONGBENCH_CLASS, 64, true, true},
    {"triviaqa", LONGBENCH_F1, 32, true, true},
    {"samsum", LONGBENCH_ROUGE_L, 128, true, true},
    {"passage_count", LONGBENCH_COUNT, 32, false, false},
    {"passage_retrieval_en", LONGBENCH_PARAGRAPH, 32, false, false},
    {"lcc", LONGBENCH_CODE, 64, true, false},
    {"repobench-p", LONGBENCH_CODE, 64, true, false},
    {"lsht", LONGBENCH_CLASS, 64, true, true},
};
static const char *const chinese[] = {"multifieldqa_zh", "dureader", "vcsum", "passage_retrieval_zh"};

ebb_status longbench_find(const char *dataset, longbench_task *task, ebb_error *error) {
    size_t n = strlen(dataset);
    if (n > 2 && strcmp(dataset + n - 2, "_e") == 0) n -= 2;
    for (int32_t i = 0; i < COUNT(tasks); i++)
        if (strlen(tasks[i].name) == n && memcmp(tasks[i].name, dataset, n) == 0) return *task = tasks[i], EBB_OK;
    for (int32_t i = 0; i < COUNT(chinese); i++)
        if (strcmp(chinese[i], dataset) == 0)
            return ebb_fail(error, EBB_UNSUPPORTED, "LongBench data set %s: answers in Chinese are not scored here",
                            dataset);
    return ebb_fail(error, EBB_UNSUPPORTED, "'%.60s' is no data set of LongBench v1 that is known here", dataset);
}

/* ---- words ---- */

typedef struct word_list {
    char *text;   /* what the words point into, each with its NUL */
    char **words; /* [n] */
    int64_t n;
} word_list;

static void words_free(word_list *list) {
    free(list->text), free(list->words);
    *list = (word_list){0};
}

/* The character at `s`, and its bytes. */
static int32_t character(const char *s, int64_t *bytes) {
    utf8proc_int32_t c;
    *bytes = utf8proc_iterate((const utf8proc_uint8_t *)s, -1, &c);
    if (*bytes > 0 && c >= 0) return c;
    *bytes = 1;
    return 0xFFFD;
}

static bool is_space(int32_t c) {
    if (c < 128) return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
    const utf8proc_category_t k = utf8proc_category(c);
    return c == 0x85 || k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

/* Letters and numbers: what an article must not touch to be one. */
static bool is_word(int32_t c) {
    const utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static char *put_character(char *to, int32_t c) { return to + utf8proc_encode_char(c, (utf8proc_uint8_t *)to); }

/* Small letters, without the punctuation of ASCII. */
static char *lowered(const char *text) {
    char *low = malloc(4 * strlen(text) + 1), *to = low;
    for (int64_t n; low && *text; text += n) {
        const int32_t c = character(text, &n);
        if (c < 128 && ispunct(c)) continue;
        to = put_character(to, utf8proc_tolower(c));
    }
    if (low) *to = '\0';
    return low;
}

/* "a", "an" and "the" become a space where no letter or number touches them. */
static void remove_articles(char *text) {
    char *to = text;
    bool inside = false; /* the character before belongs to a word */
    for (int64_t n; *text; text += n) {
        int64_t article = !strncmp(text, "the", 3) ? 3 : !strncmp(text, "an", 2) ? 2 : *text == 'a' ? 1 : 0;
        for (; article && !inside; article = article == 2 ? 1 : 0) {
            int64_t bytes;
            if (!text[article] || !is_word(character(text + article, &bytes))) break;
        }
        if (article && !inside) {
            *to++ = ' ';
            n = article;
            continue;
        }
        inside = is_word(character(text, &n));
        memmove(to, text, (size_t)n);
        to += n;
    }
    *to = '\0';
}

/* `text` is taken. Words between spaces. */
static bool split_words(char *text, word_list *list) {
    *list = (word_list){.text = text};
    if (!text || !(list->words = malloc((strlen(text) / 2 + 1) * sizeof *list->words))) return false;
    for (bool inside = false; *text;) {
        int64_t n;
        const bool space = is_space(character(text, &n));
        if (space) memset(text, '\0', (size_t)n);
        else if (!inside) list->words[list->n++] = text;
        inside = !space;
        text += n;
    }
    return true;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void sort_words(word_list *list) {
    if (list->n) qsort(list->words, (size_t)list->n, sizeof *list->words, by_text);
}

/* ---- F1 of words ---- */

static bool normal_words(const char *text, word_list *list) {
    char *low = lowered(text);
    *list = (word_list){0};
    if (!low) return false;
    remove_articles(low);
    return split_words(low, list);
}

/* Words in both sorted lists, as often as in both. */
static int64_t common(const word_list *a, const word_list *b) {
    int64_t n = 0;
    for (int64_t i = 0, j = 0; i < a->n && j < b->n;) {
        const int order = strcmp(a->words[i], b->words[j]);
        n += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return n;
}

static bool score_f1(const char *answer, const char *reference, double *score) {
    word_list a = {0}, r = {0};
    const bool ok = normal_words(answer, &a) && normal_words(reference, &r);
    if (ok) {
        sort_words(&a), sort_words(&r);
        const double same = (double)common(&a, &r);
        const double precision = same / (double)a.n, recall = same / (double)r.n;
        *score = same > 0 ? 2 * precision * recall / (precision + recall) : 0;
    }
    words_free(&a), words_free(&r);
    return ok;
}

/* ---- ROUGE-L ----
 *
 * Summary level, of sentences that end with a full stop: the union, over all pairs of sentences, of the words of their
 * longest common subsequence, as a set; precision and recall are its size over the number of different words. */

typedef struct sentences {
    word_list words; /* of all sentences */
    int64_t *end;    /* [n] words up to the end of each */
    int64_t n;
} sentences;

static void sentences_free(sentences *s) {
    words_free(&s->words);
    free(s->end);
}

/* A sentence without a word counts as one empty word, as the package has it. */
static bool cut_sentences(const char *text, sentences *s) {
    const size_t bytes = strlen(text);
    char *own = malloc(bytes + 2), *at = own;
    *s = (sentences){.words = {.text = own}};
    s->words.words = malloc((bytes + 1) * sizeof *s->words.words);
    s->end = malloc((bytes + 1) * sizeof *s->end);
    if (!own || !s->words.words || !s->end) return false;
    memcpy(own, text, bytes + 1);
    own[bytes + 1] = '\0';
    while (*at) {
        char *stop = at + strcspn(at, ".");
        const bool last = !*stop;
        *stop = '\0';
        if (stop > at) {
            const int64_t before = s->words.n;
            bool inside = false;
            for (int64_t n; at < stop; at += n) {
                const bool space = is_space(character(at, &n));
                if (space) memset(at, '\0', (size_t)n);
                else if (!inside) s->words.words[s->words.n++] = at;
                inside = !space;
            }
            if (s->words.n == before) s->words.words[s->words.n++] = own + bytes;
            s->end[s->n++] = s->words.n;
        }
        at = last ? stop : stop + 1;
    }
    return true;
}

/* Marks the words of x [n] that belong to the longest common subsequence with y [m]; of equally long ones the one that
 * gives up words of y before words of x. `table` has (n + 1)(m + 1) cells. */
static void mark_common(char **x, int64_t n, char **y, int64_t m, int32_t *table, bool *marked) {
    const int64_t wide = m + 1;
    for (int64_t i = 0; i <= n; i++)
        for (int64_t j = 0; j <= m; j++) {
            int32_t *cell = &table[i * wide + j];
            if (i == 0 || j == 0) *cell = 0;
            else if (strcmp(x[i - 1], y[j - 1]) == 0) *cell = cell[-wide - 1] + 1;
            else *cell = cell[-wide] > cell[-1] ? cell[-wide] : cell[-1];
        }
    for (int64_t i = n, j = m; i > 0 && j > 0;) {
        const int32_t *cell = &table[i * wide + j];
        if (strcmp(x[i - 1], y[j - 1]) == 0) marked[i - 1] = true, i--, j--;
        else if (cell[-wide] > cell[-1]) i--;
        else j--;
    }
}

/* Different words among those that `chosen` names (NULL: all). */
static bool count_different(const word_list *list, const bool *chosen, int64_t *count) {
    char **sorted = malloc(((size_t)list->n + 1) * sizeof *sorted);
    int64_t n = 0;
    if (!sorted) return false;
    for (int64_t i = 0; i < list->n; i++)
        if (!chosen || chosen[i]) sorted[n++] = list->words[i];
    if (n) qsort(sorted, (size_t)n, sizeof *sorted, by_text);
    *count = n > 0;
    for (int64_t i = 1; i < n; i++) *count += strcmp(sorted[i - 1], sorted[i]) != 0;
    free(sorted);
    return true;
}

static bool union_of(const sentences *a, const sentences *r, bool *marked) {
    for (int64_t i = 0, x = 0; i < r->n; x = r->end[i++])
        for (int64_t j = 0, y = 0; j < a->n; y = a->end[j++]) {
            const int64_t n = r->end[i] - x, m = a->end[j] - y;
            size_t cells;
            if (!size_mul((size_t)(n + 1) * (size_t)(m + 1), sizeof(int32_t), &cells)) return false;
            int32_t *table = malloc(cells);
            if (!table) return false;
            mark_common(r->words.words + x, n, a->words.words + y, m, table, marked + x);
            free(table);
        }
    return true;
}

static bool score_rouge(const char *answer, const char *reference, double *score) {
    sentences a = {0}, r = {0};
    int64_t all_a = 0, all_r = 0, both = 0;
    bool ok = cut_sentences(answer, &a) && cut_sentences(reference, &r);
    bool *marked = ok ? calloc((size_t)r.words.n + 1, sizeof *marked) : NULL;
    ok = marked && union_of(&a, &r, marked) && count_different(&a.words, NULL, &all_a) &&
         count_different(&r.words, NULL, &all_r) && count_different(&r.words, marked, &both);
    *score = 0;
    if (ok && all_a && all_r) {
        const double precision = (double)both / (double)all_a, recall = (double)both / (double)all_r;
        *score = 2 * (precision * recall / (precision + recall + 1e-8));
    }
    sentences_free(&a), sentences_free(&r);
    free(marked);
    return ok;
}

/* ---- classes, numbers, code ---- */

/* Classes in the answer; of them, those that are a part of the reference but not all of it are dropped, each with the
 * look at its follower lost, as the published loop does it. */
static double score_class(const char *answer, const char *reference, const char *const *classes, int32_t n,
                          const char **found) {
    int32_t many = 0;
    bool right = false;
    for (int32_t i = 0; i < n; i++)
        if (strstr(answer, classes[i])) found[many++] = classes[i];
    for (int32_t i = 0; i < many; i++) {
        if (!strstr(reference, found[i]) || !strcmp(reference, found[i])) continue;
        many--;
        memmove(found + i, found + i + 1, (size_t)(many - i) * sizeof *found);
    }
    for (int32_t i = 0; i < many; i++) right |= !strcmp(found[i], reference);
    return right ? 1.0 / many : 0;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Of the numbers in the answer, those that are `want` [bytes]. */
static double score_numbers(const char *answer, const char *want, size_t bytes) {
    int64_t all = 0, right = 0;
    while (*answer) {
        size_t n = 0;
        while (is_digit(answer[n])) n++;
        all += n > 0;
        right += n > 0 && n == bytes && !memcmp(answer, want, n);
        answer += n ? n : 1;
    }
    return all ? (double)right / (double)all : 0;
}

static double score_paragraph(const char *answer, const char *reference) {
    static const char head[] = "Paragraph ";
    size_t n = 0;
    const char *at = reference;
    while ((at = strstr(at, head)) && !is_digit(*(at += sizeof head - 1))) {
    }
    while (at && is_digit(at[n])) n++;
    return at ? score_numbers(answer, at, n) : 0;
}

/* The first line, after empty ones, that is neither a comment nor a fence. */
static char *code_line(const char *answer) {
    while (*answer == '\n') answer++;
    for (;;) {
        const size_t n = strcspn(answer, "\n");
        char *line = malloc(n + 1);
        if (!line) return NULL;
        memcpy(line, answer, n);
        line[n] = '\0';
        if (!strchr(line, '`') && !strchr(line, '#') && !strstr(line, "//")) return line;
        line[0] = '\0';
        if (!answer[n]) return line;
        free(line);
        answer += n + 1;
    }
}

static int32_t *characters(const char *text, int64_t *n) {
    int32_t *c = malloc((strlen(text) + 1) * sizeof *c);
    int64_t bytes;
    *n = 0;
    for (; c && *text; text += bytes) c[(*n)++] = character(text, &bytes);
    return c;
}

/* 2 LCS / (sum of lengths), to a hundredth: insertions and deletions only. Equal texts, empty ones too, have 1. */
static bool score_code(const char *answer, const char *reference, double *score) {
    char *line = code_line(answer);
    int64_t n = 0, m = 0;
    int32_t *a = line ? characters(line, &n) : NULL, *b = characters(reference, &m);
    int32_t *row = calloc((size_t)m + 1, sizeof *row);
    const bool ok = a && b && row;
    for (int64_t i = 0; i < n && ok; i++)
        for (int64_t j = 1, corner = 0; j <= m; j++) {
            const int32_t above = row[j];
            if (a[i] == b[j - 1]) row[j] = (int32_t)corner + 1;
            else if (row[j - 1] > row[j]) row[j] = row[j - 1];
            corner = above;
        }
    if (ok) *score = n + m ? nearbyint(100.0 * (2.0 * row[m] / (double)(n + m))) / 100 : 1;
    free(line), free(a), free(b), free(row);
    return ok;
}

/* ---- scores ---- */

ebb_status longbench_score(longbench_metric metric, const char *answer, const char *reference,
                           const char *const *classes, int32_t n, double *score, ebb_error *error) {
    bool ok = true;
    const char **found;
    *score = 0;
    switch (metric) {
    case LONGBENCH_F1:
        ok = score_f1(answer, reference, score);
        break;
    case LONGBENCH_ROUGE_L:
        ok = score_rouge(answer, reference, score);
        break;
    case LONGBENCH_CLASS:
        found = malloc(((size_t)n + 1) * sizeof *found);
        ok = found != NULL;
        if (ok) *score = score_class(answer, reference, classes, n, found);
        free(found);
        break;
    case LONGBENCH_PARAGRAPH:
        *score = score_paragraph(answer, reference);
        break;
    case LONGBENCH_COUNT:
        *score = score_numbers(answer, reference, strlen(reference));
        break;
    case LONGBENCH_CODE:
        ok = score_code(answer, reference, score);
        break;
    }
    return ok ? EBB_OK : ebb_fail(error, EBB_NO_MEMORY, "no memory to score an answer of %zu bytes", strlen(answer));
}

ebb_status longbench_best(const longbench_task *task, const char *answer, const char *const *references,
                          int32_t n_references, const char *const *classes, int32_t n, double *score,
                          ebb_error *error) {
    ebb_status status = EBB_OK;
    char *line = NULL;
    *score = 0;
    if (task->first_line) {
        while (*answer == '\n') answer++;
        const size_t bytes = strcspn(answer, "\n");
        if (!(line = malloc(bytes + 1))) return ebb_fail(error, EBB_NO_MEMORY, "no memory to score an answer");
        memcpy(line, answer, bytes);
        line[bytes] = '\0';
        answer = line;
    }
    for (int32_t i = 0; i < n_references && !status; i++) {
        double one;
        status = longbench_score(task->metric, answer, references[i], classes, n, &one, error);
        if (!status && one > *score) *score = one;
    }
    free(line);
    return status;
}

/* ---- prompts ---- */

char *longbench_prompt(const char *form, const char *context, const char *input) {
    static const char context_at[] = "{context}", input_at[] = "{input}";
    size_t bytes = strlen(form) + 1;
    for (const char *s = form; (s = strchr(s, '{')); s++) {
        if (!strncmp(s, context_at, sizeof context_at - 1)) bytes += strlen(context);
        if (!strncmp(s, input_at, sizeof input_at - 1)) bytes += strlen(input);
    }
    char *prompt = malloc(bytes), *to = prompt;
    while (prompt && *form) {
        const char *with = NULL;
        if (!strncmp(form, context_at, sizeof context_at - 1)) with = context, form += sizeof context_at - 1;
        else if (!strncmp(form, input_at, sizeof input_at - 1)) with = input, form += sizeof input_at - 1;
        if (with) {
            const size_t n = strlen(with);
            memcpy(to, with, n);
            to += n;
        } else *to++ = *form++;
    }
    if (prompt) *to = '\0';
    return prompt;
}
