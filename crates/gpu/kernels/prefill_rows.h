// Attention of prompts where each wave has 16 queries and all their columns of the output: heads of up to 256 values.
//
// Keys and values are f16 in shared memory, whatever the cache type. On matrix units where a lane holds whole columns
// of C, scores are computed as k q^T and the output as v^T p^T: all scores and outputs of a lane belong to one query,
// and its weights are an operand of the second product without any exchange. On NVIDIA, lanes hold rows of C, and the
// weights of q k^T are an operand of p v. With dot product instructions (gfx10, gfx906), weights go through shared
// memory.
//
// Shared memory: queries in two parts, 2 * 16 * WAVES * (2 K_DIM + 16) bytes, unless they are kept in registers; KEYS
// keys of (2 K_DIM + 16) bytes and KEYS values of (2 V_DIM + 16) bytes, in the same place if both would not fit into 48
// KB. The next keys or values are loaded into registers meanwhile.
#pragma once
#include "prefill.h"

// With dot product instructions a lane holds whole rows of an operand: one part of a query or weight at a time.
#if defined(MMA_DOT)
constexpr u32 PARTS_AT_ONCE = 1, LONG_BLOCK = 16;
#else
constexpr u32 PARTS_AT_ONCE = 2, LONG_BLOCK = 32;
#endif

