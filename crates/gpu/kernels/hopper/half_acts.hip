// Activations as GEMM with f16 takes them (gemm/half.h): f16 numbers in the order of B of wgmma (gemm/wgmma.h),
// [n_in / 64, parts, n_octets, 4, 2, 8] pieces of 16 bytes, with zeros past n_in and past n_rows.
//
// - For quantized weights: int8 codes with scales, rounded. There is one part.
// - For float weights: f32 numbers x = hi + lo, 22 bits. The parts are hi and lo.
//
// Of 128 values of k, lane q of a group of four multiplies 32 values in 8 products of 16 values (gemm/half_weights.h). In
// product s it has four of them, two of each half of the product's k.
//
// The GEMM of few rows (gemm/half_few.h) takes another order, [n_in / 64, parts, n_octets, 2, 32] pieces: a piece has the values
// that a lane multiplies in two products.
//
// A row is multiplied by a power of two, so that no value overflows; `factors` undoes it.
//
// Of experts, each tile of rows has octets of its own, since a tile may begin within eight rows (half_tile.h).
//
// A block has 8 rows, and 64 threads for each 128 values of them. The grid is [octets of rows, n_columns].
#include "gemm/gemm.h"
#include "gemm/half_tile.h"
#include "hopper/half_acts.h"

constexpr u32 ROWS = 8, CODES_THREADS = 256, FLOATS_THREADS = 1024;

struct HalfActsParams {
    // Codes and scales, or values.
    const i8* codes;
    const float* scales;
    const float* values;
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
    u32 n_columns;
    FIELDS(codes, scales, values, x, factors, tiles, n_rows, width, n_octets, tile_octets, is_few, n_columns)
};

// The rows of a block.
struct Octet {
    u32 at, first_row, end_row;

    // Returns whether there are any.
    DEV_MEMBER bool find(const HalfActsParams& p) {
        at = bid_x(), first_row = at * ROWS, end_row = p.n_rows;
        if (!p.tiles) return true;
        const u32 tile_index = at / p.tile_octets, in_tile = at % p.tile_octets;
        const ExpertTile tile = tile_at(p.tiles, tile_index);
        if (tile.expert == NO_EXPERT || in_tile * ROWS >= tile.n_rows) return false;
        at = first_octet(tile, tile_index) + in_tile;
        first_row = tile.first_row + in_tile * ROWS;
        end_row = tile.first_row + tile.n_rows;
        return true;
    }
};

// Writes those of product s of 128 values.
DEV void write(const HalfActsParams& p, const Octet& octet, u32 row, u32 block, u32 s, u32 n_parts, u32 part, const Pairs& v) {
    u8* to = place_of_product(p.x, p.n_octets, octet.at, block, s, n_parts, part);
    if (p.is_few) {
        to += s % 4 / 2 * (WARP_SIZE * 16) + row * 64 + s % 2 * 8;
#pragma unroll
        for (u32 q = 0; q < 4; q++) *(u32x2*)(to + q * 16) = u32x2{{v.first.v[q], v.second.v[q]}};
    } else {
        store_of_b(to, row, s, v);
    }
}

// Calls `each(row of the octet, 128 values, product of these)` for the block's share.
template <u32 THREADS, typename F> DEV void each_product(const HalfActsParams& p, F each) {
    const u32 n_blocks = div_up(p.width, 128u);
    for (u32 i = bid_y() * THREADS + tid(); i < n_blocks * 64; i += p.n_columns * THREADS) each(i % ROWS, i / 64, i / ROWS % 8);
}

