// Where the f16 activations of an expert's tile are (half_acts.hip, gemm/half.h).
#pragma once
#include "early.h"
#include "experts.h"

// The first octet of rows of tile `at` of the list. Octets of tiles do not meet: one that begins within eight rows has a
// further octet.
DEV u32 first_octet(const ExpertTile& tile, u32 at) { return tile.first_row / 8 + at; }

// tile_at() for a kernel that may start early.
DEV ExpertTile early_tile(const ExpertTile* tiles, u32 at) {
    const u32x4 words = early16(tiles + at);
    return {uniform(words[0]), uniform(words[1]), uniform(words[2]), uniform(words[3])};
}
