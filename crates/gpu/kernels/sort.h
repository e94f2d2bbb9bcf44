// Sorts choices by expert and then by token, with a block for each expert, which needs no other (experts.hip).
//
// A block counts the choices of all experts, which tells where its rows and tiles begin. It marks the tokens that chose its
// expert by a bit each, since a token chooses an expert at most once; the marks before a token's are its rank.
#pragma once
#include "route.h"

// MAX_EXPERTS in src/ops/routing/buffer.rs, SORT_THREADS in src/ops/routing.rs.
constexpr u32 MAX_EXPERTS = 1024, SORT_THREADS = 256;
// Tokens that are marked at once, by a word of each thread.
constexpr u32 MAX_MARKS = SORT_THREADS * 32;

// Numbers of rows, and of tiles of each kind.
struct RowsAndTiles {
    u32 rows, tiles[N_KINDS];

    DEV_MEMBER void add(const RouteParams& p, u32 n_rows) {
        rows += n_rows;
#pragma unroll
        for (u32 kind = 0; kind < N_KINDS; kind++) tiles[kind] += div_up(n_rows, p.lists[kind].n_rows);
    }
    // Sums over the threads of the block. `part`: shared memory for one of each wave.
    DEV_MEMBER RowsAndTiles sum(RowsAndTiles* part) const {
        RowsAndTiles of_wave = {wave_sum(rows), {}}, all = {};
#pragma unroll
        for (u32 kind = 0; kind < N_KINDS; kind++) of_wave.tiles[kind] = wave_sum(tiles[kind]);
        if (lane() == 0) part[wave()] = of_wave;
        shared_barrier();
        for (u32 w = 0; w < SORT_THREADS / WARP_SIZE; w++) {
            all.rows += part[w].rows;
#pragma unroll
            for (u32 kind = 0; kind < N_KINDS; kind++) all.tiles[kind] += part[w].tiles[kind];
        }
        return all;
    }
};

// The sum over the threads before this one, and over all. `part`: shared memory for a number of each wave.
struct Sums {
    u32 before, all;
};
DEV Sums sums_before(u32 v, u32* part) {
    u32 sum = v;
#pragma unroll
    for (u32 step = 1; step < WARP_SIZE; step *= 2) {
        const u32 other = shuffle(sum, lane() - step);
        if (lane() >= step) sum += other;
    }
    if (lane() == WARP_SIZE - 1) part[wave()] = sum;
    shared_barrier();
    Sums sums = {sum - v, 0};
    for (u32 w = 0; w < SORT_THREADS / WARP_SIZE; w++) {
        if (w < wave()) sums.before += part[w];
        sums.all += part[w];
    }
    return sums;
}

// Calls `each(choice, expert)` for the thread's share of choices, whose loads are under way together.
template <typename F> DEV void each_choice(const u32* experts, u32 n, F each) {
    constexpr u32 AT_ONCE = 8;
    for (u32 start = tid(); start < n; start += AT_ONCE * SORT_THREADS) {
        u32 of[AT_ONCE];
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) of[j] = start + j * SORT_THREADS < n ? experts[start + j * SORT_THREADS] : NO_EXPERT;
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++)
            if (start + j * SORT_THREADS < n) each(start + j * SORT_THREADS, of[j]);
    }
}

DEV void sort_expert(const RouteParams& p) {
    SHARED(u32, counts, MAX_EXPERTS);
    SHARED(RowsAndTiles, of_waves, 2 * SORT_THREADS / WARP_SIZE);
    SHARED(u32, marks, SORT_THREADS);
    SHARED(u32, first_rows, SORT_THREADS);
    SHARED(u32, part, SORT_THREADS / WARP_SIZE);
    const u32 n = p.n_tokens * p.n_choices, n_experts = p.n_all(), expert = bid_x();
    for (u32 e = tid(); e < n_experts; e += SORT_THREADS) counts[e] = 0;
    shared_barrier();
    each_choice(p.experts, n, [&](u32 i, u32 of) {
        if (of != NO_EXPERT) fetch_add_shared(counts + of, 1);
        else if (expert == 0) p.rows[i] = NO_ROW;
    });
    shared_barrier();
    RowsAndTiles all = {}, before = {};
    for (u32 e = tid(); e < n_experts; e += SORT_THREADS) {
        all.add(p, counts[e]);
        if (e < expert) before.add(p, counts[e]);
    }
    all = all.sum(of_waves), before = before.sum(of_waves + SORT_THREADS / WARP_SIZE);
    if (expert == 0 && tid() == 0) *p.n_rows = all.rows;

    u32 first_row = before.rows;
    for (u32 first = 0; first < p.n_tokens; first += MAX_MARKS) {
        const u32 end = min_of(p.n_tokens - first, MAX_MARKS) * p.n_choices;
        const u32* experts = p.experts + (u64)first * p.n_choices;
        marks[tid()] = 0;
        shared_barrier();
        each_choice(experts, end, [&](u32 i, u32 of) {
            if (of == expert) fetch_add_shared(marks + i / p.n_choices / 32, 1u << i / p.n_choices % 32);
        });
        shared_barrier();
        const Sums sums = sums_before(__builtin_popcount(marks[tid()]), part);
        first_rows[tid()] = first_row + sums.before;
        first_row += sums.all;
        shared_barrier();
        each_choice(experts, end, [&](u32 i, u32 of) {
            if (of != expert) return;
            const u32 token = i / p.n_choices, of_word = marks[token / 32] & ((1u << token % 32) - 1);
            const u32 row = first_rows[token / 32] + __builtin_popcount(of_word);
            p.rows[(u64)first * p.n_choices + i] = row;
            p.tokens[row] = first + token;
        });
        shared_barrier();
    }

#pragma unroll
    for (u32 kind = 0; kind < N_KINDS; kind++) {
        const TileList& list = p.lists[kind];
        const u32 end_row = before.rows + counts[expert], n_tiles = all.tiles[kind];
        for (u32 t = tid(); t < div_up(counts[expert], list.n_rows); t += SORT_THREADS) {
            const u32 row = before.rows + t * list.n_rows;
            const ExpertTile tile = {expert, row, min_of(end_row - row, list.n_rows), n_tiles};
            store16(list.tiles + before.tiles[kind] + t, bits<u32x4>(tile));
        }
        const ExpertTile none = {NO_EXPERT, 0, 0, n_tiles};
        for (u32 t = n_tiles + expert * SORT_THREADS + tid(); t < list.len; t += n_experts * SORT_THREADS)
            store16(list.tiles + t, bits<u32x4>(none));
    }
}
