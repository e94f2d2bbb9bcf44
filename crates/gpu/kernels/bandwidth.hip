// Reads memory once and does almost nothing with it: the peak read bandwidth.
//
// words [n_words], 16-byte aligned; sums [n_blocks]: sums[b] is the sum (mod 2^32) of the words that block b read.
// Blocks of 256 threads; a grid of any size walks over the words with 8 loads of 16 bytes in flight per thread. Shared
// memory: one word per wave.
#include "gpu.h"

constexpr u32 THREADS = 256;
constexpr u32 LOADS = 8;

struct ReadParams {
    const u32* words;
    u32* sums;
    u64 n_words;
    u32 n_blocks;
    u32 pad;
    FIELDS(words, sums, n_words, n_blocks, pad)
};

KERNEL(read_all, ReadParams, THREADS) {
    SHARED(u32, part, THREADS / WARP_SIZE);
    u64 n_quads = p.n_words / 4;
    u64 stride = (u64)p.n_blocks * THREADS;
    u64 i = (u64)bid_x() * THREADS + tid();
    u32 sum = 0;
    for (; i + (LOADS - 1) * stride < n_quads; i += LOADS * stride) {
        u32x4 quads[LOADS];
#pragma unroll
        for (u32 j = 0; j < LOADS; j++) quads[j] = load16(p.words + (i + j * stride) * 4);
#pragma unroll
        for (u32 j = 0; j < LOADS; j++) sum += quads[j][0] + quads[j][1] + quads[j][2] + quads[j][3];
    }
    for (; i < n_quads; i += stride) {
        u32x4 quad = load16(p.words + i * 4);
        sum += quad[0] + quad[1] + quad[2] + quad[3];
    }
    u64 rest = n_quads * 4 + tid();
    if (bid_x() == 0 && rest < p.n_words) sum += p.words[rest];
    sum = block_reduce<Sum, THREADS>(sum, part);
    if (tid() == 0) p.sums[bid_x()] = sum;
}
