// Attention of a few rows of each sequence, split over the context (flash decoding).
//
//     out[row, head] = sum_pos softmax_pos(q[row, head] . k[pos, head / group]) v[pos, head / group]
//
// q [n_rows, n_heads * dim] f32, out [n_rows, n_heads * dim] f32, the cache as in attention.h; row t sees the positions
// first_seen(positions[t])..=positions[t] of its sequence. Rows without a sequence are left alone.
//
// decode_DIM_HEADS: one block of 128 threads for (up to HEADS query heads of a KV head, split, row), so that each key
// and value is loaded once for the heads that share it. A wave takes tiles of positions on its own: 8 dimensions of a
// key to a lane in one load of 16 or 8 bytes, DIM / 8 lanes (the next power of two) to a position. The products of a
// tile are summed over lanes by halving exchanges, which leave each lane with scores of its own, so each exponential is
// computed once. Loads of the next keys are in flight meanwhile. Nothing waits for other waves before the end, where the
// waves are merged in their order. Codes are multiplied as they are: the scale of a row goes to its scores and weights,
// that of a block to the sums and weights of a lane. Shared memory: waves * HEADS * (DIM + 2) * 4 bytes, at most 33 KB.
//
// A split is a run of positions; their number is the host's, their length follows from the row's position, in units of
// GRAIN. If there is one, `out` is written, else `partial`:
// [n_rows, n_heads, n_splits, dim] sums, then [n_rows, n_heads, n_splits, 2] greatest exponent and sum of weights.
//
// combine: one block of 128 threads for a (head, row) merges the splits in their order. 2.6 KB.
//
// generic: any k_dim and v_dim, one block of 128 threads for a (head, row); (TILE + k_dim + v_dim) * 4 bytes. Slow.
#include "attention.h"

constexpr u32 THREADS = 128;
constexpr u32 N_WAVES = THREADS / WARP_SIZE;
// Splits are whole multiples of this many positions; both as in src/ops/attention.rs.
constexpr u32 GRAIN = 64;
constexpr u32 MAX_SPLITS = 128;

struct DecodeParams {
    const float* q;
    float* out;
    float* partial;
    const u32* positions;
    const u32* seq_of_row;
    KvCache cache;
    Scores scores;
    u32 n_rows;
    u32 n_heads;
    u32 n_splits;
    u32 k_dim;
    u32 v_dim;
    u32 pad;
};

// The positions of a row, and how they are split.
struct Span {
    u32 first;
    u32 last;
    // A multiple of 16, so that 16 positions from here are in one page.
    u32 start;
    u32 split_len;
    u32 n_used;
};

DEV Span span_of(const DecodeParams& p, u32 row) {
    Span s;
    s.last = uniform(p.positions[row]);
    s.first = p.scores.first_seen(s.last);
    s.start = s.first & ~15u;
    u32 n = s.last + 1 - s.start;
    s.split_len = div_up(div_up(n, p.n_splits), GRAIN) * GRAIN;
    s.n_used = div_up(n, s.split_len);
    return s;
}

constexpr u32 next_power_of_2(u32 n) {
    u32 p = 1;
    while (p < n) p *= 2;
    return p;
}

// N sums over LANES lanes: lane l gets those with the indices l / DUP * PER .. + PER.
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

