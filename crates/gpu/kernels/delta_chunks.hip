// Linear attention of prompts by the gated delta rule with a factor for each head, in chunks on the matrix units (Yang et al.
// 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length" and "Gated Delta Networks").
//
// Shapes and states are those of linear_attention_* in recurrent.hip. With g_i the sum of decays from the chunk's start to
// row i, for the 16 rows of a chunk and the state S before it:
//
//     A_ij = beta_i e^(g_i - g_j) k_i . k_j   for j < i,   T = (1 + A)^-1
//     U = T beta (V - e^g K S)
//     out = e^g Q S + P U                     where P_ij = e^(g_i - g_j) q_i . k_j   for j <= i
//     S  <- e^(g_n) S + sum of e^(g_n - g_j) k_j u_j^T
//
// Factors are only ever e^(g_i - g_j) with j <= i, so that none overflows.
//
// A block has 64 columns of the state of a head and sequence. Four waves have 16 columns each, in registers, and pass all
// chunks through them: the results of a product are operands of the next one. Four other waves prepare the next chunk
// meanwhile: keys and queries as f16, T and P. Both kinds meet twice per chunk.
//
// Sums are f32. Operands are each the sum of two f16, the second being the rounding error of the first: three products instead
// of one, with an error near that of f32 (tests/it/delta_chunks.rs). With rounded ones, errors of outputs and states over
// 8,000 rows were 1e-3 of the largest value in their column, and 4e-3 where keys are alike. Columns are scaled by powers of
// two, so that neither large nor small values leave the range of f16; keys are about as long as normed ones.
//
// Shared memory: two places for keys and queries of a chunk in two parts, 16 rows of (2 WIDTH + 16) bytes each, T and P, with
// factors of rows, and A in f32: 42,432 bytes for keys of 128 values.
#include "operands.h"
#include "recurrent.h"

constexpr u32 N_WAVES = 8;
constexpr u32 THREADS = N_WAVES * WARP_SIZE;
// Of a block; 0 where there are no matrix units, without which there is nothing to gain.
#if defined(MMA_DOT)
EXPORT_U32(chunk_threads, 0)
#else
EXPORT_U32(chunk_threads, THREADS)
#endif

#if !defined(MMA_DOT)
constexpr u32 CHUNK = 16;
constexpr u32 COLUMN_WAVES = 4, KEY_WAVES = N_WAVES - COLUMN_WAVES;
// COLUMNS as in src/ops/recurrent.rs.
constexpr u32 KEY_THREADS = KEY_WAVES * WARP_SIZE, COLUMNS = COLUMN_WAVES * 16;

// The waves of a block meet. At one place in the source, since both kinds of waves have a loop of their own.
DEV void meet() { shared_barrier(); }

// The rounding errors of two numbers as f16. By the conversion of two, which the rounded numbers need, too.
DEV void errors_of(const float* x, float* to) {
    const u32 both = pack_halves(x[0], x[1]);
    to[0] = x[0] - h2f((u16)both);
    to[1] = x[1] - h2f((u16)(both >> 16));
}

// An operand in two parts: rounded values and their rounding errors.
template <typename Operand> struct Parts {
    Operand high, low;
};
// The values of a tile of results.
DEV Parts<QueryOperand> parts_of(const float* x) {
    float low[ELEMENTS];
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e += 2) errors_of(x + e, low + e);
    return {weight_operand(x, nullptr), weight_operand(low, nullptr)};
}

// A product of two parts each. Its sums do not wait for each other.
struct Product {
    Tile::Acc sums[3] = {Tile::zero(), Tile::zero(), Tile::zero()};

    DEV_MEMBER void add(const Parts<QueryOperand>& x, const Parts<KeyOperand>& y) {
        mac(sums[0], x.high, y.high);
        mac(sums[1], x.low, y.high);
        mac(sums[2], x.high, y.low);
    }
    DEV_MEMBER float value(u32 e) const { return sums[0].v[e] + (sums[1].v[e] + sums[2].v[e]); }
};

// The chunks of a sequence: they end where a copy of the state is kept.
struct Division {
    u32 n_rows;
    u32 n_kept;
    const KeptState* kept;

    DEV_MEMBER Division(const LinearParams& p, u32 seq)
        : n_rows(uniform(p.seqs[seq].n_rows)), n_kept(uniform(p.places[seq].n_kept)),
          kept(p.kept + p.places[seq].first_kept) {}

    // The number of rows of the chunk that begins at `row`.
    DEV_MEMBER u32 rows_from(u32 row) const {
        u32 end = n_rows;
        for (u32 i = 0; i < n_kept; i++) {
            const u32 next = uniform(kept[i].n_rows);
            if (next > row) {
                end = next;
                break;
            }
        }
        return min_of(CHUNK, end - row);
    }
};

