// Products of quantized weights with f16 activations on Hopper: weights become f16 in registers (A of wgmma), x comes
// through a ring in shared memory (B) as half_acts.hip writes it.
//
// A block has GO * GK groups of 128 threads. Its tile is N rows of x by 64 GO outputs; GK groups share the values of k:
// in each round, a group takes 128. In these, lane q of four multiplies with its own chunk of 32 weights, so that it
// needs the scales of one chunk. The order of k that follows from this is that of x.
//
// Tiles that do not fill the device are divided: blocks take equal numbers of rounds, of one tile or of parts of two, and
// write their sums to device memory. The last block of a tile adds them in the order of k.
//
// Shared memory: STEPS * GK * N * 128 bytes for x, and (GK - 1) * GO * N * 256 for sums.
#pragma once
#include "gemm/ring.h"
#include "jobs.h"
#include "range.h"

struct HalfProduct {
    Weights w;
    const float* bias;
    float* out;
    // Tiles of products follow one another.
    u32 first_tile;
    Mode mode;
    FIELDS(w, bias, out, first_tile, mode)
};

struct HalfParams {
    // [n_in / 64, n_octets], 1,024 bytes each, and what to multiply the sums of each row with.
    const u8* x;
    const float* factors;
    // Sums of divided tiles, two for each block, and for each of these tiles the number of parts that are done: zero before
    // and after the launch.
    float* parts;
    u64* counters;
    u32 n_rows;
    u32 n_octets;
    // Tiles of rows of each block of outputs; all tiles; those that are not divided.
    u32 n_row_tiles;
    u32 n_tiles;
    u32 n_whole;
    u32 n_blocks;
    // Unused ones begin after the last tile. All have the same n_in.
    HalfProduct products[FEW];
    FIELDS(x, factors, parts, counters, n_rows, n_octets, n_row_tiles, n_tiles, n_whole, n_blocks, products)
};

// A chunk's scales and minimums as pairs of equal f16 numbers, for both groups of 16 values.
template <typename F> struct HalfScales {
    // Codes are bytes: from 0 on, or with a sign.
    static constexpr bool SIGNED = F::OFFSET == 0 && !F::HAS_MIN;
    static constexpr u32 BIAS = SIGNED ? 128 : F::OFFSET;

    u32 factor[2], term[2];

    DEV_MEMBER HalfScales(const F& f, u32 at, float up) {
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 group = h * 16 / F::GROUP;
            float scale = f.scale(at, group) * up;
            factor[h] = pack_halves(scale, scale);
            // Of the rounded scale: zero is zero. A power of two times either is rounded alike.
            if constexpr (BIAS & (BIAS - 1)) scale = h2f((u16)factor[h]);
            float term_of = -scale * ((float)BIAS / CODE_ONE);
            if constexpr (F::HAS_MIN) term_of = -f.minimum(at, group) * (up / CODE_ONE);
            term[h] = pack_halves(term_of, term_of);
        }
    }
    // Values 0 and 2, or 1 and 3, of word w of the codes.
    DEV_MEMBER u32 pair(u32 codes, u32 w, u32 odd) const {
        if constexpr (SIGNED) codes ^= 0x80808080u;
        return fma_halves(codes >> 8 * odd & 0x00ff00ffu, factor[w / 4], term[w / 4]);
    }
};

