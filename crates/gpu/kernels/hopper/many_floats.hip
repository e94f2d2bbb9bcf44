// Many rows times an F32 matrix with few outputs, such as that of a router, on matrix units in TF32. A GEMM without these takes
// longer than the GEMMs around it.
//
// Both numbers of a product are sums of two TF32 numbers, hi + lo, 22 bits together. lo lo is left out:
//
//     x w = hi hi + hi lo + lo hi        with an error of about 2^-21 |x w|
//
// A block computes 16 rows by 32 outputs. Its waves take 32 values of k in turn, straight from the cache; their sums are added in
// the order of the waves, which does not depend on the number of rows. With g = lane / 4 and t = lane % 4 (mma.h), a lane has rows
// g and g + 8 of x, row g of each eight of the weights, and of each 16 values of k the four from 4t on: values i and i + 1 of these are
// words t and t + 4 of a product, in which the order of k does not matter. An infinite number makes a sum NaN.
//
// Shared memory: 512 floats for each wave.
#include "gemm/gemm.h"
#include "quant.h"

struct ManyFloats {
    static constexpr u32 ROWS = 16, OUTS = 32, THREADS = 512, ELEMENTS = 1, SUMS = ROWS * OUTS, OCTETS = OUTS / 8;
    static constexpr u32 N_WAVES = THREADS / WARP_SIZE, ROUND = 32;
    static_assert(SUMS == THREADS, "a sum for each thread");

    // A number as the sum of two.
    struct Two {
        u32 hi, lo;
        DEV_MEMBER explicit Two(float x) {
            // Rounded to 11 bits.
            hi = (bits<u32>(x) + 0x1000) & 0xffffe000u;
            lo = bits<u32>(x - bits<float>(hi));
        }
    };
    // What a lane has of a round: of each half, its values of rows of x and of weights.
    struct Part {
        f32x4 x[2][2];
        F32 w[2][OCTETS];
    };

    float sum;

    DEV_MEMBER static void multiply(const Part& part, float (&acc)[OCTETS][4]) {
#pragma unroll
        for (u32 half = 0; half < 2; half++)
#pragma unroll
            for (u32 i = 0; i < 4; i += 2) {
                const Two x[4] = {Two(part.x[half][0][i]), Two(part.x[half][1][i]), Two(part.x[half][0][i + 1]),
                                  Two(part.x[half][1][i + 1])};
                const mma::Words<4> hi = {{x[0].hi, x[1].hi, x[2].hi, x[3].hi}},
                                    lo = {{x[0].lo, x[1].lo, x[2].lo, x[3].lo}};
#pragma unroll
                for (u32 o = 0; o < OCTETS; o++) {
                    const Two a(part.w[half][o].value(i)), b(part.w[half][o].value(i + 1));
                    mma::mma_tf32(acc[o], lo, a.hi, b.hi);
                    mma::mma_tf32(acc[o], hi, a.lo, b.lo);
                    mma::mma_tf32(acc[o], hi, a.hi, b.hi);
                }
            }
    }

    DEV_MEMBER bool run(const One& one, const Tile& tile) {
        SHARED(float, sums, N_WAVES * SUMS);
        const u32 g = lane() / 4, t = lane() % 4, n_in = one.w.n_in;
        FloatRow x[2];
        Block<F32, Planes> w[OCTETS];
#pragma unroll
        for (u32 i = 0; i < 2; i++) x[i] = FloatRow::of(one, min_of(tile.first_row + g + 8 * i, one.n_rows - 1));
#pragma unroll
        for (u32 o = 0; o < OCTETS; o++)
            w[o] = Block<F32, Planes>::of(one.w, min_of(tile.first_out + 8 * o + g, one.w.n_out - 1));
        const auto load = [&](u32 first) {
            Part part = {};
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 k = first + 16 * half + 4 * t;
#pragma unroll
                for (u32 i = 0; i < 2; i++) part.x[half][i] = x[i].load(k);
                // Past the end any weights: x is zero there.
                const u32 chunk = min_of(k / 4, n_chunks<F32>(n_in) - 1);
#pragma unroll
                for (u32 o = 0; o < OCTETS; o++) part.w[half][o] = w[o].load(chunk);
            }
            return part;
        };
        float acc[OCTETS][4] = {};
        Part next = load(wave() * ROUND);
        for (u32 k = uniform(wave()) * ROUND; k < n_in; k += N_WAVES * ROUND) {
            const Part part = next;
            next = load(k + N_WAVES * ROUND);
            multiply(part, acc);
        }
#pragma unroll
        for (u32 o = 0; o < OCTETS; o++)
#pragma unroll
            for (u32 e = 0; e < 4; e++)
                sums[wave() * SUMS + (g + e / 2 * 8) * OUTS + 8 * o + 2 * t + e % 2] = acc[o][e];
        shared_barrier();
        sum = sums[tid()];
#pragma unroll
        for (u32 i = 1; i < N_WAVES; i++) sum += sums[i * SUMS + tid()];
        return true;
    }

    DEV_MEMBER u32 row(u32) const { return tid() / OUTS; }
    DEV_MEMBER u32 col(u32) const { return tid() % OUTS; }
    DEV_MEMBER float value(u32) const { return sum; }
};

KERNEL(many_floats, One, ManyFloats::THREADS) { gemm<ManyFloats, Store, Dense>(p); }
