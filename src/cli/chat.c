/* cli/chat.c: the conversation of `ebb run` on a terminal. It lives in one sequence: a turn feeds only its own new
 * tokens, and the states and the KV cache carry the rest. */
#define _GNU_SOURCE
#include "cli/interrupt.h"
#include "cli/session.h"
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ebb_status chat_turn(const session *s, const char *text, int32_t **ids, int64_t *count, ebb_error *error) {
    static const char end_of_turn[] = "<|im_end|>\n";
    const ebb_tokenizer *tokenizer = ebb_model_tokenizer(s->model);
    const ebb_message message = {"user", text};
    int32_t *head = NULL, *turn = NULL;
    int64_t n_head = 0, n_turn = 0;
    ebb_status status = ebb_chat(tokenizer, &message, 1, true, &turn, &n_turn, error);
    if (!status && s->begun)
        status = ebb_tokenize(tokenizer, end_of_turn, strlen(end_of_turn), true, &head, &n_head, error);
    int32_t *all = status ? NULL : malloc((size_t)(n_head + n_turn) * sizeof *all);
    if (!status && !all) status = ebb_fail(error, EBB_NO_MEMORY, "no memory for the turn");
    if (!status) {
        if (n_head) memcpy(all, head, (size_t)n_head * sizeof *all);
        memcpy(all + n_head, turn, (size_t)n_turn * sizeof *all);
        *ids = all;
        *count = n_head + n_turn;
    }
    free(head), free(turn);
    return status;
}

static ebb_status one_turn(session *s, const char *text, ebb_error *error) {
    int32_t *ids = NULL;
    int64_t count = 0;
    answer a = {0};
    ebb_status status = chat_turn(s, text, &ids, &count, error);
    if (!status && count > ebb_sequence_room(s->engine, s->sequence))
        status = ebb_fail(error, EBB_BAD_ARGUMENT,
                          "the conversation has room for %lld more tokens, this turn has %lld; /reset begins a new "
                          "one, --ctx N a longer one",
                          (long long)ebb_sequence_room(s->engine, s->sequence), (long long)count);
    if (!status) status = answer_run(s, ids, count, true, &a, error);
    if (!status) {
        answer_statistics(s, &a);
        s->begun = true;
    }
    answer_free(&a);
    free(ids);
    return status;
}

static void print_commands(void) {
    fputs("/save FILE keeps the conversation, /load FILE goes on with one that was kept, /reset forgets it,\n"
          "/quit or Ctrl-D leaves, Ctrl-C ends an answer\n",
          stderr);
}

/* A line from the terminal without its newline; false at its end, or when Ctrl-C was pressed. */
static bool read_line(char **line, size_t *room) {
    fputs("> ", stderr);
    fflush(stderr);
    interrupt_clear();
    ssize_t n = getline(line, room, stdin);
    if (n < 0) {
        fputc('\n', stderr);
        return false;
    }
    if (n > 0 && (*line)[n - 1] == '\n') (*line)[n - 1] = '\0';
    return true;
}

/* Where the argument of command `name` begins in the line; NULL: another command. */
static const char *argument(const char *line, const char *name) {
    size_t n = strlen(name);
    if (strncmp(line, name, n) != 0 || line[n] != ' ') return NULL;
    for (line += n; *line == ' '; line++) {
    }
    return *line ? line : NULL;
}

/* /save FILE and /load FILE; false: the line is neither. What goes wrong is told, and the conversation goes on. */
static bool keep_or_take(session *s, const char *line) {
    const char *to = argument(line, "/save"), *from = argument(line, "/load");
    ebb_error error;
    ebb_status status = EBB_OK;
    if (to) status = ebb_sequence_save(s->engine, s->sequence, to, &error);
    else if (from) status = session_load(s, from, &error);
    if (status) fprintf(stderr, "ebb: %s\n", error.text);
    return to || from;
}

int chat_loop(session *s) {
    ebb_error error;
    char *line = NULL;
    size_t room = 0;
    s->slots = 2; /* the second one is for /load: what fails leaves the conversation as it is */
    if (session_open_engine(s, 0, &error)) return fail_with(&error);
    print_commands();
    ebb_status fatal = EBB_OK;
    while (!fatal && read_line(&line, &room)) {
        if (strcmp(line, "/quit") == 0) break;
        if (line[0] == '\0') continue;
        if (strcmp(line, "/reset") == 0) fatal = session_reset(s, &error);
        else if (keep_or_take(s, line)) continue;
        else if (line[0] == '/') print_commands();
        else {
            ebb_status status = one_turn(s, line, &error);
            if (status == EBB_BAD_ARGUMENT) fprintf(stderr, "ebb: %s\n", error.text); /* this turn only */
            else fatal = status;
        }
    }
    free(line);
    if (!fatal) fatal = session_save(s, &error);
    return fatal ? fail_with(&error) : EXIT_OK;
}
