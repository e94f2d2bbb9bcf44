// The router of a single token in one launch: the RMS norm of the token's row, the products with an F32 matrix, and the choice of
// experts. All have the bits of the kernels for each: rms_norm_block_f32, GEMV, and `route`.
//
// Each block normalizes the row for itself, and computes the products of as many experts as it has waves, or fewer if waves share
// a row of weights. The first one writes the normalized values; the last one to arrive chooses. The grid is [blocks of
// experts]. Shared memory: a float for each value of the row.
#define FORMAT F32
#include "early.h"
#include "gemv.h"
#include "norm.h"
#include "route_one.h"

struct RouterParams {
    // The activations are in shared memory.
    NormParams norm;
    Weights w;
    // [n_experts], or null.
    const float* bias;
    float* logits;
    RouteParams route;
    // Blocks that have arrived; 0 before and after.
    u64* n_arrived;
    u32 n_blocks;
    // log2 of the waves that share a row of w.
    u32 split_log;
    FIELDS(norm, w, bias, logits, route, n_arrived, n_blocks, split_log)
};

// Adds one for the block. What its threads wrote before is seen by the threads of the last block. Returns whether this is the
// last of `n_blocks`; then the counter is 0 again. All threads must call it.
DEV bool arrives_last(u64* counter, u32 n_blocks) {
    SHARED(u32, is_last, 1);
    // On AMD GPUs, a barrier does not order stores of other waves for other blocks.
#if defined(GPU_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#endif
    barrier();
    if (tid() == 0) {
#if defined(GPU_NV)
        u64 before;
        asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(before) : "l"(counter) : "memory");
#elif defined(GPU_AMD)
        const u64 before = __hip_atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
#else
        const u64 before = __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
#endif
        *is_last = before == n_blocks - 1;
        if (*is_last) *counter = 0;
    }
    barrier();
#if defined(GPU_AMD)
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
#endif
    return *is_last;
}

KERNEL_THAT_BEGINS(router_one, RouterParams, BLOCK_THREADS) {
    constexpr u32 WAVES = BLOCK_THREADS / WARP_SIZE;
    SHARED(float, part, WAVES);
    SHARED(float, sums, WAVES);
    DYNAMIC_SHARED(float, values);
    const u32 n_groups = WAVES >> p.split_log, first_row = bid_x() * n_groups, w = uniform(wave());
    const bool is_padding = uniform(early_word(p.route.seq_of_row)) == NO_ROW;
    NormParams norm = p.norm;
    norm.out.values = values;
    if (bid_x() > 0) norm.normed = nullptr;
    Job job = {};
    job.x = (const u8*)values;
    const u32 row = min_of(first_row + (w >> p.split_log), p.w.n_out - 1), x_row = 0;
    const auto weights = Block<F32, Planes>::of(p.w, row);
    float acc[1][1] = {};
    // Once the first weights are on their way.
    const auto normalize = [&]() __attribute__((always_inline)) {
        norm_row<Rms, FormF32, BLOCK_THREADS>(norm, 0, tid(), part);
        shared_barrier();
    };
    const u32 first = (w & ((1u << p.split_log) - 1)) * WARP_SIZE;
    dot_rows<F32, true, USUAL_LOADS<F32, 1, 1>>(job, &weights, &x_row, p.w.n_in, first, WARP_SIZE << p.split_log, AllRows{},
                                                normalize, acc);
    const float of_wave = wave_sum(acc[0][0]);
    if (lane() == 0) sums[w] = of_wave;
    shared_barrier();
    const u32 expert = first_row + tid();
    if (tid() < n_groups && expert < p.w.n_out) {
        float sum = 0.0f;
        for (u32 k = 0; k < 1u << p.split_log; k++) sum += sums[(tid() << p.split_log) + k];
        if (p.bias) sum += p.bias[expert];
        p.logits[expert] = sum;
    }
    if (arrives_last(p.n_arrived, p.n_blocks)) route_single<BLOCK_THREADS>(p.route, is_padding);
}
