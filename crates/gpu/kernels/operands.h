// Products whose results are operands of further products, as in attention: c[query, other] += q[query, k] key[other, k].
//
// On matrix units where a lane holds whole columns of C, queries are the columns: all results of a lane belong to one
// query, and become an operand without any exchange. On NVIDIA, lanes hold rows of C, and queries are the rows. So they are
// with dot product instructions (gfx10, gfx906), whose results become an operand through shared memory.
#pragma once
#include "lanes.h"
#include "mma.h"
#include "team.h"

using mma::ELEMENTS;
using Tile = mma::F16<16>;

// Which queries a lane has in an accumulator of scores or outputs, and which lanes share a query.
#if defined(GPU_NVIDIA) || defined(MMA_DOT)
constexpr u32 N_QUERIES = mma::ROWS, SAME_FROM = 1, SAME_TO = WARP_SIZE / (16 / mma::ROWS);
DEV u32 query_of(u32 i) { return mma::lane_row(i); }
DEV constexpr u32 query_index(u32 e) { return mma::row_index(e); }
DEV u32 other_of(u32 e) { return mma::col(e); }
using QueryOperand = Tile::A;
using KeyOperand = Tile::B;
DEV QueryOperand load_query(const u8* p, u32 pitch) { return Tile::load_a(p, pitch); }
DEV KeyOperand load_key(const u8* p, u32 pitch) { return Tile::load_b(p, pitch); }
DEV void mac(Tile::Acc& c, const QueryOperand& of_query, const KeyOperand& other) { Tile::mac(c, of_query, other); }
#else
constexpr u32 N_QUERIES = 1, SAME_FROM = 16, SAME_TO = WARP_SIZE;
static_assert(mma::COLS == 1, "a lane has one column");
DEV u32 query_of(u32) { return mma::lane_col(0); }
DEV constexpr u32 query_index(u32) { return 0; }
DEV u32 other_of(u32 e) { return mma::row(e); }
using QueryOperand = Tile::B;
using KeyOperand = Tile::A;
DEV QueryOperand load_query(const u8* p, u32 pitch) { return Tile::load_b(p, pitch); }
DEV KeyOperand load_key(const u8* p, u32 pitch) { return Tile::load_a(p, pitch); }
DEV void mac(Tile::Acc& c, const QueryOperand& of_query, const KeyOperand& other) { Tile::mac(c, other, of_query); }
#endif

// Weights [query, position] of a tile as an operand. `memory` belongs to the wave: WEIGHT_BYTES.
#if defined(MMA_DOT)
constexpr u32 WEIGHT_PITCH = 48, WEIGHT_BYTES = 16 * WEIGHT_PITCH;
DEV QueryOperand weight_operand(const float* p, u8* memory) {
    wave_barrier(memory, WEIGHT_BYTES);
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) *(u16*)(memory + mma::row(e) * WEIGHT_PITCH + mma::col(e) * 2) = f2h(p[e]);
    wave_barrier(memory, WEIGHT_BYTES);
    return Tile::load_a(memory, WEIGHT_PITCH);
}
#else
constexpr u32 WEIGHT_BYTES = 0;
DEV QueryOperand weight_operand(const float* p, u8*) {
    QueryOperand w;
#if defined(GPU_GFX11)
    // A lane has either the even or the odd positions and needs both.
    bool odd = lane() >= 16;
#pragma unroll
    for (u32 i = 0; i < ELEMENTS / 2; i++) {
        u32 mine = pack_halves(p[2 * i], p[2 * i + 1]), other = lane_xor<16>(mine);
        u32 evens = odd ? other : mine, odds = odd ? mine : other;
        w.v[2 * i] = (evens & 0xffff) | odds << 16;
        w.v[2 * i + 1] = evens >> 16 | (odds & 0xffff0000);
    }
#else
#pragma unroll
    for (u32 i = 0; i < ELEMENTS / 2; i++) w.v[i] = pack_halves(p[2 * i], p[2 * i + 1]);
#endif
    return w;
}
#endif

// Prevents loads from being scheduled before this point, where registers are scarce.
template <bool SHORT> DEV void hold_loads() {
#if defined(GPU_AMD)
    if constexpr (SHORT) __builtin_amdgcn_sched_barrier(0);
#endif
}
