// Products with few rows of f16 activations on Hopper, where reading the weights limits: tiles of up to 32
// rows, of a dense product or of an expert. Weights become f16 in registers as in half.h, and are multiplied by mma.sync, whose
// operand A has the layout of one wave's part of wgmma's A.
//
// Up to MOST octets of rows are multiplied at once, four or one. With one, a tile of an expert with more rows reads its weights
// again, but half as many waves again run at once, which is faster where experts have few rows. The sums are the same.
//
// A block has 16 outputs. Its waves, as many as the launch has, take rounds of 128 values of k in turn; their sums are added in
// the order of the waves, the same one for any number of rows in a tile. The weights and activations of a round come while those
// of the round before are multiplied, the first weights while the kernels before run; not those of heads, whose rows and tiles
// one kernel writes. Activations come through the cache, in the order in which lanes take them (hopper/half_acts.hip).
//
// CODES: x are codes with a scale for each 256 values, of up to eight rows at a time. They become f16 numbers in registers,
// exactly, and their scales multiply the sums of each round. That saves the launch that converts them; of more rows, blocks would
// convert them too often. Of those with a scale for each 32 values, a product has values of four such groups.
//
// Shared memory: SHARED_BYTES / THREADS for each thread.
#pragma once
#include "gemm/few_tile.h"
#include "mma.h"