template <u32 DIM, u32 HEADS> struct Decode {
    // Lanes to a position, positions in a load of the wave, loads in a tile, positions in a tile.
    static constexpr u32 LANES = next_power_of_2(DIM / 8);
    static constexpr u32 SLOTS = WARP_SIZE / LANES;
    static constexpr u32 LOADS = HEADS <= 4 ? 8 : 4;
    static constexpr u32 TILE = SLOTS * LOADS;
    // Positions of a tile that are in one page.
    static constexpr u32 RUN = min_of(TILE, 16u);
    static constexpr u32 N_SCORES = LOADS * HEADS;
    static constexpr u32 PER = Transposed<LANES, N_SCORES>::PER;
    static constexpr u32 DUP = Transposed<LANES, N_SCORES>::DUP;
    // Lanes of a position that hold scores of different heads.
    static constexpr u32 HEAD_LANES = HEADS / PER;
    static_assert(PER <= HEADS && SLOTS >= 1 && SLOTS <= 16, "the distribution of scores");
    // Scales of blocks come with the loads; the scale of a row only to the lanes that hold the position's scores.
    static constexpr u32 N_SCALES = Kv::SCALES == kv::Scales::Block ? LOADS : 1;

    // What a lane has of the keys or values of a tile.
    struct Pieces {
        typename Kv::Eight eight[LOADS];
        typename Kv::Scale scale[N_SCALES];
    };

    const DecodeParams& p;
    Span span;
    u32 seq, kv_head;
    u32 slot, dim;

    // Pieces of the positions from `tile` on. Those that are not seen hold anything.
    DEV_MEMBER void load(const kv::Planes& from, u32 tile, Pieces& to) const {
        u64 run = 0;
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            if (i * SLOTS % RUN == 0) run = row_of(min_of(tile + i * SLOTS, span.last & ~(RUN - 1))) + slot;
            to.eight[i] = Kv::load(from, run + i * SLOTS % RUN, DIM, dim);
            if constexpr (Kv::SCALES == kv::Scales::Block)
                to.scale[i] = Kv::load_scale(from, run + i * SLOTS % RUN, DIM, dim);
        }
        if constexpr (Kv::SCALES == kv::Scales::Row)
            to.scale[0] = Kv::load_scale(from, row_of(min_of(position_of_scores(tile), span.last)), DIM, 0);
    }
    // Makes zeros of what a tile has of values that are not seen, since their weight of zero would not make them that.
    DEV_MEMBER void blank(u32 tile, Pieces& values) const {
        if (tile >= span.first && tile + TILE - 1 <= span.last) return;
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            u32 pos = tile + i * SLOTS + slot;
            if (pos >= span.first && pos <= span.last) continue;
            values.eight[i] = {};
            if constexpr (Kv::SCALES == kv::Scales::Block) values.scale[i] = {};
        }
    }
    // The row of a position.
    DEV_MEMBER u64 row_of(u32 pos) const { return p.cache.slot(p.cache.block(seq, pos), kv_head, pos); }
    // Where this lane's scores of a tile are: PER of them, of one position.
    static DEV_MEMBER u32 first_score() { return lane() % LANES / DUP * PER; }
    DEV_MEMBER u32 position_of_scores(u32 tile) const { return tile + first_score() / HEADS * SLOTS + slot; }

    // The lane of a position that holds the score of (load, head), and which of its PER.
    static constexpr u32 holder(u32 load, u32 head) { return (load * HEADS + head) / PER * DUP; }
    static constexpr u32 held(u32 load, u32 head) { return (load * HEADS + head) % PER; }

    static DEV_MEMBER void run(const DecodeParams& p) {
        u32 row = bid_z();
        u32 seq = uniform(p.seq_of_row[row]);
        if (seq == NO_ROW) return;
        Span span = span_of(p, row);
        u32 split = bid_y();
        if (split >= span.n_used) return;

        u32 group = p.n_heads / p.cache.n_kv_heads;
        u32 parts = div_up(group, HEADS);
        u32 kv_head = bid_x() / parts, in_group = bid_x() % parts * HEADS;
        u32 head = kv_head * group + in_group, n_heads = min_of(HEADS, group - in_group);
        u32 in_slot = lane() % LANES;
        bool unused = in_slot * 8 >= DIM;
        Decode d{p, span, seq, kv_head, lane() / LANES, unused ? 0 : in_slot * 8};
        d.attend(row, split, head, n_heads, unused);
    }

    DEV_MEMBER void attend(u32 row, u32 split, u32 head, u32 n_heads, bool unused) {
        float q[HEADS][8], acc[HEADS][8], greatest[PER], sum[PER];
        float factor = unused ? 0.0f : p.scores.query_factor();
#pragma unroll
        for (u32 h = 0; h < HEADS; h++) {
            const float* from = p.q + ((u64)row * p.n_heads + head + min_of(h, n_heads - 1)) * DIM + dim;
            f32x4 low = *(const f32x4*)from, high = *(const f32x4*)(from + 4);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                q[h][i] = low[i] * factor;
                q[h][i + 4] = high[i] * factor;
            }
#pragma unroll
            for (u32 i = 0; i < 8; i++) acc[h][i] = 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            greatest[i] = UNSEEN;
            sum[i] = 0.0f;
        }

        u32 begin = span.start + split * span.split_len, end = min_of(begin + span.split_len, span.last + 1);
        u32 mine = uniform(begin + wave() * TILE);
        Pieces k, v;
        if (mine < end) load(p.cache.k, mine, k);
        for (u32 tile = mine; tile < end; tile += N_WAVES * TILE) {
            load(p.cache.v, tile, v);
            float s[N_SCORES];
#pragma unroll
            for (u32 i = 0; i < LOADS; i++) {
                float key[8];
                k.eight[i].unpack(key);
#pragma unroll
                for (u32 h = 0; h < HEADS; h++) {
                    float dot = 0.0f;
#pragma unroll
                    for (u32 j = 0; j < 8; j++) dot = fma(key[j], q[h][j], dot);
                    if constexpr (Kv::SCALES == kv::Scales::Block) dot *= Kv::factor(k.scale[i]);
                    s[i * HEADS + h] = dot;
                }
            }
            [[maybe_unused]] float key_factor = 1.0f;
            if constexpr (Kv::SCALES == kv::Scales::Row) key_factor = Kv::factor(k.scale[0]);
            u32 next = tile + N_WAVES * TILE;
            if (next < end) load(p.cache.k, next, k);
            sum_and_scatter<LANES / 2, N_SCORES>(s);
            float rescale[PER];
            u32 pos = position_of_scores(tile);
            bool seen = pos >= span.first && pos < end;
#pragma unroll
            for (u32 i = 0; i < PER; i++) {
                if constexpr (Kv::SCALES == kv::Scales::Row) s[i] *= key_factor;
                float x = seen ? p.scores.exponent(s[i]) : UNSEEN;
                float max = max_of(greatest[i], reduce_lanes<Max, DUP * HEAD_LANES, WARP_SIZE>(x));
                rescale[i] = exp2_fast(greatest[i] - max);
                greatest[i] = max;
                s[i] = seen ? exp2_fast(x - max) : 0.0f;
                sum[i] = fma(sum[i], rescale[i], s[i]);
                if constexpr (Kv::SCALES == kv::Scales::Row) s[i] = seen ? s[i] * Kv::factor(v.scale[0]) : 0.0f;
            }
            blank(tile, v);
#pragma unroll
            for (u32 h = 0; h < HEADS; h++) {
                float r = shuffle(rescale[held(0, h)], holder(0, h));
#pragma unroll
                for (u32 j = 0; j < 8; j++) acc[h][j] *= r;
            }
#pragma unroll
            for (u32 i = 0; i < LOADS; i++) {
                float value[8];
                v.eight[i].unpack(value);
#pragma unroll
                for (u32 h = 0; h < HEADS; h++) {
                    float weight = shuffle(s[held(i, h)], slot * LANES + holder(i, h));
                    if constexpr (Kv::SCALES == kv::Scales::Block) weight *= Kv::factor(v.scale[i]);
#pragma unroll
                    for (u32 j = 0; j < 8; j++) acc[h][j] = fma(value[j], weight, acc[h][j]);
                }
            }
        }
        merge_waves(row, split, head, n_heads, acc, greatest, sum);
    }

    DEV_MEMBER void merge_waves(u32 row, u32 split, u32 head, u32 n_heads, float (*acc)[8], const float* greatest,
                                const float* sum) {
        SHARED(float, sums, N_WAVES * HEADS * DIM);
        SHARED(float, stats, N_WAVES * HEADS * 2);
        // Lanes that hold the same head have weights of different positions, or the same ones DUP times.
        u32 in_slot = lane() % LANES;
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
            for (u32 j = 0; j < 8; j++) {
                float total = reduce_lanes<Sum, LANES, WARP_SIZE>(acc[h][j]);
                if (slot == 0 && in_slot * 8 < DIM) sums[(wave() * HEADS + h) * DIM + dim + j] = total;
            }
        barrier();
        for (u32 i = tid(); i < n_heads * DIM; i += THREADS) {
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
            u64 of_row = (u64)row * p.n_heads + head + h;
            if (span.n_used == 1) {
                p.out[of_row * DIM + i % DIM] = total / weights;
                continue;
            }
            u64 at = of_row * p.n_splits + split;
            p.partial[at * DIM + i % DIM] = total;
            if (i % DIM == 0) {
                float* to = p.partial + (u64)p.n_rows * p.n_heads * p.n_splits * DIM + at * 2;
                to[0] = max;
                to[1] = weights;
            }
        }
    }
};

