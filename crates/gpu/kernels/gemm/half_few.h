// Products of quantized weights with up to 16 rows of f16 activations on Hopper, where reading the weights limits. Weights
// become f16 in registers as in half.h, and are multiplied by mma.sync, whose A has the order of a part of wgmma's.
//
// A block has 16 outputs. Its waves take rounds of 128 values of k in turn; their sums are added in the order of the waves,
// the same one for any number of rows. The weights of a round come while those of the round before are multiplied, those of
// the first round while the kernels before run. Activations come through the cache.
//
// Shared memory: a float for each wave, output and row.
#pragma once
#include "gemm/half.h"
#include "mma.h"

template <typename F, u32 OCTETS> struct HalfFew {
    static constexpr u32 ROWS = 8 * OCTETS, OUTS = 16, WAVES = 8, THREADS = WAVES * WARP_SIZE, ROUND = 128;
    // The sums are not in the memory of the launch.
    static constexpr u32 SHARED_BYTES = 0, BLOCKS = 2;

    const HalfParams& p;
    HalfProduct product;
    u32 first_out;
    Block<F, Planes> rows[2];

    DEV_MEMBER HalfFew(const HalfParams& params) : p(params), product(params.products[0]) {
        const u32 tile = bid_x();
        if (tile >= p.products[1].first_tile) product = p.products[1];
        if (tile >= p.products[2].first_tile) product = p.products[2];
        first_out = (tile - product.first_tile) * OUTS;
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            rows[i] = Block<F, Planes>::of(product.w, min_of(first_out + lane() / 4 + 8 * i, product.w.n_out - 1));
    }

    // The weights of a round for the thread's two outputs; past the end, where activations are zeros, any.
    DEV_MEMBER void load(F (&raw)[2], u32 round) const {
        const u32 chunk = min_of(4 * round + lane() % 4, n_chunks<F>(product.w.n_in) - 1);
#pragma unroll
        for (u32 i = 0; i < 2; i++) raw[i] = rows[i].load(chunk);
    }

    // Adds the product of the wave's rounds.
    DEV_MEMBER void multiply(float up, float (&acc)[OCTETS][4]) const {
        const u32 n_rounds = div_up(product.w.n_in, ROUND);
        F raw[2];
        load(raw, wave());
        begin();
        // Where the lane's values of B are in a core matrix.
        const u8* x = p.x + lane() / 4 * 16 + lane() % 4 * 4;
        for (u32 round = uniform(wave()); round < n_rounds; round += WAVES) {
            const u32 in_block = place_in_block<F>(4 * round + lane() % 4);
            const HalfScales<F> scales[2] = {{raw[0], in_block, up}, {raw[1], in_block, up}};
            u32 codes[2][8];
            HalfScales<F>::words(raw[0], codes[0]), HalfScales<F>::words(raw[1], codes[1]);
            load(raw, round + WAVES);
#pragma unroll
            for (u32 s = 0; s < 8; s++) {
                mma::Words<4> a;
#pragma unroll
                for (u32 i = 0; i < 4; i++) a.v[i] = scales[i % 2].pair(codes[i % 2][s], s, i / 2);
                const u8* of_step = x + (u64)(2 * round + s / 4) * p.n_octets * wgmma::OCTET_BYTES + s % 4 * wgmma::ALONG_STEP;
#pragma unroll
                for (u32 o = 0; o < OCTETS; o++) {
                    const u8* b = of_step + o * wgmma::OCTET_BYTES;
                    mma::mma_f16(acc[o], a, *(const u32*)b, *(const u32*)(b + wgmma::ALONG_K));
                }
            }
        }
    }

    DEV_MEMBER void run() const {
        SHARED(float, sums, WAVES * OUTS * ROWS);
        const Weights& w = product.w;
        const float up = ((const Range*)Block<F, Planes>::end(w, w.data))->up();
        float acc[OCTETS][4] = {};
        multiply(up, acc);
        float* mine = sums + wave() * OUTS * ROWS;
#pragma unroll
        for (u32 o = 0; o < OCTETS; o++)
#pragma unroll
            for (u32 e = 0; e < 4; e++)
                mine[(8 * o + lane() % 4 * 2 + e % 2) * OUTS + lane() / 4 + e / 2 * 8] = acc[o][e];
        barrier();
        for (u32 i = tid(); i < OUTS * ROWS; i += THREADS) {
            const u32 row = i / OUTS, out = first_out + i % OUTS;
            if (row >= p.n_rows || out >= w.n_out) continue;
            float sum = 0.0f;
#pragma unroll
            for (u32 k = 0; k < WAVES; k++) sum += sums[k * OUTS * ROWS + i];
            float* to = product.out + (u64)row * w.n_out + out;
            sum = fma(sum * Range::down(up), p.factors[row], product.bias ? product.bias[out] : 0.0f);
            *to = product.mode & ADD ? *to + sum : sum;
        }
    }
};
