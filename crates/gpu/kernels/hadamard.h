// Rotation of the heads of a cache in few bits by a Hadamard matrix (as in QuaRot, Ashkboos et al. 2024), so that a value
// far larger than the others does not coarsen the steps of its whole block. Queries are multiplied by the matrix of the
// keys, outputs by that of the values: it is symmetric, normalized and its own inverse.
//
// Bits of stored heads are those of crates/cpu/src/hadamard.rs: steps of 1, 2, 4, ... values in this order, then one factor.
#pragma once
#include "team.h"

// As in crates/plan/src/kv.rs: the largest power of two, up to 256, that divides all dimensions whose bits are set in
// `dims`, and at least 32; 1 for none.
constexpr u32 MAX_HADAMARD = 256;
DEV constexpr u32 hadamard_len(u32 dims) {
    const u32 bits = dims | MAX_HADAMARD, len = bits & (~bits + 1);
    return len >= 32 ? len : 1;
}

// Multiplies runs of `len` values by the matrix: eight values in each lane, those of neighbouring lanes in order. MAX is
// at least len. All lanes of the wave must call it.
template <u32 MAX> DEV void hadamard(float* v, u32 len) {
    if constexpr (MAX > 1) {
#pragma unroll
        for (u32 step = 1; step < 8; step *= 2)
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                if (i & step) continue;
                const float a = v[i], b = v[i + step];
                v[i] = len > step ? a + b : a;
                v[i + step] = len > step ? a - b : b;
            }
#pragma unroll
        for (u32 bit = 0; 8u << bit < MAX; bit++) {
            // Half of the lanes subtract: a sign takes fewer registers than a condition.
            const u32 sign = lane() >> bit << 31;
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                const float other = shuffle_xor(v[i], 1u << bit);
                const float sum = other + bits<float>(bits<u32>(v[i]) ^ sign);
                v[i] = len > 8u << bit ? sum : v[i];
            }
        }
        // 1 / sqrt(len)
        constexpr float HALF_ROOT = 0.70710678118f;
        const float factor = len == 1    ? 1.0f
                             : len == 32 ? HALF_ROOT / 4
                             : len == 64 ? 0.125f
                             : len == 128 ? HALF_ROOT / 8
                                          : 0.0625f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) v[i] *= factor;
    }
}

// Multiplies the values of a row in memory, by a team of 32 lanes, of which each changes only what it reads. Rows are whole
// eights and aligned to 16 bytes; all lanes of the wave must call it with the same n, at least dim.
DEV void rotate_row(float* x, u32 dim, u32 n, u32 len) {
    for (u32 first = 0; first < n; first += TEAM * 8) {
        const u32 at = first + tid() % TEAM * 8;
        f32x4 low = {}, high = {};
        if (at < dim) low = *(const f32x4*)(x + at), high = *(const f32x4*)(x + at + 4);
        float v[8] = {low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]};
        hadamard<MAX_HADAMARD>(v, len);
        if (at >= dim) continue;
        *(f32x4*)(x + at) = {{v[0], v[1], v[2], v[3]}};
        *(f32x4*)(x + at + 4) = {{v[4], v[5], v[6], v[7]}};
    }
}

// Multiplies n rows of `dim` values that threads of the block have written: row(i) is the address of one, or null. By all
// THREADS threads of the block.
template <u32 THREADS, typename Row> DEV void rotate_rows(u32 n, u32 dim, u32 len, Row row) {
    constexpr u32 TEAMS = THREADS / TEAM;
    barrier();
    for (u32 first = 0; first < n; first += TEAMS) {
        const u32 i = first + tid() / TEAM;
        float* x = i < n ? row(i) : nullptr;
        rotate_row(x, x ? dim : 0, dim, len);
    }
}
