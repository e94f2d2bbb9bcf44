// Routing of mixture-of-experts (MoE) layers: chooses experts, sorts rows by expert, combines the results.
//
// route:         the experts of each token, and their weights. The scores of logits [n_tokens, n_experts] are their
//                softmax, sigmoid or sqrt(softplus). The largest logits are chosen, or with a bias or groups the largest
//                scores plus bias, of equal ones the first; NaN counts as negative infinity. With groups, only experts
//                of the groups with the largest sums of their best two keys are chosen. Weights are the scores, or the
//                scores over their sum, times `scale` and the expert's own. A shared expert, number n_experts, is the last
//                choice of all tokens, with a weight of 1 or the sigmoid of its gate. One wave per token.
// sort:          rows for all choices, sorted by expert and then by token, and the tiles of rows for GEMV and GEMM.
//                One block of 256 threads per expert (sort.h).
// route_sort:    both in one block, of up to 64 tokens with up to 32 choices each (sort_marked.h); route_few: of up to 256
//                experts and choices, in a smaller block; route_one: of one token (route_one.h).
// quantize_rows: out[row] = x[token of row], times the weight of the row if there are weights, in an activation form.
//                Blocks of 256 threads, one or more per row.
// combine:       out[token] (+)= sum of weight * x[row] over its choices, best first; without weights, sum of x[row].
//                Blocks of 256 threads, one or more per token.
//
// combine_norm:  combine that adds, and the RMS norm of the sum in an activation form. One block of 512 threads per token.
//
// Choices are [n_tokens, n_choices], n_used of them by the router. Padding rows of a step (step.h) have no experts and no
// rows, and their sum is 0. Results do not depend on the order of blocks or waves.
#include "combine.h"
#include "quad.h"
#include "route_one.h"
#include "sort.h"
#include "sort_marked.h"

constexpr u32 ROW_THREADS = 256;
// One for each expert.
constexpr u32 ROUTE_SORT_THREADS = MAX_EXPERTS;

KERNEL(route, RouteParams, ROUTE_THREADS) {
    const u32 token = bid_x() * (ROUTE_THREADS / WARP_SIZE) + uniform(wave());
    if (token >= p.n_tokens) return;
    route_token<KEEP_KEYS>(p, token, nullptr);
    if (lane() == 0) add_shared(p, token, nullptr);
}

KERNEL(sort, RouteParams, SORT_THREADS) { sort_expert(p); }

// Whether the choices are read back from device memory to be sorted. On gfx90a, scalars would spill if they were kept.
#if defined(GPU_CDNA)
constexpr bool READS_BACK = true;
#else
constexpr bool READS_BACK = false;
#endif

// Routes and sorts the tokens of a step, each by a wave, in a block with a thread for each expert.
template <u32 THREADS, u32 MAX_CHOSEN> DEV void route_marked(const RouteParams& p) {
    SHARED(u32, chosen, MAX_CHOSEN);
    SHARED(u32, words, 2 * THREADS);
    SHARED(u32, starts, THREADS);
    SHARED(Counts, part, THREADS / WARP_SIZE);
    const Marks marks = {words};
    u32* also = READS_BACK ? nullptr : chosen;
    marks.clear();
    for (u32 token = uniform(wave()); token < p.n_tokens; token += THREADS / WARP_SIZE)
        route_token<KEEP_KEYS>(p, token, also);
    if (tid() < p.n_tokens) add_shared(p, tid(), also);
    if constexpr (READS_BACK) {
        barrier();
        for (u32 i = tid(); i < p.n_tokens * p.n_choices; i += THREADS) chosen[i] = p.experts[i];
    }
    shared_barrier();
    sort_marked<THREADS>(p, chosen, marks, starts, part);
}

KERNEL(route_sort, RouteParams, ROUTE_SORT_THREADS) {
    route_marked<ROUTE_SORT_THREADS, MAX_MARKED_TOKENS * MAX_CHOICES>(p);
}

KERNEL(route_one, RouteParams, ROUTE_THREADS) { route_single<ROUTE_THREADS>(p, uniform(p.seq_of_row[0]) == NO_ROW); }

KERNEL(route_few, RouteParams, ROUTE_THREADS) { route_marked<ROUTE_THREADS, ROUTE_THREADS>(p); }

struct QuantizeRowsParams {
    const float* x;
    const u32* tokens;
    const u32* n_rows;
    // [n_tokens, n_used]: the row and weight of each choice. Null weights are ones.
    const u32* rows;
    const float* weights;
    ActsOut out;
    u32 width;
    u32 n_used;
    u32 aligned;
    u32 pad;
    FIELDS(x, tokens, n_rows, rows, weights, out, width, n_used, aligned, pad)
};

// The weight of a row: that of its token's choice which has this row.
DEV float weight_of(const QuantizeRowsParams& p, u32 row) {
    u32 choice = p.tokens[row] * p.n_used;
    while (p.rows[choice] != row) choice++;
    return p.weights[choice];
}

template <typename Form> DEV void quantize_rows(const QuantizeRowsParams& p) {
    const u32 row = bid_x(), at = (bid_y() * ROW_THREADS + tid()) * OCTET;
    const bool is_row = row < *p.n_rows;
    const u32 end = is_row ? p.width : 0;
    const float* x = p.x + (is_row ? (u64)p.tokens[row] * p.width : 0);
    auto values = load_octet(x, at, end, p.aligned);
    if (p.weights && is_row) {
        const float weight = weight_of(p, row);
#pragma unroll
        for (u32 i = 0; i < OCTET; i++) values.v[i] *= weight;
    }
    Form::put(p.out, (u64)row * p.width, at, end, p.aligned, values);
}

KERNEL(quantize_rows_f32, QuantizeRowsParams, ROW_THREADS) { quantize_rows<FormF32>(p); }
KERNEL(quantize_rows_q8x32, QuantizeRowsParams, ROW_THREADS) { quantize_rows<FormQ8x32>(p); }
KERNEL(quantize_rows_q8x256, QuantizeRowsParams, ROW_THREADS) { quantize_rows<FormQ8x256>(p); }

KERNEL(combine, CombineParams, ROW_THREADS) {
    const u32 token = bid_x(), at = (bid_y() * ROW_THREADS + tid()) * QUAD;
    if (at >= p.width) return;
    Quad sum = {};
    for (u32 k = token * p.n_used; k < (token + 1) * p.n_used; k++) {
        const u32 row = p.rows[k];
        if (row == NO_ROW) continue;
        const float weight = p.weights ? p.weights[k] : 1.0f;
        const Quad x = load_quad(p.x + (u64)row * p.width, at, p.width, p.aligned);
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) sum.v[i] = fma(x.v[i], weight, sum.v[i]);
    }
    float* out = p.out + (u64)token * p.width;
    if (p.add) {
        const Quad before = load_quad(out, at, p.width, p.aligned);
#pragma unroll
        for (u32 i = 0; i < QUAD; i++) sum.v[i] += before.v[i];
    }
    store_quad(out, at, p.width, p.aligned, sum);
}

KERNEL_THAT_BEGINS(combine_norm_f32, CombineNormParams, BLOCK_THREADS) { combine_norm<FormF32>(p); }
KERNEL_THAT_BEGINS(combine_norm_q8x32, CombineNormParams, BLOCK_THREADS) { combine_norm<FormQ8x32>(p); }
KERNEL_THAT_BEGINS(combine_norm_q8x256, CombineNormParams, BLOCK_THREADS) { combine_norm<FormQ8x256>(p); }