template <u32 WIDTH> struct Chunks {
    static constexpr u32 STEPS = WIDTH / 16;
    static constexpr u32 PITCH = WIDTH * 2 + 16, SQUARE_PITCH = CHUNK * 2 + 16;
    static constexpr u32 KEY_BYTES = CHUNK * PITCH, SQUARE_BYTES = CHUNK * SQUARE_PITCH;
    // What waves with columns read of a chunk: keys, queries, T and P, each with its rounding errors, and the factors of rows.
    static constexpr u32 QUERIES_AT = 2 * KEY_BYTES, SOLVE_AT = 4 * KEY_BYTES, SCORES_AT = SOLVE_AT + 2 * SQUARE_BYTES;
    static constexpr u32 FACTORS_AT = SCORES_AT + 2 * SQUARE_BYTES;
    static constexpr u32 PLACE_BYTES = FACTORS_AT + 3 * CHUNK * 4;
    // What only the waves with keys read: g and A.
    static constexpr u32 SUMS_AT = 2 * PLACE_BYTES, BLOCK_AT = SUMS_AT + CHUNK * 4;
    static constexpr u32 BYTES = BLOCK_AT + CHUNK * CHUNK * 4;
    static_assert(BYTES <= 48 * 1024, "memory of a block");
    // RDNA has few registers for operands that are loaded early.
#if defined(GPU_GFX11) || defined(GPU_GFX12)
    static constexpr bool SHORT = true;
#else
    static constexpr bool SHORT = false;
#endif

    const LinearParams& p;
    u8* memory;
    Division division;
    u32 seq, head, first_row;

    static DEV_MEMBER void run(const LinearParams& p) {
        SHARED(u8, memory, BYTES);
        const u32 seq = bid_y();
        const Division division(p, seq);
        if (division.n_rows <= p.n_short) return;
        const Chunks chunks = {p, memory, division, seq, bid_x() / p.n_groups, p.seqs[seq].first_row};
        const u32 of_wave = uniform(wave());
        const u32 column = bid_x() % p.n_groups * COLUMNS + of_wave * 16;
        if (of_wave >= COLUMN_WAVES) chunks.prepare_keys(of_wave - COLUMN_WAVES);
        else if (column < p.shape.v_dim) chunks.pass_columns(column);
        else chunks.only_meet();
    }

    DEV_MEMBER u8* place(u32 half) const { return memory + half * PLACE_BYTES; }
    // Of each row of a chunk: e^g, e^(g_n - g), and beta.
    DEV_MEMBER float* since_start(u32 half) const { return (float*)(place(half) + FACTORS_AT); }
    DEV_MEMBER float* until_end(u32 half) const { return since_start(half) + CHUNK; }
    DEV_MEMBER float* betas(u32 half) const { return since_start(half) + 2 * CHUNK; }
    DEV_MEMBER float* sums() const { return (float*)(memory + SUMS_AT); }
    DEV_MEMBER float* block() const { return (float*)(memory + BLOCK_AT); }

    // ------------------------------------------------------------------------------------------ waves with keys
    static constexpr u32 N_QUADS = CHUNK * WIDTH / QUAD / KEY_THREADS;
    static_assert(N_QUADS * KEY_THREADS * QUAD == CHUNK * WIDTH, "equal parts for all threads");

    struct Loaded {
        Quad k[N_QUADS], q[N_QUADS];
        float decay, beta;
    };

    // Loads `n` rows of the sequence from `row` on; the others are zeros.
    DEV_MEMBER void load(Loaded& to, u32 row, u32 n, u32 thread) const {
        const LinearShape& shape = p.shape;
        const u64 first = first_row + row, key = first * shape.n_k_heads + shape.key_head(head);
        const float *k = p.k + key * WIDTH, *q = p.q + key * WIDTH;
        const u32 stride = shape.n_k_heads * WIDTH;
#pragma unroll
        for (u32 i = 0; i < N_QUADS; i++) {
            const u32 at = (i * KEY_THREADS + thread) * QUAD, t = at / WIDTH, of_row = t * stride + at % WIDTH;
            to.k[i] = to.q[i] = Quad{};
            if (t < n) {
                to.k[i] = bits<Quad>(load16(k + of_row));
                to.q[i] = bits<Quad>(load16(q + of_row));
            }
        }
        const u64 index = (first + thread) * shape.n_heads + head;
        to.decay = thread < n ? p.decay[index] : 0.0f;
        to.beta = thread < n ? p.beta[index] : 0.0f;
    }

    static DEV_MEMBER u32x2 halves(const Quad& x) {
        return {{pack_halves(x.v[0], x.v[1]), pack_halves(x.v[2], x.v[3])}};
    }
    static DEV_MEMBER Quad errors_of_quad(const Quad& x) {
        Quad errors;
        errors_of(x.v, errors.v);
        errors_of(x.v + 2, errors.v + 2);
        return errors;
    }

    // Moves a chunk to shared memory, with the sums of its decays.
    DEV_MEMBER void put(const Loaded& from, u32 half, u32 of_wave, u32 thread) const {
        u8* keys = place(half);
#pragma unroll
        for (u32 i = 0; i < N_QUADS; i++) {
            const u32 at = (i * KEY_THREADS + thread) * QUAD;
            u8* to = keys + at / WIDTH * PITCH + at % WIDTH * 2;
            store8(to, halves(from.k[i]));
            store8(to + KEY_BYTES, halves(errors_of_quad(from.k[i])));
            store8(to + QUERIES_AT, halves(from.q[i]));
            store8(to + QUERIES_AT + KEY_BYTES, halves(errors_of_quad(from.q[i])));
        }
        if (of_wave != 0) return;
        // e^-100 is nothing; sums of greater decays would lose bits of those after them.
        float sum = from.decay < -100.0f ? -100.0f : from.decay;
#pragma unroll
        for (u32 distance = 1; distance < CHUNK; distance *= 2) {
            const float before = shuffle(sum, lane() - distance);
            if (lane() >= distance) sum += before;
        }
        const float all = shuffle(sum, CHUNK - 1);
        if (lane() >= CHUNK) return;
        sums()[lane()] = sum;
        since_start(half)[lane()] = exp_of(sum);
        until_end(half)[lane()] = exp_of(all - sum);
        betas(half)[lane()] = from.beta;
    }

    // e^(g_i - g_j), or 0 for a row after i.
    DEV_MEMBER float between(u32 i, u32 j) const { return j <= i ? exp_of(sums()[i] - sums()[j]) : 0.0f; }

    // Both parts of 16 values of the rows of a chunk. As operands, rows are the same as columns.
    static DEV_MEMBER Parts<KeyOperand> load_parts(const u8* rows) {
        return {load_key(rows, PITCH), load_key(rows + KEY_BYTES, PITCH)};
    }
    // Both parts of T or P.
    static DEV_MEMBER Parts<KeyOperand> load_square(const u8* square) {
        return {load_key(square, SQUARE_PITCH), load_key(square + SQUARE_BYTES, SQUARE_PITCH)};
    }
    static DEV_MEMBER void store_parts(u8* square, u32 row, u32 column, float x) {
        u8* to = square + row * SQUARE_PITCH + column * 2;
        *(u16*)to = f2h(x);
        *(u16*)(to + SQUARE_BYTES) = f2h(x - h2f(f2h(x)));
    }

    // The products of keys, and T.
    DEV_MEMBER void multiply_keys(u32 half) const {
        const u8* keys = place(half);
        Product product;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            const Parts<KeyOperand> key = load_parts(keys + i * 32);
            product.add(key, key);
        }
        float* a = block();
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 row = query_of(query_index(e)), key = other_of(e);
            a[row * CHUNK + key] = between(row, key) * betas(half)[row] * product.value(e);
        }
        wave_barrier(a, CHUNK * CHUNK * 4);
        // Each lane has a column of T, by substitution.
        const u32 column = lane() % CHUNK;
        float t[CHUNK];
