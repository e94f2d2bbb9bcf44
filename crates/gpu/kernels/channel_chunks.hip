// Linear attention of prompts by the delta rule with a factor for each channel of keys, in chunks on the matrix units (Kimi
// Team 2025, "Kimi Linear").
//
// Shapes and states are those of channel_decay_* in recurrent.hip. With g_i the sum of decays of each channel from the chunk's
// start to row i, for the 16 rows of a chunk and the state S before it:
//
//     A_ij = beta_i sum of k_ic e^(g_ic - g_jc) k_jc   for j < i,   T = (1 + A)^-1
//     U = T beta (V - (e^g K) S)
//     out = (e^g Q) S + P U         where P_ij = sum of q_ic e^(g_ic - g_jc) k_jc   for j <= i
//     S  <- e^(g_n) S + sum of (e^(g_n - g_j) k_j) u_j^T
//
// Channels may decay to nothing within a row. Factors are only ever e^(g_i - g_j) with j <= i, as products of those of rows,
// so none overflows and no small decay is lost beside large ones. Therefore A and P are sums over channels in f32: products of
// matrices would need e^(-g_j).
//
// A block has 64 columns of the state of a head and sequence. Four waves have 16 columns each, in registers, and pass all
// chunks through them. The threads of the other waves have a channel each, with all rows of a chunk. They meet three times per
// chunk:
//
//     waves with columns                     waves with channels
//     scale columns                          move e^(g_n - g) K to shared memory
//     multiply the state with keys, queries  T, P
//     solve, P U, change the state           of the next chunk: move e^g K and e^g Q to shared memory, add A and P
//
// Operands are sums of two f16 (linear_chunks.h). Columns are scaled by powers of two; keys are about as long as normed ones.
//
// Shared memory: e^g K, e^g Q and e^(g_n - g) K in two parts, 16 rows of (2 WIDTH + 16) bytes each, T and P, A in f32, parts of
// the sums over channels, and factors: 34,880 bytes.
#include "delta_rule.h"

// Values of a key.
constexpr u32 WIDTH = 128;
constexpr u32 KEY_WAVES = WIDTH / WARP_SIZE, N_WAVES = COLUMN_WAVES + KEY_WAVES;
constexpr u32 THREADS = N_WAVES * WARP_SIZE;
// Of a block; 0 where there are no matrix units, without which there is nothing to gain.
#if defined(MMA_DOT)
EXPORT_U32(chunk_threads, 0)
#else
EXPORT_U32(chunk_threads, THREADS)
#endif

#if !defined(MMA_DOT)
// COLUMNS as in src/ops/chunks.rs.
constexpr u32 COLUMNS = COLUMN_WAVES * 16;
// Queries are as short as the root of a key's length divides them; times this, their rounding errors are within f16.
constexpr float QUERY_SCALE = 64.0f;

// Adds N values over the lanes that differ in the bits below N. Lane l gets the sum of value l modulo N, as the first.
template <u32 N> DEV void add_across(float* x) {
    if constexpr (N > 1) {
        constexpr u32 HALF = N / 2;
        const bool is_upper = lane() & HALF;
#pragma unroll
        for (u32 i = 0; i < HALF; i++) {
            const float own = is_upper ? x[i + HALF] : x[i], other = is_upper ? x[i] : x[i + HALF];
            x[i] = own + lane_xor<HALF>(other);
        }
        add_across<HALF>(x);
    }
}

// The values of A and P, by pairs of columns: j and 15 - j have 15 values of A below the diagonal and 17 of P, together as
// many as a team has lanes.
constexpr u32 PAIRS = CHUNK / 2;
DEV u32 pair_of(u32 column) { return min_of(column, CHUNK - 1 - column); }
// Where they are among those of the pair.
DEV u32 place_of_p(u32 row, u32 column) { return column < PAIRS ? row - column : row + 1; }
DEV u32 place_of_a(u32 row, u32 column) { return CHUNK + (column < PAIRS ? row - column : row); }

struct Chunks {
    static constexpr u32 STEPS = WIDTH / 16, PITCH = WIDTH * 2 + 16, KEY_BYTES = CHUNK * PITCH;
    // Keys and queries times e^g, keys times e^(g_n - g), T and P, each with its rounding errors.
    static constexpr u32 QUERIES_AT = 2 * KEY_BYTES, LAST_KEYS_AT = 4 * KEY_BYTES, SOLVE_AT = 6 * KEY_BYTES;
    static constexpr u32 SCORES_AT = SOLVE_AT + 2 * SQUARE_BYTES, BLOCK_AT = SCORES_AT + 2 * SQUARE_BYTES;
    // A; the sums over the channels of each team; e^(g_n); beta.
    static constexpr u32 TEAMS = WIDTH / TEAM, SUMS_AT = BLOCK_AT + CHUNK * CHUNK * 4;
    static constexpr u32 FACTORS_AT = SUMS_AT + TEAMS * PAIRS * TEAM * 4, BETAS_AT = FACTORS_AT + WIDTH * 4;
    static constexpr u32 BYTES = BETAS_AT + CHUNK * 4;
    static_assert(BYTES <= 48 * 1024, "memory of a block");
    static_assert(2 * CHUNK == TEAM, "a lane for each value of two columns");

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

