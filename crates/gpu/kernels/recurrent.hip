// Operations that keep a state of each sequence, in slots of device memory.
//
// causal_conv:        out[t] = sum of weight[i] * x[t - n + 1 + i] over the n taps i, plus a bias; or c * conv(b * x), where
//                     a row of x is b, c and x. x [n_rows, width] or [n_rows, 3, width], weight [n, width], out [n_rows,
//                     width]. The state is the last n - 1 inputs before, [n - 1, width].
// linear_attention_*: S <- e^decay S + k d^T; out = S^T q for each head, where d is beta (v - e^decay S^T k) or beta v.
//                     q, k [n_rows, n_k_heads, k_dim], v, out [n_rows, n_heads, v_dim], decay, beta [n_rows, n_heads].
//                     The state is S of each head, [n_heads, n_blocks, k_dim, columns]: blocks of columns.
// channel_decay_*:    the same with a factor for each row of S: decay [n_rows, n_heads, k_dim].
// value_decay_*:      the same with a factor for each value of S, e^(decay rate), and d = beta v: decay, beta [n_rows,
//                     n_heads, v_dim], rates as a state.
//
// A sequence begins from the state in one slot, or from zeros, and writes the state after its rows to its own slot, and
// those after some of its rows to others. A thread reads and writes the same values of all these states, so it may be the
// same slot. No other sequence of the step reads what one writes.
#include "recurrent.h"

// ---------------------------------------------------------------------------------------------- convolution
// A thread has four neighbouring values of some rows of a sequence. The threads with the first rows, which alone read the
// old state, write the new ones. No shared memory.
constexpr u32 CONV_THREADS = 256;

struct ConvParams {
    Conv conv;
    float* out;
    FIELDS(conv, out)
};

KERNEL(causal_conv, ConvParams, CONV_THREADS) {
    const SeqRows seq = p.conv.seqs[bid_z()];
    const u32 at = (bid_x() * CONV_THREADS + tid()) * QUAD, first = bid_y() * p.conv.n_block_rows, width = p.conv.width;
    if (first >= seq.n_rows || at >= width) return;
    const ConvQuad quad = {p.conv, seq, p.conv.places[bid_z()], at, width};
    const u32 end = min_of(first + p.conv.n_block_rows, seq.n_rows);
    for (u32 row = first; row < end; row++)
        store_quad(p.out + (u64)(seq.first_row + row) * width, at, width, p.conv.aligned, quad.output(row));
    if (first == 0) quad.keep_all();
}

// ---------------------------------------------------------------------------------------------- linear attention
// A block has some columns of the state of a head and sequence, in registers, and passes all rows through them. Sums over
// a column are added within a thread, then over its threads. Keys, queries and values of the next rows are loaded to
// registers while those before are computed, which are in shared memory.
constexpr u32 THREADS = 128;

// What a factor multiplies.
enum class Decay { HEAD, CHANNEL, VALUE };

