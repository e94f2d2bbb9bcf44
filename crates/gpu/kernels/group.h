// Grouped launches: the blocks of many operations follow one another, and a table in device memory describes each
// operation.
#pragma once
#include "gpu.h"

template <typename Op> struct GroupParams {
    // [n_ops]: first block of each operation, ascending from 0.
    const u32* first_blocks;
    // [n_ops]
    const Op* ops;
    u32 n_ops;
    u32 pad;
    FIELDS(first_blocks, ops, n_ops, pad)
};

// The operation of this block. All threads of the block must call it.
DEV u32 group_op(const u32* first_blocks, u32 n_ops) {
    u32 n = 0;
    for (u32 i = lane(); i < n_ops; i += WARP_SIZE) n += first_blocks[i] <= bid_x();
    return uniform(wave_sum(n)) - 1;
}
