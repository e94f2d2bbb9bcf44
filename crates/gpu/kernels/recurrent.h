// What operations with states of sequences share: the places of states, convolutions with the rows before, and the columns
// of a state in registers.
#pragma once
#include "activation.h"
#include "early.h"
#include "quad.h"
#include "step.h"

// ---------------------------------------------------------------------------------------------- places
// As in src/step.rs. In place of the slot of a state that is zeros.
constexpr u32 NO_SLOT = 0xffffffffu;

// Where the state of a sequence is.
struct SeqState {
    // The slot that holds it after the step.
    u32 slot;
    // The slot that holds it before, or NO_SLOT.
    u32 start;
    // Copies on the way.
    u32 first_kept;
    u32 n_kept;
    FIELDS(slot, start, first_kept, n_kept)
};

// A copy of the state after some rows of a sequence, in order of the rows.
struct KeptState {
    u32 n_rows;
    u32 slot;
    FIELDS(n_rows, slot)
};

// e^x, at most 1, by which a row multiplies a state. Near 1, exponentials of GPUs err to one side, and thousands of rows
// add that up.
DEV float decay_factor(float x) { return x < -0.5f ? exp_of(x) : 1.0f + exp_minus_one(x); }

// ---------------------------------------------------------------------------------------------- convolution
struct Conv {
    const float* x;
    const float* weight;
    // May be missing.
    const float* bias;
    float* states;
    const SeqRows* seqs;
    const SeqState* places;
    const KeptState* kept;
    u32 width;
    u32 n_taps;
    // Whether rows are b, c and x.
    u32 gated;
    // Rows of a sequence per block, at least n - 1.
    u32 n_block_rows;
    // Whether rows are whole quads and all addresses multiples of 16.
    u32 aligned;
    u32 pad;
    FIELDS(x, weight, bias, states, seqs, places, kept, width, n_taps, gated, n_block_rows, aligned, pad)
};

// The rows of a sequence of the step and the place of its state, read before the kernel begins.
struct EarlySeq {
    SeqRows rows;
    SeqState place;
    DEV_MEMBER static EarlySeq of(const SeqRows* seqs, const SeqState* places, u32 seq) {
#if defined(GPU_NV)
        return {bits<SeqRows>(early16(seqs + seq)), bits<SeqState>(early16(places + seq))};
#else
        return {seqs[seq], places[seq]};
#endif
    }
};

// The same number. AMD compilers keep no comparison with it from before in scalar registers, of which there are few.
DEV u32 compared_here(u32 v) {
#if defined(GPU_AMD)
    asm volatile("" : "+v"(v));
#endif
    return v;
}

// Four neighbouring values of the rows of a sequence, and of those before, which are in its state.
struct ConvQuad {
    const Conv& p;
    SeqRows seq;
    SeqState place;
    u32 at;
    // Value behind the last one.
    u32 end;

    DEV_MEMBER Quad load(const float* from) const { return load_quad(from, compared_here(at), end, p.aligned); }

