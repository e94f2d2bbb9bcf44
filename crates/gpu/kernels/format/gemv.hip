// GEMV: products of weight matrices with 1 to 8 rows of activations, for each FORMAT (gemv.h). Decoding spends most of
// its time here. The jobs of a launch come from
//
//     gemv_*           the parameters: up to three matrices with the same rows of activations; bid_x() counts blocks
//                      of all jobs
//     gemv_group_*     a table in device memory: any number of products, each with its own activations and output
//                      (group.h)
//     gemv_experts_*   tiles of the rows of each expert of an MoE layer, with that expert's matrix: block (bid_x(),
//                      bid_y()) computes one tile and a part of the outputs, so that the weights of an expert are
//                      read once for all rows of a tile; tiles past the last have no expert and are skipped
//
// Equal products have equal bits in all of them.
#include "gemv.h"
#include "group.h"

template <u32 ROWS, u32 N, bool IN_TURNS = false> DEV void dense(const GemvParams& p) {
    products<ROWS, N, AllRows, IN_TURNS>(p, {bid_x(), 0, p.n_rows, 0});
}

// The numbers in the names are the rows of w per wave and the maximum number of rows of activations.
GEMV_KERNEL(gemv_1_1, GemvParams, BLOCKS_ONE_ROW) { dense<1, 1>(p); }
GEMV_KERNEL(gemv_1_1_turns, GemvParams, BLOCKS_ONE_ROW) { dense<1, 1, true>(p); }
GEMV_KERNEL(gemv_2_1, GemvParams, BLOCKS_ONE_ROW) { dense<2, 1>(p); }
GEMV_KERNEL(gemv_2_2, GemvParams, BLOCKS_ROWS) { dense<2, 2>(p); }
GEMV_KERNEL(gemv_2_4, GemvParams, BLOCKS_ROWS) { dense<2, 4>(p); }
GEMV_KERNEL(gemv_2_8, GemvParams, BLOCKS_ROWS) { dense<2, 8>(p); }

struct GroupProduct {
    Job job;
    const u8* x;
    const float* scales;
    const i16* sums;
    u32 n_rows;
    // Index of the operation in the times.
    u32 timed;
    FIELDS(job, x, scales, sums, n_rows, timed)
};

template <u32 ROWS, u32 N> DEV void group(const GroupParams<GroupProduct>& g) {
    const GroupProduct op = g.ops[group_op(g.first_blocks, g.n_ops)];
    Job job = op.job;
    job.w = {global(job.w.data), job.w.n_out, uniform(job.w.n_in)};
    job.bias = global(job.bias);
    job.out = global(job.out);
    job.split_log = uniform(job.split_log);
    // The other jobs are unused.
    Job none = job;
    none.first_block = ~0u;
    const u32 n_rows = uniform(op.n_rows);
    const GemvParams p = {global(op.x), global(op.scales), global(op.sums), n_rows, 0, {job, none, none}, nullptr, 0};
    const Part all = {bid_x(), 0, n_rows, 0};
    GroupTime time = GroupTime::begin(g, op.timed);
    if constexpr (N == 1) products<ROWS, N>(p, all);
    else products<ROWS, N>(p, all, FirstRows{n_rows});
    time.end();
}

// The number in the name is the maximum number of rows of activations.
GEMV_KERNEL(gemv_group_1, GroupParams<GroupProduct>, BLOCKS_ONE_ROW) { group<1, 1>(p); }
KERNEL(gemv_group_8, GroupParams<GroupProduct>, THREADS) { group<2, 8>(p); }

template <u32 N> DEV void experts(const GemvParams& p) {
    const ExpertTile tile = tile_at(p.tiles, bid_x());
    if (tile.expert == NO_EXPERT) return;
    const Part part = {bid_y(), tile.first_row, tile.n_rows, tile.expert * p.expert_bytes};
    if constexpr (N == 1) products<2, N>(p, part);
    else products<2, N>(p, part, FirstRows{tile.n_rows});
}

// The number in the name is the maximum number of rows of a tile.
GEMV_KERNEL(gemv_experts_1, GemvParams, BLOCKS_ONE_ROW) { experts<1>(p); }
GEMV_KERNEL(gemv_experts_4, GemvParams, BLOCKS_ROWS) { experts<4>(p); }
