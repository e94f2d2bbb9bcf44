// GEMM at the level of a block: gemm<Mainloop, Epilogue, Scheduler>(p). The jobs of a launch: jobs.h.
//
// A mainloop computes a tile of ROWS rows of x by OUTS outputs with THREADS threads and at most SHARED bytes of shared
// memory, in whatever way suits the units of a GPU: synchronous or not, with operands in registers or in shared memory.
// Mainloops with equal ORDER add the terms of a sum in the same order, so that results have the same bits.
//
//     struct Mainloop {
//         static constexpr u32 ROWS, OUTS, THREADS, SHARED, ORDER;
//         static constexpr u32 ELEMENTS;            // a thread's part of the tile
//         bool run(const One& one, const Tile& t);  // false: this thread has no part of the result
//         u32 row(u32 e) const, col(u32 e) const;   // place of element e in the tile: a row of x, an output
//         float value(u32 e) const;
//     };
//
// A scheduler gives a block its tiles of the launch's jobs. An epilogue takes the elements. tiles.h has a table of the
// tiles of each mainloop.
#pragma once
#include "jobs.h"
#include "mma.h"

// The output tile of a block: its first output and its first row of x.
struct Tile {
    u32 first_out, first_row;
};

// One product. The grid is [blocks of outputs, blocks of rows], or the reverse with ROWS_FIRST.
struct Dense {
    template <typename Mainloop, typename F> DEV_MEMBER static void each_tile(const One& p, F take) {
        const bool rows_first = p.mode & ROWS_FIRST;
        const u32 out_block = rows_first ? bid_y() : bid_x(), row_block = rows_first ? bid_x() : bid_y();
        take(p, Tile{out_block * Mainloop::OUTS, row_block * Mainloop::ROWS});
    }
};

// A product of rows of one expert, with the factor on it.
struct OfExpert : One {
    float scale;
};

// The tiles of an MoE layer's experts. The grid is [tiles, blocks of outputs].
struct Experts {
    template <typename Mainloop, typename F> DEV_MEMBER static void each_tile(const One& p, F take) {
        const ExpertTile tile = tile_at(p.tiles, bid_x());
        if (tile.expert == NO_EXPERT) return;
        OfExpert own = {p, p.expert_scales ? p.expert_scales[tile.expert] : 1.0f};
        own.w.data = matrix_of(tile.expert, p.w.data, p.expert_bytes, p.n_stacked, p.shared);
        if (own.bias) own.bias += tile.expert * own.w.n_out;
        own.out = moved(own.out, tile.expert * p.out_skip);
        own.n_rows = tile.first_row + tile.n_rows;
        take(own, Tile{bid_y() * Mainloop::OUTS, tile.first_row});
    }
};

// Adds the bias and stores the result, or adds it to the output.
struct Store {
    DEV_MEMBER static void element(const One& one, u32 row, u32 o, float v) {
        if (row >= one.n_rows || o >= one.w.n_out) return;
        if (one.bias) v += one.bias[o];
        float* to = one.out + (u64)row * one.out_stride + o;
        *to = one.mode & ADD ? *to + v : v;
    }
    DEV_MEMBER static void element(const OfExpert& own, u32 row, u32 o, float v) {
        element((const One&)own, row, o, v * own.scale);
    }
};

template <typename Mainloop, typename Epilogue, typename Scheduler> DEV void gemm(const One& p) {
    Scheduler::template each_tile<Mainloop>(p, [](const auto& one, const Tile& t) __attribute__((always_inline)) {
        Mainloop loop;
        if (!loop.run(one, t)) return;
#pragma unroll
        for (u32 e = 0; e < Mainloop::ELEMENTS; e++)
            Epilogue::element(one, t.first_row + loop.row(e), t.first_out + loop.col(e), loop.value(e));
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

// A row of f32 activations.
struct FloatRow {
    const float* values;
    u32 n_in;
    // Whether four values from any multiple of four on can be loaded at once.
    bool whole;

    DEV_MEMBER static FloatRow of(const One& one, u32 row) {
        const u32 n_in = one.w.n_in;
        return {(const float*)one.x + (u64)row * n_in, n_in, n_in % 4 == 0 && (u64)one.x % 16 == 0};
    }
    // Values k .. k + 3, zeros past the end of the row.
    DEV_MEMBER f32x4 load(u32 k) const {
        f32x4 four = {};
        if (whole) {
            if (k < n_in) four = bits<f32x4>(load16(values + k));
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                if (k + i < n_in) four.v[i] = values[k + i];
        }
        return four;
    }
};

// On NVIDIA, where the driver's compiler decides on registers, limits them to what two blocks at a time allow: one
// loads while the other multiplies. No successor starts early: its blocks would crowd the processors that finish first.
#if defined(GPU_NV)
#define GEMM_KERNEL(NAME, THREADS) KERNEL_WITH(NAME, One, launch_bounds(THREADS, 2), )
#else
#define GEMM_KERNEL(NAME, THREADS) KERNEL(NAME, One, THREADS)
#endif
