/* server/grammar.c: grammars over bytes (grammar.h). Called by schema.c, mask.c and the server's logits hook. */
#include "server/grammar.h"
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

/* The kind of an element is in its two highest bits. */
#define END 0u
#define BYTE ((uint32_t)1 << 30)
#define SET ((uint32_t)2 << 30)
#define RULE ((uint32_t)3 << 30)
#define KIND RULE
enum { MOST_ELEMENTS = 1 << 20, MOST_NODES = 1 << 20, MOST_STATES = 1 << 16, MOST_STACKS = 1024, EMPTY = 0 };

/* A growing array of int32, uint32 or larger cells. */
typedef struct list {
    void *data;
    int32_t n, room;
} list;

static bool list_room(list *l, int32_t more, size_t cell) {
    if (l->n + more <= l->room) return true;
    const int32_t room = 2 * (l->n + more) + 16;
    void *data = realloc(l->data, (size_t)room * cell);
    if (!data) return false;
    l->data = data, l->room = room;
    return true;
}

/* A stack: the element that comes next, over the stack that follows it. Node 0 is the empty one: the text is whole. */
typedef struct node {
    int32_t at, below, depth, chain;
} node;

/* A state: stacks[first .. first + n - 1], ascending; `next` is [256] of states or UNKNOWN, made when first asked. */
typedef struct grammar_state {
    int32_t first, n, chain;
    int32_t *next;
} grammar_state;

enum { UNKNOWN = -3, BUCKETS = 4096 };

struct grammar {
    bool failed;
    list elements;  /* uint32: alternatives, each ended by END */
    list rules;     /* list of int32: where the alternatives of each begin */
    list sets;      /* [32] bytes each */
    list nodes;     /* node */
    list states;    /* grammar_state */
    list stacks;    /* int32: nodes of the states */
    list collected; /* int32: nodes of the state that is being made */
    int32_t start;
    int32_t node_bucket[BUCKETS], state_bucket[BUCKETS];
};

static uint32_t element_at(const grammar *g, int32_t i) { return ((const uint32_t *)g->elements.data)[i]; }
static node *node_at(const grammar *g, int32_t i) { return (node *)g->nodes.data + i; }
static grammar_state *state_at(const grammar *g, int32_t i) { return (grammar_state *)g->states.data + i; }
static list *rule_at(const grammar *g, int32_t i) { return (list *)g->rules.data + i; }

/* ---- building ---- */

grammar *grammar_new(void) {
    grammar *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    for (int32_t i = 0; i < BUCKETS; i++) g->node_bucket[i] = g->state_bucket[i] = -1;
    g->start = GRAMMAR_DEAD;
    if (!list_room(&g->nodes, 1, sizeof(node))) {
        free(g);
        return NULL;
    }
    *node_at(g, g->nodes.n++) = (node){-1, -1, 0, -1};
    return g;
}

void grammar_free(grammar *g) {
    if (!g) return;
    for (int32_t i = 0; i < g->rules.n; i++) free(rule_at(g, i)->data);
    for (int32_t i = 0; i < g->states.n; i++) free(state_at(g, i)->next);
    free(g->elements.data), free(g->rules.data), free(g->sets.data), free(g->nodes.data);
    free(g->states.data), free(g->stacks.data), free(g->collected.data);
    free(g);
}

int32_t grammar_rule(grammar *g) {
    if (g->rules.n >= MOST_ELEMENTS || !list_room(&g->rules, 1, sizeof(list))) {
        g->failed = true;
        return 0;
    }
    *rule_at(g, g->rules.n) = (list){0};
    return g->rules.n++;
}

grammar_element grammar_byte(uint8_t byte) { return BYTE | byte; }
grammar_element grammar_of(int32_t rule) { return RULE | (uint32_t)rule; }

