// Attention of many rows per sequence on the matrix units (FlashAttention-2, Dao 2023).
//
//     out[row, head] = sum_pos softmax_pos(q[row, head] . k[pos, head / group]) v[pos, head / group]
//
// Shapes and masks as in attention_decode.hip; rows come from `seqs`. prefill_DIM: one block of WAVES waves per (tile
// of queries, KV head, sequence). The queries of a tile are `tile_rows` consecutive rows with `tile_heads` heads of a
// group each, 16 per wave, so that a key loaded once serves all of them. Blocks walk KEYS positions at a time, from the
// first to the last that a row of the tile sees; waves skip positions that none of their rows sees.
//
// Keys and values are f16 in shared memory, whatever the cache type. Queries and weights are each the sum of two f16,
// the second being the rounding error of the first: two products instead of one, with an error near that of f32.
//
// On matrix units where a lane holds whole columns of C, scores are computed as k q^T and the output as v^T p^T: all
// scores and outputs of a lane belong to one query, and its weights are an operand of the second product without any
// exchange. On NVIDIA, lanes hold rows of C, and the weights of q k^T are an operand of p v. With dot product
// instructions (gfx10, gfx906), weights go through shared memory.
//
// Shared memory: queries in two parts, 2 * 16 * WAVES * (2 DIM + 16) bytes, unless they are kept in registers; KEYS
// keys and KEYS values of (2 DIM + 16) bytes each, in the same place if both would not fit into 48 KB. The next keys or
// values are loaded into registers meanwhile.
//
// A long context is divided into splits, so that few rows keep the device busy, too. A block then has the positions of
// one split and writes a partial result; combine_rows combines them.
#include "mma.h"
#include "parts.h"

struct PrefillParams {
    const float* q;
    float* out;
    float* partial;
    const SeqRows* seqs;
    const u32* seq_of_row;
    KvCache cache;
    Scores scores;
    u32 n_rows;
    u32 n_heads;
    u32 dim;
    u32 tile_rows;
    u32 tile_heads;
    u32 n_splits;
    FIELDS(q, out, partial, seqs, seq_of_row, cache, scores, n_rows, n_heads, dim, tile_rows, tile_heads, n_splits)
};

// The rows of a sequence in the step.
DEV SeqRows rows_of(const PrefillParams& p, u32 seq) {
    SeqRows rows;
    rows.first_row = uniform(p.seqs[seq].first_row);
    rows.n_rows = uniform(p.seqs[seq].n_rows);
    rows.first_pos = uniform(p.seqs[seq].first_pos);
    return rows;
}

// The positions that the rows of a sequence see, in splits of a multiple of GRAIN positions. GRAIN as in
// src/ops/attention.rs; it is a multiple of all KEYS.
constexpr u32 GRAIN = 256;
struct Splits {
    u32 start;
    u32 len;
    u32 n_used;

    static DEV_MEMBER Splits of(const PrefillParams& p, const SeqRows& rows) {
        u32 start = p.scores.first_seen(rows.first_pos) & ~(GRAIN - 1);
        u32 n = rows.first_pos + rows.n_rows - start;
        u32 len = div_up(div_up(n, p.n_splits), GRAIN) * GRAIN;
        return {start, len, div_up(n, len)};
    }
    DEV_MEMBER u32 begin(u32 split) const { return start + split * len; }
};

using mma::ELEMENTS;
using Tile = mma::F16;

