// Sampling: chooses a token for each row of logits by logit bias, penalties, then top-k, top-p, min-p, temperature and
// one draw.
//
// logits [n_rows, n_vocab] (modified by bias and penalties), rows [n_rows], entries [n_entries], tokens [n_tokens], ids
// [n_rows]. Rows with top_k = 0 are skipped, as are rows whose id is already NO_ID (argmax.hip). `sample` takes the rows
// with up to 1024 candidates, `sample_all` those that keep ALL_TOKENS.
//
// adjust: one block of 256 threads per row; one thread per entry of its lists.
//
// sample: one block of 1024 threads per row. Each thread finds the best logit of its share; the k-th best of these 1024
// is a bound that at least k logits reach, and usually not many more. Those logits are sorted (bitonic; all keys are
// distinct, so the order is unique), at most 2048 of them: if more reach the bound, bisection raises it. The rest runs
// over the sorted candidates as in the CPU backend, with exp and sums in f64.
// Shared memory: 2048 keys, 1024 f64 and one word per wave, 25 KB.
//
// sample_all: one block of 1024 threads per row, without a sort of all. Top-p and the draw look for the candidate at which
// the mass of all better ones and its own reaches a fraction of the whole. One pass over the row gives the masses of
// eight ranges of logits, the next one divides the range of the candidate, until it holds at most 1024 keys; these are
// sorted and their weights summed up in order. A sum in another order than the host's differs in the last bits, so the
// token is the host's unless the random number is that close to a boundary. Shared memory as `sample`.
//
// logprobs: the sum of the softmax and the n_logprobs - 1 best tokens of each row, of the logits as computed (such rows
// have no biases and no penalties), straight to the host's slot of this step; see LogprobParams. Shared memory as
// `sample`.
#include "logits.h"

#pragma clang fp contract(off)

constexpr u32 THREADS = 1024;
constexpr u32 ADJUST_THREADS = 256;
constexpr u32 CAPACITY = 2048;
constexpr u32 NO_ID = 0xffffffffu;
constexpr u32 ALL_TOKENS = 0xffffffffu;
// The least key of logits above negative infinity.
constexpr u64 LEAST_KEY = (u64)0x00800000u << 32;

struct SampleRow {
    double uniform;
    u32 top_k;
    float top_p;
    float ln_min_p;
    float temperature;
    float repeat_penalty;
    float frequency_penalty;
    float presence_penalty;
    u32 input_row;
    u32 first_bias;
    u32 n_biases;
    u32 first_count;
    u32 n_counts;
    u32 n_logprobs;
    u32 pad;
    FIELDS(uniform, top_k, top_p, ln_min_p, temperature, repeat_penalty, frequency_penalty, presence_penalty, input_row,
           first_bias, n_biases, first_count, n_counts, n_logprobs, pad)
};

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

// e^x for x <= 0 or NaN, with an error of about one unit in the last place; 0 for NaN.
DEV double exp_f64(double x) {
    if (!(x > -745.0)) return 0.0;
    constexpr double LOG2_E = 1.4426950408889634, MAGIC = 6755399441055744.0;
    constexpr double LN2_HIGH = 0.693147180369123816490, LN2_LOW = 1.90821492927058770002e-10;
    double whole = __builtin_fma(x, LOG2_E, MAGIC) - MAGIC;
    double r = __builtin_fma(-whole, LN2_LOW, __builtin_fma(-whole, LN2_HIGH, x));
    // 1 / n! from n = 13 down to 2.
    constexpr double FACTORS[12] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
                                    1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,
                                    1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,        0.5};
    double y = FACTORS[0];
#pragma unroll
    for (u32 i = 1; i < 12; i++) y = __builtin_fma(y, r, FACTORS[i]);
    y = __builtin_fma(y * r, r, r) + 1.0;
    // Two powers of two, since their product may be subnormal.
    i32 n = (i32)whole, half = n / 2;
    double a = bits<double>((u64)(half + 1023) << 52), b = bits<double>((u64)(n - half + 1023) << 52);
    return y * a * b;
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

// The sum over the block; `before` gets the sum over the threads before this one.
DEV u32 block_scan(u32 v, u32* part, u32& before) {
    u32 sum = v;
#pragma unroll
    for (u32 d = 1; d < WARP_SIZE; d *= 2) {
        u32 other = shuffle(sum, lane() >= d ? lane() - d : lane());
        if (lane() >= d) sum += other;
    }
    barrier();
    if (lane() == WARP_SIZE - 1) part[wave()] = sum;
    barrier();
    u32 total = 0;
    before = sum - v;
    for (u32 w = 0; w < THREADS / WARP_SIZE; w++) {
        if (w < wave()) before += part[w];
        total += part[w];
    }
    return uniform(total);
}

