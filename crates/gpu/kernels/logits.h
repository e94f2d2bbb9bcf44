// Order of logits: keys that compare as integers.
#pragma once
#include "gpu.h"

// Larger for larger x; 0 for NaN, which is below all numbers.
DEV u32 order_of(float x) {
    u32 b = bits<u32>(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return 0;
    return b >> 31 ? ~b : b | 0x80000000u;
}

// The x of an order. Negative infinity has the least order above NaN.
DEV float value_of(u32 order) { return bits<float>(order >> 31 ? order & 0x7fffffffu : ~order); }

// Key of a logit and its id: larger for larger logits, then for lower ids. All keys of a row are distinct.
DEV u64 key_of(float logit, u32 id) { return (u64)order_of(logit) << 32 | (u32)~id; }
DEV u32 id_of(u64 key) { return ~(u32)key; }
DEV float logit_of(u64 key) { return value_of((u32)(key >> 32)); }

// The largest key of a block of THREADS, in every thread. `part` is shared memory for one key per wave.
template <u32 THREADS> DEV u64 block_best(u64 key, u64* part) {
#pragma unroll
    for (u32 mask = 1; mask < WARP_SIZE; mask *= 2) {
        u32 low = shuffle_xor((u32)key, mask), high = shuffle_xor((u32)(key >> 32), mask);
        key = max_of(key, (u64)high << 32 | low);
    }
    if (lane() == 0) part[wave()] = key;
    shared_barrier();
    key = part[0];
#pragma unroll
    for (u32 i = 1; i < THREADS / WARP_SIZE; i++) key = max_of(key, part[i]);
    return key;
}
