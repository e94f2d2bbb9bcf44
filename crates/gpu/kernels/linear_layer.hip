// What layers of linear attention do before and after it, in few launches: with one row per sequence, the time of a step is
// mostly that of starting launches.
//
// linear_inputs:     the convolution of x, silu, and its parts, queries, keys and values, those with a norm divided by the
//                    root of their mean square, times its weights; beta = f(beta), decay = rate * softplus(decay).
// conv_silu, conv_silu_*: the convolution of x of one row per sequence, silu, and the conversion of that (acts.h).
// linear_decode_*:   linear attention of one row per sequence, a norm of each head, times silu(gate).
// linear_skip_*:     the same with the values times factors added, in place of the norm.
// selective_decode_*: the same as linear_skip with a factor for each value of the state; the step, softplus(x), is also the
//                    factor on new values.
//
// The shapes are those of recurrent.hip. Sums are in f32, over a thread's values, then over the threads in a fixed order.
// conv_silu and selective_decode have the bits of the separate kernels.
#include "activation.h"
#include "acts.h"
#include "recurrent.h"

// ---------------------------------------------------------------------------------------------- before
// A team of 32 lanes has a group of values of a part, at most 128, or 32 heads, of some rows of a sequence. The teams with
// the first rows, which alone read the old state, write the new ones. No shared memory.
constexpr u32 INPUT_THREADS = 256;

// Neighbouring values of the convolution's output.
struct InputPart {
    // The weights of its norm, [group]; may be missing.
    const float* norm;
    float* out;
    u32 first;
    u32 width;
    // Values that belong together.
    u32 group;
    float eps;
    FIELDS(norm, out, first, width, group, eps)
};

struct InputsParams {
    Conv conv;
    InputPart parts[3];
    const float* beta;
    const float* decay;
    const float* rate;
    float* beta_out;
    float* decay_out;
    u32 n_heads;
    // Whether f is softplus, not the sigmoid.
    u32 softplus_beta;
    FIELDS(conv, parts, beta, decay, rate, beta_out, decay_out, n_heads, softplus_beta)
};

KERNEL(linear_inputs, InputsParams, INPUT_THREADS) {
    const SeqRows seq = p.conv.seqs[bid_z()];
    const u32 first = bid_y() * p.conv.n_block_rows, n_rows = uniform(seq.n_rows);
    if (first >= n_rows) return;
    const u32 of_team = tid() % TEAM;
    // The team's number among those of its part, or among those of heads.
    u32 team = bid_x() * (INPUT_THREADS / TEAM) + tid() / TEAM;
    InputPart part = {};
    bool has_part = false;
#pragma unroll
    for (u32 i = 0; i < 3; i++) {
        const InputPart& next = p.parts[i];
        const u32 n_teams = div_up(next.width, next.group);
        const bool is_it = !has_part && team < n_teams;
        part.norm = choose_loaded(is_it, part.norm, next.norm);
        part.out = choose_loaded(is_it, part.out, next.out);
        part.first = choose_loaded(is_it, part.first, next.first);
        part.width = choose_loaded(is_it, part.width, next.width);
        part.group = choose_loaded(is_it, part.group, next.group);
        part.eps = is_it ? next.eps : part.eps;
        if (!has_part && !is_it) team -= n_teams;
        has_part = has_part || is_it;
    }
    const u32 of_part = team * part.group + of_team * QUAD;
    const u32 end = min_of(part.width, (team + 1) * part.group);
    const bool has_quad = has_part && of_part < end;
    const ConvQuad quad = {p.conv, seq, p.conv.places[bid_z()], part.first + of_part, part.first + end};
    const u32 head = team * TEAM + of_team;
    const bool has_head = !has_part && head < p.n_heads;
    for (u32 row = first; row < min_of(first + p.conv.n_block_rows, n_rows); row++) {
        const u64 of_step = seq.first_row + row;
        Quad x = {};
        if (has_quad) x = quad.output(row);
        float squares = 0.0f;
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            x.v[i] = silu(x.v[i]);
            squares = fma(x.v[i], x.v[i], squares);
        }
        squares = group_reduce<Sum, TEAM>(squares);
        if (has_quad) {
            if (part.norm) {
                const float scale = 1.0f / sqrt_of(squares / (float)part.group + part.eps);
                const Quad norm = load_quad(part.norm, of_team * QUAD, part.group, p.conv.aligned);
#pragma unroll
                for (u32 i = 0; i < QUAD; i++) x.v[i] = x.v[i] * scale * norm.v[i];
            }
            store_quad(part.out + of_step * part.width, of_part, end, p.conv.aligned, x);
        }
        if (has_head) {
            const u64 at = of_step * p.n_heads + head;
            const float beta = p.beta[at], decay = softplus(p.decay[at]) * p.rate[head];
            p.beta_out[at] = p.softplus_beta ? softplus(beta) : 1.0f / (1.0f + exp_of(-beta));
            p.decay_out[at] = decay;
        }
    }
    if (first == 0 && has_quad) quad.keep_all();
}