template <typename F, u32 ROWS_OF_TILE, u32 GO, u32 GK, u32 STEPS> struct Half {
    static constexpr u32 N = ROWS_OF_TILE, ROWS = N, OUTS = 64 * GO, THREADS = 128 * GO * GK, ELEMENTS = N / 2;
    using Slots = Ring<STEPS * GK, N * wgmma::STEP * 2>;
    // Values of k of a round, and floats of the sums of a tile.
    static constexpr u32 ROUND = 128 * GK, SUMS = GO * 128 * ELEMENTS;
    static constexpr u32 SHARED_BYTES = Slots::SHARED + (GK - 1) * SUMS * 4;
    // A slot is filled again this many steps after its last use, so that the first wave need not wait for the others.
    static constexpr u32 LAG = 2, AHEAD = STEPS - LAG;
    static_assert(STEPS >= 4, "copies are under way while a step is multiplied");

    // Rounds [first, end) of a tile.
    struct Segment {
        u32 tile, first, end;
    };

    const HalfParams& p;
    Slots ring;
    float* sums;
    // The next step's and the next filled step's places in the ring.
    u32 at = 0, pass = 0, filled = 0, filled_pass = 0;
    float acc[ELEMENTS];

    DEV_MEMBER Half(const HalfParams& params, u8* shared) : p(params), ring{shared}, sums((float*)(shared + Slots::SHARED)) {}

    DEV_MEMBER static u32 out_group() { return tid() / 128 % GO; }
    DEV_MEMBER static u32 k_group() { return tid() / 128 / GO; }

    // The next step of x for all groups: step `step` of the segment.
    DEV_MEMBER void fill(const Segment& s, u32 row_tile, u32 n_in, u32 step) {
        const u32 octets = min_of(N / 8, p.n_octets - row_tile * (N / 8));
#pragma unroll
        for (u32 g = 0; g < GK; g++) {
            // Past the end weights are zero, and x is any of the same row.
            const u32 block = min_of((s.first + step / 2) * GK + g, (n_in - 1) / 128);
            const u64 octet = (u64)(2 * block + step % 2) * p.n_octets + row_tile * (N / 8);
            ring.fill(filled * GK + g, filled_pass, p.x + octet * wgmma::OCTET_BYTES, octets * wgmma::OCTET_BYTES);
        }
        if (++filled == STEPS) filled = 0, filled_pass++;
    }

    // acc = the product of a segment.
    DEV_MEMBER void multiply(const Weights& w, u32 out_tile, u32 row_tile, const Segment& s, float up) {
        const u32 q = lane() % 4, n = n_chunks<F>(w.n_in), n_steps = 2 * (s.end - s.first);
        const bool first_wave = uniform(wave()) == 0;
        Block<F, Planes> rows[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 o = out_tile * OUTS + out_group() * 64 + wave() % 4 * 16 + lane() / 4 + 8 * i;
            rows[i] = Block<F, Planes>::of(w, min_of(o, w.n_out - 1));
        }
        const auto chunk_of = [&](u32 round) __attribute__((always_inline)) { return (round * GK + k_group()) * 4 + q; };
        F next[2] = {};
        const auto load = [&](u32 round) __attribute__((always_inline)) {
            const u32 chunk = chunk_of(round);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                next[i] = F{};
                if (chunk < n) next[i] = rows[i].load(chunk);
            }
        };
        load(s.first);
        if (first_wave)
            for (u32 step = 0; step < min_of(AHEAD, n_steps); step++) fill(s, row_tile, w.n_in, step);
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) acc[e] = 0.0f;

        u32 a[2][4][4], before = 0;
        for (u32 round = s.first; round < s.end; round++) {
            const u32 place = place_in_block<F>(chunk_of(round));
            const HalfScales<F> scales[2] = {{next[0], place, up}, {next[1], place, up}};
            u32 codes[2][8];
            next[0].codes(codes[0]), next[1].codes(codes[1]);
            if (round + 1 < s.end) load(round + 1);
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
#pragma unroll
                for (u32 i = 0; i < 16; i++) {
                    const u32 word = 4 * h + i / 4, row = i % 2;
                    a[h][i / 4][i % 4] = scales[row].pair(codes[row][word], word, i % 4 / 2);
                }
                const u32 slot = at * GK + k_group(), step = 2 * (round - s.first) + h;
                ring.wait(slot, pass);
                wgmma::begin();
#pragma unroll
                for (u32 i = 0; i < 4; i++) wgmma::mac(acc, a[h][i], ring.slot(slot) + i * wgmma::ALONG_STEP);
                wgmma::end();
                // The step before is done.
                wgmma::wait<1>();
                if (step > 0) ring.release(before);
                before = slot;
                if (first_wave && step + AHEAD < n_steps) fill(s, row_tile, w.n_in, step + AHEAD);
                if (++at == STEPS) at = 0, pass++;
            }
        }
        wgmma::wait<0>();
        ring.release(before);
    }

    // Adds the sums of the groups that share k, in order.
    DEV_MEMBER void join_groups() {
        if constexpr (GK > 1) {
            float* mine = sums + tid() % (GO * 128);
            if (k_group() > 0) {
#pragma unroll
                for (u32 e = 0; e < ELEMENTS; e++) mine[((k_group() - 1) * ELEMENTS + e) * (GO * 128)] = acc[e];
            }
            barrier();
            if (k_group() == 0) {
#pragma unroll
                for (u32 g = 0; g < GK - 1; g++)
#pragma unroll
                    for (u32 e = 0; e < ELEMENTS; e++) acc[e] += mine[(g * ELEMENTS + e) * (GO * 128)];
            }
            barrier();
        }
    }

    // The rounds of divided tiles before those of a block.
    DEV_MEMBER u32 rounds_before(u32 block, u32 n_rounds) const {
        return (u32)((u64)block * ((p.n_tiles - p.n_whole) * n_rounds) / p.n_blocks);
    }
    // The block that has a round of the divided tiles.
    DEV_MEMBER u32 block_of(u32 round, u32 n_rounds) const {
        return (u32)(((u64)(round + 1) * p.n_blocks - 1) / ((p.n_tiles - p.n_whole) * n_rounds));
    }

    // Writes this block's part of a divided tile. If it is the last one, acc becomes the sum of all parts. Returns
    // whether it is.
    DEV_MEMBER bool join_blocks(const Segment& s, u32 n_rounds) {
        SHARED(u32, is_last, 1);
        const u32 divided = s.tile - p.n_whole, first_round = divided * n_rounds;
        const u32 first = block_of(first_round, n_rounds), last = block_of(first_round + n_rounds - 1, n_rounds);
        const auto part_of = [&](u32 block) __attribute__((always_inline)) {
            // Blocks that begin before the tile have another part first.
            const u32 second = rounds_before(block, n_rounds) < first_round;
            return p.parts + (u64)(2 * block + second) * SUMS + tid() % (GO * 128);
        };
        if (k_group() == 0) {
            float* mine = part_of(bid_x());
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) mine[e * (GO * 128)] = acc[e];
            device_fence();
        }
        barrier();
        if (tid() == 0) {
            const u64 before = fetch_add(p.counters + divided, 1);
            device_fence();
            *is_last = before == last - first;
            if (*is_last) p.counters[divided] = 0;
        }
        barrier();
        const bool mine = *is_last;
        // The next tile writes it again.
        barrier();
        if (mine && k_group() == 0) {
            device_fence();
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) acc[e] = 0.0f;
            for (u32 block = first; block <= last; block++) {
                const float* part = part_of(block);
#pragma unroll
                for (u32 e = 0; e < ELEMENTS; e++) acc[e] += part[e * (GO * 128)];
            }
        }
        return mine;
    }

    DEV_MEMBER void store(const HalfProduct& product, u32 out_tile, u32 row_tile, float down) const {
        const u32 first_out = out_tile * OUTS + out_group() * 64 + wave() % 4 * 16 + lane() / 4;
        const u32 first_row = row_tile * N + lane() % 4 * 2;
        const bool add = product.mode & ADD;
        float bias[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            bias[i] = product.bias && first_out + 8 * i < product.w.n_out ? product.bias[first_out + 8 * i] : 0.0f;
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 o = first_out + e / 2 % 2 * 8, row = first_row + e / 4 * 8 + e % 2;
            if (row >= p.n_rows || o >= product.w.n_out) continue;
            const float v = acc[e] * down * p.factors[row] + bias[e / 2 % 2];
            float* to = product.out + (u64)row * product.w.n_out + o;
            *to = add ? *to + v : v;
        }
    }

    DEV_MEMBER void take(const Segment& s, u32 n_rounds) {
        HalfProduct product = p.products[0];
        if (s.tile >= p.products[1].first_tile) product = p.products[1];
        if (s.tile >= p.products[2].first_tile) product = p.products[2];
        const u32 in_product = s.tile - product.first_tile;
        const u32 row_tile = in_product % p.n_row_tiles, out_tile = in_product / p.n_row_tiles;
        const float up = ((const Range*)Block<F, Planes>::end(product.w, product.w.data))->up();
        multiply(product.w, out_tile, row_tile, s, up);
        join_groups();
        const bool whole = s.first == 0 && s.end == n_rounds;
        if (!whole && !join_blocks(s, n_rounds)) return;
        if (k_group() == 0) store(product, out_tile, row_tile, Range::down(up));
    }

    DEV_MEMBER void run() {
        ring.start(4 * GO);
        const u32 n_rounds = div_up(p.products[0].w.n_in, ROUND);
        for (u32 tile = bid_x(); tile < p.n_whole; tile += p.n_blocks) take({tile, 0, n_rounds}, n_rounds);
        if (p.n_whole == p.n_tiles) return;
        const u32 end = rounds_before(bid_x() + 1, n_rounds);
        for (u32 round = rounds_before(bid_x(), n_rounds); round < end;) {
            const u32 tile = round / n_rounds, first = round % n_rounds, stop = min_of(n_rounds, first + end - round);
            take({p.n_whole + tile, first, stop}, n_rounds);
            round += stop - first;
        }
    }
};
