// Decode attention on NVIDIA's matrix units. Lanes load operands straight from the cache: no data goes through shared
// memory, and there are fewer instructions than with multiply-adds, which would limit 8-bit caches (decode_lanes.h).
//
// Tuned on an H200, which reads 4.5 TB/s. 32 heads of 128 values on 8 KV heads, 32,768 positions of one row: F16 36.7
// us, 81 % of peak bandwidth; Q8_0 27.5 us, 58 %; F8E4M3 23.3 us, 66 %.
//
// A wave processes tiles of 16 positions, in GROUPS, on its own. Both products are transposed: a KV head's positions or
// dimensions are the 16 rows of an operand, and its query heads are the 8 columns: four heads, each in two parts, the
// f16 nearest to the number and the f16 nearest to the remainder. So products have an error near that of f32.
//
//     scores [position, (head, part)] = k [position, dim] q^T            the sum of both parts is in one lane
//     out^T [dim, (head, part)] += v^T [dim, position] weights^T
//
// With g = lane / 4 and t = lane % 4 (mma.h): a lane has the keys of positions g and g + 8. Of each step of 16
// dimensions it may have any four, as long as its queries have the same ones, so several steps lie side by side and are
// one load. Its scores are those of head t at these positions. It has the values of positions 2t, 2t + 1, 2t + 8 and 2t
// + 9: two of each tile of 16 dimensions, side by side with those of other tiles. Weights, also in two parts, reach
// their lanes through 8 by 8 transposes.
//
// Codes are exact in f16. Scales of keys are applied to scores, scales of values to weights. These fit f16 because they
// are kept in units of the largest scale seen, rounded down to a power of two, and queries in units of their largest
// magnitude. The scale of a block covers two steps or tiles: their products are summed separately, and each has its own
// weights.
//
// The next keys are loaded while scores become weights, and values while scores are computed.
#pragma once
#include "decode.h"
#include "mma.h"