// ---------------------------------------------------------------------------------------------- one row
// A thread has eight neighbouring values of a row. It alone reads them and the old state, before it writes either, so `out` may
// be x. Values are moved as 16 bytes only if rows are whole octets. No shared memory.
constexpr u32 CONV_THREADS = 128;

struct ConvSiluParams {
    Conv conv;
    float* out;
    ActsOut acts;
    // Whether rows of `acts` are whole octets and its addresses multiples of 16.
    u32 aligned;
    u32 pad;
    FIELDS(conv, out, acts, aligned, pad)
};

struct NoForm {
    DEV_MEMBER static void put(const ActsOut&, u64, u32, u32, u32, const Octet&) {}
};

template <typename Form> DEV void conv_silu(const ConvSiluParams& p) {
    const SeqRows seq = p.conv.seqs[bid_y()];
    if (uniform(seq.n_rows) == 0) return;
    const SeqState place = p.conv.places[bid_y()];
    const u32 at = (bid_x() * CONV_THREADS + tid()) * OCTET, width = p.conv.width;
    const u64 base = (u64)seq.first_row * width;
    Octet all = {};
    if (at < width) {
        const ConvQuad quads[] = {{p.conv, seq, place, at, width}, {p.conv, seq, place, at + QUAD, width}};
#pragma unroll
        for (u32 i = 0; i < OCTET; i += QUAD) {
            const Quad x = quads[i / QUAD].output(0);
#pragma unroll
            for (u32 k = 0; k < QUAD; k++) all.v[i + k] = silu(x.v[k]);
            quads[i / QUAD].keep_all();
        }
        store_octet(p.out + base, at, width, p.conv.aligned, all);
    }
    Form::put(p.acts, base, at, width, p.aligned, all);
}

KERNEL(conv_silu, ConvSiluParams, CONV_THREADS) { conv_silu<NoForm>(p); }
KERNEL(conv_silu_f32, ConvSiluParams, CONV_THREADS) { conv_silu<FormF32>(p); }
KERNEL(conv_silu_q8x32, ConvSiluParams, CONV_THREADS) { conv_silu<FormQ8x32>(p); }
KERNEL(conv_silu_q8x256, ConvSiluParams, CONV_THREADS) { conv_silu<FormQ8x256>(p); }

// A block has the state of a head of a sequence, whose columns are at most THREADS / LANES; without a norm, which adds over
// all columns, as many of them as SKIP_THREADS have.
constexpr u32 THREADS = 512, SKIP_THREADS = 128;

struct DecodeParams {
    const float* q;
    const float* k;
    const float* v;
    // Of values: what the step is computed from.
    const float* decay;
    // Not of values.
    const float* beta;
    // The weights of the norm, [v_dim], or the factors of values, [n_heads, v_dim].
    const float* weight;
    const float* gate;
    float* states;
    float* out;
    const SeqRows* seqs;
    const SeqState* places;
    const KeptState* kept;
    LinearShape shape;
    float eps;
    // Blocks per head.
    u32 n_groups;
    FIELDS(q, k, v, decay, beta, weight, gate, states, out, seqs, places, kept, shape, eps, n_groups)
};

struct SelectiveParams {
    DecodeParams decode;
    // What steps multiply, as a state.
    float* rates;
    FIELDS(decode, rates)
};

// a * b, rounded before it is added to something.
DEV float rounded_product(float a, float b) {
#if defined(GPU_NV)
    return __nvvm_mul_rn_f(a, b);
#else
#pragma clang fp contract(off)
    return a * b;
#endif
}

// What comes after the heads, and of what each factor is.
enum class Of { NORM, SKIP, VALUES };

