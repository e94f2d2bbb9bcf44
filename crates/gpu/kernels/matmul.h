// Shared by the GEMM kernels (format/matmul.hip, format/expert_matmul.hip).
#pragma once
#include "mma.h"
#include "quant.h"

constexpr u32 THREADS = 256;
constexpr u32 N_WAVES = THREADS / WARP_SIZE;

// Adds to the output instead of storing.
constexpr u32 ADD = 1;
// Blocks of all rows of some outputs start before those of the next outputs, so that weights are read once if the cache
// does not hold them. Otherwise, blocks of all outputs of some rows start first. bid_x() counts whichever comes first,
// bid_y() the other.
constexpr u32 ROWS_FIRST = 2;

struct MatmulParams {
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
    FIELDS(w, codes, scales, sums, x, bias, out, n_rows, flags)
};

// The output tile of a block: a block of outputs, and a block of rows counted from `row`.
struct Place {
    u32 out_block, row_block, row;
    DEV_MEMBER u32 first_out(u32 n) const { return out_block * n; }
    DEV_MEMBER u32 first_row(u32 n) const { return row + row_block * n; }
};

DEV void write_out(const MatmulParams& p, u32 row, u32 o, float v) {
    if (row >= p.n_rows || o >= p.w.n_out) return;
    if (p.bias) v += p.bias[o];
    float* to = p.out + (u64)row * p.w.n_out + o;
    *to = p.flags & ADD ? *to + v : v;
}

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
#define MATMUL_KERNEL(NAME, PARAMS) KERNEL_WITH(NAME, PARAMS, launch_bounds(THREADS, 2), )
#else
#define MATMUL_KERNEL(NAME, PARAMS) KERNEL(NAME, PARAMS, THREADS)
#endif