// Which queries a lane has in an accumulator of scores or outputs, and which lanes share a query.
#if defined(GPU_NVIDIA) || defined(MMA_DOT)
constexpr u32 N_QUERIES = mma::ROWS, SAME_FROM = 1, SAME_TO = WARP_SIZE / (16 / mma::ROWS);
DEV u32 query_of(u32 i) { return mma::lane_row(i); }
DEV constexpr u32 query_index(u32 e) { return mma::row_index(e); }
DEV u32 other_of(u32 e) { return mma::col(e); }
using QueryOperand = Tile::A;
using KeyOperand = Tile::B;
DEV QueryOperand load_query(const u8* p, u32 pitch) { return Tile::load_a(p, pitch); }
DEV KeyOperand load_key(const u8* p, u32 pitch) { return Tile::load_b(p, pitch); }
DEV void mac(Tile::Acc& c, const QueryOperand& of_query, const KeyOperand& other) { Tile::mac(c, of_query, other); }
#else
constexpr u32 N_QUERIES = 1, SAME_FROM = 16, SAME_TO = WARP_SIZE;
static_assert(mma::COLS == 1, "a lane has one column");
DEV u32 query_of(u32) { return mma::lane_col(0); }
DEV constexpr u32 query_index(u32) { return 0; }
DEV u32 other_of(u32 e) { return mma::row(e); }
using QueryOperand = Tile::B;
using KeyOperand = Tile::A;
DEV QueryOperand load_query(const u8* p, u32 pitch) { return Tile::load_b(p, pitch); }
DEV KeyOperand load_key(const u8* p, u32 pitch) { return Tile::load_a(p, pitch); }
DEV void mac(Tile::Acc& c, const QueryOperand& of_query, const KeyOperand& other) { Tile::mac(c, other, of_query); }
#endif

// With dot product instructions a lane holds whole rows of an operand: one part of a query or weight at a time.
#if defined(MMA_DOT)
constexpr u32 PARTS_AT_ONCE = 1, LONG_BLOCK = 16;
#else
constexpr u32 PARTS_AT_ONCE = 2, LONG_BLOCK = 32;
#endif

// Prevents loads from being scheduled before this point, where registers are scarce.
template <bool SHORT> DEV void hold_loads() {
#if defined(GPU_AMD)
    if constexpr (SHORT) __builtin_amdgcn_sched_barrier(0);
#endif
}

// Weights [query, position] of a tile as an operand. `memory` belongs to the wave: WEIGHT_BYTES.
#if defined(MMA_DOT)
constexpr u32 WEIGHT_PITCH = 48, WEIGHT_BYTES = 16 * WEIGHT_PITCH;
DEV QueryOperand weight_operand(const float* p, u8* memory) {
    wave_barrier(memory, WEIGHT_BYTES);
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) *(u16*)(memory + mma::row(e) * WEIGHT_PITCH + mma::col(e) * 2) = f2h(p[e]);
    wave_barrier(memory, WEIGHT_BYTES);
    return Tile::load_a(memory, WEIGHT_PITCH);
}
#else
constexpr u32 WEIGHT_BYTES = 0;
DEV QueryOperand weight_operand(const float* p, u8*) {
    QueryOperand w;
#if defined(GPU_GFX11)
    // A lane has either the even or the odd positions and needs both.
    bool odd = lane() >= 16;
#pragma unroll
    for (u32 i = 0; i < ELEMENTS / 2; i++) {
        u32 mine = pack_halves(p[2 * i], p[2 * i + 1]), other = lane_xor<16>(mine);
        u32 evens = odd ? other : mine, odds = odd ? mine : other;
        w.v[2 * i] = (evens & 0xffff) | odds << 16;
        w.v[2 * i + 1] = evens >> 16 | (odds & 0xffff0000);
    }
#else
#pragma unroll
    for (u32 i = 0; i < ELEMENTS / 2; i++) w.v[i] = pack_halves(p[2 * i], p[2 * i + 1]);
#endif
    return w;
}
#endif

using Piece = kv::Piece<Kv>;

