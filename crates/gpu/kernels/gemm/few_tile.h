// The tile of a block in GEMMs of few rows (gemm/half_few.h, gemm/octet.h): 16 outputs of up to 32 rows of a dense product or of an
// expert. Blocks of octet.h may take several tiles of outputs, 1 << out_shift, one after the other.
//
// The grid is [tiles of all products]: those of the same outputs follow one another, so that weights are in the cache. Of experts
// it is [blocks of outputs, tiles of rows].
#pragma once
#include "gemm/half.h"

struct FewTile {
    static constexpr u32 OCTETS = 4, ROWS = 8 * OCTETS, OUTS = 16;

    const HalfParams& p;
    HalfProduct product;
    u32 first_out, first_row, n_rows;
    // The octet that the tile's f16 activations begin with.
    u32 octet;
    float scale;

    DEV_MEMBER explicit FewTile(const HalfParams& params) : p(params) {}

    // Finds what the block computes. Returns false if there is nothing. begin() is called before if `began()`.
    DEV_MEMBER bool find() {
        const u32 tile = bid_x();
        product = p.products[0];
        if (tile >= p.products[1].first_tile) product = p.products[1];
        if (tile >= p.products[2].first_tile) product = p.products[2];
        const u32 in_product = tile - product.first_tile, n_row_tiles = p.tiles ? 1 : p.n_row_tiles;
        const u32 row_tile = in_product % n_row_tiles;
        first_out = in_product / n_row_tiles * (OUTS << p.out_shift);
        first_row = row_tile * ROWS, octet = row_tile * OCTETS, n_rows = min_of(ROWS, p.n_rows - first_row),
        scale = 1.0f;
        if (!p.tiles) return true;
        if (began()) begin();
        const ExpertTile e = early_tile(p.tiles, bid_y());
        if (e.expert == NO_EXPERT) {
            if (!began()) begin();
            return false;
        }
        product.w.data = matrix_of(e.expert, product.w.data, p.expert_bytes, p.n_stacked, product.shared);
        if (product.bias) product.bias += e.expert * product.w.n_out;
        if (product.scales) scale = product.scales[e.expert];
        product.out = moved(product.out, e.expert * p.out_skip);
        first_row = e.first_row, n_rows = e.n_rows, octet = first_octet(e, bid_y());
        return true;
    }
    DEV_MEMBER bool began() const { return p.tiles && p.start != EARLY; }

    // Adds the sums of the block's waves, in their order, and stores rows first .. first + most - 1 of the tile. of_wave(k): the
    // sums of wave k, [most, OUTS]. finished(sum, row, bias): the value to store or to add.
    template <typename OfWave, typename Finished>
    DEV_MEMBER void store(u32 first, u32 most, OfWave of_wave, Finished finished) const {
        for (u32 i = tid(); i < min_of(n_rows - first, most) * OUTS; i += n_waves() * WARP_SIZE) {
            const u32 out = first_out + i % OUTS;
            if (out >= product.w.n_out) continue;
            float sum = 0.0f;
            for (u32 k = 0; k < n_waves(); k++) sum += of_wave(k)[i];
            put(first_row + first + i / OUTS, out, sum, finished);
        }
    }
    template <typename Finished> DEV_MEMBER void put(u32 row, u32 out, float sum, Finished finished) const {
        float* to = product.out + (u64)row * (p.tiles ? p.out_stride : product.w.n_out) + out;
        sum = finished(sum, row, product.bias ? product.bias[out] : 0.0f);
        *to = product.mode & ADD ? *to + sum : sum;
    }
};
