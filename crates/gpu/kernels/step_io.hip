// The first and the last kernel of a step: what the host says comes in, what it waits for goes out. Both are nodes of
// the step's graph, so a replay needs no copy before or after it.
//
// begin_step: the words of a step, from the host's slot number (n_steps % n_slots) to their place on the device: first
// `n_words` words as they are, then of each of n_seqs block tables [max_pages] the first words[N_PAGES], and
// words[N_LIST_WORDS] of the max_list_words that lists may have. A token whose
// word in from_row is not NO_ROW is what that output row of the step before sampled. One thread for each word; no
// shared memory.
//
// end_step: the number of the step (words[0]), then ids[i], i < n_ids, to the slot of the host; then the next slot is
// up. One block of THREADS; no shared memory.
#include "step.h"

constexpr u32 THREADS = 256;
// Places in the words of a step: its number, and how many pages of the block tables and words of the lists are in use.
constexpr u32 STEP_NUMBER = 0;
constexpr u32 N_PAGES = 1;
constexpr u32 N_LIST_WORDS = 2;

struct BeginParams {
    const u32* host;     // [n_slots, slot_words], memory of the host
    u32* words;          // [slot_words]
    const u32* sampled;  // [rows of logits]
    const u32* n_steps;  // [1]
    u32 slot_words;
    u32 n_slots;
    u32 n_words;
    u32 tokens;    // where the tokens of a step are among its words, [n_rows]
    u32 from_row;  // and where they come from
    u32 n_rows;
    u32 block_tables;  // n_words at least
    u32 max_pages;
    u32 n_seqs;
    u32 lists;
    u32 max_list_words;
    u32 pad;
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
    const u32* ids;    // [n_ids]
    const u32* words;  // of the step
    u32* host;         // [n_slots, slot_words], memory of the host
    u32* n_steps;      // [1]
    u32 slot_words;    // n_ids + 1 at least
    u32 n_slots;
    u32 n_ids;
    u32 pad;
};

KERNEL(end_step, EndParams, THREADS) {
    u32 n_steps = *p.n_steps;
    u32* host = p.host + (u64)(n_steps % p.n_slots) * p.slot_words;
    for (u32 i = tid(); i < p.n_ids; i += THREADS) host[1 + i] = p.ids[i];
    if (tid() == 0) host[0] = p.words[STEP_NUMBER];
    barrier();
    if (tid() == 0) *p.n_steps = n_steps + 1;
}
