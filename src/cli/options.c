/* cli/options.c: reading options and printing their help, both from one table (options.h). Called by the commands. */
#include "cli/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const option_row *find_long(const option_row *table, const char *name, size_t n) {
    for (; table->name; table++)
        if (strlen(table->name) == n && memcmp(table->name, name, n) == 0) return table;
    return NULL;
}

static const option_row *find_short(const option_row *table, char letter) {
    for (; table->name; table++)
        if (table->letter && table->letter == letter) return table;
    return NULL;
}

/* Is the whole word an option of this table? A value that looks like one was most likely forgotten. */
static bool is_option(const option_row *table, const char *word) {
    if (word[0] != '-') return false;
    if (word[1] == '-') return word[2] && find_long(table, word + 2, strlen(word + 2));
    return word[1] && !word[2] && find_short(table, word[1]);
}

static bool read_int(const char *command, const option_row *row, const char *text) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    bool number = (*text == '-' || (*text >= '0' && *text <= '9')) && *end == '\0' && errno == 0;
    if (!number || (double)value < row->lo || (double)value > row->hi) {
        usage_error("%s: --%s %s: expected a whole number from %.0f to %.0f", command, row->name, text, row->lo,
                    row->hi);
        return false;
    }
    *(int64_t *)row->to = value;
    return true;
}

static bool read_real(const char *command, const option_row *row, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= row->lo && value <= row->hi)) {
        usage_error("%s: --%s %s: expected a number from %g to %g", command, row->name, text, row->lo, row->hi);
        return false;
    }
    *(double *)row->to = value;
    return true;
}

static bool read_value(const char *command, const option_row *row, const char *text) {
    switch (row->kind) {
    case OPTION_TEXT:
        *(const char **)row->to = text;
        return true;
    case OPTION_INT:
        return read_int(command, row, text);
    case OPTION_REAL:
        return read_real(command, row, text);
    case OPTION_FLAG:
        break;
    }
    *(bool *)row->to = true;
    return true;
}

/* One option at argv[*at]; moves *at past a value that is a word of its own. */
static bool read_option(const option_row *table, int argc, char **argv, int *at) {
    const char *command = argv[0], *word = argv[*at], *value = NULL;
    const option_row *row;
    if (word[1] == '-') {
        size_t n = strcspn(word + 2, "=");
        row = find_long(table, word + 2, n);
        if (word[2 + n] == '=') value = word + 2 + n + 1;
    } else {
        row = find_short(table, word[1]);
        if (word[2]) value = word + 2;
    }
    if (!row) {
        usage_error("%s: unknown option %s; 'ebb %s --help' lists them", command, word, command);
        return false;
    }
    if (row->kind == OPTION_FLAG) {
        if (value) usage_error("%s: --%s takes no value, but %s gives it one", command, row->name, word);
        return !value && read_value(command, row, NULL);
    }
    if (!value) {
        const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;
        if (!next || is_option(table, next)) {
            usage_error("%s: --%s needs a value (%s), but %s follows", command, row->name, row->value,
                        next ? next : "nothing");
            return false;
        }
        value = argv[++*at];
    }
    return read_value(command, row, value);
}

static void print_help(const usage_text *usage, const option_row *table) {
    printf("usage: %s\n\n%s\noptions:\n", usage->synopsis, usage->about);
    for (; table->name; table++) {
        char left[64], letter[8] = "    ";
        if (table->letter) snprintf(letter, sizeof letter, "-%c, ", table->letter);
        snprintf(left, sizeof left, "%s--%s %s", letter, table->name, table->value ? table->value : "");
        printf("  %-28s %s\n", left, table->help);
    }
    printf("  %-28s %s\n", "-h, --help", "this text");
    if (usage->notes) printf("\n%s", usage->notes);
}

options_result options_read(const usage_text *usage, const option_row *table, int argc, char **argv, int *words) {
    int n = 0;
    bool literal = false; /* after -- nothing is an option */
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!literal && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            print_help(usage, table);
            return OPTIONS_HELP;
        }
        if (!literal && strcmp(word, "--") == 0) literal = true;
        else if (!literal && word[0] == '-' && word[1]) {
            if (!read_option(table, argc, argv, &i)) return OPTIONS_BAD;
        } else if (words) argv[1 + n++] = argv[i];
        else {
            usage_error("%s: '%s' belongs to no option; 'ebb %s --help' lists them", argv[0], word, argv[0]);
            return OPTIONS_BAD;
        }
    }
    if (words) *words = n;
    return OPTIONS_OK;
}
