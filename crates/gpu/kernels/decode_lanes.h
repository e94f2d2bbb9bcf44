// Decode attention by multiply-adds: on all GPUs but NVIDIA's, and there for shapes that decode_matrix.h does not fit.
//
// A wave processes tiles of positions on its own: each lane has 8 dimensions of a key in one load of 16 or 8 bytes, and
// V_DIM / 8 lanes (rounded up to a power of two) share a position; if these are more than a wave has, or keys are wider
// than values, a lane has several such eighths. The products of a tile are summed over lanes by
// halving exchanges, which leave each lane with scores of its own, so that each exponential is computed once. Loads of
// the next keys are in flight meanwhile. Codes are multiplied without their scales: the scale of a row is applied to
// its scores and weights, the scale of a block to a lane's sums and weights. Scales within eighths are applied to these.
//
// Tuned on an H200, which reads 4.5 TB/s, where the kernel is bound by these instructions: 32 heads of 128 values on 8
// KV heads, 32,768 positions of one row in Q8_0, take 40.4 us, 40 % of peak bandwidth; decode_matrix.h serves that
// case. Not measured on AMD.
#pragma once
#include "decode.h"

constexpr u32 next_power_of_2(u32 n) {
    u32 p = 1;
    while (p < n) p *= 2;
    return p;
}

// Sums N values over LANES lanes: lane l gets the sums with indices l / DUP * PER .. + PER.
template <u32 LANES, u32 N> struct Transposed {
    static constexpr u32 PER = N > LANES ? N / LANES : 1;
    static constexpr u32 DUP = LANES > N ? LANES / N : 1;
};
template <u32 MASK, u32 N> DEV void sum_and_scatter(float* v) {
    if constexpr (MASK > 0) {
        constexpr u32 HALF = N > 1 ? N / 2 : 1;
        if constexpr (N > 1) {
            bool upper = (lane() & MASK) != 0;
#pragma unroll
            for (u32 i = 0; i < HALF; i++) {
                float low = v[i], high = v[i + HALF];
                float send = upper ? low : high;
                v[i] = (upper ? high : low) + lane_xor<MASK>(send);
            }
        } else {
            v[0] += lane_xor<MASK>(v[0]);
        }
        sum_and_scatter<MASK / 2, HALF>(v);
    }
}

