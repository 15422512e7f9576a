/* model/bpe.c: the vocabulary and merge hashes, and byte-pair merging of one word. Called by tokenizer.c,
 * tiktoken.c and pretokenize.c. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

bool id_push(id_list *list, int32_t id) {
    if (list->n == list->room) {
        int64_t room = list->room ? list->room * 2 : 64;
        int32_t *ids = realloc(list->ids, (size_t)room * sizeof *ids);
        if (!ids) return false;
        list->ids = ids, list->room = room;
    }
    list->ids[list->n++] = id;
    return true;
}

/* ---- hashes: open addressing, at most half full ---- */

static size_t slots_for(size_t n) {
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    return slots;
}

static uint64_t hash_bytes(const void *data, size_t n) {
    const uint8_t *s = data;
    uint64_t hash = n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, s, 8);
        hash = mix64(hash ^ word);
    }
    uint64_t rest = 0;
    memcpy(&rest, s, n);
    return mix64(hash ^ rest);
}

ebb_status vocab_new(ebb_tokenizer *t, size_t n_tokens) {
    size_t slots = slots_for(n_tokens);
    t->vocab = malloc(slots * sizeof *t->vocab);
    if (!t->vocab) return EBB_NO_MEMORY;
    memset(t->vocab, 0xff, slots * sizeof *t->vocab);
    t->vocab_mask = slots - 1;
    return EBB_OK;
}

void vocab_put(ebb_tokenizer *t, int32_t id) {
    size_t slot = hash_bytes(t->tokens[id].bytes, t->tokens[id].n) & t->vocab_mask;
    while (t->vocab[slot] >= 0) slot = (slot + 1) & t->vocab_mask;
    t->vocab[slot] = id;
}

int32_t vocab_find(const ebb_tokenizer *t, const void *bytes, size_t n) {
    for (size_t slot = hash_bytes(bytes, n) & t->vocab_mask;; slot = (slot + 1) & t->vocab_mask) {
        int32_t id = t->vocab[slot];
        if (id < 0 || (t->tokens[id].n == n && !memcmp(t->tokens[id].bytes, bytes, n))) return id;
    }
}

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)left << 24 | (uint64_t)right; }

/* The slot of a pair, or the empty one where it would be. */
static merge_slot *slot_of(const ebb_tokenizer *t, uint64_t pair) {
    size_t slot = mix64(pair) & t->slot_mask;
    while (t->slots[slot].rank >= 0 && t->slots[slot].pair != pair) slot = (slot + 1) & t->slot_mask;
    return &t->slots[slot];
}

ebb_status merges_new(ebb_tokenizer *t, size_t n_merges) {
    size_t slots = slots_for(n_merges);
    t->merges = malloc((n_merges + 1) * sizeof *t->merges);
    t->slots = malloc(slots * sizeof *t->slots);
    if (!t->merges || !t->slots) return EBB_NO_MEMORY;
    for (size_t i = 0; i < slots; i++) t->slots[i] = (merge_slot){0, -1};
    t->slot_mask = slots - 1;
    return EBB_OK;
}

void merges_put(ebb_tokenizer *t, int32_t left, int32_t right, int32_t result) {
    *slot_of(t, pair_of(left, right)) = (merge_slot){pair_of(left, right), t->n_merges};
    t->merges[t->n_merges++] = (merge){left, right, result};
}

/* ---- merging ---- */

void bpe_work_free(bpe_work *work) {
    free(work->nodes);
    free(work->heap);
    *work = (bpe_work){0};
}

/* A word of n bytes has n - 1 pairs at first, and each of its merges (fewer than n) adds at most two. */
static bool work_reserve(bpe_work *work, size_t n) {
    if (n <= work->room) return true;
    size_t room = n + n / 2 + 64;
    bpe_node *nodes = realloc(work->nodes, room * sizeof *nodes);
    if (nodes) work->nodes = nodes;
    uint64_t *heap = realloc(work->heap, 3 * room * sizeof *heap);
    if (heap) work->heap = heap;
    if (!nodes || !heap) return false;
    work->room = room;
    return true;
}

