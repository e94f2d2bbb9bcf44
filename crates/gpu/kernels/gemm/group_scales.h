// Scales and minimums of groups as numbers, for formats whose activations have a scale for each 32 values (Q8x32):
//
//     acc += d_w d_x dot - m_w d_x sum_x      per group
//
// Shared memory: a scale and a minimum for each output and group, a scale and a sum for each row and group.
#pragma once
#include "gemm/code_step.h"

template <typename S> struct GroupScales {
    using F = typename S::Format;
    static constexpr u32 TM = S::ROWS, TN = S::OUTS, CHUNKS = S::CHUNKS, GROUPS = S::GROUPS, PER_CHUNK = S::PER_CHUNK;
    // Padding floats after the scales of a group: neighbouring groups are stored at once, to different banks.
    static constexpr u32 PAD = 4;

    // Scales and sums of rows and columns are in slots (mma.h), 16 by 16.
    struct Memory {
        float w_scale[GROUPS][TN + PAD];
        float w_min[F::HAS_MIN ? GROUPS : 1][TN + PAD];
        float x_scale[CHUNKS][TM + PAD];
        float x_sum[F::HAS_MIN ? GROUPS : 1][TM + PAD];
    };
    static constexpr u32 ORDER = 0, PARTS = 1;
    // Whether store_sums() needs what all threads have stored before.
    static constexpr bool SUMS_LATER = F::HAS_MIN;

    DEV_MEMBER static void store(Memory& m, const F& w, u32 place, u32 o, u32 chunk) {
        const u32 slot = col_slot_of(o);
#pragma unroll
        for (u32 h = 0; h < PER_CHUNK; h++) {
            m.w_scale[chunk * PER_CHUNK + h][slot] = w.scale(place, h);
            if constexpr (F::HAS_MIN) m.w_min[chunk * PER_CHUNK + h][slot] = w.minimum(place, h);
        }
    }

    // A thread's share of the scales and sums of x.
    struct RowShare {
        static constexpr u32 SCALES = (TM * CHUNKS + THREADS - 1) / THREADS;
        // Threads that share the sums of a row.
        static constexpr u32 PER_ROW = min_of(THREADS / TM, CHUNKS), SUMS = CHUNKS / PER_ROW;

        // Distances from the tile's first row.
        u32 scale_from[SCALES], sum_from;
        float x_scale[SCALES];
        // Two sums of 16 codes each, per chunk.
        u32 x_sum[SUMS];

        DEV_MEMBER static u32 first_sum() { return tid() / TM % PER_ROW * SUMS; }
        DEV_MEMBER void start(const One& one, u32 last) {
            const u32 per_row = one.w.n_in / 32;
#pragma unroll
            for (u32 i = 0; i < SCALES; i++) {
                const u32 n = i * THREADS + tid();
                scale_from[i] = min_of(n / CHUNKS, last) * per_row + n % CHUNKS;
            }
            sum_from = min_of(tid() % TM, last) * per_row + first_sum();
        }
        DEV_MEMBER void load(const One& one, u32 first_row, u32 k) {
            const u32 n_in = one.w.n_in;
            const u64 first = (u64)first_row * (n_in / 32) + k / 32;
#pragma unroll
            for (u32 i = 0; i < SCALES; i++) {
                x_scale[i] = 0.0f;
                if (k + tid() % CHUNKS * 32 < n_in) x_scale[i] = (one.scales + first)[scale_from[i]];
            }
            if constexpr (F::HAS_MIN) {
                const u32* pairs = (const u32*)one.sums + first;
#pragma unroll
                for (u32 i = 0; i < SUMS; i++) x_sum[i] = k + 32 * (first_sum() + i) < n_in ? pairs[sum_from + i] : 0;
            }
        }
        DEV_MEMBER void store(Memory& m) const {
#pragma unroll
            for (u32 i = 0; i < SCALES; i++) {
                u32 n = i * THREADS + tid();
                if (n < TM * CHUNKS) m.x_scale[n % CHUNKS][row_slot_of(n / CHUNKS)] = x_scale[i];
            }
        }
        DEV_MEMBER void store_sums(Memory& m) const {
            if (tid() >= TM * PER_ROW) return;
            const u32 slot = row_slot_of(tid() % TM), from = first_sum();
#pragma unroll
            for (u32 i = 0; i < SUMS; i++) {
                const i32 low = (i16)x_sum[i], high = (i16)(x_sum[i] >> 16);
                const float d = m.x_scale[from + i][slot];
                if constexpr (PER_CHUNK == 1) {
                    m.x_sum[from + i][slot] = d * (float)(low + high);
                } else {
                    m.x_sum[2 * (from + i)][slot] = d * (float)low;
                    m.x_sum[2 * (from + i) + 1][slot] = d * (float)high;
                }
            }
        }
    };

    // MT by NT tiles of a wave.
    template <u32 MT, u32 NT> struct Sums {
        float acc[MT][NT][mma::ELEMENTS] = {};

        // Adds groups wave_k, wave_k + WK, ... of a step.
        template <u32 WK, u32 UNROLLED>
        DEV_MEMBER void add(const i8* x, const i8* w, const Memory& m, u32 m0, u32 n0, u32 wave_k) {
            using Tile = mma::I8<F::GROUP>;
#pragma unroll UNROLLED
            for (u32 i = 0; i < GROUPS / WK; i++) {
                const u32 g = i * WK + wave_k;
                typename Tile::A a[MT];
                float x_sum[MT][mma::ROWS], x_scale[MT][mma::ROWS];
#pragma unroll
                for (u32 mt = 0; mt < MT; mt++) {
                    const u32 row = m0 + 16 * mt, slot = row + mma::first_row_slot();
                    a[mt] = Tile::load_a(x + row * S::STRIDE + g * F::GROUP, S::STRIDE);
                    if constexpr (F::HAS_MIN) load_floats<mma::ROWS>(x_sum[mt], m.x_sum[g] + slot);
                    load_floats<mma::ROWS>(x_scale[mt], m.x_scale[g / PER_CHUNK] + slot);
                }
#pragma unroll
                for (u32 nt = 0; nt < NT; nt++) {
                    const u32 col = n0 + 16 * nt, slot = col + mma::first_col_slot();
                    typename Tile::B b = Tile::load_b(w + col * S::STRIDE + g * F::GROUP, S::STRIDE);
                    float w_scale[mma::COLS], w_min[mma::COLS];
                    load_floats<mma::COLS>(w_scale, m.w_scale[g] + slot);
                    if constexpr (F::HAS_MIN) load_floats<mma::COLS>(w_min, m.w_min[g] + slot);
#pragma unroll
                    for (u32 mt = 0; mt < MT; mt++) {
                        typename Tile::Acc dot = Tile::start();
                        Tile::mac(dot, a[mt], b);
#pragma unroll
                        for (u32 e = 0; e < mma::ELEMENTS; e++) {
                            const u32 r = mma::row_index(e), c = mma::col_index(e);
                            float& sum = acc[mt][nt][e];
                            sum = fma(Tile::value(dot.v[e]), w_scale[c] * x_scale[mt][r], sum);
                            if constexpr (F::HAS_MIN) sum = fma(-w_min[c], x_sum[mt][r], sum);
                        }
                    }
                }
            }
        }
        DEV_MEMBER void end_block(const Memory&, u32, u32) {}
    };
};