#define DECODE(DIM, HEADS)                                                                                             \
    KERNEL(decode_##DIM##_##HEADS, DecodeParams, THREADS) { Decode<DIM, HEADS>::run(p); }
#define DECODE_DIM(DIM) DECODE(DIM, 1) DECODE(DIM, 2) DECODE(DIM, 4) DECODE(DIM, 8)
DECODE_DIM(64)
DECODE_DIM(80)
DECODE_DIM(96)
DECODE_DIM(128)
DECODE_DIM(256)

KERNEL(combine, DecodeParams, THREADS) {
    SHARED(float, weights, MAX_SPLITS);
    SHARED(float, part, N_WAVES);
    SHARED(float, part_of_sum, N_WAVES);
    SHARED(float, sums, THREADS * 4);
    u32 head = bid_x(), row = bid_y();
    if (uniform(p.seq_of_row[row]) == NO_ROW) return;
    Span span = span_of(p, row);
    if (span.n_used == 1) return;

    u64 first = ((u64)row * p.n_heads + head) * p.n_splits;
    const float* stats = p.partial + (u64)p.n_rows * p.n_heads * p.n_splits * p.v_dim + first * 2;
    bool mine = tid() < span.n_used;
    float exponent = mine ? stats[tid() * 2] : UNSEEN;
    float max = block_reduce<Max, THREADS>(exponent, part);
    float weight = mine ? exp2_fast(exponent - max) : 0.0f;
    float sum = block_reduce<Sum, THREADS>(mine ? weight * stats[tid() * 2 + 1] : 0.0f, part_of_sum);
    weights[tid()] = weight / sum;
    barrier();

    // Four dimensions to a thread; the threads of a set take every n_sets-th split.
    u32 set_len = p.v_dim / 4, n_sets = THREADS / set_len, set = tid() / set_len, d = tid() % set_len * 4;
    f32x4 acc = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (set < n_sets) {
        for (u32 s = set; s < span.n_used; s += n_sets) {
            f32x4 x = *(const f32x4*)(p.partial + (first + s) * p.v_dim + d);
#pragma unroll
            for (u32 i = 0; i < 4; i++) acc.v[i] = fma(x[i], weights[s], acc.v[i]);
        }
        *(f32x4*)(sums + set * p.v_dim + d) = acc;
    }
    barrier();
    for (u32 i = tid(); i < p.v_dim; i += THREADS) {
        float total = 0.0f;
        for (u32 s = 0; s < n_sets; s++) total += sums[s * p.v_dim + i];
        p.out[((u64)row * p.n_heads + head) * p.v_dim + i] = total;
    }
}

KERNEL(generic, DecodeParams, THREADS) {
    constexpr u32 TILE = THREADS;
    SHARED(float, weights, TILE);
    SHARED(float, part, N_WAVES);
    SHARED(float, part_of_sum, N_WAVES);
    DYNAMIC_SHARED(float, query);
    float* acc = query + p.k_dim;
    u32 head = bid_x(), row = bid_y(), seq = uniform(p.seq_of_row[row]);
    if (seq == NO_ROW) return;
    Span span = span_of(p, row);
    u32 kv_head = head / (p.n_heads / p.cache.n_kv_heads);
    const float* q = p.q + ((u64)row * p.n_heads + head) * p.k_dim;
    for (u32 i = tid(); i < p.k_dim; i += THREADS) query[i] = q[i] * p.scores.query_factor();
    for (u32 i = tid(); i < p.v_dim; i += THREADS) acc[i] = 0.0f;
    float greatest = UNSEEN, sum = 0.0f;
    for (u32 tile = span.first; tile <= span.last; tile += TILE) {
        barrier();
        u32 pos = tile + tid();
        float x = UNSEEN;
        if (pos <= span.last) {
            u64 row_of_k = p.cache.slot(p.cache.block(seq, pos), kv_head, pos);
            float dot = 0.0f;
            for (u32 i = 0; i < p.k_dim; i++) dot = fma(Kv::one(p.cache.k, row_of_k, p.k_dim, i), query[i], dot);
            x = p.scores.exponent(dot);
        }
        float max = max_of(greatest, block_reduce<Max, THREADS>(x, part));
        float rescale = exp2_fast(greatest - max), weight = pos <= span.last ? exp2_fast(x - max) : 0.0f;
        greatest = max;
        weights[tid()] = weight;
        sum = fma(sum, rescale, block_reduce<Sum, THREADS>(weight, part_of_sum));
        barrier();
        u32 n = min_of(TILE, span.last + 1 - tile);
        for (u32 i = tid(); i < p.v_dim; i += THREADS) {
            float total = acc[i] * rescale;
            for (u32 j = 0; j < n; j++) {
                u64 row_of_v = p.cache.slot(p.cache.block(seq, tile + j), kv_head, tile + j);
                total = fma(Kv::one(p.cache.v, row_of_v, p.v_dim, i), weights[j], total);
            }
            acc[i] = total;
        }
    }
    for (u32 i = tid(); i < p.v_dim; i += THREADS) p.out[((u64)row * p.n_heads + head) * p.v_dim + i] = acc[i] / sum;
}
