// The sum of a token's choices, and its norm (experts.hip).
#pragma once
#include "early.h"
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

// The rows of a token's first choices, and their weights, read before the kernel begins.
struct Choices {
#if defined(GPU_AMD)
    // Of more, AMD's compiler would spill scalar registers.
    static constexpr u32 MOST = 1;
#else
    static constexpr u32 MOST = 8;
#endif
    u32 n;
    u32 rows[MOST];
    float weights[MOST];

    // A padding row has no rows.
    DEV_MEMBER static Choices of(const CombineParams& p, u32 token) {
        const u32 first = token * p.n_used;
        Choices c;
#pragma unroll
        for (u32 k = 0; k < MOST; k++) {
            const u32 at = first + min_of(k, p.n_used - 1);
            c.rows[k] = early_word(p.rows + at);
            c.weights[k] = p.weights ? bits<float>(early_word((const u32*)p.weights + at)) : 1.0f;
        }
        c.n = c.rows[0] == NO_ROW ? 0 : p.n_used;
        return c;
    }
};

// The sum of the octet at `at`, which is written.
DEV Octet combined(const CombineParams& p, const Choices& choices, u32 token, u32 at, u32 end) {
    Octet sum = {};
    const auto add = [&](u32 row, float weight) {
        const Octet x = load_octet(p.x + (u64)row * p.width, at, end, p.aligned);
#pragma unroll
        for (u32 i = 0; i < OCTET; i++) sum.v[i] = fma(x.v[i], weight, sum.v[i]);
    };
#pragma unroll
    for (u32 k = 0; k < Choices::MOST; k++)
        if (k < choices.n) add(choices.rows[k], choices.weights[k]);
#pragma unroll 4
    for (u32 k = Choices::MOST; k < choices.n; k++) {
        const u32 choice = token * p.n_used + k;
        add(p.rows[choice], p.weights ? p.weights[choice] : 1.0f);
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
    const Choices choices = Choices::of(p.combine, token);
    norm_row<Rms, Form, BLOCK_THREADS>(p.norm, token, tid(), part,
                                       [&](u32 at, u32 end) { return combined(p.combine, choices, token, at, end); });
}
