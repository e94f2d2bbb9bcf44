// Few rows times an F32 matrix with few outputs, such as that of a router. A GEMM would have few blocks, each with a long
// loop along k. Products are exact and sums f32; their order does not depend on the number of rows.
//
// A block of 256 threads computes 8 rows by 8 outputs; its lanes divide k. The grid is [blocks of outputs, blocks of rows].
// Shared memory: 64 floats for each wave.
#include "gemm/gemm.h"
#include "quant.h"

struct FewFloats {
    static constexpr u32 ROWS = 8, OUTS = 8, THREADS = 256, ELEMENTS = 1, SUMS = ROWS * OUTS;
    static constexpr u32 N_WAVES = THREADS / WARP_SIZE, OF_LANE = SUMS / WARP_SIZE;

    float sum;

    // Adds the sums of all lanes: of two lanes, each adds N of the 2 N that both have. Lane i keeps sums OF_LANE * i and after.
    template <u32 N, u32 MASK> DEV_MEMBER static void halve(float (&acc)[SUMS]) {
        const bool is_upper = lane() & MASK;
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            const float give = is_upper ? acc[i] : acc[N + i], keep = is_upper ? acc[N + i] : acc[i];
            acc[i] = keep + shuffle_xor(give, MASK);
        }
        if constexpr (MASK > 1) halve<N / 2, MASK / 2>(acc);
    }

    DEV_MEMBER bool run(const One& one, const Tile& t) {
        SHARED(float, sums, N_WAVES * SUMS);
        const u32 n_in = one.w.n_in;
        FloatRow x[ROWS];
        Block<F32, Planes> w[OUTS];
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) x[r] = FloatRow::of(one, min_of(t.first_row + r, one.n_rows - 1));
#pragma unroll
        for (u32 o = 0; o < OUTS; o++) w[o] = Block<F32, Planes>::of(one.w, min_of(t.first_out + o, one.w.n_out - 1));
        // Sum s is of row s / OUTS and output s % OUTS.
        float acc[SUMS] = {};
        struct Chunks {
            F32 of[OUTS];
        };
        const auto load = [&](u32 k) {
            Chunks chunks;
#pragma unroll
            for (u32 o = 0; o < OUTS; o++) chunks.of[o] = w[o].load(min_of(k / 4, n_chunks<F32>(n_in) - 1));
            return chunks;
        };
        Chunks next = load(tid() * 4);
        begin();
        for (u32 k = tid() * 4; k < n_in; k += THREADS * 4) {
            const Chunks chunks = next;
            f32x4 of_x[ROWS];
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) of_x[r] = x[r].load(k);
            next = load(k + THREADS * 4);
#pragma unroll
            for (u32 o = 0; o < OUTS; o++)
#pragma unroll
                for (u32 r = 0; r < ROWS; r++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++)
                        acc[r * OUTS + o] = fma(of_x[r][j], chunks.of[o].value(j), acc[r * OUTS + o]);
        }
        halve<SUMS / 2, WARP_SIZE / 2>(acc);
#pragma unroll
        for (u32 i = 0; i < OF_LANE; i++) sums[wave() * SUMS + lane() * OF_LANE + i] = acc[i];
        shared_barrier();
        if (tid() >= SUMS) return false;
        sum = sums[tid()];
#pragma unroll
        for (u32 i = 1; i < N_WAVES; i++) sum += sums[i * SUMS + tid()];
        return true;
    }

    DEV_MEMBER u32 row(u32) const { return tid() / OUTS; }
    DEV_MEMBER u32 col(u32) const { return tid() % OUTS; }
    DEV_MEMBER float value(u32) const { return sum; }
};

KERNEL_THAT_BEGINS(few_floats, One, FewFloats::THREADS) { gemm<FewFloats, Store, Dense>(p); }
