// Which rows belong to which expert of a mixture; written by experts.hip, read by format/expert_*.hip.
#pragma once
#include "gpu.h"

// In place of an expert: of a row that only fills up a step, and of tiles past the last.
constexpr u32 NO_EXPERT = 0xffffffffu;

// Neighbouring rows of one expert that a block of threads takes together; `ExpertTile` in src/ops/routing.rs.
struct alignas(16) ExpertTile {
    u32 expert;
    u32 first_row;
    u32 n_rows;
    u32 pad;
};

// The tile at `tiles + at`, the same for all threads of the block.
DEV ExpertTile tile_at(const ExpertTile* tiles, u32 at) {
    u32x4 words = load16(tiles + at);
    return {uniform(words[0]), uniform(words[1]), uniform(words[2]), 0};
}
