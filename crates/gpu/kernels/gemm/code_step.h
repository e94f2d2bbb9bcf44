// A step of the product of quantized weights: LEN values of k of ROWS rows of x and OUTS outputs.
#pragma once
#include "gemm/gemm.h"

constexpr u32 THREADS = 256;
constexpr u32 N_WAVES = THREADS / WARP_SIZE;

template <typename F, u32 STEP, u32 TM, u32 TN> struct Step {
    using Format = F;
    static constexpr u32 LEN = STEP, ROWS = TM, OUTS = TN;
    static constexpr u32 CHUNKS = STEP / 32, GROUPS = STEP / F::GROUP, PER_CHUNK = 32 / F::GROUP;
    // Bytes between rows of codes: an odd multiple of 16.
    static constexpr u32 STRIDE = STEP + 16;
};

// The slots (mma.h) of a row and of an output, 16 by 16.
DEV u32 row_slot_of(u32 row) { return row / 16 * 16 + mma::row_slot(row % 16); }
DEV u32 col_slot_of(u32 col) { return col / 16 * 16 + mma::col_slot(col % 16); }
