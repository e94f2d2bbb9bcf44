// Attention where the waves of a block share its queries, and each has its own columns of the output: heads whose
// output is too wide for the registers of one wave, and latent layers (MLA), whose values are the first part of their
// keys and are read once for both products. Not with dot product instructions (gfx10, gfx906).
//
// A block of 256 threads has 16 * SETS queries and walks 16 positions at a time. Each wave keeps some steps of 16
// dimensions of all queries in registers and adds up their part of all scores. Threads then sum the parts of a few
// scores each, and convert them to weights, in shared memory. Each wave multiplies all weights with its columns of the
// values. There are two barriers for 16 positions: the next keys and values are loaded into registers meanwhile, and
// stored while scores are converted. Not measured.
//
// Shared memory: two places of 16 rows of (2 K_DIM + 16) bytes for keys and values or, with values in the keys, for the
// keys of even and odd tiles; [WAVES, queries, 16] parts of scores; the queries' weights and factors.
#pragma once
#include "prefill.h"

// Where the values of a position are.
enum class Values { Apart, InKeys };

template <u32 K_DIM, u32 V_DIM, Values VALUES> struct PrefillColumns {
    static constexpr u32 THREADS = 256, WAVES = THREADS / WARP_SIZE;
    // Operands of GFX11 take twice the registers of others. GFX12 has none left for two sets of queries where eight codes
    // take three.
#if defined(GPU_GFX11)
    static constexpr u32 SETS = 1;
#elif defined(GPU_GFX12)
    static constexpr u32 SETS = sizeof(KeyType::Eight) < 12 ? 2 : 1;
#else
    static constexpr u32 SETS = 2;
#endif
    static constexpr u32 QUERIES = 16 * SETS, KEYS = 16;
    static constexpr u32 PITCH = K_DIM * 2 + 16;
    static constexpr u32 K_STEPS = K_DIM / 16, V_STEPS = V_DIM / 16;
    // Steps of the keys and of the values for each wave. Waves may have one step of the keys less.
    static constexpr u32 MY_K_STEPS = (K_STEPS + WAVES - 1) / WAVES, MY_V_STEPS = V_STEPS / WAVES;
    static_assert(MY_V_STEPS * WAVES == V_STEPS && V_DIM <= K_DIM, "equal parts for all waves");
    // Scores for each thread, and lanes with scores of one query.
    static constexpr u32 MINE = QUERIES * KEYS / THREADS, LANES = KEYS / MINE;
    static_assert(MINE == SETS, "one score, or two neighbours, for each set of queries");
    template <u32 DIM> static constexpr u32 LOADS = (KEYS * DIM / 8 + THREADS - 1) / THREADS;

    static constexpr u32 PLACE_BYTES = KEYS * PITCH;
    static constexpr u32 SCORES_AT = 2 * PLACE_BYTES;
    static constexpr u32 WEIGHT_PITCH = 48;
    static constexpr u32 WEIGHTS_AT = SCORES_AT + WAVES * QUERIES * KEYS * 4;
    static constexpr u32 FACTORS_AT = WEIGHTS_AT + 2 * QUERIES * WEIGHT_PITCH;
    static constexpr u32 BYTES = FACTORS_AT + QUERIES * 4;
    static_assert(BYTES <= 64 * 1024, "memory of a block");

    const PrefillParams& p;
    const PrefillJob& job;
    u8* memory;

    static DEV_MEMBER void run(const PrefillParams& p, u8* memory) {
        PrefillJob job = PrefillJob::of_block(p);
        if (job.first_key > job.last_key) return;
        PrefillColumns tile{p, job, memory};
        tile.attend();
    }

    // ------------------------------------------------------------------------------------------ shared memory
    // Keys of a tile, and its values.
    DEV_MEMBER u8* keys_of(u32 tile) const {
        return VALUES == Values::InKeys ? memory + tile % 2 * PLACE_BYTES : memory;
    }
    DEV_MEMBER u8* values_of(u32 tile) const {
        return VALUES == Values::InKeys ? keys_of(tile) : memory + PLACE_BYTES;
    }
    // The score of a query, one of 16 positions, and a wave. Rows of 64 bytes whose positions are exchanged, so that
    // lanes with neighbouring rows reach different banks; pairs of positions stay together.
    DEV_MEMBER float* score_at(u32 of_wave, u32 query, u32 pos) const {
        u32 exchanged = query / 2 % 2 * 8 | query / 4 % 4 * 2;
        return (float*)(memory + SCORES_AT) + (of_wave * QUERIES + query) * KEYS + (pos ^ exchanged);
    }
    // Weights as f16 [part, query, position]: the rounding errors (part 0) and the rounded values (part 1).
    DEV_MEMBER u8* weights_at(u32 part, u32 query) const {
        return memory + WEIGHTS_AT + (part * QUERIES + query) * WEIGHT_PITCH;
    }
    // A factor on the outputs of each query.
    DEV_MEMBER float* factors() const { return (float*)(memory + FACTORS_AT); }

    // Loads rows of DIM values from position `from` on, a multiple of 16, into registers. Positions that no row sees
    // are clamped to others of the tile.
    template <u32 DIM, typename Piece> DEV_MEMBER void load(const kv::Planes& planes, u32 from, Piece* to) const {
        constexpr u32 PIECES = DIM / 8, N_PIECES = KEYS * PIECES;
        // A page has at least 16 positions.
        u32 block = p.cache.block(job.seq, from);
#pragma unroll
        for (u32 i = 0; i < LOADS<DIM>; i++) {
            u32 piece = min_of(tid() + i * THREADS, N_PIECES - 1);
            u32 pos = min_of(max_of(from + piece / PIECES, job.first_key), job.last_key);
            to[i] = Piece::load(planes, p.cache.slot(block, job.kv_head, pos), DIM, piece % PIECES * 8);
        }
    }
    template <u32 DIM, typename Piece> static DEV_MEMBER void store(u8* place, const Piece* from) {
        constexpr u32 PIECES = DIM / 8, N_PIECES = KEYS * PIECES;
#pragma unroll
        for (u32 i = 0; i < LOADS<DIM>; i++) {
            u32 piece = tid() + i * THREADS;
            if (N_PIECES % THREADS == 0 || piece < N_PIECES)
                store16(place + piece / PIECES * PITCH + piece % PIECES * 16, from[i].halves());
        }
    }

    // ------------------------------------------------------------------------------------------ the loop
    // The wave's steps of all queries: the rounding errors, then the rounded values.
    struct Queries {
        QueryOperand of[MY_K_STEPS][SETS][2];
    };

    DEV_MEMBER void attend() {
        const u32 me = uniform(wave());
        Queries queries;
#pragma unroll
        for (u32 set = 0; set < SETS; set++) {
            constexpr u32 DIMS = VALUES == Values::InKeys ? K_DIM | V_DIM : K_DIM;
            constexpr u32 LEN = KeyType::ROTATES ? hadamard_len(DIMS) : 1;
            job.stage_queries<K_DIM, 16, THREADS, LEN>(set * 16, memory, memory + PLACE_BYTES);
            shared_barrier();
#pragma unroll
            for (u32 i = 0; i < MY_K_STEPS; i++) {
                u32 step = min_of(me + i * WAVES, K_STEPS - 1);
#pragma unroll
                for (u32 part = 0; part < 2; part++)
                    queries.of[i][set][part] = load_query(memory + part * PLACE_BYTES + step * 32, PITCH);
            }
            shared_barrier();
        }

        Tile::Acc out[MY_V_STEPS][SETS];
#pragma unroll
        for (u32 i = 0; i < MY_V_STEPS; i++)
#pragma unroll
            for (u32 set = 0; set < SETS; set++) out[i][set] = Tile::zero();
        float greatest = UNSEEN, sum = 0.0f;

        KeyPiece keys[LOADS<K_DIM>];
        [[maybe_unused]] ValuePiece values[LOADS<V_DIM>];
        const u32 begin = job.first_key / KEYS * KEYS;
        load<K_DIM>(p.cache.k, begin, keys);
        if constexpr (VALUES == Values::Apart) load<V_DIM>(p.cache.v, begin, values);
        store<K_DIM>(keys_of(0), keys);
        if (begin + KEYS <= job.last_key) load<K_DIM>(p.cache.k, begin + KEYS, keys);
        shared_barrier();
        u32 tile = 0;
        for (u32 at = begin; at <= job.last_key; at += KEYS, tile++) {
            score(me, queries, keys_of(tile));
            shared_barrier();
            const float factor = to_weights(at, greatest, sum);
            if (tid() % LANES == 0) factors()[tid() / LANES] = factor;
            const u32 next = at + KEYS;
            // No wave reads the place of the next keys any more, nor that of the last values.
            if (next <= job.last_key) store<K_DIM>(keys_of(tile + 1), keys);
            if constexpr (VALUES == Values::Apart) store<V_DIM>(values_of(tile), values);
            shared_barrier();
            if (next + KEYS <= job.last_key) load<K_DIM>(p.cache.k, next + KEYS, keys);
            if constexpr (VALUES == Values::Apart) {
                if (next <= job.last_key) load<V_DIM>(p.cache.v, next, values);
            }
            scale(out);
            add_values(me, out, values_of(tile));
        }
        shared_barrier();
        finish(greatest, sum);
        shared_barrier();
        scale(out);
        write(me, out);
        job.rotate_outputs<THREADS, QUERIES, V_DIM>();
    }

    // Writes the wave's part of all scores.
    DEV_MEMBER void score(u32 me, const Queries& queries, const u8* keys) const {
        Tile::Acc s[SETS];
#pragma unroll
        for (u32 set = 0; set < SETS; set++) s[set] = Tile::zero();
#pragma unroll
        for (u32 i = 0; i < MY_K_STEPS; i++) {
            const u32 step = me + i * WAVES;
            if ((i + 1) * WAVES > K_STEPS && step >= K_STEPS) break;
            KeyOperand key = load_key(keys + step * 32, PITCH);
#pragma unroll
            for (u32 part = 0; part < 2; part++)
#pragma unroll
                for (u32 set = 0; set < SETS; set++) mac(s[set], queries.of[i][set][part], key);
        }
#pragma unroll
        for (u32 set = 0; set < SETS; set++) {
#if defined(GPU_NVIDIA)
            // Neighbouring elements are neighbouring positions of a query.
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e += 2)
                store8(score_at(me, set * 16 + query_of(query_index(e)), other_of(e)),
                       {{bits<u32>(s[set].v[e]), bits<u32>(s[set].v[e + 1])}});
#else
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++)
                *score_at(me, set * 16 + query_of(query_index(e)), other_of(e)) = s[set].v[e];
#endif
        }
    }

    // Sums the parts of the thread's scores, of one query in the tile from `at` on, and writes their weights relative to
    // the greatest so far. Returns the factor for the query's outputs so far.
    DEV_MEMBER float to_weights(u32 at, float& greatest, float& sum) const {
        const u32 query = tid() / LANES, first = tid() % LANES * MINE, pos = job.position_of(query);
        float x[MINE] = {};
#pragma unroll
        for (u32 of_wave = 0; of_wave < WAVES; of_wave++) {
            const float* from = score_at(of_wave, query, first);
            if constexpr (MINE == 2) {
                u32x2 both = *(const u32x2*)from;
                x[0] += bits<float>(both[0]);
                x[1] += bits<float>(both[1]);
            } else {
                x[0] += *from;
            }
        }
        const float bias = p.scores.bias_of(job.any_head_of(query));
        bool seen[MINE];
        float max = greatest;
#pragma unroll
        for (u32 j = 0; j < MINE; j++) {
            const u32 key = at + first + j;
            seen[j] = key <= job.last_seen(pos) && key >= p.scores.first_seen(pos);
            x[j] = fma(bias, Scores::distance(pos, key), p.scores.exponent(x[j]));
            if (seen[j]) max = max_of(max, x[j]);
        }
        max = reduce_lanes<Max, 1, LANES>(max);
        const float factor = exp2_fast(greatest - max);
        greatest = max;
        sum *= factor;
        float weight[MINE];
#pragma unroll
        for (u32 j = 0; j < MINE; j++) {
            weight[j] = seen[j] ? exp2_fast(x[j] - max) : 0.0f;
            sum += weight[j];
        }
        u8 *low = weights_at(0, query) + first * 2, *high = weights_at(1, query) + first * 2;
        if constexpr (MINE == 2) {
            u32 both = pack_halves(weight[0], weight[1]);
            *(u32*)high = both;
            *(u32*)low = pack_halves(weight[0] - h2f((u16)both), weight[1] - h2f((u16)(both >> 16)));
        } else {
            u16 one = f2h(weight[0]);
            *(u16*)high = one;
            *(u16*)low = f2h(weight[0] - h2f(one));
        }
        return factor;
    }

    // Multiplies outputs by the factors of their queries.
    DEV_MEMBER void scale(Tile::Acc (*out)[SETS]) const {
#pragma unroll
        for (u32 set = 0; set < SETS; set++) {
            float factor[N_QUERIES];
#pragma unroll
            for (u32 i = 0; i < N_QUERIES; i++) factor[i] = factors()[set * 16 + query_of(i)];
#pragma unroll
            for (u32 i = 0; i < MY_V_STEPS; i++)
#pragma unroll
                for (u32 e = 0; e < ELEMENTS; e++) out[i][set].v[e] *= factor[query_index(e)];
        }
    }

    // out += weights * the wave's columns of the values.
    DEV_MEMBER void add_values(u32 me, Tile::Acc (*out)[SETS], const u8* values) const {
        QueryOperand weight[SETS][2];
#pragma unroll
        for (u32 set = 0; set < SETS; set++)
#pragma unroll
            for (u32 part = 0; part < 2; part++)
                weight[set][part] = load_query(weights_at(part, set * 16), WEIGHT_PITCH);
#pragma unroll
        for (u32 i = 0; i < MY_V_STEPS; i++) {
            auto value = Tile::load_b_transposed(values + (me * MY_V_STEPS + i) * 32, PITCH);
#pragma unroll
            for (u32 part = 0; part < 2; part++)
#pragma unroll
                for (u32 set = 0; set < SETS; set++) mac(out[i][set], weight[set][part], value);
            hold_loads<true>();
        }
    }

    // Writes the last factors of the queries, and what a part of the result is relative to.
    DEV_MEMBER void finish(float greatest, float sum) const {
        const u32 query = tid() / LANES;
        const float weights = reduce_lanes<Sum, 1, LANES>(sum);
        float factor = 1.0f;
        if (job.n_used == 1) factor /= weights + p.scores.sink_weight(job.any_head_of(query), greatest);
        if (tid() % LANES != 0) return;
        factors()[query] = factor;
        Parts parts{p.partial, (u64)p.n_rows * p.n_heads * p.n_splits, V_DIM};
        if (job.n_used != 1 && job.is_there(query))
            parts.write_stats(job.at(query) * p.n_splits + job.split, greatest, weights);
    }

    DEV_MEMBER void write(u32 me, const Tile::Acc (*out)[SETS]) const {
        float* all = job.n_used == 1 ? p.out : p.partial;
#pragma unroll
        for (u32 set = 0; set < SETS; set++)
#pragma unroll
            for (u32 of = 0; of < N_QUERIES; of++) {
                const u32 query = set * 16 + query_of(of);
                if (!job.is_there(query)) continue;
                u64 row = job.at(query);
                if (job.n_used != 1) row = row * p.n_splits + job.split;
                float* to = all + row * V_DIM + me * MY_V_STEPS * 16;
#pragma unroll
                for (u32 i = 0; i < MY_V_STEPS; i++)
#pragma unroll
                    for (u32 e = 0; e < ELEMENTS; e++)
                        if (query_index(e) == of) to[i * 16 + other_of(e)] = out[i][set].v[e];
            }
    }
};
