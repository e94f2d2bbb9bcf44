// Products of up to eight rows of codes (Q8x256) with weights in tiles (quant.h), on Hopper's int8 units. half_few.h spends most of
// its instructions on making f16 numbers of weights; int8 units take codes as they are.
//
// A block has 16 outputs. Its waves, as many as the launch has, take units of 256 values of k in turn; their sums are added in the
// order of the waves. The weights and codes of a unit are copied to shared memory while those of the unit before are multiplied,
// the first weights while the kernels before run; not those of experts whose tiles one of these writes. Codes come through the L1
// cache, where the blocks of a processor find them again. Copies further ahead would take the memory of that cache, and be slower.
//
//     acc += d_x (d_w sum_g level_g dot_g - m_w sum_g minimum_g sum_x_g)      per unit
//
// Both sums are exact, as in block_scales.h. With more than eight rows, a tile of an expert reads its weights again.
//
// A block of experts with one wave may take several tiles of outputs: the weights of the next one come while the last unit of the
// one before is multiplied. Of short rows, waiting for the first weights would take as long as multiplying.
//
// With g = lane / 4 and q = lane % 4, a lane has outputs g and g + 8 and row g of x, of each 32 values words q and q + 4, and the
// sums of both outputs with rows 2q and 2q + 1 (mma.h). Shared memory: SHARED_BYTES / THREADS for each thread.
#pragma once
#include "gemm/few_tile.h"
#include "gemm/wgmma.h"
#include "mma.h"
#include "quant.h"
#include "team.h"

namespace octet {

constexpr u32 UNIT = 256, OUTS = FewTile::OUTS, MOST = 8, PIECE = 16;

// ---------------------------------------------------------------------------------------------- copies
// A lane's copies of pieces to shared memory, in groups. The emulator makes them when they are waited for, so that a wait which
// is missing or too short is found.
struct Copies {
#if !defined(GPU_NV)
    static constexpr u32 GROUPS = 4, MOST_OF_GROUP = 16;
    u8* to[GROUPS][MOST_OF_GROUP];
    const u8* from[GROUPS][MOST_OF_GROUP];
    u32 n[GROUPS] = {}, n_ended = 0, n_made = 0;
#endif

    // Begins to copy a piece, if `any`, through the L1 cache or past it.
    template <bool CACHED> DEV_MEMBER void add(u8* dest, const u8* source, bool any) {
#if defined(GPU_NV)
        // Predicated: a branch in the loop costs more than the copy.
        const u32 at = wgmma::shared_address(dest);
        if constexpr (CACHED)
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 16; }"
                         :
                         : "r"(at), "l"(source), "r"((u32)any)
                         : "memory");
        else
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }"
                         :
                         : "r"(at), "l"(source), "r"((u32)any)
                         : "memory");
#else
        if (!any) return;
        const u32 group = n_ended % GROUPS, i = n[group]++;
        to[group][i] = dest, from[group][i] = source;
#endif
    }
    // Ends a group.
    DEV_MEMBER void end() {
#if defined(GPU_NV)
        asm volatile("cp.async.commit_group;" ::: "memory");
#else
        n_ended++;
        n[n_ended % GROUPS] = 0;
#endif
    }
    // Waits for all groups but the last N.
    template <u32 N> DEV_MEMBER void wait() {
#if defined(GPU_NV)
        asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
#else
        static_assert(N + 1 < GROUPS, "groups that are not waited for are kept");
        for (; n_made + N < n_ended; n_made++)
            for (u32 group = n_made % GROUPS, i = 0; i < n[group]; i++) store16(to[group][i], load16(from[group][i]));
#endif
    }
};

// Where pieces are. Lanes that load at once find theirs in different banks.
DEV u32 place_of_low(u32 out, u32 chunk) { return out * 128 + (chunk ^ out % 8) * PIECE; }
DEV u32 place_of_high(u32 out, u32 piece) { return out * 64 + (piece ^ out / 2 % 4) * PIECE; }
DEV u32 place_of_x(u32 row, u32 piece) { return row * UNIT + (piece ^ row % 8) * PIECE; }

