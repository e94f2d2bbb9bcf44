// Activations as GEMM with f16 takes them (gemm/half.h): int8 codes with scales -> f16 numbers in the order of B of
// wgmma (gemm/wgmma.h), [n_in / 64, n_octets, 4, 2, 8] pieces of 16 bytes, with zeros past n_in and past n_rows.
//
// Of 128 values of k, lane q of a group of four multiplies 32 q .. 32 q + 31, in 8 products of 16 values. In product s
// it has values 32 q + 4 s .. + 3: the first and the third belong to the first half of k, the others to the second.
//
// The GEMM of few rows (gemm/half_few.h) takes another order, [n_in / 64, n_octets, 2, 32] pieces: a piece has the values that
// a lane multiplies in two products.
//
// A row is multiplied by a power of two, so that no value overflows; `factors` undoes it.
//
// Of experts, each tile of rows has octets of its own, since a tile may begin within eight rows (half_tile.h).
//
// A block of 256 threads converts 8 rows by 1,024 values. The grid is [octets of rows, parts of 1,024 values].
#include "gemm/half_tile.h"
#include "gemm/wgmma.h"

constexpr u32 THREADS = 256, ROWS = 8, BLOCKS_OF_128 = 8;
static_assert(THREADS / WARP_SIZE == ROWS, "each wave finds the scale of a row");

struct HalfActsParams {
    const i8* codes;
    const float* scales;
    // [n_in / 64, n_octets], 1,024 bytes each.
    u8* x;
    // [n_rows]
    float* factors;
    // Of an MoE layer, or null; and how many octets the grid has for each of these tiles.
    const ExpertTile* tiles;
    u32 n_rows;
    u32 width;
    u32 n_octets;
    u32 tile_octets;
    // Whether the order is that of the GEMM of few rows.
    u32 is_few;
    u32 pad;
    FIELDS(codes, scales, x, factors, tiles, n_rows, width, n_octets, tile_octets, is_few, pad)
};

template <u32 ACT_BLOCK> DEV void half_acts(const HalfActsParams& p) {
    SHARED(float, ups, ROWS);
    const u32 n_scales = p.width / ACT_BLOCK;
    u32 octet = bid_x(), first_row = octet * ROWS, end_row = p.n_rows;
    if (p.tiles) {
        const u32 at = octet / p.tile_octets, in_tile = octet % p.tile_octets;
        const ExpertTile tile = tile_at(p.tiles, at);
        if (tile.expert == NO_EXPERT || in_tile * ROWS >= tile.n_rows) return;
        octet = first_octet(tile, at) + in_tile;
        first_row = tile.first_row + in_tile * ROWS;
        end_row = tile.first_row + tile.n_rows;
    }
    {
        const u32 row = first_row + wave();
        u32 largest = 0;
        if (row < end_row)
            for (u32 i = lane(); i < n_scales; i += WARP_SIZE)
                largest = max_of(largest, bits<u32>(p.scales[(u64)row * n_scales + i]) & 0x7fffffffu);
        // 127 times the largest scale becomes a number below 2^15.
        const u32 exponent = wave_max(largest) >> 23;
        const float up = exponent == 0xff ? 1.0f : bits<float>((261 - max_of(exponent, 8u)) << 23);
        if (lane() == 0) {
            ups[wave()] = up;
            if (bid_y() == 0 && row < end_row) p.factors[row] = 1.0f / up;
        }
    }
    barrier();
#pragma unroll
    for (u32 i = tid(); i < ROWS * BLOCKS_OF_128 * 8; i += THREADS) {
        const u32 in_octet = i % ROWS, row = first_row + in_octet, s = i / ROWS % 8;
        const u32 block = bid_y() * BLOCKS_OF_128 + i / (ROWS * 8);
        if (block * 128 >= p.width) continue;
        u32x4 first = {}, second = {};
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            const u32 at = block * 128 + 32 * q + 4 * s;
            if (row >= end_row || at >= p.width) continue;
            const u32 codes = *(const u32*)(p.codes + (u64)row * p.width + at);
            const float scale = p.scales[(u64)row * n_scales + at / ACT_BLOCK] * ups[in_octet];
            float v[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) v[j] = (float)(i8)(codes >> 8 * j) * scale;
            first.v[q] = pack_halves(v[0], v[2]);
            second.v[q] = pack_halves(v[1], v[3]);
        }
        u8* to = p.x + ((u64)(2 * block + s / 4) * p.n_octets + octet) * wgmma::OCTET_BYTES;
        if (p.is_few) {
            to += s % 4 / 2 * (WARP_SIZE * 16) + in_octet * 64 + s % 2 * 8;
#pragma unroll
            for (u32 q = 0; q < 4; q++) *(u32x2*)(to + q * 16) = u32x2{{first.v[q], second.v[q]}};
        } else {
            to += s % 4 * wgmma::ALONG_STEP + in_octet * 16;
            store16(to, first);
            store16(to + wgmma::ALONG_K, second);
        }
    }
}

KERNEL(half_acts_q8x32, HalfActsParams, THREADS) { half_acts<32>(p); }
KERNEL(half_acts_q8x256, HalfActsParams, THREADS) { half_acts<256>(p); }