    // An input of the convolution, by the number of its row plus n - 1.
    DEV_MEMBER Quad input(u32 number) const {
        const u32 n_before = p.n_taps - 1;
        if (number < n_before) {
            if (place.start == NO_SLOT) return Quad{};
            return load(p.states + ((u64)place.start * n_before + number) * p.width);
        }
        const u64 row = seq.first_row + number - n_before;
        if (!p.gated) return load(p.x + row * p.width);
        const float* of_row = p.x + row * 3 * p.width;
        Quad input = load(of_row + 2 * p.width);
        const Quad b = load(of_row);
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) input.v[i] *= b.v[i];
        return input;
    }

    // The output of a row.
    DEV_MEMBER Quad output(u32 row) const {
        Quad sum = {};
        if (p.bias) sum = load(p.bias);
        for (u32 i = 0; i < p.n_taps; i++) {
            const Quad weight = load(p.weight + (u64)i * p.width), x = input(row + i);
#pragma unroll
            for (u32 k = 0; k < QUAD; k++) sum.v[k] = fma(weight.v[k], x.v[k], sum.v[k]);
        }
        if (p.gated) {
            const Quad c = load(p.x + ((u64)(seq.first_row + row) * 3 + 1) * p.width);
#pragma unroll
            for (u32 k = 0; k < QUAD; k++) sum.v[k] *= c.v[k];
        }
        return sum;
    }

    // Writes the state after `n_rows` rows. From the oldest input on, so that it may replace the old state.
    DEV_MEMBER void keep(u32 n_rows, u32 slot) const {
        const u32 n_before = p.n_taps - 1;
        float* to = p.states + (u64)slot * n_before * p.width;
        for (u32 i = 0; i < n_before; i++, to += p.width) store_quad(to, at, end, p.aligned, input(n_rows + i));
    }

    // Writes all states of the step. Called after the outputs of the first rows, which need the old one.
    DEV_MEMBER void keep_all() const {
        for (u32 i = 0; i < place.n_kept; i++) {
            const KeptState kept = p.kept[place.first_kept + i];
            keep(kept.n_rows, kept.slot);
        }
        keep(seq.n_rows, place.slot);
    }
};

// ---------------------------------------------------------------------------------------------- columns of states
// LANES threads share a column of a state; each has the values of it whose number, by fours, modulo LANES is its own.
// Values of a column per thread, and of these by fours.
constexpr u32 HELD = 32;
constexpr u32 HELD_QUADS = HELD / QUAD;

// The heads of linear attention; a state is [n_heads, n_blocks, k_dim, columns].
struct LinearShape {
    u32 n_heads;
    u32 n_k_heads;
    u32 k_dim;
    u32 v_dim;
    // Columns of a block of the state: 16 or 32.
    u32 columns;
    // Whether head h uses the keys h mod n_k_heads, not those of its neighbours.
    u32 strided;
    // Whether what the state has for a key is subtracted from the value.
    u32 delta;
    // Whether keys are whole quads and their addresses multiples of 16.
    u32 aligned;
    FIELDS(n_heads, n_k_heads, k_dim, v_dim, columns, strided, delta, aligned)

    DEV_MEMBER u32 key_head(u32 head) const { return strided ? head % n_k_heads : head / (n_heads / n_k_heads); }
    DEV_MEMBER u32 padded() const { return div_up(v_dim, columns) * columns; }
    DEV_MEMBER u64 head_len() const { return (u64)k_dim * padded(); }
};

struct LinearParams {
    const float* q;
    const float* k;
    const float* v;
    const float* decay;
    const float* beta;
    // Only of values.
    float* rates;
    float* states;
    float* out;
    const SeqRows* seqs;
    const SeqState* places;
    const KeptState* kept;
    LinearShape shape;
    // Blocks of threads per head.
    u32 n_groups;
    // Sequences with up to so many rows are passed row by row (recurrent.hip), those with more in chunks (linear_chunks.h).
    u32 n_short;
    FIELDS(q, k, v, decay, beta, rates, states, out, seqs, places, kept, shape, n_groups, n_short)
};

