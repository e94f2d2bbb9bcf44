// The range of a matrix: how far the scales and minimums of quantized weights, or BF16 weights, may be multiplied so that they
// are f16 numbers. It lies behind the planes (quant.h), and is found while they are written.
//
// Codes are taken as f16 numbers code * 2^-24, without a conversion. So a weight, times 2^b, is
//     (code * 2^-24) * (scale * 2^(24 + b)) - minimum * 2^b
// with b as large as the largest scale and minimum of the matrix allow.
#pragma once
#include "quant.h"

// Which matrices have a range.
template <typename T> constexpr bool HAS_RANGE = !T::FLOAT || __is_same(T, BF16);

// 2^24 as f32.
constexpr float CODE_ONE = 16777216.0f;

struct Range {
    // The bits of the largest |scale|, |minimum| * 2^-24, or finite |weight|, as an f32 number.
    u64 largest;

    // Takes the scales of a chunk, which is at place `at` of its block, into account. Called by all lanes of a wave;
    // those with nothing to add are not `valid`.
    template <typename T> DEV_MEMBER void add(const T& t, u32 at, bool valid) {
        u32 most = 0;
        if constexpr (T::FLOAT) {
#pragma unroll
            for (u32 i = 0; i < T::CHUNK; i++) {
                const u32 magnitude = bits<u32>(t.value(i)) & 0x7fffffffu;
                most = max_of(most, magnitude < 0x7f800000u ? magnitude : 0u);
            }
        } else {
#pragma unroll
            for (u32 h = 0; h < 32 / T::GROUP; h++) {
                most = max_of(most, bits<u32>(t.scale(at, h)) & 0x7fffffffu);
                if constexpr (T::HAS_MIN)
                    most = max_of(most, bits<u32>(t.minimum(at, h) * (1.0f / CODE_ONE)) & 0x7fffffffu);
            }
        }
        most = wave_max(valid ? most : 0u);
        if (lane() == 0 && most > 0) atomic_max(&largest, (u64)most);
    }

    // 2^(24 + b); of BF16 weights, 2^b: the largest scale or weight becomes a number below 2^15. 2^24 if it is not finite.
    DEV_MEMBER float up() const {
        const u32 exponent = (u32)largest >> 23;
        if (exponent == 0xff) return CODE_ONE;
        return bits<float>((268 - max_of(exponent, 14u)) << 23);
    }
    // 2^-b.
    DEV_MEMBER static float down(float up) { return CODE_ONE / up; }
};