grammar_element grammar_set(grammar *g, const uint8_t bits[32]) {
    for (int32_t i = 0; i < g->sets.n; i++)
        if (memcmp((uint8_t *)g->sets.data + 32 * i, bits, 32) == 0) return SET | (uint32_t)i;
    if (!list_room(&g->sets, 1, 32)) {
        g->failed = true;
        return BYTE;
    }
    memcpy((uint8_t *)g->sets.data + 32 * g->sets.n, bits, 32);
    return SET | (uint32_t)g->sets.n++;
}

void grammar_alternative(grammar *g, int32_t rule, const grammar_element *elements, int32_t n) {
    if (g->failed || rule < 0 || rule >= g->rules.n) {
        g->failed = true;
        return;
    }
    list *alternatives = rule_at(g, rule);
    if (n > GRAMMAR_ALTERNATIVE || g->elements.n + n + 1 > MOST_ELEMENTS ||
        !list_room(&g->elements, n + 1, sizeof(uint32_t)) || !list_room(alternatives, 1, sizeof(int32_t))) {
        g->failed = true;
        return;
    }
    ((int32_t *)alternatives->data)[alternatives->n++] = g->elements.n;
    uint32_t *to = (uint32_t *)g->elements.data + g->elements.n;
    if (n) memcpy(to, elements, (size_t)n * sizeof *to);
    to[n] = END;
    g->elements.n += n + 1;
}

/* ---- stacks ---- */

static uint32_t hash_pair(int32_t a, int32_t b) {
    return (uint32_t)(mix64((uint64_t)(uint32_t)a << 32 | (uint32_t)b) % BUCKETS);
}

/* The stack of `at` over `below`; -1: too deep, or no memory (then g->failed). */
static int32_t push(grammar *g, int32_t at, int32_t below) {
    const uint32_t bucket = hash_pair(at, below);
    for (int32_t i = g->node_bucket[bucket]; i >= 0; i = node_at(g, i)->chain)
        if (node_at(g, i)->at == at && node_at(g, i)->below == below) return i;
    const int32_t depth = node_at(g, below)->depth + 1;
    if (depth > GRAMMAR_DEPTH) return -1;
    if (g->nodes.n >= MOST_NODES || !list_room(&g->nodes, 1, sizeof(node))) {
        g->failed = true;
        return -1;
    }
    *node_at(g, g->nodes.n) = (node){at, below, depth, g->node_bucket[bucket]};
    return g->node_bucket[bucket] = g->nodes.n++;
}

static void collect(grammar *g, int32_t stack) {
    if (stack < 0) return;
    const int32_t *have = g->collected.data;
    for (int32_t i = 0; i < g->collected.n; i++)
        if (have[i] == stack) return;
    if (g->collected.n >= MOST_STACKS || !list_room(&g->collected, 1, sizeof(int32_t))) {
        g->failed = true;
        return;
    }
    ((int32_t *)g->collected.data)[g->collected.n++] = stack;
}

/* Collect the stacks whose next element is a byte, that come of standing at `at` over `below`. Ends, for a rule does
 * not begin with itself. */
static void expand(grammar *g, int32_t at, int32_t below, int32_t levels) {
    if (g->failed) return;
    if (levels > 4 * GRAMMAR_DEPTH) {
        g->failed = true;
        return;
    }
    const uint32_t e = element_at(g, at);
    if (e == END) {
        if (below == EMPTY) collect(g, EMPTY);
        else expand(g, node_at(g, below)->at, node_at(g, below)->below, levels + 1);
        return;
    }
    if ((e & KIND) != RULE) {
        collect(g, push(g, at, below));
        return;
    }
    /* Where nothing follows the rule, its end is the end of this one: lists do not deepen the stack. */
    const int32_t back = element_at(g, at + 1) == END ? below : push(g, at + 1, below);
    if (back < 0) return;
    const list *alternatives = rule_at(g, (int32_t)(e & ~KIND));
    for (int32_t i = 0; i < alternatives->n; i++) expand(g, ((const int32_t *)alternatives->data)[i], back, levels + 1);
}

/* ---- states ---- */