    DEV_MEMBER float* block() const { return (float*)(memory + BLOCK_AT); }
    DEV_MEMBER float* sums() const { return (float*)(memory + SUMS_AT); }
    DEV_MEMBER float* factors() const { return (float*)(memory + FACTORS_AT); }
    DEV_MEMBER float* betas() const { return (float*)(memory + BETAS_AT); }

    // ------------------------------------------------------------------------------------------ waves with channels
    // A channel of the rows of a chunk, and beta of row `channel`.
    struct Channel {
        float k[CHUNK], q[CHUNK], factor[CHUNK], beta;
    };

    // Loads `n` rows of the sequence from `row` on; the others are zeros that do not decay.
    DEV_MEMBER void load(Channel& to, u32 row, u32 n, u32 channel) const {
        const LinearShape& shape = p.shape;
        const u64 first = first_row + row;
        const u64 key = (first * shape.n_k_heads + shape.key_head(head)) * WIDTH;
        const float *k = p.k + key, *q = p.q + key;
        const float* decay = p.decay + (first * shape.n_heads + head) * WIDTH;
        const u32 key_stride = shape.n_k_heads * WIDTH, decay_stride = shape.n_heads * WIDTH;
        u32 of_key = compared_here(channel), of_decay = of_key;
#pragma unroll
        for (u32 t = 0; t < CHUNK; t++) {
            to.k[t] = to.q[t] = to.factor[t] = 0.0f;
            if (t < n) {
                to.k[t] = k[of_key];
                to.q[t] = q[of_key];
                to.factor[t] = decay[of_decay];
            }
            of_key += key_stride;
            of_decay += decay_stride;
        }
        to.beta = channel < n ? p.beta[(first + channel) * shape.n_heads + head] : 0.0f;
    }

    static DEV_MEMBER void store(u8* rows, u32 row, u32 channel, float x) {
        store_parts(rows + row * PITCH + channel * 2, KEY_BYTES, x);
    }

    // Moves keys and queries to shared memory, times e^g.
    DEV_MEMBER void put_since_start(Channel& of, u32 channel) const {
        float since_start = 1.0f;
#pragma unroll
        for (u32 t = 0; t < CHUNK; t++) {
            of.factor[t] = decay_factor(of.factor[t]);
            of.q[t] *= QUERY_SCALE;
            since_start *= of.factor[t];
            store(memory, t, channel, of.k[t] * since_start);
            store(memory + QUERIES_AT, t, channel, of.q[t] * since_start);
        }
    }

    // Moves keys to shared memory, times e^(g_n - g), and the factors.
    DEV_MEMBER void put_until_end(const Channel& of, u32 channel) const {
        float until_end = 1.0f;
#pragma unroll
        for (u32 i = 0; i < CHUNK; i++) {
            const u32 t = CHUNK - 1 - i;
            store(memory + LAST_KEYS_AT, t, channel, of.k[t] * until_end);
            until_end *= of.factor[t];
        }
        factors()[channel] = until_end;
        if (channel < CHUNK) betas()[channel] = of.beta;
    }

    // Adds the terms of A, without beta, and of P over the channels of a team.
    DEV_MEMBER void add_terms(const Channel& of, u32 channel) const {
#pragma unroll
        for (u32 pair = 0; pair < PAIRS; pair++) {
            float terms[TEAM];
#pragma unroll
            for (u32 of_pair = 0; of_pair < 2; of_pair++) {
                const u32 j = of_pair == 0 ? pair : CHUNK - 1 - pair;
                float key = of.k[j];
                terms[place_of_p(j, j)] = of.q[j] * key;
#pragma unroll
                for (u32 i = j + 1; i < CHUNK; i++) {
                    key *= of.factor[i];
                    terms[place_of_a(i, j)] = of.k[i] * key;
                    terms[place_of_p(i, j)] = of.q[i] * key;
                }
            }
            add_across<TEAM>(terms);
            sums()[(channel / TEAM * PAIRS + pair) * TEAM + channel % TEAM] = terms[0];
        }
    }

