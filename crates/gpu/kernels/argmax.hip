// Argmax of each row of logits: the lowest id of the largest logits (0 and -0 are equal); NaN is below all.
//
// logits [n_rows, n_vocab], ids [n_rows]; the id is NO_ID if the largest logit is not finite. One block of 1024 threads
// per row. A thread loads 16 values at a time if rows are 16-byte aligned. Shared memory: one key per wave, at most 256
// bytes.
#include "logits.h"

constexpr u32 THREADS = 1024;
constexpr u32 NO_ID = 0xffffffffu;

struct ArgmaxParams {
    const float* logits;
    u32* ids;
    u32 n_vocab;
    u32 aligned;
    FIELDS(logits, ids, n_vocab, aligned)
};

KERNEL(argmax, ArgmaxParams, THREADS) {
    SHARED(u64, part, THREADS / WARP_SIZE);
    constexpr u32 QUADS = 4;
    const float* row = p.logits + (u64)bid_x() * p.n_vocab;
    u64 best = 0;
    u32 n_quads = p.aligned ? p.n_vocab / 4 : 0;
    for (u32 first = tid(); first < n_quads; first += QUADS * THREADS) {
        f32x4 x[QUADS];
#pragma unroll
        for (u32 q = 0; q < QUADS; q++)
            if (first + q * THREADS < n_quads) x[q] = bits<f32x4>(load16(row + (first + q * THREADS) * 4));
#pragma unroll
        for (u32 q = 0; q < QUADS; q++)
            if (first + q * THREADS < n_quads)
#pragma unroll
                for (u32 i = 0; i < 4; i++) best = max_of(best, key_of(x[q][i] + 0.0f, (first + q * THREADS) * 4 + i));
    }
    for (u32 i = n_quads * 4 + tid(); i < p.n_vocab; i += THREADS) best = max_of(best, key_of(row[i] + 0.0f, i));
    best = block_best<THREADS>(best, part);
    if (tid() == 0) {
        bool finite = best >> 32 != 0 && __builtin_fabsf(logit_of(best)) < __builtin_inff();
        p.ids[bid_x()] = finite ? id_of(best) : NO_ID;
    }
}