template <u32 DIM, u32 WAVES, u32 KEYS> struct Prefill {
    static constexpr u32 THREADS = WAVES * WARP_SIZE;
    static constexpr u32 QUERIES = WAVES * 16;
    static constexpr u32 PITCH = DIM * 2 + 16;
    static constexpr u32 STEPS = DIM / 16;
    static constexpr u32 TILES = KEYS / 16;
    // Pieces of 8 values per row, per block of keys, and per thread.
    static constexpr u32 PIECES = DIM / 8;
    static constexpr u32 N_PIECES = KEYS * PIECES;
    static constexpr u32 LOADS = (N_PIECES + THREADS - 1) / THREADS;
#if defined(GPU_NVIDIA)
    static constexpr bool QUERIES_IN_REGISTERS = DIM <= 128;
#else
    static constexpr bool QUERIES_IN_REGISTERS = false;
#endif
    static constexpr u32 QUERY_BYTES = 2 * QUERIES * PITCH;
    static constexpr u32 KEPT_BYTES = QUERIES_IN_REGISTERS ? 0 : QUERY_BYTES;
    static constexpr u32 KEY_BYTES = KEYS * PITCH;
    static constexpr bool ONE_PLACE = KEPT_BYTES + 2 * KEY_BYTES + WAVES * WEIGHT_BYTES > 48 * 1024;
    static constexpr u32 LOOP_BYTES = KEPT_BYTES + (ONE_PLACE ? 1 : 2) * KEY_BYTES + WAVES * WEIGHT_BYTES;
    static constexpr u32 BYTES = LOOP_BYTES > QUERY_BYTES ? LOOP_BYTES : QUERY_BYTES;
    static constexpr bool SHORT = DIM > 128 || PARTS_AT_ONCE == 1;
    static_assert(BYTES <= 48 * 1024, "memory of a block");

    const PrefillParams& p;
    SeqRows rows;
    u32 seq, kv_head, head, n_heads, first_row, n_rows;
    // The position of the first row of the tile, and the first and last position of the split that a row sees.
    u32 first_pos, last_key, first_key;
    // Which of how many splits.
    u32 split, n_used;
    u8* memory;

    static DEV_MEMBER void run(const PrefillParams& p) {
        SHARED(u8, memory, BYTES);
        u32 seq = bid_z() / p.n_splits, split = bid_z() % p.n_splits;
        SeqRows rows = rows_of(p, seq);
        u32 n_tiles = div_up(rows.n_rows, p.tile_rows);
        if (bid_x() >= n_tiles) return;
        // The last tiles have the most positions and start first.
        u32 first_row = (n_tiles - 1 - bid_x()) * p.tile_rows;
        u32 n_rows = min_of(p.tile_rows, rows.n_rows - first_row);
        u32 group = p.n_heads / p.cache.n_kv_heads, parts = div_up(group, p.tile_heads);
        u32 kv_head = bid_y() / parts, in_group = bid_y() % parts * p.tile_heads;
        u32 first_pos = rows.first_pos + first_row;
        Splits splits = Splits::of(p, rows);
        if (split >= splits.n_used) return;
        u32 first_key = max_of(p.scores.first_seen(first_pos), splits.begin(split));
        u32 last_key = min_of(p.scores.last_seen(first_pos + n_rows - 1, rows.first_pos + rows.n_rows - 1),
                              splits.begin(split + 1) - 1);
        if (first_key > last_key) return;
        Prefill tile{p,
                     rows,
                     seq,
                     kv_head,
                     kv_head * group + in_group,
                     min_of(p.tile_heads, group - in_group),
                     first_row,
                     n_rows,
                     first_pos,
                     last_key,
                     first_key,
                     split,
                     splits.n_used,
                     memory};
        tile.attend();
    }

    // Query i of the tile: its row in the tile, its head, and whether it exists.
    DEV_MEMBER u32 row_of(u32 i) const { return i / p.tile_heads; }
    DEV_MEMBER u32 head_of(u32 i) const { return i % p.tile_heads; }
    DEV_MEMBER bool is_there(u32 i) const { return row_of(i) < n_rows && head_of(i) < n_heads; }
    // Index of a query among the rows and heads of the step.
    DEV_MEMBER u64 at(u32 i) const {
        return (u64)(rows.first_row + first_row + row_of(i)) * p.n_heads + head + head_of(i);
    }
    DEV_MEMBER u32 last_seen(u32 pos) const {
        return p.scores.last_seen(pos, rows.first_pos + rows.n_rows - 1);
    }
    DEV_MEMBER u32 position_of(u32 i) const { return first_pos + min_of(row_of(i), n_rows - 1); }

    DEV_MEMBER void stage_queries() const {
        for (u32 i = tid(); i < QUERIES * PIECES; i += THREADS) {
            u32 query = i / PIECES, piece = i % PIECES;
            float factor = p.scores.query_factor(position_of(query));
            u32x4 high = {{0, 0, 0, 0}}, low = {{0, 0, 0, 0}};
            if (is_there(query)) {
                const float* from = p.q + at(query) * DIM + piece * 8;
                f32x4 x[2] = {*(const f32x4*)from, *(const f32x4*)(from + 4)};
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    float a = x[j / 2][j % 2 * 2] * factor, b = x[j / 2][j % 2 * 2 + 1] * factor;
                    high.v[j] = pack_halves(a, b);
                    low.v[j] = pack_halves(a - h2f((u16)high.v[j]), b - h2f((u16)(high.v[j] >> 16)));
                }
            }
            u8* to = memory + query * PITCH + piece * 16;
            store16(to, low);
            store16(to + QUERIES * PITCH, high);
        }
    }

    // The queries of this wave: the rounding errors (part 0) or the rounded values (part 1).
    DEV_MEMBER const u8* query_part(u32 part) const { return memory + (part * QUERIES + wave() * 16) * PITCH; }

    // Loads keys or values from position `from` on into registers. Positions that no row sees are clamped to others.
    DEV_MEMBER void load(const kv::Planes& planes, u32 from, Piece* to) const {
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            u32 piece = min_of(tid() + i * THREADS, N_PIECES - 1);
            u32 pos = min_of(max_of(from + piece / PIECES, first_key), last_key);
            u64 slot = p.cache.slot(p.cache.block(seq, pos), kv_head, pos);
            to[i] = Piece::load(planes, slot, DIM, piece % PIECES * 8);
        }
    }
    DEV_MEMBER void store(u8* place, const Piece* from) const {
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            u32 piece = tid() + i * THREADS;
            if (N_PIECES % THREADS == 0 || piece < N_PIECES)
                store16(place + piece / PIECES * PITCH + piece % PIECES * 16, from[i].halves());
        }
    }

    DEV_MEMBER void attend() {
        stage_queries();
        barrier();
        // The rounding errors, then the rounded values.
        QueryOperand kept[2][QUERIES_IN_REGISTERS ? STEPS : 1];
        if constexpr (QUERIES_IN_REGISTERS) {
#pragma unroll
            for (u32 i = 0; i < STEPS; i++)
#pragma unroll
                for (u32 part = 0; part < 2; part++) kept[part][i] = load_query(query_part(part) + i * 32, PITCH);
            barrier();
        }
        u8* keys = memory + KEPT_BYTES;
        u8* values = ONE_PLACE ? keys : keys + KEY_BYTES;
        u8* weights = memory + LOOP_BYTES - (WAVES - wave()) * WEIGHT_BYTES;

        u32 mine[N_QUERIES];
        float greatest[N_QUERIES], sum[N_QUERIES];
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) {
            mine[i] = position_of(wave() * 16 + query_of(i));
            greatest[i] = UNSEEN;
            sum[i] = 0.0f;
        }
        Tile::Acc out[STEPS];
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) out[i] = Tile::zero();
        u32 wave_first = uniform(position_of(wave() * 16)), wave_last = uniform(position_of(wave() * 16 + 15));

        Piece coming[LOADS];
        u32 begin = first_key / KEYS * KEYS;
        load(p.cache.k, begin, coming);
        for (u32 at = begin; at <= last_key; at += KEYS) {
            if constexpr (ONE_PLACE) barrier();
            store(keys, coming);
            barrier();
            load(p.cache.v, at, coming);
            bool seen = uniform(at <= last_seen(wave_last) && at + KEYS > p.scores.first_seen(wave_first)) != 0;
            bool whole =
                uniform(at + KEYS - 1 <= last_seen(wave_first) && at >= p.scores.first_seen(wave_last)) != 0;
            Tile::Acc s[TILES];
            if (seen) {
#pragma unroll
                for (u32 n = 0; n < TILES; n++) s[n] = Tile::zero();
#pragma unroll
                for (u32 i = 0; i < STEPS; i++) {
                    KeyOperand key[TILES];
#pragma unroll
                    for (u32 n = 0; n < TILES; n++) key[n] = load_key(keys + n * 16 * PITCH + i * 32, PITCH);
#pragma unroll
                    for (u32 part = 0; part < 2; part++) {
                        QueryOperand query;
                        if constexpr (QUERIES_IN_REGISTERS) query = kept[part][i];
                        else query = load_query(query_part(part) + i * 32, PITCH);
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
                for (u32 i = 0; i < STEPS; i++)
#pragma unroll
                    for (u32 e = 0; e < ELEMENTS; e++) out[i].v[e] *= rescale[query_index(e)];
            }
            if constexpr (ONE_PLACE) barrier();
            store(values, coming);
            barrier();
            if (at + KEYS <= last_key) load(p.cache.k, at + KEYS, coming);
            if (seen) add_values(out, s, values, weights);
        }
        write(out, greatest, sum);
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
                for (u32 i = 0; i < STEPS; i++) {
                    auto value = Tile::load_b_transposed(values + n * 16 * PITCH + i * 32, PITCH);
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
            of_head[i] = p.scores.bias_of(head + min_of(head_of(wave() * 16 + query_of(i)), n_heads - 1));
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
                if (key > last_seen(pos) || key < p.scores.first_seen(pos)) s[n].v[e] = UNSEEN;
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
        Parts parts{p.partial, (u64)p.n_rows * p.n_heads * p.n_splits, DIM};
        float factor[N_QUERIES];
        u64 to[N_QUERIES];
        bool there[N_QUERIES];
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) {
            u32 query = wave() * 16 + query_of(i);
            float weights = reduce_lanes<Sum, SAME_FROM, SAME_TO>(sum[i]);
            there[i] = is_there(query);
            to[i] = at(query);
            if (n_used == 1) {
                float sink = p.scores.sink_weight(head + min_of(head_of(query), n_heads - 1), greatest[i]);
                factor[i] = 1.0f / (weights + sink);
            } else {
                factor[i] = 1.0f;
                to[i] = to[i] * p.n_splits + split;
                // One of the lanes that share the query.
                if (there[i] && other_of(0) == 0) parts.write_stats(to[i], greatest[i], weights);
            }
        }
        float* all = n_used == 1 ? p.out : p.partial;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) {
                u32 of = query_index(e);
                if (there[of]) all[to[of] * DIM + i * 16 + other_of(e)] = out[i].v[e] * factor[of];
            }
    }
};

