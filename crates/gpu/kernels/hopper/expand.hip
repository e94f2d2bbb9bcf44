// Keys and values of all heads of latent attention, from the latent vectors of a cache in f16: for prompts, whose queries
// meet each key so often that narrow keys of each head cost less than the wide one that all heads share.
//
//     k[pos, head] = latent[pos, ..rank] . k_weights[head], then the rotated values latent[pos, rank..]
//     v[pos, head] = latent[pos, ..rank] . v_weights[head]^T
//
// expand_N_V: N values of a key are products, values have V. Block (head, 128 positions) of 256 threads, keys of all heads
// first, then values: each warpgroup has 64 positions and all columns of the head. 64 values of a latent vector and of the
// weights that meet them are a step; the copies of two steps are under way.
//
// Of one sequence, whose pages in k and v follow one another: [n_pages, n_heads, page, dim].
#define KEY_TYPE F16
#define VALUE_TYPE F16
#include "hopper/attend.h"

struct ExpandParams {
    // Latent vectors, [n_blocks, page, rank + n_rot].
    KvCache cache;
    // [n_heads, rank, N] and [n_heads, V, rank].
    const u16* k_weights;
    const u16* v_weights;
    u16* k;
    u16* v;
    u32 n_positions;
    u32 n_heads;
    u32 rank;
    u32 n_rot;
    FIELDS(cache, k_weights, v_weights, k, v, n_positions, n_heads, rank, n_rot)
};

constexpr u32 EXPAND_ROWS = 64 * GROUPS, STEPS = 3;
using Latents = wgmma::Rows<EXPAND_ROWS, wgmma::PANEL>;

// Ends the copies of a step, if any; waits for those after which LATER steps ended.
DEV void end_copies() {
#if defined(GPU_NV)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <u32 LATER> DEV void wait_for_steps() {
#if defined(GPU_NV)
    asm volatile("cp.async.wait_group %0;" : : "n"(LATER) : "memory");
#endif
}