template <u32 LANES, Decay OF> struct Rows {
    static constexpr u32 WIDTH = Column<LANES>::KEY_WIDTH;
    // Rows that are in shared memory at once.
    static constexpr u32 TILE = min_of(8u, 1024 / WIDTH);
    static constexpr u32 COLUMNS = THREADS / LANES;
    // What a thread loads of a tile.
    static constexpr u32 N_KEYS = (TILE * WIDTH / QUAD + THREADS - 1) / THREADS;
    static constexpr u32 N_VALUES = (TILE * COLUMNS + THREADS - 1) / THREADS;
    // Factors of a row.
    static constexpr bool IS_HEAD = OF == Decay::HEAD, IS_CHANNEL = OF == Decay::CHANNEL, IS_VALUE = OF == Decay::VALUE;
    static constexpr u32 N_DECAYS = IS_HEAD ? 1 : IS_CHANNEL ? WIDTH : COLUMNS;
    static constexpr u32 N_BETAS = IS_VALUE ? COLUMNS : 1;

    // Rows on their way to shared memory.
    struct Loaded {
        Quad k[N_KEYS], q[N_KEYS], channels[IS_CHANNEL ? N_KEYS : 1];
        float v[N_VALUES], decay[IS_VALUE ? N_VALUES : 1], beta[IS_VALUE ? N_VALUES : 1];
    };

    // Rows in shared memory, twice: k and q [TILE, WIDTH], v [TILE, COLUMNS], factor [TILE, N_DECAYS] and beta [TILE,
    // N_BETAS]. Of values, the factor is what multiplies the rates.
    struct Tiles {
        float *k, *q, *v, *factor, *beta;
    };

    const LinearParams& p;
    u32 head, group;
    // The first row of the sequence.
    u32 first_row;

    // Loads `n` rows of the sequence from `row` on; the others are zeros.
    DEV_MEMBER void load(Loaded& to, u32 row, u32 n) const {
        const LinearShape& shape = p.shape;
        const u64 first = first_row + row, k_stride = (u64)shape.n_k_heads * shape.k_dim;
        const u64 key = first * k_stride + (u64)shape.key_head(head) * shape.k_dim;
#pragma unroll
        for (u32 i = 0; i < N_KEYS; i++) {
            const u32 at = (i * THREADS + tid()) * QUAD, t = at / WIDTH, k = at % WIDTH;
            const bool is_there = t < n && k < shape.k_dim;
            to.k[i] = to.q[i] = Quad{};
            if (is_there) {
                to.k[i] = load_quad(p.k + key + t * k_stride, k, shape.k_dim, shape.aligned);
                to.q[i] = load_quad(p.q + key + t * k_stride, k, shape.k_dim, shape.aligned);
            }
            if constexpr (IS_CHANNEL) {
                const float* of_row = p.decay + ((first + t) * shape.n_heads + head) * shape.k_dim;
                to.channels[i] = is_there ? load_quad(of_row, k, shape.k_dim, shape.aligned) : Quad{};
            }
        }
#pragma unroll
        for (u32 i = 0; i < N_VALUES; i++) {
            const u32 at = i * THREADS + tid(), t = at / COLUMNS, column = group * COLUMNS + at % COLUMNS;
            const bool is_there = t < n && column < shape.v_dim;
            const u64 index = ((first + t) * shape.n_heads + head) * shape.v_dim + column;
            to.v[i] = is_there ? p.v[index] : 0.0f;
            if constexpr (IS_VALUE) {
                to.decay[i] = is_there ? p.decay[index] : 0.0f;
                to.beta[i] = is_there ? p.beta[index] : 0.0f;
            }
        }
        if constexpr (!IS_VALUE) {
            const u64 index = (first + tid()) * shape.n_heads + head;
            to.beta[0] = tid() < n ? p.beta[index] : 0.0f;
            if constexpr (IS_HEAD) to.decay[0] = tid() < n ? p.decay[index] : 0.0f;
        }
    }

    // Moves rows to the first or second half of the shared memory.
    DEV_MEMBER static void put(const Loaded& from, const Tiles& to, u32 half) {
#pragma unroll
        for (u32 i = 0; i < N_KEYS; i++) {
            const u32 at = (i * THREADS + tid()) * QUAD;
            if (TILE * WIDTH / QUAD % THREADS != 0 && at >= TILE * WIDTH) break;
            store16(to.k + half * TILE * WIDTH + at, bits<u32x4>(from.k[i]));
            store16(to.q + half * TILE * WIDTH + at, bits<u32x4>(from.q[i]));
            if constexpr (IS_CHANNEL) {
                Quad factors;
#pragma unroll
                for (u32 j = 0; j < QUAD; j++) factors.v[j] = decay_factor(from.channels[i].v[j]);
                store16(to.factor + half * TILE * WIDTH + at, bits<u32x4>(factors));
            }
        }
#pragma unroll
        for (u32 i = 0; i < N_VALUES; i++) {
            const u32 at = i * THREADS + tid();
            if (TILE * COLUMNS % THREADS != 0 && at >= TILE * COLUMNS) break;
            to.v[half * TILE * COLUMNS + at] = from.v[i];
            if constexpr (IS_VALUE) {
                to.factor[half * TILE * COLUMNS + at] = from.decay[i];
                to.beta[half * TILE * COLUMNS + at] = from.beta[i];
            }
        }
        if constexpr (!IS_VALUE) {
            if (tid() < TILE) to.beta[half * TILE + tid()] = from.beta[0];
        }
        if constexpr (IS_HEAD) {
            if (tid() < TILE) to.factor[half * TILE + tid()] = decay_factor(from.decay[0]);
        }
    }
};

