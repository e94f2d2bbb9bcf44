// The first and the last kernel of a step: they copy the step's parameters from the host and its results to the host.
// Both are nodes of the step's graph, so a replay needs no copy before or after it.
//
// begin_step: copies the words of a step from slot n_steps % n_slots in host memory to the device: the first `n_words`
// words; of each of the n_seqs block tables [max_pages] the first words[N_PAGES]; and words[N_LIST_WORDS] words of the
// lists, which may have max_list_words. A token whose word in from_row is not NO_ROW is replaced by what that output
// row of the previous step sampled. One thread per word in blocks of 256; no shared memory.
//
// end_step: writes the number of the step (words[0]) and ids[i], i < n_ids, to the slot in host memory, then advances
// to the next slot. One block of 256 threads; no shared memory.
#include "step.h"

constexpr u32 THREADS = 256;
// Indices in the words of a step: its number, and the numbers of block table pages and of list words in use.
constexpr u32 STEP_NUMBER = 0;
constexpr u32 N_PAGES = 1;
constexpr u32 N_LIST_WORDS = 2;

struct BeginParams {
    const u32* host;    // [n_slots, slot_words], host memory
    u32* words;         // [slot_words]
    const u32* sampled; // [rows of logits]
    const u32* n_steps; // [1]
    u32 slot_words;
    u32 n_slots;
    u32 n_words;
    u32 tokens;   // offset of the tokens in the words of a step, [n_rows]
    u32 from_row; // offset of the output rows that they come from
    u32 n_rows;
    u32 block_tables; // at least n_words
    u32 max_pages;
    u32 n_seqs;
    u32 lists;
    u32 max_list_words;
    u32 pad;
    FIELDS(host, words, sampled, n_steps, slot_words, n_slots, n_words, tokens, from_row, n_rows, block_tables,
           max_pages, n_seqs, lists, max_list_words, pad)
};

KERNEL(begin_step, BeginParams, THREADS) {
    const u32* host = p.host + (u64)(*p.n_steps % p.n_slots) * p.slot_words;
    u32 i = bid_x() * THREADS + tid();
    if (i < p.n_words) {
        u32 word = host[i];
        u32 row = i - p.tokens;
        if (i >= p.tokens && row < p.n_rows) {
            u32 from = host[p.from_row + row];
            if (from != NO_ROW) word = p.sampled[from];
        }
        p.words[i] = word;
        return;
    }
    i -= p.n_words;
    u32 seq = i / p.max_pages;
    u32 at = p.block_tables + i;
    bool in_use;
    if (seq < p.n_seqs) {
        in_use = i % p.max_pages < host[N_PAGES];
    } else {
        i -= p.n_seqs * p.max_pages;
        at = p.lists + i;
        in_use = i < p.max_list_words && i < host[N_LIST_WORDS];
    }
    if (in_use) p.words[at] = host[at];
}

struct EndParams {
    const u32* ids;   // [n_ids]
    const u32* words; // of the step
    u32* host;        // [n_slots, slot_words], host memory
    u32* n_steps;     // [1]
    u32 slot_words;   // at least n_ids + 1
    u32 n_slots;
    u32 n_ids;
    u32 pad;
    FIELDS(ids, words, host, n_steps, slot_words, n_slots, n_ids, pad)
};

KERNEL(end_step, EndParams, THREADS) {
    u32 n_steps = *p.n_steps;
    u32* host = p.host + (u64)(n_steps % p.n_slots) * p.slot_words;
    for (u32 i = tid(); i < p.n_ids; i += THREADS) host[1 + i] = p.ids[i];
    if (tid() == 0) host[0] = p.words[STEP_NUMBER];
    barrier();
    if (tid() == 0) *p.n_steps = n_steps + 1;
}