template <u32 ACT_BLOCK> DEV void of_codes(const HalfActsParams& p) {
    static_assert(CODES_THREADS / WARP_SIZE == ROWS, "each wave finds the scale of a row");
    SHARED(float, ups, ROWS);
    const u32 n_scales = p.width / ACT_BLOCK;
    Octet octet;
    if (!octet.find(p)) return;
    {
        const u32 row = octet.first_row + wave();
        u32 largest = 0;
        if (row < octet.end_row)
            for (u32 i = lane(); i < n_scales; i += WARP_SIZE)
                largest = max_of(largest, bits<u32>(p.scales[(u64)row * n_scales + i]) & 0x7fffffffu);
        const float up = up_of_scales(wave_max(largest));
        if (lane() == 0) {
            ups[wave()] = up;
            if (bid_y() == 0 && row < octet.end_row) p.factors[row] = 1.0f / up;
        }
    }
    barrier();
    each_product<CODES_THREADS>(p, [&](u32 in_octet, u32 block, u32 s) __attribute__((always_inline)) {
        const u32 row = octet.first_row + in_octet;
        Pairs pairs = {};
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            const u32 at = block * 128 + 32 * q + 4 * s;
            if (row >= octet.end_row || at >= p.width) continue;
            const u32 codes = *(const u32*)(p.codes + (u64)row * p.width + at);
            const float scale = p.scales[(u64)row * n_scales + at / ACT_BLOCK] * ups[in_octet];
            const u32x2 halves = halves_of(codes, scale);
            pairs.first.v[q] = halves.v[0], pairs.second.v[q] = halves.v[1];
        }
        write(p, octet, in_octet, block, s, 1, 0, pairs);
    });
}

KERNEL(half_acts_q8x32, HalfActsParams, CODES_THREADS) { of_codes<32>(p); }
KERNEL(half_acts_q8x256, HalfActsParams, CODES_THREADS) { of_codes<256>(p); }

KERNEL(half_acts_f32, HalfActsParams, FLOATS_THREADS) {
    // Waves that find the largest value of a row.
    constexpr u32 SHARERS = FLOATS_THREADS / WARP_SIZE / ROWS;
    SHARED(u32, largest, ROWS * SHARERS);
    Octet octet;
    if (!octet.find(p)) return;
    const bool whole = p.width % 4 == 0;
    {
        const u32 row = octet.first_row + wave() / SHARERS;
        const FloatRow x = {p.values + (u64)row * p.width, row < octet.end_row ? p.width : 0, whole};
        u32 most = 0;
#pragma unroll 4
        for (u32 at = (wave() % SHARERS * WARP_SIZE + lane()) * 4; at < x.n_in; at += SHARERS * WARP_SIZE * 4) {
            const f32x4 four = x.load(at);
#pragma unroll
            for (u32 j = 0; j < 4; j++) most = max_of(most, bits<u32>(four.v[j]) & 0x7fffffffu);
        }
        most = wave_max(most);
        if (lane() == 0) largest[wave()] = most;
    }
    barrier();
    each_product<FLOATS_THREADS>(p, [&](u32 in_octet, u32 block, u32 s) __attribute__((always_inline)) {
        u32 most = 0;
#pragma unroll
        for (u32 i = 0; i < SHARERS; i++) most = max_of(most, largest[in_octet * SHARERS + i]);
        // The largest value becomes a number below 2^15.
        const u32 exponent = most >> 23, row = octet.first_row + in_octet;
        const float up = exponent == 0xff ? 1.0f : bits<float>((268 - max_of(exponent, 15u)) << 23);
        const bool is_in = row < octet.end_row;
        if (block == 0 && s == 0 && is_in) p.factors[row] = 1.0f / up;
        const FloatRow x = {p.values + (u64)row * p.width, is_in ? p.width : 0, whole};
        Pairs hi, lo;
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            const f32x4 four = x.load(block * 128 + 32 * (s / 2) + 8 * q + 4 * (s % 2));
            float v[4], rest[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) v[j] = four.v[j] * up, rest[j] = v[j] - h2f(f2h(v[j]));
            hi.first.v[q] = pack_halves(v[0], v[1]), hi.second.v[q] = pack_halves(v[2], v[3]);
            lo.first.v[q] = pack_halves(rest[0], rest[1]), lo.second.v[q] = pack_halves(rest[2], rest[3]);
        }
        write(p, octet, in_octet, block, s, 2, 0, hi);
        write(p, octet, in_octet, block, s, 2, 1, lo);
    });
}
