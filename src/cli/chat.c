/* cli/chat.c: the conversation of `ebb run` on a terminal. It lives in one sequence: a turn feeds only its own new
 * tokens, and the states and the KV cache carry the rest; but where the template writes earlier turns otherwise
 * (thoughts that it leaves out), the conversation is processed again. */
#define _GNU_SOURCE
#include "cli/interrupt.h"
#include "cli/session.h"
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TEMPLATE_LIMIT = 16 << 20 };

void talk_forget(chat_talk *talk) {
    for (int32_t i = 0; i < talk->n; i++) free((char *)talk->messages[i].content); /* add_message made it */
    free(talk->messages);
    free(talk->said);
    *talk = (chat_talk){.jinja = talk->jinja};
}

void talk_close(chat_talk *talk) {
    talk_forget(talk);
    free(talk->jinja);
}

static void drop_message(chat_talk *talk) { free((char *)talk->messages[--talk->n].content); }

/* `role` is a literal, `content` is copied. */
static ebb_status add_message(chat_talk *talk, const char *role, const char *content, ebb_error *error) {
    ebb_message *more = realloc(talk->messages, ((size_t)talk->n + 1) * sizeof *more);
    if (more) talk->messages = more;
    char *copy = more ? strdup(content) : NULL;
    if (!copy) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the conversation");
    talk->messages[talk->n++] = (ebb_message){role, copy};
    return EBB_OK;
}

/* The template of --chat-template, and the time that a template may ask for: one for all turns. */
static ebb_status make_call(session *s, ebb_chat_call *call, ebb_error *error) {
    static const char *const names[] = {"chatml", "llama3", "glm4"};
    const char *asked = s->options.chat_template;
    const time_t now = time(NULL);
    struct tm local;
    size_t bytes;
    bool named = false;
    for (int32_t i = 0; asked && i < COUNT(names); i++) named = named || !strcmp(asked, names[i]);
    if (asked && !named && !s->talk.jinja) {
        ebb_status status = read_file(asked, TEMPLATE_LIMIT, &s->talk.jinja, &bytes, error);
        if (status) return status;
        if (strlen(s->talk.jinja) != bytes)
            return ebb_fail(error, EBB_BAD_FILE, "%s holds a zero byte, a chat template was expected", asked);
    }
    if (!s->talk.now && localtime_r(&now, &local)) s->talk.now = (int64_t)now + local.tm_gmtoff;
    *call = (ebb_chat_call){.size = sizeof *call,
                            .messages = s->talk.messages,
                            .n_messages = s->talk.n,
                            .variables = s->options.no_think ? "{\"enable_thinking\": false}" : s->options.chat_vars,
                            .jinja = named ? asked : s->talk.jinja,
                            .now = s->talk.now,
                            .reply = true,
                            .before = s->talk.said,
                            .n_before = s->talk.n_said};
    return EBB_OK;
}

/* Does the template write the conversation so that it begins with what the sequence holds? Some write a newline before
 * an answer that the model wrote itself: then the answer without blanks at its ends is the one that is meant. */
static ebb_status next_ids(session *s, ebb_chat_call *call, int32_t **ids, int64_t *count, bool *goes_on,
                           ebb_error *error) {
    static const char blanks[] = " \t\r\n";
    const ebb_tokenizer *tokenizer = ebb_model_tokenizer(s->model);
    ebb_status status = ebb_chat_ids(tokenizer, call, ids, count, goes_on, error);
    if (status || *goes_on || !s->begun || s->talk.n < 2) return status;
    ebb_message *last = &s->talk.messages[s->talk.n - 2];
    const char *kept = last->content, *from = kept + strspn(kept, blanks);
    size_t n = strlen(from);
    while (n > 0 && strchr(blanks, from[n - 1])) n--;
    char *bare = strndup(from, n);
    int32_t *other = NULL;
    int64_t n_other;
    if (!bare) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the conversation");
    last->content = bare;
    status = ebb_chat_ids(tokenizer, call, &other, &n_other, goes_on, error);
    const bool better = !status && *goes_on;
    if (!better) last->content = kept;
    free(better ? (char *)kept : bare);
    free(better ? *ids : other);
    if (better) *ids = other, *count = n_other;
    return status;
}