// The low nibbles of the weights of all formats here: 128 bytes for each output.
constexpr u32 LOW_BYTES = OUTS * 128;
DEV void copy_low(Copies& copies, u8* to, const u8* from, bool any) {
    // Of four outputs at a time. Four further, bit 2 of a chunk's place is turned.
    const u32 place = place_of_low(lane() / 8, lane() % 8);
    from += lane() * PIECE;
#pragma unroll
    for (u32 i = 0; i < OUTS / 4; i++) copies.add<false>(to + i * 512 + (place ^ i % 2 * 64), from + i * 512, any);
}
// Those of chunks c and c + 1, c even: of output g in words 0 and 2, of g + 8 in words 1 and 3.
DEV mma::Words<4> load_low(const u8* memory, u32 c) {
    const u32 matrix = lane() / 8;
    return mma::load_matrices<4>(memory + place_of_low(lane() % 8 + matrix % 2 * 8, c ^ matrix / 2));
}

// Byte i, in one instruction.
DEV i32 signed_byte(u32 v, u32 i) {
#if defined(GPU_NV)
    // The sign fills the others.
    return (i32)__nvvm_prmt(v, 0, (8 | i) * 0x1110 | i);
#else
    return (i8)(v >> 8 * i);
#endif
}

// ---------------------------------------------------------------------------------------------- formats
// The weights of a unit in shared memory, and what to add to the sums of a lane, [outputs g and g + 8, rows 2q and 2q + 1].
// x_of(c): the words of row g of chunks c and c + 1, two of each.
template <typename F> struct Unit;

template <> struct Unit<Q4_K> {
    static constexpr u32 BYTES = LOW_BYTES + OUTS * 16;
    const u8* memory;

    // Where a tile's units are.
    struct Place {
        const u8 *low, *headers;
        DEV_MEMBER explicit Place(const Block<Q4_K, Planes>& first) : low(first.plane[0]), headers(first.plane[1]) {}
        DEV_MEMBER void copy(Copies& copies, u8* to, u32 unit, bool any) const {
            copy_low(copies, to, low + unit * LOW_BYTES, any);
            const u32 piece = lane() % OUTS * PIECE;
            copies.add<false>(to + LOW_BYTES + piece, headers + piece + unit * OUTS * 16, any && lane() < OUTS);
        }
    };

    template <typename XOf> DEV_MEMBER void add(XOf x_of, const u32 (&x_sums)[2], float (&sums)[4]) const {
        const u32 q = lane() % 4;
        // The levels of even and odd chunks, a byte each, and the minimums of chunks q and q + 4 as pairs of f16 numbers.
        u32 even[2], odd[2], minimums[4];
        float unit[2], minimum_unit[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            HeaderK4 header;
            header.v = load16(memory + LOW_BYTES + (lane() / 4 + 8 * i) * 16);
            unit[i] = header.unit(), minimum_unit[i] = header.minimum_unit();
            const u32x4& v = header.v;
            even[i] = (v[1] & 0x0f0f0f0fu) | (v[3] << 4 & 0x30303030u);
            odd[i] = (v[1] >> 4 & 0x0f0f0f0fu) | (v[3] & 0x30303030u);
            const u32 of_even = (v[2] & 0x0f0f0f0fu) | (v[3] << 2 & 0x30303030u);
            const u32 of_odd = (v[2] >> 4 & 0x0f0f0f0fu) | (v[3] >> 2 & 0x30303030u);
            const u32 four = q % 2 ? of_odd : of_even;
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                // 1024 + n as f16, twice.
                const u32 pair = (four >> 8 * (q / 2 + 2 * h) & 0xff) * 0x00010001u | 0x64006400u;
                minimums[2 * h + i] = fma_halves(pair, 0x3c003c00u, 0xe400e400u);
            }
        }
        float of_minimums[4] = {};
        u32 x_halves[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) x_halves[i] = pack_halves((float)(i16)x_sums[i], (float)(i16)(x_sums[i] >> 16));
        mma::mma_f16(of_minimums, {{minimums[0], minimums[1], minimums[2], minimums[3]}}, x_halves[0], x_halves[1]);
        i32 dots[4] = {};
#pragma unroll
        for (u32 c = 0; c < 8; c += 2) {
            const mma::Words<4> low = load_low(memory, c), x = x_of(c);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 a = low.v[2 * i], b = low.v[2 * i + 1];
                i32 dot[4] = {};
                mma::mma_s8(dot, {{a & 0x0f0f0f0fu, b & 0x0f0f0f0fu, a >> 4 & 0x0f0f0f0fu, b >> 4 & 0x0f0f0f0fu}},
                            x.v[2 * i], x.v[2 * i + 1]);
#pragma unroll
                for (u32 e = 0; e < 4; e++) dots[e] += dot[e] * signed_byte(i ? odd[e / 2] : even[e / 2], c / 2);
            }
        }
#pragma unroll
        for (u32 e = 0; e < 4; e++) sums[e] = fma(-minimum_unit[e / 2], of_minimums[e], unit[e / 2] * (float)dots[e]);
    }
};

