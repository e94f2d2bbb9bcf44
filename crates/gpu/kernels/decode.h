// Shared by both implementations of decode attention (kv/attention_decode.hip): the job of a block, and how the sums of
// its waves are merged.
#pragma once
#include "early.h"
#include "parts.h"

// Split lengths are multiples of this many positions, as in src/ops/attention/scratch.rs.
constexpr u32 GRAIN = 64;

struct DecodeParams {
    const float* q;
    float* out;
    float* partial;
    const u32* positions;
    const u32* seq_of_row;
    const SeqRows* seqs;
    KvCache cache;
    Scores scores;
    u32 n_rows;
    u32 n_heads;
    u32 n_splits;
    u32 k_dim;
    u32 v_dim;
    // Width of the rows of the cache that the values are in.
    u32 v_row;
    FIELDS(q, out, partial, positions, seq_of_row, seqs, cache, scores, n_rows, n_heads, n_splits, k_dim, v_dim, v_row)

    // Values that hadamard.h rotates together, where the type rotates heads: values in the keys apart from their rest.
    DEV_MEMBER u32 k_hadamard() const { return hadamard_len(v_row == v_dim ? k_dim : k_dim | v_dim); }
    DEV_MEMBER u32 v_hadamard() const { return hadamard_len(v_dim | v_row); }
};

// The positions of a row and their splits.
struct Span {
    u32 first;
    u32 last;
    // A multiple of 16, so that each group of 16 positions from here on is in one page.
    u32 start;
    u32 split_len;
    u32 n_used;
};

DEV Span span_of(const DecodeParams& p, u32 last) {
    Span s;
    s.last = last;
    s.first = p.scores.first_seen(s.last);
    s.start = s.first & ~15u;
    u32 n = s.last + 1 - s.start;
    s.split_len = div_up(div_up(n, p.n_splits), GRAIN) * GRAIN;
    s.n_used = div_up(n, s.split_len);
    return s;
}

// The job of a block: `n_heads` query heads from `head` on, which share a KV head, over the positions of one split.
struct DecodeJob {
    Span span;
    u32 row;
    u32 seq;
    u32 split;
    u32 kv_head;
    u32 head;
    u32 n_heads;
    // Range of the split.
    u32 begin;
    u32 end;

    // Returns false if there is nothing to do. May be called before begin().
    template <u32 HEADS> static DEV_MEMBER bool of_block(const DecodeParams& p, DecodeJob& job) {
        job.row = bid_z();
        job.seq = uniform(early_word(p.seq_of_row + job.row));
        job.span = span_of(p, uniform(early_word(p.positions + job.row)));
        job.split = bid_y();
        if (job.seq == NO_ROW) return false;
        if (job.split >= job.span.n_used) return false;
        u32 group = p.n_heads / p.cache.n_kv_heads;
        u32 parts = div_up(group, HEADS);
        job.kv_head = bid_x() / parts;
        u32 in_group = bid_x() % parts * HEADS;
        job.head = job.kv_head * group + in_group;
        job.n_heads = min_of(HEADS, group - in_group);
        job.begin = job.span.start + job.split * job.span.split_len;
        job.end = min_of(job.begin + job.span.split_len, job.span.last + 1);
        return true;
    }

    DEV_MEMBER bool sees(u32 pos) const { return pos >= span.first && pos < end; }
    // Whether all n positions from `pos` on are seen.
    DEV_MEMBER bool sees_all(u32 pos, u32 n) const { return pos >= span.first && pos + n <= end; }
    // Query head h of the block, clamped to the last.
    DEV_MEMBER const float* query(const DecodeParams& p, u32 h, u32 dim) const {
        return p.q + ((u64)row * p.n_heads + head + min_of(h, n_heads - 1)) * dim;
    }
};

// Rotates the outputs of the block back, if they are not parts of outputs, which are rotated when they are combined.
DEV void rotate_outputs(const DecodeParams& p, const DecodeJob& job) {
    if constexpr (ValueType::ROTATES) {
        if (job.span.n_used != 1 || p.v_hadamard() == 1) return;
        float* out = p.out + ((u64)job.row * p.n_heads + job.head) * p.v_dim;
        rotate_rows<THREADS>(job.n_heads, p.v_dim, p.v_hadamard(), [&](u32 i) { return out + i * p.v_dim; });
    }
}

// Merges the results of the waves in wave order and writes the result of the block. sums [N_WAVES, HEADS, DIM]; stats:
// for each [N_WAVES, HEADS] the exponent that weights are relative to, and the sum of weights.
template <u32 DIM, u32 HEADS>
DEV void merge_waves(const DecodeParams& p, const DecodeJob& job, const float* sums, const float* stats) {
    shared_barrier();
    for (u32 i = tid(); i < job.n_heads * DIM; i += THREADS) {
        u32 h = i / DIM;
        float max = UNSEEN, weights = 0.0f, total = 0.0f;
#pragma unroll
        for (u32 w = 0; w < N_WAVES; w++) max = max_of(max, stats[(w * HEADS + h) * 2]);
#pragma unroll
        for (u32 w = 0; w < N_WAVES; w++) {
            float r = exp2_fast(stats[(w * HEADS + h) * 2] - max);
            weights = fma(stats[(w * HEADS + h) * 2 + 1], r, weights);
            total = fma(sums[w * HEADS * DIM + i], r, total);
        }
        u64 of_row = (u64)job.row * p.n_heads + job.head + h;
        if (job.span.n_used == 1) {
            p.out[of_row * DIM + i % DIM] = total / (weights + p.scores.sink_weight(job.head + h, max));
            continue;
        }
        u64 at = of_row * p.n_splits + job.split;
        p.partial[at * DIM + i % DIM] = total;
        Parts parts{p.partial, (u64)p.n_rows * p.n_heads * p.n_splits, DIM};
        if (i % DIM == 0) parts.write_stats(at, max, weights);
    }
    rotate_outputs(p, job);
}
