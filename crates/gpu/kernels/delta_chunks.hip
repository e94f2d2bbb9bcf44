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
// Operands are sums of two f16 (linear_chunks.h). Columns are scaled by powers of two, so that neither large nor small values
// leave the range of f16; keys are about as long as normed ones.
//
// Shared memory: two places for keys and queries of a chunk in two parts, 16 rows of (2 WIDTH + 16) bytes each, T and P, with
// factors of rows, and A in f32: 42,432 bytes for keys of 128 values.
#include "delta_rule.h"

constexpr u32 N_WAVES = 8;
constexpr u32 THREADS = N_WAVES * WARP_SIZE;
// Of a block; 0 where there are no matrix units, without which there is nothing to gain.
#if defined(MMA_DOT)
EXPORT_U32(chunk_threads, 0)
#else
EXPORT_U32(chunk_threads, THREADS)
#endif

#if !defined(MMA_DOT)
constexpr u32 KEY_WAVES = N_WAVES - COLUMN_WAVES, KEY_THREADS = KEY_WAVES * WARP_SIZE;
// COLUMNS as in src/ops/chunks.rs.
constexpr u32 COLUMNS = COLUMN_WAVES * 16;

template <u32 WIDTH> struct Chunks {
    static constexpr u32 STEPS = WIDTH / 16;
    static constexpr u32 PITCH = WIDTH * 2 + 16;
    static constexpr u32 KEY_BYTES = CHUNK * PITCH;
    // What waves with columns read of a chunk: keys, queries, T and P, each with its rounding errors, and the factors of rows.
    static constexpr u32 QUERIES_AT = 2 * KEY_BYTES, SOLVE_AT = 4 * KEY_BYTES, SCORES_AT = SOLVE_AT + 2 * SQUARE_BYTES;
    static constexpr u32 FACTORS_AT = SCORES_AT + 2 * SQUARE_BYTES;
    static constexpr u32 PLACE_BYTES = FACTORS_AT + 3 * CHUNK * 4;
    // What only the waves with keys read: g and A.
    static constexpr u32 SUMS_AT = 2 * PLACE_BYTES, BLOCK_AT = SUMS_AT + CHUNK * 4;
    static constexpr u32 BYTES = BLOCK_AT + CHUNK * CHUNK * 4;
    static_assert(BYTES <= 48 * 1024, "memory of a block");

    const LinearParams& p;
    u8* memory;
    Division<CHUNK> division;
    u32 seq, head, first_row;

    static DEV_MEMBER void run(const LinearParams& p) {
        SHARED(u8, memory, BYTES);
        const u32 seq = bid_y();
        const Division<CHUNK> division(p, seq);
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

    // Moves a chunk to shared memory, with the sums of its decays.
    DEV_MEMBER void put(const Loaded& from, u32 half, u32 of_wave, u32 thread) const {
        u8* keys = place(half);
#pragma unroll
        for (u32 i = 0; i < N_QUADS; i++) {
            const u32 at = (i * KEY_THREADS + thread) * QUAD;
            u8* to = keys + at / WIDTH * PITCH + at % WIDTH * 2;
            store_quad_parts(to, KEY_BYTES, from.k[i]);
            store_quad_parts(to + QUERIES_AT, KEY_BYTES, from.q[i]);
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

    // Both parts of 16 values of the rows of a chunk.
    static DEV_MEMBER Parts<KeyOperand> load_keys(const u8* rows) { return load_parts(rows, PITCH, KEY_BYTES); }

    // The products of keys, and T.
    DEV_MEMBER void multiply_keys(u32 half) const {
        const u8* keys = place(half);
        Product<3> product;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            const Parts<KeyOperand> key = load_keys(keys + i * 32);
            product.add(key, key);
        }
        float* a = block();
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 row = query_of(query_index(e)), key = other_of(e);
            a[row * CHUNK + key] = between(row, key) * betas(half)[row] * product.value(e);
        }
        wave_barrier(a, CHUNK * CHUNK * 4);
        invert(a, place(half) + SOLVE_AT);
    }
    // P.
    DEV_MEMBER void multiply_queries(u32 half) const {
        const u8* keys = place(half);
        Product<3> product;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) product.add(load_keys(keys + QUERIES_AT + i * 32), load_keys(keys + i * 32));
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 row = query_of(query_index(e)), key = other_of(e);
            store_square(place(half) + SCORES_AT, row, key, between(row, key) * product.value(e));
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

    static DEV_MEMBER void write(const HeadColumns& of, const Columns<WIDTH>& columns, const Tile::Acc& out, u32 row,
                                 u32 n) {
        float* to = of.p.out + of.offset_of(row);
        of.each_value(n, [&](u32 e, u32 of_chunk, u32 at) {
            if (of_chunk < n) to[at] = out.v[e] * columns.inverse[query_index(e)];
        });
    }

    // r = beta (V - e^g K S) and out = e^g Q S, both times the scale of columns.
    static DEV_MEMBER void apply_state(const Columns<WIDTH>& columns, const u8* keys, const float* factors,
                                       const Tile::Acc& v, Tile::Acc& r, Tile::Acc& out) {
        Product<3> known, found;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            const Parts<QueryOperand> s = parts_of(columns.s[i].v);
            known.add(s, load_keys(keys + i * 32));
            found.add(s, load_keys(keys + QUERIES_AT + i * 32));
            hold_loads<SHORT_OF_REGISTERS>();
        }
        factors += compared_here(other_of(0));
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 row = row_distance(e);
            const float value = v.v[e] * columns.scale[query_index(e)];
            r.v[e] = factors[2 * CHUNK + row] * fma(-factors[row], known.value(e), value);
            out.v[e] = factors[row] * found.value(e);
        }
    }

    // S <- e^(g_n) S + sum of e^(g_n - g_j) k_j u_j^T.
    static DEV_MEMBER void change_state(Columns<WIDTH>& columns, const u8* keys, const float* factors,
                                        const Tile::Acc& u) {
        const float all = factors[CHUNK - 1];
        const float* until_end = factors + CHUNK + compared_here(other_of(0));
        float d[ELEMENTS];
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) d[e] = u.v[e] * until_end[row_distance(e)];
        const Parts<QueryOperand> parts = parts_of(d);
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            Tile::Acc added = Tile::zero();
            const KeyOperand key = Tile::load_b_transposed(keys + i * 32, PITCH);
            mac(added, parts.high, Tile::load_b_transposed(keys + KEY_BYTES + i * 32, PITCH));
            mac(added, parts.low, key);
            mac(added, parts.high, key);
            columns.change(i, added, [&](u32) { return all; });
            hold_loads<SHORT_OF_REGISTERS>();
        }
    }

    DEV_MEMBER void pass_columns(u32 column) const {
        const SeqState of_seq = p.places[seq];
        const HeadColumns of = {p, head, first_row, column, 0};
        Columns<WIDTH> columns;
        columns.clear();
        if (of_seq.start != NO_SLOT) columns.load(of, of_seq.start);
        Copies<WIDTH> copies;
        copies.keep_after(0, division, of, columns);
        u32 n = division.rows_from(0);
        Tile::Acc v[1] = {Tile::zero()}, r, out;
        of.load(v[0], 0, n);
        // The first chunk is prepared.
        meet();
        meet();
        for (u32 row = 0, half = 0; row < division.n_rows; half ^= 1) {
            const u8* of_chunk = place(half);
            const float* factors = since_start(half);
            columns.rescale(v);
            apply_state(columns, of_chunk, factors, v[0], r, out);
            meet();
            const u32 after = row + n, n_next = division.rows_from(after);
            of.load(v[0], after, n_next);
            hold_loads<SHORT_OF_REGISTERS>();
            solve(of_chunk + SOLVE_AT, r);
            add_chunk(of_chunk + SCORES_AT, parts_of(r.v), out);
            write(of, columns, out, row, n);
            hold_loads<SHORT_OF_REGISTERS>();
            change_state(columns, of_chunk, factors, r);
            copies.keep_after(after, division, of, columns);
            row = after;
            n = n_next;
            meet();
        }
        columns.keep(of, of_seq.slot);
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
