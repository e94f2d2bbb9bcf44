// Sampling: chooses a token for each row of logits by logit bias, penalties, then top-k, top-p, min-p, temperature and
// one draw.
//
// logits [n_rows, n_vocab] (modified by bias and penalties), rows [n_rows], entries [n_entries], tokens [n_tokens], ids
// [n_rows]. Rows with top_k = 0 are skipped, as are rows whose id is already NO_ID (argmax.hip).
//
// adjust: one block of 256 threads per row; one thread per entry of its lists.
//
// sample: one block of 1024 threads per row. Each thread finds the best logit of its share; the k-th best of these 1024
// is a bound that at least k logits reach, and usually not many more. Those logits are sorted (bitonic; all keys are
// distinct, so the order is unique), at most 2048 of them: if more reach the bound, bisection raises it. The rest runs
// over the sorted candidates as in the CPU backend, with exp and sums in f64.
// Shared memory: 2048 keys, 1024 f64 and one word per wave, 25 KB.
#include "logits.h"

#pragma clang fp contract(off)

constexpr u32 THREADS = 1024;
constexpr u32 ADJUST_THREADS = 256;
constexpr u32 CAPACITY = 2048;
constexpr u32 NO_ID = 0xffffffffu;
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
    FIELDS(uniform, top_k, top_p, ln_min_p, temperature, repeat_penalty, frequency_penalty, presence_penalty,
           input_row, first_bias, n_biases, first_count, n_counts)
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
    if (top_k == 0 || uniform(p.ids[bid_x()]) == NO_ID) return;
    const float temperature = bits<float>(uniform(bits<u32>(row.temperature)));
    const bool has_top_p = temperature > 0.0f && bits<float>(uniform(bits<u32>(row.top_p))) < 1.0f;
    const Counter share{p.logits + (u64)bid_x() * p.n_vocab, p.n_vocab};

    u64 best = 0;
    for (u32 i = tid(); i < p.n_vocab; i += THREADS) best = max_of(best, key_of(share.logits[i], i));
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
    for (u32 i = tid(); i < p.n_vocab; i += THREADS) {
        u64 key = key_of(share.logits[i], i);
        if (key >= bound) keys[before++] = key;
    }
    sort_keys(keys, n_sorted);

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
