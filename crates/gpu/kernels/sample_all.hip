// Sampling from all tokens: top-p, min-p, temperature and one draw, for the rows that keep ALL_TOKENS.
//
// logits [n_rows, n_vocab], rows [n_rows], ids [n_rows], scratch [n_rows] of RowScratch. Rows whose id is NO_ID are skipped.
//
// Top-p and the draw both look for a key: the first one, best first, at which the weights up to it reach a fraction of
// their sum. A step launches `best`, then `weigh`, `gather` and `pick` for top-p, then the same three for the draw. All
// have blocks of 1024 threads, up to BLOCKS for each row in the first three, since one would take 20 us to read 128,000
// logits.
//
// best: the best key of each block's slice, and empty bins.
//
// weigh: a logit's weight is exp((logit - best) / temperature); its bin follows from its distance to the best one. Bins
// are sums of fixed-point numbers, so their bits do not depend on the order. Each block adds up its own first. Shared
// memory: two words for each bin, 8 KB.
//
// gather: the bins say which of them holds the key; lists that bin's keys in any order. Shared memory: 1024 keys.
//
// pick: one block per row sorts these keys and sums up their weights in order. If the bin has more than 1024 keys (many
// equal logits), the block halves it first, reading the whole row. Shared memory: 1024 keys, 1024 f64 and two words per
// wave, 17 KB.
//
// Sums are rounded otherwise than the host's, so the token is the host's unless the random number is within about 2^-40
// of a boundary. Tokens of less than about 2^-46 of the best one's weight are never drawn.
#include "sampling.h"

#pragma clang fp contract(off)

// The most blocks that share a row.
constexpr u32 BLOCKS = 16;
// Bins of weights; one for each thread.
constexpr u32 BINS = THREADS;
// Most of them for the first steps of the temperature, so that few bins have more keys than a block has threads even if
// logits are those of noise. All together reach down to e^-36.
constexpr float FINE_UNITS = 12.0f, FINE_PER_UNIT = 64.0f, COARSE_PER_UNIT = 10.5f;

// The bin of a stage that holds the key.
struct Found {
    u64 bin;   // BINS for none
    u64 above; // the sum of the bins before it
    u64 total; // the sum of all bins
    u64 n;     // its keys
};

struct RowScratch {
    u64 best[BLOCKS];
    // The lowest key that top-p keeps.
    u64 low;
    u64 pad[7];
    // For top-p, and for the draw.
    Found found[2];
    u64 bins[2][BINS];
    u64 keys[THREADS];
};
static_assert(sizeof(RowScratch) == 24832, "as in src/ops/sample.rs");

struct SampleAllParams {
    const float* logits;
    const SampleRow* rows;
    RowScratch* scratch;
    u32* ids;
    u32 n_vocab;
    // 0 for top-p, 1 for the draw.
    u32 stage;
    // Blocks that share a row.
    u32 n_blocks;
    u32 pad;
    FIELDS(logits, rows, scratch, ids, n_vocab, stage, n_blocks, pad)
};

DEV u64 uniform64(u64 v) { return (u64)uniform((u32)(v >> 32)) << 32 | uniform((u32)v); }
DEV float uniform_float(float v) { return bits<float>(uniform(bits<u32>(v))); }

DEV bool takes(const SampleAllParams& p, u32 row) {
    return uniform(p.rows[row].top_k) == ALL_TOKENS && uniform(p.ids[row]) != NO_ID;
}

// The logits of a block's slice: from `first` to below `end`.
struct Slice {
    u32 first, end;

    static DEV_MEMBER Slice of(const SampleAllParams& p) {
        const u32 length = div_up(p.n_vocab, p.n_blocks), first = min_of(bid_y() * length, p.n_vocab);
        return {first, min_of(first + length, p.n_vocab)};
    }
};

KERNEL(best, SampleAllParams, THREADS) {
    SHARED(u64, part, THREADS / WARP_SIZE);
    if (!takes(p, bid_x())) return;
    RowScratch& scratch = p.scratch[bid_x()];
    const float* logits = p.logits + (u64)bid_x() * p.n_vocab;
    const Slice slice = Slice::of(p);
    u64 best = 0;
    for (u32 i = slice.first + tid(); i < slice.end; i += THREADS) best = max_of(best, key_of(logits[i], i));
    best = block_best<THREADS>(best, part);
    if (bid_y() == 0)
        for (u32 stage = 0; stage < 2; stage++) scratch.bins[stage][tid()] = 0;
    if (tid() == 0) scratch.best[bid_y()] = best;
    if (tid() == 0 && bid_y() == 0) scratch.low = LEAST_KEY, scratch.found[0].n = scratch.found[1].n = 0;
}

