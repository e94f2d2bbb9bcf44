// Shared by the attention kernels: the addresses of keys and values of a position, and scores as base-2 exponents.
//
// Softmax is computed online (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022) on base-2 exponents:
// queries are multiplied by scale * log2(e), so that a weight is one exp2.
#pragma once
#include "kv_type.h"
#include "step.h"
#include "lanes.h"

// The exponent of positions that a row does not see: far below every score and, unlike infinity, never leads to NaN.
constexpr float UNSEEN = -1.0e30f;
constexpr float LOG2_E = 1.44269502f;

// Keys and values of a layer, each [n_blocks, n_kv_heads, page, dim] as stored by kv_type.h.
struct KvCache {
    kv::Planes k;
    kv::Planes v;
    // [n_seqs, max_pages]
    const u32* block_tables;
    u32 max_pages;
    // log2 of the positions per page, at least 4.
    u32 page_shift;
    u32 n_kv_heads;
    u32 pad;
    FIELDS(k, v, block_tables, max_pages, page_shift, n_kv_heads, pad)

    // The row of a position, given the block of its page.
    DEV_MEMBER u64 slot(u32 block, u32 kv_head, u32 pos) const {
        return (((u64)block * n_kv_heads + kv_head) << page_shift) + (pos & ((1u << page_shift) - 1));
    }
    DEV_MEMBER u32 block(u32 seq, u32 pos) const { return block_tables[(u64)seq * max_pages + (pos >> page_shift)]; }
};

// How the dot product of a query and a key becomes an exponent.
struct Scores {
    // [n_heads]: a score of each head that takes part in the softmax, but has no value; null for none.
    const float* sinks;
    float scale;
    // A scaled product x becomes cap * tanh(x / cap); 0 for no cap.
    float soft_cap;
    // A row sees itself and the window - 1 positions before it; 0 for all positions before it.
    u32 window;
    // The bits of a position that count chunks: a row sees the positions of its own chunk. 0 for a single chunk.
    u32 chunk_bits;
    // A second factor 1 + slope * ln(1 + (pos + offset) / step); step is 0 for none.
    float slope;
    u32 step;
    u32 offset;
    // How many positions after its own a row sees, at most up to the last of its sequence.
    u32 ahead;
    // What a score loses per position between query and key, as a base-2 exponent: head h, below alibi_heads (the
    // largest power of two of heads), loses 2^(-alibi * (h + 1)); alibi is 0 for nothing.
    float alibi;
    u32 alibi_heads;
    FIELDS(sinks, scale, soft_cap, window, chunk_bits, slope, step, offset, ahead, alibi, alibi_heads)

    // Factor on the queries of a row at `pos`. They are not divided by soft_cap: that would make them so small that the
    // second f16 of each, the rounding error of the first, would lose bits.
    DEV_MEMBER float query_factor(u32 pos) const {
        float factor = soft_cap > 0.0f ? scale : scale * LOG2_E;
        if (step != 0) factor *= fma(slope, log_of((float)(1 + (pos + offset) / step)), 1.0f);
        return factor;
    }
    // The weight of a head's sink, relative to the greatest exponent. Infinite if the sink is far above it: then nothing
    // remains of the values.
    DEV_MEMBER float sink_weight(u32 head, float greatest) const {
        return sinks ? exp2_fast(fma(sinks[head], LOG2_E, -greatest)) : 0.0f;
    }
    DEV_MEMBER float exponent(float product) const {
        return soft_cap > 0.0f ? soft_cap * LOG2_E * tanh_of(product * (1.0f / soft_cap)) : product;
    }
    // The bias of a head for each position between query and key.
    DEV_MEMBER float bias_of(u32 head) const {
        if (alibi == 0.0f) return 0.0f;
        float power = head < alibi_heads ? (float)(head + 1) : (float)(head - alibi_heads) + 0.5f;
        return -LOG2_E * exp2_fast(-alibi * power);
    }
    static DEV_MEMBER float distance(u32 a, u32 b) { return (float)(a > b ? a - b : b - a); }
    // The last position that a row at `pos` sees in a sequence whose last one is `last`.
    DEV_MEMBER u32 last_seen(u32 pos, u32 last) const { return min_of(pos + ahead, last); }
    // The first position that a row at `pos` sees.
    DEV_MEMBER u32 first_seen(u32 pos) const {
        return window != 0 && pos >= window ? pos - window + 1 : pos & chunk_bits;
    }
};