static int compare(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* The state of the collected stacks. */
static int32_t intern(grammar *g) {
    const int32_t n = g->collected.n;
    if (g->failed) return GRAMMAR_FULL;
    if (!n) return GRAMMAR_DEAD;
    int32_t *stacks = g->collected.data;
    const size_t bytes = (size_t)n * sizeof *stacks;
    qsort(stacks, (size_t)n, sizeof *stacks, compare);
    const uint32_t bucket = (uint32_t)(hash64(HASH64_BEGIN, stacks, bytes) % BUCKETS);
    for (int32_t i = g->state_bucket[bucket]; i >= 0; i = state_at(g, i)->chain) {
        const grammar_state *s = state_at(g, i);
        if (s->n == n && memcmp((const int32_t *)g->stacks.data + s->first, stacks, bytes) == 0) return i;
    }
    if (g->states.n >= MOST_STATES || g->stacks.n > INT32_MAX / 4 || !list_room(&g->states, 1, sizeof(grammar_state)) ||
        !list_room(&g->stacks, n, sizeof(int32_t)))
        return GRAMMAR_FULL;
    memcpy((int32_t *)g->stacks.data + g->stacks.n, stacks, bytes);
    *state_at(g, g->states.n) = (grammar_state){.first = g->stacks.n, .n = n, .chain = g->state_bucket[bucket]};
    g->stacks.n += n;
    return g->state_bucket[bucket] = g->states.n++;
}

ebb_status grammar_begin(grammar *g, int32_t rule, ebb_error *error) {
    const grammar_element whole = grammar_of(rule);
    const int32_t outer = grammar_rule(g), at = g->elements.n;
    grammar_alternative(g, outer, &whole, 1);
    if (!g->failed) {
        g->collected.n = 0;
        expand(g, at, EMPTY, 0);
        g->start = intern(g);
    }
    if (g->failed || g->start < 0)
        return ebb_fail(error, EBB_BAD_ARGUMENT,
                        "the schema is too large or too deep: its grammar has %d elements, "
                        "expected at most %d",
                        g->elements.n, MOST_ELEMENTS);
    return EBB_OK;
}

int32_t grammar_start(const grammar *g) { return g->start; }
int32_t grammar_states(const grammar *g) { return g->states.n; }

static bool matches(const grammar *g, uint32_t element, uint8_t byte) {
    if ((element & KIND) == BYTE) return (element & 0xff) == byte;
    const uint8_t *set = (const uint8_t *)g->sets.data + 32 * (element & ~KIND);
    return set[byte >> 3] >> (byte & 7) & 1;
}

int32_t grammar_next(grammar *g, int32_t state, uint8_t byte) {
    if (state < 0 || state >= g->states.n) return GRAMMAR_DEAD;
    int32_t *next = state_at(g, state)->next;
    if (!next) {
        if (!(next = malloc(256 * sizeof *next))) return GRAMMAR_FULL;
        for (int32_t i = 0; i < 256; i++) next[i] = UNKNOWN;
        state_at(g, state)->next = next;
    }
    if (next[byte] != UNKNOWN) return next[byte];
    const grammar_state s = *state_at(g, state);
    g->collected.n = 0;
    for (int32_t i = 0; i < s.n; i++) {
        const int32_t stack = ((const int32_t *)g->stacks.data)[s.first + i];
        if (stack == EMPTY) continue;
        const node top = *node_at(g, stack);
        if (matches(g, element_at(g, top.at), byte)) expand(g, top.at + 1, top.below, 0);
    }
    return next[byte] = intern(g);
}

bool grammar_whole(const grammar *g, int32_t state) {
    if (state < 0 || state >= g->states.n) return false;
    const grammar_state *s = state_at(g, state);
    return ((const int32_t *)g->stacks.data)[s->first] == EMPTY; /* ascending: the empty stack comes first */
}

bool grammar_over(const grammar *g, int32_t state) { return grammar_whole(g, state) && state_at(g, state)->n == 1; }
