// Products of quantized weights with few rows of f16 activations on Hopper, where reading the weights limits: up to 32 rows, of
// a dense product or of a tile of an expert. Weights become f16 in registers as in half.h, and are multiplied by mma.sync,
// whose operand A has the layout of one wave's part of wgmma's A.
//
// A block has 16 outputs. Its waves, as many as the launch has, take rounds of 128 values of k in turn; their sums are added in
// the order of the waves, the same one for any number of rows. The weights of a round come while those of the round before
// are multiplied, those of the first round of dense products while the kernels before run. Activations come through the cache.
//
// The grid is [blocks of outputs of all products, tiles of rows]. Shared memory: ROWS * 64 bytes for each wave.
#pragma once
#include "gemm/half.h"
#include "mma.h"

template <typename F> struct HalfFew {
    // THREADS is the most that a launch has.
    static constexpr u32 OCTETS = 4, ROWS = 8 * OCTETS, OUTS = 16, THREADS = 256, ROUND = 128;
    static constexpr u32 SUMS = OUTS * ROWS, SHARED_BYTES = THREADS / WARP_SIZE * SUMS * 4, BLOCKS = 2,
                         CLUSTER = 1;

    const HalfParams& p;
    float* sums;
    HalfProduct product;
    u32 first_out, first_row, n_rows, octet;
    float scale;
    Block<F, Planes> rows[2];

    // Finds what the block computes. Returns false if there is nothing.
    DEV_MEMBER bool find() {
        const u32 tile = bid_x();
        product = p.products[0];
        if (tile >= p.products[1].first_tile) product = p.products[1];
        if (tile >= p.products[2].first_tile) product = p.products[2];
        first_out = (tile - product.first_tile) * OUTS;
        first_row = octet = 0, n_rows = p.n_rows, scale = 1.0f;
        if (p.tiles) {
            // Which weights a block takes depends on the kernels before.
            begin();
            const ExpertTile e = tile_at(p.tiles, bid_y());
            if (e.expert == NO_EXPERT) return false;
            product.w.data = matrix_of(e.expert, product.w.data, p.expert_bytes, p.n_stacked, product.shared);
            if (product.bias) product.bias += e.expert * product.w.n_out;
            if (product.scales) scale = product.scales[e.expert];
            product.out = moved(product.out, e.expert * p.out_skip);
            first_row = e.first_row, n_rows = e.n_rows, octet = first_octet(e, bid_y());
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            rows[i] = Block<F, Planes>::of(product.w, min_of(first_out + lane() / 4 + 8 * i, product.w.n_out - 1));
        return true;
    }

    // The weights of a round for the thread's two outputs; past the end any, since activations there are zeros.
    DEV_MEMBER void load(F (&raw)[2], u32 round) const {
        const u32 chunk = min_of(4 * round + lane() % 4, n_chunks<F>(product.w.n_in) - 1);
#pragma unroll
        for (u32 i = 0; i < 2; i++) raw[i] = rows[i].load(chunk);
    }

    // Writes the sums of the wave's rounds, of N octets of rows.
    template <u32 N> DEV_MEMBER void multiply(float up) const {
        const u32 n_rounds = div_up(product.w.n_in, ROUND), step = n_waves();
        F raw[2];
        load(raw, wave());
        if (!p.tiles) begin();
        float acc[N][4] = {};
        // Where the lane's values of B are in a core matrix.
        const u8* x = p.x + (u64)octet * wgmma::OCTET_BYTES + lane() / 4 * 16 + lane() % 4 * 4;
        for (u32 round = uniform(wave()); round < n_rounds; round += step) {
            const u32 in_block = place_in_block<F>(4 * round + lane() % 4);
            const HalfScales<F> scales[2] = {{raw[0], in_block, up}, {raw[1], in_block, up}};
            u32 codes[2][8];
            HalfScales<F>::words(raw[0], codes[0]), HalfScales<F>::words(raw[1], codes[1]);
            load(raw, round + step);
#pragma unroll
            for (u32 s = 0; s < 8; s++) {
                mma::Words<4> a;
#pragma unroll
                for (u32 i = 0; i < 4; i++) a.v[i] = scales[i % 2].pair(codes[i % 2][s], s, i / 2);
                const u8* of_step = x + (u64)(2 * round + s / 4) * p.n_octets * wgmma::OCTET_BYTES + s % 4 * wgmma::ALONG_STEP;
#pragma unroll
                for (u32 o = 0; o < N; o++) {
                    const u8* b = of_step + o * wgmma::OCTET_BYTES;
                    mma::mma_f16(acc[o], a, *(const u32*)b, *(const u32*)(b + wgmma::ALONG_K));
                }
            }
        }
        float* mine = sums + wave() * SUMS;
#pragma unroll
        for (u32 o = 0; o < N; o++)
#pragma unroll
            for (u32 e = 0; e < 4; e++)
                mine[(8 * o + lane() % 4 * 2 + e % 2) * OUTS + lane() / 4 + e / 2 * 8] = acc[o][e];
    }

    DEV_MEMBER void run() {
        if (!find()) return;
        const Weights& w = product.w;
        const float up = ((const Range*)Block<F, Planes>::end(w, w.data))->up();
        if (n_rows <= 8) multiply<1>(up);
        else if (n_rows <= 16) multiply<2>(up);
        else multiply<OCTETS>(up);
        barrier();
        const u32 stride = p.tiles ? p.out_stride : w.n_out;
        for (u32 i = tid(); i < n_rows * OUTS; i += n_waves() * WARP_SIZE) {
            const u32 row = first_row + i / OUTS, out = first_out + i % OUTS;
            if (out >= w.n_out) continue;
            float sum = 0.0f;
            for (u32 k = 0; k < n_waves(); k++) sum += sums[k * SUMS + i];
            float* to = product.out + (u64)row * stride + out;
            sum = fma(sum * (Range::down(up) * scale), p.factors[row], product.bias ? product.bias[out] : 0.0f);
            *to = product.mode & ADD ? *to + sum : sum;
        }
    }
};