// The weights of a row in one stage.
struct Weights {
    const float* logits;
    u32 n_vocab;
    u64 best; // at least LEAST_KEY
    u64 low;  // keys below weigh nothing
    float temperature;
    // The weight of the best key in the bins: n_vocab times it is less than 2^63.
    double unit;

    // `best` is 0 if the stage has nothing to do.
    static DEV_MEMBER Weights of(const SampleAllParams& p) {
        const SampleRow& row = p.rows[bid_x()];
        const RowScratch& scratch = p.scratch[bid_x()];
        u64 best = 0;
        for (u32 b = 0; b < p.n_blocks; b++) best = max_of(best, scratch.best[b]);
        best = uniform64(best);
        u32 exponent = 63;
        while (exponent > 0 && (1ull << (63 - exponent)) < p.n_vocab) exponent--;
        Weights all{p.logits + (u64)bid_x() * p.n_vocab,           p.n_vocab, best >= LEAST_KEY ? best : 0, LEAST_KEY, 1.0f,
                    bits<double>((u64)(1023 + exponent) << 52)};
        if (p.stage == 0) {
            if (!(uniform_float(row.top_p) < 1.0f)) all.best = 0;
        } else {
            all.low = uniform64(scratch.low);
            const float floor = logit_of(best) + uniform_float(row.ln_min_p);
            // 0 and -0 are equal.
            if (floor > -__builtin_inff()) all.low = max_of(all.low, (u64)order_of(floor == 0.0f ? -0.0f : floor) << 32);
            all.temperature = uniform_float(row.temperature);
        }
        return all;
    }

    DEV_MEMBER double weight(float logit) const {
        return unit * exp_f64((double)(logit / temperature - logit_of(best) / temperature));
    }

    // Never less for a smaller logit.
    DEV_MEMBER u32 bin(float logit) const {
        const float distance = (logit_of(best) - logit) / temperature;
        if (distance < FINE_UNITS) return distance > 0.0f ? (u32)(distance * FINE_PER_UNIT) : 0;
        const float coarse = FINE_UNITS * FINE_PER_UNIT + (distance - FINE_UNITS) * COARSE_PER_UNIT;
        return (u32)min_of(coarse, (float)(BINS - 1));
    }

    // Whether the logit of a token has a weight in this bin.
    DEV_MEMBER bool is_in(u32 of, u32 id) const { return key_of(logits[id], id) >= low && bin(logits[id]) == of; }

    DEV_MEMBER bool is_between(u64 from, u64 to, u32 id) const {
        const u64 key = key_of(logits[id], id);
        return key >= from && key < to;
    }

    // The sum of the weights of the keys from `from` to below `to`, and their number in `n`.
    DEV_MEMBER double mass(u64 from, u64 to, double* sums, u32* part, u32& n) const {
        double sum = 0.0;
        u32 own = 0, before;
        for (u32 i = tid(); i < n_vocab; i += THREADS)
            if (is_between(from, to, i)) sum += weight(logits[i]), own++;
        n = block_scan(own, part, before);
        return block_sum(sum, sums);
    }
};

KERNEL(weigh, SampleAllParams, THREADS) {
    SHARED(u32, low, BINS);
    SHARED(u32, high, BINS);
    if (!takes(p, bid_x())) return;
    const Weights all = Weights::of(p);
    if (!all.best) return;
    low[tid()] = high[tid()] = 0;
    shared_barrier();
    const Slice slice = Slice::of(p);
    for (u32 i = slice.first + tid(); i < slice.end; i += THREADS) {
        const float logit = all.logits[i];
        if (key_of(logit, i) < all.low) continue;
        const u64 weight = (u64)(all.weight(logit) + 0.5);
        if (!weight) continue;
        const u32 bin = all.bin(logit), lower = (u32)weight;
        const u32 carry = fetch_add_shared(low + bin, lower) + lower < lower, upper = (u32)(weight >> 32) + carry;
        if (upper) fetch_add_shared(high + bin, upper);
    }
    shared_barrier();
    const u64 sum = (u64)high[tid()] << 32 | low[tid()];
    if (sum) fetch_add(p.scratch[bid_x()].bins[p.stage] + tid(), sum);
}

// What sums of weights are compared with.
struct Target {
    double mass;
    bool above; // has to be exceeded

    DEV_MEMBER bool reached(double sum) const { return above ? sum > mass : sum >= mass; }
};

// Turns the values of a block into the sums up to each thread, in `sums` [THREADS], too.
template <typename T> DEV T prefix_sum(T value, T* sums) {
    sums[tid()] = value;
    for (u32 d = 1; d < THREADS; d *= 2) {
        shared_barrier();
        const T other = tid() >= d ? sums[tid() - d] : T{};
        shared_barrier();
        value += other;
        sums[tid()] = value;
    }
    shared_barrier();
    return value;
}

