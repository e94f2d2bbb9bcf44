// Attention where each warpgroup has 64 queries with all columns of the output: heads of up to 256 values.
//
// A block of two warpgroups has 128 queries and walks KEYS positions at a time. Scores stay in registers, where they
// become weights, the first operand of the product with the values. The next keys and values are copied meanwhile.
//
// Shared memory: queries, 128 * 2 K_DIM bytes, and two places of KEYS keys and values.
#pragma once
#include "hopper/attend.h"

template <u32 K_DIM, u32 V_DIM> struct AttendRows {
    static constexpr u32 QUERIES = 64 * GROUPS, THREADS = ATTEND_THREADS;
    using Queries = wgmma::Rows<QUERIES, K_DIM>;
    using Keys = wgmma::Rows<KEYS, K_DIM>;
    using Values = wgmma::Rows<KEYS, V_DIM>;
    static constexpr u32 PLACE = Keys::BYTES + Values::BYTES, BYTES = Queries::BYTES + 2 * PLACE;
    // Blocks that a processor runs at once.
    static constexpr u32 BLOCKS = BYTES <= 113 * 1024 ? 2 : 1;
    using OfScores = ScoreRows<KEYS>;

    const PrefillJob& job;
    u8* memory;

    DEV_MEMBER Queries queries() const { return {memory}; }
    DEV_MEMBER Keys keys(u32 place) const { return {memory + Queries::BYTES + place * PLACE}; }
    DEV_MEMBER Values values(u32 place) const { return {keys(place).memory + Keys::BYTES}; }

    DEV_MEMBER void copy(u32 at, u32 place) const {
        copy_rows(job, job.p.cache.k, at, keys(place));
        copy_rows(job, job.p.cache.v, at, values(place));
    }

    DEV_MEMBER void run() const {
        const Scores& scores = job.p.scores;
        const u32 begin = job.first_key / KEYS * KEYS, mine = group() * 64;
        copy(begin, 0);
        stage_queries(job, queries());
        const u32 query[2] = {mine + row_of(0), mine + row_of(1)};
        const u32 pos[2] = {job.position_of(query[0]), job.position_of(query[1])};
        const u32 first = uniform(job.position_of(mine)), last = uniform(job.position_of(mine + 63));
        const bool is_there = uniform(job.row_of(mine) < job.n_rows);
        float greatest[2] = {UNSEEN, UNSEEN}, sum[2] = {}, out[V_DIM / 2] = {};
        u32 place = 0;
        for (u32 at = begin; at <= job.last_key; at += KEYS, place ^= 1) {
            wait_for_copies();
            wgmma::publish();
            barrier();
            if (at + KEYS <= job.last_key) copy(at + KEYS, place ^ 1);
            if (!is_there || at > job.last_seen(last) || at + KEYS <= scores.first_seen(first)) continue;
            float s[KEYS / 2] = {};
            wgmma::begin();
#pragma unroll
            for (u32 k = 0; k < K_DIM; k += 16)
                wgmma::product(s, wgmma::along(queries(), mine, k), wgmma::along(keys(place), 0, k));
            wgmma::end();
            wgmma::wait<0>();
            const bool is_whole = at + KEYS - 1 <= job.last_seen(first) && at >= scores.first_seen(last);
            OfScores{job, pos}.finish(s, at, is_whole, query);
            float max[2] = {greatest[0], greatest[1]}, factor[2];
            OfScores::greatest_of(s, max);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                max[i] = of_row<Max>(max[i]);
                factor[i] = exp2_fast(greatest[i] - max[i]);
                greatest[i] = max[i];
                sum[i] *= factor[i];
            }
            OfScores::to_weights(s, max, sum);
            scale(out, factor);
            u32 weights[KEYS / 16][4];
#pragma unroll
            for (u32 e = 0; e < KEYS / 2; e += 2) weights[e / 8][e % 8 / 2] = pack_halves(s[e], s[e + 1]);
            wgmma::begin();
#pragma unroll
            for (u32 i = 0; i < KEYS / 16; i++)
                wgmma::product_transposed(out, weights[i], wgmma::transposed(values(place), 16 * i, 0));
            wgmma::end();
            wgmma::wait<0>();
        }
        float factor[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            factor[i] = finish_query<V_DIM>(job, query[i], greatest[i], of_row<Sum>(sum[i]), lane() % 4 == 0);
        scale(out, factor);
        write_rows<V_DIM>(job, out, 0, query);
    }
};
