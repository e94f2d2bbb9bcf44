// What the kernels of linear attention in chunks share (delta_chunks.hip, channel_chunks.hip, ssd_chunks.hip): products of
// numbers in two parts, the rows of a chunk, and the columns of a state in the registers of a wave.
//
// Sums are f32. Operands are each the sum of two f16, the second being the rounding error of the first: three products instead
// of one, with an error near that of f32 (tests/it/chunks). With rounded ones, errors of outputs and states over
// 8,000 rows were 1e-3 of the largest value in their column, and 4e-3 where keys are alike.
#pragma once
#include "operands.h"
#include "recurrent.h"

// Waves of a block with columns of the state.
constexpr u32 COLUMN_WAVES = 4;

// RDNA has few registers for operands that are loaded early.
#if defined(GPU_GFX11) || defined(GPU_GFX12)
constexpr bool SHORT_OF_REGISTERS = true;
#else
constexpr bool SHORT_OF_REGISTERS = false;
#endif

// The waves of a block meet. At one place in the source, since waves with columns and those with keys have a loop of their
// own.
DEV void meet() { shared_barrier(); }

// ---------------------------------------------------------------------------------------------- numbers in two parts
// The rounding errors of two numbers as f16. By the conversion of two, which the rounded numbers need, too.
DEV void errors_of(const float* x, float* to) {
    const u32 both = pack_halves(x[0], x[1]);
    to[0] = x[0] - h2f((u16)both);
    to[1] = x[1] - h2f((u16)(both >> 16));
}