static void heap_push(bpe_work *work, uint64_t entry) {
    size_t i = work->n_heap++;
    for (; i > 0 && work->heap[(i - 1) / 2] > entry; i = (i - 1) / 2) work->heap[i] = work->heap[(i - 1) / 2];
    work->heap[i] = entry;
}

static uint64_t heap_pop(bpe_work *work) {
    uint64_t *heap = work->heap, top = heap[0], last = heap[--work->n_heap];
    size_t i = 0, n = work->n_heap;
    for (size_t child = 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* Bytes of the pair that begins at node `at`, which has a neighbour. */
static size_t pair_bytes(const ebb_tokenizer *t, const bpe_work *work, int32_t at) {
    const bpe_node *left = &work->nodes[at];
    return (size_t)t->tokens[left->id].n + t->tokens[work->nodes[left->next].id].n;
}

/* Offer the pair that begins at node `at`, if it can merge. */
static void offer(const ebb_tokenizer *t, bpe_work *work, int32_t at) {
    if (at < 0 || work->nodes[at].next < 0) return;
    int32_t rank;
    if (t->ranked) rank = vocab_find(t, work->word + at, pair_bytes(t, work, at));
    else rank = slot_of(t, pair_of(work->nodes[at].id, work->nodes[work->nodes[at].next].id))->rank;
    if (rank >= 0) heap_push(work, (uint64_t)rank << 32 | (uint64_t)at);
}

/* What an offer merges to; -1: its pair has changed since. Ranked: from the same byte on, another pair of the same
 * length is the same token. */
static int32_t merged(const ebb_tokenizer *t, const bpe_work *work, int32_t rank, int32_t at) {
    const int32_t id = work->nodes[at].id, next = work->nodes[at].next;
    if (id < 0 || next < 0) return -1;
    if (t->ranked) return pair_bytes(t, work, at) == t->tokens[rank].n ? rank : -1;
    const merge *m = &t->merges[rank];
    return id == m->left && work->nodes[next].id == m->right ? m->result : -1;
}

/* The lowest rank merges first, the leftmost among equals. */
static void merge_all(const ebb_tokenizer *t, bpe_work *work) {
    bpe_node *nodes = work->nodes;
    while (work->n_heap) {
        uint64_t top = heap_pop(work);
        int32_t at = (int32_t)(top & 0xffffffffu), next = nodes[at].next;
        int32_t result = merged(t, work, (int32_t)(top >> 32), at);
        if (result < 0) continue;
        nodes[at].id = result;
        nodes[at].next = nodes[next].next;
        nodes[next].id = -1;
        if (nodes[at].next >= 0) nodes[nodes[at].next].prev = at;
        offer(t, work, nodes[at].prev);
        offer(t, work, at);
    }
}

ebb_status bpe_encode(const ebb_tokenizer *t, const uint8_t *word, size_t n, bpe_work *work, id_list *out) {
    if (n == 0) return EBB_OK;
    if (n == 1 && t->byte_id[word[0]] >= 0) return id_push(out, t->byte_id[word[0]]) ? EBB_OK : EBB_NO_MEMORY;
    if (t->ignore_merges) {
        int32_t id = vocab_find(t, word, n);
        if (id >= 0 && !(t->tokens[id].flags & TOKEN_SPECIAL)) return id_push(out, id) ? EBB_OK : EBB_NO_MEMORY;
    }
    if (!work_reserve(work, n)) return EBB_NO_MEMORY;
    int32_t count = 0; /* bytes without a token are left out */
    for (size_t i = 0; i < n; i++) {
        if (t->byte_id[word[i]] < 0) continue;
        work->nodes[count] = (bpe_node){t->byte_id[word[i]], count - 1, count + 1};
        count++;
    }
    if (count == 0) return EBB_OK;
    work->nodes[count - 1].next = -1;
    work->word = word;
    work->n_heap = 0;
    for (int32_t i = 0; i + 1 < count; i++) offer(t, work, i);
    merge_all(t, work);
    for (int32_t i = 0; i >= 0; i = work->nodes[i].next)
        if (!id_push(out, work->nodes[i].id)) return EBB_NO_MEMORY;
    return EBB_OK;
}
