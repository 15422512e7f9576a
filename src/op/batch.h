/* op/batch.h: what every op asks of a batch. Inline, for src/op and the forward pass (src/model). */
#ifndef OP_BATCH_H
#define OP_BATCH_H

#include "ebb/op.h"

/* The sequence whose rows hold token row `row` (0 .. tokens - 1): the last one that begins at or before it. */
static inline int32_t sequence_of(const ebb_batch *b, int64_t row) {
    int32_t low = 0, high = b->seqs; /* cu[low] <= row < cu[high] */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (b->cu[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

static inline ebb_status check_batch(const ebb_batch *b, int32_t max_seqs, int64_t max_tokens, int32_t slots,
                                     ebb_error *error) {
    if (!b || !b->slot || !b->cu || !b->pos)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a batch without slot, cu or pos");
    if (b->seqs < 0 || b->seqs > max_seqs)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a batch of %d sequences, planned for at most %d", b->seqs, max_seqs);
    if (b->tokens < 0 || b->tokens > max_tokens)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "a batch of %lld tokens, planned for at most %lld",
                        (long long)b->tokens, (long long)max_tokens);
    if (b->cu[0] != 0 || b->cu[b->seqs] != b->tokens)
        return ebb_fail(error, EBB_BAD_ARGUMENT, "cu runs from %d to %d, expected 0 to %lld", b->cu[0], b->cu[b->seqs],
                        (long long)b->tokens);
    for (int32_t i = 0; i < b->seqs; i++) {
        if (b->cu[i + 1] < b->cu[i]) return ebb_fail(error, EBB_BAD_ARGUMENT, "cu falls at sequence %d", i);
        if (b->slot[i] < -1 || b->slot[i] >= slots)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "sequence %d has slot %d, expected -1 or below %d", i, b->slot[i],
                            slots);
        if (b->slot[i] >= 0 && b->pos[i] < 0)
            return ebb_fail(error, EBB_BAD_ARGUMENT, "sequence %d is at position %lld", i, (long long)b->pos[i]);
    }
    return EBB_OK;
}

#endif
