// Values of other lanes of a wave, and reductions over some of its lanes.
#pragma once
#include "gpu.h"

// The value of lane `lane() ^ MASK`; MASK is a power of two. AMD GPUs do it in the vector unit within 16 lanes.
template <u32 MASK> DEV u32 lane_xor(u32 v) {
#if defined(GPU_AMD)
    if constexpr (MASK == 1) return dpp<0xb1>(v);
    if constexpr (MASK == 2) return dpp<0x4e>(v);
    // Mirrors eight lanes (^ 7), then four (^ 3).
    if constexpr (MASK == 4) return dpp<0x1b>(dpp<0x141>(v));
    if constexpr (MASK == 8) return row_rotate<8>(v);
#if !defined(GPU_CDNA)
    if constexpr (MASK == 16) return swap_rows(v);
#endif
#endif
    return shuffle_xor(v, MASK);
}
template <u32 MASK> DEV float lane_xor(float v) { return bits<float>(lane_xor<MASK>(bits<u32>(v))); }

// The reduction over the lanes that differ in the bits FROM, 2 * FROM, ... below TO.
template <typename R, u32 FROM, u32 TO> DEV float reduce_lanes(float v) {
    if constexpr (FROM < TO) {
        v = R::of(v, lane_xor<FROM>(v));
        v = reduce_lanes<R, FROM * 2, TO>(v);
    }
    return v;
}
