// GEMV of the rows of each expert with that expert's matrix, for experts with few rows (matvec.h), for each FORMAT:
// out[row, o] = sum_i x[row, i] w[expert of row, o, i]. The matrices of the experts follow one another, `expert_bytes`
// apart. Block (bid_x(), bid_y()) computes one tile of rows of one expert and a part of the outputs, so that the
// weights of an expert are read once for all rows of a tile; tiles past the last have no expert and are skipped.
#include "experts.h"
#include "matvec.h"

struct ExpertMatvecParams {
    MatvecParams product;
    const ExpertTile* tiles;
    u64 expert_bytes;
    FIELDS(product, tiles, expert_bytes)
};

template <u32 N> DEV void of_expert(const ExpertMatvecParams& p) {
    const ExpertTile tile = tile_at(p.tiles, bid_x());
    if (tile.expert == NO_EXPERT) return;
    const Part part = {bid_y(), tile.first_row, tile.n_rows, tile.expert * p.expert_bytes};
    if constexpr (N == 1) products<2, N>(p.product, part);
    else products<2, N>(p.product, part, FirstRows{tile.n_rows});
}

// The number in the name is the maximum number of rows of a tile.
GEMV_KERNEL(expert_matvec_1, ExpertMatvecParams, BLOCKS_ONE_ROW) { of_expert<1>(p); }
GEMV_KERNEL(expert_matvec_4, ExpertMatvecParams, BLOCKS_ROWS) { of_expert<4>(p); }