// Sorts n keys in descending order; n is a power of two and at most CAPACITY.
DEV void sort_keys(u64* keys, u32 n) {
    for (u32 size = 2; size <= n; size *= 2) {
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
            barrier();
            for (u32 t = tid(); t < n / 2; t += THREADS) {
                u32 low = t / stride * stride * 2 + t % stride, high = low + stride;
                u64 a = keys[low], b = keys[high];
                bool descending = (low & size) == 0;
                if ((a < b) == descending) keys[low] = b, keys[high] = a;
            }
        }
    }
    barrier();
}

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
    barrier();
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
    barrier();
    if (tid() < n) {
        float best = logit_of(keys[0]) / temperature, logit = logit_of(keys[tid()]) / temperature;
        weights[tid()] = exp_f64((double)(logit - best));
    }
    barrier();
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
    barrier();
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

// The sum over the block, with the same bits in every thread.
DEV double block_sum(double v, double* part) {
#pragma unroll
    for (u32 mask = 1; mask < WARP_SIZE; mask *= 2) {
        u64 b = bits<u64>(v);
        u32 low = shuffle_xor((u32)b, mask), high = shuffle_xor((u32)(b >> 32), mask);
        v += bits<double>((u64)high << 32 | low);
    }
    barrier();
    if (lane() == 0) part[wave()] = v;
    barrier();
    double sum = 0.0;
#pragma unroll 4
    for (u32 w = 0; w < THREADS / WARP_SIZE; w++) sum += part[w];
    return sum;
}

DEV u64 uniform64(u64 v) { return (u64)uniform((u32)(v >> 32)) << 32 | uniform((u32)v); }

// Shared memory of `sample_all`.
struct Scratch {
    u64* keys;       // [CAPACITY]
    double* weights; // [THREADS]
    double* sums;    // one per wave
    u32* part;       // one per wave
};

// Ranges of keys in one pass.
constexpr u32 RANGES = 8;

// All tokens of a row, weighted with exp((logit - best) / temperature).
struct Weighted {
    Counter share;
    u64 best;
    float temperature;

    DEV_MEMBER double weight(float logit) const {
        return exp_f64((double)(logit / temperature - logit_of(best) / temperature));
    }

    // The weights of the keys from `low` to below `high`, and in `n` their number.
    DEV_MEMBER double mass(u64 low, u64 high, const Scratch& scratch, u32& n) const {
        double sum = 0.0;
        u32 own = 0, before;
        for (u32 i = tid(); i < share.n_vocab; i += THREADS) {
            float logit = share.logits[i];
            u64 key = key_of(logit, i);
            if (key >= low && key < high) {
                sum += weight(logit);
                own++;
            }
        }
        n = block_scan(own, scratch.part, before);
        return block_sum(sum, scratch.sums);
    }

    // The same by ranges: number r has the keys from `low` to below `high` of which r of the descending bounds are above
    // the order. The masses are the block's; the numbers are this thread's, two of 16 bits in a word.
    DEV_MEMBER void masses(u64 low, u64 high, const u32 (&bounds)[RANGES - 1], const Scratch& scratch,
                           double (&sums)[RANGES], u32 (&own)[RANGES / 2]) const {
#pragma unroll
        for (u32 r = 0; r < RANGES; r++) sums[r] = 0.0, own[r / 2] = 0;
        for (u32 i = tid(); i < share.n_vocab; i += THREADS) {
            float logit = share.logits[i];
            u64 key = key_of(logit, i);
            if (key < low || key >= high) continue;
            const double w = weight(logit);
            u32 range = 0;
#pragma unroll
            for (u32 r = 0; r + 1 < RANGES; r++) range += (u32)(key >> 32) < bounds[r] ? 1 : 0;
#pragma unroll
            for (u32 r = 0; r < RANGES; r++) {
                if (range != r) continue;
                sums[r] += w;
                own[r / 2] += r % 2 ? 1u << 16 : 1;
            }
        }
#pragma unroll
        for (u32 r = 0; r < RANGES; r++) sums[r] = block_sum(sums[r], scratch.sums);
    }
};

// What a mass is compared with.
struct Target {
    double mass;
    bool above; // has to be exceeded

    DEV_MEMBER bool reached(double m) const { return above ? m > mass : m >= mass; }
};

