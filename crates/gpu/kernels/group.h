// Grouped launches: the blocks of many operations follow one another, and a table in device memory describes each
// operation.
#pragma once
#include "gpu.h"

template <typename Op> struct GroupParams {
    // [n_ops]: first block of each operation, ascending from 0.
    const u32* first_blocks;
    // [n_ops]
    const Op* ops;
    // [2, n_timed]: start and end of each operation by the device's clock, or null.
    u64* times;
    u32 n_ops;
    u32 n_timed;
    FIELDS(first_blocks, ops, times, n_ops, n_timed)
};

// The operation of this block. All threads of the block must call it.
DEV u32 group_op(const u32* first_blocks, u32 n_ops) {
    u32 n = 0;
    for (u32 i = lane(); i < n_ops; i += WARP_SIZE) n += first_blocks[i] <= bid_x();
    return uniform(wave_sum(n)) - 1;
}

// Times a block from here to `end` in its first thread; the earliest start and the latest end of all blocks are kept.
struct GroupTime {
    u64* start;
    u64* last;

    template <typename Op> DEV_MEMBER static GroupTime begin(const GroupParams<Op>& p, u32 timed) {
        GroupTime t = {p.times + timed, p.times + p.n_timed + timed};
        if (!p.times || tid() > 0) t.start = nullptr;
        if (t.start) atomic_min(t.start, device_clock());
        return t;
    }
    DEV_MEMBER void end() const {
        if (start) atomic_max(last, device_clock());
    }
};
