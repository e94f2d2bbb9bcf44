// The mainloop of quantized weights on any GPU.
//
// x is int8 codes with scales d_x (ActForm::Q8x32, Q8x256); w = d_w code - m_w. A block of 256 threads computes TM rows
// by TN outputs. Each step loads STEP values of k of both operands into shared memory as int8; the block's waves (WM by
// WN of them side by side, WK over the groups of k) multiply tiles of 16x16 on the matrix units, one group of values
// with a common scale at a time, and convert the sums to floats:
//
//     Q8x32    acc += d_w d_x dot - m_w d_x sum_x           per group; d_x is that of its 32 values
//     Q8x256   part += d_w dot - m_w sum_x                  per group;   acc += d_x part   per step
//
// The data of the next DEPTH steps is loaded into registers while a step is multiplied. The order of all sums is fixed.
// Shared memory: (TM + TN) (STEP + 16) bytes of codes, TN scales and minimums and TM scales and sums per group; with WK
// > 1 also (WK - 1) TM TN floats.
//
// Tuned on an H200, whose matrix units do 1,295 TOP/s in int8 and which reads 4.5 TB/s. 512 rows times Q4_K [14336,
// 4096]: 420 to 460 us, 10 to 11 % of peak TOP/s; 32 rows: 46 us, 16 % of peak bandwidth. Both are bound by instruction
// issue.
#pragma once
#include "gemm/gemm.h"

constexpr u32 THREADS = 256;
constexpr u32 N_WAVES = THREADS / WARP_SIZE;

// A step of the product of TM rows and TN outputs: STEP values of k.
template <typename Format, u32 STEP, u32 TM, u32 TN> struct Step {
    using F = Format;
    static constexpr u32 LEN = STEP, ROWS = TM, OUTS = TN;
    static constexpr u32 CHUNKS = STEP / 32, GROUPS = STEP / F::GROUP, PER_CHUNK = 32 / F::GROUP;
    // Whether sums take the scale of x once at the end of a step.
    static constexpr bool BY_STEP = F::ACT_BLOCK > 32;
    // Scales of x per row.
    static constexpr u32 X_SCALES = BY_STEP ? 1 : CHUNKS;
    // Bytes between rows of codes: an odd multiple of 16.
    static constexpr u32 STRIDE = STEP + 16;
    // Padding floats after the scales of a group: neighbouring groups are stored at once, to different banks.
    static constexpr u32 PAD = 4;

    // Shared memory. Scales and sums of rows and columns are in slots (mma.h), 16 by 16.
    struct alignas(16) Memory {
        i8 x[TM * STRIDE];
        i8 w[TN * STRIDE];
        float w_scale[GROUPS][TN + PAD];
        float w_min[F::HAS_MIN ? GROUPS : 1][TN + PAD];
        float x_scale[X_SCALES][TM + PAD];
        float x_sum[F::HAS_MIN ? GROUPS : 1][TM + PAD];
    };
};

// Subtracts OFFSET from each byte. All bytes are below 128 before.
template <i32 OFFSET> DEV u32 centered(u32 four) {
    if constexpr (OFFSET == 0) return four;
    else return ((four | 0x80808080u) - 0x01010101u * OFFSET) ^ 0x80808080u;
}

