// Teams of 32 lanes: a wave, or half of one, so that short rows have the same number of threads on all GPUs. What lanes of a
// wave say to each other.
#pragma once
#include "gpu.h"

constexpr u32 TEAM = 32;

// The reduction over N neighbouring lanes, in each of them. The order depends only on the lane.
template <typename R, u32 N, typename T> DEV T group_reduce(T v) {
#if defined(GPU_NV)
    if constexpr (N == WARP_SIZE && __is_same(R, Max) && __is_same(T, u32))
        return (u32)__nvvm_redux_sync_umax((i32)v, -1);
#endif
    if constexpr (N == WARP_SIZE) return wave_reduce<R>(v);
#pragma unroll
    for (u32 mask = 1; mask < N; mask *= 2) v = R::of(v, shuffle_xor(v, mask));
    return v;
}

// Makes the writes of a wave's lanes visible to its other lanes: `bytes` of shared memory that no other wave accesses.
DEV void wave_barrier([[maybe_unused]] const void* memory, [[maybe_unused]] u32 bytes,
                      [[maybe_unused]] Site at = HERE) {
#if defined(GPU_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#elif defined(GPU_NV)
    __nvvm_bar_warp_sync(0xffffffffu);
#else
    shuffle(0u, 0, at);
    host::wave_owns(memory, bytes);
#endif
}

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
