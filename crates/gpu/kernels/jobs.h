// The jobs of a launch: products of weight matrices with rows of activations, for GEMV (gemv.h) and GEMM (gemm/gemm.h)
// alike.
//
//     out[n, o] (+)= sum_i x[n, i] * w[o, i] + bias[o]        x [n_rows, n_in], w [n_out, n_in], out [n_rows, n_out]
//     gated: out[n, o] = act(gate[n, o]) * up[n, o]           both such products
//
// What a launch has in its parameters is small, since each launch of a step costs time for it, and is read by blocks
// without waiting. GEMV takes up to FEW products of the same activations (Few), GEMM one (One). Any number of products,
// each with its own activations, are in a table in device memory (Listed). Their blocks follow one another.
//
// A product takes all rows, or it is of an MoE layer and takes tiles of rows, each with the matrix of its expert. The
// host does not know how many tiles there are, so there are blocks for more; those past the last have no expert. Blocks
// of all tiles for some outputs come before those for the next outputs, so that the weights of an expert are read once.
#pragma once
#include "activation.h"
#include "experts.h"
#include "group.h"
#include "quant.h"

// What happens to the result of a product. GATE: out = act(gate) * product; the gate is in out, unless the job has both
// products.
enum Mode : u32 { STORE = 0, ADD = 1, GATE_SILU = 2, GATE_GELU_TANH = 3, GATE_SWIGLU_OAI = 8 };
// A bit beside STORE and ADD, for GEMM: blocks of all rows of some outputs start before those of the next outputs, so
// that weights are read once if the cache does not hold them. Otherwise, blocks of all outputs of some rows start first.
// bid_x() counts whichever comes first, bid_y() the other.
constexpr u32 ROWS_FIRST = 4;

// act(gate) * up: gate / (1 + e^t) times up or a function of it.
DEV float gated_value(Mode mode, float gate, float up) {
    float factor = -1.0f;
    if (mode == GATE_SWIGLU_OAI) {
        gate = at_most(gate, OAI_LIMIT);
        up = clamped(up, OAI_LIMIT) + 1.0f;
        factor = OAI_FACTOR;
    }
    if (mode == GATE_GELU_TANH) factor = fma(gate * gate, GELU_CUBIC, GELU_FACTOR);
    return gate / (1.0f + exp_of(gate * factor)) * up;
}

// A product, as src/ops/jobs.rs has it; the structs below too.
struct One {
    Weights w;
    // Activations [n_rows, n_in]: f32 if FORMAT::FLOAT, or f16 where a kernel says so; else int8 codes with scales
    // [n_rows, n_in / ACT_BLOCK] and sums of 16 codes [n_rows, n_in / 16].
    const u8* x;
    const float* scales;
    const i16* sums;
    // [n_out], or null.
    const float* bias;
    float* out;
    u32 n_rows;
    Mode mode;
    // GEMV: log2 of the virtual waves that share a row of w, and of those that a wave computes, at most as many.
    u32 split_log;
    u32 turns_log;
    // In a table: the first block, and the index in the times.
    u32 first_block;
    u32 timed;
    // Of an MoE layer: the tiles, and the distance in bytes of the experts' matrices, which follow one another, as do
    // their biases.
    const ExpertTile* tiles;
    u64 expert_bytes;
    // [n_experts], or null: a factor on each expert's products, before the bias.
    const float* expert_scales;
    // Row r of expert e is at r * out_stride + e * out_skip floats of out, modulo 2^64.
    u64 out_skip;
    u32 out_stride;
    // How many experts' matrices follow one another, and the matrix of the expert after them.
    u32 n_stacked;
    const u8* shared;
    FIELDS(w, x, scales, sums, bias, out, n_rows, mode, split_log, turns_log, first_block, timed, tiles, expert_bytes,
           expert_scales, out_skip, out_stride, n_stacked, shared)
};

// The matrix of an expert, the first of which is at `first`. A branch takes no registers: gemv_tiled_2_1 would spill.
DEV u8* matrix_of(u32 expert, const u8* first, u64 expert_bytes, u32 n_stacked, const u8* shared) {
    if (expert >= n_stacked) return (u8*)global(shared);
    return (u8*)global(first + expert * expert_bytes);
}