template <u32 LANES, Decay OF> DEV void linear_attention(const LinearParams& p) {
    using Of = Rows<LANES, OF>;
    constexpr u32 WIDTH = Of::WIDTH, TILE = Of::TILE, COLUMNS = Of::COLUMNS;
    SHARED(float, k_tiles, 2 * TILE * WIDTH);
    SHARED(float, q_tiles, 2 * TILE * WIDTH);
    SHARED(float, v_tiles, 2 * TILE * COLUMNS);
    SHARED(float, factors, 2 * TILE * Of::N_DECAYS);
    SHARED(float, betas, 2 * TILE * Of::N_BETAS);
    const typename Of::Tiles tiles = {k_tiles, q_tiles, v_tiles, factors, betas};

    const LinearShape& shape = p.shape;
    // Opaque, since clang would join both conditions, and ptxas would then schedule the loop worse.
    const u32 n_rows = uniform(opaque(p.seqs[bid_y()].n_rows));
    if (n_rows == 0) return;
    if (n_rows > opaque(p.n_short)) return;
    const u32 head = bid_x() / p.n_groups, group = bid_x() % p.n_groups;
    const Of rows = {p, head, group, p.seqs[bid_y()].first_row};
    const SeqState place = p.places[bid_y()];
    const u32 n_kept = uniform(place.n_kept);
    const KeptState* kept = p.kept + place.first_kept;

    Column<LANES> state;
    const u32 column = group * COLUMNS + state.of_block;
    if (place.start != NO_SLOT)
        state.each(shape, p.states, place.start, head, column, [&](u32 i, const float* from) { state.s[i] = *from; });
    auto keep = [&](u32 slot) {
        state.each(shape, p.states, slot, head, column, [&](u32 i, float* to) { *to = state.s[i]; });
    };
    float rates[HELD] = {};
    if constexpr (Of::IS_VALUE)
        state.each(shape, p.rates, 0, head, column, [&](u32 i, const float* from) { rates[i] = *from; });

    // The number of kept states so far, and of rows from `row` on that come before the next one or the end of a tile.
    u32 n_done = 0;
    auto rows_from = [&](u32 row) {
        u32 end = n_rows;
        for (u32 i = n_done; i < n_kept; i++) {
            const u32 next = uniform(kept[i].n_rows);
            if (next > row) {
                end = next;
                break;
            }
        }
        return min_of(TILE, end - row);
    };
    auto keep_after = [&](u32 row) {
        for (; n_done < n_kept && uniform(kept[n_done].n_rows) == row; n_done++) keep(kept[n_done].slot);
    };
    float* out = p.out + ((u64)rows.first_row * shape.n_heads + head) * shape.v_dim + column;
    auto write = [&](u32 row, float value) {
        if (state.part == 0 && column < shape.v_dim) out[(u64)row * shape.n_heads * shape.v_dim] = value;
    };

    keep_after(0);
    typename Of::Loaded loaded;
    u32 n = rows_from(0);
    rows.load(loaded, 0, n);
    for (u32 row = 0, half = 0; row < n_rows; half ^= 1) {
        Of::put(loaded, tiles, half);
        shared_barrier();
        const u32 after = row + n, n_next = rows_from(after);
        rows.load(loaded, after, n_next);
        // The output of the row before, whose sum over threads is taken together with that of the next row's key.
        float before = 0.0f;
        for (u32 t = 0; t < n; t++) {
            const u32 of_row = half * TILE + t;
            const float *k = k_tiles + of_row * WIDTH, *q = q_tiles + of_row * WIDTH;
            const float* of = factors + of_row * Of::N_DECAYS;
            const float value = v_tiles[of_row * COLUMNS + state.of_block];
            // What S already has for the key.
            float known = 0.0f;
            if constexpr (Of::IS_HEAD) known = shape.delta ? state.product(k) : 0.0f;
            if constexpr (Of::IS_CHANNEL) {
                const float decayed = state.decay_rows(of, k);
                known = shape.delta ? decayed : 0.0f;
            }
            if constexpr (Of::IS_VALUE) state.decay_values(shape.k_dim, of[state.of_block], rates);
            known = state.sum(known);
            before = state.sum(before);
            if (t > 0) write(row + t - 1, before);
            const float factor = Of::IS_HEAD ? of[0] : 1.0f;
            const float beta = betas[of_row * Of::N_BETAS + (Of::IS_VALUE ? state.of_block : 0)];
            before = state.change(k, q, factor, beta * (value - factor * known));
        }
        write(after - 1, state.sum(before));
        keep_after(after);
        row = after;
        n = n_next;
    }
    keep(place.slot);
}

KERNEL(linear_attention_1, LinearParams, THREADS) { linear_attention<1, Decay::HEAD>(p); }
KERNEL(linear_attention_2, LinearParams, THREADS) { linear_attention<2, Decay::HEAD>(p); }
KERNEL(linear_attention_4, LinearParams, THREADS) { linear_attention<4, Decay::HEAD>(p); }
KERNEL(linear_attention_8, LinearParams, THREADS) { linear_attention<8, Decay::HEAD>(p); }
KERNEL(linear_attention_16, LinearParams, THREADS) { linear_attention<16, Decay::HEAD>(p); }
KERNEL(linear_attention_32, LinearParams, THREADS) { linear_attention<32, Decay::HEAD>(p); }
KERNEL(channel_decay_1, LinearParams, THREADS) { linear_attention<1, Decay::CHANNEL>(p); }
KERNEL(channel_decay_2, LinearParams, THREADS) { linear_attention<2, Decay::CHANNEL>(p); }
KERNEL(channel_decay_4, LinearParams, THREADS) { linear_attention<4, Decay::CHANNEL>(p); }
KERNEL(channel_decay_8, LinearParams, THREADS) { linear_attention<8, Decay::CHANNEL>(p); }
KERNEL(value_decay_1, LinearParams, THREADS) { linear_attention<1, Decay::VALUE>(p); }
KERNEL(value_decay_2, LinearParams, THREADS) { linear_attention<2, Decay::VALUE>(p); }
