// Operations that keep a state of each sequence, in slots of device memory.
//
// causal_conv:        out[t] = sum of weight[i] * x[t - n + 1 + i] over the n taps i, plus a bias; or c * conv(b * x), where
//                     a row of x is b, c and x. x [n_rows, width] or [n_rows, 3, width], weight [n, width], out [n_rows,
//                     width]. The state is the last n - 1 inputs before, [n - 1, width].
// linear_attention_*: S <- e^decay S + k d^T; out = S^T q for each head, where d is beta (v - e^decay S^T k) or beta v.
//                     q, k [n_rows, n_k_heads, k_dim], v, out [n_rows, n_heads, v_dim], decay, beta [n_rows, n_heads].
//                     The state is S of each head, [n_heads, n_blocks, k_dim, columns]: blocks of columns.
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

struct LinearParams {
    const float* q;
    const float* k;
    const float* v;
    const float* decay;
    const float* beta;
    float* states;
    float* out;
    const SeqRows* seqs;
    const SeqState* places;
    const KeptState* kept;
    LinearShape shape;
    // Blocks of threads per head.
    u32 n_groups;
    u32 pad;
    FIELDS(q, k, v, decay, beta, states, out, seqs, places, kept, shape, n_groups, pad)
};

template <u32 LANES> struct Rows {
    static constexpr u32 WIDTH = Column<LANES>::KEY_WIDTH;
    // Rows that are in shared memory at once.
    static constexpr u32 TILE = min_of(8u, 1024 / WIDTH);
    static constexpr u32 COLUMNS = THREADS / LANES;
    // What a thread loads of a tile.
    static constexpr u32 N_KEYS = (TILE * WIDTH / QUAD + THREADS - 1) / THREADS;
    static constexpr u32 N_VALUES = (TILE * COLUMNS + THREADS - 1) / THREADS;

    // Rows on their way to shared memory.
    struct Loaded {
        Quad k[N_KEYS], q[N_KEYS];
        float v[N_VALUES];
        float decay, beta;
    };

    // Rows in shared memory, twice: k and q [TILE, WIDTH], v [TILE, COLUMNS], factor and beta [TILE].
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
            to.k[i] = to.q[i] = Quad{};
            if (t < n && k < shape.k_dim) {
                to.k[i] = load_quad(p.k + key + t * k_stride, k, shape.k_dim, shape.aligned);
                to.q[i] = load_quad(p.q + key + t * k_stride, k, shape.k_dim, shape.aligned);
            }
        }
#pragma unroll
        for (u32 i = 0; i < N_VALUES; i++) {
            const u32 at = i * THREADS + tid(), t = at / COLUMNS, column = group * COLUMNS + at % COLUMNS;
            to.v[i] = 0.0f;
            if (t < n && column < shape.v_dim)
                to.v[i] = p.v[((first + t) * shape.n_heads + head) * shape.v_dim + column];
        }
        to.decay = to.beta = 0.0f;
        if (tid() < n) {
            to.decay = p.decay[(first + tid()) * shape.n_heads + head];
            to.beta = p.beta[(first + tid()) * shape.n_heads + head];
        }
    }

    // Moves rows to the first or second half of the shared memory.
    DEV_MEMBER static void put(const Loaded& from, const Tiles& to, u32 half) {
#pragma unroll
        for (u32 i = 0; i < N_KEYS; i++) {
            const u32 at = (i * THREADS + tid()) * QUAD;
            if (at >= TILE * WIDTH) break;
            store16(to.k + half * TILE * WIDTH + at, bits<u32x4>(from.k[i]));
            store16(to.q + half * TILE * WIDTH + at, bits<u32x4>(from.q[i]));
        }
#pragma unroll
        for (u32 i = 0; i < N_VALUES; i++) {
            const u32 at = i * THREADS + tid();
            if (at < TILE * COLUMNS) to.v[half * TILE * COLUMNS + at] = from.v[i];
        }
        if (tid() < TILE) {
            to.factor[half * TILE + tid()] = exp_of(from.decay);
            to.beta[half * TILE + tid()] = from.beta;
        }
    }
};

template <u32 LANES> DEV void linear_attention(const LinearParams& p) {
    using Of = Rows<LANES>;
    constexpr u32 WIDTH = Of::WIDTH, TILE = Of::TILE, COLUMNS = Of::COLUMNS;
    SHARED(float, k_tiles, 2 * TILE * WIDTH);
    SHARED(float, q_tiles, 2 * TILE * WIDTH);
    SHARED(float, v_tiles, 2 * TILE * COLUMNS);
    SHARED(float, factors, 2 * TILE);
    SHARED(float, betas, 2 * TILE);
    const typename Of::Tiles tiles = {k_tiles, q_tiles, v_tiles, factors, betas};

    const LinearShape& shape = p.shape;
    const u32 n_rows = uniform(p.seqs[bid_y()].n_rows);
    if (n_rows == 0) return;
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
        barrier();
        const u32 after = row + n, n_next = rows_from(after);
        rows.load(loaded, after, n_next);
        // The output of the row before, whose sum over threads is taken together with that of the next row's key.
        float before = 0.0f;
        for (u32 t = 0; t < n; t++) {
            const u32 of_row = half * TILE + t;
            const float *k = k_tiles + of_row * WIDTH, *q = q_tiles + of_row * WIDTH;
            const float factor = factors[of_row];
            const float known = state.sum(shape.delta ? state.product(k) : 0.0f);
            before = state.sum(before);
            if (t > 0) write(row + t - 1, before);
            const float d = betas[of_row] * (v_tiles[of_row * COLUMNS + state.of_block] - factor * known);
            before = state.change(k, q, factor, d);
        }
        write(after - 1, state.sum(before));
        keep_after(after);
        row = after;
        n = n_next;
    }
    keep(place.slot);
}

KERNEL(linear_attention_1, LinearParams, THREADS) { linear_attention<1>(p); }
KERNEL(linear_attention_2, LinearParams, THREADS) { linear_attention<2>(p); }
KERNEL(linear_attention_4, LinearParams, THREADS) { linear_attention<4>(p); }
KERNEL(linear_attention_8, LinearParams, THREADS) { linear_attention<8>(p); }
KERNEL(linear_attention_16, LinearParams, THREADS) { linear_attention<16>(p); }
KERNEL(linear_attention_32, LinearParams, THREADS) { linear_attention<32>(p); }
