// Shared by both implementations of attention of prompts (kv/attention_prefill.hip): the job of a block, and which part
// of a tile's product a lane has.
#pragma once
#include "operands.h"
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
    u32 v_dim;
    u32 tile_rows;
    u32 tile_heads;
    u32 n_splits;
    // Split lengths are multiples of this power of two, which is a multiple of all KEYS.
    u32 grain;
    // Values of an output that hadamard.h rotates together; 1 for none.
    u32 v_hadamard;
    FIELDS(q, out, partial, seqs, seq_of_row, cache, scores, n_rows, n_heads, v_dim, tile_rows, tile_heads, n_splits,
           grain, v_hadamard)
};

// The rows of a sequence in the step.
DEV SeqRows rows_of(const PrefillParams& p, u32 seq) {
    SeqRows rows;
    rows.first_row = uniform(p.seqs[seq].first_row);
    rows.n_rows = uniform(p.seqs[seq].n_rows);
    rows.first_pos = uniform(p.seqs[seq].first_pos);
    return rows;
}

// The positions that the rows of a sequence see, in splits.
struct Splits {
    u32 start;
    u32 len;
    u32 n_used;

    static DEV_MEMBER Splits of(const PrefillParams& p, const SeqRows& rows) {
        u32 start = p.scores.first_seen(rows.first_pos) & ~(p.grain - 1);
        u32 n = rows.first_pos + rows.n_rows - start;
        u32 len = (div_up(n, p.n_splits) + p.grain - 1) & ~(p.grain - 1);
        return {start, len, div_up(n, len)};
    }
    DEV_MEMBER u32 begin(u32 split) const { return start + split * len; }
};

// The job of a block: a tile of queries, over the positions of one split. The queries are `n_rows` consecutive rows
// with `n_heads` heads of a group each, out of at most p.tile_rows and p.tile_heads.
struct PrefillJob {
    const PrefillParams& p;
    SeqRows rows;
    u32 seq;
    u32 kv_head;
    // The first head; the first row of the tile among those of the sequence, and its position.
    u32 head;
    u32 n_heads;
    u32 first_row;
    u32 n_rows;
    u32 first_pos;
    // The first and last position of the split that a row sees. No row sees any if the first is after the last.
    u32 first_key;
    u32 last_key;
    // Which of how many splits.
    u32 split;
    u32 n_used;

    static DEV_MEMBER PrefillJob of_block(const PrefillParams& p) {
        u32 seq = bid_z() / p.n_splits, split = bid_z() % p.n_splits;
        SeqRows rows = rows_of(p, seq);
        u32 n_tiles = div_up(rows.n_rows, p.tile_rows);
        PrefillJob none{p, rows, seq, 0, 0, 0, 0, 0, 0, 1, 0, split, 0};
        if (bid_y() >= n_tiles) return none;
        // The last tiles of all heads have the most positions and start first.
        u32 first_row = (n_tiles - 1 - bid_y()) * p.tile_rows;
        u32 n_rows = min_of(p.tile_rows, rows.n_rows - first_row);
        u32 group = p.n_heads / p.cache.n_kv_heads, parts = div_up(group, p.tile_heads);
        u32 kv_head = bid_x() / parts, in_group = bid_x() % parts * p.tile_heads;
        u32 first_pos = rows.first_pos + first_row;
        Splits splits = Splits::of(p, rows);
        if (split >= splits.n_used) return none;
        u32 first_key = max_of(p.scores.first_seen(first_pos), splits.begin(split));
        u32 last_key = min_of(p.scores.last_seen(first_pos + n_rows - 1, rows.first_pos + rows.n_rows - 1),
                              splits.begin(split + 1) - 1);
        return {p,
                rows,
                seq,
                kv_head,
                kv_head * group + in_group,
                min_of(p.tile_heads, group - in_group),
                first_row,
                n_rows,
                first_pos,
                first_key,
                last_key,
                split,
                splits.n_used};
    }

    // Query i of the tile: its row in the tile, its head, and whether it exists.
    DEV_MEMBER u32 row_of(u32 i) const { return i / p.tile_heads; }
    DEV_MEMBER u32 head_of(u32 i) const { return i % p.tile_heads; }
    DEV_MEMBER bool is_there(u32 i) const { return row_of(i) < n_rows && head_of(i) < n_heads; }
    // The head of query i among all heads; of a query that does not exist, another.
    DEV_MEMBER u32 any_head_of(u32 i) const { return head + min_of(head_of(i), n_heads - 1); }
    // Index of a query among the rows and heads of the step.
    DEV_MEMBER u64 at(u32 i) const {
        return (u64)(rows.first_row + first_row + row_of(i)) * p.n_heads + head + head_of(i);
    }
    DEV_MEMBER u32 last_seen(u32 pos) const {
        return p.scores.last_seen(pos, rows.first_pos + rows.n_rows - 1);
    }
    DEV_MEMBER u32 position_of(u32 i) const { return first_pos + min_of(row_of(i), n_rows - 1); }

    // Rotates the outputs of the block's QUERIES back, if they are not parts of outputs, which are rotated when they are
    // combined.
    template <u32 THREADS, u32 QUERIES, u32 V_DIM> DEV_MEMBER void rotate_outputs() const {
        if constexpr (ValueType::ROTATES) {
            if (n_used != 1 || p.v_hadamard == 1) return;
            auto row = [&](u32 i) { return is_there(i) ? p.out + at(i) * V_DIM : nullptr; };
            rotate_rows<THREADS>(QUERIES, V_DIM, p.v_hadamard, row);
        }
    }

    // Writes N queries of DIM values from query `first` on to shared memory, 2 * DIM + 16 bytes apart: their rounding
    // errors to `low_to`, the rounded values to `high_to`. By THREADS threads. LEN values of a query are rotated together.
    template <u32 DIM, u32 N, u32 THREADS, u32 LEN> DEV_MEMBER void stage_queries(u32 first, u8* low_to, u8* high_to) const {
        constexpr u32 PIECES = DIM / 8, PITCH = DIM * 2 + 16;
        static_assert(LEN == 1 || N * PIECES % WARP_SIZE == 0, "waves are whole where lanes rotate values together");
        // A bound that is the same for the wave, so that no lane is off.
        for (u32 begin = uniform(wave() * WARP_SIZE); begin < N * PIECES; begin += THREADS) {
            const u32 i = begin + lane();
            if (LEN == 1 && i >= N * PIECES) continue;
            u32 query = i / PIECES, piece = i % PIECES, of_tile = first + query;
            float factor = p.scores.query_factor(position_of(of_tile));
            float x[8] = {};
            if (is_there(of_tile)) {
                const float* from = p.q + at(of_tile) * DIM + piece * 8;
                f32x4 first = *(const f32x4*)from, second = *(const f32x4*)(from + 4);
#pragma unroll
                for (u32 j = 0; j < 4; j++) x[j] = first[j] * factor, x[j + 4] = second[j] * factor;
            }
            hadamard<LEN>(x, LEN);
            u32x4 high, low;
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                float a = x[j * 2], b = x[j * 2 + 1];
                high.v[j] = pack_halves(a, b);
                low.v[j] = pack_halves(a - h2f((u16)high.v[j]), b - h2f((u16)(high.v[j] >> 16)));
            }
            store16(low_to + query * PITCH + piece * 16, low);
            store16(high_to + query * PITCH + piece * 16, high);
        }
    }
};

using KeyPiece = kv::Piece<KeyType>;
using ValuePiece = kv::Piece<ValueType>;
