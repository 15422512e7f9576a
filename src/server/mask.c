/* server/mask.c: token masks (mask.h). Called by the server's logits hook. The sorted vocabulary is walked once a
 * state: tokens that share a beginning share its states, and where a beginning is dead all of them are passed over. */
#include "server/mask.h"
#include "core/core.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 256 }; /* bytes of a token that a mask lets through */

typedef struct token_text {
    const char *bytes;
    int32_t id, n;
    int32_t shared; /* bytes that begin the token before it too */
} token_text;

struct token_table {
    const ebb_tokenizer *tokenizer;
    int32_t vocab, n;
    token_text *tokens; /* [n], in the order of their bytes */
};

static int compare(const void *a, const void *b) {
    const token_text *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, (size_t)(x->n < y->n ? x->n : y->n));
    return order ? order : x->n != y->n ? x->n - y->n : x->id - y->id;
}

token_table *token_table_new(const ebb_tokenizer *tokenizer, int32_t vocab) {
    token_table *t = calloc(1, sizeof *t);
    if (t) t->tokens = calloc((size_t)vocab + 1, sizeof *t->tokens);
    if (!t || !t->tokens) {
        free(t);
        return NULL;
    }
    t->tokenizer = tokenizer, t->vocab = vocab;
    for (int32_t id = 0; id < vocab; id++) {
        size_t bytes;
        const char *text = ebb_token_bytes(tokenizer, id, &bytes);
        if (!text || !bytes || bytes > LONGEST || ebb_tokenizer_special(tokenizer, id)) continue;
        t->tokens[t->n++] = (token_text){text, id, (int32_t)bytes, 0};
    }
    qsort(t->tokens, (size_t)t->n, sizeof *t->tokens, compare);
    for (int32_t i = 1; i < t->n; i++) {
        const token_text *before = &t->tokens[i - 1];
        token_text *now = &t->tokens[i];
        while (now->shared < now->n && now->shared < before->n && now->bytes[now->shared] == before->bytes[now->shared])
            now->shared++;
    }
    return t;
}

void token_table_free(token_table *t) {
    if (!t) return;
    free(t->tokens);
    free(t);
}

/* A mask that was made: of which state, and when it was asked for last. */
typedef struct kept_mask {
    int32_t state;
    uint64_t used;
    uint64_t *bits;
} kept_mask;

struct masker {
    const token_table *table;
    grammar *g;
    uint64_t clock;
    atomic_bool full; /* other threads ask */
    kept_mask kept[MASK_KEPT];
};

masker *masker_new(const token_table *table, grammar *g) {
    masker *m = calloc(1, sizeof *m);
    if (!m) {
        grammar_free(g);
        return NULL;
    }
    m->table = table, m->g = g;
    for (int32_t i = 0; i < MASK_KEPT; i++) m->kept[i].state = GRAMMAR_DEAD;
    return m;
}

void masker_free(masker *m) {
    if (!m) return;
    for (int32_t i = 0; i < MASK_KEPT; i++) free(m->kept[i].bits);
    grammar_free(m->g);
    free(m);
}

grammar *masker_grammar(masker *m) { return m->g; }

static size_t mask_words(const token_table *t) { return ((size_t)t->vocab + 63) / 64; }

/* False: the grammar's tables are full. */
static bool fill(masker *m, int32_t state, uint64_t *bits) {
    int32_t states[LONGEST + 1]; /* after each byte of the token at hand */
    int32_t alive = 0;           /* bytes of it after which the text can go on */
    memset(bits, 0, mask_words(m->table) * sizeof *bits);
    states[0] = state;
    for (int32_t i = 0; i < m->table->n; i++) {
        const token_text *t = &m->table->tokens[i];
        if (t->shared > alive) continue; /* dead where the last one died */
        alive = t->shared;
        while (alive < t->n) {
            const int32_t next = grammar_next(m->g, states[alive], (uint8_t)t->bytes[alive]);
            if (next == GRAMMAR_FULL) return false;
            if (next == GRAMMAR_DEAD) break;
            states[++alive] = next;
        }
        if (alive == t->n) bits[t->id >> 6] |= (uint64_t)1 << (t->id & 63);
    }
    return true;
}

const uint64_t *masker_bits(masker *m, int32_t state) {
    kept_mask *oldest = &m->kept[0];
    for (int32_t i = 0; i < MASK_KEPT; i++) {
        kept_mask *k = &m->kept[i];
        if (k->state == state && k->bits) {
            k->used = ++m->clock;
            return k->bits;
        }
        if (k->used < oldest->used) oldest = k;
    }
    if (!oldest->bits && !(oldest->bits = malloc((mask_words(m->table) + 1) * sizeof *oldest->bits))) return NULL;
    oldest->state = GRAMMAR_DEAD;
    if (!fill(m, state, oldest->bits)) {
        m->full = true;
        return NULL;
    }
    oldest->state = state, oldest->used = ++m->clock;
    return oldest->bits;
}

int32_t masker_next(masker *m, int32_t state, int32_t token) {
    size_t bytes;
    const char *text = ebb_token_bytes(m->table->tokenizer, token, &bytes);
    if (!text) return GRAMMAR_DEAD;
    for (size_t i = 0; i < bytes && state >= 0; i++) state = grammar_next(m->g, state, (uint8_t)text[i]);
    if (state == GRAMMAR_FULL) m->full = true;
    return state;
}

bool masker_full(const masker *m) { return m->full; }
