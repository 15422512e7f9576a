/* measure/eval_score.c: is an answer right (ebb/measure.h): letter for letter, by its last number, by what is boxed, by
 * the chosen letter, by words that it holds. Called by eval_answers.c and by programs. */
#define _GNU_SOURCE
#include "measure/eval_int.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_space(char c) { return isspace((unsigned char)c) != 0; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* A piece of a text, without white space around it. */
typedef struct piece {
    const char *at;
    size_t n;
} piece;

static piece trimmed(const char *at, size_t n) {
    while (n && is_space(*at)) at++, n--;
    while (n && is_space(at[n - 1])) n--;
    return (piece){at, n};
}

static bool same(piece a, piece b) { return a.n == b.n && memcmp(a.at, b.at, a.n) == 0; }

/* ---- numbers ---- */

/* A number at `at`: digits with commas between groups of three, a sign, a fraction. Answers its end, NULL: none. */
static const char *read_number(const char *at, double *value) {
    char plain[64];
    size_t n = 0;
    const char *c = at;
    if (*c == '-' || *c == '+') plain[n++] = *c++;
    if (!is_digit(*c) && !(*c == '.' && is_digit(c[1]))) return NULL;
    bool point = false;
    while (n < sizeof plain - 1) {
        const bool group = *c == ',' && !point && is_digit(c[1]) && is_digit(c[2]) && is_digit(c[3]) && !is_digit(c[4]);
        if (group) c++;
        else if (is_digit(*c)) plain[n++] = *c++;
        else if (*c == '.' && !point && is_digit(c[1])) point = true, plain[n++] = *c++;
        else break;
    }
    plain[n] = '\0';
    *value = strtod(plain, NULL);
    return c;
}

/* A sign belongs to a number unless it stands between two of them: "3-4". */
static bool last_number(const char *text, double *value) {
    bool found = false;
    for (const char *at = text; *at;) {
        const bool sign =
            (*at == '-' || *at == '+') && (at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == ')'));
        const char *end = sign || is_digit(*at) || *at == '.' ? read_number(at, value) : NULL;
        found |= end != NULL;
        at = end ? end : at + 1;
    }
    return found;
}

static bool whole_number(piece p, double *value) {
    char text[64];
    if (p.n >= sizeof text) return false;
    memcpy(text, p.at, p.n);
    text[p.n] = '\0';
    const char *begin = text[0] == '$' ? text + 1 : text, *end = read_number(begin, value);
    return end && (!*end || strcmp(end, "%") == 0 || strcmp(end, ".") == 0 || strcmp(end, "$") == 0);
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b))); }

static double score_number(const char *text, const char *answer) {
    double given, right;
    if (!whole_number(trimmed(answer, strlen(answer)), &right) && !last_number(answer, &right)) return 0;
    return last_number(text, &given) && near(given, right);
}

/* ---- boxed ---- */

/* What the last \boxed{...} (\fbox{...}) holds, braces balanced. */
static bool last_boxed(const char *text, piece *inside) {
    static const char *const names[] = {"\\boxed{", "\\fbox{"};
    bool found = false;
    for (int32_t i = 0; i < COUNT(names); i++)
        for (const char *at = text; (at = strstr(at, names[i]));) {
            const char *begin = at += strlen(names[i]);
            int32_t depth = 1;
            for (; *at && depth; at++) depth += (*at == '{') - (*at == '}');
            if (depth || (found && begin < inside->at)) continue;
            *inside = trimmed(begin, (size_t)(at - begin) - 1);
            found = true;
        }
    return found;
}

/* One way to write what MATH answers write in several: no spaces, no \left, \right, \! or \$; dfrac and tfrac are frac;
 * \frac12 is \frac{1}{2}; no \text{}, degrees, dollar or percent signs, no point at the end. */