// What the weights up to the key have to reach.
DEV Target target_of(const SampleAllParams& p, u64 total) {
    const SampleRow& row = p.rows[bid_x()];
    return {(double)total * (p.stage == 0 ? (double)row.top_p : row.uniform), p.stage == 1};
}

KERNEL(gather, SampleAllParams, THREADS) {
    SHARED(u64, sums, THREADS);
    SHARED(u32, part, THREADS / WARP_SIZE);
    SHARED(u32, n_keys, 1);
    SHARED(u32, first, 1);
    if (!takes(p, bid_x())) return;
    const Weights all = Weights::of(p);
    if (!all.best) return;
    RowScratch& scratch = p.scratch[bid_x()];
    Found& found = scratch.found[p.stage];
    const u64 sum = prefix_sum(scratch.bins[p.stage][tid()], sums), total = sums[THREADS - 1];
    u32 before;
    const u32 bin = block_scan(target_of(p, total).reached((double)sum) ? 0 : 1, part, before);
    if (bid_y() == 0 && tid() == 0) {
        found.bin = bin;
        found.above = bin ? sums[bin - 1] : 0;
        found.total = total;
    }
    shared_barrier();
    // The sums are no longer needed.
    u64* keys = sums;
    if (tid() == 0) *n_keys = 0;
    shared_barrier();
    const Slice slice = Slice::of(p);
    for (u32 i = slice.first + tid(); i < slice.end; i += THREADS) {
        if (!all.is_in(bin, i)) continue;
        const u32 at = fetch_add_shared(n_keys, 1);
        if (at < THREADS) keys[at] = key_of(all.logits[i], i);
    }
    shared_barrier();
    const u32 n = *n_keys;
    if (n == 0) return;
    if (tid() == 0) *first = (u32)fetch_add(&found.n, n);
    shared_barrier();
    if (tid() < min_of(n, THREADS) && *first + tid() < THREADS) scratch.keys[*first + tid()] = keys[tid()];
}

KERNEL(pick, SampleAllParams, THREADS) {
    SHARED(u64, keys, THREADS);
    SHARED(double, weights, THREADS);
    SHARED(double, sums, THREADS / WARP_SIZE);
    SHARED(u32, part, THREADS / WARP_SIZE);
    if (!takes(p, bid_x())) return;
    const Weights all = Weights::of(p);
    if (!all.best) {
        if (p.stage == 1 && tid() == 0) p.ids[bid_x()] = 0;
        return;
    }
    RowScratch& scratch = p.scratch[bid_x()];
    const Found& found = scratch.found[p.stage];
    const u32 bin = uniform((u32)found.bin);
    // No bin reaches a target that rounding put at the sum of all; then the best key is taken.
    u64 chosen = all.best;
    if (bin < BINS) {
        const Target target = target_of(p, found.total);
        double above = (double)found.above;
        u32 before, n = uniform((u32)found.n);
        if (n <= THREADS) {
            keys[tid()] = tid() < n ? scratch.keys[tid()] : 0;
        } else {
            u32 own = 0;
            u64 greatest = 0, inverse_of_least = 0;
            for (u32 i = tid(); i < all.n_vocab; i += THREADS) {
                if (!all.is_in(bin, i)) continue;
                const u64 key = key_of(all.logits[i], i);
                greatest = max_of(greatest, key);
                inverse_of_least = max_of(inverse_of_least, ~key);
            }
            u64 to = uniform64(block_best<THREADS>(greatest, keys)) + 1;
            shared_barrier();
            u64 from = uniform64(~block_best<THREADS>(inverse_of_least, keys));
            while (n > THREADS) {
                const u64 middle = from + (to - from) / 2;
                u32 n_upper;
                const double mass = all.mass(middle, to, sums, part, n_upper);
                if (uniform(target.reached(above + mass) ? 1u : 0u)) from = middle, n = n_upper;
                else to = middle, above += mass, n -= n_upper;
            }
            for (u32 i = tid(); i < all.n_vocab; i += THREADS) own += all.is_between(from, to, i) ? 1 : 0;
            block_scan(own, part, before);
            keys[tid()] = 0;
            shared_barrier();
            for (u32 i = tid(); i < all.n_vocab; i += THREADS)
                if (all.is_between(from, to, i)) keys[before++] = key_of(all.logits[i], i);
        }
        sort_keys(keys, THREADS);
        const double sum = above + prefix_sum(tid() < n ? all.weight(logit_of(keys[tid()])) : 0.0, weights);
        const u32 n_below = block_scan(tid() < n && !target.reached(sum) ? 1 : 0, part, before);
        if (n) chosen = keys[min_of(n_below, n - 1)];
    }
    if (tid() != 0) return;
    if (p.stage == 0) scratch.low = chosen;
    else p.ids[bid_x()] = id_of(chosen);
}