#define PREFILL(DIM, WAVES, KEYS)                                                                                      \
    KERNEL(prefill_##DIM, PrefillParams, (WAVES * WARP_SIZE)) { Prefill<DIM, WAVES, KEYS>::run(p); }
EXPORT_U32(wave_size, WARP_SIZE)

// Combines the splits that a row sees; one block per head and row.
KERNEL(combine_rows, PrefillParams, THREADS) {
    u32 head = bid_x(), row = bid_y(), seq = uniform(p.seq_of_row[row]);
    if (seq == NO_ROW) return;
    SeqRows rows = rows_of(p, seq);
    Splits splits = Splits::of(p, rows);
    if (splits.n_used == 1) return;
    u32 pos = rows.first_pos + row - rows.first_row;
    u32 first = (p.scores.first_seen(pos) - splits.start) / splits.len;
    u32 last = (p.scores.last_seen(pos, rows.first_pos + rows.n_rows - 1) - splits.start) / splits.len;
    u64 of_row = (u64)row * p.n_heads + head;
    Parts parts{p.partial, (u64)p.n_rows * p.n_heads * p.n_splits, p.dim};
    parts.combine(p.scores, head, of_row * p.n_splits + first, last - first + 1, p.out + of_row * p.dim);
}

// WAVES as in src/ops/attention.rs.
// The smallest BERT models; only for rows that see positions after their own.
PREFILL(32, 4, LONG_BLOCK)
PREFILL(64, 4, LONG_BLOCK)
PREFILL(80, 4, LONG_BLOCK)
PREFILL(96, 4, LONG_BLOCK)
PREFILL(128, 4, LONG_BLOCK)
// With dot product instructions a lane's part of 256 values does not fit into registers.
#if defined(MMA_DOT)
EXPORT_U32(widest, 128)
#else
EXPORT_U32(widest, 256)
PREFILL(256, 2, 16)
#endif
