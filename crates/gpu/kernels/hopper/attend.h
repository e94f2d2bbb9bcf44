// Shared by both kinds of attention on Hopper's matrix units: how queries, keys and values come to shared memory, and how
// the scores of a warpgroup become weights.
#pragma once
#include "hopper/operands.h"
#include "prefill.h"

constexpr u32 GROUPS = 2, ATTEND_THREADS = GROUPS * wgmma::THREADS, ATTEND_WAVES = ATTEND_THREADS / WARP_SIZE;
// Positions of a tile: eight for each wave to copy.
constexpr u32 KEYS = 8 * ATTEND_WAVES;

DEV u32 group() { return uniform(wave() / 4); }
// The row of 64 of a thread's elements 2 i and 2 i + 1 in 4; and the column of an element.
DEV u32 row_of(u32 i) { return wave() % 4 * 16 + lane() / 4 + 8 * i; }
DEV constexpr u32 index_of(u32 e) { return e / 2 % 2; }
DEV u32 column_of(u32 e) { return e / 4 * 8 + lane() % 4 * 2 + e % 2; }
// The reduction over the four threads that share a row.
template <typename R> DEV float of_row(float v) { return reduce_lanes<R, 1, 4>(v); }

// Begins to copy 16 bytes.
DEV void copy_later(u8* to, const void* from) {
#if defined(GPU_NV)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(wgmma::shared_address(to)), "l"(from) : "memory");
#else
    store16(to, load16(from));
#endif
}
// Waits for the copies of this thread.
DEV void wait_for_copies() {
#if defined(GPU_NV)
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Writes the queries, times their factors, as f16. Those that do not exist are zero.
template <u32 N, u32 DIM> DEV void stage_queries(const PrefillJob& job, const wgmma::Rows<N, DIM>& to) {
    for (u32 i = tid(); i < N * DIM / 8; i += ATTEND_THREADS) {
        const u32 query = i / (DIM / 8), at = i % (DIM / 8) * 8;
        u32x4 halves = {};
        if (job.is_there(query)) {
            const float factor = job.p.scores.query_factor(job.position_of(query));
            const float* from = job.p.q + job.at(query) * DIM + at;
            const f32x4 x[2] = {*(const f32x4*)from, *(const f32x4*)(from + 4)};
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                halves.v[j] = pack_halves(x[j / 2][j % 2 * 2] * factor, x[j / 2][j % 2 * 2 + 1] * factor);
        }
        store16(to.at(query, at), halves);
    }
}

// Begins to copy the rows of KEYS positions from `from` on. Positions that no row sees are clamped to others. Each wave
// copies eight rows, and eight lanes neighbours of a row.
template <u32 DIM>
DEV void copy_rows(const PrefillJob& job, const kv::Planes& planes, u32 from, const wgmma::Rows<KEYS, DIM>& to) {
    const KvCache& cache = job.p.cache;
    const u32 of_lane = lane() % 8 * 8;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 row = wave() * 8 + i * 4 + lane() / 8, pos = min_of(max_of(from + row, job.first_key), job.last_key);
        const u64 slot = cache.slot(cache.block(job.seq, pos), job.kv_head, pos);
        const u16* codes = (const u16*)planes.codes + slot * DIM + of_lane;
        u8* place = to.at(row, of_lane);
#pragma unroll
        for (u32 j = 0; j < DIM / wgmma::PANEL; j++) copy_later(place + j * to.PANEL_BYTES, codes + j * wgmma::PANEL);
    }
}

// A thread's two rows of scores of N positions from `at` on: N / 2 elements.
template <u32 N> struct ScoreRows {
    const PrefillJob& job;
    // The positions of the rows.
    const u32 (&pos)[2];

    // Makes scores exponents, and hides positions that a row does not see.
    DEV_MEMBER void finish(float (&s)[N / 2], u32 at, bool is_whole, const u32 (&query)[2]) const {
        const Scores& scores = job.p.scores;
        if (scores.soft_cap > 0.0f) {
#pragma unroll
            for (u32 e = 0; e < N / 2; e++) s[e] = scores.exponent(s[e]);
        }
        if (scores.alibi != 0.0f) {
            float bias[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) bias[i] = scores.bias_of(job.any_head_of(query[i]));
#pragma unroll
            for (u32 e = 0; e < N / 2; e++)
                s[e] = fma(bias[index_of(e)], Scores::distance(pos[index_of(e)], at + column_of(e)), s[e]);
        }
        if (!is_whole) {
            u32 first[2], last[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) first[i] = scores.first_seen(pos[i]), last[i] = job.last_seen(pos[i]);
#pragma unroll
            for (u32 e = 0; e < N / 2; e++) {
                const u32 key = at + column_of(e), i = index_of(e);
                if (key > last[i] || key < first[i]) s[e] = UNSEEN;
            }
        }
    }
    static DEV_MEMBER void greatest_of(const float (&s)[N / 2], float (&max)[2]) {
#pragma unroll
        for (u32 e = 0; e < N / 2; e++) max[index_of(e)] = max_of(max[index_of(e)], s[e]);
    }
    // Scores become weights relative to `max`.
    static DEV_MEMBER void to_weights(float (&s)[N / 2], const float (&max)[2], float (&sum)[2]) {
#pragma unroll
        for (u32 e = 0; e < N / 2; e++) {
            s[e] = exp2_fast(s[e] - max[index_of(e)]);
            sum[index_of(e)] += s[e];
        }
    }
};

// Multiplies a thread's outputs by the factors of its rows.
template <u32 M> DEV void scale(float (&out)[M], const float (&factor)[2]) {
#pragma unroll
    for (u32 e = 0; e < M; e++) out[e] *= factor[index_of(e)];
}

// Writes a thread's outputs, columns from `first` on of V_DIM, of its rows: results, or parts of them.
template <u32 V_DIM, u32 M>
DEV void write_rows(const PrefillJob& job, const float (&out)[M], u32 first, const u32 (&query)[2]) {
    const PrefillParams& p = job.p;
    float* all = job.n_used == 1 ? p.out : p.partial;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        if (!job.is_there(query[i])) continue;
        u64 row = job.at(query[i]);
        if (job.n_used != 1) row = row * p.n_splits + job.split;
        float* to = all + row * V_DIM + first;
#pragma unroll
        for (u32 e = 2 * i; e < M; e += 4) store8(to + column_of(e), {{bits<u32>(out[e]), bits<u32>(out[e + 1])}});
    }
}

// Returns the last factor on a query's outputs. If they are a part of the result, one thread writes what it is relative
// to.
template <u32 V_DIM> DEV float finish_query(const PrefillJob& job, u32 query, float greatest, float weights, bool writes) {
    const PrefillParams& p = job.p;
    if (job.n_used == 1) return 1.0f / (weights + p.scores.sink_weight(job.any_head_of(query), greatest));
    const Parts parts{p.partial, (u64)p.n_rows * p.n_heads * p.n_splits, V_DIM};
    if (writes && job.is_there(query))
        parts.write_stats(job.at(query) * p.n_splits + job.split, greatest, weights);
    return 1.0f;
}

template <typename Tile> DEV void attend(const PrefillParams& p, u8* memory) {
    const PrefillJob job = PrefillJob::of_block(p);
    if (job.first_key > job.last_key) return;
    Tile{job, wgmma::aligned(memory)}.run();
}
