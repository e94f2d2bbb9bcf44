// Grouped GEMV: products of few rows of activations with weights of one FORMAT, any number of products in one launch,
// each with its own activations and output (product: matvec.h; launch: group.h). Outputs have the same bits as those of
// matvec.hip.
#include "group.h"
#include "matvec.h"

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
    const MatvecParams p = {global(op.x), global(op.scales), global(op.sums), n_rows, 0, {job, none, none}};
    const Part all = {bid_x(), 0, n_rows, 0};
    GroupTime time = GroupTime::begin(g, op.timed);
    if constexpr (N == 1) products<ROWS, N>(p, all);
    else products<ROWS, N>(p, all, FirstRows{n_rows});
    time.end();
}

// The number in the name is the maximum number of rows of activations.
GEMV_KERNEL(matvec_group_1, GroupParams<GroupProduct>, BLOCKS_ONE_ROW) { group<1, 1>(p); }
KERNEL(matvec_group_8, GroupParams<GroupProduct>, THREADS) { group<2, 8>(p); }