// Writes four numbers as f16, and their rounding errors `distance` bytes behind.
DEV void store_quad_parts(u8* to, u32 distance, const Quad& x) {
    Quad errors;
    errors_of(x.v, errors.v);
    errors_of(x.v + 2, errors.v + 2);
    store8(to, {{pack_halves(x.v[0], x.v[1]), pack_halves(x.v[2], x.v[3])}});
    store8(to + distance, {{pack_halves(errors.v[0], errors.v[1]), pack_halves(errors.v[2], errors.v[3])}});
}
// The same of one number.
DEV void store_parts(u8* to, u32 distance, float x) {
    *(u16*)to = f2h(x);
    *(u16*)(to + distance) = f2h(x - h2f(f2h(x)));
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
// 16 values of 16 rows in shared memory; their rounding errors are `distance` bytes behind. As operands, rows are the same
// as columns.
DEV Parts<KeyOperand> load_parts(const u8* rows, u32 pitch, u32 distance) {
    return {load_key(rows, pitch), load_key(rows + distance, pitch)};
}

// A product of two parts each. With three sums, they do not wait for each other; with two, there are fewer registers.
template <u32 N_SUMS> struct Product {
    static_assert(N_SUMS == 2 || N_SUMS == 3, "that of rounded values, and those with errors");
    Tile::Acc sums[N_SUMS];

    DEV_MEMBER Product() {
#pragma unroll
        for (u32 i = 0; i < N_SUMS; i++) sums[i] = Tile::zero();
    }

    DEV_MEMBER void add(const Parts<QueryOperand>& x, const Parts<KeyOperand>& y) {
        mac(sums[1], x.low, y.high);
        mac(sums[0], x.high, y.high);
        mac(sums[N_SUMS - 1], x.high, y.low);
    }
    DEV_MEMBER float value(u32 e) const {
        float errors = sums[1].v[e];
        if constexpr (N_SUMS == 3) errors += sums[2].v[e];
        return sums[0].v[e] + errors;
    }
};

// ---------------------------------------------------------------------------------------------- powers of two
// Bits of the exponent of a power of two with which `most` is at least 2^TO, but less than 2^(TO + 1); of the nearest one
// with an inverse.
template <u32 TO> DEV u32 scale_exponent(float most) {
    return min_of(254 + TO - min_of(bits<u32>(most) >> 23, 254u), 253u);
}
DEV float power_of(u32 exponent) { return bits<float>(exponent << 23); }
DEV float inverse_of(u32 exponent) { return bits<float>((254 - exponent) << 23); }

// ---------------------------------------------------------------------------------------------- rows
// From a thread's first value to another one of a tile: rows of the chunk, or values of a key.
DEV u32 row_distance(u32 e) { return other_of(e) - other_of(0); }

// The chunks of a sequence, of up to CHUNK rows: they end where a copy of the state is kept.
template <u32 CHUNK> struct Division {
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

// 16 columns of a head, from `column` on: where their values are.
struct HeadColumns {
    const LinearParams& p;
    u32 head;
    // Of the sequence.
    u32 first_row;
    u32 column;
    // The row of the state that is the wave's first one.
    u32 first_key;

    // The offset of a row and the head in v and out.
    DEV_MEMBER u64 offset_of(u32 row) const {
        return ((u64)(first_row + row) * p.shape.n_heads + head) * p.shape.v_dim;
    }

    // Calls `f(element, row, offset)` for each value of 16 rows: its row there, and where it is in v and out from the first
    // row and the head on. Rows from `n` on have the place of the last one.
    template <typename F> DEV_MEMBER void each_value(u32 n, F f) const {
        const u32 stride = p.shape.n_heads * p.shape.v_dim, begin = compared_here(other_of(0));
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) {
            const u32 row = begin + row_distance(e);
            f(e, row, min_of(row, n - 1) * stride + column + query_of(query_index(e)));
        }
    }

    // Loads `n` values of each column from `row` on; those of other rows are zeros.
    DEV_MEMBER void load(Tile::Acc& v, u32 row, u32 n) const {
        if (n == 0) return;
        const float* from = p.v + offset_of(row);
        each_value(n, [&](u32 e, u32 of_tile, u32 at) {
            const float value = from[at];
            v.v[e] = of_tile < n ? value : 0.0f;
        });
    }
};

// ---------------------------------------------------------------------------------------------- the state
// WIDTH rows of the state of 16 columns, times `scale`, a power of two for each column.
template <u32 WIDTH> struct Columns {
    static constexpr u32 STEPS = WIDTH / 16;

    Tile::Acc s[STEPS];
    float scale[N_QUERIES], inverse[N_QUERIES];

    // Zeros.
    DEV_MEMBER void clear() {
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) s[i] = Tile::zero();
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) scale[i] = inverse[i] = 1.0f;
    }

    // S <- factor S + added in 16 rows, with `factor(element)`. The products are added outside of the matrix units: an H200's
    // truncate sums, which gave errors of 1e-4 after 500 chunks where a state does not decay.
    template <typename F> DEV_MEMBER void change(u32 i, const Tile::Acc& added, F factor) {
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) s[i].v[e] = fma(s[i].v[e], factor(e), added.v[e]);
    }

    // Calls `f(value, query, address)` for each value of the state in a slot. A block of a state has 32 columns.
    template <typename F> DEV_MEMBER void each(const HeadColumns& of, u32 slot, F f) {
        const LinearShape& shape = of.p.shape;
        const u32 column = compared_here(of.column + query_of(0));
        float* of_head = of.p.states + ((u64)slot * shape.n_heads + of.head) * shape.head_len();
        float* of_thread = of_head + column / 32 * 32 * shape.k_dim + column % 32 + (of.first_key + other_of(0)) * 32;
#pragma unroll
        for (u32 i = 0; i < STEPS; i++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++)
                f(s[i].v[e], query_index(e),
                  of_thread + (i * 16 + row_distance(e)) * 32 + query_of(query_index(e)) - query_of(0));
    }
    DEV_MEMBER void load(const HeadColumns& of, u32 slot) {
        each(of, slot, [](float& value, u32, const float* from) { value = *from; });
    }
    DEV_MEMBER void keep(const HeadColumns& of, u32 slot) {
        each(of, slot, [&](float value, u32 query, float* to) { *to = value * inverse[query]; });
    }

    // Scales columns so that the largest of their values in the state and in tiles of `v` is from 32 to 64. In products of
    // at most 32 rows, and with keys that are not much longer than 1, nothing then exceeds f16; and the smallest normal f16
    // is 2^-19 of it.
    template <u32 TILES> DEV_MEMBER void rescale(const Tile::Acc (&v)[TILES]) {
        float most[N_QUERIES] = {};
#pragma unroll
        for (u32 i = 0; i < STEPS; i++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++)
                most[query_index(e)] = max_of(most[query_index(e)], __builtin_fabsf(s[i].v[e]));
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) most[i] *= inverse[i];
#pragma unroll
        for (u32 t = 0; t < TILES; t++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++)
                most[query_index(e)] = max_of(most[query_index(e)], __builtin_fabsf(v[t].v[e]));
        float factor[N_QUERIES];
#pragma unroll
        for (u32 i = 0; i < N_QUERIES; i++) {
            const u32 exponent = scale_exponent<5>(reduce_lanes<Max, SAME_FROM, SAME_TO>(most[i]));
            factor[i] = power_of(exponent) * inverse[i];
            scale[i] = power_of(exponent);
            inverse[i] = inverse_of(exponent);
        }
#pragma unroll
        for (u32 i = 0; i < STEPS; i++)
#pragma unroll
            for (u32 e = 0; e < ELEMENTS; e++) s[i].v[e] *= factor[query_index(e)];
    }
};

// Keeps the state of columns in the slots of copies that are due, in order of the rows.
template <u32 WIDTH> struct Copies {
    u32 n_done = 0;

    template <u32 CHUNK>
    DEV_MEMBER void keep_after(u32 row, const Division<CHUNK>& division, const HeadColumns& of,
                               Columns<WIDTH>& columns) {
        for (; n_done < division.n_kept && uniform(division.kept[n_done].n_rows) == row; n_done++)
            columns.keep(of, division.kept[n_done].slot);
    }
};