template <u32 LANES, u32 N_THREADS, Of OF> DEV void linear_decode(const DecodeParams& p, float* of_values = nullptr) {
    constexpr u32 WIDTH = Column<LANES>::KEY_WIDTH;
    SHARED(float, k, WIDTH);
    SHARED(float, q, WIDTH);
    const LinearShape& shape = p.shape;
    const auto [seq, place] = EarlySeq::of(p.seqs, p.places, bid_y());
    if (uniform(seq.n_rows) == 0) return begin();
    const u64 row = seq.first_row;
    const u32 head = bid_x() / p.n_groups, group = bid_x() % p.n_groups;

    Column<LANES> state;
    const u32 column = group * (N_THREADS / LANES) + state.of_block;
    if (place.start != NO_SLOT)
        state.each(shape, p.states, place.start, head, column,
                   [&](u32 i, const float* from) { state.s[i] = bits<float>(early_word((const u32*)from)); });
    float rates[HELD] = {};
    if constexpr (OF == Of::VALUES)
        state.each(shape, of_values, 0, head, column, [&](u32 i, const float* from) { rates[i] = *from; });
    begin();
    const u64 key = (row * shape.n_k_heads + shape.key_head(head)) * shape.k_dim;
    for (u32 i = tid(); i < WIDTH; i += N_THREADS) {
        k[i] = i < shape.k_dim ? p.k[key + i] : 0.0f;
        q[i] = i < shape.k_dim ? p.q[key + i] : 0.0f;
    }
    const u64 of_head = row * shape.n_heads + head, at = of_head * shape.v_dim + column;
    const bool has_value = column < shape.v_dim;
    const float v = has_value ? p.v[at] : 0.0f;
    float factor = 1.0f, beta;
    if constexpr (OF == Of::VALUES) {
        beta = has_value ? softplus(p.decay[at]) : 0.0f;
    } else {
        factor = decay_factor(p.decay[of_head]), beta = p.beta[of_head];
    }
    auto keep = [&](u32 slot) {
        state.each(shape, p.states, slot, head, column, [&](u32 i, float* to) { *to = state.s[i]; });
    };
    // Copies after no row come first.
    u32 n_done = 0;
    for (; n_done < place.n_kept && p.kept[place.first_kept + n_done].n_rows == 0; n_done++)
        keep(p.kept[place.first_kept + n_done].slot);
    shared_barrier();
    float known = 0.0f;
    if constexpr (OF == Of::VALUES) state.decay_values(shape.k_dim, beta, rates);
    else known = state.sum(shape.delta ? state.product(k) : 0.0f);
    const float out = state.sum(state.change(k, q, factor, beta * (v - factor * known)));
    keep(place.slot);
    for (; n_done < place.n_kept; n_done++) keep(p.kept[place.first_kept + n_done].slot);

    const bool writes = has_value && state.part == 0;
    if constexpr (OF == Of::NORM) {
        SHARED(float, parts, N_THREADS / WARP_SIZE);
        const float squares = block_reduce<Sum, N_THREADS>(writes ? out * out : 0.0f, parts);
        const float scale = 1.0f / sqrt_of(squares / (float)shape.v_dim + p.eps);
        if (writes) p.out[at] = out * scale * p.weight[column] * silu(p.gate[at]);
    } else {
        if (writes) p.out[at] = (out + rounded_product(p.weight[head * shape.v_dim + column], v)) * silu(p.gate[at]);
    }
}

#define LINEAR_DECODE(LANES)                                                                                           \
    KERNEL_THAT_BEGINS(linear_decode_##LANES, DecodeParams, THREADS) { linear_decode<LANES, THREADS, Of::NORM>(p); }   \
    KERNEL_THAT_BEGINS(linear_skip_##LANES, DecodeParams, SKIP_THREADS) {                                              \
        linear_decode<LANES, SKIP_THREADS, Of::SKIP>(p);                                                               \
    }
#define SELECTIVE_DECODE(LANES)                                                                                        \
    KERNEL_THAT_BEGINS(selective_decode_##LANES, SelectiveParams, SKIP_THREADS) {                                      \
        linear_decode<LANES, SKIP_THREADS, Of::VALUES>(p.decode, p.rates);                                             \
    }
LINEAR_DECODE(1) LINEAR_DECODE(2) LINEAR_DECODE(4) LINEAR_DECODE(8) SELECTIVE_DECODE(1) SELECTIVE_DECODE(2)
