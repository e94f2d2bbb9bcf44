// One tile product of the matrix units, for tests: c[16, 16] = a[16, K] b[16, K]^T, or b[K, 16] if transposed.
//
// One wave. Shared memory: 2 arrays of 16 rows of 48 bytes.
#include "mma.h"

constexpr u32 THREADS = WARP_SIZE;
constexpr u32 STRIDE = 48;

struct TileParams {
    // Rows of `row_bytes`.
    const u8* a;
    const u8* b;
    void* c;
    FIELDS(a, b, c)
};

EXPORT_U32(tile_threads, THREADS)

template <u32 ROW_BYTES, u32 N_ROWS> DEV void copy_rows(u8* to, const u8* from) {
    for (u32 i = tid(); i < ROW_BYTES * N_ROWS; i += THREADS) to[i / ROW_BYTES * STRIDE + i % ROW_BYTES] = from[i];
}

template <typename Tile, u32 ROW_BYTES, typename T> DEV void tile(const TileParams& p, T*) {
    SHARED(u8, a, 16 * STRIDE);
    SHARED(u8, b, 16 * STRIDE);
    copy_rows<ROW_BYTES, 16>(a, p.a);
    copy_rows<ROW_BYTES, 16>(b, p.b);
    barrier();
    typename Tile::Acc c = Tile::zero();
    Tile::mac(c, Tile::load_a(a, STRIDE), Tile::load_b(b, STRIDE));
    for (u32 e = 0; e < mma::ELEMENTS; e++) ((T*)p.c)[mma::row(e) * 16 + mma::col(e)] = c.v[e];
}

KERNEL(tile_i8_16, TileParams, THREADS) { tile<mma::I8<16>, 16>(p, (i32*)nullptr); }
KERNEL(tile_i8_32, TileParams, THREADS) { tile<mma::I8<32>, 32>(p, (i32*)nullptr); }
KERNEL(tile_f16_8, TileParams, THREADS) { tile<mma::F16<8>, 16>(p, (float*)nullptr); }
KERNEL(tile_f16, TileParams, THREADS) { tile<mma::F16<16>, 32>(p, (float*)nullptr); }
KERNEL(tile_f16_transposed, TileParams, THREADS) {
    SHARED(u8, a, 16 * STRIDE);
    SHARED(u8, b, 16 * STRIDE);
    copy_rows<32, 16>(a, p.a);
    copy_rows<32, 16>(b, p.b);
    barrier();
    mma::F16<16>::Acc c = mma::F16<16>::zero();
    mma::F16<16>::mac(c, mma::F16<16>::load_a(a, STRIDE), mma::F16<16>::load_b_transposed(b, STRIDE));
    for (u32 e = 0; e < mma::ELEMENTS; e++) ((float*)p.c)[mma::row(e) * 16 + mma::col(e)] = c.v[e];
}

// The same with accumulators whose values are read by I8::value.
KERNEL(tile_i8_started, TileParams, THREADS) {
    SHARED(u8, a, 16 * STRIDE);
    SHARED(u8, b, 16 * STRIDE);
    copy_rows<32, 16>(a, p.a);
    copy_rows<32, 16>(b, p.b);
    barrier();
    using Tile = mma::I8<32>;
    Tile::Acc c = Tile::start();
    Tile::mac(c, Tile::load_a(a, STRIDE), Tile::load_b(b, STRIDE));
    for (u32 e = 0; e < mma::ELEMENTS; e++) ((i32*)p.c)[mma::row(e) * 16 + mma::col(e)] = (i32)Tile::value(c.v[e]);
}
