// All that a layer of linear attention with a decay of each channel does between its products, of one row per sequence.
//
// channel_decode_*:  q, k, v: the convolution of x, silu, for queries and keys divided by the root of their mean square, times
//                    weights; beta = sigmoid(beta); decay = rate softplus(decay), or bound sigmoid(rate decay);
//                    S <- e^decay S + k d^T, d = beta (v - e^decay S^T k); S^T q divided by the root of its mean square, times
//                    weights and sigmoid(gate).
//
// q, k [n_rows, n_heads, k_dim], v, gate, out [n_rows, n_heads, v_dim], decay [n_rows, n_heads, k_dim], beta [n_rows,
// n_heads]; states as in recurrent.hip. A block has a head of a sequence: it alone reads the head's part of all inputs, before
// it writes that of `out`, which may be in the place of one of them. Four teams of 32 lanes compute queries, keys, values and
// decays, four values a lane; then LANES threads have a column of the state. The bits are those of the separate kernels.
// Shared memory: 2560 bytes.
#include "activation.h"
#include "recurrent.h"
#include "team.h"

// Values of a head's part that a team has.
constexpr u32 ROW = TEAM * QUAD;

// Queries, keys or values.
struct ChannelPart {
    const float* x;
    // Of the convolution, [n_taps, n_heads * width].
    const float* weight;
    // The weights of the norm, [k_dim]; may be missing.
    const float* norm;
    // Of the convolution.
    float* states;
    float eps;
    u32 pad;
    FIELDS(x, weight, norm, states, eps, pad)
};

struct ChannelParams {
    ChannelPart parts[3];
    const float* decay;
    const float* beta;
    // [n_heads, k_dim].
    const float* rate;
    // The weights of the norm of the output, [v_dim].
    const float* weight;
    const float* gate;
    float* states;
    float* out;
    const SeqRows* seqs;
    const SeqState* places;
    const KeptState* kept;
    LinearShape shape;
    float eps;
    u32 n_taps;
    // Whether decays are between 0 and `bound`.
    u32 bounded;
    float bound;
    // Whether parts of heads are whole quads and all addresses multiples of 16.
    u32 aligned;
    u32 pad;
    FIELDS(parts, decay, beta, rate, weight, gate, states, out, seqs, places, kept, shape, eps, n_taps, bounded, bound,
           aligned, pad)
};

DEV float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// The sum of squares of a team's values, in the order in which norm.hip adds them: by octets.
DEV float team_squares(const Quad& x) {
    const u32 of_team = tid() % TEAM, first = lane() - of_team;
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 2 * QUAD; i++) {
        const float value = shuffle(x.v[i % QUAD], first + (2 * of_team + i / QUAD) % TEAM);
        sum = fma(value, value, sum);
    }
    return group_reduce<Sum, TEAM>(of_team < TEAM / 2 ? sum : 0.0f);
}