#pragma unroll
        for (u32 i = 0; i < CHUNK; i++) {
            t[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
            for (u32 first = 0; first < i; first += QUAD) {
                const Quad of_row = bits<Quad>(load16(a + i * CHUNK + first));
#pragma unroll
                for (u32 j = 0; j < QUAD; j++)
                    if (first + j < i) t[i] = fma(-of_row.v[j], t[first + j], t[i]);
            }
        }
        if (lane() >= CHUNK) return;
#pragma unroll
        for (u32 i = 0; i < CHUNK; i++) store_parts(place(half) + SOLVE_AT, i, column, t[i]);
    }
    // P.
    DEV_MEMBER void multiply_queries(u32 half) const {
        const u8* keys = place(half);
        Product product;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) product.add(load_parts(keys + QUERIES_AT + i * 32), load_parts(keys + i * 32));
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 row = query_of(query_index(e)), key = other_of(e);
            store_parts(place(half) + SCORES_AT, row, key, between(row, key) * product.value(e));
        }
    }

    DEV_MEMBER void prepare_keys(u32 of_wave) const {
        const u32 thread = tid() - COLUMN_WAVES * WARP_SIZE;
        Loaded loaded;
        u32 row = 0, n = division.rows_from(0);
        load(loaded, row, n, thread);
        for (u32 half = 0; row < division.n_rows; half ^= 1) {
            put(loaded, half, of_wave, thread);
            row += n;
            n = division.rows_from(row);
            load(loaded, row, n, thread);
            meet();
            if (of_wave == 0) multiply_keys(half);
            if (of_wave == 1) multiply_queries(half);
            meet();
        }
        // The last chunk is with the other waves.
        meet();
        meet();
    }

    // ------------------------------------------------------------------------------------------ waves with columns
    // What a wave without columns does.
    DEV_MEMBER void only_meet() const {
        meet();
        meet();
        for (u32 row = 0; row < division.n_rows; row += division.rows_from(row)) {
            meet();
            meet();
        }
    }

    // The state of 16 columns times `scale`, a power of two for each column.
    struct Columns {
        Tile::Acc s[STEPS];
        float scale[N_QUERIES], inverse[N_QUERIES];
    };

    // From a thread's first value to another one of a tile: rows of the chunk, or values of a key.
    static DEV_MEMBER u32 distance(u32 e) { return other_of(e) - other_of(0); }

    // Calls `f(accumulator, element, address)` for each value of the state in a slot. A block of a state has 32 columns.
    template <typename F> DEV_MEMBER void each(u32 slot, u32 first, F f) const {
        const u32 column = compared_here(first + query_of(0));
        float* of_head = p.states + ((u64)slot * p.shape.n_heads + head) * p.shape.head_len();
        float* of_thread = of_head + column / 32 * 32 * WIDTH + column % 32 + other_of(0) * 32;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++)
                f(i, e, of_thread + (i * 16 + distance(e)) * 32 + query_of(query_index(e)) - query_of(0));
    }
    DEV_MEMBER void keep(const Columns& columns, u32 slot, u32 first) const {
        each(slot, first, [&](u32 i, u32 e, float* to) { *to = columns.s[i].v[e] * columns.inverse[query_index(e)]; });
    }

    // Calls `f(element, row, offset)` for each value of a chunk: its row there, and where it is in v and out from the chunk's
    // first row and the head on. Rows from `n` on have the place of the last one.
    template <typename F> DEV_MEMBER void each_value(u32 n, u32 first, F f) const {
        const u32 stride = p.shape.n_heads * p.shape.v_dim, begin = compared_here(other_of(0));
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 row = begin + distance(e);
            f(e, row, min_of(row, n - 1) * stride + first + query_of(query_index(e)));
        }
    }
    // The offset of a row and the head in v and out.
    DEV_MEMBER u64 offset_of(u32 row) const {
        return ((u64)(first_row + row) * p.shape.n_heads + head) * p.shape.v_dim;
    }

    DEV_MEMBER void load_values(Tile::Acc& v, u32 row, u32 n, u32 first) const {
        if (n == 0) return;
        const float* from = p.v + offset_of(row);
        each_value(n, first, [&](u32 e, u32 of_chunk, u32 at) {
            const float value = from[at];
            v.v[e] = of_chunk < n ? value : 0.0f;
        });
    }

    DEV_MEMBER void write(const Columns& columns, const Tile::Acc& out, u32 row, u32 n, u32 first) const {
        float* to = p.out + offset_of(row);
        each_value(n, first, [&](u32 e, u32 of_chunk, u32 at) {
            if (of_chunk < n) to[at] = out.v[e] * columns.inverse[query_index(e)];
        });
    }

    // Scales columns so that the largest of their values in the state and in `v` is from 32 to 64. In products of 16 rows and
    // keys that are not much longer than 1, nothing then exceeds f16; and the smallest normal f16 is 2^-19 of it.
    static DEV_MEMBER void rescale(Columns& columns, const Tile::Acc& v) {
        float most[N_QUERIES] = {};
#pragma unroll
        for (u32 i = 0; i < STEPS; i++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++)
                most[query_index(e)] = max_of(most[query_index(e)], __builtin_fabsf(columns.s[i].v[e]));
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) most[i] *= columns.inverse[i];
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) most[query_index(e)] = max_of(most[query_index(e)], __builtin_fabsf(v.v[e]));
        float factor[N_QUERIES];
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) {
            const u32 exponent = bits<u32>(reduce_lanes<Max, SAME_FROM, SAME_TO>(most[i])) >> 23;
            // 2^5 divided by that power of two, within what has an inverse.
            const u32 wanted = min_of(259 - min_of(exponent, 254u), 253u);
            factor[i] = bits<float>(wanted << 23) * columns.inverse[i];
            columns.scale[i] = bits<float>(wanted << 23);
            columns.inverse[i] = bits<float>((254 - wanted) << 23);
        }