template <u32 K_DIM, u32 V_DIM, u32 WAVES, u32 KEYS> struct PrefillRows {
    static constexpr u32 THREADS = WAVES * WARP_SIZE;
    static constexpr u32 QUERIES = WAVES * 16;
    static constexpr u32 K_PITCH = K_DIM * 2 + 16, V_PITCH = V_DIM * 2 + 16;
    static constexpr u32 K_STEPS = K_DIM / 16, V_STEPS = V_DIM / 16;
    static constexpr u32 TILES = KEYS / 16;
    // Pieces of 8 keys or values, for each thread.
    template <u32 DIM> static constexpr u32 LOADS = (KEYS * DIM / 8 + THREADS - 1) / THREADS;
#if defined(GPU_NVIDIA)
    static constexpr bool QUERIES_IN_REGISTERS = K_DIM <= 128;
#else
    static constexpr bool QUERIES_IN_REGISTERS = false;
#endif
    static constexpr u32 QUERY_BYTES = 2 * QUERIES * K_PITCH;
    static constexpr u32 KEPT_BYTES = QUERIES_IN_REGISTERS ? 0 : QUERY_BYTES;
    static constexpr u32 KEY_BYTES = KEYS * K_PITCH, VALUE_BYTES = KEYS * V_PITCH;
    static constexpr bool ONE_PLACE = KEPT_BYTES + KEY_BYTES + VALUE_BYTES + WAVES * WEIGHT_BYTES > 48 * 1024;
    static constexpr u32 TILE_BYTES = ONE_PLACE ? KEY_BYTES : KEY_BYTES + VALUE_BYTES;
    static constexpr u32 LOOP_BYTES = KEPT_BYTES + TILE_BYTES + WAVES * WEIGHT_BYTES;
    static constexpr u32 BYTES = LOOP_BYTES > QUERY_BYTES ? LOOP_BYTES : QUERY_BYTES;
    static constexpr bool SHORT = K_DIM > 128 || PARTS_AT_ONCE == 1;
    static_assert(BYTES <= 48 * 1024, "memory of a block");
    static_assert(V_DIM <= K_DIM, "values fit where keys are");

    const PrefillParams& p;
    const PrefillJob& job;
    u8* memory;

    static DEV_MEMBER void run(const PrefillParams& p) {
        SHARED(u8, memory, BYTES);
        PrefillJob job = PrefillJob::of_block(p);
        if (job.first_key > job.last_key) return;
        PrefillRows tile{p, job, memory};
        tile.attend();
    }

    // The queries of this wave: the rounding errors (part 0) or the rounded values (part 1).
    DEV_MEMBER const u8* query_part(u32 part) const { return memory + (part * QUERIES + wave() * 16) * K_PITCH; }

    // A piece of keys, or of values.
    struct Held {
        u32 words[sizeof(KeyPiece) > sizeof(ValuePiece) ? sizeof(KeyPiece) / 4 : sizeof(ValuePiece) / 4];
    };

    // Loads keys or values, rows of DIM values, from position `from` on into registers. Positions that no row sees are
    // clamped to others.
    template <u32 DIM, typename Piece> DEV_MEMBER void load(const kv::Planes& planes, u32 from, Held* to) const {
        constexpr u32 PIECES = DIM / 8, N_PIECES = KEYS * PIECES;
#pragma unroll
        for (u32 i = 0; i < LOADS<DIM>; i++) {
            u32 piece = tid() + i * THREADS;
            if (N_PIECES % THREADS != 0) piece = min_of(piece, N_PIECES - 1);
            u32 pos = min_of(max_of(from + piece / PIECES, job.first_key), job.last_key);
            u64 slot = p.cache.slot(p.cache.block(job.seq, pos), job.kv_head, pos);
            const Piece loaded = Piece::load(planes, slot, DIM, piece % PIECES * 8);
            __builtin_memcpy(to[i].words, &loaded, sizeof(Piece));
        }
    }
    template <u32 DIM, typename Piece> static DEV_MEMBER void store(u8* place, const Held* from) {
        constexpr u32 PIECES = DIM / 8, N_PIECES = KEYS * PIECES, PITCH = DIM * 2 + 16;
#pragma unroll
        for (u32 i = 0; i < LOADS<DIM>; i++) {
            u32 piece = tid() + i * THREADS;
            Piece held;
            __builtin_memcpy(&held, from[i].words, sizeof(Piece));
            if (N_PIECES % THREADS == 0 || piece < N_PIECES)
                store16(place + piece / PIECES * PITCH + piece % PIECES * 16, held.halves());
        }
    }

    DEV_MEMBER void attend() {
        constexpr u32 LEN = KeyType::ROTATES ? hadamard_len(K_DIM) : 1;
        job.stage_queries<K_DIM, QUERIES, THREADS, LEN>(0, memory, memory + QUERIES * K_PITCH);
        shared_barrier();
        // The rounding errors, then the rounded values.
        QueryOperand kept[2][QUERIES_IN_REGISTERS ? K_STEPS : 1];
        if constexpr (QUERIES_IN_REGISTERS) {
#pragma unroll
            for (u32 i = 0; i < K_STEPS; i++)
#pragma unroll
                for (u32 part = 0; part < 2; part++) kept[part][i] = load_query(query_part(part) + i * 32, K_PITCH);
            shared_barrier();
        }
        u8* keys = memory + KEPT_BYTES;
        u8* values = ONE_PLACE ? keys : keys + KEY_BYTES;
        u8* weights = memory + LOOP_BYTES - (WAVES - wave()) * WEIGHT_BYTES;

        u32 mine[N_QUERIES];
        float greatest[N_QUERIES], sum[N_QUERIES];
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) {
            mine[i] = job.position_of(wave() * 16 + query_of(i));
            greatest[i] = UNSEEN;
            sum[i] = 0.0f;
        }
        Tile::Acc out[V_STEPS];
#pragma unroll
        for (u32 i = 0; i < V_STEPS; i++) out[i] = Tile::zero();
        u32 wave_first = uniform(job.position_of(wave() * 16)), wave_last = uniform(job.position_of(wave() * 16 + 15));

        // Keys and values in turn: with two of these, some kernels need scratch memory.
        Held coming[LOADS<K_DIM>];
        u32 begin = job.first_key / KEYS * KEYS;
        load<K_DIM, KeyPiece>(p.cache.k, begin, coming);
        for (u32 at = begin; at <= job.last_key; at += KEYS) {
            if constexpr (ONE_PLACE) shared_barrier();
            store<K_DIM, KeyPiece>(keys, coming);
            shared_barrier();
            load<V_DIM, ValuePiece>(p.cache.v, at, coming);
            bool seen = uniform(at <= job.last_seen(wave_last) && at + KEYS > p.scores.first_seen(wave_first)) != 0;
            bool whole =
                uniform(at + KEYS - 1 <= job.last_seen(wave_first) && at >= p.scores.first_seen(wave_last)) != 0;
            Tile::Acc s[TILES];
            if (seen) {
#pragma unroll
                for (u32 n = 0; n < TILES; n++) s[n] = Tile::zero();
#pragma unroll
                for (u32 i = 0; i < K_STEPS; i++) {
                    KeyOperand key[TILES];
#pragma unroll
                    for (u32 n = 0; n < TILES; n++) key[n] = load_key(keys + n * 16 * K_PITCH + i * 32, K_PITCH);
#pragma unroll
                    for (u32 part = 0; part < 2; part++) {
                        QueryOperand query;
                        if constexpr (QUERIES_IN_REGISTERS) query = kept[part][i];
                        else query = load_query(query_part(part) + i * 32, K_PITCH);
#pragma unroll
                        for (u32 n = 0; n < TILES; n++) mac(s[n], query, key[n]);
                        hold_loads<SHORT>();
                    }
                }
                if (p.scores.soft_cap > 0.0f) cap(s);
                if (p.scores.alibi != 0.0f) bias(s, at, mine);
                if (!whole) hide(s, at, mine);
                float rescale[N_QUERIES];
                to_weights(s, greatest, sum, rescale);
#pragma unroll
                for (u32 i = 0; i < V_STEPS; i++)
#pragma unroll
                    for (u32 e = 0; e < ELEMENTS; e++) out[i].v[e] *= rescale[query_index(e)];
            }
            if constexpr (ONE_PLACE) shared_barrier();
            store<V_DIM, ValuePiece>(values, coming);
            shared_barrier();
            if (at + KEYS <= job.last_key) load<K_DIM, KeyPiece>(p.cache.k, at + KEYS, coming);
            if (seen) add_values(out, s, values, weights);
        }
        write(out, greatest, sum);
        job.rotate_outputs<THREADS, QUERIES, V_DIM>();
    }

    // out += weights * values.
    static DEV_MEMBER void add_values(Tile::Acc* out, const Tile::Acc* s, const u8* values, u8* weights) {
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            float parts[2][ELEMENTS];
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) {
                parts[1][e] = s[n].v[e];
                parts[0][e] = s[n].v[e] - h2f(f2h(s[n].v[e]));
            }
