// Linear attention of prompts without the delta rule, with a factor for each head, in chunks on the matrix units: Mamba-2 (Dao
// and Gu 2024, "Transformers are SSMs", where it is called SSD).
//
// Shapes and states are those of linear_attention_* in recurrent.hip. With g_i the sum of decays from the chunk's start to
// row i, for the rows of a chunk and the state S before it:
//
//     U = beta V
//     out = e^g Q S + P U                     where P_ij = e^(g_i - g_j) q_i . k_j   for j <= i
//     S  <- e^(g_n) S + sum of e^(g_n - g_j) k_j u_j^T
//
// Factors are only ever e^(g_i - g_j) with j <= i, so that none overflows. Keys and queries of any length occur. They are
// multiplied with a power of two for each row; U, and the outputs, with what undoes it. So are columns. So the operands, which
// are sums of two f16 (linear_chunks.h), are never far from 1.
//
// A block has 64 columns of the state of a head and sequence. Four waves have 16 columns each, in registers, and pass all
// chunks through them: the results of a product are operands of the next one. With keys of 256 values, there are 32 columns,
// and two waves have half of the rows of each, with scales of their own. Four other waves prepare keys and queries. They all
// meet three times per chunk:
//
//     waves with columns                          waves with keys
//     scale columns                               move keys to shared memory
//     multiply the state with queries             P
//     P U, change the state                       move queries and factors of the next chunk to shared memory
//
// A chunk has 32 rows, which share the state's conversion to f16; with keys of 256 values 16, for which there is memory, and
// with those of 128 values on RDNA 3, for which there are registers: each lane has whole rows of operands.
//
// Shared memory: keys and queries of a chunk in two parts, rows of (2 WIDTH + 16) bytes each, P, factors of rows for two
// chunks, and what other waves have of outputs: 41,728 bytes for keys of 128 values, 38,272 for keys of 256.
#include "linear_chunks.h"

constexpr u32 N_WAVES = 8;
constexpr u32 THREADS = N_WAVES * WARP_SIZE;
// Of a block; 0 where there are no matrix units, without which there is nothing to gain.
#if defined(MMA_DOT)
EXPORT_U32(chunk_threads, 0)
#else
EXPORT_U32(chunk_threads, THREADS)
#endif

#if !defined(MMA_DOT)
constexpr u32 KEY_WAVES = N_WAVES - COLUMN_WAVES;

// A sum of decays and its rounding error: where some rows decay by 100, sums would lose bits of those that decay little.
struct ExactSum {
    float high, low;

    DEV_MEMBER void add(float of_high, float of_low) {
        const float sum = high + of_high, part = sum - high;
        low += of_low + ((high - (sum - part)) + (of_high - part));
        high = sum;
    }
};

