// Sorts the choices of up to 64 tokens by expert and then by token, in a block with a thread for each expert (experts.hip).
#pragma once
#include "route.h"

// MAX_SINGLE_BLOCK_TOKENS in src/ops/routing.rs; MAX_FEW_CHOICES there is MAX_CHOICES.
constexpr u32 MAX_MARKED_TOKENS = 64;

// For each expert a bit for each token that chose it; a token chooses an expert at most once. Two words for each thread,
// cleared by the thread before the block's first barrier.
struct Marks {
    u32* words;

    DEV_MEMBER void clear() const { words[2 * tid()] = words[2 * tid() + 1] = 0; }
    DEV_MEMBER void set(u32 expert, u32 token) const { fetch_add_shared(words + 2 * expert + token / 32, 1u << token % 32); }
    // How many of the first `n_tokens` tokens chose the expert.
    DEV_MEMBER u32 count(u32 expert, u32 n_tokens) const {
        const u64 all = (u64)words[2 * expert + 1] << 32 | words[2 * expert];
        return __builtin_popcountll(n_tokens < 64 ? all & ((1ull << n_tokens) - 1) : all);
    }
};

// Numbers of rows and of tiles of each kind, up to 2^16 - 1 each.
struct Counts {
    u32 words[2];
    static_assert(N_KINDS == 3);

    DEV_MEMBER static Counts of(const RouteParams& p, u32 n_rows) {
        const auto tiles = [&](u32 kind) { return div_up(n_rows, p.lists[kind].n_rows); };
        return {{n_rows | tiles(0) << 16, tiles(1) | tiles(2) << 16}};
    }
    DEV_MEMBER u32 rows() const { return words[0] & 0xffff; }
    DEV_MEMBER u32 tiles(u32 kind) const { return words[(kind + 1) / 2] >> (kind + 1) % 2 * 16 & 0xffff; }
    DEV_MEMBER Counts operator+(const Counts& other) const {
        return {{words[0] + other.words[0], words[1] + other.words[1]}};
    }
};

// `chosen` [n_tokens, n_choices] in shared memory: NO_EXPERT for padding rows. `part`: shared memory for a Counts of each wave.
// All threads must call it after a barrier.
template <u32 THREADS>
DEV void sort_marked(const RouteParams& p, const u32* chosen, const Marks& marks, u32* starts, Counts* part) {
    constexpr u32 N_WAVES = THREADS / WARP_SIZE;
    const u32 n = p.n_tokens * p.n_choices, expert = tid();
    // Waves after these have no experts. If there are any, the last entry of `part` is free for the sum of all.
    const u32 n_waves_of_experts = div_up(p.n_all(), WARP_SIZE);
    const bool has_experts = uniform(wave()) < n_waves_of_experts;
    for (u32 i = tid(); i < n; i += THREADS)
        if (chosen[i] != NO_EXPERT) marks.set(chosen[i], i / p.n_choices);
    shared_barrier();
    Counts own = {}, before = {}, all = {};
    if (has_experts) {
        own = before = Counts::of(p, expert < p.n_all() ? marks.count(expert, MAX_MARKED_TOKENS) : 0);
#pragma unroll
        for (u32 step = 1; step < WARP_SIZE; step *= 2) {
            const Counts other = {{shuffle(before.words[0], lane() - step), shuffle(before.words[1], lane() - step)}};
            if (lane() >= step) before = before + other;
        }
        if (lane() == WARP_SIZE - 1) part[wave()] = before;
    }
    shared_barrier();
    if (has_experts) {
        before = {{before.words[0] - own.words[0], before.words[1] - own.words[1]}};
        for (u32 w = 0; w < n_waves_of_experts; w++) {
            if (w < wave()) before = before + part[w];
            all = all + part[w];
        }
        starts[expert] = before.rows();
        if (tid() == 0) {
            *p.n_rows = all.rows();
            if (n_waves_of_experts < N_WAVES) part[N_WAVES - 1] = all;
        }
    }
    shared_barrier();
    for (u32 i = tid(); i < n; i += THREADS) {
        const u32 of = chosen[i], token = i / p.n_choices;
        u32 row = NO_ROW;
        if (of != NO_EXPERT) {
            row = starts[of] + marks.count(of, token);
            p.tokens[row] = token;
        }
        p.rows[i] = row;
    }
    if (!has_experts) all = part[N_WAVES - 1];
#pragma unroll
    for (u32 kind = 0; kind < N_KINDS; kind++) {
        const TileList& list = p.lists[kind];
        const u32 n_tiles = all.tiles(kind);
        ExpertTile tile = {expert, before.rows(), 0, n_tiles};
        for (u32 t = 0; t < own.tiles(kind); t++, tile.first_row += list.n_rows) {
            tile.n_rows = min_of(before.rows() + own.rows() - tile.first_row, list.n_rows);
            store16(list.tiles + before.tiles(kind) + t, bits<u32x4>(tile));
        }
        tile = {NO_EXPERT, 0, 0, n_tiles};
        for (u32 t = n_tiles + tid(); t < list.len; t += THREADS) store16(list.tiles + t, bits<u32x4>(tile));
    }
}