template <typename F, u32 MOST, bool CODES> struct HalfFew : FewTile {
    // THREADS is the most that a launch has.
    static constexpr u32 THREADS = 256, ROUND = 128;
    // Whether weights are copied to shared memory: those of Q4_K. Else ptxas lets products wait for loads of the next weights,
    // which have the scoreboard of the activations. Other formats need more or smaller copies, which cost more than that.
    static constexpr bool COPIES = F::N_PLANES == 2 && F::PLANES[1].bytes == 16;
    using Coming = Chunks<F, WARP_SIZE, 2>;
    // Rows of long blocks are whole rounds.
    static constexpr bool WHOLE = F::LEN % ROUND == 0;
    static constexpr u32 SUMS = OUTS * 8 * MOST,
                         WAVE_BYTES = COPIES && Coming::SHARED > SUMS * 4 ? Coming::SHARED : SUMS * 4;
    static constexpr u32 SHARED_BYTES = THREADS / WARP_SIZE * WAVE_BYTES, BLOCKS = MOST == 1 ? 3 : 2, CLUSTER = 1;

    u8* shared;
    // Octets of the tile before those that are multiplied.
    u32 octets_done = 0;
    // Of the tile's first row.
    const u8* codes;
    const float* code_scales;
    Block<F, Planes> rows[2];

    DEV_MEMBER HalfFew(const HalfParams& params, u8* memory) : FewTile(params), shared(memory) {}

    // Finds what the block computes. Returns false if there is nothing.
    DEV_MEMBER bool find() {
        if (!FewTile::find()) return false;
        if constexpr (CODES) {
            codes = p.x + (u64)first_row * product.w.n_in;
            code_scales = p.factors + (u64)first_row * (product.w.n_in / 256);
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            rows[i] = Block<F, Planes>::of(product.w, min_of(first_out + lane() / 4 + 8 * i, product.w.n_out - 1));
        return true;
    }

    DEV_MEMBER u32 n_rounds() const { return div_up(product.w.n_in, ROUND); }

    // The memory of a wave: weights under way, then its sums.
    DEV_MEMBER u8* of_wave(u32 w) const { return shared + w * WAVE_BYTES; }

    // The weights of a round for the thread's two outputs; past the end any, since activations there are zeros.
    DEV_MEMBER void load(F (&raw)[2], u32 round) const {
        const u32 chunk = min_of(4 * round + lane() % 4, (WHOLE ? 4 * n_rounds() : n_chunks<F>(product.w.n_in)) - 1);
#pragma unroll
        for (u32 i = 0; i < 2; i++) raw[i] = rows[i].load(chunk);
    }
    // Begins to copy them, if there are any.
    DEV_MEMBER void begin_copy(const Coming& coming, u32 round, u32 place) const {
        const u32 chunk = 4 * round + lane() % 4, n = n_chunks<F>(product.w.n_in);
        coming.begin(rows, place, chunk, WHOLE || chunk < n, 4 * round < n);
        coming.end();
    }

    // The values of B of a round, of N octets of rows and one part of x. A piece are those of two products.
    template <u32 N> struct Values {
        u32x4 pieces[4][N];
        // The lane's first piece, and bytes from 64 values of k to the next ones. All offsets fit 32 bits.
        const u8* first;
        u32 stride;

        DEV_MEMBER void start(const HalfFew& few) {
            first = few.p.x + few.octet * wgmma::OCTET_BYTES + lane() * 16;
            stride = few.p.n_octets * wgmma::OCTET_BYTES;
        }
        DEV_MEMBER void load(const HalfFew&, u32 round, u32 i, u32 part = 0) {
            const u8* from = first + ((2 * round + i / 2) * X_PARTS<F> + part) * stride + i % 2 * (WARP_SIZE * 16);
#pragma unroll
            for (u32 o = 0; o < N; o++) pieces[i][o] = load16(from + o * wgmma::OCTET_BYTES);
        }
        // Loads what the products up to number s needed, for another round.
        DEV_MEMBER void load_after(const HalfFew& few, u32 round, u32 s) {
            if (s % 2) load(few, round, s / 2);
        }
        DEV_MEMBER void load_all(const HalfFew& few, u32 round, u32 part = 0) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) load(few, round, i, part);
        }
        DEV_MEMBER u32 pair(u32 s, u32 o, u32 odd) const { return pieces[s / 2][o].v[2 * (s % 2) + odd]; }
        template <typename Each> DEV_MEMBER void each_word(Each each) {
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 o = 0; o < N; o++)
#pragma unroll
                    for (u32 w = 0; w < 4; w++) each(pieces[i][o].v[w]);
        }
    };

    // The same as codes: a lane has 32 of a row, which are one after the other. In place of rows past the tile's last one it has
    // that one, whose sums are not stored.
    template <u32 N> struct Codes {
        u32x4 halves[2][N];

        DEV_MEMBER void start(const HalfFew&) {}

        // Where the lane's row of octet o begins.
        DEV_MEMBER static u32 row(const HalfFew& few, u32 o) {
            return min_of(8 * (few.octets_done + o) + lane() / 4, few.n_rows - 1) * few.product.w.n_in;
        }
        DEV_MEMBER void load(const HalfFew& few, u32 round, u32 i) {
#pragma unroll
            for (u32 o = 0; o < N; o++)
                halves[i][o] = load16(few.codes + row(few, o) + round * ROUND + lane() % 4 * 32 + i * 16);
        }
        // The scale of the lane's row of octet o in a round.
        DEV_MEMBER static float scale(const HalfFew& few, u32 o, u32 round) {
            return few.code_scales[row(few, o) / 256 + round / 2];
        }
        DEV_MEMBER void load_after(const HalfFew& few, u32 round, u32 s) {
            if (s % 4 == 3) load(few, round, s / 4);
        }
        DEV_MEMBER void load_all(const HalfFew& few, u32 round, u32 = 0) { load(few, round, 0), load(few, round, 1); }
        // Byte b as an f16 number is 1024 + b, of which the code is b - 128 with the sign's bit turned.
        DEV_MEMBER u32 pair(u32 s, u32 o, u32 odd) const {
            const u32 bytes = halves[s / 4][o].v[s % 4] >> 8 * odd & 0x00ff00ffu;
            return fma_halves(bytes ^ 0x64806480u, 0x3c003c00u, 0xe480e480u);
        }
        template <typename Each> DEV_MEMBER void each_word(Each each) {
#pragma unroll
            for (u32 i = 0; i < 2; i++)
#pragma unroll
                for (u32 o = 0; o < N; o++)
#pragma unroll
                    for (u32 w = 0; w < 4; w++) each(halves[i][o].v[w]);
        }
    };

    template <u32 N> DEV_MEMBER static auto activations() {
        if constexpr (CODES) return Codes<N>{};
        else return Values<N>{};
    }

    // Writes the sums of the wave's rounds, of N octets of rows.
    template <u32 N> DEV_MEMBER void multiply(float up) const {
        const u32 n_rounds = this->n_rounds(), step = n_waves();
        const Coming coming{of_wave(wave()), lane()};
        F next[2];
        if constexpr (COPIES) begin_copy(coming, wave(), 0);
        else load(next, wave());
        if (octets_done == 0 && !began()) begin();
        float acc[N][4] = {};
        auto x = activations<N>();
        x.start(*this);
        if constexpr (COPIES) {
            x.load_all(*this, min_of(wave(), n_rounds - 1));
            // LLVM would make one of these loads and of those in the loop, at its start.
            x.each_word([](u32& word) { word = opaque(word); });
        }
        u32 place = 0;
        for (u32 round = uniform(wave()); round < n_rounds; round += step) {
            F raw[2];
            if constexpr (COPIES) {
                // All lanes have taken what was there.
                wave_barrier(of_wave(wave()), WAVE_BYTES);
                begin_copy(coming, round + step, 1 - place);
                coming.arrive(place);
                coming.take(raw, rows, place, 4 * round + lane() % 4);
                place = 1 - place;
            } else {
                raw[0] = next[0], raw[1] = next[1];
                x.load_all(*this, round);
            }
            float scales[N];
            if constexpr (CODES)
#pragma unroll
                for (u32 o = 0; o < N; o++) scales[o] = Codes<N>::scale(*this, o, round);
            const u32 in_block = place_in_block<F>(4 * round + lane() % 4);
            const HalfWeights<F> weights[2] = {{raw[0], in_block, up}, {raw[1], in_block, up}};
            if constexpr (!COPIES) load(next, round + step);
            float of_round[N][4] = {};
#pragma unroll
            for (u32 part = 0; part < X_PARTS<F>; part++) {
                if constexpr (X_PARTS<F> > 1)
                    if (part > 0) x.load_all(*this, round, part);
#pragma unroll
                for (u32 s = 0; s < 8; s++) {
                    mma::Words<4> a;
#pragma unroll
                    for (u32 w = 0; w < 4; w++) a.v[w] = weights[w % 2].pair(s, w / 2);
#pragma unroll
                    for (u32 o = 0; o < N; o++)
                        mma::mma_f16(CODES ? of_round[o] : acc[o], a, x.pair(s, o, 0), x.pair(s, o, 1));
                    if constexpr (COPIES) x.load_after(*this, min_of(round + step, n_rounds - 1), s);
                }
            }
            if constexpr (CODES)
#pragma unroll
                for (u32 o = 0; o < N; o++) {
                    const float first = shuffle(scales[o], lane() % 4 * 8),
                                second = shuffle(scales[o], lane() % 4 * 8 + 4);
#pragma unroll
                    for (u32 e = 0; e < 4; e++) acc[o][e] = fma(of_round[o][e], e % 2 ? second : first, acc[o][e]);
                }
        }
        float* sums = (float*)of_wave(wave());
        // Its lanes are done with the weights there.
        wave_barrier(sums, WAVE_BYTES);
#pragma unroll
        for (u32 o = 0; o < N; o++)
#pragma unroll
            for (u32 e = 0; e < 4; e++)
                sums[(8 * o + lane() % 4 * 2 + e % 2) * OUTS + lane() / 4 + e / 2 * 8] = acc[o][e];
    }

    // Stores the rows of the tile from `first` on.
    DEV_MEMBER void store(u32 first, float up) const {
        FewTile::store(
            first, 8 * MOST, [&](u32 k) { return (const float*)of_wave(k); },
            [&](float sum, u32 row, float bias) {
                const float factor = CODES ? 1.0f : p.factors[row];
                return fma(sum * (HalfWeights<F>::down(up) * scale), factor, bias);
            });
    }

    DEV_MEMBER void run() {
        if (!find()) return;
        const float up = HalfWeights<F>::up(product.w);
        if constexpr (MOST == 1) {
            for (u32 first = 0; first < n_rows; first += 8, octet++, octets_done++) {
                multiply<1>(up);
                barrier();
                store(first, up);
                barrier();
            }
        } else {
            if (n_rows <= 8) multiply<1>(up);
            else if (n_rows <= 16) multiply<2>(up);
            else if (n_rows <= 24) multiply<3>(up);
            else multiply<4>(up);
            barrier();
            store(0, up);
        }
    }
};