// The first key in descending order at which the mass from the best key on reaches `fraction` of that of all keys from
// `low` on, or exceeds it; 0 if none does.
DEV u64 find(const Weighted& row, u64 low, double fraction, bool above_it, const Scratch& scratch) {
    // Weights further down are 0.
    const float best = logit_of(row.best), lowest = best - 800.0f * row.temperature;
    if (lowest > logit_of(low)) low = (u64)order_of(lowest) << 32;
    u64 high = row.best + 1;
    Target target = {0.0, above_it};
    double above = 0.0; // the mass of the keys from `high` on
    u32 n = 0;          // the keys from `low` to below `high`
    for (bool is_first = true; is_first || n > THREADS; is_first = false) {
        u32 bounds[RANGES - 1];
        const float upper = logit_of(high - 1), lower = logit_of(low);
#pragma unroll
        for (u32 r = 0; r + 1 < RANGES; r++) {
            const float part = (float)(r + 1) / RANGES;
            const float at = is_first ? best - (float)(1 << r) * row.temperature : upper + (lower - upper) * part;
            bounds[r] = order_of(at);
        }
        double sums[RANGES];
        u32 counts[RANGES / 2];
        row.masses(low, high, bounds, scratch, sums, counts);
        if (is_first) {
            double total = 0.0;
#pragma unroll
            for (u32 r = 0; r < RANGES; r++) total += sums[r];
            if (!uniform(total > 0.0 ? 1u : 0u)) return 0;
            target.mass = total * fraction;
        }
        bool found = false;
        u64 from = low, to = high;
        u32 own = 0, before;
#pragma unroll
        for (u32 r = 0; r < RANGES; r++) {
            if (found) continue;
            if (r + 1 == RANGES || target.reached(above + sums[r])) {
                found = true;
                own = counts[r / 2] >> r % 2 * 16 & 0xffff;
                if (r + 1 < RANGES) from = max_of(low, (u64)bounds[r] << 32);
                if (r > 0) to = min_of(high, (u64)bounds[r - 1] << 32);
            } else {
                above += sums[r];
            }
        }
        n = block_scan(own, scratch.part, before);
        from = uniform64(from), to = uniform64(to);
        if (from == low && to == high && n > THREADS) {
            // Many equal logits.
            const u64 middle = low + (high - low) / 2;
            u32 n_upper;
            const double mass = row.mass(middle, high, scratch, n_upper);
            if (uniform(target.reached(above + mass) ? 1u : 0u)) from = middle, n = n_upper;
            else to = middle, above += mass, n -= n_upper;
        }
        low = from, high = to;
    }
    u32 own = 0, before;
    for (u32 i = tid(); i < row.share.n_vocab; i += THREADS) {
        u64 key = key_of(row.share.logits[i], i);
        own += key >= low && key < high ? 1 : 0;
    }
    block_scan(own, scratch.part, before);
    barrier();
    for (u32 i = tid(); i < row.share.n_vocab; i += THREADS) {
        u64 key = key_of(row.share.logits[i], i);
        if (key >= low && key < high) scratch.keys[before++] = key;
    }
    if (tid() >= n) scratch.keys[tid()] = 0;
    sort_keys(scratch.keys, THREADS);
    double mass = tid() < n ? row.weight(logit_of(scratch.keys[tid()])) : 0.0;
    scratch.weights[tid()] = mass;
    // Sums up to each key.
    for (u32 d = 1; d < THREADS; d *= 2) {
        barrier();
        double other = tid() >= d ? scratch.weights[tid() - d] : 0.0;
        barrier();
        mass += other;
        scratch.weights[tid()] = mass;
    }
    u32 n_below = block_scan(tid() < n && !target.reached(above + mass) ? 1 : 0, scratch.part, before);
    return uniform64(n_below < n ? scratch.keys[n_below] : 0);
}

// The best key of a row; 0 if no logit is above negative infinity.
DEV u64 best_of(const Counter& share, u64* part) {
    u64 best = 0;
    for (u32 i = tid(); i < share.n_vocab; i += THREADS) best = max_of(best, key_of(share.logits[i], i));
    best = uniform64(block_best<THREADS>(best, part));
    barrier();
    return best >= LEAST_KEY ? best : 0;
}

KERNEL(sample_all, SampleParams, THREADS) {
    SHARED(u64, keys, CAPACITY);
    SHARED(double, weights, THREADS);
    SHARED(double, sums, THREADS / WARP_SIZE);
    SHARED(u32, part, THREADS / WARP_SIZE);
    const SampleRow& row = p.rows[bid_x()];
    if (uniform(row.top_k) != ALL_TOKENS || uniform(p.ids[bid_x()]) == NO_ID) return;
    const Scratch scratch{keys, weights, sums, part};
    const Counter share{p.logits + (u64)bid_x() * p.n_vocab, p.n_vocab};
    const u64 best = best_of(share, keys);
    u64 chosen = best, low = LEAST_KEY;
    if (best) {
        const float top_p = bits<float>(uniform(bits<u32>(row.top_p)));
        if (top_p < 1.0f) {
            const Weighted plain{share, best, 1.0f};
            low = max_of(low, find(plain, low, (double)top_p, false, scratch));
        }
        const float floor = logit_of(best) + bits<float>(uniform(bits<u32>(row.ln_min_p)));
        // 0 and -0 are equal.
        if (floor > -__builtin_inff()) low = max_of(low, (u64)order_of(floor == 0.0f ? -0.0f : floor) << 32);
        const Weighted warm{share, best, bits<float>(uniform(bits<u32>(row.temperature)))};
        u64 found = find(warm, low, row.uniform, true, scratch);
        if (found) chosen = found;
    }
    if (tid() == 0) p.ids[bid_x()] = chosen ? id_of(chosen) : 0;
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
