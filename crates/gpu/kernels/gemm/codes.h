// The mainloop of quantized weights on any GPU.
//
// x is int8 codes with scales d_x (ActForm::Q8x32, Q8x256); w = d_w code - m_w. A block of 256 threads computes TM rows
// by TN outputs. Each step loads STEP values of k of both operands into shared memory as int8; the block's waves (WM by
// WN of them side by side, WK over the groups of k) multiply tiles of 16x16 on the matrix units, one group of values
// with a common scale at a time. What becomes of the integer sums: group_scales.h for Q8x32, block_scales.h for Q8x256.
//
// The data of the next DEPTH steps is loaded into registers while a step is multiplied. The order of all sums is fixed.
// Shared memory: (TM + TN) (STEP + 16) bytes of codes, and scales; with WK > 1 also (WK - 1) TM TN floats.
#pragma once
#include "gemm/block_scales.h"
#include "gemm/group_scales.h"

template <typename S, bool BLOCKS = (S::Format::ACT_BLOCK > 32)> struct ScalesOf {
    using Type = GroupScales<S>;
};
template <typename S> struct ScalesOf<S, true> {
    using Type = BlockScales<S>;
};

// Subtracts OFFSET from each byte. All bytes are below 128 before.
template <i32 OFFSET> DEV u32 centered(u32 four) {
    if constexpr (OFFSET == 0) return four;
    else return ((four | 0x80808080u) - 0x01010101u * OFFSET) ^ 0x80808080u;
}

// A thread's share of a step's weights on the way from device memory to shared memory: one chunk.
template <typename S> struct WeightShare {
    using F = typename S::Format;
    static_assert(S::OUTS * S::CHUNKS == THREADS, "whole shares");

    u32 w_chunk;
    F w;

    DEV_MEMBER void load(const One& one, const Block<F, Planes>& row, u32 k) {
        w_chunk = k / 32 + tid() % S::CHUNKS;
        w = F{};
        if (F::LEN % S::LEN == 0 || w_chunk < one.w.n_in / 32) w = row.load(w_chunk);
    }

    template <typename Memory> DEV_MEMBER void store(Memory& m) const {
        const u32 o = tid() / S::CHUNKS, chunk = tid() % S::CHUNKS;
        u32 q[8];
        w.codes(q);
#pragma unroll
        for (u32 i = 0; i < 8; i++) q[i] = centered<F::OFFSET>(q[i]);
        i8* to = m.w + o * S::STRIDE + chunk * 32;
        store16(to, u32x4{{q[0], q[1], q[2], q[3]}});
        store16(to + 16, u32x4{{q[4], q[5], q[6], q[7]}});
        ScalesOf<S>::Type::store(m.scales, w, place_in_block<F>(w_chunk), o, chunk);
    }
};

// A thread's share of x: pieces of 16 codes, and its scales.
template <typename S> struct RowShare {
    static constexpr u32 TM = S::ROWS, ROW_PIECES = S::LEN / 16, PIECES = TM * ROW_PIECES / THREADS;
    static_assert(PIECES * THREADS == TM * ROW_PIECES && TM <= THREADS, "whole shares");

    // Bytes from the first row of the tile, which take half of the registers and instructions of pointers.
    u32 from[PIECES];
    u32x4 x[PIECES];
    typename ScalesOf<S>::Type::RowShare scales;

    DEV_MEMBER void start(const One& one, u32 first_row) {
        const u32 last = one.n_rows - 1 - first_row;
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            const u32 piece = i * THREADS + tid();
            from[i] = min_of(piece / ROW_PIECES, last) * one.w.n_in + piece % ROW_PIECES * 16;
        }
        scales.start(one, last);
    }
    DEV_MEMBER void load(const One& one, u32 first_row, u32 k) {
        const u32 n_in = one.w.n_in;
        const u8* first = one.x + (u64)first_row * n_in + k;
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            x[i] = u32x4{};
            if (S::Format::LEN % S::LEN == 0 || k + tid() % ROW_PIECES * 16 < n_in) x[i] = load16(first + from[i]);
        }
        scales.load(one, first_row, k);
    }

    template <typename Memory> DEV_MEMBER void store(Memory& m) const {
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            u32 piece = i * THREADS + tid();
            store16(m.x + piece / ROW_PIECES * S::STRIDE + piece % ROW_PIECES * 16, x[i]);
        }
        scales.store(m.scales);
    }
};

