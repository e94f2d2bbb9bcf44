// Logits in order: keys that compare as whole numbers.
#pragma once
#include "gpu.h"

// Larger for larger x; 0 for NaN, which is below all.
DEV u32 order_of(float x) {
    u32 b = bits<u32>(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return 0;
    return b >> 31 ? ~b : b | 0x80000000u;
}

// The x of an order; negative infinity has the least that is not NaN's.
DEV float value_of(u32 order) { return bits<float>(order >> 31 ? order & 0x7fffffffu : ~order); }

// A logit and its id: larger for larger logits, of equals for the lower id. No two of a row are the same.
DEV u64 key_of(float logit, u32 id) { return (u64)order_of(logit) << 32 | (u32)~id; }
DEV u32 id_of(u64 key) { return ~(u32)key; }
DEV float logit_of(u64 key) { return value_of((u32)(key >> 32)); }

// The largest key of a block of THREADS, in every thread. `part` is memory of the block for a key of each wave.
template <u32 THREADS> DEV u64 block_best(u64 key, u64* part) {
#pragma unroll
    for (u32 mask = 1; mask < WARP_SIZE; mask *= 2) {
        u32 low = shuffle_xor((u32)key, mask), high = shuffle_xor((u32)(key >> 32), mask);
        key = max_of(key, (u64)high << 32 | low);
    }
    if (lane() == 0) part[wave()] = key;
    barrier();
    key = part[0];
#pragma unroll
    for (u32 i = 1; i < THREADS / WARP_SIZE; i++) key = max_of(key, part[i]);
    return key;
}