template <> struct Unit<Q6_K> {
    static constexpr u32 HIGH = LOW_BYTES, SCALES = HIGH + OUTS * 64, UNITS = SCALES + OUTS * 16,
                         BYTES = UNITS + OUTS * 2;
    const u8* memory;

    struct Place {
        const u8 *low, *high, *scales, *units;
        DEV_MEMBER explicit Place(const Block<Q6_K, Planes>& first)
            : low(first.plane[0]), high(first.plane[1]), scales(first.plane[2]), units(first.plane[3]) {}
        DEV_MEMBER void copy(Copies& copies, u8* to, u32 unit, bool any) const {
            copy_low(copies, to, low + unit * LOW_BYTES, any);
#pragma unroll
            for (u32 i = 0; i < OUTS * 4; i += WARP_SIZE) {
                const u32 piece = i + lane();
                copies.add<false>(to + HIGH + place_of_high(piece / 4, piece % 4),
                                  high + unit * OUTS * 64 + piece * PIECE, any);
            }
            // Scales, and behind them the units.
            const u8* from = lane() < OUTS ? scales + unit * OUTS * 16 + lane() * PIECE
                                           : units + unit * OUTS * 2 + (lane() - OUTS) * PIECE;
            copies.add<false>(to + SCALES + lane() * PIECE, from, any && lane() < OUTS + OUTS * 2 / PIECE);
        }
    };

    template <typename XOf> DEV_MEMBER void add(XOf x_of, const u32 (&)[2], float (&sums)[4]) const {
        const u32 g = lane() / 4, q = lane() % 4;
        u32x4 levels[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) levels[i] = load16(memory + SCALES + (g + 8 * i) * 16);
        i32 dots[4] = {};
#pragma unroll
        for (u32 c = 0; c < 8; c += 2) {
            const mma::Words<4> low = load_low(memory, c), x = x_of(c);
            u32x4 high[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) high[i] = load16(memory + HIGH + place_of_high(g + 8 * i, c / 2));
#pragma unroll
            for (u32 group = 0; group < 4; group++) {
                // Of outputs g and g + 8, word q of 16 values.
                mma::Words<2> a;
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    const u32 nibbles = low.v[group / 2 * 2 + i] >> 4 * (group % 2) & 0x0f0f0f0fu;
                    // Bits 2q and 2q + 1 of each byte come to bits 4 and 5.
                    const u32 two = __builtin_rotateleft32(high[i][group], (4 - 2 * q) % 32) & 0x30303030u;
                    // Less 32.
                    a.v[i] = ((nibbles | two) + 0x60606060u) ^ 0x80808080u;
                }
                i32 dot[4] = {};
                mma::mma_s8(dot, a, x.v[group]);
                const u32 at = 2 * c + group;
#pragma unroll
                for (u32 e = 0; e < 4; e++) dots[e] += dot[e] * signed_byte(levels[e / 2][at / 4], at % 4);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const float unit = h2f(*(const u16*)(memory + UNITS + (g + 8 * i) * 2));
            sums[2 * i] = unit * (float)dots[2 * i], sums[2 * i + 1] = unit * (float)dots[2 * i + 1];
        }
    }
};

