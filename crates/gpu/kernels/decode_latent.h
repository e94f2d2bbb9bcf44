// Attention of latent layers (MLA), by multiply-adds on all GPUs: many query heads share one wide key, whose first v_dim
// values are its value.
//
// A block of 128 threads computes up to QUERIES heads of a row over the positions of a split, KEYS positions at a time.
// Queries and keys are in shared memory as f32, so each key is loaded and converted once for all heads of the block; the
// next keys are loaded meanwhile. Scores: eight lanes share two queries and two keys, and each has every eighth run of
// four dimensions. Values: a thread has four dimensions of all queries. Rows of prompts are computed as those of decode
// steps. Not tuned.
//
// Dynamic shared memory: (QUERIES + KEYS) * k_dim floats. k_dim is a multiple of 8 and at most MAX_K_DIM, v_dim a
// multiple of 4, at most k_dim and 4 * THREADS.
#pragma once
#include "decode.h"

struct DecodeLatent {
    // As in src/ops/attention/decode.rs.
    static constexpr u32 QUERIES = 8, KEYS = 8, MAX_K_DIM = 640;
    // Pieces of eight values of the keys, for each thread.
    static constexpr u32 LOADS = (KEYS * MAX_K_DIM / 8 + THREADS - 1) / THREADS;
    static constexpr u32 N_SCORES = QUERIES * KEYS;
    static_assert(N_SCORES * 2 == THREADS, "two queries and two keys for eight lanes");

    using Piece = kv::Piece<KeyType>;

    const DecodeParams& p;
    const DecodeJob& job;
    // [QUERIES, k_dim] and [KEYS, k_dim].
    float* queries;
    float* keys;
    // The thread's pieces: key of the tile, and first value; KEYS if there is no such piece.
    u32 key_of[LOADS], value_of[LOADS];

    static DEV_MEMBER void run(const DecodeParams& p, const DecodeJob& job, float* memory) {
        DecodeLatent d{p, job, memory, memory + QUERIES * p.k_dim, {}, {}};
        d.attend();
    }