    // The sum over all channels.
    DEV_MEMBER float sum_of(u32 column, u32 place) const {
        const float* of_place = sums() + pair_of(column) * TEAM + place;
        float sum = 0.0f;
#pragma unroll
        for (u32 team = 0; team < TEAMS; team++) sum += of_place[team * PAIRS * TEAM];
        return sum;
    }

    // T.
    DEV_MEMBER void invert_keys() const {
        float* a = block();
        for (u32 at = lane(); at < CHUNK * CHUNK; at += WARP_SIZE) {
            const u32 row = at / CHUNK, column = at % CHUNK;
            a[at] = column < row ? betas()[row] * sum_of(column, place_of_a(row, column)) : 0.0f;
        }
        wave_barrier(a, CHUNK * CHUNK * 4);
        invert(a, memory + SOLVE_AT);
    }
    // P.
    DEV_MEMBER void put_scores() const {
        for (u32 at = lane(); at < CHUNK * CHUNK; at += WARP_SIZE) {
            const u32 row = at / CHUNK, column = at % CHUNK;
            const float x = column <= row ? sum_of(column, place_of_p(row, column)) : 0.0f;
            store_square(memory + SCORES_AT, row, column, x);
        }
    }

    DEV_MEMBER void prepare_keys(u32 of_wave) const {
        const u32 channel = of_wave * WARP_SIZE + lane();
        Channel of;
        u32 row = 0, n = division.rows_from(0);
        load(of, row, n, channel);
        while (row < division.n_rows) {
            put_since_start(of, channel);
            add_terms(of, channel);
            meet();
            put_until_end(of, channel);
            row += n;
            n = division.rows_from(row);
            load(of, row, n, channel);
            meet();
            if (of_wave == 0) invert_keys();
            if (of_wave == 1) put_scores();
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

    // r = beta (V - (e^g K) S) and out = (e^g Q) S, both times the scale of columns.
    DEV_MEMBER void apply_state(const Columns<WIDTH>& columns, const Tile::Acc& v, Tile::Acc& r, Tile::Acc& out) const {
        Product<3> known, found;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            const Parts<QueryOperand> s = parts_of(columns.s[i].v);
            known.add(s, load_parts(memory + i * 32, PITCH, KEY_BYTES));
            found.add(s, load_parts(memory + QUERIES_AT + i * 32, PITCH, KEY_BYTES));
            hold_loads<SHORT_OF_REGISTERS>();
        }
        const float* beta = betas() + compared_here(other_of(0));
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const float value = v.v[e] * columns.scale[query_index(e)];
            r.v[e] = beta[row_distance(e)] * (value - known.value(e));
            out.v[e] = found.value(e);
        }
    }

    static DEV_MEMBER void write(const HeadColumns& of, const Columns<WIDTH>& columns, const Tile::Acc& out, u32 row,
                                 u32 n) {
        float* to = of.p.out + of.offset_of(row);
        of.each_value(n, [&](u32 e, u32 of_chunk, u32 at) {
            if (of_chunk < n) to[at] = out.v[e] * (1.0f / QUERY_SCALE) * columns.inverse[query_index(e)];
        });
    }

    // S <- e^(g_n) S + sum of (e^(g_n - g_j) k_j) u_j^T.
    DEV_MEMBER void change_state(Columns<WIDTH>& columns, const Parts<QueryOperand>& u) const {
        const u8* keys = memory + LAST_KEYS_AT;
        const float* of_rows = factors() + compared_here(other_of(0));
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            Tile::Acc added = Tile::zero();
            const KeyOperand key = Tile::load_b_transposed(keys + i * 32, PITCH);
            mac(added, u.high, Tile::load_b_transposed(keys + KEY_BYTES + i * 32, PITCH));
            mac(added, u.low, key);
            mac(added, u.high, key);
            columns.change(i, added, [&](u32 e) { return of_rows[i * 16 + row_distance(e)]; });
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
        for (u32 row = 0; row < division.n_rows;) {
            meet();
            columns.rescale(v);
            meet();
            apply_state(columns, v[0], r, out);
            meet();
            const u32 after = row + n, n_next = division.rows_from(after);
            of.load(v[0], after, n_next);
            hold_loads<SHORT_OF_REGISTERS>();
            solve(memory + SOLVE_AT, r);
            const Parts<QueryOperand> u = parts_of(r.v);
            add_chunk(memory + SCORES_AT, u, out);
            write(of, columns, out, row, n);
            hold_loads<SHORT_OF_REGISTERS>();
            change_state(columns, u);
            copies.keep_after(after, division, of, columns);
            row = after;
            n = n_next;
        }
        columns.keep(of, of_seq.slot);
    }
};
#endif

KERNEL(channel_chunks_128, LinearParams, THREADS) {
#if defined(MMA_DOT)
    (void)p;
#else
    Chunks::run(p);
#endif
}
