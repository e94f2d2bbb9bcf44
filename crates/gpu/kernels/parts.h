// Partial results of rows whose positions are divided into splits, and how they are combined.
#pragma once
#include "attention.h"

constexpr u32 THREADS = 128;
constexpr u32 N_WAVES = THREADS / WARP_SIZE;
// As in src/ops/attention/scratch.rs.
constexpr u32 MAX_SPLITS = 128;

// The sums of parts, [n_parts, dim], and behind them for each part the exponent that its weights are relative to, and the
// sum of its weights.
struct Parts {
    float* sums;
    u64 n_parts;
    u32 dim;

    DEV_MEMBER void write_stats(u64 part, float exponent, float weights) const {
        float* to = sums + n_parts * dim + part * 2;
        to[0] = exponent;
        to[1] = weights;
    }

    // Combines the parts of a row and head: `n_used` from `first` on. Calls `put(dimension, value)` for each value. Called by
    // all threads of a block; of several HEADS with as many parts, each has THREADS of them.
    template <u32 HEADS = 1, typename Put>
    DEV_MEMBER void combine(const Scores& scores, u32 head, u64 first, u32 n_used, Put put) const {
        SHARED(float, all_weights, HEADS * MAX_SPLITS);
        SHARED(float, part, HEADS * N_WAVES);
        SHARED(float, part_of_sum, HEADS * N_WAVES);
        SHARED(float, of_all_sets, HEADS * THREADS * 4);
        const u32 of_block = tid() / THREADS, thread = tid() % THREADS;
        float *weights = all_weights + of_block * MAX_SPLITS, *of_sets = of_all_sets + of_block * THREADS * 4;
        // Each thread has four dimensions; the threads of a set take every n_sets-th part. The first parts are loaded
        // while their weights are computed: fewer where many threads share the registers.
        constexpr u32 EARLY = HEADS > 2 ? 4 : 8;
        u32 set_len = dim / 4, n_sets = THREADS / set_len, set = thread / set_len, d = thread % set_len * 4;
        const float* of_thread = sums + first * dim + d;
        u32 n_of_set = set < n_sets ? n_used : 0;
        f32x4 early[EARLY];
#pragma unroll
        for (u32 i = 0; i < EARLY; i++) {
            u32 s = set + i * n_sets;
            if (s < n_of_set) early[i] = *(const f32x4*)(of_thread + s * dim);
        }

        const float* stats = sums + n_parts * dim + first * 2;
        bool mine = thread < n_used;
        float exponent = mine ? stats[thread * 2] : UNSEEN, of_split = mine ? stats[thread * 2 + 1] : 0.0f;
        float max = reduce_of<Max>(of_block, exponent, part);
        float weight = mine ? exp2_fast(exponent - max) : 0.0f;
        float sum = reduce_of<Sum>(of_block, mine ? weight * of_split : 0.0f, part_of_sum);
        weights[thread] = weight / (sum + scores.sink_weight(head, max));
        shared_barrier();

        f32x4 acc = {{0.0f, 0.0f, 0.0f, 0.0f}};
        auto add = [&](const f32x4& x, u32 s) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) acc.v[i] = fma(x[i], weights[s], acc.v[i]);
        };
#pragma unroll
        for (u32 i = 0; i < EARLY; i++) {
            u32 s = set + i * n_sets;
            if (s < n_of_set) add(early[i], s);
        }
        for (u32 s = set + EARLY * n_sets; s < n_of_set; s += n_sets) add(*(const f32x4*)(of_thread + s * dim), s);
        if (set < n_sets) *(f32x4*)(of_sets + set * dim + d) = acc;
        shared_barrier();
        for (u32 i = thread; i < dim; i += THREADS) {
            float total = 0.0f;
            for (u32 s = 0; s < n_sets; s++) total += of_sets[s * dim + i];
            put(i, total);
        }
    }

    // The reduction over the threads of a head, in every one of them, as block_reduce().
    template <typename R> static DEV_MEMBER float reduce_of(u32 head, float v, float* part) {
        v = wave_reduce<R>(v);
        if (lane() == 0) part[wave()] = v;
        shared_barrier();
        v = part[head * N_WAVES];
#pragma unroll
        for (u32 i = 1; i < N_WAVES; i++) v = R::of(v, part[head * N_WAVES + i]);
        return v;
    }
};
