// GEMM at the level of a block: gemm<Mainloop, Epilogue, Scheduler>(p).
//
//     out[row, o] (+)= sum_i x[row, i] w[o, i] + bias[o]
//
// A mainloop computes a tile of ROWS rows of x by OUTS outputs with THREADS threads and at most SHARED bytes of shared
// memory, in whatever way suits the units of a GPU: synchronous or not, with operands in registers or in shared memory.
// Mainloops with equal ORDER add the terms of a sum in the same order, so that results have the same bits.
//
//     struct Mainloop {
//         static constexpr u32 ROWS, OUTS, THREADS, SHARED, ORDER;
//         static constexpr u32 ELEMENTS;            // a thread's part of the tile
//         bool run(const Params& p, const Tile& t); // false: this thread has no part of the result
//         u32 row(u32 e) const, col(u32 e) const;   // place of element e in the tile: a row of x, an output
//         float value(u32 e) const;
//     };
//
// A scheduler gives a block its tiles: Dense for one product, Experts for the rows of each expert with that expert's
// matrix. An epilogue takes the elements. tiles.h has a table of the tiles of each mainloop.
#pragma once
#include "experts.h"
#include "mma.h"
#include "quant.h"

// Adds to the output instead of storing.
constexpr u32 ADD = 1;
// Blocks of all rows of some outputs start before those of the next outputs, so that weights are read once if the cache
// does not hold them. Otherwise, blocks of all outputs of some rows start first. bid_x() counts whichever comes first,
// bid_y() the other.
constexpr u32 ROWS_FIRST = 2;

struct GemmParams {
    Weights w;
    // Quantized: [n_rows, n_in] codes, [n_rows, n_in / ACT_BLOCK] scales, [n_rows, n_in / 16] sums of 16 codes.
    const i8* codes;
    const float* scales;
    const i16* sums;
    // Floats: [n_rows, n_in].
    const float* x;
    // [n_out] or null.
    const float* bias;
    // [n_rows, n_out].
    float* out;
    u32 n_rows;
    // Bits ADD and ROWS_FIRST.
    u32 flags;
    // Experts: the tiles of all experts, and the distance of their matrices, which follow one another.
    const ExpertTile* tiles;
    u64 expert_bytes;
    FIELDS(w, codes, scales, sums, x, bias, out, n_rows, flags, tiles, expert_bytes)
};

// The output tile of a block: its first output and its first row of x.
struct Tile {
    u32 first_out, first_row;
};

// One product. The grid is [blocks of outputs, blocks of rows], or the reverse with ROWS_FIRST.
struct Dense {
    template <typename Mainloop, typename Params, typename F>
    DEV_MEMBER static void each_tile(const Params& p, F take) {
        const bool rows_first = p.flags & ROWS_FIRST;
        const u32 out_block = rows_first ? bid_y() : bid_x(), row_block = rows_first ? bid_x() : bid_y();
        take(p, Tile{out_block * Mainloop::OUTS, row_block * Mainloop::ROWS});
    }
};

// The products of the rows of each expert with that expert's matrix, without bias. The grid is [tiles of experts,
// blocks of outputs]. Tiles past the last have no expert.
struct Experts {
    template <typename Mainloop, typename F> DEV_MEMBER static void each_tile(const GemmParams& p, F take) {
        const ExpertTile tile = tile_at(p.tiles, bid_x());
        if (tile.expert == NO_EXPERT) return;
        GemmParams own = p;
        own.w.data += tile.expert * p.expert_bytes;
        own.n_rows = tile.first_row + tile.n_rows;
        take(own, Tile{bid_y() * Mainloop::OUTS, tile.first_row});
    }
};

// Adds the bias and stores the result, or adds it to the output.
struct Store {
    template <typename Params> DEV_MEMBER static void element(const Params& p, u32 row, u32 o, float v) {
        if (row >= p.n_rows || o >= p.w.n_out) return;
        if (p.bias) v += p.bias[o];
        float* to = p.out + (u64)row * p.w.n_out + o;
        *to = p.flags & ADD ? *to + v : v;
    }
};

template <typename Mainloop, typename Epilogue, typename Scheduler, typename Params> DEV void gemm(const Params& p) {
    Scheduler::template each_tile<Mainloop>(p, [](const Params& p, const Tile& t) __attribute__((always_inline)) {
        Mainloop loop;
        if (!loop.run(p, t)) return;
#pragma unroll
        for (u32 e = 0; e < Mainloop::ELEMENTS; e++)
            Epilogue::element(p, t.first_row + loop.row(e), t.first_out + loop.col(e), loop.value(e));
    });
}

// Exports the tile of the kernel NAME.
#define EXPORT_TILE(NAME, MAINLOOP)                                                                                    \
    EXPORT_U32(NAME##_tile_rows, (MAINLOOP::ROWS))                                                                     \
    EXPORT_U32(NAME##_tile_outs, (MAINLOOP::OUTS))                                                                     \
    EXPORT_U32(NAME##_tile_threads, (MAINLOOP::THREADS))                                                               \
    EXPORT_U32(NAME##_tile_shared, (MAINLOOP::SHARED))                                                                 \
    EXPORT_U32(NAME##_tile_order, (MAINLOOP::ORDER))

// Loads the numbers of a lane's ROWS or COLS of a tile.
template <u32 N> DEV void load_floats(float* to, const float* from) {
    u32 words[N];
    mma::load_words<N>(words, from);
#pragma unroll
    for (u32 i = 0; i < N; i++) to[i] = bits<float>(words[i]);
}

// On NVIDIA, where the driver's compiler decides on registers, limits them to what two blocks at a time allow: one
// loads while the other multiplies. No successor starts early: its blocks would crowd the processors that finish first.
#if defined(GPU_NV)
#define GEMM_KERNEL(NAME, PARAMS, THREADS) KERNEL_WITH(NAME, PARAMS, launch_bounds(THREADS, 2), )
#else
#define GEMM_KERNEL(NAME, PARAMS, THREADS) KERNEL(NAME, PARAMS, THREADS)
#endif