template <u32 LANES> struct Column {
    static constexpr u32 OF_WAVE = WARP_SIZE / LANES;
    // A key with zeros behind it.
    static constexpr u32 KEY_WIDTH = LANES * HELD;

    // The column's number among those of the block, and the thread's among those of the column.
    u32 of_block, part;
    float s[HELD];

    DEV_MEMBER Column() : of_block(wave() * OF_WAVE + lane() % OF_WAVE), part(lane() / OF_WAVE), s{} {}

    // Calls `f(i, address)` for each value of the thread; `first` is the address of the column's first value, and
    // N_COLUMNS the distance to the next. A constant, or there would be a register for each address.
    template <u32 N_COLUMNS, typename F> DEV_MEMBER void each_of(u32 k_dim, float* first, F f) {
        float* of_part = first + part * QUAD * N_COLUMNS;
        const u32 from_part = compared_here(part * QUAD);
#pragma unroll
        for (u32 i = 0; i < HELD; i++) {
            const u32 k = i / QUAD * LANES * QUAD + i % QUAD;
            if (from_part + k < k_dim) f(i, of_part + k * N_COLUMNS);
        }
    }

    // The same for the column with this number in the state of a head, in a slot of `states`.
    template <typename F>
    DEV_MEMBER void each(const LinearShape& shape, float* states, u32 slot, u32 head, u32 column, F f) {
        if (column >= shape.padded()) return;
        const u64 of_block = (u64)(column / shape.columns) * shape.k_dim * shape.columns + column % shape.columns;
        float* first = states + ((u64)slot * shape.n_heads + head) * shape.head_len() + of_block;
        if (shape.columns == 32) each_of<32>(shape.k_dim, first, f);
        else each_of<16>(shape.k_dim, first, f);
    }

    // The sum over the threads of a column, which are neighbours at a distance of OF_WAVE, in a fixed order.
    DEV_MEMBER static float sum(float v) {
#pragma unroll
        for (u32 mask = OF_WAVE; mask < WARP_SIZE; mask *= 2) v += shuffle_xor(v, mask);
        return v;
    }

    // The thread's part of S^T x.
    DEV_MEMBER float product(const float* x) const {
        float sum[QUAD] = {};
#pragma unroll
        for (u32 i = 0; i < HELD_QUADS; i++) {
            const Quad quad = bits<Quad>(load16(x + (i * LANES + part) * QUAD));
#pragma unroll
            for (u32 j = 0; j < QUAD; j++) sum[j] = fma(s[i * QUAD + j], quad.v[j], sum[j]);
        }
        return (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }

    // Multiplies each row of S with a factor; returns the thread's part of S^T k.
    DEV_MEMBER float decay_rows(const float* factors, const float* k) {
        float sum[QUAD] = {};
#pragma unroll
        for (u32 i = 0; i < HELD_QUADS; i++) {
            const Quad of_rows = bits<Quad>(load16(factors + (i * LANES + part) * QUAD));
            const Quad keys = bits<Quad>(load16(k + (i * LANES + part) * QUAD));
#pragma unroll
            for (u32 j = 0; j < QUAD; j++) {
                float& value = s[i * QUAD + j];
                value *= of_rows.v[j];
                sum[j] = fma(value, keys.v[j], sum[j]);
            }
        }
        return (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }

    // Multiplies each value of S with e^(step rate).
    DEV_MEMBER void decay_values(u32 k_dim, float step, const float (&rates)[HELD]) {
#pragma unroll
        for (u32 i = 0; i < HELD_QUADS; i++) {
            if (i * LANES * QUAD >= k_dim) break;
#pragma unroll
            for (u32 j = 0; j < QUAD; j++) {
                // One after the other: gfx90a and gfx942 would spill what so many of them compare.
                s[i * QUAD + j] *= computed_here(exp_of(step * rates[i * QUAD + j]));
            }
        }
    }

    // S <- factor S + k d; returns the thread's part of S^T q.
    DEV_MEMBER float change(const float* k, const float* q, float factor, float d) {
        float sum[QUAD] = {};
#pragma unroll
        for (u32 i = 0; i < HELD_QUADS; i++) {
            const Quad keys = bits<Quad>(load16(k + (i * LANES + part) * QUAD));
            const Quad queries = bits<Quad>(load16(q + (i * LANES + part) * QUAD));
#pragma unroll
            for (u32 j = 0; j < QUAD; j++) {
                float& value = s[i * QUAD + j];
                value = fma(keys.v[j], d, factor * value);
                sum[j] = fma(value, queries.v[j], sum[j]);
            }
        }
        return (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
};