// A thread's share of a step's weights on the way from device memory to shared memory: one chunk.
template <typename S> struct WeightShare {
    using F = typename S::F;
    using Memory = typename S::Memory;
    static constexpr u32 TN = S::OUTS, CHUNKS = S::CHUNKS, STRIDE = S::STRIDE;
    static_assert(TN * CHUNKS == THREADS, "whole shares");

    u32 w_chunk;
    F w;

    DEV_MEMBER static u32 slot_of_col(u32 col) { return col / 16 * 16 + mma::col_slot(col % 16); }

    DEV_MEMBER void load(const One& one, const Block<F, Planes>& row, u32 k) {
        w_chunk = k / 32 + tid() % CHUNKS;
        w = F{};
        if (w_chunk < one.w.n_in / 32) w = row.load(w_chunk);
    }

    DEV_MEMBER void store(Memory& m) const {
        const u32 o = tid() / CHUNKS, chunk = tid() % CHUNKS, place = place_in_block<F>(w_chunk);
        u32 q[8];
        w.codes(q);
#pragma unroll
        for (u32 i = 0; i < 8; i++) q[i] = centered<F::OFFSET>(q[i]);
        i8* to = m.w + o * STRIDE + chunk * 32;
        store16(to, u32x4{{q[0], q[1], q[2], q[3]}});
        store16(to + 16, u32x4{{q[4], q[5], q[6], q[7]}});
#pragma unroll
        for (u32 h = 0; h < S::PER_CHUNK; h++) {
            m.w_scale[chunk * S::PER_CHUNK + h][slot_of_col(o)] = w.scale(place, h);
            if constexpr (F::HAS_MIN) m.w_min[chunk * S::PER_CHUNK + h][slot_of_col(o)] = w.minimum(place, h);
        }
    }
};

// A thread's share of x: pieces of 16 codes, scales and sums.
template <typename S> struct RowShare {
    using F = typename S::F;
    using Memory = typename S::Memory;
    static constexpr u32 TM = S::ROWS, CHUNKS = S::CHUNKS, X_SCALES = S::X_SCALES, STRIDE = S::STRIDE;
    static constexpr u32 ROW_PIECES = S::LEN / 16, PIECES = TM * ROW_PIECES / THREADS;
    static constexpr u32 SCALES = (TM * X_SCALES + THREADS - 1) / THREADS;
    // Threads that share the sums of a row.
    static constexpr u32 PER_ROW = min_of(THREADS / TM, CHUNKS), SUMS = CHUNKS / PER_ROW;
    static_assert(PIECES * THREADS == TM * ROW_PIECES && TM <= THREADS, "whole shares");

    u32x4 x[PIECES];
    float x_scale[SCALES];
    // Two sums of 16 codes each, per chunk.
    u32 x_sum[SUMS];

    DEV_MEMBER static u32 slot_of_row(u32 row) { return row / 16 * 16 + mma::row_slot(row % 16); }

    DEV_MEMBER void load(const One& one, u32 first_row, u32 k) {
        const u32 n_in = one.w.n_in;
        const u32 thread = opaque(tid());
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            u32 piece = i * THREADS + thread;
            u32 row = min_of(first_row + piece / ROW_PIECES, one.n_rows - 1), at = k + piece % ROW_PIECES * 16;
            x[i] = u32x4{};
            if (at < n_in) x[i] = load16(one.x + (u64)row * n_in + at);
        }
#pragma unroll
        for (u32 i = 0; i < SCALES; i++) {
            u32 n = i * THREADS + thread;
            u32 row = min_of(first_row + n / X_SCALES, one.n_rows - 1), at = k + n % X_SCALES * 32;
            x_scale[i] = 0.0f;
            if (at < n_in) x_scale[i] = one.scales[(u64)row * (n_in / F::ACT_BLOCK) + at / F::ACT_BLOCK];
        }
        if constexpr (F::HAS_MIN) {
            u32 row = min_of(first_row + thread % TM, one.n_rows - 1), from = thread / TM % PER_ROW * SUMS;
            const u32* pairs = (const u32*)one.sums + (u64)row * (n_in / 32) + k / 32;
#pragma unroll
            for (u32 i = 0; i < SUMS; i++) x_sum[i] = k + 32 * (from + i) < n_in ? pairs[from + i] : 0;
        }
    }

    DEV_MEMBER void store(Memory& m) const {
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            u32 piece = i * THREADS + tid();
            store16(m.x + piece / ROW_PIECES * STRIDE + piece % ROW_PIECES * 16, x[i]);
        }