// Keys and values are of one type, `Kv`, whose blocks have no more than a scale.
template <typename Kv, u32 DIM, u32 HEADS> struct DecodeMatrix {
    static constexpr bool HAS_SCALES = Kv::SCALES != kv::Scales::None, BY_BLOCK = Kv::SCALES == kv::Scales::Block;
    static constexpr u32 BITS = Kv::CODE_BITS;
    // Steps of scores are tiles of outputs.
    static constexpr u32 STEPS = DIM / 16;
    static constexpr u32 SETS = (HEADS + 3) / 4;
    // Whether a lane's registers suffice and there is more than one head: for one head, multiply-adds are few.
    static constexpr bool FITS = DIM * SETS <= 256 && DIM * BITS <= 2048 && HEADS > 1 && (BITS > 4 || DIM % kv::BLOCK == 0);
    static constexpr u32 GROUPS = DIM * SETS <= 128 ? 2 : 1;
    static constexpr u32 TILE = 16 * GROUPS;
    // See ORDERS in kv/attention_decode.hip. From 128 on, distinct from the orders of decode_lanes.h.
    static constexpr u32 ORDER = 128 + TILE;

    // Steps per scale, and scales per row.
    static constexpr u32 BLOCK_STEPS = BY_BLOCK ? kv::BLOCK / 16 : STEPS;
    static constexpr u32 N_SCALES = (STEPS + BLOCK_STEPS - 1) / BLOCK_STEPS;
    // How many steps, of `bits` per lane each, are one load.
    static constexpr u32 steps_of_load(u32 bits) {
        u32 n = 1;
        while (STEPS % (2 * n) == 0 && BLOCK_STEPS % (2 * n) == 0 && 2 * n * bits <= 128) n *= 2;
        return n;
    }
    // A lane has 4 codes of each step of keys and 2 of each tile of values: a word of bytes has those of two tiles, and
    // a tile that is loaded alone, or two of nibbles, are half a word.
    static constexpr u32 KEY_STEPS = steps_of_load(4 * BITS), VALUE_STEPS = steps_of_load(2 * BITS);
    static constexpr u32 KEY_WORDS = KEY_STEPS * BITS / 8, VALUE_WORDS = (VALUE_STEPS * BITS + 15) / 16;
    static constexpr u32 KEY_LOADS = STEPS / KEY_STEPS, VALUE_LOADS = STEPS / VALUE_STEPS;
    static constexpr u32 TILES_OF_WORD = min_of(VALUE_STEPS, 16 / BITS);

    // A lane's part of a tile: codes of POSITIONS positions of each group, and scales of the positions of its scores.
    template <u32 POSITIONS, u32 WORDS> struct Part {
        u32 codes[GROUPS][POSITIONS][WORDS];
        u32 scales[GROUPS][2][HAS_SCALES ? (N_SCALES + 1) / 2 : 1];

        DEV_MEMBER float factor(u32 group, u32 i, u32 n) const {
            if constexpr (HAS_SCALES) return Kv::factor((u16)(scales[group][i][n / 2] >> n % 2 * 16));
            return 1.0f;
        }
    };
    using Keys = Part<2, KEY_LOADS * KEY_WORDS>;
    using Values = Part<4, VALUE_LOADS * VALUE_WORDS>;

    const DecodeParams& p;
    const DecodeJob& job;
    // The lane's row or column of operands, and its word in it.
    u32 g, t;

    static DEV_MEMBER void run(const DecodeParams& p, const DecodeJob& job) {
        DecodeMatrix d{p, job, lane() / 4, lane() % 4};
        d.attend();
    }

    // ------------------------------------------------------------------------------------------ loads
    // The first positions of the groups of a tile, clamped to the last position of the row, and their blocks.
    struct Place {
        u32 pos[GROUPS];
        u32 block[GROUPS];
    };
    template <bool EARLY = false> DEV_MEMBER Place place_of(u32 tile) const {
        Place place;
#pragma unroll
        for (u32 i = 0; i < GROUPS; i++) {
            place.pos[i] = min_of(tile + 16 * i, job.span.last & ~15u);
            const u32 page = place.pos[i] >> p.cache.page_shift;
            const u32* block = p.cache.block_tables + (u64)job.seq * p.cache.max_pages + page;
            place.block[i] = EARLY ? early_word(block) : *block;
        }
        return place;
    }
    // Brings the keys and values at a place into the L2 cache, where rows of the step may be written meanwhile.
    DEV_MEMBER void prefetch([[maybe_unused]] const Place& place) const {
#if defined(GPU_NV)
        constexpr u32 BYTES = 16 * DIM * BITS / 8, CACHE_LINE = 128;
#pragma unroll
        for (u32 i = 0; i < GROUPS; i++) {
            const u64 first = row_of(place, i) * (DIM * BITS / 8);
#pragma unroll
            for (u32 at = 0; at < BYTES; at += WARP_SIZE * CACHE_LINE) {
                const u32 line = at + lane() * CACHE_LINE;
                if (line >= BYTES) continue;
                asm volatile("prefetch.global.L2 [%0];" : : "l"(p.cache.k.codes + first + line));
                asm volatile("prefetch.global.L2 [%0];" : : "l"(p.cache.v.codes + first + line));
            }
        }
#endif
    }
    DEV_MEMBER u64 row_of(const Place& place, u32 group) const {
        return p.cache.slot(place.block[group], job.kv_head, place.pos[group]);
    }
    // Loads N bytes. The address is a multiple of the largest power of two that divides N, up to 16.
    template <u32 N> static DEV_MEMBER void load_bytes(u32* to, const u8* from) {
        if constexpr (N % 16 == 0) {
#pragma unroll
            for (u32 i = 0; i < N / 16; i++) {
                u32x4 words = load16(from + 16 * i);
#pragma unroll
                for (u32 j = 0; j < 4; j++) to[4 * i + j] = words[j];
            }
        } else if constexpr (N == 8) {
            u32x2 words = *(const u32x2*)from;
            to[0] = words[0];
            to[1] = words[1];
        } else if constexpr (N == 4) {
            to[0] = *(const u32*)from;
        } else {
            static_assert(N % 4 == 2 && N <= 6, "half words");
#pragma unroll
            for (u32 i = 0; i < N / 2; i++) {
                u32 half = *(const u16*)(from + 2 * i);
                to[i / 2] = i % 2 ? to[i / 2] | half << 16 : half;
            }
        }
    }
    template <typename P> DEV_MEMBER void load_scales(const kv::Planes& from, u64 row, u32 group, P& to) const {
        if constexpr (HAS_SCALES) {
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                load_bytes<2 * N_SCALES>(to.scales[group][i], from.scales + (row + g + 8 * i) * (2 * N_SCALES));
        }
    }
    // Unseen positions may hold anything.
    DEV_MEMBER void load(const Place& place, Keys& to) const {
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
            u64 row = row_of(place, group);
            const u8* from = p.cache.k.codes + ((row + g) * DIM + t * 4 * KEY_STEPS) * BITS / 8;
#pragma unroll
            for (u32 i = 0; i < 2; i++)
#pragma unroll
                for (u32 l = 0; l < KEY_LOADS; l++)
                    load_bytes<4 * KEY_WORDS>(to.codes[group][i] + l * KEY_WORDS,
                                              from + (8 * i * DIM + l * 16 * KEY_STEPS) * BITS / 8);
            load_scales(p.cache.k, row, group, to);
        }
    }
    DEV_MEMBER void load(const Place& place, Values& to) const {
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
            u64 row = row_of(place, group);
            const u8* from = p.cache.v.codes + ((row + 2 * t) * DIM + g * 2 * VALUE_STEPS) * BITS / 8;
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 l = 0; l < VALUE_LOADS; l++)
                    load_bytes<VALUE_STEPS * BITS / 4>(
                        to.codes[group][i] + l * VALUE_WORDS,
                        from + ((i % 2 + i / 2 * 8) * DIM + l * 16 * VALUE_STEPS) * BITS / 8);
            load_scales(p.cache.v, row, group, to);
        }
    }
    // Zeroes the values of unseen positions: their weight is 0, but 0 * NaN is not.
    DEV_MEMBER void blank(u32 tile, Values& values) const {
        if (job.sees_all(tile, TILE)) return;
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (job.sees(tile + 16 * group + 2 * t + i % 2 + i / 2 * 8)) continue;
#pragma unroll
                for (u32 w = 0; w < VALUE_LOADS * VALUE_WORDS; w++) values.codes[group][i][w] = 0;
            }
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                if (job.sees(tile + 16 * group + g + 8 * i)) continue;
#pragma unroll
                for (u32& word : values.scales[group][i]) word = 0;
            }
        }
    }

    // ------------------------------------------------------------------------------------------ queries
    // Queries as an operand, in units of 2^-14 of the power of two of their largest magnitude.
    struct Query {
        u32 words[STEPS][2];
        // Unit of the scores of head t.
        float unit;
    };
    DEV_MEMBER Query load_query(u32 set) const {
        const float* from = job.query(p, set * 4 + g / 2, DIM) + t * 4 * KEY_STEPS;
        float x[STEPS][4], factor = p.scores.query_factor(job.span.last);
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            f32x4 four = *(const f32x4*)(from + i / KEY_STEPS * 16 * KEY_STEPS + i % KEY_STEPS * 4);
#pragma unroll
            for (u32 j = 0; j < 4; j++) x[i][j] = four[j] * factor;
        }
        if constexpr (Kv::ROTATES) rotate(x);
        u32 max = 0;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) max = max_of(max, bits<u32>(x[i][j]) & 0x7fffffffu);
        max = max_of(max, shuffle_xor(max, 1));
        max = max_of(max, shuffle_xor(max, 2));
        u32 exponent = power_of_two(max);
        float to_unit = bits<float>(((254u + 14) << 23) - exponent);
        Query query;
        query.unit = shuffle(bits<float>(exponent - (14u << 23)), t * 8);
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            float part[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                float whole = x[i][j] * to_unit;
                part[j] = g % 2 ? whole - h2f(f2h(whole)) : whole;
            }
            query.words[i][0] = pack_halves(part[0], part[1]);
            query.words[i][1] = pack_halves(part[2], part[3]);
        }
        return query;
    }
    // Rotates queries (hadamard.h), and puts them in the order of the keys' nibbles: see key_halves().
    static DEV_MEMBER void rotate(float (*x)[4]) {
        static_assert(KEY_STEPS == 2, "a lane has eight neighbours of each block");
        constexpr u32 BLOCKS = STEPS / 2, N = hadamard_len(DIM) / kv::BLOCK;
        float y[BLOCKS][8];
#pragma unroll
        for (u32 b = 0; b < BLOCKS; b++) {
#pragma unroll
            for (u32 j = 0; j < 8; j++) y[b][j] = x[2 * b + j / 4][j % 4];
            hadamard<kv::BLOCK>(y[b], kv::BLOCK);
        }
#pragma unroll
        for (u32 step = 1; step < N; step *= 2)
#pragma unroll
            for (u32 b = 0; b < BLOCKS; b++) {
                if (b & step) continue;
#pragma unroll
                for (u32 j = 0; j < 8; j++) {
                    const float first = y[b][j], second = y[b + step][j];
                    y[b][j] = first + second;
                    y[b + step][j] = first - second;
                }
            }
        // 1 / sqrt(N)
        constexpr float HALF_ROOT = 0.70710678118f, FACTOR = N == 8 ? HALF_ROOT / 2 : N == 4 ? 0.5f : N == 2 ? HALF_ROOT : 1;
#pragma unroll
        for (u32 b = 0; b < BLOCKS; b++)
#pragma unroll
            for (u32 j = 0; j < 8; j++) x[2 * b + j / 4][j % 4] = y[b][j / 4 * 2 + j % 2 * 4 + j % 4 / 2] * FACTOR;
    }
    // The bits of the greatest power of two not above a positive number, clamped to between 2^-100 and 2^112, so that
    // its inverse is normal, and 2^14 times the inverse too. With the clamp, queries and scales of values from 2^114 on
    // overflow f16, and outputs are NaN where multiply-adds may give numbers.
    static DEV_MEMBER u32 power_of_two(u32 number) {
        return min_of(max_of(number & 0x7f800000u, 27u << 23), 239u << 23);
    }

    // ------------------------------------------------------------------------------------------ products
    // The four keys of a step. Of a word of nibbles, its first step has values 0, 4, 1 and 5, the second 2, 6, 3 and 7.
    static DEV_MEMBER void key_halves(const u32* codes, u32 step, u32* to) {
        if constexpr (BITS == 4) {
            Kv::halves(codes[step / 2] >> step % 2 * 8, to);
        } else {
#pragma unroll
            for (u32 w = 0; w < BITS / 8; w++) Kv::halves(codes[step * BITS / 8 + w], to + w);
        }
    }
    // Scores of head t at positions g and g + 8 of a group.
    DEV_MEMBER void score(const Keys& keys, u32 group, const Query (&query)[SETS], float (*s)[GROUPS][2]) const {
        // One sum per scale, but more than one in any case, so that not all products wait for each other.
        constexpr u32 N = BY_BLOCK ? N_SCALES : 2;
        float c[SETS][N][4];
#pragma unroll
        for (u32 set = 0; set < SETS; set++)
#pragma unroll
            for (u32 n = 0; n < N; n++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) c[set][n][e] = 0.0f;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            u32 low[2], high[2];
            key_halves(keys.codes[group][0], i, low);
            key_halves(keys.codes[group][1], i, high);
            u32 n = BY_BLOCK ? i / BLOCK_STEPS : i % N;
#pragma unroll
            for (u32 set = 0; set < SETS; set++)
                mma::mma_f16(c[set][n], {{low[0], high[0], low[1], high[1]}}, query[set].words[i][0],
                             query[set].words[i][1]);
        }