static char *plain_math(piece p) {
    static const struct {
        const char *from, *to;
    } words[] = {{"\\left", ""},        {"\\right", ""},       {"\\!", ""},       {"\\,", ""},     {"\\;", ""},
                 {"\\ ", ""},           {"\\$", ""},           {"$", ""},         {"\\%", ""},     {"%", ""},
                 {"\\dfrac", "\\frac"}, {"\\tfrac", "\\frac"}, {"^{\\circ}", ""}, {"^\\circ", ""}, {"\\text", ""},
                 {"\\mathrm", ""},      {"\\mbox", ""}};
    char *out = malloc(4 * p.n + 8);
    size_t n = 0;
    for (size_t i = 0; out && i < p.n;) {
        int32_t w = 0;
        while (w < COUNT(words) &&
               (p.n - i < strlen(words[w].from) || memcmp(p.at + i, words[w].from, strlen(words[w].from))))
            w++;
        if (w < COUNT(words)) {
            memcpy(out + n, words[w].to, strlen(words[w].to));
            n += strlen(words[w].to), i += strlen(words[w].from);
        } else if (is_space(p.at[i])) i++;
        else out[n++] = p.at[i++];
        if (n >= 5 && !memcmp(out + n - 5, "\\frac", 5) && i + 1 < p.n && is_digit(p.at[i]) && is_digit(p.at[i + 1]))
            n += (size_t)sprintf(out + n, "{%c}{%c}", p.at[i], p.at[i + 1]), i += 2;
    }
    if (!out) return NULL;
    if (n && out[n - 1] == '.') n--;
    out[n] = '\0';
    return out;
}

static double score_boxed(const char *text, const char *answer) {
    piece given, right = trimmed(answer, strlen(answer));
    double a, b;
    last_boxed(answer, &right);
    if (!last_boxed(text, &given)) return whole_number(right, &b) && last_number(text, &a) && near(a, b);
    if (same(given, right)) return 1;
    if (whole_number(given, &a) && whole_number(right, &b)) return near(a, b);
    char *x = plain_math(given), *y = plain_math(right);
    const bool equal = x && y && strcmp(x, y) == 0;
    free(x), free(y);
    return equal;
}

/* ---- choices ---- */

/* A letter A .. J that stands alone: "B", "(B)", "B." */
static bool lone_letter(const char *text, const char *at) {
    const bool before = at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '\'');
    return before && *at >= 'A' && *at <= 'J' && !(isalnum((unsigned char)at[1]) || at[1] == '\'');
}

/* "A man", "I think" */
static bool is_word(const char *at) {
    return (*at == 'A' || *at == 'I') && at[1] == ' ' && islower((unsigned char)at[2]);
}

/* What is boxed, else the first lone letter behind the last "answer", else the last lone letter. */
static char chosen_letter(const char *text) {
    piece boxed;
    char found = 0;
    for (size_t i = 0; last_boxed(text, &boxed) && i < boxed.n; i++)
        if (lone_letter(text, boxed.at + i)) return boxed.at[i];
    const char *behind = NULL;
    for (const char *at = text; (at = strcasestr(at, "answer")); at += 6) behind = at + 6;
    for (const char *at = behind; at && *at; at++)
        if (lone_letter(text, at) && !(*at == 'I' && is_word(at))) return *at;
    for (const char *at = text; *at; at++)
        if (lone_letter(text, at) && !is_word(at)) found = *at;
    return found;
}

/* ---- all of them ---- */

static double score_held(const ebb_problem *p, const char *text) {
    int32_t held = 0;
    for (int32_t i = 0; i < p->n_answers; i++) held += strcasestr(text, p->answer[i]) != NULL;
    if (p->scoring == EBB_SCORE_ANY) return held > 0;
    return p->n_answers ? (double)held / p->n_answers : 0;
}

double ebb_score(const ebb_problem *p, const char *text) {
    if (!p || !text || p->n_answers < 1) return 0;
    const char *answer = p->answer[0];
    switch (p->scoring) {
    case EBB_SCORE_EXACT:
        return same(trimmed(text, strlen(text)), trimmed(answer, strlen(answer)));
    case EBB_SCORE_NUMBER:
        return score_number(text, answer);
    case EBB_SCORE_BOXED:
        return score_boxed(text, answer);
    case EBB_SCORE_CHOICE:
        return chosen_letter(text) == answer[0];
    case EBB_SCORE_ALL:
    case EBB_SCORE_ANY:
        break;
    }
    return score_held(p, text);
}

/* ---- statistics ---- */

void ebb_block_mean(const float *x, int64_t n, int64_t block, double *mean, double *half) {
    const double z95 = 1.959963984540054;
    double all = 0, squares = 0;
    int64_t blocks = 0;
    for (int64_t i = 0; i < n; i++) all += (double)x[i];
    *mean = n > 0 ? all / (double)n : 0;
    for (int64_t i = 0; i < n; i += block, blocks++) {
        double sum = 0;
        const int64_t end = min_i64(n, i + block);
        for (int64_t j = i; j < end; j++) sum += (double)x[j] - *mean;
        squares += sum * sum;
    }
    /* The variance of a sum is that of its blocks' sums. */
    *half = blocks > 1 ? z95 * sqrt(squares * (double)blocks / (double)(blocks - 1)) / (double)n : INFINITY;
}