template <u32 LANES> DEV void channel_decode(const ChannelParams& p) {
    // Queries, keys, values and factors of the state's rows.
    SHARED(float, rows, 4 * ROW);
    SHARED(float, outs, ROW);
    const LinearShape& shape = p.shape;
    const auto [seq, place] = EarlySeq::of(p.seqs, p.places, bid_y());
    if (uniform(seq.n_rows) == 0) return begin();
    const u32 head = bid_x();

    Column<LANES> state;
    const u32 column = state.of_block;
    if (place.start != NO_SLOT)
        state.each(shape, p.states, place.start, head, column,
                   [&](u32 i, const float* from) { state.s[i] = bits<float>(early_word((const u32*)from)); });
    begin();
    const u64 of_head = (u64)seq.first_row * shape.n_heads + head, at = of_head * shape.v_dim + column;
    const bool writes = state.part == 0 && column < shape.v_dim;
    const float gate = writes ? p.gate[at] : 0.0f;
    const float beta = sigmoid(p.beta[of_head]);

    const u32 team = tid() / TEAM, of_part = tid() % TEAM * QUAD;
    const ChannelPart &q_part = p.parts[0], &k_part = p.parts[1], &v_part = p.parts[2];
    const bool is_k = team == 1, is_v = team == 2;
    auto of_team = [&](auto* q, auto* k, auto* v) { return choose_loaded(is_v, choose_loaded(is_k, q, k), v); };
    const u32 width = is_v ? shape.v_dim : shape.k_dim;
    const Conv conv = {of_team(q_part.x, k_part.x, v_part.x),
                       of_team(q_part.weight, k_part.weight, v_part.weight),
                       nullptr,
                       of_team(q_part.states, k_part.states, v_part.states),
                       p.seqs,
                       p.places,
                       p.kept,
                       shape.n_heads * width,
                       p.n_taps,
                       0,
                       1,
                       p.aligned,
                       0};
    const float* norm = of_team(q_part.norm, k_part.norm, v_part.norm);
    const float eps = is_v ? v_part.eps : is_k ? k_part.eps : q_part.eps;
    const ConvQuad quad = {conv, seq, place, head * width + of_part, (head + 1) * width};
    const bool is_there = of_part < width;
    Quad x = {};
    if (team < 3 && is_there) {
        x = quad.output(0);
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) x.v[i] = silu(x.v[i]);
        quad.keep_all();
    }
    if (team == 3 && is_there) {
        const Quad decay = load_quad(p.decay + of_head * width, of_part, width, p.aligned);
        const Quad rate = load_quad(p.rate + head * width, of_part, width, p.aligned);
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) {
            const float open = rate.v[i] * softplus(decay.v[i]), closed = p.bound * sigmoid(decay.v[i] * rate.v[i]);
            x.v[i] = decay_factor(p.bounded ? closed : open);
        }
    }
    const float squares = team_squares(x);
    if (team < 2 && norm && is_there) {
        const float scale = 1.0f / sqrt_of(squares / (float)width + eps);
        const Quad weights = load_quad(norm, of_part, width, p.aligned);
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) x.v[i] = x.v[i] * scale * weights.v[i];
    }
    if (team < 4) store16(rows + team * ROW + of_part, bits<u32x4>(x));

    auto keep = [&](u32 slot) {
        state.each(shape, p.states, slot, head, column, [&](u32 i, float* to) { *to = state.s[i]; });
    };
    // Copies after no row come first.
    u32 n_done = 0;
    for (; n_done < place.n_kept && p.kept[place.first_kept + n_done].n_rows == 0; n_done++)
        keep(p.kept[place.first_kept + n_done].slot);
    shared_barrier();
    const float *q = rows, *k = rows + ROW, *v = rows + 2 * ROW, *factors = rows + 3 * ROW;
    const float known = state.sum(state.decay_rows(factors, k));
    const float out = state.sum(state.change(k, q, 1.0f, beta * (v[column] - known)));
    keep(place.slot);
    for (; n_done < place.n_kept; n_done++) keep(p.kept[place.first_kept + n_done].slot);

    if (state.part == 0) outs[column] = out;
    shared_barrier();
    Quad part = {};
    if (of_part < shape.v_dim) part = bits<Quad>(load16(outs + of_part));
    const float scale = 1.0f / sqrt_of(team_squares(part) / (float)shape.v_dim + p.eps);
    if (writes) p.out[at] = out * scale * p.weight[column] * sigmoid(gate);
}

// For all columns.
template <u32 LANES> constexpr u32 THREADS = ROW * LANES;

#define CHANNEL_DECODE(LANES)                                                                                          \
    KERNEL_THAT_BEGINS(channel_decode_##LANES, ChannelParams, THREADS<LANES>) { channel_decode<LANES>(p); }
CHANNEL_DECODE(1) CHANNEL_DECODE(2) CHANNEL_DECODE(4)