#pragma unroll
        for (u32 i = 0; i < STEPS; i++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) columns.s[i].v[e] *= factor[query_index(e)];
    }

    // r = beta (V - e^g K S) and out = e^g Q S, both times the scale of columns.
    static DEV_MEMBER void apply_state(const Columns& columns, const u8* keys, const float* factors, const Tile::Acc& v,
                                       Tile::Acc& r, Tile::Acc& out) {
        Product known, found;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            const Parts<QueryOperand> s = parts_of(columns.s[i].v);
            known.add(s, load_parts(keys + i * 32));
            found.add(s, load_parts(keys + QUERIES_AT + i * 32));
            hold_loads<SHORT>();
        }
        factors += compared_here(other_of(0));
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 row = distance(e);
            const float value = v.v[e] * columns.scale[query_index(e)];
            r.v[e] = factors[2 * CHUNK + row] * fma(-factors[row], known.value(e), value);
            out.v[e] = factors[row] * found.value(e);
        }
    }

    // U = T r, in place of r, and out += P U.
    static DEV_MEMBER void solve(const u8* place, Tile::Acc& r, Tile::Acc& out) {
        Product u, of_chunk;
        u.add(parts_of(r.v), load_square(place + SOLVE_AT));
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) r.v[e] = u.value(e);
        of_chunk.add(parts_of(r.v), load_square(place + SCORES_AT));
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) out.v[e] += of_chunk.value(e);
    }

    // S <- e^(g_n) S + sum of e^(g_n - g_j) k_j u_j^T.
    static DEV_MEMBER void change_state(Columns& columns, const u8* keys, const float* factors, const Tile::Acc& u) {
        const float all = factors[CHUNK - 1];
        const float* until_end = factors + CHUNK + compared_here(other_of(0));
        float d[ELEMENTS];
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) d[e] = u.v[e] * until_end[distance(e)];
        const Parts<QueryOperand> parts = parts_of(d);
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            Tile::Acc& s = columns.s[i];
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) s.v[e] *= all;
            const KeyOperand key = Tile::load_b_transposed(keys + i * 32, PITCH);
            mac(s, parts.high, Tile::load_b_transposed(keys + KEY_BYTES + i * 32, PITCH));
            mac(s, parts.low, key);
            mac(s, parts.high, key);
            hold_loads<SHORT>();
        }
    }

    DEV_MEMBER void pass_columns(u32 first) const {
        const SeqState of_seq = p.places[seq];
        Columns columns;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) columns.s[i] = Tile::zero();
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) columns.scale[i] = columns.inverse[i] = 1.0f;
        if (of_seq.start != NO_SLOT)
            each(of_seq.start, first, [&](u32 i, u32 e, const float* from) { columns.s[i].v[e] = *from; });
        u32 n_done = 0;
        auto keep_after = [&](u32 row) {
            for (; n_done < division.n_kept && uniform(division.kept[n_done].n_rows) == row; n_done++)
                keep(columns, division.kept[n_done].slot, first);
        };
        keep_after(0);
        u32 n = division.rows_from(0);
        Tile::Acc v = Tile::zero(), r, out;
        load_values(v, 0, n, first);
        // The first chunk is prepared.
        meet();
        meet();
        for (u32 row = 0, half = 0; row < division.n_rows; half ^= 1) {
            const u8* of_chunk = place(half);
            const float* factors = since_start(half);
            rescale(columns, v);
            apply_state(columns, of_chunk, factors, v, r, out);
            meet();
            const u32 after = row + n, n_next = division.rows_from(after);
            load_values(v, after, n_next, first);
            hold_loads<SHORT>();
            solve(of_chunk, r, out);
            write(columns, out, row, n, first);
            hold_loads<SHORT>();
            change_state(columns, of_chunk, factors, r);
            keep_after(after);
            row = after;
            n = n_next;
            meet();
        }
        keep(columns, of_seq.slot, first);
    }
};
#endif

#if defined(MMA_DOT)
#define DELTA_CHUNKS(WIDTH)                                                                                            \
    KERNEL(delta_chunks_##WIDTH, LinearParams, THREADS) { (void)p; }
#else
#define DELTA_CHUNKS(WIDTH)                                                                                            \
    KERNEL(delta_chunks_##WIDTH, LinearParams, THREADS) { Chunks<WIDTH>::run(p); }
#endif
// For keys of so many values.
DELTA_CHUNKS(64)
DELTA_CHUNKS(128)
