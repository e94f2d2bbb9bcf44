// The mainloop of F32 weights, and of all float formats on GPUs without matrix units: exact products, f32 sums.
//
// A block of 256 threads computes TM rows by TN outputs, K values of k at a time. A thread has 4 rows by 8 outputs, which
// needs the fewest loads from shared memory per product that registers allow. So a group of TM TN / 32 threads has the
// whole tile, and the groups of a block split the K values. At the end their sums are added, group by group.
//
// Rows lie in shared memory as in device memory, and threads read four values of k at once. There are two buffers: while
// one is multiplied, the next step is stored to the other, and those after it are on the way to registers. Shared
// memory: 8 (TM + TN) (K + 4) bytes, at least 32 KB for the sums.
#pragma once
#include "gemm/gemm.h"

template <typename F, u32 TM, u32 TN, u32 K> struct Exact {
    // RM rows by RN outputs of a thread. DEPTH steps in shared memory, and as many in registers.
    static constexpr u32 THREADS = 256, RM = 4, RN = 8, DEPTH = 2;
    // The threads of a group: DOWN the rows, ALONG the outputs. Each takes rows and outputs that are as far apart.
    static constexpr u32 DOWN = TM / RM, ALONG = TN / RN, SHARERS = DOWN * ALONG, GROUPS = THREADS / SHARERS;
    // Values of k of a group in a step.
    static constexpr u32 OWN = K / GROUPS;
    static_assert(SHARERS * GROUPS == THREADS && OWN * GROUPS == K && OWN % 4 == 0, "all threads have work");
    // Floats between rows in shared memory: an odd multiple of four.
    static constexpr u32 STRIDE = K + 4;
    static_assert(STRIDE / 4 % 2 == 1, "rows in different banks");
    // Floats of a buffer, of all sums, and of the memory for either.
    static constexpr u32 BUFFER = (TM + TN) * STRIDE, SUMS = THREADS * RM * RN;
    static constexpr u32 FLOATS = DEPTH * BUFFER > SUMS ? DEPTH * BUFFER : SUMS;
    // Pieces of four values in a row of x, chunks in one of w, and chunks of a thread.
    static constexpr u32 PIECES = K / 4, CHUNKS = K / F::CHUNK, N_CHUNKS = (TN * CHUNKS + THREADS - 1) / THREADS;
    static_assert(TM * PIECES == THREADS, "a piece for each thread");

    static constexpr u32 ROWS = TM, OUTS = TN, ELEMENTS = RM * RN / GROUPS;
    static constexpr u32 SHARED = FLOATS * sizeof(float);
    // Each group adds its values of k = 0 .. K - 1 first, then those of the next step.
    static constexpr u32 ORDER = GROUPS + (K << 8);

    // A thread's share of a step on the way from device memory to shared memory.
    struct Share {
        f32x4 x;
        F w[N_CHUNKS];
    };

    u32 group, down, along;
    float sums[ELEMENTS];

    DEV_MEMBER bool run(const One& one, const Tile& t) {
        SHARED(float, memory, FLOATS);
        const u32 n_in = one.w.n_in;
        // Lanes i and i ^ 1 have the same outputs, i and i ^ 2 the same rows: NVIDIA's GPUs then load 16 bytes per lane in
        // half the time.
        const u32 at = tid() % SHARERS;
        group = tid() / SHARERS;
        down = at % 2 + at / (2 * ALONG) * 2;
        along = at / 2 % ALONG;

        const u32 x_row = tid() / PIECES, piece = tid() % PIECES;
        const FloatRow x_from = FloatRow::of(one, min_of(t.first_row + x_row, one.n_rows - 1));
        Block<F, Planes> w_from[N_CHUNKS];
#pragma unroll
        for (u32 i = 0; i < N_CHUNKS; i++) {
            const u32 o = (i * THREADS + tid()) / CHUNKS;
            w_from[i] = Block<F, Planes>::of(one.w, min_of(t.first_out + o, one.w.n_out - 1));
        }
        Share next[DEPTH];
        auto load = [&](Share& to, u32 k) {
            to.x = x_from.load(k + 4 * piece);
#pragma unroll
            for (u32 i = 0; i < N_CHUNKS; i++) {
                const u32 chunk = k / F::CHUNK + (i * THREADS + tid()) % CHUNKS;
                to.w[i] = F{};
                if (chunk < n_chunks<F>(n_in)) to.w[i] = w_from[i].load(chunk);
            }
        };
        auto store = [&](float* x, float* w, const Share& from) {
            store16(x + x_row * STRIDE + 4 * piece, bits<u32x4>(from.x));
#pragma unroll
            for (u32 i = 0; i < N_CHUNKS; i++) {
                const u32 n = i * THREADS + tid();
                if (TN * CHUNKS % THREADS != 0 && n >= TN * CHUNKS) break;
                float* to = w + n / CHUNKS * STRIDE + n % CHUNKS * F::CHUNK;
#pragma unroll
                for (u32 j = 0; j < F::CHUNK; j += 4) {
                    f32x4 four;
                    for (u32 v = 0; v < 4; v++) four.v[v] = from.w[i].value(j + v);
                    store16(to + j, bits<u32x4>(four));
                }
            }
        };

        float acc[RM][RN] = {};
#pragma unroll
        for (u32 i = 0; i < DEPTH; i++) load(next[i], i * K);
        for (u32 round = 0; round < n_in; round += DEPTH * K) {
#pragma unroll
            for (u32 i = 0; i < DEPTH; i++) {
                const u32 k = round + i * K;
                if (k >= n_in) break;
                float *x = memory + i * BUFFER, *w = x + TM * STRIDE;
                store(x, w, next[i]);
                // After it, no thread reads the other buffer any more.
                shared_barrier();
                if (k + DEPTH * K < n_in) load(next[i], k + DEPTH * K);
                multiply(acc, x + down * STRIDE + group * OWN, w + along * STRIDE + group * OWN);
            }
        }
        shared_barrier();
        add(acc, memory);
        return true;
    }

    // acc += the products of a group's values of a step.
    DEV_MEMBER static void multiply(float (&acc)[RM][RN], const float* x, const float* w) {
#pragma unroll
        for (u32 k = 0; k < OWN; k += 4) {
            float a[RM][4];
#pragma unroll
            for (u32 r = 0; r < RM; r++) load_floats<4>(a[r], x + r * DOWN * STRIDE + k);
#pragma unroll
            for (u32 c = 0; c < RN; c++) {
                float b[4];
                load_floats<4>(b, w + c * ALONG * STRIDE + k);
#pragma unroll
                for (u32 j = 0; j < 4; j++)
#pragma unroll
                    for (u32 r = 0; r < RM; r++) acc[r][c] = fma(a[r][j], b[j], acc[r][c]);
            }
        }
    }

    // Adds the sums of the groups. Of those with the same rows and outputs, each thread takes every GROUPS-th element.
    DEV_MEMBER void add(const float (&acc)[RM][RN], float* memory) {
#pragma unroll
        for (u32 i = 0; i < RM * RN; i++) memory[i * THREADS + tid()] = acc[i / RN][i % RN];
        shared_barrier();
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const float* from = memory + element(e) * THREADS + tid() % SHARERS;
            sums[e] = from[0];
#pragma unroll
            for (u32 g = 1; g < GROUPS; g++) sums[e] += from[g * SHARERS];
        }
    }

    DEV_MEMBER u32 element(u32 e) const { return group + e * GROUPS; }
    DEV_MEMBER u32 row(u32 e) const { return down + element(e) / RN * DOWN; }
    DEV_MEMBER u32 col(u32 e) const { return along + element(e) % RN * ALONG; }
    DEV_MEMBER float value(u32 e) const { return sums[e]; }
};