#pragma unroll
        for (u32 set = 0; set < SETS; set++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float sum = 0.0f;
#pragma unroll
                for (u32 n = 0; n < N; n++) {
                    float both = c[set][n][2 * i] + c[set][n][2 * i + 1];
                    sum = BY_BLOCK ? fma(both, keys.factor(group, i, n), sum) : sum + both;
                }
                if constexpr (HAS_SCALES && !BY_BLOCK) sum *= keys.factor(group, i, 0);
                s[set][group][i] = sum * query[set].unit;
            }
    }

    // Words of four lanes are a row: returns halves 2t and 2t + 1 of column g.
    DEV_MEMBER u32 transpose(u32 row) const {
        u32 from = t * 8 + g / 2;
        u32 low = shuffle(row, from), high = shuffle(row, from + 4);
        return kv::pick_bytes(low, high, g % 2 ? 0x7632 : 0x5410);
    }

    // The codes of two words in pairs as f16: the first with the first, and so on.
    static DEV_MEMBER void zipped_halves(u32 a, u32 b, u32* to) {
        if constexpr (BITS == 4) {
            const u32 both = a | b << 16;
            Kv::halves(both, to);
            Kv::halves(both >> 8, to + 2);
        } else if constexpr (BITS == 8) {
            Kv::halves(kv::pick_bytes(a, b, 0x5140), to);
            Kv::halves(kv::pick_bytes(a, b, 0x7362), to + 2);
        } else {
            to[0] = kv::pick_bytes(a, b, 0x5410);
            to[1] = kv::pick_bytes(a, b, 0x7632);
        }
    }

    // out += weights * values of a group. The weights are those of head t at positions g and g + 8, times
    // factor_of_scales.
    DEV_MEMBER void add(const Values& values, u32 group, const float (*weights)[GROUPS][2],
                        [[maybe_unused]] float factor_of_scales, float (*out)[STEPS][4]) const {
        u32 weight[SETS][2];
#pragma unroll
        for (u32 l = 0; l < VALUE_LOADS; l++) {
            if (l * VALUE_STEPS % BLOCK_STEPS == 0) {
#pragma unroll
                for (u32 set = 0; set < SETS; set++)
#pragma unroll
                    for (u32 i = 0; i < 2; i++) {
                        float w = weights[set][group][i];
                        if constexpr (HAS_SCALES)
                            w *= values.factor(group, i, l * VALUE_STEPS / BLOCK_STEPS) * factor_of_scales;
                        weight[set][i] = transpose(pack_halves(w, w - h2f(f2h(w))));
                    }
            }
#pragma unroll
            for (u32 w = 0; w < VALUE_WORDS; w++) {
                const u32(*codes)[VALUE_LOADS * VALUE_WORDS] = values.codes[group];
                u32 at = l * VALUE_WORDS + w;
                u32 low[4], high[4];
                zipped_halves(codes[0][at], codes[1][at], low);
                zipped_halves(codes[2][at], codes[3][at], high);
#pragma unroll
                for (u32 i = 0; i < TILES_OF_WORD; i++)
#pragma unroll
                    for (u32 set = 0; set < SETS; set++)
                        mma::mma_f16(out[set][l * VALUE_STEPS + w * TILES_OF_WORD + i],
                                     {{low[2 * i], low[2 * i + 1], high[2 * i], high[2 * i + 1]}}, weight[set][0],
                                     weight[set][1]);
            }
        }
    }

    // ------------------------------------------------------------------------------------------ the loop
    DEV_MEMBER void attend() {
        constexpr u32 STRIDE = N_WAVES * TILE;
        u32 mine = uniform(job.begin + wave() * TILE);
        Place here = place_of<true>(mine), next = place_of<true>(mine + STRIDE);
        if (mine < job.end) prefetch(here);
        begin();
        // The first keys are loaded while queries are converted to operands.
        Keys keys;
        Values values;
        if (mine < job.end) load(here, keys);
        Query query[SETS];
        float out[SETS][STEPS][4], greatest[SETS], sum[SETS];
#pragma unroll
        for (u32 set = 0; set < SETS; set++) {
            query[set] = load_query(set);
            greatest[set] = UNSEEN;
            sum[set] = 0.0f;
#pragma unroll
            for (u32 i = 0; i < STEPS; i++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) out[set][i][e] = 0.0f;
        }
        u32 unit = power_of_two(0);
        for (u32 tile = mine; tile < job.end; tile += STRIDE) {
            load(here, values);
            float s[SETS][GROUPS][2];
#pragma unroll
            for (u32 group = 0; group < GROUPS; group++) score(keys, group, query, s);
            if (tile + STRIDE < job.end) load(next, keys);
            here = next;
            next = place_of(tile + 2 * STRIDE);

            blank(tile, values);
            float change = 1.0f, factor_of_scales = 1.0f;
            if constexpr (HAS_SCALES) {
                u32 larger = max_of(unit, power_of_two(group_reduce<Max, WARP_SIZE>(bits<u32>(largest_scale(values)))));
                change = bits<float>(max_of(i32((127u << 23) + unit - larger), 0));
                factor_of_scales = bits<float>((254u << 23) - larger);
                unit = larger;
            }
#pragma unroll
            for (u32 set = 0; set < SETS; set++) {
                float rescale = to_weights(tile, s[set], greatest[set], sum[set]) * change;
#pragma unroll
                for (u32 i = 0; i < STEPS; i++)
#pragma unroll
                    for (u32 e = 0; e < 4; e++) out[set][i][e] *= rescale;
            }
#pragma unroll
            for (u32 group = 0; group < GROUPS; group++) add(values, group, s, factor_of_scales, out);
        }
        finish(out, greatest, sum, HAS_SCALES ? bits<float>(unit) : 1.0f);
    }

    DEV_MEMBER float largest_scale(const Values& values) const {
        float max = 0.0f;
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++)
#pragma unroll
            for (u32 i = 0; i < 2; i++)
