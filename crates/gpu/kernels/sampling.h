// What the samplers share: their rows, and sums and sorts in a block of THREADS.
#pragma once
#include "logits.h"

constexpr u32 THREADS = 1024;
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

// The sum over the block; `before` gets the sum over the threads before this one.
DEV u32 block_scan(u32 v, u32* part, u32& before) {
    u32 sum = v;
#pragma unroll
    for (u32 d = 1; d < WARP_SIZE; d *= 2) {
        u32 other = shuffle(sum, lane() >= d ? lane() - d : lane());
        if (lane() >= d) sum += other;
    }
    shared_barrier();
    if (lane() == WARP_SIZE - 1) part[wave()] = sum;
    shared_barrier();
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
            shared_barrier();
            for (u32 t = tid(); t < n / 2; t += THREADS) {
                u32 low = t / stride * stride * 2 + t % stride, high = low + stride;
                u64 a = keys[low], b = keys[high];
                bool descending = (low & size) == 0;
                if ((a < b) == descending) keys[low] = b, keys[high] = a;
            }
        }
    }
    shared_barrier();
}

// The sum over the block, with the same bits in every thread.
DEV double block_sum(double v, double* part) {
#pragma unroll
    for (u32 mask = 1; mask < WARP_SIZE; mask *= 2) {
        u64 b = bits<u64>(v);
        u32 low = shuffle_xor((u32)b, mask), high = shuffle_xor((u32)(b >> 32), mask);
        v += bits<double>((u64)high << 32 | low);
    }
    shared_barrier();
    if (lane() == 0) part[wave()] = v;
    shared_barrier();
    double sum = 0.0;
#pragma unroll 4
    for (u32 w = 0; w < THREADS / WARP_SIZE; w++) sum += part[w];
    return sum;
}
