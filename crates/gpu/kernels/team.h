// Teams of 32 lanes: a wave, or half of one, so that short rows have the same number of threads on all GPUs.
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
