/* cli/bench_serve.c: `ebb bench serve`: load on a server that runs: conversations of several turns, from a file or made
 * of a text, and what their clients see: time to the first token, time of the others, throughput, prompt tokens that
 * the prefix cache held. Every client is a thread; which conversation has its next turn is drawn, so that a prefix has
 * to outlive the turns of others. */
#define _GNU_SOURCE
#include "cli/interrupt.h"
#include "cli/json_out.h"
#include "cli/options.h"
#include "core/core.h"
#include "server/client.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_options {
    const char *url, *key, *file, *text;
    int64_t chats, turns, clients, first_bytes, turn_bytes, tokens, seed;
    double temperature, patience;
    bool rounds, depth, natural, json;
} bench_options;

static const usage_text usage = {
    "ebb bench serve [--url URL] (-f CHATS.jsonl | --text FILE) [options]",
    "Load a server that runs with conversations of several turns, and say what its clients see.\n"
    "-f: a line a conversation, {\"messages\": [{\"role\": \"user\", \"content\": ...}, ...]}: its user messages are "
    "the\n"
    "turns, its system message begins it; the answers are the server's own.\n"
    "--text: conversations are made of pieces of a text file.\n",
    "Answers are as long as -n says (their end is ignored) unless --natural. The hit rate is by tokens: prompt tokens\n"
    "that the prefix cache held, of all prompt tokens.\n",
};

static int read_options(bench_options *o, int argc, char **argv, bool *help) {
    const option_row table[] = {
        {"url", 0, OPTION_TEXT, &o->url, 0, 0, "URL", "the server, http://127.0.0.1:8080"},
        {"api-key", 0, OPTION_TEXT, &o->key, 0, 0, "KEY", "its key (the environment's EBB_API_KEY)"},
        {"file", 'f', OPTION_TEXT, &o->file, 0, 0, "FILE", "conversations as JSON lines"},
        {"text", 0, OPTION_TEXT, &o->text, 0, 0, "FILE", "a text to make conversations of"},
        {"chats", 0, OPTION_INT, &o->chats, 1, 1 << 20, "N", "conversations, 256; of a file at most as many as it has"},
        {"turns", 0, OPTION_INT, &o->turns, 1, 1000, "N", "turns of each, 4"},
        {"clients", 'c', OPTION_INT, &o->clients, 1, 1024, "N", "requests at a time, 8"},
        {"first-bytes", 0, OPTION_INT, &o->first_bytes, 1, 1 << 26, "N",
         "bytes of the first user message of --text, 4096"},
        {"turn-bytes", 0, OPTION_INT, &o->turn_bytes, 1, 1 << 26, "N", "bytes of the others, 512"},
        {"tokens", 'n', OPTION_INT, &o->tokens, 1, 1 << 20, "N", "tokens of an answer, 64"},
        {"temp", 0, OPTION_REAL, &o->temperature, 0, 2, "T", "temperature, 0"},
        {"seed", 0, OPTION_INT, &o->seed, 0, 1e15, "N", "of the pieces of --text and of sampling, 0"},
        {"rounds", 0, OPTION_FLAG, &o->rounds, 0, 0, NULL,
         "all conversations in turn, instead of drawn: the hardest for a cache"},
        {"depth", 0, OPTION_FLAG, &o->depth, 0, 0, NULL, "a client ends its conversation before it begins another"},
        {"natural", 0, OPTION_FLAG, &o->natural, 0, 0, NULL, "answers may end before -n tokens"},
        {"patience", 0, OPTION_REAL, &o->patience, 1, 1e6, "S", "longest silence of the server in seconds, 600"},
        {"json", 0, OPTION_FLAG, &o->json, 0, 0, NULL, "one JSON object instead of the table"},
        {0},
    };
    const options_result result = options_read(&usage, table, argc, argv, NULL);
    *help = result == OPTIONS_HELP;
    return result == OPTIONS_BAD ? EXIT_USAGE : EXIT_OK;
}

/* ---- conversations ---- */

typedef struct conversation {
    json_t *messages; /* said so far */
    json_t *users;    /* texts of the turns to come and past */
    int64_t turn;
} conversation;

/* What one turn took. */
typedef struct sample {
    double first, rest; /* seconds to the first token, and from it to the last */
    int64_t tokens, prompt, cached;
    int64_t turn;
} sample;

