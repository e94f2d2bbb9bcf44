// Residual streams side by side in a row, and sparse activations (Gemma 3n).
//
// mix:          out[row][i] (+)= sum of weights[row][i][j] * x[row][j] over the parts j of a row of x. Blocks of 256 threads,
//               one or more per row, four neighbouring values of a part per thread.
// match_length: out[row][i] *= |x[row]| / |out[row][i]|, |x| being the root of the sum of squares; parts of zeros stay zeros.
//               One block of 256 threads per part.
// sparsify:     out[row] = max(out[row] - mean - factor * deviation, 0), the deviation being that of a sample. One block
//               of 256 threads per row.
//
// Sums are in f32: over a thread's values, then over the threads in a fixed order. Shared memory: two f32 per wave.
#include "quad.h"

constexpr u32 THREADS = 256;
constexpr u32 N_WAVES = THREADS / WARP_SIZE;
// The smallest normal number.
constexpr float LEAST = 1.17549435e-38f;

struct StreamsParams {
    const float* x;
    const float* weights;
    float* out;
    // Values of a part, or of a row.
    u32 width;
    u32 n_in;
    u32 n_out;
    // Weights from one row to the next: 0 if all rows have the same.
    u32 stride;
    u32 add;
    // Whether parts are whole quads and all addresses multiples of 16.
    u32 aligned;
    float factor;
    u32 pad;
    FIELDS(x, weights, out, width, n_in, n_out, stride, add, aligned, factor, pad)
};

KERNEL(mix, StreamsParams, THREADS) {
    const u32 row = bid_x(), at = (bid_y() * THREADS + tid()) * QUAD;
    if (at >= p.width) return;
    const float* x = p.x + (u64)row * p.n_in * p.width;
    const float* weights = p.weights + (u64)row * p.stride;
    float* out = p.out + (u64)row * p.n_out * p.width;
    for (u32 i = 0; i < p.n_out; i++, out += p.width) {
        Quad sum = {};
        if (p.add) sum = load_quad(out, at, p.width, p.aligned);
        for (u32 j = 0; j < p.n_in; j++) {
            const float weight = weights[i * p.n_in + j];
            const Quad v = load_quad(x + (u64)j * p.width, at, p.width, p.aligned);
#pragma unroll
            for (u32 k = 0; k < QUAD; k++) sum.v[k] = fma(v.v[k], weight, sum.v[k]);
        }
        store_quad(out, at, p.width, p.aligned, sum);
    }
}

KERNEL(match_length, StreamsParams, THREADS) {
    SHARED(float, part, 2 * N_WAVES);
    const float* like = p.x + (u64)(bid_x() / p.n_out) * p.width;
    float* x = p.out + (u64)bid_x() * p.width;
    float wanted = 0.0f, found = 0.0f;
    for (u32 i = tid(); i < p.width; i += THREADS) {
        wanted = fma(like[i], like[i], wanted);
        found = fma(x[i], x[i], found);
    }
    wanted = block_reduce<Sum, THREADS>(wanted, part);
    found = block_reduce<Sum, THREADS>(found, part + N_WAVES);
    const float factor = sqrt_of(wanted) / sqrt_of(found < LEAST ? LEAST : found);
    for (u32 i = tid(); i < p.width; i += THREADS) x[i] *= factor;
}

KERNEL(sparsify, StreamsParams, THREADS) {
    SHARED(float, part, 2 * N_WAVES);
    float* x = p.out + (u64)bid_x() * p.width;
    float sum = 0.0f;
    for (u32 i = tid(); i < p.width; i += THREADS) sum += x[i];
    const float mean = block_reduce<Sum, THREADS>(sum, part) / (float)p.width;
    // Squares of the differences, because the mean square less the squared mean would cancel.
    sum = 0.0f;
    for (u32 i = tid(); i < p.width; i += THREADS) {
        const float left = x[i] - mean;
        sum = fma(left, left, sum);
    }
    sum = block_reduce<Sum, THREADS>(sum, part + N_WAVES);
    const u32 n_free = p.width > 1 ? p.width - 1 : 1;
    const float least = p.factor * sqrt_of(sum / (float)n_free);
    for (u32 i = tid(); i < p.width; i += THREADS) {
        const float rest = x[i] - mean - least;
        x[i] = rest < 0.0f ? 0.0f : rest;
    }
}