#pragma unroll
        for (u32 i = 0; i < SCALES; i++) {
            u32 n = i * THREADS + tid();
            if (n < TM * X_SCALES) m.x_scale[n % X_SCALES][slot_of_row(n / X_SCALES)] = x_scale[i];
        }
    }

    // For Q8x32, call it after the scales are stored.
    DEV_MEMBER void store_sums(Memory& m) const {
        if (tid() >= TM * PER_ROW) return;
        const u32 slot = slot_of_row(tid() % TM), from = tid() / TM * SUMS;
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) {
            const i32 low = (i16)x_sum[i], high = (i16)(x_sum[i] >> 16);
            float d = 1.0f;
            if constexpr (F::ACT_BLOCK == 32) d = m.x_scale[from + i][slot];
            if constexpr (S::PER_CHUNK == 1) {
                m.x_sum[from + i][slot] = d * (float)(low + high);
            } else {
                m.x_sum[2 * (from + i)][slot] = d * (float)low;
                m.x_sum[2 * (from + i) + 1][slot] = d * (float)high;
            }
        }
    }
};

// acc += the products of a step by one wave: MT by NT tiles from row m0 and output n0 on, of groups wave_k, wave_k +
// WK, ... The values of UNROLLED groups are loaded together.
template <typename S, u32 MT, u32 NT, u32 WK, u32 UNROLLED>
DEV void multiply(float (&acc)[MT][NT][mma::ELEMENTS], const typename S::Memory& m, u32 m0, u32 n0, u32 wave_k) {
    using F = typename S::F;
    using Tile = mma::I8<F::GROUP>;
    constexpr u32 STRIDE = S::STRIDE, E = mma::ELEMENTS;
    constexpr bool BY_STEP = S::BY_STEP;
    float part[MT][NT][E] = {};
#pragma unroll UNROLLED
    for (u32 i = 0; i < S::GROUPS / WK; i++) {
        const u32 g = i * WK + wave_k;
        typename Tile::A a[MT];
        float x_sum[MT][mma::ROWS], x_scale[MT][mma::ROWS];
#pragma unroll
        for (u32 mt = 0; mt < MT; mt++) {
            const u32 row = m0 + 16 * mt, slot = row + mma::first_row_slot();
            a[mt] = Tile::load_a(m.x + row * STRIDE + g * F::GROUP, STRIDE);
            if constexpr (F::HAS_MIN) load_floats<mma::ROWS>(x_sum[mt], m.x_sum[g] + slot);
            if constexpr (!BY_STEP) load_floats<mma::ROWS>(x_scale[mt], m.x_scale[g / S::PER_CHUNK] + slot);
        }
#pragma unroll
        for (u32 nt = 0; nt < NT; nt++) {
            const u32 col = n0 + 16 * nt, slot = col + mma::first_col_slot();
            typename Tile::B b = Tile::load_b(m.w + col * STRIDE + g * F::GROUP, STRIDE);
            float w_scale[mma::COLS], w_min[mma::COLS];
            load_floats<mma::COLS>(w_scale, m.w_scale[g] + slot);
            if constexpr (F::HAS_MIN) load_floats<mma::COLS>(w_min, m.w_min[g] + slot);
#pragma unroll
            for (u32 mt = 0; mt < MT; mt++) {
                typename Tile::Acc dot = Tile::start();
                Tile::mac(dot, a[mt], b);
#pragma unroll
                for (u32 e = 0; e < E; e++) {
                    const u32 r = mma::row_index(e), c = mma::col_index(e);
                    float& sum = BY_STEP ? part[mt][nt][e] : acc[mt][nt][e];
                    float scale = BY_STEP ? w_scale[c] : w_scale[c] * x_scale[mt][r];
                    sum = fma(Tile::value(dot.v[e]), scale, sum);
                    if constexpr (F::HAS_MIN) sum = fma(-w_min[c], x_sum[mt][r], sum);
                }
            }
        }
    }
    if constexpr (BY_STEP) {
#pragma unroll
        for (u32 mt = 0; mt < MT; mt++) {
            float x_scale[mma::ROWS];
            load_floats<mma::ROWS>(x_scale, m.x_scale[0] + m0 + 16 * mt + mma::first_row_slot());
#pragma unroll
            for (u32 nt = 0; nt < NT; nt++)
#pragma unroll
                for (u32 e = 0; e < E; e++)
                    acc[mt][nt][e] = fma(part[mt][nt][e], x_scale[mma::row_index(e)], acc[mt][nt][e]);
        }
    }
}