#pragma unroll
                for (u32 n = 0; n < N_SCALES; n++) max = __builtin_fmaxf(max, __builtin_fabsf(values.factor(group, i, n)));
        return max;
    }

    // Converts scores of head t to weights, 2^14 times as large, which fits f16. Returns the factor for the outputs so
    // far.
    DEV_MEMBER float to_weights(u32 tile, float (*s)[2], float& greatest, float& sum) const {
        float max = UNSEEN;
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                bool seen = job.sees(tile + 16 * group + g + 8 * i);
                s[group][i] = seen ? p.scores.exponent(s[group][i]) : UNSEEN;
                max = max_of(max, s[group][i]);
            }
        max = max_of(greatest, reduce_lanes<Max, 4, WARP_SIZE>(max));
        float rescale = exp2_fast(greatest - max);
        greatest = max;
        sum *= rescale;
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                bool seen = job.sees(tile + 16 * group + g + 8 * i);
                s[group][i] = seen ? exp2_fast(s[group][i] - (max - 14.0f)) : 0.0f;
                sum += s[group][i];
            }
        return rescale;
    }

    DEV_MEMBER void finish(const float (*out)[STEPS][4], const float* greatest, const float* sum, float unit) const {
        SHARED(float, sums, N_WAVES * HEADS * DIM);
        SHARED(float, stats, N_WAVES * HEADS * 2);
#pragma unroll
        for (u32 set = 0; set < SETS; set++) {
            u32 of_wave = wave() * HEADS + set * 4 + t;
            float total = reduce_lanes<Sum, 4, WARP_SIZE>(sum[set]);
            if (set * 4 + t >= HEADS) continue;
            if (g == 0) {
                // What the weights are relative to: see to_weights.
                stats[of_wave * 2] = greatest[set] - 14.0f;
                stats[of_wave * 2 + 1] = total;
            }
#pragma unroll
            for (u32 i = 0; i < STEPS; i++) {
                u32 dim = (i / VALUE_STEPS * 16 + g * 2) * VALUE_STEPS + i % VALUE_STEPS * 2;
                sums[of_wave * DIM + dim] = (out[set][i][0] + out[set][i][1]) * unit;
                sums[of_wave * DIM + dim + 1] = (out[set][i][2] + out[set][i][3]) * unit;
            }
        }
        merge_waves<DIM, HEADS>(p, job, sums, stats);
    }
};