template <u32 K_DIM, u32 V_DIM, u32 HEADS> struct DecodeLanes {
    // Lanes per position, the dimensions between a lane's eighths, eighths of a lane, positions per load of the wave,
    // loads per tile, positions per tile.
    static constexpr u32 LANES = min_of(next_power_of_2(V_DIM / 8), WARP_SIZE);
    static constexpr u32 STRIDE = LANES * 8;
    template <u32 DIM> static constexpr u32 EIGHTHS = (DIM + STRIDE - 1) / STRIDE;
    static constexpr u32 SLOTS = WARP_SIZE / LANES;
    static constexpr u32 LOADS = (HEADS <= 4 ? 8 : 4) / EIGHTHS<K_DIM>;
    static_assert(V_DIM <= K_DIM, "the wider one has more eighths");
    static constexpr u32 TILE = SLOTS * LOADS;
    // See ORDERS in kv/attention_decode.hip: the order depends on which positions a wave processes together.
    static constexpr u32 ORDER = TILE;
    static_assert(ORDER < 128, "a byte, distinct from the orders of decode_matrix.h");
    // Positions of a tile that share a page.
    static constexpr u32 RUN = min_of(TILE, 16u);
    static constexpr u32 N_SCORES = LOADS * HEADS;
    static constexpr u32 PER = Transposed<LANES, N_SCORES>::PER;
    static constexpr u32 DUP = Transposed<LANES, N_SCORES>::DUP;
    // Lanes of a position that hold scores of different heads.
    static constexpr u32 HEAD_LANES = HEADS / PER;
    static_assert(PER <= HEADS && SLOTS >= 1 && SLOTS <= 16, "the distribution of scores");
    // A lane's part of the keys or values of a tile. Scales of blocks are loaded with the codes; the scale of a row only
    // by the lanes that hold the position's scores.
    template <typename Type, u32 DIM> struct Pieces {
        typename Type::Eight eight[LOADS * EIGHTHS<DIM>];
        typename Type::Scale scale[Type::SCALES == kv::Scales::Block ? LOADS * EIGHTHS<DIM> : 1];
    };
    using Keys = Pieces<KeyType, K_DIM>;
    using Values = Pieces<ValueType, V_DIM>;

    const DecodeParams& p;
    const DecodeJob& job;
    u32 slot;

    // The first dimension of an eighth of the lane; past the end of a row there is none, and it is 0.
    template <u32 DIM> static DEV_MEMBER bool has(u32 e) {
        return DIM % STRIDE == 0 || lane() % LANES * 8 + e * STRIDE < DIM;
    }
    template <u32 DIM> static DEV_MEMBER u32 dim_of(u32 e) {
        return has<DIM>(e) ? lane() % LANES * 8 + e * STRIDE : 0;
    }

    // Loads the pieces of the positions from `tile` on. Unseen positions may hold anything.
    template <typename Type, u32 DIM>
    DEV_MEMBER void load(const kv::Planes& from, u32 tile, Pieces<Type, DIM>& to) const {
        u64 run = 0;
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            if (i * SLOTS % RUN == 0) run = row_of(min_of(tile + i * SLOTS, job.span.last & ~(RUN - 1))) + slot;
#pragma unroll
            for (u32 e = 0; e < EIGHTHS<DIM>; e++) {
                const u32 at = i * EIGHTHS<DIM> + e;
                to.eight[at] = Type::load(from, run + i * SLOTS % RUN, DIM, dim_of<DIM>(e));
                if constexpr (Type::SCALES == kv::Scales::Block)
                    to.scale[at] = Type::load_scale(from, run + i * SLOTS % RUN, DIM, dim_of<DIM>(e));
            }
        }
        if constexpr (Type::SCALES == kv::Scales::Row)
            to.scale[0] = Type::load_scale(from, row_of(min_of(position_of_scores(tile), job.span.last)), DIM, 0);
    }
    // Zeroes the values of unseen positions: their weight is 0, but 0 * NaN is not.
    DEV_MEMBER void blank(u32 tile, Values& values) const {
        if (job.sees_all(tile, TILE)) return;
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            if (job.sees(tile + i * SLOTS + slot)) continue;
#pragma unroll
            for (u32 e = i * EIGHTHS<V_DIM>; e < (i + 1) * EIGHTHS<V_DIM>; e++) {
                values.eight[e] = {};
                if constexpr (ValueType::SCALES == kv::Scales::Block) values.scale[e] = {};
            }
        }
    }
    // The row of a position.
    DEV_MEMBER u64 row_of(u32 pos) const { return p.cache.slot(p.cache.block(job.seq, pos), job.kv_head, pos); }
    // Index of this lane's scores of a tile: PER scores of one position.
    static DEV_MEMBER u32 first_score() { return lane() % LANES / DUP * PER; }
    DEV_MEMBER u32 position_of_scores(u32 tile) const { return tile + first_score() / HEADS * SLOTS + slot; }

    // The lane of a position that holds the score of (load, head), and its index among that lane's PER scores.
    static constexpr u32 holder(u32 load, u32 head) { return (load * HEADS + head) / PER * DUP; }
    static constexpr u32 held(u32 load, u32 head) { return (load * HEADS + head) % PER; }

    static DEV_MEMBER void run(const DecodeParams& p, const DecodeJob& job) {
        DecodeLanes d{p, job, lane() / LANES};
        d.attend();
    }

    DEV_MEMBER void attend() {
        begin();
        float q[HEADS][8 * EIGHTHS<K_DIM>], acc[HEADS][8 * EIGHTHS<V_DIM>], greatest[PER], sum[PER];
        const float all = p.scores.query_factor(job.span.last);
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
#pragma unroll
            for (u32 e = 0; e < EIGHTHS<K_DIM>; e++) {
                const float factor = has<K_DIM>(e) ? all : 0.0f;
                const float* from = job.query(p, h, K_DIM) + dim_of<K_DIM>(e);
                f32x4 low = *(const f32x4*)from, high = *(const f32x4*)(from + 4);
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    q[h][e * 8 + i] = low[i] * factor;
                    q[h][e * 8 + i + 4] = high[i] * factor;
                }
                constexpr u32 LEN = KeyType::ROTATES ? hadamard_len(K_DIM) : 1;
                hadamard<LEN>(q[h] + e * 8, LEN);
            }
