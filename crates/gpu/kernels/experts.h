// The assignment of rows to experts of an MoE layer; written by experts.hip, read by gemv.h and gemm/gemm.h.
#pragma once
#include "gpu.h"

// Expert of padding rows, and of tiles past the last one.
constexpr u32 NO_EXPERT = 0xffffffffu;

// Consecutive rows of one expert that a block of threads processes together; `ExpertTile` in src/ops/routing/buffer.rs.
struct alignas(16) ExpertTile {
    u32 expert;
    u32 first_row;
    u32 n_rows;
    // How many tiles of its list have an expert: those before the others.
    u32 n_tiles;
    FIELDS(expert, first_row, n_rows, n_tiles)
};

// Loads the tile at `tiles + at`, the same one in all threads of the block.
DEV ExpertTile tile_at(const ExpertTile* tiles, u32 at) {
    u32x4 words = load16(tiles + at);
    return {uniform(words[0]), uniform(words[1]), uniform(words[2]), uniform(words[3])};
}
