// Matrix products of values that never leave the registers: the peak rate of the matrix units.
//
// a, b [16] rows of 32 bytes, the same for all waves; sums [n_blocks * THREADS]: the sum of each thread's accumulators.
// A wave multiplies 16 x 16 tiles of 32 bytes of k UNROLLED * n_steps times into each of TILES accumulators, so that no
// instruction waits for its predecessor. Accumulator i starts as i everywhere, so that no two are equal.
//
// Blocks of 256 threads. Shared memory: 2 arrays of 16 rows of 48 bytes.
#include "mma.h"

constexpr u32 THREADS = 256;
constexpr u32 TILES = 6;
constexpr u32 UNROLLED = 4;
constexpr u32 STRIDE = 48;

struct ArithmeticParams {
    const u8* a;
    const u8* b;
    void* sums;
    u32 n_steps;
    u32 pad;
    FIELDS(a, b, sums, n_steps, pad)
};

EXPORT_U32(arithmetic_tiles, TILES)
EXPORT_U32(arithmetic_unrolled, UNROLLED)
EXPORT_U32(arithmetic_wave, WARP_SIZE)

template <typename Tile, typename T> DEV void multiply_all(const ArithmeticParams& p) {
    SHARED(u8, a_rows, 16 * STRIDE);
    SHARED(u8, b_rows, 16 * STRIDE);
    for (u32 i = tid(); i < 16 * 32; i += THREADS) {
        a_rows[i / 32 * STRIDE + i % 32] = p.a[i];
        b_rows[i / 32 * STRIDE + i % 32] = p.b[i];
    }
    barrier();
    auto a = Tile::load_a(a_rows, STRIDE);
    auto b = Tile::load_b(b_rows, STRIDE);
    typename Tile::Acc acc[TILES];
#pragma unroll
    for (u32 i = 0; i < TILES; i++)
        for (u32 e = 0; e < mma::ELEMENTS; e++) acc[i].v[e] = (T)i;
    for (u32 step = 0; step < p.n_steps; step++)
#pragma unroll
        for (u32 u = 0; u < UNROLLED; u++)
#pragma unroll
            for (u32 i = 0; i < TILES; i++) Tile::mac(acc[i], a, b);
    T sum = 0;
#pragma unroll
    for (u32 i = 0; i < TILES; i++)
        for (u32 e = 0; e < mma::ELEMENTS; e++) sum += acc[i].v[e];
    ((T*)p.sums)[bid_x() * THREADS + tid()] = sum;
}

KERNEL(multiply_i8, ArithmeticParams, THREADS) { multiply_all<mma::I8<32>, i32>(p); }
KERNEL(multiply_f16, ArithmeticParams, THREADS) { multiply_all<mma::F16<16>, float>(p); }