// MT by NT tiles per wave, WM by WN waves side by side and WK over the groups of k; DEPTH steps in flight, as registers
// allow.
template <typename F, u32 STEP, u32 MT, u32 NT, u32 WM, u32 WN, u32 WK, u32 DEPTH> struct Codes {
    static constexpr u32 TM = 16 * MT * WM, TN = 16 * NT * WN, E = mma::ELEMENTS;
    using S = Step<F, STEP, TM, TN>;
    using Scales = typename ScalesOf<S>::Type;
    struct alignas(16) Memory {
        i8 x[TM * S::STRIDE];
        i8 w[TN * S::STRIDE];
        typename Scales::Memory scales;
    };
    static_assert(WM * WN * WK == N_WAVES && S::GROUPS % WK == 0, "all waves have work");

    // Groups whose values are loaded together. Dot products of whole rows need more registers.
#if defined(MMA_DOT)
    static constexpr u32 UNROLLED = 1;
#else
    static constexpr u32 UNROLLED = DEPTH;
#endif
    // Steps of a turn of the loop.
    static constexpr u32 ROUND = DEPTH > Scales::PARTS ? DEPTH : Scales::PARTS;
    static_assert(ROUND % DEPTH == 0 && ROUND % Scales::PARTS == 0, "whole blocks, and each share in its turn");

    static constexpr u32 ROWS = TM, OUTS = TN, THREADS = ::THREADS, ELEMENTS = MT * NT * E;
    static constexpr u32 SHARED = sizeof(Memory) + (WK - 1) * TM * TN * sizeof(float);
    static constexpr u32 ORDER = WK + (Scales::ORDER << 8);

    typename Scales::template Sums<MT, NT> sums;
    u32 m0, n0;

    DEV_MEMBER bool run(const One& one, const Tile& t) {
        SHARED(Memory, memory, 1);
        Memory& m = *memory;

        const u32 first_out = t.first_out, first_row = t.first_row;
        const u32 at = uniform(wave()), wave_k = at / (WM * WN);
        m0 = at % WM * 16 * MT;
        n0 = at / WM % WN * 16 * NT;

        const auto w_row = Block<F, Planes>::of(one.w, min_of(first_out + tid() / S::CHUNKS, one.w.n_out - 1));
        WeightShare<S> w[DEPTH];
        RowShare<S> x[DEPTH];
#pragma unroll
        for (u32 i = 0; i < DEPTH; i++) {
            x[i].start(one, first_row);
            if (i * STEP >= one.w.n_in) continue;
            w[i].load(one, w_row, i * STEP);
            x[i].load(one, first_row, i * STEP);
        }
        for (u32 round = 0; round < one.w.n_in; round += ROUND * STEP) {
#pragma unroll
            for (u32 i = 0; i < ROUND; i++) {
                const u32 k = round + i * STEP;
                if (i % Scales::PARTS == 0 && k >= one.w.n_in) break;
                WeightShare<S>& own_w = w[i % DEPTH];
                RowShare<S>& own_x = x[i % DEPTH];
                shared_barrier();
                own_w.store(m);
                own_x.store(m);
                if constexpr (Scales::SUMS_LATER) {
                    shared_barrier();
                    own_x.scales.store_sums(m.scales);
                }
                shared_barrier();
                if (k + DEPTH * STEP < one.w.n_in) {
                    own_w.load(one, w_row, k + DEPTH * STEP);
                    own_x.load(one, first_row, k + DEPTH * STEP);
                }
                sums.template add<WK, UNROLLED>(m.x, m.w, m.scales, m0, n0, wave_k);
                if ((i + 1) % Scales::PARTS == 0) sums.end_block(m.scales, m0, n0);
            }
        }

        if constexpr (WK > 1) {
            // The waves that split k pass their sums to the first one, which adds them in order.
            SHARED(float, others, (WK - 1) * TM * TN);
            float* of_lane = others + at % (WM * WN) * MT * NT * 256 + lane();
            if (wave_k > 0) {
#pragma unroll
                for (u32 i = 0; i < ELEMENTS; i++)
                    of_lane[(wave_k - 1) * TM * TN + i * WARP_SIZE] = sums.acc[i / E / NT][i / E % NT][i % E];
            }
            shared_barrier();
            if (wave_k > 0) return false;
#pragma unroll
            for (u32 i = 0; i < ELEMENTS; i++)
#pragma unroll
                for (u32 w = 0; w < WK - 1; w++)
                    sums.acc[i / E / NT][i / E % NT][i % E] += of_lane[w * TM * TN + i * WARP_SIZE];
        }
        return true;
    }

    DEV_MEMBER u32 row(u32 e) const { return m0 + 16 * (e / E / NT) + mma::row(e % E); }
    DEV_MEMBER u32 col(u32 e) const { return n0 + 16 * (e / E % NT) + mma::col(e % E); }
    DEV_MEMBER float value(u32 e) const { return sums.acc[e / E / NT][e / E % NT][e % E]; }
};