// SHARING: waves with parts of the same columns.
template <u32 WIDTH, u32 CHUNK, u32 SHARING> struct Chunks {
    static constexpr u32 TILES = CHUNK / 16, OF_WAVE = WIDTH / SHARING, STEPS = OF_WAVE / 16;
    static constexpr u32 GROUPS = COLUMN_WAVES / SHARING, COLUMNS = GROUPS * 16;
    using State = Columns<OF_WAVE>;
    static constexpr u32 PITCH = WIDTH * 2 + 16, SQUARE_PITCH = CHUNK * 2 + 16;
    static constexpr u32 KEY_BYTES = CHUNK * PITCH, SQUARE_BYTES = CHUNK * SQUARE_PITCH;
    // Keys, queries and P, each with its rounding errors, and the factors of rows of two chunks.
    static constexpr u32 QUERIES_AT = 2 * KEY_BYTES, SCORES_AT = 4 * KEY_BYTES;
    static constexpr u32 FACTORS_AT = SCORES_AT + 2 * SQUARE_BYTES, N_FACTORS = 7;
    static constexpr u32 OUTPUTS_AT = FACTORS_AT + 2 * N_FACTORS * CHUNK * 4;
    static constexpr u32 BYTES = OUTPUTS_AT + (SHARING - 1) * COLUMNS * CHUNK * 4;
    static_assert(BYTES <= 48 * 1024, "memory of a block");
    static_assert(SHARING <= 2, "outputs of one other wave");
    static_assert(CHUNK <= WARP_SIZE && TILES * (TILES + 1) / 2 <= KEY_WAVES, "a wave for each tile of P");

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
        const u32 group = of_wave % GROUPS, column = bid_x() % p.n_groups * COLUMNS + group * 16;
        if (of_wave >= COLUMN_WAVES) chunks.prepare_keys(of_wave - COLUMN_WAVES);
        else if (column < p.shape.v_dim) chunks.pass_columns(column, of_wave / GROUPS);
        else chunks.only_meet();
    }

    // Of each row of a chunk: g in two parts, e^g, e^(g_n - g), beta, and the inverse scales of its key and its query.
    struct Factors {
        float *sums, *rest, *since_start, *until_end, *betas, *of_keys, *of_queries;
    };
    DEV_MEMBER Factors factors(u32 half) const {
        float* first = (float*)(memory + FACTORS_AT) + half * N_FACTORS * CHUNK;
        return {first,
                first + CHUNK,
                first + 2 * CHUNK,
                first + 3 * CHUNK,
                first + 4 * CHUNK,
                first + 5 * CHUNK,
                first + 6 * CHUNK};
    }

    // ------------------------------------------------------------------------------------------ waves with keys
    // A wave has some rows; a row is divided among neighbouring lanes.
    static constexpr u32 ROWS_OF_WAVE = CHUNK / KEY_WAVES, N_QUADS = ROWS_OF_WAVE * WIDTH / QUAD / WARP_SIZE;
    static constexpr u32 LANES_OF_ROW = min_of(WIDTH / QUAD, WARP_SIZE), QUADS_OF_LANE = WIDTH / QUAD / LANES_OF_ROW;
    static_assert(N_QUADS * WARP_SIZE * QUAD == ROWS_OF_WAVE * WIDTH, "equal parts for all threads");

    // Calls `f(index, row of the chunk, value of the row)` for each quad of a thread.
    template <typename F> static DEV_MEMBER void each_quad(u32 of_wave, F f) {
#pragma unroll
        for (u32 i = 0; i < N_QUADS; i++) {
            const u32 at = (i * WARP_SIZE + lane()) * QUAD;
            f(i, of_wave * ROWS_OF_WAVE + at / WIDTH, at % WIDTH);
        }
    }

    // Loads `n` rows of keys or queries from `row` on; the others are zeros.
    DEV_MEMBER void load(Quad (&to)[N_QUADS], const float* from, u32 row, u32 n, u32 of_wave) const {
        const LinearShape& shape = p.shape;
        const float* of_chunk = from + ((u64)(first_row + row) * shape.n_k_heads + shape.key_head(head)) * WIDTH;
        const u32 stride = shape.n_k_heads * WIDTH;
        each_quad(of_wave, [&](u32 i, u32 t, u32 at) {
            to[i] = Quad{};
            if (t < n) to[i] = bits<Quad>(load16(of_chunk + t * stride + at));
        });
    }

    struct RowFactors {
        float decay, beta;
    };
    // The factors of row `lane()` of a chunk.
    DEV_MEMBER RowFactors load_factors(u32 row, u32 n) const {
        if (lane() >= n) return {0.0f, 0.0f};
        const u64 index = (u64)(first_row + row + lane()) * p.shape.n_heads + head;
        return {p.decay[index], p.beta[index]};
    }

    // Multiplies each row with a power of two with which its largest value is from 2 to 4. Products of two rows are then at
    // most 2^12, which is within f16.
    static DEV_MEMBER void scale(Quad (&x)[N_QUADS], float* inverses, u32 of_wave) {
        u32 exponent = 0;
        each_quad(of_wave, [&](u32 i, u32 t, u32 at) {
            if (i % QUADS_OF_LANE == 0) {
                float most = 0.0f;
#pragma unroll
                for (u32 j = 0; j < QUADS_OF_LANE * QUAD; j++)
                    most = max_of(most, __builtin_fabsf(x[i + j / QUAD].v[j % QUAD]));
                exponent = scale_exponent<1>(reduce_lanes<Max, 1, LANES_OF_ROW>(most));
                if (at == 0) inverses[t] = inverse_of(exponent);
            }
#pragma unroll
            for (u32 j = 0; j < QUAD; j++) x[i].v[j] *= power_of(exponent);
        });
    }

    // Moves keys or queries to shared memory.
    static DEV_MEMBER void put(const Quad (&x)[N_QUADS], u8* to, u32 of_wave) {
        each_quad(of_wave, [&](u32 i, u32 t, u32 at) { store_quad_parts(to + t * PITCH + at * 2, KEY_BYTES, x[i]); });
    }

    // Moves the factors of rows to shared memory.
    static DEV_MEMBER void put(const RowFactors& from, const Factors& to) {
        // e^-100 is nothing.
        ExactSum sum = {max_of(from.decay, -100.0f), 0.0f};
#pragma unroll
        for (u32 distance = 1; distance < CHUNK; distance *= 2) {
            const float high = shuffle(sum.high, lane() - distance), low = shuffle(sum.low, lane() - distance);
            if (lane() >= distance) sum.add(high, low);
        }
        const float high = shuffle(sum.high, CHUNK - 1), low = shuffle(sum.low, CHUNK - 1);
        if (lane() >= CHUNK) return;
        to.sums[lane()] = sum.high;
        to.rest[lane()] = sum.low;
        to.since_start[lane()] = exp_of(sum.high + sum.low);
        to.until_end[lane()] = exp_of((high - sum.high) + (low - sum.low));
        to.betas[lane()] = from.beta;
    }

    // P, without the scales of keys and queries. Each wave has a tile.
    DEV_MEMBER void multiply(u32 half, u32 of_wave) const {
        const u32 of_row = of_wave == 0 ? 0 : 1, of_key = of_wave == 2 ? 1 : 0;
        if (of_wave >= TILES * (TILES + 1) / 2) return;
        const u8 *keys = memory + of_key * 16 * PITCH, *queries = memory + QUERIES_AT + of_row * 16 * PITCH;
        Product<3> product;
#pragma unroll
        for (u32 i = 0; i < WIDTH / 16; i++)
            product.add(load_parts(queries + i * 32, PITCH, KEY_BYTES), load_parts(keys + i * 32, PITCH, KEY_BYTES));
        const Factors of = factors(half);
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 row = of_row * 16 + query_of(query_index(e)), key = of_key * 16 + other_of(e);
            const float between = exp_of((of.sums[row] - of.sums[key]) + (of.rest[row] - of.rest[key]));
            store_parts(memory + SCORES_AT + row * SQUARE_PITCH + key * 2, SQUARE_BYTES,
                        key <= row ? between * product.value(e) : 0.0f);
        }
    }

    DEV_MEMBER void prepare_keys(u32 of_wave) const {
        Quad k[N_QUADS], q[N_QUADS];
        u32 row = 0, n = division.rows_from(0);
        load(k, p.k, row, n, of_wave);
        load(q, p.q, row, n, of_wave);
        RowFactors of_row = load_factors(row, n);
        for (u32 half = 0; row < division.n_rows; half ^= 1) {
            const Factors to = factors(half);
            scale(k, to.of_keys, of_wave);
            scale(q, to.of_queries, of_wave);
            put(q, memory + QUERIES_AT, of_wave);
            if (of_wave == 0) put(of_row, to);
            row += n;
            n = division.rows_from(row);
            load(q, p.q, row, n, of_wave);
            of_row = load_factors(row, n);
            meet();
            put(k, memory, of_wave);
            load(k, p.k, row, n, of_wave);
            meet();
            multiply(half, of_wave);
            meet();
        }
    }

    // ------------------------------------------------------------------------------------------ waves with columns
    // What a wave without columns does.
    DEV_MEMBER void only_meet() const {
        for (u32 row = 0; row < division.n_rows; row += division.rows_from(row)) {
            meet();
            meet();
            meet();
        }
    }

    // Calls `f(tile, element, row of the chunk)` for each value of a thread in the rows of a chunk.
    template <typename F> static DEV_MEMBER void each_row(F f) {
        const u32 begin = compared_here(other_of(0));
#pragma unroll
        for (u32 t = 0; t < TILES; t++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) f(t, e, begin + t * 16 + row_distance(e));
    }

    static DEV_MEMBER void load_values(const HeadColumns& of, Tile::Acc (&v)[TILES], u32 row, u32 n) {
#pragma unroll
        for (u32 t = 0; t < TILES; t++) {
            v[t] = Tile::zero();
            if (t * 16 < n) of.load(v[t], row + t * 16, n - t * 16);
        }
    }

    // U in place of `v`, times the scales of columns and what undoes those of keys.
    static DEV_MEMBER void scale_values(State& columns, const Factors& factors, Tile::Acc (&v)[TILES]) {
        each_row([&](u32 t, u32 e, u32 row) { v[t].v[e] *= factors.betas[row] * factors.of_keys[row]; });
        columns.rescale(v);
        each_row([&](u32 t, u32 e, u32) { v[t].v[e] *= columns.scale[query_index(e)]; });
    }

    // out = e^g Q S, of the wave's part of the state.
    DEV_MEMBER void apply_state(const State& columns, u32 first_key, const Factors& factors,
                                Tile::Acc (&out)[TILES]) const {
        const u8* queries = memory + QUERIES_AT + first_key * 2;
        Product<2> found[TILES];
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            const Parts<QueryOperand> s = parts_of(columns.s[i].v);
#pragma unroll
            for (u32 t = 0; t < TILES; t++) {
                found[t].add(s, load_parts(queries + t * 16 * PITCH + i * 32, PITCH, KEY_BYTES));
                hold_loads<SHORT_OF_REGISTERS>();
            }
        }
        each_row([&](u32 t, u32 e, u32 row) { out[t].v[e] = factors.since_start[row] * found[t].value(e); });
    }

    // out += P U.
    DEV_MEMBER void add_chunk(const Tile::Acc (&u)[TILES], Tile::Acc (&out)[TILES]) const {
#pragma unroll
        for (u32 t = 0; t < TILES; t++) {
            Product<2> of_chunk;
#pragma unroll
            for (u32 j = 0; j <= t; j++) {
                const u8* scores = memory + SCORES_AT + t * 16 * SQUARE_PITCH + j * 32;
                of_chunk.add(parts_of(u[j].v), load_parts(scores, SQUARE_PITCH, SQUARE_BYTES));
            }
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) out[t].v[e] += of_chunk.value(e);
        }
    }

    // The place of a value of this thread's columns in what waves have of outputs.
    DEV_MEMBER float* shared_output(u32 t, u32 e) const {
        const u32 group = wave() % GROUPS;
        return (float*)(memory + OUTPUTS_AT) + ((group * TILES + t) * ELEMENTS + e) * WARP_SIZE + lane();
    }
    // Leaves a part of the outputs to the wave with the first one.
    DEV_MEMBER void leave(const State& columns, const Tile::Acc (&out)[TILES]) const {
        each_row([&](u32 t, u32 e, u32) { *shared_output(t, e) = out[t].v[e] * columns.inverse[query_index(e)]; });
    }

    DEV_MEMBER void write(const HeadColumns& of, const State& columns, const Factors& factors,
                          const Tile::Acc (&out)[TILES], u32 row, u32 n) const {
#pragma unroll
        for (u32 t = 0; t < TILES; t++) {
            if (t * 16 >= n) return;
            const u32 n_of_tile = n - t * 16;
            float* to = p.out + of.offset_of(row + t * 16);
            of.each_value(n_of_tile, [&](u32 e, u32 of_tile, u32 at) {
                float value = out[t].v[e] * columns.inverse[query_index(e)];
                if constexpr (SHARING > 1) value += *shared_output(t, e);
                if (of_tile < n_of_tile) to[at] = value * factors.of_queries[t * 16 + of_tile];
            });
        }
    }

    // S <- e^(g_n) S + sum of e^(g_n - g_j) k_j u_j^T.
    DEV_MEMBER void change_state(State& columns, u32 first_key, const Factors& factors,
                                 const Tile::Acc (&u)[TILES]) const {
        const float all = factors.since_start[CHUNK - 1];
        Tile::Acc d[TILES];
        each_row([&](u32 t, u32 e, u32 row) { d[t].v[e] = u[t].v[e] * factors.until_end[row]; });
        Parts<QueryOperand> parts[TILES];
#pragma unroll
        for (u32 t = 0; t < TILES; t++) parts[t] = parts_of(d[t].v);
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            Tile::Acc added = Tile::zero();
#pragma unroll
            for (u32 t = 0; t < TILES; t++) {
                const u8* keys = memory + first_key * 2 + t * 16 * PITCH + i * 32;
                const KeyOperand key = Tile::load_b_transposed(keys, PITCH);
                mac(added, parts[t].high, Tile::load_b_transposed(keys + KEY_BYTES, PITCH));
                mac(added, parts[t].low, key);
                mac(added, parts[t].high, key);
            }
            columns.change(i, added, [&](u32) { return all; });
            hold_loads<SHORT_OF_REGISTERS>();
        }
    }

    DEV_MEMBER void pass_columns(u32 column, u32 part) const {
        const SeqState of_seq = p.places[seq];
        const u32 first_key = part * OF_WAVE;
        const HeadColumns of = {p, head, first_row, column, first_key};
        State columns;
        columns.clear();
        if (of_seq.start != NO_SLOT) columns.load(of, of_seq.start);
        Copies<OF_WAVE> copies;
        copies.keep_after(0, division, of, columns);
        u32 n = division.rows_from(0);
        Tile::Acc v[TILES], u[TILES], out[TILES];
        load_values(of, v, 0, n);
        for (u32 row = 0, half = 0; row < division.n_rows; half ^= 1) {
            const Factors of_rows = factors(half);
            meet();
#pragma unroll
            for (u32 t = 0; t < TILES; t++) u[t] = v[t];
            scale_values(columns, of_rows, u);
            meet();
            apply_state(columns, first_key, of_rows, out);
            if (SHARING > 1 && part != 0) leave(columns, out);
            meet();
            const u32 after = row + n, n_next = division.rows_from(after);
            load_values(of, v, after, n_next);
            hold_loads<SHORT_OF_REGISTERS>();
            if (part == 0) {
                add_chunk(u, out);
                write(of, columns, of_rows, out, row, n);
            }
            hold_loads<SHORT_OF_REGISTERS>();
            change_state(columns, first_key, of_rows, u);
            copies.keep_after(after, division, of, columns);
            row = after;
            n = n_next;
        }
        columns.keep(of, of_seq.slot);
    }
};
#endif

#if defined(MMA_DOT)
#define SSD_CHUNKS(WIDTH, CHUNK, SHARING)                                                                              \
    KERNEL(ssd_chunks_##WIDTH, LinearParams, THREADS) { (void)p; }
#else
#define SSD_CHUNKS(WIDTH, CHUNK, SHARING)                                                                              \
    KERNEL(ssd_chunks_##WIDTH, LinearParams, THREADS) { Chunks<WIDTH, CHUNK, SHARING>::run(p); }
#endif
// For keys of so many values. Columns of a block as in src/ops/chunks.rs.
SSD_CHUNKS(64, 32, 1)
#if defined(GPU_GFX11)
SSD_CHUNKS(128, 16, 1)
#else
SSD_CHUNKS(128, 32, 1)
#endif
SSD_CHUNKS(256, 16, 2)
