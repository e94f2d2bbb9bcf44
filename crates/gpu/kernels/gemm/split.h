// The mainloop of F16 and BF16 weights: on the matrix units in f16, 32 values of k at a time. Blocks of 256 threads.
//
// Each row's 32 values of x are scaled by a power of two that brings the largest to 2^14 .. 2^15, and split into two
// halves, x = hi + lo, together 22 bits. BF16 weights (on gfx90a F16 too) are scaled in the same way; in f16 they are
// then exact to the precision stated below. The sums of a step are scaled back and added in f32:
//
//     acc += 2^(-e_x - e_w) (hi . w + lo . w)
//
// The error is below 2^-22 of a value or 2^-28 of the largest of its 32, whether or not the units keep subnormal
// halves. Shared memory: 80 bytes per row of hi, lo and w, and the scales.
#pragma once
#include "gemm/gemm.h"

// The formats whose weights are scaled: BF16, whose range exceeds f16, and all formats on units that flush subnormal
// halves.
#if defined(__gfx90a__)
template <typename F> constexpr bool WEIGHTS_SCALED = true;
#else
template <typename F> constexpr bool WEIGHTS_SCALED = __is_same(F, BF16);
#endif

// A power of two that brings numbers up to `largest` below 2^15, and its inverse. Both are normal numbers.
struct Scale {
    float up, down;
    DEV_MEMBER static Scale of(float largest) {
        u32 exponent = max_of(bits<u32>(largest) >> 23, 15u);
        return {bits<float>((268 - exponent) << 23), bits<float>((exponent - 14) << 23)};
    }
};

