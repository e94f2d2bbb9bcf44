// The grids of the IQ formats (crates/gguf/src/quant/grids.rs), expanded from the same sets when a kernel is compiled.
//
// They are tables in device memory, 1 to 8 KiB, which stay in the caches next to the arithmetic units: constant memory
// serves one address at a time on NVIDIA GPUs, and lanes read different entries.
#pragma once
#include "gpu.h"

#if defined(GPU_NV)
// Not const, or it would be in constant memory.
#define TABLE static __attribute__((device))
#elif defined(GPU_AMD)
#define TABLE static __attribute__((constant)) const
#else
#define TABLE static const
#endif

namespace grid {

// Bit i of all words is set if the digits of i, the lowest first, are an entry. A digit is the number of a magnitude.
constexpr u64 IQ1_S_SET[] = {
#include "../../gguf/src/quant/grids/iq1_s.inc"
};
constexpr u64 IQ2_XXS_SET[] = {
#include "../../gguf/src/quant/grids/iq2_xxs.inc"
};
constexpr u64 IQ2_XS_SET[] = {
#include "../../gguf/src/quant/grids/iq2_xs.inc"
};
constexpr u64 IQ2_S_SET[] = {
#include "../../gguf/src/quant/grids/iq2_s.inc"
};
constexpr u64 IQ3_XXS_SET[] = {
#include "../../gguf/src/quant/grids/iq3_xxs.inc"
};
constexpr u64 IQ3_S_SET[] = {
#include "../../gguf/src/quant/grids/iq3_s.inc"
};

template <typename Entry, u32 N> struct Grid {
    Entry v[N];
};

// Calls `put(entry number, digit number, digit)` for each digit of each entry of a set.
template <u32 N_DIGITS, u32 BASE, u32 N_WORDS, typename F> constexpr void each_digit(const u64 (&set)[N_WORDS], F put) {
    u32 n = 0;
    for (u32 w = 0; w < N_WORDS; w++) {
        for (u64 word = set[w]; word != 0; word &= word - 1, n++) {
            u32 rest = 64 * w + (u32)__builtin_ctzll(word);
            for (u32 k = 0; k < N_DIGITS; k++, rest /= BASE) put(n, k, rest % BASE);
        }
    }
}

// Magnitudes of eight values as bytes.
template <typename Lazy, u32 N, u32 N_WORDS> constexpr Grid<u32x2, N> of_eight(const u64 (&set)[N_WORDS]) {
    Grid<u32x2, N> grid = {};
    each_digit<8, 3>(set, [&](u32 n, u32 k, u32 digit) {
        const u32 magnitude = digit == 0 ? 8 : digit == 1 ? 25 : 43;
        grid.v[n].v[k / 4] |= magnitude << 8 * (k % 4);
    });
    return grid;
}

// Magnitudes of four values as bytes: `FIRST + STEP * digit`, and `more` for the largest digit.
template <typename Lazy, u32 N, u32 FIRST, u32 STEP, u32 N_WORDS>
constexpr Grid<u32, N> of_four(const u64 (&set)[N_WORDS], u32 more) {
    Grid<u32, N> grid = {};
    each_digit<4, 8>(set, [&](u32 n, u32 k, u32 digit) {
        grid.v[n] |= (FIRST + STEP * digit + (digit == 7 ? more : 0)) << 8 * k;
    });
    return grid;
}

// Digits 0, 1 and 2 of eight values, those of the first four in the low nibbles.
template <typename Lazy, u32 N, u32 N_WORDS> constexpr Grid<u32, N> of_ternary(const u64 (&set)[N_WORDS]) {
    Grid<u32, N> grid = {};
    each_digit<8, 3>(set, [&](u32 n, u32 k, u32 digit) { grid.v[n] |= digit << (8 * (k % 4) + k / 4 * 4); });
    return grid;
}

// Templates, so that only what a kernel uses is expanded; which takes the compiler a tenth of a second.
template <typename Lazy> TABLE Grid<u32, 2048> IQ1_S = of_ternary<Lazy, 2048>(IQ1_S_SET);
template <typename Lazy> TABLE Grid<u32x2, 256> IQ2_XXS = of_eight<Lazy, 256>(IQ2_XXS_SET);
template <typename Lazy> TABLE Grid<u32x2, 512> IQ2_XS = of_eight<Lazy, 512>(IQ2_XS_SET);
template <typename Lazy> TABLE Grid<u32x2, 1024> IQ2_S = of_eight<Lazy, 1024>(IQ2_S_SET);
template <typename Lazy> TABLE Grid<u32, 256> IQ3_XXS = of_four<Lazy, 256, 4, 8>(IQ3_XXS_SET, 2);
template <typename Lazy> TABLE Grid<u32, 512> IQ3_S = of_four<Lazy, 512, 1, 2>(IQ3_S_SET, 0);

} // namespace grid
