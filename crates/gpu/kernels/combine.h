// The sum of a token's choices, and its norm (experts.hip).
#pragma once
#include "norm.h"
#include "step.h"

struct CombineParams {
    const float* x;
    const u32* rows;
    // Null for ones.
    const float* weights;
    float* out;
    u32 width;
    u32 n_used;
    // 0: store, 1: add to the previous value.
    u32 add;
    u32 aligned;
    FIELDS(x, rows, weights, out, width, n_used, add, aligned)
};

struct CombineNormParams {
    CombineParams combine;
    // Of the sums.
    NormParams norm;
    FIELDS(combine, norm)
};

// The sum of the octet at `at`, which is written.
DEV Octet combined(const CombineParams& p, u32 token, u32 at, u32 end) {
    Octet sum = {};
    const u32 first = token * p.n_used;
    // A padding row has no rows.
    const u32 n = p.rows[first] == NO_ROW ? 0 : p.n_used;
#pragma unroll 4
    for (u32 k = first; k < first + n; k++) {
        const u32 row = p.rows[k];
        const float weight = p.weights ? p.weights[k] : 1.0f;
        const Octet x = load_octet(p.x + (u64)row * p.width, at, end, p.aligned);
#pragma unroll
        for (u32 i = 0; i < OCTET; i++) sum.v[i] = fma(x.v[i], weight, sum.v[i]);
    }
    float* out = p.out + (u64)token * p.width;
    const Octet before = load_octet(out, at, end, p.aligned);
#pragma unroll
    for (u32 i = 0; i < OCTET; i++) sum.v[i] += before.v[i];
    store_octet(out, at, end, p.aligned, sum);
    return sum;
}

template <typename Form> DEV void combine_norm(const CombineNormParams& p) {
    SHARED(float, part, 2 * BLOCK_THREADS / WARP_SIZE);
    const u32 token = bid_x();
    norm_row<Rms, Form, BLOCK_THREADS>(p.norm, token, tid(), part,
                                       [&](u32 at, u32 end) { return combined(p.combine, token, at, end); });
}
