// The lists of tiles that kernels of experts.hip and heads.hip write.
#pragma once
#include "experts.h"

// Kinds of tiles, which differ in their maximum number of rows (TILE_ROWS in src/ops/routing/buffer.rs).
constexpr u32 N_KINDS = 3;

struct TileList {
    ExpertTile* tiles;
    u32 n_rows;
    // The maximum number of tiles.
    u32 len;
    FIELDS(tiles, n_rows, len)
};