// ---------------------------------------------------------------------------------------------- the product
// SEVERAL: of blocks of one wave with several tiles of outputs.
template <typename F, bool SEVERAL> struct Product : FewTile {
    // THREADS is the most that a launch has.
    static constexpr u32 THREADS = 256, BLOCKS = 2, CLUSTER = 1, ROUND = UNIT, STAGES = 2;
    static constexpr u32 X_BYTES = MOST * UNIT, STAGE_BYTES = Unit<F>::BYTES + X_BYTES,
                         WAVE_BYTES = STAGES * STAGE_BYTES, SHARED_BYTES = THREADS / WARP_SIZE * WAVE_BYTES;
    static_assert(STAGE_BYTES % PIECE == 0 && WAVE_BYTES >= MOST * OUTS * sizeof(float),
                  "pieces, and room for the sums");

    u8* shared;

    DEV_MEMBER Product(const HalfParams& params, u8* memory) : FewTile(params), shared(memory) {}

    DEV_MEMBER u8* of_wave(u32 w) const { return shared + w * WAVE_BYTES; }
    DEV_MEMBER u32 n_units() const { return product.w.n_in / UNIT; }

    // Begins the copies of the codes of up to eight rows from `first` on.
    DEV_MEMBER void copy_x(Copies& copies, u8* to, const u8* first, u32 n, u32 unit) const {
#pragma unroll
        for (u32 i = 0; i < X_BYTES / PIECE; i += WARP_SIZE) {
            const u32 piece = i + lane(), row = piece / 16;
            copies.add<true>(to + place_of_x(row, piece % 16),
                             first + (u64)row * product.w.n_in + unit * UNIT + piece % 16 * PIECE,
                             row < n && unit < n_units());
        }
    }

    // Writes the sums of the wave's units, of rows from `first` on; of several tiles, stores the products.
    DEV_MEMBER void multiply(u32 first) const {
        u8* memory = of_wave(wave());
        const u32 g = lane() / 4, q = lane() % 4, step = SEVERAL ? 1 : n_waves(), n_in = product.w.n_in,
                  n_units = this->n_units();
        const typename Unit<F>::Place weights(Block<F, Planes>::of(product.w, first_out));
        Copies copies;
        u32 unit = uniform(wave());
        weights.copy(copies, memory, unit, unit < n_units);
        if (first == 0 && !began()) begin();
        const u32 row = first_row + first, n = min_of(n_rows - first, MOST);
        const u8* codes = p.x + (u64)row * n_in;
        copy_x(copies, memory + Unit<F>::BYTES, codes, n, unit);
        copies.end();
        const u32* x_sums = (const u32*)p.x_sums + (u64)(row + min_of(g, n - 1)) * (n_in / 32) + q;
        // Of the row of the lane's number.
        const float* x_scales = p.factors + (u64)(row + min_of(lane(), n - 1)) * n_units;
        float acc[4] = {};
        // The unit among those of all tiles, which follow one another.
        u32 in_block = unit, tile_out = first_out;
        const u32 end = n_units * n_tiles();
        while (in_block < end) {
#pragma unroll
            for (u32 stage = 0; stage < STAGES; stage++) {
                u8 *own = memory + stage * STAGE_BYTES, *next = memory + (stage + 1) % STAGES * STAGE_BYTES;
                copies.wait<STAGES - 2>();
                wave_barrier(memory, WAVE_BYTES);
                in_block += step;
                const u32 next_unit = SEVERAL && unit + 1 == n_units ? 0 : unit + step;
                weights.copy(copies, next, in_block, in_block < end);
                copy_x(copies, next + Unit<F>::BYTES, codes, n, in_block < end ? next_unit : n_units);
                copies.end();
                u32 sums_of_x[2] = {};
                if constexpr (F::HAS_MIN) sums_of_x[0] = x_sums[unit * 8], sums_of_x[1] = x_sums[unit * 8 + 4];
                const float x_scale = x_scales[unit];
                float sums[4];
                const auto x_of = [&](u32 c) {
                    return mma::load_matrices<4>(own + Unit<F>::BYTES + place_of_x(lane() % 8, 2 * c ^ lane() / 8));
                };
                Unit<F>{own}.add(x_of, sums_of_x, sums);
#pragma unroll
                for (u32 e = 0; e < 4; e++) acc[e] = fma(shuffle(x_scale, 2 * q + e % 2), sums[e], acc[e]);
                if (SEVERAL && next_unit == 0) {
#pragma unroll
                    for (u32 e = 0; e < 4; e++) {
                        if (2 * q + e % 2 < n) put(row + 2 * q + e % 2, tile_out + g + e / 2 * 8, acc[e], finished());
                        acc[e] = 0.0f;
                    }
                    tile_out += OUTS;
                }
                unit = next_unit;
                if (in_block >= end) break;
            }
        }
        copies.wait<0>();
        wave_barrier(memory, WAVE_BYTES);
        if constexpr (SEVERAL) return;
        float* to = (float*)memory;
#pragma unroll
        for (u32 e = 0; e < 4; e++) to[(2 * q + e % 2) * OUTS + g + e / 2 * 8] = acc[e];
    }

    // The tiles of the block. All outputs are in whole ones.
    DEV_MEMBER u32 n_tiles() const {
        return SEVERAL ? min_of(1u << p.out_shift, (product.w.n_out - first_out) / OUTS) : 1;
    }
    DEV_MEMBER auto finished() const {
        return [this](float sum, u32, float bias) { return fma(sum, scale, bias); };
    }

    DEV_MEMBER void run() {
        if (!find()) return;
        for (u32 first = 0; first < n_rows; first += MOST) {
            multiply(first);
            if constexpr (SEVERAL) continue;
            barrier();
            store(first, MOST, [&](u32 k) { return (const float*)of_wave(k); }, finished());
            barrier();
        }
    }
};

} // namespace octet
