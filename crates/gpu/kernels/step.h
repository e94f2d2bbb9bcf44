// The step as kernels see it; mirrored by src/step.rs.
#pragma once
#include "gpu.h"

// A padding row of a step: it has no sequence and appends nothing.
constexpr u32 NO_ROW = 0xffffffffu;

struct SeqRows {
    u32 first_row;
    u32 n_rows;
    u32 first_pos;
    u32 pad;
    FIELDS(first_row, n_rows, first_pos, pad)
};