#pragma unroll
            for (u32 i = 0; i < 8 * EIGHTHS<V_DIM>; i++) acc[h][i] = 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            greatest[i] = UNSEEN;
            sum[i] = 0.0f;
        }

        u32 mine = uniform(job.begin + wave() * TILE), end = job.end;
        Keys k;
        Values v;
        if (mine < end) load(p.cache.k, mine, k);
        for (u32 tile = mine; tile < end; tile += N_WAVES * TILE) {
            load(p.cache.v, tile, v);
            float s[N_SCORES];
#pragma unroll
            for (u32 i = 0; i < LOADS; i++) {
#pragma unroll
                for (u32 e = 0; e < EIGHTHS<K_DIM>; e++) {
                    float key[8];
                    k.eight[i * EIGHTHS<K_DIM> + e].unpack(key);
#pragma unroll
                    for (u32 h = 0; h < HEADS; h++) {
                        float dot = 0.0f;
#pragma unroll
                        for (u32 j = 0; j < 8; j++) dot = fma(key[j], q[h][e * 8 + j], dot);
                        if constexpr (KeyType::SCALES == kv::Scales::Block)
                            dot *= KeyType::factor(k.scale[i * EIGHTHS<K_DIM> + e]);
                        s[i * HEADS + h] = e == 0 ? dot : s[i * HEADS + h] + dot;
                    }
                }
            }
            [[maybe_unused]] float key_factor = 1.0f;
            if constexpr (KeyType::SCALES == kv::Scales::Row) key_factor = KeyType::factor(k.scale[0]);
            u32 next = tile + N_WAVES * TILE;
            if (next < end) load(p.cache.k, next, k);
            sum_and_scatter<LANES / 2, N_SCORES>(s);
            float rescale[PER];
            u32 pos = position_of_scores(tile);
            bool seen = job.sees(pos);
#pragma unroll
            for (u32 i = 0; i < PER; i++) {
                if constexpr (KeyType::SCALES == kv::Scales::Row) s[i] *= key_factor;
                float x = seen ? p.scores.exponent(s[i]) : UNSEEN;
                float max = max_of(greatest[i], reduce_lanes<Max, DUP * HEAD_LANES, WARP_SIZE>(x));
                rescale[i] = exp2_fast(greatest[i] - max);
                greatest[i] = max;
                s[i] = seen ? exp2_fast(x - max) : 0.0f;
                sum[i] = fma(sum[i], rescale[i], s[i]);
                if constexpr (ValueType::SCALES == kv::Scales::Row)
                    s[i] = seen ? s[i] * ValueType::factor(v.scale[0]) : 0.0f;
            }
            blank(tile, v);
#pragma unroll
            for (u32 h = 0; h < HEADS; h++) {
                float r = shuffle(rescale[held(0, h)], holder(0, h));
#pragma unroll
                for (u32 j = 0; j < 8 * EIGHTHS<V_DIM>; j++) acc[h][j] *= r;
            }
#pragma unroll
            for (u32 i = 0; i < LOADS; i++) {
#pragma unroll
                for (u32 h = 0; h < HEADS; h++) {
                    float of_head = shuffle(s[held(i, h)], slot * LANES + holder(i, h));
#pragma unroll
                    for (u32 e = 0; e < EIGHTHS<V_DIM>; e++) {
                        float value[8], weight = of_head;
                        v.eight[i * EIGHTHS<V_DIM> + e].unpack(value);
                        if constexpr (ValueType::SCALES == kv::Scales::Block)
                            weight *= ValueType::factor(v.scale[i * EIGHTHS<V_DIM> + e]);
#pragma unroll
                        for (u32 j = 0; j < 8; j++) acc[h][e * 8 + j] = fma(value[j], weight, acc[h][e * 8 + j]);
                    }
                }
            }
        }
        finish(acc, greatest, sum);
    }

    DEV_MEMBER void finish(float (*acc)[8 * EIGHTHS<V_DIM>], const float* greatest, const float* sum) {
        SHARED(float, sums, N_WAVES * HEADS * V_DIM);
        SHARED(float, stats, N_WAVES * HEADS * 2);
        // Lanes that hold the same head have weights of different positions, or the same weights DUP times.
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            float total = reduce_lanes<Sum, DUP * HEAD_LANES, WARP_SIZE>(sum[i]);
            if (lane() < DUP * HEAD_LANES && lane() % DUP == 0) {
                u32 h = lane() / DUP * PER + i;
                stats[(wave() * HEADS + h) * 2] = greatest[i];
                stats[(wave() * HEADS + h) * 2 + 1] = total;
            }
        }
#pragma unroll
        for (u32 h = 0; h < HEADS; h++)
#pragma unroll
            for (u32 j = 0; j < 8 * EIGHTHS<V_DIM>; j++) {
                float total = reduce_lanes<Sum, LANES, WARP_SIZE>(acc[h][j]);
                u32 at = dim_of<V_DIM>(j / 8) + j % 8;
                if (slot == 0 && has<V_DIM>(j / 8)) sums[(wave() * HEADS + h) * V_DIM + at] = total;
            }
        merge_waves<V_DIM, HEADS>(p, job, sums, stats);
    }
};
