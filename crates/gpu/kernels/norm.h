// The normalization of a row (norm.hip).
#pragma once
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

// Normalizes one row. `Norm` defines the sums. `part` is shared memory for two sums. Rows past the end are empty. At first
// `take(at, end)` returns each octet; it may compute it and write it to x.
template <typename Norm, typename Form, u32 N_THREADS, typename Take>
DEV void norm_row(const NormParams& p, u32 row, u32 thread, float* part, Take take) {
    constexpr u32 STRIDE = N_THREADS * OCTET, HELD = N_THREADS == TEAM ? 2 : 1;
    const u32 first = thread * OCTET, width = p.width, end = row < p.n_rows ? width : 0;
    const u64 base = (u64)row * width;
    const Octet first_weights = load_octet(p.weight, first, width, p.aligned);
    begin();
    auto again = [&](u32 at) { return load_octet(p.x + base, at, end, p.aligned); };
    Octet held[HELD];
    float sum = 0;
#pragma unroll
    for (u32 h = 0; h < HELD; h++) {
        u32 at = first + h * STRIDE;
        held[h] = take(at, end);
        sum = Norm::first(sum, held[h]);
    }
    for (u32 start = HELD * STRIDE; start < width; start += STRIDE) sum = Norm::first(sum, take(start + first, end));
    float mean = team_sum<N_THREADS>(sum, part) / (float)width, shift = 0;
    if constexpr (Norm::CENTERED) {
        shift = mean;
        sum = 0;
#pragma unroll
        for (u32 h = 0; h < HELD; h++) sum = Norm::second(sum, held[h], shift, first + h * STRIDE, end);
        for (u32 start = HELD * STRIDE; start < width; start += STRIDE)
            sum = Norm::second(sum, again(start + first), shift, start + first, end);
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
        put(start + first, again(start + first));
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

// The same of a row of p.x.
template <typename Norm, typename Form, u32 N_THREADS>
DEV void norm_row(const NormParams& p, u32 row, u32 thread, float* part) {
    const float* x = p.x + (u64)row * p.width;
    norm_row<Norm, Form, N_THREADS>(p, row, thread, part,
                                    [&](u32 at, u32 end) { return load_octet(x, at, end, p.aligned); });
}
