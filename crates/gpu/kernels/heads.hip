// Rows of heads for products in which each head has a matrix of its own, like an expert of a mixture (latent attention).
//
// split_heads: out[head, token] = x[token, head], some values of each head, in an activation form; and the tiles of rows
//              that products read. Blocks of 256 threads, one or more per row.
// join_heads:  out[token, head] = x[head, token], followed by values of rest[token, head]. Blocks of 256 threads, one or
//              more per row of out.
#include "acts.h"
#include "expert_tiles.h"
#include "quad.h"

constexpr u32 ROW_THREADS = 256;

struct SplitHeadsParams {
    // [n_tokens, n_heads, head_dim]; of each head, `width` values from `start` on are converted.
    const float* x;
    ActsOut out;
    TileList lists[N_KINDS];
    u32 n_tokens;
    u32 n_heads;
    u32 head_dim;
    u32 start;
    u32 width;
    u32 aligned;
    FIELDS(x, out, lists, n_tokens, n_heads, head_dim, start, width, aligned)
};

template <typename Form> DEV void split_heads(const SplitHeadsParams& p) {
    const u32 row = bid_x(), head = row / p.n_tokens, token = row % p.n_tokens;
    if (bid_y() == 0 && tid() < N_KINDS) {
        const TileList& list = p.lists[tid()];
        const u32 of_head = div_up(p.n_tokens, list.n_rows), n_used = of_head * p.n_heads;
        if (token % list.n_rows == 0) {
            const ExpertTile tile = {head, row, min_of(p.n_tokens - token, list.n_rows), n_used};
            store16(list.tiles + head * of_head + token / list.n_rows, bits<u32x4>(tile));
        }
        // Fewer than there are rows.
        if (n_used + row < list.len) store16(list.tiles + n_used + row, bits<u32x4>(ExpertTile{NO_EXPERT, 0, 0, n_used}));
    }
    const u32 at = (bid_y() * ROW_THREADS + tid()) * OCTET;
    const float* x = p.x + ((u64)token * p.n_heads + head) * p.head_dim + p.start;
    Form::put(p.out, (u64)row * p.width, at, p.width, p.aligned, load_octet(x, at, p.width, p.aligned));
}

KERNEL(split_heads_f32, SplitHeadsParams, ROW_THREADS) { split_heads<FormF32>(p); }
KERNEL(split_heads_q8x32, SplitHeadsParams, ROW_THREADS) { split_heads<FormQ8x32>(p); }
KERNEL(split_heads_q8x256, SplitHeadsParams, ROW_THREADS) { split_heads<FormQ8x256>(p); }

struct JoinHeadsParams {
    // [n_heads, n_tokens, width]
    const float* x;
    // [n_tokens, n_heads, rest_dim], of which the last out_dim - width values of each head are taken; or null.
    const float* rest;
    // [n_tokens, n_heads, out_dim]
    float* out;
    u32 n_tokens;
    u32 n_heads;
    u32 width;
    u32 rest_dim;
    u32 out_dim;
    u32 aligned;
    FIELDS(x, rest, out, n_tokens, n_heads, width, rest_dim, out_dim, aligned)
};

KERNEL(join_heads, JoinHeadsParams, ROW_THREADS) {
    const u32 row = bid_x(), token = row / p.n_heads, head = row % p.n_heads;
    const u32 at = (bid_y() * ROW_THREADS + tid()) * QUAD;
    if (at >= p.out_dim) return;
    const float* x = p.x + ((u64)head * p.n_tokens + token) * p.width;
    // The value `at` of the head in `rest`, if it is not from x.
    const float* rest = p.rest + ((u64)row + 1) * p.rest_dim - p.out_dim;
    float* out = p.out + (u64)row * p.out_dim;
    if (p.aligned) return store_quad(out, at, p.out_dim, 1, load_quad(at < p.width ? x : rest, at, p.out_dim, 1));
#pragma unroll
    for (u32 i = at; i < at + QUAD; i++)
        if (i < p.out_dim) out[i] = i < p.width ? x[i] : rest[i];
}
