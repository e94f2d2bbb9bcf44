// Sampling: chooses a token for each row of logits by logit bias, penalties, then top-k, top-p, min-p, temperature and
// one draw.
//
// logits [n_rows, n_vocab] (modified by bias and penalties), rows [n_rows], entries [n_entries], tokens [n_tokens], ids
// [n_rows]. Rows with top_k = 0 are skipped, as are rows whose id is already NO_ID (argmax.hip). `sample` takes the rows
// with up to 1024 candidates; `sample_all.hip` has those that keep ALL_TOKENS.
//
// adjust: one block of 256 threads per row; one thread per entry of its lists.
//
// sample: one block of 1024 threads per row. Each thread finds the best logit of its share; the k-th best of these 1024
// is a bound that at least k logits reach, and usually not many more. Those logits are sorted (bitonic; all keys are
// distinct, so the order is unique), at most 2048 of them: if more reach the bound, bisection raises it. The rest runs
// over the sorted candidates as in the CPU backend, with exp and sums in f64.
// Shared memory: 2048 keys, 1024 f64 and one word per wave, 25 KB.
//
// logprobs: the sum of the softmax and the n_logprobs - 1 best tokens of each row, of the logits as computed (such rows
// have no biases and no penalties), straight to the host's slot of this step; see LogprobParams. Shared memory as
// `sample`.
#include "sampling.h"

#pragma clang fp contract(off)

constexpr u32 ADJUST_THREADS = 256;

struct SampleEntry {
    u32 id;
    u32 value;
    FIELDS(id, value)
};

struct SampleParams {
    float* logits;
    const SampleRow* rows;
    const SampleEntry* entries;
    const u32* tokens;
    u32* ids;
    u32 n_vocab;
    u32 n_entries;
    u32 n_tokens;
    u32 pad;
    FIELDS(logits, rows, entries, tokens, ids, n_vocab, n_entries, n_tokens, pad)
};

// a * b, not fused with an addition. The compiler ignores the pragma for NVIDIA.
DEV float product(float a, float b) {
#if defined(GPU_NV)
    float r;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#else
    return a * b;
#endif
}

DEV float penalized(const SampleRow& row, float logit, u32 count) {
    float scaled = logit > 0.0f ? logit / row.repeat_penalty : product(logit, row.repeat_penalty);
    return scaled - (product((float)count, row.frequency_penalty) + row.presence_penalty);
}

KERNEL(adjust, SampleParams, ADJUST_THREADS) {
    const SampleRow& row = p.rows[bid_x()];
    if (row.top_k == 0) return;
    float* logits = p.logits + (u64)bid_x() * p.n_vocab;
    for (u32 i = tid(); i < row.n_biases && row.first_bias + i < p.n_entries; i += ADJUST_THREADS) {
        SampleEntry entry = p.entries[row.first_bias + i];
        if (entry.id < p.n_vocab) logits[entry.id] += bits<float>(entry.value);
    }
    barrier();
    // The row's own input token counts once more. If no entry has it, thread 0 handles it.
    u32 just = row.input_row < p.n_tokens ? p.tokens[row.input_row] : NO_ID;
    bool is_new = just < p.n_vocab;
    for (u32 i = 0; is_new && i < row.n_counts && row.first_count + i < p.n_entries; i++)
        is_new = p.entries[row.first_count + i].id != just;
    for (u32 i = tid(); i < row.n_counts && row.first_count + i < p.n_entries; i += ADJUST_THREADS) {
        SampleEntry entry = p.entries[row.first_count + i];
        u32 count = entry.value + (entry.id == just ? 1 : 0);
        if (entry.id < p.n_vocab) logits[entry.id] = penalized(row, logits[entry.id], count);
    }
    if (is_new && tid() == 0) logits[just] = penalized(row, logits[just], 1);
}

struct Counter {
    const float* logits;
    u32 n_vocab;

    // How many logits of this thread's share have at least this key.
    DEV_MEMBER u32 count(u64 bound) const {
        u32 n = 0;
        for (u32 i = tid(); i < n_vocab; i += THREADS) n += key_of(logits[i], i) >= bound ? 1 : 0;
        return n;
    }
};

// Sorts the best keys of a row into `keys`, at least top_k if there are so many, and returns how many. top_k is from 1 to
// THREADS.
DEV u32 select(const Counter& share, u32 top_k, u64* keys, u32* part) {
    u64 best = 0;
    for (u32 i = tid(); i < share.n_vocab; i += THREADS) best = max_of(best, key_of(share.logits[i], i));
    keys[tid()] = best;
    sort_keys(keys, THREADS);
    u64 bound = max_of(keys[top_k - 1], LEAST_KEY), above = keys[0] + 1;
    u32 before, total = block_scan(share.count(bound), part, before);
    while (total > CAPACITY) {
        // At least top_k keys reach `bound`, and none reaches `above`.
        u64 middle = bound + (above - bound) / 2;
        u32 n = block_scan(share.count(middle), part, before);
        if (n < top_k) above = middle;
        else bound = middle, total = n;
    }
    total = block_scan(share.count(bound), part, before);
    u32 n_sorted = 2;
    while (n_sorted < total) n_sorted *= 2;
    shared_barrier();
    for (u32 i = tid(); i < n_sorted; i += THREADS)
        if (i >= total) keys[i] = 0;
    for (u32 i = tid(); i < share.n_vocab; i += THREADS) {
        u64 key = key_of(share.logits[i], i);
        if (key >= bound) keys[before++] = key;
    }
    sort_keys(keys, n_sorted);
    return total;
}