static ebb_status turn_of_all(session *s, const char *text, int32_t **ids, int64_t *count, bool *again,
                              ebb_error *error) {
    ebb_chat_call call;
    bool goes_on = false;
    ebb_status status = add_message(&s->talk, "user", text, error);
    if (status) return status;
    status = make_call(s, &call, error);
    if (!status) status = next_ids(s, &call, ids, count, &goes_on, error);
    if (status) drop_message(&s->talk);
    *again = s->begun && !goes_on;
    return status;
}

ebb_status chat_turn(session *s, const char *text, int32_t **ids, int64_t *count, bool *again, ebb_error *error) {
    const ebb_message message = {"user", text};
    ebb_chat_call call;
    *ids = NULL, *count = 0;
    *again = false;
    if (!s->begun || s->talk.n) return turn_of_all(s, text, ids, count, again, error);
    ebb_status status = make_call(s, &call, error);
    call.messages = &message, call.n_messages = 1;
    return status ? status : ebb_chat_after(ebb_model_tokenizer(s->model), &call, ids, count, error);
}

/* The sequence holds the conversation up to here, as its template writes it, and the answer. */
static ebb_status keep_answer(session *s, const answer *a, ebb_error *error) {
    ebb_chat_call call;
    char *text = NULL;
    size_t n = 0;
    if (!s->talk.n) return EBB_OK;
    ebb_status status = make_call(s, &call, error);
    if (!status) status = ebb_chat_text(ebb_model_tokenizer(s->model), &call, &text, &n, error);
    if (status) return status;
    char *said = realloc(text, n + a->bytes + 1);
    if (!said) {
        free(text);
        return ebb_fail(error, EBB_NO_MEMORY, "no memory for the conversation");
    }
    memcpy(said + n, a->text, a->bytes + 1);
    free(s->talk.said);
    s->talk.said = said, s->talk.n_said = n + a->bytes;
    return add_message(&s->talk, "assistant", a->text, error);
}

/* Room for the turn; where the conversation has to be processed again, in a sequence that is empty then. */
static ebb_status make_way(session *s, int64_t count, bool again, ebb_error *error) {
    const int64_t held = again ? ebb_sequence_position(s->engine, s->sequence) : 0;
    const int64_t room = ebb_sequence_room(s->engine, s->sequence) + held;
    if (count > room)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the conversation has room for %lld more tokens, this turn has %lld; /reset begins a new "
                        "one, --ctx N a longer one",
                        (long long)room, (long long)count);
    if (!again) return EBB_OK;
    fprintf(stderr, "the chat template writes earlier turns otherwise now: all %lld tokens are processed again\n",
            (long long)count);
    return session_reset(s, error);
}

static ebb_status one_turn(session *s, const char *text, ebb_error *error) {
    int32_t *ids = NULL;
    int64_t count = 0;
    bool again;
    answer a = {0};
    ebb_status status = chat_turn(s, text, &ids, &count, &again, error);
    const bool taken = !status && s->talk.n > 0;
    if (!status) status = make_way(s, count, again, error);
    if (status && taken) drop_message(&s->talk);
    if (!status) status = answer_run(s, ids, count, true, &a, error);
    if (!status) {
        answer_statistics(s, &a);
        s->begun = true;
        status = keep_answer(s, &a, error);
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
    else if (from && !(status = session_load(s, from, &error))) talk_forget(&s->talk);
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
        if (strcmp(line, "/reset") == 0) {
            talk_forget(&s->talk);
            fatal = session_reset(s, &error);
        } else if (keep_or_take(s, line)) continue;
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
