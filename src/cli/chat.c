/* cli/chat.c: the conversation of `ebb run` on a terminal. It lives in one sequence: a turn feeds only its own new
 * tokens, and the states and the KV cache carry the rest. */
#define _GNU_SOURCE
#include "cli/interrupt.h"
#include "cli/session.h"
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ids of a user turn and the head of the reply; after an answer, first the end of that answer, which no one has fed
 * yet. */
static ebb_status turn_ids(const session *s, const char *text, bool first, int32_t **ids, int64_t *count,
                           ebb_error *error) {
    static const char end_of_turn[] = "<|im_end|>\n";
    const ebb_tokenizer *tokenizer = ebb_model_tokenizer(s->model);
    const ebb_message message = {"user", text};
    int32_t *head = NULL, *turn = NULL;
    int64_t n_head = 0, n_turn = 0;
    ebb_status status = ebb_chat(tokenizer, &message, 1, true, &turn, &n_turn, error);
    if (!status && !first)
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

static ebb_status one_turn(session *s, const char *text, bool *first, ebb_error *error) {
    int32_t *ids = NULL;
    int64_t count = 0;
    answer a = {0};
    ebb_status status = turn_ids(s, text, *first, &ids, &count, error);
    if (!status && count > ebb_sequence_room(s->engine, s->sequence))
        status = ebb_fail(error, EBB_BAD_ARGUMENT,
                          "the conversation has room for %lld more tokens, this turn has %lld; /reset begins a new "
                          "one, --ctx N a longer one",
                          (long long)ebb_sequence_room(s->engine, s->sequence), (long long)count);
    if (!status) status = answer_run(s, ids, count, true, &a, error);
    if (!status) {
        answer_statistics(s, &a);
        *first = false;
    }
    answer_free(&a);
    free(ids);
    return status;
}

static void print_commands(void) {
    fputs("/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C ends an answer\n", stderr);
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

int chat_loop(session *s) {
    ebb_error error;
    char *line = NULL;
    size_t room = 0;
    bool first = true;
    if (session_open_engine(s, 0, &error)) return fail_with(&error);
    print_commands();
    ebb_status fatal = EBB_OK;
    while (!fatal && read_line(&line, &room)) {
        if (strcmp(line, "/quit") == 0) break;
        if (line[0] == '\0') continue;
        if (strcmp(line, "/reset") == 0) {
            fatal = session_reset(s, &error);
            first = true;
        } else if (line[0] == '/') print_commands();
        else {
            ebb_status status = one_turn(s, line, &first, &error);
            if (status == EBB_BAD_ARGUMENT) fprintf(stderr, "ebb: %s\n", error.text); /* this turn only */
            else fatal = status;
        }
    }
    free(line);
    return fatal ? fail_with(&error) : EXIT_OK;
}
