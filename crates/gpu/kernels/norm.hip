// Normalization of rows, and quantization of activations (forms: acts.h).
//
//     rms_norm:   y = x / sqrt(mean(x^2) + eps) * weight
//     layer_norm: y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
//     quantize:   y = x
//
// x [n_rows, width], weight and bias [width]; out: y in one of the forms, and if `normed` is not null in f32, too.
//
// One team of threads per row: a block of 512 (`block`), or 32 lanes of a block of 256 (`team`) for short rows such as
// heads. Each thread loads 8 neighbouring values at a time and keeps one or two such octets in registers. Values of a row
// beyond these (4096 of a block, 512 of a team) are loaded again for the output: code is short, because a step of one token
// waits for it to be loaded. Sums are in f32: over a thread's octets, then
// over the threads in a fixed order.
// Shared memory: one f32 per wave and sum, at most 128 bytes.
#include "acts.h"

constexpr u32 BLOCK_THREADS = 512;
constexpr u32 TEAM_THREADS = 256;

struct NormParams {
    const float* x;
    const float* weight;
    const float* bias;
    float* normed;
    ActsOut out;
    u32 n_rows;
    u32 width;
    float eps;
    // Whether rows are whole octets and all addresses multiples of 16.
    u32 aligned;
    FIELDS(x, weight, bias, normed, out, n_rows, width, eps, aligned)
};

// The sum over the N_THREADS that share a row.
template <u32 N_THREADS> DEV float team_sum(float v, float* part) {
    if constexpr (N_THREADS == TEAM) return group_reduce<Sum, TEAM>(v);
    else return block_reduce<Sum, N_THREADS>(v, part);
}

// Normalizes one row. `Norm` defines the sums. `part` is shared memory for two sums. Rows past the end are empty.
template <typename Norm, typename Form, u32 N_THREADS>
DEV void norm_row(const NormParams& p, u32 row, u32 thread, float* part) {
    constexpr u32 STRIDE = N_THREADS * OCTET, HELD = N_THREADS == TEAM ? 2 : 1;
    const u32 first = thread * OCTET, width = p.width, end = row < p.n_rows ? width : 0;
    const u64 base = (u64)row * width;
    const float* x = p.x + base;
    const Octet first_weights = load_octet(p.weight, first, width, p.aligned);
    begin();
    auto take = [&](u32 at) { return load_octet(x, at, end, p.aligned); };
    Octet held[HELD];
    float sum = 0;
#pragma unroll
    for (u32 h = 0; h < HELD; h++) {
        u32 at = first + h * STRIDE;
        held[h] = take(at);
        sum = Norm::first(sum, held[h]);
    }
    for (u32 start = HELD * STRIDE; start < width; start += STRIDE) sum = Norm::first(sum, take(start + first));
    float mean = team_sum<N_THREADS>(sum, part) / (float)width, shift = 0;
    if constexpr (Norm::CENTERED) {
        shift = mean;
        sum = 0;
#pragma unroll
        for (u32 h = 0; h < HELD; h++) sum = Norm::second(sum, held[h], shift, first + h * STRIDE, end);
        for (u32 start = HELD * STRIDE; start < width; start += STRIDE)
            sum = Norm::second(sum, take(start + first), shift, start + first, end);
        mean = team_sum<N_THREADS>(sum, part + N_THREADS / WARP_SIZE) / (float)width;
    }
    float scale = 1.0f / sqrt_of(mean + p.eps);
    auto put = [&](u32 at, const Octet& o) {
        const Octet w = at == first ? first_weights : load_octet(p.weight, at, end, p.aligned);
        Octet y;
        if constexpr (Norm::CENTERED) {
            Octet b = load_octet(p.bias, at, end, p.aligned);
#pragma unroll
            for (u32 i = 0; i < OCTET; i++) y.v[i] = fma((o.v[i] - shift) * scale, w.v[i], b.v[i]);
        } else {
#pragma unroll
            for (u32 i = 0; i < OCTET; i++) y.v[i] = o.v[i] * scale * w.v[i];
        }
        if (p.normed) store_octet(p.normed + base, at, end, p.aligned, y);
        Form::put(p.out, base, at, end, p.aligned, y);
    };
#pragma unroll
    for (u32 h = 0; h < HELD; h++)
        if (h * STRIDE < width) put(first + h * STRIDE, held[h]);
    for (u32 start = HELD * STRIDE; start < width; start += STRIDE)
        put(start + first, take(start + first));
}

