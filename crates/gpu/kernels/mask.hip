// Masks: takes the tokens that may not follow out of the choice, by a logit of negative infinity.
//
// logits [n_rows, n_vocab], masks [n_masked, 1 + n_words] in host memory: the row of logits that the mask is for, then a
// bit per token, `id % 32` of word `id / 32`; tokens beyond the words are not allowed. Infinite logits stay, so that
// argmax finds that the row is at fault. One block of 256 threads for each mask and 8192 tokens: each thread reads one
// word across the bus. Shared memory: 1 KB.
#include "gpu.h"

constexpr u32 MASK_THREADS = 256;
// Tokens of a word.
constexpr u32 BITS = 32;

struct ForbidParams {
    float* logits;
    const u32* masks;
    u32 n_rows;
    u32 n_vocab;
    u32 n_words;
    u32 pad;
    FIELDS(logits, masks, n_rows, n_vocab, n_words, pad)
};

KERNEL(forbid, ForbidParams, MASK_THREADS) {
    SHARED(u32, words, MASK_THREADS);
    const u32* mask = p.masks + (u64)bid_x() * (1 + p.n_words);
    const u32 row = uniform(mask[0]), word = bid_y() * MASK_THREADS + tid();
    if (row >= p.n_rows) return;
    words[tid()] = word < p.n_words ? mask[1 + word] : 0;
    shared_barrier();
    float* logits = p.logits + (u64)row * p.n_vocab;
    const u32 first = bid_y() * MASK_THREADS * BITS;
    for (u32 i = tid(); i < MASK_THREADS * BITS && first + i < p.n_vocab; i += MASK_THREADS) {
        const bool allowed = words[i / BITS] >> (i % BITS) & 1;
        if (!allowed && logits[first + i] < __builtin_inff()) logits[first + i] = -__builtin_inff();
    }
}