// MT by NT tiles per wave, WM by WN waves.
template <typename F, u32 MT, u32 NT, u32 WM, u32 WN> struct Split {
    static constexpr u32 THREADS = 256, TM = 16 * MT * WM, TN = 16 * NT * WN, E = mma::ELEMENTS;
    static constexpr u32 K = 32, STRIDE = 2 * K + 16;
    static_assert(WM * WN == THREADS / WARP_SIZE, "all waves have work");
    // Threads that share a row of x, and the values of each.
    static constexpr u32 SHARERS = THREADS / TM, VALUES = K / SHARERS;
    static_assert(TN * K / 8 == THREADS && VALUES % 4 == 0, "a chunk of weights for each thread");
    static constexpr bool SCALED = WEIGHTS_SCALED<F>;
    using Units = mma::F16<16>;

    static constexpr u32 ROWS = TM, OUTS = TN, ELEMENTS = MT * NT * E;
    static constexpr u32 SHARED = (2 * TM + TN) * STRIDE + (TM + TN) * sizeof(float);
    // Each sum is added step by step, whatever the tile.
    static constexpr u32 ORDER = 1;

    float acc[MT][NT][E];
    u32 m0, n0;

    DEV_MEMBER bool run(const One& one, const Tile& t) {
        SHARED(u8, x_hi, TM * STRIDE);
        SHARED(u8, x_lo, TM * STRIDE);
        SHARED(u8, w, TN * STRIDE);
        // Scale::down, in slots (mma.h).
        SHARED(float, x_scale, TM);
        SHARED(float, w_scale, TN);

        const u32 first_out = t.first_out, first_row = t.first_row, n_in = one.w.n_in;
        const u32 at = uniform(wave());
        m0 = at % WM * 16 * MT;
        n0 = at / WM * 16 * NT;
        const u32 x_row = tid() / SHARERS, x_at = tid() % SHARERS * VALUES, w_row = tid() / 4, w_chunk = tid() % 4;
        const FloatRow x_from = FloatRow::of(one, min_of(first_row + x_row, one.n_rows - 1));
        const Block<F, Planes> w_from = Block<F, Planes>::of(one.w, min_of(first_out + w_row, one.w.n_out - 1));
#pragma unroll
        for (u32 i = 0; i < ELEMENTS; i++) acc[i / E / NT][i / E % NT][i % E] = 0.0f;
        float x[VALUES];
        F w_next;
        auto load = [&](u32 k) {
            w_next = w_from.load(k / 8 + w_chunk);
#pragma unroll
            for (u32 i = 0; i < VALUES; i += 4) {
                const f32x4 four = x_from.load(k + x_at + i);
                for (u32 j = 0; j < 4; j++) x[i + j] = four[j];
            }
        };
        load(0);
        for (u32 k = 0; k < n_in; k += K) {
            shared_barrier();
            float largest = 0.0f;
#pragma unroll
            for (u32 i = 0; i < VALUES; i++) largest = max_of(largest, __builtin_fabsf(x[i]));
#pragma unroll
            for (u32 mask = 1; mask < SHARERS; mask *= 2) largest = max_of(largest, shuffle_xor(largest, mask));
            Scale scale = Scale::of(largest);
            if (x_at == 0) x_scale[x_row / 16 * 16 + mma::row_slot(x_row % 16)] = scale.down;
            u32 hi[VALUES / 2], lo[VALUES / 2];
#pragma unroll
            for (u32 i = 0; i < VALUES; i += 2) {
                float a = x[i] * scale.up, b = x[i + 1] * scale.up;
                u32 both = pack_halves(a, b);
                hi[i / 2] = both;
                lo[i / 2] = pack_halves(a - h2f((u16)both), b - h2f((u16)(both >> 16)));
            }
#pragma unroll
            for (u32 i = 0; i < VALUES / 2; i += 2) {
                u32 to = x_row * STRIDE + 2 * x_at + 4 * i;
                store8(x_hi + to, u32x2{{hi[i], hi[i + 1]}});
                store8(x_lo + to, u32x2{{lo[i], lo[i + 1]}});
            }
            u32x4 words = w_next.raw;
            if constexpr (SCALED) {
                largest = 0.0f;
#pragma unroll
                for (u32 i = 0; i < 8; i++) largest = max_of(largest, __builtin_fabsf(w_next.value(i)));
                largest = max_of(largest, shuffle_xor(largest, 1));
                largest = max_of(largest, shuffle_xor(largest, 2));
                scale = Scale::of(largest);
                if (w_chunk == 0) w_scale[w_row / 16 * 16 + mma::col_slot(w_row % 16)] = scale.down;
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    words.v[i] = pack_halves(w_next.value(2 * i) * scale.up, w_next.value(2 * i + 1) * scale.up);
            }
            store16(w + w_row * STRIDE + 16 * w_chunk, words);
            shared_barrier();
            if (k + K < n_in) load(k + K);

            typename Units::Acc part[MT][NT];
#pragma unroll
            for (u32 mt = 0; mt < MT; mt++)
#pragma unroll
                for (u32 nt = 0; nt < NT; nt++) part[mt][nt] = Units::zero();
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                typename Units::B b[NT];
#pragma unroll
                for (u32 nt = 0; nt < NT; nt++) b[nt] = Units::load_b(w + (n0 + 16 * nt) * STRIDE + 32 * half, STRIDE);
#pragma unroll
                for (u32 mt = 0; mt < MT; mt++) {
                    const u32 from = (m0 + 16 * mt) * STRIDE + 32 * half;
                    typename Units::A a = Units::load_a(x_hi + from, STRIDE), rest = Units::load_a(x_lo + from, STRIDE);
#pragma unroll
                    for (u32 nt = 0; nt < NT; nt++) {
                        Units::mac(part[mt][nt], rest, b[nt]);
                        Units::mac(part[mt][nt], a, b[nt]);
                    }
                }
            }
#pragma unroll
            for (u32 nt = 0; nt < NT; nt++) {
                float by_col[mma::COLS];
                if constexpr (SCALED) load_floats<mma::COLS>(by_col, w_scale + n0 + 16 * nt + mma::first_col_slot());
#pragma unroll
                for (u32 mt = 0; mt < MT; mt++) {
                    float by_row[mma::ROWS];
                    load_floats<mma::ROWS>(by_row, x_scale + m0 + 16 * mt + mma::first_row_slot());
#pragma unroll
                    for (u32 e = 0; e < E; e++) {
                        float sum = part[mt][nt].v[e];
                        if constexpr (SCALED) sum *= by_col[mma::col_index(e)];
                        acc[mt][nt][e] = fma(sum, by_row[mma::row_index(e)], acc[mt][nt][e]);
                    }
                }
            }
        }
        return true;
    }

    DEV_MEMBER u32 row(u32 e) const { return m0 + 16 * (e / E / NT) + mma::row(e % E); }
    DEV_MEMBER u32 col(u32 e) const { return n0 + 16 * (e / E % NT) + mma::col(e % E); }
    DEV_MEMBER float value(u32 e) const { return acc[e / E / NT][e / E % NT][e % E]; }
};