typedef struct bench {
    bench_options o;
    char host[64];
    int32_t port;
    conversation *all;
    int64_t n;

    pthread_mutex_t lock;
    int64_t *queue; /* [n * turns]: conversations whose next turn may begin */
    int64_t first, last, under_way;
    uint64_t draw;
    pthread_cond_t changed;
    sample *samples; /* [n * turns] */
    int64_t n_samples, errors;
    ebb_error error; /* the first one */
} bench;

static ebb_status no_memory(ebb_error *error) {
    return ebb_fail(error, EBB_NO_MEMORY, "no memory for the conversations");
}

/* A piece of the text that begins and ends where a word does, and is UTF-8 where the text is. */
static json_t *piece(const char *text, size_t bytes, size_t wanted, uint64_t draw) {
    if (wanted > bytes) wanted = bytes;
    size_t at = bytes > wanted ? (size_t)(draw % (bytes - wanted)) : 0, end = at + wanted;
    while (at > 0 && text[at - 1] != ' ' && text[at - 1] != '\n') at--;
    while (end > at + 1 && end < bytes && text[end] != ' ' && text[end] != '\n') end--;
    return json_stringn(text + at, end - at);
}

static ebb_status make_conversations(bench *b, ebb_error *error) {
    const bench_options *o = &b->o;
    char *text = NULL;
    size_t bytes;
    ebb_status status = read_file(o->text, (size_t)1 << 30, &text, &bytes, error);
    if (status) return status;
    uint64_t draw = mix64((uint64_t)o->seed);
    for (b->n = 0; b->n < o->chats && !status; b->n++) {
        conversation *c = &b->all[b->n];
        c->messages = json_array(), c->users = json_array();
        for (int64_t t = 0; t < o->turns && !status; t++) {
            json_t *own = piece(text, bytes, (size_t)(t ? o->turn_bytes : o->first_bytes), draw = mix64(draw + 1));
            if (!own) status = ebb_fail(error, EBB_BAD_FILE, "%s is not UTF-8", o->text);
            else if (json_array_append_new(c->users, own)) status = no_memory(error);
        }
    }
    free(text);
    return status;
}

static ebb_status read_conversation(const bench *b, const char *line, int64_t number, conversation *c,
                                    ebb_error *error) {
    json_error_t why;
    json_t *root = json_loads(line, 0, &why), *messages = json_object_get(root, "messages"), *one;
    size_t i;
    c->messages = json_array(), c->users = json_array();
    json_array_foreach(messages, i, one) {
        const char *role = json_string_value(json_object_get(one, "role"));
        json_t *content = json_object_get(one, "content");
        if (role && strcmp(role, "system") == 0) json_array_append(c->messages, one);
        if (role && strcmp(role, "user") == 0 && (int64_t)json_array_size(c->users) < b->o.turns)
            json_array_append(c->users, content);
    }
    json_decref(root);
    if (json_array_size(c->users)) return EBB_OK;
    return ebb_fail(error, EBB_BAD_FILE, "%s line %lld: expected {\"messages\": [...]} with a user message", b->o.file,
                    (long long)number);
}

static ebb_status read_conversations(bench *b, ebb_error *error) {
    char *text = NULL;
    size_t bytes;
    int64_t number = 0;
    ebb_status status = read_file(b->o.file, (size_t)1 << 30, &text, &bytes, error);
    for (char *line = text, *rest; line && *line && b->n < b->o.chats && !status; line = rest) {
        const size_t n = strcspn(line, "\n");
        rest = line + n + (line[n] == '\n');
        line[n] = '\0';
        number++;
        if (line[strspn(line, " \t\r")]) status = read_conversation(b, line, number, &b->all[b->n++], error);
    }
    free(text);
    if (!status && !b->n) status = ebb_fail(error, EBB_BAD_FILE, "%s has no conversation", b->o.file);
    return status;
}

static ebb_status open_bench(bench *b, ebb_error *error) {
    const size_t most = (size_t)b->o.chats * (size_t)b->o.turns;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    b->all = calloc((size_t)b->o.chats, sizeof *b->all);
    b->queue = calloc(most, sizeof *b->queue);
    b->samples = calloc(most, sizeof *b->samples);
    if (!b->all || !b->queue || !b->samples) return no_memory(error);
    b->draw = mix64((uint64_t)b->o.seed + 1);
    ebb_status status = client_url(b->o.url, b->host, &b->port, error);
    if (!status) status = b->o.file ? read_conversations(b, error) : make_conversations(b, error);
    for (int64_t i = 0; i < b->n && !status; i++) b->queue[b->last++] = i;
    return status;
}

