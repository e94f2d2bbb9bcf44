// GEMM of the rows of each expert with that expert's matrix, for experts with many rows, for each FORMAT: out[row, o] =
// sum_i x[row, i] w[expert of row, o, i]. The matrices of the experts follow one another, `expert_bytes` apart. Block
// (bid_x(), bid_y()) computes one tile of rows of one expert and one block of outputs; tiles past the last have no
// expert and are skipped. Threads and shared memory: matmul_codes.h for quantized weights, matmul_float.h for floats.
#include "experts.h"
#include "matmul_codes.h"
#include "matmul_float.h"

struct ExpertMatmulParams {
    MatmulParams product;
    const ExpertTile* tiles;
    u64 expert_bytes;
    FIELDS(product, tiles, expert_bytes)
};

// Large tiles have 128 rows (32 for floats without matrix units), small tiles 32.
template <typename F, u32 LARGE> DEV void of_expert(const ExpertMatmulParams& p) {
    const ExpertTile tile = tile_at(p.tiles, bid_x());
    if (tile.expert == NO_EXPERT) return;
    MatmulParams own = p.product;
    own.w.data += tile.expert * p.expert_bytes;
    own.n_rows = tile.first_row + tile.n_rows;
    const Place place = {bid_y(), 0, tile.first_row};
    if constexpr (SPLIT<F> && LARGE) split_product<F, WARP_SIZE / 16, 2, 128 / WARP_SIZE, 2>(own, place);
    else if constexpr (SPLIT<F>) split_product<F, 1, WARP_SIZE / 32, 2, 128 / WARP_SIZE>(own, place);
    else if constexpr (F::FLOAT) float_product<F, 2>(own, place);
    else if constexpr (LARGE) product<F, 128, WARP_SIZE / 16, 2, 128 / WARP_SIZE, 2, 1, 1>(own, place);
    else product<F, 128, 1, 2, 2, 2, N_WAVES / 4, 1>(own, place);
}

constexpr bool PLAIN_FLOAT = FORMAT::FLOAT && !SPLIT<FORMAT>;

EXPORT_U32(n_threads, THREADS)
EXPORT_U32(large_rows, PLAIN_FLOAT ? 32 : 128)
EXPORT_U32(small_rows, 32)
EXPORT_U32(outs, PLAIN_FLOAT ? 32 : 64)

MATMUL_KERNEL(expert_matmul_large, ExpertMatmulParams) { of_expert<FORMAT, 1>(p); }
MATMUL_KERNEL(expert_matmul_small, ExpertMatmulParams) { of_expert<FORMAT, 0>(p); }