// What the products of a launch differ in.
struct Product {
    Weights w;
    const float* bias;
    float* out;
    u32 first_block;
    Mode mode;
    u32 split_log;
    u32 turns_log;
    FIELDS(w, bias, out, first_block, mode, split_log, turns_log)
};

constexpr u32 FEW = 3;

// The fields of experts come last, where they cost other launches nothing.
struct Few {
    const u8* x;
    const float* scales;
    const i16* sums;
    u32 n_rows;
    // Whether products 0 and 1 are gate and up; the mode of 0 then applies to both.
    u32 gated;
    // Unused ones begin after the last block.
    Product products[FEW];
    const ExpertTile* tiles;
    u64 expert_bytes;
    const float* expert_scales;
    const float* up_scales;
    u64 out_skip;
    u32 out_stride;
    u32 n_stacked;
    const u8* shared;
    const u8* up_shared;
    FIELDS(x, scales, sums, n_rows, gated, products, tiles, expert_bytes, expert_scales, up_scales, out_skip, out_stride,
           n_stacked, shared, up_shared)
};

struct Listed {
    // [n_jobs]: first blocks, ascending from 0, and the products.
    const u32* first_blocks;
    const One* jobs;
    // [2, n_timed]: start and end of the products by the device's clock, or null.
    u64* times;
    u32 n_jobs;
    u32 n_timed;
    FIELDS(first_blocks, jobs, times, n_jobs, n_timed)
};

// Another address, so many floats further, modulo 2^64.
DEV float* moved(float* p, u64 floats) { return global((float*)((u64)p + floats * sizeof(float))); }

// What a block of GEMV computes a part of: its number among the blocks of the product. If gated, the product is the
// gate, and `up` has the data of a matrix of the same shape.
struct Job : One {
    bool gated;
    const u8* up;
    const float* up_bias;
    // Factors of the tile's expert on the product, and on that with up.
    float scale, up_scale;
    u32 block;
};

// Selects field by field, so that the parameters need no copy in indexable memory.
DEV Product choose(bool second, const Product& a, const Product& b) {
    Product p;
    p.w.data = choose_loaded(second, a.w.data, b.w.data);
    p.w.n_out = choose_loaded(second, a.w.n_out, b.w.n_out);
    p.w.n_in = a.w.n_in;
    p.bias = choose_loaded(second, a.bias, b.bias);
    p.out = choose_loaded(second, a.out, b.out);
    p.first_block = choose_loaded(second, a.first_block, b.first_block);
    p.mode = (Mode)choose_loaded(second, a.mode, b.mode);
    p.split_log = choose_loaded(second, a.split_log, b.split_log);
    p.turns_log = choose_loaded(second, a.turns_log, b.turns_log);
    return p;
}

// The job of a block. `MAY_GATE`: whether the kernel computes gated jobs.
template <bool MAY_GATE> DEV Job job_of(const Few& p, u32 block) {
    const bool gated = MAY_GATE && p.gated;
    Product one = choose(!gated && block >= p.products[1].first_block, p.products[0], p.products[1]);
    one = choose(!gated && block >= p.products[2].first_block, one, p.products[2]);
    Job job;
    job.w = one.w;
    job.x = p.x;
    job.scales = p.scales;
    job.sums = p.sums;
    job.bias = one.bias;
    job.out = one.out;
    job.out_stride = one.w.n_out;
    job.n_rows = p.n_rows;
    job.mode = one.mode;
    job.split_log = one.split_log;
    job.turns_log = one.turns_log;
    job.gated = gated;
    job.up = p.products[1].w.data;
    job.up_bias = p.products[1].bias;
    job.scale = job.up_scale = 1.0f;
    job.block = block - one.first_block;
    return job;
}

DEV Job job_of(const One& one, u32 block) { return {one, false, nullptr, nullptr, 1.0f, 1.0f, block - one.first_block}; }

// The product of a table that this block computes a part of. All threads of the block must call it.
DEV One find(const Listed& p) {
    One one = p.jobs[group_op(p.first_blocks, p.n_jobs)];
    one.w = {global(one.w.data), one.w.n_out, uniform(one.w.n_in)};
    one.x = global(one.x);
    one.scales = global(one.scales);
    one.sums = global(one.sums);
    one.bias = global(one.bias);
    one.out = global(one.out);
    one.out_stride = uniform(one.out_stride);
    one.n_rows = uniform(one.n_rows);
    one.split_log = uniform(one.split_log);
    return one;
}
