// Attention of latent layers (MLA): all query heads share one wide key, whose first V_DIM values are the value.
//
// A block of two warpgroups has 64 queries and walks KEYS positions at a time. Each group computes the scores of half of
// the positions; weights go through shared memory, and each group multiplies all of them with its half of the columns of
// the values. The next keys are copied meanwhile.
//
// Shared memory: queries, 64 * 2 K_DIM bytes; two places of KEYS keys; [64, KEYS] weights; the greatest score of each
// query and group.
#pragma once
#include "hopper/attend.h"

template <u32 K_DIM, u32 V_DIM> struct AttendLatent {
    static constexpr u32 QUERIES = 64, THREADS = ATTEND_THREADS, BLOCKS = 1;
    using Queries = wgmma::Rows<QUERIES, K_DIM>;
    using Keys = wgmma::Rows<KEYS, K_DIM>;
    using Weights = wgmma::Rows<QUERIES, KEYS>;
    static constexpr u32 MY_KEYS = KEYS / GROUPS, MY_COLUMNS = V_DIM / GROUPS;
    static constexpr u32 WEIGHTS_AT = Queries::BYTES + 2 * Keys::BYTES, STATS_AT = WEIGHTS_AT + Weights::BYTES;
    static constexpr u32 BYTES = STATS_AT + GROUPS * QUERIES * 4;
    using OfScores = ScoreRows<MY_KEYS>;

    const PrefillJob& job;
    u8* memory;

    DEV_MEMBER Queries queries() const { return {memory}; }
    DEV_MEMBER Keys keys(u32 place) const { return {memory + Queries::BYTES + place * Keys::BYTES}; }
    DEV_MEMBER Weights weights() const { return {memory + WEIGHTS_AT}; }

    // Combines the numbers that each group has of the thread's rows.
    template <typename R> DEV_MEMBER void share(float (&v)[2]) const {
        float *stats = (float*)(memory + STATS_AT), *mine = stats + group() * QUERIES;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            v[i] = of_row<R>(v[i]);
            if (lane() % 4 == 0) mine[row_of(i)] = v[i];
        }
        barrier();
#pragma unroll
        for (u32 i = 0; i < 2; i++) v[i] = R::of(stats[row_of(i)], stats[QUERIES + row_of(i)]);
    }

    DEV_MEMBER void run() const {
        const Scores& scores = job.p.scores;
        const u32 begin = job.first_key / KEYS * KEYS;
        copy_rows(job, job.p.cache.k, begin, keys(0));
        stage_queries(job, queries());
        const u32 query[2] = {row_of(0), row_of(1)};
        const u32 pos[2] = {job.position_of(query[0]), job.position_of(query[1])};
        const u32 first = uniform(job.first_pos), last = uniform(job.first_pos + job.n_rows - 1);
        float greatest[2] = {UNSEEN, UNSEEN}, sum[2] = {}, out[MY_COLUMNS / 2] = {};
        u32 place = 0;
        for (u32 at = begin; at <= job.last_key; at += KEYS, place ^= 1) {
            wait_for_copies();
            wgmma::publish();
            barrier();
            if (at + KEYS <= job.last_key) copy_rows(job, job.p.cache.k, at + KEYS, keys(place ^ 1));
            const u32 my_keys = group() * MY_KEYS;
            float s[MY_KEYS / 2] = {};
            wgmma::begin();
#pragma unroll
            for (u32 k = 0; k < K_DIM; k += 16)
                wgmma::product(s, wgmma::along(queries(), 0, k), wgmma::along(keys(place), my_keys, k));
            wgmma::end();
            wgmma::wait<0>();
            const bool is_whole = at + KEYS - 1 <= job.last_seen(first) && at >= scores.first_seen(last);
            OfScores{job, pos}.finish(s, at + my_keys, is_whole, query);
            float max[2] = {greatest[0], greatest[1]}, factor[2];
            OfScores::greatest_of(s, max);
            share<Max>(max);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                factor[i] = exp2_fast(greatest[i] - max[i]);
                greatest[i] = max[i];
                sum[i] *= factor[i];
            }
            OfScores::to_weights(s, max, sum);
#pragma unroll
            for (u32 e = 0; e < MY_KEYS / 2; e += 2) {
                *(u32*)weights().at(row_of(index_of(e)), my_keys + column_of(e)) = pack_halves(s[e], s[e + 1]);
            }
            scale(out, factor);
            wgmma::publish();
            barrier();
            wgmma::begin();
#pragma unroll
            for (u32 k = 0; k < KEYS; k += 16)
                wgmma::product_transposed(out, wgmma::along(weights(), 0, k),
                                          wgmma::transposed(keys(place), k, group() * MY_COLUMNS));
            wgmma::end();
            wgmma::wait<0>();
        }
        barrier();
        share<Sum>(sum);
        float factor[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            factor[i] = finish_query<V_DIM>(job, query[i], greatest[i], sum[i], tid() < wgmma::THREADS && lane() % 4 == 0);
        scale(out, factor);
        write_rows<V_DIM>(job, out, group() * MY_COLUMNS, query);
    }
};