// Softmax numerators of the first n candidates; thread i computes candidate i.
DEV void put_weights(double* weights, const u64* keys, u32 n, float temperature) {
    shared_barrier();
    if (tid() < n) {
        float best = logit_of(keys[0]) / temperature, logit = logit_of(keys[tid()]) / temperature;
        weights[tid()] = exp_f64((double)(logit - best));
    }
    shared_barrier();
}

// Divides weights by their sum. Run by one thread.
DEV void normalize(double* weights, u32 n) {
    double total = 0.0;
    for (u32 i = 0; i < n; i++) total += weights[i];
    if (total > 0.0) {
        for (u32 i = 0; i < n; i++) weights[i] /= total;
    } else {
        weights[0] = 1.0;
    }
}

KERNEL(sample, SampleParams, THREADS) {
    SHARED(u64, keys, CAPACITY);
    SHARED(double, weights, THREADS);
    SHARED(u32, part, THREADS / WARP_SIZE);
    SHARED(u32, n_left, 1);
    const SampleRow& row = p.rows[bid_x()];
    const u32 top_k = uniform(min_of(row.top_k, THREADS));
    if (top_k == 0 || uniform(row.top_k) == ALL_TOKENS || uniform(p.ids[bid_x()]) == NO_ID) return;
    const float temperature = bits<float>(uniform(bits<u32>(row.temperature)));
    const bool has_top_p = temperature > 0.0f && bits<float>(uniform(bits<u32>(row.top_p))) < 1.0f;
    const Counter share{p.logits + (u64)bid_x() * p.n_vocab, p.n_vocab};

    u32 total = select(share, top_k, keys, part);
    u32 n = min_of(total, top_k);
    if (has_top_p) put_weights(weights, keys, n, 1.0f);
    if (tid() == 0) {
        if (has_top_p && n > 0) {
            normalize(weights, n);
            double mass = 0.0;
            u32 kept = 0;
            while (kept < n && mass < (double)row.top_p) mass += weights[kept++];
            n = max_of(kept, 1u);
        }
        float floor = logit_of(keys[0]) + row.ln_min_p;
        u32 kept = 0;
        while (kept < n && logit_of(keys[kept]) >= floor) kept++;
        n = temperature > 0.0f ? max_of(kept, 1u) : 1;
        n_left[0] = min_of(n, total);
    }
    shared_barrier();
    n = n_left[0];
    if (temperature > 0.0f) put_weights(weights, keys, n, temperature);
    if (tid() == 0) {
        u32 chosen = 0;
        if (n > 1) {
            normalize(weights, n);
            double sum = 0.0;
            for (u32 i = 0; i < n; i++) sum += weights[i];
            double left = row.uniform * sum;
            for (u32 i = 0; i < n; i++) {
                left -= weights[i];
                if (left < 0.0) {
                    chosen = i;
                    break;
                }
            }
        }
        p.ids[bid_x()] = total ? id_of(keys[chosen]) : 0;
    }
}

constexpr u32 MAX_LOGPROBS = 20;
constexpr u32 LOGPROB_WORDS = 4 + 2 * MAX_LOGPROBS;

struct LogprobParams {
    const float* logits;
    const SampleRow* rows;
    const u32* ids;
    const u32* n_steps; // [1]
    // [n_slots, slot_rows, LOGPROB_WORDS], host memory. The words of a row: the sum of exp(logit - best) over all tokens
    // in two words, the best logit, the logit of the row's id, then the id and the logit of each of the best tokens.
    u32* host;
    u32 n_vocab;
    u32 n_slots;
    u32 slot_rows;
    u32 pad;
    FIELDS(logits, rows, ids, n_steps, host, n_vocab, n_slots, slot_rows, pad)
};

KERNEL(logprobs, LogprobParams, THREADS) {
    SHARED(u64, keys, CAPACITY);
    SHARED(double, sums, THREADS / WARP_SIZE);
    SHARED(u32, part, THREADS / WARP_SIZE);
    const SampleRow& row = p.rows[bid_x()];
    const u32 n_logprobs = uniform(row.n_logprobs), id = uniform(p.ids[bid_x()]);
    if (n_logprobs == 0 || id >= p.n_vocab) return;
    const Counter share{p.logits + (u64)bid_x() * p.n_vocab, p.n_vocab};
    const u32 n_best = min_of(n_logprobs - 1, MAX_LOGPROBS);
    u32 n = min_of(select(share, max_of(n_best, 1u), keys, part), n_best);
    const u64 best = keys[0];
    double sum = 0.0;
    for (u32 i = tid(); i < p.n_vocab; i += THREADS) sum += (double)exp_of(share.logits[i] - logit_of(best));
    sum = block_sum(sum, sums);
    u32* host = p.host + ((u64)(*p.n_steps % p.n_slots) * p.slot_rows + bid_x()) * LOGPROB_WORDS;
    if (tid() == 0) {
        host[0] = (u32)bits<u64>(sum);
        host[1] = (u32)(bits<u64>(sum) >> 32);
        host[2] = bits<u32>(logit_of(best));
        host[3] = bits<u32>(share.logits[id]);
    }
    if (tid() < MAX_LOGPROBS) {
        host[4 + 2 * tid()] = tid() < n ? id_of(keys[tid()]) : NO_ID;
        host[5 + 2 * tid()] = tid() < n ? bits<u32>(logit_of(keys[tid()])) : 0;
    }
}