// The products of a head with its keys' weights, whose rows are values of k, or with its values' weights.
template <u32 OUTS, bool OF_KEYS> struct Expand {
    using Weights = wgmma::Rows<OF_KEYS ? wgmma::PANEL : OUTS, OF_KEYS ? OUTS : wgmma::PANEL>;
    static constexpr u32 PLACE = Latents::BYTES + Weights::BYTES, BYTES = STEPS * PLACE;
    // The widths of the units' products.
    static constexpr u32 WIDE = OUTS == 192 ? 128 : OUTS, REST = OUTS - WIDE;
    // Pieces of 16 bytes of a row of latent vectors in a step, and rows that threads copy at a time.
    static constexpr u32 PIECES = 8, AT_A_TIME = ATTEND_THREADS / PIECES;

    const ExpandParams& p;
    u8* memory;
    u32 head, first;

    DEV_MEMBER Latents latents(u32 place) const { return {memory + place * PLACE}; }
    DEV_MEMBER Weights weights(u32 place) const { return {latents(place).memory + Latents::BYTES}; }

    // The latent vector of a position; of one past the last, another.
    DEV_MEMBER const u16* latent(u32 row) const {
        const u32 pos = min_of(first + row, p.n_positions - 1);
        return (const u16*)p.cache.k.codes + p.cache.slot(p.cache.block(0, pos), 0, pos) * (p.rank + p.n_rot);
    }
    // Where a position is among those of the heads, in rows.
    DEV_MEMBER u64 slot(u32 pos) const {
        const u32 shift = p.cache.page_shift, page = pos >> shift;
        return (((u64)page * p.n_heads + head) << shift) + (pos & ((1u << shift) - 1));
    }

    DEV_MEMBER void copy(const u16* const (&from)[EXPAND_ROWS / AT_A_TIME], u32 step, u32 place) const {
        const u32 piece = tid() % PIECES, k = step * wgmma::PANEL;
#pragma unroll
        for (u32 i = 0; i < EXPAND_ROWS / AT_A_TIME; i++)
            copy_later(latents(place).at(i * AT_A_TIME + tid() / PIECES, piece * 8), from[i] + k + piece * 8);
#pragma unroll
        for (u32 i = 0; i < OUTS / AT_A_TIME; i++) {
            if constexpr (OF_KEYS) {
                const u32 at = i * ATTEND_THREADS + tid(), row = at / (OUTS / 8), column = at % (OUTS / 8) * 8;
                copy_later(weights(place).at(row, column),
                           p.k_weights + ((u64)head * p.rank + k + row) * OUTS + column);
            } else {
                const u32 row = i * AT_A_TIME + tid() / PIECES;
                copy_later(weights(place).at(row, piece * 8),
                           p.v_weights + ((u64)head * OUTS + row) * p.rank + k + piece * 8);
            }
        }
    }

    // c += the product of 16 values of k with N columns from `column` on.
    template <u32 N> DEV_MEMBER void multiply(float (&c)[N / 2], u32 place, u32 k, u32 column) const {
        const wgmma::Operand x = wgmma::along(latents(place), group() * 64, k);
        if constexpr (OF_KEYS) wgmma::product_transposed(c, x, wgmma::transposed(weights(place), k, column));
        else wgmma::product(c, x, wgmma::along(weights(place), column, k));
    }

    template <u32 N> DEV_MEMBER void store(const float (&c)[N / 2], u16* to, u32 dim, u32 column) const {
#pragma unroll
        for (u32 e = 0; e < N / 2; e += 2) {
            const u32 pos = first + group() * 64 + row_of(index_of(e));
            if (pos < p.n_positions)
                *(u32*)(to + slot(pos) * dim + column + column_of(e)) = pack_halves(c[e], c[e + 1]);
        }
    }

    DEV_MEMBER void run() const {
        const u16* from[EXPAND_ROWS / AT_A_TIME];
#pragma unroll
        for (u32 i = 0; i < EXPAND_ROWS / AT_A_TIME; i++) from[i] = latent(i * AT_A_TIME + tid() / PIECES);
        const u32 n_steps = p.rank / wgmma::PANEL;
#pragma unroll
        for (u32 step = 0; step < STEPS - 1; step++) {
            if (step < n_steps) copy(from, step, step);
            end_copies();
        }
        float wide[WIDE / 2] = {}, rest[REST > 0 ? REST / 2 : 1] = {};
        for (u32 step = 0; step < n_steps; step++) {
            wait_for_steps<STEPS - 2>();
            wgmma::publish();
            barrier();
            if (step + STEPS - 1 < n_steps) copy(from, step + STEPS - 1, (step + STEPS - 1) % STEPS);
            end_copies();
            wgmma::begin();
#pragma unroll
            for (u32 k = 0; k < wgmma::PANEL; k += 16) {
                multiply<WIDE>(wide, step % STEPS, k, 0);
                if constexpr (REST > 0) multiply<REST>(rest, step % STEPS, k, WIDE);
            }
            wgmma::end();
            wgmma::wait<0>();
        }
        u16* const to = OF_KEYS ? p.k : p.v;
        const u32 dim = OF_KEYS ? OUTS + p.n_rot : OUTS;
        store<WIDE>(wide, to, dim, 0);
        if constexpr (REST > 0) store<REST>(rest, to, dim, WIDE);
        if constexpr (OF_KEYS) {
            const u32 n_pieces = p.n_rot / 8;
            for (u32 i = tid(); i < EXPAND_ROWS * n_pieces; i += ATTEND_THREADS) {
                const u32 row = i / n_pieces, at = i % n_pieces * 8;
                if (first + row < p.n_positions)
                    store16(to + slot(first + row) * dim + OUTS + at, load16(latent(row) + p.rank + at));
            }
        }
    }
};

template <u32 N, u32 V> struct ExpandHeads {
    using Keys = Expand<N, true>;
    using Values = Expand<V, false>;
    static constexpr u32 BYTES = Keys::BYTES > Values::BYTES ? Keys::BYTES : Values::BYTES;
    static constexpr u32 BLOCKS = BYTES <= 113 * 1024 ? 2 : 1;

    DEV_MEMBER static void run(const ExpandParams& p, u8* memory) {
        u8* const aligned = wgmma::aligned(memory);
        const u32 first = bid_y() * EXPAND_ROWS;
        if (bid_x() < p.n_heads) Keys{p, aligned, bid_x(), first}.run();
        else Values{p, aligned, bid_x() - p.n_heads, first}.run();
    }
};

#if defined(GPU_NV)
#define EXPAND_ENTRY(NAME) ENTRY(NAME, ExpandParams, launch_bounds(ATTEND_THREADS, NAME##_heads::BLOCKS))
#else
#define EXPAND_ENTRY(NAME) KERNEL(NAME, ExpandParams, ATTEND_THREADS)
#endif
// Also exports the dynamic shared memory of the kernel's blocks, which begins anywhere.
#define EXPAND(NAME, ...)                                                                                              \
    using NAME##_heads = ExpandHeads<__VA_ARGS__>;                                                                     \
    EXPORT_U32(NAME##_bytes, NAME##_heads::BYTES + wgmma::EIGHT_ROWS)                                                  \
    EXPAND_ENTRY(NAME) {                                                                                               \
        DYNAMIC_SHARED(u8, memory);                                                                                    \
        wait_for_predecessor();                                                                                        \
        let_successor_start();                                                                                         \
        NAME##_heads::run(p, memory);                                                                                  \
    }

EXPAND(expand_192_256, 192, 256)
EXPAND(expand_128_128, 128, 128)
EXPAND(expand_64_128, 64, 128)