static void close_bench(bench *b) {
    for (int64_t i = 0; b->all && i < b->n; i++) json_decref(b->all[i].messages), json_decref(b->all[i].users);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->changed);
    free(b->all), free(b->queue), free(b->samples);
}

/* ---- a turn ---- */

static char *turn_body(const bench *b, const conversation *c) {
    json_t *root = json_pack("{s:O, s:b, s:{s:b}, s:I, s:f, s:I, s:b}", "messages", c->messages, "stream", 1,
                             "stream_options", "include_usage", 1, "max_tokens", (json_int_t)b->o.tokens, "temperature",
                             b->o.temperature, "seed", (json_int_t)b->o.seed, "ignore_eos", !b->o.natural);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* An event of the answer: its text is kept, times and usage are noted. */
static ebb_status take_event(const json_t *e, double now, text_buffer *said, double *first, double *last, sample *s,
                             ebb_error *error) {
    const json_t *failed = json_object_get(e, "error"), *usage_object = json_object_get(e, "usage");
    const json_t *delta = json_object_get(json_array_get(json_object_get(e, "choices"), 0), "delta");
    const char *content = json_string_value(json_object_get(delta, "content"));
    if (failed)
        return ebb_fail(error, EBB_BAD_FILE, "the server: %.180s",
                        json_string_value(json_object_get(failed, "message")));
    if (delta) {
        if (*first == 0) *first = now;
        *last = now;
    }
    if (content && !text_add(said, content, strlen(content))) return no_memory(error);
    if (json_is_object(usage_object)) {
        s->tokens = json_integer_value(json_object_get(usage_object, "completion_tokens"));
        s->prompt = json_integer_value(json_object_get(usage_object, "prompt_tokens"));
        s->cached = json_integer_value(
            json_object_get(json_object_get(usage_object, "prompt_tokens_details"), "cached_tokens"));
    }
    return EBB_OK;
}

static ebb_status read_answer(http_client *c, double begun, text_buffer *said, sample *s, ebb_error *error) {
    text_buffer line = {0};
    double first = 0, last = 0;
    ebb_status status = EBB_OK;
    error->text[0] = '\0';
    while (!status && client_line(c, &line, error)) {
        json_t *e = client_event(&line);
        if (e) status = take_event(e, seconds_now(), said, &first, &last, s, error);
        json_decref(e);
    }
    text_free(&line);
    if (!status && error->text[0]) status = error->code;
    if (!status && (first == 0 || !s->tokens))
        status = ebb_fail(error, EBB_BAD_FILE, "the server gave an empty answer");
    s->first = first - begun, s->rest = last - first;
    return status;
}

static ebb_status run_turn(bench *b, conversation *c, sample *s, ebb_error *error) {
    text_buffer said = {0}, refusal = {0};
    http_client client = {.fd = -1};
    json_t *user = json_pack("{s:s, s:O}", "role", "user", "content", json_array_get(c->users, (size_t)c->turn));
    if (!user || json_array_append_new(c->messages, user)) return no_memory(error);
    char *body = turn_body(b, c);
    if (!body) return no_memory(error);
    const double begun = seconds_now();
    ebb_status status =
        client_ask(&client, b->host, b->port, "/v1/chat/completions", b->o.key, body, b->o.patience, error);
    if (!status && client.status != 200) {
        client_rest(&client, &refusal, error);
        status = ebb_fail(error, EBB_BAD_FILE, "the server answered %d: %.150s", client.status,
                          refusal.data ? refusal.data : "");
    } else if (!status) status = read_answer(&client, begun, &said, s, error);
    client_close(&client);
    s->turn = c->turn;
    if (!status) {
        json_t *own = json_pack("{s:s, s:s%}", "role", "assistant", "content", said.data ? said.data : "", said.bytes);
        if (!own || json_array_append_new(c->messages, own)) status = no_memory(error);
    }
    free(body);
    text_free(&said), text_free(&refusal);
    return status;
}

/* ---- clients ---- */

/* The next conversation with a turn to do; -1: there will be none. */
static int64_t next_conversation(bench *b) {
    int64_t number = -1;
    pthread_mutex_lock(&b->lock);
    while (b->first == b->last && b->under_way && !b->errors) pthread_cond_wait(&b->changed, &b->lock);
    if (b->first < b->last && !b->errors && !interrupted()) {
        const int64_t left = b->last - b->first;
        const int64_t at = b->o.rounds || b->o.depth ? 0 : (int64_t)(mix64(b->draw++) % (uint64_t)left);
        const int64_t drawn = b->queue[b->first + at];
        b->queue[b->first + at] = b->queue[b->first];
        b->queue[b->first] = drawn;
        number = b->queue[b->first++];
        b->under_way++;
    }
    pthread_mutex_unlock(&b->lock);
    return number;
}

static void end_turn(bench *b, int64_t number, bool more, const sample *s, const ebb_error *failed) {
    pthread_mutex_lock(&b->lock);
    b->under_way--;
    if (failed) {
        if (!b->errors++) b->error = *failed;
    } else b->samples[b->n_samples++] = *s;
    if (more) b->queue[b->last++] = number;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void *run_client(void *ctx) {
    bench *b = ctx;
    for (int64_t number; (number = next_conversation(b)) >= 0;) {
        conversation *c = &b->all[number];
        bool failed = false, more;
        do {
            sample s = {0};
            ebb_error error;
            failed = run_turn(b, c, &s, &error) != EBB_OK;
            c->turn++;
            more = !failed && c->turn < (int64_t)json_array_size(c->users);
            const bool stays = more && b->o.depth && !interrupted();
            if (stays) {
                pthread_mutex_lock(&b->lock);
                b->samples[b->n_samples++] = s;
                pthread_mutex_unlock(&b->lock);
                continue;
            }
            end_turn(b, number, more && !b->o.depth, &s, failed ? &error : NULL);
            more = false;
        } while (more);
    }
    return NULL;
}

static ebb_status run_clients(bench *b, double *seconds, ebb_error *error) {
    pthread_t threads[1024];
    int64_t n = 0;
    const double begun = seconds_now();
    while (n < b->o.clients && pthread_create(&threads[n], NULL, run_client, b) == 0) n++;
    for (int64_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
    *seconds = seconds_now() - begun;
    if (!n) return ebb_fail(error, EBB_NO_MEMORY, "no thread of a client could be started");
    if (b->errors) *error = b->error;
    return b->errors ? b->error.code : EBB_OK;
}

/* ---- numbers ---- */

typedef struct spread {
    double mean, median, p95, most;
} spread;

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The smallest value that a share of all do not exceed. */
static double share(const double *sorted, int64_t n, double of) {
    int64_t at = (int64_t)ceil(of * (double)n) - 1;
    return sorted[at < 0 ? 0 : at];
}

static spread spread_of(double *values, int64_t n) {
    double sum = 0;
    if (!n) return (spread){0};
    qsort(values, (size_t)n, sizeof *values, by_size);
    for (int64_t i = 0; i < n; i++) sum += values[i];
    return (spread){sum / (double)n, share(values, n, 0.5), share(values, n, 0.95), values[n - 1]};
}

typedef struct summary {
    spread first, later, next; /* seconds: to the first token, the same from turn 2 on, between tokens */
    int64_t requests, answer, prompt, cached, later_prompt, later_cached;
    double seconds;
} summary;

static ebb_status sum_up(const bench *b, double seconds, summary *u, ebb_error *error) {
    double *first = malloc((size_t)(b->n_samples + 1) * sizeof *first),
           *later = malloc((size_t)(b->n_samples + 1) * sizeof *later);
    double *next = malloc((size_t)(b->n_samples + 1) * sizeof *next);
    int64_t n_later = 0, n_next = 0;
    *u = (summary){.requests = b->n_samples, .seconds = seconds};
    for (int64_t i = 0; i < b->n_samples && first && later && next; i++) {
        const sample *s = &b->samples[i];
        first[i] = s->first;
        if (s->turn) later[n_later++] = s->first, u->later_prompt += s->prompt, u->later_cached += s->cached;
        if (s->tokens > 1) next[n_next++] = s->rest / (double)(s->tokens - 1);
        u->answer += s->tokens, u->prompt += s->prompt, u->cached += s->cached;
    }
    const bool good = first && later && next;
    if (good)
        u->first = spread_of(first, b->n_samples), u->later = spread_of(later, n_later),
        u->next = spread_of(next, n_next);
    free(first), free(later), free(next);
    return good ? EBB_OK : no_memory(error);
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

static void print_table(const bench *b, const summary *u) {
    const struct {
        const char *name;
        const spread *s;
    } rows[] = {{"first token", &u->first}, {"  from turn 2 on", &u->later}, {"between tokens", &u->next}};
    printf("%lld conversations, %lld requests, %lld clients: %.2f s\n\n", (long long)b->n, (long long)u->requests,
           (long long)b->o.clients, u->seconds);
    printf("%-20s %10s %10s %10s %10s\n", "milliseconds", "mean", "median", "P95", "most");
    for (int32_t i = 0; i < COUNT(rows); i++)
        printf("%-20s %10.2f %10.2f %10.2f %10.2f\n", rows[i].name, 1e3 * rows[i].s->mean, 1e3 * rows[i].s->median,
               1e3 * rows[i].s->p95, 1e3 * rows[i].s->most);
    printf("\nanswers %.1f tokens/s, with prompts %.1f tokens/s, %.2f requests/s\n",
           ratio((double)u->answer, u->seconds), ratio((double)(u->answer + u->prompt), u->seconds),
           ratio((double)u->requests, u->seconds));
    printf("prompt tokens %lld, of which cached %lld: hit rate %.1f %% (%.1f %% from turn 2 on)\n",
           (long long)u->prompt, (long long)u->cached, 100 * ratio((double)u->cached, (double)u->prompt),
           100 * ratio((double)u->later_cached, (double)u->later_prompt));
}

static json_t *spread_json(const spread *s) {
    return json_pack("{s:f, s:f, s:f, s:f}", "mean", s->mean, "median", s->median, "p95", s->p95, "most", s->most);
}

static ebb_status print_json(const bench *b, const summary *u, ebb_error *error) {
    json_t *root =
        json_pack("{s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:f, s:f}", "conversations", (json_int_t)b->n, "requests",
                  (json_int_t)u->requests, "clients", (json_int_t)b->o.clients, "seconds", u->seconds, "answer_tokens",
                  (json_int_t)u->answer, "prompt_tokens", (json_int_t)u->prompt, "cached_tokens", (json_int_t)u->cached,
                  "hit_rate", ratio((double)u->cached, (double)u->prompt), "answer_tokens_per_second",
                  ratio((double)u->answer, u->seconds));
    root = json_with(root, "ttft_seconds", spread_json(&u->first));
    root = json_with(root, "ttft_later_seconds", spread_json(&u->later));
    root = json_with(root, "tpot_seconds", spread_json(&u->next));
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!text) return ebb_fail(error, EBB_NO_MEMORY, "no memory for the JSON line");
    puts(text);
    free(text);
    return EBB_OK;
}

/* ---- the command ---- */

static int run(bench *b) {
    ebb_error error;
    double seconds = 0;
    summary u;
    ebb_status status = open_bench(b, &error);
    if (!status) status = run_clients(b, &seconds, &error);
    if (!status && interrupted())
        status = ebb_fail(&error, EBB_INTERRUPTED, "interrupted after %lld requests", (long long)b->n_samples);
    if (!status) status = sum_up(b, seconds, &u, &error);
    if (!status && b->o.json) status = print_json(b, &u, &error);
    else if (!status) print_table(b, &u);
    close_bench(b);
    return status ? fail_with(&error) : EXIT_OK;
}

int bench_command(int argc, char **argv) {
    bool help;
    const char *key = getenv("EBB_API_KEY");
    bench b = {.o = {.url = "http://127.0.0.1:8080",
                     .key = key && *key ? key : NULL,
                     .chats = 256,
                     .turns = 4,
                     .clients = 8,
                     .first_bytes = 4096,
                     .turn_bytes = 512,
                     .tokens = 64,
                     .patience = 600}};
    const bool named = argc > 1 && strcmp(argv[1], "serve") == 0;
    if (!named && argc > 1 && strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "-h") != 0)
        return usage_error("bench: '%s' is no bench, expected serve", argv[1]);
    if (!named && argc < 2) return usage_error("bench: no bench named, expected serve");
    const int code = read_options(&b.o, argc - named, argv + named, &help);
    if (code || help) return code;
    if (!b.o.file == !b.o.text)
        return usage_error("bench: conversations come of -f FILE or of --text FILE: one of the two");
    interrupt_watch(true);
    signal(SIGPIPE, SIG_IGN);
    return run(&b);
}
