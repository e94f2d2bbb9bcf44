// The down products of a token's experts, and their weighted sum, in one launch (format/gemv.hip):
//
//     out[o] += sum_k weight[k] * (scale[e] * sum_i x[k, i] * w[e, o, i] + bias[e, o])        e = the expert of choice k
//
// A block has SUMMED_ROWS outputs. Its waves take experts in turn. A wave loads the first weights of its first expert before the
// kernel begins: the router has ended, because the kernel before waited for it. Then it converts the expert's activations for
// itself. The bits are those of gemv_own_tiled and combine.
//
// Dynamic shared memory: `wave_bytes` for the activations of each of SUMMED_WAVES waves.
#pragma once
#include "early.h"
#include "gemv.h"
#include "step.h"

constexpr u32 SUMMED_WAVES = 8, SUMMED_ROWS = 8;
constexpr u32 SUMMED_THREADS = SUMMED_WAVES * WARP_SIZE;
// Maximum of n_used.
constexpr u32 SUMMED_CHOICES = 32;

#if defined(GPU_NV)
#define SUMMED_KERNEL(NAME, PARAMS) ENTRY(NAME, PARAMS, launch_bounds(SUMMED_THREADS, BLOCKS_ROWS))
#else
#define SUMMED_KERNEL(NAME, PARAMS) KERNEL_THAT_BEGINS(NAME, PARAMS, SUMMED_THREADS)
#endif

// There is one product, whose `out` has the sums. One wave computes each row (split 1).
struct SummedFew {
    OwnFew own;
    // The row and weight of each choice, best first. Null weights are ones.
    const u32* rows;
    const float* weights;
    u32 n_used;
    u32 wave_bytes;
    FIELDS(own, rows, weights, n_used, wave_bytes)
};

// Loads a chunk of each of SUMMED_ROWS rows from `first` on. Their addresses are computed anew each time: there are no registers
// to keep them.
template <typename T> DEV void load_chunks(const Weights& w, u32 first, u32 chunk, T (&to)[SUMMED_ROWS]) {
    Weights from = {w.data, w.n_out, opaque(w.n_in)};
#if defined(GPU_AMD)
    asm volatile("" : "+s"(from.n_in));
#endif
#pragma unroll
    for (u32 r = 0; r < SUMMED_ROWS; r++)
        to[r] = Block<T, Planes>::of(from, min_of(first + r, w.n_out - 1)).load(chunk);
}

template <typename T> DEV void gemv_summed(const SummedFew& p) {
    // SUMMED_ROWS sums of each row of activations, and the row's expert.
    SHARED(float, part, SUMMED_CHOICES * SUMMED_ROWS);
    SHARED(u32, experts, SUMMED_CHOICES);
    // Of each choice.
    SHARED(u32, rows, SUMMED_CHOICES);
    SHARED(float, weights, SUMMED_CHOICES);
    DYNAMIC_SHARED(u8, memory);
    const Few& few = p.own.few;
    const Product& product = few.products[0];
    const u32 first_output = bid_x() * SUMMED_ROWS, output = first_output + tid();
    const bool has_output = tid() < SUMMED_ROWS && output < product.w.n_out;
    const u32 w = uniform(wave()), n = div_up(product.w.n_in, T::CHUNK), choice = min_of(tid(), p.n_used - 1);
    u8* own = memory + w * p.wave_bytes;
    float before = 0.0f;
    const auto start = [&] {
        const u32 row = early_word(p.rows + choice);
        const float weight = p.weights ? bits<float>(early_word((const u32*)p.weights + choice)) : 1.0f;
        begin();
        if (has_output) before = product.out[output];
        if (tid() < p.n_used) rows[choice] = row, weights[choice] = weight;
    };

    if (w >= p.n_used) start();
    for (u32 tile = w; tile < p.n_used; tile += SUMMED_WAVES) {
        const u32x4 words = early16(few.tiles + tile);
        const u32 expert = uniform(words[0]), row = words[1];
        // A padding row has no experts.
        if (expert == NO_EXPERT) {
            if (tile == w) start();
            continue;
        }
        Job job = job_of_tile<1>(few, {expert, row, 1, 0});
        place_acts<T>(own, job);
        float acc[SUMMED_ROWS][1] = {};
        for (u32 base = 0; base < n; base += WARP_SIZE) {
            const bool valid = base + lane() < n;
            const u32 chunk = valid ? base + lane() : n - 1, x_row = 0;
            T chunks[SUMMED_ROWS];
            load_chunks(job.w, first_output, chunk, chunks);
            if (base == 0) {
                if (tile == w) start();
                put_acts<T, WARP_SIZE>(p.own.source, row, lane(), job);
                wave_barrier(own, p.wave_bytes);
            }
            if constexpr (T::FLOAT)
                add_float_products<T, true>(job, chunks, &x_row, product.w.n_in, chunk, valid, AllRows{}, acc);
            else add_products<T, true>(job, chunks, &x_row, product.w.n_in, chunk, valid, AllRows{}, acc);
        }
        put_sums(part + row * SUMMED_ROWS, acc);
        if (lane() == 0) experts[row] = expert;
        // The wave's next activations are in the same place.
        wave_barrier(own, p.wave_bytes);
    }
    shared_barrier();

    if (!has_output) return;
    const u32 n_rows = rows[0] == NO_ROW ? 0 : p.n_used;
    float* own_part = part + tid();
    if (few.expert_scales || product.bias) {
        for (u32 row = 0; row < n_rows; row++) {
            float value = own_part[row * SUMMED_ROWS];
            if (few.expert_scales) value = mul_rounded(value, few.expert_scales[experts[row]]);
            if (product.bias) value += product.bias[experts[row] * product.w.n_out + output];
            own_part[row * SUMMED_ROWS] = value;
        }
    }
    float sum = 0.0f;
#pragma unroll 4
    for (u32 k = 0; k < n_rows; k++) sum = fma(own_part[rows[k] * SUMMED_ROWS], weights[k], sum);
    product.out[output] = sum + before;
}