#pragma unroll
            for (u32 first = 0; first < 2; first += PARTS_AT_ONCE) {
                QueryOperand weight[PARTS_AT_ONCE];
#pragma unroll
                for (u32 j = 0; j < PARTS_AT_ONCE; j++) weight[j] = weight_operand(parts[first + j], weights);
#pragma unroll
                for (u32 i = 0; i < V_STEPS; i++) {
                    auto value = Tile::load_b_transposed(values + n * 16 * V_PITCH + i * 32, V_PITCH);
#pragma unroll
                    for (u32 j = 0; j < PARTS_AT_ONCE; j++) mac(out[i], weight[j], value);
                    hold_loads<SHORT>();
                }
            }
        }
    }

    DEV_MEMBER void cap(Tile::Acc* s) const {
#pragma unroll
        for (u32 n = 0; n < TILES; n++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) s[n].v[e] = p.scores.exponent(s[n].v[e]);
    }

    // Subtracts what scores lose by distance.
    DEV_MEMBER void bias(Tile::Acc* s, u32 at, const u32* mine) const {
        float of_head[N_QUERIES];
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++)
            of_head[i] = p.scores.bias_of(job.any_head_of(wave() * 16 + query_of(i)));
#pragma unroll
        for (u32 n = 0; n < TILES; n++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) {
                u32 key = at + n * 16 + other_of(e), of = query_index(e);
                s[n].v[e] = fma(of_head[of], Scores::distance(mine[of], key), s[n].v[e]);
            }
    }

    // Hides scores of positions that a row does not see.
    DEV_MEMBER void hide(Tile::Acc* s, u32 at, const u32* mine) const {
#pragma unroll
        for (u32 n = 0; n < TILES; n++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) {
                u32 key = at + n * 16 + other_of(e), pos = mine[query_index(e)];
                if (key > job.last_seen(pos) || key < p.scores.first_seen(pos)) s[n].v[e] = UNSEEN;
            }
    }

    // Converts scores to weights relative to the maximum so far. Until a query has seen a position, its weights are 1;
    // the first position it sees, at the latest its own, rescales their contribution to 0.
    static DEV_MEMBER void to_weights(Tile::Acc* s, float* greatest, float* sum, float* rescale) {
        float max[N_QUERIES];
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) max[i] = greatest[i];
#pragma unroll
        for (u32 n = 0; n < TILES; n++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) max[query_index(e)] = max_of(max[query_index(e)], s[n].v[e]);
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) {
            max[i] = reduce_lanes<Max, SAME_FROM, SAME_TO>(max[i]);
            rescale[i] = exp2_fast(greatest[i] - max[i]);
            greatest[i] = max[i];
            sum[i] *= rescale[i];
        }
#pragma unroll
        for (u32 n = 0; n < TILES; n++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) {
                s[n].v[e] = exp2_fast(s[n].v[e] - max[query_index(e)]);
                sum[query_index(e)] += s[n].v[e];
            }
    }

    DEV_MEMBER void write(const Tile::Acc* out, const float* greatest, const float* sum) const {
        Parts parts{p.partial, (u64)p.n_rows * p.n_heads * p.n_splits, V_DIM};
        float factor[N_QUERIES];
        u64 to[N_QUERIES];
        bool there[N_QUERIES];
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) {
            u32 query = wave() * 16 + query_of(i);
            float weights = reduce_lanes<Sum, SAME_FROM, SAME_TO>(sum[i]);
            there[i] = job.is_there(query);
            to[i] = job.at(query);
            if (job.n_used == 1) {
                float sink = p.scores.sink_weight(job.any_head_of(query), greatest[i]);
                factor[i] = 1.0f / (weights + sink);
            } else {
                factor[i] = 1.0f;
                to[i] = to[i] * p.n_splits + job.split;
                // One of the lanes that share the query.
                if (there[i] && other_of(0) == 0) parts.write_stats(to[i], greatest[i], weights);
            }
        }
        float* all = job.n_used == 1 ? p.out : p.partial;
#pragma unroll
        for (u32 i = 0; i < V_STEPS; i++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) {
                u32 of = query_index(e);
                if (there[of]) all[to[of] * V_DIM + i * 16 + other_of(e)] = out[i].v[e] * factor[of];
            }
    }
};
