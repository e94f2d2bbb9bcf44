// Four neighbouring values of a row per thread.
#pragma once
#include "gpu.h"

constexpr u32 QUAD = 4;

struct Quad {
    float v[QUAD];
};

DEV Quad load_quad(const float* x, u32 at, u32 end, u32 aligned) {
    if (aligned) return bits<Quad>(load16(x + at));
    Quad q = {};
#pragma unroll
    for (u32 i = 0; i < QUAD; i++)
        if (at + i < end) q.v[i] = x[at + i];
    return q;
}

DEV void store_quad(float* out, u32 at, u32 end, u32 aligned, const Quad& q) {
    if (aligned) return store16(out + at, bits<u32x4>(q));
#pragma unroll
    for (u32 i = 0; i < QUAD; i++)
        if (at + i < end) out[at + i] = q.v[i];
}
