// Teams of 32 lanes: a wave, or half of one, so that short rows have the same threads everywhere.
#pragma once
#include "gpu.h"

constexpr u32 TEAM = 32;

// The reduction over N neighbouring lanes, in each of them, in an order that depends on nothing but the lane.
template <typename R, u32 N, typename T> DEV T group_reduce(T v) {
    if constexpr (N == WARP_SIZE) return wave_reduce<R>(v);
#pragma unroll
    for (u32 mask = 1; mask < N; mask *= 2) v = R::of(v, shuffle_xor(v, mask));
    return v;
}