    // Loads the thread's pieces of the keys from `tile` on. Positions past the end are clamped.
    DEV_MEMBER void load(u32 tile, Piece* to) const {
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            if (key_of[i] >= KEYS) continue;
            const u32 pos = min_of(tile + key_of[i], job.span.last);
            const u64 row = p.cache.slot(p.cache.block(job.seq, pos), job.kv_head, pos);
            to[i] = Piece::load(p.cache.k, row, p.k_dim, value_of[i]);
        }
    }
    // Unseen positions may hold anything; their weight is 0, but 0 * NaN is not.
    DEV_MEMBER void store(u32 tile, const Piece* from) const {
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            if (key_of[i] >= KEYS) continue;
            float v[8];
            from[i].eight.unpack(v);
            const float factor = KeyType::factor(from[i].scale);
            const bool seen = job.sees(tile + key_of[i]);
#pragma unroll
            for (u32 j = 0; j < 8; j++) v[j] = seen ? v[j] * factor : 0.0f;
            float* to = keys + key_of[i] * p.k_dim + value_of[i];
            *(f32x4*)to = {{v[0], v[1], v[2], v[3]}};
            *(f32x4*)(to + 4) = {{v[4], v[5], v[6], v[7]}};
        }
    }

    DEV_MEMBER void stage_queries() const {
        const float factor = p.scores.query_factor(job.span.last);
        const u32 quads = p.k_dim / 4;
        for (u32 i = tid(); i < QUERIES * quads; i += THREADS) {
            const u32 query = i / quads, at = i % quads * 4;
            f32x4 x = *(const f32x4*)(job.query(p, query, p.k_dim) + at);
#pragma unroll
            for (u32 j = 0; j < 4; j++) x.v[j] *= factor;
            *(f32x4*)(queries + query * p.k_dim + at) = x;
        }
        if constexpr (KeyType::ROTATES)
            rotate_rows<THREADS>(QUERIES, p.k_dim, p.k_hadamard(), [&](u32 i) { return queries + i * p.k_dim; });
    }

    // Writes the dot products of all queries and keys to scores [QUERIES, KEYS].
    DEV_MEMBER void score(float* scores) const {
        const u32 slice = tid() % 8, query = tid() / 8 / (KEYS / 2) * 2, key = tid() / 8 % (KEYS / 2) * 2;
        const float *q = queries + query * p.k_dim, *k = keys + key * p.k_dim;
        float dot[2][2] = {};
        for (u32 at = slice * 4; at < p.k_dim; at += 32) {
            f32x4 a[2] = {*(const f32x4*)(q + at), *(const f32x4*)(q + p.k_dim + at)};
            f32x4 b[2] = {*(const f32x4*)(k + at), *(const f32x4*)(k + p.k_dim + at)};
#pragma unroll
            for (u32 i = 0; i < 2; i++)
#pragma unroll
                for (u32 j = 0; j < 2; j++)
#pragma unroll
                    for (u32 e = 0; e < 4; e++) dot[i][j] = fma(a[i][e], b[j][e], dot[i][j]);
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                const float sum = reduce_lanes<Sum, 1, 8>(dot[i][j]);
                if (slice == i * 2 + j) scores[(query + i) * KEYS + key + j] = sum;
            }
    }

    DEV_MEMBER void attend() {
        SHARED(float, scores, N_SCORES);
        // [KEYS, QUERIES]
        SHARED(float, weights, N_SCORES);
        SHARED(float, rescale, QUERIES);
        // Of each query, the greatest exponent and the sum of weights.
        SHARED(float, stats, QUERIES * 2);
        const u32 pieces = p.k_dim / 8;
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            const u32 piece = tid() + i * THREADS;
            key_of[i] = min_of(piece / pieces, KEYS);
            value_of[i] = piece % pieces * 8;
        }
        stage_queries();
        float acc[QUERIES][4] = {};
        // Of one score. All threads compute it, as lanes exchange values; those from N_SCORES on repeat the others.
        float greatest = UNSEEN, sum = 0.0f;
        const u32 dim = tid() * 4;

        Piece coming[LOADS];
        load(job.begin, coming);
        for (u32 tile = job.begin; tile < job.end; tile += KEYS) {
            // The values of the tile before have been added.
            shared_barrier();
            store(tile, coming);
            shared_barrier();
            if (tile + KEYS < job.end) load(tile + KEYS, coming);
            score(scores);
            shared_barrier();
            const u32 query = tid() % N_SCORES / KEYS, key = tid() % KEYS;
            const bool seen = job.sees(tile + key);
            const float x = seen ? p.scores.exponent(scores[tid() % N_SCORES]) : UNSEEN;
            const float max = max_of(greatest, reduce_lanes<Max, 1, KEYS>(x));
            const float factor = exp2_fast(greatest - max), weight = seen ? exp2_fast(x - max) : 0.0f;
            greatest = max;
            sum = fma(sum, factor, weight);
            if (tid() < N_SCORES) {
                weights[key * QUERIES + query] = weight;
                if (key == 0) rescale[query] = factor;
            }
            shared_barrier();
            if (dim < p.v_dim) add_values(weights, rescale, dim, acc);
        }
        const float total = reduce_lanes<Sum, 1, KEYS>(sum);
        if (tid() < N_SCORES && tid() % KEYS == 0) {
            const u32 query = tid() / KEYS;
            stats[query * 2] = greatest, stats[query * 2 + 1] = total;
        }
        shared_barrier();
        if (dim < p.v_dim) write(stats, dim, acc);
        rotate_outputs(p, job);
    }

    // acc = acc * rescale + weights * values, of the dimensions from `dim` on.
    DEV_MEMBER void add_values(const float* weights, const float* rescale, u32 dim, float (*acc)[4]) const {
#pragma unroll
        for (u32 q = 0; q < QUERIES; q++) {
            const float factor = rescale[q];
#pragma unroll
            for (u32 e = 0; e < 4; e++) acc[q][e] *= factor;
        }
#pragma unroll
        for (u32 k = 0; k < KEYS; k++) {
            const f32x4 value = *(const f32x4*)(keys + k * p.k_dim + dim);
#pragma unroll
            for (u32 q = 0; q < QUERIES; q++) {
                const float weight = weights[k * QUERIES + q];
#pragma unroll
                for (u32 e = 0; e < 4; e++) acc[q][e] = fma(value[e], weight, acc[q][e]);
            }
        }
    }

    // Writes the result of the block, or its part of the result, as merge_waves().
    DEV_MEMBER void write(const float* stats, u32 dim, const float (*acc)[4]) const {
#pragma unroll
        for (u32 q = 0; q < QUERIES; q++) {
            if (q >= job.n_heads) continue;
            const u64 of_row = (u64)job.row * p.n_heads + job.head + q;
            const float max = stats[q * 2], weight = stats[q * 2 + 1];
            f32x4 x = {{acc[q][0], acc[q][1], acc[q][2], acc[q][3]}};
            if (job.span.n_used == 1) {
                const float total = weight + p.scores.sink_weight(job.head + q, max);
#pragma unroll
                for (u32 e = 0; e < 4; e++) x.v[e] /= total;
                *(f32x4*)(p.out + of_row * p.v_dim + dim) = x;
                continue;
            }
            const u64 at = of_row * p.n_splits + job.split;
            *(f32x4*)(p.partial + at * p.v_dim + dim) = x;
            if (dim == 0) {
                float* to = p.partial + (u64)p.n_rows * p.n_heads * p.n_splits * p.v_dim + at * 2;
                to[0] = max;
                to[1] = weight;
            }
        }
    }
};