struct Rms {
    static constexpr bool CENTERED = false;
    DEV_MEMBER static float first(float sum, const Octet& o) {
#pragma unroll
        for (u32 i = 0; i < OCTET; i++) sum = fma(o.v[i], o.v[i], sum);
        return sum;
    }
};

struct Layer {
    static constexpr bool CENTERED = true;
    DEV_MEMBER static float first(float sum, const Octet& o) {
#pragma unroll
        for (u32 i = 0; i < OCTET; i++) sum += o.v[i];
        return sum;
    }
    // Sums squared deviations from the mean: the mean square less the squared mean would suffer cancellation.
    DEV_MEMBER static float second(float sum, const Octet& o, float mean, u32 at, u32 end) {
#pragma unroll
        for (u32 i = 0; i < OCTET; i++) {
            float left = at + i < end ? o.v[i] - mean : 0.0f;
            sum = fma(left, left, sum);
        }
        return sum;
    }
};

template <typename Norm, typename Form> DEV void norm_block(const NormParams& p) {
    SHARED(float, part, 2 * BLOCK_THREADS / WARP_SIZE);
    norm_row<Norm, Form, BLOCK_THREADS>(p, bid_x(), tid(), part);
}

template <typename Norm, typename Form> DEV void norm_team(const NormParams& p) {
    norm_row<Norm, Form, TEAM>(p, bid_x() * (TEAM_THREADS / TEAM) + tid() / TEAM, tid() % TEAM, nullptr);
}

KERNEL_THAT_BEGINS(rms_norm_block_f32, NormParams, BLOCK_THREADS) { norm_block<Rms, FormF32>(p); }
KERNEL_THAT_BEGINS(rms_norm_block_q8x32, NormParams, BLOCK_THREADS) { norm_block<Rms, FormQ8x32>(p); }
KERNEL_THAT_BEGINS(rms_norm_block_q8x256, NormParams, BLOCK_THREADS) { norm_block<Rms, FormQ8x256>(p); }
KERNEL_THAT_BEGINS(rms_norm_team_f32, NormParams, TEAM_THREADS) { norm_team<Rms, FormF32>(p); }
KERNEL_THAT_BEGINS(rms_norm_team_q8x32, NormParams, TEAM_THREADS) { norm_team<Rms, FormQ8x32>(p); }
KERNEL_THAT_BEGINS(rms_norm_team_q8x256, NormParams, TEAM_THREADS) { norm_team<Rms, FormQ8x256>(p); }
KERNEL_THAT_BEGINS(layer_norm_block_f32, NormParams, BLOCK_THREADS) { norm_block<Layer, FormF32>(p); }
KERNEL_THAT_BEGINS(layer_norm_team_f32, NormParams, TEAM_THREADS) { norm_team<Layer, FormF32>(p); }

struct QuantizeParams {
    const float* x;
    ActsOut out;
    // x and out as one long row; rows are whole blocks.
    u32 n;
    u32 aligned;
    FIELDS(x, out, n, aligned)
};

template <typename Form> DEV void quantize(const QuantizeParams& p) {
    u32 at = (bid_x() * TEAM_THREADS + tid()) * OCTET;
    Form::put(p.out, 0, at, p.n, p.aligned, load_octet(p.x, at, p.n, p.aligned));
}

KERNEL(quantize_f32, QuantizeParams, TEAM_THREADS) { quantize<FormF32>(p); }
KERNEL(quantize_q8x32, QuantizeParams, TEAM_THREADS) { quantize<FormQ8x32>(p); }
KERNEL(quantize_q8x256, QuantizeParams, TEAM_THREADS) { quantize<FormQ8x256>(p); }