// MT by NT tiles per wave, WM by WN waves side by side and WK over the groups of k; DEPTH steps in flight, as registers
// allow.
template <typename F, u32 STEP, u32 MT, u32 NT, u32 WM, u32 WN, u32 WK, u32 DEPTH> struct Codes {
    static constexpr u32 TM = 16 * MT * WM, TN = 16 * NT * WN, E = mma::ELEMENTS;
    using S = Step<F, STEP, TM, TN>;
    using Memory = typename S::Memory;
    static_assert(WM * WN * WK == N_WAVES && S::GROUPS % WK == 0, "all waves have work");

    static constexpr u32 ROWS = TM, OUTS = TN, THREADS = ::THREADS, ELEMENTS = MT * NT * E;
    static constexpr u32 SHARED = sizeof(Memory) + (WK - 1) * TM * TN * sizeof(float);
    // Sums are added by group, wave_k by wave_k; with BY_STEP first within a step.
    static constexpr u32 ORDER = WK + (S::BY_STEP ? STEP << 8 : 0);

    float acc[MT][NT][E] = {};
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
            w[i].load(one, w_row, i * STEP);
            x[i].load(one, first_row, i * STEP);
        }
        for (u32 round = 0; round < one.w.n_in; round += DEPTH * STEP) {
#pragma unroll
            for (u32 i = 0; i < DEPTH; i++) {
                const u32 k = round + i * STEP;
                if (k >= one.w.n_in) break;
                shared_barrier();
                w[i].store(m);
                x[i].store(m);
                if constexpr (F::HAS_MIN) {
                    if constexpr (!S::BY_STEP) shared_barrier();
                    x[i].store_sums(m);
                }
                shared_barrier();
                if (k + DEPTH * STEP < one.w.n_in) {
                    w[i].load(one, w_row, k + DEPTH * STEP);
                    x[i].load(one, first_row, k + DEPTH * STEP);
                }
                multiply<S, MT, NT, WK, DEPTH>(acc, m, m0, n0, wave_k);
            }
        }

        if constexpr (WK > 1) {
            // The waves that split k pass their sums to the first one, which adds them in order.
            SHARED(float, sums, (WK - 1) * TM * TN);
            float* of_lane = sums + at % (WM * WN) * MT * NT * 256 + lane();
            if (wave_k > 0) {
#pragma unroll
                for (u32 i = 0; i < ELEMENTS; i++)
                    of_lane[(wave_k - 1) * TM * TN + i * WARP_SIZE] = acc[i / E / NT][i / E % NT][i % E];
            }
            shared_barrier();
            if (wave_k > 0) return false;
#pragma unroll
            for (u32 i = 0; i < ELEMENTS; i++)
#pragma unroll
                for (u32 w = 0; w < WK - 1; w++)
                    acc[i / E / NT][i / E % NT][i % E] += of_lane[w * TM * TN + i * WARP_SIZE];
        }
        return true;
    }

    DEV_MEMBER u32 row(u32 e) const { return m0 + 16 * (e / E / NT) + mma::row(e % E); }
    DEV_MEMBER u32 col(u32 e) const { return n0 + 16 * (e / E % NT) + mma::col(e % E); }
    DEV_MEMBER float value(u32 e) const { return acc[e / E / NT][e / E % NT][e % E]; }
};
