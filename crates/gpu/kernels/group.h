// Launches of many operations at once: the blocks of one follow those of the one before, and a table in device memory says
// what each does.
#pragma once
#include "gpu.h"

template <typename Op> struct GroupParams {
    // [n_ops] the first block of each, ascending from 0.
    const u32* first_blocks;
    // [n_ops]
    const Op* ops;
    // [2, n_timed]: when an operation began and ended on the clock of the device, or null.
    u64* times;
    u32 n_ops;
    u32 n_timed;
};

// Which operation this block is of. All threads of the block arrive.
DEV u32 group_op(const u32* first_blocks, u32 n_ops) {
    u32 n = 0;
    for (u32 i = lane(); i < n_ops; i += WARP_SIZE) n += first_blocks[i] <= bid_x();
    return uniform(wave_sum(n)) - 1;
}

// Takes the time of a block from here to `end`, as its first thread sees it: the first start and the last end of all
// blocks stay.
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
