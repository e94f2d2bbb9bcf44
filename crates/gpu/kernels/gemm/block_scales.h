// Scales and minimums of groups as integers times those of a block, for the formats of super-blocks, whose activations
// have a scale for each 256 values (Q8x256):
//
//     acc += d_x (d_w sum_g level_g dot_g - m_w sum_g minimum_g sum_x_g)      per block
//
// Both sums are exact. A dot product has 20 bits, so that AMD's GPUs take one instruction of 24 bits to scale and add it.
// Sums of 16 codes and the minimums are exact in f16, and the matrix units add their products, below 2^22, in f32.
//
// Shared memory: a byte for each output and group, the numbers of blocks, and rows of f16 for each row and output.
#pragma once
#include "gemm/code_step.h"

// c + a b. Both have at most 24 bits.
DEV i32 mad24(i32 a, i32 b, i32 c) {
#if defined(GPU_AMD)
    return (a << 8 >> 8) * (b << 8 >> 8) + c;
#else
    return a * b + c;
#endif
}

template <typename S> struct BlockScales {
    using F = typename S::Format;
    static constexpr u32 TM = S::ROWS, TN = S::OUTS, CHUNKS = S::CHUNKS, GROUPS = S::GROUPS, PER_CHUNK = S::PER_CHUNK;
    // Padding words after the levels of four groups, which are stored at once: to different banks.
    static constexpr u32 PAD = 4;
    // Bytes of a row's f16 numbers: one for each 16 values.
    static constexpr u32 SUM_STRIDE = S::LEN / 8;
    using SumTile = mma::F16<S::LEN / 16>;
    // Steps in a block.
    static constexpr u32 PARTS = F::LEN / S::LEN;
    static_assert(PARTS * S::LEN == F::LEN, "whole steps");

    struct Memory {
        // The f16 numbers of each chunk: two sums of 16 codes, and the minimums of as many weights.
        alignas(16) u32 x_sum[F::HAS_MIN ? TM * CHUNKS : 4];
        alignas(16) u32 w_min[F::HAS_MIN ? TN * CHUNKS : 4];
        // The rest is in slots (mma.h), 16 by 16. A word has the levels of four groups.
        u32 levels[GROUPS / 4][TN + PAD];
        float w_unit[TN];
        float w_min_unit[F::HAS_MIN ? TN : 4];
        float x_scale[TM];
    };
    static constexpr u32 ORDER = 1;
    static constexpr bool SUMS_LATER = false;

    DEV_MEMBER static void store(Memory& m, const F& w, u32 place, u32 o, u32 chunk) {
        const u32 slot = col_slot_of(o);
#pragma unroll
        for (u32 h = 0; h < PER_CHUNK; h++) {
            const u32 g = chunk * PER_CHUNK + h;
            ((i8*)&m.levels[g / 4][slot])[g % 4] = (i8)w.level(place, h);
        }
        if (chunk == 0) m.w_unit[slot] = w.unit();
        if constexpr (F::HAS_MIN) {
            const u32 low = f2h((float)w.minimum_level(place, 0));
            const u32 high = f2h((float)w.minimum_level(place, PER_CHUNK - 1));
            m.w_min[o * CHUNKS + chunk] = low | high << 16;
            if (chunk == 0) m.w_min_unit[slot] = w.minimum_unit();
        }
    }

    // A thread's share of the scales and sums of x.
    struct RowShare {
        static constexpr u32 WORDS = (TM * CHUNKS + THREADS - 1) / THREADS;

        // Distances from the tile's first row.
        u32 scale_from, sum_from[WORDS];
        float x_scale;
        // Two sums of 16 codes each.
        u32 x_sum[WORDS];

        DEV_MEMBER void start(const One& one, u32 last) {
            const u32 n_in = one.w.n_in;
            scale_from = min_of(tid(), last) * (n_in / 256);
#pragma unroll
            for (u32 i = 0; i < WORDS; i++) {
                const u32 n = i * THREADS + tid();
                sum_from[i] = min_of(n / CHUNKS, last) * (n_in / 32) + n % CHUNKS;
            }
        }
        DEV_MEMBER void load(const One& one, u32 first_row, u32 k) {
            const u32 n_in = one.w.n_in;
            const float* scales = one.scales + (u64)first_row * (n_in / 256) + k / 256;
            if (tid() < TM) x_scale = scales[scale_from];
            if constexpr (F::HAS_MIN) {
                const u32* sums = (const u32*)one.sums + (u64)first_row * (n_in / 32) + k / 32;
#pragma unroll
                for (u32 i = 0; i < WORDS; i++) x_sum[i] = sums[sum_from[i]];
            }
        }
        DEV_MEMBER void store(Memory& m) const {
            if (tid() < TM) m.x_scale[row_slot_of(tid())] = x_scale;
            if constexpr (F::HAS_MIN) {
#pragma unroll
                for (u32 i = 0; i < WORDS; i++) {
                    const u32 n = i * THREADS + tid();
                    const u32 low = f2h((float)(i16)x_sum[i]), high = f2h((float)(i16)(x_sum[i] >> 16));
                    if (n < TM * CHUNKS) m.x_sum[n] = low | high << 16;
                }
            }
        }
    };

    // MT by NT tiles of a wave: the sums of the blocks before, and those of the block so far.
    template <u32 MT, u32 NT> struct Sums {
        float acc[MT][NT][mma::ELEMENTS] = {};
        i32 dots[MT][NT][mma::ELEMENTS] = {};
        typename SumTile::Acc minimums[MT][NT] = {};

        // Adds groups wave_k, wave_k + WK, ... of a step.
        template <u32 WK, u32 UNROLLED>
        DEV_MEMBER void add(const i8* x, const i8* w, const Memory& m, u32 m0, u32 n0, u32 wave_k) {
            using Tile = mma::I8<F::GROUP>;
#pragma unroll UNROLLED
            for (u32 i = 0; i < GROUPS / WK; i++) {
                const u32 g = i * WK + wave_k;
                typename Tile::A a[MT];
#pragma unroll
                for (u32 mt = 0; mt < MT; mt++)
                    a[mt] = Tile::load_a(x + (m0 + 16 * mt) * S::STRIDE + g * F::GROUP, S::STRIDE);
#pragma unroll
                for (u32 nt = 0; nt < NT; nt++) {
                    const u32 col = n0 + 16 * nt;
                    typename Tile::B b = Tile::load_b(w + col * S::STRIDE + g * F::GROUP, S::STRIDE);
                    u32 levels[mma::COLS];
                    mma::load_words<mma::COLS>(levels, m.levels[g / 4] + col + mma::first_col_slot());
#pragma unroll
                    for (u32 mt = 0; mt < MT; mt++) {
                        typename Tile::Acc dot = Tile::zero();
                        Tile::mac(dot, a[mt], b);
#pragma unroll
                        for (u32 e = 0; e < mma::ELEMENTS; e++) {
                            const i32 level = (i8)(levels[mma::col_index(e)] >> 8 * (g % 4));
                            dots[mt][nt][e] = mad24(dot.v[e], level, dots[mt][nt][e]);
                        }
                    }
                }
            }
            // The first of the waves that share the groups takes the minimums of all.
            if constexpr (F::HAS_MIN) {
                if (WK > 1 && wave_k > 0) return;
#pragma unroll
                for (u32 mt = 0; mt < MT; mt++) {
                    auto a = SumTile::load_a(m.x_sum + (m0 + 16 * mt) * CHUNKS, SUM_STRIDE);
#pragma unroll
                    for (u32 nt = 0; nt < NT; nt++) {
                        auto b = SumTile::load_b(m.w_min + (n0 + 16 * nt) * CHUNKS, SUM_STRIDE);
                        SumTile::mac(minimums[mt][nt], a, b);
                    }
                }
            }
        }

        // Ends a block, after its last step.
        DEV_MEMBER void end_block(const Memory& m, u32 m0, u32 n0) {
#pragma unroll
            for (u32 mt = 0; mt < MT; mt++) {
                float x_scale[mma::ROWS];
                load_floats<mma::ROWS>(x_scale, m.x_scale + m0 + 16 * mt + mma::first_row_slot());
#pragma unroll
                for (u32 nt = 0; nt < NT; nt++) {
                    const u32 slot = n0 + 16 * nt + mma::first_col_slot();
                    float unit[mma::COLS], min_unit[mma::COLS];
                    load_floats<mma::COLS>(unit, m.w_unit + slot);
                    if constexpr (F::HAS_MIN) load_floats<mma::COLS>(min_unit, m.w_min_unit + slot);
#pragma unroll
                    for (u32 e = 0; e < mma::ELEMENTS; e++) {
                        const u32 c = mma::col_index(e);
                        float sum = unit[c] * (float)dots[mt][nt][e];
                        if constexpr (F::HAS_MIN) sum = fma(-min_unit[c], minimums[mt][nt].v[e], sum);
                        acc[mt][nt][e] = fma(x_scale[mma::row_index(e)], sum, acc[mt][nt][e]);
                        dots[mt][nt][e] = 0;
                    }
                    minimums[mt][nt] = SumTile::zero();
                }
            }
        }
    };
};
